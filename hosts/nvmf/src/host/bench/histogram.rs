//! Latencies, counted in buckets that are about 1.6 % wide.
use std::time::Duration;

/// Buckets for each power of two.
const SUB: u64 = 64;
const SUB_BITS: u32 = SUB.trailing_zeros();

/// How often each latency was seen.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: u128,
    max_ns: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            buckets: vec![0; (64 - SUB_BITS as usize + 1) * SUB as usize],
            count: 0,
            sum_ns: 0,
            max_ns: 0,
        }
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[index(ns)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// In nanoseconds.
    pub(crate) fn mean(&self) -> u64 {
        let mean = self.sum_ns.checked_div(u128::from(self.count));
        u64::try_from(mean.unwrap_or(0)).unwrap_or(u64::MAX)
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
                return upper(index as u64).min(self.max_ns);
            }
        }
        self.max_ns
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
    fn percentiles_and_mean() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.mean(), histogram.percentile(99.0)), (0, 0));
        for us in 1..=1000 {
            histogram.record(Duration::from_micros(us));
        }
        assert_eq!(histogram.mean(), 500_500);
        assert_eq!(histogram.max(), 1_000_000);
        for (percent, us) in [(50.0, 500), (99.0, 990), (99.99, 1000)] {
            let found = histogram.percentile(percent) / 1000;
            assert!((us..=us + us / 50).contains(&found), "{percent}: {found}");
        }
    }
}
