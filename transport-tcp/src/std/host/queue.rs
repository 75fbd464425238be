//! A queue that its caller polls: no other thread, no wake-up, no lock.
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant as Clock};

use nvmf_core::host;
use nvmf_core::tcp::host::{self as transport, Data, Event, HostQueue};
use nvmf_core::tcp::rx::{Digests, Need};
use nvmf_core::tcp::target::Transmit;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::time::Instant;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::sqe::Sqe;
use nvmf_core::{DataBuffers, Place, SlotId, Source};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::SockRef;

use super::super::buffer::Buffer;
use super::super::devices::Devices;
use super::super::growing::Growing;
use super::super::outbox::{Outbox, Speaker};
use super::error::Error;

/// Bytes that one receive takes of what is not received in its place.
const SCRATCH: usize = 128 * 1024;

/// Payload at least this long, in bytes, is received in its place.
const DIRECT: usize = 16 * 1024;

/// The data of a command. The queue has the buffer until the command completes.
#[derive(Debug)]
pub enum Payload {
    /// None.
    Nothing,
    /// At most the buffer's length comes from the controller.
    Read(Buffer),
    /// The whole buffer goes to the controller.
    Write(Buffer),
}

/// A command that ended.
#[derive(Debug)]
pub struct Completion {
    /// What [`Queue::submit`] was given.
    pub tag: u64,
    /// What the controller says.
    pub cqe: Cqe,
    /// The command's buffer.
    pub buffer: Option<Buffer>,
    /// Bytes that came into it.
    pub received: usize,
}

impl Completion {
    /// The data that came.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let buffer = self.buffer.as_ref().map_or(&[][..], AsRef::as_ref);
        buffer.get(..self.received).unwrap_or_default()
    }
}

/// As many commands are under way as the queue holds. The payload comes back.
#[derive(Debug, thiserror::Error)]
#[error("the queue is full")]
pub struct Full(pub Payload);

/// One connection to a controller, with commands under way.
///
/// [`Queue::submit`] sends at once, in the caller's context; [`Queue::poll`] takes
/// what has arrived, many completions in one system call; [`Queue::wait`] sleeps until
/// there is something to do. For several commands in one system call, use
/// [`Queue::enqueue`] for each and [`Queue::flush`] once.
pub struct Queue {
    socket: TcpStream,
    peer: SocketAddr,
    machine: Machine,
    outbox: Outbox,
    crc32c: nvmf_core::digest::Crc32c,
    scratch: Box<[u8]>,
    epoch: Clock,
    /// The socket's buffer is not known to be full.
    writable: bool,
    live: bool,
    depth: usize,
    outstanding: usize,
    system_calls: u64,
    /// Completed while something was sent.
    completed: Vec<Completion>,
    /// Why there is nothing more to be had, if that is so.
    failed: Option<Failure>,
}

/// Kept, because it is said again to whoever asks later.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Controller(host::Error),
    Closed,
    Lost(Errno),
    NoIcResp,
    GivenUp,
}

/// The transport's machine and the buffers of its commands, by slot.
struct Machine {
    transport: HostQueue<Growing>,
    commands: Commands,
}

#[derive(Default)]
struct Commands(Vec<Command>);

#[derive(Default)]
struct Command {
    tag: u64,
    buffer: Option<Buffer>,
}

impl Queue {
    /// Connects, and exchanges ICReq and ICResp within `timeout`.
    pub(super) fn open(
        address: SocketAddr,
        config: &transport::Config,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let connect = |source| Error::connect(address, source);
        let socket = TcpStream::connect_timeout(&address, timeout).map_err(connect)?;
        let options = SockRef::from(&socket);
        options.set_tcp_nodelay(true).map_err(connect)?;
        options.set_nonblocking(true).map_err(connect)?;
        let config = transport::Config {
            icresp_timeout: timeout,
            ..*config
        };
        let mut queue = Self {
            socket,
            peer: address,
            machine: Machine {
                transport: HostQueue::new(&config, Instant::ZERO),
                commands: Commands::default(),
            },
            outbox: Outbox::default(),
            crc32c: config.crc32c,
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            epoch: Clock::now(),
            writable: true,
            live: false,
            depth: 0,
            outstanding: 0,
            system_calls: 0,
            completed: Vec::new(),
            failed: None,
        };
        queue.configure(1, nvmf_core::target::ADMIN_INLINE_DATA);
        let mut none = Vec::new();
        queue.flush();
        while !queue.live {
            // Whoever hangs up already is no target, or none that is ready.
            queue.poll(&mut none).map_err(|error| match error {
                Error::Closed | Error::Lost(_) => Error::NoIcResp { address },
                error => error,
            })?;
            if !queue.live {
                queue.wait(timeout)?;
            }
        }
        Ok(queue)
    }

    /// From now on it holds `depth` commands, and up to `inline_data` bytes may go
    /// inside a command's capsule.
    pub(super) fn configure(&mut self, depth: usize, inline_data: u32) {
        let depth = depth.min(transport::MAX_COMMANDS);
        self.machine.transport.configure(depth, inline_data);
        self.depth = depth;
    }

    /// Where the controller is.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The digests that both ends agreed to.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.machine.transport.digests()
    }

    /// Commands that may be under way at a time.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Commands under way.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// System calls that the queue has made so far.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// Sends a command. `tag` comes back with its completion. A connection that is
    /// lost shows in [`Queue::poll`].
    ///
    /// # Errors
    /// [`Full`], when [`Queue::depth`] commands are under way.
    pub fn submit(&mut self, sqe: &Sqe, payload: Payload, tag: u64) -> Result<(), Full> {
        self.enqueue(sqe, payload, tag)?;
        self.flush();
        Ok(())
    }

    /// Like [`Queue::submit`], but it is sent with the next [`Queue::flush`] or [`Queue::poll`].
    ///
    /// # Errors
    /// [`Full`], when [`Queue::depth`] commands are under way.
    pub fn enqueue(&mut self, sqe: &Sqe, payload: Payload, tag: u64) -> Result<(), Full> {
        if self.outstanding >= self.depth {
            return Err(Full(payload));
        }
        let len = |buffer: &Buffer| u32::try_from(buffer.as_ref().len()).unwrap_or(u32::MAX);
        let data = match &payload {
            Payload::Nothing => Data::Nothing,
            Payload::Read(buffer) => Data::ToHost(len(buffer)),
            Payload::Write(buffer) => Data::FromHost(len(buffer)),
        };
        let Some(slot) = self.machine.transport.submit(sqe, data) else {
            return Err(Full(payload));
        };
        let buffer = match payload {
            Payload::Nothing => None,
            Payload::Read(buffer) | Payload::Write(buffer) => Some(buffer),
        };
        self.machine.commands.put(slot, Command { tag, buffer });
        self.outstanding += 1;
        Ok(())
    }

    /// Sends what there is to send, as far as the socket takes it.
    pub fn flush(&mut self) {
        if self.failed.is_some() {
            return;
        }
        if let Err(failure) = self.transmit() {
            self.failed.get_or_insert(failure);
        }
    }

    /// Takes what has arrived, without waiting, and appends what has completed.
    ///
    /// # Errors
    /// There is no connection any more: commands under way will not complete.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), Error> {
        self.flush();
        if self.failed.is_none()
            && let Err(failure) = self.receive()
        {
            self.failed.get_or_insert(failure);
            // A TermReq, if the machine has one to send.
            let _ = self.transmit();
        }
        completions.append(&mut self.completed);
        match self.failed {
            None => Ok(()),
            Some(failure) => Err(failure.error(self.peer)),
        }
    }

    /// Sleeps until [`Queue::poll`] has something to do, and no longer than `timeout`.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        if !self.completed.is_empty() || self.failed.is_some() {
            return Ok(());
        }
        let mut interest = PollFlags::IN;
        if !self.writable {
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

    /// A command was not answered in time: nobody knows what becomes of it, so nothing
    /// more is asked of this connection.
    pub(super) fn give_up(&mut self) {
        self.failed.get_or_insert(Failure::GivenUp);
        // Whether there was something left to close does not matter.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// The time as the machines see it.
    pub(super) fn now(&self) -> Instant {
        let micros = self.epoch.elapsed().as_micros();
        Instant::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    fn transmit(&mut self) -> Result<(), Failure> {
        let no_devices = Devices::default();
        while self.writable {
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
                .gather(&self.machine, &no_devices)
                .map_err(|_| Failure::Closed)?
                .send(&self.socket, SendFlags::empty());
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

    fn receive(&mut self) -> Result<(), Failure> {
        loop {
            let direct = match self.machine.transport.need() {
                Need::Payload(place) if place.len as usize >= DIRECT => {
                    Some(self.machine.commands.place(place)).filter(|bytes| !bytes.is_empty())
                }
                _ => None,
            };
            let direct_len = direct.as_ref().map_or(0, |bytes| bytes.len());
            let room = direct_len + self.scratch.len();
            self.system_calls += 1;
            let received = match direct {
                Some(bytes) => rustix::io::readv(
                    &self.socket,
                    &mut [IoSliceMut::new(bytes), IoSliceMut::new(&mut self.scratch)],
                ),
                None => rustix::net::recv(&self.socket, &mut self.scratch[..], RecvFlags::empty())
                    .map(|(received, _)| received),
            };
            let received = match received {
                Ok(0) => return Err(Failure::Closed),
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    let late = self.machine.transport.timed_out(self.now());
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
            self.input(received - placed)?;
            if received < room {
                return Ok(());
            }
        }
    }

    /// The first `len` bytes of the scratch buffer came.
    fn input(&mut self, len: usize) -> Result<(), Failure> {
        let now = self.now();
        let mut used = 0;
        while used < len {
            let bytes = &self.scratch[used..len];
            let Machine {
                transport,
                commands,
            } = &mut self.machine;
            let (taken, event) = transport
                .handle_input(bytes, commands, now)
                .map_err(|fatal| Failure::Controller(host::Error::Transport(fatal)))?;
            used += taken;
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
                let Command { tag, buffer } = self.machine.commands.take(slot);
                self.outstanding -= 1;
                self.completed.push(Completion {
                    tag,
                    cqe,
                    buffer,
                    received: received as usize,
                });
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("peer", &self.peer)
            .field("depth", &self.depth)
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}

impl Failure {
    fn error(self, address: SocketAddr) -> Error {
        match self {
            Self::Controller(error) => error.into(),
            Self::Closed => Error::Closed,
            Self::Lost(errno) => Error::Lost(io::Error::from(errno)),
            Self::NoIcResp => Error::NoIcResp { address },
            Self::GivenUp => Error::GivenUp,
        }
    }
}

impl Commands {
    fn put(&mut self, slot: SlotId, command: Command) {
        if self.0.len() <= slot.index() {
            self.0.resize_with(slot.index() + 1, Command::default);
        }
        self.0[slot.index()] = command;
    }

    fn take(&mut self, slot: SlotId) -> Command {
        self.0
            .get_mut(slot.index())
            .map(std::mem::take)
            .unwrap_or_default()
    }

    fn range(place: &Place) -> std::ops::Range<usize> {
        let from = place.offset as usize;
        from..from.saturating_add(place.len as usize)
    }
}

impl DataBuffers for Commands {
    /// Buffers come with the commands.
    fn reserve(&mut self, _: SlotId, _: u32) -> bool {
        false
    }

    fn place(&mut self, place: Place) -> &mut [u8] {
        self.0
            .get_mut(place.slot.index())
            .and_then(|command| command.buffer.as_mut())
            .and_then(|buffer| buffer.as_mut().get_mut(Self::range(&place)))
            .unwrap_or_default()
    }
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
        let command = self.commands.0.get(place.slot.index());
        command
            .and_then(|command| command.buffer.as_ref())
            .and_then(|buffer| buffer.as_ref().get(Commands::range(place)))
            .unwrap_or_default()
    }
}
