//! `nvmf flush`, `nvmf discard`, `nvmf write-zeroes` and `nvmf verify`.
use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::bail;
use nvmf_tcp::std::host::{Association, SharedNamespace};
use serde_json::json;

use super::{NamespaceArgs, OutputArgs, number};
use crate::exit;

/// Make what was written safe from a loss of power
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  nvmf flush nvme+tcp://192.0.2.7/NQN")]
pub(crate) struct FlushArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Say that blocks are not needed (Dataset Management, Deallocate)
#[derive(clap::Args)]
#[command(after_help = "\
What the blocks hold is LOST; what they read as afterwards is up to the target.

Examples:
  nvmf discard nvme+tcp://192.0.2.7/NQN --start-block 2048 --block-count 4096
  nvmf discard nvme+tcp://192.0.2.7/NQN --start-block 0,8192 --block-count 8,16
  nvmf discard nvme+tcp://192.0.2.7/NQN --yes")]
pub(crate) struct DiscardArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,

    /// The first block; of several ranges, separated by commas
    #[arg(short, long, visible_alias = "slbs", value_name = "SLBA", value_parser = number::<u64>,
          value_delimiter = ',', requires = "block_count")]
    start_block: Vec<u64>,

    /// Blocks of the range, or of each of them [default: the whole namespace]
    #[arg(short = 'c', long, visible_alias = "blocks", value_name = "N", value_parser = number::<u64>,
          value_delimiter = ',', requires = "start_block")]
    block_count: Vec<u64>,

    /// Do not ask before the whole namespace is discarded
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Write zeroes to blocks, without sending them
#[derive(clap::Args)]
#[command(after_help = "\
What the blocks hold is LOST.

Examples:
  nvmf write-zeroes nvme+tcp://192.0.2.7/NQN --start-block 2048 --block-count 4096
  nvmf write-zeroes nvme+tcp://192.0.2.7/NQN --deac --yes")]
pub(crate) struct ZeroArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,

    #[command(flatten)]
    range: RangeArgs,

    /// Let the target deallocate the blocks (DEAC)
    #[arg(short, long)]
    deac: bool,

    /// Do not ask before the whole namespace is overwritten
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Have the target check that blocks can be read, without sending them
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  nvmf verify nvme+tcp://192.0.2.7/NQN")]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,

    #[command(flatten)]
    range: RangeArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Blocks of a namespace.
#[derive(clap::Args)]
struct RangeArgs {
    /// The first block [default: 0]
    #[arg(short, long, value_name = "SLBA", value_parser = number::<u64>)]
    start_block: Option<u64>,

    /// How many blocks (not 0's based) [default: to the end]
    #[arg(short = 'c', long, value_name = "N", value_parser = number::<u64>)]
    block_count: Option<u64>,
}

impl RangeArgs {
    /// First block and number of blocks, which are there.
    fn of(&self, namespace: &SharedNamespace) -> anyhow::Result<(u64, u64)> {
        let start = self.start_block.unwrap_or(0);
        let rest = namespace.blocks().saturating_sub(start);
        let range = (start, self.block_count.unwrap_or(rest));
        within(namespace, range)?;
        Ok(range)
    }

    fn is_whole(&self) -> bool {
        self.start_block.is_none() && self.block_count.is_none()
    }
}

fn within(namespace: &SharedNamespace, (start, count): (u64, u64)) -> anyhow::Result<()> {
    let blocks = namespace.blocks();
    if start.checked_add(count).is_none_or(|end| end > blocks) || start >= blocks {
        bail!(
            "blocks {start} to {} are beyond the end: the namespace has {blocks} blocks of {} bytes",
            start.saturating_add(count.saturating_sub(1)),
            namespace.block_size()
        );
    }
    Ok(())
}

/// Flush.
pub(crate) fn flush(args: &FlushArgs) -> anyhow::Result<()> {
    let (_, namespace) = args.namespace.attach_once()?;
    namespace.flush().wait()?;
    let json = || json!({"nsid": namespace.nsid().0});
    args.output.print(String::new, json)
}

/// Dataset Management, a command a range.
pub(crate) fn discard(args: &DiscardArgs) -> anyhow::Result<()> {
    if args.start_block.len() != args.block_count.len() {
        return Err(exit::usage(
            "--start-block and --block-count must have as many numbers, one for each range",
        ));
    }
    let (association, namespace) = args.namespace.attach_once()?;
    let mut ranges: Vec<(u64, u64)> = args
        .start_block
        .iter()
        .copied()
        .zip(args.block_count.iter().copied())
        .collect();
    for range in &ranges {
        within(&namespace, *range)?;
    }
    if ranges.is_empty() {
        confirm(args.yes, "discards", &association, &namespace)?;
        ranges.push((0, namespace.blocks()));
    }
    for (start, count) in &ranges {
        namespace.deallocate(*start, *count).wait()?;
    }
    let json = || json!({"nsid": namespace.nsid().0, "ranges": ranges});
    args.output.print(String::new, json)
}

/// Write Zeroes.
pub(crate) fn write_zeroes(args: &ZeroArgs) -> anyhow::Result<()> {
    let (association, namespace) = args.namespace.attach_once()?;
    let (start, count) = args.range.of(&namespace)?;
    if args.range.is_whole() {
        confirm(args.yes, "overwrites", &association, &namespace)?;
    }
    match args.deac {
        true => namespace.deallocate_to_zeroes(start, count),
        false => namespace.write_zeroes(start, count),
    }
    .wait()?;
    let json = || range_json(&namespace, (start, count));
    args.output.print(String::new, json)
}

/// Verify.
pub(crate) fn verify(args: &VerifyArgs) -> anyhow::Result<()> {
    let (_, namespace) = args.namespace.attach_once()?;
    let (start, count) = args.range.of(&namespace)?;
    namespace.verify(start, count).wait()?;
    let json = || range_json(&namespace, (start, count));
    args.output.print(String::new, json)
}

fn range_json(namespace: &SharedNamespace, (start, count): (u64, u64)) -> serde_json::Value {
    json!({"nsid": namespace.nsid().0, "slba": start, "blocks": count})
}

/// Asks before the whole namespace is lost.
fn confirm(
    yes: bool,
    what: &str,
    association: &Association,
    namespace: &SharedNamespace,
) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    let question = format!(
        "this {what} all {} blocks of namespace {} of {}",
        namespace.blocks(),
        namespace.nsid().0,
        association.subnqn()
    );
    if !io::stdin().is_terminal() {
        return Err(exit::usage(format!("{question}; say so with --yes")));
    }
    write!(io::stderr(), "nvmf: {question}; type yes to go on: ")?;
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() != "yes" {
        bail!("nothing was done");
    }
    Ok(())
}
