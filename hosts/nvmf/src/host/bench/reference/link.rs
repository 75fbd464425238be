//! One end of a connection, and what all connections of a thread share.
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;

use anyhow::{Context, bail};
use nvmf_tcp::std::gather::Gather;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};

use super::super::workload::xorshift;
use super::{BATCH, Kind, Memory, Shape};

/// Pieces of one system call.
const PIECES: usize = 512;

/// Bytes that one receive takes.
const SCRATCH: usize = 256 * 1024;

/// PDUs without payload that go out as one piece.
const RUN: usize = 64;

/// Bytes of payloads that an end holds to send them again and again, if that is not less
/// than one.
const HOT: usize = 16 << 20;

/// What the connections of a thread have in common: their memory.
pub(super) struct Ground {
    pub(super) shape: Shape,
    scratch: Box<[u8]>,
    /// Of each kind, by its number, the heads of [`RUN`] PDUs.
    heads: Vec<Vec<u8>>,
    /// Payloads, each with its digest.
    payloads: Vec<Vec<u8>>,
    memory: Memory,
}

impl Ground {
    /// For as many as `depth` commands under way, of all connections together.
    pub(super) fn new(shape: &Shape, memory: Memory, depth: usize) -> Self {
        let heads = |kind: Kind| {
            let mut head = vec![0; shape.head(kind)];
            head[0] = kind as u8;
            head.repeat(RUN)
        };
        let payloads = match memory {
            Memory::Hot => depth.min(HOT / shape.payload() + 1),
            Memory::Places(bytes) => (bytes / shape.payload).max(1),
        };
        Self {
            shape: *shape,
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            heads: Kind::ALL.into_iter().map(heads).collect(),
            payloads: vec![vec![0x5A; shape.payload()]; payloads],
            memory,
        }
    }

    /// Which of the payloads is the one with this number, of the connection whose first
    /// number is `first`.
    fn place(&self, first: usize, number: usize) -> usize {
        let count = self.payloads.len();
        match self.memory {
            Memory::Hot => (first + number) % count,
            Memory::Places(_) => {
                let number = ((first as u64) << 40) + number as u64 + 1;
                let random = xorshift(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                ((u128::from(random) * count as u128) >> 64) as usize
            }
        }
    }
}

/// One end of a connection.
pub(super) struct Link {
    pub(super) socket: TcpStream,
    /// Where its payloads begin among those of the thread.
    first: usize,
    /// The PDU that is coming, and how many of its bytes are still to come.
    coming: Kind,
    left: usize,
    /// What is to be said, and how many bytes of the first are said.
    pub(super) outbox: VecDeque<Kind>,
    said: usize,
    /// Which payload is to be sent, and which is received, by their numbers.
    turn: usize,
    received: usize,
    /// More may have come than was taken.
    pub(super) more: bool,
    pub(super) system_calls: u64,
}

impl Link {
    pub(super) fn new(socket: TcpStream, first: usize) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            first,
            coming: Kind::End,
            left: 0,
            outbox: VecDeque::new(),
            said: 0,
            turn: 0,
            received: 0,
            more: false,
            system_calls: 0,
        })
    }

    /// Takes what has come, in one system call, and calls `each` for each PDU that has
    /// come to its end. False if nothing has come.
    pub(super) fn receive(
        &mut self,
        ground: &mut Ground,
        mut each: impl FnMut(Kind, &mut VecDeque<Kind>),
    ) -> anyhow::Result<bool> {
        self.system_calls += 1;
        self.more = false;
        let received = match recv(&self.socket, &mut ground.scratch[..], RecvFlags::empty()) {
            Ok((0, _)) => bail!("the reference's connection was closed"),
            Ok((received, _)) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error).context("the reference's connection was lost"),
        };
        self.more = received == ground.scratch.len();
        let mut at = 0;
        while at < received {
            if self.left == 0 {
                let kind = Kind::ALL.get(usize::from(ground.scratch[at]));
                self.coming = *kind.context("the reference lost count")?;
                self.left = ground.shape.len(self.coming);
            }
            let some = self.left.min(received - at);
            if self.coming.has_payload() && ground.memory != Memory::Hot {
                self.keep(ground, at, some);
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
    fn keep(&self, ground: &mut Ground, at: usize, some: usize) {
        let shape = &ground.shape;
        let (head, whole) = (shape.head(self.coming), shape.len(self.coming));
        let begin = whole - self.left;
        let end = begin + some;
        if end <= head {
            return;
        }
        let begin = begin.max(head);
        let bytes = &ground.scratch[at + some - (end - begin)..at + some];
        let place = ground.place(self.first, self.received);
        ground.payloads[place][begin - head..end - head].copy_from_slice(bytes);
    }

    /// Says what there is to say, as far as the socket takes it.
    pub(super) fn send(&mut self, ground: &Ground) -> anyhow::Result<()> {
        while !self.outbox.is_empty() {
            self.system_calls += 1;
            let sent = self.gather(ground).send(&self.socket, SendFlags::empty());
            match sent {
                Ok(sent) => self.sent(&ground.shape, sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error).context("the reference's connection was lost"),
            }
        }
        Ok(())
    }

    fn gather<'a>(&self, ground: &'a Ground) -> Gather<'a, PIECES> {
        let shape = &ground.shape;
        let mut gather = Gather::new();
        let mut turn = self.turn;
        let mut skip = self.said;
        let mut kinds = self.outbox.iter().copied().peekable();
        while let Some(kind) = kinds.next() {
            let head = shape.head(kind);
            if kind.has_payload() {
                let payload = &ground.payloads[ground.place(self.first, turn)];
                turn += 1;
                let fits = gather.room() >= 2
                    && gather.bytes() + shape.len(kind) - skip <= BATCH.max(shape.len(kind))
                    && gather.push(&ground.heads[kind as usize][skip.min(head)..head])
                    && gather.push(&payload[skip.saturating_sub(head)..]);
                if !fits {
                    break;
                }
            } else {
                let mut run = 1;
                while run < RUN && kinds.next_if_eq(&kind).is_some() {
                    run += 1;
                }
                if !gather.push(&ground.heads[kind as usize][skip..run * head]) {
                    break;
                }
            }
            skip = 0;
        }
        gather
    }

    /// `len` more bytes are said.
    fn sent(&mut self, shape: &Shape, len: usize) {
        self.said += len;
        while let Some(kind) = self.outbox.front() {
            let whole = shape.len(*kind);
            if self.said < whole {
                break;
            }
            self.said -= whole;
            self.turn += usize::from(kind.has_payload());
            self.outbox.pop_front();
        }
    }
}
