//! How a command gets on: from its arrival, by what it waits for, to its completion.
use core::ops::Deref;

use super::work::{
    After, Decision, Plan, Then, Work, check_descriptor, data_len, hold_buffer, io_fabrics,
    media_status,
};
use super::{Close, Identity, Notice, QueuePair, Role, SubmissionHead};
use crate::block::{Completion, Op, Request, Submit};
use crate::bytes::copy_prefix;
use crate::storage::Storage;
use crate::target::connect::{self, Connected, Role as ConnectedRole};
use crate::target::io::{self, Next};
use crate::target::{
    ADMIN_INLINE_DATA, AdminStep, Backend, BufferUse, ControllerState, NamespaceRef, Reply,
};
use crate::wire::connect::ConnectData;
use crate::wire::cqe::Cqe;
use crate::wire::ids::{Cid, Qid};
use crate::wire::sqe::{Fctype, Fuse, Psdt, Sqe};
use crate::wire::status::Status;
use crate::{InCapsule, Place, SlotId, Source, Ticket, Transport};

/// Bytes of a Connect's data.
const CONNECT_DATA: u32 = 1024;
const _: () = assert!(CONNECT_DATA as usize == size_of::<ConnectData>());

impl<S, B, C> QueuePair<S, B, C>
where
    S: Storage,
    B: AsRef<[u8]> + AsMut<[u8]>,
    C: Deref<Target = ControllerState> + Clone,
{
    pub(super) fn work(&mut self, slot: SlotId) -> Option<&mut Work<B>> {
        self.works.as_mut().get_mut(slot.index())
    }

    /// There is state for as many commands as were under way at a time so far.
    pub(super) fn make_room(&mut self, slot: SlotId) {
        let needed = slot.index().saturating_add(1);
        if self.works.as_ref().len() < needed {
            S::grow(&mut self.works, needed, |_| Work::new());
        }
    }

    /// What holds for every command, whatever it is.
    pub(super) fn check(&self, sqe: &Sqe, data: InCapsule<'_>) -> Result<(), Status> {
        // Fused operations are not offered (FUSES), and fabrics use SGLs only.
        if sqe.fuse() != Fuse::Normal || !matches!(sqe.psdt(), Psdt::Sgl | Psdt::SglMptrSgl) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        match data {
            InCapsule::Misplaced => Err(Status::SGL_OFFSET_INVALID.with_dnr()),
            InCapsule::Dropped | InCapsule::Corrupt => Err(Status::TRANSIENT_TRANSPORT_ERROR),
            InCapsule::Nothing | InCapsule::Here(_) | InCapsule::Whole(_) => Ok(()),
        }
    }

    pub(super) fn begin<E>(&mut self, slot: SlotId, sqe: &Sqe, env: &mut E) -> Decision
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        match &mut self.role {
            Role::Unconnected if sqe.is_fabrics() && sqe.fctype() == Fctype::Connect => {
                Decision::Fetch {
                    len: CONNECT_DATA.min(sqe.sgl().data_len()),
                    exact: false,
                    then: Then::Steps,
                }
            }
            Role::Unconnected | Role::Left => {
                Decision::Reply(Reply::status(Status::COMMAND_SEQUENCE_ERROR.with_dnr()))
            }
            Role::Admin(controller) => match controller.command(slot.0, sqe, env) {
                AdminStep::Reply(reply) => Decision::Reply(reply),
                AdminStep::Fetch { len } => Decision::Fetch {
                    len,
                    exact: false,
                    then: Then::Steps,
                },
                AdminStep::Respond { len } => Decision::Respond(len),
                AdminStep::Held => Decision::Held,
                AdminStep::Disconnect(reply) => Decision::Disconnect(reply),
            },
            Role::Io { controller, .. } => {
                controller.note_traffic();
                if sqe.is_fabrics() {
                    return io_fabrics(sqe);
                }
                io::begin(sqe, controller.subsystem, env).into()
            }
        }
    }

    pub(super) fn decide<E>(
        &mut self,
        slot: SlotId,
        decision: Decision,
        data: InCapsule<'_>,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        let Some(work) = self.work(slot) else { return };
        if let Err(status) = check_descriptor(&work.sqe, &decision, transport) {
            return self.complete(slot, Reply::status(status), transport, env);
        }
        work.plan = match decision {
            Decision::Reply(reply) => return self.complete(slot, reply, transport, env),
            Decision::Disconnect(reply) => {
                self.complete(slot, reply, transport, env);
                return self.close_for(Close::Disconnected);
            }
            Decision::Held => {
                if let Some(buffer) = work.buffer.take() {
                    env.give_buffer(buffer);
                }
                Plan::Held
            }
            Decision::Go(then) => return self.data_arrived(slot, then, transport, env),
            Decision::Fetch { len, then, .. } => match data {
                InCapsule::Here(data) => return self.data_here(slot, data, then, transport, env),
                InCapsule::Whole(_) => return self.data_arrived(slot, then, transport, env),
                _ if len == 0 => return self.data_arrived(slot, then, transport, env),
                _ => Plan::Fetch(len, then),
            },
            Decision::Respond(len) => Plan::Respond(len),
            Decision::Read(namespace, extent) => Plan::Read(namespace, extent),
        };
        self.advance(slot, transport, env);
    }

    /// Does what the plan says, or waits.
    pub(super) fn advance<E>(&mut self, slot: SlotId, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let Some(work) = self.work(slot) else { return };
        match work.plan {
            Plan::Fetch(len, then) => {
                if !hold_buffer(work, len, env) {
                    return self.wait(slot);
                }
                work.plan = Plan::Fetching(then);
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
                let len = data_len(&extent);
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
                let after = After::Send(len);
                self.submit(slot, namespace, Op::Read(extent), after, transport, env);
            }
            Plan::Submit(namespace, op, after) => {
                self.submit(slot, namespace, op, after, transport, env);
            }
            Plan::Idle | Plan::Fetching(_) | Plan::InDevice(_) | Plan::Held | Plan::Completed => {}
        }
    }

    pub(super) fn wait(&mut self, slot: SlotId) {
        self.waiting.push(self.works.as_mut(), slot.0);
    }

    /// Gives a device an operation, and those that follow from it.
    pub(super) fn submit<E>(
        &mut self,
        slot: SlotId,
        mut namespace: NamespaceRef,
        mut op: Op,
        after: After,
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
            work.plan = Plan::InDevice(after);
            match env.submit(namespace, request) {
                Submit::Pending => {
                    self.in_device = self.in_device.saturating_add(1);
                    return;
                }
                Submit::Busy(request) => {
                    work.buffer = request.buffer;
                    work.plan = Plan::Submit(namespace, request.op, after);
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
    pub(super) fn operation_ended<E>(
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
        match work.plan {
            Plan::InDevice(After::Send(len)) => {
                let place = Place {
                    slot,
                    offset: 0,
                    len,
                };
                self.send(slot, Source::Slot(place), transport);
                None
            }
            Plan::InDevice(After::Complete) => {
                self.complete(slot, Reply::SUCCESS, transport, env);
                None
            }
            _ => {
                work.cursor = work.cursor.saturating_add(1);
                self.go_on(slot, transport, env)
            }
        }
    }

    /// The command's data is in memory of the transport's: it goes straight to a device that
    /// can take it now, or else to a buffer.
    fn data_here<E>(
        &mut self,
        slot: SlotId,
        data: &[u8],
        then: Then,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        if let Then::Operation(namespace, Op::Write { extent, fua }) = then
            && let Some(result) = env.store(namespace, extent, data, fua)
        {
            let status = result.map_or_else(media_status, |()| Status::SUCCESS);
            return self.complete(slot, Reply::status(status), transport, env);
        }
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let Some(mut buffer) = env.take_buffer(len, BufferUse::InCapsule) else {
            let reply = Reply::status(Status::TRANSIENT_TRANSPORT_ERROR);
            return self.complete(slot, reply, transport, env);
        };
        copy_prefix(buffer.as_mut(), data);
        if let Some(work) = self.work(slot) {
            work.buffer = Some(buffer);
            work.data_len = len;
        }
        self.data_arrived(slot, then, transport, env);
    }

    /// The command has its data (if it takes any).
    pub(super) fn data_arrived<E>(
        &mut self,
        slot: SlotId,
        then: Then,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
        E: Backend<Buffer = B, Controller = C>,
    {
        match then {
            Then::Operation(namespace, op) => {
                self.submit(slot, namespace, op, After::Complete, transport, env);
            }
            Then::Steps => {
                if let Some((namespace, op)) = self.go_on(slot, transport, env) {
                    self.submit(slot, namespace, op, After::Steps, transport, env);
                }
            }
        }
    }

    /// The next step of a command that has its data; after the last it completes.
    pub(super) fn go_on<E>(
        &mut self,
        slot: SlotId,
        transport: &mut impl Transport,
        env: &mut E,
    ) -> Option<(NamespaceRef, Op)>
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let work = self.works.as_mut().get_mut(slot.index())?;
        let data = work.data();
        let reply = match &mut self.role {
            Role::Unconnected => {
                self.connect(slot, transport, env);
                return None;
            }
            Role::Admin(controller) => controller.write_data(&work.sqe, data, env),
            Role::Io { controller, .. } => {
                match io::go_on(&work.sqe, controller.subsystem, work.cursor, data, env) {
                    Next::Submit(namespace, op) => return Some((namespace, op)),
                    Next::Reply(status) => Reply::status(status),
                }
            }
            Role::Left => return None,
        };
        self.complete(slot, reply, transport, env);
        None
    }

    /// Runs a Connect that has its data. Apart from the rest, since it takes
    /// much more stack than any command that comes after it.
    #[inline(never)]
    fn connect<E>(&mut self, slot: SlotId, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let Some(work) = self.works.as_mut().get_mut(slot.index()) else {
            return;
        };
        let data = work.data();
        let reply = match connect::connect(env, &work.sqe, data) {
            Ok(connected) => self.connected(connected, transport, env),
            Err(refusal) => {
                self.notice = Some(Notice::Refused(refusal.reason));
                refusal.reply
            }
        };
        self.complete(slot, reply, transport, env);
    }

    pub(super) fn connected<E>(
        &mut self,
        connected: Connected<C>,
        transport: &mut impl Transport,
        env: &mut E,
    ) -> Reply
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let reply = connected.reply();
        let (role, subsystem, inline_data) = match connected.role {
            ConnectedRole::Admin(controller) => {
                let subsystem = controller.state().subsystem;
                let role = Role::Admin(S::apart(controller));
                (role, subsystem, ADMIN_INLINE_DATA)
            }
            ConnectedRole::Io(controller) => {
                let (subsystem, epoch) = (controller.subsystem, connected.epoch);
                let role = Role::Io { controller, epoch };
                (role, subsystem, env.limits().inline_data)
            }
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
        transport.connected(connected.entries, inline_data, connected.sq_flow_control);
        reply
    }

    /// Fills the buffer with the answer to an admin command and sends it. Apart
    /// from the rest, as [`Self::connect`] is.
    #[inline(never)]
    pub(super) fn respond<E>(
        &mut self,
        slot: SlotId,
        len: u32,
        transport: &mut impl Transport,
        env: &mut E,
    ) where
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

    pub(super) fn send(&mut self, slot: SlotId, source: Source, transport: &mut impl Transport) {
        let cqe = self.cqe(slot, Reply::SUCCESS);
        self.finish(slot, |ticket| transport.send(ticket, source, cqe));
    }

    pub(super) fn complete<E>(
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

    pub(super) fn finish(&mut self, slot: SlotId, hand_over: impl FnOnce(Ticket)) {
        let Some(work) = self.work(slot) else { return };
        work.plan = Plan::Completed;
        if let Some(ticket) = work.ticket.take() {
            hand_over(ticket);
        }
    }

    pub(super) fn cqe(&mut self, slot: SlotId, reply: Reply) -> Cqe {
        let cid = self.work(slot).map_or(Cid(0), |work| work.sqe.cid());
        self.cqe_of(cid, reply)
    }

    /// NVMe Base 2.0, section 3.3.1.2.1.1: SQHD moves with each completion.
    pub(super) fn cqe_of(&mut self, cid: Cid, reply: Reply) -> Cqe {
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
    pub(super) fn events<E>(&mut self, transport: &mut impl Transport, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        while let Role::Admin(controller) = &mut self.role
            && let Some((slot, reply)) = controller.poll_event(env)
        {
            self.complete(SlotId(slot), reply, transport, env);
        }
    }

    pub(super) fn close_for(&mut self, reason: Close) {
        self.close.get_or_insert(reason);
    }

    /// An I/O queue ends with the epoch that it joined. One that drains closes
    /// anyway, when what is under way is done.
    pub(super) fn close_with_epoch(&mut self) {
        if !self.draining
            && let Role::Io { controller, epoch } = &self.role
            && controller.epoch() != *epoch
        {
            self.close_for(Close::ControllerEnded);
        }
    }

    pub(super) fn close_when_idle(&mut self) {
        let idle = |work: &Work<B>| matches!(work.plan, Plan::Idle | Plan::Held);
        if self.works.as_ref().iter().all(idle) {
            self.close_for(Close::ShutDown);
        }
    }

    pub(super) fn leave_when_drained<E>(&mut self, env: &mut E)
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
