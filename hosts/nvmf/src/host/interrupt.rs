//! Ctrl-C as an event, so that what is under way ends in order.
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit status of a process that a second signal ended, as shells have it for SIGINT.
const AT_ONCE: i32 = 130;

/// The first SIGINT, SIGTERM or SIGHUP; the second ends the process at once.
pub(super) struct Interrupt {
    came: Arc<AtomicBool>,
    wait: Receiver<()>,
}

impl Interrupt {
    pub(super) fn new() -> anyhow::Result<Self> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
        let came = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&came);
        let (sender, wait) = mpsc::channel();
        let watch = move || {
            let mut signals = signals.forever();
            if signals.next().is_some() {
                told.store(true, Ordering::Relaxed);
                drop(sender);
            }
            if signals.next().is_some() {
                process::exit(AT_ONCE);
            }
        };
        thread::Builder::new()
            .name("nvmf-signals".to_owned())
            .spawn(watch)
            .context("cannot start a thread for signals")?;
        Ok(Self { came, wait })
    }

    /// True once the signal has come: for those who look often, from any thread.
    pub(super) fn came(&self) -> &AtomicBool {
        &self.came
    }

    /// Whether the signal came before the time did.
    pub(super) fn came_before(&self, time: Instant) -> bool {
        let left = time.saturating_duration_since(Instant::now());
        self.wait.recv_timeout(left) != Err(RecvTimeoutError::Timeout)
    }
}
