//! QEMU's virt board, AArch64, with virtio devices: what a program on it has in
//! common with the others.
#![no_std]

core::arch::global_asm!(include_str!("start.s"));

pub mod clock;
pub mod crc32c;
pub mod devices;
mod dma;
pub mod end;
pub mod memory;
mod mmio;
pub mod uart;
pub mod words;
