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
//! A whole board, but for its devices:
//!
//! ```
//! use nvmf_core::digest::portable;
//! use nvmf_core::time::Instant;
//! use nvmf_core::wire::ids::Nqn;
//! use nvmf_firmware::address::Addressing;
//! use nvmf_firmware::server::{Arena, Server, Settings, Tables};
//! use nvmf_tcp::smoltcp::target::Device;
//! use smoltcp::wire::{Ipv4Address, Ipv4Cidr};
//!
//! const CONNECTIONS: usize = 4;
//! const DEPTH: usize = 8;
//! /// Rings of 1,536 bytes; one buffer of 8 KiB and three of 4 KiB.
//! type Memory = Arena<CONNECTIONS, DEPTH, 1536, 1, 3>;
//! /// Four buffers, one namespace.
//! type Books = Tables<CONNECTIONS, 4, 1>;
//!
//! fn serve(
//!     nqn: &'static Nqn,
//!     arena: &'static mut Memory,
//!     tables: &'static mut Books,
//!     disks: &'static mut [Device<'static>; 1],
//!     nic: &mut impl smoltcp::phy::Device,
//!     now: impl Fn() -> Instant,
//!     sleep_until: impl Fn(Option<Instant>),
//! ) -> ! {
//!     let settings = Settings {
//!         nqn,
//!         serial: "0001",
//!         model: "my board",
//!         uuid: *b"my board\x80\0\0\0\0\0\0\x01",
//!         mac: [0x02, 0, 0, 0, 0, 1],
//!         address: Addressing::Static {
//!             address: Ipv4Cidr::new(Ipv4Address::new(192, 0, 2, 7), 24),
//!             gateway: None,
//!         },
//!         port: 4420,
//!         io_queues: 1,
//!         seed: 1,
//!         crc32c: portable,
//!     };
//!     let mut server: Server<CONNECTIONS, DEPTH> =
//!         Server::new(&settings, arena, tables, disks, nic, now());
//!     loop {
//!         let deadline = server.step(nic, now(), |event| drop(event));
//!         // Or until the network device has an interrupt.
//!         sleep_until(deadline);
//!     }
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
