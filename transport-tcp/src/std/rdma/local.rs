//! What a worker has, and what of it its connections' machines see.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvmf_core::block::{Completion, Extent, MediaError, Request, Submit};
use nvmf_core::rdma::cm::{Asked, Room};
use nvmf_core::rdma::connection::CloseReason;
use nvmf_core::rdma::target::Config as QueueConfig;
use nvmf_core::target::queue_pair::Identity;
use nvmf_core::target::{
    Backend, BufferUse, Catalog, Env, HostIdentity, Limits, Listener, NamespaceRef, RegistryError,
};
use nvmf_core::time::Instant;
use nvmf_core::wire::cm::CmStatus;
use nvmf_core::wire::ids::{Cntlid, Qid};
use nvmf_rdma::Pool;
use nvmf_rdma::ibv;
use nvmf_rdma::target::Surroundings;

use super::super::buffer::Buffer;
use super::super::catalog::{OwnedCatalog, OwnedListener};
use super::super::devices::Devices;
use super::super::growing::Growing;
use super::super::local::per_connection;
use super::super::shared::{Controller, Shared};
use super::memory::Data;
use super::{Port, Registered};

/// A worker's own, apart from its connections and its share of the device.
pub(super) struct Local {
    pub(super) shared: Arc<Shared>,
    pub(super) port: Arc<Port>,
    /// Index of the worker at its port.
    pub(super) index: usize,
    pub(super) listener: OwnedListener,
    pub(super) limits: Limits,
    pub(super) devices: Devices,
    /// What commands were received in.
    pub(super) receives: Pool<Growing, ibv::Buffer>,
    /// Memory for data, while there is a device.
    pub(super) data: Option<Data>,
    /// Completions that the completion queue has room for, besides shared receives.
    pub(super) room: u32,
    /// When this turn of the loop began.
    pub(super) now: Instant,
    /// A buffer or room in a device became free.
    pub(super) freed: bool,
    /// A command waits for that.
    pub(super) short: bool,
    /// Controllers of which other queues, here, must look.
    pub(super) changed: Vec<Controller>,
    /// By the connection's number.
    pub(super) accounts: Vec<Account>,
    /// Connections of which nothing was logged yet.
    pub(super) fresh: Vec<u32>,
    /// Connections that are no queues.
    unconnected: usize,
    /// The connection for which things are asked.
    serving: u32,
}

/// A connection's entry in the books, apart from its machine. Once the connection is
/// gone, it is as it was in the beginning.
#[derive(Default)]
pub(super) struct Account {
    /// Bytes of buffers it has.
    buffers: usize,
    /// The controller it belongs to.
    pub(super) controller: Option<Controller>,
    /// What it may have in the completion queue at a time.
    completions: u32,
    io: bool,
    /// It is no queue yet.
    unconnected: bool,
}

/// Connections of a worker that may be no queues yet, each for as long as a host may take to
/// its Connect: so many hosts may come at a time.
const UNCONNECTED: usize = 256;

impl Local {
    pub(super) fn new(
        index: usize,
        port: Arc<Port>,
        shared: Arc<Shared>,
        limits: Limits,
        devices: Devices,
    ) -> Self {
        Self {
            index,
            listener: OwnedListener::rdma(port.portid, port.address),
            now: shared.now(),
            port,
            shared,
            limits,
            devices,
            receives: Pool::default(),
            data: None,
            room: 0,
            freed: false,
            short: false,
            changed: Vec::new(),
            accounts: Vec::new(),
            fresh: Vec::new(),
            unconnected: 0,
            serving: 0,
        }
    }

    /// What hosts may ask for.
    pub(super) fn queues(&self) -> Room {
        Room {
            io_queues: self.limits.io_queues,
            admin_entries: self.limits.admin_queue_entries,
            io_entries: u16::try_from(self.limits.io_queue_entries).unwrap_or(u16::MAX),
        }
    }

    /// The worker's number in the target.
    fn number(&self) -> usize {
        self.port.first + self.index
    }

    /// Has the controller's queues look at it, here and on other workers.
    fn tell_queues(&mut self, controller: &Controller) {
        self.shared.controller_changed(controller, self.number());
        self.changed.push(Arc::clone(controller));
    }

    fn account(&mut self) -> &mut Account {
        account(&mut self.accounts, self.serving)
    }

    fn subnqn(&self, subsystem: usize) -> &str {
        let subsystem = self.shared.catalog.subsystem(subsystem);
        subsystem.map_or("", |subsystem| subsystem.nqn.as_str())
    }

    /// A connection has become a queue: logs it.
    pub(super) fn connected(&mut self, identity: &Identity) {
        let account = account(&mut self.accounts, self.serving);
        self.unconnected -= usize::from(std::mem::take(&mut account.unconnected));
        tracing::info!(
            transport = "rdma",
            cntlid = identity.cntlid.0,
            qid = identity.qid.0,
            hostnqn = %identity.hostnqn,
            subnqn = %self.subnqn(identity.subsystem),
            entries = identity.entries,
            worker = self.number(),
            "connected",
        );
    }
}

fn account(accounts: &mut Vec<Account>, connection: u32) -> &mut Account {
    let at = connection as usize;
    if at >= accounts.len() {
        accounts.resize_with(at + 1, Account::default);
    }
    &mut accounts[at]
}

/// A device operation's tag is the command's slot, with the connection's number above it.
const SLOT_BITS: u32 = 16;

/// The parts of a tag.
pub(super) fn split_tag(tag: u64) -> (u32, u64) {
    let slot = tag & ((1 << SLOT_BITS) - 1);
    (u32::try_from(tag >> SLOT_BITS).unwrap_or(u32::MAX), slot)
}

/// A command's buffer as namespaces have it, and back.
fn lend(buffer: Option<Registered>) -> Option<Buffer> {
    buffer.map(Buffer::from)
}

pub(super) fn given_back(buffer: Option<Buffer>) -> Option<Registered> {
    buffer.and_then(Buffer::into_registered)
}

impl Env for Local {
    type Controller = Controller;
    type Catalog = OwnedCatalog;

    fn catalog(&self) -> &OwnedCatalog {
        &self.shared.catalog
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn local_listener(&self) -> Listener<'_> {
        self.listener.borrow()
    }

    fn create_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        _: Cntlid,
    ) -> Result<Controller, RegistryError> {
        let controller = self.shared.create_controller(subsystem, host)?;
        self.account().controller = Some(Arc::clone(&controller));
        Ok(controller)
    }

    fn join_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        cntlid: Cntlid,
        qid: Qid,
    ) -> Result<Controller, RegistryError> {
        let controller = self.shared.join_controller(subsystem, host, cntlid, qid)?;
        self.account().controller = Some(Arc::clone(&controller));
        Ok(controller)
    }

    fn leave_controller(&mut self, controller: &Controller, qid: Qid) {
        self.account().controller = None;
        if self.shared.leave_controller(controller, qid) {
            self.tell_queues(controller);
        }
    }

    fn controller_changed(&mut self, controller: &Controller) {
        if self.shared.io_queues(controller) > 0 {
            self.tell_queues(controller);
        }
    }

    fn now(&self) -> Instant {
        self.now
    }
}

impl Backend for Local {
    type Buffer = Registered;

    fn take_buffer(&mut self, len: u32, purpose: BufferUse) -> Option<Registered> {
        let len = len as usize;
        let limit = per_connection(&self.limits);
        let has = self.account().buffers;
        let buffer = if purpose == BufferUse::Transfer && has > 0 && has + len > limit {
            None
        } else {
            self.data.as_mut().and_then(|data| data.take(len))
        };
        match buffer {
            Some(buffer) => {
                self.account().buffers += buffer.as_ref().len();
                Some(Registered::for_data(buffer))
            }
            None => {
                self.short = true;
                None
            }
        }
    }

    fn give_buffer(&mut self, buffer: Registered) {
        match buffer.into_data() {
            Ok(memory) => {
                let account = self.account();
                account.buffers = account.buffers.saturating_sub(memory.as_ref().len());
                if let Some(data) = &mut self.data {
                    data.give(memory);
                }
                self.freed = true;
            }
            Err(received) => self.receives.give(received),
        }
    }

    fn submit(
        &mut self,
        namespace: NamespaceRef,
        request: Request<Registered>,
    ) -> Submit<Registered> {
        let slot = request.tag;
        let request = Request {
            tag: slot | u64::from(self.serving) << SLOT_BITS,
            op: request.op,
            buffer: lend(request.buffer),
        };
        match self.devices.submit(namespace, request) {
            Submit::Done(completion) => Submit::Done(Completion {
                tag: slot,
                buffer: given_back(completion.buffer),
                result: completion.result,
            }),
            Submit::Pending => Submit::Pending,
            Submit::Busy(request) => {
                self.short = true;
                Submit::Busy(Request {
                    tag: slot,
                    op: request.op,
                    buffer: given_back(request.buffer),
                })
            }
        }
    }

    fn store(
        &mut self,
        namespace: NamespaceRef,
        extent: Extent,
        data: &[u8],
        fua: bool,
    ) -> Option<Result<(), MediaError>> {
        self.devices.store(namespace, extent, data, fua)
    }

    fn lends(&self, _: NamespaceRef) -> bool {
        // What a device sends has to be registered.
        false
    }
}

impl Surroundings<ibv::Buffer> for Local {
    type Storage = Growing;

    fn pool(&mut self) -> &mut Pool<Growing, ibv::Buffer> {
        &mut self.receives
    }

    fn serving(&mut self, connection: u32) {
        self.serving = connection;
    }

    fn judge(&self, asked: &Asked) -> Result<(), CmStatus> {
        if self.shared.is_stopping()
            || completions(asked) > self.room
            || self.unconnected >= UNCONNECTED
        {
            return Err(CmStatus::NoResources);
        }
        let Some(cntlid) = asked.cntlid else {
            return Ok(());
        };
        let controllers = self.shared.controllers();
        let mut named = controllers
            .entries()
            .filter(|entry| entry.handle().cntlid == cntlid)
            .peekable();
        if named.peek().is_none() {
            Err(CmStatus::InvalidCntlid)
        } else if named.all(|entry| entry.has_io_queue(asked.qid)) {
            Err(CmStatus::InvalidQid)
        } else {
            Ok(())
        }
    }

    fn opened(&mut self, connection: u32, asked: &Asked) {
        let account = account(&mut self.accounts, connection);
        account.completions = completions(asked);
        account.io = !asked.qid.is_admin();
        account.unconnected = true;
        self.unconnected += 1;
        self.room = self.room.saturating_sub(account.completions);
        let place = &self.port.workers[self.index];
        place.connections.fetch_add(1, Ordering::Relaxed);
        if account.io {
            place.io_queues.fetch_add(1, Ordering::Relaxed);
        }
        self.fresh.push(connection);
    }

    fn closed(
        &mut self,
        connection: u32,
        identity: Option<&Identity>,
        reason: Option<CloseReason>,
    ) {
        self.fresh.retain(|fresh| *fresh != connection);
        let account = std::mem::take(account(&mut self.accounts, connection));
        self.room += account.completions;
        self.unconnected -= usize::from(account.unconnected);
        let place = &self.port.workers[self.index];
        place.connections.fetch_sub(1, Ordering::Relaxed);
        if account.io {
            place.io_queues.fetch_sub(1, Ordering::Relaxed);
        }
        let reason = match reason {
            Some(reason) => reason.to_string(),
            None => "the host disconnected, or is gone".to_owned(),
        };
        match identity {
            Some(identity) => tracing::info!(
                transport = "rdma",
                cntlid = identity.cntlid.0,
                qid = identity.qid.0,
                hostnqn = %identity.hostnqn,
                %reason,
                "closed",
            ),
            None => tracing::info!(transport = "rdma", %reason, "closed before connect"),
        }
    }
}

/// Completions that the queue's send queue may have at a time. Those of receives are
/// the shared receive queue's.
fn completions(asked: &Asked) -> u32 {
    QueueConfig::requests_for(asked.commands)
}

#[cfg(test)]
mod tests {
    use nvmf_core::wire::ids::Nqn;

    use super::super::super::shared::Settings;
    use super::super::super::target::{Config, SocketOptions};
    use super::*;

    fn local() -> Local {
        let config = Config::default();
        let address = "192.0.2.7:4420".parse().unwrap();
        let port = Arc::new(Port::new(address, 1, 0, 1).unwrap());
        let settings = Settings {
            catalog: OwnedCatalog::new(&[], &[], &[address]).unwrap(),
            limits: config.limits,
            transport: config.transport,
            sockets: SocketOptions::default(),
            spin: config.spin,
            connect_timeout: config.connect_timeout,
            stop_timeout: config.stop_timeout,
            place: config.place,
            buffers: config.buffers,
            controllers: config.controllers,
            ports: [Arc::clone(&port)].into(),
        };
        let shared = Arc::new(Shared::new(settings, Box::default()));
        let mut local = Local::new(0, port, shared, config.limits, Devices::default());
        local.room = 1000;
        local
    }

    fn asked(qid: u16, cntlid: Option<Cntlid>) -> Asked {
        Asked {
            qid: Qid(qid),
            cntlid,
            commands: 128,
            responses: 128,
        }
    }

    #[test]
    fn a_queue_that_cannot_be_is_rejected_when_it_connects() {
        let mut local = local();
        let host = HostIdentity {
            id: [1; 16],
            nqn: "nqn.2014-08.org.example:host".parse::<Nqn>().unwrap(),
        };
        let controller = local.create_controller(0, &host, Cntlid::DYNAMIC).unwrap();
        let cntlid = controller.cntlid;
        let none = Cntlid(cntlid.0 + 1);
        assert_eq!(local.judge(&asked(1, Some(cntlid))), Ok(()));
        assert_eq!(local.judge(&asked(1, None)), Ok(()), "Connect will tell");
        assert_eq!(
            local.judge(&asked(1, Some(none))),
            Err(CmStatus::InvalidCntlid)
        );
        controller.enable();
        local.join_controller(0, &host, cntlid, Qid(1)).unwrap();
        assert_eq!(
            local.judge(&asked(1, Some(cntlid))),
            Err(CmStatus::InvalidQid)
        );
        assert_eq!(local.judge(&asked(2, Some(cntlid))), Ok(()));
    }

    #[test]
    fn no_more_queues_come_than_complete() {
        let mut local = local();
        for connection in 0..3 {
            assert_eq!(local.judge(&asked(0, None)), Ok(()));
            local.opened(connection, &asked(0, None));
        }
        assert_eq!(local.room, 1000 - 3 * 256);
        assert_eq!(local.judge(&asked(0, None)), Err(CmStatus::NoResources));
        local.closed(1, None, None);
        assert_eq!(local.judge(&asked(0, None)), Ok(()));
        assert_eq!(local.fresh, [0, 2]);
        let place = &local.port.workers[0];
        assert_eq!(place.connections.load(Ordering::Relaxed), 2);
        local.shared.stop();
        assert_eq!(local.judge(&asked(0, None)), Err(CmStatus::NoResources));
    }

    #[test]
    fn no_more_connections_wait_for_their_connect_than_may() {
        let mut local = local();
        local.room = u32::MAX;
        for connection in 0..256 {
            assert_eq!(local.judge(&asked(0, None)), Ok(()));
            local.opened(connection, &asked(0, None));
        }
        let full = Err(CmStatus::NoResources);
        assert_eq!(local.judge(&asked(0, None)), full);
        // One has become a queue; that it ends later makes no difference.
        local.serving(7);
        local.connected(&Identity {
            cntlid: Cntlid(1),
            qid: Qid::ADMIN,
            subsystem: 0,
            hostnqn: "nqn.2014-08.org.example:host".parse().unwrap(),
            entries: 32,
        });
        assert_eq!(local.judge(&asked(0, None)), Ok(()));
        local.opened(256, &asked(0, None));
        local.closed(7, None, None);
        assert_eq!(local.judge(&asked(0, None)), full);
        local.closed(8, None, None);
        assert_eq!(local.judge(&asked(0, None)), Ok(()));
    }

    #[test]
    fn a_tag_names_connection_and_slot() {
        let tag = 7 << SLOT_BITS | 0xFFFF;
        assert_eq!(split_tag(tag), (7, 0xFFFF));
    }
}
