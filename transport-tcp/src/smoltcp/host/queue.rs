//! One queue: a socket, the machine that understands it, and the commands under way.
use core::fmt;
use core::time::Duration;

use nvmf_core::digest::Crc32c;
use nvmf_core::host::controller::Token;
use nvmf_core::host::{self, Request};
use nvmf_core::storage::Fixed;
use nvmf_core::tcp::host::{self as transport, HostQueue};
use nvmf_core::tcp::target::Transmit;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cid, Nsid};
use nvmf_core::{DataBuffers, Place, SlotId, Source};
use smoltcp::iface::{Context, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::wire::IpEndpoint;

use super::super::memory::Buffer;
use super::super::outgoing::{Outgoing, Speaker};
use super::error::Error;

/// How long the last words to a controller may take, and then its own end.
const LINGER: Duration = Duration::from_secs(3);

/// A command under way.
#[derive(Debug)]
pub(super) struct Command<'a> {
    pub(super) owner: Owner,
    pub(super) buffer: Option<Buffer<'a>>,
    /// By when it is to end, if it was not late already.
    pub(super) deadline: Option<Instant>,
    /// Bytes that are to come: less is a failure.
    pub(super) expected: u32,
}

/// Whose command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The machine of the controller.
    Machine(Token),
    /// Connect of an I/O queue.
    Connect,
    /// Identify of the namespaces there are.
    Namespaces,
    /// Identify of this namespace.
    Namespace(Nsid),
    /// The caller, by this tag.
    Caller(u32),
}

/// A command that ended.
#[derive(Debug)]
pub(super) struct Ended<'a> {
    pub(super) command: Command<'a>,
    pub(super) cqe: Cqe,
    /// Bytes that came.
    pub(super) received: u32,
}

/// What a queue reports.
#[derive(Debug)]
pub(super) enum Arrival<'a> {
    /// Commands may go.
    Ready,
    Ended(Ended<'a>),
}

/// Most of what a queue takes besides its rings. Its empty state is all zero, so
/// that a static full of them needs no flash.
#[allow(
    clippy::large_enum_variant,
    reason = "there is no allocator to box the machine with"
)]
#[repr(u8)]
enum Chair<'a, const DEPTH: usize> {
    Empty = 0,
    Taken(Station<'a, DEPTH>) = 1,
}

struct Station<'a, const DEPTH: usize> {
    machine: HostQueue<Fixed<DEPTH>>,
    commands: [Option<Command<'a>>; DEPTH],
}

/// Memory for the state of one queue, `DEPTH` commands included.
pub struct Seat<'a, const DEPTH: usize>(Chair<'a, DEPTH>);

impl<'a, const DEPTH: usize> Seat<'a, DEPTH> {
    /// Free.
    #[must_use]
    pub const fn new() -> Self {
        Self(Chair::Empty)
    }

    /// A function of its own, as a machine is on the stack before it is here.
    #[inline(never)]
    fn take(&mut self, config: &transport::Config, now: Instant) {
        self.0 = Chair::Taken(Station {
            machine: HostQueue::new(config, now),
            commands: [const { None }; DEPTH],
        });
    }

    const fn get(&self) -> Option<&Station<'a, DEPTH>> {
        match &self.0 {
            Chair::Taken(station) => Some(station),
            Chair::Empty => None,
        }
    }

    const fn get_mut(&mut self) -> Option<&mut Station<'a, DEPTH>> {
        match &mut self.0 {
            Chair::Taken(station) => Some(station),
            Chair::Empty => None,
        }
    }
}

impl<const DEPTH: usize> Default for Seat<'_, DEPTH> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const DEPTH: usize> fmt::Debug for Seat<'_, DEPTH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.get() {
            Some(_) => "taken",
            None => "free",
        })
    }
}

/// A queue, or what could become one.
pub(super) struct Queue<'a, const DEPTH: usize> {
    socket: SocketHandle,
    seat: &'a mut Seat<'a, DEPTH>,
    phase: Phase,
    outgoing: Outgoing,
    /// Commands that it may hold.
    depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The socket is free.
    Closed,
    /// TCP connects.
    Connecting,
    /// There is no ICResp yet.
    Greeting,
    Live,
    /// The controller is told what it did wrong; then the error is reported.
    Faulty(Error, Instant),
    /// The machine is done with the socket, which is given this long.
    Closing(Instant),
}

impl<'a, const DEPTH: usize> Queue<'a, DEPTH> {
    pub(super) fn new(socket: SocketHandle, seat: &'a mut Seat<'a, DEPTH>) -> Self {
        Self {
            socket,
            seat,
            phase: Phase::Closed,
            outgoing: Outgoing::default(),
            depth: DEPTH,
        }
    }

    /// Begins to connect, from `port`. The socket is free.
    pub(super) fn open(
        &mut self,
        context: &mut Context,
        set: &mut SocketSet,
        target: IpEndpoint,
        port: u16,
        config: &transport::Config,
        now: Instant,
    ) -> Result<(), Error> {
        let socket = set.get_mut::<Socket>(self.socket);
        socket
            .connect(context, target, port)
            .map_err(|_| Error::NoAddress)?;
        self.seat.take(config, now);
        self.phase = Phase::Connecting;
        self.depth = DEPTH;
        Ok(())
    }

    /// It was connected: it holds `depth` commands, and up to `inline_data` bytes
    /// go inside a capsule.
    pub(super) fn configure(&mut self, depth: usize, inline_data: u32) {
        self.depth = depth.min(DEPTH);
        if let Some(station) = self.seat.get_mut() {
            station.machine.configure(self.depth, inline_data);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    pub(super) fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Commands that may be added to those under way.
    pub(super) fn room(&self) -> usize {
        let under_way = self.commands().flatten().count();
        self.depth.saturating_sub(under_way)
    }

    /// Commands of the caller's that are under way.
    pub(super) fn callers(&self) -> usize {
        let commands = self.commands().flatten();
        commands
            .filter(|command| matches!(command.owner, Owner::Caller(_)))
            .count()
    }

    /// Takes a command. There is room.
    pub(super) fn submit(&mut self, request: &Request, command: Command<'a>) {
        let station = self.seat.get_mut().expect("a queue that is live");
        let slot = station.machine.submit(&request.sqe, request.data);
        let slot = slot.expect("room for a command");
        station.commands[slot.index()] = Some(command);
    }

    /// The next command that should have ended by now. It is not late twice.
    pub(super) fn late(&mut self, now: Instant) -> Option<(Cid, Owner)> {
        let Station { machine, commands } = self.seat.get_mut()?;
        let is_late = |command: &Command| command.deadline.is_some_and(|it| it <= now);
        let (slot, command) = (0..).zip(commands).find_map(|(slot, command)| {
            let command = command.as_mut().filter(|command| is_late(command))?;
            Some((SlotId(slot), command))
        })?;
        command.deadline = None;
        Some((machine.cid(slot)?, command.owner))
    }

    /// When something is to be done even if nothing arrives.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let own = match self.phase {
            Phase::Closed => return None,
            Phase::Closing(until) => return Some(until),
            Phase::Faulty(_, until) => Some(until),
            Phase::Connecting | Phase::Greeting | Phase::Live => None,
        };
        let machine = self.seat.get().and_then(|it| it.machine.poll_timeout());
        let commands = self.commands().flatten();
        let deadlines = commands.filter_map(|command| command.deadline);
        sooner(sooner(own, machine), deadlines.min())
    }

    /// Reads and writes what there is, up to the first thing to report.
    ///
    /// # Errors
    /// There is no connection, or no more.
    pub(super) fn serve(
        &mut self,
        set: &mut SocketSet,
        crc32c: Crc32c,
        now: Instant,
    ) -> Result<Option<Arrival<'a>>, Error> {
        let socket = set.get_mut::<Socket>(self.socket);
        if self.phase == Phase::Connecting {
            match socket.state() {
                State::SynSent | State::SynReceived if self.timed_out(now) => {
                    return Err(Error::NoAnswer);
                }
                State::SynSent | State::SynReceived => return Ok(None),
                State::Closed => return Err(Error::NothingListens),
                _ => self.phase = Phase::Greeting,
            }
        }
        if matches!(self.phase, Phase::Closed | Phase::Closing(_)) {
            return Ok(None);
        }
        if let Some(event) = self.read(socket, now) {
            return self.arrived(event);
        }
        if let Some(event) = self.write(socket, crc32c) {
            return self.arrived(event);
        }
        if let Phase::Faulty(error, until) = self.phase
            && (self.has_said_all() || until <= now)
        {
            return Err(error);
        }
        self.is_alive(socket, now).map(|()| None)
    }

    /// Is done with the connection: says no more, and lets the controller end its side.
    pub(super) fn close(&mut self, set: &mut SocketSet, now: Instant) {
        if !matches!(self.phase, Phase::Closed | Phase::Closing(_)) {
            set.get_mut::<Socket>(self.socket).close();
            // Before the buffers that it writes from are given back.
            self.outgoing = Outgoing::default();
            self.phase = Phase::Closing(now.after(LINGER));
        }
    }

    /// Is done with the connection at once.
    pub(super) fn abort(&mut self, set: &mut SocketSet, now: Instant) {
        self.close(set, now);
        set.get_mut::<Socket>(self.socket).abort();
    }

    /// Helps a socket that is closed to its end.
    pub(super) fn wind_down(&mut self, set: &mut SocketSet, now: Instant) {
        let Phase::Closing(until) = self.phase else {
            return;
        };
        let socket = set.get_mut::<Socket>(self.socket);
        // What the controller still says would keep its FIN from being seen.
        while socket.can_recv() && socket.recv(|bytes| (bytes.len(), ())).is_ok() {}
        let has_rst_to_send = socket.state() == State::Closed && socket.remote_endpoint().is_some();
        if !socket.is_open() && (!has_rst_to_send || until <= now) {
            self.phase = Phase::Closed;
            self.seat.0 = Chair::Empty;
        } else if until <= now {
            socket.abort();
            self.phase = Phase::Closing(now.after(LINGER));
        }
    }

    /// Gives back a command that will not end any more.
    pub(super) fn recall(&mut self) -> Option<Command<'a>> {
        let commands = &mut self.seat.get_mut()?.commands;
        commands.iter_mut().find_map(Option::take)
    }

    fn commands(&self) -> impl Iterator<Item = Option<&Command<'a>>> {
        let station = self.seat.get().into_iter();
        station.flat_map(|station| station.commands.iter().map(Option::as_ref))
    }

    fn timed_out(&self, now: Instant) -> bool {
        let station = self.seat.get();
        station.is_some_and(|station| station.machine.timed_out(now))
    }

    fn has_said_all(&self) -> bool {
        let silent = |station: &Station<DEPTH>| !station.machine.wants_transmit();
        self.outgoing.is_empty() && self.seat.get().is_none_or(silent)
    }

    fn read(&mut self, socket: &mut Socket, now: Instant) -> Option<transport::Event> {
        let Station { machine, commands } = self.seat.get_mut()?;
        let buffers = &mut Buffers(commands);
        while socket.can_recv() {
            let outcome = socket.recv(|bytes| match machine.handle_input(bytes, buffers, now) {
                Ok((taken, event)) => (taken, Ok(event)),
                Err(fatal) => (bytes.len(), Err(fatal)),
            });
            match outcome {
                Ok(Ok(None)) => {}
                Ok(Ok(event)) => return event,
                Ok(Err(fatal)) => {
                    let error = host::Error::Transport(fatal).into();
                    self.phase = Phase::Faulty(error, now.after(LINGER));
                }
                Err(_) => break,
            }
        }
        None
    }

    fn write(&mut self, socket: &mut Socket, crc32c: Crc32c) -> Option<transport::Event> {
        let Station { machine, commands } = self.seat.get_mut()?;
        let mut speaking = Speaking {
            machine,
            commands,
            event: None,
        };
        self.outgoing.write(socket, &mut speaking, crc32c);
        speaking.event
    }

    fn arrived(&mut self, event: transport::Event) -> Result<Option<Arrival<'a>>, Error> {
        match event {
            transport::Event::Ready => {
                self.phase = Phase::Live;
                Ok(Some(Arrival::Ready))
            }
            transport::Event::Completed {
                slot,
                cqe,
                received,
                ..
            } => {
                let station = self.seat.get_mut();
                let commands = station.and_then(|it| it.commands.get_mut(slot.index()));
                Ok(commands.and_then(Option::take).map(|command| {
                    Arrival::Ended(Ended {
                        command,
                        cqe,
                        received,
                    })
                }))
            }
            transport::Event::Terminated(fatal) => Err(host::Error::Terminated(fatal).into()),
        }
    }

    /// Whether there is a connection still, once all is read that came by it.
    fn is_alive(&self, socket: &Socket, now: Instant) -> Result<(), Error> {
        let ended = if !socket.is_active() || socket.state() == State::TimeWait {
            Some(Error::Lost)
        } else if !socket.may_recv() && !socket.can_recv() {
            Some(Error::Closed)
        } else {
            None
        };
        match (self.phase, ended) {
            (Phase::Faulty(error, _), Some(_)) => Err(error),
            (Phase::Greeting, Some(_)) => Err(Error::NoIcResp),
            (Phase::Greeting, None) if self.timed_out(now) => Err(Error::NoIcResp),
            (_, Some(error)) => Err(error),
            (_, None) => Ok(()),
        }
    }
}

/// The buffers of a queue's commands.
struct Buffers<'q, 'a>(&'q mut [Option<Command<'a>>]);

impl DataBuffers for Buffers<'_, '_> {
    // Only commands carry data inside, and these go the other way.
    fn reserve(&mut self, _: SlotId, _: u32) -> bool {
        false
    }

    fn place(&mut self, place: Place) -> &mut [u8] {
        let command = self.0.get_mut(place.slot.index());
        let buffer = command.and_then(|command| command.as_mut()?.buffer.as_mut());
        buffer
            .and_then(|buffer| buffer.get_mut(place.offset as usize..))
            .and_then(|rest| rest.get_mut(..place.len as usize))
            .unwrap_or_default()
    }
}

struct Speaking<'q, 'a, const DEPTH: usize> {
    machine: &'q mut HostQueue<Fixed<DEPTH>>,
    commands: &'q [Option<Command<'a>>],
    /// What came about by sending. Nothing more is begun until it was reported.
    event: Option<transport::Event>,
}

impl<const DEPTH: usize> Speaker for Speaking<'_, '_, DEPTH> {
    fn wants_transmit(&self) -> bool {
        self.event.is_none() && self.machine.wants_transmit()
    }

    fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        let transmit = self.machine.poll_transmit(head)?;
        Some(Transmit {
            head_len: transmit.head_len,
            payload: transmit.payload.map(Source::Slot),
            data_digest: transmit.data_digest,
            finishes: transmit.slot,
        })
    }

    fn payload(&self, place: &Place) -> &[u8] {
        let command = self.commands.get(place.slot.index());
        let buffer = command.and_then(|command| command.as_ref()?.buffer.as_deref());
        buffer
            .and_then(|buffer| buffer.get(place.offset as usize..))
            .and_then(|rest| rest.get(..place.len as usize))
            .unwrap_or_default()
    }

    fn sent(&mut self, slot: SlotId) {
        self.event = self.machine.sent(slot);
    }
}
