//! Connections of a [`Target`], driven as a binding does, in virtual time.
use std::collections::VecDeque;
use std::time::Duration;

use nvmf_core::block::MediaError;
use nvmf_core::storage::Storage;
use nvmf_core::target::queue_pair::Notice;
use nvmf_core::tcp::connection::{CloseReason, TargetConnection};
use nvmf_core::tcp::target::{Config, Transmit};
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::{Source, time::Instant};

use crate::crc::crc32c;
use crate::target::{Buffer, Handle, Target};

/// How long a host has for its Connect.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// What happened to connections whose bytes are the host's to choose.
pub struct Rig<S: Storage> {
    /// The surroundings.
    pub target: Target,
    links: Vec<Link<S>>,
}

struct Link<S: Storage> {
    machine: TargetConnection<S, Buffer, Handle>,
    state: State,
    /// PDUs that were composed and not yet sent.
    composed: VecDeque<(Vec<u8>, Transmit)>,
    notices: Vec<Notice>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Devices may still hold commands.
    Closed,
}

/// How bytes are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// As one piece.
    Whole,
    /// In pieces of this many bytes, at least 1.
    Pieces(usize),
    /// Like `Pieces`, but data goes straight to its place.
    InPlace(usize),
}

impl<S: Storage> Default for Rig<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Storage> Rig<S> {
    /// Without connections.
    #[must_use]
    pub fn new() -> Self {
        Self {
            target: Target::new(),
            links: Vec::new(),
        }
    }

    /// A host's connection is accepted; returns its index.
    pub fn accept(&mut self, config: &Config) -> usize {
        self.links.push(Link {
            machine: TargetConnection::new(config, CONNECT_TIMEOUT, self.target.now),
            state: State::Open,
            composed: VecDeque::new(),
            notices: Vec::new(),
        });
        self.links.len() - 1
    }

    /// Whether the connection is open.
    #[must_use]
    pub fn is_open(&self, at: usize) -> bool {
        self.links[at].state == State::Open
    }

    /// Why the machine wants the connection closed.
    #[must_use]
    pub fn closing(&self, at: usize) -> Option<CloseReason> {
        self.links[at].machine.closing()
    }

    /// Whether the machine wants the connection closed at once.
    #[must_use]
    pub fn must_close(&self, at: usize) -> bool {
        self.links[at].machine.must_close()
    }

    /// When time is to pass for a connection.
    #[must_use]
    pub fn deadline(&self, at: usize) -> Option<Instant> {
        self.links[at].machine.poll_timeout()
    }

    /// What was to be logged so far.
    #[must_use]
    pub fn notices(&self, at: usize) -> &[Notice] {
        &self.links[at].notices
    }

    /// Bytes from the host. Those of a closed connection are lost.
    pub fn input(&mut self, at: usize, bytes: &[u8], delivery: Delivery) {
        if !self.is_open(at) {
            return;
        }
        let size = match delivery {
            Delivery::Whole => bytes.len(),
            Delivery::Pieces(size) | Delivery::InPlace(size) => size,
        };
        for piece in bytes.chunks(size.max(1)) {
            if let Delivery::InPlace(_) = delivery {
                self.input_in_place(at, piece);
            } else {
                self.take(at, piece);
            }
        }
    }

    /// The machine takes all: it has a slot for every entry of a queue.
    fn take(&mut self, at: usize, bytes: &[u8]) {
        self.with(at, |machine, target| {
            let used = machine.handle_input(bytes, target);
            assert_eq!(used, bytes.len(), "bytes that were left");
        });
    }

    fn input_in_place(&mut self, at: usize, mut piece: &[u8]) {
        while !piece.is_empty() {
            let machine = &mut self.links[at].machine;
            let placed = match machine.payload_mut() {
                Some(room) if !room.is_empty() => {
                    let len = room.len().min(piece.len());
                    room[..len].copy_from_slice(&piece[..len]);
                    len
                }
                _ => 0,
            };
            if placed > 0 {
                self.with(at, |machine, target| {
                    machine.payload_received(placed, target)
                });
                piece = &piece[placed..];
            } else {
                // A byte at a time, lest data be among them.
                let (byte, rest) = piece.split_at(1);
                self.take(at, byte);
                piece = rest;
            }
        }
    }

    /// Composes up to `pdus` PDUs. Returns whether there was one.
    pub fn compose(&mut self, at: usize, pdus: usize) -> bool {
        let link = &mut self.links[at];
        if link.state == State::Closed {
            return false;
        }
        let mut any = false;
        for _ in 0..pdus {
            let mut head = [0; MAX_HEAD];
            let wanted = link.machine.wants_transmit();
            let Some(transmit) = link.machine.poll_transmit(&mut head) else {
                assert!(!wanted, "wants to transmit, and does not");
                break;
            };
            assert!(wanted, "transmits without wanting to");
            any = true;
            let head = head[..transmit.head_len].to_vec();
            link.composed.push_back((head, transmit));
        }
        any
    }

    /// Sends up to `pdus` PDUs that were composed; returns their bytes.
    pub fn send(&mut self, at: usize, pdus: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..pdus {
            let Some((head, transmit)) = self.links[at].composed.pop_front() else {
                break;
            };
            bytes.extend(head);
            let data = self.payload(at, transmit.payload);
            bytes.extend(&data);
            if transmit.data_digest {
                bytes.extend(crc32c(&data).to_le_bytes());
            }
            if let Some(slot) = transmit.finishes {
                self.with(at, |machine, target| machine.sent(slot, target));
            }
        }
        bytes
    }

    /// Composes and sends all there is; returns the bytes.
    pub fn output(&mut self, at: usize) -> Vec<u8> {
        let mut bytes = self.send(at, usize::MAX);
        while self.compose(at, 1) {
            bytes.extend(self.send(at, usize::MAX));
        }
        bytes
    }

    fn payload(&self, at: usize, source: Option<Source>) -> Vec<u8> {
        let Some(source) = source else {
            return Vec::new();
        };
        let bytes = match source {
            Source::Slot(place) => self.links[at].machine.payload(&place),
            Source::Media {
                namespace,
                byte,
                len,
            } => self.target.lent(namespace, byte, len),
        };
        assert_eq!(bytes.len(), source.len() as usize, "{source:?} is gone");
        bytes.to_vec()
    }

    /// The `index`th request that devices hold completes; false if there is none.
    pub fn complete(&mut self, index: usize, fault: Option<MediaError>) -> bool {
        let Some((pending, result)) = self.target.take_pending(index, fault) else {
            return false;
        };
        let completion = pending.request.complete(result);
        self.with(pending.caller, |machine, target| {
            machine.block_completed(completion, target);
        });
        true
    }

    /// Whether commands of the connection wait for buffers or devices.
    #[must_use]
    pub fn is_waiting(&self, at: usize) -> bool {
        self.links[at].machine.is_waiting()
    }

    /// Buffers or devices became free.
    pub fn retry(&mut self, at: usize) {
        if self.is_waiting(at) {
            self.with(at, TargetConnection::retry);
        }
    }

    /// Time passes: a binding calls each machine when it asked to be called.
    ///
    /// # Panics
    /// If a machine asks to be called at once again, and again.
    pub fn advance(&mut self, by: Duration) {
        let end = self.target.now.after(by);
        for _ in 0..10_000 {
            let due = (0..self.links.len())
                .filter(|at| self.is_open(*at))
                .filter_map(|at| Some((self.deadline(at)?, at)))
                .min()
                .filter(|(deadline, _)| *deadline <= end);
            let Some((deadline, at)) = due else {
                self.target.now = end;
                return;
            };
            self.target.now = self.target.now.max(deadline);
            self.with(at, TargetConnection::handle_timeout);
            if self.must_close(at) {
                self.close(at);
            } else {
                let again = self.deadline(at);
                assert!(
                    again.is_none_or(|again| again > deadline),
                    "after {deadline:?} comes {again:?}"
                );
            }
        }
        panic!("a timer that never rests");
    }

    /// Closes the connection as a binding does that was asked to: when all is sent.
    pub fn close_if_asked(&mut self, at: usize) {
        if !self.is_open(at) {
            return;
        }
        let sent = self.links[at].composed.is_empty() && !self.links[at].machine.wants_transmit();
        let queue_ended = matches!(self.closing(at), Some(CloseReason::Queue(_)));
        if self.must_close(at) || (queue_ended && sent) {
            self.close(at);
        }
    }

    /// The target stops: the connection closes when its commands are done.
    pub fn shut_down(&mut self, at: usize) {
        if self.is_open(at) {
            self.with(at, |machine, _| machine.shut_down());
        }
    }

    /// The connection is gone.
    pub fn close(&mut self, at: usize) {
        if self.is_open(at) {
            let link = &mut self.links[at];
            link.state = State::Closed;
            link.composed.clear();
            self.with(at, TargetConnection::connection_closed);
        }
    }

    /// Whether the connection is gone and may be forgotten.
    #[must_use]
    pub fn is_drained(&self, at: usize) -> bool {
        self.links[at].machine.is_drained()
    }

    /// Calls a machine, then those whose controller it changed.
    fn with(
        &mut self,
        at: usize,
        call: impl FnOnce(&mut TargetConnection<S, Buffer, Handle>, &mut Target),
    ) {
        self.target.caller = at;
        let link = &mut self.links[at];
        call(&mut link.machine, &mut self.target);
        while let Some(notice) = link.machine.poll_notice() {
            link.notices.push(notice);
        }
        while self.target.take_changed() {
            for (at, link) in self.links.iter_mut().enumerate() {
                if link.state == State::Open {
                    self.target.caller = at;
                    link.machine.controller_changed(&mut self.target);
                }
            }
        }
    }
}
