//! The threads that look after shared queues: they receive, and they send what callers
//! could not send themselves.
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant as Clock};

use nvmf_core::time::Instant;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::super::super::mailbox::Mailbox;
use super::super::super::timers::{Armed, Timers};
use super::super::error::Error;
use super::lane::Lane;

/// The key of the mailbox.
const MAILBOX: u64 = 0;

/// Memory for what is not received in its place, bytes.
const SCRATCH: usize = 256 * 1024;

/// Events that one look takes.
const EVENTS: usize = 256;

/// How long controllers may take to be shut down when the host is dropped.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// One of a host's threads, as others see it.
pub(super) struct Driver {
    mailbox: Mailbox<Message>,
    epoll: OwnedFd,
    next_key: AtomicU64,
    /// I/O queues that it looks after.
    load: AtomicUsize,
    epoch: Clock,
    /// How often the thread has looked around.
    #[cfg(test)]
    pub(super) turns: AtomicU64,
}

enum Message {
    /// There is a lane of this key.
    Adopt(u64, Arc<Lane>),
    /// There is something to do for it.
    Call(u64),
    /// There is no such lane any more.
    Forget(u64),
    /// Return as soon as there are no lanes.
    Stop,
}

/// A lane, as its driver has it.
struct Member {
    lane: Arc<Lane>,
    armed: Armed,
    queued: bool,
    /// The socket takes more.
    writable: bool,
}

/// What only the thread itself sees.
struct Work {
    driver: Arc<Driver>,
    members: HashMap<u64, Member>,
    ready: VecDeque<u64>,
    timers: Timers<u64>,
    scratch: Box<[u8]>,
    stop_by: Option<Instant>,
}

impl Driver {
    pub(super) fn new(epoch: Clock) -> Result<Arc<Self>, Error> {
        let make = || -> rustix::io::Result<Self> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let mailbox = Mailbox::new()?;
            let interest = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(MAILBOX);
            epoll::add(&epoll, mailbox.waker(), data, interest)?;
            Ok(Self {
                mailbox,
                epoll,
                next_key: AtomicU64::new(MAILBOX + 1),
                load: AtomicUsize::new(0),
                epoch,
                #[cfg(test)]
                turns: AtomicU64::new(0),
            })
        };
        make().map(Arc::new).map_err(|e| Error::Thread(e.into()))
    }

    /// The time as machines see it.
    pub(super) fn now(&self) -> Instant {
        let micros = self.epoch.elapsed().as_micros();
        Instant::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Lanes that it looks after.
    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    pub(super) fn new_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn adopt(&self, key: u64, lane: Arc<Lane>) {
        self.load.fetch_add(1, Ordering::Relaxed);
        self.mailbox.put(Message::Adopt(key, lane));
    }

    pub(super) fn forget(&self, key: u64) {
        self.load.fetch_sub(1, Ordering::Relaxed);
        self.mailbox.put(Message::Forget(key));
    }

    /// From now on the driver sees what arrives on the socket, until that is closed.
    pub(super) fn watch(&self, socket: impl AsFd, key: u64) -> rustix::io::Result<()> {
        let interest = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(key),
            interest,
        )
    }

    pub(super) fn call(&self, key: u64) {
        self.mailbox.put(Message::Call(key));
    }

    pub(super) fn stop(&self) {
        self.mailbox.put(Message::Stop);
    }

    /// The thread's work, until it is told to stop.
    pub(super) fn run(self: Arc<Self>) {
        let work = Work {
            driver: self,
            members: HashMap::new(),
            ready: VecDeque::new(),
            timers: Timers::new(),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            stop_by: None,
        };
        work.run();
    }
}

impl Work {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            #[cfg(test)]
            self.driver.turns.fetch_add(1, Ordering::SeqCst);
            self.read_mail();
            let now = self.driver.now();
            if self.is_over(now) {
                return;
            }
            self.wake_late(now);
            // Each of them once: what is ready again comes behind the others.
            for _ in 0..self.ready.len() {
                let Some(key) = self.ready.pop_front() else {
                    break;
                };
                self.visit(key, now);
            }
            self.look(&mut events);
        }
    }

    fn read_mail(&mut self) {
        for message in self.driver.mailbox.take() {
            match message {
                Message::Adopt(key, lane) => {
                    self.members.insert(
                        key,
                        Member {
                            lane,
                            armed: Armed::default(),
                            queued: false,
                            writable: false,
                        },
                    );
                }
                Message::Call(key) => self.enqueue(key, false),
                Message::Forget(key) => drop(self.members.remove(&key)),
                Message::Stop => {
                    let by = self.driver.now().after(STOP_PATIENCE);
                    self.stop_by.get_or_insert(by);
                }
            }
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.stop_by
            .is_some_and(|by| self.members.is_empty() || by <= now)
    }

    fn wake_late(&mut self, now: Instant) {
        while let Some((at, key)) = self.timers.pop(now) {
            if let Some(member) = self.members.get_mut(&key)
                && member.armed.take(at)
            {
                self.enqueue(key, false);
            }
        }
    }

    fn enqueue(&mut self, key: u64, writable: bool) {
        if let Some(member) = self.members.get_mut(&key) {
            member.writable |= writable;
            if !std::mem::replace(&mut member.queued, true) {
                self.ready.push_back(key);
            }
        }
    }

    fn visit(&mut self, key: u64, now: Instant) {
        let Some(member) = self.members.get_mut(&key) else {
            return;
        };
        member.queued = false;
        let writable = std::mem::take(&mut member.writable);
        let visit = member.lane.visit(&mut self.scratch, writable, now);
        self.timers.arm(key, &mut member.armed, visit.deadline);
        if visit.more {
            self.enqueue(key, false);
        }
    }

    /// Sees what has happened; sleeps until something does, if there is nothing to do.
    fn look(&mut self, events: &mut Vec<epoll::Event>) {
        let waker = self.driver.mailbox.waker();
        let next = self.timers.next();
        let due = [next, self.stop_by].into_iter().flatten().min();
        let timeout = if !self.ready.is_empty() || !waker.sleep() {
            Some(Timespec::default())
        } else {
            // Rounded up, so that what it wakes up for is due.
            due.map(|at| at.since(self.driver.now()) + Duration::from_micros(1))
                .map(|wait| Timespec::try_from(wait).unwrap_or_default())
        };
        events.clear();
        let outcome = epoll::wait(
            &self.driver.epoll,
            rustix::buffer::spare_capacity(events),
            timeout.as_ref(),
        );
        waker.awake();
        match outcome {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll_wait failed"),
        }
        for event in events.drain(..) {
            let (key, flags) = (event.data.u64(), event.flags);
            if key != MAILBOX {
                self.enqueue(key, flags.contains(epoll::EventFlags::OUT));
            }
        }
    }
}
