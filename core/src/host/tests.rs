//! The host's machine against the target's, in one thread, in virtual time.
use core::time::Duration;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use zerocopy::IntoBytes;

use super::controller::{CALLER_COMMANDS, Config, Controller, Event, OWN_COMMANDS, Token};
use super::recovery::Fence;
use super::{Error, Identity, Request, Step, command};
use crate::host::Data;
use crate::target::AdminStep;
use crate::target::connect::{Role, connect};
use crate::target::controller;
use crate::target::test_env::{HOSTID, HOSTNQN, Handle, SUBNQN, TestEnv, read as read_data, run};
use crate::wire::cqe::Cqe;
use crate::wire::identify::ControllerType;
use crate::wire::ids::{Cid, Cntlid, HostId, Nqn, Nsid, Qid};
use crate::wire::log::{AsyncEvent, LogId, Notice};
use crate::wire::sgl::Sgl;
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;

fn config(subnqn: &str) -> Config {
    Config {
        host: Identity {
            hostnqn: HOSTNQN.parse().unwrap(),
            hostid: HostId(HOSTID),
        },
        subnqn: subnqn.parse().unwrap(),
        cntlid: Cntlid::DYNAMIC,
        kato: Duration::from_secs(5),
        io_queues: 4,
        events: true,
        command_timeout: Duration::from_secs(10),
    }
}

/// Both ends, without a transport between them.
pub(super) struct Rig {
    pub(super) env: TestEnv,
    pub(super) host: Controller,
    target: Option<controller::Controller<Handle>>,
    /// What the host sent.
    sent: Vec<Sqe>,
    /// Asynchronous Event Requests that the target holds.
    held: Vec<Token>,
}

impl Rig {
    fn new(config: Config) -> Self {
        let env = TestEnv::new();
        Self {
            host: Controller::new(config, env.now),
            env,
            target: None,
            sent: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Until the host waits.
    fn settle(&mut self) -> Result<Option<Event>, Error> {
        while let Some((token, request)) = self.host.poll_command(self.env.now) {
            self.sent.push(request.sqe);
            if token == Token::AsyncEvent {
                let target = self.target.as_mut().unwrap();
                let step = target.command(7, &request.sqe, &mut self.env);
                assert_eq!(step, AdminStep::Held);
                self.held.push(token);
                continue;
            }
            let (cqe, data) = self.answer(&request);
            if let Some(event) = self.host.completed(token, &cqe, &data, self.env.now)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// What the target reports of its own accord.
    fn reported(&mut self) -> Option<Event> {
        let (slot, reply) = self.target.as_mut()?.poll_event(&mut self.env)?;
        assert_eq!(slot, 7);
        let token = self.held.pop()?;
        let cqe = Cqe::new(Cid(0), reply.status).with_result(reply.result);
        let now = self.env.now;
        self.host.completed(token, &cqe, &[], now).unwrap()
    }

    /// The request that is to be sent now.
    pub(super) fn poll(&mut self) -> Option<(Token, u8)> {
        let (token, request) = self.host.poll_command(self.env.now)?;
        Some((token, request.sqe.opcode))
    }

    fn answer(&mut self, request: &Request) -> (Cqe, Vec<u8>) {
        let sqe = match request.data {
            Data::Nothing => request.sqe.with_sgl(Sgl::EMPTY),
            Data::ToHost(length) => request.sqe.with_sgl(Sgl::Transport { length }),
            Data::FromHost(length) => request.sqe.with_sgl(Sgl::InCapsule { offset: 0, length }),
        };
        let answer = |outcome: Result<u64, Status>| match outcome {
            Ok(result) => Cqe::new(Cid(0), Status::SUCCESS).with_result(result),
            Err(status) => Cqe::new(Cid(0), status),
        };
        let Some(target) = &mut self.target else {
            let data = self.host.connect_data();
            return match connect(&mut self.env, &sqe, data.as_bytes()) {
                Ok(connected) => {
                    let Role::Admin(controller) = connected.role else {
                        panic!("not an admin queue")
                    };
                    let cntlid = controller.state().cntlid.0;
                    self.target = Some(controller);
                    (answer(Ok(cntlid.into())), vec![])
                }
                Err(refusal) => {
                    let reply = refusal.reply;
                    let cqe = Cqe::new(Cid(0), reply.status).with_result(reply.result);
                    (cqe, vec![])
                }
            };
        };
        match request.data {
            Data::ToHost(_) => match read_data(&mut self.env, target, &sqe) {
                Ok(data) => (answer(Ok(0)), data),
                Err(status) => (answer(Err(status)), vec![]),
            },
            _ => (answer(run(&mut self.env, target, &sqe)), vec![]),
        }
    }
}

fn answer(rig: &mut Rig, status: Status, result: u64) -> Result<Option<Event>, Error> {
    let cqe = Cqe::new(Cid(0), status).with_result(result);
    rig.host.completed(Token::Step, &cqe, &[], rig.env.now)
}

#[test]
fn a_controller_becomes_ready() {
    let mut rig = Rig::new(config(SUBNQN));
    let Ok(Some(Event::Ready(found))) = rig.settle() else {
        panic!("not ready after {:?}", rig.sent);
    };
    assert_eq!(found.cntlid, Cntlid(1));
    assert_eq!(found.kind, ControllerType::Io);
    assert_eq!(found.inline_data, rig.env.limits.inline_data);
    assert_eq!(found.transfer, rig.env.limits.transfer);
    assert_eq!(found.queue_entries, rig.env.limits.io_queue_entries);
    assert_eq!(found.io_queues, 4);
    // Our target's keep alive timer is traffic based.
    let fence = Fence::of(&found);
    assert_eq!(fence.silence, Some(Duration::from_secs(15)));
    let opcodes: Vec<u8> = rig.sent.iter().map(|sqe| sqe.opcode).collect();
    // Connect, CAP, VS, CC, CSTS; Identify; Set Features, twice.
    assert_eq!(opcodes, [0x7F, 0x7F, 0x7F, 0x7F, 0x7F, 0x06, 0x09, 0x09]);
}

#[test]
fn a_discovery_controller_needs_no_queues() {
    let config = Config {
        kato: Duration::ZERO,
        io_queues: 0,
        events: false,
        ..config(Nqn::DISCOVERY)
    };
    let mut rig = Rig::new(config);
    let Ok(Some(Event::Ready(found))) = rig.settle() else {
        panic!("not ready after {:?}", rig.sent);
    };
    assert_eq!(
        (found.kind, found.io_queues),
        (ControllerType::Discovery, 0)
    );
    assert_eq!(rig.host.poll_timeout(), None, "no keep alive was agreed on");
    assert_eq!(rig.poll(), None, "no events were asked for");
}

#[test]
fn a_discovery_controller_is_known_by_what_it_says_of_itself() {
    // As if it had a name of its own.
    let mut rig = Rig::new(config(Nqn::DISCOVERY));
    let Ok(Some(Event::Ready(found))) = rig.settle() else {
        panic!("not ready after {:?}", rig.sent);
    };
    assert_eq!(
        (found.kind, found.io_queues),
        (ControllerType::Discovery, 0)
    );
    // Discovery Log Page Change notices, bit 31.
    let set = rig.sent.last().unwrap();
    assert_eq!((set.cdw10.get(), set.cdw11.get()), (0x0B, 1 << 31));
}

#[test]
fn fewer_queues_than_wanted_are_taken() {
    let mut rig = Rig::new(Config {
        io_queues: 60,
        ..config(SUBNQN)
    });
    match rig.settle() {
        Ok(Some(Event::Ready(found))) => assert_eq!(found.io_queues, rig.env.limits.io_queues),
        other => panic!("{other:?}"),
    }
}

/// A controller that is ready, and whose Asynchronous Event Request is held.
pub(super) fn live() -> Rig {
    let mut rig = Rig::new(config(SUBNQN));
    assert!(matches!(rig.settle(), Ok(Some(Event::Ready(_)))));
    assert_eq!(rig.settle(), Ok(None));
    assert_eq!(rig.held.len(), 1);
    rig.sent.clear();
    rig
}

#[test]
fn keep_alive_goes_out_in_half_of_the_time() {
    let mut rig = live();
    for _ in 0..3 {
        rig.sent.clear();
        let due = rig.host.poll_timeout().unwrap();
        assert_eq!(due.since(rig.env.now), Duration::from_millis(2500));
        rig.env.advance(2499);
        assert_eq!(rig.settle(), Ok(None));
        assert!(rig.sent.is_empty());
        rig.env.advance(1);
        assert_eq!(rig.settle(), Ok(None));
        assert_eq!(rig.sent.len(), 1);
        assert_eq!(rig.sent[0].opcode, 0x18);
    }
}

#[test]
fn a_keep_alive_without_answer_ends_it() {
    let mut rig = live();
    rig.env.advance(2500);
    assert_eq!(rig.poll(), Some((Token::KeepAlive, 0x18)));
    rig.env.advance(4999);
    assert_eq!(rig.host.handle_timeout(rig.env.now), Ok(()));
    rig.env.advance(1);
    let error = rig.host.handle_timeout(rig.env.now).unwrap_err();
    assert_eq!(error, Error::Timeout(Step::KeepAlive));
    assert_eq!(rig.host.poll_timeout(), None);
    assert_eq!(rig.poll(), None);
}

#[test]
fn an_event_is_told_and_the_next_one_asked_for() {
    let mut rig = live();
    for _ in 0..3 {
        rig.env.catalog.generation += 1;
        let Some(Event::Async(event)) = rig.reported() else {
            panic!("no event");
        };
        assert_eq!(
            event,
            AsyncEvent::notice(Notice::NamespaceAttribute, LogId::ChangedNamespaces)
        );
        assert_eq!((rig.settle(), rig.held.len()), (Ok(None), 1));

        // Read with RAE, the log keeps the event from being told again.
        let read = command::get_log_page(event.lid.code(), Nsid(0), 0, 4096);
        for (read, told) in [(read, false), (command::releasing_events(read), true)] {
            let sqe = read.with_sgl(Sgl::Transport { length: 4096 });
            let target = rig.target.as_mut().unwrap();
            read_data(&mut rig.env, target, &sqe).unwrap();
            rig.env.catalog.generation += 1;
            assert_eq!(rig.reported().is_some(), told, "{read}");
        }
        assert_eq!((rig.settle(), rig.held.len()), (Ok(None), 1));
        // The one that was told last.
        let target = rig.target.as_mut().unwrap();
        let sqe = command::releasing_events(read).with_sgl(Sgl::Transport { length: 4096 });
        read_data(&mut rig.env, target, &sqe).unwrap();
    }
}

#[test]
fn what_the_controller_offers_is_what_is_asked_for() {
    let mut rig = Rig::new(config(SUBNQN));
    rig.settle().unwrap();
    // Attached Namespace Attribute notices, bit 8, and not SMART's bits 7:0, which Linux's
    // target refuses.
    let set = rig.sent.last().unwrap();
    assert_eq!((set.opcode, set.cdw10.get()), (0x09, 0x0B));
    assert_eq!(set.cdw11.get(), 0x100);
    assert_eq!(run(&mut rig.env, rig.target.as_mut().unwrap(), set), Ok(0));
}

#[test]
fn a_controller_without_events_is_as_good() {
    let refused = Status::INVALID_FIELD.with_dnr();
    // It refuses Set Features.
    let mut rig = Rig::new(config(SUBNQN));
    while rig.sent.last().is_none_or(|sqe| sqe.cdw10.get() != 7) {
        let (token, request) = rig.host.poll_command(rig.env.now).unwrap();
        rig.sent.push(request.sqe);
        let (cqe, data) = rig.answer(&request);
        rig.host.completed(token, &cqe, &data, rig.env.now).unwrap();
    }
    assert_eq!(rig.poll(), Some((Token::Step, 0x09)));
    let outcome = answer(&mut rig, refused, 0);
    assert!(matches!(outcome, Ok(Some(Event::Ready(_)))), "{outcome:?}");

    // It refuses Asynchronous Event Request: once is enough.
    assert_eq!(rig.poll(), Some((Token::AsyncEvent, 0x0C)));
    let cqe = Cqe::new(Cid(0), refused);
    let now = rig.env.now;
    let outcome = rig.host.completed(Token::AsyncEvent, &cqe, &[], now);
    assert_eq!((outcome, rig.poll()), (Ok(None), None));
}

/// CVE-2024-27435: with one reserved request, keep alive kept the others from being sent.
#[test]
fn no_request_of_the_machine_waits_for_another() {
    let mut rig = live();
    rig.env.advance(2500);
    rig.host.timed_out(Qid(1), Cid(9), rig.env.now).unwrap();
    assert_eq!(rig.poll(), Some((Token::KeepAlive, 0x18)));
    assert_eq!(rig.poll(), Some((Token::Abort, 0x08)));
    rig.host.shut_down(rig.env.now);
    assert_eq!(rig.poll(), Some((Token::Step, 0x7F)));
    // With the Asynchronous Event Request they are four, and no more whatever is due.
    rig.env.advance(2500);
    rig.host.timed_out(Qid(1), Cid(10), rig.env.now).unwrap();
    assert_eq!(rig.poll(), None);
    assert_eq!(OWN_COMMANDS, 4);
    assert_eq!(CALLER_COMMANDS + OWN_COMMANDS, 31);
}

#[test]
fn a_late_command_is_aborted_and_may_end() {
    let mut rig = live();
    rig.host
        .timed_out(Qid(3), Cid(0x1004), rig.env.now)
        .unwrap();
    rig.host
        .timed_out(Qid(3), Cid(0x1004), rig.env.now)
        .unwrap();
    assert_eq!(rig.settle(), Ok(None));
    assert_eq!(rig.sent.len(), 1, "once is enough");
    // SQID and CID.
    assert_eq!(rig.sent[0].cdw10.get(), 0x1004_0003);
    rig.host.ended(Qid(3), Cid(0x1004));
    rig.env.advance(100_000);
    assert_eq!(rig.host.handle_timeout(rig.env.now), Ok(()));
}

#[test]
fn a_late_command_that_does_not_end_is_the_controller_s_end() {
    // Whether Abort is answered, by "not aborted" here, or not.
    for answered in [true, false] {
        let mut rig = live();
        rig.host.timed_out(Qid(3), Cid(4), rig.env.now).unwrap();
        if answered {
            assert_eq!(rig.settle(), Ok(None));
        } else {
            assert_eq!(rig.poll(), Some((Token::Abort, 0x08)));
        }
        rig.env.advance(2500);
        assert_eq!(rig.settle(), Ok(None));
        rig.env.advance(2499);
        assert_eq!(rig.host.handle_timeout(rig.env.now), Ok(()));
        rig.env.advance(1);
        let error = rig.host.handle_timeout(rig.env.now).unwrap_err();
        assert_eq!(
            error.to_string(),
            "command 4 of queue 3 was neither answered nor aborted in time"
        );
        assert_eq!((rig.host.poll_timeout(), rig.poll()), (None, None));
    }
}

#[test]
fn aborts_go_one_by_one_and_each_command_is_aborted() {
    let mut rig = live();
    for cid in 0..16 {
        rig.host.timed_out(Qid(1), Cid(cid), rig.env.now).unwrap();
    }
    for _ in 0..16 {
        assert_eq!(rig.poll(), Some((Token::Abort, 0x08)));
        assert_eq!(rig.poll(), None, "ACL may be 0, which is one");
        // Abort Command Limit Exceeded changes nothing.
        let cqe = Cqe::new(Cid(0), Status::ABORT_LIMIT_EXCEEDED);
        let now = rig.env.now;
        rig.host.completed(Token::Abort, &cqe, &[], now).unwrap();
    }
    assert_eq!(rig.poll(), None);
    let outcome = rig.host.timed_out(Qid(1), Cid(16), rig.env.now);
    let qid = Qid(1);
    assert_eq!(outcome, Err(Error::Unanswered { qid, cid: Cid(16) }));
}

#[test]
fn a_refused_connect_names_the_parameter() {
    let mut rig = Rig::new(config("nqn.2014-08.org.example:no-such"));
    let error = rig.settle().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the controller refused Connect: Connect Invalid Parameters (1/82h) DNR, \
         because of SUBNQN of the data"
    );

    let mut rig = Rig::new(config(SUBNQN));
    rig.env.catalog.subsystems[1].allowed_hosts = Some(vec![]);
    let error = rig.settle().unwrap_err();
    assert!(
        error.to_string().contains("Connect Invalid Host (1/84h)"),
        "{error}"
    );
}

#[test]
fn authentication_is_not_passed_over() {
    let mut rig = Rig::new(config(SUBNQN));
    rig.host.poll_command(rig.env.now).unwrap();
    assert_eq!(
        answer(&mut rig, Status::SUCCESS, 0x2_0001),
        Err(Error::AuthenticationRequired)
    );
}

/// Up to the first look at CSTS, with CAP.TO of one second.
fn enabled() -> Rig {
    let mut rig = Rig::new(config(SUBNQN));
    for result in [1, 0x0000_0020_0200_007F, 0x0002_0000, 0] {
        rig.host.poll_command(rig.env.now).unwrap();
        assert_eq!(answer(&mut rig, Status::SUCCESS, result), Ok(None));
    }
    rig
}

#[test]
fn a_controller_may_take_its_time_to_be_ready_but_no_more() {
    let mut rig = enabled();
    let began = rig.env.now;
    let mut looks = 0;
    let error = loop {
        rig.host.poll_command(rig.env.now).unwrap();
        looks += 1;
        match answer(&mut rig, Status::SUCCESS, 0) {
            Ok(event) => assert_eq!(event, None),
            Err(error) => break error,
        }
        rig.env.now = rig.host.poll_timeout().unwrap();
    };
    assert_eq!(error, Error::Timeout(Step::Ready));
    let took = rig.env.now.since(began);
    assert!(
        (Duration::from_millis(1000)..Duration::from_millis(1101)).contains(&took),
        "{took:?}"
    );
    assert!((10..30).contains(&looks), "{looks}");
}

#[test]
fn a_controller_that_fails_says_so() {
    let mut rig = enabled();
    rig.host.poll_command(rig.env.now).unwrap();
    assert_eq!(
        answer(&mut rig, Status::SUCCESS, 0b10),
        Err(Error::ControllerFailed)
    );
}

#[test]
fn identify_data_is_held_against_connect() {
    let mut rig = enabled();
    rig.host.poll_command(rig.env.now).unwrap();
    assert_eq!(answer(&mut rig, Status::SUCCESS, 1), Ok(None));
    rig.host.poll_command(rig.env.now).unwrap();
    let cqe = Cqe::new(Cid(0), Status::SUCCESS);
    let mut data = vec![0; 4096];
    data[78] = 2;
    let outcome = rig.host.completed(Token::Step, &cqe, &data, rig.env.now);
    assert!(matches!(outcome, Err(Error::Unusable(_))), "{outcome:?}");

    let mut rig = enabled();
    rig.host.poll_command(rig.env.now).unwrap();
    assert_eq!(answer(&mut rig, Status::SUCCESS, 1), Ok(None));
    rig.host.poll_command(rig.env.now).unwrap();
    let outcome = answer(&mut rig, Status::SUCCESS, 0);
    assert!(matches!(outcome, Err(Error::Unusable(_))), "{outcome:?}");
}

/// CVE-2024-45013, linux 77e40bbce930, 0fa0f99fc84e, 751ef87f: whatever is not answered,
/// bring-up ends, and nothing of it goes on.
#[test]
fn silence_at_any_step_ends_it() {
    let steps = [
        (Step::Connect, "Connect"),
        (Step::Capabilities, "Property Get of CAP"),
        (Step::Version, "Property Get of VS"),
        (Step::Enable, "Property Set of CC.EN"),
        (Step::Ready, "ready"),
        (Step::Identify, "Identify Controller"),
        (Step::Queues, "Set Features, Number of Queues"),
        (
            Step::Events,
            "Set Features, Asynchronous Event Configuration",
        ),
    ];
    for (answered, (step, name)) in steps.into_iter().enumerate() {
        let mut rig = Rig::new(config(SUBNQN));
        for _ in 0..answered {
            let (token, request) = rig.host.poll_command(rig.env.now).unwrap();
            let (cqe, data) = rig.answer(&request);
            let outcome = rig.host.completed(token, &cqe, &data, rig.env.now);
            assert_eq!(outcome, Ok(None));
        }
        assert!(rig.poll().is_some());
        assert_eq!(rig.poll(), None, "one at a time");
        let began = rig.env.now;
        rig.env.now = rig.host.poll_timeout().unwrap();
        assert_eq!(rig.env.now.since(began), Duration::from_secs(10));
        let error = rig.host.handle_timeout(rig.env.now).unwrap_err();
        assert_eq!(error, Error::Timeout(step));
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!((rig.host.poll_timeout(), rig.poll()), (None, None));
        // Nor does it when the answer comes after all, or when it is to be shut down.
        let late = Cqe::new(Cid(0), Status::SUCCESS);
        let outcome = rig.host.completed(Token::Step, &late, &[], rig.env.now);
        assert_eq!(outcome, Ok(None));
        rig.host.shut_down(rig.env.now);
        assert_eq!((rig.host.poll_timeout(), rig.poll()), (None, None));
    }
}

#[test]
fn refusal_at_any_step_ends_it() {
    for answered in 0..7 {
        let mut rig = Rig::new(config(SUBNQN));
        for _ in 0..answered {
            let (token, request) = rig.host.poll_command(rig.env.now).unwrap();
            let (cqe, data) = rig.answer(&request);
            rig.host.completed(token, &cqe, &data, rig.env.now).unwrap();
        }
        assert!(rig.poll().is_some());
        let outcome = answer(&mut rig, Status::INTERNAL_ERROR, 0);
        assert!(matches!(outcome, Err(Error::Refused { .. })), "{outcome:?}");
        assert_eq!((rig.host.poll_timeout(), rig.poll()), (None, None));
    }
}

#[test]
fn a_shutdown_waits_for_the_step_that_is_under_way() {
    let mut rig = Rig::new(config(SUBNQN));
    assert_eq!(rig.poll(), Some((Token::Step, 0x7F)));
    rig.host.shut_down(rig.env.now);
    assert_eq!(rig.poll(), None);
    assert_eq!(answer(&mut rig, Status::SUCCESS, 1), Ok(None));
    // Property Set of CC, and then nothing more.
    let (token, request) = rig.host.poll_command(rig.env.now).unwrap();
    assert_eq!((token, request.sqe.nsid.get()), (Token::Step, 0));
    assert_eq!(
        answer(&mut rig, Status::SUCCESS, 0),
        Ok(Some(Event::ShutDown))
    );
    assert_eq!((rig.host.poll_timeout(), rig.poll()), (None, None));
}

#[test]
fn a_shutdown_is_told() {
    let mut rig = live();
    rig.host.shut_down(rig.env.now);
    assert_eq!(rig.settle(), Ok(Some(Event::ShutDown)));
    // CC with SHN 01b.
    assert_eq!(rig.sent[0].as_property_set().value.get(), 0x0046_4001);
    assert_eq!(rig.host.poll_timeout(), None);
}
