//! QEMU's virt board, AArch64 or RISC-V, with virtio devices: what a program on it has in
//! common with the others.
#![no_std]

use smoltcp::wire::{Ipv4Address, Ipv4Cidr};

#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64/mod.rs")]
mod arch;
pub mod devices;
mod dma;
pub mod end;
pub mod memory;
mod mmio;
pub mod words;

#[doc(hidden)]
pub use self::arch::uart::Uart;
pub use self::arch::{MODEL, clock, crc32c};

/// The board's address in the network that QEMU makes for it, if it does not ask for one.
pub const ADDRESS: Ipv4Cidr = Ipv4Cidr::new(Ipv4Address::new(10, 0, 2, 15), 24);
/// The way to all others; the machine that QEMU runs on has this address too.
pub const GATEWAY: Ipv4Address = Ipv4Address::new(10, 0, 2, 2);
/// The hardware address if the network card has none.
pub const MAC: [u8; 6] = [0x02, 0x6E, 0x76, 0x6D, 0x66, 0x02];
/// Bytes of each socket's ring, each way.
pub const RING: usize = 256 << 10;

/// Says a line.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use core::fmt::Write as _;
        let _ = writeln!($crate::Uart, $($words)*);
    }};
}
