//! The system's allocator, with somebody who looks on.
use std::alloc::{GlobalAlloc, Layout, System};

/// Calls a function for each allocation, in the thread that makes it. The function must not
/// allocate.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
///
/// static COUNT: AtomicUsize = AtomicUsize::new(0);
///
/// #[global_allocator]
/// static ALLOCATOR: nvmf_testing::allocations::Watched =
///     nvmf_testing::allocations::Watched(|| _ = COUNT.fetch_add(1, Relaxed));
///
/// let before = COUNT.load(Relaxed);
/// drop(std::hint::black_box(Box::new(1)));
/// assert!(COUNT.load(Relaxed) > before);
/// ```
pub struct Watched(pub fn());

// SAFETY: the system's allocator does it all; who looks on allocates nothing.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.0)();
        // SAFETY: the caller promises what this asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        (self.0)();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        (self.0)();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}
