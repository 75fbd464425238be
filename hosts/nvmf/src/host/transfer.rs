//! `nvmf read`, `nvmf write` and `nvmf compare`.
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nvmf::block::spec::parse_size;
use nvmf_core::wire::identify::Oncs;
use nvmf_tcp::std::host::Namespace;
use serde_json::json;

use super::copy::Destination;
use super::{NamespaceArgs, Output, OutputArgs, number};
use crate::exit;

/// Bytes that are moved at a time.
const PIECE: usize = 4 << 20;

/// Read blocks of a namespace into a file
#[derive(clap::Args)]
#[command(after_help = "\
A file is written under the name FILE.part, and gets its name when all of it is there.

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
    let mut destination = match to_stdout {
        true => Destination::standard_output(),
        false => Destination::at(&args.data)?,
    };
    let copied = destination
        .begin(0)
        .and_then(|()| copy_out(&mut namespace, args.start_block, left, &mut destination));
    // A part must not pass for the whole.
    copied.inspect_err(|_| destination.discard())?;
    if to_stdout {
        return Ok(());
    }
    let nsid = namespace.nsid().0;
    let json = || json!({"nsid": nsid, "slba": args.start_block, "bytes": left});
    args.output.print(String::new, json)
}

fn copy_out(
    namespace: &mut Namespace,
    slba: u64,
    len: u64,
    destination: &mut Destination,
) -> anyhow::Result<()> {
    let block_size = u64::from(namespace.block_size());
    let mut done = 0;
    while done < len {
        let some = usize::try_from(len - done).unwrap_or(PIECE).min(PIECE);
        let mut bytes = vec![0; some];
        namespace.read(slba + done / block_size, &mut bytes)?;
        destination.write(done, bytes)?;
        done += some as u64;
    }
    destination.sync()?;
    destination.finish(len)
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
        self.output.print(String::new, json)
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
