//! The buffers of commands, and where they are when no command has them.
use nvmf_core::rdma::capsule;
use nvmf_core::storage::Storage;

/// A command's buffer at the target: memory for data; or that in which a command
/// capsule was received, whose in-capsule data it begins with.
#[derive(Debug)]
pub struct Buffer<B> {
    pub(crate) memory: B,
    /// Where the data begins.
    start: usize,
    received_by: Option<u32>,
}

/// Bytes of a command capsule before its data.
const HEAD: usize = capsule::COMMAND as usize;

impl<B> Buffer<B> {
    /// For data.
    pub const fn for_data(memory: B) -> Self {
        Self {
            memory,
            start: 0,
            received_by: None,
        }
    }

    /// What a message was received in, by the connection of this tag.
    pub(crate) const fn received(memory: B, tag: u32) -> Self {
        Self {
            memory,
            start: HEAD,
            received_by: Some(tag),
        }
    }

    /// The memory, if it is for data; what a command was received in stays as it is.
    ///
    /// # Errors
    /// The buffer: [`Pool::give`] takes it.
    pub fn into_data(self) -> Result<B, Self> {
        match self.received_by {
            None => Ok(self.memory),
            Some(_) => Err(self),
        }
    }

    /// The connection that received a command in it, if it is not for data.
    pub(crate) const fn receiver(&self) -> Option<u32> {
        self.received_by
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Buffer<B> {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref().get(self.start..).unwrap_or(&[])
    }
}

impl<B: AsMut<[u8]>> AsMut<[u8]> for Buffer<B> {
    fn as_mut(&mut self) -> &mut [u8] {
        self.memory
            .as_mut()
            .get_mut(self.start..)
            .unwrap_or_default()
    }
}

/// A target's buffers that no command has.
///
/// What implements [`Backend`](nvmf_core::target::Backend) over RDMA has one: it
/// takes buffers for data from here, and gives all buffers back to here.
pub struct Pool<S: Storage, B> {
    data: Stack<S, B>,
    receives: Stack<S, Buffer<B>>,
}

impl<S: Storage, B> Default for Pool<S, B> {
    fn default() -> Self {
        Self {
            data: Stack::new(),
            receives: Stack::new(),
        }
    }
}

impl<S: Storage, B: AsRef<[u8]>> Pool<S, B> {
    /// Adds memory for data. All of it is of one length. It comes back if there is no place for it.
    pub fn add(&mut self, memory: B) -> Option<B> {
        self.data.push(memory)
    }

    /// A buffer for data, of `len` bytes at least.
    pub fn take(&mut self, len: u32) -> Option<Buffer<B>> {
        let long_enough = |memory: &B| memory.as_ref().len() >= len as usize;
        self.data.pop_if(long_enough).map(Buffer::for_data)
    }

    /// A command is done with a buffer.
    ///
    /// # Panics
    /// If there are more buffers than [`Pool::add`] took, and receives: the caller's fault.
    pub fn give(&mut self, buffer: Buffer<B>) {
        let kept = match buffer.receiver() {
            None => self.data.push(buffer.memory).is_none(),
            Some(_) => self.receives.push(buffer).is_none(),
        };
        assert!(kept, "a buffer that was not taken here");
    }

    /// Buffers for data that are free.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.data.count
    }

    /// What a command was received in, and may be received into again.
    pub(crate) fn take_received(&mut self) -> Option<Buffer<B>> {
        self.receives.pop()
    }
}

/// Last in, first out: what was used last is in the cache.
pub(crate) struct Stack<S: Storage, T> {
    places: S::Array<Option<T>>,
    count: usize,
}

impl<S: Storage, T> Stack<S, T> {
    pub(crate) fn new() -> Self {
        Self {
            places: S::new(|_| None),
            count: 0,
        }
    }

    /// It comes back if there is no place for it.
    pub(crate) fn push(&mut self, item: T) -> Option<T> {
        if self.count >= self.places.as_ref().len() {
            S::grow(&mut self.places, self.count + 1, |_| None);
        }
        match self.places.as_mut().get_mut(self.count) {
            Some(place) => {
                *place = Some(item);
                self.count += 1;
                None
            }
            None => Some(item),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_if(|_| true)
    }

    fn pop_if(&mut self, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let last = self.count.checked_sub(1)?;
        let place = self.places.as_mut().get_mut(last)?;
        if !place.as_ref().is_some_and(wanted) {
            return None;
        }
        self.count = last;
        place.take()
    }

    /// Takes the first item out of which something comes; what was last takes its place.
    pub(crate) fn take_first<U>(&mut self, mut of: impl FnMut(&T) -> Option<U>) -> Option<(T, U)> {
        let places = self.places.as_mut().get_mut(..self.count)?;
        let (at, found) = places
            .iter()
            .enumerate()
            .find_map(|(at, item)| Some((at, of(item.as_ref()?)?)))?;
        let last = self.count - 1;
        places.swap(at, last);
        let item = places.get_mut(last)?.take()?;
        self.count = last;
        Some((item, found))
    }

    pub(crate) const fn len(&self) -> usize {
        self.count
    }
}
