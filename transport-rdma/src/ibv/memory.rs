//! Registered memory, whole and in pieces.
use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use core::slice;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::device::Device;
use super::sys::{self, access};
use crate::verbs::{Access, Bytes, Error};

const PAGE: usize = 4096;

/// Zeroed memory of whole pages: the system's, so that it has it back when nobody needs it.
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes, as a box does.
unsafe impl Send for Memory {}
// SAFETY: without `&mut` they cannot be reached.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// [`Error::NoResources`]: the system has, or permits the process, no more (`ulimit -v`).
    pub fn new(len: usize) -> Result<Self, Error> {
        let len = len.max(1).checked_next_multiple_of(PAGE);
        let len = len.ok_or(Error::NoResources)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE) };
        match start.map(|start| NonNull::new(start.cast())) {
            Ok(Some(start)) => Ok(Self { start, len }),
            Ok(None) => Err(Error::NoResources),
            Err(errno) => Err(error(errno.raw_os_error())),
        }
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody else has it.
        // An error would say that it is not mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A protection domain, which what is made in it keeps.
pub(super) struct Domain {
    pub(super) device: Device,
    pub(super) pd: NonNull<sys::Opaque>,
}

// SAFETY: verbs may be called from all threads (ibv_alloc_pd(3) has no exception).
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// What the device's driver does without the kernel.
    pub(super) fn ops(&self) -> &sys::ContextOps {
        // SAFETY: the context is open as long as the device is held, and its functions stay.
        unsafe { &(*self.device.context()).ops }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: whatever was made in the domain holds it, and is gone.
        unsafe { (self.device.library().verbs.ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Memory that a device knows.
pub(super) struct Registered {
    pub(super) mr: NonNull<sys::Mr>,
    memory: Memory,
    domain: Arc<Domain>,
}

// SAFETY: see `Domain` and `Memory`.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    pub(super) fn new(
        domain: &Arc<Domain>,
        memory: Memory,
        rights: Access,
    ) -> Result<Self, (Memory, Error)> {
        let mut flags = access_flags(rights);
        if domain.device.is_iwarp() && rights.local_write {
            // What READ brings is written by the peer, who is told the key.
            flags |= access::REMOTE_WRITE;
        }
        let start = memory.start.as_ptr().cast::<c_void>();
        // SAFETY: the memory is there until the region is dropped, which deregisters it first.
        let mr = unsafe {
            (domain.device.library().verbs.ibv_reg_mr)(
                domain.pd.as_ptr(),
                start,
                memory.len(),
                flags as c_int,
            )
        };
        match NonNull::new(mr) {
            Some(mr) => Ok(Self {
                mr,
                memory,
                domain: Arc::clone(domain),
            }),
            None => Err((memory, last_error())),
        }
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered, and its keys do not change.
        unsafe { self.mr.as_ref() }.lkey
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// Where a byte is, for a device.
    pub(super) fn address(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.memory.len());
        // SAFETY: it is within the memory.
        unsafe { self.memory.start.add(offset) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: no buffer of it is left, and those that a device uses are kept until it has let go of them.
        unsafe { (self.domain.device.library().verbs.ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

/// Registered memory of which buffers are carved.
pub struct Region {
    pub(super) registered: Arc<Registered>,
    pub(super) access: Access,
    used: usize,
}

impl Region {
    pub(super) fn new(registered: Registered, access: Access) -> Self {
        Self {
            registered: Arc::new(registered),
            access,
            used: 0,
        }
    }

    pub(super) fn carve(&mut self, len: u32) -> Option<Buffer> {
        let end = self.used.checked_add(len as usize)?;
        if end > self.registered.memory.len() {
            return None;
        }
        let start = self.registered.address(self.used);
        self.used = end;
        Some(Buffer {
            start,
            len,
            access: self.access,
            registered: Arc::clone(&self.registered),
        })
    }
}

/// A piece of registered memory, which nobody else has.
pub struct Buffer {
    start: NonNull<u8>,
    pub(super) len: u32,
    pub(super) access: Access,
    pub(super) registered: Arc<Registered>,
}

// SAFETY: its bytes are its own; the region is `Send` and `Sync`.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Where it is, in the addresses that a device and a peer know.
    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }
}

impl Buffer {
    /// The bytes that only the owner reaches.
    fn own(&self) -> usize {
        if self.access.is_remote() {
            0
        } else {
            self.len as usize
        }
    }

    /// How many of `len` bytes there are at `at`.
    fn within(&self, at: usize, len: usize) -> usize {
        len.min((self.len as usize).saturating_sub(at))
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: these bytes were carved once. The device reaches them only while the provider
        // has the buffer, and no peer has a key to them then: windows end before it comes back.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.own()) }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.own()) }
    }
}

impl Bytes for Buffer {
    fn len(&self) -> usize {
        self.len as usize
    }

    fn copy_in(&mut self, at: usize, from: &[u8]) {
        let len = self.within(at, from.len());
        if len > 0 {
            // SAFETY: it is within the buffer, of which there is no slice where peers reach it:
            // what they do to it meanwhile is done to bytes that have no meaning yet.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(at), len) };
        }
    }

    fn copy_out(&self, at: usize, to: &mut [u8]) {
        let len = self.within(at, to.len());
        if len > 0 {
            // SAFETY: as above; any bytes will do.
            unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(at), to.as_mut_ptr(), len) };
        }
    }
}

impl core::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// As the device's flags.
pub(super) fn access_flags(rights: Access) -> core::ffi::c_uint {
    let flag = |right, flag| if right { flag } else { 0 };
    // A peer that may write implies that the device may (ibv_reg_mr(3)).
    flag(
        rights.local_write || rights.remote_write,
        access::LOCAL_WRITE,
    ) | flag(rights.remote_read, access::REMOTE_READ)
        | flag(rights.remote_write, access::REMOTE_WRITE)
        | flag(rights.windows, access::MW_BIND)
}

/// What `errno` says.
pub(super) fn last_error() -> Error {
    error(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// What an error number says, of which some drivers give the negative.
pub(super) fn error(number: i32) -> Error {
    const ENOMEM: i32 = 12;
    const EOPNOTSUPP: i32 = 95;
    match number.saturating_abs() {
        ENOMEM => Error::NoResources,
        EOPNOTSUPP => Error::Unsupported,
        number => Error::Other(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_there_is_not_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 47] {
            assert_eq!(Memory::new(len).err(), Some(Error::NoResources), "{len}");
        }
        assert!(Memory::new(0).is_ok_and(|memory| memory.len() == PAGE));
    }
}
