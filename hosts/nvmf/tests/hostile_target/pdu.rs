//! What a controller sends, byte by byte from the specification, and a reader of what a host sends.
use crate::bytes::{crc32c, put, u16_at, u32_at};

pub(crate) const IC_REQ: u8 = 0x00;
pub(crate) const IC_RESP: u8 = 0x01;
pub(crate) const H2C_TERM_REQ: u8 = 0x02;
pub(crate) const C2H_TERM_REQ: u8 = 0x03;
pub(crate) const CAPSULE_CMD: u8 = 0x04;
pub(crate) const CAPSULE_RESP: u8 = 0x05;
pub(crate) const H2C_DATA: u8 = 0x06;
pub(crate) const C2H_DATA: u8 = 0x07;
pub(crate) const R2T: u8 = 0x09;

pub(crate) const HDGSTF: u8 = 1;
pub(crate) const DDGSTF: u8 = 2;
pub(crate) const LAST: u8 = 4;
pub(crate) const SUCCESS: u8 = 8;

/// What ICReq and ICResp agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Framing {
    pub(crate) hdgst: bool,
    pub(crate) ddgst: bool,
    /// Of the controller's data, bytes.
    pub(crate) host_align: usize,
    /// Of the host's data, bytes.
    pub(crate) align: usize,
}

impl Framing {
    /// A PDU: `body` is the header behind the common header.
    pub(crate) fn pdu(&self, pdu_type: u8, flags: u8, body: &[u8], data: &[u8]) -> Vec<u8> {
        let hlen = 8 + body.len();
        let head = hlen + if self.hdgst { 4 } else { 0 };
        let pdo = match data {
            [] => head,
            _ => head.next_multiple_of(self.host_align.max(4)),
        };
        let tail = if self.ddgst && !data.is_empty() { 4 } else { 0 };
        let mut pdu = vec![pdu_type, flags, hlen as u8, 0];
        if !data.is_empty() {
            pdu[3] = pdo as u8;
        }
        pdu.extend(((pdo + data.len() + tail) as u32).to_le_bytes());
        pdu.extend(body);
        if self.hdgst {
            pdu[1] |= HDGSTF;
        }
        if tail > 0 {
            pdu[1] |= DDGSTF;
        }
        if self.hdgst {
            pdu.extend(crc32c(&pdu).to_le_bytes());
        }
        pdu.resize(pdo, 0);
        pdu.extend(data);
        if tail > 0 {
            pdu.extend(crc32c(data).to_le_bytes());
        }
        pdu
    }

    pub(crate) fn r2t(&self, cid: u16, ttag: u16, offset: u32, len: u32) -> Vec<u8> {
        self.pdu(R2T, 0, &transfer(cid, ttag, offset, len), &[])
    }

    pub(crate) fn c2h_data(&self, cid: u16, flags: u8, offset: u32, data: &[u8]) -> Vec<u8> {
        let body = transfer(cid, 0, offset, data.len() as u32);
        self.pdu(C2H_DATA, flags, &body, data)
    }

    pub(crate) fn response(&self, cqe: &[u8; 16]) -> Vec<u8> {
        self.pdu(CAPSULE_RESP, 0, cqe, &[])
    }

    /// The header digest of a PDU whose header was changed is put right.
    pub(crate) fn repair(&self, pdu: &mut [u8], hlen: usize) {
        if self.hdgst {
            let digest = crc32c(&pdu[..hlen]).to_le_bytes();
            pdu[hlen..hlen + 4].copy_from_slice(&digest);
        }
    }
}

fn transfer(cid: u16, ttag: u16, offset: u32, len: u32) -> [u8; 16] {
    let mut body = [0; 16];
    put(&mut body, 0, cid.to_le_bytes());
    put(&mut body, 2, ttag.to_le_bytes());
    put(&mut body, 4, offset.to_le_bytes());
    put(&mut body, 8, len.to_le_bytes());
    body
}

/// A completion queue entry. `status` is the status field without the phase bit.
pub(crate) fn cqe(cid: u16, result: u64, sqhd: u16, status: u16) -> [u8; 16] {
    let mut cqe = [0; 16];
    put(&mut cqe, 0, result.to_le_bytes());
    put(&mut cqe, 8, sqhd.to_le_bytes());
    put(&mut cqe, 12, cid.to_le_bytes());
    put(&mut cqe, 14, (status << 1).to_le_bytes());
    cqe
}

pub(crate) fn ic_resp(cpda: u8, dgst: u8, maxh2cdata: u32) -> Vec<u8> {
    let mut pdu = vec![0; 128];
    (pdu[0], pdu[2], pdu[4], pdu[10], pdu[11]) = (IC_RESP, 128, 128, cpda, dgst);
    put(&mut pdu, 12, maxh2cdata.to_le_bytes());
    pdu
}

/// C2HTermReq that quotes `quoted`.
pub(crate) fn term_req(fes: u16, fei: u32, quoted: &[u8]) -> Vec<u8> {
    let mut pdu = vec![0; 24];
    (pdu[0], pdu[2]) = (C2H_TERM_REQ, 24);
    put(&mut pdu, 4, (24 + quoted.len() as u32).to_le_bytes());
    put(&mut pdu, 8, fes.to_le_bytes());
    put(&mut pdu, 10, fei.to_le_bytes());
    pdu.extend(quoted);
    pdu
}

/// A host's PDU, whose framing is right.
#[derive(Clone, Debug)]
pub(crate) struct Pdu {
    pub(crate) header: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Pdu {
    pub(crate) fn pdu_type(&self) -> u8 {
        self.header[0]
    }

    /// Checks a whole PDU against the rules for a host's.
    pub(crate) fn parse(framing: &Framing, bytes: &[u8]) -> Self {
        let (pdu_type, flags, hlen, pdo) = (bytes[0], bytes[1], bytes[2], bytes[3]);
        let expected = match pdu_type {
            IC_REQ => 128,
            H2C_TERM_REQ | H2C_DATA => 24,
            CAPSULE_CMD => 72,
            _ => panic!("a host sends PDU type {pdu_type:#x}"),
        };
        assert_eq!(hlen, expected, "HLEN of {bytes:02x?}");
        let hlen = usize::from(hlen);
        let header = bytes[..hlen].to_vec();
        if matches!(pdu_type, IC_REQ | H2C_TERM_REQ) {
            assert_eq!((flags, pdo), (0, 0), "flags and PDO of {header:02x?}");
            let data = bytes[hlen..].to_vec();
            return Self { header, data };
        }
        assert_eq!(flags & HDGSTF != 0, framing.hdgst, "HDGSTF");
        let mut head = hlen;
        if framing.hdgst {
            let digest = crc32c(&header).to_le_bytes();
            assert_eq!(bytes[hlen..hlen + 4], digest, "header digest");
            head += 4;
        }
        if bytes.len() == head {
            assert_eq!((flags & DDGSTF, pdo), (0, 0), "no data: {header:02x?}");
            return Self {
                header,
                data: Vec::new(),
            };
        }
        let pdo = usize::from(pdo);
        assert_eq!(pdo, head.next_multiple_of(framing.align.max(4)), "PDO");
        assert_eq!(flags & DDGSTF != 0, framing.ddgst, "DDGSTF");
        let end = bytes.len() - if framing.ddgst { 4 } else { 0 };
        let data = bytes[pdo..end].to_vec();
        if framing.ddgst {
            assert_eq!(bytes[end..], crc32c(&data).to_le_bytes(), "data digest");
        }
        Self { header, data }
    }

    pub(crate) fn u16_at(&self, at: usize) -> u16 {
        u16_at(&self.header, at)
    }

    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        u32_at(&self.header, at)
    }
}

#[test]
fn builders_agree_with_hand_made_bytes() {
    use crate::bytes::hex;
    let plain = Framing::default();
    let r2t = hex("090018001800000005000700000000000010000000000000");
    assert_eq!(plain.r2t(5, 7, 0, 4096), r2t);
    let both = Framing {
        hdgst: true,
        ddgst: true,
        ..plain
    };
    let sealed = hex("090118001c0000000500070000000000002000000000000 08fb26c0b"
        .replace(' ', "")
        .as_str());
    assert_eq!(both.r2t(5, 7, 0, 8192), sealed);
    let term = hex(
        "030018003000000001000a0000000000000000000000000006041818181000000500ffff000000000010000000000000",
    );
    let quoted = hex("06041818181000000500ffff000000000010000000000000");
    assert_eq!(term_req(1, 10, &quoted), term);
}
