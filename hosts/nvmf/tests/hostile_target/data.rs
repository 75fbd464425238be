//! R2T, H2CData and C2HData.
use std::sync::{Arc, Mutex};

use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::std::host::{Controller, Options};

use crate::bytes::pattern;
use crate::fake::{Command, Conn, Did, Fake, Setup};
use crate::pdu::{LAST, SUCCESS, cqe};
use crate::run::{fails, read, success, write_fails, writes};

const READ: u8 = 0x02;
const WRITE: u8 = 0x01;

/// I/O commands of this opcode are answered so.
fn answering(
    opcode: u8,
    setup: Setup,
    answer: impl Fn(&mut Conn, &Command) + Send + Sync + 'static,
) -> Fake {
    Fake::start(setup, move |conn, command| {
        if !conn.is_io() || command.opcode() != opcode {
            return Did::Nothing;
        }
        answer(conn, command);
        Did::Something
    })
}

/// A write answered so breaks the transport.
#[track_caller]
fn write_answered(
    answer: impl Fn(&mut Conn, &Command) -> Vec<u8> + Send + Sync + 'static,
    term: (u16, u32),
) {
    let fake = answering(WRITE, Setup::default(), move |conn, command| {
        let bytes = answer(conn, command);
        conn.send(&bytes);
        conn.wait_for_end();
    });
    write_fails(&fake, &[0x77; 4096], &[], "broke the transport");
    assert_eq!(fake.term_reqs(), [term]);
}

/// A read answered so breaks the transport.
#[track_caller]
fn read_answered(
    answer: impl Fn(&mut Conn, &Command) -> Vec<u8> + Send + Sync + 'static,
    term: (u16, u32),
) {
    let fake = answering(READ, Setup::default(), move |conn, command| {
        let bytes = answer(conn, command);
        conn.send(&bytes);
        conn.wait_for_end();
    });
    fails(&read(&fake.url(), "4096", &[]), "broke the transport");
    assert_eq!(fake.term_reqs(), [term]);
}

#[test]
fn entries_30_and_49_maxh2cdata_is_bytes() {
    let setup = Setup {
        maxh2cdata: 4096,
        ..Setup::default()
    };
    let stored = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&stored);
    let fake = answering(WRITE, setup, move |conn, command| {
        let mut stored = kept.lock().expect("data");
        for offset in (0..command.length()).step_by(8192) {
            let len = (command.length() - offset).min(8192);
            let ttag = offset as u16 ^ 0xFFFF;
            conn.send(&conn.framing.r2t(command.cid(), ttag, offset, len));
            // Looks at the size of each.
            let data = conn.collect(command, ttag, offset, len);
            stored.extend(data.expect("it comes"));
        }
        conn.complete(command, 0);
    });
    let data = pattern(30, 65_536);
    writes(&fake, &data, &[]);
    assert!(*stored.lock().expect("data") == data);
}

#[test]
fn entry_35_one_h2c_data_for_an_r2t() {
    // With data digests nvmet cannot take a second PDU; the fake wants as few as can be.
    for maxh2cdata in [1 << 20, 400_000, 131_072] {
        let fake = Fake::right(Setup {
            digests: true,
            maxh2cdata,
            ..Setup::default()
        });
        let data = pattern(35, 1 << 20);
        writes(&fake, &data, &["--ddgst"]);
        assert!(fake.stored(data.len()) == data);
    }
}

#[test]
fn entry_42_two_r2ts_at_a_time() {
    let two = |conn: &mut Conn, command: &Command| {
        let first = conn.framing.r2t(command.cid(), 1, 0, 2048);
        let second = conn.framing.r2t(command.cid(), 2, 2048, 2048);
        [first, second].concat()
    };
    write_answered(two, (5, 0));
}

#[test]
fn entry_43_an_r2t_of_nothing() {
    write_answered(
        |conn, command| conn.framing.r2t(command.cid(), 1, 0, 0),
        (1, 16),
    );
}

#[test]
fn entry_55_offsets_are_in_order() {
    write_answered(
        |conn, command| conn.framing.r2t(command.cid(), 1, 512, 512),
        (2, 0),
    );
    read_answered(
        |conn, command| {
            let [second, first] = [512, 0].map(|at| {
                let flags = if at == 0 { LAST } else { 0 };
                conn.framing.c2h_data(command.cid(), flags, at, &[1; 512])
            });
            [second, first].concat()
        },
        (2, 0),
    );
    read_answered(
        |conn, command| {
            let some = conn.framing.c2h_data(command.cid(), 0, 0, &[1; 512]);
            [some.clone(), some].concat()
        },
        (2, 0),
    );
}

#[test]
fn what_no_command_asked_for() {
    let other = |command: &Command| command.cid() ^ 1;
    write_answered(
        |conn, command| conn.framing.r2t(command.cid(), 1, 0, 4097),
        (4, 0),
    );
    write_answered(
        |conn, command| conn.framing.r2t(command.cid(), 1, 0, u32::MAX),
        (4, 0),
    );
    write_answered(
        move |conn, command| conn.framing.r2t(other(command), 1, 0, 512),
        (1, 8),
    );
    write_answered(
        |conn, command| conn.framing.c2h_data(command.cid(), LAST, 0, &[0; 512]),
        (1, 8),
    );
    write_answered(
        |conn, _| conn.framing.response(&cqe(0xFFFF, 0, 1, 0)),
        (1, 20),
    );
    read_answered(
        |conn, command| conn.framing.r2t(command.cid(), 1, 0, 512),
        (1, 8),
    );
    read_answered(
        |conn, command| conn.framing.c2h_data(command.cid(), LAST, 0, &[0; 4100]),
        (4, 0),
    );
    read_answered(
        |conn, command| {
            conn.framing
                .c2h_data(command.cid(), LAST, u32::MAX - 511, &[0; 512])
        },
        (2, 0),
    );
    read_answered(
        move |conn, command| conn.framing.c2h_data(other(command), LAST, 0, &[0; 512]),
        (1, 8),
    );
    read_answered(
        |conn, command| conn.framing.c2h_data(command.cid(), SUCCESS, 0, &[0; 512]),
        (1, 1),
    );
    read_answered(
        |conn, command| {
            let last = conn.framing.c2h_data(command.cid(), LAST, 0, &[0; 512]);
            let more = conn.framing.c2h_data(command.cid(), LAST, 512, &[0; 512]);
            [last, more].concat()
        },
        (2, 0),
    );
}

#[test]
fn a_command_ends_once() {
    // The second answer names a command that is over, or another that has its place.
    let fake = answering(READ, Setup::default(), |conn, command| {
        conn.give(command, &[7; 4096]);
        conn.complete(command, 0);
        conn.wait_for_end();
    });
    // Enough for several commands.
    fails(&read(&fake.url(), "4M", &[]), "broke the transport");
    assert_eq!(fake.term_reqs(), [(1, 20)]);
}

#[test]
fn entry_47_write_zeroes_has_no_data() {
    let zeroes = |answer: fn(&mut Conn, &Command)| {
        let fake = answering(0x08, Setup::default(), move |conn, command| {
            assert_eq!(command.length(), 0, "the SGL has no length");
            answer(conn, command);
        });
        let url = fake.url().parse().expect("a URL");
        let controller = Controller::connect(&url, &Options::default()).expect("connects");
        let mut namespace = controller.namespace(Nsid(1)).expect("is there");
        let outcome = namespace.write_zeroes(8, 1000);
        drop((namespace, controller));
        (outcome.map_err(|error| error.to_string()), fake.term_reqs())
    };
    assert_eq!(
        zeroes(|conn, command| conn.answer(command)),
        (Ok(()), vec![])
    );
    let (outcome, terms) = zeroes(|conn, command| {
        conn.send(&conn.framing.r2t(command.cid(), 1, 0, 512));
        conn.wait_for_end();
    });
    assert!(outcome.is_err_and(|error| error.contains("broke the transport")));
    assert_eq!(terms, [(1, 8)]);
}

#[test]
fn entry_65_success_with_flow_control() {
    // The controller insists on flow control, and yet leaves completions out.
    let fake = Fake::start(
        Setup {
            mdts: 1,
            ..Setup::default()
        },
        |conn, command| {
            if command.is_fabrics(1) && command.dword(10) >> 16 == 1 {
                conn.answer(command);
                return Did::Something;
            }
            if !conn.is_io() || command.opcode() != READ {
                return Did::Nothing;
            }
            let data = vec![0x65; command.length() as usize];
            let pdu = conn
                .framing
                .c2h_data(command.cid(), LAST | SUCCESS, 0, &data);
            conn.send(&pdu);
            Did::Something
        },
    );
    // More commands than the queue has entries, several times.
    assert!(success(&read(&fake.url(), "4M", &[])) == vec![0x65; 4 << 20]);
}

#[test]
fn entry_69_a_read_in_pieces() {
    let data = pattern(69, 131_072);
    for success_flag in [true, false] {
        for c2h_data in [131_072, 65_536, 4096, 4100, 1000, 512] {
            let fake = Fake::right(Setup {
                digests: true,
                c2h_data,
                success: success_flag,
                ..Setup::default()
            });
            fake.store(&data);
            assert!(
                success(&read(&fake.url(), "131072", &["--ddgst"])) == data,
                "{c2h_data}"
            );
        }
    }
}

#[test]
fn data_of_two_reads_in_turn() {
    let first: Mutex<Option<Command>> = Mutex::new(None);
    let fake = answering(
        READ,
        Setup {
            mdts: 3,
            ..Setup::default()
        },
        move |conn, command| {
            let mut first = first.lock().expect("a command");
            let Some(other) = first.take() else {
                *first = Some(command.clone());
                return;
            };
            for at in (0..32_768).step_by(4096) {
                let last = at + 4096 == 32_768;
                let flags = if last { LAST | SUCCESS } else { 0 };
                for (command, byte) in [(command, 2), (&other, 1)] {
                    let data = [byte; 4096];
                    let pdu = conn.framing.c2h_data(command.cid(), flags, at, &data);
                    conn.send(&pdu);
                }
            }
        },
    );
    let both = success(&read(&fake.url(), "65536", &[]));
    assert!(both == [[1; 32_768], [2; 32_768]].concat());
}

#[test]
fn reads_that_bring_less_than_they_say() {
    let none = |conn: &mut Conn, command: &Command| conn.complete(command, 0);
    let fake = answering(READ, Setup::default(), none);
    fails(&read(&fake.url(), "4096", &[]), "makes no sense");
    let half = |conn: &mut Conn, command: &Command| {
        let pdu = conn
            .framing
            .c2h_data(command.cid(), LAST | SUCCESS, 0, &[1; 2048]);
        conn.send(&pdu);
    };
    let fake = answering(READ, Setup::default(), half);
    fails(&read(&fake.url(), "4096", &[]), "makes no sense");
    let failed = |conn: &mut Conn, command: &Command| {
        conn.send(&conn.framing.c2h_data(command.cid(), LAST, 0, &[1; 2048]));
        conn.fail(command, 0x0281);
    };
    let fake = answering(READ, Setup::default(), failed);
    fails(
        &read(&fake.url(), "4096", &[]),
        "Unrecovered Read Error (2/81h)",
    );
}

#[test]
fn a_wrong_data_digest_fails_the_command() {
    let setup = Setup {
        digests: true,
        ..Setup::default()
    };
    let fake = answering(READ, setup, |conn, command| {
        let mut pdu = conn.framing.c2h_data(command.cid(), LAST, 0, &[1; 4096]);
        pdu[100] ^= 1;
        conn.send(&pdu);
        conn.complete(command, 0);
    });
    fails(
        &read(&fake.url(), "4096", &["--ddgst"]),
        "Transient Transport Error (0/22h)",
    );
    assert_eq!(fake.term_reqs(), []);
}
