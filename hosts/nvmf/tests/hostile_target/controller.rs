//! A controller that is of no use, that fails, that stops.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::std::host::{Controller, Error, Options, Url};
use socket2::SockRef;

use crate::bytes::put;
use crate::fake::{Command, Conn, Did, Fake, Setup};
use crate::run::{fails, failure, read, success};

#[test]
fn entry_45_reset_while_an_io_queue_is_made() {
    for answer_icreq in [false, true] {
        let fake = Fake::start(Setup::default(), move |conn, command| {
            let io = command.is_fabrics(1) && command.dword(10) >> 16 > 0;
            if io {
                let linger = SockRef::from(&conn.socket).set_linger(Some(Duration::ZERO));
                linger.expect("an option");
                if answer_icreq {
                    conn.complete(command, 1);
                }
                return Did::End;
            }
            Did::Nothing
        });
        fails(&read(&fake.url(), "4096", &[]), "connection");
    }
}

#[test]
fn entry_46_what_fails_halfway() {
    let fake = Fake::start(Setup::default(), |conn, command| {
        if command.is_identify(1) {
            conn.fail(command, 0x0006);
            return Did::Something;
        }
        Did::Nothing
    });
    let expected = "refused Identify Controller: Internal Error";
    fails(&["id-ctrl", &fake.url()], expected);
    // Dataset Management, which may be sent again, and whose data are then the same.
    let ranges = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ranges);
    let fake = Fake::start(Setup::default(), move |conn, command| {
        if !conn.is_io() || command.opcode() != 0x09 {
            return Did::Nothing;
        }
        let data = conn.fetch(command).expect("ranges");
        assert_eq!(data.len(), 16);
        assert_eq!(data[4..], [8, 0, 0, 0, 40, 0, 0, 0, 0, 0, 0, 0]);
        count.fetch_add(1, Ordering::Relaxed);
        conn.fail(command, 0x0082);
        Did::Something
    });
    let controller = Controller::connect(&url(&fake), &Options::default()).expect("connects");
    let mut namespace = controller.namespace(Nsid(1)).expect("is there");
    for round in 1..=3 {
        let error = namespace.deallocate(40, 8).expect_err("fails");
        assert!(matches!(error, Error::Failed { .. }), "{error}");
        assert!(ranges.load(Ordering::Relaxed) >= round);
    }
    // And nothing is broken by that.
    namespace.flush().expect("the queue is in order");
}

fn url(fake: &Fake) -> Url {
    fake.url().parse().expect("a URL")
}

/// A fake that does `what` with the `nth` command, counted over all connections.
fn at_command(
    nth: usize,
    what: impl Fn(&mut Conn, &Command) -> Did + Send + Sync + 'static,
) -> Fake {
    let count = AtomicUsize::new(0);
    Fake::start(Setup::default(), move |conn, command| {
        if count.fetch_add(1, Ordering::Relaxed) == nth {
            return what(conn, command);
        }
        Did::Nothing
    })
}

/// Commands that a read takes, to its end.
const MOST: usize = 40;

#[test]
fn entry_52_stalls_at_each_command() {
    let options = Options {
        command_timeout: Duration::from_millis(150),
        ..Options::default()
    };
    let one_read = |fake: &Fake| -> Result<(), Error> {
        let controller = Controller::connect(&url(fake), &options)?;
        controller.namespace(Nsid(1))?.read(0, &mut [0; 4096])
    };
    let mut stages = Vec::new();
    for nth in 0..MOST {
        let fake = at_command(nth, |conn, _| {
            conn.wait_for_end();
            Did::End
        });
        match one_read(&fake) {
            Ok(()) => break,
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("in time") || text.contains("within"),
                    "{text}"
                );
                stages.push(text);
            }
        }
    }
    for stage in [
        "Connect",
        "CAP",
        "CC.EN",
        "not ready",
        "Identify",
        "Number of Queues",
        "Read",
    ] {
        assert!(
            stages.iter().any(|text| text.contains(stage)),
            "{stage}: {stages:#?}"
        );
    }
}

#[test]
fn closes_or_resets_at_each_command() {
    for reset in [false, true] {
        let mut failures = 0;
        for nth in 0..MOST {
            let fake = at_command(nth, move |conn, _| {
                if reset {
                    let linger = SockRef::from(&conn.socket).set_linger(Some(Duration::ZERO));
                    linger.expect("an option");
                }
                Did::End
            });
            let directory = tempfile::tempdir().expect("a directory");
            let file = directory.path().join("read");
            let path = file.to_str().expect("UTF-8");
            let url = fake.url();
            let args = read(&url, "4096", &["--data", path]);
            let output = crate::run::nvmf(&args);
            if output.status.success() {
                // It was the last, of the shutdown.
                assert_eq!(std::fs::read(&file).expect("is whole").len(), 4096);
                break;
            }
            failures += 1;
            assert!(!file.exists(), "a part passes for the whole");
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(error.contains("connection"), "{error}");
        }
        assert!(failures > 8, "{failures}");
    }
}

#[test]
fn every_command_fails_in_turn() {
    for (status, name) in [(0x4002, "Invalid Field"), (0x07FF, "/FFh"), (0x0182, "")] {
        for nth in 0..MOST {
            let fake = at_command(nth, move |conn, command| {
                conn.fail(command, status);
                Did::Something
            });
            let url = fake.url();
            let args = read(&url, "4096", &[]);
            let output = crate::run::nvmf(&args);
            if output.status.success() {
                break;
            }
            assert!(nth < MOST - 1);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(error.contains(name), "{error}");
        }
    }
}

#[test]
fn data_that_make_no_sense() {
    // Whatever Identify returns: an end, and at most one line.
    for byte in [0x00, 0x01, 0x20, 0x7F, 0x80, 0xFF] {
        for cns in 0..=3 {
            let fake = Fake::start(Setup::default(), move |conn, command| {
                if !command.is_identify(cns) {
                    return Did::Nothing;
                }
                conn.give(command, &[byte; 4096]);
                Did::Something
            });
            for command in ["id-ctrl", "id-ns"] {
                let output = crate::run::nvmf(&[command, &fake.url()]);
                let error = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.code().is_some(), "{error}");
                assert!(
                    error.lines().count() <= 1 && !error.contains("panic"),
                    "{error}"
                );
            }
        }
    }
}

/// Identify Controller with a field changed.
fn identify_with<const N: usize>(at: usize, value: [u8; N]) -> Fake {
    Fake::start(Setup::default(), move |conn, command| {
        if !command.is_identify(1) {
            return Did::Nothing;
        }
        let mut data = conn.identify_controller();
        put(&mut data, at, value);
        conn.give(command, &data);
        Did::Something
    })
}

/// A property that says something else.
fn property_is(offset: u32, value: u64) -> Fake {
    Fake::start(Setup::default(), move |conn, command| {
        if !command.is_fabrics(4) || command.dword(11) != offset {
            return Did::Nothing;
        }
        conn.complete(command, value);
        Did::Something
    })
}

#[test]
fn controllers_that_are_of_no_use() {
    let id_ctrl = |fake: &Fake| failure(&["id-ctrl", &fake.url()]);
    for (fake, expected) in [
        (property_is(0x00, 15 << 24 | 1 << 37), "CAP.MQES"),
        (property_is(0x1C, 0b10), "CSTS.CFS"),
        (identify_with(78, [2, 0]), "CNTLID"),
        (identify_with(320, [0, 0]), "KAS"),
        (identify_with(1792, [3, 0, 0, 0]), "IOCCSZ"),
        (identify_with(1800, [1, 0]), "ICDOFF"),
    ] {
        let error = id_ctrl(&fake);
        assert!(error.contains(expected), "{error}");
    }
    // Never ready, though it says that half a second will do.
    let fake = Fake::start(Setup::default(), |conn, command| {
        match (command.is_fabrics(4), command.dword(11)) {
            (true, 0x00) => conn.complete(command, 127 | 1 << 24 | 1 << 37),
            (true, 0x1C) => conn.complete(command, 0),
            _ => return Did::Nothing,
        }
        Did::Something
    });
    let error = id_ctrl(&fake);
    assert!(error.contains("not ready in time"), "{error}");
    // Authentication is asked for: ATR, ASCR.
    for bit in [17, 18] {
        let fake = Fake::start(Setup::default(), move |conn, command| {
            if !command.is_fabrics(1) {
                return Did::Nothing;
            }
            conn.complete(command, 1 | 1 << bit);
            Did::Something
        });
        let error = id_ctrl(&fake);
        assert!(error.contains("authentication"), "{error}");
    }
}

#[test]
fn no_queue_and_no_namespace() {
    let fake = Fake::start(Setup::default(), |conn, command| {
        if command.is_identify(2) {
            conn.give(command, &[0; 4096]);
            return Did::Something;
        }
        Did::Nothing
    });
    fails(
        &read(&fake.url(), "4096", &[]),
        "no namespace 1; it has none",
    );
    let whole = fake.url();
    let (base, _) = whole.split_once('?').expect("an NSID");
    fails(&read(base, "4096", &[]), "has no namespace for this host");
}

#[test]
fn a_right_target_is_right() {
    // What all else here rests on.
    let fake = Fake::right(Setup::default());
    let data = crate::bytes::pattern(1, 1 << 20);
    crate::run::writes(&fake, &data, &[]);
    assert!(fake.stored(data.len()) == data);
    assert!(success(&read(&fake.url(), "1M", &[])) == data);
    assert!(!success(&["id-ctrl", &fake.url()]).is_empty());
    assert_eq!(fake.term_reqs(), []);
}
