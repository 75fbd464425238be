//! Many connections under load, all of one thread: it asks the system which of them have
//! something for it, and never sleeps for one of them.
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::lane::Lane;
use super::live::Counter;
use super::tally::{Tally, Usage};
use super::workload::Limit;
use crate::exit::gone;

/// Connections that one system call names.
const EVENTS: usize = 256;

/// Without any event for so long, all are looked at: one may wait for room to send.
const LOOK: Duration = Duration::from_millis(10);

/// Bytes that one receive takes.
const SCRATCH: usize = 128 * 1024;

/// How long to wait for any completion before the target counts as gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps commands under way on all of `lanes` until `limit`, which is for each of them, and
/// waits for the last.
///
/// # Errors
/// A command failed, or a connection is lost.
pub(crate) fn run(
    lanes: &mut [Lane<'_>],
    limit: Limit<'_>,
    counter: &Counter,
) -> anyhow::Result<Tally> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    for (index, lane) in lanes.iter_mut().enumerate() {
        let data = EventData::new_u64(index as u64);
        // From here on the descriptor tells of all that comes.
        lane.queue().wait(Duration::ZERO)?;
        epoll::add(&epoll, lane.queue(), data, EventFlags::IN)?;
    }
    let sleep = match lanes.iter().any(Lane::hipri) {
        true => Duration::ZERO,
        false => LOOK,
    };
    let sleep = sleep.try_into()?;
    let mut fleet = Fleet {
        scratch: vec![0; SCRATCH].into_boxed_slice(),
        tally: Tally::new(),
        sent: vec![0; lanes.len()],
        done: vec![0; lanes.len()],
        under_way: 0,
        lanes,
        limit,
    };
    let calls = fleet.system_calls();
    let mut waits = 0;
    let usage = Usage::of_this_thread()?;
    let begin = Instant::now();
    let (mut now, mut progress, mut looked) = (begin, begin, begin);
    for index in 0..fleet.lanes.len() {
        fleet.refill(index, now, Duration::ZERO)?;
    }
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    while fleet.under_way > 0 {
        events.clear();
        waits += 1;
        match epoll::wait(&epoll, spare_capacity(&mut events), Some(&sleep)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        now = Instant::now();
        for event in &events {
            fleet.serve(event.data.u64() as usize, now, now - begin)?;
        }
        if !events.is_empty() {
            progress = now;
        } else if now - progress > PATIENCE {
            return Err(gone("the target does not answer any more"));
        } else if now - looked.max(progress) > LOOK {
            looked = now;
            for index in 0..fleet.lanes.len() {
                fleet.lanes[index].queue().wait(Duration::ZERO)?;
                fleet.serve(index, now, now - begin)?;
            }
        }
        counter.set(fleet.done.iter().sum());
    }
    let calls = fleet.system_calls() - calls + waits;
    let mut tally = fleet.tally;
    tally.elapsed = now - begin;
    tally.usage = Usage::of_this_thread()?.since(&usage);
    tally.system_calls = calls;
    tally.shares = fleet.done;
    Ok(tally)
}

/// The connections, and what they have done.
struct Fleet<'a, 'b> {
    lanes: &'a mut [Lane<'b>],
    limit: Limit<'a>,
    /// For all of them.
    scratch: Box<[u8]>,
    tally: Tally,
    /// Commands of each.
    sent: Vec<u64>,
    done: Vec<u64>,
    /// Commands of all.
    under_way: u64,
}

impl Fleet<'_, '_> {
    /// Takes what has come, and sends more.
    fn serve(&mut self, index: usize, now: Instant, elapsed: Duration) -> anyhow::Result<()> {
        let done = self.lanes[index].reap_all(now, &mut self.scratch, &mut self.tally)?;
        self.done[index] += done;
        self.under_way -= done;
        self.refill(index, now, elapsed)
    }

    fn refill(&mut self, index: usize, now: Instant, elapsed: Duration) -> anyhow::Result<()> {
        let left = self.limit.left(self.sent[index], elapsed);
        let sent = self.lanes[index].refill(now, left)?;
        self.sent[index] += sent;
        self.under_way += sent;
        Ok(())
    }

    fn system_calls(&mut self) -> u64 {
        let lanes = self.lanes.iter_mut();
        lanes.map(|lane| lane.queue().system_calls()).sum()
    }
}
