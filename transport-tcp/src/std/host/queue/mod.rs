//! A queue that its caller polls: no other thread, no wake-up, no lock.
//!
//! What carries its commands is TCP or RDMA, chosen when it is made.
#[cfg(feature = "rdma")]
mod rdma;
mod tcp;

use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nvmf_core::host;
use nvmf_core::host::controller::ADMIN_ENTRIES;
use nvmf_core::tcp::rx::Digests;
use nvmf_core::time::Instant;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cid, Cntlid, Qid};
use nvmf_core::wire::sqe::Sqe;
use rustix::io::Errno;

use super::super::buffer::Buffer;
use super::commands::{Buffers, Job, Part, Payload};
use super::error::Error;
use super::options::{Options, Transport};
use tcp::TcpQueue;

/// A command that ended.
#[derive(Debug)]
pub struct Completion {
    /// What [`Queue::submit`] was given.
    pub tag: u64,
    /// What the controller says.
    pub cqe: Cqe,
    /// The command's buffer, if there is one.
    pub buffer: Option<Buffer>,
    /// The command's buffers, if it came with several.
    pub buffers: Vec<Buffer>,
    /// Bytes that came into them.
    pub received: usize,
}

impl Completion {
    /// The data that came, if the command had one buffer.
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
///
/// Over RDMA a queue that is only polled makes no system call, and none wakes it: its
/// completion queue is armed by [`Queue::wait`] and [`Queue::poll_with`], when there is
/// nothing to be taken.
pub struct Queue(Carrier);

#[cfg_attr(
    feature = "rdma",
    expect(
        clippy::large_enum_variant,
        reason = "nothing is between a caller and TCP"
    )
)]
enum Carrier {
    Tcp(TcpQueue),
    #[cfg(feature = "rdma")]
    Rdma(Box<rdma::RdmaQueue>),
}

/// The same for either.
macro_rules! carried {
    ($carrier:expr, $queue:ident => $does:expr) => {
        match $carrier {
            Carrier::Tcp($queue) => $does,
            #[cfg(feature = "rdma")]
            Carrier::Rdma($queue) => $does,
        }
    };
}

/// Which queue a connection is to become. Over RDMA a controller is told so before Connect is.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "rdma"), expect(dead_code, reason = "TCP does not ask"))]
pub(super) struct Purpose {
    pub(super) qid: Qid,
    pub(super) cntlid: Cntlid,
    pub(super) entries: u32,
}

impl Purpose {
    /// The Admin Queue.
    pub(super) const ADMIN: Self = Self {
        qid: Qid::ADMIN,
        cntlid: Cntlid::DYNAMIC,
        entries: ADMIN_ENTRIES,
    };
}

/// Another thread's hold on a queue's connection.
pub(super) struct Line {
    ends: Ends,
    association_lost: Arc<OnceLock<host::Error>>,
}

/// What ends a connection from another thread.
enum Ends {
    Tcp(TcpStream),
    #[cfg(feature = "rdma")]
    Rdma(Arc<rdma::Bell>),
}

impl Line {
    /// Ends the connection, because the association is lost. Whoever waits for it wakes up.
    pub(super) fn end(&self, error: Option<host::Error>) {
        if let Some(error) = error {
            // The first reason is the best.
            let _ = self.association_lost.set(error);
        }
        match &self.ends {
            // It may have ended before.
            Ends::Tcp(socket) => drop(socket.shutdown(Shutdown::Both)),
            #[cfg(feature = "rdma")]
            Ends::Rdma(bell) => bell.ring(),
        }
    }
}

/// Why there is no connection any more. Kept, because it is said again to whoever asks later.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    Controller(host::Error),
    Connect(Errno),
    /// There is no connecting from where the options say.
    From(Errno),
    Closed,
    Lost(Errno),
    NoIcResp,
    GivenUp,
    /// This build has no RDMA.
    #[cfg(not(feature = "rdma"))]
    NoRdma,
    #[cfg(feature = "rdma")]
    Rdma(rdma::Failure),
}

impl Failure {
    pub(super) fn error(self, address: SocketAddr) -> Error {
        match self {
            Self::Controller(error) => error.into(),
            Self::Connect(errno) => Error::connect(address, errno.into()),
            Self::From(errno) => Error::From {
                source: errno.into(),
            },
            Self::Closed => Error::Closed,
            Self::Lost(errno) => Error::Lost(errno.into()),
            Self::NoIcResp => Error::NoIcResp { address },
            Self::GivenUp => Error::GivenUp,
            #[cfg(not(feature = "rdma"))]
            Self::NoRdma => {
                Error::NoRdma("this build has no RDMA (feature `rdma` of nvmf-tcp)".to_owned())
            }
            #[cfg(feature = "rdma")]
            Self::Rdma(failure) => failure.error(address),
        }
    }

    /// Whether another address of the same target may do better.
    pub(super) fn is_of_the_address(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            #[cfg(feature = "rdma")]
            Self::Rdma(failure) => matches!(
                failure,
                rdma::Failure::NoDevice(_) | rdma::Failure::Refused(_)
            ),
            _ => false,
        }
    }
}

impl Queue {
    /// Connects, until commands may be submitted.
    pub(super) fn open(
        address: SocketAddr,
        options: &Options,
        purpose: Purpose,
    ) -> Result<Self, Error> {
        let started = Self::start(address, options, purpose);
        let mut queue = started.map_err(|failure| failure.error(address))?;
        let mut none = Vec::new();
        while !queue.is_live() {
            queue.poll(&mut none)?;
            if !queue.is_live() {
                queue.wait(options.connect_timeout)?;
            }
        }
        Ok(queue)
    }

    /// Begins to connect; [`Queue::poll`] goes on with it, until [`Queue::is_live`].
    pub(super) fn start(
        address: SocketAddr,
        options: &Options,
        purpose: Purpose,
    ) -> Result<Self, Failure> {
        match options.transport {
            Transport::Tcp => {
                let _ = purpose;
                TcpQueue::start(address, options).map(|queue| Self(Carrier::Tcp(queue)))
            }
            #[cfg(feature = "rdma")]
            Transport::Rdma => {
                let queue = rdma::RdmaQueue::start(address, options, purpose)?;
                Ok(Self(Carrier::Rdma(Box::new(queue))))
            }
            #[cfg(not(feature = "rdma"))]
            Transport::Rdma => Err(Failure::NoRdma),
        }
    }

    /// Whether commands may be submitted.
    pub(super) fn is_live(&self) -> bool {
        carried!(&self.0, queue => queue.is_live())
    }

    /// From now on it holds `depth` commands, and up to `inline_data` bytes may go
    /// inside a command's capsule.
    pub(super) fn configure(&mut self, depth: usize, inline_data: u32) {
        carried!(&mut self.0, queue => queue.configure(depth, inline_data));
    }

    /// Where the controller is.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        carried!(&self.0, queue => queue.peer())
    }

    /// The digests that both ends agreed to. RDMA has none.
    #[must_use]
    pub fn digests(&self) -> Digests {
        match &self.0 {
            Carrier::Tcp(queue) => queue.digests(),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(_) => Digests::default(),
        }
    }

    /// Commands that may be under way at a time.
    #[must_use]
    pub fn depth(&self) -> usize {
        carried!(&self.0, queue => queue.depth())
    }

    /// Commands under way.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        carried!(&self.0, queue => queue.outstanding())
    }

    /// System calls that the queue has made so far, without those of an RDMA device's library.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        carried!(&self.0, queue => queue.system_calls())
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
        carried!(&mut self.0, queue => queue.enqueue(sqe, payload, tag))
    }

    /// Commands that may be added to those under way.
    pub(super) fn room(&self) -> usize {
        self.depth().saturating_sub(self.outstanding())
    }

    /// Takes buffers whose parts are the data of several commands.
    pub(super) fn hold(&mut self, buffers: Buffers) -> Job {
        carried!(&mut self.0, queue => queue.hold(buffers))
    }

    /// Gives them back, when none of these commands is under way, or the connection is lost.
    pub(super) fn release(&mut self, job: Job) -> Buffers {
        carried!(&mut self.0, queue => queue.release(job))
    }

    /// Like [`Queue::enqueue`], with a part of buffers that the queue has. False when it is full.
    pub(super) fn enqueue_part(&mut self, sqe: &Sqe, part: Part, tag: u64) -> bool {
        carried!(&mut self.0, queue => queue.enqueue_part(sqe, part, tag))
    }

    /// Commands under way: their tags, and their CIDs if they were sent.
    pub(super) fn under_way(&self) -> Vec<(Option<Cid>, u64)> {
        carried!(&self.0, queue => queue.under_way().collect())
    }

    /// Sends what there is to send, as far as the connection takes it.
    pub fn flush(&mut self) {
        carried!(&mut self.0, queue => queue.flush());
    }

    /// Takes what has arrived, without waiting, and appends what has completed.
    ///
    /// # Errors
    /// There is no connection any more: commands under way will not complete.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), Error> {
        let outcome = carried!(&mut self.0, queue => queue.poll(completions));
        outcome.map_err(|failure| failure.error(self.peer()))
    }

    /// [`Queue::poll`], with memory of the caller's for what is not received in its place:
    /// many queues of one thread can share it, and it stays in the cache. 128 KiB are enough.
    ///
    /// # Errors
    /// Those of [`Queue::poll`].
    pub fn poll_with(
        &mut self,
        scratch: &mut [u8],
        completions: &mut Vec<Completion>,
    ) -> Result<(), Error> {
        let outcome = match &mut self.0 {
            Carrier::Tcp(queue) => queue.poll_with(scratch, completions),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(queue) => queue.service(completions),
        };
        outcome.map_err(|failure| failure.error(self.peer()))
    }

    /// [`Queue::poll_with`], for who is told that the socket takes more ([`Queue::set_writable`]).
    pub(super) fn service(
        &mut self,
        scratch: &mut [u8],
        completions: &mut Vec<Completion>,
    ) -> Result<(), Failure> {
        match &mut self.0 {
            Carrier::Tcp(queue) => queue.service(scratch, completions),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(queue) => queue.service(completions),
        }
    }

    /// What has completed while something was sent.
    pub(super) fn take_completed(&mut self, completions: &mut Vec<Completion>) {
        carried!(&mut self.0, queue => queue.take_completed(completions));
    }

    /// Why there is no connection any more, if that is so.
    pub(super) fn failure(&self) -> Option<Failure> {
        carried!(&self.0, queue => queue.failure())
    }

    /// Whether [`Queue::poll`] is to be called again, though nothing new arrives.
    pub(super) fn is_readable(&self) -> bool {
        carried!(&self.0, queue => queue.is_readable())
    }

    /// Whether the connection takes more, as far as is known.
    pub(super) fn is_writable(&self) -> bool {
        carried!(&self.0, queue => queue.is_writable())
    }

    /// The socket takes more again.
    pub(super) fn set_writable(&mut self) {
        match &mut self.0 {
            Carrier::Tcp(queue) => queue.set_writable(),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(_) => {}
        }
    }

    /// Sleeps until [`Queue::poll`] has something to do, and no longer than `timeout`.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        carried!(&mut self.0, queue => queue.wait(timeout))
    }

    /// What another thread ends the connection with.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(super) fn line(&self) -> Result<Line, Error> {
        carried!(&self.0, queue => queue.line())
    }

    /// A command was not answered in time: nobody knows what becomes of it, so nothing
    /// more is asked of this connection.
    pub(super) fn give_up(&mut self) {
        carried!(&mut self.0, queue => queue.give_up());
    }

    /// Sends nothing any more; what comes is for [`Queue::has_ended`]. False when the
    /// connection has ended in both directions.
    pub(super) fn linger(&mut self) -> bool {
        carried!(&mut self.0, queue => queue.linger())
    }

    /// Throws away what has arrived; whether the controller has ended the connection.
    pub(super) fn has_ended(&mut self, scratch: &mut [u8]) -> bool {
        match &mut self.0 {
            Carrier::Tcp(queue) => queue.has_ended(scratch),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(queue) => queue.has_ended(),
        }
    }

    /// Drops the connection, and what the system has not sent of it.
    pub(super) fn abort(self) {
        match self.0 {
            Carrier::Tcp(queue) => queue.abort(),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(queue) => drop(queue),
        }
    }

    /// The time as the machines see it.
    pub(super) fn now(&self) -> Instant {
        carried!(&self.0, queue => queue.now())
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("peer", &self.peer())
            .field("depth", &self.depth())
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

impl AsFd for Queue {
    /// Readable when [`Queue::poll`] has something to do, since [`Queue::wait`] or
    /// [`Queue::poll_with`] found nothing.
    fn as_fd(&self) -> BorrowedFd<'_> {
        carried!(&self.0, queue => queue.as_fd())
    }
}
