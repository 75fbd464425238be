//! What moves the data of files and block devices, for all namespaces of a process.
use std::io;

use super::pool::Pool;
use super::uring::Rings;

/// Threads for what blocks, and an io_uring for each worker. Clones are the same.
#[derive(Clone, Debug)]
pub struct Engines {
    pub(super) pool: Pool,
    pub(super) rings: Rings,
}

impl Engines {
    /// Starts `threads` threads, as [`Pool::new`] does; rings come to be as workers open files.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(threads: usize) -> io::Result<Self> {
        Ok(Self {
            pool: Pool::new(threads)?,
            rings: Rings::default(),
        })
    }
}
