//! The private data of RDMA connection management (NVMe/RDMA Transport
//! Specification 1.0, section 3.5): who connects which queue, and how deep.
use core::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ids::{Cntlid, Qid};
use super::tree::{Tree, TreeWriter};

/// The only Record Format there is.
pub const RECFMT: u16 = 0;

open_enum! {
    /// STS: why a controller rejects a connection.
    pub enum CmStatus: u16 {
        InvalidLength = 0x01 => "Invalid Private Data Length",
        InvalidRecfmt = 0x02 => "Invalid RECFMT",
        InvalidQid = 0x03 => "Invalid QID",
        InvalidHsqsize = 0x04 => "Invalid HSQSIZE",
        InvalidHrqsize = 0x05 => "Invalid HRQSIZE",
        NoResources = 0x06 => "No Resources",
        InvalidIrd = 0x07 => "Invalid IRD",
        InvalidOrd = 0x08 => "Invalid ORD",
        InvalidCntlid = 0x09 => "Invalid CNTLID",
    }
}

/// The private data of a connection request, 32 bytes, from the host.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CmReq {
    /// Record Format, [`RECFMT`].
    pub recfmt: U16,
    /// The queue to connect.
    pub qid: U16,
    /// Host Receive Queue Size in entries.
    pub hrqsize: U16,
    /// Host Send Queue Size in entries, 0's based.
    pub hsqsize: U16,
    /// The controller of an I/O queue; 0 where the host does not say.
    pub cntlid: U16,
    _reserved10: [u8; 22],
}

layout!(CmReq: 32, recfmt @ 0, qid @ 2, hrqsize @ 4, hsqsize @ 6, cntlid @ 8);

impl CmReq {
    /// A request for a queue whose host may receive `receives` and send
    /// `sends` (1..=65536) capsules at a time.
    pub fn new(qid: Qid, receives: u16, sends: u32, cntlid: Cntlid) -> Self {
        let hsqsize = u16::try_from(sends.saturating_sub(1)).unwrap_or(u16::MAX);
        Self {
            qid: qid.0.into(),
            hrqsize: receives.into(),
            hsqsize: hsqsize.into(),
            cntlid: cntlid.0.into(),
            ..Self::new_zeroed()
        }
    }

    /// Reads private data, which the fabric may have padded.
    ///
    /// # Errors
    /// The status to reject the connection with: too short, or of another
    /// Record Format.
    pub fn parse(private_data: &[u8]) -> Result<&Self, CmStatus> {
        let (req, _) = Self::ref_from_prefix(private_data).map_err(|_| CmStatus::InvalidLength)?;
        if req.recfmt.get() == RECFMT {
            Ok(req)
        } else {
            Err(CmStatus::InvalidRecfmt)
        }
    }

    /// The queue to connect.
    pub fn qid(&self) -> Qid {
        Qid(self.qid.get())
    }

    /// HSQSIZE undone: capsules that the host may send at a time, 1..=65536.
    /// A controller posts that many receives.
    pub fn host_sends(&self) -> u32 {
        u32::from(self.hsqsize.get()).saturating_add(1)
    }

    /// HRQSIZE: capsules that the host may receive at a time.
    pub fn host_receives(&self) -> u16 {
        self.hrqsize.get()
    }
}

impl fmt::Display for CmReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM REQ recfmt {} qid {} hrqsize {} hsqsize {} cntlid {}",
            self.recfmt, self.qid, self.hrqsize, self.hsqsize, self.cntlid
        )
    }
}

impl Tree for CmReq {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("recfmt", self.recfmt)?;
        out.field("qid", self.qid)?;
        out.field("hrqsize", self.hrqsize)?;
        out.field("hsqsize", self.hsqsize)?;
        out.field("cntlid", self.cntlid)
    }
}

/// The private data of an accepted connection, 32 bytes, from the controller.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CmRep {
    /// Record Format, [`RECFMT`].
    pub recfmt: U16,
    /// Controller Receive Queue Size in entries.
    pub crqsize: U16,
    _reserved4: [u8; 28],
}

layout!(CmRep: 32, recfmt @ 0, crqsize @ 2);

impl CmRep {
    /// A controller that may receive `crqsize` capsules at a time.
    pub fn new(crqsize: u16) -> Self {
        Self {
            crqsize: crqsize.into(),
            ..Self::new_zeroed()
        }
    }

    /// Reads private data, which the fabric may have padded; `None` if it is
    /// too short or of another Record Format.
    pub fn parse(private_data: &[u8]) -> Option<&Self> {
        let (rep, _) = Self::ref_from_prefix(private_data).ok()?;
        (rep.recfmt.get() == RECFMT).then_some(rep)
    }
}

impl fmt::Display for CmRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM REP recfmt {} crqsize {}", self.recfmt, self.crqsize)
    }
}

impl Tree for CmRep {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("recfmt", self.recfmt)?;
        out.field("crqsize", self.crqsize)
    }
}

/// The private data of a rejected connection, 4 bytes, from the controller.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CmRej {
    /// Record Format, [`RECFMT`].
    pub recfmt: U16,
    /// Status: see [`CmStatus`].
    pub sts: U16,
}

layout!(CmRej: 4, recfmt @ 0, sts @ 2);

impl CmRej {
    /// A rejection for this reason.
    pub fn new(sts: CmStatus) -> Self {
        Self {
            recfmt: RECFMT.into(),
            sts: sts.code().into(),
        }
    }

    /// Reads private data, which the fabric may have padded; `None` if it is
    /// too short or of another Record Format.
    pub fn parse(private_data: &[u8]) -> Option<&Self> {
        let (rej, _) = Self::ref_from_prefix(private_data).ok()?;
        (rej.recfmt.get() == RECFMT).then_some(rej)
    }

    /// Why the controller rejects the connection.
    pub fn sts(&self) -> CmStatus {
        self.sts.get().into()
    }
}

impl fmt::Display for CmRej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM REJ recfmt {} sts {}", self.recfmt, self.sts())
    }
}

impl Tree for CmRej {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("recfmt", self.recfmt)?;
        out.field("sts", self.sts())
    }
}

defmt_as_display!(CmReq, CmRep, CmRej);

#[cfg(test)]
mod tests {
    use super::*;

    fn padded<const N: usize>(head: &[u8]) -> [u8; N] {
        let mut bytes = [0; N];
        bytes[..head.len()].copy_from_slice(head);
        bytes
    }

    #[test]
    fn a_linux_host_asks_for_its_admin_queue() {
        // HRQSIZE 32, HSQSIZE 31 (0's based), in 56 bytes of private data.
        let bytes: [u8; 56] = padded(&[0, 0, 0, 0, 32, 0, 31, 0]);
        let req = CmReq::parse(&bytes).unwrap();
        assert!(req.qid().is_admin());
        assert_eq!((req.host_receives(), req.host_sends()), (32, 32));
        let built = CmReq::new(Qid::ADMIN, 32, 32, Cntlid(0));
        assert_eq!(built.as_bytes(), &bytes[..32]);
    }

    #[test]
    fn an_io_queue_names_its_controller() {
        let bytes: [u8; 32] = padded(&[0, 0, 3, 0, 128, 0, 127, 0, 0x34, 0x12]);
        let req = CmReq::parse(&bytes).unwrap();
        assert_eq!((req.qid(), req.cntlid.get()), (Qid(3), 0x1234));
    }

    #[test]
    fn hsqsize_undoes_the_zero() {
        for (raw, sends) in [(0, 1), (1, 2), (0xFFFF, 0x1_0000)] {
            let req = CmReq::new(Qid(1), 1, sends, Cntlid(1));
            assert_eq!(req.hsqsize.get(), raw);
            assert_eq!(req.host_sends(), sends);
        }
        assert_eq!(CmReq::new(Qid(1), 1, 0, Cntlid(1)).hsqsize.get(), 0);
    }

    #[test]
    fn a_bad_request_gets_its_status() {
        assert_eq!(CmReq::parse(&[0; 31]), Err(CmStatus::InvalidLength));
        assert_eq!(CmReq::parse(&[]), Err(CmStatus::InvalidLength));
        let recfmt: [u8; 32] = padded(&[1]);
        assert_eq!(CmReq::parse(&recfmt), Err(CmStatus::InvalidRecfmt));
    }

    #[test]
    fn answers_are_read_and_built() {
        let bytes: [u8; 196] = padded(&[0, 0, 128, 0]);
        let rep = CmRep::parse(&bytes).unwrap();
        assert_eq!(rep.crqsize.get(), 128);
        assert_eq!(CmRep::new(128).as_bytes(), &bytes[..32]);
        assert_eq!(CmRep::parse(&[0; 4]), None);

        let rej = CmRej::parse(&[0, 0, 4, 0, 9, 9]).unwrap();
        assert_eq!(rej.sts(), CmStatus::InvalidHsqsize);
        assert_eq!(CmRej::new(CmStatus::InvalidCntlid).as_bytes(), [0, 0, 9, 0]);
        assert_eq!(CmRej::parse(&[0; 3]), None);
        assert_eq!(CmRej::parse(&[1, 0, 4, 0]), None);
    }

    #[test]
    fn statuses_are_total() {
        for code in 0..=u16::MAX {
            assert_eq!(CmStatus::from(code).code(), code);
        }
        assert_eq!(CmStatus::from(0), CmStatus::Unknown(0));
    }
}
