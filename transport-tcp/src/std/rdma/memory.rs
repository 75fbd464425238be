//! A target's memory for data, which a worker has its device know as it is needed.
use nvmf_rdma::ibv::{Buffer, IbvVerbs};
use nvmf_rdma::verbs::{Access, Error};

use super::super::registered::{Buffers, CLASSES, Class};

/// Bytes that are registered at a time, at least.
const PIECE: usize = 1 << 20;

/// Buffers that no command has. Registering takes a system call and pins pages, so it is
/// done between commands ([`Data::grow`]), and what was registered is kept.
pub(super) struct Data {
    buffers: Buffers,
    /// A command found none of these.
    wanted: [bool; CLASSES],
    /// The largest, one of which there always is: so every command gets a buffer in the end.
    largest: Class,
    /// Bytes that may be registered.
    limit: usize,
}

impl Data {
    /// Registers a first buffer of `largest` bytes.
    ///
    /// # Errors
    /// The device, or the system's limit of locked memory, does not permit it.
    pub(super) fn new(verbs: &mut IbvVerbs, largest: usize, limit: usize) -> Result<Self, Error> {
        let largest = Class::of(largest).ok_or(Error::Invalid)?;
        let mut buffers = Buffers::new(Access::LOCAL, PIECE);
        // It is alone: it stays when all else is given back.
        buffers.add(verbs, largest)?;
        Ok(Self {
            buffers,
            wanted: [false; CLASSES],
            largest,
            limit,
        })
    }

    /// A buffer of at least `len` bytes: one that fits, or a longer one. Where none fits,
    /// more will be registered.
    pub(super) fn take(&mut self, len: usize) -> Option<Buffer> {
        let class = Class::of(len)?;
        self.wanted[class.index()] |= !self.buffers.has(class);
        self.buffers.take(class)
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buffer: Buffer) {
        self.buffers.give(buffer);
    }

    /// Registers what commands did not find. True if that was possible.
    pub(super) fn grow(&mut self, verbs: &mut IbvVerbs) -> bool {
        let mut grown = false;
        for class in Class::all() {
            let wanted = std::mem::take(&mut self.wanted[class.index()]);
            if !wanted || self.buffers.registered() + self.buffers.next(class) > self.limit {
                continue;
            }
            match self.buffers.grow(verbs, class) {
                Ok(()) => grown = true,
                Err(error) => {
                    tracing::warn!(%error, "cannot register more memory: commands wait for each other");
                    self.limit = self.buffers.registered();
                }
            }
        }
        grown
    }

    /// Gives all but one buffer back to the system. Every buffer must be here.
    pub(super) fn release(&mut self) {
        self.buffers.keep_one(self.largest);
    }
}
