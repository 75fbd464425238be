//! Streams cut into pieces, and hosts that read or write slowly.
use std::thread;
use std::time::{Duration, Instant};

use crate::bytes::pattern;
use crate::common::Target;
use crate::conn::{Conn, PATIENCE};
use crate::host::{Host, Options, host_with_queue, still_serves};
use crate::pdu::{C2H_DATA, CAPSULE_RESP, LAST_PDU, R2T, Sqe};

/// The largest read that the target allows, up to 256 KiB, bytes.
fn large_read(host: &mut Host) -> usize {
    let identify = host.admin.run(Sqe::identify(0, 1, 0), &[]).ok().data;
    let mdts = identify[77];
    if mdts == 0 || mdts > 6 {
        256 * 1024
    } else {
        4096 << mdts
    }
}

/// A whole session, both ways, with everything sent in pieces.
fn session_in_pieces(target: &Target, options: &Options, pace: (usize, Duration), len: usize) {
    let mut admin = Conn::tcp(target.addr);
    admin.pace = Some(pace);
    admin.initialize(options.ic);
    let mut host = Host::connect_on(admin, &target.nqn, options);
    host.enable();
    host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
    let mut io = Conn::tcp(target.addr);
    io.pace = Some(pace);
    io.initialize(options.ic);
    host.join(&mut io, 1, options).ok();
    let data = pattern(85, len);
    io.write(0, &data);
    io.h2c_limit = 516;
    io.write(64, &data);
    io.write_in_capsule(128, &data);
    for slba in [0, 64, 128] {
        assert!(io.read(slba, data.len()) == data, "wrong data at {slba}");
    }
}

/// spdk a4340e4501, spdk 20cd4841f1: input of 16 or 4 bytes never reached a threshold, and stayed.
/// Pauses are scaled: none between single bytes, 1 ms between pieces of 24, 50 ms within one command.
#[test]
fn spdk_a4340e4501_sessions_of_one_byte_segments() {
    let target = Target::start(&[]);
    for (hdgst, ddgst) in [(false, false), (true, true)] {
        let options = Options::digests(hdgst, ddgst);
        for piece in [1, 3, 7] {
            session_in_pieces(&target, &options, (piece, Duration::ZERO), 2048);
        }
        session_in_pieces(&target, &options, (24, Duration::from_millis(1)), 1024);
    }
    let (_host, mut io) = host_with_queue(&target, &Options::digests(true, true));
    io.pace = Some((16, Duration::from_millis(50)));
    io.run(Sqe::read(0, 0, 1), &[]).ok();
    still_serves(&target);
}

/// The opposite: everything of a session in one segment, as far as the host may go without an answer.
#[test]
fn several_pdus_in_one_segment() {
    let target = Target::start(&[]);
    for (hdgst, ddgst) in [(false, false), (true, true)] {
        let (_host, mut io) = host_with_queue(&target, &Options::digests(hdgst, ddgst));
        let data = pattern(86, 4096);
        let mut bytes = Vec::new();
        for cid in 0..30_u16 {
            let sqe = Sqe::write(cid, u64::from(cid) * 8, 8).in_capsule(4096);
            bytes.extend(io.framing.capsule(&sqe, &data));
        }
        io.send(&bytes);
        for _ in 0..30 {
            io.read_pdu().cqe().succeeds();
        }
        for cid in 0..30_u64 {
            assert!(io.read(cid * 8, 4096) == data, "wrong data");
        }
    }
    still_serves(&target);
}

/// spdk 959f6b46cd (spdk#3664), spdk d428a790d1, spdk e53d15a2a1: what could not be sent at once was lost.
/// Eight hosts with the smallest receive buffer have full queues of large reads outstanding and take a
/// byte now and then. Others are not held up, memory is bounded, and in the end nothing is missing.
#[test]
fn spdk_959f6b46cd_slow_readers() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    let len = large_read(&mut host);
    let (_other, mut other) = host_with_queue(&target, &Options::default());
    let data = pattern(66, len);
    for (index, chunk) in data.chunks(32 * 1024).enumerate() {
        other.write(index as u64 * 64, chunk);
    }
    let before = target.rss_kib();
    let mut slow: Vec<(Host, Conn)> = (0..8)
        .map(|_| {
            let host = Host::new(&target);
            let mut io = Conn::tcp_with_small_window(target.addr);
            io.initialize(Options::default().ic);
            host.join(&mut io, 1, &Options::default()).ok();
            (host, io)
        })
        .collect();
    for (_, io) in &mut slow {
        for cid in 0..31 {
            let blocks = crate::conn::blocks(len);
            io.start(&Sqe::read(cid, 0, blocks), &[]);
        }
    }
    let start = Instant::now();
    let mut peak = 0;
    let mut prefix = 0;
    while start.elapsed() < Duration::from_millis(1500) {
        for (_, io) in &mut slow[1..] {
            io.read_some(1).expect("a byte");
        }
        prefix += 1;
        let asked = Instant::now();
        assert!(other.read(0, 4096) == data[..4096], "wrong data");
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "a slow reader holds up others"
        );
        peak = peak.max(target.rss_kib());
        thread::sleep(Duration::from_millis(10));
    }
    assert!(prefix > 0);
    assert!(
        peak < before + 48 * 1024,
        "memory went from {before} KiB to {peak} KiB"
    );
    // One of them reads on at last: all 31 reads are complete and right.
    let (_, io) = &mut slow[0];
    let mut reads = vec![Vec::new(); 31];
    let mut completed = 0;
    while completed < 31 {
        let pdu = io.read_pdu();
        let read = &mut reads[usize::from(pdu.cid())];
        match pdu.kind() {
            C2H_DATA => {
                assert_eq!(pdu.range().0 as usize, read.len(), "DATAO");
                read.extend_from_slice(&pdu.data);
                assert_eq!(pdu.has(LAST_PDU), read.len() == len, "LAST_PDU");
            }
            CAPSULE_RESP => {
                pdu.cqe().succeeds();
                completed += 1;
            }
            _ => panic!("unexpected {pdu:02x?}"),
        }
    }
    assert!(reads.iter().all(|read| *read == data), "wrong data");
    // The rest are gone with everything still to be sent.
    for (_, io) in slow {
        io.reset();
    }
    still_serves(&target);
}

/// A C2HTermReq waits for the end of the PDU before it: a host that reads slowly makes a mistake while a
/// megabyte is on its way, and can still follow the stream.
#[test]
fn a_term_req_waits_for_the_end_of_a_pdu() {
    let target = Target::start(&[]);
    for digests in [false, true] {
        let options = Options::digests(digests, digests);
        let host = Host::new(&target);
        let mut io = Conn::tcp_with_small_window(target.addr);
        io.initialize(options.ic);
        host.join(&mut io, 1, &options).ok();
        for cid in 0..4 {
            io.start(&Sqe::read(cid, 0, 512), &[]);
        }
        // What fits the socket buffers is there, the rest waits.
        thread::sleep(Duration::from_millis(50));
        io.send(&[0xFF; 8]);
        io.expect_term(1, 0);
    }
    still_serves(&target);
}

/// spdk e53d15a2a1: a response was lost when the queue was disconnected. Reads whose data is still on its
/// way are complete, and Disconnect is answered, before the connection closes.
#[test]
fn spdk_e53d15a2a1_disconnect_waits_for_what_is_to_be_sent() {
    let target = Target::start(&[]);
    let host = Host::new(&target);
    let mut io = Conn::tcp_with_small_window(target.addr);
    io.initialize(Options::default().ic);
    host.join(&mut io, 1, &Options::default()).ok();
    for cid in 0..8 {
        io.start(&Sqe::read(cid, 0, 256), &[]);
    }
    io.start(&Sqe::fabrics(0x08, 8), &[]);
    thread::sleep(Duration::from_millis(100));
    let mut bytes = 0;
    for _ in 0..9 {
        let response = loop {
            let pdu = io.read_pdu();
            if pdu.kind() != C2H_DATA {
                break pdu;
            }
            bytes += pdu.data.len();
        };
        response.cqe().succeeds();
    }
    assert_eq!(bytes, 8 * 128 * 1024);
    io.expect_closed(PATIENCE);
    still_serves(&target);
}

/// Commands right behind the Connect of an I/O queue, which may move from one thread to another then:
/// none is lost, in whatever pieces they come.
#[test]
fn commands_right_behind_connect() {
    let target = Target::start(&[]);
    let host = Host::new(&target);
    let data = pattern(88, 4096);
    let mut first = host.io(&target, 1, &Options::default());
    first.write(0, &data);
    for round in 0..40_u16 {
        let mut io = Conn::open(target.addr, Options::default().ic);
        let connect = Sqe::connect(0x100, 2 + round, 31, 0, 0);
        let mut bytes = io.framing.capsule(&connect, &host.io_data());
        for cid in 0..15 {
            bytes.extend(io.framing.capsule(&Sqe::read(cid, 0, 8), &[]));
            let write = Sqe::write(0x20 + cid, 64 + u64::from(cid), 1).in_capsule(512);
            bytes.extend(io.framing.capsule(&write, &data[..512]));
        }
        let cut = usize::from(round) * bytes.len() / 40;
        io.send(&bytes[..cut]);
        if round % 2 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
        io.send(&bytes[cut..]);
        let mut completed = 0;
        while completed < 31 {
            let pdu = io.read_pdu();
            if pdu.kind() == C2H_DATA {
                assert!(pdu.data == data, "wrong data");
            } else {
                pdu.cqe().succeeds();
                completed += 1;
            }
        }
    }
    still_serves(&target);
}

/// Hosts that stop in the middle of what they send: in a capsule's data, in a header, in H2CData.
/// 60 of them, each with a queue's worth of transfers asked for.
#[test]
fn hosts_that_stop_amid_their_data() {
    let target = Target::start(&[]);
    let before = target.rss_kib();
    let mut stopped = Vec::new();
    for round in 0..60 {
        let (host, mut io) = host_with_queue(&target, &Options::default());
        let bytes = match round % 3 {
            0 => {
                let sqe = Sqe::write(1, 0, 16).in_capsule(8192);
                let capsule = io.framing.capsule(&sqe, &[0xEE; 8192]);
                capsule[..72 + 5000].to_vec()
            }
            1 => io.framing.capsule(&Sqe::read(1, 0, 1), &[])[..30].to_vec(),
            _ => {
                for cid in 0..30 {
                    io.start(&Sqe::write(cid, 2000, 64), &[]);
                }
                let r2t = io.read_pdu();
                assert_eq!(r2t.kind(), R2T);
                let pdu = io.h2c_data_for(&r2t, &[0xEE; 32 * 1024]).remove(0);
                pdu[..1000].to_vec()
            }
        };
        io.send(&bytes);
        stopped.push((host, io));
    }
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    let data = pattern(67, 8192);
    for _ in 0..50 {
        let asked = Instant::now();
        io.write(0, &data);
        io.write_in_capsule(32, &data);
        assert!(io.read(0, 8192) == data && io.read(32, 8192) == data);
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "others are held up"
        );
    }
    // 30 MiB were asked for, and may be in buffers.
    let after = target.rss_kib();
    assert!(
        after < before + 32 * 1024,
        "memory went from {before} KiB to {after} KiB"
    );
    drop(stopped);
    still_serves(&target);
}
