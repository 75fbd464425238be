//! Many jobs, over one controller and over as many.
use std::fmt::Write;

use anyhow::Context;

use crate::Suite;
use crate::measured::{Measured, Spread, against_first};
use crate::page::{Table, iops, ratio};
use crate::process::{Target, bench};

const PATTERNS: [&str; 4] = ["read", "randread", "write", "randwrite"];

/// Jobs.
const JOBS: u32 = 32;

/// Workers bound to cores, free, and with I/O queues where they were accepted, in turns.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    let targets = ["", "--no-pin", "--no-place"]
        .iter()
        .map(|how| Target::start(&suite.cores, &suite.cores.all, &format!("--ram 64M {how}")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut table = Table::new([
        "pattern",
        "controllers",
        "IOPS, bound",
        "spread of the jobs",
        "IOPS, free",
        "spread of the jobs",
        "free / bound",
        "IOPS, not placed",
        "spread of the jobs",
        "not placed / bound",
    ]);
    for rw in PATTERNS {
        for controllers in suite.some(&[1, 8, JOBS]) {
            let mut rounds: Vec<Vec<Measured>> = Vec::new();
            for _ in 0..suite.rounds() {
                let mut round = Vec::new();
                for target in &targets {
                    let words = format!(
                        "{} --rw {rw} --bs 4k --iodepth 8 --numjobs {JOBS} --controllers {controllers}",
                        target.url
                    );
                    round.extend(bench(&words, suite.turn(), 1)?);
                }
                rounds.push(round);
            }
            let [(bound, _), (free, share), (left, of_left)] = against_first(&rounds)[..] else {
                anyhow::bail!("three targets, and not three figures");
            };
            let spread = |index: usize| {
                let spreads = rounds.iter().filter_map(move |round| round[index].spread);
                let factor = Spread::of(spreads.map(|(least, most)| most / least.max(1e-9)));
                format!("{:.2}", factor.median)
            };
            table.row(&[
                rw.to_owned(),
                controllers.to_string(),
                iops(bound.median),
                spread(0),
                iops(free.median),
                spread(1),
                ratio(share),
                iops(left.median),
                spread(2),
                ratio(of_left),
            ]);
        }
    }
    let cores = suite.cores.all.len();
    let mut text = String::new();
    write!(
        text,
        "`nvmf target --ram 64M [--no-pin | --no-place]` with a worker for each of {cores} cores, and on the same cores `nvmf bench URL --rw RW\n\
         --bs 4k --iodepth 8 --numjobs {JOBS} --controllers C`: {JOBS} threads, each with a connection, asleep when there is nothing to\n\
         do. The *spread* is IOPS of the job that did most, by those of the one that did least. *Not placed* is before placement: each\n\
         I/O queue stays with the worker that accepted it.\n\n{table}"
    )
    .context("the text")?;
    Ok(text)
}
