//! Whether a file's device can be polled.
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvmf_core::block::{Extent, Op, Request};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::waker::Waker;

use super::super::file::Store;
use super::Rings;
use super::ring::Mode;

/// How long a read that is polled for may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why it cannot, as the end of a sentence.
#[derive(Debug, thiserror::Error)]
pub enum NoPolling {
    /// An io_uring polls.
    #[error("that takes io_uring")]
    NoUring,
    /// Only direct I/O is polled for.
    #[error("that takes direct I/O")]
    NotDirect,
    /// No such queues.
    #[error(
        "the device has no queues to poll, or they are switched off: see poll_queues of its \
         driver, and queue/io_poll in {0}"
    )]
    NoQueues(PathBuf),
    /// The file is on no block device.
    #[error("it is on no block device")]
    NoDevice,
    /// Tried and refused.
    #[error("the kernel refuses: {0}")]
    Refused(#[from] io::Error),
    /// Tried in vain.
    #[error("a read that is polled for does not end")]
    Endless,
}

/// Asks the device, and tries by reading the file's first block.
pub(in super::super) fn check(store: &Arc<Store>) -> Result<(), NoPolling> {
    if !store.direct {
        return Err(NoPolling::NotDirect);
    }
    let device = device(&store.file, store.device)?;
    let setting = fs::read_to_string(device.join("queue/io_poll"));
    if !setting.is_ok_and(|setting| setting.trim() == "1") {
        return Err(NoPolling::NoQueues(device));
    }
    let waker = Waker::new().map_err(io::Error::from)?;
    let port = Rings::default().port(store, &waker, Mode::Polled)?;
    let len = store.geometry.block_size();
    port.submit(Request {
        tag: 0,
        op: Op::Read(Extent {
            byte: 0,
            len: len.into(),
        }),
        buffer: Some(Buffer::zeroed(len as usize)),
    });
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some((_, result)) = port.poll() {
            return result.map_err(|failure| {
                let unknown = io::ErrorKind::Other.into();
                failure.cause.unwrap_or(unknown).into()
            });
        }
    }
    Err(NoPolling::Endless)
}

/// The directory in /sys of the device that the file is, or is on.
fn device(file: &File, is_device: bool) -> Result<PathBuf, NoPolling> {
    let found = file.metadata()?;
    let number = if is_device { found.rdev() } else { found.dev() };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let path = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"));
    let path = path.map_err(|_| NoPolling::NoDevice)?;
    // A partition's queue is that of the whole.
    match path.parent() {
        Some(whole) if path.join("partition").exists() => Ok(whole.into()),
        _ => Ok(path),
    }
}
