//! Until ICResp is there.
use std::net::Shutdown;
use std::sync::mpsc;
use std::time::Duration;

use nvmf_tcp::std::host::{Controller, Error, Options};
use rustix::process::{Signal, kill_process};
use socket2::SockRef;

use crate::bytes::pattern;
use crate::fake::{Fake, PATIENCE, Setup};
use crate::pdu::ic_resp;
use crate::run::{fails, failure, finish, pid, read, spawn, success, writes};

const NO_TARGET: &str = "did not answer ICReq: is it an NVMe/TCP target?";

#[test]
fn entry_38_hangs_up_before_icresp() {
    let fake = Fake::raw(|mut conn| {
        conn.ic_req();
    });
    fails(&["id-ctrl", &fake.url()], NO_TARGET);
    let fake = Fake::raw(|conn| {
        // What came is not read: a reset.
        let linger = SockRef::from(&conn.socket).set_linger(Some(Duration::ZERO));
        linger.expect("an option");
    });
    // The reset may come before the first word.
    let error = failure(&["id-ctrl", &fake.url()]);
    assert!(
        error.contains(NO_TARGET) || error.contains("cannot connect"),
        "{error}"
    );
    let fake = Fake::raw(|mut conn| {
        conn.socket.shutdown(Shutdown::Write).expect("is open");
        conn.wait_for_end();
    });
    fails(&["id-ctrl", &fake.url()], NO_TARGET);
}

#[test]
fn entries_54_and_70_no_icresp() {
    for len in [0, 1, 8, 64, 127] {
        let fake = Fake::raw(move |mut conn| {
            conn.ic_req();
            conn.send(&ic_resp(0, 0, 4096)[..len]);
            conn.wait_for_end();
        });
        let options = Options {
            connect_timeout: Duration::from_millis(200),
            ..Options::default()
        };
        let url = fake.url().parse().expect("a URL");
        let error = Controller::connect(&url, &options).expect_err("no controller");
        assert!(matches!(error, Error::NoIcResp { .. }), "{len}: {error}");
    }
    let fake = Fake::raw(|mut conn| conn.wait_for_end());
    fails(&["id-ctrl", &fake.url()], NO_TARGET);
}

#[test]
fn entry_54_interrupted() {
    let (came, comes) = mpsc::channel();
    let fake = Fake::raw(move |mut conn| {
        conn.ic_req();
        came.send(()).expect("somebody waits");
        conn.wait_for_end();
    });
    let child = spawn(&["id-ctrl", &fake.url()]);
    comes.recv_timeout(PATIENCE).expect("ICReq comes");
    kill_process(pid(&child), Signal::INT).expect("it runs");
    let output = finish(child);
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
}

#[test]
fn icresp_is_held_against_the_rules() {
    let with = |at: usize, value: u8| {
        let mut pdu = ic_resp(0, 0, 4096);
        pdu[at] = value;
        pdu
    };
    for (pdu, term) in [
        (with(0, 0x05), (1, 2)),
        (with(0, 0x00), (1, 0)),
        (with(2, 24), (1, 2)),
        (with(4, 127), (1, 4)),
        (with(4, 129), (1, 4)),
        (with(8, 1), (6, 8)),
        (with(10, 32), (6, 10)),
        (with(11, 1), (1, 11)),
        (with(11, 2), (1, 11)),
        (ic_resp(0, 0, 0), (1, 12)),
        (ic_resp(0, 0, 4095), (1, 12)),
        (ic_resp(0, 0, 4098), (1, 12)),
    ] {
        let sent = pdu.clone();
        let fake = Fake::raw(move |mut conn| {
            conn.ic_req();
            conn.send(&sent);
            conn.wait_for_end();
        });
        fails(&["id-ctrl", &fake.url()], "broke the transport");
        assert_eq!(fake.term_reqs(), [term], "{pdu:02x?}");
    }
}

#[test]
fn what_is_no_target() {
    for greeting in [
        &b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.9\r\n",
        &[0; 4096],
        &[0xFF; 4096],
    ] {
        let fake = Fake::raw(move |mut conn| {
            conn.send(greeting);
            conn.wait_for_end();
        });
        fails(&["discover", &fake.url()], "broke the transport");
    }
}

#[test]
fn entry_58_every_cpda() {
    let data = pattern(58, 8192);
    for cpda in 0..=31 {
        // In the capsule, and in answer to an R2T; the fake looks at PDO.
        let setup = |inline_data| Setup {
            digests: true,
            cpda,
            inline_data,
            ..Setup::default()
        };
        for (inline_data, more) in [
            (0, &[][..]),
            (8192, &["--hdgst"]),
            (0, &["--hdgst", "--ddgst"]),
        ] {
            let fake = Fake::right(setup(inline_data));
            writes(&fake, &data, more);
            assert!(fake.stored(8192) == data);
            assert!(success(&read(&fake.url(), "8192", more)) == data);
            assert_eq!(fake.term_reqs(), []);
        }
    }
}
