//! A boot loader: the host on smoltcp's sockets, with a clock that is real.
use std::array;
use std::time::{Duration, Instant as Clock};

use nvmf_core::host::Identity;
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::ids::{HostId, Nsid};
use nvmf_tcp::smoltcp::host::{
    Completion, Destination, Error, Event, Failure, Host, Namespace, Options, Resources, Seat,
};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::TunTapInterface;
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use super::board::{leak, now, sleep};
use super::{BOARD, KERNEL};

const QUEUES: usize = 2;
const DEPTH: usize = 8;
/// Blocks that it moves by a command, and bytes of a buffer for them.
const NLB: u32 = 64;
const BUFFER: usize = 64 << 10;
/// However slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

type Disk = Host<'static, QUEUES, DEPTH>;

pub(crate) struct Loader {
    tap: TunTapInterface,
    interface: Interface,
    sockets: SocketSet<'static>,
    epoch: Clock,
    host: Disk,
    namespace: Option<Namespace>,
    free: Vec<&'static mut [u8]>,
    ready: bool,
    closed: Option<Result<(), Error>>,
    completed: Vec<Completion<'static>>,
    next_port: u16,
}

impl Loader {
    pub(crate) fn new(mut tap: TunTapInterface) -> Self {
        let config = Config::new(EthernetAddress([2, 0, 0, 0, 0, 2]).into());
        let mut interface = Interface::new(config, &mut tap, smoltcp::time::Instant::ZERO);
        let address: IpAddress = BOARD.parse().expect("an address");
        interface.update_ip_addrs(|all| all.push(IpCidr::new(address, 24)).expect("room"));
        let mut sockets = SocketSet::new(Vec::new());
        let host = host(&mut sockets, false, 49152);
        Self {
            tap,
            interface,
            sockets,
            epoch: Clock::now(),
            host,
            namespace: None,
            free: (0..QUEUES * DEPTH)
                .map(|_| vec![0; BUFFER].leak())
                .collect(),
            ready: false,
            closed: None,
            completed: Vec::new(),
            next_port: 49152,
        }
    }

    /// Connects anew.
    pub(crate) fn connect(
        &mut self,
        port: u16,
        nqn: &str,
        nsid: Option<Nsid>,
        digests: bool,
    ) -> Result<(), Error> {
        self.next_port += 100;
        self.host = host(&mut self.sockets, digests, self.next_port);
        (self.ready, self.closed) = (false, None);
        let begun = self.host.connect(destination(port, nqn, nsid));
        begun.expect("a host that is free");
        self.run(PATIENCE, |it| it.ready || it.closed.is_some());
        self.namespace = self.host.namespace().copied();
        self.closed.map_or(Ok(()), |outcome| outcome.map(drop))
    }

    /// Connects by a second host while the first one has its association.
    pub(crate) fn connect_another(
        &mut self,
        port: u16,
        nqn: &str,
        nsid: Nsid,
    ) -> Result<(), Error> {
        let first = self.next_port + 1000;
        let another = host(&mut self.sockets, false, first);
        let first = std::mem::replace(&mut self.host, another);
        let begun = self.host.connect(destination(port, nqn, Some(nsid)));
        begun.expect("a host that is free");
        (self.ready, self.closed) = (false, None);
        self.run(PATIENCE, |it| it.ready || it.closed.is_some());
        let outcome = self.closed.take().unwrap_or(Ok(()));
        self.host = first;
        outcome
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        self.namespace.as_ref().expect("it is connected")
    }

    pub(crate) fn disconnect(&mut self) {
        let now = now(self.epoch);
        self.host.disconnect(&mut self.sockets, now);
        self.run(PATIENCE, |it| it.closed.is_some());
        assert_eq!(self.closed, Some(Ok(())));
    }

    /// Does nothing for so long, or until the association is over.
    pub(crate) fn idle(&mut self, limit: Duration) -> Result<(), Error> {
        self.run_for(limit, |it| it.closed.is_some());
        self.closed.unwrap_or(Ok(()))
    }

    /// Reads a block; of a host that was lost, how it fails.
    pub(crate) fn read_one(&mut self) -> Result<(), Failure> {
        let buffer = self.free.pop().expect("a buffer");
        if let Err(rejected) = self.host.read(0, 1, buffer, 0) {
            self.free.extend(rejected.buffer);
            return Err(Failure::Lost);
        }
        self.run(PATIENCE, |it| !it.completed.is_empty());
        let completion = self.completed.remove(0);
        self.free.extend(completion.buffer);
        completion.result.map(drop)
    }

    /// Writes the whole namespace, as many commands at a time as fit, and flushes.
    pub(crate) fn write_all(&mut self, data: &[u8]) {
        let piece = (NLB * self.namespace().block_size) as usize;
        let mut pieces = (0u32..).zip(data.chunks(piece));
        let mut left = data.len() / piece;
        while left > 0 {
            while self.host.room() > 0
                && let Some((at, bytes)) = pieces.next()
            {
                let buffer = self.free.pop().expect("a buffer for each command");
                buffer[..piece].copy_from_slice(bytes);
                let slba = u64::from(at * NLB);
                let taken = self.host.write(slba, NLB, buffer, at);
                taken.expect("room");
            }
            self.run(PATIENCE, |it| !it.completed.is_empty());
            for completion in self.completed.split_off(0) {
                completion.result.expect("a write");
                self.free.extend(completion.buffer);
                left -= 1;
            }
        }
        self.host.flush(0).expect("room");
        self.run(PATIENCE, |it| !it.completed.is_empty());
        self.completed.remove(0).result.expect("a flush");
    }

    /// Reads so many bytes.
    pub(crate) fn read_all(&mut self, len: usize) -> Vec<u8> {
        let piece = (NLB * self.namespace().block_size) as usize;
        let mut data = vec![0; len];
        let (mut next, mut left) = (0, len / piece);
        while left > 0 {
            while self.host.room() > 0 && (next as usize) < len / piece {
                let buffer = self.free.pop().expect("a buffer for each command");
                let slba = u64::from(next * NLB);
                let taken = self.host.read(slba, NLB, buffer, next);
                taken.expect("room");
                next += 1;
            }
            self.run(PATIENCE, |it| !it.completed.is_empty());
            for completion in self.completed.split_off(0) {
                completion.result.expect("a read");
                let buffer = completion.buffer.expect("a buffer");
                let at = completion.tag as usize * piece;
                data[at..at + piece].copy_from_slice(&buffer[..piece]);
                self.free.push(buffer);
                left -= 1;
            }
        }
        data
    }

    fn run(&mut self, limit: Duration, done: impl FnMut(&mut Self) -> bool) {
        assert!(self.run_for(limit, done), "not in {limit:?}");
    }

    fn run_for(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let begin = Clock::now();
        loop {
            let now = now(self.epoch);
            let time = smoltcp::time::Instant::from_micros(now.as_micros() as i64);
            self.interface.poll(time, &mut self.tap, &mut self.sockets);
            let context = self.interface.context();
            while let Some(event) = self.host.poll(context, &mut self.sockets, now) {
                match event {
                    Event::Ready => self.ready = true,
                    Event::Completed(completion) => self.completed.push(completion),
                    Event::Async(_) => {}
                    Event::Closed(outcome) => self.closed = Some(outcome),
                }
            }
            if done(self) {
                return true;
            }
            if begin.elapsed() > limit {
                return false;
            }
            let network = self.interface.poll_at(time, &self.sockets);
            let network = network.map(|at| Instant::from_micros(at.total_micros().max(0) as u64));
            let deadline = sooner(network, self.host.poll_timeout());
            sleep(&self.tap, deadline, now, Duration::from_millis(100));
        }
    }
}

fn host(sockets: &mut SocketSet<'static>, digests: bool, first_port: u16) -> Disk {
    let mut options = Options::new(Identity {
        hostnqn: "nqn.2014-08.org.example:boot-loader"
            .parse()
            .expect("an NQN"),
        hostid: HostId([7; 16]),
    });
    options.transport.header_digest = digests;
    options.transport.data_digest = digests;
    options.keep_alive = Duration::from_secs(1);
    options.first_port = first_port;
    let resources = Resources {
        admin: leak(Seat::new()),
        queues: leak(array::from_fn(|_| Seat::new())),
        scratch: leak([0; 4096]),
    };
    let mut socket = || -> SocketHandle {
        let ring = || SocketBuffer::new(vec![0; 32 << 10]);
        sockets.add(Socket::new(ring(), ring()))
    };
    let (admin, queues) = (socket(), array::from_fn(|_| socket()));
    Host::new(options, resources, sockets, admin, queues)
}

fn destination(port: u16, nqn: &str, nsid: Option<Nsid>) -> Destination {
    let address: IpAddress = KERNEL.parse().expect("an address");
    Destination {
        address: (address, port).into(),
        subnqn: nqn.parse().expect("an NQN"),
        nsid,
    }
}
