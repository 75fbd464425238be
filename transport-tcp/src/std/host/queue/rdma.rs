//! A queue's connection over RDMA, on a device of the operating system.
//!
//! Each queue has a device's share of its own: protection domain, completion queue, memory. A
//! command's data is in plain memory, so it is moved through buffers that the device knows:
//! copied into one before it is sent, or out of one when it has come. They are registered when
//! commands first need them, and stay until the queue is dropped: as much as the most that was
//! under way at a time. A command for which there is no buffer waits for one, within the queue.
mod failure;

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant as Clock};

use nvmf_core::host::{self, Data};
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::{Cid, Qid};
use nvmf_core::wire::sgl::Sgl;
use nvmf_core::wire::sqe::Sqe;
use nvmf_core::{DataBuffers, Place, SlotId};
use nvmf_rdma::ibv::{self, Device, IbvCm, IbvVerbs};
use nvmf_rdma::verbs::{self, Access, Bytes, Key};
use nvmf_rdma::{Cm, Verbs, host as line};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use socket2::SockRef;

use super::super::super::growing::Growing;
use super::super::super::registered;
use super::super::commands::{Buffers, Command, Commands, Job, Memory, Part, Payload};
use super::super::error::Error;
use super::super::options::{Options, RdmaKey};
use super::{Completion, Ends, Failure as QueueFailure, Full, Line, Purpose};
pub(in super::super) use failure::Failure;

/// Completions of one poll, so that no queue has a thread for itself.
const BUDGET: usize = 256;

/// Polls in vain after which a queue that is only polled looks for the end of its connection,
/// which takes a system call.
const LOOK: u32 = 4096;

/// Bytes that are registered at a time, unless one buffer is larger.
const PIECE: usize = 256 * 1024;

/// Work requests of a command at most: bind a window, SEND, invalidate.
const REQUESTS: u32 = 3;

/// One RDMA connection to a controller.
pub(in super::super) struct RdmaQueue {
    // Before all that uses the device.
    verbs: IbvVerbs,
    cm: IbvCm,
    line: line::Queue<IbvCm, Growing>,
    bounce: registered::Buffers,
    commands: Commands,
    /// The data of the command at each place of `commands`.
    shapes: Vec<Data>,
    free: Vec<u16>,
    /// Commands that wait for a buffer, or for the next flush.
    waiting: VecDeque<(SlotId, Sqe)>,
    /// Readable when the device, the connection manager or another thread has something.
    epoll: OwnedFd,
    bell: Arc<Bell>,
    peer: SocketAddr,
    qid: Qid,
    epoch: Clock,
    /// By when it must be connected.
    connect_by: Instant,
    live: bool,
    was_live: bool,
    depth: usize,
    inline_data: u32,
    outstanding: usize,
    system_calls: u64,
    /// The next completion wakes whoever waits.
    armed: bool,
    /// More may have completed than was taken.
    readable: bool,
    polls_in_vain: u32,
    completed: Vec<Completion>,
    failed: Option<QueueFailure>,
    association_lost: Arc<OnceLock<host::Error>>,
}

/// How another thread ends a queue.
pub(super) struct Bell {
    rung: AtomicBool,
    event: OwnedFd,
}

impl Bell {
    fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            rung: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// The queue ends. Whoever waits for it wakes up.
    pub(super) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // One write never fails.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

impl RdmaQueue {
    /// Begins to connect.
    pub(super) fn start(
        address: SocketAddr,
        options: &Options,
        purpose: Purpose,
    ) -> Result<Self, QueueFailure> {
        ibv::available().map_err(|_| Failure::NoLibrary)?;
        let from = way(address, options)?;
        let device = Device::at(from).map_err(Failure::of_open)?;
        let entries = purpose
            .entries
            .clamp(2, nvmf_core::rdma::host::MAX_COMMANDS as u32);
        let config = ibv::Config {
            shared_receives: 0,
            completions: entries * (1 + 4 * REQUESTS),
            completion_vector: purpose.qid.0.into(),
        };
        let (mut verbs, mut cm) = ibv::open(device, &config).map_err(Failure::of_open)?;
        if options.host_traddr.is_some() || options.host_iface.is_some() {
            cm.connect_from(from);
        }
        let limits = verbs.limits();
        let entries = entries.min(limits.send_requests / (4 * REQUESTS)).max(2);
        let key = match options.rdma_key {
            RdmaKey::Region => Key::Region,
            RdmaKey::Window if limits.windows => Key::Window,
            RdmaKey::Window => {
                return Err(Failure::Device("memory windows", Errno::OPNOTSUPP).into());
            }
        };
        let line = line::Config {
            tag: 0,
            qid: purpose.qid,
            cntlid: purpose.cntlid,
            entries: u16::try_from(entries).unwrap_or(u16::MAX),
            key,
        };
        let mut line = line::Queue::connect(&mut cm, &mut verbs, address, line).map_err(
            |error| match error {
                verbs::Error::NoResources => Failure::NoMemory,
                error => Failure::of_verbs("a queue pair", error),
            },
        )?;
        let mut responses = ibv::Memory::new((entries * line::RESPONSE_BUFFER) as usize)
            .and_then(|memory| {
                let responses = verbs.register(memory, Access::LOCAL);
                responses.map_err(|(_, error)| error)
            })
            .map_err(Failure::of_memory)?;
        for _ in 0..entries {
            if let Some(response) = verbs.carve(&mut responses, line::RESPONSE_BUFFER) {
                line.add_receive(response);
            }
        }
        let bell = Bell::new().map_err(|error| Failure::Device("an event", error))?;
        let epoll = watch(&verbs, &cm, &bell).map_err(|error| Failure::Device("epoll", error))?;
        Ok(Self {
            verbs,
            cm,
            line,
            bounce: registered::Buffers::new(Access::lent_by(key), PIECE),
            commands: Commands::default(),
            shapes: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            epoll,
            bell: Arc::new(bell),
            peer: address,
            qid: purpose.qid,
            epoch: Clock::now(),
            connect_by: Instant::ZERO.after(options.connect_timeout),
            live: false,
            was_live: false,
            depth: 1,
            inline_data: 0,
            outstanding: 0,
            system_calls: 0,
            armed: false,
            readable: false,
            polls_in_vain: 0,
            completed: Vec::new(),
            failed: None,
            association_lost: Arc::default(),
        })
    }

    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// From now on it holds `depth` commands, or as many as the controller has receives for, and
    /// up to `inline_data` bytes go inside a command's capsule. On the Admin Queue none do
    /// (NVMe/RDMA 1.1, section 3.4).
    pub(super) fn configure(&mut self, depth: usize, inline_data: u32) {
        self.depth = depth;
        self.inline_data = if self.qid.is_admin() { 0 } else { inline_data };
        self.line.configure(self.inline_data);
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn depth(&self) -> usize {
        match self.line.depth() {
            // Nothing is known yet.
            0 => self.depth,
            most => self.depth.min(most.into()),
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub(super) fn system_calls(&self) -> u64 {
        self.system_calls
    }

    pub(super) fn enqueue(&mut self, sqe: &Sqe, payload: Payload, tag: u64) -> Result<(), Full> {
        if self.outstanding >= self.depth() {
            return Err(Full(payload));
        }
        let data = payload.data();
        let (buffers, _) = payload.into_parts();
        self.put(sqe, data, Memory::Own(buffers), tag);
        Ok(())
    }

    pub(super) fn hold(&mut self, buffers: Buffers) -> Job {
        self.commands.open(buffers)
    }

    pub(super) fn release(&mut self, job: Job) -> Buffers {
        self.commands.close(job)
    }

    pub(super) fn enqueue_part(&mut self, sqe: &Sqe, part: Part, tag: u64) -> bool {
        if self.outstanding >= self.depth() {
            return false;
        }
        self.put(sqe, part.data, Memory::Shared(part.job, part.at), tag);
        true
    }

    fn put(&mut self, sqe: &Sqe, data: Data, memory: Memory, tag: u64) {
        let slot = SlotId(self.free.pop().unwrap_or_else(|| {
            self.shapes.push(Data::Nothing);
            // There are no more than `MAX_COMMANDS`.
            self.shapes.len() as u16 - 1
        }));
        self.shapes[slot.index()] = data;
        self.commands.put(slot, Command { tag, memory });
        self.waiting.push_back((slot, *sqe));
        self.outstanding += 1;
    }

    /// Commands under way: those that were not sent yet have no CID.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (Option<Cid>, u64)> {
        let cid = |slot: SlotId| {
            let mut sent = self.line.under_way();
            sent.find_map(|(cid, place)| (place == u64::from(slot.0)).then_some(cid))
        };
        self.commands
            .iter()
            .map(move |(slot, command)| (cid(slot), command.tag))
    }

    pub(super) fn flush(&mut self) {
        if self.failed.is_some() || !self.live {
            return;
        }
        while let Some((slot, sqe)) = self.waiting.front().copied() {
            let data = self.shapes[slot.index()];
            let (len, to_controller) = match data {
                Data::Nothing => (0, false),
                Data::ToHost(len) => (len, false),
                Data::FromHost(len) => (len, true),
            };
            let mut buffer = None;
            if len > 0 {
                let mut found = match self.buffer(len) {
                    Ok(found) => found,
                    Err(failure) => return self.stall(failure),
                };
                if to_controller {
                    copy_in(&self.commands, slot, &mut found, len as usize);
                }
                buffer = Some(found);
            }
            let place = u64::from(slot.0);
            if let Err(buffer) = self.line.submit(&mut self.verbs, &sqe, data, buffer, place) {
                self.give(buffer);
                self.post();
                return self.stall(QueueFailure::Lost(Errno::NOBUFS));
            }
            self.waiting.pop_front();
        }
        self.post();
    }

    fn post(&mut self) {
        if let Some(event) = self.line.post(&mut self.verbs) {
            self.event(event);
        }
    }

    /// A buffer of `len` bytes or more.
    fn buffer(&mut self, len: u32) -> Result<ibv::Buffer, QueueFailure> {
        let class = registered::Class::of(len as usize);
        let class = class.filter(|_| len <= Sgl::KEYED_MAX);
        let class = class.ok_or(Failure::TooLong(len))?;
        let grown = if self.bounce.has(class) {
            Ok(())
        } else {
            self.bounce.grow(&mut self.verbs, class)
        };
        let found = self.bounce.take(class);
        found.ok_or_else(|| {
            let error = grown.err().unwrap_or(verbs::Error::NoResources);
            tracing::debug!(%error, len, "memory cannot be registered");
            Failure::of_memory(error).into()
        })
    }

    fn give(&mut self, buffer: Option<ibv::Buffer>) {
        if let Some(buffer) = buffer {
            self.bounce.give(buffer);
        }
    }

    /// There is nothing left of what a command takes: the next that ends gives some back. If
    /// none is under way, or that would not help, the queue is over.
    fn stall(&mut self, failure: QueueFailure) {
        let none_under_way = self.waiting.len() == self.outstanding;
        let never = matches!(failure, QueueFailure::Rdma(Failure::TooLong(_)));
        if self.failed.is_none() && (none_under_way || never) {
            self.fail(failure);
        }
    }

    pub(super) fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), QueueFailure> {
        self.flush();
        self.take();
        self.polls_in_vain += 1;
        if !self.live || self.polls_in_vain >= LOOK {
            self.look();
        }
        self.take_completed(completions);
        self.failed.map_or(Ok(()), Err)
    }

    /// [`RdmaQueue::poll`], for whoever is told by [`AsFd`] when to come again.
    pub(super) fn service(
        &mut self,
        completions: &mut Vec<Completion>,
    ) -> Result<(), QueueFailure> {
        self.flush();
        self.look();
        self.take();
        self.arm();
        self.take_completed(completions);
        self.failed.map_or(Ok(()), Err)
    }

    pub(super) fn take_completed(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.completed);
    }

    pub(super) fn failure(&self) -> Option<QueueFailure> {
        self.failed
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    pub(super) fn is_writable(&self) -> bool {
        self.live
    }

    pub(super) fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        self.arm();
        if !self.completed.is_empty() || self.failed.is_some() || self.readable {
            return Ok(());
        }
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec {
            tv_sec: 3600,
            tv_nsec: 0,
        });
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        self.system_calls += 1;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::Lost(error.into())),
        }
        // What woke it may be the end of the connection.
        self.polls_in_vain = LOOK;
        Ok(())
    }

    /// Sees to it that the next completion wakes whoever waits, and takes those that came before.
    fn arm(&mut self) {
        while !self.armed && !self.readable && self.failed.is_none() {
            self.system_calls += 1;
            if self.verbs.arm().is_err() {
                return self.fail(QueueFailure::Lost(Errno::NODEV));
            }
            self.armed = true;
            self.take();
        }
    }

    /// Takes what has completed, up to a bound.
    fn take(&mut self) {
        self.readable = false;
        for _ in 0..BUDGET {
            let Some(completion) = self.verbs.poll(Instant::ZERO) else {
                // There may be buffers for those that wait.
                return self.flush();
            };
            self.armed = false;
            self.polls_in_vain = 0;
            if let Some(event) = self.line.completed(completion, &mut self.verbs) {
                self.event(event);
            }
        }
        self.readable = true;
        self.flush();
    }

    /// Sees what has become of the connection.
    fn look(&mut self) {
        self.polls_in_vain = 0;
        self.system_calls += 1;
        let now = self.now();
        while let Some(event) = self.cm.poll(now) {
            let of_the_peer = self.cm.has_peer_ended(self.line.queue_pair());
            match self.line.happened(&event, &mut self.verbs) {
                Some(line::Event::Ended(line::Why::Disconnected)) => self.fail(if of_the_peer {
                    QueueFailure::Closed
                } else {
                    QueueFailure::Lost(Errno::NODEV)
                }),
                Some(event) => self.event(event),
                None => {}
            }
        }
        if self.bell.rung.load(Ordering::Acquire) {
            self.fail(QueueFailure::Closed);
        }
        if !self.live && self.failed.is_none() && self.connect_by <= now {
            self.fail(QueueFailure::Connect(Errno::TIMEDOUT));
        }
    }

    fn event(&mut self, event: line::Event<ibv::Buffer>) {
        match event {
            line::Event::Connected => {
                (self.live, self.was_live) = (true, true);
                self.line.configure(self.inline_data);
            }
            line::Event::Completed { tag, cqe, buffer } => {
                // A place of ours.
                let slot = SlotId(tag as u16);
                let mut received = 0;
                if let (Data::ToHost(len), Some(buffer)) = (self.shapes[slot.index()], &buffer)
                    && cqe.status().is_success()
                {
                    received = len as usize;
                    copy_out(&mut self.commands, slot, buffer, received);
                }
                self.give(buffer);
                let Some(command) = self.commands.take(slot) else {
                    return;
                };
                self.free.push(slot.0);
                self.outstanding -= 1;
                self.completed.push(command.complete(cqe, received));
            }
            line::Event::Ended(why) => self.fail(Failure::of_end(why)),
        }
    }

    fn fail(&mut self, failure: QueueFailure) {
        let failure = match (failure, self.association_lost.get()) {
            (QueueFailure::Closed | QueueFailure::Lost(_), Some(error)) => {
                QueueFailure::Controller(*error)
            }
            (failure, _) => failure,
        };
        self.failed.get_or_insert(failure);
        self.live = false;
        self.hang_up();
    }

    /// Ends the connection. Nothing of it reaches the controller any more, nor our memory.
    fn hang_up(&mut self) {
        self.line.give_up();
        self.cm.disconnect(&mut self.verbs, self.line.queue_pair());
    }

    pub(super) fn line(&self) -> Result<Line, Error> {
        Ok(Line {
            ends: Ends::Rdma(Arc::clone(&self.bell)),
            association_lost: Arc::clone(&self.association_lost),
        })
    }

    pub(super) fn give_up(&mut self) {
        self.fail(QueueFailure::GivenUp);
    }

    /// Sends nothing any more. False if there was no connection, and so nothing of it is left.
    pub(super) fn linger(&mut self) -> bool {
        self.fail(QueueFailure::GivenUp);
        self.was_live
    }

    /// Nothing says so: a controller may answer the end of a connection, as Linux does, before it
    /// is done with the connection's commands.
    pub(super) fn has_ended(&mut self) -> bool {
        let now = self.now();
        while self.cm.poll(now).is_some() {}
        self.readable = false;
        false
    }

    pub(super) fn now(&self) -> Instant {
        let micros = self.epoch.elapsed().as_micros();
        Instant::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

impl Drop for RdmaQueue {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl AsFd for RdmaQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The address of ours that packets to an address come from: it has the device. Nothing is sent.
fn way(address: SocketAddr, options: &Options) -> Result<SocketAddr, QueueFailure> {
    let connect = |error: std::io::Error| {
        QueueFailure::Connect(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
    };
    if let Some(from) = options.host_traddr {
        return Ok(SocketAddr::new(from, 0));
    }
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).map_err(connect)?;
    if let Some(interface) = &options.host_iface {
        let bound = SockRef::from(&socket).bind_device(Some(interface.as_bytes()));
        bound.map_err(|error| {
            QueueFailure::From(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
        })?;
    }
    socket.connect(address).map_err(connect)?;
    let mut from = socket.local_addr().map_err(connect)?;
    from.set_port(0);
    Ok(from)
}

/// One descriptor for all that wakes a queue.
fn watch(verbs: &IbvVerbs, cm: &IbvCm, bell: &Bell) -> rustix::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let add = |fd: BorrowedFd<'_>| {
        epoll::add(
            &epoll,
            fd,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )
    };
    verbs.with_fd(add)?;
    cm.with_fd(add)?;
    add(bell.event.as_fd())?;
    Ok(epoll)
}

/// Copies `len` bytes of a command's data to where the device reads them.
fn copy_in(commands: &Commands, slot: SlotId, to: &mut ibv::Buffer, len: usize) {
    let mut at = 0;
    while at < len {
        let place = place(slot, at, len);
        let piece = commands.payload(&place).unwrap_or_default();
        if piece.is_empty() {
            return;
        }
        to.copy_in(at, piece);
        at += piece.len();
    }
}

/// Copies the `len` bytes that came to a command's buffers.
fn copy_out(commands: &mut Commands, slot: SlotId, from: &ibv::Buffer, len: usize) {
    let mut at = 0;
    while at < len {
        let piece = commands.place(place(slot, at, len));
        if piece.is_empty() {
            return;
        }
        from.copy_out(at, piece);
        at += piece.len();
    }
}

/// A command has less than 4 GiB of data.
fn place(slot: SlotId, at: usize, end: usize) -> Place {
    Place {
        slot,
        offset: at as u32,
        len: (end - at) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_begins_where_options_say() {
        let to = "127.0.0.1:4420".parse().unwrap();
        let mut options = Options::default();
        let from = way(to, &options).unwrap();
        assert_eq!(from, "127.0.0.1:0".parse().unwrap());
        options.host_iface = Some("nvmf-none".to_owned());
        let failure = way(to, &options).unwrap_err();
        assert!(matches!(
            failure,
            QueueFailure::From(Errno::NODEV | Errno::PERM)
        ));
        options.host_traddr = Some("192.0.2.1".parse().unwrap());
        let from = way(to, &options).unwrap();
        assert_eq!(from, "192.0.2.1:0".parse().unwrap());
    }
}
