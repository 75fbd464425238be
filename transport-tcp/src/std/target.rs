//! A target: what it is, and running it.
//!
//! ```no_run
//! use nvmf_tcp::std::catalog::Subsystem;
//! use nvmf_tcp::std::device::Namespace;
//! use nvmf_tcp::std::target::{Config, Target};
//!
//! # fn example(disk: impl Namespace + 'static) -> Result<(), Box<dyn std::error::Error>> {
//! let subsystem = Subsystem::new("nqn.2014-08.org.example:disks".parse()?).with(disk);
//! let target = Target::bind(Config {
//!     listen: vec!["127.0.0.1:4420".parse()?],
//!     subsystems: vec![subsystem],
//!     ..Config::default()
//! })?;
//! println!("listening on {:?}", target.local_addrs());
//!
//! let running = target.spawn()?;
//! // ... later:
//! running.stopper().stop();
//! running.join()?;
//! # Ok(())
//! # }
//! ```
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nvmf_core::target::Limits;
use nvmf_core::target::registry::MAX_IO_QUEUES;
use nvmf_core::tcp;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::acceptor;
use super::catalog::{OwnedCatalog, Subsystem};
pub use super::error::Error;
use super::mailbox::Mailbox;
use super::shared::{Settings, Shared};
pub use super::socket::SocketOptions;
use super::socket::listen;
use super::waker::Waker;
use super::worker::Worker;

/// What a target is. Start from [`Config::default`].
#[derive(Clone)]
pub struct Config {
    /// Where to listen for TCP. Port 0 is any free port.
    pub listen: Vec<SocketAddr>,
    /// Where to listen for RDMA, and how. At one address at least the target listens.
    #[cfg(feature = "rdma")]
    pub rdma: super::rdma::Config,
    /// Options of the sockets.
    pub sockets: SocketOptions,
    /// What is served, beside the discovery subsystem, which is always there.
    pub subsystems: Vec<Subsystem>,
    /// What hosts may ask for.
    pub limits: Limits,
    /// How connections behave: digests, alignment, sizes of transfers.
    pub transport: tcp::target::Config,
    /// Controllers that may exist at a time, of all hosts together.
    pub controllers: usize,
    /// How long a host may take from connecting to its Connect command.
    pub connect_timeout: Duration,
    /// Threads that serve connections; `None` is one for each core that the process may use.
    pub workers: Option<usize>,
    /// Binds each worker to a core, where the system permits that.
    pub pin: bool,
    /// A connection that becomes an I/O queue moves to the worker with the fewest of them.
    /// Without that it stays where it was accepted, which is for comparison.
    pub place: bool,
    /// How long a worker that has nothing to do polls before it sleeps, if its last sleep was
    /// shorter than that. Saves the microseconds that waking up takes, at the price of the
    /// core's time; an idle worker does not poll.
    pub spin: Duration,
    /// Memory for the data of commands under way, in bytes and for each worker. When it
    /// is used up, each connection has to do with one command's at a time.
    pub buffers: usize,
    /// How long commands under way may take once the target is to stop.
    pub stop_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            #[cfg(feature = "rdma")]
            rdma: super::rdma::Config::default(),
            sockets: SocketOptions::default(),
            subsystems: Vec::new(),
            limits: Limits {
                // Twice what hosts ask for by default; each command of a queue is memory that
                // its host makes us hold.
                io_queue_entries: 256,
                admin_queue_entries: 32,
                io_queues: 64,
                inline_data: 16 * 1024,
                transfer: 1 << 20,
            },
            transport: tcp::target::Config {
                crc32c: crate::digest::crc32c,
                max_c2hdata: 256 * 1024,
                ..tcp::target::Config::default()
            },
            controllers: 1024,
            connect_timeout: Duration::from_secs(10),
            workers: None,
            pin: true,
            place: true,
            spin: Duration::from_micros(50),
            buffers: 256 << 20,
            stop_timeout: Duration::from_secs(10),
        }
    }
}

impl Config {
    fn check(&self) -> Result<(), Error> {
        let limits = &self.limits;
        let transfer = u64::from(limits.transfer);
        let checks = [
            (
                "the number of queue entries",
                u64::from(limits.io_queue_entries),
                (2..=65_536).contains(&limits.io_queue_entries),
                "2 to 65536",
            ),
            (
                "the number of I/O queues",
                limits.io_queues.into(),
                (1..=MAX_IO_QUEUES).contains(&limits.io_queues),
                "1 to 128",
            ),
            (
                "the size of in-capsule data",
                limits.inline_data.into(),
                limits.inline_data.is_multiple_of(16) && limits.inline_data <= 1 << 20,
                "0 to 1 MiB, and a multiple of 16",
            ),
            (
                "the size of a transfer",
                transfer,
                transfer.is_power_of_two() && (4096..=64 << 20).contains(&transfer),
                "a power of two, 4 KiB to 64 MiB",
            ),
            (
                "CPDA",
                self.transport.cpda.into(),
                self.transport.cpda <= 31,
                "0 to 31",
            ),
            (
                "MAXH2CDATA",
                self.transport.maxh2cdata.into(),
                self.transport.maxh2cdata >= 4096 && self.transport.maxh2cdata.is_multiple_of(4),
                "4096 or more, and a multiple of 4",
            ),
            (
                "the number of controllers",
                self.controllers as u64,
                (1..=65_519).contains(&self.controllers),
                "1 to 65519",
            ),
            (
                "the number of workers",
                self.workers.unwrap_or(1) as u64,
                self.workers.is_none_or(|count| (1..=1024).contains(&count)),
                "1 to 1024",
            ),
        ];
        for (what, value, good, range) in checks {
            if !good {
                return Err(Error::OutOfRange { what, value, range });
            }
        }
        #[cfg(feature = "rdma")]
        self.rdma.check()?;
        Ok(())
    }

    /// Where it is listened for RDMA.
    fn rdma_addresses(&self) -> &[SocketAddr] {
        #[cfg(feature = "rdma")]
        return &self.rdma.listen;
        #[cfg(not(feature = "rdma"))]
        return &[];
    }
}

/// A target that listens, but serves nobody yet.
pub struct Target {
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    workers: Vec<Worker>,
    #[cfg(feature = "rdma")]
    rdma: super::rdma::Waiting,
    cores: Vec<usize>,
    stopper: Stopper,
}

/// Stops a target, from any thread.
#[derive(Clone)]
pub struct Stopper {
    shared: Arc<Shared>,
    acceptor: Waker,
}

/// A target that runs in threads of its own, until it is stopped: dropping this
/// does not stop it.
pub struct Running {
    stopper: Stopper,
    thread: JoinHandle<Result<(), Error>>,
}

impl Target {
    /// Checks the configuration, listens, and prepares the workers. Hosts can connect
    /// from now on, and are served once the target runs.
    ///
    /// # Errors
    /// [`Error`] says what is wrong and what to do about it.
    pub fn bind(config: Config) -> Result<Self, Error> {
        config.check()?;
        if config.listen.is_empty() && config.rdma_addresses().is_empty() {
            return Err(Error::NoListener);
        }
        let listeners = config
            .listen
            .iter()
            .map(|address| listen(*address, &config.sockets))
            .collect::<Result<Vec<_>, _>>()?;
        let addresses = config
            .listen
            .iter()
            .zip(&listeners)
            .map(|(address, listener)| {
                listener
                    .local_addr()
                    .map_err(|source| Error::listen(*address, source))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let catalog = OwnedCatalog::new(&config.subsystems, &addresses, config.rdma_addresses())?;
        let available = cores();
        let count = match listeners.len() {
            0 => 0,
            _ => config.workers.unwrap_or(available.len()).max(1),
        };
        #[cfg(feature = "rdma")]
        let found = super::rdma::find(&config.rdma, count, listeners.len(), available.len())?;
        let start = |worker| move |error: rustix::io::Errno| Error::start(worker, error.into());
        let mailboxes = (0..count)
            .map(|worker| Mailbox::new().map_err(start(worker)))
            .collect::<Result<_, _>>()?;
        let settings = Settings {
            catalog,
            limits: config.limits,
            transport: config.transport,
            sockets: config.sockets,
            spin: config.spin,
            connect_timeout: config.connect_timeout,
            stop_timeout: config.stop_timeout,
            place: config.place,
            buffers: config.buffers,
            controllers: config.controllers,
            #[cfg(feature = "rdma")]
            ports: found.ports(),
        };
        let shared = Arc::new(Shared::new(settings, mailboxes));
        let workers = (0..count)
            .map(|worker| {
                Worker::new(worker, Arc::clone(&shared), &config.subsystems).map_err(start(worker))
            })
            .collect::<Result<_, _>>()?;
        let stopper = Stopper {
            shared: Arc::clone(&shared),
            acceptor: Waker::new().map_err(start(0))?,
        };
        Ok(Self {
            #[cfg(feature = "rdma")]
            rdma: super::rdma::Waiting::start(
                found,
                &config.rdma,
                &shared,
                &config.subsystems,
                if config.pin { &available } else { &[] },
                &StopOnPanic(stopper.clone()),
            )?,
            stopper,
            shared,
            listeners,
            addresses,
            workers,
            // More workers than cores are for the system to move around.
            cores: if config.pin && count <= available.len() {
                available
            } else {
                Vec::new()
            },
        })
    }

    /// Where it listens for TCP, in the order of [`Config::listen`], with the ports that were chosen.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle that stops the target.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until stopped: the calling thread accepts connections, threads of
    /// their own do the rest. Threads inherit the caller's signal mask.
    ///
    /// # Errors
    /// When a thread cannot be started, or panicked.
    pub fn run(self) -> Result<(), Error> {
        let mut threads = Vec::new();
        let mut outcome = Ok(());
        for (index, worker) in self.workers.into_iter().enumerate() {
            let core = self.cores.get(index).copied();
            let panic_guard = self.stopper.clone();
            let thread = thread::Builder::new()
                .name(format!("nvmf-{index}"))
                .spawn(move || {
                    let _stops_all = StopOnPanic(panic_guard);
                    if let Some(core) = core {
                        pin(core);
                    }
                    worker.run();
                });
            match thread {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    outcome = Err(Error::start(index, source));
                    self.stopper.stop();
                    break;
                }
            }
        }
        #[cfg(feature = "rdma")]
        let rdma: Vec<_> = self.rdma.run().collect();
        acceptor::run(&self.listeners, &self.stopper.acceptor, &self.shared);
        // Whoever tries to connect from now on is refused at once.
        drop(self.listeners);
        for (worker, thread) in threads.into_iter().enumerate() {
            if thread.join().is_err() {
                outcome = Err(Error::WorkerPanicked { worker });
            }
        }
        #[cfg(feature = "rdma")]
        for (worker, thread) in rdma {
            if thread.join().is_err() {
                outcome = Err(Error::WorkerPanicked { worker });
            }
        }
        outcome
    }

    /// Like [`Target::run`], in a thread of its own.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn spawn(self) -> Result<Running, Error> {
        let stopper = self.stopper();
        let thread = thread::Builder::new()
            .name("nvmf-accept".to_owned())
            .spawn(|| self.run())
            .map_err(|source| Error::start(0, source))?;
        Ok(Running { stopper, thread })
    }
}

impl Stopper {
    /// Accepts no more connections and begins no more commands, finishes what is
    /// under way within [`Config::stop_timeout`], and closes. Returns at once.
    pub fn stop(&self) {
        self.shared.stop();
        self.acceptor.wake();
    }
}

impl Running {
    /// A handle that stops the target.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until the target has stopped.
    ///
    /// # Errors
    /// Those of [`Target::run`].
    pub fn join(self) -> Result<(), Error> {
        match self.thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A target without one of its workers would leave hosts waiting.
#[derive(Clone)]
pub(super) struct StopOnPanic(Stopper);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

/// The cores that this process may use.
fn cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&core| set.is_set(core))
            .collect(),
        Err(_) => (0..thread::available_parallelism().map_or(1, usize::from)).collect(),
    }
}

/// Keeps the calling thread on one core; if that is not permitted, it runs anywhere.
pub(super) fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(core, %error, "a worker is not bound to its core");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn config() -> Config {
        Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            subsystems: vec![Subsystem::new("nqn.2014-08.org.example:a".parse().unwrap())],
            workers: Some(2),
            ..Config::default()
        }
    }

    #[test]
    fn it_serves_from_spawn_to_stop() {
        let target = Target::bind(config()).unwrap();
        let address = target.local_addrs()[0];
        // Hosts that come early wait.
        let mut host = TcpStream::connect(address).unwrap();
        let running = target.spawn().unwrap();
        let mut ic_req = [0; 128];
        (ic_req[2], ic_req[4]) = (128, 128);
        host.write_all(&ic_req).unwrap();
        let mut ic_resp = [0; 128];
        host.read_exact(&mut ic_resp).unwrap();
        assert_eq!(ic_resp[0], 1);

        running.stopper().stop();
        running.stopper().stop();
        running.join().unwrap();
        assert_eq!(host.read(&mut ic_resp).unwrap(), 0);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_target_that_never_ran_lets_go_of_its_address() {
        let target = Target::bind(config()).unwrap();
        let listen = target.local_addrs().to_vec();
        drop(target);
        assert!(Target::bind(Config { listen, ..config() }).is_ok());
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        type Change = fn(&mut Config);
        let changes: [(Change, &str); 7] = [
            (|c| c.listen.clear(), "the target listens nowhere"),
            (|c| c.limits.io_queue_entries = 1, "2 to 65536"),
            (|c| c.limits.io_queues = 129, "1 to 128"),
            (|c| c.limits.transfer = 6000, "a power of two"),
            (|c| c.transport.maxh2cdata = 4094, "4096 or more"),
            (|c| c.transport.cpda = 32, "0 to 31"),
            (|c| c.workers = Some(0), "1 to 1024"),
        ];
        for (change, explanation) in changes {
            let mut config = config();
            change(&mut config);
            let error = Target::bind(config).err().map(|error| error.to_string());
            assert!(
                error.as_ref().is_some_and(|e| e.contains(explanation)),
                "{error:?}"
            );
        }
    }
}
