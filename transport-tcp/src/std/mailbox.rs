//! What other threads tell a worker, or any thread that sleeps in epoll.
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nvmf_core::target::ControllerState;

use super::connection::Connection;
use super::waker::Waker;

/// News for a worker.
pub(super) enum Message {
    /// A connection was accepted by the listener of this index.
    Accepted(TcpStream, usize),
    /// A connection moves here.
    Moved(Box<Connection>),
    /// A controller's epoch ended: its queues must look.
    ControllerChanged(Arc<ControllerState>),
    /// Finish what is under way, close, and return.
    Stop,
}

/// A thread's mailbox. Putting something in wakes it.
pub(super) struct Mailbox<M = Message> {
    messages: Mutex<Vec<M>>,
    /// Spares the thread the lock when there is nothing.
    full: AtomicBool,
    waker: Waker,
}

impl<M> Mailbox<M> {
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            messages: Mutex::new(Vec::new()),
            full: AtomicBool::new(false),
            waker: Waker::new()?,
        })
    }

    /// The thread's waker, for its devices too.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(super) fn put(&self, message: M) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        self.full.store(true, Ordering::Release);
        drop(messages);
        self.waker.wake();
    }

    /// All messages there are, in order.
    pub(super) fn take(&self) -> Vec<M> {
        if !self.full.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.full.store(false, Ordering::Release);
        std::mem::take(&mut messages)
    }
}
