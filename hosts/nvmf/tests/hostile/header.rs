//! The common header: types, lengths, offsets and flags that are wrong.
use std::time::Duration;

use crate::bytes::{pattern, put};
use crate::common::Target;
use crate::conn::Conn;
use crate::host::{Host, Options, host_with_queue, still_serves};
use crate::pdu::{
    C2H_DATA, C2H_TERM_REQ, CAPSULE_CMD, CAPSULE_RESP, DDGSTF, FLAGS, H2C_DATA, H2C_TERM_REQ,
    HDGSTF, HLEN, ICRESP, IcReq, PDO, PLEN, R2T, Sqe,
};

/// A header of `hlen` bytes whose common header is plausible.
fn header(kind: u8, hlen: u8, plen: u32) -> Vec<u8> {
    let mut pdu = vec![0; usize::from(hlen).max(8)];
    pdu[0] = kind;
    pdu[HLEN] = hlen;
    put(&mut pdu, PLEN, plen.to_le_bytes());
    pdu
}

#[test]
fn unknown_pdu_types_are_refused() {
    let target = Target::start(&[]);
    for kind in [0x08, 0x0A, 0x0B, 0x0C, 0x10, 0x20, 0x7F, 0x80, 0xFE, 0xFF] {
        let mut conn = Conn::open(target.addr, IcReq::default());
        conn.send(&header(kind, 24, 24));
        conn.expect_term(1, 0);
    }
    still_serves(&target);
}

#[test]
fn pdus_of_the_other_direction_are_refused() {
    let target = Target::start(&[]);
    for (kind, hlen) in [
        (ICRESP, 128),
        (C2H_TERM_REQ, 24),
        (CAPSULE_RESP, 24),
        (C2H_DATA, 24),
        (R2T, 24),
    ] {
        let mut conn = Conn::open(target.addr, IcReq::default());
        conn.send(&header(kind, hlen, u32::from(hlen)));
        conn.expect_term(1, 0);
        // With an I/O queue behind it.
        let (_host, mut io) = host_with_queue(&target, &Options::default());
        io.send(&header(kind, hlen, u32::from(hlen)));
        io.expect_term(1, 0);
    }
    still_serves(&target);
}

/// CVE-2025-21927 from the host's side: HLEN is a constant of the type and nothing else.
#[test]
fn cve_2025_21927_hlen_is_a_constant_of_the_type() {
    let target = Target::start(&[]);
    for hdgst in [false, true] {
        for (kind, right) in [(CAPSULE_CMD, 72), (H2C_DATA, 24)] {
            for hlen in [0, 7, 8, right - 1, right + 1, 128, 255] {
                let mut conn = Conn::open(target.addr, IcReq::digests(hdgst, false));
                let mut pdu = header(kind, hlen, 256);
                pdu.resize(256, 0);
                pdu[FLAGS] = u8::from(hdgst);
                let _ = conn.try_send(&pdu);
                conn.expect_term(1, 2);
            }
        }
    }
    still_serves(&target);
}

#[test]
fn plen_below_hlen_or_beyond_reason_is_refused() {
    let target = Target::start(&[]);
    // H2CData of 71 bytes is longer than its header, but not what its DATAL of 0 says.
    let cases = [
        (CAPSULE_CMD, 72, vec![0, 7, 8, 71, 0xFFFF_FFFF]),
        (H2C_DATA, 24, vec![0, 7, 8, 23, 0xFFFF_FFFF]),
    ];
    for (kind, hlen, plens) in cases {
        for plen in plens {
            let mut conn = Conn::open(target.addr, IcReq::default());
            let mut pdu = header(kind, hlen, plen);
            if plen > u32::from(hlen) {
                pdu[PDO] = hlen;
            }
            conn.send(&pdu);
            conn.expect_term(1, 4);
        }
    }
    // A type that is wrong is reported before a length that is wrong.
    for kind in [0x08, 0x0A, 0xFF, R2T, C2H_DATA] {
        for plen in [0, 7, 8, 71, 0xFFFF_FFFF] {
            let mut conn = Conn::open(target.addr, IcReq::default());
            conn.send(&header(kind, 24, plen));
            conn.expect_term(1, 0);
        }
    }
    // A termination request that is not well formed is not answered (section 3.5 of the transport).
    for plen in [0, 7, 8, 23, 153, 0xFFFF_FFFF] {
        let mut conn = Conn::open(target.addr, IcReq::default());
        conn.send(&header(H2C_TERM_REQ, 24, plen));
        conn.expect_closed(Duration::from_secs(5));
    }
    still_serves(&target);
}

/// A length that no PDU can have is refused when the first eight bytes are there: a host that
/// believes its PDU complete sends nothing more.
#[test]
fn plen_of_eight_bytes_is_not_waited_for() {
    let target = Target::start(&[]);
    for kind in [CAPSULE_CMD, H2C_DATA] {
        for plen in [7, 8] {
            let mut conn = Conn::open(target.addr, IcReq::default());
            let hlen = if kind == CAPSULE_CMD { 72 } else { 24 };
            let mut pdu = header(kind, 8, plen);
            pdu[HLEN] = hlen;
            conn.send(&pdu);
            conn.expect_term(1, 4);
        }
    }
    still_serves(&target);
}

/// nvmet 6.18 does not look at PDO, and takes data from the wrong place.
#[test]
fn pdo_must_lead_to_the_data() {
    let target = Target::start(&[]);
    let data = [0x5A; 512];
    for hdgst in [false, true] {
        let options = Options::digests(hdgst, false);
        // Inside the header, over the digest, not a multiple of four, beyond the end.
        let mut wrong = vec![0, 8, 71, 73, 255];
        if hdgst {
            wrong.extend([72, 75, 77]);
        }
        for pdo in wrong {
            let (_host, mut io) = host_with_queue(&target, &options);
            let sqe = Sqe::write(9, 0, 1).in_capsule(512);
            let mut capsule = io.framing.capsule(&sqe, &data);
            capsule[PDO] = pdo;
            if pdo == 255 {
                capsule.truncate(172);
                put(&mut capsule, PLEN, 172_u32.to_le_bytes());
            }
            io.framing.reseal(&mut capsule);
            let _ = io.try_send(&capsule);
            io.expect_term(1, 3);
        }
    }
    // H2CData.
    for pdo in [0, 8, 23, 25, 27] {
        let (_host, mut io) = host_with_queue(&target, &Options::default());
        io.start(&Sqe::write(5, 0, 8), &[]);
        let r2t = io.read_pdu();
        assert_eq!(r2t.kind(), R2T);
        let mut pdu = io.h2c_data_for(&r2t, &[0; 4096]).remove(0);
        pdu[PDO] = pdo;
        let _ = io.try_send(&pdu);
        io.expect_term(1, 3);
    }
    still_serves(&target);
}

/// Without data PDO may be anything sensible: Linux sends 0, others the end of the header.
#[test]
fn pdo_without_data_may_be_zero_or_the_end_of_the_header() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    for pdo in [0, 72] {
        let cid = host.admin.cid();
        let mut capsule = host
            .admin
            .framing
            .capsule(&Sqe::property_get(cid, crate::host::VS, false), &[]);
        capsule[PDO] = pdo;
        host.admin.send(&capsule);
        host.admin.finish(cid, &[]).ok();
    }
    still_serves(&target);
}

/// Flags that claim a digest which was not negotiated, or that lack one which was.
#[test]
fn digest_flags_follow_what_was_negotiated() {
    let target = Target::start(&[]);
    for (hdgst, ddgst, flip) in [
        (false, false, HDGSTF),
        (true, false, HDGSTF),
        (true, true, HDGSTF),
        (false, false, DDGSTF),
        (false, true, DDGSTF),
        (true, true, DDGSTF),
    ] {
        let (_host, mut io) = host_with_queue(&target, &Options::digests(hdgst, ddgst));
        let data = pattern(1, 512);
        let sqe = Sqe::write(9, 0, 1).in_capsule(512);
        let mut capsule = io.framing.capsule(&sqe, &data);
        capsule[FLAGS] ^= flip;
        io.framing.reseal(&mut capsule);
        let _ = io.try_send(&capsule);
        io.expect_term(1, 1);
    }
    still_serves(&target);
}

/// FreeBSD's receiver wants DDGSTF only where there is data, Linux's does not care: both hosts are served.
#[test]
fn the_data_digest_flag_of_a_capsule_without_data_is_ignored() {
    let target = Target::start(&[]);
    let mut host = Host::connect(&target, &Options::digests(true, true));
    for flag in [0, DDGSTF] {
        let cid = host.admin.cid();
        let mut capsule = host
            .admin
            .framing
            .capsule(&Sqe::property_get(cid, crate::host::VS, false), &[]);
        capsule[FLAGS] |= flag;
        let framing = host.admin.framing;
        framing.reseal(&mut capsule);
        host.admin.send(&capsule);
        host.admin.finish(cid, &[]).ok();
    }
    still_serves(&target);
}
