//! `nvmf read`, `nvmf write` and `nvmf compare`.
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nvmf::block::spec::parse_size;
use nvmf_core::wire::identify::Oncs;
use nvmf_tcp::std::host::Namespace;
use serde_json::json;

use super::{NamespaceArgs, Output, OutputArgs, number};
use crate::exit;

/// Bytes that are moved at a time.
const PIECE: usize = 4 << 20;

/// Read blocks of a namespace into a file
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nvmf read nvme+tcp://192.0.2.7/NQN > disk.img
  nvmf read nvme+tcp://192.0.2.7/NQN?nsid=2 --start-block 2048 --data-size 1M --data boot.img")]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,

    /// The first block
    #[arg(short, long, value_name = "SLBA", value_parser = number::<u64>, default_value = "0")]
    start_block: u64,

    /// Bytes to read, a whole number of blocks [default: to the end]
    #[arg(short = 'z', long, value_name = "SIZE", value_parser = parse_size)]
    data_size: Option<u64>,

    /// The file to write; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    data: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

/// Where data comes from, and where it belongs.
#[derive(clap::Args)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,

    /// The first block
    #[arg(short, long, value_name = "SLBA", value_parser = number::<u64>, default_value = "0")]
    start_block: u64,

    /// The file to send, all of it; `-` is standard input
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    data: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

/// Write a file to the blocks of a namespace
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  nvmf write nvme+tcp://192.0.2.7/NQN --data disk.img")]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    send: SendArgs,
}

/// Compare a file with the blocks of a namespace
#[derive(clap::Args)]
#[command(after_help = "\
The file is sent to the controller, which compares; if it cannot, the blocks are read and
compared here. Exit status 5 if they differ.

Example:
  nvmf compare nvme+tcp://192.0.2.7/NQN --data disk.img")]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    send: SendArgs,
}

/// Reads into a file.
pub(crate) fn read(args: &ReadArgs) -> anyhow::Result<()> {
    let to_stdout = is_dash(&args.data);
    if to_stdout && args.output.output == Output::Json {
        return Err(exit::usage(
            "standard output is for the data: with --output json, name a file with --data",
        ));
    }
    let mut namespace = args.namespace.open()?;
    let block_size = u64::from(namespace.block_size());
    let rest = namespace.blocks().saturating_sub(args.start_block);
    let left = args.data_size.unwrap_or(rest.saturating_mul(block_size));
    if !left.is_multiple_of(block_size) {
        bail!("{left} bytes are not a whole number of blocks, which have {block_size} bytes");
    }
    if left / block_size > rest {
        bail!(
            "that is beyond the end: the namespace has {} blocks of {block_size} bytes",
            namespace.blocks()
        );
    }
    if to_stdout {
        return copy_out(
            &mut namespace,
            args.start_block,
            left,
            &mut io::stdout().lock(),
        );
    }
    let name = args.data.display();
    let mut file = File::create(&args.data).with_context(|| format!("cannot create {name}"))?;
    let outcome = copy_out(&mut namespace, args.start_block, left, &mut file);
    if outcome.is_err() && file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        // A part must not pass for the whole.
        let _ = fs::remove_file(&args.data);
    }
    outcome.with_context(|| format!("{name} is not written"))?;
    let nsid = namespace.nsid().0;
    let json = || json!({"nsid": nsid, "slba": args.start_block, "bytes": left});
    Ok(args.output.print(String::new, json)?)
}

fn copy_out(
    namespace: &mut Namespace,
    mut slba: u64,
    mut left: u64,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let block_size = u64::from(namespace.block_size());
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let len = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let bytes = &mut piece[..len];
        namespace.read(slba, bytes)?;
        out.write_all(bytes)
            .context("cannot pass on what was read")?;
        left -= len as u64;
        slba += len as u64 / block_size;
    }
    Ok(out.flush()?)
}

/// Writes a file, and flushes.
pub(crate) fn write(args: &WriteArgs) -> anyhow::Result<()> {
    let (mut namespace, bytes) = send(&args.send, |namespace, slba, bytes| {
        Ok(namespace.write(slba, bytes)?)
    })?;
    namespace.flush()?;
    args.send.report(&namespace, bytes)
}

/// Compares a file.
pub(crate) fn compare(args: &CompareArgs) -> anyhow::Result<()> {
    let mut here = None;
    let operation = |namespace: &mut Namespace, slba, bytes: &[u8]| -> anyhow::Result<()> {
        let here = match here {
            Some(known) => known,
            None => *here.insert(
                !namespace
                    .controller()
                    .identify()?
                    .oncs
                    .contains(Oncs::NVMCMPS),
            ),
        };
        if !here {
            return Ok(namespace.compare(slba, bytes)?);
        }
        let mut read = vec![0; bytes.len()];
        namespace.read(slba, &mut read)?;
        match read.iter().zip(bytes).position(|(a, b)| a != b) {
            Some(at) => Err(exit::differs(format!(
                "Compare failed: they differ at byte {at} from there"
            ))),
            None => Ok(()),
        }
    };
    let (namespace, bytes) = send(&args.send, operation)?;
    args.send.report(&namespace, bytes)
}

impl SendArgs {
    fn report(&self, namespace: &Namespace, bytes: u64) -> anyhow::Result<()> {
        let nsid = namespace.nsid().0;
        let json = || json!({"nsid": nsid, "slba": self.start_block, "bytes": bytes});
        Ok(self.output.print(String::new, json)?)
    }
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A small file, all of it; `-` is standard input.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !is_dash(path) {
        return fs::read(path);
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Does something with each piece of the file. Returns how many bytes it had.
fn send(
    args: &SendArgs,
    mut operation: impl FnMut(&mut Namespace, u64, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<(Namespace, u64)> {
    let name = args.data.display();
    let mut size = None;
    let mut file: Box<dyn Read> = if is_dash(&args.data) {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(&args.data).with_context(|| format!("cannot open {name}"))?;
        let metadata = file
            .metadata()
            .with_context(|| format!("cannot read {name}"))?;
        size = metadata.is_file().then_some(metadata.len());
        Box::new(file)
    };
    let mut namespace = args.namespace.open()?;
    let block_size = u64::from(namespace.block_size());
    let capacity = namespace
        .blocks()
        .saturating_sub(args.start_block)
        .saturating_mul(block_size);
    // Before anything is changed, where it can be known.
    check(size.unwrap_or(0), capacity, block_size)?;
    let mut sent = 0;
    let mut piece = vec![0; PIECE];
    loop {
        let len = fill(&mut piece, |rest, _| file.read(rest))
            .with_context(|| format!("cannot read {name}"))?;
        check(sent + len as u64, capacity, block_size)
            .with_context(|| format!("after {sent} bytes"))?;
        if len == 0 {
            return Ok((namespace, sent));
        }
        operation(
            &mut namespace,
            args.start_block + sent / block_size,
            &piece[..len],
        )
        .with_context(|| format!("after {sent} bytes"))?;
        sent += len as u64;
    }
}

fn check(len: u64, capacity: u64, block_size: u64) -> anyhow::Result<()> {
    if !len.is_multiple_of(block_size) {
        bail!(
            "the data are {len} bytes, which is not a whole number of blocks of {block_size} bytes"
        );
    }
    if len > capacity {
        bail!("the data do not fit: there is room for {capacity} bytes");
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends. `read` is given the rest of the buffer,
/// and how much of it is full.
pub(super) fn fill(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match read(&mut buffer[len..], len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
