//! CRC32C with the processor's instructions.
use core::arch::aarch64::{__crc32cb, __crc32cd};
use core::arch::asm;

use nvmf_core::digest::{Crc32c, portable};

/// The processor's, or the portable one if it has none.
#[must_use]
pub fn engine() -> Crc32c {
    let features: u64;
    // SAFETY: it reads a register.
    unsafe { asm!("mrs {}, id_aa64isar0_el1", out(reg) features, options(nomem, nostack)) };
    const CRC32: u64 = 0xF << 16;
    if features & CRC32 == 0 {
        return portable;
    }
    // SAFETY: the processor has the instructions.
    |crc, bytes| unsafe { hardware(crc, bytes) }
}

#[target_feature(enable = "crc")]
fn hardware(crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let crc = words
        .iter()
        .fold(!crc, |crc, word| __crc32cd(crc, u64::from_le_bytes(*word)));
    !rest.iter().fold(crc, |crc, byte| __crc32cb(crc, *byte))
}
