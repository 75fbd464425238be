//! The synchronous serial interface, a PL022, as an SPI bus.
use core::convert::Infallible;
use core::sync::atomic::{AtomicBool, Ordering};

use embedded_hal::spi;
use nvmf_firmware::sd::Bus;

use crate::board::CLOCK;
use crate::gpio;
use crate::registers::Registers;

const SSI: Registers = Registers::SSI0;
const CR0: usize = 0x00;
const CR1: usize = 0x04;
const DR: usize = 0x08;
const SR: usize = 0x0C;
const CPSR: usize = 0x10;

/// Words that the FIFO takes.
const FIFO: usize = 8;

/// Whether something else waits until the card is not selected.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Master, 8 bits, mode 0.
pub(crate) struct Ssi;

impl Ssi {
    pub(crate) fn start() -> Self {
        const CLOCK_RECEIVE_TRANSMIT: u32 = 0b11_0100;
        const RECEIVE: u32 = 0b01_0000;
        let port = Registers::GPIO_A;
        gpio::lend(port, CLOCK_RECEIVE_TRANSMIT);
        gpio::pull_up(port, RECEIVE);
        Self
    }

    /// Whether something else than the card wants to have the bus next.
    #[cfg(feature = "display")]
    pub(crate) fn want(&mut self, wanted: bool) {
        WANTED.store(wanted, Ordering::Relaxed);
    }

    #[cfg(feature = "display")]
    pub(crate) fn divisor(&self) -> u32 {
        SSI.read(CPSR)
    }

    /// Of the processor's clock: an even number, 2 to 254.
    pub(crate) fn set_divisor(&mut self, divisor: u32) {
        const EIGHT_BITS: u32 = 7;
        const ENABLE: u32 = 1 << 1;
        SSI.write(CR1, 0);
        SSI.write(CR0, EIGHT_BITS);
        SSI.write(CPSR, divisor.min(254) & !1);
        SSI.write(CR1, ENABLE);
    }

    /// As many words out as in, kept in step by the FIFO.
    fn exchange(&mut self, len: usize, out: impl Fn(usize) -> u8, mut take: impl FnMut(usize, u8)) {
        const RECEIVED: u32 = 1 << 2;
        let (mut sent, mut received) = (0, 0);
        while received < len {
            while sent < len && sent - received < FIFO {
                SSI.write(DR, out(sent).into());
                sent += 1;
            }
            while received < sent && SSI.read(SR) & RECEIVED != 0 {
                take(received, SSI.read(DR) as u8);
                received += 1;
            }
        }
    }
}

impl Bus for Ssi {
    /// 400 kHz, or a little less.
    fn slow(&mut self) {
        self.set_divisor(CLOCK / 400_000 + 1);
    }

    /// 12.5 MHz.
    fn fast(&mut self) -> u32 {
        const DIVISOR: u32 = 4;
        self.set_divisor(DIVISOR);
        CLOCK / DIVISOR / 8 / 1000
    }

    fn is_wanted(&self) -> bool {
        WANTED.load(Ordering::Relaxed)
    }
}

impl spi::ErrorType for Ssi {
    type Error = Infallible;
}

impl spi::SpiBus for Ssi {
    fn read(&mut self, words: &mut [u8]) -> Result<(), Infallible> {
        self.exchange(words.len(), |_| 0xFF, |at, word| words[at] = word);
        Ok(())
    }

    fn write(&mut self, words: &[u8]) -> Result<(), Infallible> {
        self.exchange(words.len(), |at| words[at], |_, _| {});
        Ok(())
    }

    fn transfer(&mut self, read: &mut [u8], write: &[u8]) -> Result<(), Infallible> {
        let out = |at| write.get(at).copied().unwrap_or(0xFF);
        let len = read.len().max(write.len());
        self.exchange(len, out, |at, word| {
            if let Some(place) = read.get_mut(at) {
                *place = word;
            }
        });
        Ok(())
    }

    fn transfer_in_place(&mut self, words: &mut [u8]) -> Result<(), Infallible> {
        let words = core::cell::Cell::from_mut(words).as_slice_of_cells();
        let out = |at: usize| words[at].get();
        self.exchange(words.len(), out, |at, word| words[at].set(word));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
