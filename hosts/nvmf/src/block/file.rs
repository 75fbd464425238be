//! Files and block devices.
//!
//! All that may block is done by the [`pool`](super::pool); only a read that the page
//! cache can satisfy is done by the worker itself. This module says what is done,
//! `open.rs` how a file comes to be served.
//!
//! | operation | system call |
//! |---|---|
//! | Read, Compare, Verify | `pread` |
//! | Write, with FUA | `pwrite`, `pwritev2(RWF_DSYNC)` |
//! | Flush | `fdatasync` |
//! | Deallocate | `fallocate(PUNCH_HOLE)`; nothing where that is not supported |
//! | Write Zeroes | `fallocate(ZERO_RANGE)`, or `PUNCH_HOLE` first if the space may be given back; written zeroes where neither is supported |
//!
//! On a block device the kernel turns the same `fallocate` modes into the
//! device's own Write Zeroes command, with or without unmapping. A device that can
//! only discard, without a promise of zeroes, keeps its data when a host
//! deallocates: `BLKDISCARD` would need an unsafe ioctl.
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvmf_core::block::{
    BlockDevice, Completion, Extent, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::device::{Device, Identity, Namespace};
use nvmf_tcp::std::waker::Waker;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use super::open::Opened;
use super::pool::{Handle, Media, Pool};
use super::{check, payload};

/// What a worker copies out of the page cache itself, in bytes; the copy of
/// more would keep other connections waiting.
const INLINE: u64 = 128 * 1024;

/// What Compare, Verify and written zeroes move at a time, in bytes.
const PIECE: usize = 256 * 1024;

const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

/// A namespace in a file or on a block device.
pub struct FileNamespace {
    store: Arc<Store>,
    identity: Identity,
    pool: Pool,
}

impl FileNamespace {
    pub(super) fn new(opened: Opened, identity: Identity, pool: &Pool) -> Self {
        Self {
            store: Arc::new(Store {
                file: opened.file,
                path: opened.stable_path,
                geometry: opened.geometry,
                cached: AtomicBool::new(!opened.direct),
                complained: AtomicBool::new(false),
            }),
            identity,
            pool: pool.clone(),
        }
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
        Box::new(FileDevice {
            store: Arc::clone(&self.store),
            pool: Handle::new(&self.pool, self.store.clone(), waker),
        })
    }
}

struct FileDevice {
    store: Arc<Store>,
    pool: Handle,
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
        if self.store.read_cached(&mut request) {
            return Submit::Done(request.complete(Ok(())));
        }
        self.pool.submit(request)
    }

    fn poll(&mut self) -> Option<Completion<Buffer>> {
        self.pool.poll()
    }
}

impl Device for FileDevice {}

struct Store {
    file: File,
    path: PathBuf,
    geometry: Geometry,
    /// Reads may be satisfied by the page cache without blocking.
    cached: AtomicBool,
    /// A failure was reported already.
    complained: AtomicBool,
}

impl Media for Store {
    fn perform(&self, op: Op, buffer: Option<&mut Buffer>) -> Result<(), MediaError> {
        let (result, error) = match op {
            Op::Read(extent) => {
                let into = payload(buffer, extent).ok_or(MediaError::Read)?;
                (self.file.read_exact_at(into, extent.byte), MediaError::Read)
            }
            Op::Write { extent, fua } => {
                let from = payload(buffer, extent).ok_or(MediaError::Write)?;
                (self.write(extent.byte, from, fua), MediaError::Write)
            }
            Op::Compare(extent) => {
                let with = payload(buffer, extent).ok_or(MediaError::Read)?;
                match self.compare(extent, with) {
                    Ok(true) => return Ok(()),
                    Ok(false) => return Err(MediaError::Miscompare),
                    Err(error) => (Err(error), MediaError::Read),
                }
            }
            Op::Verify(extent) => (self.pieces(extent, |_, _| true).map(drop), MediaError::Read),
            Op::WriteZeroes {
                extent,
                deallocate,
                fua,
            } => (self.zero(extent, deallocate, fua), MediaError::Write),
            Op::Deallocate(extent) => (self.deallocate(extent), MediaError::Write),
            Op::Flush => (self.file.sync_data(), MediaError::Write),
        };
        result.map_err(|cause| self.failed(op, &cause, error))
    }
}

impl Store {
    /// Whether the request was a read and is done. It never waits for the disk.
    fn read_cached(&self, request: &mut Request<Buffer>) -> bool {
        let Op::Read(extent) = request.op else {
            return false;
        };
        if extent.len > INLINE || !self.cached.load(Ordering::Relaxed) {
            return false;
        }
        let Some(into) = payload(request.buffer.as_mut(), extent) else {
            return false;
        };
        let wanted = into.len();
        let flags = ReadWriteFlags::NOWAIT;
        match rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(into)], extent.byte, flags) {
            Ok(read) => read == wanted,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.cached.store(false, Ordering::Relaxed);
                false
            }
            Err(_) => false,
        }
    }

    fn write(&self, mut at: u64, mut from: &[u8], fua: bool) -> io::Result<()> {
        if !fua {
            return self.file.write_all_at(from, at);
        }
        while !from.is_empty() {
            let flags = ReadWriteFlags::DSYNC;
            match rustix::io::pwritev2(&self.file, &[IoSlice::new(from)], at, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    from = from.get(written..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.file.write_all_at(from, at)?;
                    return self.file.sync_data();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn compare(&self, extent: Extent, with: &[u8]) -> io::Result<bool> {
        self.pieces(extent, |at, stored| {
            with.get(at..).is_some_and(|with| with.starts_with(stored))
        })
    }

    /// Reads piece by piece, and shows each with its place in the extent, for as long
    /// as `wanted` says so; false if it did not to the end.
    fn pieces(
        &self,
        extent: Extent,
        mut wanted: impl FnMut(usize, &[u8]) -> bool,
    ) -> io::Result<bool> {
        let mut piece = Buffer::zeroed(at_most_a_piece(extent.len));
        let mut done = 0;
        while done < extent.len {
            let len = at_most_a_piece(extent.len - done);
            let into = piece.as_mut().get_mut(..len).unwrap_or_default();
            self.file.read_exact_at(into, extent.byte + done)?;
            if !wanted(usize::try_from(done).unwrap_or(usize::MAX), into) {
                return Ok(false);
            }
            done += len as u64;
        }
        Ok(true)
    }

    fn deallocate(&self, extent: Extent) -> io::Result<()> {
        self.fallocate(HOLE, extent).map(drop)
    }

    fn zero(&self, extent: Extent, deallocate: bool, fua: bool) -> io::Result<()> {
        let modes = if deallocate {
            [HOLE, ZERO]
        } else {
            [ZERO, HOLE]
        };
        let mut zeroed = false;
        for mode in modes {
            zeroed = zeroed || self.fallocate(mode, extent)?;
        }
        if !zeroed {
            self.write_zeroes(extent)?;
        }
        if fua { self.file.sync_data() } else { Ok(()) }
    }

    fn write_zeroes(&self, extent: Extent) -> io::Result<()> {
        let zeroes = Buffer::zeroed(at_most_a_piece(extent.len));
        let mut done = 0;
        while done < extent.len {
            let len = at_most_a_piece(extent.len - done);
            let from = zeroes.as_ref().get(..len).unwrap_or_default();
            self.file.write_all_at(from, extent.byte + done)?;
            done += len as u64;
        }
        Ok(())
    }

    /// False when the file system or device does not do this.
    fn fallocate(&self, mode: FallocateFlags, extent: Extent) -> io::Result<bool> {
        if extent.len == 0 {
            return Ok(true);
        }
        let call = || rustix::fs::fallocate(&self.file, mode, extent.byte, extent.len);
        match retry_on_intr(call) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Logs the first failure aloud, the others in a whisper: a host can cause as many
    /// as it likes.
    fn failed(&self, op: Op, cause: &io::Error, error: MediaError) -> MediaError {
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
            _ => error,
        }
    }
}

/// `len` as a length to move at once: [`PIECE`] or less.
fn at_most_a_piece(len: u64) -> usize {
    usize::try_from(len).map_or(PIECE, |len| len.min(PIECE))
}

#[cfg(test)]
mod tests;
