//! Echo, discard and chargen, by the same TCP stack and driver as the target's: what
//! is to be had without NVMe.
#![no_std]
#![no_main]

#[allow(dead_code, reason = "it is the target's too")]
#[path = "../board.rs"]
mod board;
#[path = "../ethernet.rs"]
mod ethernet;
#[allow(dead_code, reason = "it is the target's too")]
#[path = "../gpio.rs"]
mod gpio;
#[allow(dead_code, reason = "they are the target's too")]
#[path = "../registers.rs"]
mod registers;

use core::fmt::Write;

use cortex_m_rt::entry;
use nvmf_firmware::services::{PORTS, Rings, Services, Sockets};
use smoltcp::iface::SocketStorage;
use smoltcp::wire::{Ipv4Address, Ipv4Cidr};

use self::board::{Clock, Uart};
use self::ethernet::Ethernet;

/// Bytes of each socket's ring, each way: as many as the target's sockets have.
const RING: usize = 1536;
const ADDRESS: Ipv4Cidr = Ipv4Cidr::new(Ipv4Address::new(10, 0, 2, 15), 24);
const GATEWAY: Ipv4Address = Ipv4Address::new(10, 0, 2, 2);

#[entry]
fn main() -> ! {
    static mut RINGS: Rings<RING> = Rings::new();
    static mut SOCKETS: Sockets = [SocketStorage::EMPTY; PORTS.len()];
    static mut NIC: Ethernet = Ethernet::new();

    let core = cortex_m::Peripherals::take().expect("taken once");
    board::start_clocks();
    let mut clock = Clock::start(core.SYST);
    let mac = board::mac().unwrap_or([0x02, 0x6E, 0x76, 0x6D, 0x66, 0x01]);
    NIC.start(mac);
    let now = clock.now();
    let mut services = Services::new(NIC, mac, (ADDRESS, GATEWAY), RINGS, SOCKETS, now);
    Ethernet::unmask();
    let _ = writeln!(Uart::first(), "serving {ADDRESS} ports {PORTS:?}");
    loop {
        let deadline = services.step(NIC, clock.now());
        clock.sleep(deadline, Ethernet::arm);
    }
}
