//! Digests that are wrong. A header that cannot be believed ends the connection; data that cannot
//! be believed ends one command.
use crate::bytes::{pattern, u32_at};
use crate::common::Target;
use crate::conn::Conn;
use crate::host::{Host, Options, host_with_queue, still_serves};
use crate::pdu::{
    CAPSULE_RESP, HLEN, IcReq, R2T, Sqe, connect_data, status::TRANSIENT_TRANSPORT_ERROR,
};

#[test]
fn a_wrong_header_digest_ends_the_connection() {
    let target = Target::start(&[]);
    for ddgst in [false, true] {
        // A bit of the header, the first bit of the digest, the last one.
        for (at, bit) in [(8, 0x01), (40, 0x80), (72, 0x01), (75, 0x80)] {
            let (_host, mut io) = host_with_queue(&target, &Options::digests(true, ddgst));
            let sqe = Sqe::write(9, 0, 1).in_capsule(512);
            let mut capsule = io.framing.capsule(&sqe, &[0; 512]);
            capsule[at] ^= bit;
            let received = u32_at(&capsule, usize::from(capsule[HLEN]));
            let _ = io.try_send(&capsule);
            io.expect_term(3, received);
        }
    }
    // On the admin queue, before Connect.
    let mut conn = Conn::open(target.addr, IcReq::digests(true, false));
    let mut capsule = conn.framing.capsule(&Sqe::property_get(1, 0, true), &[]);
    capsule[73] ^= 0x10;
    let received = u32_at(&capsule, 72);
    conn.send(&capsule);
    conn.expect_term(3, received);
    still_serves(&target);
}

/// CVE-2022-48686 as a target may have it: what follows a bad header digest is not looked at.
#[test]
fn cve_2022_48686_nothing_after_a_wrong_header_digest_is_executed() {
    let target = Target::start(&[]);
    let (host, mut io) = host_with_queue(&target, &Options::digests(true, false));
    let before = pattern(1, 512);
    io.write_in_capsule(40, &before);
    let mut bytes = io.framing.capsule(&Sqe::read(9, 0, 1), &[]);
    bytes[20] ^= 1;
    let received = u32_at(&bytes, 72);
    let overwrite = Sqe::write(10, 40, 1).in_capsule(512);
    bytes.extend_from_slice(&io.framing.capsule(&overwrite, &[0xEE; 512]));
    io.send(&bytes);
    io.expect_term(3, received);
    let mut io = host.io(&target, 2, &Options::default());
    assert!(io.read(40, 512) == before, "a command after the error ran");
    still_serves(&target);
}

/// H2CData with a wrong header digest, in the middle of a write.
#[test]
fn a_wrong_header_digest_in_h2c_data_ends_the_connection() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::digests(true, true));
    io.start(&Sqe::write(5, 0, 8), &[]);
    let r2t = io.read_pdu();
    assert_eq!(r2t.kind(), R2T);
    let mut pdu = io.h2c_data_for(&r2t, &[0; 4096]).remove(0);
    pdu[14] ^= 4;
    let received = u32_at(&pdu, 24);
    let _ = io.try_send(&pdu);
    io.expect_term(3, received);
    still_serves(&target);
}

/// spdk bd407444be, spdk 252430a053: the completion had CID 0, or the connection was dropped.
#[test]
fn spdk_bd407444be_a_wrong_data_digest_in_a_capsule_fails_that_command() {
    let target = Target::start(&[]);
    for hdgst in [false, true] {
        let (_host, mut io) = host_with_queue(&target, &Options::digests(hdgst, true));
        for (round, bit) in [1_u8, 0x80].into_iter().enumerate() {
            let cid = 0x7A00 + u16::try_from(round).expect("small");
            let data = pattern(63, 4096);
            let sqe = Sqe::write(cid, 64, 8).in_capsule(4096);
            let mut capsule = io.framing.capsule(&sqe, &data);
            // Once the digest, once the data.
            let at = capsule.len() - if round == 0 { 1 } else { 100 };
            capsule[at] ^= bit;
            io.send(&capsule);
            io.finish(cid, &[]).fails(&[TRANSIENT_TRANSPORT_ERROR]);
            // The next command works.
            io.write_in_capsule(64, &data);
            assert!(io.read(64, 4096) == data, "wrong data");
        }
    }
    still_serves(&target);
}

/// The same on an admin queue: Connect fails and can be tried again.
#[test]
fn a_wrong_data_digest_in_connect_fails_that_connect() {
    let target = Target::start(&[]);
    let mut conn = Conn::open(target.addr, IcReq::digests(false, true));
    let sqe = Sqe::connect(3, 0, 31, 0, 60_000);
    let data = connect_data(1, 0xFFFF, &target.nqn, crate::host::HOSTNQN);
    let mut capsule = conn.framing.capsule(&sqe, &data);
    capsule[72 + 300] ^= 0x20;
    conn.send(&capsule);
    conn.finish(3, &[]).fails(&[TRANSIENT_TRANSPORT_ERROR]);
    let mut host = Host::connect_on(conn, &target.nqn, &Options::default());
    host.enable();
    still_serves(&target);
}

/// CVE-2026-64535: a wrong digest in an H2CData that is not the last completed the command twice.
#[test]
fn cve_2026_64535_a_wrong_data_digest_in_any_h2c_data_completes_once() {
    let target = Target::start(&[]);
    for hdgst in [false, true] {
        let (_host, mut io) = host_with_queue(&target, &Options::digests(hdgst, true));
        let data = pattern(12, 4096);
        for spoiled in 0..4 {
            let cid = io.cid();
            io.start(&Sqe::write(cid, 0, 8), &[]);
            let r2t = io.read_pdu();
            assert_eq!(r2t.kind(), R2T);
            assert_eq!(r2t.range(), (0, 4096), "one R2T for 4 KiB");
            io.h2c_limit = 1024;
            let mut pdus = io.h2c_data_for(&r2t, &data);
            assert_eq!(pdus.len(), 4);
            *pdus[spoiled].last_mut().expect("bytes") ^= 0x40;
            io.send(&pdus.concat());
            io.finish(cid, &[]).fails(&[TRANSIENT_TRANSPORT_ERROR]);
            // Exactly one completion: the next thing that comes answers the next command.
            io.write(0, &data);
            assert!(io.read(0, 4096) == data, "wrong data");
        }
    }
    still_serves(&target);
}

/// Read in nvmet 6.18: the digest of the whole transfer was compared with that of each PDU, so that
/// legal writes in several PDUs failed. Also spdk#2279, spdk 34c901e308.
#[test]
fn writes_in_several_h2c_data_pass_with_data_digests() {
    let target = Target::start(&[]);
    for (hdgst, ddgst) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_host, mut io) = host_with_queue(&target, &Options::digests(hdgst, ddgst));
        for limit in [4, 512, 1028, 4092] {
            io.h2c_limit = limit;
            let data = pattern(limit as u64, 8192);
            io.write(128, &data);
            assert!(io.read(128, data.len()) == data, "pieces of {limit} bytes");
        }
        let long = pattern(35, 128 * 1024);
        io.h2c_limit = 32 * 1024;
        io.write(256, &long);
        assert!(io.read(256, long.len()) == long, "128 KiB");
    }
    still_serves(&target);
}

/// spdk 9e9da4675f (spdk#2828): the connection goes while a digest is worked on.
/// Scaled to 60 rounds of 8 writes and reads.
#[test]
fn spdk_9e9da4675f_disconnect_amid_digests() {
    let target = Target::start(&[]);
    let options = Options::digests(true, true);
    let data = pattern(62, 16 * 1024);
    let host = Host::connect(&target, &options);
    for round in 0..60_u16 {
        let mut io = Conn::open(target.addr, options.ic);
        let reply = host.join(&mut io, 1 + round % 2, &options);
        if reply.cqe.code() != (0, 0) {
            // The queue of the round before last is not torn down yet.
            continue;
        }
        for cid in 0..8 {
            let write = Sqe::write(100 + cid, 0, 32).in_capsule(16 * 1024);
            let _ = io.try_send(&io.framing.capsule(&write, &data));
            let _ = io.try_send(&io.framing.capsule(&Sqe::read(200 + cid, 0, 32), &[]));
        }
        if round % 3 == 0 {
            let first = io.read_pdu();
            assert!(first.kind() == CAPSULE_RESP || !first.data.is_empty());
        }
        io.reset();
    }
    still_serves(&target);
}
