//! The binding to Linux: what workers, sockets and devices share.
pub mod buffer;
pub mod device;
pub mod gather;
#[allow(unsafe_code)]
pub mod mapping;
pub mod waker;
