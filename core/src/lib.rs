//! NVMe over Fabrics, host and controller, as state machines that touch no
//! socket, clock, thread, allocator or random source.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod block;
pub mod digest;
pub mod time;
pub mod wire;
