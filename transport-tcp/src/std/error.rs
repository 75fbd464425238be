//! What can go wrong while a target starts, and what to do about it.
use std::io;
use std::net::SocketAddr;

use nvmf_core::wire::ids::Nqn;

/// Why a target cannot start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// EADDRINUSE.
    #[error(
        "address in use: another process listens on {address}; choose another address or stop it"
    )]
    AddressInUse {
        /// Where the target was to listen.
        address: SocketAddr,
    },
    /// EADDRNOTAVAIL.
    #[error("no interface of this machine has the address {}; choose one that `ip address` lists", .address.ip())]
    AddressNotAvailable {
        /// Where the target was to listen.
        address: SocketAddr,
    },
    /// EACCES or EPERM while binding or setting options.
    #[error(
        "not permitted to listen on {address} with these options; ports below 1024 and priorities above 6 take privileges"
    )]
    ListenNotPermitted {
        /// Where the target was to listen.
        address: SocketAddr,
    },
    /// Anything else while binding.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where the target was to listen.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There is no library for RDMA; this says what to install.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    NoRdma(nvmf_rdma::ibv::Missing),
    /// No RDMA device has the address, or it refuses something.
    #[cfg(feature = "rdma")]
    #[error("cannot listen on {address} by RDMA: {reason}")]
    Rdma {
        /// Where the target was to listen.
        address: SocketAddr,
        /// What was wrong.
        reason: String,
    },
    /// [`Config::listen`](super::target::Config::listen) is empty.
    #[error("the target listens nowhere; give it an address")]
    NoListener,
    /// A value is out of its range.
    #[error("{what} is {value}; it must be {range}")]
    OutOfRange {
        /// Which value.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// Two subsystems have one name, or one has the discovery service's.
    #[error("the name {0} is taken; every subsystem needs one of its own")]
    NqnTaken(Box<Nqn>),
    /// Text that goes into a field of ASCII characters on the wire.
    #[error("{what} `{value}` does not fit: it must be 1 to {max} printable ASCII characters")]
    Text {
        /// Which text.
        what: &'static str,
        /// What it is.
        value: String,
        /// Characters at most.
        max: usize,
    },
    /// The system has no threads, file descriptors or memory left.
    #[error("cannot start worker {worker}")]
    Start {
        /// Counted from 0.
        worker: usize,
        /// What the system said.
        source: io::Error,
    },
    /// A worker thread panicked: a fault of this crate.
    #[error(
        "worker {worker} panicked, so the target stopped; please report this with the panic's message"
    )]
    WorkerPanicked {
        /// Counted from 0.
        worker: usize,
    },
}

impl Error {
    pub(super) fn listen(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::AddressInUse { address },
            io::ErrorKind::AddrNotAvailable => Self::AddressNotAvailable { address },
            io::ErrorKind::PermissionDenied => Self::ListenNotPermitted { address },
            _ => Self::Listen { address, source },
        }
    }

    pub(super) fn start(worker: usize, source: io::Error) -> Self {
        Self::Start { worker, source }
    }
}
