//! The bytes: one zerocopy structure per wire format, with raw fields and a
//! size assert, no meaning. Packed and 0's-based fields have one accessor.
#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

#[macro_use]
mod bits;
#[macro_use]
pub(crate) mod macros;

pub mod auth;
pub mod cm;
pub mod connect;
pub mod cqe;
pub mod discovery;
pub mod feature;
pub mod identify;
pub mod ids;
pub mod log;
pub mod pdu;
pub mod property;
pub mod range;
pub mod reservation;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod text;
pub mod tree;
