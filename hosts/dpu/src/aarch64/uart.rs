//! The UART, a PL011, for what there is to say.
use core::fmt;

use crate::mmio::Registers;

const DR: usize = 0x00;
const FR: usize = 0x18;
/// The transmit FIFO is full.
const FULL: u32 = 1 << 5;

/// The board's only one, as QEMU has set it up.
#[derive(Clone, Copy, Debug)]
pub struct Uart;

impl fmt::Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while Registers::UART.read(FR) & FULL != 0 {}
            Registers::UART.write(DR, byte.into());
        }
        Ok(())
    }
}
