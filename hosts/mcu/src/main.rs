//! An NVMe/TCP target on a Cortex-M3 with 64 KiB of RAM and 256 KiB of flash.
#![no_std]
#![no_main]

mod board;
#[cfg(feature = "display")]
mod display;
mod ethernet;
mod gpio;
mod log;
mod registers;
mod ssi;

use core::fmt::Write;

use cortex_m_rt::entry;
use embedded_hal::delay::DelayNs;
use nvmf_core::digest::portable;
#[cfg(feature = "display")]
use nvmf_core::time::sooner;
use nvmf_core::wire::ids::Nqn;
use nvmf_firmware::address::Addressing;
use nvmf_firmware::cost::COST;
use nvmf_firmware::sd::Card;
use nvmf_firmware::server::{Arena, Server, Settings, Tables};
use nvmf_tcp::smoltcp::target::Device;
#[cfg(not(feature = "dhcp"))]
use smoltcp::wire::{Ipv4Address, Ipv4Cidr};

use self::board::{Clock, Delay, Uart};
use self::ethernet::Ethernet;
use self::gpio::Output;
use self::registers::Registers;
use self::ssi::Ssi;

/// Queues at a time: two associations, of an admin queue and an I/O queue each.
const CONNECTIONS: usize = 4;
/// I/O queues of a host: the card does one thing at a time anyway.
const IO_QUEUES: u16 = 1;
/// Commands of a queue.
const DEPTH: usize = 8;
/// Bytes of each socket's ring, each way.
const RING: usize = 1536;
/// Buffers of 8 KiB, and of 4 KiB, for data under way.
const LARGE: usize = 1;
const SMALL: usize = 3;

/// DHCP takes one more.
const SOCKETS: usize = CONNECTIONS + cfg!(feature = "dhcp") as usize;

#[cfg(feature = "dhcp")]
const ADDRESS: Addressing = Addressing::Dhcp;
#[cfg(not(feature = "dhcp"))]
const ADDRESS: Addressing = Addressing::Static {
    address: Ipv4Cidr::new(Ipv4Address::new(10, 0, 2, 15), 24),
    gateway: Some(Ipv4Address::new(10, 0, 2, 2)),
};

const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6e766d66-6d63-7500-8000-0000000000c3";
const UUID: [u8; 16] = *b"nvmfmcu\0\x80\0\0\0\0\0\0\xc3";

#[entry]
fn main() -> ! {
    static mut ARENA: Arena<CONNECTIONS, DEPTH, RING, LARGE, SMALL> = Arena::new();
    static mut TABLES: Tables<CONNECTIONS, { LARGE + SMALL }, 1, SOCKETS> = Tables::new();
    static mut NIC: Ethernet = Ethernet::new();
    static mut IDENTITY: Option<Nqn> = None;
    static mut CARD: Option<Card<Ssi, Output>> = None;
    static mut DEVICES: Option<[Device<'static>; 1]> = None;

    let core = cortex_m::Peripherals::take().expect("taken once");
    board::start_clocks();
    let mut uart = Uart::first();
    let _ = writeln!(uart, "memory: {COST}");
    let mut clock = Clock::start(core.SYST);
    let mac = board::mac().unwrap_or([0x02, 0x6E, 0x76, 0x6D, 0x66, 0x01]);
    NIC.start(mac);

    let select = Output::high(Registers::GPIO_D, 0);
    let card = loop {
        match Card::start(Ssi::start(), select, &mut Delay) {
            Ok(card) => break card,
            Err(fault) => {
                let _ = writeln!(uart, "waiting for an SD card: {fault:?}");
                Delay.delay_ms(1000);
            }
        }
    };
    let card: Device<'static> = CARD.insert(card);
    let settings = Settings {
        nqn: IDENTITY.insert(NQN.parse().expect("an NQN")),
        serial: "lm3s6965",
        model: "nvmf Cortex-M3",
        uuid: UUID,
        mac,
        address: ADDRESS,
        port: 4420,
        io_queues: IO_QUEUES,
        seed: 0x6E76_6D66,
        crc32c: portable,
    };
    let mut server: Server<CONNECTIONS, DEPTH> = Server::new(
        &settings,
        ARENA,
        TABLES,
        DEVICES.insert([card]),
        NIC,
        clock.now(),
    );
    Ethernet::unmask();
    #[cfg(feature = "display")]
    let mut display = display::start(select, settings.port);
    let mut address = None;
    loop {
        let deadline = server.step(NIC, clock.now(), |event| log::say(&mut uart, &event));
        let status = server.status();
        if status.address != address {
            address = status.address;
            let _ = match address {
                Some(address) => writeln!(uart, "serving {address} port {}", settings.port),
                None => writeln!(uart, "waiting for an address"),
            };
        }
        #[cfg(feature = "display")]
        let deadline = sooner(
            deadline,
            display.as_mut().map(|it| it.step(clock.now(), &status)),
        );
        clock.sleep(deadline, Ethernet::arm);
    }
}
