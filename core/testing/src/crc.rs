//! CRC32C a bit at a time, after RFC 3720 and independent of the engines under test.

/// The digest of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    continue_crc32c(0, bytes)
}

/// The digest of the bytes that have digest `crc`, followed by `bytes`.
#[must_use]
pub fn continue_crc32c(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |crc, byte| {
        TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ (crc >> 8)
    })
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0x82F6_3B78 * (crc & 1));
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn vectors() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
    }
}
