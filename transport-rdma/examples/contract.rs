//! What `Verbs` and `Cm` promise, tried on a real device: both ends in one
//! process, `cargo run -p nvmf-rdma --features ibv --example contract -- ADDRESS`
//! with an address of the device's own.
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant as Clock};

use nvmf_core::time::Instant;
use nvmf_rdma::cm::{Cm, Event, PrivateData, Rejecter, Setup, Terms};
use nvmf_rdma::ibv::{self, Buffer, Device, IbvCm, IbvVerbs, Memory, Qp, Region};
use nvmf_rdma::verbs::{
    Access, Bytes, Chain, Completion, Direction, Ended, Key, Move, Outcome, Receiver, Remote, Send,
    Verbs,
};

const TIMEOUT: Duration = Duration::from_secs(20);
const RECEIVE: u32 = 64 + 8192;
const DATA: u32 = 16384;
const SHARED: u32 = 64;
const TARGET: u32 = 1;
const HOST: u32 = 2;

/// One end: a worker's share of the device, memory, and what has come so far.
struct End {
    verbs: IbvVerbs,
    cm: IbvCm,
    receives: Region,
    data: Region,
    windowed: Region,
}

impl End {
    fn new(device: Device, shared_receives: u32) -> Self {
        let config = ibv::Config {
            shared_receives,
            completions: 256,
            completion_vector: 0,
        };
        let (mut verbs, cm) = ibv::open(device, &config).expect("a share of the device");
        let mut region = |access| {
            let memory = Memory::new(64 * DATA as usize).expect("memory");
            let region = verbs.register(memory, access);
            region.map_err(|(_, error)| error).expect("registered")
        };
        let (receives, data) = (region(Access::LOCAL), region(Access::SHARED));
        let windowed = region(Access::WINDOWED);
        Self {
            verbs,
            cm,
            receives,
            data,
            windowed,
        }
    }

    fn buffer(&mut self, fill: impl Fn(usize) -> u8) -> Buffer {
        self.buffer_for(Key::Region, fill)
    }

    /// To be lent by `key`.
    fn buffer_for(&mut self, key: Key, fill: impl Fn(usize) -> u8) -> Buffer {
        let region = match key {
            Key::Region => &mut self.data,
            Key::Window => &mut self.windowed,
        };
        let buffer = self.verbs.carve(region, DATA);
        let mut buffer = buffer.expect("room in the region");
        let bytes: Vec<u8> = (0..buffer.len()).map(fill).collect();
        buffer.copy_in(0, &bytes);
        buffer
    }

    fn post_receive(&mut self, to: Receiver<Qp>, id: u64) {
        let buffer = self.verbs.carve(&mut self.receives, RECEIVE);
        let posted = self.verbs.post_receive(to, id, buffer.expect("room"));
        posted.map_err(|(_, error)| error).expect("posted");
    }

    fn post(&mut self, qp: Qp, chain: Chain<Buffer>) {
        let posted = self.verbs.post(qp, chain);
        posted.map_err(|(_, error)| error).expect("posted");
    }

    fn event(&mut self, what: &str) -> Event<ibv::Request, Qp> {
        wait(what, || self.cm.poll(Instant::ZERO))
    }

    fn completion(&mut self, what: &str) -> Completion<Buffer> {
        wait(what, || self.verbs.poll(Instant::ZERO))
    }
}

fn wait<T>(what: &str, mut next: impl FnMut() -> Option<T>) -> T {
    let begun = Clock::now();
    loop {
        if let Some(next) = next() {
            return next;
        }
        assert!(begun.elapsed() < TIMEOUT, "{what} did not come");
        std::thread::yield_now();
    }
}

/// Also of a buffer that peers may reach.
fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_out(0, &mut bytes);
    bytes
}

fn setup(tag: u32, receives: u32) -> Setup {
    Setup {
        tag,
        sends: 16,
        receives,
    }
}

fn terms(private_data: &[u8]) -> Terms {
    Terms {
        initiator_depth: 4,
        responder_resources: 4,
        private_data: PrivateData::new(private_data),
    }
}

fn send(id: u64, head: &[u8]) -> Chain<Buffer> {
    Chain {
        id,
        signalled: true,
        buffer: None,
        first: None,
        send: Some(Send::new(head)),
    }
}

fn chain(id: u64, buffer: Buffer, direction: Direction, remote: Remote, len: u32) -> Chain<Buffer> {
    Chain {
        id,
        signalled: true,
        buffer: Some(buffer),
        first: Some(Move {
            direction,
            remote,
            offset: 0,
            len,
        }),
        send: None,
    }
}

/// The host's request at the target. Only a host that polls gets as far as that.
fn request(target: &mut End, host: &mut End) -> Event<ibv::Request, Qp> {
    wait("the request", || {
        assert!(
            host.cm.poll(Instant::ZERO).is_none(),
            "nothing was answered"
        );
        target.cm.poll(Instant::ZERO)
    })
}

/// Connects the two ends, the host with receives of its own.
fn connect(target: &mut End, host: &mut End, address: SocketAddr) -> (Qp, Qp) {
    let at_host = host
        .cm
        .connect(&mut host.verbs, address, setup(HOST, 4), terms(b"request"));
    let at_host = at_host.expect("an attempt");
    let Event::Request {
        request,
        terms: asked,
    } = request(target, host)
    else {
        panic!("no request");
    };
    assert_eq!(&asked.private_data.bytes()[..7], b"request");
    assert_eq!((asked.initiator_depth, asked.responder_resources), (4, 4));
    let at_target = target
        .cm
        .prepare(&mut target.verbs, request, setup(TARGET, 0));
    let at_target = at_target.map_err(|(_, error)| error).expect("prepared");
    let accepted = target
        .cm
        .accept(&mut target.verbs, at_target, terms(b"reply"));
    accepted.expect("accepted");
    let Event::Established { qp, terms: replied } = host.event("the reply") else {
        panic!("not established");
    };
    assert_eq!(
        (qp, &replied.private_data.bytes()[..5]),
        (at_host, &b"reply"[..])
    );
    let Event::Established { qp, .. } = target.event("the connection") else {
        panic!("not established");
    };
    assert_eq!(qp, at_target);
    (at_target, at_host)
}

/// Ends the connection, which is answered when the target says so; counts the receives that
/// come back, and forgets it.
fn disconnect(target: &mut End, host: &mut End, (at_target, at_host): (Qp, Qp), receives: usize) {
    host.cm.disconnect(&mut host.verbs, at_host);
    assert!(matches!(host.event("the end"), Event::Disconnected { qp } if qp == at_host));
    assert!(matches!(target.event("the end"), Event::Disconnected { qp } if qp == at_target));
    let mut flushed = 0;
    while let Some(completion) = host.verbs.poll(Instant::ZERO) {
        assert_eq!(
            (completion.tag, completion.outcome),
            (HOST, Outcome::Flushed)
        );
        assert!(completion.buffer.is_some());
        flushed += 1;
    }
    assert_eq!(flushed, receives, "receives come back");
    assert!(
        target.verbs.poll(Instant::ZERO).is_none(),
        "shared receives stay"
    );
    assert!(host.cm.poll(Instant::ZERO).is_none());
    assert!(!host.cm.has_peer_ended(at_host), "nobody answered yet");
    target.cm.disconnect(&mut target.verbs, at_target);
    wait("the answer", || {
        assert!(host.cm.poll(Instant::ZERO).is_none());
        host.cm.has_peer_ended(at_host).then_some(())
    });
    host.cm.destroy(&mut host.verbs, at_host);
    target.cm.destroy(&mut target.verbs, at_target);
}

fn rejected_and_unreachable(target: &mut End, host: &mut End, address: SocketAddr) {
    let qp = host
        .cm
        .connect(&mut host.verbs, address, setup(HOST, 4), terms(b"no"));
    let qp = qp.expect("an attempt");
    let Event::Request { request, .. } = request(target, host) else {
        panic!("no request");
    };
    target.cm.reject(request, PrivateData::new(b"because"));
    match host.event("the rejection") {
        Event::Rejected {
            qp: of,
            by,
            private_data,
        } => {
            assert_eq!((of, by), (qp, Rejecter::Peer));
            assert_eq!(&private_data.bytes()[..7], b"because");
        }
        event => panic!("{event:?}"),
    }
    assert!(host.verbs.poll(Instant::ZERO).is_none());
    host.cm.destroy(&mut host.verbs, qp);

    let nobody = SocketAddr::new(address.ip(), address.port() + 1);
    let qp = host
        .cm
        .connect(&mut host.verbs, nobody, setup(HOST, 4), terms(b""));
    let qp = qp.expect("an attempt");
    match host.event("that nobody listens") {
        Event::Rejected { qp: of, by, .. } => {
            assert_eq!((of, by), (qp, Rejecter::NobodyListens));
        }
        event => panic!("{event:?}"),
    }
    host.cm.destroy(&mut host.verbs, qp);
    println!("PASS a request is rejected with private data; nobody listens");
}

fn capsules(target: &mut End, host: &mut End, (at_target, at_host): (Qp, Qp)) {
    target.verbs.arm().expect("armed");
    assert!(target.verbs.poll(Instant::ZERO).is_none());
    assert!(
        !target.verbs.with_fd(|fd| readable(fd, 100)),
        "nothing came yet"
    );
    host.post(at_host, send(7, &[0xa5; 64]));
    assert!(
        target.verbs.with_fd(|fd| readable(fd, 5000)),
        "the worker is woken"
    );
    let arrived = target.completion("a capsule");
    assert!(matches!(
        arrived.ended,
        Ended::Receive {
            len: 64,
            invalidated: None
        }
    ));
    assert_eq!((arrived.tag, arrived.outcome), (TARGET, Outcome::Success));
    assert_eq!(
        arrived.buffer.expect("its buffer").as_ref()[..64],
        [0xa5; 64]
    );
    let sent = host.completion("that it was sent");
    assert_eq!((sent.tag, sent.id, sent.ended), (HOST, 7, Ended::Chain));

    let data = host.buffer(|at| at as u8);
    let mut capsule = send(8, &[0x5a; 64]);
    capsule.buffer = Some(data);
    capsule.send.as_mut().expect("it sends").data = 8192;
    host.post(at_host, capsule);
    let arrived = target.completion("a capsule with data");
    assert!(matches!(arrived.ended, Ended::Receive { len: RECEIVE, .. }));
    let buffer = arrived.buffer.expect("its buffer");
    assert_eq!(buffer.as_ref()[..64], [0x5a; 64]);
    assert!(
        buffer.as_ref()[64..]
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == at as u8)
    );
    assert!(host.completion("that it was sent").buffer.is_some());

    // Unsignalled, and more of them than the queue has room for at a time.
    for id in 0..40_u64 {
        host.post_receive(Receiver::Of(at_host), id);
        let mut quiet = send(id, &id.to_le_bytes());
        quiet.signalled = false;
        wait("room", || {
            let quiet = Chain {
                buffer: None,
                ..send_like(&quiet)
            };
            assert!(target.verbs.poll(Instant::ZERO).is_none());
            target.verbs.post(at_target, quiet).ok()
        });
        let arrived = host.completion("a response");
        assert!(matches!(arrived.ended, Ended::Receive { len: 8, .. }));
        assert_eq!(
            arrived.buffer.expect("its buffer").as_ref()[..8],
            id.to_le_bytes()
        );
    }
    println!("PASS capsules, with and without data, signalled or not; an armed queue wakes");
}

fn send_like(chain: &Chain<Buffer>) -> Chain<Buffer> {
    Chain {
        id: chain.id,
        signalled: chain.signalled,
        buffer: None,
        first: chain.first,
        send: chain.send,
    }
}

fn read_and_write(target: &mut End, host: &mut End, (at_target, at_host): (Qp, Qp), key: Key) {
    let lent = host.buffer_for(key, |at| (at / 3) as u8);
    let remote = host.verbs.lend(at_host, lent, DATA, Access::SHARED, key);
    let remote = remote.map_err(|(_, error)| error).expect("lent");
    let buffer = target.buffer(|_| 0);
    // What binds a window is ordered before the capsule that names it.
    host.post(at_host, send(1, &[1; 64]));
    assert!(target.completion("the capsule").buffer.is_some());
    assert_eq!(host.completion("that it was sent").id, 1);
    target.post(at_target, chain(20, buffer, Direction::Read, remote, DATA));
    let read = target.completion("READ");
    assert_eq!((read.id, read.outcome), (20, Outcome::Success));
    let mut buffer = read.buffer.expect("its buffer");
    assert!(
        bytes(&buffer)
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == (at / 3) as u8)
    );

    buffer.copy_in(0, &[0xee; DATA as usize]);
    host.post_receive(Receiver::Of(at_host), 9);
    let mut write = chain(21, buffer, Direction::Write, remote, DATA);
    let mut response = Send::new(&[2; 16]);
    response.invalidate = (key == Key::Window).then_some(remote.key);
    write.send = Some(response);
    target.post(at_target, write);
    let arrived = host.completion("the response");
    let Ended::Receive {
        len: 16,
        invalidated,
    } = arrived.ended
    else {
        panic!("{:?}", arrived.ended);
    };
    assert_eq!(invalidated, response.invalidate);
    let back = host
        .verbs
        .reclaim(at_host, remote, invalidated.is_some(), 0);
    let back = back.expect("reclaimed").expect("at once");
    assert!(
        bytes(&back).iter().all(|byte| *byte == 0xee),
        "WRITE comes before SEND"
    );
    let done = target.completion("WRITE and SEND");
    assert_eq!((done.id, done.outcome), (21, Outcome::Success));
    assert!(
        target.verbs.poll(Instant::ZERO).is_none(),
        "one completion for the chain"
    );
    println!("PASS READ; WRITE and SEND in a chain; key: {key:?}");
}

fn reclaimed_window(target: &mut End, host: &mut End, (at_target, at_host): (Qp, Qp)) {
    let lent = host.buffer_for(Key::Window, |_| 0);
    let remote = host
        .verbs
        .lend(at_host, lent, DATA, Access::SHARED, Key::Window);
    let remote = remote.map_err(|(_, error)| error).expect("lent");
    let back = host
        .verbs
        .reclaim(at_host, remote, false, 33)
        .expect("it ends");
    let back = back.or_else(|| {
        let reclaimed = host.completion("the end of the window");
        assert_eq!((reclaimed.id, reclaimed.ended), (33, Ended::Reclaim));
        reclaimed.buffer
    });
    let back = back.expect("its buffer");
    // rdma_rxe (Linux 6.12) does not even refuse a WRITE to a window that is gone, so
    // what is seen is that it has no effect, and that the chain comes back at the end.
    let buffer = target.buffer(|_| 1);
    target.post(at_target, chain(40, buffer, Direction::Write, remote, DATA));
    std::thread::sleep(Duration::from_millis(500));
    let refused = target.verbs.poll(Instant::ZERO);
    host.cm.disconnect(&mut host.verbs, at_host);
    let left = refused.is_none();
    assert!(matches!(host.event("the end"), Event::Disconnected { .. }));
    assert!(matches!(
        target.event("the end"),
        Event::Disconnected { .. }
    ));
    let ended = refused.or_else(|| target.verbs.poll(Instant::ZERO));
    let ended = ended.expect("the chain comes back");
    assert_eq!((ended.id, ended.buffer.is_some()), (40, true));
    assert!(!left || ended.outcome == Outcome::Flushed);
    assert!(left || ended.outcome == Outcome::RemoteAccess);
    assert!(bytes(&back).iter().all(|byte| *byte == 0));
    host.cm.destroy(&mut host.verbs, at_host);
    target.cm.destroy(&mut target.verbs, at_target);
    println!("PASS a window that was reclaimed is not to be reached");
}

/// The peer's memory is not to be reached so, and that ends the connection.
fn refused(target: &mut End, at_target: Qp, remote: Remote) {
    let buffer = target.buffer(|_| 1);
    target.post(at_target, chain(40, buffer, Direction::Write, remote, DATA));
    target.post(at_target, send(41, &[0; 16]));
    let failed = target.completion("that the key is no more");
    assert_eq!((failed.id, failed.outcome), (40, Outcome::RemoteAccess));
    assert!(failed.buffer.is_some());
    let flushed = target.completion("what follows");
    assert_eq!((flushed.id, flushed.outcome), (41, Outcome::Flushed));
}

/// Messages that break off, some of them in their midst: whatever receives they took, all are
/// there once the queue was made anew.
fn broken_messages(device: Device, host: &mut End, mut address: SocketAddr) {
    const AT_A_TIME: u32 = 12;
    const ROUNDS: u32 = 2000;
    let target = &mut End::new(device, SHARED);
    address.set_port(address.port() + 2);
    target.cm.listen(address).expect("listening");
    for id in 0..SHARED.into() {
        target.post_receive(Receiver::Shared, id);
    }
    let (mut sent, mut whole, mut missed) = (0, 0, 0);
    let mut data: Vec<Buffer> = (0..AT_A_TIME).map(|_| host.buffer(|at| at as u8)).collect();
    for round in 0..ROUNDS {
        let (at_target, at_host) = connect(target, host, address);
        for buffer in data.drain(..) {
            let mut capsule = send(8, &[0x5a; 64]);
            capsule.buffer = Some(buffer);
            capsule.send.as_mut().expect("it sends").data = 8192;
            host.post(at_host, capsule);
        }
        sent += AT_A_TIME;
        for _ in 0..round % 4 {
            std::thread::yield_now();
        }
        target.cm.stop(&mut target.verbs, at_target);
        target.cm.disconnect(&mut target.verbs, at_target);
        assert!(matches!(host.event("the end"), Event::Disconnected { .. }));
        while let Some(ended) = host.verbs.poll(Instant::ZERO) {
            data.extend(ended.buffer);
        }
        while let Some(ended) = target.verbs.poll(Instant::ZERO) {
            whole += u32::from(ended.outcome == Outcome::Success);
            let buffer = ended.buffer.expect("a receive");
            let posted = target.verbs.post_receive(Receiver::Shared, 0, buffer);
            posted.map_err(|(_, error)| error).expect("posted again");
        }
        host.cm.destroy(&mut host.verbs, at_host);
        target.cm.destroy(&mut target.verbs, at_target);
        missed = target.verbs.lost_receives();
        if missed > 0 {
            break;
        }
    }
    println!("{whole} of {sent} messages came whole; {missed} receives are missed");
    assert!(whole < sent, "some broke off");
    target.verbs.renew_receives().expect("nobody uses them");
    let qps = connect(target, host, address);
    let mut received = Vec::new();
    for number in 0..SHARED {
        host.post(qps.1, send(9, &[0x77; 64]));
        let sent = host.completion("that it was sent");
        assert_eq!(sent.outcome, Outcome::Success, "message {number}");
        let arrived = target.completion("a message");
        assert_eq!(arrived.outcome, Outcome::Success, "message {number}");
        received.extend(arrived.buffer);
    }
    assert_eq!(target.verbs.lost_receives(), 0, "all came");
    host.post(qps.1, send(10, &[0x78; 64]));
    std::thread::sleep(Duration::from_millis(20));
    assert!(target.verbs.poll(Instant::ZERO).is_none(), "no receive");
    let buffer = received.pop().expect("it was received in");
    let posted = target.verbs.post_receive(Receiver::Shared, 0, buffer);
    posted.map_err(|(_, error)| error).expect("posted again");
    let begun = Clock::now();
    received.extend(target.completion("what was sent again").buffer);
    println!("a message came {:?} after its receive", begun.elapsed());
    host.completion("that it was sent");
    for buffer in received {
        let posted = target.verbs.post_receive(Receiver::Shared, 0, buffer);
        posted.map_err(|(_, error)| error).expect("posted again");
    }
    disconnect(target, host, qps, 0);
    // Not all devices lose any.
    let missed = if missed > 0 { "are missed, and " } else { "" };
    println!("PASS receives that broken messages took {missed}come back");
}

fn readable(fd: std::os::fd::BorrowedFd<'_>, milliseconds: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).expect("poll") > 0
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(Ok(address)) = arguments.next().map(|address| address.parse()) else {
        eprintln!("usage: contract ADDRESS:PORT [RECONNECTS], an address of an RDMA device's");
        return ExitCode::FAILURE;
    };
    let reconnects = arguments
        .next()
        .map_or(10, |count| count.parse().expect("a number"));
    let device = match Device::at(address) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("contract: {error}");
            return ExitCode::FAILURE;
        }
    };
    let towards = Device::towards(address, None).expect("the way to its own address");
    println!(
        "device {}, {} completion vectors",
        device.name(),
        device.completion_vectors()
    );
    let mut target = End::new(device.clone(), 64);
    let mut host = End::new(towards, 0);
    println!("limits {:?}", target.verbs.limits());
    target.cm.listen(address).expect("listening");
    for id in 0..32 {
        target.post_receive(Receiver::Shared, id);
    }
    rejected_and_unreachable(&mut target, &mut host, address);
    let qps = connect(&mut target, &mut host, address);
    capsules(&mut target, &mut host, qps);
    read_and_write(&mut target, &mut host, qps, Key::Region);
    if host.verbs.limits().windows {
        // The second time by a window that the peer invalidated.
        for _ in 0..2 {
            read_and_write(&mut target, &mut host, qps, Key::Window);
        }
    }
    let lent = host.buffer(|_| 0);
    let remote = host
        .verbs
        .lend(qps.1, lent, DATA, Access::SHARED, Key::Region);
    let remote = remote.map_err(|(_, error)| error).expect("lent");
    let wrong = Remote {
        key: remote.key ^ 0x5500,
        ..remote
    };
    refused(&mut target, qps.0, wrong);
    let back = host.verbs.reclaim(qps.1, remote, false, 0);
    assert!(back.expect("reclaimed").is_some());
    println!("PASS a key that is none is refused");
    disconnect(&mut target, &mut host, qps, 0);
    let mut qps = connect(&mut target, &mut host, address);
    if host.verbs.limits().windows {
        reclaimed_window(&mut target, &mut host, qps);
        qps = connect(&mut target, &mut host, address);
    } else {
        println!("SKIP memory windows: the device has none");
    }
    host.post_receive(Receiver::Of(qps.1), 50);
    disconnect(&mut target, &mut host, qps, 1);
    for _ in 0..reconnects {
        let qps = connect(&mut target, &mut host, address);
        disconnect(&mut target, &mut host, qps, 0);
    }
    println!("PASS {reconnects} times connected again");
    broken_messages(device, &mut host, address);
    ExitCode::SUCCESS
}
