//! NVMe/RDMA as state machines over messages and remote memory.
//!
//! A binding brings what arrived and what completed, and posts what
//! [`target`] and [`host`] say: chains of work requests, which these machines
//! compose and count, and never see the memory of.
//!
//! | module | what it does |
//! |---|---|
//! | [`cm`] | judges and composes the private data of connections |
//! | [`capsule`] | what is in a message |
//! | [`target`] | the controller's end of a connection: READ, WRITE, SEND |
//! | [`connection`] | that end joined to the NVMe it carries, for bindings to drive |
//! | [`host`] | the host's end of a connection: commands out, completions in |
//!
//! Sections cited are those of the NVMe/RDMA Transport Specification 1.0.
#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

pub mod capsule;
pub mod cm;
pub mod connection;
mod fault;
pub mod host;
pub mod target;

pub use fault::Fault;

/// Memory of the peer's, as a keyed descriptor names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Remote {
    /// Where it begins, in the peer's addresses.
    pub address: u64,
    /// The key (rkey) by which it is reached.
    pub key: u32,
}

/// A work request's name: opaque to bindings, who bring it back when it completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkId(u64);

impl WorkId {
    /// As a work request carries it.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Of a completion.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}
