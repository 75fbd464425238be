//! Targets that go away and come back, that stay away, and that fall silent.
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::Receiver;

use nvmf_core::block::Geometry;

use super::super::super::super::catalog::Subsystem;
use super::super::super::super::device::{self, Device};
use super::super::super::super::mapping::Mapping;
use super::super::super::super::target::Config;
use super::super::super::super::waker::Waker as DeviceWaker;
use super::super::super::tests::{Memory, url};
use super::super::super::{Policy, Url};
use super::super::Event;
use super::*;

/// Longer than anything here takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

const QUICK: Policy = Policy {
    reconnect_delay: Duration::from_millis(20),
    ctrl_loss_tmo: None,
    fast_io_fail_tmo: None,
};

fn options(recovery: Policy) -> Options {
    Options {
        recovery,
        ..few(2, 8)
    }
}

/// A namespace with a name, and perhaps fewer blocks, of its own.
struct Disk {
    memory: Memory,
    name: u8,
    blocks: u64,
}

impl device::Namespace for Disk {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks,
            ..device::Namespace::geometry(&self.memory)
        }
    }

    fn identity(&self) -> device::Identity {
        device::Identity {
            uuid: [self.name; 16],
            nguid: [self.name; 16],
            eui64: [self.name; 8],
        }
    }

    fn open(&self, waker: &DeviceWaker) -> Box<dyn Device> {
        self.memory.open(waker)
    }
}

fn memory() -> Memory {
    Memory(Arc::new(Mapping::new(BYTES).unwrap()))
}

/// A target of this disk, at this address or at any.
fn serve(disk: Disk, address: Option<SocketAddr>, change: impl FnOnce(&mut Config)) -> Served {
    Served::start(|config| {
        config.subsystems = vec![Subsystem::new(NQN.parse().unwrap()).with(disk)];
        config.listen = address.map_or_else(|| config.listen.clone(), |address| vec![address]);
        // Commands under way are lost.
        config.stop_timeout = Duration::ZERO;
        change(config);
    })
}

fn disk(memory: &Memory) -> Disk {
    Disk {
        memory: memory.clone(),
        name: 1,
        blocks: BLOCKS,
    }
}

/// Waits for an event that `pick` makes something of; the others are dropped.
fn event<T>(events: &Receiver<Event>, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
    loop {
        let event = events.recv_timeout(PATIENCE).expect("an event");
        if let Some(found) = pick(&event) {
            return found;
        }
    }
}

fn reconnected(events: &Receiver<Event>) {
    event(events, |event| {
        matches!(event, Event::Reconnected).then_some(())
    });
}

#[test]
fn a_target_that_restarts_under_load_loses_nothing() {
    const WRITERS: u64 = 4;
    const RESTARTS: usize = 5;
    const BLOCKS_OF_ONE: u64 = 64;
    let memory = memory();
    let mut served = serve(disk(&memory), None, |_| {});
    let address = served.address;
    let host = host(2);
    let association = attach(&host, &served, &options(QUICK));
    let events = association.events();
    let namespace = association.namespace(Nsid(1)).wait().unwrap();
    let written = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let _served = thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (namespace, written, stop) = (namespace.clone(), &written, &stop);
            scope.spawn(move || {
                // Each write is of another version, and is read back before the next.
                let slba = writer * BLOCKS_OF_ONE;
                let mut version = 0;
                while !stop.load(Ordering::Relaxed) {
                    version += 1;
                    let seed = writer << 32 | version;
                    // 16 KiB go inside a capsule; 32 KiB are asked for.
                    let len = [512, 16_384, 32_768][version as usize % 3];
                    let data = noise(seed, len);
                    namespace.write(slba, data.clone()).wait().unwrap();
                    let read = namespace.read(slba, vec![0; len]).wait().unwrap();
                    assert!(read.as_ref() == data, "writer {writer}, version {version}");
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..RESTARTS {
            let before = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) < before + 50 {
                thread::yield_now();
            }
            drop(served);
            served = serve(disk(&memory), Some(address), |_| {});
            reconnected(&events);
        }
        stop.store(true, Ordering::Relaxed);
        served
    });
    namespace.flush().wait().unwrap();
}

#[test]
fn without_patience_a_loss_is_the_end() {
    let memory = memory();
    let served = serve(disk(&memory), None, |_| {});
    let host = host(1);
    let policy = Policy {
        ctrl_loss_tmo: Some(Duration::ZERO),
        ..QUICK
    };
    let association = attach(&host, &served, &options(policy));
    let events = association.events();
    let namespace = association.namespace(Nsid(1)).wait().unwrap();
    let stuck = namespace.read(BLOCKS - 1, vec![0; 512]);
    drop(served);
    let error = stuck.wait().unwrap_err();
    assert!(matches!(error, Error::Closed | Error::Lost(_)), "{error}");
    event(&events, |event| {
        matches!(event, Event::Lost(_)).then_some(())
    });
    event(&events, |event| matches!(event, Event::Gone).then_some(()));
    assert!(namespace.write(0, vec![0; 512]).wait().is_err());
    assert!(association.identify().wait().is_err());
}

#[test]
fn attempts_are_counted_and_the_last_is_the_end() {
    let memory = memory();
    let served = serve(disk(&memory), None, |_| {});
    let host = host(1);
    let policy = Policy {
        ctrl_loss_tmo: Some(Duration::from_millis(50)),
        ..QUICK
    };
    let association = attach(&host, &served, &options(policy));
    let events = association.events();
    let namespace = association.namespace(Nsid(1)).wait().unwrap();
    drop(served);
    let error = namespace.write(0, vec![0; 512]).wait().unwrap_err();
    // Why the last attempt failed.
    assert!(matches!(error, Error::NothingListens { .. }), "{error}");
    let mut all = Vec::new();
    event(&events, |event| {
        all.push(event.to_string());
        matches!(event, Event::Gone).then_some(())
    });
    assert!(all[0].starts_with("lost: "), "{all:?}");
    for (attempt, told) in (1..=3).zip(all[1..7].chunks(2)) {
        assert_eq!(told[0], format!("attempt {attempt} to reconnect in 0.02 s"));
        assert!(
            told[1].starts_with("not reconnected: nothing listens"),
            "{all:?}"
        );
    }
    assert_eq!(all[7..], ["gone"]);
}

#[test]
fn commands_need_not_wait_as_long_as_the_host_tries() {
    let memory = memory();
    let served = serve(disk(&memory), None, |_| {});
    let address = served.address;
    let host = host(1);
    let policy = Policy {
        fast_io_fail_tmo: Some(Duration::from_millis(50)),
        ..QUICK
    };
    let association = attach(&host, &served, &options(policy));
    let events = association.events();
    let namespace = association.namespace(Nsid(1)).wait().unwrap();
    drop(served);
    event(&events, |event| {
        matches!(event, Event::Lost(_)).then_some(())
    });
    for _ in 0..2 {
        let error = namespace.read(0, vec![0; 512]).wait().unwrap_err();
        assert!(matches!(error, Error::FailFast), "{error}");
    }
    let _served = serve(disk(&memory), Some(address), |_| {});
    reconnected(&events);
    namespace.read(0, vec![0; 512]).wait().unwrap();
}

#[test]
fn who_is_not_let_in_again_does_not_try_on() {
    let memory = memory();
    let served = serve(disk(&memory), None, |_| {});
    let address = served.address;
    let host = host(1);
    let association = attach(&host, &served, &options(QUICK));
    let events = association.events();
    drop(served);
    let _served = serve(disk(&memory), Some(address), |config| {
        let other = "nqn.2014-08.org.example:somebody".parse().unwrap();
        config.subsystems[0].allowed_hosts = Some(vec![other]);
    });
    event(&events, |event| matches!(event, Event::Gone).then_some(()));
    let error = association.identify().wait().unwrap_err();
    assert!(
        error.to_string().contains("Connect Invalid Host"),
        "{error}"
    );
}

#[test]
fn another_namespace_under_the_same_number_gets_no_commands() {
    let ours = memory();
    let served = serve(disk(&ours), None, |_| {});
    let address = served.address;
    let host = host(1);
    let association = attach(&host, &served, &options(QUICK));
    let events = association.events();
    let namespace = association.namespace(Nsid(1)).wait().unwrap();
    let written = noise(1, 512);
    namespace.write(0, written.clone()).wait().unwrap();
    let changed = || {
        event(&events, |event| match event {
            Event::NamespaceChanged(nsid) => Some(*nsid),
            Event::Reconnected => panic!("no change"),
            _ => None,
        })
    };
    // The same one, smaller.
    drop(served);
    let smaller = Disk {
        blocks: BLOCKS / 2,
        ..disk(&ours)
    };
    let served = serve(smaller, Some(address), |_| {});
    assert_eq!(changed(), Nsid(1));
    reconnected(&events);
    assert_eq!(namespace.blocks(), BLOCKS / 2);
    let read = namespace.read(0, vec![0; 512]).wait().unwrap();
    assert!(read.as_ref() == written);
    // Another one.
    drop(served);
    event(&events, |event| {
        matches!(event, Event::Lost(_)).then_some(())
    });
    let waits = namespace.write(0, noise(2, 512));
    let theirs = memory();
    let other = Disk {
        name: 2,
        ..disk(&theirs)
    };
    let _served = serve(other, Some(address), |_| {});
    assert_eq!(changed(), Nsid(1));
    reconnected(&events);
    for request in [waits, namespace.write(0, noise(3, 512))] {
        let error = request.wait().unwrap_err();
        assert!(
            matches!(error, Error::NamespaceReplaced { nsid: 1 }),
            "{error}"
        );
    }
    let again = association.namespace(Nsid(1)).wait().unwrap();
    let read = again.read(0, vec![1; 512]).wait().unwrap();
    assert!(read.as_ref() == [0; 512], "nothing was written to it");
}

/// Passes bytes on in both directions, unless told to keep them; ends with its connections.
struct Line {
    address: SocketAddr,
    silent: Arc<AtomicBool>,
    open: Arc<AtomicBool>,
}

impl Line {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Self {
            address: listener.local_addr().unwrap(),
            silent: Arc::default(),
            open: Arc::new(AtomicBool::new(true)),
        };
        let (silent, open) = (Arc::clone(&line.silent), Arc::clone(&line.open));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if !open.load(Ordering::SeqCst) {
                    return;
                }
                let host = stream.unwrap();
                let target = TcpStream::connect(target).unwrap();
                for (from, to) in [(&host, &target), (&target, &host)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let silent = Arc::clone(&silent);
                    thread::spawn(move || pass(from, to, &silent));
                }
            }
        });
        line
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut bytes = vec![0; 65_536];
    let mut kept = false;
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        // What was kept once is not passed on later, or the stream would have a hole.
        kept |= silent.load(Ordering::SeqCst);
        if !kept && to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    if !kept {
        let _ = to.shutdown(Shutdown::Write);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.open.store(false, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

#[test]
fn a_target_that_falls_silent_is_left() {
    let memory = memory();
    let served = serve(disk(&memory), None, |_| {});
    let line = Line::to(served.address);
    let host = host(1);
    let options = Options {
        keep_alive: Duration::from_millis(400),
        connect_timeout: Duration::from_millis(200),
        ..options(QUICK)
    };
    let association = host
        .attach(&url(line.address, NQN), &options)
        .wait()
        .unwrap();
    let events = association.events();
    let namespace = association.namespace(Nsid(1)).wait().unwrap();
    line.silent.store(true, Ordering::SeqCst);
    let old = noise(1, 32_768);
    let write = namespace.write(0, old.clone());
    let read = namespace.read(1000, vec![1; 512]);
    let why = event(&events, |event| match event {
        Event::Lost(error) => Some(error.to_string()),
        _ => None,
    });
    assert_eq!(why, "the controller did not answer Keep Alive in time");
    // An attempt gets no further than ICReq.
    event(&events, |event| {
        matches!(event, Event::Reconnecting { attempt: 2, .. }).then_some(())
    });
    line.silent.store(false, Ordering::SeqCst);
    reconnected(&events);
    assert!(read.wait().unwrap().as_ref() == [0; 512]);
    write.wait().unwrap();
    assert!(
        namespace
            .read(0, vec![0; old.len()])
            .wait()
            .unwrap()
            .as_ref()
            == old
    );
}

#[test]
fn a_command_that_never_ends_is_aborted_and_then_the_controller_is_left() {
    let memory = memory();
    let served = serve(disk(&memory), None, |_| {});
    let host = host(1);
    let options = Options {
        command_timeout: Duration::from_millis(300),
        ..options(QUICK)
    };
    let association = attach(&host, &served, &options);
    let events = association.events();
    let namespace = association.namespace(Nsid(1)).wait().unwrap();
    let stuck = namespace.read(BLOCKS - 1, vec![0; 512]);
    namespace.write(0, noise(1, 512)).wait().unwrap();
    let why = event(&events, |event| match event {
        Event::Lost(error) => Some(error.to_string()),
        _ => None,
    });
    assert!(why.contains("neither answered nor aborted"), "{why}");
    let error = stuck.wait().unwrap_err();
    assert_eq!(error.to_string(), "Read was not answered within 0.3 s");
    reconnected(&events);
    let read = namespace.read(0, vec![0; 512]).wait().unwrap();
    assert!(read.as_ref() == noise(1, 512));
}

#[test]
fn whoever_does_not_answer_is_no_target() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent: Url = url(listener.local_addr().unwrap(), NQN);
    let options = Options {
        connect_timeout: Duration::from_millis(100),
        ..options(QUICK)
    };
    let error = host(1).attach(&silent, &options).wait().unwrap_err();
    assert!(matches!(error, Error::NoIcResp { .. }), "{error}");
    drop(listener);
    let error = host(1).attach(&silent, &options).wait().unwrap_err();
    assert!(matches!(error, Error::NothingListens { .. }), "{error}");
}
