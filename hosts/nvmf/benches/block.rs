//! What a namespace's storage does alone: no sockets, no NVMe, one worker's loop around it.
//!
//! ```text
//! cargo bench -p nvmf --bench block -- PATH,size=512M --fio
//! ```
//!
//! The loop is the worker's: submit until the queue is full, poll, look into epoll, and sleep there
//! if nothing ended. With `--fio`, fio's io_uring engine does the same on the same file, in turns.
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Parser, ValueEnum};
use nvmf::block::spec::{Choice, Kind, Spec, parse_size};
use nvmf::block::{self, Engines, pool::Pool};
use nvmf_core::block::{Completion, Extent, Op, Request, Submit};
use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::std::buffer::{Buffer, BufferPool};
use nvmf_tcp::std::device::Device;
use nvmf_tcp::std::waker::Waker;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// Measure a namespace's storage without sockets
#[derive(Parser)]
struct Args {
    /// What `nvmf target --file` would serve; may be repeated, to compare options.
    #[arg(required = true, value_name = "PATH[,OPTION...]", value_parser = Spec::parse_file)]
    files: Vec<Spec>,

    /// Reads or writes, at random places. Writes overwrite the file.
    #[arg(long, value_enum, default_value = "read")]
    rw: Rw,

    /// Bytes of an operation.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4K")]
    bs: u64,

    /// Operations under way at a time.
    #[arg(long, value_name = "N", default_value_t = 32)]
    depth: usize,

    /// Seconds that each measurement takes.
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    seconds: f64,

    /// Times that each measurement is taken, in turns.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,

    /// Never sleep.
    #[arg(long)]
    poll: bool,

    /// Measure fio as well, on the first file.
    #[arg(long)]
    fio: bool,

    /// A further option of fio's; may be repeated.
    #[arg(long, value_name = "--NAME=VALUE", allow_hyphen_values = true)]
    fio_option: Vec<String>,

    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,

    /// What `cargo bench` says to all benches.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rw {
    Read,
    Write,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Figures {
    iops: f64,
    /// Microseconds of processor time for each operation.
    cpu: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut names = Vec::new();
    let mut found: HashMap<usize, Vec<Figures>> = HashMap::new();
    for round in 0..args.rounds {
        for (index, spec) in args.files.iter().enumerate() {
            let figures = measure(spec, &args).with_context(|| describe(spec))?;
            found.entry(index).or_default().push(figures);
            if round == 0 {
                names.push(describe(spec));
            }
        }
        if args.fio {
            let figures = fio(&args.files[0], &args)?;
            found.entry(args.files.len()).or_default().push(figures);
        }
    }
    if args.fio {
        names.push(format!("fio {}", args.fio_option.join(" ")));
    }
    let medians: Vec<Figures> = (0..names.len())
        .map(|index| median(&found[&index]))
        .collect();
    let base = medians.last().map_or(1.0, |last| last.iops);
    let rows = names.iter().zip(&medians);
    if args.json {
        let rows = rows.map(|(name, figures)| {
            json!({"name": name, "iops": figures.iops, "cpu_us": figures.cpu, "ratio": figures.iops / base})
        });
        println!(
            "{}",
            json!({"depth": args.depth, "bs": args.bs, "rows": rows.collect::<Vec<_>>()})
        );
        return Ok(());
    }
    println!("{:>10} {:>9} {:>7}  what", "IOPS", "CPU us/IO", "ratio");
    for (name, figures) in rows {
        let ratio = figures.iops / base;
        println!(
            "{:>10.0} {:>9.2} {ratio:>7.3}  {name}",
            figures.iops, figures.cpu
        );
    }
    Ok(())
}

fn describe(spec: &Spec) -> String {
    match &spec.kind {
        Kind::File {
            direct,
            io,
            fixed,
            iopoll,
            ..
        } => format!("{spec} direct={direct:?} io={io:?} iopoll={iopoll:?} fixed={fixed}"),
        _ => spec.to_string(),
    }
}

fn median(all: &[Figures]) -> Figures {
    let mut all = all.to_vec();
    all.sort_by(|one, other| one.iops.total_cmp(&other.iops));
    all[all.len() / 2]
}

fn measure(spec: &Spec, args: &Args) -> anyhow::Result<Figures> {
    let engines = Engines::start(Pool::default_size())?;
    let namespace = block::open(spec, "nqn.2014-08.org.example:bench", Nsid(1), &engines)?;
    let bytes = namespace.geometry().bytes();
    ensure!(bytes >= args.bs, "it has less than {} bytes", args.bs);
    let mut worker = Worker::new(args.poll)?;
    let mut device = namespace.open(&worker.waker);
    let mut load = Load {
        rw: args.rw,
        len: args.bs,
        blocks: bytes / args.bs,
        random: 0x9e37_79b9_7f4a_7c15,
        pool: BufferPool::new(usize::MAX),
        spare: args.depth,
    };
    worker.run(&mut *device, &mut load, Duration::from_millis(200))?;
    worker.run(
        &mut *device,
        &mut load,
        Duration::from_secs_f64(args.seconds),
    )
}

/// Operations to submit, and memory for them, which is a worker's.
struct Load {
    rw: Rw,
    len: u64,
    blocks: u64,
    random: u64,
    pool: BufferPool,
    /// Operations that are not under way.
    spare: usize,
}

impl Load {
    fn next(&mut self) -> Option<Request<Buffer>> {
        self.spare = self.spare.checked_sub(1)?;
        let buffer = self.pool.take(usize::try_from(self.len).ok()?);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let extent = Extent {
            byte: self.random % self.blocks * self.len,
            len: self.len,
        };
        Some(Request {
            tag: 0,
            op: match self.rw {
                Rw::Read => Op::Read(extent),
                Rw::Write => Op::Write { extent, fua: false },
            },
            buffer: Some(buffer),
        })
    }

    fn ended(&mut self, completion: Completion<Buffer>) -> anyhow::Result<()> {
        if let Err(error) = completion.result {
            bail!("an operation failed: {error:?}");
        }
        if let Some(buffer) = completion.buffer {
            self.pool.give(buffer);
        }
        self.spare += 1;
        Ok(())
    }
}

struct Worker {
    waker: Waker,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    poll: bool,
}

impl Worker {
    fn new(poll: bool) -> anyhow::Result<Self> {
        let waker = Waker::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(0), edges)?;
        Ok(Self {
            waker,
            epoll,
            events: Vec::with_capacity(8),
            poll,
        })
    }

    fn run(
        &mut self,
        device: &mut dyn Device,
        load: &mut Load,
        time: Duration,
    ) -> anyhow::Result<Figures> {
        let depth = load.spare;
        let (began, cpu) = (Instant::now(), processor_time());
        let mut done = 0u64;
        let mut stopping = false;
        while !stopping || load.spare < depth {
            let before = done;
            // One for each of those that wait, not one after the other for as long as they end at
            // once: a worker has other connections to look after.
            for _ in 0..if stopping { 0 } else { load.spare } {
                let Some(request) = load.next() else { break };
                match device.submit(request) {
                    Submit::Done(completion) => {
                        load.ended(completion)?;
                        done += 1;
                    }
                    Submit::Pending => {}
                    Submit::Busy(_) => bail!("more than the device takes at a time: --depth"),
                }
            }
            while let Some(completion) = device.poll() {
                load.ended(completion)?;
                done += 1;
            }
            self.wait(done > before)?;
            stopping |= began.elapsed() >= time;
        }
        let spent = processor_time().saturating_sub(cpu);
        Ok(Figures {
            iops: done as f64 / began.elapsed().as_secs_f64(),
            cpu: spent.as_secs_f64() * 1e6 / done as f64,
        })
    }

    fn wait(&mut self, busy: bool) -> anyhow::Result<()> {
        let asleep = !busy && !self.poll && self.waker.sleep();
        let timeout = (!asleep).then(Timespec::default);
        self.events.clear();
        let events = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, events, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if asleep {
            self.waker.awake();
        }
        Ok(())
    }
}

/// Of all threads, the kernel's that work for this process among them.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn fio(spec: &Spec, args: &Args) -> anyhow::Result<Figures> {
    let Kind::File { path, direct, .. } = &spec.kind else {
        bail!("fio needs a file");
    };
    let (rw, side) = match args.rw {
        Rw::Read => ("randread", "read"),
        Rw::Write => ("randwrite", "write"),
    };
    let direct = *direct != Choice::Off;
    let output = Command::new("fio")
        // Its threads have this process's share of the processor; its processes begin a session, and
        // with it a scheduling group, of their own.
        .args(["--name=block", "--thread"])
        .args(["--ioengine=io_uring", "--output-format=json"])
        .args([
            "--time_based",
            "--norandommap",
            "--randrepeat=0",
            "--ramp_time=200ms",
        ])
        .arg(format!("--filename={}", escaped(path)))
        .arg(format!("--rw={rw}"))
        .arg(format!("--bs={}", args.bs))
        .arg(format!("--iodepth={}", args.depth))
        .arg(format!("--direct={}", u8::from(direct)))
        // What is cached shall stay so.
        .arg(format!("--invalidate={}", u8::from(direct)))
        .arg(format!("--runtime={}ms", (args.seconds * 1e3) as u64))
        .args(&args.fio_option)
        .output()
        .context("cannot run fio; is it installed?")?;
    ensure!(
        output.status.success(),
        "fio: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).context("fio's report")?;
    let job = &report["jobs"][0];
    let number = |value: &Value| value.as_f64().context("fio's report lacks a figure");
    let iops = number(&job[side]["iops"])?;
    let busy = number(&job["usr_cpu"])? + number(&job["sys_cpu"])?;
    Ok(Figures {
        iops,
        cpu: busy / 100.0 * 1e6 / iops,
    })
}

/// To fio, a colon separates files.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(':', "\\:")
}
