//! The keep alive timer (NVMe Base 2.1, section 3.9), traffic based.
use core::fmt;
use core::time::Duration;

use super::ControllerState;
use crate::time::Instant;

/// KAS: the timer's granularity in 100 ms units.
pub const GRANULARITY_UNITS: u16 = 10;

const GRANULARITY_MS: u32 = GRANULARITY_UNITS as u32 * 100;

/// How long a host may be silent that has no timer to keep, in milliseconds:
/// while its controller is disabled or shut down, and on a discovery
/// controller with a KATO of 0. The specification lets a controller end an
/// association after 2 minutes in both cases.
pub const IDLE_LIMIT_MS: u32 = 120_000;

/// The host was silent for longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct KeepAliveExpired {
    /// How long that is, in milliseconds.
    pub limit_ms: u32,
}

impl fmt::Display for KeepAliveExpired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no command from the host for {} ms", self.limit_ms)
    }
}

impl core::error::Error for KeepAliveExpired {}

/// The timer of one controller.
///
/// It does not move with every command. When it ends it looks whether there
/// was traffic, and if so starts again: a host that fell silent is noticed
/// after one to two timeouts (Base 2.1, 3.9.4).
#[derive(Debug)]
pub(super) struct KeepAlive {
    /// Rounded up to the granularity; 0 is none.
    kato_ms: u32,
    discovery: bool,
    enabled: bool,
    deadline: Option<Instant>,
}

impl KeepAlive {
    /// The timer of a controller that is not enabled yet, KATO in milliseconds.
    pub(super) fn new(kato_ms: u32, discovery: bool, now: Instant) -> Self {
        let mut timer = Self {
            kato_ms: round_up(kato_ms),
            discovery,
            enabled: false,
            deadline: None,
        };
        timer.restart(now);
        timer
    }

    /// KATO in milliseconds, 0 for none.
    pub(super) fn kato_ms(&self) -> u32 {
        self.kato_ms
    }

    /// Sets KATO, in milliseconds, and restarts the timer.
    pub(super) fn set_kato(&mut self, kato_ms: u32, now: Instant) {
        self.kato_ms = round_up(kato_ms);
        self.restart(now);
    }

    /// The controller became enabled, or ceased to be.
    pub(super) fn set_enabled(&mut self, enabled: bool, now: Instant) {
        self.enabled = enabled;
        self.restart(now);
    }

    /// Whether a Keep Alive command has a timer to restart.
    pub(super) fn is_active(&self) -> bool {
        self.limit_ms().is_some()
    }

    /// When to call [`Self::check`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Ends or restarts a timer whose deadline has come.
    pub(super) fn check(
        &mut self,
        state: &ControllerState,
        now: Instant,
    ) -> Result<(), KeepAliveExpired> {
        let (Some(deadline), Some(limit_ms)) = (self.deadline, self.limit_ms()) else {
            return Ok(());
        };
        if now < deadline {
            return Ok(());
        }
        if !state.take_traffic() {
            self.deadline = None;
            return Err(KeepAliveExpired { limit_ms });
        }
        self.restart(now);
        Ok(())
    }

    fn restart(&mut self, now: Instant) {
        self.deadline = self
            .limit_ms()
            .map(|limit| now.after(Duration::from_millis(limit.into())));
    }

    fn limit_ms(&self) -> Option<u32> {
        match self.kato_ms {
            kato if !self.enabled => Some(kato.max(IDLE_LIMIT_MS)),
            0 => self.discovery.then_some(IDLE_LIMIT_MS),
            kato => Some(kato),
        }
    }
}

/// Up to the granularity (Base 2.1, 5.1.25.1.8); what would not fit, down.
fn round_up(kato_ms: u32) -> u32 {
    kato_ms
        .checked_next_multiple_of(GRANULARITY_MS)
        .unwrap_or(u32::MAX - u32::MAX % GRANULARITY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ids::Cntlid;

    fn at(ms: u64) -> Instant {
        Instant::from_micros(ms * 1000)
    }

    #[test]
    fn kato_is_rounded_up_to_a_second() {
        for (asked, kept) in [
            (0, 0),
            (1, 1000),
            (1000, 1000),
            (1001, 2000),
            (u32::MAX - 500, 4_294_967_000),
            (u32::MAX, 4_294_967_000),
        ] {
            assert_eq!(KeepAlive::new(asked, false, at(0)).kato_ms(), kept);
        }
    }

    #[test]
    fn traffic_restarts_the_timer_and_silence_ends_it() {
        let state = ControllerState::new(Cntlid(1), 0);
        let mut timer = KeepAlive::new(5000, false, at(0));
        timer.set_enabled(true, at(100));
        assert_eq!(timer.deadline(), Some(at(5100)));
        state.note_traffic();
        assert_eq!(timer.check(&state, at(5099)), Ok(()));
        assert_eq!(timer.check(&state, at(5100)), Ok(()));
        assert_eq!(timer.deadline(), Some(at(10_100)));
        let expired = KeepAliveExpired { limit_ms: 5000 };
        assert_eq!(timer.check(&state, at(10_100)), Err(expired));
        assert_eq!(timer.deadline(), None);
    }

    #[test]
    fn without_kato_only_idle_controllers_have_a_limit() {
        let mut io = KeepAlive::new(0, false, at(0));
        assert_eq!(io.deadline(), Some(at(120_000)));
        io.set_enabled(true, at(0));
        assert_eq!((io.deadline(), io.is_active()), (None, false));
        io.set_kato(250, at(7));
        assert_eq!(io.deadline(), Some(at(1007)));
        let mut discovery = KeepAlive::new(0, true, at(0));
        discovery.set_enabled(true, at(0));
        assert_eq!(discovery.deadline(), Some(at(120_000)));
    }

    #[test]
    fn a_disabled_controller_has_two_minutes_or_its_kato() {
        assert_eq!(
            KeepAlive::new(5000, false, at(0)).deadline(),
            Some(at(120_000))
        );
        assert_eq!(
            KeepAlive::new(300_000, false, at(0)).deadline(),
            Some(at(300_000))
        );
    }
}
