//! What `nvmf bench` reports, and what several reports say together.
use anyhow::Context;
use serde_json::Value;

/// One entry of `jobs`. Latencies are in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) iops: f64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p9999: f64,
    pub(crate) max: f64,
    pub(crate) switches_per_io: f64,
    pub(crate) system_calls_per_io: f64,
    /// IOPS of the connections that did least and most.
    pub(crate) spread: Option<(f64, f64)>,
    /// With memory that stays in the cache.
    pub(crate) hot: Option<Reference>,
    /// With as much memory as ours.
    pub(crate) same: Option<Reference>,
}

/// A bare socket in turns with ours.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) iops: f64,
    pub(crate) p50: f64,
    /// Of ours to it, by round.
    pub(crate) ratio: Spread,
}

/// A median, and what it is the median of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Of none it is zero.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => 0.0,
            odd if odd % 2 == 1 => values[middle],
            _ => (values[middle - 1] + values[middle]) / 2.0,
        };
        Self {
            median,
            least: values.first().copied().unwrap_or(0.0),
            most: values.last().copied().unwrap_or(0.0),
        }
    }
}

impl Measured {
    /// Of the IOPS of a bare socket: the harsher of both, in hundredths, as goals are.
    pub(crate) fn share(&self) -> Option<f64> {
        let references = [&self.hot, &self.same].into_iter().flatten();
        let shares = references.map(|reference| reference.ratio.median);
        let share = shares.min_by(f64::total_cmp)?;
        Some((share * 100.0).round() / 100.0)
    }

    /// From an entry of `jobs`.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn of(job: &Value) -> anyhow::Result<Self> {
        let directions = || ["read", "write"].into_iter().map(|name| &job[name]);
        let sum = |name: &str| {
            directions()
                .filter_map(|way| way[name].as_f64())
                .sum::<f64>()
        };
        let worst = |of: &dyn Fn(&Value) -> Option<f64>| {
            directions().filter_map(of).fold(0.0, f64::max) / 1000.0
        };
        let percentile =
            |name: &'static str| move |way: &Value| way["clat_ns"]["percentile"][name].as_f64();
        let count = sum("total_ios");
        let weighted = directions()
            .filter_map(|way| Some(way["clat_ns"]["mean"].as_f64()? * way["total_ios"].as_f64()?))
            .sum::<f64>();
        let number = |value: &Value| value.as_f64();
        let connections = &job["connections"];
        Ok(Self {
            iops: sum("iops"),
            mean: weighted / count.max(1.0) / 1000.0,
            p50: worst(&percentile("50.000000")),
            p99: worst(&percentile("99.000000")),
            p9999: worst(&percentile("99.990000")),
            max: worst(&|way| way["clat_ns"]["max"].as_f64()),
            switches_per_io: number(&job["ctx_per_io"]).context("no ctx_per_io")?,
            system_calls_per_io: number(&job["system_calls_per_io"])
                .context("no system_calls_per_io")?,
            spread: number(&connections["least_iops"]).zip(number(&connections["most_iops"])),
            hot: Reference::of(&job["reference"], "hot"),
            same: Reference::of(&job["other_reference"], "same"),
        })
    }
}

impl Reference {
    fn of(reference: &Value, memory: &str) -> Option<Self> {
        if reference["memory"] != memory {
            return None;
        }
        let rounds = reference["rounds"].as_array()?;
        let ratios = rounds
            .iter()
            .filter_map(|round| Some(round["iops"].as_f64()? / round["reference"].as_f64()?));
        let p50 = ["read", "write"]
            .iter()
            .filter_map(|way| reference[*way]["clat_ns"]["percentile"]["50.000000"].as_f64())
            .fold(0.0, f64::max);
        Some(Self {
            iops: reference["iops"].as_f64()?,
            p50: p50 / 1000.0,
            ratio: Spread::of(ratios),
        })
    }
}

/// IOPS of things measured in turns, and the ratio of each to the first, round by round.
pub(crate) fn against_first(rounds: &[Vec<Measured>]) -> Vec<(Spread, Spread)> {
    let count = rounds.first().map_or(0, Vec::len);
    (0..count)
        .map(|index| {
            let iops = rounds.iter().map(|round| round[index].iops);
            let ratios = rounds
                .iter()
                .map(|round| round[index].iops / round[0].iops.max(1e-9));
            (Spread::of(iops), Spread::of(ratios))
        })
        .collect()
}
