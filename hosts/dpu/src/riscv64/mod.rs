//! What is RISC-V's: its board's registers and interrupts, a PLIC.
use core::arch::{asm, global_asm};

use crate::mmio::Registers;

pub mod clock;
pub mod crc32c;
pub(crate) mod uart;

global_asm!(include_str!("start.s"));

/// What the controller is called.
pub const MODEL: &str = "nvmf RISC-V";

impl Registers {
    const CLINT: Self = Self::at(0x0200_0000);
    const PLIC: Self = Self::at(0x0C00_0000);
    const UART: Self = Self::at(0x1000_0000);

    /// The virtio transports, whether there is a device behind them or not.
    pub(crate) const VIRTIO: Self = Self::at(0x1000_1000);
    pub(crate) const VIRTIO_SLOTS: usize = 8;
    pub(crate) const VIRTIO_SPAN: usize = 0x1000;
}

/// Registers of the interrupt controller, as far as they are the first processor's in
/// machine mode.
mod plic {
    /// Priorities, a word an interrupt.
    pub(super) const PRIORITY: usize = 0;
    /// A bit an interrupt.
    pub(super) const ENABLE: usize = 0x2000;
    /// Reading takes an interrupt, and writing gives it back.
    pub(super) const CLAIM: usize = 0x20_0004;
}

/// Has the interrupt of a virtio transport end sleeps.
pub(crate) fn enable_transport(slot: usize) {
    let number = 1 + slot;
    let plic = Registers::PLIC;
    plic.write(plic::PRIORITY + number * 4, 1);
    plic.write(plic::ENABLE, plic.read(plic::ENABLE) | 1 << number);
}

/// After transports took back their interrupts: so does the controller. What is read from
/// here on is no older than that.
pub(crate) fn acknowledged() {
    loop {
        let number = Registers::PLIC.read(plic::CLAIM);
        if number == 0 {
            break;
        }
        Registers::PLIC.write(plic::CLAIM, number);
    }
    // SAFETY: it waits.
    unsafe { asm!("fence iorw, iorw", options(nostack)) };
}

/// Asks QEMU, if it was told to listen to its guest (`-semihosting`); a fault if not.
///
/// # Safety
/// `block` is what the operation wants.
pub(crate) unsafe fn semihosting(operation: u64, block: *const u64) -> u64 {
    let result: u64;
    // SAFETY: the caller's. It is these three instructions, as they are, that QEMU knows.
    unsafe {
        asm!(
            ".balign 16",
            ".option push",
            ".option norvc",
            "slli zero, zero, 0x1f",
            "ebreak",
            "srai zero, zero, 7",
            ".option pop",
            inout("a0") operation => result,
            in("a1") block,
        );
    }
    result
}

/// Whether a fault is that nobody listens to [`semihosting`].
pub(crate) fn is_unheard(cause: u64) -> bool {
    const BREAKPOINT: u64 = 3;
    cause == BREAKPOINT
}

/// Sleeps.
pub(crate) fn wait() {
    // SAFETY: it waits, no more.
    unsafe { asm!("wfi", options(nomem, nostack)) }
}
