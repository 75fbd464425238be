//! Reservation Notification log, 80h (NVMe Base 2.1, figure "Reservation
//! Notification Log Page").
use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::ids::Nsid;
use crate::wire::tree::{Tree, TreeWriter};

/// One notification; all zero is an empty log.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ReservationNotification {
    /// Log Page Count: counts notifications; 0 is none, and wraps to 1.
    pub lpc: U64,
    /// Type, see [`Self::kind`].
    pub rnlpt: u8,
    /// Number of further log pages, 255 for that many or more.
    pub nalp: u8,
    reserved_10: [u8; 2],
    /// Namespace Identifier.
    pub nsid: U32,
    reserved_16: [u8; 48],
}

layout!(ReservationNotification: 64, lpc @ 0, rnlpt @ 8, nalp @ 9, nsid @ 12);

open_enum! {
    /// Reservation Notification Log Page Type.
    pub enum ReservationNotificationType: u8 {
        Empty = 0 => "Empty Log Page",
        RegistrationPreempted = 1 => "Registration Preempted",
        ReservationReleased = 2 => "Reservation Released",
        ReservationPreempted = 3 => "Reservation Preempted",
    }
}

impl ReservationNotification {
    /// A notification that `nalp` others follow.
    pub fn new(lpc: u64, kind: ReservationNotificationType, nalp: u8, nsid: Nsid) -> Self {
        Self {
            lpc: lpc.into(),
            rnlpt: kind.code(),
            nalp,
            reserved_10: [0; 2],
            nsid: nsid.0.into(),
            reserved_16: [0; 48],
        }
    }

    /// What happened.
    pub fn kind(&self) -> ReservationNotificationType {
        self.rnlpt.into()
    }
}

impl fmt::Display for ReservationNotification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        write!(
            f,
            "{} {kind} nsid {:#x}, {} more",
            self.lpc, self.nsid, self.nalp
        )
    }
}

impl Tree for ReservationNotification {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: lpc)?;
        out.field("rnlpt", self.kind())?;
        show!(out, self: nalp, nsid = "{:#x}")
    }
}

defmt_as_display!(ReservationNotification);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn fields_are_where_the_figure_has_them() {
        let mut bytes = [0; 64];
        bytes[..16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 1, 3, 255, 0, 0, 4, 3, 2, 1]);
        let log = ReservationNotification::read_from_bytes(&bytes).unwrap();
        assert_eq!(log.lpc.get(), (1 << 56) + 1);
        assert_eq!(
            log.kind(),
            ReservationNotificationType::ReservationPreempted
        );
        assert_eq!((log.nalp, log.nsid.get()), (255, 0x0102_0304));
        let built = ReservationNotification::new(log.lpc.get(), log.kind(), 255, Nsid(0x0102_0304));
        assert_eq!(built.as_bytes(), bytes);
        assert!(format!("{}", log.tree()).contains("rnlpt: Reservation Preempted\nnalp: 255\n"));
    }
}
