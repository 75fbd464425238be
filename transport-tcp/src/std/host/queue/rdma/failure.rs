//! Why there is no RDMA connection, or none any more, and how that is said.
use std::io;
use std::net::SocketAddr;

use nvmf_core::rdma::Fault;
use nvmf_core::wire::cm::CmStatus;
use nvmf_core::wire::sgl::Sgl;
use nvmf_rdma::host::Why;
use nvmf_rdma::ibv::{self, OpenError};
use nvmf_rdma::verbs::{self, Outcome};
use rustix::io::Errno;

use super::super::super::error::Error;
use super::super::Failure as QueueFailure;

/// What RDMA adds to a queue's failures.
#[derive(Clone, Copy, Debug)]
pub(in super::super::super) enum Failure {
    /// libibverbs and librdmacm are not there.
    NoLibrary,
    /// No device has the way to the controller.
    NoDevice(Errno),
    /// The device, or the system, does not give this.
    Device(&'static str, Errno),
    /// The controller's word, if it said one.
    Rejected(Option<CmStatus>),
    /// A connection manager rejected the connection, for this reason.
    Refused(i32),
    /// It breaks the transport.
    Fault(Fault),
    /// A work request failed.
    Request(Outcome),
    /// The system lets no more memory be registered.
    NoMemory,
    /// A command has more bytes of data than a keyed descriptor can say.
    TooLong(u32),
}

impl From<Failure> for QueueFailure {
    fn from(failure: Failure) -> Self {
        Self::Rdma(failure)
    }
}

impl Failure {
    pub(super) fn of_open(error: OpenError) -> Self {
        let errno = |error: &io::Error| Errno::from_io_error(error).unwrap_or(Errno::NODEV);
        match error {
            OpenError::Missing(_) => Self::NoLibrary,
            OpenError::NoDevice(_, error) => Self::NoDevice(errno(&error)),
            OpenError::Device(what, error) => Self::Device(what, errno(&error)),
        }
    }

    pub(super) fn of_verbs(what: &'static str, error: verbs::Error) -> Self {
        Self::Device(
            what,
            match error {
                verbs::Error::Full | verbs::Error::NoResources => Errno::NOMEM,
                verbs::Error::Unsupported => Errno::OPNOTSUPP,
                verbs::Error::Invalid => Errno::INVAL,
                verbs::Error::NotConnected => Errno::NOTCONN,
                verbs::Error::Other(number) => Errno::from_raw_os_error(number),
            },
        )
    }

    /// Why there is no registered memory.
    pub(super) fn of_memory(error: verbs::Error) -> Self {
        match error {
            verbs::Error::NoResources => Self::NoMemory,
            error => Self::of_verbs("memory", error),
        }
    }

    /// What a queue's end means to those who use it.
    pub(super) fn of_end(why: Why) -> QueueFailure {
        match why {
            Why::Rejected(status) => Self::Rejected(status).into(),
            Why::NobodyListens => QueueFailure::Connect(Errno::CONNREFUSED),
            Why::Refused(reason) => Self::Refused(reason).into(),
            Why::Unreachable => QueueFailure::Connect(Errno::HOSTUNREACH),
            Why::Fault(fault) => Self::Fault(fault).into(),
            Why::Failed(outcome) => Self::Request(outcome).into(),
            Why::Disconnected => QueueFailure::Lost(Errno::NODEV),
        }
    }

    pub(in super::super) fn error(self, address: SocketAddr) -> Error {
        match self {
            Self::NoLibrary => {
                let missing = ibv::available().map_err(|missing| missing.to_string());
                Error::NoRdma(missing.err().unwrap_or_default())
            }
            Self::NoDevice(errno) => Error::NoRdmaDevice {
                address,
                source: errno.into(),
            },
            Self::Device(what, errno) => Error::RdmaDevice {
                what,
                source: errno.into(),
            },
            Self::Rejected(status) => Error::Rejected { address, status },
            Self::Refused(reason) => Error::ConnectionManager { address, reason },
            Self::Fault(fault) => Error::RdmaFault(fault),
            Self::Request(outcome) => Error::Lost(io::Error::other(outcome.to_string())),
            Self::NoMemory => Error::RdmaMemory,
            Self::TooLong(len) => Error::TooLong {
                len,
                most: Sgl::KEYED_MAX,
            },
        }
    }
}
