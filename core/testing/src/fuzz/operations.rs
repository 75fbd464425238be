//! Arbitrary operations of hosts, devices and time.
//!
//! Hosts keep the rules until an operation breaks them on purpose; of a host
//! that did, nothing is expected but a well-formed stream. At the end all that
//! was held up goes on, and then: every command has completed once (or its
//! connection is closing), a full queue of commands fits again, and when the
//! connections are gone no buffer and no controller is left.
use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use nvmf_core::block::MediaError;
use nvmf_core::storage::{Fixed, Storage};
use nvmf_core::tcp::target::Config;

use super::scenario::{IoOpcode, Manner, Operation, Scenario, Setup};
use crate::bytes::{self, CC_ENABLE, Command, DISCOVERY, Data, SUBNQN};
use crate::host::{Direction, Finished, Host, is_pattern, pattern, shows_poison};
use crate::rig::{Delivery, Rig};
use crate::target::{Device, Heap, Target};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 5;
/// Operations worth running.
const MAX_OPERATIONS: usize = 300;
/// Type and code of the status that a wrong data digest has.
const TRANSIENT_TRANSPORT_ERROR: u16 = 0x022;
/// Rounds after which everything held up must have gone on.
const MAX_ROUNDS: usize = 10_000;

/// Runs the input as an [`Arbitrary`] scenario.
///
/// # Panics
/// When an invariant does not hold.
pub fn operations(input: &[u8]) {
    let Ok(scenario) = Scenario::arbitrary_take_rest(Unstructured::new(input)) else {
        return;
    };
    let mut operations = scenario.setup.prelude();
    operations.extend(scenario.operations);
    operations.truncate(MAX_OPERATIONS);
    if scenario.setup.small {
        World::<Fixed<8>>::new(&scenario.setup, 8).run(&operations);
    } else {
        World::<Heap>::new(&scenario.setup, 32).run(&operations);
    }
}

struct Peer {
    host: Host,
    /// It broke a rule: nothing is known of what it submitted.
    wild: bool,
    /// What to do to its next PDU: see [`Operation::Spoil`].
    spoil: Option<(usize, u8, bool)>,
    /// The target stops.
    stopping: bool,
    /// Commands that sent data with a wrong digest.
    corrupted: Vec<u16>,
}

/// What namespaces store at first.
static STORED: LazyLock<Vec<(u32, Vec<u8>)>> = LazyLock::new(|| {
    let mut target = Target::new();
    let mut stored = |nsid| pattern(nsid, 0, target.memory(nsid).len(), 0);
    [1, 2, 3, 7].map(|nsid| (nsid, stored(nsid))).into()
});

struct World<S: Storage> {
    rig: Rig<S>,
    config: Config,
    delivery: Delivery,
    peers: Vec<Peer>,
    /// Some host wrote what is not known.
    tainted: bool,
    /// There was no buffer for in-capsule data at some time.
    denied: bool,
    /// The latest controller.
    cntlid: u16,
    writes: u8,
}

impl<S: Storage> World<S> {
    fn new(setup: &Setup, entries: u16) -> Self {
        let mut rig = Rig::new();
        rig.target.limits.io_queue_entries = entries.into();
        rig.target.limits.admin_queue_entries = entries;
        for (nsid, stored) in STORED.iter() {
            rig.target.memory(*nsid).copy_from_slice(stored);
        }
        let eights = |n: u8| (u32::from(n) + 1) * 8 * 16;
        let size = usize::from(setup.pieces) * 8 + 1;
        Self {
            rig,
            config: Config {
                header_digest: !setup.no_header_digest,
                data_digest: !setup.no_data_digest,
                cpda: setup.cpda & 31,
                maxh2cdata: 4096 + eights(setup.maxh2cdata),
                max_c2hdata: eights(setup.max_c2hdata),
                max_r2t: eights(setup.max_r2t),
                ..Config::default()
            },
            delivery: match (setup.in_place, setup.pieces) {
                (true, _) => Delivery::InPlace(size),
                (false, 0xFF) => Delivery::Whole,
                (false, _) => Delivery::Pieces(size),
            },
            peers: Vec::new(),
            tainted: false,
            denied: false,
            cntlid: 1,
            writes: 0,
        }
    }

    fn run(mut self, operations: &[Operation]) {
        for operation in operations {
            self.operate(operation);
        }
        self.settle();
        self.check_settled();
        self.fill_queues();
        self.end();
    }

    fn operate(&mut self, operation: &Operation) {
        match *operation {
            Operation::Open { hpda, digests } => self.open(hpda & 31, digests & 3),
            Operation::Devices(manner) => {
                self.rig.target.device = match manner {
                    Manner::Immediate => Device::Immediate,
                    Manner::Delayed => Device::Delayed,
                    Manner::Busy => Device::Busy,
                    Manner::Failing(fault) => Device::Failing(fault.into()),
                };
            }
            Operation::Complete { index, fault } => {
                if let Some(last) = self.rig.target.pending().checked_sub(1) {
                    let index = usize::from(index).min(last);
                    self.rig.complete(index, fault.map(MediaError::from));
                }
            }
            Operation::Buffers { left } => {
                self.rig.target.transfer_buffers = match left {
                    0xFF => usize::MAX,
                    left => usize::from(left & 7),
                };
            }
            Operation::InCapsuleBuffers(there) => {
                self.rig.target.in_capsule_buffers = there;
                self.denied |= !there;
            }
            Operation::Advance { milliseconds } => {
                self.rig.advance(Duration::from_millis(milliseconds.into()));
            }
            Operation::Change => self.rig.target.change_catalog(),
            _ => self.operate_at(operation),
        }
    }

    /// Operations of one host.
    fn operate_at(&mut self, operation: &Operation) {
        let Some(at) = self.peer(operation) else {
            return;
        };
        match *operation {
            Operation::Connect {
                qid,
                discovery,
                sqsize,
                no_flow_control,
                kato,
                in_capsule,
                ..
            } => {
                let (qid, cntlid) = match qid & 3 {
                    0 => (0, 0xFFFF),
                    qid => (qid.into(), self.cntlid),
                };
                let mut command = bytes::connect(0, qid, sqsize.into(), kato.into());
                if no_flow_control {
                    command = bytes::without_flow_control(command);
                }
                let subnqn = if discovery { DISCOVERY } else { SUBNQN };
                let data = bytes::connect_data(cntlid, subnqn);
                self.submit(at, command, Direction::FromHost, &data, in_capsule, 0);
            }
            Operation::Enable { .. } => {
                let command = bytes::property_set(0, 0x14, CC_ENABLE);
                self.submit(at, command, Direction::None, &[], true, 0);
            }
            Operation::Property {
                write,
                offset,
                value,
                ..
            } => {
                let command = if write {
                    bytes::property_set(0, offset.into(), value.into())
                } else {
                    bytes::property_get(0, offset.into(), value & 1 != 0)
                };
                self.submit(at, command, Direction::None, &[], true, 0);
            }
            Operation::Io {
                opcode,
                nsid,
                slba,
                blocks,
                in_capsule,
                excess,
                dword12,
                ..
            } => {
                let dword12 = u32::from(dword12) << 24;
                let blocks = u32::from(blocks & 63) + 1;
                self.io(at, opcode, nsid, slba, blocks, dword12, in_capsule, excess);
            }
            Operation::Any {
                opcode,
                nsid,
                len,
                in_capsule,
                dwords,
                ..
            } => {
                let mut command = Command::new(opcode, 0).nsid(nsid.into());
                for (index, value) in (10..).zip(dwords) {
                    command = command.dword(index, value);
                }
                let direction = match opcode & 3 {
                    1 => Direction::FromHost,
                    2 => Direction::ToHost,
                    _ => Direction::None,
                };
                // A Connect of unknown content would make this host's queue unknown.
                if opcode != 0x7F {
                    self.tainted |= opcode == 0x01;
                    let len = usize::from(len) & 0x1FFF;
                    let data = vec![0x33; len];
                    self.submit(at, command, direction, &data, in_capsule, 0);
                }
            }
            Operation::Ask {
                log,
                which,
                nsid,
                length,
                offset,
                ..
            } => {
                let length = u32::from(length & 0x1FFF);
                let command = if log {
                    let dwords = (length / 4).saturating_sub(1);
                    Command::new(0x02, 0)
                        .dword(10, u32::from(which) | dwords << 16)
                        .dword(12, offset.into())
                } else {
                    Command::new(0x06, 0).dword(10, which.into())
                };
                let length = if log { length } else { 4096 };
                let command = command.nsid(nsid.into());
                let data = vec![0; length as usize];
                self.submit(at, command, Direction::ToHost, &data, false, 0);
            }
            Operation::Await { .. } => {
                self.submit(at, Command::new(0x0C, 0), Direction::None, &[], true, 0);
            }
            Operation::Abort { cid, .. } => {
                let command = Command::new(0x08, 0).dword(10, u32::from(cid) << 16);
                self.submit(at, command, Direction::None, &[], true, 0);
            }
            Operation::Disconnect { .. } => {
                self.submit(at, bytes::disconnect(0), Direction::None, &[], true, 0);
            }
            Operation::Answer {
                index,
                len,
                corrupt,
                ..
            } => self.answer(at, index.into(), len.into(), corrupt),
            Operation::Raw { bytes, .. } => {
                self.go_wild(at);
                self.rig.input(at, &bytes, self.delivery);
            }
            Operation::Spoil {
                offset,
                change,
                repair,
                ..
            } => self.peers[at].spoil = Some((offset.into(), change, repair)),
            Operation::Compose { pdus, .. } => {
                self.rig.compose(at, usize::from(pdus & 7) + 1);
            }
            Operation::Send { pdus, .. } => {
                let bytes = self.rig.send(at, usize::from(pdus & 7) + 1);
                self.receive(at, &bytes);
            }
            Operation::Output { .. } => self.output(at),
            Operation::Retry { .. } => self.rig.retry(at),
            Operation::ShutDown { .. } => {
                self.peers[at].stopping = true;
                self.rig.shut_down(at);
            }
            Operation::Close { .. } => self.rig.close(at),
            _ => {}
        }
    }

    /// The host that an operation is of.
    fn peer(&self, operation: &Operation) -> Option<usize> {
        use Operation as O;
        let (O::Connect { at, .. }
        | O::Enable { at }
        | O::Property { at, .. }
        | O::Io { at, .. }
        | O::Any { at, .. }
        | O::Ask { at, .. }
        | O::Await { at }
        | O::Abort { at, .. }
        | O::Disconnect { at }
        | O::Answer { at, .. }
        | O::Raw { at, .. }
        | O::Spoil { at, .. }
        | O::Compose { at, .. }
        | O::Send { at, .. }
        | O::Output { at }
        | O::Retry { at }
        | O::ShutDown { at }
        | O::Close { at }) = *operation
        else {
            return None;
        };
        usize::from(at).checked_rem(self.peers.len())
    }

    fn open(&mut self, hpda: u8, digests: u8) {
        if self.peers.len() == MAX_CONNECTIONS {
            return;
        }
        let at = self.rig.accept(&self.config);
        self.peers.push(Peer {
            host: Host::new(hpda),
            wild: false,
            spoil: None,
            stopping: false,
            corrupted: Vec::new(),
        });
        self.rig
            .input(at, &bytes::ic_req(hpda, digests), self.delivery);
        self.output(at);
    }

    #[allow(clippy::too_many_arguments, reason = "they are the operation's")]
    fn io(
        &mut self,
        at: usize,
        opcode: IoOpcode,
        nsid: u8,
        slba: u8,
        blocks: u32,
        dword12: u32,
        in_capsule: bool,
        excess: u8,
    ) {
        let nsid = [1, 2, 3, 7, 1, 2, 9, u32::MAX][usize::from(nsid & 7)];
        let (code, direction) = match opcode {
            IoOpcode::Read => (0x02, Direction::ToHost),
            IoOpcode::Write => (0x01, Direction::FromHost),
            IoOpcode::Compare => (0x05, Direction::FromHost),
            IoOpcode::WriteZeroes => (0x08, Direction::None),
            IoOpcode::Verify => (0x0C, Direction::None),
            IoOpcode::Flush => (0x00, Direction::None),
            IoOpcode::DatasetManagement => (0x09, Direction::FromHost),
        };
        let block = block_size(nsid);
        let mut command = bytes::block_command(code, 0, nsid, slba.into(), blocks);
        let data = match opcode {
            IoOpcode::DatasetManagement => {
                command = command.dword(10, blocks - 1).dword(11, 4);
                ranges(slba, blocks)
            }
            _ if direction == Direction::None => Vec::new(),
            _ => {
                self.writes = self.writes.wrapping_add(1);
                let len = blocks as usize * block as usize;
                pattern(nsid, u64::from(slba) * u64::from(block), len, self.writes)
            }
        };
        if !matches!(opcode, IoOpcode::DatasetManagement) {
            let field = u32::from_le_bytes(command.0[48..52].try_into().expect("4 bytes"));
            command = command.dword(12, field | dword12);
        }
        self.submit(at, command, direction, &data, in_capsule, excess.into());
    }

    /// Submits a command, if the host may; its CID is still to be chosen.
    fn submit(
        &mut self,
        at: usize,
        mut command: Command,
        direction: Direction,
        data: &[u8],
        in_capsule: bool,
        excess: u32,
    ) {
        let host = &mut self.peers[at].host;
        if host.room() == 0 || !self.rig.is_open(at) || host.maxh2cdata == 0 {
            return;
        }
        let [low, high] = host.free_cid().to_le_bytes();
        command = command.byte(2, low).byte(3, high);
        let len = bytes_len(data);
        let limit = match host.queue {
            Some(queue) if queue.qid > 0 => self.rig.target.limits.inline_data,
            _ => 8192,
        };
        let inside = in_capsule && direction == Direction::FromHost && len <= limit;
        let pdu = if direction == Direction::None {
            host.submit(command, direction, &[])
        } else if inside {
            host.submit(command.data(Data::InCapsule(len)), direction, data)
        } else {
            host.submit_transfer(command, direction, len + excess)
        };
        self.deliver(at, pdu);
    }

    fn answer(&mut self, at: usize, index: usize, len: u32, corrupt: bool) {
        let Some(request) = self.peers[at].host.requests.len().checked_sub(1) else {
            return;
        };
        let index = index.min(request);
        let data = self.data_of(at, index);
        let Peer {
            host, corrupted, ..
        } = &mut self.peers[at];
        let cid = host.requests[index].cid;
        let mut pdu = host.answer(index, len, &data);
        if corrupt
            && host.dressing.data_digest
            && let Some(last) = pdu.last_mut()
        {
            *last ^= 0x80;
            corrupted.push(cid);
        }
        self.deliver(at, pdu);
    }

    /// All that the command has to send, whose R2T this is.
    fn data_of(&self, at: usize, index: usize) -> Vec<u8> {
        let host = &self.peers[at].host;
        let cid = host.requests[index].cid;
        let command = host
            .outstanding()
            .find(|outstanding| outstanding.command.cid() == cid)
            .expect("R2Ts are of outstanding commands");
        let (sqe, len) = (&command.command.0, command.transfer as usize);
        let field = |at: usize| u32::from_le_bytes(sqe[at..][..4].try_into().expect("4 bytes"));
        match sqe[0] {
            0x7F => {
                let cntlid = if sqe[42] == 0 { 0xFFFF } else { self.cntlid };
                bytes::connect_data(cntlid, SUBNQN)
            }
            0x01 | 0x05 => {
                let block = u64::from(block_size(field(4)));
                // Reads tell by the pattern where data belongs.
                pattern(field(4), u64::from(field(40)) * block, len, 1)
            }
            0x09 => {
                let mut ranges = ranges(sqe[40], field(40).saturating_add(1).min(256));
                ranges.resize(len, 0);
                ranges
            }
            _ => vec![0; len],
        }
    }

    fn deliver(&mut self, at: usize, mut pdu: Vec<u8>) {
        if let Some((offset, change, repair)) = self.peers[at].spoil.take()
            && change != 0
        {
            let offset = offset % pdu.len();
            pdu[offset] ^= change;
            let header = usize::from(pdu[2]);
            if repair && self.peers[at].host.dressing.header_digest && pdu.len() >= header + 4 {
                let digest = crate::crc::crc32c(&pdu[..header]).to_le_bytes();
                pdu[header..][..4].copy_from_slice(&digest);
            }
            self.go_wild(at);
        }
        self.rig.input(at, &pdu, self.delivery);
    }

    fn go_wild(&mut self, at: usize) {
        self.peers[at].wild = true;
        self.tainted = true;
    }

    fn output(&mut self, at: usize) {
        let bytes = self.rig.output(at);
        self.receive(at, &bytes);
        self.rig.close_if_asked(at);
    }

    fn receive(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.tainted || !shows_poison(bytes), "memory is shown");
        let peer = &mut self.peers[at];
        let received = if peer.wild {
            peer.host.receive_blindly(bytes)
        } else {
            peer.host.receive(bytes)
        };
        if let Err(fault) = received {
            panic!("connection {at}: {fault}");
        }
        assert!(
            peer.wild || peer.host.terminated.is_none(),
            "connection {at}: terminated with {:?} for nothing",
            peer.host.terminated
        );
        if let Some(queue) = peer.host.queue {
            self.cntlid = queue.cntlid;
        }
        let io = peer.host.queue.is_some_and(|queue| queue.qid > 0);
        let finished = std::mem::take(&mut peer.host.finished);
        for command in &finished {
            let cid = command.command.cid();
            let corrupted = peer.corrupted.contains(&cid);
            peer.corrupted.retain(|other| *other != cid);
            let failed = command.status() == TRANSIENT_TRANSPORT_ERROR;
            assert!(
                failed == corrupted || (failed && self.denied),
                "a data digest was wrong ({corrupted}): {command:?}"
            );
        }
        for command in finished.iter().filter(|_| io) {
            self.check_read(command);
        }
    }

    /// What a read brought is what some write stored there.
    fn check_read(&self, finished: &Finished) {
        let sqe = &finished.command.0;
        let field = |at: usize| u32::from_le_bytes(sqe[at..][..4].try_into().expect("4 bytes"));
        if sqe[0] != 0x02 || self.tainted {
            return;
        }
        let from = u64::from(field(40)) * u64::from(block_size(field(4)));
        assert!(
            is_pattern(field(4), from, &finished.data),
            "{sqe:02x?} read something else"
        );
    }

    /// Everything held up goes on, until nothing moves.
    fn settle(&mut self) {
        let target = &mut self.rig.target;
        target.device = Device::Immediate;
        target.transfer_buffers = usize::MAX;
        target.in_capsule_buffers = true;
        for _ in 0..MAX_ROUNDS {
            let mut moved = false;
            while self.rig.complete(0, None) {
                moved = true;
            }
            for at in 0..self.peers.len() {
                if self.rig.is_open(at) && self.rig.is_waiting(at) {
                    self.rig.retry(at);
                    moved = true;
                }
                let bytes = self.rig.output(at);
                moved |= !bytes.is_empty();
                self.receive(at, &bytes);
                self.peers[at].spoil = None;
                if !self.peers[at].host.requests.is_empty() && self.rig.is_open(at) {
                    self.answer(at, 0, u32::MAX, false);
                    moved = true;
                }
                self.rig.close_if_asked(at);
            }
            if !moved {
                return;
            }
        }
        panic!("it never settles");
    }

    fn check_settled(&self) {
        for (at, peer) in self.peers.iter().enumerate() {
            if !self.rig.is_open(at) || peer.wild {
                continue;
            }
            assert!(!peer.host.mid_pdu(), "connection {at}: half a PDU");
            assert!(
                !peer.stopping,
                "connection {at} is idle, and not closed though the target stops"
            );
            let forgotten = peer
                .host
                .outstanding()
                .find(|outstanding| outstanding.command.0[0] != 0x0C);
            assert!(forgotten.is_none(), "connection {at}: {forgotten:?}");
        }
    }

    /// As many commands as a queue may have outstanding find room in it.
    fn fill_queues(&mut self) {
        for round in 0..2 {
            for at in 0..self.peers.len() {
                let io = match self.peers[at].host.queue {
                    Some(queue) => queue.qid > 0,
                    None => continue,
                };
                if self.peers[at].wild || !self.rig.is_open(at) {
                    continue;
                }
                self.rig.target.device = Device::Delayed;
                while self.peers[at].host.room() > 0 {
                    let command = if io {
                        Command::new(0x00, 0).nsid(1)
                    } else {
                        bytes::property_get(0, 0x08, false)
                    };
                    self.submit(at, command, Direction::None, &[], true, 0);
                    assert!(self.rig.is_open(at));
                }
                let closing = self.rig.closing(at);
                assert!(closing.is_none(), "round {round}: {closing:?}");
                self.settle();
                self.check_settled();
            }
        }
    }

    fn end(mut self) {
        for at in 0..self.peers.len() {
            self.rig.close(at);
            assert!(self.rig.is_drained(at), "connection {at} is not drained");
        }
        assert_eq!(self.rig.target.buffers_taken(), 0, "buffers are kept");
        assert_eq!(self.rig.target.controllers(), 0, "controllers are kept");
    }
}

fn block_size(nsid: u32) -> u32 {
    if nsid == 2 { 4096 } else { 512 }
}

/// Ranges of Dataset Management: every second block.
fn ranges(slba: u8, count: u32) -> Vec<u8> {
    (0..u64::from(count))
        .flat_map(|index| {
            let mut range = [0; 16];
            range[4..8].copy_from_slice(&1u32.to_le_bytes());
            range[8..16].copy_from_slice(&(u64::from(slba) + index * 2).to_le_bytes());
            range
        })
        .collect()
}

fn bytes_len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("tests are not that large")
}
