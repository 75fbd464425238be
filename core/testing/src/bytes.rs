//! A host's PDUs and commands as bytes at offsets, written down from the
//! specification and not by the codecs under test.
use crate::crc::crc32c;

/// SUBNQN of the target's NVM subsystem.
pub const SUBNQN: &str = "nqn.2014-08.org.example:disk";
/// NQN of the discovery subsystem.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// A HOSTNQN.
pub const HOSTNQN: &str = "nqn.2014-08.org.example:host";
/// CC as Linux writes it: EN, IOSQES 6, IOCQES 4.
pub const CC_ENABLE: u64 = 0x0046_0001;

/// The PDU types a host may send.
pub mod pdu_type {
    /// Initialize Connection Request.
    pub const IC_REQ: u8 = 0x00;
    /// Host to Controller Terminate Connection Request.
    pub const H2C_TERM_REQ: u8 = 0x02;
    /// Command Capsule.
    pub const CAPSULE_CMD: u8 = 0x04;
    /// Host to Controller Data Transfer.
    pub const H2C_DATA: u8 = 0x06;
}

/// Flags of the common header.
pub mod flags {
    /// A header digest follows the header.
    pub const HDGST: u8 = 1;
    /// A data digest follows the data.
    pub const DDGST: u8 = 2;
    /// The last PDU of a transfer.
    pub const LAST: u8 = 4;
    /// No CapsuleResp follows.
    pub const SUCCESS: u8 = 8;
}

/// ICReq with PFV 0 and MAXR2T 0; `digests`: bit 0 header, bit 1 data.
#[must_use]
pub fn ic_req(hpda: u8, digests: u8) -> Vec<u8> {
    let mut pdu = vec![0; 128];
    pdu[2] = 128;
    pdu[4] = 128;
    pdu[10] = hpda;
    pdu[11] = digests;
    pdu
}

/// H2CTermReq that quotes `quoted`.
#[must_use]
pub fn term_req(fes: u16, fei: u32, quoted: &[u8]) -> Vec<u8> {
    let mut pdu = vec![0; 24];
    pdu[0] = pdu_type::H2C_TERM_REQ;
    pdu[2] = 24;
    pdu[4..8].copy_from_slice(&length(24 + quoted.len()));
    pdu[8..10].copy_from_slice(&fes.to_le_bytes());
    pdu[10..14].copy_from_slice(&fei.to_le_bytes());
    pdu.extend(quoted);
    pdu
}

/// What was agreed for the PDUs that a host sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dressing {
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// The controller's CPDA: data is aligned to this many dwords, 0's based.
    pub cpda: u8,
}

impl Dressing {
    /// A command with in-capsule data.
    #[must_use]
    pub fn capsule(&self, command: &Command, data: &[u8]) -> Vec<u8> {
        self.pdu(pdu_type::CAPSULE_CMD, 0, &command.0, data)
    }

    /// Data of command `cid`, `offset` bytes into it, in answer to the R2T with tag `ttag`.
    #[must_use]
    pub fn h2c_data(&self, cid: u16, ttag: u16, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        let mut body = [0; 16];
        body[0..2].copy_from_slice(&cid.to_le_bytes());
        body[2..4].copy_from_slice(&ttag.to_le_bytes());
        body[4..8].copy_from_slice(&offset.to_le_bytes());
        body[8..12].copy_from_slice(&length(data.len()));
        let last = if last { flags::LAST } else { 0 };
        self.pdu(pdu_type::H2C_DATA, last, &body, data)
    }

    /// Any PDU: `body` is the header behind the common header.
    #[must_use]
    pub fn pdu(&self, pdu_type: u8, flags: u8, body: &[u8], data: &[u8]) -> Vec<u8> {
        let header_len = 8 + body.len();
        let head = header_len + if self.header_digest { 4 } else { 0 };
        let with_data = !data.is_empty();
        let pdo = if with_data {
            head.next_multiple_of((usize::from(self.cpda) + 1) * 4)
        } else {
            0
        };
        let tail = if with_data && self.data_digest { 4 } else { 0 };
        let mut pdu = vec![pdu_type, flags, byte(header_len), byte(pdo)];
        pdu.extend(length(head.max(pdo) + data.len() + tail));
        if self.header_digest {
            pdu[1] |= flags::HDGST;
        }
        if tail > 0 {
            pdu[1] |= flags::DDGST;
        }
        pdu.extend(body);
        if self.header_digest {
            pdu.extend(crc32c(&pdu).to_le_bytes());
        }
        pdu.resize(head.max(pdo), 0);
        pdu.extend(data);
        if tail > 0 {
            pdu.extend(crc32c(data).to_le_bytes());
        }
        pdu
    }
}

/// A submission queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub [u8; 64]);

/// Where a command says its data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// In the capsule: this many bytes.
    InCapsule(u32),
    /// To be moved by the transport: this many bytes.
    Transport(u32),
}

impl Command {
    /// A command without data, with PSDT 01b.
    #[must_use]
    pub fn new(opcode: u8, cid: u16) -> Self {
        let mut sqe = [0; 64];
        sqe[0] = opcode;
        sqe[1] = 0x40;
        sqe[2..4].copy_from_slice(&cid.to_le_bytes());
        sqe[39] = 0x5A;
        Self(sqe)
    }

    /// With NSID.
    #[must_use]
    pub fn nsid(mut self, nsid: u32) -> Self {
        self.0[4..8].copy_from_slice(&nsid.to_le_bytes());
        self
    }

    /// With a data pointer.
    #[must_use]
    pub fn data(mut self, data: Data) -> Self {
        let (id, len) = match data {
            Data::InCapsule(len) => (0x01, len),
            Data::Transport(len) => (0x5A, len),
        };
        self.0[24..32].fill(0);
        self.0[32..36].copy_from_slice(&len.to_le_bytes());
        self.0[39] = id;
        self
    }

    /// With command dword `index` (10 to 15).
    #[must_use]
    pub fn dword(mut self, index: usize, value: u32) -> Self {
        self.0[index * 4..][..4].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// With the byte at `offset`.
    #[must_use]
    pub fn byte(mut self, offset: usize, value: u8) -> Self {
        self.0[offset] = value;
        self
    }

    /// Its CID.
    #[must_use]
    pub fn cid(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }
}

/// Connect: SQSIZE is 0's based; KATO is in milliseconds.
#[must_use]
pub fn connect(cid: u16, qid: u16, sqsize: u16, kato: u32) -> Command {
    Command::new(0x7F, cid)
        .byte(4, 0x01)
        .dword(10, u32::from(qid) << 16)
        .dword(11, sqsize.into())
        .dword(12, kato)
        .data(Data::InCapsule(1024))
}

/// CATTR bit 2 of Connect: disable SQ flow control.
#[must_use]
pub fn without_flow_control(connect: Command) -> Command {
    connect.byte(46, 0x04)
}

/// Connect's data.
#[must_use]
pub fn connect_data(cntlid: u16, subnqn: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    data[..16].fill(7);
    data[16..18].copy_from_slice(&cntlid.to_le_bytes());
    data[256..][..subnqn.len()].copy_from_slice(subnqn.as_bytes());
    data[512..][..HOSTNQN.len()].copy_from_slice(HOSTNQN.as_bytes());
    data
}

/// Property Get, of 8 bytes if `wide`.
#[must_use]
pub fn property_get(cid: u16, offset: u32, wide: bool) -> Command {
    Command::new(0x7F, cid)
        .byte(4, 0x04)
        .dword(10, wide.into())
        .dword(11, offset)
}

/// Property Set of 4 bytes.
#[must_use]
pub fn property_set(cid: u16, offset: u32, value: u64) -> Command {
    let mut command = Command::new(0x7F, cid).byte(4, 0x00).dword(11, offset);
    command.0[48..56].copy_from_slice(&value.to_le_bytes());
    command
}

/// Disconnect.
#[must_use]
pub fn disconnect(cid: u16) -> Command {
    Command::new(0x7F, cid).byte(4, 0x08)
}

/// An I/O command on logical blocks: `blocks` is the number of them, at least 1.
#[must_use]
pub fn block_command(opcode: u8, cid: u16, nsid: u32, slba: u64, blocks: u32) -> Command {
    let mut command = Command::new(opcode, cid)
        .nsid(nsid)
        .dword(12, blocks.wrapping_sub(1) & 0xFFFF);
    command.0[40..48].copy_from_slice(&slba.to_le_bytes());
    command
}

/// A length field.
///
/// # Panics
/// If it does not fit: tests are not that large.
#[must_use]
pub fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("fits 32 bits").to_le_bytes()
}

fn byte(len: usize) -> u8 {
    u8::try_from(len).expect("fits 8 bits")
}
