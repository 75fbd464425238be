//! What all workers of a target share. None of it is touched by an I/O command.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmf_core::target::registry::{Entry, Registry};
use nvmf_core::target::{Catalog, ControllerState, HostIdentity, Limits, RegistryError};
use nvmf_core::tcp;
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::{Cntlid, Qid};

use super::catalog::OwnedCatalog;
use super::mailbox::{Mailbox, Message};
use super::placement::Placement;
use super::socket::SocketOptions;

/// A handle to a controller.
pub(super) type Controller = Arc<ControllerState>;

type Controllers = Registry<Controller, Vec<Option<Entry<Controller>>>>;

pub(super) struct Shared {
    pub(super) catalog: OwnedCatalog,
    pub(super) limits: Limits,
    pub(super) transport: tcp::target::Config,
    pub(super) sockets: SocketOptions,
    /// How long a worker polls before it sleeps.
    pub(super) spin: Duration,
    /// How long a host may take from connecting to its Connect command.
    pub(super) connect_timeout: Duration,
    /// How long what is under way may take once the target is to stop.
    pub(super) stop_timeout: Duration,
    /// Bytes of buffers that one worker may give out before each connection has to
    /// do with one transfer at a time.
    pub(super) buffers: usize,
    pub(super) mailboxes: Box<[Mailbox]>,
    /// Where RDMA is listened. Workers there are numbered after those with a mailbox here.
    #[cfg(feature = "rdma")]
    pub(super) ports: Box<[Arc<super::rdma::Port>]>,
    controllers: Mutex<Controllers>,
    placement: Mutex<Placement>,
    stopping: AtomicBool,
    epoch: std::time::Instant,
}

/// What of [`Shared`] is given.
pub(super) struct Settings {
    pub(super) catalog: OwnedCatalog,
    pub(super) limits: Limits,
    pub(super) transport: tcp::target::Config,
    pub(super) sockets: SocketOptions,
    pub(super) spin: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) stop_timeout: Duration,
    pub(super) place: bool,
    pub(super) buffers: usize,
    pub(super) controllers: usize,
    #[cfg(feature = "rdma")]
    pub(super) ports: Box<[Arc<super::rdma::Port>]>,
}

impl Shared {
    /// One worker for each mailbox.
    pub(super) fn new(settings: Settings, mailboxes: Box<[Mailbox]>) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(settings.controllers, || None);
        Self {
            catalog: settings.catalog,
            limits: settings.limits,
            transport: settings.transport,
            sockets: settings.sockets,
            spin: settings.spin,
            connect_timeout: settings.connect_timeout,
            stop_timeout: settings.stop_timeout,
            buffers: settings.buffers,
            placement: Mutex::new(Placement::new(mailboxes.len(), settings.place)),
            mailboxes,
            #[cfg(feature = "rdma")]
            ports: settings.ports,
            controllers: Mutex::new(Registry::new(slots)),
            stopping: AtomicBool::new(false),
            epoch: std::time::Instant::now(),
        }
    }

    /// One clock for all workers: connections take their deadlines along.
    pub(super) fn now(&self) -> Instant {
        let micros = self.epoch.elapsed().as_micros();
        Instant::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Has every worker finish; false when that was done before.
    pub(super) fn stop(&self) -> bool {
        let first = !self.stopping.swap(true, Ordering::AcqRel);
        if first {
            for mailbox in &self.mailboxes {
                mailbox.put(Message::Stop);
            }
            #[cfg(feature = "rdma")]
            for port in &self.ports {
                port.stop();
            }
        }
        first
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn placement(&self) -> MutexGuard<'_, Placement> {
        self.placement
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn create_controller(
        &self,
        subsystem: usize,
        host: &HostIdentity,
    ) -> Result<Controller, RegistryError> {
        let range = self
            .catalog
            .subsystem(subsystem)
            .ok_or(RegistryError::Busy)?
            .cntlid_range;
        self.controllers()
            .create(subsystem, range, host, |cntlid| {
                Arc::new(ControllerState::new(cntlid, subsystem))
            })
            .cloned()
    }

    pub(super) fn join_controller(
        &self,
        subsystem: usize,
        host: &HostIdentity,
        cntlid: Cntlid,
        qid: Qid,
    ) -> Result<Controller, RegistryError> {
        let mut controllers = self.controllers();
        controllers.join(subsystem, host, cntlid, qid).cloned()
    }

    pub(super) fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// I/O queues that the controller has. With the lock: a queue that joins or
    /// leaves meanwhile sees all that this thread did before.
    pub(super) fn io_queues(&self, controller: &Controller) -> u32 {
        let _joined = self.controllers();
        controller.io_queues()
    }

    /// Has the controller's queues on all workers but `except` look at it.
    pub(super) fn controller_changed(&self, controller: &Controller, except: usize) {
        for (worker, mailbox) in self.mailboxes.iter().enumerate() {
            if worker != except {
                mailbox.put(Message::ControllerChanged(Arc::clone(controller)));
            }
        }
        #[cfg(feature = "rdma")]
        for port in &self.ports {
            port.controller_changed(controller, except);
        }
    }

    /// A queue and all its commands are gone. True if other queues must look.
    pub(super) fn leave_controller(&self, controller: &Controller, qid: Qid) -> bool {
        self.controllers().leave(controller, qid);
        if qid.is_admin() {
            controller.io_queues() > 0
        } else {
            // While the target stops, the admin queue waits for the last of them.
            self.is_stopping()
        }
    }
}
