//! What queue pairs of a worker have in common: where they complete, where they receive.
use core::ptr::{self, NonNull};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::device::{OpenError, check_pointer};
use super::memory::{Domain, error, last_error};
use super::sys;
use crate::verbs::Error;

/// Completions that are taken from the device at a time.
pub(super) const BATCH: usize = 32;

/// A completion queue and what wakes for it.
pub(super) struct CompletionQueue {
    domain: Arc<Domain>,
    channel: NonNull<sys::CompletionChannel>,
    cq: NonNull<sys::Opaque>,
}

// SAFETY: see `Domain`.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(domain: &Arc<Domain>, entries: u32, vector: u32) -> Result<Self, OpenError> {
        let device = &domain.device;
        let verbs = &device.library().verbs;
        // SAFETY: the context is open as long as the domain is there.
        let channel = check_pointer("a completion channel", unsafe {
            (verbs.ibv_create_comp_channel)(device.context())
        })?;
        let vector = vector % device.completion_vectors().max(1);
        // SAFETY: as above, and the channel outlives the queue.
        let cq = check_pointer("a completion queue", unsafe {
            (verbs.ibv_create_cq)(
                device.context(),
                entries.try_into().unwrap_or(i32::MAX),
                ptr::null_mut(),
                channel.as_ptr(),
                vector.try_into().unwrap_or(0),
            )
        })
        .inspect_err(|_| {
            // SAFETY: no queue uses it.
            unsafe { (verbs.ibv_destroy_comp_channel)(channel.as_ptr()) };
        })?;
        let queue = Self {
            domain: Arc::clone(domain),
            channel,
            cq,
        };
        set_nonblocking(queue.fd())
            .map_err(|error| OpenError::Device("a completion channel that does not wait", error))?;
        Ok(queue)
    }

    pub(super) fn raw(&self) -> *mut sys::Opaque {
        self.cq.as_ptr()
    }

    /// Readable once the queue was armed and something completed.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there, and so its descriptor, as long as this is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes up to [`BATCH`] completions. Whether there may be more.
    pub(super) fn take(&mut self, into: &mut VecDeque<sys::Wc>) -> bool {
        let mut wcs = [sys::Wc::default(); BATCH];
        let poll = self.domain.ops().poll_cq;
        // SAFETY: the queue is there, and `wcs` has room for as many.
        let taken = unsafe { poll(self.cq.as_ptr(), BATCH as i32, wcs.as_mut_ptr()) };
        let taken = usize::try_from(taken).unwrap_or(0);
        into.extend(wcs.iter().take(taken));
        taken == BATCH
    }

    /// The next completion makes [`CompletionQueue::fd`] readable.
    pub(super) fn arm(&mut self) -> Result<(), Error> {
        let verbs = &self.domain.device.library().verbs;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is there, its only queue too, and each event is acknowledged.
        unsafe {
            while (verbs.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut context) == 0 {
                (verbs.ibv_ack_cq_events)(cq, 1);
            }
        }
        let arm = self.domain.ops().req_notify_cq;
        // SAFETY: the queue is there.
        match unsafe { arm(self.cq.as_ptr(), 0) } {
            0 => Ok(()),
            number => Err(error(number)),
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let verbs = &self.domain.device.library().verbs;
        // SAFETY: the worker drops its queue pairs first; the queue's events were all acknowledged.
        unsafe {
            (verbs.ibv_destroy_cq)(self.cq.as_ptr());
            (verbs.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// A shared receive queue.
///
/// A device does not say how many receives it has, but whether they were fewer than a limit at
/// any time since that was set. If by the books here there were more all the time, the
/// difference is lost.
pub(super) struct SharedReceives {
    domain: Arc<Domain>,
    srq: NonNull<sys::Opaque>,
    room: u32,
    /// Receives that were posted and did not complete.
    count: u32,
    /// As many as the device has had at least, by the books, since the limit was set; and now.
    /// What completes counts before what is posted: all may have come at once.
    least: u32,
    now: u32,
    /// The limit is set.
    watched: bool,
}

// SAFETY: see `Domain`.
unsafe impl Send for SharedReceives {}

impl SharedReceives {
    pub(super) fn new(domain: &Arc<Domain>, receives: u32) -> Result<Self, OpenError> {
        let mut attributes = sys::SrqInitAttr {
            context: ptr::null_mut(),
            attributes: sys::SrqAttr {
                max_wr: receives,
                max_sge: 1,
                limit: 0,
            },
        };
        let create = domain.device.library().verbs.ibv_create_srq;
        // SAFETY: the domain is kept.
        let srq = check_pointer("a shared receive queue", unsafe {
            create(domain.pd.as_ptr(), &mut attributes)
        })?;
        Ok(Self {
            domain: Arc::clone(domain),
            srq,
            room: receives,
            count: 0,
            least: 0,
            now: 0,
            watched: false,
        })
    }

    /// One was posted.
    pub(super) fn posted(&mut self) {
        self.count += 1;
    }

    /// One completed.
    pub(super) fn completed(&mut self) {
        self.count = self.count.saturating_sub(1);
        self.now = self.now.saturating_sub(1);
        self.least = self.least.min(self.now);
    }

    /// The device has no completion that was not taken.
    pub(super) fn all_seen(&mut self) {
        self.now = self.count;
    }

    /// How many are lost at least. Each of the `queue_pairs` may have one in use.
    pub(super) fn lost(&mut self, queue_pairs: u32) -> u32 {
        let limit = self.room / 2;
        let lost = if self.watched && self.fell_below() {
            self.least.saturating_sub(limit).saturating_sub(queue_pairs)
        } else {
            0
        };
        // A device that forgets the limit at once has none.
        self.watched = self.watch(limit) && !self.fell_below();
        self.least = self.now;
        lost
    }

    /// Whether the device has had fewer than the limit since that was set: it unsets it then.
    fn fell_below(&self) -> bool {
        let mut attributes = sys::SrqAttr::default();
        let query = self.domain.device.library().verbs.ibv_query_srq;
        // SAFETY: the queue is there.
        unsafe { query(self.raw(), &mut attributes) == 0 && attributes.limit == 0 }
    }

    /// Sets the limit. False where devices have none.
    fn watch(&self, limit: u32) -> bool {
        let mut attributes = sys::SrqAttr {
            limit,
            ..sys::SrqAttr::default()
        };
        let modify = self.domain.device.library().verbs.ibv_modify_srq;
        // SAFETY: the queue is there; only the limit is read.
        unsafe { modify(self.raw(), &mut attributes, sys::SRQ_LIMIT) == 0 }
    }

    pub(super) fn raw(&self) -> *mut sys::Opaque {
        self.srq.as_ptr()
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: the worker drops its queue pairs first, and what was posted here after.
        unsafe { (self.domain.device.library().verbs.ibv_destroy_srq)(self.srq.as_ptr()) };
    }
}

/// A memory window of type 2.
pub(super) struct Window {
    domain: Arc<Domain>,
    mw: NonNull<sys::Mw>,
    key: u32,
}

// SAFETY: see `Domain`.
unsafe impl Send for Window {}

impl Window {
    pub(super) fn new(domain: &Arc<Domain>) -> Result<Self, Error> {
        let alloc = domain.ops().alloc_mw.ok_or(Error::Unsupported)?;
        // SAFETY: the domain is kept.
        let mw = unsafe { alloc(domain.pd.as_ptr(), sys::MW_TYPE_2) };
        let mw = NonNull::new(mw).ok_or_else(last_error)?;
        Ok(Self {
            domain: Arc::clone(domain),
            mw,
            // SAFETY: it was made just now.
            key: unsafe { mw.as_ref() }.rkey,
        })
    }

    pub(super) fn raw(&self) -> *mut sys::Mw {
        self.mw.as_ptr()
    }

    /// The key that it has been given last.
    pub(super) fn key(&self) -> u32 {
        self.key
    }

    /// The next key: the lowest eight bits are the user's to choose.
    pub(super) fn renew(&mut self) -> u32 {
        self.key = self.key & !0xff | self.key.wrapping_add(1) & 0xff;
        self.key
    }
}

impl Window {
    /// It was bound by the key that it has been given last: by this the library names it when it
    /// is bound again. rdma_rxe ignores a bind that names it by another.
    pub(super) fn bound(&mut self) {
        // SAFETY: nobody else has it, and the library reads it in calls that have it.
        unsafe { self.mw.as_mut() }.rkey = self.key;
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(dealloc) = self.domain.ops().dealloc_mw {
            // SAFETY: nobody else has it. If it is bound, its key ends here.
            unsafe { dealloc(self.mw.as_ptr()) };
        }
    }
}

/// Calls on the descriptor do not wait any more.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}
