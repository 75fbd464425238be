//! H2CData that is not what an R2T asked for.
use crate::bytes::{pattern, put};
use crate::common::Target;
use crate::conn::{Conn, PATIENCE, Pdu};
use crate::host::{Host, Options, host_with_queue, still_serves};
use crate::pdu::{
    C2H_TERM_REQ, CCCID, DATAL, DATAO, FLAGS, Framing, IcReq, LAST_PDU, PLEN, R2T, Sqe, TTAG,
    connect_data, status,
};

/// A header that a host would be proud of, for the write that `r2t` belongs to, and its data.
fn answer(io: &Conn, r2t: &Pdu) -> Vec<u8> {
    io.h2c_data_for(r2t, &[0x33; 4096]).remove(0)
}

/// A write of 4096 bytes whose R2T has come.
fn waiting_write(target: &Target) -> (Host, Conn, Pdu) {
    let (host, mut io) = host_with_queue(target, &Options::default());
    io.start(&Sqe::write(5, 0, 8), &[]);
    let r2t = io.read_pdu();
    assert_eq!(r2t.kind(), R2T);
    assert_eq!(r2t.cid(), 5);
    assert_eq!(r2t.range(), (0, 4096), "one R2T for 4 KiB");
    (host, io, r2t)
}

/// Sends what `change` makes of the right H2CData, and expects one of these refusals.
#[track_caller]
fn refused(target: &Target, among: &[(u16, u32)], change: impl FnOnce(&mut Vec<u8>, &Conn)) {
    let (_host, mut io, r2t) = waiting_write(target);
    let mut pdu = answer(&io, &r2t);
    change(&mut pdu, &io);
    // The header is enough to refuse; the target need not take the rest.
    let _ = io.try_send(&pdu);
    io.expect_term_among(among);
}

fn put32(pdu: &mut [u8], at: usize, value: u32) {
    put(pdu, at, value.to_le_bytes());
}

/// CVE-2022-50717 (TTAG used as an index), CVE-2023-6356, SPDK's `reqs[ttag - 1]` with TTAG 0.
#[test]
fn cve_2022_50717_a_ttag_that_is_not_ours_is_refused() {
    let target = Target::start(&[]);
    // SQSIZE is 31: slots 0 to 31. One of them is the write's; the others are idle.
    for ttag in [
        0_u16, 1, 30, 31, 32, 33, 127, 128, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF,
    ] {
        let (_host, mut io, r2t) = waiting_write(&target);
        if ttag == r2t.ttag() {
            continue;
        }
        let mut pdu = answer(&io, &r2t);
        put(&mut pdu, TTAG, ttag.to_le_bytes());
        let _ = io.try_send(&pdu);
        io.expect_term(1, 10);
    }
    still_serves(&target);
}

/// CVE-2023-6356, CVE-2023-6536: no command waits for data, and DATAL is 0 or huge.
#[test]
fn cve_2023_6356_h2c_data_for_an_idle_queue_is_refused() {
    let target = Target::start(&[]);
    for ttag in [0_u16, 1, 2, 31, 32, 0xFFFF] {
        let (_host, mut io) = host_with_queue(&target, &Options::default());
        io.send(&io.framing.h2c_data(5, ttag, 0, &[0; 512], true));
        io.expect_term(1, 10);

        let (_host, mut io) = host_with_queue(&target, &Options::default());
        io.send(&io.framing.h2c_data(5, ttag, 0, &[], true));
        io.expect_term_among(&[(1, 10), (1, DATAL as u32), (1, PLEN as u32)]);

        let (_host, mut io) = host_with_queue(&target, &Options::default());
        let mut huge = io.framing.h2c_data(5, ttag, 0, &[0; 4], true);
        put32(&mut huge, DATAL, 0xFFFF_FFE8);
        put32(&mut huge, PLEN, 0xFFFF_FFFF);
        io.send(&huge);
        io.expect_term_among(&[(1, 10), (1, 4), (5, 0), (1, DATAL as u32)]);
    }
    still_serves(&target);
}

/// CVE-2026-22998, CVE-2023-6535: before Connect there is no command that data could be for.
#[test]
fn cve_2026_22998_h2c_data_before_connect_is_refused() {
    let target = Target::start(&[]);
    for ttag in [0_u16, 1, 0xFFFF] {
        for len in [0, 4096] {
            let mut conn = Conn::open(target.addr, IcReq::default());
            let pdu = Framing::PLAIN.h2c_data(5, ttag, 0, &vec![0; len], true);
            let _ = conn.try_send(&pdu);
            conn.expect_term_among(&[(2, 0), (1, 10), (1, DATAL as u32), (1, PLEN as u32)]);
        }
    }
    still_serves(&target);
}

/// CVE-2026-22998: data for a command that reads.
#[test]
fn cve_2026_22998_h2c_data_for_a_read_is_refused() {
    let target = Target::start(&[]);
    for ttag in [0_u16, 1, 2, 3, 31] {
        let (_host, mut io) = host_with_queue(&target, &Options::default());
        let mut bytes = io.framing.capsule(&Sqe::read(5, 0, 256), &[]);
        bytes.extend_from_slice(&io.framing.h2c_data(5, ttag, 0, &[0; 4096], true));
        io.send(&bytes);
        io.expect_term(1, 10);
    }
    still_serves(&target);
}

/// A write that had its data in the capsule, and one whose data has come already.
#[test]
fn cve_2023_6536_h2c_data_for_a_write_that_needs_none_is_refused() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    let write = Sqe::write(5, 0, 8).in_capsule(4096);
    let mut bytes = io.framing.capsule(&write, &[0; 4096]);
    bytes.extend_from_slice(&io.framing.h2c_data(5, 0, 0, &[0; 4096], true));
    io.send(&bytes);
    io.expect_term(1, 10);

    let (_host, mut io, r2t) = waiting_write(&target);
    let once = answer(&io, &r2t);
    io.send(&[once.clone(), once].concat());
    io.expect_term_among(&[(1, 10), (2, 0), (4, 0)]);
    still_serves(&target);
}

#[test]
fn a_cccid_that_is_not_the_command_s_is_refused() {
    let target = Target::start(&[]);
    for cid in [0_u16, 4, 6, 0xFFFF] {
        refused(&target, &[(1, 8)], |pdu, _| {
            put(pdu, CCCID, cid.to_le_bytes());
        });
    }
    // Two writes wait; each gets the other's tag.
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    io.start(&Sqe::write(5, 0, 8), &[]);
    io.start(&Sqe::write(6, 8, 8), &[]);
    let (first, second) = (io.read_pdu(), io.read_pdu());
    assert_ne!(first.ttag(), second.ttag());
    let mut pdu = answer(&io, &first);
    put(&mut pdu, TTAG, second.ttag().to_le_bytes());
    let _ = io.try_send(&pdu);
    io.expect_term(1, 8);
    still_serves(&target);
}

/// CVE-2023-52454: DATAL that is not what PLEN leaves for data, or more than MAXH2CDATA.
#[test]
fn cve_2023_52454_datal_and_plen_must_agree() {
    let target = Target::start(&[]);
    // FreeBSD reports DATAL, where the lowest of the two fields is PLEN.
    let disagree = [(1, PLEN as u32), (1, DATAL as u32)];
    for datal in [1, 4095, 4092, 2048] {
        refused(&target, &disagree, |pdu, _| put32(pdu, DATAL, datal));
    }
    refused(&target, &disagree, |pdu, _| put32(pdu, DATAL, 0));
    for plen in [24 + 4, 24 + 4095, 24 + 4097, 24 + 8192] {
        refused(&target, &disagree, |pdu, _| {
            put32(pdu, PLEN, plen);
            pdu.truncate(24);
        });
    }
    for datal in [0x8000_0000, 0xFFFF_FFFF] {
        let among = [(5, 0), (1, PLEN as u32), (1, DATAL as u32)];
        refused(&target, &among, |pdu, _| put32(pdu, DATAL, datal));
    }
    still_serves(&target);
}

/// An empty H2CData moves nothing, and could be sent for ever.
#[test]
fn an_empty_h2c_data_is_refused() {
    let target = Target::start(&[]);
    for flags in [0, LAST_PDU] {
        let among = [(2, 0), (1, PLEN as u32), (1, DATAL as u32)];
        refused(&target, &among, |pdu, io| {
            let ttag = crate::bytes::u16_at(pdu, TTAG);
            *pdu = io.framing.h2c_data(5, ttag, 0, &[], false);
            pdu[FLAGS] |= flags;
        });
    }
    still_serves(&target);
}

#[test]
fn more_than_maxh2cdata_is_refused() {
    let target = Target::start(&[]);
    refused(&target, &[(5, 0)], |pdu, io| {
        let datal = io.maxh2cdata + 4;
        put32(pdu, DATAL, datal);
        put32(pdu, PLEN, 24 + datal);
    });
    still_serves(&target);
}

/// CVE-2026-23112 and its faulty backport: beyond what the R2T asked for, also by wrapping 32 bits.
#[test]
fn cve_2026_23112_data_beyond_the_r2t_is_refused() {
    let target = Target::start(&[]);
    for (datao, datal) in [
        (0, 4096 + 512),
        (4096 - 512, 1024),
        (4096, 512),
        (8192, 512),
        (0xFFFF_FE00, 512),
        (0xFFFF_FE00, 1024),
        (0xFFFF_F000, 4096),
        (0x8000_0000, 4096),
    ] {
        refused(&target, &[(4, 0)], |pdu, io| {
            assert!(datal <= io.maxh2cdata);
            put32(pdu, DATAO, datao);
            put32(pdu, DATAL, datal);
            put32(pdu, PLEN, 24 + datal);
            pdu.truncate(24);
            pdu.resize(24 + datal as usize, 0);
        });
    }
    still_serves(&target);
}

/// Within the R2T, but not where the data goes on.
#[test]
fn data_out_of_order_is_refused() {
    let target = Target::start(&[]);
    for datao in [4, 512, 2048] {
        refused(&target, &[(2, 0)], |pdu, io| {
            let ttag = crate::bytes::u16_at(pdu, TTAG);
            *pdu = io.framing.h2c_data(5, ttag, datao, &[0; 512], false);
        });
    }
    // The second PDU repeats, overlaps or skips.
    for datao in [0, 508, 516, 1024] {
        refused(&target, &[(2, 0)], |pdu, io| {
            let ttag = crate::bytes::u16_at(pdu, TTAG);
            *pdu = io.framing.h2c_data(5, ttag, 0, &[0; 512], false);
            pdu.extend(io.framing.h2c_data(5, ttag, datao, &[0; 512], false));
        });
    }
    still_serves(&target);
}

#[test]
fn last_pdu_on_any_but_the_last_is_refused() {
    let target = Target::start(&[]);
    // Missing on the only one.
    refused(&target, &[(2, 0)], |pdu, _| pdu[FLAGS] &= !LAST_PDU);
    // Set on the first of two.
    refused(&target, &[(2, 0)], |pdu, io| {
        let ttag = crate::bytes::u16_at(pdu, TTAG);
        *pdu = io.framing.h2c_data(5, ttag, 0, &[0; 2048], true);
    });
    // Missing on the second of two.
    refused(&target, &[(2, 0)], |pdu, io| {
        let ttag = crate::bytes::u16_at(pdu, TTAG);
        *pdu = io.framing.h2c_data(5, ttag, 0, &[0; 2048], false);
        pdu.extend(io.framing.h2c_data(5, ttag, 2048, &[0; 2048], false));
    });
    still_serves(&target);
}

/// Refused data does not reach the medium, and the connection next door is not disturbed.
#[test]
fn what_is_refused_is_not_written() {
    let target = Target::start(&[]);
    let (host, mut io) = host_with_queue(&target, &Options::default());
    let mut bad = host.io(&target, 2, &Options::default());
    let before = pattern(9, 4096);
    io.write(800, &before);
    bad.start(&Sqe::write(5, 800, 8), &[]);
    let r2t = bad.read_pdu();
    let mut pdu = answer(&bad, &r2t);
    put(&mut pdu, TTAG, 0xFFFF_u16.to_le_bytes());
    let _ = bad.try_send(&pdu);
    bad.expect_term(1, 10);
    assert!(io.read(800, 4096) == before, "refused data was written");
    io.write(0, &before);
    assert!(io.read(0, 4096) == before);
    still_serves(&target);
}

/// A host that goes on sending after the C2HTermReq is not listened to, and costs nothing.
#[test]
fn a_host_that_does_not_stop_is_ignored() {
    let target = Target::start(&[]);
    let (host, mut deaf, r2t) = waiting_write(&target);
    let mut pdu = answer(&deaf, &r2t);
    put(&mut pdu, TTAG, 0xFFFF_u16.to_le_bytes());
    let _ = deaf.try_send(&pdu);
    assert_eq!(deaf.read_pdu().kind(), C2H_TERM_REQ);
    let mut io = host.io(&target, 2, &Options::default());
    let before = pattern(10, 4096);
    io.write(0, &before);
    let rss = target.rss_kib();
    // Right answers to the R2T, and a write of its own, eight megabytes in all.
    let right = answer(&deaf, &r2t);
    let write = Sqe::write(7, 0, 8).in_capsule(4096);
    let write = deaf.framing.capsule(&write, &[0xEE; 4096]);
    for _ in 0..1000 {
        if deaf.try_send(&[&right[..], &write].concat()).is_err() {
            break;
        }
    }
    assert!(
        io.read(0, 4096) == before,
        "a closed connection still writes"
    );
    assert!(target.rss_kib() < rss + 1024, "what is ignored is kept");
    deaf.finish_sending();
    deaf.expect_closed(PATIENCE);
    still_serves(&target);
}

/// The target asks for what a write needs, each R2T for at least one byte, never beyond the command,
/// at most MAXR2T + 1 at a time, and takes H2CData of any legal size. Answers may come in any order
/// of commands.
#[test]
fn writes_of_every_size_and_order_land_where_they_belong() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    for (blocks, limit) in [
        (1_u16, 512),
        (7, 1024),
        (8, 4096),
        (127, 4096),
        (256, 65536),
    ] {
        io.h2c_limit = limit;
        let data = pattern(u64::from(blocks), usize::from(blocks) * 512);
        io.write(3, &data);
        assert!(io.read(3, data.len()) == data, "{blocks} blocks");
    }
    // Eight writes at once, answered last first, in halves that interleave.
    io.h2c_limit = 2048;
    let data: Vec<Vec<u8>> = (0..8).map(|n| pattern(500 + n, 4096)).collect();
    for cid in 0..8_u16 {
        io.start(&Sqe::write(0x100 + cid, u64::from(cid) * 8, 8), &[]);
    }
    let mut r2ts: Vec<Pdu> = (0..8).map(|_| io.read_pdu()).collect();
    r2ts.reverse();
    let answers: Vec<Vec<Vec<u8>>> = r2ts
        .iter()
        .map(|r2t| {
            assert_eq!(r2t.kind(), R2T);
            io.h2c_data_for(r2t, &data[usize::from(r2t.cid() - 0x100)])
        })
        .collect();
    for half in 0..2 {
        for answer in &answers {
            io.send(&answer[half]);
        }
    }
    for _ in 0..8 {
        io.read_pdu().cqe().succeeds();
    }
    assert!(io.read(0, 8 * 4096) == data.concat(), "wrong data");
    still_serves(&target);
}

/// More is to be written than the target gives buffers for: 127 writes of a megabyte on each of eight
/// connections. Memory is bounded, others are served, and all that is asked for completes in the end.
#[test]
fn writes_wait_for_buffers() {
    const MIB: usize = 1 << 20;
    let target = Target::start(&[]);
    let options = Options {
        sqsize: 127,
        ..Options::default()
    };
    let host = Host::new(&target);
    let before = target.rss_kib();
    let mut queues: Vec<Conn> = (1..=8).map(|qid| host.io(&target, qid, &options)).collect();
    for io in &mut queues {
        let writes: Vec<Vec<u8>> = (0..127)
            .map(|cid| io.framing.capsule(&Sqe::write(cid, 0, 2048), &[]))
            .collect();
        io.send(&writes.concat());
    }
    let data: Vec<Vec<u8>> = (0..8).map(|seed| pattern(seed, MIB)).collect();
    let mut firsts: Vec<Pdu> = queues.iter_mut().map(Conn::read_pdu).collect();
    assert!(firsts.iter().all(|first| first.kind() == R2T));
    still_serves(&target);
    let waiting = target.rss_kib();
    assert!(
        waiting < before + 80 * 1024,
        "memory went from {before} KiB to {waiting} KiB"
    );
    // All of one queue's, with what the target asks for in the order it asks.
    let (io, first) = (&mut queues[0], firsts.remove(0));
    let mut completed = 0;
    io.serve(&first, &data[0]);
    while completed < 127 {
        let pdu = io.read_pdu();
        if pdu.kind() == R2T {
            io.serve(&pdu, &data[usize::from(pdu.cid()) % 8]);
        } else {
            pdu.cqe().succeeds();
            completed += 1;
        }
    }
    let last = io.read(0, MIB);
    assert!(data.contains(&last), "mixed data");
    drop(queues);
    still_serves(&target);
}

/// Connect data asked for by R2T, should the target do so, is served like any other; TCP hosts send it
/// in the capsule.
#[test]
fn connect_without_data_in_the_capsule_is_answered() {
    let target = Target::start(&[]);
    let mut conn = Conn::open(target.addr, IcReq::default());
    let data = connect_data(1, 0xFFFF, &target.nqn, crate::host::HOSTNQN);
    let sqe = Sqe::connect(1, 0, 31, 0, 60_000).transport(1024);
    conn.start(&sqe, &[]);
    let reply = conn.finish(1, &data);
    assert!(
        [
            status::SUCCESSFUL,
            status::INVALID_FIELD,
            status::SGL_TYPE_INVALID,
            status::CONNECT_INVALID_PARAMETERS
        ]
        .contains(&reply.cqe.code()),
        "{reply:x?}"
    );
    still_serves(&target);
}
