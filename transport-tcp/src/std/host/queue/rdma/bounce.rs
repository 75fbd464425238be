//! Memory that a queue's device knows, for data on its way from and to plain memory.
//!
//! It is registered when commands first need it, in pieces that serve several, and stays until
//! the queue is dropped: as much as the most that was under way at a time.
use nvmf_rdma::ibv::{Buffer, IbvVerbs, Memory};
use nvmf_rdma::verbs::{Access, Key, Verbs};

/// The smallest buffer, in bytes. Each class has buffers of twice the size of the one before.
const SMALLEST: usize = 4096;

/// Up to 16 MiB, which is what a keyed descriptor can say.
const CLASSES: usize = 13;

/// Bytes that are registered at a time, unless one buffer is larger.
const REGION: usize = 256 * 1024;

/// Buffers that no command has, by class.
pub(super) struct Bounce {
    free: [Vec<Buffer>; CLASSES],
    access: Access,
}

impl Bounce {
    /// Of memory that is lent by this key.
    pub(super) fn new(key: Key) -> Self {
        Self {
            free: Default::default(),
            access: Access::lent_by(key),
        }
    }

    /// A buffer of `len` bytes or more. `None`: the system lets no more memory be registered.
    pub(super) fn take(&mut self, verbs: &mut IbvVerbs, len: u32) -> Option<Buffer> {
        let class = class(len as usize);
        if self.free.get(class)?.is_empty() {
            self.grow(verbs, class);
        }
        // If there is no more, a larger one does as well.
        self.free[class..].iter_mut().find_map(Vec::pop)
    }

    /// A command is done with it.
    pub(super) fn give(&mut self, buffer: Option<Buffer>) {
        if let Some(buffer) = buffer {
            self.free[class(buffer.as_ref().len())].push(buffer);
        }
    }

    fn grow(&mut self, verbs: &mut IbvVerbs, class: usize) {
        let size = SMALLEST << class;
        match verbs.register(Memory::new(size.max(REGION)), self.access) {
            Ok(mut region) => {
                // 16 MiB at most.
                while let Some(buffer) = verbs.carve(&mut region, size as u32) {
                    self.free[class].push(buffer);
                }
            }
            Err((_, error)) => tracing::debug!(%error, size, "memory cannot be registered"),
        }
    }
}

/// The class of buffers for `len` bytes.
fn class(len: usize) -> usize {
    let pages = len.max(1).div_ceil(SMALLEST).next_power_of_two();
    pages.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_room_for_what_it_is_taken_for() {
        for (len, expected) in [
            (1, 0),
            (4096, 0),
            (4097, 1),
            (8192, 1),
            (12_288, 2),
            (1 << 20, 8),
            ((1 << 24) - 1, CLASSES - 1),
        ] {
            assert_eq!(class(len), expected, "{len}");
            assert!(SMALLEST << class(len) >= len);
        }
        // It goes back to where it came from.
        for index in 0..CLASSES {
            assert_eq!(class(SMALLEST << index), index);
        }
    }
}
