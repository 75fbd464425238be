//! NVMe over Fabrics, host and controller, as state machines that touch no
//! socket, clock, thread, allocator or random source.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod block;
mod bytes;
pub mod command;
pub mod digest;
pub mod host;
pub mod rdma;
pub mod storage;
pub mod target;
pub mod tcp;
pub mod time;
mod transport;
pub mod wire;

pub use transport::{DataBuffers, InCapsule, Place, SlotId, Source, Ticket, Transport};
