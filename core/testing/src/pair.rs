//! Both ends of connections in one thread and in virtual time: hosts' queues
//! against the controllers of a [`Rig`], over wires that cut bytes into pieces,
//! delay them, lose them when they are cut, and pass a [`Tap`] that may change them.
use std::collections::VecDeque;
use std::time::Duration;

use nvmf_core::host::Data;
use nvmf_core::tcp::host::{self, Event, HostQueue, Transmit};
use nvmf_core::tcp::rx::Need;
use nvmf_core::tcp::target;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::sqe::Sqe;
use nvmf_core::{DataBuffers, Place, SlotId};

use crate::crc::crc32c;
use crate::ends::{Happened, Payload, Seen, Way};
use crate::over_tcp::Choices;
use crate::rig::{Delivery, Rig};
use crate::target::Heap;

/// Rounds after which both ends must have nothing more to say to each other.
const MAX_ROUNDS: usize = 100_000;

/// How bytes travel.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// To the target.
    pub to_target: Delivery,
    /// To the host.
    pub to_host: Delivery,
    /// How long they take, each way.
    pub latency: Duration,
}

impl How {
    /// Whole PDUs, at once.
    pub const PLAIN: Self = Self {
        to_target: Delivery::Whole,
        to_host: Delivery::Whole,
        latency: Duration::ZERO,
    };
}

/// A PDU that passes the tap, digests and padding included.
#[derive(Debug)]
pub struct Passing<'a> {
    /// Of which connection.
    pub link: usize,
    /// Which way.
    pub way: Way,
    /// Bytes that went this way before it.
    pub at: u64,
    /// What arrives of it: emptied, it is lost; appended to, more arrives.
    pub bytes: &'a mut Vec<u8>,
    /// How much longer than others it takes, as does all that follows it.
    pub delay: &'a mut Duration,
}

/// Sees every PDU, and may do anything to it.
pub type Tap = Box<dyn FnMut(&mut Passing<'_>)>;

/// Hosts and a target.
pub struct Pair {
    /// The target's end, whose connections have the indices that those here have.
    pub rig: Rig<Heap>,
    /// Who listens, if somebody does.
    pub tap: Option<Tap>,
    /// What connections have that are made without saying.
    pub(crate) choices: Choices,
    links: Vec<Link>,
    seen: VecDeque<Seen>,
    cut_next: Option<(usize, Way, u64)>,
}

struct Link {
    machine: HostQueue<Heap>,
    buffers: Buffers,
    how: How,
    open: bool,
    to_target: Wire,
    to_host: Wire,
    /// PDUs of the host that were composed and not yet sent.
    composed: VecDeque<(Vec<u8>, Transmit)>,
}

/// One way of a connection.
#[derive(Debug)]
struct Wire {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    /// The sender has closed its end.
    ended: bool,
    /// PDUs that may be sent: others are composed, and wait.
    room: usize,
    /// Bytes that were sent, and that arrived.
    sent: u64,
    arrived: u64,
    /// The connection is cut when so many have arrived.
    cut_at: Option<u64>,
    last_due: Instant,
}

impl Wire {
    const fn new() -> Self {
        Self {
            pieces: VecDeque::new(),
            ended: false,
            room: usize::MAX,
            sent: 0,
            arrived: 0,
            cut_at: None,
            last_due: Instant::ZERO,
        }
    }

    fn due(&self, now: Instant) -> bool {
        self.pieces.front().is_some_and(|(due, _)| *due <= now)
    }
}

/// By slot.
#[derive(Default)]
struct Buffers(Vec<Option<Command>>);

struct Command {
    tag: u64,
    bytes: Vec<u8>,
    reads: bool,
}

impl Buffers {
    fn get(&self, place: Place) -> &[u8] {
        let command = self.0[place.slot.index()].as_ref();
        let command = command.expect("a command has this slot");
        &command.bytes[place.offset as usize..][..place.len as usize]
    }
}

impl DataBuffers for Buffers {
    fn reserve(&mut self, _: SlotId, _: u32) -> bool {
        unreachable!("a host's buffers are there before the command")
    }

    fn place(&mut self, place: Place) -> &mut [u8] {
        let command = self.0[place.slot.index()].as_mut();
        let command = command.expect("a command has this slot");
        &mut command.bytes[place.offset as usize..][..place.len as usize]
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}

impl Pair {
    /// Without connections.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rig: Rig::new(),
            tap: None,
            choices: Choices::default(),
            links: Vec::new(),
            seen: VecDeque::new(),
            cut_next: None,
        }
    }

    /// Virtual time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.rig.target.now
    }

    /// A host connects; returns the connection's index. Its queue takes one
    /// command at a time until [`Pair::configure`].
    pub fn connect(&mut self, host: &host::Config, target: &target::Config, how: How) -> usize {
        let now = self.now();
        self.links.push(Link {
            machine: HostQueue::new(host, now),
            buffers: Buffers::default(),
            how,
            open: true,
            to_target: Wire::new(),
            to_host: Wire::new(),
            composed: VecDeque::new(),
        });
        let link = self.rig.accept(target);
        if let Some((_, way, bytes)) = self.cut_next.take_if(|it| it.0 == link) {
            self.cut_at(link, way, bytes);
        }
        link
    }

    /// See [`HostQueue::configure`].
    pub fn configure(&mut self, link: usize, commands: usize, inline_data: u32) {
        self.links[link].machine.configure(commands, inline_data);
    }

    /// The host's machine of a connection.
    #[must_use]
    pub fn host(&self, link: usize) -> &HostQueue<Heap> {
        &self.links[link].machine
    }

    /// Whether the host's end is open.
    #[must_use]
    pub fn is_open(&self, link: usize) -> bool {
        self.links[link].open
    }

    /// Submits a command; returns whether there was room.
    pub fn submit(&mut self, link: usize, sqe: &Sqe, payload: Payload, tag: u64) -> bool {
        let link = &mut self.links[link];
        assert!(link.open, "the connection is closed");
        let reads = matches!(payload, Payload::Read(_));
        let (data, bytes) = match payload {
            Payload::Nothing => (Data::Nothing, Vec::new()),
            Payload::Read(len) => (Data::ToHost(len), vec![0xEE; len as usize]),
            Payload::Write(bytes) => (Data::FromHost(crate::bytes_len(&bytes)), bytes),
        };
        let Some(slot) = link.machine.submit(sqe, data) else {
            return false;
        };
        let commands = &mut link.buffers.0;
        if commands.len() <= slot.index() {
            commands.resize_with(slot.index() + 1, || None);
        }
        let before = commands[slot.index()].replace(Command { tag, bytes, reads });
        assert!(before.is_none(), "the slot is another command's");
        true
    }

    /// Tags of the commands that were submitted and did not complete.
    pub fn outstanding(&self, link: usize) -> impl Iterator<Item = u64> {
        let commands = self.links[link].buffers.0.iter().flatten();
        commands.map(|command| command.tag)
    }

    /// What hosts saw, in order.
    pub fn poll_seen(&mut self) -> Option<Seen> {
        self.seen.pop_front()
    }

    /// All that hosts saw of a connection; the rest stays.
    pub fn seen_of(&mut self, link: usize) -> Vec<Happened> {
        let all = std::mem::take(&mut self.seen);
        let (of, rest) = all.into_iter().partition(|seen| seen.link == link);
        self.seen = rest;
        VecDeque::into_iter(of).map(|seen| seen.happened).collect()
    }

    /// So many PDUs are sent one way; others are composed, and wait for room.
    /// [`usize::MAX`] is no limit, as there is none at first.
    pub fn make_room(&mut self, link: usize, way: Way, pdus: usize) {
        self.wire(link, way).room = pdus;
    }

    /// Bytes that arrived.
    #[must_use]
    pub fn arrived(&self, link: usize, way: Way) -> u64 {
        match way {
            Way::ToTarget => self.links[link].to_target.arrived,
            Way::ToHost => self.links[link].to_host.arrived,
        }
    }

    /// The connection is gone at once: what is on its way is lost, and both ends know.
    pub fn cut(&mut self, link: usize) {
        let it = &mut self.links[link];
        it.to_target.pieces.clear();
        it.to_host.pieces.clear();
        self.host_ends(link, Happened::Closed);
        self.rig.close(link);
    }

    /// How many connections there were.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Like [`Pair::cut_at`], of a connection that is still to be made.
    pub fn cut_next_at(&mut self, link: usize, way: Way, bytes: u64) {
        self.cut_next = Some((link, way, bytes));
    }

    /// The connection is gone as soon as `bytes` have arrived one way.
    pub fn cut_at(&mut self, link: usize, way: Way, bytes: u64) {
        self.wire(link, way).cut_at = Some(bytes);
    }

    /// The host closes: what it sent arrives, and what comes is lost.
    pub fn close(&mut self, link: usize) {
        let it = &mut self.links[link];
        it.open = false;
        it.composed.clear();
        it.to_target.ended = true;
        it.to_host.pieces.clear();
    }

    fn wire(&mut self, link: usize, way: Way) -> &mut Wire {
        match way {
            Way::ToTarget => &mut self.links[link].to_target,
            Way::ToHost => &mut self.links[link].to_host,
        }
    }

    fn sees(&mut self, link: usize, happened: Happened) {
        let when = self.now();
        self.seen.push_back(Seen {
            link,
            when,
            happened,
        });
    }

    /// The host's end of the connection ends, for this reason.
    fn host_ends(&mut self, link: usize, why: Happened) {
        if self.links[link].open {
            self.close(link);
            self.sees(link, why);
        }
    }

    /// Time passes, and all happens that is to happen meanwhile, each thing at its moment.
    pub fn run(&mut self, by: Duration) {
        let end = self.now().after(by);
        for _ in 0..MAX_ROUNDS {
            self.settle();
            let next = self.deadline().filter(|next| *next <= end);
            let wait = next.unwrap_or(end).since(self.now());
            self.rig.advance(wait);
            self.host_timeouts();
            if next.is_none() {
                return;
            }
        }
        panic!("it never rests");
    }

    /// Until nothing is on its way.
    pub fn flow(&mut self) {
        for _ in 0..MAX_ROUNDS {
            self.settle();
            let wires = self
                .links
                .iter()
                .flat_map(|it| [&it.to_target, &it.to_host]);
            let next = wires.filter_map(|wire| wire.pieces.front()).map(|it| it.0);
            match next.min() {
                Some(next) => self.run(next.since(self.now())),
                None => return,
            }
        }
        panic!("it never rests");
    }

    /// When something is to happen.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let mut next = None;
        for (at, link) in self.links.iter().enumerate() {
            for wire in [&link.to_target, &link.to_host] {
                next = sooner(next, wire.pieces.front().map(|it| it.0));
            }
            if link.open {
                next = sooner(next, link.machine.poll_timeout());
            }
            if self.rig.is_open(at) {
                next = sooner(next, self.rig.deadline(at));
            }
        }
        next
    }

    /// Everything that is to happen now.
    fn settle(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let mut moved = false;
            for link in 0..self.links.len() {
                moved |= self.host_output(link);
                moved |= self.arrive_at_target(link);
                moved |= self.target_output(link);
                moved |= self.arrive_at_host(link);
            }
            if !moved {
                return;
            }
        }
        panic!("it never settles");
    }

    fn host_timeouts(&mut self) {
        let now = self.now();
        for at in 0..self.links.len() {
            let link = &self.links[at];
            if link.open && link.machine.timed_out(now) {
                self.host_ends(at, Happened::Late);
            }
        }
    }

    fn host_output(&mut self, at: usize) -> bool {
        let mut moved = false;
        while self.links[at].open {
            let link = &mut self.links[at];
            let mut head = [0; MAX_HEAD];
            let wanted = link.machine.wants_transmit();
            if let Some(transmit) = link.machine.poll_transmit(&mut head) {
                assert!(wanted, "transmits without wanting to");
                let head = head[..transmit.head_len].to_vec();
                link.composed.push_back((head, transmit));
            } else {
                assert!(!wanted, "wants to transmit, and does not");
                if link.to_target.room == 0 || link.composed.is_empty() {
                    break;
                }
            }
            moved = true;
            if link.to_target.room > 0 {
                self.host_sends(at);
            }
        }
        moved
    }

    /// One PDU of the host's.
    fn host_sends(&mut self, at: usize) {
        let link = &mut self.links[at];
        let Some((mut pdu, transmit)) = link.composed.pop_front() else {
            return;
        };
        if let Some(place) = transmit.payload {
            let payload = link.buffers.get(place);
            pdu.extend_from_slice(payload);
            if transmit.data_digest {
                pdu.extend(crc32c(payload).to_le_bytes());
            }
        }
        let event = transmit.slot.and_then(|slot| link.machine.sent(slot));
        self.send(at, Way::ToTarget, pdu);
        self.event(at, event);
    }

    fn target_output(&mut self, at: usize) -> bool {
        if !self.rig.is_open(at) {
            let ends = !self.links[at].to_host.ended;
            self.links[at].to_host.ended = true;
            return ends;
        }
        let mut moved = false;
        loop {
            if self.links[at].to_host.room == 0 {
                moved |= self.rig.compose(at, usize::MAX);
                break;
            }
            let pdu = self.rig.send(at, 1);
            if !pdu.is_empty() {
                moved = true;
                self.send(at, Way::ToHost, pdu);
            } else if !self.rig.compose(at, 1) {
                break;
            }
        }
        self.rig.close_if_asked(at);
        moved || !self.rig.is_open(at)
    }

    /// A PDU passes the tap, and is on its way.
    fn send(&mut self, at: usize, way: Way, mut pdu: Vec<u8>) {
        let now = self.now();
        let len = pdu.len() as u64;
        let before = self.wire(at, way).sent;
        let mut delay = Duration::ZERO;
        if let Some(tap) = &mut self.tap {
            tap(&mut Passing {
                link: at,
                way,
                at: before,
                bytes: &mut pdu,
                delay: &mut delay,
            });
        }
        let due = now.after(self.links[at].how.latency + delay);
        let wire = self.wire(at, way);
        if wire.room < usize::MAX {
            wire.room = wire.room.saturating_sub(1);
        }
        wire.sent += len;
        wire.last_due = wire.last_due.max(due);
        if !pdu.is_empty() {
            wire.pieces.push_back((wire.last_due, pdu));
        }
    }

    /// The bytes that are due, and whether the connection is cut behind them.
    fn take_due(&mut self, at: usize, way: Way) -> Option<(Vec<u8>, bool)> {
        let now = self.now();
        let wire = self.wire(at, way);
        let cut_now = wire.cut_at.is_some_and(|cut_at| cut_at <= wire.arrived);
        if !wire.due(now) && !cut_now {
            return None;
        }
        let mut bytes = match wire.pieces.pop_front() {
            Some((_, bytes)) if !cut_now => bytes,
            _ => Vec::new(),
        };
        let end = wire.arrived + bytes.len() as u64;
        let cut = match wire.cut_at {
            Some(cut_at) if end >= cut_at => {
                let kept = cut_at.saturating_sub(wire.arrived);
                bytes.truncate(usize::try_from(kept).expect("fits memory"));
                wire.cut_at = None;
                true
            }
            _ => false,
        };
        wire.arrived += bytes.len() as u64;
        Some((bytes, cut))
    }

    fn arrive_at_target(&mut self, at: usize) -> bool {
        let mut moved = false;
        while let Some((bytes, cut)) = self.take_due(at, Way::ToTarget) {
            moved = true;
            self.rig.input(at, &bytes, self.links[at].how.to_target);
            if cut {
                self.cut(at);
            }
        }
        let wire = &self.links[at].to_target;
        if wire.ended && wire.pieces.is_empty() && self.rig.is_open(at) {
            self.rig.close(at);
            moved = true;
        }
        moved
    }

    fn arrive_at_host(&mut self, at: usize) -> bool {
        let mut moved = false;
        while let Some((bytes, cut)) = self.take_due(at, Way::ToHost) {
            moved = true;
            self.host_input(at, &bytes);
            if cut {
                self.cut(at);
            }
        }
        let link = &self.links[at];
        if link.open && link.to_host.ended && link.to_host.pieces.is_empty() {
            self.host_ends(at, Happened::Closed);
            moved = true;
        }
        moved
    }

    fn host_input(&mut self, at: usize, bytes: &[u8]) {
        let (size, in_place) = match self.links[at].how.to_host {
            Delivery::Whole => (bytes.len(), false),
            Delivery::Pieces(size) => (size, false),
            Delivery::InPlace(size) => (size, true),
        };
        for mut piece in bytes.chunks(size.max(1)) {
            while !piece.is_empty() && self.links[at].open {
                let now = self.now();
                let link = &mut self.links[at];
                let need = link.machine.need();
                let (used, event) = if let Need::Payload(place) = need
                    && in_place
                {
                    let len = crate::bytes_len(piece).min(place.len);
                    let place = Place { len, ..place };
                    let (data, _) = piece.split_at(len as usize);
                    link.buffers.place(place).copy_from_slice(data);
                    (data.len(), link.machine.placed(data))
                } else {
                    // Up to where data begins, at most.
                    let limit = match need {
                        Need::Scratch(len) if in_place => len.min(piece.len()),
                        Need::Skip(_) if in_place => 1,
                        _ => piece.len(),
                    };
                    match link
                        .machine
                        .handle_input(&piece[..limit], &mut link.buffers, now)
                    {
                        Ok(taken) => taken,
                        Err(fatal) => {
                            // It has a TermReq to send, and then it closes.
                            self.host_output(at);
                            self.host_ends(at, Happened::Broken(fatal.to_string()));
                            return;
                        }
                    }
                };
                piece = &piece[used..];
                self.event(at, event);
            }
        }
    }

    fn event(&mut self, at: usize, event: Option<Event>) {
        match event {
            None => {}
            Some(Event::Ready) => self.sees(at, Happened::Ready),
            Some(Event::Terminated(fatal)) => {
                self.host_ends(at, Happened::Terminated(fatal.to_string()))
            }
            Some(Event::Completed {
                slot,
                cqe,
                received,
                ..
            }) => {
                let command = self.links[at].buffers.0[slot.index()].take();
                let mut command = command.expect("completes once");
                if command.reads {
                    command.bytes.truncate(received as usize);
                }
                self.sees(
                    at,
                    Happened::Completed {
                        tag: command.tag,
                        cqe,
                        data: command.bytes,
                    },
                );
            }
        }
    }
}
