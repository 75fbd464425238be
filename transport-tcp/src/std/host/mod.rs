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
//! | type | what it is |
//! |---|---|
//! | [`Controller`] | the association: bring-up, keep alive, admin commands |
//! | [`Namespace`] | blocking reads and writes of any length |
//! | [`IoQueue`], [`Queue`] | one connection to be polled, for whoever counts microseconds |
//! | [`Url`] | `nvme+tcp://host:port/nqn?nsid=1` |
//!
//! There is no recovery yet: when the connection is lost, calls fail, and one
//! connects again.
mod controller;
mod error;
mod identity;
mod namespace;
mod queue;
mod url;

pub use controller::{Controller, IoQueue, Options};
pub use error::Error;
pub use namespace::Namespace;
pub use queue::{Completion, Full, Payload, Queue};
pub use url::{PORT, Url, UrlError};

pub use nvmf_core::host::Identity;
pub use nvmf_core::host::controller::Capabilities;

#[cfg(test)]
mod tests;
