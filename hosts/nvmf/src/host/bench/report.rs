//! What was measured, for people and in fio's shape.
use std::fmt;

use nvmf::block::spec::Size;
use serde_json::{Map, Value, json};

use super::histogram::Histogram;
use super::tally::Tally;
use super::workload::{Direction, Job};

/// What stands above [`Report::rows`].
pub(crate) const HEADING: &str = "                              IOPS      MB/s |  mean µs       p50       p99     p99.9    p99.99       max";

/// Percentiles that fio shows.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// Characters of the longest bar.
const BAR: f64 = 50.0;

/// What was measured.
pub(crate) struct Report {
    /// Which of several namespaces it was.
    pub(crate) name: Option<String>,
    pub(crate) job: Job,
    pub(crate) numjobs: u16,
    /// Header and data digests were in use.
    pub(crate) digests: (bool, bool),
    pub(crate) tally: Tally,
    /// The first is what counts.
    pub(crate) references: Vec<Comparison>,
    /// Commands that read back what was written, and found it.
    pub(crate) read_back: Option<u64>,
}

/// The same job over a bare socket, in turn.
pub(crate) struct Comparison {
    /// What memory the peer used.
    pub(crate) name: &'static str,
    pub(crate) tally: Tally,
    /// IOPS of ours and of the bare socket, round by round.
    pub(crate) rounds: Vec<(f64, f64)>,
}

impl Comparison {
    /// IOPS of the bare socket: the median of the rounds.
    fn iops(&self) -> f64 {
        median(self.rounds.iter().map(|(_, bare)| *bare))
    }

    /// Of ours to those of the bare socket: the median of the rounds.
    fn ratio(&self) -> f64 {
        median(self.ratios())
    }

    fn ratios(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|(ours, bare)| ours / bare.max(1e-9))
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

impl Report {
    /// A line for each direction, with the columns of [`HEADING`].
    pub(crate) fn rows(&self) -> String {
        let mut rows = Vec::new();
        for (name, direction) in self.directions() {
            let job = &self.job;
            let name = format!("{name} {} qd {}", Size(job.bs), job.iodepth);
            rows.push(row(&name, job.bs, &self.tally, direction));
        }
        rows.join("\n")
    }

    /// Those that there were.
    fn directions(&self) -> Vec<(String, Direction)> {
        let rw = self.job.rw;
        match rw.direction() {
            Some(direction) => vec![(rw.to_string(), direction)],
            None => [Direction::Read, Direction::Write]
                .map(|direction| (format!("{rw} {}", direction.name()), direction))
                .to_vec(),
        }
    }

    /// An entry of fio's `jobs`.
    pub(crate) fn entry(&self) -> Value {
        let job = &self.job;
        let (user, system) = self.cpu();
        let switches = self.tally.usage.switches;
        let mut entry = Map::new();
        let mut put = |name: &str, value: Value| entry.insert(name.to_owned(), value);
        put("jobname", json!(self.name.as_deref().unwrap_or("nvmf")));
        put("groupid", json!(0));
        put("error", json!(0));
        put("elapsed", json!(self.tally.elapsed.as_secs_f64().ceil()));
        put("job options", self.options());
        for direction in Direction::ALL {
            let value = direction_json(&self.tally, direction, job.bs);
            put(direction.name(), value);
        }
        put("job_runtime", json!(self.tally.elapsed.as_millis() as u64));
        put("usr_cpu", json!(user));
        put("sys_cpu", json!(system));
        put("ctx", json!(switches));
        put("ctx_per_io", json!(self.tally.per_command(switches)));
        let calls = self.tally.system_calls;
        put("system_calls", json!(calls));
        put("system_calls_per_io", json!(self.tally.per_command(calls)));
        if let Some(commands) = self.read_back {
            put("verify", json!({"total_ios": commands, "errors": 0}));
        }
        if self.tally.shares.len() > 1 {
            let (least, most) = self.spread();
            let connections = self.tally.shares.len();
            put(
                "connections",
                json!({"count": connections, "least_iops": least, "most_iops": most}),
            );
        }
        if let Some(comparison) = self.references.first() {
            put("reference", self.reference_json(comparison));
            put("ratio", json!(comparison.ratio()));
        }
        if let Some(comparison) = self.references.get(1) {
            put("other_reference", self.reference_json(comparison));
            put("other_ratio", json!(comparison.ratio()));
        }
        Value::Object(entry)
    }

    fn options(&self) -> Value {
        let job = &self.job;
        let mut options = Map::new();
        let mut put = |name: &str, value: String| options.insert(name.to_owned(), json!(value));
        put("rw", job.rw.to_string());
        put("bs", job.bs.to_string());
        put("iodepth", job.iodepth.to_string());
        if let Some(batch) = job.batch {
            put("iodepth_batch", batch.to_string());
        }
        put("numjobs", self.numjobs.to_string());
        put("rwmixread", job.rwmixread.to_string());
        for (name, set) in [
            ("hipri", job.hipri),
            ("hdgst", self.digests.0),
            ("ddgst", self.digests.1),
        ] {
            put(name, u8::from(set).to_string());
        }
        Value::Object(options)
    }

    fn reference_json(&self, comparison: &Comparison) -> Value {
        let iops = comparison.iops();
        let rounds = comparison.rounds.iter();
        json!({
            "memory": comparison.name,
            "iops": iops,
            "bw_bytes": (iops * self.job.bs as f64).round(),
            "rounds": rounds
                .map(|(ours, bare)| json!({"iops": ours, "reference": bare}))
                .collect::<Vec<_>>(),
            "read": direction_json(&comparison.tally, Direction::Read, self.job.bs),
            "write": direction_json(&comparison.tally, Direction::Write, self.job.bs),
        })
    }

    /// IOPS of the connections that did least and most.
    fn spread(&self) -> (f64, f64) {
        let shares = &self.tally.shares;
        let least = shares.iter().min().copied().unwrap_or(0);
        let most = shares.iter().max().copied().unwrap_or(0);
        (self.tally.per_second(least), self.tally.per_second(most))
    }

    /// Percent of a processor in user mode, and in the kernel; of several threads, the mean.
    fn cpu(&self) -> (f64, f64) {
        let (user, system) = self.tally.usage.cpu();
        let all = self.tally.elapsed.as_secs_f64() * f64::from(self.numjobs);
        let percent = |time: std::time::Duration| time.as_secs_f64() / all.max(1e-9) * 100.0;
        (percent(user), percent(system))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            writeln!(f, "{name}")?;
        }
        writeln!(f, "{HEADING}\n{}", self.rows())?;
        for comparison in &self.references {
            for (name, direction) in self.directions() {
                let name = format!("bare, {} {name}", comparison.name);
                writeln!(
                    f,
                    "{}",
                    row(&name, self.job.bs, &comparison.tally, direction)
                )?;
            }
        }
        writeln!(f)?;
        for comparison in &self.references {
            let low = comparison.ratios().fold(f64::INFINITY, f64::min);
            let high = comparison.ratios().fold(0.0, f64::max);
            writeln!(
                f,
                "ratio     {:.2} of the {:.0} IOPS of a bare socket ({}); {low:.2} to {high:.2} in {} rounds",
                comparison.ratio(),
                comparison.iops(),
                comparison.name,
                comparison.rounds.len(),
            )?;
        }
        let (user, system) = self.cpu();
        let (calls, switches) = (self.tally.system_calls, self.tally.usage.switches);
        writeln!(
            f,
            "per I/O   {:.3} system calls, {:.4} context switches",
            self.tally.per_command(calls),
            self.tally.per_command(switches),
        )?;
        write!(f, "CPU       {user:.0} % user, {system:.0} % system")?;
        if self.numjobs > 1 {
            write!(f, " of each of {} jobs", self.numjobs)?;
        }
        if self.tally.shares.len() > 1 {
            let (least, most) = self.spread();
            let count = self.tally.shares.len();
            write!(
                f,
                "\nspread    {least:.0} to {most:.0} IOPS of each of {count} connections"
            )?;
        }
        if let Some(commands) = self.read_back {
            write!(
                f,
                "\nverify    {commands} commands read back what was written: the same"
            )?;
        }
        for (name, direction) in self.directions() {
            let latencies = self.tally.latencies(direction);
            if latencies.count() > 0 {
                write!(f, "\n\n{name}, µs\n{}", bars(latencies))?;
            }
        }
        Ok(())
    }
}

fn row(name: &str, bs: u64, tally: &Tally, direction: Direction) -> String {
    let latencies = tally.latencies(direction);
    let iops = tally.per_second(latencies.count());
    let us = |ns: u64| ns as f64 / 1000.0;
    format!(
        "{name:24} {iops:9.0} {:9.1} | {:8.1} {:9.1} {:9.1} {:9.1} {:9.1} {:9.1}",
        iops * bs as f64 / 1e6,
        us(latencies.mean()),
        us(latencies.percentile(50.0)),
        us(latencies.percentile(99.0)),
        us(latencies.percentile(99.9)),
        us(latencies.percentile(99.99)),
        us(latencies.max()),
    )
}

/// A line for each power of two of microseconds.
fn bars(latencies: &Histogram) -> String {
    let octaves = latencies.octaves();
    let most = octaves.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let mut lines = Vec::new();
    for (power, count) in octaves {
        let bar = (count as f64 / most as f64 * BAR).ceil() as usize;
        let line = format!(
            "{:>10} to {:<9} {:8.4} %  {}",
            (1_u64 << power) >> 1,
            1_u64 << power,
            count as f64 / latencies.count() as f64 * 100.0,
            "#".repeat(bar),
        );
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}

fn direction_json(tally: &Tally, direction: Direction, bs: u64) -> Value {
    let latencies = tally.latencies(direction);
    let iops = tally.per_second(latencies.count());
    let bytes = latencies.count() * bs;
    let moments = json!({
        "min": latencies.min(),
        "max": latencies.max(),
        "mean": latencies.mean() as f64,
        "stddev": latencies.stddev(),
        "N": latencies.count(),
    });
    let mut completion = moments.clone();
    completion["percentile"] = PERCENTILES
        .iter()
        .map(|percent| {
            (
                format!("{percent:.6}"),
                json!(latencies.percentile(*percent)),
            )
        })
        .collect::<Map<_, _>>()
        .into();
    json!({
        "io_bytes": bytes,
        "io_kbytes": bytes >> 10,
        "bw_bytes": (iops * bs as f64).round() as u64,
        "bw": (iops * bs as f64 / 1024.0).round() as u64,
        "iops": iops,
        "runtime": tally.elapsed.as_millis() as u64,
        "total_ios": latencies.count(),
        "short_ios": 0,
        "drop_ios": 0,
        "clat_ns": completion,
        "lat_ns": moments,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::workload::Rw;
    use super::*;

    fn report(rw: Rw) -> Report {
        let mut tally = Tally::new();
        tally.elapsed = Duration::from_secs(2);
        for us in 1..=100 {
            tally.record(Direction::Read, Duration::from_micros(us));
        }
        tally.system_calls = 50;
        tally.shares = vec![40, 60];
        Report {
            name: None,
            job: Job {
                rw,
                bs: 4096,
                iodepth: 32,
                batch: Some(8),
                rwmixread: 50,
                hipri: true,
            },
            numjobs: 1,
            digests: (false, true),
            references: vec![Comparison {
                name: "hot",
                tally: tally.clone(),
                rounds: vec![(50.0, 100.0), (90.0, 100.0), (60.0, 80.0)],
            }],
            tally,
            read_back: Some(7),
        }
    }

    #[test]
    fn medians_bear_what_is_odd() {
        assert_eq!(median([].into_iter()), 0.0);
        assert_eq!(median([1000.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 3.0, 1000.0].into_iter()), 3.5);
    }

    #[test]
    fn people_see_it_all() {
        let text = report(Rw::Randread).to_string();
        for part in [
            "randread 4 KiB qd 32            50       0.2 |     50.5      50.2      99.3     100.0     100.0     100.0\n",
            "\nbare, hot randread              50 ",
            "\nratio     0.75 of the 100 IOPS of a bare socket (hot); 0.50 to 0.90 in 3 rounds\n",
            "\nspread    20 to 30 IOPS of each of 2 connections\n",
            "\nper I/O   0.500 system calls, 0.0000 context switches\n",
            "\nverify    7 commands read back what was written: the same\n",
            "\nrandread, µs\n         1 to 2           1.0000 %  ##\n",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        assert!(HEADING.lines().all(|line| line.chars().count() <= 105));
    }

    #[test]
    fn programs_see_what_fio_shows() {
        let job = report(Rw::Mixed).entry();
        assert_eq!(job["job options"]["rw"], "rw");
        assert_eq!(job["job options"]["iodepth_batch"], "8");
        assert_eq!(job["job options"]["ddgst"], "1");
        assert_eq!(job["read"]["iops"], 50.0);
        assert_eq!(job["read"]["bw_bytes"], 204_800);
        assert_eq!(job["read"]["total_ios"], 100);
        assert_eq!(job["read"]["clat_ns"]["min"], 1000);
        assert_eq!(job["read"]["clat_ns"]["max"], 100_000);
        let percentiles = &job["read"]["clat_ns"]["percentile"];
        assert_eq!(percentiles["99.990000"], 100_000);
        assert!(percentiles["50.000000"].as_u64().unwrap() / 1000 == 50);
        assert_eq!(job["write"]["total_ios"], 0);
        assert_eq!(job["reference"]["iops"], 100.0);
        assert_eq!(job["reference"]["memory"], "hot");
        assert_eq!(job["ratio"], 0.75);
        assert_eq!(job["connections"]["least_iops"], 20.0);
        assert_eq!(job["connections"]["most_iops"], 30.0);
        assert_eq!(job["system_calls_per_io"], 0.5);
        assert_eq!(job["verify"]["total_ios"], 7);
    }
}
