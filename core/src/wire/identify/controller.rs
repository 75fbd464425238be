//! Identify Controller, CNS 01h (NVMe Base 2.1, section 5.1.13.2.1).
use core::fmt;

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::capability::*;
use super::power::PowerState;
use crate::wire::ids::{Nqn, NqnError};
use crate::wire::text::{Hex, Padded, Printable};
use crate::wire::tree::{Tree, TreeWriter};

/// Identify Controller data. `FromZeros::new_zeroed` gives a controller that
/// can nothing; text fields of a real one are padded with spaces.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI vendor identifier.
    pub vid: U16,
    /// PCI subsystem vendor identifier.
    pub ssvid: U16,
    /// Serial number.
    pub sn: Padded<20>,
    /// Model number.
    pub mn: Padded<40>,
    /// Firmware revision.
    pub fr: Padded<8>,
    /// Recommended Arbitration Burst, log2 of commands.
    pub rab: u8,
    /// IEEE OUI, least significant byte first.
    pub ieee: [u8; 3],
    /// Multi-path I/O and namespace sharing.
    pub cmic: Cmic,
    /// Maximum Data Transfer Size, log2 of CAP.MPSMIN pages; 0 is no limit.
    pub mdts: u8,
    /// Controller identifier.
    pub cntlid: U16,
    /// Version, as the VS property has it: major 31:16, minor 15:8.
    pub ver: U32,
    /// RTD3 resume latency in microseconds.
    pub rtd3r: U32,
    /// RTD3 entry latency in microseconds.
    pub rtd3e: U32,
    /// Optional asynchronous events.
    pub oaes: Oaes,
    /// Controller attributes.
    pub ctratt: Ctratt,
    /// Read Recovery Levels, a bit each.
    pub rrls: U16,
    /// Boot partition capabilities.
    pub bpcap: Bpcap,
    reserved_103: u8,
    /// NVM Subsystem Shutdown Latency in microseconds.
    pub nssl: U32,
    reserved_108: [u8; 2],
    /// Power loss signaling.
    pub plsi: Plsi,
    /// Controller type, see [`Self::controller_type`].
    pub cntrltype: u8,
    /// FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// Command Retry Delay Time 1 in 100 ms units.
    pub crdt1: U16,
    /// Command Retry Delay Time 2 in 100 ms units.
    pub crdt2: U16,
    /// Command Retry Delay Time 3 in 100 ms units.
    pub crdt3: U16,
    /// Reachability capabilities.
    pub crcap: Crcap,
    reserved_135: [u8; 118],
    /// NVM subsystem report.
    pub nvmsr: Nvmsr,
    /// VPD write cycles.
    pub vwci: Vwci,
    /// Management endpoint capabilities.
    pub mec: Mec,
    /// Optional admin commands.
    pub oacs: Oacs,
    /// Abort Command Limit, 0's based.
    pub acl: u8,
    /// Asynchronous Event Request Limit, 0's based.
    pub aerl: u8,
    /// Firmware updates.
    pub frmw: Frmw,
    /// Log page attributes.
    pub lpa: Lpa,
    /// Error Log Page Entries, 0's based.
    pub elpe: u8,
    /// Number of Power States, 0's based.
    pub npss: u8,
    /// Vendor specific admin commands.
    pub avscc: VendorFormat,
    /// Autonomous power state transitions.
    pub apsta: Apsta,
    /// Warning composite temperature threshold in kelvins.
    pub wctemp: U16,
    /// Critical composite temperature threshold in kelvins.
    pub cctemp: U16,
    /// Maximum Time for Firmware Activation in 100 ms units.
    pub mtfa: U16,
    /// Host memory buffer preferred size in 4 KiB units.
    pub hmpre: U32,
    /// Host memory buffer minimum size in 4 KiB units.
    pub hmmin: U32,
    /// Total NVM capacity in bytes.
    pub tnvmcap: U128,
    /// Unallocated NVM capacity in bytes.
    pub unvmcap: U128,
    /// Replay Protected Memory Block support.
    pub rpmbs: Rpmbs,
    /// Extended Device Self-test Time in minutes.
    pub edstt: U16,
    /// Device self-test options.
    pub dsto: Dsto,
    /// Firmware Update Granularity in 4 KiB units; 0 unknown, FFh none.
    pub fwug: u8,
    /// Keep Alive granularity in 100 ms units; 0 is no Keep Alive.
    pub kas: U16,
    /// Host controlled thermal management.
    pub hctma: Hctma,
    /// Minimum thermal management temperature in kelvins.
    pub mntmt: U16,
    /// Maximum thermal management temperature in kelvins.
    pub mxtmt: U16,
    /// Sanitize capabilities.
    pub sanicap: Sanicap,
    /// Host memory buffer minimum descriptor size in 4 KiB units.
    pub hmminds: U32,
    /// Host memory buffer maximum descriptors.
    pub hmmaxd: U16,
    /// Largest NVM Set identifier.
    pub nsetidmax: U16,
    /// Largest Endurance Group identifier.
    pub endgidmax: U16,
    /// ANA Transition Time in seconds.
    pub anatt: u8,
    /// Asymmetric namespace access capabilities.
    pub anacap: Anacap,
    /// Largest ANA group identifier.
    pub anagrpmax: U32,
    /// Number of ANA groups.
    pub nanagrpid: U32,
    /// Persistent Event Log Size in 64 KiB units.
    pub pels: U32,
    /// Domain that contains this controller.
    pub domainid: U16,
    /// Key Per I/O capabilities.
    pub kpioc: Kpioc,
    reserved_359: u8,
    /// Maximum time for firmware activation without reset in 100 ms units.
    pub mptfawr: U16,
    reserved_362: [u8; 6],
    /// Maximum Endurance Group Capacity in bytes.
    pub megcap: U128,
    /// Temperature Threshold Hysteresis Attributes; bits 2:0 the largest in kelvins.
    pub tmpthha: u8,
    reserved_385: u8,
    /// Command Quiesce Time in milliseconds.
    pub cqt: U16,
    reserved_388: [u8; 124],
    /// Submission queue entry sizes, see [`Self::sq_entry_sizes`].
    pub sqes: u8,
    /// Completion queue entry sizes, see [`Self::cq_entry_sizes`].
    pub cqes: u8,
    /// Maximum outstanding commands a queue.
    pub maxcmd: U16,
    /// Number of Namespaces: the largest NSID.
    pub nn: U32,
    /// Optional NVM commands.
    pub oncs: Oncs,
    /// Fused operations.
    pub fuses: Fuses,
    /// Format NVM attributes.
    pub fna: Fna,
    /// Volatile write cache.
    pub vwc: Vwc,
    /// Atomic Write Unit Normal in logical blocks, 0's based.
    pub awun: U16,
    /// Atomic Write Unit Power Fail in logical blocks, 0's based.
    pub awupf: U16,
    /// Vendor specific I/O commands.
    pub icsvscc: VendorFormat,
    /// Namespace write protection.
    pub nwpc: Nwpc,
    /// Atomic Compare and Write Unit in logical blocks, 0's based.
    pub acwu: U16,
    /// Copy descriptor formats.
    pub ocfs: Ocfs,
    /// SGL support.
    pub sgls: Sgls,
    /// Maximum Number of Allowed Namespaces.
    pub mnan: U32,
    /// Maximum Domain Namespace Attachments.
    pub maxdna: U128,
    /// Maximum I/O Controller Namespace Attachments.
    pub maxcna: U32,
    /// Optimal Aggregated Queue Depth.
    pub oaqd: U32,
    /// Recommended Host-Initiated Refresh Interval in days.
    pub rhiri: u8,
    /// Host-Initiated Refresh Time in minutes.
    pub hirt: u8,
    /// Controller Maximum Memory Range Tracking Descriptors.
    pub cmmrtd: U16,
    /// NVM Subsystem Maximum Memory Range Tracking Descriptors.
    pub nmmrtd: U16,
    /// Minimum Memory Range Tracking Granularity, log2 of CAP.MPSMIN pages.
    pub minmrtg: u8,
    /// Maximum Memory Range Tracking Granularity, log2 of CAP.MPSMIN pages.
    pub maxmrtg: u8,
    /// Tracking attributes.
    pub trattr: Trattr,
    reserved_577: u8,
    /// Maximum Controller User Data Migration Queues.
    pub mcudmq: U16,
    /// Maximum NVM Subsystem User Data Migration Queues.
    pub mnsudmq: U16,
    /// Maximum CDQ Memory Ranges.
    pub mcmr: U16,
    /// NVM Subsystem Maximum CDQ Memory Ranges.
    pub nmcmr: U16,
    /// Maximum Controller Data Queue PRP Count.
    pub mcdqpc: U16,
    reserved_588: [u8; 180],
    /// NQN of the subsystem, padded with NUL.
    pub subnqn: [u8; 256],
    reserved_1024: [u8; 768],
    /// I/O Queue Command Capsule Supported Size in 16-byte units.
    pub ioccsz: U32,
    /// I/O Queue Response Capsule Supported Size in 16-byte units.
    pub iorcsz: U32,
    /// In Capsule Data Offset in 16-byte units.
    pub icdoff: U16,
    /// Fabrics controller attributes.
    pub fcatt: Fcatt,
    /// Maximum SGL Data Block Descriptors in a capsule; 0 is no limit.
    pub msdbd: u8,
    /// Optional Fabrics commands.
    pub ofcs: Ofcs,
    /// Discovery controller type, see [`Self::discovery_type`].
    pub dctype: u8,
    reserved_1807: [u8; 241],
    /// Power state descriptors.
    pub psd: [PowerState; 32],
    /// Vendor specific.
    pub vs: [u8; 1024],
}

layout!(
    IdentifyController: 4096, vid @ 0, ssvid @ 2, sn @ 4, mn @ 24, fr @ 64, rab @ 72, ieee @ 73,
    cmic @ 76, mdts @ 77, cntlid @ 78, ver @ 80, rtd3r @ 84, rtd3e @ 88, oaes @ 92, ctratt @ 96,
    rrls @ 100, bpcap @ 102, nssl @ 104, plsi @ 110, cntrltype @ 111, fguid @ 112, crdt1 @ 128,
    crdt2 @ 130, crdt3 @ 132, crcap @ 134, nvmsr @ 253, vwci @ 254, mec @ 255, oacs @ 256,
    acl @ 258, aerl @ 259, frmw @ 260, lpa @ 261, elpe @ 262, npss @ 263, avscc @ 264,
    apsta @ 265, wctemp @ 266, cctemp @ 268, mtfa @ 270, hmpre @ 272, hmmin @ 276, tnvmcap @ 280,
    unvmcap @ 296, rpmbs @ 312, edstt @ 316, dsto @ 318, fwug @ 319, kas @ 320, hctma @ 322,
    mntmt @ 324, mxtmt @ 326, sanicap @ 328, hmminds @ 332, hmmaxd @ 336, nsetidmax @ 338,
    endgidmax @ 340, anatt @ 342, anacap @ 343, anagrpmax @ 344, nanagrpid @ 348, pels @ 352,
    domainid @ 356, kpioc @ 358, mptfawr @ 360, megcap @ 368, tmpthha @ 384, cqt @ 386,
    sqes @ 512, cqes @ 513, maxcmd @ 514, nn @ 516, oncs @ 520, fuses @ 522, fna @ 524, vwc @ 525,
    awun @ 526, awupf @ 528, icsvscc @ 530, nwpc @ 531, acwu @ 532, ocfs @ 534, sgls @ 536,
    mnan @ 540, maxdna @ 544, maxcna @ 560, oaqd @ 564, rhiri @ 568, hirt @ 569, cmmrtd @ 570,
    nmmrtd @ 572, minmrtg @ 574, maxmrtg @ 575, trattr @ 576, mcudmq @ 578, mnsudmq @ 580,
    mcmr @ 582, nmcmr @ 584, mcdqpc @ 586, subnqn @ 768, ioccsz @ 1792, iorcsz @ 1796,
    icdoff @ 1800, fcatt @ 1802, msdbd @ 1803, ofcs @ 1804, dctype @ 1806, psd @ 2048, vs @ 3072,
);

impl IdentifyController {
    /// Its bytes on the wire.
    pub const SIZE: usize = size_of::<Self>();

    /// The subsystem's name.
    ///
    /// # Errors
    /// [`NqnError`] if the field holds none.
    pub fn subsystem(&self) -> Result<Nqn, NqnError> {
        Nqn::parse(&self.subnqn)
    }

    /// What kind of controller this is; 0 is a controller older than 1.4.
    pub fn controller_type(&self) -> ControllerType {
        ControllerType::from(self.cntrltype)
    }

    /// What kind of discovery controller this is.
    pub fn discovery_type(&self) -> DiscoveryType {
        DiscoveryType::from(self.dctype)
    }

    /// Largest data transfer in bytes for a minimum page of `page` bytes
    /// (CAP.MPSMIN), `None` for no limit.
    pub const fn max_data_transfer(&self, page: u32) -> Option<u64> {
        match self.mdts {
            0 => None,
            mdts => match 1u64.checked_shl(mdts as u32) {
                Some(pages) => Some(pages.saturating_mul(page as u64)),
                None => None,
            },
        }
    }

    /// Abort commands that may be outstanding, 1..=256.
    pub const fn abort_limit(&self) -> u16 {
        one_based(self.acl)
    }

    /// Asynchronous Event Requests that may be outstanding, 1..=256.
    pub const fn aer_limit(&self) -> u16 {
        one_based(self.aerl)
    }

    /// Error Information log entries that are kept, 1..=256.
    pub const fn error_log_entries(&self) -> u16 {
        one_based(self.elpe)
    }

    /// Power states, 1..=256, of which at most 32 are described.
    pub const fn power_state_count(&self) -> u16 {
        one_based(self.npss)
    }

    /// Power states that are described.
    pub fn power_states(&self) -> &[PowerState] {
        self.psd
            .get(..self.power_state_count().into())
            .unwrap_or(&self.psd)
    }

    /// Submission queue entry sizes.
    pub const fn sq_entry_sizes(&self) -> QueueEntrySizes {
        QueueEntrySizes::from_raw(self.sqes)
    }

    /// Completion queue entry sizes.
    pub const fn cq_entry_sizes(&self) -> QueueEntrySizes {
        QueueEntrySizes::from_raw(self.cqes)
    }

    /// Atomic Write Unit Normal in logical blocks, 1..=65536.
    pub const fn atomic_write_unit(&self) -> u32 {
        one_based_blocks(self.awun)
    }

    /// Atomic Write Unit Power Fail in logical blocks, 1..=65536.
    pub const fn atomic_write_unit_power_fail(&self) -> u32 {
        one_based_blocks(self.awupf)
    }

    /// Atomic Compare and Write Unit in logical blocks, 1..=65536.
    pub const fn atomic_compare_write_unit(&self) -> u32 {
        one_based_blocks(self.acwu)
    }

    /// Largest command capsule on an I/O queue in bytes, its 64-byte SQE
    /// included.
    pub const fn command_capsule_size(&self) -> u64 {
        (self.ioccsz.get() as u64).saturating_mul(16)
    }

    /// Bytes of data that fit into a command capsule on an I/O queue.
    pub const fn in_capsule_data_size(&self) -> u64 {
        self.command_capsule_size().saturating_sub(64)
    }
}

const fn one_based(raw: u8) -> u16 {
    (raw as u16).saturating_add(1)
}

const fn one_based_blocks(raw: U16) -> u32 {
    (raw.get() as u32).saturating_add(1)
}

open_enum! {
    /// Controller Type, byte 111.
    pub enum ControllerType: u8 {
        NotReported = 0 => "Not reported",
        Io = 1 => "I/O",
        Discovery = 2 => "Discovery",
        Administrative = 3 => "Administrative",
    }
}

open_enum! {
    /// Discovery Controller Type, byte 1806.
    pub enum DiscoveryType: u8 {
        NotReported = 0 => "Not reported",
        Direct = 1 => "Direct",
        Central = 2 => "Central",
    }
}

impl fmt::Display for IdentifyController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "controller {:#x} of {}, sn {}, mn {}, fr {}, {} controller",
            self.cntlid,
            Printable::terminated(&self.subnqn),
            self.sn,
            self.mn,
            self.fr,
            self.controller_type()
        )
    }
}

impl Tree for IdentifyController {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: vid = "{:#06x}", ssvid = "{:#06x}", sn, mn, fr, rab)?;
        let [low, middle, high] = self.ieee;
        out.field("ieee", Hex(&[high, middle, low]))?;
        show!(out, self:
            cmic, mdts, cntlid = "{:#x}", ver = "{:#x}", rtd3r = "{} us", rtd3e = "{} us", oaes,
            ctratt, rrls = "{:#x}", bpcap, nssl = "{} us", plsi,
        )?;
        out.field("cntrltype", self.controller_type())?;
        out.field("fguid", Hex(&self.fguid))?;
        show!(out, self:
            crdt1 = "{} x 100 ms", crdt2 = "{} x 100 ms", crdt3 = "{} x 100 ms", crcap, nvmsr,
            vwci, mec, oacs,
        )?;
        out.field("acl", self.abort_limit())?;
        out.field("aerl", self.aer_limit())?;
        show!(out, self: frmw, lpa)?;
        out.field("elpe", self.error_log_entries())?;
        out.field("npss", self.power_state_count())?;
        show!(out, self:
            avscc, apsta, wctemp = "{} K", cctemp = "{} K", mtfa = "{} x 100 ms",
            hmpre = "{} x 4 KiB", hmmin = "{} x 4 KiB", tnvmcap, unvmcap, rpmbs, edstt = "{} min",
            dsto, fwug, kas = "{} x 100 ms", hctma, mntmt = "{} K", mxtmt = "{} K", sanicap,
            hmminds = "{} x 4 KiB", hmmaxd, nsetidmax, endgidmax, anatt = "{} s", anacap,
            anagrpmax, nanagrpid, pels = "{} x 64 KiB", domainid, kpioc, mptfawr = "{} x 100 ms",
            megcap, tmpthha = "{:#x}", cqt = "{} ms",
        )?;
        out.field("sqes", self.sq_entry_sizes())?;
        out.field("cqes", self.cq_entry_sizes())?;
        show!(out, self: maxcmd, nn, oncs, fuses, fna, vwc)?;
        out.field("awun", self.atomic_write_unit())?;
        out.field("awupf", self.atomic_write_unit_power_fail())?;
        show!(out, self: icsvscc, nwpc)?;
        out.field("acwu", self.atomic_compare_write_unit())?;
        show!(out, self:
            ocfs, sgls, mnan, maxdna, maxcna, oaqd, rhiri = "{} d", hirt = "{} min", cmmrtd,
            nmmrtd, minmrtg, maxmrtg, trattr, mcudmq, mnsudmq, mcmr, nmcmr, mcdqpc,
        )?;
        out.field("subnqn", Printable::terminated(&self.subnqn))?;
        show!(out, self:
            ioccsz = "{} x 16 B", iorcsz = "{} x 16 B", icdoff = "{} x 16 B", fcatt, msdbd, ofcs,
        )?;
        out.field("dctype", self.discovery_type())?;
        for (index, state) in self.power_states().iter().enumerate() {
            out.node(format_args!("ps {index}"), state)?;
        }
        Ok(())
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for IdentifyController {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(
            f,
            "IdentifyController(cntlid {:#x}, {})",
            self.cntlid.get(),
            self.sn
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::format;
    use std::vec::Vec;

    use super::*;

    fn with(changes: &[(usize, &[u8])]) -> IdentifyController {
        let mut bytes = [0; 4096];
        for &(offset, new) in changes {
            bytes[offset..offset + new.len()].copy_from_slice(new);
        }
        IdentifyController::read_from_bytes(&bytes).unwrap()
    }

    #[test]
    fn fields_are_where_the_figure_has_them() {
        let id = with(&[
            (0, &[0x4d, 0x14]),
            (4, b"S1                  "),
            (24, b"disk"),
            (78, &[0x02, 0x01]),
            (80, &[0x00, 0x01, 0x02, 0x00]),
            (92, &[0x00, 0x09, 0x00, 0x80]),
            (96, &[0x41, 0, 0, 0]),
            (111, &[1]),
            (320, &[10, 0]),
            (516, &[0x00, 0x04, 0, 0]),
            (520, &[0x0c, 0]),
            (536, &[1, 0, 0x10, 0]),
            (768, b"nqn.x\0"),
            (1792, &[0x04, 0x02, 0, 0]),
            (1796, &[1, 0, 0, 0]),
            (1804, &[1, 0]),
        ]);
        assert_eq!(id.vid.get(), 0x144d);
        assert_eq!(id.sn.trimmed(), b"S1");
        assert_eq!(id.mn.trimmed(), b"disk");
        assert_eq!(id.cntlid.get(), 0x0102);
        assert_eq!(id.ver.get(), 0x0002_0100);
        assert_eq!(id.oaes, Oaes::NSAN | Oaes::ANACN | Oaes::DLPCN);
        assert_eq!(id.ctratt, Ctratt::HIDS | Ctratt::TBKAS);
        assert_eq!(id.controller_type(), ControllerType::Io);
        assert_eq!(id.kas.get(), 10);
        assert_eq!(id.nn.get(), 1024);
        assert_eq!(id.oncs, Oncs::NVMDSMSV | Oncs::NVMWZSV);
        assert_eq!(id.sgls.support(), SglSupport::AnyAlignment);
        assert!(id.sgls.contains(Sgls::ADDROFF));
        assert_eq!(id.subsystem().unwrap().as_str(), "nqn.x");
        assert_eq!(id.command_capsule_size(), 8256);
        assert_eq!(id.in_capsule_data_size(), 8192);
        assert!(id.ofcs.contains(Ofcs::DCS));
        assert_eq!(
            format!("{id}"),
            "controller 0x102 of nqn.x, sn S1, mn disk, fr , I/O controller"
        );
    }

    #[test]
    fn zeroes_based_bytes() {
        for (raw, value) in [(0, 1), (1, 2), (u8::MAX, 256)] {
            let id = with(&[(258, &[raw, raw]), (262, &[raw, raw])]);
            assert_eq!(id.abort_limit(), value);
            assert_eq!(id.aer_limit(), value);
            assert_eq!(id.error_log_entries(), value);
            assert_eq!(id.power_state_count(), value);
            assert_eq!(id.power_states().len(), usize::from(value.min(32)));
        }
    }

    #[test]
    fn zeroes_based_blocks() {
        for (raw, value) in [(0u16, 1), (1, 2), (u16::MAX, 65536)] {
            let bytes = raw.to_le_bytes();
            let id = with(&[(526, &bytes), (528, &bytes), (532, &bytes)]);
            assert_eq!(id.atomic_write_unit(), value);
            assert_eq!(id.atomic_write_unit_power_fail(), value);
            assert_eq!(id.atomic_compare_write_unit(), value);
        }
    }

    #[test]
    fn mdts_is_a_power_of_two_of_pages() {
        for (mdts, bytes) in [
            (0, None),
            (1, Some(8192)),
            (5, Some(131_072)),
            (63, Some(u64::MAX)),
            (64, None),
            (255, None),
        ] {
            assert_eq!(with(&[(77, &[mdts])]).max_data_transfer(4096), bytes);
        }
    }

    #[test]
    fn capsule_size_does_not_wrap() {
        assert_eq!(with(&[]).in_capsule_data_size(), 0);
        assert_eq!(with(&[(1792, &[1, 0, 0, 0])]).command_capsule_size(), 16);
        assert_eq!(
            with(&[(1792, &[0xff; 4])]).command_capsule_size(),
            0xf_ffff_fff0
        );
    }

    #[test]
    fn entry_sizes_and_discovery_type_have_their_bytes() {
        let id = with(&[(512, &[0x66, 0x44]), (1806, &[2])]);
        assert_eq!(id.sq_entry_sizes(), QueueEntrySizes { min: 6, max: 6 });
        assert_eq!(id.cq_entry_sizes(), QueueEntrySizes { min: 4, max: 4 });
        assert_eq!(id.discovery_type(), DiscoveryType::Central);
    }

    #[test]
    fn tree_names_every_field_once() {
        let changes: [(usize, &[u8]); 3] = [(73, &[0x38, 0x25, 0]), (512, &[0x66]), (525, &[7])];
        let tree = format!("{}", with(&changes).tree());
        let lines: Vec<_> = tree.lines().filter(|line| !line.starts_with(' ')).collect();
        let names: BTreeSet<_> = lines
            .iter()
            .filter_map(|line| line.split(':').next())
            .collect();
        assert_eq!(names.len(), lines.len());
        // The fields of the figure without the vendor's, and `ps 0` for `psd`.
        assert_eq!(lines.len(), 108);
        for line in [
            "ieee: 002538",
            "acl: 1",
            "sqes: 2^6..2^6 B",
            "vwc: 0x7 VWCP",
            "ioccsz: 0 x 16 B",
            "ps 0:",
        ] {
            assert!(lines.contains(&line), "{line}");
        }
    }
}
