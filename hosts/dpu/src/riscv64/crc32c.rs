//! CRC32C: this processor has no instruction for it.
use nvmf_core::digest::{Crc32c, portable};

/// The portable one.
#[must_use]
pub fn engine() -> Crc32c {
    portable
}
