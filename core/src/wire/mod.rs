//! The bytes: one zerocopy structure per wire format, with raw fields and a
//! size assert, no meaning. Packed and 0's-based fields have one accessor.
pub mod tree;
