//! How long a worker without work polls before it sleeps.
//!
//! Waking up takes longer than most commands do, so polling pays where the next command is
//! near, and is a waste of the core where it is not. The last sleep tells which it is: one that
//! was shorter than the time to poll would have been spared, so polling begins; a longer one
//! would have come anyway, so it ends. A worker that is idle, or has a command now and then,
//! does not poll at all.
use std::time::Duration;

use nvmf_core::time::Instant;

#[derive(Debug)]
pub(super) struct Spin {
    /// The time to poll, if at all.
    budget: Duration,
    pays: bool,
    until: Instant,
}

impl Spin {
    pub(super) fn new(budget: Duration) -> Self {
        Self {
            budget,
            pays: true,
            until: Instant::ZERO,
        }
    }

    /// There was work until `now`.
    pub(super) fn worked(&mut self, now: Instant) {
        if self.pays {
            self.until = now.after(self.budget);
        }
    }

    /// Whether to poll rather than to sleep.
    pub(super) fn lasts(&self, now: Instant) -> bool {
        now < self.until
    }

    /// The worker slept so long.
    pub(super) fn slept(&mut self, time: Duration) {
        self.pays = time < self.budget;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_polls_while_the_next_command_is_near() {
        let at = Instant::from_micros;
        let mut spin = Spin::new(Duration::from_micros(50));
        assert!(!spin.lasts(at(0)), "nothing happened yet");
        spin.worked(at(100));
        assert!(spin.lasts(at(149)) && !spin.lasts(at(150)));
        // In vain: the next is not near.
        spin.slept(Duration::from_micros(900));
        spin.worked(at(1050));
        assert!(!spin.lasts(at(1050)));
        // This one was.
        spin.slept(Duration::from_micros(20));
        spin.worked(at(1070));
        assert!(spin.lasts(at(1119)));
    }

    #[test]
    fn without_a_budget_it_never_polls() {
        let mut spin = Spin::new(Duration::ZERO);
        spin.worked(Instant::from_micros(5));
        spin.slept(Duration::ZERO);
        spin.worked(Instant::from_micros(6));
        assert!(!spin.lasts(Instant::from_micros(6)));
    }
}
