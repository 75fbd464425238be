//! What a target costs while nothing is asked of it, as JSON: the time until it listens, its memory
//! idle and for each connection, how fast it accepts, whether 10,000 associations in a row leave
//! anything behind, and its share of a core with 1,000 hosts that only keep alive.
//!
//! ```text
//! cargo build --release && cargo run --release --example scale -- target/release/nvmf
//! ```
//! Hosts are sockets with as little behind them as can be, so the figures are the target's.
#[allow(dead_code, reason = "examples share it, and each uses a part")]
#[path = "../peer/mod.rs"]
mod peer;

use std::thread;
use std::time::{Duration, Instant};

use nvmf_core::host::command;
use nvmf_core::wire::ids::Qid;
use serde_json::json;

use peer::{ENTRIES, KATO_MS, Outcome, Peer, Target};

/// Associations one after the other, and connections accepted.
const MANY: u32 = 10_000;
/// Connections that are there together.
const TOGETHER: usize = 1000;
/// I/O queues of one association.
const QUEUES: u16 = 50;

fn main() -> Outcome<()> {
    let program = std::env::args().nth(1).ok_or("usage: scale NVMF")?;
    let target = Target::start(&program, &["--max-controllers", "2000"])?;
    let idle = target.resident_kib()?;
    let report = json!({
        "listening_ms": target.listening.as_secs_f64() * 1e3,
        "resident_idle_kib": idle,
        "accepts_per_s": accepts(&target)?,
        "associations": associations(&target)?,
        "idle_io_queues": idle_queues(&target)?,
        "keep_alive": keep_alive(&target)?,
    });
    println!("{report:#}");
    Ok(())
}

/// Connections a second, each served to the end of its ICResp.
fn accepts(target: &Target) -> Outcome<f64> {
    let begin = Instant::now();
    for _ in 0..MANY {
        Peer::connect(target.address)?;
    }
    Ok(f64::from(MANY) / begin.elapsed().as_secs_f64())
}

fn associations(target: &Target) -> Outcome<serde_json::Value> {
    let round = || -> Outcome<()> {
        let (admin, cntlid) = Peer::associate(target.address)?;
        Peer::connect(target.address)?.join(Qid(1), cntlid)?;
        drop(admin);
        Ok(())
    };
    (0..100).try_for_each(|_| round())?;
    let (before, begin) = (target.resident_kib()?, Instant::now());
    (0..MANY).try_for_each(|_| round())?;
    let seconds = begin.elapsed().as_secs_f64();
    let grown = i64::try_from(target.resident_kib()?)? - i64::try_from(before)?;
    Ok(json!({"count": MANY, "per_s": f64::from(MANY) / seconds, "grown_kib": grown}))
}

fn idle_queues(target: &Target) -> Outcome<serde_json::Value> {
    let before = target.resident_kib()?;
    let mut peers = Vec::new();
    while peers.len() < TOGETHER {
        let (admin, cntlid) = Peer::associate(target.address)?;
        peers.push(admin);
        for qid in 1..=QUEUES {
            let mut queue = Peer::connect(target.address)?;
            queue.join(Qid(qid), cntlid)?;
            peers.push(queue);
        }
    }
    let used = target.resident_kib()?.saturating_sub(before);
    let each = used as f64 / peers.len() as f64;
    Ok(json!({"count": peers.len(), "entries": ENTRIES, "resident_kib_each": each}))
}

fn keep_alive(target: &Target) -> Outcome<serde_json::Value> {
    let mut peers = Vec::new();
    for _ in 0..TOGETHER {
        peers.push(Peer::associate(target.address)?.0);
    }
    let pause = Duration::from_millis(u64::from(KATO_MS) / 2) / u32::try_from(TOGETHER)?;
    let (begin, before) = (Instant::now(), target.processor()?);
    for round in 0..2 * peers.len() {
        let index = round % TOGETHER;
        peers[index].command(command::keep_alive(), &[])?;
        let next = pause * u32::try_from(round + 1)?;
        thread::sleep(next.saturating_sub(begin.elapsed()));
    }
    let (seconds, used) = (begin.elapsed(), target.processor()? - before);
    let share = used.as_secs_f64() / seconds.as_secs_f64();
    Ok(json!({"hosts": TOGETHER, "kato_ms": KATO_MS, "core_percent": 100.0 * share}))
}
