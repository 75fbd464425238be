//! Any bytes as any structure.

/// Decodes the input.
pub fn codecs(_input: &[u8]) {}
