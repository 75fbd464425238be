//! The host's machine against the target's, in one thread, in virtual time.
use core::time::Duration;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use zerocopy::IntoBytes;

use super::controller::{Config, Controller, Event};
use super::recovery::Fence;
use super::{Error, Identity, Request, Step};
use crate::target::connect::{Role, connect};
use crate::target::controller;
use crate::target::test_env::{HOSTID, HOSTNQN, Handle, SUBNQN, TestEnv, read as read_data, run};
use crate::tcp::host::Data;
use crate::wire::cqe::Cqe;
use crate::wire::identify::ControllerType;
use crate::wire::ids::{Cid, Cntlid, HostId, Nqn};
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
        command_timeout: Duration::from_secs(10),
    }
}

/// Both ends, without a transport between them.
struct Rig {
    env: TestEnv,
    host: Controller,
    target: Option<controller::Controller<Handle>>,
    /// What the host sent.
    sent: Vec<Sqe>,
}

impl Rig {
    fn new(config: Config) -> Self {
        let env = TestEnv::new();
        Self {
            host: Controller::new(config, env.now),
            env,
            target: None,
            sent: Vec::new(),
        }
    }

    /// Until the host waits.
    fn settle(&mut self) -> Result<Option<Event>, Error> {
        while let Some(request) = self.host.poll_command(self.env.now) {
            self.sent.push(request.sqe);
            let (cqe, data) = self.answer(&request);
            if let Some(event) = self.host.completed(&cqe, &data, self.env.now)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
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
    rig.host.completed(&cqe, &[], rig.env.now)
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
    // Connect, CAP, VS, CC, CSTS; Identify; Set Features.
    assert_eq!(opcodes, [0x7F, 0x7F, 0x7F, 0x7F, 0x7F, 0x06, 0x09]);
}

#[test]
fn a_discovery_controller_needs_no_queues() {
    let config = Config {
        kato: Duration::ZERO,
        io_queues: 0,
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

#[test]
fn keep_alive_goes_out_in_half_of_the_time() {
    let mut rig = Rig::new(config(SUBNQN));
    rig.settle().unwrap();
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
    let mut rig = Rig::new(config(SUBNQN));
    rig.settle().unwrap();
    rig.env.advance(2500);
    assert!(rig.host.poll_command(rig.env.now).is_some());
    rig.env.advance(4999);
    assert_eq!(rig.host.handle_timeout(rig.env.now), Ok(()));
    rig.env.advance(1);
    let error = rig.host.handle_timeout(rig.env.now).unwrap_err();
    assert_eq!(error, Error::Timeout(Step::KeepAlive));
    assert_eq!(rig.host.poll_timeout(), None);
    assert_eq!(rig.host.poll_command(rig.env.now), None);
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
    let outcome = rig.host.completed(&cqe, &data, rig.env.now);
    assert!(matches!(outcome, Err(Error::Unusable(_))), "{outcome:?}");

    let mut rig = enabled();
    rig.host.poll_command(rig.env.now).unwrap();
    assert_eq!(answer(&mut rig, Status::SUCCESS, 1), Ok(None));
    rig.host.poll_command(rig.env.now).unwrap();
    let outcome = answer(&mut rig, Status::SUCCESS, 0);
    assert!(matches!(outcome, Err(Error::Unusable(_))), "{outcome:?}");
}

#[test]
fn silence_at_any_step_ends_it() {
    let mut rig = Rig::new(config(SUBNQN));
    rig.host.poll_command(rig.env.now).unwrap();
    assert_eq!(rig.host.poll_command(rig.env.now), None, "one at a time");
    rig.env.now = rig.host.poll_timeout().unwrap();
    let error = rig.host.handle_timeout(rig.env.now).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the controller did not answer Connect in time"
    );
}

#[test]
fn a_shutdown_waits_for_what_is_under_way() {
    let mut rig = Rig::new(config(SUBNQN));
    rig.settle().unwrap();
    rig.env.advance(2500);
    assert_eq!(rig.host.poll_command(rig.env.now).unwrap().sqe.opcode, 0x18);
    rig.host.shut_down(rig.env.now);
    assert_eq!(rig.host.poll_command(rig.env.now), None);
    assert_eq!(answer(&mut rig, Status::SUCCESS, 0), Ok(None));
    assert_eq!(rig.settle(), Ok(Some(Event::ShutDown)));
}

#[test]
fn a_shutdown_is_told() {
    let mut rig = Rig::new(config(SUBNQN));
    rig.settle().unwrap();
    rig.sent.clear();
    rig.host.shut_down(rig.env.now);
    assert_eq!(rig.settle(), Ok(Some(Event::ShutDown)));
    // CC with SHN 01b.
    assert_eq!(rig.sent[0].as_property_set().value.get(), 0x0046_4001);
    assert_eq!(rig.host.poll_timeout(), None);
}
