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
//! it but its kind. Either end says all that a connection has to say in one system call, of at most
//! [`BATCH`] bytes, takes what has come in one, and polls or sleeps as the job does. A thread with
//! several connections asks epoll which of them have something for it.
mod ends;
mod link;

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::Context;

use self::ends::{Answerers, Asker, Askers};
use self::link::{Ground, Link};
use super::live::Live;
use super::tally::Tally;
use super::threads::{Cores, keep_to, together};
use super::workload::{Job, Limit, Walk};

/// Bytes of one system call. More of them at a time are slower: they no longer
/// fit into the cache on their way.
pub(crate) const BATCH: usize = 768 * 1024;

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
    /// By job.
    askers: Vec<Askers>,
    /// By worker.
    answerers: Vec<Answerers>,
    pub(crate) memory: Memory,
}

/// How many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// Threads that ask.
    pub(crate) jobs: u16,
    /// Connections of each.
    pub(crate) connections: u16,
    /// Threads that answer.
    pub(crate) workers: usize,
}

impl Bare {
    /// Connections, whose answerers poll for `spin` before they sleep. `memory` is that of all
    /// who answer together.
    ///
    /// # Errors
    /// Those of sockets.
    pub(crate) fn new(
        shape: &Shape,
        job: &Job,
        memory: Memory,
        count: Count,
        spin: Duration,
    ) -> anyhow::Result<Self> {
        let share = match memory {
            Memory::Hot => Memory::Hot,
            Memory::Places(bytes) => Memory::Places(bytes / count.workers),
        };
        let mut askers = Vec::new();
        let mut answering: Vec<Vec<Link>> = (0..count.workers).map(|_| Vec::new()).collect();
        for job_index in 0..count.jobs {
            let mut links = Vec::new();
            for index in 0..count.connections {
                let (near, far) = pair().context("cannot connect to this process")?;
                let link = Link::new(near, usize::from(index) * job.iodepth)?;
                let seed = u64::from(job_index) * u64::from(count.connections) + u64::from(index);
                links.push(Asker::new(link, Walk::new(job, 1, seed)));
                let links = &mut answering[seed as usize % count.workers];
                links.push(Link::new(far, links.len() * job.iodepth)?);
            }
            let ground = Ground::new(shape, Memory::Hot, links.len() * job.iodepth);
            askers.push(Askers::new(job, links, ground)?);
        }
        let answerers = answering.into_iter().map(|links| {
            let ground = Ground::new(shape, share, links.len().max(1) * job.iodepth);
            Answerers::new(links, ground, spin)
        });
        Ok(Self {
            askers,
            answerers: answerers.collect::<io::Result<_>>()?,
            memory,
        })
    }

    /// All connections at the same time, until `limit`, which is for each of them.
    ///
    /// # Errors
    /// A connection is lost.
    pub(crate) fn run(
        &mut self,
        limit: Limit<'_>,
        cores: &Cores,
        live: &Live,
    ) -> anyhow::Result<Tally> {
        thread::scope(|scope| {
            for (index, answerers) in self.answerers.iter_mut().enumerate() {
                scope.spawn(move || {
                    keep_to(cores.target.get(index..=index).unwrap_or_default());
                    // Who asks notices that nobody answers.
                    if let Err(error) = answerers.serve() {
                        tracing::debug!("the reference: {error:#}");
                    }
                });
            }
            let tallies = together(
                &mut self.askers,
                &cores.host,
                live,
                "bare socket",
                |askers, counter| askers.run(limit, counter),
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

#[cfg(test)]
mod tests {
    use super::super::live::Eta;
    use super::super::workload::{Direction, Rw};
    use super::ends::wait;
    use super::*;

    const COMMANDS: u64 = 100;

    /// What two jobs of `connections` do with `shape`.
    fn run(rw: Rw, hipri: bool, shape: Shape, memory: Memory, connections: u16) -> Tally {
        let job = Job {
            rw,
            bs: shape.payload as u64,
            iodepth: 16,
            batch: None,
            rwmixread: 50,
            hipri,
        };
        let spin = Duration::from_micros(if hipri { 500 } else { 0 });
        let count = Count {
            jobs: 2,
            connections,
            workers: 1,
        };
        let mut bare = Bare::new(&shape, &job, memory, count, spin).unwrap();
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
                    let tally = run(rw, hipri, shape, memory, 1);
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
    fn a_thread_has_several_connections() {
        for hipri in [false, true] {
            let tally = run(Rw::Randrw, hipri, SHAPES[1], Memory::Hot, 5);
            assert_eq!(tally.count(), 2 * 2 * 5 * COMMANDS);
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
        let count = Count {
            jobs: 1,
            connections: 1,
            workers: 1,
        };
        let mut bare = Bare::new(&SHAPES[2], &job, Memory::Hot, count, Duration::ZERO).unwrap();
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
            let mut link = Link::new(near, 0).unwrap();
            let ground = Ground::new(&shape, Memory::Hot, 2);
            for _ in 0..70 {
                link.outbox.push_back(kind);
            }
            link.outbox.push_back(Kind::End);
            let reader = thread::spawn(move || {
                let mut far = Link::new(far, 0).unwrap();
                let mut ground = Ground::new(&shape, Memory::Places(4096), 1);
                let mut seen = Vec::new();
                while seen.last() != Some(&Kind::End) {
                    wait(&far).unwrap();
                    far.receive(&mut ground, |kind, _| seen.push(kind)).unwrap();
                }
                seen
            });
            while !link.outbox.is_empty() {
                wait(&link).unwrap();
                link.send(&ground).unwrap();
            }
            let mut expected = vec![kind; 70];
            expected.push(Kind::End);
            assert_eq!(reader.join().unwrap(), expected);
            assert_eq!(shape.len(kind), len, "{kind:?}");
        }
    }
}
