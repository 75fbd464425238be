//! Zero-filled memory that several workers read and write, and lend to the
//! kernel.
//!
//! No Rust reference to this memory ever exists. Copies by different threads
//! exclude one another through locks, one for each stripe of 64 KiB; uncontended,
//! one costs a few nanoseconds. So two writes to the same bytes never mix within
//! one block. What is outside that rule is the kernel sending lent memory: it may
//! send half of what is being written meanwhile.
use std::ffi::c_void;
use std::io::IoSlice;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

const STRIPE: usize = 64 * 1024;
const STRIPES: usize = 64;
/// Within a window each lock guards one stripe, in the order of addresses.
const WINDOW: usize = STRIPE * STRIPES;

/// Anonymous memory that costs nothing where nothing was ever written.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    page: usize,
    stripes: Box<[Stripe; STRIPES]>,
}

/// An access that does not lie within the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("access beyond the end of the memory")]
pub struct OutOfRange;

/// A cache line of its own, so that neighbours do not contend.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(Mutex<()>);

impl Stripe {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locked stripes: one, as for most commands, or several.
#[expect(clippy::large_enum_variant, reason = "it stays where it is made")]
enum Held<'a> {
    One(#[expect(dead_code, reason = "it is dropped")] MutexGuard<'a, ()>),
    Several(
        #[expect(dead_code, reason = "they are dropped")]
        heapless::Vec<MutexGuard<'a, ()>, STRIPES>,
    ),
}

// SAFETY: `start` is not tied to a thread: mmap gave it to the process.
unsafe impl Send for Mapping {}
// SAFETY: every access of ours to the memory holds the locks of the stripes it touches.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` zero bytes, `len` > 0. Memory is not reserved: when the machine runs out
    /// of it, the kernel kills the process that writes.
    ///
    /// # Errors
    /// Those of `mmap(2)`: no address space of this size, or a strict overcommit policy.
    pub fn new(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let start = unsafe {
            mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }?;
        let mapping = Self {
            start: NonNull::new(start.cast()).ok_or(io::Errno::NOMEM)?,
            len,
            page: rustix::param::page_size(),
            stripes: Box::new(std::array::from_fn(|_| Stripe::default())),
        };
        // SAFETY: the range is the mapping, and the advice changes no contents.
        // It keeps hosts' data out of core dumps; without it all else works.
        let _ = unsafe { mm::madvise(start, len, Advice::LinuxDontDump) };
        Ok(mapping)
    }

    /// Asks for huge pages, where the kernel has some: random access is faster, and whoever
    /// writes one byte takes 2 MiB.
    pub fn prefer_huge_pages(&self) {
        // SAFETY: the range is the mapping, and the advice changes no contents. A kernel
        // without huge pages refuses, and all is as before.
        let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies out the bytes from `at` on.
    ///
    /// # Errors
    /// [`OutOfRange`], and nothing is copied.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let mut rest = into;
        for (start, len) in self.windows(at, rest.len())? {
            let (piece, next) = rest.split_at_mut(len);
            let _held = self.lock(start, len);
            // SAFETY: `windows` keeps the source within the mapping, the destination is
            // exclusive and elsewhere, and no other copy touches these stripes now.
            unsafe {
                ptr::copy_nonoverlapping(self.start.as_ptr().add(start), piece.as_mut_ptr(), len);
            }
            rest = next;
        }
        Ok(())
    }

    /// Stores `from` at `at`.
    ///
    /// # Errors
    /// [`OutOfRange`], and nothing is stored.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let mut rest = from;
        for (start, len) in self.windows(at, rest.len())? {
            let (piece, next) = rest.split_at(len);
            let _held = self.lock(start, len);
            // SAFETY: `windows` keeps the destination within the mapping, the source is
            // elsewhere, and no other copy touches these stripes now.
            unsafe {
                ptr::copy_nonoverlapping(piece.as_ptr(), self.start.as_ptr().add(start), len);
            }
            rest = next;
        }
        Ok(())
    }

    /// Makes `len` bytes from `at` on zero, and gives whole pages back to the system.
    ///
    /// # Errors
    /// [`OutOfRange`], and nothing changes.
    pub fn zero(&self, at: usize, len: usize) -> Result<(), OutOfRange> {
        for (start, len) in self.windows(at, len)? {
            let end = start + len;
            let first_page = start.next_multiple_of(self.page).min(end);
            let last_page = (end - end % self.page).max(first_page);
            let _held = self.lock(start, len);
            self.fill_zero(start, first_page);
            if !self.discard(first_page, last_page) {
                self.fill_zero(first_page, last_page);
            }
            self.fill_zero(last_page, end);
        }
        Ok(())
    }

    /// The bytes themselves, to send from; `None` when out of range.
    #[must_use]
    pub fn lend(&self, at: usize, len: usize) -> Option<Lent<'_>> {
        self.check(at, len).ok()?;
        Some(Lent {
            // SAFETY: `at` lies within the mapping or at its end, as just checked.
            start: unsafe { self.start.add(at) },
            len,
            _lender: PhantomData,
        })
    }

    /// Whole pages become zero by being given back; false when the kernel refuses.
    fn discard(&self, start: usize, end: usize) -> bool {
        if start == end {
            return true;
        }
        // SAFETY: the range lies within the mapping, no reference to it exists, and
        // private anonymous pages read as zeroes afterwards. The caller holds the locks.
        unsafe {
            let address = self.start.as_ptr().add(start).cast::<c_void>();
            mm::madvise(address, end - start, Advice::LinuxDontNeed).is_ok()
        }
    }

    fn fill_zero(&self, start: usize, end: usize) {
        // SAFETY: callers pass start <= end within the mapping and hold the locks.
        unsafe { ptr::write_bytes(self.start.as_ptr().add(start), 0, end - start) }
    }

    fn check(&self, at: usize, len: usize) -> Result<usize, OutOfRange> {
        let end = at.checked_add(len).ok_or(OutOfRange)?;
        (end <= self.len).then_some(end).ok_or(OutOfRange)
    }

    /// The range cut where windows begin, as (start, length).
    fn windows(
        &self,
        at: usize,
        len: usize,
    ) -> Result<impl Iterator<Item = (usize, usize)> + use<>, OutOfRange> {
        let end = self.check(at, len)?;
        let mut start = at;
        Ok(std::iter::from_fn(move || {
            let len = (end - start).min(WINDOW - start % WINDOW);
            let piece = (start, len);
            start += len;
            (len > 0).then_some(piece)
        }))
    }

    /// Locks the stripes of a range within one window. All who lock several do it in
    /// the same order, so nobody waits in a circle.
    fn lock(&self, start: usize, len: usize) -> Held<'_> {
        let first = start % WINDOW / STRIPE;
        let last = (start % WINDOW + len).div_ceil(STRIPE);
        match &self.stripes[first..last] {
            [stripe] => Held::One(stripe.lock()),
            several => Held::Several(several.iter().map(Stripe::lock).collect()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whatever was lent borrowed it.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Memory of a device, for the kernel to send from.
///
/// It has no accessor: another thread may be writing these bytes, so Rust code
/// cannot look at them. Give it to [`Gather`](super::gather::Gather).
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    start: NonNull<u8>,
    len: usize,
    _lender: PhantomData<&'a [u8]>,
}

impl<'a> Lent<'a> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// For system calls only: to look at these bytes as a slice would race with writers.
    pub(super) fn io_slice(self) -> IoSlice<'a> {
        #[repr(C)]
        struct Iovec {
            base: *const u8,
            len: usize,
        }
        let iovec = Iovec {
            base: self.start.as_ptr(),
            len: self.len,
        };
        // SAFETY: `IoSlice` is documented to be ABI compatible with `iovec`, whose
        // fields these are. The memory stays mapped for 'a. This way no reference to
        // it comes to be, as `IoSlice::new` would need.
        unsafe { std::mem::transmute::<Iovec, IoSlice<'a>>(iovec) }
    }
}

impl<'a> From<&'a [u8]> for Lent<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            _lender: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use rustix::net::SendFlags;

    use super::super::gather::Gather;
    use super::*;

    const KIB: usize = 1024;
    const MIB: usize = 1024 * KIB;

    /// Bytes of the range that are present in memory, as the kernel's page table has it.
    fn present(mapping: &Mapping, at: usize, len: usize) -> usize {
        let first = (mapping.start.as_ptr().addr() + at) / mapping.page;
        let mut entries = vec![0; len / mapping.page * 8];
        std::fs::File::open("/proc/self/pagemap")
            .unwrap()
            .read_exact_at(&mut entries, first as u64 * 8)
            .unwrap();
        let present = entries.chunks(8).filter(|entry| entry[7] & 0x80 != 0);
        present.count() * mapping.page
    }

    fn contents(mapping: &Mapping, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        mapping.read(at, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn it_holds_what_is_written_across_stripes_and_windows() {
        let mapping = Mapping::new(3 * WINDOW).unwrap();
        let data: Vec<u8> = (0..WINDOW + 3 * STRIPE).map(|i| (i % 251) as u8).collect();
        let at = WINDOW - STRIPE - 512;
        mapping.write(at, &data).unwrap();
        assert_eq!(contents(&mapping, at, data.len()), data);
        assert!(contents(&mapping, 0, at).iter().all(|&byte| byte == 0));
        let after = at + data.len();
        assert!(
            contents(&mapping, after, mapping.len() - after)
                .iter()
                .all(|&byte| byte == 0)
        );
    }

    #[test]
    fn nothing_reaches_beyond_the_end() {
        let mapping = Mapping::new(64 * KIB).unwrap();
        let mut bytes = [0; 512];
        for at in [64 * KIB - 511, 64 * KIB, usize::MAX - 100, usize::MAX] {
            assert_eq!(mapping.read(at, &mut bytes), Err(OutOfRange), "{at}");
            assert_eq!(mapping.write(at, &bytes), Err(OutOfRange), "{at}");
            assert_eq!(mapping.zero(at, 512), Err(OutOfRange), "{at}");
            assert!(mapping.lend(at, 512).is_none(), "{at}");
        }
        assert_eq!(mapping.read(64 * KIB - 512, &mut bytes), Ok(()));
        assert_eq!(mapping.write(64 * KIB, &[]), Ok(()));
    }

    #[test]
    fn zeroing_keeps_the_neighbours_and_frees_pages() {
        zeroed(&Mapping::new(8 * MIB).unwrap());
        let huge = Mapping::new(8 * MIB).unwrap();
        huge.prefer_huge_pages();
        zeroed(&huge);
    }

    fn zeroed(mapping: &Mapping) {
        mapping.write(0, &vec![0xab; 8 * MIB]).unwrap();
        assert_eq!(present(mapping, 0, 8 * MIB), 8 * MIB);
        let (at, len) = (512, 7 * MIB);
        mapping.zero(at, len).unwrap();
        // The pages at both ends hold neighbours.
        assert_eq!(present(mapping, 0, 8 * MIB), MIB + mapping.page);
        assert!(contents(mapping, 0, at).iter().all(|&byte| byte == 0xab));
        assert!(contents(mapping, at, len).iter().all(|&byte| byte == 0));
        let after = at + len;
        assert!(
            contents(mapping, after, 8 * MIB - after)
                .iter()
                .all(|&byte| byte == 0xab)
        );
    }

    #[test]
    fn a_terabyte_that_nobody_wrote_costs_nothing() {
        let Ok(mapping) = Mapping::new(1 << 40) else {
            eprintln!("skipped: no address space or a strict overcommit policy");
            return;
        };
        let last = (1 << 40) - 8 * MIB;
        assert_eq!(present(&mapping, last, 8 * MIB), 0);
        mapping.write((1 << 40) - 512, &[1; 512]).unwrap();
        let written = present(&mapping, last, 8 * MIB);
        assert!(
            (1..=2 * MIB).contains(&written),
            "a page, of either size: {written}"
        );
    }

    #[test]
    fn lent_memory_is_sent_in_place_between_other_parts() {
        let mapping = Mapping::new(64 * KIB).unwrap();
        mapping.write(4096, &[7; 512]).unwrap();
        let (sender, mut receiver) = UnixStream::pair().unwrap();
        let mut gather = Gather::<4>::new();
        assert!(gather.push(b"head"));
        assert!(gather.push(b""));
        assert!(gather.push_lent(mapping.lend(4096, 512).unwrap()));
        assert!(gather.push_lent(Lent::from(&b"tail"[..])));
        assert_eq!((gather.bytes(), gather.room()), (520, 1));
        assert!(gather.push(b"."));
        assert!(!gather.push(b"too many"));
        assert_eq!(gather.send(&sender, SendFlags::empty()), Ok(521));
        drop(sender);
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).unwrap();
        assert_eq!(received, [b"head", &[7; 512][..], b"tail."].concat());
    }

    #[test]
    fn writes_of_several_threads_do_not_mix() {
        const LEN: usize = 3 * STRIPE;
        let mapping = Mapping::new(WINDOW).unwrap();
        thread::scope(|scope| {
            for writer in 1..=3u8 {
                let mapping = &mapping;
                scope.spawn(move || {
                    for _ in 0..200 {
                        mapping.write(STRIPE / 2, &[writer; LEN]).unwrap();
                    }
                });
            }
            let mut seen = vec![0; LEN];
            for _ in 0..200 {
                mapping.read(STRIPE / 2, &mut seen).unwrap();
                assert!(seen.iter().all(|&byte| byte == seen[0]));
            }
        });
    }
}
