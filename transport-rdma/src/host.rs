//! A host's queue over a device: commands with their buffers in, completions with them out.
//!
//! The queue's owner polls the device and its connection manager, and hands over
//! what is the queue's, by its tag and its queue pair: [`Queue::completed`],
//! [`Queue::happened`]. After [`Queue::submit`] it calls [`Queue::post`], once for
//! as many commands as there are.
use nvmf_core::SlotId;
use nvmf_core::host::Data;
use nvmf_core::rdma::host::{Completed, Config as QueueConfig, HostQueue, Shared};
use nvmf_core::rdma::{Fault, Remote, WorkId, cm};
use nvmf_core::storage::Storage;
use nvmf_core::wire::cm::{CmRej, CmStatus};
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cid, Cntlid, Qid};
use nvmf_core::wire::sqe::Sqe;
use zerocopy::IntoBytes;

use crate::buffer::Stack;
use crate::cm::{Cm, Event as CmEvent, PrivateData, Rejecter, Setup, Terms};
use crate::verbs::{Access, Chain, Completion, Ended, Error, Key, Outcome, Receiver, Send, Verbs};

/// Bytes of a buffer to receive a response into.
pub const RESPONSE_BUFFER: u32 = nvmf_core::rdma::capsule::RESPONSE;

/// The queue to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What the owner knows the queue by.
    pub tag: u32,
    /// Which queue it is to be.
    pub qid: Qid,
    /// Its controller's; of an Admin Queue it does not matter.
    pub cntlid: Cntlid,
    /// Its entries, 2..=4096: commands under way at a time, and one.
    pub entries: u16,
    /// By which key the controller reaches data.
    pub key: Key,
}

/// What happened to a queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<B> {
    /// It is connected: [`Queue::submit`] Connect.
    Connected,
    /// A command ended.
    Completed {
        /// The caller's name for it.
        tag: u64,
        /// What the controller says.
        cqe: Cqe,
        /// The command's.
        buffer: Option<B>,
    },
    /// The queue is over; see [`Queue::take_lost`].
    Ended(Why),
}

/// Why a queue is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The controller does not want the connection, and says why, if it does.
    Rejected(Option<CmStatus>),
    /// Nobody listens there.
    NobodyListens,
    /// A connection manager rejects the connection, for this reason
    /// ([`Rejecter::Manager`]).
    Refused(i32),
    /// There is no way to the controller.
    Unreachable,
    /// The controller broke the transport.
    Fault(Fault),
    /// A work request failed, or could not be posted.
    Failed(Outcome),
    /// The connection ended.
    Disconnected,
}

/// A queue.
pub struct Queue<M: Cm, S: Storage> {
    qp: M::Qp,
    config: Config,
    machine: Option<HostQueue<S>>,
    commands: S::Array<Option<Command<Memory<M>>>>,
    /// Commands that ended, and whose buffers are being taken back.
    ending: S::Array<Option<(u64, Cqe)>>,
    receives: Stack<S, Memory<M>>,
    depth: u16,
    /// There are no more receives to be posted, nor commands.
    over: bool,
    disconnected: bool,
}

type Memory<M> = <<M as Cm>::Verbs as Verbs>::Buffer;

struct Command<B> {
    tag: u64,
    memory: Where<B>,
}

enum Where<B> {
    /// There is none.
    Nowhere,
    /// Here, to be sent, or sent.
    Here(B),
    /// The SEND has it.
    Sending,
    /// The controller reaches it.
    Lent(Remote),
}

impl<M: Cm, S: Storage> Queue<M, S> {
    /// Connects.
    ///
    /// # Errors
    /// A queue pair could not be made.
    pub fn connect(
        m: &mut M,
        verbs: &mut M::Verbs,
        address: M::Address,
        config: Config,
    ) -> Result<Self, Error> {
        let limits = verbs.limits();
        let setup = Setup {
            tag: config.tag,
            sends: requests(&config),
            receives: config.entries.into(),
        };
        let ask = cm::ask(config.qid, config.entries, config.cntlid);
        let terms = Terms {
            initiator_depth: 0,
            responder_resources: limits.responder_resources,
            private_data: PrivateData::new(ask.as_bytes()),
        };
        Ok(Self {
            qp: m.connect(verbs, address, setup, terms)?,
            config,
            machine: None,
            commands: S::new(|_| None),
            ending: S::new(|_| None),
            receives: Stack::new(),
            depth: 0,
            over: false,
            disconnected: false,
        })
    }

    /// The queue pair.
    #[must_use]
    pub const fn queue_pair(&self) -> M::Qp {
        self.qp
    }

    /// Adds memory for responses, [`RESPONSE_BUFFER`] bytes each: as many as the queue
    /// has entries, before it is connected. It comes back if there is no place for it.
    pub fn add_receive(&mut self, memory: Memory<M>) -> Option<Memory<M>> {
        self.receives.push(memory)
    }

    /// From now on `inline_data` bytes may go inside a capsule (IOCCSZ).
    pub fn configure(&mut self, inline_data: u32) {
        if let Some(machine) = &mut self.machine {
            machine.configure(inline_data);
        }
    }

    /// Commands that may be under way at a time, as far as the controller has receives
    /// for them; 0 until it is connected.
    #[must_use]
    pub const fn depth(&self) -> u16 {
        self.depth
    }

    /// Commands under way: their CIDs, and the caller's names for them.
    pub fn under_way(&self) -> impl Iterator<Item = (Cid, u64)> {
        let commands = (0..).map(SlotId).zip(self.commands.as_ref());
        commands.filter_map(|(slot, command)| {
            let cid = self.machine.as_ref()?.cid(slot)?;
            Some((cid, command.as_ref()?.tag))
        })
    }

    /// Takes a command; its CID and data pointer are set here. `buffer` holds its
    /// data, or is to hold it, from its start.
    ///
    /// # Errors
    /// The buffer, if there is no room for the command now, or the queue is over.
    pub fn submit(
        &mut self,
        verbs: &mut M::Verbs,
        sqe: &Sqe,
        data: Data,
        buffer: Option<Memory<M>>,
        tag: u64,
    ) -> Result<(), Option<Memory<M>>> {
        let machine = match &mut self.machine {
            Some(machine) if !self.over && machine.has_room() => machine,
            _ => return Err(buffer),
        };
        let (len, access) = match data {
            Data::Nothing => (0, Access::default()),
            Data::ToHost(len) => (
                len,
                Access {
                    remote_write: true,
                    ..Access::LOCAL
                },
            ),
            Data::FromHost(len) => (
                len,
                Access {
                    remote_read: true,
                    ..Access::LOCAL
                },
            ),
        };
        let (memory, shared) = match buffer {
            Some(buffer) if len > 0 && !machine.is_inline(data) => {
                let key = self.config.key;
                match verbs.lend(self.qp, buffer, len, access, key) {
                    Ok(remote) => {
                        let invalidate = key == Key::Window;
                        (Where::Lent(remote), Some(Shared { remote, invalidate }))
                    }
                    Err((buffer, _)) => return Err(Some(buffer)),
                }
            }
            Some(buffer) => (Where::Here(buffer), None),
            None if len > 0 => return Err(None),
            None => (Where::Nowhere, None),
        };
        // There is room, which was asked for.
        if let Some(slot) = machine.submit(sqe, data, shared) {
            let at = slot.index();
            S::grow(&mut self.commands, at.saturating_add(1), |_| None);
            if let Some(place) = self.commands.as_mut().get_mut(at) {
                *place = Some(Command { tag, memory });
            }
        }
        Ok(())
    }

    /// Posts what commands there are.
    pub fn post(&mut self, verbs: &mut M::Verbs) -> Option<Event<Memory<M>>> {
        while !self.over {
            let work = self.machine.as_mut()?.poll_work()?;
            let mut send = Send::new(work.command.as_bytes());
            let mut buffer = None;
            if let Some(place) = work.data
                && let Some(command) = self.command(work.slot)
            {
                send.data = place.len;
                match core::mem::replace(&mut command.memory, Where::Sending) {
                    Where::Here(memory) => buffer = Some(memory),
                    other => command.memory = other,
                }
            }
            let chain = Chain {
                id: work.id.raw(),
                signalled: work.signalled,
                buffer,
                first: None,
                send: Some(send),
            };
            if let Err((buffer, _)) = verbs.post(self.qp, chain) {
                self.back(work.slot, buffer);
                return self.end(Why::Failed(Outcome::Flushed));
            }
        }
        None
    }

    /// Something happened to the queue's queue pair.
    pub fn happened(
        &mut self,
        event: &CmEvent<M::Request, M::Qp>,
        verbs: &mut M::Verbs,
    ) -> Option<Event<Memory<M>>> {
        match event {
            CmEvent::Request { .. } => None,
            // Too late: the caller gave it up.
            CmEvent::Established { .. } if self.over => None,
            CmEvent::Established { terms, .. } => {
                let accepted = match cm::accepted(terms.private_data.bytes()) {
                    Ok(accepted) => accepted,
                    Err(fault) => return self.end(Why::Fault(fault)),
                };
                let commands = self.config.entries.saturating_sub(1).min(accepted);
                self.depth = commands;
                while let Some(memory) = self.receives.pop() {
                    self.receive(memory, verbs);
                }
                self.machine = Some(HostQueue::new(&QueueConfig {
                    commands,
                    inline_data: 0,
                    requests: requests(&self.config),
                    extra_requests: extra_requests(self.config.key),
                }));
                Some(Event::Connected)
            }
            CmEvent::Rejected {
                by, private_data, ..
            } => {
                self.disconnected = true;
                self.end(match by {
                    Rejecter::Peer => Why::Rejected(
                        CmRej::parse(private_data.bytes())
                            .map(CmRej::sts)
                            // What was not filled in: it was rejected without a word.
                            .filter(|sts| sts.code() != 0),
                    ),
                    Rejecter::NobodyListens => Why::NobodyListens,
                    Rejecter::Manager(reason) => Why::Refused(*reason),
                })
            }
            CmEvent::Unreachable { .. } => {
                self.disconnected = true;
                self.end(Why::Unreachable)
            }
            CmEvent::Disconnected { .. } => {
                self.disconnected = true;
                self.end(Why::Disconnected)
            }
        }
    }

    /// A request of the queue's ended. The command may have ended with it.
    pub fn completed(
        &mut self,
        completion: Completion<Memory<M>>,
        verbs: &mut M::Verbs,
    ) -> Option<Event<Memory<M>>> {
        let Completion {
            id,
            ended,
            outcome,
            buffer,
            ..
        } = completion;
        match ended {
            Ended::Receive { len, invalidated } => {
                let memory = buffer?;
                if outcome != Outcome::Success || self.over {
                    self.receives.push(memory);
                    return self.failed(outcome);
                }
                let message = memory.as_ref().get(..len as usize).unwrap_or(&[]);
                let result = match &mut self.machine {
                    Some(machine) => machine.received(message, invalidated),
                    None => Ok(None),
                };
                self.receive(memory, verbs);
                match result {
                    Ok(completed) => self.settle(completed?, verbs),
                    Err(fault) => self.end(Why::Fault(fault)),
                }
            }
            Ended::Chain => {
                let id = WorkId::from_raw(id);
                if let Some(slot) = HostQueue::<S>::slot(id) {
                    self.back(slot, buffer);
                }
                if outcome != Outcome::Success || self.over {
                    return self.failed(outcome);
                }
                let completed = self.machine.as_mut()?.sent(id)?;
                self.settle(completed, verbs)
            }
            Ended::Reclaim => {
                let at = usize::try_from(id).ok()?;
                let (tag, cqe) = self.ending.as_mut().get_mut(at)?.take()?;
                Some(Event::Completed { tag, cqe, buffer })
            }
            Ended::Lend => self.failed(outcome),
        }
    }

    /// Commands that did not complete, one at a time, with their buffers: once the
    /// queue is over and disconnected, and the device has nothing more of it. Then
    /// the queue pair may be destroyed.
    pub fn take_lost(&mut self, verbs: &mut M::Verbs) -> Option<(u64, Option<Memory<M>>)> {
        let commands = self.commands.as_mut().iter_mut();
        let Command { tag, memory } = commands.filter_map(Option::take).next()?;
        let buffer = match memory {
            Where::Here(buffer) => Some(buffer),
            Where::Lent(remote) => take_back::<M>(verbs, self.qp, remote, false, 0),
            Where::Nowhere | Where::Sending => None,
        };
        Some((tag, buffer))
    }

    /// Memory for responses of a queue that is over.
    pub fn take_receive(&mut self) -> Option<Memory<M>> {
        self.receives.pop()
    }

    /// Whether the queue is over: disconnect it, if it is not.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Whether it is not connected, or not any more.
    #[must_use]
    pub const fn is_disconnected(&self) -> bool {
        self.disconnected
    }

    /// The caller does not want the queue any more.
    pub fn give_up(&mut self) {
        self.over = true;
    }

    fn command(&mut self, slot: SlotId) -> Option<&mut Command<Memory<M>>> {
        self.commands.as_mut().get_mut(slot.index())?.as_mut()
    }

    /// A buffer that was to be sent is back.
    fn back(&mut self, slot: SlotId, buffer: Option<Memory<M>>) {
        if let Some(buffer) = buffer
            && let Some(command) = self.command(slot)
        {
            command.memory = Where::Here(buffer);
        }
    }

    fn receive(&mut self, memory: Memory<M>, verbs: &mut M::Verbs) {
        if let Err((memory, _)) = verbs.post_receive(Receiver::Of(self.qp), 0, memory) {
            self.receives.push(memory);
        }
    }

    fn failed(&mut self, outcome: Outcome) -> Option<Event<Memory<M>>> {
        // What is flushed says nothing of why.
        if matches!(outcome, Outcome::Success | Outcome::Flushed) {
            return None;
        }
        self.end(Why::Failed(outcome))
    }

    fn end(&mut self, why: Why) -> Option<Event<Memory<M>>> {
        let first = !core::mem::replace(&mut self.over, true);
        first.then_some(Event::Ended(why))
    }

    /// A command ended: its buffer is taken back.
    fn settle(&mut self, completed: Completed, verbs: &mut M::Verbs) -> Option<Event<Memory<M>>> {
        let Completed {
            slot,
            cqe,
            invalidated,
        } = completed;
        let place = self.commands.as_mut().get_mut(slot.index())?;
        let Command { tag, memory } = place.take()?;
        let buffer = match memory {
            Where::Here(buffer) => Some(buffer),
            Where::Nowhere | Where::Sending => None,
            Where::Lent(remote) => {
                let id = self.ending_place(tag, cqe);
                let taken = verbs.reclaim(self.qp, remote, invalidated, id as u64);
                let Ok(taken) = taken else {
                    // It stays lent, and is lost with the queue.
                    self.ending.as_mut().get_mut(id)?.take();
                    let memory = Where::Lent(remote);
                    *self.commands.as_mut().get_mut(slot.index())? = Some(Command { tag, memory });
                    return self.end(Why::Failed(Outcome::Flushed));
                };
                let buffer = taken?;
                self.ending.as_mut().get_mut(id)?.take();
                Some(buffer)
            }
        };
        Some(Event::Completed { tag, cqe, buffer })
    }

    /// A place for what a command came to, while its buffer is taken back.
    fn ending_place(&mut self, tag: u64, cqe: Cqe) -> usize {
        let free = self.ending.as_ref().iter().position(Option::is_none);
        let at = free.unwrap_or(self.ending.as_ref().len());
        S::grow(&mut self.ending, at.saturating_add(1), |_| None);
        if let Some(place) = self.ending.as_mut().get_mut(at) {
            *place = Some((tag, cqe));
        }
        at
    }
}

fn take_back<M: Cm>(
    verbs: &mut M::Verbs,
    qp: M::Qp,
    remote: Remote,
    invalidated: bool,
    id: u64,
) -> Option<Memory<M>> {
    let one = verbs.reclaim(qp, remote, invalidated, id).ok().flatten();
    // The peer may have invalidated it without our being told.
    one.or_else(|| verbs.reclaim(qp, remote, !invalidated, id).ok().flatten())
}

/// Work requests of a command besides its SEND: a window is bound, and invalidated.
const fn extra_requests(key: Key) -> u32 {
    match key {
        Key::Region => 0,
        Key::Window => 2,
    }
}

fn requests(config: &Config) -> u32 {
    QueueConfig::requests_for(config.entries, extra_requests(config.key))
}
