//! A queue pair: what is in its send queue, and how that is put there.
use core::ptr;
use std::collections::VecDeque;
use std::vec::Vec;

use super::cm::Identifier;
use super::memory::{Buffer, Domain, Memory, Registered, access_flags, last_error};
use super::queues::Window;
use super::sys::{self, Sge, opcode};
use super::worker::{Qp, WorkName, Worker, full_or};
use crate::cm::{Setup, Terms};
use crate::verbs::{Access, Chain, Direction, Error, MAX_CAPSULE};

/// Requests that bind windows, for each chain.
const WINDOW_REQUESTS: u32 = 1;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The way to the peer is looked for; the device does not know the queue pair yet.
    Resolving,
    /// It may receive.
    Connecting,
    /// It may send.
    Connected,
    /// It is over, and that was told.
    Ended,
}

/// What is in a send queue.
pub(super) enum Posted {
    Chain {
        id: u64,
        signalled: bool,
        requests: u32,
        buffer: Option<Buffer>,
    },
    /// A window is bound to a buffer.
    Bind,
}

impl Posted {
    fn requests(&self) -> u32 {
        match self {
            Self::Chain { requests, .. } => *requests,
            Self::Bind => 1,
        }
    }
}

pub(super) struct QueuePair {
    pub(super) handle: Qp,
    pub(super) id: Identifier,
    pub(super) setup: Setup,
    pub(super) terms: Terms,
    pub(super) state: State,
    /// The peer has let go of the connection.
    pub(super) peer_ended: bool,
    /// Receives that were posted before the device knew the queue pair.
    pub(super) early: Vec<(u64, Buffer)>,
    posted: VecDeque<Posted>,
    /// The number of the first of `posted`.
    first: u32,
    /// Requests in the send queue, and room for them.
    requests: u32,
    room: u32,
    /// Requests since the last that is signalled.
    silent: u32,
    /// Whose turn is next: not by the number, of which `room` is no divisor when it wraps.
    heads: Registered,
    next_head: u32,
    /// Bytes that the device copies when they are posted.
    inline: u32,
    /// Some of a chain could not be posted.
    pub(super) torn: bool,
}

impl QueuePair {
    pub(super) fn new(
        handle: Qp,
        id: Identifier,
        setup: Setup,
        terms: Terms,
        state: State,
        (room, heads): (u32, Registered),
    ) -> Self {
        Self {
            handle,
            id,
            setup,
            terms,
            state,
            peer_ended: false,
            early: Vec::new(),
            posted: VecDeque::new(),
            first: 0,
            requests: 0,
            room,
            silent: 0,
            heads,
            next_head: 0,
            inline: 0,
            torn: false,
        }
    }

    /// The device's queue pair, once it has one.
    pub(super) fn raw(&self) -> Option<*mut sys::Qp> {
        let raw = self.id.qp();
        (!raw.is_null()).then_some(raw)
    }

    /// Whether the device does not know it yet, but will.
    pub(super) fn is_early(&self) -> bool {
        self.state == State::Resolving
    }

    /// Request `number` ended, and all before it have.
    pub(super) fn ended(&mut self, number: u32) -> Option<Posted> {
        // A chain that failed was told when the first of its requests did.
        let before = number.wrapping_sub(self.first) as usize;
        if before >= self.posted.len() {
            return None;
        }
        let mut last = None;
        for posted in self.posted.drain(..=before) {
            self.requests -= posted.requests();
            last = Some(posted);
        }
        self.first = number.wrapping_add(1);
        last
    }

    /// All that is posted. Nobody will ask for its completions.
    pub(super) fn take_posted(&mut self) -> VecDeque<Posted> {
        self.requests = 0;
        core::mem::take(&mut self.posted)
    }

    /// Every request fails from now on, and is flushed.
    pub(super) fn fail(&mut self, domain: &Domain) {
        let attributes = sys::QpAttr {
            state: sys::QPS_ERR,
            ..sys::QpAttr::default()
        };
        // An error says that the device is gone.
        self.modify(domain, attributes, sys::QP_STATE);
    }

    /// A peer that found no receive tries again soon: librdmacm leaves it at 655 ms. Once the
    /// queue pair is connected.
    pub(super) fn hurry_retries(&self, domain: &Domain) {
        let attributes = sys::QpAttr {
            min_rnr_timer: sys::RNR_TIMER_120_US,
            ..sys::QpAttr::default()
        };
        // A device that refuses keeps its peers waiting longer.
        self.modify(domain, attributes, sys::QP_MIN_RNR_TIMER);
    }

    fn modify(&self, domain: &Domain, mut attributes: sys::QpAttr, what: core::ffi::c_int) {
        let Some(raw) = self.raw() else { return };
        let modify = domain.device.library().verbs.ibv_modify_qp;
        // SAFETY: the queue pair is there; only `what` is read.
        unsafe { modify(raw, &mut attributes, what) };
    }

    fn check_room(&self, requests: u32) -> Result<*mut sys::Qp, Error> {
        match self.raw() {
            Some(_) if self.state != State::Connected => Err(Error::NotConnected),
            Some(_) if self.requests + requests > self.room => Err(Error::Full),
            Some(raw) => Ok(raw),
            None => Err(Error::NotConnected),
        }
    }

    /// Puts requests, which share one name, into the send queue.
    ///
    /// # Safety
    /// What they name stays until the request ended or the queue pair is gone.
    unsafe fn post(
        &mut self,
        domain: &Domain,
        requests: &mut [sys::SendWr],
        posted: Posted,
    ) -> Result<(), (Posted, Error)> {
        let raw = match self.check_room(posted.requests()) {
            Ok(raw) => raw,
            Err(error) => return Err((posted, error)),
        };
        let number = self.first.wrapping_add(self.posted.len() as u32);
        let name = WorkName::Posted(self.handle, number).raw();
        let mut next = ptr::null_mut();
        for request in requests.iter_mut().rev() {
            request.id = name;
            request.next = next;
            next = request;
        }
        let first = next;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there, the list ends, and the caller keeps what it names.
        match unsafe { (domain.ops().post_send)(raw, first, &mut bad) } {
            0 => {}
            number if bad == first => return Err((posted, full_or(number))),
            _ => {
                // Some of it is on its way, so all of it counts as posted, and the connection ends.
                self.torn = true;
            }
        }
        self.requests += posted.requests();
        self.posted.push_back(posted);
        Ok(())
    }

    /// The place of the next chain's head, and its address and key.
    fn head(&mut self, head: &[u8]) -> Sge {
        let to = self.heads.address(self.next_head as usize * MAX_CAPSULE);
        self.next_head = (self.next_head + 1) % self.room;
        // SAFETY: the place is one of `room` in `heads`, and of the chain that had it last, `room`
        // heads ago, nothing is left: no more than `room` are posted at a time.
        unsafe {
            ptr::copy_nonoverlapping(head.as_ptr(), to.as_ptr(), head.len().min(MAX_CAPSULE))
        };
        Sge {
            address: to.as_ptr().addr() as u64,
            length: head.len() as u32,
            lkey: self.heads.lkey(),
        }
    }

    /// Posts a chain.
    pub(super) fn post_chain(
        &mut self,
        domain: &Domain,
        chain: Chain<Buffer>,
    ) -> Result<(), (Option<Buffer>, Error)> {
        if let Err(error) = check(&chain) {
            return Err((chain.buffer, error));
        }
        let signal = chain.signalled
            || chain.buffer.is_some()
            || self.silent + chain.requests() > self.room / 2;
        let flags = if signal { sys::SEND_SIGNALED } else { 0 };
        let next_head = self.next_head;
        let mut requests = [sys::SendWr::default(), sys::SendWr::default()];
        let mut count = 0;
        let mut first_sge;
        let mut send_sges = [Sge::default(); 2];
        if let (Some(first), Some(buffer)) = (chain.first, &chain.buffer) {
            first_sge = Sge {
                address: buffer.address() + u64::from(first.offset),
                length: first.len,
                lkey: buffer.registered.lkey(),
            };
            requests[count] = sys::SendWr {
                opcode: match first.direction {
                    Direction::Read => opcode::RDMA_READ,
                    Direction::Write => opcode::RDMA_WRITE,
                },
                flags: if chain.send.is_none() { flags } else { 0 },
                sges: &mut first_sge,
                sge_count: 1,
                remote_address: first.remote.address,
                remote_key: first.remote.key,
                ..sys::SendWr::default()
            };
            count += 1;
        }
        if let Some(send) = &chain.send {
            let head = send.head();
            // Of what invalidates, siw copies nothing.
            let copied = send.invalidate.is_none() || !domain.device.is_iwarp();
            let inline = copied && send.data == 0 && head.len() <= self.inline as usize;
            send_sges[0] = if inline {
                Sge {
                    address: head.as_ptr().addr() as u64,
                    length: head.len() as u32,
                    lkey: 0,
                }
            } else {
                self.head(head)
            };
            if let (Some(buffer), true) = (&chain.buffer, send.data > 0) {
                send_sges[1] = Sge {
                    address: buffer.address(),
                    length: send.data,
                    lkey: buffer.registered.lkey(),
                };
            }
            requests[count] = sys::SendWr {
                opcode: match send.invalidate {
                    Some(_) => opcode::SEND_INVALIDATE,
                    None => opcode::SEND,
                },
                flags: flags | if inline { sys::SEND_INLINE } else { 0 },
                invalidate: send.invalidate.unwrap_or(0),
                // Here siw's driver looks for the key to invalidate; others do not look here at all.
                remote_key: send.invalidate.unwrap_or(0),
                sges: send_sges.as_mut_ptr(),
                sge_count: 1 + i32::from(send.data > 0),
                ..sys::SendWr::default()
            };
            count += 1;
        }
        let posted = Posted::Chain {
            id: chain.id,
            signalled: chain.signalled || chain.buffer.is_some(),
            requests: count as u32,
            buffer: chain.buffer,
        };
        let silent = if signal {
            0
        } else {
            self.silent + posted.requests()
        };
        // SAFETY: data is in the chain's buffer, which is kept in `posted`; a head that is not
        // copied now is in `heads`, and stays until its chain ended.
        match unsafe { self.post(domain, &mut requests[..count], posted) } {
            Ok(()) => {
                self.silent = silent;
                Ok(())
            }
            Err((Posted::Chain { buffer, .. }, error)) => {
                self.next_head = next_head;
                Err((buffer, error))
            }
            Err(_) => unreachable!("it is what was to be posted"),
        }
    }

    /// Binds a window, with a new key, to the first `len` bytes of a buffer.
    pub(super) fn bind(
        &mut self,
        domain: &Domain,
        window: &mut Window,
        buffer: &Buffer,
        len: u32,
        access: Access,
    ) -> Result<(), Error> {
        self.check_room(1)?;
        let key = window.renew();
        let request = sys::SendWr {
            opcode: opcode::BIND_MW,
            bind: sys::Bind {
                mw: window.raw(),
                key,
                mr: buffer.registered.mr.as_ptr(),
                address: buffer.address(),
                length: u64::from(len),
                access: access_flags(access) & sys::access::REMOTE,
            },
            ..sys::SendWr::default()
        };
        // SAFETY: window and buffer are kept together until the window was invalidated or is gone.
        unsafe { self.post(domain, &mut [request], Posted::Bind) }.map_err(|(_, error)| error)?;
        window.bound();
        self.silent += 1;
        Ok(())
    }
}

impl Worker {
    /// How many requests a queue pair has room for, and memory for a capsule's head for each.
    pub(super) fn room(&self, setup: &Setup) -> Result<(u32, Registered), Error> {
        let windows = if self.limits.windows {
            WINDOW_REQUESTS
        } else {
            0
        };
        let room = setup.sends.max(1).saturating_mul(1 + windows);
        let room = room.min(self.limits.send_requests.max(1));
        let heads = Memory::new(room as usize * MAX_CAPSULE)?;
        let heads = Registered::new(&self.domain, heads, Access::LOCAL);
        Ok((room, heads.map_err(|(_, error)| error)?))
    }

    /// Makes the device's queue pair, and posts the receives that wait for it.
    pub(super) fn create(&mut self, qp: Qp) -> Result<(), Error> {
        let (cq, srq) = (self.cq.raw(), self.srq.as_ref().map(|srq| srq.raw()));
        let limits = self.limits;
        let domain = std::sync::Arc::clone(&self.domain);
        let Some(pair) = self.qp(qp) else {
            return Err(Error::NotConnected);
        };
        let own_receives = pair.setup.receives;
        let srq = match (own_receives, srq) {
            (0, Some(srq)) => srq,
            _ => ptr::null_mut(),
        };
        let attributes = |inline| sys::QpInitAttr {
            context: ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq,
            cap: sys::QpCap {
                max_send_wr: pair.room,
                max_recv_wr: own_receives.min(limits.receives),
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: inline,
            },
            kind: sys::QPT_RC,
            signal_all: 0,
        };
        let create = domain.device.library().cm.rdma_create_qp;
        let created = [MAX_CAPSULE as u32, 0].into_iter().any(|inline| {
            let mut attributes = attributes(inline);
            // SAFETY: domain, completion queue and shared receives outlive the queue pair.
            let result = unsafe { create(pair.id.raw(), domain.pd.as_ptr(), &mut attributes) };
            pair.inline = attributes.cap.max_inline_data;
            result == 0
        });
        if !created {
            return Err(last_error());
        }
        pair.state = State::Connecting;
        let early = core::mem::take(&mut pair.early);
        // SAFETY: it was made just now.
        let number = unsafe { (*pair.id.qp()).number };
        self.number(qp, number);
        for (id, buffer) in early {
            self.post_receive(Some(qp), id, buffer)
                .map_err(|(_, error)| error)?;
        }
        Ok(())
    }
}

/// A chain makes sense.
fn check(chain: &Chain<Buffer>) -> Result<(), Error> {
    let len = chain.buffer.as_ref().map_or(0, |buffer| buffer.len);
    let inside = |offset: u32, bytes: u32| offset.checked_add(bytes).is_some_and(|end| end <= len);
    if let Some(first) = chain.first {
        let writable = chain
            .buffer
            .as_ref()
            .is_some_and(|buffer| buffer.access.local_write);
        if first.len == 0
            || !inside(first.offset, first.len)
            || first.direction == Direction::Read && !writable
        {
            return Err(Error::Invalid);
        }
    }
    match &chain.send {
        Some(send) if !inside(0, send.data) => Err(Error::Invalid),
        None if chain.first.is_none() => Err(Error::Invalid),
        _ => Ok(()),
    }
}
