//! One or more connections of a target in memory, and their hosts.
#![allow(dead_code, reason = "each test program uses some of it")]
use nvmf_core::tcp::target::Config;
use nvmf_testing::bytes::{self, CC_ENABLE, Command, Data, SUBNQN};
use nvmf_testing::host::{Direction, Finished, Host};
use nvmf_testing::reader::{Pdu, Reader};
use nvmf_testing::rig::{Delivery, Rig};
use nvmf_testing::target::Heap;

/// P0 of the catalogue of faults: ICReq without digests.
pub(crate) fn p0() -> Vec<u8> {
    hex("00008000 80000000 00000000 00000000", 128)
}

/// P0d: ICReq with both digests.
pub(crate) fn p0d() -> Vec<u8> {
    hex("00008000 80000000 00000003 00000000", 128)
}

/// P2: Property Get of CAP, CID 2.
pub(crate) fn p2() -> Vec<u8> {
    hex(
        "04004800 48000000 7f400200 04000000 00000000 00000000 00000000 00000000
         00000000 00000000 00000000 00000000 01000000 00000000",
        72,
    )
}

/// P3: Write of 8 blocks of 512 bytes by R2T: NSID 1, SLBA 0, CID 5.
pub(crate) fn p3() -> Vec<u8> {
    hex(
        "04004800 48000000 01400500 01000000 00000000 00000000 00000000 00000000
         00000000 00000000 00100000 0000005a 00000000 00000000 07000000 00000000",
        72,
    )
}

/// P4: the header of H2CData that answers it: CID 5, TTAG `ttag`, DATAO 0, DATAL 4096, LAST_PDU.
pub(crate) fn p4(ttag: u16) -> Vec<u8> {
    let mut pdu = hex("06041818 18100000 05000000 00000000 00100000 00000000", 24);
    pdu[10..12].copy_from_slice(&ttag.to_le_bytes());
    pdu
}

/// Hexadecimal digits as bytes, followed by zeroes up to `len`.
pub(crate) fn hex(digits: &str, len: usize) -> Vec<u8> {
    let digits: Vec<u8> = digits
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    let mut bytes: Vec<u8> = digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect();
    assert!(bytes.len() <= len);
    bytes.resize(len, 0);
    bytes
}

/// A target, and the host of each of its connections.
pub(crate) struct Session {
    pub(crate) rig: Rig<Heap>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) config: Config,
}

/// How hosts of a session ask for connections.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ask {
    pub(crate) hpda: u8,
    pub(crate) digests: u8,
    pub(crate) no_flow_control: bool,
}

impl Session {
    /// Without connections.
    pub(crate) fn new(config: Config) -> Self {
        Self {
            rig: Rig::new(),
            hosts: Vec::new(),
            config,
        }
    }

    /// With an admin queue (0), enabled, and an I/O queue (1) of 16 entries.
    pub(crate) fn connected(config: Config, ask: Ask) -> Self {
        let mut session = Self::new(config);
        session.queue(0, 16, 0xFFFF, ask);
        let cid = session.hosts[0].free_cid();
        session.run(0, bytes::property_set(cid, 0x14, CC_ENABLE));
        let cntlid = session.hosts[0].queue.unwrap().cntlid;
        session.queue(1, 16, cntlid, ask);
        session
    }

    /// A connection that is initialized.
    pub(crate) fn open(&mut self, ask: Ask) -> usize {
        let at = self.rig.accept(&self.config);
        self.hosts.push(Host::new(ask.hpda));
        self.input(at, &bytes::ic_req(ask.hpda, ask.digests));
        at
    }

    /// A connection with a queue.
    pub(crate) fn queue(&mut self, qid: u16, entries: u16, cntlid: u16, ask: Ask) -> usize {
        let at = self.open(ask);
        let cid = self.hosts[at].free_cid();
        let mut connect = bytes::connect(cid, qid, entries - 1, 0);
        if ask.no_flow_control {
            connect = bytes::without_flow_control(connect);
        }
        let data = bytes::connect_data(cntlid, SUBNQN);
        let connect = self.hosts[at].submit(connect, Direction::FromHost, &data);
        self.input(at, &connect);
        assert_eq!(self.finished(at).status(), 0, "queue {qid} is connected");
        at
    }

    /// Bytes of a host's, and what comes back.
    pub(crate) fn input(&mut self, at: usize, bytes: &[u8]) {
        self.rig.input(at, bytes, Delivery::Whole);
        self.output(at);
    }

    /// What the controller has to say.
    pub(crate) fn output(&mut self, at: usize) {
        let output = self.rig.output(at);
        self.hosts[at].receive(&output).unwrap();
    }

    /// The PDUs that the controller has to send, after an ICReq with this HPDA and these digests.
    pub(crate) fn pdus(&mut self, at: usize, ask: Ask) -> Vec<Pdu> {
        read(&self.rig.output(at), ask)
    }

    /// A command without data, and how it ended.
    pub(crate) fn run(&mut self, at: usize, command: Command) -> Finished {
        let capsule = self.hosts[at].submit(command, Direction::None, &[]);
        self.input(at, &capsule);
        self.finished(at)
    }

    /// A command whose data arrives by C2HData, and how it ended.
    pub(crate) fn read(&mut self, at: usize, command: Command, len: u32) -> Finished {
        let capsule = self.hosts[at].submit_transfer(command, Direction::ToHost, len);
        self.input(at, &capsule);
        self.finished(at)
    }

    /// A command with in-capsule data, and how it ended.
    pub(crate) fn write(&mut self, at: usize, command: Command, data: &[u8]) -> Finished {
        let command = command.data(Data::InCapsule(data.len() as u32));
        let capsule = self.hosts[at].submit(command, Direction::FromHost, data);
        self.input(at, &capsule);
        self.finished(at)
    }

    /// The one command that completed.
    pub(crate) fn finished(&mut self, at: usize) -> Finished {
        let finished = self.hosts[at].finished.pop().expect("a command completed");
        assert!(self.hosts[at].finished.is_empty());
        finished
    }

    /// FES and FEI of the TermReq that the bytes bring.
    pub(crate) fn fault(&mut self, at: usize, bytes: &[u8]) -> (u16, u32) {
        assert_eq!(self.hosts[at].terminated, None);
        self.rig.input(at, bytes, Delivery::Whole);
        let output = self.rig.output(at);
        self.hosts[at].receive_blindly(&output).unwrap();
        self.hosts[at].terminated.expect("a C2HTermReq")
    }
}

/// The PDUs that `bytes` are, sent after an ICResp to this.
pub(crate) fn read(bytes: &[u8], ask: Ask) -> Vec<Pdu> {
    let mut reader = Reader::new(ask.hpda);
    let mut ic_resp = hex("01008000 80000000 00000000 00100000", 128);
    ic_resp[11] = ask.digests;
    reader.received(&ic_resp);
    reader.next_pdu().unwrap().expect("an ICResp");
    reader.received(bytes);
    let pdus = std::iter::from_fn(|| reader.next_pdu().unwrap()).collect();
    assert!(!reader.mid_pdu(), "half a PDU");
    pdus
}
