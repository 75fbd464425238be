//! What a worker has, and what of it a connection's machine sees.
use std::sync::Arc;

use nvmf_core::Place;
use nvmf_core::block::{Extent, MediaError, Request, Submit};
use nvmf_core::target::{
    Backend, BufferUse, Env, HostIdentity, Limits, Listener, NamespaceRef, RegistryError,
};
use nvmf_core::tcp::target::Transmit;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::{Cntlid, Qid};

use super::buffer::{Buffer, BufferPool};
use super::catalog::{OwnedCatalog, OwnedListener};
use super::connection::Machine;
use super::devices::Devices;
use super::outbox::{Outbox, Speaker};
use super::placement::ControllerKey;
use super::shared::{Controller, Shared};
use super::slots::Key;

/// A worker's own, apart from its connections.
pub(super) struct Local {
    pub(super) shared: Arc<Shared>,
    /// Index of the worker.
    pub(super) worker: usize,
    pub(super) pool: BufferPool,
    pub(super) devices: Devices,
    /// When this turn of the loop began.
    pub(super) now: Instant,
    /// Something came in this turn, from a host or a device.
    pub(super) worked: bool,
    /// A buffer or room in a device became free: connections that wait may try again.
    pub(super) freed: bool,
    /// Controllers of which other queues, here, must look.
    pub(super) changed: Vec<Controller>,
    /// Empty ones, for connections that have something to say.
    pub(super) outboxes: Vec<Outbox>,
}

/// Outboxes that a worker keeps. More are needed only while several hosts do not read.
const OUTBOXES: usize = 16;

impl Local {
    /// Has the controller's queues look at it, here and on other workers.
    fn tell_queues(&mut self, controller: &Controller) {
        self.shared.controller_changed(controller, self.worker);
        self.changed.push(Arc::clone(controller));
    }

    pub(super) fn spare_outbox(&mut self) -> Outbox {
        self.outboxes.pop().unwrap_or_default()
    }

    pub(super) fn keep_outbox(&mut self, mut outbox: Outbox) {
        for copies in outbox.take_copies() {
            self.pool.give(copies);
            self.freed = true;
        }
        if self.outboxes.len() < OUTBOXES {
            outbox.clear();
            self.outboxes.push(outbox);
        }
    }

    /// Whether workers may use so many more bytes of buffers.
    fn affords(&self, bytes: usize) -> bool {
        self.pool.outstanding() + bytes <= self.shared.buffers
    }
}

/// A connection's machine, and the devices whose memory it wants to send.
pub(super) struct Teller<'a> {
    pub(super) machine: &'a mut Machine,
    pub(super) local: &'a mut Local,
}

impl Speaker for Teller<'_> {
    fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        self.machine.poll_transmit(head)
    }

    fn payload(&self, place: &Place) -> &[u8] {
        self.machine.payload(place)
    }

    fn may_copy(&self, copied: usize) -> bool {
        // As with other buffers: who has none always gets one, so everybody is served.
        copied == 0 || self.local.affords(COPIES)
    }

    fn room_for_copies(&mut self, least: usize) -> Option<Buffer> {
        let roomy = least.max(COPIES);
        let len = if self.local.affords(roomy) {
            roomy
        } else {
            least
        };
        Some(self.local.pool.take(len))
    }

    fn copy(&self, namespace: NamespaceRef, byte: u64, into: &mut [u8]) -> bool {
        self.local.devices.copy(namespace, byte, into)
    }
}

/// Bytes of a buffer for copies of devices' memory, so that many small ones share it.
const COPIES: usize = 64 * 1024;

/// A connection's entry in the books, apart from its machine.
pub(super) struct Account {
    /// Its name in this worker.
    pub(super) key: Key,
    /// Where it came in.
    pub(super) listener: OwnedListener,
    /// Bytes of buffers it has.
    pub(super) buffers: usize,
    /// Operations of its commands that devices are doing.
    pub(super) in_devices: usize,
    /// The controller it belongs to.
    pub(super) controller: Option<Controller>,
    /// That controller, if this is one of its I/O queues and was not placed yet.
    pub(super) to_place: Option<ControllerKey>,
    /// What it was placed for.
    pub(super) placed: Option<ControllerKey>,
}

/// The surroundings of one connection's machine.
pub(super) struct Surroundings<'a> {
    pub(super) local: &'a mut Local,
    pub(super) account: &'a mut Account,
}

/// A device operation's tag is the command's slot, with the connection's key above it.
const SLOT_BITS: u32 = 16;

/// The parts of a tag.
pub(super) fn split_tag(tag: u64) -> (Key, u64) {
    let slot = tag & ((1 << SLOT_BITS) - 1);
    (Key::from_u64(tag >> SLOT_BITS), slot)
}

impl Env for Surroundings<'_> {
    type Controller = Controller;
    type Catalog = OwnedCatalog;

    fn catalog(&self) -> &OwnedCatalog {
        &self.local.shared.catalog
    }

    fn limits(&self) -> Limits {
        self.local.shared.limits
    }

    fn local_listener(&self) -> Listener<'_> {
        self.account.listener.borrow()
    }

    fn create_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        _: Cntlid,
    ) -> Result<Controller, RegistryError> {
        let controller = self.local.shared.create_controller(subsystem, host)?;
        self.account.controller = Some(Arc::clone(&controller));
        Ok(controller)
    }

    fn join_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        cntlid: Cntlid,
        qid: Qid,
    ) -> Result<Controller, RegistryError> {
        let shared = &self.local.shared;
        let controller = shared.join_controller(subsystem, host, cntlid, qid)?;
        self.account.controller = Some(Arc::clone(&controller));
        self.account.to_place = Some((subsystem, cntlid));
        Ok(controller)
    }

    fn leave_controller(&mut self, controller: &Controller, qid: Qid) {
        self.account.controller = None;
        if self.local.shared.leave_controller(controller, qid) {
            self.local.tell_queues(controller);
        }
    }

    fn controller_changed(&mut self, controller: &Controller) {
        if self.local.shared.io_queues(controller) > 0 {
            self.local.tell_queues(controller);
        }
    }

    fn now(&self) -> Instant {
        self.local.now
    }
}

impl Backend for Surroundings<'_> {
    type Buffer = Buffer;

    fn take_buffer(&mut self, len: u32, purpose: BufferUse) -> Option<Buffer> {
        let len = len as usize;
        // A connection without buffers always gets one, so every command is
        // served in the end, whatever other connections hold on to.
        if purpose == BufferUse::Transfer && self.account.buffers > 0 {
            let limit = per_connection(&self.local.shared.limits);
            if self.account.buffers + len > limit || !self.local.affords(len) {
                return None;
            }
        }
        let buffer = self.local.pool.take(len);
        self.account.buffers += buffer.capacity();
        Some(buffer)
    }

    fn give_buffer(&mut self, buffer: Buffer) {
        self.account.buffers = self.account.buffers.saturating_sub(buffer.capacity());
        self.local.pool.give(buffer);
        self.local.freed = true;
    }

    fn submit(&mut self, namespace: NamespaceRef, mut request: Request<Buffer>) -> Submit<Buffer> {
        request.tag |= self.account.key.get() << SLOT_BITS;
        let mut outcome = self.local.devices.submit(namespace, request);
        match &mut outcome {
            Submit::Done(completion) => completion.tag = split_tag(completion.tag).1,
            Submit::Pending => self.account.in_devices += 1,
            Submit::Busy(request) => request.tag = split_tag(request.tag).1,
        }
        outcome
    }

    fn store(
        &mut self,
        namespace: NamespaceRef,
        extent: Extent,
        data: &[u8],
        fua: bool,
    ) -> Option<Result<(), MediaError>> {
        self.local.devices.store(namespace, extent, data, fua)
    }

    fn lends(&self, namespace: NamespaceRef) -> bool {
        self.local.devices.lends(namespace)
    }
}

/// Bytes of buffers that a connection may have, as far as it can choose.
pub(super) fn per_connection(limits: &Limits) -> usize {
    const ENOUGH_TO_STREAM: usize = 4 << 20;
    ENOUGH_TO_STREAM.max(limits.transfer as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::std::slots::Slots;

    #[test]
    fn a_tag_names_connection_and_slot() {
        let mut connections = Slots::new();
        connections.insert(|_| ());
        let key = connections.insert(|_| ()).unwrap();
        let tag = key.get() << SLOT_BITS | 0xFFFF;
        assert_eq!(split_tag(tag), (key, 0xFFFF));
    }
}
