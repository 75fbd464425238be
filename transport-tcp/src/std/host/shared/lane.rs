//! A queue that many threads use: who comes first, and who sends.
//!
//! A caller puts its call in line, and tries to take the queue. If it can, it sends
//! what is in line itself, in its own context; if another thread has the queue, the
//! queue's driver is called. So nobody waits for a lock while another one talks to the
//! kernel, and calls are sent in the order in which they came.
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use nvmf_core::host::controller::Event as MachineEvent;
use nvmf_core::host::recovery::{Cause, Effect, Verdict};
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::ids::{Cid, Qid};

use super::super::error::Error;
use super::super::options::Options;
use super::super::queue::{Failure, Queue};
use super::super::work::Done;
use super::super::work::Work;
use super::association::Inner;
use super::connection::{Active, BATCH, Connection, Role};
use super::driver::Driver;
use super::request::Call;

/// A queue that many threads use.
pub(super) struct Lane {
    line: Mutex<Line>,
    connection: Mutex<Connection>,
    /// Calls in line and under way.
    load: AtomicUsize,
    /// Commands that may be under way at a time; 0 while there is no connection.
    depth: AtomicUsize,
    /// The socket is full.
    blocked: AtomicBool,
    /// The driver was called, and has not come yet.
    called: AtomicBool,
    /// Which of the association's queues it is: its QID.
    pub(super) index: usize,
    driver: Arc<Driver>,
    key: u64,
    association: OnceLock<Weak<Inner>>,
}

/// Calls that were not begun, in order.
struct Line {
    waiting: VecDeque<Entry>,
    verdicts: Verdicts,
    /// Why calls fail, where a verdict says that they do.
    failure: Failure,
    address: SocketAddr,
}

struct Entry {
    call: Arc<Call>,
    work: Work,
}

/// What becomes of calls in line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdicts {
    pub(super) reads: Verdict,
    pub(super) changes: Verdict,
    /// Of those that were sent before.
    pub(super) changes_again: Verdict,
}

/// What the association should know.
#[derive(Debug)]
pub(super) enum Event {
    /// The controller's machine says so.
    Machine(MachineEvent),
    /// An I/O queue is ready.
    Ready,
    /// The connection is lost.
    Failed(Failure),
    /// These commands were not answered in time.
    Late(Vec<Cid>),
    /// They ended after all.
    Over(Vec<Cid>),
    /// A lost connection has ended.
    Ended,
}

/// What came of a driver's visit.
pub(super) struct Visit {
    /// There is more to do at once.
    pub(super) more: bool,
    /// When to come again at the latest.
    pub(super) deadline: Option<Instant>,
}

/// Calls that ended, to be told when no lock is held.
#[derive(Default)]
#[must_use]
pub(super) struct Ended(Vec<(Arc<Call>, Result<Done, Error>)>);

impl Ended {
    pub(super) fn push(&mut self, call: Arc<Call>, outcome: Result<Done, Error>) {
        self.0.push((call, outcome));
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// Wakes who waits.
    pub(super) fn tell(self) {
        for (call, outcome) in self.0 {
            call.finish(outcome);
        }
    }
}

impl Verdicts {
    pub(super) const ALL_WAIT: Self = Self::all(Verdict::Hold);

    pub(super) const fn all(verdict: Verdict) -> Self {
        Self {
            reads: verdict,
            changes: verdict,
            changes_again: verdict,
        }
    }

    fn of(&self, work: &Work) -> Verdict {
        match (work.urgent, work.effect, work.again) {
            (true, ..) => match self.reads {
                Verdict::Fail(Cause::Gone) => self.reads,
                _ => Verdict::Send,
            },
            (_, Effect::Reads, _) => self.reads,
            (_, Effect::Changes, false) => self.changes,
            (_, Effect::Changes, true) => self.changes_again,
        }
    }
}

impl Line {
    fn error(&self, cause: Cause) -> Error {
        match cause {
            Cause::FailFast => Error::FailFast,
            Cause::Gone => self.failure.error(self.address),
            Cause::FateUnknown => Error::FateUnknown,
        }
    }

    /// The first call that may be sent.
    fn pop(&mut self) -> Option<Entry> {
        let verdicts = self.verdicts;
        let may_go = |entry: &Entry| verdicts.of(&entry.work) == Verdict::Send;
        if self.waiting.front().is_some_and(may_go) {
            return self.waiting.pop_front();
        }
        let index = self.waiting.iter().position(may_go)?;
        self.waiting.remove(index)
    }

    /// Takes out those calls that `condition` is true of.
    fn extract(&mut self, mut condition: impl FnMut(&Work) -> bool) -> Vec<Entry> {
        let (taken, kept) = self
            .waiting
            .drain(..)
            .partition::<Vec<_>, _>(|entry| condition(&entry.work));
        self.waiting = kept.into();
        taken
    }
}

impl Lane {
    pub(super) fn new(index: usize, driver: Arc<Driver>, options: &Options) -> Arc<Self> {
        let lane = Arc::new(Self {
            line: Mutex::new(Line {
                waiting: VecDeque::new(),
                verdicts: Verdicts::ALL_WAIT,
                failure: Failure::Closed,
                address: ([0, 0, 0, 0], 0).into(),
            }),
            connection: Mutex::new(Connection::new(options.command_timeout)),
            load: AtomicUsize::new(0),
            depth: AtomicUsize::new(0),
            blocked: AtomicBool::new(false),
            called: AtomicBool::new(false),
            index,
            key: driver.new_key(),
            driver,
            association: OnceLock::new(),
        });
        lane.driver.adopt(lane.key, Arc::clone(&lane));
        lane
    }

    /// Whose lane it is. Once.
    pub(super) fn belongs_to(&self, association: Weak<Inner>) {
        let _ = self.association.set(association);
    }

    /// Calls in line and under way.
    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// A place for a call that is to be sent at once, or not at all.
    pub(super) fn claim(&self) -> bool {
        let depth = self.depth.load(Ordering::Relaxed);
        let one_more = |load| (load < depth).then_some(load + 1);
        let order = Ordering::Relaxed;
        !self.blocked.load(order) && self.load.fetch_update(order, order, one_more).is_ok()
    }

    /// Begins a call, or puts it in line. `claimed` says that [`Lane::claim`] succeeded.
    pub(super) fn submit(&self, call: &Arc<Call>, work: Work, claimed: bool) {
        if !claimed {
            self.load.fetch_add(1, Ordering::Relaxed);
        }
        {
            let mut line = lock(&self.line);
            if let Verdict::Fail(cause) = line.verdicts.of(&work) {
                let error = line.error(cause);
                drop(line);
                self.load.fetch_sub(1, Ordering::Relaxed);
                return call.finish(Err(error));
            }
            let call = Arc::clone(call);
            line.waiting.push_back(Entry { call, work });
        }
        let mut connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(connection)) => connection.into_inner(),
            Err(TryLockError::WouldBlock) => return self.call_driver(),
        };
        let was_watched = connection.is_watched();
        let mut ended = Ended::default();
        self.pump(&mut connection, &mut ended);
        if connection.has_news() || connection.is_watched() != was_watched {
            self.call_driver();
        }
        drop(connection);
        ended.tell();
    }

    /// Whoever made the call wants it no more.
    pub(super) fn withdraw(&self, call: &Arc<Call>) {
        let mut line = lock(&self.line);
        let is_it = |entry: &Entry| Arc::ptr_eq(&entry.call, call);
        if let Some(index) = line.waiting.iter().position(is_it) {
            let entry = line.waiting.remove(index);
            drop(line);
            self.load.fetch_sub(1, Ordering::Relaxed);
            drop(entry);
        }
    }

    /// Sees to it that the driver comes.
    pub(super) fn call_driver(&self) {
        if !self.called.swap(true, Ordering::AcqRel) {
            self.driver.call(self.key);
        }
    }

    /// The time as machines see it.
    pub(super) fn now(&self) -> Instant {
        self.driver.now()
    }

    /// Begins to connect. What is in line waits for that.
    pub(super) fn open(
        &self,
        address: SocketAddr,
        options: &Options,
        role: Role,
        attempt: u64,
    ) -> Result<(), Failure> {
        let queue = Queue::start(address, options, role.purpose())?;
        let watched = self.driver.watch(&queue, self.key);
        watched.map_err(Failure::Connect)?;
        lock(&self.line).address = address;
        let ready_by = self.now().after(options.connect_timeout);
        lock(&self.connection).open(queue, role, ready_by, attempt);
        self.call_driver();
        Ok(())
    }

    /// The size of the queue, and how much data a capsule may have.
    pub(super) fn configure(&self, depth: usize, inline_data: u32) {
        lock(&self.connection).configure(depth, inline_data);
    }

    /// From now on calls are sent, if the verdicts allow it.
    pub(super) fn go_live(&self) -> Ended {
        let mut ended = Ended::default();
        let mut connection = lock(&self.connection);
        let depth = connection.go_live();
        self.depth.store(depth, Ordering::Relaxed);
        self.pump(&mut connection, &mut ended);
        drop(connection);
        self.call_driver();
        ended
    }

    /// What becomes of calls in line from now on. `failure` is why, if they fail.
    pub(super) fn decide(&self, verdicts: Verdicts, failure: Failure) -> Ended {
        let mut ended = Ended::default();
        let mut line = lock(&self.line);
        line.verdicts = verdicts;
        line.failure = failure;
        let fails = |work: &Work| matches!(verdicts.of(work), Verdict::Fail(_));
        for Entry { call, work } in line.extract(fails) {
            if let Verdict::Fail(cause) = verdicts.of(&work) {
                ended.push(call, Err(line.error(cause)));
            }
        }
        drop(line);
        self.load.fetch_sub(ended.len(), Ordering::Relaxed);
        self.call_driver();
        ended
    }

    /// The connection is of no use any more. What was under way is in line again. Whether
    /// something that changes something was under way.
    pub(super) fn disconnect(&self, failure: Failure, linger: bool) -> (bool, Ended) {
        self.depth.store(0, Ordering::Relaxed);
        let mut ended = Ended::default();
        let mut connection = lock(&self.connection);
        let (active, changes) = connection.disconnect(linger);
        let mut line = lock(&self.line);
        let mut dropped = 0;
        for active in active.into_iter().rev() {
            if active.is_abandoned() {
                dropped += 1;
                continue;
            }
            match active.into_work() {
                Ok((call, work)) if work.repeats <= MAX_REPEATS => {
                    line.waiting.push_front(Entry { call, work });
                }
                Ok((call, _)) => ended.push(call, Err(failure.error(line.address))),
                Err((call, error)) => ended.push(call, Err(error)),
            }
        }
        drop(line);
        drop(connection);
        self.load
            .fetch_sub(ended.len() + dropped, Ordering::Relaxed);
        (changes, ended)
    }

    /// Whether a lost connection is still read.
    pub(super) fn lingers(&self) -> bool {
        lock(&self.connection).lingers()
    }

    /// From now on nothing of what a lost connection had to say is sent.
    pub(super) fn abort(&self) {
        lock(&self.connection).abort();
    }

    /// Gives what is in line to another lane.
    pub(super) fn hand_over(&self, to: &Self) {
        let entries = lock(&self.line).extract(|_| true);
        self.load.fetch_sub(entries.len(), Ordering::Relaxed);
        to.load.fetch_add(entries.len(), Ordering::Relaxed);
        lock(&to.line).waiting.extend(entries);
    }

    /// The driver is to forget the lane.
    pub(super) fn leave(&self) {
        self.driver.forget(self.key);
    }

    /// Of the Admin Queue: commands of the queue `qid` are to be aborted.
    pub(super) fn abort_late(&self, qid: Qid, cids: &[Cid]) -> Result<(), Failure> {
        let aborting = lock(&self.connection).abort_late(qid, cids, self.now());
        self.call_driver();
        aborting.map_err(Failure::Controller)
    }

    /// Of the Admin Queue: these commands ended after all.
    pub(super) fn late_ended(&self, qid: Qid, cids: &[Cid]) {
        lock(&self.connection).late_ended(qid, cids);
    }

    /// Shuts the controller down; false if there is none to be shut down.
    pub(super) fn shut_down(&self) -> bool {
        let begun = lock(&self.connection).shut_down(self.now());
        if begun {
            self.call_driver();
        }
        begun
    }

    /// By the driver: does what is to be done, and no more than a bounded part of it.
    pub(super) fn visit(&self, scratch: &mut [u8], writable: bool, now: Instant) -> Visit {
        self.called.store(false, Ordering::Release);
        let mut ended = Ended::default();
        let mut events = Vec::new();
        let mut connection = lock(&self.connection);
        let served = connection.serve(scratch, writable, now, &mut ended, &mut events);
        self.load.fetch_sub(ended.len(), Ordering::Relaxed);
        if served {
            self.pump(&mut connection, &mut ended);
        }
        connection.news(&mut events);
        let attempt = connection.attempt();
        let mut visit = Visit {
            more: connection.has_more(),
            deadline: connection.deadline(),
        };
        drop(connection);
        ended.tell();
        let association = self.association.get().and_then(Weak::upgrade);
        if let Some(association) = association {
            for event in events {
                association.happened(self.index, attempt, event);
            }
            if self.index == 0 {
                visit.deadline = sooner(visit.deadline, association.tick());
            }
        }
        visit
    }

    /// Sends what is in line, as far as there is room.
    fn pump(&self, connection: &mut Connection, ended: &mut Ended) {
        let before = ended.len();
        let now = self.driver.now();
        let mut begin = true;
        loop {
            let room = connection.room().min(BATCH);
            let mut sent = 0;
            while sent < room {
                // New calls, and those of many commands, take turns.
                let next = match begin {
                    true => self
                        .begin(connection, now, ended)
                        .or_else(|| connection.next()),
                    false => connection
                        .next()
                        .or_else(|| self.begin(connection, now, ended)),
                };
                let Some(index) = next else { break };
                begin = !begin;
                sent += usize::from(connection.send(index, now));
            }
            connection.flush();
            if sent == 0 {
                break;
            }
        }
        self.blocked
            .store(connection.is_blocked(), Ordering::Relaxed);
        connection.completed(now, ended);
        let over = ended.len() - before + connection.take_dropped();
        self.load.fetch_sub(over, Ordering::Relaxed);
    }

    /// Begins the first call that may be sent.
    fn begin(&self, connection: &mut Connection, now: Instant, ended: &mut Ended) -> Option<u32> {
        loop {
            let Entry { call, work } = lock(&self.line).pop()?;
            match work.refusal() {
                None => return Some(connection.begin(Active::new(call, work), now)),
                Some(error) => ended.push(call, Err(error)),
            }
        }
    }
}

/// How often a call is sent again because its connection was lost, as often as Linux does.
const MAX_REPEATS: u32 = 5;

/// A panic elsewhere does not make the value worse than it is.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
