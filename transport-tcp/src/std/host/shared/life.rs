//! An association's life: how it comes to be, is lost, comes back and ends.
//!
//! Whatever happens to its queues comes to [`Inner::happened`]; what time brings comes to
//! [`Inner::tick`], which the Admin Queue's driver calls. Both hold the state's lock, take
//! the lanes' locks one at a time under it, and tell callers afterwards.
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use nvmf_core::host::controller::{self as machine, Capabilities, Event as MachineEvent};
use nvmf_core::host::queue::Connect;
use nvmf_core::host::recovery::{self, Action, Cause, Effect, Fence, Recovery, Verdict};
use nvmf_core::host::{self, command};
use nvmf_core::tcp::host::MAX_COMMANDS;
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::{Cntlid, Nsid, Qid};
use nvmf_core::wire::log::{AsyncEvent, ChangedNamespaces, LogId};

use super::super::super::buffer::Buffer;
use super::super::commands::Payload;
use super::super::queue::Failure;
use super::association::{Inner, structure, urgent};
use super::connection::Role;
use super::event::Event;
use super::lane::{self, Ended, Lane, Verdicts, lock};
use super::namespace::Known;

/// What changes in an association.
pub(super) struct State {
    phase: Phase,
    /// Since the controller was ready for the first time.
    recovery: Option<Recovery>,
    /// Which of the addresses.
    pub(super) address: usize,
    /// Attempts to connect, so that news of an earlier one are known as that.
    attempt: u64,
    /// I/O queues that are ready.
    ready: u16,
    /// What the controller can, or could.
    pub(super) found: Option<Capabilities>,
    /// Which association was lost last.
    lost: Option<recovery::Association>,
    /// Why there is no controller.
    pub(super) failure: Failure,
    /// Who waits for the first controller.
    waiting: Vec<Waker>,
    /// What is being asked of the controller.
    tasks: Vec<Task>,
    /// Itself, while it ends.
    itself: Option<Arc<Inner>>,
}

/// Commands, one after the other, and what is to be told at the end.
struct Task {
    future: Pin<Box<dyn Future<Output = Vec<Event>> + Send>>,
    /// The controller can be used then.
    then_live: bool,
}

impl Task {
    fn new(future: impl Future<Output = Vec<Event>> + Send + 'static, then_live: bool) -> Self {
        Self {
            future: Box::pin(future),
            then_live,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The controller is being brought up.
    Connecting,
    /// The queues are there again; the namespaces are looked at.
    Checking,
    Live,
    /// Until the next attempt.
    Lost,
    /// The controller is being shut down.
    Closing,
    Gone,
}

impl State {
    pub(super) const fn new() -> Self {
        Self {
            phase: Phase::Connecting,
            recovery: None,
            address: 0,
            attempt: 0,
            ready: 0,
            found: None,
            lost: None,
            failure: Failure::Closed,
            waiting: Vec::new(),
            tasks: Vec::new(),
            itself: None,
        }
    }

    /// Whether there was a controller; the reason, if there was none and will be none.
    pub(super) fn poll_first(&mut self, context: &Context<'_>) -> Poll<Result<(), Failure>> {
        if self.recovery.is_some() {
            return Poll::Ready(Ok(()));
        }
        if self.phase == Phase::Gone {
            return Poll::Ready(Err(self.failure));
        }
        self.waiting.push(context.waker().clone());
        Poll::Pending
    }
}

impl Inner {
    /// Begins.
    pub(super) fn begin(&self) {
        self.locked(|state, ended| self.connect(state, ended));
    }

    /// Something happened to a lane, in its connection of that attempt.
    pub(super) fn happened(&self, index: usize, attempt: u64, event: lane::Event) {
        let now = self.now();
        self.locked(|state, ended| {
            if matches!(event, lane::Event::Ended) {
                self.look_for_ended(state, now);
                return;
            }
            if attempt != state.attempt {
                return;
            }
            match (state.phase, event) {
                (Phase::Closing, lane::Event::Machine(MachineEvent::ShutDown))
                | (Phase::Closing, lane::Event::Failed(_)) => self.dismantle(state, ended),
                (_, lane::Event::Failed(failure)) => self.lost(state, failure, now, ended),
                (Phase::Connecting, lane::Event::Machine(MachineEvent::Ready(found))) => {
                    self.controller_ready(state, found, now, ended);
                }
                (Phase::Connecting, lane::Event::Ready) => {
                    self.queue_ready(state, index, now, ended);
                }
                (_, lane::Event::Machine(MachineEvent::Async(event))) => {
                    self.emit(&Event::Async(event));
                    let attend = attend(Arc::clone(&self.lanes[0]), event, self.known());
                    state.tasks.push(Task::new(attend, false));
                }
                (Phase::Live | Phase::Checking, lane::Event::Late(cids)) => {
                    // There are no more than 65535 queues.
                    if let Err(failure) = self.lanes[0].abort_late(Qid(index as u16), &cids) {
                        self.lost(state, failure, now, ended);
                    }
                }
                (_, lane::Event::Over(cids)) => {
                    self.lanes[0].late_ended(Qid(index as u16), &cids);
                }
                (phase, event) => tracing::debug!(?phase, ?event, "nothing comes of it"),
            }
        });
    }

    /// Does what is due; when to come again.
    pub(super) fn tick(&self) -> Option<Instant> {
        let now = self.now();
        let mut due = None;
        self.locked(|state, ended| {
            let mut live = false;
            if !state.tasks.is_empty() {
                let waker = Waker::from(Arc::new(Visitor(Arc::downgrade(&self.lanes[0]))));
                let mut context = Context::from_waker(&waker);
                state.tasks.retain_mut(|task| {
                    let Poll::Ready(events) = task.future.as_mut().poll(&mut context) else {
                        return true;
                    };
                    events.into_iter().for_each(|event| self.emit(&event));
                    live |= task.then_live;
                    false
                });
            }
            if live {
                self.live(state, now, ended);
            }
            self.act(state, now, ended);
            due = state.recovery.as_ref().and_then(Recovery::poll_timeout);
        });
        due
    }

    /// There is nobody any more who could use it.
    pub(super) fn close(self: &Arc<Self>) {
        self.locked(|state, ended| {
            let live = matches!(state.phase, Phase::Live);
            if let Some(recovery) = &mut state.recovery {
                recovery.stop();
            }
            if state.phase == Phase::Gone {
                return;
            }
            state.phase = Phase::Closing;
            if live && self.lanes[0].shut_down() {
                state.itself = Some(Arc::clone(self));
            } else {
                self.dismantle(state, ended);
            }
        });
    }

    /// With the state's lock; callers are told without it.
    fn locked(&self, action: impl FnOnce(&mut State, &mut Ended)) {
        let mut ended = Ended::default();
        let mut wakers = Vec::new();
        let itself = {
            let mut state = lock(&self.state);
            action(&mut state, &mut ended);
            if state.recovery.is_some() || state.phase == Phase::Gone {
                wakers = std::mem::take(&mut state.waiting);
            }
            match state.phase {
                Phase::Gone => state.itself.take(),
                _ => None,
            }
        };
        ended.tell();
        wakers.into_iter().for_each(Waker::wake);
        drop(itself);
    }

    fn connect(&self, state: &mut State, ended: &mut Ended) {
        let now = self.now();
        state.phase = Phase::Connecting;
        state.attempt += 1;
        state.ready = 0;
        let discovery = self.subnqn.is_discovery();
        let config = machine::Config {
            host: self.options.identity.clone(),
            subnqn: self.subnqn.clone(),
            cntlid: Cntlid::DYNAMIC,
            kato: self.options.keep_alive,
            io_queues: if discovery {
                0
            } else {
                self.options.io_queues.max(1)
            },
            events: !discovery,
            command_timeout: self.options.command_timeout,
        };
        let role = Role::Admin(Box::new(machine::Controller::new(config, now)));
        self.open(state, &self.lanes[0], role, now, ended);
        self.lanes[0].configure(
            machine::ADMIN_ENTRIES as usize - 1,
            nvmf_core::target::ADMIN_INLINE_DATA,
        );
    }

    fn open(&self, state: &mut State, lane: &Lane, role: Role, now: Instant, ended: &mut Ended) {
        let address = self.addresses[state.address];
        if let Err(failure) = lane.open(address, &self.options, role, state.attempt) {
            self.lost(state, failure, now, ended);
        }
    }

    fn controller_ready(
        &self,
        state: &mut State,
        found: Capabilities,
        now: Instant,
        ended: &mut Ended,
    ) {
        state.found = Some(found);
        self.adapt(&found);
        if self.subnqn.is_discovery() {
            return self.queues_ready(state, now, ended);
        }
        if found.io_queues == 0 {
            let failure = Failure::Controller(host::Error::Unusable("it grants no I/O queue"));
            return self.lost(state, failure, now, ended);
        }
        let attempt = state.attempt;
        for (qid, lane) in (1..=found.io_queues).zip(&self.lanes[1..]) {
            let connect = Connect {
                qid: Qid(qid),
                entries: self.entries(&found),
                kato_ms: 0,
                sq_flow_control: self.options.sq_flow_control,
            };
            let data = Connect::data(&self.options.identity, &self.subnqn, found.cntlid);
            let role = Role::Io(connect, Box::new(data));
            self.open(state, lane, role, now, ended);
            if state.phase != Phase::Connecting || state.attempt != attempt {
                return;
            }
        }
    }

    fn entries(&self, found: &Capabilities) -> u32 {
        self.options
            .queue_depth
            .clamp(1, 0xFFFF)
            .saturating_add(1)
            .min(found.queue_entries)
            .min(MAX_COMMANDS as u32)
    }

    fn queue_ready(&self, state: &mut State, index: usize, now: Instant, ended: &mut Ended) {
        let Some(found) = state.found else { return };
        self.lanes[index].configure(self.entries(&found) as usize - 1, found.inline_data);
        state.ready += 1;
        if state.ready == found.io_queues {
            self.queues_ready(state, now, ended);
        }
    }

    fn queues_ready(&self, state: &mut State, now: Instant, ended: &mut Ended) {
        let known = self.known();
        if known.is_empty() {
            return self.live(state, now, ended);
        }
        // Before any command reaches them.
        state.phase = Phase::Checking;
        let check = check(Arc::clone(&self.lanes[0]), known);
        state.tasks.push(Task::new(check, true));
        ended.append(self.lanes[0].go_live());
    }

    fn live(&self, state: &mut State, now: Instant, ended: &mut Ended) {
        let Some(found) = state.found else { return };
        state.phase = Phase::Live;
        let fence = Fence::of(&found);
        let again = state.recovery.is_some();
        match &mut state.recovery {
            Some(recovery) => recovery.connected(fence),
            none => *none = Some(Recovery::new(self.options.recovery, fence)),
        }
        let used = usize::from(found.io_queues) + 1;
        for lane in self.lanes.iter().take(used) {
            ended.append(lane.go_live());
        }
        for lane in self.lanes.iter().skip(used) {
            lane.hand_over(&self.lanes[1]);
        }
        self.decide(state, ended);
        if again {
            // Whoever hears of it can rely on it.
            self.emit(&Event::Reconnected);
        }
        self.act(state, now, ended);
    }

    /// What becomes of commands, as things stand.
    fn decide(&self, state: &State, ended: &mut Ended) {
        let verdicts = match (&state.recovery, state.phase) {
            (_, Phase::Closing | Phase::Gone) => Verdicts::all(Verdict::Fail(Cause::Gone)),
            (None, _) => Verdicts::ALL_WAIT,
            (Some(recovery), _) => Verdicts {
                reads: recovery.again(Effect::Reads),
                changes: recovery.fresh(Effect::Changes),
                changes_again: recovery.again(Effect::Changes),
            },
        };
        for lane in &self.lanes {
            ended.append(lane.decide(verdicts, state.failure));
        }
    }

    /// A connection is lost, and with it all of them.
    fn lost(&self, state: &mut State, failure: Failure, now: Instant, ended: &mut Ended) {
        let was = state.phase;
        if !matches!(was, Phase::Connecting | Phase::Checking | Phase::Live) {
            return;
        }
        state.phase = Phase::Lost;
        state.failure = failure;
        state.tasks.clear();
        let mut changes = false;
        for lane in &self.lanes {
            // On the connections of an attempt nobody's commands were sent.
            let (some, calls) = lane.disconnect(failure, was == Phase::Live);
            changes |= some;
            ended.append(calls);
        }
        let Some(recovery) = &mut state.recovery else {
            let another = state.address + 1;
            if failure.is_of_the_address() && another < self.addresses.len() {
                state.address = another;
                return self.connect(state, ended);
            }
            return self.gone(state, ended);
        };
        let address = self.addresses[state.address];
        if was == Phase::Live {
            self.emit(&Event::Lost(Arc::new(failure.error(address))));
            let association = recovery.association();
            state.lost = Some(association);
            recovery.lost(association, changes, now);
        } else {
            self.emit(&Event::NotReconnected(Arc::new(failure.error(address))));
            let failure = match &failure {
                Failure::Controller(error) => recovery::Failure::from(error),
                _ => recovery::Failure::Transient,
            };
            recovery.failed(failure, now);
        }
        if let recovery::State::Waiting(at) = recovery.state() {
            self.emit(&Event::Reconnecting {
                attempt: recovery.attempts() + 1,
                delay: at.since(now),
            });
        }
        self.decide(state, ended);
        self.act(state, now, ended);
        // Time goes on there.
        self.lanes[0].call_driver();
    }

    /// Does what the policy says.
    fn act(&self, state: &mut State, now: Instant, ended: &mut Ended) {
        while let Some(recovery) = &mut state.recovery
            && let Some(action) = recovery.poll_action(now)
        {
            match action {
                // That was done when they were lost.
                Action::Shut(_) => self.look_for_ended(state, now),
                Action::Abort(_) => self.lanes.iter().for_each(|lane| lane.abort()),
                Action::Connect { .. } => self.connect(state, ended),
                Action::Release => self.decide(state, ended),
            }
        }
        let gone = state
            .recovery
            .as_ref()
            .is_some_and(|recovery| matches!(recovery.state(), recovery::State::Gone(_)));
        if gone && state.phase == Phase::Lost {
            self.gone(state, ended);
        }
    }

    /// Whether all connections of the association that was lost last have ended.
    fn look_for_ended(&self, state: &mut State, now: Instant) {
        if let Some(recovery) = &mut state.recovery
            && let Some(lost) = state.lost
            && !self.lanes.iter().any(|lane| lane.lingers())
        {
            recovery.ended(lost, now);
            self.lanes[0].call_driver();
        }
    }

    fn gone(&self, state: &mut State, ended: &mut Ended) {
        self.emit(&Event::Gone);
        self.dismantle(state, ended);
    }

    /// There will be no connection any more.
    fn dismantle(&self, state: &mut State, ended: &mut Ended) {
        state.phase = Phase::Gone;
        state.tasks.clear();
        for lane in &self.lanes {
            let (_, calls) = lane.disconnect(state.failure, false);
            ended.append(calls);
            lane.abort();
            lane.leave();
        }
        // What was under way is in line again.
        self.decide(state, ended);
    }
}

/// Looks at each namespace that somebody has a handle on.
async fn check(admin: Arc<Lane>, known: Vec<Arc<Known>>) -> Vec<Event> {
    let mut events = Vec::new();
    for namespace in known {
        if namespace.look_again(&admin).await {
            events.push(Event::NamespaceChanged(namespace.nsid));
        }
    }
    events
}

/// Reads the log that explains an event, so that the controller may report the next of its
/// kind, and looks at the namespaces that it names.
async fn attend(admin: Arc<Lane>, event: AsyncEvent, known: Vec<Arc<Known>>) -> Vec<Event> {
    const LEN: usize = 4096;
    let lid = event.lid.code();
    if lid == 0 {
        return Vec::new();
    }
    let nsid = match event.lid {
        LogId::Discovery => Nsid(0),
        _ => Nsid::ALL,
    };
    let read = command::get_log_page(lid, nsid, 0, LEN as u32);
    let payload = Payload::Read(Buffer::zeroed(LEN));
    let read = urgent(&admin, &command::releasing_events(read), payload, structure);
    let log: Box<ChangedNamespaces> = match read.await {
        Ok(log) if event.lid == LogId::ChangedNamespaces => log,
        Ok(_) => return Vec::new(),
        Err(error) => {
            tracing::debug!(%error, %event, "cannot read the log");
            return Vec::new();
        }
    };
    let all = log.overflowed();
    let mut changed: Vec<Nsid> = log.iter().collect();
    for namespace in known {
        if all || changed.contains(&namespace.nsid) {
            namespace.look_again(&admin).await;
            if all {
                changed.push(namespace.nsid);
            }
        }
    }
    changed.into_iter().map(Event::NamespaceChanged).collect()
}

/// Makes the driver visit a lane.
struct Visitor(Weak<Lane>);

impl Wake for Visitor {
    fn wake(self: Arc<Self>) {
        if let Some(lane) = self.0.upgrade() {
            lane.call_driver();
        }
    }
}
