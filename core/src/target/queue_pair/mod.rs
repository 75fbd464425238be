//! One connection's commands, from arrival to completion.
//!
//! A command waits, at any stage, for one thing: a buffer, the host's data, or
//! a device. Its `Plan` says which; `QueuePair::advance` goes on from there.
//!
//! | file | what is in it |
//! |---|---|
//! | this one | what bindings and transports call |
//! | `run` | how a command gets on |
//! | `work` | one command's state, and what is decided by it alone |
mod run;
mod work;

use core::fmt;
use core::ops::Deref;
use core::time::Duration;

use self::work::{After, Decision, Plan, Want, Work};
use super::connect;
use super::controller::Controller;
use super::{Backend, BufferUse, ControllerState, Reply};
use crate::block::Completion;
use crate::storage::{Fifo, NIL, Storage};
use crate::time::{Instant, sooner};
use crate::wire::cqe::Cqe;
use crate::wire::ids::{Cntlid, Nqn, Qid};
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;
use crate::{DataBuffers, InCapsule, Place, SlotId, Ticket, Transport};

/// Why a queue pair is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Close {
    /// No Connect came in time, or the host's was refused and it stayed.
    NotConnected,
    /// The host disconnected the queue.
    Disconnected,
    /// The host's keep alive timer expired.
    KeepAliveExpired,
    /// The controller was reset, was shut down, failed or is gone.
    ControllerEnded,
    /// The target stops.
    ShutDown,
}

impl fmt::Display for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotConnected => "no queue connected in time",
            Self::Disconnected => "the host disconnected the queue",
            Self::KeepAliveExpired => "keep alive expired",
            Self::ControllerEnded => "its controller was reset or is gone",
            Self::ShutDown => "the target stops",
        })
    }
}

/// What a log wants to know, as it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The queue is connected: see [`QueuePair::identity`].
    Connected,
    /// A Connect was refused.
    Refused(connect::RefusalReason),
}

/// Whose queue this is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The controller.
    pub cntlid: Cntlid,
    /// Which of its queues.
    pub qid: Qid,
    /// Index of the subsystem.
    pub subsystem: usize,
    /// The host.
    pub hostnqn: Nqn,
    /// Entries of the submission queue.
    pub entries: u32,
}

/// The queue pair of one connection.
pub struct QueuePair<S: Storage, B, C> {
    works: S::Array<Work<B>>,
    role: Role<S, C>,
    identity: Option<Identity>,
    /// Submission queue head, as completions report it.
    sqhd: Option<SubmissionHead>,
    /// Works that need a buffer or a device that had none free.
    waiting: Fifo,
    in_device: u32,
    deadline: Option<Instant>,
    notice: Option<Notice>,
    close: Option<Close>,
    draining: bool,
    /// The connection is gone.
    gone: bool,
}

enum Role<S: Storage, C> {
    Unconnected,
    Admin(S::Apart<Controller<C>>),
    Io { controller: C, epoch: u32 },
    Left,
}

/// SQHD while SQ flow control is on.
#[derive(Clone, Copy)]
struct SubmissionHead {
    head: u16,
    entries: u32,
}

impl<S, B, C> QueuePair<S, B, C>
where
    S: Storage,
    B: AsRef<[u8]> + AsMut<[u8]>,
    C: Deref<Target = ControllerState> + Clone,
{
    /// For a new connection, which has until `connect_timeout` to send a Connect.
    #[must_use]
    pub fn new(now: Instant, connect_timeout: Duration) -> Self {
        Self {
            works: S::new(|_| Work::new()),
            role: Role::Unconnected,
            identity: None,
            sqhd: Some(SubmissionHead {
                head: 0,
                entries: u32::MAX,
            }),
            waiting: Fifo::new(),
            in_device: 0,
            deadline: Some(now.after(connect_timeout)),
            notice: None,
            close: None,
            draining: false,
            gone: false,
        }
    }

    /// Whose queue this is, once connected.
    #[must_use]
    pub const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Why the connection is to be closed, once what is queued has been sent.
    #[must_use]
    pub const fn close(&self) -> Option<Close> {
        self.close
    }

    /// The latest notice, once.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }

    /// A command arrived.
    pub fn command<E>(
        &mut self,
        ticket: Ticket,
        sqe: Sqe,
        data: InCapsule<'_>,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        let slot = ticket.slot();
        self.make_room(slot);
        self.close_with_epoch();
        // Nothing new begins on a queue that is closing: the host will see its end.
        if self.close.is_some() || self.draining {
            return;
        }
        if let Some(work) = self.work(slot) {
            work.sqe = sqe;
            work.ticket = Some(ticket);
            work.cursor = 0;
            work.data_len = match data {
                InCapsule::Whole(len) => len,
                _ => 0,
            };
        }
        let decision = match self.check(&sqe, data) {
            Ok(()) => self.begin(slot, &sqe, env),
            Err(status) => Decision::Reply(Reply::status(status)),
        };
        if let Decision::Reply(_) = decision {
            // What an Abort aborted completes before the Abort does.
            self.events(transport, env);
        }
        self.decide(slot, decision, data, transport, env);
        self.events(transport, env);
    }

    /// The data that was fetched for a command is in its buffer.
    pub fn fetched<E>(
        &mut self,
        ticket: Ticket,
        intact: bool,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        let slot = ticket.slot();
        let Some(work) = self.work(slot) else { return };
        work.ticket = Some(ticket);
        let plan = work.plan;
        if let (true, Plan::Fetching(then)) = (intact, plan) {
            self.data_arrived(slot, then, transport, env);
        } else {
            let reply = Reply::status(Status::TRANSIENT_TRANSPORT_ERROR);
            self.complete(slot, reply, transport, env);
        }
        self.events(transport, env);
    }

    /// The last of a command's response is sent: its buffer is free.
    pub fn sent<E>(&mut self, slot: SlotId, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if let Some(work) = self.work(slot) {
            work.plan = Plan::Idle;
            if let Some(buffer) = work.buffer.take() {
                env.give_buffer(buffer);
            }
        }
        if self.draining {
            self.close_when_idle();
        }
    }

    /// A device operation ended; the completion's tag is the slot.
    pub fn block_completed<E>(
        &mut self,
        completion: Completion<B>,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.in_device = self.in_device.saturating_sub(1);
        let slot = SlotId(u16::try_from(completion.tag).unwrap_or(NIL));
        if self.gone {
            if let Some(buffer) = completion.buffer {
                env.give_buffer(buffer);
            }
            self.leave_when_drained(env);
            return;
        }
        if let Some((namespace, op)) = self.operation_ended(slot, completion, transport, env) {
            self.submit(slot, namespace, op, After::Steps, transport, env);
        }
        self.events(transport, env);
    }

    /// Whether commands wait for buffers or devices: call [`QueuePair::retry`]
    /// when some became free.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.waiting.first().is_some()
    }

    /// Lets waiting commands try again, in their order: until one must wait on for a
    /// buffer those that want one, and until a device is busy those that have what it
    /// takes. Neither wait behind the others, whose want may be the buffer that these hold.
    pub fn retry<E>(&mut self, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let mut todo = core::mem::replace(&mut self.waiting, Fifo::new());
        let (mut no_buffer, mut busy) = (false, false);
        while let Some(slot) = todo.pop(self.works.as_mut()) {
            let slot = SlotId(slot);
            match self.work(slot).and_then(|work| work.want()) {
                Some(Want::Buffer) if no_buffer => self.wait(slot),
                Some(Want::Device) if busy => self.wait(slot),
                _ => self.advance(slot, transport, env),
            }
            match self.work(slot).and_then(|work| work.want()) {
                Some(Want::Buffer) => no_buffer = true,
                Some(Want::Device) => busy = true,
                None => {}
            }
        }
    }

    /// Whether nothing here ends before the host sends data: commands that wait for a
    /// buffer do so behind those that have one and wait for data. (Another queue may give
    /// some back, but need not.)
    #[must_use]
    pub(crate) fn is_stuck(&self) -> bool {
        let mut fetching = false;
        self.works.as_ref().iter().all(|work| {
            fetching |= matches!(work.plan, Plan::Fetching(_));
            matches!(work.plan, Plan::Fetching(_) | Plan::Held) || work.want() == Some(Want::Buffer)
        }) && fetching
    }

    /// The completion of a command for which there is no room, to be tried again.
    pub(crate) fn refuse(&mut self, sqe: &Sqe) -> Cqe {
        let status = Status::TRANSIENT_TRANSPORT_ERROR;
        if let Role::Admin(controller) = &mut self.role {
            controller.note_error(Qid(0), sqe, status);
        }
        self.cqe_of(sqe.cid(), Reply::status(status))
    }

    /// Another queue changed the controller: see whether this one must close.
    pub fn controller_changed<E>(&mut self, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.close_with_epoch();
        self.events(transport, env);
    }

    /// When [`QueuePair::handle_timeout`] should be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let admin = match &self.role {
            Role::Admin(controller) => controller.poll_timeout(),
            _ => None,
        };
        sooner(self.deadline, admin)
    }

    /// Time passed.
    pub fn handle_timeout<E>(&mut self, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if self.deadline.is_some_and(|deadline| deadline <= env.now()) {
            self.deadline = None;
            self.close_for(Close::NotConnected);
        }
        if let Role::Admin(controller) = &mut self.role
            && controller.handle_timeout(env).is_err()
        {
            self.close_for(Close::KeepAliveExpired);
        }
        self.events(transport, env);
    }

    /// Begins no more commands, and closes once those under way are done.
    pub fn shut_down(&mut self) {
        self.draining = true;
        self.close_when_idle();
    }

    /// The connection is gone: frees all that devices do not hold.
    pub fn connection_closed<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.gone = true;
        self.deadline = None;
        self.waiting = Fifo::new();
        for work in self.works.as_mut() {
            work.ticket = None;
            work.plan = Plan::Idle;
            if let Some(buffer) = work.buffer.take() {
                env.give_buffer(buffer);
            }
        }
        self.leave_when_drained(env);
    }

    /// Whether the connection is gone and no device holds any of its commands.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.gone && self.in_device == 0
    }

    /// The bytes of a command's buffer at `place`, for the transport to send.
    #[must_use]
    pub fn payload(&self, place: &Place) -> &[u8] {
        let (from, len) = (place.offset as usize, place.len as usize);
        self.works
            .as_ref()
            .get(place.slot.index())
            .and_then(|work| work.buffer.as_ref())
            .and_then(|buffer| buffer.as_ref().get(from..)?.get(..len))
            .unwrap_or(&[])
    }

    /// Takes a command's buffer away, for a network's device to have while it reads or
    /// writes it: it comes back by [`QueuePair::put_buffer`], before anything else is
    /// said of the command.
    pub(crate) fn take_buffer(&mut self, slot: SlotId) -> Option<B> {
        self.work(slot)?.buffer.take()
    }

    /// Gives a command a buffer; it comes back if the command has one, or is none.
    pub(crate) fn put_buffer(&mut self, slot: SlotId, buffer: B) -> Option<B> {
        self.make_room(slot);
        match self.work(slot) {
            Some(work) if work.buffer.is_none() => {
                work.buffer = Some(buffer);
                None
            }
            _ => Some(buffer),
        }
    }

    /// The buffer at `place`, for the transport to receive into.
    pub fn payload_mut(&mut self, place: &Place) -> &mut [u8] {
        let (from, len) = (place.offset as usize, place.len as usize);
        self.work(place.slot)
            .and_then(|work| work.buffer.as_mut())
            .and_then(|buffer| buffer.as_mut().get_mut(from..)?.get_mut(..len))
            .unwrap_or_default()
    }
}

/// A queue pair's buffers while data arrives.
pub(crate) struct Arriving<'a, S: Storage, B, C, E> {
    pub(crate) pair: &'a mut QueuePair<S, B, C>,
    pub(crate) env: &'a mut E,
}

impl<S, B, C, E> DataBuffers for Arriving<'_, S, B, C, E>
where
    S: Storage,
    B: AsRef<[u8]> + AsMut<[u8]>,
    C: Deref<Target = ControllerState> + Clone,
    E: Backend<Buffer = B, Controller = C>,
{
    fn reserve(&mut self, slot: SlotId, len: u32) -> bool {
        self.pair.make_room(slot);
        let Some(work) = self.pair.work(slot) else {
            return false;
        };
        if work.buffer.is_none() {
            work.buffer = self.env.take_buffer(len, BufferUse::InCapsule);
        }
        work.buffer.is_some()
    }

    fn place(&mut self, place: Place) -> &mut [u8] {
        self.pair.payload_mut(&place)
    }
}
