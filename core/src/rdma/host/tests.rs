use zerocopy::IntoBytes;

use super::*;
use crate::storage::Fixed;

type Queue = HostQueue<Fixed<4>>;

const SHARED: Shared = Shared {
    remote: Remote {
        address: 0x7F00_1234_5000,
        key: 0x89AB_CDEF,
    },
    invalidate: true,
};

fn queue(commands: u16, requests: u32) -> Queue {
    HostQueue::new(&Config {
        commands,
        inline_data: 4096,
        requests,
        extra_requests: 0,
    })
}

/// Bytes 24 to 39 of a command.
fn dptr(work: &Work) -> [u8; 16] {
    work.command.as_bytes()[24..40].try_into().unwrap()
}

fn submit(queue: &mut Queue, data: Data, shared: Option<Shared>) -> Work {
    let slot = queue.submit(&Sqe::new(1, Cid(0)), data, shared);
    let work = queue.poll_work().expect("room");
    assert_eq!(Some(work.slot), slot);
    assert_eq!(queue.cid(work.slot), Some(work.command.cid()));
    work
}

/// A response of success to a command, SQHD 1.
fn answer(work: &Work) -> [u8; 16] {
    let [c0, c1] = work.command.cid().0.to_le_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, c0, c1, 0, 0]
}

#[test]
fn descriptors_as_a_controller_reads_them() {
    let mut queue = queue(4, 8);
    let read = submit(&mut queue, Data::ToHost(0x1000), Some(SHARED));
    let keyed = [
        0x00, 0x50, 0x34, 0x12, 0x00, 0x7F, 0, 0, 0x00, 0x10, 0x00, 0xEF, 0xCD, 0xAB, 0x89, 0x4F,
    ];
    assert_eq!(dptr(&read), keyed);
    assert_eq!(read.data, None);
    let write = submit(&mut queue, Data::FromHost(0x1000), None);
    assert_eq!(
        dptr(&write),
        [0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x10, 0, 0, 0, 0, 0, 0x01]
    );
    let place = write.data.expect("in the capsule");
    assert_eq!((place.offset, place.len), (0, 0x1000));
    let nothing = submit(&mut queue, Data::Nothing, None);
    let mut empty = [0; 16];
    empty[15] = 0x40;
    assert_eq!(dptr(&nothing), empty);
}

#[test]
fn what_goes_in_the_capsule() {
    let mut queue = queue(4, 8);
    assert!(queue.is_inline(Data::FromHost(1)) && queue.is_inline(Data::FromHost(4096)));
    for data in [
        Data::FromHost(0),
        Data::FromHost(4097),
        Data::ToHost(512),
        Data::Nothing,
    ] {
        assert!(!queue.is_inline(data), "{data:?}");
    }
    queue.configure(0);
    assert!(!queue.is_inline(Data::FromHost(1)));
}

#[test]
fn a_response_ends_a_command_once() {
    let mut queue = queue(4, 64);
    let work = submit(&mut queue, Data::ToHost(512), Some(SHARED));
    assert!(!work.signalled, "nothing waits for it");
    let completed = queue.received(&answer(&work), None).unwrap().unwrap();
    assert_eq!((completed.slot, completed.invalidated), (work.slot, false));
    assert!(completed.cqe.status().is_success());
    let late = Fault::UnknownCid(work.command.cid().0);
    assert_eq!(queue.received(&answer(&work), None), Err(late));
    // The next command of the slot has another CID.
    for _ in 0..4 {
        let next = submit(&mut queue, Data::Nothing, None);
        assert_ne!(next.command.cid(), work.command.cid());
        assert_eq!(queue.received(&answer(&work), None), Err(late));
    }
}

#[test]
fn a_buffer_in_the_capsule_is_kept_until_it_is_sent() {
    for sent_first in [false, true] {
        let mut queue = queue(4, 64);
        let work = submit(&mut queue, Data::FromHost(512), None);
        assert!(work.signalled);
        let (first, second) = if sent_first {
            (
                queue.sent(work.id),
                queue.received(&answer(&work), None).unwrap(),
            )
        } else {
            let first = queue.received(&answer(&work), None).unwrap();
            (first, queue.sent(work.id))
        };
        assert_eq!(first, None);
        assert_eq!(second.unwrap().slot, work.slot);
        assert_eq!(queue.sent(work.id), None);
    }
}

#[test]
fn a_key_is_invalidated_with_its_own_command_only() {
    let mut queue = queue(4, 64);
    let key = SHARED.remote.key;
    let work = submit(&mut queue, Data::ToHost(512), Some(SHARED));
    let foreign = queue.received(&answer(&work), Some(key + 1));
    assert_eq!(foreign, Err(Fault::ForeignKey(key + 1)));
    let completed = queue.received(&answer(&work), Some(key)).unwrap();
    assert!(completed.unwrap().invalidated);
    let bare = submit(&mut queue, Data::Nothing, None);
    let foreign = queue.received(&answer(&bare), Some(key));
    assert_eq!(foreign, Err(Fault::ForeignKey(key)));
}

#[test]
fn garbage_is_a_fault() {
    let mut queue = queue(4, 64);
    let work = submit(&mut queue, Data::Nothing, None);
    assert_eq!(queue.received(&[], None), Err(Fault::ShortCapsule(0)));
    assert_eq!(queue.received(&[0; 64], None), Err(Fault::LongResponse(64)));
    for cid in 0..=u16::MAX {
        if cid != work.command.cid().0 {
            let mut bytes = answer(&work);
            bytes[12..14].copy_from_slice(&cid.to_le_bytes());
            assert_eq!(queue.received(&bytes, None), Err(Fault::UnknownCid(cid)));
        }
    }
    // One that was not sent yet.
    let slot = queue.submit(&Sqe::new(1, Cid(0)), Data::Nothing, None);
    let cid = queue.cid(slot.unwrap()).unwrap();
    let mut bytes = answer(&work);
    bytes[12..14].copy_from_slice(&cid.0.to_le_bytes());
    assert_eq!(queue.received(&bytes, None), Err(Fault::UnknownCid(cid.0)));
}

#[test]
fn no_more_commands_than_the_controller_has_receives_for() {
    let mut queue = queue(3, 64);
    let works = [(); 3].map(|()| submit(&mut queue, Data::Nothing, None));
    assert!(!queue.has_room());
    assert_eq!(queue.submit(&works[0].command, Data::Nothing, None), None);
    queue.received(&answer(&works[1]), None).unwrap().unwrap();
    assert!(queue.has_room());
}

#[test]
fn the_send_queue_never_fills_up_though_few_sends_complete() {
    for (requests, extra_requests) in [(2, 0), (3, 0), (8, 0), (9, 2), (24, 2)] {
        let mut queue: Queue = HostQueue::new(&Config {
            commands: 4,
            inline_data: 0,
            requests,
            extra_requests,
        });
        // What the device holds: whether each is signalled; it ends them in order.
        let mut held = std::collections::VecDeque::new();
        let mut completions = 0;
        for _ in 0..1000 {
            let data = Data::ToHost(512);
            assert!(
                queue
                    .submit(&Sqe::new(2, Cid(0)), data, Some(SHARED))
                    .is_some()
            );
            let work = loop {
                if let Some(work) = queue.poll_work() {
                    break work;
                }
                // Only a completion makes room.
                let at = held.iter().position(|(signalled, _)| *signalled);
                let at = at.expect("something is signalled");
                let (_, id) = held.drain(..=at).next_back().unwrap();
                assert_eq!(queue.sent(id), None);
                completions += 1;
            };
            held.push_back((work.signalled, work.id));
            let taken = u32::try_from(held.len()).unwrap() * (1 + extra_requests);
            assert!(taken <= requests, "{taken} of {requests}");
            queue.received(&answer(&work), None).unwrap().unwrap();
        }
        // One of each half of the send queue completes.
        let each = requests.div_ceil(2).div_ceil(1 + extra_requests);
        assert!(completions <= 1000 / each, "{completions} of {requests}");
    }
}
