//! `nvmf copy`.
//!
//! | module | what it is |
//! |---|---|
//! | [`location`] | SRC and DST on the command line |
//! | [`source`], [`destination`] | open ones |
//! | [`state`] | how far a copy is, to resume it |
//!
//! A thread reads ahead while pieces are written; a namespace has several commands
//! under way for each piece, and connections that are made again when they are lost.
mod destination;
mod location;
mod source;
mod state;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use nvmf::block::spec::parse_size;
use serde_json::json;

pub(super) use self::destination::Destination;
use self::location::{Location, Network, path_identity};
use self::source::Source;
use self::state::{Copy, State};
use super::interrupt::Interrupt;
use super::{ConnectArgs, Output, OutputArgs, RecoveryArgs};
use crate::exit;

/// Bytes that are moved at a time.
const PIECE: u64 = 4 << 20;

/// Pieces that are read ahead.
const AHEAD: usize = 2;

/// Bytes that are looked at together, whether they are zero.
const CHUNK: usize = 64 << 10;

/// How often the state is saved, which waits for the disk.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Copy between namespaces, files, block devices, and standard input and output
#[derive(clap::Args)]
#[command(after_help = "\
A file is written under the name DST.part, and gets its name when all of it is safe on the
disk. Of a namespace or block device the first MiB is zeroed, and written last: until the
copy is complete, it has no partition table and no file system. Zeroes are not sent: they
become holes of a file, or Write Zeroes commands.

When the connection to a target is lost, it is made again, and the copy waits for that; the
options of Recovery say how long. --resume goes on with a copy that was stopped. How far it
is stands in DST.part.state for a file, and must be kept with --state for others. Ctrl-C stops
a copy so that it can be resumed; a second one ends it at once.

Examples:
  nvmf copy nvme+tcp://192.0.2.7/NQN disk.img --verify
  nvmf copy disk.img nvme+tcp://192.0.2.7/NQN?nsid=2 --state disk.state --resume
  nvmf copy nvme+tcp://192.0.2.7/NQN nvme+tcp://192.0.2.8/NQN
  nvmf copy nvme+tcp://192.0.2.7/NQN - --offset 1M --count 64M | sha256sum")]
pub(crate) struct Args {
    /// What to copy: a file, a block device, nvme+tcp://HOST[:PORT]/NQN?nsid=N, or
    /// nvme+rdma://, or `-`
    #[arg(value_name = "SRC")]
    source: Location,

    /// Where to: the same
    #[arg(value_name = "DST")]
    destination: Location,

    /// Begin at this byte of the source
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    offset: Option<u64>,

    /// Bytes to copy [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    count: Option<u64>,

    /// Read both back in the end, and compare
    #[arg(long)]
    verify: bool,

    /// Go on where the same copy stopped, if it did
    #[arg(long)]
    resume: bool,

    /// Keep in this file how far the copy is [default: DST.part.state, if DST is a file]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    #[command(flatten)]
    connect: ConnectArgs,

    #[command(flatten)]
    recovery: RecoveryArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Bytes of the source, from byte `at` of the copy on.
struct Piece {
    at: u64,
    bytes: Vec<u8>,
}

/// A copy under way.
struct Job {
    destination: Destination,
    state: Option<State>,
    interrupt: Interrupt,
    progress: ProgressBar,
    /// Bytes to copy, if that is known.
    total: Option<u64>,
    /// Bytes at the beginning that are written last.
    head: u64,
    /// Bytes that are written, from the beginning on, but for the head.
    done: u64,
    /// As many of them as the state says.
    safe: u64,
    /// The head is zero, which says that the rest is not complete.
    headless: bool,
    /// Bytes that were not written because they are zero.
    zeroes: u64,
}

/// Copies.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    check(args)?;
    let begin = Instant::now();
    let interrupt = Interrupt::new()?;
    let network = Network {
        connect: &args.connect,
        recovery: &args.recovery,
    };
    let source = Source::open(&args.source, &network)?;
    let offset = args.offset.unwrap_or(0);
    let total = total(&source, offset, args.count)?;
    let destination = Destination::open(&args.destination, &network)?;
    let (state, done) = fits(&source, &destination, offset, total)
        .and_then(|()| state(args, &source, &destination, offset, total))
        .and_then(|(state, done)| destination.begin(done).map(|()| (state, done)))
        .inspect_err(|_| destination.leave())?;
    let mut job = Job {
        head: total.unwrap_or(u64::MAX).min(destination.head()),
        destination,
        state,
        interrupt,
        progress: progress(total, args.output.output),
        total,
        done,
        safe: done,
        headless: false,
        zeroes: 0,
    };
    let verify = args.verify.then_some(offset);
    let bytes = match job.copy(source, offset, verify) {
        Ok(bytes) => bytes,
        Err(error) => return Err(job.failed(error)),
    };
    job.progress.finish_and_clear();
    if args.destination == Location::Stream {
        return Ok(());
    }
    let seconds = begin.elapsed().as_secs_f64();
    let (zeroes, verified) = (job.zeroes, args.verify);
    let text = || {
        let verified = if verified { ", verified" } else { "" };
        format!(
            "{} copied in {seconds:.1} s, {} of them zeroes{verified}\n",
            BinaryBytes(bytes),
            BinaryBytes(zeroes)
        )
    };
    let json = || {
        json!({
            "source": args.source.to_string(),
            "destination": args.destination.to_string(),
            "bytes": bytes,
            "zeroes": zeroes,
            "resumed_at": done,
            "seconds": seconds,
            "verified": verified,
        })
    };
    args.output.print(text, json)
}

/// What cannot be, whatever the ends are.
fn check(args: &Args) -> anyhow::Result<()> {
    let stream = [&args.source, &args.destination].contains(&&Location::Stream);
    let wrong = match () {
        () if args.destination == Location::Stream && args.output.output == Output::Json => {
            "standard output is for the data: --output json needs another destination"
        }
        () if stream && args.verify => "--verify needs both ends twice: `-` is there only once",
        () if stream && args.resume => "--resume needs both ends twice: `-` is there only once",
        () => return Ok(()),
    };
    Err(exit::usage(wrong))
}

/// Bytes to copy, if that is known.
fn total(source: &Source, offset: u64, count: Option<u64>) -> anyhow::Result<Option<u64>> {
    let Some(len) = source.len else {
        return Ok(count);
    };
    let name = &source.name;
    let rest = len
        .checked_sub(offset)
        .with_context(|| format!("--offset is beyond the end of {name}, which has {len} bytes"))?;
    let total = count.unwrap_or(rest);
    if total > rest {
        bail!("{name} is too short: it has {rest} bytes from there, --count says {total}");
    }
    Ok(Some(total))
}

/// Whether the copy can be, before anything is changed.
fn fits(
    source: &Source,
    destination: &Destination,
    offset: u64,
    total: Option<u64>,
) -> anyhow::Result<()> {
    let (from, to) = (&source.name, &destination.name);
    if destination.identity.is_some() && source.identity == destination.identity {
        return Err(exit::usage(format!("{from} and {to} are the same")));
    }
    let block_size = source.block_size();
    if !offset.is_multiple_of(block_size) {
        bail!("--offset must be a whole number of blocks of {block_size} bytes");
    }
    let Some(total) = total else {
        return Ok(());
    };
    for (name, block_size) in [(from, block_size), (to, destination.block_size())] {
        if !total.is_multiple_of(block_size) {
            bail!(
                "{total} bytes are not a whole number of blocks of {name}, \
                 which have {block_size} bytes"
            );
        }
    }
    match destination.room {
        Some(room) if room < total => bail!("{total} bytes do not fit: {to} has {room} bytes"),
        _ => Ok(()),
    }
}

/// The state, if one is kept, and how far the copy is already.
fn state(
    args: &Args,
    source: &Source,
    destination: &Destination,
    offset: u64,
    total: Option<u64>,
) -> anyhow::Result<(Option<State>, u64)> {
    if let Some(path) = &args.state {
        let ends = [&source.identity, &destination.identity];
        let part = path_identity(Path::new(&destination.part()));
        let name = path_identity(path);
        if name == part || ends.contains(&&Some(name)) {
            return Err(exit::usage(
                "--state is one end of the copy: name a file of its own",
            ));
        }
    }
    let path = args.state.clone().or_else(|| destination.state_path());
    let copy = match (&source.identity, &destination.identity, total) {
        (Some(identity), Some(destination), Some(count)) => Some(Copy {
            source: identity.clone(),
            version: source.version.clone(),
            destination: destination.clone(),
            offset,
            count,
        }),
        _ => None,
    };
    match (path, copy) {
        (Some(path), Some(copy)) => {
            let state = State::new(path, copy);
            state.check()?;
            let done = if args.resume { state.load()? } else { 0 };
            Ok((Some(state), done))
        }
        (None, Some(_)) if args.resume => Err(exit::usage(
            "--resume needs to know how far the copy is: keep that in a file with --state",
        )),
        (_, None) if args.resume || args.state.is_some() => Err(exit::usage(
            "--resume and --state need both ends twice: a pipe is there only once",
        )),
        _ => Ok((None, 0)),
    }
}

fn progress(total: Option<u64>, output: Output) -> ProgressBar {
    let target = match output {
        Output::Text => ProgressDrawTarget::stderr(),
        Output::Json => ProgressDrawTarget::hidden(),
    };
    let template = match total {
        Some(_) => "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        None => "{binary_bytes} {binary_bytes_per_sec}",
    };
    let style = ProgressStyle::with_template(template);
    ProgressBar::with_draw_target(total, target)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

impl Job {
    /// Returns how many bytes the copy has.
    fn copy(&mut self, source: Source, offset: u64, verify: Option<u64>) -> anyhow::Result<u64> {
        if self.done == 0
            && let Some(state) = &self.state
        {
            state.remove();
        }
        self.progress.set_position(self.done);
        let ranges = Ranges {
            head: self.head,
            next: 0,
            done: self.done,
            total: self.total.unwrap_or(u64::MAX),
        };
        let known = self.total.is_some();
        let (pieces, reader) = read_ahead(source, offset, ranges, known)?;
        let mut head = None;
        let mut save_at = Instant::now();
        let mut len = self.done;
        while let Some(piece) = self.next(&pieces)? {
            len = piece.at + piece.bytes.len() as u64;
            self.check_piece(len, &piece)?;
            if piece.at < self.head {
                self.zero_head(piece.bytes.len() as u64)?;
                head = Some(piece);
                continue;
            }
            self.put(piece.at, piece.bytes)?;
            self.done = len;
            self.progress.set_position(len);
            if save_at <= Instant::now() {
                self.save()?;
                save_at = Instant::now() + SAVE_EVERY;
            }
        }
        let mut source = reader
            .join()
            .map_err(|_| anyhow!("the thread that reads panicked"))??;
        self.destination.sync()?;
        let head_len = head.as_ref().map_or(0, |head| head.bytes.len() as u64);
        if let Some(offset) = verify {
            self.verify(&mut source, offset, head_len..len)?;
        }
        if let Some(head) = head {
            self.put(0, head.bytes)?;
            self.destination.sync()?;
            self.headless = false;
        }
        if let Some(offset) = verify {
            let verified = self.verify(&mut source, offset, 0..head_len);
            if head_len > 0 && verified.is_err() {
                self.zero_head(head_len)?;
            }
            verified?;
        }
        self.destination.finish(len)?;
        if let Some(state) = &self.state {
            state.remove();
        }
        Ok(len)
    }

    fn zero_head(&mut self, len: u64) -> anyhow::Result<()> {
        self.headless = true;
        self.destination.zero(0, len)?;
        self.destination.sync()
    }

    /// The next piece, as soon as it is read.
    fn next(&self, pieces: &Receiver<anyhow::Result<Piece>>) -> anyhow::Result<Option<Piece>> {
        const LOOK: Duration = Duration::from_millis(100);
        loop {
            if self.interrupt.came_before(Instant::now()) {
                bail!("interrupted");
            }
            match pieces.recv_timeout(LOOK) {
                Ok(piece) => return piece.map(Some),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// What shows only now of a stream.
    fn check_piece(&self, end: u64, piece: &Piece) -> anyhow::Result<()> {
        let block_size = self.destination.block_size();
        let len = piece.bytes.len() as u64;
        if !len.is_multiple_of(block_size) {
            bail!("the source has {end} bytes, not a whole number of blocks of {block_size} bytes");
        }
        match self.destination.room {
            Some(room) if end > room => {
                let name = &self.destination.name;
                bail!("the source does not fit: {name} has {room} bytes")
            }
            _ => Ok(()),
        }
    }

    /// Writes what is not zero, if that makes a difference.
    fn put(&mut self, at: u64, bytes: Vec<u8>) -> anyhow::Result<()> {
        static ZEROES: [u8; CHUNK] = [0; CHUNK];
        let is_zero = |chunk: &[u8]| *chunk == ZEROES[..chunk.len()];
        if !self.destination.has_zeroes() || !bytes.chunks(CHUNK).any(is_zero) {
            return self.destination.write(at, bytes);
        }
        let chunks: Vec<&[u8]> = bytes.chunks(CHUNK).collect();
        let mut at = at;
        for run in chunks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let len = run.iter().map(|chunk| chunk.len() as u64).sum();
            if is_zero(run[0]) {
                self.destination.zero(at, len)?;
                self.zeroes += len;
            } else {
                self.destination.write(at, run.concat())?;
            }
            at += len;
        }
        Ok(())
    }

    /// What is done is made safe, and the state says so.
    fn save(&mut self) -> anyhow::Result<()> {
        if let Some(state) = &self.state {
            self.destination.sync()?;
            state.save(self.done)?;
            self.safe = self.done;
        }
        Ok(())
    }

    /// Compares both ends.
    fn verify(
        &mut self,
        source: &mut Source,
        offset: u64,
        range: Range<u64>,
    ) -> anyhow::Result<()> {
        let ranges = Ranges {
            head: 0,
            next: 0,
            done: range.start,
            total: range.end,
        };
        for range in ranges {
            if self.interrupt.came_before(Instant::now()) {
                bail!("interrupted");
            }
            let len = usize::try_from(range.end - range.start)?;
            let expected = source.read(offset + range.start, len)?;
            if expected.len() < len {
                bail!("{} became shorter", source.name);
            }
            let found = self.destination.read(range.start, len)?;
            let differing = expected.iter().zip(&found).position(|(a, b)| a != b);
            if let Some(index) = differing.filter(|_| expected != found) {
                let at = range.start + index as u64;
                (self.done, self.safe) = (0, 0);
                return Err(exit::differs(format!(
                    "{} differs from {} at byte {at}",
                    self.destination.part(),
                    source.name
                )));
            }
        }
        Ok(())
    }

    /// The copy failed: keeps what can be resumed, and says so.
    fn failed(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.progress.finish_and_clear();
        let part = self.destination.part();
        if self.done > self.safe
            && let Err(unsaved) = self.save()
        {
            tracing::debug!("the state is not saved: {unsaved:#}");
        }
        if self.state.is_some() && self.safe > self.head {
            return error.context(format!(
                "stopped after {} bytes, which are in {part}; --resume goes on",
                self.safe
            ));
        }
        self.destination.discard();
        if let Some(state) = &self.state {
            state.remove();
        }
        match self.headless {
            true => error.context(format!("{part} is not complete, its beginning is zero")),
            false => error,
        }
    }
}

/// The parts of a copy in the order in which they are read: the head, and what is not done.
struct Ranges {
    head: u64,
    next: u64,
    done: u64,
    total: u64,
}

impl Iterator for Ranges {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let start = self.next;
        let end = match start {
            0 if self.head > 0 => self.head,
            start => {
                let start = start.max(self.done);
                self.next = start.saturating_add(PIECE).min(self.total);
                return (start < self.total).then_some(start..self.next);
            }
        };
        self.next = end;
        Some(start..end)
    }
}

type Pieces = Receiver<anyhow::Result<Piece>>;

/// Reads in a thread of its own, which gives the source back when all is read.
fn read_ahead(
    mut source: Source,
    offset: u64,
    ranges: Ranges,
    known: bool,
) -> anyhow::Result<(Pieces, JoinHandle<anyhow::Result<Source>>)> {
    let (sender, pieces) = mpsc::sync_channel(AHEAD);
    let read = move || {
        if let Err(error) = source.skip(offset) {
            let _ = sender.send(Err(error));
            return Ok(source);
        }
        for range in ranges {
            let wanted = range.end - range.start;
            let len = usize::try_from(wanted)?;
            let piece = source.read(offset + range.start, len).and_then(|bytes| {
                let end = range.start + bytes.len() as u64;
                if known && bytes.len() < len {
                    bail!("{} is too short: it ended after {end} bytes", source.name);
                }
                Ok(Piece {
                    at: range.start,
                    bytes,
                })
            });
            let last = match &piece {
                Ok(piece) if piece.bytes.is_empty() => break,
                Ok(piece) => (piece.bytes.len() as u64) < wanted,
                Err(_) => true,
            };
            // Nobody takes it when writing failed.
            if sender.send(piece).is_err() || last {
                break;
            }
        }
        Ok(source)
    };
    let reader = thread::Builder::new()
        .name("nvmf-reader".to_owned())
        .spawn(read)
        .context("cannot start a thread")?;
    Ok((pieces, reader))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(head: u64, done: u64, total: u64) -> Vec<Range<u64>> {
        let ranges = Ranges {
            head,
            next: 0,
            done,
            total,
        };
        ranges.collect()
    }

    #[test]
    #[allow(
        clippy::single_range_in_vec_init,
        reason = "one piece is a list of pieces"
    )]
    fn a_copy_is_read_in_pieces_and_its_head_always() {
        assert_eq!(ranges(0, 0, 0), []);
        assert_eq!(ranges(0, 0, 10), [0..10]);
        assert_eq!(ranges(0, 0, PIECE + 1), [0..PIECE, PIECE..PIECE + 1]);
        assert_eq!(ranges(0, 5, PIECE), [5..PIECE]);
        assert_eq!(ranges(4, 0, 4), [0..4]);
        assert_eq!(ranges(4, 0, 10), [0..4, 4..10]);
        assert_eq!(ranges(4, 4, 10), [0..4, 4..10]);
        assert_eq!(ranges(4, 8, 10), [0..4, 8..10]);
        assert_eq!(ranges(4, 10, 10), [0..4]);
        let first: Vec<_> = Ranges {
            head: 0,
            next: 0,
            done: 0,
            total: u64::MAX,
        }
        .take(2)
        .collect();
        assert_eq!(first, [0..PIECE, PIECE..2 * PIECE]);
    }
}
