//! Buffers for data under way: the caller's memory, lent to one command at a time.
use nvmf_core::target::BufferUse;

/// Memory for the data of one command.
pub type Buffer<'a> = &'a mut [u8];

/// Buffers that may stay free for data that comes inside a capsule.
const RESERVE: usize = 1;

/// The least number of buffers that a target can do with: the reserve, and one
/// each for a connection that hoards and one that does not.
pub const MIN_BUFFERS: usize = 3;

/// Buffers that no command has.
pub(super) struct Pool<'a> {
    places: &'a mut [Option<Buffer<'a>>],
    /// One came back since this was last asked.
    pub(super) freed: bool,
}

impl<'a> Pool<'a> {
    pub(super) fn new(places: &'a mut [Option<Buffer<'a>>]) -> Self {
        Self {
            places,
            freed: false,
        }
    }

    /// The smallest free buffer of at least `len` bytes, for a connection that
    /// holds `held` already.
    ///
    /// A connection that holds none is served in the end, whatever others hold
    /// on to: they leave two free, and the last is for what comes inside a capsule.
    pub(super) fn take(&mut self, len: usize, purpose: BufferUse, held: u16) -> Option<Buffer<'a>> {
        let free = self.places.iter().flatten().count();
        let leave = match purpose {
            BufferUse::InCapsule => 0,
            BufferUse::Transfer if held == 0 => RESERVE,
            BufferUse::Transfer => RESERVE + 1,
        };
        if free <= leave {
            return None;
        }
        self.places
            .iter_mut()
            .filter(|place| place.as_ref().is_some_and(|buffer| buffer.len() >= len))
            .min_by_key(|place| place.as_ref().map(|buffer| buffer.len()))
            .and_then(Option::take)
    }

    pub(super) fn give(&mut self, buffer: Buffer<'a>) {
        if let Some(place) = self.places.iter_mut().find(|place| place.is_none()) {
            *place = Some(buffer);
        }
        self.freed = true;
    }

    /// Bytes of the largest buffer.
    pub(super) fn largest(&self) -> usize {
        let lens = self.places.iter().flatten().map(|buffer| buffer.len());
        lens.max().unwrap_or(0)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_smallest_that_fits_and_leaves_some() {
        let mut memory = [[0; 100]; 5];
        let [a, b, c, d, e] = &mut memory;
        let mut places = [
            Some(&mut a[..]),
            Some(&mut b[..50]),
            Some(&mut c[..]),
            Some(&mut d[..50]),
            Some(&mut e[..70]),
        ];
        let mut pool = Pool::new(&mut places);
        assert_eq!((pool.largest(), pool.len()), (100, 5));
        assert!(pool.take(101, BufferUse::InCapsule, 0).is_none());
        let small = pool.take(10, BufferUse::Transfer, 0).unwrap();
        assert_eq!(small.len(), 50);
        assert_eq!(pool.take(51, BufferUse::Transfer, 1).unwrap().len(), 70);
        assert_eq!(pool.take(50, BufferUse::Transfer, 2).unwrap().len(), 50);
        assert!(pool.take(50, BufferUse::Transfer, 3).is_none(), "hoards");
        assert_eq!(pool.take(50, BufferUse::Transfer, 0).unwrap().len(), 100);
        assert!(pool.take(50, BufferUse::Transfer, 0).is_none(), "the last");
        assert_eq!(pool.take(50, BufferUse::InCapsule, 4).unwrap().len(), 100);
        assert!(pool.take(1, BufferUse::InCapsule, 0).is_none());
        assert!(!pool.freed);
        pool.give(small);
        assert!(pool.freed);
        assert_eq!(pool.take(1, BufferUse::InCapsule, 0).unwrap().len(), 50);
    }
}
