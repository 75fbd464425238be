//! One worker's share of a device: what its [`Verbs`](super::Verbs) and its
//! [`Cm`](super::Cm) have in common.
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::vec::Vec;

use slab::Slab;

use super::cm::{Channel, Happened, Identifier};
use super::device::{Device, OpenError, check_pointer};
use super::memory::{Buffer, Domain};
use super::queue_pair::{Posted, QueuePair};
use super::queues::{BATCH, CompletionQueue, SharedReceives, Window};
use super::sys::{self, Wc, status};
use crate::verbs::{Completion, Ended, Error, Limits, Outcome};

/// A queue pair of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qp(u32);

impl Qp {
    const INDEX_BITS: u32 = 16;

    fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }

    /// As the user's pointer of a connection, and in names of work requests. It is never 0.
    pub(super) fn raw(self) -> u32 {
        self.0
    }

    pub(super) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

/// How large a worker's share is.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Receives that the shared receive queue has room for; 0: there is none.
    pub shared_receives: u32,
    /// Completions that the completion queue has room for: of all receives and
    /// chains of all queue pairs that are under way at a time.
    pub completions: u32,
    /// The completion vector that wakes the worker, modulo those that there are.
    pub completion_vector: u32,
}

/// A receive that is posted.
pub(super) struct Receive {
    pub(super) id: u64,
    /// Part of its name: no other has had it lately.
    generation: u32,
    pub(super) buffer: Buffer,
    /// Whose it is; `None`: the shared receive queue's.
    pub(super) of: Option<Qp>,
}

/// A buffer that a peer may reach, until the window, which is first, is gone.
pub(super) struct Lent {
    pub(super) window: Option<Window>,
    pub(super) buffer: Buffer,
}

/// Dropped from the first to the last: queue pairs before the memory and the queues that they use.
pub(super) struct Worker {
    qps: Slab<QueuePair>,
    pub(super) listeners: Vec<Identifier>,
    generation: u16,
    receive_generation: u32,
    /// By the device's number.
    numbers: HashMap<u32, Qp>,
    pub(super) receives: Slab<Receive>,
    /// By address and key.
    pub(super) lent: HashMap<(u64, u32), Lent>,
    /// Windows that nothing is bound to.
    pub(super) windows: Vec<Window>,
    /// Queue pairs that are over, and that the device has not forgotten.
    pub(super) ending: Vec<Qp>,
    wcs: VecDeque<Wc>,
    done: VecDeque<Completion<Buffer>>,
    pub(super) events: VecDeque<Happened>,
    /// Where connections are made from, if that is not the system's choice.
    pub(super) from: Option<SocketAddr>,
    /// The device is not there any more.
    pub(super) removed: bool,
    pub(super) channel: Arc<Channel>,
    pub(super) limits: Limits,
    pub(super) srq: Option<SharedReceives>,
    pub(super) cq: CompletionQueue,
    pub(super) domain: Arc<Domain>,
}

impl Worker {
    pub(super) fn new(device: Device, config: &Config) -> Result<Self, OpenError> {
        let attributes = *device.attributes();
        let at_most = |wanted: u32, limit: i32| wanted.min(limit.unsigned_abs());
        let depth = |limit: i32| u8::try_from(limit).unwrap_or(u8::MAX);
        let limits = Limits {
            send_requests: attributes.max_qp_wr.unsigned_abs(),
            receives: attributes.max_qp_wr.unsigned_abs(),
            shared_receives: at_most(config.shared_receives, attributes.max_srq_wr),
            completions: at_most(config.completions, attributes.max_cqe),
            initiator_depth: depth(attributes.max_qp_init_rd_atom),
            responder_resources: depth(attributes.max_qp_rd_atom),
            windows: attributes.flags & sys::DEVICE_WINDOWS != 0,
        };
        let alloc = device.library().verbs.ibv_alloc_pd;
        // SAFETY: the device's context is open as long as the device is held.
        let pd = check_pointer("a protection domain", unsafe { alloc(device.context()) })?;
        let domain = Arc::new(Domain { device, pd });
        Ok(Self {
            qps: Slab::new(),
            listeners: Vec::new(),
            generation: 0,
            receive_generation: 0,
            numbers: HashMap::new(),
            receives: Slab::new(),
            lent: HashMap::new(),
            windows: Vec::new(),
            ending: Vec::new(),
            wcs: VecDeque::with_capacity(BATCH),
            done: VecDeque::new(),
            events: VecDeque::new(),
            from: None,
            removed: false,
            channel: Arc::new(Channel::new(domain.device.library())?),
            srq: (limits.shared_receives > 0)
                .then(|| SharedReceives::new(&domain, limits.shared_receives))
                .transpose()?,
            cq: CompletionQueue::new(&domain, limits.completions, config.completion_vector)?,
            limits,
            domain,
        })
    }

    /// Takes a queue pair in, and gives it its handle.
    pub(super) fn admit(&mut self, make: impl FnOnce(Qp) -> QueuePair) -> Qp {
        // Never 0: `Qp` is a pointer of the user's, too.
        self.generation = self.generation % (u16::MAX >> 1) + 1;
        let entry = self.qps.vacant_entry();
        let index = u32::try_from(entry.key()).expect("the device has fewer queue pairs");
        let qp = Qp(u32::from(self.generation) << Qp::INDEX_BITS | index);
        entry.insert(make(qp));
        qp
    }

    /// By this number the device knows it.
    pub(super) fn number(&mut self, qp: Qp, number: u32) {
        self.numbers.insert(number, qp);
    }

    pub(super) fn qp(&mut self, qp: Qp) -> Option<&mut QueuePair> {
        self.qps
            .get_mut(qp.index())
            .filter(|pair| pair.handle == qp)
    }

    pub(super) fn remove(&mut self, qp: Qp) -> Option<QueuePair> {
        self.qp(qp)?;
        self.numbers.retain(|_, known| *known != qp);
        Some(self.qps.remove(qp.index()))
    }

    /// The next request that ended.
    pub(super) fn poll(&mut self) -> Option<Completion<Buffer>> {
        loop {
            if let Some(done) = self.done.pop_front() {
                return Some(done);
            }
            if self.wcs.is_empty() {
                self.cq.take(&mut self.wcs);
                if let (true, Some(srq)) = (self.wcs.is_empty(), &mut self.srq) {
                    srq.all_seen();
                }
            }
            match self.wcs.pop_front() {
                Some(wc) => {
                    let done = self.completed(&wc);
                    self.done.extend(done);
                }
                None => {
                    let qp = self.ending.pop()?;
                    self.retire(qp);
                }
            }
        }
    }

    /// Takes all completions that the device has by now.
    fn drain(&mut self) {
        for _ in 0..=self.limits.completions as usize / BATCH {
            let more = self.cq.take(&mut self.wcs);
            while let Some(wc) = self.wcs.pop_front() {
                let done = self.completed(&wc);
                self.done.extend(done);
            }
            if !more {
                return;
            }
        }
    }

    fn completed(&mut self, wc: &Wc) -> Option<Completion<Buffer>> {
        match WorkName::from_raw(wc.id) {
            WorkName::Receive { key, generation } => self.received(key, generation, wc),
            WorkName::Posted(qp, number) => self.sent(qp, number, wc),
        }
    }

    fn received(&mut self, key: u32, generation: u32, wc: &Wc) -> Option<Completion<Buffer>> {
        let posted = self.receives.get(key as usize)?;
        if posted.generation != generation {
            // It was given back, and another has its place.
            return None;
        }
        let receive = self.receives.remove(key as usize);
        if let (None, Some(srq)) = (receive.of, &mut self.srq) {
            srq.completed();
        }
        let qp = receive
            .of
            .or_else(|| self.numbers.get(&wc.qp_number).copied());
        let Some(tag) = qp.and_then(|qp| self.qp(qp)).map(|pair| pair.setup.tag) else {
            // Of a queue pair that was destroyed: nobody else knows the buffer, so it stays in the queue.
            let _ = self.post_receive(None, receive.id, receive.buffer);
            return None;
        };
        let invalidated = wc.flags & sys::WC_INVALIDATED != 0
            || wc.flags & sys::WC_INVALIDATED_RXE != 0 && self.is_lent(wc.invalidated);
        Some(Completion {
            tag,
            id: receive.id,
            ended: Ended::Receive {
                len: wc.length,
                invalidated: invalidated.then_some(wc.invalidated),
            },
            outcome: outcome(wc.status),
            buffer: Some(receive.buffer),
        })
    }

    fn is_lent(&self, key: u32) -> bool {
        self.lent.keys().any(|(_, lent)| *lent == key)
    }

    /// A request in a send queue ended, and with it all before that were not signalled.
    fn sent(&mut self, qp: Qp, number: u32, wc: &Wc) -> Option<Completion<Buffer>> {
        let pair = self.qp(qp)?;
        let tag = pair.setup.tag;
        let posted = pair.ended(number)?;
        Self::complete(tag, posted, outcome(wc.status))
    }

    fn complete(tag: u32, posted: Posted, outcome: Outcome) -> Option<Completion<Buffer>> {
        let (id, ended, buffer) = match posted {
            // Signalled all the same, so that the queue has room again.
            Posted::Chain {
                signalled: false, ..
            } if outcome == Outcome::Success => return None,
            Posted::Chain { id, buffer, .. } => (id, Ended::Chain, buffer),
            Posted::Bind if matches!(outcome, Outcome::Success | Outcome::Flushed) => return None,
            Posted::Bind => (0, Ended::Lend, None),
        };
        Some(Completion {
            tag,
            id,
            ended,
            outcome,
            buffer,
        })
    }

    /// Has the device forget a queue pair that is over, and gives back what it has left: a device
    /// takes its time to flush, and one that was removed never does.
    fn retire(&mut self, qp: Qp) {
        // Some devices forget a queue pair's completions with it.
        self.drain();
        let Some(pair) = self.qp(qp) else { return };
        pair.id.destroy_qp();
        self.drain();
        let Some(pair) = self.qp(qp) else { return };
        let tag = pair.setup.tag;
        for posted in pair.take_posted() {
            let done = Self::complete(tag, posted, Outcome::Flushed);
            self.done.extend(done);
        }
        let own = |receive: &Receive| receive.of == Some(qp);
        let keys = self.receives.iter().filter(|(_, receive)| own(receive));
        let keys: Vec<usize> = keys.map(|(key, _)| key).collect();
        for key in keys {
            let receive = self.receives.remove(key);
            self.flush_receive(tag, receive.id, receive.buffer);
        }
    }

    /// See [`Verbs::lost_receives`](crate::Verbs::lost_receives).
    pub(super) fn lost_receives(&mut self) -> u32 {
        let queue_pairs = u32::try_from(self.qps.len()).unwrap_or(u32::MAX);
        let srq = self.srq.as_mut();
        srq.map_or(0, |srq| srq.lost(queue_pairs))
    }

    /// See [`Verbs::renew_receives`](crate::Verbs::renew_receives).
    pub(super) fn renew_receives(&mut self) -> Result<(), Error> {
        let uses = |pair: &QueuePair| pair.setup.receives == 0 && pair.raw().is_some();
        if self.srq.is_none() || self.qps.iter().any(|(_, pair)| uses(pair)) {
            return Err(Error::Invalid);
        }
        self.drain();
        let new = SharedReceives::new(&self.domain, self.limits.shared_receives);
        // The one before is destroyed, and the device has nothing more of what it had.
        self.srq = Some(new.map_err(|_| Error::NoResources)?);
        let shared = |receive: &Receive| receive.of.is_none();
        let keys = self.receives.iter().filter(|(_, receive)| shared(receive));
        let keys: Vec<usize> = keys.map(|(key, _)| key).collect();
        for key in keys {
            let receive = self.receives.remove(key);
            self.post_receive(None, receive.id, receive.buffer)
                .map_err(|(_, error)| error)?;
        }
        Ok(())
    }

    /// Gives a receive's buffer back: the device does not.
    pub(super) fn flush_receive(&mut self, tag: u32, id: u64, buffer: Buffer) {
        self.done.push_back(Completion {
            tag,
            id,
            ended: Ended::Receive {
                len: 0,
                invalidated: None,
            },
            outcome: Outcome::Flushed,
            buffer: Some(buffer),
        });
    }

    /// Posts a receive, to the shared queue or to one queue pair's.
    pub(super) fn post_receive(
        &mut self,
        of: Option<Qp>,
        id: u64,
        buffer: Buffer,
    ) -> Result<(), (Buffer, Error)> {
        let mut sge = sys::Sge {
            address: buffer.address(),
            length: buffer.len,
            lkey: buffer.registered.lkey(),
        };
        if !buffer.access.local_write {
            return Err((buffer, Error::Invalid));
        }
        let generation = self.receive_generation.wrapping_add(1) & WorkName::GENERATION;
        self.receive_generation = generation;
        let entry = self.receives.vacant_entry();
        let name = WorkName::Receive {
            key: u32::try_from(entry.key()).expect("fewer receives than that"),
            generation,
        };
        let mut request = sys::RecvWr {
            id: name.raw(),
            next: core::ptr::null_mut(),
            sges: &mut sge,
            sge_count: 1,
        };
        let mut bad = core::ptr::null_mut();
        let ops = self.domain.ops();
        let result = match (of, &self.srq) {
            // SAFETY: the queue is there; the buffer is kept in `receives` until the request
            // completes or the queue pair is destroyed; the request itself is copied.
            (None, Some(srq)) => unsafe { (ops.post_srq_recv)(srq.raw(), &mut request, &mut bad) },
            (None, None) => return Err((buffer, Error::Unsupported)),
            (Some(qp), _) => {
                let pair = self
                    .qps
                    .get_mut(qp.index())
                    .filter(|pair| pair.handle == qp);
                let Some(pair) = pair else {
                    return Err((buffer, Error::NotConnected));
                };
                match pair.raw() {
                    // SAFETY: as above.
                    Some(raw) => unsafe { (ops.post_recv)(raw, &mut request, &mut bad) },
                    // The device does not know it yet.
                    None if pair.is_early() => {
                        pair.early.push((id, buffer));
                        return Ok(());
                    }
                    None => return Err((buffer, Error::NotConnected)),
                }
            }
        };
        match result {
            0 => {
                entry.insert(Receive {
                    id,
                    generation,
                    buffer,
                    of,
                });
                if let (None, Some(srq)) = (of, &mut self.srq) {
                    srq.posted();
                }
                Ok(())
            }
            number => Err((buffer, full_or(number))),
        }
    }
}

/// What a work request is called to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkName {
    /// A receive: its key, and which it is of those that have had the key.
    Receive { key: u32, generation: u32 },
    /// A request in a queue pair's send queue, and its number there.
    Posted(Qp, u32),
}

impl WorkName {
    const RECEIVE: u64 = 1 << 63;
    const GENERATION: u32 = u32::MAX >> 1;

    pub(super) fn raw(self) -> u64 {
        match self {
            Self::Receive { key, generation } => {
                Self::RECEIVE | u64::from(generation) << 32 | u64::from(key)
            }
            // A handle has 31 bits.
            Self::Posted(qp, number) => u64::from(qp.raw()) << 32 | u64::from(number),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    fn from_raw(raw: u64) -> Self {
        if raw & Self::RECEIVE != 0 {
            Self::Receive {
                key: raw as u32,
                generation: (raw >> 32) as u32 & Self::GENERATION,
            }
        } else {
            Self::Posted(Qp::from_raw((raw >> 32) as u32), raw as u32)
        }
    }
}

/// A queue that is full says that there is no memory.
pub(super) fn full_or(number: i32) -> Error {
    match super::memory::error(number) {
        Error::NoResources => Error::Full,
        error => error,
    }
}

fn outcome(status: i32) -> Outcome {
    match status {
        status::SUCCESS => Outcome::Success,
        status::LOCAL_LENGTH => Outcome::Length,
        status::FLUSHED => Outcome::Flushed,
        status::BIND => Outcome::Bind,
        status::REMOTE_INVALID_REQUEST => Outcome::RemoteInvalid,
        status::REMOTE_ACCESS => Outcome::RemoteAccess,
        status::RETRIES_EXCEEDED => Outcome::Unreachable,
        status::RNR_RETRIES_EXCEEDED => Outcome::ReceiverNotReady,
        status => Outcome::Other(status.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_names_come_back() {
        for name in [
            WorkName::Receive {
                key: 0,
                generation: 0,
            },
            WorkName::Receive {
                key: u32::MAX,
                generation: WorkName::GENERATION,
            },
            WorkName::Receive {
                key: 7,
                generation: 8,
            },
            WorkName::Posted(Qp::from_raw(0x7fff_ffff), u32::MAX),
            WorkName::Posted(Qp::from_raw(1 << Qp::INDEX_BITS), 0),
        ] {
            assert_eq!(WorkName::from_raw(name.raw()), name);
        }
    }
}
