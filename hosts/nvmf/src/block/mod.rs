//! Where namespaces keep their data: RAM, nothing at all, files, block devices.
//!
//! | kind | reads | writes | blocks its worker |
//! |---|---|---|---|
//! | [`ram`] | lent in place | copied | never; large deallocations go to the pool |
//! | [`null`] | zeroes, lent | vanish | never |
//! | [`file`](mod@file) | direct I/O where it can be | direct I/O where it can be | never: an io_uring does it, or the pool |
//!
//! A worker opens its own handle on each namespace. System calls that may block are made by the
//! kernel, for the worker's io_uring, or by the threads of one [`pool`], which all handles share.
use std::path::Path;
use std::sync::Arc;

use nvmf_core::block::{Extent, Geometry, MediaError, Op, Request};
use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::device::Namespace;

pub use engines::Engines;
pub use open::OpenError;
pub use spec::{Choice, Io, Kind, Spec};
pub use uring::Unavailable;
pub use uring::polling::NoPolling;

mod engines;
pub mod file;
pub mod identity;
pub mod null;
mod open;
pub mod pool;
pub mod ram;
pub mod spec;
#[allow(unsafe_code)]
mod uring;

#[cfg(test)]
mod testing;

/// Opens what `spec` names, as namespace `nsid` of the subsystem `nqn`, which its
/// identifiers depend on. Operations that block are left to `engines`.
///
/// # Errors
/// [`OpenError`], with a hint at what would do.
pub fn open(
    spec: &Spec,
    nqn: &str,
    nsid: Nsid,
    engines: &Engines,
) -> Result<Arc<dyn Namespace>, OpenError> {
    let identity = || match spec.uuid {
        Some(uuid) => identity::from_uuid(uuid),
        None => identity::of_nsid(nqn, nsid),
    };
    let shift = spec.block_shift.unwrap_or(spec::DEFAULT_SHIFT);
    let memory = |bytes| {
        move |source| OpenError::Memory {
            size: spec::Size(bytes),
            source,
        }
    };
    Ok(match spec.kind {
        Kind::Ram { bytes } => {
            let ram = ram::Ram::new(shift, bytes >> shift, identity(), &engines.pool);
            Arc::new(ram.map_err(memory(bytes))?)
        }
        Kind::Null { bytes } => {
            Arc::new(null::Null::new(shift, bytes >> shift, identity()).map_err(memory(bytes))?)
        }
        Kind::File {
            ref path,
            size,
            read_only,
            direct,
            io,
            fixed,
            iopoll,
        } => {
            let opening = open::Opening {
                path,
                size,
                block_shift: spec.block_shift,
                read_only,
                direct,
            };
            let opened = opening.open_patiently()?;
            let identity = match spec.uuid {
                Some(uuid) => identity::from_uuid(uuid),
                None => identity::of_path(nqn, &opened.stable_path),
            };
            let uring = uring_is_wanted(io, path)?;
            let mut namespace = file::FileNamespace::new(opened, identity, engines, uring, fixed);
            if iopoll != Choice::Off
                && let Err(why) = namespace.poll()
            {
                let path = path.clone();
                if iopoll == Choice::On {
                    return Err(OpenError::Polling { path, why });
                }
                tracing::debug!("{}: is not polled: {why}", path.display());
            }
            Arc::new(namespace)
        }
    })
}

/// Whether a file's I/O is to be done by io_uring.
fn uring_is_wanted(io: Io, path: &Path) -> Result<bool, OpenError> {
    if io == Io::Threads {
        return Ok(false);
    }
    match (uring::probe(), io) {
        (Ok(()), _) => Ok(true),
        (Err(why), Io::Uring) => Err(OpenError::Uring {
            path: path.into(),
            why,
        }),
        (Err(why), _) => {
            tracing::info!("{}: threads do its I/O, as {why}", path.display());
            Ok(false)
        }
    }
}

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
