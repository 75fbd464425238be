//! Random operations of a host, several at a time and on overlapping blocks, over
//! connections that are slow, cut and faulty, against a [`Disk`]: everything is
//! chosen by a seed.
use std::collections::BTreeMap;
use std::time::Duration;

use nvmf_core::block::MediaError;
use nvmf_core::host::queue::Connect;
use nvmf_core::host::{Request, command};
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cntlid, Nsid, Qid};
use nvmf_core::wire::property::Property;
use nvmf_core::wire::range::DsmRange;
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use nvmf_core::wire::status::Status;
use zerocopy::IntoBytes;

use crate::association::identity;
use crate::bytes::{CC_ENABLE, SUBNQN};
use crate::disk::{Access, Content, Disk};
use crate::ends::{Ends, Happened, Payload, Wanted, Way};
use crate::random::Random;
use crate::target::Device;

/// The namespace that is lent.
const LENT: Nsid = Nsid(2);
/// I/O queues.
const QUEUES: u16 = 2;
/// Controllers that the target has room for.
const CONTROLLERS: usize = 4;
/// Tag of the commands that make a queue.
const OWN: u64 = u64::MAX;
/// Rounds after which everything held up must have gone on.
const MAX_ROUNDS: usize = 1000;

/// What happened in a sequence, for a look at whether it was worth it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Commands that completed.
    pub completed: usize,
    /// Commands whose connection ended before they did.
    pub in_doubt: usize,
    /// Connections that ended.
    pub ended: usize,
    /// Data digests that were found to be wrong.
    pub corrupt: usize,
    /// Commands that were under way at once, at most.
    pub deepest: usize,
}

impl Tally {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            completed: self.completed + other.completed,
            in_doubt: self.in_doubt + other.in_doubt,
            ended: self.ended + other.ended,
            corrupt: self.corrupt + other.corrupt,
            deepest: self.deepest.max(other.deepest),
        }
    }
}

/// Runs the sequence that `seed` chooses. With `trace` it says what it does.
///
/// # Panics
/// When the namespace is not what the commands made of it, or something is left over.
pub fn sequence<E: Ends>(seed: u64, trace: bool) -> Tally {
    let mut world = World::<E>::new(seed, trace);
    world.connect_all();
    for _ in 0..40 {
        world.step();
    }
    world.end()
}

struct World<E> {
    pair: E,
    random: Random,
    trace: bool,
    setup: Setup,
    admin: usize,
    cntlid: Cntlid,
    /// The connections of the I/O queues, by QID - 1.
    queues: Vec<usize>,
    disk: Disk,
    commands: BTreeMap<u64, Command>,
    /// Of connections that ended: what they may still do to the namespace.
    in_doubt: Vec<(usize, Access)>,
    next_tag: u64,
    next_content: Content,
    /// Device operations that were made to fail.
    faults: usize,
    tally: Tally,
}

/// What holds for all connections of a sequence.
struct Setup {
    nsid: Nsid,
    entries: u16,
    sq_flow_control: bool,
}

#[derive(Clone, Debug)]
struct Command {
    kind: Kind,
    link: usize,
    /// The first block.
    from: usize,
    count: usize,
    access: Access,
}

#[derive(Clone, Debug)]
enum Kind {
    Read,
    Write,
    /// What it compares with.
    Compare(Vec<Content>),
    /// Flush or Verify.
    Idle,
    /// It is not possible: this is the answer.
    Refused(Status),
}

impl<E: Ends> World<E> {
    fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random(seed);
        let mut pair = E::chosen(&mut random);
        let (nsid, disk) = match random.below(2) {
            0 => (Nsid(1), Disk::new(128, 512)),
            _ => (LENT, Disk::new(32, 4096)),
        };
        let entries = random.one_of(&[2, 5, 9, 32]);
        pair.target().limits.inline_data = random.one_of(&[512, 4096, 8192]);
        let setup = Setup {
            nsid,
            entries,
            sq_flow_control: random.once_in(2),
        };
        Self {
            pair,
            random,
            trace,
            setup,
            admin: 0,
            cntlid: Cntlid::DYNAMIC,
            queues: Vec::new(),
            disk,
            commands: BTreeMap::new(),
            in_doubt: Vec::new(),
            next_tag: 0,
            next_content: 0,
            faults: 0,
            tally: Tally::default(),
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>9} us: {}", self.pair.now().as_micros(), what());
        }
    }

    /// A controller and its I/O queues.
    fn connect_all(&mut self) {
        self.admin = self.connect(Qid::ADMIN);
        let enable = Request::bare(command::property_set(Property::Cc, CC_ENABLE));
        let (admin, sqe) = (self.admin, enable.sqe);
        self.call(admin, &sqe, Payload::Nothing);
        self.queues = (1..=QUEUES).map(|qid| self.connect(Qid(qid))).collect();
    }

    fn connect(&mut self, qid: Qid) -> usize {
        let latency = Duration::from_micros(self.random.one_of(&[0, 0, 100, 3000]));
        let io = qid != Qid::ADMIN;
        let entries = if io { self.setup.entries } else { 32 };
        let cntlid = if io { self.cntlid } else { Cntlid::DYNAMIC };
        let wanted = Wanted {
            qid,
            cntlid,
            entries,
        };
        let link = self.pair.connect(&wanted, latency);
        self.say(|| format!("connection {link} is to be queue {}: {latency:?}", qid.0));
        let connect = Connect {
            qid,
            entries: entries.into(),
            kato_ms: 0,
            sq_flow_control: self.setup.sq_flow_control,
        };
        let subnqn = SUBNQN.parse().expect("is a name");
        let data = Connect::data(&identity(), &subnqn, cntlid);
        let data = Payload::Write(data.as_bytes().to_vec());
        // A transport that fetches it needs a buffer for that.
        let buffers = &mut self.pair.target().transfer_buffers;
        let scarce = std::mem::replace(buffers, usize::MAX);
        let cqe = self.call(link, &connect.request().sqe, data);
        self.pair.target().transfer_buffers = scarce;
        let connected = connect.completed(&cqe).expect("is let in");
        if io {
            assert_eq!(connected.cntlid, self.cntlid);
            let inline_data = self.pair.target().limits.inline_data;
            let depth = usize::from(self.setup.entries) - 1;
            self.pair.configure(link, depth, inline_data);
        }
        self.cntlid = connected.cntlid;
        link
    }

    /// A command of the bring-up, to its end.
    fn call(&mut self, link: usize, sqe: &Sqe, payload: Payload) -> Cqe {
        assert!(self.pair.submit(link, sqe, payload, OWN));
        self.pair.flow();
        let mut answer = None;
        while let Some(seen) = self.pair.poll_seen() {
            match seen.happened {
                Happened::Completed { tag: OWN, cqe, .. } => answer = Some(cqe),
                happened => self.happened(seen.link, happened),
            }
        }
        answer.expect("is answered")
    }

    fn step(&mut self) {
        match self.random.below(32) {
            0..16 => self.submit(),
            16..23 => {
                let wait = self.random.below(4000) as u64;
                self.pair.run(Duration::from_micros(wait));
            }
            23..26 => self.complete(),
            26 => {
                let device = [Device::Immediate, Device::Delayed, Device::Busy];
                self.pair.target().device = self.random.one_of(&device);
                self.pair.target().transfer_buffers =
                    self.random.one_of(&[0, 1, 3, usize::MAX, usize::MAX]);
            }
            27 => {
                let link = self.any_queue();
                self.pair.retry(link);
            }
            28 | 29 => {
                let (link, way) = (self.any_queue(), self.any_way());
                let room = self.random.one_of(&[0, 1, 2, 5, usize::MAX, usize::MAX]);
                self.say(|| format!("connection {link}, {way:?}: room for {room}"));
                self.pair.make_room(link, way, room);
            }
            30 => self.spoil(),
            _ => self.cut(),
        }
        self.observe();
        self.reconnect();
    }

    fn any_queue(&mut self) -> usize {
        self.random.one_of(&self.queues)
    }

    fn any_way(&mut self) -> Way {
        self.random.one_of(&[Way::ToTarget, Way::ToHost])
    }

    /// A byte is to be wrong.
    fn spoil(&mut self) {
        let (link, way) = (self.any_queue(), self.any_way());
        let (at, change) = (self.random.below(1 << 16), self.random.byte() | 1);
        self.pair.spoil(link, way, at, change);
    }

    /// A connection is cut: now, in a while, or the controller's.
    fn cut(&mut self) {
        let link = self.any_queue();
        match self.random.below(8) {
            0 => self.pair.cut(self.admin),
            1 => self.pair.close(link),
            2..5 => self.pair.cut(link),
            _ => {
                let way = self.any_way();
                let more = E::units(self.random.below(6000) as u64);
                let at = self.pair.arrived(link, way) + more;
                self.pair.cut_at(link, way, at);
                self.say(|| format!("connection {link} is to be cut, {way:?}, at {at}"));
            }
        }
    }

    /// A device ends one of the operations that it keeps.
    fn complete(&mut self) {
        let Some(last) = self.pair.target().pending().checked_sub(1) else {
            return;
        };
        let index = self.random.below(last + 1);
        let fault = self.random.once_in(16).then_some(MediaError::Write);
        self.faults += usize::from(fault.is_some());
        self.say(|| format!("the device ends operation {index} of {last}: {fault:?}"));
        self.pair.complete(index, fault);
    }

    /// Blocks to act on: often the same.
    fn range(&mut self) -> (usize, usize) {
        let most = self.pair.target().limits.transfer as usize / self.disk.block();
        let area = if self.random.once_in(4) {
            self.disk.blocks()
        } else {
            12
        };
        let from = self.random.below(area);
        let most = most.min(self.disk.blocks() - from);
        let most = if self.random.once_in(8) {
            most
        } else {
            most.min(4)
        };
        (from, 1 + self.random.below(most))
    }

    fn bytes(&self, from: usize, contents: &[Content]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(contents.len() * self.disk.block());
        for (block, content) in (from..).zip(contents) {
            self.disk.fill(block, *content, &mut bytes);
        }
        bytes
    }

    fn submit(&mut self) {
        let link = self.any_queue();
        if !self.pair.is_open(link) {
            return;
        }
        if self.pair.outstanding(link) + 1 >= self.setup.entries.into() {
            return;
        }
        let (from, count) = self.range();
        let blocks = from..from + count;
        let len = u32::try_from(count * self.disk.block()).expect("a few");
        let nsid = self.setup.nsid;
        let sqe = |opcode| {
            let count = u32::try_from(count).expect("a few");
            command::blocks(opcode, nsid, from as u64, count)
        };
        self.next_content += 1;
        let content = self.next_content;
        let (sqe, payload, kind, access) = match self.random.below(16) {
            0..5 => {
                let bytes = self.bytes(from, &vec![content; count]);
                let access = self.disk.write(blocks, content);
                let payload = Payload::Write(bytes);
                (sqe(IoOpcode::Write), payload, Kind::Write, access)
            }
            5..9 => {
                let access = self.disk.read();
                (sqe(IoOpcode::Read), Payload::Read(len), Kind::Read, access)
            }
            9 => {
                let access = self.disk.write(blocks, 0);
                let sqe = sqe(IoOpcode::WriteZeroes);
                (sqe, Payload::Nothing, Kind::Write, access)
            }
            10 => {
                // Every second block.
                let ranges: Vec<_> = blocks.step_by(2).collect();
                let data: Vec<_> = ranges
                    .iter()
                    .map(|at| DsmRange::new(*at as u64, 1))
                    .collect();
                let payload = Payload::Write(data.as_bytes().to_vec());
                let sqe = command::deallocate(nsid, u16::try_from(ranges.len()).expect("a few"));
                let access = self.disk.write(ranges, 0);
                (sqe, payload, Kind::Write, access)
            }
            11 | 12 => {
                let access = self.disk.read();
                let mut with: Vec<Content> = blocks
                    .map(|block| self.disk.visible(&access, block).last().unwrap_or(0))
                    .collect();
                if self.random.once_in(3) {
                    let at = self.random.below(count);
                    with[at] = content;
                }
                let payload = Payload::Write(self.bytes(from, &with));
                (sqe(IoOpcode::Compare), payload, Kind::Compare(with), access)
            }
            13 => {
                let access = self.disk.read();
                let sqe = sqe(IoOpcode::Verify);
                (sqe, Payload::Nothing, Kind::Idle, access)
            }
            14 => {
                let nsid = if self.random.once_in(2) {
                    nsid
                } else {
                    Nsid::ALL
                };
                let access = self.disk.read();
                (command::flush(nsid), Payload::Nothing, Kind::Idle, access)
            }
            _ => {
                // The last block there is, and one that there is not.
                let last = self.disk.blocks() as u64 - 1;
                let bytes = vec![0xAB; 2 * self.disk.block()];
                let access = self.disk.read();
                let sqe = command::blocks(IoOpcode::Write, nsid, last, 2);
                let kind = Kind::Refused(Status::LBA_OUT_OF_RANGE);
                (sqe, Payload::Write(bytes), kind, access)
            }
        };
        self.next_tag += 1;
        let tag = self.next_tag;
        self.say(|| format!("{tag} on {link}: {sqe}, {kind:?}, content {content}"));
        assert!(self.pair.submit(link, &sqe, payload, tag), "there is room");
        let command = Command {
            kind,
            link,
            from,
            count,
            access,
        };
        self.commands.insert(tag, command);
        self.tally.deepest = self.tally.deepest.max(self.commands.len());
    }

    /// What hosts saw is held against the model.
    fn observe(&mut self) {
        while let Some(seen) = self.pair.poll_seen() {
            self.happened(seen.link, seen.happened);
        }
        let pair = &self.pair;
        let closed = |link: usize| pair.is_drained(link) && !pair.is_open_at_target(link);
        let over = self.in_doubt.extract_if(.., |(link, _)| closed(*link));
        for (_, access) in over {
            self.disk.perhaps_done(&access);
        }
    }

    fn happened(&mut self, link: usize, happened: Happened) {
        match happened {
            Happened::Ready => {}
            Happened::Completed { tag, cqe, data } => {
                let command = self.commands.remove(&tag).expect("completes once");
                self.say(|| format!("{tag} ended: {}", cqe.status()));
                assert_eq!(command.link, link);
                self.tally.completed += 1;
                if let Err(fault) = self.completed(&command, &cqe, &data) {
                    panic!("command {tag}, {command:?}: {fault}");
                }
            }
            why => self.ended(link, &why),
        }
    }

    /// A connection is gone, and what was under way on it is in doubt.
    fn ended(&mut self, link: usize, why: &Happened) {
        self.say(|| format!("connection {link} ended: {why:?}"));
        let innocent = matches!(why, Happened::Closed);
        assert!(innocent || self.pair.spoilt() > 0, "{link}: {why:?}");
        self.tally.ended += 1;
    }

    fn completed(&mut self, command: &Command, cqe: &Cqe, data: &[u8]) -> Result<(), String> {
        let status = cqe.status();
        let blocks = command.from..command.from + command.count;
        let access = &command.access;
        if status.is(Status::TRANSIENT_TRANSPORT_ERROR) {
            self.tally.corrupt += 1;
            if self.tally.corrupt > self.pair.spoilt() {
                return Err("a digest was wrong, and nobody made it so".into());
            }
            self.disk.not_done(access);
            return Ok(());
        }
        let differs =
            matches!(command.kind, Kind::Compare(_)) && status.is(Status::COMPARE_FAILURE);
        if let Kind::Refused(expected) = command.kind {
            return status.is(expected).then_some(()).ok_or(status.to_string());
        }
        if !status.is_success() && !differs {
            self.disk.perhaps_done(access);
            self.faults = self.faults.checked_sub(1).ok_or(status.to_string())?;
            return Ok(());
        }
        match &command.kind {
            Kind::Write => self.disk.done(access),
            Kind::Read => {
                if data.len() != command.count * self.disk.block() {
                    return Err(format!("{} bytes came", data.len()));
                }
                for (block, bytes) in blocks.zip(data.chunks(self.disk.block())) {
                    self.saw(access, block, bytes)?;
                }
            }
            Kind::Compare(with) if differs => {
                let could = blocks
                    .zip(with)
                    .any(|(block, with)| self.disk.visible(access, block).any(|it| it != *with));
                return could.then_some(()).ok_or("all was the same".into());
            }
            Kind::Compare(with) => {
                for (block, with) in blocks.zip(with) {
                    self.disk.saw(access, block, *with)?;
                }
            }
            Kind::Idle | Kind::Refused(_) => {}
        }
        Ok(())
    }

    /// A command read these bytes.
    fn saw(&mut self, access: &Access, block: usize, bytes: &[u8]) -> Result<(), String> {
        let contents = self.disk.contents(block, bytes)?;
        if let [content] = contents[..] {
            return self.disk.saw(access, block, content);
        }
        // What is lent is sent as it is at that time, and writes may come between
        // (docs/deviations.md).
        let lent = self.setup.nsid == LENT && self.pair.tears();
        let could = |content: &Content| self.disk.allows(access, block, *content);
        if lent && contents.iter().all(could) {
            return Ok(());
        }
        Err(format!("block {block} is some of each of {contents:?}"))
    }

    /// Commands of connections that are gone are in doubt; the queues are made again.
    fn reconnect(&mut self) {
        if !self.pair.is_open(self.admin) {
            // The controller is gone, and its queues with it, when all is sent.
            self.make_room();
            self.pair.flow();
            self.observe();
            // Over RDMA a host is told when devices are done; this one does not wait for it.
            for link in self.queues.clone() {
                assert!(
                    !self.pair.is_open_at_target(link),
                    "{link} has no controller"
                );
                if self.pair.is_open(link) {
                    self.pair.close(link);
                }
            }
            self.pair.flow();
        }
        let pair = &self.pair;
        let lost = self
            .commands
            .extract_if(.., |_, command| !pair.is_open(command.link));
        let lost = lost.map(|(_, command)| (command.link, command.access));
        let before = self.in_doubt.len();
        self.in_doubt.extend(lost);
        self.tally.in_doubt += self.in_doubt.len() - before;
        if !self.pair.is_open(self.admin) {
            // Those that are not drained take up room.
            if self.pair.target().controllers() < CONTROLLERS {
                self.connect_all();
            }
            return;
        }
        for at in 0..self.queues.len() {
            let link = self.queues[at];
            if !self.pair.is_open(link) {
                self.pair.flow();
                // Until then its QID is in use.
                if !self.pair.is_drained(link) {
                    continue;
                }
                let qid = u16::try_from(at + 1).expect("a few");
                self.queues[at] = self.connect(Qid(qid));
            }
        }
    }

    fn make_room(&mut self) {
        for link in &self.queues {
            self.pair.make_room(*link, Way::ToTarget, usize::MAX);
            self.pair.make_room(*link, Way::ToHost, usize::MAX);
        }
    }

    /// Everything held up goes on, and then the namespace is read.
    fn end(mut self) -> Tally {
        self.pair.stop_spoiling();
        let target = self.pair.target();
        target.device = Device::Immediate;
        target.transfer_buffers = usize::MAX;
        for _ in 0..MAX_ROUNDS {
            self.pair.complete(0, None);
            self.make_room();
            for link in self.queues.clone() {
                self.pair.cut_at(link, Way::ToTarget, u64::MAX);
                self.pair.cut_at(link, Way::ToHost, u64::MAX);
                self.pair.retry(link);
            }
            self.pair.flow();
            self.observe();
            self.reconnect();
            let up = self.queues.iter().all(|link| self.pair.is_open(*link));
            if up && self.commands.is_empty() && self.pair.target().pending() == 0 {
                break;
            }
        }
        assert!(self.commands.is_empty(), "forgotten: {:?}", self.commands);
        self.observe();
        assert!(self.in_doubt.is_empty(), "not over: {:?}", self.in_doubt);
        self.read_all();
        self.pair.close(self.admin);
        self.pair.flow();
        self.pair.assert_clean();
        self.tally
    }

    /// What the namespace holds, by way of the controller and by a look at it.
    fn read_all(&mut self) {
        let link = self.queues[0];
        let block = self.disk.block();
        let step = self.pair.target().limits.transfer as usize / block;
        for from in (0..self.disk.blocks()).step_by(step) {
            let count = step.min(self.disk.blocks() - from);
            let access = self.disk.read();
            let len = u32::try_from(count * block).expect("a few");
            let blocks = u32::try_from(count).expect("a few");
            let sqe = command::blocks(IoOpcode::Read, self.setup.nsid, from as u64, blocks);
            assert!(self.pair.submit(link, &sqe, Payload::Read(len), OWN));
            self.pair.flow();
            let [Happened::Completed { cqe, data, .. }] = &self.pair.seen_of(link)[..] else {
                panic!("the last read has no answer");
            };
            assert!(cqe.status().is_success(), "{}", cqe.status());
            let stored = self.pair.target().memory(self.setup.nsid.0);
            assert!(data[..] == stored[from * block..][..len as usize]);
            for (at, bytes) in (from..).zip(data.chunks(block)) {
                let right = self.saw(&access, at, bytes);
                if let Err(fault) = right {
                    panic!("in the end: {fault}");
                }
            }
        }
    }
}
