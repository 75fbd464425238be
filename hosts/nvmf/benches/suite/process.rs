//! Runs programs, each on cores of its own.
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;

use crate::measured::Measured;

/// The program that is measured.
pub(crate) const NVMF: &str = env!("CARGO_BIN_EXE_nvmf");

/// Which cores the two ends have.
pub(crate) struct Cores {
    pub(crate) all: Vec<usize>,
    pub(crate) target: Vec<usize>,
    pub(crate) host: Vec<usize>,
}

impl Cores {
    /// Half of those that this process may use for each end, or all for both.
    pub(crate) fn halves() -> anyhow::Result<Self> {
        let set = sched_getaffinity(None)?;
        let all: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|core| set.is_set(*core))
            .collect();
        let (target, host) = match all.len() {
            1 => (&all[..], &all[..]),
            count => all.split_at(count / 2),
        };
        Ok(Self {
            target: target.to_vec(),
            host: host.to_vec(),
            all,
        })
    }

    /// Calls `spawn` with this thread on `cores`: what it starts stays there.
    pub(crate) fn on<T>(&self, cores: &[usize], spawn: impl FnOnce() -> T) -> anyhow::Result<T> {
        stay_on(cores)?;
        let spawned = spawn();
        stay_on(&self.all)?;
        Ok(spawned)
    }
}

fn stay_on(cores: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).context("sched_setaffinity")
}

/// What a program has printed.
///
/// # Errors
/// It failed; says what it said.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| name.clone())?;
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr);
        bail!(
            "{name}: {status}: {}",
            said.lines().last().unwrap_or_default()
        );
    }
    Ok(stdout)
}

/// The program, to be run with `args`.
pub(crate) fn nvmf<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(NVMF);
    command.args(args).env_remove("RUST_LOG");
    command
}

/// `nvmf bench` with these words, `turn` for each of `rounds` turns: its report, by namespace.
///
/// # Errors
/// It failed.
pub(crate) fn bench(words: &str, turn: Duration, rounds: u32) -> anyhow::Result<Vec<Measured>> {
    let runtime = (turn * rounds).as_secs_f64().to_string();
    let rounds = rounds.to_string();
    let more = ["--runtime", &runtime, "--rounds", &rounds, "-o", "json"];
    let args = words.split_whitespace().chain(more);
    measured(&mut nvmf(["bench"].into_iter().chain(args))).with_context(|| words.to_owned())
}

/// `nvmf bench` with these words, on the host's cores.
///
/// # Errors
/// It failed.
pub(crate) fn bench_on(
    cores: &Cores,
    words: &str,
    turn: Duration,
) -> anyhow::Result<Vec<Measured>> {
    cores.on(&cores.host, || bench(words, turn, 1))?
}

/// Runs an `nvmf bench` that prints JSON.
///
/// # Errors
/// It failed.
pub(crate) fn measured(command: &mut Command) -> anyhow::Result<Vec<Measured>> {
    let report: Value = serde_json::from_slice(&output(command)?)?;
    let jobs = report["jobs"].as_array().context("a report without jobs")?;
    jobs.iter().map(Measured::of).collect()
}

/// `nvmf target`, ended when dropped.
pub(crate) struct Target {
    child: Child,
    /// Of its subsystem.
    pub(crate) url: String,
}

impl Target {
    /// On `cores`, with these arguments, at a port of its own.
    ///
    /// # Errors
    /// It did not start.
    pub(crate) fn start(cores: &Cores, on: &[usize], words: &str) -> anyhow::Result<Self> {
        let args = ["target", "-q", "--listen", "127.0.0.1:0"].into_iter();
        let mut command = nvmf(args.chain(words.split_whitespace()));
        cores.on(on, || Self::spawn(&mut command))?
    }

    /// Starts it, and waits for its ready line.
    ///
    /// # Errors
    /// It did not start.
    pub(crate) fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("nvmf target")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no standard output")?;
        let read = BufReader::new(stdout).read_line(&mut line);
        let mut target = Self {
            child,
            url: String::new(),
        };
        read?;
        let url = line.trim().strip_prefix("ready ");
        target.url = url.context("nvmf target did not start")?.to_owned();
        Ok(target)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// It has said something else.
    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        let rest = self.url.strip_prefix("nvme+tcp://");
        let address = rest.and_then(|rest| rest.split('/').next());
        Ok(address.context("a URL without an address")?.parse()?)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // If it has ended by itself, so much the better.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}
