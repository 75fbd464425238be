//! `nvmf list`.
use anyhow::Context;
use nvmf_core::wire::discovery::Subtype;
use nvmf_core::wire::identify::{IdentifyController, IdentifyNamespace};
use nvmf_tcp::std::host::{Discovered, Options, Url};
use serde_json::{Value, json};

use super::{ConnectArgs, OutputArgs, connect, discover};
use crate::exit::Failures;

/// List namespaces: of a subsystem, or of all that a target offers
#[derive(clap::Args)]
#[command(after_help = "\
The URL of a target without an NQN means each subsystem that it offers, or refers to. One that
cannot be used is told on standard error, the others are listed all the same.

Examples:
  nvmf list nvme+tcp://192.0.2.7
  nvmf list nvme+tcp://192.0.2.7/NQN nvme+tcp://192.0.2.8/NQN --output json")]
pub(crate) struct Args {
    /// Targets and subsystems: nvme+tcp://HOST[:PORT][/NQN], or nvme+rdma://
    #[arg(required = true)]
    urls: Vec<Url>,

    #[command(flatten)]
    connect: ConnectArgs,

    #[command(flatten)]
    output: OutputArgs,
}

struct Row {
    /// With its NSID.
    url: Url,
    controller: Box<IdentifyController>,
    namespace: Box<IdentifyNamespace>,
}

/// A namespace a line.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut failures = Failures::new(args.output.output);
    for url in &args.urls {
        let options = args.connect.options(url)?;
        match subsystems(url, &options, &mut failures) {
            Ok(urls) => {
                for url in urls {
                    if let Err(error) = namespaces(&url, &options, &mut rows) {
                        failures.add(error.context(url));
                    }
                }
            }
            Err(error) => failures.add(error.context(url.clone())),
        }
    }
    if !rows.is_empty() || failures.is_empty() {
        args.output.print(
            || table(&rows),
            || json!({"Devices": rows.iter().map(Row::json).collect::<Value>()}),
        )?;
    }
    failures.finish()
}

/// The URLs of subsystems that a URL means, each once.
fn subsystems(url: &Url, options: &Options, failures: &mut Failures) -> anyhow::Result<Vec<Url>> {
    if url.subnqn.is_some() {
        return Ok(vec![url.clone()]);
    }
    let mut urls: Vec<Url> = Vec::new();
    for Discovered { entry, .. } in discover::all(url, options, failures)? {
        if entry.subtype() == Subtype::Nvm
            && let Some(found) = discover::url(&entry)
            && found.transport == url.transport
        {
            let found = Url {
                parameters: url.parameters.clone(),
                ..found
            };
            if !urls.contains(&found) {
                urls.push(found);
            }
        }
    }
    Ok(urls)
}

fn namespaces(url: &Url, options: &Options, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let controller = connect(url, options)?;
    let identify = controller.identify()?;
    let active = controller
        .active_namespaces()
        .context("cannot list the namespaces")?;
    for nsid in active {
        if url.nsid.is_none_or(|wanted| wanted == nsid) {
            rows.push(Row {
                url: Url {
                    nsid: Some(nsid),
                    ..url.clone()
                },
                controller: identify.clone(),
                namespace: controller.identify_namespace(nsid)?,
            });
        }
    }
    Ok(())
}

impl Row {
    fn block_size(&self) -> u64 {
        let format = self.namespace.format();
        format
            .and_then(|format| format.block_size())
            .unwrap_or_default()
            .into()
    }

    fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.block_size())
    }

    fn cells(&self) -> [String; 5] {
        [
            self.url.to_string(),
            indicatif::BinaryBytes(self.bytes(self.namespace.nsze.get())).to_string(),
            format!("{} B", self.block_size()),
            self.controller.mn.to_string(),
            self.controller.sn.to_string(),
        ]
    }

    /// With nvme-cli's names; what it has as a device's path is a URL here.
    fn json(&self) -> Value {
        let blocks = self.namespace.nsze.get();
        json!({
            "NameSpace": self.url.nsid.map(|nsid| nsid.0),
            "DevicePath": self.url.to_string(),
            "Firmware": self.controller.fr.to_string(),
            "ModelNumber": self.controller.mn.to_string(),
            "SerialNumber": self.controller.sn.to_string(),
            "UsedBytes": self.bytes(self.namespace.nuse.get()),
            "MaximumLBA": blocks,
            "PhysicalSize": self.bytes(blocks),
            "SectorSize": self.block_size(),
        })
    }
}

/// In columns as wide as need be.
fn table(rows: &[Row]) -> String {
    let heading = ["URL", "Size", "Block", "Model", "Serial"].map(str::to_owned);
    let lines: Vec<[String; 5]> = [heading]
        .into_iter()
        .chain(rows.iter().map(Row::cells))
        .collect();
    let mut text = String::new();
    for line in &lines {
        let padded = line.iter().enumerate().map(|(column, cell)| {
            let width = lines.iter().map(|line| line[column].chars().count()).max();
            format!("{cell:<0$}", width.unwrap_or_default())
        });
        let padded: Vec<String> = padded.collect();
        text += padded.join("  ").trim_end();
        text.push('\n');
    }
    text
}
