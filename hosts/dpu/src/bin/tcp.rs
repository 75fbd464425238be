//! Echo, discard and chargen on ports 7, 9 and 19 (RFC 862 to 864), by the same
//! TCP stack and driver as the target's: what is to be had without NVMe.
#![no_std]
#![no_main]

use board::clock::Clock;
use board::devices::{Devices, NIC_QUEUE, Nic};
use board::memory::Taken;
use board::{ADDRESS, GATEWAY, MAC, RING, say};
use nvmf_firmware::virtio::nic::Frame;
use smoltcp::iface::{Config, Interface, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::EthernetAddress;

const ECHO: u16 = 7;
const DISCARD: u16 = 9;
const CHARGEN: u16 = 19;
const PORTS: [u16; 3] = [ECHO, DISCARD, CHARGEN];

/// What chargen says; its lines are nobody's business here.
static PATTERN: [u8; 16384] = [b'x'; 16384];

static RECEIVED: Taken<[Frame; NIC_QUEUE]> = Taken::new([Frame::EMPTY; NIC_QUEUE]);
static TO_SEND: Taken<[Frame; NIC_QUEUE]> = Taken::new([Frame::EMPTY; NIC_QUEUE]);
static RINGS: Taken<[[[u8; RING]; 2]; PORTS.len()]> = Taken::new([[[0; RING]; 2]; PORTS.len()]);
static SOCKETS: Taken<[SocketStorage<'static>; PORTS.len()]> =
    Taken::new([SocketStorage::EMPTY; PORTS.len()]);

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let clock = Clock::start();
    let now = || Instant::from_micros(clock.now().as_micros() as i64);
    let found = Devices::find();
    let nic = found.nic.expect("a virtio network card");
    let mut nic = Nic::start(nic, RECEIVED.take(), TO_SEND.take()).expect("the network card");

    let mut config = Config::new(EthernetAddress(nic.mac().unwrap_or(MAC)).into());
    config.random_seed = clock.ticks();
    let mut interface = Interface::new(config, &mut nic, now());
    interface.update_ip_addrs(|all| all.push(ADDRESS.into()).expect("room for an address"));
    let routes = interface.routes_mut();
    routes
        .add_default_ipv4_route(GATEWAY)
        .expect("room for a route");
    let mut sockets = SocketSet::new(&mut SOCKETS.take()[..]);
    let mut rings = RINGS.take().iter_mut();
    let services = PORTS.map(|port| {
        let [receive, transmit] = rings.next().expect("rings for each port");
        let receive = SocketBuffer::new(&mut receive[..]);
        let mut socket = Socket::new(receive, SocketBuffer::new(&mut transmit[..]));
        socket.set_nagle_enabled(false);
        (port, sockets.add(socket))
    });
    say!("serving {ADDRESS} ports {PORTS:?}");
    loop {
        interface.poll(now(), &mut nic, &mut sockets);
        let mut moved = false;
        for (port, handle) in services {
            moved |= serve(port, sockets.get_mut(handle));
        }
        nic.kick();
        if !moved {
            let deadline = interface.poll_at(now(), &sockets);
            let micros = deadline.map(|at| at.total_micros().max(0) as u64);
            clock.sleep(micros.map(nvmf_core::time::Instant::from_micros));
            found.lines.acknowledge();
        }
    }
}

/// Does what there is to do for one service. True if anything moved.
fn serve(port: u16, socket: &mut Socket) -> bool {
    if !socket.is_open() {
        return socket.listen(port).is_ok();
    }
    let moved = match port {
        ECHO => echo(socket),
        DISCARD => discard(socket),
        _ => chargen(socket) | discard(socket),
    };
    let said = port == CHARGEN || !socket.can_recv() && socket.send_queue() == 0;
    if socket.state() == State::CloseWait && said {
        socket.close();
        return true;
    }
    moved
}

fn echo(socket: &mut Socket) -> bool {
    let mut bytes = [0; 4096];
    let room = (socket.send_capacity() - socket.send_queue()).min(bytes.len());
    if room == 0 || !socket.can_recv() {
        return false;
    }
    let taken = socket.recv_slice(&mut bytes[..room]).unwrap_or(0);
    socket.send_slice(&bytes[..taken]).is_ok()
}

fn discard(socket: &mut Socket) -> bool {
    socket.can_recv() && socket.recv(|bytes| (bytes.len(), ())).is_ok()
}

fn chargen(socket: &mut Socket) -> bool {
    socket.can_send() && socket.send_slice(&PATTERN).is_ok()
}
