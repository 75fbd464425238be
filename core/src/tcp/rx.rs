//! Frames what arrives: collects each PDU's header, checks what every PDU must
//! obey, and says where its data belongs. What a PDU means is the machine's.
use zerocopy::FromBytes;

use super::fatal::Fatal;
use crate::bytes::copy_prefix;
use crate::digest::Crc32c;
use crate::wire::pdu::{CommonHeader, DIGEST_LEN, PduType, TermReq, flags, pda_alignment};
use crate::{DataBuffers, Place};

/// Where the next bytes of the stream belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// This many bytes, at most, to the machine itself (headers and digests).
    Scratch(usize),
    /// Data of a command.
    Payload(Place),
    /// This many bytes nowhere (padding, or data that nobody wants).
    Skip(u32),
}

/// Which digests a connection carries, once agreed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// HDGST behind every header.
    pub header: bool,
    /// DDGST behind all data.
    pub data: bool,
}

/// The two ends of a connection: which PDU types they may receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Receives even types.
    Controller,
    /// Receives odd types.
    Host,
}

/// A PDU whose header is complete and obeys the rules of framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed {
    /// Its type, one that this end may receive.
    pub pdu_type: PduType,
    /// Bytes of data it carries, digest and padding not counted.
    pub data_len: u32,
}

/// What came to an end with the bytes just taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing.
    More,
    /// A header: say where the data goes with [`Framer::data_to`] (if it carries any).
    Header(Framed),
    /// A PDU's data, and whether the digest (if there is one) agrees.
    Data {
        /// No digest, or the right one.
        intact: bool,
    },
}

/// A PDU's data, where it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole<'a> {
    pub(super) data: &'a [u8],
    /// No digest, or the right one.
    pub(super) intact: bool,
}

/// Bytes of the longest header (ICReq).
const MAX_HEADER: usize = 128;
/// Bytes of a digest.
const DIGEST: u32 = 4;
const _: () = assert!(DIGEST as usize == DIGEST_LEN);
/// Bytes of header that a TermReq may quote.
const MAX_QUOTE: u32 = 128;
const _: () = assert!(MAX_QUOTE as usize == TermReq::DATA_MAX);

/// The receiving half of a connection, as far as framing goes.
#[derive(Debug)]
pub struct Framer {
    header: [u8; MAX_HEADER],
    digest: [u8; DIGEST_LEN],
    /// Bytes of the header, then of its digest, collected.
    have: usize,
    /// Bytes of header before its digest: the common header's until that is known.
    header_len: usize,
    /// Bytes of `header` that belong to the latest PDU.
    known: usize,
    stage: Stage,
    framed: Framed,
    /// Bytes between header and data.
    pad: u32,
    /// Bytes of data still to come.
    left: u32,
    /// Where they go.
    place: Option<Place>,
    /// Digest of the data so far.
    crc: u32,
    crc32c: Crc32c,
    end: End,
    digests: Digests,
    /// Alignment of data that this end asked for (HPDA or CPDA), bytes.
    alignment: u8,
    /// The present PDU's data has a digest behind it.
    data_digest: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Common,
    Header,
    HeaderDigest,
    Pad,
    Data,
    DataDigest,
}

impl Framer {
    /// At the start of a stream, before digests are agreed.
    #[must_use]
    pub fn new(end: End, crc32c: Crc32c) -> Self {
        Self {
            header: [0; MAX_HEADER],
            digest: [0; DIGEST_LEN],
            have: 0,
            header_len: CommonHeader::LEN,
            known: 0,
            stage: Stage::Common,
            framed: Framed {
                pdu_type: PduType::Unknown(0xFF),
                data_len: 0,
            },
            pad: 0,
            left: 0,
            place: None,
            crc: 0,
            crc32c,
            end,
            digests: Digests::default(),
            alignment: 4,
            data_digest: false,
        }
    }

    /// From the next PDU on, these digests and this data alignment (the PDA
    /// field: 0's based dwords) are in force.
    pub fn agree(&mut self, digests: Digests, pda: u8) {
        self.digests = digests;
        self.alignment = u8::try_from(pda_alignment(pda)).unwrap_or(128);
    }

    /// What has come of the latest PDU's header: all of it from [`Progress::Header`] on.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.header.get(..self.known).unwrap_or(&self.header)
    }

    /// The header as structure `T`, whose size is that of the PDU type's header.
    #[must_use]
    pub fn header_as<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable>(
        &self,
    ) -> Option<T> {
        T::read_from_prefix(&self.header).ok().map(|(t, _)| t)
    }

    /// [`Framer::header_as`] without a copy.
    pub(super) fn header_ref<T>(&self) -> Option<&T>
    where
        T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
    {
        T::ref_from_prefix(&self.header).ok().map(|(t, _)| t)
    }

    /// Takes the data of the PDU just framed off the front of `bytes`, the next of the stream,
    /// if all of it is there.
    pub(super) fn take_data<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Whole<'a>> {
        let (_, from_data) = bytes.split_at_checked(self.pad as usize)?;
        let (data, after) = from_data.split_at_checked(self.left as usize)?;
        let (intact, after) = if self.data_digest {
            let (digest, after) = after.split_first_chunk::<DIGEST_LEN>()?;
            let intact = (self.crc32c)(0, data) == u32::from_le_bytes(*digest);
            (intact, after)
        } else {
            (true, after)
        };
        *bytes = after;
        self.next_pdu();
        Some(Whole { data, intact })
    }

    /// Where the next bytes belong. Never asks for nothing.
    #[must_use]
    pub fn need(&self) -> Need {
        match self.stage {
            Stage::Common | Stage::Header => {
                Need::Scratch(self.header_len.saturating_sub(self.have))
            }
            Stage::HeaderDigest | Stage::DataDigest => {
                Need::Scratch(DIGEST_LEN.saturating_sub(self.have))
            }
            Stage::Pad => Need::Skip(self.pad),
            Stage::Data => self.place.map_or(Need::Skip(self.left), Need::Payload),
        }
    }

    /// Whether the next byte is the first of a PDU.
    pub(super) fn is_between_pdus(&self) -> bool {
        self.stage == Stage::Common && self.have == 0
    }

    /// Takes the next bytes of the stream, up to the first thing that ends with
    /// them, and copies data to its place. Returns how many it took.
    ///
    /// # Errors
    /// What is wrong with a header or its digest.
    pub fn push(
        &mut self,
        bytes: &[u8],
        buffers: &mut impl DataBuffers,
    ) -> Result<(usize, Progress), Fatal> {
        let mut rest = bytes;
        let mut progress = match bytes.split_first_chunk() {
            Some((common, _)) if self.is_between_pdus() => {
                // The first bytes of a header at once, without the pace of the loop below.
                self.common(common)?;
                let len = self.header_len.min(bytes.len());
                let (header, after) = bytes.split_at(len);
                rest = after;
                copy_prefix(&mut self.header, header);
                self.have = len;
                self.known = len;
                let progress = self.header_end()?;
                if self.stage == Stage::HeaderDigest
                    && let Some((digest, after)) = rest.split_first_chunk()
                {
                    rest = after;
                    self.header_digest(*digest)?
                } else {
                    progress
                }
            }
            _ => Progress::More,
        };
        while !rest.is_empty() && progress == Progress::More {
            let need = self.need();
            let len = match need {
                Need::Scratch(len) => len,
                // A buffer may be in pieces, which are filled one after the other.
                Need::Payload(place) => match buffers.place(place).len() {
                    0 => place.len as usize,
                    piece => piece,
                },
                Need::Skip(len) => len as usize,
            };
            let (piece, after) = rest.split_at(len.min(rest.len()));
            rest = after;
            progress = match need {
                Need::Scratch(_) => self.scratch(piece)?,
                Need::Skip(_) if self.in_padding() => {
                    self.padding(u32::try_from(piece.len()).unwrap_or(u32::MAX));
                    Progress::More
                }
                Need::Skip(_) => self.data(piece),
                Need::Payload(place) => {
                    copy_prefix(buffers.place(place), piece);
                    self.data(piece)
                }
            };
        }
        Ok((bytes.len().saturating_sub(rest.len()), progress))
    }

    /// Takes the whole of a common header.
    fn common(&mut self, bytes: &[u8; CommonHeader::LEN]) -> Result<(), Fatal> {
        copy_prefix(&mut self.header, bytes);
        self.have = bytes.len();
        self.known = bytes.len();
        self.check_common()?;
        self.stage = Stage::Header;
        Ok(())
    }

    /// Takes bytes that [`Need::Scratch`] asked for: `bytes` is no longer than that.
    ///
    /// # Errors
    /// What is wrong with the header or its digest.
    fn scratch(&mut self, bytes: &[u8]) -> Result<Progress, Fatal> {
        let target = match self.stage {
            Stage::Common | Stage::Header => self.header.get_mut(self.have..),
            Stage::HeaderDigest | Stage::DataDigest => self.digest.get_mut(self.have..),
            Stage::Pad | Stage::Data => None,
        };
        copy_prefix(target.unwrap_or_default(), bytes);
        self.have = self.have.saturating_add(bytes.len());
        if matches!(self.stage, Stage::Common | Stage::Header) {
            self.known = self.have;
        }
        match self.stage {
            Stage::Common if self.have >= self.header_len => {
                self.check_common()?;
                self.stage = Stage::Header;
                self.header_end()
            }
            Stage::Header => self.header_end(),
            Stage::HeaderDigest if self.have >= DIGEST_LEN => self.header_digest(self.digest),
            Stage::DataDigest if self.have >= DIGEST_LEN => {
                let intact = u32::from_le_bytes(self.digest) == self.crc;
                self.next_pdu();
                Ok(Progress::Data { intact })
            }
            _ => Ok(Progress::More),
        }
    }

    /// Says where the data of the PDU just framed goes; `None` is nowhere.
    /// Must follow a [`Progress::Header`] that carries data, before more bytes are taken.
    pub fn data_to(&mut self, place: Option<Place>) {
        self.place = place;
    }

    /// `bytes` of data arrived at the place asked for, or nowhere.
    ///
    /// Longer than what [`Framer::need`] asked for is a fault of the caller's.
    pub fn data(&mut self, bytes: &[u8]) -> Progress {
        if self.data_digest {
            self.crc = (self.crc32c)(self.crc, bytes);
        }
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.left = self.left.saturating_sub(len);
        if let Some(place) = &mut self.place {
            place.offset = place.offset.saturating_add(len);
            place.len = self.left;
        }
        if self.left > 0 {
            return Progress::More;
        }
        if self.data_digest {
            self.stage = Stage::DataDigest;
            self.have = 0;
            return Progress::More;
        }
        self.next_pdu();
        Progress::Data { intact: true }
    }

    /// `len` bytes of padding passed.
    fn padding(&mut self, len: u32) {
        self.pad = self.pad.saturating_sub(len);
        if self.pad == 0 {
            self.stage = Stage::Data;
        }
    }

    /// Whether the next bytes are padding, for which [`Need::Skip`] asked.
    fn in_padding(&self) -> bool {
        self.stage == Stage::Pad
    }

    /// Whether the latest PDU is a TermReq that this end may receive, well formed or not.
    #[must_use]
    pub fn in_term_req(&self) -> bool {
        self.header_as::<CommonHeader>().is_some_and(|common| {
            is_term_req(common.pdu_type())
                && common.pdu_type().is_from_host() == (self.end == End::Controller)
        })
    }

    fn header_end(&mut self) -> Result<Progress, Fatal> {
        if self.have < self.header_len {
            return Ok(Progress::More);
        }
        if self.digests.header && self.framed.pdu_type.may_have_hdgst() {
            self.stage = Stage::HeaderDigest;
            self.have = 0;
            return Ok(Progress::More);
        }
        Ok(self.framed())
    }

    /// The header's digest is here.
    fn header_digest(&mut self, received: [u8; DIGEST_LEN]) -> Result<Progress, Fatal> {
        let received = u32::from_le_bytes(received);
        if (self.crc32c)(0, self.header()) != received {
            return Err(Fatal::header_digest(received));
        }
        Ok(self.framed())
    }

    /// The header is complete: on to the data, or the next PDU.
    fn framed(&mut self) -> Progress {
        self.left = self.framed.data_len;
        self.crc = 0;
        self.place = None;
        if self.left == 0 {
            self.next_pdu();
        } else if self.pad > 0 {
            self.stage = Stage::Pad;
        } else {
            self.stage = Stage::Data;
        }
        Progress::Header(self.framed)
    }

    fn next_pdu(&mut self) {
        self.stage = Stage::Common;
        self.have = 0;
        self.header_len = CommonHeader::LEN;
        self.place = None;
    }

    /// Sections 3.3 and 3.6: the rules that hold for the common header of any
    /// PDU. Of several faults the one in the lowest byte is reported.
    fn check_common(&mut self) -> Result<(), Fatal> {
        let Some(common) = self.header_as::<CommonHeader>() else {
            return Err(Fatal::field(0));
        };
        let pdu_type = common.pdu_type();
        let hlen = (pdu_type.is_from_host() == (self.end == End::Controller))
            .then(|| pdu_type.hlen())
            .flatten()
            .ok_or(Fatal::field(0))?;
        let digests = pdu_type.may_have_hdgst();
        if digests && common.has(flags::HDGSTF) != self.digests.header {
            return Err(Fatal::field(1));
        }
        let plen = common.plen.get();
        let head = u32::from(hlen).saturating_add(if digests && self.digests.header {
            DIGEST
        } else {
            0
        });
        let data = pdu_type.may_have_data() && plen > head;
        self.data_digest = data && self.digests.data;
        if data && common.has(flags::DDGSTF) != self.digests.data {
            return Err(Fatal::field(1));
        }
        if common.hlen != hlen {
            return Err(Fatal::field(2));
        }
        let (data_len, pad) = if data {
            let pdo = u32::from(common.pdo);
            if pdo < head || pdo > plen || !common.pdo.is_multiple_of(self.alignment) {
                return Err(Fatal::field(3));
            }
            let tail = if self.data_digest { DIGEST } else { 0 };
            let data_len = plen
                .checked_sub(pdo)
                .and_then(|rest| rest.checked_sub(tail))
                .filter(|len| *len > 0)
                .ok_or(Fatal::field(4))?;
            (data_len, pdo.saturating_sub(head))
        } else {
            // What follows a TermReq's header is the header it is about.
            let most = if is_term_req(pdu_type) { MAX_QUOTE } else { 0 };
            let quoted = plen.checked_sub(head).filter(|quoted| *quoted <= most);
            (quoted.ok_or(Fatal::field(4))?, 0)
        };
        self.framed = Framed { pdu_type, data_len };
        self.pad = pad;
        self.header_len = usize::from(hlen);
        Ok(())
    }
}

/// Either end's TermReq.
#[must_use]
pub const fn is_term_req(pdu_type: PduType) -> bool {
    matches!(pdu_type, PduType::H2cTermReq | PduType::C2hTermReq)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::{Digests, End, Fatal, Framed, Framer, Need, Progress};
    use crate::digest::portable;
    use crate::wire::pdu::{Fes, PduType};
    use crate::{Place, SlotId};

    /// The H2CData header of RFC-style vector: PLEN 40, PDO 28, CCCID 5, TTAG 7,
    /// DATAO 0, DATAL 8, both digests.
    const DATA: [u8; 40] = [
        0x06, 0x07, 24, 28, 40, 0, 0, 0, 5, 0, 7, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0,
        0, // header
        0xC8, 0x35, 0x3E, 0x7B, // its digest
        0, 1, 2, 3, 4, 5, 6, 7, // data
        0x3B, 0xBC, 0x2C, 0x8A, // its digest
    ];

    const BOTH: Digests = Digests {
        header: true,
        data: true,
    };

    fn framer(digests: Digests, pda: u8) -> Framer {
        let mut framer = Framer::new(End::Controller, portable);
        framer.agree(digests, pda);
        framer
    }

    /// Feeds bytes one call a need, at most `chunk` at a time; returns what ended.
    fn feed(framer: &mut Framer, bytes: &[u8], chunk: usize) -> Result<Vec<Progress>, Fatal> {
        let mut ended = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let need = framer.need();
            let n = match need {
                Need::Scratch(n) => n,
                Need::Payload(place) => place.len as usize,
                Need::Skip(n) => n as usize,
            };
            assert_ne!(n, 0);
            let (piece, after) = rest.split_at(n.min(chunk).min(rest.len()));
            rest = after;
            let progress = match need {
                Need::Scratch(_) => framer.scratch(piece)?,
                _ if framer.in_padding() => {
                    framer.padding(u32::try_from(piece.len()).unwrap());
                    Progress::More
                }
                _ => framer.data(piece),
            };
            if let Progress::Header(framed) = progress
                && framed.data_len > 0
            {
                framer.data_to(Some(Place {
                    slot: SlotId(7),
                    offset: 0,
                    len: framed.data_len,
                }));
            }
            if progress != Progress::More {
                ended.push(progress);
            }
        }
        Ok(ended)
    }

    #[test]
    fn any_chunking_gives_header_then_data() {
        for chunk in 1..=DATA.len() {
            let mut framer = framer(BOTH, 0);
            for _ in 0..2 {
                let ended = feed(&mut framer, &DATA, chunk).unwrap();
                assert_eq!(
                    ended,
                    [
                        Progress::Header(Framed {
                            pdu_type: PduType::H2cData,
                            data_len: 8
                        }),
                        Progress::Data { intact: true }
                    ]
                );
                assert_eq!(framer.need(), Need::Scratch(8), "the next PDU");
            }
        }
    }

    #[test]
    fn digests_that_differ() {
        let mut bytes = DATA;
        bytes[38] ^= 1;
        let ended = feed(&mut framer(BOTH, 0), &bytes, 40).unwrap();
        assert_eq!(ended[1], Progress::Data { intact: false });
        let mut bytes = DATA;
        bytes[24] ^= 1;
        let error = feed(&mut framer(BOTH, 0), &bytes, 40).unwrap_err();
        assert_eq!(
            (error.fes, error.fei),
            (Fes::HeaderDigestError, 0x7B3E_35C9)
        );
    }

    #[test]
    fn padding_up_to_the_agreed_alignment() {
        let mut bytes = DATA[..24].to_vec();
        bytes[1] = 0x04;
        bytes[3] = 64;
        bytes[4] = 72;
        bytes.resize(72, 0xEE);
        for chunk in [1, 7, 72] {
            let ended = feed(&mut framer(Digests::default(), 15), &bytes, chunk).unwrap();
            assert_eq!(ended.len(), 2);
        }
        // The same PDU is misaligned where 128 bytes were asked for.
        let error = feed(&mut framer(Digests::default(), 31), &bytes, 72).unwrap_err();
        assert_eq!(error, Fatal::field(3));
    }

    #[test]
    fn faults_of_the_common_header() {
        let plain = Digests::default();
        let header = |bytes: [u8; 8]| feed(&mut framer(plain, 0), &bytes, 8).map(drop);
        for (bytes, field) in [
            ([0x01, 0, 128, 0, 128, 0, 0, 0], 0), // a type that only a controller sends
            ([0x08, 0, 24, 0, 24, 0, 0, 0], 0),   // no type at all
            ([0xFF, 0, 24, 0, 24, 0, 0, 0], 0),
            ([0x04, 1, 72, 0, 72, 0, 0, 0], 1), // a header digest that was not agreed
            ([0x04, 0, 71, 0, 72, 0, 0, 0], 2),
            ([0x04, 0, 72, 0, 80, 0, 0, 0], 3), // data without PDO
            ([0x04, 0, 72, 81, 80, 0, 0, 0], 3),
            ([0x04, 0, 72, 74, 80, 0, 0, 0], 3),
            ([0x04, 0, 72, 0, 71, 0, 0, 0], 4),
            ([0x04, 0, 72, 80, 80, 0, 0, 0], 4), // PDO, but no data
            ([0x00, 0, 128, 0, 129, 0, 0, 0], 4),
            ([0x02, 0, 24, 0, 153, 0, 0, 0], 4),
        ] {
            assert_eq!(header(bytes), Err(Fatal::field(field)), "{bytes:02x?}");
        }
        for bytes in [
            [0x00, 0, 128, 0, 128, 0, 0, 0],
            [0x02, 0, 24, 0, 24, 0, 0, 0],
            [0x02, 0, 24, 0, 152, 0, 0, 0],
            [0x04, 2, 72, 0, 72, 0, 0, 0], // DDGSTF says nothing without data
        ] {
            assert_eq!(header(bytes), Ok(()), "{bytes:02x?}");
        }
    }
}
