//! Capsules: one message each (section 3.2).
use zerocopy::FromBytes;

use super::{Fault, Remote};
use crate::InCapsule;
use crate::wire::cqe::Cqe;
use crate::wire::sgl::Sgl;
use crate::wire::sqe::Sqe;

/// Bytes of a command capsule before its data.
pub const COMMAND: u32 = 64;
/// Bytes of a response capsule.
pub const RESPONSE: u32 = 16;

/// A command capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The command.
    pub sqe: Sqe,
    /// Bytes that follow it.
    pub data_len: u32,
}

impl Command {
    /// Reads a message.
    ///
    /// # Errors
    /// [`Fault::ShortCapsule`]
    pub fn parse(message: &[u8]) -> Result<Self, Fault> {
        let short = Fault::ShortCapsule(length(message));
        let (sqe, data) = Sqe::read_from_prefix(message).map_err(|_| short)?;
        Ok(Self {
            sqe,
            data_len: length(data),
        })
    }

    /// What the command's descriptor says of the capsule's data. In-capsule data
    /// begins right after the command (ICDOFF is 0): what is described elsewhere,
    /// or goes on beyond the capsule's end, is [`InCapsule::Misplaced`].
    #[must_use]
    pub fn data(&self) -> InCapsule<'static> {
        match self.sqe.sgl() {
            Sgl::InCapsule { offset, length } if offset != 0 || length > self.data_len => {
                InCapsule::Misplaced
            }
            Sgl::InCapsule { length: 0, .. } => InCapsule::Nothing,
            Sgl::InCapsule { length, .. } => InCapsule::Whole(length),
            _ => InCapsule::Nothing,
        }
    }

    /// The host's memory that the command is about, and whether its key is to be
    /// invalidated with the response. Without a length there is no memory.
    #[must_use]
    pub fn remote(&self) -> Option<(Remote, bool)> {
        match self.sqe.sgl() {
            Sgl::Keyed {
                address,
                length,
                key,
                invalidate,
            } if length > 0 => Some((Remote { address, key }, invalidate)),
            _ => None,
        }
    }
}

/// Reads a response capsule.
///
/// # Errors
/// [`Fault::ShortCapsule`], [`Fault::LongResponse`]
pub fn response(message: &[u8]) -> Result<Cqe, Fault> {
    let len = length(message);
    match Cqe::read_from_prefix(message) {
        Ok((cqe, [])) => Ok(cqe),
        Ok(_) => Err(Fault::LongResponse(len)),
        Err(_) => Err(Fault::ShortCapsule(len)),
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// A Write of 8 blocks of 512 bytes to namespace 1, as Linux sends it, with this descriptor.
    fn write(dptr: [u8; 16], data: usize) -> Vec<u8> {
        let mut bytes = std::vec![0; 64 + data];
        bytes[0] = 0x01;
        bytes[1] = 0x40;
        bytes[2..4].copy_from_slice(&[0x34, 0x12]);
        bytes[4] = 1;
        bytes[24..40].copy_from_slice(&dptr);
        bytes[48] = 7;
        bytes
    }

    /// Address 7f00_1234_5000h, 1000h bytes, key 89ABCDEFh.
    const KEYED: [u8; 16] = [
        0x00, 0x50, 0x34, 0x12, 0x00, 0x7F, 0, 0, 0x00, 0x10, 0x00, 0xEF, 0xCD, 0xAB, 0x89, 0x40,
    ];

    fn in_capsule(offset: u8, length: [u8; 4]) -> [u8; 16] {
        let mut dptr = [0; 16];
        dptr[0] = offset;
        dptr[8..12].copy_from_slice(&length);
        dptr[15] = 0x01;
        dptr
    }

    #[test]
    fn a_keyed_descriptor_names_the_hosts_memory() {
        let remote = Remote {
            address: 0x7F00_1234_5000,
            key: 0x89AB_CDEF,
        };
        for (id, invalidate) in [(0x40, false), (0x4F, true)] {
            let mut dptr = KEYED;
            dptr[15] = id;
            let command = Command::parse(&write(dptr, 0)).unwrap();
            assert_eq!(command.remote(), Some((remote, invalidate)));
            assert_eq!(command.sqe.sgl().data_len(), 4096);
            assert_eq!(command.data(), InCapsule::Nothing);
            assert_eq!(command.sqe.cid().0, 0x1234);
        }
    }

    #[test]
    fn a_keyed_length_has_three_bytes() {
        let mut dptr = KEYED;
        dptr[8..11].copy_from_slice(&[0xFF, 0xFF, 0xFF]);
        let command = Command::parse(&write(dptr, 0)).unwrap();
        assert_eq!(command.sqe.sgl().data_len(), 0x00FF_FFFF);
        assert_eq!(command.remote().unwrap().0.key, 0x89AB_CDEF);
        // A command without data: a keyed descriptor of no bytes, whatever its key.
        dptr[8..11].fill(0);
        dptr[15] = 0x4F;
        assert_eq!(Command::parse(&write(dptr, 0)).unwrap().remote(), None);
    }

    #[test]
    fn data_in_the_capsule_begins_after_the_command() {
        let cases = [
            (0, 4096, 4096, InCapsule::Whole(4096)),
            (0, 4096, 8192, InCapsule::Whole(4096)),
            (0, 4096, 4095, InCapsule::Misplaced),
            (0, 4096, 0, InCapsule::Misplaced),
            (0, u32::MAX, 4096, InCapsule::Misplaced),
            (1, 4096, 8192, InCapsule::Misplaced),
            (0xFF, 0, 8192, InCapsule::Misplaced),
            (0, 0, 0, InCapsule::Nothing),
            (0, 0, 512, InCapsule::Nothing),
        ];
        for (offset, length, there, expected) in cases {
            let bytes = write(in_capsule(offset, length.to_le_bytes()), there);
            let command = Command::parse(&bytes).unwrap();
            assert_eq!(command.data(), expected, "{offset} {length} {there}");
            assert_eq!(command.remote(), None);
        }
    }

    #[test]
    fn a_short_capsule_is_a_fault() {
        for len in [0, 1, 63] {
            let bytes = &write(KEYED, 0)[..len];
            let short = Fault::ShortCapsule(u32::try_from(len).unwrap());
            assert_eq!(Command::parse(bytes), Err(short));
        }
    }

    #[test]
    fn a_response_has_sixteen_bytes() {
        // Result 5, SQHD 3, CID 1234h, Invalid Field with DNR.
        let bytes = [
            5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0x34, 0x12, 0x04, 0x80, 0,
        ];
        let cqe = response(&bytes[..16]).unwrap();
        assert_eq!((cqe.result.get(), cqe.sqhd.get()), (5, 3));
        assert_eq!(cqe.cid().0, 0x1234);
        let status = crate::wire::status::Status::INVALID_FIELD.with_dnr();
        assert_eq!(cqe.status(), status);
        assert_eq!(response(&bytes[..15]), Err(Fault::ShortCapsule(15)));
        assert_eq!(response(&bytes), Err(Fault::LongResponse(17)));
    }
}
