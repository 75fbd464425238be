//! NVMe/TCP over std sockets.
#![deny(unsafe_code)]

pub mod digest;
pub mod std;
