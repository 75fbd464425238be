//! Common headers that are wrong, and header digests.
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bytes::{Random, put};
use crate::fake::{Conn, Did, Fake, Setup};
use crate::pdu::{C2H_DATA, CAPSULE_RESP, LAST, R2T, SUCCESS, cqe};
use crate::run::{fails, failure, read};

fn with_digests() -> Setup {
    Setup {
        digests: true,
        ..Setup::default()
    }
}

/// The PDUs that answer a read, each of which is right but for its type R2T.
fn answer(conn: &Conn, cid: u16, pdu_type: u8) -> Vec<u8> {
    match pdu_type {
        CAPSULE_RESP => conn.framing.response(&cqe(cid, 0, 1, 0)),
        C2H_DATA => conn.framing.c2h_data(cid, LAST | SUCCESS, 0, &[0x5A; 4096]),
        _ => conn.framing.r2t(cid, 7, 0, 4096),
    }
}

/// The first I/O command is answered so; what the host says to that, and on stderr.
#[track_caller]
fn read_answered(
    more: &[&str],
    answer: impl Fn(&mut Conn, u16) + Send + Sync + 'static,
    expected: &str,
) -> Vec<(u16, u32)> {
    let fake = Fake::start(with_digests(), move |conn, command| {
        if !conn.is_io() || command.opcode() != 0x02 {
            return Did::Nothing;
        }
        answer(conn, command.cid());
        conn.wait_for_end();
        Did::End
    });
    fails(&read(&fake.url(), "4096", more), expected);
    fake.term_reqs()
}

#[test]
fn entry_39_hlen_is_that_of_the_type() {
    for more in [&[][..], &["--hdgst"]] {
        for pdu_type in [CAPSULE_RESP, C2H_DATA, R2T] {
            for hlen in [0, 8, 23, 25, 255] {
                let terms = read_answered(
                    more,
                    move |conn, cid| {
                        let mut pdu = answer(conn, cid, pdu_type);
                        pdu[2] = hlen;
                        conn.framing.repair(&mut pdu, 24);
                        pdu.resize(pdu.len().max(512), 0);
                        conn.send(&pdu);
                    },
                    "broke the transport: Invalid PDU Header Field at byte 2",
                );
                assert_eq!(terms, [(1, 2)], "type {pdu_type}, HLEN {hlen}");
            }
        }
    }
}

#[test]
fn entry_41_nothing_is_read_behind_a_wrong_header_digest() {
    for pdu_type in [CAPSULE_RESP, C2H_DATA, R2T] {
        let terms = read_answered(
            &["--hdgst"],
            move |conn, cid| {
                let mut pdus = answer(conn, cid, pdu_type);
                pdus[24] ^= 1;
                // In the same segment, what would end the command.
                for _ in 0..3 {
                    pdus.extend(answer(conn, cid, C2H_DATA));
                    pdus.extend(answer(conn, cid, CAPSULE_RESP));
                }
                conn.send(&pdus);
            },
            "Header Digest Error",
        );
        assert!(matches!(terms[..], [(3, _)]), "{terms:?}");
    }
}

#[test]
fn plen_of_every_type() {
    for pdu_type in [CAPSULE_RESP, C2H_DATA, R2T] {
        for plen in [0, 7, 8, 23, u32::MAX] {
            let terms = read_answered(
                &[],
                move |conn, cid| {
                    let mut pdu = answer(conn, cid, pdu_type);
                    put(&mut pdu, 4, plen.to_le_bytes());
                    conn.send(&pdu);
                },
                "broke the transport",
            );
            assert!(
                matches!(terms[..], [(1, 3 | 4)]),
                "{pdu_type}, {plen}: {terms:?}"
            );
        }
    }
}

#[test]
fn types_that_no_controller_sends() {
    for (pdu_type, term) in [
        (0x00, (1, 0)),
        (0x02, (1, 0)),
        (0x04, (1, 0)),
        (0x06, (1, 0)),
        (0x08, (1, 0)),
        (0x0A, (1, 0)),
        (0x0B, (1, 0)),
        (0xFF, (1, 0)),
    ] {
        let terms = read_answered(
            &[],
            move |conn, cid| {
                let mut pdu = answer(conn, cid, CAPSULE_RESP);
                pdu[0] = pdu_type;
                conn.send(&pdu);
            },
            "broke the transport",
        );
        assert_eq!(terms, [term], "type {pdu_type:#x}");
    }
    let second = |conn: &mut Conn, _| conn.send(&crate::pdu::ic_resp(0, 0, 4096));
    let terms = read_answered(&[], second, "PDU Sequence Error");
    assert!(matches!(terms[..], [(2, _)]), "a second ICResp: {terms:?}");
}

#[test]
fn garbage_at_any_command() {
    // Whatever comes, and whenever: one line, and no data.
    for seed in 0..40 {
        let random = Mutex::new(Random::new(seed));
        let nth = random.lock().expect("numbers").below(10);
        let count = AtomicUsize::new(0);
        let fake = Fake::start(Setup::default(), move |conn, _| {
            if count.fetch_add(1, Ordering::Relaxed) != nth {
                return Did::Nothing;
            }
            let mut random = random.lock().expect("numbers");
            let len = 1 + random.below(200);
            let mut garbage: Vec<u8> = (0..len).map(|_| random.byte()).collect();
            if random.below(2) == 0 {
                garbage[0] = [0x01, 0x03, 0x05, 0x07, 0x09][random.below(5)];
            }
            conn.send(&garbage);
            Did::End
        });
        failure(&read(&fake.url(), "4096", &[]));
    }
}
