//! Hosts that ask for much and take or give little: what they hold on to is bounded, all commands
//! of others are answered meanwhile, and theirs are, whole, once they do their part.
use std::thread;
use std::time::Duration;

use crate::bytes::pattern;
use crate::common::Target;
use crate::conn::Conn;
use crate::host::{Host, Options, host_with_queue, still_serves};
use crate::pdu::{R2T, Sqe};

/// Connections that do not read.
const BAD: u16 = 4;
/// Reads of each, and blocks of each read: 512 KiB.
const READS: u16 = 15;
const BLOCKS: u16 = 1024;
/// What such a connection may make the target hold, KiB: 512 KiB of copies and a C2HData of
/// 256 KiB, and what goes with them. All that is asked for is seven times as much.
const HELD: u64 = 1024;
/// Memory that another host's commands and the allocator take, KiB.
const ELSE: u64 = 4096;
/// Commands of another host, and where it writes what nobody else does.
const OTHERS: u64 = 400;
const FREE: u64 = 8192;

/// Runs [`OTHERS`] commands of another host, half of which need a buffer of the target's.
fn others_are_served(good: &mut Conn) {
    for round in 0..OTHERS / 2 {
        let piece = pattern(round, 4096);
        let slba = FREE + round * 8;
        good.write(slba, &piece);
        assert!(good.read(slba, piece.len()) == piece, "wrong data");
    }
}

/// Bad hosts made the target hold so many KiB at most.
#[track_caller]
fn assert_growth(target: &Target, before: u64, allowed: u64) {
    let grown = target.rss_kib().saturating_sub(before);
    let most = allowed + ELSE;
    assert!(grown <= most, "{grown} KiB, and {most} KiB are allowed");
}

fn hosts_that_do_not_read(options: &Options) {
    let target = Target::start(&["--ram", "64M", "--workers", "1"]);
    let data = pattern(77, usize::from(BLOCKS) * 512);
    let (host, mut good) = host_with_queue(&target, &Options::default());
    good.write(0, &data);
    let before = target.rss_kib();
    let bad_host = Host::connect(&target, options);
    let mut bad: Vec<Conn> = (1..=BAD)
        .map(|qid| {
            let mut conn = Conn::tcp_with_small_window(target.addr);
            conn.initialize(options.ic);
            bad_host.join(&mut conn, qid, options).ok();
            for _ in 0..READS {
                let cid = conn.cid();
                conn.start(&Sqe::read(cid, 0, BLOCKS), &[]);
            }
            conn
        })
        .collect();
    others_are_served(&mut good);
    assert_growth(&target, before, u64::from(BAD) * HELD);
    for conn in &mut bad {
        let first = conn.cid() - READS;
        for cid in first..first + READS {
            let reply = conn.finish(cid, &[]).ok();
            assert!(reply.data == data, "wrong data");
        }
    }
    drop((host, bad_host));
    still_serves(&target);
}

#[test]
fn hosts_that_do_not_read_hold_little() {
    hosts_that_do_not_read(&Options::default());
}

/// Copies are made of what is sent with a digest.
#[test]
fn hosts_that_do_not_read_hold_little_with_digests() {
    hosts_that_do_not_read(&Options::digests(true, true));
}

/// Their sockets stay full: they take a byte at a time of what they have asked for.
#[test]
fn hosts_that_read_byte_by_byte_take_nothing_from_others() {
    const BYTES: u32 = 20_000;
    let target = Target::start(&["--ram", "64M", "--workers", "1"]);
    let (host, mut good) = host_with_queue(&target, &Options::default());
    good.write(0, &pattern(78, usize::from(BLOCKS) * 512));
    let before = target.rss_kib();
    let bad_host = Host::new(&target);
    let mut bad: Vec<Conn> = (1..=BAD)
        .map(|qid| {
            let mut conn = Conn::tcp_with_small_window(target.addr);
            conn.initialize(Options::default().ic);
            bad_host.join(&mut conn, qid, &Options::default()).ok();
            for _ in 0..READS {
                let cid = conn.cid();
                conn.start(&Sqe::read(cid, 0, BLOCKS), &[]);
            }
            conn
        })
        .collect();
    thread::scope(|scope| {
        for conn in &mut bad {
            scope.spawn(|| {
                for _ in 0..BYTES {
                    assert_eq!(conn.read_some(1).expect("data"), 1);
                }
            });
        }
        others_are_served(&mut good);
        assert_growth(&target, before, u64::from(BAD) * HELD);
    });
    drop((host, bad_host, bad));
    still_serves(&target);
}

/// Each byte is a segment of its own: of ICReq, capsules, data in capsules, and H2CData.
#[test]
fn segments_of_one_byte_cost_others_nothing() {
    const HOSTS: u64 = 16;
    /// KiB of a connection that receives slowly, whatever it receives.
    const RECEIVING: u64 = 128;
    let target = Target::start(&["--ram", "64M", "--workers", "1"]);
    let (host, mut good) = host_with_queue(&target, &Options::default());
    let before = target.rss_kib();
    thread::scope(|scope| {
        for number in 0..HOSTS {
            let target = &target;
            scope.spawn(move || {
                let options = Options::digests(number % 2 == 0, number % 4 < 2);
                let mut admin = Conn::tcp(target.addr);
                admin.pace = Some((1, Duration::ZERO));
                admin.initialize(options.ic);
                let mut bad = Host::connect_on(admin, &target.nqn, &options);
                bad.enable();
                let mut io = Conn::tcp(target.addr);
                io.pace = Some((1, Duration::ZERO));
                io.initialize(options.ic);
                bad.join(&mut io, 1, &options).ok();
                let data = pattern(number, 4096);
                let slba = number * 16;
                io.write_in_capsule(slba, &data);
                io.write(slba + 8, &data);
                assert!(
                    io.read(slba, 8192) == [&*data, &data].concat(),
                    "wrong data"
                );
            });
        }
        others_are_served(&mut good);
        assert_growth(&target, before, HOSTS * 2 * RECEIVING);
    });
    drop(host);
    still_serves(&target);
}

/// They begin more writes than the target has buffers for, and keep back the last block of each.
#[test]
fn hosts_that_end_no_write_hold_the_workers_buffers_and_no_more() {
    const HOSTS: u16 = 16;
    const QUEUES: u16 = 8;
    const WRITES: u16 = 31;
    const LEN: usize = 128 * 1024;
    /// KiB of buffers of a worker, which each connection may exceed by one buffer. All that they
    /// ask for is twice as much.
    const BUFFERS: u64 = 256 << 10;
    let target = Target::start(&["--ram", "64M", "--workers", "1"]);
    let (host, mut good) = host_with_queue(&target, &Options::default());
    let before = target.rss_kib();
    let data = pattern(79, LEN);
    let (mut bad, mut bad_hosts) = (Vec::new(), Vec::new());
    for _ in 0..HOSTS {
        let host = Host::new(&target);
        for qid in 1..=QUEUES {
            let mut conn = host.io(&target, qid, &Options::default());
            conn.h2c_limit = LEN - 512;
            for _ in 0..WRITES {
                let cid = conn.cid();
                conn.start(&Sqe::write(cid, 0, crate::conn::blocks(LEN)), &[]);
            }
            // Everybody is asked for something; for how much, depends on who came before.
            let first = conn.read_pdu();
            let mut kept = Vec::new();
            let mut next = Some(first.clone());
            while let Some(r2t) = next {
                assert_eq!(r2t.kind(), R2T, "nothing has ended");
                let mut pieces = conn.h2c_data_for(&r2t, &data);
                kept.push(pieces.pop().expect("the last piece"));
                conn.send(&pieces.concat());
                next = conn.read_pdu_within(Duration::from_millis(2));
            }
            bad.push((conn, first.cid(), kept.swap_remove(0)));
        }
        bad_hosts.push(host);
    }
    others_are_served(&mut good);
    let connections = u64::from(HOSTS * QUEUES);
    assert_growth(&target, before, BUFFERS + connections * (LEN as u64 >> 10));
    // Whoever does its part is served.
    for (conn, cid, rest) in bad.iter_mut().step_by(20) {
        conn.send(rest);
        loop {
            let pdu = conn.read_pdu();
            if pdu.kind() != R2T {
                assert_eq!(pdu.cid(), *cid);
                pdu.cqe().succeeds();
                break;
            }
        }
    }
    drop((bad, bad_hosts));
    others_are_served(&mut good);
    drop(host);
    still_serves(&target);
}
