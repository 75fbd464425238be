//! What is specific to the NVM command set: Identify Namespace, CNS 05h, and
//! Identify Controller, CNS 06h (NVM Command Set 1.1, sections 4.1.5.3 and 4.1.5.4).
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::tree::{Tree, TreeWriter};

/// NVM command set specific Identify Namespace.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NvmNamespace {
    /// Logical Block Storage Tag Mask.
    pub lbstm: U64,
    /// Protection information capabilities.
    pub pic: Pic,
    /// Protection Information Format Attribute.
    pub pifa: u8,
    reserved_10: [u8; 2],
    /// Extended LBA formats, one for each LBA format.
    pub elbaf: [ExtendedLbaFormat; 64],
    /// Namespace Preferred Deallocate Granularity Large in logical blocks; 0
    /// is not reported.
    pub npdgl: U32,
    /// Namespace Preferred Read Granularity in logical blocks; 0 is not
    /// reported.
    pub nprg: U32,
    /// Namespace Preferred Read Alignment in logical blocks; 0 is not
    /// reported.
    pub npra: U32,
    /// Namespace Optimal Read Size in logical blocks; 0 is not reported.
    pub nors: U32,
    /// Namespace Preferred Deallocate Alignment Large in logical blocks; 0 is
    /// not reported.
    pub npdal: U32,
    /// LBA Migration Preferred Size in logical blocks.
    pub lbapss: U32,
    /// Tracked LBA Allocation Granularity in logical blocks.
    pub tlbaag: U32,
    reserved_296: [u8; 3800],
}

layout!(
    NvmNamespace: 4096, lbstm @ 0, pic @ 8, pifa @ 9, elbaf @ 12, npdgl @ 268, nprg @ 272,
    npra @ 276, nors @ 280, npdal @ 284, lbapss @ 288, tlbaag @ 292,
);

flags! {
    /// Protection Information Capabilities.
    pub struct Pic: u8 {
        /// 16-bit guard with a storage tag.
        const PIC16BPISTS = 1 << 0;
        /// The storage tag mask of a 16-bit guard is restricted.
        const PIC16BPISTM = 1 << 1;
        /// Storage Tag Check Read.
        const STCRS = 1 << 2;
        /// Qualified protection information formats.
        const QPIFS = 1 << 3;
    }
}

/// Extended LBA Format: the storage tag and the guard of a format.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct ExtendedLbaFormat(pub U32);

layout!(ExtendedLbaFormat: 4);

impl ExtendedLbaFormat {
    /// Storage Tag Size in bits (bits 6:0).
    pub const fn storage_tag_size(&self) -> u8 {
        let [low, ..] = self.0.get().to_le_bytes();
        low & 0x7f
    }

    /// Protection Information Format (bits 8:7).
    pub fn guard(&self) -> GuardFormat {
        let [low, second, ..] = self.0.get().to_le_bytes();
        GuardFormat::from((low >> 7) | ((second & 1) << 1))
    }

    /// Qualified Protection Information Format (bits 12:9), valid when
    /// [`Self::guard`] is [`GuardFormat::Qualified`].
    pub const fn qualified_guard(&self) -> u8 {
        let [_, second, ..] = self.0.get().to_le_bytes();
        (second >> 1) & 0x0f
    }
}

open_enum! {
    /// Protection Information Format.
    pub enum GuardFormat: u8 {
        Guard16 = 0 => "16-bit guard",
        Guard32 = 1 => "32-bit guard",
        Guard64 = 2 => "64-bit guard",
        Qualified = 3 => "Qualified",
    }
}

/// NVM command set specific Identify Controller: limits of its commands.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NvmController {
    /// Verify Size Limit, log2 of CAP.MPSMIN pages; 0 is no limit.
    pub vsl: u8,
    /// Write Zeroes Size Limit, log2 of CAP.MPSMIN pages; 0 is no limit.
    pub wzsl: u8,
    /// Write Uncorrectable Size Limit, log2 of CAP.MPSMIN pages; 0 is no
    /// limit.
    pub wusl: u8,
    /// Dataset Management Ranges Limit; 0 is no limit below 256.
    pub dmrl: u8,
    /// Dataset Management Range Size Limit in logical blocks; 0 is no limit.
    pub dmrsl: U32,
    /// Dataset Management Size Limit in logical blocks; 0 is no limit.
    pub dmsl: U64,
    /// Key Per I/O capabilities.
    pub kpiocap: u8,
    /// Write Zeroes With Deallocate Size Limit, log2 of CAP.MPSMIN pages; 0
    /// is no limit.
    pub wzdsl: u8,
    /// Admin Optional Command Support.
    pub aocs: U16,
    /// Version of the NVM Command Set specification.
    pub ver: U32,
    /// LBA Migration Queue Format.
    pub lbamqf: u8,
    reserved_25: [u8; 4071],
}

layout!(
    NvmController: 4096, vsl @ 0, wzsl @ 1, wusl @ 2, dmrl @ 3, dmrsl @ 4, dmsl @ 8, kpiocap @ 16,
    wzdsl @ 17, aocs @ 18, ver @ 20, lbamqf @ 24,
);

impl fmt::Display for NvmNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "storage tag mask {:#x}, protection {}",
            self.lbstm, self.pic
        )
    }
}

impl fmt::Display for ExtendedLbaFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, storage tag of {} bits",
            self.guard(),
            self.storage_tag_size()
        )
    }
}

impl fmt::Display for NvmController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "vsl {}, wzsl {}, wusl {}, dmrl {}, dmrsl {}, dmsl {}",
            self.vsl, self.wzsl, self.wusl, self.dmrl, self.dmrsl, self.dmsl
        )
    }
}

impl Tree for NvmNamespace {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: lbstm = "{:#x}", pic, pifa = "{:#x}")?;
        for (index, format) in self.elbaf.iter().enumerate() {
            if format.0.get() != 0 {
                out.field("elbaf", format_args!("{index}: {format}"))?;
            }
        }
        show!(out, self: npdgl, nprg, npra, nors, npdal, lbapss, tlbaag)
    }
}

impl Tree for NvmController {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self:
            vsl, wzsl, wusl, dmrl, dmrsl, dmsl, kpiocap = "{:#x}", wzdsl, aocs = "{:#x}",
            ver = "{:#x}", lbamqf = "{:#x}",
        )
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for NvmNamespace {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "NvmNamespace(pic {})", self.pic);
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for ExtendedLbaFormat {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "ExtendedLbaFormat({:#x})", self.0.get());
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for NvmController {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(
            f,
            "NvmController(vsl {}, wzsl {}, dmrl {})",
            self.vsl,
            self.wzsl,
            self.dmrl
        );
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn controller_limits_are_where_the_figure_has_them() {
        let mut bytes = [0; 4096];
        bytes[..16].copy_from_slice(&[1, 2, 3, 4, 5, 0, 0, 1, 6, 0, 0, 0, 0, 0, 0, 2]);
        let id = NvmController::ref_from_bytes(&bytes).unwrap();
        assert_eq!((id.vsl, id.wzsl, id.wusl, id.dmrl), (1, 2, 3, 4));
        assert_eq!(id.dmrsl.get(), 0x0100_0005);
        assert_eq!(id.dmsl.get(), 0x0200_0000_0000_0006);
        assert_eq!(format!("{}", id.tree()).lines().count(), 11);
    }

    #[test]
    fn namespace_formats_are_where_the_figure_has_them() {
        let mut bytes = [0; 4096];
        bytes[0] = 1;
        bytes[8] = 5;
        bytes[16..20].copy_from_slice(&[0xb0, 0, 0, 0]);
        let ns = NvmNamespace::ref_from_bytes(&bytes).unwrap();
        assert_eq!(ns.lbstm.get(), 1);
        assert_eq!(ns.pic, Pic::PIC16BPISTS | Pic::STCRS);
        assert_eq!(ns.elbaf[1].storage_tag_size(), 48);
        assert_eq!(ns.elbaf[1].guard(), GuardFormat::Guard32);
        assert!(
            format!("{}", ns.tree()).contains("elbaf: 1: 32-bit guard, storage tag of 48 bits\n")
        );
    }

    #[test]
    fn extended_format_is_packed() {
        for (raw, tag, guard, qualified) in [
            (0, 0, GuardFormat::Guard16, 0),
            (0x0000_0281, 1, GuardFormat::Guard32, 1),
            (0x0000_1fff, 127, GuardFormat::Qualified, 15),
            (0xffff_e000, 0, GuardFormat::Guard16, 0),
        ] {
            let format = ExtendedLbaFormat(U32::new(raw));
            assert_eq!(format.storage_tag_size(), tag);
            assert_eq!(format.guard(), guard);
            assert_eq!(format.qualified_guard(), qualified);
        }
    }
}
