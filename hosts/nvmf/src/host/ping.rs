//! `nvmf ping`.
use std::time::{Duration, Instant};

use serde_json::json;

use super::bench::parse_seconds;
use super::interrupt::Interrupt;
use super::{NamespaceArgs, OutputArgs};

/// Read one block a second, and show how long it takes
#[derive(clap::Args)]
#[command(after_help = "\
Ctrl-C ends it, with a summary.

Examples:
  nvmf ping nvme+tcp://192.0.2.7/NQN
  nvmf ping nvme+tcp://192.0.2.7/NQN --count 100 --interval 0.01")]
pub(crate) struct Args {
    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Stop after so many [default: go on]
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,

    /// Seconds from one to the next
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "1")]
    interval: Duration,

    #[command(flatten)]
    output: OutputArgs,
}

/// A line for each read, and a summary in the end.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::new()?;
    let mut namespace = args.namespace.open()?;
    let peer = namespace.controller().address();
    let mut block = vec![0; namespace.block_size() as usize];
    let bytes = block.len();
    let mut seen = Summary::default();
    let mut due = Instant::now();
    let outcome = loop {
        if args.count.is_some_and(|count| seen.count >= count) || interrupt.came_before(due) {
            break Ok(());
        }
        due += args.interval;
        let begin = Instant::now();
        if let Err(error) = namespace.read(0, &mut block) {
            break Err(error);
        }
        let us = begin.elapsed().as_secs_f64() * 1e6;
        seen.add(us);
        let seq = seen.count;
        args.output.print(
            || format!("{bytes} bytes from {peer}: seq={seq} time={us:.1} µs\n"),
            || json!({"seq": seq, "bytes": bytes, "time_us": us}),
        )?;
    };
    let [avg, mdev] = [seen.mean(), seen.deviation()];
    let Summary {
        count, min, max, ..
    } = seen;
    if count > 0 {
        args.output.print(
            || format!("{count} reads, min/avg/max/mdev = {min:.1}/{avg:.1}/{max:.1}/{mdev:.1} µs\n"),
            || json!({"reads": count, "min_us": min, "avg_us": avg, "max_us": max, "mdev_us": mdev}),
        )?;
    }
    Ok(outcome?)
}

/// What was seen so far, in microseconds.
#[derive(Default)]
struct Summary {
    count: u64,
    min: f64,
    max: f64,
    sum: f64,
    sum_of_squares: f64,
}

impl Summary {
    fn add(&mut self, us: f64) {
        self.min = if self.count == 0 {
            us
        } else {
            self.min.min(us)
        };
        self.max = self.max.max(us);
        self.sum += us;
        self.sum_of_squares += us * us;
        self.count += 1;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The standard deviation, which ping calls mdev.
    fn deviation(&self) -> f64 {
        let variance = self.sum_of_squares / self.count as f64 - self.mean().powi(2);
        variance.max(0.0).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_that_of_ping() {
        let mut seen = Summary::default();
        for us in [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0] {
            seen.add(us);
        }
        assert_eq!((seen.min, seen.max, seen.count), (2.0, 9.0, 8));
        assert_eq!((seen.mean(), seen.deviation()), (5.0, 2.0));
    }
}
