//! The target allocates nothing for a command, once a connection has been used.
//!
//! A test of its own, for the allocator is the process's.
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nvmf::block::spec::Spec;
use nvmf::block::{self, Engines};
use nvmf_core::host::command;
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use nvmf_core::wire::status::Status;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::catalog::Subsystem;
use nvmf_tcp::std::host::{Controller, Options, Payload, Queue};
use nvmf_tcp::std::target::{Config, Target};

#[path = "../../../transport-tcp/tests/watched/mod.rs"]
mod watched;

use watched::Watched;

/// Allocations of all threads but those that do not count.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(true) };
}

fn count() {
    if COUNTS.with(Cell::get) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched(count);

const NQN: &str = "nqn.2014-08.org.example:allocations";

/// Commands of each kind in a batch.
const BATCH: usize = 8;

/// Reads, writes in the capsule, writes by R2T of two sizes, Flush.
fn commands() -> Vec<(Sqe, Option<Buffer>)> {
    let mut all = Vec::new();
    for at in 0..BATCH as u64 {
        let blocks = |opcode, count| command::blocks(opcode, Nsid(1), at * 256, count);
        let buffer = |len| Some(Buffer::zeroed(len));
        all.extend([
            (blocks(IoOpcode::Read, 8), buffer(4096)),
            (blocks(IoOpcode::Write, 8), buffer(4096)),
            (blocks(IoOpcode::Write, 64), buffer(32 * 1024)),
            (blocks(IoOpcode::Write, 256), buffer(128 * 1024)),
            (command::flush(Nsid(1)), None),
        ]);
    }
    all
}

/// Sends all commands at once, and waits for them.
fn exchange(queue: &mut Queue, commands: &mut Vec<(Sqe, Option<Buffer>)>) {
    let sqes: Vec<Sqe> = commands.iter().map(|(sqe, _)| *sqe).collect();
    for (tag, (sqe, buffer)) in commands.drain(..).enumerate() {
        let payload = match (sqe.io_opcode(), buffer) {
            (IoOpcode::Read, Some(buffer)) => Payload::Read(buffer),
            (_, Some(buffer)) => Payload::Write(buffer),
            (_, None) => Payload::Nothing,
        };
        queue.submit(&sqe, payload, tag as u64).unwrap();
    }
    let mut completions = Vec::new();
    while queue.outstanding() > 0 {
        queue.wait(Duration::from_secs(30)).unwrap();
        queue.poll(&mut completions).unwrap();
    }
    completions.sort_by_key(|completion| completion.tag);
    for completion in completions {
        assert_eq!(completion.cqe.status(), Status::SUCCESS);
        commands.push((sqes[completion.tag as usize], completion.buffer));
    }
}

#[test]
fn a_command_allocates_nothing() {
    COUNTS.with(|counts| counts.set(false));
    for digests in [false, true] {
        let nqn: Nqn = NQN.parse().unwrap();
        let mut subsystem = Subsystem::new(nqn);
        let disk = Spec::parse_ram("4M").unwrap();
        let engines = Engines::start(1).unwrap();
        subsystem
            .namespaces
            .push(block::open(&disk, NQN, Nsid(1), &engines).unwrap());
        let target = Target::bind(Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            subsystems: vec![subsystem],
            workers: Some(1),
            pin: false,
            ..Config::default()
        });
        let target = target.unwrap();
        let url = format!("nvme+tcp://{}/{NQN}", target.local_addrs()[0]);
        let running = target.spawn().unwrap();
        let options = Options {
            keep_alive: Duration::ZERO,
            header_digest: digests,
            data_digest: digests,
            ..Options::default()
        };
        let controller = Controller::connect(&url.parse().unwrap(), &options).unwrap();
        let mut queue = controller.queue().unwrap();
        let mut commands = commands();
        let connected = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..20 {
            exchange(&mut queue, &mut commands);
        }
        let warm = ALLOCATIONS.load(Ordering::Relaxed);
        assert!(warm > connected, "nothing is counted");
        // Lists grow once, when more ends at a time than ever before: that is up to the sockets.
        let mut allocations = (0..10).map(|_| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for _ in 0..200 {
                exchange(&mut queue, &mut commands);
            }
            ALLOCATIONS.load(Ordering::Relaxed) - before
        });
        let steady = allocations.any(|allocations| allocations == 0);
        assert!(
            steady,
            "something is allocated in each 8,000 commands, digests {digests}"
        );
        drop(queue);
        drop(controller);
        running.stopper().stop();
        running.join().unwrap();
    }
}
