//! What the `nvmf` command is made of.
#![deny(unsafe_code)]

pub mod block;
