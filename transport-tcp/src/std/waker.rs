//! How other threads get the attention of a worker that may be asleep.
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

/// The worker runs: it will look at its devices before it sleeps.
const AWAKE: u8 = 0;
/// The worker sleeps in the kernel, or is about to.
const ASLEEP: u8 = 1;
/// There is something to look at, and whoever said so took care of the rest.
const CALLED: u8 = 2;

/// Wakes one worker. Clones wake the same one.
///
/// Calls are coalesced: a worker that is awake costs its callers no system
/// call, and a sleeping one costs the first caller a single write.
///
/// The worker registers [`Waker::as_fd`] with epoll for `EPOLLIN | EPOLLET`,
/// once, and never reads it: each write is a new edge. It then runs
///
/// ```text
/// loop {
///     handle events; poll devices;
///     let timeout = if busy || !waker.sleep() { 0 } else { until the next deadline };
///     epoll_wait(timeout);
///     waker.awake();
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Waker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: AtomicU8,
    event: OwnedFd,
}

impl Waker {
    /// A waker for a worker that is awake.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            inner: Arc::new(Inner {
                state: AtomicU8::new(AWAKE),
                event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            }),
        })
    }

    /// Makes the worker look at its devices; call it after what is to be seen is in place.
    pub fn wake(&self) {
        if self.inner.state.swap(CALLED, Ordering::AcqRel) == ASLEEP {
            // Fails only when 2^64-2 edges were never read, which takes centuries.
            let _ = io::write(&self.inner.event, &1u64.to_ne_bytes());
        }
    }

    /// By the worker, before it blocks: false when it must look at its devices first.
    #[must_use]
    pub fn sleep(&self) -> bool {
        let slept =
            self.inner
                .state
                .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        if slept.is_err() {
            // Not a plain store: what a call in between announced must be seen too.
            self.inner.state.swap(AWAKE, Ordering::AcqRel);
        }
        slept.is_ok()
    }

    /// By the worker, after it blocked or decided not to: callers need not write from now on.
    pub fn awake(&self) {
        self.inner.state.swap(AWAKE, Ordering::AcqRel);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use rustix::event::{Timespec, epoll};

    use super::*;

    fn registered(waker: &Waker) -> OwnedFd {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(
            &epoll,
            waker,
            epoll::EventData::new_u64(7),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )
        .unwrap();
        epoll
    }

    fn wait(epoll: &OwnedFd, timeout: Duration) -> usize {
        let mut events = Vec::with_capacity(4);
        let timeout = Timespec::try_from(timeout).unwrap();
        epoll::wait(
            epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&timeout),
        )
        .unwrap()
    }

    fn writes(waker: &Waker) -> u64 {
        let mut count = [0; 8];
        match io::read(waker, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(io::Errno::AGAIN) => 0,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_busy_worker_costs_no_system_call() {
        let waker = Waker::new().unwrap();
        for _ in 0..1000 {
            waker.wake();
        }
        assert_eq!(writes(&waker), 0);
        assert!(!waker.sleep(), "there is something to look at");
        assert!(waker.sleep(), "it was looked at");
    }

    #[test]
    fn a_sleeping_worker_costs_one() {
        let waker = Waker::new().unwrap();
        assert!(waker.sleep());
        for _ in 0..1000 {
            waker.wake();
        }
        assert_eq!(writes(&waker), 1);
    }

    #[test]
    fn every_sleep_has_its_own_edge_though_nothing_is_read() {
        let waker = Waker::new().unwrap();
        let epoll = registered(&waker);
        for _ in 0..3 {
            assert!(waker.sleep());
            waker.wake();
            assert_eq!(wait(&epoll, Duration::from_secs(10)), 1);
            waker.awake();
            assert_eq!(wait(&epoll, Duration::ZERO), 0);
        }
    }

    #[test]
    fn no_call_is_lost() {
        const MESSAGES: usize = 20_000;
        let waker = Waker::new().unwrap();
        let epoll = registered(&waker);
        let (sender, receiver) = mpsc::channel();
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (waker, sender) = (waker.clone(), sender.clone());
                thread::spawn(move || {
                    for message in 0..MESSAGES {
                        sender.send(message).unwrap();
                        waker.wake();
                    }
                })
            })
            .collect();
        let mut received = 0;
        while received < 2 * MESSAGES {
            received += receiver.try_iter().count();
            if received < 2 * MESSAGES && waker.sleep() {
                assert_ne!(wait(&epoll, Duration::from_secs(20)), 0, "at {received}");
                waker.awake();
            }
        }
        for caller in callers {
            caller.join().unwrap();
        }
    }
}
