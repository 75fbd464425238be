//! Arbitrary bytes and operations of a controller, against the host's machines.
//!
//! A command completes once, and its data is nowhere but in its buffer, of which only
//! as much changed as it says; nothing is sent that was not asked for; after a fault a
//! TermReq is sent and nothing is read; however the bytes are cut, the same happens;
//! and a queue whose commands ended takes as many as before.
use std::collections::VecDeque;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use nvmf_core::host::Data;
use nvmf_core::host::controller::{Controller, Token};
use nvmf_core::storage::{Fixed, Storage};
use nvmf_core::tcp::host::{Config, Event, HostQueue, Transmit};
use nvmf_core::tcp::rx::Need;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::time::Instant;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cid, Qid};
use nvmf_core::wire::sqe::Sqe;
use nvmf_core::{DataBuffers, Place, SlotId};

use super::host_scenario::{Direction, Length, Operation, Scenario, Setup};
use crate::association;
use crate::bytes::{Dressing, flags, pdu_type};
use crate::crc::{continue_crc32c, crc32c};
use crate::target::Heap;

/// Operations worth running.
const MAX_OPERATIONS: usize = 200;
/// What buffers for data of the controller hold before it comes.
const UNTOUCHED: u8 = 0xEE;
/// What buffers for data of the host hold.
const SENT: u8 = 0x5A;
/// Commands that are remembered, ended or not.
const REMEMBERED: usize = 16;

/// Runs the input as an [`Arbitrary`] scenario, its bytes in pieces and whole.
///
/// # Panics
/// When an invariant does not hold.
pub fn host_operations(input: &[u8]) {
    let run = |whole: bool| {
        let scenario = Scenario::arbitrary_take_rest(Unstructured::new(input)).ok()?;
        let Scenario { setup, operations } = scenario;
        let operations = operations.iter().take(MAX_OPERATIONS);
        let log = if setup.small {
            World::<Fixed<4>>::new(&setup, 4, whole).run(operations)
        } else {
            let depth = usize::from(setup.depth & 31) + 1;
            World::<Heap>::new(&setup, depth, whole).run(operations)
        };
        Some(log)
    };
    assert_eq!(run(false), run(true), "pieces change something");
}

struct World<S: Storage> {
    queue: HostQueue<S>,
    buffers: Buffers,
    machine: Option<Controller>,
    /// The machine ended with an error.
    over: bool,
    now: Instant,
    depth: usize,
    hpda: u8,
    /// Bytes at a time, and whether data goes straight to its place.
    pieces: Option<(usize, bool)>,
    /// Of what the controller sends.
    dressing: Dressing,
    composed: VecDeque<(Vec<u8>, Transmit)>,
    /// Commands on the wire, the latest last.
    wire: Vec<OnWire>,
    spoil: Option<(usize, u8, bool)>,
    /// The controller broke a rule on purpose: less is known.
    wild: bool,
    /// The host sent a TermReq, or the connection is over.
    ended: bool,
    log: Vec<String>,
}

/// A command that the controller knows.
#[derive(Clone, Debug)]
struct OnWire {
    sqe: [u8; 64],
    /// Bytes that its descriptor offers.
    len: u32,
    /// Bytes of data that went one way or the other.
    moved: u32,
    /// What an R2T asked for: up to there, with that tag.
    asked: u32,
    ttag: u16,
    answered: bool,
}

impl OnWire {
    fn cid(&self) -> u16 {
        u16::from_le_bytes([self.sqe[2], self.sqe[3]])
    }

    /// Bits 1 and 0 of an opcode; but for Fabrics, where they tell of the type.
    fn direction(&self) -> Direction {
        match self.sqe[0] & 3 {
            1 => Direction::FromHost,
            2 => Direction::ToHost,
            _ => Direction::None,
        }
    }

    fn field(&self, at: usize) -> u32 {
        let bytes = &self.sqe[at..at + 4];
        u32::from_le_bytes(bytes.try_into().expect("4 bytes"))
    }
}

#[derive(Default)]
struct Buffers(Vec<Option<Pending>>);

struct Pending {
    token: Option<Token>,
    /// Once it was sent.
    cid: Option<u16>,
    data: Data,
    bytes: Vec<u8>,
}

impl Buffers {
    fn bytes(&mut self, place: Place) -> &mut [u8] {
        let pending = self.0[place.slot.index()].as_mut();
        let bytes = &mut pending.expect("a command has this slot").bytes;
        &mut bytes[place.offset as usize..][..place.len as usize]
    }
}

impl DataBuffers for Buffers {
    fn reserve(&mut self, _: SlotId, _: u32) -> bool {
        unreachable!("a host's buffers are there before the command")
    }

    fn place(&mut self, place: Place) -> &mut [u8] {
        let slot = &self.0[place.slot.index()];
        let data = slot.as_ref().expect("a command has this slot").data;
        assert!(matches!(data, Data::ToHost(_)), "{place:?} of {data:?}");
        self.bytes(place)
    }
}

impl<S: Storage> World<S> {
    fn new(setup: &Setup, depth: usize, whole: bool) -> Self {
        let config = Config {
            header_digest: setup.digests & 1 != 0,
            data_digest: setup.digests & 2 != 0,
            hpda: setup.hpda & 31,
            crc32c: continue_crc32c,
            ..Config::default()
        };
        let now = Instant::from_micros(1_000_000);
        let mut queue = HostQueue::new(&config, now);
        queue.configure(depth, u32::from(setup.inline_data) * 16);
        let size = usize::from(setup.pieces) + 1;
        let mut world = Self {
            queue,
            buffers: Buffers::default(),
            machine: setup
                .admin
                .then(|| Controller::new(association::config(), now)),
            over: false,
            now,
            depth,
            hpda: setup.hpda & 31,
            pieces: (!whole).then_some((size, setup.in_place)),
            dressing: Dressing::default(),
            composed: VecDeque::new(),
            wire: Vec::new(),
            spoil: None,
            wild: false,
            ended: false,
            log: Vec::new(),
        };
        if !setup.silent {
            world.output();
            world.ic_resp(0, setup.digests, 0, None);
        }
        if setup.ready {
            world.bring_up();
        }
        world
    }

    fn run<'a>(mut self, operations: impl Iterator<Item = &'a Operation>) -> Vec<String> {
        for operation in operations {
            self.operate(operation);
            self.go_on();
        }
        self.end();
        self.log
    }

    fn bring_up(&mut self) {
        // Steps of it, and a few more.
        for _ in 0..12 {
            self.go_on();
            self.output();
            self.answer(None);
        }
    }

    fn operate(&mut self, operation: &Operation) {
        match *operation {
            Operation::Submit { direction, len } => {
                let len = u32::from(len & 0x1FFF);
                let (opcode, data) = match direction {
                    Direction::None => (0x00, Data::Nothing),
                    Direction::ToHost => (0x02, Data::ToHost(len)),
                    Direction::FromHost => (0x01, Data::FromHost(len)),
                };
                self.submit(&Sqe::new(opcode, Cid(0)), data, None);
            }
            Operation::IcResp {
                cpda,
                digests,
                maxh2cdata,
                flaw,
            } => self.ic_resp(cpda, digests, maxh2cdata, flaw),
            Operation::Answer { flaw } => self.answer(flaw),
            Operation::Response {
                which,
                status,
                result,
            } => {
                let Some(command) = self.on_wire(which, None) else {
                    return;
                };
                command.answered = true;
                let cid = command.cid();
                self.respond(cid, status, result);
            }
            Operation::R2t {
                which,
                skew,
                len,
                ttag,
            } => self.r2t(which, skew.unwrap_or(0), len, ttag),
            Operation::Data {
                which,
                skew,
                len,
                flags,
                fill,
                corrupt,
            } => {
                let to_host = Some(Direction::ToHost);
                let Some(command) = self.on_wire(which, to_host) else {
                    return;
                };
                let offset = command.moved.wrapping_add(skew.unwrap_or(0).into());
                let left = command.len.saturating_sub(offset).min(0x2000);
                let len = len.of(left);
                let data = vec![fill & 0x7F; len as usize];
                command.moved = offset.wrapping_add(len);
                let cid = command.cid();
                self.data(cid, offset, &data, flags & 0x0C, corrupt == Some(true));
            }
            Operation::TermReq { fei, .. } if fei & 7 != 0 => {}
            Operation::TermReq { fes, fei, quoted } => {
                let mut pdu = crate::bytes::term_req(fes, fei, &vec![0; quoted.into()]);
                pdu[0] = 0x03;
                self.wild = true;
                self.input(&pdu);
            }
            Operation::Raw { bytes } => {
                // Seldom: it is the end of most connections.
                if bytes[23] & 7 == 0 {
                    self.wild = true;
                    self.input(&bytes);
                }
            }
            Operation::Spoil {
                offset,
                change,
                repair,
            } => self.spoil = Some((offset.into(), change, repair)),
            Operation::Compose { pdus } => self.compose(usize::from(pdus & 7) + 1),
            Operation::Send { pdus } => self.send(usize::from(pdus & 7) + 1),
            Operation::Output => self.output(),
            Operation::Advance { milliseconds } => {
                self.advance(Duration::from_millis(milliseconds.into()));
            }
            Operation::Late { cid, ended } => self.late(cid, ended),
            Operation::ShutDown => {
                if let Some(machine) = &mut self.machine {
                    machine.shut_down(self.now);
                }
            }
        }
    }

    /// What the controller's machine wants is done.
    fn go_on(&mut self) {
        let free = self.free();
        for _ in 0..free {
            let Some(machine) = &mut self.machine else {
                return;
            };
            let Some((token, request)) = machine.poll_command(self.now) else {
                return;
            };
            assert!(!self.over, "{request:?} after an error");
            self.submit(&request.sqe, request.data, Some(token));
        }
    }

    fn free(&self) -> usize {
        self.depth - self.buffers.0.iter().flatten().count()
    }

    fn submit(&mut self, sqe: &Sqe, data: Data, token: Option<Token>) {
        let free = self.free();
        let Some(slot) = self.queue.submit(sqe, data) else {
            assert_eq!(free, 0, "there should be room");
            return;
        };
        assert!(free > 0, "more than there is room for");
        let bytes = match data {
            Data::Nothing => Vec::new(),
            Data::ToHost(len) => vec![UNTOUCHED; len as usize],
            Data::FromHost(len) => vec![SENT; len as usize],
        };
        let all = &mut self.buffers.0;
        if all.len() <= slot.index() {
            all.resize_with(slot.index() + 1, || None);
        }
        let before = all[slot.index()].replace(Pending {
            token,
            cid: None,
            data,
            bytes,
        });
        assert!(before.is_none(), "the slot is another command's");
    }

    /// A command that the controller knows: one that it did not answer, whose data
    /// goes that way, or any.
    fn on_wire(&mut self, which: u8, direction: Option<Direction>) -> Option<&mut OnWire> {
        let any = which & 0xE0 == 0;
        let fits = |it: &OnWire| match direction {
            None => true,
            Some(direction) => it.direction() == direction,
        };
        let known = self.wire.iter_mut();
        let known = known.filter(|it| any || !it.answered && fits(it));
        let mut known: Vec<_> = known.collect();
        let at = usize::from(which).checked_rem(known.len())?;
        Some(known.swap_remove(at))
    }

    fn ic_resp(&mut self, cpda: u8, digests: u8, maxh2cdata: u16, flaw: Option<(u8, u8)>) {
        let mut pdu = vec![0; 128];
        (pdu[0], pdu[2], pdu[4]) = (0x01, 128, 128);
        (pdu[10], pdu[11]) = (cpda & 31, digests & 3);
        let maxh2cdata = 4096 + 4 * u32::from(maxh2cdata);
        pdu[12..16].copy_from_slice(&maxh2cdata.to_le_bytes());
        if let Some((at, value)) = flaw {
            pdu[usize::from(at) & 127] = value;
            self.wild = true;
        }
        self.input(&pdu);
        let agreed = self.queue.digests();
        self.dressing = Dressing {
            header_digest: agreed.header,
            data_digest: agreed.data,
            cpda: self.hpda,
        };
    }

    /// What a controller would say to the command that waits longest.
    fn answer(&mut self, flaw: Option<(u16, u8)>) {
        // Asynchronous Event Requests may wait for ever.
        let waits = |it: &OnWire| !it.answered && (it.sqe[0] != 0x0C || flaw.is_some());
        let Some(command) = self.wire.iter_mut().find(|it| waits(it)) else {
            return;
        };
        command.answered = true;
        let command = command.clone();
        let cid = command.cid();
        let mut result = match (command.sqe[0], command.sqe[4], command.field(44)) {
            // Connect: CNTLID; CAP: MQES, TO, CSS; VS; CSTS: RDY.
            (0x7F, 0x01, _) => 1,
            (0x7F, 0x04, 0x00) => 127 | 15 << 24 | 1 << 37,
            (0x7F, 0x04, 0x08) => 0x0001_0400,
            (0x7F, 0x04, _) => 1,
            (0x09, ..) => 0x0003_0003,
            _ => 0,
        };
        match command.sqe[0] {
            0x06 | 0x02 => {
                let mut data = vec![0; command.len.min(0x2000) as usize];
                for (at, value) in [(78, 1), (111, 1), (320, 10), (1792, 4), (1796, 1)] {
                    if let Some(byte) = data.get_mut(at) {
                        *byte = value;
                    }
                }
                if let Some((at, value)) = flaw
                    && let Some(byte) = data.get_mut(usize::from(at))
                {
                    *byte = value & 0x7F;
                }
                if !data.is_empty() {
                    self.data(cid, 0, &data, flags::LAST, false);
                }
            }
            _ => {
                if let Some((at, value)) = flaw {
                    result ^= u64::from(value) << (at & 63);
                }
            }
        }
        self.respond(cid, 0, result);
    }

    fn respond(&mut self, cid: u16, status: u16, result: u64) {
        let mut cqe = [0; 16];
        cqe[0..8].copy_from_slice(&result.to_le_bytes());
        cqe[12..14].copy_from_slice(&cid.to_le_bytes());
        cqe[14..16].copy_from_slice(&status.to_le_bytes());
        let pdu = self.dressing.pdu(0x05, 0, &cqe, &[]);
        self.pdu(pdu);
    }

    fn r2t(&mut self, which: u8, skew: u8, len: Length, ttag: u16) {
        let from_host = Some(Direction::FromHost);
        let Some(command) = self.on_wire(which, from_host) else {
            return;
        };
        let offset = command.moved.wrapping_add(skew.into());
        let left = command.len.saturating_sub(offset);
        let len = len.of(left);
        command.asked = offset.wrapping_add(len);
        command.ttag = ttag;
        let body = transfer(command.cid(), ttag, offset, len);
        let pdu = self.dressing.pdu(0x09, 0, &body, &[]);
        self.pdu(pdu);
    }

    fn data(&mut self, cid: u16, offset: u32, data: &[u8], flags: u8, corrupt: bool) {
        let body = transfer(cid, 0, offset, crate::bytes_len(data));
        let mut pdu = self.dressing.pdu(0x07, flags, &body, data);
        if corrupt && let Some(last) = pdu.last_mut() {
            *last ^= 0x80;
        }
        self.pdu(pdu);
    }

    /// A PDU of the controller's, spoilt if it is to be.
    fn pdu(&mut self, mut pdu: Vec<u8>) {
        if let Some((offset, change, repair)) = self.spoil.take()
            && change != 0
        {
            self.wild = true;
            let offset = offset % pdu.len();
            pdu[offset] ^= change;
            if repair && self.dressing.header_digest {
                let digest = crc32c(&pdu[..24]).to_le_bytes();
                pdu[24..28].copy_from_slice(&digest);
            }
        }
        self.input(&pdu);
    }

    /// Bytes of the controller's.
    fn input(&mut self, bytes: &[u8]) {
        let (size, in_place) = self.pieces.unwrap_or((bytes.len(), false));
        for mut piece in bytes.chunks(size.max(1)) {
            while !piece.is_empty() {
                let (used, event) = match self.queue.need() {
                    Need::Payload(place) if in_place => {
                        let len = crate::bytes_len(piece).min(place.len);
                        let data = &piece[..len as usize];
                        self.buffers
                            .place(Place { len, ..place })
                            .copy_from_slice(data);
                        (data.len(), self.queue.placed(data))
                    }
                    Need::Scratch(len) if in_place => self.take(&piece[..len.min(piece.len())]),
                    _ => self.take(piece),
                };
                assert!(used > 0, "takes nothing");
                piece = &piece[used..];
                self.event(event);
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        match self.queue.handle_input(bytes, &mut self.buffers, self.now) {
            Ok(taken) => taken,
            Err(fatal) => {
                assert!(!self.ended, "{fatal:?} after the end");
                self.ended = true;
                self.log.push(format!("broken: {fatal}"));
                assert_eq!(self.queue.need(), Need::Skip(u32::MAX));
                (bytes.len(), None)
            }
        }
    }

    fn event(&mut self, event: Option<Event>) {
        match event {
            None => {}
            Some(Event::Ready) => self.log.push("ready".to_owned()),
            Some(Event::Terminated(fatal)) => {
                self.ended = true;
                self.log.push(format!("terminated: {fatal}"));
            }
            Some(Event::Completed {
                slot,
                cqe,
                received,
                ..
            }) => self.completed(slot, &cqe, received),
        }
    }

    fn completed(&mut self, slot: SlotId, cqe: &Cqe, received: u32) {
        self.log
            .push(format!("{} completed: {cqe}, {received}", slot.0));
        let pending = self.buffers.0[slot.index()].take();
        let Pending {
            token,
            cid,
            data,
            bytes,
        } = pending.expect("completes once");
        assert_eq!(Some(cqe.cid().0), cid, "another command's completion");
        let received = received as usize;
        match data {
            Data::ToHost(_) => {
                let rest = &bytes[received..];
                let untouched = rest.iter().all(|byte| *byte == UNTOUCHED);
                assert!(untouched, "more than {received} bytes changed");
                let gap = bytes[..received].contains(&UNTOUCHED);
                assert!(!gap || self.wild, "less than {received} bytes came");
            }
            Data::FromHost(_) | Data::Nothing => {
                assert_eq!(received, 0);
                assert!(bytes.iter().all(|byte| *byte == SENT), "its data changed");
            }
        }
        let (Some(token), Some(machine)) = (token, &mut self.machine) else {
            return;
        };
        match machine.completed(token, cqe, &bytes[..received], self.now) {
            Ok(event) => self.log.push(format!("{token:?}: {event:?}")),
            Err(error) => self.machine_ends(error),
        }
    }

    fn machine_ends(&mut self, error: nvmf_core::host::Error) {
        self.log.push(error.to_string());
        self.over = true;
        let machine = self.machine.as_mut().expect("it ended");
        assert_eq!(machine.poll_timeout(), None, "after {error}");
    }

    fn late(&mut self, cid: u16, ended: bool) {
        let Some(machine) = self.machine.as_mut().filter(|_| !self.over) else {
            return;
        };
        let qid = Qid(1);
        if ended {
            machine.ended(qid, Cid(cid));
        } else if let Err(error) = machine.timed_out(qid, Cid(cid), self.now) {
            self.machine_ends(error);
        }
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now.after(by);
        if self.queue.poll_timeout().is_some_and(|due| due <= end) {
            self.log.push("the transport's time is over".to_owned());
            assert!(self.queue.timed_out(end));
        }
        for _ in 0..10_000 {
            let due = self.machine.as_ref().and_then(Controller::poll_timeout);
            let Some(due) = due.filter(|due| *due <= end && !self.over) else {
                self.now = end;
                return;
            };
            // Without room, what is due has to wait.
            self.now = self.now.max(due);
            let machine = self.machine.as_mut().expect("it has a time");
            if let Err(error) = machine.handle_timeout(self.now) {
                self.machine_ends(error);
            } else if self.free() == 0 {
                self.now = end;
                return;
            }
            self.go_on();
        }
        panic!("a timer that never rests");
    }

    fn compose(&mut self, pdus: usize) {
        for _ in 0..pdus {
            let mut head = [0; MAX_HEAD];
            let wanted = self.queue.wants_transmit();
            let Some(transmit) = self.queue.poll_transmit(&mut head) else {
                assert!(!wanted, "wants to transmit, and does not");
                return;
            };
            assert!(wanted, "transmits without wanting to");
            let head = head[..transmit.head_len].to_vec();
            self.composed.push_back((head, transmit));
            let most = self.depth * 8 + 2;
            assert!(self.composed.len() < most.max(1 << 12), "without bound");
        }
    }

    fn send(&mut self, pdus: usize) {
        for _ in 0..pdus {
            let Some((head, transmit)) = self.composed.pop_front() else {
                return;
            };
            if let Some(place) = transmit.payload {
                let data = self.buffers.bytes(place);
                assert!(data.iter().all(|byte| *byte == SENT), "{place:?}");
            }
            self.check(&head, &transmit);
            let event = transmit.slot.and_then(|slot| self.queue.sent(slot));
            self.event(event);
        }
    }

    fn output(&mut self) {
        self.send(usize::MAX);
        for _ in 0..10_000 {
            self.compose(1);
            if self.composed.is_empty() {
                return;
            }
            self.send(usize::MAX);
        }
        panic!("it sends without end");
    }

    /// A PDU that goes to the controller.
    fn check(&mut self, head: &[u8], transmit: &Transmit) {
        let word = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let dword = |at: usize| u32::from(word(at)) | u32::from(word(at + 2)) << 16;
        let data = transmit.payload.map_or(0, |place| place.len);
        let tail = if transmit.data_digest { 4 } else { 0 };
        let plen = crate::bytes_len(head) + data + tail;
        assert_eq!(dword(4), plen, "PLEN of {head:02x?}");
        match head[0] {
            pdu_type::IC_REQ => assert_eq!(head.len(), 128),
            pdu_type::H2C_TERM_REQ => assert!(self.ended, "a TermReq for nothing"),
            pdu_type::CAPSULE_CMD => {
                let sqe: [u8; 64] = head[8..72].try_into().expect("64 bytes");
                let len = u32::from_le_bytes(sqe[32..36].try_into().expect("4 bytes"));
                let inside = sqe[39] == 0x01;
                assert_eq!(data, if inside { len } else { 0 });
                if self.wire.len() == REMEMBERED {
                    let at = self.wire.iter().position(|it| it.answered);
                    self.wire.remove(at.unwrap_or(0));
                }
                let slot = transmit.slot.expect("a command's").index();
                let pending = self.buffers.0[slot].as_mut().expect("is under way");
                pending.cid = Some(u16::from_le_bytes([sqe[2], sqe[3]]));
                self.wire.push(OnWire {
                    sqe,
                    len,
                    moved: data,
                    asked: 0,
                    ttag: 0,
                    answered: false,
                });
            }
            pdu_type::H2C_DATA => {
                let (cid, ttag, offset, len) = (word(8), word(10), dword(12), dword(16));
                assert_eq!((len, len > 0), (data, true));
                let asked = self.wire.iter_mut().rev().find(|it| it.cid() == cid);
                if let Some(command) = asked
                    && !self.wild
                    && !self.ended
                {
                    let right = ttag == command.ttag && offset + len <= command.asked;
                    assert!(right, "{command:?} did not ask for {len} at {offset}");
                    command.moved = offset + len;
                }
            }
            other => panic!("a host sends PDU type {other:#x}"),
        }
    }

    /// When all commands have ended, as many fit again.
    fn end(&mut self) {
        self.output();
        let live = !self.ended && !self.wild && self.log.iter().any(|line| line == "ready");
        if !live || self.queue.need() != Need::Scratch(8) {
            return;
        }
        (self.machine, self.spoil) = (None, None);
        for _ in 0..2 {
            for _ in 0..self.free() {
                self.submit(&Sqe::new(0, Cid(0)), Data::Nothing, None);
            }
            assert_eq!(self.free(), 0);
            self.submit(&Sqe::new(0, Cid(0)), Data::Nothing, None);
            self.wire.clear();
            self.output();
            let new: Vec<u16> = self.wire.iter().map(OnWire::cid).collect();
            for cid in &new {
                self.respond(*cid, 0, 0);
            }
            let ended = self.depth - self.buffers.0.iter().flatten().count();
            assert!(ended >= new.len().min(self.depth), "{ended} of {new:?}");
        }
    }
}

fn transfer(cid: u16, ttag: u16, offset: u32, len: u32) -> [u8; 16] {
    let mut body = [0; 16];
    body[0..2].copy_from_slice(&cid.to_le_bytes());
    body[2..4].copy_from_slice(&ttag.to_le_bytes());
    body[4..8].copy_from_slice(&offset.to_le_bytes());
    body[8..12].copy_from_slice(&len.to_le_bytes());
    body
}
