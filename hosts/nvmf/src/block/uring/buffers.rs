//! Memory of a worker's buffers that is registered with its ring, so that the kernel need not look up
//! and hold its pages for each direct operation.
//!
//! Memory is registered when it comes out of the worker's pool again, and stays so until it is
//! freed. The kernel counts it as locked: where no more is permitted, the rest is used as it is.
use std::io;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::IoUring;
use nvmf_tcp::std::buffer::{Buffer, Registry};

/// Buffers that a ring has numbers for.
const NUMBERS: u16 = 1024;

pub(super) struct Buffers {
    registry: Registry,
    numbers: Numbers,
}

/// Which numbers there are to give.
struct Numbers {
    /// Those that no memory has.
    free: Vec<u16>,
    /// The kernel permits no more.
    full: bool,
    /// That was said.
    complained: Arc<AtomicBool>,
}

impl Buffers {
    /// None yet; none ever before Linux 5.19.
    pub(super) fn new(uring: &IoUring, complained: &Arc<AtomicBool>) -> Self {
        let table = uring
            .submitter()
            .register_buffers_sparse(u32::from(NUMBERS));
        Self {
            registry: Registry::default(),
            numbers: Numbers {
                free: (0..NUMBERS).rev().collect(),
                full: table.is_err(),
                complained: Arc::clone(complained),
            },
        }
    }

    /// The number of a buffer's memory, which is registered if that seems worth it.
    pub(super) fn number(&mut self, uring: &IoUring, buffer: &mut Buffer) -> Option<u16> {
        let Self { registry, numbers } = self;
        buffer.number(registry, |memory| numbers.give(uring, registry, memory))
    }

    /// Lets go of memory that was freed.
    pub(super) fn forget_freed(&mut self, uring: &IoUring) {
        self.numbers.take_back(uring, &self.registry);
    }
}

impl Numbers {
    fn take_back(&mut self, uring: &IoUring, registry: &Registry) {
        while let Some(number) = registry.freed() {
            // What cannot be let go of is held until another takes its number.
            let _ = update(uring, number, &mut []);
            self.free.push(number);
            self.full = false;
        }
    }

    fn give(&mut self, uring: &IoUring, registry: &Registry, memory: &mut [u8]) -> Option<u16> {
        if self.full {
            return None;
        }
        if self.free.is_empty() {
            self.take_back(uring, registry);
        }
        let number = self.free.pop()?;
        match update(uring, number, memory) {
            Ok(()) => Some(number),
            Err(error) => {
                self.free.push(number);
                self.full = true;
                if !self.complained.swap(true, Ordering::Relaxed) {
                    tracing::info!(
                        "the system permits no more memory to be registered for direct I/O, which \
                         goes on without: {error}; see `ulimit -l`"
                    );
                }
                None
            }
        }
    }
}

/// Gives a number to memory, or to none if that is empty.
fn update(uring: &IoUring, number: u16, memory: &mut [u8]) -> io::Result<()> {
    let start = match memory {
        [] => 0,
        _ => memory.as_mut_ptr().expose_provenance(),
    };
    let iovec = [start, memory.len()];
    // SAFETY: `iovec` is laid out as a `struct iovec`. The memory is the program's, and the kernel
    // does nothing with it until an operation names it by its number, which is forgotten when
    // the memory is freed.
    unsafe {
        let iovecs = slice::from_raw_parts((&raw const iovec).cast(), 1);
        let submitter = uring.submitter();
        submitter.register_buffers_update(u32::from(number), iovecs, None)
    }
}

#[cfg(test)]
mod tests {
    use nvmf_tcp::std::buffer::BufferPool;

    use super::super::ring::{Mode, build};
    use super::*;

    /// A ring, unless there is none here.
    fn ring() -> Option<IoUring> {
        let ring = build(2, Mode::Told);
        ring.inspect_err(|why| eprintln!("skipped: {why}")).ok()
    }

    fn new(uring: &IoUring) -> Buffers {
        Buffers::new(uring, &Arc::default())
    }

    #[test]
    fn memory_is_registered_once_and_let_go_when_it_is_freed() {
        let Some(uring) = ring() else { return };
        let mut buffers = new(&uring);
        if buffers.numbers.full {
            eprintln!("skipped: the kernel registers no buffers one by one");
            return;
        }
        let mut pool = BufferPool::new(usize::MAX);
        let mut buffer = pool.take(5000);
        assert_eq!(buffers.number(&uring, &mut buffer), None, "it is new");
        pool.give(buffer);
        let mut buffer = pool.take(5000);
        let number = buffers.number(&uring, &mut buffer);
        assert_eq!(number, Some(0));
        pool.give(buffer);
        let mut buffer = pool.take(6000);
        assert_eq!(buffers.number(&uring, &mut buffer), number);
        assert_eq!(buffers.numbers.free.len(), usize::from(NUMBERS) - 1);
        // The pool of a worker that serves nobody.
        pool.give(buffer);
        pool.release();
        buffers.forget_freed(&uring);
        assert_eq!(buffers.numbers.free.len(), usize::from(NUMBERS));
    }

    #[test]
    fn more_memory_than_there_are_numbers_for_is_used_as_it_is() {
        let Some(uring) = ring() else { return };
        let mut buffers = new(&uring);
        buffers.numbers.free.drain(1..);
        let mut pool = BufferPool::new(usize::MAX);
        let taken = [pool.take(4096), pool.take(4096)];
        for buffer in taken {
            pool.give(buffer);
        }
        let mut taken = [pool.take(4096), pool.take(4096)];
        let numbers = taken
            .each_mut()
            .map(|buffer| buffers.number(&uring, buffer).is_some());
        assert_eq!(numbers, [!buffers.numbers.full, false]);
        // Freed memory leaves its number to other memory.
        let [first, mut second] = taken;
        drop(first);
        let number = buffers.number(&uring, &mut second);
        assert_eq!(number.is_some(), !buffers.numbers.full);
    }
}
