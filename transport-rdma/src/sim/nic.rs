//! [`Verbs`]: checks what is posted.
use alloc::rc::Rc;
use alloc::vec::Vec;

use nvmf_core::rdma::Remote;
use nvmf_core::time::Instant;

use super::Fabric;
use super::memory::{Buffer, Region, Registration};
use super::state::{Condition, Happening, Lent, Posted, Qp, QueuePair, State, Window};
use crate::verbs::{
    Access, Chain, Completion, Direction, Ended, Error, Key, Limits, Receiver, Verbs,
};

/// A node's device. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Nic {
    pub(super) fabric: Fabric,
    pub(super) node: usize,
}

impl Nic {
    pub(super) const fn new(fabric: Fabric, node: usize) -> Self {
        Self { fabric, node }
    }

    /// Whether it is armed, and nothing completed since.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.fabric.0.borrow().nodes[self.node].armed
    }

    /// Whether this device may read, or write, the buffer.
    fn is_local(&self, buffer: &Buffer, written: bool) -> bool {
        let registration = &buffer.registration;
        registration.node == self.node && (!written || registration.access.local_write)
    }

    fn check(&self, chain: &Chain<Buffer>) -> bool {
        let fits = |from: u32, len: u32| {
            let buffer = chain.buffer.as_ref();
            let len = u64::from(from) + u64::from(len);
            buffer.is_some_and(|buffer| len <= buffer.bytes.len() as u64)
        };
        let read = |direction| direction == Direction::Read;
        let written = chain.first.is_some_and(|first| read(first.direction));
        let signalled = chain.signalled || chain.buffer.is_none();
        let buffer = chain.buffer.as_ref();
        let local = buffer.is_none_or(|buffer| self.is_local(buffer, written));
        let moves = chain
            .first
            .is_none_or(|first| first.len > 0 && fits(first.offset, first.len));
        let sends = chain
            .send
            .is_none_or(|send| send.data == 0 || fits(0, send.data));
        let alone = !(written && chain.send.is_some());
        chain.requests() > 0 && signalled && local && moves && sends && alone
    }
}

/// Windows that the next chain binds.
fn unbound(state: &State, qp: Qp) -> u32 {
    let waits = |lent: &&Lent| lent.window == Some(Window::Unbound);
    let count = state.qp(qp).lent.values().filter(waits).count();
    u32::try_from(count).expect("a few")
}

impl Verbs for Nic {
    type Memory = Vec<u8>;
    type Region = Region;
    type Buffer = Buffer;
    type Qp = Qp;

    fn limits(&self) -> Limits {
        self.fabric.0.borrow().nodes[self.node].limits
    }

    fn register(&mut self, memory: Vec<u8>, access: Access) -> Result<Region, (Vec<u8>, Error)> {
        // Whoever may write from afar may write.
        if memory.is_empty() || access.remote_write && !access.local_write {
            return Err((memory, Error::Invalid));
        }
        let mut state = self.fabric.0.borrow_mut();
        let key = state.new_key(self.node);
        let node = &mut state.nodes[self.node];
        let address = node.next_address;
        // A page between regions: what is out of bounds is nobody's.
        node.next_address += (memory.len() as u64).next_multiple_of(4096) + 4096;
        Ok(Region {
            rest: memory,
            address,
            registration: Rc::new(Registration {
                node: self.node,
                key,
                access,
            }),
        })
    }

    fn carve(&mut self, region: &mut Region, len: u32) -> Option<Buffer> {
        region.carve(len as usize)
    }

    fn post_receive(
        &mut self,
        to: Receiver<Qp>,
        id: u64,
        buffer: Buffer,
    ) -> Result<(), (Buffer, Error)> {
        if buffer.bytes.is_empty() || !self.is_local(&buffer, true) {
            return Err((buffer, Error::Invalid));
        }
        let mut state = self.fabric.0.borrow_mut();
        let State { nodes, qps, .. } = &mut *state;
        let node = &mut nodes[self.node];
        let (queue, most) = match to {
            Receiver::Shared => (&mut node.shared, node.limits.shared_receives),
            Receiver::Of(qp) => {
                let qp = &mut qps[qp.0];
                if matches!(qp.condition, Condition::Error | Condition::Destroyed) {
                    return Err((buffer, Error::NotConnected));
                }
                (&mut qp.receives, qp.setup.receives)
            }
        };
        if queue.len() >= most as usize {
            return Err((buffer, Error::Full));
        }
        let statistics = &mut node.statistics;
        statistics.receives += 1;
        statistics.receive_bytes_now += buffer.bytes.len() as u64;
        statistics.receive_bytes = statistics.receive_bytes.max(statistics.receive_bytes_now);
        queue.push_back((id, buffer));
        Ok(())
    }

    fn lost_receives(&mut self) -> u32 {
        let state = self.fabric.0.borrow();
        u32::try_from(state.nodes[self.node].lost.len()).expect("a few")
    }

    fn renew_receives(&mut self) -> Result<(), Error> {
        let mut state = self.fabric.0.borrow_mut();
        let uses = |qp: &QueuePair| {
            let there = qp.condition != Condition::Destroyed;
            there && qp.node == self.node && qp.setup.receives == 0
        };
        if state.qps.iter().any(uses) {
            return Err(Error::Invalid);
        }
        let node = &mut state.nodes[self.node];
        for (id, buffer) in core::mem::take(&mut node.lost) {
            node.statistics.receive_bytes_now += buffer.bytes.len() as u64;
            node.shared.push_back((id, buffer));
        }
        Ok(())
    }

    fn post(&mut self, qp: Qp, chain: Chain<Buffer>) -> Result<(), (Option<Buffer>, Error)> {
        if !self.check(&chain) {
            return Err((chain.buffer, Error::Invalid));
        }
        let mut state = self.fabric.0.borrow_mut();
        let windows = unbound(&state, qp);
        let places = chain.requests() + windows;
        let it = state.qp_mut(qp);
        if it.condition != Condition::Connected {
            return Err((chain.buffer, Error::NotConnected));
        }
        if it.taken + places > it.setup.sends {
            return Err((chain.buffer, Error::Full));
        }
        it.taken += places;
        for lent in it.lent.values_mut() {
            if lent.window == Some(Window::Unbound) {
                lent.window = Some(Window::Bound);
            }
        }
        it.chains.push_back(Posted {
            chain,
            reclaim: false,
            places,
            done: 0,
        });
        let statistics = &mut state.nodes[self.node].statistics;
        statistics.posts += 1;
        statistics.windows += u64::from(windows);
        if windows > 0 && state.qp(qp).bind_fails {
            let now = state.now;
            state.schedule(now, Happening::Unbound(qp));
        } else {
            state.transmit(qp);
        }
        Ok(())
    }

    fn lend(
        &mut self,
        qp: Qp,
        buffer: Buffer,
        len: u32,
        access: Access,
        key: Key,
    ) -> Result<Remote, (Buffer, Error)> {
        let permitted = buffer.registration.access.permits(key, access);
        let fits = len as usize <= buffer.bytes.len() && len > 0;
        if !permitted || !fits || !self.is_local(&buffer, false) {
            return Err((buffer, Error::Invalid));
        }
        let mut state = self.fabric.0.borrow_mut();
        if state.qp(qp).condition != Condition::Connected {
            return Err((buffer, Error::NotConnected));
        }
        let (key, window) = match key {
            Key::Region => (buffer.registration.key, None),
            Key::Window if !state.nodes[self.node].limits.windows => {
                return Err((buffer, Error::Unsupported));
            }
            Key::Window => (state.new_key(self.node), Some(Window::Unbound)),
        };
        let address = buffer.address;
        let lent = Lent {
            buffer,
            len,
            access,
            key,
            window,
        };
        let before = state.qp_mut(qp).lent.insert(address, lent);
        assert!(before.is_none(), "a buffer has its address for itself");
        Ok(Remote { address, key })
    }

    fn reclaim(
        &mut self,
        qp: Qp,
        remote: Remote,
        invalidated: bool,
        id: u64,
    ) -> Result<Option<Buffer>, Error> {
        let mut state = self.fabric.0.borrow_mut();
        let it = state.qp_mut(qp);
        let lent = it.lent.get(&remote.address).ok_or(Error::Invalid)?;
        let was = lent.window == Some(Window::Invalidated);
        if lent.key != remote.key || invalidated != was {
            return Err(Error::Invalid);
        }
        let bound = lent.window == Some(Window::Bound) && it.condition == Condition::Connected;
        if bound && it.taken + 1 > it.setup.sends {
            return Err(Error::Full);
        }
        let buffer = it.lent.remove(&remote.address).map(|lent| lent.buffer);
        if !bound {
            return Ok(buffer);
        }
        it.taken += 1;
        it.chains.push_back(Posted {
            chain: Chain {
                id,
                signalled: true,
                buffer,
                first: None,
                send: None,
            },
            reclaim: true,
            places: 1,
            done: 0,
        });
        state.nodes[self.node].statistics.windows += 1;
        state.transmit(qp);
        Ok(None)
    }

    fn poll(&mut self, now: Instant) -> Option<Completion<Buffer>> {
        let mut state = self.fabric.0.borrow_mut();
        state.advance(now);
        let node = &mut state.nodes[self.node];
        let queued = node.completions.pop_front()?;
        match queued.completion.ended {
            Ended::Receive { .. } => node.statistics.receives_completed += 1,
            Ended::Chain | Ended::Reclaim => node.statistics.chains_completed += 1,
            Ended::Lend => {}
        }
        let it = state.qp_mut(queued.qp);
        it.taken -= queued.retires;
        Some(queued.completion)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.fabric.next_deadline()
    }

    fn arm(&mut self) -> Result<(), Error> {
        let mut state = self.fabric.0.borrow_mut();
        state.nodes[self.node].armed = true;
        Ok(())
    }
}
