//! What a well-behaved host gets while others on the same worker misbehave, as JSON: its IOPS
//! (4 KiB reads, 32 at a time) without and with each kind of offender, in turns, and what the target
//! holds in memory meanwhile.
//!
//! ```text
//! cargo build --release && cargo run --release --example offenders -- target/release/nvmf
//! ```
#[allow(dead_code, reason = "examples share it, and each uses a part")]
#[path = "../peer/mod.rs"]
mod peer;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nvmf_core::host::command;
use nvmf_core::wire::ids::{Nsid, Qid};
use nvmf_core::wire::sgl::Sgl;
use nvmf_core::wire::sqe::IoOpcode;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Controller, Options, Payload, Queue};
use serde_json::json;

use peer::{ENTRIES, NQN, Outcome, Peer, Target};

/// Offending connections.
const OFFENDERS: u16 = 8;
/// Blocks of what offenders ask for: 128 KiB.
const BLOCKS: u32 = 32;
/// One measurement, and how many of each kind.
const TURN: Duration = Duration::from_millis(400);
const TURNS: usize = 5;
/// Commands that the well-behaved host has under way.
const DEPTH: usize = 32;
/// Between single bytes of an offender: more would measure who gets the processor.
const BETWEEN_BYTES: Duration = Duration::from_micros(50);

/// Begins to misbehave, until the flag says stop.
type Offence = fn(&mut Peer) -> Outcome<()>;

const OFFENCES: [(&str, Offence); 3] = [
    ("does not read", does_not_read),
    ("sends no data", sends_no_data),
    ("sends single bytes", |_| Ok(())),
];

fn main() -> Outcome<()> {
    let program = std::env::args().nth(1).ok_or("usage: offenders NVMF")?;
    // One worker, so that all of them are on it.
    let target = Target::start(&program, &["--workers", "1"])?;
    let url = format!("nvme+tcp://{}/{NQN}", target.address);
    let controller = Controller::connect(&url.parse()?, &Options::default())?;
    let mut queue = controller.queue()?;
    let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| Buffer::zeroed(4096)).collect();
    measure(&mut queue, &mut buffers)?;
    let mut report = Vec::new();
    for (name, offence) in OFFENCES {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        let before = target.resident_kib()?;
        let mut most = before;
        for _ in 0..TURNS {
            without.push(measure(&mut queue, &mut buffers)?);
            let (admin, cntlid) = Peer::associate(target.address)?;
            let mut offenders = Vec::new();
            for qid in 1..=OFFENDERS {
                let mut peer = Peer::connect(target.address)?;
                peer.join(Qid(qid), cntlid)?;
                offence(&mut peer)?;
                offenders.push(peer);
            }
            let trickle = name
                .contains("bytes")
                .then(|| Trickle::start(&mut offenders));
            with.push(measure(&mut queue, &mut buffers)?);
            most = most.max(target.resident_kib()?);
            if let Some(trickle) = trickle {
                trickle.stop()?;
            }
            drop((offenders, admin));
        }
        let (without, with) = (median(without), median(with));
        report.push(json!({
            "offence": name,
            "connections": OFFENDERS,
            "iops_without": without.round(),
            "iops_with": with.round(),
            "ratio": with / without,
            "resident_grown_kib": most - before,
        }));
    }
    println!("{:#}", json!(report));
    Ok(())
}

/// Asks for all that it may, and takes none of it.
fn does_not_read(peer: &mut Peer) -> Outcome<()> {
    let length = BLOCKS * 4096;
    for _ in 0..ENTRIES - 1 {
        let read = command::blocks(IoOpcode::Read, Nsid(1), 0, BLOCKS);
        let capsule = peer.capsule(read, Sgl::Transport { length }, &[])?;
        peer.socket.write_all(&capsule)?;
    }
    Ok(())
}

/// Begins all writes that it may, and leaves the target waiting for their data.
fn sends_no_data(peer: &mut Peer) -> Outcome<()> {
    let length = BLOCKS * 4096;
    for _ in 0..ENTRIES - 1 {
        let write = command::blocks(IoOpcode::Write, Nsid(1), 0, BLOCKS);
        let capsule = peer.capsule(write, Sgl::Transport { length }, &[])?;
        peer.socket.write_all(&capsule)?;
    }
    Ok(())
}

/// Commands that arrive byte by byte.
struct Trickle {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Outcome<()>>,
}

impl Trickle {
    fn start(peers: &mut Vec<Peer>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut peers, stopped) = (std::mem::take(peers), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let read = command::blocks(IoOpcode::Read, Nsid(1), 0, 1);
            let mut data = vec![0; 24 + 4096 + 24];
            while !stopped.load(Ordering::Relaxed) {
                let mut capsules = Vec::new();
                for peer in &mut peers {
                    capsules.push(peer.capsule(read, Sgl::Transport { length: 4096 }, &[])?);
                }
                for at in 0..capsules[0].len() {
                    for (peer, capsule) in peers.iter_mut().zip(&capsules) {
                        peer.socket.write_all(&capsule[at..=at])?;
                        thread::sleep(BETWEEN_BYTES);
                    }
                }
                for peer in &mut peers {
                    peer.socket.read_exact(&mut data)?;
                }
            }
            Ok(())
        });
        Self { stop, thread }
    }

    fn stop(self) -> Outcome<()> {
        self.stop.store(true, Ordering::Relaxed);
        let outcome = self.thread.join();
        outcome.map_err(|_| "the trickle's thread panicked")?
    }
}

/// IOPS of a host that behaves.
fn measure(queue: &mut Queue, buffers: &mut Vec<Buffer>) -> Outcome<f64> {
    let (begin, mut done) = (Instant::now(), 0_u32);
    let mut completions = Vec::new();
    let mut place = 0;
    while begin.elapsed() < TURN {
        for buffer in buffers.drain(..) {
            place = (place + 1) % 4096;
            let read = command::blocks(IoOpcode::Read, Nsid(1), place, 1);
            queue.enqueue(&read, Payload::Read(buffer), 0)?;
        }
        queue.flush();
        queue.wait(Duration::from_secs(10))?;
        queue.poll(&mut completions)?;
        for completion in completions.drain(..) {
            if !completion.cqe.status().is_success() {
                return Err(completion.cqe.to_string().into());
            }
            done += 1;
            buffers.extend(completion.buffer);
        }
    }
    Ok(f64::from(done) / begin.elapsed().as_secs_f64())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
