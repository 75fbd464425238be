//! Who runs where: each connection in a thread of its own.
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::live::{Counter, Live};

/// Which cores the two ends have, where both are in this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cores {
    /// One for each of the target's workers; none if the target is someone else's.
    pub(crate) target: Vec<usize>,
    /// All of the host's; none if it may run anywhere.
    pub(crate) host: Vec<usize>,
}

impl Cores {
    /// Half of those that this process may use for each end, if that is possible.
    pub(crate) fn halves() -> Self {
        let all: Vec<usize> = match sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU)
                .filter(|core| set.is_set(*core))
                .collect(),
            Err(_) => Vec::new(),
        };
        let (target, host) = all.split_at(all.len() / 2);
        Self {
            target: target.to_vec(),
            host: host.to_vec(),
        }
    }
}

/// Keeps the calling thread on `cores`, or leaves it where it may be if there are none.
pub(crate) fn keep_to(cores: &[usize]) {
    if cores.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(?cores, %error, "a thread is not kept to its cores");
    }
}

/// Calls `each` for all of `lanes` at the same time, on `cores`, and shows how it goes.
///
/// # Errors
/// The first error of any lane.
pub(crate) fn together<L: Send, T: Send>(
    lanes: impl IntoIterator<Item = L>,
    cores: &[usize],
    live: &Live,
    name: &str,
    each: impl Fn(L, &Counter) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let lanes: Vec<L> = lanes.into_iter().collect();
    let counters: Vec<Counter> = lanes.iter().map(|_| Counter::default()).collect();
    let (alive, running) = mpsc::channel();
    let each = &each;
    thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .into_iter()
            .zip(&counters)
            .map(|(lane, counter)| {
                let alive = alive.clone();
                scope.spawn(move || {
                    keep_to(cores);
                    let outcome = each(lane, counter);
                    drop(alive);
                    outcome
                })
            })
            .collect();
        drop(alive);
        live.watch(name, &counters, &running);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}
