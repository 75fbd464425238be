//! A target's connections over RDMA devices, beside those over TCP: the same
//! subsystems, namespaces and controllers.
//!
//! | module | what is in it |
//! |---|---|
//! | this one | an address where RDMA is listened, and the threads that serve it |
//! | `worker` | one of them: its share of the device, and the loop |
//! | `door` | connections as they come, spread over the workers by load |
//! | `local` | what of a worker its connections' machines see |
//! | `memory` | registered memory for data |
//!
//! Each address has workers of its own, up to one for each completion vector of
//! its device. A worker has a completion queue, a shared receive queue, a handle
//! on each namespace, and registered memory; it owns its connections from their
//! acceptance to their end, since a queue says what it will be when it connects.
//! A device that is removed takes its connections with it. Its address is tried
//! again every second, until there is a device.
mod door;
mod local;
mod memory;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use nvmf_core::target::Limits;
use nvmf_core::wire::cm::CmReq;
use nvmf_rdma::cm::Terms;
use nvmf_rdma::ibv::{self, Device, OpenError, Request};
use nvmf_rdma::verbs;

use self::worker::Worker;
use super::catalog::Subsystem;
use super::error::Error;
use super::mailbox::Mailbox;
use super::shared::{Controller, Shared};
use super::target::{StopOnPanic, pin};

/// Most that a keyed descriptor can speak of, as a power of two: its length has 24 bits.
const MOST_TRANSFER: u32 = 8 << 20;

/// A target's RDMA side. Start from [`Config::default`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen: addresses of RDMA devices, with their ports. None is no RDMA.
    pub listen: Vec<SocketAddr>,
    /// Data that a write command may bring along, in bytes: a multiple of 16, 64 KiB
    /// at most. A receive is this long, and another 512 bytes.
    pub inline_data: u32,
    /// Receives in each worker's shared receive queue, 16 to 65535.
    pub shared_receives: u32,
    /// Completions that a worker takes before it looks at anything else, 1 to 4096.
    pub budget: usize,
    /// Threads for each address; `None` is one for each core that the process may
    /// use, but no more than the device has completion vectors.
    pub workers: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            inline_data: 16 * 1024,
            shared_receives: 1024,
            budget: 32,
            workers: None,
        }
    }
}

impl Config {
    pub(super) fn check(&self) -> Result<(), Error> {
        let port = self.listen.iter().map(SocketAddr::port).min();
        let workers = self.workers.unwrap_or(1);
        let checks = [
            (
                "the port of an RDMA address",
                port.unwrap_or(1).into(),
                port != Some(0),
                "1 to 65535",
            ),
            (
                "the size of in-capsule data over RDMA",
                self.inline_data.into(),
                self.inline_data.is_multiple_of(16) && self.inline_data <= 64 << 10,
                "0 to 64 KiB, and a multiple of 16",
            ),
            (
                "the number of shared receives",
                self.shared_receives.into(),
                (16..=65_535).contains(&self.shared_receives),
                "16 to 65535",
            ),
            (
                "the budget of completions",
                self.budget as u64,
                (1..=4096).contains(&self.budget),
                "1 to 4096",
            ),
            (
                "the number of RDMA workers",
                workers as u64,
                (1..=1024).contains(&workers),
                "1 to 1024",
            ),
        ];
        for (what, value, good, range) in checks {
            if !good {
                return Err(Error::OutOfRange { what, value, range });
            }
        }
        Ok(())
    }

    /// What connections over RDMA may ask for.
    fn limits(&self, limits: &Limits) -> Limits {
        Limits {
            inline_data: self.inline_data,
            transfer: limits.transfer.min(MOST_TRANSFER),
            io_queue_entries: limits.io_queue_entries.min(u16::MAX.into()),
            ..*limits
        }
    }
}

/// News for a worker.
enum Message {
    /// A peer wants to connect, and this worker has the least to do.
    Request(Box<(Request, Terms)>),
    /// A controller's epoch ended: its queues must look.
    ControllerChanged(Controller),
    /// The device is gone.
    Removed,
    /// There is a device again.
    Device(Device),
    /// Finish what is under way, close, and return.
    Stop,
}

/// An address where RDMA is listened, and its workers. The first of them listens.
pub(super) struct Port {
    address: SocketAddr,
    portid: u16,
    /// The target's number of the first worker.
    first: usize,
    workers: Box<[Place]>,
}

/// A worker as others see it.
struct Place {
    mailbox: Mailbox<Message>,
    connections: AtomicUsize,
    io_queues: AtomicUsize,
    /// It has a share of the device.
    open: AtomicBool,
}

impl Port {
    /// `first` is the number of the first of `workers` workers, and hosts know the
    /// address as `portid`.
    fn new(
        address: SocketAddr,
        portid: u16,
        first: usize,
        workers: usize,
    ) -> rustix::io::Result<Self> {
        let place = |_| {
            Ok(Place {
                mailbox: Mailbox::new()?,
                connections: AtomicUsize::new(0),
                io_queues: AtomicUsize::new(0),
                open: AtomicBool::new(false),
            })
        };
        Ok(Self {
            address,
            portid,
            first,
            workers: (0..workers).map(place).collect::<Result<_, _>>()?,
        })
    }

    /// Has every worker finish.
    pub(super) fn stop(&self) {
        for place in &self.workers {
            place.mailbox.put(Message::Stop);
        }
    }

    /// Has the controller's queues on all workers but that of number `except` look at it.
    pub(super) fn controller_changed(&self, controller: &Controller, except: usize) {
        for (number, place) in (self.first..).zip(&self.workers) {
            if number != except {
                let controller = Arc::clone(controller);
                place.mailbox.put(Message::ControllerChanged(controller));
            }
        }
    }

    /// The worker for a connection that begins with this private data: of I/O queues
    /// each gets its share, and so of Admin Queues, which are all but idle.
    fn least(&self, private_data: &[u8]) -> usize {
        let io = CmReq::parse(private_data).is_ok_and(|req| !req.qid().is_admin());
        let places = (0..).zip(&self.workers);
        let open =
            places.filter(|(index, place)| *index == 0 || place.open.load(Ordering::Acquire));
        open.min_by_key(|(_, place)| {
            let connections = place.connections.load(Ordering::Relaxed);
            let io_queues = place.io_queues.load(Ordering::Relaxed);
            if io {
                (io_queues, connections)
            } else {
                (connections, io_queues)
            }
        })
        .map_or(0, |(index, _)| index)
    }
}

/// Addresses and their devices.
pub(super) struct Found(Vec<(Arc<Port>, Device)>);

impl Found {
    pub(super) fn ports(&self) -> Box<[Arc<Port>]> {
        self.0.iter().map(|(port, _)| Arc::clone(port)).collect()
    }
}

/// Finds the devices. `first` is the number that their first worker has in the
/// target, `tcp` the number of other addresses there; `cores` that of cores.
pub(super) fn find(
    config: &Config,
    first: usize,
    tcp: usize,
    cores: usize,
) -> Result<Found, Error> {
    let mut found = Vec::new();
    let mut next = first;
    for (index, address) in (tcp + 1..).zip(&config.listen) {
        let portid = u16::try_from(index).unwrap_or(u16::MAX);
        let device = Device::at(*address).map_err(|error| Error::rdma(*address, error))?;
        let vectors = device.completion_vectors().max(1) as usize;
        let workers = config.workers.unwrap_or(vectors.min(cores)).max(1);
        let port = Port::new(*address, portid, next, workers)
            .map_err(|error| Error::start(next, error.into()))?;
        found.push((Arc::new(port), device));
        next += workers;
    }
    Ok(Found(found))
}

/// Threads that have their shares of the devices, and wait for the target to run.
pub(super) struct Waiting(Vec<(usize, mpsc::Sender<()>, JoinHandle<()>)>);

impl Waiting {
    /// Starts a thread for each worker. An address is listened on when this returns.
    pub(super) fn start(
        found: Found,
        config: &Config,
        shared: &Arc<Shared>,
        subsystems: &[Subsystem],
        cores: &[usize],
        guard: &StopOnPanic,
    ) -> Result<Self, Error> {
        let mut waiting = Self(Vec::new());
        let workers = || found.0.iter().map(|(port, _)| port.workers.len());
        let first = found.0.first().map_or(0, |(port, _)| port.first);
        // Each has a core for itself; more of them than cores are for the system to move around.
        let cores = if workers().sum::<usize>() <= cores.len() {
            cores
        } else {
            &[]
        };
        for (port, device) in found.0 {
            // The first listens, so the others come first.
            for index in (0..port.workers.len()).rev() {
                let number = port.first + index;
                let (port, device, guard) = (Arc::clone(&port), device.clone(), guard.clone());
                let (config, shared) = (config.clone(), Arc::clone(shared));
                let subsystems = subsystems.to_vec();
                let core = cores.get(number - first).copied();
                let (ready, opened) = mpsc::channel();
                let (go, run) = mpsc::channel();
                let body = move || {
                    let _stops_all = guard;
                    if let Some(core) = core {
                        pin(core);
                    }
                    let worker = Worker::new(index, port, shared, &subsystems, &config)
                        .map_err(|error| Error::start(number, error.into()))
                        .and_then(|mut worker| worker.open(device).map(|()| worker));
                    match worker {
                        Ok(worker) => {
                            let told = ready.send(Ok(()));
                            if told.is_ok() && run.recv().is_ok() {
                                worker.run();
                            }
                        }
                        Err(error) => drop(ready.send(Err(error))),
                    }
                };
                let thread = thread::Builder::new()
                    .name(format!("nvmf-rdma-{number}"))
                    .spawn(body)
                    .map_err(|source| Error::start(number, source))?;
                waiting.0.push((number, go, thread));
                let panicked = |_| Error::WorkerPanicked { worker: number };
                opened.recv().map_err(panicked)??;
            }
        }
        Ok(waiting)
    }

    /// Lets them serve. Gives each thread, and its worker's number.
    pub(super) fn run(self) -> impl Iterator<Item = (usize, JoinHandle<()>)> {
        self.0.into_iter().map(|(number, go, thread)| {
            // It fails for a thread that panicked, which joining will say.
            let _ = go.send(());
            (number, thread)
        })
    }
}

impl Error {
    fn rdma(address: SocketAddr, error: OpenError) -> Self {
        match error {
            OpenError::Missing(missing) => Self::NoRdma(missing),
            error => Self::Rdma {
                address,
                reason: error.to_string(),
            },
        }
    }

    fn rdma_refused(address: SocketAddr, what: &str, error: verbs::Error) -> Self {
        match error {
            verbs::Error::Other(number) => {
                Self::listen(address, io::Error::from_raw_os_error(number))
            }
            error => Self::Rdma {
                address,
                reason: format!("{what}: {error}"),
            },
        }
    }
}

/// Memory of an RDMA device's, as a command has it.
pub(super) type Registered = nvmf_rdma::Buffer<ibv::Buffer>;

#[cfg(test)]
mod tests {
    use nvmf_core::wire::ids::{Cntlid, Qid};
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn connections_go_to_whoever_has_the_least() {
        let port = Port::new("192.0.2.7:4420".parse().unwrap(), 1, 0, 3).unwrap();
        let request = |qid| CmReq::new(Qid(qid), 32, 31, Cntlid(1));
        let (admin, io) = (request(0), request(1));
        let least = |request: &CmReq| port.least(request.as_bytes());
        assert_eq!(
            (least(&admin), least(&io)),
            (0, 0),
            "only the first is open"
        );
        for place in &port.workers {
            place.open.store(true, Ordering::Relaxed);
        }
        port.workers[0].connections.store(2, Ordering::Relaxed);
        port.workers[1].connections.store(1, Ordering::Relaxed);
        port.workers[2].connections.store(1, Ordering::Relaxed);
        port.workers[2].io_queues.store(1, Ordering::Relaxed);
        assert_eq!(least(&admin), 1);
        assert_eq!(least(&io), 1);
        port.workers[1].io_queues.store(1, Ordering::Relaxed);
        assert_eq!(least(&io), 0, "Admin Queues are all but idle");
        assert_eq!(port.least(b"no request"), 1);
    }

    #[test]
    fn limits_are_those_of_the_transport() {
        let config = Config {
            inline_data: 4096,
            ..Config::default()
        };
        let tcp = Limits {
            io_queue_entries: 65_536,
            admin_queue_entries: 32,
            io_queues: 4,
            inline_data: 16_384,
            transfer: 64 << 20,
        };
        let rdma = config.limits(&tcp);
        assert_eq!((rdma.inline_data, rdma.transfer), (4096, 8 << 20));
        assert_eq!((rdma.io_queue_entries, rdma.io_queues), (65_535, 4));
    }
}
