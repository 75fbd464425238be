//! A running `nvmf export`.
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::Target;

/// Dropping it ends it.
pub(crate) struct Export {
    child: Child,
    /// What it printed in its ready line.
    pub(crate) ready: String,
    pub(crate) path: PathBuf,
    log: Option<JoinHandle<String>>,
}

impl Export {
    /// Exports the target's only namespace at a path in `dir`.
    pub(crate) fn start(target: &Target, dir: &Path, args: &[&str]) -> Self {
        let path = dir.join("nbd");
        let nbd = format!("unix:{}", path.display());
        Self::start_at(target, &nbd, path, args)
    }

    /// Exports it at an address of TCP.
    pub(crate) fn start_tcp(target: &Target, address: &str) -> Self {
        Self::start_at(target, &format!("tcp:{address}"), PathBuf::new(), &[])
    }

    fn start_at(target: &Target, nbd: &str, path: PathBuf, args: &[&str]) -> Self {
        let url = format!("nvme+tcp://{}/{}", target.addr, target.nqn);
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvmf"))
            .args(["export", &url, "--nbd", nbd])
            .args(args)
            .env_remove("RUST_LOG")
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut stderr = child.stderr.take().expect("piped");
        let log = thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let stdout = child.stdout.take().expect("piped");
        let (send, first) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut export = Self {
            child,
            ready: String::new(),
            path,
            log: Some(log),
        };
        let line = first.recv_timeout(Duration::from_secs(20));
        let line = line.unwrap_or_else(|_| panic!("no ready line"));
        export.ready = line;
        export
    }

    /// Resident memory, KiB.
    pub(crate) fn rss_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        status
            .expect("it runs")
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok())
            .expect("VmRSS")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a pid"), signal).expect("it runs");
    }

    /// Waits for its end. Its status, and what it said on stderr.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().expect("a child");
        let log = self.log.take().and_then(|log| log.join().ok());
        (status, log.unwrap_or_default())
    }

    /// Asks it to stop (SIGTERM), which it does without complaint, and removes its path.
    pub(crate) fn stop(self) -> String {
        self.signal(Signal::TERM);
        let path = self.path.clone();
        let (status, log) = self.ended();
        assert!(status.success(), "{status}: {log}");
        assert!(!log.contains("panicked"), "{log}");
        assert!(!path.exists());
        log
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let (Some(log), true) = (self.log.take(), thread::panicking()) {
            eprintln!("the export said:\n{}", log.join().unwrap_or_default());
        }
    }
}
