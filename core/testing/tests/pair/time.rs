//! What comes too late, at the very moment that it does.
use std::time::Duration;

use nvmf_core::host::controller::Token;
use nvmf_core::host::{Error, Step};
use nvmf_core::target::queue_pair::Close;
use nvmf_core::tcp::connection::CloseReason;
use nvmf_core::tcp::host;
use nvmf_testing::association::{Association, Ended, config};
use nvmf_testing::ends::{Happened, Way};
use nvmf_testing::pair::{How, Pair};

use crate::configs;

const MOMENT: Duration = Duration::from_micros(1);
/// Offsets in a CapsuleCmd: opcode, and FCTYPE of a Fabrics command.
const OPCODE: usize = 8;
const KEEP_ALIVE: u8 = 0x18;

fn connect(pair: &mut Pair, latency: Duration) -> Association {
    let (host, target) = configs(false);
    let how = How {
        latency,
        ..How::PLAIN
    };
    let link = pair.connect(&host, &target, how);
    Association::on(pair, link, config())
}

/// The answer to a Keep Alive is `late`; how the association ended, and when after that
/// Keep Alive was sent.
fn keep_alive_answered_after(late: Duration) -> Option<(Duration, Ended)> {
    let mut pair = Pair::new();
    let mut host = connect(&mut pair, Duration::ZERO);
    host.run(&mut pair, Duration::ZERO);
    let ready = pair.now();
    assert!(host.found.is_some());
    let sent = ready.after(config().kato / 2);
    assert_eq!(host.machine.poll_timeout(), Some(sent));
    pair.tap = Some(Box::new(move |passing| {
        if passing.way == Way::ToHost {
            *passing.delay = late;
        }
    }));
    let patience = config().kato;
    host.run(&mut pair, config().kato / 2 + patience + MOMENT);
    host.ended.map(|(when, ended)| (when.since(sent), ended))
}

#[test]
fn keep_alive_is_lost_at_its_moment() {
    let kato = config().kato;
    assert_eq!(keep_alive_answered_after(kato - MOMENT), None);
    let lost = Ended::Machine(Error::Timeout(Step::KeepAlive));
    assert_eq!(keep_alive_answered_after(kato + MOMENT), Some((kato, lost)));
}

/// The target looks whether there was traffic when its timer ends: it notices after one
/// to two timeouts, and at no other moment.
#[test]
fn the_target_loses_the_host_at_its_moment() {
    let mut pair = Pair::new();
    let mut host = connect(&mut pair, Duration::ZERO);
    host.run(&mut pair, Duration::ZERO);
    let ready = pair.now();
    pair.tap = Some(Box::new(|passing| {
        if passing.way == Way::ToTarget && passing.bytes[OPCODE] == KEEP_ALIVE {
            passing.bytes.clear();
        }
    }));
    // The commands of the bring-up came after the timer began: one timeout more.
    let end = ready.after(config().kato * 2);
    pair.run(end.since(pair.now()) - MOMENT);
    assert_eq!(pair.rig.closing(host.link), None);
    pair.run(MOMENT);
    let reason = pair.rig.closing(host.link);
    assert_eq!(reason, Some(CloseReason::Queue(Close::KeepAliveExpired)));
    let seen = pair.seen_of(host.link);
    assert_eq!(seen.last(), Some(&Happened::Closed));
}

/// Bring-up, of whose PDUs to the host the `nth` is `late`: how it ended, and when after
/// the command was sent.
fn answered_after(nth: usize, late: Duration) -> Option<(Duration, Ended)> {
    let mut pair = Pair::new();
    let mut host = connect(&mut pair, Duration::ZERO);
    let began = pair.now();
    let mut count = 0;
    pair.tap = Some(Box::new(move |passing| {
        if passing.way == Way::ToHost {
            if count == nth {
                *passing.delay = late;
            }
            count += 1;
        }
    }));
    host.run(&mut pair, config().command_timeout + MOMENT);
    host.ended.map(|(when, ended)| (when.since(began), ended))
}

#[test]
fn commands_of_the_bring_up_are_late_at_their_moment() {
    let patience = config().command_timeout;
    let mut steps = Vec::new();
    // The first PDU is ICResp; Identify's data and its completion are two.
    for nth in 1..8 {
        assert_eq!(answered_after(nth, patience - MOMENT), None, "{nth}");
        let (when, ended) = answered_after(nth, patience + MOMENT).expect("too late");
        assert_eq!(when, patience, "{nth}");
        let Ended::Machine(Error::Timeout(step)) = ended else {
            panic!("{ended:?}");
        };
        steps.push(step);
    }
    use Step as S;
    let all = [
        S::Connect,
        S::Capabilities,
        S::Version,
        S::Enable,
        S::Ready,
        S::Identify,
        S::Identify,
    ];
    assert_eq!(steps, all);
}

#[test]
fn icresp_is_late_at_its_moment() {
    let patience = host::Config::default().icresp_timeout;
    for (late, comes) in [(patience - MOMENT, true), (patience + MOMENT, false)] {
        let mut pair = Pair::new();
        let (host, target) = configs(false);
        pair.tap = Some(Box::new(move |passing| {
            if passing.way == Way::ToHost {
                *passing.delay = late;
            }
        }));
        let began = pair.now();
        let link = pair.connect(&host, &target, How::PLAIN);
        pair.run(patience * 2);
        let seen = pair.poll_seen().expect("something");
        assert_eq!(seen.link, link);
        let when = seen.when.since(began);
        if comes {
            assert_eq!((when, seen.happened), (late, Happened::Ready));
        } else {
            assert_eq!((when, seen.happened), (patience, Happened::Late));
            assert!(!pair.rig.is_open(link), "both ends know");
        }
    }
}

/// A command that is late is aborted, and if that is of no use, the controller is given
/// up: at the moment that is due.
#[test]
fn a_late_command_is_aborted_and_then_the_controller_is_given_up() {
    use nvmf_core::host::command;
    use nvmf_core::wire::identify::Cns;
    use nvmf_core::wire::ids::{Cid, Nsid, Qid};
    use nvmf_testing::ends::Payload;

    for ends in [false, true] {
        let mut pair = Pair::new();
        let mut host = connect(&mut pair, Duration::ZERO);
        host.run(&mut pair, Duration::ZERO);
        // Identify of a caller's, whose answer waits; Abort is answered.
        let late = Duration::from_secs(12);
        let mut count = 0;
        pair.tap = Some(Box::new(move |passing| {
            const IDENTIFY: u8 = 0x06;
            if passing.way == Way::ToTarget && passing.bytes[OPCODE] == IDENTIFY {
                count += 1;
                passing.bytes.clear();
            }
            assert!(count < 2, "it is not sent again");
        }));
        let sqe = command::identify(Cns::Controller, Nsid(0));
        assert!(pair.submit(host.link, &sqe, Payload::Read(4096), 7));
        host.run(&mut pair, Duration::from_secs(10));
        let cid = Cid(0);
        let now = pair.now();
        host.machine
            .timed_out(Qid::ADMIN, cid, now)
            .expect("one is not many");
        let (token, abort) = host.machine.poll_command(now).expect("an Abort");
        assert_eq!((token, abort.sqe.opcode), (Token::Abort, 0x08));
        if ends {
            host.machine.ended(Qid::ADMIN, cid);
        }
        host.run(&mut pair, late);
        let given_up = Ended::Machine(Error::Unanswered {
            qid: Qid::ADMIN,
            cid,
        });
        let patience = Duration::from_secs(5);
        let expected = (!ends).then(|| (now.after(patience), given_up));
        assert_eq!(host.ended, expected);
    }
}
