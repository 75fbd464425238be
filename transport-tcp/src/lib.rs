//! NVMe/TCP over std sockets: what joins [`nvmf_core`]'s machines to an operating system.
//!
//! - [`std::target`] serves namespaces: pinned workers, epoll, one system call for
//!   many PDUs. Its page has an example.
//! - [`digest`] is the CRC32C engine, tens of GB/s where the processor helps.
#![deny(unsafe_code)]

pub mod digest;
pub mod std;
