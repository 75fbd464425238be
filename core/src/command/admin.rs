//! Admin commands (NVMe Base 2.0, section 5).
use core::fmt;

use super::{bit, bits, dwords, flags, join};
use crate::wire::ids::{Cid, Nsid, Qid};
use crate::wire::macros::{enum_bits, open_enum};
use crate::wire::sqe::{AdminOpcode, Sqe};

/// A command of the Admin Queue that is no Fabrics command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AdminCommand {
    /// Get Log Page.
    GetLogPage(GetLogPage),
    /// Identify.
    Identify(Identify),
    /// Abort.
    Abort(Abort),
    /// Set Features.
    SetFeatures(SetFeatures),
    /// Get Features.
    GetFeatures(GetFeatures),
    /// Asynchronous Event Request.
    AsyncEventRequest,
    /// Keep Alive.
    KeepAlive,
    /// Any other command, Fabrics among them.
    Other(AdminOpcode),
}

/// Get Log Page (NVMe Base 2.0, section 5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GetLogPage {
    /// The namespace it is about, if the log is about one.
    pub nsid: Nsid,
    /// LID: which log.
    pub lid: u8,
    /// Log Specific Parameter, 7 bits.
    pub lsp: u8,
    /// Log Specific Identifier.
    pub lsi: u16,
    /// Retain Asynchronous Event: do not clear the event.
    pub rae: bool,
    /// NUMD undone: bytes to return, 4..=2^34.
    pub len: u64,
    /// Log Page Offset: in bytes, or an index if `offset_is_index`.
    pub lpo: u64,
    /// OT: `lpo` counts entries of the log.
    pub offset_is_index: bool,
    /// UUID Index, 7 bits; 0 for none.
    pub uuid_index: u8,
    /// Command Set Identifier.
    pub csi: u8,
}

/// Identify (NVMe Base 2.0, section 5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Identify {
    /// The namespace it is about, if the data is about one.
    pub nsid: Nsid,
    /// Controller or Namespace Structure: which data.
    pub cns: u8,
    /// Controller Identifier, for the data that depends on one.
    pub cntid: u16,
    /// CNS Specific Identifier.
    pub cns_specific: u16,
    /// Command Set Identifier.
    pub csi: u8,
    /// UUID Index, 7 bits; 0 for none.
    pub uuid_index: u8,
}

/// Abort (NVMe Base 2.0, section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Abort {
    /// The queue of the command to abort.
    pub sqid: Qid,
    /// The command to abort.
    pub cid: Cid,
}

open_enum! {
    /// SEL of Get Features: which value of the feature.
    pub enum Select: u8 {
        Current = 0b000 => "Current",
        Default = 0b001 => "Default",
        Saved = 0b010 => "Saved",
        SupportedCapabilities = 0b011 => "Supported Capabilities",
    }
}

enum_bits!(Select);

/// Get Features (NVMe Base 2.0, section 5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GetFeatures {
    /// The namespace it is about, if the feature is about one.
    pub nsid: Nsid,
    /// Feature Identifier.
    pub fid: u8,
    /// Which value.
    pub sel: Select,
    /// What the feature has it mean.
    pub cdw11: u32,
    /// UUID Index, 7 bits; 0 for none.
    pub uuid_index: u8,
}

/// Set Features (NVMe Base 2.0, section 5.27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SetFeatures {
    /// The namespace it is about, if the feature is about one.
    pub nsid: Nsid,
    /// Feature Identifier.
    pub fid: u8,
    /// SV: the value outlives resets and power cycles.
    pub save: bool,
    /// The value, or what the feature has it mean.
    pub cdw11: u32,
    /// What the feature has it mean.
    pub cdw12: u32,
    /// What the feature has it mean.
    pub cdw13: u32,
    /// What the feature has it mean.
    pub cdw15: u32,
    /// UUID Index, 7 bits; 0 for none.
    pub uuid_index: u8,
}

impl AdminCommand {
    /// Decodes an entry of the Admin Queue.
    pub fn decode(sqe: &Sqe) -> Self {
        match sqe.admin_opcode() {
            AdminOpcode::GetLogPage => Self::GetLogPage(GetLogPage::decode(sqe)),
            AdminOpcode::Identify => Self::Identify(Identify::decode(sqe)),
            AdminOpcode::Abort => Self::Abort(Abort::decode(sqe)),
            AdminOpcode::SetFeatures => Self::SetFeatures(SetFeatures::decode(sqe)),
            AdminOpcode::GetFeatures => Self::GetFeatures(GetFeatures::decode(sqe)),
            AdminOpcode::AsyncEventRequest => Self::AsyncEventRequest,
            AdminOpcode::KeepAlive => Self::KeepAlive,
            other => Self::Other(other),
        }
    }

    /// Which command this is.
    pub fn opcode(&self) -> AdminOpcode {
        match self {
            Self::GetLogPage(_) => AdminOpcode::GetLogPage,
            Self::Identify(_) => AdminOpcode::Identify,
            Self::Abort(_) => AdminOpcode::Abort,
            Self::SetFeatures(_) => AdminOpcode::SetFeatures,
            Self::GetFeatures(_) => AdminOpcode::GetFeatures,
            Self::AsyncEventRequest => AdminOpcode::AsyncEventRequest,
            Self::KeepAlive => AdminOpcode::KeepAlive,
            Self::Other(opcode) => *opcode,
        }
    }
}

impl GetLogPage {
    fn decode(sqe: &Sqe) -> Self {
        let numdl: u32 = bits(sqe.cdw10, 16..=31);
        let numdu: u32 = bits(sqe.cdw11, 0..=15);
        Self {
            nsid: sqe.nsid(),
            lid: bits(sqe.cdw10, 0..=7),
            lsp: bits(sqe.cdw10, 8..=14),
            lsi: bits(sqe.cdw11, 16..=31),
            rae: bit(sqe.cdw10, 15),
            len: dwords(numdu.wrapping_shl(16) | numdl),
            lpo: join(sqe.cdw12, sqe.cdw13),
            offset_is_index: bit(sqe.cdw14, 23),
            uuid_index: bits(sqe.cdw14, 0..=6),
            csi: bits(sqe.cdw14, 24..=31),
        }
    }
}

impl Identify {
    fn decode(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid(),
            cns: bits(sqe.cdw10, 0..=7),
            cntid: bits(sqe.cdw10, 16..=31),
            cns_specific: bits(sqe.cdw11, 0..=15),
            csi: bits(sqe.cdw11, 24..=31),
            uuid_index: bits(sqe.cdw14, 0..=6),
        }
    }
}

impl Abort {
    fn decode(sqe: &Sqe) -> Self {
        Self {
            sqid: Qid(bits(sqe.cdw10, 0..=15)),
            cid: Cid(bits(sqe.cdw10, 16..=31)),
        }
    }
}

impl GetFeatures {
    fn decode(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid(),
            fid: bits(sqe.cdw10, 0..=7),
            sel: bits(sqe.cdw10, 8..=10),
            cdw11: sqe.cdw11.get(),
            uuid_index: bits(sqe.cdw14, 0..=6),
        }
    }
}

impl SetFeatures {
    fn decode(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid(),
            fid: bits(sqe.cdw10, 0..=7),
            save: bit(sqe.cdw10, 31),
            cdw11: sqe.cdw11.get(),
            cdw12: sqe.cdw12.get(),
            cdw13: sqe.cdw13.get(),
            cdw15: sqe.cdw15.get(),
            uuid_index: bits(sqe.cdw14, 0..=6),
        }
    }
}

impl fmt::Display for AdminCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.opcode().fmt(f)?;
        match self {
            Self::GetLogPage(log) => {
                let GetLogPage {
                    nsid,
                    lid,
                    lsp,
                    len,
                    lpo,
                    ..
                } = log;
                write!(f, " lid {lid:02X}h nsid {nsid} {len} B at {lpo}")?;
                if *lsp != 0 {
                    write!(f, " lsp {lsp:#x}")?;
                }
                flags(f, &[(log.rae, "rae"), (log.offset_is_index, "by index")])
            }
            Self::Identify(identify) => {
                let Identify {
                    nsid,
                    cns,
                    cntid,
                    csi,
                    ..
                } = identify;
                write!(f, " cns {cns:02X}h nsid {nsid}")?;
                if *cntid != 0 {
                    write!(f, " cntid {cntid}")?;
                }
                if *csi != 0 {
                    write!(f, " csi {csi:02X}h")?;
                }
                Ok(())
            }
            Self::Abort(Abort { sqid, cid }) => write!(f, " sqid {sqid} cid {cid}"),
            Self::GetFeatures(get) => {
                let GetFeatures { nsid, fid, sel, .. } = get;
                write!(f, " fid {fid:02X}h nsid {nsid} {sel}")
            }
            Self::SetFeatures(set) => {
                let SetFeatures {
                    nsid, fid, cdw11, ..
                } = set;
                write!(f, " fid {fid:02X}h nsid {nsid} cdw11 {cdw11:#x}")?;
                flags(f, &[(set.save, "save")])
            }
            Self::AsyncEventRequest | Self::KeepAlive | Self::Other(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::super::tests::sqe;
    use super::*;

    fn log(at: &[(usize, &[u8])]) -> GetLogPage {
        let mut sqe = sqe(at);
        sqe.opcode = 0x02;
        match AdminCommand::decode(&sqe) {
            AdminCommand::GetLogPage(log) => log,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn get_log_page_of_a_linux_host_reads_back() {
        // The first 1024 bytes of the Discovery log, retaining the event.
        let sqe = sqe(&[(0, &[0x02, 0x40, 3]), (40, &[0x70, 0x80, 0xFF, 0])]);
        let command = AdminCommand::decode(&sqe);
        assert_eq!(
            command.to_string(),
            "Get Log Page lid 70h nsid 0 1024 B at 0 rae"
        );
    }

    #[test]
    fn get_log_page_has_its_fields_apart() {
        let decoded = log(&[
            (4, &[0xFF; 4]),
            (40, &[0x02, 0x05, 0x01, 0x00]),
            (44, &[0x02, 0x00, 0x34, 0x12]),
            (48, &[0x08, 0, 0, 0, 0x01, 0, 0, 0x80]),
            (56, &[0xFF, 0x00, 0x80, 0xA5]),
        ]);
        assert_eq!(
            decoded,
            GetLogPage {
                nsid: Nsid::ALL,
                lid: 0x02,
                lsp: 5,
                lsi: 0x1234,
                rae: false,
                len: (0x0002_0001 + 1) * 4,
                lpo: 0x8000_0001_0000_0008,
                offset_is_index: true,
                uuid_index: 0x7F,
                csi: 0xA5,
            }
        );
    }

    #[test]
    fn numd_undoes_the_zero() {
        for (numdl, numdu, len) in [
            ([0, 0], [0, 0], 4),
            ([1, 0], [0, 0], 8),
            ([0xFF, 0xFF], [0xFF, 0xFF], 1 << 34),
        ] {
            assert_eq!(log(&[(42, &numdl), (44, &numdu)]).len, len);
        }
    }

    #[test]
    fn identify_has_its_fields_apart() {
        let sqe = sqe(&[
            (0, &[0x06]),
            (4, &[1]),
            (40, &[0x05, 0xEE, 0x02, 0x01]),
            (44, &[0x04, 0x03, 0xEE, 0x02]),
            (56, &[0x81]),
        ]);
        let command = AdminCommand::decode(&sqe);
        assert_eq!(
            command,
            AdminCommand::Identify(Identify {
                nsid: Nsid(1),
                cns: 5,
                cntid: 0x0102,
                cns_specific: 0x0304,
                csi: 2,
                uuid_index: 1,
            })
        );
        assert_eq!(
            command.to_string(),
            "Identify cns 05h nsid 1 cntid 258 csi 02h"
        );
    }

    #[test]
    fn features_have_their_fields_apart() {
        let get = sqe(&[(0, &[0x0A]), (40, &[0x0F, 0xFA]), (44, &[7]), (56, &[0x83])]);
        assert_eq!(
            AdminCommand::decode(&get),
            AdminCommand::GetFeatures(GetFeatures {
                nsid: Nsid(0),
                fid: 0x0F,
                sel: Select::Saved,
                cdw11: 7,
                uuid_index: 3,
            })
        );
        // Number of Queues, 4 and 4 (0's based), saved.
        let set = sqe(&[
            (0, &[0x09]),
            (40, &[0x07, 0, 0, 0x80, 3, 0, 3, 0, 12, 0, 0, 0, 13]),
            (60, &[15]),
        ]);
        let command = AdminCommand::decode(&set);
        assert_eq!(
            command,
            AdminCommand::SetFeatures(SetFeatures {
                nsid: Nsid(0),
                fid: 0x07,
                save: true,
                cdw11: 0x0003_0003,
                cdw12: 12,
                cdw13: 13,
                cdw15: 15,
                uuid_index: 0,
            })
        );
        assert_eq!(
            command.to_string(),
            "Set Features fid 07h nsid 0 cdw11 0x30003 save"
        );
    }

    #[test]
    fn abort_names_queue_and_command() {
        let sqe = sqe(&[(0, &[0x08]), (40, &[1, 0, 0x34, 0x12])]);
        assert_eq!(
            AdminCommand::decode(&sqe),
            AdminCommand::Abort(Abort {
                sqid: Qid(1),
                cid: Cid(0x1234)
            })
        );
    }

    #[test]
    fn an_unknown_opcode_is_a_variant() {
        for opcode in 0..=u8::MAX {
            let command = AdminCommand::decode(&sqe(&[(0, &[opcode])]));
            assert_eq!(command.opcode(), AdminOpcode::from(opcode));
        }
        let unknown = AdminCommand::decode(&sqe(&[(0, &[0xC0])]));
        assert_eq!(unknown, AdminCommand::Other(AdminOpcode::Unknown(0xC0)));
    }
}
