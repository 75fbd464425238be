//! Commands and tokens on the bus (Physical Layer Specification, chapter 7).
use embedded_hal::digital::OutputPin;
use embedded_hal::spi::SpiBus;

use super::crc::{crc7, crc16};

/// Bytes of a block.
pub(super) const BLOCK: usize = 512;

/// Bytes that a card may let pass before it answers a command (NCR).
const ANSWER_WITHIN: usize = 8;

/// What is wrong with a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing answers: there is no card.
    NoCard,
    /// The bus or the pin failed.
    Bus,
    /// It refuses a command: its R1.
    Refused(u8),
    /// It is busy, or does not come up, for longer than it may be.
    TooSlow,
    /// A check sum is wrong.
    Corrupt,
    /// It could not read or write: its token.
    Failed(u8),
    /// It is of a kind that this does not know.
    Unknown,
    /// It is not the card that was there before.
    Another,
}

/// R1 while the card is starting.
pub(super) const IDLE: u8 = 0x01;
/// R1's bit for a command that the card does not know.
pub(super) const ILLEGAL: u8 = 0x04;

/// Begins a block, of a single-block write too.
pub(super) const START: u8 = 0xFE;
/// Begins a block of a multiple-block write.
pub(super) const START_MULTIPLE: u8 = 0xFC;
/// Ends a multiple-block write.
pub(super) const STOP_MULTIPLE: u8 = 0xFD;

/// A bus with one card on it.
pub(super) struct Wire<SPI, CS> {
    pub(super) spi: SPI,
    cs: CS,
}

impl<SPI: SpiBus, CS: OutputPin> Wire<SPI, CS> {
    pub(super) fn new(spi: SPI, cs: CS) -> Self {
        Self { spi, cs }
    }

    pub(super) fn select(&mut self) -> Result<(), Fault> {
        self.cs.set_low().map_err(|_| Fault::Bus)
    }

    /// Lets the card go, which takes eight more clocks.
    pub(super) fn deselect(&mut self) -> Result<(), Fault> {
        self.cs.set_high().map_err(|_| Fault::Bus)?;
        self.byte().map(drop)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.spi.write(bytes).map_err(|_| Fault::Bus)
    }

    /// The card's next byte.
    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        let mut byte = [0xFF];
        self.receive(&mut byte)?;
        Ok(byte[0])
    }

    pub(super) fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Fault> {
        // Ones, as the card takes anything else for a command.
        bytes.fill(0xFF);
        self.spi.transfer_in_place(bytes).map_err(|_| Fault::Bus)
    }

    /// Sends a command; its R1.
    pub(super) fn command(&mut self, index: u8, argument: u32) -> Result<u8, Fault> {
        let [a, b, c, d] = argument.to_be_bytes();
        // Eight clocks pass between what it answered before and this (NRC).
        let mut frame = [0xFF, 0x40 | index, a, b, c, d, 0];
        frame[6] = crc7(&frame[1..6]);
        self.write(&frame)?;
        if index == 12 {
            // A byte of the data that it stops may still come.
            self.byte()?;
        }
        for _ in 0..ANSWER_WITHIN {
            let r1 = self.byte()?;
            if r1 & 0x80 == 0 {
                return Ok(r1);
            }
        }
        Err(Fault::NoCard)
    }

    /// Sends a command that must succeed.
    pub(super) fn expect(&mut self, index: u8, argument: u32) -> Result<(), Fault> {
        match self.command(index, argument)? {
            0 => Ok(()),
            r1 => Err(Fault::Refused(r1)),
        }
    }

    /// Sends a command that must succeed, of a card that may still be starting.
    pub(super) fn expect_early(&mut self, index: u8, argument: u32) -> Result<(), Fault> {
        match self.command(index, argument)? {
            0 | IDLE => Ok(()),
            r1 => Err(Fault::Refused(r1)),
        }
    }

    /// Sends an application command; its R1.
    pub(super) fn app_command(&mut self, index: u8, argument: u32) -> Result<u8, Fault> {
        self.expect_early(55, 0)?;
        self.command(index, argument)
    }

    /// Data behind its token, and whether the check sum agrees.
    pub(super) fn data(&mut self, data: &mut [u8]) -> Result<(), Fault> {
        self.receive(data)?;
        let mut crc = [0; 2];
        self.receive(&mut crc)?;
        if u16::from_be_bytes(crc) == crc16(data) {
            Ok(())
        } else {
            Err(Fault::Corrupt)
        }
    }

    /// Writes a block behind `token`; the card is busy then.
    pub(super) fn block(&mut self, token: u8, data: &[u8]) -> Result<(), Fault> {
        self.write(&[0xFF, token])?;
        self.write(data)?;
        self.write(&crc16(data).to_be_bytes())?;
        match self.byte()? {
            0xFF => Err(Fault::NoCard),
            response => match response & 0x1F {
                0x05 => Ok(()),
                0x0B => Err(Fault::Corrupt),
                _ => Err(Fault::Failed(response)),
            },
        }
    }
}
