//! A tap that changes, loses and doubles what passes.
use std::cell::Cell;
use std::rc::Rc;

use nvmf_testing::association::{Association, config};
use nvmf_testing::ends::Way;
use nvmf_testing::pair::{How, Pair, Passing};
use nvmf_testing::scenarios::{ADMIN, IO, is_true, session};

use crate::configs;
use crate::session::ends;

/// A byte of a session is wrong, any one, either way. With digests nothing wrong is
/// stored or read: the command fails, or the connection ends, or it was padding.
#[test]
fn digests_find_every_wrong_byte() {
    for link in [ADMIN, IO] {
        for way in [Way::ToTarget, Way::ToHost] {
            let (mut failed, mut ended, mut harmless) = (0, 0, 0);
            for at in 0.. {
                let mut pair = ends(true, How::PLAIN);
                let hit = Rc::new(Cell::new(false));
                let seen = Rc::clone(&hit);
                let change = 1 << (at % 8);
                pair.tap = Some(Box::new(move |passing| {
                    let within = at - passing.at.min(at);
                    let index = usize::try_from(within).expect("is small");
                    if (passing.link, passing.way) == (link, way)
                        && passing.at <= at
                        && let Some(byte) = passing.bytes.get_mut(index)
                    {
                        *byte ^= change;
                        seen.set(true);
                    }
                }));
                let outcome = session(&mut pair);
                let what = format!("{way:?} of {link}, byte {at} ^ {change:#x}");
                if !hit.get() {
                    assert!(outcome.is_whole(), "{what}: {outcome:?}");
                    break;
                }
                failed += usize::from(!outcome.failed.is_empty());
                ended += usize::from(!outcome.ended.is_empty());
                harmless += usize::from(outcome.is_whole());
                is_true(&mut pair, &outcome, &what);
            }
            // Of ICReq and ICResp, which carry no digests, most is reserved.
            assert!(ended > 50 && harmless > 0, "{ended}, {harmless}");
            let data = link == IO || way == Way::ToTarget;
            assert!(!data || failed > 500, "{way:?} of {link}: {failed}");
        }
    }
}

/// Without digests it ends all the same, and nothing is left.
#[test]
fn a_wrong_byte_ends() {
    for way in [Way::ToTarget, Way::ToHost] {
        for at in 0..900 {
            let mut pair = ends(false, How::PLAIN);
            pair.tap = Some(Box::new(move |passing| {
                let index = usize::try_from(at - passing.at.min(at)).expect("is small");
                if (passing.link, passing.way) == (IO, way)
                    && passing.at <= at
                    && let Some(byte) = passing.bytes.get_mut(index)
                {
                    *byte ^= 1 << (at % 8);
                }
            }));
            session(&mut pair);
            for link in 0..pair.links() {
                pair.cut(link);
                assert!(pair.rig.is_drained(link));
            }
            assert_eq!(pair.rig.target.buffers_taken(), 0);
        }
    }
}

/// What a tap does to the `nth` PDU.
fn to_nth(
    nth: usize,
    link: usize,
    way: Way,
    fault: fn(&mut Passing<'_>),
) -> (Pair, Rc<Cell<usize>>) {
    let mut pair = ends(false, How::PLAIN);
    let count = Rc::new(Cell::new(0));
    let counted = Rc::clone(&count);
    pair.tap = Some(Box::new(move |passing| {
        if (passing.link, passing.way) == (link, way) {
            if counted.get() == nth {
                fault(passing);
            }
            counted.set(counted.get() + 1);
        }
    }));
    (pair, count)
}

/// A PDU is lost, or comes twice, any one: no command ends that did not, or twice.
#[test]
fn pdus_that_are_lost_or_doubled() {
    let lose: fn(&mut Passing<'_>) = |passing| passing.bytes.clear();
    let double: fn(&mut Passing<'_>) = |passing| passing.bytes.extend_from_within(..);
    for (name, fault) in [("lost", lose), ("doubled", double)] {
        for link in [ADMIN, IO] {
            for way in [Way::ToTarget, Way::ToHost] {
                for nth in 0..40 {
                    let (mut pair, count) = to_nth(nth, link, way, fault);
                    let outcome = session(&mut pair);
                    let what = format!("PDU {nth}, {way:?} of {link}, {name}");
                    if count.get() <= nth {
                        assert!(nth > 1 && outcome.is_whole(), "{what}: {outcome:?}");
                        break;
                    }
                    let spared = outcome.is_whole() && outcome.ended.is_empty();
                    assert!(!spared, "{what}: nobody minds");
                    is_true(&mut pair, &outcome, &what);
                }
            }
        }
    }
}

/// A byte of what the target says in bring-up is wrong, any one: the host finds out, or
/// finds what is true.
#[test]
fn bring_up_with_a_wrong_byte() {
    let truth = bring_up(u64::MAX).1.expect("nothing is wrong yet");
    let mut ready = 0;
    for at in 0.. {
        let (sent, found) = bring_up(at);
        if sent <= at {
            break;
        }
        if let Some(found) = found {
            ready += 1;
            assert_eq!(found, truth, "byte {at}");
        }
    }
    assert!(ready > 0, "what is reserved in ICResp is not looked at");
}

fn bring_up(wrong: u64) -> (u64, Option<nvmf_core::host::controller::Capabilities>) {
    let mut pair = Pair::new();
    pair.tap = Some(Box::new(move |passing| {
        let within = wrong.checked_sub(passing.at);
        let index = within.and_then(|within| usize::try_from(within).ok());
        if passing.way == Way::ToHost
            && let Some(byte) = index.and_then(|index| passing.bytes.get_mut(index))
        {
            *byte ^= 1 << (wrong % 8);
        }
    }));
    let (host, target) = configs(true);
    let link = pair.connect(&host, &target, How::PLAIN);
    let mut host = Association::on(&mut pair, link, config());
    for _ in 0..20 {
        host.run(&mut pair, std::time::Duration::from_secs(1));
        if host.found.is_some() || host.ended.is_some() {
            return (pair.arrived(host.link, Way::ToHost), host.found);
        }
    }
    panic!("byte {wrong}: no end");
}
