//! Identify Namespace of the NVM command set, CNS 00h and 11h (NVM Command
//! Set 1.1, section 4.1.5.1).
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::independent::Kpios;
use crate::wire::text::Hex;
use crate::wire::tree::{Tree, TreeWriter};

/// Identify Namespace data. All zero is what an inactive NSID returns.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace Size in logical blocks.
    pub nsze: U64,
    /// Namespace Capacity in logical blocks.
    pub ncap: U64,
    /// Namespace Utilization in logical blocks.
    pub nuse: U64,
    /// Namespace features.
    pub nsfeat: Nsfeat,
    /// Number of LBA Formats, 0's based.
    pub nlbaf: u8,
    /// Formatted LBA Size.
    pub flbas: Flbas,
    /// Metadata capabilities.
    pub mc: Mc,
    /// End-to-end data protection capabilities.
    pub dpc: Dpc,
    /// End-to-end data protection settings.
    pub dps: Dps,
    /// Multi-path I/O and sharing.
    pub nmic: Nmic,
    /// Reservation capabilities.
    pub rescap: Rescap,
    /// Format progress indicator.
    pub fpi: Fpi,
    /// Deallocate logical block features.
    pub dlfeat: Dlfeat,
    /// Namespace Atomic Write Unit Normal in logical blocks, 0's based.
    pub nawun: U16,
    /// Namespace Atomic Write Unit Power Fail in logical blocks, 0's based.
    pub nawupf: U16,
    /// Namespace Atomic Compare and Write Unit in logical blocks, 0's based.
    pub nacwu: U16,
    /// Namespace Atomic Boundary Size Normal in logical blocks, 0's based; a
    /// raw 0 is no boundary.
    pub nabsn: U16,
    /// Namespace Atomic Boundary Offset in logical blocks.
    pub nabo: U16,
    /// Namespace Atomic Boundary Size Power Fail in logical blocks, 0's
    /// based; a raw 0 is no boundary.
    pub nabspf: U16,
    /// Namespace Optimal I/O Boundary in logical blocks; 0 is none.
    pub noiob: U16,
    /// NVM Capacity in bytes.
    pub nvmcap: U128,
    /// Namespace Preferred Write Granularity in logical blocks, 0's based.
    pub npwg: U16,
    /// Namespace Preferred Write Alignment in logical blocks, 0's based.
    pub npwa: U16,
    /// Namespace Preferred Deallocate Granularity in logical blocks, 0's
    /// based.
    pub npdg: U16,
    /// Namespace Preferred Deallocate Alignment in logical blocks, 0's based.
    pub npda: U16,
    /// Namespace Optimal Write Size in logical blocks, 0's based.
    pub nows: U16,
    /// Maximum Single Source Range Length of Copy in logical blocks.
    pub mssrl: U16,
    /// Maximum Copy Length in logical blocks.
    pub mcl: U32,
    /// Maximum Source Range Count of Copy, 0's based.
    pub msrc: u8,
    /// Key Per I/O status.
    pub kpios: Kpios,
    /// Number of Unique Capability LBA Formats, 0's based.
    pub nulbaf: u8,
    reserved_83: u8,
    /// Key Per I/O Data Access Alignment and Granularity in logical blocks,
    /// 0's based.
    pub kpiodaag: U32,
    reserved_88: [u8; 4],
    /// ANA Group Identifier.
    pub anagrpid: U32,
    reserved_96: [u8; 3],
    /// Namespace attributes.
    pub nsattr: Nsattr,
    /// NVM Set Identifier.
    pub nvmsetid: U16,
    /// Endurance Group Identifier.
    pub endgid: U16,
    /// Namespace Globally Unique Identifier, big-endian; 0 is none.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier, big-endian; 0 is none.
    pub eui64: [u8; 8],
    /// LBA formats.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vs: [u8; 3712],
}

layout!(
    IdentifyNamespace: 4096, nsze @ 0, ncap @ 8, nuse @ 16, nsfeat @ 24, nlbaf @ 25, flbas @ 26,
    mc @ 27, dpc @ 28, dps @ 29, nmic @ 30, rescap @ 31, fpi @ 32, dlfeat @ 33, nawun @ 34,
    nawupf @ 36, nacwu @ 38, nabsn @ 40, nabo @ 42, nabspf @ 44, noiob @ 46, nvmcap @ 48,
    npwg @ 64, npwa @ 66, npdg @ 68, npda @ 70, nows @ 72, mssrl @ 74, mcl @ 76, msrc @ 80,
    kpios @ 81, nulbaf @ 82, kpiodaag @ 84, anagrpid @ 92, nsattr @ 99, nvmsetid @ 100,
    endgid @ 102, nguid @ 104, eui64 @ 120, lbaf @ 128, vs @ 384,
);

impl IdentifyNamespace {
    /// Its bytes on the wire.
    pub const SIZE: usize = size_of::<Self>();

    /// LBA formats, 1..=256, of which at most 64 are described.
    pub const fn format_count(&self) -> u16 {
        (self.nlbaf as u16).saturating_add(1)
    }

    /// LBA formats that are described.
    pub fn formats(&self) -> &[LbaFormat] {
        self.lbaf
            .get(..self.format_count().into())
            .unwrap_or(&self.lbaf)
    }

    /// Index of the format in use. Its upper two bits count only when there
    /// are more than 16 formats.
    pub const fn format_index(&self) -> u8 {
        let index = self.flbas.format_index();
        if self.format_count() > 16 {
            index
        } else {
            index & 0x0f
        }
    }

    /// The format in use, or `None` if the namespace names one it does not
    /// describe.
    pub fn format(&self) -> Option<&LbaFormat> {
        self.formats().get(usize::from(self.format_index()))
    }

    /// Namespace Atomic Write Unit Normal in logical blocks, 1..=65536.
    pub const fn atomic_write_unit(&self) -> u32 {
        one_based(self.nawun)
    }

    /// Namespace Atomic Write Unit Power Fail in logical blocks, 1..=65536.
    pub const fn atomic_write_unit_power_fail(&self) -> u32 {
        one_based(self.nawupf)
    }

    /// Namespace Atomic Compare and Write Unit in logical blocks, 1..=65536.
    pub const fn atomic_compare_write_unit(&self) -> u32 {
        one_based(self.nacwu)
    }

    /// Namespace Atomic Boundary Size Normal in logical blocks, if there is
    /// a boundary.
    pub const fn atomic_boundary(&self) -> Option<u32> {
        boundary(self.nabsn)
    }

    /// Namespace Atomic Boundary Size Power Fail in logical blocks, if there
    /// is a boundary.
    pub const fn atomic_boundary_power_fail(&self) -> Option<u32> {
        boundary(self.nabspf)
    }

    /// Preferred write granularity in logical blocks, 1..=65536.
    pub const fn preferred_write_granularity(&self) -> u32 {
        one_based(self.npwg)
    }

    /// Preferred write alignment in logical blocks, 1..=65536.
    pub const fn preferred_write_alignment(&self) -> u32 {
        one_based(self.npwa)
    }

    /// Preferred deallocate granularity in logical blocks, 1..=65536.
    pub const fn preferred_deallocate_granularity(&self) -> u32 {
        one_based(self.npdg)
    }

    /// Preferred deallocate alignment in logical blocks, 1..=65536.
    pub const fn preferred_deallocate_alignment(&self) -> u32 {
        one_based(self.npda)
    }

    /// Optimal write size in logical blocks, 1..=65536.
    pub const fn optimal_write_size(&self) -> u32 {
        one_based(self.nows)
    }

    /// Source ranges one Copy may have, 1..=256.
    pub const fn copy_range_count(&self) -> u16 {
        (self.msrc as u16).saturating_add(1)
    }
}

const fn one_based(raw: U16) -> u32 {
    (raw.get() as u32).saturating_add(1)
}

const fn boundary(raw: U16) -> Option<u32> {
    match raw.get() {
        0 => None,
        _ => Some(one_based(raw)),
    }
}

/// LBA Format: the sizes of a logical block and its metadata.
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
#[repr(C)]
pub struct LbaFormat {
    /// Metadata Size in bytes.
    pub ms: U16,
    /// LBA Data Size, log2 of bytes; 0 is an unused format.
    pub lbads: u8,
    /// Relative Performance, bits 1:0.
    pub rp: u8,
}

layout!(LbaFormat: 4, ms @ 0, lbads @ 2, rp @ 3);

impl LbaFormat {
    /// A format of best performance with blocks of 2^`lbads` bytes.
    pub const fn new(lbads: u8, ms: u16) -> Self {
        Self {
            ms: U16::new(ms),
            lbads,
            rp: 0,
        }
    }

    /// Bytes of data in a logical block, or `None` for an unused format or
    /// one below the 512 bytes that the specification allows or too large to
    /// count.
    pub const fn block_size(&self) -> Option<u32> {
        if self.lbads < 9 {
            None
        } else {
            1u32.checked_shl(self.lbads as u32)
        }
    }

    /// Performance among the formats of the namespace.
    pub fn performance(&self) -> RelativePerformance {
        RelativePerformance::from(self.rp & 3)
    }
}

open_enum! {
    /// Relative Performance of an LBA format.
    pub enum RelativePerformance: u8 {
        Best = 0 => "Best",
        Better = 1 => "Better",
        Good = 2 => "Good",
        Degraded = 3 => "Degraded",
    }
}

flags! {
    /// Namespace Features, byte 24. Bits 5:4 (`OPTPERF`) say which of the
    /// preferred sizes are valid.
    pub struct Nsfeat: u8 {
        /// Thin provisioning.
        const THINP = 1 << 0;
        /// NAWUN, NAWUPF and NACWU hold for this namespace.
        const NSABP = 1 << 1;
        /// Deallocated or Unwritten Logical Block error.
        const DAE = 1 << 2;
        /// A non-zero NGUID and EUI64 are never reused.
        const UIDREUSE = 1 << 3;
        /// NPWG, NPWA, NPDG, NPDA and NOWS are valid.
        const OPTPERF = 1 << 4;
    }
}

flags! {
    /// Formatted LBA Size, byte 26.
    pub struct Flbas: u8 {
        /// Metadata follows the data of each block.
        const MSET = 1 << 4;
    }
}

impl Flbas {
    /// Index of the format: bits 3:0 below bits 6:5.
    pub const fn format_index(self) -> u8 {
        (self.bits() & 0x0f) | ((self.bits() >> 1) & 0x30)
    }

    /// Sets the index of the format, 0..=63; only its low 6 bits count.
    pub const fn with_format_index(self, index: u8) -> Self {
        Self::from_bits((self.bits() & 0x90) | (index & 0x0f) | ((index & 0x30) << 1))
    }
}

flags! {
    /// Metadata Capabilities, byte 27.
    pub struct Mc: u8 {
        /// Metadata as part of an extended block.
        const MTELBA = 1 << 0;
        /// Metadata in a separate buffer.
        const MTBSUP = 1 << 1;
    }
}

flags! {
    /// End-to-end Data Protection Capabilities, byte 28.
    pub struct Dpc: u8 {
        /// Type 1.
        const PIT1S = 1 << 0;
        /// Type 2.
        const PIT2S = 1 << 1;
        /// Type 3.
        const PIT3S = 1 << 2;
        /// Protection information in the first bytes of metadata.
        const PIIFB = 1 << 3;
        /// Protection information in the last bytes of metadata.
        const PIILB = 1 << 4;
    }
}

flags! {
    /// End-to-end Data Protection Type Settings, byte 29.
    pub struct Dps: u8 {
        /// Protection information is in the first bytes of metadata.
        const PIP = 1 << 3;
    }
}

open_enum! {
    /// Protection Information Type.
    pub enum ProtectionType: u8 {
        None = 0 => "None",
        Type1 = 1 => "Type 1",
        Type2 = 2 => "Type 2",
        Type3 = 3 => "Type 3",
    }
}

impl Dps {
    /// The type that is enabled (bits 2:0).
    pub fn protection(self) -> ProtectionType {
        ProtectionType::from(self.bits() & 7)
    }

    /// Sets the type that is enabled.
    pub const fn with_protection(self, protection: ProtectionType) -> Self {
        Self::from_bits((self.bits() & !7) | (protection.code() & 7))
    }
}

flags! {
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities, byte 30.
    pub struct Nmic: u8 {
        /// The namespace may be attached to several controllers.
        const SHRNS = 1 << 0;
        /// Dispersed namespace.
        const DISNS = 1 << 1;
    }
}

flags! {
    /// Reservation Capabilities, byte 31.
    pub struct Rescap: u8 {
        /// Persist Through Power Loss.
        const PTPLS = 1 << 0;
        /// Write Exclusive.
        const WES = 1 << 1;
        /// Exclusive Access.
        const EAS = 1 << 2;
        /// Write Exclusive, Registrants Only.
        const WEROS = 1 << 3;
        /// Exclusive Access, Registrants Only.
        const EAROS = 1 << 4;
        /// Write Exclusive, All Registrants.
        const WEARS = 1 << 5;
        /// Exclusive Access, All Registrants.
        const EAARS = 1 << 6;
        /// Ignore Existing Key as 1.3 and later define it.
        const IEKS = 1 << 7;
    }
}

flags! {
    /// Format Progress Indicator, byte 32.
    pub struct Fpi: u8 {
        /// The indicator is supported.
        const FPIS = 1 << 7;
    }
}

impl Fpi {
    /// Percentage of the namespace that remains to be formatted (bits 6:0).
    pub const fn remaining_percent(self) -> u8 {
        self.bits() & 0x7f
    }
}

flags! {
    /// Deallocate Logical Block Features, byte 33.
    pub struct Dlfeat: u8 {
        /// Write Zeroes takes the Deallocate bit.
        const WZDS = 1 << 3;
        /// The guard of a deallocated block is a CRC, not FFFFh.
        const GDS = 1 << 4;
    }
}

open_enum! {
    /// What a read of a deallocated block returns.
    pub enum DeallocatedRead: u8 {
        NotReported = 0 => "Not reported",
        Zeroes = 1 => "00h",
        Ones = 2 => "Ffh",
    }
}

impl Dlfeat {
    /// What a read of a deallocated block returns (bits 2:0).
    pub fn read_behavior(self) -> DeallocatedRead {
        DeallocatedRead::from(self.bits() & 7)
    }

    /// Says what a read of a deallocated block returns.
    pub const fn with_read_behavior(self, read: DeallocatedRead) -> Self {
        Self::from_bits((self.bits() & !7) | (read.code() & 7))
    }
}

flags! {
    /// Namespace Attributes, byte 99.
    pub struct Nsattr: u8 {
        /// The namespace is write protected now.
        const CWP = 1 << 0;
    }
}

impl fmt::Display for LbaFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block_size() {
            Some(size) => write!(f, "{size} B + {} B, {}", self.ms, self.performance()),
            None => write!(f, "unused (lbads {})", self.lbads),
        }
    }
}

impl fmt::Display for IdentifyNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.nsze)?;
        match self.format() {
            Some(format) => write!(f, " of {format}"),
            None => f.write_str(" of an undescribed format"),
        }
    }
}

impl Tree for IdentifyNamespace {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: nsze, ncap, nuse, nsfeat)?;
        out.field("nlbaf", self.format_count())?;
        out.field(
            "flbas",
            format_args!("{} (format {})", self.flbas, self.format_index()),
        )?;
        show!(out, self: mc, dpc)?;
        out.field(
            "dps",
            format_args!("{} ({})", self.dps, self.dps.protection()),
        )?;
        show!(out, self: nmic, rescap)?;
        out.field(
            "fpi",
            format_args!("{} ({}% left)", self.fpi, self.fpi.remaining_percent()),
        )?;
        out.field(
            "dlfeat",
            format_args!("{} (reads {})", self.dlfeat, self.dlfeat.read_behavior()),
        )?;
        out.field("nawun", self.atomic_write_unit())?;
        out.field("nawupf", self.atomic_write_unit_power_fail())?;
        out.field("nacwu", self.atomic_compare_write_unit())?;
        out.field("nabsn", OrNone(self.atomic_boundary()))?;
        show!(out, self: nabo)?;
        out.field("nabspf", OrNone(self.atomic_boundary_power_fail()))?;
        show!(out, self: noiob, nvmcap)?;
        out.field("npwg", self.preferred_write_granularity())?;
        out.field("npwa", self.preferred_write_alignment())?;
        out.field("npdg", self.preferred_deallocate_granularity())?;
        out.field("npda", self.preferred_deallocate_alignment())?;
        out.field("nows", self.optimal_write_size())?;
        show!(out, self: mssrl, mcl)?;
        out.field("msrc", self.copy_range_count())?;
        show!(out, self: kpios, nulbaf, kpiodaag, anagrpid, nsattr, nvmsetid, endgid)?;
        out.field("nguid", Hex(&self.nguid))?;
        out.field("eui64", Hex(&self.eui64))?;
        for (index, format) in self.formats().iter().enumerate() {
            let mark = if index == usize::from(self.format_index()) {
                " (in use)"
            } else {
                ""
            };
            out.field("lbaf", format_args!("{index}: {format}{mark}"))?;
        }
        Ok(())
    }
}

struct OrNone(Option<u32>);

impl fmt::Display for OrNone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("none"),
        }
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for LbaFormat {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "LbaFormat(lbads {}, ms {})", self.lbads, self.ms.get());
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for IdentifyNamespace {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(
            f,
            "IdentifyNamespace(nsze {}, {})",
            self.nsze.get(),
            self.format()
        );
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    fn with(changes: &[(usize, &[u8])]) -> IdentifyNamespace {
        let mut bytes = [0; 4096];
        for &(offset, new) in changes {
            bytes[offset..offset + new.len()].copy_from_slice(new);
        }
        IdentifyNamespace::read_from_bytes(&bytes).unwrap()
    }

    #[test]
    fn fields_are_where_the_figure_has_them() {
        let ns = with(&[
            (0, &[0x00, 0x00, 0x08, 0, 0, 0, 0, 0]),
            (24, &[0x14]),
            (26, &[1]),
            (30, &[1]),
            (33, &[0x09]),
            (92, &[7, 0, 0, 0]),
            (104, &[0xaa; 16]),
            (120, &[1, 2, 3, 4, 5, 6, 7, 8]),
            (25, &[1]),
            (130, &[9]),
            (132, &[8, 0, 12, 2]),
        ]);
        assert_eq!(ns.nsze.get(), 0x8_0000);
        assert_eq!(ns.nsfeat, Nsfeat::DAE | Nsfeat::OPTPERF);
        assert_eq!(ns.nmic, Nmic::SHRNS);
        assert!(ns.dlfeat.contains(Dlfeat::WZDS));
        assert_eq!(ns.dlfeat.read_behavior(), DeallocatedRead::Zeroes);
        assert_eq!(ns.anagrpid.get(), 7);
        assert_eq!(ns.nguid, [0xaa; 16]);
        assert_eq!(ns.formats().len(), 2);
        let format = ns.format().unwrap();
        assert_eq!((format.block_size(), format.ms.get()), (Some(4096), 8));
        assert_eq!(format.performance(), RelativePerformance::Good);
        assert_eq!(format!("{ns}"), "524288 blocks of 4096 B + 8 B, Good");
        let tree = format!("{}", ns.tree());
        assert!(tree.contains("eui64: 0102030405060708\n"));
        assert!(tree.contains("lbaf: 0: 512 B + 0 B, Best\n"));
        assert!(tree.contains("lbaf: 1: 4096 B + 8 B, Good (in use)\n"));
    }

    #[test]
    fn zeroes_based_blocks() {
        for (raw, value) in [(0u16, 1), (1, 2), (u16::MAX, 65536)] {
            let [low, high] = raw.to_le_bytes();
            let ns = with(&[
                (34, &[low, high, low, high, low, high]),
                (64, &[low, high, low, high, low, high, low, high, low, high]),
            ]);
            assert_eq!(ns.atomic_write_unit(), value);
            assert_eq!(ns.atomic_write_unit_power_fail(), value);
            assert_eq!(ns.atomic_compare_write_unit(), value);
            assert_eq!(ns.preferred_write_granularity(), value);
            assert_eq!(ns.preferred_write_alignment(), value);
            assert_eq!(ns.preferred_deallocate_granularity(), value);
            assert_eq!(ns.preferred_deallocate_alignment(), value);
            assert_eq!(ns.optimal_write_size(), value);
        }
    }

    #[test]
    fn boundaries_are_absent_at_0() {
        for (raw, value) in [(0u16, None), (1, Some(2)), (u16::MAX, Some(65536))] {
            let bytes = raw.to_le_bytes();
            let ns = with(&[(40, &bytes), (44, &bytes)]);
            assert_eq!(ns.atomic_boundary(), value);
            assert_eq!(ns.atomic_boundary_power_fail(), value);
        }
    }

    #[test]
    fn counts_of_one_byte() {
        for (raw, count) in [(0, 1), (1, 2), (u8::MAX, 256)] {
            let ns = with(&[(25, &[raw]), (80, &[raw])]);
            assert_eq!(ns.format_count(), count);
            assert_eq!(ns.copy_range_count(), count);
            assert_eq!(ns.formats().len(), usize::from(count.min(64)));
        }
    }

    #[test]
    fn format_index_has_two_parts() {
        for (raw, index) in [
            (0x00, 0),
            (0x01, 1),
            (0x1f, 15),
            (0x20, 16),
            (0x6f, 63),
            (0x90, 0),
        ] {
            assert_eq!(Flbas::from_bits(raw).format_index(), index);
        }
        assert_eq!(Flbas::MSET.with_format_index(0).bits(), 0x10);
        assert_eq!(Flbas::MSET.with_format_index(1).bits(), 0x11);
        assert_eq!(Flbas::MSET.with_format_index(u8::MAX).bits(), 0x7f);
        assert_eq!(with(&[(25, &[15]), (26, &[0x61])]).format_index(), 1);
        assert_eq!(with(&[(25, &[16]), (26, &[0x21])]).format_index(), 17);
        assert_eq!(with(&[(25, &[16]), (26, &[0x21])]).format(), None);
    }

    #[test]
    fn block_sizes() {
        for (lbads, size) in [
            (0, None),
            (1, None),
            (9, Some(512)),
            (12, Some(4096)),
            (31, Some(1 << 31)),
            (32, None),
            (255, None),
        ] {
            assert_eq!(LbaFormat::new(lbads, 0).block_size(), size);
        }
    }

    #[test]
    fn packed_bytes() {
        for (raw, protection) in [(0x08, 0), (0x01, 1), (0xff, 7)] {
            assert_eq!(Dps::from_bits(raw).protection().code(), protection);
        }
        assert_eq!(Dps::PIP.with_protection(ProtectionType::Type1).bits(), 0x09);
        assert_eq!(
            Dps::from_bits(0xff)
                .with_protection(ProtectionType::None)
                .bits(),
            0xf8
        );
        for (raw, left) in [(0x80, 0), (0x01, 1), (0xff, 127)] {
            assert_eq!(Fpi::from_bits(raw).remaining_percent(), left);
        }
        for (raw, read) in [(0xf8, 0), (0x01, 1), (0xff, 7)] {
            assert_eq!(Dlfeat::from_bits(raw).read_behavior().code(), read);
        }
        assert_eq!(
            Dlfeat::WZDS
                .with_read_behavior(DeallocatedRead::Zeroes)
                .bits(),
            0x09
        );
        assert_eq!(
            Dlfeat::from_bits(0xff)
                .with_read_behavior(DeallocatedRead::NotReported)
                .bits(),
            0xf8
        );
        for (raw, performance) in [(0xfc, 0), (0x01, 1), (0xff, 3)] {
            let format = LbaFormat {
                rp: raw,
                ..LbaFormat::new(9, 0)
            };
            assert_eq!(format.performance().code(), performance);
        }
    }
}
