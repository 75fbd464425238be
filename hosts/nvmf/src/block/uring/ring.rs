//! An io_uring of a worker's, and what is under way in it.
//!
//! A job owns its request, and with it the memory that the kernel moves data to and from. It has at
//! most one entry in the kernel, whose completion is the only thing that lets go of it.
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use io_uring::squeue::{self, Flags};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, opcode};
use nvmf_core::block::{Op, Request};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::waker::Waker;
use rustix::io::{Errno, ReadWriteFlags};
use slab::Slab;

use super::super::file::task::{Call, Failure, Task};
use super::super::file::{INLINE, Store};
use super::buffers::Buffers;
use super::same_event;

/// Entries that go to the kernel at a time. More would save system calls, but a device has nothing
/// to do while they are prepared: 16 cost a fifth of the reads that an SSD does 32 at a time.
const BATCH: usize = 4;
/// Entries that the kernel can be handed at a time: it may be slow to take them.
const SUBMISSIONS: u32 = 64;
/// Completions that the kernel can leave in the ring. It keeps what is more, at a price.
const COMPLETIONS: u32 = 2048;
/// Files that are registered; more are used by their descriptors.
const FILES: u32 = 1024;
/// Times that a turn enters the kernel before others have theirs.
const ROUNDS: usize = 64;

/// A request and how it ended.
pub(super) type Ended = (Request<Buffer>, Result<(), Failure>);

/// How a ring learns what its devices finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// They interrupt.
    Told,
    /// Each turn looks. Only for reads and writes, of files that can be polled.
    Polled,
}

pub(super) struct Ring {
    uring: IoUring,
    mode: Mode,
    waker: Waker,
    /// The thread that enters the kernel for it is known.
    enabled: bool,
    buffers: Buffers,
    jobs: Slab<Job>,
    /// Jobs whose next call is to be made.
    fresh: VecDeque<usize>,
    /// Jobs whose memory the kernel may be using.
    lent: usize,
    ports: Slab<Port>,
    completed: Vec<(usize, i32)>,
}

struct Job {
    port: usize,
    task: Task,
    request: Request<Buffer>,
    /// The number of the buffer's memory, if it is registered.
    number: Option<u16>,
}

/// A handle's part of the ring.
struct Port {
    store: Arc<Store>,
    /// The file's number among those that are registered.
    registered: Option<i32>,
    /// Nobody waits for its completions any more.
    closed: bool,
    under_way: usize,
    ended: VecDeque<Ended>,
}

/// A ring that is not enabled yet: whichever thread does that is the one to use it.
pub(super) fn build(submissions: u32, mode: Mode) -> io::Result<IoUring> {
    let build = |choose: fn(&mut Builder)| {
        let mut builder = IoUring::builder();
        if mode == Mode::Polled {
            builder.setup_iopoll();
        }
        builder
            .dontfork()
            .setup_clamp()
            .setup_cqsize(submissions * (COMPLETIONS / SUBMISSIONS))
            .setup_r_disabled();
        choose(&mut builder);
        builder.build(submissions)
    };
    // Completions are worked on when the worker asks for them, and interrupt nothing: Linux 6.1;
    // at its next system call: 5.19; R_DISABLED: 5.10.
    build(|builder| {
        builder
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag();
    })
    .or_else(|_| {
        build(|builder| {
            builder
                .setup_submit_all()
                .setup_coop_taskrun()
                .setup_taskrun_flag();
        })
    })
    .or_else(|_| build(|_| {}))
}

impl Ring {
    /// A ring of the worker that `waker` wakes; completions wake it if it is told of them. Of memory
    /// that could not be registered, one ring of those that share `complained` complains once.
    pub(super) fn new(waker: &Waker, mode: Mode, complained: &Arc<AtomicBool>) -> io::Result<Self> {
        let uring = build(SUBMISSIONS, mode)?;
        if mode == Mode::Told {
            let event = waker.as_fd().as_raw_fd();
            uring.submitter().register_eventfd(event)?;
        }
        // Since 5.19. Files work without, a little slower.
        let _ = uring.submitter().register_files_sparse(FILES);
        Ok(Self {
            buffers: Buffers::new(&uring, complained),
            uring,
            mode,
            waker: waker.clone(),
            enabled: false,
            jobs: Slab::new(),
            fresh: VecDeque::new(),
            lent: 0,
            ports: Slab::new(),
            completed: Vec::new(),
        })
    }

    /// Whether it is this one of the worker that `waker` wakes.
    pub(super) fn is(&self, waker: &Waker, mode: Mode) -> bool {
        self.mode == mode && same_event(&self.waker, waker)
    }

    /// Lets go of memory of buffers that were freed.
    pub(super) fn rest(&mut self) {
        self.buffers.forget_freed(&self.uring);
    }

    /// A port to the file.
    pub(super) fn open(&mut self, store: &Arc<Store>) -> usize {
        let entry = self.ports.vacant_entry();
        let port = entry.key();
        let registered = u32::try_from(port).ok().filter(|&slot| slot < FILES);
        let registered = registered.filter(|&slot| {
            let file = [store.file.as_raw_fd()];
            let updated = self.uring.submitter().register_files_update(slot, &file);
            updated.is_ok_and(|count| count == 1)
        });
        entry.insert(Port {
            store: Arc::clone(store),
            registered: registered.map(u32::cast_signed),
            closed: false,
            under_way: 0,
            ended: VecDeque::new(),
        });
        port
    }

    /// Gives a port up. What it has under way is dropped as it ends.
    pub(super) fn close(&mut self, port: usize) {
        if let Some(closing) = self.ports.get_mut(port) {
            closing.closed = true;
            closing.under_way -= closing.ended.len();
            closing.ended.clear();
        }
        self.remove_if_done(port);
    }

    /// Requests of a port that have not ended, or whose end was not asked for.
    pub(super) fn under_way(&self, port: usize) -> usize {
        self.ports.get(port).map_or(0, |port| port.under_way)
    }

    /// Takes a request. Its first call is made by the next [`Ring::turn`], or with a batch of others.
    pub(super) fn add(&mut self, port: usize, task: Task, mut request: Request<Buffer>) {
        let Some(place) = self.ports.get_mut(port) else {
            return;
        };
        place.under_way += 1;
        let number = match (request.op, &mut request.buffer) {
            (Op::Read(_) | Op::Write { .. }, Some(buffer)) if place.store.fixed => {
                self.buffers.number(&self.uring, buffer)
            }
            _ => None,
        };
        let job = self.jobs.insert(Job {
            port,
            task,
            request,
            number,
        });
        self.fresh.push_back(job);
        if self.fresh.len() == BATCH {
            self.enable();
            self.fill();
            // What it does not take now, it is offered again.
            let _ = self.enter();
        }
    }

    /// The next request of a port that is known to have ended.
    pub(super) fn ended(&mut self, port: usize) -> Option<Ended> {
        let port = self.ports.get_mut(port)?;
        let ended = port.ended.pop_front()?;
        port.under_way -= 1;
        Some(ended)
    }

    /// Makes the calls that are due, and learns what ended.
    pub(super) fn turn(&mut self) {
        self.enable();
        match self.mode {
            Mode::Told => self.listen(),
            Mode::Polled => self.look(),
        }
    }

    fn look(&mut self) {
        for _ in 0..ROUNDS {
            self.fill();
            if self.lent == 0 || !self.enter() {
                return;
            }
            self.reap();
            if self.fresh.is_empty() {
                return;
            }
        }
    }

    fn listen(&mut self) {
        // While it looks it need not be told.
        self.uring.completion().disable_eventfd();
        for _ in 0..ROUNDS {
            self.fill();
            if self.must_enter() {
                if !self.enter() {
                    break;
                }
            } else if self.uring.completion().is_empty() {
                self.uring.completion().enable_eventfd();
                // What ended before that, it was not told.
                if !self.must_enter() && self.uring.completion().is_empty() {
                    return;
                }
                self.uring.completion().disable_eventfd();
            }
            self.reap();
        }
        self.uring.completion().enable_eventfd();
        self.waker.wake();
    }

    /// Makes the calls that are due, and waits until something ends.
    ///
    /// # Errors
    /// `ETIME` after a while; others if it is for another thread to do.
    pub(super) fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        self.enable();
        if self.mode == Mode::Polled {
            // The kernel would not heed the time.
            self.look();
            return Ok(());
        }
        self.fill();
        let timeout = Timespec::from(at_most);
        let arguments = SubmitArgs::new().timespec(&timeout);
        match self.uring.submitter().submit_with_args(1, &arguments) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        self.reap();
        Ok(())
    }

    /// Makes it the ring of the thread that runs.
    fn enable(&mut self) {
        if !self.enabled {
            self.enabled = true;
            if let Err(error) = self.uring.submitter().register_enable_rings() {
                panic!("io_uring_register: {error}");
            }
        }
    }

    /// Writes the entries of a batch of fresh jobs, as far as there is room.
    fn fill(&mut self) {
        let mut submission = self.uring.submission();
        while submission.len() < BATCH
            && let Some(&key) = self.fresh.front()
        {
            let Some(job) = self.jobs.get_mut(key) else {
                self.fresh.pop_front();
                continue;
            };
            let entry = job.entry(&self.ports[job.port]).user_data(key as u64);
            // SAFETY: the memory that the entry names is on the heap and belongs to the job's request
            // or task. The job stays in `jobs`, and nobody touches that memory, until `returned`
            // takes the completion with this key; a ring that is dropped before forgets its jobs.
            // The file is open, or registered, for as long as its port is there.
            if unsafe { submission.push(&entry) }.is_err() {
                return;
            }
            self.fresh.pop_front();
            self.lent += 1;
        }
    }

    /// Whether the kernel has to be asked to do something.
    fn must_enter(&mut self) -> bool {
        let submission = self.uring.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    /// False if it is of no use now.
    fn enter(&mut self) -> bool {
        let Err(error) = self.uring.submit() else {
            return true;
        };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => true,
            Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                self.reap();
                false
            }
            // All else is a fault of ours, and would come again at once.
            _ => panic!("io_uring_enter: {error}"),
        }
    }

    fn reap(&mut self) {
        let mut completed = mem::take(&mut self.completed);
        completed.extend(self.uring.completion().map(|entry| {
            let key = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            (key, entry.result())
        }));
        for (key, result) in completed.drain(..) {
            self.returned(key, result);
        }
        self.completed = completed;
    }

    /// A job's call returned: the kernel lets go of its memory.
    fn returned(&mut self, key: usize, result: i32) {
        let Some(job) = self.jobs.get_mut(key) else {
            return;
        };
        self.lent -= 1;
        let returned =
            usize::try_from(result).map_err(|_| Errno::from_raw_os_error(result.wrapping_neg()));
        match job.task.called(job.request.buffer.as_ref(), returned) {
            None => self.fresh.push_back(key),
            Some(outcome) => {
                let job = self.jobs.remove(key);
                let port = &mut self.ports[job.port];
                if port.closed {
                    port.under_way -= 1;
                    self.remove_if_done(job.port);
                } else {
                    port.ended.push_back((job.request, outcome));
                }
            }
        }
    }

    fn remove_if_done(&mut self, key: usize) {
        if let Some(port) = self.ports.get(key)
            && port.closed
            && port.under_way == 0
        {
            let port = self.ports.remove(key);
            if let Some(slot) = port.registered {
                // Otherwise it is with the ring that the kernel lets go of the file.
                let slot = slot.cast_unsigned();
                let _ = self.uring.submitter().register_files_update(slot, &[-1]);
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.lent > 0 {
            tracing::error!(
                "{} operations on files do not end; their memory is lost",
                self.lent
            );
            mem::forget(mem::take(&mut self.jobs));
        }
    }
}

impl Job {
    /// The next call as an entry of the ring.
    fn entry(&mut self, port: &Port) -> squeue::Entry {
        let store = &port.store;
        let fd = Fd(port.registered.unwrap_or(store.file.as_raw_fd()));
        let mut flags = Flags::empty();
        flags.set(Flags::FIXED_FILE, port.registered.is_some());
        let call = self.task.next(store.device);
        if let Call::Read { into: part, .. } | Call::Write { from: part, .. } = call {
            // The worker does not copy that much itself.
            flags.set(Flags::ASYNC, !store.direct && part.len as u64 > INLINE);
        }
        let number = self.number;
        let mut memory = |part| {
            let payload = self.request.buffer.as_mut();
            // There is memory, or the request would have been refused.
            let bytes = self.task.memory(payload, part).unwrap_or_default();
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            (bytes.as_mut_ptr(), len)
        };
        let entry = match call {
            Call::Read { at, into } => {
                let (start, len) = memory(into);
                match number {
                    Some(number) => opcode::ReadFixed::new(fd, start, len, number)
                        .offset(at)
                        .build(),
                    None => opcode::Read::new(fd, start, len).offset(at).build(),
                }
            }
            Call::Write { at, from, dsync } => {
                let (start, len) = memory(from);
                let flags = match dsync {
                    true => ReadWriteFlags::DSYNC.bits().cast_signed(),
                    false => 0,
                };
                match number {
                    Some(number) => opcode::WriteFixed::new(fd, start, len, number)
                        .offset(at)
                        .rw_flags(flags)
                        .build(),
                    None => opcode::Write::new(fd, start, len)
                        .offset(at)
                        .rw_flags(flags)
                        .build(),
                }
            }
            Call::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Call::Allocate { mode, extent } => opcode::Fallocate::new(fd, extent.len)
                .offset(extent.byte)
                .mode(mode.bits().cast_signed())
                .build(),
            Call::Discard(_) => unreachable!("threads discard"),
        };
        entry.flags(flags)
    }
}
