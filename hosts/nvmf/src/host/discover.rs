//! `nvmf discover`.
use nvmf_core::wire::discovery::{DiscoveryEntry, Trtype};
use nvmf_tcp::std::host::Url;
use serde_json::{Value, json};

use super::{ConnectArgs, OutputArgs, connect};

/// List the subsystems that a target offers
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nvmf discover nvme+tcp://192.0.2.7
  nvmf discover nvme+tcp://192.0.2.7:4420 --output json")]
pub(crate) struct Args {
    /// The target: nvme+tcp://HOST[:PORT]; the port is 4420 if it is left out
    url: Url,

    #[command(flatten)]
    connect: ConnectArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Prints an entry a line.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let controller = connect(&args.url, &args.connect.options())?;
    let entries = controller.discover()?;
    let text = || entries.iter().map(|entry| line(entry) + "\n").collect();
    Ok(args.output.print(text, || records(&entries))?)
}

/// With a URL where there is one, to be used with other commands.
fn line(entry: &DiscoveryEntry) -> String {
    match url(entry) {
        Some(url) => format!("{url}  {}", entry.subtype()),
        None => entry.to_string(),
    }
}

/// Where the entry leads to, if this host can go there.
pub(super) fn url(entry: &DiscoveryEntry) -> Option<Url> {
    if entry.trtype() != Trtype::Tcp {
        return None;
    }
    Some(Url {
        host: entry.traddr()?.to_owned(),
        port: entry.trsvcid()?.parse().ok()?,
        subnqn: Some(entry.subnqn().ok()?),
        nsid: None,
    })
}

/// The log, under nvme-cli's names.
pub(super) fn records(entries: &[DiscoveryEntry]) -> Value {
    json!({"records": entries.iter().map(object).collect::<Value>()})
}

fn object(entry: &DiscoveryEntry) -> Value {
    let subnqn = entry.subnqn().map(|nqn| nqn.to_string());
    json!({
        "trtype": entry.trtype().to_string(),
        "adrfam": entry.adrfam().to_string(),
        "subtype": entry.subtype().to_string(),
        "treq": entry.treq().to_string(),
        "portid": entry.portid.get(),
        "trsvcid": entry.trsvcid().unwrap_or_default(),
        "subnqn": subnqn.unwrap_or_default(),
        "traddr": entry.traddr().unwrap_or_default(),
        "eflags": entry.eflags().to_string(),
        "url": url(entry).map(|url| url.to_string()),
    })
}
