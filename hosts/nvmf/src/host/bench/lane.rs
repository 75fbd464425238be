//! A connection under load: commands are submitted, reaped and timed by the thread
//! that waits for them, and no other.
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use nvmf_core::host::command;
use nvmf_core::wire::range::DsmRange;
use nvmf_core::wire::sqe::Sqe;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Completion, Error, Namespace, Payload, Queue};
use zerocopy::IntoBytes;

use super::live::Counter;
use super::noise;
use super::stamp::{self, Ledger};
use super::tally::{Tally, Usage};
use super::workload::{Direction, Job, Limit, Walk};
use crate::exit::{differs, gone, usage};

/// How long to wait for any completion before the target counts as gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// One connection, and its part of the namespace.
pub(crate) struct Lane<'a> {
    namespace: &'a mut Namespace,
    job: Job,
    walk: Walk,
    /// Blocks of a command.
    nlb: u32,
    /// The first block of its part.
    base: u64,
    /// By tag.
    flying: Vec<Flying>,
    /// Tags and buffers of commands that are not under way.
    idle: Vec<(usize, Buffer)>,
    ledger: Option<Ledger>,
    completions: Vec<Completion>,
    /// An [`Instant`] is slow to reckon with; one is made a number once for many commands.
    epoch: Instant,
}

/// A command under way.
#[derive(Clone, Copy)]
struct Flying {
    direction: Direction,
    place: u64,
    /// Nanoseconds after the lane's epoch.
    since: u64,
}

/// A part of a namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Its first block.
    pub(crate) base: u64,
    /// Commands that fit into it.
    pub(crate) places: u64,
    /// Blocks of a command.
    pub(crate) nlb: u32,
}

impl Part {
    /// Places that can be verified: each takes five bytes of memory.
    const MOST_VERIFIED: u64 = 1 << 26;

    /// The namespace, or its first `size` bytes, in `count` equal parts.
    ///
    /// # Errors
    /// The job does not fit.
    pub(crate) fn of(
        namespace: &Namespace,
        job: &Job,
        size: Option<u64>,
        count: u64,
    ) -> anyhow::Result<Vec<Self>> {
        let block_size = u64::from(namespace.block_size());
        let most = u64::from(namespace.controller().capabilities().transfer);
        if job.bs == 0 || !job.bs.is_multiple_of(block_size) {
            return Err(usage(format!(
                "--bs must be a whole number of blocks, which have {block_size} bytes"
            )));
        }
        if job.bs > most.min(block_size << 16) {
            return Err(usage(format!(
                "--bs is more than a command may move here, {most} bytes"
            )));
        }
        let nlb = job.bs / block_size;
        let blocks = namespace.blocks();
        let used = match size {
            Some(size) if size / block_size > blocks => {
                return Err(usage(format!(
                    "--size is more than the namespace has, {} bytes",
                    blocks * block_size
                )));
            }
            Some(size) => size / block_size,
            None => blocks,
        };
        let places = used / nlb / count;
        if places == 0 {
            return Err(usage(
                "the namespace, or --size, is too small for --bs and --numjobs",
            ));
        }
        let nlb = u32::try_from(nlb)?;
        let part = |index| Self {
            base: index * places * u64::from(nlb),
            places,
            nlb,
        };
        Ok((0..count).map(part).collect())
    }
}

impl<'a> Lane<'a> {
    /// Lanes with different seeds do not go the same way.
    ///
    /// # Errors
    /// The job does not fit.
    pub(crate) fn new(
        namespace: &'a mut Namespace,
        job: &Job,
        part: Part,
        verify: bool,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let depth = namespace.queue().depth();
        if job.iodepth > depth {
            return Err(usage(format!(
                "--iodepth may be up to {depth}: the controller's queues hold no more (CAP.MQES)"
            )));
        }
        if verify && part.places < job.iodepth as u64 {
            return Err(usage(
                "--verify needs room for --iodepth commands, each in a place of its own",
            ));
        }
        if verify && part.places > Part::MOST_VERIFIED {
            let most = Part::MOST_VERIFIED * job.bs;
            return Err(usage(format!(
                "--verify keeps account of each place: choose a --size of {most} bytes at most"
            )));
        }
        let buffer = |index: usize| match job.rw.direction() {
            Some(Direction::Trim) => Buffer::zeroed(size_of::<DsmRange>()),
            _ => noise(index as u64, job.bs as usize),
        };
        let nothing = Flying {
            direction: Direction::Read,
            place: 0,
            since: 0,
        };
        Ok(Self {
            epoch: Instant::now(),
            namespace,
            job: *job,
            walk: Walk::new(job, part.places, seed),
            nlb: part.nlb,
            base: part.base,
            flying: vec![nothing; job.iodepth],
            idle: (0..job.iodepth)
                .map(|index| (index, buffer(index)))
                .collect(),
            ledger: verify.then(|| Ledger::new(part.places as usize)),
            completions: Vec::with_capacity(job.iodepth),
        })
    }

    /// Keeps commands under way until `limit`, and waits for the last of them.
    ///
    /// # Errors
    /// A command failed, what came back is not what was written, or the connection is lost.
    pub(crate) fn run(&mut self, limit: Limit<'_>, counter: &Counter) -> anyhow::Result<Tally> {
        let mut tally = Tally::new();
        let calls = self.namespace.queue().system_calls();
        let usage = Usage::of_this_thread()?;
        let (threshold, most) = self.job.batch();
        let mut sent = 0;
        let mut ended = false;
        let begin = Instant::now();
        let (mut now, mut progress) = (begin, begin);
        loop {
            let left = limit.left(sent, now - begin);
            ended |= left == 0;
            let mut fresh = 0;
            if !ended && self.idle.len() >= threshold {
                fresh = self.submit(now, left.min(most as u64))?;
                ended |= fresh == 0;
                sent += fresh;
            }
            let outstanding = self.namespace.queue().outstanding();
            if ended && outstanding == 0 {
                break;
            }
            // What was sent a moment ago is not answered yet.
            if !self.job.hipri && fresh == outstanding as u64 {
                self.namespace.queue().wait(PATIENCE)?;
            }
            self.namespace.queue().poll(&mut self.completions)?;
            if self.completions.is_empty() && !self.job.hipri {
                self.namespace.queue().wait(PATIENCE)?;
            }
            now = Instant::now();
            if !self.completions.is_empty() {
                progress = now;
            } else if now - progress > PATIENCE {
                return Err(gone("the target does not answer any more"));
            }
            self.take(now, &mut tally)?;
            counter.set(tally.count());
        }
        tally.elapsed = now - begin;
        tally.usage = Usage::of_this_thread()?.since(&usage);
        tally.system_calls = self.namespace.queue().system_calls() - calls;
        tally.shares = vec![tally.count()];
        Ok(tally)
    }

    /// The connection.
    pub(crate) fn queue(&mut self) -> &mut Queue {
        self.namespace.queue()
    }

    /// Whether nobody may sleep.
    pub(crate) fn hipri(&self) -> bool {
        self.job.hipri
    }

    /// Sends as many commands as the job asks for at this time, and not more than `left`.
    ///
    /// # Errors
    /// There is no room in the queue.
    pub(crate) fn refill(&mut self, now: Instant, left: u64) -> anyhow::Result<u64> {
        let (threshold, most) = self.job.batch();
        match self.idle.len() >= threshold {
            true => self.submit(now, left.min(most as u64)),
            false => Ok(0),
        }
    }

    /// Takes what has completed, and counts it; how many that are. `scratch` is for what is
    /// not received in its place.
    ///
    /// # Errors
    /// Those of [`Lane::run`].
    pub(crate) fn reap_all(
        &mut self,
        now: Instant,
        scratch: &mut [u8],
        tally: &mut Tally,
    ) -> anyhow::Result<u64> {
        self.namespace
            .queue()
            .poll_with(scratch, &mut self.completions)?;
        self.take(now, tally)
    }

    fn take(&mut self, now: Instant, tally: &mut Tally) -> anyhow::Result<u64> {
        let now = self.nanoseconds(now);
        let mut completions = std::mem::take(&mut self.completions);
        let count = completions.len() as u64;
        for completion in completions.drain(..) {
            let index = completion.tag as usize;
            let flying = self.flying[index];
            self.check(&completion, flying)?;
            if let Some(ledger) = &mut self.ledger {
                ledger.end(flying.place);
            }
            tally.record_ns(flying.direction, now.saturating_sub(flying.since));
            if let Some(buffer) = completion.buffer {
                self.idle.push((index, buffer));
            }
        }
        self.completions = completions;
        Ok(count)
    }

    /// After the epoch.
    fn nanoseconds(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Reads all that was written, or until `limit`, and checks it; how many commands that took.
    ///
    /// # Errors
    /// What came back is not what was written, and those of [`Lane::run`].
    pub(crate) fn read_back(&mut self, limit: Limit<'_>, counter: &Counter) -> anyhow::Result<u64> {
        match &mut self.ledger {
            Some(ledger) => ledger.read_back(),
            None => return Ok(0),
        }
        Ok(self.run(limit, counter)?.count())
    }

    /// Sends as many commands as may be, and says how many those are.
    fn submit(&mut self, now: Instant, most: u64) -> anyhow::Result<u64> {
        let since = self.nanoseconds(now);
        let mut sent = 0;
        while sent < most
            && !self.idle.is_empty()
            && let Some((direction, place)) = self.step()
            && let Some((index, buffer)) = self.idle.pop()
        {
            self.flying[index] = Flying {
                direction,
                place,
                since,
            };
            let (sqe, payload) = self.compose(direction, place, buffer);
            self.namespace
                .queue()
                .enqueue(&sqe, payload, index as u64)
                .map_err(|full| anyhow!("{full}"))?;
            sent += 1;
        }
        self.namespace.queue().flush();
        Ok(sent)
    }

    /// Where the next command goes; nowhere once all has been read back.
    fn step(&mut self) -> Option<(Direction, u64)> {
        match &mut self.ledger {
            Some(ledger) => ledger.begin(&mut self.walk),
            None => Some(self.walk.step()),
        }
    }

    fn slba(&self, place: u64) -> u64 {
        self.base + place * u64::from(self.nlb)
    }

    fn compose(&self, direction: Direction, place: u64, mut buffer: Buffer) -> (Sqe, Payload) {
        let (nsid, slba) = (self.namespace.nsid(), self.slba(place));
        let blocks = || command::blocks(direction.opcode(), nsid, slba, self.nlb);
        match direction {
            Direction::Read => (blocks(), Payload::Read(buffer)),
            Direction::Write => {
                if let Some(ledger) = &self.ledger {
                    let block_size = self.namespace.block_size() as usize;
                    stamp::fill(buffer.as_mut(), block_size, slba, ledger.round(place));
                }
                (blocks(), Payload::Write(buffer))
            }
            Direction::Trim => {
                let range = DsmRange::new(slba, self.nlb);
                buffer.as_mut().copy_from_slice(range.as_bytes());
                (command::deallocate(nsid, 1), Payload::Write(buffer))
            }
        }
    }

    /// Whether a command did what it was to do.
    fn check(&self, completion: &Completion, flying: Flying) -> anyhow::Result<()> {
        let Flying {
            direction, place, ..
        } = flying;
        let status = completion.cqe.status();
        if !status.is_success() {
            let error = Error::Failed {
                command: direction.command(),
                opcode: direction.opcode().code(),
                status,
            };
            return Err(error).with_context(|| format!("at LBA {}", self.slba(place)));
        }
        if direction != Direction::Read {
            return Ok(());
        }
        if completion.received as u64 != self.job.bs {
            let slba = self.slba(place);
            bail!("LBA {slba}: {} bytes came", completion.received);
        }
        match &self.ledger {
            Some(ledger) => self.check_data(ledger, completion, place),
            None => Ok(()),
        }
    }

    /// What was read, with `--verify`: where this lane has written, that must have come
    /// back; if it only reads, an earlier one must have written there.
    fn check_data(
        &self,
        ledger: &Ledger,
        completion: &Completion,
        place: u64,
    ) -> anyhow::Result<()> {
        let round = Some(ledger.round(place)).filter(|round| *round > 0);
        if round.is_none() && self.job.rw.writes() {
            return Ok(());
        }
        let block_size = self.namespace.block_size() as usize;
        let slba = self.slba(place);
        stamp::check(completion.data(), block_size, slba, round)
            .map_err(|wrong| differs(wrong.to_string()))
    }
}
