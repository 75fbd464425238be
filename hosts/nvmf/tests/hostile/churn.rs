//! Connections that come and go, at every point of their lives, thousands of times.
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bytes::pattern;
use crate::common::Target;
use crate::conn::{Conn, End, PATIENCE};
use crate::host::{HOSTNQN, Host, Options, VS, host_with_queue, still_serves};
use tempfile::TempDir;

use crate::pdu::{IcReq, R2T, Sqe, connect_data, status::CONTROLLER_BUSY};

/// Memory may differ by this much after thousands of connections, KiB.
const SLACK_KIB: u64 = 2048;
/// And by this much where connections have buffers, of which a worker keeps some for the next.
const BUFFERS_KIB: u64 = 64 * 1024;

/// An I/O queue is closed this long after its admin queue is gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Runs `round` on so many threads, so often on each.
fn storm(threads: u32, rounds: u32, round: impl Fn(u32) + Sync) {
    thread::scope(|scope| {
        for thread in 0..threads {
            let round = &round;
            scope.spawn(move || {
                for index in 0..rounds {
                    round(thread * rounds + index);
                }
            });
        }
    });
}

/// Runs `round` `warm_up` times, then `rounds` times, and compares memory and descriptors between:
/// memory may grow by `slack` KiB.
fn flat(target: &Target, slack: u64, warm_up: u32, rounds: u32, round: impl Fn(u32) + Sync) {
    storm(4, warm_up / 4, &round);
    still_serves(target);
    let files = target.open_files();
    let before = target.rss_kib();
    storm(4, rounds / 4, &round);
    still_serves(target);
    target.settle(files);
    let after = target.rss_kib();
    assert!(
        after <= before + slack,
        "memory went from {before} KiB to {after} KiB in {rounds} rounds"
    );
}

/// CVE-2025-38035: the socket was closed before anybody looked at it. 3,000 connections.
#[test]
fn cve_2025_38035_connect_and_reset() {
    let target = Target::start(&[]);
    flat(&target, SLACK_KIB, 400, 3000, |_| {
        Conn::tcp(target.addr).reset()
    });
}

/// CVE-2026-46135: ICReq and gone. Scaled from 100,000 to 2,560 on 64 threads, reset or closed.
#[test]
fn cve_2026_46135_icreq_and_gone() {
    let target = Target::start(&[]);
    let icreq = IcReq::default().bytes();
    storm(64, 40, |round| {
        let mut conn = Conn::tcp(target.addr);
        let _ = conn.try_send(&icreq);
        if round % 4 != 0 {
            conn.reset();
        }
    });
    target.settle(target.open_files());
    still_serves(&target);
}

/// CVE-2023-5178: the queue's set-up failed after its digests were set up, and it was freed twice.
/// Scaled from 10,000 to 800 of each.
#[test]
fn cve_2023_5178_set_up_twice_or_in_part() {
    let target = Target::start(&[]);
    let ic = IcReq::digests(true, true);
    let connect = Conn::open(target.addr, ic).framing.capsule(
        &Sqe::connect(1, 0, 31, 0, 60_000),
        &connect_data(1, 0xFFFF, &target.nqn, HOSTNQN),
    );
    flat(&target, SLACK_KIB, 200, 1600, |round| {
        let mut conn = Conn::tcp(target.addr);
        if round % 2 == 0 {
            let _ = conn.try_send(&[ic.bytes(), ic.bytes()].concat());
            if round % 3 == 0 {
                let _ = conn.try_read_pdu();
            }
        } else {
            conn.initialize(ic);
            let _ = conn.try_send(&connect[..500]);
        }
        conn.reset();
    });
}

/// linux-nvme 2020-06-01: memory grew with every connect and disconnect. 1,000 controllers, each with an
/// I/O queue and a little work; blktests nvme/031, nvme/061.
#[test]
fn a_thousand_controllers_come_and_go() {
    let target = Target::start(&[]);
    flat(&target, SLACK_KIB, 200, 1000, |round| {
        let options = Options::digests(round % 2 == 0, round % 4 < 2);
        let (mut host, mut io) = host_with_queue(&target, &options);
        let slba = u64::from(round % 64) * 16;
        io.write_in_capsule(slba, &pattern(u64::from(round), 512));
        io.read(slba, 512);
        if round % 2 == 0 {
            io.run(Sqe::fabrics(0x08, 0), &[]).ok();
            host.set(crate::host::CC, crate::host::CC_ENABLE | 1 << 14)
                .ok();
        }
        io.reset();
        host.admin.reset();
    });
}

/// 500 hosts lose their connection in the same moment and are back at once, each with two queues.
#[test]
fn a_reconnect_storm_is_served() {
    let target = Target::start(&[]);
    let lost: Vec<(Host, Conn)> = (0..250)
        .map(|_| host_with_queue(&target, &Options::default()))
        .collect();
    for (host, io) in lost {
        host.admin.reset();
        io.reset();
    }
    let served = AtomicU32::new(0);
    let start = Instant::now();
    storm(10, 50, |round| {
        let (host, mut io) = host_with_queue(&target, &Options::default());
        io.read(u64::from(round), 512);
        served.fetch_add(1, Ordering::Relaxed);
        io.reset();
        host.admin.reset();
    });
    assert_eq!(served.load(Ordering::Relaxed), 500);
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    still_serves(&target);
}

/// CVE-2026-23148, CVE-2023-53116: the connection went while its commands were being worked on, here by
/// RAM, which is done at once, and by a file, which is not.
#[test]
fn cve_2026_23148_disconnect_with_a_full_queue() {
    disconnect_with_a_full_queue(&Target::start(&[]));
    let dir = TempDir::new().expect("a directory");
    disconnect_with_a_full_queue(&Target::start_with_file(dir.path(), &[]));
}

/// Queues of 128 entries, full of reads, of writes that wait, and of writes with their data.
fn disconnect_with_a_full_queue(target: &Target) {
    let mut host = Host::new(target);
    let mqes = u16::try_from(host.cap() & 0xFFFF).expect("16 bits");
    drop(host);
    let options = Options {
        sqsize: mqes.min(127),
        ..Options::default()
    };
    flat(target, BUFFERS_KIB, 60, 120, |round| {
        let host = Host::new(target);
        let mut io = host.io(target, 1, &options);
        let mut burst = Vec::new();
        for cid in 0..options.sqsize {
            let slba = 4096 + u64::from(cid) * 64;
            burst.extend(match (round + u32::from(cid)) % 3 {
                0 => io.framing.capsule(&Sqe::read(cid, slba, 64), &[]),
                1 => io.framing.capsule(&Sqe::write(cid, slba, 64), &[]),
                _ => {
                    let sqe = Sqe::write(cid, slba, 1).in_capsule(512);
                    io.framing.capsule(&sqe, &[0xEE; 512])
                }
            });
        }
        let _ = io.try_send(&burst);
        if round % 2 == 0 {
            let _ = io.try_read_pdu();
        }
        if round % 4 < 2 {
            io.reset();
            host.admin.reset();
        } else {
            // The admin queue first, and politely.
            drop(host);
            drop(io);
        }
    });
}

/// An I/O queue is connected and gone before its answer is read, over and over, with one controller: its
/// queue identifier is free again in the end, every time. Scaled to 400 rounds.
#[test]
fn joined_and_gone() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    for round in 0..400_u16 {
        let mut io = Conn::open(target.addr, IcReq::default());
        let qid = 1 + round % 4;
        io.start(&Sqe::connect(1, qid, 31, 0, 0), &host.io_data());
        match round % 3 {
            0 => io.reset(),
            1 => drop(io),
            _ => {
                // With work behind the Connect.
                let read = io.framing.capsule(&Sqe::read(2, 0, 64), &[]);
                let _ = io.try_send(&read);
                io.reset();
            }
        }
    }
    let deadline = Instant::now() + PATIENCE;
    for qid in 1..=4 {
        let mut io = Conn::open(target.addr, IcReq::default());
        while host.join(&mut io, qid, &Options::default()).cqe.code() != (0, 0) {
            assert!(Instant::now() < deadline, "queue {qid} is never free");
            thread::sleep(Duration::from_millis(5));
        }
        io.read(0, 512);
    }
    host.get(VS);
    still_serves(&target);
}

/// A target that is full says so, and has room again when a controller is gone.
#[test]
fn no_controller_is_left() {
    let target = Target::start(&["--max-controllers", "3"]);
    let data = connect_data(1, 0xFFFF, &target.nqn, HOSTNQN);
    let connect = Sqe::connect(0, 0, 31, 0, 60_000);
    let mut hosts = VecDeque::new();
    while hosts.len() < 3 {
        let (mut conn, connect) = (Conn::open(target.addr, IcReq::default()), connect.clone());
        conn.run(connect, &data).ok();
        hosts.push_back(conn);
    }
    for _ in 0..20 {
        let mut conn = Conn::open(target.addr, IcReq::default());
        let reply = conn.run(connect.clone(), &data);
        reply.cqe.fails(&[CONTROLLER_BUSY]);
        assert!(!reply.cqe.dnr(), "trying again will help");
        hosts.pop_front();
        let deadline = Instant::now() + PATIENCE;
        while conn.run(connect.clone(), &data).cqe.code() != (0, 0) {
            assert!(Instant::now() < deadline, "still full");
            thread::sleep(Duration::from_millis(1));
        }
        conn.reset();
        // That controller goes as well; its place is taken when it is gone.
        hosts.push_back(loop {
            let mut conn = Conn::open(target.addr, IcReq::default());
            if conn.run(connect.clone(), &data).cqe.code() == (0, 0) {
                break conn;
            }
            assert!(Instant::now() < deadline, "still full");
            thread::sleep(Duration::from_millis(1));
        });
    }
    // Room for the one that proves it.
    let files = target.open_files();
    drop(hosts);
    target.settle(files - 3);
    still_serves(&target);
}

/// More connections than the target may have descriptors: those that it has are served, it does not spin
/// over those that wait, and when some are gone the next is accepted.
#[test]
fn no_descriptor_is_left() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    let files = target.open_files();
    target.limit_files(files as u64 + 20);
    let crowd: Vec<Conn> = (0..60).map(|_| Conn::tcp(target.addr)).collect();
    thread::sleep(Duration::from_millis(100));
    let before = target.cpu_ticks();
    for _ in 0..50 {
        io.read(0, 4096);
        host.get(VS);
        thread::sleep(Duration::from_millis(10));
    }
    let used = target.cpu_ticks() - before;
    assert!(used < 30, "{used} ticks of 10 ms in half a second");
    // Descriptors that it inherited may lie beyond the limit.
    assert!(target.open_files() < files + 30);
    for conn in crowd {
        conn.reset();
    }
    still_serves(&target);
}

/// CVE-2026-46304: tearing a controller down waited for itself. The admin queue goes while its I/O queues
/// are busy; they are closed within 5 s.
#[test]
fn cve_2026_46304_admin_queue_goes_amid_io() {
    let target = Target::start(&[]);
    for round in 0..12 {
        let host = Host::new(&target);
        let queues: Vec<Conn> = (1..=3)
            .map(|qid| host.io(&target, qid, &Options::default()))
            .collect();
        let gone = AtomicBool::new(false);
        thread::scope(|scope| {
            let busy: Vec<_> = queues
                .into_iter()
                .map(|mut io| {
                    let gone = &gone;
                    scope.spawn(move || {
                        let mut deadline = None;
                        let mut cid = 0_u16;
                        loop {
                            cid = cid.wrapping_add(1);
                            let read = io.framing.capsule(&Sqe::read(cid, 0, 8), &[]);
                            if io.try_send(&read).is_err() {
                                return;
                            }
                            loop {
                                match io.try_read_pdu() {
                                    Ok(pdu) if pdu.kind() == crate::pdu::CAPSULE_RESP => break,
                                    Ok(_) => {}
                                    Err(End::Closed) => return,
                                    Err(End::Silent) => panic!("neither answered nor closed"),
                                }
                            }
                            if gone.load(Ordering::Relaxed) {
                                let end = *deadline.get_or_insert(Instant::now() + GONE_WITHIN);
                                assert!(Instant::now() < end, "still served without admin queue");
                            }
                        }
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(20));
            if round % 2 == 0 {
                host.admin.reset();
            } else {
                drop(host);
            }
            gone.store(true, Ordering::Relaxed);
            for queue in busy {
                queue.join().expect("a queue");
            }
        });
    }
    still_serves(&target);
}

/// A half-closed connection: the host sends no more but would still read.
#[test]
fn a_host_that_only_shuts_down_its_side() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    io.start(&Sqe::write(5, 0, 8), &[]);
    assert_eq!(io.read_pdu().kind(), R2T);
    io.finish_sending();
    io.expect_over(PATIENCE);
    host.get(VS);
    host.admin.finish_sending();
    host.admin.expect_over(PATIENCE);
    still_serves(&target);
}

/// Whoever read the target's stderr is gone. That is no reason to stop: it serves, and ends when it is told to.
#[test]
fn a_target_whose_log_nobody_reads() {
    let target = Target::start_unheard();
    for _ in 0..20 {
        let (host, io) = host_with_queue(&target, &Options::default());
        io.reset();
        host.admin.reset();
        let mut conn = Conn::tcp(target.addr);
        conn.send(&[0xFF; 8]);
        conn.expect_term(1, 0);
    }
    still_serves(&target);
    assert!(
        target.stop(Duration::from_secs(15)),
        "SIGTERM was not enough"
    );
}

/// spdk#2765, spdk#2281: shutdown hung on I/O that was stuck. A write waits for data that never comes, a
/// reader does not read, a connection is half set up: SIGTERM ends the target all the same.
#[test]
fn spdk_2765_sigterm_with_stuck_io() {
    let target = Target::start(&[]);
    let (host, mut io) = host_with_queue(&target, &Options::default());
    io.start(&Sqe::write(5, 0, 8), &[]);
    assert_eq!(io.read_pdu().kind(), R2T);
    let mut reader = host.io(&target, 2, &Options::default());
    for cid in 0..31 {
        reader.start(&Sqe::read(cid, 0, 128), &[]);
    }
    let mut half = Conn::tcp(target.addr);
    half.send(&IcReq::default().bytes()[..64]);
    assert!(
        target.stop(Duration::from_secs(15)),
        "SIGTERM was not enough"
    );
}
