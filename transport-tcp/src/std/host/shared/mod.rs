//! Associations that many threads and async tasks use together.
mod association;
mod connection;
mod driver;
mod event;
mod lane;
mod life;
mod namespace;
mod request;

use std::net::ToSocketAddrs;
use std::num::NonZero;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant as Clock;

use nvmf_core::wire::ids::Nqn;

pub use association::Association;
pub use event::Event;
pub use namespace::SharedNamespace;
pub use request::Request;

use self::association::Inner;
use self::driver::Driver;
use self::lane::{Lane, lock};
pub(super) use self::namespace::Known;
use super::error::Error;
use super::options::Options;
use super::url::Url;

/// Threads of a host for which nobody says a number, where there are as many cores.
const THREADS: usize = 4;

/// The threads that look after shared associations: they receive, keep alive and reconnect.
///
/// A few serve any number of associations. They sleep while there is nothing to do. When
/// the last of the clones and of the associations is dropped, the controllers are shut down
/// and the threads end.
#[derive(Clone)]
pub struct Host {
    threads: Arc<Threads>,
}

pub(super) struct Threads {
    drivers: Vec<Arc<Driver>>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Host {
    /// Starts the threads: so many, or one for each core that the process may use, but no more than 4.
    ///
    /// # Errors
    /// [`Error::Thread`]
    pub fn new(threads: Option<NonZero<usize>>) -> Result<Self, Error> {
        let count = threads.map_or_else(
            || thread::available_parallelism().map_or(1, |cores| cores.get().min(THREADS)),
            NonZero::get,
        );
        let epoch = Clock::now();
        let drivers = (0..count).map(|_| Driver::new(epoch));
        let host = Self {
            threads: Arc::new(Threads {
                drivers: drivers.collect::<Result<_, _>>()?,
                handles: Mutex::new(Vec::new()),
            }),
        };
        for (index, driver) in host.threads.drivers.iter().enumerate() {
            let driver = Arc::clone(driver);
            let handle = thread::Builder::new()
                .name(format!("nvmf-host-{index}"))
                .spawn(move || driver.run())
                .map_err(Error::Thread)?;
            lock(&host.threads.handles).push(handle);
        }
        Ok(host)
    }

    /// Connects to the subsystem that the URL names, or to the discovery subsystem if it
    /// names none.
    ///
    /// The name is resolved before this returns; all else is done by the host's threads. When
    /// the connection is lost later, they connect again, to the same address, as the
    /// options say.
    pub fn attach(&self, url: &Url, options: &Options) -> Request<Association> {
        let resolve = |source| Error::Resolve {
            host: url.host.clone(),
            source,
        };
        let addresses: Vec<_> = match (url.host.as_str(), url.port).to_socket_addrs() {
            Ok(addresses) => addresses.collect(),
            Err(source) => return Request::ready(Err(resolve(source))),
        };
        if addresses.is_empty() {
            return Request::ready(Err(resolve(std::io::ErrorKind::NotFound.into())));
        }
        let options = url.options(options);
        let subnqn = url.subnqn.clone().unwrap_or_else(Nqn::discovery);
        let io_queues = match subnqn.is_discovery() {
            true => 0,
            false => usize::from(options.io_queues.max(1)),
        };
        let lanes = (0..=io_queues)
            .map(|index| Lane::new(index, self.threads.idlest(), &options))
            .collect();
        let inner = Inner::new(subnqn, addresses, options, lanes);
        Association::attach(inner, Arc::clone(&self.threads))
    }
}

impl Threads {
    /// The driver that looks after the fewest queues.
    fn idlest(&self) -> Arc<Driver> {
        let least = self.drivers.iter().min_by_key(|driver| driver.load());
        Arc::clone(least.unwrap_or_else(|| unreachable!("there is at least one thread")))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for driver in &self.drivers {
            driver.stop();
        }
        for handle in lock(&self.handles).drain(..) {
            // A waker's last deed may have been to drop the host, on one of its threads.
            if handle.thread().id() != thread::current().id() {
                // If it panicked, there is nothing left to save.
                let _ = handle.join();
            }
        }
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("threads", &self.threads.drivers.len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
