//! A target in memory, for the tests of this module's parts.
use std::rc::Rc;
use std::string::String;
use std::vec::Vec;

use zerocopy::FromBytes;

use super::connect::{Connected, Refusal, Role, connect};
use super::controller::Controller;
use super::registry::{Entry, Registry};
use super::{
    AdminStep, Backend, BufferUse, Catalog, ControllerState, Env, HostIdentity, Limits, Listener,
    Namespace, NamespaceRef, RegistryError, Reply, Subsystem, SubsystemKind,
};
use crate::block::{Geometry, MediaError, Request, Submit};
use crate::time::Instant;
use crate::wire::ids::{Cntlid, Nqn, Nsid, Qid};
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;

pub(crate) const SUBNQN: &str = "nqn.2014-08.org.example:disk";
pub(crate) const HOSTNQN: &str = "nqn.2014-08.org.example:host";
pub(crate) const HOSTID: [u8; 16] = [7; 16];

pub(crate) fn host() -> HostIdentity {
    HostIdentity {
        nqn: HOSTNQN.parse().unwrap(),
        id: HOSTID,
    }
}

pub(crate) struct TestSubsystem {
    pub(crate) nqn: Nqn,
    pub(crate) kind: SubsystemKind,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) allowed_hosts: Option<Vec<Nqn>>,
    pub(crate) cntlid_range: (Cntlid, Cntlid),
}

pub(crate) struct TestListener {
    pub(crate) trtype: u8,
    pub(crate) adrfam: u8,
    pub(crate) traddr: String,
    pub(crate) trsvcid: String,
    pub(crate) portid: u16,
}

#[derive(Default)]
pub(crate) struct TestCatalog {
    pub(crate) subsystems: Vec<TestSubsystem>,
    pub(crate) listeners: Vec<TestListener>,
    pub(crate) generation: u64,
}

impl Catalog for TestCatalog {
    fn subsystem(&self, index: usize) -> Option<Subsystem<'_>> {
        let subsystem = self.subsystems.get(index)?;
        Some(Subsystem {
            nqn: &subsystem.nqn,
            kind: subsystem.kind,
            serial: "S0001",
            model: "test disk",
            firmware: "1.0",
            namespaces: &subsystem.namespaces,
            allowed_hosts: subsystem.allowed_hosts.as_deref(),
            cntlid_range: subsystem.cntlid_range,
        })
    }

    fn listener(&self, index: usize) -> Option<Listener<'_>> {
        self.listeners.get(index).map(TestListener::as_listener)
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

impl TestListener {
    fn as_listener(&self) -> Listener<'_> {
        Listener {
            trtype: self.trtype,
            adrfam: self.adrfam,
            traddr: &self.traddr,
            trsvcid: &self.trsvcid,
            portid: self.portid,
        }
    }
}

pub(crate) type Handle = Rc<ControllerState>;

pub(crate) struct TestEnv {
    pub(crate) catalog: TestCatalog,
    pub(crate) limits: Limits,
    pub(crate) local: TestListener,
    pub(crate) now: Instant,
    pub(crate) registry: Registry<Handle, Vec<Option<Entry<Handle>>>>,
    /// Calls of `controller_changed`.
    pub(crate) changes: u32,
    /// How devices end an operation; `None` leaves it under way.
    pub(crate) outcome: Option<Result<(), MediaError>>,
    /// Operations that devices have not ended.
    pub(crate) under_way: Vec<Request<Vec<u8>>>,
    /// Buffers that were taken and not given back.
    pub(crate) buffers: usize,
    /// There are no buffers for transfers, and devices take nothing.
    pub(crate) exhausted: bool,
}

impl TestEnv {
    /// One discovery subsystem (index 0), one NVM subsystem (index 1) with
    /// namespaces 1 and 5, one listener, room for 4 controllers.
    pub(crate) fn new() -> Self {
        let catalog = TestCatalog {
            subsystems: std::vec![
                subsystem(Nqn::DISCOVERY, SubsystemKind::Discovery, &[]),
                subsystem(SUBNQN, SubsystemKind::Nvm, &[1, 5]),
            ],
            listeners: std::vec![listener("127.0.0.1", "4420", 1)],
            generation: 10,
        };
        Self {
            catalog,
            limits: Limits {
                io_queue_entries: 128,
                admin_queue_entries: 32,
                io_queues: 16,
                inline_data: 16_384,
                transfer: 1 << 20,
            },
            local: listener("127.0.0.1", "4420", 1),
            now: Instant::from_micros(1_000_000),
            registry: Registry::new((0..4).map(|_| None).collect()),
            changes: 0,
            outcome: Some(Ok(())),
            under_way: Vec::new(),
            buffers: 0,
            exhausted: false,
        }
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.now = self.now.after(core::time::Duration::from_millis(ms));
    }
}

pub(crate) fn subsystem(nqn: &str, kind: SubsystemKind, nsids: &[u32]) -> TestSubsystem {
    TestSubsystem {
        nqn: nqn.parse().unwrap(),
        kind,
        namespaces: nsids.iter().copied().map(namespace).collect(),
        allowed_hosts: None,
        cntlid_range: (Cntlid(1), Cntlid::MAX),
    }
}

pub(crate) fn namespace(nsid: u32) -> Namespace {
    Namespace {
        nsid: Nsid(nsid),
        geometry: Geometry {
            block_shift: 12,
            blocks: 65_536,
            read_only: false,
            volatile_cache: true,
            deallocate_zeroes: true,
            optimal_blocks: 16,
        },
        uuid: [0x11; 16],
        nguid: [0x22; 16],
        eui64: [0x33; 8],
    }
}

pub(crate) fn listener(traddr: &str, trsvcid: &str, portid: u16) -> TestListener {
    TestListener {
        trtype: 3,
        adrfam: if traddr.contains(':') { 2 } else { 1 },
        traddr: traddr.into(),
        trsvcid: trsvcid.into(),
        portid,
    }
}

impl Env for TestEnv {
    type Controller = Handle;
    type Catalog = TestCatalog;

    fn catalog(&self) -> &TestCatalog {
        &self.catalog
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn local_listener(&self) -> Listener<'_> {
        self.local.as_listener()
    }

    fn create_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        _cntlid: Cntlid,
    ) -> Result<Handle, RegistryError> {
        let range = self.catalog.subsystems[subsystem].cntlid_range;
        self.registry
            .create(subsystem, range, host, |cntlid| {
                Rc::new(ControllerState::new(cntlid, subsystem))
            })
            .cloned()
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
    }

    fn controller_changed(&mut self, _controller: &Handle) {
        self.changes += 1;
    }

    fn now(&self) -> Instant {
        self.now
    }
}

impl Backend for TestEnv {
    type Buffer = Vec<u8>;

    fn take_buffer(&mut self, len: u32, purpose: BufferUse) -> Option<Vec<u8>> {
        if self.exhausted && purpose == BufferUse::Transfer {
            return None;
        }
        self.buffers += 1;
        Some(std::vec![0xAA; len as usize])
    }

    fn give_buffer(&mut self, _: Vec<u8>) {
        self.buffers -= 1;
    }

    fn submit(&mut self, _: NamespaceRef, request: Request<Vec<u8>>) -> Submit<Vec<u8>> {
        match self.outcome {
            _ if self.exhausted => Submit::Busy(request),
            Some(result) => Submit::Done(request.complete(result)),
            None => {
                self.under_way.push(request);
                Submit::Pending
            }
        }
    }

    fn lends(&self, _: NamespaceRef) -> bool {
        false
    }
}

/// A command of bytes at offsets, all else zero.
pub(crate) fn sqe(fields: &[(usize, &[u8])]) -> Sqe {
    Sqe::read_from_bytes(&bytes::<64>(fields)).unwrap()
}

/// `N` bytes, zero but for these at their offsets.
pub(crate) fn bytes<const N: usize>(fields: &[(usize, &[u8])]) -> [u8; N] {
    let mut bytes = [0; N];
    for (offset, field) in fields {
        bytes[*offset..][..field.len()].copy_from_slice(field);
    }
    bytes
}

/// A Connect: QID, SQSIZE (0's based), KATO 5000 ms.
pub(crate) fn connect_sqe(qid: u8, sqsize: u16) -> Sqe {
    sqe(&[
        (0, &[0x7F, 0x40, 1, 0, 0x01]),
        (32, &[0, 4, 0, 0]),
        (39, &[0x01]),
        (42, &[qid, 0]),
        (44, &sqsize.to_le_bytes()),
        (48, &5000u32.to_le_bytes()),
    ])
}

/// Connect data of [`HOSTNQN`].
pub(crate) fn connect_data(subnqn: &str, cntlid: u16) -> [u8; 1024] {
    bytes(&[
        (0, &HOSTID),
        (16, &cntlid.to_le_bytes()),
        (256, subnqn.as_bytes()),
        (512, HOSTNQN.as_bytes()),
    ])
}

pub(crate) fn property_get(offset: u8, attrib: u8) -> Sqe {
    sqe(&[
        (0, &[0x7F, 0x40, 2, 0, 0x04]),
        (40, &[attrib]),
        (44, &[offset]),
    ])
}

pub(crate) fn property_set(offset: u8, attrib: u8, value: u32) -> Sqe {
    sqe(&[
        (0, &[0x7F, 0x40, 3, 0, 0x00]),
        (40, &[attrib]),
        (44, &[offset]),
        (48, &value.to_le_bytes()),
    ])
}

/// CC of a Linux host: EN, IOSQES 6, IOCQES 4.
pub(crate) const CC_ENABLE: u32 = 0x0046_0001;

/// A controller of `subnqn` that is connected but not enabled.
pub(crate) fn connected(env: &mut TestEnv, subnqn: &str) -> Controller<Handle> {
    let data = connect_data(subnqn, 0xFFFF);
    match connect(env, &connect_sqe(0, 31), &data).unwrap().role {
        Role::Admin(controller) => controller,
        Role::Io(_) => unreachable!("qid 0 is an admin queue"),
    }
}

/// A controller of `subnqn` that is enabled.
pub(crate) fn enabled(env: &mut TestEnv, subnqn: &str) -> Controller<Handle> {
    let mut controller = connected(env, subnqn);
    let step = controller.command(0, &property_set(0x14, 0, CC_ENABLE), env);
    assert_eq!(step, AdminStep::Reply(Reply::SUCCESS));
    controller
}

/// Connects I/O queue `qid` to a controller of [`SUBNQN`].
pub(crate) fn join(
    env: &mut TestEnv,
    controller: &Controller<Handle>,
    qid: u8,
) -> Result<Connected<Handle>, Refusal> {
    let data = connect_data(SUBNQN, controller.state().cntlid.0);
    connect(env, &connect_sqe(qid, 127), &data)
}

/// Runs a command that returns data, into a buffer of other bytes.
pub(crate) fn read(
    env: &mut TestEnv,
    controller: &mut Controller<Handle>,
    sqe: &Sqe,
) -> Result<Vec<u8>, Status> {
    let len = match controller.command(0, sqe, env) {
        AdminStep::Respond { len } => len,
        AdminStep::Reply(reply) => {
            assert!(!reply.status.is_success() && reply.result == 0, "{reply:?}");
            return Err(reply.status);
        }
        other => panic!("{other:?}"),
    };
    let mut out = std::vec![0xAA; len as usize];
    let reply = controller.read_data(sqe, &mut out, env);
    assert_eq!(reply.result, 0);
    if reply.status.is_success() {
        Ok(out)
    } else {
        Err(reply.status)
    }
}

/// Runs a command that ends at once.
pub(crate) fn run(
    env: &mut TestEnv,
    controller: &mut Controller<Handle>,
    sqe: &Sqe,
) -> Result<u64, Status> {
    match controller.command(0, sqe, env) {
        AdminStep::Reply(reply) if reply.status.is_success() => Ok(reply.result),
        AdminStep::Reply(reply) => {
            assert_eq!(reply.result, 0, "an error has no result");
            Err(reply.status)
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn get_log(lid: u8, len: u32, lpo: u64, rae: bool) -> Sqe {
    let numd = (len / 4 - 1).to_le_bytes();
    sqe(&[
        (0, &[0x02, 0x40]),
        (
            40,
            &[lid, u8::from(rae) << 7, numd[0], numd[1], numd[2], numd[3]],
        ),
        (48, &lpo.to_le_bytes()),
    ])
}
