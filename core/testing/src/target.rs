//! The surroundings of queue pairs, in memory: a catalog, devices that answer
//! when they are told to, buffers that are counted.
use std::collections::VecDeque;
use std::rc::Rc;

use nvmf_core::block::{Extent, Geometry, MediaError, Op, Request, Submit};
use nvmf_core::storage::Storage;
use nvmf_core::target::registry::{Entry, Registry};
use nvmf_core::target::{
    Backend, BufferUse, Catalog, ControllerState, Env, HostIdentity, Limits, Listener, Namespace,
    NamespaceRef, RegistryError, Subsystem, SubsystemKind,
};
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::{Cntlid, Nqn, Nsid, Qid};

use crate::bytes::{DISCOVERY, SUBNQN};

/// Handle to a controller's shared state.
pub type Handle = Rc<ControllerState>;

/// What new buffers are filled with: a controller that sends it shows memory
/// that it never wrote.
pub const POISON: u8 = 0xDB;

/// A buffer, exactly as long as was asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer(Box<[u8]>);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// How many connections' commands a queue pair has room for from the start,
/// on the heap: what servers use.
#[derive(Debug)]
pub struct Heap;

impl Storage for Heap {
    type Array<T> = Vec<T>;
    type Apart<T> = Box<T>;

    fn apart<T>(value: T) -> Box<T> {
        Box::new(value)
    }

    fn new<T>(init: impl FnMut(usize) -> T) -> Vec<T> {
        (0..1).map(init).collect()
    }

    fn grow<T>(array: &mut Vec<T>, len: usize, init: impl FnMut(usize) -> T) {
        array.extend((array.len()..len).map(init));
    }
}

/// A namespace and its memory.
#[derive(Clone, Debug)]
struct Medium {
    namespace: Namespace,
    bytes: Vec<u8>,
    lends: bool,
}

/// What devices do with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// Do it at once.
    #[default]
    Immediate,
    /// Keep it until [`Target::take_pending`].
    Delayed,
    /// Refuse it for now.
    Busy,
    /// Fail it at once.
    Failing(MediaError),
}

/// Where buffers come from.
pub trait Supply {
    /// A buffer.
    type Buffer: AsRef<[u8]> + AsMut<[u8]>;

    /// A buffer of `len` bytes at least, full of [`POISON`].
    fn take(&mut self, len: u32) -> Option<Self::Buffer>;

    /// Takes a buffer back.
    fn give(&mut self, buffer: Self::Buffer);

    /// Buffers that were taken and not given back.
    fn taken(&self) -> usize;
}

/// Buffers from the heap.
#[derive(Debug, Default)]
pub struct Heaped {
    taken: usize,
}

impl Supply for Heaped {
    type Buffer = Buffer;

    fn take(&mut self, len: u32) -> Option<Buffer> {
        self.taken += 1;
        Some(Buffer(vec![POISON; len as usize].into()))
    }

    fn give(&mut self, buffer: Buffer) {
        drop(buffer);
        self.taken = self.taken.checked_sub(1).expect("was taken");
    }

    fn taken(&self) -> usize {
        self.taken
    }
}

/// A request that a device keeps, and for whom.
#[derive(Debug)]
pub struct Pending<B> {
    /// [`Target::caller`] when it was submitted.
    pub caller: usize,
    /// The device.
    pub namespace: NamespaceRef,
    /// The request.
    pub request: Request<B>,
}

/// A request that a device is done with, and how it went.
pub type Taken<B> = (Pending<B>, Result<(), MediaError>);

/// Everything that queue pairs need of their surroundings.
#[derive(Debug)]
pub struct Target<P: Supply = Heaped> {
    /// Where buffers come from.
    pub supply: P,
    subsystems: Subsystems,
    media: Vec<Medium>,
    registry: Registry<Handle, Vec<Option<Entry<Handle>>>>,
    /// What is reported to hosts and enforced.
    pub limits: Limits,
    /// Virtual time.
    pub now: Instant,
    /// What devices do.
    pub device: Device,
    /// Buffers that may still be taken for [`BufferUse::Transfer`].
    pub transfer_buffers: usize,
    /// Whether there are buffers for [`BufferUse::InCapsule`].
    pub in_capsule_buffers: bool,
    /// Whether devices write what is only lent to them, at once.
    pub stores: bool,
    /// Who is being called, for devices to remember.
    pub caller: usize,
    pending: VecDeque<Pending<P::Buffer>>,
    changed: bool,
}

#[derive(Debug)]
struct Subsystems {
    discovery: Nqn,
    nvm: Nqn,
    namespaces: Vec<Namespace>,
    generation: u64,
}

/// Index of the NVM subsystem in the catalog.
pub const NVM: usize = 1;

impl Target {
    /// See [`Target::with`].
    #[must_use]
    pub fn new() -> Self {
        Self::with(Heaped::default())
    }
}

impl<P: Supply> Target<P> {
    /// A discovery subsystem and an NVM subsystem. Its namespaces: 1, of 128
    /// blocks of 512 bytes; 2, of 32 blocks of 4096 bytes, lent; 3, like 1
    /// but read-only; 7, like 1.
    #[must_use]
    pub fn with(supply: P) -> Self {
        let media = vec![
            medium(1, 9, 128, false, false),
            medium(2, 12, 32, false, true),
            medium(3, 9, 128, true, false),
            medium(7, 9, 128, false, false),
        ];
        Self {
            supply,
            subsystems: Subsystems {
                discovery: nqn(DISCOVERY),
                nvm: nqn(SUBNQN),
                namespaces: media.iter().map(|m| m.namespace.clone()).collect(),
                generation: 1,
            },
            media,
            registry: Registry::new((0..4).map(|_| None).collect()),
            limits: Limits {
                io_queue_entries: 32,
                admin_queue_entries: 32,
                io_queues: 4,
                inline_data: 8192,
                transfer: 1 << 15,
            },
            now: Instant::from_micros(1_000_000),
            device: Device::Immediate,
            transfer_buffers: usize::MAX,
            in_capsule_buffers: true,
            stores: false,
            caller: 0,
            pending: VecDeque::new(),
            changed: false,
        }
    }

    /// The memory of a namespace; empty if there is none of that id.
    #[must_use]
    pub fn memory(&mut self, nsid: u32) -> &mut [u8] {
        self.media
            .iter_mut()
            .find(|medium| medium.namespace.nsid == Nsid(nsid))
            .map_or(&mut [], |medium| &mut medium.bytes)
    }

    /// Buffers that were taken and not given back.
    #[must_use]
    pub fn buffers_taken(&self) -> usize {
        self.supply.taken()
    }

    /// Requests that devices keep.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Takes the `index`th pending request out, having done it unless it is to fail.
    pub fn take_pending(
        &mut self,
        index: usize,
        fault: Option<MediaError>,
    ) -> Option<Taken<P::Buffer>> {
        let mut pending = self.pending.remove(index)?;
        let result = match fault {
            Some(error) => Err(error),
            None => self.perform(pending.namespace, &mut pending.request),
        };
        Some((pending, result))
    }

    /// Whether a controller changed since this was last asked.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The catalog changes, in nothing but its generation.
    pub fn change_catalog(&mut self) {
        self.subsystems.generation += 1;
    }

    /// Controllers that exist.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.registry.entries().count()
    }

    /// The memory that a [`Source::Media`](nvmf_core::Source::Media) names.
    ///
    /// # Panics
    /// If it is not within a namespace that is lent.
    #[must_use]
    pub fn lent(&self, namespace: NamespaceRef, byte: u64, len: u32) -> &[u8] {
        let medium = self.medium(namespace).expect("the namespace exists");
        assert!(medium.lends, "{namespace:?} is not lent");
        let from = usize::try_from(byte).expect("fits memory");
        &medium.bytes[from..][..len as usize]
    }

    fn medium(&self, namespace: NamespaceRef) -> Option<&Medium> {
        assert_eq!(namespace.subsystem, NVM);
        self.media
            .iter()
            .find(|medium| medium.namespace.nsid == namespace.nsid)
    }

    fn perform(
        &mut self,
        namespace: NamespaceRef,
        request: &mut Request<P::Buffer>,
    ) -> Result<(), MediaError> {
        let read_only = self
            .medium(namespace)
            .expect("the namespace exists")
            .namespace
            .geometry
            .read_only;
        let memory = self.memory(namespace.nsid.0);
        let buffer = request.buffer.as_mut();
        let data = |len: usize| &mut buffer.expect("has a buffer").as_mut()[..len];
        match request.op {
            Op::Read(extent) => {
                let memory = slice(memory, extent);
                data(memory.len()).copy_from_slice(memory);
            }
            Op::Write { extent, .. } => {
                assert!(!read_only, "a write to a read-only device");
                let memory = slice(memory, extent);
                memory.copy_from_slice(data(memory.len()));
            }
            Op::Compare(extent) => {
                let memory = slice(memory, extent);
                if memory != data(memory.len()) {
                    return Err(MediaError::Miscompare);
                }
            }
            Op::Verify(extent) => {
                slice(memory, extent);
            }
            Op::WriteZeroes { extent, .. } | Op::Deallocate(extent) => {
                assert!(!read_only, "a write to a read-only device");
                slice(memory, extent).fill(0);
            }
            Op::Flush => {}
        }
        Ok(())
    }
}

impl Default for Target {
    fn default() -> Self {
        Self::new()
    }
}

/// Panics when the extent is not within the device, as only whoever builds a
/// request may say.
fn slice(memory: &mut [u8], extent: Extent) -> &mut [u8] {
    let [from, len] = [extent.byte, extent.len].map(|n| usize::try_from(n).expect("fits memory"));
    &mut memory[from..][..len]
}

fn medium(nsid: u32, block_shift: u8, blocks: u64, read_only: bool, lends: bool) -> Medium {
    let geometry = Geometry {
        block_shift,
        blocks,
        read_only,
        volatile_cache: true,
        deallocate_zeroes: true,
        optimal_blocks: 0,
    };
    Medium {
        namespace: Namespace {
            nsid: Nsid(nsid),
            geometry,
            uuid: [0x11; 16],
            nguid: [0x22; 16],
            eui64: [0x33; 8],
        },
        bytes: vec![0; usize::try_from(geometry.bytes()).expect("fits memory")],
        lends,
    }
}

fn nqn(name: &str) -> Nqn {
    name.parse().expect("is a name")
}

impl Catalog for Subsystems {
    fn subsystem(&self, index: usize) -> Option<Subsystem<'_>> {
        let (nqn, kind, namespaces) = match index {
            0 => (&self.discovery, SubsystemKind::Discovery, &[][..]),
            NVM => (&self.nvm, SubsystemKind::Nvm, &self.namespaces[..]),
            _ => return None,
        };
        Some(Subsystem {
            nqn,
            kind,
            serial: "S0001",
            model: "memory",
            firmware: "1.0",
            namespaces,
            allowed_hosts: None,
            cntlid_range: (Cntlid(1), Cntlid::MAX),
        })
    }

    fn listener(&self, index: usize) -> Option<Listener<'_>> {
        (index < 3).then_some(LISTENER)
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

const LISTENER: Listener<'static> = Listener {
    trtype: 3,
    adrfam: 1,
    traddr: "192.0.2.1",
    trsvcid: "4420",
    portid: 1,
};

impl<P: Supply> Env for Target<P> {
    type Controller = Handle;
    type Catalog = dyn Catalog;

    fn catalog(&self) -> &Self::Catalog {
        &self.subsystems
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn local_listener(&self) -> Listener<'_> {
        LISTENER
    }

    fn create_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        _cntlid: Cntlid,
    ) -> Result<Handle, RegistryError> {
        let range = (Cntlid(1), Cntlid::MAX);
        let make = |cntlid| Rc::new(ControllerState::new(cntlid, subsystem));
        self.registry.create(subsystem, range, host, make).cloned()
    }

    fn join_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        cntlid: Cntlid,
        qid: Qid,
    ) -> Result<Handle, RegistryError> {
        self.registry.join(subsystem, host, cntlid, qid).cloned()
    }

    fn leave_controller(&mut self, controller: &Handle, qid: Qid) {
        self.registry.leave(controller, qid);
        self.changed = true;
    }

    fn controller_changed(&mut self, _: &Handle) {
        self.changed = true;
    }

    fn now(&self) -> Instant {
        self.now
    }
}

impl<P: Supply> Backend for Target<P> {
    type Buffer = P::Buffer;

    fn take_buffer(&mut self, len: u32, purpose: BufferUse) -> Option<P::Buffer> {
        match purpose {
            BufferUse::InCapsule if !self.in_capsule_buffers => return None,
            BufferUse::InCapsule => {}
            BufferUse::Transfer => {
                self.transfer_buffers = self.transfer_buffers.checked_sub(1)?;
            }
        }
        assert!(
            len <= self.limits.transfer.max(8192),
            "a buffer of {len} bytes"
        );
        self.supply.take(len)
    }

    fn give_buffer(&mut self, buffer: P::Buffer) {
        self.supply.give(buffer);
    }

    fn submit(
        &mut self,
        namespace: NamespaceRef,
        mut request: Request<P::Buffer>,
    ) -> Submit<P::Buffer> {
        match self.device {
            Device::Immediate => {
                let result = self.perform(namespace, &mut request);
                Submit::Done(request.complete(result))
            }
            Device::Failing(error) => Submit::Done(request.complete(Err(error))),
            Device::Busy => Submit::Busy(request),
            Device::Delayed => {
                self.pending.push_back(Pending {
                    caller: self.caller,
                    namespace,
                    request,
                });
                Submit::Pending
            }
        }
    }

    fn store(
        &mut self,
        namespace: NamespaceRef,
        extent: Extent,
        data: &[u8],
        _fua: bool,
    ) -> Option<Result<(), MediaError>> {
        self.stores.then(|| {
            let medium = self.medium(namespace).expect("the namespace exists");
            let read_only = medium.namespace.geometry.read_only;
            assert!(!read_only, "a write to a read-only device");
            let memory = slice(self.memory(namespace.nsid.0), extent);
            memory.copy_from_slice(&data[..memory.len()]);
            Ok(())
        })
    }

    fn lends(&self, namespace: NamespaceRef) -> bool {
        self.medium(namespace).is_some_and(|medium| medium.lends)
    }
}
