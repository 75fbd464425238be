//! Threads that make the system calls which block, for all workers.
//!
//! A handle sends its requests here and finds the completions in a queue of its
//! own. Nothing below this module knows of threads, and nothing above it knows
//! which requests were done by one: an io_uring can take its place.
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use nvmf_core::block::{Completion, MediaError, Op, Request, Submit};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::waker::Waker;

/// Requests that one handle may have under way. The queue of the pool is thus
/// bounded by the number of handles, and a handle that is refused has
/// completions to wait for.
const UNDER_WAY: usize = 128;

/// Enough for a chain of system calls; data lives on the heap.
const STACK: usize = 256 * 1024;

/// Does operations, one at a time per calling thread, and may block.
pub(super) trait Media: Send + Sync {
    /// Does what an admissible request says.
    fn perform(&self, op: Op, buffer: Option<&mut Buffer>) -> Result<(), MediaError>;
}

/// Threads that do blocking operations. Clones are the same pool; when the last
/// clone is dropped, and every handle, what is queued is finished and the threads end.
#[derive(Clone, Debug)]
pub struct Pool {
    threads: Arc<Threads>,
}

impl Pool {
    /// Starts `count` threads, at least one. They sleep until there is work.
    ///
    /// They inherit the signal mask: signals that a certain thread shall handle are to
    /// be blocked before.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(count: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                open: true,
            }),
            changed: Condvar::new(),
        });
        let mut threads = Threads {
            shared,
            running: Vec::new(),
        };
        for index in 0..count.max(1) {
            let shared = Arc::clone(&threads.shared);
            let thread = thread::Builder::new()
                .name(format!("nvmf-io-{index}"))
                .stack_size(STACK)
                .spawn(move || shared.work())?;
            threads.running.push(thread);
        }
        Ok(Self {
            threads: Arc::new(threads),
        })
    }

    /// A number of threads that suits this machine: four a core, 4 to 32.
    #[must_use]
    pub fn default_size() -> usize {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        (4 * cores).clamp(4, 32)
    }
}

struct Threads {
    shared: Arc<Shared>,
    running: Vec<JoinHandle<()>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().open = false;
        self.shared.changed.notify_all();
        for thread in self.running.drain(..) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} threads", self.running.len())
    }
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    jobs: VecDeque<Job>,
    open: bool,
}

struct Job {
    port: Arc<Port>,
    request: Request<Buffer>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) {
        self.lock().jobs.push_back(job);
        self.changed.notify_one();
    }

    fn pop(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            match queue.jobs.pop_front() {
                Some(job) => return Some(job),
                None if !queue.open => return None,
                None => {
                    queue = self
                        .changed
                        .wait(queue)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn work(&self) {
        while let Some(Job { port, mut request }) = self.pop() {
            let result = port.media.perform(request.op, request.buffer.as_mut());
            // When the handle is gone, nobody waits for the completion.
            let _ = port.completions.send(request.complete(result));
            port.waker.wake();
        }
    }
}

/// What a thread needs to serve one handle.
struct Port {
    media: Arc<dyn Media>,
    completions: Sender<Completion<Buffer>>,
    waker: Waker,
}

/// A device handle's access to the pool.
pub(super) struct Handle {
    pool: Pool,
    port: Arc<Port>,
    completed: Receiver<Completion<Buffer>>,
    under_way: usize,
}

impl Handle {
    /// A handle whose requests are done by `media` and announced to `waker`.
    pub(super) fn new(pool: &Pool, media: Arc<dyn Media>, waker: &Waker) -> Self {
        let (completions, completed) = mpsc::channel();
        Self {
            pool: pool.clone(),
            port: Arc::new(Port {
                media,
                completions,
                waker: waker.clone(),
            }),
            completed,
            under_way: 0,
        }
    }

    /// Queues a request that was checked.
    pub(super) fn submit(&mut self, request: Request<Buffer>) -> Submit<Buffer> {
        if self.under_way == UNDER_WAY {
            return Submit::Busy(request);
        }
        self.under_way += 1;
        self.pool.threads.shared.push(Job {
            port: Arc::clone(&self.port),
            request,
        });
        Submit::Pending
    }

    /// The next completion, if there is one.
    pub(super) fn poll(&mut self) -> Option<Completion<Buffer>> {
        if self.under_way == 0 {
            return None;
        }
        let completion = self.completed.try_recv().ok()?;
        self.under_way -= 1;
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nvmf_core::block::Extent;

    use super::super::testing::Worker;
    use super::*;

    /// Counts, and waits for a permit to end each operation.
    struct Gate {
        performed: AtomicUsize,
        permits: Mutex<usize>,
        changed: Condvar,
    }

    impl Gate {
        fn shut() -> Arc<Self> {
            Arc::new(Self {
                performed: AtomicUsize::new(0),
                permits: Mutex::new(0),
                changed: Condvar::new(),
            })
        }

        fn permit(&self, count: usize) {
            *self.permits.lock().unwrap() += count;
            self.changed.notify_all();
        }
    }

    impl Media for Gate {
        fn perform(&self, _: Op, _: Option<&mut Buffer>) -> Result<(), MediaError> {
            let permits = self.permits.lock().unwrap();
            *self.changed.wait_while(permits, |left| *left == 0).unwrap() -= 1;
            self.performed.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn request(tag: u64) -> Request<Buffer> {
        Request {
            tag,
            op: Op::Verify(Extent { byte: 0, len: 0 }),
            buffer: Some(Buffer::zeroed(512)),
        }
    }

    #[test]
    fn a_full_handle_is_busy_until_a_completion_and_others_are_not() {
        let pool = Pool::new(2).unwrap();
        let gate = Gate::shut();
        let worker = Worker::new();
        let mut handle = Handle::new(&pool, gate.clone(), &worker.waker);
        let mut other = Handle::new(&pool, gate.clone(), &worker.waker);
        for tag in 0..UNDER_WAY as u64 {
            assert!(matches!(handle.submit(request(tag)), Submit::Pending));
        }
        let Submit::Busy(refused) = handle.submit(request(999)) else {
            panic!("a full handle accepted more");
        };
        assert_eq!(refused.tag, 999);
        assert!(refused.buffer.is_some(), "it comes back whole");
        assert!(handle.poll().is_none());
        gate.permit(1);
        let first = worker.wait(|| handle.poll());
        assert!(
            first.tag < 2,
            "one of the two that were taken: {}",
            first.tag
        );
        assert!(matches!(handle.submit(refused), Submit::Pending));
        assert!(matches!(other.submit(request(0)), Submit::Pending));
        gate.permit(UNDER_WAY + 1);
        for _ in 0..UNDER_WAY {
            worker.wait(|| handle.poll());
        }
        worker.wait(|| other.poll());
        assert_eq!(gate.performed.load(Ordering::Relaxed), UNDER_WAY + 2);
        assert!(handle.poll().is_none());
    }

    #[test]
    fn what_is_queued_is_finished_when_all_let_go() {
        let pool = Pool::new(2).unwrap();
        let gate = Gate::shut();
        let worker = Worker::new();
        let mut handle = Handle::new(&pool, gate.clone(), &worker.waker);
        for tag in 0..50 {
            assert!(matches!(handle.submit(request(tag)), Submit::Pending));
        }
        drop(pool);
        gate.permit(50);
        drop(handle);
        assert_eq!(gate.performed.load(Ordering::Relaxed), 50);
    }
}
