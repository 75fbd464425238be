//! Memory for payloads, and each worker's store of it.
//!
//! A buffer of a pool is page-aligned, so that direct I/O can fill it, and it is always
//! initialised. What it holds when it is taken is another matter: see
//! [`BufferPool::take`].
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use zerocopy::{FromBytes, Immutable, IntoBytes};

#[cfg(feature = "rdma")]
use super::rdma::Registered;

/// Alignment of pages in bytes, and the smallest capacity.
pub const ALIGNMENT: usize = 4096;

/// Size classes: 4 KiB, 8 KiB, ... 2 MiB. What is larger is never kept.
const CLASSES: usize = 10;

#[derive(Clone, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

/// Memory on the heap, as long as it was asked to be: page-aligned, unless it was
/// a `Vec` before.
pub struct Buffer {
    memory: Memory,
    len: usize,
    _charge: Option<Charge>,
}

enum Memory {
    Pages(Pages),
    Bytes(Vec<u8>),
    /// Of an RDMA worker, which takes it back as it was.
    #[cfg(feature = "rdma")]
    Registered(Registered),
}

#[cfg(feature = "rdma")]
impl Buffer {
    /// The memory of an RDMA worker, if it is that.
    pub(super) fn into_registered(self) -> Option<Registered> {
        match self.memory {
            Memory::Registered(memory) => Some(memory),
            _ => None,
        }
    }
}

#[cfg(feature = "rdma")]
impl From<Registered> for Buffer {
    fn from(memory: Registered) -> Self {
        Self {
            len: memory.as_ref().len(),
            memory: Memory::Registered(memory),
            _charge: None,
        }
    }
}

impl Buffer {
    /// `len` zero bytes that belong to no pool.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self {
            memory: Memory::Pages(Pages::new(capacity_for(len))),
            len,
            _charge: None,
        }
    }

    /// Bytes of memory behind the buffer, at least its length.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Pages(pages) => pages.memory.len() * ALIGNMENT,
            Memory::Bytes(bytes) => bytes.capacity(),
            #[cfg(feature = "rdma")]
            Memory::Registered(_) => self.len,
        }
    }

    /// The number that `registry` knows the memory by, as a whole. If it does not, `register` may
    /// register it, and give it a number; it is not asked for memory that was never a pool's
    /// before, since that might be used just once.
    pub fn number(
        &mut self,
        registry: &Registry,
        register: impl FnOnce(&mut [u8]) -> Option<u16>,
    ) -> Option<u16> {
        let Memory::Pages(pages) = &mut self.memory else {
            return None;
        };
        match &pages.entry {
            Some(entry) => entry.registry.is(registry).then_some(entry.number),
            None if !pages.recycled => None,
            None => {
                let number = register(pages.memory.as_mut_bytes())?;
                pages.entry = Some(Entry {
                    registry: registry.clone(),
                    number,
                });
                Some(number)
            }
        }
    }
}

impl From<Vec<u8>> for Buffer {
    /// Takes the memory as it is: what does direct I/O wants pages instead.
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            len: bytes.len(),
            memory: Memory::Bytes(bytes),
            _charge: None,
        }
    }
}

impl From<&[u8]> for Buffer {
    /// A copy.
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.as_mut().copy_from_slice(bytes);
        buffer
    }
}

impl From<Buffer> for Vec<u8> {
    /// Without copying, if it was a `Vec` before.
    fn from(buffer: Buffer) -> Self {
        match buffer.memory {
            Memory::Bytes(bytes) => bytes,
            Memory::Pages(pages) => pages.memory.as_bytes()[..buffer.len].to_vec(),
            #[cfg(feature = "rdma")]
            Memory::Registered(memory) => memory.as_ref().to_vec(),
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            Memory::Pages(pages) => &pages.memory.as_bytes()[..self.len],
            Memory::Bytes(bytes) => bytes,
            #[cfg(feature = "rdma")]
            Memory::Registered(memory) => memory.as_ref(),
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Pages(pages) => &mut pages.memory.as_mut_bytes()[..self.len],
            Memory::Bytes(bytes) => bytes,
            #[cfg(feature = "rdma")]
            Memory::Registered(memory) => memory.as_mut(),
        }
    }
}

impl fmt::Debug for Buffer {
    /// Sizes only: the bytes are a host's data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish()
    }
}

/// Pages of memory, and what they are known by.
struct Pages {
    memory: Box<[Page]>,
    /// A pool had them before.
    recycled: bool,
    entry: Option<Entry>,
}

impl Pages {
    fn new(capacity: usize) -> Self {
        Self {
            memory: vec![Page([0; ALIGNMENT]); capacity / ALIGNMENT].into_boxed_slice(),
            recycled: false,
            entry: None,
        }
    }
}

/// Which memory of buffers something else knows by numbers, such as an io_uring in which it is
/// registered. Memory has a number in at most one registry. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    freed: Arc<Mutex<Vec<u16>>>,
}

impl Registry {
    /// A number whose memory was freed since.
    #[must_use]
    pub fn freed(&self) -> Option<u16> {
        let mut freed = self.freed.lock().unwrap_or_else(PoisonError::into_inner);
        freed.pop()
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.freed, &other.freed)
    }
}

/// Memory's entry in a registry, for as long as there is this memory.
struct Entry {
    registry: Registry,
    number: u16,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let freed = self.registry.freed.lock();
        freed
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.number);
    }
}

/// One worker's buffers: what was given back is taken again.
///
/// A buffer that is dropped instead of being given back is no leak: its memory
/// is freed, and [`BufferPool::outstanding`] counts it out.
#[derive(Debug)]
pub struct BufferPool {
    free: [Vec<Pages>; CLASSES],
    kept: usize,
    keep: usize,
    outstanding: Arc<AtomicUsize>,
}

impl BufferPool {
    /// A pool that holds on to at most `keep` bytes of unused memory.
    #[must_use]
    pub fn new(keep: usize) -> Self {
        Self {
            free: Default::default(),
            kept: 0,
            keep,
            outstanding: Arc::default(),
        }
    }

    /// A buffer of `len` bytes with arbitrary contents, which may be what an
    /// earlier connection moved. Only for what is overwritten as a whole before
    /// any of it leaves: a device's read, data received from the host. For
    /// all else there is [`BufferPool::take_zeroed`].
    #[must_use]
    pub fn take(&mut self, len: usize) -> Buffer {
        let capacity = capacity_for(len);
        let recycled = class_of(capacity).and_then(|class| self.free.get_mut(class)?.pop());
        let pages = match recycled {
            Some(pages) => {
                self.kept -= capacity;
                pages
            }
            None => Pages::new(capacity),
        };
        Buffer {
            memory: Memory::Pages(pages),
            len,
            _charge: Some(Charge::new(&self.outstanding, capacity)),
        }
    }

    /// A buffer of `len` zero bytes.
    #[must_use]
    pub fn take_zeroed(&mut self, len: usize) -> Buffer {
        let mut buffer = self.take(len);
        buffer.as_mut().fill(0);
        buffer
    }

    /// Takes a buffer back, from this pool or another; frees it when enough is kept.
    pub fn give(&mut self, buffer: Buffer) {
        let capacity = buffer.capacity();
        let Memory::Pages(mut pages) = buffer.memory else {
            return;
        };
        pages.recycled = true;
        if self.kept + capacity > self.keep {
            return;
        }
        if let Some(free) = class_of(capacity).and_then(|class| self.free.get_mut(class)) {
            free.push(pages);
            self.kept += capacity;
        }
    }

    /// Bytes of memory in buffers that were taken and neither given back nor dropped.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Bytes of unused memory.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Frees all unused memory: for a worker that goes idle.
    pub fn release(&mut self) {
        self.free = Default::default();
        self.kept = 0;
    }
}

/// A buffer's entry in its pool's count, for as long as it is out.
struct Charge {
    outstanding: Arc<AtomicUsize>,
    bytes: usize,
}

impl Charge {
    fn new(outstanding: &Arc<AtomicUsize>, bytes: usize) -> Self {
        outstanding.fetch_add(bytes, Ordering::Relaxed);
        Self {
            outstanding: Arc::clone(outstanding),
            bytes,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.outstanding.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}

/// The class whose buffers have exactly this capacity.
fn class_of(capacity: usize) -> Option<usize> {
    let class = (capacity / ALIGNMENT).trailing_zeros() as usize;
    (class < CLASSES && capacity == ALIGNMENT << class).then_some(class)
}

/// A power of two up to the largest class, a whole number of pages above.
fn capacity_for(len: usize) -> usize {
    const LARGEST: usize = ALIGNMENT << (CLASSES - 1);
    if len <= LARGEST {
        len.next_power_of_two().max(ALIGNMENT)
    } else {
        len.next_multiple_of(ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn capacity_is_a_class_or_whole_pages() {
        for (len, capacity) in [
            (0, 4096),
            (1, 4096),
            (4096, 4096),
            (4097, 8192),
            (MIB, MIB),
            (MIB + 1, 2 * MIB),
            (2 * MIB + 1, 2 * MIB + 4096),
        ] {
            let mut buffer = BufferPool::new(0).take(len);
            assert_eq!(buffer.capacity(), capacity, "{len}");
            assert_eq!(buffer.as_ref().len(), len);
            assert_eq!(buffer.as_mut().len(), len);
            assert_eq!(buffer.as_ref().as_ptr().addr() % ALIGNMENT, 0);
        }
    }

    #[test]
    fn memory_comes_back_for_its_class_only() {
        let mut pool = BufferPool::new(MIB);
        let small = pool.take(512);
        let large = pool.take(128 * 1024);
        let address = large.as_ref().as_ptr();
        assert_eq!(pool.outstanding(), 4096 + 128 * 1024);
        pool.give(large);
        pool.give(small);
        assert_eq!((pool.outstanding(), pool.kept()), (0, 4096 + 128 * 1024));
        let again = pool.take(100 * 1024);
        assert_eq!(again.as_ref().as_ptr(), address);
        assert_eq!((pool.outstanding(), pool.kept()), (128 * 1024, 4096));
    }

    #[test]
    fn a_recycled_buffer_can_be_had_without_its_past() {
        let mut pool = BufferPool::new(MIB);
        let mut secret = pool.take(4096);
        secret.as_mut().fill(0x5a);
        pool.give(secret);
        assert!(
            pool.take_zeroed(4096)
                .as_ref()
                .iter()
                .all(|&byte| byte == 0)
        );
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let mut pool = BufferPool::new(10_000);
        let taken: Vec<_> = (0..8).map(|_| pool.take(4096)).collect();
        for buffer in taken {
            pool.give(buffer);
        }
        assert_eq!((pool.kept(), pool.outstanding()), (8192, 0));
        pool.release();
        assert_eq!(pool.kept(), 0);
    }

    #[test]
    fn what_is_larger_than_every_class_is_freed() {
        let mut pool = BufferPool::new(usize::MAX / 2);
        let huge = pool.take(2 * MIB + 1);
        pool.give(huge);
        assert_eq!((pool.kept(), pool.outstanding()), (0, 0));
    }

    #[test]
    fn a_vec_comes_back_as_it_was() {
        let mut bytes = Vec::with_capacity(10_000);
        bytes.extend(0..=255);
        let address = bytes.as_ptr();
        let mut buffer = Buffer::from(bytes);
        assert_eq!((buffer.as_ref().len(), buffer.capacity()), (256, 10_000));
        buffer.as_mut()[0] = 7;
        let back = Vec::from(buffer);
        assert_eq!((back.as_ptr(), back[0], back[255]), (address, 7, 255));
        assert_eq!(Vec::from(Buffer::from(&back[..])), back);
        let mut pool = BufferPool::new(MIB);
        pool.give(Buffer::from(vec![0; ALIGNMENT]));
        assert_eq!(pool.kept(), 0, "it is not page-aligned");
    }

    #[test]
    fn memory_keeps_its_number_until_it_is_freed() {
        let (registry, other) = (Registry::default(), Registry::default());
        let mut pool = BufferPool::new(MIB);
        let mut buffer = pool.take(5000);
        let never = |_: &mut [u8]| panic!("it was not to be registered");
        assert_eq!(buffer.number(&registry, never), None, "it is new");
        pool.give(buffer);
        let mut buffer = pool.take(6000);
        let address = buffer.as_ref().as_ptr();
        assert_eq!(buffer.number(&registry, |_| None), None);
        let number = buffer.number(&registry, |memory| {
            assert_eq!((memory.as_ptr(), memory.len()), (address, 8192));
            Some(7)
        });
        assert_eq!(number, Some(7));
        pool.give(buffer);
        let mut buffer = pool.take(8192);
        assert_eq!(buffer.number(&registry, never), Some(7));
        assert_eq!(buffer.number(&other, never), None);
        pool.give(buffer);
        assert_eq!(registry.freed(), None);
        pool.release();
        assert_eq!((registry.freed(), registry.freed()), (Some(7), None));
    }

    #[test]
    fn a_dropped_buffer_is_counted_out() {
        let mut pool = BufferPool::new(MIB);
        drop(pool.take(9000));
        assert_eq!((pool.kept(), pool.outstanding()), (0, 0));
    }
}
