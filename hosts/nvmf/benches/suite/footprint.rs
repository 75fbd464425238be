//! What a target costs before anything is asked of it, and what its connections do.
use std::fs;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nvmf_tcp::std::host::{Controller, IoQueue, Options, Url};

use crate::Suite;
use crate::measured::Spread;
use crate::page::Table;
use crate::process::{Target, bench_on};

/// Connections that are there and do nothing: of each two, one is an Admin Queue.
const IDLE: usize = 1000;

/// Connections that come and go.
const MANY: usize = 10_000;

/// Of these, how many are there at a time.
const AT_A_TIME: usize = 64;

const DEPTH: u32 = 128;

/// Until what came before is over.
const SETTLE: Duration = Duration::from_millis(300);

/// A worker for each core, and sleep when there is nothing to do: as it is by default.
const WORDS: &str = "--ram 64M";

/// All of it.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    let mut table = Table::new(["what", "nvmf target", "goal", "SPDK there"]);
    let mut row = |what: &str, found: String, goal: &str, spdk: &str| {
        table.row(&[what, &found, goal, spdk].map(str::to_owned));
    };
    let start = || Target::start(&suite.cores, &suite.cores.all, WORDS);

    let starts = (0..suite.rounds()).map(|_| {
        let begin = Instant::now();
        start().map(|_| begin.elapsed().as_secs_f64() * 1e3)
    });
    let starts = Spread::of(starts.collect::<anyhow::Result<Vec<_>>>()?);
    let found = format!(
        "{:.1} ms ({:.1} to {:.1})",
        starts.median, starts.least, starts.most
    );
    row("from exec to listening", found, "10 ms", "254 ms");

    let target = start()?;
    let rss = target.rss_kib()?;
    row(
        "RSS, idle",
        format!("{:.1} MiB", rss as f64 / 1024.0),
        "12 MiB",
        "228 MiB",
    );

    let cpu = target.cpu_percent(suite)?;
    row("CPU, no connection", format!("{cpu:.2} %"), "0 %", "100 %");

    let count = if suite.quick { 20 } else { IDLE };
    let before = target.rss_kib()?;
    let idle = Idle::connect(&target, count / 2)?;
    let cpu = target.cpu_percent(suite)?;
    let found = format!("{cpu:.2} %");
    let what = format!("CPU, {count} idle connections, keep alive every 2.5 s");
    row(&what, found, "2 %", "100 %");
    let each = (target.rss_kib()?.saturating_sub(before)) as f64 / count as f64;
    let what = format!("RSS of each of them; I/O queues have {DEPTH} entries");
    row(&what, format!("{each:.1} KiB"), "8 KiB", "0.77 MB");
    drop(idle);

    let busy = if suite.quick { 8 } else { 256 };
    for rw in ["randread", "randwrite"] {
        let target = start()?;
        // The namespace's own memory, which comes with the first writes, is not the connections'.
        let fill = format!("{} --rw write --bs 128k --io-size 64M", target.url);
        bench_on(&suite.cores, &fill, Duration::from_secs(10))?;
        let before = target.rss_kib()?;
        let words = format!(
            "{} --rw {rw} --bs 4k --connections {busy} --controllers 16 --iodepth {DEPTH}",
            target.url
        );
        bench_on(&suite.cores, &words, 4 * suite.turn())?;
        let peak = target.status_kib("VmHWM:")?.saturating_sub(before);
        let each = peak as f64 / f64::from(busy);
        let what =
            format!("RSS at its peak, each of {busy} connections with {DEPTH} {rw} of 4 KiB");
        row(&what, format!("{each:.1} KiB"), "", "");
    }

    let target = start()?;
    let many = if suite.quick { 200 } else { MANY };
    churn(target.address()?, AT_A_TIME)?;
    thread::sleep(SETTLE);
    let (rss, files) = (target.rss_kib()?, target.files()?);
    let begin = Instant::now();
    churn(target.address()?, many)?;
    let rate = many as f64 / begin.elapsed().as_secs_f64();
    row(
        "connections accepted, ICReq answered, closed",
        format!("{rate:.0} a second"),
        "10,000",
        "100",
    );
    let grown = target.rss_kib()? as i64 - rss as i64;
    let left = target.settled_files(files)? as i64 - files as i64;
    let what = format!("growth after {many} of them");
    row(
        &what,
        format!("{grown} KiB, {left} file descriptors"),
        "none",
        "",
    );

    let count = if suite.quick { 5 } else { 100 };
    let begin = Instant::now();
    for _ in 0..count {
        Controller::connect(&target.url.parse()?, &Options::default())?;
    }
    let each = begin.elapsed().as_secs_f64() * 1e3 / f64::from(count);
    row(
        "a controller brought up and shut down, one after the other",
        format!("{each:.2} ms"),
        "",
        "",
    );

    Ok(format!(
        "`nvmf target {WORDS}`, with all defaults: a worker for each core, which sleeps when there is nothing to do. Memory is the\n\
         whole process's RSS; file descriptors and CPU are those of the kernel's accounts.\n\n{table}"
    ))
}

/// Connections that do nothing but keep themselves alive.
struct Idle {
    _queues: Vec<IoQueue>,
}

impl Idle {
    /// So many controllers, each with one I/O queue.
    fn connect(target: &Target, controllers: usize) -> anyhow::Result<Self> {
        let url: Url = target.url.parse()?;
        let options = Options {
            queue_depth: DEPTH - 1,
            io_queues: 1,
            keep_alive: Duration::from_secs(5),
            ..Options::default()
        };
        let queues = (0..controllers).map(|_| Ok(Controller::connect(&url, &options)?.queue()?));
        Ok(Self {
            _queues: queues.collect::<anyhow::Result<_>>()?,
        })
    }
}

/// An ICReq without digests, of PFV 0 (TCP Transport 1.1, section 3.6.2.2).
fn icreq() -> [u8; 128] {
    let mut icreq = [0; 128];
    icreq[2] = 128;
    icreq[4] = 128;
    icreq
}

/// Connects `count` times, some of them at a time, exchanges ICReq and ICResp, and closes.
fn churn(address: SocketAddr, count: usize) -> anyhow::Result<()> {
    let mut left = count;
    while left > 0 {
        let some = left.min(AT_A_TIME);
        left -= some;
        let mut sockets = Vec::new();
        for _ in 0..some {
            let mut socket = TcpStream::connect(address)?;
            socket.set_read_timeout(Some(Duration::from_secs(10)))?;
            socket.write_all(&icreq())?;
            sockets.push(socket);
        }
        for mut socket in sockets {
            let mut icresp = [0; 128];
            socket.read_exact(&mut icresp).context("no ICResp came")?;
            ensure!(icresp[0] == 1, "that is no ICResp");
        }
    }
    Ok(())
}

impl Target {
    pub(crate) fn rss_kib(&self) -> anyhow::Result<u64> {
        self.status_kib("VmRSS:")
    }

    /// A line of /proc/PID/status.
    fn status_kib(&self, name: &str) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number
            .context("no such line in /proc/PID/status")?
            .parse()?)
    }

    fn files(&self) -> anyhow::Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// The same, once there are not more than `expected`, or after a second.
    fn settled_files(&self, expected: usize) -> anyhow::Result<usize> {
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.files()? > expected && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        self.files()
    }

    /// Time that all of its threads were on a processor.
    fn cpu(&self) -> anyhow::Result<Duration> {
        let mut ns = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            ns += text
                .split_whitespace()
                .next()
                .context("schedstat")?
                .parse::<u64>()?;
        }
        Ok(Duration::from_nanos(ns))
    }

    /// Of one core, in percent, while nobody asks for anything.
    fn cpu_percent(&self, suite: &Suite) -> anyhow::Result<f64> {
        let time = if suite.quick { 0.1 } else { 5.0 };
        thread::sleep(SETTLE);
        let before = self.cpu()?;
        thread::sleep(Duration::from_secs_f64(time));
        Ok((self.cpu()? - before).as_secs_f64() / time * 100.0)
    }
}
