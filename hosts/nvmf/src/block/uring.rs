//! File I/O by io_uring: each worker has one ring, which its handles on files share, and another
//! for files whose device is polled.
//!
//! Requests are gathered as they are submitted, and handed to the kernel together when the
//! worker polls, which it does before each turn of its loop ends; whatever ended meanwhile, whoever's
//! it is, is taken in the same go. While the worker sleeps, the kernel writes to the event
//! that its [`Waker`] is made of, so a completion wakes it like any other event.
//!
//! A polled device does not interrupt: its completions are found when the worker looks, so a worker
//! that has any to come does not sleep.
//!
//! A handle belongs to the thread of its worker: the lock on the ring is never waited for.
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode};
use nvmf_core::block::{Op, Request, Submit};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::waker::Waker;
use rustix::io::Errno;

use self::ring::{Ended, Mode, Ring};
use super::file::Store;
use super::file::task::Task;

mod buffers;
pub(super) mod polling;
mod ring;

/// Requests that one handle may have under way.
pub(super) const UNDER_WAY: usize = 1024;

/// How long a handle that is dropped waits for what it has under way.
const PATIENCE: Duration = Duration::from_secs(30);

/// The rings of all workers. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Rings {
    /// A worker's ring lives as long as a handle on it.
    rings: Arc<Mutex<Vec<Weak<Mutex<Ring>>>>>,
    /// That memory could not be registered was said.
    complained: Arc<AtomicBool>,
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rings", lock(&self.rings).len())
    }
}

impl Rings {
    /// A worker's handle on a file, whose reads and writes are polled for if `polled`.
    ///
    /// # Errors
    /// Those of `io_uring_setup(2)` and `io_uring_register(2)`: no memory, too many files.
    pub(super) fn open(
        &self,
        store: &Arc<Store>,
        polled: bool,
        waker: &Waker,
    ) -> io::Result<Handle> {
        let polled = polled.then(|| self.port(store, waker, Mode::Polled));
        Ok(Handle {
            told: self.port(store, waker, Mode::Told)?,
            polled: polled.transpose()?,
        })
    }

    fn port(&self, store: &Arc<Store>, waker: &Waker, mode: Mode) -> io::Result<Port> {
        let mut rings = lock(&self.rings);
        rings.retain(|ring| ring.strong_count() > 0);
        let existing = rings
            .iter()
            .filter_map(Weak::upgrade)
            .find(|ring| lock(ring).is(waker, mode));
        let ring = match existing {
            Some(ring) => ring,
            None => {
                let ring = Ring::new(waker, mode, &self.complained)?;
                let ring = Arc::new(Mutex::new(ring));
                rings.push(Arc::downgrade(&ring));
                ring
            }
        };
        let number = lock(&ring).open(store);
        Ok(Port { ring, number })
    }
}

/// A worker's access to one file through its rings.
pub(super) struct Handle {
    told: Port,
    /// For reads and writes, if its device can be polled.
    polled: Option<Port>,
}

impl Handle {
    /// Takes a request that was checked.
    pub(super) fn submit(&mut self, request: Request<Buffer>) -> Submit<Buffer> {
        let port = match (&self.polled, request.op) {
            (Some(port), Op::Read(_) | Op::Write { fua: false, .. }) => port,
            _ => &self.told,
        };
        port.submit(request)
    }

    /// Starts what was submitted, on all handles of these rings; the next request of this one that
    /// ended, if there is one.
    pub(super) fn poll(&mut self) -> Option<Ended> {
        let polled = self.polled.as_ref().and_then(Port::poll);
        polled.or_else(|| self.told.poll())
    }

    /// Whether nothing but [`Handle::poll`] will tell of something that ends.
    pub(super) fn must_be_polled(&self) -> bool {
        let polled = self.polled.as_ref();
        polled.is_some_and(|port| lock(&port.ring).under_way(port.number) > 0)
    }

    /// Lets go of memory of buffers that were freed.
    pub(super) fn rest(&mut self) {
        for port in [Some(&self.told), self.polled.as_ref()]
            .into_iter()
            .flatten()
        {
            lock(&port.ring).rest();
        }
    }
}

/// A file's place in a ring.
struct Port {
    ring: Arc<Mutex<Ring>>,
    number: usize,
}

impl Port {
    fn submit(&self, request: Request<Buffer>) -> Submit<Buffer> {
        let mut ring = lock(&self.ring);
        if ring.under_way(self.number) == UNDER_WAY {
            return Submit::Busy(request);
        }
        ring.add(self.number, Task::new(request.op), request);
        Submit::Pending
    }

    fn poll(&self) -> Option<Ended> {
        let mut ring = lock(&self.ring);
        if let Some(ended) = ring.ended(self.number) {
            return Some(ended);
        }
        ring.turn();
        ring.ended(self.number)
    }
}

impl Drop for Port {
    /// What is under way is finished, if that takes no longer than [`PATIENCE`].
    fn drop(&mut self) {
        let mut ring = lock(&self.ring);
        let deadline = Instant::now() + PATIENCE;
        while ring.under_way(self.number) > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || ring.wait(left).is_err() {
                break;
            }
            while ring.ended(self.number).is_some() {}
        }
        ring.close(self.number);
    }
}

/// Why there is no io_uring.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// It was left out when the kernel was built, or the kernel is older than 5.1.
    #[error("the kernel has no io_uring")]
    Missing,
    /// An administrator does not want it.
    #[error("io_uring is switched off; see sysctl kernel.io_uring_disabled, which is {0}")]
    Disabled(String),
    /// A filter of system calls, or a security module, is in the way.
    #[error("io_uring is not permitted here; container runtimes forbid it by seccomp")]
    Forbidden,
    /// Before 5.6.
    #[error("the kernel's io_uring is too old; it takes Linux 5.6")]
    Old,
    /// Something else.
    #[error("io_uring fails: {0}")]
    Failed(io::Error),
}

/// Whether there is an io_uring that does what files need: tried with a ring that does nothing.
pub(super) fn probe() -> Result<(), Unavailable> {
    let mut ring = ring::build(2, Mode::Told).map_err(refused)?;
    let mut probe = Probe::new();
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    let known = ring.submitter().register_probe(&mut probe);
    if known.is_err() || !needed.into_iter().all(|code| probe.is_supported(code)) {
        return Err(Unavailable::Old);
    }
    enter_once(&mut ring).map_err(refused)
}

/// A system call filter may let rings be set up and not used.
fn enter_once(ring: &mut IoUring) -> io::Result<()> {
    ring.submitter().register_enable_rings()?;
    ring.submit().map(drop)
}

fn refused(error: io::Error) -> Unavailable {
    match Errno::from_io_error(&error) {
        Some(Errno::NOSYS) => Unavailable::Missing,
        Some(Errno::PERM | Errno::ACCESS) => {
            let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            match setting.as_deref().map(str::trim) {
                Ok(setting) if setting != "0" => Unavailable::Disabled(setting.to_owned()),
                _ => Unavailable::Forbidden,
            }
        }
        _ => Unavailable::Failed(error),
    }
}

/// Never poisoned with anything half done: what panics under the lock ends the worker.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn same_event(one: &Waker, other: &Waker) -> bool {
    one.as_fd().as_raw_fd() == other.as_fd().as_raw_fd()
}
