//! The host: connecting to controllers, and using them.
//!
//! ```no_run
//! use nvmf_tcp::std::host::{Controller, Options, Url};
//! use nvmf_core::wire::ids::Nsid;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Who is there?
//! let target: Url = "nvme+tcp://192.0.2.7:4420".parse()?;
//! for entry in Controller::connect(&target, &Options::default())?.discover()? {
//!     println!("{entry}");
//! }
//!
//! // Use one of them.
//! let disk: Url = "nvme+tcp://192.0.2.7:4420/nqn.2014-08.org.example:disk".parse()?;
//! let controller = Controller::connect(&disk, &Options::default())?;
//! let mut namespace = controller.namespace(Nsid(1))?;
//! let mut block = vec![0; namespace.block_size() as usize];
//! namespace.write(0, &block)?;
//! namespace.read(0, &mut block)?;
//! namespace.flush()?;
//! # Ok(())
//! # }
//! ```
//!
//! That is for one thread. For many of them, and for async tasks, there is a [`Host`]: a few
//! threads of its own that receive, keep alive and connect again. Each call returns a
//! [`Request`], which can be awaited in any runtime, or waited for:
//!
//! ```no_run
//! use nvmf_core::wire::ids::Nsid;
//! use nvmf_tcp::std::host::{Error, Host, Options, Url};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk: Url = "nvme+tcp://192.0.2.7:4420/nqn.2014-08.org.example:disk".parse()?;
//! let host = Host::new(None)?;
//! let association = host.attach(&disk, &Options::default()).wait()?;
//! let namespace = association.namespace(Nsid(1)).wait()?;
//!
//! // Both are sent before the first is waited for.
//! let first = namespace.write(0, vec![1; 4096]);
//! let second = namespace.write(8, vec![2; 4096]);
//! first.wait()?;
//! second.wait()?;
//!
//! // The same in a task.
//! let task = async {
//!     let data = namespace.read(0, vec![0; 8192]).await?;
//!     namespace.flush().await?;
//!     Ok::<_, Error>(data)
//! };
//! # let _ = task;
//! # Ok(())
//! # }
//! ```
//!
//! | type | what it is |
//! |---|---|
//! | [`Controller`] | the association of one thread: bring-up, keep alive, admin commands |
//! | [`Namespace`] | blocking reads and writes of any length |
//! | [`IoQueue`], [`Queue`] | one connection to be polled, for whoever counts microseconds |
//! | [`Host`], [`Association`], [`SharedNamespace`] | the same for many threads and tasks |
//! | [`Request`] | a call under way: a future, and a blocking call |
//! | [`Url`] | `nvme+tcp://host:port/nqn?nsid=1` |
//!
//! A [`Controller`] does not recover: when the connection is lost, calls fail, and one
//! connects again. An [`Association`] does, as [`Options::recovery`] says.
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
pub use options::Options;
pub use queue::{Completion, Full, Queue};
pub use shared::{Association, Event, Host, Request, SharedNamespace};
pub use url::{PORT, Url, UrlError};

pub use nvmf_core::host::Identity;
pub use nvmf_core::host::controller::Capabilities;
pub use nvmf_core::host::recovery::Policy;

#[cfg(test)]
mod tests;
