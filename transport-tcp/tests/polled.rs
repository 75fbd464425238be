//! A queue that its caller polls: it allocates nothing for a command, nobody wakes the caller, and
//! the caller wakes nobody. A test of its own, for the allocator is the process's.
#![cfg(feature = "std")]
use std::cell::Cell;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use nvmf_core::host::command;
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use nvmf_core::wire::status::Status;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Completion, Controller, Options, Payload, Queue};

mod watched;

use watched::Watched;

#[allow(dead_code, unreachable_pub)]
#[path = "../src/std/host/example.rs"]
mod example;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

#[global_allocator]
static ALLOCATOR: Watched = Watched(count);

/// How often a thread has gone to sleep, by a folder of `/proc`.
fn sleeps(thread: &str) -> u64 {
    let status = fs::read_to_string(format!("{thread}/status")).unwrap();
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// The folder of the thread that keeps the controller alive, once it has begun to sleep.
fn keeper() -> String {
    let is_it = |folder: &String| {
        let name = fs::read_to_string(format!("{folder}/comm")).unwrap_or_default();
        let status = fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
        name.trim() == "nvmf-keeper" && status.contains("State:\tS")
    };
    for _ in 0..6000 {
        let all = fs::read_dir("/proc/self/task").unwrap();
        let mut folders = all.map(|entry| entry.unwrap().path().display().to_string());
        if let Some(folder) = folders.find(is_it) {
            return folder;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("there is no keeper that sleeps");
}

/// Reads and writes, in the capsule and by R2T.
fn commands() -> Vec<(Sqe, Buffer)> {
    let kinds = [
        (IoOpcode::Read, 8),
        (IoOpcode::Write, 8),
        (IoOpcode::Read, 128),
        (IoOpcode::Write, 128),
    ];
    let command = |at: usize| {
        let (opcode, blocks) = kinds[at % kinds.len()];
        let sqe = command::blocks(opcode, Nsid(1), at as u64 * 128, blocks);
        (sqe, Buffer::zeroed(blocks as usize * 512))
    };
    (0..16).map(command).collect()
}

/// Has all commands done, and never waits.
fn exchange(
    queue: &mut Queue,
    idle: &mut Vec<(Sqe, Buffer)>,
    flying: &mut [Option<Sqe>],
    completions: &mut Vec<Completion>,
) {
    let patience = Instant::now() + Duration::from_secs(60);
    for (tag, (sqe, buffer)) in idle.drain(..).enumerate() {
        let payload = match sqe.io_opcode() {
            IoOpcode::Read => Payload::Read(buffer),
            _ => Payload::Write(buffer),
        };
        queue.enqueue(&sqe, payload, tag as u64).unwrap();
        flying[tag] = Some(sqe);
    }
    queue.flush();
    while queue.outstanding() > 0 {
        // The queue and its caller exchange their lists, which grow with what completes at once:
        // that is up to the target.
        completions.reserve(flying.len());
        queue.poll(completions).unwrap();
        assert!(Instant::now() < patience, "the target does not answer");
        for completion in completions.drain(..) {
            assert_eq!(completion.cqe.status(), Status::SUCCESS);
            let sqe = flying[completion.tag as usize].take();
            idle.extend(sqe.zip(completion.buffer));
        }
    }
}

#[test]
fn it_allocates_nothing_and_neither_sleeps_nor_wakes() {
    let (running, url) = example::serve();
    for digests in [false, true] {
        let options = Options {
            // The keeper sleeps all the time that this takes, if nobody wakes it.
            keep_alive: Duration::from_secs(600),
            header_digest: digests,
            data_digest: digests,
            ..Options::default()
        };
        let controller = Controller::connect(&url.parse().unwrap(), &options).unwrap();
        let mut queue = controller.queue().unwrap();
        let mut idle = commands();
        let mut flying = vec![None; idle.len()];
        let mut completions = Vec::new();
        let mut batches = |count| {
            for _ in 0..count {
                exchange(&mut queue, &mut idle, &mut flying, &mut completions);
            }
        };
        batches(10);
        let keeper = keeper();
        let before = (sleeps("/proc/thread-self"), sleeps(&keeper));
        let allocations = ALLOCATIONS.get();
        batches(50);
        assert_eq!(ALLOCATIONS.get(), allocations, "of 800 commands");
        let after = (sleeps("/proc/thread-self"), sleeps(&keeper));
        assert_eq!(after.1, before.1, "the keeper was woken");
        // The kernel may have to, for memory; a caller who waits for completions sleeps for each batch.
        let slept = after.0 - before.0;
        assert!(slept < 10, "the caller slept {slept} times");
    }
    running.stopper().stop();
    running.join().unwrap();
}
