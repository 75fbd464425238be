//! I/O commands (NVMe Base 2.0, section 7; NVM Command Set 1.0, section 3.2).
use core::fmt;

use super::{bit, bits, dwords, flags, join};
use crate::wire::ids::Nsid;
use crate::wire::macros::{enum_bits, open_enum};
use crate::wire::reservation::ReservationType;
use crate::wire::sqe::{IoOpcode, Sqe};

pub use crate::wire::range::{CopyRange, DsmRange};

/// A command of an I/O Queue that is no Fabrics command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IoCommand {
    /// Flush.
    Flush {
        /// The namespace, or [`Nsid::ALL`].
        nsid: Nsid,
    },
    /// Write.
    Write(Blocks),
    /// Read.
    Read(Blocks),
    /// Write Uncorrectable.
    WriteUncorrectable(Blocks),
    /// Compare.
    Compare(Blocks),
    /// Write Zeroes.
    WriteZeroes {
        /// Which blocks.
        blocks: Blocks,
        /// DEAC: they may be deallocated, if they then read as zeroes.
        deallocate: bool,
    },
    /// Dataset Management.
    DatasetManagement(DatasetManagement),
    /// Verify.
    Verify(Blocks),
    /// Copy.
    Copy(CopyBlocks),
    /// Reservation Register.
    ReservationRegister(ReservationRegister),
    /// Reservation Report.
    ReservationReport(ReservationReport),
    /// Reservation Acquire.
    ReservationAcquire(ReservationAcquire),
    /// Reservation Release.
    ReservationRelease(ReservationRelease),
    /// Any other command, Fabrics among them.
    Other(IoOpcode),
}

/// Which logical blocks a command is about, and how it treats them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Blocks {
    /// The namespace.
    pub nsid: Nsid,
    /// Starting LBA: the first logical block.
    pub slba: u64,
    /// NLB undone: number of logical blocks, 1..=65536.
    pub nlb: u32,
    /// Force Unit Access: with the medium, not with a volatile cache.
    pub fua: bool,
    /// Limited Retry: fail rather than try for long.
    pub lr: bool,
    /// What to do with protection information.
    pub prinfo: Prinfo,
    /// The tags that protection information is checked against or made of.
    pub tags: ProtectionTags,
    /// Directive Type, of Write.
    pub dtype: u8,
    /// Directive Specific, of Write.
    pub dspec: u16,
    /// Dataset Management hints of Read and Write.
    pub dsm: u8,
}

impl Blocks {
    /// The block behind the last; `None` if there is no such number.
    pub const fn end(&self) -> Option<u64> {
        self.slba.checked_add(self.nlb as u64)
    }
}

/// PRINFO, and the storage tag check beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Prinfo {
    /// PRACT: the controller inserts or strips the information.
    pub pract: bool,
    /// PRCHK bit 2: check the guard.
    pub check_guard: bool,
    /// PRCHK bit 1: check the application tag.
    pub check_application_tag: bool,
    /// PRCHK bit 0: check the reference tag.
    pub check_reference_tag: bool,
    /// STC: check the storage tag.
    pub check_storage_tag: bool,
}

impl Prinfo {
    /// From the four bits of PRINFO and STC.
    fn new(prinfo: u8, check_storage_tag: bool) -> Self {
        Self {
            pract: prinfo & 0b1000 != 0,
            check_guard: prinfo & 0b0100 != 0,
            check_application_tag: prinfo & 0b0010 != 0,
            check_reference_tag: prinfo & 0b0001 != 0,
            check_storage_tag,
        }
    }
}

/// Tags of protection information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ProtectionTags {
    /// (Expected) Initial Logical Block Storage and Reference Tag, its low 32
    /// bits.
    pub reference: u32,
    /// (Expected) Logical Block Application Tag.
    pub application: u16,
    /// (Expected) Logical Block Application Tag Mask.
    pub application_mask: u16,
}

impl ProtectionTags {
    fn decode(sqe: &Sqe) -> Self {
        Self {
            reference: sqe.cdw14.get(),
            application: bits(sqe.cdw15, 0..=15),
            application_mask: bits(sqe.cdw15, 16..=31),
        }
    }
}

/// Dataset Management (NVM Command Set 1.0, section 3.2.3). Its data are
/// [`DsmRange`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DatasetManagement {
    /// The namespace.
    pub nsid: Nsid,
    /// NR undone: number of ranges, 1..=256.
    pub ranges: u16,
    /// Integral Dataset for Read: the ranges will be read together.
    pub idr: bool,
    /// Integral Dataset for Write: the ranges will be written together.
    pub idw: bool,
    /// Attribute – Deallocate.
    pub ad: bool,
}

/// Copy (NVM Command Set 1.0, section 3.2.2). Its data are, for format 0,
/// [`CopyRange`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CopyBlocks {
    /// The namespace.
    pub nsid: Nsid,
    /// Starting Destination LBA.
    pub sdlba: u64,
    /// NR undone: number of source ranges, 1..=256.
    pub ranges: u16,
    /// Descriptor Format of the source ranges.
    pub desfmt: u8,
    /// Force Unit Access, for the destination.
    pub fua: bool,
    /// Limited Retry.
    pub lr: bool,
    /// What to do with protection information when reading.
    pub prinfo_read: Prinfo,
    /// What to do with protection information when writing.
    pub prinfo_write: Prinfo,
    /// The tags to write.
    pub tags: ProtectionTags,
    /// Directive Type.
    pub dtype: u8,
    /// Directive Specific.
    pub dspec: u16,
}

open_enum! {
    /// RREGA of Reservation Register.
    pub enum RegisterAction: u8 {
        Register = 0 => "register",
        Unregister = 1 => "unregister",
        Replace = 2 => "replace",
    }
}

open_enum! {
    /// CPTPL of Reservation Register: Change Persist Through Power Loss.
    pub enum ChangePtpl: u8 {
        NoChange = 0b00 => "unchanged",
        Clear = 0b10 => "released at power loss",
        Set = 0b11 => "kept through power loss",
    }
}

open_enum! {
    /// RACQA of Reservation Acquire.
    pub enum AcquireAction: u8 {
        Acquire = 0 => "acquire",
        Preempt = 1 => "preempt",
        PreemptAndAbort = 2 => "preempt and abort",
    }
}

open_enum! {
    /// RRELA of Reservation Release.
    pub enum ReleaseAction: u8 {
        Release = 0 => "release",
        Clear = 1 => "clear",
    }
}

enum_bits!(RegisterAction, ChangePtpl, AcquireAction, ReleaseAction);

/// Reservation Register (NVMe Base 2.0, section 7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReservationRegister {
    /// The namespace.
    pub nsid: Nsid,
    /// What to do.
    pub rrega: RegisterAction,
    /// Ignore Existing Key.
    pub iekey: bool,
    /// What becomes of reservations at power loss.
    pub cptpl: ChangePtpl,
}

/// Reservation Report (NVMe Base 2.0, section 7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReservationReport {
    /// The namespace.
    pub nsid: Nsid,
    /// NUMD undone: bytes to return, 4..=2^34.
    pub len: u64,
    /// Extended Data Structure: with host identifiers of 128 bits.
    pub eds: bool,
}

/// Reservation Acquire (NVMe Base 2.0, section 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReservationAcquire {
    /// The namespace.
    pub nsid: Nsid,
    /// What to do.
    pub racqa: AcquireAction,
    /// Ignore Existing Key.
    pub iekey: bool,
    /// Reservation Type.
    pub rtype: ReservationType,
}

/// Reservation Release (NVMe Base 2.0, section 7.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReservationRelease {
    /// The namespace.
    pub nsid: Nsid,
    /// What to do.
    pub rrela: ReleaseAction,
    /// Ignore Existing Key.
    pub iekey: bool,
    /// Reservation Type.
    pub rtype: ReservationType,
}

impl IoCommand {
    /// Decodes an entry of an I/O Queue.
    #[inline]
    pub fn decode(sqe: &Sqe) -> Self {
        match sqe.io_opcode() {
            IoOpcode::Flush => Self::Flush { nsid: sqe.nsid() },
            IoOpcode::Write => Self::Write(Blocks::decode(sqe)),
            IoOpcode::Read => Self::Read(Blocks::decode(sqe)),
            IoOpcode::WriteUncorrectable => Self::WriteUncorrectable(Blocks::decode(sqe)),
            IoOpcode::Compare => Self::Compare(Blocks::decode(sqe)),
            IoOpcode::WriteZeroes => Self::WriteZeroes {
                blocks: Blocks::decode(sqe),
                deallocate: bit(sqe.cdw12, 25),
            },
            IoOpcode::DatasetManagement => Self::DatasetManagement(DatasetManagement::decode(sqe)),
            IoOpcode::Verify => Self::Verify(Blocks::decode(sqe)),
            IoOpcode::Copy => Self::Copy(CopyBlocks::decode(sqe)),
            IoOpcode::ReservationRegister => Self::ReservationRegister(ReservationRegister {
                nsid: sqe.nsid(),
                rrega: bits(sqe.cdw10, 0..=2),
                iekey: bit(sqe.cdw10, 3),
                cptpl: bits(sqe.cdw10, 30..=31),
            }),
            IoOpcode::ReservationReport => Self::ReservationReport(ReservationReport {
                nsid: sqe.nsid(),
                len: dwords(sqe.cdw10.get()),
                eds: bit(sqe.cdw11, 0),
            }),
            IoOpcode::ReservationAcquire => Self::ReservationAcquire(ReservationAcquire {
                nsid: sqe.nsid(),
                racqa: bits(sqe.cdw10, 0..=2),
                iekey: bit(sqe.cdw10, 3),
                rtype: bits(sqe.cdw10, 8..=15),
            }),
            IoOpcode::ReservationRelease => Self::ReservationRelease(ReservationRelease {
                nsid: sqe.nsid(),
                rrela: bits(sqe.cdw10, 0..=2),
                iekey: bit(sqe.cdw10, 3),
                rtype: bits(sqe.cdw10, 8..=15),
            }),
            other => Self::Other(other),
        }
    }

    /// Which command this is.
    pub fn opcode(&self) -> IoOpcode {
        match self {
            Self::Flush { .. } => IoOpcode::Flush,
            Self::Write(_) => IoOpcode::Write,
            Self::Read(_) => IoOpcode::Read,
            Self::WriteUncorrectable(_) => IoOpcode::WriteUncorrectable,
            Self::Compare(_) => IoOpcode::Compare,
            Self::WriteZeroes { .. } => IoOpcode::WriteZeroes,
            Self::DatasetManagement(_) => IoOpcode::DatasetManagement,
            Self::Verify(_) => IoOpcode::Verify,
            Self::Copy(_) => IoOpcode::Copy,
            Self::ReservationRegister(_) => IoOpcode::ReservationRegister,
            Self::ReservationReport(_) => IoOpcode::ReservationReport,
            Self::ReservationAcquire(_) => IoOpcode::ReservationAcquire,
            Self::ReservationRelease(_) => IoOpcode::ReservationRelease,
            Self::Other(opcode) => *opcode,
        }
    }
}

impl Blocks {
    #[inline]
    fn decode(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid(),
            slba: join(sqe.cdw10, sqe.cdw11),
            nlb: bits::<u32>(sqe.cdw12, 0..=15).saturating_add(1),
            fua: bit(sqe.cdw12, 30),
            lr: bit(sqe.cdw12, 31),
            prinfo: Prinfo::new(bits(sqe.cdw12, 26..=29), bit(sqe.cdw12, 24)),
            tags: ProtectionTags::decode(sqe),
            dtype: bits(sqe.cdw12, 20..=23),
            dspec: bits(sqe.cdw13, 16..=31),
            dsm: bits(sqe.cdw13, 0..=7),
        }
    }
}

impl DatasetManagement {
    fn decode(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid(),
            ranges: ranges(sqe.cdw10),
            idr: bit(sqe.cdw11, 0),
            idw: bit(sqe.cdw11, 1),
            ad: bit(sqe.cdw11, 2),
        }
    }
}

impl CopyBlocks {
    fn decode(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid(),
            sdlba: join(sqe.cdw10, sqe.cdw11),
            ranges: ranges(sqe.cdw12),
            desfmt: bits(sqe.cdw12, 8..=11),
            fua: bit(sqe.cdw12, 30),
            lr: bit(sqe.cdw12, 31),
            prinfo_read: Prinfo::new(bits(sqe.cdw12, 12..=15), bit(sqe.cdw12, 25)),
            prinfo_write: Prinfo::new(bits(sqe.cdw12, 26..=29), bit(sqe.cdw12, 24)),
            tags: ProtectionTags::decode(sqe),
            dtype: bits(sqe.cdw12, 20..=23),
            dspec: bits(sqe.cdw13, 16..=31),
        }
    }
}

/// NR, bits 7:0, 0's based.
fn ranges(cdw: zerocopy::little_endian::U32) -> u16 {
    bits::<u16>(cdw, 0..=7).saturating_add(1)
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nsid, slba, nlb, ..
        } = self;
        write!(f, "nsid {nsid} slba {slba} nlb {nlb}")?;
        flags(
            f,
            &[
                (self.fua, "fua"),
                (self.lr, "lr"),
                (self.prinfo != Prinfo::default(), "prinfo"),
            ],
        )
    }
}

impl fmt::Display for IoCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.opcode().fmt(f)?;
        match self {
            Self::Flush { nsid } => write!(f, " nsid {nsid}"),
            Self::Write(blocks)
            | Self::Read(blocks)
            | Self::WriteUncorrectable(blocks)
            | Self::Compare(blocks)
            | Self::Verify(blocks) => write!(f, " {blocks}"),
            Self::WriteZeroes { blocks, deallocate } => {
                write!(f, " {blocks}")?;
                flags(f, &[(*deallocate, "deallocate")])
            }
            Self::DatasetManagement(dsm) => {
                write!(f, " nsid {} ranges {}", dsm.nsid, dsm.ranges)?;
                let all = [(dsm.ad, "deallocate"), (dsm.idr, "idr"), (dsm.idw, "idw")];
                flags(f, &all)
            }
            Self::Copy(copy) => {
                let CopyBlocks {
                    nsid,
                    sdlba,
                    ranges,
                    ..
                } = copy;
                write!(f, " nsid {nsid} sdlba {sdlba} ranges {ranges}")?;
                flags(f, &[(copy.fua, "fua"), (copy.lr, "lr")])
            }
            Self::ReservationRegister(register) => {
                let ReservationRegister {
                    nsid, rrega, cptpl, ..
                } = register;
                write!(f, " nsid {nsid} {rrega}, {cptpl}")?;
                flags(f, &[(register.iekey, "iekey")])
            }
            Self::ReservationReport(report) => {
                write!(f, " nsid {} {} B", report.nsid, report.len)?;
                flags(f, &[(report.eds, "eds")])
            }
            Self::ReservationAcquire(acquire) => {
                let ReservationAcquire {
                    nsid, racqa, rtype, ..
                } = acquire;
                write!(f, " nsid {nsid} {racqa}, {rtype}")?;
                flags(f, &[(acquire.iekey, "iekey")])
            }
            Self::ReservationRelease(release) => {
                let ReservationRelease {
                    nsid, rrela, rtype, ..
                } = release;
                write!(f, " nsid {nsid} {rrela}, {rtype}")?;
                flags(f, &[(release.iekey, "iekey")])
            }
            Self::Other(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::super::tests::sqe;
    use super::*;

    fn read(at: &[(usize, &[u8])]) -> Blocks {
        let mut sqe = sqe(at);
        sqe.opcode = 0x02;
        match IoCommand::decode(&sqe) {
            IoCommand::Read(blocks) => blocks,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_write_of_a_linux_host_reads_back() {
        // NSID 1, LBA 0, NLB 7, CID 5.
        let sqe = sqe(&[(0, &[0x01, 0x40, 5, 0, 1]), (39, &[0x5A]), (48, &[7])]);
        let command = IoCommand::decode(&sqe);
        assert_eq!(command.to_string(), "Write nsid 1 slba 0 nlb 8");
        let IoCommand::Write(blocks) = command else {
            panic!("{command}");
        };
        assert_eq!((blocks.nlb, blocks.end()), (8, Some(8)));
        assert!(!blocks.fua && !blocks.lr);
    }

    #[test]
    fn nlb_undoes_the_zero() {
        for (raw, nlb) in [([0, 0], 1), ([1, 0], 2), ([0xFF, 0xFF], 0x1_0000)] {
            assert_eq!(read(&[(48, &raw)]).nlb, nlb);
        }
        assert_eq!(read(&[(40, &[0xFF; 8])]).end(), None);
    }

    #[test]
    fn each_field_of_a_read_is_apart() {
        let nothing = Blocks {
            nsid: Nsid(0),
            slba: 0,
            nlb: 1,
            fua: false,
            lr: false,
            prinfo: Prinfo::default(),
            tags: ProtectionTags::default(),
            dtype: 0,
            dspec: 0,
            dsm: 0,
        };
        assert_eq!(read(&[]), nothing);
        let prinfo = |prinfo| Blocks { prinfo, ..nothing };
        let cdw12 = |bit: u32| read(&[(48, &(1u32 << bit).to_le_bytes())]);
        assert!(cdw12(31).lr && cdw12(30).fua);
        for (bit, expected) in [
            (24, Prinfo::new(0, true)),
            (26, Prinfo::new(1, false)),
            (27, Prinfo::new(2, false)),
            (28, Prinfo::new(4, false)),
            (29, Prinfo::new(8, false)),
        ] {
            assert_eq!(cdw12(bit), prinfo(expected));
        }
        assert!(cdw12(26).prinfo.check_reference_tag);
        assert!(cdw12(27).prinfo.check_application_tag);
        assert!(cdw12(28).prinfo.check_guard && cdw12(29).prinfo.pract);
        assert_eq!((cdw12(20).dtype, cdw12(23).dtype), (1, 8));

        let all = read(&[
            (4, &[0xFF; 4]),
            (40, &[1, 2, 3, 4, 5, 6, 7, 8]),
            (52, &[9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]),
        ]);
        assert_eq!((all.nsid, all.slba), (Nsid::ALL, 0x0807_0605_0403_0201));
        assert_eq!((all.dsm, all.dspec), (9, 0x0C0B));
        assert_eq!(
            all.tags,
            ProtectionTags {
                reference: 0x100F_0E0D,
                application: 0x1211,
                application_mask: 0x1413,
            }
        );
    }

    #[test]
    fn write_zeroes_says_whether_to_deallocate() {
        for (byte, expected) in [(0x00, false), (0x02, true)] {
            let command = IoCommand::decode(&sqe(&[(0, &[0x08]), (51, &[byte])]));
            assert!(matches!(
                command,
                IoCommand::WriteZeroes { deallocate, .. } if deallocate == expected
            ));
        }
    }

    #[test]
    fn dataset_management_counts_ranges() {
        // A Linux host's blkdiscard: one range, Deallocate.
        let discard = sqe(&[(0, &[0x09, 0x40, 5, 0, 1]), (44, &[4])]);
        assert_eq!(
            IoCommand::decode(&discard).to_string(),
            "Dataset Management nsid 1 ranges 1 deallocate"
        );
        for (nr, ranges) in [(0, 1), (1, 2), (0xFF, 256)] {
            let sqe = sqe(&[(0, &[0x09]), (40, &[nr, 0xFF]), (44, &[0b11])]);
            assert_eq!(
                IoCommand::decode(&sqe),
                IoCommand::DatasetManagement(DatasetManagement {
                    nsid: Nsid(0),
                    ranges,
                    idr: true,
                    idw: true,
                    ad: false,
                })
            );
        }
    }

    #[test]
    fn copy_has_its_fields_apart() {
        let sqe = sqe(&[
            (0, &[0x19]),
            (40, &[1, 0, 0, 0, 2]),
            (48, &[0xFF, 0xA1, 0x30, 0x46]),
            (54, &[0x34, 0x12, 3, 0, 0, 0, 4, 0, 5, 0]),
        ]);
        assert_eq!(
            IoCommand::decode(&sqe),
            IoCommand::Copy(CopyBlocks {
                nsid: Nsid(0),
                sdlba: 0x2_0000_0001,
                ranges: 256,
                desfmt: 1,
                fua: true,
                lr: false,
                prinfo_read: Prinfo::new(0xA, true),
                prinfo_write: Prinfo::new(0x1, false),
                tags: ProtectionTags {
                    reference: 3,
                    application: 4,
                    application_mask: 5
                },
                dtype: 3,
                dspec: 0x1234,
            })
        );
    }

    #[test]
    fn reservations_have_action_key_and_type() {
        let register = sqe(&[(0, &[0x0D]), (40, &[0x0A, 0, 0, 0xC0])]);
        assert_eq!(
            IoCommand::decode(&register),
            IoCommand::ReservationRegister(ReservationRegister {
                nsid: Nsid(0),
                rrega: RegisterAction::Replace,
                iekey: true,
                cptpl: ChangePtpl::Set,
            })
        );
        let acquire = sqe(&[(0, &[0x11]), (40, &[0x01, 0x05])]);
        assert_eq!(
            IoCommand::decode(&acquire),
            IoCommand::ReservationAcquire(ReservationAcquire {
                nsid: Nsid(0),
                racqa: AcquireAction::Preempt,
                iekey: false,
                rtype: ReservationType::WriteExclusiveAll,
            })
        );
        let release = sqe(&[(0, &[0x15]), (40, &[0x09, 0x01])]);
        assert_eq!(
            IoCommand::decode(&release),
            IoCommand::ReservationRelease(ReservationRelease {
                nsid: Nsid(0),
                rrela: ReleaseAction::Clear,
                iekey: true,
                rtype: ReservationType::WriteExclusive,
            })
        );
        for (numd, len) in [([0; 4], 4), ([1, 0, 0, 0], 8), ([0xFF; 4], 1 << 34)] {
            let report = sqe(&[(0, &[0x0E]), (40, &numd), (44, &[1])]);
            assert_eq!(
                IoCommand::decode(&report),
                IoCommand::ReservationReport(ReservationReport {
                    nsid: Nsid(0),
                    len,
                    eds: true,
                })
            );
        }
    }

    #[test]
    fn an_unknown_opcode_is_a_variant() {
        for opcode in 0..=u8::MAX {
            let command = IoCommand::decode(&sqe(&[(0, &[opcode])]));
            assert_eq!(command.opcode(), IoOpcode::from(opcode));
        }
    }
}
