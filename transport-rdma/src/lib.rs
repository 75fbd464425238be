//! NVMe/RDMA: the binding of `nvmf-core` to RDMA verbs.
//!
//! The core knows transports by one trait, `nvmf_core::Transport`:
//!
//! | the core asks | over TCP | over RDMA |
//! |---|---|---|
//! | fetch data of a command | R2T, H2CData | RDMA READ |
//! | send data, then complete | C2HData, CapsuleResp | RDMA WRITE, SEND (with invalidate) |
//! | complete | CapsuleResp | SEND (with invalidate) |
//!
//! Everything of NVMe, from Connect to Dataset Management, is above that trait
//! and is not written again; `nvmf_core::rdma` is the two ends of it that RDMA
//! adds. This crate drives them over a device, which it knows by two traits:
//!
//! | module | what it is |
//! |---|---|
//! | [`verbs`] | what a device does: post, poll, register. No allocator, no library's type |
//! | [`cm`] | what a connection manager does |
//! | [`target`] | a worker's connections: shared receives, budgets, pools |
//! | [`host`] | a host's queue: commands with their buffers |
//! | [`sim`] | both, in memory: a fabric that checks what a network card checks |
//! | `ibv` | devices of the operating system (feature `ibv`) |
#![no_std]

#[cfg(any(feature = "sim", test))]
extern crate alloc;
#[cfg(feature = "ibv")]
extern crate std;

mod buffer;
pub mod cm;
pub mod host;
#[cfg(feature = "ibv")]
pub mod ibv;
#[cfg(any(feature = "sim", test))]
pub mod sim;
pub mod target;
pub mod verbs;

pub use buffer::{Buffer, Pool};
pub use cm::Cm;
pub use verbs::Verbs;
