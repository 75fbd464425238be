//! A target and hosts at the two ends of a cable.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use nvmf_core::block::BlockDevice;
use nvmf_core::target::Namespace;
use nvmf_core::tcp::target::Config;
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::smoltcp::host::Options;
use nvmf_tcp::smoltcp::memory::Buffer;
use nvmf_tcp::smoltcp::target::{
    Closed, Controllers, Description, Device, Event, Resources, Seat, Target,
};
use nvmf_testing::bytes::{self, Command};
use nvmf_testing::host::{Direction, Finished, Host};
use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use crate::disk::{Disk, State};
use crate::initiator::Initiator;
use crate::wire::{End, Weather, cable};

pub(crate) const CONNECTIONS: usize = 4;
pub(crate) const DEPTH: usize = 8;
pub(crate) const IO_QUEUES: u16 = 2;
pub(crate) const PORT: u16 = 4420;
pub(crate) const BLOCKS: usize = 512;
/// Buffers, and bytes of each.
const BUFFERS: usize = 5;
const BUFFER: usize = 8192;

pub(crate) const TARGET: IpAddress = IpAddress::v4(192, 0, 2, 1);
const HOST: IpAddress = IpAddress::v4(192, 0, 2, 2);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub weather: Weather,
    pub seed: u64,
    /// Bytes of each ring of the target's sockets, and of a host's.
    pub target_ring: usize,
    pub host_ring: usize,
}

impl Setup {
    pub(crate) const FAIR: Self = Self {
        weather: Weather::FAIR,
        seed: 1,
        target_ring: 2048,
        host_ring: 16384,
    };
}

/// An interface and its sockets.
struct Station {
    interface: Interface,
    end: End,
    sockets: SocketSet<'static>,
}

impl Station {
    fn new(mut end: End, address: IpAddress, mac: u8) -> Self {
        let config = iface::Config::new(EthernetAddress([2, 0, 0, 0, 0, mac]).into());
        let mut interface = Interface::new(config, &mut end, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|all| all.push(IpCidr::new(address, 24)).unwrap());
        Self {
            interface,
            end,
            sockets: SocketSet::new(leak([iface::SocketStorage::EMPTY; 256]).as_mut_slice()),
        }
    }

    fn add_socket(&mut self, ring: usize) -> SocketHandle {
        let ring = || tcp::SocketBuffer::new(vec![0; ring].leak());
        self.sockets.add(tcp::Socket::new(ring(), ring()))
    }

    fn poll(&mut self, now: i64) {
        let now = smoltcp::time::Instant::from_micros(now);
        self.interface.poll(now, &mut self.end, &mut self.sockets);
    }

    fn next(&mut self, now: i64) -> Option<i64> {
        let time = smoltcp::time::Instant::from_micros(now);
        let at = self.interface.poll_at(time, &self.sockets);
        let at = at.map(|at| at.total_micros());
        at.into_iter().chain(self.end.next_arrival()).min()
    }
}

/// A host's connection.
pub(crate) struct Peer {
    pub socket: SocketHandle,
    pub host: Host,
    /// Bytes that the socket had no room for yet.
    outbox: Vec<u8>,
    /// What commands have to send, by CID.
    data: BTreeMap<u16, Vec<u8>>,
    /// Do not read what arrives.
    pub deaf: bool,
}

/// Everything, and what time it is there, in microseconds.
pub(crate) struct World {
    pub now: i64,
    pub target: Target<'static, CONNECTIONS, DEPTH>,
    pub disk: Rc<RefCell<State>>,
    pub peers: Vec<Peer>,
    pub initiators: Vec<Initiator>,
    pub closed: Vec<Closed>,
    target_station: Station,
    host_station: Station,
    host_ring: usize,
    /// KATO of the controllers to come, in milliseconds. Over a tiny window in
    /// foul weather the data of a few commands takes many seconds.
    pub(crate) kato: u32,
    next_port: u16,
}

pub(crate) fn leak<T>(value: T) -> &'static mut T {
    Box::leak(Box::new(value))
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let (near, far) = cable(setup.weather, setup.seed);
        let mut target_station = Station::new(near, TARGET, 1);
        let host_station = Station::new(far, HOST, 2);
        let disk = Disk::new(BLOCKS);
        let state = Rc::clone(&disk.0);
        let namespaces = leak([Namespace {
            nsid: Nsid(1),
            geometry: disk.geometry(),
            uuid: [1; 16],
            nguid: [0; 16],
            eui64: [0; 8],
        }]);
        let device: Device<'static> = leak(disk);
        let buffer = |_| Some::<Buffer<'static>>(leak([0; BUFFER]));
        let description = Description {
            nqn: leak(bytes::SUBNQN.parse().unwrap()),
            serial: "1",
            model: "board",
            firmware: "1",
            port: PORT,
            io_queues: IO_QUEUES,
            transport: Config {
                maxh2cdata: 4096,
                ..Config::default()
            },
            connect_timeout: Duration::from_secs(5),
        };
        let resources = Resources {
            namespaces,
            devices: leak([device]),
            buffers: leak(std::array::from_fn::<_, BUFFERS, _>(buffer)),
            seats: leak([const { Seat::new() }; CONNECTIONS]),
            records: leak([const { None }; CONNECTIONS]),
            controllers: leak(Controllers::new()),
        };
        let sockets = std::array::from_fn(|_| target_station.add_socket(setup.target_ring));
        let mut target = Target::new(description, resources, &mut target_station.sockets, sockets);
        target.set_address(TARGET);
        Self {
            now: 0,
            target,
            disk: state,
            peers: Vec::new(),
            initiators: Vec::new(),
            closed: Vec::new(),
            target_station,
            host_station,
            host_ring: setup.host_ring,
            kato: 120_000,
            next_port: 49152,
        }
    }

    /// Lets everybody do what there is to do now, then time pass until there is
    /// more, or until `end`.
    fn step(&mut self, end: i64) {
        let now = Instant::from_micros(self.now as u64);
        self.disk.borrow_mut().now = now;
        loop {
            self.target_station.poll(self.now);
            let closed = &mut self.closed;
            let more = self
                .target
                .poll(&mut self.target_station.sockets, now, |event| {
                    if let Event::Closed(_, reason) = event {
                        closed.push(reason);
                    }
                });
            if !more {
                break;
            }
        }
        self.target_station.poll(self.now);
        self.host_station.poll(self.now);
        for at in 0..self.peers.len() {
            self.peers[at].pump(&mut self.host_station.sockets);
        }
        for initiator in &mut self.initiators {
            let station = &mut self.host_station;
            initiator.poll(station.interface.context(), &mut station.sockets, now);
        }
        self.host_station.poll(self.now);
        let hosts = self.initiators.iter().map(|it| it.host.poll_timeout());
        let own = hosts.fold(self.target.poll_timeout(), sooner);
        let next = [
            own.map(|at| at.as_micros() as i64),
            self.target_station.next(self.now),
            self.host_station.next(self.now),
        ];
        let next = next.into_iter().flatten().min();
        self.now = next.unwrap_or(end).min(end).max(self.now + 1);
    }

    /// Steps until `done` says so, for at most that long.
    pub(crate) fn run_for(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let end = self.now + limit.as_micros() as i64;
        for _ in 0..2_000_000 {
            if done(self) {
                return true;
            }
            if self.now > end {
                return false;
            }
            self.step(end);
        }
        panic!("time does not pass");
    }

    /// Steps until `done` says so.
    #[track_caller]
    pub(crate) fn run(&mut self, done: impl FnMut(&mut Self) -> bool) {
        assert!(
            self.run_for(Duration::from_secs(600), done),
            "not in ten minutes; the target closed {:?}",
            self.closed
        );
    }

    /// A connection, from the first SYN on. Returns its index.
    pub(crate) fn open(&mut self) -> usize {
        let socket = self.host_station.add_socket(self.host_ring);
        self.next_port = self.next_port.checked_add(1).unwrap_or(49152);
        let port = self.next_port;
        let context = self.host_station.interface.context();
        let tcp = self.host_station.sockets.get_mut::<tcp::Socket>(socket);
        tcp.set_nagle_enabled(false);
        tcp.connect(context, (TARGET, PORT), port).unwrap();
        self.peers.push(Peer {
            socket,
            host: Host::new(0),
            outbox: Vec::new(),
            data: BTreeMap::new(),
            deaf: false,
        });
        self.peers.len() - 1
    }

    /// A host on smoltcp, not connected yet. Returns its index.
    pub(crate) fn initiator(&mut self, options: Options) -> usize {
        let admin = self.host_station.add_socket(self.host_ring);
        let queues = std::array::from_fn(|_| self.host_station.add_socket(self.host_ring));
        let sockets = &mut self.host_station.sockets;
        let initiator = Initiator::new(options, sockets, admin, queues);
        self.initiators.push(initiator);
        self.initiators.len() - 1
    }

    /// What an initiator is polled with.
    pub(crate) fn host_sockets(&mut self) -> &mut SocketSet<'static> {
        &mut self.host_station.sockets
    }

    /// A socket where the target is, that somebody else than the target may have.
    pub(crate) fn impostor(&mut self, port: u16) -> SocketHandle {
        let handle = self.target_station.add_socket(4096);
        let socket = self.impostors_socket(handle);
        socket.listen(port).unwrap();
        handle
    }

    pub(crate) fn impostors_socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.target_station.sockets.get_mut(handle)
    }

    /// What the cable does from now on.
    pub(crate) fn set_weather(&self, weather: Weather) {
        self.host_station.end.set_weather(weather);
    }

    pub(crate) fn socket(&mut self, peer: usize) -> &mut tcp::Socket<'static> {
        let socket = self.peers[peer].socket;
        self.host_station.sockets.get_mut(socket)
    }

    pub(crate) fn send(&mut self, peer: usize, bytes: &[u8]) {
        self.peers[peer].outbox.extend(bytes);
    }

    /// ICReq and Connect of queue `qid`, with these digests (bit 0 header, bit 1 data).
    pub(crate) fn connect(&mut self, qid: u16, cntlid: u16, sqsize: u16, digests: u8) -> usize {
        let peer = self.open();
        self.connect_as(peer, qid, cntlid, sqsize, digests);
        peer
    }

    fn connect_as(&mut self, peer: usize, qid: u16, cntlid: u16, sqsize: u16, digests: u8) {
        self.send(peer, &bytes::ic_req(0, digests));
        self.run(|world| world.peers[peer].host.maxh2cdata > 0);
        let host = &mut self.peers[peer].host;
        let cid = host.free_cid();
        let capsule = host.submit(
            bytes::connect(cid, qid, sqsize, self.kato),
            Direction::FromHost,
            &bytes::connect_data(cntlid, bytes::SUBNQN),
        );
        self.send(peer, &capsule);
        let finished = self.finish(peer, cid);
        assert_eq!(finished.status(), 0, "Connect of queue {qid}");
    }

    /// An association: its admin queue and an I/O queue.
    pub(crate) fn associate(&mut self, digests: u8) -> (usize, usize) {
        let admin = self.connect(0, 0xFFFF, 31, digests);
        let enable = |cid| bytes::property_set(cid, 0x14, bytes::CC_ENABLE);
        let finished = self.call(admin, enable);
        assert_eq!(finished.status(), 0, "enable");
        let cntlid = self.peers[admin].host.queue.unwrap().cntlid;
        let io = self.connect(1, cntlid, DEPTH as u16, digests);
        (admin, io)
    }

    /// Submits a command; its data, if it has any, is moved by the transport.
    pub(crate) fn submit(
        &mut self,
        peer: usize,
        command: impl FnOnce(u16) -> Command,
        direction: Direction,
        data: &[u8],
        len: usize,
    ) -> u16 {
        let peer = &mut self.peers[peer];
        let cid = peer.host.free_cid();
        let command = command(cid);
        let capsule = if len == 0 {
            peer.host.submit(command, Direction::None, &[])
        } else {
            let len = u32::try_from(len).unwrap();
            peer.host.submit_transfer(command, direction, len)
        };
        peer.outbox.extend(capsule);
        peer.data.insert(cid, data.to_vec());
        cid
    }

    /// A command without data, and how it ended.
    pub(crate) fn call(&mut self, peer: usize, command: impl FnOnce(u16) -> Command) -> Finished {
        let cid = self.submit(peer, command, Direction::None, &[], 0);
        self.finish(peer, cid)
    }

    pub(crate) fn write(&mut self, peer: usize, slba: u64, data: &[u8]) -> u16 {
        let blocks = (data.len() / crate::disk::BLOCK) as u32;
        let command = |cid| bytes::block_command(0x01, cid, 1, slba, blocks);
        self.submit(peer, command, Direction::FromHost, data, data.len())
    }

    pub(crate) fn read(&mut self, peer: usize, slba: u64, len: usize) -> u16 {
        let blocks = (len / crate::disk::BLOCK) as u32;
        let command = |cid| bytes::block_command(0x02, cid, 1, slba, blocks);
        self.submit(peer, command, Direction::ToHost, &[], len)
    }

    /// Waits for the command to end.
    pub(crate) fn finish(&mut self, peer: usize, cid: u16) -> Finished {
        let mut found = None;
        self.run(|world| {
            let finished = &mut world.peers[peer].host.finished;
            let at = finished.iter().position(|it| it.command.cid() == cid);
            found = at.map(|at| finished.remove(at));
            found.is_some()
        });
        found.unwrap()
    }
}

impl Peer {
    fn pump(&mut self, sockets: &mut SocketSet) {
        let socket = sockets.get_mut::<tcp::Socket>(self.socket);
        while socket.can_recv() && !self.deaf {
            let host = &mut self.host;
            let received = socket.recv(|bytes| (bytes.len(), host.receive(bytes)));
            if let Err(fault) = received.unwrap() {
                panic!("{fault}");
            }
        }
        while let Some(request) = self.host.requests.first() {
            let data = &self.data[&request.cid];
            let answer = self.host.answer(0, u32::MAX, data);
            self.outbox.extend(answer);
        }
        if socket.can_send() && !self.outbox.is_empty() {
            let sent = socket.send_slice(&self.outbox).unwrap();
            self.outbox.drain(..sent);
        }
    }
}
