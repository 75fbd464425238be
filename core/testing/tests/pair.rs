//! Both ends in one thread: the host's machines against the target's, byte by
//! byte, in virtual time.
use std::time::Duration;

use nvmf_core::host::Identity;
use nvmf_core::host::controller::{self, Capabilities, Controller, Token};
use nvmf_core::tcp::host::{Config, Data, Event, HostQueue};
use nvmf_core::tcp::target;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::Cntlid;
use nvmf_core::wire::ids::HostId;
use nvmf_core::wire::sqe::Sqe;
use nvmf_core::{DataBuffers, Place, SlotId};
use nvmf_testing::bytes::{HOSTNQN, SUBNQN};
use nvmf_testing::crc::{continue_crc32c, crc32c};
use nvmf_testing::rig::{Delivery, Rig};
use nvmf_testing::target::Heap;
use zerocopy::IntoBytes;

/// The host's end of a connection, and its commands' buffers.
struct Queue {
    at: usize,
    machine: HostQueue<Heap>,
    buffers: Buffers,
    how: How,
}

/// How bytes travel.
#[derive(Clone, Copy, Debug)]
struct How {
    digests: bool,
    to_target: Delivery,
    /// Bytes at a time.
    to_host: usize,
}

#[derive(Default)]
struct Buffers(Vec<Vec<u8>>);

impl DataBuffers for Buffers {
    fn reserve(&mut self, _: SlotId, _: u32) -> bool {
        unreachable!("a host's buffers are there before the command")
    }

    fn place(&mut self, place: Place) -> &mut [u8] {
        &mut self.0[place.slot.index()][place.offset as usize..][..place.len as usize]
    }
}

impl Queue {
    fn new(rig: &mut Rig<Heap>, how: How) -> Self {
        let config = Config {
            header_digest: how.digests,
            data_digest: how.digests,
            crc32c: continue_crc32c,
            ..Config::default()
        };
        let at = rig.accept(&target::Config {
            crc32c: continue_crc32c,
            max_c2hdata: 4096,
            ..target::Config::default()
        });
        let mut queue = Self {
            at,
            machine: HostQueue::new(&config, rig.target.now),
            buffers: Buffers::default(),
            how,
        };
        queue.machine.configure(31, 8192);
        queue
    }

    fn open(rig: &mut Rig<Heap>, how: How) -> Self {
        let mut queue = Self::new(rig, how);
        assert_eq!(queue.pump(rig), [Event::Ready]);
        assert_eq!(queue.machine.digests().data, how.digests);
        queue
    }

    fn submit(&mut self, sqe: &Sqe, data: Data, bytes: Vec<u8>) {
        let slot = self.machine.submit(sqe, data).expect("a free slot");
        let index = slot.index();
        if self.buffers.0.len() <= index {
            self.buffers.0.resize(index + 1, Vec::new());
        }
        self.buffers.0[index] = bytes;
    }

    /// Until nobody has anything to say.
    fn pump(&mut self, rig: &mut Rig<Heap>) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let out = self.output(&mut events);
            rig.input(self.at, &out, self.how.to_target);
            let back = rig.output(self.at);
            for mut piece in back.chunks(self.how.to_host) {
                while !piece.is_empty() {
                    let (used, event) = self
                        .machine
                        .handle_input(piece, &mut self.buffers, rig.target.now)
                        .expect("the target keeps the rules");
                    piece = &piece[used..];
                    events.extend(event);
                }
            }
            if out.is_empty() && back.is_empty() {
                return events;
            }
        }
    }

    fn output(&mut self, events: &mut Vec<Event>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut head = [0; MAX_HEAD];
        while let Some(transmit) = self.machine.poll_transmit(&mut head) {
            out.extend_from_slice(&head[..transmit.head_len]);
            if let Some(place) = transmit.payload {
                let payload = self.buffers.place(place).to_vec();
                out.extend_from_slice(&payload);
                if transmit.data_digest {
                    out.extend_from_slice(&crc32c(&payload).to_le_bytes());
                }
            }
            if let Some(slot) = transmit.slot {
                events.extend(self.machine.sent(slot));
            }
        }
        out
    }

    /// One command, to its end: what the controller says, and the data.
    fn call(
        &mut self,
        rig: &mut Rig<Heap>,
        sqe: &Sqe,
        data: Data,
        bytes: Vec<u8>,
    ) -> (Cqe, Vec<u8>) {
        self.submit(sqe, data, bytes);
        match self.pump(rig)[..] {
            [
                Event::Completed {
                    slot,
                    cqe,
                    received,
                    ..
                },
            ] => {
                let mut bytes = std::mem::take(&mut self.buffers.0[slot.index()]);
                bytes.truncate(received as usize);
                (cqe, bytes)
            }
            ref other => panic!("{other:?}"),
        }
    }
}

fn identity() -> Identity {
    Identity {
        hostnqn: HOSTNQN.parse().expect("is a name"),
        hostid: HostId([7; 16]),
    }
}

/// What the controller's machine wants, until it waits; what it found, if it got ready.
fn settle(rig: &mut Rig<Heap>, admin: &mut Queue, host: &mut Controller) -> Option<Capabilities> {
    let mut found = None;
    while let Some((token, request)) = host.poll_command(rig.target.now) {
        let bytes = match request.data {
            Data::Nothing => Vec::new(),
            Data::ToHost(len) => vec![0; len as usize],
            Data::FromHost(_) => connect_data(host),
        };
        let (cqe, data) = admin.call(rig, &request.sqe, request.data, bytes);
        match host.completed(token, &cqe, &data, rig.target.now) {
            Ok(None) => {}
            Ok(Some(controller::Event::Ready(capabilities))) => found = Some(capabilities),
            other => panic!("{other:?}"),
        }
    }
    found
}

fn connect_data(host: &Controller) -> Vec<u8> {
    host.connect_data().as_bytes().to_vec()
}

fn bring_up(rig: &mut Rig<Heap>, how: How) -> (Queue, Controller, Capabilities) {
    let mut admin = Queue::open(rig, how);
    let mut host = controller_of(rig);
    let found = settle(rig, &mut admin, &mut host).expect("gets ready");
    (admin, host, found)
}

fn controller_of(rig: &Rig<Heap>) -> Controller {
    let config = controller::Config {
        host: identity(),
        subnqn: SUBNQN.parse().expect("is a name"),
        cntlid: Cntlid::DYNAMIC,
        kato: Duration::from_secs(5),
        io_queues: 2,
        events: false,
        command_timeout: Duration::from_secs(10),
    };
    Controller::new(config, rig.target.now)
}

const WAYS: [How; 5] = [
    How {
        digests: false,
        to_target: Delivery::Whole,
        to_host: usize::MAX,
    },
    How {
        digests: true,
        to_target: Delivery::Whole,
        to_host: 1,
    },
    How {
        digests: false,
        to_target: Delivery::Pieces(1),
        to_host: 7,
    },
    How {
        digests: true,
        to_target: Delivery::Pieces(13),
        to_host: 4099,
    },
    How {
        digests: true,
        to_target: Delivery::InPlace(100),
        to_host: 23,
    },
];

#[test]
fn bring_up_however_bytes_travel() {
    let mut all = Vec::new();
    for how in WAYS {
        let mut rig = Rig::new();
        let (_, _, found) = bring_up(&mut rig, how);
        assert_eq!(found.transfer, rig.target.limits.transfer);
        assert_eq!(found.inline_data, rig.target.limits.inline_data);
        assert_eq!(found.io_queues, 2);
        all.push(found);
    }
    assert!(all.iter().all(|found| *found == all[0]), "{all:?}");
}

#[test]
fn keep_alive_keeps_it_and_its_lack_does_not() {
    let mut rig = Rig::new();
    let (mut admin, mut host, _) = bring_up(&mut rig, WAYS[0]);
    for _ in 0..50 {
        let due = host.poll_timeout().expect("keep alive is due some time");
        let wait = due.since(rig.target.now);
        rig.advance(wait);
        assert_eq!(settle(&mut rig, &mut admin, &mut host), None);
        assert_eq!(rig.closing(admin.at), None);
    }
    rig.advance(Duration::from_secs(30));
    assert!(rig.closing(admin.at).is_some());
}

/// A byte of what the target sends is wrong, any one: with digests, the host finds
/// out or finds what is true; without, it ends all the same, and touches nothing that
/// is not its own.
#[test]
fn a_wrong_byte_does_no_harm() {
    for digests in [true, false] {
        let how = How { digests, ..WAYS[0] };
        let (_, truth) = bring_up_with(how, usize::MAX, 0);
        let truth = truth.expect("nothing is wrong yet");
        let mut ready = 0;
        for at in 0.. {
            let flipped = 1 << (at % 8);
            let (sent, found) = bring_up_with(how, at, flipped);
            if sent <= at {
                break;
            }
            if let Some(found) = found {
                ready += 1;
                assert!(
                    !digests || found == truth,
                    "byte {at} ^ {flipped:#x}: {found:?}"
                );
            }
        }
        assert!(ready > 0, "what is reserved in ICResp is not looked at");
    }
}

/// Bring-up with the target's byte `wrong` changed, to its end: how much the target
/// said, and what the host made of it.
fn bring_up_with(how: How, wrong: usize, flipped: u8) -> (usize, Option<Capabilities>) {
    let mut rig: Rig<Heap> = Rig::new();
    let mut queue = Queue::new(&mut rig, how);
    let mut host = controller_of(&rig);
    let mut sent = 0;
    for _ in 0..1000 {
        if let Some((_, request)) = host.poll_command(rig.target.now) {
            let bytes = match request.data {
                Data::Nothing => Vec::new(),
                Data::ToHost(len) => vec![0; len as usize],
                Data::FromHost(_) => connect_data(&host),
            };
            queue.submit(&request.sqe, request.data, bytes);
        }
        let out = queue.output(&mut Vec::new());
        rig.input(queue.at, &out, how.to_target);
        let mut back = rig.output(queue.at);
        if let Some(byte) = wrong.checked_sub(sent).and_then(|at| back.get_mut(at)) {
            *byte ^= flipped;
        }
        sent += back.len();
        let mut piece = &back[..];
        while !piece.is_empty() {
            let input = queue
                .machine
                .handle_input(piece, &mut queue.buffers, rig.target.now);
            let Ok((used, event)) = input else {
                return (sent, None);
            };
            piece = &piece[used..];
            let Some(Event::Completed {
                slot,
                cqe,
                received,
                ..
            }) = event
            else {
                continue;
            };
            let data = &queue.buffers.0[slot.index()];
            let data = &data[..data.len().min(received as usize)];
            match host.completed(Token::Step, &cqe, data, rig.target.now) {
                Ok(None) => {}
                Ok(Some(controller::Event::Ready(found))) => return (sent, Some(found)),
                Ok(Some(event)) => panic!("{event:?}"),
                Err(_) => return (sent, None),
            }
        }
        if out.is_empty() && back.is_empty() {
            // What was to come does not: time passes.
            let Some(due) = host.poll_timeout() else {
                return (sent, None);
            };
            rig.target.now = rig.target.now.max(due);
            if host.handle_timeout(rig.target.now).is_err() {
                return (sent, None);
            }
        }
    }
    panic!("byte {wrong} ^ {flipped:#x}: no end");
}
