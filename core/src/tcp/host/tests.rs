//! The host's machine against PDUs written by hand.
use std::vec;
use std::vec::Vec;

use super::{Config, Data, Event, HostQueue};
use crate::storage::Fixed;
use crate::tcp::fatal::Fatal;
use crate::tcp::tx::MAX_HEAD;
use crate::time::Instant;
use crate::wire::ids::Cid;
use crate::wire::pdu::Fes;
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;
use crate::{DataBuffers, Place, SlotId};

const WRITE: u8 = 0x01;
const READ: u8 = 0x02;

/// A queue of four commands with buffers of 8 KiB, and what it wrote.
struct Rig {
    queue: HostQueue<Fixed<4>>,
    buffers: Buffers,
    now: Instant,
}

struct Buffers(Vec<Vec<u8>>);

impl DataBuffers for Buffers {
    fn reserve(&mut self, _: SlotId, _: u32) -> bool {
        unreachable!("a host's buffers are there before the command")
    }

    fn place(&mut self, place: Place) -> &mut [u8] {
        &mut self.0[place.slot.index()][place.offset as usize..][..place.len as usize]
    }
}

impl Rig {
    fn new(digests: bool) -> Self {
        let config = Config {
            header_digest: digests,
            data_digest: digests,
            ..Config::default()
        };
        Self {
            queue: HostQueue::new(&config, Instant::ZERO),
            buffers: Buffers(vec![vec![0; 8192]; 4]),
            now: Instant::ZERO,
        }
    }

    /// Connected to a controller that takes 4 KiB at a time, without digests.
    fn live() -> Self {
        let mut rig = Self::new(false);
        rig.queue.configure(4, 0);
        assert_eq!(rig.sent().len(), 128);
        assert_eq!(rig.receive(&ic_resp(0, 4096)), Ok(vec![Event::Ready]));
        rig
    }

    /// All there is to send, as bytes; its events are those of `sent`.
    fn sent(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut head = [0; MAX_HEAD];
        while let Some(transmit) = self.queue.poll_transmit(&mut head) {
            out.extend_from_slice(&head[..transmit.head_len]);
            if let Some(place) = transmit.payload {
                let payload = self.buffers.place(place).to_vec();
                out.extend_from_slice(&payload);
                if transmit.data_digest {
                    out.extend_from_slice(&crate::digest::portable(0, &payload).to_le_bytes());
                }
            }
            if let Some(slot) = transmit.slot {
                assert_eq!(self.queue.sent(slot), None);
            }
        }
        out
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Vec<Event>, Fatal> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (used, event) = self.queue.handle_input(rest, &mut self.buffers, self.now)?;
            rest = &rest[used..];
            events.extend(event);
        }
        Ok(events)
    }

    fn submit(&mut self, opcode: u8, data: Data) -> SlotId {
        self.queue
            .submit(&Sqe::new(opcode, Cid(0)), data)
            .expect("a free slot")
    }

    /// The CID that the latest capsule on the wire has.
    fn cid(capsule: &[u8]) -> [u8; 2] {
        [capsule[10], capsule[11]]
    }
}

fn ic_resp(dgst: u8, maxh2cdata: u32) -> Vec<u8> {
    let mut pdu = vec![0; 128];
    (pdu[0], pdu[2], pdu[4], pdu[11]) = (0x01, 128, 128, dgst);
    pdu[12..16].copy_from_slice(&maxh2cdata.to_le_bytes());
    pdu
}

fn r2t(cid: [u8; 2], offset: u32, len: u32) -> Vec<u8> {
    let mut pdu = vec![0x09, 0, 24, 0, 24, 0, 0, 0, cid[0], cid[1], 7, 0];
    pdu.extend_from_slice(&offset.to_le_bytes());
    pdu.extend_from_slice(&len.to_le_bytes());
    pdu.resize(24, 0);
    pdu
}

fn c2h_data(cid: [u8; 2], flags: u8, offset: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    let mut pdu = vec![0x07, flags, 24, 24];
    pdu.extend_from_slice(&24u32.saturating_add(len).to_le_bytes());
    pdu.extend_from_slice(&[cid[0], cid[1], 0, 0]);
    pdu.extend_from_slice(&offset.to_le_bytes());
    pdu.extend_from_slice(&len.to_le_bytes());
    pdu.resize(24, 0);
    pdu.extend_from_slice(data);
    pdu
}

fn response(cid: [u8; 2], status: u16) -> Vec<u8> {
    let mut pdu = vec![0x05, 0, 24, 0, 24, 0, 0, 0];
    pdu.extend_from_slice(&[0; 8]);
    pdu.extend_from_slice(&[3, 0, 1, 0, cid[0], cid[1]]);
    pdu.extend_from_slice(&status.to_le_bytes());
    pdu
}

fn status_of(events: &[Event]) -> Vec<(SlotId, Status, u32, bool)> {
    events
        .iter()
        .map(|event| match event {
            Event::Completed {
                slot,
                cqe,
                received,
                explicit,
            } => (*slot, cqe.status(), *received, *explicit),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn icreq_says_what_is_asked_for() {
    let mut rig = Rig::new(true);
    let bytes = rig.sent();
    let mut expected = vec![0; 128];
    (expected[2], expected[4], expected[11]) = (128, 128, 3);
    assert_eq!(bytes, expected);
    assert_eq!(rig.sent(), []);
}

#[test]
fn icresp_is_held_against_the_rules() {
    let with = |at: usize, value: u8| {
        let mut pdu = ic_resp(0, 4096);
        pdu[at] = value;
        pdu
    };
    for (pdu, fes, fei) in [
        (with(8, 1), Fes::UnsupportedParameter, 8),
        (with(10, 32), Fes::UnsupportedParameter, 10),
        (with(11, 1), Fes::InvalidHeaderField, 11),
        (ic_resp(0, 4092), Fes::InvalidHeaderField, 12),
        (ic_resp(0, 4098), Fes::InvalidHeaderField, 12),
    ] {
        let mut rig = Rig::new(false);
        rig.sent();
        assert_eq!(rig.receive(&pdu), Err(Fatal { fes, fei }));
        let term = rig.sent();
        assert_eq!(term[0], 0x02);
        assert_eq!(u32::from_le_bytes(term[4..8].try_into().unwrap()), 24 + 128);
        assert_eq!(term[24..], pdu);
        // Whatever comes now is not read, and nothing more is said.
        assert_eq!(rig.receive(&ic_resp(0, 4096)), Ok(vec![]));
        assert_eq!(rig.sent(), []);
    }
    let mut rig = Rig::live();
    assert_eq!(rig.receive(&ic_resp(0, 4096)), Err(Fatal::SEQUENCE));
}

#[test]
fn nothing_before_icresp() {
    let mut rig = Rig::new(false);
    rig.submit(READ, Data::ToHost(512));
    assert_eq!(rig.sent().len(), 128, "ICReq alone");
    assert_eq!(rig.receive(&response([0, 16], 0)), Err(Fatal::SEQUENCE));
}

#[test]
fn a_write_in_the_capsule() {
    let mut rig = Rig::new(true);
    rig.queue.configure(4, 4096);
    rig.sent();
    rig.receive(&ic_resp(3, 4096)).unwrap();
    let slot = rig.submit(WRITE, Data::FromHost(8));
    rig.buffers.0[slot.index()][..8].copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let capsule = rig.sent();
    // Header, its digest, eight bytes and theirs.
    assert_eq!(capsule.len(), 72 + 4 + 8 + 4);
    assert_eq!(capsule[..8], [0x04, 0x03, 72, 76, 88, 0, 0, 0]);
    assert_eq!(
        capsule[32..48],
        [0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0x01]
    );
    assert_eq!(
        capsule[76..],
        [0, 1, 2, 3, 4, 5, 6, 7, 0x3B, 0xBC, 0x2C, 0x8A]
    );
}

#[test]
fn a_write_that_is_asked_for_in_pieces() {
    let mut rig = Rig::live();
    let slot = rig.submit(WRITE, Data::FromHost(8192));
    let capsule = rig.sent();
    assert_eq!(capsule.len(), 72);
    assert_eq!(capsule[40..44], 8192u32.to_le_bytes());
    assert_eq!(capsule[47], 0x5A);
    let cid = Rig::cid(&capsule);
    // MAXH2CDATA is 4096: two PDUs for one R2T, LAST_PDU on the second.
    assert_eq!(rig.receive(&r2t(cid, 0, 8192)), Ok(vec![]));
    let data = rig.sent();
    assert_eq!(data.len(), 2 * (24 + 4096));
    for (pdu, flags, offset) in [(&data[..], 0, 0u32), (&data[24 + 4096..], 4, 4096)] {
        assert_eq!(pdu[..8], [0x06, flags, 24, 24, 0x18, 0x10, 0, 0]);
        assert_eq!(pdu[8..12], [cid[0], cid[1], 7, 0]);
        assert_eq!(pdu[12..16], offset.to_le_bytes());
        assert_eq!(pdu[16..20], 4096u32.to_le_bytes());
    }
    let events = rig.receive(&response(cid, 0)).unwrap();
    assert_eq!(status_of(&events), [(slot, Status::SUCCESS, 0, true)]);
    assert_eq!(
        rig.receive(&response(cid, 0)),
        Err(Fatal::field(20)),
        "twice"
    );
}

#[test]
fn r2t_is_held_against_the_command() {
    for (offset, len, fault) in [
        (0, 0, Fatal::field(16)),
        (512, 512, Fatal::SEQUENCE),
        (0, 8193, Fatal::OUT_OF_RANGE),
    ] {
        let mut rig = Rig::live();
        rig.submit(WRITE, Data::FromHost(8192));
        let cid = Rig::cid(&rig.sent());
        assert_eq!(rig.receive(&r2t(cid, offset, len)), Err(fault));
    }
    let mut rig = Rig::live();
    rig.submit(WRITE, Data::FromHost(8192));
    let cid = Rig::cid(&rig.sent());
    rig.receive(&r2t(cid, 0, 4096)).unwrap();
    assert_eq!(
        rig.receive(&r2t(cid, 4096, 4096)),
        Err(Fatal::LIMIT_EXCEEDED)
    );

    let mut rig = Rig::live();
    rig.submit(READ, Data::ToHost(4096));
    let cid = Rig::cid(&rig.sent());
    assert_eq!(
        rig.receive(&r2t(cid, 0, 4096)),
        Err(Fatal::field(8)),
        "of a read"
    );
    let mut rig = Rig::live();
    assert_eq!(
        rig.receive(&r2t([1, 0], 0, 4096)),
        Err(Fatal::field(8)),
        "of nothing"
    );
}

#[test]
fn data_of_two_reads_may_alternate() {
    let mut rig = Rig::live();
    let slots = [
        rig.submit(READ, Data::ToHost(1024)),
        rig.submit(READ, Data::ToHost(1024)),
    ];
    let capsules = rig.sent();
    let cids = [Rig::cid(&capsules), Rig::cid(&capsules[72..])];
    let stream = [
        c2h_data(cids[0], 0, 0, &[1; 512]),
        c2h_data(cids[1], 0, 0, &[2; 512]),
        c2h_data(cids[0], 4, 512, &[3; 512]),
        c2h_data(cids[1], 0x0C, 512, &[4; 512]),
        response(cids[0], 0),
    ]
    .concat();
    let events = rig.receive(&stream).unwrap();
    assert_eq!(
        status_of(&events),
        [
            (slots[1], Status::SUCCESS, 1024, false),
            (slots[0], Status::SUCCESS, 1024, true)
        ]
    );
    assert_eq!(rig.buffers.0[slots[0].index()][..512], [1; 512]);
    assert_eq!(rig.buffers.0[slots[0].index()][512..1024], [3; 512]);
    assert_eq!(rig.buffers.0[slots[1].index()][512..1024], [4; 512]);
}

#[test]
fn data_is_held_against_the_command() {
    let data = [0; 512];
    for (flags, offset, len, fault) in [
        (8, 0, 512, Fatal::field(1)),     // SUCCESS without LAST_PDU
        (4, 512, 512, Fatal::SEQUENCE),   // a hole
        (4, 0, 512, Fatal::OUT_OF_RANGE), // more than was asked for
    ] {
        let mut rig = Rig::live();
        let total = if fault == Fatal::OUT_OF_RANGE {
            511
        } else {
            1024
        };
        rig.submit(READ, Data::ToHost(total));
        let cid = Rig::cid(&rig.sent());
        let pdu = c2h_data(cid, flags, offset, &data[..len]);
        assert_eq!(rig.receive(&pdu), Err(fault));
    }
    let mut rig = Rig::live();
    rig.submit(READ, Data::ToHost(1024));
    let cid = Rig::cid(&rig.sent());
    rig.receive(&c2h_data(cid, 4, 0, &data)).unwrap();
    let after_last = c2h_data(cid, 4, 512, &data);
    assert_eq!(rig.receive(&after_last), Err(Fatal::SEQUENCE));
}

#[test]
fn a_wrong_data_digest_fails_one_command() {
    let mut rig = Rig::new(true);
    rig.sent();
    rig.receive(&ic_resp(2, 4096)).unwrap();
    let slot = rig.submit(READ, Data::ToHost(8));
    let cid = Rig::cid(&rig.sent());
    let mut pdu = c2h_data(cid, 0x0E, 0, &[0, 1, 2, 3, 4, 5, 6, 7]);
    pdu[4] = 36;
    pdu.extend_from_slice(&[0x3B, 0xBC, 0x2C, 0x8B]);
    let events = rig.receive(&pdu).unwrap();
    assert_eq!(
        status_of(&events),
        [(slot, Status::TRANSIENT_TRANSPORT_ERROR, 8, false)]
    );
    let slot = rig.submit(READ, Data::ToHost(8));
    let cid = Rig::cid(&rig.sent());
    let mut pdu = c2h_data(cid, 0x0E, 0, &[0, 1, 2, 3, 4, 5, 6, 7]);
    pdu[4] = 36;
    pdu.extend_from_slice(&[0x3B, 0xBC, 0x2C, 0x8A]);
    let events = rig.receive(&pdu).unwrap();
    assert_eq!(status_of(&events), [(slot, Status::SUCCESS, 8, false)]);
}

#[test]
fn a_completion_waits_until_the_data_has_left() {
    let mut rig = Rig::live();
    let slot = rig.submit(WRITE, Data::FromHost(512));
    let cid = Rig::cid(&rig.sent());
    rig.receive(&r2t(cid, 0, 512)).unwrap();
    let mut head = [0; MAX_HEAD];
    let transmit = rig.queue.poll_transmit(&mut head).unwrap();
    assert_eq!(transmit.slot, Some(slot));
    // The network still reads the buffer: the caller must not have it back.
    assert_eq!(rig.receive(&response(cid, 0)), Ok(vec![]));
    let event = rig.queue.sent(slot).unwrap();
    assert_eq!(status_of(&[event]), [(slot, Status::SUCCESS, 0, true)]);
}

#[test]
fn as_many_commands_as_slots() {
    let mut rig = Rig::live();
    let mut cids = Vec::new();
    for round in 0..40 {
        for _ in 0..4 {
            rig.submit(READ, Data::ToHost(512));
        }
        assert_eq!(
            rig.queue.submit(&Sqe::new(READ, Cid(0)), Data::Nothing),
            None
        );
        let capsules = rig.sent();
        for capsule in capsules.chunks(72) {
            let cid = Rig::cid(capsule);
            assert!(
                !cids.contains(&cid) || round >= 15,
                "a CID is not soon used again"
            );
            cids.push(cid);
            assert_eq!(rig.receive(&response(cid, 0x4004)).unwrap().len(), 1);
        }
    }
}

#[test]
fn the_controller_ends_the_connection() {
    let mut rig = Rig::live();
    let mut pdu = vec![0x03, 0, 24, 0, 48, 0, 0, 0, 1, 0, 10, 0, 0, 0];
    pdu.resize(48, 0);
    let told = Fatal {
        fes: Fes::InvalidHeaderField,
        fei: 10,
    };
    assert_eq!(rig.receive(&pdu), Ok(vec![Event::Terminated(told)]));
    assert_eq!(rig.sent(), []);
    assert_eq!(rig.queue.poll_timeout(), None);
}

#[test]
fn silence_has_a_limit() {
    let mut rig = Rig::new(false);
    rig.sent();
    let deadline = rig.queue.poll_timeout().unwrap();
    assert_eq!(deadline, Instant::from_micros(10_000_000));
    assert!(!rig.queue.timed_out(Instant::from_micros(9_999_999)));
    assert!(rig.queue.timed_out(deadline));
}
