//! Which target, how to connect to it, and what to say when that fails.
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use nvmf_core::host::Error as HostError;
use nvmf_core::wire::connect::InvalidParameter;
use nvmf_core::wire::discovery::Subtype;
use nvmf_core::wire::ids::{HostId, Nqn, Nsid};
use nvmf_core::wire::status::Status;
use nvmf_tcp::std::host::{
    Association, Controller, Error, Host, Namespace, Options, Policy, RdmaKey, SharedNamespace,
    Transport, Url,
};

use super::number;
use crate::exit;

/// How to connect.
#[derive(clap::Args)]
pub(crate) struct ConnectArgs {
    /// Ask for header digests (CRC32C; TCP only)
    #[arg(long, visible_alias = "hdr-digest", help_heading = "Connection")]
    hdgst: bool,

    /// Ask for data digests (CRC32C; TCP only)
    #[arg(long, visible_alias = "data-digest", help_heading = "Connection")]
    ddgst: bool,

    /// This host's name [default: /etc/nvme/hostnqn, or else a random one]
    #[arg(long, value_name = "NQN", help_heading = "Connection")]
    hostnqn: Option<Nqn>,

    /// This host's identifier [default: /etc/nvme/hostid, or else a random one]
    #[arg(long, value_name = "UUID", help_heading = "Connection")]
    hostid: Option<HostId>,

    /// I/O queues to ask for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Connection")]
    nr_io_queues: Option<u16>,

    /// Entries of an I/O queue
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=65536), help_heading = "Connection")]
    queue_size: Option<u32>,

    /// Seconds without a sign of life after which the target gives up on this host; 0 is never
    #[arg(long, value_name = "SECONDS", help_heading = "Connection")]
    keep_alive_tmo: Option<u32>,

    /// The address to connect from
    #[arg(long, value_name = "ADDR", help_heading = "Connection")]
    host_traddr: Option<IpAddr>,

    /// The network interface to connect through
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    host_iface: Option<String>,

    /// The TOS or traffic class byte of packets: DSCP times 4 (TCP only)
    #[arg(long, value_name = "BYTE", value_parser = number::<u8>, help_heading = "Connection")]
    tos: Option<u8>,

    /// Priority of packets within this machine (SO_PRIORITY), 0 to 6 (TCP only)
    #[arg(long, value_name = "N", help_heading = "Connection")]
    so_priority: Option<u32>,

    /// Over RDMA, by which key the target reaches data: one for all of the queue's memory, or a
    /// memory window for each command [default: region]
    #[arg(long, value_name = "region|window", value_parser = rdma_key, help_heading = "Connection")]
    rdma_key: Option<RdmaKey>,
}

fn rdma_key(text: &str) -> Result<RdmaKey, &'static str> {
    match text {
        "region" => Ok(RdmaKey::Region),
        "window" => Ok(RdmaKey::Window),
        _ => Err("write region or window"),
    }
}

/// What to do when the connection is lost.
#[derive(clap::Args)]
pub(crate) struct RecoveryArgs {
    /// Seconds from a loss, or a failed attempt, to the next attempt [default: 10]
    #[arg(short = 'c', long, value_name = "SECONDS", help_heading = "Recovery")]
    reconnect_delay: Option<u32>,

    /// Seconds after which the target is given up: 0 is at once, -1 is never [default: 600]
    #[arg(
        short = 'l',
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        help_heading = "Recovery"
    )]
    ctrl_loss_tmo: Option<i64>,

    /// Seconds after which commands fail instead of waiting: 0 is at once, -1 is never
    /// [default: never]
    #[arg(
        short = 'F',
        long = "fast_io_fail_tmo",
        visible_alias = "fast-io-fail-tmo",
        value_name = "SECONDS",
        allow_negative_numbers = true,
        help_heading = "Recovery"
    )]
    fast_io_fail_tmo: Option<i64>,
}

/// A subsystem.
#[derive(clap::Args)]
pub(crate) struct SubsystemArgs {
    /// The subsystem: nvme+tcp://HOST[:PORT]/NQN, or nvme+rdma://
    url: Url,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// A subsystem, and maybe one of its namespaces.
#[derive(clap::Args)]
pub(crate) struct ScopeArgs {
    /// The subsystem: nvme+tcp://HOST[:PORT]/NQN, or nvme+rdma://, and ?nsid=N for a namespace
    url: Url,

    /// The namespace, for what belongs to one
    #[arg(short, long, value_name = "NSID", value_parser = number::<u32>)]
    namespace_id: Option<u32>,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// A namespace.
#[derive(clap::Args)]
pub(crate) struct NamespaceArgs {
    /// The namespace: nvme+tcp://HOST[:PORT]/NQN?nsid=N, or nvme+rdma://; without nsid the only one
    url: Url,

    /// The namespace, instead of ?nsid=N
    #[arg(short, long, value_name = "NSID", value_parser = number::<u32>)]
    namespace_id: Option<u32>,

    #[command(flatten)]
    connect: ConnectArgs,
}

impl ConnectArgs {
    /// How to connect to `url`.
    ///
    /// # Errors
    /// An option is of the other transport.
    pub(crate) fn options(&self, url: &Url) -> anyhow::Result<Options> {
        let mut options = Options {
            header_digest: self.hdgst,
            data_digest: self.ddgst,
            ..Options::default()
        };
        if let Some(hostnqn) = &self.hostnqn {
            options.identity.hostnqn = hostnqn.clone();
        }
        if let Some(hostid) = self.hostid {
            options.identity.hostid = hostid;
        }
        if let Some(queues) = self.nr_io_queues {
            options.io_queues = queues;
        }
        if let Some(entries) = self.queue_size {
            // One entry stays free.
            options.queue_depth = entries - 1;
        }
        if let Some(seconds) = self.keep_alive_tmo {
            options.keep_alive = Duration::from_secs(seconds.into());
        }
        options.host_traddr = self.host_traddr;
        options.host_iface.clone_from(&self.host_iface);
        options.tos = self.tos;
        options.so_priority = self.so_priority;
        options.rdma_key = self.rdma_key.unwrap_or_default();
        fits(url, &url.options(&options)).map(|()| options)
    }

    /// Connects to the subsystem that the URL names.
    pub(crate) fn subsystem(&self, url: &Url) -> anyhow::Result<Controller> {
        subsystem(url, &self.options(url)?)
    }

    /// The namespace that was given, or the only one, and its association, which connects
    /// again when it is lost.
    pub(crate) fn attach(
        &self,
        url: &Url,
        nsid: Option<Nsid>,
        recovery: &RecoveryArgs,
    ) -> anyhow::Result<(Association, SharedNamespace)> {
        names_subsystem(url)?;
        let options = Options {
            recovery: recovery.policy(),
            ..self.options(url)?
        };
        let association = Host::new(None)?
            .attach(url, &options)
            .wait()
            .map_err(|error| explain(error, url, &options))?;
        let nsid = given_or_only(nsid, || association.active_namespaces().wait())?;
        let namespace = association.namespace(nsid).wait()?;
        Ok((association, namespace))
    }

    /// The namespace that was given, or the only one, by `count` connections to
    /// `controllers` controllers, or as many as there are connections. Each connection holds
    /// `depth` commands or more, if its controller can.
    pub(crate) fn namespaces(
        &self,
        url: &Url,
        namespace_id: Option<u32>,
        count: u32,
        controllers: u32,
        depth: u16,
    ) -> anyhow::Result<Vec<Namespace>> {
        let nsid = one_nsid(url, namespace_id)?;
        let controllers = controllers.min(count).max(1);
        let each = u16::try_from(count.div_ceil(controllers)).unwrap_or(u16::MAX);
        let mut options = self.options(url)?;
        options.queue_depth = options.queue_depth.max(depth.into());
        options.io_queues = options.io_queues.max(each);
        let controllers = (0..controllers)
            .map(|_| subsystem(url, &options))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let nsid = given_or_only(nsid, || controllers[0].active_namespaces())?;
        controllers
            .iter()
            .cycle()
            .take(count as usize)
            .map(|controller| Ok(controller.namespace(nsid)?))
            .collect()
    }
}

impl RecoveryArgs {
    pub(crate) fn policy(&self) -> Policy {
        let mut policy = Policy::default();
        if let Some(seconds) = self.reconnect_delay {
            policy.reconnect_delay = Duration::from_secs(seconds.into());
        }
        if let Some(seconds) = self.ctrl_loss_tmo {
            policy.ctrl_loss_tmo = Policy::seconds(seconds);
        }
        if let Some(seconds) = self.fast_io_fail_tmo {
            policy.fast_io_fail_tmo = Policy::seconds(seconds);
        }
        policy
    }
}

impl SubsystemArgs {
    pub(crate) fn connect(&self) -> anyhow::Result<Controller> {
        self.connect.subsystem(&self.url)
    }
}

impl ScopeArgs {
    /// The controller, and the NSID that was given. The URL may name the discovery subsystem.
    pub(crate) fn connect(&self) -> anyhow::Result<(Controller, Option<Nsid>)> {
        let nsid = one_nsid(&self.url, self.namespace_id)?;
        let options = self.connect.options(&self.url)?;
        Ok((connect(&self.url, &options)?, nsid))
    }
}

impl NamespaceArgs {
    /// The controller, and the namespace that is meant.
    pub(crate) fn connect(&self) -> anyhow::Result<(Controller, Nsid)> {
        let nsid = one_nsid(&self.url, self.namespace_id)?;
        let controller = self.connect.subsystem(&self.url)?;
        let nsid = given_or_only(nsid, || controller.active_namespaces())?;
        Ok((controller, nsid))
    }

    /// The namespace that is meant.
    pub(crate) fn open(&self) -> anyhow::Result<Namespace> {
        let (controller, nsid) = self.connect()?;
        Ok(controller.namespace(nsid)?)
    }

    /// The same over a shared association, for a few commands: when the connection is lost,
    /// they fail.
    pub(crate) fn attach_once(&self) -> anyhow::Result<(Association, SharedNamespace)> {
        self.attach(&RecoveryArgs {
            reconnect_delay: None,
            ctrl_loss_tmo: Some(0),
            fast_io_fail_tmo: None,
        })
    }

    /// The namespace that is meant, and its association, which connects again when it is lost.
    pub(crate) fn attach(
        &self,
        recovery: &RecoveryArgs,
    ) -> anyhow::Result<(Association, SharedNamespace)> {
        let nsid = one_nsid(&self.url, self.namespace_id)?;
        self.connect.attach(&self.url, nsid, recovery)
    }
}

/// Whether the options are some of the transport's.
fn fits(url: &Url, options: &Options) -> anyhow::Result<()> {
    let of_tcp = [
        ("hdgst", options.header_digest),
        ("ddgst", options.data_digest),
        ("tos", options.tos.is_some()),
        ("so-priority", options.so_priority.is_some()),
    ];
    let of_rdma = [("rdma-key", options.rdma_key != RdmaKey::default())];
    let (others, transport) = match url.transport {
        Transport::Tcp => (&of_rdma[..], "RDMA"),
        Transport::Rdma => (&of_tcp[..], "TCP"),
    };
    match others.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(exit::usage(format!(
            "--{name} is of {transport}, and {url} is not"
        ))),
        None => Ok(()),
    }
}

fn one_nsid(url: &Url, option: Option<u32>) -> anyhow::Result<Option<Nsid>> {
    match (url.nsid, option.map(Nsid)) {
        (Some(url), Some(option)) if url != option => Err(exit::usage(format!(
            "the URL says namespace {}, --namespace-id says {}",
            url.0, option.0
        ))),
        (url, option) => Ok(option.or(url)),
    }
}

/// There will be no controller any more. What commands end with now says why: the last
/// attempt to connect failed so.
pub(crate) fn given_up(association: &Association) -> anyhow::Error {
    let why = association.identify().wait().err();
    let why = why.map(|error| format!(": {error}")).unwrap_or_default();
    exit::gone(format!("the target is given up{why}"))
}

fn subsystem(url: &Url, options: &Options) -> anyhow::Result<Controller> {
    names_subsystem(url)?;
    connect(url, options)
}

fn names_subsystem(url: &Url) -> anyhow::Result<()> {
    match url.subnqn {
        Some(_) => Ok(()),
        None => Err(exit::usage(format!(
            "{url} names no subsystem; `nvmf discover {url}` lists what there is"
        ))),
    }
}

/// Connects; if that is refused, says what to do about it.
pub(crate) fn connect(url: &Url, options: &Options) -> anyhow::Result<Controller> {
    Controller::connect(url, options).map_err(|error| explain(error, url, options))
}

/// Why there is no connection, and what to do about it.
pub(crate) fn explain(error: Error, url: &Url, options: &Options) -> anyhow::Error {
    let hint = match &error {
        Error::Controller(HostError::Refused {
            status, parameter, ..
        }) => hint(url, options, *status, *parameter),
        _ => None,
    };
    match hint {
        Some(hint) => exit::hinted(error, hint),
        None => error.into(),
    }
}

fn hint(
    url: &Url,
    options: &Options,
    status: Status,
    parameter: Option<InvalidParameter>,
) -> Option<String> {
    if status.is(Status::CONNECT_INVALID_HOST) {
        return Some(format!(
            "the target does not let this host in, whose name is {} (--hostnqn)",
            options.identity.hostnqn
        ));
    }
    (parameter == Some(InvalidParameter::SUBNQN)).then(|| {
        let offered = offered(url, options).unwrap_or_default();
        if offered.is_empty() {
            "is the NQN right? The target offers none to this host".to_owned()
        } else {
            format!(
                "is the NQN right? The target offers: {}",
                offered.join(", ")
            )
        }
    })
}

fn offered(url: &Url, options: &Options) -> Result<Vec<String>, Error> {
    let discovery = Url {
        subnqn: None,
        nsid: None,
        ..url.clone()
    };
    let entries = Controller::connect(&discovery, options)?.discover()?;
    let mut nqns: Vec<String> = entries
        .iter()
        .filter(|entry| entry.subtype() == Subtype::Nvm)
        .filter_map(|entry| entry.subnqn().ok())
        .map(|nqn| nqn.to_string())
        .collect();
    nqns.sort();
    nqns.dedup();
    Ok(nqns)
}

/// The namespace that was given, or the only one that is active.
fn given_or_only(
    given: Option<Nsid>,
    active: impl FnOnce() -> Result<Vec<Nsid>, Error>,
) -> anyhow::Result<Nsid> {
    if let Some(nsid) = given {
        return Ok(nsid);
    }
    let active = active().context("cannot list the namespaces")?;
    match active.as_slice() {
        [nsid] => Ok(*nsid),
        [] => Err(anyhow!("the subsystem has no namespace for this host")),
        several => {
            let list: Vec<String> = several.iter().map(|nsid| nsid.0.to_string()).collect();
            Err(exit::usage(format!(
                "which namespace? Add ?nsid=N to the URL; there are {}",
                list.join(", ")
            )))
        }
    }
}
