//! Time, and sleep until an interrupt.
use core::arch::asm;

use nvmf_core::time::Instant;

use super::{enable_interrupt, start_interrupts};

/// The virtual timer's interrupt.
const TIMER: usize = 27;

/// The processor's counter and timer, and the interrupts that end its sleep.
#[derive(Debug)]
pub struct Clock {
    /// Ticks a second.
    frequency: u64,
}

impl Clock {
    /// Starts the interrupt controller as well. Interrupts have no handlers: they
    /// are masked, and end a sleep.
    #[must_use]
    pub fn start() -> Self {
        start_interrupts();
        enable_interrupt(TIMER);
        let frequency: u64;
        // SAFETY: it reads a register.
        unsafe { asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack)) };
        Self { frequency }
    }

    /// Ticks since the board has power.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        let ticks: u64;
        // SAFETY: it reads a register, after all that comes before.
        unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Instant {
        let ticks = self.ticks();
        let (seconds, rest) = (ticks / self.frequency, ticks % self.frequency);
        Instant::from_micros(seconds * 1_000_000 + rest * 1_000_000 / self.frequency)
    }

    /// Sleeps until `deadline`, or until a device has an interrupt.
    pub fn sleep(&self, deadline: Option<Instant>) {
        let micros = deadline.map(|at| at.as_micros().saturating_sub(self.now().as_micros()));
        if micros == Some(0) {
            return;
        }
        if let Some(micros) = micros {
            let ticks = u128::from(micros) * u128::from(self.frequency) / 1_000_000;
            let at = self.ticks().saturating_add(ticks as u64);
            // SAFETY: it sets the timer, whose interrupt has no handler.
            unsafe {
                asm!("msr cntv_cval_el0, {}", "msr cntv_ctl_el0, {:x}", in(reg) at, in(reg) 1u64, options(nomem, nostack));
            }
        }
        // SAFETY: it waits; what devices did to memory meanwhile is looked at after. The
        // timer is turned off, which takes its interrupt back.
        unsafe {
            asm!(
                "isb",
                "dsb sy",
                "wfi",
                "msr cntv_ctl_el0, xzr",
                options(nostack)
            )
        };
    }
}
