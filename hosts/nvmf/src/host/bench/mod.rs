//! `nvmf bench`.
//!
//! | module | what it does |
//! |---|---|
//! | [`workload`] | patterns, and where each command goes |
//! | [`lane`] | a connection under load |
//! | [`reference`] | the same bytes over a bare socket |
//! | [`own`], [`threads`] | a target of the bench's own; who runs where |
//! | [`stamp`] | blocks that can be verified |
//! | [`tally`], [`histogram`] | what was measured |
//! | [`live`], [`report`] | what is shown |
mod histogram;
mod lane;
mod live;
mod own;
mod reference;
mod report;
mod stamp;
mod tally;
mod threads;
mod workload;

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use clap::ValueEnum;
use nvmf::block::spec::parse_size;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Namespace, Url};

use self::lane::{Lane, Part};
use self::live::{Counter, Eta, Live};
use self::own::Own;
use self::reference::{Bare, Shape};
pub(crate) use self::report::HEADING;
use self::report::{Comparison, Report};
use self::tally::Tally;
use self::threads::{Cores, together};
use self::workload::{Direction, Limit, xorshift};
pub(crate) use self::workload::{Job, Rw};
use super::interrupt::Interrupt;
use super::{ConnectArgs, OutputArgs, number};
use crate::exit::usage;

/// How long to run if nothing is said.
const RUNTIME: Duration = Duration::from_secs(5);

/// Turns of ours and of the bare socket.
const ROUNDS: u32 = 5;

/// How long our own target, and the reference's peer, poll before they sleep, with --hipri.
const SPIN: Duration = Duration::from_millis(1);

/// Measure reads and writes of a namespace
///
/// Options and JSON are those of fio, as far as they go. Latency is from submission to
/// completion; IOPS, CPU and JSON are those of all jobs together.
#[derive(clap::Args)]
#[command(after_long_help = "\
Writes DESTROY what the namespace holds.

Without URL, bench serves 64 MiB of its own memory (or --size, or nothing with --null) on the
loopback interface, keeps both ends on cores of their own, and measures that.

Ctrl-C ends it early: what was measured so far is printed all the same.

With --reference, a bare TCP connection within this process moves the same bytes in the same
pattern, polled or not as the job is, in turns with the job: it is what one can hope for on
this machine. The ratio of both is the median of 5 rounds. --runtime is for each of the two.

Examples:
  nvmf bench --reference --rw randread --bs 4k --iodepth 32 --hipri
  nvmf bench nvme+tcp://192.0.2.7/NQN --rw randread --bs 4k --iodepth 32 --numjobs 4
  nvmf bench nvme+tcp://192.0.2.7/NQN --rw write --bs 128k --ddgst --output json
  nvmf bench nvme+tcp://192.0.2.7/NQN --rw randwrite --size 1G --verify")]
pub(crate) struct Args {
    /// The namespace: nvme+tcp://HOST[:PORT]/NQN?nsid=N; without nsid the only one
    /// [default: memory of this process]
    url: Option<Url>,

    /// The namespace, instead of ?nsid=N
    #[arg(short, long, value_name = "NSID", value_parser = number::<u32>, requires = "url")]
    namespace_id: Option<u32>,

    /// Without URL, serve nothing instead of memory: zeroes are read, writes vanish
    #[arg(long, conflicts_with = "url")]
    null: bool,

    /// What to do
    #[arg(long, visible_alias = "readwrite", value_enum, default_value_t = Rw::Randread)]
    rw: Rw,

    /// Bytes of each command, a whole number of blocks
    #[arg(long, visible_alias = "blocksize", value_name = "SIZE",
          value_parser = parse_size, default_value = "4k")]
    bs: u64,

    /// Commands under way at a time, of each job
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    iodepth: u16,

    /// Submit so many commands at once, when so many have completed
    /// [default: as many as have completed]
    #[arg(long, visible_alias = "iodepth_batch", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..))]
    iodepth_batch: Option<u16>,

    /// Jobs: each has a connection, a thread, and an equal part of the namespace
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    numjobs: u16,

    /// Of rw and randrw, how many percent are reads
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmixread: u8,

    /// Seconds to run [default: 5; until --io-size is done; with --verify, once through]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    runtime: Option<Duration>,

    /// Use only the first so many bytes of the namespace [default: all]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,

    /// Stop when each job has moved so many bytes
    #[arg(long, visible_alias = "io_size", value_name = "SIZE", value_parser = parse_size)]
    io_size: Option<u64>,

    /// Poll for completions and never sleep: lower latency, for a core's whole time
    #[arg(long)]
    hipri: bool,

    /// Stamp each block that is written with a CRC32C, and check what is read. In the end,
    /// read back all that was written. Reads alone check what an earlier run wrote
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true,
          default_missing_value = "crc32c")]
    verify: Option<Verify>,

    /// Run the same pattern over a bare TCP connection in turns, and print the ratio
    #[arg(long, conflicts_with_all = ["verify", "io_size"])]
    reference: bool,

    /// When to show on standard error how it goes
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Eta::Auto)]
    eta: Eta,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// How to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Verify {
    /// By a CRC32C of each block
    Crc32c,
}

/// Runs, and prints the report.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let report = args.measure()?;
    args.output
        .print(|| format!("{report}\n"), || report.json())?;
    if args.verify.is_some() && report.read_back.is_none() {
        bail!("interrupted before all was verified");
    }
    Ok(())
}

impl Args {
    fn job(&self) -> anyhow::Result<Job> {
        let job = Job {
            rw: self.rw,
            bs: self.bs,
            iodepth: self.iodepth.into(),
            batch: self.iodepth_batch.map(usize::from),
            rwmixread: self.rwmixread,
            hipri: self.hipri,
        };
        if job.batch.is_some_and(|batch| batch > job.iodepth) {
            return Err(usage("--iodepth-batch may not be more than --iodepth"));
        }
        if job.rw.direction() == Some(Direction::Trim) && (self.reference || self.verify.is_some())
        {
            return Err(usage(
                "--reference and --verify are for reads and writes only",
            ));
        }
        if self.url.is_none() && self.verify.is_some() && !job.rw.writes() {
            return Err(usage(
                "reads with --verify check what an earlier run wrote: name its URL",
            ));
        }
        Ok(job)
    }

    /// Without any other limit, once through what is to be verified.
    fn limit<'a>(&self, job: &Job, places: u64, interrupt: &'a AtomicBool) -> Limit<'a> {
        let mut limit = Limit {
            runtime: self.runtime,
            commands: self.io_size.map(|size| size.div_ceil(job.bs)),
            interrupt: Some(interrupt),
        };
        if limit.runtime.is_none() && limit.commands.is_none() {
            match self.verify {
                Some(_) => limit.commands = Some(places),
                None => limit.runtime = Some(RUNTIME),
            }
        }
        limit
    }

    fn measure(&self) -> anyhow::Result<Report> {
        let job = self.job()?;
        let spin = if job.hipri { SPIN } else { Duration::ZERO };
        let (cores, own) = match &self.url {
            Some(_) => (Cores::default(), None),
            None => {
                let cores = Cores::halves();
                let own = Own::start(self.null, self.size, &cores, spin)?;
                (cores, Some(own))
            }
        };
        let url = self.url.as_ref().or(own.as_ref().map(|own| &own.url));
        let Some(url) = url else {
            bail!("there is no target");
        };
        let nsid = self.namespace_id;
        let mut namespaces = self
            .connect
            .namespaces(url, nsid, self.numjobs, self.iodepth)?;
        if own.is_some() && !self.null && job.rw.reads() {
            fill(&mut namespaces[0])?;
        }
        // From here on there is something to report.
        let interrupt = Interrupt::new()?;
        let mut bench = Bench::new(self, job, &mut namespaces, cores, spin, interrupt.came())?;
        bench.run()
    }
}

/// Everything that runs.
struct Bench<'a> {
    job: Job,
    lanes: Vec<Lane<'a>>,
    bare: Option<Bare>,
    cores: Cores,
    limit: Limit<'a>,
    verify: bool,
    digests: (bool, bool),
    live: Live,
}

impl<'a> Bench<'a> {
    fn new(
        args: &Args,
        job: Job,
        namespaces: &'a mut [Namespace],
        cores: Cores,
        spin: Duration,
        interrupt: &'a AtomicBool,
    ) -> anyhow::Result<Self> {
        let Some(first) = namespaces.first_mut() else {
            bail!("there is no job to run");
        };
        let digests = first.queue().digests();
        let verify = args.verify.is_some();
        let bare = if args.reference {
            let shape = Shape {
                payload: usize::try_from(job.bs)?,
                header_digest: digests.header,
                data_digest: digests.data,
                in_capsule: job.bs <= first.controller().capabilities().inline_data.into(),
                // Queues are asked to do without SQ flow control, of which this comes.
                success: true,
            };
            let workers = cores.target.len().max(1);
            Some(Bare::new(&shape, &job, args.numjobs, workers, spin)?)
        } else {
            None
        };
        let parts = Part::of(first, &job, args.size, args.numjobs.into())?;
        let limit = args.limit(&job, parts[0].places, interrupt);
        let lanes = (0..)
            .zip(namespaces)
            .zip(parts)
            .map(|((seed, namespace), part)| Lane::new(namespace, &job, part, verify, seed))
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self {
            job,
            lanes,
            bare,
            cores,
            limit,
            verify,
            digests: (digests.header, digests.data),
            live: Live::new(args.eta, job.bs),
        })
    }

    fn run(&mut self) -> anyhow::Result<Report> {
        let mut tally = Tally::new();
        let mut reference = None;
        if self.bare.is_some() {
            let comparison = self.in_turns(&mut tally)?;
            reference = Some(comparison).filter(|comparison| !comparison.rounds.is_empty());
        } else {
            tally = self.ours(self.limit)?;
        }
        let mut read_back = None;
        if self.verify && !self.limit.interrupted() {
            // If that is interrupted, it shows nothing.
            read_back = Some(self.read_back()?).filter(|_| !self.limit.interrupted());
        }
        Ok(Report {
            job: self.job,
            numjobs: u16::try_from(self.lanes.len())?,
            digests: self.digests,
            tally,
            reference,
            read_back,
        })
    }

    fn ours(&mut self, limit: Limit<'_>) -> anyhow::Result<Tally> {
        let name = self.job.rw.to_string();
        let lanes = self.lanes.iter_mut();
        let tallies = together(
            lanes,
            &self.cores.host,
            &self.live,
            &name,
            |lane, counter| lane.run(limit, counter),
        )?;
        Ok(Tally::of_all(&tallies))
    }

    fn bare(&mut self, limit: Limit<'_>) -> anyhow::Result<Tally> {
        match &mut self.bare {
            Some(bare) => bare.run(limit, &self.cores, &self.live),
            None => Ok(Tally::new()),
        }
    }

    /// Ours and the bare socket in turns, each first in every other round. A round that is
    /// interrupted compares nothing.
    fn in_turns(&mut self, tally: &mut Tally) -> anyhow::Result<Comparison> {
        let limit = Limit {
            runtime: self.limit.runtime.map(|runtime| runtime / ROUNDS),
            ..self.limit
        };
        let mut comparison = Comparison {
            tally: Tally::new(),
            rounds: Vec::new(),
        };
        for round in 0..ROUNDS {
            let (ours, bare);
            if round % 2 == 0 {
                ours = self.ours(limit)?;
                thread::sleep(2 * SPIN);
                bare = self.bare(limit)?;
            } else {
                bare = self.bare(limit)?;
                ours = self.ours(limit)?;
                thread::sleep(2 * SPIN);
            }
            tally.later(&ours);
            if limit.interrupted() {
                break;
            }
            comparison.rounds.push((ours.iops(), bare.iops()));
            comparison.tally.later(&bare);
        }
        Ok(comparison)
    }

    fn read_back(&mut self) -> anyhow::Result<u64> {
        let limit = Limit {
            interrupt: self.limit.interrupt,
            ..Limit::default()
        };
        let lanes = self.lanes.iter_mut();
        let counts = together(
            lanes,
            &self.cores.host,
            &self.live,
            "verify",
            |lane, counter| lane.read_back(limit, counter),
        )?;
        Ok(counts.into_iter().sum())
    }
}

/// Keeps `job.iodepth` commands under way for `runtime`, in this thread.
pub(crate) fn measure(
    namespace: &mut Namespace,
    job: &Job,
    runtime: Duration,
) -> anyhow::Result<Report> {
    let parts = Part::of(namespace, job, None, 1)?;
    let limit = Limit {
        runtime: Some(runtime),
        ..Limit::default()
    };
    let tally = Lane::new(namespace, job, parts[0], false, 0)?.run(limit, &Counter::default())?;
    Ok(Report {
        job: *job,
        numjobs: 1,
        digests: (false, false),
        tally,
        reference: None,
        read_back: None,
    })
}

/// Writes the whole namespace: memory that was never written is not there to be read.
fn fill(namespace: &mut Namespace) -> anyhow::Result<()> {
    const PIECE: u64 = 1 << 20;
    let block_size = u64::from(namespace.block_size());
    let mut slba = 0;
    while slba < namespace.blocks() {
        let blocks = (PIECE / block_size).min(namespace.blocks() - slba);
        let piece = noise(slba, (blocks * block_size) as usize);
        namespace.write(slba, piece.as_ref())?;
        slba += blocks;
    }
    Ok(())
}

/// Bytes that do not compress, and differ from seed to seed.
pub(crate) fn noise(seed: u64, len: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(len);
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for word in buffer.as_mut().chunks_mut(8) {
        state = xorshift(state);
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    buffer
}

/// A runtime, of which fractions may be given.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|runtime| {
            (Duration::from_millis(1)..Duration::from_secs(1 << 30)).contains(runtime)
        })
        .ok_or_else(|| "write a number of seconds, such as 10 or 0.5".to_owned())
}
