//! Where namespaces keep their data: RAM, nothing at all, files, block devices.
//!
//! | kind | reads | writes | blocks its worker |
//! |---|---|---|---|
//! | [`ram`] | lent in place | copied | never; large deallocations go to the pool |
//! | [`null`] | zeroes, lent | vanish | never |
//! | [`file`] | direct I/O where it can be | direct I/O where it can be | never: the pool does it |
//!
//! A worker opens its own handle on each namespace. System calls that may block
//! are made by the threads of one [`pool`], which all handles share.
use nvmf_core::block::{Extent, Geometry, MediaError, Op, Request};
use nvmf_tcp::std::buffer::Buffer;

pub mod null;
pub mod pool;
pub mod ram;

#[cfg(test)]
mod testing;

/// Refuses what the geometry does not allow. Whoever builds requests has checked
/// all this; a mistake there must not become a write beyond the end.
fn check(geometry: &Geometry, request: &Request<Buffer>) -> Result<(), MediaError> {
    let (extent, error, data) = match request.op {
        Op::Read(extent) | Op::Compare(extent) => (extent, MediaError::Read, true),
        Op::Verify(extent) => (extent, MediaError::Read, false),
        Op::Write { extent, .. } => (extent, MediaError::Write, true),
        Op::WriteZeroes { extent, .. } | Op::Deallocate(extent) => {
            (extent, MediaError::Write, false)
        }
        Op::Flush => return Ok(()),
    };
    if geometry.read_only && matches!(error, MediaError::Write) {
        return Err(MediaError::ReadOnly);
    }
    let end = extent.byte.checked_add(extent.len).ok_or(error)?;
    let mask = u64::from(geometry.block_size()) - 1;
    if end > geometry.bytes() || (extent.byte | extent.len) & mask != 0 {
        return Err(error);
    }
    if data {
        let buffer = request.buffer.as_ref().ok_or(error)?;
        usize::try_from(extent.len)
            .ok()
            .filter(|&len| len <= buffer.as_ref().len())
            .ok_or(error)?;
    }
    Ok(())
}

/// The first `extent.len` bytes of a buffer that [`check`] found long enough.
fn payload(buffer: Option<&mut Buffer>, extent: Extent) -> Option<&mut [u8]> {
    let len = usize::try_from(extent.len).ok()?;
    buffer?.as_mut().get_mut(..len)
}
