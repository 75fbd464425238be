//! What a namespace is stored on.
//!
//! A device takes a [`Request`] by value, buffer included, and gives it back as
//! a [`Completion`]: whoever moves the bytes owns them meanwhile, be it a
//! thread, an io_uring or a DMA engine, and a request cannot complete twice.
use crate::time::Instant;

/// Size and abilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// log2 of the logical block size in bytes: 9 (512 B) to 16.
    pub block_shift: u8,
    /// Capacity in logical blocks.
    pub blocks: u64,
    /// Refuses everything that changes data.
    pub read_only: bool,
    /// Written data may sit in a volatile cache until [`Op::Flush`] or FUA.
    pub volatile_cache: bool,
    /// Deallocated blocks read back as zeroes.
    pub deallocate_zeroes: bool,
    /// Preferred granularity of writes and deallocation, in logical blocks (0: none).
    pub optimal_blocks: u32,
}

impl Geometry {
    /// Logical block size in bytes.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        1u32.wrapping_shl(self.block_shift as u32)
    }

    /// Capacity in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks << self.block_shift
    }
}

/// A range of a device in bytes, a multiple of its block size, and within it:
/// whoever builds a request has checked that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub byte: u64,
    /// Length in bytes.
    pub len: u64,
}

/// What a device is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill the first `len` bytes of the buffer.
    Read(Extent),
    /// Store the first `len` bytes of the buffer; durable at completion if `fua`.
    Write {
        /// Where to.
        extent: Extent,
        /// Force Unit Access.
        fua: bool,
    },
    /// Compare the stored bytes with the buffer; [`MediaError::Miscompare`] when they differ.
    Compare(Extent),
    /// Read and discard: find media errors. No buffer.
    Verify(Extent),
    /// Store zeroes. No buffer.
    WriteZeroes {
        /// Where to.
        extent: Extent,
        /// The space may be given back.
        deallocate: bool,
        /// Force Unit Access.
        fua: bool,
    },
    /// The data is no longer needed; what is read back is zeroes or the old data. No buffer.
    Deallocate(Extent),
    /// Make every completed write durable. No buffer.
    Flush,
}

/// An operation under way. `tag` comes back with the completion.
#[derive(Debug)]
pub struct Request<B> {
    /// Chosen by the submitter, opaque to the device.
    pub tag: u64,
    /// What to do.
    pub op: Op,
    /// The data, for operations that have some: at least as long as the extent.
    pub buffer: Option<B>,
}

impl<B> Request<B> {
    /// Ends the operation.
    pub fn complete(self, result: Result<(), MediaError>) -> Completion<B> {
        Completion {
            tag: self.tag,
            buffer: self.buffer,
            result,
        }
    }
}

/// An operation that ended.
#[derive(Debug)]
pub struct Completion<B> {
    /// The request's.
    pub tag: u64,
    /// The request's.
    pub buffer: Option<B>,
    /// How it went.
    pub result: Result<(), MediaError>,
}

/// What became of a request at submission.
#[derive(Debug)]
pub enum Submit<B> {
    /// Ended at once.
    Done(Completion<B>),
    /// [`BlockDevice::poll`] will return it.
    Pending,
    /// No room now: offer it again after a completion.
    Busy(Request<B>),
}

/// Why a device failed an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MediaError {
    /// The data could not be read.
    Read,
    /// The data could not be written.
    Write,
    /// The stored data differs from the buffer.
    Miscompare,
    /// No space is left behind a thin device.
    Full,
    /// The device is read-only.
    ReadOnly,
    /// The device does not do this.
    Unsupported,
    /// The device is not there now (card pulled, disk gone).
    NotReady,
}

/// A device that does what [`Request`]s say, without blocking its caller.
pub trait BlockDevice {
    /// Memory that data is moved to and from.
    type Buffer: AsRef<[u8]> + AsMut<[u8]>;

    /// Size and abilities; constant while the device is in use.
    fn geometry(&self) -> Geometry;

    /// Takes an operation. It may start no sooner than at the next [`BlockDevice::poll`], so that
    /// those of one turn start together.
    fn submit(&mut self, request: Request<Self::Buffer>) -> Submit<Self::Buffer>;

    /// Starts what waits to be started; the next operation that ended, if any.
    fn poll(&mut self) -> Option<Completion<Self::Buffer>>;

    /// When [`BlockDevice::poll`] should be called even if nothing wakes the binding.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// What [`Op::Write`] does, with data in memory that is only lent: done when this
    /// returns, or `None` if the device must keep the data for that.
    fn store(&mut self, extent: Extent, data: &[u8], fua: bool) -> Option<Result<(), MediaError>> {
        let _ = (extent, data, fua);
        None
    }

    /// Whether reads may be sent straight out of the device's own memory, which
    /// the binding then resolves without asking for [`Op::Read`].
    fn lends(&self) -> bool {
        false
    }
}
