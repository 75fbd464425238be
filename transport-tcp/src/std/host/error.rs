//! What can go wrong between a host and a controller.
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nvmf_core::host;
use nvmf_core::rdma::Fault;
use nvmf_core::wire::cm::CmStatus;
use nvmf_core::wire::status::Status;

/// Why a host cannot do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name has no address.
    #[error("cannot find the address of `{host}`")]
    Resolve {
        /// The name.
        host: String,
        /// What the system said.
        source: io::Error,
    },
    /// ECONNREFUSED.
    #[error("nothing listens on {address}: is the target running, and the port right?")]
    NothingListens {
        /// Where the target was to be.
        address: SocketAddr,
    },
    /// Anything else while connecting.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where the target was to be.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There is no connecting from the address or the interface that options name.
    #[error(
        "cannot connect from the address or interface that was asked for (host_traddr, host_iface)"
    )]
    From {
        /// What the system said.
        source: io::Error,
    },
    /// Something listens there, but it does not speak NVMe/TCP.
    #[error("{address} did not answer ICReq: is it an NVMe/TCP target?")]
    NoIcResp {
        /// Where the target was to be.
        address: SocketAddr,
    },
    /// RDMA is not possible here: what is missing.
    #[error("{0}")]
    NoRdma(String),
    /// No RDMA device has a way to the target.
    #[error("no RDMA device leads to {address}; `rdma link` shows which there are")]
    NoRdmaDevice {
        /// Where the target was to be.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// An RDMA device, or the system, does not have what a queue takes.
    #[error("the RDMA device refuses {what}")]
    RdmaDevice {
        /// What.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Memory for data has to be pinned, and the system permits no more of it.
    #[error(
        "the system lets no more memory be pinned for RDMA: raise the limit of locked memory (`ulimit -l`, RLIMIT_MEMLOCK), or have fewer and smaller commands under way"
    )]
    RdmaMemory,
    /// A command has more data than the transport can describe.
    #[error("a command with {len} bytes of data: over RDMA there are {most} at most")]
    TooLong {
        /// Bytes that it has.
        len: u32,
        /// Bytes that it may have.
        most: u32,
    },
    /// The target rejected an RDMA connection.
    #[error("{address} rejects the connection{}", said(*.status))]
    Rejected {
        /// Where the target is.
        address: SocketAddr,
        /// For what reason, if it says so: one that stops does not.
        status: Option<CmStatus>,
    },
    /// A connection manager rejected an RDMA connection, not the target.
    #[error("the RDMA connection manager of {address} rejects the connection: reason {reason}{}", named(*.reason))]
    ConnectionManager {
        /// Where the target was to be.
        address: SocketAddr,
        /// A code of InfiniBand's REJ (InfiniBand Architecture 1, section 12.6.7.2), or an
        /// error number, negative.
        reason: i32,
    },
    /// The controller broke NVMe/RDMA.
    #[error("the controller breaks NVMe/RDMA: {0}")]
    RdmaFault(Fault),
    /// The controller is of no use, or no more.
    #[error(transparent)]
    Controller(#[from] host::Error),
    /// The controller closed the connection.
    #[error("the controller closed the connection")]
    Closed,
    /// The connection broke.
    #[error("connection lost")]
    Lost(#[from] io::Error),
    /// A command ended with this status.
    #[error("{command} failed: {}", describe(*.opcode, *.status))]
    Failed {
        /// The command's name.
        command: &'static str,
        /// Its opcode, which the meaning of some codes depends on.
        opcode: u8,
        /// What the controller says.
        status: Status,
    },
    /// A command did not end in time.
    #[error("{command} was not answered within {} s", .after.as_secs_f32())]
    Timeout {
        /// The command's name.
        command: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// An earlier command did not end in time.
    #[error("the connection was given up, because a command was not answered in time")]
    GivenUp,
    /// The controller was not reached for as long as `fast_io_fail_tmo` allows.
    #[error(
        "the controller is not reached, and commands do not wait for it any longer (fast_io_fail_tmo)"
    )]
    FailFast,
    /// The command may have taken effect, or may do so yet.
    #[error(
        "the connection was lost, and without keep alive nobody knows whether the controller carried the command out"
    )]
    FateUnknown,
    /// Under the same NSID there is another namespace now.
    #[error("namespace {nsid} is not the one that it was: open it again if that is intended")]
    NamespaceReplaced {
        /// Which.
        nsid: u32,
    },
    /// The controller does not have the command.
    #[error("the controller does not offer {command}")]
    NotOffered {
        /// The command's name.
        command: &'static str,
    },
    /// The controller has no such namespace.
    #[error("the controller has no namespace {nsid}; it has {}", list(.active))]
    NoSuchNamespace {
        /// Which.
        nsid: u32,
        /// Those that it has.
        active: Vec<u32>,
    },
    /// The namespace cannot be used by this host.
    #[error("namespace {nsid} cannot be used: {why}")]
    UnusableNamespace {
        /// Which.
        nsid: u32,
        /// For what reason.
        why: &'static str,
    },
    /// Data that is not a whole number of blocks.
    #[error("{len} bytes are not a whole number of blocks of {block_size} bytes")]
    NotWholeBlocks {
        /// Bytes that there are.
        len: usize,
        /// Bytes of a block.
        block_size: u32,
    },
    /// The controller grants no more I/O queues.
    #[error("the controller grants {granted} I/O queues, and all of them are in use")]
    NoQueueLeft {
        /// As many as it grants.
        granted: u16,
    },
    /// A discovery log cannot be read.
    #[error(transparent)]
    Log(#[from] host::discovery::LogError),
    /// What came back is too short, or contradicts itself.
    #[error("the controller's answer to {command} makes no sense")]
    Nonsense {
        /// The command's name.
        command: &'static str,
    },
    /// The system has no thread for keep alive, or for a host's queues.
    #[error("cannot start a thread of the host")]
    Thread(#[source] io::Error),
}

impl Error {
    pub(super) fn connect(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::ConnectionRefused => Self::NothingListens { address },
            _ => Self::Connect { address, source },
        }
    }
}

fn said(status: Option<CmStatus>) -> String {
    match status {
        Some(status) => format!(": {status}"),
        None => " and does not say why; a target that stops does so".to_owned(),
    }
}

/// Those reasons of a connection manager's that somebody can do something about.
fn named(reason: i32) -> &'static str {
    match reason {
        1 | 3 => " (it has no room)",
        4 => " (timeout)",
        10 => " (the last connection is not over there)",
        12 | 13 => " (wrong address)",
        _ => "",
    }
}

fn describe(opcode: u8, status: Status) -> String {
    let Status { sct, sc, dnr, .. } = status;
    let retry = if dnr { " DNR" } else { "" };
    format!("{} ({sct}/{sc:02X}h){retry}", status.name_for(opcode))
}

fn list(nsids: &[u32]) -> String {
    match nsids {
        [] => "none".to_owned(),
        nsids => {
            let texts: Vec<String> = nsids.iter().map(u32::to_string).collect();
            texts.join(", ")
        }
    }
}
