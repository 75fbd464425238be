//! What is to be measured: patterns, by fio's names, and where each command goes.
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use nvmf_core::wire::sqe::IoOpcode;

/// Patterns, by fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rw {
    /// Reads, in order
    Read,
    /// Writes, in order
    Write,
    /// Deallocations, in order
    Trim,
    /// Reads, anywhere
    Randread,
    /// Writes, anywhere
    Randwrite,
    /// Deallocations, anywhere
    Randtrim,
    /// Reads and writes, in order
    #[value(name = "rw", alias = "readwrite")]
    Mixed,
    /// Reads and writes, anywhere
    Randrw,
}

/// Which way a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
    Trim,
}

impl Direction {
    pub(crate) const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];

    /// By fio's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
        }
    }

    pub(crate) fn opcode(self) -> IoOpcode {
        match self {
            Self::Read => IoOpcode::Read,
            Self::Write => IoOpcode::Write,
            Self::Trim => IoOpcode::DatasetManagement,
        }
    }

    /// The command's name.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Read => "Read",
            Self::Write => "Write",
            Self::Trim => "Dataset Management",
        }
    }
}

impl Rw {
    fn is_random(self) -> bool {
        matches!(
            self,
            Self::Randread | Self::Randwrite | Self::Randtrim | Self::Randrw
        )
    }

    pub(crate) fn reads(self) -> bool {
        self.direction().unwrap_or(Direction::Read) == Direction::Read
    }

    pub(crate) fn writes(self) -> bool {
        self.direction().unwrap_or(Direction::Write) == Direction::Write
    }

    /// All of its commands; `None` if some are reads and some are writes.
    pub(crate) fn direction(self) -> Option<Direction> {
        match self {
            Self::Read | Self::Randread => Some(Direction::Read),
            Self::Write | Self::Randwrite => Some(Direction::Write),
            Self::Trim | Self::Randtrim => Some(Direction::Trim),
            Self::Mixed | Self::Randrw => None,
        }
    }
}

impl fmt::Display for Rw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// What one connection is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) rw: Rw,
    /// Bytes of a command.
    pub(crate) bs: u64,
    pub(crate) iodepth: usize,
    /// Commands to submit at once; `None` is as many as have completed.
    pub(crate) batch: Option<usize>,
    /// Percent of the commands that are reads, where there are both.
    pub(crate) rwmixread: u8,
    /// Poll, and never sleep.
    pub(crate) hipri: bool,
}

impl Job {
    /// How many commands must have completed before more are submitted, and how many
    /// those are at most.
    pub(crate) fn batch(&self) -> (usize, usize) {
        match self.batch {
            Some(batch) => (batch, batch),
            None => (1, self.iodepth),
        }
    }
}

/// When to stop: at whichever comes first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limit<'a> {
    pub(crate) runtime: Option<Duration>,
    pub(crate) commands: Option<u64>,
    /// At once, when this is set.
    pub(crate) interrupt: Option<&'a AtomicBool>,
}

impl Limit<'_> {
    /// How many commands may follow `sent`, after `elapsed`.
    pub(crate) fn left(&self, sent: u64, elapsed: Duration) -> u64 {
        if self.interrupted() || self.runtime.is_some_and(|runtime| elapsed >= runtime) {
            return 0;
        }
        self.commands
            .map_or(u64::MAX, |commands| commands.saturating_sub(sent))
    }

    pub(crate) fn interrupted(&self) -> bool {
        self.interrupt
            .is_some_and(|came| came.load(Ordering::Relaxed))
    }
}

/// Where each command goes.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    rw: Rw,
    rwmixread: u8,
    /// Places for a command, at least one.
    places: u64,
    at: u64,
    random: u64,
}

impl Walk {
    /// Walks with different seeds go different ways, if the pattern is random.
    pub(crate) fn new(job: &Job, places: u64, seed: u64) -> Self {
        Self {
            rw: job.rw,
            rwmixread: job.rwmixread,
            places,
            at: 0,
            random: 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(2 * seed + 1),
        }
    }

    /// Which way the next command goes, and to which place.
    pub(crate) fn step(&mut self) -> (Direction, u64) {
        self.random = xorshift(self.random);
        let place = if self.rw.is_random() {
            ((u128::from(self.random) * u128::from(self.places)) >> 64) as u64
        } else {
            let at = self.at;
            self.at = if at + 1 == self.places { 0 } else { at + 1 };
            at
        };
        let read = || self.random % 100 < u64::from(self.rwmixread);
        let direction = self.rw.direction().unwrap_or_else(|| match read() {
            true => Direction::Read,
            false => Direction::Write,
        });
        (direction, place)
    }
}

/// The next of a sequence of numbers that look random; never 0, and `state` must not be.
pub(crate) fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ state << 17
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(rw: Rw, places: u64) -> Walk {
        let job = Job {
            rw,
            bs: 4096,
            iodepth: 1,
            batch: None,
            rwmixread: 30,
            hipri: false,
        };
        Walk::new(&job, places, 0)
    }

    #[test]
    fn what_is_in_order_begins_again_at_the_end() {
        let mut walk = walk(Rw::Read, 3);
        let steps: Vec<_> = (0..7).map(|_| walk.step().1).collect();
        assert_eq!(steps, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn what_is_random_comes_everywhere() {
        let mut walk = walk(Rw::Randtrim, 8);
        let mut seen = [0; 8];
        for _ in 0..800 {
            let (direction, place) = walk.step();
            assert_eq!(direction, Direction::Trim);
            seen[place as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (50..150).contains(count)),
            "{seen:?}"
        );
    }

    #[test]
    fn a_mix_has_as_many_reads_as_it_should() {
        for rw in [Rw::Mixed, Rw::Randrw] {
            let mut walk = walk(rw, 1000);
            let reads = (0..10_000)
                .filter(|_| walk.step().0 == Direction::Read)
                .count();
            assert!((2800..3200).contains(&reads), "{rw}: {reads}");
        }
    }

    #[test]
    fn the_first_limit_counts() {
        let limit = Limit {
            runtime: Some(Duration::from_secs(1)),
            commands: Some(10),
            interrupt: None,
        };
        assert_eq!(limit.left(3, Duration::ZERO), 7);
        assert_eq!(limit.left(11, Duration::ZERO), 0);
        assert_eq!(limit.left(3, Duration::from_secs(1)), 0);
        assert_eq!(Limit::default().left(3, Duration::MAX), u64::MAX);
    }
}
