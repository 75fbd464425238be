//! An NVMe/TCP target for boards without an operating system.
//!
//! A board brings a network device (smoltcp's [`Device`](smoltcp::phy::Device)),
//! a clock, memory and something to store on; the rest is here.
//!
//! | module | what it is |
//! |---|---|
//! | [`server`] | the interface, the sockets and the target, and the step of the loop: start here |
//! | [`cost`] | how many bytes each connection, command and so on takes |
//! | [`address`] | where the interface has its address from: it is given, or DHCP finds it |
//! | [`ram`] | a namespace in memory |
//! | [`sd`] | SD cards over SPI |
//! | `virtio` | virtio disks and network cards (feature `virtio`) |
//! | [`nor`] | NOR flash over SPI |
//! | `display` | a display that says how the server does (feature `display`) |
//! | [`services`] | echo, discard and chargen on the same TCP stack, to compare with |
//!
//! ```text
//! let mut server = Server::new(&settings, arena, tables, devices, &mut nic, now());
//! loop {
//!     let deadline = server.step(&mut nic, now());
//!     sleep_until(deadline); // or until the network device has an interrupt
//! }
//! ```
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod address;
pub mod cost;
#[cfg(feature = "display")]
pub mod display;
pub mod nor;
pub mod ram;
pub mod sd;
pub mod server;
pub mod services;
#[cfg(feature = "virtio")]
pub mod virtio;
