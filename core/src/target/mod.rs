//! The controller side of NVMe over Fabrics, above any transport.
//!
//! A [`QueuePair`](queue_pair::QueuePair) joins one connection's transport
//! machine to what its commands mean. What queue pairs of one controller share
//! is little: [`ControllerState`], a handful of atomics. What a target is (its
//! subsystems, namespaces, listeners) is a read-only [`Catalog`]. Everything
//! else a queue pair needs of its surroundings is in [`Env`].
//!
//! | module | what it does |
//! |---|---|
//! | [`queue_pair`] | one connection: commands in, data fetched and sent, completions out |
//! | [`io`] | what an I/O command asks of a namespace |
//! | [`connect`] | Fabrics Connect: every check, every refusal |
//! | [`controller`] | an admin queue's state: properties, enable, reset, shutdown |
//! | [`admin`] | admin commands |
//! | [`identify`] | Identify data structures |
//! | [`features`] | Get and Set Features |
//! | [`logs`] | log pages |
//! | [`discovery`] | the discovery log |
//! | [`aer`] | asynchronous events |
//! | [`keep_alive`] | the keep alive timer |
//! | [`registry`] | which controllers exist, for bindings to put behind their lock |
#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

pub mod admin;
pub mod aer;
pub mod connect;
pub mod controller;
pub mod discovery;
mod error_log;
pub mod features;
pub mod identify;
pub mod io;
pub mod keep_alive;
pub mod logs;
pub mod queue_pair;
pub mod registry;
#[cfg(test)]
pub(crate) mod test_env;

use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crate::block::Geometry;
use crate::time::Instant;
use crate::wire::ids::{Cntlid, Nqn, Nsid, Qid};

/// What hosts connect to: a name, and namespaces behind it.
#[derive(Clone, Copy, Debug)]
pub struct Subsystem<'a> {
    /// SUBNQN.
    pub nqn: &'a Nqn,
    /// NVM, or a discovery subsystem (which has no namespaces).
    pub kind: SubsystemKind,
    /// Serial number, at most 20 ASCII characters.
    pub serial: &'a str,
    /// Model number, at most 40 ASCII characters.
    pub model: &'a str,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: &'a str,
    /// In ascending order of NSID.
    pub namespaces: &'a [Namespace],
    /// Who may connect; `None` is any host.
    pub allowed_hosts: Option<&'a [Nqn]>,
    /// Controller ids given to dynamic controllers, first and last.
    pub cntlid_range: (Cntlid, Cntlid),
}

impl<'a> Subsystem<'a> {
    /// The namespace with this id, if the subsystem has it.
    #[must_use]
    pub fn namespace(&self, nsid: Nsid) -> Option<&'a Namespace> {
        let at = self
            .namespaces
            .binary_search_by_key(&nsid, |n| n.nsid)
            .ok()?;
        self.namespaces.get(at)
    }

    /// Whether the host with this NQN may connect.
    #[must_use]
    pub fn allows(&self, host: &Nqn) -> bool {
        self.allowed_hosts.is_none_or(|hosts| hosts.contains(host))
    }
}

/// The two kinds of subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsystemKind {
    /// Has I/O controllers.
    Nvm,
    /// Has discovery controllers.
    Discovery,
}

/// A namespace of a subsystem.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// 1-based, unique in the subsystem.
    pub nsid: Nsid,
    /// The device's.
    pub geometry: Geometry,
    /// RFC 9562, big endian; all zero for none.
    pub uuid: [u8; 16],
    /// Globally unique identifier; all zero for none.
    pub nguid: [u8; 16],
    /// IEEE extended unique identifier; all zero for none.
    pub eui64: [u8; 8],
}

/// An address that hosts can connect to, as the discovery log shows it.
#[derive(Clone, Copy, Debug)]
pub struct Listener<'a> {
    /// Transport type (1 RDMA, 3 TCP).
    pub trtype: u8,
    /// Address family (1 IPv4, 2 IPv6).
    pub adrfam: u8,
    /// Transport address, numeric.
    pub traddr: &'a str,
    /// Transport service id: the port, decimal.
    pub trsvcid: &'a str,
    /// Port id, unique per listener.
    pub portid: u16,
}

/// What a target offers. A binding may change it between calls; it then
/// changes [`Catalog::generation`] as well.
pub trait Catalog {
    /// The `index`th subsystem; `None` past the last.
    fn subsystem(&self, index: usize) -> Option<Subsystem<'_>>;

    /// The `index`th listener; `None` past the last.
    fn listener(&self, index: usize) -> Option<Listener<'_>>;

    /// The discovery log's generation counter (GENCTR).
    fn generation(&self) -> u64;

    /// The subsystem of that name, and its index.
    fn find(&self, nqn: &Nqn) -> Option<(usize, Subsystem<'_>)> {
        (0..)
            .map_while(|index| Some((index, self.subsystem(index)?)))
            .find(|(_, subsystem)| subsystem.nqn == nqn)
    }
}

/// In-capsule data of admin and Fabrics commands, bytes, on transports that
/// leave it open (NVMe/TCP 1.1, section 3.6.2: always 8 KiB).
pub const ADMIN_INLINE_DATA: u32 = 8192;

/// What a binding can carry; reported to hosts and enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of an I/O queue at most (MQES + 1), 2..=65536. The host may have one fewer outstanding.
    pub io_queue_entries: u32,
    /// Entries of an admin queue at most (ASQSZ).
    pub admin_queue_entries: u16,
    /// I/O queues a controller may have.
    pub io_queues: u16,
    /// In-capsule data of an I/O command, bytes (IOCCSZ = this / 16 + 4).
    pub inline_data: u32,
    /// Bytes a command may move at most: a power of two, 8192 or more (MDTS,
    /// whose 0 is no limit).
    pub transfer: u32,
}

/// What the queue pairs of one controller share, across threads.
///
/// The admin queue writes it, I/O queues read it for every command.
#[derive(Debug)]
pub struct ControllerState {
    /// The controller's id.
    pub cntlid: Cntlid,
    /// Index of its subsystem in the [`Catalog`].
    pub subsystem: usize,
    /// CC.EN and CSTS.RDY, and not failed.
    ready: AtomicBool,
    /// Counts resets, shutdowns and failures: an I/O queue of an earlier epoch
    /// begins no more commands, and must close.
    epoch: AtomicU32,
    /// A command arrived since the keep alive timer looked (TBKAS).
    traffic: AtomicBool,
    /// I/O queues that are connected.
    io_queues: AtomicU32,
    /// Transport type of its Admin Queue.
    trtype: AtomicU8,
}

impl ControllerState {
    /// A disabled controller without I/O queues.
    #[must_use]
    pub const fn new(cntlid: Cntlid, subsystem: usize) -> Self {
        Self {
            cntlid,
            subsystem,
            ready: AtomicBool::new(false),
            epoch: AtomicU32::new(0),
            traffic: AtomicBool::new(false),
            io_queues: AtomicU32::new(0),
            trtype: AtomicU8::new(0),
        }
    }

    /// Transport type of the Admin Queue, and so of all queues: see [`Listener::trtype`].
    #[must_use]
    pub fn trtype(&self) -> u8 {
        self.trtype.load(Ordering::Acquire)
    }

    /// The Admin Queue is connected by a transport of this type.
    pub fn set_trtype(&self, trtype: u8) {
        self.trtype.store(trtype, Ordering::Release);
    }

    /// Whether I/O queues may join.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// The controller becomes ready.
    pub fn enable(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Reset, shutdown or failure: not ready, and its I/O queues must close.
    pub fn end_epoch(&self) {
        self.ready.store(false, Ordering::Release);
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// The present epoch, for an I/O queue to remember.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// A command arrived on any queue.
    pub fn note_traffic(&self) {
        // Read first: a store by every worker would pass the cache line around.
        if !self.traffic.load(Ordering::Relaxed) {
            self.traffic.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a command arrived since this was last asked.
    pub fn take_traffic(&self) -> bool {
        self.traffic.swap(false, Ordering::Relaxed)
    }

    /// An I/O queue connected. For [`registry`].
    pub fn io_queue_joined(&self) {
        self.io_queues.fetch_add(1, Ordering::AcqRel);
    }

    /// An I/O queue is gone, and with it all its commands. For [`registry`].
    pub fn io_queue_left(&self) {
        self.io_queues.fetch_sub(1, Ordering::AcqRel);
    }

    /// I/O queues connected, whatever their epoch.
    #[must_use]
    pub fn io_queues(&self) -> u32 {
        self.io_queues.load(Ordering::Acquire)
    }
}

/// Who asks to connect, checked for form.
#[derive(Clone, Debug)]
pub struct HostIdentity {
    /// HOSTNQN.
    pub nqn: Nqn,
    /// HOSTID.
    pub id: [u8; 16],
}

/// Why a controller could not be created or joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryError {
    /// No controller id, or no room for another controller.
    Busy,
    /// No such controller, or it belongs to another host or subsystem.
    UnknownController,
    /// The controller has that queue already.
    QueueInUse,
    /// The controller is not ready for I/O queues.
    NotReady,
}

/// The surroundings of a queue pair, supplied by the binding.
///
/// Every method is bounded and does not block on a peer.
pub trait Env {
    /// A handle to a controller's shared state.
    type Controller: Deref<Target = ControllerState> + Clone;
    /// See [`Catalog`].
    type Catalog: Catalog + ?Sized;

    /// What the target offers.
    fn catalog(&self) -> &Self::Catalog;

    /// What the binding can carry.
    fn limits(&self) -> Limits;

    /// The listener this connection came in by, as the discovery log would show it.
    fn local_listener(&self) -> Listener<'_>;

    /// Creates a controller of `subsystem`: `cntlid` is what the host asked for,
    /// [`Cntlid::DYNAMIC`] being "any".
    ///
    /// # Errors
    /// [`RegistryError::Busy`].
    fn create_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        cntlid: Cntlid,
    ) -> Result<Self::Controller, RegistryError>;

    /// Adds an I/O queue to a controller. `qid` is at least 1 and within [`Limits::io_queues`].
    ///
    /// # Errors
    /// Any [`RegistryError`] but `Busy`.
    fn join_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        cntlid: Cntlid,
        qid: Qid,
    ) -> Result<Self::Controller, RegistryError>;

    /// A queue is gone, with every command on it. When it is the admin queue
    /// (qid 0) so is the controller, and the other queues must be told.
    fn leave_controller(&mut self, controller: &Self::Controller, qid: Qid);

    /// The controller's epoch ended: have the workers of its I/O queues look.
    fn controller_changed(&mut self, controller: &Self::Controller);

    /// Now.
    fn now(&self) -> Instant;
}

/// A namespace as a [`Backend`] knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceRef {
    /// Index of its subsystem in the [`Catalog`].
    pub subsystem: usize,
    /// Its id there.
    pub nsid: Nsid,
}

/// What [`Backend::take_buffer`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferUse {
    /// Data that came inside a command capsule and must go somewhere now. A
    /// binding keeps enough in reserve for every command its queue depth allows.
    InCapsule,
    /// Data that will be fetched or sent; the command waits while there is none.
    Transfer,
}

/// The part of the surroundings that moves data: buffers and devices.
pub trait Backend: Env {
    /// Memory that data is moved to and from.
    type Buffer: AsRef<[u8]> + AsMut<[u8]>;

    /// A buffer of at least `len` bytes, or `None` for now; its content is arbitrary.
    fn take_buffer(&mut self, len: u32, purpose: BufferUse) -> Option<Self::Buffer>;

    /// Takes a buffer back.
    fn give_buffer(&mut self, buffer: Self::Buffer);

    /// Starts a device operation. The request's tag is the command's slot; the
    /// binding returns the completion to the same queue pair with that tag.
    fn submit(
        &mut self,
        namespace: NamespaceRef,
        request: crate::block::Request<Self::Buffer>,
    ) -> crate::block::Submit<Self::Buffer>;

    /// Writes `data` to the namespace at once, without a buffer, where its device can:
    /// see [`BlockDevice::store`](crate::block::BlockDevice::store).
    fn store(
        &mut self,
        namespace: NamespaceRef,
        extent: crate::block::Extent,
        data: &[u8],
        fua: bool,
    ) -> Option<Result<(), crate::block::MediaError>> {
        let _ = (namespace, extent, data, fua);
        None
    }

    /// Whether reads of the namespace may be sent as [`Source::Media`](crate::Source::Media).
    fn lends(&self, namespace: NamespaceRef) -> bool;
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: crate::wire::status::Status,
    /// Completion queue entry dwords 0 (low half) and 1.
    pub result: u64,
}

impl Reply {
    /// Success, with a result of zero.
    pub const SUCCESS: Self = Self::status(crate::wire::status::Status::SUCCESS);

    /// A status, with a result of zero.
    #[must_use]
    pub const fn status(status: crate::wire::status::Status) -> Self {
        Self { status, result: 0 }
    }

    /// Success, with a result.
    #[must_use]
    pub const fn success(result: u64) -> Self {
        Self {
            status: crate::wire::status::Status::SUCCESS,
            result,
        }
    }
}

/// What an admin command needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminStep {
    /// Nothing: complete it.
    Reply(Reply),
    /// `len` bytes from the host, then [`controller::Controller::write_data`].
    Fetch {
        /// Bytes, at most [`Limits::transfer`].
        len: u32,
    },
    /// A buffer of `len` bytes for [`controller::Controller::read_data`] to fill and the transport to send.
    Respond {
        /// Bytes, at most [`Limits::transfer`].
        len: u32,
    },
    /// Nothing for now: [`controller::Controller::poll_event`] will complete it.
    Held,
    /// Complete it, then close the connection (Disconnect).
    Disconnect(Reply),
}
