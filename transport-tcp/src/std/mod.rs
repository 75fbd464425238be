//! The binding to Linux: threads, sockets, memory, and what runs a target on them.
//!
//! | module | what it does |
//! |---|---|
//! | [`target`] | what a target is, and running it: start here |
//! | [`host`] | connecting to controllers, and using them: start here |
//! | [`catalog`] | the subsystems of a target |
//! | [`device`] | what a namespace is stored on |
//! | [`buffer`], [`mapping`] | memory for data under way, and memory that is lent to the kernel |
//! | `rdma` | connections over RDMA devices, beside those over TCP (feature `rdma`) |
//! | [`gather`], [`waker`] | one system call for many pieces; waking a worker |
//!
//! A [`target::Target`] has one thread that accepts, and workers. A connection
//! belongs to one worker, which alone touches it: its machine, its socket, its
//! buffers. Workers send one another messages when a connection moves and when a
//! controller ends; nothing that a command does on its way takes a lock.
mod acceptor;
pub mod buffer;
pub mod catalog;
mod connection;
pub mod device;
mod devices;
mod error;
pub mod gather;
mod growing;
pub mod host;
mod local;
mod mailbox;
#[allow(unsafe_code)]
pub mod mapping;
mod outbox;
mod placement;
#[cfg(feature = "rdma")]
pub mod rdma;
#[cfg(feature = "rdma")]
mod registered;
mod shared;
mod slots;
mod socket;
mod spin;
pub mod target;
mod timers;
pub mod waker;
mod worker;
