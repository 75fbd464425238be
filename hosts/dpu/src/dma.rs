//! Memory for virtio's queues. The board's devices see memory as the processor does,
//! caches included.
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

use crate::memory::Taken;

/// Pages of all queues: three each for one of 256 descriptors.
const PAGES: usize = 24;

#[repr(align(4096))]
struct Pages {
    _bytes: [[u8; PAGE_SIZE]; PAGES],
}

static POOL: Taken<Pages> = Taken::new(Pages {
    _bytes: [[0; PAGE_SIZE]; PAGES],
});
/// How many of them are in use. None is ever given back.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The board's memory, as virtio needs it.
#[derive(Debug)]
pub struct Board;

// SAFETY: each page is given out once, is aligned, and is zero since the start;
// addresses are the same on both sides.
unsafe impl Hal for Board {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let first = USED.fetch_add(pages, Ordering::Relaxed);
        if first.saturating_add(pages) > PAGES {
            // What virtio-drivers takes for "there is none".
            return (0, NonNull::dangling());
        }
        let page = POOL.address().cast::<u8>().wrapping_add(first * PAGE_SIZE);
        let pointer = NonNull::new(page).expect("a static is not at 0");
        (page as PhysAddr, pointer)
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        0
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(address as *mut u8).expect("no device is at 0")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.cast::<u8>().as_ptr() as PhysAddr
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
