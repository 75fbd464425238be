//! Initialization of the connection: ICReq and what may come instead of it.
use std::time::Duration;

use crate::bytes::{pattern, put};
use crate::common::Target;
use crate::conn::Conn;
use crate::host::{Host, Options, still_serves};
use crate::pdu::{
    CAPSULE_CMD, DATAL, Framing, HLEN, IcReq, PDO, PLEN, Sqe, connect_data, term_req,
};

#[test]
fn pfv_other_than_0_is_an_unsupported_parameter() {
    let target = Target::start(&[]);
    for (pfv, hpda) in [(1, 0), (0xFFFF, 0), (1, 255)] {
        let mut conn = Conn::tcp(target.addr);
        let ic = IcReq {
            pfv,
            hpda,
            ..IcReq::default()
        };
        conn.send(&ic.bytes());
        // The lowest wrong field is the one reported, so HPDA does not matter.
        conn.expect_term(6, 8);
    }
    still_serves(&target);
}

/// spdk 1d7230285b, spdk b5aeff1dba: an assertion failed, then a TermReq had no FES.
#[test]
fn spdk_1d7230285b_hpda_above_31_is_an_unsupported_parameter() {
    let target = Target::start(&[]);
    for hpda in [32, 33, 128, 255] {
        let mut conn = Conn::tcp(target.addr);
        let ic = IcReq {
            hpda,
            ..IcReq::default()
        };
        conn.send(&ic.bytes());
        conn.expect_term(6, 10);
    }
    still_serves(&target);
}

/// spdk e7f6ff2db6: HPDA was taken for an absolute offset, and the header digest moved the padding.
#[test]
fn spdk_e7f6ff2db6_every_hpda_aligns_c2h_data() {
    let target = Target::start(&[]);
    let data = pattern(58, 1536);
    for hpda in 0..=31 {
        for digests in 0..4 {
            let ic = IcReq {
                hpda,
                hdgst: digests & 1 != 0,
                ddgst: digests & 2 != 0,
                ..IcReq::default()
            };
            let options = Options {
                ic,
                ..Options::default()
            };
            // `Conn` checks the alignment of every C2HData, its digests and its lengths.
            let mut host = Host::connect(&target, &options);
            let identify = host.admin.run(Sqe::identify(0, 1, 0), &[]).ok().data;
            assert_eq!(identify.len(), 4096);
            let mut io = host.io(&target, 1, &options);
            io.write_in_capsule(8, &data);
            io.write(16, &data);
            assert!(io.read(8, data.len()) == data, "HPDA {hpda} {ic:?}");
            assert!(io.read(16, data.len()) == data, "HPDA {hpda} {ic:?}");
        }
    }
    still_serves(&target);
}

/// The other direction: a target that wants its data aligned says so (CPDA), takes what is aligned, however
/// far off, and nothing else. nvmet 6.18 takes no padding at all.
#[test]
fn cpda_aligns_what_the_host_sends() {
    for cpda in ["1", "15", "31"] {
        let target = Target::start(&["--cpda", cpda]);
        let align = (cpda.parse::<usize>().expect("a number") + 1) * 4;
        for (hdgst, ddgst) in [(false, false), (true, false), (false, true), (true, true)] {
            let options = Options::digests(hdgst, ddgst);
            let (_host, mut io) = crate::host::host_with_queue(&target, &options);
            assert_eq!(io.framing.align, align, "CPDA");
            let data = pattern(9, 2048);
            io.h2c_limit = 512;
            io.write(0, &data);
            io.write_in_capsule(8, &data);
            assert!(io.read(0, 2048) == data && io.read(8, 2048) == data);
            // A multiple of the alignment that is not the nearest.
            io.framing.align = if align < 128 { 2 * align } else { align };
            io.write(16, &data);
            assert!(io.read(16, 2048) == data, "farther than need be");
            io.framing.align = 4;
            let sqe = Sqe::write(9, 0, 4).in_capsule(2048);
            let capsule = io.framing.capsule(&sqe, &data);
            let _ = io.try_send(&capsule);
            if usize::from(capsule[PDO]) % align == 0 {
                io.finish(9, &[]).ok();
            } else {
                io.expect_term(1, 3);
            }
        }
        still_serves(&target);
    }
}

/// CVE-2023-5178 (the same setup path taken twice): a second ICReq is a sequence error.
#[test]
fn a_second_icreq_is_a_sequence_error() {
    let target = Target::start(&[]);
    for ic in [IcReq::default(), IcReq::digests(true, true)] {
        let mut conn = Conn::open(target.addr, ic);
        conn.send(&IcReq::default().bytes());
        conn.expect_term(2, 0);

        // Both in one segment.
        let mut conn = Conn::tcp(target.addr);
        let mut twice = ic.bytes();
        twice.extend_from_slice(&ic.bytes());
        conn.send(&twice);
        conn.expect_term(2, 0);
    }
    still_serves(&target);
}

/// CVE-2023-6535, CVE-2026-22998: commands and data before the connection was initialized.
#[test]
fn cve_2023_6535_any_pdu_before_icreq_is_a_sequence_error() {
    let target = Target::start(&[]);
    let plain = Framing::PLAIN;
    let connect = plain.capsule(
        &Sqe::connect(1, 0, 31, 0, 60_000),
        &connect_data(1, 0xFFFF, &target.nqn, crate::host::HOSTNQN),
    );
    let data = plain.h2c_data(5, 0, 0, &[0; 4096], true);
    for pdu in [connect, data] {
        let mut conn = Conn::tcp(target.addr);
        // The target may close before it has read all of it.
        let _ = conn.try_send(&pdu);
        conn.expect_term(2, 0);
    }
    let mut conn = Conn::tcp(target.addr);
    conn.send(&term_req(1, 0, &[0; 8]));
    conn.expect_closed(Duration::from_secs(5));
    still_serves(&target);
}

#[test]
fn icreq_lengths_are_128() {
    let target = Target::start(&[]);
    for plen in [0_u32, 7, 8, 71, 127, 129, 132, 0xFFFF_FFFF] {
        let mut conn = Conn::tcp(target.addr);
        let mut pdu = IcReq::default().bytes();
        put(&mut pdu, PLEN, plen.to_le_bytes());
        conn.send(&pdu);
        conn.expect_term(1, 4);
    }
    for hlen in [0, 8, 127, 129, 255] {
        let mut conn = Conn::tcp(target.addr);
        let mut pdu = IcReq::default().bytes();
        pdu[HLEN] = hlen;
        conn.send(&pdu);
        conn.expect_term(1, 2);
    }
    still_serves(&target);
}

/// What a host may ask for that costs the target nothing, or that is not defined yet.
#[test]
fn every_maxr2t_and_reserved_byte_is_accepted() {
    let target = Target::start(&[]);
    for maxr2t in [0, 1, 15, 0xFFFF_FFFF] {
        let ic = IcReq {
            maxr2t,
            ..IcReq::default()
        };
        let mut conn = Conn::tcp(target.addr);
        let mut pdu = ic.bytes();
        pdu[16..].fill(0xA5);
        conn.send(&pdu);
        conn.take_icresp(ic);
        let host = Host::connect_on(conn, &target.nqn, &Options::default());
        drop(host);
        let options = Options {
            ic,
            ..Options::default()
        };
        let mut host = Host::connect(&target, &options);
        let mut io = host.io(&target, 1, &options);
        let data = pattern(u64::from(maxr2t), 65536);
        io.write(0, &data);
        assert!(io.read(0, data.len()) == data, "wrong data");
        host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
    }
    still_serves(&target);
}

/// CVE-2023-52454 and its kin before ICReq: the header alone is enough to refuse, nothing is waited for.
#[test]
fn a_header_of_nonsense_before_icreq_is_refused() {
    let target = Target::start(&[]);
    let mut data = Framing::PLAIN.h2c_data(5, 0, 0, &[], true);
    put(&mut data, DATAL, 0xFFFF_FFFF_u32.to_le_bytes());
    put(&mut data, PLEN, 0xFFFF_FFFF_u32.to_le_bytes());
    data[PDO] = 24;
    let mut conn = Conn::tcp(target.addr);
    conn.send(&data);
    conn.expect_term_among(&[(2, 0), (1, 4)]);

    let mut capsule = vec![0; 72];
    capsule[0] = CAPSULE_CMD;
    capsule[HLEN] = 72;
    put(&mut capsule, PLEN, 71_u32.to_le_bytes());
    let mut conn = Conn::tcp(target.addr);
    conn.send(&capsule);
    conn.expect_term_among(&[(2, 0), (1, 4)]);

    // HTTP, TLS and SSH spoken to the wrong port.
    for greeting in [
        &b"GET / HTTP/1.1\r\nHost: storage\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ] {
        let mut conn = Conn::tcp(target.addr);
        conn.send(greeting);
        conn.expect_term(1, 0);
    }
    still_serves(&target);
}
