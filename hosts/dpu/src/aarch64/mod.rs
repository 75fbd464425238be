//! What is AArch64's: its board's registers and interrupts, a GICv2.
use core::arch::{asm, global_asm};

use crate::mmio::Registers;

pub mod clock;
pub mod crc32c;
pub(crate) mod uart;

global_asm!(include_str!("start.s"));
global_asm!(include_str!("copy.s"));

/// What the controller is called.
pub const MODEL: &str = "nvmf AArch64";

impl Registers {
    const GIC_DISTRIBUTOR: Self = Self::at(0x0800_0000);
    const GIC_CPU: Self = Self::at(0x0801_0000);
    const UART: Self = Self::at(0x0900_0000);

    /// The virtio transports, whether there is a device behind them or not.
    pub(crate) const VIRTIO: Self = Self::at(0x0A00_0000);
    pub(crate) const VIRTIO_SLOTS: usize = 32;
    pub(crate) const VIRTIO_SPAN: usize = 0x200;
}

/// Registers of the interrupt controller.
mod gic {
    /// Of the distributor and of the CPU interface: on or off.
    pub(super) const CTLR: usize = 0x000;
    /// Of the distributor: a bit an interrupt.
    pub(super) const ISENABLER: usize = 0x100;
    /// Of the distributor: to which processors, a byte an interrupt.
    pub(super) const ITARGETSR: usize = 0x800;
    /// Of the CPU interface: which priorities pass.
    pub(super) const PMR: usize = 0x004;
}

/// Starts the interrupt controller. Interrupts have no handlers: they are masked, and end a
/// sleep.
fn start_interrupts() {
    Registers::GIC_DISTRIBUTOR.write(gic::CTLR, 1);
    const ALL: u32 = 0xFF;
    Registers::GIC_CPU.write(gic::PMR, ALL);
    Registers::GIC_CPU.write(gic::CTLR, 1);
}

fn enable_interrupt(number: usize) {
    let target = gic::ITARGETSR + number / 4 * 4;
    let first = 1 << (number % 4 * 8);
    let distributor = Registers::GIC_DISTRIBUTOR;
    distributor.write(target, distributor.read(target) | first);
    distributor.write(gic::ISENABLER + number / 32 * 4, 1 << (number % 32));
}

/// Has the interrupt of a virtio transport end sleeps.
pub(crate) fn enable_transport(slot: usize) {
    /// Interrupts of devices begin here, those of the processor's own before.
    const SHARED: usize = 32;
    enable_interrupt(SHARED + 16 + slot);
}

/// After transports took back their interrupts: what is read from here on is no older
/// than that. Else an interrupt could be taken back whose news was not seen yet.
pub(crate) fn acknowledged() {
    // SAFETY: it waits.
    unsafe { asm!("dsb sy", options(nostack)) };
}

/// Asks QEMU, if it was told to listen to its guest (`-semihosting`); a fault if not.
///
/// # Safety
/// `block` is what the operation wants.
pub(crate) unsafe fn semihosting(operation: u64, block: *const u64) -> u64 {
    let result: u64;
    // SAFETY: the caller's.
    unsafe { asm!("hlt #0xf000", inout("x0") operation => result, in("x1") block) };
    result
}

/// Whether a fault is that nobody listens to [`semihosting`].
pub(crate) fn is_unheard(syndrome: u64) -> bool {
    const CLASS: u64 = 26;
    const UNKNOWN_REASON: u64 = 0;
    syndrome >> CLASS == UNKNOWN_REASON
}

/// Sleeps.
pub(crate) fn wait() {
    // SAFETY: it waits, no more.
    unsafe { asm!("wfi", options(nomem, nostack)) }
}
