//! The controller's end of one NVMe/RDMA connection: transport and queue pair
//! joined, for a binding to drive.
//!
//! A binding hands over each message ([`TargetConnection::received`]), posts what
//! there is to post ([`TargetConnection::poll_post`]), says what completed, returns
//! what devices completed, and calls [`TargetConnection::handle_timeout`] when
//! [`TargetConnection::poll_timeout`] says so. After each call it looks at
//! [`TargetConnection::closing`].
//!
//! In-capsule data is not copied here: the buffer that it was received in becomes the
//! command's, and goes back to the binding, as all buffers do, by
//! [`Backend::give_buffer`]. A binding that cannot spare it hands over a copy instead. A buffer whose bytes a device reads or writes is out
//! of reach meanwhile: it is in a [`Post`], and comes back with what completed.
use core::fmt;
use core::ops::Deref;
use core::time::Duration;

use super::capsule::Command;
use super::target::{Completed, Config, TargetQueue, Work};
use super::{Fault, WorkId};
use crate::block::Completion;
use crate::storage::Storage;
use crate::target::queue_pair::{Close, Identity, Notice, QueuePair};
use crate::target::{Backend, ControllerState};
use crate::time::Instant;
use crate::{InCapsule, SlotId, Source};

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The host broke the transport.
    Fault(Fault),
    /// A work request failed, or could not be posted.
    Failed,
    /// The receives that connections share are to be made anew.
    Receives,
    /// What the queue pair says.
    Queue(Close),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Failed => f.write_str("a work request failed"),
            Self::Receives => f.write_str("messages that broke off took too many receives"),
            Self::Queue(close) => close.fmt(f),
        }
    }
}

/// A chain to post, and the buffer that it is about.
#[derive(Debug)]
pub struct Post<B> {
    /// Its name.
    pub id: WorkId,
    /// What to do.
    pub work: Work,
    /// The command's buffer, where [`Work`] speaks of one: it comes back with
    /// [`TargetConnection::completed`] or [`TargetConnection::failed`].
    pub buffer: Option<B>,
}

/// The controller's end of a connection.
pub struct TargetConnection<S: Storage, B, C> {
    transport: TargetQueue<S>,
    pair: QueuePair<S, B, C>,
    waiting: Waiting<S, B>,
    reason: Option<CloseReason>,
    /// The connection is gone.
    gone: bool,
}

impl<S, B, C> TargetConnection<S, B, C>
where
    S: Storage,
    B: AsRef<[u8]> + AsMut<[u8]>,
    C: Deref<Target = ControllerState> + Clone,
{
    /// For a connection just accepted. The host has `connect_timeout` for its Connect.
    #[must_use]
    pub fn new(config: &Config, connect_timeout: Duration, now: Instant) -> Self {
        Self {
            transport: TargetQueue::new(config),
            pair: QueuePair::new(now, connect_timeout),
            waiting: Waiting::new(config.commands),
            reason: None,
            gone: false,
        }
    }

    /// A command capsule arrived, in a buffer that begins with the capsule's data.
    /// The buffer comes back at once if the command does not need it. Without a buffer a
    /// command that has data in its capsule fails, to be tried again.
    pub fn received<E>(&mut self, command: &Command, buffer: Option<B>, env: &mut E) -> Option<B>
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if self.closing().is_some() {
            return buffer;
        }
        if let Err(fault) = self.transport.arrived() {
            self.fault(fault);
            return buffer;
        }
        if !self.waiting.is_empty() {
            return self.wait(command, buffer);
        }
        self.begin(command, buffer, env)
    }

    /// What arrived was no command capsule.
    pub fn fault(&mut self, fault: Fault) {
        self.close_for(CloseReason::Fault(fault));
    }

    /// A receive failed: the connection is over.
    pub fn broke(&mut self) {
        self.close_for(CloseReason::Failed);
    }

    /// The connection is to end at once, whatever is under way.
    pub fn close_for(&mut self, reason: CloseReason) {
        self.reason.get_or_insert(reason);
    }

    /// The next chain to post; it counts as posted. Without a connection there is none.
    pub fn poll_post(&mut self) -> Option<Post<B>> {
        let (id, work) = self.transport.poll_work()?;
        let buffer = match work {
            Work::Fetch { place, .. } => self.pair.take_buffer(place.slot),
            Work::Respond {
                data: Some((Source::Slot(place), _)),
                ..
            } => self.pair.take_buffer(place.slot),
            Work::Respond { .. } => None,
        };
        Some(Post { id, work, buffer })
    }

    /// Whether [`TargetConnection::poll_post`] has something.
    #[must_use]
    pub fn wants_post(&self) -> bool {
        self.transport.wants_work()
    }

    /// A chain is done.
    pub fn completed<E>(&mut self, id: WorkId, buffer: Option<B>, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        match self.transport.completed(id) {
            Some(Completed::Fetched(ticket)) if !self.gone => {
                self.keep(ticket.slot(), buffer, env);
                self.pair.fetched(ticket, true, &mut self.transport, env);
            }
            Some(Completed::Responded(slot)) => {
                self.keep(slot, buffer, env);
                self.pair.sent(slot, env);
                self.begin_waiting(env);
            }
            Some(Completed::Fetched(_)) | None => give(buffer, env),
        }
    }

    /// A chain failed, or was flushed, or could not be posted: the connection is over.
    pub fn failed<E>(&mut self, id: WorkId, buffer: Option<B>, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.broke();
        self.transport.completed(id);
        give(buffer, env);
    }

    /// A device operation ended.
    pub fn block_completed<E>(&mut self, completion: Completion<B>, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.pair
            .block_completed(completion, &mut self.transport, env);
    }

    /// Whether commands wait for a buffer or a device: call
    /// [`TargetConnection::retry`] when some became free.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.pair.is_waiting()
    }

    /// Lets waiting commands try again.
    pub fn retry<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.pair.retry(&mut self.transport, env);
    }

    /// Another queue changed this one's controller, or the catalog changed.
    pub fn controller_changed<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.pair.controller_changed(&mut self.transport, env);
    }

    /// When [`TargetConnection::handle_timeout`] should be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pair.poll_timeout()
    }

    /// Time passed.
    pub fn handle_timeout<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.pair.handle_timeout(&mut self.transport, env);
    }

    /// Begins no more commands, and closes once those under way are done.
    pub fn shut_down(&mut self) {
        self.pair.shut_down();
    }

    /// Why the connection is to be closed: see [`TargetConnection::may_close`].
    #[must_use]
    pub fn closing(&self) -> Option<CloseReason> {
        self.reason.or(self.pair.close().map(CloseReason::Queue))
    }

    /// Whether to disconnect now: a host that broke the transport at once, others
    /// when all responses are sent.
    #[must_use]
    pub fn may_close(&self) -> bool {
        let sent = self.transport.is_idle() && !self.transport.wants_work();
        self.reason.is_some() || (self.pair.close().is_some() && sent)
    }

    /// The connection is gone. Chains that are under way still complete or fail.
    pub fn connection_closed<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.gone = true;
        self.transport.connection_closed();
        while let Some((_, buffer)) = self.waiting.pop() {
            give(buffer, env);
        }
        self.pair.connection_closed(env);
    }

    /// Whether the connection is gone, and neither a device of ours nor the
    /// network's holds any of its commands: drop it.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.pair.is_drained() && self.transport.is_idle()
    }

    /// The latest thing to log, once.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.pair.poll_notice()
    }

    /// Whose queue this is, once connected.
    #[must_use]
    pub const fn identity(&self) -> Option<&Identity> {
        self.pair.identity()
    }

    fn begin<E>(&mut self, command: &Command, buffer: Option<B>, env: &mut E) -> Option<B>
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let Some((ticket, data)) = self.transport.begin(command) else {
            return self.wait(command, buffer);
        };
        let (data, rest) = match (data, buffer) {
            (InCapsule::Whole(_), None) => (InCapsule::Dropped, None),
            (InCapsule::Whole(_), Some(buffer)) => {
                (data, self.pair.put_buffer(ticket.slot(), buffer))
            }
            (_, buffer) => (data, buffer),
        };
        self.pair
            .command(ticket, command.sqe, data, &mut self.transport, env);
        rest
    }

    /// Only a command's data keeps the buffer that it came in.
    fn wait(&mut self, command: &Command, buffer: Option<B>) -> Option<B> {
        let has_data = matches!(command.data(), InCapsule::Whole(_));
        let (keep, rest) = if has_data {
            (buffer, None)
        } else {
            (None, buffer)
        };
        match self.waiting.push(*command, keep) {
            Ok(()) => rest,
            Err(kept) => {
                self.fault(Fault::TooManyCommands);
                rest.or(kept)
            }
        }
    }

    /// A slot became free.
    fn begin_waiting<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if let Some((command, buffer)) = self.waiting.pop() {
            let rest = self.begin(&command, buffer, env);
            give(rest, env);
        }
    }

    /// The command's buffer is back.
    fn keep<E>(&mut self, slot: SlotId, buffer: Option<B>, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if let Some(buffer) = buffer {
            let rest = self.pair.put_buffer(slot, buffer);
            give(rest, env);
        }
    }
}

fn give<E: Backend>(buffer: Option<E::Buffer>, env: &mut E) {
    if let Some(buffer) = buffer {
        env.give_buffer(buffer);
    }
}

/// Commands that wait for a slot, in order, each with the buffer of its data.
struct Waiting<S: Storage, B> {
    ring: S::Array<Option<(Command, Option<B>)>>,
    first: usize,
    count: usize,
}

impl<S: Storage, B> Waiting<S, B> {
    fn new(commands: u16) -> Self {
        let mut ring = S::new(|_| None);
        S::grow(&mut ring, commands.into(), |_| None);
        Self {
            ring,
            first: 0,
            count: 0,
        }
    }

    const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The buffer comes back if there is no room.
    fn push(&mut self, command: Command, buffer: Option<B>) -> Result<(), Option<B>> {
        let ring = self.ring.as_mut();
        if self.count >= ring.len() {
            return Err(buffer);
        }
        let last = self.first.wrapping_add(self.count);
        let last = last.checked_rem(ring.len()).unwrap_or(0);
        if let Some(place) = ring.get_mut(last) {
            *place = Some((command, buffer));
            self.count = self.count.saturating_add(1);
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<(Command, Option<B>)> {
        if self.count == 0 {
            return None;
        }
        let ring = self.ring.as_mut();
        let waited = ring.get_mut(self.first)?.take();
        let next = self.first.wrapping_add(1);
        self.first = next.checked_rem(ring.len()).unwrap_or(0);
        self.count = self.count.saturating_sub(1);
        waited
    }
}

#[cfg(test)]
mod tests;
