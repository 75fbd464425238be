//! `nvmf ping`.
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use nvmf_tcp::std::host::Url;

use super::ConnectArgs;
use super::bench::{Histogram, parse_seconds};

/// Read one block a second, and show how long it takes
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nvmf ping nvme+tcp://192.0.2.7/NQN
  nvmf ping nvme+tcp://192.0.2.7/NQN --count 100 --interval 0.01")]
pub(crate) struct Args {
    /// The namespace: nvme+tcp://HOST[:PORT]/NQN?nsid=N; without nsid the only one
    url: Url,

    /// Stop after so many [default: go on]
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,

    /// Seconds from one to the next
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "1")]
    interval: Duration,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// A line for each read, and a summary in the end.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut namespace = args.connect.namespace(&args.url)?;
    let peer = namespace.controller().address();
    let mut block = vec![0; namespace.block_size() as usize];
    let mut latencies = Histogram::new();
    let mut out = io::stdout().lock();
    let mut due = Instant::now();
    while args.count.is_none_or(|count| latencies.count() < count) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        due += args.interval;
        let begin = Instant::now();
        namespace.read(0, &mut block)?;
        let latency = begin.elapsed();
        latencies.record(latency);
        let (bytes, seq) = (block.len(), latencies.count());
        let us = latency.as_secs_f64() * 1e6;
        writeln!(out, "{bytes} bytes from {peer}: seq={seq} time={us:.1} µs")?;
        out.flush()?;
    }
    writeln!(
        out,
        "{} reads, mean/p50/p99/max = {:.1}/{:.1}/{:.1}/{:.1} µs",
        latencies.count(),
        latencies.mean() as f64 / 1e3,
        latencies.percentile(50.0) as f64 / 1e3,
        latencies.percentile(99.0) as f64 / 1e3,
        latencies.max() as f64 / 1e3,
    )?;
    Ok(out.flush()?)
}
