//! Ranges of logical blocks that are data of a command: of Dataset Management
//! and of Copy (NVM Command Set Specification 1.0, sections 3.2.3 and 3.2.2).
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::tree::{Tree, TreeWriter};

/// A range of Dataset Management, 16 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes: how the blocks will be used.
    pub cattr: U32,
    /// Length in logical blocks; not 0's based, and 0 is an empty range.
    pub nlb: U32,
    /// The first logical block.
    pub slba: U64,
}

layout!(DsmRange: 16, cattr @ 0, nlb @ 4, slba @ 8);

impl DsmRange {
    /// The most ranges that a command has.
    pub const MAX: u16 = 256;

    /// A range without attributes.
    pub fn new(slba: u64, nlb: u32) -> Self {
        Self {
            cattr: 0.into(),
            nlb: nlb.into(),
            slba: slba.into(),
        }
    }
}

impl fmt::Display for DsmRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slba {} nlb {}", self.slba, self.nlb)?;
        match self.cattr.get() {
            0 => Ok(()),
            cattr => write!(f, " cattr {cattr:#x}"),
        }
    }
}

impl Tree for DsmRange {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("slba", self.slba)?;
        out.field("nlb", self.nlb)?;
        out.field("cattr", format_args!("{:#x}", self.cattr.get()))
    }
}

/// A source range of Copy, format 0, 32 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CopyRange {
    _reserved0: [u8; 8],
    /// The first logical block.
    pub slba: U64,
    /// Length in logical blocks, 0's based.
    pub nlb: U16,
    _reserved18: [u8; 6],
    /// Expected Initial Logical Block Reference Tag.
    pub eilbrt: U32,
    /// Expected Logical Block Application Tag.
    pub elbat: U16,
    /// Expected Logical Block Application Tag Mask.
    pub elbatm: U16,
}

layout!(CopyRange: 32, slba @ 8, nlb @ 16, eilbrt @ 24, elbat @ 28, elbatm @ 30);

impl CopyRange {
    /// The most ranges that a command has.
    pub const MAX: u16 = 256;

    /// A range of `blocks` logical blocks (1..=65536) without protection
    /// information.
    pub fn new(slba: u64, blocks: u32) -> Self {
        let nlb = u16::try_from(blocks.saturating_sub(1)).unwrap_or(u16::MAX);
        Self {
            slba: slba.into(),
            nlb: nlb.into(),
            ..Self::new_zeroed()
        }
    }

    /// NLB undone: length in logical blocks, 1..=65536.
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb.get()).saturating_add(1)
    }
}

impl fmt::Display for CopyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slba {} blocks {}", self.slba, self.blocks())
    }
}

impl Tree for CopyRange {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("slba", self.slba)?;
        out.field("nlb", self.nlb)?;
        out.field("eilbrt", format_args!("{:#x}", self.eilbrt.get()))?;
        out.field("elbat", format_args!("{:#x}", self.elbat.get()))?;
        out.field("elbatm", format_args!("{:#x}", self.elbatm.get()))
    }
}

defmt_as_display!(DsmRange, CopyRange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_dataset_management_counts_from_zero() {
        let bytes = [4, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x80];
        let range = DsmRange::read_from_bytes(&bytes).unwrap();
        assert_eq!((range.cattr.get(), range.nlb.get()), (4, 8));
        assert_eq!(range.slba.get(), 0x8000_0000_0000_0100);
        let mut built = DsmRange::new(0x8000_0000_0000_0100, 8);
        built.cattr = 4.into();
        assert_eq!(built.as_bytes(), bytes);
    }

    #[test]
    fn a_range_of_copy_is_zeros_based() {
        let mut bytes = [0; 32];
        bytes[8] = 9;
        bytes[16] = 7;
        bytes[24..].copy_from_slice(&[1, 0, 0, 0, 2, 0, 3, 0]);
        let range = CopyRange::read_from_bytes(&bytes).unwrap();
        assert_eq!((range.slba.get(), range.blocks()), (9, 8));
        assert_eq!(range.eilbrt.get(), 1);
        assert_eq!((range.elbat.get(), range.elbatm.get()), (2, 3));
        bytes[24..].fill(0);
        assert_eq!(CopyRange::new(9, 8).as_bytes(), bytes);
        for (nlb, blocks) in [(0, 1), (1, 2), (0xFFFF, 0x1_0000)] {
            let range = CopyRange::new(0, blocks);
            assert_eq!((range.nlb.get(), range.blocks()), (nlb, blocks));
        }
    }
}
