//! The two ends: who asks and measures, and who answers; each a thread with one connection
//! or with many.
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::super::live::Counter;
use super::super::tally::{Tally, Usage};
use super::super::workload::{Direction, Job, Limit, Walk};
use super::Kind;
use super::link::{Ground, Link};

/// How long to wait for the peer.
const PATIENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// Connections that one system call names.
const EVENTS: usize = 256;

/// A connection of who asks.
pub(super) struct Asker {
    link: Link,
    walk: Walk,
    /// Since when reads and writes are under way, the oldest first.
    flying: [VecDeque<Instant>; 2],
    sent: u64,
    outstanding: usize,
}

/// The end that asks, and measures.
pub(super) struct Askers {
    job: Job,
    askers: Vec<Asker>,
    ground: Ground,
    watch: Watch,
}

/// What a connection's turn was.
struct Turn {
    /// Something has come.
    any: bool,
    /// Another turn would find nothing.
    idle: bool,
}

/// When a turn happened, and since when they do.
struct Now {
    begin: Instant,
    now: Instant,
}

impl Asker {
    pub(super) fn new(link: Link, walk: Walk) -> Self {
        Self {
            link,
            walk,
            flying: [VecDeque::new(), VecDeque::new()],
            sent: 0,
            outstanding: 0,
        }
    }

    /// Takes what has come, and asks for more.
    fn turn(
        &mut self,
        job: &Job,
        limit: Limit<'_>,
        ground: &mut Ground,
        time: &mut Now,
        tally: &mut Tally,
    ) -> anyhow::Result<Turn> {
        let success = ground.shape.success;
        let mut done = [0, 0];
        let any = self.link.receive(ground, |kind, outbox| match kind {
            Kind::C2hData if success => done[0] += 1,
            Kind::RespOfRead => done[0] += 1,
            Kind::RespOfWrite => done[1] += 1,
            Kind::R2t => outbox.push_back(Kind::H2cData),
            _ => {}
        })?;
        time.now = Instant::now();
        for (index, direction) in [Direction::Read, Direction::Write].into_iter().enumerate() {
            for since in self.flying[index].drain(..done[index]) {
                tally.record(direction, time.now - since);
            }
            self.outstanding -= done[index];
        }
        let fresh = self.ask(job, limit, ground.shape.in_capsule, time)?;
        self.link.send(ground)?;
        Ok(Turn {
            any,
            // What was sent a moment ago is not answered yet.
            idle: !any || fresh == self.outstanding,
        })
    }

    /// How many commands it has added to what is to be said.
    fn ask(
        &mut self,
        job: &Job,
        limit: Limit<'_>,
        in_capsule: bool,
        time: &Now,
    ) -> anyhow::Result<usize> {
        let (threshold, most) = job.batch();
        let room = job.iodepth - self.outstanding;
        if room < threshold {
            return Ok(0);
        }
        let left = limit.left(self.sent, time.now - time.begin);
        let fresh = most.min(room).min(left as usize);
        for _ in 0..fresh {
            let kind = match self.walk.step().0 {
                Direction::Read => Kind::Read,
                Direction::Write if in_capsule => Kind::WriteInCapsule,
                Direction::Write => Kind::Write,
                Direction::Trim => bail!("there is no reference for deallocation"),
            };
            self.flying[usize::from(kind != Kind::Read)].push_back(time.now);
            self.link.outbox.push_back(kind);
        }
        self.sent += fresh as u64;
        self.outstanding += fresh;
        Ok(fresh)
    }
}

impl Askers {
    /// All with the memory of one thread.
    ///
    /// # Errors
    /// Those of epoll.
    pub(super) fn new(job: &Job, askers: Vec<Asker>, ground: Ground) -> io::Result<Self> {
        Ok(Self {
            job: *job,
            watch: Watch::new(askers.iter().map(|asker| &asker.link))?,
            askers,
            ground,
        })
    }

    /// Does what a host would until `limit`, which is for each connection. Then those who
    /// answer end.
    pub(super) fn run(&mut self, limit: Limit<'_>, counter: &Counter) -> anyhow::Result<Tally> {
        let outcome = self.measure(limit, counter);
        for Asker { link, .. } in &mut self.askers {
            match outcome {
                Ok(_) => {
                    link.outbox.push_back(Kind::End);
                    link.send(&self.ground)?;
                }
                Err(_) => link.socket.shutdown(Shutdown::Both)?,
            }
        }
        outcome
    }

    fn measure(&mut self, limit: Limit<'_>, counter: &Counter) -> anyhow::Result<Tally> {
        let mut tally = Tally::new();
        let calls = self.system_calls();
        let usage = Usage::of_this_thread()?;
        let begin = Instant::now();
        let mut time = Now { begin, now: begin };
        let mut progress = begin;
        let mut ready: Vec<usize> = (0..self.askers.len()).collect();
        for asker in &mut self.askers {
            asker.sent = 0;
        }
        let mut under_way = 0;
        loop {
            let (mut any, mut idle) = (false, true);
            for &index in &ready {
                let asker = &mut self.askers[index];
                under_way -= asker.outstanding;
                let turn = asker.turn(&self.job, limit, &mut self.ground, &mut time, &mut tally)?;
                any |= turn.any;
                idle &= turn.idle;
                under_way += asker.outstanding;
                self.watch.took(index, &asker.link);
            }
            counter.set(tally.count());
            if under_way == 0 {
                break;
            }
            if any {
                progress = time.now;
            } else if (time.now - progress).as_secs() > PATIENCE.tv_sec.unsigned_abs() {
                bail!("the peer of the reference does not answer any more");
            }
            let sleep = idle && !self.job.hipri;
            self.watch.next(&self.askers[0].link, sleep, &mut ready)?;
            if ready.is_empty() {
                time.now = Instant::now();
            }
        }
        tally.elapsed = time.now - begin;
        tally.usage = Usage::of_this_thread()?.since(&usage);
        tally.system_calls = self.system_calls() - calls;
        Ok(tally)
    }

    fn system_calls(&self) -> u64 {
        let askers = self.askers.iter();
        askers.map(|asker| asker.link.system_calls).sum::<u64>() + self.watch.system_calls()
    }
}

/// The end that answers.
pub(super) struct Answerers {
    links: Vec<Link>,
    ground: Ground,
    watch: Watch,
    /// How long it polls before it sleeps.
    spin: Duration,
}

impl Answerers {
    /// All with the memory of one thread.
    ///
    /// # Errors
    /// Those of epoll.
    pub(super) fn new(links: Vec<Link>, ground: Ground, spin: Duration) -> io::Result<Self> {
        Ok(Self {
            watch: Watch::new(links.iter())?,
            links,
            ground,
            spin,
        })
    }

    /// Answers until all who ask have ended. Polls for a while after there was something
    /// to do, and then sleeps.
    pub(super) fn serve(&mut self) -> anyhow::Result<()> {
        let success = self.ground.shape.success;
        let mut ended = 0;
        let mut last = Instant::now();
        let mut ready: Vec<usize> = (0..self.links.len()).collect();
        while ended < self.links.len() {
            let mut busy = false;
            for &index in &ready {
                let link = &mut self.links[index];
                busy |= link.receive(&mut self.ground, |kind, outbox| match kind {
                    Kind::Read => {
                        outbox.push_back(Kind::C2hData);
                        if !success {
                            outbox.push_back(Kind::RespOfRead);
                        }
                    }
                    Kind::Write => outbox.push_back(Kind::R2t),
                    Kind::WriteInCapsule | Kind::H2cData => outbox.push_back(Kind::RespOfWrite),
                    Kind::End => ended += 1,
                    _ => {}
                })?;
                link.send(&self.ground)?;
                self.watch.took(index, link);
            }
            if busy {
                last = Instant::now();
            }
            let sleep = !busy && last.elapsed() >= self.spin && ended < self.links.len();
            if let Some(first) = self.links.first() {
                self.watch.next(first, sleep, &mut ready)?;
            }
            if sleep {
                last = Instant::now();
            }
        }
        Ok(())
    }
}

/// Which of a thread's connections have something for it. Nobody has to ask where there is
/// only one.
enum Watch {
    One { system_calls: u64 },
    Many(Box<Many>),
}

struct Many {
    epoll: OwnedFd,
    /// Those of which not all was taken that had come.
    again: Vec<usize>,
    system_calls: u64,
}

impl Watch {
    fn new<'a>(links: impl ExactSizeIterator<Item = &'a Link>) -> io::Result<Self> {
        if links.len() < 2 {
            return Ok(Self::One { system_calls: 0 });
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (index, link) in links.enumerate() {
            let data = EventData::new_u64(index as u64);
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
            epoll::add(&epoll, &link.socket, data, flags)?;
        }
        Ok(Self::Many(Box::new(Many {
            epoll,
            again: Vec::new(),
            system_calls: 0,
        })))
    }

    /// The connection had its turn.
    fn took(&mut self, index: usize, link: &Link) {
        if let Self::Many(many) = self
            && link.more
        {
            many.again.push(index);
        }
    }

    /// Whose turn is next: of one, always that; it sleeps before if it is to `sleep`, but not
    /// for longer than [`PATIENCE`].
    fn next(&mut self, first: &Link, sleep: bool, ready: &mut Vec<usize>) -> anyhow::Result<()> {
        ready.clear();
        match self {
            Self::One { system_calls } => {
                ready.push(0);
                if sleep {
                    *system_calls += 1;
                    wait(first)?;
                }
                Ok(())
            }
            Self::Many(many) => {
                many.system_calls += 1;
                ready.append(&mut many.again);
                let timeout = match sleep && ready.is_empty() {
                    true => PATIENCE,
                    false => Timespec::default(),
                };
                let mut room = [MaybeUninit::<Event>::uninit(); EVENTS];
                match epoll::wait(&many.epoll, &mut room[..], Some(&timeout)) {
                    Ok((events, _)) => {
                        ready.extend(events.iter().map(|event| event.data.u64() as usize));
                        Ok(())
                    }
                    Err(Errno::INTR) => Ok(()),
                    Err(error) => Err(error).context("cannot wait for the reference"),
                }
            }
        }
    }

    fn system_calls(&self) -> u64 {
        match self {
            Self::One { system_calls } => *system_calls,
            Self::Many(many) => many.system_calls,
        }
    }
}

/// Sleeps until there is something to do, or for too long.
pub(super) fn wait(link: &Link) -> anyhow::Result<()> {
    let interest = match link.outbox.is_empty() {
        true => PollFlags::IN,
        false => PollFlags::IN | PollFlags::OUT,
    };
    match poll(&mut [PollFd::new(&link.socket, interest)], Some(&PATIENCE)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for the reference"),
    }
}
