//! TermReqs, both ways.
use std::thread;
use std::time::Duration;

use crate::fake::{Conn, Did, Fake, Setup};
use crate::pdu::{LAST, term_req};
use crate::run::{fails, failure, read};

/// The first read is answered so.
fn answering(answer: impl Fn(&mut Conn, u16) + Send + Sync + 'static) -> Fake {
    Fake::start(Setup::default(), move |conn, command| {
        if !conn.is_io() || command.opcode() != 0x02 {
            return Did::Nothing;
        }
        answer(conn, command.cid());
        conn.wait_for_end();
        Did::End
    })
}

#[test]
fn entries_50_and_56_what_a_term_req_says() {
    let quoted = [0x04; 72];
    for (fes, fei, expected) in [
        (1, 10, "Invalid PDU Header Field at byte 10"),
        (2, 0, "PDU Sequence Error"),
        (3, 0x1234_5678, "Header Digest Error (received 0x12345678)"),
        (4, 0, "Data Transfer Out of Range"),
        (5, 0, "Limit Exceeded"),
        (6, 32, "Unsupported Parameter at byte 32"),
        (0, 0, "0"),
        (7, 0, "7"),
        (0xFFFF, u32::MAX, ""),
    ] {
        let fake = answering(move |conn, _| conn.send(&term_req(fes, fei, &quoted)));
        let error = failure(&read(&fake.url(), "4096", &[]));
        let said = error.contains("the controller ended the connection: ");
        assert!(said && error.contains(expected), "{fes}, {fei}: {error}");
        assert_eq!(fake.term_reqs(), [], "it is not answered");
    }
    // As an answer to ICReq, and of every length.
    for quoted in [0, 1, 8, 128] {
        let fake = Fake::raw(move |mut conn| {
            conn.ic_req();
            conn.send(&term_req(6, 11, &vec![0; quoted]));
            conn.wait_for_end();
        });
        fails(
            &["id-ctrl", &fake.url()],
            "Unsupported Parameter at byte 11",
        );
        assert_eq!(fake.term_reqs(), []);
    }
}

#[test]
fn term_reqs_that_are_malformed_are_not_answered() {
    for (at, value) in [(2, 23), (2, 128), (4, 7), (4, 153), (5, 1), (7, 0xFF)] {
        let fake = answering(move |conn, _| {
            let mut pdu = term_req(1, 8, &[0; 24]);
            pdu[at] = value;
            conn.send(&pdu);
        });
        fails(&read(&fake.url(), "4096", &[]), "the controller");
        assert_eq!(fake.term_reqs(), [], "byte {at} is {value:#x}");
    }
}

#[test]
fn entry_57_somebody_closes() {
    // The fake waits for the host to close, after its own TermReq and after the host's.
    let fake = answering(|conn, _| conn.send(&term_req(2, 0, &[0; 24])));
    failure(&read(&fake.url(), "4096", &[]));
    assert_eq!(fake.term_reqs(), []);
    let fake = answering(|conn, cid| conn.send(&conn.framing.r2t(cid, 0, 0, 4)));
    failure(&read(&fake.url(), "4096", &[]));
    assert_eq!(fake.term_reqs(), [(1, 8)]);
}

#[test]
fn entry_64_a_term_req_in_pieces() {
    for cut in [1, 8, 23, 24, 25, 40] {
        let fake = answering(move |conn, _| {
            let pdu = term_req(4, 0, &[0; 24]);
            conn.send(&pdu[..cut]);
            thread::sleep(Duration::from_millis(5));
            conn.send(&pdu[cut..]);
        });
        fails(
            &read(&fake.url(), "4096", &[]),
            "Data Transfer Out of Range",
        );
        assert_eq!(fake.term_reqs(), []);
    }
    // Between two C2HData of a read; and where it is but data, and the connection ends.
    let fake = answering(|conn, cid| {
        let some = conn.framing.c2h_data(cid, 0, 0, &[1; 2048]);
        conn.send(&[some, term_req(4, 0, &[0; 24])].concat());
    });
    fails(
        &read(&fake.url(), "4096", &[]),
        "Data Transfer Out of Range",
    );
    let fake = Fake::start(Setup::default(), |conn, command| {
        if !conn.is_io() || command.opcode() != 0x02 {
            return Did::Nothing;
        }
        let data = conn.framing.c2h_data(command.cid(), LAST, 0, &[1; 4096]);
        conn.send(&data[..100]);
        conn.send(&term_req(4, 0, &[0; 24]));
        Did::End
    });
    fails(&read(&fake.url(), "4096", &[]), "connection");
    assert_eq!(fake.term_reqs(), []);
}
