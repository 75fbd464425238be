//! `nvmf discover`.
use std::io::{self, Write};

use nvmf_core::wire::discovery::DiscoveryEntry;
use nvmf_tcp::std::host::Url;

use super::{ConnectArgs, Output, connect, json};

/// List the subsystems that a target offers
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nvmf discover nvme+tcp://192.0.2.7
  nvmf discover nvme+tcp://192.0.2.7:4420 --output json")]
pub(crate) struct Args {
    /// The target: nvme+tcp://HOST[:PORT]; the port is 4420 if it is left out
    url: Url,

    /// What to print
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Prints an entry a line.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let controller = connect(&args.url, &args.connect.options())?;
    let entries = controller.discover()?;
    let mut out = io::stdout().lock();
    match args.output {
        Output::Text => {
            for entry in &entries {
                writeln!(out, "{}", line(entry))?;
            }
        }
        Output::Json => {
            let objects: Vec<String> = entries.iter().map(object).collect();
            writeln!(out, "[{}]", objects.join(","))?;
        }
    }
    Ok(out.flush()?)
}

/// With a URL where there is one, to be used with other commands.
fn line(entry: &DiscoveryEntry) -> String {
    let subnqn = entry.subnqn().map(|nqn| nqn.to_string());
    match (
        entry.trtype().name(),
        entry.traddr(),
        entry.trsvcid(),
        subnqn,
    ) {
        ("tcp", Some(traddr), Some(trsvcid), Ok(subnqn)) => {
            let host = match traddr.contains(':') {
                true => format!("[{traddr}]"),
                false => traddr.to_owned(),
            };
            format!("nvme+tcp://{host}:{trsvcid}/{subnqn}  {}", entry.subtype())
        }
        _ => entry.to_string(),
    }
}

fn object(entry: &DiscoveryEntry) -> String {
    let subnqn = entry.subnqn().map(|nqn| nqn.to_string());
    format!(
        "{{\"trtype\":{},\"adrfam\":{},\"subtype\":{},\"portid\":{},\"traddr\":{},\"trsvcid\":{},\
         \"subnqn\":{}}}",
        json::string(&entry.trtype().to_string()),
        json::string(&entry.adrfam().to_string()),
        json::string(&entry.subtype().to_string()),
        entry.portid.get(),
        json::string(entry.traddr().unwrap_or_default()),
        json::string(entry.trsvcid().unwrap_or_default()),
        json::string(&subnqn.unwrap_or_default()),
    )
}
