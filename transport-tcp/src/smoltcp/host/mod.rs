//! A host on smoltcp's sockets: what a boot loader needs to read a disk that is elsewhere.
//!
//! A [`Host`] connects to a subsystem, brings its controller up, connects its I/O
//! queues and looks at a namespace; then it takes reads, writes and other commands,
//! sends Keep Alive, and has commands aborted that are late. The caller's loop:
//!
//! ```text
//! host.connect(Destination { address, subnqn, nsid: None })?;
//! loop {
//!     interface.poll(timestamp, &mut nic, &mut sockets);
//!     while let Some(event) = host.poll(interface.context(), &mut sockets, now) {
//!         match event {
//!             Event::Ready => host.read(0, 8, buffer, 1)?,
//!             Event::Completed(completion) => ..., // the buffer comes back with it
//!             Event::Closed(why) => ...,
//!             Event::Async(_) => {}
//!         }
//!     }
//!     // Sleep until the network device has something, or interface.poll_at or
//!     // host.poll_timeout say so.
//! }
//! ```
//!
//! A host that lost its controller does not connect again by itself.
mod error;
mod queue;
mod stages;

use core::fmt;
use core::time::Duration;

use nvmf_core::host::Data;
use nvmf_core::host::controller::{Capabilities, Controller};
use nvmf_core::host::{Identity, Request, command};
use nvmf_core::tcp::host::Config;
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_core::wire::log::AsyncEvent;
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use smoltcp::iface::{Context, SocketHandle, SocketSet};
use smoltcp::wire::IpEndpoint;

pub use self::error::{Error, Failure, Reason, Rejected};
pub use self::queue::Seat;
use self::queue::{Command, Owner, Queue};
pub use self::stages::ADMIN_SLOTS;
use self::stages::Stage;
use super::memory::Buffer;
use super::prepare;

/// Bytes of what Identify returns, which is the most that the host asks for by itself.
pub const SCRATCH: usize = 4096;

/// The first of the ports that a system takes by itself (RFC 6335, section 6).
const FIRST_EPHEMERAL_PORT: u16 = 49152;

/// How a host connects. Start from [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Who we are.
    pub identity: Identity,
    /// How connections behave: digests, and how long connecting may take, each.
    pub transport: Config,
    /// Keep alive timeout; zero for none. None is used with a discovery controller.
    pub keep_alive: Duration,
    /// How long a command may take before it is aborted.
    pub command_timeout: Duration,
    /// Ask for asynchronous events.
    pub events: bool,
    /// The local port of the first connection, 49152 or more; the next ones follow.
    /// Better another at each start: a target may remember the connections of the last.
    pub first_port: u16,
}

impl Options {
    /// Without digests and events, with a keep alive timeout of 5 s and commands that
    /// may take 30 s.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            transport: Config::default(),
            keep_alive: Duration::from_secs(5),
            command_timeout: Duration::from_secs(30),
            events: false,
            first_port: FIRST_EPHEMERAL_PORT,
        }
    }
}

/// What to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where the target is.
    pub address: IpEndpoint,
    /// The subsystem. Of a discovery controller there are no I/O queues and no namespace.
    pub subnqn: Nqn,
    /// The namespace, or else the first that there is for this host.
    pub nsid: Option<Nsid>,
}

/// What a host runs in.
#[derive(Debug)]
pub struct Resources<'a, const QUEUES: usize, const DEPTH: usize> {
    /// The state of the Admin Queue.
    pub admin: &'a mut Seat<'a, ADMIN_SLOTS>,
    /// The state of the I/O queues.
    pub queues: &'a mut [Seat<'a, DEPTH>; QUEUES],
    /// For the data of the host's own commands.
    pub scratch: &'a mut [u8; SCRATCH],
}

/// The namespace that a host is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Which.
    pub nsid: Nsid,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks that there are.
    pub blocks: u64,
    /// Blocks that a command may move.
    pub transfer: u32,
}

/// The data of a command: a buffer, and the bytes of it that count, from its start.
#[derive(Debug)]
pub enum Payload<'a> {
    /// None.
    Nothing,
    /// At most so much comes from the controller.
    Read(Buffer<'a>, u32),
    /// So much goes to the controller.
    Write(Buffer<'a>, u32),
}

impl<'a> Payload<'a> {
    fn into_parts(self) -> (Option<Buffer<'a>>, Data) {
        match self {
            Self::Nothing => (None, Data::Nothing),
            Self::Read(buffer, 0) | Self::Write(buffer, 0) => (Some(buffer), Data::Nothing),
            Self::Read(buffer, len) => (Some(buffer), Data::ToHost(len)),
            Self::Write(buffer, len) => (Some(buffer), Data::FromHost(len)),
        }
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// Commands may be submitted.
    Ready,
    /// A command of the caller's ended.
    Completed(Completion<'a>),
    /// The controller reports something.
    Async(AsyncEvent),
    /// The association is over, all its commands have come back, and
    /// [`Host::connect`] may be called. It is no error after [`Host::disconnect`].
    Closed(Result<(), Error>),
}

/// A command that ended.
#[derive(Debug)]
pub struct Completion<'a> {
    /// As it was submitted with.
    pub tag: u32,
    /// The controller's result (dwords 0 and 1 of the completion), if it succeeded.
    pub result: Result<u64, Failure>,
    /// Its buffer.
    pub buffer: Option<Buffer<'a>>,
    /// Bytes of data that came.
    pub received: u32,
}

/// There is an association already, or it is still about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is an association already: wait until it is closed")
    }
}

impl core::error::Error for Busy {}

/// A host with an Admin Queue and up to `QUEUES` I/O queues of `DEPTH` commands each.
pub struct Host<'a, const QUEUES: usize, const DEPTH: usize> {
    options: Options,
    destination: Option<Destination>,
    stage: Stage,
    admin: Queue<'a, ADMIN_SLOTS>,
    queues: [Queue<'a, DEPTH>; QUEUES],
    /// Not there while a command of the host's own has it.
    scratch: Option<Buffer<'a>>,
    machine: Option<Controller>,
    found: Option<Capabilities>,
    namespace: Option<Namespace>,
    next_port: u16,
    /// When the host was polled last.
    now: Instant,
    /// [`Host::poll`] has something to do.
    due: bool,
}

impl<'a, const QUEUES: usize, const DEPTH: usize> Host<'a, QUEUES, DEPTH> {
    /// That will connect by these TCP sockets of `set`, which are not in use, the first
    /// of them for the Admin Queue. Their rings may be small: 256 bytes do, a few
    /// segments are better.
    ///
    /// # Panics
    /// Where a ring is too small, or there is no I/O queue or no depth.
    pub fn new(
        options: Options,
        resources: Resources<'a, QUEUES, DEPTH>,
        set: &mut SocketSet,
        admin: SocketHandle,
        sockets: [SocketHandle; QUEUES],
    ) -> Self {
        const { assert!(QUEUES > 0 && QUEUES < 0xFFFF && DEPTH > 0) };
        for handle in sockets.into_iter().chain([admin]) {
            prepare(set, handle);
        }
        let mut seats = resources.queues.iter_mut();
        Self {
            next_port: options.first_port,
            options,
            destination: None,
            stage: Stage::Idle,
            admin: Queue::new(admin, resources.admin),
            queues: sockets.map(|socket| {
                let seat = seats.next().expect("as many seats as sockets");
                Queue::new(socket, seat)
            }),
            scratch: Some(resources.scratch),
            machine: None,
            found: None,
            namespace: None,
            now: Instant::ZERO,
            due: false,
        }
    }

    /// Begins an association. [`Event::Ready`] or [`Event::Closed`] says what became of it.
    ///
    /// # Errors
    /// [`Busy`]
    pub fn connect(&mut self, destination: Destination) -> Result<(), Busy> {
        if self.stage != Stage::Idle {
            return Err(Busy);
        }
        self.destination = Some(destination);
        self.stage = Stage::Opening;
        self.due = true;
        Ok(())
    }

    /// Ends the association properly: commands under way end first, no others are taken.
    /// [`Event::Closed`] says when the sockets have come to their end.
    pub fn disconnect(&mut self, set: &mut SocketSet, now: Instant) {
        self.now = now;
        match self.stage {
            Stage::Ready => self.stage = Stage::Leaving,
            Stage::Opening | Stage::Admin | Stage::Queue(_) | Stage::Namespace => {
                self.shut(set);
            }
            _ => return,
        }
        self.due = true;
    }

    /// Ends the association at once. All commands come back, then [`Event::Closed`].
    pub fn abort(&mut self, set: &mut SocketSet, now: Instant) {
        if matches!(self.stage, Stage::Idle | Stage::Failed(_)) {
            return;
        }
        self.admin.abort(set, now);
        self.queues.iter_mut().for_each(|it| it.abort(set, now));
        self.stage = Stage::Failed(Error::Aborted);
        self.due = true;
    }

    /// What the controller can, once it was brought up.
    #[must_use]
    pub const fn capabilities(&self) -> Option<&Capabilities> {
        self.found.as_ref()
    }

    /// The namespace, from [`Event::Ready`] on; none of a discovery controller.
    #[must_use]
    pub const fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// I/O commands that may be submitted now.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.stage != Stage::Ready {
            return 0;
        }
        let live = self.queues.iter().filter(|queue| queue.is_live());
        live.map(Queue::room).sum()
    }

    /// Whether there is neither an association nor anything left to do for the last one.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle && self.is_closed()
    }

    /// Reads `nlb` blocks from block `slba` on to the start of the buffer.
    ///
    /// # Errors
    /// [`Rejected`], with the buffer.
    pub fn read(
        &mut self,
        slba: u64,
        nlb: u32,
        buffer: Buffer<'a>,
        tag: u32,
    ) -> Result<(), Rejected<'a>> {
        match self.blocks(IoOpcode::Read, slba, nlb) {
            Ok((sqe, len)) => self.put(&sqe, Payload::Read(buffer, len), len, tag),
            Err(reason) => Err(reject(reason, Some(buffer))),
        }
    }

    /// Writes `nlb` blocks from block `slba` on from the start of the buffer. They may be
    /// in a volatile cache until a [`Host::flush`] that was submitted after they were written.
    ///
    /// # Errors
    /// [`Rejected`], with the buffer.
    pub fn write(
        &mut self,
        slba: u64,
        nlb: u32,
        buffer: Buffer<'a>,
        tag: u32,
    ) -> Result<(), Rejected<'a>> {
        match self.blocks(IoOpcode::Write, slba, nlb) {
            Ok((sqe, len)) => self.put(&sqe, Payload::Write(buffer, len), 0, tag),
            Err(reason) => Err(reject(reason, Some(buffer))),
        }
    }

    /// Has what was written so far survive a loss of power.
    ///
    /// # Errors
    /// [`Rejected`]
    pub fn flush(&mut self, tag: u32) -> Result<(), Rejected<'a>> {
        match self.namespace {
            Some(Namespace { nsid, .. }) => {
                self.put(&command::flush(nsid), Payload::Nothing, 0, tag)
            }
            None => Err(reject(Reason::NotReady, None)),
        }
    }

    /// Any I/O command. Its CID and data pointer are set here.
    ///
    /// # Errors
    /// [`Rejected`], with the buffer.
    pub fn submit(
        &mut self,
        sqe: &Sqe,
        payload: Payload<'a>,
        tag: u32,
    ) -> Result<(), Rejected<'a>> {
        self.put(sqe, payload, 0, tag)
    }

    /// Any admin command, one at a time.
    ///
    /// # Errors
    /// [`Rejected`], with the buffer.
    pub fn admin(&mut self, sqe: &Sqe, payload: Payload<'a>, tag: u32) -> Result<(), Rejected<'a>> {
        let (buffer, request) = self.judge(sqe, payload)?;
        if self.admin.callers() > 0 {
            return Err(reject(Reason::Full, buffer));
        }
        let command = self.command(buffer, 0, tag);
        self.admin.submit(&request, command);
        self.due = true;
        Ok(())
    }

    /// When [`Host::poll`] should be called even if nothing arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.due {
            return Some(Instant::ZERO);
        }
        let queues = self.queues.iter().map(Queue::poll_timeout);
        let queues = queues.fold(self.admin.poll_timeout(), sooner);
        sooner(
            queues,
            self.machine.as_ref().and_then(Controller::poll_timeout),
        )
    }

    /// Does what there is to do, up to the next thing to report: call it until there is
    /// none, after each time that the interface was polled, that a command was submitted,
    /// or when [`Host::poll_timeout`] says so. Then the interface may have something to send.
    pub fn poll(
        &mut self,
        context: &mut Context,
        set: &mut SocketSet,
        now: Instant,
    ) -> Option<Event<'a>> {
        self.due = false;
        self.now = now;
        self.run(context, set)
    }

    /// The command, and bytes of its data.
    fn blocks(&self, opcode: IoOpcode, slba: u64, nlb: u32) -> Result<(Sqe, u32), Reason> {
        let namespace = self.namespace.ok_or(Reason::NotReady)?;
        let end = slba.checked_add(nlb.into());
        if nlb == 0 || end.is_none_or(|end| end > namespace.blocks) {
            return Err(Reason::OutOfRange);
        }
        if nlb > namespace.transfer {
            return Err(Reason::TooLong);
        }
        let sqe = command::blocks(opcode, namespace.nsid, slba, nlb);
        Ok((sqe, nlb * namespace.block_size))
    }

    /// Whether a command of the caller's can be taken, room aside.
    fn judge(
        &self,
        sqe: &Sqe,
        payload: Payload<'a>,
    ) -> Result<(Option<Buffer<'a>>, Request), Rejected<'a>> {
        let (buffer, data) = payload.into_parts();
        let len = match data {
            Data::Nothing => 0,
            Data::ToHost(len) | Data::FromHost(len) => len,
        };
        let reason = match self.found {
            Some(found) if self.stage == Stage::Ready => {
                let too_short = buffer.as_ref().is_some_and(|it| it.len() < len as usize);
                (too_short.then_some(Reason::ShortBuffer))
                    .or((len > found.transfer).then_some(Reason::TooLong))
            }
            _ => Some(Reason::NotReady),
        };
        match reason {
            Some(reason) => Err(reject(reason, buffer)),
            None => Ok((buffer, Request { sqe: *sqe, data })),
        }
    }

    fn command(&self, buffer: Option<Buffer<'a>>, expected: u32, tag: u32) -> Command<'a> {
        Command {
            owner: Owner::Caller(tag),
            buffer,
            deadline: Some(self.now.after(self.options.command_timeout)),
            expected,
        }
    }

    fn put(
        &mut self,
        sqe: &Sqe,
        payload: Payload<'a>,
        expected: u32,
        tag: u32,
    ) -> Result<(), Rejected<'a>> {
        let (buffer, request) = self.judge(sqe, payload)?;
        let command = self.command(buffer, expected, tag);
        let queues = self.queues.iter_mut().filter(|queue| queue.is_live());
        match queues.max_by_key(|queue| queue.room()) {
            Some(queue) if queue.room() > 0 => {
                queue.submit(&request, command);
                self.due = true;
                Ok(())
            }
            _ => Err(reject(Reason::Full, command.buffer)),
        }
    }
}

fn reject(reason: Reason, buffer: Option<Buffer<'_>>) -> Rejected<'_> {
    Rejected { reason, buffer }
}
