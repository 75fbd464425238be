//! A strict reader of what a controller sends: every rule of the NVMe/TCP
//! Transport Specification that can be checked without knowing the commands.
use std::fmt;

use crate::bytes::flags;
use crate::crc::crc32c;

/// A PDU of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// Initialize Connection Response.
    IcResp {
        /// Controller PDU Data Alignment, 0's based dwords.
        cpda: u8,
        /// Bit 0 header, bit 1 data.
        digests: u8,
        /// Bytes.
        maxh2cdata: u32,
    },
    /// Controller to Host Terminate Connection Request.
    TermReq {
        /// Fatal Error Status.
        fes: u16,
        /// Fatal Error Information.
        fei: u32,
        /// The header at fault.
        quoted: Vec<u8>,
    },
    /// Response Capsule.
    Response(Completion),
    /// Controller to Host Data Transfer.
    Data {
        /// Command.
        cid: u16,
        /// Bytes into the command's data.
        offset: u32,
        /// The data.
        data: Vec<u8>,
        /// The last of the command.
        last: bool,
        /// It implies a successful completion.
        success: bool,
    },
    /// Ready to Transfer.
    R2t(R2t),
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Dwords 0 and 1.
    pub result: u64,
    /// Submission queue head.
    pub sqhd: u16,
    /// Command.
    pub cid: u16,
    /// Status, phase bit included.
    pub status: u16,
}

/// What an R2T asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// Command.
    pub cid: u16,
    /// Transfer tag.
    pub ttag: u16,
    /// Bytes into the command's data.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// What is wrong with a PDU, and the bytes from it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// What is wrong.
    pub what: &'static str,
    /// The PDU, and what follows it.
    pub bytes: Vec<u8>,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.bytes.get(..64).unwrap_or(&self.bytes);
        write!(f, "{} in {shown:02x?}", self.what)
    }
}

impl std::error::Error for Malformed {}

/// The reader's state.
#[derive(Clone, Debug)]
pub struct Reader {
    hpda: u8,
    digests: u8,
    initialized: bool,
    terminated: bool,
    bytes: Vec<u8>,
}

impl Reader {
    /// For a connection whose ICReq says `hpda` (0's based dwords).
    #[must_use]
    pub fn new(hpda: u8) -> Self {
        Self {
            hpda,
            digests: 0,
            initialized: false,
            terminated: false,
            bytes: Vec::new(),
        }
    }

    /// Bytes arrived.
    pub fn received(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Whether bytes wait that are no whole PDU yet.
    #[must_use]
    pub fn mid_pdu(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The next PDU, if all of it is here.
    ///
    /// # Errors
    /// The controller broke a rule.
    pub fn next_pdu(&mut self) -> Result<Option<Pdu>, Malformed> {
        let Some(header) = self.bytes.get(..8) else {
            return Ok(None);
        };
        let plen = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let plen = usize::try_from(plen).unwrap_or(usize::MAX);
        let parsed = if !(24..=1 << 24).contains(&plen) {
            Err("PLEN out of range")
        } else if self.bytes.len() < plen {
            return Ok(None);
        } else {
            self.parse(&self.bytes[..plen])
        };
        match parsed {
            Ok(pdu) => {
                match &pdu {
                    Pdu::IcResp { digests, .. } => {
                        self.initialized = true;
                        self.digests = *digests;
                    }
                    Pdu::TermReq { .. } => self.terminated = true,
                    _ => {}
                }
                self.bytes.drain(..plen);
                Ok(Some(pdu))
            }
            Err(what) => Err(Malformed {
                what,
                bytes: self.bytes.clone(),
            }),
        }
    }

    fn parse(&self, pdu: &[u8]) -> Result<Pdu, &'static str> {
        let word = |at: usize| u16::from_le_bytes([pdu[at], pdu[at + 1]]);
        let dword = |at: usize| u32::from(word(at)) | u32::from(word(at + 2)) << 16;
        let (pdu_type, pdu_flags) = (pdu[0], pdu[1]);
        check(!self.terminated, "a PDU after C2HTermReq")?;
        check(
            self.initialized != (pdu_type == 0x01) || pdu_type == 0x03,
            "ICResp is not the first, or not the only one",
        )?;
        match pdu_type {
            0x01 => {
                check(pdu_flags == 0, "flags of ICResp")?;
                check(pdu.len() == 128 && pdu[2] == 128, "length of ICResp")?;
                check(pdu[3] == 0 && word(8) == 0, "PDO or PFV of ICResp")?;
                check(zero(&pdu[16..]), "reserved bytes of ICResp")?;
                check(pdu[10] <= 31 && pdu[11] <= 3, "CPDA or DGST of ICResp")?;
                let maxh2cdata = dword(12);
                check(
                    maxh2cdata >= 4096 && maxh2cdata.is_multiple_of(4),
                    "MAXH2CDATA",
                )?;
                Ok(Pdu::IcResp {
                    cpda: pdu[10],
                    digests: pdu[11],
                    maxh2cdata,
                })
            }
            0x03 => {
                check(pdu_flags == 0, "flags of C2HTermReq")?;
                check(pdu[2] == 24 && pdu[3] == 0, "HLEN or PDO of C2HTermReq")?;
                check((25..=152).contains(&pdu.len()), "length of C2HTermReq")?;
                check(
                    (1..=6).contains(&word(8)) && zero(&pdu[14..24]),
                    "FES or reserved bytes of C2HTermReq",
                )?;
                Ok(Pdu::TermReq {
                    fes: word(8),
                    fei: dword(10),
                    quoted: pdu[24..].to_vec(),
                })
            }
            0x05 => {
                check(pdu_flags & !flags::HDGST == 0, "flags of CapsuleResp")?;
                self.data(pdu, false)?;
                check(word(18) == 0, "SQID is reserved on fabrics")?;
                check(word(22) & 1 == 0, "the phase bit is reserved on fabrics")?;
                Ok(Pdu::Response(Completion {
                    result: u64::from(dword(8)) | u64::from(dword(12)) << 32,
                    sqhd: word(16),
                    cid: word(20),
                    status: word(22),
                }))
            }
            0x07 => {
                let data = self.data(pdu, true)?.to_vec();
                let success = pdu_flags & flags::SUCCESS != 0;
                let last = pdu_flags & flags::LAST != 0;
                check(pdu_flags & 0xF0 == 0, "flags of C2HData")?;
                check(last || !success, "SUCCESS without LAST_PDU")?;
                check(word(10) == 0, "TTAG of C2HData is reserved")?;
                check(dword(20) == 0, "reserved bytes of C2HData")?;
                check(
                    dword(16).to_le_bytes() == crate::bytes::length(data.len()),
                    "DATAL",
                )?;
                Ok(Pdu::Data {
                    cid: word(8),
                    offset: dword(12),
                    data,
                    last,
                    success,
                })
            }
            0x09 => {
                check(pdu_flags & !flags::HDGST == 0, "flags of R2T")?;
                self.data(pdu, false)?;
                check(dword(20) == 0, "reserved bytes of R2T")?;
                Ok(Pdu::R2t(R2t {
                    cid: word(8),
                    ttag: word(10),
                    offset: dword(12),
                    len: dword(16),
                }))
            }
            _ => Err("a PDU type that no controller sends"),
        }
    }

    /// The data of a PDU with a 24-byte header.
    fn data<'a>(&self, pdu: &'a [u8], with_data: bool) -> Result<&'a [u8], &'static str> {
        let (header_digest, data_digest) = (self.digests & 1 != 0, self.digests & 2 != 0);
        check(pdu[2] == 24, "HLEN")?;
        check(
            (pdu[1] & flags::HDGST != 0) == header_digest,
            "HDGSTF is not what was agreed",
        )?;
        check(
            (pdu[1] & flags::DDGST != 0) == (data_digest && with_data),
            "DDGSTF is not what was agreed",
        )?;
        let mut head = 24;
        if header_digest {
            let digest = pdu.get(24..28).ok_or("no header digest")?;
            check(crc32c(&pdu[..24]).to_le_bytes() == digest, "header digest")?;
            head = 28;
        }
        if !with_data {
            check(
                pdu[3] == 0 && pdu.len() == head,
                "PDO or length without data",
            )?;
            return Ok(&[]);
        }
        let pdo = usize::from(pdu[3]);
        let alignment = (usize::from(self.hpda) + 1) * 4;
        check(pdo == head.next_multiple_of(alignment), "PDO")?;
        check(pdu.get(head..pdo).is_some_and(zero), "padding")?;
        let end = pdu.len() - if data_digest { 4 } else { 0 };
        let data = pdu.get(pdo..end).ok_or("PLEN is too small")?;
        check(!data.is_empty(), "a data PDU without data")?;
        check(
            !data_digest || crc32c(data).to_le_bytes() == pdu[end..],
            "data digest",
        )?;
        Ok(data)
    }
}

fn zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn check(ok: bool, what: &'static str) -> Result<(), &'static str> {
    ok.then_some(()).ok_or(what)
}
