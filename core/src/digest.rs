//! CRC32C, the header and data digest of NVMe/TCP.
//!
//! An engine is a plain function, so that a binding with a faster one (SSE4.2,
//! a CRC peripheral) hands it over without making every type generic.

/// Continues a CRC32C: `crc` is the digest of the bytes so far (0 for none),
/// the result that of those bytes followed by `bytes`.
///
/// NVMe/TCP 1.1, section 3.3.1.1; the polynomial and vectors are RFC 3720's.
pub type Crc32c = fn(crc: u32, bytes: &[u8]) -> u32;

const TABLE: crc::Crc<u32, crc::Table<1>> = crc::Crc::<u32, crc::Table<1>>::new(&crc::CRC_32_ISCSI);

/// The engine that runs everywhere: 1 KiB of table, a byte at a time.
#[must_use]
pub fn portable(crc: u32, bytes: &[u8]) -> u32 {
    // A digest in progress is the finished one with the final inversion taken
    // back; `crc` wants its initial value before the input reflection.
    let mut digest = TABLE.digest_with_initial((!crc).reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::portable;

    #[test]
    fn vectors() {
        let ascending: [u8; 32] = core::array::from_fn(|i| i as u8);
        let descending: [u8; 32] = core::array::from_fn(|i| 31 - i as u8);
        let r2t: [u8; 24] = [
            0x09, 0x01, 0x18, 0, 0x1c, 0, 0, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0,
        ];
        for (bytes, crc) in [
            (&[0u8; 32][..], 0x8A91_36AA),
            (&[0xFF; 32], 0x62A8_AB43),
            (&ascending, 0x46DD_794E),
            (&descending, 0x113F_DB5C),
            (b"123456789", 0xE306_9283),
            (b"", 0),
            (&r2t, 0x0B6C_B28F),
            (&[0, 1, 2, 3, 4, 5, 6, 7], 0x8A2C_BC3B),
        ] {
            assert_eq!(portable(0, bytes), crc);
            for cut in 0..bytes.len() {
                let (head, tail) = bytes.split_at(cut);
                assert_eq!(portable(portable(0, head), tail), crc, "cut at {cut}");
            }
        }
    }
}
