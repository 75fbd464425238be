//! Firmware Slot Information log, 03h (NVMe Base 2.1, figure "Firmware Slot
//! Information Log Page").
use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::text::Padded;
use crate::wire::tree::{Tree, TreeWriter};

/// The firmware in each slot.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FirmwareSlots {
    /// Active Firmware Info, see [`Self::active`] and [`Self::next`].
    pub afi: u8,
    reserved_1: [u8; 7],
    /// Firmware revisions of slots 1 to 7; zeroes for an empty slot.
    pub frs: [Padded<8>; 7],
    reserved_64: [u8; 448],
}

layout!(FirmwareSlots: 512, afi @ 0, frs @ 8);

impl FirmwareSlots {
    /// A log of slot 1 alone, which is active.
    pub fn single(revision: Padded<8>) -> Self {
        let empty = zerocopy::FromZeros::new_zeroed();
        Self {
            afi: 1,
            reserved_1: [0; 7],
            frs: [revision, empty, empty, empty, empty, empty, empty],
            reserved_64: [0; 448],
        }
    }

    /// Slot the running firmware came from, 1..=7 (bits 2:0).
    pub const fn active(&self) -> u8 {
        self.afi & 7
    }

    /// Slot to be activated at the next controller reset (bits 6:4), if that
    /// is known.
    pub const fn next(&self) -> Option<u8> {
        match (self.afi >> 4) & 7 {
            0 => None,
            slot => Some(slot),
        }
    }
}

impl fmt::Display for FirmwareSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.active();
        match usize::from(slot)
            .checked_sub(1)
            .and_then(|index| self.frs.get(index))
        {
            Some(revision) => write!(f, "slot {slot} active: {revision}"),
            None => f.write_str("no active slot"),
        }
    }
}

impl Tree for FirmwareSlots {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field(
            "afi",
            format_args!("{:#04x} (slot {})", self.afi, self.active()),
        )?;
        for (slot, revision) in (1u8..).zip(&self.frs) {
            if !revision.trimmed().is_empty() {
                out.field("frs", format_args!("{slot}: {revision}"))?;
            }
        }
        Ok(())
    }
}

defmt_as_display!(FirmwareSlots);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn revisions_start_at_byte_8() {
        let mut bytes = [0; 512];
        bytes[0] = 0x21;
        bytes[8..24].copy_from_slice(b"1.0     2.0     ");
        let log = FirmwareSlots::ref_from_bytes(&bytes).unwrap();
        assert_eq!((log.active(), log.next()), (1, Some(2)));
        assert_eq!(format!("{log}"), "slot 1 active: 1.0");
        assert_eq!(
            format!("{}", log.tree()),
            "afi: 0x21 (slot 1)\nfrs: 1: 1.0\nfrs: 2: 2.0\n"
        );
        bytes[0] = 1;
        bytes[16..24].fill(0);
        assert_eq!(FirmwareSlots::single(Padded::new("1.0")).as_bytes(), bytes);
    }

    #[test]
    fn active_firmware_info_is_packed() {
        for (afi, active, next) in [(0x88, 0, None), (0x11, 1, Some(1)), (0xff, 7, Some(7))] {
            let mut log = FirmwareSlots::single(Padded::default());
            log.afi = afi;
            assert_eq!((log.active(), log.next()), (active, next));
        }
    }
}
