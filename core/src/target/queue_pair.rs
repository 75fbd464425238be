//! One connection's commands, from arrival to completion.
//!
//! A command waits, at any stage, for one thing: a buffer, the host's data, or
//! a device. [`Plan`] says which; [`QueuePair::advance`] goes on from there.
use core::fmt;
use core::ops::Deref;
use core::time::Duration;

use super::connect::{self, Connected, Role as ConnectedRole};
use super::controller::Controller;
use super::io::{self, First, Next};
use super::{
    ADMIN_INLINE_DATA, AdminStep, Backend, BufferUse, ControllerState, NamespaceRef, Reply,
};
use crate::block::{Completion, Extent, MediaError, Op, Request, Submit};
use crate::storage::{Fifo, Link, NIL, Storage};
use crate::time::{Instant, sooner};
use crate::wire::connect::ConnectData;
use crate::wire::cqe::Cqe;
use crate::wire::ids::{Cid, Cntlid, Nqn, Qid};
use crate::wire::sqe::{Fctype, Fuse, Psdt, Sqe};
use crate::wire::status::Status;
use crate::{DataBuffers, InCapsule, Place, SlotId, Source, Ticket, Transport};

/// Bytes of a Connect's data.
const CONNECT_DATA: u32 = 1024;
const _: () = assert!(CONNECT_DATA as usize == size_of::<ConnectData>());

/// Why a queue pair is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    role: Role<C>,
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

#[allow(
    clippy::large_enum_variant,
    reason = "there is no allocator to box the controller with"
)]
enum Role<C> {
    Unconnected,
    Admin(Controller<C>),
    Io { controller: C, epoch: u32 },
    Left,
}

/// SQHD while SQ flow control is on.
#[derive(Clone, Copy)]
struct SubmissionHead {
    head: u16,
    entries: u32,
}

struct Work<B> {
    sqe: Sqe,
    ticket: Option<Ticket>,
    buffer: Option<B>,
    plan: Plan,
    /// Bytes of the host's data that are in the buffer.
    data_len: u32,
    /// Steps of a command of several device operations that are done.
    cursor: u32,
    next: u16,
}

/// What a command is about to do, or waits for.
#[derive(Clone, Copy)]
enum Plan {
    /// There is no command.
    Idle,
    /// A buffer, then this many bytes from the host.
    Fetch(u32),
    /// The host's data.
    Fetching,
    /// A buffer, to be filled with this much of an answer and sent.
    Respond(u32),
    /// A buffer, to be read into and sent.
    Read(NamespaceRef, Extent),
    /// A device, with the buffer as it is.
    Submit(NamespaceRef, Op),
    /// The device's answer to either.
    InDevice { read: Option<u32> },
    /// Something that may never happen.
    Held,
    /// The transport's last word.
    Completed,
}

impl<B> Work<B> {
    fn new() -> Self {
        Self {
            sqe: Sqe::new(0, Cid(0)),
            ticket: None,
            buffer: None,
            plan: Plan::Idle,
            data_len: 0,
            cursor: 0,
            next: NIL,
        }
    }
}

impl<B> Link for Work<B> {
    fn next(&mut self) -> &mut u16 {
        &mut self.next
    }
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
        data: InCapsule,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        let slot = ticket.slot();
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
        // What an Abort aborted completes before the Abort does.
        self.events(transport, env);
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
        if intact {
            self.data_arrived(slot, transport, env);
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
            self.submit(slot, namespace, op, transport, env);
        }
        self.events(transport, env);
    }

    /// Whether commands wait for buffers or devices: call [`QueuePair::retry`]
    /// when some became free.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.waiting.first().is_some()
    }

    /// Lets waiting commands try again, in their order, until one must wait on.
    pub fn retry<E>(&mut self, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let mut todo = core::mem::replace(&mut self.waiting, Fifo::new());
        while let Some(slot) = todo.pop(self.works.as_mut()) {
            self.advance(SlotId(slot), transport, env);
            if self.waiting.first().is_some() {
                // It waits again: so do all behind it, in order.
                while let Some(slot) = todo.pop(self.works.as_mut()) {
                    self.waiting.push(self.works.as_mut(), slot);
                }
            }
        }
    }

    /// Another queue changed the controller: see whether this one must close.
    pub fn controller_changed<E>(&mut self, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if let Role::Io { controller, epoch } = &self.role
            && controller.epoch() != *epoch
        {
            self.close_for(Close::ControllerEnded);
        }
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

    /// The buffer at `place`, for the transport to receive into.
    pub fn payload_mut(&mut self, place: &Place) -> &mut [u8] {
        let (from, len) = (place.offset as usize, place.len as usize);
        self.work(place.slot)
            .and_then(|work| work.buffer.as_mut())
            .and_then(|buffer| buffer.as_mut().get_mut(from..)?.get_mut(..len))
            .unwrap_or_default()
    }

    fn work(&mut self, slot: SlotId) -> Option<&mut Work<B>> {
        self.works.as_mut().get_mut(slot.index())
    }

    /// What holds for every command, whatever it is.
    fn check(&self, sqe: &Sqe, data: InCapsule) -> Result<(), Status> {
        // Fused operations are not offered (FUSES), and fabrics use SGLs only.
        if sqe.fuse() != Fuse::Normal || !matches!(sqe.psdt(), Psdt::Sgl | Psdt::SglMptrSgl) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        match data {
            InCapsule::Misplaced => Err(Status::SGL_OFFSET_INVALID.with_dnr()),
            InCapsule::Dropped | InCapsule::Corrupt => Err(Status::TRANSIENT_TRANSPORT_ERROR),
            InCapsule::Nothing | InCapsule::Whole(_) => Ok(()),
        }
    }

    fn begin<E>(&mut self, slot: SlotId, sqe: &Sqe, env: &mut E) -> Decision
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        match &mut self.role {
            Role::Unconnected if sqe.is_fabrics() && sqe.fctype() == Fctype::Connect => {
                Decision::Fetch {
                    len: CONNECT_DATA.min(sqe.sgl().data_len()),
                    exact: false,
                }
            }
            Role::Unconnected | Role::Left => {
                Decision::Reply(Reply::status(Status::COMMAND_SEQUENCE_ERROR.with_dnr()))
            }
            Role::Admin(controller) => match controller.command(slot.0, sqe, env) {
                AdminStep::Reply(reply) => Decision::Reply(reply),
                AdminStep::Fetch { len } => Decision::Fetch { len, exact: false },
                AdminStep::Respond { len } => Decision::Respond(len),
                AdminStep::Held => Decision::Held,
                AdminStep::Disconnect(reply) => Decision::Disconnect(reply),
            },
            Role::Io { controller, .. } => {
                controller.note_traffic();
                if sqe.is_fabrics() {
                    return io_fabrics(sqe);
                }
                if !controller.is_ready() {
                    let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
                    return Decision::Reply(Reply::status(status));
                }
                io::begin(sqe, controller.subsystem, env).into()
            }
        }
    }

    fn decide<E>(
        &mut self,
        slot: SlotId,
        decision: Decision,
        data: InCapsule,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        let Some(work) = self.work(slot) else { return };
        work.plan = match decision {
            Decision::Reply(reply) => return self.complete(slot, reply, transport, env),
            Decision::Disconnect(reply) => {
                self.complete(slot, reply, transport, env);
                return self.close_for(Close::Disconnected);
            }
            Decision::Held => {
                work.plan = Plan::Held;
                return;
            }
            Decision::Submit(namespace, op) => Plan::Submit(namespace, op),
            Decision::Fetch { len, exact } => {
                match transfer(&work.sqe, len, Data::FromHost { exact }, transport) {
                    Err(status) => {
                        return self.complete(slot, Reply::status(status), transport, env);
                    }
                    Ok(()) => match data {
                        InCapsule::Whole(_) => return self.data_arrived(slot, transport, env),
                        _ if len == 0 => return self.data_arrived(slot, transport, env),
                        _ => Plan::Fetch(len),
                    },
                }
            }
            Decision::Respond(len) => {
                match transfer(&work.sqe, len, Data::ToHost { exact: false }, transport) {
                    Err(status) => {
                        return self.complete(slot, Reply::status(status), transport, env);
                    }
                    Ok(()) => Plan::Respond(len),
                }
            }
            Decision::Read(namespace, extent) => {
                let len = u32::try_from(extent.len).unwrap_or(u32::MAX);
                match transfer(&work.sqe, len, Data::ToHost { exact: true }, transport) {
                    Err(status) => {
                        return self.complete(slot, Reply::status(status), transport, env);
                    }
                    Ok(()) => Plan::Read(namespace, extent),
                }
            }
        };
        self.advance(slot, transport, env);
    }

    /// Does what the plan says, or waits.
    fn advance<E>(&mut self, slot: SlotId, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let Some(work) = self.work(slot) else { return };
        match work.plan {
            Plan::Fetch(len) => {
                if !hold_buffer(work, len, env) {
                    return self.wait(slot);
                }
                work.plan = Plan::Fetching;
                work.data_len = len;
                if let Some(ticket) = work.ticket.take() {
                    transport.fetch(ticket, len);
                }
            }
            Plan::Respond(len) => {
                if !hold_buffer(work, len, env) {
                    return self.wait(slot);
                }
                self.respond(slot, len, transport, env);
            }
            Plan::Read(namespace, extent) => {
                let len = u32::try_from(extent.len).unwrap_or(u32::MAX);
                if transport.sends_media() && env.lends(namespace) {
                    let source = Source::Media {
                        namespace,
                        byte: extent.byte,
                        len,
                    };
                    return self.send(slot, source, transport);
                }
                if !hold_buffer(work, len, env) {
                    return self.wait(slot);
                }
                self.submit(slot, namespace, Op::Read(extent), transport, env);
            }
            Plan::Submit(namespace, op) => self.submit(slot, namespace, op, transport, env),
            Plan::Idle | Plan::Fetching | Plan::InDevice { .. } | Plan::Held | Plan::Completed => {}
        }
    }

    fn wait(&mut self, slot: SlotId) {
        self.waiting.push(self.works.as_mut(), slot.0);
    }

    /// Gives a device an operation, and those that follow from it.
    fn submit<E>(
        &mut self,
        slot: SlotId,
        mut namespace: NamespaceRef,
        mut op: Op,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        loop {
            let Some(work) = self.work(slot) else { return };
            let request = Request {
                tag: u64::from(slot.0),
                op,
                buffer: work.buffer.take(),
            };
            let before = work.plan;
            work.plan = Plan::InDevice {
                read: match op {
                    Op::Read(extent) => u32::try_from(extent.len).ok(),
                    _ => None,
                },
            };
            match env.submit(namespace, request) {
                Submit::Pending => {
                    self.in_device = self.in_device.saturating_add(1);
                    return;
                }
                Submit::Busy(request) => {
                    work.buffer = request.buffer;
                    work.plan = before;
                    return self.wait(slot);
                }
                Submit::Done(completion) => {
                    match self.operation_ended(slot, completion, transport, env) {
                        Some(next) => (namespace, op) = next,
                        None => return,
                    }
                }
            }
        }
    }

    /// Goes on with a command after a device operation; returns the next one, if it takes another.
    fn operation_ended<E>(
        &mut self,
        slot: SlotId,
        completion: Completion<B>,
        transport: &mut impl Transport,
        env: &mut E,
    ) -> Option<(NamespaceRef, Op)>
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let work = self.work(slot)?;
        work.buffer = completion.buffer;
        if let Err(error) = completion.result {
            self.complete(slot, Reply::status(media_status(error)), transport, env);
            return None;
        }
        if let Plan::InDevice { read: Some(len) } = work.plan {
            let place = Place {
                slot,
                offset: 0,
                len,
            };
            self.send(slot, Source::Slot(place), transport);
            return None;
        }
        work.cursor = work.cursor.saturating_add(1);
        self.go_on(slot, transport, env)
    }

    /// The command has its data (if it takes any).
    fn data_arrived<E>(&mut self, slot: SlotId, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if let Some((namespace, op)) = self.go_on(slot, transport, env) {
            self.submit(slot, namespace, op, transport, env);
        }
    }

    /// The next device operation of a command that has its data; without one it completes.
    fn go_on<E>(
        &mut self,
        slot: SlotId,
        transport: &mut impl Transport,
        env: &mut E,
    ) -> Option<(NamespaceRef, Op)>
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let work = self.works.as_mut().get_mut(slot.index())?;
        let data = work
            .buffer
            .as_ref()
            .and_then(|buffer| buffer.as_ref().get(..work.data_len as usize))
            .unwrap_or(&[]);
        let reply = match &mut self.role {
            Role::Unconnected => match connect::connect(env, &work.sqe, data) {
                Ok(connected) => self.connected(connected, transport, env),
                Err(refusal) => {
                    self.notice = Some(Notice::Refused(refusal.reason));
                    refusal.reply
                }
            },
            Role::Admin(controller) => controller.write_data(&work.sqe, data, env),
            Role::Io { controller, .. } => {
                match io::go_on(&work.sqe, controller.subsystem, work.cursor, data, env) {
                    Next::Submit(namespace, op) => {
                        work.plan = Plan::Submit(namespace, op);
                        return Some((namespace, op));
                    }
                    Next::Reply(status) => Reply::status(status),
                }
            }
            Role::Left => return None,
        };
        self.complete(slot, reply, transport, env);
        None
    }

    fn connected<E>(
        &mut self,
        connected: Connected<C>,
        transport: &mut impl Transport,
        env: &mut E,
    ) -> Reply
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let reply = connected.reply();
        let (role, inline_data) = match connected.role {
            ConnectedRole::Admin(controller) => (Role::Admin(controller), ADMIN_INLINE_DATA),
            ConnectedRole::Io(controller) => {
                let epoch = connected.epoch;
                (Role::Io { controller, epoch }, env.limits().inline_data)
            }
        };
        let subsystem = match &role {
            Role::Admin(controller) => controller.state().subsystem,
            Role::Io { controller, .. } => controller.subsystem,
            _ => 0,
        };
        self.role = role;
        self.identity = Some(Identity {
            cntlid: connected.cntlid,
            qid: connected.qid,
            subsystem,
            hostnqn: connected.host.nqn,
            entries: connected.entries,
        });
        self.sqhd = connected.sq_flow_control.then_some(SubmissionHead {
            head: 0,
            entries: connected.entries,
        });
        self.deadline = None;
        self.notice = Some(Notice::Connected);
        S::grow(&mut self.works, connected.entries as usize, |_| Work::new());
        transport.connected(connected.entries, inline_data, connected.sq_flow_control);
        reply
    }

    /// Fills the buffer with the answer to an admin command and sends it.
    fn respond<E>(&mut self, slot: SlotId, len: u32, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let Role::Admin(controller) = &mut self.role else {
            return;
        };
        let Some(work) = self.works.as_mut().get_mut(slot.index()) else {
            return;
        };
        let out = work
            .buffer
            .as_mut()
            .and_then(|buffer| buffer.as_mut().get_mut(..len as usize))
            .unwrap_or_default();
        let reply = controller.read_data(&work.sqe, out, env);
        if reply.status != Status::SUCCESS || len == 0 {
            return self.complete(slot, reply, transport, env);
        }
        let place = Place {
            slot,
            offset: 0,
            len,
        };
        let cqe = self.cqe(slot, reply);
        self.finish(slot, |ticket| {
            transport.send(ticket, Source::Slot(place), cqe)
        });
    }

    fn send(&mut self, slot: SlotId, source: Source, transport: &mut impl Transport) {
        let cqe = self.cqe(slot, Reply::SUCCESS);
        self.finish(slot, |ticket| transport.send(ticket, source, cqe));
    }

    fn complete<E>(
        &mut self,
        slot: SlotId,
        reply: Reply,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        if let Some(buffer) = self.work(slot).and_then(|work| work.buffer.take()) {
            env.give_buffer(buffer);
        }
        if reply.status != Status::SUCCESS
            && let Role::Admin(controller) = &mut self.role
            && let Some(work) = self.works.as_ref().get(slot.index())
        {
            controller.note_error(Qid(0), &work.sqe, reply.status);
        }
        let cqe = self.cqe(slot, reply);
        self.finish(slot, |ticket| transport.complete(ticket, cqe));
    }

    fn finish(&mut self, slot: SlotId, hand_over: impl FnOnce(Ticket)) {
        let Some(work) = self.work(slot) else { return };
        work.plan = Plan::Completed;
        if let Some(ticket) = work.ticket.take() {
            hand_over(ticket);
        }
    }

    /// NVMe Base 2.0, section 3.3.1.2.1.1: SQHD moves with each completion.
    fn cqe(&mut self, slot: SlotId, reply: Reply) -> Cqe {
        let cid = self.work(slot).map_or(Cid(0), |work| work.sqe.cid());
        let mut cqe = Cqe::new(cid, reply.status).with_result(reply.result);
        cqe.set_sqhd(match &mut self.sqhd {
            None => Cqe::SQHD_FLOW_CONTROL_DISABLED,
            Some(sq) => {
                let next = u32::from(sq.head).wrapping_add(1);
                sq.head = if next >= sq.entries {
                    0
                } else {
                    u16::try_from(next).unwrap_or(0)
                };
                sq.head
            }
        });
        cqe
    }

    /// Completes what the controller held, if something happened.
    fn events<E>(&mut self, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        while let Role::Admin(controller) = &mut self.role
            && let Some((slot, reply)) = controller.poll_event(env)
        {
            self.complete(SlotId(slot), reply, transport, env);
        }
    }

    fn close_for(&mut self, reason: Close) {
        self.close.get_or_insert(reason);
    }

    fn close_when_idle(&mut self) {
        let idle = |work: &Work<B>| matches!(work.plan, Plan::Idle | Plan::Held);
        if self.works.as_ref().iter().all(idle) {
            self.close_for(Close::ShutDown);
        }
    }

    fn leave_when_drained<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if !self.is_drained() {
            return;
        }
        let qid = self
            .identity
            .as_ref()
            .map_or(Qid(0), |identity| identity.qid);
        match core::mem::replace(&mut self.role, Role::Left) {
            Role::Admin(controller) => env.leave_controller(controller.state(), qid),
            Role::Io { controller, .. } => env.leave_controller(&controller, qid),
            Role::Unconnected | Role::Left => {}
        }
    }
}

/// What a command does first.
enum Decision {
    Reply(Reply),
    Disconnect(Reply),
    Held,
    /// Bytes from the host; `exact`: its descriptor must say just that many.
    Fetch {
        len: u32,
        exact: bool,
    },
    Respond(u32),
    Read(NamespaceRef, Extent),
    Submit(NamespaceRef, Op),
}

impl From<First> for Decision {
    fn from(first: First) -> Self {
        match first {
            First::Reply(status) => Self::Reply(Reply::status(status)),
            First::Fetch { len, exact } => Self::Fetch { len, exact },
            First::Read(namespace, extent) => Self::Read(namespace, extent),
            First::Submit(namespace, op) => Self::Submit(namespace, op),
        }
    }
}

/// Fabrics commands on an I/O queue (NVMe Base 2.0, section 6).
fn io_fabrics(sqe: &Sqe) -> Decision {
    match sqe.fctype() {
        Fctype::Disconnect => Decision::Disconnect(Reply::SUCCESS),
        Fctype::Connect => {
            Decision::Reply(Reply::status(Status::COMMAND_SEQUENCE_ERROR.with_dnr()))
        }
        _ => Decision::Reply(Reply::status(Status::INVALID_OPCODE.with_dnr())),
    }
}

/// Which way a command's data goes, and whether its descriptor must say just
/// how much, or may say more.
#[derive(Clone, Copy)]
enum Data {
    FromHost { exact: bool },
    ToHost { exact: bool },
}

/// Whether the command's descriptor covers the `len` bytes that it moves.
fn transfer(sqe: &Sqe, len: u32, data: Data, transport: &impl Transport) -> Result<(), Status> {
    let sgl = sqe.sgl();
    let (to_host, exact) = match data {
        Data::FromHost { exact } => (false, exact),
        Data::ToHost { exact } => (true, exact),
    };
    let fits = if exact {
        sgl.data_len() == len
    } else {
        sgl.data_len() >= len
    };
    if !transport.accepts(&sgl, to_host) {
        Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr())
    } else if !fits {
        Err(Status::SGL_DATA_LENGTH_INVALID.with_dnr())
    } else {
        Ok(())
    }
}

/// Whether the command has a buffer, now or already.
fn hold_buffer<E: Backend>(work: &mut Work<E::Buffer>, len: u32, env: &mut E) -> bool {
    if work.buffer.is_none() {
        work.buffer = env.take_buffer(len, BufferUse::Transfer);
    }
    work.buffer.is_some()
}

/// What a host is told of a device's failure.
const fn media_status(error: MediaError) -> Status {
    match error {
        MediaError::Read => Status::UNRECOVERED_READ_ERROR,
        MediaError::Write => Status::WRITE_FAULT,
        MediaError::Miscompare => Status::COMPARE_FAILURE,
        MediaError::Full => Status::CAPACITY_EXCEEDED,
        MediaError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED,
        MediaError::Unsupported => Status::INVALID_OPCODE,
        MediaError::NotReady => Status::NAMESPACE_NOT_READY,
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
