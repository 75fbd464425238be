//! What the `nvmf` command is made of.
#![forbid(unsafe_code)]

pub mod block;
