//! Both ends of connections in one thread and in virtual time, over whatever
//! transport: what scenarios are written against, once for all.
//!
//! What a transport has of its own (pieces, digests, keys, receive queues) is
//! chosen where the ends are made. Afterwards nothing tells one from the other but
//! the size of its units: a cut comes after so many bytes of TCP, or so many
//! messages of RDMA.
use std::time::Duration;

use nvmf_core::block::MediaError;
use nvmf_core::target::queue_pair::Close;
use nvmf_core::time::Instant;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cntlid, Qid};
use nvmf_core::wire::sqe::Sqe;

use crate::random::Random;
use crate::target::{Supply, Target};

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the host.
    ToTarget,
    /// To the host.
    ToHost,
}

/// The data of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// None.
    Nothing,
    /// At most this many bytes come.
    Read(u32),
    /// These go.
    Write(Vec<u8>),
}

/// The queue that a connection is to become. The transport may have to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub qid: Qid,
    /// Of which controller.
    pub cntlid: Cntlid,
    /// How many entries it is to have.
    pub entries: u16,
}

/// What a host sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The transport is ready.
    Ready,
    /// A command completed.
    Completed {
        /// The caller's name for it.
        tag: u64,
        /// What the controller says.
        cqe: Cqe,
        /// What came, or what went.
        data: Vec<u8>,
    },
    /// The controller broke the transport; the connection is over.
    Broken(String),
    /// The controller ended the connection, and says why.
    Terminated(String),
    /// The controller did not get ready in time.
    Late,
    /// The connection is gone, and the host did not close it.
    Closed,
}

/// Something that a host saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// On which connection.
    pub link: usize,
    /// When.
    pub when: Instant,
    /// What.
    pub happened: Happened,
}

/// Hosts and a target. Connections have indices, in the order in which they were made.
pub trait Ends: Sized {
    /// Where the target's buffers come from.
    type Supply: Supply;

    /// Without connections, and with nothing special.
    fn plain() -> Self;

    /// Without connections; what the transport may choose is chosen.
    fn chosen(random: &mut Random) -> Self;

    /// The target's surroundings.
    fn target(&mut self) -> &mut Target<Self::Supply>;

    /// Virtual time.
    fn now(&self) -> Instant;

    /// A host connects; returns the connection's index. Everything takes `latency` each way.
    fn connect(&mut self, wanted: &Wanted, latency: Duration) -> usize;

    /// From now on the host has `commands` under way at a time, and sends up to
    /// `inline_data` bytes inside a capsule.
    fn configure(&mut self, link: usize, commands: usize, inline_data: u32);

    /// The host submits a command; returns whether there was room.
    fn submit(&mut self, link: usize, sqe: &Sqe, payload: Payload, tag: u64) -> bool;

    /// Commands of an open connection that did not complete.
    fn outstanding(&self, link: usize) -> usize;

    /// What hosts saw, in order.
    fn poll_seen(&mut self) -> Option<Seen>;

    /// How many connections there were.
    fn links(&self) -> usize;

    /// Whether the host's end is open.
    fn is_open(&self, link: usize) -> bool;

    /// Whether the target's end is open.
    fn is_open_at_target(&self, link: usize) -> bool;

    /// Whether nothing of the connection is left at the target.
    fn is_drained(&self, link: usize) -> bool;

    /// Why the target's queue is closed, or closed.
    fn closing(&self, link: usize) -> Option<Close>;

    /// So many units are sent one way; others wait. [`usize::MAX`] is no limit.
    fn make_room(&mut self, link: usize, way: Way, units: usize);

    /// Units that arrived.
    fn arrived(&self, link: usize, way: Way) -> u64;

    /// The connection is gone at once: what is on its way is lost, and both ends know.
    fn cut(&mut self, link: usize);

    /// The connection is gone as soon as so many units have arrived one way:
    /// of one that there is, or that is to be.
    fn cut_at(&mut self, link: usize, way: Way, units: u64);

    /// About so many bytes, in units.
    fn units(bytes: u64) -> u64;

    /// The host closes: what it sent arrives, and what comes is lost.
    fn close(&mut self, link: usize);

    /// Something on its way is to be changed, if that is found out.
    fn spoil(&mut self, link: usize, way: Way, at: usize, change: u8);

    /// No more of that.
    fn stop_spoiling(&mut self);

    /// How often something was changed.
    fn spoilt(&self) -> usize;

    /// Whether a read of memory that is lent may see part of each of two writes.
    fn tears(&self) -> bool;

    /// Time passes, and all happens that is to happen meanwhile, each thing at its moment.
    fn run(&mut self, by: Duration);

    /// Until nothing is on its way.
    fn flow(&mut self);

    /// When something is to happen.
    fn deadline(&self) -> Option<Instant>;

    /// The `index`th request that devices hold completes; false if there is none.
    fn complete(&mut self, index: usize, fault: Option<MediaError>) -> bool;

    /// Buffers or devices became free for a connection's commands.
    fn retry(&mut self, link: usize);

    /// Nothing is left of anything, when all connections are gone.
    ///
    /// # Panics
    /// When something is.
    fn assert_clean(&mut self);

    /// All that hosts saw of a connection; the rest is forgotten.
    fn seen_of(&mut self, link: usize) -> Vec<Happened> {
        let seen = std::iter::from_fn(|| self.poll_seen());
        let of = seen.filter(|seen| seen.link == link);
        of.map(|seen| seen.happened).collect()
    }
}
