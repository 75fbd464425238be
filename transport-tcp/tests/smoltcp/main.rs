//! The target on smoltcp's sockets, over a cable that loses frames, in virtual
//! time; at the other end a host that keeps the rules and checks that the
//! controller does, or (`hosts`) the host on smoltcp's sockets.
mod disk;
mod hosts;
mod initiator;
mod wire;
mod world;

use std::time::Duration;

use nvmf_core::block::MediaError;
use nvmf_tcp::smoltcp::target::Closed;
use nvmf_testing::bytes;
use nvmf_testing::host::{Finished, pattern};

use self::disk::BLOCK;
use self::wire::{Dice, Weather};
use self::world::{BLOCKS, CONNECTIONS, DEPTH, IO_QUEUES, Setup, World};

/// Reads and writes at random on an association's I/O queue, as many at a time
/// as it takes, and compares all that is read with what was written.
struct Traffic {
    queue: usize,
    /// The namespace is shared out in regions of this many blocks, of which
    /// these are the traffic's.
    first: u64,
    regions: u64,
    /// What is stored, as far as the host knows.
    model: Vec<u8>,
    /// Commands under way: CID, region, and the data if it is a write.
    outstanding: Vec<(u16, u64, Option<Vec<u8>>)>,
    written: u8,
}

const REGION: u64 = 16;
const REGION_BYTES: usize = REGION as usize * BLOCK;

impl Traffic {
    fn new(queue: usize, first: u64, regions: u64) -> Self {
        Self {
            queue,
            first,
            regions,
            model: vec![0; regions as usize * REGION_BYTES],
            outstanding: Vec::new(),
            written: 0,
        }
    }

    /// Submits up to `commands` more, as many as fit.
    fn submit(&mut self, world: &mut World, dice: &mut Dice, commands: usize) -> usize {
        let room = world.peers[self.queue].host.room();
        let count = room.min(commands);
        for _ in 0..count {
            let region = loop {
                let region = dice.roll(self.regions);
                if self.outstanding.iter().all(|it| it.1 != region) {
                    break region;
                }
            };
            let slba = (self.first + region) * REGION;
            let blocks = 1 + dice.roll(REGION);
            let len = blocks as usize * BLOCK;
            if dice.roll(2) == 0 {
                self.written = self.written.wrapping_add(1);
                let data = pattern(1, slba * BLOCK as u64, len, self.written);
                let cid = world.write(self.queue, slba, &data);
                self.outstanding.push((cid, region, Some(data)));
            } else {
                let cid = world.read(self.queue, slba, len);
                self.outstanding.push((cid, region, None));
            }
        }
        count
    }

    /// Looks at what has finished.
    fn collect(&mut self, world: &mut World) {
        for finished in world.peers[self.queue].host.finished.drain(..) {
            assert_eq!(finished.status(), 0, "{finished:?}");
            let cid = finished.command.cid();
            let at = self.outstanding.iter().position(|it| it.0 == cid).unwrap();
            let (_, region, data) = self.outstanding.remove(at);
            let stored = &mut self.model[region as usize * REGION_BYTES..];
            match data {
                Some(data) => stored[..data.len()].copy_from_slice(&data),
                None => {
                    assert!(!finished.data.is_empty());
                    let stored = &stored[..finished.data.len()];
                    assert!(stored == finished.data, "region {region} differs");
                }
            }
        }
    }

    fn check_disk(&self, world: &World) {
        let stored = &world.disk.borrow().bytes[self.first as usize * REGION_BYTES..];
        assert!(stored[..self.model.len()] == self.model, "on disk");
    }
}

/// Does `commands` commands of each of the traffics.
fn exchange(world: &mut World, traffics: &mut [Traffic], seed: u64, commands: usize) {
    let mut dice = Dice::new(seed);
    let mut left: Vec<usize> = traffics.iter().map(|_| commands).collect();
    world.run(|world| {
        let mut done = true;
        for (traffic, left) in traffics.iter_mut().zip(&mut left) {
            traffic.collect(world);
            *left -= traffic.submit(world, &mut dice, *left);
            done &= traffic.outstanding.is_empty() && *left == 0;
        }
        done
    });
    for traffic in traffics {
        traffic.check_disk(world);
    }
}

#[test]
fn what_is_read_was_written_in_any_weather() {
    let tiny = Setup {
        target_ring: 256,
        host_ring: 300,
        ..Setup::FAIR
    };
    let odd = Setup {
        target_ring: 1021,
        host_ring: 1999,
        ..Setup::FAIR
    };
    for (setup, commands) in [(Setup::FAIR, 300), (tiny, 30), (odd, 100)] {
        for weather in [Weather::FAIR, Weather::FOUL] {
            for (seed, digests) in [(1, 0), (2, 3), (3, 1), (4, 2)] {
                let setup = Setup {
                    weather,
                    seed,
                    ..setup
                };
                let world = &mut World::new(setup);
                let (_, io) = world.associate(digests);
                let regions = BLOCKS as u64 / REGION;
                let mut traffic = [Traffic::new(io, 0, regions)];
                exchange(world, &mut traffic, seed, commands);
                assert_eq!(world.target.connections(), 2, "{setup:?}");
            }
        }
    }
}

#[test]
fn two_hosts_share_few_buffers_and_a_busy_device() {
    for (delay, room) in [(0, usize::MAX), (700, usize::MAX), (300, 1)] {
        let world = &mut World::new(Setup {
            weather: Weather::FOUL,
            ..Setup::FAIR
        });
        (world.disk.borrow_mut().delay, world.disk.borrow_mut().room) = (delay, room);
        let hosts = [world.associate(0), world.associate(3)];
        let regions = BLOCKS as u64 / REGION / 2;
        let traffic = |at: usize| Traffic::new(hosts[at].1, at as u64 * regions, regions);
        exchange(world, &mut [traffic(0), traffic(1)], 9, 150);
        assert_eq!(world.target.operations(), 300);
    }
}

#[test]
fn a_host_that_holds_on_to_buffers_does_not_starve_another() {
    let world = &mut World::new(Setup::FAIR);
    let ((_, greedy), (_, modest)) = (world.associate(0), world.associate(0));
    // It is asked for data, and neither reads that nor sends any.
    world.peers[greedy].deaf = true;
    for at in 0..DEPTH as u64 {
        world.write(greedy, at * 16, &[0xEE; 8192]);
    }
    let data = pattern(1, 0, 8192, 1);
    let cid = world.write(modest, 256, &data);
    assert_eq!(world.finish(modest, cid).status(), 0);
    let cid = world.read(modest, 256, 8192);
    assert_eq!(world.finish(modest, cid).data, data);
    // It comes to its senses.
    world.peers[greedy].deaf = false;
    world.run(|world| world.peers[greedy].host.finished.len() == DEPTH);
    assert_eq!(world.disk.borrow().bytes[..65536], [0xEE; 65536]);
}

#[test]
fn commands_wait_in_the_stream_while_there_is_no_slot() {
    let world = &mut World::new(Setup::FAIR);
    let (admin, _) = world.associate(0);
    // 31 Identify Controller: more than slots, and than buffers.
    world.peers[admin].deaf = true;
    let identify = |cid| bytes::Command::new(0x06, cid).dword(10, 1);
    for _ in 0..31 {
        let direction = nvmf_testing::host::Direction::ToHost;
        world.submit(admin, identify, direction, &[], 4096);
    }
    world.run_for(Duration::from_millis(50), |_| false);
    assert!(world.peers[admin].host.finished.is_empty());
    world.peers[admin].deaf = false;
    world.run(|world| world.peers[admin].host.finished.len() == 31);
    for finished in world.peers[admin].host.finished.drain(..) {
        assert_eq!(finished.status(), 0);
        assert_eq!(&finished.data[24..29], b"board");
    }
}

/// Set Features, Timestamp: 8 bytes of data.
fn set_timestamp(cid: u16) -> bytes::Command {
    bytes::Command::new(0x09, cid).dword(10, 0x0E)
}

#[test]
fn a_command_without_a_slot_is_refused_if_all_that_have_one_wait_for_data_behind_it() {
    use nvmf_testing::host::Direction::{FromHost, None, ToHost};
    for digests in [0, 3] {
        let world = &mut World::new(Setup::FAIR);
        let (admin, io) = world.associate(digests);
        // An event request stays; then more writes than slots, and than buffers, with
        // what takes a buffer of its own among them.
        world.submit(admin, |cid| bytes::Command::new(0x0C, cid), None, &[], 0);
        for at in 0..30 {
            if at % 3 == 1 {
                let identify = |cid| bytes::Command::new(0x06, cid).dword(10, 1);
                world.submit(admin, identify, ToHost, &[], 4096);
            } else {
                world.submit(admin, set_timestamp, FromHost, &[1; 8], 8);
            }
        }
        let begin = world.now;
        world.run(|world| world.peers[admin].host.finished.len() == 30);
        let took = world.now - begin;
        assert!(took < 1_000_000, "{took} us");
        let refused = |finished: &Finished| finished.status() == 0x22;
        let finished: Vec<_> = world.peers[admin].host.finished.drain(..).collect();
        assert!(finished.iter().all(|it| it.status() == 0 || refused(it)));
        let done = finished.iter().filter(|it| !refused(it)).count();
        assert!((DEPTH - 1..30).contains(&done), "{done} were done");
        // Whoever comes again is served, and so are other queues.
        for _ in 0..3 {
            let cid = world.submit(admin, set_timestamp, FromHost, &[1; 8], 8);
            assert_eq!(world.finish(admin, cid).status(), 0);
        }
        let cid = world.write(io, 0, &[7; 8192]);
        assert_eq!(world.finish(io, cid).status(), 0);
        assert_eq!(world.closed, []);
    }
}

#[test]
fn a_device_that_fails_fails_the_command_alone() {
    let world = &mut World::new(Setup::FAIR);
    let (_, io) = world.associate(0);
    for (fault, read, write) in [
        (MediaError::Read, 0x281, 0x281),
        (MediaError::NotReady, 0x082, 0x082),
    ] {
        world.disk.borrow_mut().fault = Some(fault);
        let cid = world.read(io, 0, 4096);
        assert_eq!(world.finish(io, cid).status(), read);
        let cid = world.write(io, 0, &[1; 512]);
        assert_eq!(world.finish(io, cid).status(), write);
    }
    world.disk.borrow_mut().fault = None;
    let cid = world.read(io, 0, 4096);
    assert_eq!(world.finish(io, cid).data, [0; 4096]);
}

#[test]
fn a_silent_host_is_let_go_and_its_queues_with_it() {
    let world = &mut World::new(Setup::FAIR);
    world.kato = 15_000;
    world.associate(0);
    // A timer that looks for traffic takes up to two.
    assert!(world.run_for(Duration::from_secs(31), |world| {
        world.target.connections() == 0
    }));
    assert_eq!(world.closed.len(), 2);
    world.associate(0);
    assert_eq!(world.target.connections(), 2);
}

#[test]
fn a_host_that_leaves_properly_leaves_room() {
    let world = &mut World::new(Setup::FAIR);
    for _ in 0..3 * CONNECTIONS {
        let (admin, io) = world.associate(0);
        let finished = world.call(io, bytes::disconnect);
        assert_eq!(finished.status(), 0);
        for peer in [io, admin] {
            world.socket(peer).close();
        }
        world.run(|world| world.target.connections() == 0);
    }
    assert!(!world.closed.contains(&Closed::Lost));
}

#[test]
fn a_host_that_asks_for_many_queues_leaves_room_for_others() {
    let world = &mut World::new(Setup::FAIR);
    let (admin, io) = world.associate(0);
    // Number of Queues, 8 and 8 (0's based).
    let ask = |cid| {
        bytes::Command::new(0x09, cid)
            .dword(10, 7)
            .dword(11, 7 << 16 | 7)
    };
    assert_eq!(
        world.call(admin, ask).status(),
        0x0C,
        "queues are there already"
    );
    let finished = world.call(io, bytes::disconnect);
    assert_eq!(finished.status(), 0);
    world.run(|world| world.target.connections() == 1);
    let finished = world.call(admin, ask);
    let granted = u64::from(IO_QUEUES - 1);
    assert_eq!(
        (finished.status(), finished.result()),
        (0, granted << 16 | granted)
    );
    let cntlid = world.peers[admin].host.queue.unwrap().cntlid;
    for qid in 1..=IO_QUEUES {
        world.connect(qid, cntlid, DEPTH as u16, 0);
    }
    assert!(world.target.connections() < CONNECTIONS);
    world.connect(0, 0xFFFF, 31, 0);
}

#[test]
fn hosts_that_are_over_and_do_not_close_keep_nobody_out() {
    let world = &mut World::new(Setup::FAIR);
    for round in 0..3 * CONNECTIONS {
        let peer = world.open();
        if round % 2 == 0 {
            // It gets a C2HTermReq, and has 30 s to close.
            world.send(peer, &[0xFF; 24]);
            world.run(|world| world.peers[peer].host.terminated.is_some());
        } else {
            // It gets our FIN, and never sends its own.
            world.send(peer, &bytes::term_req(1, 0, &[]));
            world.run(|world| !world.socket(peer).may_recv());
        }
    }
    let begin = world.now;
    world.associate(0);
    assert!(world.now - begin < 3_000_000, "{} us", world.now - begin);
}

/// A host of which nothing good comes.
fn misbehave(world: &mut World, dice: &mut Dice) {
    let peer = world.open();
    match dice.roll(7) {
        0 => world.send(peer, &[0xFF; 600]),
        1 => {
            let mut garbage = bytes::ic_req(0, 0);
            garbage.extend((0..dice.roll(4000)).map(|at| (at * 7) as u8));
            world.send(peer, &garbage);
        }
        2 => world.send(peer, &bytes::ic_req(0, 3)[..dice.roll(128) as usize]),
        3 => world.send(peer, b"GET / HTTP/1.1\r\n\r\n"),
        4 => world.send(peer, &bytes::term_req(1, 0, &[])),
        5 => {
            let mut stream = bytes::ic_req(0, 0);
            // A Connect whose data stops in the middle.
            let capsule = nvmf_testing::host::Host::new(0).submit(
                bytes::connect(1, 0, 31, 0),
                nvmf_testing::host::Direction::FromHost,
                &bytes::connect_data(0xFFFF, bytes::SUBNQN),
            );
            stream.extend(&capsule[..72 + dice.roll(1000) as usize]);
            world.send(peer, &stream);
        }
        _ => {}
    }
    world.peers[peer].deaf = true;
    let patience = Duration::from_micros(dice.roll(20_000));
    world.run_for(patience, |_| false);
    match dice.roll(3) {
        0 => world.socket(peer).abort(),
        1 => world.socket(peer).close(),
        // It stays, and says nothing more.
        _ => {}
    }
}

#[test]
fn a_storm_of_garbage_and_disconnects_leaves_it_serving() {
    for seed in 1..=2 {
        let world = &mut World::new(Setup {
            seed,
            weather: Weather {
                lost: 5,
                ..Weather::FAIR
            },
            ..Setup::FAIR
        });
        let dice = &mut Dice::new(seed);
        let (admin, io) = world.associate(0);
        let mut traffic = [Traffic::new(io, 0, 16)];
        for round in 0..200 {
            misbehave(world, dice);
            if round % 20 == 0 {
                // The host that was there first notices nothing.
                exchange(world, &mut traffic, seed + round, 20);
            }
        }
        // Those who stayed without a word are let go in time.
        world.socket(admin).close();
        world.socket(io).close();
        let patience = Duration::from_secs(60);
        assert!(
            world.run_for(patience, |world| world.target.connections() == 0),
            "seed {seed}: {} are left",
            world.target.connections()
        );
        let (_, io) = world.associate(3);
        let cid = world.read(io, 0, 8192);
        assert_eq!(world.finish(io, cid).data, traffic[0].model[..8192]);
    }
}
