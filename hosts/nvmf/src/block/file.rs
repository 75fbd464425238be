//! Files and block devices.
//!
//! `open.rs` says how a file comes to be served, `task.rs` what system calls an operation takes.
//! They are made by an io_uring of the worker's, or by the `pool`'s threads.
//!
//! | operation | system call |
//! |---|---|
//! | Read, Compare, Verify | `pread` |
//! | Write, with FUA | `pwrite`, `pwritev2(RWF_DSYNC)` |
//! | Flush | `fdatasync` |
//! | Deallocate | `fallocate(PUNCH_HOLE)`, `BLKDISCARD` of a block device; nothing where that is not supported |
//! | Write Zeroes | `fallocate(ZERO_RANGE)`, or `PUNCH_HOLE` first if the space may be given back; written zeroes where neither is supported |
//!
//! On a block device the kernel turns the same `fallocate` modes into the device's own Write Zeroes
//! command, with or without unmapping. `BLKDISCARD` promises no zeroes, and neither does Deallocate.
//! It is left to a thread: an io_uring knows it since Linux 6.12 only, and cannot be asked whether it
//! does without discarding something.
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvmf_core::block::{
    BlockDevice, Completion, Extent, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_core::time::Instant;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::device::{Device, Identity, Namespace};
use nvmf_tcp::std::waker::Waker;
use rustix::io::{Errno, ReadWriteFlags};

use self::task::Failure;
use super::engines::Engines;
use super::open::Opened;
use super::pool::{self, Media};
use super::uring;
use super::uring::polling::{self, NoPolling};
use super::{check, payload};

mod calls;
pub(super) mod task;

/// What a worker copies out of the page cache itself, in bytes; the copy of
/// more would keep other connections waiting.
pub(super) const INLINE: u64 = 128 * 1024;

/// A namespace in a file or on a block device.
pub struct FileNamespace {
    store: Arc<Store>,
    identity: Identity,
    engines: Engines,
    /// By an io_uring, where there is one.
    uring: bool,
    /// It is polled for completions.
    polled: bool,
}

impl FileNamespace {
    /// Its I/O is done by io_uring, or by threads; `fixed` says whether memory may be registered.
    pub(super) fn new(
        opened: Opened,
        identity: Identity,
        engines: &Engines,
        uring: bool,
        fixed: bool,
    ) -> Self {
        Self {
            store: Arc::new(Store {
                file: opened.file,
                device: opened.device,
                path: opened.stable_path,
                geometry: opened.geometry,
                direct: opened.direct,
                fixed: fixed && opened.direct,
                reads_cached: AtomicBool::new(!opened.direct),
                writes_cached: AtomicBool::new(!opened.direct),
                complained: AtomicBool::new(false),
            }),
            identity,
            engines: engines.clone(),
            uring,
            polled: false,
        }
    }

    /// From now on reads and writes are polled for.
    ///
    /// # Errors
    /// Why that is impossible.
    pub(super) fn poll(&mut self) -> Result<(), NoPolling> {
        if !self.uring {
            return Err(NoPolling::NoUring);
        }
        polling::check(&self.store)?;
        self.polled = true;
        Ok(())
    }
}

impl Namespace for FileNamespace {
    fn geometry(&self) -> Geometry {
        self.store.geometry
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn open(&self, waker: &Waker) -> Box<dyn Device> {
        let ring = self
            .uring
            .then(|| self.engines.rings.open(&self.store, self.polled, waker));
        let ring = ring.and_then(|opened| {
            opened
                .inspect_err(|error| {
                    let path = self.store.path.display();
                    tracing::warn!("{path}: a worker has no io_uring, threads do its I/O: {error}");
                })
                .ok()
        });
        Box::new(FileDevice {
            store: Arc::clone(&self.store),
            ring,
            pool: pool::Handle::new(&self.engines.pool, self.store.clone(), waker),
        })
    }
}

struct FileDevice {
    store: Arc<Store>,
    ring: Option<uring::Handle>,
    pool: pool::Handle,
}

impl BlockDevice for FileDevice {
    type Buffer = Buffer;

    fn geometry(&self) -> Geometry {
        self.store.geometry
    }

    fn submit(&mut self, mut request: Request<Buffer>) -> Submit<Buffer> {
        if let Err(error) = check(&self.store.geometry, &request) {
            return Submit::Done(request.complete(Err(error)));
        }
        if is_nothing(request.op) || self.store.read_cached(&mut request) {
            return Submit::Done(request.complete(Ok(())));
        }
        let discards = self.store.device && matches!(request.op, Op::Deallocate(_));
        match &mut self.ring {
            Some(ring) if !discards => ring.submit(request),
            _ => self.pool.submit(request),
        }
    }

    fn store(&mut self, extent: Extent, data: &[u8], fua: bool) -> Option<Result<(), MediaError>> {
        (!fua && self.store.write_cached(extent, data)).then_some(Ok(()))
    }

    fn poll(&mut self) -> Option<Completion<Buffer>> {
        if let Some(ended) = self.ring.as_mut().and_then(uring::Handle::poll) {
            let (request, result) = ended;
            let result = result.map_err(|failure| self.store.failed(request.op, &failure));
            return Some(request.complete(result));
        }
        self.pool.poll()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let ring = self.ring.as_ref()?;
        ring.must_be_polled().then_some(Instant::ZERO)
    }
}

impl Device for FileDevice {
    fn rest(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.rest();
        }
    }
}

/// A file and what is known about it, for all workers.
pub(super) struct Store {
    pub(super) file: File,
    /// It is a block device.
    pub(super) device: bool,
    path: PathBuf,
    pub(super) geometry: Geometry,
    /// Its I/O bypasses the page cache.
    pub(super) direct: bool,
    /// Memory that it is used with often is registered.
    pub(super) fixed: bool,
    /// Reads may be satisfied by the page cache without blocking.
    reads_cached: AtomicBool,
    /// Writes may be taken by it without blocking.
    writes_cached: AtomicBool,
    /// A failure was reported already.
    complained: AtomicBool,
}

impl Media for Store {
    fn perform(&self, op: Op, buffer: Option<&mut Buffer>) -> Result<(), MediaError> {
        calls::perform(&self.file, self.device, op, buffer)
            .map_err(|failure| self.failed(op, &failure))
    }
}

impl Store {
    /// Whether the request was a read and is done. It never waits for the disk.
    fn read_cached(&self, request: &mut Request<Buffer>) -> bool {
        let Op::Read(extent) = request.op else {
            return false;
        };
        let Some(into) = payload(request.buffer.as_mut(), extent) else {
            return false;
        };
        let read = |flags| {
            rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(into)], extent.byte, flags)
        };
        at_once(&self.reads_cached, extent, read)
    }

    /// Whether the data is written. What is not may be so in part: write it all again.
    fn write_cached(&self, extent: Extent, data: &[u8]) -> bool {
        let end = extent.byte.checked_add(extent.len);
        if self.geometry.read_only || end.is_none_or(|end| end > self.geometry.bytes()) {
            return false;
        }
        let write =
            |flags| rustix::io::pwritev2(&self.file, &[IoSlice::new(data)], extent.byte, flags);
        data.len() as u64 == extent.len && at_once(&self.writes_cached, extent, write)
    }

    /// What a failure is to the host. Logs the first aloud, the others in a whisper: a host can
    /// cause as many as it likes.
    fn failed(&self, op: Op, failure: &Failure) -> MediaError {
        let Some(cause) = &failure.cause else {
            return failure.error;
        };
        if self.complained.swap(true, Ordering::Relaxed) {
            tracing::debug!("{}: {op:?}: {cause}", self.path.display());
        } else {
            tracing::warn!(
                "{}: {op:?}: {cause} (further failures are logged at level debug)",
                self.path.display()
            );
        }
        match Errno::from_io_error(cause) {
            Some(Errno::NOSPC | Errno::DQUOT) => MediaError::Full,
            Some(Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM) => MediaError::NotReady,
            _ => failure.error,
        }
    }
}

/// Whether a call moves the whole extent without blocking, unless it is so long that copying it
/// takes its time. One that cannot be made this way is not tried again.
fn at_once(
    possible: &AtomicBool,
    extent: Extent,
    call: impl FnOnce(ReadWriteFlags) -> Result<usize, Errno>,
) -> bool {
    if extent.len > INLINE || !possible.load(Ordering::Relaxed) {
        return false;
    }
    match call(ReadWriteFlags::NOWAIT) {
        Ok(moved) => moved as u64 == extent.len,
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            possible.store(false, Ordering::Relaxed);
            false
        }
        Err(_) => false,
    }
}

/// Whether an operation that moves no payload covers no bytes: `fallocate` would refuse it.
fn is_nothing(op: Op) -> bool {
    match op {
        Op::Deallocate(extent) | Op::Verify(extent) | Op::WriteZeroes { extent, .. } => {
            extent.len == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
