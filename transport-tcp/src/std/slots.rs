//! A worker's connections, by a key that is never reused.

/// Names a connection for as long as its worker runs: an index, and how often
/// it was used before. Fits in 48 bits, so that a device operation's tag has
/// room for the command's slot below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key(u64);

const INDEX_BITS: u32 = 20;
const BITS: u32 = 48;

impl Key {
    /// The key as a number below 2^48.
    pub(super) fn get(self) -> u64 {
        self.0
    }

    /// The key of a number that [`Key::get`] gave.
    pub(super) fn from_u64(key: u64) -> Self {
        Self(key)
    }

    fn new(index: usize, generation: u64) -> Self {
        let generation = generation & ((1 << (BITS - INDEX_BITS)) - 1);
        Self(generation << INDEX_BITS | index as u64)
    }

    fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }
}

/// Values by [`Key`].
#[derive(Debug)]
pub(super) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u64,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// How many values there can be.
    pub(super) const CAPACITY: usize = 1 << INDEX_BITS;

    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Stores what `make` makes of its key; `None` when full.
    pub(super) fn insert(&mut self, make: impl FnOnce(Key) -> T) -> Option<Key> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() == Self::CAPACITY => return None,
            None => {
                self.entries.push(Entry {
                    generation: 0,
                    value: None,
                });
                self.entries.len() - 1
            }
        };
        let entry = &mut self.entries[index];
        let key = Key::new(index, entry.generation);
        entry.value = Some(make(key));
        Some(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index())?;
        if Key::new(key.index(), entry.generation) != key {
            return None;
        }
        entry.value.as_mut()
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        self.get_mut(key)?;
        let entry = &mut self.entries[key.index()];
        entry.generation += 1;
        self.free.push(key.index());
        entry.value.take()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The keys in use.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.iter().map(|(key, _)| key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| {
                let value = entry.value.as_ref()?;
                Some((Key::new(index, entry.generation), value))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_dies_with_its_value() {
        let mut slots = Slots::new();
        let a = slots.insert(|_| 'a').unwrap();
        let b = slots.insert(|_| 'b').unwrap();
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!(slots.remove(a), None);
        let c = slots.insert(|_| 'c').unwrap();
        assert_eq!(c.index(), a.index(), "the room is used again");
        assert_eq!(slots.get_mut(a), None);
        assert_eq!(slots.get_mut(c), Some(&mut 'c'));
        assert_eq!(slots.keys().collect::<Vec<_>>(), [c, b]);
        assert_eq!(slots.len(), 2);
    }

    #[test]
    fn keys_fit_below_a_slot_number() {
        let last = Key::new(Slots::<()>::CAPACITY - 1, u64::MAX);
        assert_eq!(last.get(), (1 << 48) - 1);
        assert_eq!(Key::from_u64(last.get()), last);
        assert_eq!(last.index(), Slots::<()>::CAPACITY - 1);
        assert_eq!(Key::new(0, 0).get(), 0);
    }
}
