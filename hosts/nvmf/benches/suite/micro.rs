//! The parts that need no socket, as their own benchmarks print them.
use std::env;
use std::fmt::Write;
use std::fs;
use std::process::Command;

use anyhow::Context;

use crate::Suite;
use crate::process::output;

const BENCHES: [(&str, &str, &str); 2] = [
    ("Machines without sockets", "nvmf-core", "machine"),
    ("CRC32C", "nvmf-tcp", "crc32c"),
];

/// What another benchmark prints, as a block of text.
///
/// # Errors
/// It failed.
pub(crate) fn cargo_bench(package: &str, bench: &str, args: &[&str]) -> anyhow::Result<String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["bench", "--quiet", "-p", package, "--bench", bench, "--"])
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let printed = output(&mut command)?;
    let printed = String::from_utf8_lossy(&printed);
    Ok(format!("```text\n{}\n```\n", printed.trim_end()))
}

/// What they print.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    if suite.quick {
        return Ok("Skipped with `--quick`.\n".to_owned());
    }
    let mut text = String::new();
    for (title, package, bench) in BENCHES {
        let printed = cargo_bench(package, bench, &[])?;
        write!(
            text,
            "### {title}\n\n`cargo bench -p {package} --bench {bench}`\n\n{printed}\n"
        )?;
    }
    text += "The portable CRC32C (`nvmf_core::digest::portable`) is for microcontrollers; hosted programs take that of nvmf-tcp.\n\n";
    let counted = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/instructions.txt");
    let counted = fs::read_to_string(counted).context(counted)?;
    write!(
        text,
        "### Instructions\n\n\
         Of user mode, for a command of 4 KiB and for a PDU, as `.ci/instructions` has counted and checks them (docs are not their\n\
         record: `.ci/instructions.txt` is).\n\n```text\n{}\n```\n",
        counted.trim_end()
    )?;
    Ok(text)
}
