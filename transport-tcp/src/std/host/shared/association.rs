//! An association, as its users have it.
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, Weak};

use nvmf_core::host::command;
use nvmf_core::host::controller::Capabilities;
use nvmf_core::time::Instant;
use nvmf_core::wire::identify::{Cns, IdentifyController, IdentifyNamespace, NamespaceList};
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_core::wire::sqe::Sqe;
use zerocopy::FromBytes;

use super::super::super::buffer::Buffer;
use super::super::commands::Payload;
use super::super::error::Error;
use super::super::options::Options;
use super::super::queue::Completion;
use super::super::work::Done;
use super::super::work::Work;
use super::Threads;
use super::event::Event;
use super::lane::{Lane, lock};
use super::life::State;
use super::namespace::{Known, SharedNamespace};
use super::request::{Call, Request, Ticket};

/// Events that wait for whoever asked for them; the newest are lost when there are more.
const EVENTS: usize = 1024;

/// An association with a controller that many threads and tasks use: see [`Host::attach`](super::Host::attach).
///
/// Clones are the same association. When the last of them, of its namespaces and of its
/// requests is dropped, the controller is shut down.
#[derive(Clone)]
pub struct Association {
    handle: Arc<Handle>,
}

/// What users have of an association.
pub(super) struct Handle {
    pub(super) inner: Arc<Inner>,
    // Behind the association, which its threads shut down.
    _threads: Arc<Threads>,
}

/// An association, as its queues have it.
pub(super) struct Inner {
    pub(super) subnqn: Nqn,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) options: Options,
    /// That of QID `n` at `n`; at 0 that of the Admin Queue.
    pub(super) lanes: Vec<Arc<Lane>>,
    pub(super) state: Mutex<State>,
    /// Bytes of data that a command may have.
    transfer: AtomicU32,
    /// I/O queues that the controller grants.
    queues: AtomicUsize,
    subscribers: Mutex<Vec<SyncSender<Event>>>,
    namespaces: Mutex<HashMap<Nsid, Weak<Known>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl Inner {
    pub(super) fn new(
        subnqn: Nqn,
        addresses: Vec<SocketAddr>,
        options: Options,
        lanes: Vec<Arc<Lane>>,
    ) -> Arc<Self> {
        let inner = Arc::new(Self {
            subnqn,
            addresses,
            options,
            lanes,
            state: Mutex::new(State::new()),
            transfer: AtomicU32::new(0),
            queues: AtomicUsize::new(0),
            subscribers: Mutex::new(Vec::new()),
            namespaces: Mutex::new(HashMap::new()),
        });
        for lane in &inner.lanes {
            lane.belongs_to(Arc::downgrade(&inner));
        }
        inner
    }

    /// The time as machines see it.
    pub(super) fn now(&self) -> Instant {
        self.lanes[0].now()
    }

    /// Takes note of what the controller can.
    pub(super) fn adapt(&self, found: &Capabilities) {
        self.transfer.store(found.transfer, Ordering::Relaxed);
        self.queues.store(found.io_queues.into(), Ordering::Relaxed);
    }

    /// Bytes of data that a command may have.
    pub(super) fn transfer(&self) -> u32 {
        self.transfer.load(Ordering::Relaxed)
    }

    /// The I/O queue with the least to do.
    pub(super) fn idlest(&self) -> &Arc<Lane> {
        let used = &self.lanes[1..][..self.queues.load(Ordering::Relaxed)];
        let least = used.iter().min_by_key(|lane| lane.load());
        // Without I/O queues, as in discovery controllers, the Admin Queue refuses commands.
        least.unwrap_or(&self.lanes[0])
    }

    pub(super) fn emit(&self, event: &Event) {
        lock(&self.subscribers).retain(|subscriber| {
            !matches!(
                subscriber.try_send(event.clone()),
                Err(TrySendError::Disconnected(_))
            )
        });
    }

    /// Namespaces that somebody has a handle on.
    pub(super) fn known(&self) -> Vec<Arc<Known>> {
        let mut namespaces = lock(&self.namespaces);
        namespaces.retain(|_, known| known.strong_count() > 0);
        namespaces.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn remember(&self, known: &Arc<Known>) {
        lock(&self.namespaces).insert(known.nsid, Arc::downgrade(known));
    }
}

impl Handle {
    /// Submits a call to a queue; `then` makes something of its end.
    pub(super) fn submit<T>(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        work: Work,
        claimed: bool,
        then: fn(Done) -> Result<T, Error>,
    ) -> Request<T> {
        let call = Arc::new(Call::default());
        lane.submit(&call, work, claimed);
        let ticket = Ticket {
            call,
            lane: Arc::clone(lane),
            _handle: Some(Arc::clone(self)),
        };
        Request::call(ticket, then)
    }
}

/// An admin command of the association's own, which nothing holds up.
pub(super) fn urgent<T>(
    admin: &Arc<Lane>,
    sqe: &Sqe,
    payload: Payload,
    then: fn(Done) -> Result<T, Error>,
) -> Request<T> {
    let mut work = Work::admin(sqe, payload);
    work.urgent = true;
    let call = Arc::new(Call::default());
    admin.submit(&call, work, false);
    let ticket = Ticket {
        call,
        lane: Arc::clone(admin),
        _handle: None,
    };
    Request::call(ticket, then)
}

impl Association {
    pub(super) fn attach(inner: Arc<Inner>, threads: Arc<Threads>) -> Request<Self> {
        inner.begin();
        let association = Self {
            handle: Arc::new(Handle {
                inner,
                _threads: threads,
            }),
        };
        Request::sequence(async move {
            let inner = &association.handle.inner;
            poll_fn(|context| lock(&inner.state).poll_first(context))
                .await
                .map_err(|failure| failure.error(association.address()))?;
            Ok(association)
        })
    }

    /// The subsystem's name.
    #[must_use]
    pub fn subnqn(&self) -> &Nqn {
        &self.handle.inner.subnqn
    }

    /// Where the controller is, or was last.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let inner = &self.handle.inner;
        inner.addresses[lock(&inner.state).address]
    }

    /// What the controller can, or could when it was there.
    ///
    /// # Panics
    /// Never: there was a controller, or there would be no association.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let found = lock(&self.handle.inner.state).found;
        found.expect("a controller that was ready")
    }

    /// What happens from now on. A receiver that takes nothing for a long time misses the
    /// newest events.
    #[must_use]
    pub fn events(&self) -> Receiver<Event> {
        let (sender, receiver) = sync_channel(EVENTS);
        lock(&self.handle.inner.subscribers).push(sender);
        receiver
    }

    /// Any admin command, as it is: a status other than success is no error here.
    pub fn admin(&self, sqe: &Sqe, payload: Payload) -> Request<Completion> {
        let mut work = Work::admin(sqe, payload);
        work.checked = false;
        let admin = &self.handle.inner.lanes[0];
        self.handle.submit(admin, work, false, completion)
    }

    /// What the controller says of itself.
    pub fn identify(&self) -> Request<Box<IdentifyController>> {
        self.identify_as(Cns::Controller, Nsid(0))
    }

    /// What the controller says of a namespace.
    pub fn identify_namespace(&self, nsid: Nsid) -> Request<Box<IdentifyNamespace>> {
        self.identify_as(Cns::Namespace, nsid)
    }

    /// The namespaces there are for this host, in ascending order.
    pub fn active_namespaces(&self) -> Request<Vec<Nsid>> {
        let association = self.clone();
        Request::sequence(async move {
            let mut all: Vec<Nsid> = Vec::new();
            loop {
                let after = all.last().copied().unwrap_or(Nsid(0));
                let list: Box<NamespaceList> = association
                    .identify_as(Cns::ActiveNamespaces, after)
                    .await?;
                let before = all.len();
                all.extend(list.iter().filter(|nsid| *nsid > after));
                if all.len() - before < NamespaceList::CAPACITY {
                    return Ok(all);
                }
            }
        })
    }

    /// A namespace.
    pub fn namespace(&self, nsid: Nsid) -> Request<SharedNamespace> {
        Request::sequence(SharedNamespace::open(self.clone(), nsid))
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn identify_as<T: FromBytes>(&self, cns: Cns, nsid: Nsid) -> Request<Box<T>> {
        let work = Work::admin(
            &command::identify(cns, nsid),
            Payload::Read(Buffer::zeroed(4096)),
        );
        let admin = &self.handle.inner.lanes[0];
        self.handle.submit(admin, work, false, structure)
    }
}

impl fmt::Debug for Association {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Association")
            .field("subnqn", self.subnqn())
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

/// The end of a command, as it is.
pub(super) fn completion(done: Done) -> Result<Completion, Error> {
    Ok(done.into_completion())
}

/// The structure that a command returned.
pub(super) fn structure<T: FromBytes>(done: Done) -> Result<Box<T>, Error> {
    let command = done.name;
    let nonsense = || Error::Nonsense { command };
    let received = done.received;
    let buffer = done.buffers.into_one().ok_or_else(nonsense)?;
    let bytes = buffer.as_ref().get(..received).unwrap_or_default();
    T::read_from_bytes(bytes)
        .map(Box::new)
        .map_err(|_| nonsense())
}
