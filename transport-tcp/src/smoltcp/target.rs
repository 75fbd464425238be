//! A target on smoltcp's sockets.
use core::time::Duration;

use nvmf_core::target::Namespace;
use nvmf_core::target::connect::RefusalReason;
use nvmf_core::target::queue_pair::Identity;
use nvmf_core::tcp::connection::CloseReason;
use nvmf_core::tcp::target::Config;
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::ids::Nqn;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::wire::IpAddress;

use super::connection::Connection;
pub use super::connection::Seat;
use super::local::Local;
pub use super::local::{Controllers, Device, Record};
use super::memory::{Buffer, MIN_BUFFERS, Pool};
use super::prepare;

/// Rounds over all connections before the interface has its turn.
const ROUNDS: usize = 4;

/// What a target is.
#[derive(Clone, Copy, Debug)]
pub struct Description<'a> {
    /// The subsystem's name.
    pub nqn: &'a Nqn,
    /// Serial number, at most 20 ASCII characters.
    pub serial: &'a str,
    /// Model number, at most 40 ASCII characters.
    pub model: &'a str,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: &'a str,
    /// TCP port, not 0. Hosts find the discovery subsystem there as well.
    pub port: u16,
    /// I/O queues that a host may have, not 0. The connections that these and its Admin
    /// Queue leave are for discovery and other hosts.
    pub io_queues: u16,
    /// How connections behave.
    pub transport: Config,
    /// How long a host may take from connecting to its Connect.
    pub connect_timeout: Duration,
}

/// What a target runs in.
pub struct Resources<'a, const CONNECTIONS: usize, const DEPTH: usize> {
    /// In ascending order of NSID.
    pub namespaces: &'a [Namespace],
    /// The namespaces' devices, in the same order.
    pub devices: &'a mut [Device<'a>],
    /// For data under way: [`MIN_BUFFERS`] or more, one of 8 KiB or more among
    /// them. The largest says how much a command may move.
    pub buffers: &'a mut [Option<Buffer<'a>>],
    /// The state of connections.
    pub seats: &'a mut [Seat<'a, DEPTH>; CONNECTIONS],
    /// Which controllers exist.
    pub records: &'a mut [Option<Record<'a>>; CONNECTIONS],
    /// What queues of a controller share.
    pub controllers: &'a Controllers<CONNECTIONS>,
}

/// What a log wants to know, as it happens; the first field is the index of the connection.
#[derive(Debug)]
pub enum Event<'e> {
    /// A host's queue is connected.
    Connected(usize, &'e Identity),
    /// A Connect was refused.
    Refused(usize, RefusalReason),
    /// A connection is over.
    Closed(usize, Closed),
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Closed {
    /// The host closed it.
    Host,
    /// It was reset, or the host no longer answers.
    Lost,
    /// We closed it, after what there was to say.
    Machine(CloseReason),
    /// We closed it, whatever there was to say.
    MachineAtOnce(CloseReason),
}

impl Closed {
    pub(super) fn is_abrupt(self) -> bool {
        matches!(self, Self::MachineAtOnce(_))
    }
}

/// A target with `CONNECTIONS` queues at a time, of `DEPTH` commands each.
///
/// An association takes a connection for its Admin Queue, and one for each I/O queue.
pub struct Target<'a, const CONNECTIONS: usize, const DEPTH: usize> {
    connections: [Connection<'a, DEPTH>; CONNECTIONS],
    local: Local<'a, CONNECTIONS>,
    transport: Config,
    connect_timeout: Duration,
    /// Who comes first when there is a buffer or a device to be had.
    turn: usize,
}

impl<'a, const CONNECTIONS: usize, const DEPTH: usize> Target<'a, CONNECTIONS, DEPTH> {
    /// That will listen on `sockets`, which are TCP sockets of `set` that are
    /// not in use. Their rings may be small: 256 bytes do, a segment or two are better.
    ///
    /// # Panics
    /// Where the resources are too few or too small for any host.
    pub fn new(
        description: Description<'a>,
        resources: Resources<'a, CONNECTIONS, DEPTH>,
        set: &mut SocketSet,
        sockets: [SocketHandle; CONNECTIONS],
    ) -> Self {
        let pool = Pool::new(resources.buffers);
        assert!(pool.len() >= MIN_BUFFERS, "too few buffers");
        assert!(pool.largest() >= 8192, "no buffer of 8 KiB");
        assert!(description.port != 0, "no port");
        assert!(description.io_queues > 0, "no I/O queues");
        assert_eq!(resources.namespaces.len(), resources.devices.len());
        for handle in sockets {
            prepare(set, handle);
        }
        let mut seats = resources.seats.iter_mut();
        Self {
            connections: sockets.map(|socket| {
                let seat = seats.next().expect("as many seats as sockets");
                Connection::new(socket, seat)
            }),
            transport: description.transport,
            connect_timeout: description.connect_timeout,
            local: Local::new(
                description,
                resources.namespaces,
                resources.devices,
                resources.controllers,
                resources.records,
                pool,
                DEPTH,
            ),
            turn: 0,
        }
    }

    /// The target is reached at this address, which its discovery log shows.
    pub fn set_address(&mut self, address: IpAddress) {
        self.local.set_address(address);
    }

    /// Takes all sockets from their hosts, without a word: they were reached at an
    /// address that is no longer the interface's.
    pub fn abandon(&mut self, set: &mut SocketSet, now: Instant, mut event: impl FnMut(Event<'_>)) {
        self.local.now = now;
        for (at, connection) in self.connections.iter_mut().enumerate() {
            if connection.is_serving() {
                event(Event::Closed(at, Closed::Lost));
            }
            connection.abort(set, at, &mut self.local);
        }
    }

    /// Does what there is to do, within bounds. True if the interface may have
    /// something to send: poll it, then this again. Otherwise sleep until the
    /// interface or [`Target::poll_timeout`] wants to be called.
    pub fn poll(
        &mut self,
        set: &mut SocketSet,
        now: Instant,
        mut event: impl FnMut(Event<'_>),
    ) -> bool {
        self.local.now = now;
        self.listen(set);
        for (at, connection) in self.connections.iter_mut().enumerate() {
            connection.handle_timeout(now, &mut self.local.seen_by(at));
        }
        let mut moved = false;
        for _ in 0..ROUNDS {
            let mut again = false;
            while let Some((at, completion)) = self.local.poll_devices() {
                if let Some(connection) = self.connections.get_mut(at) {
                    connection.block_completed(completion, &mut self.local.seen_by(at));
                }
                // A device may have had no room for another connection's command.
                self.local.pool.freed = true;
            }
            for (at, connection) in self.connections.iter_mut().enumerate() {
                again |= connection.serve(
                    set,
                    at,
                    &self.transport,
                    self.connect_timeout,
                    &mut self.local,
                    &mut event,
                );
            }
            again |= self.tell() | self.retry();
            moved |= again;
            if !again {
                break;
            }
        }
        moved
    }

    /// When [`Target::poll`] should be called even if nothing arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let connections = self.connections.iter().map(Connection::poll_timeout);
        connections.fold(self.local.poll_timeout(), sooner)
    }

    /// Connections that serve a host.
    #[must_use]
    pub fn connections(&self) -> usize {
        let serving = self.connections.iter().filter(|it| it.is_serving());
        serving.count()
    }

    /// Operations that devices have ended so far, modulo 2^32.
    #[must_use]
    pub fn operations(&self) -> u32 {
        self.local.operations
    }

    /// Has every socket listen that can. If that is none, the one is taken from
    /// its host that is needed least: hosts that come and go in a storm, or
    /// leave without closing, do not keep others out.
    fn listen(&mut self, set: &mut SocketSet) {
        let port = self.local.port();
        let mut listens = false;
        for connection in &mut self.connections {
            listens |= connection.listen(set, port);
        }
        if listens {
            return;
        }
        let candidates = self.connections.iter_mut().enumerate();
        let victim = candidates
            .filter_map(|(at, connection)| Some((connection.dispensable(set)?, at, connection)))
            .max_by_key(|(worth, ..)| *worth);
        if let Some((_, at, connection)) = victim {
            connection.abort(set, at, &mut self.local);
        }
    }

    /// Tells queues that a controller changed. True if one did.
    fn tell(&mut self) -> bool {
        let changed = core::mem::take(&mut self.local.changed);
        if changed {
            for (at, connection) in self.connections.iter_mut().enumerate() {
                connection.controller_changed(&mut self.local.seen_by(at));
            }
        }
        changed
    }

    /// Lets commands try again that wait for what became free. True if any could.
    fn retry(&mut self) -> bool {
        if !core::mem::take(&mut self.local.pool.freed) {
            return false;
        }
        let mut any = false;
        self.turn = self.turn.wrapping_add(1);
        for step in 0..CONNECTIONS {
            let at = self.turn.wrapping_add(step) % CONNECTIONS;
            if let Some(connection) = self.connections.get_mut(at)
                && connection.is_waiting()
            {
                connection.retry(&mut self.local.seen_by(at));
                any = true;
            }
        }
        any
    }
}
