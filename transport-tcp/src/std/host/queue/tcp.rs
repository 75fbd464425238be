//! A queue's connection over TCP.
use std::io::IoSliceMut;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant as Clock};

use nvmf_core::host;
use nvmf_core::tcp::host::{self as transport, Event, HostQueue};
use nvmf_core::tcp::rx::{Digests, Need};
use nvmf_core::tcp::target::Transmit;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::Cid;
use nvmf_core::wire::sqe::Sqe;
use nvmf_core::{DataBuffers, Place, SlotId, Source};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::SockRef;

use super::super::super::devices::Devices;
use super::super::super::growing::Growing;
use super::super::super::outbox::{Outbox, Speaker};
use super::super::commands::{Buffers, Command, Commands, Job, Memory, Part, Payload};
use super::super::error::Error;
use super::super::options::Options;
use super::super::socket;
use super::{Completion, Ends, Failure, Full, Line};

/// Bytes that one receive takes of what is not received in its place.
const SCRATCH: usize = 128 * 1024;

/// Bytes of it while long payloads are coming: enough for the next header, and little of the
/// payload after it, which is copied.
const SPILL: usize = 8 * 1024;

/// Receives of one poll, so that no queue has a thread for itself.
const RECEIVES: usize = 8;

/// Payload at least this long, in bytes, is received in its place.
const DIRECT: usize = 16 * 1024;

/// The time of what arrives. It is for how long the controller may take to close after our
/// TermReq, which nobody waits for here; so no clock is asked.
const UNTIMED: Instant = Instant::ZERO;

/// One TCP connection to a controller.
pub(super) struct TcpQueue {
    socket: TcpStream,
    peer: SocketAddr,
    machine: Machine,
    outbox: Outbox,
    crc32c: nvmf_core::digest::Crc32c,
    /// For what is not received in its place; made when it is first needed.
    scratch: Box<[u8]>,
    epoch: Clock,
    /// TCP has not connected yet.
    connecting: bool,
    /// The socket's buffer is not known to be full.
    writable: bool,
    /// More may have arrived than was taken.
    readable: bool,
    /// Long payloads are coming.
    bulk: bool,
    live: bool,
    depth: usize,
    outstanding: usize,
    system_calls: u64,
    /// Completed while something was sent.
    completed: Vec<Completion>,
    /// Why there is nothing more to be had, if that is so.
    failed: Option<Failure>,
    /// The system gave the connection up; nobody knows what the controller does.
    cut_off: bool,
    /// Why its association is lost, which may be known before this connection ends.
    association_lost: Arc<OnceLock<host::Error>>,
}

/// The transport's machine and the buffers of its commands.
struct Machine {
    transport: HostQueue<Growing>,
    commands: Commands,
}

impl TcpQueue {
    /// Begins to connect; [`Queue::poll`] goes on with it, until [`Queue::is_live`].
    pub(super) fn start(address: SocketAddr, options: &Options) -> Result<Self, Failure> {
        let socket = socket::connect(address, options)?;
        let config = options.tcp();
        let mut queue = Self {
            socket,
            peer: address,
            machine: Machine {
                transport: HostQueue::new(&config, Instant::ZERO),
                commands: Commands::default(),
            },
            outbox: Outbox::default(),
            crc32c: config.crc32c,
            scratch: Box::default(),
            epoch: Clock::now(),
            connecting: true,
            writable: true,
            readable: false,
            bulk: false,
            live: false,
            depth: 0,
            outstanding: 0,
            system_calls: 0,
            completed: Vec::new(),
            failed: None,
            cut_off: false,
            association_lost: Arc::default(),
        };
        queue.configure(1, nvmf_core::target::ADMIN_INLINE_DATA);
        Ok(queue)
    }

    /// Whether commands may be submitted.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// From now on it holds `depth` commands, and up to `inline_data` bytes may go
    /// inside a command's capsule.
    pub(super) fn configure(&mut self, depth: usize, inline_data: u32) {
        let depth = depth.min(transport::MAX_COMMANDS);
        self.machine.transport.configure(depth, inline_data);
        self.machine.commands.grow(depth);
        self.depth = depth;
    }

    /// Where the controller is.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The digests that both ends agreed to.
    pub(super) fn digests(&self) -> Digests {
        self.machine.transport.digests()
    }

    /// Commands that may be under way at a time.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Commands under way.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// System calls that the queue has made so far.
    pub(super) fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// Like [`Queue::submit`], but it is sent with the next [`Queue::flush`] or [`Queue::poll`].
    ///
    /// # Errors
    /// [`Full`], when [`Queue::depth`] commands are under way.
    pub(super) fn enqueue(&mut self, sqe: &Sqe, payload: Payload, tag: u64) -> Result<(), Full> {
        if self.room() == 0 {
            return Err(Full(payload));
        }
        let Some(slot) = self.machine.transport.submit(sqe, payload.data()) else {
            return Err(Full(payload));
        };
        let (buffers, _) = payload.into_parts();
        self.put(slot, Memory::Own(buffers), tag);
        Ok(())
    }

    /// Commands that may be added to those under way.
    pub(super) fn room(&self) -> usize {
        self.depth.saturating_sub(self.outstanding)
    }

    /// Takes buffers whose parts are the data of several commands.
    pub(super) fn hold(&mut self, buffers: Buffers) -> Job {
        self.machine.commands.open(buffers)
    }

    /// Gives them back, when none of these commands is under way, or the connection is lost.
    pub(super) fn release(&mut self, job: Job) -> Buffers {
        self.machine.commands.close(job)
    }

    /// Like [`Queue::enqueue`], with a part of buffers that the queue has. False when it is full.
    pub(super) fn enqueue_part(&mut self, sqe: &Sqe, part: Part, tag: u64) -> bool {
        if self.room() == 0 {
            return false;
        }
        let Some(slot) = self.machine.transport.submit(sqe, part.data) else {
            return false;
        };
        self.put(slot, Memory::Shared(part.job, part.at), tag);
        true
    }

    fn put(&mut self, slot: SlotId, memory: Memory, tag: u64) {
        self.machine.commands.put(slot, Command { tag, memory });
        self.outstanding += 1;
    }

    /// Commands under way: their CIDs and tags.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (Option<Cid>, u64)> {
        let Machine {
            transport,
            commands,
        } = &self.machine;
        commands
            .iter()
            .map(|(slot, command)| (transport.cid(slot), command.tag))
    }

    /// Sends what there is to send, as far as the socket takes it.
    pub(super) fn flush(&mut self) {
        if self.failed.is_some() {
            return;
        }
        if let Err(failure) = self.connected().and_then(|()| self.transmit()) {
            self.fail(failure);
        }
    }

    /// Like [`TcpQueue::service`], with memory of its own.
    pub(super) fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), Failure> {
        let mut scratch = std::mem::take(&mut self.scratch);
        if scratch.is_empty() {
            scratch = vec![0; SCRATCH].into_boxed_slice();
        }
        let outcome = self.poll_with(&mut scratch, completions);
        self.scratch = scratch;
        outcome
    }

    /// Like [`TcpQueue::service`], for those who hear from nobody that the socket takes more again.
    pub(super) fn poll_with(
        &mut self,
        scratch: &mut [u8],
        completions: &mut Vec<Completion>,
    ) -> Result<(), Failure> {
        self.writable = true;
        self.service(scratch, completions)
    }

    /// [`Queue::poll`](super::Queue::poll), with memory of the caller's for what is not
    /// received in its place.
    pub(super) fn service(
        &mut self,
        scratch: &mut [u8],
        completions: &mut Vec<Completion>,
    ) -> Result<(), Failure> {
        self.flush();
        if self.failed.is_none()
            && let Err(failure) = self.receive(scratch)
        {
            self.fail(failure);
            // A TermReq, if the machine has one to send.
            let _ = self.transmit();
        }
        self.take_completed(completions);
        self.failed.map_or(Ok(()), Err)
    }

    /// What has completed while something was sent.
    pub(super) fn take_completed(&mut self, completions: &mut Vec<Completion>) {
        if completions.is_empty() {
            std::mem::swap(completions, &mut self.completed);
        } else {
            completions.append(&mut self.completed);
        }
    }

    /// Why there is no connection any more, if that is so.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failed
    }

    /// Whether [`Queue::poll`] is to be called again, though nothing new arrives.
    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether the socket takes more, as far as is known.
    pub(super) fn is_writable(&self) -> bool {
        self.writable && !self.connecting
    }

    /// The socket takes more again.
    pub(super) fn set_writable(&mut self) {
        self.writable = true;
    }

    /// Sleeps until [`Queue::poll`] has something to do, and no longer than `timeout`.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        if !self.completed.is_empty() || self.failed.is_some() || self.readable {
            return Ok(());
        }
        let mut interest = PollFlags::IN;
        if self.connecting {
            interest = PollFlags::OUT;
        } else if !self.writable {
            interest |= PollFlags::OUT;
        }
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec {
            tv_sec: 3600,
            tv_nsec: 0,
        });
        let mut fds = [PollFd::new(&self.socket, interest)];
        self.system_calls += 1;
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::Lost(error.into())),
        }
        self.writable |= fds[0].revents().intersects(PollFlags::OUT);
        Ok(())
    }

    /// Looks whether TCP has connected, if it is not known.
    fn connected(&mut self) -> Result<(), Failure> {
        if !self.connecting {
            return Ok(());
        }
        match rustix::net::sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => return Err(Failure::Connect(error)),
        }
        if rustix::net::getpeername(&self.socket).is_ok() {
            self.connecting = false;
            self.writable = true;
        } else if self.machine.transport.timed_out(self.now()) {
            return Err(Failure::Connect(Errno::TIMEDOUT));
        }
        Ok(())
    }

    fn fail(&mut self, failure: Failure) {
        let failure = match (failure, self.association_lost.get()) {
            (Failure::Closed | Failure::Lost(_), Some(error)) => Failure::Controller(*error),
            // Whoever hangs up already is no target, or none that is ready.
            (Failure::Closed | Failure::Lost(_), None) if !self.live => Failure::NoIcResp,
            (failure, _) => failure,
        };
        self.failed.get_or_insert(failure);
    }

    /// What another thread ends the connection with.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(super) fn line(&self) -> Result<Line, Error> {
        Ok(Line {
            ends: Ends::Tcp(self.socket.try_clone()?),
            association_lost: Arc::clone(&self.association_lost),
        })
    }

    /// A command was not answered in time: nobody knows what becomes of it, so nothing
    /// more is asked of this connection.
    pub(super) fn give_up(&mut self) {
        self.failed.get_or_insert(Failure::GivenUp);
        // Whether there was something left to close does not matter.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Sends nothing any more; what comes is for [`Queue::has_ended`]. False when the
    /// connection has ended in both directions.
    pub(super) fn linger(&mut self) -> bool {
        match self.failed.replace(Failure::GivenUp) {
            Some(Failure::Closed | Failure::Connect(_)) => return false,
            Some(Failure::Lost(error)) => self.cut_off = !is_of_the_peer(error),
            _ if self.connecting => return false,
            _ => {
                if self.socket.shutdown(Shutdown::Write).is_ok() {
                    return true;
                }
                let error = self.socket.take_error().ok().flatten();
                let error = error.as_ref().and_then(Errno::from_io_error);
                self.cut_off = !error.is_some_and(is_of_the_peer);
            }
        }
        self.cut_off
    }

    /// Throws away what has arrived; whether the controller has ended the connection.
    pub(super) fn has_ended(&mut self, scratch: &mut [u8]) -> bool {
        self.readable = false;
        if self.cut_off {
            return false;
        }
        for _ in 0..RECEIVES {
            match rustix::net::recv(&self.socket, &mut scratch[..], RecvFlags::empty()) {
                Ok((0, _)) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(error) => {
                    self.cut_off = !is_of_the_peer(error);
                    return !self.cut_off;
                }
            }
        }
        self.readable = true;
        false
    }

    /// Drops the connection, and what the system has not sent of it.
    pub(super) fn abort(self) {
        if let Err(error) = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO)) {
            tracing::debug!(%error, "SO_LINGER");
        }
    }

    /// The time as the machines see it.
    pub(super) fn now(&self) -> Instant {
        let micros = self.epoch.elapsed().as_micros();
        Instant::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    fn transmit(&mut self) -> Result<(), Failure> {
        let no_devices = Devices::default();
        while self.is_writable() {
            if self.outbox.is_empty() {
                self.outbox.clear();
                self.outbox.fill(&mut self.machine, self.crc32c);
                if self.outbox.is_empty() {
                    return Ok(());
                }
            }
            self.system_calls += 1;
            let sent = self
                .outbox
                .send(&self.machine, &no_devices, &self.socket)
                .map_err(|_| Failure::Closed)?;
            match sent {
                Ok(sent) => self.outbox.wrote(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.writable = false,
                Err(error) => return Err(Failure::Lost(error)),
            }
            while let Some(slot) = self.outbox.pop_sent() {
                let event = self.machine.transport.sent(slot);
                self.event(event)?;
            }
        }
        Ok(())
    }

    /// Takes what has arrived, up to a bound.
    fn receive(&mut self, scratch: &mut [u8]) -> Result<(), Failure> {
        self.readable = false;
        if self.connecting {
            return Ok(());
        }
        for _ in 0..RECEIVES {
            let direct = match self.machine.transport.need() {
                Need::Payload(place) if place.len as usize >= DIRECT => {
                    Some(self.machine.commands.place(place)).filter(|bytes| !bytes.is_empty())
                }
                _ => None,
            };
            let direct_len = direct.as_ref().map_or(0, |bytes| bytes.len());
            let most = if self.bulk || direct_len > 0 {
                SPILL.min(scratch.len())
            } else {
                scratch.len()
            };
            let scratch = &mut scratch[..most];
            let room = direct_len + scratch.len();
            self.system_calls += 1;
            let received = match direct {
                Some(bytes) => rustix::io::readv(
                    &self.socket,
                    &mut [IoSliceMut::new(bytes), IoSliceMut::new(scratch)],
                ),
                None => rustix::net::recv(&self.socket, &mut scratch[..], RecvFlags::empty())
                    .map(|(received, _)| received),
            };
            let received = match received {
                Ok(0) => return Err(Failure::Closed),
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    // Asked each time that a caller polls in vain, so no clock without need.
                    let deadline = self.machine.transport.poll_timeout();
                    let late = deadline.is_some_and(|deadline| deadline <= self.now());
                    return if late { Err(Failure::NoIcResp) } else { Ok(()) };
                }
                Err(error) => return Err(Failure::Lost(error)),
            };
            let placed = direct_len.min(received);
            if placed > 0
                && let Need::Payload(place) = self.machine.transport.need()
            {
                let len = u32::try_from(placed).unwrap_or(u32::MAX);
                let bytes = self.machine.commands.place(Place { len, ..place });
                let event = self.machine.transport.placed(bytes);
                self.event(event)?;
            }
            self.input(&scratch[..received - placed])?;
            self.bulk = match self.machine.transport.need() {
                Need::Payload(place) => place.len as usize >= DIRECT,
                _ => placed > 0,
            };
            if received < room {
                return Ok(());
            }
        }
        self.readable = true;
        Ok(())
    }

    fn input(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Machine {
                transport,
                commands,
            } = &mut self.machine;
            let (taken, event) = transport
                .handle_input(rest, commands, UNTIMED)
                .map_err(|fatal| Failure::Controller(host::Error::Transport(fatal)))?;
            rest = &rest[taken..];
            self.event(event)?;
        }
        // What came may have asked for data.
        self.transmit()
    }

    fn event(&mut self, event: Option<Event>) -> Result<(), Failure> {
        match event {
            None => Ok(()),
            Some(Event::Ready) => {
                self.live = true;
                Ok(())
            }
            Some(Event::Terminated(fatal)) => {
                Err(Failure::Controller(host::Error::Terminated(fatal)))
            }
            Some(Event::Completed {
                slot,
                cqe,
                received,
                ..
            }) => {
                let Some(command) = self.machine.commands.take(slot) else {
                    return Ok(());
                };
                self.outstanding -= 1;
                self.completed
                    .push(command.complete(cqe, received as usize));
                Ok(())
            }
        }
    }
}

impl AsFd for TcpQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether an error says that the peer reset the connection. If it is unreachable or silent,
/// it may well go on with what it received.
fn is_of_the_peer(error: Errno) -> bool {
    matches!(error, Errno::CONNRESET | Errno::PIPE)
}

impl Speaker for Machine {
    fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        let transmit = self.transport.poll_transmit(head)?;
        Some(Transmit {
            head_len: transmit.head_len,
            payload: transmit.payload.map(Source::Slot),
            data_digest: transmit.data_digest,
            finishes: transmit.slot,
        })
    }

    fn payload(&self, place: &Place) -> &[u8] {
        self.commands.payload(place).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a connection that failed so, and that the peer closes then: whether it
    /// lingers, and whether it is taken for ended.
    fn after(failure: Failure) -> (bool, bool) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut queue = TcpQueue::start(address, &Options::default()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        queue.connected().unwrap();
        assert!(!queue.connecting);
        queue.failed = Some(failure);
        let lingers = queue.linger();
        drop(peer);
        queue.wait_for_peer();
        (lingers, queue.has_ended(&mut [0; 64]))
    }

    impl TcpQueue {
        fn wait_for_peer(&self) {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            let patience = Timespec {
                tv_sec: 30,
                tv_nsec: 0,
            };
            assert_eq!(rustix::event::poll(&mut fds, Some(&patience)), Ok(1));
        }
    }

    #[test]
    fn only_the_peer_s_end_is_a_connection_s_end() {
        assert_eq!(after(Failure::GivenUp), (true, true));
        assert!(!after(Failure::Closed).0);
        for error in [Errno::CONNRESET, Errno::PIPE] {
            assert!(!after(Failure::Lost(error)).0, "{error}");
        }
        // It is silent, or nobody knows the way to it: it may go on with what it received.
        for error in [
            Errno::TIMEDOUT,
            Errno::HOSTUNREACH,
            Errno::NETUNREACH,
            Errno::NETDOWN,
        ] {
            assert_eq!(after(Failure::Lost(error)), (true, false), "{error}");
        }
    }
}
