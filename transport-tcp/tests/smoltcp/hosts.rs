//! The host on smoltcp's sockets, against the target on smoltcp's sockets and
//! against what only looks like one.
use std::time::Duration;

use nvmf_core::block::MediaError;
use nvmf_core::host::Data;
use nvmf_core::host::discovery::{LogReader, Progress};
use nvmf_core::host::{self, Step, command};
use nvmf_core::tcp::host::Config;
use nvmf_core::time::Instant;
use nvmf_core::wire::identify::Cns;
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_core::wire::status::Status;
use nvmf_tcp::smoltcp::host::{
    Completion, Destination, Error, Failure, Namespace, Options, Payload, Reason,
};
use nvmf_tcp::smoltcp::target::Closed;
use nvmf_testing::bytes;
use nvmf_testing::host::pattern;
use smoltcp::wire::IpAddress;

use crate::disk::BLOCK;
use crate::initiator::{DEPTH, QUEUES, destination, options};
use crate::wire::{Dice, Weather};
use crate::world::{BLOCKS, PORT, Setup, TARGET, World, leak};

const REGION: u64 = 16;
const REGION_BYTES: usize = REGION as usize * BLOCK;
const REGIONS: u64 = BLOCKS as u64 / REGION;

/// Reads and writes at random, and compares all that is read with what was written.
struct Load {
    host: usize,
    model: Vec<u8>,
    free: Vec<&'static mut [u8]>,
    /// Of what is under way, by region: blocks, and what is written if that is so.
    under_way: Vec<Option<(usize, Option<u8>)>>,
    written: u8,
}

impl Load {
    fn new(host: usize) -> Self {
        Self {
            host,
            model: vec![0; BLOCKS * BLOCK],
            free: (0..QUEUES * DEPTH)
                .map(|_| &mut leak([0; REGION_BYTES])[..])
                .collect(),
            under_way: (0..REGIONS).map(|_| None).collect(),
            written: 0,
        }
    }

    fn submit(&mut self, world: &mut World, dice: &mut Dice) {
        let region = dice.roll(REGIONS);
        if self.under_way[region as usize].is_some() {
            return;
        }
        let Some(buffer) = self.free.pop() else {
            return;
        };
        let host = &mut world.initiators[self.host].host;
        let blocks = 1 + dice.roll(REGION);
        let (slba, len, tag) = (region * REGION, blocks as usize * BLOCK, region as u32);
        let outcome = if dice.roll(2) == 0 {
            self.written = self.written.wrapping_add(1);
            self.under_way[region as usize] = Some((len, Some(self.written)));
            let data = pattern(1, slba * BLOCK as u64, len, self.written);
            buffer[..len].copy_from_slice(&data);
            host.write(slba, blocks as u32, buffer, tag)
        } else {
            self.under_way[region as usize] = Some((len, None));
            host.read(slba, blocks as u32, buffer, tag)
        };
        if let Err(rejected) = outcome {
            assert_eq!(rejected.reason, Reason::Full);
            assert_eq!(host.room(), 0);
            self.under_way[region as usize] = None;
            self.free.extend(rejected.buffer);
        }
    }

    /// Looks at what has ended; the number of commands.
    fn collect(&mut self, completed: Vec<Completion<'static>>) -> usize {
        let count = completed.len();
        for completion in completed {
            let region = completion.tag as usize;
            assert!(completion.result.is_ok(), "{completion:?}");
            let (len, written) = self.under_way[region].take().unwrap();
            let buffer = completion.buffer.unwrap();
            let model = &mut self.model[region * REGION_BYTES..][..len];
            match written {
                Some(_) => model.copy_from_slice(&buffer[..len]),
                None => assert!(*model == buffer[..len], "region {region} differs"),
            }
            self.free.push(buffer);
        }
        count
    }

    /// Does so many commands, and compares the disk.
    fn run(&mut self, world: &mut World, seed: u64, commands: usize) {
        let mut dice = Dice::new(seed);
        let mut ended = 0;
        world.run(|world| {
            ended += self.collect(world.initiators[self.host].completed.split_off(0));
            let busy = self.under_way.iter().flatten().count();
            for _ in ended + busy..commands {
                self.submit(world, &mut dice);
            }
            ended == commands
        });
        assert!(self.model == world.disk.borrow().bytes, "on disk");
    }
}

/// `options`, with digests (bit 0 header, bit 1 data).
fn with_digests(digests: u8) -> Options {
    Options {
        transport: Config {
            header_digest: digests & 1 != 0,
            data_digest: digests & 2 != 0,
            ..Config::default()
        },
        // Over a tiny window in foul weather the data of a few commands takes long.
        keep_alive: Duration::from_secs(120),
        command_timeout: Duration::from_secs(300),
        ..options()
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
        target_ring: 1999,
        host_ring: 1021,
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
                let at = world.connected(with_digests(digests));
                let host = &world.initiators[at].host;
                let namespace = Namespace {
                    nsid: Nsid(1),
                    block_size: 512,
                    blocks: BLOCKS as u64,
                    transfer: 16,
                };
                assert_eq!(host.namespace(), Some(&namespace));
                assert_eq!(host.room(), QUEUES * DEPTH);
                assert_eq!(world.target.connections(), 1 + QUEUES);
                Load::new(at).run(world, seed, commands);
                world.leave(at);
                world.run(|world| world.target.connections() == 0);
                assert!(!world.closed.contains(&Closed::Lost), "{setup:?}");
                assert!(world.initiators[at].host.is_idle());
            }
        }
    }
}

#[test]
fn an_idle_host_keeps_its_controller_alive_and_is_told_when_it_is_gone() {
    let world = &mut World::new(Setup::FAIR);
    let kato = Duration::from_secs(2);
    let at = world.connected(Options {
        keep_alive: kato,
        ..options()
    });
    world.run_for(Duration::from_secs(600), |_| false);
    assert_eq!(world.initiators[at].closed, None);
    assert_eq!(world.target.connections(), 1 + QUEUES);
    // Somebody pulls the cable while commands are under way.
    world.disk.borrow_mut().delay = 5_000;
    let host = &mut world.initiators[at].host;
    host.write(0, 16, leak([1; 8192]), 1).unwrap();
    host.read(32, 16, leak([0; 8192]), 2).unwrap();
    world.run_for(Duration::from_millis(2), |_| false);
    world.set_weather(Weather::CUT);
    let before = world.now;
    let error = world.end(at, 3 * kato).unwrap_err();
    let late = host::Error::Timeout(Step::KeepAlive);
    assert_eq!(error, Error::Controller(late));
    assert!(world.now - before >= 2_000_000, "{}", world.now - before);
    let mut lost = world.initiators[at].completed.split_off(0);
    lost.sort_by_key(|completion| completion.tag);
    let fates = lost.iter().map(|it| (it.tag, it.result));
    let expected = [(1, Err(Failure::Lost)), (2, Err(Failure::Lost))];
    assert!(fates.eq(expected));
    assert!(lost.iter().all(|it| it.buffer.is_some()));
    // The target notices as well, and both are there again when the cable is.
    world.run(|world| world.target.connections() == 0);
    world.run(|world| world.initiators[at].host.is_idle());
    world.set_weather(Weather::FAIR);
    assert_eq!(world.outcome(at, destination()), None);
    Load::new(at).model[..8192].copy_from_slice(&world.disk.borrow().bytes[..8192]);
    world.leave(at);
}

#[test]
fn why_there_is_no_association() {
    let world = &mut World::new(Setup::FAIR);
    let at = world.initiator(options());
    let nobody = Destination {
        subnqn: "nqn.2014-08.org.example:nobody".parse().unwrap(),
        ..destination()
    };
    match world.failure(at, nobody) {
        Error::Controller(host::Error::Refused {
            step: Step::Connect,
            status,
            parameter: Some(_),
        }) => assert!(status.is(Status::CONNECT_INVALID_PARAMETERS), "{status}"),
        other => panic!("{other}"),
    }
    for (nsid, error) in [
        (2, Error::NoNamespace(Some(Nsid(2)))),
        (0xFFFF_FFFE, Error::NoNamespace(Some(Nsid(0xFFFF_FFFE)))),
    ] {
        let other = Destination {
            nsid: Some(Nsid(nsid)),
            ..destination()
        };
        assert_eq!(world.failure(at, other), error);
    }
    for (address, error) in [
        ((TARGET, 9), Error::NothingListens),
        ((TARGET, 0), Error::NoAddress),
        ((IpAddress::v4(192, 0, 2, 77), PORT), Error::NoAnswer),
    ] {
        let elsewhere = Destination {
            address: address.into(),
            ..destination()
        };
        assert_eq!(world.failure(at, elsewhere), error);
    }
    // The target has room all the same.
    world.run(|world| world.target.connections() == 0);
    let first = Destination {
        nsid: None,
        ..destination()
    };
    assert_eq!(world.outcome(at, first), None);
    let namespace = world.initiators[at].host.namespace().unwrap();
    assert_eq!(namespace.nsid, Nsid(1));
}

#[test]
fn what_is_no_target() {
    let world = &mut World::new(Setup::FAIR);
    let at = world.initiator(options());
    let impostor = Destination {
        address: (TARGET, 4421).into(),
        ..destination()
    };
    // It says nothing, hangs up, or resets.
    for ending in 0..3 {
        let socket = world.impostor(4421);
        world.initiators[at].closed = None;
        world.initiators[at].host.connect(impostor.clone()).unwrap();
        world.run(|world| world.impostors_socket(socket).can_recv());
        match ending {
            0 => {}
            1 => world.impostors_socket(socket).close(),
            _ => world.impostors_socket(socket).abort(),
        }
        let error = world.end(at, Duration::from_secs(11)).unwrap_err();
        assert_eq!(error, Error::NoIcResp);
        world.impostors_socket(socket).abort();
        world.run(|world| world.initiators[at].host.is_idle());
    }
    // It says something, and is told what was wrong with it.
    let mut c2h_term_req = bytes::term_req(3, 7, &[]);
    c2h_term_req[0] = 3;
    for (answer, fatal) in [
        (&b"SSH-2.0-OpenSSH_9.2\r\n"[..], (1, 0)),
        (&c2h_term_req, (3, 7)),
    ] {
        let socket = world.impostor(4421);
        world.initiators[at].closed = None;
        world.initiators[at].host.connect(impostor.clone()).unwrap();
        world.run(|world| world.impostors_socket(socket).can_recv());
        world.impostors_socket(socket).send_slice(answer).unwrap();
        let error = world.end(at, Duration::from_secs(11)).unwrap_err();
        let mut said = Vec::new();
        world.run_for(Duration::from_secs(1), |world| {
            let socket = world.impostors_socket(socket);
            while socket.can_recv() {
                let received = socket.recv(|bytes| (bytes.len(), bytes.to_vec()));
                said.extend(received.unwrap());
            }
            false
        });
        let (fes, fei) = fatal;
        match error {
            Error::Controller(host::Error::Transport(fatal)) => {
                assert_eq!((fatal.fes.code(), fatal.fei), (fes, fei));
                assert_eq!(said[128], 2, "H2CTermReq after ICReq");
                assert_eq!(said[136], 1);
            }
            Error::Controller(host::Error::Terminated(fatal)) => {
                assert_eq!((fatal.fes.code(), fatal.fei), (fes, fei));
                assert_eq!(said.len(), 128, "a TermReq is not answered");
            }
            other => panic!("{other}"),
        }
        world.impostors_socket(socket).abort();
        world.run(|world| world.initiators[at].host.is_idle());
    }
}

#[test]
fn commands_that_make_no_sense_are_refused_with_their_buffer() {
    let world = &mut World::new(Setup::FAIR);
    let at = world.initiator(options());
    let rejected = world.initiators[at].host.read(0, 1, leak([0; 512]), 0);
    assert_eq!(rejected.unwrap_err().reason, Reason::NotReady);
    assert_eq!(world.outcome(at, destination()), None);
    let host = &mut world.initiators[at].host;
    let mut buffer: &'static mut [u8] = leak([0; 8192]);
    for (slba, nlb, reason) in [
        (0, 0, Reason::OutOfRange),
        (BLOCKS as u64, 1, Reason::OutOfRange),
        (BLOCKS as u64 - 1, 2, Reason::OutOfRange),
        (u64::MAX, 2, Reason::OutOfRange),
        (0, 17, Reason::TooLong),
    ] {
        for write in [false, true] {
            let outcome = if write {
                host.write(slba, nlb, buffer, 0)
            } else {
                host.read(slba, nlb, buffer, 0)
            };
            let rejected = outcome.unwrap_err();
            assert_eq!(rejected.reason, reason, "{slba} {nlb}");
            buffer = rejected.buffer.unwrap();
        }
    }
    let short = host.read(0, 2, leak([0; 1023]), 0).unwrap_err();
    assert_eq!(short.reason, Reason::ShortBuffer);
    for tag in 0..(QUEUES * DEPTH) as u32 {
        host.flush(tag).unwrap();
    }
    assert_eq!(host.flush(99).unwrap_err().reason, Reason::Full);
    assert!(host.connect(destination()).is_err());
    // Leaving lets them end, and takes no more.
    world.leave(at);
    let completed = &world.initiators[at].completed;
    assert_eq!(completed.len(), QUEUES * DEPTH);
    let host = &mut world.initiators[at].host;
    assert_eq!(host.flush(99).unwrap_err().reason, Reason::NotReady);
}

#[test]
fn what_the_controller_says_of_a_command_that_fails() {
    let world = &mut World::new(Setup::FAIR);
    let at = world.connected(options());
    for (fault, sct, sc) in [(MediaError::Read, 2, 0x81), (MediaError::NotReady, 0, 0x82)] {
        world.disk.borrow_mut().fault = Some(fault);
        let host = &mut world.initiators[at].host;
        host.read(0, 8, leak([0; 4096]), 5).unwrap();
        let completion = world.completion(at);
        match completion.result {
            Err(Failure::Status(status)) => assert_eq!((status.sct, status.sc), (sct, sc)),
            other => panic!("{other:?}"),
        }
        assert_eq!(completion.buffer.unwrap().len(), 4096);
    }
    world.disk.borrow_mut().fault = None;
    let host = &mut world.initiators[at].host;
    host.read(0, 8, leak([1; 4096]), 6).unwrap();
    let completion = world.completion(at);
    assert_eq!((completion.result, completion.received), (Ok(0), 4096));
    assert_eq!(completion.buffer.unwrap(), [0; 4096]);
}

#[test]
fn a_command_that_is_late_is_aborted_and_one_that_never_ends_ends_all() {
    let world = &mut World::new(Setup::FAIR);
    let at = world.connected(Options {
        command_timeout: Duration::from_secs(3),
        ..options()
    });
    world.disk.borrow_mut().delay = 4_000_000;
    let host = &mut world.initiators[at].host;
    host.read(0, 8, leak([1; 4096]), 6).unwrap();
    let before = world.now;
    assert!(world.completion(at).result.is_ok(), "late, but in time");
    assert!(world.now - before >= 4_000_000);
    world.disk.borrow_mut().delay = 60_000_000;
    let host = &mut world.initiators[at].host;
    host.read(0, 8, leak([1; 4096]), 6).unwrap();
    let error = world.end(at, Duration::from_secs(7)).unwrap_err();
    match error {
        Error::Controller(host::Error::Unanswered { .. }) => {}
        other => panic!("{other}"),
    }
    assert_eq!(world.completion(at).result, Err(Failure::Lost));
}

#[test]
fn a_host_that_gives_up_gets_its_buffers_back_and_may_come_again() {
    for seed in 1..=20 {
        let world = &mut World::new(Setup {
            weather: Weather::FOUL,
            seed,
            host_ring: 700,
            ..Setup::FAIR
        });
        let at = world.initiator(options());
        for round in 0..3 {
            let initiator = &mut world.initiators[at];
            (initiator.ready, initiator.closed) = (false, None);
            initiator.host.connect(destination()).unwrap();
            // Anywhere from the first SYN to the last data.
            let patience = Duration::from_micros(seed * 1700 + round * 4000);
            world.run_for(patience, |_| false);
            let mut submitted = 0;
            for tag in 0..4 {
                let buffer = leak([tag as u8; 8192]);
                let host = &mut world.initiators[at].host;
                submitted += usize::from(host.write(0, 16, buffer, tag).is_ok());
            }
            world.run_for(Duration::from_millis(3), |_| false);
            // A reset that is lost would leave its connections with the target.
            world.set_weather(Weather::FAIR);
            let now = Instant::from_micros(world.now as u64);
            let mut initiator = world.initiators.remove(at);
            initiator.host.abort(world.host_sockets(), now);
            world.initiators.insert(at, initiator);
            assert_eq!(world.end(at, Duration::ZERO), Err(Error::Aborted));
            let completed = world.initiators[at].completed.split_off(0);
            assert_eq!(completed.len(), submitted);
            assert!(completed.iter().all(|it| it.buffer.is_some()));
            world.run(|world| world.initiators[at].host.is_idle());
            world.set_weather(Weather::FOUL);
        }
        assert_eq!(world.outcome(at, destination()), None, "seed {seed}");
        world.leave(at);
    }
}

#[test]
fn a_discovery_controller_tells_where_the_subsystem_is() {
    let world = &mut World::new(Setup::FAIR);
    let at = world.initiator(options());
    let discovery = Destination {
        subnqn: Nqn::discovery(),
        nsid: None,
        ..destination()
    };
    assert_eq!(world.outcome(at, discovery), None);
    let host = &world.initiators[at].host;
    assert_eq!((host.namespace(), host.room()), (None, 0));
    let mut reader = LogReader::new(4);
    let mut found = Vec::new();
    loop {
        let request = reader.request();
        let Data::ToHost(len) = request.data else {
            panic!("{request:?}");
        };
        let payload = Payload::Read(leak([0; 8192]), len);
        let host = &mut world.initiators[at].host;
        host.admin(&request.sqe, payload, 7).unwrap();
        let rejected = host.admin(&request.sqe, Payload::Nothing, 8).unwrap_err();
        assert_eq!(rejected.reason, Reason::Full);
        let completion = world.completion(at);
        assert!(completion.result.is_ok(), "{completion:?}");
        let data = &completion.buffer.unwrap()[..completion.received as usize];
        match reader.completed(data).unwrap() {
            Progress::More => {}
            Progress::Entries(entries) => found.extend(entries.iter().cloned()),
            Progress::Restart => found.clear(),
            Progress::Done => break,
        }
    }
    let nqns: Vec<_> = found.iter().map(|it| it.subnqn().unwrap()).collect();
    assert!(nqns.contains(&bytes::SUBNQN.parse().unwrap()), "{nqns:?}");
    world.leave(at);
}

#[test]
fn any_admin_command() {
    let world = &mut World::new(Setup::FAIR);
    let at = world.connected(options());
    let host = &mut world.initiators[at].host;
    let identify = command::identify(Cns::Controller, Nsid(0));
    let payload = Payload::Read(leak([0; 4096]), 4096);
    host.admin(&identify, payload, 3).unwrap();
    let completion = world.completion(at);
    assert_eq!(&completion.buffer.unwrap()[24..29], b"board");
}
