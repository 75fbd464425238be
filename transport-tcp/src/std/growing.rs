//! Per-command state on the heap.
use nvmf_core::storage::Storage;

/// Arrays that grow with the queue depth a host asked for.
#[derive(Debug)]
pub(super) struct Growing;

impl Storage for Growing {
    type Array<T> = Vec<T>;
    type Apart<T> = Box<T>;

    fn apart<T>(value: T) -> Box<T> {
        Box::new(value)
    }

    fn new<T>(init: impl FnMut(usize) -> T) -> Vec<T> {
        // Enough for a Connect, and for hosts that send something else first.
        (0..4).map(init).collect()
    }

    fn grow<T>(array: &mut Vec<T>, len: usize, init: impl FnMut(usize) -> T) {
        array.extend((array.len()..len).map(init));
    }
}
