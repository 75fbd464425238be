//! Data inside a command's capsule, or asked for.
use std::fmt::Write;

use crate::Suite;
use crate::measured::against_first;
use crate::page::{Table, bytes, iops, ratio};
use crate::process::{Target, bench_on};

const SIZES: [u64; 7] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768];

const PATTERNS: [(&str, &str); 2] = [
    ("write", "--rw randwrite"),
    ("30/70 mix", "--rw randrw --rwmixread 30"),
];

/// In-capsule data of 4 KiB and of 16 KiB, in turns.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    let targets = ["4K", "16K"]
        .iter()
        .map(|inline| {
            let words = format!("--ram 64M --workers 1 --poll-us 1000 --inline-data {inline}");
            Target::start(&suite.cores, &suite.cores.target, &words)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut table = Table::new([
        "command, QD 32",
        "IOPS, 4 KiB inline",
        "IOPS, 16 KiB inline",
        "ratio",
    ]);
    for (name, pattern) in PATTERNS {
        for bs in suite.some(&SIZES) {
            let mut rounds = Vec::new();
            for _ in 0..suite.rounds() {
                let mut round = Vec::new();
                for target in &targets {
                    let words = format!("{} {pattern} --bs {bs} --iodepth 32 --hipri", target.url);
                    round.extend(bench_on(&suite.cores, &words, suite.turn())?);
                }
                rounds.push(round);
            }
            let [(small, _), (large, share)] = against_first(&rounds)[..] else {
                anyhow::bail!("two targets, and not two figures");
            };
            table.row(&[
                format!("{} {name}", bytes(*bs)),
                iops(small.median),
                iops(large.median),
                ratio(share),
            ]);
        }
    }
    let mut text = String::new();
    write!(
        text,
        "`nvmf target --ram 64M --workers 1 --poll-us 1000 --inline-data 4K` and `16K`, and `nvmf bench URL --rw randwrite` or\n\
         `--rw randrw --rwmixread 30`, `--bs BS --iodepth 32 --hipri`. What fits goes inside the capsule; what does not, is\n\
         asked for by R2T, which takes another round trip.\n\n{table}"
    )?;
    Ok(text)
}
