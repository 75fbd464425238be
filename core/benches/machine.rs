//! Prints what the target's machines cost without sockets: nanoseconds of a
//! command, bytes of a connection. Figures go to docs/benchmarks.md.
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant as Clock};

use nvmf_core::block::{Geometry, Request, Submit};
use nvmf_core::command::IoCommand;
use nvmf_core::storage::Fixed;
use nvmf_core::target::queue_pair::QueuePair;
use nvmf_core::target::{
    Backend, BufferUse, Catalog, ControllerState, Env, HostIdentity, Limits, Listener, Namespace,
    NamespaceRef, RegistryError, Subsystem, SubsystemKind,
};
use nvmf_core::tcp::connection::TargetConnection;
use nvmf_core::tcp::rx::{End, Framer, Progress};
use nvmf_core::tcp::target::{Config, TargetQueue};
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::{Cntlid, Nqn, Nsid, Qid};
use nvmf_core::wire::pdu::CapsuleCmd;
use nvmf_core::{DataBuffers, Place, SlotId, digest};
use nvmf_testing::bytes::{self, Data, Dressing, SUBNQN};

/// Commands that are in flight at a time in one measurement: half of the queue.
const BATCH: u16 = 64;

fn main() {
    println!("nanoseconds, the best of 20 runs");
    println!("{:>8.1}  a CapsuleCmd framed and decoded", decode());
    for (batch, name) in [(1, "one at a time"), (BATCH, "64 at a time")] {
        for digests in 0..=1 {
            let digest = if digests == 0 {
                ""
            } else {
                ", header digests (portable CRC32C)"
            };
            let read = read(batch, digests);
            println!("{read:>8.1}  a read of 4 KiB through a connection, {name}{digest}");
        }
    }
    println!("bytes at depth          4       32      128");
    sizes("TargetQueue", transport_sizes());
    sizes("QueuePair", pair_sizes());
    sizes("TargetConnection", connection_sizes());
}

/// From the bytes of a capsule to the command's meaning.
fn decode() -> f64 {
    let read = bytes::block_command(0x02, 5, 1, 0x1234, 8).data(Data::Transport(4096));
    let capsule = Dressing::default().capsule(&read, &[]);
    let mut framer = Framer::new(End::Controller, digest::portable);
    best(1, || {
        let mut rest = &black_box(&capsule)[..];
        while !rest.is_empty() {
            let (used, progress) = framer.push(rest, &mut Nowhere).expect("is well-formed");
            rest = &rest[used..];
            if let Progress::Header(_) = progress {
                let capsule: CapsuleCmd = framer.header_as().expect("is a capsule");
                black_box(IoCommand::decode(&capsule.sqe));
            }
        }
    })
}

/// Capsule in, C2HData and CapsuleResp out; the namespace lends its memory.
fn read(batch: u16, digests: u8) -> f64 {
    let mut target = Target::new();
    let mut admin = connect(&mut target, 0, digests);
    let dressing = Dressing {
        header_digest: digests & 1 != 0,
        ..Dressing::default()
    };
    let enable = bytes::property_set(2, 0x14, bytes::CC_ENABLE);
    exchange(&mut admin, &mut target, &dressing.capsule(&enable, &[]));
    let mut connection = connect(&mut target, 1, digests);
    let mut capsules = Vec::new();
    for cid in 0..batch {
        let read = bytes::block_command(0x02, cid, 1, (cid * 8).into(), 8);
        capsules.extend(dressing.capsule(&read.data(Data::Transport(4096)), &[]));
    }
    best(batch.into(), || {
        exchange(&mut connection, &mut target, black_box(&capsules));
    })
}

type Connection = TargetConnection<Fixed<128>, Memory, Rc<ControllerState>>;

/// A queue that is connected.
fn connect(target: &mut Target, qid: u16, digests: u8) -> Connection {
    let config = Config::default();
    let mut connection = Connection::new(&config, Duration::from_secs(10), Instant::ZERO);
    exchange(&mut connection, target, &bytes::ic_req(0, digests));
    let entries: u16 = if qid == 0 { 32 } else { 128 };
    let connect = bytes::connect(1, qid, entries - 1, 0);
    let cntlid = if qid == 0 { 0xFFFF } else { 1 };
    let dressing = Dressing {
        header_digest: digests & 1 != 0,
        ..Dressing::default()
    };
    let capsule = dressing.capsule(&connect, &bytes::connect_data(cntlid, SUBNQN));
    exchange(&mut connection, target, &capsule);
    assert!(connection.identity().is_some(), "not connected");
    connection
}

/// What a binding does with bytes that arrived.
fn exchange(connection: &mut Connection, target: &mut Target, bytes: &[u8]) {
    connection.handle_input(bytes, target);
    let mut head = [0; MAX_HEAD];
    while let Some(transmit) = connection.poll_transmit(&mut head) {
        black_box((&head, transmit.payload));
        if let Some(slot) = transmit.finishes {
            connection.sent(slot, target);
        }
    }
    assert_eq!(connection.closing(), None);
}

/// Nanoseconds of `work`, which does `units` of what is measured.
fn best(units: u32, mut work: impl FnMut()) -> f64 {
    let rounds = 200_000 / units;
    let run = |_| {
        let start = Clock::now();
        (0..rounds).for_each(|_| work());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds * units)
    };
    (0..20).map(run).fold(f64::INFINITY, f64::min)
}

fn sizes(name: &str, bytes: [usize; 3]) {
    let [small, middle, large] = bytes;
    println!("{name:<16} {small:>8} {middle:>8} {large:>8}");
}

fn transport_sizes() -> [usize; 3] {
    [
        size_of::<TargetQueue<Fixed<4>>>(),
        size_of::<TargetQueue<Fixed<32>>>(),
        size_of::<TargetQueue<Fixed<128>>>(),
    ]
}

type Pair<const N: usize> = QueuePair<Fixed<N>, &'static mut [u8], &'static ControllerState>;

fn pair_sizes() -> [usize; 3] {
    [
        size_of::<Pair<4>>(),
        size_of::<Pair<32>>(),
        size_of::<Pair<128>>(),
    ]
}

type Whole<const N: usize> =
    TargetConnection<Fixed<N>, &'static mut [u8], &'static ControllerState>;

fn connection_sizes() -> [usize; 3] {
    [
        size_of::<Whole<4>>(),
        size_of::<Whole<32>>(),
        size_of::<Whole<128>>(),
    ]
}

type Memory = Vec<u8>;

/// For streams without data.
struct Nowhere;

impl DataBuffers for Nowhere {
    fn reserve(&mut self, _: SlotId, _: u32) -> bool {
        false
    }

    fn place(&mut self, _: Place) -> &mut [u8] {
        &mut []
    }
}

/// One namespace of 1 GiB, of which no byte is touched, and one controller.
struct Target {
    disk: Disk,
    controller: Rc<ControllerState>,
}

struct Disk {
    nqn: Nqn,
    namespaces: [Namespace; 1],
}

impl Target {
    fn new() -> Self {
        let namespace = Namespace {
            nsid: Nsid(1),
            geometry: Geometry {
                block_shift: 9,
                blocks: 1 << 21,
                read_only: false,
                volatile_cache: false,
                deallocate_zeroes: true,
                optimal_blocks: 0,
            },
            uuid: [1; 16],
            nguid: [0; 16],
            eui64: [0; 8],
        };
        Self {
            disk: Disk {
                nqn: SUBNQN.parse().expect("is a name"),
                namespaces: [namespace],
            },
            controller: Rc::new(ControllerState::new(Cntlid(1), 0)),
        }
    }
}

impl Catalog for Disk {
    fn subsystem(&self, index: usize) -> Option<Subsystem<'_>> {
        (index == 0).then_some(Subsystem {
            nqn: &self.nqn,
            kind: SubsystemKind::Nvm,
            serial: "1",
            model: "bench",
            firmware: "1",
            namespaces: &self.namespaces,
            allowed_hosts: None,
            cntlid_range: (Cntlid(1), Cntlid(1)),
        })
    }

    fn listener(&self, _: usize) -> Option<Listener<'_>> {
        None
    }

    fn generation(&self) -> u64 {
        1
    }
}

impl Env for Target {
    type Controller = Rc<ControllerState>;
    type Catalog = Disk;

    fn catalog(&self) -> &Disk {
        &self.disk
    }

    fn limits(&self) -> Limits {
        Limits {
            io_queue_entries: 128,
            admin_queue_entries: 32,
            io_queues: 1,
            inline_data: 8192,
            transfer: 1 << 20,
        }
    }

    fn local_listener(&self) -> Listener<'_> {
        Listener {
            trtype: 3,
            adrfam: 1,
            traddr: "192.0.2.1",
            trsvcid: "4420",
            portid: 1,
        }
    }

    fn create_controller(
        &mut self,
        _: usize,
        _: &HostIdentity,
        _: Cntlid,
    ) -> Result<Self::Controller, RegistryError> {
        Ok(self.controller.clone())
    }

    fn join_controller(
        &mut self,
        _: usize,
        _: &HostIdentity,
        _: Cntlid,
        _: Qid,
    ) -> Result<Self::Controller, RegistryError> {
        Ok(self.controller.clone())
    }

    fn leave_controller(&mut self, _: &Self::Controller, _: Qid) {}

    fn controller_changed(&mut self, _: &Self::Controller) {}

    fn now(&self) -> Instant {
        Instant::ZERO
    }
}

impl Backend for Target {
    type Buffer = Memory;

    fn take_buffer(&mut self, len: u32, _: BufferUse) -> Option<Memory> {
        Some(vec![0; len as usize])
    }

    fn give_buffer(&mut self, _: Memory) {}

    fn submit(&mut self, _: NamespaceRef, request: Request<Memory>) -> Submit<Memory> {
        Submit::Done(request.complete(Ok(())))
    }

    fn lends(&self, _: NamespaceRef) -> bool {
        true
    }
}
