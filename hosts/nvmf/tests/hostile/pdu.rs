//! PDUs, capsules and Connect data, byte by byte.
//!
//! Independent of the product's codecs on purpose: two ends written together prove nothing.
use crate::bytes::{crc32c, put, u16_at, u32_at};

pub(crate) const ICREQ: u8 = 0x00;
pub(crate) const ICRESP: u8 = 0x01;
pub(crate) const H2C_TERM_REQ: u8 = 0x02;
pub(crate) const C2H_TERM_REQ: u8 = 0x03;
pub(crate) const CAPSULE_CMD: u8 = 0x04;
pub(crate) const CAPSULE_RESP: u8 = 0x05;
pub(crate) const H2C_DATA: u8 = 0x06;
pub(crate) const C2H_DATA: u8 = 0x07;
pub(crate) const R2T: u8 = 0x09;

/// Flags of the common header.
pub(crate) const HDGSTF: u8 = 1;
pub(crate) const DDGSTF: u8 = 2;
pub(crate) const LAST_PDU: u8 = 4;
pub(crate) const SUCCESS: u8 = 8;

/// Byte offsets in the common header.
pub(crate) const FLAGS: usize = 1;
pub(crate) const HLEN: usize = 2;
pub(crate) const PDO: usize = 3;
pub(crate) const PLEN: usize = 4;
/// Byte offsets in an H2CData header.
pub(crate) const CCCID: usize = 8;
pub(crate) const TTAG: usize = 10;
pub(crate) const DATAO: usize = 12;
pub(crate) const DATAL: usize = 16;

/// Status codes: (status code type, status code).
pub(crate) mod status {
    pub(crate) const SUCCESSFUL: (u8, u8) = (0, 0x00);
    pub(crate) const INVALID_OPCODE: (u8, u8) = (0, 0x01);
    pub(crate) const INVALID_FIELD: (u8, u8) = (0, 0x02);
    pub(crate) const COMMAND_ID_CONFLICT: (u8, u8) = (0, 0x03);
    pub(crate) const ABORT_REQUESTED: (u8, u8) = (0, 0x07);
    pub(crate) const INVALID_NAMESPACE: (u8, u8) = (0, 0x0B);
    pub(crate) const COMMAND_SEQUENCE_ERROR: (u8, u8) = (0, 0x0C);
    pub(crate) const DATA_SGL_LENGTH_INVALID: (u8, u8) = (0, 0x0F);
    pub(crate) const SGL_TYPE_INVALID: (u8, u8) = (0, 0x11);
    pub(crate) const SGL_OFFSET_INVALID: (u8, u8) = (0, 0x16);
    pub(crate) const KEEP_ALIVE_TIMEOUT_INVALID: (u8, u8) = (0, 0x1A);
    pub(crate) const TRANSIENT_TRANSPORT_ERROR: (u8, u8) = (0, 0x22);
    pub(crate) const LBA_OUT_OF_RANGE: (u8, u8) = (0, 0x80);
    pub(crate) const AER_LIMIT_EXCEEDED: (u8, u8) = (1, 0x05);
    pub(crate) const INVALID_LOG_PAGE: (u8, u8) = (1, 0x09);
    pub(crate) const CONNECT_INCOMPATIBLE_FORMAT: (u8, u8) = (1, 0x80);
    pub(crate) const CONTROLLER_BUSY: (u8, u8) = (1, 0x81);
    pub(crate) const CONNECT_INVALID_PARAMETERS: (u8, u8) = (1, 0x82);
    pub(crate) const CONNECT_INVALID_HOST: (u8, u8) = (1, 0x84);
    pub(crate) const INVALID_QUEUE_TYPE: (u8, u8) = (1, 0x85);
}

/// What an ICReq asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IcReq {
    pub(crate) pfv: u16,
    pub(crate) hpda: u8,
    pub(crate) hdgst: bool,
    pub(crate) ddgst: bool,
    pub(crate) maxr2t: u32,
}

impl IcReq {
    pub(crate) fn digests(hdgst: bool, ddgst: bool) -> Self {
        Self {
            hdgst,
            ddgst,
            ..Self::default()
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut pdu = vec![0; 128];
        pdu[0] = ICREQ;
        pdu[HLEN] = 128;
        put(&mut pdu, PLEN, 128_u32.to_le_bytes());
        put(&mut pdu, 8, self.pfv.to_le_bytes());
        pdu[10] = self.hpda;
        pdu[11] = u8::from(self.hdgst) | u8::from(self.ddgst) << 1;
        put(&mut pdu, 12, self.maxr2t.to_le_bytes());
        pdu
    }
}

/// How PDUs of a connection are framed from host to controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    pub(crate) hdgst: bool,
    pub(crate) ddgst: bool,
    /// Data starts at a multiple of this, bytes (CPDA).
    pub(crate) align: usize,
}

impl Framing {
    pub(crate) const PLAIN: Self = Self {
        hdgst: false,
        ddgst: false,
        align: 4,
    };

    /// A well-formed PDU: `header` is everything after the common header.
    pub(crate) fn frame(self, kind: u8, flags: u8, header: &[u8], data: &[u8]) -> Vec<u8> {
        let hlen = 8 + header.len();
        let mut pdu = vec![0; 8];
        pdu.extend_from_slice(header);
        pdu[0] = kind;
        pdu[FLAGS] = flags | if self.hdgst { HDGSTF } else { 0 };
        pdu[HLEN] = u8::try_from(hlen).expect("a short header");
        let mut plen = hlen + if self.hdgst { 4 } else { 0 };
        if !data.is_empty() {
            let pdo = plen.next_multiple_of(self.align);
            pdu[PDO] = u8::try_from(pdo).expect("a near offset");
            plen = pdo + data.len() + if self.ddgst { 4 } else { 0 };
            pdu[FLAGS] |= if self.ddgst { DDGSTF } else { 0 };
        }
        let len = u32::try_from(plen).expect("a length of 32 bits");
        put(&mut pdu, PLEN, len.to_le_bytes());
        if self.hdgst {
            let digest = crc32c(&pdu);
            pdu.extend_from_slice(&digest.to_le_bytes());
        }
        if !data.is_empty() {
            pdu.resize(usize::from(pdu[PDO]), 0);
            pdu.extend_from_slice(data);
            if self.ddgst {
                pdu.extend_from_slice(&crc32c(data).to_le_bytes());
            }
        }
        pdu
    }

    /// A CapsuleCmd with `data` in the capsule.
    pub(crate) fn capsule(self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        self.frame(CAPSULE_CMD, 0, &sqe.0, data)
    }

    /// An H2CData PDU.
    pub(crate) fn h2c_data(
        self,
        cid: u16,
        ttag: u16,
        datao: u32,
        data: &[u8],
        last: bool,
    ) -> Vec<u8> {
        let mut header = [0; 16];
        put(&mut header, CCCID - 8, cid.to_le_bytes());
        put(&mut header, TTAG - 8, ttag.to_le_bytes());
        put(&mut header, DATAO - 8, datao.to_le_bytes());
        let datal = u32::try_from(data.len()).expect("a length of 32 bits");
        put(&mut header, DATAL - 8, datal.to_le_bytes());
        let flags = if last { LAST_PDU } else { 0 };
        self.frame(H2C_DATA, flags, &header, data)
    }

    /// Makes the header digest right again after the header was changed.
    pub(crate) fn reseal(self, pdu: &mut [u8]) {
        if self.hdgst {
            let hlen = usize::from(pdu[HLEN]);
            let digest = crc32c(&pdu[..hlen]);
            put(pdu, hlen, digest.to_le_bytes());
        }
    }
}

/// An H2CTermReq with `copy` of some header.
pub(crate) fn term_req(fes: u16, fei: u32, copy: &[u8]) -> Vec<u8> {
    let mut pdu = vec![0; 24];
    pdu[0] = H2C_TERM_REQ;
    pdu[HLEN] = 24;
    let plen = u32::try_from(24 + copy.len()).expect("short");
    put(&mut pdu, PLEN, plen.to_le_bytes());
    put(&mut pdu, 8, fes.to_le_bytes());
    put(&mut pdu, 10, fei.to_le_bytes());
    pdu.extend_from_slice(copy);
    pdu
}

/// A submission queue entry.
#[derive(Clone, Debug)]
pub(crate) struct Sqe(pub(crate) [u8; 64]);

impl Sqe {
    pub(crate) fn new(opcode: u8, cid: u16) -> Self {
        let mut sqe = [0; 64];
        sqe[0] = opcode;
        sqe[1] = 0x40;
        put(&mut sqe, 2, cid.to_le_bytes());
        Self(sqe)
    }

    pub(crate) fn fabrics(fctype: u8, cid: u16) -> Self {
        let mut sqe = Self::new(0x7F, cid);
        sqe.0[4] = fctype;
        sqe
    }

    pub(crate) fn cid(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    pub(crate) fn set_cid(&mut self, cid: u16) {
        put(&mut self.0, 2, cid.to_le_bytes());
    }

    pub(crate) fn nsid(self, nsid: u32) -> Self {
        self.dword(1, nsid)
    }

    /// Sets command dword `index`.
    pub(crate) fn dword(mut self, index: usize, value: u32) -> Self {
        put(&mut self.0, index * 4, value.to_le_bytes());
        self
    }

    pub(crate) fn sgl(mut self, kind: u8, address: u64, len: u32) -> Self {
        put(&mut self.0, 24, address.to_le_bytes());
        put(&mut self.0, 32, len.to_le_bytes());
        self.0[39] = kind;
        self
    }

    /// Data Block at offset 0 of the capsule.
    pub(crate) fn in_capsule(self, len: u32) -> Self {
        self.sgl(0x01, 0, len)
    }

    /// Transport SGL Data Block: data moves in PDUs of its own.
    pub(crate) fn transport(self, len: u32) -> Self {
        self.sgl(0x5A, 0, len)
    }

    pub(crate) fn has_data_in_capsule(&self) -> bool {
        self.0[39] == 0x01
    }

    pub(crate) fn write(cid: u16, slba: u64, blocks: u16) -> Self {
        Self::io(0x01, cid, slba, blocks)
    }

    pub(crate) fn read(cid: u16, slba: u64, blocks: u16) -> Self {
        Self::io(0x02, cid, slba, blocks)
    }

    /// An I/O command on NSID 1 with an SLBA and a number of blocks (1's based), and a transport SGL to match.
    pub(crate) fn io(opcode: u8, cid: u16, slba: u64, blocks: u16) -> Self {
        let mut sqe = Self::new(opcode, cid)
            .nsid(1)
            .transport(u32::from(blocks) * crate::BLOCK);
        put(&mut sqe.0, 40, slba.to_le_bytes());
        put(&mut sqe.0, 48, (blocks - 1).to_le_bytes());
        sqe
    }

    pub(crate) fn identify(cid: u16, cns: u8, nsid: u32) -> Self {
        Self::new(0x06, cid)
            .nsid(nsid)
            .dword(10, u32::from(cns))
            .transport(4096)
    }

    /// Get Log Page of `len` bytes (a multiple of 4) from `offset`.
    pub(crate) fn get_log(cid: u16, lid: u8, offset: u64, len: u32) -> Self {
        let numd = len / 4 - 1;
        let mut sqe = Self::new(0x02, cid)
            .dword(10, u32::from(lid) | numd << 16)
            .dword(11, numd >> 16)
            .transport(len);
        put(&mut sqe.0, 48, offset.to_le_bytes());
        sqe
    }

    pub(crate) fn property_get(cid: u16, offset: u32, eight_bytes: bool) -> Self {
        Self::fabrics(0x04, cid)
            .dword(10, u32::from(eight_bytes))
            .dword(11, offset)
    }

    pub(crate) fn property_set(cid: u16, offset: u32, value: u32) -> Self {
        Self::fabrics(0x00, cid).dword(11, offset).dword(12, value)
    }

    pub(crate) fn connect(cid: u16, qid: u16, sqsize: u16, cattr: u8, kato: u32) -> Self {
        let mut sqe = Self::fabrics(0x01, cid).in_capsule(1024).dword(12, kato);
        put(&mut sqe.0, 42, qid.to_le_bytes());
        put(&mut sqe.0, 44, sqsize.to_le_bytes());
        sqe.0[46] = cattr;
        sqe
    }
}

/// The data of a Connect command.
pub(crate) fn connect_data(hostid: u8, cntlid: u16, subnqn: &str, hostnqn: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    data[..16].fill(hostid);
    put(&mut data, 16, cntlid.to_le_bytes());
    data[256..256 + subnqn.len()].copy_from_slice(subnqn.as_bytes());
    data[512..512 + hostnqn.len()].copy_from_slice(hostnqn.as_bytes());
    data
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub(crate) dw0: u32,
    pub(crate) dw1: u32,
    pub(crate) sqhd: u16,
    pub(crate) cid: u16,
    pub(crate) status: u16,
}

impl Cqe {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        Self {
            dw0: u32_at(bytes, 0),
            dw1: u32_at(bytes, 4),
            sqhd: u16_at(bytes, 8),
            cid: u16_at(bytes, 12),
            status: u16_at(bytes, 14),
        }
    }

    /// Status code type and status code.
    pub(crate) fn code(&self) -> (u8, u8) {
        let [low, high] = (self.status >> 1).to_le_bytes();
        (high & 7, low)
    }

    pub(crate) fn dnr(&self) -> bool {
        self.status & 0x8000 != 0
    }
}

#[test]
fn builders_agree_with_hand_made_bytes() {
    use crate::bytes::hex;
    let plain = Framing::PLAIN;
    let mut p0 = hex("00008000800000000000000000000000");
    p0.resize(128, 0);
    assert_eq!(IcReq::default().bytes(), p0);
    let p1 = hex(
        "04004848480400007f400100010000000000000000000000000000000000000000000000000000000004000000000001\
         000000001f00040088130000000000000000000000000000",
    );
    let connect = plain.capsule(&Sqe::connect(1, 0, 31, 4, 5000), &[0; 1024]);
    assert_eq!(connect[..72], p1);
    assert_eq!(connect.len(), 0x448);
    let p2 = hex(
        "04004800480000007f400200040000000000000000000000000000000000000000000000000000000000000000000000\
         010000000000000000000000000000000000000000000000",
    );
    assert_eq!(plain.capsule(&Sqe::property_get(2, 0, true), &[]), p2);
    let p2s = hex(
        "04004800480000007f400300000000000000000000000000000000000000000000000000000000000000000000000000\
         000000001400000001004600000000000000000000000000",
    );
    assert_eq!(
        plain.capsule(&Sqe::property_set(3, 0x14, 0x0046_0001), &[]),
        p2s
    );
    let p3 = hex(
        "04004800480000000140050001000000000000000000000000000000000000000000000000000000001000000000005a\
         000000000000000007000000000000000000000000000000",
    );
    assert_eq!(plain.capsule(&Sqe::write(5, 0, 8), &[]), p3);
    let p4 = hex("060418181810000005000000000000000010000000000000");
    assert_eq!(plain.h2c_data(5, 0, 0, &[0; 4096], true)[..24], p4);
    let both = Framing {
        hdgst: true,
        ddgst: true,
        align: 4,
    };
    let data: Vec<u8> = (0..8).collect();
    let sealed = both.h2c_data(5, 7, 0, &data, true);
    assert_eq!(
        sealed[..24],
        hex("0607181c28000000050007000000000008000000 00000000"
            .replace(' ', "")
            .as_str())
    );
    assert_eq!(sealed[24..28], hex("c8353e7b"));
    assert_eq!(sealed[36..40], hex("3bbc2c8a"));
}
