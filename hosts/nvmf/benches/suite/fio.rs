//! A file through the target, beside the same file by fio's io_uring engine.
use std::fmt::Write;
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use crate::measured::Spread;
use crate::micro::cargo_bench;
use crate::page::{Table, iops, ratio};
use crate::process::{bench, output};
use crate::{CACHED, DIRECT, Suite};

/// Of fio's IOPS.
const GOAL: f64 = 0.9;

/// Ours and fio's, in turns.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    let mut text = String::new();
    let version = Command::new("fio").arg("--version").output();
    let Ok(version) =
        version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    else {
        return Ok("Skipped: there is no fio on this machine.\n".to_owned());
    };
    let mut table = Table::new([
        "command, QD 32",
        "file",
        "IOPS",
        "fio's IOPS",
        "ratio",
        "goal",
    ]);
    let files = [
        (CACHED, suite.cached(), false),
        (DIRECT, suite.direct(), true),
    ];
    for (name, option, direct) in &files {
        for rw in ["randread", "randwrite"] {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..suite.rounds() {
                let words = format!("{option} --rw {rw} --bs 4k --iodepth 32 --hipri");
                let measured = bench(&words, 2 * suite.turn(), 1)?;
                ours.push(measured.first().context("no report")?.iops);
                theirs.push(fio(suite, name, rw, *direct)?);
            }
            let ratios = Spread::of(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs));
            table.row(&[
                format!("4 KiB {}", rw.trim_start_matches("rand")),
                (*name).to_owned(),
                iops(Spread::of(ours).median),
                iops(Spread::of(theirs).median),
                ratio(ratios),
                format!(
                    "{GOAL:.2}: {}",
                    if ratios.median >= GOAL {
                        "holds"
                    } else {
                        "**no**"
                    }
                ),
            ]);
        }
    }
    write!(
        text,
        "`nvmf bench --file FILE,direct=off (cached) or on --rw RW --bs 4k --iodepth 32 --hipri`, over a connection, and {version} with\n\
         `--ioengine=io_uring --direct=0 or 1 --rw=RW --bs=4k --iodepth=32` on the same file of 64 MiB, without one; both in turns.\n\n{table}"
    )?;
    if !suite.quick {
        text += "\n### Storage alone\n\n\
                 `cargo bench -p nvmf --bench block -- FILE,direct=off --fio`, and `FILE,direct=on FILE,direct=on,fixed=off --fio\n\
                 --fio-option=--fixedbufs=1`: a worker's loop around the file, without a connection, in turns with fio. *Fixed* is\n\
                 with memory that is registered with the io_uring.\n\n";
        let (cached, direct) = (suite.file(CACHED), suite.file(DIRECT));
        let (cached, direct) = (cached.display(), direct.display());
        for words in [
            format!("{cached},direct=off --fio"),
            format!(
                "{direct},direct=on {direct},direct=on,fixed=off --fio --fio-option=--fixedbufs=1"
            ),
        ] {
            let words = format!("{words} --seconds 0.5 --rounds 5");
            let args: Vec<&str> = words.split(' ').collect();
            let printed = cargo_bench("nvmf", "block", &args)?;
            let directory = suite.scratch.path().display().to_string();
            writeln!(text, "{}", printed.replace(&format!("{directory}/"), ""))?;
        }
    }
    Ok(text)
}

/// fio's IOPS.
fn fio(suite: &Suite, name: &str, rw: &str, direct: bool) -> anyhow::Result<f64> {
    let mut command = Command::new("fio");
    command
        .args([
            "--name=suite",
            "--ioengine=io_uring",
            "--bs=4k",
            "--iodepth=32",
        ])
        .args([
            "--size=64M",
            "--time_based",
            "--output-format=json",
            "--thread",
        ])
        .arg(format!("--filename={}", suite.file(name).display()))
        .arg(format!("--rw={rw}"))
        .arg(format!("--direct={}", u8::from(direct)))
        .arg(format!("--runtime={}ms", (2 * suite.turn()).as_millis()));
    let printed = suite
        .cores
        .on(&suite.cores.host, || output(&mut command))??;
    let report: Value = serde_json::from_slice(&printed)?;
    let job = &report["jobs"][0];
    let way = &job[rw.trim_start_matches("rand")];
    way["iops"].as_f64().context("fio has printed no IOPS")
}
