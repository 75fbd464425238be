//! Starts the real `nvmf target` for tests, and looks at it from outside.
#[allow(dead_code, reason = "other tests need it")]
pub(crate) mod data;
#[allow(dead_code, reason = "other tests need the rest")]
pub(crate) mod run;

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, setrlimit};

/// Lines of the target's stderr that are kept for diagnosis.
const KEPT_LINES: usize = 60;

/// A running `nvmf target`; dropping it ends it.
pub(crate) struct Target {
    child: Mutex<Child>,
    pub(crate) pid: u32,
    /// Where it listens (its first listener).
    pub(crate) addr: SocketAddr,
    /// The subsystem it serves.
    pub(crate) nqn: String,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    tail: VecDeque<String>,
    panics: Vec<String>,
}

impl Target {
    /// Starts the binary with `target --listen 127.0.0.1:0` and `args`, and waits for its ready line.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_listened("127.0.0.1:0", args, true)
    }

    fn start_listened(address: &str, args: &[&str], listen: bool) -> Self {
        raise_file_limit();
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvmf"))
            .args(["target", "--listen", address])
            .args(args)
            .env_remove("RUST_LOG")
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let pid = child.id();
        let log = Arc::new(Mutex::new(Log::default()));
        let stderr = child.stderr.take().expect("piped");
        let lines = Arc::clone(&log);
        if listen {
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    lines.lock().expect("log").push(line);
                }
            });
        } else {
            drop(stderr);
        }
        let stdout = child.stdout.take().expect("piped");
        let (ready, first_line) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Nobody listens after the first line; the pipe is drained all the same.
                let _ = ready.send(line);
            }
        });
        let Ok(line) = first_line.recv_timeout(Duration::from_secs(20)) else {
            let _ = child.kill();
            let _ = child.wait();
            panic!(
                "no ready line; stderr:\n{}",
                log.lock().expect("log").text()
            );
        };
        let url = line
            .strip_prefix("ready nvme+tcp://")
            .unwrap_or_else(|| panic!("not a ready line: {line}"));
        let (addr, nqn) = url
            .split_once('/')
            .expect("an address and an NQN in the ready line");
        Self {
            child: Mutex::new(child),
            pid,
            addr: addr.parse().expect("an address in the ready line"),
            nqn: nqn.to_owned(),
            log,
        }
    }

    /// The same, and nobody reads its stderr: the pipe breaks.
    pub(crate) fn start_unheard() -> Self {
        Self::start_listened("127.0.0.1:0", &[], false)
    }

    /// The same, with a namespace of 64 MiB in a file: its operations are not done at once, as those of RAM are.
    pub(crate) fn start_with_file(dir: &Path, args: &[&str]) -> Self {
        let path = dir.join("namespace");
        let path = path.to_str().expect("a path in UTF-8");
        let file = format!("{path},size=64M,bs=512");
        let args: Vec<&str> = ["--file", &file].iter().chain(args).copied().collect();
        Self::start(&args)
    }

    /// Resident memory, KiB (VmRSS).
    pub(crate) fn rss_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("status");
        status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok())
            .expect("VmRSS")
    }

    /// Open file descriptors.
    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid))
            .expect("fd directory")
            .count()
    }

    /// Lets it open so many descriptors and no more.
    pub(crate) fn limit_files(&self, most: u64) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        prlimit(pid, Resource::Nofile, limit).expect("the target runs");
    }

    /// CPU time used so far, in clock ticks (10 ms).
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).expect("stat");
        let (_, fields) = stat.rsplit_once(')').expect("stat");
        let fields: Vec<u64> = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|field| field.parse().expect("a number"))
            .collect();
        fields.iter().sum()
    }

    /// Waits until no more than `most` descriptors are open; tearing down connections takes a moment.
    pub(crate) fn settle(&self, most: usize) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.open_files() > most {
            assert!(
                Instant::now() < deadline,
                "{} files are open, expected at most {most}",
                self.open_files()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The last lines of its stderr.
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("log").text()
    }

    /// The process runs, and none of its threads panicked.
    pub(crate) fn assert_healthy(&self) {
        let exit = self.child.lock().expect("child").try_wait().expect("wait");
        assert!(exit.is_none(), "the target exited: {exit:?}");
        let log = self.log.lock().expect("log");
        assert!(log.panics.is_empty(), "the target panicked");
    }

    /// Asks the target to stop (SIGTERM) and returns whether it exited with success in time.
    pub(crate) fn stop(&self, within: Duration) -> bool {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + within;
        loop {
            let exit = self.child.lock().expect("child").try_wait().expect("wait");
            match exit {
                Some(status) => return status.success(),
                None if Instant::now() > deadline => return false,
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a pid"), signal).expect("the target runs");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let mut child = match self.child.lock() {
            Ok(child) => child,
            Err(poisoned) => poisoned.into_inner(),
        };
        let exit = child.try_wait();
        let _ = child.kill();
        let _ = child.wait();
        if thread::panicking() {
            // The reader thread sees the end of the pipe a moment after the process is gone.
            thread::sleep(Duration::from_millis(50));
            let log = match self.log.lock() {
                Ok(log) => log,
                Err(poisoned) => poisoned.into_inner(),
            };
            eprintln!("target (exit before the test ended: {exit:?}) said last:");
            eprintln!("{}", log.text());
        }
    }
}

impl Log {
    fn push(&mut self, line: String) {
        if line.contains("panicked at") {
            self.panics.push(line.clone());
        }
        if self.tail.len() == KEPT_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }

    fn text(&self) -> String {
        let lines: Vec<&str> = self
            .panics
            .iter()
            .chain(&self.tail)
            .map(String::as_str)
            .collect();
        lines.join("\n")
    }
}

/// As many descriptors as the system lets us have; the target inherits it.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("raising the soft limit to the hard one");
}
