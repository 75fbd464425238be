//! What a flash chip says of itself: Serial Flash Discoverable Parameters (JESD216F).
use core::time::Duration;

use super::Fault;
use super::chip::{Addresses, PAGE, Parameters};

/// Bytes of the header, and of a parameter header after it.
pub(super) const HEADER: usize = 8;
/// Dwords of the Basic Flash Parameter Table: at least, and of which any are read.
const LEAST: usize = 9;
pub(super) const MOST: usize = 16;
/// What a chip has that does not say how long it takes, in microseconds: erase, program.
const USUAL_US: (u32, u32) = (50_000, 700);

/// Where the Basic Flash Parameter Table is, and its dwords: from both headers
/// (sections 6.2 and 6.3).
pub(super) fn table(headers: &[u8; 2 * HEADER]) -> Result<(u32, usize), Fault> {
    let [
        b'S',
        b'F',
        b'D',
        b'P',
        _,
        1,
        _,
        _,
        id,
        _,
        1,
        dwords,
        p0,
        p1,
        p2,
        _,
    ] = *headers
    else {
        return Err(Fault::NoParameters);
    };
    let dwords = usize::from(dwords);
    if id != 0 || dwords < LEAST {
        return Err(Fault::NoParameters);
    }
    Ok((u32::from_le_bytes([p0, p1, p2, 0]), dwords.min(MOST)))
}

/// Reads the Basic Flash Parameter Table (section 6.4). Dwords that it does not have are 0.
pub(super) fn parameters(dwords: &[u32; MOST]) -> Result<Parameters, Fault> {
    // The standard counts from 1.
    let dword = |number: usize| dwords[number - 1];
    let bits = match dword(2) {
        large if large & 1 << 31 != 0 => 1u64
            .checked_shl(large & !(1 << 31))
            .ok_or(Fault::Unsupported("its size"))?,
        small => u64::from(small) + 1,
    };
    let bytes = bits / 8;
    let erase = erase_of_4_kib(dwords).ok_or(Fault::Unsupported("no erase of 4 KiB"))?;
    let addresses = match dword(1) >> 17 & 3 {
        0 | 1 if bytes <= 1 << 24 => Addresses::Three,
        // Some large chips say that they have three bytes only, which cannot be.
        0 | 1 => four(dword(16))?,
        2 => Addresses::Four,
        _ => return Err(Fault::Unsupported("its addresses")),
    };
    if bytes > 1 << 32 {
        return Err(Fault::Unsupported("its size"));
    }
    // Dword 11 came with revision A; before, a page is 256 bytes.
    let page = match dword(11) >> 4 & 0xF {
        0 => PAGE,
        shift => 1 << shift,
    };
    if page < PAGE {
        return Err(Fault::Unsupported("its pages are small"));
    }
    Ok(Parameters {
        bytes,
        erase: erase.opcode,
        addresses,
        erase_time: micros(erase.micros, USUAL_US.0),
        program_time: micros(program_micros(dword(11)), USUAL_US.1),
    })
}

/// The erase types are in dwords 8 and 9, how long they take is in dword 10.
fn erase_of_4_kib(dwords: &[u32; MOST]) -> Option<Erase> {
    let kinds = [dwords[7], dwords[7] >> 16, dwords[8], dwords[8] >> 16];
    let found = (0u32..).zip(kinds).find(|(_, kind)| kind & 0xFF == 12);
    if let Some((index, kind)) = found {
        // Bits 3:0 are a multiplier; then come seven bits for each type.
        let time = dwords[9] >> (4 + 7 * index);
        let unit_ms = [1, 16, 128, 1000][(time >> 5 & 3) as usize];
        let known = dwords[9] != 0;
        return Some(Erase {
            opcode: (kind >> 8) as u8,
            micros: if known {
                ((time & 0x1F) + 1) * unit_ms * 1000
            } else {
                0
            },
        });
    }
    // Dword 1 has it as well: bits 1:0, and the opcode in bits 15:8.
    (dwords[0] & 3 == 1).then_some(Erase {
        opcode: (dwords[0] >> 8) as u8,
        micros: 0,
    })
}

struct Erase {
    opcode: u8,
    /// 0 if it is not known.
    micros: u32,
}

/// Bits 12:8 and 13 of dword 11.
const fn program_micros(dword: u32) -> u32 {
    if dword == 0 {
        return 0;
    }
    let unit = if dword & 1 << 13 == 0 { 8 } else { 64 };
    ((dword >> 8 & 0x1F) + 1) * unit
}

const fn micros(known: u32, usual: u32) -> Duration {
    Duration::from_micros(if known == 0 { usual } else { known } as u64)
}

/// How the whole of a large chip is reached: bits 31:24 of dword 16. What leaves no
/// state in the chip comes first.
fn four(dword: u32) -> Result<Addresses, Fault> {
    const OPCODES: u32 = 1 << 29;
    const ALWAYS: u32 = 1 << 30;
    const ENTER: u32 = 1 << 24;
    const ENABLE_AND_ENTER: u32 = 1 << 25;
    match dword {
        dword if dword & ALWAYS != 0 => Ok(Addresses::Four),
        dword if dword & OPCODES != 0 => Ok(Addresses::FourByOpcode),
        dword if dword & (ENTER | ENABLE_AND_ENTER) != 0 => Ok(Addresses::FourByMode {
            write_enable: dword & ENTER == 0,
        }),
        _ => Err(Fault::Unsupported("its addresses")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a chip of 16 MiB, as those of JESD216B are.
    const SOME_CHIP: [u32; MOST] = [
        0xFFF9_20E5,
        0x07FF_FFFF,
        0x6B08_EB44,
        0xBB42_3B08,
        0xFFFF_FFFE,
        0x0000_FFFF,
        0xEB40_FFFF,
        0x520F_200C,
        0x0000_D810,
        0x00A6_0236,
        0x1482_EA82,
        0x3376_63E2,
        0x757A_757A,
        0x5CD5_BDF7,
        0xFF82_0F4D,
        0x8870_F970,
    ];

    #[test]
    fn a_chip_of_16_mib() {
        let found = parameters(&SOME_CHIP).unwrap();
        assert_eq!(found.bytes, 16 << 20);
        assert_eq!((found.erase, found.addresses), (0x20, Addresses::Three));
        assert_eq!(found.erase_time, Duration::from_millis(64));
        assert_eq!(found.program_time, Duration::from_micros(704));
    }

    #[test]
    fn a_chip_of_before_dword_10() {
        let mut dwords = SOME_CHIP;
        dwords[9..].fill(0);
        let found = parameters(&dwords).unwrap();
        assert_eq!(found.erase_time, Duration::from_millis(50));
        assert_eq!(found.program_time, Duration::from_micros(700));
        // The erase types are not filled in: what dword 1 says is left.
        dwords[7..9].fill(0);
        dwords[0] = dwords[0] & !0xFF00 | 0xD700;
        assert_eq!(parameters(&dwords).unwrap().erase, 0xD7);
        dwords[0] |= 3;
        assert!(parameters(&dwords).is_err());
    }

    #[test]
    fn chips_beyond_three_bytes_of_address() {
        let mut dwords = SOME_CHIP;
        dwords[1] = 0x1FFF_FFFF;
        dwords[0] |= 1 << 17;
        for (bits, addresses) in [
            (29, Some(Addresses::FourByOpcode)),
            (30, Some(Addresses::Four)),
            (
                24,
                Some(Addresses::FourByMode {
                    write_enable: false,
                }),
            ),
            (25, Some(Addresses::FourByMode { write_enable: true })),
            (26, None),
        ] {
            dwords[15] = 1 << bits;
            let found = parameters(&dwords).ok().map(|found| found.addresses);
            assert_eq!(found, addresses, "bit {bits}");
        }
        // IS25WP256 claims to have three bytes of address only.
        dwords[0] &= !(3 << 17);
        dwords[15] = 1 << 29;
        let found = parameters(&dwords).unwrap();
        assert_eq!(found.addresses, Addresses::FourByOpcode);
        for density in [0x8000_0040, 0xFFFF_FFFF, 0x8000_0024] {
            dwords[1] = density;
            assert!(parameters(&dwords).is_err(), "{density:x}");
        }
    }

    #[test]
    fn headers() {
        let good = *b"SFDP\x06\x01\x00\xFF\x00\x06\x01\x10\x80\x00\x00\xFF";
        assert_eq!(table(&good), Ok((0x80, 16)));
        for (at, byte) in [(0, 0), (5, 2), (8, 1), (10, 2), (11, 8)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(table(&bad), Err(Fault::NoParameters), "byte {at}");
        }
        assert_eq!(table(&[0xFF; 16]), Err(Fault::NoParameters));
    }
}
