//! `nvmf bench`.
//!
//! | module | what it does |
//! |---|---|
//! | [`workload`] | patterns, and where each command goes |
//! | [`lane`], [`fleet`] | a connection under load; many, of one thread |
//! | [`reference`] | the same bytes over a bare socket |
//! | [`turns`] | what is compared, in turns |
//! | [`own`], [`threads`] | a target of the bench's own; who runs where |
//! | [`stamp`] | blocks that can be verified |
//! | [`tally`], [`histogram`] | what was measured |
//! | [`live`], [`report`] | what is shown |
mod fleet;
mod histogram;
mod lane;
mod live;
mod own;
mod reference;
mod report;
mod stamp;
mod tally;
mod threads;
mod turns;
mod workload;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use nvmf::block::spec::{Spec, parse_size};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Namespace, Url};
use serde_json::json;

use self::lane::{Lane, Part};
use self::live::{Counter, Eta, Live};
use self::own::Own;
use self::reference::{Bare, Count, Memory, Shape};
pub(crate) use self::report::HEADING;
use self::report::Report;
use self::threads::Cores;
use self::turns::{Served, Turns};
use self::workload::{Direction, Limit, xorshift};
pub(crate) use self::workload::{Job, Rw};
use super::interrupt::Interrupt;
use super::{ConnectArgs, OutputArgs, number};
use crate::exit::usage;

/// How long to run if nothing is said.
const RUNTIME: Duration = Duration::from_secs(5);

/// How long our own target, and the reference's peer, poll before they sleep, with --hipri.
const SPIN: Duration = Duration::from_millis(1);

/// RAM that is served, in bytes: more than the caches of most processors hold.
const RAM: u64 = 64 << 20;

/// Bytes that are written before they are read, at most.
const MOST_FILLED: u64 = 1 << 30;

/// Nothing that is served, in bytes.
const NOTHING: u64 = 1 << 40;

/// Measure reads and writes of a namespace
///
/// Options and JSON are those of fio, as far as they go. Latency is from submission to
/// completion; IOPS, CPU and JSON are those of all jobs together.
#[derive(clap::Args)]
#[command(after_long_help = "\
Writes DESTROY what the namespace holds.

Without URL, bench serves 64 MiB of its own memory (or --size) on the loopback interface, keeps
both ends on cores of their own, and measures that. --null, --ram and --file choose what is
served; of several, each is measured in turns with the others, and has a report of its own.

Ctrl-C ends it early: what was measured so far is printed all the same.

With --reference, a bare TCP connection over the loopback interface, both ends in this process,
moves the same bytes in the same pattern, polled or not as the job is, in turns with the job: it
is what one can hope for on this machine. With the URL of a target elsewhere it is the loopback
interface still, not the way to that target. Its peer answers reads as a target does that lets
data stand for the completion (SUCCESS). The ratio of both is the median of the rounds, and
--runtime is for each of what is compared.

The reference's peer sends the same few payloads again and again, which stay in its cache (hot:
no target of more memory than that can be as fast), or reads and writes random places of as much
memory as the namespace has, 64 MiB at most (same).

With --connections, each job has several connections, which its one thread drives together; with
--controllers, connections are spread over several controllers. Both make the report say how
evenly connections were served.

Examples:
  nvmf bench --reference --rw randread --bs 4k --iodepth 32 --hipri
  nvmf bench --null --ram --file /srv/scratch,size=64M --reference=both --hipri
  nvmf bench nvme+tcp://192.0.2.7/NQN --rw randread --bs 4k --iodepth 32 --numjobs 4
  nvmf bench nvme+tcp://192.0.2.7/NQN --connections 64 --controllers 4 --iodepth 8
  nvmf bench nvme+tcp://192.0.2.7/NQN --rw write --bs 128k --ddgst --output json
  nvmf bench nvme+tcp://192.0.2.7/NQN --rw randwrite --size 1G --verify")]
pub(crate) struct Args {
    /// The namespace: nvme+tcp://HOST[:PORT]/NQN?nsid=N, or nvme+rdma://; without nsid the only one
    /// [default: memory of this process]
    url: Option<Url>,

    /// The namespace, instead of ?nsid=N
    #[arg(short, long, value_name = "NSID", value_parser = number::<u32>, requires = "url")]
    namespace_id: Option<u32>,

    /// Without URL, serve nothing: zeroes are read, writes vanish
    #[arg(long, conflicts_with = "url")]
    null: bool,

    /// Without URL, serve memory: the default, if nothing else is said
    #[arg(long, conflicts_with = "url")]
    ram: bool,

    /// Without URL, serve a file or a device, as nvmf target does; may be repeated
    #[arg(long, value_name = "PATH[,size=SIZE]...", value_parser = Spec::parse_file,
          conflicts_with = "url")]
    file: Vec<Spec>,

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

    /// Connections of each job, all driven by its thread
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,

    /// Controllers that connections are spread over
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    controllers: u16,

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
    #[arg(long, value_enum, value_name = "MEMORY", num_args = 0..=1, require_equals = true,
          default_missing_value = "hot", conflicts_with_all = ["verify", "io_size"])]
    reference: Option<Reference>,

    /// Turns of what is compared
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

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

/// What memory the reference's peer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reference {
    /// A few payloads, which stay in the cache
    Hot,
    /// As much as the namespace has, 64 MiB at most
    Same,
    /// One after the other
    Both,
}

impl Reference {
    fn memories(self, namespace: u64) -> Vec<Memory> {
        let same = Memory::Places(namespace.min(RAM) as usize);
        match self {
            Self::Hot => vec![Memory::Hot],
            Self::Same => vec![same],
            Self::Both => vec![Memory::Hot, same],
        }
    }
}

/// Runs, and prints the report.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let reports = args.measure()?;
    let text = || {
        let reports: Vec<String> = reports.iter().map(ToString::to_string).collect();
        format!("{}\n", reports.join("\n\n"))
    };
    let json = || {
        json!({
            "nvmf version": env!("CARGO_PKG_VERSION"),
            "jobs": reports.iter().map(Report::entry).collect::<Vec<_>>(),
        })
    };
    args.output.print(text, json)?;
    if args.verify.is_some() && reports.iter().any(|report| report.read_back.is_none()) {
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
        let compares = self.reference.is_some() || self.verify.is_some();
        if job.rw.direction() == Some(Direction::Trim) && compares {
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

    /// What is served, if it is not someone else's.
    fn specs(&self) -> anyhow::Result<Vec<Spec>> {
        let mut specs = Vec::new();
        if self.null {
            let size = self.size.unwrap_or(NOTHING).to_string();
            specs.push(Spec::parse_null(&size).context("--size")?);
        }
        if self.ram || !self.null && self.file.is_empty() {
            let size = self.size.unwrap_or(RAM).to_string();
            specs.push(Spec::parse_ram(&size).context("--size")?);
        }
        specs.extend_from_slice(&self.file);
        Ok(specs)
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

    fn measure(&self) -> anyhow::Result<Vec<Report>> {
        let job = self.job()?;
        let spin = if job.hipri { SPIN } else { Duration::ZERO };
        let Some(url) = &self.url else {
            let cores = Cores::halves();
            let specs = self.specs()?;
            let own = Own::start(&specs, &cores, spin)?;
            let namespaces = (1..)
                .zip(&specs)
                .map(|(nsid, spec)| Ok((spec.to_string(), self.connections(&own.url, Some(nsid))?)))
                .collect::<anyhow::Result<Vec<_>>>()?;
            return self.compare(job, namespaces, cores, spin);
        };
        let namespaces = self.connections(url, self.namespace_id)?;
        let served = vec![(url.to_string(), namespaces)];
        self.compare(job, served, Cores::default(), spin)
    }

    /// Those to one namespace, of all jobs.
    fn connections(&self, url: &Url, nsid: Option<u32>) -> anyhow::Result<Vec<Namespace>> {
        let count = u32::from(self.numjobs) * u32::from(self.connections);
        let controllers = self.controllers.into();
        self.connect
            .namespaces(url, nsid, count, controllers, self.iodepth)
    }

    /// Names, and connections to what has them.
    fn compare(
        &self,
        job: Job,
        mut served: Vec<(String, Vec<Namespace>)>,
        cores: Cores,
        spin: Duration,
    ) -> anyhow::Result<Vec<Report>> {
        if self.url.is_none() && job.rw.reads() {
            for (_, namespaces) in &mut served {
                fill(&mut namespaces[0])?;
            }
        }
        // From here on there is something to report.
        let interrupt = Interrupt::new()?;
        let bare = self.bare(&job, &mut served[0].1[0], &cores, spin)?;
        let verify = self.verify.is_some();
        let mut groups = Vec::new();
        for (name, namespaces) in &mut served {
            let count = namespaces.len() as u64;
            let parts = Part::of(&namespaces[0], &job, self.size, count)?;
            let limit = self.limit(&job, parts[0].places, interrupt.came());
            let digests = namespaces[0].queue().digests();
            let lanes = (0..)
                .zip(namespaces)
                .zip(parts)
                .map(|((seed, namespace), part)| Lane::new(namespace, &job, part, verify, seed))
                .collect::<anyhow::Result<Vec<_>>>()?;
            groups.push(Served::new(name, digests, lanes, self.numjobs, limit));
        }
        let mut turns = Turns {
            job,
            served: groups,
            bare,
            cores,
            rounds: self.rounds,
            live: Live::new(self.eta, job.bs),
        };
        turns.run(verify)
    }

    fn bare(
        &self,
        job: &Job,
        first: &mut Namespace,
        cores: &Cores,
        spin: Duration,
    ) -> anyhow::Result<Vec<Bare>> {
        let Some(reference) = self.reference else {
            return Ok(Vec::new());
        };
        let digests = first.queue().digests();
        let bytes = first.blocks() * u64::from(first.block_size());
        let shape = Shape {
            payload: usize::try_from(job.bs)?,
            header_digest: digests.header,
            data_digest: digests.data,
            in_capsule: job.bs <= first.controller().capabilities().inline_data.into(),
            // Queues are asked to do without SQ flow control, of which this comes.
            success: true,
        };
        let count = Count {
            jobs: self.numjobs,
            connections: self.connections,
            workers: cores.target.len().max(1),
        };
        let memories = reference.memories(self.size.unwrap_or(bytes));
        memories
            .into_iter()
            .map(|memory| Bare::new(&shape, job, memory, count, spin))
            .collect()
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
        name: None,
        job: *job,
        numjobs: 1,
        digests: (false, false),
        tally,
        references: Vec::new(),
        read_back: None,
    })
}

/// Writes the whole namespace: memory that was never written is not there to be read. Of
/// what is larger than that, which is nothing, the beginning does.
fn fill(namespace: &mut Namespace) -> anyhow::Result<()> {
    const PIECE: u64 = 1 << 20;
    let block_size = u64::from(namespace.block_size());
    let all = namespace.blocks().min(MOST_FILLED / block_size);
    let mut slba = 0;
    while slba < all {
        let blocks = (PIECE / block_size).min(all - slba);
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
