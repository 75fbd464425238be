//! [`Cm`]: who connects to whom.
use nvmf_core::time::Instant;

use super::state::{Condition, Happening, Packet, Qp};
use super::{Address, Fabric, Nic};
use crate::cm::{Cm, Event, PrivateData, Setup, Terms};
use crate::verbs::{Error, Outcome};

/// A node's connection manager.
#[derive(Debug)]
pub struct Manager {
    fabric: Fabric,
    node: usize,
}

/// A peer that wants to connect.
#[derive(Debug)]
pub struct Request {
    from: Qp,
}

impl Request {
    pub(super) const fn new(from: Qp) -> Self {
        Self { from }
    }
}

impl Manager {
    pub(super) const fn new(fabric: Fabric, node: usize) -> Self {
        Self { fabric, node }
    }
}

impl Cm for Manager {
    type Verbs = Nic;
    type Qp = Qp;
    type Address = Address;
    type Request = Request;

    fn listen(&mut self, address: Address) -> Result<(), Error> {
        let mut state = self.fabric.0.borrow_mut();
        if state.listeners.contains_key(&address) {
            return Err(Error::NoResources);
        }
        state.listeners.insert(address, self.node);
        Ok(())
    }

    fn connect(
        &mut self,
        _: &mut Nic,
        address: Address,
        setup: Setup,
        terms: Terms,
    ) -> Result<Qp, Error> {
        let mut state = self.fabric.0.borrow_mut();
        let qp = state.add_qp(self.node, setup);
        let it = state.qp_mut(qp);
        it.initiator_depth = terms.initiator_depth;
        it.responder_resources = terms.responder_resources;
        match state.listeners.get(&address).copied() {
            Some(to) => {
                let due = state.later(qp, 1);
                state.schedule(
                    due,
                    Happening::Request {
                        from: qp,
                        to,
                        terms,
                    },
                );
            }
            None => {
                let due = state.later(qp, 2);
                state.schedule(due, Happening::NobodyListens(qp));
            }
        }
        Ok(qp)
    }

    fn prepare(
        &mut self,
        verbs: &mut Nic,
        request: Request,
        setup: Setup,
    ) -> Result<Qp, (Request, Error)> {
        let mut state = self.fabric.0.borrow_mut();
        let limits = state.nodes[verbs.node].limits;
        if setup.sends > limits.send_requests || setup.receives > limits.receives {
            return Err((request, Error::NoResources));
        }
        let qp = state.add_qp(verbs.node, setup);
        let latency = state.qp(request.from).latency;
        let it = state.qp_mut(qp);
        it.peer = Some(request.from);
        it.latency = latency;
        Ok(qp)
    }

    fn accept(&mut self, _: &mut Nic, qp: Qp, terms: Terms) -> Result<(), Error> {
        let mut state = self.fabric.0.borrow_mut();
        let Some(peer) = state.qp(qp).peer else {
            return Err(Error::Invalid);
        };
        if state.qp(peer).condition != Condition::Idle {
            return Err(Error::NotConnected);
        }
        state.qp_mut(peer).peer = Some(qp);
        let it = state.qp_mut(qp);
        it.condition = Condition::Connected;
        it.initiator_depth = terms.initiator_depth;
        it.responder_resources = terms.responder_resources;
        let (host, target) = (state.later(qp, 1), state.later(qp, 2));
        state.schedule(host, Happening::Established(peer, terms));
        let nothing = Terms {
            private_data: PrivateData::new(&[]),
            ..terms
        };
        state.schedule(target, Happening::Established(qp, nothing));
        Ok(())
    }

    fn reject(&mut self, request: Request, private_data: PrivateData) {
        let mut state = self.fabric.0.borrow_mut();
        let due = state.later(request.from, 1);
        state.schedule(due, Happening::Rejected(request.from, private_data));
    }

    fn stop(&mut self, _: &mut Nic, qp: Qp) {
        let mut state = self.fabric.0.borrow_mut();
        if state.qp(qp).condition == Condition::Destroyed {
            return;
        }
        state.fail(qp, Outcome::Flushed);
        state.qp_mut(qp).told = true;
    }

    fn disconnect(&mut self, _: &mut Nic, qp: Qp) {
        let mut state = self.fabric.0.borrow_mut();
        let it = state.qp_mut(qp);
        if it.condition == Condition::Destroyed {
            return;
        }
        let first = !core::mem::replace(&mut it.said_bye, true);
        if first && it.peer.is_some() {
            state.launch(qp, Packet::Bye);
        }
        state.fail(qp, Outcome::Flushed);
        state.tell(qp);
    }

    fn destroy(&mut self, _: &mut Nic, qp: Qp) {
        let mut state = self.fabric.0.borrow_mut();
        let node = &state.nodes[state.qp(qp).node];
        let unseen = node.completions.iter().any(|queued| queued.qp == qp);
        assert!(
            !unseen,
            "{qp:?} is destroyed before its completions are taken"
        );
        let it = state.qp_mut(qp);
        let answers = it.peer_ended && !it.said_bye;
        assert!(
            it.lent.is_empty(),
            "{qp:?} is destroyed while its peer has memory"
        );
        let over = matches!(it.condition, Condition::Error | Condition::Idle);
        assert!(over, "{qp:?} is destroyed while it is {:?}", it.condition);
        assert!(it.receives.is_empty(), "{qp:?} is destroyed with receives");
        it.condition = Condition::Destroyed;
        if answers {
            state.launch(qp, Packet::Bye);
        }
    }

    fn poll(&mut self, now: Instant) -> Option<Event<Request, Qp>> {
        let mut state = self.fabric.0.borrow_mut();
        state.advance(now);
        state.nodes[self.node].events.pop_front()
    }
}
