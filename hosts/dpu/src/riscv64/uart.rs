//! The UART, a 16550, for what there is to say.
use core::fmt;

use crate::mmio::Registers;

const THR: usize = 0;
const LSR: usize = 5;
/// There is room.
const THRE: u8 = 1 << 5;

/// The board's only one, as QEMU has set it up.
#[derive(Clone, Copy, Debug)]
pub struct Uart;

impl fmt::Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while Registers::UART.read_byte(LSR) & THRE == 0 {}
            Registers::UART.write_byte(THR, byte);
        }
        Ok(())
    }
}
