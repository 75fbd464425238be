//! A fabric in memory and in virtual time, which checks what a network card checks:
//! keys, bounds, rights, invalidation, receives that are not there, depths of queues,
//! order, READs at a time, and that everything is flushed when a queue pair fails.
//!
//! Each end of a connection has a [`Nic`] and a [`Manager`], of one [`Fabric`]. All
//! that moves is moved when either of them is polled, up to the time that it is told.
//! What a real device would only suffer from is a fault of its user, and panics: a
//! completion queue that overruns, a queue pair that is destroyed in use.
//!
//! | file | what is in it |
//! |---|---|
//! | this one | the fabric, as tests see it |
//! | `memory` | buffers and regions |
//! | `nic` | [`Verbs`](crate::Verbs) |
//! | `manager` | [`Cm`](crate::Cm) |
//! | `state` | what there is: nodes, queue pairs, and what is on its way |
//! | `wire` | how requests get on |
mod manager;
mod memory;
mod nic;
mod state;
mod wire;

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;

use nvmf_core::time::Instant;

pub use self::manager::{Manager, Request};
pub use self::memory::{Buffer, Region};
pub use self::nic::Nic;
use self::state::State;
pub use self::state::{Kind, Qp, Statistics};
use crate::verbs::{Limits, Outcome};

/// A device that can do as much as those in the field.
pub const LIMITS: Limits = Limits {
    send_requests: 16_384,
    receives: 16_384,
    shared_receives: 0,
    completions: 65_536,
    initiator_depth: 16,
    responder_resources: 16,
    windows: true,
};

/// Who connects to what.
#[derive(Clone, Debug, Default)]
pub struct Fabric(Rc<RefCell<State>>);

/// Where a node listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub u32);

/// A request on its way, as a [`Tap`] sees it.
#[derive(Debug)]
pub struct Passing<'a> {
    /// The queue pair that sends it.
    pub from: Qp,
    /// What it is.
    pub kind: Kind,
    /// What it carries: may be changed, cut and added to.
    pub bytes: &'a mut Vec<u8>,
    /// How much longer than others it takes, as does all that follows it.
    pub delay: &'a mut Duration,
    /// It does not arrive, and fails so.
    pub fail: &'a mut Option<Outcome>,
}

/// Sees every request that goes to a peer, and may do anything to it.
pub type Tap = Box<dyn FnMut(&mut Passing<'_>)>;

impl Fabric {
    /// Without nodes, and without latency.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new node's device and connection manager.
    #[must_use]
    pub fn node(&self, limits: Limits) -> (Nic, Manager) {
        let node = self.0.borrow_mut().add_node(limits);
        (
            Nic::new(self.clone(), node),
            Manager::new(self.clone(), node),
        )
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.borrow().now
    }

    /// Time passes, and all that is due by then happens.
    pub fn advance(&self, now: Instant) {
        self.0.borrow_mut().advance(now);
    }

    /// How long everything takes each way, of connections that are made from now on.
    pub fn set_latency(&self, latency: Duration) {
        self.0.borrow_mut().latency = latency;
    }

    /// How often a SEND is tried when there is no receive for it, and how long a try takes.
    pub fn set_rnr(&self, retries: u32, pause: Duration) {
        let mut state = self.0.borrow_mut();
        (state.rnr_retries, state.rnr_pause) = (retries, pause);
    }

    /// Who listens from now on.
    pub fn set_tap(&self, tap: Tap) {
        self.0.borrow_mut().tap.0 = Some(tap);
    }

    /// When something is to happen.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.0.borrow().next_deadline()
    }

    /// So many more requests leave a queue pair; others wait. [`usize::MAX`] is no
    /// limit, as there is none at first.
    pub fn set_room(&self, qp: Qp, requests: usize) {
        self.0.borrow_mut().set_room(qp, requests);
    }

    /// Requests of the queue pair that arrived at its peer.
    #[must_use]
    pub fn arrived(&self, qp: Qp) -> u64 {
        self.0.borrow().qp(qp).arrived
    }

    /// The connection is gone when so many of the queue pair's requests have arrived.
    pub fn cut_at(&self, qp: Qp, requests: u64) {
        self.0.borrow_mut().qp_mut(qp).cut_at = Some(requests);
    }

    /// The queue pair's next SEND breaks off after its first packet, and with it the
    /// connection. If its peer receives from a shared queue, the receive is lost.
    pub fn break_off(&self, qp: Qp) {
        self.0.borrow_mut().qp_mut(qp).breaks_off = true;
    }

    /// The device cannot bind the next window of the queue pair.
    pub fn fail_bind(&self, qp: Qp) {
        self.0.borrow_mut().qp_mut(qp).bind_fails = true;
    }

    /// The connection is gone: what is on its way is lost, and both ends notice.
    pub fn cut(&self, qp: Qp) {
        self.0.borrow_mut().cut(qp);
    }

    /// Whether the peer has ended the connection, or answered that this side did.
    #[must_use]
    pub fn has_peer_ended(&self, qp: Qp) -> bool {
        self.0.borrow().qp(qp).peer_ended
    }

    /// What the node's device did so far.
    #[must_use]
    pub fn statistics(&self, nic: &Nic) -> Statistics {
        self.0.borrow().nodes[nic.node].statistics
    }

    /// The other end of a connection, once it was accepted.
    #[must_use]
    pub fn peer(&self, qp: Qp) -> Option<Qp> {
        self.0.borrow().qp(qp).peer
    }

    /// Queue pairs that exist, of all nodes.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        self.0.borrow().live()
    }

    /// Buffers that are lent, of all nodes.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.0.borrow().lent()
    }
}
