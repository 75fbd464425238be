//! The host: connecting to controllers, and using them.
//!
//! # One thread
//! ```
//! use nvmf_core::wire::ids::Nsid;
//! use nvmf_tcp::std::host::{Controller, Options, Url};
//!
//! # #[allow(dead_code)]
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/std/host/example.rs")); }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (_running, text) = example::serve();
//! # let (at, _) = text.rsplit_once('/').unwrap();
//! // Who is there? As in nvme+tcp://192.0.2.7:4420
//! let target: Url = at.parse()?;
//! for entry in Controller::connect(&target, &Options::default())?.discover()? {
//!     println!("{entry}");
//! }
//!
//! // Use one of them. As in nvme+tcp://192.0.2.7:4420/nqn.2014-08.org.example:disk
//! let disk: Url = text.parse()?;
//! let controller = Controller::connect(&disk, &Options::default())?;
//! let mut namespace = controller.namespace(Nsid(1))?;
//! let mut block = vec![7; namespace.block_size() as usize];
//! namespace.write(0, &block)?;
//! namespace.flush()?;
//! namespace.read(0, &mut block)?;
//! assert!(block.iter().all(|byte| *byte == 7));
//! # Ok(())
//! # }
//! ```
//!
//! A thread of the [`Controller`]'s sends Keep Alive; all else happens in the caller's. With
//! [`Namespace::queue`] the caller polls, and nothing else is on a command's way. When the
//! connection is lost, calls fail, and one connects again.
//!
//! # Many threads, and async tasks
//! A [`Host`] has a few threads of its own, which receive, keep alive and connect again.
//! Each call returns a [`Request`], a future of no particular runtime. A thread without one
//! calls [`Request::wait`].
//! ```
//! use nvmf_core::wire::ids::Nsid;
//! use nvmf_tcp::std::host::{Error, Host, Options, SharedNamespace, Url};
//!
//! # #[allow(dead_code)]
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/std/host/example.rs")); }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (_running, text) = example::serve();
//! # use example::block_on;
//! let disk: Url = text.parse()?;
//! let host = Host::new(None)?;
//! let association = host.attach(&disk, &Options::default()).wait()?;
//! let namespace = association.namespace(Nsid(1)).wait()?;
//!
//! // Both are sent before the first is waited for.
//! let first = namespace.write(0, vec![1; 4096]);
//! let second = namespace.with_fua(true).write(8, vec![2; 4096]);
//! first.wait()?;
//! second.wait()?;
//!
//! // The same namespace in a task.
//! async fn sum(namespace: SharedNamespace) -> Result<u64, Error> {
//!     let data = namespace.read(0, vec![0; 8192]).await?;
//!     Ok(data.as_ref().iter().map(|byte| u64::from(*byte)).sum())
//! }
//! assert_eq!(block_on(sum(namespace.clone()))?, 3 * 4096);
//! # Ok(())
//! # }
//! ```
//!
//! A caller sends in its own context, unless another thread has the queue at that moment;
//! then the queue's driver sends. Queues are spread over the drivers by load, and a driver
//! gives each of its queues a bounded turn. A call that finds no room waits in line with its
//! buffers; the `try_` calls return [`Full`] instead. A call may be dropped at any time:
//! if it was sent, its buffers stay with the queue until the controller has answered.
//!
//! # When the connection is lost
//! [`Options::recovery`] says when to connect again, and when to give up: `reconnect_delay`,
//! `ctrl_loss_tmo`, `fast_io_fail_tmo`, with the meaning and the defaults of Linux. Calls
//! wait for that and are sent again: those that only read at once, those that change something
//! when it is certain that the controller does not carry out the old ones any more
//! ([`nvmf_core::host::recovery`] says when that is). A command that is not answered within
//! [`Options::command_timeout`] is aborted; if it does not end even so, its call fails with
//! [`Error::Timeout`] and the association is left.
//!
//! Before commands reach the new controller, the namespaces are looked at. Where a namespace
//! has other identifiers (EUI64, NGUID, UUID) or another block size than before, its handles fail with
//! [`Error::NamespaceReplaced`]. [`Association::events`] tells all that happens.
//!
//! # Types
//! | type | what it is |
//! |---|---|
//! | [`Controller`] | the association of one thread: bring-up, keep alive, admin commands |
//! | [`Namespace`] | blocking reads and writes of any length |
//! | [`IoQueue`], [`Queue`] | one connection to be polled, for whoever counts microseconds |
//! | [`Host`], [`Association`], [`SharedNamespace`] | the same for many threads and tasks |
//! | [`Request`] | a call under way: a future, and a blocking call |
//! | [`Url`] | `nvme+tcp://host:port/nqn?nsid=1` or `nvme+rdma://`, and options as parameters |
mod commands;
mod compose;
mod controller;
mod discovery;
mod error;
mod identity;
mod namespace;
mod options;
mod queue;
mod shared;
mod socket;
mod url;
mod work;

pub use commands::Payload;
pub use controller::{Controller, IoQueue};
pub use discovery::{Discovered, Discovery, Problem, discover};
pub use error::Error;
pub use namespace::Namespace;
pub use options::{Options, RdmaKey, Transport};
pub use queue::{Completion, Full, Queue};
pub use shared::{Association, Event, Host, Request, SharedNamespace};
pub use url::{PORT, Parameters, Url, UrlError};

pub use nvmf_core::host::Identity;
pub use nvmf_core::host::controller::Capabilities;
pub use nvmf_core::host::recovery::Policy;

#[cfg(test)]
mod tests;
