//! Fabrics commands (NVMe Base 2.0, section 6).
use core::fmt;

use super::flags;
use crate::wire::connect::Cattr;
use crate::wire::ids::Qid;
use crate::wire::property::{Property, PropertySize};
use crate::wire::sqe::{Fctype, Sqe};

/// A command of opcode 7Fh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FabricsCommand {
    /// Connect: create a queue, and with the Admin Queue an association.
    Connect(Connect),
    /// Property Get.
    PropertyGet {
        /// The property.
        property: Property,
        /// The size to read it with.
        size: PropertySize,
    },
    /// Property Set.
    PropertySet {
        /// The property.
        property: Property,
        /// The size to write it with.
        size: PropertySize,
        /// What to set, cut to `size`.
        value: u64,
    },
    /// Authentication Send.
    AuthSend(Security),
    /// Authentication Receive.
    AuthReceive(Security),
    /// Disconnect: delete this I/O Queue.
    Disconnect {
        /// Record Format, 0.
        recfmt: u16,
    },
    /// A type that is not known.
    Other(Fctype),
}

/// The command of Connect; the rest is its data, `ConnectData`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Connect {
    /// Record Format, 0.
    pub recfmt: u16,
    /// The queue to create.
    pub qid: Qid,
    /// Entries of its Submission Queue, 1..=65536; one is not allowed.
    pub entries: u32,
    /// Attributes.
    pub cattr: Cattr,
    /// Keep Alive Timeout in milliseconds, 0 for none; of the Admin Queue
    /// only.
    pub kato_ms: u32,
}

/// What Authentication Send and Receive say about their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Security {
    /// Security Protocol: E9h for NVMe.
    pub secp: u8,
    /// Security Protocol Specific.
    pub spsp: u16,
    /// Bytes: sent (TL), or at most to be received (AL).
    pub len: u32,
}

impl FabricsCommand {
    /// Decodes an entry of opcode 7Fh.
    pub fn decode(sqe: &Sqe) -> Self {
        match sqe.fctype() {
            Fctype::Connect => {
                let connect = sqe.as_connect();
                Self::Connect(Connect {
                    recfmt: connect.recfmt.get(),
                    qid: Qid(connect.qid.get()),
                    entries: connect.queue_entries(),
                    cattr: Cattr(connect.cattr),
                    kato_ms: connect.kato.get(),
                })
            }
            Fctype::PropertyGet => {
                let get = sqe.as_property_get();
                Self::PropertyGet {
                    property: get.ofst.get().into(),
                    size: size(get.attrib),
                }
            }
            Fctype::PropertySet => {
                let set = sqe.as_property_set();
                let size = size(set.attrib);
                let value = set.value.get();
                Self::PropertySet {
                    property: set.ofst.get().into(),
                    size,
                    value: match size {
                        PropertySize::Four => value & u64::from(u32::MAX),
                        _ => value,
                    },
                }
            }
            Fctype::AuthSend => {
                let send = sqe.as_auth_send();
                Self::AuthSend(Security {
                    secp: send.secp,
                    spsp: send.spsp(),
                    len: send.tl.get(),
                })
            }
            Fctype::AuthReceive => {
                let receive = sqe.as_auth_receive();
                Self::AuthReceive(Security {
                    secp: receive.secp,
                    spsp: receive.spsp(),
                    len: receive.al.get(),
                })
            }
            Fctype::Disconnect => Self::Disconnect {
                recfmt: sqe.as_disconnect().recfmt.get(),
            },
            other => Self::Other(other),
        }
    }

    /// Which command this is.
    pub fn fctype(&self) -> Fctype {
        match self {
            Self::Connect(_) => Fctype::Connect,
            Self::PropertyGet { .. } => Fctype::PropertyGet,
            Self::PropertySet { .. } => Fctype::PropertySet,
            Self::AuthSend(_) => Fctype::AuthSend,
            Self::AuthReceive(_) => Fctype::AuthReceive,
            Self::Disconnect { .. } => Fctype::Disconnect,
            Self::Other(fctype) => *fctype,
        }
    }
}

/// ATTRIB bits 2:0.
fn size(attrib: u8) -> PropertySize {
    (attrib & 0b111).into()
}

impl fmt::Display for FabricsCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(fctype) => write!(f, "Fabrics {fctype}")?,
            known => known.fctype().fmt(f)?,
        }
        match self {
            Self::Connect(connect) => {
                let Connect {
                    qid,
                    entries,
                    cattr,
                    kato_ms,
                    ..
                } = connect;
                write!(f, " qid {qid} entries {entries} kato {kato_ms} ms")?;
                flags(
                    f,
                    &[
                        (cattr.disable_sq_flow_control(), "sqflow off"),
                        (cattr.individual_io_queue_deletion(), "queue deletion"),
                    ],
                )
            }
            Self::PropertyGet { property, size } => write!(f, " {property} {size}"),
            Self::PropertySet {
                property,
                size,
                value,
            } => write!(f, " {property} {size} {value:#x}"),
            Self::AuthSend(security) | Self::AuthReceive(security) => {
                let Security { secp, spsp, len } = security;
                write!(f, " secp {secp:02X}h spsp {spsp:04X}h {len} B")
            }
            Self::Disconnect { .. } | Self::Other(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::super::tests::sqe;
    use super::*;

    #[test]
    fn connect_counts_entries() {
        // SQSIZE 31, CATTR 4, KATO 5000 ms, as a Linux host sends it.
        let command = FabricsCommand::decode(&sqe(&[
            (0, &[0x7F, 0x40, 1, 0, 1]),
            (44, &[0x1F, 0, 4, 0, 0x88, 0x13]),
        ]));
        assert_eq!(
            command,
            FabricsCommand::Connect(Connect {
                recfmt: 0,
                qid: Qid(0),
                entries: 32,
                cattr: Cattr(4),
                kato_ms: 5000,
            })
        );
        assert_eq!(
            command.to_string(),
            "Connect qid 0 entries 32 kato 5000 ms sqflow off"
        );
        for (sqsize, entries) in [([0, 0], 1), ([1, 0], 2), ([0xFF, 0xFF], 0x1_0000)] {
            let sqe = sqe(&[(0, &[0x7F]), (4, &[1]), (44, &sqsize)]);
            assert!(matches!(
                FabricsCommand::decode(&sqe),
                FabricsCommand::Connect(connect) if connect.entries == entries
            ));
        }
    }

    #[test]
    fn properties_have_offset_size_and_value() {
        let get = sqe(&[(0, &[0x7F]), (4, &[4]), (40, &[1])]);
        assert_eq!(
            FabricsCommand::decode(&get),
            FabricsCommand::PropertyGet {
                property: Property::Cap,
                size: PropertySize::Eight
            }
        );
        let value = [1, 0, 0x46, 0, 0xEF, 0xBE, 0xAD, 0xDE];
        for (attrib, size, value64) in [
            (0xF8, PropertySize::Four, 0x0046_0001),
            (0x01, PropertySize::Eight, 0xDEAD_BEEF_0046_0001),
            (0x07, PropertySize::Unknown(7), 0xDEAD_BEEF_0046_0001),
        ] {
            let set = sqe(&[(0, &[0x7F]), (40, &[attrib]), (44, &[0x14]), (48, &value)]);
            assert_eq!(
                FabricsCommand::decode(&set),
                FabricsCommand::PropertySet {
                    property: Property::Cc,
                    size,
                    value: value64
                }
            );
        }
        let odd = sqe(&[(0, &[0x7F]), (4, &[4]), (44, &[0xFF; 4])]);
        assert_eq!(
            FabricsCommand::decode(&odd).to_string(),
            "Property Get Unknown (FFFFFFFFh) 4 bytes"
        );
    }

    #[test]
    fn authentication_has_protocol_and_length() {
        let security = Security {
            secp: 0xE9,
            spsp: 0x0101,
            len: 0x0001_0002,
        };
        let at: [(usize, &[u8]); 2] = [(0, &[0x7F]), (41, &[1, 1, 0xE9, 2, 0, 1, 0])];
        let [opcode, fields] = at;
        assert_eq!(
            FabricsCommand::decode(&sqe(&[opcode, (4, &[5]), fields])),
            FabricsCommand::AuthSend(security)
        );
        assert_eq!(
            FabricsCommand::decode(&sqe(&[opcode, (4, &[6]), fields])),
            FabricsCommand::AuthReceive(security)
        );
    }

    #[test]
    fn an_unknown_type_is_a_variant() {
        let command = FabricsCommand::decode(&sqe(&[(0, &[0x7F]), (4, &[0x02])]));
        assert_eq!(command, FabricsCommand::Other(Fctype::Unknown(2)));
        assert_eq!(command.to_string(), "Fabrics Unknown (02h)");
    }
}
