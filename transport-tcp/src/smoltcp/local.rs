//! What all connections of a target have in common, and what a machine sees of it.
use core::fmt::Write;

use nvmf_core::block::{BlockDevice, Completion, Request, Submit};
use nvmf_core::target::registry::{Entry, Registry};
use nvmf_core::target::{
    Backend, BufferUse, Catalog, ControllerState, Env, HostIdentity, Limits, Listener, Namespace,
    NamespaceRef, RegistryError, Subsystem, SubsystemKind,
};
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::{Cntlid, Nqn, Qid};
use smoltcp::wire::IpAddress;

use super::memory::{Buffer, Pool};
use super::target::Description;

/// A namespace's device.
pub type Device<'a> = &'a mut dyn BlockDevice<Buffer = Buffer<'a>>;

/// Index of the subsystem that has the namespaces.
const NVM: usize = 0;
/// Index of the discovery subsystem.
const DISCOVERY: usize = 1;

/// Bits of a request's tag that are the command's slot.
const SLOT_BITS: u32 = 16;

/// Entries of an Admin Queue: no fewer than the specification wants a controller
/// to offer (Base 2.1, 3.3.3.1.1), and what Linux asks for.
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// A controller that exists.
pub type Record<'a> = Entry<&'a ControllerState>;

/// State of as many controllers as `N` connections can have, of either subsystem.
#[derive(Debug)]
pub struct Controllers<const N: usize>([[ControllerState; N]; 2]);

impl<const N: usize> Controllers<N> {
    /// Without hosts.
    #[must_use]
    pub const fn new() -> Self {
        let mut states = [const { [const { ControllerState::new(Cntlid(0), 0) }; N] }; 2];
        let mut subsystem = 0;
        while subsystem < states.len() {
            let mut at = 0;
            while at < N {
                states[subsystem][at] = ControllerState::new(Cntlid(at as u16 + 1), subsystem);
                at += 1;
            }
            subsystem += 1;
        }
        Self(states)
    }

    const RANGE: (Cntlid, Cntlid) = (Cntlid(1), Cntlid(N as u16));
}

impl<const N: usize> Default for Controllers<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// What the target offers.
pub(super) struct Offer<'a> {
    description: Description<'a>,
    namespaces: &'a [Namespace],
    discovery: Nqn,
    address: heapless::String<39>,
    port: heapless::String<5>,
    generation: u64,
    cntlid_range: (Cntlid, Cntlid),
}

impl Catalog for Offer<'_> {
    fn subsystem(&self, index: usize) -> Option<Subsystem<'_>> {
        let (nqn, kind, namespaces) = match index {
            NVM => (self.description.nqn, SubsystemKind::Nvm, self.namespaces),
            DISCOVERY => (&self.discovery, SubsystemKind::Discovery, &[][..]),
            _ => return None,
        };
        Some(Subsystem {
            nqn,
            kind,
            serial: self.description.serial,
            model: self.description.model,
            firmware: self.description.firmware,
            namespaces,
            allowed_hosts: None,
            cntlid_range: self.cntlid_range,
        })
    }

    fn listener(&self, index: usize) -> Option<Listener<'_>> {
        (index == 0).then_some(Listener {
            trtype: 3,
            adrfam: 1,
            traddr: &self.address,
            trsvcid: &self.port,
            portid: 1,
        })
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

/// What a target's connections share.
pub(super) struct Local<'a, const CONNECTIONS: usize> {
    pub(super) now: Instant,
    pub(super) pool: Pool<'a>,
    /// A controller's epoch ended: its I/O queues have to be told.
    pub(super) changed: bool,
    /// Commands that devices have finished since the target began.
    pub(super) operations: u32,
    offer: Offer<'a>,
    limits: Limits,
    controllers: &'a Controllers<CONNECTIONS>,
    registry: Registry<&'a ControllerState, &'a mut [Option<Record<'a>>]>,
    devices: &'a mut [Device<'a>],
    /// Buffers that each connection holds.
    held: [u16; CONNECTIONS],
}

impl<'a, const CONNECTIONS: usize> Local<'a, CONNECTIONS> {
    pub(super) fn new(
        description: Description<'a>,
        namespaces: &'a [Namespace],
        devices: &'a mut [Device<'a>],
        controllers: &'a Controllers<CONNECTIONS>,
        records: &'a mut [Option<Record<'a>>; CONNECTIONS],
        pool: Pool<'a>,
        depth: usize,
    ) -> Self {
        let mut port = heapless::String::new();
        let _ = write!(port, "{}", description.port);
        // A power of two, and no less than two memory pages.
        let transfer = 1 << pool.largest().max(8192).ilog2();
        Self {
            now: Instant::ZERO,
            pool,
            changed: false,
            operations: 0,
            limits: Limits {
                io_queue_entries: depth as u32 + 1,
                admin_queue_entries: ADMIN_QUEUE_ENTRIES,
                io_queues: description.io_queues,
                // Data is asked for when there is a buffer for it.
                inline_data: 0,
                transfer,
            },
            offer: Offer {
                description,
                namespaces,
                discovery: Nqn::discovery(),
                address: heapless::String::new(),
                port,
                generation: 0,
                cntlid_range: Controllers::<CONNECTIONS>::RANGE,
            },
            controllers,
            registry: Registry::new(records),
            devices,
            held: [0; CONNECTIONS],
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.offer.description.port
    }

    /// The target is reached at this address, which the discovery log shows.
    pub(super) fn set_address(&mut self, address: IpAddress) {
        let mut text = heapless::String::new();
        let _ = write!(text, "{address}");
        if text != self.offer.address {
            self.offer.address = text;
            self.offer.generation += 1;
        }
    }

    /// The next command's operation that ended, and whose it is.
    pub(super) fn poll_devices(&mut self) -> Option<(usize, Completion<Buffer<'a>>)> {
        let mut completion = self.devices.iter_mut().find_map(|device| device.poll())?;
        self.operations = self.operations.wrapping_add(1);
        let connection = (completion.tag >> SLOT_BITS) as usize;
        completion.tag &= (1 << SLOT_BITS) - 1;
        Some((connection, completion))
    }

    /// When to poll the devices even if nothing else happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = self.devices.iter().filter_map(|it| it.next_deadline());
        deadlines.min()
    }

    /// What the machine of a connection sees of this.
    pub(super) fn seen_by(&mut self, connection: usize) -> Surroundings<'_, 'a, CONNECTIONS> {
        Surroundings {
            local: self,
            connection,
        }
    }
}

/// The surroundings of one connection's machine.
pub(super) struct Surroundings<'l, 'a, const CONNECTIONS: usize> {
    local: &'l mut Local<'a, CONNECTIONS>,
    connection: usize,
}

impl<'a, const CONNECTIONS: usize> Env for Surroundings<'_, 'a, CONNECTIONS> {
    type Controller = &'a ControllerState;
    type Catalog = Offer<'a>;

    fn catalog(&self) -> &Offer<'a> {
        &self.local.offer
    }

    fn limits(&self) -> Limits {
        self.local.limits
    }

    fn local_listener(&self) -> Listener<'_> {
        let listener = self.local.offer.listener(0);
        listener.expect("an offer has a listener")
    }

    fn create_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        _: Cntlid,
    ) -> Result<&'a ControllerState, RegistryError> {
        let states = &self
            .local
            .controllers
            .0
            .get(subsystem)
            .ok_or(RegistryError::Busy)?;
        let range = Controllers::<CONNECTIONS>::RANGE;
        let state = |id: Cntlid| &states[usize::from(id.0.saturating_sub(1))];
        let registry = &mut self.local.registry;
        registry.create(subsystem, range, host, state).copied()
    }

    fn join_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        cntlid: Cntlid,
        qid: Qid,
    ) -> Result<&'a ControllerState, RegistryError> {
        let registry = &mut self.local.registry;
        registry.join(subsystem, host, cntlid, qid).copied()
    }

    fn leave_controller(&mut self, controller: &&'a ControllerState, qid: Qid) {
        self.local.registry.leave(controller, qid);
        self.local.changed = true;
    }

    fn controller_changed(&mut self, _: &&'a ControllerState) {
        self.local.changed = true;
    }

    fn now(&self) -> Instant {
        self.local.now
    }
}

impl<'a, const CONNECTIONS: usize> Backend for Surroundings<'_, 'a, CONNECTIONS> {
    type Buffer = Buffer<'a>;

    fn take_buffer(&mut self, len: u32, purpose: BufferUse) -> Option<Buffer<'a>> {
        let held = self.local.held.get_mut(self.connection)?;
        let buffer = self.local.pool.take(len as usize, purpose, *held)?;
        *held += 1;
        Some(buffer)
    }

    fn give_buffer(&mut self, buffer: Buffer<'a>) {
        if let Some(held) = self.local.held.get_mut(self.connection) {
            *held = held.saturating_sub(1);
        }
        self.local.pool.give(buffer);
    }

    fn submit(
        &mut self,
        namespace: NamespaceRef,
        mut request: Request<Buffer<'a>>,
    ) -> Submit<Buffer<'a>> {
        let namespaces = self.local.offer.namespaces;
        let at = namespaces.iter().position(|it| it.nsid == namespace.nsid);
        let device = at.and_then(|at| self.local.devices.get_mut(at));
        let device = device.expect("each namespace has a device");
        let slot = request.tag;
        request.tag |= (self.connection as u64) << SLOT_BITS;
        let mut outcome = device.submit(request);
        match &mut outcome {
            Submit::Done(completion) => {
                completion.tag = slot;
                self.local.operations = self.local.operations.wrapping_add(1);
            }
            Submit::Busy(request) => request.tag = slot,
            Submit::Pending => {}
        }
        outcome
    }

    // Boards' devices are slower than a copy.
    fn lends(&self, _: NamespaceRef) -> bool {
        false
    }
}
