//! Hosts that break the rules, over the fabric in memory: each is answered as it
//! should be, nothing of it is left, and other queues do not notice.
use std::time::Duration;

use nvmf_core::host::queue::Connect;
use nvmf_core::rdma::Remote;
use nvmf_core::wire::cm::{CmRej, CmStatus};
use nvmf_core::wire::ids::{Cntlid, Nsid, Qid};
use nvmf_core::wire::sqe::IoOpcode;
use nvmf_core::wire::status::Status;
use nvmf_rdma::Cm;
use nvmf_rdma::cm::{Event, PrivateData, Setup, Terms};
use nvmf_rdma::sim::{Kind, LIMITS, Manager, Nic, Qp};
use nvmf_rdma::target::Receives;
use nvmf_rdma::verbs::{Chain, Direction, Error, Move, Outcome, Send, Verbs};
use nvmf_testing::association::identity;
use nvmf_testing::ends::{Ends, Happened, Payload, Way};
use nvmf_testing::over_rdma::{Choices, LISTENER, RdmaEnds};
use nvmf_testing::scenarios::{self, IO, is_true, session};
use nvmf_testing::target::Device;
use zerocopy::IntoBytes;

const CHOICES: [Receives; 2] = [Receives::Shared, Receives::PerConnection];

fn ends(receives: Receives) -> RdmaEnds {
    RdmaEnds::new(Choices {
        receives,
        ..Choices::default()
    })
}

/// A host that is made of verbs.
struct Raw {
    nic: Nic,
    manager: Manager,
    qp: Qp,
}

impl Raw {
    fn connect(ends: &mut RdmaEnds, private_data: &[u8], reads: u8) -> Self {
        let (mut nic, mut manager) = ends.fabric.node(LIMITS);
        let setup = Setup {
            tag: 0,
            sends: 64,
            receives: 64,
        };
        let terms = Terms {
            initiator_depth: 0,
            responder_resources: reads,
            private_data: PrivateData::new(private_data),
        };
        let qp = manager.connect(&mut nic, LISTENER, setup, terms).unwrap();
        ends.flow();
        Self { nic, manager, qp }
    }

    #[track_caller]
    fn is_rejected(&mut self, ends: &RdmaEnds, status: CmStatus) {
        let Some(Event::Rejected { private_data, .. }) = self.event(ends) else {
            panic!("{status} is not rejected");
        };
        let rej = CmRej::parse(private_data.bytes()).expect("says why");
        assert_eq!(rej.sts(), status);
    }

    fn event(&mut self, ends: &RdmaEnds) -> Option<Event<nvmf_rdma::sim::Request, Qp>> {
        self.manager.poll(ends.now())
    }

    /// It is accepted.
    fn accepted(ends: &mut RdmaEnds, private_data: &[u8]) -> Self {
        let mut raw = Self::connect(ends, private_data, 16);
        let event = raw.event(ends);
        assert!(
            matches!(event, Some(Event::Established { .. })),
            "{event:?}"
        );
        raw
    }

    fn post(&mut self, chain: Chain<nvmf_rdma::sim::Buffer>) -> Result<(), Error> {
        let posted = self.nic.post(self.qp, chain);
        posted.map_err(|(_, error)| error)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.post(Chain {
            id: 0,
            signalled: true,
            buffer: None,
            first: None,
            send: Some(Send::new(bytes)),
        })
        .unwrap();
    }

    /// The target ended the connection.
    fn is_over(&mut self, ends: &mut RdmaEnds) {
        ends.flow();
        let event = self.event(ends);
        assert!(
            matches!(event, Some(Event::Disconnected { .. })),
            "{event:?}"
        );
    }

    fn leave(mut self, ends: &mut RdmaEnds) {
        self.manager.disconnect(&mut self.nic, self.qp);
        while self.nic.poll(ends.now()).is_some() {}
        self.manager.destroy(&mut self.nic, self.qp);
    }
}

/// RECFMT, QID, HRQSIZE, HSQSIZE.
fn req(recfmt: u8, qid: u16, hrqsize: u8, hsqsize: u16) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0] = recfmt;
    bytes[2..4].copy_from_slice(&qid.to_le_bytes());
    bytes[4] = hrqsize;
    bytes[6..8].copy_from_slice(&hsqsize.to_le_bytes());
    bytes
}

/// Others are served, and when all are gone nothing is left.
fn others_are_served(mut ends: RdmaEnds) {
    let outcome = session(&mut ends);
    assert!(
        outcome.is_whole() && outcome.ended.is_empty(),
        "{outcome:?}"
    );
    is_true(&mut ends, &outcome, "others");
}

#[test]
fn private_data_that_is_wrong_is_rejected_with_its_status() {
    use CmStatus as S;
    let good = req(0, 0, 32, 31);
    let cases: [(&[u8], u8, S); 9] = [
        (&good[..31], 16, S::InvalidLength),
        (&[], 16, S::InvalidLength),
        (&req(1, 0, 32, 31), 16, S::InvalidRecfmt),
        (&req(0, 5, 32, 31), 16, S::InvalidQid),
        (&req(0, 0xFFFF, 32, 31), 16, S::InvalidQid),
        (&req(0, 0, 32, 32), 16, S::InvalidHsqsize),
        (&req(0, 1, 32, 0xFFFF), 16, S::InvalidHsqsize),
        (&req(0, 1, 0, 31), 16, S::InvalidHrqsize),
        (&good, 0, S::InvalidIrd),
    ];
    let mut ends = ends(Receives::Shared);
    for (private_data, reads, status) in cases {
        let mut raw = Raw::connect(&mut ends, private_data, reads);
        raw.is_rejected(&ends, status);
        raw.leave(&mut ends);
        assert_eq!(ends.worker.connections(), 0);
    }
    others_are_served(ends);
}

/// Without READ on either side nothing can be fetched, and so no queue connected.
#[test]
fn a_device_that_reads_nothing_serves_nobody() {
    let mut ends = RdmaEnds::new(Choices {
        reads: 0,
        ..Choices::default()
    });
    for (answers, status) in [(16, CmStatus::NoResources), (0, CmStatus::InvalidIrd)] {
        let mut raw = Raw::connect(&mut ends, &req(0, 0, 32, 31), answers);
        raw.is_rejected(&ends, status);
        raw.leave(&mut ends);
    }
    assert_eq!(ends.worker.connections(), 0);
}

#[test]
fn without_receives_for_it_a_connection_is_rejected() {
    let mut ends = RdmaEnds::new(Choices {
        receives: Receives::PerConnection,
        count: 40,
        ..Choices::default()
    });
    let first = Raw::accepted(&mut ends, &req(0, 0, 32, 31));
    let mut second = Raw::connect(&mut ends, &req(0, 0, 32, 31), 16);
    // There are 8 receives left.
    second.is_rejected(&ends, CmStatus::NoResources);
    second.leave(&mut ends);
    // They are there again when the first is gone.
    first.leave(&mut ends);
    ends.flow();
    let third = Raw::accepted(&mut ends, &req(0, 0, 32, 31));
    third.leave(&mut ends);
    ends.flow();
    assert_eq!(ends.worker.connections(), 0);
}

#[test]
fn messages_that_are_no_commands_end_the_connection() {
    for receives in CHOICES {
        for len in [0, 1, 16, 63] {
            let mut ends = ends(receives);
            let mut raw = Raw::accepted(&mut ends, &req(0, 0, 32, 31));
            raw.send(&[0xFF; 63][..len]);
            raw.is_over(&mut ends);
            raw.leave(&mut ends);
            others_are_served(ends);
        }
    }
}

#[test]
fn a_message_longer_than_its_receive_ends_the_connection() {
    for receives in CHOICES {
        let mut ends = ends(receives);
        let mut raw = Raw::accepted(&mut ends, &req(0, 0, 32, 31));
        let access = nvmf_rdma::verbs::Access::LOCAL;
        let mut region = raw.nic.register(vec![0; 8192], access).unwrap();
        let buffer = raw.nic.carve(&mut region, 8192);
        let mut send = Send::new(&[0; 64]);
        send.data = 8192;
        raw.post(Chain {
            id: 0,
            signalled: true,
            buffer,
            first: None,
            send: Some(send),
        })
        .unwrap();
        raw.is_over(&mut ends);
        raw.leave(&mut ends);
        others_are_served(ends);
    }
}

#[test]
fn a_target_lends_nothing() {
    for direction in [Direction::Read, Direction::Write] {
        let mut ends = ends(Receives::Shared);
        let mut raw = Raw::accepted(&mut ends, &req(0, 0, 32, 31));
        let access = nvmf_rdma::verbs::Access::LOCAL;
        let mut region = raw.nic.register(vec![0; 512], access).unwrap();
        let buffer = raw.nic.carve(&mut region, 512);
        let posted = raw.post(Chain {
            id: 0,
            signalled: true,
            buffer,
            first: Some(Move {
                direction,
                remote: Remote {
                    address: 1 << 40,
                    key: 0x102,
                },
                offset: 0,
                len: 512,
            }),
            send: None,
        });
        posted.unwrap();
        ends.flow();
        // A READ does not even leave: nothing was agreed on.
        let outcome = raw.nic.poll(ends.now()).map(|it| it.outcome);
        let expected = (direction == Direction::Write).then_some(Outcome::RemoteAccess);
        assert_eq!(outcome, expected);
        raw.leave(&mut ends);
        ends.flow();
        others_are_served(ends);
    }
}

#[test]
fn more_commands_than_credits_end_the_connection() {
    for receives in CHOICES {
        let mut ends = ends(receives);
        // Connect waits for a buffer, and nothing else is begun before it.
        ends.target().transfer_buffers = 0;
        let mut raw = Raw::accepted(&mut ends, &req(0, 0, 2, 1));
        let mut connect = [0; 64];
        connect[..5].copy_from_slice(&[0x7F, 0x40, 0, 0, 0x01]);
        connect[32..34].copy_from_slice(&[0, 4]);
        connect[39] = 0x40;
        raw.send(&connect);
        raw.send(&connect);
        ends.flow();
        assert!(raw.event(&ends).is_none(), "as many as it may");
        raw.send(&connect);
        raw.is_over(&mut ends);
        raw.leave(&mut ends);
        ends.flow();
        ends.target().transfer_buffers = usize::MAX;
        others_are_served(ends);
    }
}

/// What happens to a command capsule on its way.
type Change = fn(&mut Vec<u8>);

/// A session whose write command, which has a keyed descriptor, is changed on its way.
fn changed(change: Change) -> (RdmaEnds, scenarios::Outcome) {
    let mut ends = ends(Receives::Shared);
    ends.fabric.set_tap(Box::new(move |passing| {
        const WRITE: u8 = 0x01;
        let capsule = passing.kind == Kind::Send && passing.bytes.len() == 64;
        if capsule && passing.bytes[0] == WRITE {
            change(passing.bytes);
        }
    }));
    let outcome = session(&mut ends);
    (ends, outcome)
}

#[test]
fn descriptors_that_lead_nowhere() {
    // Another key, another address, more than there is; each ends that queue alone.
    let changes: [Change; 3] = [
        |bytes| bytes[35] ^= 1,
        |bytes| bytes[25] ^= 1,
        |bytes| bytes[29] ^= 0x80,
    ];
    for change in changes {
        let (mut ends, outcome) = changed(change);
        assert!(!outcome.written);
        let over: Vec<_> = outcome.ended.iter().map(|(link, _)| *link).collect();
        assert_eq!(over, [IO], "{outcome:?}");
        assert!(ends.is_open(scenarios::ADMIN), "the others do not notice");
        is_true(&mut ends, &outcome, "a key that leads nowhere");
    }
}

#[test]
fn descriptors_that_make_no_sense_fail_their_command() {
    let offset = Status::SGL_OFFSET_INVALID.with_dnr();
    let length = Status::SGL_DATA_LENGTH_INVALID.with_dnr();
    let kind = Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr();
    // Data in the capsule that is not there, or elsewhere; too short and too long;
    // kinds of other transports.
    let changes: [(Change, Status); 6] = [
        (
            |bytes| bytes[24..40].copy_from_slice(&in_capsule(0, 4)),
            offset,
        ),
        (
            |bytes| bytes[24..40].copy_from_slice(&in_capsule(64, 4)),
            offset,
        ),
        (|bytes| bytes[33] = 2, length),
        (|bytes| bytes[34] = 1, length),
        (|bytes| bytes[39] = 0x5A, kind),
        (|bytes| bytes[39] = 0x00, kind),
    ];
    for (change, status) in changes {
        let (mut ends, outcome) = changed(change);
        assert_eq!(outcome.failed, [status.to_string()]);
        assert!(outcome.ended.is_empty(), "{outcome:?}");
        is_true(&mut ends, &outcome, "a descriptor that makes no sense");
    }
}

/// A descriptor of 1024 bytes in the capsule.
fn in_capsule(offset: u8, kib: u8) -> [u8; 16] {
    let mut dptr = [0; 16];
    dptr[0] = offset;
    dptr[9] = kib;
    dptr[15] = 0x01;
    dptr
}

/// Any byte of any message is wrong, either way: nothing hangs, and nothing is left.
#[test]
fn any_byte_of_a_session_may_be_wrong() {
    let mut spared = 0;
    for at in 0.. {
        let mut ends = ends(Receives::Shared);
        let (mut before, hit) = (0, std::rc::Rc::new(std::cell::Cell::new(false)));
        let seen = hit.clone();
        ends.fabric.set_tap(Box::new(move |passing| {
            let len = passing.bytes.len();
            if passing.kind == Kind::Send && (before..before + len).contains(&at) {
                passing.bytes[at - before] ^= 1 << (at % 8);
                seen.set(true);
            }
            if passing.kind == Kind::Send {
                before += len;
            }
        }));
        let outcome = session(&mut ends);
        if !hit.get() {
            assert!(outcome.is_whole() && at > 300, "{at}: {outcome:?}");
            break;
        }
        spared += usize::from(outcome.is_whole());
        for link in 0..ends.links() {
            ends.cut(link);
        }
        ends.flow();
        ends.assert_clean();
    }
    assert!(spared > 0, "of what is reserved nothing is minded");
}

/// A host that leaves, or is cut off, at each moment of a session.
#[test]
fn disconnected_in_every_state() {
    for receives in CHOICES {
        for cut in [false, true] {
            for moment in 0..60 {
                let mut ends = ends(receives);
                let mut links = Vec::new();
                let wanted = |qid| nvmf_testing::ends::Wanted {
                    qid,
                    cntlid: Cntlid(1),
                    entries: 8,
                };
                for qid in [Qid::ADMIN, Qid(1)] {
                    links.push(ends.connect(&wanted(qid), Duration::from_micros(100)));
                }
                for link in links {
                    // What comes before Connect is refused; that is work enough.
                    ends.configure(link, 7, 4096);
                    for tag in 0..4 {
                        let write =
                            nvmf_core::host::command::blocks(IoOpcode::Write, Nsid(1), 0, 2);
                        let payload = Payload::Write(vec![7; 1024]);
                        assert!(ends.submit(link, &write, payload, tag));
                    }
                }
                ends.run(Duration::from_micros(10 * moment));
                for link in 0..ends.links() {
                    if cut {
                        ends.cut(link);
                    } else {
                        ends.close(link);
                    }
                }
                ends.flow();
                ends.assert_clean();
            }
        }
    }
}

#[test]
fn a_response_to_nobody_ends_the_hosts_queue() {
    let mut ends = ends(Receives::Shared);
    let mut count = 0;
    ends.fabric.set_tap(Box::new(move |passing| {
        // The fourth response is the write's.
        if passing.kind == Kind::Send && passing.bytes.len() == 16 {
            count += 1;
            if count == 4 {
                passing.bytes[12] ^= 1;
            }
        }
    }));
    let outcome = session(&mut ends);
    assert!(!outcome.written);
    let [(IO, Happened::Broken(why))] = &outcome.ended[..] else {
        panic!("{outcome:?}");
    };
    assert!(why.contains("not under way"), "{why}");
    is_true(&mut ends, &outcome, "a response to nobody");
}

#[test]
fn receives_that_are_short_for_a_while_lose_nothing() {
    // Fewer receives than commands: SENDs are tried again.
    let mut ends = RdmaEnds::new(Choices {
        count: 2,
        ..Choices::default()
    });
    ends.fabric.set_rnr(1000, Duration::from_micros(10));
    let outcome = session(&mut ends);
    assert!(outcome.is_whole(), "{outcome:?}");
    ends.configure(IO, 7, 4096);
    for tag in 0..7 {
        let blocks = nvmf_core::host::command::blocks(IoOpcode::Write, Nsid(1), 8 * tag, 2);
        let payload = Payload::Write(vec![9; 1024]);
        assert!(ends.submit(IO, &blocks, payload, tag));
    }
    ends.flow();
    let done = ends.seen_of(IO);
    assert_eq!(done.len(), 7);
    let not_ready = ends.fabric.statistics(ends.host_nic()).not_ready;
    assert!(not_ready > 0, "they were too few");
    assert_eq!(ends.arrived(IO, Way::ToTarget), 10);
    is_true(&mut ends, &outcome, "receives that were short");
}

/// A write of one block that a device has, and keeps.
fn held_write(ends: &mut RdmaEnds) {
    ends.target().device = Device::Delayed;
    let write = nvmf_core::host::command::blocks(IoOpcode::Write, Nsid(1), 0, 1);
    assert!(ends.submit(IO, &write, Payload::Write(vec![7; 512]), 1));
    ends.flow();
    assert_eq!(ends.target().pending(), 1);
}

#[test]
fn a_host_that_ends_a_connection_is_not_answered_before_devices_are_done() {
    let mut ends = ends(Receives::Shared);
    session(&mut ends);
    held_write(&mut ends);
    let (host, target) = ends.queue_pairs(IO);
    let sent = ends.fabric.arrived(target.unwrap());
    ends.close(IO);
    ends.flow();
    assert!(
        !ends.fabric.has_peer_ended(host),
        "a device may still write"
    );
    assert!(!ends.is_open_at_target(IO) && !ends.is_drained(IO));
    assert!(ends.complete(0, None));
    ends.flow();
    assert!(ends.fabric.has_peer_ended(host) && ends.is_drained(IO));
    assert_eq!(ends.fabric.arrived(target.unwrap()), sent, "no response");
    ends.target().device = Device::Immediate;
    ends.close(scenarios::ADMIN);
    ends.flow();
    ends.assert_clean();
}

#[test]
fn a_target_that_ends_a_connection_says_so_when_devices_are_done() {
    let mut ends = ends(Receives::Shared);
    session(&mut ends);
    held_write(&mut ends);
    // A short capsule, behind a message of which nothing is left.
    ends.fabric.set_tap(Box::new(|passing| {
        if passing.kind == Kind::Send {
            passing.bytes.truncate(63);
        }
    }));
    let read = nvmf_core::host::command::blocks(IoOpcode::Read, Nsid(1), 0, 1);
    assert!(ends.submit(IO, &read, Payload::Read(512), 2));
    ends.flow();
    assert!(!ends.is_open_at_target(IO), "it broke the transport");
    assert!(ends.is_open(IO), "its host hears nothing yet");
    assert!(ends.complete(0, None));
    ends.flow();
    assert!(!ends.is_open(IO) && ends.is_drained(IO));
    ends.target().device = Device::Immediate;
    ends.fabric.set_tap(Box::new(|_| {}));
    ends.close(scenarios::ADMIN);
    ends.flow();
    ends.assert_clean();
}

#[test]
fn a_host_that_receives_nothing_does_not_keep_a_connection_from_ending() {
    let mut ends = ends(Receives::Shared);
    ends.fabric.set_rnr(u32::MAX, Duration::from_millis(1));
    // It has no receives, so the refusal of its commands waits.
    let mut raw = Raw::accepted(&mut ends, &req(0, 0, 32, 31));
    raw.send(&[0; 64]);
    ends.run(nvmf_testing::rig::CONNECT_TIMEOUT);
    assert_eq!(ends.worker.connections(), 1);
    assert!(raw.event(&ends).is_none(), "there is something to send");
    ends.run(Duration::from_secs(5));
    let event = raw.event(&ends);
    assert!(
        matches!(event, Some(Event::Disconnected { .. })),
        "{event:?}"
    );
    assert_eq!(ends.worker.connections(), 0);
    raw.leave(&mut ends);
    others_are_served(ends);
}

/// A session, whose host then has seven writes in capsules at devices that keep them.
fn greedy(count: u32, buffers: usize) -> RdmaEnds {
    let mut ends = RdmaEnds::new(Choices {
        count,
        ..Choices::default()
    });
    assert!(session(&mut ends).is_whole());
    ends.configure(IO, 7, 4096);
    ends.target().device = Device::Delayed;
    ends.target().transfer_buffers = buffers;
    for tag in 0..7 {
        let write = nvmf_core::host::command::blocks(IoOpcode::Write, Nsid(1), 8 + 2 * tag, 2);
        let payload = Payload::Write(vec![tag as u8 + 1; 1024]);
        assert!(ends.submit(IO, &write, payload, tag));
    }
    ends.flow();
    ends
}

#[test]
fn a_host_with_many_writes_in_capsules_does_not_hold_all_receives() {
    for count in [2, 3, 8] {
        let mut ends = greedy(count, usize::MAX);
        assert_eq!(ends.target().pending(), 7, "none is refused");
        // Of n receives it holds half; the rest of its data was copied.
        let copies = ends.target().buffers_taken();
        assert_eq!(copies, 7 - (count / 2) as usize);
        ends.target().device = Device::Immediate;
        let not_ready = |ends: &RdmaEnds| ends.fabric.statistics(ends.host_nic()).not_ready;
        let before = not_ready(&ends);
        assert!(session(&mut ends).is_whole(), "others are served");
        assert_eq!(not_ready(&ends), before, "and nobody of them waits");
        while ends.complete(0, None) {}
        ends.flow();
        let stored = ends.target().memory(1)[8 * 512..][..7 * 1024].to_vec();
        for (tag, block) in stored.chunks(1024).enumerate() {
            assert_eq!(block, [tag as u8 + 1; 1024], "{count} receives, {tag}");
        }
        while ends.poll_seen().is_some() {}
        others_are_served(ends);
    }
}

#[test]
fn writes_that_nobody_has_room_for_are_to_be_tried_again() {
    let mut ends = greedy(4, 1);
    assert_eq!(ends.target().pending(), 3, "two receives and a buffer");
    let mut refused = 0;
    while let Some(seen) = ends.poll_seen() {
        let Happened::Completed { cqe, .. } = seen.happened else {
            panic!("{seen:?}");
        };
        assert_eq!(cqe.status(), Status::TRANSIENT_TRANSPORT_ERROR);
        refused += 1;
    }
    assert_eq!(refused, 4);
    while ends.complete(0, None) {}
    let target = ends.target();
    (target.device, target.transfer_buffers) = (Device::Immediate, usize::MAX);
    ends.flow();
    while ends.poll_seen().is_some() {}
    others_are_served(ends);
}

/// Hosts whose first messages break off, one after the other.
fn broken_messages(ends: &mut RdmaEnds, count: u32) {
    for _ in 0..count {
        let mut raw = Raw::accepted(ends, &req(0, 0, 32, 31));
        ends.fabric.break_off(raw.qp);
        raw.send(&[0; 64]);
        raw.is_over(ends);
        raw.leave(ends);
        ends.flow();
    }
}

#[test]
fn a_shared_receive_that_a_broken_message_took_comes_back() {
    let mut ends = RdmaEnds::new(Choices {
        count: 2,
        ..Choices::default()
    });
    ends.fabric.set_rnr(3, Duration::from_micros(10));
    // Nobody else is connected, so each time all are posted anew.
    broken_messages(&mut ends, 5);
    assert_eq!(ends.nic.clone().lost_receives(), 0);
    others_are_served(ends);
}

#[test]
fn before_too_many_receives_are_lost_connections_end_and_come_again() {
    let mut ends = RdmaEnds::new(Choices {
        count: 16,
        ..Choices::default()
    });
    assert!(session(&mut ends).is_whole());
    held_write(&mut ends);
    broken_messages(&mut ends, 3);
    assert!(ends.is_open_at_target(IO), "three of sixteen");
    assert_eq!(ends.nic.clone().lost_receives(), 3);
    broken_messages(&mut ends, 1);
    assert!(!ends.is_open_at_target(IO) && !ends.is_open_at_target(scenarios::ADMIN));
    assert_eq!(ends.nic.clone().lost_receives(), 4, "a device is not done");
    let mut raw = Raw::connect(&mut ends, &req(0, 0, 32, 31), 16);
    assert!(
        matches!(raw.event(&ends), Some(Event::Rejected { .. })),
        "nobody comes before the receives do"
    );
    raw.leave(&mut ends);
    assert!(ends.complete(0, None));
    ends.target().device = Device::Immediate;
    ends.flow();
    assert_eq!(ends.nic.clone().lost_receives(), 0);
    while ends.poll_seen().is_some() {}
    others_are_served(ends);
}

#[test]
fn a_queue_that_is_connected_cannot_be_connected_again() {
    let mut ends = ends(Receives::Shared);
    let outcome = session(&mut ends);
    let wanted = nvmf_testing::ends::Wanted {
        qid: Qid(1),
        cntlid: Cntlid(1),
        entries: 8,
    };
    let again = ends.connect(&wanted, Duration::ZERO);
    let connect = Connect {
        qid: wanted.qid,
        entries: 8,
        kato_ms: 0,
        sq_flow_control: true,
    };
    let subnqn = nvmf_testing::bytes::SUBNQN.parse().expect("is a name");
    let data = Connect::data(&identity(), &subnqn, wanted.cntlid);
    let payload = Payload::Write(data.as_bytes().to_vec());
    assert!(ends.submit(again, &connect.request().sqe, payload, 1));
    ends.flow();
    let statuses: Vec<_> = std::iter::from_fn(|| ends.poll_seen())
        .filter_map(|seen| match seen.happened {
            Happened::Completed { cqe, .. } if seen.link == again => Some(cqe.status()),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, [Status::COMMAND_SEQUENCE_ERROR]);
    assert!(
        ends.is_open(IO),
        "the one that is connected does not notice"
    );
    is_true(&mut ends, &outcome, "a queue connected twice");
}
