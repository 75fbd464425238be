//! `nvmf admin-passthru` and `nvmf io-passthru`: any command, as it is.
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use nvmf_core::wire::ids::{Cid, Nsid};
use nvmf_core::wire::sqe::Sqe;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Completion, Payload};
use serde_json::json;

use super::{
    NamespaceArgs, Output, OutputArgs, ScopeArgs, hex_dump, json, number, print, succeeded,
};
use crate::exit;

/// Send any admin command
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  nvmf admin-passthru nvme+tcp://192.0.2.7/NQN --opcode 0x06 --cdw10 1 --data-len 4096 --read")]
pub(crate) struct AdminArgs {
    #[command(flatten)]
    scope: ScopeArgs,

    #[command(flatten)]
    command: CommandArgs,
}

/// Send any I/O command
#[derive(clap::Args)]
#[command(after_help = "\
Commands that write DESTROY what the namespace holds.

Example:
  nvmf io-passthru nvme+tcp://192.0.2.7/NQN --opcode 0x02 --cdw12 7 --data-len 4096 --read")]
pub(crate) struct IoArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,

    #[command(flatten)]
    command: CommandArgs,
}

/// A command. Options as nvme-cli has them, which is why -o is not --output here.
#[derive(clap::Args)]
struct CommandArgs {
    /// The opcode
    #[arg(short, long, value_name = "OPCODE", value_parser = number::<u8>)]
    opcode: u8,

    /// Flags; those that the transport sets are not changed
    #[arg(short, long, value_name = "BYTE", value_parser = number::<u8>, default_value = "0")]
    flags: u8,

    /// Command dword 2
    #[arg(short = '2', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    cdw2: u32,

    /// Command dword 3
    #[arg(short = '3', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    cdw3: u32,

    /// Command dword 10
    #[arg(short = '4', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    cdw10: u32,

    /// Command dword 11
    #[arg(short = '5', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    cdw11: u32,

    /// Command dword 12
    #[arg(short = '6', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    cdw12: u32,

    /// Command dword 13
    #[arg(short = '7', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    cdw13: u32,

    /// Command dword 14
    #[arg(short = '8', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    cdw14: u32,

    /// Command dword 15
    #[arg(short = '9', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    cdw15: u32,

    /// Bytes of data
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = number::<u32>, default_value = "0")]
    data_len: u32,

    /// A file with the data to send, or for the data that come [default: standard input or output]
    #[arg(short, long, value_name = "FILE")]
    input_file: Option<PathBuf>,

    /// Data come from the controller
    #[arg(short, long, conflicts_with = "write")]
    read: bool,

    /// Data go to the controller
    #[arg(short, long)]
    write: bool,

    /// Show the command before it is sent
    #[arg(short, long, help_heading = "Output")]
    show_command: bool,

    /// Show the command instead of sending it
    #[arg(short, long, help_heading = "Output")]
    dry_run: bool,

    /// Show how long it took
    #[arg(short = 'T', long, help_heading = "Output")]
    latency: bool,

    /// Print the bytes as they came
    #[arg(short = 'b', long, conflicts_with = "output", help_heading = "Output")]
    raw_binary: bool,

    /// What to print
    #[arg(long, visible_alias = "output-format", value_name = "FORMAT", value_enum,
          default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// Sends an admin command.
pub(crate) fn admin(args: &AdminArgs) -> anyhow::Result<()> {
    let payload = args.command.payload()?;
    let (controller, nsid) = args.scope.connect()?;
    let sqe = args.command.sqe(nsid.unwrap_or(Nsid(0)));
    args.command.run(&sqe, sqe.admin_opcode().name(), |sqe| {
        Ok(controller.admin(sqe, payload)?)
    })
}

/// Sends an I/O command.
pub(crate) fn io(args: &IoArgs) -> anyhow::Result<()> {
    let payload = args.command.payload()?;
    let mut namespace = args.namespace.open()?;
    let sqe = args.command.sqe(namespace.nsid());
    args.command.run(&sqe, sqe.io_opcode().name(), |sqe| {
        Ok(namespace.passthrough(sqe, payload)?)
    })
}

impl CommandArgs {
    fn sqe(&self, nsid: Nsid) -> Sqe {
        let mut sqe = Sqe::new(self.opcode, Cid(0)).with_nsid(nsid);
        sqe.flags |= self.flags;
        sqe.cdw2.set(self.cdw2);
        sqe.cdw3.set(self.cdw3);
        sqe.cdw10.set(self.cdw10);
        sqe.cdw11.set(self.cdw11);
        sqe.cdw12.set(self.cdw12);
        sqe.cdw13.set(self.cdw13);
        sqe.cdw14.set(self.cdw14);
        sqe.cdw15.set(self.cdw15);
        sqe
    }

    fn payload(&self) -> anyhow::Result<Payload> {
        let len = self.data_len as usize;
        match (self.read, self.write) {
            (true, _) => Ok(Payload::Read(Buffer::zeroed(len))),
            (_, true) => {
                let path = self.input_file.clone().unwrap_or_else(|| "-".into());
                let data = super::transfer::read_file(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                let data = data.get(..len).with_context(|| {
                    let found = data.len();
                    format!(
                        "{} has {found} bytes, --data-len says {len}",
                        path.display()
                    )
                })?;
                let mut buffer = Buffer::zeroed(len);
                buffer.as_mut().copy_from_slice(data);
                Ok(Payload::Write(buffer))
            }
            _ if len > 0 => Err(exit::usage(
                "which way do the data go? Say so with --read or --write",
            )),
            _ => Ok(Payload::Nothing),
        }
    }

    fn run(
        &self,
        sqe: &Sqe,
        name: &'static str,
        send: impl FnOnce(&Sqe) -> anyhow::Result<Completion>,
    ) -> anyhow::Result<()> {
        if self.show_command || self.dry_run {
            eprintln!("{sqe}");
        }
        if self.dry_run {
            return Ok(());
        }
        let begin = Instant::now();
        let done = send(sqe)?;
        let latency = begin.elapsed();
        let done = succeeded(done, name, self.opcode)?;
        if self.latency {
            eprintln!("{:.1} µs", latency.as_secs_f64() * 1e6);
        }
        let data = done.data();
        if let (Some(path), true) = (&self.input_file, self.read) {
            std::fs::write(path, data)
                .with_context(|| format!("cannot write {}", path.display()))?;
        } else if self.raw_binary {
            return print(data);
        }
        let result = done.cqe.result.get();
        let output = OutputArgs {
            output: self.output,
        };
        let text = || {
            let shown = if self.input_file.is_none() { data } else { &[] };
            format!(
                "{name}: success, result {result:#010x}\n{}",
                hex_dump(shown, 0)
            )
        };
        let json = || json!({"opcode": self.opcode, "name": name, "result": result, "data": json::hex(data)});
        output.print(text, json)
    }
}
