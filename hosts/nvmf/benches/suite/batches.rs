//! Batches: of submissions, polled and asleep, and of completions.
use std::fmt::Write;

use crate::Suite;
use crate::measured::Measured;
use crate::page::{Table, iops, ratio, us};
use crate::process::bench;

const COLUMNS: [&str; 7] = [
    "QD, batch",
    "IOPS",
    "ratio to bare",
    "mean µs",
    "p99.99 µs",
    "system calls per I/O",
    "context switches per I/O",
];

/// One command at a time and many, polled and asleep.
pub(crate) fn submissions(suite: &Suite) -> anyhow::Result<String> {
    let mut table = Table::new(COLUMNS);
    for (how, option) in [("polled", "--hipri"), ("asleep", "")] {
        for (iodepth, batch) in [(1, 1), (32, 8)] {
            let words = format!(
                "--reference --rw randread --bs 4k --iodepth {iodepth} --iodepth-batch {batch} {option}"
            );
            let measured = bench(&words, 2 * suite.turn(), suite.rounds())?;
            row(&mut table, &format!("{iodepth}/{batch}, {how}"), &measured);
        }
    }
    let mut text = String::new();
    write!(
        text,
        "`nvmf bench --reference --rw randread --bs 4k --iodepth QD --iodepth-batch BATCH [--hipri]`: reads of 64 MiB of RAM.\n\
         Calls and switches are those of the host's thread; one that polls makes calls that find nothing.\n\n{table}"
    )?;
    Ok(text)
}

/// More completions at a time, with small commands.
pub(crate) fn completions(suite: &Suite) -> anyhow::Result<String> {
    let mut table = Table::new(COLUMNS);
    for batch in suite.some(&[1, 4, 16, 64]) {
        let words = format!(
            "--reference --rw randread --bs 512 --iodepth 128 --iodepth-batch {batch} --hipri"
        );
        let measured = bench(&words, suite.turn(), suite.rounds())?;
        row(&mut table, &format!("128/{batch}"), &measured);
    }
    let mut text = String::new();
    write!(
        text,
        "`nvmf bench --reference --rw randread --bs 512 --iodepth 128 --iodepth-batch BATCH --hipri`: so many completions are\n\
         awaited, and taken, before so many commands are submitted in their place.\n\n{table}"
    )?;
    Ok(text)
}

fn row(table: &mut Table, name: &str, measured: &[Measured]) {
    for measured in measured {
        table.row(&[
            name.to_owned(),
            iops(measured.iops),
            measured
                .hot
                .as_ref()
                .map_or_else(String::new, |hot| ratio(hot.ratio)),
            us(measured.mean),
            us(measured.p9999),
            format!("{:.2}", measured.system_calls_per_io),
            format!("{:.4}", measured.switches_per_io),
        ]);
    }
}
