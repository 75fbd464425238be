//! Shared associations against a target of this crate, over loopback.
mod fairness;
mod recovery;

use std::future::Future;
use std::num::NonZero;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use nvmf_core::host::command;
use nvmf_core::wire::identify::Oncs;
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::sqe::IoOpcode;
use nvmf_core::wire::status::Status;

use super::super::super::buffer::Buffer;
use super::super::tests::{BYTES, NQN, Served, noise};
use super::super::{Error, Options, Payload};
use super::{Association, Host, SharedNamespace};

const BLOCKS: u64 = BYTES as u64 / 512;

fn host(threads: usize) -> Host {
    Host::new(NonZero::new(threads)).unwrap()
}

fn attach(host: &Host, served: &Served, options: &Options) -> Association {
    host.attach(&served.url(NQN), options).wait().unwrap()
}

fn open(host: &Host, served: &Served, options: &Options) -> SharedNamespace {
    let association = attach(host, served, options);
    association.namespace(Nsid(1)).wait().unwrap()
}

fn few(io_queues: u16, queue_depth: u32) -> Options {
    Options {
        io_queues,
        queue_depth,
        ..Options::default()
    }
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn threads_share_a_namespace_and_none_sees_anothers_data() {
    const THREADS: usize = 6;
    let served = Served::start(|_| {});
    let host = host(2);
    for digests in [false, true] {
        let options = Options {
            header_digest: digests,
            data_digest: digests,
            ..few(2, 8)
        };
        let namespace = open(&host, &served, &options);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let namespace = namespace.clone();
                scope.spawn(move || {
                    let share = BLOCKS / THREADS as u64;
                    for (round, blocks) in [1, 8, 33, 256, 2500].into_iter().enumerate() {
                        let slba = thread as u64 * share + round as u64;
                        let data = noise((thread * 10 + round) as u64, blocks * 512);
                        namespace.write(slba, data.clone()).wait().unwrap();
                        let compared = namespace.compare(slba, data.clone());
                        let read = namespace.read(slba, vec![0; data.len()]);
                        assert!(Vec::from(read.wait().unwrap()) == data);
                        compared.wait().unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn every_command_does_what_it_says() {
    let served = Served::start(|_| {});
    let namespace = open(&host(1), &served, &Options::default());
    assert_eq!((namespace.block_size(), namespace.blocks()), (512, BLOCKS));
    let data = noise(1, 64 * 512);
    let fua = namespace.with_fua(true);
    fua.write(10, data.clone()).wait().unwrap();
    assert!(Vec::from(fua.read(10, vec![0; data.len()]).wait().unwrap()) == data);
    match namespace.compare(11, data.clone()).wait() {
        Err(Error::Failed { status, .. }) => assert!(status.is(Status::COMPARE_FAILURE)),
        other => panic!("{other:?}"),
    }
    namespace.verify(0, BLOCKS).wait().unwrap();
    namespace.flush().wait().unwrap();
    namespace.write_zeroes(10, 16).wait().unwrap();
    namespace.deallocate(26, 8).wait().unwrap();
    namespace.deallocate_to_zeroes(34, 8).wait().unwrap();
    let read = Vec::from(namespace.read(10, vec![1; data.len()]).wait().unwrap());
    assert!(read[..32 * 512].iter().all(|byte| *byte == 0));
    assert!(read[32 * 512..] == data[32 * 512..]);
    assert!(!namespace.offers(Oncs::NVMCPYS));
    let error = namespace.copy(&[(0, 1)], 5).wait().unwrap_err();
    assert_eq!(error.to_string(), "the controller does not offer Copy");
    // What is beyond the end, and what is no whole block.
    let error = namespace.verify(BLOCKS, 1).wait().unwrap_err();
    assert_eq!(
        error.to_string(),
        "Verify failed: LBA Out of Range (0/80h) DNR"
    );
    let error = namespace.read(0, vec![0; 100]).wait().unwrap_err();
    assert!(matches!(error, Error::NotWholeBlocks { .. }), "{error}");
    // Nothing at all is no command.
    namespace.write_zeroes(BLOCKS, 0).wait().unwrap();
    assert!(
        namespace
            .read(0, vec![])
            .wait()
            .unwrap()
            .as_ref()
            .is_empty()
    );
}

#[test]
fn several_buffers_are_one_command() {
    let served = Served::start(|_| {});
    for data_digest in [false, true] {
        let options = Options {
            data_digest,
            ..Options::default()
        };
        let namespace = open(&host(1), &served, &options);
        // Odd lengths, small and large, whose sum is 1 MiB and a bit: two commands.
        let lens = [1, 511, 4096, 17_000, 0, 100_001, 400_000, 526_967 + 512];
        let data = noise(2, lens.iter().sum());
        let mut rest = &data[..];
        let mut buffers = Vec::new();
        for len in lens {
            let (first, others) = rest.split_at(len);
            buffers.push(Buffer::from(first));
            rest = others;
        }
        let back = namespace.write_vectored(3, buffers).wait().unwrap();
        assert_eq!(back.len(), lens.len());
        let whole = namespace.read(3, vec![0; data.len()]).wait().unwrap();
        assert!(whole.as_ref() == data);
        let empty = lens.iter().rev().map(|len| Buffer::zeroed(*len)).collect();
        let parts = namespace.read_vectored(3, empty).wait().unwrap();
        let parts: Vec<u8> = parts.into_iter().flat_map(Vec::from).collect();
        assert!(parts == data);
    }
}

#[test]
fn any_command_can_be_passed_through() {
    let served = Served::start(|_| {});
    let host = host(1);
    let association = attach(&host, &served, &Options::default());
    let namespace = association.namespace(Nsid(1)).wait().unwrap();
    let sqe = command::blocks(IoOpcode::Read, Nsid(1), BLOCKS, 1);
    let done = namespace.passthrough(&sqe, Payload::Read(Buffer::zeroed(512)));
    let done = done.wait().unwrap();
    assert!(done.cqe.status().is(Status::LBA_OUT_OF_RANGE));
    assert_eq!(
        (done.buffer.unwrap().as_ref().len(), done.received),
        (512, 0)
    );
    let sqe = command::keep_alive();
    let done = association.admin(&sqe, Payload::Nothing).wait().unwrap();
    assert!(done.cqe.status().is_success());
    let found = association.identify().wait().unwrap();
    assert_eq!(found.subsystem().unwrap().as_str(), NQN);
    let error = association.namespace(Nsid(9)).wait().unwrap_err();
    assert!(
        matches!(error, Error::NoSuchNamespace { nsid: 9, .. }),
        "{error}"
    );
    // Many at a time, of which the Admin Queue holds fewer.
    let all: Vec<_> = (0..200).map(|_| association.identify()).collect();
    for one in all {
        one.wait().unwrap();
    }
}

#[test]
fn tasks_are_woken() {
    let served = Served::start(|_| {});
    let namespace = open(&host(2), &served, &few(2, 4));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let tasks = (0..50u64).map(|task| {
        let namespace = namespace.clone();
        Box::pin(async move {
            for round in 0..20u64 {
                let data = noise(task * 100 + round, 512);
                let data = namespace.write(task, data).await?;
                let read = namespace.read(task, vec![0; 512]).await?;
                assert!(read.as_ref() == data.as_ref());
            }
            Ok::<(), Error>(())
        })
    });
    let mut tasks: Vec<_> = tasks.collect();
    while !tasks.is_empty() {
        let before = woken.0.load(Ordering::SeqCst);
        tasks.retain_mut(|task| match task.as_mut().poll(&mut context) {
            Poll::Ready(outcome) => {
                outcome.unwrap();
                false
            }
            Poll::Pending => true,
        });
        while !tasks.is_empty() && woken.0.load(Ordering::SeqCst) == before {
            thread::yield_now();
        }
    }
}

#[test]
fn a_full_queue_pushes_back() {
    let served = Served::start(|config| config.stop_timeout = Duration::from_millis(100));
    let namespace = open(&host(1), &served, &few(1, 4));
    // Reads of the last block never end.
    let stuck: Vec<_> = (0..3)
        .map(|_| namespace.read(BLOCKS - 1, vec![0; 512]))
        .collect();
    let fourth = namespace.try_read(BLOCKS - 1, Buffer::zeroed(512)).unwrap();
    let full = namespace.try_write(0, Buffer::zeroed(1024)).unwrap_err();
    assert!(matches!(full.0, Payload::Write(buffer) if buffer.as_ref().len() == 1024));
    // In line, and withdrawn: what was behind it comes next when there is room.
    let mut first = pin!(namespace.write(0, noise(5, 512)));
    let withdrawn = namespace.write(0, noise(6, 512));
    let second = namespace.read(0, vec![0; 512]);
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    drop(withdrawn);
    let lanes = &namespace.handle().inner.lanes;
    assert_eq!(
        lanes[1].load(),
        6,
        "four are under way, and two are in line"
    );
    // What is under way is not withdrawn, but nobody waits for it.
    drop(fourth);
    assert_eq!(lanes[1].load(), 6);
    drop((stuck, second));
    assert_eq!(lanes[1].load(), 5);
}

#[test]
fn a_call_that_is_dropped_halfway_ends_there() {
    let served = Served::start(|config| config.stop_timeout = Duration::from_millis(100));
    let namespace = open(&host(1), &served, &few(1, 4));
    let lane = &namespace.handle().inner.lanes[1];
    // One place is left.
    let stuck: Vec<_> = (0..3)
        .map(|_| namespace.read(BLOCKS - 1, vec![0; 512]))
        .collect();
    // Several commands one after the other, and one between them.
    let long = namespace.write(0, noise(1, BYTES - (1 << 20)));
    let short = namespace.read(BLOCKS - 2, vec![0; 512]);
    short.wait().unwrap();
    drop(long);
    namespace.flush().wait().unwrap();
    while lane.load() > stuck.len() {
        thread::yield_now();
    }
}

#[test]
fn an_idle_host_sleeps() {
    let served = Served::start(|_| {});
    let host = host(2);
    let options = Options {
        keep_alive: Duration::ZERO,
        ..Options::default()
    };
    let namespace = open(&host, &served, &options);
    namespace.flush().wait().unwrap();
    let turns = || -> u64 {
        let drivers = host.threads.drivers.iter();
        drivers
            .map(|driver| driver.turns.load(Ordering::SeqCst))
            .sum()
    };
    // Each thread may still be on its way to sleep; then nothing makes it look around.
    let before = turns();
    thread::sleep(Duration::from_millis(300));
    assert!(turns() <= before + 4, "{before}, then {}", turns());
}
