//! Echo, discard and chargen, by the same TCP stack and driver as the target's: what
//! is to be had without NVMe.
#![no_std]
#![no_main]

use board::clock::Clock;
use board::devices::{Devices, NIC_QUEUE, Nic};
use board::memory::Taken;
use board::{ADDRESS, GATEWAY, MAC, RING, say};
use nvmf_firmware::services::{PORTS, Rings, Services, Sockets};
use nvmf_firmware::virtio::nic::Frame;
use smoltcp::iface::SocketStorage;

static RECEIVED: Taken<[Frame; NIC_QUEUE]> = Taken::new([Frame::EMPTY; NIC_QUEUE]);
static TO_SEND: Taken<[Frame; NIC_QUEUE]> = Taken::new([Frame::EMPTY; NIC_QUEUE]);
static RINGS: Taken<Rings<RING>> = Taken::new(Rings::new());
static SOCKETS: Taken<Sockets> = Taken::new([SocketStorage::EMPTY; PORTS.len()]);

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let clock = Clock::start();
    let found = Devices::find();
    let nic = found.nic.expect("a virtio network card");
    let mut nic = Nic::start(nic, RECEIVED.take(), TO_SEND.take()).expect("the network card");
    let mac = nic.mac().unwrap_or(MAC);
    let mut services = Services::new(
        &mut nic,
        mac,
        (ADDRESS, GATEWAY),
        RINGS.take(),
        SOCKETS.take(),
        clock.now(),
    );
    say!("serving {ADDRESS} ports {PORTS:?}");
    loop {
        let deadline = services.step(&mut nic, clock.now());
        nic.kick();
        clock.sleep(deadline);
        found.lines.acknowledge();
    }
}
