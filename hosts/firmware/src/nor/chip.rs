//! The commands of a flash chip, each a transaction of its own.
use core::time::Duration;

use embedded_hal::spi::{Operation, SpiDevice};

use super::sfdp::{self, HEADER, MOST};

/// Bytes that are programmed at a time: all chips' pages are a multiple.
pub(super) const PAGE: usize = 256;
/// Bytes that are erased at a time.
pub(super) const SECTOR: usize = 4096;

/// Write In Progress, Write Enable Latch and Block Protection, of the status register.
const WIP: u8 = 1 << 0;
const WEL: u8 = 1 << 1;
const BP: u8 = 7 << 2;

/// Why a chip cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The bus failed.
    Bus,
    /// Nothing answers.
    NoChip,
    /// It does not say what it is (SFDP): it is older than that.
    NoParameters,
    /// It is no chip for this driver: for what reason.
    Unsupported(&'static str),
}

/// How a chip is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    /// By three bytes.
    Three,
    /// By four.
    Four,
    /// By four, with opcodes of their own.
    FourByOpcode,
    /// By four, once it was told so.
    FourByMode { write_enable: bool },
}

/// What SFDP says of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) bytes: u64,
    /// Opcode that erases a sector.
    pub(super) erase: u8,
    pub(super) addresses: Addresses,
    /// How long that takes, typically.
    pub(super) erase_time: Duration,
    pub(super) program_time: Duration,
}

pub(super) struct Chip<SPI> {
    spi: SPI,
    id: [u8; 3],
    parameters: Parameters,
}

impl<SPI: SpiDevice> Chip<SPI> {
    /// Asks the chip what it is.
    pub(super) fn identify(mut spi: SPI) -> Result<Self, Fault> {
        let id = jedec_id(&mut spi)?;
        let mut headers = [0; 2 * HEADER];
        read_sfdp(&mut spi, 0, &mut headers)?;
        let (at, dwords) = sfdp::table(&headers)?;
        let mut bytes = [0; MOST * 4];
        let table = bytes.get_mut(..dwords * 4).unwrap_or_default();
        read_sfdp(&mut spi, at, table)?;
        let mut table = [0; MOST];
        for (dword, bytes) in table.iter_mut().zip(bytes.chunks_exact(4)) {
            *dword = bytes
                .iter()
                .rev()
                .fold(0, |all, byte| all << 8 | u32::from(*byte));
        }
        let parameters = sfdp::parameters(&table)?;
        let mut chip = Self {
            spi,
            id,
            parameters,
        };
        if let Addresses::FourByMode { write_enable } = parameters.addresses {
            if write_enable {
                chip.write(&[0x06])?;
            }
            chip.write(&[0xB7])?;
        }
        Ok(chip)
    }

    pub(super) const fn id(&self) -> [u8; 3] {
        self.id
    }

    pub(super) const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Whether it is the same chip, and there.
    pub(super) fn is_there(&mut self) -> bool {
        jedec_id(&mut self.spi) == Ok(self.id)
    }

    /// Whether it programs or erases.
    pub(super) fn is_busy(&mut self) -> Result<bool, Fault> {
        Ok(self.status()? & WIP != 0)
    }

    /// Whether some of it, or all, is protected.
    pub(super) fn is_protected(&mut self) -> Result<bool, Fault> {
        Ok(self.status()? & BP != 0)
    }

    pub(super) fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let (head, len) = self.head(0x03, 0x13, at);
        let head = head.get(..len).unwrap_or_default();
        let operations = &mut [Operation::Write(head), Operation::Read(bytes)];
        self.spi.transaction(operations).map_err(|_| Fault::Bus)
    }

    /// Begins to program bytes of one page: ones become zeroes, and no others change.
    /// False if the chip does not let itself be changed.
    pub(super) fn program(&mut self, at: u64, bytes: &[u8]) -> Result<bool, Fault> {
        if !self.enable()? {
            return Ok(false);
        }
        let (head, len) = self.head(0x02, 0x12, at);
        let head = head.get(..len).unwrap_or_default();
        let operations = &mut [Operation::Write(head), Operation::Write(bytes)];
        self.spi.transaction(operations).map_err(|_| Fault::Bus)?;
        Ok(true)
    }

    /// Begins to make all bits of a sector ones. False like [`Chip::program`].
    pub(super) fn erase(&mut self, at: u64) -> Result<bool, Fault> {
        if !self.enable()? {
            return Ok(false);
        }
        let (head, len) = self.head(self.parameters.erase, 0x21, at);
        self.write(head.get(..len).unwrap_or_default())?;
        Ok(true)
    }

    /// Write Enable, which has to precede each change. Whether it did anything.
    fn enable(&mut self) -> Result<bool, Fault> {
        self.write(&[0x06])?;
        Ok(self.status()? & WEL != 0)
    }

    fn status(&mut self) -> Result<u8, Fault> {
        let mut status = [0];
        let operations = &mut [Operation::Write(&[0x05]), Operation::Read(&mut status)];
        self.spi.transaction(operations).map_err(|_| Fault::Bus)?;
        Ok(status[0])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.spi.write(bytes).map_err(|_| Fault::Bus)
    }

    /// A command's first bytes, and how many they are: its opcode, which may be another
    /// with four bytes of address, and the address.
    fn head(&self, opcode: u8, with_four: u8, at: u64) -> ([u8; 5], usize) {
        let [a3, a2, a1, a0] = (at as u32).to_be_bytes();
        match self.parameters.addresses {
            Addresses::Three => ([opcode, a2, a1, a0, 0], 4),
            Addresses::FourByOpcode => ([with_four, a3, a2, a1, a0], 5),
            Addresses::Four | Addresses::FourByMode { .. } => ([opcode, a3, a2, a1, a0], 5),
        }
    }
}

fn jedec_id(spi: &mut impl SpiDevice) -> Result<[u8; 3], Fault> {
    let mut id = [0; 3];
    let operations = &mut [Operation::Write(&[0x9F]), Operation::Read(&mut id)];
    spi.transaction(operations).map_err(|_| Fault::Bus)?;
    match id {
        [0, 0, 0] | [0xFF, 0xFF, 0xFF] => Err(Fault::NoChip),
        id => Ok(id),
    }
}

/// Three bytes of address always, and eight clocks of nothing (section 6.1).
fn read_sfdp(spi: &mut impl SpiDevice, at: u32, bytes: &mut [u8]) -> Result<(), Fault> {
    let [_, a2, a1, a0] = at.to_be_bytes();
    let head = [0x5A, a2, a1, a0, 0];
    let operations = &mut [Operation::Write(&head), Operation::Read(bytes)];
    spi.transaction(operations).map_err(|_| Fault::Bus)
}
