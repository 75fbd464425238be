//! Scatter Gather List descriptors (NVMe Base 2.0, section 4.1.2; NVMe over
//! RDMA and TCP Transport Specifications for their own kinds).
use core::fmt;

/// One SGL descriptor, 16 bytes, as the data pointer of a command has it.
///
/// Lengths are bytes. Reserved bytes are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Sgl {
    /// Data Block at an address (`00h`).
    DataBlock {
        /// Where the data is.
        address: u64,
        /// How much of it, in bytes.
        length: u32,
    },
    /// Data Block inside the capsule (`01h`).
    InCapsule {
        /// Bytes from the start of the capsule's data.
        offset: u64,
        /// How much data, in bytes.
        length: u32,
    },
    /// Bit Bucket: data to throw away (`10h`).
    BitBucket {
        /// How much of it, in bytes.
        length: u32,
    },
    /// Segment (`20h`, `21h`): where more descriptors are.
    Segment {
        /// Where they are: an address, or an offset in the capsule.
        address: u64,
        /// How long they are together, in bytes.
        length: u32,
        /// Whether `address` is an offset in the capsule (`21h`).
        in_capsule: bool,
    },
    /// Last Segment (`30h`, `31h`): a segment that leads to no other.
    LastSegment {
        /// Where its descriptors are: an address, or an offset in the capsule.
        address: u64,
        /// How long they are together, in bytes.
        length: u32,
        /// Whether `address` is an offset in the capsule (`31h`).
        in_capsule: bool,
    },
    /// Keyed Data Block (`40h`, `4Fh`): memory of the host, for RDMA.
    Keyed {
        /// Remote address.
        address: u64,
        /// How much data, in bytes: at most [`Sgl::KEYED_MAX`].
        length: u32,
        /// The remote key (rkey).
        key: u32,
        /// Whether the controller is to invalidate the key with its response
        /// (`4Fh`).
        invalidate: bool,
    },
    /// Transport Data Block (`5Ah`): the transport moves the data, as TCP does
    /// with R2T and H2CData or with C2HData.
    Transport {
        /// How much data, in bytes.
        length: u32,
    },
    /// Any other kind.
    Unknown {
        /// The identifier: type in bits 7:4, sub type in bits 3:0.
        id: u8,
        /// The descriptor as it came.
        raw: [u8; 16],
    },
}

impl Sgl {
    /// No data over TCP: a Transport Data Block of no bytes.
    pub const EMPTY: Self = Self::Transport { length: 0 };
    /// The most bytes that a keyed descriptor's 24-bit length can say.
    pub const KEYED_MAX: u32 = 0x00FF_FFFF;

    /// Reads a descriptor.
    pub fn from_dptr(raw: &[u8; 16]) -> Self {
        let &[
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            l0,
            l1,
            l2,
            l3,
            k1,
            k2,
            k3,
            id,
        ] = raw;
        let address = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        match id {
            0x00 => Self::DataBlock { address, length },
            0x01 => Self::InCapsule {
                offset: address,
                length,
            },
            0x10 => Self::BitBucket { length },
            0x20 | 0x21 => Self::Segment {
                address,
                length,
                in_capsule: id == 0x21,
            },
            0x30 | 0x31 => Self::LastSegment {
                address,
                length,
                in_capsule: id == 0x31,
            },
            0x40 | 0x4F => Self::Keyed {
                address,
                length: u32::from_le_bytes([l0, l1, l2, 0]),
                key: u32::from_le_bytes([l3, k1, k2, k3]),
                invalidate: id == 0x4F,
            },
            0x5A => Self::Transport { length },
            _ => Self::Unknown { id, raw: *raw },
        }
    }

    /// Writes the descriptor. A keyed length is cut to [`Sgl::KEYED_MAX`].
    pub fn to_dptr(self) -> [u8; 16] {
        let (address, length, id) = match self {
            Self::DataBlock { address, length } => (address, length, 0x00),
            Self::InCapsule { offset, length } => (offset, length, 0x01),
            Self::BitBucket { length } => (0, length, 0x10),
            Self::Segment {
                address,
                length,
                in_capsule,
            } => (address, length, 0x20 | u8::from(in_capsule)),
            Self::LastSegment {
                address,
                length,
                in_capsule,
            } => (address, length, 0x30 | u8::from(in_capsule)),
            Self::Keyed {
                address,
                length,
                key,
                invalidate,
            } => {
                let [a0, a1, a2, a3, a4, a5, a6, a7] = address.to_le_bytes();
                let [l0, l1, l2, _] = length.min(Self::KEYED_MAX).to_le_bytes();
                let [k0, k1, k2, k3] = key.to_le_bytes();
                let id = if invalidate { 0x4F } else { 0x40 };
                return [
                    a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, k0, k1, k2, k3, id,
                ];
            }
            Self::Transport { length } => (0, length, 0x5A),
            Self::Unknown { raw, .. } => return raw,
        };
        let [a0, a1, a2, a3, a4, a5, a6, a7] = address.to_le_bytes();
        let [l0, l1, l2, l3] = length.to_le_bytes();
        [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, 0, 0, 0, id]
    }

    /// Bytes of data that the descriptor itself describes: none for segments
    /// and unknown kinds.
    pub const fn data_len(&self) -> u32 {
        match *self {
            Self::DataBlock { length, .. }
            | Self::InCapsule { length, .. }
            | Self::BitBucket { length }
            | Self::Keyed { length, .. }
            | Self::Transport { length } => length,
            Self::Segment { .. } | Self::LastSegment { .. } | Self::Unknown { .. } => 0,
        }
    }
}

impl fmt::Display for Sgl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capsule = |in_capsule| if in_capsule { " in capsule" } else { "" };
        match *self {
            Self::DataBlock { address, length } => {
                write!(f, "{length} B at {address:#x}")
            }
            Self::InCapsule { offset, length } => {
                write!(f, "{length} B in capsule at {offset}")
            }
            Self::BitBucket { length } => write!(f, "{length} B bit bucket"),
            Self::Segment {
                address,
                length,
                in_capsule,
            } => write!(
                f,
                "segment of {length} B at {address:#x}{}",
                capsule(in_capsule)
            ),
            Self::LastSegment {
                address,
                length,
                in_capsule,
            } => write!(
                f,
                "last segment of {length} B at {address:#x}{}",
                capsule(in_capsule)
            ),
            Self::Keyed {
                address,
                length,
                key,
                invalidate,
            } => {
                write!(f, "{length} B at {address:#x} key {key:#x}")?;
                f.write_str(if invalidate { " invalidate" } else { "" })
            }
            Self::Transport { length } => write!(f, "{length} B by transport"),
            Self::Unknown { id, .. } => write!(f, "unknown SGL {id:02X}h"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Address 0807060504030201h, bytes 8..15 counting on, then the identifier.
    fn raw(id: u8) -> [u8; 16] {
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, id]
    }

    const ADDRESS: u64 = 0x0807_0605_0403_0201;
    const LENGTH: u32 = 0x0C0B_0A09;

    #[test]
    fn a_keyed_length_has_24_bits_and_the_key_is_beside_it() {
        for (id, invalidate) in [(0x40, false), (0x4F, true)] {
            let keyed = Sgl::Keyed {
                address: ADDRESS,
                length: 0x000B_0A09,
                key: 0x0F0E_0D0C,
                invalidate,
            };
            assert_eq!(Sgl::from_dptr(&raw(id)), keyed);
            assert_eq!(keyed.to_dptr(), raw(id));
        }
        let too_long = Sgl::Keyed {
            address: 0,
            length: 0x0100_0000,
            key: 0,
            invalidate: false,
        };
        assert_eq!(Sgl::from_dptr(&too_long.to_dptr()).data_len(), 0xFF_FFFF);
    }

    #[test]
    fn every_kind_reads_its_own_fields() {
        let cases = [
            (
                0x00,
                Sgl::DataBlock {
                    address: ADDRESS,
                    length: LENGTH,
                },
            ),
            (
                0x01,
                Sgl::InCapsule {
                    offset: ADDRESS,
                    length: LENGTH,
                },
            ),
            (0x10, Sgl::BitBucket { length: LENGTH }),
            (
                0x21,
                Sgl::Segment {
                    address: ADDRESS,
                    length: LENGTH,
                    in_capsule: true,
                },
            ),
            (
                0x30,
                Sgl::LastSegment {
                    address: ADDRESS,
                    length: LENGTH,
                    in_capsule: false,
                },
            ),
            (0x5A, Sgl::Transport { length: LENGTH }),
        ];
        for (id, sgl) in cases {
            assert_eq!(Sgl::from_dptr(&raw(id)), sgl);
        }
    }

    #[test]
    fn every_identifier_survives_a_round_trip() {
        for id in 0..=255 {
            let sgl = Sgl::from_dptr(&raw(id));
            assert_eq!(sgl.to_dptr()[15], id);
            assert_eq!(Sgl::from_dptr(&sgl.to_dptr()), sgl);
        }
    }

    #[test]
    fn linux_sends_4096_bytes_as_a_transport_data_block() {
        let mut dptr = [0; 16];
        dptr[9] = 0x10;
        dptr[15] = 0x5A;
        assert_eq!(Sgl::from_dptr(&dptr), Sgl::Transport { length: 4096 });
        assert_eq!(Sgl::Transport { length: 4096 }.to_dptr(), dptr);
    }
}
