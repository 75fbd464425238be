//! The server's address by DHCP, in virtual time: a network with a DHCP server that
//! does as a test wants, and a host that connects.
use std::collections::VecDeque;

use nvmf_core::digest::portable;
use nvmf_core::time::Instant;
use nvmf_firmware::address::Addressing;
use nvmf_firmware::ram::Ram;
use nvmf_firmware::server::{Arena, Server, Settings, Tables};
use nvmf_tcp::smoltcp::target::{Closed, Device, Event};
use nvmf_testing::bytes;
use nvmf_testing::host::{Direction, Host};
use smoltcp::iface::{self, Interface, SocketSet, SocketStorage};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::wire::{
    DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, IpCidr, IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

const CONNECTIONS: usize = 2;
const DEPTH: usize = 4;
const PORT: u16 = 4420;
/// Longer than any lease, in milliseconds.
const KATO: u32 = 900_000;
const NQN: &str = "nqn.2014-08.org.example:board";
const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
const DHCP_SERVER: Ipv4Address = Ipv4Address::new(192, 0, 2, 1);
const HOST: Ipv4Address = Ipv4Address::new(192, 0, 2, 9);

/// A network device: frames that arrived, and frames to go.
#[derive(Default)]
struct Nic {
    arrived: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

struct Frame(Vec<u8>);

impl phy::RxToken for Frame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

struct Slot<'n>(&'n mut Vec<Vec<u8>>);

impl phy::TxToken for Slot<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut frame = vec![0; len];
        let result = fill(&mut frame);
        self.0.push(frame);
        result
    }
}

impl phy::Device for Nic {
    type RxToken<'n> = Frame;
    type TxToken<'n> = Slot<'n>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Frame, Slot<'_>)> {
        let frame = self.arrived.pop_front()?;
        Some((Frame(frame), Slot(&mut self.sent)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Slot<'_>> {
        Some(Slot(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// What the DHCP server does.
#[derive(Clone, Copy)]
enum Lease {
    /// It does not answer.
    Silent,
    /// It gives this address, for so many seconds.
    Give(Ipv4Address, u32),
}

struct World {
    now: u64,
    server: Server<CONNECTIONS, DEPTH>,
    nic: Nic,
    lease: Lease,
    /// Messages that the DHCP server got.
    asked: Vec<DhcpMessageType>,
    closed: Vec<Closed>,
    host: Interface,
    host_nic: Nic,
    sockets: SocketSet<'static>,
    socket: smoltcp::iface::SocketHandle,
    next_port: u16,
}

fn leak<T>(value: T) -> &'static mut T {
    Box::leak(Box::new(value))
}

impl World {
    fn new() -> Self {
        let mut nic = Nic::default();
        let disk: Device<'static> = leak(Ram::new(leak([0; 4096])));
        let settings = Settings {
            nqn: leak(NQN.parse().unwrap()),
            serial: "1",
            model: "board",
            uuid: [1; 16],
            mac: MAC.0,
            address: Addressing::Dhcp,
            port: PORT,
            io_queues: 1,
            seed: 1,
            crc32c: portable,
        };
        let arena: &mut Arena<CONNECTIONS, DEPTH, 1024, 1, 2> = leak(Arena::new());
        let tables: &mut Tables<CONNECTIONS, 3, 1, { CONNECTIONS + 1 }> = leak(Tables::new());
        let devices = leak([disk]);
        let server = Server::new(&settings, arena, tables, devices, &mut nic, Instant::ZERO);
        let mut host_nic = Nic::default();
        let config = iface::Config::new(EthernetAddress([2, 0, 0, 0, 0, 9]).into());
        let mut host = Interface::new(config, &mut host_nic, smoltcp::time::Instant::ZERO);
        host.update_ip_addrs(|all| all.push(IpCidr::new(HOST.into(), 24)).unwrap());
        let mut sockets = SocketSet::new(leak([SocketStorage::EMPTY; 1]).as_mut_slice());
        let ring = || tcp::SocketBuffer::new(vec![0; 4096].leak());
        let socket = sockets.add(tcp::Socket::new(ring(), ring()));
        Self {
            now: 0,
            server,
            nic,
            lease: Lease::Silent,
            asked: Vec::new(),
            closed: Vec::new(),
            host,
            host_nic,
            sockets,
            socket,
            next_port: 50000,
        }
    }

    /// Lets everybody do what there is to do, then time pass, for so many seconds.
    fn run(&mut self, seconds: u64) {
        let end = self.now + seconds * 1_000_000;
        for _ in 0..100_000 {
            let closed = &mut self.closed;
            let now = Instant::from_micros(self.now);
            let next = self.server.step(&mut self.nic, now, |event| {
                if let Event::Closed(_, reason) = event {
                    closed.push(reason);
                }
            });
            let time = smoltcp::time::Instant::from_micros(self.now as i64);
            self.host.poll(time, &mut self.host_nic, &mut self.sockets);
            let mut moved = false;
            for frame in self.nic.sent.split_off(0) {
                moved = true;
                let answer = self.answer(&frame);
                self.nic.arrived.extend(answer);
                self.host_nic.arrived.push_back(frame);
            }
            for frame in self.host_nic.sent.split_off(0) {
                moved = true;
                self.nic.arrived.push_back(frame);
            }
            if moved {
                continue;
            }
            let host = self.host.poll_at(time, &self.sockets);
            let host = host.map(|at| at.total_micros() as u64);
            let next = next.map(Instant::as_micros);
            let next = next.into_iter().chain(host).min().unwrap_or(end);
            if self.now >= end {
                return;
            }
            self.now = next.clamp(self.now + 1, end);
        }
        panic!("time does not pass");
    }

    /// What the DHCP server says to a frame.
    fn answer(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        if ethernet.ethertype() != EthernetProtocol::Ipv4 {
            return None;
        }
        let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
        if ip.next_header() != IpProtocol::Udp {
            return None;
        }
        let udp = UdpPacket::new_checked(ip.payload()).ok()?;
        let packet = DhcpPacket::new_checked(udp.payload()).ok()?;
        let request = DhcpRepr::parse(&packet).ok()?;
        assert_eq!((udp.dst_port(), request.client_hardware_address), (67, MAC));
        self.asked.push(request.message_type);
        let Lease::Give(address, seconds) = self.lease else {
            return None;
        };
        let message_type = match request.message_type {
            DhcpMessageType::Discover => DhcpMessageType::Offer,
            // A lease that is no longer this server's to give.
            _ if request.requested_ip.unwrap_or(request.client_ip) != address => {
                DhcpMessageType::Nak
            }
            _ => DhcpMessageType::Ack,
        };
        Some(frame_of(&DhcpRepr {
            message_type,
            your_ip: address,
            server_identifier: Some(DHCP_SERVER),
            router: Some(DHCP_SERVER),
            subnet_mask: Some(Ipv4Address::new(255, 255, 255, 0)),
            lease_duration: Some(seconds),
            client_ip: Ipv4Address::UNSPECIFIED,
            requested_ip: None,
            client_identifier: None,
            parameter_request_list: None,
            max_size: None,
            ..request
        }))
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    /// Whether the target is reached at the address.
    fn reaches(&mut self, address: Ipv4Address) -> bool {
        self.next_port += 1;
        let socket = self.sockets.get_mut::<tcp::Socket>(self.socket);
        socket.abort();
        self.run(1);
        let socket = self.sockets.get_mut::<tcp::Socket>(self.socket);
        let context = self.host.context();
        let port = self.next_port;
        socket.connect(context, (address, PORT), port).unwrap();
        self.run(1);
        self.socket().state() == tcp::State::Established
    }

    /// Makes the connection an Admin Queue, which is kept for as long as `KATO`.
    fn become_queue(&mut self) {
        self.socket().send_slice(&bytes::ic_req(0, 0)).unwrap();
        self.run(1);
        let mut host = Host::new(0);
        let capsule = host.submit(
            bytes::connect(0, 0, 31, KATO),
            Direction::FromHost,
            &bytes::connect_data(0xFFFF, NQN),
        );
        self.socket().send_slice(&capsule).unwrap();
        self.run(1);
        let answer = |bytes: &mut [u8]| (bytes.len(), host.receive(bytes).unwrap());
        self.socket().recv(answer).unwrap();
        assert_eq!(host.finished[0].status(), 0);
    }
}

fn frame_of(dhcp: &DhcpRepr) -> Vec<u8> {
    let checksums = ChecksumCapabilities::default();
    let udp = UdpRepr {
        src_port: 67,
        dst_port: 68,
    };
    let ip = Ipv4Repr {
        src_addr: DHCP_SERVER,
        dst_addr: Ipv4Address::BROADCAST,
        next_header: IpProtocol::Udp,
        payload_len: udp.header_len() + dhcp.buffer_len(),
        hop_limit: 64,
    };
    let ethernet = EthernetRepr {
        src_addr: EthernetAddress([2, 0, 0, 0, 0, 67]),
        dst_addr: EthernetAddress::BROADCAST,
        ethertype: EthernetProtocol::Ipv4,
    };
    let mut bytes = vec![0; 14 + ip.buffer_len() + ip.payload_len];
    ethernet.emit(&mut EthernetFrame::new_unchecked(&mut bytes[..]));
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[14..]), &checksums);
    udp.emit(
        &mut UdpPacket::new_unchecked(&mut bytes[34..]),
        &DHCP_SERVER.into(),
        &Ipv4Address::BROADCAST.into(),
        dhcp.buffer_len(),
        |payload| {
            let mut packet = DhcpPacket::new_unchecked(payload);
            dhcp.emit(&mut packet).unwrap();
        },
        &checksums,
    );
    bytes
}

#[test]
fn an_address_that_comes_late_is_kept_lost_and_replaced() {
    let [first, second] = [50, 51].map(|last| Ipv4Address::new(192, 0, 2, last));
    let world = &mut World::new();
    world.run(60);
    assert!(world.asked.len() >= 3, "it does not give up asking");
    assert_eq!(world.server.status().address, None);
    assert!(!world.reaches(first));

    world.lease = Lease::Give(first, 600);
    world.run(20);
    assert_eq!(world.server.status().address, Some(first));
    assert!(world.reaches(first));
    // The lease is renewed, and nobody notices.
    let asked = world.asked.len();
    world.run(3000);
    assert!(world.asked.len() > asked);
    assert_eq!(world.server.status().address, Some(first));

    // It is not renewed any more: hosts are let go when it has run out.
    assert!(world.reaches(first));
    world.become_queue();
    world.closed.clear();
    world.lease = Lease::Silent;
    world.run(200);
    assert_eq!(world.server.status().connections, 1);
    world.run(500);
    assert_eq!(world.server.status().address, None);
    assert_eq!(world.server.status().connections, 0);
    assert_eq!(world.closed, [Closed::Lost]);
    assert!(!world.reaches(first));

    world.lease = Lease::Give(second, 600);
    world.run(30);
    assert_eq!(world.server.status().address, Some(second));
    assert!(world.reaches(second));

    // The server takes it back when it is to be renewed, and gives another.
    world.become_queue();
    world.closed.clear();
    world.lease = Lease::Give(first, 600);
    world.run(560);
    assert_eq!(world.closed, [Closed::Lost]);
    assert_eq!(world.server.status().address, Some(first));
    assert!(world.reaches(first));
    assert!(!world.reaches(second));
}
