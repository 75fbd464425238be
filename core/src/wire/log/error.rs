//! Error Information log, 01h: one entry (NVMe Base 2.1, figure "Error
//! Information Log Entry Data Structure").
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::status::Status;
use crate::wire::tree::{Tree, TreeWriter};

/// A command that failed. All zero is an unused entry.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct ErrorInformation {
    /// Error Count: counts all errors, 1 is the first; 0 is an unused entry.
    pub errcnt: U64,
    /// Submission Queue Identifier; FFFFh if none applies.
    pub sqid: U16,
    /// Command Identifier; FFFFh if none applies.
    pub cid: U16,
    /// The Status word of the completion, with the phase tag at bit 0.
    pub status: U16,
    /// Parameter Error Location, see [`Self::location`]; FFFFh if none
    /// applies.
    pub pel: U16,
    /// The first logical block that met the error.
    pub lba: U64,
    /// Namespace Identifier.
    pub nsid: U32,
    /// Log page identifier of vendor specific information; 0 is none.
    pub vsia: u8,
    /// Transport type, as the discovery log names it.
    pub trtype: u8,
    /// Command Set Identifier, valid from version 1 of the entry on.
    pub csi: u8,
    /// Opcode, valid from version 1 of the entry on.
    pub opc: u8,
    /// Command specific information.
    pub csinfo: U64,
    /// Transport type specific information.
    pub ttsi: U16,
    reserved_42: [u8; 21],
    /// Version of the entry.
    pub lpver: u8,
}

layout!(
    ErrorInformation: 64, errcnt @ 0, sqid @ 8, cid @ 10, status @ 12, pel @ 14, lba @ 16,
    nsid @ 24, vsia @ 28, trtype @ 29, csi @ 30, opc @ 31, csinfo @ 32, ttsi @ 40, lpver @ 63,
);

impl ErrorInformation {
    /// How the command ended.
    pub const fn status(&self) -> Status {
        Status::from_word(self.status.get())
    }

    /// Which field of the command was wrong, if one was.
    pub const fn location(&self) -> Option<ParameterLocation> {
        match self.pel.get() {
            0xffff => None,
            pel => Some(ParameterLocation::from_word(pel)),
        }
    }
}

/// A bit within a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ParameterLocation {
    /// Byte within the command, 0..=63 (bits 7:0).
    pub byte: u8,
    /// Bit within the byte, 0..=7 (bits 10:8).
    pub bit: u8,
}

impl ParameterLocation {
    /// Undoes the packing.
    pub const fn from_word(word: u16) -> Self {
        let [byte, bit] = word.to_le_bytes();
        Self { byte, bit: bit & 7 }
    }

    /// The packed form; only the low 3 bits of `bit` count.
    pub const fn to_word(self) -> u16 {
        u16::from_le_bytes([self.byte, self.bit & 7])
    }
}

impl fmt::Display for ParameterLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} bit {}", self.byte, self.bit)
    }
}

impl fmt::Display for ErrorInformation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "error {}: sqid {} cid {} ",
            self.errcnt, self.sqid, self.cid
        )?;
        write!(
            f,
            "nsid {:#x} lba {}: {}",
            self.nsid,
            self.lba,
            self.status()
        )
    }
}

impl Tree for ErrorInformation {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: errcnt, sqid, cid)?;
        out.field("status", self.status())?;
        match self.location() {
            Some(location) => out.field("pel", location)?,
            None => out.field("pel", "none")?,
        }
        show!(out, self:
            lba, nsid = "{:#x}", vsia = "{:#x}", trtype, csi, opc = "{:#04x}", csinfo = "{:#x}",
            ttsi = "{:#x}", lpver,
        )
    }
}

defmt_as_display!(ErrorInformation);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn fields_are_where_the_figure_has_them() {
        let mut bytes = [0; 64];
        bytes[..16].copy_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 5, 0, 0x04, 0x80, 0x28, 0x03]);
        bytes[16..28].copy_from_slice(&[0x10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        bytes[29..32].copy_from_slice(&[3, 0, 2]);
        bytes[63] = 1;
        let entry = ErrorInformation::ref_from_bytes(&bytes).unwrap();
        assert_eq!(entry.errcnt.get(), 9);
        assert_eq!(entry.status(), Status::new(0, 2).with_dnr());
        assert_eq!(
            entry.location(),
            Some(ParameterLocation { byte: 40, bit: 3 })
        );
        assert_eq!((entry.lba.get(), entry.nsid.get()), (16, 1));
        assert_eq!((entry.trtype, entry.opc, entry.lpver), (3, 2, 1));
        assert!(format!("{}", entry.tree()).contains("pel: byte 40 bit 3\nlba: 16\n"));
    }

    #[test]
    fn parameter_location_is_packed() {
        for (word, byte, bit) in [(0, 0, 0), (0x0101, 1, 1), (0x07ff, 255, 7)] {
            let location = ParameterLocation { byte, bit };
            assert_eq!(ParameterLocation::from_word(word), location);
            assert_eq!(location.to_word(), word);
        }
        assert_eq!(
            ParameterLocation::from_word(0xf828),
            ParameterLocation { byte: 40, bit: 0 }
        );
        let without = ErrorInformation {
            pel: U16::MAX_VALUE,
            ..Default::default()
        };
        assert_eq!(without.location(), None);
    }
}
