//! Registered memory for data, at both ends: buffers by their size, of memory that is registered
//! in pieces which serve several.
use nvmf_rdma::ibv::{Buffer, IbvVerbs, Memory};
use nvmf_rdma::verbs::{Access, Bytes, Error, Verbs};

/// The smallest buffer, in bytes. Each class has buffers of twice the size of the one before.
const SMALLEST: usize = 4096;

/// Sizes of buffers: 4 KiB, 8 KiB, ... 16 MiB, which is what a keyed descriptor can say.
pub(super) const CLASSES: usize = 13;

/// Buffers that no command has.
pub(super) struct Buffers {
    free: [Vec<Buffer>; CLASSES],
    access: Access,
    /// Bytes that are registered at a time, unless one buffer is larger.
    piece: usize,
    registered: usize,
}

impl Buffers {
    pub(super) fn new(access: Access, piece: usize) -> Self {
        Self {
            free: Default::default(),
            access,
            piece,
            registered: 0,
        }
    }

    /// Bytes that are registered.
    pub(super) fn registered(&self) -> usize {
        self.registered
    }

    /// Bytes that one more call of [`Buffers::grow`] registers.
    pub(super) fn next(&self, class: Class) -> usize {
        class.len().max(self.piece)
    }

    pub(super) fn has(&self, class: Class) -> bool {
        !self.free[class.0].is_empty()
    }

    /// A buffer of this class; where there is none, a longer one does as well.
    pub(super) fn take(&mut self, class: Class) -> Option<Buffer> {
        self.free[class.0..].iter_mut().find_map(Vec::pop)
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buffer: Buffer) {
        if let Some(class) = Class::of(buffer.len()) {
            self.free[class.0].push(buffer);
        }
    }

    /// Registers a piece of memory for buffers of this class.
    ///
    /// # Errors
    /// There is no more, or the system lets no more be pinned.
    pub(super) fn grow(&mut self, verbs: &mut IbvVerbs, class: Class) -> Result<(), Error> {
        self.register(verbs, class, self.next(class))
    }

    /// Registers one buffer of this class by itself.
    ///
    /// # Errors
    /// As of [`Buffers::grow`].
    pub(super) fn add(&mut self, verbs: &mut IbvVerbs, class: Class) -> Result<(), Error> {
        self.register(verbs, class, class.len())
    }

    /// Gives all back to the system but one buffer of this class. Every buffer must be here.
    pub(super) fn keep_one(&mut self, class: Class) {
        let kept = self.free[class.0].pop();
        self.free = Default::default();
        self.registered = kept.as_ref().map_or(0, Bytes::len);
        self.free[class.0].extend(kept);
    }

    fn register(&mut self, verbs: &mut IbvVerbs, class: Class, bytes: usize) -> Result<(), Error> {
        let region = verbs.register(Memory::new(bytes)?, self.access);
        let mut region = region.map_err(|(_, error)| error)?;
        // 16 MiB at most.
        let len = class.len() as u32;
        while let Some(buffer) = verbs.carve(&mut region, len) {
            self.free[class.0].push(buffer);
        }
        self.registered += bytes;
        Ok(())
    }
}

/// How long a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(usize);

impl Class {
    /// All of them.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES).map(Self)
    }

    /// The shortest buffers with `len` bytes, if there are such.
    pub(super) fn of(len: usize) -> Option<Self> {
        let pages = len.max(1).div_ceil(SMALLEST).checked_next_power_of_two()?;
        let class = pages.trailing_zeros() as usize;
        (class < CLASSES).then_some(Self(class))
    }

    /// In bytes.
    pub(super) fn len(self) -> usize {
        SMALLEST << self.0
    }

    /// Which of [`CLASSES`].
    pub(super) fn index(self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_room_for_what_it_is_taken_for() {
        for (len, expected) in [
            (0, Some(0)),
            (1, Some(0)),
            (4096, Some(0)),
            (4097, Some(1)),
            (8192, Some(1)),
            (12_288, Some(2)),
            (1 << 20, Some(8)),
            (8 << 20, Some(11)),
            ((1 << 24) - 1, Some(CLASSES - 1)),
            ((1 << 24) + 1, None),
            (usize::MAX, None),
        ] {
            let class = Class::of(len);
            assert_eq!(class.map(Class::index), expected, "{len}");
            assert!(class.is_none_or(|class| class.len() >= len));
        }
        // It goes back to where it came from.
        for class in Class::all() {
            assert_eq!(Class::of(class.len()), Some(class));
        }
    }
}
