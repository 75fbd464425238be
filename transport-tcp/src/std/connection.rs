//! One connection: a socket, and the machine that understands it.
use std::fmt;
use std::io::IoSliceMut;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use nvmf_core::block::Completion;
use nvmf_core::target::Catalog;
use nvmf_core::target::queue_pair::Notice;
use nvmf_core::tcp::connection::{CloseReason, TargetConnection};
use nvmf_core::time::{Instant, sooner};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::buffer::Buffer;
use super::catalog::OwnedListener;
use super::growing::Growing;
use super::local::{Account, Local, Surroundings, Teller};
use super::outbox::Outbox;
use super::shared::Controller;
use super::slots::Key;
use super::timers::Armed;

pub(super) type Machine = TargetConnection<Growing, Buffer, Controller>;

/// Bytes that a connection may move each way before others have their turn.
const TURN: usize = 256 * 1024;

/// Payload at least this long, in bytes, is received in its place; what is
/// shorter comes by the worker's buffer, several PDUs at a time.
const DIRECT: usize = 16 * 1024;

/// Bytes received by the worker's buffer while long payloads are coming: enough
/// for the next header, and little of the payload after it, which is copied.
const SPILL: usize = 8 * 1024;

/// How long a host has to take what is left to say to it before the connection
/// is closed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Connection {
    machine: Machine,
    pub(super) account: Account,
    socket: Option<TcpStream>,
    /// The socket, after the end. It is closed with this, when no device has anything of the
    /// connection any more: so a host that sees our end knows that none of its writes comes late.
    _ended: Option<TcpStream>,
    peer: SocketAddr,
    outbox: Option<Outbox>,
    /// When to close even if there is more to write.
    flush_by: Option<Instant>,
    /// The socket may have bytes to read, and room for bytes to write.
    readable: bool,
    writable: bool,
    /// Long payloads are coming.
    bulk: bool,
    /// The peer closed, or the socket failed: read on until that shows.
    hung_up: bool,
    /// In the worker's list of connections to serve.
    pub(super) scheduled: bool,
    /// In the worker's list of connections that wait for buffers or devices.
    pub(super) waiting: bool,
    pub(super) armed: Armed,
}

/// What epoll says of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readiness {
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) hung_up: bool,
}

impl Readiness {
    /// There may be something to read.
    pub(super) const READABLE: Self = Self {
        readable: true,
        writable: false,
        hung_up: false,
    };
}

/// Why there is no connection any more, if it is not for the machine to say.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("the host closed the connection")]
    Closed,
    #[error("connection lost: {0}")]
    Failed(#[from] Errno),
    #[error("a device lent no memory")]
    NotLent,
}

impl Connection {
    /// A connection just accepted.
    pub(super) fn new(
        key: Key,
        socket: TcpStream,
        peer: SocketAddr,
        listener: OwnedListener,
        local: &Local,
    ) -> Self {
        Self {
            machine: Machine::new(
                &local.shared.transport,
                local.shared.connect_timeout,
                local.now,
            ),
            account: Account {
                key,
                listener,
                buffers: 0,
                in_devices: 0,
                controller: None,
                to_place: None,
                placed: None,
            },
            socket: Some(socket),
            _ended: None,
            peer,
            outbox: None,
            flush_by: None,
            readable: true,
            writable: true,
            bulk: false,
            hung_up: false,
            scheduled: false,
            waiting: false,
            armed: Armed::default(),
        }
    }

    pub(super) fn socket(&self) -> Option<&TcpStream> {
        self.socket.as_ref()
    }

    pub(super) fn ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        self.writable |= readiness.writable;
        self.hung_up |= readiness.hung_up;
    }

    /// Reads and writes what there is, within bounds. True if there is more.
    pub(super) fn serve(&mut self, scratch: &mut [u8], local: &mut Local) -> bool {
        let outcome = self
            .receive(scratch, local)
            .and_then(|more| Ok(self.transmit(local)? || more));
        let more = outcome.unwrap_or_else(|lost| {
            self.close(&lost, local);
            false
        });
        self.notices(local);
        self.close_if_due(local);
        more && self.socket.is_some()
    }

    /// A device finished an operation of a command.
    pub(super) fn block_completed(&mut self, completion: Completion<Buffer>, local: &mut Local) {
        self.account.in_devices -= 1;
        let (machine, mut surroundings) = self.split(local);
        machine.block_completed(completion, &mut surroundings);
    }

    /// Lets commands that wait try again.
    pub(super) fn retry(&mut self, local: &mut Local) {
        let (machine, mut surroundings) = self.split(local);
        machine.retry(&mut surroundings);
    }

    /// Another queue changed this one's controller.
    pub(super) fn controller_changed(&mut self, local: &mut Local) {
        let (machine, mut surroundings) = self.split(local);
        machine.controller_changed(&mut surroundings);
    }

    pub(super) fn handle_timeout(&mut self, local: &mut Local) {
        if self.flush_by.is_some_and(|deadline| deadline <= local.now) {
            self.close(&"the host does not read", local);
            return;
        }
        let (machine, mut surroundings) = self.split(local);
        machine.handle_timeout(&mut surroundings);
    }

    /// Finishes what is under way, then closes. An admin queue closes only after
    /// the I/O queues, which go with it; it is asked again when one left.
    pub(super) fn shut_down(&mut self, local: &Local) {
        let waits = match (&self.account.controller, self.machine.identity()) {
            (Some(controller), Some(identity)) => {
                identity.qid.is_admin() && local.shared.io_queues(controller) > 0
            }
            _ => false,
        };
        if !waits {
            self.machine.shut_down();
        }
    }

    /// Closes now, whatever is under way.
    pub(super) fn abort(&mut self, local: &mut Local) {
        self.close(&"the target did not finish in time", local);
    }

    /// Whether it is one of the controller's queues.
    pub(super) fn belongs_to(&self, controller: &Controller) -> bool {
        let mine = self.account.controller.as_ref();
        mine.is_some_and(|mine| Arc::ptr_eq(mine, controller))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.socket {
            Some(_) => sooner(self.flush_by, self.machine.poll_timeout()),
            None => None,
        }
    }

    pub(super) fn wants_retry(&self) -> bool {
        self.machine.is_waiting()
    }

    /// Closed, and nothing of it is in the hands of a device.
    pub(super) fn is_over(&self) -> bool {
        self.socket.is_none() && self.machine.is_drained()
    }

    /// Whether it can go to another worker: it leaves nothing behind.
    pub(super) fn can_move(&self) -> bool {
        self.socket.is_some() && self.account.in_devices == 0 && self.outbox.is_none()
    }

    /// It came to another worker, under another name.
    pub(super) fn moved(&mut self, key: Key) {
        self.account.key = key;
        // Whatever happened meanwhile, this worker's epoll has not told.
        (self.readable, self.writable) = (true, true);
        (self.scheduled, self.waiting) = (false, false);
        self.armed = Armed::default();
    }

    fn split<'a>(&'a mut self, local: &'a mut Local) -> (&'a mut Machine, Surroundings<'a>) {
        let account = &mut self.account;
        (&mut self.machine, Surroundings { local, account })
    }

    /// Reads within bounds. True if there is more.
    fn receive(&mut self, scratch: &mut [u8], local: &mut Local) -> Result<bool, Lost> {
        let mut budget = TURN;
        while (self.readable || self.hung_up) && budget > 0 {
            let Some(socket) = &self.socket else {
                return Ok(false);
            };
            let direct = self
                .machine
                .payload_mut()
                .filter(|payload| payload.len() >= DIRECT);
            let placed = direct.as_ref().map_or(0, |payload| payload.len());
            let bulk = self.bulk || direct.is_some();
            let spill = if bulk { SPILL } else { scratch.len() };
            let scratch = &mut scratch[..spill];
            let room = placed + scratch.len();
            let received = match direct {
                Some(payload) => rustix::io::readv(
                    socket,
                    &mut [IoSliceMut::new(payload), IoSliceMut::new(scratch)],
                ),
                None => rustix::net::recv(socket, &mut *scratch, RecvFlags::empty())
                    .map(|(received, _)| received),
            };
            let received = match received {
                Ok(0) => return Err(Lost::Closed),
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.readable = false;
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            };
            // Edges: what comes from now on will be told.
            self.readable = received == room;
            budget = budget.saturating_sub(received);
            local.worked = true;
            let placed = placed.min(received);
            let (machine, mut surroundings) = self.split(local);
            if placed > 0 {
                machine.payload_received(placed, &mut surroundings);
            }
            machine.handle_input(&scratch[..received - placed], &mut surroundings);
            let next = machine.payload_mut();
            self.bulk = placed > 0 || next.is_some_and(|payload| payload.len() >= DIRECT);
        }
        Ok(self.readable || self.hung_up)
    }

    /// Writes within bounds. True if there is more.
    fn transmit(&mut self, local: &mut Local) -> Result<bool, Lost> {
        let mut budget = TURN;
        while self.writable && budget > 0 {
            let Some(socket) = &self.socket else {
                return Ok(false);
            };
            let outbox = match &mut self.outbox {
                Some(outbox) => outbox,
                None if !self.machine.wants_transmit() => return Ok(false),
                none => {
                    let mut outbox = local.spare_outbox();
                    let crc32c = local.shared.transport.crc32c;
                    let machine = &mut self.machine;
                    outbox.fill(&mut Teller { machine, local }, crc32c);
                    none.insert(outbox)
                }
            };
            let sent = outbox
                .send(&self.machine, &local.devices, socket)
                .map_err(|_| Lost::NotLent)?;
            match sent {
                Ok(sent) => {
                    outbox.wrote(sent);
                    budget = budget.saturating_sub(sent);
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.writable = false;
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
            let mut surroundings = Surroundings {
                local,
                account: &mut self.account,
            };
            while let Some(slot) = outbox.pop_sent() {
                self.machine.sent(slot, &mut surroundings);
            }
            if outbox.is_empty()
                && let Some(outbox) = self.outbox.take()
            {
                local.keep_outbox(outbox);
            }
        }
        Ok(self.writable)
    }

    /// Closes the connection. The machine, and with it the socket, may have to live on until
    /// devices are done. Its reason, if it has one, came first.
    fn close(&mut self, reason: &dyn fmt::Display, local: &mut Local) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        self._ended = Some(socket);
        self.notices(local);
        match self.machine.closing() {
            Some(first) => self.log_closed(&first),
            None => self.log_closed(reason),
        }
        // Before the buffers that it sends from are given back.
        self.outbox = None;
        let (machine, mut surroundings) = self.split(local);
        machine.connection_closed(&mut surroundings);
    }

    /// Closes the socket if the machine wants that, once its last word is written.
    fn close_if_due(&mut self, local: &mut Local) {
        let Some(reason) = self.machine.closing() else {
            return;
        };
        let flushed = self.outbox.is_none() && !self.machine.wants_transmit();
        // After a C2HTermReq it is for the host to close; the machine says when
        // that takes too long.
        let waits = matches!(reason, CloseReason::Fatal(_));
        if self.machine.must_close() || flushed && !waits {
            self.close(&reason, local);
        } else if !waits {
            self.flush_by.get_or_insert(local.now.after(FLUSH_TIMEOUT));
        }
    }

    fn notices(&mut self, local: &Local) {
        while let Some(notice) = self.machine.poll_notice() {
            match (notice, self.machine.identity()) {
                (Notice::Connected, Some(identity)) => tracing::info!(
                    peer = %self.peer,
                    cntlid = identity.cntlid.0,
                    qid = identity.qid.0,
                    hostnqn = %identity.hostnqn,
                    subnqn = %subnqn(local, identity.subsystem),
                    entries = identity.entries,
                    "connected",
                ),
                (Notice::Refused(reason), _) => {
                    tracing::warn!(peer = %self.peer, %reason, "connect refused");
                }
                (Notice::Connected, None) => {}
            }
        }
    }

    fn log_closed(&self, reason: &dyn fmt::Display) {
        match self.machine.identity() {
            Some(identity) => tracing::info!(
                peer = %self.peer,
                cntlid = identity.cntlid.0,
                qid = identity.qid.0,
                hostnqn = %identity.hostnqn,
                %reason,
                "closed",
            ),
            None => tracing::info!(peer = %self.peer, %reason, "closed before connect"),
        }
    }
}

fn subnqn(local: &Local, subsystem: usize) -> &str {
    let subsystem = local.shared.catalog.subsystem(subsystem);
    subsystem.map_or("", |subsystem| subsystem.nqn.as_str())
}
