//! What a boot loader does: connects to a target, reads the first blocks of a disk
//! that is elsewhere, writes to its last ones, and sees whether they are there.
//! It is told where: `ADDRESS PORT NQN [digests]`.
#![no_std]
#![no_main]

use core::fmt::Display;

use board::clock::Clock;
use board::devices::{Devices, Lines, NIC_QUEUE, Nic};
use board::end::exit;
use board::memory::{Stack, Taken};
use board::words::words;
use board::{ADDRESS, GATEWAY, MAC, RING, crc32c, say};
use nvmf_core::host::Identity;
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::ids::HostId;
use nvmf_firmware::virtio::nic::Frame;
use nvmf_tcp::smoltcp::host::{
    ADMIN_SLOTS, Destination, Event, Host, Namespace, Options, Rejected, Resources, SCRATCH, Seat,
};
use smoltcp::iface::{Config, Interface, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::wire::EthernetAddress;

/// I/O queues, and commands of each.
const QUEUES: usize = 1;
const DEPTH: usize = 8;
/// Bytes that a command moves, at most. So much for each is read from the start of
/// the disk, and written to its end.
const PIECE: usize = 32 << 10;

static RECEIVED: Taken<[Frame; NIC_QUEUE]> = Taken::new([Frame::EMPTY; NIC_QUEUE]);
static TO_SEND: Taken<[Frame; NIC_QUEUE]> = Taken::new([Frame::EMPTY; NIC_QUEUE]);
static RINGS: Taken<[[[u8; RING]; 2]; QUEUES + 1]> = Taken::new([[[0; RING]; 2]; QUEUES + 1]);
static SOCKETS: Taken<[SocketStorage<'static>; QUEUES + 1]> =
    Taken::new([SocketStorage::EMPTY; QUEUES + 1]);
static ADMIN: Taken<Seat<'static, ADMIN_SLOTS>> = Taken::new(Seat::new());
static SEATS: Taken<[Seat<'static, DEPTH>; QUEUES]> = Taken::new([const { Seat::new() }; QUEUES]);
static SCRATCH_MEMORY: Taken<[u8; SCRATCH]> = Taken::new([0; SCRATCH]);
static DATA: Taken<[[u8; PIECE]; DEPTH]> = Taken::new([[0; PIECE]; DEPTH]);

/// The board, and its association.
struct Loader {
    clock: Clock,
    nic: Nic,
    lines: Lines,
    interface: Interface,
    sockets: SocketSet<'static>,
    host: Host<'static, QUEUES, DEPTH>,
}

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let mut told = words();
    let (Some(address), Some(port), Some(nqn)) = (told.next(), told.next(), told.next()) else {
        fail("told nothing: ADDRESS PORT NQN [digests]")
    };
    let digests = told.any(|word| word == "digests");
    let (Ok(address), Ok(port)) = (address.parse(), port.parse()) else {
        fail("not an address and a port")
    };
    let destination = Destination {
        address: smoltcp::wire::IpEndpoint {
            addr: address,
            port,
        },
        subnqn: nqn.parse().unwrap_or_else(|_| fail("not an NQN")),
        nsid: None,
    };
    let mut loader = Loader::start(digests);
    say!("boot: connecting to {}", destination.address);
    loader
        .host
        .connect(destination)
        .expect("a new host is idle");
    loader.wait(|event| matches!(event, Event::Ready).then_some(()));
    let namespace = *loader
        .host
        .namespace()
        .expect("a host that is ready has one");
    say!(
        "boot: namespace {}: {} blocks of {} bytes",
        namespace.nsid,
        namespace.blocks,
        namespace.block_size
    );
    let mut data = Data::new(&namespace);
    let bytes = data.piece * DEPTH;
    let last = namespace
        .blocks
        .checked_sub(u64::from(data.blocks) * DEPTH as u64);
    let last = last.unwrap_or_else(|| fail("the disk is too small"));

    let micros = loader.transfer(&mut data, Way::Read, 0);
    say!(
        "boot: read {bytes} bytes in {micros} us, CRC32C {:08x}",
        data.crc32c()
    );
    say!(
        "boot: the disk has {}",
        data.describe(namespace.block_size as usize)
    );

    data.each(|at, byte| *byte = pattern(at));
    let written = data.crc32c();
    let micros = loader.transfer(&mut data, Way::Write, last);
    loader.submit(Host::flush);
    loader.completed();
    say!("boot: wrote {bytes} bytes at block {last} in {micros} us, and flushed");
    data.each(|_, byte| *byte = 0);
    loader.transfer(&mut data, Way::Read, last);
    let mut same = true;
    data.each(|at, byte| same &= *byte == pattern(at));
    if !same {
        fail("what was read is not what was written");
    }
    say!("boot: verified, CRC32C {written:08x}");
    loader
        .host
        .disconnect(&mut loader.sockets, loader.clock.now());
    loader.wait(|event| matches!(event, Event::Closed(Ok(()))).then_some(()));
    let Stack { peak, size } = Stack::measure();
    say!("boot: done; stack {peak} of {size}");
    exit(0)
}

/// No two blocks alike.
fn pattern(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16).wrapping_mul(167) as u8
}

fn fail(why: impl Display) -> ! {
    say!("boot: {why}");
    exit(1)
}

#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

/// Buffers of commands, as one piece of data.
struct Data {
    buffers: [Option<&'static mut [u8]>; DEPTH],
    /// Bytes of each, and the blocks that they are.
    piece: usize,
    blocks: u32,
}

impl Data {
    fn new(namespace: &Namespace) -> Self {
        let blocks = (PIECE as u32 / namespace.block_size).min(namespace.transfer);
        let piece = (blocks * namespace.block_size) as usize;
        let mut memory = DATA.take().iter_mut();
        let buffers = [(); DEPTH].map(|()| memory.next().map(|it| &mut it[..piece]));
        Self {
            buffers,
            piece,
            blocks,
        }
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.buffers.iter().flatten().map(|it| &**it)
    }

    fn each(&mut self, mut with: impl FnMut(usize, &mut u8)) {
        let bytes = self
            .buffers
            .iter_mut()
            .flatten()
            .flat_map(|it| it.iter_mut());
        bytes.enumerate().for_each(|(at, byte)| with(at, byte));
    }

    fn crc32c(&self) -> u32 {
        let engine = crc32c::engine();
        self.pieces().fold(0, engine)
    }

    /// What a loader would go on with.
    fn describe(&self, block: usize) -> &'static str {
        let start = self.pieces().next().unwrap_or_default();
        let record = start.get(510..512) == Some(&[0x55, 0xAA]);
        let table = start.get(block..block + 8) == Some(b"EFI PART");
        match (record, table) {
            (_, true) => "a GUID partition table",
            (true, false) => "a boot record",
            (false, false) => "neither a boot record nor a partition table",
        }
    }
}

impl Loader {
    fn start(digests: bool) -> Self {
        let clock = Clock::start();
        let found = Devices::find();
        let nic = found.nic.unwrap_or_else(|| fail("no network card"));
        let mut nic = Nic::start(nic, RECEIVED.take(), TO_SEND.take()).expect("the network card");
        let mac = nic.mac().unwrap_or(MAC);
        let mut config = Config::new(EthernetAddress(mac).into());
        config.random_seed = clock.ticks();
        let mut interface = Interface::new(config, &mut nic, timestamp(clock.now()));
        interface.update_ip_addrs(|all| all.push(ADDRESS.into()).expect("room for an address"));
        let routes = interface.routes_mut();
        routes
            .add_default_ipv4_route(GATEWAY)
            .expect("room for a route");

        let mut sockets = SocketSet::new(&mut SOCKETS.take()[..]);
        let mut rings = RINGS.take().iter_mut();
        let mut socket = || {
            let [receive, transmit] = rings.next().expect("rings for each queue");
            let receive = SocketBuffer::new(&mut receive[..]);
            sockets.add(Socket::new(receive, SocketBuffer::new(&mut transmit[..])))
        };
        let (admin, queues) = (socket(), [(); QUEUES].map(|()| socket()));
        let mut hostid = *b"nvmf boot.......";
        hostid[10..].copy_from_slice(&mac);
        let mut options = Options::new(Identity {
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:6e766d66-626f-6f74-8000-0000000000d9"
                .parse()
                .expect("an NQN"),
            hostid: HostId(hostid),
        });
        options.transport.crc32c = crc32c::engine();
        options.transport.header_digest = digests;
        options.transport.data_digest = digests;
        options.first_port += (clock.ticks() % 8192) as u16;
        let resources = Resources {
            admin: ADMIN.take(),
            queues: SEATS.take(),
            scratch: SCRATCH_MEMORY.take(),
        };
        let host = Host::new(options, resources, &mut sockets, admin, queues);
        Self {
            clock,
            nic,
            lines: found.lines,
            interface,
            sockets,
            host,
        }
    }

    /// Does what there is to do until something happens that is waited for.
    fn wait<T>(&mut self, mut wanted: impl FnMut(Event<'static>) -> Option<T>) -> T {
        loop {
            let now = self.clock.now();
            self.interface
                .poll(timestamp(now), &mut self.nic, &mut self.sockets);
            while let Some(event) = self
                .host
                .poll(self.interface.context(), &mut self.sockets, now)
            {
                if let Event::Closed(Err(error)) = event {
                    fail(error);
                }
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
            self.nic.kick();
            let network = self.interface.poll_at(timestamp(now), &self.sockets);
            let network = network.map(|at| Instant::from_micros(at.total_micros().max(0) as u64));
            self.clock.sleep(sooner(network, self.host.poll_timeout()));
            self.lines.acknowledge();
        }
    }

    fn submit(
        &mut self,
        command: impl FnOnce(&mut Host<'static, QUEUES, DEPTH>, u32) -> Result<(), Rejected<'static>>,
    ) {
        if let Err(rejected) = command(&mut self.host, 0) {
            fail(rejected.reason);
        }
    }

    /// Waits for a command that ends well: its tag and its buffer.
    fn completed(&mut self) -> (usize, Option<&'static mut [u8]>) {
        let completion = self.wait(|event| match event {
            Event::Completed(completion) => Some(completion),
            _ => None,
        });
        match completion.result {
            Ok(_) => (completion.tag as usize, completion.buffer),
            Err(failure) => fail(failure),
        }
    }

    /// Moves all of `data` to or from the blocks from `first` on, by as many commands
    /// at a time as there are buffers. The microseconds that it took.
    fn transfer(&mut self, data: &mut Data, way: Way, first: u64) -> u64 {
        let start = self.clock.now();
        let blocks = data.blocks;
        for (at, place) in data.buffers.iter_mut().enumerate() {
            let buffer = place.take().expect("all buffers are here");
            let slba = first + at as u64 * u64::from(blocks);
            self.submit(|host, _| match way {
                Way::Read => host.read(slba, blocks, buffer, at as u32),
                Way::Write => host.write(slba, blocks, buffer, at as u32),
            });
        }
        for _ in 0..DEPTH {
            let (at, buffer) = self.completed();
            data.buffers[at] = buffer;
        }
        self.clock.now().as_micros() - start.as_micros()
    }
}

fn timestamp(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(now.as_micros() as i64)
}
