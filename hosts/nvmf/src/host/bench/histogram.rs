//! Latencies, counted in buckets that are about 1.6 % wide.

/// Buckets for each power of two.
const SUB: u64 = 64;
const SUB_BITS: u32 = SUB.trailing_zeros();

/// How often each latency was seen.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: u128,
    /// Of the squares, in square nanoseconds.
    sum_squares: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            buckets: vec![0; (64 - SUB_BITS as usize + 1) * SUB as usize],
            count: 0,
            sum_ns: 0,
            sum_squares: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.buckets[index(ns)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.sum_squares += u128::from(ns) * u128::from(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds what another has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, others) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += others;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.sum_squares += other.sum_squares;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// In nanoseconds.
    pub(crate) fn mean(&self) -> u64 {
        let mean = self.sum_ns.checked_div(u128::from(self.count));
        u64::try_from(mean.unwrap_or(0)).unwrap_or(u64::MAX)
    }

    /// The standard deviation, in nanoseconds.
    pub(crate) fn stddev(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        let count = self.count as f64;
        let mean = self.sum_ns as f64 / count;
        (self.sum_squares as f64 / count - mean * mean)
            .max(0.0)
            .sqrt()
    }

    /// In nanoseconds; 0 if there is none.
    pub(crate) fn min(&self) -> u64 {
        self.min_ns.min(self.max_ns)
    }

    /// In nanoseconds.
    pub(crate) fn max(&self) -> u64 {
        self.max_ns
    }

    /// The latency that `percent` of all do not exceed, in nanoseconds.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.count as f64 * percent / 100.0).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                return upper(index as u64).clamp(self.min(), self.max_ns);
            }
        }
        self.max_ns
    }

    /// How many there are of less than 1 µs (0), of less than 2 µs (1), 4 µs (2) and so
    /// on, from the first to the last of which there are any.
    pub(crate) fn octaves(&self) -> Vec<(u32, u64)> {
        let mut octaves = [0; 64];
        for (index, count) in self.buckets.iter().enumerate() {
            let us = upper(index as u64) / 1000;
            octaves[us.checked_ilog2().map_or(0, |power| power as usize + 1)] += count;
        }
        let has_any = |count: &u64| *count > 0;
        let first = octaves.iter().position(has_any).unwrap_or(64);
        let last = octaves.iter().rposition(has_any).unwrap_or(0);
        (0..).zip(octaves).take(last + 1).skip(first).collect()
    }
}

fn index(ns: u64) -> usize {
    let shift = ns.checked_ilog2().unwrap_or(0).saturating_sub(SUB_BITS);
    (u64::from(shift) * SUB + (ns >> shift)) as usize
}

/// The largest value of a bucket.
fn upper(index: u64) -> u64 {
    let shift = (index / SUB).saturating_sub(1);
    let low = (index - shift * SUB) << shift;
    low + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        let mut last = 0;
        for ns in (0..2000).chain([1 << 20, (1 << 40) + 12_345, u64::MAX]) {
            let index = index(ns);
            assert!(index >= last, "{ns}");
            last = index;
            let upper = upper(index as u64);
            assert!(upper >= ns && upper - ns <= ns / 63 + 1, "{ns}: {upper}");
        }
    }

    #[test]
    fn what_is_empty_is_zero() {
        let none = Histogram::new();
        assert_eq!((none.min(), none.mean(), none.max()), (0, 0, 0));
        assert_eq!((none.percentile(99.0), none.stddev()), (0, 0.0));
        assert_eq!(none.octaves(), []);
    }

    #[test]
    fn percentiles_and_moments() {
        let (mut histogram, mut half) = (Histogram::new(), Histogram::new());
        for us in 1..=1000 {
            let into = if us % 2 == 0 {
                &mut histogram
            } else {
                &mut half
            };
            into.record(us * 1000);
        }
        histogram.add(&half);
        assert_eq!(histogram.count(), 1000);
        assert_eq!(histogram.mean(), 500_500);
        assert_eq!((histogram.min(), histogram.max()), (1000, 1_000_000));
        // (1000² - 1) / 12 is the variance of the numbers from 1 to 1000.
        assert!((histogram.stddev() - 288_674.99).abs() < 0.01);
        for (percent, us) in [(50.0, 500), (99.0, 990), (99.99, 1000)] {
            let found = histogram.percentile(percent) / 1000;
            assert!((us..=us + us / 50).contains(&found), "{percent}: {found}");
        }
    }

    #[test]
    fn octaves_go_from_the_first_to_the_last() {
        let mut histogram = Histogram::new();
        for us in [0, 1, 5, 6] {
            histogram.record(us * 1000);
        }
        assert_eq!(histogram.octaves(), [(0, 1), (1, 1), (2, 0), (3, 2)]);
    }
}
