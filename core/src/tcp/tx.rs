//! Composes the heads of what is sent: header, header digest, padding.
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::fatal::Fatal;
use super::rx::Digests;
use crate::bytes::copy_prefix;
use crate::digest::Crc32c;
use crate::wire::pdu::{CommonHeader, PduType, TermReq, flags, pda_alignment};

/// Bytes that the longest head takes: a TermReq that quotes a 128-byte header.
pub const MAX_HEAD: usize = 152;

/// How this end's PDUs are dressed.
#[derive(Clone, Copy, Debug)]
pub struct Dress {
    /// Which of them have digests.
    pub digests: Digests,
    /// The peer's HPDA or CPDA: 0's based dwords that data must be aligned to.
    pub pda: u8,
    /// The CRC32C engine.
    pub crc32c: Crc32c,
}

impl Dress {
    /// Writes the head of a PDU with `data_len` bytes of data. `header` is the
    /// PDU's header but for the flags of digests, PDO and PLEN. Returns the bytes written.
    #[must_use]
    pub fn head<T: IntoBytes + Immutable>(
        &self,
        out: &mut [u8; MAX_HEAD],
        header: &T,
        data_len: u32,
    ) -> usize {
        let header = header.as_bytes();
        let hlen = header.len();
        let digest = if self.digests.header { 4 } else { 0 };
        let unpadded = hlen.saturating_add(digest);
        let head = if data_len > 0 {
            unpadded
                .next_multiple_of(pda_alignment(self.pda))
                .min(MAX_HEAD)
        } else {
            unpadded
        };
        let tail: u32 = if data_len > 0 && self.digests.data {
            4
        } else {
            0
        };
        copy_prefix(out, header);
        // The rest is a digest, which comes last, and padding.
        out.get_mut(hlen..head).unwrap_or_default().fill(0);
        let plen = u32::try_from(head)
            .unwrap_or(u32::MAX)
            .saturating_add(data_len)
            .saturating_add(tail);
        if let Ok((common, _)) = CommonHeader::mut_from_prefix(out) {
            if self.digests.header {
                common.flags |= flags::HDGSTF;
            }
            if tail > 0 {
                common.flags |= flags::DDGSTF;
            }
            common.hlen = u8::try_from(hlen).unwrap_or(u8::MAX);
            common.pdo = if data_len > 0 {
                u8::try_from(head).unwrap_or(u8::MAX)
            } else {
                0
            };
            common.plen.set(plen);
        }
        if self.digests.header {
            let crc = (self.crc32c)(0, out.get(..hlen).unwrap_or(&[]));
            if let Some(place) = out.get_mut(hlen..unpadded) {
                place.copy_from_slice(&crc.to_le_bytes());
            }
        }
        head
    }

    /// For the PDUs that never carry digests.
    pub(super) fn undressed(&self) -> Self {
        Self {
            digests: Digests::default(),
            ..*self
        }
    }

    /// Section 3.6.2: a TermReq, without digests, that quotes the header at fault.
    pub(super) fn term_req(
        &self,
        out: &mut [u8; MAX_HEAD],
        pdu_type: PduType,
        fatal: Fatal,
        quoted: &[u8],
    ) -> usize {
        let request = TermReq::new(pdu_type, fatal.fes, fatal.fei);
        let len = self.undressed().head(out, &request, 0);
        copy_prefix(out.get_mut(len..).unwrap_or_default(), quoted);
        let total = len.saturating_add(quoted.len()).min(MAX_HEAD);
        if let Ok((common, _)) = CommonHeader::mut_from_prefix(out) {
            common.plen.set(u32::try_from(total).unwrap_or(0));
        }
        total
    }
}
