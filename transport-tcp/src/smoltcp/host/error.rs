//! What can go wrong between a host and a controller.
use core::fmt;

use nvmf_core::host;
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::status::Status;

use super::super::memory::Buffer;

/// Why there is no association, or no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The interface has no address that the target could be reached from.
    NoAddress,
    /// The target's address does not answer.
    NoAnswer,
    /// Nothing listens at the target's port.
    NothingListens,
    /// What listens there does not answer ICReq.
    NoIcResp,
    /// The controller is of no use, or no more.
    Controller(host::Error),
    /// The controller has no such namespace; `None`: it has none at all.
    NoNamespace(Option<Nsid>),
    /// The namespace cannot be used by this host.
    UnusableNamespace {
        /// Which.
        nsid: Nsid,
        /// For what reason.
        why: &'static str,
    },
    /// The controller closed a connection.
    Closed,
    /// A connection was reset, or TCP has had no answer for too long.
    Lost,
    /// [`Host::abort`](super::Host::abort).
    Aborted,
}

impl From<host::Error> for Error {
    fn from(error: host::Error) -> Self {
        Self::Controller(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str("the interface has no address to reach the target from"),
            Self::NoAnswer => {
                f.write_str("the target does not answer: are its address and the gateway right?")
            }
            Self::NothingListens => {
                f.write_str("nothing listens: is the target running, and the port right?")
            }
            Self::NoIcResp => f.write_str("no answer to ICReq: is it an NVMe/TCP target?"),
            Self::Controller(error) => error.fmt(f),
            Self::NoNamespace(None) => f.write_str("the controller has no namespace for this host"),
            Self::NoNamespace(Some(nsid)) => write!(f, "the controller has no namespace {nsid}"),
            Self::UnusableNamespace { nsid, why } => {
                write!(f, "namespace {nsid} cannot be used: {why}")
            }
            Self::Closed => f.write_str("the controller closed the connection"),
            Self::Lost => f.write_str("connection lost"),
            Self::Aborted => f.write_str("the connection was given up"),
        }
    }
}

impl core::error::Error for Error {}

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The controller says so.
    Status(Status),
    /// It says success, but sent less data than was asked for.
    Short,
    /// The association is over, and nobody knows whether the controller carried the
    /// command out, or will do so yet. A write that is sent again, or another one of the
    /// same blocks, may be undone by it: [`nvmf_core::host::recovery`] says for how long.
    Lost,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => status.fmt(f),
            Self::Short => f.write_str("the controller sent less than was asked for"),
            Self::Lost => f.write_str("the association is over"),
        }
    }
}

impl core::error::Error for Failure {}

/// A command that was not taken.
#[derive(Debug)]
pub struct Rejected<'a> {
    /// Why not.
    pub reason: Reason,
    /// Its buffer.
    pub buffer: Option<Buffer<'a>>,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no association, or not yet, or it is about to end.
    NotReady,
    /// As many as fit are under way: one has to end first.
    Full,
    /// No block, or blocks that the namespace does not have.
    OutOfRange,
    /// More than a command moves.
    TooLong,
    /// The buffer is shorter than the data.
    ShortBuffer,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReady => "there is no association",
            Self::Full => "as many commands as fit are under way",
            Self::OutOfRange => "the namespace does not have these blocks",
            Self::TooLong => "that is more than a command moves",
            Self::ShortBuffer => "the buffer is shorter than the data",
        })
    }
}
