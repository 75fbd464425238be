//! Data to write.

/// Pseudorandom bytes, none of them zero: so that none can be left out as a hole.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let odd = state | 0x0101_0101_0101_0101;
        word.copy_from_slice(&odd.to_le_bytes()[..word.len()]);
    }
    bytes
}
