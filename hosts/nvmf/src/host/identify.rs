//! `nvmf id-ctrl` and `nvmf id-ns`.
use std::io::{self, Write};

use nvmf_core::wire::tree::Tree;
use nvmf_tcp::std::host::Url;

use super::{ConnectArgs, only_namespace};

/// Show what a controller says of itself (Identify Controller)
#[derive(clap::Args)]
pub(crate) struct ControllerArgs {
    /// The subsystem: nvme+tcp://HOST[:PORT]/NQN
    url: Url,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Show what a controller says of a namespace (Identify Namespace)
#[derive(clap::Args)]
pub(crate) struct NamespaceArgs {
    /// The namespace: nvme+tcp://HOST[:PORT]/NQN?nsid=N; without nsid the only one
    url: Url,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// A field a line.
pub(crate) fn controller(args: &ControllerArgs) -> anyhow::Result<()> {
    let controller = args.connect.subsystem(&args.url)?;
    let identify = controller.identify()?;
    Ok(write!(io::stdout().lock(), "{}", identify.tree())?)
}

/// A field a line.
pub(crate) fn namespace(args: &NamespaceArgs) -> anyhow::Result<()> {
    let controller = args.connect.subsystem(&args.url)?;
    let nsid = match args.url.nsid {
        Some(nsid) => nsid,
        None => only_namespace(&controller)?,
    };
    let identify = controller.identify_namespace(nsid)?;
    Ok(write!(io::stdout().lock(), "{}", identify.tree())?)
}
