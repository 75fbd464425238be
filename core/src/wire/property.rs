//! Controller properties (NVMe Base 2.0, section 3.1.3), the ones that exist
//! over Fabrics.
use core::fmt;

use super::tree::{Tree, TreeWriter};

open_enum! {
    /// A property by its offset in bytes.
    pub enum Property: u32 {
        Cap = 0x00 => "CAP",
        Vs = 0x08 => "VS",
        Cc = 0x14 => "CC",
        Csts = 0x1C => "CSTS",
        Nssr = 0x20 => "NSSR",
        Nssd = 0x64 => "NSSD",
        Crto = 0x68 => "CRTO",
    }
}

impl Property {
    /// The size it is read and written with; `None` for an unknown property.
    pub const fn size(self) -> Option<PropertySize> {
        match self {
            Self::Cap => Some(PropertySize::Eight),
            Self::Unknown(_) => None,
            _ => Some(PropertySize::Four),
        }
    }
}

open_enum! {
    /// The size of a property: ATTRIB bits 2:0 of Property Get and Set.
    pub enum PropertySize: u8 {
        Four = 0 => "4 bytes",
        Eight = 1 => "8 bytes",
    }
}

open_enum! {
    /// CC.CSS: the I/O Command Sets selected.
    pub enum CommandSets: u8 {
        Nvm = 0b000 => "NVM Command Set",
        AllSupported = 0b110 => "All Supported I/O Command Sets",
        AdminOnly = 0b111 => "Admin Command Set only",
    }
}

open_enum! {
    /// CC.SHN: what shutdown the host asks for.
    pub enum Shn: u8 {
        None = 0b00 => "No notification",
        Normal = 0b01 => "Normal shutdown",
        Abrupt = 0b10 => "Abrupt shutdown",
    }
}

open_enum! {
    /// CSTS.SHST: how far a shutdown is.
    pub enum Shst: u8 {
        Normal = 0b00 => "Normal operation",
        Occurring = 0b01 => "Shutdown occurring",
        Complete = 0b10 => "Shutdown complete",
    }
}

enum_bits!(CommandSets, Shn, Shst);

/// Bits of [`Cap::css`].
pub mod css {
    /// The NVM Command Set (CAP bit 37).
    pub const NVM: u8 = 1 << 0;
    /// I/O Command Sets as the Identify I/O Command Set data structure lists
    /// them (CAP bit 43).
    pub const IOCS: u8 = 1 << 6;
    /// No I/O Command Set (CAP bit 44).
    pub const ADMIN_ONLY: u8 = 1 << 7;
}

/// Milliseconds in the unit of CAP.TO and CRTO.
const TIMEOUT_UNIT_MS: u32 = 500;
/// log2 of the bytes of a memory page of size 0.
const PAGE_SHIFT: u32 = 12;

const fn page_size(log2: u8) -> u32 {
    1 << (PAGE_SHIFT.saturating_add(log2 as u32))
}

fn timeout_units(ms: u32) -> u32 {
    ms.div_ceil(TIMEOUT_UNIT_MS)
}

fn saturated<T: TryFrom<u32>>(value: u32, max: T) -> T {
    T::try_from(value).unwrap_or(max)
}

bitfield! {
    /// CAP, Controller Capabilities.
    Cap: u64 {
        mqes / with_mqes: u16 = 0, 16;
        /// CQR: I/O queues must be physically contiguous.
        pub cqr / pub with_cqr: bool = 16, 1;
        /// AMS: arbitration mechanisms beside round robin, a bit each.
        pub ams / pub with_ams: u8 = 17, 2;
        to / with_to: u8 = 24, 8;
        dstrd / with_dstrd: u8 = 32, 4;
        /// NSSRS: NVM Subsystem Reset is supported.
        pub nssrs / pub with_nssrs: bool = 36, 1;
        /// CSS: the Command Sets supported: see [`css`].
        pub css / pub with_css: u8 = 37, 8;
        /// BPS: boot partitions are supported.
        pub bps / pub with_bps: bool = 45, 1;
        /// CPS: Controller Power Scope.
        pub cps / pub with_cps: u8 = 46, 2;
        mpsmin / with_mpsmin: u8 = 48, 4;
        mpsmax / with_mpsmax: u8 = 52, 4;
        /// PMRS: a Persistent Memory Region is supported.
        pub pmrs / pub with_pmrs: bool = 56, 1;
        /// CMBS: a Controller Memory Buffer is supported.
        pub cmbs / pub with_cmbs: bool = 57, 1;
        /// NSSS: NVM Subsystem Shutdown is supported.
        pub nsss / pub with_nsss: bool = 58, 1;
        /// CRWMS: Controller Ready With Media is supported.
        pub crwms / pub with_crwms: bool = 59, 1;
        /// CRIMS: Controller Ready Independent of Media is supported.
        pub crims / pub with_crims: bool = 60, 1;
        /// NSSES: NVM Subsystem Shutdown Enhancements are supported.
        pub nsses / pub with_nsses: bool = 61, 1;
    }
}

impl Cap {
    /// MQES undone: the most entries that an I/O queue may have, 1..=65536.
    pub fn max_queue_entries(self) -> u32 {
        u32::from(self.mqes()).saturating_add(1)
    }

    /// The same with MQES for `entries`, which count from 1 to 65536.
    #[must_use]
    pub fn with_max_queue_entries(self, entries: u32) -> Self {
        self.with_mqes(saturated(entries.saturating_sub(1), u16::MAX))
    }

    /// TO undone: the longest that CSTS.RDY takes to follow CC.EN, in
    /// milliseconds.
    pub fn timeout_ms(self) -> u32 {
        u32::from(self.to()).saturating_mul(TIMEOUT_UNIT_MS)
    }

    /// The same with TO for `ms` milliseconds, rounded up to units of 500 and
    /// no more than 127,500.
    #[must_use]
    pub fn with_timeout_ms(self, ms: u32) -> Self {
        self.with_to(saturated(timeout_units(ms), u8::MAX))
    }

    /// DSTRD undone: bytes between doorbells, 4 over Fabrics.
    pub fn doorbell_stride(self) -> u32 {
        4 << self.dstrd()
    }

    /// MPSMIN undone: the least memory page in bytes. Identify's MDTS counts
    /// in these pages.
    pub fn page_size_min(self) -> u32 {
        page_size(self.mpsmin())
    }

    /// MPSMAX undone: the greatest memory page in bytes.
    pub fn page_size_max(self) -> u32 {
        page_size(self.mpsmax())
    }
}

/// VS, Version: the NVMe Base Specification that a controller follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vs(pub u32);

impl Vs {
    /// NVMe 1.3.
    pub const V1_3: Self = Self::new(1, 3, 0);
    /// NVMe 1.4.
    pub const V1_4: Self = Self::new(1, 4, 0);
    /// NVMe 2.0.
    pub const V2_0: Self = Self::new(2, 0, 0);
    /// NVMe 2.1.
    pub const V2_1: Self = Self::new(2, 1, 0);

    /// The version of these numbers.
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        let [m0, m1] = major.to_le_bytes();
        Self(u32::from_le_bytes([tertiary, minor, m0, m1]))
    }

    /// MJR.
    pub const fn major(self) -> u16 {
        let [_, _, m0, m1] = self.0.to_le_bytes();
        u16::from_le_bytes([m0, m1])
    }

    /// MNR.
    pub const fn minor(self) -> u8 {
        let [_, minor, ..] = self.0.to_le_bytes();
        minor
    }

    /// TER.
    pub const fn tertiary(self) -> u8 {
        let [tertiary, ..] = self.0.to_le_bytes();
        tertiary
    }
}

/// `2.0`, and the tertiary number where it is not 0.
impl fmt::Display for Vs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())?;
        match self.tertiary() {
            0 => Ok(()),
            tertiary => write!(f, ".{tertiary}"),
        }
    }
}

impl Tree for Vs {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("mjr", self.major())?;
        out.field("mnr", self.minor())?;
        out.field("ter", self.tertiary())
    }
}

bitfield! {
    /// CC, Controller Configuration.
    Cc: u32 {
        /// EN: the controller is to process commands.
        pub en / pub with_en: bool = 0, 1;
        /// CSS: the I/O Command Sets selected.
        pub css / pub with_css: CommandSets = 4, 3;
        mps / with_mps: u8 = 7, 4;
        /// AMS: the arbitration mechanism, 0 for round robin.
        pub ams / pub with_ams: u8 = 11, 3;
        /// SHN: the shutdown asked for.
        pub shn / pub with_shn: Shn = 14, 2;
        /// IOSQES: log2 of the bytes of an I/O Submission Queue entry: 6.
        pub iosqes / pub with_iosqes: u8 = 16, 4;
        /// IOCQES: log2 of the bytes of an I/O Completion Queue entry: 4.
        pub iocqes / pub with_iocqes: u8 = 20, 4;
        /// CRIME: become ready independent of media.
        pub crime / pub with_crime: bool = 24, 1;
    }
}

impl Cc {
    /// MPS undone: the memory page in bytes.
    pub fn page_size(self) -> u32 {
        page_size(self.mps())
    }

    /// The same with a memory page of `bytes`, a power of two from 4096 to 128 MiB.
    #[must_use]
    pub fn with_page_size(self, bytes: u32) -> Self {
        let log2 = bytes.max(1).ilog2().saturating_sub(12);
        self.with_mps(u8::try_from(log2).unwrap_or(0))
    }
}

bitfield! {
    /// CSTS, Controller Status.
    Csts: u32 {
        /// RDY: the controller processes commands.
        pub rdy / pub with_rdy: bool = 0, 1;
        /// CFS: a fatal error happened; reset the controller.
        pub cfs / pub with_cfs: bool = 1, 1;
        /// SHST: how far a shutdown is.
        pub shst / pub with_shst: Shst = 2, 2;
        /// NSSRO: an NVM Subsystem Reset occurred.
        pub nssro / pub with_nssro: bool = 4, 1;
        /// PP: processing is paused.
        pub pp / pub with_pp: bool = 5, 1;
        /// ST: `shst` is about an NVM Subsystem Shutdown.
        pub st / pub with_st: bool = 6, 1;
    }
}

/// NSSR, NVM Subsystem Reset: writing [`Nssr::RESET`] resets the subsystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Nssr(pub u32);

impl Nssr {
    /// "NVMe" in ASCII, the first letter in the highest byte.
    pub const RESET: Self = Self(0x4E56_4D65);
}

bitfield! {
    /// CRTO, Controller Ready Timeouts.
    Crto: u32 {
        crwmt / with_crwmt: u16 = 0, 16;
        crimt / with_crimt: u16 = 16, 16;
    }
}

impl Crto {
    /// CRWMT undone: the longest until the controller is ready and its media
    /// too, in milliseconds.
    pub fn ready_with_media_ms(self) -> u32 {
        u32::from(self.crwmt()).saturating_mul(TIMEOUT_UNIT_MS)
    }

    /// The same with CRWMT for `ms` milliseconds, rounded up to units of 500.
    #[must_use]
    pub fn with_ready_with_media_ms(self, ms: u32) -> Self {
        self.with_crwmt(saturated(timeout_units(ms), u16::MAX))
    }

    /// CRIMT undone: the longest until the controller is ready, whatever its
    /// media, in milliseconds.
    pub fn ready_independent_of_media_ms(self) -> u32 {
        u32::from(self.crimt()).saturating_mul(TIMEOUT_UNIT_MS)
    }

    /// The same with CRIMT for `ms` milliseconds, rounded up to units of 500.
    #[must_use]
    pub fn with_ready_independent_of_media_ms(self, ms: u32) -> Self {
        self.with_crimt(saturated(timeout_units(ms), u16::MAX))
    }
}

defmt_as_display!(Vs);

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    /// What a Linux target reports: 128 entries, 7.5 s, NVM and other sets.
    const LINUX_CAP: Cap = Cap(0x0000_0820_0F00_007F);

    #[test]
    fn the_capabilities_of_a_linux_target_read_back() {
        assert_eq!(LINUX_CAP.max_queue_entries(), 128);
        assert_eq!(LINUX_CAP.timeout_ms(), 7500);
        assert_eq!(LINUX_CAP.css(), css::NVM | css::IOCS);
        assert_eq!(LINUX_CAP.doorbell_stride(), 4);
        assert_eq!(LINUX_CAP.page_size_min(), 4096);
        assert_eq!(
            Cap::default()
                .with_max_queue_entries(128)
                .with_timeout_ms(7001)
                .with_css(css::NVM | css::IOCS),
            LINUX_CAP
        );
        assert_eq!(LINUX_CAP.to_string(), "0x8200f00007f mqes 127 to 15 css 65");
    }

    #[test]
    fn each_capability_has_its_bits() {
        for (bits, field) in [
            (1 << 16, Cap::default().with_cqr(true)),
            (0b11 << 17, Cap::default().with_ams(0xFF)),
            (1 << 36, Cap::default().with_nssrs(true)),
            (0xFF << 37, Cap::default().with_css(0xFF)),
            (1 << 45, Cap::default().with_bps(true)),
            (0b11 << 46, Cap::default().with_cps(0xFF)),
            (1 << 56, Cap::default().with_pmrs(true)),
            (1 << 57, Cap::default().with_cmbs(true)),
            (1 << 58, Cap::default().with_nsss(true)),
            (1 << 59, Cap::default().with_crwms(true)),
            (1 << 60, Cap::default().with_crims(true)),
            (1 << 61, Cap::default().with_nsses(true)),
        ] {
            assert_eq!(field, Cap(bits));
        }
        let all = Cap(u64::MAX);
        assert!(all.cqr() && all.nssrs() && all.bps() && all.pmrs() && all.cmbs());
        assert!(all.nsss() && all.crwms() && all.crims() && all.nsses());
        assert_eq!((all.ams(), all.css(), all.cps()), (3, 0xFF, 3));
        assert_eq!(all.with_css(0), Cap(!(0xFF << 37)));
    }

    #[test]
    fn mqes_undoes_the_zero() {
        for (raw, entries) in [(0, 1), (1, 2), (0xFFFF, 0x1_0000)] {
            assert_eq!(Cap(raw).max_queue_entries(), entries);
            assert_eq!(Cap::default().with_max_queue_entries(entries), Cap(raw));
        }
        assert_eq!(Cap::default().with_max_queue_entries(0), Cap(0));
        assert_eq!(Cap::default().with_max_queue_entries(u32::MAX), Cap(0xFFFF));
    }

    #[test]
    fn timeouts_are_in_units_of_500_ms() {
        for (raw, ms) in [(0, 0), (1, 500), (0xFF, 127_500)] {
            assert_eq!(Cap(raw << 24).timeout_ms(), ms);
            assert_eq!(Cap::default().with_timeout_ms(ms), Cap(raw << 24));
        }
        assert_eq!(Cap::default().with_timeout_ms(u32::MAX), Cap(0xFF << 24));
        for (raw, ms) in [(0, 0), (1, 500), (0xFFFF, 32_767_500)] {
            assert_eq!(Crto(raw).ready_with_media_ms(), ms);
            assert_eq!(Crto(raw << 16).ready_independent_of_media_ms(), ms);
            assert_eq!(Crto::default().with_ready_with_media_ms(ms), Crto(raw));
            assert_eq!(
                Crto::default().with_ready_independent_of_media_ms(ms),
                Crto(raw << 16)
            );
        }
    }

    #[test]
    fn pages_and_strides_are_powers_of_two() {
        for (raw, bytes) in [(0, 4096), (1, 8192), (15, 128 << 20)] {
            assert_eq!(Cap(raw << 48).page_size_min(), bytes);
            assert_eq!(Cap(raw << 52).page_size_max(), bytes);
        }
        for (raw, bytes) in [(0, 4096), (1, 8192), (15, 128 << 20)] {
            assert_eq!(Cc(raw << 7).page_size(), bytes);
            assert_eq!(Cc::default().with_page_size(bytes), Cc(raw << 7));
        }
        for (raw, bytes) in [(0, 4), (1, 8), (15, 4 << 15)] {
            assert_eq!(Cap(raw << 32).doorbell_stride(), bytes);
        }
    }

    #[test]
    fn the_configuration_of_a_linux_host_reads_back() {
        let cc = Cc(0x0046_0001);
        assert!(cc.en() && !cc.crime());
        assert_eq!((cc.iosqes(), cc.iocqes(), cc.ams()), (6, 4, 0));
        assert_eq!((cc.css(), cc.shn()), (CommandSets::Nvm, Shn::None));
        assert_eq!(cc.with_en(false), Cc(0x0046_0000));
        assert_eq!(cc.with_shn(Shn::Normal), Cc(0x0046_4001));
        assert_eq!(cc.with_css(CommandSets::AllSupported), Cc(0x0046_0061));
        let all = Cc(u32::MAX);
        assert_eq!((all.css(), all.ams()), (CommandSets::AdminOnly, 7));
        assert_eq!((all.shn(), all.iosqes()), (Shn::Unknown(3), 15));
        assert_eq!(Cc::default().with_ams(0xFF), Cc(0x3800));
        assert_eq!(Cc::default().with_crime(true), Cc(1 << 24));
    }

    #[test]
    fn the_status_has_its_bits() {
        assert_eq!(Csts::default().with_rdy(true), Csts(1));
        assert_eq!(Csts::default().with_cfs(true), Csts(2));
        assert_eq!(Csts(1).with_shst(Shst::Complete), Csts(0b1001));
        assert_eq!(Csts(0b1001).shst(), Shst::Complete);
        assert_eq!(Csts(0b1111).with_shst(Shst::Normal), Csts(0b11));
        assert_eq!(Csts::default().with_nssro(true), Csts(1 << 4));
        assert_eq!(Csts::default().with_pp(true), Csts(1 << 5));
        assert_eq!(Csts::default().with_st(true), Csts(1 << 6));
    }

    #[test]
    fn a_version_has_three_numbers() {
        assert_eq!(Vs::V2_1, Vs(0x0002_0100));
        assert_eq!(Vs(0x0001_0301).to_string(), "1.3.1");
        assert_eq!(Vs(0x0002_0000).to_string(), "2.0");
        assert_eq!(Vs(u32::MAX).major(), 0xFFFF);
        assert!(Vs::V1_4 < Vs::V2_0);
    }

    #[test]
    fn properties_have_their_sizes() {
        assert_eq!(Property::from(0).size(), Some(PropertySize::Eight));
        assert_eq!(Property::from(0x14), Property::Cc);
        assert_eq!(Property::Cc.size(), Some(PropertySize::Four));
        assert_eq!(Property::from(0x15).size(), None);
        assert_eq!(Nssr::RESET.0.to_be_bytes(), *b"NVMe");
    }
}
