//! A controller, as blocking calls.
use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant as Clock};

use nvmf_core::host::Data;
use nvmf_core::host::controller::{self as machine, Capabilities, Event, Token};
use nvmf_core::host::queue::Connect;
use nvmf_core::host::{self, command};
use nvmf_core::tcp::host as transport;
use nvmf_core::wire::identify::{Cns, IdentifyController, IdentifyNamespace, NamespaceList};
use nvmf_core::wire::ids::{Cntlid, Nqn, Nsid, Qid};
use nvmf_core::wire::sqe::{AdminOpcode, Sqe};
use zerocopy::{FromBytes, IntoBytes};

use super::super::buffer::Buffer;
use super::commands::Payload;
use super::error::Error;
use super::namespace::Namespace;
use super::options::Options;
use super::queue::{Completion, Line, Purpose, Queue};
use super::url::Url;

/// Tags of the bring-up machine's commands: the last ones, in this order.
const OWN: [Token; 4] = [
    Token::Step,
    Token::KeepAlive,
    Token::Abort,
    Token::AsyncEvent,
];

/// The tag of a command of the machine's.
pub(super) fn tag(token: Token) -> u64 {
    let index = OWN.iter().position(|own| *own == token);
    u64::MAX - index.map_or(0, |index| index as u64)
}

/// Which of the machine's commands has this tag.
pub(super) fn token(tag: u64) -> Option<Token> {
    let index = usize::try_from(u64::MAX - tag).ok()?;
    OWN.get(index).copied()
}

/// A controller that is ready. It is shut down when this, and all that came from it, is dropped.
///
/// A thread sends Keep Alive. All else happens in the caller's.
#[derive(Clone)]
pub struct Controller {
    association: Arc<Association>,
}

/// What a controller's queues have in common.
pub(super) struct Association {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
    pub(super) options: Options,
    pub(super) capabilities: Capabilities,
    address: SocketAddr,
    subnqn: Nqn,
    qids: Mutex<Qids>,
}

/// Which QIDs are in use: that of QID `n` at `n - 1`.
struct Qids {
    used: Vec<bool>,
    /// Where to look first. The controller may need a moment to see that a queue
    /// is gone, so the one that was freed last comes last.
    next: usize,
}

impl Qids {
    fn take(&mut self) -> Option<usize> {
        let count = self.used.len();
        let free = (self.next..count)
            .chain(0..self.next)
            .find(|index| !self.used[*index])?;
        self.used[free] = true;
        self.next = (free + 1) % count;
        Some(free)
    }
}

struct Shared {
    admin: Mutex<Admin>,
    /// Whether keep alive is to stop.
    stop: Mutex<bool>,
    stopped: Condvar,
    lines: Mutex<Lines>,
}

/// The I/O queues, which end when the controller is lost.
#[derive(Default)]
struct Lines {
    /// By index, as [`Qids`].
    open: BTreeMap<usize, Line>,
    /// That it is, and why, if it is more than that its connection ended.
    lost: Option<Option<host::Error>>,
}

struct Admin {
    queue: Queue,
    machine: machine::Controller,
    completions: Vec<Completion>,
}

impl Controller {
    /// Connects to the subsystem that the URL names, or to the discovery subsystem
    /// if it names none.
    ///
    /// # Errors
    /// [`Error`] says what the target answered.
    pub fn connect(url: &Url, options: &Options) -> Result<Self, Error> {
        let subnqn = url.subnqn.clone().unwrap_or_else(Nqn::discovery);
        let resolve = |source| Error::Resolve {
            host: url.host.clone(),
            source,
        };
        let options = &url.options(options);
        let mut outcome = Err(resolve(std::io::ErrorKind::NotFound.into()));
        for address in (url.host.as_str(), url.port)
            .to_socket_addrs()
            .map_err(resolve)?
        {
            outcome = Self::connect_to(address, subnqn.clone(), options);
            // Another address helps against nothing else.
            if !matches!(
                outcome,
                Err(Error::NothingListens { .. }
                    | Error::Connect { .. }
                    | Error::NoRdmaDevice { .. }
                    | Error::ConnectionManager { .. })
            ) {
                break;
            }
        }
        outcome
    }

    fn connect_to(address: SocketAddr, subnqn: Nqn, options: &Options) -> Result<Self, Error> {
        let mut queue = Queue::open(address, options, Purpose::ADMIN)?;
        let depth = machine::ADMIN_ENTRIES as usize - 1;
        queue.configure(depth, nvmf_core::target::ADMIN_INLINE_DATA);
        let discovery = subnqn.is_discovery();
        let config = machine::Config {
            host: options.identity.clone(),
            subnqn: subnqn.clone(),
            cntlid: Cntlid::DYNAMIC,
            // One does not stay connected to a discovery controller.
            kato: if discovery {
                Duration::ZERO
            } else {
                options.keep_alive
            },
            io_queues: if discovery { 0 } else { options.io_queues },
            events: !discovery,
            command_timeout: options.command_timeout,
        };
        let mut admin = Admin {
            machine: machine::Controller::new(config, queue.now()),
            queue,
            completions: Vec::new(),
        };
        let capabilities = loop {
            if let Some(Event::Ready(capabilities)) = admin.step(None)? {
                break capabilities;
            }
        };
        let shared = Arc::new(Shared {
            admin: Mutex::new(admin),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
            lines: Mutex::default(),
        });
        let keeper = if discovery || options.keep_alive.is_zero() {
            None
        } else {
            let shared = Arc::clone(&shared);
            let keeper = thread::Builder::new()
                .name("nvmf-keeper".to_owned())
                .spawn(move || shared.keep_alive())
                .map_err(Error::Thread)?;
            Some(keeper)
        };
        Ok(Self {
            association: Arc::new(Association {
                shared,
                keeper,
                options: options.clone(),
                capabilities,
                address,
                subnqn,
                qids: Mutex::new(Qids {
                    used: vec![false; capabilities.io_queues.into()],
                    next: 0,
                }),
            }),
        })
    }

    /// What the controller can.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.association.capabilities
    }

    /// Where the controller is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.association.address
    }

    /// The subsystem's name.
    #[must_use]
    pub fn subnqn(&self) -> &Nqn {
        &self.association.subnqn
    }

    pub(super) fn command_timeout(&self) -> Duration {
        self.association.options.command_timeout
    }

    /// Any admin command, as it is: a status other than success is no error here.
    ///
    /// # Errors
    /// The connection is lost, or the command took too long.
    pub fn admin(&self, sqe: &Sqe, payload: Payload) -> Result<Completion, Error> {
        self.association.admin(sqe, payload)
    }

    /// What the controller says of itself.
    ///
    /// # Errors
    /// Those of [`Controller::admin`], and [`Error::Failed`].
    pub fn identify(&self) -> Result<Box<IdentifyController>, Error> {
        self.identify_as(Cns::Controller, Nsid(0))
    }

    /// What the controller says of a namespace.
    ///
    /// # Errors
    /// Those of [`Controller::admin`], and [`Error::Failed`].
    pub fn identify_namespace(&self, nsid: Nsid) -> Result<Box<IdentifyNamespace>, Error> {
        self.identify_as(Cns::Namespace, nsid)
    }

    /// The namespaces there are for this host, in ascending order.
    ///
    /// # Errors
    /// Those of [`Controller::admin`], and [`Error::Failed`].
    pub fn active_namespaces(&self) -> Result<Vec<Nsid>, Error> {
        let mut all: Vec<Nsid> = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(Nsid(0));
            let list: Box<NamespaceList> = self.identify_as(Cns::ActiveNamespaces, after)?;
            let before = all.len();
            all.extend(list.iter().filter(|nsid| *nsid > after));
            if all.len() - before < NamespaceList::CAPACITY {
                return Ok(all);
            }
        }
    }

    /// A namespace, with a queue of its own.
    ///
    /// # Errors
    /// [`Error::NoSuchNamespace`], those of [`Controller::queue`], and others.
    pub fn namespace(&self, nsid: Nsid) -> Result<Namespace, Error> {
        Namespace::open(self.clone(), nsid)
    }

    /// Another I/O queue. It is the controller's for as long as it is not dropped.
    ///
    /// # Errors
    /// [`Error::NoQueueLeft`], and those of connecting.
    pub fn queue(&self) -> Result<IoQueue, Error> {
        let association = &self.association;
        let found = &association.capabilities;
        let no_queue = || Error::NoQueueLeft {
            granted: found.io_queues,
        };
        let index = lock(&association.qids).take().ok_or_else(no_queue)?;
        let lease = Lease {
            association: Arc::clone(association),
            index,
        };
        let options = &association.options;
        let entries = options
            .queue_depth
            .clamp(1, 0xFFFF)
            .saturating_add(1)
            .min(found.queue_entries)
            .min(transport::MAX_COMMANDS as u32);
        let connect = Connect {
            qid: Qid(u16::try_from(lease.index + 1).map_err(|_| no_queue())?),
            entries,
            kato_ms: 0,
            sq_flow_control: options.sq_flow_control,
        };
        let purpose = Purpose {
            qid: connect.qid,
            cntlid: found.cntlid,
            entries,
        };
        let mut queue = Queue::open(association.address, options, purpose)?;
        association.shared.watch(lease.index, queue.line()?);
        let data = Connect::data(&options.identity, &association.subnqn, found.cntlid);
        let completion = call(
            &mut queue,
            &connect.request().sqe,
            Payload::Write(Buffer::from(data.as_bytes())),
            "Connect",
            options.command_timeout,
        )?;
        connect.completed(&completion.cqe)?;
        queue.configure(entries as usize - 1, found.inline_data);
        Ok(IoQueue {
            queue,
            _lease: lease,
        })
    }

    pub(super) fn identify_as<T: FromBytes>(&self, cns: Cns, nsid: Nsid) -> Result<Box<T>, Error> {
        const COMMAND: &str = "Identify";
        let sqe = command::identify(cns, nsid);
        let completion = self.admin(&sqe, Payload::Read(Buffer::zeroed(4096)))?;
        check(&completion, COMMAND, AdminOpcode::Identify.code())?;
        T::read_from_bytes(completion.data())
            .map(Box::new)
            .map_err(|_| Error::Nonsense { command: COMMAND })
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("address", &self.association.address)
            .field("subnqn", &self.association.subnqn)
            .field("capabilities", &self.association.capabilities)
            .finish_non_exhaustive()
    }
}

/// An I/O queue of a controller, to be polled: see [`Queue`].
#[derive(Debug)]
pub struct IoQueue {
    queue: Queue,
    // Behind the queue, which is closed first.
    _lease: Lease,
}

impl std::ops::Deref for IoQueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl std::ops::DerefMut for IoQueue {
    fn deref_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }
}

/// A QID that is in use.
struct Lease {
    association: Arc<Association>,
    index: usize,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qid {}", self.index + 1)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.association.shared.lines)
            .open
            .remove(&self.index);
        lock(&self.association.qids).used[self.index] = false;
    }
}

impl Association {
    fn admin(&self, sqe: &Sqe, payload: Payload) -> Result<Completion, Error> {
        let mut admin = lock(&self.shared.admin);
        admin.call(sqe, payload, self.options.command_timeout)
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        *lock(&self.shared.stop) = true;
        self.shared.stopped.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // If it panicked, there is nothing left to save.
            let _ = keeper.join();
        }
        let mut admin = lock(&self.shared.admin);
        if let Err(error) = admin.shut_down() {
            tracing::debug!(%error, "the controller was not shut down in order");
        }
    }
}

impl Shared {
    /// An I/O queue is there.
    fn watch(&self, index: usize, line: Line) {
        let mut lines = lock(&self.lines);
        if let Some(error) = lines.lost {
            line.end(error);
        }
        lines.open.insert(index, line);
    }

    /// Without keep alive the controller ends its I/O queues, sooner or later: ours end now.
    fn lost(&self, error: Option<host::Error>) {
        let mut lines = lock(&self.lines);
        lines.lost = Some(error);
        lines.open.values().for_each(|line| line.end(error));
    }

    /// Until told to stop, or nothing is left to be kept alive.
    fn keep_alive(&self) {
        let mut stop = lock(&self.stop);
        while !*stop {
            let wait = {
                let mut admin = lock(&self.admin);
                if let Err(error) = admin.service() {
                    // Whoever uses the controller is told.
                    tracing::debug!(%error, "keep alive failed");
                    return self.lost(match error {
                        Error::Controller(error) => Some(error),
                        _ => None,
                    });
                }
                match admin.machine.poll_timeout() {
                    Some(due) => due.since(admin.queue.now()),
                    None => return,
                }
            };
            let waited = self.stopped.wait_timeout(stop, wait);
            stop = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Admin {
    /// Goes on with what the machine wants and with what has arrived, waiting no
    /// longer than `most` for something to do.
    fn step(&mut self, most: Option<Duration>) -> Result<Option<Event>, Error> {
        let now = self.queue.now();
        self.machine.handle_timeout(now)?;
        while let Some((token, request)) = self.machine.poll_command(now) {
            let payload = match request.data {
                Data::Nothing => Payload::Nothing,
                Data::ToHost(len) => Payload::Read(Buffer::zeroed(len as usize)),
                Data::FromHost(_) => {
                    Payload::Write(Buffer::from(self.machine.connect_data().as_bytes()))
                }
            };
            // Callers have one at a time, which leaves room for all of these.
            let _ = self.queue.submit(&request.sqe, payload, tag(token));
        }
        let before = self.completions.len();
        self.queue.poll(&mut self.completions)?;
        if self.completions.len() == before && self.own().is_none() {
            let due = self.machine.poll_timeout();
            let wait = due.map_or(Duration::MAX, |due| due.since(self.queue.now()));
            self.queue.wait(wait.min(most.unwrap_or(Duration::MAX)))?;
            self.queue.poll(&mut self.completions)?;
        }
        let Some((index, token)) = self.own() else {
            return Ok(None);
        };
        let done = self.completions.swap_remove(index);
        let now = self.queue.now();
        let event = self.machine.completed(token, &done.cqe, done.data(), now)?;
        if let Some(Event::Async(event)) = event {
            tracing::info!(%event, "the controller reports");
        }
        Ok(event)
    }

    /// A completion that is the machine's.
    fn own(&self) -> Option<(usize, Token)> {
        let mut completions = self.completions.iter().enumerate();
        completions.find_map(|(index, done)| Some((index, token(done.tag)?)))
    }

    /// Sends what is due, and waits for its answer.
    fn service(&mut self) -> Result<(), Error> {
        self.step(Some(Duration::ZERO))?;
        while self.machine.is_waiting() {
            self.step(None)?;
        }
        Ok(())
    }

    fn call(
        &mut self,
        sqe: &Sqe,
        payload: Payload,
        timeout: Duration,
    ) -> Result<Completion, Error> {
        let command = sqe.admin_opcode().name();
        // One command at a time: there is always room.
        let _ = self.queue.submit(sqe, payload, 0);
        let deadline = Clock::now() + timeout;
        loop {
            if let Some(index) = self.completions.iter().position(|done| done.tag == 0) {
                return Ok(self.completions.swap_remove(index));
            }
            let left = deadline.saturating_duration_since(Clock::now());
            if left.is_zero() {
                self.queue.give_up();
                return Err(Error::Timeout {
                    command,
                    after: timeout,
                });
            }
            self.step(Some(left))?;
        }
    }

    fn shut_down(&mut self) -> Result<(), Error> {
        const PATIENCE: Duration = Duration::from_secs(1);
        let deadline = Clock::now() + PATIENCE;
        self.machine.shut_down(self.queue.now());
        if self.machine.poll_timeout().is_none() {
            // It was lost before.
            return Ok(());
        }
        loop {
            let left = deadline.saturating_duration_since(Clock::now());
            if self.step(Some(left))? == Some(Event::ShutDown) {
                return Ok(());
            }
            if left.is_zero() {
                return Err(host::Error::Timeout(host::Step::ShutDown).into());
            }
        }
    }
}

/// Submits a command on a queue without others, and waits for it.
pub(super) fn call(
    queue: &mut Queue,
    sqe: &Sqe,
    payload: Payload,
    command: &'static str,
    timeout: Duration,
) -> Result<Completion, Error> {
    let deadline = Clock::now() + timeout;
    // Nothing else is under way.
    let _ = queue.submit(sqe, payload, 0);
    let mut completions = Vec::new();
    loop {
        queue.poll(&mut completions)?;
        if let Some(completion) = completions.pop() {
            return Ok(completion);
        }
        let left = deadline.saturating_duration_since(Clock::now());
        if left.is_zero() {
            queue.give_up();
            return Err(Error::Timeout {
                command,
                after: timeout,
            });
        }
        queue.wait(left)?;
    }
}

/// Success, or an error that says what the controller said.
pub(super) fn check(
    completion: &Completion,
    command: &'static str,
    opcode: u8,
) -> Result<(), Error> {
    let status = completion.cqe.status();
    if status.is_success() {
        return Ok(());
    }
    Err(Error::Failed {
        command,
        opcode,
        status,
    })
}

/// A panic elsewhere does not make the value worse than it is.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
