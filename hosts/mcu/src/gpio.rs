//! Pins that are set by hand.
use core::convert::Infallible;

use embedded_hal::digital;

use crate::registers::Registers;

/// Registers of a GPIO port.
const DIR: usize = 0x400;
const AFSEL: usize = 0x420;
const PUR: usize = 0x510;
const DEN: usize = 0x51C;

/// Gives pins of a port to the peripheral that they belong to.
pub(crate) fn lend(port: Registers, pins: u32) {
    port.set(AFSEL, pins);
    port.set(DEN, pins);
}

/// Pulls pins up that nobody may drive.
pub(crate) fn pull_up(port: Registers, pins: u32) {
    port.set(PUR, pins);
}

/// An output.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    port: Registers,
    pin: u32,
}

impl Output {
    /// High at first.
    pub(crate) fn high(port: Registers, number: u32) -> Self {
        let output = Self {
            port,
            pin: 1 << number,
        };
        port.set(DIR, output.pin);
        port.set(DEN, output.pin);
        output.set(true);
        output
    }

    #[cfg(feature = "display")]
    pub(crate) fn is_high(self) -> bool {
        self.port.read(self.data()) != 0
    }

    pub(crate) fn set(self, high: bool) {
        self.port
            .write(self.data(), if high { self.pin } else { 0 });
    }

    /// The data register through a mask, so that other pins keep their state.
    fn data(self) -> usize {
        (self.pin << 2) as usize
    }
}

impl digital::ErrorType for Output {
    type Error = Infallible;
}

impl digital::OutputPin for Output {
    fn set_low(&mut self) -> Result<(), Infallible> {
        self.set(false);
        Ok(())
    }

    fn set_high(&mut self) -> Result<(), Infallible> {
        self.set(true);
        Ok(())
    }
}
