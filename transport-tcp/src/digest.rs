//! The CRC32C engine of hosted systems.
use crc_fast::{CrcAlgorithm, Digest};

/// Continues a CRC32C with the fastest instructions this processor has; a
/// drop-in for [`nvmf_core::digest::portable`], and what a
/// [`nvmf_core::digest::Crc32c`] should be wherever there is `std`.
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    if crc == 0 {
        // As most begin, and as short ones are whole: without a digest in progress.
        return crc_fast::crc32_iscsi(bytes);
    }
    // A digest in progress is the finished one without its final inversion.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    // A 32-bit CRC: the upper half is zero.
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::crc32c;
    use nvmf_core::digest::{Crc32c, portable};

    #[test]
    fn equals_the_portable_engine() {
        let engine: Crc32c = crc32c;
        let bytes: Vec<u8> = (0..70_000u32)
            .map(|i| (i.wrapping_mul(0x9E37_79B1) >> 24) as u8)
            .collect();
        // Every length around the widths that vector code switches at, from
        // every alignment, then some of the size of a transfer.
        let lens = (0..600).chain([4096, 4097, 65_536, 69_000]);
        for (start, len) in lens.enumerate().map(|(i, len)| (i % 64, len)) {
            let bytes = &bytes[start..start + len];
            let (head, tail) = bytes.split_at(len / 3);
            let whole = portable(0, bytes);
            assert_eq!(engine(0, bytes), whole, "{len} bytes from {start}");
            assert_eq!(engine(engine(0, head), tail), whole, "{len} bytes in two");
            assert_eq!(
                portable(engine(0, head), tail),
                whole,
                "{len} bytes, both engines"
            );
        }
    }
}
