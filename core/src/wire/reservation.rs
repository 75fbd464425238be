//! Reservations: the data of Reservation Register, Acquire, Release and
//! Report (NVMe Base 2.0, sections 7.2 to 7.5 and 8.19). The fields of the
//! commands themselves are in [`command::io`](crate::command::io).
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ids::HostId;
use super::tree::{Tree, TreeWriter};

open_enum! {
    /// Reservation Type (RTYPE): who may read and write.
    pub enum ReservationType: u8 {
        None = 0 => "No Reservation",
        WriteExclusive = 1 => "Write Exclusive",
        ExclusiveAccess = 2 => "Exclusive Access",
        WriteExclusiveRegistrants = 3 => "Write Exclusive - Registrants Only",
        ExclusiveAccessRegistrants = 4 => "Exclusive Access - Registrants Only",
        WriteExclusiveAll = 5 => "Write Exclusive - All Registrants",
        ExclusiveAccessAll = 6 => "Exclusive Access - All Registrants",
    }
}

enum_bits!(ReservationType);

/// Data of Reservation Register.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RegisterKeys {
    /// Current Reservation Key; not regarded when the command says so.
    pub crkey: U64,
    /// New Reservation Key.
    pub nrkey: U64,
}

layout!(RegisterKeys: 16, crkey @ 0, nrkey @ 8);

/// Data of Reservation Acquire.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct AcquireKeys {
    /// Current Reservation Key.
    pub crkey: U64,
    /// Preempt Reservation Key.
    pub prkey: U64,
}

layout!(AcquireKeys: 16, crkey @ 0, prkey @ 8);

/// Data of Reservation Release.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct ReleaseKey {
    /// Current Reservation Key.
    pub crkey: U64,
}

layout!(ReleaseKey: 8, crkey @ 0);

/// What Reservation Report starts with when host identifiers are of 64 bits;
/// [`Registrant`]s follow.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct ReservationStatus {
    /// Generation: counts registrations, releases by Clear and preemptions.
    pub generation: U32,
    /// Reservation Type, see [`Self::kind`].
    pub rtype: u8,
    /// Number of Registrants.
    pub regstrnt: U16,
    reserved_7: [u8; 2],
    /// Persist Through Power Loss State: 1 if reservations persist.
    pub ptpls: u8,
    reserved_10: [u8; 14],
}

layout!(ReservationStatus: 24, generation @ 0, rtype @ 4, regstrnt @ 5, ptpls @ 9);

impl ReservationStatus {
    /// The status of a namespace with `registrants` registrants.
    pub fn new(generation: u32, kind: ReservationType, registrants: u16, ptpl: bool) -> Self {
        Self {
            generation: generation.into(),
            rtype: kind.code(),
            regstrnt: registrants.into(),
            ptpls: ptpl.into(),
            ..Self::default()
        }
    }

    /// The reservation that is held, if one is.
    pub fn kind(&self) -> ReservationType {
        self.rtype.into()
    }
}

/// A controller whose host has registered with the namespace.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Registrant {
    /// Controller Identifier; FFFFh for a controller in another domain or one
    /// that is not associated now.
    pub cntlid: U16,
    /// Reservation Status.
    pub rcsts: RegistrantStatus,
    reserved_3: [u8; 5],
    /// Host Identifier, 64 bits.
    pub hostid: [u8; 8],
    /// Reservation Key.
    pub rkey: U64,
}

layout!(Registrant: 24, cntlid @ 0, rcsts @ 2, hostid @ 8, rkey @ 16);

impl Registrant {
    /// A registrant, `holder` if it holds the reservation.
    pub fn new(cntlid: u16, holder: bool, hostid: [u8; 8], rkey: u64) -> Self {
        Self {
            cntlid: cntlid.into(),
            rcsts: RegistrantStatus::of(holder),
            hostid,
            rkey: rkey.into(),
            ..Self::default()
        }
    }
}

flags! {
    /// Status of a registrant.
    pub struct RegistrantStatus: u8 {
        /// It holds the reservation.
        const HOLDER = 1 << 0;
    }
}

impl RegistrantStatus {
    const fn of(holder: bool) -> Self {
        if holder {
            Self::HOLDER
        } else {
            Self::from_bits(0)
        }
    }
}

/// What Reservation Report starts with when host identifiers are of 128 bits,
/// as they are over Fabrics; [`ExtendedRegistrant`]s follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ExtendedReservationStatus {
    /// What both forms have.
    pub status: ReservationStatus,
    reserved_24: [u8; 40],
}

layout!(ExtendedReservationStatus: 64, status @ 0);

impl From<ReservationStatus> for ExtendedReservationStatus {
    fn from(status: ReservationStatus) -> Self {
        Self {
            status,
            reserved_24: [0; 40],
        }
    }
}

/// A registrant with its whole host identifier.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct ExtendedRegistrant {
    /// Controller Identifier; FFFFh for a controller in another domain or one
    /// that is not associated now.
    pub cntlid: U16,
    /// Reservation Status.
    pub rcsts: RegistrantStatus,
    reserved_3: [u8; 5],
    /// Reservation Key.
    pub rkey: U64,
    /// Host Identifier.
    pub hostid: [u8; 16],
    reserved_32: [u8; 32],
}

layout!(ExtendedRegistrant: 64, cntlid @ 0, rcsts @ 2, rkey @ 8, hostid @ 16);

impl ExtendedRegistrant {
    /// A registrant, `holder` if it holds the reservation.
    pub fn new(cntlid: u16, holder: bool, hostid: HostId, rkey: u64) -> Self {
        Self {
            cntlid: cntlid.into(),
            rcsts: RegistrantStatus::of(holder),
            rkey: rkey.into(),
            hostid: hostid.0,
            ..Self::default()
        }
    }
}

/// What Reservation Report returned. It is written through a
/// [`LogWindow`](super::log::LogWindow) at offset 0.
#[derive(Clone, Copy, Debug)]
pub struct ReservationReport<'a, R> {
    /// The status of the namespace.
    pub status: &'a ReservationStatus,
    /// The registrants that were returned: fewer than the status counts when
    /// the buffer was too short for all.
    pub registrants: &'a [R],
}

impl<'a> ReservationReport<'a, Registrant> {
    /// Reads the form with host identifiers of 64 bits; `None` if there is no
    /// whole status.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (status, rest) = ReservationStatus::ref_from_prefix(bytes).ok()?;
        Self::with_registrants(status, rest)
    }
}

impl<'a> ReservationReport<'a, ExtendedRegistrant> {
    /// Reads the form with host identifiers of 128 bits; `None` if there is
    /// no whole status.
    pub fn parse_extended(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = ExtendedReservationStatus::ref_from_prefix(bytes).ok()?;
        Self::with_registrants(&header.status, rest)
    }
}

impl<'a, R: FromBytes + KnownLayout + Immutable + Unaligned> ReservationReport<'a, R> {
    fn with_registrants(status: &'a ReservationStatus, rest: &'a [u8]) -> Option<Self> {
        let whole = rest.len().checked_div(size_of::<R>())?;
        let count = usize::from(status.regstrnt.get()).min(whole);
        let (registrants, _) = <[R]>::ref_from_prefix_with_elems(rest, count).ok()?;
        Some(Self {
            status,
            registrants,
        })
    }
}

impl<R> ReservationReport<'_, R> {
    /// Whether every registrant was returned.
    pub fn is_complete(&self) -> bool {
        self.registrants.len() == usize::from(self.status.regstrnt.get())
    }
}

impl fmt::Display for RegisterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crkey {:#x} nrkey {:#x}", self.crkey, self.nrkey)
    }
}

impl fmt::Display for AcquireKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crkey {:#x} prkey {:#x}", self.crkey, self.prkey)
    }
}

impl fmt::Display for ReleaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crkey {:#x}", self.crkey)
    }
}

impl fmt::Display for ReservationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        write!(
            f,
            "{kind}, {} registrants, generation {}",
            self.regstrnt, self.generation
        )
    }
}

impl fmt::Display for ExtendedReservationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)
    }
}

impl fmt::Display for Registrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hostid = super::text::Hex(&self.hostid);
        write!(
            f,
            "cntlid {:#x} hostid {hostid} rkey {:#x} ",
            self.cntlid, self.rkey
        )?;
        write!(f, "rcsts {}", self.rcsts)
    }
}

impl fmt::Display for ExtendedRegistrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hostid = HostId(self.hostid);
        write!(
            f,
            "cntlid {:#x} hostid {hostid} rkey {:#x} ",
            self.cntlid, self.rkey
        )?;
        write!(f, "rcsts {}", self.rcsts)
    }
}

impl<R> fmt::Display for ReservationReport<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)
    }
}

impl Tree for RegisterKeys {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: crkey = "{:#x}", nrkey = "{:#x}")
    }
}

impl Tree for AcquireKeys {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: crkey = "{:#x}", prkey = "{:#x}")
    }
}

impl Tree for ReleaseKey {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: crkey = "{:#x}")
    }
}

impl Tree for ReservationStatus {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("gen", self.generation)?;
        out.field("rtype", self.kind())?;
        show!(out, self: regstrnt, ptpls)
    }
}

impl Tree for ExtendedReservationStatus {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        self.status.fields(out)
    }
}

impl Tree for Registrant {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: cntlid = "{:#x}", rcsts)?;
        out.field("hostid", super::text::Hex(&self.hostid))?;
        show!(out, self: rkey = "{:#x}")
    }
}

impl Tree for ExtendedRegistrant {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: cntlid = "{:#x}", rcsts, rkey = "{:#x}")?;
        out.field("hostid", HostId(self.hostid))
    }
}

impl<R: Tree> Tree for ReservationReport<'_, R> {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        self.status.fields(out)?;
        self.registrants
            .iter()
            .try_for_each(|registrant| out.node("registrant", registrant))
    }
}

defmt_as_display!(
    RegisterKeys,
    AcquireKeys,
    ReleaseKey,
    ReservationStatus,
    ExtendedReservationStatus,
    Registrant,
    ExtendedRegistrant,
);

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use super::*;
    use crate::wire::log::LogWindow;

    const STATUS: [u8; 24] = [
        9, 0, 0, 1, 3, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn keys_are_in_their_order() {
        let bytes = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        let register = RegisterKeys::ref_from_bytes(&bytes).unwrap();
        assert_eq!((register.crkey.get(), register.nrkey.get()), (1, 2));
        let acquire = AcquireKeys::ref_from_bytes(&bytes).unwrap();
        assert_eq!((acquire.crkey.get(), acquire.prkey.get()), (1, 2));
        assert_eq!(
            ReleaseKey::ref_from_bytes(&bytes[8..]).unwrap().crkey.get(),
            2
        );
        assert_eq!(format!("{}", acquire.tree()), "crkey: 0x1\nprkey: 0x2\n");
    }

    #[test]
    fn report_is_read() {
        let mut bytes = Vec::from(STATUS);
        bytes.extend([
            1, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0xaa, 0, 0, 0, 0, 0, 0, 0,
        ]);
        bytes.extend([
            2, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0xbb, 0, 0, 0, 0, 0, 0, 0,
        ]);
        let report = ReservationReport::parse(&bytes).unwrap();
        assert_eq!(report.status.generation.get(), 0x0100_0009);
        assert_eq!(
            report.status.kind(),
            ReservationType::WriteExclusiveRegistrants
        );
        assert_eq!(report.status.ptpls, 1);
        assert!(report.is_complete());
        let [first, second] = report.registrants else {
            panic!("two registrants")
        };
        assert_eq!(first.rcsts, RegistrantStatus::HOLDER);
        assert_eq!((first.cntlid.get(), first.rkey.get()), (1, 0xaa));
        assert_eq!(
            *second,
            Registrant::new(2, false, [8, 7, 6, 5, 4, 3, 2, 1], 0xbb)
        );
        let tree = format!("{}", report.tree());
        assert!(tree.contains("registrant:\n  cntlid: 0x1\n  rcsts: 0x1 HOLDER\n"));

        for end in 0..bytes.len() {
            let report = ReservationReport::parse(&bytes[..end]);
            assert_eq!(report.is_some(), end >= 24);
            if let Some(report) = report {
                assert_eq!(report.registrants.len(), (end - 24) / 24);
                assert!(!report.is_complete());
            }
        }
    }

    #[test]
    fn count_is_never_beyond_the_bytes() {
        let mut bytes = [0; 128];
        bytes[5..7].fill(0xff);
        assert_eq!(
            ReservationReport::parse(&bytes).unwrap().registrants.len(),
            4
        );
        assert_eq!(
            ReservationReport::parse_extended(&bytes)
                .unwrap()
                .registrants
                .len(),
            1
        );
        bytes[5..7].fill(0);
        let none = ReservationReport::parse_extended(&bytes).unwrap();
        assert!(none.registrants.is_empty() && none.is_complete());
        assert!(ReservationReport::parse_extended(&bytes[..63]).is_none());
    }

    #[test]
    fn extended_report_is_written() {
        let status = ReservationStatus::new(
            0x0100_0009,
            ReservationType::WriteExclusiveRegistrants,
            2,
            true,
        );
        assert_eq!(status.as_bytes(), STATUS);
        let registrant = ExtendedRegistrant::new(7, true, HostId([0xcc; 16]), 0xaa);
        let mut out = [0xff; 100];
        let mut window = LogWindow::new(&mut out, 0);
        window.put(&ExtendedReservationStatus::from(status));
        window.put(&registrant);
        let mut expected = [0; 128];
        expected[..24].copy_from_slice(&STATUS);
        expected[64..73].copy_from_slice(&[7, 0, 1, 0, 0, 0, 0, 0, 0xaa]);
        expected[80..96].fill(0xcc);
        assert_eq!(out, expected[..100]);
        let report = ReservationReport::parse_extended(&expected).unwrap();
        assert_eq!(report.registrants, [registrant]);
    }
}
