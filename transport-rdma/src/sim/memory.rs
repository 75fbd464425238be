//! Buffers, and the regions that they are carved out of.
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;

use crate::verbs::Access;

/// Registered memory that was not carved yet.
#[derive(Debug)]
pub struct Region {
    pub(super) rest: Vec<u8>,
    pub(super) address: u64,
    pub(super) registration: Rc<Registration>,
}

/// What a region's buffers have in common.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) node: usize,
    pub(super) key: u32,
    pub(super) access: Access,
}

/// A piece of registered memory.
#[derive(Debug)]
pub struct Buffer {
    pub(super) bytes: Box<[u8]>,
    pub(super) address: u64,
    pub(super) registration: Rc<Registration>,
}

impl Region {
    pub(super) fn carve(&mut self, len: usize) -> Option<Buffer> {
        // From the end: what is left is not moved.
        let left = self.rest.len().checked_sub(len)?;
        let bytes = self.rest.split_off(left).into_boxed_slice();
        Some(Buffer {
            bytes,
            address: self.address + left as u64,
            registration: Rc::clone(&self.registration),
        })
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
