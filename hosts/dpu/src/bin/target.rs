//! An NVMe/TCP target that serves the board's disk, and some of its memory.
#![no_std]
#![no_main]

use board::clock::Clock;
use board::devices::{DISK_SLOTS, Devices, Disk, NIC_QUEUE, Nic};
use board::memory::{Stack, Taken};
use board::words::words;
use board::{ADDRESS, GATEWAY, MAC, MODEL, RING, crc32c, say};
use nvmf_core::block::BlockDevice;
use nvmf_core::wire::ids::Nqn;
use nvmf_firmware::address::Addressing;
use nvmf_firmware::cost::COST;
use nvmf_firmware::ram::Ram;
use nvmf_firmware::server::{Arena, Server, Settings, Tables};
use nvmf_firmware::virtio::disk::{Scratch, Slot};
use nvmf_firmware::virtio::nic::Frame;
use nvmf_tcp::smoltcp::target::{Device, Event};

/// Queues at a time: two associations with an Admin Queue and four I/O queues each,
/// and two to spare.
const CONNECTIONS: usize = 12;
/// I/O queues of a host.
const IO_QUEUES: u16 = 4;
/// Commands of a queue.
const DEPTH: usize = 64;
/// Buffers for data under way, and their bytes.
const LARGE: usize = 48;
const LARGE_BYTES: usize = 128 << 10;
const SMALL: usize = 128;
const SMALL_BYTES: usize = 8 << 10;
/// Bytes of the namespace in memory.
const RAM: usize = 16 << 20;

const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6e766d66-6470-7500-8000-0000000000d9";
const UUID: [u8; 16] = *b"nvmfdpu\0\x80\0\0\0\0\0\0\xd9";

static ARENA: Taken<Arena<CONNECTIONS, DEPTH, RING, LARGE, SMALL, LARGE_BYTES, SMALL_BYTES>> =
    Taken::new(Arena::new());
/// DHCP has a socket, too.
static TABLES: Taken<Tables<CONNECTIONS, { LARGE + SMALL }, 2, { CONNECTIONS + 1 }>> =
    Taken::new(Tables::new());
static RECEIVED: Taken<[Frame; NIC_QUEUE]> = Taken::new([Frame::EMPTY; NIC_QUEUE]);
static TO_SEND: Taken<[Frame; NIC_QUEUE]> = Taken::new([Frame::EMPTY; NIC_QUEUE]);
static SLOTS: Taken<[Slot; DISK_SLOTS]> = Taken::new([Slot::FREE; DISK_SLOTS]);
static SCRATCH: Taken<Scratch> = Taken::new(Scratch::new());
static MEMORY: Taken<[u8; RAM]> = Taken::new([0; RAM]);
static IDENTITY: Taken<Option<Nqn>> = Taken::new(None);
static DISK: Taken<Option<Disk>> = Taken::new(None);
static RAM_DISK: Taken<Option<Ram<'static>>> = Taken::new(None);
static DEVICES: Taken<Option<[Device<'static>; 2]>> = Taken::new(None);

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let clock = Clock::start();
    let found = Devices::find();
    let nic = found.nic.expect("a virtio network card");
    let mut nic = Nic::start(nic, RECEIVED.take(), TO_SEND.take()).expect("the network card");
    let disk = found.disk.expect("a virtio disk");
    let disk = Disk::start(disk, SLOTS.take(), SCRATCH.take()).expect("the disk");
    let geometry = disk.geometry();
    let (blocks, size) = (geometry.blocks, geometry.block_size());
    say!(
        "disk: {blocks} blocks of {size} bytes{}",
        if geometry.read_only {
            ", read only"
        } else {
            ""
        }
    );

    say!("memory: {COST}");

    let disk: Device<'static> = DISK.take().insert(disk);
    let ram: Device<'static> = RAM_DISK.take().insert(Ram::new(MEMORY.take()));
    let devices = DEVICES.take().insert([disk, ram]);
    let settings = Settings {
        nqn: IDENTITY.take().insert(NQN.parse().expect("an NQN")),
        serial: "virt",
        model: MODEL,
        uuid: UUID,
        mac: nic.mac().unwrap_or(MAC),
        address: if words().any(|word| word == "dhcp") {
            Addressing::Dhcp
        } else {
            Addressing::Static {
                address: ADDRESS,
                gateway: Some(GATEWAY),
            }
        },
        port: 4420,
        io_queues: IO_QUEUES,
        seed: clock.ticks(),
        crc32c: crc32c::engine(),
    };
    let mut server: Server<CONNECTIONS, DEPTH> = Server::new(
        &settings,
        ARENA.take(),
        TABLES.take(),
        devices,
        &mut nic,
        clock.now(),
    );
    let mut address = None;
    loop {
        let deadline = server.step(&mut nic, clock.now(), report);
        if address != server.status().address {
            address = server.status().address;
            match address {
                Some(address) => say!("serving {address} port {}", settings.port),
                None => say!("no address"),
            }
        }
        nic.kick();
        clock.sleep(deadline);
        found.lines.acknowledge();
    }
}

fn report(event: Event) {
    match event {
        Event::Connected(at, identity) => {
            let (queue, controller) = (identity.qid.0, identity.cntlid.0);
            say!("{at}: queue {queue} of controller {controller}");
        }
        Event::Refused(at, reason) => say!("{at}: refused: {reason}"),
        Event::Closed(at, reason) => {
            let Stack { peak, size } = Stack::measure();
            say!("{at}: closed: {reason:?}; stack {peak} of {size}");
        }
    }
}
