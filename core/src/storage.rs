//! Where per-command state lives: arrays whose size is fixed at compile time on
//! a microcontroller, and grows with what a host asked for on a server.

use core::ops::{Deref, DerefMut};

/// A family of arrays.
pub trait Storage {
    /// An array of this family.
    type Array<T>: AsRef<[T]> + AsMut<[T]>;

    /// A value apart from the rest: on the heap, where there is one.
    type Apart<T>: Deref<Target = T> + DerefMut;

    /// Puts a value apart.
    fn apart<T>(value: T) -> Self::Apart<T>;

    /// An array as long as it is before anything is known of the peer.
    fn new<T>(init: impl FnMut(usize) -> T) -> Self::Array<T>;

    /// Makes the array at least `len` long if it can; `init` gets the index of each new element.
    fn grow<T>(array: &mut Self::Array<T>, len: usize, init: impl FnMut(usize) -> T);
}

/// A value that is where its owner is, for want of another place.
#[derive(Debug)]
pub struct InPlace<T>(T);

impl<T> Deref for InPlace<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for InPlace<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Arrays of `N` elements, in place.
#[derive(Debug)]
pub struct Fixed<const N: usize>;

impl<const N: usize> Storage for Fixed<N> {
    type Array<T> = [T; N];
    type Apart<T> = InPlace<T>;

    fn apart<T>(value: T) -> InPlace<T> {
        InPlace(value)
    }

    fn new<T>(init: impl FnMut(usize) -> T) -> [T; N] {
        core::array::from_fn(init)
    }

    fn grow<T>(_: &mut [T; N], _: usize, _: impl FnMut(usize) -> T) {}
}

/// A first-in first-out list of array indices, linked through the elements
/// themselves, so that it can never overflow. An index is in one list at most.
#[derive(Debug)]
pub(crate) struct Fifo {
    head: u16,
    tail: u16,
}

/// The end of a list.
pub(crate) const NIL: u16 = u16::MAX;

/// An element that can be in a [`Fifo`].
pub(crate) trait Link {
    fn next(&mut self) -> &mut u16;
}

impl Fifo {
    pub(crate) const fn new() -> Self {
        Self {
            head: NIL,
            tail: NIL,
        }
    }

    pub(crate) const fn first(&self) -> Option<u16> {
        if self.head == NIL {
            None
        } else {
            Some(self.head)
        }
    }

    pub(crate) fn push(&mut self, array: &mut [impl Link], index: u16) {
        let Some(element) = array.get_mut(usize::from(index)) else {
            return;
        };
        *element.next() = NIL;
        match array.get_mut(usize::from(self.tail)) {
            Some(last) if self.head != NIL => *last.next() = index,
            _ => self.head = index,
        }
        self.tail = index;
    }

    pub(crate) fn pop(&mut self, array: &mut [impl Link]) -> Option<u16> {
        let index = self.first()?;
        self.head = *array.get_mut(usize::from(index))?.next();
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fifo, Link};

    struct Element(u16);

    impl Link for Element {
        fn next(&mut self) -> &mut u16 {
            &mut self.0
        }
    }

    #[test]
    fn keeps_order_and_empties() {
        let mut array: [Element; 4] = core::array::from_fn(|_| Element(0));
        let mut list = Fifo::new();
        assert_eq!(list.pop(&mut array), None);
        for round in 0..3 {
            for i in [2, 0, 3, 1] {
                list.push(&mut array, i);
            }
            for i in [2, 0, 3, 1] {
                assert_eq!(list.pop(&mut array), Some(i), "round {round}");
            }
            assert_eq!(list.first(), None);
        }
        list.push(&mut array, 9);
        assert_eq!(list.first(), None, "an index out of range is not listed");
    }
}
