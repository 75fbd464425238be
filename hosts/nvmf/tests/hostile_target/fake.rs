//! A target that does what a script says, and what is right where it says nothing.
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::SockRef;

use crate::bytes::{put, u16_at, u32_at, u64_at};
use crate::pdu::{self, CAPSULE_CMD, Framing, H2C_DATA, H2C_TERM_REQ, IC_REQ, LAST, Pdu, SUCCESS};

pub(crate) const NQN: &str = "nqn.2014-08.org.example:fake";
pub(crate) const BLOCK: usize = 512;
/// Bytes that the namespace has.
const CAPACITY: usize = 128 << 20;

/// A host that says nothing for so long is dead, and the test with it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What the target can.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Agree to the digests that the host asks for.
    pub(crate) digests: bool,
    pub(crate) cpda: u8,
    pub(crate) maxh2cdata: u32,
    /// Bytes of data in a capsule of an I/O queue.
    pub(crate) inline_data: u32,
    /// Pages of 4096 bytes that a command moves, as a power of two.
    pub(crate) mdts: u8,
    /// Of a read, bytes in a C2HData.
    pub(crate) c2h_data: usize,
    /// End reads with SUCCESS where that is allowed.
    pub(crate) success: bool,
    /// The records of the discovery log.
    pub(crate) records: Vec<Vec<u8>>,
    /// Bytes that the kernel takes for us, at the least it can.
    pub(crate) receive_buffer: Option<usize>,
    /// A byte at a time is sent, so far apart.
    pub(crate) dribble: Option<Duration>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            digests: false,
            cpda: 0,
            maxh2cdata: 1 << 20,
            inline_data: 0,
            mdts: 8,
            c2h_data: usize::MAX,
            success: true,
            records: Vec::new(),
            receive_buffer: None,
            dribble: None,
        }
    }
}

/// What a script did with a command.
pub(crate) enum Did {
    /// Nothing: it is to be answered as is right.
    Nothing,
    /// What it wanted.
    Something,
    /// The connection is to be closed.
    End,
}

type Script = Arc<dyn Fn(&mut Conn, &Command) -> Did + Send + Sync>;

/// The target. It ends when it is dropped.
pub(crate) struct Fake {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    setup: Setup,
    stop: AtomicBool,
    disk: Mutex<Vec<u8>>,
    /// FES and FEI of H2CTermReqs.
    terms: Mutex<Vec<(u16, u32)>>,
    connections: Mutex<Vec<JoinHandle<()>>>,
}

impl Fake {
    /// Each command is the script's first.
    pub(crate) fn start(
        setup: Setup,
        script: impl Fn(&mut Conn, &Command) -> Did + Send + Sync + 'static,
    ) -> Self {
        let script: Script = Arc::new(script);
        Self::raw_with(setup, move |mut conn| {
            if conn.initialize() {
                conn.serve(&script);
            }
        })
    }

    /// One that does all that is right.
    pub(crate) fn right(setup: Setup) -> Self {
        Self::start(setup, |_, _| Did::Nothing)
    }

    /// Each connection is `serve`'s, from its first byte.
    pub(crate) fn raw(serve: impl Fn(Conn) + Send + Sync + 'static) -> Self {
        Self::raw_with(Setup::default(), serve)
    }

    fn raw_with(setup: Setup, serve: impl Fn(Conn) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        if let Some(size) = setup.receive_buffer {
            let listener = SockRef::from(&listener);
            listener.set_recv_buffer_size(size).expect("an option");
        }
        let addr = listener.local_addr().expect("is bound");
        let shared = Arc::new(Shared {
            setup,
            stop: AtomicBool::new(false),
            disk: Mutex::new(vec![0; 1 << 20]),
            terms: Mutex::new(Vec::new()),
            connections: Mutex::new(Vec::new()),
        });
        let serve = Arc::new(serve);
        let all = Arc::clone(&shared);
        let acceptor = thread::spawn(move || {
            for socket in listener.incoming() {
                if all.stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(socket) = socket else { continue };
                let conn = Conn::new(socket, Arc::clone(&all));
                let serve = Arc::clone(&serve);
                let thread = thread::spawn(move || serve(conn));
                all.connections.lock().expect("connections").push(thread);
            }
        });
        Self {
            addr,
            shared,
            acceptor: Some(acceptor),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("nvme+tcp://{}/{NQN}?nsid=1", self.addr)
    }

    /// The bytes that are stored, from the first on.
    pub(crate) fn stored(&self, len: usize) -> Vec<u8> {
        self.shared.disk.lock().expect("disk")[..len].to_vec()
    }

    /// Stores bytes, from the first on.
    pub(crate) fn store(&self, bytes: &[u8]) {
        self.shared.disk.lock().expect("disk")[..bytes.len()].copy_from_slice(bytes);
    }

    /// FES and FEI of the H2CTermReqs that came, once all connections are over.
    pub(crate) fn term_reqs(&self) -> Vec<(u16, u32)> {
        self.join();
        self.shared.terms.lock().expect("terms").clone()
    }

    /// Waits until all connections are over.
    fn join(&self) {
        loop {
            let thread = self.shared.connections.lock().expect("connections").pop();
            let Some(thread) = thread else { return };
            let outcome = thread.join();
            assert!(
                outcome.is_ok() || thread::panicking(),
                "the fake target panicked"
            );
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // It looks when somebody comes.
        let _ = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.join();
    }
}

/// A command that came.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) sqe: [u8; 64],
    pub(crate) data: Vec<u8>,
}

impl Command {
    pub(crate) fn opcode(&self) -> u8 {
        self.sqe[0]
    }

    pub(crate) fn cid(&self) -> u16 {
        u16_at(&self.sqe, 2)
    }

    pub(crate) fn dword(&self, index: usize) -> u32 {
        u32_at(&self.sqe, index * 4)
    }

    /// Of its data pointer.
    pub(crate) fn length(&self) -> u32 {
        u32_at(&self.sqe, 32)
    }

    /// A Fabrics command of this type.
    pub(crate) fn is_fabrics(&self, fctype: u8) -> bool {
        self.sqe[0] == 0x7F && self.sqe[4] == fctype
    }

    /// Identify with this CNS.
    pub(crate) fn is_identify(&self, cns: u8) -> bool {
        self.sqe[0] == 0x06 && self.sqe[40] == cns
    }

    fn range(&self) -> std::ops::Range<usize> {
        let from = u64_at(&self.sqe, 40) as usize * BLOCK;
        from..from + (usize::from(u16_at(&self.sqe, 48)) + 1) * BLOCK
    }
}

/// A connection.
pub(crate) struct Conn {
    pub(crate) socket: TcpStream,
    pub(crate) framing: Framing,
    /// The host's HPDA.
    pub(crate) hpda: u8,
    /// Which queue it is, once connected.
    pub(crate) qid: Option<u16>,
    /// For scripts that count associations.
    pub(crate) association: usize,
    shared: Arc<Shared>,
    waiting: VecDeque<Command>,
    flow_control: bool,
    subnqn: String,
    cc: u32,
    sqhd: u16,
}

impl Conn {
    fn new(socket: TcpStream, shared: Arc<Shared>) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
        socket.set_write_timeout(Some(PATIENCE)).expect("a time");
        socket.set_nodelay(true).expect("an option");
        Self {
            socket,
            framing: Framing::default(),
            hpda: 0,
            qid: None,
            association: 0,
            shared,
            waiting: VecDeque::new(),
            flow_control: true,
            subnqn: String::new(),
            cc: 0,
            sqhd: 0,
        }
    }

    /// Whether it is an I/O queue.
    pub(crate) fn is_io(&self) -> bool {
        self.qid.is_some_and(|qid| qid > 0)
    }

    /// Bytes as they are. That the host is gone does not matter.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let Some(pause) = self.shared.setup.dribble else {
            let _ = self.socket.write_all(bytes);
            return;
        };
        for byte in bytes {
            let _ = self.socket.write_all(&[*byte]);
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
    }

    /// The host closes, or resets; what it says until then is looked at.
    pub(crate) fn wait_for_end(&mut self) {
        while self.read_pdu().is_some() {}
    }

    fn read(&mut self, bytes: &mut [u8]) -> bool {
        match self.socket.read_exact(bytes) {
            Ok(()) => true,
            Err(error) => {
                let dead = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
                assert!(!dead.contains(&error.kind()), "the host says nothing");
                false
            }
        }
    }

    /// The host's next PDU; `None` when it is gone.
    pub(crate) fn read_pdu(&mut self) -> Option<Pdu> {
        let mut bytes = vec![0; 8];
        if !self.read(&mut bytes) {
            return None;
        }
        let plen = u32_at(&bytes, 4) as usize;
        assert!((24..=2 << 20).contains(&plen), "PLEN of {bytes:02x?}");
        bytes.resize(plen, 0);
        if !self.read(&mut bytes[8..]) {
            return None;
        }
        let pdu = Pdu::parse(&self.framing, &bytes);
        if pdu.pdu_type() == H2C_TERM_REQ {
            let term = (pdu.u16_at(8), pdu.u32_at(10));
            self.shared.terms.lock().expect("terms").push(term);
        }
        Some(pdu)
    }

    /// ICReq comes.
    pub(crate) fn ic_req(&mut self) -> Option<Pdu> {
        let pdu = self.read_pdu()?;
        assert_eq!(pdu.pdu_type(), IC_REQ);
        self.hpda = pdu.header[10];
        Some(pdu)
    }

    /// ICReq comes, and is answered. Whether it came.
    pub(crate) fn initialize(&mut self) -> bool {
        let Some(request) = self.ic_req() else {
            return false;
        };
        let setup = &self.shared.setup;
        let dgst = if setup.digests { request.header[11] } else { 0 };
        let response = pdu::ic_resp(setup.cpda, dgst, setup.maxh2cdata);
        self.framing = Framing {
            hdgst: dgst & 1 != 0,
            ddgst: dgst & 2 != 0,
            host_align: (usize::from(self.hpda) + 1) * 4,
            align: (usize::from(setup.cpda) + 1) * 4,
        };
        self.send(&response);
        true
    }

    fn serve(&mut self, script: &Script) {
        while let Some(command) = self.command() {
            match script(self, &command) {
                Did::Nothing => self.answer(&command),
                Did::Something => {}
                Did::End => return,
            }
        }
    }

    /// The next command; `None` when the host is gone.
    pub(crate) fn command(&mut self) -> Option<Command> {
        if let Some(command) = self.waiting.pop_front() {
            return Some(command);
        }
        loop {
            let pdu = self.read_pdu()?;
            match pdu.pdu_type() {
                CAPSULE_CMD => return Some(Self::capsule(pdu)),
                H2C_TERM_REQ => {}
                _ => panic!("unasked: {:02x?}", pdu.header),
            }
        }
    }

    fn capsule(pdu: Pdu) -> Command {
        let sqe: [u8; 64] = pdu.header[8..].try_into().expect("64 bytes");
        assert_eq!(sqe[1], 0x40, "PSDT 01b, not fused");
        let len = u32_at(&sqe, 32) as usize;
        match (sqe[39], pdu.data.len()) {
            (0x01, inside) => assert_eq!(inside, len, "in-capsule data and descriptor"),
            (0x5A, inside) => assert_eq!(inside, 0, "data that no descriptor tells of"),
            (other, inside) => assert_eq!((other, inside, len), (0, 0, 0), "no descriptor"),
        }
        Command {
            sqe,
            data: pdu.data,
        }
    }

    /// The next H2CData, and what came with it; commands that come before it wait.
    pub(crate) fn h2c_data(&mut self) -> Option<Pdu> {
        loop {
            let pdu = self.read_pdu()?;
            match pdu.pdu_type() {
                H2C_DATA => return Some(pdu),
                CAPSULE_CMD => self.waiting.push_back(Self::capsule(pdu)),
                _ => return None,
            }
        }
    }

    /// The data of a command, all of it, asked for by one R2T if it is not in the capsule.
    pub(crate) fn fetch(&mut self, command: &Command) -> Option<Vec<u8>> {
        if command.sqe[39] == 0x01 {
            return Some(command.data.clone());
        }
        let ttag = 0x4711;
        self.send(&self.framing.r2t(command.cid(), ttag, 0, command.length()));
        self.collect(command, ttag, 0, command.length())
    }

    /// What an R2T asked for, in the PDUs it is to come in.
    pub(crate) fn collect(
        &mut self,
        command: &Command,
        ttag: u16,
        offset: u32,
        len: u32,
    ) -> Option<Vec<u8>> {
        let most = self.shared.setup.maxh2cdata;
        let mut data = Vec::new();
        while (data.len() as u32) < len {
            let pdu = self.h2c_data()?;
            let left = len - data.len() as u32;
            assert_eq!((pdu.u16_at(8), pdu.u16_at(10)), (command.cid(), ttag));
            assert_eq!(pdu.u32_at(12), offset + data.len() as u32, "DATAO");
            // As few as can be (entry 35).
            assert_eq!(pdu.u32_at(16), left.min(most), "DATAL");
            assert_eq!(pdu.data.len() as u32, pdu.u32_at(16), "DATAL and PLEN");
            let last = pdu.header[1] & LAST != 0;
            assert_eq!(last, left <= most, "LAST_PDU");
            data.extend(pdu.data);
        }
        Some(data)
    }

    /// The command ends, with this in dwords 0 and 1.
    pub(crate) fn complete(&mut self, command: &Command, result: u64) {
        self.end(command, result, 0);
    }

    /// The command fails: status code type and status code, and DNR at bit 14.
    pub(crate) fn fail(&mut self, command: &Command, status: u16) {
        self.end(command, 0, status);
    }

    fn end(&mut self, command: &Command, result: u64, status: u16) {
        self.sqhd = self.sqhd.wrapping_add(1);
        let sqhd = if self.flow_control {
            self.sqhd % 128
        } else {
            0xFFFF
        };
        let cqe = pdu::cqe(command.cid(), result, sqhd, status);
        self.send(&self.framing.response(&cqe));
    }

    /// Data for a read, and its end.
    pub(crate) fn give(&mut self, command: &Command, data: &[u8]) {
        let mut data = data.to_vec();
        data.resize(data.len().min(command.length() as usize), 0);
        let step = self.shared.setup.c2h_data.min(data.len());
        let success = self.shared.setup.success && !self.flow_control;
        for at in (0..data.len()).step_by(step.max(1)) {
            let part = &data[at..data.len().min(at + step)];
            let last = at + step >= data.len();
            let flags = match (last, success) {
                (false, _) => 0,
                (true, false) => LAST,
                (true, true) => LAST | SUCCESS,
            };
            let pdu = self.framing.c2h_data(command.cid(), flags, at as u32, part);
            self.send(&pdu);
        }
        if !success {
            self.complete(command, 0);
        }
    }

    /// What is right.
    pub(crate) fn answer(&mut self, command: &Command) {
        match (self.qid, command.opcode()) {
            (_, 0x7F) => self.fabrics(command),
            (Some(0), _) => self.admin(command),
            (Some(_), _) => self.io(command),
            (None, _) => self.fail(command, 0x400C),
        }
    }

    fn fabrics(&mut self, command: &Command) {
        match command.sqe[4] {
            0x01 => {
                self.qid = Some(u16_at(&command.sqe, 42));
                self.flow_control = command.sqe[46] & 4 == 0;
                let name = command.data[256..512].split(|byte| *byte == 0);
                let name = name.into_iter().next().unwrap_or_default();
                self.subnqn = String::from_utf8_lossy(name).into_owned();
                self.complete(command, 1);
            }
            0x04 => {
                let value = match command.dword(11) {
                    // MQES 127, CQR, TO 7.5 s, CSS.NVM.
                    0x00 => 127 | 1 << 16 | 15 << 24 | 1 << 37,
                    0x08 => 0x0001_0400,
                    0x14 => self.cc.into(),
                    0x1C if self.cc >> 14 & 3 != 0 => 0b1001,
                    0x1C => u64::from(self.cc & 1),
                    _ => 0,
                };
                self.complete(command, value);
            }
            0x00 => {
                self.cc = command.dword(12);
                self.complete(command, 0);
            }
            _ => self.fail(command, 0x4001),
        }
    }

    fn admin(&mut self, command: &Command) {
        match command.opcode() {
            0x06 => {
                let data = match command.sqe[40] {
                    0 => self.identify_namespace(),
                    1 => self.identify_controller(),
                    2 if command.dword(1) == 0 => {
                        let mut list = vec![0; 4096];
                        list[0] = 1;
                        list
                    }
                    _ => vec![0; 4096],
                };
                self.give(command, &data);
            }
            0x09 if command.sqe[40] == 7 => self.complete(command, 0x0003_0003),
            0x09 | 0x18 => self.complete(command, 0),
            0x08 => self.complete(command, 1),
            0x02 => {
                let data = self.log(command);
                self.give(command, &data);
            }
            // Asynchronous Event Request: nothing happens.
            0x0C => {}
            _ => self.fail(command, 0x4001),
        }
    }

    fn log(&self, command: &Command) -> Vec<u8> {
        let records = &self.shared.setup.records;
        let mut log = vec![0; 1024];
        put(&mut log, 0, 7u64.to_le_bytes());
        put(&mut log, 8, (records.len() as u64).to_le_bytes());
        log.extend(records.iter().flatten());
        let from = u64_at(&command.sqe, 48) as usize;
        let mut part = log.get(from..).unwrap_or_default().to_vec();
        part.resize(command.length() as usize, 0);
        part
    }

    pub(crate) fn identify_controller(&self) -> Vec<u8> {
        let setup = &self.shared.setup;
        let mut data = vec![0; 4096];
        data[4..64].fill(b' ');
        put(&mut data, 4, *b"FAKE");
        put(&mut data, 24, *b"fake");
        data[77] = setup.mdts;
        put(&mut data, 78, 1u16.to_le_bytes());
        put(&mut data, 80, 0x0001_0400u32.to_le_bytes());
        data[111] = if self.subnqn.ends_with("discovery") {
            2
        } else {
            1
        };
        put(&mut data, 320, 10u16.to_le_bytes());
        (data[512], data[513]) = (0x66, 0x44);
        put(&mut data, 514, 128u16.to_le_bytes());
        put(&mut data, 516, 1u32.to_le_bytes());
        // Compare, Dataset Management, Write Zeroes, Verify.
        put(&mut data, 520, 0x008Du16.to_le_bytes());
        put(&mut data, 536, 0x0010_0001u32.to_le_bytes());
        data[768..768 + self.subnqn.len()].copy_from_slice(self.subnqn.as_bytes());
        put(&mut data, 1792, (4 + setup.inline_data / 16).to_le_bytes());
        put(&mut data, 1796, 1u32.to_le_bytes());
        data[1803] = 1;
        data
    }

    fn identify_namespace(&self) -> Vec<u8> {
        let mut data = vec![0; 4096];
        for at in [0, 8, 16] {
            put(&mut data, at, ((CAPACITY / BLOCK) as u64).to_le_bytes());
        }
        data[130] = 9;
        data
    }

    fn io(&mut self, command: &Command) {
        let shared = Arc::clone(&self.shared);
        let disk = || shared.disk.lock().expect("disk");
        let grown = |end: usize| {
            let mut disk = disk();
            if disk.len() < end {
                disk.resize(end, 0);
            }
            disk
        };
        match command.opcode() {
            0x01 => {
                let Some(data) = self.fetch(command) else {
                    return;
                };
                let range = command.range();
                grown(range.end)[range].copy_from_slice(&data);
                self.complete(command, 0);
            }
            0x02 => {
                let range = command.range();
                let data = grown(range.end)[range].to_vec();
                self.give(command, &data);
            }
            0x05 => {
                let Some(data) = self.fetch(command) else {
                    return;
                };
                let range = command.range();
                if grown(range.end)[range] == data {
                    self.complete(command, 0);
                } else {
                    self.fail(command, 0x0285);
                }
            }
            0x08 => {
                let range = command.range();
                grown(range.end)[range].fill(0);
                self.complete(command, 0);
            }
            0x09 => {
                if self.fetch(command).is_some() {
                    self.complete(command, 0);
                }
            }
            0x00 | 0x0C => self.complete(command, 0),
            _ => self.fail(command, 0x4001),
        }
    }
}
