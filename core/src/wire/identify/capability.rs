//! The bit fields of Identify Controller (NVMe Base 2.1,
//! figure "Identify Controller Data Structure"): what a
//! controller can do.

flags! {
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities, byte 76.
    pub struct Cmic: u8 {
        /// The subsystem may have more than one port.
        const MPORTS = 1 << 0;
        /// The subsystem may have more than one controller.
        const MCTRS = 1 << 1;
        /// The controller is an SR-IOV virtual function.
        const FT = 1 << 2;
        /// Asymmetric Namespace Access is reported.
        const ANARS = 1 << 3;
    }
}

flags! {
    /// Optional Asynchronous Events Supported, byte 92. The bits are where
    /// the Asynchronous Event Configuration feature has them.
    pub struct Oaes: u32 {
        /// Attached Namespace Attribute notices.
        const NSAN = 1 << 8;
        /// Firmware Activation notices.
        const FAN = 1 << 9;
        /// Asymmetric Namespace Access Change notices.
        const ANACN = 1 << 11;
        /// Predictable Latency Event Aggregate Log Change notices.
        const PLEALCN = 1 << 12;
        /// LBA Status Information Alert notices.
        const LBASIAN = 1 << 13;
        /// Endurance Group Event Aggregate Log Page Change notices.
        const EGEALPCN = 1 << 14;
        /// Normal NVM Subsystem Shutdown event.
        const NNVMSS = 1 << 15;
        /// Temperature Threshold Hysteresis Recovery event.
        const TTHRY = 1 << 16;
        /// Reachability Groups Change notices.
        const RGCNS = 1 << 17;
        /// Allocated Namespace Attribute notices.
        const ANSAN = 1 << 19;
        /// Zone Descriptor Changed notices.
        const ZDCN = 1 << 27;
        /// Discovery Log Page Change notices.
        const DLPCN = 1 << 31;
    }
}

flags! {
    /// Controller Attributes, byte 96.
    pub struct Ctratt: u32 {
        /// 128-bit host identifiers.
        const HIDS = 1 << 0;
        /// Non-Operational Power State Permissive Mode.
        const NOPSPM = 1 << 1;
        /// NVM Sets.
        const NSETS = 1 << 2;
        /// Read Recovery Levels.
        const RRLVLS = 1 << 3;
        /// Endurance Groups.
        const EGS = 1 << 4;
        /// Predictable Latency Mode.
        const PLM = 1 << 5;
        /// Traffic Based Keep Alive: any command restarts the timer.
        const TBKAS = 1 << 6;
        /// Namespace Granularity list.
        const NG = 1 << 7;
        /// SQ Associations.
        const SQA = 1 << 8;
        /// UUID list.
        const ULIST = 1 << 9;
        /// Multi-Domain Subsystem.
        const MDS = 1 << 10;
        /// Fixed Capacity Management.
        const FCM = 1 << 11;
        /// Variable Capacity Management.
        const VCM = 1 << 12;
        /// Delete Endurance Group.
        const DEG = 1 << 13;
        /// Delete NVM Set.
        const DNVMS = 1 << 14;
        /// Extended LBA Formats: more than 16 of them.
        const ELBAS = 1 << 15;
        /// MDTS and size limits exclude metadata.
        const MEM = 1 << 16;
        /// Host Memory Buffer restricts non-operational access.
        const HMBR = 1 << 17;
        /// Reservations and Host Identifier Interaction.
        const RHII = 1 << 18;
        /// Flexible Data Placement.
        const FDPS = 1 << 19;
    }
}

flags! {
    /// Boot Partition Capabilities, byte 102. Bits 1:0 say whether RPMB
    /// protects boot partitions (0 not specified, 1 no, 2 yes).
    pub struct Bpcap: u8 {
        /// Set Features protects boot partitions.
        const SFBPWPS = 1 << 2;
    }
}

flags! {
    /// Power Loss Signaling Information, byte 110.
    pub struct Plsi: u8 {
        /// Emergency power fail processing.
        const PLSEPF = 1 << 0;
        /// Forced quiescence processing.
        const PLSFQ = 1 << 1;
    }
}

flags! {
    /// Controller Reachability Capabilities, byte 134.
    pub struct Crcap: u8 {
        /// Reachability reporting.
        const RRSUP = 1 << 0;
        /// The reachability group of a namespace may change.
        const RGIDC = 1 << 1;
    }
}

flags! {
    /// NVM Subsystem Report, byte 253.
    pub struct Nvmsr: u8 {
        /// Part of a storage device.
        const NVMESD = 1 << 0;
        /// Part of an enclosure.
        const NVMEE = 1 << 1;
    }
}

flags! {
    /// VPD Write Cycle Information, byte 254. Bits 6:0 count the cycles left.
    pub struct Vwci: u8 {
        /// The count of the cycles left is valid.
        const VWCRV = 1 << 7;
    }
}

flags! {
    /// Management Endpoint Capabilities, byte 255.
    pub struct Mec: u8 {
        /// On an SMBus or I2C port.
        const TWPME = 1 << 0;
        /// On a PCIe port.
        const PCIEME = 1 << 1;
    }
}

flags! {
    /// Optional Admin Command Support, byte 256.
    pub struct Oacs: u16 {
        /// Security Send and Receive.
        const SSRS = 1 << 0;
        /// Format NVM.
        const FNVMS = 1 << 1;
        /// Firmware Commit and Firmware Image Download.
        const FWDS = 1 << 2;
        /// Namespace Management and Attachment.
        const NMS = 1 << 3;
        /// Device Self-test.
        const DSTS = 1 << 4;
        /// Directives.
        const DIRS = 1 << 5;
        /// NVMe-MI Send and Receive.
        const NSRS = 1 << 6;
        /// Virtualization Management.
        const VMS = 1 << 7;
        /// Doorbell Buffer Config.
        const DBCS = 1 << 8;
        /// Get LBA Status.
        const GLSS = 1 << 9;
        /// Command and Feature Lockdown.
        const CFLS = 1 << 10;
        /// Host Managed Live Migration.
        const HMLMS = 1 << 11;
    }
}

flags! {
    /// Firmware Updates, byte 260.
    pub struct Frmw: u8 {
        /// Slot 1 is read only.
        const FFSRO = 1 << 0;
        /// Activation without a reset.
        const FAWR = 1 << 4;
        /// Overlapping updates are detected.
        const SMUD = 1 << 5;
    }
}

impl Frmw {
    /// Number of firmware slots, 1..=7 (bits 3:1).
    pub const fn slots(self) -> u8 {
        (self.bits() >> 1) & 7
    }

    /// Sets the number of firmware slots; only the low 3 bits count.
    pub const fn with_slots(self, slots: u8) -> Self {
        Self::from_bits((self.bits() & !0x0e) | ((slots & 7) << 1))
    }
}

flags! {
    /// Log Page Attributes, byte 261.
    pub struct Lpa: u8 {
        /// SMART / Health information per namespace.
        const SMARTS = 1 << 0;
        /// Commands Supported and Effects.
        const CSES = 1 << 1;
        /// Extended data: NUMDU and the log page offset.
        const LPEDS = 1 << 2;
        /// Telemetry.
        const TS = 1 << 3;
        /// Persistent Event log.
        const PES = 1 << 4;
        /// Log pages 00h, 12h and 13h, and command scopes in log page 05h.
        const MLPS = 1 << 5;
        /// Telemetry data area 4.
        const DA4S = 1 << 6;
    }
}

flags! {
    /// Admin or I/O Command Set Vendor Specific Command Configuration, bytes
    /// 264 and 530.
    pub struct VendorFormat: u8 {
        /// Vendor specific commands have the NDT and NDM fields.
        const VSCF = 1 << 0;
    }
}

flags! {
    /// Autonomous Power State Transition Attributes, byte 265.
    pub struct Apsta: u8 {
        /// Autonomous transitions.
        const APSTS = 1 << 0;
    }
}

flags! {
    /// Replay Protected Memory Block Support, byte 312. Bits 2:0 count the
    /// targets, 5:3 name the authentication, 23:16 and 31:24 are sizes.
    pub struct Rpmbs: u32 {}
}

flags! {
    /// Device Self-test Options, byte 318.
    pub struct Dsto: u8 {
        /// One operation at a time in the whole subsystem.
        const SDSO = 1 << 0;
        /// Host-Initiated Refresh.
        const HIRS = 1 << 1;
    }
}

flags! {
    /// Host Controlled Thermal Management Attributes, byte 322.
    pub struct Hctma: u16 {
        /// Host controlled thermal management.
        const HCTMS = 1 << 0;
    }
}

flags! {
    /// Sanitize Capabilities, byte 328. Bits 31:30 say whether sanitizing
    /// without deallocation modifies the media.
    pub struct Sanicap: u32 {
        /// Crypto Erase.
        const CES = 1 << 0;
        /// Block Erase.
        const BES = 1 << 1;
        /// Overwrite.
        const OWS = 1 << 2;
        /// Media Verification and Post-Verification Deallocation states.
        const VERS = 1 << 3;
        /// No-Deallocate is inhibited.
        const NDI = 1 << 29;
    }
}

flags! {
    /// Asymmetric Namespace Access Capabilities, byte 343.
    pub struct Anacap: u8 {
        /// ANA Optimized can be reported.
        const ROS = 1 << 0;
        /// ANA Non-Optimized can be reported.
        const RNOS = 1 << 1;
        /// ANA Inaccessible can be reported.
        const RIS = 1 << 2;
        /// ANA Persistent Loss can be reported.
        const RPLS = 1 << 3;
        /// ANA Change can be reported.
        const RCS = 1 << 4;
        /// The ANAGRPID of an attached namespace does not change.
        const NCANAGRPID = 1 << 6;
        /// Namespace Management takes a non-zero ANAGRPID.
        const NZANAGRPID = 1 << 7;
    }
}

flags! {
    /// Key Per I/O Capabilities, byte 358.
    pub struct Kpioc: u8 {
        /// Key Per I/O.
        const KPIOS = 1 << 0;
        /// Its scope is the whole controller.
        const KPIOSC = 1 << 1;
    }
}

/// Sizes of a queue's entries as powers of two of bytes (SQES, CQES).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QueueEntrySizes {
    /// Required entry size, log2 of bytes (bits 3:0).
    pub min: u8,
    /// Largest entry size, log2 of bytes (bits 7:4).
    pub max: u8,
}

impl QueueEntrySizes {
    /// Undoes the packing.
    pub const fn from_raw(raw: u8) -> Self {
        Self {
            min: raw & 0x0f,
            max: raw >> 4,
        }
    }

    /// Packs both; only their low 4 bits count.
    pub const fn raw(self) -> u8 {
        (self.max << 4) | (self.min & 0x0f)
    }
}

impl core::fmt::Display for QueueEntrySizes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "2^{}..2^{} B", self.min, self.max)
    }
}

flags! {
    /// Optional NVM Command Support, byte 520.
    pub struct Oncs: u16 {
        /// Compare.
        const NVMCMPS = 1 << 0;
        /// Write Uncorrectable.
        const NVMWUSV = 1 << 1;
        /// Dataset Management.
        const NVMDSMSV = 1 << 2;
        /// Write Zeroes.
        const NVMWZSV = 1 << 3;
        /// The Save and Select fields of Set and Get Features.
        const SSFS = 1 << 4;
        /// Reservations.
        const RESERVS = 1 << 5;
        /// The Timestamp feature.
        const TSS = 1 << 6;
        /// Verify.
        const NVMVFYS = 1 << 7;
        /// Copy.
        const NVMCPYS = 1 << 8;
        /// Copy is a single atomic write.
        const NVMCSA = 1 << 9;
        /// All copies are fast.
        const NVMAFC = 1 << 10;
        /// Largest Write Zeroes with deallocation is reported (WZDSL).
        const MAXWZD = 1 << 11;
        /// Write Zeroes to a whole namespace.
        const NSZS = 1 << 12;
    }
}

flags! {
    /// Fused Operation Support, byte 522.
    pub struct Fuses: u16 {
        /// Compare and Write.
        const FCWS = 1 << 0;
    }
}

flags! {
    /// Format NVM Attributes, byte 524.
    pub struct Fna: u8 {
        /// A format applies to all namespaces.
        const FNS = 1 << 0;
        /// A secure erase applies to all namespaces.
        const SENS = 1 << 1;
        /// Cryptographic erase.
        const CRYES = 1 << 2;
        /// Format NVM does not take the broadcast NSID.
        const BCNSID = 1 << 3;
    }
}

flags! {
    /// Volatile Write Cache, byte 525.
    pub struct Vwc: u8 {
        /// A volatile write cache is present, so Flush means something.
        const VWCP = 1 << 0;
    }
}

open_enum! {
    /// What Flush does with NSID FFFFFFFFh (bits 2:1 of VWC).
    pub enum FlushBehavior: u8 {
        NotIndicated = 0 => "Not indicated",
        NoBroadcast = 2 => "No broadcast",
        Broadcast = 3 => "Broadcast",
    }
}

impl Vwc {
    /// What Flush does with the broadcast NSID.
    pub fn flush_behavior(self) -> FlushBehavior {
        FlushBehavior::from((self.bits() >> 1) & 3)
    }

    /// Says what Flush does with the broadcast NSID.
    pub const fn with_flush_behavior(self, behavior: FlushBehavior) -> Self {
        Self::from_bits((self.bits() & !0x06) | ((behavior.code() & 3) << 1))
    }
}

flags! {
    /// Namespace Write Protection Capabilities, byte 531.
    pub struct Nwpc: u8 {
        /// No Write Protect and Write Protect.
        const NWPWPS = 1 << 0;
        /// Write Protect Until Power Cycle.
        const WPUPCS = 1 << 1;
        /// Permanent Write Protect.
        const PWPS = 1 << 2;
    }
}

flags! {
    /// Optional Copy Formats Supported, byte 534.
    pub struct Ocfs: u16 {
        /// Copy descriptor format 0h.
        const F0CS = 1 << 0;
        /// Copy descriptor format 1h.
        const F1CS = 1 << 1;
        /// Copy descriptor format 2h: between namespaces.
        const F2CS = 1 << 2;
        /// Copy descriptor format 3h: between namespaces.
        const F3CS = 1 << 3;
    }
}

flags! {
    /// SGL Support, byte 536.
    pub struct Sgls: u32 {
        /// Keyed SGL Data Block descriptor.
        const KSDBD = 1 << 2;
        /// SGL Bit Bucket descriptor.
        const SBBD = 1 << 16;
        /// Metadata may be in one byte-aligned contiguous buffer.
        const MBCA = 1 << 17;
        /// An SGL may be longer than the data.
        const LSGLGT = 1 << 18;
        /// MPTR may hold an SGL descriptor.
        const MPTRSGL = 1 << 19;
        /// The address of a descriptor may be an offset.
        const ADDROFF = 1 << 20;
        /// Transport SGL Data Block descriptor.
        const TSDBD = 1 << 21;
    }
}

open_enum! {
    /// SGLs in I/O commands (bits 1:0 of SGLS).
    pub enum SglSupport: u8 {
        None = 0 => "None",
        AnyAlignment = 1 => "Any alignment",
        Dword = 2 => "Dword aligned",
    }
}

impl Sgls {
    /// Whether SGLs are supported, and their alignment.
    pub fn support(self) -> SglSupport {
        SglSupport::from(self.0[0] & 3)
    }

    /// Says whether SGLs are supported, and their alignment.
    pub const fn with_support(mut self, support: SglSupport) -> Self {
        self.0[0] = (self.0[0] & !3) | (support.code() & 3);
        self
    }

    /// SGL Descriptor Threshold: more descriptors than this are slow; 0 says
    /// nothing (bits 15:8).
    pub const fn descriptor_threshold(self) -> u8 {
        self.0[1]
    }
}

flags! {
    /// Tracking Attributes, byte 576.
    pub struct Trattr: u8 {
        /// Track Host Memory Changes.
        const THMCS = 1 << 0;
        /// Track User Data Changes.
        const TUDCS = 1 << 1;
        /// Memory Range Tracking Length Limit.
        const MRTLL = 1 << 2;
    }
}

flags! {
    /// Fabrics Controller Attributes, byte 1802.
    pub struct Fcatt: u8 {
        /// Static controllers; clear means a dynamic one a Connect.
        const CM = 1 << 0;
    }
}

flags! {
    /// Optional Fabrics Commands Supported, byte 1804.
    pub struct Ofcs: u16 {
        /// Disconnect.
        const DCS = 1 << 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_slots_are_bits_3_to_1() {
        for (raw, slots) in [(0x00, 0), (0x02, 1), (0x0e, 7), (0xf1, 0), (0xff, 7)] {
            assert_eq!(Frmw::from_bits(raw).slots(), slots);
        }
        assert_eq!(Frmw::FFSRO.with_slots(0).bits(), 0x01);
        assert_eq!(Frmw::FFSRO.with_slots(1).bits(), 0x03);
        assert_eq!(Frmw::from_bits(0xff).with_slots(1).bits(), 0xf3);
        assert_eq!(Frmw::default().with_slots(u8::MAX).bits(), 0x0e);
    }

    #[test]
    fn flush_behavior_is_bits_2_to_1() {
        for (raw, behavior) in [
            (0x01, FlushBehavior::NotIndicated),
            (0x02, FlushBehavior::Unknown(1)),
            (0x05, FlushBehavior::NoBroadcast),
            (0xff, FlushBehavior::Broadcast),
        ] {
            assert_eq!(Vwc::from_bits(raw).flush_behavior(), behavior);
        }
        assert_eq!(
            Vwc::VWCP
                .with_flush_behavior(FlushBehavior::Broadcast)
                .bits(),
            0x07
        );
        assert_eq!(
            Vwc::from_bits(0x07)
                .with_flush_behavior(FlushBehavior::NotIndicated)
                .bits(),
            0x01
        );
    }

    #[test]
    fn queue_entry_sizes_are_two_nibbles() {
        for (raw, min, max) in [
            (0, 0, 0),
            (0x11, 1, 1),
            (0x66, 6, 6),
            (0x4f, 15, 4),
            (0xff, 15, 15),
        ] {
            let sizes = QueueEntrySizes { min, max };
            assert_eq!(QueueEntrySizes::from_raw(raw), sizes);
            assert_eq!(sizes.raw(), raw);
        }
    }

    #[test]
    fn sgl_support_is_bits_1_to_0() {
        assert_eq!(Sgls::default().support(), SglSupport::None);
        assert_eq!(
            Sgls::from_bits(0x0010_0005).support(),
            SglSupport::AnyAlignment
        );
        assert_eq!(Sgls::from_bits(u32::MAX).support(), SglSupport::Unknown(3));
        assert_eq!(
            Sgls::KSDBD.with_support(SglSupport::AnyAlignment).bits(),
            0x5
        );
        assert_eq!(
            Sgls::from_bits(u32::MAX)
                .with_support(SglSupport::None)
                .bits(),
            0xffff_fffc
        );
    }

    #[test]
    fn sgl_descriptor_threshold_is_bits_15_to_8() {
        for (raw, threshold) in [(0x00ff_00ff, 0), (0x100, 1), (0xff00, 255)] {
            assert_eq!(Sgls::from_bits(raw).descriptor_threshold(), threshold);
        }
    }
}
