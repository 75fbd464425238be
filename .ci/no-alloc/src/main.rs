//! A target for a board: connections, namespace, buffers and registry all in
//! fixed memory, no allocator anywhere. It is linked, and not run: bytes come
//! from where the compiler cannot see, so that all of the target is kept.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;
use core::time::Duration;

use nvmf_core::Source;
use nvmf_core::block::{Geometry, MediaError, Op, Request, Submit};
use nvmf_core::storage::Fixed;
use nvmf_core::target::registry::{Entry, Registry};
use nvmf_core::target::{
    Backend, BufferUse, Catalog, ControllerState, Env, HostIdentity, Limits, Listener, Namespace,
    NamespaceRef, RegistryError, Subsystem, SubsystemKind,
};
use nvmf_core::tcp::connection::TargetConnection;
use nvmf_core::tcp::target::Config;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::{Cntlid, Nqn, Nsid, Qid};

/// Entries of a queue.
const DEPTH: usize = 4;
/// Bytes of a buffer, and that a command may move.
const TRANSFER: usize = 8192;
/// Bytes of the namespace's memory.
const MEMORY: usize = 16384;

type Memory = [u8; TRANSFER];
type Connection<'a> = TargetConnection<Fixed<DEPTH>, &'a mut Memory, &'a ControllerState>;

// SAFETY: the linker looks for this name, and nothing else here has it.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    let mut buffers = [const { [0; TRANSFER] }; DEPTH];
    let mut memory = [0; MEMORY];
    let controllers = [1, 2].map(|id| ControllerState::new(Cntlid(id), 0));
    let catalog = Disk {
        nqn: black_box("nqn.2014-08.org.example:board")
            .parse()
            .unwrap_or_else(|_| Nqn::discovery()),
        namespaces: [Namespace {
            nsid: Nsid(1),
            geometry: Geometry {
                block_shift: 9,
                blocks: (MEMORY / 512) as u64,
                read_only: false,
                volatile_cache: false,
                deallocate_zeroes: true,
                optimal_blocks: 0,
            },
            uuid: [1; 16],
            nguid: [0; 16],
            eui64: [0; 8],
        }],
    };
    let mut board = Board {
        catalog,
        free: buffers.each_mut().map(Some),
        controllers: &controllers,
        registry: Registry::new([const { None }; 2]),
        memory: &mut memory,
        now: Instant::ZERO,
    };
    let config = Config {
        maxh2cdata: TRANSFER as u32,
        ..Config::default()
    };
    loop {
        serve(&mut board, &config);
    }
}

/// A connection's life.
fn serve<'a>(board: &mut Board<'a>, config: &Config) {
    let mut connection = Connection::new(config, Duration::from_secs(10), board.now);
    let mut head = [0; MAX_HEAD];
    while connection.closing().is_none() {
        let received = black_box([0u8; 64]);
        connection.handle_input(&received, board);
        while let Some(transmit) = connection.poll_transmit(&mut head) {
            black_box(&head[..transmit.head_len]);
            if let Some(Source::Slot(place)) = transmit.payload {
                black_box(connection.payload(&place));
            }
            if let Some(slot) = transmit.finishes {
                connection.sent(slot, board);
            }
        }
        connection.retry(board);
        board.now = black_box(board.now);
        if connection
            .poll_timeout()
            .is_some_and(|deadline| deadline <= board.now)
        {
            connection.handle_timeout(board);
        }
    }
    connection.connection_closed(board);
}

struct Disk {
    nqn: Nqn,
    namespaces: [Namespace; 1],
}

struct Board<'a> {
    catalog: Disk,
    free: [Option<&'a mut Memory>; DEPTH],
    controllers: &'a [ControllerState; 2],
    registry: Registry<&'a ControllerState, [Option<Entry<&'a ControllerState>>; 2]>,
    memory: &'a mut [u8; MEMORY],
    now: Instant,
}

impl Catalog for Disk {
    fn subsystem(&self, index: usize) -> Option<Subsystem<'_>> {
        (index == 0).then_some(Subsystem {
            nqn: &self.nqn,
            kind: SubsystemKind::Nvm,
            serial: "0001",
            model: "board",
            firmware: "1",
            namespaces: &self.namespaces,
            allowed_hosts: None,
            cntlid_range: (Cntlid(1), Cntlid(2)),
        })
    }

    fn listener(&self, index: usize) -> Option<Listener<'_>> {
        (index == 0).then_some(LISTENER)
    }

    fn generation(&self) -> u64 {
        1
    }
}

const LISTENER: Listener<'static> = Listener {
    trtype: 3,
    adrfam: 1,
    traddr: "192.0.2.1",
    trsvcid: "4420",
    portid: 1,
};

impl<'a> Env for Board<'a> {
    type Controller = &'a ControllerState;
    type Catalog = Disk;

    fn catalog(&self) -> &Disk {
        &self.catalog
    }

    fn limits(&self) -> Limits {
        Limits {
            io_queue_entries: DEPTH as u32,
            admin_queue_entries: DEPTH as u16,
            io_queues: 1,
            inline_data: TRANSFER as u32,
            transfer: TRANSFER as u32,
        }
    }

    fn local_listener(&self) -> Listener<'_> {
        LISTENER
    }

    fn create_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        _: Cntlid,
    ) -> Result<Self::Controller, RegistryError> {
        let controllers = self.controllers;
        let range = (Cntlid(1), Cntlid(2));
        let state = |id: Cntlid| &controllers[usize::from(id == Cntlid(2))];
        self.registry.create(subsystem, range, host, state).copied()
    }

    fn join_controller(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        cntlid: Cntlid,
        qid: Qid,
    ) -> Result<Self::Controller, RegistryError> {
        self.registry.join(subsystem, host, cntlid, qid).copied()
    }

    fn leave_controller(&mut self, controller: &Self::Controller, qid: Qid) {
        self.registry.leave(controller, qid);
    }

    fn controller_changed(&mut self, _: &Self::Controller) {}

    fn now(&self) -> Instant {
        self.now
    }
}

impl<'a> Backend for Board<'a> {
    type Buffer = &'a mut Memory;

    fn take_buffer(&mut self, _: u32, _: BufferUse) -> Option<Self::Buffer> {
        self.free.iter_mut().find_map(Option::take)
    }

    fn give_buffer(&mut self, buffer: Self::Buffer) {
        if let Some(place) = self.free.iter_mut().find(|place| place.is_none()) {
            *place = Some(buffer);
        }
    }

    fn submit(&mut self, _: NamespaceRef, request: Request<Self::Buffer>) -> Submit<Self::Buffer> {
        let mut request = request;
        let result = perform(self.memory, &mut request);
        Submit::Done(request.complete(result))
    }

    fn lends(&self, _: NamespaceRef) -> bool {
        false
    }
}

fn perform(
    memory: &mut [u8; MEMORY],
    request: &mut Request<&mut Memory>,
) -> Result<(), MediaError> {
    let (Op::Read(extent) | Op::Write { extent, .. } | Op::WriteZeroes { extent, .. }) = request.op
    else {
        return Ok(());
    };
    let (from, len) = (extent.byte as usize, extent.len as usize);
    let stored = memory
        .get_mut(from..)
        .and_then(|memory| memory.get_mut(..len))
        .ok_or(MediaError::Read)?;
    let buffer = request.buffer.as_mut().and_then(|b| b.get_mut(..len));
    match (request.op, buffer) {
        (Op::Read(_), Some(buffer)) => buffer.copy_from_slice(stored),
        (Op::Write { .. }, Some(buffer)) => stored.copy_from_slice(buffer),
        (Op::WriteZeroes { .. }, _) => stored.fill(0),
        _ => return Err(MediaError::Unsupported),
    }
    Ok(())
}

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    loop {}
}
