//! `nvmf export` as a process, against `nvmf target`, with a client of raw bytes.

#[allow(dead_code, reason = "other tests need the rest")]
#[path = "../common/mod.rs"]
mod common;

mod client;
mod hostile;
mod lifetime;
mod negotiation;
mod recovery;
mod requests;
mod server;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}
