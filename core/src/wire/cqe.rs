//! The Completion Queue Entry (NVMe Base 2.0, section 3.3.3.2; for Fabrics,
//! figure "Fabrics Response Capsule").
use core::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ids::Cid;
use super::status::Status;
use super::tree::{Tree, TreeWriter};

/// A completion, 16 bytes.
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
pub struct Cqe {
    /// What the command returns, dwords 0 and 1.
    pub result: U64,
    /// Submission Queue Head pointer: how far the controller has taken
    /// commands, modulo the queue's size.
    pub sqhd: U16,
    /// Submission Queue Identifier; reserved over Fabrics.
    pub sqid: U16,
    /// The command that completes.
    pub cid: U16,
    /// The Status word, with the phase bit (reserved over Fabrics) at bit 0.
    pub status: U16,
}

layout!(Cqe: 16, result @ 0, sqhd @ 8, sqid @ 10, cid @ 12, status @ 14);

impl Cqe {
    /// The SQHD of Connect's completion that grants SQ flow control disabled.
    pub const SQHD_FLOW_CONTROL_DISABLED: u16 = 0xFFFF;

    /// The completion of `cid` with `status`, all else zero.
    pub fn new(cid: Cid, status: Status) -> Self {
        Self {
            cid: cid.0.into(),
            status: status.to_word().into(),
            ..Self::default()
        }
    }

    /// The same completion with dwords 0 (low) and 1 (high) of its result.
    #[must_use]
    pub fn with_result(self, result: u64) -> Self {
        Self {
            result: result.into(),
            ..self
        }
    }

    /// Sets the Submission Queue Head pointer.
    pub fn set_sqhd(&mut self, sqhd: u16) {
        self.sqhd = sqhd.into();
    }

    /// The command that completes.
    pub fn cid(&self) -> Cid {
        Cid(self.cid.get())
    }

    /// How it ended.
    pub fn status(&self) -> Status {
        Status::from_word(self.status.get())
    }

    /// Dword 0 of the result.
    pub fn dw0(&self) -> u32 {
        let [b0, b1, b2, b3, ..] = self.result.to_bytes();
        u32::from_le_bytes([b0, b1, b2, b3])
    }

    /// Dword 1 of the result.
    pub fn dw1(&self) -> u32 {
        let [.., b0, b1, b2, b3] = self.result.to_bytes();
        u32::from_le_bytes([b0, b1, b2, b3])
    }
}

impl fmt::Display for Cqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cid {} {} sqhd {}", self.cid, self.status(), self.sqhd)?;
        match self.result.get() {
            0 => Ok(()),
            result => write!(f, " result {result:#x}"),
        }
    }
}

impl Tree for Cqe {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("cid", self.cid)?;
        out.field("status", self.status())?;
        out.field("sqhd", self.sqhd)?;
        out.field("sqid", self.sqid)?;
        out.field("result", format_args!("{:#x}", self.result.get()))
    }
}

defmt_as_display!(Cqe);

#[cfg(test)]
mod tests {
    use super::*;

    /// Result 1122334455667788h, SQHD 3, SQID 4, CID 5, 1/82h DNR.
    const BYTES: [u8; 16] = [
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 3, 0, 4, 0, 5, 0, 0x04, 0x83,
    ];

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let cqe = Cqe::read_from_bytes(&BYTES).unwrap();
        assert_eq!(cqe.result.get(), 0x1122_3344_5566_7788);
        assert_eq!((cqe.dw0(), cqe.dw1()), (0x5566_7788, 0x1122_3344));
        assert_eq!((cqe.sqhd.get(), cqe.sqid.get(), cqe.cid()), (3, 4, Cid(5)));
        assert_eq!(cqe.status(), Status::CONNECT_INVALID_PARAMETERS.with_dnr());
    }

    #[test]
    fn building_gives_the_same_bytes() {
        let mut cqe = Cqe::new(Cid(5), Status::CONNECT_INVALID_PARAMETERS.with_dnr())
            .with_result(0x1122_3344_5566_7788);
        cqe.set_sqhd(3);
        cqe.sqid = 4.into();
        assert_eq!(cqe.as_bytes(), BYTES);
    }
}
