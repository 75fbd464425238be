//! How requests get on: from the send queue to the peer, and their answers back.
use alloc::vec::Vec;
use core::time::Duration;

use nvmf_core::rdma::Remote;
use nvmf_core::time::Instant;

use super::Passing;
use super::state::{Condition, Happening, Kind, Lent, Packet, Qp, QueuePair, State, Window};
use crate::cm::{Event, PrivateData, Rejecter, Terms};
use crate::verbs::{Direction, Ended, Outcome};

impl State {
    /// Everything that is due happens, each thing at its moment.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= now
        {
            let ((due, _), happening) = entry.remove_entry();
            self.now = self.now.max(due);
            self.happen(happening);
        }
        self.now = self.now.max(now);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrival(qp) => self.arrival(qp),
            Happening::Answer {
                of,
                chain,
                result,
                read,
            } => self.answer(of, chain, result, read),
            Happening::Request { from, to, terms } => {
                let request = super::Request::new(from);
                self.nodes[to]
                    .events
                    .push_back(Event::Request { request, terms });
            }
            Happening::NobodyListens(qp) => {
                self.rejected(qp, Rejecter::NobodyListens, PrivateData::new(&[]));
            }
            Happening::Rejected(qp, private_data) => {
                self.rejected(qp, Rejecter::Peer, private_data);
            }
            Happening::Established(qp, terms) => self.established(qp, terms),
            Happening::Unbound(qp) => {
                if self.qp(qp).condition == Condition::Connected {
                    self.complete(qp, 0, (Ended::Lend, Outcome::Bind), None, 0);
                    self.fail(qp, Outcome::Flushed);
                }
            }
        }
    }

    fn rejected(&mut self, qp: Qp, by: Rejecter, private_data: PrivateData) {
        if self.qp(qp).condition == Condition::Idle {
            let node = self.qp(qp).node;
            self.nodes[node].events.push_back(Event::Rejected {
                qp,
                by,
                private_data,
            });
        }
    }

    fn established(&mut self, qp: Qp, terms: Terms) {
        let it = self.qp_mut(qp);
        match it.condition {
            Condition::Idle => it.condition = Condition::Connected,
            // The side that accepted.
            Condition::Connected => {}
            Condition::Error | Condition::Destroyed => return,
        }
        let node = it.node;
        self.nodes[node]
            .events
            .push_back(Event::Established { qp, terms });
    }

    /// Requests leave, in order, as far as they may.
    pub(super) fn transmit(&mut self, qp: Qp) {
        while self.qp(qp).condition == Condition::Connected && self.transmit_one(qp) {}
    }

    fn transmit_one(&mut self, qp: Qp) -> bool {
        let it = &mut self.qps[qp.0];
        let (at, part) = it.left;
        let Some(posted) = it.chains.get(at) else {
            return false;
        };
        let number = it.first_chain + at as u64;
        if posted.reclaim {
            it.left = (at + 1, 0);
            if at == 0 {
                self.finish(qp);
            }
            return true;
        }
        let chain = &posted.chain;
        let first = chain.first.filter(|_| part == 0);
        let read = first.is_some_and(|first| first.direction == Direction::Read);
        if read && it.reads >= it.initiator_depth.into() {
            self.nodes[it.node].statistics.stalls += 1;
            return false;
        }
        if it.room == 0 {
            return false;
        }
        if it.room != usize::MAX {
            it.room -= 1;
        }
        let buffer = |from: u32, len: u32| {
            let bytes = chain.buffer.as_ref().map(|buffer| &buffer.bytes);
            let bytes = bytes.expect("the chain has a buffer, which was checked");
            bytes[from as usize..][..len as usize].to_vec()
        };
        let statistics = &mut self.nodes[it.node].statistics;
        let packet = match first {
            Some(first) if read => {
                it.reads += 1;
                statistics.reads += 1;
                Packet::Read {
                    chain: number,
                    remote: first.remote,
                    len: first.len,
                    fail: None,
                }
            }
            Some(first) => {
                statistics.writes += 1;
                Packet::Write {
                    chain: number,
                    remote: first.remote,
                    bytes: buffer(first.offset, first.len),
                    fail: None,
                }
            }
            None => {
                let send = chain.send.as_ref().expect("a chain is not empty");
                statistics.sends += 1;
                let mut bytes = send.head().to_vec();
                if send.data > 0 {
                    bytes.extend(buffer(0, send.data));
                }
                Packet::Send {
                    chain: number,
                    bytes,
                    invalidate: send.invalidate,
                    fail: None,
                }
            }
        };
        it.left = if first.is_some() && chain.send.is_some() {
            (at, 1)
        } else {
            (at + 1, 0)
        };
        self.launch(qp, packet);
        true
    }

    /// A request is on its way, past the tap.
    pub(super) fn launch(&mut self, qp: Qp, mut packet: Packet) {
        let mut delay = Duration::ZERO;
        if let Some(tap) = &mut self.tap.0 {
            let mut nothing = Vec::new();
            let seen = match &mut packet {
                Packet::Send { bytes, fail, .. } => Some((Kind::Send, bytes, fail)),
                Packet::Write { bytes, fail, .. } => Some((Kind::Write, bytes, fail)),
                Packet::Read { fail, .. } => Some((Kind::Read, &mut nothing, fail)),
                Packet::Bye => None,
            };
            if let Some((kind, bytes, fail)) = seen {
                tap(&mut Passing {
                    from: qp,
                    kind,
                    bytes,
                    delay: &mut delay,
                    fail,
                });
            }
        }
        let due = self.later(qp, 1).after(delay);
        let it = self.qp_mut(qp);
        it.last_due = it.last_due.max(due);
        let due = it.last_due;
        it.wire.push_back(packet);
        self.schedule(due, Happening::Arrival(qp));
    }

    /// The first request of `qp`'s wire arrives at its peer.
    fn arrival(&mut self, qp: Qp) {
        let until = self.qp(qp).blocked_until;
        if until > self.now {
            return self.schedule(until, Happening::Arrival(qp));
        }
        let it = self.qp_mut(qp);
        let Some(packet) = it.wire.pop_front() else {
            return;
        };
        if let (Packet::Bye, Some(peer)) = (&packet, it.peer) {
            // That is said apart from the queue pair, and heard though it failed.
            self.qp_mut(peer).peer_ended = true;
            self.fail(peer, Outcome::Flushed);
            return self.tell(peer);
        }
        let peer = it
            .peer
            .filter(|peer| matches!(self.qp(*peer).condition, Condition::Connected));
        let Some(peer) = peer else {
            return self.undeliverable(qp, &packet);
        };
        if self.qp(qp).breaks_off && matches!(packet, Packet::Send { .. }) {
            self.lose_receive(peer);
            return self.cut(qp);
        }
        let (chain, read, result) = match packet {
            Packet::Bye => return,
            Packet::Send {
                chain,
                bytes,
                invalidate,
                fail,
            } => {
                let result = match fail {
                    Some(outcome) => Err(outcome),
                    None => match self.deliver(peer, &bytes, invalidate) {
                        Some(result) => result,
                        None => {
                            return self.not_ready(
                                qp,
                                Packet::Send {
                                    chain,
                                    bytes,
                                    invalidate,
                                    fail,
                                },
                            );
                        }
                    },
                };
                (chain, false, result.map(|()| Vec::new()))
            }
            Packet::Write {
                chain,
                remote,
                bytes,
                fail,
            } => {
                let result = fail.map_or_else(|| self.write(peer, remote, &bytes), Err);
                (chain, false, result.map(|()| Vec::new()))
            }
            Packet::Read {
                chain,
                remote,
                len,
                fail,
            } => {
                let result = fail.map_or_else(|| self.read((qp, peer), remote, len), Err);
                (chain, true, result)
            }
        };
        let failed = result.is_err();
        let happening = Happening::Answer {
            of: qp,
            chain,
            result,
            read,
        };
        self.schedule(self.later(qp, 1), happening);
        if failed {
            // What is behind it does not count any more.
            self.qp_mut(qp).wire.clear();
        } else {
            let it = self.qp_mut(qp);
            it.arrived += 1;
            if it.cut_at.is_some_and(|at| it.arrived >= at) {
                self.cut(qp);
            }
        }
    }

    fn undeliverable(&mut self, qp: Qp, packet: &Packet) {
        let (Packet::Send { chain, .. } | Packet::Write { chain, .. } | Packet::Read { chain, .. }) =
            *packet
        else {
            return;
        };
        self.qp_mut(qp).wire.clear();
        let happening = Happening::Answer {
            of: qp,
            chain,
            result: Err(Outcome::Unreachable),
            read: false,
        };
        self.schedule(self.later(qp, 1), happening);
    }

    /// The peer has no receive: the request is tried again, and all behind it waits.
    fn not_ready(&mut self, qp: Qp, packet: Packet) {
        let until = self.now.after(self.rnr_pause.max(Duration::from_micros(1)));
        let retries = self.rnr_retries;
        let it = &mut self.qps[qp.0];
        if it.condition != Condition::Connected {
            // Nobody tries again.
            return;
        }
        self.nodes[it.node].statistics.not_ready += 1;
        it.tries += 1;
        if it.tries > retries {
            let Packet::Send { chain, .. } = packet else {
                return;
            };
            it.wire.clear();
            let happening = Happening::Answer {
                of: qp,
                chain,
                result: Err(Outcome::ReceiverNotReady),
                read: false,
            };
            return self.schedule(until, happening);
        }
        it.blocked_until = until;
        it.wire.push_front(packet);
        self.schedule(until, Happening::Arrival(qp));
    }

    /// The receive that a message at `qp` would come into is gone.
    fn lose_receive(&mut self, qp: Qp) {
        let QueuePair { node, setup, .. } = *self.qp(qp);
        let node = &mut self.nodes[node];
        if setup.receives == 0
            && let Some(receive) = node.shared.pop_front()
        {
            node.statistics.receive_bytes_now -= receive.1.bytes.len() as u64;
            node.lost.push(receive);
        }
    }

    /// A message at `qp`; `None` if there is no receive for it.
    fn deliver(
        &mut self,
        qp: Qp,
        bytes: &[u8],
        invalidate: Option<u32>,
    ) -> Option<Result<(), Outcome>> {
        let it = &mut self.qps[qp.0];
        let node = &mut self.nodes[it.node];
        let receives = if it.setup.receives == 0 {
            &mut node.shared
        } else {
            &mut it.receives
        };
        let (id, mut buffer) = receives.pop_front()?;
        node.statistics.receive_bytes_now -= buffer.bytes.len() as u64;
        if let Some(peer) = it.peer {
            self.qp_mut(peer).tries = 0;
        }
        if bytes.len() > buffer.bytes.len() {
            let ended = Ended::Receive {
                len: 0,
                invalidated: None,
            };
            self.complete(qp, id, (ended, Outcome::Length), Some(buffer), 0);
            self.fail(qp, Outcome::Flushed);
            return Some(Err(Outcome::RemoteInvalid));
        }
        if let Some(key) = invalidate {
            let window = self.qp_mut(qp).lent.values_mut().find_map(|lent| {
                (lent.key == key && lent.window == Some(Window::Bound)).then_some(&mut lent.window)
            });
            let Some(window) = window else {
                let ended = Ended::Receive {
                    len: 0,
                    invalidated: None,
                };
                self.complete(qp, id, (ended, Outcome::Flushed), Some(buffer), 0);
                self.fail(qp, Outcome::Flushed);
                return Some(Err(Outcome::RemoteAccess));
            };
            *window = Some(Window::Invalidated);
        }
        buffer.bytes[..bytes.len()].copy_from_slice(bytes);
        let ended = Ended::Receive {
            len: u32::try_from(bytes.len()).expect("fits the buffer"),
            invalidated: invalidate,
        };
        self.complete(qp, id, (ended, Outcome::Success), Some(buffer), 0);
        Some(Ok(()))
    }

    /// Memory that `qp` lends its peer.
    fn reach(
        &mut self,
        qp: Qp,
        remote: Remote,
        len: usize,
        may: fn(&Lent) -> bool,
    ) -> Result<&mut [u8], Outcome> {
        let it = &mut self.qps[qp.0];
        let found = it.lent.range_mut(..=remote.address).next_back();
        let found = found.and_then(|(address, lent)| {
            let open = matches!(lent.window, None | Some(Window::Bound));
            let from = usize::try_from(remote.address - address).ok()?;
            if lent.key != remote.key || !open || !may(lent) {
                return None;
            }
            let within = lent.len as usize;
            lent.buffer
                .bytes
                .get_mut(..within)?
                .get_mut(from..)?
                .get_mut(..len)
        });
        found.ok_or(Outcome::RemoteAccess)
    }

    fn write(&mut self, qp: Qp, remote: Remote, bytes: &[u8]) -> Result<(), Outcome> {
        match self.reach(qp, remote, bytes.len(), |lent| lent.access.remote_write) {
            Ok(memory) => {
                memory.copy_from_slice(bytes);
                Ok(())
            }
            Err(outcome) => {
                self.fail(qp, Outcome::Flushed);
                Err(outcome)
            }
        }
    }

    fn read(&mut self, (from, qp): (Qp, Qp), remote: Remote, len: u32) -> Result<Vec<u8>, Outcome> {
        if self.qp(from).reads > self.qp(qp).responder_resources.into() {
            self.fail(qp, Outcome::Flushed);
            return Err(Outcome::RemoteInvalid);
        }
        match self.reach(qp, remote, len as usize, |lent| lent.access.remote_read) {
            Ok(memory) => Ok(memory.to_vec()),
            Err(outcome) => {
                self.fail(qp, Outcome::Flushed);
                Err(outcome)
            }
        }
    }

    /// A request of `qp` was answered.
    fn answer(&mut self, qp: Qp, chain: u64, result: Result<Vec<u8>, Outcome>, read: bool) {
        let it = self.qp_mut(qp);
        if it.condition != Condition::Connected {
            return;
        }
        let at = chain.checked_sub(it.first_chain);
        let at = at.and_then(|at| usize::try_from(at).ok());
        let Some(posted) = at.and_then(|at| it.chains.get_mut(at)) else {
            return;
        };
        match result {
            Err(outcome) => return self.fail(qp, outcome),
            Ok(bytes) => {
                posted.done += 1;
                if read {
                    let first = posted.chain.first.expect("a READ");
                    let buffer = posted.chain.buffer.as_mut().expect("was checked");
                    let place = &mut buffer.bytes[first.offset as usize..][..bytes.len()];
                    place.copy_from_slice(&bytes);
                    it.reads -= 1;
                }
            }
        }
        self.finish(qp);
        self.transmit(qp);
    }

    /// Chains that are done complete, in order.
    fn finish(&mut self, qp: Qp) {
        loop {
            let it = self.qp_mut(qp);
            let done = it.chains.front().is_some_and(|posted| {
                if posted.reclaim {
                    it.left.0 > 0
                } else {
                    posted.done >= posted.chain.requests()
                }
            });
            if !done {
                return;
            }
            let Some(posted) = it.chains.pop_front() else {
                return;
            };
            it.first_chain += 1;
            it.left.0 -= 1;
            it.unretired += posted.places;
            if !posted.chain.signalled {
                continue;
            }
            let retires = core::mem::take(&mut it.unretired);
            let ended = if posted.reclaim {
                Ended::Reclaim
            } else {
                Ended::Chain
            };
            let chain = posted.chain;
            self.complete(
                qp,
                chain.id,
                (ended, Outcome::Success),
                chain.buffer,
                retires,
            );
        }
    }
}
