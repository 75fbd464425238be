//! The interface, its sockets and the target on them, as one thing to step.
use core::time::Duration;

use nvmf_core::block::Geometry;
use nvmf_core::digest::Crc32c;
use nvmf_core::target::Namespace;
use nvmf_core::tcp::target::Config as Transport;
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_tcp::smoltcp::memory::Buffer;
use nvmf_tcp::smoltcp::target::{
    Controllers, Description, Device, Event, Record, Resources, Seat, Target,
};
use smoltcp::iface::{Config, Interface, SocketSet, SocketStorage};
use smoltcp::phy;
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::wire::{EthernetAddress, Ipv4Address};

use crate::address::{Addressing, Source};

/// How long a host may take for its ICReq, and then for its Connect: little, as
/// there are few connections.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a board decides.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The subsystem's name.
    pub nqn: &'static Nqn,
    /// Serial number, at most 20 ASCII characters.
    pub serial: &'static str,
    /// Model number, at most 40 ASCII characters.
    pub model: &'static str,
    /// UUID of the first namespace; the others' differ in the last byte.
    pub uuid: [u8; 16],
    /// Hardware address.
    pub mac: [u8; 6],
    /// The interface's address, or where it comes from.
    pub address: Addressing,
    /// TCP port.
    pub port: u16,
    /// I/O queues that a host may have: each takes a connection, and what they leave is for
    /// discovery and other hosts.
    pub io_queues: u16,
    /// For initial sequence numbers: better different at each start.
    pub seed: u64,
    /// The CRC32C engine: [`portable`](nvmf_core::digest::portable) if the
    /// processor has none.
    pub crc32c: Crc32c,
}

/// Memory that is zero at the start, which costs no flash in a static: the state
/// of `CONNECTIONS` connections of `DEPTH` commands each, `RING` bytes each way
/// for each of their sockets, and `LARGE` and `SMALL` buffers for the data of
/// commands. A command may move as much as a large one has: `LARGE_BYTES`.
#[derive(Debug)]
pub struct Arena<
    const CONNECTIONS: usize,
    const DEPTH: usize,
    const RING: usize,
    const LARGE: usize,
    const SMALL: usize,
    const LARGE_BYTES: usize = 8192,
    const SMALL_BYTES: usize = 4096,
> {
    seats: [Seat<'static, DEPTH>; CONNECTIONS],
    receive: [[u8; RING]; CONNECTIONS],
    transmit: [[u8; RING]; CONNECTIONS],
    large: [[u8; LARGE_BYTES]; LARGE],
    small: [[u8; SMALL_BYTES]; SMALL],
}

impl<
    const CONNECTIONS: usize,
    const DEPTH: usize,
    const RING: usize,
    const LARGE: usize,
    const SMALL: usize,
    const LARGE_BYTES: usize,
    const SMALL_BYTES: usize,
> Arena<CONNECTIONS, DEPTH, RING, LARGE, SMALL, LARGE_BYTES, SMALL_BYTES>
{
    /// All zero.
    #[allow(clippy::new_without_default, reason = "it belongs in a static")]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            seats: [const { Seat::new() }; CONNECTIONS],
            receive: [[0; RING]; CONNECTIONS],
            transmit: [[0; RING]; CONNECTIONS],
            large: [[0; LARGE_BYTES]; LARGE],
            small: [[0; SMALL_BYTES]; SMALL],
        }
    }
}

/// Bookkeeping, which is not zero at the start: `BUFFERS` is the number of
/// buffers of both kinds. `SOCKETS` is one more than `CONNECTIONS` for DHCP.
#[derive(Debug)]
pub struct Tables<
    const CONNECTIONS: usize,
    const BUFFERS: usize,
    const NAMESPACES: usize,
    const SOCKETS: usize = CONNECTIONS,
> {
    sockets: [SocketStorage<'static>; SOCKETS],
    places: [Option<Buffer<'static>>; BUFFERS],
    controllers: Controllers<CONNECTIONS>,
    records: [Option<Record<'static>>; CONNECTIONS],
    namespaces: [Namespace; NAMESPACES],
}

impl<const CONNECTIONS: usize, const BUFFERS: usize, const NAMESPACES: usize, const SOCKETS: usize>
    Tables<CONNECTIONS, BUFFERS, NAMESPACES, SOCKETS>
{
    /// Nothing in them.
    #[allow(clippy::new_without_default, reason = "they belong in a static")]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sockets: [SocketStorage::EMPTY; SOCKETS],
            places: [const { None }; BUFFERS],
            controllers: Controllers::new(),
            records: [const { None }; CONNECTIONS],
            namespaces: [const { NO_NAMESPACE }; NAMESPACES],
        }
    }
}

const NO_NAMESPACE: Namespace = Namespace {
    nsid: Nsid(0),
    geometry: Geometry {
        block_shift: 9,
        blocks: 0,
        read_only: true,
        volatile_cache: false,
        deallocate_zeroes: false,
        optimal_blocks: 0,
    },
    uuid: [0; 16],
    nguid: [0; 16],
    eui64: [0; 8],
};

/// How a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The interface's address; `None` while there is none.
    pub address: Option<Ipv4Address>,
    /// Connections that serve a host.
    pub connections: usize,
    /// Operations that devices ended so far, modulo 2^32: the difference of two
    /// is what was done between them.
    pub operations: u32,
}

/// A target with `CONNECTIONS` connections of `DEPTH` commands each, and the
/// network that it is reached by.
pub struct Server<const CONNECTIONS: usize, const DEPTH: usize> {
    interface: Interface,
    address: Source,
    sockets: SocketSet<'static>,
    target: Target<'static, CONNECTIONS, DEPTH>,
}

impl<const CONNECTIONS: usize, const DEPTH: usize> Server<CONNECTIONS, DEPTH> {
    /// Serves `devices`, which have NSIDs from 1 on.
    ///
    /// # Panics
    /// Where the memory is too little for any host: see [`Target::new`]; or there is no
    /// socket for DHCP.
    pub fn new<
        const RING: usize,
        const LARGE: usize,
        const SMALL: usize,
        const LARGE_BYTES: usize,
        const SMALL_BYTES: usize,
        const BUFFERS: usize,
        const NAMESPACES: usize,
        const SOCKETS: usize,
    >(
        settings: &Settings,
        arena: &'static mut Arena<CONNECTIONS, DEPTH, RING, LARGE, SMALL, LARGE_BYTES, SMALL_BYTES>,
        tables: &'static mut Tables<CONNECTIONS, BUFFERS, NAMESPACES, SOCKETS>,
        devices: &'static mut [Device<'static>; NAMESPACES],
        nic: &mut impl phy::Device,
        now: Instant,
    ) -> Self {
        let mut config = Config::new(EthernetAddress(settings.mac).into());
        config.random_seed = settings.seed;
        let mut interface = Interface::new(config, nic, timestamp(now));
        let mut sockets = SocketSet::new(&mut tables.sockets[..]);
        let mut rings = arena.receive.iter_mut().zip(&mut arena.transmit);
        let handles = [(); CONNECTIONS].map(|()| {
            let (receive, transmit) = rings.next().expect("rings for each connection");
            sockets.add(Socket::new(
                SocketBuffer::new(&mut receive[..]),
                SocketBuffer::new(&mut transmit[..]),
            ))
        });
        let large = arena.large.iter_mut().map(|buffer| &mut buffer[..]);
        let small = arena.small.iter_mut().map(|buffer| &mut buffer[..]);
        for (place, buffer) in tables.places.iter_mut().zip(large.chain(small)) {
            *place = Some(buffer);
        }
        for (index, namespace) in tables.namespaces.iter_mut().enumerate() {
            let mut uuid = settings.uuid;
            uuid[15] = uuid[15].wrapping_add(index as u8);
            *namespace = Namespace {
                nsid: Nsid(index as u32 + 1),
                geometry: devices[index].geometry(),
                uuid,
                ..NO_NAMESPACE
            };
        }
        let description = Description {
            nqn: settings.nqn,
            serial: settings.serial,
            model: settings.model,
            firmware: env!("CARGO_PKG_VERSION"),
            port: settings.port,
            io_queues: settings.io_queues,
            transport: Transport {
                maxh2cdata: LARGE_BYTES as u32,
                crc32c: settings.crc32c,
                icreq_timeout: HANDSHAKE_TIMEOUT,
                ..Transport::default()
            },
            connect_timeout: HANDSHAKE_TIMEOUT,
        };
        let resources = Resources {
            namespaces: &tables.namespaces,
            devices,
            buffers: &mut tables.places,
            seats: &mut arena.seats,
            records: &mut tables.records,
            controllers: &tables.controllers,
        };
        let mut target = Target::new(description, resources, &mut sockets, handles);
        let address = Source::start(settings.address, &mut interface, &mut sockets);
        if let Some(address) = interface.ipv4_addr() {
            target.set_address(address.into());
        }
        Self {
            interface,
            address,
            sockets,
            target,
        }
    }

    /// Does what there is to do, for `nic` and all hosts, and says when to call
    /// again: `None` is not before the network device or a device has something.
    pub fn step(
        &mut self,
        nic: &mut impl phy::Device,
        now: Instant,
        mut event: impl FnMut(Event<'_>),
    ) -> Option<Instant> {
        self.interface.poll(timestamp(now), nic, &mut self.sockets);
        self.readdress(now, &mut event);
        let Self {
            interface,
            sockets,
            target,
            ..
        } = self;
        if target.poll(sockets, now, &mut event) {
            return Some(now);
        }
        let network = interface.poll_at(timestamp(now), sockets);
        let network = network.map(|at| Instant::from_micros(at.total_micros().max(0) as u64));
        sooner(network, target.poll_timeout())
    }

    /// Nobody reaches hosts by an address that is no longer ours, and they nobody.
    fn readdress(&mut self, now: Instant, event: impl FnMut(Event<'_>)) {
        if !self.address.poll(&mut self.interface, &mut self.sockets) {
            return;
        }
        self.target.abandon(&mut self.sockets, now, event);
        if let Some(address) = self.interface.ipv4_addr() {
            self.target.set_address(address.into());
        }
    }

    /// How it does.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            address: self.interface.ipv4_addr(),
            connections: self.target.connections(),
            operations: self.target.operations(),
        }
    }
}

pub(crate) fn timestamp(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}
