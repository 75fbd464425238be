//! How connections are made and ended: what the RDMA connection manager does.
//!
//! | who | does |
//! |---|---|
//! | the host | [`Cm::connect`], then waits for [`Event::Established`] or [`Event::Rejected`] |
//! | the target | takes [`Event::Request`], judges it ([`nvmf_core::rdma::cm`]), then [`Cm::prepare`], receives, [`Cm::accept`]; or [`Cm::reject`] |
//! | whoever wants to end | [`Cm::disconnect`], or [`Cm::stop`] now and [`Cm::disconnect`] later |
//! | both, at the end | take every completion of the queue pair, then [`Cm::destroy`] |
//!
//! **The end of a connection says something.** A host that hears of it, or whose own wish is
//! answered, may take it that the controller does nothing more with its commands. So a
//! target first stops a queue pair, has its devices finish, and disconnects then.
use nvmf_core::time::Instant;

use crate::verbs::{Error, Verbs};

/// Bytes of private data that a fabric delivers at most (RDMA_CM over InfiniBand
/// and RoCE; what a peer sent is padded with zeroes to less than this).
pub const MAX_PRIVATE_DATA: usize = 224;

/// Private data, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; MAX_PRIVATE_DATA],
    len: u8,
}

impl PrivateData {
    /// No more than [`MAX_PRIVATE_DATA`] bytes are taken.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let mut data = Self {
            bytes: [0; MAX_PRIVATE_DATA],
            len: 0,
        };
        for (to, from) in data.bytes.iter_mut().zip(bytes) {
            *to = *from;
            data.len += 1;
        }
        data
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or(&[])
    }
}

/// How a queue pair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// What the worker knows it by: comes back with each of its completions.
    pub tag: u32,
    /// Requests in its send queue.
    pub sends: u32,
    /// Receives of its own; 0: it takes from the worker's shared receive queue.
    pub receives: u32,
}

/// What one side tells the other when they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// READs that this side will have under way (initiator depth, ORD).
    pub initiator_depth: u8,
    /// READs of the peer that this side answers at a time (responder resources, IRD).
    pub responder_resources: u8,
    /// What NVMe says with it.
    pub private_data: PrivateData,
}

/// Who rejects a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejecter {
    /// Who listens there.
    Peer,
    /// The peer's connection manager, because nobody listens there.
    NobodyListens,
    /// A connection manager, for this reason: a code of InfiniBand's REJ (InfiniBand
    /// Architecture 1, section 12.6.7.2), or of the fabric's.
    Manager(i32),
}

/// What happened to connections.
#[derive(Debug)]
pub enum Event<R, Q> {
    /// A peer wants to connect.
    Request {
        /// The right to accept or to reject it.
        request: R,
        /// What the peer says. `responder_resources` is how many READs this side
        /// may have under way.
        terms: Terms,
    },
    /// The queue pair is connected: both sides may send.
    Established {
        /// Which.
        qp: Q,
        /// What the peer says: of the side that accepted nothing is known here.
        terms: Terms,
    },
    /// There will be no connection.
    Rejected {
        /// Which.
        qp: Q,
        /// Who says so.
        by: Rejecter,
        /// What the peer says, if it is the peer.
        private_data: PrivateData,
    },
    /// There is no such peer, or no way to it, or it did not answer.
    Unreachable {
        /// Which.
        qp: Q,
    },
    /// The connection ended: the peer's wish, or its silence, or this side's.
    /// Every request is flushed. A wish of the peer's is not answered yet:
    /// [`Cm::disconnect`] does that, or [`Cm::destroy`].
    Disconnected {
        /// Which.
        qp: Q,
    },
}

impl<R, Q: Copy> Event<R, Q> {
    /// The queue pair that it happened to; none for a request.
    pub fn queue_pair(&self) -> Option<Q> {
        match self {
            Self::Request { .. } => None,
            Self::Established { qp, .. }
            | Self::Rejected { qp, .. }
            | Self::Unreachable { qp }
            | Self::Disconnected { qp } => Some(*qp),
        }
    }
}

/// A worker's share of a connection manager.
pub trait Cm {
    /// The device on which queue pairs are made.
    type Verbs: Verbs<Qp = Self::Qp>;
    /// A queue pair's handle.
    type Qp: Copy + Eq + core::fmt::Debug;
    /// Where a peer is, or where peers come to.
    type Address;
    /// A peer's wish to connect. It may be accepted by another worker than the
    /// one that listens, on the same device.
    type Request;

    /// Takes connections at `address` from now on.
    ///
    /// # Errors
    /// Somebody else does already, or it is not ours.
    fn listen(&mut self, address: Self::Address) -> Result<(), Error>;

    /// Makes a queue pair and connects it to a peer's. What comes of it is an event.
    ///
    /// # Errors
    /// It could not be made.
    fn connect(
        &mut self,
        verbs: &mut Self::Verbs,
        address: Self::Address,
        setup: Setup,
        terms: Terms,
    ) -> Result<Self::Qp, Error>;

    /// Makes a queue pair for a request, so that receives can be posted.
    ///
    /// # Errors
    /// The request, and why not: to be rejected.
    fn prepare(
        &mut self,
        verbs: &mut Self::Verbs,
        request: Self::Request,
        setup: Setup,
    ) -> Result<Self::Qp, (Self::Request, Error)>;

    /// Accepts the request that a queue pair was made for.
    ///
    /// # Errors
    /// The peer is gone. The queue pair is still to be destroyed.
    fn accept(&mut self, verbs: &mut Self::Verbs, qp: Self::Qp, terms: Terms) -> Result<(), Error>;

    /// Rejects a request.
    fn reject(&mut self, request: Self::Request, private_data: PrivateData);

    /// Has all requests of a queue pair flushed, and takes no more, without a word to the
    /// peer. No event follows.
    fn stop(&mut self, verbs: &mut Self::Verbs, qp: Self::Qp);

    /// Ends a connection: all of its requests are flushed, and the peer is told, or
    /// answered if it told this side. [`Event::Disconnected`] follows, unless it came
    /// before or the queue pair was [stopped](Cm::stop).
    fn disconnect(&mut self, verbs: &mut Self::Verbs, qp: Self::Qp);

    /// Forgets a queue pair that is not connected, never was, or was disconnected.
    /// [`Verbs::poll`] must have had nothing to give since then, and nothing is lent.
    fn destroy(&mut self, verbs: &mut Self::Verbs, qp: Self::Qp);

    /// The next thing that happened.
    fn poll(&mut self, now: Instant) -> Option<Event<Self::Request, Self::Qp>>;
}
