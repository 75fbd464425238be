//! Buffers, and the regions that they are carved out of.
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;

use crate::verbs::{Access, Bytes};

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

impl Buffer {
    /// How many bytes only the owner reaches.
    fn own(&self) -> usize {
        if self.registration.access.is_remote() {
            0
        } else {
            self.bytes.len()
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.own()]
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        let own = self.own();
        &mut self.bytes[..own]
    }
}

impl Bytes for Buffer {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy_in(&mut self, at: usize, from: &[u8]) {
        let to = self.bytes.get_mut(at..).unwrap_or_default();
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }

    fn copy_out(&self, at: usize, to: &mut [u8]) {
        let from = self.bytes.get(at..).unwrap_or_default();
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
}
