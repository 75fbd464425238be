//! `nvmf discover`.
use anyhow::anyhow;
use nvmf_core::host::discovery::Why;
use nvmf_core::wire::discovery::{DiscoveryEntry, Trtype};
use nvmf_tcp::std::host::{self, Discovered, Options, Parameters, Problem, Transport, Url};
use serde_json::{Value, json};

use super::connection::explain;
use super::{ConnectArgs, OutputArgs};
use crate::exit::Failures;

/// List the subsystems that a target offers
#[derive(clap::Args)]
#[command(after_help = "\
Other discovery controllers that the target refers to are asked, too. If one of them does not
answer, that is told on standard error, and in the exit status; the rest is shown.

Examples:
  nvmf discover nvme+tcp://192.0.2.7
  nvmf discover nvme+tcp://192.0.2.7:4420 --output json")]
pub(crate) struct Args {
    /// The target: nvme+tcp://HOST[:PORT], or nvme+rdma://; the port is 4420 if it is left out
    url: Url,

    #[command(flatten)]
    connect: ConnectArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Prints an entry a line.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut failures = Failures::new(args.output.output);
    let options = args.connect.options(&args.url)?;
    let found = all(&args.url, &options, &mut failures)?;
    let text = || found.iter().map(|found| line(found) + "\n").collect();
    let json = || {
        let entries = found.iter().map(|found| {
            let mut object = object(&found.entry);
            object["from"] = found.from.to_string().into();
            object
        });
        json!({"records": entries.collect::<Value>()})
    };
    args.output.print(text, json)?;
    failures.finish()
}

/// All that a target offers, and those that it refers to. What is missing is a failure
/// beside that.
pub(super) fn all(
    url: &Url,
    options: &Options,
    failures: &mut Failures,
) -> anyhow::Result<Vec<Discovered>> {
    let found = host::discover(url, options).map_err(|error| explain(error, url, options))?;
    for problem in found.problems {
        match problem {
            // Whoever asked over TCP need not have one.
            Problem::Unreachable {
                error: host::Error::NoRdmaDevice { .. },
                ..
            } if url.transport == Transport::Tcp => tracing::info!("{problem}"),
            Problem::Unreachable { controller, error } => {
                let context = format!("the referral to {controller} leads nowhere");
                failures.add(anyhow::Error::from(error).context(context));
            }
            Problem::NotFollowed {
                why: Why::TooDeep | Why::TooMany,
                ..
            } => failures.add(anyhow!("{problem}")),
            // Its entry is shown, and says why.
            Problem::NotFollowed { .. } => tracing::info!("{problem}"),
        }
    }
    Ok(found.entries)
}

/// With a URL where there is one, to be used with other commands.
fn line(found: &Discovered) -> String {
    let entry = &found.entry;
    let from = match found.from.depth {
        0 => String::new(),
        _ => format!(", says {}", found.from),
    };
    match url(entry) {
        Some(url) => format!("{url}  {}{from}", entry.subtype()),
        None => format!("{entry}{from}"),
    }
}

/// Where the entry leads to, if this host can go there.
pub(super) fn url(entry: &DiscoveryEntry) -> Option<Url> {
    Some(Url {
        transport: match entry.trtype() {
            Trtype::Tcp => Transport::Tcp,
            Trtype::Rdma => Transport::Rdma,
            _ => return None,
        },
        host: entry.traddr()?.to_owned(),
        port: entry.trsvcid()?.parse().ok()?,
        subnqn: Some(entry.subnqn().ok()?),
        nsid: None,
        parameters: Parameters::default(),
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
