//! `nvmf bench`.
mod histogram;

use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use nvmf::block::spec::parse_size;
use nvmf_core::host::command;
use nvmf_core::wire::sqe::IoOpcode;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Namespace, Payload, Url};

pub(crate) use self::histogram::Histogram;
use super::{ConnectArgs, Output};

/// Measure reads and writes of a namespace
#[derive(clap::Args)]
#[command(after_help = "\
Writes DESTROY what the namespace holds.

Examples:
  nvmf bench nvme+tcp://192.0.2.7/NQN --rw randread --bs 4k --iodepth 32
  nvmf bench nvme+tcp://192.0.2.7/NQN --rw write --bs 128k --ddgst --output json")]
pub(crate) struct Args {
    /// The namespace: nvme+tcp://HOST[:PORT]/NQN?nsid=N; without nsid the only one
    url: Url,

    /// What to do
    #[arg(long, value_enum, default_value_t = Rw::Randread)]
    rw: Rw,

    /// Bytes of each command, a whole number of blocks
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4k")]
    bs: u64,

    /// Commands under way at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    iodepth: usize,

    /// Seconds to run
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "5")]
    runtime: Duration,

    /// Of randrw, how many percent are reads
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmixread: u8,

    /// Poll for completions instead of sleeping: lower latency, for a core's whole time
    #[arg(long)]
    hipri: bool,

    /// What to print
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Patterns, by fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rw {
    /// Reads, in order
    Read,
    /// Writes, in order
    Write,
    /// Reads, anywhere
    Randread,
    /// Writes, anywhere
    Randwrite,
    /// Reads and writes, anywhere
    Randrw,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) rw: Rw,
    /// Bytes of a command.
    pub(crate) bs: u64,
    pub(crate) iodepth: usize,
    pub(crate) runtime: Duration,
    pub(crate) rwmixread: u8,
    pub(crate) hipri: bool,
}

/// What was measured.
pub(crate) struct Report {
    pub(crate) job: Job,
    elapsed: Duration,
    reads: Histogram,
    writes: Histogram,
}

/// Runs, and prints the report.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut namespace = args.connect.namespace(&args.url)?;
    let job = Job {
        rw: args.rw,
        bs: args.bs,
        iodepth: args.iodepth,
        runtime: args.runtime,
        rwmixread: args.rwmixread,
        hipri: args.hipri,
    };
    let report = measure(&mut namespace, &job)?;
    let mut out = io::stdout().lock();
    match args.output {
        Output::Text => writeln!(out, "{HEADING}\n{report}")?,
        Output::Json => writeln!(out, "{}", report.json())?,
    }
    Ok(out.flush()?)
}

/// Keeps `job.iodepth` commands under way for `job.runtime`.
pub(crate) fn measure(namespace: &mut Namespace, job: &Job) -> anyhow::Result<Report> {
    let mut load = Load::new(namespace, job)?;
    let mut buffers: Vec<Buffer> = (0..job.iodepth as u64)
        .map(|seed| noise(seed, job.bs as usize))
        .collect();
    let mut started = vec![Instant::now(); job.iodepth];
    let mut writes = vec![false; job.iodepth];
    let mut idle: Vec<usize> = (0..job.iodepth).collect();
    let mut report = Report {
        job: *job,
        elapsed: Duration::ZERO,
        reads: Histogram::new(),
        writes: Histogram::new(),
    };
    let mut completions = Vec::new();
    let nsid = namespace.nsid();
    let queue = namespace.queue();
    let begin = Instant::now();
    let mut last = begin;
    loop {
        let running = last - begin < job.runtime;
        if !running && queue.outstanding() == 0 {
            break;
        }
        if running {
            while let (Some(index), Some(buffer)) = (idle.pop(), buffers.pop()) {
                let (write, slba) = load.next();
                let (opcode, payload) = match write {
                    true => (IoOpcode::Write, Payload::Write(buffer)),
                    false => (IoOpcode::Read, Payload::Read(buffer)),
                };
                let sqe = command::blocks(opcode, nsid, slba, load.nlb);
                (started[index], writes[index]) = (last, write);
                queue
                    .enqueue(&sqe, payload, index as u64)
                    .map_err(|full| anyhow!("{full}"))?;
            }
            queue.flush();
        }
        queue.poll(&mut completions)?;
        if completions.is_empty() {
            if last - begin > job.runtime + Duration::from_secs(30) {
                bail!("the target does not answer any more");
            }
            if !job.hipri {
                queue.wait(Duration::from_secs(1))?;
            }
        }
        last = Instant::now();
        for done in completions.drain(..) {
            let index = done.tag as usize;
            let status = done.cqe.status();
            if !status.is_success() {
                bail!(
                    "{} failed: {status}",
                    if writes[index] { "Write" } else { "Read" }
                );
            }
            let histogram = match writes[index] {
                true => &mut report.writes,
                false => &mut report.reads,
            };
            histogram.record(last - started[index]);
            buffers.extend(done.buffer);
            idle.push(index);
        }
    }
    report.elapsed = last - begin;
    Ok(report)
}

/// Where the next command goes.
struct Load {
    rw: Rw,
    rwmixread: u8,
    /// Blocks of a command.
    nlb: u32,
    /// Places for a command.
    places: u64,
    at: u64,
    random: u64,
}

impl Load {
    fn new(namespace: &mut Namespace, job: &Job) -> anyhow::Result<Self> {
        let block_size = u64::from(namespace.block_size());
        let most = u64::from(namespace.controller().capabilities().transfer);
        if job.bs == 0 || !job.bs.is_multiple_of(block_size) {
            bail!("--bs must be a whole number of blocks, which have {block_size} bytes");
        }
        if job.bs > most.min(block_size << 16) {
            bail!("--bs is more than a command may move here, {most} bytes");
        }
        let depth = namespace.queue().depth();
        if !(1..=depth).contains(&job.iodepth) {
            bail!("--iodepth must be 1 to {depth} here");
        }
        let nlb = job.bs / block_size;
        let places = namespace.blocks() / nlb;
        if places == 0 {
            bail!("the namespace is smaller than --bs");
        }
        Ok(Self {
            rw: job.rw,
            rwmixread: job.rwmixread,
            nlb: u32::try_from(nlb)?,
            places,
            at: 0,
            random: 0x9E37_79B9_7F4A_7C15,
        })
    }

    /// Whether to write, and the first block.
    fn next(&mut self) -> (bool, u64) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let place = match self.rw {
            Rw::Read | Rw::Write => self.at,
            _ => ((u128::from(self.random) * u128::from(self.places)) >> 64) as u64,
        };
        self.at = (self.at + 1) % self.places;
        let write = match self.rw {
            Rw::Read | Rw::Randread => false,
            Rw::Write | Rw::Randwrite => true,
            Rw::Randrw => self.random % 100 >= u64::from(self.rwmixread),
        };
        (write, place * u64::from(self.nlb))
    }
}

/// Bytes that do not compress, and differ from seed to seed.
pub(crate) fn noise(seed: u64, len: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(len);
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for word in buffer.as_mut().chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    buffer
}

/// What stands above lines of [`Report`].
pub(crate) const HEADING: &str = "                              IOPS      MB/s |  mean µs       p50       p99    p99.99       max";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut newline = "";
        for (name, histogram) in self.directions() {
            let name = format!("{name} {} qd {}", size(self.job.bs), self.job.iodepth);
            let us = |ns: u64| ns as f64 / 1000.0;
            write!(
                f,
                "{newline}{name:24} {:9.0} {:9.1} | {:8.1} {:9.1} {:9.1} {:9.1} {:9.1}",
                self.iops(histogram),
                self.iops(histogram) * self.job.bs as f64 / 1e6,
                us(histogram.mean()),
                us(histogram.percentile(50.0)),
                us(histogram.percentile(99.0)),
                us(histogram.percentile(99.99)),
                us(histogram.max()),
            )?;
            newline = "\n";
        }
        Ok(())
    }
}

impl Report {
    /// Those that there were.
    fn directions(&self) -> Vec<(String, &Histogram)> {
        let name = self.job.rw.to_possible_value();
        let name = name.map_or_else(String::new, |value| value.get_name().to_owned());
        match self.job.rw {
            Rw::Read | Rw::Randread => vec![(name, &self.reads)],
            Rw::Write | Rw::Randwrite => vec![(name, &self.writes)],
            Rw::Randrw => vec![
                (format!("{name} read"), &self.reads),
                (format!("{name} write"), &self.writes),
            ],
        }
    }

    fn iops(&self, histogram: &Histogram) -> f64 {
        histogram.count() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// In fio's shape, as far as it goes.
    fn json(&self) -> String {
        let direction = |histogram: &Histogram| {
            format!(
                "{{\"total_ios\":{},\"io_bytes\":{},\"runtime\":{},\"iops\":{:.3},\
                 \"bw_bytes\":{:.0},\"clat_ns\":{{\"max\":{},\"mean\":{},\"percentile\":{{\
                 \"50.000000\":{},\"99.000000\":{},\"99.990000\":{}}}}}}}",
                histogram.count(),
                histogram.count() * self.job.bs,
                self.elapsed.as_millis(),
                self.iops(histogram),
                self.iops(histogram) * self.job.bs as f64,
                histogram.max(),
                histogram.mean(),
                histogram.percentile(50.0),
                histogram.percentile(99.0),
                histogram.percentile(99.99),
            )
        };
        format!(
            "{{\"jobs\":[{{\"jobname\":\"nvmf\",\"error\":0,\"job options\":{{\"rw\":{},\
             \"bs\":\"{}\",\"iodepth\":\"{}\"}},\"read\":{},\"write\":{}}}]}}",
            super::json::string(
                &self
                    .job
                    .rw
                    .to_possible_value()
                    .map_or_else(String::new, |value| value.get_name().to_owned())
            ),
            self.job.bs,
            self.job.iodepth,
            direction(&self.reads),
            direction(&self.writes),
        )
    }
}

/// With the largest unit that leaves a whole number.
fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// A runtime, of which fractions may be given.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|runtime| {
            (Duration::from_millis(1)..Duration::from_secs(1 << 30)).contains(runtime)
        })
        .ok_or_else(|| "write a number of seconds, such as 10 or 0.5".to_owned())
}
