//! NVMe/RDMA: the binding of `nvmf-core` to RDMA verbs.
//!
//! This crate is its own manual page so far; there is no code in it. What it
//! will bind is settled by the core, which knows transports by one trait,
//! `nvmf_core::Transport`:
//!
//! | the core asks | over TCP | over RDMA |
//! |---|---|---|
//! | fetch data of a command | R2T, H2CData | RDMA READ |
//! | send data, then complete | C2HData, CapsuleResp | RDMA WRITE, SEND (with invalidate) |
//! | complete | CapsuleResp | SEND (with invalidate) |
//!
//! Everything of NVMe, from Connect to Dataset Management, is above that trait
//! and is not written again. The wire formats that RDMA adds are in the core
//! already: keyed SGL descriptors (`nvmf_core::wire::sgl`) and the private data
//! of the connection manager (`nvmf_core::wire::cm`).
//!
//! Planned parts, in the order in which they are built:
//!
//! | module | what it will be |
//! |---|---|
//! | `verbs` | the traits `Verbs` and `Cm`: post, poll with a budget, register; no allocator, no type of a library |
//! | `sim` | an in-memory fabric that checks what a network card checks |
//! | `ibv` | libibverbs and librdmacm, found at run time |
#![no_std]
