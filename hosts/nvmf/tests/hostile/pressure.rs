//! Hosts that ask for much and read nothing: what they hold on to is bounded, all commands of
//! others are answered meanwhile, and theirs are, whole, once they read.
use crate::bytes::pattern;
use crate::common::Target;
use crate::conn::Conn;
use crate::host::{Host, Options, host_with_queue, still_serves};
use crate::pdu::Sqe;

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
/// Commands of another host.
const OTHERS: u64 = 200;

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
    for round in 0..OTHERS {
        let piece = pattern(round, 4096);
        let slba = 8192 + round * 8;
        good.write(slba, &piece);
        assert!(good.read(slba, piece.len()) == piece, "wrong data");
    }
    let grown = target.rss_kib().saturating_sub(before);
    let most = u64::from(BAD) * HELD + ELSE;
    assert!(grown <= most, "{grown} KiB, and {most} KiB are allowed");
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
