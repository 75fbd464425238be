//! The fabric in memory checks what a network card checks.
mod world;

use core::time::Duration;

use nvmf_core::rdma::Remote;
use nvmf_rdma::Cm;
use nvmf_rdma::cm::{Event, Rejecter};
use nvmf_rdma::sim::Kind;
use nvmf_rdma::verbs::{
    Access, Bytes, Chain, Direction, Ended, Error, Key, Move, Outcome, Receiver, Send, Verbs,
};

use world::{A, B, World};

fn send(bytes: &[u8]) -> Chain<nvmf_rdma::sim::Buffer> {
    Chain {
        id: 7,
        signalled: true,
        buffer: None,
        first: None,
        send: Some(Send::new(bytes)),
    }
}

fn moved(
    direction: Direction,
    remote: Remote,
    len: u32,
    buffer: nvmf_rdma::sim::Buffer,
) -> Chain<nvmf_rdma::sim::Buffer> {
    Chain {
        id: 9,
        signalled: true,
        buffer: Some(buffer),
        first: Some(Move {
            direction,
            remote,
            offset: 0,
            len,
        }),
        send: None,
    }
}

#[test]
fn a_message_arrives_in_the_buffer_that_was_posted() {
    let mut world = World::new();
    world.receive(B, 64);
    world.post(A, send(b"hello")).unwrap();
    let came = world.poll(B).unwrap();
    let whole = Ended::Receive {
        len: 5,
        invalidated: None,
    };
    assert_eq!((came.ended, came.outcome), (whole, Outcome::Success));
    assert_eq!(&came.buffer.unwrap().as_ref()[..5], b"hello");
    let sent = world.poll(A).unwrap();
    assert_eq!(
        (sent.id, sent.ended, sent.outcome),
        (7, Ended::Chain, Outcome::Success)
    );
    assert!(world.poll(A).is_none() && world.poll(B).is_none());
}

#[test]
fn write_and_send_are_one_chain_with_one_completion() {
    let mut world = World::new();
    let remote = world.lend(A, 4096, Access::SHARED, Key::Window);
    // The window is bound by the chain that is posted next.
    world.receive(B, 64);
    world.post(A, send(b"read")).unwrap();
    world.receive(A, 16);
    let mut data = world.buffer(B, 4096);
    data.as_mut().fill(0x5A);
    let mut chain = moved(Direction::Write, remote, 4096, data);
    let mut response = Send::new(&[1; 16]);
    response.invalidate = Some(remote.key);
    chain.send = Some(response);
    world.post(B, chain).unwrap();
    let came = world.poll(A).unwrap();
    let ended = Ended::Receive {
        len: 16,
        invalidated: Some(remote.key),
    };
    // A's own SEND completed before.
    let came = if came.ended == Ended::Chain {
        world.poll(A).unwrap()
    } else {
        came
    };
    assert_eq!(came.ended, ended);
    assert!(
        world.poll(B).is_some_and(|it| it.buffer.is_some()),
        "B received"
    );
    let done = world.poll(B).unwrap();
    assert_eq!((done.id, done.outcome), (9, Outcome::Success));
    assert!(world.poll(B).is_none(), "one completion");
    let (nic, qp) = world.end(A);
    let buffer = nic.reclaim(qp, remote, true, 0).unwrap().unwrap();
    assert!(buffer.as_ref().iter().all(|byte| *byte == 0x5A));
    let of_b = world.statistics(B);
    assert_eq!((of_b.posts, of_b.writes, of_b.sends), (1, 1, 1));
}

/// What B does to memory that A lends with these rights; how that ends.
fn reach(
    access: Access,
    key: Key,
    change: impl FnOnce(Remote) -> Remote,
    direction: Direction,
    len: u32,
) -> Outcome {
    let mut world = World::new();
    let remote = world.lend(A, 4096, access, key);
    world.receive(B, 64);
    world.post(A, send(b"bind")).unwrap();
    world.settle();
    world.drain(A);
    world.drain(B);
    let buffer = world.buffer(B, 8192);
    let chain = moved(direction, change(remote), len, buffer);
    world.post(B, chain).unwrap();
    let done = world.poll(B).unwrap();
    assert!(done.buffer.is_some(), "buffers always come back");
    if done.outcome != Outcome::Success {
        // Both ends are in error, and nothing can be posted.
        for end in [A, B] {
            let (_, error) = world.post(end, send(b"late")).unwrap_err();
            assert_eq!(error, Error::NotConnected);
        }
    }
    done.outcome
}

#[test]
fn keys_bounds_and_rights() {
    let read_only = Access {
        remote_read: true,
        ..Access::LOCAL
    };
    let write_only = Access {
        remote_write: true,
        ..Access::LOCAL
    };
    use Direction::{Read, Write};
    for key in [Key::Region, Key::Window] {
        let same = |remote| remote;
        assert_eq!(reach(read_only, key, same, Read, 4096), Outcome::Success);
        assert_eq!(reach(write_only, key, same, Write, 4096), Outcome::Success);
        let fault = Outcome::RemoteAccess;
        assert_eq!(reach(read_only, key, same, Write, 1), fault);
        assert_eq!(reach(write_only, key, same, Read, 1), fault);
        for direction in [Read, Write] {
            let all = Access::SHARED;
            assert_eq!(reach(all, key, same, direction, 4097), fault);
            let moved = |by: i64| {
                move |remote: Remote| Remote {
                    address: remote.address.wrapping_add_signed(by),
                    ..remote
                }
            };
            assert_eq!(reach(all, key, moved(1), direction, 4095), Outcome::Success);
            assert_eq!(reach(all, key, moved(1), direction, 4096), fault);
            assert_eq!(reach(all, key, moved(-1), direction, 1), fault);
            let other = |remote: Remote| Remote {
                key: remote.key ^ 1,
                ..remote
            };
            assert_eq!(reach(all, key, other, direction, 1), fault);
            let nowhere = |_| Remote { address: 0, key: 0 };
            assert_eq!(reach(all, key, nowhere, direction, 1), fault);
        }
    }
}

#[test]
fn a_window_that_was_invalidated_reaches_nothing() {
    for by_peer in [false, true] {
        let mut world = World::new();
        let remote = world.lend(A, 4096, Access::SHARED, Key::Window);
        world.receive(B, 64);
        world.post(A, send(b"bind")).unwrap();
        if by_peer {
            world.receive(A, 16);
            let mut chain = send(&[0; 16]);
            chain.send.as_mut().unwrap().invalidate = Some(remote.key);
            world.post(B, chain).unwrap();
            world.settle();
        } else {
            world.settle();
            world.drain(A);
            let (nic, qp) = world.end(A);
            assert!(nic.reclaim(qp, remote, false, 42).unwrap().is_none());
            let done = world.poll(A).unwrap();
            assert_eq!((done.id, done.ended), (42, Ended::Reclaim));
            assert!(done.buffer.is_some());
        }
        world.drain(B);
        let buffer = world.buffer(B, 4096);
        let chain = moved(Direction::Write, remote, 1, buffer);
        world.post(B, chain).unwrap();
        assert_eq!(world.poll(B).unwrap().outcome, Outcome::RemoteAccess);
        if by_peer {
            let (nic, qp) = world.end(A);
            assert!(nic.reclaim(qp, remote, true, 0).unwrap().is_some());
        }
    }
}

#[test]
fn a_key_that_is_not_a_windows_cannot_be_invalidated() {
    for key in [Key::Region, Key::Window] {
        let mut world = World::new();
        let remote = world.lend(A, 4096, Access::SHARED, key);
        world.receive(B, 64);
        world.post(A, send(b"bind")).unwrap();
        world.receive(A, 16);
        let mut chain = send(&[0; 16]);
        let wrong = if key == Key::Window { 1 } else { 0 };
        chain.send.as_mut().unwrap().invalidate = Some(remote.key ^ wrong);
        world.post(B, chain).unwrap();
        world.settle();
        let outcomes: Vec<_> = std::iter::from_fn(|| world.poll(B)).collect();
        let last = outcomes.last().unwrap();
        assert_eq!(last.outcome, Outcome::RemoteAccess);
    }
}

#[test]
fn a_message_longer_than_its_buffer_fails_both_ends() {
    let mut world = World::new();
    world.receive(B, 4);
    world.post(A, send(b"hello")).unwrap();
    assert_eq!(world.poll(A).unwrap().outcome, Outcome::RemoteInvalid);
    let came = world.poll(B).unwrap();
    assert_eq!(came.outcome, Outcome::Length);
    assert!(came.buffer.is_some());
}

#[test]
fn a_send_without_a_receive_is_tried_again_so_often() {
    let pause = Duration::from_micros(100);
    let mut world = World::new();
    world.fabric.set_rnr(3, pause);
    world.post(A, send(b"early")).unwrap();
    world.run(pause * 2);
    world.receive(B, 64);
    world.run(pause);
    assert_eq!(world.poll(A).unwrap().outcome, Outcome::Success);
    assert_eq!(world.poll(B).unwrap().outcome, Outcome::Success);
    assert_eq!(world.statistics(A).not_ready, 3);
    world.post(A, send(b"never")).unwrap();
    world.run(pause * 10);
    assert_eq!(world.poll(A).unwrap().outcome, Outcome::ReceiverNotReady);
}

#[test]
fn no_more_reads_at_a_time_than_were_agreed_on() {
    let mut world = World::deep(2, 2);
    let remotes = [(); 4].map(|()| world.lend(A, 512, Access::SHARED, Key::Region));
    for remote in remotes {
        let buffer = world.buffer(B, 512);
        let chain = moved(Direction::Read, remote, 512, buffer);
        world.post(B, chain).unwrap();
    }
    assert!(world.statistics(B).stalls > 0, "two of them wait");
    for _ in remotes {
        assert_eq!(world.poll(B).unwrap().outcome, Outcome::Success);
    }
    // More than the peer answers.
    let mut world = World::deep(2, 1);
    let remotes = [(); 2].map(|()| world.lend(A, 512, Access::SHARED, Key::Region));
    for remote in remotes {
        let buffer = world.buffer(B, 512);
        let chain = moved(Direction::Read, remote, 512, buffer);
        world.post(B, chain).unwrap();
    }
    let outcomes = [(); 2].map(|()| world.poll(B).unwrap().outcome);
    assert!(outcomes.contains(&Outcome::RemoteInvalid), "{outcomes:?}");
}

#[test]
fn queues_have_their_depths() {
    let mut world = World::new();
    world.fabric.set_room(world.queue_pair(A), 0);
    for _ in 0..World::SENDS {
        world.post(A, send(b"one")).unwrap();
    }
    assert_eq!(world.post(A, send(b"more")).unwrap_err().1, Error::Full);
    for _ in 0..World::RECEIVES {
        world.receive(B, 64);
    }
    let buffer = world.buffer(B, 64);
    let (nic, qp) = world.end(B);
    let full = nic.post_receive(Receiver::Of(qp), 0, buffer);
    assert_eq!(full.unwrap_err().1, Error::Full);
}

#[test]
fn places_of_requests_that_do_not_complete_are_free_with_the_next_that_does() {
    let mut world = World::new();
    for _ in 0..World::RECEIVES {
        world.receive(B, 64);
    }
    for at in 0..World::SENDS {
        let mut chain = send(b"one");
        chain.signalled = at + 1 == World::SENDS;
        world.post(A, chain).unwrap();
    }
    world.settle();
    assert_eq!(world.post(A, send(b"more")).unwrap_err().1, Error::Full);
    assert!(world.poll(A).is_some());
    assert!(world.poll(A).is_none(), "only one was signalled");
    world.post(A, send(b"more")).unwrap();
}

#[test]
fn what_makes_no_sense_is_not_posted() {
    let mut world = World::new();
    let remote = Remote { address: 0, key: 0 };
    let empty = Chain {
        send: None,
        ..send(&[])
    };
    assert_eq!(world.post(A, empty).unwrap_err().1, Error::Invalid);
    // Beyond its buffer; of another device; not signalled, with a buffer.
    let short = world.buffer(A, 512);
    let foreign = world.buffer(B, 512);
    let silent = world.buffer(A, 512);
    let read = |buffer, len| moved(Direction::Read, remote, len, buffer);
    let unsignalled = Chain {
        signalled: false,
        ..read(silent, 512)
    };
    for chain in [read(short, 513), read(foreign, 512), unsignalled] {
        let (buffer, error) = world.post(A, chain).unwrap_err();
        assert_eq!(error, Error::Invalid);
        assert!(buffer.is_some(), "it comes back");
    }
    // Rights that the region has not.
    let local = [(); 2].map(|()| world.buffer(A, 512));
    let (shared, windowed) = (world.shared_buffer(A, 512), world.windowed_buffer(A, 512));
    let [first, second] = local;
    for (buffer, key) in [
        (first, Key::Region),
        (second, Key::Window),
        (shared, Key::Window),
        (windowed, Key::Region),
    ] {
        let (nic, qp) = world.end(A);
        let lent = nic.lend(qp, buffer, 512, Access::SHARED, key);
        assert_eq!(lent.unwrap_err().1, Error::Invalid);
    }
}

#[test]
fn a_window_that_cannot_be_bound_ends_the_queue_pair_and_says_so() {
    let mut world = World::new();
    world.lend(A, 4096, Access::SHARED, Key::Window);
    world.fabric.fail_bind(world.queue_pair(A));
    world.receive(B, 64);
    world.post(A, send(b"bind")).unwrap();
    let failed = world.poll(A).unwrap();
    assert_eq!((failed.ended, failed.outcome), (Ended::Lend, Outcome::Bind));
    let flushed = world.poll(A).unwrap();
    assert_eq!((flushed.id, flushed.outcome), (7, Outcome::Flushed));
    let (_, error) = world.post(A, send(b"late")).unwrap_err();
    assert_eq!(error, Error::NotConnected);
    assert!(world.poll(B).is_none(), "nothing was sent");
}

#[test]
fn everything_is_flushed_when_a_connection_ends() {
    for cut in [false, true] {
        let mut world = World::new();
        let remote = world.lend(A, 4096, Access::SHARED, Key::Window);
        world.receive(A, 64);
        world.receive(A, 64);
        world.fabric.set_room(world.queue_pair(A), 0);
        let mut chain = send(b"one");
        chain.signalled = false;
        world.post(A, chain).unwrap();
        let buffer = world.buffer(A, 512);
        let mut chain = send(b"two");
        chain.buffer = Some(buffer);
        chain.send.as_mut().unwrap().data = 512;
        world.post(A, chain).unwrap();
        if cut {
            world.fabric.cut(world.queue_pair(A));
        } else {
            world.disconnect(B);
        }
        world.settle();
        let done: Vec<_> = std::iter::from_fn(|| world.poll(A)).collect();
        let buffers = done.iter().filter(|it| it.buffer.is_some()).count();
        assert_eq!((done.len(), buffers), (4, 3), "those not signalled, too");
        let first = if cut {
            Outcome::Unreachable
        } else {
            Outcome::Flushed
        };
        let outcomes: Vec<_> = done.iter().map(|it| it.outcome).collect();
        use Outcome::Flushed as F;
        assert_eq!(outcomes, [first, F, F, F]);
        for end in [A, B] {
            let event = world.event(end).unwrap();
            assert!(matches!(event, Event::Disconnected { .. }), "{event:?}");
            assert!(world.event(end).is_none());
        }
        let (nic, qp) = world.end(A);
        assert!(nic.reclaim(qp, remote, false, 0).unwrap().is_some());
        world.destroy(A);
        world.destroy(B);
        assert_eq!((world.fabric.queue_pairs(), world.fabric.lent()), (0, 0));
    }
}

#[test]
#[should_panic(expected = "is destroyed before its completions are taken")]
fn a_queue_pair_is_not_destroyed_before_its_completions_are_taken() {
    let mut world = World::new();
    world.receive(A, 64);
    world.disconnect(A);
    world.destroy(A);
}

#[test]
#[should_panic(expected = "is destroyed while its peer has memory")]
fn a_queue_pair_is_not_destroyed_while_memory_is_lent() {
    let mut world = World::new();
    world.lend(A, 512, Access::SHARED, Key::Region);
    world.disconnect(A);
    world.destroy(A);
}

#[test]
fn a_tap_changes_delays_and_fails() {
    let mut world = World::new();
    world.receive(B, 64);
    world.receive(B, 64);
    let late = Duration::from_millis(3);
    let mut count = 0;
    world.fabric.set_tap(Box::new(move |passing| {
        assert_eq!(passing.kind, Kind::Send);
        count += 1;
        match count {
            1 => {
                passing.bytes[0] = b'J';
                *passing.delay = late;
            }
            _ => *passing.fail = Some(Outcome::Unreachable),
        }
    }));
    world.post(A, send(b"hello")).unwrap();
    world.post(A, send(b"again")).unwrap();
    assert!(world.poll(B).is_none());
    world.run(late);
    let came = world.poll(B).unwrap();
    assert_eq!(&came.buffer.unwrap().as_ref()[..5], b"Jello");
    assert_eq!(world.poll(A).unwrap().outcome, Outcome::Success);
    assert_eq!(world.poll(A).unwrap().outcome, Outcome::Unreachable);
}

#[test]
fn nobody_listens_and_rejections() {
    let world = World::new();
    let (mut nic, mut manager) = world.fabric.node(nvmf_rdma::sim::LIMITS);
    let nowhere = nvmf_rdma::sim::Address(99);
    let qp = manager.connect(&mut nic, nowhere, World::setup(0), World::terms(1));
    let qp = qp.unwrap();
    let event = manager.poll(world.fabric.now()).unwrap();
    let Event::Rejected { qp: of, by, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!((of, by), (qp, Rejecter::NobodyListens));
    manager.destroy(&mut nic, qp);
    let taken = manager.listen(World::LISTENER);
    assert_eq!(taken, Err(Error::NoResources));
}

#[test]
fn of_memory_that_peers_may_reach_there_is_no_slice() {
    let mut world = World::new();
    for (mut buffer, len) in [
        (world.shared_buffer(A, 512), 0),
        (world.windowed_buffer(A, 512), 512),
        (world.buffer(A, 512), 512),
    ] {
        assert_eq!((buffer.as_ref().len(), buffer.as_mut().len()), (len, len));
        assert_eq!(buffer.len(), 512);
        buffer.copy_in(510, &[1, 2, 3]);
        buffer.copy_in(513, &[4]);
        let mut back = [9; 3];
        buffer.copy_out(510, &mut back);
        assert_eq!(back, [1, 2, 9], "no further than its end");
    }
}
