//! One connection: a socket, and the machine that understands it.
use core::fmt;
use core::time::Duration;

use nvmf_core::Place;
use nvmf_core::SlotId;
use nvmf_core::block::Completion;
use nvmf_core::storage::Fixed;
use nvmf_core::target::ControllerState;
use nvmf_core::target::queue_pair::Notice;
use nvmf_core::tcp::connection::{CloseReason, TargetConnection};
use nvmf_core::tcp::target::{Config, Transmit};
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::time::{Instant, sooner};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, State};

use super::local::{Local, Surroundings};
use super::memory::Buffer;
use super::outgoing::{Outgoing, Speaker};
use super::target::{Closed, Event};

type Machine<'a, const DEPTH: usize> =
    TargetConnection<Fixed<DEPTH>, Buffer<'a>, &'a ControllerState>;

/// How long a host has to take what is left to say to it before the connection
/// is closed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the machine of a connection lives: most of what a connection takes
/// besides its rings. Its empty state is all zero, so that a static full of
/// them needs no flash.
#[allow(
    clippy::large_enum_variant,
    reason = "there is no allocator to box the machine with"
)]
#[repr(u8)]
enum Chair<'a, const DEPTH: usize> {
    Empty = 0,
    Taken(Machine<'a, DEPTH>) = 1,
}

/// Memory for the state of one connection, `DEPTH` commands included.
pub struct Seat<'a, const DEPTH: usize>(Chair<'a, DEPTH>);

impl<'a, const DEPTH: usize> Seat<'a, DEPTH> {
    /// Free.
    #[must_use]
    pub const fn new() -> Self {
        Self(Chair::Empty)
    }

    /// Makes a machine for a new connection. A function of its own, as a machine
    /// is on the stack before it is here.
    #[inline(never)]
    fn take(&mut self, config: &Config, connect_timeout: Duration, now: Instant) {
        self.0 = Chair::Taken(Machine::new(config, connect_timeout, now));
    }

    const fn get(&self) -> Option<&Machine<'a, DEPTH>> {
        match &self.0 {
            Chair::Taken(machine) => Some(machine),
            Chair::Empty => None,
        }
    }

    const fn get_mut(&mut self) -> Option<&mut Machine<'a, DEPTH>> {
        match &mut self.0 {
            Chair::Taken(machine) => Some(machine),
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
        f.write_str(if self.get().is_some() {
            "taken"
        } else {
            "free"
        })
    }
}

/// A socket that waits for a host, serves one, or is done with it.
pub(super) struct Connection<'a, const DEPTH: usize> {
    socket: SocketHandle,
    /// The machine of the host that connected, until devices hold none of its commands.
    seat: &'a mut Seat<'a, DEPTH>,
    phase: Phase,
    outgoing: Outgoing,
    /// When to close even if there is more to write.
    flush_by: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The socket listens, or will.
    Listening,
    Serving,
    /// The machine is done with the socket.
    Closing,
}

impl<'a, const DEPTH: usize> Connection<'a, DEPTH> {
    pub(super) fn new(socket: SocketHandle, seat: &'a mut Seat<'a, DEPTH>) -> Self {
        Self {
            socket,
            seat,
            phase: Phase::Listening,
            outgoing: Outgoing::default(),
            flush_by: None,
        }
    }

    /// Whether a host is served.
    pub(super) fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.is_serving() && self.seat.get().is_some_and(Machine::is_waiting)
    }

    /// When [`Connection::handle_timeout`] should be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let machine = self.seat.get().filter(|_| self.is_serving())?;
        sooner(self.flush_by, machine.poll_timeout())
    }

    /// Listens if nobody needs the socket any more. Whether it does.
    pub(super) fn listen(&mut self, sockets: &mut SocketSet, port: u16) -> bool {
        let socket = sockets.get_mut::<Socket>(self.socket);
        if self.phase == Phase::Closing && !socket.is_open() && self.seat.get().is_none() {
            self.phase = Phase::Listening;
        }
        // A port of 0 is refused when the target is made.
        self.phase == Phase::Listening && !socket.is_open() && socket.listen(port).is_ok()
            || socket.is_listening()
    }

    /// How little is lost if the socket is taken from its host: the most for
    /// none at all. `None` if it is in use.
    pub(super) fn dispensable(&self, sockets: &SocketSet) -> Option<u8> {
        let socket = sockets.get::<Socket>(self.socket);
        let unsent = socket.send_queue() > 0;
        match self.phase {
            // Its last words may be on their way still.
            Phase::Closing if socket.is_open() => Some(if unsent { 0 } else { 2 }),
            // The host knows what it did wrong, and has yet to close.
            Phase::Serving if self.is_terminating() && !unsent => Some(1),
            _ => None,
        }
    }

    /// Takes the socket from its host: it can listen after the interface was polled.
    pub(super) fn abort<const N: usize>(
        &mut self,
        sockets: &mut SocketSet,
        at: usize,
        local: &mut Local<'a, N>,
    ) {
        let socket = sockets.get_mut::<Socket>(self.socket);
        socket.abort();
        self.end(&mut local.seen_by(at));
    }

    /// A device finished an operation of a command.
    pub(super) fn block_completed<const N: usize>(
        &mut self,
        completion: Completion<Buffer<'a>>,
        env: &mut Surroundings<'_, 'a, N>,
    ) {
        if let Some(machine) = self.seat.get_mut() {
            machine.block_completed(completion, env);
        }
        self.forget_if_drained();
    }

    /// Lets commands that wait try again.
    pub(super) fn retry<const N: usize>(&mut self, env: &mut Surroundings<'_, 'a, N>) {
        if let Some(machine) = self.seat.get_mut() {
            machine.retry(env);
        }
    }

    /// A queue of this one's controller may have changed it.
    pub(super) fn controller_changed<const N: usize>(&mut self, env: &mut Surroundings<'_, 'a, N>) {
        if let Some(machine) = self.seat.get_mut().filter(|_| self.phase == Phase::Serving) {
            machine.controller_changed(env);
        }
    }

    pub(super) fn handle_timeout<const N: usize>(
        &mut self,
        now: Instant,
        env: &mut Surroundings<'_, 'a, N>,
    ) {
        if let Some(machine) = self.seat.get_mut()
            && machine.poll_timeout().is_some_and(|at| at <= now)
        {
            machine.handle_timeout(env);
        }
    }

    /// Reads and writes what there is. True if anything moved.
    pub(super) fn serve<const N: usize>(
        &mut self,
        sockets: &mut SocketSet,
        at: usize,
        config: &Config,
        connect_timeout: Duration,
        local: &mut Local<'a, N>,
        event: &mut impl FnMut(Event<'_>),
    ) -> bool {
        let socket = sockets.get_mut::<Socket>(self.socket);
        if self.phase == Phase::Listening && is_established(socket) {
            self.seat.take(config, connect_timeout, local.now);
            self.phase = Phase::Serving;
        }
        if self.phase == Phase::Closing {
            // What a host still says would keep its FIN from being seen.
            return socket.can_recv() && socket.recv(|bytes| (bytes.len(), ())).is_ok();
        }
        let (now, env) = (local.now, &mut local.seen_by(at));
        let Some(machine) = self.seat.get_mut().filter(|_| self.phase == Phase::Serving) else {
            return false;
        };
        let mut moved = false;
        while socket.can_recv() {
            let taken = socket.recv(|bytes| {
                let taken = machine.handle_input(bytes, env);
                (taken, taken)
            });
            if taken.unwrap_or(0) == 0 {
                break;
            }
            moved = true;
        }
        let speaker = &mut Speaking { machine, env };
        moved |= self.outgoing.write(socket, speaker, config.crc32c);
        while let Some(notice) = machine.poll_notice() {
            match (notice, machine.identity()) {
                (Notice::Connected, Some(identity)) => event(Event::Connected(at, identity)),
                (Notice::Refused(reason), _) => event(Event::Refused(at, reason)),
                (Notice::Connected, None) => {}
            }
        }
        if let Some(closed) = self.closed(socket, now) {
            event(Event::Closed(at, closed));
            if closed.is_abrupt() {
                socket.abort();
            } else {
                socket.close();
            }
            self.end(env);
            return true;
        }
        moved
    }

    /// Why the connection is over, if it is.
    fn closed(&mut self, socket: &Socket, now: Instant) -> Option<Closed> {
        let machine = self.seat.get()?;
        if !socket.is_active() || socket.state() == State::TimeWait {
            return Some(machine.closing().map_or(Closed::Lost, Closed::Machine));
        }
        let reason = machine.closing();
        if !socket.may_recv() && !socket.can_recv() {
            return Some(reason.map_or(Closed::Host, Closed::Machine));
        }
        let reason = reason?;
        if machine.must_close() {
            return Some(Closed::MachineAtOnce(reason));
        }
        // After a C2HTermReq it is for the host to close; the machine says when
        // that takes too long.
        let waits = matches!(reason, CloseReason::Fatal(_));
        let flushed = self.outgoing.is_empty() && !machine.wants_transmit();
        if flushed && !waits {
            return Some(Closed::Machine(reason));
        }
        if !waits {
            let deadline = *self.flush_by.get_or_insert(now.after(FLUSH_TIMEOUT));
            return (deadline <= now).then_some(Closed::MachineAtOnce(reason));
        }
        None
    }

    fn is_terminating(&self) -> bool {
        let reason = self.seat.get().and_then(Machine::closing);
        matches!(reason, Some(CloseReason::Fatal(_)))
    }

    /// The machine is done with the socket.
    fn end<const N: usize>(&mut self, env: &mut Surroundings<'_, 'a, N>) {
        self.phase = Phase::Closing;
        // Before the buffers that it writes from are given back.
        self.outgoing = Outgoing::default();
        self.flush_by = None;
        if let Some(machine) = self.seat.get_mut() {
            machine.connection_closed(env);
        }
        self.forget_if_drained();
    }

    fn forget_if_drained(&mut self) {
        if self.seat.get().is_some_and(Machine::is_drained) {
            self.seat.0 = Chair::Empty;
        }
    }
}

/// Whether a host has connected.
fn is_established(socket: &Socket) -> bool {
    socket.is_active() && socket.state() != State::SynReceived
}

struct Speaking<'m, 'l, 'a, const DEPTH: usize, const N: usize> {
    machine: &'m mut Machine<'a, DEPTH>,
    env: &'m mut Surroundings<'l, 'a, N>,
}

impl<const DEPTH: usize, const N: usize> Speaker for Speaking<'_, '_, '_, DEPTH, N> {
    fn wants_transmit(&self) -> bool {
        self.machine.wants_transmit()
    }

    fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        self.machine.poll_transmit(head)
    }

    fn payload(&self, place: &Place) -> &[u8] {
        self.machine.payload(place)
    }

    fn sent(&mut self, slot: SlotId) {
        self.machine.sent(slot, self.env);
    }
}
