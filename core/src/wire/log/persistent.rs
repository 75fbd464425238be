//! Persistent Event log, 0Dh: its header (NVMe Base 2.1, figure "Persistent
//! Event Log Header").
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::text::{Padded, Printable};
use crate::wire::tree::{Tree, TreeWriter};

/// What the log starts with; the events follow.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PersistentEventHeader {
    /// Log Identifier, 0Dh.
    pub lid: u8,
    reserved_1: [u8; 3],
    /// Total Number of Events.
    pub tnev: U32,
    /// Total Log Length in bytes, this header included.
    pub tll: U64,
    /// Log Revision.
    pub lrev: u8,
    reserved_17: u8,
    /// Log Header Length: bytes of the header from byte 20 on.
    pub lhl: U16,
    /// Timestamp, as the Timestamp feature has it.
    pub tstmp: U64,
    /// Power On Hours.
    pub poh: U128,
    /// Power Cycle Count.
    pub pcc: U64,
    /// PCI vendor identifier.
    pub vid: U16,
    /// PCI subsystem vendor identifier.
    pub ssvid: U16,
    /// Serial number.
    pub sn: Padded<20>,
    /// Model number.
    pub mn: Padded<40>,
    /// NQN of the subsystem, padded with NUL.
    pub subnqn: [u8; 256],
    /// Generation Number: changes when the log does.
    pub gnum: U16,
    /// Reporting Context Information.
    pub rci: U32,
    reserved_378: [u8; 102],
    /// Supported Events Bitmap, a bit for each event type.
    pub seb: [u8; 32],
}

layout!(
    PersistentEventHeader: 512, lid @ 0, tnev @ 4, tll @ 8, lrev @ 16, lhl @ 18, tstmp @ 20,
    poh @ 28, pcc @ 44, vid @ 52, ssvid @ 54, sn @ 56, mn @ 76, subnqn @ 116, gnum @ 372,
    rci @ 374, seb @ 480,
);

impl PersistentEventHeader {
    /// Whether the log may hold events of a type.
    pub fn supports(&self, event_type: u8) -> bool {
        self.seb
            .get(usize::from(event_type >> 3))
            .is_some_and(|byte| (byte >> (event_type & 7)) & 1 != 0)
    }
}

impl fmt::Display for PersistentEventHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} persistent events in {} bytes", self.tnev, self.tll)
    }
}

impl Tree for PersistentEventHeader {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self:
            lid = "{:#04x}", tnev, tll, lrev, lhl, tstmp, poh, pcc, vid = "{:#06x}",
            ssvid = "{:#06x}", sn, mn,
        )?;
        out.field("subnqn", Printable::terminated(&self.subnqn))?;
        show!(out, self: gnum, rci = "{:#x}")?;
        (0..=u8::MAX)
            .filter(|&event_type| self.supports(event_type))
            .try_for_each(|event_type| out.field("seb", format_args!("{event_type:#04x}")))
    }
}

defmt_as_display!(PersistentEventHeader);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn fields_are_where_the_figure_has_them() {
        let mut bytes = [0; 512];
        bytes[0] = 0x0d;
        bytes[4] = 2;
        bytes[8..10].copy_from_slice(&[0x00, 0x03]);
        bytes[18..20].copy_from_slice(&[0xec, 0x01]);
        bytes[56..58].copy_from_slice(b"S1");
        bytes[76..78].copy_from_slice(b"M1");
        bytes[116..121].copy_from_slice(b"nqn.x");
        bytes[372] = 5;
        bytes[480] = 0x02;
        bytes[511] = 0x80;
        let log = PersistentEventHeader::ref_from_bytes(&bytes).unwrap();
        assert_eq!(
            (log.tnev.get(), log.tll.get(), log.lhl.get()),
            (2, 768, 492)
        );
        assert_eq!(
            (log.sn.trimmed(), log.mn.trimmed()),
            (&b"S1"[..], &b"M1"[..])
        );
        assert_eq!(log.gnum.get(), 5);
        assert!(log.supports(1) && log.supports(255) && !log.supports(0));
        let tree = format!("{}", log.tree());
        assert!(tree.ends_with("subnqn: nqn.x\ngnum: 5\nrci: 0x0\nseb: 0x01\nseb: 0xff\n"));
    }
}
