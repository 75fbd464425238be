//! Bring-up of a controller (section 3.5.1), and then what the host's side of an Admin
//! Queue does by itself: keep alive, asynchronous events, Abort of commands that are late.
//!
//! Drive it so: while [`Controller::poll_command`] gives a request, submit it, and
//! hand its completion to [`Controller::completed`] with the token that came with it; call
//! [`Controller::handle_timeout`] when [`Controller::poll_timeout`] says so. After an error
//! it does nothing: the association is lost, which [`super::recovery`] is about.
//!
//! At most [`OWN_COMMANDS`] of its requests are under way, so a queue that leaves room for
//! as many ([`CALLER_COMMANDS`] is for all others) never keeps one of them waiting, whatever
//! else is asked of the controller.
use core::time::Duration;

use zerocopy::FromBytes;

use super::abort::Aborts;
use super::queue::Connect;
use super::{Data, Error, Identity, Request, Step, command};
use crate::time::{Instant, sooner};
use crate::wire::connect::ConnectData;
use crate::wire::cqe::Cqe;
use crate::wire::feature::{FeatureId, NumberOfQueues};
use crate::wire::identify::{Cns, ControllerType, Ctratt, IdentifyController, Oaes};
use crate::wire::ids::{Cid, Cntlid, Nqn, Nsid, Qid};
use crate::wire::log::AsyncEvent;
use crate::wire::property::{Cap, Cc, CommandSets, Csts, Property, Shn, Vs, css};
use crate::wire::sqe::Sqe;

/// Entries of an Admin Queue: the least that a controller offers.
pub const ADMIN_ENTRIES: u32 = 32;

/// Requests of the machine that may be under way at a time: a step of the bring-up or the
/// shutdown, Keep Alive, Abort, and Asynchronous Event Request, which may take for ever.
pub const OWN_COMMANDS: u32 = 4;

/// Commands of others that may be under way at a time.
pub const CALLER_COMMANDS: u32 = ADMIN_ENTRIES - 1 - OWN_COMMANDS;

/// How long a command that is late is given to end, at most.
const ABORT_PATIENCE: Duration = Duration::from_secs(5);

/// The first and the longest pause between two looks at CSTS.
const READY_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// The controller to bring up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who we are.
    pub host: Identity,
    /// The subsystem.
    pub subnqn: Nqn,
    /// The controller, or [`Cntlid::DYNAMIC`] for the subsystem to choose.
    pub cntlid: Cntlid,
    /// Keep alive timeout; zero for none. Rounded to milliseconds.
    pub kato: Duration,
    /// I/O queues wanted; none of a discovery controller.
    pub io_queues: u16,
    /// Ask for asynchronous events: all that the controller offers (OAES).
    pub events: bool,
    /// How long the controller may take for a command of the bring-up.
    pub command_timeout: Duration,
}

/// What a controller can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Which controller.
    pub cntlid: Cntlid,
    /// CAP.
    pub cap: Cap,
    /// The version that it keeps to.
    pub vs: Vs,
    /// What kind it is.
    pub kind: ControllerType,
    /// Bytes of data that a command capsule of an I/O queue may have (IOCCSZ).
    pub inline_data: u32,
    /// Bytes of data that a command may have (MDTS).
    pub transfer: u32,
    /// Entries that an I/O queue may have, 2..=65536 (CAP.MQES, MAXCMD).
    pub queue_entries: u32,
    /// I/O queues that it grants, never more than were wanted.
    pub io_queues: u16,
    /// The keep alive timeout that was agreed on; zero for none.
    pub kato: Duration,
    /// Granularity of its keep alive timer in 100 ms units (KAS).
    pub kas: u16,
    /// Any command restarts the timer (CTRATT.TBKAS), not Keep Alive alone.
    pub traffic_based_keep_alive: bool,
    /// How long it may need to be done with its commands after it lost the host; zero if
    /// it does not say (CQT).
    pub cqt: Duration,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The controller is ready.
    Ready(Capabilities),
    /// The controller reports an event. It reports no other of its kind until the log page
    /// that the event names was read to the end, by a command that
    /// [`command::releasing_events`].
    Async(AsyncEvent),
    /// It accepted the shutdown: close the connections.
    ShutDown,
}

/// Which of the machine's requests it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A step of the bring-up or the shutdown.
    Step,
    /// Keep Alive.
    KeepAlive,
    /// Abort.
    Abort,
    /// Asynchronous Event Request. Its answer comes when something happens.
    AsyncEvent,
}

/// One kind of request, of which one is under way at a time.
#[derive(Debug, Default)]
struct Turn {
    /// When the next is due.
    due: Option<Instant>,
    /// By when the one under way must be answered.
    answer_by: Option<Instant>,
}

impl Turn {
    /// Whether one is due.
    fn begin(&mut self, now: Instant, patience: Duration) -> bool {
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            (self.due, self.answer_by) = (None, Some(now.after(patience)));
        }
        due
    }

    fn is_late(&self, now: Instant) -> bool {
        self.answer_by.is_some_and(|deadline| deadline <= now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        sooner(self.due, self.answer_by)
    }
}

/// The machine.
#[derive(Debug)]
pub struct Controller {
    config: Config,
    step: Step,
    /// Of `step`.
    turn: Turn,
    keep_alive: Turn,
    /// Whether to send an Asynchronous Event Request.
    event_due: bool,
    aborts: Aborts,
    /// By when the controller must be ready.
    ready_by: Instant,
    pause: Duration,
    /// It is to be shut down, once no other step is under way.
    stop: bool,
    /// There was an error: what is still answered does not matter.
    over: bool,
    found: Capabilities,
    oaes: Oaes,
}

impl Controller {
    /// For an Admin Queue whose connection is just made.
    #[must_use]
    pub fn new(config: Config, now: Instant) -> Self {
        Self {
            step: Step::Connect,
            turn: Turn {
                due: Some(now),
                answer_by: None,
            },
            keep_alive: Turn::default(),
            event_due: false,
            aborts: Aborts::new(config.command_timeout.min(ABORT_PATIENCE)),
            ready_by: now,
            pause: READY_PAUSE.0,
            stop: false,
            over: false,
            found: Capabilities {
                cntlid: config.cntlid,
                cap: Cap::default(),
                vs: Vs(0),
                kind: ControllerType::NotReported,
                inline_data: 0,
                transfer: u32::MAX,
                queue_entries: 0,
                io_queues: 0,
                kato: config.kato,
                kas: 0,
                traffic_based_keep_alive: false,
                cqt: Duration::ZERO,
            },
            oaes: Oaes::default(),
            config,
        }
    }

    /// The next request to submit. If it has data from the host, those are
    /// [`Controller::connect_data`].
    pub fn poll_command(&mut self, now: Instant) -> Option<(Token, Request)> {
        if self.keep_alive.begin(now, self.config.kato) {
            return Some((Token::KeepAlive, Request::bare(command::keep_alive())));
        }
        if self.turn.begin(now, self.config.command_timeout) {
            return Some((Token::Step, self.request()));
        }
        if let Some(abort) = self.aborts.poll_command() {
            return Some((Token::Abort, abort));
        }
        let event = core::mem::take(&mut self.event_due);
        event.then(|| {
            let request = Request::bare(command::async_event_request());
            (Token::AsyncEvent, request)
        })
    }

    /// The data of the Connect command.
    #[must_use]
    pub fn connect_data(&self) -> ConnectData {
        Connect::data(&self.config.host, &self.config.subnqn, self.config.cntlid)
    }

    /// A request was answered; `data` is what came with that.
    ///
    /// # Errors
    /// There is no controller to be had, or no more.
    pub fn completed(
        &mut self,
        token: Token,
        cqe: &Cqe,
        data: &[u8],
        now: Instant,
    ) -> Result<Option<Event>, Error> {
        if self.over {
            return Ok(None);
        }
        let outcome = match token {
            Token::Step => self.step_completed(cqe, data, now),
            Token::KeepAlive => self.kept_alive(cqe, now).map(|()| None),
            Token::Abort => {
                self.aborts.completed();
                Ok(None)
            }
            Token::AsyncEvent => Ok(self.happened(cqe)),
        };
        outcome.inspect_err(|_| self.end())
    }

    /// A command of another, of any of the controller's queues, was not answered in time. It
    /// is aborted; say so when it ends, [`Controller::ended`].
    ///
    /// # Errors
    /// [`Error::Unanswered`]: so many are late that the controller is not worth any more time.
    pub fn timed_out(&mut self, qid: Qid, cid: Cid, now: Instant) -> Result<(), Error> {
        if self.over {
            return Ok(());
        }
        let outcome = self.aborts.timed_out(qid, cid, now);
        outcome.inspect_err(|_| self.end())
    }

    /// A command that was late ended.
    pub fn ended(&mut self, qid: Qid, cid: Cid) {
        self.aborts.ended(qid, cid);
    }

    /// Shuts the controller down, as soon as no other step is under way.
    pub fn shut_down(&mut self, now: Instant) {
        if self.over {
            return;
        }
        self.stop = true;
        self.keep_alive.due = None;
        self.event_due = false;
        if self.turn.answer_by.is_none() {
            self.go_on(Step::ShutDown, now);
        }
    }

    /// Whether a request is under way whose answer is awaited for a limited time.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.turn.answer_by.is_some() || self.keep_alive.answer_by.is_some()
    }

    /// When something is to be done: ask [`Controller::poll_command`], and call
    /// [`Controller::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let event = self.event_due.then_some(Instant::ZERO);
        let turns = sooner(self.turn.poll_timeout(), self.keep_alive.poll_timeout());
        sooner(sooner(turns, event), self.aborts.poll_timeout())
    }

    /// Time passed.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the controller did not answer. [`Error::Unanswered`]: it did not
    /// answer another's command.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        let outcome = if self.turn.is_late(now) {
            Err(Error::Timeout(self.step))
        } else if self.keep_alive.is_late(now) {
            Err(Error::Timeout(Step::KeepAlive))
        } else {
            self.aborts.handle_timeout(now)
        };
        outcome.inspect_err(|_| self.end())
    }

    /// Nothing more is asked of the controller.
    fn end(&mut self) {
        self.over = true;
        (self.turn, self.keep_alive) = (Turn::default(), Turn::default());
        self.event_due = false;
        self.aborts = Aborts::new(Duration::ZERO);
    }

    /// Of the step that is due.
    fn request(&self) -> Request {
        match self.step {
            Step::Connect => self.connect().request(),
            Step::Capabilities => Request::bare(command::property_get(Property::Cap)),
            Step::Version => Request::bare(command::property_get(Property::Vs)),
            Step::Enable => Request::bare(self.set_cc(Shn::None)),
            Step::Ready => Request::bare(command::property_get(Property::Csts)),
            Step::Identify => Request {
                sqe: command::identify(Cns::Controller, Nsid(0)),
                data: Data::ToHost(4096),
            },
            Step::Queues => {
                let wanted = self.config.io_queues.into();
                let queues = NumberOfQueues {
                    nsq: wanted,
                    ncq: wanted,
                };
                Request::bare(command::set_feature(
                    FeatureId::NumberOfQueues,
                    queues.to_dword(),
                ))
            }
            // The bits are the same in both (section 5.27.1.8).
            Step::Events => Request::bare(command::set_feature(
                FeatureId::AsyncEventConfig,
                self.oaes.bits(),
            )),
            Step::KeepAlive => Request::bare(command::keep_alive()),
            Step::ShutDown => Request::bare(self.set_cc(Shn::Normal)),
        }
    }

    fn step_completed(
        &mut self,
        cqe: &Cqe,
        data: &[u8],
        now: Instant,
    ) -> Result<Option<Event>, Error> {
        self.turn.answer_by = None;
        if self.step == Step::Connect {
            self.found.cntlid = self.connect().completed(cqe)?.cntlid;
            return Ok(self.go_on(Step::Capabilities, now));
        }
        let (status, result) = (cqe.status(), cqe.result.get());
        if self.step == Step::Events {
            // Whoever refuses will have little to report.
            return Ok(self.ready(now));
        }
        if !status.is_success() {
            return Err(Error::refused(self.step, status, result));
        }
        match self.step {
            Step::Connect | Step::Capabilities => {
                self.capabilities(Cap(result))?;
                Ok(self.go_on(Step::Version, now))
            }
            Step::Version => {
                self.found.vs = Vs(cqe.dw0());
                Ok(self.go_on(Step::Enable, now))
            }
            Step::Enable => {
                // Section 3.1.3.1: CAP.TO counts from setting CC.EN. A controller that
                // says 0 means that it is quick.
                let to_ms = self.found.cap.timeout_ms().max(500);
                self.ready_by = now.after(Duration::from_millis(to_ms.into()));
                Ok(self.go_on(Step::Ready, now))
            }
            Step::Ready => {
                self.status(Csts(cqe.dw0()), now)?;
                Ok(None)
            }
            Step::Identify => {
                self.identified(data)?;
                if self.has_io_queues() {
                    return Ok(self.go_on(Step::Queues, now));
                }
                Ok(self.last_step(now))
            }
            Step::Queues => {
                let granted = NumberOfQueues::from_dword(cqe.dw0());
                let granted = granted.nsq.min(granted.ncq);
                let wanted = self.config.io_queues;
                self.found.io_queues = u16::try_from(granted).unwrap_or(wanted).min(wanted);
                Ok(self.last_step(now))
            }
            Step::ShutDown => {
                self.end();
                Ok(Some(Event::ShutDown))
            }
            Step::Events | Step::KeepAlive => Ok(None),
        }
    }

    fn kept_alive(&mut self, cqe: &Cqe, now: Instant) -> Result<(), Error> {
        self.keep_alive.answer_by = None;
        let status = cqe.status();
        if !status.is_success() {
            return Err(Error::refused(Step::KeepAlive, status, 0));
        }
        self.keep_alive_later(now);
        Ok(())
    }

    /// A request that fails would fail again: there are no events then.
    fn happened(&mut self, cqe: &Cqe) -> Option<Event> {
        if !cqe.status().is_success() {
            return None;
        }
        self.event_due = !self.stop;
        Some(Event::Async(AsyncEvent::from_dw0(cqe.dw0())))
    }

    fn last_step(&mut self, now: Instant) -> Option<Event> {
        if self.config.events && self.oaes != Oaes::default() {
            return self.go_on(Step::Events, now);
        }
        self.ready(now)
    }

    fn ready(&mut self, now: Instant) -> Option<Event> {
        if self.stop {
            return self.go_on(Step::ShutDown, now);
        }
        self.event_due = self.config.events;
        self.keep_alive_later(now);
        Some(Event::Ready(self.found))
    }

    /// Half of the time, so that one that is late or lost does no harm.
    fn keep_alive_later(&mut self, now: Instant) {
        let half = self.config.kato.checked_div(2).unwrap_or_default();
        self.keep_alive.due = (half > Duration::ZERO && !self.stop).then(|| now.after(half));
    }

    fn connect(&self) -> Connect {
        let kato_ms = self.config.kato.as_millis();
        Connect {
            qid: Qid::ADMIN,
            entries: ADMIN_ENTRIES,
            kato_ms: u32::try_from(kato_ms).unwrap_or(u32::MAX),
            sq_flow_control: true,
        }
    }

    fn go_on(&mut self, step: Step, now: Instant) -> Option<Event> {
        self.step = if self.stop { Step::ShutDown } else { step };
        self.turn.due = Some(now);
        None
    }

    fn capabilities(&mut self, cap: Cap) -> Result<(), Error> {
        if cap.max_queue_entries() < 2 {
            return Err(Error::Unusable("its queues have one entry (CAP.MQES)"));
        }
        self.found.cap = cap;
        self.found.queue_entries = cap.max_queue_entries();
        Ok(())
    }

    /// Property Set of CC. 64 and 16 bytes are the sizes of queue entries.
    fn set_cc(&self, shn: Shn) -> Sqe {
        let cap = self.found.cap;
        let sets = if cap.css() & css::NVM != 0 {
            CommandSets::Nvm
        } else if cap.css() & css::IOCS != 0 {
            CommandSets::AllSupported
        } else {
            CommandSets::AdminOnly
        };
        let cc = Cc::default()
            .with_en(true)
            .with_css(sets)
            .with_page_size(cap.page_size_min())
            .with_shn(shn)
            .with_iosqes(6)
            .with_iocqes(4);
        command::property_set(Property::Cc, cc.0.into())
    }

    fn status(&mut self, csts: Csts, now: Instant) -> Result<(), Error> {
        if csts.cfs() {
            return Err(Error::ControllerFailed);
        }
        if csts.rdy() {
            self.go_on(Step::Identify, now);
        } else if now >= self.ready_by {
            return Err(Error::Timeout(Step::Ready));
        } else {
            self.turn.due = Some(now.after(self.pause));
            self.pause = self.pause.saturating_mul(2).min(READY_PAUSE.1);
        }
        Ok(())
    }

    /// Whether there are to be any, once it is known what kind of controller this is: a
    /// discovery controller may have another name than the well-known one.
    fn has_io_queues(&self) -> bool {
        self.config.io_queues > 0 && self.found.kind != ControllerType::Discovery
    }

    /// Section 5.17.2.1, figure 276.
    fn identified(&mut self, data: &[u8]) -> Result<(), Error> {
        let (identify, _) = IdentifyController::ref_from_prefix(data)
            .map_err(|_| Error::Unusable("Identify Controller returns less than 4096 bytes"))?;
        let found = &mut self.found;
        if Cntlid(identify.cntlid.get()) != found.cntlid {
            return Err(Error::Unusable("Identify and Connect differ in CNTLID"));
        }
        found.kind = identify.controller_type();
        let page = found.cap.page_size_min();
        found.transfer = identify
            .max_data_transfer(page)
            .and_then(|bytes| u32::try_from(bytes).ok())
            .unwrap_or(u32::MAX);
        if self.config.kato > Duration::ZERO && identify.kas.get() == 0 {
            return Err(Error::Unusable("it has no keep alive (KAS is 0)"));
        }
        self.oaes = identify.oaes;
        found.kas = identify.kas.get();
        found.traffic_based_keep_alive = identify.ctratt.contains(Ctratt::TBKAS);
        found.cqt = Duration::from_millis(identify.cqt.get().into());
        if !self.has_io_queues() {
            return Ok(());
        }
        let found = &mut self.found;
        if identify.command_capsule_size() < 64 {
            return Err(Error::Unusable("IOCCSZ is less than a command"));
        }
        if identify.icdoff.get() != 0 {
            return Err(Error::Unusable("ICDOFF is not 0"));
        }
        found.inline_data = u32::try_from(identify.in_capsule_data_size()).unwrap_or(u32::MAX);
        if let maxcmd @ 1.. = identify.maxcmd.get() {
            // Commands, of which a queue holds one fewer than it has entries.
            let most = u32::from(maxcmd).saturating_add(1);
            found.queue_entries = found.queue_entries.min(most);
        }
        Ok(())
    }
}
