//! `nvmf target` as a process: its arguments, its ready line, its signals, its idleness.
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[allow(dead_code, reason = "other tests need the rest")]
mod common;

use common::Target;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

const PATIENCE: Duration = Duration::from_secs(20);

fn nvmf(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(args)
        .env_remove("RUST_LOG")
        .output()
        .expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_teaches() {
    let output = nvmf(&["target", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    let help = text(&output.stdout);
    for part in [
        "--listen",
        "--file <PATH[,size=SIZE]",
        "Examples:",
        "nvme connect -t tcp",
        "ready nvme+tcp://",
        "SIGTERM",
    ] {
        assert!(help.contains(part), "{part} is missing in:\n{help}");
    }
}

#[test]
fn without_a_command_it_shows_the_commands() {
    let output = nvmf(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("Serve namespaces over NVMe/TCP"));
}

#[test]
fn a_manual_page_and_completions_come_from_the_same_text() {
    let page = nvmf(&["man", "target"]);
    assert_eq!(page.status.code(), Some(0));
    let page = text(&page.stdout);
    assert!(page.contains(".TH nvmf-target 1"), "{page}");
    assert!(page.contains("\\-\\-so\\-priority"), "{page}");
    assert_eq!(nvmf(&["man", "no-such-command"]).status.code(), Some(2));

    let completions = nvmf(&["completions", "bash"]);
    assert_eq!(completions.status.code(), Some(0));
    assert!(text(&completions.stdout).contains("--so-priority"));
}

#[test]
fn arguments_that_make_no_sense_are_explained() {
    for (args, explanation) in [
        (&["--ram", "10"][..], "not a multiple of the block size"),
        (&["--listen", "localhost:4420"], "numeric address"),
        (&["--nqn", ""], "the NQN is empty"),
        (&["--file", "/x,size=many"], "size"),
        (&["--colour"], "unexpected argument"),
        (&["--quiet", "--verbose"], "cannot be used with"),
    ] {
        let output = nvmf(&[&["target"], args].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(explanation), "{args:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn what_cannot_be_done_is_explained() {
    for (args, explanation) in [
        (&["--file", "/no/such/directory/disk"][..], "size="),
        (&["--queue-depth", "1"], "it must be 2 to 65536"),
        (&["--inline-data", "100"], "a multiple of 16"),
        (&["--serial", "123456789012345678901"], "1 to 20 printable"),
        (&["--listen", "192.0.2.1:0"], "no interface of this machine"),
    ] {
        let output = nvmf(&[&["target", "--listen", "127.0.0.1:0"], args].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(error.contains(explanation), "{args:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_address_in_use_is_called_that() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let output = nvmf(&["target", "--listen", &address.to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr).lines().last(),
        Some(&*format!(
            "nvmf: address in use: another process listens on {address}; \
             choose another with --listen, or stop it"
        ))
    );
}

#[test]
fn rdma_takes_libraries_and_a_device() {
    let rdma = [
        "target",
        "--transport",
        "rdma",
        "--listen",
        "127.0.0.1:4420",
    ];
    // A file of that name which is no library stands for none.
    let directory = tempfile::tempdir().expect("a directory");
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::write(directory.path().join(library), "none").expect("a file");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(rdma)
        .env("LD_LIBRARY_PATH", directory.path())
        .output()
        .expect("the binary runs");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let said = error.lines().last().expect("an error");
    assert!(
        said.starts_with("nvmf: RDMA needs libibverbs and librdmacm, which cannot be loaded"),
        "{error}"
    );
    assert!(
        said.contains("install ibverbs-providers and librdmacm1"),
        "{error}"
    );

    let output = nvmf(&[
        "target",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "rdma:127.0.0.1:0",
    ]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("the port of an RDMA address is 0; it must be 1 to 65535"),
        "{error}"
    );
}
#[test]
fn the_ready_line_names_the_first_listener_and_all_of_them_serve() {
    let target = Target::start(&[
        "--listen",
        "[::1]:0",
        "--nqn",
        "nqn.2014-08.org.example:two",
    ]);
    assert_eq!(target.nqn, "nqn.2014-08.org.example:two");
    wait_for(&target, "listening on nvme+tcp://[::1]:");
    let log = target.log();
    let second = log
        .lines()
        .filter_map(|line| line.split_once("listening on nvme+tcp://"))
        .filter_map(|(_, url)| url.split_once('/')?.0.parse::<SocketAddr>().ok())
        .find(SocketAddr::is_ipv6)
        .unwrap_or_else(|| panic!("no IPv6 listener in:\n{log}"));
    for address in [target.addr, second] {
        Queue::admin(address, &target.nqn);
    }
}

#[test]
fn a_signal_ends_it_with_success() {
    let target = Target::start(&[]);
    let admin = Queue::admin(target.addr, &target.nqn);
    assert!(target.stop(PATIENCE), "{}", target.log());
    admin.expect_end();
    assert!(TcpStream::connect(target.addr).is_err());
    wait_for(
        &target,
        "hostnqn=nqn.2014-08.org.example:host reason=the target stops",
    );
}

#[test]
fn what_is_under_way_is_finished_before_it_ends() {
    let target = Target::start(&[]);
    let mut admin = Queue::admin(target.addr, &target.nqn);
    admin.enable();
    let mut io = Queue::connect(target.addr, &target.nqn, 1, admin.cntlid);
    io.begin(WRITE, 4096);
    let tags = io.r2t();

    let stopping = thread::scope(|scope| {
        let stopping = scope.spawn(|| target.stop(PATIENCE));
        wait_for(&target, "stopping: finishing what is under way");
        // Long enough to end without it, if that is what it does.
        thread::sleep(Duration::from_millis(300));
        io.send_data(tags, 4096);
        io.response();
        stopping.join().unwrap()
    });
    io.expect_end();
    admin.expect_end();
    assert!(stopping, "{}", target.log());
}

/// Nobody has to read what it prints.
#[test]
fn it_serves_and_stops_when_nobody_reads_its_log() {
    struct Killed(Child);
    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let target = Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(["target", "--listen", "127.0.0.1:0", "--nqn", "nqn.unread"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut target = Killed(target.expect("the binary starts"));
    drop(target.0.stderr.take());
    let mut ready = String::new();
    let stdout = target.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut ready).unwrap();
    let address = ready
        .strip_prefix("ready nvme+tcp://")
        .and_then(|url| url.split_once('/')?.0.parse().ok())
        .unwrap_or_else(|| panic!("not a ready line: {ready}"));
    for _ in 0..3 {
        Queue::admin(address, "nqn.unread").enable();
    }
    let pid = i32::try_from(target.0.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a pid"), Signal::TERM).expect("it runs");
    assert!(target.0.wait().expect("it ends").success());
}

#[test]
fn idle_connections_cost_no_time() {
    let target = Target::start(&[]);
    let mut queues = Vec::new();
    for _ in 0..25 {
        let mut admin = Queue::admin(target.addr, &target.nqn);
        admin.enable();
        queues.push(Queue::connect(target.addr, &target.nqn, 1, admin.cntlid));
        queues.push(admin);
    }
    let before = target.cpu_ticks();
    thread::sleep(Duration::from_secs(2));
    let ticks = target.cpu_ticks() - before;
    assert!(ticks <= 1, "{ticks} ticks of 10 ms for 50 idle connections");
    for queue in &mut queues {
        queue.property_get(0x1C);
    }
}

#[test]
fn io_queues_are_spread_over_workers_whoever_has_them() {
    let target = Target::start(&["-v", "--workers", "3"]);
    let mut queues = Vec::new();
    for _ in 0..9 {
        let mut admin = Queue::admin(target.addr, &target.nqn);
        admin.enable();
        let mut io = Queue::connect(target.addr, &target.nqn, 1, admin.cntlid);
        // It works where it is now.
        io.write(4096);
        queues.extend([admin, io]);
    }
    wait_for(&target, "an I/O queue has its place cntlid=9");
    let log = target.log();
    for worker in 0..3 {
        let words = format!(" worker={worker}");
        assert_eq!(log.matches(&words).count(), 3, "worker {worker} in:\n{log}");
    }
}

/// Commands that wait, for the host to read or to write, hold little memory; and
/// no other host waits with them.
#[test]
fn hosts_that_neither_read_nor_write_make_nothing_grow() {
    const MIB: u32 = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let disk = format!("{},size=64M", directory.path().join("disk").display());
    let target = Target::start(&["--file", &disk]);
    let io_queue = || {
        let mut admin = Queue::admin(target.addr, &target.nqn);
        admin.enable();
        let io = Queue::connect(target.addr, &target.nqn, 1, admin.cntlid);
        (admin, io)
    };
    let (_admin, mut deaf) = io_queue();
    let (_admin, mut mute) = io_queue();
    let before = target.rss_kib();
    for _ in 0..31 {
        deaf.begin(READ, MIB);
        mute.begin(WRITE, MIB);
    }
    let first = mute.r2t();
    thread::sleep(Duration::from_millis(500));
    let grown = target.rss_kib().saturating_sub(before) / 1024;
    assert!(
        grown <= 16,
        "{grown} MiB for 62 commands of 1 MiB that wait"
    );

    let (_admin, mut other) = io_queue();
    other.write(MIB);

    // They all go on as soon as their hosts do.
    mute.send_data(first, MIB);
    for _ in 1..31 {
        let tags = mute.r2t();
        mute.send_data(tags, MIB);
    }
    let mut responses = 0;
    while responses < 31 {
        responses += u32::from(deaf.pdu()[0] == 5);
    }
}

#[test]
fn when_files_run_out_it_waits_for_some() {
    let target = Target::start(&[]);
    let pid = i32::try_from(target.pid).ok().and_then(Pid::from_raw);
    let most = u64::try_from(target.open_files() + 8).ok();
    let limit = Rlimit {
        current: most,
        maximum: most,
    };
    prlimit(pid, Resource::Nofile, limit).expect("a limit may be lowered");
    let mut held: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(target.addr).expect("the backlog has room"))
        .collect();
    wait_for(&target, "cannot accept connections");
    let before = target.cpu_ticks();
    thread::sleep(Duration::from_secs(1));
    let ticks = target.cpu_ticks() - before;
    assert!(ticks <= 3, "{ticks} ticks of 10 ms while it waits");
    assert_eq!(target.log().matches("cannot accept connections").count(), 1);
    held.clear();
    Queue::admin(target.addr, &target.nqn);
}

/// Waits until the target logs `words`.
fn wait_for(target: &Target, words: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !target.log().contains(words) {
        assert!(
            Instant::now() < deadline,
            "no {words} in:\n{}",
            target.log()
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// A queue of a host that does as little as will do.
struct Queue {
    stream: TcpStream,
    cntlid: u16,
    cid: u16,
}

const WRITE: u8 = 0x01;
const READ: u8 = 0x02;

impl Queue {
    fn admin(target: SocketAddr, nqn: &str) -> Self {
        Self::connect(target, nqn, 0, 0xFFFF)
    }

    /// ICReq, then Connect.
    fn connect(target: SocketAddr, nqn: &str, qid: u16, cntlid: u16) -> Self {
        let mut stream = TcpStream::connect(target).expect("the target listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut ic_req = [0; 128];
        (ic_req[2], ic_req[4]) = (128, 128);
        stream.write_all(&ic_req).unwrap();
        let mut ic_resp = [0; 128];
        stream.read_exact(&mut ic_resp).unwrap();
        assert_eq!(ic_resp[0], 1, "an ICResp");

        let mut queue = Self {
            stream,
            cntlid,
            cid: 0,
        };
        let mut data = [0; 1024];
        data[..16].fill(0x11);
        data[16..18].copy_from_slice(&cntlid.to_le_bytes());
        data[256..][..nqn.len()].copy_from_slice(nqn.as_bytes());
        let host = b"nqn.2014-08.org.example:host";
        data[512..][..host.len()].copy_from_slice(host);
        let mut sqe = Self::fabrics(0x01);
        sqe[32..36].copy_from_slice(&1024u32.to_le_bytes());
        sqe[39] = 0x01;
        sqe[42..44].copy_from_slice(&qid.to_le_bytes());
        sqe[44] = 31;
        queue.send(&sqe, &data);
        queue.cntlid = queue.response() as u16;
        queue
    }

    /// Property Set CC: EN, IOSQES 6, IOCQES 4.
    fn enable(&mut self) {
        let mut sqe = Self::fabrics(0x00);
        sqe[44] = 0x14;
        sqe[48..52].copy_from_slice(&0x0046_0001u32.to_le_bytes());
        self.send(&sqe, &[]);
        self.response();
        assert_eq!(self.property_get(0x1C) & 1, 1, "CSTS.RDY");
    }

    /// On an I/O queue this is refused, which is a sign of life as well.
    fn property_get(&mut self, offset: u8) -> u64 {
        let mut sqe = Self::fabrics(0x04);
        sqe[44] = offset;
        self.send(&sqe, &[]);
        self.pdu()[8..16]
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// A command of `len` bytes from the first block on.
    fn begin(&mut self, opcode: u8, len: u32) {
        let mut sqe = [0; 64];
        (sqe[0], sqe[1], sqe[4]) = (opcode, 0x40, 1);
        self.cid += 1;
        sqe[2..4].copy_from_slice(&self.cid.to_le_bytes());
        sqe[32..36].copy_from_slice(&len.to_le_bytes());
        sqe[39] = 0x5A;
        sqe[48..52].copy_from_slice(&(len / 512 - 1).to_le_bytes());
        self.send(&sqe, &[]);
    }

    /// The CCCID and TTAG of the next R2T.
    fn r2t(&mut self) -> [u8; 4] {
        loop {
            let pdu = self.pdu();
            if pdu[0] == 9 {
                return pdu[8..12].try_into().unwrap();
            }
            assert_eq!((pdu[0], &pdu[22..24]), (5, &[0, 0][..]), "success");
        }
    }

    /// The data that an R2T asked for.
    fn send_data(&mut self, tags: [u8; 4], len: u32) {
        let mut header = [0; 24];
        (header[0], header[1], header[2], header[3]) = (6, 4, 24, 24);
        header[4..8].copy_from_slice(&(24 + len).to_le_bytes());
        header[8..12].copy_from_slice(&tags);
        header[16..20].copy_from_slice(&len.to_le_bytes());
        self.stream.write_all(&header).unwrap();
        self.stream.write_all(&vec![0xA5; len as usize]).unwrap();
    }

    /// A whole write.
    fn write(&mut self, len: u32) {
        self.begin(WRITE, len);
        let tags = self.r2t();
        self.send_data(tags, len);
        self.response();
    }

    /// Nothing more comes but the end of the stream.
    fn expect_end(&self) {
        let mut byte = [0];
        match (&self.stream).read(&mut byte) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("not the end of the stream: {other:?}"),
        }
    }

    fn fabrics(fctype: u8) -> [u8; 64] {
        let mut sqe = [0; 64];
        (sqe[0], sqe[1], sqe[4]) = (0x7F, 0x40, fctype);
        sqe
    }

    /// A CapsuleCmd.
    fn send(&mut self, sqe: &[u8; 64], data: &[u8]) {
        let mut header = [4, 0, 72, 0, 0, 0, 0, 0];
        header[3] = if data.is_empty() { 0 } else { 72 };
        let plen = u32::try_from(72 + data.len()).unwrap();
        header[4..8].copy_from_slice(&plen.to_le_bytes());
        self.stream
            .write_all(&[&header[..], sqe, data].concat())
            .unwrap();
    }

    /// The result of a CapsuleResp of success.
    fn response(&mut self) -> u64 {
        let response = self.pdu();
        assert_eq!(response[0], 5, "a CapsuleResp");
        assert_eq!(response[22..24], [0, 0], "success");
        u64::from_le_bytes(response[8..16].try_into().unwrap())
    }

    fn pdu(&mut self) -> Vec<u8> {
        let mut pdu = vec![0; 8];
        self.stream.read_exact(&mut pdu).unwrap();
        let plen = u32::from_le_bytes(pdu[4..8].try_into().unwrap());
        pdu.resize(plen as usize, 0);
        self.stream.read_exact(&mut pdu[8..]).unwrap();
        pdu
    }
}
