//! One line that shows how it goes, while it goes.
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::ValueEnum;

/// From one line to the next.
const INTERVAL: Duration = Duration::from_millis(500);

/// When to show how it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Eta {
    /// If standard error is a terminal
    Auto,
    /// Always, a line each time if it is no terminal
    Always,
    /// Never
    Never,
}

/// What a lane has done so far. Read by others, so in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// By its lane only.
    pub(crate) fn set(&self, commands: u64) {
        self.0.store(commands, Ordering::Relaxed);
    }
}

/// The line.
pub(crate) struct Live {
    shown: bool,
    terminal: bool,
    /// Bytes of a command.
    bs: u64,
    begin: Instant,
}

impl Live {
    pub(crate) fn new(eta: Eta, bs: u64) -> Self {
        let terminal = io::stderr().is_terminal();
        Self {
            shown: match eta {
                Eta::Auto => terminal,
                Eta::Always => true,
                Eta::Never => false,
            },
            terminal,
            bs,
            begin: Instant::now(),
        }
    }

    /// Shows how it goes until all senders of `running` are gone. `name` is what goes on.
    pub(crate) fn watch(&self, name: &str, counters: &[Counter], running: &Receiver<()>) {
        if !self.shown {
            // Sleeps until the end: who is measured is not to be disturbed.
            let _ = running.recv();
            return;
        }
        let mut last = (Instant::now(), 0);
        while running.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let now = Instant::now();
            let commands = counters
                .iter()
                .map(|counter| counter.0.load(Ordering::Relaxed))
                .sum::<u64>();
            let seconds = (now - last.0).as_secs_f64();
            let iops = commands.saturating_sub(last.1) as f64 / seconds;
            self.show(&format!(
                "{:6.1} s  {name}  {iops:.0} IOPS  {:.1} MB/s",
                (now - self.begin).as_secs_f64(),
                iops * self.bs as f64 / 1e6,
            ));
            last = (now, commands);
        }
        if self.terminal {
            self.show("");
        }
    }

    /// Nobody has to read it.
    fn show(&self, line: &str) {
        let mut err = io::stderr().lock();
        let _ = if self.terminal {
            // Back to the start, and erased to the end.
            write!(err, "\r{line}\x1b[K").and_then(|()| err.flush())
        } else {
            writeln!(err, "{line}")
        };
    }
}
