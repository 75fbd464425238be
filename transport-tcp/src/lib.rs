//! NVMe/TCP on TCP stacks: what joins [`nvmf_core`]'s machines to them.
//!
//! | feature | what it adds |
//! |---|---|
//! | `std` (default) | [`std::target`] and [`std::host`] over an operating system's sockets; [`digest`], the CRC32C engine of its processors |
//! | `smoltcp` | `smoltcp::target` and `smoltcp::host` on smoltcp's sockets: without an allocator, an operating system or `std` |
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(unsafe_code)]

#[cfg(feature = "std")]
pub mod digest;
#[cfg(feature = "smoltcp")]
pub mod smoltcp;
#[cfg(feature = "std")]
pub mod std;
