//! Data both ways, by hand-made bytes: in capsules, by R2T, in C2HData.
mod common;

use common::{Ask, Session, hex, p3, p4, read};
use nvmf_core::block::MediaError;
use nvmf_core::tcp::target::Config;
use nvmf_testing::bytes::{self, Data, Dressing};
use nvmf_testing::crc::crc32c;
use nvmf_testing::host::{Direction, pattern};
use nvmf_testing::reader::{Pdu, R2t};
use nvmf_testing::rig::Delivery;
use nvmf_testing::target::Device;

const TRANSIENT_TRANSPORT_ERROR: u16 = 0x022;
const SGL_OFFSET_INVALID: u16 = 0x016;

/// FES and FEI.
const FIELD_PLEN: (u16, u32) = (1, 4);
const FIELD_CCCID: (u16, u32) = (1, 8);
const FIELD_TTAG: (u16, u32) = (1, 10);
const SEQUENCE: (u16, u32) = (2, 0);
const OUT_OF_RANGE: (u16, u32) = (4, 0);
const LIMIT_EXCEEDED: (u16, u32) = (5, 0);

fn connected() -> Session {
    Session::connected(Config::default(), Ask::default())
}

/// A session whose host wrote P3 and got an R2T for it, and the R2T's tag.
fn asked(config: Config) -> (Session, u16) {
    let mut session = Session::connected(config, Ask::default());
    session.rig.input(1, &p3(), Delivery::Whole);
    match &session.pdus(1, Ask::default())[..] {
        [Pdu::R2t(r2t)] => {
            assert_eq!((r2t.cid, r2t.offset), (5, 0));
            (session, r2t.ttag)
        }
        other => panic!("no R2T but {other:?}"),
    }
}

#[test]
fn r2t_is_the_bytes_of_the_specification() {
    let mut session = connected();
    session.rig.input(1, &p3(), Delivery::Whole);
    let r2t = session.rig.output(1);
    let mut expected = hex("09001800 18000000 05000000 00000000 00100000", 24);
    expected[10..12].copy_from_slice(&r2t[10..12]);
    assert_eq!(r2t, expected);
}

#[test]
fn a_write_by_r2t_is_stored_and_read_back() {
    let (mut session, ttag) = asked(Config::default());
    let data = pattern(1, 0, 4096, 9);
    let pdu = [p4(ttag), data.clone()].concat();
    session.rig.input(1, &pdu, Delivery::Whole);
    let response = session.rig.output(1);
    // CapsuleResp: CID 5, SQHD 2 (after Connect's 1), status 0.
    let expected = hex("05001800 18000000 00000000 00000000 02000000 05000000", 24);
    assert_eq!(response, expected);
    assert_eq!(session.rig.target.memory(1)[..4096], data);
    let read = bytes::block_command(0x02, 6, 1, 0, 8).data(Data::Transport(4096));
    let capsule = Dressing::default().capsule(&read, &[]);
    session.rig.input(1, &capsule, Delivery::Whole);
    let output = session.rig.output(1);
    let head = hex("07041818 18100000 06000000 00000000 00100000", 24);
    assert_eq!(output[..24], head);
    assert_eq!(output[24..24 + 4096], data);
    let response = hex("05001800 18000000 00000000 00000000 03000000 06000000", 24);
    assert_eq!(output[24 + 4096..], response);
}

#[test]
fn an_r2t_may_be_answered_in_several_pdus() {
    let (mut session, ttag) = asked(Config::default());
    let data = pattern(1, 0, 4096, 1);
    let dressing = Dressing::default();
    for (from, to) in [(0, 1), (1, 512), (512, 4095), (4095, 4096)] {
        assert!(session.rig.output(1).is_empty(), "before byte {from}");
        let pdu = dressing.h2c_data(5, ttag, from as u32, &data[from..to], to == 4096);
        session.rig.input(1, &pdu, Delivery::Whole);
    }
    assert!(matches!(
        session.pdus(1, Ask::default())[..],
        [Pdu::Response(_)]
    ));
    assert_eq!(session.rig.target.memory(1)[..4096], data);
}

#[test]
fn a_long_write_takes_several_r2ts() {
    let config = Config {
        max_r2t: 1536,
        ..Config::default()
    };
    let mut session = Session::connected(config, Ask::default());
    let data = pattern(1, 0, 4096, 1);
    session.rig.input(1, &p3(), Delivery::Whole);
    for (offset, len) in [(0, 1536), (1536, 1536), (3072, 1024)] {
        let pdus = session.pdus(1, Ask::default());
        let [Pdu::R2t(r2t)] = pdus[..] else {
            panic!("no R2T but {pdus:?}");
        };
        let R2t { ttag, cid, .. } = r2t;
        assert_eq!((cid, r2t.offset, r2t.len), (5, offset, len));
        let part = &data[offset as usize..][..len as usize];
        let (half, rest) = part.split_at(700);
        let dressing = Dressing::default();
        let first = dressing.h2c_data(5, ttag, offset, half, false);
        session.rig.input(1, &first, Delivery::Whole);
        let second = dressing.h2c_data(5, ttag, offset + 700, rest, true);
        session.rig.input(1, &second, Delivery::Whole);
    }
    assert!(matches!(
        session.pdus(1, Ask::default())[..],
        [Pdu::Response(_)]
    ));
    assert_eq!(session.rig.target.memory(1)[..4096], data);
}

#[test]
fn h2c_data_faults() {
    // CID, TTAG (added to the right one), DATAO, bytes, LAST_PDU.
    let cases = [
        // CVE-2022-50717, CVE-2026-22998: tags that name nothing.
        (5, 0xFFFF, 0, 4096, true, FIELD_TTAG),
        (5, 15, 0, 4096, true, FIELD_TTAG),
        (5, 16, 0, 4096, true, FIELD_TTAG),
        (6, 0, 0, 4096, true, FIELD_CCCID),
        // CVE-2026-23112: outside of what was asked for, and around 2^32.
        (5, 0, 0, 4608, true, OUT_OF_RANGE),
        (5, 0, 3584, 1024, true, OUT_OF_RANGE),
        (5, 0, 0xFFFF_F000, 4096, true, OUT_OF_RANGE),
        (5, 0, 512, 512, false, SEQUENCE),
        // LAST_PDU too soon, and not at the end.
        (5, 0, 0, 512, true, SEQUENCE),
        (5, 0, 0, 4096, false, SEQUENCE),
        (5, 0, 0, 8196, true, LIMIT_EXCEEDED),
    ];
    for (cid, tag, offset, len, last, fault) in cases {
        let (mut session, ttag) = asked(Config {
            maxh2cdata: 8192,
            ..Config::default()
        });
        let ttag = ttag.wrapping_add(tag);
        let pdu = Dressing::default().h2c_data(cid, ttag, offset, &vec![0x41; len], last);
        let seen = session.fault(1, &pdu);
        assert_eq!(seen, fault, "CID {cid} tag+{tag} {offset}+{len} {last}");
        assert!(session.rig.target.memory(1).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn datal_is_what_plen_says() {
    // CVE-2023-52454: P4l and its kin.
    for datal in [0, 1, 4095, 4097, u32::MAX] {
        let (mut session, ttag) = asked(Config::default());
        let mut pdu = [p4(ttag), vec![0x41; 4096]].concat();
        pdu[16..20].copy_from_slice(&datal.to_le_bytes());
        assert_eq!(session.fault(1, &pdu), FIELD_PLEN, "DATAL {datal}");
    }
}

#[test]
fn nobody_asked_for_that_data() {
    // CVE-2023-6535, CVE-2026-22998: before Connect, of no command, of a read.
    let mut session = Session::new(Config::default());
    let at = session.open(Ask::default());
    assert_eq!(session.fault(at, &p4(0)), FIELD_TTAG);
    let mut session = connected();
    session.rig.target.device = Device::Delayed;
    let read = bytes::block_command(0x02, 5, 1, 0, 8).data(Data::Transport(4096));
    let capsule = Dressing::default().capsule(&read, &[]);
    session.rig.input(1, &capsule, Delivery::Whole);
    for ttag in 0..16 {
        let mut session = connected();
        session.rig.target.device = Device::Delayed;
        session.rig.input(1, &capsule, Delivery::Whole);
        assert_eq!(session.fault(1, &p4(ttag)), FIELD_TTAG);
        assert!(session.rig.complete(0, None), "the device goes on");
        assert!(session.rig.output(1).is_empty());
    }
}

#[test]
fn in_capsule_data_is_what_the_descriptor_says() {
    let mut session = connected();
    let data = pattern(1, 1024, 1024, 3);
    let write = bytes::block_command(0x01, 5, 1, 2, 2);
    assert_eq!(session.write(1, write, &data).status(), 0);
    assert_eq!(session.rig.target.memory(1)[1024..2048], data);

    // More, or less, in the capsule than the descriptor says.
    for len in [512, 1025, 4096] {
        let mut session = connected();
        let write = write.data(Data::InCapsule(1024));
        let pdu = Dressing::default().capsule(&write, &vec![0x41; len]);
        assert_eq!(session.fault(1, &pdu), FIELD_PLEN);
    }
    // None in the capsule; or a descriptor that is elsewhere.
    let pdu = Dressing::default().capsule(&write.data(Data::InCapsule(1024)), &[]);
    assert_eq!(connected().fault(1, &pdu), FIELD_PLEN);
    let pdu = Dressing::default().capsule(&write.data(Data::Transport(1024)), &data);
    assert_eq!(connected().fault(1, &pdu), FIELD_PLEN);
    // More than IOCCSZ allows: 8192 bytes here.
    let write = bytes::block_command(0x01, 5, 1, 0, 17).data(Data::InCapsule(8704));
    let pdu = Dressing::default().capsule(&write, &[0x41; 8704]);
    assert_eq!(connected().fault(1, &pdu), FIELD_PLEN);
}

#[test]
fn a_whole_capsule_needs_no_buffer_where_the_device_takes_what_is_lent() {
    let mut session = connected();
    session.rig.target.in_capsule_buffers = false;
    let write = |cid| bytes::block_command(0x01, cid, 1, 2, 2);
    let data = pattern(1, 1024, 1024, 3);
    let refused = session.write(1, write(5), &data).status();
    assert_eq!(refused, TRANSIENT_TRANSPORT_ERROR);
    session.rig.target.stores = true;
    assert_eq!(session.write(1, write(6), &data).status(), 0);
    assert_eq!(session.rig.target.memory(1)[1024..2048], data);
    // What it says of the device is what the host hears.
    let read_only = bytes::block_command(0x01, 7, 3, 0, 1);
    assert_ne!(session.write(1, read_only, &[1; 512]).status(), 0);
    // In pieces it goes through a buffer, of which there is none.
    let capsule = session.hosts[1].submit(
        write(8).data(Data::InCapsule(1024)),
        Direction::FromHost,
        &data,
    );
    let (first, last) = capsule.split_at(600);
    session.input(1, first);
    session.input(1, last);
    assert_eq!(session.finished(1).status(), TRANSIENT_TRANSPORT_ERROR);
}

#[test]
fn in_capsule_data_starts_at_the_start() {
    let mut session = connected();
    let mut write = bytes::block_command(0x01, 5, 1, 0, 1).data(Data::InCapsule(512));
    write.0[24] = 1;
    let capsule = session.hosts[1].submit(write, Direction::FromHost, &[0x41; 512]);
    session.input(1, &capsule);
    assert_eq!(session.finished(1).status(), SGL_OFFSET_INVALID);
    // The stream goes on.
    let write = bytes::block_command(0x01, 6, 1, 0, 1);
    assert_eq!(session.write(1, write, &[0x42; 512]).status(), 0);
}

#[test]
fn a_wrong_data_digest_fails_one_command() {
    let ask = Ask {
        digests: 3,
        ..Ask::default()
    };
    let mut session = Session::connected(Config::default(), ask);
    let write = bytes::block_command(0x01, 5, 1, 0, 1).data(Data::InCapsule(512));
    let mut capsule = session.hosts[1].submit(write, Direction::FromHost, &[0x41; 512]);
    *capsule.last_mut().unwrap() ^= 1;
    session.input(1, &capsule);
    let failed = session.finished(1);
    assert_eq!(failed.status(), TRANSIENT_TRANSPORT_ERROR);
    assert_eq!(
        failed.completion.unwrap().status & 0x8000,
        0,
        "may be retried"
    );
    assert!(session.rig.target.memory(1)[..512].iter().all(|b| *b == 0));
    let write = bytes::block_command(0x01, 5, 1, 0, 1);
    assert_eq!(session.write(1, write, &[0x41; 512]).status(), 0);
}

#[test]
fn a_wrong_data_digest_amid_a_transfer_fails_the_command_once() {
    // CVE-2026-64535: the first of two PDUs of the first of two R2Ts.
    let ask = Ask {
        digests: 3,
        ..Ask::default()
    };
    let config = Config {
        max_r2t: 2048,
        ..Config::default()
    };
    let mut session = Session::connected(config, ask);
    let write = bytes::block_command(0x01, 5, 1, 0, 8);
    let capsule = session.hosts[1].submit_transfer(write, Direction::FromHost, 4096);
    session.input(1, &capsule);
    let data = vec![0x41; 4096];
    let mut first = session.hosts[1].answer(0, 1024, &data);
    *first.last_mut().unwrap() ^= 1;
    session.input(1, &first);
    assert!(session.hosts[1].finished.is_empty(), "the R2T is not done");
    let second = session.hosts[1].answer(0, 1024, &data);
    session.input(1, &second);
    assert!(session.hosts[1].requests.is_empty(), "no second R2T");
    assert_eq!(session.finished(1).status(), TRANSIENT_TRANSPORT_ERROR);
    assert!(session.rig.target.memory(1).iter().all(|byte| *byte == 0));
    // The next command has the slot, and no memory of it.
    let write = bytes::block_command(0x01, 5, 1, 0, 1);
    assert_eq!(session.write(1, write, &[0x42; 512]).status(), 0);
}

#[test]
fn data_digests_are_per_pdu_and_little_endian() {
    let ask = Ask {
        digests: 2,
        ..Ask::default()
    };
    let config = Config {
        max_c2hdata: 512,
        ..Config::default()
    };
    let mut session = Session::connected(config, ask);
    session.rig.target.memory(1)[..1024].copy_from_slice(&pattern(1, 0, 1024, 1));
    let read = bytes::block_command(0x02, 5, 1, 0, 2).data(Data::Transport(1024));
    let capsule = Dressing::default().capsule(&read, &[]);
    session.rig.input(1, &capsule, Delivery::Whole);
    let output = session.rig.output(1);
    let (first, second) = (&output[..540], &output[540..1080]);
    for (pdu, offset, flags) in [(first, 0, 0x02), (second, 512, 0x06)] {
        assert_eq!(pdu[..4], [0x07, flags, 24, 24]);
        assert_eq!(pdu[24..536], pattern(1, offset, 512, 1));
        assert_eq!(pdu[536..], crc32c(&pdu[24..536]).to_le_bytes());
    }
}

#[test]
fn data_is_aligned_as_the_host_asks() {
    for hpda in 0..=31 {
        for digests in 0..=3 {
            let ask = Ask {
                hpda,
                digests,
                ..Ask::default()
            };
            let mut session = Session::connected(Config::default(), ask);
            let read = bytes::block_command(0x02, 5, 1, 0, 1).data(Data::Transport(512));
            let capsule = session.hosts[1].submit(read, Direction::ToHost, &[]);
            session.rig.input(1, &capsule, Delivery::Whole);
            let output = session.rig.output(1);
            let alignment = (usize::from(hpda) + 1) * 4;
            let head: usize = if digests & 1 != 0 { 28 } else { 24 };
            // A multiple of the alignment, not the alignment itself.
            assert_eq!(usize::from(output[3]), head.next_multiple_of(alignment));
            assert_eq!(read_lengths(&output, ask), [512]);
        }
    }
}

#[test]
fn data_is_aligned_as_the_controller_asks() {
    for cpda in [0, 1, 3, 31] {
        for digests in 0..=3 {
            let ask = Ask {
                digests,
                ..Ask::default()
            };
            let config = Config {
                cpda,
                ..Config::default()
            };
            let mut session = Session::connected(config, ask);
            assert_eq!(session.hosts[1].dressing.cpda, cpda);
            let data = pattern(1, 0, 1024, 1);
            let write = bytes::block_command(0x01, 5, 1, 0, 2);
            assert_eq!(session.write(1, write, &data).status(), 0);
            let capsule = session.hosts[1].submit_transfer(write, Direction::FromHost, 1024);
            session.input(1, &capsule);
            let pdu = session.hosts[1].answer(0, 1024, &data);
            session.input(1, &pdu);
            assert_eq!(session.finished(1).status(), 0);
            assert_eq!(session.rig.target.memory(1)[..1024], data);
        }
    }
}

#[test]
fn a_long_read_is_several_pdus() {
    let config = Config {
        max_c2hdata: 1000,
        ..Config::default()
    };
    for nsid in [1, 2] {
        let mut session = Session::connected(config, Ask::default());
        let stored = pattern(nsid, 0, 4096, 1);
        session.rig.target.memory(nsid)[..4096].copy_from_slice(&stored);
        let blocks = if nsid == 2 { 1 } else { 8 };
        let read = bytes::block_command(0x02, 5, nsid, 0, blocks);
        let capsule = session.hosts[1].submit_transfer(read, Direction::ToHost, 4096);
        session.rig.input(1, &capsule, Delivery::Whole);
        let output = session.rig.output(1);
        let lengths = read_lengths(&output, Ask::default());
        assert_eq!(lengths, [1000, 1000, 1000, 1000, 96]);
        session.hosts[1].receive(&output).unwrap();
        assert_eq!(session.finished(1).data, stored);
    }
}

#[test]
fn success_stands_for_a_response_only_without_flow_control() {
    for no_flow_control in [false, true] {
        let ask = Ask {
            no_flow_control,
            ..Ask::default()
        };
        let mut session = Session::connected(Config::default(), ask);
        let read = bytes::block_command(0x02, 5, 1, 0, 1);
        let finished = session.read(1, read, 512);
        assert_eq!(finished.completion.is_none(), no_flow_control);
        let write = bytes::block_command(0x01, 6, 1, 0, 1);
        let finished = session.write(1, write, &[0; 512]).completion.unwrap();
        let sqhd = if no_flow_control { 0xFFFF } else { 3 };
        assert_eq!(finished.sqhd, sqhd);
        // A read that fails has a response either way, and no data.
        session.rig.target.device = Device::Failing(MediaError::Read);
        let finished = session.read(1, read, 512);
        assert_eq!((finished.status(), finished.data.len()), (0x281, 0));
        session.rig.target.device = Device::Immediate;
        let finished = session.read(1, read, 512);
        assert_eq!(finished.completion.is_none(), no_flow_control);
    }
}

#[test]
fn sqhd_goes_round() {
    let mut session = connected();
    for n in 2..40 {
        let flush = bytes::Command::new(0x00, n).nsid(1);
        let completion = session.run(1, flush).completion.unwrap();
        assert_eq!(completion.sqhd, n % 16);
    }
}

#[test]
fn commands_wait_for_buffers_in_their_order() {
    let mut session = connected();
    session.rig.target.transfer_buffers = 0;
    for cid in 1..=3 {
        let read = bytes::block_command(0x02, 0x100 + cid, 1, 0, 1);
        let capsule = session.hosts[1].submit_transfer(read, Direction::ToHost, 512);
        session.input(1, &capsule);
    }
    assert!(session.hosts[1].finished.is_empty());
    assert!(session.rig.is_waiting(1));
    // In-capsule data has its own reserve.
    let write = bytes::block_command(0x01, 9, 1, 0, 1);
    assert_eq!(session.write(1, write, &[1; 512]).status(), 0);
    for cid in 1..=3 {
        session.rig.target.transfer_buffers = 1;
        session.rig.retry(1);
        session.output(1);
        assert_eq!(session.finished(1).command.cid(), 0x100 + cid);
    }
    assert!(!session.rig.is_waiting(1));
}

#[test]
fn a_busy_device_is_offered_the_request_again() {
    let mut session = connected();
    session.rig.target.device = Device::Busy;
    let write = bytes::block_command(0x01, 5, 1, 0, 1).data(Data::InCapsule(512));
    let capsule = session.hosts[1].submit(write, Direction::FromHost, &[7; 512]);
    session.input(1, &capsule);
    session.rig.retry(1);
    session.output(1);
    assert!(session.hosts[1].finished.is_empty());
    session.rig.target.device = Device::Immediate;
    session.rig.retry(1);
    session.output(1);
    assert_eq!(session.finished(1).status(), 0);
    assert_eq!(session.rig.target.memory(1)[..512], [7; 512]);
}

#[test]
fn a_command_that_has_a_buffer_does_not_wait_behind_one_that_has_none() {
    let mut session = connected();
    session.rig.target.transfer_buffers = 0;
    session.rig.target.device = Device::Busy;
    let read = bytes::block_command(0x02, 0x101, 1, 0, 1);
    let capsule = session.hosts[1].submit_transfer(read, Direction::ToHost, 512);
    session.input(1, &capsule);
    let write = bytes::block_command(0x01, 5, 1, 0, 1).data(Data::InCapsule(512));
    let capsule = session.hosts[1].submit(write, Direction::FromHost, &[7; 512]);
    session.input(1, &capsule);
    session.rig.target.device = Device::Immediate;
    session.rig.retry(1);
    session.output(1);
    assert_eq!(session.finished(1).command.cid(), 5);
    assert!(session.rig.is_waiting(1));
    session.rig.target.transfer_buffers = 1;
    session.rig.retry(1);
    session.output(1);
    assert_eq!(session.finished(1).command.cid(), 0x101);
}

#[test]
fn a_connection_that_is_cut_keeps_what_devices_hold_until_they_are_done() {
    let mut session = connected();
    session.rig.target.device = Device::Delayed;
    for cid in 0..4 {
        let write = bytes::block_command(0x01, 0x100 + cid, 1, 0, 1).data(Data::InCapsule(512));
        let capsule = session.hosts[1].submit(write, Direction::FromHost, &[7; 512]);
        session.input(1, &capsule);
    }
    session.rig.close(1);
    assert_eq!(session.rig.target.buffers_taken(), 4);
    for left in (0..4).rev() {
        assert!(!session.rig.is_drained(1));
        assert!(session.rig.complete(left, Some(MediaError::Write)));
        assert_eq!(session.rig.target.buffers_taken(), left);
    }
    assert!(session.rig.is_drained(1));
}

/// DATAL of each C2HData.
fn read_lengths(output: &[u8], ask: Ask) -> Vec<usize> {
    read(output, ask)
        .iter()
        .filter_map(|pdu| match pdu {
            Pdu::Data { data, .. } => Some(data.len()),
            _ => None,
        })
        .collect()
}
