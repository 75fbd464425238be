//! How a host connects.
use std::net::IpAddr;
use std::time::Duration;

use nvmf_core::host::Identity;
use nvmf_core::host::recovery::Policy;
use nvmf_core::tcp::host as tcp;

use super::identity;

/// What carries commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA, by the devices of the operating system.
    Rdma,
}

/// By which key a controller reaches a command's data over RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RdmaKey {
    /// One key for all memory that the queue moves data through: it costs nothing, and the
    /// controller may reach the data of all commands of the queue, also of those that ended.
    #[default]
    Region,
    /// A key for each command, a memory window of type 2, which ends with the command: a work
    /// request more, and a SEND of the controller's that invalidates it.
    Window,
}

/// How a host connects. Start from [`Options::default`].
#[derive(Clone, Debug)]
pub struct Options {
    /// What carries commands: of those who connect by a URL, its scheme decides.
    pub transport: Transport,
    /// Who we are. By default what `/etc/nvme/hostnqn` and `hostid` say, or else a
    /// random name, the same for as long as the process lives.
    pub identity: Identity,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// Commands that an I/O queue holds; fewer if the controller cannot.
    pub queue_depth: u32,
    /// I/O queues to ask the controller for.
    pub io_queues: u16,
    /// Keep alive timeout: so long after the last sign of life, the controller gives
    /// up on this host. Zero is none.
    pub keep_alive: Duration,
    /// How long connecting may take, each connection.
    pub connect_timeout: Duration,
    /// How long a command may take.
    pub command_timeout: Duration,
    /// Do with SQ flow control, which costs a completion for each read.
    pub sq_flow_control: bool,
    /// The address to connect from; `None` leaves it to the system.
    pub host_traddr: Option<IpAddr>,
    /// The network interface to connect through (SO_BINDTODEVICE); `None` leaves it
    /// to the system.
    pub host_iface: Option<String>,
    /// The byte of the IP header that holds DSCP (upper six bits) and ECN.
    pub tos: Option<u8>,
    /// SO_PRIORITY of the connections: 0 to 6, and more with CAP_NET_ADMIN.
    pub so_priority: Option<u32>,
    /// By which key a controller reaches data over RDMA.
    pub rdma_key: RdmaKey,
    /// When a [`Host`](super::Host) connects again after a loss, and when it gives up:
    /// `reconnect_delay`, `ctrl_loss_tmo` and `fast_io_fail_tmo`.
    pub recovery: Policy,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: Transport::default(),
            identity: identity::of_this_process(),
            header_digest: false,
            data_digest: false,
            queue_depth: 128,
            io_queues: 8,
            keep_alive: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            command_timeout: Duration::from_secs(30),
            sq_flow_control: false,
            host_traddr: None,
            host_iface: None,
            tos: None,
            so_priority: None,
            rdma_key: RdmaKey::default(),
            recovery: Policy::default(),
        }
    }
}

impl Options {
    pub(super) fn tcp(&self) -> tcp::Config {
        tcp::Config {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            crc32c: crate::digest::crc32c,
            icresp_timeout: self.connect_timeout,
            ..tcp::Config::default()
        }
    }
}
