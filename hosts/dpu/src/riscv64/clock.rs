//! Time, and sleep until an interrupt.
use core::arch::asm;

use nvmf_core::time::Instant;

use crate::mmio::Registers;

/// Ticks a second: the board's, which says so nowhere but in its device tree.
const FREQUENCY: u64 = 10_000_000;
const PER_MICROSECOND: u64 = FREQUENCY / 1_000_000;

/// The timer, and the interrupts that end a sleep.
#[derive(Debug)]
pub struct Clock(());

impl Clock {
    /// Interrupts have no handlers: they are masked, and end a sleep.
    #[must_use]
    pub fn start() -> Self {
        set_timer(u64::MAX);
        Self(())
    }

    /// Ticks since the board has power.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        let ticks: u64;
        // SAFETY: it reads a register.
        unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_micros(self.ticks() / PER_MICROSECOND)
    }

    /// Sleeps until `deadline`, or until a device has an interrupt.
    pub fn sleep(&self, deadline: Option<Instant>) {
        if let Some(at) = deadline {
            if at <= self.now() {
                return;
            }
            set_timer(at.as_micros().saturating_mul(PER_MICROSECOND));
        }
        // SAFETY: it waits; what devices did to memory meanwhile is looked at after.
        unsafe { asm!("fence iorw, iorw", "wfi", options(nostack)) };
        set_timer(u64::MAX);
    }
}

/// Has the timer's interrupt come at a tick, and takes back one that came.
fn set_timer(at: u64) {
    const MTIMECMP: usize = 0x4000;
    let clint = Registers::CLINT;
    // Nothing in between is earlier than both.
    clint.write(MTIMECMP + 4, u32::MAX);
    clint.write(MTIMECMP, at as u32);
    clint.write(MTIMECMP + 4, (at >> 32) as u32);
}
