//! Statics that somebody takes for good, and how the stack does.
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A value that one owner gets, for ever.
#[derive(Debug)]
pub struct Taken<T> {
    value: UnsafeCell<T>,
    taken: AtomicBool,
}

// SAFETY: the value goes to one owner, and there is one thread.
unsafe impl<T> Sync for Taken<T> {}

impl<T> Taken<T> {
    /// Not taken yet.
    pub const fn new(value: T) -> Self {
        Self {
            value: UnsafeCell::new(value),
            taken: AtomicBool::new(false),
        }
    }

    /// Takes it.
    ///
    /// # Panics
    /// The second time.
    #[allow(clippy::mut_from_ref, reason = "there is one, as it is taken once")]
    pub fn take(&'static self) -> &'static mut T {
        assert!(!self.taken.swap(true, Ordering::Relaxed), "taken twice");
        // SAFETY: this is reached once for each value.
        unsafe { &mut *self.value.get() }
    }

    /// Where it is.
    pub(crate) const fn address(&self) -> *mut T {
        self.value.get()
    }
}

/// What start.s paints the stack with.
const PAINT: u64 = 0xCCCC_CCCC_CCCC_CCCC;

/// How the stack does, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// How much of it was ever used.
    pub peak: usize,
    /// How much there is.
    pub size: usize,
}

impl Stack {
    /// Looks how far down the paint of the start is gone.
    #[must_use]
    pub fn measure() -> Self {
        unsafe extern "C" {
            static stack_start: u64;
            static stack_end: u64;
        }
        let (start, end) = (
            &raw const stack_start as usize,
            &raw const stack_end as usize,
        );
        let size = start - end;
        // SAFETY: the linker gives these bounds, all between them is memory of
        // the stack, and it is below what is in use that this looks for a change.
        let word = |at: usize| unsafe { ((end + at) as *const u64).read_volatile() };
        let unused = (0..size).step_by(8).take_while(|at| word(*at) == PAINT);
        let peak = size - unused.count() * 8;
        Self { peak, size }
    }
}
