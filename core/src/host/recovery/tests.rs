//! The policy in virtual time.
use super::*;
use crate::host::controller::Token;
use crate::host::{Step, command};
use crate::wire::identify::Cns;
use crate::wire::ids::{Cid, Nsid};
use crate::wire::property::Property;
use crate::wire::status::Status;
use std::vec::Vec;

const KATO: Duration = Duration::from_secs(5);

fn at(ms: u64) -> Instant {
    Instant::ZERO.after(Duration::from_millis(ms))
}

/// Command based keep alive: 10 s of silence are proof.
fn fence() -> Fence {
    Fence::new(KATO, 10, false, Duration::ZERO)
}

fn policy(delay_s: u64, loss: Option<u64>, fast: Option<u64>) -> Policy {
    Policy {
        reconnect_delay: Duration::from_secs(delay_s),
        ctrl_loss_tmo: loss.map(Duration::from_secs),
        fast_io_fail_tmo: fast.map(Duration::from_secs),
    }
}

/// All that is due.
fn actions(recovery: &mut Recovery, now: Instant) -> Vec<Action> {
    let mut all = Vec::new();
    while let Some(action) = recovery.poll_action(now) {
        all.push(action);
        assert!(all.len() < 10, "no end: {all:?}");
    }
    all
}

/// Every attempt fails until it gives up or `limit` attempts were made: when each began.
fn attempts(recovery: &mut Recovery, limit: usize) -> Vec<u64> {
    let mut began = Vec::new();
    let mut now = at(0);
    recovery.lost(recovery.association(), false, now);
    loop {
        for action in actions(recovery, now) {
            if let Action::Connect { attempt } = action {
                began.push(now.as_micros() / 1_000_000);
                assert_eq!(attempt as usize, began.len());
            }
        }
        if recovery.state() == State::Connecting {
            recovery.failed(Failure::Transient, now);
        }
        if matches!(recovery.state(), State::Gone(_)) || began.len() == limit {
            return began;
        }
        now = recovery.poll_timeout().expect("something to wait for");
    }
}

#[test]
fn attempts_are_those_of_linux() {
    // nvme-cli 68bc86922, 14ee80dfe: 0 and -1 are not "unset".
    let loss = |given: Option<i64>| match given {
        None => Policy::default(),
        Some(seconds) => Policy {
            ctrl_loss_tmo: Policy::seconds(seconds),
            ..Policy::default()
        },
    };
    for (given, expected) in [
        (None, Some(60)),
        (Some(0), Some(0)),
        (Some(-1), None),
        (Some(1), Some(1)),
        (Some(10), Some(1)),
        (Some(11), Some(2)),
        (Some(i64::MAX), Some(u32::MAX)),
    ] {
        assert_eq!(loss(given).attempts(), expected, "ctrl_loss_tmo {given:?}");
    }
    let eager = Policy {
        reconnect_delay: Duration::ZERO,
        ctrl_loss_tmo: Some(Duration::from_millis(7)),
        ..Policy::default()
    };
    assert_eq!(eager.attempts(), Some(7));
    assert_eq!(Policy::default().fast_io_fail_tmo, None);
    assert_eq!(Policy::seconds(0), Some(Duration::ZERO));
    assert_eq!(Policy::seconds(-1), None);
}

#[test]
fn it_waits_before_every_attempt_and_gives_up_after_the_last() {
    let mut recovery = Recovery::new(policy(10, Some(25), None), fence());
    assert_eq!(attempts(&mut recovery, 100), [10, 20, 30]);
    assert_eq!(recovery.state(), State::Gone(Why::Attempts));
    assert_eq!(recovery.fresh(Effect::Reads), Verdict::Fail(Cause::Gone));
    assert_eq!(recovery.again(Effect::Changes), Verdict::Fail(Cause::Gone));

    let mut forever = Recovery::new(policy(1, None, None), fence());
    assert_eq!(attempts(&mut forever, 1000).len(), 1000);
}

#[test]
fn a_ctrl_loss_tmo_of_0_gives_up_at_once() {
    let mut recovery = Recovery::new(policy(10, Some(0), None), fence());
    recovery.lost(Association(0), true, at(0));
    assert_eq!(recovery.state(), State::Gone(Why::Attempts));
    // The connection is ended in order all the same.
    let shut = Action::Shut(Association(0));
    assert_eq!(actions(&mut recovery, at(0)), [shut, Action::Release]);
    assert_eq!(
        actions(&mut recovery, at(2000)),
        [Action::Abort(Association(0))]
    );
}

#[test]
fn success_counts_anew() {
    let mut recovery = Recovery::new(policy(10, Some(20), None), fence());
    for (round, ms) in [(0, 0), (1, 100_000), (2, 200_000)] {
        let start = at(ms);
        let now = start.after(Duration::from_secs(10));
        assert_eq!(recovery.association(), Association(round));
        recovery.lost(recovery.association(), false, start);
        actions(&mut recovery, start);
        assert!(actions(&mut recovery, now).contains(&Action::Connect { attempt: 1 }));
        recovery.failed(Failure::Transient, now);
        let now = now.after(Duration::from_secs(10));
        assert_eq!(
            actions(&mut recovery, now),
            [Action::Connect { attempt: 2 }]
        );
        recovery.connected(fence());
        assert_eq!((recovery.state(), recovery.attempts()), (State::Live, 0));
    }
}

#[test]
fn what_will_fail_again_is_not_tried_again() {
    let refused = |status| Error::Refused {
        step: Step::Connect,
        status,
        parameter: None,
    };
    for (error, expected) in [
        (
            refused(Status::CONNECT_INVALID_HOST.with_dnr()),
            Failure::Final,
        ),
        (refused(Status::CONTROLLER_BUSY), Failure::Transient),
        (Error::AuthenticationRequired, Failure::Final),
        (Error::Timeout(Step::Connect), Failure::Transient),
        (Error::ControllerFailed, Failure::Transient),
        (Error::Unusable("of no use"), Failure::Transient),
    ] {
        assert_eq!(Failure::from(&error), expected, "{error}");
        let mut recovery = Recovery::new(policy(1, None, None), fence());
        recovery.lost(Association(0), false, at(0));
        actions(&mut recovery, at(1000));
        recovery.failed(Failure::from(&error), at(1000));
        assert_eq!(
            matches!(recovery.state(), State::Gone(Why::Final)),
            expected == Failure::Final
        );
    }
}

#[test]
fn commands_wait_for_the_controller_or_fail_fast() {
    for (fast, fails_at) in [(None, None), (Some(0), Some(0)), (Some(3), Some(3000))] {
        let mut recovery = Recovery::new(policy(10, None, fast), fence());
        recovery.lost(Association(0), false, at(0));
        for ms in [0, 2999, 3000, 9999, 10_000, 60_000] {
            actions(&mut recovery, at(ms));
            let failing = fails_at.is_some_and(|from| from <= ms);
            assert_eq!(recovery.is_failing_fast(), failing, "{fast:?} at {ms} ms");
            let expected = match failing {
                true => Verdict::Fail(Cause::FailFast),
                false => Verdict::Hold,
            };
            assert_eq!(recovery.fresh(Effect::Reads), expected);
            assert_eq!(recovery.again(Effect::Reads), expected);
        }
        assert_eq!(recovery.state(), State::Connecting);
        recovery.connected(fence());
        assert!(!recovery.is_failing_fast());
        assert_eq!(recovery.again(Effect::Reads), Verdict::Send);
    }
}

#[test]
fn it_says_when_what_is_held_is_to_be_looked_at() {
    let mut recovery = Recovery::new(policy(10, None, Some(4)), fence());
    recovery.lost(Association(0), false, at(0));
    assert_eq!(
        actions(&mut recovery, at(0)),
        [Action::Shut(Association(0))]
    );
    recovery.ended(Association(0), at(1));
    assert_eq!(actions(&mut recovery, at(1)), []);
    assert_eq!(recovery.poll_timeout(), Some(at(4000)));
    assert_eq!(actions(&mut recovery, at(4000)), [Action::Release]);
    assert_eq!(recovery.poll_timeout(), Some(at(10_000)));
    actions(&mut recovery, at(10_000));
    recovery.connected(fence());
    assert_eq!(actions(&mut recovery, at(10_000)), [Action::Release]);
    assert_eq!(recovery.poll_timeout(), None);
}

/// A controller that was lost with writes under way, and is there again after a second.
fn reconnected(fence: Fence) -> Recovery {
    let mut recovery = Recovery::new(policy(1, None, None), fence);
    recovery.lost(Association(0), true, at(0));
    actions(&mut recovery, at(0));
    actions(&mut recovery, at(1000));
    recovery.connected(fence);
    actions(&mut recovery, at(1000));
    recovery
}

fn writes(recovery: &Recovery) -> (Verdict, Verdict) {
    (
        recovery.again(Effect::Changes),
        recovery.fresh(Effect::Changes),
    )
}

const HELD: (Verdict, Verdict) = (Verdict::Hold, Verdict::Hold);
const SENT: (Verdict, Verdict) = (Verdict::Send, Verdict::Send);

/// lkml 2504.1/08976: an old write that was delayed undoes a newer one.
#[test]
fn no_write_before_the_old_connection_is_dead_by_its_end() {
    let mut recovery = reconnected(fence());
    assert_eq!(recovery.again(Effect::Reads), Verdict::Send);
    assert_eq!(recovery.fresh(Effect::Reads), Verdict::Send);
    assert_eq!(writes(&recovery), HELD);
    recovery.ended(Association(0), at(1500));
    assert_eq!(actions(&mut recovery, at(1500)), [Action::Release]);
    assert_eq!(writes(&recovery), SENT);
}

#[test]
fn no_write_before_the_old_connection_is_dead_by_time() {
    let mut recovery = reconnected(fence());
    assert_eq!(recovery.poll_timeout(), Some(at(2000)));
    assert_eq!(
        actions(&mut recovery, at(2000)),
        [Action::Abort(Association(0))]
    );
    // Who aborted cannot have seen an end.
    recovery.ended(Association(0), at(2001));
    assert_eq!(actions(&mut recovery, at(11_999)), []);
    assert_eq!(writes(&recovery), HELD);
    assert_eq!(recovery.poll_timeout(), Some(at(12_000)));
    assert_eq!(actions(&mut recovery, at(12_000)), [Action::Release]);
    assert_eq!(writes(&recovery), SENT);
    assert_eq!(recovery.poll_timeout(), None);
}

#[test]
fn the_fence_is_what_the_controller_says_of_itself() {
    let ms = Duration::from_millis;
    for (kato, kas, traffic, cqt, silence) in [
        (5000, 10, false, 0, 10_000),
        (5000, 10, true, 0, 15_000),
        // Linux rounds up to whole seconds.
        (4500, 10, false, 0, 10_000),
        (4500, 1, false, 0, 9_000),
        (5000, 10, true, 700, 15_700),
    ] {
        let fence = Fence::new(ms(kato), kas, traffic, ms(cqt));
        assert_eq!(fence.silence, Some(ms(silence)));
        assert_eq!(fence.quiesce, ms(cqt));
    }
    // CQT counts after the end, too.
    let mut recovery = reconnected(Fence::new(KATO, 10, true, ms(700)));
    recovery.ended(Association(0), at(1500));
    assert_eq!(actions(&mut recovery, at(2199)), []);
    assert_eq!(writes(&recovery), HELD);
    assert_eq!(actions(&mut recovery, at(2200)), [Action::Release]);
    assert_eq!(writes(&recovery), SENT);
}

#[test]
fn without_keep_alive_only_its_end_proves_a_connection_dead() {
    let no_timer = Fence::new(Duration::ZERO, 10, true, Duration::ZERO);
    assert_eq!(no_timer.silence, None);

    let mut recovery = reconnected(no_timer);
    assert_eq!(writes(&recovery), HELD);
    recovery.ended(Association(0), at(1500));
    actions(&mut recovery, at(1500));
    assert_eq!(writes(&recovery), SENT);

    let mut recovery = reconnected(no_timer);
    assert_eq!(
        actions(&mut recovery, at(2000)),
        [Action::Abort(Association(0)), Action::Release]
    );
    assert_eq!(recovery.again(Effect::Reads), Verdict::Send);
    assert_eq!(
        writes(&recovery),
        (Verdict::Fail(Cause::FateUnknown), Verdict::Send)
    );
    assert_eq!(recovery.poll_timeout(), None);
}

#[test]
fn nothing_waits_for_a_connection_that_changed_nothing() {
    let mut recovery = Recovery::new(policy(1, None, None), fence());
    recovery.lost(Association(0), false, at(0));
    actions(&mut recovery, at(1000));
    recovery.connected(fence());
    assert_eq!(writes(&recovery), SENT);
}

#[test]
fn a_second_loss_does_not_shorten_the_first_one_s_fence() {
    let mut recovery = reconnected(fence());
    // The first is still read: it is aborted now.
    recovery.lost(Association(1), true, at(1500));
    assert_eq!(
        actions(&mut recovery, at(1500)),
        [Action::Abort(Association(0)), Action::Shut(Association(1))]
    );
    recovery.ended(Association(0), at(1600));
    recovery.ended(Association(1), at(1600));
    actions(&mut recovery, at(2500));
    recovery.connected(fence());
    actions(&mut recovery, at(11_499));
    assert_eq!(writes(&recovery), HELD);
    assert_eq!(recovery.poll_timeout(), Some(at(11_500)));
    assert_eq!(actions(&mut recovery, at(11_500)), [Action::Release]);
    assert_eq!(writes(&recovery), SENT);
}

#[test]
fn a_quiet_second_loss_does_not_end_the_first_one_s_fence() {
    let mut recovery = reconnected(fence());
    actions(&mut recovery, at(2000));
    recovery.lost(Association(1), false, at(3000));
    actions(&mut recovery, at(3000));
    recovery.ended(Association(1), at(3000));
    actions(&mut recovery, at(4000));
    recovery.connected(fence());
    actions(&mut recovery, at(11_999));
    assert_eq!(writes(&recovery), HELD);
    assert_eq!(actions(&mut recovery, at(12_000)), [Action::Release]);
    assert_eq!(writes(&recovery), SENT);
}

/// Both machines, as a binding joins them: the keep alive is not answered.
#[test]
fn a_lost_keep_alive_leads_to_another_controller() {
    let mut rig = crate::host::tests::live();
    let mut recovery = Recovery::new(Policy::default(), fence());
    rig.env.now = rig.host.poll_timeout().unwrap();
    assert_eq!(rig.poll(), Some((Token::KeepAlive, 0x18)));
    rig.env.now = rig.host.poll_timeout().unwrap();
    let error = rig.host.handle_timeout(rig.env.now).unwrap_err();
    assert_eq!(Failure::from(&error), Failure::Transient);
    recovery.lost(recovery.association(), true, rig.env.now);
    let shut = Action::Shut(Association(0));
    assert_eq!(actions(&mut recovery, rig.env.now), [shut]);

    rig.env.now = rig.env.now.after(Duration::from_secs(10));
    let connect = Action::Connect { attempt: 1 };
    assert_eq!(
        actions(&mut recovery, rig.env.now),
        [Action::Abort(Association(0)), connect]
    );
    recovery.connected(fence());
    assert_eq!(recovery.again(Effect::Reads), Verdict::Send);
    assert_eq!(writes(&recovery), HELD);
}

#[test]
fn reports_about_earlier_associations_change_nothing() {
    let mut recovery = reconnected(fence());
    recovery.lost(Association(0), true, at(1500));
    assert_eq!(recovery.state(), State::Live);
    recovery.failed(Failure::Final, at(1500));
    recovery.connected(fence());
    assert_eq!(
        (recovery.state(), recovery.association()),
        (State::Live, Association(1))
    );
}

#[test]
fn it_can_be_stopped() {
    for when in [0, 500, 1000] {
        let mut recovery = Recovery::new(policy(1, None, None), fence());
        if when > 0 {
            recovery.lost(Association(0), false, at(0));
            recovery.ended(Association(0), at(0));
        }
        actions(&mut recovery, at(when));
        recovery.stop();
        assert_eq!(actions(&mut recovery, at(when)), [Action::Release]);
        assert_eq!(actions(&mut recovery, at(100_000)), []);
        assert_eq!(recovery.state(), State::Gone(Why::Stopped));
        recovery.connected(fence());
        assert_eq!(recovery.fresh(Effect::Reads), Verdict::Fail(Cause::Gone));
    }
}

#[test]
fn what_is_not_known_to_be_harmless_changes_something() {
    let io = |opcode: u8| Effect::of_io(&Sqe::new(opcode, Cid(0)).with_nsid(Nsid(1)));
    let harmless: Vec<u8> = (0..=255)
        .filter(|opcode| io(*opcode) == Effect::Reads)
        .collect();
    // Flush, Read, Compare, Verify, Reservation Report, Zone Management Receive.
    assert_eq!(harmless, [0x00, 0x02, 0x05, 0x0C, 0x0E, 0x7A]);
    let mut fused = Sqe::new(0x05, Cid(0));
    fused.flags |= 1;
    assert_eq!(Effect::of_io(&fused), Effect::Changes);

    for (sqe, effect) in [
        (command::identify(Cns::Controller, Nsid(0)), Effect::Reads),
        (command::get_log_page(2, Nsid(0), 0, 512), Effect::Reads),
        (command::keep_alive(), Effect::Reads),
        (command::property_get(Property::Csts), Effect::Reads),
        (command::property_set(Property::Cc, 0), Effect::Changes),
        (Sqe::new(0x80, Cid(0)), Effect::Changes),
        (Sqe::new(0x09, Cid(0)), Effect::Changes),
        (Sqe::new(0xC0, Cid(0)), Effect::Changes),
    ] {
        assert_eq!(Effect::of_admin(&sqe), effect, "{sqe}");
    }
}
