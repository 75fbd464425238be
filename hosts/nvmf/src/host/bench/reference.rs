//! The limit: the bytes of the same commands over a bare TCP connection, without
//! anybody who understands them.
//!
//! | command | to the peer | and back |
//! |---|---|---|
//! | read | CapsuleCmd | C2HData with the payload; CapsuleResp, unless SUCCESS stands for it |
//! | write, in capsule | CapsuleCmd with the payload | CapsuleResp |
//! | write | CapsuleCmd; after R2T: H2CData with the payload | R2T; CapsuleResp |
//!
//! Each PDU has the length that it has in NVMe/TCP, digests included, and nothing in
//! it but its kind. Either end says all it has to say in one system call, of at most
//! [`BATCH`] bytes, takes what has come in one, and polls or sleeps as the job does.
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nvmf_tcp::std::gather::Gather;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};

use super::live::{Counter, Live};
use super::tally::{Tally, Usage};
use super::threads::{Cores, keep_to, together};
use super::workload::{Direction, Job, Limit, Walk, xorshift};

/// Bytes of one system call. More of them at a time are slower: they no longer
/// fit into the cache on their way.
pub(crate) const BATCH: usize = 768 * 1024;

/// Pieces of one system call.
const PIECES: usize = 512;

/// Bytes that one receive takes.
const SCRATCH: usize = 256 * 1024;

/// PDUs without payload that go out as one piece.
const RUN: usize = 64;

/// Bytes of payloads that an end holds to send them again and again, if that is not less
/// than one.
const HOT: usize = 16 << 20;

/// How long to wait for the peer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What PDUs look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Payload of a command, in bytes.
    pub(crate) payload: usize,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    /// A write's payload is in its capsule.
    pub(crate) in_capsule: bool,
    /// C2HData is a read's completion too.
    pub(crate) success: bool,
}

/// Where the peer has payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// As many as there are commands under way, one after the other; what comes is left
    /// where it was received. All of that stays in the cache.
    Hot,
    /// At random places in so many bytes; what comes is copied there.
    Places(usize),
}

impl Memory {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Places(_) => "same",
        }
    }
}

/// The first byte of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    WriteInCapsule,
    H2cData,
    /// No more commands for now.
    End,
    C2hData,
    RespOfRead,
    RespOfWrite,
    R2t,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Read,
        Self::Write,
        Self::WriteInCapsule,
        Self::H2cData,
        Self::End,
        Self::C2hData,
        Self::RespOfRead,
        Self::RespOfWrite,
        Self::R2t,
    ];

    /// Bytes without digest and payload.
    fn head(self) -> usize {
        match self {
            Self::Read | Self::Write | Self::WriteInCapsule | Self::End => 72,
            Self::H2cData | Self::C2hData | Self::RespOfRead | Self::RespOfWrite | Self::R2t => 24,
        }
    }

    fn has_payload(self) -> bool {
        matches!(self, Self::WriteInCapsule | Self::H2cData | Self::C2hData)
    }
}

impl Shape {
    fn head(&self, kind: Kind) -> usize {
        kind.head() + if self.header_digest { 4 } else { 0 }
    }

    /// Payload and digest.
    fn payload(&self) -> usize {
        self.payload + if self.data_digest { 4 } else { 0 }
    }

    fn len(&self, kind: Kind) -> usize {
        self.head(kind)
            + if kind.has_payload() {
                self.payload()
            } else {
                0
            }
    }
}

/// Connections, and who answers on them.
pub(crate) struct Bare {
    askers: Vec<Asker>,
    /// By thread.
    answerers: Vec<Vec<Answerer>>,
    /// How long those poll before they sleep.
    spin: Duration,
    pub(crate) memory: Memory,
}

impl Bare {
    /// `count` connections, which as many threads answer as there are workers. `memory` is
    /// that of who answers, of all connections together.
    ///
    /// # Errors
    /// Those of sockets.
    pub(crate) fn new(
        shape: &Shape,
        job: &Job,
        memory: Memory,
        count: u16,
        workers: usize,
        spin: Duration,
    ) -> anyhow::Result<Self> {
        let mut bare = Self {
            askers: Vec::new(),
            answerers: (0..workers).map(|_| Vec::new()).collect(),
            spin,
            memory,
        };
        let share = match memory {
            Memory::Hot => Memory::Hot,
            Memory::Places(bytes) => Memory::Places(bytes / usize::from(count).max(1)),
        };
        for index in 0..count {
            let (near, far) = pair().context("cannot connect to this process")?;
            bare.askers.push(Asker {
                link: Link::new(near, shape, job.iodepth, Memory::Hot)?,
                job: *job,
                walk: Walk::new(job, 1, index.into()),
                flying: [VecDeque::new(), VecDeque::new()],
            });
            bare.answerers[usize::from(index) % workers].push(Answerer {
                link: Link::new(far, shape, job.iodepth, share)?,
            });
        }
        Ok(bare)
    }

    /// All connections at the same time, until `limit`.
    ///
    /// # Errors
    /// A connection is lost.
    pub(crate) fn run(
        &mut self,
        limit: Limit<'_>,
        cores: &Cores,
        live: &Live,
    ) -> anyhow::Result<Tally> {
        let spin = self.spin;
        thread::scope(|scope| {
            for (index, answerers) in self.answerers.iter_mut().enumerate() {
                scope.spawn(move || {
                    keep_to(cores.target.get(index..=index).unwrap_or_default());
                    // Who asks notices that nobody answers.
                    if let Err(error) = Answerer::serve(answerers, spin) {
                        tracing::debug!("the reference: {error:#}");
                    }
                });
            }
            let askers = self.askers.iter_mut();
            let tallies = together(
                askers,
                &cores.host,
                live,
                "bare socket",
                |asker, counter| asker.run(limit, counter),
            )?;
            Ok(Tally::of_all(&tallies))
        })
    }
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (far, peer) = listener.accept()?;
        if peer == near.local_addr()? {
            return Ok((near, far));
        }
    }
}

/// The end that asks, and measures.
struct Asker {
    link: Link,
    job: Job,
    walk: Walk,
    /// Since when reads and writes are under way, the oldest first.
    flying: [VecDeque<Instant>; 2],
}

impl Asker {
    /// Does what a host would until `limit`. Then its answerer ends.
    fn run(&mut self, limit: Limit<'_>, counter: &Counter) -> anyhow::Result<Tally> {
        let outcome = self.measure(limit, counter);
        match outcome {
            Ok(_) => {
                self.link.outbox.push_back(Kind::End);
                self.link.send()?;
            }
            Err(_) => self.link.socket.shutdown(Shutdown::Both)?,
        }
        outcome
    }

    fn measure(&mut self, limit: Limit<'_>, counter: &Counter) -> anyhow::Result<Tally> {
        let job = self.job;
        let Shape {
            in_capsule,
            success,
            ..
        } = self.link.shape;
        let mut tally = Tally::new();
        let calls = self.link.system_calls;
        let usage = Usage::of_this_thread()?;
        let (threshold, most) = job.batch();
        let (mut sent, mut outstanding) = (0, 0);
        let begin = Instant::now();
        let (mut now, mut progress) = (begin, begin);
        loop {
            let left = limit.left(sent, now - begin);
            if left == 0 && outstanding == 0 {
                break;
            }
            let mut fresh = 0;
            if left > 0 && job.iodepth - outstanding >= threshold {
                fresh = most.min(job.iodepth - outstanding).min(left as usize);
                for _ in 0..fresh {
                    let kind = match self.walk.step().0 {
                        Direction::Read => Kind::Read,
                        Direction::Write if in_capsule => Kind::WriteInCapsule,
                        Direction::Write => Kind::Write,
                        Direction::Trim => bail!("there is no reference for deallocation"),
                    };
                    self.flying[usize::from(kind != Kind::Read)].push_back(now);
                    self.link.outbox.push_back(kind);
                }
                sent += fresh as u64;
                outstanding += fresh;
            }
            self.link.send()?;
            // What was sent a moment ago is not answered yet.
            if !job.hipri && fresh == outstanding {
                wait(&[&self.link])?;
            }
            let mut done = [0, 0];
            let any = self.link.receive(|kind, outbox| match kind {
                Kind::C2hData if success => done[0] += 1,
                Kind::RespOfRead => done[0] += 1,
                Kind::RespOfWrite => done[1] += 1,
                Kind::R2t => outbox.push_back(Kind::H2cData),
                _ => {}
            })?;
            if !any && !job.hipri {
                wait(&[&self.link])?;
            }
            now = Instant::now();
            if any {
                progress = now;
            } else if now - progress > PATIENCE {
                bail!("the peer of the reference does not answer any more");
            }
            for (index, direction) in [Direction::Read, Direction::Write].into_iter().enumerate() {
                for since in self.flying[index].drain(..done[index]) {
                    tally.record(direction, now - since);
                }
                outstanding -= done[index];
            }
            counter.set(tally.count());
        }
        tally.elapsed = now - begin;
        tally.usage = Usage::of_this_thread()?.since(&usage);
        tally.system_calls = self.link.system_calls - calls;
        Ok(tally)
    }
}

/// The end that answers.
struct Answerer {
    link: Link,
}

impl Answerer {
    /// Answers until all who ask have ended. Polls for `spin` after there was something
    /// to do, and then sleeps.
    fn serve(answerers: &mut [Self], spin: Duration) -> anyhow::Result<()> {
        let mut ended = 0;
        let mut last = Instant::now();
        while ended < answerers.len() {
            let mut busy = false;
            for Self { link } in &mut *answerers {
                let success = link.shape.success;
                busy |= link.receive(|kind, outbox| match kind {
                    Kind::Read => {
                        outbox.push_back(Kind::C2hData);
                        if !success {
                            outbox.push_back(Kind::RespOfRead);
                        }
                    }
                    Kind::Write => outbox.push_back(Kind::R2t),
                    Kind::WriteInCapsule | Kind::H2cData => outbox.push_back(Kind::RespOfWrite),
                    Kind::End => ended += 1,
                    _ => {}
                })?;
                link.send()?;
            }
            if busy {
                last = Instant::now();
            } else if spin.is_zero() || last.elapsed() > spin {
                let links: Vec<&Link> = answerers.iter().map(|end| &end.link).collect();
                wait(&links)?;
                last = Instant::now();
            }
        }
        Ok(())
    }
}

/// One end of a connection.
struct Link {
    socket: TcpStream,
    shape: Shape,
    scratch: Box<[u8]>,
    /// The PDU that is coming, and how many of its bytes are still to come.
    coming: Kind,
    left: usize,
    /// What is to be said, and how many bytes of the first are said.
    outbox: VecDeque<Kind>,
    said: usize,
    /// Of each kind, by its number, the heads of [`RUN`] PDUs.
    heads: Vec<Vec<u8>>,
    /// Payloads, each with its digest; which is to be sent, and which is received, by their
    /// numbers since the beginning.
    payloads: Vec<Vec<u8>>,
    memory: Memory,
    turn: usize,
    received: usize,
    system_calls: u64,
}

impl Link {
    fn new(socket: TcpStream, shape: &Shape, depth: usize, memory: Memory) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let heads = |kind: Kind| {
            let mut head = vec![0; shape.head(kind)];
            head[0] = kind as u8;
            head.repeat(RUN)
        };
        let payloads = match memory {
            Memory::Hot => depth.min(HOT / shape.payload() + 1),
            Memory::Places(bytes) => (bytes / shape.payload).max(1),
        };
        Ok(Self {
            socket,
            shape: *shape,
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            coming: Kind::End,
            left: 0,
            outbox: VecDeque::new(),
            said: 0,
            heads: Kind::ALL.into_iter().map(heads).collect(),
            payloads: vec![vec![0x5A; shape.payload()]; payloads],
            memory,
            turn: 0,
            received: 0,
            system_calls: 0,
        })
    }

    /// Takes what has come, in one system call, and calls `each` for each PDU that has
    /// come to its end. False if nothing has come.
    fn receive(&mut self, mut each: impl FnMut(Kind, &mut VecDeque<Kind>)) -> anyhow::Result<bool> {
        self.system_calls += 1;
        let received = match recv(&self.socket, &mut self.scratch[..], RecvFlags::empty()) {
            Ok((0, _)) => bail!("the reference's connection was closed"),
            Ok((received, _)) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error).context("the reference's connection was lost"),
        };
        let mut at = 0;
        while at < received {
            if self.left == 0 {
                let kind = Kind::ALL.get(usize::from(self.scratch[at]));
                self.coming = *kind.context("the reference lost count")?;
                self.left = self.shape.len(self.coming);
            }
            let some = self.left.min(received - at);
            if self.coming.has_payload() && self.memory != Memory::Hot {
                self.keep(at, some);
            }
            (at, self.left) = (at + some, self.left - some);
            if self.left == 0 {
                self.received += usize::from(self.coming.has_payload());
                each(self.coming, &mut self.outbox);
            }
        }
        Ok(true)
    }

    /// Copies what belongs to a payload of the next `some` bytes from `at` on to its place.
    fn keep(&mut self, at: usize, some: usize) {
        let (head, whole) = (self.shape.head(self.coming), self.shape.len(self.coming));
        let begin = whole - self.left;
        let end = begin + some;
        if end <= head {
            return;
        }
        let begin = begin.max(head);
        let bytes = &self.scratch[at + some - (end - begin)..at + some];
        let place = place(self.memory, self.received, self.payloads.len());
        self.payloads[place][begin - head..end - head].copy_from_slice(bytes);
    }

    /// Says what there is to say, as far as the socket takes it.
    fn send(&mut self) -> anyhow::Result<()> {
        while !self.outbox.is_empty() {
            self.system_calls += 1;
            let sent = self.gather().send(&self.socket, SendFlags::empty());
            match sent {
                Ok(sent) => self.sent(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error).context("the reference's connection was lost"),
            }
        }
        Ok(())
    }

    fn gather(&self) -> Gather<'_, PIECES> {
        let mut gather = Gather::new();
        let mut turn = self.turn;
        let mut skip = self.said;
        let mut kinds = self.outbox.iter().copied().peekable();
        while let Some(kind) = kinds.next() {
            let head = self.shape.head(kind);
            if kind.has_payload() {
                let payload = &self.payloads[place(self.memory, turn, self.payloads.len())];
                turn += 1;
                let fits = gather.room() >= 2
                    && gather.bytes() + self.shape.len(kind) - skip
                        <= BATCH.max(self.shape.len(kind))
                    && gather.push(&self.heads[kind as usize][skip.min(head)..head])
                    && gather.push(&payload[skip.saturating_sub(head)..]);
                if !fits {
                    break;
                }
            } else {
                let mut run = 1;
                while run < RUN && kinds.next_if_eq(&kind).is_some() {
                    run += 1;
                }
                if !gather.push(&self.heads[kind as usize][skip..run * head]) {
                    break;
                }
            }
            skip = 0;
        }
        gather
    }

    /// `len` more bytes are said.
    fn sent(&mut self, len: usize) {
        self.said += len;
        while let Some(kind) = self.outbox.front() {
            let whole = self.shape.len(*kind);
            if self.said < whole {
                break;
            }
            self.said -= whole;
            self.turn += usize::from(kind.has_payload());
            self.outbox.pop_front();
        }
    }
}

/// Which of `count` payloads is the one with this number.
fn place(memory: Memory, number: usize, count: usize) -> usize {
    match memory {
        Memory::Hot => number % count,
        Memory::Places(_) => {
            let random = xorshift(number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            ((u128::from(random) * count as u128) >> 64) as usize
        }
    }
}

/// Sleeps until there is something to do, or for too long.
fn wait(links: &[&Link]) -> anyhow::Result<()> {
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let interest = |link: &&Link| match link.outbox.is_empty() {
        true => PollFlags::IN,
        false => PollFlags::IN | PollFlags::OUT,
    };
    let mut fds: Vec<PollFd<'_>> = links
        .iter()
        .map(|link| PollFd::new(&link.socket, interest(link)))
        .collect();
    match poll(&mut fds, Some(&patience)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for the reference"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::live::Eta;
    use super::super::workload::Rw;
    use super::*;

    const COMMANDS: u64 = 100;

    /// What two connections do with `shape`, and the bytes that each end has sent.
    fn run(rw: Rw, hipri: bool, shape: Shape, memory: Memory) -> Tally {
        let job = Job {
            rw,
            bs: shape.payload as u64,
            iodepth: 16,
            batch: None,
            rwmixread: 50,
            hipri,
        };
        let spin = Duration::from_micros(if hipri { 500 } else { 0 });
        let mut bare = Bare::new(&shape, &job, memory, 2, 1, spin).unwrap();
        let limit = Limit {
            commands: Some(COMMANDS),
            ..Limit::default()
        };
        let live = Live::new(Eta::Never, job.bs);
        let mut tally = bare.run(limit, &Cores::default(), &live).unwrap();
        // The connections can be used again.
        tally.later(&bare.run(limit, &Cores::default(), &live).unwrap());
        tally
    }

    const SHAPES: [Shape; 3] = [
        Shape {
            payload: 4096,
            header_digest: false,
            data_digest: false,
            in_capsule: true,
            success: true,
        },
        Shape {
            payload: 131_072,
            header_digest: true,
            data_digest: true,
            in_capsule: false,
            success: false,
        },
        Shape {
            payload: 512,
            header_digest: true,
            data_digest: false,
            in_capsule: false,
            success: true,
        },
    ];

    #[test]
    fn every_command_is_answered_once() {
        for shape in SHAPES {
            for hipri in [false, true] {
                for (rw, memory) in [
                    (Rw::Randread, Memory::Hot),
                    (Rw::Write, Memory::Hot),
                    (Rw::Randrw, Memory::Hot),
                    (Rw::Randrw, Memory::Places(1 << 20)),
                ] {
                    let tally = run(rw, hipri, shape, memory);
                    let reads = tally.latencies(Direction::Read).count();
                    let writes = tally.latencies(Direction::Write).count();
                    assert_eq!(reads + writes, 4 * COMMANDS, "{rw} {shape:?}");
                    assert_eq!(reads > 0, rw != Rw::Write, "{rw} {shape:?}");
                    assert_eq!(writes > 0, rw != Rw::Randread, "{rw} {shape:?}");
                }
            }
        }
    }

    #[test]
    fn deallocation_has_no_reference() {
        let job = Job {
            rw: Rw::Trim,
            bs: 512,
            iodepth: 1,
            batch: None,
            rwmixread: 50,
            hipri: false,
        };
        let mut bare = Bare::new(&SHAPES[2], &job, Memory::Hot, 1, 1, Duration::ZERO).unwrap();
        let live = Live::new(Eta::Never, 512);
        let outcome = bare.run(Limit::default(), &Cores::default(), &live);
        assert!(outcome.is_err());
    }

    #[test]
    fn pdus_are_as_long_as_in_nvme_tcp() {
        let shape = Shape {
            payload: 4096,
            header_digest: true,
            data_digest: true,
            in_capsule: true,
            success: false,
        };
        for (kind, len) in [
            (Kind::Read, 76),
            (Kind::Write, 76),
            (Kind::WriteInCapsule, 76 + 4100),
            (Kind::R2t, 28),
            (Kind::H2cData, 28 + 4100),
            (Kind::C2hData, 28 + 4100),
            (Kind::RespOfRead, 28),
        ] {
            let (near, far) = pair().unwrap();
            let mut link = Link::new(near, &shape, 2, Memory::Hot).unwrap();
            for _ in 0..70 {
                link.outbox.push_back(kind);
            }
            link.outbox.push_back(Kind::End);
            let reader = thread::spawn(move || {
                let mut far = Link::new(far, &shape, 1, Memory::Places(4096)).unwrap();
                let mut seen = Vec::new();
                while seen.last() != Some(&Kind::End) {
                    wait(&[&far]).unwrap();
                    far.receive(|kind, _| seen.push(kind)).unwrap();
                }
                seen
            });
            while !link.outbox.is_empty() {
                wait(&[&link]).unwrap();
                link.send().unwrap();
            }
            let mut expected = vec![kind; 70];
            expected.push(Kind::End);
            assert_eq!(reader.join().unwrap(), expected);
            assert_eq!(shape.len(kind), len, "{kind:?}");
        }
    }
}
