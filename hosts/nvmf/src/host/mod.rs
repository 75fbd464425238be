//! The commands of a host.
//!
//! | module | commands |
//! |---|---|
//! | [`discover`] | `nvmf discover` |
//! | [`identify`] | `nvmf id-ctrl`, `nvmf id-ns` |
//! | [`transfer`] | `nvmf read`, `nvmf write`, `nvmf compare` |
//! | [`bench`] | `nvmf bench` |
//! | [`ping`] | `nvmf ping` |
//! | [`demo`] | `nvmf demo` |
pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod discover;
pub(crate) mod identify;
mod json;
pub(crate) mod ping;
pub(crate) mod transfer;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use nvmf_core::host::Error as HostError;
use nvmf_core::wire::connect::InvalidParameter;
use nvmf_core::wire::discovery::Subtype;
use nvmf_core::wire::ids::{HostId, Nqn, Nsid};
use nvmf_core::wire::status::Status;
use nvmf_tcp::std::host::{Controller, Error, Namespace, Options, Url};

/// How to connect.
#[derive(clap::Args)]
pub(crate) struct ConnectArgs {
    /// Ask for header digests (CRC32C)
    #[arg(long, help_heading = "Connection")]
    hdgst: bool,

    /// Ask for data digests (CRC32C)
    #[arg(long, help_heading = "Connection")]
    ddgst: bool,

    /// This host's name [default: /etc/nvme/hostnqn, or else a random one]
    #[arg(long, value_name = "NQN", help_heading = "Connection")]
    hostnqn: Option<Nqn>,

    /// This host's identifier [default: /etc/nvme/hostid, or else a random one]
    #[arg(long, value_name = "UUID", help_heading = "Connection")]
    hostid: Option<HostId>,
}

/// What the output is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

impl ConnectArgs {
    pub(crate) fn options(&self) -> Options {
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
        options
    }

    /// Connects to the subsystem that the URL names.
    pub(crate) fn subsystem(&self, url: &Url) -> anyhow::Result<Controller> {
        if url.subnqn.is_none() {
            return Err(anyhow!(
                "{url} names no subsystem; `nvmf discover {url}` lists what there is"
            ));
        }
        connect(url, &self.options())
    }

    /// The namespace that the URL names, or the only one.
    pub(crate) fn namespace(&self, url: &Url) -> anyhow::Result<Namespace> {
        let controller = self.subsystem(url)?;
        let nsid = match url.nsid {
            Some(nsid) => nsid,
            None => only_namespace(&controller)?,
        };
        Ok(controller.namespace(nsid)?)
    }
}

/// Connects; if that is refused, says what to do about it.
pub(crate) fn connect(url: &Url, options: &Options) -> anyhow::Result<Controller> {
    Controller::connect(url, options).map_err(|error| {
        let hint = match &error {
            Error::Controller(HostError::Refused {
                status, parameter, ..
            }) => hint(url, options, *status, *parameter),
            _ => None,
        };
        match hint {
            Some(hint) => anyhow!("{error}; {hint}"),
            None => error.into(),
        }
    })
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

fn only_namespace(controller: &Controller) -> anyhow::Result<Nsid> {
    let active = controller
        .active_namespaces()
        .context("cannot list the namespaces")?;
    match active.as_slice() {
        [nsid] => Ok(*nsid),
        [] => Err(anyhow!("the subsystem has no namespace for this host")),
        several => {
            let list: Vec<String> = several.iter().map(|nsid| nsid.0.to_string()).collect();
            Err(anyhow!(
                "which namespace? Add ?nsid=N to the URL; there are {}",
                list.join(", ")
            ))
        }
    }
}
