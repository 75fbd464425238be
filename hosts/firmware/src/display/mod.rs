//! A display that says how a server does: its address, its connections, and how much
//! they have done.
//!
//! A step sends one character, if the bus is free; hosts and cards hardly notice.
mod ssd0323;

use core::time::Duration;

use embedded_hal::digital::OutputPin;
use embedded_hal::spi::SpiDevice;
use nvmf_core::time::Instant;

use self::ssd0323::Text;
pub use self::ssd0323::{COLUMNS, Fault, LINES};
use crate::server::Status;

/// How often the text is made anew.
const REFRESH: Duration = Duration::from_millis(500);

/// An SSD0323 of 128 x 64 pixels, with [`LINES`] lines of [`COLUMNS`] characters.
///
/// A bus that is shared with a card is not the display's while the card is selected: `SPI`
/// fails then, and is tried again with each step until it does not. In the meantime the
/// card is to be told that the [bus is wanted](crate::sd::Bus::is_wanted).
pub struct Display<SPI, DC> {
    text: Text<SPI, DC>,
    port: u16,
    /// When the text was made, and what was done by then.
    made: Instant,
    operations: u32,
    refresh: Instant,
}

impl<SPI: SpiDevice, DC: OutputPin> Display<SPI, DC> {
    /// Sets the controller up with the commands `panel`, which are those of what is
    /// connected to it, and clears the display. The bus is in mode 0 or 3, at 4 MHz at
    /// most; `data` is high for data and low for commands.
    ///
    /// # Errors
    /// The bus or the pin failed, or the bus is not free.
    pub fn start(spi: SPI, data: DC, panel: &[u8], port: u16) -> Result<Self, Fault> {
        Ok(Self {
            text: Text::start(spi, data, panel)?,
            port,
            made: Instant::ZERO,
            operations: 0,
            refresh: Instant::ZERO,
        })
    }

    /// Sends a character that changed, if there is one; says when to call again.
    pub fn step(&mut self, now: Instant, status: &Status) -> Instant {
        if now >= self.refresh {
            self.make(now, status);
        }
        if self.text.step() { now } else { self.refresh }
    }

    fn make(&mut self, now: Instant, status: &Status) {
        let micros = now.as_micros() - self.made.as_micros();
        let done = status.operations.wrapping_sub(self.operations);
        let iops = (u64::from(done) * 1_000_000 + micros / 2) / micros.max(1);
        match status.address {
            Some(address) => self.text.write(0, format_args!("{address}")),
            None => self.text.write(0, format_args!("no address")),
        }
        self.text.write(1, format_args!("port {}", self.port));
        let connections = status.connections;
        self.text
            .write(2, format_args!("connections {connections}"));
        self.text.write(3, format_args!("IOPS {iops}"));
        self.made = now;
        self.operations = status.operations;
        self.refresh = now.after(REFRESH);
    }
}

#[cfg(test)]
mod tests;
