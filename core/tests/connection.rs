//! Connections from ICReq to their end, by hand-made bytes.
mod common;

use std::time::Duration;

use common::{Ask, Session, hex, p0, p0d, p2, p3, p4};
use nvmf_core::target::queue_pair::Close;
use nvmf_core::tcp::connection::CloseReason;
use nvmf_core::tcp::target::Config;
use nvmf_testing::bytes::{self, Data, Dressing, SUBNQN};
use nvmf_testing::crc::crc32c;
use nvmf_testing::host::Direction;
use nvmf_testing::reader::Pdu;
use nvmf_testing::rig::{Delivery, Rig};
use nvmf_testing::target::Heap;

/// FES of a TermReq.
mod fes {
    pub(super) const FIELD: u16 = 1;
    pub(super) const SEQUENCE: u16 = 2;
    pub(super) const HEADER_DIGEST: u16 = 3;
    pub(super) const UNSUPPORTED: u16 = 6;
}

fn fresh(config: Config) -> (Rig<Heap>, usize) {
    let mut rig = Rig::new();
    let at = rig.accept(&config);
    (rig, at)
}

/// What the target answers to the first bytes of a connection.
fn answer(config: Config, bytes: &[u8]) -> Vec<u8> {
    let (mut rig, at) = fresh(config);
    rig.input(at, bytes, Delivery::Whole);
    rig.output(at)
}

#[test]
fn ic_resp_is_the_bytes_of_the_specification() {
    let config = Config {
        maxh2cdata: 0x0002_0000,
        cpda: 3,
        ..Config::default()
    };
    let expected = hex("01008000 80000000 00000300 00000200", 128);
    assert_eq!(answer(config, &p0()), expected);
    let both = hex("01008000 80000000 00000303 00000200", 128);
    assert_eq!(answer(config, &p0d()), both);
}

#[test]
fn digests_need_both_ends() {
    for (header_digest, data_digest, granted) in
        [(false, false, 0), (true, false, 1), (false, true, 2)]
    {
        let config = Config {
            header_digest,
            data_digest,
            ..Config::default()
        };
        assert_eq!(answer(config, &p0d())[11], granted);
    }
}

#[test]
fn ic_req_faults_name_their_field() {
    // PFV 1; HPDA 32 (P0x) and 255; HLEN, PLEN, PDO of another PDU; PDU type.
    for (offset, value, fes, fei) in [
        (8, 1, fes::UNSUPPORTED, 8),
        (9, 0x80, fes::UNSUPPORTED, 8),
        (10, 32, fes::UNSUPPORTED, 10),
        (10, 255, fes::UNSUPPORTED, 10),
        (2, 72, fes::FIELD, 2),
        (4, 127, fes::FIELD, 4),
        (4, 129, fes::FIELD, 4),
        (7, 1, fes::FIELD, 4),
    ] {
        let mut pdu = p0();
        pdu[offset] = value;
        let answer = answer(Config::default(), &pdu);
        // What was known of the header is quoted.
        let quoted = if fes == fes::UNSUPPORTED { 128 } else { 8 };
        let mut expected = hex("03001800", 24);
        expected[4] = 24 + quoted as u8;
        expected[8..10].copy_from_slice(&fes.to_le_bytes());
        expected[10..14].copy_from_slice(&u32::to_le_bytes(fei));
        expected.extend(&pdu[..quoted]);
        assert_eq!(answer, expected, "{value:#x} at {offset}");
    }
}

#[test]
fn the_pdu_type_must_be_one_that_hosts_send() {
    for pdu_type in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0A, 0xFF] {
        let mut session = Session::new(Config::default());
        let at = session.open(Ask::default());
        let mut pdu = p2();
        pdu[0] = pdu_type;
        assert_eq!(session.fault(at, &pdu), (fes::FIELD, 0), "{pdu_type:#x}");
    }
}

#[test]
fn lengths_are_those_of_the_type() {
    let capsule = 4;
    let data = 6;
    for (pdu_type, hlen, plen, fei) in [
        (capsule, 0, 72, 2),
        (capsule, 71, 72, 2),
        (capsule, 24, 72, 2),
        (capsule, 72, 7, 4),
        (capsule, 72, 8, 4),
        (capsule, 72, 71, 4),
        (data, 24, 23, 4),
        (data, 24, 24, 4),
        (data, 72, 4120, 2),
    ] {
        let mut session = Session::new(Config::default());
        let at = session.open(Ask::default());
        let mut pdu = vec![0; 72];
        (pdu[0], pdu[2]) = (pdu_type, hlen);
        pdu[4..8].copy_from_slice(&bytes::length(plen));
        pdu[3] = if pdu_type == data && plen > 24 { 24 } else { 0 };
        let fault = session.fault(at, &pdu);
        assert_eq!(fault, (fes::FIELD, fei), "type {pdu_type} {hlen} {plen}");
    }
}

#[test]
fn a_data_offset_is_behind_the_header_aligned_and_within() {
    for (pdo, fault) in [(71, true), (73, true), (72, false), (0, true), (252, true)] {
        let config = Config {
            cpda: 1,
            ..Config::default()
        };
        let mut session = Session::new(config);
        let at = session.open(Ask::default());
        let connect = bytes::connect(1, 0, 15, 0);
        let data = bytes::connect_data(0xFFFF, SUBNQN);
        let mut pdu = Dressing::default().capsule(&connect, &data);
        pdu[3] = pdo;
        if fault {
            assert_eq!(session.fault(at, &pdu), (fes::FIELD, 3), "PDO {pdo}");
        } else {
            session.rig.input(at, &pdu, Delivery::Whole);
            assert_eq!(session.rig.closing(at), None);
        }
    }
}

#[test]
fn nothing_comes_before_ic_req_and_it_comes_once() {
    let command = answer(Config::default(), &p2());
    assert_eq!((command[0], command[8]), (3, fes::SEQUENCE as u8));
    let data = answer(Config::default(), &p4(0));
    assert_eq!((data[0], data[8]), (3, fes::SEQUENCE as u8));
    let mut session = Session::new(Config::default());
    let at = session.open(Ask::default());
    assert_eq!(session.fault(at, &p0()), (fes::SEQUENCE, 0));
}

#[test]
fn a_wrong_header_digest_is_reported_with_what_came() {
    let ask = Ask {
        digests: 1,
        ..Ask::default()
    };
    let mut session = Session::new(Config::default());
    let at = session.open(ask);
    let mut pdu = Dressing {
        header_digest: true,
        ..Dressing::default()
    }
    .capsule(&bytes::property_get(2, 0, true), &[]);
    assert_eq!(pdu[72..], crc32c(&pdu[..72]).to_le_bytes());
    pdu[72..].copy_from_slice(&[0xEF, 0xBE, 0xAD, 0xDE]);
    // More PDUs in the same segment are not looked at (CVE-2022-48686).
    pdu.extend(p2());
    let fault = session.fault(at, &pdu);
    assert_eq!(fault, (fes::HEADER_DIGEST, 0xDEAD_BEEF));
}

#[test]
fn digest_flags_are_what_was_agreed() {
    for (digests, flags) in [(0, 1), (1, 0)] {
        let mut session = Session::new(Config::default());
        let at = session.open(Ask {
            digests,
            ..Ask::default()
        });
        let mut pdu = p2();
        pdu[1] = flags;
        assert_eq!(session.fault(at, &pdu), (fes::FIELD, 1));
    }
    // Without data, DDGSTF says nothing: hosts differ.
    for flags in [0, 2] {
        let mut session = Session::new(Config::default());
        let at = session.open(Ask {
            digests: 2,
            ..Ask::default()
        });
        let mut pdu = p2();
        pdu[1] = flags;
        session.rig.input(at, &pdu, Delivery::Whole);
        assert_eq!(session.rig.closing(at), None);
    }
}

#[test]
fn term_req_is_obeyed_at_once_and_not_answered() {
    for quoted in [0, 24, 128] {
        let mut session = Session::connected(Config::default(), Ask::default());
        let quoted = vec![0x41; quoted];
        let pdu = bytes::term_req(1, 10, &quoted);
        session.rig.input(1, &pdu, Delivery::Whole);
        assert!(session.rig.must_close(1));
        assert!(session.rig.output(1).is_empty());
        let Some(CloseReason::Terminated(fatal)) = session.rig.closing(1) else {
            panic!("not terminated");
        };
        assert_eq!((fatal.fes.code(), fatal.fei), (1, 10));
    }
    // FES of another version (a table read out of bounds elsewhere), and lengths that no TermReq has.
    for (fes, plen) in [(0, 24), (7, 24), (0xFFFF, 24), (1, 23), (1, 153), (1, 8)] {
        let mut session = Session::connected(Config::default(), Ask::default());
        let mut pdu = bytes::term_req(fes, 0, &[]);
        pdu[4..8].copy_from_slice(&bytes::length(plen));
        session.rig.input(1, &pdu, Delivery::Whole);
        assert!(session.rig.must_close(1), "FES {fes}, PLEN {plen}");
        assert!(session.rig.output(1).is_empty());
    }
}

#[test]
fn the_host_has_30_seconds_to_close_after_a_fault() {
    let mut session = Session::new(Config::default());
    let at = session.open(Ask::default());
    session.fault(at, &p0());
    // What else it sends is discarded.
    session.rig.input(at, &[0xFF; 100_000], Delivery::Whole);
    assert!(session.rig.output(at).is_empty());
    session.rig.advance(Duration::from_millis(29_999));
    assert!(session.rig.is_open(at));
    session.rig.advance(Duration::from_millis(1));
    assert!(!session.rig.is_open(at));
    assert!(matches!(
        session.rig.closing(at),
        Some(CloseReason::Fatal(_))
    ));
}

#[test]
fn ic_req_is_awaited_for_10_seconds() {
    let (mut rig, at) = fresh(Config::default());
    // A byte a second does not make it longer.
    for byte in &p0()[..9] {
        rig.input(at, &[*byte], Delivery::Whole);
        rig.advance(Duration::from_secs(1));
    }
    rig.advance(Duration::from_millis(999));
    assert!(rig.is_open(at));
    rig.advance(Duration::from_millis(1));
    assert!(!rig.is_open(at));
    assert_eq!(rig.closing(at), Some(CloseReason::NoIcReq));
}

#[test]
fn connect_is_awaited_too() {
    let mut session = Session::new(Config::default());
    let at = session.open(Ask::default());
    session.rig.advance(nvmf_testing::rig::CONNECT_TIMEOUT);
    let not_connected = CloseReason::Queue(Close::NotConnected);
    assert_eq!(session.rig.closing(at), Some(not_connected));
    assert_eq!(session.rig.deadline(at), None, "nothing ticks any more");
}

#[test]
fn an_idle_connection_has_no_timer() {
    let session = Session::connected(Config::default(), Ask::default());
    assert_eq!(session.rig.deadline(0), None, "KATO is 0");
    assert_eq!(session.rig.deadline(1), None);
}

#[test]
fn keep_alive_is_told_from_silence() {
    let mut session = Session::new(Config::default());
    let at = session.open(Ask::default());
    let connect = bytes::connect(1, 0, 15, 2000);
    let data = bytes::connect_data(0xFFFF, SUBNQN);
    let connect = session.hosts[at].submit(connect, Direction::FromHost, &data);
    session.input(at, &connect);
    session.finished(at);
    session.run(at, bytes::property_set(2, 0x14, bytes::CC_ENABLE));
    for _ in 0..5 {
        session.rig.advance(Duration::from_millis(1500));
        session.run(at, bytes::Command::new(0x18, 3));
    }
    assert_eq!(session.rig.closing(at), None);
    session.rig.advance(Duration::from_secs(4));
    let expired = CloseReason::Queue(Close::KeepAliveExpired);
    assert_eq!(session.rig.closing(at), Some(expired));
}

#[test]
fn a_stopping_target_ends_what_was_begun() {
    let mut session = Session::connected(Config::default(), Ask::default());
    session.input_unanswered(1, &p3());
    session.rig.shut_down(1);
    assert_eq!(session.rig.closing(1), None);
    // The R2T goes out, the data comes, the completion goes out.
    let Pdu::R2t(r2t) = session.pdus(1, Ask::default()).remove(0) else {
        panic!("no R2T");
    };
    let mut data = p4(r2t.ttag);
    data.extend([0x77; 4096]);
    session.rig.input(1, &data, Delivery::Whole);
    let pdus = session.pdus(1, Ask::default());
    assert!(matches!(&pdus[..], [Pdu::Response(response)] if response.status == 0));
    let stopped = CloseReason::Queue(Close::ShutDown);
    assert_eq!(session.rig.closing(1), Some(stopped));
    assert_eq!(session.rig.target.memory(1)[..4096], [0x77; 4096]);
}

#[test]
fn more_commands_than_the_queue_has_entries_are_a_fault() {
    let mut session = Session::connected(Config::default(), Ask::default());
    // 16 entries: 16 commands have a place, the 17th has none.
    for cid in 0..16 {
        let write = bytes::block_command(0x01, cid, 1, 0, 1).data(Data::Transport(512));
        let pdu = Dressing::default().capsule(&write, &[]);
        session.rig.input(1, &pdu, Delivery::Whole);
        assert_eq!(session.rig.closing(1), None, "command {cid}");
    }
    let write = bytes::block_command(0x01, 16, 1, 0, 1).data(Data::Transport(512));
    let pdu = Dressing::default().capsule(&write, &[]);
    session.rig.input(1, &pdu, Delivery::Whole);
    let output = session.rig.output(1);
    let term_req = &output[output.len() - 96..];
    assert_eq!((term_req[0], term_req[8]), (3, fes::SEQUENCE as u8));
}

#[test]
fn a_byte_at_a_time_is_the_same_stream() {
    let run = |delivery: Delivery| {
        let mut session = Session::connected(Config::default(), Ask::default());
        let mut output = Vec::new();
        for pdu in [
            p3(),
            [p4(0), vec![0x5A; 4096]].concat(),
            p2(),
            vec![0xFF; 80],
        ] {
            session.rig.input(1, &pdu, delivery);
            output.extend(session.rig.output(1));
        }
        (output, session.rig.closing(1))
    };
    let whole = run(Delivery::Whole);
    assert!(whole.1.is_some());
    for size in [1, 2, 7, 23, 71, 73, 4095] {
        assert_eq!(run(Delivery::Pieces(size)), whole);
        assert_eq!(run(Delivery::InPlace(size)), whole);
    }
}

impl Session {
    /// Bytes of a host's; what comes back stays where it is.
    fn input_unanswered(&mut self, at: usize, bytes: &[u8]) {
        self.rig.input(at, bytes, Delivery::Whole);
    }
}
