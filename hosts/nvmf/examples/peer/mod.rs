//! A target in a process of its own, and hosts with as little behind them as can be.
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nvmf_core::host::queue::Connect;
use nvmf_core::host::{Identity, command};
use nvmf_core::wire::ids::{Cid, Cntlid, HostId, Nqn, Qid};
use nvmf_core::wire::pdu::{CapsuleCmd, CapsuleResp, IcReq};
use nvmf_core::wire::property::Property;
use nvmf_core::wire::sgl::Sgl;
use nvmf_core::wire::sqe::Sqe;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) const NQN: &str = "nqn.2014-08.org.example:peer";
/// Entries of an I/O queue.
pub(crate) const ENTRIES: u32 = 128;
/// Keep alive, in milliseconds: half of what Linux asks for.
pub(crate) const KATO_MS: u32 = 5000;
/// CC: EN, IOSQES 6, IOCQES 4.
const ENABLE: u64 = 0x0046_0001;

/// A target in a process of its own, which ends with this.
pub(crate) struct Target {
    process: Child,
    pub(crate) address: SocketAddr,
    /// From its start to its ready line.
    pub(crate) listening: Duration,
}

impl Target {
    pub(crate) fn start(program: &str, options: &[&str]) -> Outcome<Self> {
        let begin = Instant::now();
        let mut process = Command::new(program)
            .args(["target", "--listen", "127.0.0.1:0", "--nqn", NQN])
            .args(["--ram", "64M,bs=4096"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        let stdout = process.stdout.take().ok_or("no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let listening = begin.elapsed();
        let url = line.strip_prefix("ready nvme+tcp://").ok_or("not ready")?;
        let (address, _) = url.split_once('/').ok_or("no address")?;
        Ok(Self {
            process,
            address: address.parse()?,
            listening,
        })
    }

    pub(crate) fn resident_kib(&self) -> Outcome<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let word = line.and_then(|line| line.split_whitespace().next());
        Ok(word.ok_or("no VmRSS")?.parse()?)
    }

    /// Time of processors, user's and system's.
    pub(crate) fn processor(&self) -> Outcome<Duration> {
        let mut nanoseconds = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let schedstat = fs::read_to_string(task?.path().join("schedstat"))?;
            let ran = schedstat.split_whitespace().next();
            nanoseconds += ran.ok_or("no schedstat")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It holds nothing that it would have to save.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A host's end of a connection.
pub(crate) struct Peer {
    pub(crate) socket: TcpStream,
    cid: u16,
}

impl Peer {
    pub(crate) fn connect(address: SocketAddr) -> Outcome<Self> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        socket.write_all(IcReq::new().as_bytes())?;
        socket.read_exact(&mut [0; 128])?;
        Ok(Self { socket, cid: 0 })
    }

    /// Makes the connection a queue of a controller; which one.
    pub(crate) fn join(&mut self, qid: Qid, cntlid: Cntlid) -> Outcome<Cntlid> {
        let host = Identity {
            hostnqn: "nqn.2014-08.org.example:host".parse()?,
            hostid: HostId([7; 16]),
        };
        let connect = Connect {
            qid,
            entries: if qid.is_admin() { 32 } else { ENTRIES },
            kato_ms: if qid.is_admin() { KATO_MS } else { 0 },
            sq_flow_control: true,
        };
        let nqn: Nqn = NQN.parse()?;
        let data = Connect::data(&host, &nqn, cntlid);
        let request = connect.request();
        let response = self.command(request.sqe, data.as_bytes())?;
        Ok(connect.completed(&response.cqe)?.cntlid)
    }

    /// An admin queue with its controller enabled.
    pub(crate) fn associate(address: SocketAddr) -> Outcome<(Self, Cntlid)> {
        let mut admin = Self::connect(address)?;
        let cntlid = admin.join(Qid(0), Cntlid::DYNAMIC)?;
        admin.command(command::property_set(Property::Cc, ENABLE), &[])?;
        Ok((admin, cntlid))
    }

    /// A command's capsule. Data goes with it if `data` is not empty.
    pub(crate) fn capsule(&mut self, sqe: Sqe, sgl: Sgl, data: &[u8]) -> Outcome<Vec<u8>> {
        self.cid = self.cid.wrapping_add(1) & 0x7FFF;
        let mut sqe = sqe.with_sgl(sgl);
        sqe.cid = Cid(self.cid).0.into();
        let mut capsule = CapsuleCmd::new(sqe);
        if !data.is_empty() {
            capsule.common.pdo = CapsuleCmd::HLEN;
            capsule.common.plen = (u32::from(CapsuleCmd::HLEN) + u32::try_from(data.len())?).into();
        }
        Ok([capsule.as_bytes(), data].concat())
    }

    /// A command, and its success.
    pub(crate) fn command(&mut self, sqe: Sqe, data: &[u8]) -> Outcome<CapsuleResp> {
        let sgl = match u32::try_from(data.len())? {
            0 => Sgl::EMPTY,
            length => Sgl::InCapsule { offset: 0, length },
        };
        let capsule = self.capsule(sqe, sgl, data)?;
        self.socket.write_all(&capsule)?;
        let mut response = [0; size_of::<CapsuleResp>()];
        self.socket.read_exact(&mut response)?;
        let response =
            CapsuleResp::read_from_bytes(&response).map_err(|error| error.to_string())?;
        match response.cqe.status().is_success() {
            true => Ok(response),
            false => Err(response.cqe.to_string().into()),
        }
    }
}
