//! A board: the firmware's server with a namespace in RAM, and a clock that is real.
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use nvmf_core::digest::portable;
use nvmf_core::time::Instant;
use nvmf_firmware::address::Addressing;
use nvmf_firmware::ram::Ram;
use nvmf_firmware::server::{Arena, Server, Settings, Tables};
use nvmf_tcp::smoltcp::target::Device;
use smoltcp::phy::{TunTapInterface, wait};
use smoltcp::wire::Ipv4Cidr;

use super::BOARD;

pub(crate) const NQN: &str = "nqn.2014-08.org.example:board";
/// Of the namespace.
pub(crate) const BYTES: usize = 1 << 20;
const CONNECTIONS: usize = 6;
const DEPTH: usize = 16;
/// How often it looks whether it is to stop.
const TICK: Duration = Duration::from_millis(20);

pub(crate) fn leak<T>(value: T) -> &'static mut T {
    Box::leak(Box::new(value))
}

/// Serves until it is to stop; the number of operations.
pub(crate) fn serve(mut tap: TunTapInterface, stop: &AtomicBool) -> u32 {
    let epoch = Clock::now();
    let disk: Device<'static> = leak(Ram::new(vec![0; BYTES].leak()));
    let settings = Settings {
        nqn: leak(NQN.parse().expect("an NQN")),
        serial: "1",
        model: "board",
        uuid: [1; 16],
        mac: [2, 0, 0, 0, 0, 2],
        address: Addressing::Static {
            address: Ipv4Cidr::new(BOARD.parse().expect("an address"), 24),
            gateway: None,
        },
        port: 4420,
        io_queues: 4,
        seed: 1,
        crc32c: portable,
    };
    let arena: &mut Arena<CONNECTIONS, DEPTH, 16384, 4, 4> = leak(Arena::new());
    let tables: &mut Tables<CONNECTIONS, 8, 1> = leak(Tables::new());
    let mut server = Server::new(&settings, arena, tables, leak([disk]), &mut tap, now(epoch));
    while !stop.load(Ordering::Relaxed) {
        let deadline = server.step(&mut tap, now(epoch), |_| {});
        sleep(&tap, deadline, now(epoch), TICK);
    }
    server.status().operations
}

pub(crate) fn now(epoch: Clock) -> Instant {
    Instant::from_micros(epoch.elapsed().as_micros() as u64)
}

/// Until a frame arrives, or `deadline`, or for `most`.
pub(crate) fn sleep(
    tap: &TunTapInterface,
    deadline: Option<Instant>,
    now: Instant,
    most: Duration,
) {
    let pause = deadline.map_or(most, |at| at.since(now).min(most));
    wait(tap.as_raw_fd(), Some(pause.into())).expect("a wait");
}
