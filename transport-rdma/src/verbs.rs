//! What an RDMA device does for this crate: queue pairs, memory, completions.
//!
//! One value of a [`Verbs`] type is one worker's share of a device: a
//! protection domain, one completion queue, at most one shared receive queue,
//! and the queue pairs that complete there. Only the worker's thread touches it.
//!
//! **Memory changes hands.** A buffer that is posted is moved to the provider,
//! and comes back with the completion of what it was posted for: nobody can look
//! at memory while a device may write it, and nothing has to be promised for
//! that. A buffer that the peer may reach by a key is [`lent`](Verbs::lend) in
//! the same way, and [`reclaimed`](Verbs::reclaim).
//!
//! **What a provider is held to**, and `sim` checks:
//! - requests of a queue pair start in the order in which they were posted;
//! - a signalled chain has one completion, when all of it is done; one that is
//!   not signalled has none if it succeeds, and one if it fails;
//! - completions of a queue pair's chains come in the order of the chains;
//! - after the first failure every chain and every receive of the queue pair
//!   completes with [`Outcome::Flushed`], and no buffer is lost. Buffers of the
//!   shared receive queue stay there, but for one that a message had begun to come into:
//!   see [`Verbs::lost_receives`];
//! - no call waits.
use core::fmt;

use nvmf_core::time::Instant;

pub use nvmf_core::rdma::Remote;

/// The bytes of a capsule's head: a command is 64 bytes, a response is 16.
pub const MAX_CAPSULE: usize = 64;

/// What memory may be used for. A device may always read it for what is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The device may write it: what is received, what READ brings.
    pub local_write: bool,
    /// A peer that has the key may read it.
    pub remote_read: bool,
    /// A peer that has the key may write it.
    pub remote_write: bool,
    /// Windows may be bound to it.
    pub windows: bool,
}

impl Access {
    /// For what is received, and for what READ brings and WRITE sends.
    pub const LOCAL: Self = Self {
        local_write: true,
        remote_read: false,
        remote_write: false,
        windows: false,
    };
    /// For a host's data, either way.
    pub const SHARED: Self = Self {
        remote_read: true,
        remote_write: true,
        ..Self::LOCAL
    };
    /// For a host's data, which peers reach by windows alone.
    pub const WINDOWED: Self = Self {
        windows: true,
        ..Self::LOCAL
    };

    /// Whether a peer may have a key to all of the region.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        self.remote_read || self.remote_write
    }

    /// For memory that is lent by this key, either way.
    #[must_use]
    pub const fn lent_by(key: Key) -> Self {
        match key {
            Key::Region => Self::SHARED,
            Key::Window => Self::WINDOWED,
        }
    }

    /// Whether memory with these rights may be lent by `key` with the rights `asked`: a region's
    /// key has the region's rights, and a window may be written only where the device may write.
    #[must_use]
    pub const fn permits(self, key: Key, asked: Self) -> bool {
        match key {
            Key::Region => {
                (self.remote_read || !asked.remote_read)
                    && (self.remote_write || !asked.remote_write)
            }
            Key::Window => self.windows && (self.local_write || !asked.remote_write),
        }
    }
}

/// What a device can do, of which a worker has the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that a queue pair's send queue may have room for.
    pub send_requests: u32,
    /// Receives that a queue pair may have of its own.
    pub receives: u32,
    /// Receives that the shared receive queue has room for; 0: there is none.
    pub shared_receives: u32,
    /// Completions that the completion queue has room for.
    pub completions: u32,
    /// READs that a queue pair may have under way (initiator depth).
    pub initiator_depth: u8,
    /// READs of the peer that a queue pair answers at a time (responder resources).
    pub responder_resources: u8,
    /// Whether [`Key::Window`] is possible.
    pub windows: bool,
}

/// By which key a peer reaches memory that is lent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The key of the region in which the buffer is. It costs nothing, and the
    /// peer that has it may reach all buffers of the region at any time.
    Region,
    /// A key of its own, which ends when the buffer is reclaimed or the peer
    /// invalidates it (a memory window of type 2): two requests more per buffer,
    /// or one if the peer invalidates.
    Window,
}

/// A request before a SEND, or by itself: data that one side moves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which way.
    pub direction: Direction,
    /// The peer's memory.
    pub remote: Remote,
    /// First byte of the chain's buffer.
    pub offset: u32,
    /// Length in bytes, not 0.
    pub len: u32,
}

/// Which way a [`Move`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// RDMA READ: from the peer's memory.
    Read,
    /// RDMA WRITE: into the peer's memory.
    Write,
}

/// A SEND: a capsule's head, which is copied when it is posted, and data that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    head: [u8; MAX_CAPSULE],
    head_len: u8,
    /// Bytes from the start of the chain's buffer that follow.
    pub data: u32,
    /// The key of the peer's to invalidate (SEND with Invalidate).
    pub invalidate: Option<u32>,
}

impl Send {
    /// Sends `head`, of which no more than [`MAX_CAPSULE`] bytes are taken.
    #[must_use]
    pub fn new(head: &[u8]) -> Self {
        let mut send = Self {
            head: [0; MAX_CAPSULE],
            head_len: 0,
            data: 0,
            invalidate: None,
        };
        for (to, from) in send.head.iter_mut().zip(head) {
            *to = *from;
            send.head_len += 1;
        }
        send
    }

    /// The capsule's head.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        self.head.get(..self.head_len.into()).unwrap_or(&[])
    }
}

/// What is posted to a queue pair in one call: a READ; or a WRITE and a SEND, or
/// either. At least one of them is there.
#[derive(Debug)]
pub struct Chain<B> {
    /// Comes back with the completion.
    pub id: u64,
    /// Complete it when it succeeds, too. A chain with a buffer is always signalled.
    pub signalled: bool,
    /// What is moved or sent.
    pub buffer: Option<B>,
    /// First this.
    pub first: Option<Move>,
    /// Then this.
    pub send: Option<Send>,
}

impl<B> Chain<B> {
    /// Requests that the chain takes of the send queue's room, without those of windows.
    #[must_use]
    pub const fn requests(&self) -> u32 {
        self.first.is_some() as u32 + self.send.is_some() as u32
    }
}

/// Where a receive is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver<Q> {
    /// The worker's shared receive queue.
    Shared,
    /// One queue pair's own.
    Of(Q),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Success,
    /// Another one failed, or the connection ended.
    Flushed,
    /// The peer's memory is not to be reached so: key, bounds or rights.
    RemoteAccess,
    /// What came was longer than the buffer.
    Length,
    /// The peer could not take it: a message longer than its buffer, or more
    /// READs than it answers.
    RemoteInvalid,
    /// The peer had no receive for it, however often it was sent.
    ReceiverNotReady,
    /// The peer did not answer.
    Unreachable,
    /// A window could not be bound.
    Bind,
    /// Anything else, in the provider's numbers.
    Other(u32),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::Flushed => "flushed",
            Self::RemoteAccess => "remote access error",
            Self::Length => "local length error",
            Self::RemoteInvalid => "remote invalid request",
            Self::ReceiverNotReady => "receiver not ready, retries exceeded",
            Self::Unreachable => "no answer, retries exceeded",
            Self::Bind => "a memory window could not be bound",
            Self::Other(code) => return write!(f, "work completion status {code}"),
        })
    }
}

/// What ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A receive: the first `len` bytes of its buffer came.
    Receive {
        /// Bytes.
        len: u32,
        /// The key of this side's that the peer invalidated with it.
        invalidated: Option<u32>,
    },
    /// A chain.
    Chain,
    /// A buffer that was reclaimed: nobody else reaches it any more.
    Reclaim,
    /// A buffer could not be lent, of no `id`: only what fails ends so, and the queue pair with it.
    Lend,
}

/// A request that ended.
#[derive(Debug)]
pub struct Completion<B> {
    /// What the queue pair was [set up](crate::cm::Setup) with.
    pub tag: u32,
    /// The request's.
    pub id: u64,
    /// What it was.
    pub ended: Ended,
    /// How it went; unless that is success, `ended` says no more than the kind.
    pub outcome: Outcome,
    /// The request's buffer.
    pub buffer: Option<B>,
}

/// Why something could not be posted or registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The queue has no room for it.
    Full,
    /// The queue pair is not connected, or not any more.
    NotConnected,
    /// It makes no sense: a range outside of its buffer, a right that the region lacks.
    Invalid,
    /// The device cannot do this.
    Unsupported,
    /// The device, or the system, has no more of what it takes.
    NoResources,
    /// Anything else, in the provider's numbers.
    Other(i32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue is full",
            Self::NotConnected => "the queue pair is not connected",
            Self::Invalid => "the request makes no sense",
            Self::Unsupported => "the device cannot do this",
            Self::NoResources => "the device or the system has no more resources",
            Self::Other(code) => return write!(f, "error {code}"),
        })
    }
}

impl core::error::Error for Error {}

/// A piece of registered memory.
///
/// Its slice is of bytes that only its owner reaches. Where a peer may have the key of the
/// region ([`Key::Region`]) there are none: `as_ref` and `as_mut` are empty, and the bytes are
/// copied, of which some may be old and some new if the peer writes meanwhile.
pub trait Bytes: AsRef<[u8]> + AsMut<[u8]> {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts bytes at `at` and after it, as many as fit.
    fn copy_in(&mut self, at: usize, from: &[u8]);

    /// Gives the bytes at `at` and after it, as many as there are.
    fn copy_out(&self, at: usize, to: &mut [u8]);
}

/// A worker's share of an RDMA device.
///
/// What it is made of (device, sizes of its queues, completion vector) is the
/// provider's constructor's. Queue pairs are made and connected by
/// [`Cm`](crate::Cm).
pub trait Verbs {
    /// Memory before it is registered: a mapping, a box, or a static array of
    /// whoever has no allocator.
    type Memory;
    /// Memory that is registered, as long as it was not carved into buffers.
    type Region;
    /// A piece of registered memory. It keeps its region registered.
    type Buffer: Bytes;
    /// A queue pair's handle.
    type Qp: Copy + Eq + fmt::Debug;

    /// What the device can do.
    fn limits(&self) -> Limits;

    /// Registers memory, once for all buffers that are carved out of it.
    ///
    /// # Errors
    /// The memory, and why not.
    fn register(
        &mut self,
        memory: Self::Memory,
        access: Access,
    ) -> Result<Self::Region, (Self::Memory, Error)>;

    /// The next `len` bytes of the region as a buffer; `None` when fewer are left.
    fn carve(&mut self, region: &mut Self::Region, len: u32) -> Option<Self::Buffer>;

    /// Posts a receive.
    ///
    /// # Errors
    /// The buffer, and why not.
    fn post_receive(
        &mut self,
        to: Receiver<Self::Qp>,
        id: u64,
        buffer: Self::Buffer,
    ) -> Result<(), (Self::Buffer, Error)>;

    /// Shared receives of which it is certain that they are lost, at least so many: a queue
    /// pair that fails in the midst of a message may keep the receive that it took, and no
    /// completion tells.
    fn lost_receives(&mut self) -> u32;

    /// Makes the shared receive queue anew, with all receives that were posted there and did
    /// not complete, those included that were lost. No queue pair may use it.
    ///
    /// # Errors
    /// There is one that does, or the device has no more of something: it is as it was.
    fn renew_receives(&mut self) -> Result<(), Error>;

    /// Posts a chain: all of it, in one call to the device, or nothing.
    ///
    /// # Errors
    /// The chain's buffer, and why not.
    fn post(
        &mut self,
        qp: Self::Qp,
        chain: Chain<Self::Buffer>,
    ) -> Result<(), (Option<Self::Buffer>, Error)>;

    /// Lets the peer of `qp` reach the first `len` bytes of a buffer, from the
    /// next chain that is posted there until the buffer is reclaimed. A window that
    /// the device cannot bind ends the queue pair, and [`Ended::Lend`] says so.
    ///
    /// # Errors
    /// The buffer, and why not; what its region does not [permit](Access::permits) is invalid.
    fn lend(
        &mut self,
        qp: Self::Qp,
        buffer: Self::Buffer,
        len: u32,
        access: Access,
        key: Key,
    ) -> Result<Remote, (Self::Buffer, Error)>;

    /// Takes back what was lent as `remote`: at once, or, where a window is first
    /// to be invalidated because the peer did not (`invalidated`), with a
    /// completion of `id`. After the queue pair's end it is always at once.
    ///
    /// # Errors
    /// Nothing is lent so, or there is no room to invalidate it: try again later.
    fn reclaim(
        &mut self,
        qp: Self::Qp,
        remote: Remote,
        invalidated: bool,
        id: u64,
    ) -> Result<Option<Self::Buffer>, Error>;

    /// The next request that ended.
    fn poll(&mut self, now: Instant) -> Option<Completion<Self::Buffer>>;

    /// When [`Verbs::poll`] should be called even if nothing wakes the worker:
    /// of providers that are software.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// From now on the next completion wakes the worker, in whatever way the
    /// provider has for that. A worker that polls does not arm; one that is about
    /// to sleep arms, and polls once more.
    ///
    /// # Errors
    /// The device is gone.
    fn arm(&mut self) -> Result<(), Error>;
}
