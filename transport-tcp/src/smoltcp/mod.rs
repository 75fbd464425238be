//! The binding to smoltcp: its sockets, memory that the caller gives, and no
//! allocator, operating system or `std`.
//!
//! | module | what it does |
//! |---|---|
//! | [`target`] | what a target is, and running it: start here |
//! | [`memory`] | buffers for data under way |
//!
//! The caller owns interface, device and sockets, and says what time it is. Its
//! loop is: poll the interface, poll the target, sleep until either has
//! something to do.
//!
//! What a socket received is handed to the machine where it lies in the socket's
//! ring; heads and payload are written where they are sent from. A payload is
//! copied once each way, between ring and buffer. Backpressure is TCP's: what a
//! machine cannot take yet stays in the ring, and while a ring is full the
//! machine is not asked for more.
mod connection;
mod local;
pub mod memory;
mod outgoing;
pub mod target;
