//! Registered memory for data, which a worker has its device know as it is needed.
use nvmf_rdma::ibv::{Buffer, IbvVerbs, Memory};
use nvmf_rdma::verbs::{Access, Error, Verbs};

/// The smallest buffer, in bytes.
const SMALLEST: usize = 4096;
/// Sizes of buffers: 4 KiB, 8 KiB, ... 8 MiB.
const CLASSES: usize = 12;
/// Bytes that are registered at a time, at least.
const CHUNK: usize = 1 << 20;

/// Buffers that no command has. Registering takes a system call and pins pages, so it is
/// done between commands ([`Data::grow`]), and what was registered is kept.
pub(super) struct Data {
    free: [Vec<Buffer>; CLASSES],
    /// A command found none of these.
    wanted: [bool; CLASSES],
    /// The largest, one of which there always is: so every command gets a buffer in the end.
    largest: usize,
    registered: usize,
    /// Bytes that may be registered.
    limit: usize,
}

impl Data {
    /// Registers a first buffer of `largest` bytes.
    ///
    /// # Errors
    /// The device, or the system's limit of locked memory, does not permit it.
    pub(super) fn new(verbs: &mut IbvVerbs, largest: usize, limit: usize) -> Result<Self, Error> {
        let largest = class_of(largest).unwrap_or(CLASSES - 1);
        let mut data = Self {
            free: Default::default(),
            wanted: [false; CLASSES],
            largest,
            registered: 0,
            limit,
        };
        data.register(verbs, largest)?;
        Ok(data)
    }

    /// A buffer of at least `len` bytes: one that fits, or a longer one. Where none fits,
    /// more will be registered.
    pub(super) fn take(&mut self, len: usize) -> Option<Buffer> {
        let class = class_of(len)?;
        self.wanted[class] |= self.free[class].is_empty();
        self.free[class..].iter_mut().find_map(Vec::pop)
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buffer: Buffer) {
        let class = class_of(buffer.as_ref().len());
        if let Some(free) = class.and_then(|class| self.free.get_mut(class)) {
            free.push(buffer);
        }
    }

    /// Registers what commands did not find. True if that was possible.
    pub(super) fn grow(&mut self, verbs: &mut IbvVerbs) -> bool {
        let mut grown = false;
        for class in 0..CLASSES {
            if std::mem::take(&mut self.wanted[class]) {
                match self.register(verbs, class) {
                    Ok(more) => grown |= more,
                    Err(error) => {
                        tracing::warn!(%error, "cannot register more memory: commands wait for each other");
                        self.limit = self.registered;
                    }
                }
            }
        }
        grown
    }

    /// Gives all but one buffer back to the system. Every buffer must be here.
    pub(super) fn release(&mut self) {
        let kept = self.free[self.largest].pop();
        self.free = Default::default();
        self.registered = kept.as_ref().map_or(0, |buffer| buffer.as_ref().len());
        self.free[self.largest].extend(kept);
    }

    fn register(&mut self, verbs: &mut IbvVerbs, class: usize) -> Result<bool, Error> {
        let len = SMALLEST << class;
        // The first one is alone: it stays when all else is given back.
        let bytes = if self.registered == 0 {
            len
        } else {
            len.max(CHUNK)
        };
        if self.registered > 0 && self.registered + bytes > self.limit {
            return Ok(false);
        }
        let memory = Memory::new(bytes);
        let mut region = verbs
            .register(memory, Access::LOCAL)
            .map_err(|(_, error)| error)?;
        let pieces = u32::try_from(len).unwrap_or(u32::MAX);
        while let Some(buffer) = verbs.carve(&mut region, pieces) {
            self.free[class].push(buffer);
        }
        self.registered += bytes;
        Ok(true)
    }
}

/// The class whose buffers are the shortest with `len` bytes.
fn class_of(len: usize) -> Option<usize> {
    let class = len.div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        for (len, class) in [
            (0, Some(0)),
            (1, Some(0)),
            (4096, Some(0)),
            (4097, Some(1)),
            (1 << 20, Some(8)),
            (8 << 20, Some(CLASSES - 1)),
            ((8 << 20) + 1, None),
        ] {
            assert_eq!(class_of(len), class, "{len}");
        }
    }
}
