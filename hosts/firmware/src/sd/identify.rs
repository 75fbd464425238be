//! From power-up to a card that takes commands (section 7.2.1), a step at a time.
use embedded_hal::digital::OutputPin;

use super::Bus;
use super::wire::{BLOCK, Fault, IDLE, ILLEGAL, START, Wire};

/// How often a card is reset before there is none.
const RESETS: u32 = 10;
/// How often it is asked whether it has come up, which it may take a second for:
/// asking takes 18 bytes, at 400 kHz.
const QUESTIONS: u32 = 3000;
/// Bytes that a register may take to come.
const REGISTER_WITHIN: usize = 1000;

/// What a card is, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Its capacity.
    pub(super) blocks: u64,
    pub(super) read_only: bool,
    /// Commands say blocks, not bytes.
    pub(super) by_block: bool,
    /// Who made it, and its serial number.
    cid: [u8; 16],
}

/// Where a card that comes up is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identification {
    /// It is to be reset.
    Reset { left: u32 },
    /// It initialises itself, and is asked for it by ACMD41.
    Starting { argument: u32, left: u32 },
}

impl Identification {
    /// For whatever is in the socket, or nothing.
    pub(super) const fn new() -> Self {
        Self::Reset { left: RESETS }
    }

    /// What there is to do without waiting for long; the card, if it is up. The
    /// next step may come at once, or a millisecond later.
    pub(super) fn step<SPI: Bus, CS: OutputPin>(
        &mut self,
        wire: &mut Wire<SPI, CS>,
    ) -> Result<Option<Identity>, Fault> {
        *self = match *self {
            Self::Reset { left } => match (reset(wire), left.checked_sub(1)) {
                (Ok(()), _) => Self::Starting {
                    argument: condition(wire)?,
                    left: QUESTIONS,
                },
                (Err(_), Some(left)) => Self::Reset { left },
                (Err(fault), None) => return Err(fault),
            },
            Self::Starting { argument, left } => {
                if wire.app_command(41, argument)? == 0 {
                    return identity(wire).map(Some);
                }
                let left = left.checked_sub(1).ok_or(Fault::TooSlow)?;
                Self::Starting { argument, left }
            }
        };
        Ok(None)
    }
}

/// SPI mode is what a card is in that is reset while selected.
fn reset<SPI: Bus, CS: OutputPin>(wire: &mut Wire<SPI, CS>) -> Result<(), Fault> {
    wire.spi.slow();
    wire.deselect()?;
    // 74 clocks at least, if it was just powered.
    wire.write(&[0xFF; 10])?;
    wire.select()?;
    match wire.command(0, 0)? {
        IDLE => Ok(()),
        r1 => Err(Fault::Refused(r1)),
    }
}

/// What a card that was reset is to be told by ACMD41: whether there are large ones.
fn condition<SPI: Bus, CS: OutputPin>(wire: &mut Wire<SPI, CS>) -> Result<u32, Fault> {
    // 2.7 to 3.6 V, and a pattern that comes back.
    const CONDITION: u32 = 0x1AA;
    let version_2 = match wire.command(8, CONDITION)? {
        IDLE => {
            if word(wire)? & 0xFFF != CONDITION {
                return Err(Fault::Unknown);
            }
            true
        }
        r1 if r1 & ILLEGAL != 0 => false,
        r1 => return Err(Fault::Refused(r1)),
    };
    // Check sums from here on.
    wire.expect_early(59, 1)?;
    Ok(if version_2 { HIGH_CAPACITY } else { 0 })
}

const HIGH_CAPACITY: u32 = 1 << 30;

fn identity<SPI: Bus, CS: OutputPin>(wire: &mut Wire<SPI, CS>) -> Result<Identity, Fault> {
    // QEMU's card says that it is starting whenever it is asked this.
    wire.expect_early(58, 0)?;
    let by_block = word(wire)? & HIGH_CAPACITY != 0;
    if !by_block {
        wire.expect(16, BLOCK as u32)?;
    }
    let csd = register(wire, 9)?;
    let identity = Identity {
        blocks: blocks(&csd).ok_or(Fault::Unknown)?,
        read_only: csd[14] & 0x30 != 0,
        by_block,
        cid: register(wire, 10)?,
    };
    wire.deselect()?;
    Ok(identity)
}

fn word<SPI: Bus, CS: OutputPin>(wire: &mut Wire<SPI, CS>) -> Result<u32, Fault> {
    let mut word = [0; 4];
    wire.receive(&mut word)?;
    Ok(u32::from_be_bytes(word))
}

fn register<SPI: Bus, CS: OutputPin>(
    wire: &mut Wire<SPI, CS>,
    index: u8,
) -> Result<[u8; 16], Fault> {
    wire.expect(index, 0)?;
    for _ in 0..REGISTER_WITHIN {
        if wire.byte()? == START {
            let mut register = [0; 16];
            wire.data(&mut register)?;
            return Ok(register);
        }
    }
    Err(Fault::TooSlow)
}

/// The capacity in a CSD, in blocks of 512 bytes (section 5.3).
fn blocks(csd: &[u8; 16]) -> Option<u64> {
    let byte = |at: usize| u64::from(csd[at]);
    match csd[0] >> 6 {
        0 => {
            let c_size = (byte(6) & 0x3) << 10 | byte(7) << 2 | byte(8) >> 6;
            let c_size_mult = (byte(9) & 0x3) << 1 | byte(10) >> 7;
            let read_bl_len = byte(5) & 0xF;
            Some((c_size + 1) << (c_size_mult + 2 + read_bl_len) >> 9)
        }
        1 => Some((((byte(7) & 0x3F) << 16 | byte(8) << 8 | byte(9)) + 1) << 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_of_both_kinds_of_csd() {
        // Section 5.3.3: C_SIZE 0x001010 is a card of 2 GiB and some.
        let mut csd = [0; 16];
        csd[0] = 0x40;
        csd[7..10].copy_from_slice(&[0, 0x10, 0x10]);
        assert_eq!(blocks(&csd), Some(0x1011 << 10));
        // Section 5.3.2: READ_BL_LEN 9, C_SIZE 4095, C_SIZE_MULT 7 are 1 GiB.
        let mut csd = [0; 16];
        csd[5] = 9;
        csd[6..11].copy_from_slice(&[0x03, 0xFF, 0xC0, 0x03, 0x80]);
        assert_eq!(blocks(&csd), Some(1 << 21));
    }
}
