//! RDMA devices of the operating system: libibverbs and librdmacm, which are
//! looked for when they are first needed. Nothing is linked, and nothing of them
//! has to be installed where no RDMA is asked for.
//!
//! [`Device`] finds the device that has an address or leads to one; [`open`]
//! gives a worker its share of it. All of this crate's `unsafe` is here.
//!
//! | module | what is in it |
//! |---|---|
//! | `library`, `sys` | the libraries' functions and structures |
//! | `device` | a device, found by an address |
//! | `memory` | protection domain, regions, buffers |
//! | `queues` | completion queue, shared receive queue, memory windows |
//! | `queue_pair` | a send queue, and what is in it |
//! | `worker` | what a worker has of all these; completions |
//! | `verbs`, `cm` | the traits |

mod cm;
mod device;
mod library;
mod memory;
mod queue_pair;
mod queues;
mod sys;
mod verbs;
mod worker;

use std::sync::{Arc, Mutex};

pub use cm::Request;
pub use device::{Device, OpenError};
pub use library::Missing;
pub use memory::{Buffer, Memory, Region};
pub use worker::{Config, Qp};

/// A worker's [`Verbs`](crate::Verbs).
pub struct IbvVerbs {
    worker: cm::Shared,
}

/// A worker's [`Cm`](crate::Cm).
pub struct IbvCm {
    worker: cm::Shared,
}

/// Whether there are the libraries.
///
/// # Errors
/// They cannot be loaded.
pub fn available() -> Result<(), Missing> {
    library::Library::get().map(|_| ())
}

/// A worker's share of a device.
///
/// # Errors
/// The device has no more of something.
pub fn open(device: Device, config: &Config) -> Result<(IbvVerbs, IbvCm), OpenError> {
    let worker = Arc::new(Mutex::new(worker::Worker::new(device, config)?));
    let verbs = IbvVerbs {
        worker: Arc::clone(&worker),
    };
    Ok((verbs, IbvCm { worker }))
}
