//! NVMe/TCP over std sockets.
pub mod digest;
