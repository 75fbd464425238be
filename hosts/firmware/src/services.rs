//! Echo, discard and chargen (RFC 862 to 864): what a board's TCP stack and its driver
//! do alone, to compare the target with.
use nvmf_core::time::Instant;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet, SocketStorage};
use smoltcp::phy;
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{EthernetAddress, Ipv4Address, Ipv4Cidr};

use crate::server::timestamp;

const ECHO: u16 = 7;
const DISCARD: u16 = 9;
const CHARGEN: u16 = 19;
/// Where they are.
pub const PORTS: [u16; 3] = [ECHO, DISCARD, CHARGEN];

/// What chargen says; its lines are nobody's business here.
static PATTERN: [u8; 16384] = [b'x'; 16384];
/// Bytes that are echoed at a time.
const PIECE: usize = 1460;

/// Rings for the services' sockets: all zero, so that a static of them costs no flash.
#[derive(Debug)]
pub struct Rings<const RING: usize>([[[u8; RING]; 2]; PORTS.len()]);

impl<const RING: usize> Rings<RING> {
    /// All zero.
    #[allow(clippy::new_without_default, reason = "they belong in a static")]
    #[must_use]
    pub const fn new() -> Self {
        Self([[[0; RING]; 2]; PORTS.len()])
    }
}

/// The services' sockets.
pub type Sockets = [SocketStorage<'static>; PORTS.len()];

/// The interface, and the services on it, each for one host at a time.
pub struct Services {
    interface: Interface,
    sockets: SocketSet<'static>,
    handles: [SocketHandle; PORTS.len()],
}

impl Services {
    /// At `address`.
    ///
    /// # Panics
    /// Not with the room for addresses and routes that smoltcp has at least.
    pub fn new<const RING: usize>(
        nic: &mut impl phy::Device,
        mac: [u8; 6],
        (address, gateway): (Ipv4Cidr, Ipv4Address),
        rings: &'static mut Rings<RING>,
        sockets: &'static mut Sockets,
        now: Instant,
    ) -> Self {
        let config = Config::new(EthernetAddress(mac).into());
        let mut interface = Interface::new(config, nic, timestamp(now));
        interface.update_ip_addrs(|all| all.push(address.into()).expect("room for an address"));
        let routes = interface.routes_mut();
        routes
            .add_default_ipv4_route(gateway)
            .expect("room for a route");
        let mut sockets = SocketSet::new(&mut sockets[..]);
        let handles = rings.0.each_mut().map(|[receive, transmit]| {
            let receive = SocketBuffer::new(&mut receive[..]);
            let mut socket = Socket::new(receive, SocketBuffer::new(&mut transmit[..]));
            socket.set_nagle_enabled(false);
            sockets.add(socket)
        });
        Self {
            interface,
            sockets,
            handles,
        }
    }

    /// Does what there is to do, and says when to call again: `None` is not before the
    /// network device has something.
    pub fn step(&mut self, nic: &mut impl phy::Device, now: Instant) -> Option<Instant> {
        let time = timestamp(now);
        self.interface.poll(time, nic, &mut self.sockets);
        let mut moved = false;
        for (port, handle) in PORTS.into_iter().zip(self.handles) {
            moved |= serve(port, self.sockets.get_mut(handle));
        }
        if moved {
            return Some(now);
        }
        let next = self.interface.poll_at(time, &self.sockets);
        next.map(|at| Instant::from_micros(at.total_micros().max(0) as u64))
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
    let mut bytes = [0; PIECE];
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
