//! One `sendmsg` out of several places.
use std::io::IoSlice;
use std::os::fd::AsFd;

use heapless::Vec;
use rustix::io;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::mapping::Lent;

/// Parts of one message, in order: bytes of ours, and bytes lent by devices.
#[derive(Default)]
pub struct Gather<'a, const PARTS: usize = 64> {
    parts: Vec<IoSlice<'a>, PARTS>,
    bytes: usize,
}

impl<'a, const PARTS: usize> Gather<'a, PARTS> {
    /// Nothing to send.
    #[must_use]
    pub fn new() -> Self {
        Self {
            parts: Vec::new(),
            bytes: 0,
        }
    }

    /// Appends `bytes`; false when there is no room for another part.
    #[must_use]
    pub fn push(&mut self, bytes: &'a [u8]) -> bool {
        self.append(IoSlice::new(bytes), bytes.len())
    }

    /// Appends memory of a device; false when there is no room for another part.
    #[must_use]
    pub fn push_lent(&mut self, lent: Lent<'a>) -> bool {
        self.append(lent.io_slice(), lent.len())
    }

    /// Bytes to send.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Parts that may still be appended.
    #[must_use]
    pub fn room(&self) -> usize {
        PARTS - self.parts.len()
    }

    /// Offers it all to the kernel; how many bytes it took.
    ///
    /// # Errors
    /// Those of `sendmsg(2)`. SIGPIPE is never raised.
    pub fn send(&self, socket: impl AsFd, flags: SendFlags) -> io::Result<usize> {
        sendmsg(
            socket,
            &self.parts,
            &mut SendAncillaryBuffer::default(),
            flags | SendFlags::NOSIGNAL,
        )
    }

    fn append(&mut self, part: IoSlice<'a>, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        let fits = self.parts.push(part).is_ok();
        if fits {
            self.bytes += len;
        }
        fits
    }
}
