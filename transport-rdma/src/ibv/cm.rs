//! Connections, by librdmacm.
use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmf_core::time::Instant;
use socket2::SockAddr;

use super::device::{OpenError, RESOLVE_TIMEOUT, check, check_pointer};
use super::library::Library;
use super::memory::last_error;
use super::queue_pair::{QueuePair, State};
use super::queues::set_nonblocking;
use super::sys::{self, event};
use super::worker::{Qp, Worker};
use super::{IbvCm, IbvVerbs};
use crate::cm::{Cm, Event, PrivateData, Rejecter, Setup, Terms};
use crate::verbs::Error;

/// Connections that wait for their turn to be judged.
const BACKLOG: c_int = 128;
/// Nobody listens.
const ECONNREFUSED: i32 = 111;
/// How often a request is sent again, both when the peer is silent and when it
/// has no receive: 7 means, for the second, for as long as it takes. What a
/// queue has no receive for waits in the peer, as it would in TCP.
const RETRIES: u8 = 7;

/// An event of a worker's.
pub(super) type Happened = Event<Request, Qp>;

/// Where events come from.
pub(super) struct Channel {
    library: &'static Library,
    raw: NonNull<sys::EventChannel>,
}

// SAFETY: librdmacm's functions may be called from all threads (rdma_cm(7)).
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(super) fn new(library: &'static Library) -> Result<Self, OpenError> {
        // SAFETY: it may always be called.
        let raw = check_pointer("an event channel", unsafe {
            (library.cm.rdma_create_event_channel)()
        })?;
        let channel = Self { library, raw };
        set_nonblocking(channel.fd())
            .map_err(|error| OpenError::Device("an event channel that does not wait", error))?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as this is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// The next event, acknowledged: an identifier that waits for that cannot be destroyed.
    fn next(&self) -> Option<Copied> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is there; the event is valid until it is acknowledged.
        unsafe {
            if (self.library.cm.rdma_get_cm_event)(self.raw.as_ptr(), &mut event) != 0 {
                return None;
            }
            let conn = &(*event).conn;
            let private_data = match conn.private_data {
                data if data.is_null() => PrivateData::new(&[]),
                data => PrivateData::new(core::slice::from_raw_parts(
                    data.cast(),
                    conn.private_data_len.into(),
                )),
            };
            let copied = Copied {
                id: (*event).id,
                kind: (*event).event,
                status: (*event).status,
                qp: Qp::from_raw((*(*event).id).context.addr() as u32),
                // The library says it from this side's view; `Terms` are what the peer says.
                terms: Terms {
                    initiator_depth: conn.responder_resources,
                    responder_resources: conn.initiator_depth,
                    private_data,
                },
            };
            (self.library.cm.rdma_ack_cm_event)(event);
            Some(copied)
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every identifier holds the channel, and each event was acknowledged.
        unsafe { (self.library.cm.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// What an event says.
struct Copied {
    id: *mut sys::CmId,
    kind: c_int,
    /// 0, an error number, or why a connection was rejected.
    status: c_int,
    qp: Qp,
    terms: Terms,
}

/// A connection's identifier, and its queue pair if it has one.
pub(super) struct Identifier {
    raw: NonNull<sys::CmId>,
    channel: Arc<Channel>,
}

// SAFETY: see `Channel`.
unsafe impl Send for Identifier {}

impl Identifier {
    fn new(channel: &Arc<Channel>) -> Result<Self, Error> {
        let mut id = ptr::null_mut();
        let create = channel.library.cm.rdma_create_id;
        // SAFETY: the channel is kept, and the result goes to `id`.
        check(unsafe {
            create(
                channel.raw.as_ptr(),
                &mut id,
                ptr::null_mut(),
                sys::PORT_SPACE_TCP,
            )
        })
        .map_err(|_| last_error())?;
        NonNull::new(id)
            .map(|raw| Self {
                raw,
                channel: Arc::clone(channel),
            })
            .ok_or(Error::NoResources)
    }

    pub(super) fn raw(&self) -> *mut sys::CmId {
        self.raw.as_ptr()
    }

    /// The device's queue pair, or null.
    pub(super) fn qp(&self) -> *mut sys::Qp {
        // SAFETY: the identifier is there.
        unsafe { self.raw.as_ref() }.qp
    }

    /// Has the device forget the queue pair.
    pub(super) fn destroy_qp(&mut self) {
        if !self.qp().is_null() {
            // SAFETY: nobody posts to it any more: `qp` is null from now on.
            unsafe { (self.cm().rdma_destroy_qp)(self.raw()) };
        }
    }

    /// Whose events they are from now on.
    fn belongs_to(&mut self, qp: Qp) {
        // SAFETY: the library leaves the user's pointer alone.
        unsafe { self.raw.as_mut() }.context = ptr::without_provenance_mut(qp.raw() as usize);
    }

    /// Has its events come to another channel.
    fn move_to(&mut self, channel: &Arc<Channel>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.channel, channel) {
            return Ok(());
        }
        let migrate = self.cm().rdma_migrate_id;
        // SAFETY: both channels are there, and events of this identifier were acknowledged.
        check(unsafe { migrate(self.raw(), channel.raw.as_ptr()) }).map_err(|_| last_error())?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    fn cm(&self) -> &'static super::library::Cm {
        &self.channel.library.cm
    }

    fn connect_or_accept(&self, terms: &Terms, accept: bool) -> Result<(), Error> {
        let data = terms.private_data.bytes();
        let mut parameters = sys::ConnParam {
            private_data: data.as_ptr().cast(),
            private_data_len: data.len() as u8,
            responder_resources: terms.responder_resources,
            initiator_depth: terms.initiator_depth,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            srq: 0,
            qp_number: 0,
        };
        let call = if accept {
            self.cm().rdma_accept
        } else {
            self.cm().rdma_connect
        };
        // SAFETY: the identifier has a queue pair; the private data is copied.
        check(unsafe { call(self.raw(), &mut parameters) }).map_err(|_| last_error())
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: nobody else has the identifier, and no event of it is unacknowledged.
        unsafe { (self.cm().rdma_destroy_id)(self.raw()) };
    }
}

/// A peer's wish to connect. Who drops it rejects it, without a word.
pub struct Request {
    id: Identifier,
    terms: Terms,
}

impl core::fmt::Debug for Request {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Request").field(&self.terms).finish()
    }
}

impl IbvCm {
    /// Readable when [`Cm::poll`] has something.
    pub fn with_fd<T>(&self, with: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        with(lock(&self.worker).channel.fd())
    }

    /// Connections are made from this address from now on.
    pub fn connect_from(&mut self, address: SocketAddr) {
        lock(&self.worker).from = Some(address);
    }

    /// Whether the peer has ended a connection: it disconnected, or it answered that this side
    /// did. Nothing that was sent before reaches its queue pair any more, but what it received
    /// may still be under way there.
    #[must_use]
    pub fn has_peer_ended(&self, qp: Qp) -> bool {
        let pair = lock(&self.worker).qp(qp).map(|pair| pair.peer_ended);
        pair.unwrap_or(false)
    }

    /// Whether an event said that the device was removed: its connections end one
    /// by one, and nobody is listened to. Whoever listens, or is connected, is told.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        lock(&self.worker).removed
    }
}

impl Cm for IbvCm {
    type Verbs = IbvVerbs;
    type Qp = Qp;
    type Address = SocketAddr;
    type Request = Request;

    fn listen(&mut self, address: SocketAddr) -> Result<(), Error> {
        let worker = &mut *lock(&self.worker);
        let id = Identifier::new(&worker.channel)?;
        let to = SockAddr::from(address);
        // SAFETY: the identifier is there, and the address is copied.
        unsafe {
            check((id.cm().rdma_bind_addr)(
                id.raw(),
                to.as_ptr().cast::<c_void>(),
            ))
            .and_then(|()| check((id.cm().rdma_listen)(id.raw(), BACKLOG)))
        }
        .map_err(|_| last_error())?;
        worker.listeners.push(id);
        Ok(())
    }

    fn connect(
        &mut self,
        _: &mut IbvVerbs,
        address: SocketAddr,
        setup: Setup,
        terms: Terms,
    ) -> Result<Qp, Error> {
        let worker = &mut *lock(&self.worker);
        let room = worker.room(&setup)?;
        let id = Identifier::new(&worker.channel)?;
        let raw = id.raw();
        let resolve = id.cm().rdma_resolve_addr;
        let qp = worker.admit(|qp| {
            let mut id = id;
            id.belongs_to(qp);
            QueuePair::new(qp, id, setup, terms, State::Resolving, room)
        });
        let to = SockAddr::from(address);
        let from = worker.from.map(SockAddr::from);
        let from = from.as_ref();
        // SAFETY: the identifier is there, and the addresses are copied.
        let resolving = check(unsafe {
            resolve(
                raw,
                from.map_or(ptr::null(), |from| from.as_ptr().cast::<c_void>()),
                to.as_ptr().cast::<c_void>(),
                RESOLVE_TIMEOUT,
            )
        });
        if resolving.is_err() {
            let error = last_error();
            worker.remove(qp);
            return Err(error);
        }
        Ok(qp)
    }

    fn prepare(
        &mut self,
        _: &mut IbvVerbs,
        request: Request,
        setup: Setup,
    ) -> Result<Qp, (Request, Error)> {
        let worker = &mut *lock(&self.worker);
        let Request { mut id, terms } = request;
        // SAFETY: the identifier is there.
        let context = unsafe { (*id.raw()).verbs };
        if context != worker.domain.device.context() {
            return Err((Request { id, terms }, Error::Invalid));
        }
        if let Err(error) = id.move_to(&worker.channel) {
            return Err((Request { id, terms }, error));
        }
        let room = match worker.room(&setup) {
            Ok(room) => room,
            Err(error) => return Err((Request { id, terms }, error)),
        };
        let qp = worker.admit(|qp| {
            let mut id = id;
            id.belongs_to(qp);
            QueuePair::new(qp, id, setup, terms, State::Connecting, room)
        });
        if let Err(error) = worker.create(qp) {
            let pair = worker.remove(qp).expect("it was admitted");
            return Err((Request { id: pair.id, terms }, error));
        }
        Ok(qp)
    }

    fn accept(&mut self, _: &mut IbvVerbs, qp: Qp, terms: Terms) -> Result<(), Error> {
        let worker = &mut *lock(&self.worker);
        let domain = Arc::clone(&worker.domain);
        let pair = worker.qp(qp).ok_or(Error::NotConnected)?;
        pair.id.connect_or_accept(&terms, true)?;
        pair.hurry_retries(&domain);
        // It may send from now on: a capsule may come, and be answered, before the event that
        // says so is looked at.
        pair.state = State::Connected;
        Ok(())
    }

    fn reject(&mut self, request: Request, private_data: PrivateData) {
        let data = private_data.bytes();
        let Request { id, .. } = request;
        // SAFETY: the identifier is there, and the data is copied. If it fails, the peer is gone.
        unsafe { (id.cm().rdma_reject)(id.raw(), data.as_ptr().cast(), data.len() as u8) };
    }

    fn stop(&mut self, _: &mut IbvVerbs, qp: Qp) {
        lock(&self.worker).stop(qp);
    }

    fn disconnect(&mut self, _: &mut IbvVerbs, qp: Qp) {
        lock(&self.worker).hang_up(qp);
    }

    fn destroy(&mut self, _: &mut IbvVerbs, qp: Qp) {
        let worker = &mut *lock(&self.worker);
        // A peer's wish that was not answered the kernel answers when the identifier goes.
        drop(worker.remove(qp));
        // The device has forgotten the queue pair, and with it what it had left.
        worker.receives.retain(|_, receive| receive.of != Some(qp));
    }

    fn poll(&mut self, _: Instant) -> Option<Happened> {
        let worker = &mut *lock(&self.worker);
        loop {
            if let Some(event) = worker.events.pop_front() {
                return Some(event);
            }
            let copied = worker.channel.next()?;
            if let Some(event) = worker.happened(copied) {
                return Some(event);
            }
        }
    }
}

/// Who rejected a connection with this status of the event's. iWARP has but one, an error number:
/// there who listens is told by what it says.
fn rejecter(status: c_int, private_data: &[u8]) -> Rejecter {
    const INVALID_SERVICE_ID: c_int = 8;
    const CONSUMER_DEFINED: c_int = 28;
    match status {
        CONSUMER_DEFINED => Rejecter::Peer,
        INVALID_SERVICE_ID => Rejecter::NobodyListens,
        status if status == -ECONNREFUSED && private_data.is_empty() => Rejecter::NobodyListens,
        status if status == -ECONNREFUSED => Rejecter::Peer,
        status => Rejecter::Manager(status),
    }
}

impl Worker {
    fn happened(&mut self, copied: Copied) -> Option<Happened> {
        let Copied { id, qp, terms, .. } = copied;
        if copied.kind == event::CONNECT_REQUEST {
            let request = Request {
                id: Identifier {
                    raw: NonNull::new(id)?,
                    channel: Arc::clone(&self.channel),
                },
                terms,
            };
            return Some(Event::Request { request, terms });
        }
        if copied.kind == event::DEVICE_REMOVAL {
            self.removed = true;
            self.domain.device.remove();
        }
        let pair = self.qp(qp)?;
        match copied.kind {
            event::ADDRESS_RESOLVED => {
                let resolve = pair.id.cm().rdma_resolve_route;
                // SAFETY: the identifier has an address.
                match check(unsafe { resolve(pair.id.raw(), RESOLVE_TIMEOUT) }) {
                    Ok(()) => None,
                    Err(_) => self.unreachable(qp),
                }
            }
            event::ROUTE_RESOLVED => {
                let terms = pair.terms;
                // SAFETY: the identifier is there.
                let context = unsafe { (*id).verbs };
                let connected = if context == self.domain.device.context() {
                    self.create(qp).and_then(|()| {
                        let pair = self.qp(qp).ok_or(Error::NotConnected)?;
                        pair.id.connect_or_accept(&terms, false)
                    })
                } else {
                    Err(Error::Invalid)
                };
                match connected {
                    Ok(()) => None,
                    // iWARP asks whether anybody listens in this call.
                    Err(Error::Other(ECONNREFUSED)) => {
                        self.rejected(qp, Rejecter::NobodyListens, PrivateData::new(&[]))
                    }
                    Err(_) => self.unreachable(qp),
                }
            }
            event::ESTABLISHED => {
                pair.state = State::Connected;
                Some(Event::Established { qp, terms })
            }
            event::REJECTED => {
                let by = rejecter(copied.status, terms.private_data.bytes());
                self.rejected(qp, by, terms.private_data)
            }
            event::ADDRESS_ERROR
            | event::ROUTE_ERROR
            | event::CONNECT_ERROR
            | event::UNREACHABLE => self.unreachable(qp),
            event::DISCONNECTED | event::DEVICE_REMOVAL => {
                // Without success it did not answer.
                pair.peer_ended |= copied.kind == event::DISCONNECTED && copied.status == 0;
                self.stop(qp).then_some(Event::Disconnected { qp })
            }
            _ => None,
        }
    }

    /// Ends a connection: all requests are flushed, and the peer is told, or answered.
    pub(super) fn hang_up(&mut self, qp: Qp) {
        if let Some(pair) = self.qp(qp).filter(|pair| !pair.is_early()) {
            let disconnect = pair.id.cm().rdma_disconnect;
            // SAFETY: the identifier is there. An error says that there is no connection.
            unsafe { disconnect(pair.id.raw()) };
        }
        if self.stop(qp) {
            self.events.push_back(Event::Disconnected { qp });
        }
    }

    fn rejected(&mut self, qp: Qp, by: Rejecter, private_data: PrivateData) -> Option<Happened> {
        self.stop(qp).then_some(Event::Rejected {
            qp,
            by,
            private_data,
        })
    }

    fn unreachable(&mut self, qp: Qp) -> Option<Happened> {
        self.stop(qp).then_some(Event::Unreachable { qp })
    }

    /// Has all requests flushed. Whether it was not so before.
    fn stop(&mut self, qp: Qp) -> bool {
        let domain = Arc::clone(&self.domain);
        let Some(pair) = self.qp(qp) else {
            return false;
        };
        if pair.state == State::Ended {
            return false;
        }
        pair.state = State::Ended;
        pair.fail(&domain);
        // What the device never knew of it does not flush.
        let (tag, early) = (pair.setup.tag, core::mem::take(&mut pair.early));
        self.ending.push(qp);
        for (id, buffer) in early {
            self.flush_receive(tag, id, buffer);
        }
        true
    }
}

/// What both halves of a worker's share have. Whoever has the halves may move them to another
/// thread, so there is a lock, which nobody ever waits for.
pub(super) type Shared = Arc<Mutex<Worker>>;

/// A panic elsewhere does not make the worker worse than it is.
pub(super) fn lock(worker: &Shared) -> MutexGuard<'_, Worker> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}
