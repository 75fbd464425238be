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
#![no_std]

pub mod cm;
pub mod verbs;

pub use cm::Cm;
pub use verbs::Verbs;
