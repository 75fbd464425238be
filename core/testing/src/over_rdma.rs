//! [`Ends`] over RDMA: hosts' queues and a target's worker on a fabric in memory.
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use nvmf_core::block::MediaError;
use nvmf_core::host::Data;
use nvmf_core::rdma::cm::Room;
use nvmf_core::rdma::connection::CloseReason;
use nvmf_core::target::queue_pair::Close;
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::sqe::Sqe;
use nvmf_rdma::host::{Config as HostConfig, Event, Queue, RESPONSE_BUFFER, Why};
use nvmf_rdma::sim::{Address, Buffer as Memory, Fabric, LIMITS, Manager, Nic, Qp, Region};
use nvmf_rdma::target::{Config, Device, Receives, Surroundings, Target as Worker};
use nvmf_rdma::verbs::{Access, Bytes, Key, Limits, Outcome, Verbs};
use nvmf_rdma::{Buffer, Cm, Pool};

use crate::ends::{Ends, Happened, Payload, Seen, Wanted, Way};
use crate::random::Random;
use crate::rig::CONNECT_TIMEOUT;
use crate::target::{Handle, Heap, POISON, Supply, Target};

/// Where the target listens.
pub const LISTENER: Address = Address(1);
/// Rounds after which both ends must have nothing more to say to each other.
const MAX_ROUNDS: usize = 100_000;
/// Bytes of a host's buffer: more than a command moves.
const HOST_BUFFER: u32 = 1 << 15;

/// Buffers of a pool that grows.
pub struct Pooled {
    pool: Pool<Heap, Memory>,
    region: Region,
    nic: Nic,
    all: usize,
    size: u32,
}

impl Supply for Pooled {
    type Buffer = Buffer<Memory>;

    fn take(&mut self, len: u32) -> Option<Buffer<Memory>> {
        assert!(len <= self.size, "a buffer of {len} bytes");
        if self.pool.free() == 0 {
            let memory = self.nic.carve(&mut self.region, self.size);
            let rest = self.pool.add(memory.expect("as much as all need"));
            assert!(rest.is_none(), "the heap has room");
            self.all += 1;
        }
        let mut buffer = self.pool.take(len)?;
        buffer.as_mut()[..len as usize].fill(POISON);
        Some(buffer)
    }

    fn give(&mut self, buffer: Buffer<Memory>) {
        self.pool.give(buffer);
    }

    fn taken(&self) -> usize {
        self.all - self.pool.free()
    }
}

impl Surroundings<Memory> for Target<Pooled> {
    type Storage = Heap;

    fn pool(&mut self) -> &mut Pool<Heap, Memory> {
        &mut self.supply.pool
    }

    fn serving(&mut self, connection: u32) {
        self.caller = connection as usize;
    }
}

/// What RDMA has of its own.
#[derive(Clone, Copy, Debug)]
pub struct Choices {
    /// Whose receives are.
    pub receives: Receives,
    /// How many receives the worker has: its own, or for its connections.
    pub count: u32,
    /// By which key data is reached.
    pub key: Key,
    /// READs that a device has under way, and answers, at a time.
    pub reads: u8,
    /// Completions taken at a time.
    pub budget: usize,
    /// Bytes of data that may be inside a capsule, whatever the target tells hosts.
    pub inline_data: u32,
    /// How long everything takes each way, at least.
    pub latency: Duration,
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            receives: Receives::Shared,
            count: 256,
            key: Key::Window,
            reads: 16,
            budget: 16,
            inline_data: 4096,
            latency: Duration::ZERO,
        }
    }
}

/// Hosts and a target.
pub struct RdmaEnds {
    /// What connects them.
    pub fabric: Fabric,
    /// The target's connections.
    pub worker: Worker<Manager, Heap, Heap, Handle>,
    /// The target's device.
    pub nic: Nic,
    target: Target<Pooled>,
    manager: Manager,
    choices: Choices,
    host: Host,
    links: Vec<Link>,
    by_qp: HashMap<Qp, usize>,
    seen: VecDeque<Seen>,
    cut_next: Vec<(usize, Way, u64)>,
}

/// What hosts share.
struct Host {
    nic: Nic,
    manager: Manager,
    region: Region,
    free: Vec<Memory>,
    responses: Region,
}

impl Host {
    fn take(&mut self) -> Memory {
        let free = self.free.pop();
        let carve = || self.nic.carve(&mut self.region, HOST_BUFFER);
        free.or_else(carve).expect("as much as all need")
    }
}

struct Link {
    queue: Queue<Manager, Heap>,
    qp: Qp,
    connected: bool,
    open: bool,
    destroyed: bool,
    /// Commands that wait for the connection.
    early: VecDeque<(Sqe, Payload, u64)>,
    /// By a name that no other command of the connection has.
    commands: BTreeMap<u64, Command>,
    next: u64,
    depth: usize,
    inline_data: u32,
    closing: Option<CloseReason>,
    /// What is to be done at the target's end, once there is one.
    later: Vec<Later>,
}

struct Command {
    tag: u64,
    reads: bool,
    len: usize,
}

enum Later {
    Room(usize),
    Cut(u64),
}

impl RdmaEnds {
    /// With these choices.
    ///
    /// # Panics
    /// Never: there is room for everything.
    #[must_use]
    pub fn new(choices: Choices) -> Self {
        let fabric = Fabric::new();
        let limits = Limits {
            initiator_depth: choices.reads,
            responder_resources: choices.reads,
            ..LIMITS
        };
        let shared = match choices.receives {
            Receives::Shared => choices.count,
            Receives::PerConnection => 0,
        };
        let (mut nic, mut manager) = fabric.node(Limits {
            shared_receives: shared,
            ..limits
        });
        let (mut host_nic, host_manager) = fabric.node(limits);
        manager.listen(LISTENER).expect("nobody else does");
        let mut worker = Worker::new(Config {
            room: Room {
                io_queues: 4,
                admin_entries: 32,
                io_entries: 32,
            },
            receives: choices.receives,
            connect_timeout: CONNECT_TIMEOUT,
        });
        let register = |nic: &mut Nic, bytes: usize, access| {
            nic.register(vec![0; bytes], access).expect("makes sense")
        };
        let capsule = 64 + choices.inline_data;
        let mut region = register(&mut nic, (capsule * choices.count) as usize, Access::LOCAL);
        while let Some(memory) = nic.carve(&mut region, capsule) {
            assert!(worker.add_receive(&mut nic, memory).is_none());
        }
        let size = 1 << 15;
        let region = register(&mut nic, 256 * size as usize, Access::LOCAL);
        let host = Host {
            region: register(
                &mut host_nic,
                256 * HOST_BUFFER as usize,
                Access::lent_by(choices.key),
            ),
            responses: register(&mut host_nic, 1 << 20, Access::LOCAL),
            nic: host_nic,
            manager: host_manager,
            free: Vec::new(),
        };
        let supply = Pooled {
            pool: Pool::default(),
            region,
            // A second handle of the same device, to carve with.
            nic: nic.clone(),
            all: 0,
            size,
        };
        Self {
            fabric,
            worker,
            nic,
            target: Target::with(supply),
            manager,
            choices,
            host,
            links: Vec::new(),
            by_qp: HashMap::new(),
            seen: VecDeque::new(),
            cut_next: Vec::new(),
        }
    }

    /// The queue pairs of a connection: the host's and the target's, once there is one.
    #[must_use]
    pub fn queue_pairs(&self, link: usize) -> (Qp, Option<Qp>) {
        let qp = self.links[link].qp;
        (qp, self.fabric.peer(qp))
    }

    /// The host's device.
    #[must_use]
    pub fn host_nic(&self) -> &Nic {
        &self.host.nic
    }

    fn connection(&self, link: usize) -> Option<(u32, bool)> {
        let peer = self.fabric.peer(self.links[link].qp)?;
        self.worker.connection(peer)
    }

    fn sees(&mut self, link: usize, happened: Happened) {
        let when = self.now();
        self.seen.push_back(Seen {
            link,
            when,
            happened,
        });
    }

    /// The target does something; then what of that concerns others.
    fn at_target<R>(
        &mut self,
        call: impl FnOnce(
            &mut Worker<Manager, Heap, Heap, Handle>,
            Device<'_, Manager>,
            &mut Target<Pooled>,
        ) -> R,
    ) -> R {
        let device = Device {
            cm: &mut self.manager,
            verbs: &mut self.nic,
        };
        let result = call(&mut self.worker, device, &mut self.target);
        while self.target.take_changed() {
            let device = Device {
                cm: &mut self.manager,
                verbs: &mut self.nic,
            };
            self.worker.controller_changed(device, &mut self.target);
        }
        for (qp, reason) in self.worker.closing() {
            let host = self.fabric.peer(qp).and_then(|qp| self.by_qp.get(&qp));
            if let Some(at) = host {
                self.links[*at].closing.get_or_insert(reason);
            }
        }
        result
    }

    /// Everything that is to happen now.
    fn settle(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let budget = self.choices.budget;
            let taken = self.at_target(|worker, device, env| worker.poll(device, env, budget));
            let mut moved = taken > 0;
            let now = self.now();
            while let Some(completion) = self.host.nic.poll(now) {
                moved = true;
                let at = completion.tag as usize;
                let queue = &mut self.links[at].queue;
                let event = queue.completed(completion, &mut self.host.nic);
                self.event(at, event);
            }
            while let Some(event) = self.host.manager.poll(now) {
                moved = true;
                let qp = event.queue_pair().expect("hosts do not listen");
                let at = self.by_qp[&qp];
                let event = self.links[at].queue.happened(&event, &mut self.host.nic);
                self.event(at, event);
            }
            for at in 0..self.links.len() {
                moved |= self.tidy(at);
            }
            let more = self.fabric.next_deadline().is_some_and(|due| due <= now);
            if !moved && !more {
                return;
            }
        }
        panic!("it never settles");
    }

    fn event(&mut self, at: usize, event: Option<Event<Memory>>) {
        match event {
            None => {}
            Some(Event::Connected) => {
                let link = &mut self.links[at];
                link.connected = true;
                link.queue.configure(link.inline_data);
                let early = std::mem::take(&mut link.early);
                self.sees(at, Happened::Ready);
                for (sqe, payload, tag) in early {
                    assert!(self.submit(at, &sqe, payload, tag), "there is room");
                }
            }
            Some(Event::Completed { tag, cqe, buffer }) => {
                let link = &mut self.links[at];
                let command = link.commands.remove(&tag).expect("completes once");
                let mut data = Vec::new();
                if let Some(buffer) = buffer {
                    // What fails brings nothing.
                    if !command.reads || cqe.status().is_success() {
                        data.resize(command.len, 0);
                        buffer.copy_out(0, &mut data);
                    }
                    self.host.free.push(buffer);
                }
                if !self.links[at].open {
                    return;
                }
                let tag = command.tag;
                self.sees(at, Happened::Completed { tag, cqe, data });
            }
            Some(Event::Ended(why)) => {
                let happened = match why {
                    Why::Disconnected | Why::Failed(Outcome::Unreachable | Outcome::Flushed) => {
                        Happened::Closed
                    }
                    Why::Unreachable | Why::NobodyListens | Why::Refused(_) => Happened::Late,
                    Why::Rejected(sts) => Happened::Terminated(
                        sts.map_or_else(|| "no reason".to_owned(), |sts| sts.to_string()),
                    ),
                    Why::Fault(fault) => Happened::Broken(fault.to_string()),
                    Why::Failed(outcome) => Happened::Broken(outcome.to_string()),
                };
                if std::mem::replace(&mut self.links[at].open, false) {
                    self.sees(at, happened);
                }
            }
        }
    }

    /// What a link leaves to be done.
    fn tidy(&mut self, at: usize) -> bool {
        let mut moved = false;
        let event = self.links[at].queue.post(&mut self.host.nic);
        moved |= event.is_some();
        self.event(at, event);
        let peer = self.fabric.peer(self.links[at].qp);
        let link = &mut self.links[at];
        if let Some(peer) = peer {
            for later in link.later.drain(..) {
                match later {
                    Later::Room(room) => self.fabric.set_room(peer, room),
                    Later::Cut(units) => self.fabric.cut_at(peer, units),
                }
            }
        }
        if !link.queue.is_over() || link.destroyed {
            return moved;
        }
        let Host {
            nic, manager, free, ..
        } = &mut self.host;
        if !link.queue.is_disconnected() {
            manager.disconnect(nic, link.qp);
            return true;
        }
        while let Some((_, buffer)) = link.queue.take_lost(nic) {
            free.extend(buffer);
        }
        // The device has nothing more of it: all was polled before.
        manager.destroy(nic, link.qp);
        link.destroyed = true;
        true
    }

    fn next_deadline(&self) -> Option<Instant> {
        sooner(self.fabric.next_deadline(), self.worker.next_deadline())
    }
}

impl Ends for RdmaEnds {
    type Supply = Pooled;

    fn plain() -> Self {
        Self::new(Choices::default())
    }

    fn chosen(random: &mut Random) -> Self {
        Self::new(Choices {
            receives: random.one_of(&[Receives::Shared, Receives::PerConnection]),
            count: 256,
            key: random.one_of(&[Key::Region, Key::Window]),
            reads: random.one_of(&[1, 2, 16]),
            budget: random.one_of(&[1, 4, 16, 64]),
            ..Choices::default()
        })
    }

    fn target(&mut self) -> &mut Target<Pooled> {
        &mut self.target
    }

    fn now(&self) -> Instant {
        self.target.now
    }

    fn connect(&mut self, wanted: &Wanted, latency: Duration) -> usize {
        let at = self.links.len();
        self.fabric.set_latency(latency.max(self.choices.latency));
        let config = HostConfig {
            tag: u32::try_from(at).expect("a few"),
            qid: wanted.qid,
            cntlid: wanted.cntlid,
            entries: wanted.entries,
            key: self.choices.key,
        };
        let Host {
            nic,
            manager,
            responses,
            ..
        } = &mut self.host;
        let queue = Queue::connect(manager, nic, LISTENER, config);
        let mut queue: Queue<Manager, Heap> = queue.expect("there is room");
        for _ in 0..wanted.entries {
            let memory = nic.carve(responses, RESPONSE_BUFFER);
            let memory = memory.unwrap_or_else(|| {
                let more = nic.register(vec![0; 1 << 20], Access::LOCAL);
                *responses = more.expect("makes sense");
                nic.carve(responses, RESPONSE_BUFFER).expect("is new")
            });
            assert!(queue.add_receive(memory).is_none());
        }
        let qp = queue.queue_pair();
        self.by_qp.insert(qp, at);
        self.links.push(Link {
            qp,
            queue,
            connected: false,
            open: true,
            destroyed: false,
            early: VecDeque::new(),
            commands: BTreeMap::new(),
            next: 0,
            depth: 1,
            inline_data: 0,
            closing: None,
            later: Vec::new(),
        });
        let (cuts, rest) = std::mem::take(&mut self.cut_next)
            .into_iter()
            .partition::<Vec<_>, _>(|cut| cut.0 == at);
        self.cut_next = rest;
        for (_, way, units) in cuts {
            self.cut_at(at, way, units);
        }
        at
    }

    fn configure(&mut self, link: usize, commands: usize, inline_data: u32) {
        let link = &mut self.links[link];
        link.depth = commands;
        link.inline_data = inline_data.min(self.choices.inline_data);
        link.queue.configure(link.inline_data);
    }

    fn submit(&mut self, link: usize, sqe: &Sqe, payload: Payload, tag: u64) -> bool {
        let Self { links, host, .. } = self;
        let link = &mut links[link];
        assert!(link.open, "the connection is closed");
        if link.commands.len() + link.early.len() >= link.depth {
            return false;
        }
        if !link.connected {
            link.early.push_back((*sqe, payload, tag));
            return true;
        }
        let mut buffer = None;
        let (data, len) = match &payload {
            Payload::Nothing => (Data::Nothing, 0),
            Payload::Read(len) => {
                let mut memory = host.take();
                memory.copy_in(0, &vec![0xEE; *len as usize]);
                buffer = Some(memory);
                (Data::ToHost(*len), *len as usize)
            }
            Payload::Write(bytes) => {
                let mut memory = host.take();
                memory.copy_in(0, bytes);
                buffer = Some(memory);
                (Data::FromHost(crate::bytes_len(bytes)), bytes.len())
            }
        };
        link.next += 1;
        let name = link.next;
        let submitted = link.queue.submit(&mut host.nic, sqe, data, buffer, name);
        if let Err(buffer) = submitted {
            // A cut that nobody was told of yet.
            host.free.extend(buffer);
        }
        let reads = matches!(payload, Payload::Read(_));
        link.commands.insert(name, Command { tag, reads, len });
        true
    }

    fn outstanding(&self, link: usize) -> usize {
        self.links[link].commands.len()
    }

    fn poll_seen(&mut self) -> Option<Seen> {
        self.seen.pop_front()
    }

    fn links(&self) -> usize {
        self.links.len()
    }

    fn is_open(&self, link: usize) -> bool {
        self.links[link].open
    }

    fn is_open_at_target(&self, link: usize) -> bool {
        self.connection(link).is_some_and(|(_, open)| open)
    }

    fn is_drained(&self, link: usize) -> bool {
        self.connection(link).is_none()
    }

    fn closing(&self, link: usize) -> Option<Close> {
        match self.links[link].closing {
            Some(CloseReason::Queue(close)) => Some(close),
            _ => None,
        }
    }

    fn make_room(&mut self, link: usize, way: Way, units: usize) {
        match (way, self.queue_pairs(link)) {
            (Way::ToTarget, (qp, _)) | (Way::ToHost, (_, Some(qp))) => {
                self.fabric.set_room(qp, units);
            }
            (Way::ToHost, (_, None)) => self.links[link].later.push(Later::Room(units)),
        }
    }

    fn arrived(&self, link: usize, way: Way) -> u64 {
        match (way, self.queue_pairs(link)) {
            (Way::ToTarget, (qp, _)) | (Way::ToHost, (_, Some(qp))) => self.fabric.arrived(qp),
            (Way::ToHost, (_, None)) => 0,
        }
    }

    fn cut(&mut self, link: usize) {
        let qp = self.links[link].qp;
        if !self.links[link].destroyed {
            self.fabric.cut(qp);
            self.settle();
        }
    }

    fn cut_at(&mut self, link: usize, way: Way, units: u64) {
        if link >= self.links.len() {
            return self.cut_next.push((link, way, units));
        }
        match (way, self.queue_pairs(link)) {
            (Way::ToTarget, (qp, _)) | (Way::ToHost, (_, Some(qp))) => {
                self.fabric.cut_at(qp, units);
            }
            (Way::ToHost, (_, None)) => self.links[link].later.push(Later::Cut(units)),
        }
    }

    fn units(bytes: u64) -> u64 {
        bytes / 1000
    }

    fn close(&mut self, link: usize) {
        let link = &mut self.links[link];
        link.open = false;
        link.queue.give_up();
    }

    /// A network that corrupts data does not get past the checksums of its links.
    fn spoil(&mut self, _: usize, _: Way, _: usize, _: u8) {}

    fn stop_spoiling(&mut self) {}

    fn spoilt(&self) -> usize {
        0
    }

    fn tears(&self) -> bool {
        false
    }

    fn run(&mut self, by: Duration) {
        let end = self.now().after(by);
        for _ in 0..MAX_ROUNDS {
            self.settle();
            let next = self.next_deadline().filter(|next| *next <= end);
            self.target.now = next.unwrap_or(end).max(self.target.now);
            self.at_target(|worker, device, env| worker.handle_timeout(device, env));
            if next.is_none() {
                return;
            }
        }
        panic!("it never rests");
    }

    fn flow(&mut self) {
        for _ in 0..MAX_ROUNDS {
            self.settle();
            match self.fabric.next_deadline() {
                Some(next) => self.run(next.since(self.now())),
                None => return,
            }
        }
        panic!("it never rests");
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn complete(&mut self, index: usize, fault: Option<MediaError>) -> bool {
        let Some((pending, result)) = self.target.take_pending(index, fault) else {
            return false;
        };
        let completion = pending.request.complete(result);
        let tag = u32::try_from(pending.caller).expect("a few");
        self.at_target(|worker, device, env| {
            worker.block_completed(tag, completion, device, env);
        });
        true
    }

    fn retry(&mut self, _: usize) {
        self.at_target(|worker, device, env| worker.retry(device, env));
    }

    fn assert_clean(&mut self) {
        self.settle();
        for link in 0..self.links.len() {
            assert!(!self.is_open(link), "connection {link} is open");
            assert!(self.is_drained(link), "{link} is not drained");
            assert!(self.links[link].destroyed, "{link} keeps its queue pair");
        }
        assert_eq!(self.target.buffers_taken(), 0, "buffers are kept");
        assert_eq!(self.target.controllers(), 0, "controllers are kept");
        assert_eq!(self.fabric.queue_pairs(), 0, "queue pairs are kept");
        assert_eq!(self.fabric.lent(), 0, "memory is lent to nobody");
    }
}
