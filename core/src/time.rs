//! Time as the machines see it: microseconds since a moment of the binding's
//! choice, passed in with every call that needs it.
use core::time::Duration;

/// A moment, in microseconds since the binding's epoch. Never goes backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant {
    micros: u64,
}

impl Instant {
    /// The binding's epoch.
    pub const ZERO: Self = Self { micros: 0 };

    /// `micros` microseconds after the epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self { micros }
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.micros
    }

    /// How long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.micros.saturating_sub(earlier.micros))
    }

    /// `delay` later. Saturates, which is "never".
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        let delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        Self {
            micros: self.micros.saturating_add(delay),
        }
    }
}

/// The sooner of two optional deadlines.
#[must_use]
pub fn sooner(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}
