//! NVMe/TCP as a state machine over a byte stream.
//!
//! | module | what it does |
//! |---|---|
//! | [`rx`] | frames what arrives: headers, digests, padding, where data belongs |
//! | [`tx`] | composes the heads of what is sent |
//! | [`target`] | the controller's end of a connection: R2T, C2HData, CapsuleResp |
//! | [`connection`] | that end joined to the NVMe it carries, for bindings to drive |
//! | [`host`] | the host's end of a connection: H2CData, completions |
//! | [`fatal`] | errors that end a connection (FES, FEI) |
//!
//! Sections cited are those of the NVMe/TCP Transport Specification 1.1.
#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

pub mod connection;
pub mod fatal;
pub mod host;
pub mod rx;
mod session;
pub mod target;
pub mod tx;
