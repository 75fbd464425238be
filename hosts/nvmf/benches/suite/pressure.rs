//! What a host that behaves badly takes from others.
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use socket2::SockRef;

use crate::Suite;
use crate::measured::against_first;
use crate::page::{Table, iops, ratio};
use crate::process::{Target, bench_on, nvmf};

/// Of others' IOPS without it.
const GOAL: f64 = 0.9;

/// From one byte to the next, of who sends them one by one: a pace that leaves the other
/// end's core to those who are measured.
const PACE: Duration = Duration::from_micros(200);

/// Bytes that are passed on as fast as they can be: those of an Admin Queue.
const FREE: usize = 64 << 10;

/// How long a bad host may be at it before others are measured.
const HEAD_START: Duration = Duration::from_millis(300);

/// What is bad about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vice {
    /// It reads 4 KiB every 10 ms of what it has asked for.
    SlowReader,
    /// It reads nothing any more.
    NoReader,
    /// What it sends comes in segments of one byte.
    Segments,
    /// It begins more writes than the target has buffers for, and ends none.
    NoWriter,
}

const VICES: [(Vice, &str, &str); 4] = [
    (
        Vice::SlowReader,
        "reads 4 KiB every 10 ms",
        "--rw randread --bs 128k --iodepth 32",
    ),
    (
        Vice::NoReader,
        "reads nothing any more",
        "--rw randread --bs 128k --iodepth 32",
    ),
    (
        Vice::Segments,
        "sends segments of 1 byte, 5,000 a second",
        "--rw randread --bs 512 --iodepth 32",
    ),
    (
        Vice::NoWriter,
        "begins 2,304 writes of 128 KiB, ends none",
        "--rw randwrite --bs 128k --iodepth 32 --connections 72 --controllers 9",
    ),
];

const WORDS: &str = "--ram 64M --workers 1 --poll-us 1000";

/// Others without a bad host, with it at another target, and with it at theirs.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    let start = |words| Target::start(&suite.cores, &suite.cores.target, words);
    // The other one is not to poll on the core that ours polls on.
    let (ours, elsewhere) = (start(WORDS)?, start("--ram 64M --workers 1")?);
    for target in [&ours, &elsewhere] {
        let words = format!(
            "{} --rw write --bs 128k --iodepth 8 --io-size 64M",
            target.url
        );
        bench_on(&suite.cores, &words, Duration::from_secs(10))?;
    }
    let mut table = Table::new([
        "the bad host",
        "others' IOPS without it",
        "with it elsewhere",
        "with it at their target",
        "goal",
        "RSS grew by, meanwhile",
    ]);
    for (vice, what, load) in VICES {
        let before = ours.rss_kib()?;
        let mut most = before;
        let mut rounds = Vec::new();
        for _ in 0..suite.rounds() {
            let mut round = Vec::new();
            for target in [None, Some(&elsewhere), Some(&ours)] {
                let offender = target.map(|target| Offender::start(suite, target, vice, load));
                let _offender = offender.transpose()?;
                let words = format!("{} --rw randread --bs 4k --iodepth 32 --hipri", ours.url);
                round.extend(bench_on(&suite.cores, &words, suite.turn())?);
                most = most.max(ours.rss_kib()?);
            }
            rounds.push(round);
        }
        let grown = most - before;
        let [(alone, _), (_, elsewhere), (_, here)] = against_first(&rounds)[..] else {
            anyhow::bail!("three turns, and not three figures");
        };
        let verdict = if here.median >= GOAL {
            "holds"
        } else {
            "**no**"
        };
        table.row(&[
            what.to_owned(),
            iops(alone.median),
            ratio(elsewhere),
            ratio(here),
            format!("{GOAL:.2}: {verdict}"),
            format!("{:.1} MiB", grown as f64 / 1024.0),
        ]);
    }
    let mut text = String::new();
    write!(
        text,
        "`nvmf target {WORDS}` on one core; `nvmf bench URL --rw randread --bs 4k --iodepth 32 --hipri` on another is the\n\
         others. The bad host is another `nvmf bench`, on that core too, whose connections go through a relay that makes them bad; it\n\
         reads 128 KiB at QD 32, or 512 bytes, or fills all buffers of the worker (256 MiB) with writes. Two processes more on a core cost something wherever they connect to: *elsewhere* is\n\
         another target process on the same core, which does not poll.\n\n{table}"
    )?;
    Ok(text)
}

/// A host behind a relay that makes it bad; ended when dropped.
struct Offender {
    host: Child,
    _relay: Relay,
}

impl Offender {
    fn start(suite: &Suite, target: &Target, vice: Vice, load: &str) -> anyhow::Result<Self> {
        let relay = suite
            .cores
            .on(&suite.cores.host, || Relay::start(target.address()?, vice))??;
        let url = target
            .url
            .replace(&target.address()?.to_string(), &relay.address.to_string());
        let words = format!("bench {url} {load} --runtime 60 --eta never");
        let mut command = nvmf(words.split_whitespace());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let host = suite.cores.on(&suite.cores.host, || command.spawn())??;
        let mut offender = Self {
            host,
            _relay: relay,
        };
        thread::sleep(HEAD_START);
        if let Some(status) = offender.host.try_wait()? {
            anyhow::bail!("the bad host has ended, {status}: nvmf {words}");
        }
        Ok(offender)
    }
}

impl Drop for Offender {
    fn drop(&mut self) {
        // It has no reason to end by itself.
        let _ = self.host.kill();
        let _ = self.host.wait();
    }
}

/// Passes bytes on, badly; ends with its connections.
struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Relay {
    fn start(target: SocketAddr, vice: Vice) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let relay = Self {
            address: listener.local_addr()?,
            stop: Arc::default(),
        };
        let stop = Arc::clone(&relay.stop);
        thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(error) = join(host, target, vice, &stop) {
                    eprintln!("        the relay: {error:#}");
                }
            }
        });
        Ok(relay)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener up.
        let _ = TcpStream::connect(self.address);
    }
}

/// A thread for each way.
fn join(
    host: TcpStream,
    target: SocketAddr,
    vice: Vice,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(target),
        socket2::Type::STREAM,
        None,
    )?;
    if matches!(vice, Vice::SlowReader | Vice::NoReader) {
        // Before it connects, or the window is larger already.
        socket.set_recv_buffer_size(16 << 10)?;
    }
    socket.connect(&target.into()).context("the target")?;
    let peer = TcpStream::from(socket);
    for socket in [&host, &peer] {
        socket.set_nodelay(true)?;
        // So that both threads see when they are to stop.
        SockRef::from(socket).set_read_timeout(Some(Duration::from_millis(50)))?;
    }
    let pipe = |from: &TcpStream, to: &TcpStream, how: Way| -> anyhow::Result<()> {
        let (from, to, stop) = (from.try_clone()?, to.try_clone()?, Arc::clone(stop));
        thread::spawn(move || {
            pass(&from, &to, how, &stop);
            // Either may have ended already.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
        Ok(())
    };
    let (there, back) = match vice {
        Vice::SlowReader => (Way::Free, Way::Slow),
        Vice::NoReader => (Way::Free, Way::Never),
        Vice::Segments => (Way::Bytewise, Way::Free),
        Vice::NoWriter => (Way::Never, Way::Free),
    };
    pipe(&host, &peer, there)?;
    pipe(&peer, &host, back)
}

/// How bytes are passed on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Free,
    Bytewise,
    /// Slowly after [`FREE`] bytes.
    Slow,
    /// Not at all after [`FREE`] bytes.
    Never,
}

/// Until an end closes, or it is to stop.
fn pass(mut from: &TcpStream, mut to: &TcpStream, way: Way, stop: &AtomicBool) {
    let mut buffer = vec![0; 4096];
    let mut passed = 0;
    while !stop.load(Ordering::Relaxed) {
        match way {
            Way::Slow if passed >= FREE => thread::sleep(Duration::from_millis(10)),
            Way::Never if passed >= FREE => {
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            _ => {}
        }
        let received = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(_) => return,
        };
        passed += received;
        let pieces = if way == Way::Bytewise { 1 } else { received };
        for piece in buffer[..received].chunks(pieces) {
            if to.write_all(piece).is_err() {
                return;
            }
            if way == Way::Bytewise {
                thread::sleep(PACE);
            }
        }
    }
}
