//! Requests and memory, by libibverbs.
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nvmf_core::time::Instant;

use super::IbvVerbs;
use super::cm::lock;
use super::memory::{Buffer, Memory, Region, Registered};
use super::queues::Window;
use super::worker::{Lent, Qp, Worker};
use crate::verbs::{Access, Chain, Completion, Error, Key, Limits, Receiver, Remote, Verbs};

impl IbvVerbs {
    /// Readable when the queue was armed and something completed.
    pub fn with_fd<T>(&self, with: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        with(lock(&self.worker).cq.fd())
    }
}

impl Verbs for IbvVerbs {
    type Memory = Memory;
    type Region = Region;
    type Buffer = Buffer;
    type Qp = Qp;

    fn limits(&self) -> Limits {
        lock(&self.worker).limits
    }

    fn register(&mut self, memory: Memory, access: Access) -> Result<Region, (Memory, Error)> {
        let registered = Registered::new(&lock(&self.worker).domain, memory, access)?;
        Ok(Region::new(registered, access))
    }

    fn carve(&mut self, region: &mut Region, len: u32) -> Option<Buffer> {
        region.carve(len)
    }

    fn post_receive(
        &mut self,
        to: Receiver<Qp>,
        id: u64,
        buffer: Buffer,
    ) -> Result<(), (Buffer, Error)> {
        let of = match to {
            Receiver::Shared => None,
            Receiver::Of(qp) => Some(qp),
        };
        lock(&self.worker).post_receive(of, id, buffer)
    }

    fn lost_receives(&mut self) -> u32 {
        lock(&self.worker).lost_receives()
    }

    fn renew_receives(&mut self) -> Result<(), Error> {
        lock(&self.worker).renew_receives()
    }

    fn post(&mut self, qp: Qp, chain: Chain<Buffer>) -> Result<(), (Option<Buffer>, Error)> {
        let worker = &mut *lock(&self.worker);
        let domain = Arc::clone(&worker.domain);
        let Some(pair) = worker.qp(qp) else {
            return Err((chain.buffer, Error::NotConnected));
        };
        let posted = pair.post_chain(&domain, chain);
        if pair.torn {
            worker.hang_up(qp);
        }
        posted
    }

    fn lend(
        &mut self,
        qp: Qp,
        buffer: Buffer,
        len: u32,
        access: Access,
        key: Key,
    ) -> Result<Remote, (Buffer, Error)> {
        let worker = &mut *lock(&self.worker);
        if len > buffer.len || !buffer.access.permits(key, access) {
            return Err((buffer, Error::Invalid));
        }
        let address = buffer.address();
        let window = match key {
            Key::Region => None,
            Key::Window => match worker.bind(qp, &buffer, len, access) {
                Ok(window) => Some(window),
                Err(error) => return Err((buffer, error)),
            },
        };
        let key = match &window {
            Some(window) => window.key(),
            None => buffer.registered.rkey(),
        };
        worker.lent.insert((address, key), Lent { window, buffer });
        Ok(Remote { address, key })
    }

    fn reclaim(
        &mut self,
        _: Qp,
        remote: Remote,
        invalidated: bool,
        _: u64,
    ) -> Result<Option<Buffer>, Error> {
        let worker = &mut *lock(&self.worker);
        let name = (remote.address, remote.key);
        let Lent { window, buffer } = worker.lent.remove(&name).ok_or(Error::Invalid)?;
        if invalidated {
            worker.windows.extend(window);
        } else {
            // What may still be bound ends here, before anybody has its buffer. Peers that
            // are asked to invalidate do so, and this system call is left out.
            drop(window);
        }
        Ok(Some(buffer))
    }

    fn poll(&mut self, _: Instant) -> Option<Completion<Buffer>> {
        lock(&self.worker).poll()
    }

    fn arm(&mut self) -> Result<(), Error> {
        lock(&self.worker).cq.arm()
    }
}

impl Worker {
    fn bind(&mut self, qp: Qp, buffer: &Buffer, len: u32, access: Access) -> Result<Window, Error> {
        if !self.limits.windows {
            return Err(Error::Unsupported);
        }
        let domain = Arc::clone(&self.domain);
        let mut window = match self.windows.pop() {
            Some(window) => window,
            None => Window::new(&domain)?,
        };
        let pair = self.qp(qp).ok_or(Error::NotConnected)?;
        match pair.bind(&domain, &mut window, buffer, len, access) {
            Ok(()) => Ok(window),
            Err(error) => {
                self.windows.push(window);
                Err(error)
            }
        }
    }
}
