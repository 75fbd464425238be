//! The check sums of SD cards (Physical Layer Specification, section 4.5).

/// CRC7 of a command, with its end bit: the sixth byte of one.
pub(super) fn crc7(bytes: &[u8]) -> u8 {
    let mut crc = 0u8;
    for byte in bytes {
        crc ^= byte;
        for _ in 0..8 {
            crc = (crc << 1) ^ if crc & 0x80 != 0 { 0x09 << 1 } else { 0 };
        }
    }
    crc | 1
}

/// CRC16 of a block of data, a nibble at a time: 32 bytes of table.
pub(super) fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 16] = {
        let mut table = [0; 16];
        let mut at = 0;
        while at < 16 {
            let mut crc = (at as u16) << 12;
            let mut bit = 0;
            while bit < 4 {
                crc = (crc << 1) ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 };
                bit += 1;
            }
            table[at] = crc;
            at += 1;
        }
        table
    };
    let step = |crc: u16, nibble: u8| (crc << 4) ^ TABLE[usize::from((crc >> 12) as u8 ^ nibble)];
    bytes
        .iter()
        .fold(0, |crc, byte| step(step(crc, byte >> 4), byte & 0xF))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_the_specification() {
        // Section 4.5: CMD0, CMD17 and its response; 512 bytes of ones.
        assert_eq!(crc7(&[0x40, 0, 0, 0, 0]), 0x95);
        assert_eq!(crc7(&[0x51, 0, 0, 0, 0]), 0x55);
        assert_eq!(crc7(&[0x11, 0, 0, 0x09, 0]), 0x67);
        assert_eq!(crc7(&[0x48, 0, 0, 0x01, 0xAA]), 0x87);
        assert_eq!(crc16(&[0xFF; 512]), 0x7FA1);
        assert_eq!(crc16(b"123456789"), 0x31C3, "XMODEM's check value");
    }
}
