//! The binding to smoltcp: its sockets, memory that the caller gives, and no
//! allocator, operating system or `std`.
//!
//! | module | what it does |
//! |---|---|
//! | [`target`] | what a target is, and running it: start here |
//! | [`host`] | the other end: connecting to a target, and its namespace's blocks |
//! | [`memory`] | buffers for data under way |
//!
//! The caller owns interface, device and sockets, and says what time it is. Its
//! loop is: poll the interface, poll the target or the host, sleep until either
//! has something to do.
//!
//! What a socket received is handed to the machine where it lies in the socket's
//! ring; heads and payload are written where they are sent from. A payload is
//! copied once each way, between ring and buffer. Backpressure is TCP's: what a
//! machine cannot take yet stays in the ring, and while a ring is full the
//! machine is not asked for more.
mod connection;
pub mod host;
mod local;
pub mod memory;
mod outgoing;
pub mod target;

use nvmf_core::tcp::tx::MAX_HEAD;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::Socket;
use smoltcp::time::Duration;

/// How often a peer that says nothing is asked whether it is there, and how
/// long it may be silent altogether: several questions may be lost.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(10);
const TCP_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes a socket one for NVMe/TCP.
fn prepare(set: &mut SocketSet, socket: SocketHandle) {
    let socket = set.get_mut::<Socket>(socket);
    assert!(socket.send_capacity() >= MAX_HEAD, "a ring below 256 bytes");
    socket.set_nagle_enabled(false);
    socket.set_keep_alive(Some(TCP_KEEP_ALIVE));
    socket.set_timeout(Some(TCP_TIMEOUT));
}
