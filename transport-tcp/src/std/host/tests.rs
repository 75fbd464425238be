//! The host against a target of this crate, over loopback.
mod late;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nvmf_core::block::{
    BlockDevice, Completion as Done, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_core::host::{Error as HostError, Step, command};
use nvmf_core::wire::discovery::Subtype;
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_core::wire::sqe::IoOpcode;
use nvmf_core::wire::status::Status;

use super::super::buffer::Buffer;
use super::super::catalog::Subsystem;
use super::super::device::{self, Device};
use super::super::mapping::Mapping;
use super::super::target::{Config, Running, Target};
use super::super::waker::Waker;
use super::{Controller, Error, Options, Payload, Url};

pub(super) const NQN: &str = "nqn.2014-08.org.example:memory";
pub(super) const BYTES: usize = 8 << 20;

/// 8 MiB of memory in blocks of 512 bytes. Reads of the last block never end.
#[derive(Clone)]
pub(super) struct Memory(pub(super) Arc<Mapping>);

impl device::Namespace for Memory {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_shift: 9,
            blocks: (BYTES >> 9) as u64,
            read_only: false,
            volatile_cache: true,
            deallocate_zeroes: true,
            optimal_blocks: 0,
        }
    }

    fn identity(&self) -> device::Identity {
        device::Identity {
            uuid: [1; 16],
            nguid: [2; 16],
            eui64: [3; 8],
        }
    }

    fn open(&self, _: &Waker) -> Box<dyn Device> {
        Box::new(self.clone())
    }
}

impl Memory {
    fn perform(&self, request: &mut Request<Buffer>) -> Result<(), MediaError> {
        let at = |byte: u64| usize::try_from(byte).unwrap();
        let buffer = request.buffer.as_mut().map(AsMut::as_mut);
        match request.op {
            Op::Read(extent) => {
                let bytes = &mut buffer.unwrap()[..at(extent.len)];
                self.0.read(at(extent.byte), bytes).unwrap();
            }
            Op::Write { extent, .. } => {
                let bytes = &buffer.unwrap()[..at(extent.len)];
                self.0.write(at(extent.byte), bytes).unwrap();
            }
            Op::Compare(extent) => {
                let mut stored = vec![0; at(extent.len)];
                self.0.read(at(extent.byte), &mut stored).unwrap();
                if stored != buffer.unwrap()[..at(extent.len)] {
                    return Err(MediaError::Miscompare);
                }
            }
            Op::WriteZeroes { extent, .. } | Op::Deallocate(extent) => {
                self.0.zero(at(extent.byte), at(extent.len)).unwrap();
            }
            Op::Verify(_) | Op::Flush => {}
        }
        Ok(())
    }
}

impl BlockDevice for Memory {
    type Buffer = Buffer;

    fn geometry(&self) -> Geometry {
        device::Namespace::geometry(self)
    }

    fn submit(&mut self, mut request: Request<Buffer>) -> Submit<Buffer> {
        if matches!(request.op, Op::Read(extent) if extent.byte == BYTES as u64 - 512) {
            return Submit::Pending;
        }
        let result = self.perform(&mut request);
        Submit::Done(request.complete(result))
    }

    fn poll(&mut self) -> Option<Done<Buffer>> {
        None
    }
}

impl Device for Memory {}

/// A target in threads of its own, stopped when dropped.
pub(super) struct Served {
    pub(super) address: SocketAddr,
    running: Option<Running>,
}

impl Served {
    pub(super) fn start(change: impl FnOnce(&mut Config)) -> Self {
        let memory = Memory(Arc::new(Mapping::new(BYTES).unwrap()));
        let mut config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            subsystems: vec![Subsystem::new(NQN.parse().unwrap()).with(memory)],
            workers: Some(1),
            pin: false,
            ..Config::default()
        };
        change(&mut config);
        let target = Target::bind(config).unwrap();
        Self {
            address: target.local_addrs()[0],
            running: Some(target.spawn().unwrap()),
        }
    }

    pub(super) fn url(&self, nqn: &str) -> Url {
        url(self.address, nqn)
    }

    fn connect(&self, options: &Options) -> Controller {
        Controller::connect(&self.url(NQN), options).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stopper().stop();
            running.join().unwrap();
        }
    }
}

pub(super) fn url(address: SocketAddr, nqn: &str) -> Url {
    format!("nvme+tcp://{address}/{nqn}").parse().unwrap()
}

pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn discovery_leads_to_the_subsystem() {
    let served = Served::start(|_| {});
    let nowhere = format!("nvme+tcp://{}", served.address).parse().unwrap();
    let discovery = Controller::connect(&nowhere, &Options::default()).unwrap();
    let entries = discovery.discover().unwrap();
    let found: Vec<_> = entries
        .iter()
        .filter(|entry| entry.subtype() == Subtype::Nvm)
        .collect();
    assert_eq!(found.len(), 1, "{entries:?}");
    assert_eq!(found[0].subnqn().unwrap().as_str(), NQN);
    assert_eq!(
        found[0].trsvcid(),
        Some(&*served.address.port().to_string())
    );
}

#[test]
fn data_survives_with_and_without_digests() {
    let served = Served::start(|_| {});
    for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)]
    {
        let options = Options {
            header_digest,
            data_digest,
            ..Options::default()
        };
        let controller = served.connect(&options);
        let mut namespace = controller.namespace(Nsid(1)).unwrap();
        let digests = namespace.queue().digests();
        assert_eq!((digests.header, digests.data), (header_digest, data_digest));
        for (seed, len) in [512, 4096, 8192, 16_384, 16_896, 131_072, 1 << 20, 3 << 20]
            .into_iter()
            .enumerate()
        {
            let written = noise(seed as u64, len);
            namespace.write(7, &written).unwrap();
            namespace.compare(7, &written).unwrap();
            let mut read = vec![0; len];
            namespace.read(7, &mut read).unwrap();
            assert!(read == written, "{len} bytes");
            let other = noise(99, len);
            match namespace.compare(7, &other) {
                Err(Error::Failed { status, .. }) => {
                    assert!(status.is(Status::COMPARE_FAILURE), "{status}");
                }
                outcome => panic!("{outcome:?}"),
            }
        }
        namespace.flush().unwrap();
    }
}

#[test]
fn zeroes_and_what_is_beyond_the_end() {
    let served = Served::start(|_| {});
    let controller = served.connect(&Options::default());
    let mut namespace = controller.namespace(Nsid(1)).unwrap();
    assert_eq!((namespace.block_size(), namespace.blocks()), (512, 16_384));
    let mut bytes = vec![0; BYTES];
    for zero in [0, 1] {
        namespace.write(0, &noise(3, BYTES)).unwrap();
        match zero {
            0 => namespace.write_zeroes(0, 16_384).unwrap(),
            _ => namespace.deallocate(0, 16_384).unwrap(),
        }
        namespace.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
    match namespace.read(16_383, &mut bytes[..1024]) {
        Err(error @ Error::Failed { .. }) => {
            assert_eq!(
                error.to_string(),
                "Read failed: LBA Out of Range (0/80h) DNR"
            );
        }
        outcome => panic!("{outcome:?}"),
    }
    // The queue is as good as before.
    namespace.read(16_382, &mut bytes[..512]).unwrap();
    let error = namespace.read(0, &mut bytes[..100]).unwrap_err();
    assert!(matches!(error, Error::NotWholeBlocks { .. }), "{error}");
    let error = controller.namespace(Nsid(5)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the controller has no namespace 5; it has 1"
    );
}

#[test]
fn several_buffers_and_commands_without_data() {
    let served = Served::start(|_| {});
    let controller = served.connect(&Options::default());
    let mut namespace = controller.namespace(Nsid(1)).unwrap();
    let lens = [513, 1, 510, 300_000, 1 << 20, 724_000];
    let data = noise(4, lens.iter().sum());
    let mut rest = &data[..];
    let buffers = lens.map(|len| {
        let (first, others) = rest.split_at(len);
        rest = others;
        Buffer::from(first)
    });
    namespace.set_fua(true);
    let back = namespace.write_vectored(5, buffers.into()).unwrap();
    assert_eq!(
        back.iter().map(|b| b.as_ref().len()).collect::<Vec<_>>(),
        lens
    );
    let mut read = vec![0; data.len()];
    namespace.read(5, &mut read).unwrap();
    assert!(read == data);
    let empty = lens.iter().rev().map(|len| Buffer::zeroed(*len)).collect();
    let parts = namespace.read_vectored(5, empty).unwrap();
    assert!(parts.into_iter().flat_map(Vec::from).eq(data));
    namespace.verify(0, 16_383).unwrap();
    assert!(namespace.verify(16_384, 1).is_err());
    let error = namespace.copy(&[(0, 8)], 16).unwrap_err();
    assert_eq!(error.to_string(), "the controller does not offer Copy");
}

#[test]
fn many_commands_at_a_time_and_none_lost() {
    let served = Served::start(|_| {});
    let controller = served.connect(&Options::default());
    let mut queue = controller.queue().unwrap();
    let depth = queue.depth();
    assert_eq!(depth, 128);
    let mut completions = Vec::new();
    let (mut sent, mut done) = (0, 0);
    let total = 20_000;
    while done < total {
        while sent < total {
            let sqe = command::blocks(IoOpcode::Read, Nsid(1), sent % 16_000, 8);
            let payload = Payload::Read(Buffer::zeroed(4096));
            if queue.enqueue(&sqe, payload, sent).is_err() {
                assert_eq!(queue.outstanding(), depth);
                break;
            }
            sent += 1;
        }
        queue.poll(&mut completions).unwrap();
        for completion in completions.drain(..) {
            assert!(completion.cqe.status().is_success());
            assert_eq!(completion.received, 4096);
            done += 1;
        }
    }
    assert_eq!(queue.outstanding(), 0);
}

#[test]
fn one_system_call_sends_many_commands() {
    let served = Served::start(|_| {});
    let controller = served.connect(&Options::default());
    let mut queue = controller.queue().unwrap();
    let read = |slba| command::blocks(IoOpcode::Read, Nsid(1), slba, 8);
    let payload = || Payload::Read(Buffer::zeroed(4096));
    let before = queue.system_calls();
    for tag in 0..16 {
        queue.enqueue(&read(tag), payload(), tag).unwrap();
    }
    assert_eq!(queue.system_calls(), before);
    queue.flush();
    queue.flush();
    assert_eq!(queue.system_calls(), before + 1);
    queue.submit(&read(16), payload(), 16).unwrap();
    assert_eq!(queue.system_calls(), before + 2);
}

#[test]
fn the_controller_outlives_its_keep_alive_timeout() {
    let served = Served::start(|_| {});
    let controller = served.connect(&Options {
        keep_alive: Duration::from_millis(1000),
        ..Options::default()
    });
    let mut namespace = controller.namespace(Nsid(1)).unwrap();
    thread::sleep(Duration::from_millis(3500));
    namespace.flush().unwrap();
    controller.identify().unwrap();
}

#[test]
fn a_command_that_never_ends_takes_its_queue_along_but_no_other() {
    let served = Served::start(|config| config.stop_timeout = Duration::from_millis(100));
    let controller = served.connect(&Options {
        command_timeout: Duration::from_millis(300),
        ..Options::default()
    });
    let mut namespace = controller.namespace(Nsid(1)).unwrap();
    let error = namespace.read(16_383, &mut [0; 512]).unwrap_err();
    assert_eq!(error.to_string(), "Read was not answered within 0.3 s");
    assert!(matches!(namespace.flush(), Err(Error::GivenUp)));
    controller.namespace(Nsid(1)).unwrap().flush().unwrap();
}

#[test]
fn queues_are_given_back() {
    let served = Served::start(|_| {});
    let controller = served.connect(&Options {
        io_queues: 2,
        ..Options::default()
    });
    // One at a time needs no pause.
    for _ in 0..20 {
        controller.namespace(Nsid(1)).unwrap().flush().unwrap();
    }
    thread::sleep(Duration::from_millis(200));
    for _ in 0..3 {
        let first = controller.queue().unwrap();
        let second = controller.queue().unwrap();
        assert!(matches!(
            controller.queue(),
            Err(Error::NoQueueLeft { granted: 2 })
        ));
        drop((first, second));
        // Until the target has seen that the connections are gone.
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn refusals_say_why() {
    let served = Served::start(|config| {
        let allowed: Nqn = "nqn.2014-08.org.example:somebody".parse().unwrap();
        config.subsystems[0].allowed_hosts = Some(vec![allowed]);
    });
    let refused = |nqn| match Controller::connect(&served.url(nqn), &Options::default()) {
        Err(Error::Controller(HostError::Refused { step, status, .. })) => {
            assert_eq!(step, Step::Connect);
            status
        }
        other => panic!("{other:?}"),
    };
    assert!(refused(NQN).is(Status::CONNECT_INVALID_HOST));
    assert!(refused("nqn.2014-08.org.example:other").is(Status::CONNECT_INVALID_PARAMETERS));
}

#[test]
fn nobody_there() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let error = Controller::connect(&url(address, NQN), &Options::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("nothing listens on {address}: is the target running, and the port right?")
    );
}

#[test]
fn somebody_hangs_up_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        // ICReq is read before one connection is closed, not before the other: FIN and RST.
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 128]).unwrap();
        drop(stream);
        let (stream, _) = listener.accept().unwrap();
        stream.peek(&mut [0]).unwrap();
        drop(stream);
    });
    for _ in 0..2 {
        let error = Controller::connect(&url(address, NQN), &Options::default()).unwrap_err();
        assert!(matches!(error, Error::NoIcResp { .. }), "{error}");
    }
    other.join().unwrap();
}

#[test]
fn somebody_else_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let mut held = Vec::new();
        for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 128]).unwrap();
            stream.write_all(answer).unwrap();
            held.push(stream);
        }
        held
    });
    let options = Options {
        connect_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let began = Instant::now();
    let error = Controller::connect(&url(address, NQN), &options).unwrap_err();
    assert!(matches!(error, Error::NoIcResp { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
    let error = Controller::connect(&url(address, NQN), &options).unwrap_err();
    assert!(
        matches!(error, Error::Controller(HostError::Transport(_))),
        "{error}"
    );
    other.join().unwrap();
}

#[test]
fn a_target_that_goes_away_is_noticed() {
    let served = Served::start(|_| {});
    let controller = served.connect(&Options::default());
    let mut namespace = controller.namespace(Nsid(1)).unwrap();
    namespace.flush().unwrap();
    drop(served);
    assert!(namespace.flush().is_err());
    assert!(controller.identify().is_err());
}
