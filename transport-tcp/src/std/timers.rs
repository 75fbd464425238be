//! Deadlines of many connections, checked only when the soonest is due.
//!
//! A connection's deadline moves away with almost everything it does. Moving an
//! entry each time would cost more than the deadline is worth, so an entry
//! stays where it is and is looked at again when it comes up: idle connections
//! cost nothing, busy ones one comparison.
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nvmf_core::time::Instant;

/// What deadlines are kept to, in microseconds: no host is held to less than 100 ms.
const TICK: u64 = 50_000;

/// Entries in order of time; `K` tells whose they are.
#[derive(Debug)]
pub(super) struct Timers<K> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
}

/// A connection's share of [`Timers`]: the soonest entry it has there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Armed(Option<Instant>);

impl<K: Ord + Copy> Timers<K> {
    pub(super) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
        }
    }

    /// Sees to it that `key` comes up at `deadline` or earlier.
    pub(super) fn arm(&mut self, key: K, armed: &mut Armed, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if armed.0.is_none_or(|at| deadline < at) {
            armed.0 = Some(deadline);
            self.heap.push(Reverse((deadline, key)));
        }
    }

    /// The next entry that is due. The caller passes it to [`Armed::take`],
    /// and arms the connection again.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(Instant, K)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// When the soonest entry is due and others with it: late by less than [`TICK`], so that
    /// a thousand of them are not a thousand reasons to wake up.
    pub(super) fn next(&self) -> Option<Instant> {
        let Reverse((at, _)) = self.heap.peek()?;
        let micros = at.as_micros().checked_next_multiple_of(TICK);
        Some(Instant::from_micros(micros.unwrap_or(u64::MAX)))
    }
}

impl Armed {
    /// Whether the entry that came up is the one that counts. If not, a sooner
    /// one came up before it, and another may be under way.
    pub(super) fn take(&mut self, at: Instant) -> bool {
        let current = self.0 == Some(at);
        if current {
            self.0 = None;
        }
        current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    #[test]
    fn a_deadline_that_only_moves_away_costs_one_entry() {
        let (mut timers, mut armed) = (Timers::new(), Armed::default());
        for deadline in 100..10_000 {
            timers.arm('a', &mut armed, Some(at(deadline)));
        }
        assert_eq!(timers.heap.len(), 1);
        assert_eq!(timers.pop(at(99)), None);
        assert_eq!(timers.pop(at(100)), Some((at(100), 'a')));
        assert!(armed.take(at(100)));
        timers.arm('a', &mut armed, Some(at(9_999)));
        assert_eq!(timers.next(), Some(at(TICK)));
        timers.arm('b', &mut Armed::default(), Some(at(2 * TICK)));
        assert_eq!(timers.pop(at(TICK)), Some((at(9_999), 'a')));
        assert_eq!(timers.next(), Some(at(2 * TICK)));
    }

    #[test]
    fn a_deadline_that_moves_closer_is_met() {
        let (mut timers, mut armed) = (Timers::new(), Armed::default());
        timers.arm('a', &mut armed, Some(at(500)));
        timers.arm('a', &mut armed, Some(at(200)));
        assert_eq!(timers.pop(at(200)), Some((at(200), 'a')));
        assert!(armed.take(at(200)));
        timers.arm('a', &mut armed, Some(at(700)));
        let (stale, _) = timers.pop(at(600)).expect("the entry of before");
        assert!(!armed.take(stale), "a newer one is under way");
        assert_eq!(timers.pop(at(700)), Some((at(700), 'a')));
        assert!(armed.take(at(700)));
    }

    #[test]
    fn no_deadline_is_no_entry() {
        let (mut timers, mut armed) = (Timers::new(), Armed::default());
        timers.arm('a', &mut armed, None);
        assert_eq!(timers.next(), None);
    }
}
