//! Figures that need no network card: what each I/O costs in work requests and
//! completions, how often it crosses the fabric, and how much memory waits to be
//! received into.
//!
//! `cargo test -p nvmf-rdma --test figures -- --nocapture` prints the tables.
use std::time::Duration;

use nvmf_core::host::command;
use nvmf_core::wire::ids::{Cntlid, Nsid, Qid};
use nvmf_core::wire::sqe::IoOpcode;
use nvmf_rdma::sim::Statistics;
use nvmf_rdma::target::Receives;
use nvmf_rdma::verbs::Key;
use nvmf_testing::ends::{Ends, Happened, Payload, Wanted};
use nvmf_testing::over_rdma::{Choices, RdmaEnds};
use nvmf_testing::scenarios::{IO, session};

/// I/Os of each kind.
const COUNT: u64 = 1000;

/// What one end did per I/O. Per I/O means whole numbers, or it is not the same for each.
#[derive(Debug, PartialEq)]
struct PerIo {
    receives: f64,
    posts: f64,
    sends: f64,
    writes: f64,
    reads: f64,
    windows: f64,
    chains: f64,
}

impl PerIo {
    fn between(before: Statistics, after: Statistics) -> Self {
        let per = |before: u64, after: u64| (after - before) as f64 / COUNT as f64;
        Self {
            receives: per(before.receives_completed, after.receives_completed),
            posts: per(before.posts, after.posts),
            sends: per(before.sends, after.sends),
            writes: per(before.writes, after.writes),
            reads: per(before.reads, after.reads),
            windows: per(before.windows, after.windows),
            chains: per(before.chains_completed, after.chains_completed),
        }
    }
}

/// One command at a time, of 4096 bytes: what it costs the target and the host.
fn costs(opcode: IoOpcode, inline_data: u32, key: Key) -> [PerIo; 2] {
    let mut ends = RdmaEnds::new(Choices {
        key,
        ..Choices::default()
    });
    assert!(session(&mut ends).is_whole());
    ends.configure(IO, 7, inline_data);
    let both =
        |ends: &RdmaEnds| [&ends.nic, ends.host_nic()].map(|nic| ends.fabric.statistics(nic));
    let before = both(&ends);
    for at in 0..COUNT {
        let sqe = command::blocks(opcode, Nsid(1), at % 16 * 8, 8);
        let payload = if opcode == IoOpcode::Read {
            Payload::Read(4096)
        } else {
            Payload::Write(vec![7; 4096])
        };
        assert!(ends.submit(IO, &sqe, payload, at));
        ends.flow();
        let seen = ends.seen_of(IO);
        let [Happened::Completed { cqe, .. }] = &seen[..] else {
            panic!("{seen:?}");
        };
        assert!(cqe.status().is_success());
    }
    let after = both(&ends);
    let [target, host] = [0, 1].map(|end| PerIo::between(before[end], after[end]));
    [target, host]
}

#[test]
fn work_requests_and_completions_per_io() {
    println!(
        "| 4 KiB | end | receives | posts | SEND | WRITE | READ | windows | send completions |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut targets = Vec::new();
    for (name, opcode, inline_data, key) in [
        ("read", IoOpcode::Read, 0, Key::Region),
        ("write, inline", IoOpcode::Write, 4096, Key::Region),
        ("write, fetched", IoOpcode::Write, 0, Key::Region),
        ("read, window", IoOpcode::Read, 0, Key::Window),
        ("write, window", IoOpcode::Write, 0, Key::Window),
    ] {
        let both = costs(opcode, inline_data, key);
        for (end, per) in ["target", "host"].iter().zip(&both) {
            println!(
                "| {name} | {end} | {} | {} | {} | {} | {} | {} | {:.3} |",
                per.receives, per.posts, per.sends, per.writes, per.reads, per.windows, per.chains
            );
        }
        let [target, host] = both;
        // A host sends one capsule, and signals it where it has to.
        assert_eq!((host.receives, host.posts, host.sends), (1.0, 1.0, 1.0));
        let inline = inline_data > 0;
        assert!(inline || host.chains < 0.2, "{host:?}");
        // The controller invalidates what the host bound.
        let windows = if key == Key::Window { 1.0 } else { 0.0 };
        assert_eq!(host.windows, windows);
        targets.push(target);
    }
    let per = |posts, sends, writes, reads| PerIo {
        receives: 1.0,
        posts,
        sends,
        writes,
        reads,
        windows: 0.0,
        chains: posts,
    };
    let [read, inline, fetched, ..] = &targets[..] else {
        panic!("five kinds");
    };
    // 1 receive, 2 sends in one post, 1 completion.
    assert_eq!(*read, per(1.0, 1.0, 1.0, 0.0));
    // 1 receive, 1 send.
    assert_eq!(*inline, per(1.0, 1.0, 0.0, 0.0));
    // A READ and its completion more.
    assert_eq!(*fetched, per(2.0, 1.0, 0.0, 1.0));
}

/// How often a command crosses the fabric, one way or the other, until its host has the
/// response: all takes no time but that.
fn crossings(opcode: IoOpcode, bytes: u32, inline_data: u32) -> u128 {
    let once = Duration::from_micros(1);
    let mut ends = RdmaEnds::new(Choices {
        inline_data,
        latency: once,
        ..Choices::default()
    });
    assert!(session(&mut ends).is_whole());
    ends.configure(IO, 7, inline_data);
    let sqe = command::blocks(opcode, Nsid(1), 0, bytes / 512);
    let payload = match opcode {
        IoOpcode::Read => Payload::Read(bytes),
        _ => Payload::Write(vec![7; bytes as usize]),
    };
    let begun = ends.now();
    assert!(ends.submit(IO, &sqe, payload, 1));
    ends.flow();
    let seen = ends.poll_seen().expect("it completes");
    assert!(matches!(seen.happened, Happened::Completed { cqe, .. } if cqe.status().is_success()));
    seen.when.since(begun).as_nanos() / once.as_nanos()
}

#[test]
fn writes_that_fit_a_capsule_save_a_round_trip() {
    println!("| crossings of the fabric | write, 4 KiB inline | write, 16 KiB inline | read |");
    println!("|---|---|---|---|");
    for bytes in [512, 4096, 8192, 16384, 32768] {
        let writes = [4096, 16384].map(|inline| {
            let count = crossings(IoOpcode::Write, bytes, inline);
            // The capsule and the response, and before that READ and what it brings.
            assert_eq!(count, if bytes <= inline { 2 } else { 4 }, "{bytes}");
            count
        });
        let read = crossings(IoOpcode::Read, bytes, 4096);
        assert_eq!(read, 2);
        println!("| {bytes} bytes | {} | {} | {read} |", writes[0], writes[1]);
    }
}

/// Bytes that wait to be received into, with so many connections of 32 entries.
fn receive_memory(receives: Receives, connections: u16) -> u64 {
    const ENTRIES: u16 = 32;
    let count = match receives {
        Receives::Shared => 256,
        Receives::PerConnection => u32::from(connections) * u32::from(ENTRIES),
    };
    let mut ends = RdmaEnds::new(Choices {
        receives,
        count,
        ..Choices::default()
    });
    for _ in 0..connections {
        let wanted = Wanted {
            qid: Qid::ADMIN,
            cntlid: Cntlid::DYNAMIC,
            entries: ENTRIES,
        };
        ends.connect(&wanted, Duration::ZERO);
    }
    ends.flow();
    assert_eq!(ends.worker.connections(), usize::from(connections));
    ends.fabric.statistics(&ends.nic).receive_bytes
}

#[test]
fn receive_memory_does_not_grow_with_connections() {
    println!("| connections of 32 entries, 4 KiB inline | shared, 256 receives | per connection |");
    println!("|---|---|---|");
    let mut shared = Vec::new();
    for connections in [1, 64, 1024] {
        let of = |receives| receive_memory(receives, connections);
        let both = [Receives::Shared, Receives::PerConnection].map(of);
        println!(
            "| {connections} | {} KiB | {} KiB |",
            both[0] / 1024,
            both[1] / 1024
        );
        assert_eq!(both[1], u64::from(connections) * 32 * (64 + 4096));
        shared.push(both[0]);
    }
    assert!(shared.iter().all(|bytes| *bytes == 256 * (64 + 4096)));
}
