//! The meaning: a submission queue entry decoded into plain values. Packed,
//! shifted and 0's-based fields are undone here, once each.
//!
//! Decoding is total. An opcode that is not known is a variant, and a value
//! that is not allowed is still a value: whoever executes the command decides
//! which status it fails with. The Command Identifier and the data pointer
//! stay in the entry, where every command has them.
#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

pub mod admin;
pub mod fabrics;
pub mod io;

use core::fmt;
use core::ops::RangeInclusive;

use zerocopy::little_endian::U32;

pub use admin::AdminCommand;
pub use fabrics::FabricsCommand;
pub use io::IoCommand;

use crate::wire::ids::Qid;
use crate::wire::macros::Bits;
use crate::wire::sqe::Sqe;

/// A command of any queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Command {
    /// A Fabrics command, on any queue.
    Fabrics(FabricsCommand),
    /// Any other command of the Admin Queue.
    Admin(AdminCommand),
    /// Any other command of an I/O Queue.
    Io(IoCommand),
}

impl Command {
    /// Decodes an entry of this queue: an opcode means one thing on the Admin
    /// Queue and another on I/O Queues.
    pub fn decode(qid: Qid, sqe: &Sqe) -> Self {
        if sqe.is_fabrics() {
            Self::Fabrics(FabricsCommand::decode(sqe))
        } else if qid.is_admin() {
            Self::Admin(AdminCommand::decode(sqe))
        } else {
            Self::Io(IoCommand::decode(sqe))
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fabrics(command) => command.fmt(f),
            Self::Admin(command) => command.fmt(f),
            Self::Io(command) => command.fmt(f),
        }
    }
}

/// Bits of a dword, numbered as the specification does (which writes `14:08`).
fn bits<T: Bits>(cdw: U32, range: RangeInclusive<u32>) -> T {
    let width = range.end().saturating_sub(*range.start()).saturating_add(1);
    let mask = u32::MAX.wrapping_shr(u32::BITS.saturating_sub(width));
    T::from_bits((cdw.get().wrapping_shr(*range.start()) & mask).into())
}

/// One bit of a dword.
fn bit(cdw: U32, index: u32) -> bool {
    bits(cdw, index..=index)
}

/// Two dwords as one number, the low one first.
fn join(low: U32, high: U32) -> u64 {
    let ([l0, l1, l2, l3], [h0, h1, h2, h3]) = (low.to_bytes(), high.to_bytes());
    u64::from_le_bytes([l0, l1, l2, l3, h0, h1, h2, h3])
}

/// A 0's-based number of dwords as bytes.
fn dwords(numd: u32) -> u64 {
    u64::from(numd).saturating_add(1).saturating_mul(4)
}

/// Writes each flag that is set.
fn flags(f: &mut fmt::Formatter<'_>, flags: &[(bool, &str)]) -> fmt::Result {
    flags
        .iter()
        .filter(|(set, _)| *set)
        .try_for_each(|(_, name)| write!(f, " {name}"))
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use zerocopy::FromBytes;

    use super::*;

    /// An entry of zeroes but for these bytes at these offsets.
    pub(super) fn sqe(at: &[(usize, &[u8])]) -> Sqe {
        let mut bytes = [0; 64];
        for (offset, field) in at {
            bytes[*offset..][..field.len()].copy_from_slice(field);
        }
        Sqe::read_from_bytes(&bytes).unwrap()
    }

    #[test]
    fn an_opcode_means_what_its_queue_says() {
        let sqe = sqe(&[(0, &[0x02])]);
        assert!(matches!(
            Command::decode(Qid(0), &sqe),
            Command::Admin(AdminCommand::GetLogPage(_))
        ));
        assert!(matches!(
            Command::decode(Qid(1), &sqe),
            Command::Io(IoCommand::Read(_))
        ));
    }

    #[test]
    fn a_fabrics_command_is_one_on_every_queue() {
        let sqe = sqe(&[(0, &[0x7F]), (4, &[0x08])]);
        for qid in [Qid(0), Qid(1)] {
            assert_eq!(
                Command::decode(qid, &sqe),
                Command::Fabrics(FabricsCommand::Disconnect { recfmt: 0 })
            );
        }
    }

    #[test]
    fn every_opcode_decodes_and_displays() {
        for opcode in 0..=u8::MAX {
            for filler in [0x00, 0xFF] {
                let mut bytes = [filler; 64];
                bytes[0] = opcode;
                let sqe = Sqe::read_from_bytes(&bytes).unwrap();
                for qid in [Qid(0), Qid(1)] {
                    assert!(!Command::decode(qid, &sqe).to_string().is_empty());
                }
            }
        }
    }

    #[test]
    fn bits_are_numbered_as_in_the_specification() {
        let cdw = U32::new(0x8765_4321);
        assert_eq!(bits::<u8>(cdw, 0..=3), 1);
        assert_eq!(bits::<u16>(cdw, 16..=31), 0x8765);
        assert_eq!(bits::<u32>(cdw, 0..=31), 0x8765_4321);
        assert!(bit(cdw, 31) && !bit(cdw, 30) && bit(cdw, 0));
        assert_eq!(join(U32::new(1), U32::new(2)), 0x2_0000_0001);
    }
}
