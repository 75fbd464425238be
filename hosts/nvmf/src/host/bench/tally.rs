//! What was measured: latencies, and what they cost this process.
use std::fs;
use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::histogram::Histogram;
use super::workload::Direction;

/// What some commands took.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) elapsed: Duration,
    /// By [`Direction`].
    latencies: [Histogram; 3],
    pub(crate) usage: Usage,
    /// Those made for the connection.
    pub(crate) system_calls: u64,
    /// Commands of each connection.
    pub(crate) shares: Vec<u64>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            elapsed: Duration::ZERO,
            latencies: Direction::ALL.map(|_| Histogram::new()),
            usage: Usage::default(),
            system_calls: 0,
            shares: Vec::new(),
        }
    }

    pub(crate) fn latencies(&self, direction: Direction) -> &Histogram {
        &self.latencies[direction as usize]
    }

    pub(crate) fn record(&mut self, direction: Direction, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.record_ns(direction, ns);
    }

    /// In nanoseconds.
    pub(crate) fn record_ns(&mut self, direction: Direction, latency: u64) {
        self.latencies[direction as usize].record(latency);
    }

    /// What several connections did at the same time.
    pub(crate) fn of_all(tallies: &[Self]) -> Self {
        let mut all = Self::new();
        for tally in tallies {
            all.elapsed = all.elapsed.max(tally.elapsed);
            all.sum(tally);
            all.shares.extend_from_slice(&tally.shares);
        }
        all
    }

    /// Adds what was done later.
    pub(crate) fn later(&mut self, other: &Self) {
        self.elapsed += other.elapsed;
        self.sum(other);
        self.shares
            .resize(other.shares.len().max(self.shares.len()), 0);
        for (mine, others) in self.shares.iter_mut().zip(&other.shares) {
            *mine += others;
        }
    }

    fn sum(&mut self, other: &Self) {
        for (mine, others) in self.latencies.iter_mut().zip(&other.latencies) {
            mine.add(others);
        }
        self.usage = self.usage.plus(&other.usage);
        self.system_calls += other.system_calls;
    }

    /// Commands, of all directions.
    pub(crate) fn count(&self) -> u64 {
        self.latencies.iter().map(Histogram::count).sum()
    }

    pub(crate) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub(crate) fn iops(&self) -> f64 {
        self.per_second(self.count())
    }

    /// `count` for each command.
    pub(crate) fn per_command(&self, count: u64) -> f64 {
        count as f64 / self.count().max(1) as f64
    }
}

/// What threads used of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Time on a processor, exactly.
    cpu: Duration,
    /// The same, as the kernel samples it: in user mode, and in all.
    user_ticks: u64,
    ticks: u64,
    /// Context switches, of its own accord or not.
    pub(crate) switches: u64,
}

impl Usage {
    /// Of the calling thread, since it began.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/thread-self/stat")?;
        let status = fs::read_to_string("/proc/thread-self/status")?;
        let (user_ticks, ticks) = ticks(&stat).unwrap_or_default();
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        Ok(Self {
            cpu: Duration::try_from(cpu).unwrap_or_default(),
            user_ticks,
            ticks,
            switches: switches(&status),
        })
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            user_ticks: self.user_ticks.saturating_sub(earlier.user_ticks),
            ticks: self.ticks.saturating_sub(earlier.ticks),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            user_ticks: self.user_ticks + other.user_ticks,
            ticks: self.ticks + other.ticks,
            switches: self.switches + other.switches,
        }
    }

    /// Time on a processor: in user mode, and in the kernel.
    pub(crate) fn cpu(&self) -> (Duration, Duration) {
        let user = match self.ticks {
            0 => 1.0,
            ticks => self.user_ticks as f64 / ticks as f64,
        };
        let user = self.cpu.mul_f64(user.min(1.0));
        (user, self.cpu.saturating_sub(user))
    }
}

/// utime, and utime + stime: the 14th and the 15th field of proc_pid_stat(5). The
/// second, the name, may contain anything.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user, user + system))
}

/// The sum of the two counters of proc_pid_status(5).
fn switches(status: &str) -> u64 {
    status
        .lines()
        .filter_map(|line| line.split_once("ctxt_switches:"))
        .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let stat = "7 (a ) 1 2) R 1 1 1 0 -1 4194304 121 0 0 0 30 12 0 0 20 0 1 0";
        assert_eq!(ticks(stat), Some((30, 42)));
        assert_eq!(ticks("7 (a) R 1"), None);
    }

    #[test]
    fn both_kinds_of_switches_count() {
        let status = "Threads:\t1\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t5\n";
        assert_eq!(switches(status), 155);
    }

    #[test]
    fn work_and_sleep_show() {
        let before = Usage::of_this_thread().unwrap();
        let begin = Instant::now();
        let mut turns = 0_u64;
        while Usage::of_this_thread().unwrap().since(&before).cpu < Duration::from_millis(5) {
            turns += 1;
            assert!(begin.elapsed() < Duration::from_secs(20), "{turns} turns");
        }
        thread::sleep(Duration::from_millis(1));
        let used = Usage::of_this_thread().unwrap().since(&before);
        let (user, system) = used.cpu();
        assert!(user + system >= Duration::from_millis(5), "{used:?}");
        assert!(used.switches >= 1, "{used:?}");
    }

    #[test]
    fn rates_are_those_of_the_whole() {
        let one = |ms, count| {
            let mut tally = Tally::new();
            tally.elapsed = Duration::from_millis(ms);
            for _ in 0..count {
                tally.record(Direction::Write, Duration::from_micros(1));
            }
            tally
        };
        let mut two_at_a_time = Tally::of_all(&[one(400, 10), one(500, 20)]);
        assert_eq!(two_at_a_time.iops(), 60.0);
        two_at_a_time.later(&one(500, 10));
        assert_eq!(two_at_a_time.iops(), 40.0);
        assert_eq!(two_at_a_time.latencies(Direction::Write).count(), 40);
        assert_eq!(two_at_a_time.latencies(Direction::Read).count(), 0);
    }
}
