//! A shared queue's connection: what is under way on it, and what it is to become.
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nvmf_core::host::Data;
use nvmf_core::host::controller::{self as machine, Token};
use nvmf_core::host::queue::Connect;
use nvmf_core::host::recovery::Effect;
use nvmf_core::host::{self, Step};
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::connect::ConnectData;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cid, Qid};
use nvmf_core::wire::status::Status;
use zerocopy::IntoBytes;

use super::super::super::buffer::Buffer;
use super::super::commands::{Buffers, Job, Part, Payload};
use super::super::controller::{tag, token};
use super::super::error::Error;
use super::super::queue::{Completion, Failure, Purpose, Queue};
use super::super::work::Done;
use super::super::work::Work;
use super::lane::{Ended, Event};
use super::request::Call;

/// Commands that are sent before the socket is tried.
pub(super) const BATCH: usize = 32;

/// How long a controller may take to be shut down.
const SHUT_DOWN_PATIENCE: Duration = Duration::from_secs(1);

/// How often a command is sent again because the controller says that it may be.
const MAX_REPEATS: u32 = 5;

/// The first and the longest pause before a command is sent to a namespace that the
/// controller does not reach for the moment.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The connection, and what is under way on it.
pub(super) struct Connection {
    queue: Option<Queue>,
    role: Role,
    /// In which of the association's attempts it was made.
    attempt: u64,
    /// By when the connection must be a queue, or the controller be shut down.
    ready_by: Option<Instant>,
    /// Callers' commands are sent.
    live: bool,
    active: Vec<Option<Active>>,
    free: Vec<u32>,
    /// Calls with commands still to be sent.
    unfinished: VecDeque<u32>,
    /// Calls whose commands are to be sent later: those with [`Active::pause`].
    paused: Vec<u32>,
    /// When to look whether a command is late.
    look_at: Option<Instant>,
    command_timeout: Duration,
    completions: Vec<Completion>,
    /// Why it is of no use any more, and whether that was said.
    failure: Option<(Failure, bool)>,
    /// Late commands that ended after all.
    over: Vec<Cid>,
    /// Calls that nobody waited for, and that ended between two commands.
    dropped: usize,
    /// What became of a lost connection: it is read until the controller ends it.
    lingering: Option<Queue>,
}

/// A call under way.
pub(super) struct Active {
    call: Arc<Call>,
    work: Work,
    job: Option<Job>,
    /// Commands under way.
    pending: u32,
    /// By when something of it must be answered.
    deadline: Instant,
    /// It was not: its commands are to be aborted.
    late: bool,
    pause: Option<Pause>,
    /// The first error.
    failed: Option<Error>,
    last: Cqe,
}

/// The controller does not reach the namespace: when to ask again, and when no more.
struct Pause {
    len: Duration,
    until: Instant,
    give_up_at: Instant,
}

/// What the connection is to become, and how.
pub(super) enum Role {
    /// Nothing yet.
    Unused,
    Admin(Box<machine::Controller>),
    Io(Connect, Box<ConnectData>),
}

impl Role {
    /// Which queue it is for.
    pub(super) fn purpose(&self) -> Purpose {
        match self {
            Self::Unused | Self::Admin(_) => Purpose::ADMIN,
            Self::Io(connect, data) => Purpose {
                qid: connect.qid,
                cntlid: data.cntlid(),
                entries: connect.entries,
            },
        }
    }
}

impl Active {
    pub(super) fn new(call: Arc<Call>, work: Work) -> Self {
        Self {
            call,
            work,
            job: None,
            pending: 0,
            deadline: Instant::ZERO,
            late: false,
            pause: None,
            failed: None,
            last: Cqe::new(Cid(0), Status::SUCCESS),
        }
    }

    /// Whether a command of it that was answered so is sent again. Then, and with a pause if
    /// the namespace is not reached: of that a controller is asked for `patience`.
    fn repeats(&mut self, status: Status, now: Instant, patience: Duration) -> bool {
        match Repeat::of(status) {
            _ if self.late => false,
            Repeat::Later if self.work.urgent => false,
            Repeat::Never => false,
            Repeat::AtOnce => {
                self.work.repeats += 1;
                self.work.repeats <= MAX_REPEATS
            }
            Repeat::Later => {
                let pause = self.pause.get_or_insert(Pause {
                    len: PAUSE.0,
                    until: now,
                    give_up_at: now.after(patience),
                });
                if pause.until <= now {
                    pause.until = now.after(pause.len);
                    pause.len = pause.len.saturating_mul(2).min(PAUSE.1);
                }
                now < pause.give_up_at
            }
        }
    }

    /// Nobody waits for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.call) == 1
    }

    /// What is to be sent again, or why it is not.
    pub(super) fn into_work(self) -> Result<(Arc<Call>, Work), (Arc<Call>, Error)> {
        match self.failed {
            Some(error) => Err((self.call, error)),
            None => Ok((self.call, self.work)),
        }
    }
}

impl Connection {
    pub(super) fn new(command_timeout: Duration) -> Self {
        Self {
            queue: None,
            role: Role::Unused,
            attempt: 0,
            ready_by: None,
            live: false,
            active: Vec::new(),
            free: Vec::new(),
            unfinished: VecDeque::new(),
            paused: Vec::new(),
            look_at: None,
            command_timeout,
            completions: Vec::new(),
            failure: None,
            over: Vec::new(),
            dropped: 0,
            lingering: None,
        }
    }

    pub(super) fn open(&mut self, queue: Queue, role: Role, ready_by: Instant, attempt: u64) {
        self.attempt = attempt;
        self.queue = Some(queue);
        self.role = role;
        self.ready_by = Some(ready_by);
        self.failure = None;
    }

    pub(super) fn configure(&mut self, depth: usize, inline_data: u32) {
        if let Some(queue) = &mut self.queue {
            queue.configure(depth, inline_data);
        }
    }

    /// From now on callers' commands may be sent; how many at a time.
    pub(super) fn go_live(&mut self) -> usize {
        self.live = self.queue.is_some();
        self.ready_by = None;
        let depth = self.queue.as_ref().map_or(0, Queue::depth);
        depth.saturating_sub(self.reserved())
    }

    pub(super) fn attempt(&self) -> u64 {
        self.attempt
    }

    fn reserved(&self) -> usize {
        match self.role {
            Role::Admin(_) => machine::OWN_COMMANDS as usize,
            _ => 0,
        }
    }

    /// Commands of callers that may be sent now.
    pub(super) fn room(&self) -> usize {
        match &self.queue {
            Some(queue) if self.live && queue.is_writable() && self.failure.is_none() => {
                queue.room().saturating_sub(self.reserved())
            }
            _ => 0,
        }
    }

    /// The socket takes no more.
    pub(super) fn is_blocked(&self) -> bool {
        self.live && self.queue.as_ref().is_some_and(|q| !q.is_writable())
    }

    /// The driver will look whether commands are late.
    pub(super) fn is_watched(&self) -> bool {
        self.look_at.is_some()
    }

    /// There is something that the driver has not seen.
    pub(super) fn has_news(&self) -> bool {
        !self.over.is_empty() || !self.paused.is_empty() || self.has_failed()
    }

    fn has_failed(&self) -> bool {
        self.queue.as_ref().is_some_and(|q| q.failure().is_some())
    }

    /// There is more to receive.
    pub(super) fn has_more(&self) -> bool {
        let readable = |queue: &Option<Queue>| queue.as_ref().is_some_and(Queue::is_readable);
        self.failure.is_none() && readable(&self.queue) || readable(&self.lingering)
    }

    /// When something is to be done at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.failure.is_some() {
            return None;
        }
        let machine = match &self.role {
            Role::Admin(machine) if self.queue.as_ref().is_some_and(Queue::is_live) => {
                machine.poll_timeout()
            }
            _ => None,
        };
        let resume = self.pauses().map(|(_, until)| until).min();
        sooner(sooner(machine, resume), sooner(self.ready_by, self.look_at))
    }

    /// Calls that pause, and until when.
    fn pauses(&self) -> impl Iterator<Item = (u32, Instant)> {
        self.paused.iter().map(|index| {
            let active = self.active.get(*index as usize).and_then(Option::as_ref);
            let pause = active.and_then(|active| active.pause.as_ref());
            (*index, pause.map_or(Instant::ZERO, |pause| pause.until))
        })
    }

    /// Calls that have paused long enough go on, unless their namespace is another by now.
    fn resume(&mut self, now: Instant, ended: &mut Ended) {
        let due = |(index, until)| (until <= now).then_some(index);
        let due: Vec<u32> = self.pauses().filter_map(due).collect();
        self.paused.retain(|index| !due.contains(index));
        for index in due {
            let Some(Some(active)) = self.active.get_mut(index as usize) else {
                continue;
            };
            match active.work.refusal() {
                None => self.unfinished.push_back(index),
                Some(error) => {
                    active.failed.get_or_insert(error);
                    active.work.stop();
                    self.end_if_done(index, ended);
                }
            }
        }
    }

    /// What the association does not know yet.
    pub(super) fn news(&mut self, events: &mut Vec<Event>) {
        if !self.over.is_empty() {
            events.push(Event::Over(std::mem::take(&mut self.over)));
        }
        if let Some((failure, told)) = &mut self.failure
            && !std::mem::replace(told, true)
        {
            events.push(Event::Failed(*failure));
        }
    }

    /// Receives, and sends what is its own. Whether callers' commands may be sent then.
    pub(super) fn serve(
        &mut self,
        scratch: &mut [u8],
        writable: bool,
        now: Instant,
        ended: &mut Ended,
        events: &mut Vec<Event>,
    ) -> bool {
        if let Some(lingering) = &mut self.lingering
            && lingering.has_ended(scratch)
        {
            self.lingering = None;
            events.push(Event::Ended);
        }
        if self.failure.is_some() {
            return false;
        }
        if let Err(failure) = self.try_serve(scratch, writable, now, ended, events) {
            self.failure = Some((failure, false));
            return false;
        }
        true
    }

    fn try_serve(
        &mut self,
        scratch: &mut [u8],
        writable: bool,
        now: Instant,
        ended: &mut Ended,
        events: &mut Vec<Event>,
    ) -> Result<(), Failure> {
        let Some(queue) = &mut self.queue else {
            return Ok(());
        };
        if writable {
            queue.set_writable();
        }
        let was_live = queue.is_live();
        let outcome = queue.service(scratch, &mut self.completions);
        if queue.is_live() && !was_live && outcome.is_ok() {
            self.connect(now);
        }
        for (token, done) in self.completed(now, ended) {
            let event = self.answered(token, &done, now);
            events.extend(event.map_err(Failure::Controller)?);
        }
        outcome?;
        self.own_commands(now)?;
        self.resume(now, ended);
        events.extend(self.late(now));
        Ok(())
    }

    /// The connection is there.
    fn connect(&mut self, now: Instant) {
        self.ready_by = None;
        if let (Role::Io(connect, data), Some(queue)) = (&self.role, &mut self.queue) {
            let payload = Payload::Write(Buffer::from(data.as_bytes()));
            // It is the first.
            let _ = queue.submit(&connect.request().sqe, payload, tag(Token::Step));
            self.ready_by = Some(now.after(self.command_timeout));
        }
    }

    /// A command of ours was answered.
    fn answered(
        &mut self,
        token: Token,
        done: &Completion,
        now: Instant,
    ) -> Result<Option<Event>, host::Error> {
        match &mut self.role {
            Role::Unused => Ok(None),
            Role::Admin(machine) => {
                let event = machine.completed(token, &done.cqe, done.data(), now)?;
                Ok(event.map(Event::Machine))
            }
            Role::Io(connect, _) => {
                connect.completed(&done.cqe)?;
                self.ready_by = None;
                Ok(Some(Event::Ready))
            }
        }
    }

    fn own_commands(&mut self, now: Instant) -> Result<(), Failure> {
        let Some(queue) = &mut self.queue else {
            return Ok(());
        };
        let late = self.ready_by.is_some_and(|by| by <= now);
        if late && queue.is_live() {
            return Err(Failure::Controller(host::Error::Timeout(Step::Connect)));
        }
        if let Role::Admin(machine) = &mut self.role
            && queue.is_live()
        {
            machine.handle_timeout(now).map_err(Failure::Controller)?;
            while let Some((token, request)) = machine.poll_command(now) {
                let payload = match request.data {
                    Data::Nothing => Payload::Nothing,
                    Data::ToHost(len) => Payload::Read(Buffer::zeroed(len as usize)),
                    Data::FromHost(_) => {
                        Payload::Write(Buffer::from(machine.connect_data().as_bytes()))
                    }
                };
                // There is room: callers do not get all of the queue.
                let _ = queue.submit(&request.sqe, payload, tag(token));
            }
        }
        Ok(())
    }

    /// Begins a call.
    pub(super) fn begin(&mut self, mut active: Active, now: Instant) -> u32 {
        let buffers = std::mem::replace(&mut active.work.buffers, Buffers::none());
        active.job = self.queue.as_mut().map(|queue| queue.hold(buffers));
        active.deadline = now.after(self.command_timeout);
        match self.free.pop() {
            Some(index) => {
                self.active[index as usize] = Some(active);
                index
            }
            None => {
                self.active.push(Some(active));
                // A queue has no more than 4096 commands under way.
                self.active.len() as u32 - 1
            }
        }
    }

    /// The next call that has commands still to be sent.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.unfinished.pop_front()
    }

    /// Sends a command of the call, with the next [`Connection::flush`].
    pub(super) fn send(&mut self, index: u32, now: Instant) -> bool {
        let (Some(slot), Some(queue)) = (self.active.get_mut(index as usize), &mut self.queue)
        else {
            return false;
        };
        let Some(active) = slot else { return false };
        if active.is_abandoned() {
            active.work.stop();
            if active.pending == 0 {
                active.job.map(|job| queue.release(job));
                *slot = None;
                self.free.push(index);
                self.dropped += 1;
            }
            return false;
        }
        if active.pause.as_ref().is_some_and(|pause| pause.until > now) {
            self.paused.push(index);
            return false;
        }
        let (Some((number, sqe, range)), Some(job)) = (active.work.take(), active.job) else {
            return false;
        };
        let part = Part {
            job,
            at: range.start,
            data: active.work.direction.of(range.len()),
        };
        let tag = u64::from(index) << 32 | u64::from(number);
        let sent = queue.enqueue_part(&sqe, part, tag);
        if sent {
            if active.pending == 0 {
                active.deadline = now.after(self.command_timeout);
            }
            active.pending += 1;
            self.look_at.get_or_insert(active.deadline);
        } else {
            active.work.put_back(number);
        }
        if active.work.has_more() {
            self.unfinished.push_back(index);
        }
        sent
    }

    /// How many calls ended that nobody waited for, since the last time.
    pub(super) fn take_dropped(&mut self) -> usize {
        std::mem::take(&mut self.dropped)
    }

    pub(super) fn flush(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.flush();
            queue.take_completed(&mut self.completions);
        }
    }

    /// Sees to completions of callers' commands; those that are our own.
    pub(super) fn completed(
        &mut self,
        now: Instant,
        ended: &mut Ended,
    ) -> Vec<(Token, Completion)> {
        let mut own = Vec::new();
        let mut completions = std::mem::take(&mut self.completions);
        for done in completions.drain(..) {
            match token(done.tag) {
                Some(token) => own.push((token, done)),
                None => self.call_completed(&done, now, ended),
            }
        }
        self.completions = completions;
        own
    }

    fn call_completed(&mut self, done: &Completion, now: Instant, ended: &mut Ended) {
        let (index, number) = ((done.tag >> 32) as u32, done.tag as u32);
        let Some(slot) = self.active.get_mut(index as usize) else {
            return;
        };
        let Some(active) = slot else { return };
        if active.late {
            self.over.push(Cid(done.cqe.cid.get()));
        }
        active.pending -= 1;
        active.deadline = now.after(self.command_timeout);
        active.last = done.cqe;
        active.work.received += done.received;
        let status = done.cqe.status();
        let had_more = active.work.has_more();
        let failed = active.work.checked && !status.is_success();
        if !failed {
            active.pause = None;
        }
        let again = failed && active.repeats(status, now, self.command_timeout);
        let work = &mut active.work;
        if again {
            work.put_back(number);
            if !had_more {
                self.unfinished.push_back(index);
            }
        } else if failed {
            active.failed.get_or_insert(if active.late {
                Error::Timeout {
                    command: work.name,
                    after: self.command_timeout,
                }
            } else {
                Error::Failed {
                    command: work.name,
                    opcode: work.opcode,
                    status,
                }
            });
            work.stop();
            if had_more {
                self.unfinished.retain(|other| *other != index);
                self.paused.retain(|other| *other != index);
            }
        }
        self.end_if_done(index, ended);
    }

    /// Ends a call of which nothing is under way, and nothing is to be sent.
    fn end_if_done(&mut self, index: u32, ended: &mut Ended) {
        let done = |active: &mut Active| active.pending == 0 && !active.work.has_more();
        let slot = self.active.get_mut(index as usize);
        if let Some(active) = slot.and_then(|slot| slot.take_if(done)) {
            self.free.push(index);
            let (call, outcome) = self.outcome(active);
            ended.push(call, outcome);
        }
    }

    fn outcome(&mut self, active: Active) -> (Arc<Call>, Result<Done, Error>) {
        let Active {
            call,
            mut work,
            job,
            failed,
            last,
            ..
        } = active;
        if let (Some(queue), Some(job)) = (&mut self.queue, job) {
            work.buffers = queue.release(job);
        }
        let outcome = match failed {
            Some(error) => Err(error),
            None => Ok(work.done(Some(last))),
        };
        (call, outcome)
    }

    /// Looks for calls that were not answered in time. Their commands are to be aborted.
    fn late(&mut self, now: Instant) -> Option<Event> {
        if self.look_at.is_none_or(|at| at > now) {
            return None;
        }
        self.look_at = None;
        let under_way = self.queue.as_ref().map(Queue::under_way)?;
        let is_sent = |index: usize| {
            let mut sent = under_way.iter().filter(|(cid, _)| cid.is_some());
            sent.any(|(_, tag)| (tag >> 32) as usize == index)
        };
        for (index, active) in self.active.iter_mut().enumerate() {
            let Some(active) = active else { continue };
            if active.pending == 0 || active.late {
                continue;
            }
            if active.deadline <= now && !is_sent(index) {
                // It waits for others in the queue, which may be late: there is nothing to abort.
                active.deadline = now.after(self.command_timeout);
            }
            active.late = active.deadline <= now;
            if !active.late {
                self.look_at = sooner(self.look_at, Some(active.deadline));
            }
        }
        let is_late = |tag: u64| {
            let active = self.active.get((tag >> 32) as usize);
            matches!(active, Some(Some(active)) if active.late)
        };
        let late: Vec<Cid> = under_way
            .iter()
            .filter_map(|(cid, tag)| cid.filter(|_| is_late(*tag)))
            .collect();
        (!late.is_empty()).then_some(Event::Late(late))
    }

    /// Of the Admin Queue: commands of a queue of the controller's are to be aborted.
    pub(super) fn abort_late(
        &mut self,
        qid: Qid,
        cids: &[Cid],
        now: Instant,
    ) -> Result<(), host::Error> {
        match &mut self.role {
            Role::Admin(machine) => cids
                .iter()
                .try_for_each(|cid| machine.timed_out(qid, *cid, now)),
            _ => Ok(()),
        }
    }

    /// Of the Admin Queue: these commands ended after all.
    pub(super) fn late_ended(&mut self, qid: Qid, cids: &[Cid]) {
        if let Role::Admin(machine) = &mut self.role {
            cids.iter().for_each(|cid| machine.ended(qid, *cid));
        }
    }

    /// The connection is of no use any more: the calls that were under way, and whether
    /// something that changes something was. Until the controller ends it, too, it is read.
    pub(super) fn disconnect(&mut self, linger: bool) -> (Vec<Active>, bool) {
        let mut changes = false;
        let mut calls = Vec::new();
        if let Some(mut queue) = self.queue.take() {
            for (_, tag) in queue.under_way() {
                // Of no call, if it is a command of ours.
                let (index, number) = ((tag >> 32) as usize, tag as u32);
                if let Some(Some(active)) = self.active.get_mut(index) {
                    active.work.put_back(number);
                    active.work.again = true;
                }
            }
            for mut active in self.active.drain(..).flatten() {
                if active.pending > 0 {
                    changes |= active.work.effect == Effect::Changes;
                    active.work.repeats += 1;
                }
                if let Some(job) = active.job.take() {
                    active.work.buffers = queue.release(job);
                }
                if active.late {
                    active.failed.get_or_insert(Error::Timeout {
                        command: active.work.name,
                        after: self.command_timeout,
                    });
                }
                calls.push(active);
            }
            if linger && queue.linger() {
                self.lingering = Some(queue);
            }
        }
        self.active.clear();
        self.free.clear();
        self.unfinished.clear();
        self.paused.clear();
        self.completions.clear();
        self.over.clear();
        (self.look_at, self.ready_by) = (None, None);
        self.live = false;
        self.role = Role::Unused;
        (calls, changes)
    }

    pub(super) fn lingers(&self) -> bool {
        self.lingering.is_some()
    }

    pub(super) fn abort(&mut self) {
        if let Some(queue) = self.lingering.take() {
            queue.abort();
        }
    }

    /// Shuts the controller down, if there is one.
    pub(super) fn shut_down(&mut self, now: Instant) -> bool {
        let connected = self.live && self.failure.is_none() && !self.has_failed();
        if let (true, Role::Admin(machine)) = (connected, &mut self.role) {
            machine.shut_down(now);
            self.ready_by = Some(now.after(SHUT_DOWN_PATIENCE));
            return true;
        }
        false
    }
}

/// Whether, and how, a command is sent again that the controller answered so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    Never,
    /// Nothing was done, or the data were damaged on their way.
    AtOnce,
    /// The controller does not reach the namespace for the moment.
    Later,
}

impl Repeat {
    fn of(status: Status) -> Self {
        /// Status code type "path related".
        const PATH: u8 = 3;
        if status.dnr {
            return Self::Never;
        }
        match status.sct {
            // It says itself that waiting does not help.
            PATH if status.is(Status::ANA_PERSISTENT_LOSS) => Self::Never,
            PATH => Self::Later,
            _ if status.is(Status::TRANSIENT_TRANSPORT_ERROR) => Self::AtOnce,
            _ if status.is(Status::COMMAND_INTERRUPTED) => Self::AtOnce,
            _ => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dnr_is_honoured() {
        for (status, repeat) in [
            (Status::TRANSIENT_TRANSPORT_ERROR, Repeat::AtOnce),
            (Status::COMMAND_INTERRUPTED, Repeat::AtOnce),
            (Status::INTERNAL_PATH_ERROR, Repeat::Later),
            (Status::ANA_INACCESSIBLE, Repeat::Later),
            (Status::ANA_PERSISTENT_LOSS, Repeat::Never),
            (Status::SUCCESS, Repeat::Never),
            (Status::LBA_OUT_OF_RANGE, Repeat::Never),
            (Status::INTERNAL_ERROR, Repeat::Never),
        ] {
            assert_eq!(Repeat::of(status), repeat, "{status}");
            let dnr = Status {
                dnr: true,
                ..status
            };
            assert_eq!(Repeat::of(dnr), Repeat::Never, "{dnr}");
        }
    }
}
