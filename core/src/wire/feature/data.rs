//! Features whose value is a data structure.
use core::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::text::UuidText;
use crate::wire::tree::{Tree, TreeWriter};

/// Timestamp, 0Eh: milliseconds since 1970-01-01 00:00 UTC, or since a reset
/// if no host set them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Timestamp {
    /// Milliseconds, 48 bits; see [`Self::milliseconds`].
    pub ms: [u8; 6],
    /// Bit 0: the clock may have stopped meanwhile; bits 3:1: origin.
    pub attr: u8,
    reserved_7: u8,
}

layout!(Timestamp: 8, ms @ 0, attr @ 6);

open_enum! {
    /// Since when a timestamp counts.
    pub enum TimestampOrigin: u8 {
        Reset = 0 => "Controller Level Reset",
        SetFeatures = 1 => "Set Features",
    }
}

impl Timestamp {
    /// The greatest number of milliseconds.
    pub const MAX: u64 = (1 << 48) - 1;

    /// A timestamp that did not stop; milliseconds beyond [`Self::MAX`]
    /// become that.
    pub fn new(milliseconds: u64, origin: TimestampOrigin) -> Self {
        let [ms @ .., _, _] = milliseconds.min(Self::MAX).to_le_bytes();
        Self {
            ms,
            attr: (origin.code() & 7) << 1,
            reserved_7: 0,
        }
    }

    /// Milliseconds.
    pub const fn milliseconds(&self) -> u64 {
        let [a, b, c, d, e, f] = self.ms;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Since when it counts (bits 3:1).
    pub fn origin(&self) -> TimestampOrigin {
        TimestampOrigin::from((self.attr >> 1) & 7)
    }

    /// Whether the clock may have stopped, as in a low power state (bit 0).
    pub const fn may_have_stopped(&self) -> bool {
        self.attr & 1 != 0
    }
}

/// Host Behavior Support, 16h: what a host takes.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HostBehavior {
    /// Advanced Command Retry Enable: 1 if the host regards CRD.
    pub acre: u8,
    /// Extended Telemetry Data Area 4 Supported: 1 if so.
    pub etdas: u8,
    /// LBA Format Extension Enable: 1 if the host knows more than 16 formats.
    pub lbafee: u8,
    /// Host Dispersed Namespace Support: 1 if so.
    pub hdisns: u8,
    /// Copy Descriptor Formats Enable, a bit for each format above 1h.
    pub cdfe: U16,
    reserved_6: [u8; 506],
}

layout!(HostBehavior: 512, acre @ 0, etdas @ 1, lbafee @ 2, hdisns @ 3, cdfe @ 4);

/// One entry of LBA Range Type, 03h.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct LbaRangeType {
    /// Type: 0 general, 1 file system, 2 RAID, 3 cache, 4 swap.
    pub lbart: u8,
    /// Bit 0: may be overwritten; bit 1: to be hidden from the system.
    pub attr: u8,
    reserved_2: [u8; 14],
    /// Starting LBA.
    pub slba: U64,
    /// Number of Logical Blocks, 0's based; see [`Self::blocks`].
    pub nlb: U64,
    /// Unique Identifier, 0 is none.
    pub guid: [u8; 16],
    reserved_48: [u8; 16],
}

layout!(LbaRangeType: 64, lbart @ 0, attr @ 1, slba @ 16, nlb @ 24, guid @ 32);

impl LbaRangeType {
    /// Number of logical blocks, 1..=2^64.
    pub const fn blocks(&self) -> u128 {
        (self.nlb.get() as u128).saturating_add(1)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms since {}", self.milliseconds(), self.origin())
    }
}

impl fmt::Display for HostBehavior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "acre {}, etdas {}, lbafee {}, ",
            self.acre, self.etdas, self.lbafee
        )?;
        write!(f, "hdisns {}, cdfe {:#x}", self.hdisns, self.cdfe)
    }
}

impl fmt::Display for LbaRangeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "type {}, {} blocks from {}",
            self.lbart,
            self.blocks(),
            self.slba
        )
    }
}

impl Tree for Timestamp {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("timestamp", format_args!("{} ms", self.milliseconds()))?;
        out.field("origin", self.origin())?;
        out.field("synch", u8::from(self.may_have_stopped()))
    }
}

impl Tree for HostBehavior {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: acre, etdas, lbafee, hdisns, cdfe = "{:#x}")
    }
}

impl Tree for LbaRangeType {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: lbart, attr = "{:#x}", slba)?;
        out.field("nlb", self.blocks())?;
        out.field("guid", UuidText(&self.guid))
    }
}

defmt_as_display!(Timestamp, HostBehavior, LbaRangeType);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn timestamp_has_48_bits() {
        for (bytes, milliseconds, origin) in [
            ([0, 0, 0, 0, 0, 0, 0, 0], 0, TimestampOrigin::Reset),
            (
                [1, 0, 0, 0, 0, 2, 2, 0],
                0x0200_0000_0001,
                TimestampOrigin::SetFeatures,
            ),
            (
                [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 14, 0],
                Timestamp::MAX,
                TimestampOrigin::Unknown(7),
            ),
        ] {
            let timestamp = Timestamp::read_from_bytes(&bytes).unwrap();
            assert_eq!(timestamp.milliseconds(), milliseconds);
            assert_eq!(timestamp.origin(), origin);
            assert!(!timestamp.may_have_stopped());
            assert_eq!(Timestamp::new(milliseconds, origin), timestamp);
        }
        let stopped = Timestamp {
            attr: 0xf1,
            ..Timestamp::new(0, TimestampOrigin::Reset)
        };
        assert!(stopped.may_have_stopped());
        assert_eq!(stopped.origin(), TimestampOrigin::Reset);
        assert_eq!(
            Timestamp::new(u64::MAX, TimestampOrigin::Reset).milliseconds(),
            Timestamp::MAX
        );
    }

    #[test]
    fn host_behavior_is_where_the_figure_has_it() {
        let mut bytes = [0; 512];
        bytes[..6].copy_from_slice(&[1, 0, 1, 0, 0x0c, 0x01]);
        let behavior = HostBehavior::ref_from_bytes(&bytes).unwrap();
        assert_eq!((behavior.acre, behavior.lbafee), (1, 1));
        assert_eq!(behavior.cdfe.get(), 0x010c);
        assert_eq!(
            format!("{behavior}"),
            "acre 1, etdas 0, lbafee 1, hdisns 0, cdfe 0x10c"
        );
    }

    #[test]
    fn range_is_zeroes_based() {
        let mut bytes = [0; 64];
        bytes[0] = 2;
        bytes[16] = 8;
        for (raw, blocks) in [(0u64, 1), (1, 2), (u64::MAX, 1u128 << 64)] {
            bytes[24..32].copy_from_slice(&raw.to_le_bytes());
            let range = LbaRangeType::ref_from_bytes(&bytes).unwrap();
            assert_eq!(range.blocks(), blocks);
            assert_eq!(
                format!("{range}"),
                format!("type 2, {blocks} blocks from 8")
            );
        }
    }
}
