//! How an association comes about, and how it ends.
use nvmf_core::host::Data;
use nvmf_core::host::controller::{self, Capabilities, Controller, OWN_COMMANDS};
use nvmf_core::host::queue::Connect;
use nvmf_core::host::{self, Request, Step, command, namespace};
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::identify::{Cns, IdentifyNamespace, NamespaceList};
use nvmf_core::wire::ids::{Cid, Cntlid, Nsid, Qid};
use nvmf_core::wire::status::Status;
use smoltcp::iface::{Context, SocketSet};
use zerocopy::{FromBytes, IntoBytes};

use super::super::memory::Buffer;
use super::error::{Error, Failure};
use super::queue::{Arrival, Command, Ended, Owner, Queue};
use super::{Completion, Destination, Event, FIRST_EPHEMERAL_PORT, Host, Namespace, SCRATCH};

/// Commands that the Admin Queue holds: the machine's, and one of the caller's.
pub const ADMIN_SLOTS: usize = OWN_COMMANDS as usize + 1;

/// Blocks that a command can have at most.
const MAX_BLOCKS: u32 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    /// The sockets may still be busy with the last association.
    Opening,
    /// The controller is brought up.
    Admin,
    /// An I/O queue is connected: its index.
    Queue(usize),
    /// The namespace is looked at.
    Namespace,
    Ready,
    /// The caller's commands are to end; then the controller is shut down.
    Leaving,
    /// The controller is being shut down.
    ShutDown,
    /// The sockets are to end.
    Closing,
    /// Commands under way are given back.
    Failed(Error),
}

/// What follows a step.
enum Flow<'a> {
    Report(Event<'a>),
    Again,
    Wait,
}

/// What the end of one of the host's own commands means.
enum Outcome {
    Machine(Option<controller::Event>),
    Connected,
    First(Nsid),
    Found(Namespace),
}

impl<'a, const QUEUES: usize, const DEPTH: usize> Host<'a, QUEUES, DEPTH> {
    /// Goes on until there is something to report, or nothing to do.
    pub(super) fn run(&mut self, context: &mut Context, set: &mut SocketSet) -> Option<Event<'a>> {
        loop {
            let between = matches!(self.stage, Stage::Idle | Stage::Opening | Stage::Closing);
            if between && !self.wind_down(set) {
                return None;
            }
            let outcome = match self.stage {
                Stage::Failed(error) => return Some(self.give_back(error)),
                Stage::Idle => return None,
                Stage::Opening => self.open(context, set),
                Stage::Closing => {
                    self.stage = Stage::Idle;
                    return Some(Event::Closed(Ok(())));
                }
                _ => self.go_on(context, set),
            };
            match outcome {
                Ok(Flow::Report(event)) => return Some(event),
                Ok(Flow::Again) => {}
                Ok(Flow::Wait) => return None,
                Err(error) => {
                    self.admin.close(set, self.now);
                    self.queues
                        .iter_mut()
                        .for_each(|it| it.close(set, self.now));
                    self.stage = Stage::Failed(error);
                }
            }
        }
    }

    /// Ends an association of which no command of the caller's is under way.
    pub(super) fn shut(&mut self, set: &mut SocketSet) {
        self.admin.close(set, self.now);
        self.queues
            .iter_mut()
            .for_each(|it| it.close(set, self.now));
        while let Some(command) = self.recall() {
            self.keep(command.buffer);
        }
        self.forget();
        self.stage = Stage::Closing;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.admin.is_closed() && self.queues.iter().all(Queue::is_closed)
    }

    /// Helps the sockets to their end. Whether all of them are free.
    fn wind_down(&mut self, set: &mut SocketSet) -> bool {
        self.admin.wind_down(set, self.now);
        for queue in &mut self.queues {
            queue.wind_down(set, self.now);
        }
        self.is_closed()
    }

    /// The association was lost: commands come back one by one, then the reason.
    fn give_back(&mut self, error: Error) -> Event<'a> {
        while let Some(command) = self.recall() {
            match command.owner {
                Owner::Caller(tag) => {
                    return Event::Completed(Completion {
                        tag,
                        result: Err(Failure::Lost),
                        buffer: command.buffer,
                        received: 0,
                    });
                }
                _ => self.keep(command.buffer),
            }
        }
        self.forget();
        self.stage = Stage::Idle;
        Event::Closed(Err(error))
    }

    fn forget(&mut self) {
        self.machine = None;
        self.found = None;
        self.namespace = None;
    }

    fn recall(&mut self) -> Option<Command<'a>> {
        let admin = self.admin.recall();
        admin.or_else(|| self.queues.iter_mut().find_map(Queue::recall))
    }

    /// Takes back the buffer of one of the host's own commands.
    fn keep(&mut self, buffer: Option<Buffer<'a>>) {
        if buffer.is_some() {
            self.scratch = buffer;
        }
    }

    fn next_port(&mut self) -> u16 {
        let port = self.next_port.max(FIRST_EPHEMERAL_PORT);
        self.next_port = port.wrapping_add(1);
        port
    }

    fn open(&mut self, context: &mut Context, set: &mut SocketSet) -> Result<Flow<'a>, Error> {
        let port = self.next_port();
        let (transport, target) = (&self.options.transport, self.destination().address);
        self.admin
            .open(context, set, target, port, transport, self.now)?;
        self.stage = Stage::Admin;
        Ok(Flow::Again)
    }

    fn destination(&self) -> &Destination {
        let destination = self.destination.as_ref();
        destination.expect("an association that was begun")
    }

    fn go_on(&mut self, context: &mut Context, set: &mut SocketSet) -> Result<Flow<'a>, Error> {
        self.leave(set);
        self.drive()?;
        self.abort_late()?;
        let (crc32c, now) = (self.options.transport.crc32c, self.now);
        match self.admin.serve(set, crc32c, now)? {
            Some(Arrival::Ready) => return Ok(self.bring_up()),
            Some(Arrival::Ended(ended)) => return self.ended(Qid::ADMIN, ended, context, set),
            None => {}
        }
        for (at, qid) in (0..QUEUES).zip(1..).map(|(at, qid)| (at, Qid(qid))) {
            match self.queues[at].serve(set, crc32c, now)? {
                Some(Arrival::Ready) => return Ok(self.connect_queue(at)),
                Some(Arrival::Ended(ended)) => return self.ended(qid, ended, context, set),
                None => {}
            }
        }
        Ok(Flow::Wait)
    }

    /// Shuts the controller down when the caller's last command has ended.
    fn leave(&mut self, set: &mut SocketSet) {
        let callers = self.queues.iter().map(Queue::callers).sum::<usize>() + self.admin.callers();
        if self.stage == Stage::Leaving
            && callers == 0
            && let Some(machine) = &mut self.machine
        {
            machine.shut_down(self.now);
            // The controller ends these as soon as it is shut down.
            for queue in &mut self.queues {
                queue.close(set, self.now);
            }
            self.stage = Stage::ShutDown;
        }
    }

    /// Submits what the controller's machine has to ask.
    fn drive(&mut self) -> Result<(), Error> {
        let Some(machine) = &mut self.machine else {
            return Ok(());
        };
        machine.handle_timeout(self.now)?;
        while let Some((token, request)) = machine.poll_command(self.now) {
            let buffer = match request.data {
                Data::Nothing => None,
                Data::ToHost(_) => self.scratch.take(),
                Data::FromHost(_) => {
                    let data = machine.connect_data();
                    filled(self.scratch.take(), data.as_bytes())
                }
            };
            let command = Command {
                owner: Owner::Machine(token),
                buffer,
                // The machine's own.
                deadline: None,
                expected: 0,
            };
            self.admin.submit(&request, command);
        }
        Ok(())
    }

    fn abort_late(&mut self) -> Result<(), Error> {
        while let Some((cid, owner)) = self.admin.late(self.now) {
            self.is_late(Qid::ADMIN, cid, owner)?;
        }
        for (at, qid) in (0..QUEUES).zip(1..) {
            while let Some((cid, owner)) = self.queues[at].late(self.now) {
                self.is_late(Qid(qid), cid, owner)?;
            }
        }
        Ok(())
    }

    fn is_late(&mut self, qid: Qid, cid: Cid, owner: Owner) -> Result<(), Error> {
        match (owner, &mut self.machine) {
            (Owner::Connect, _) => Err(host::Error::Timeout(Step::Connect))?,
            (Owner::Namespaces | Owner::Namespace(_), _) => {
                Err(host::Error::Timeout(Step::Identify))?
            }
            (Owner::Caller(_), Some(machine)) => machine.timed_out(qid, cid, self.now)?,
            (Owner::Caller(_), None) | (Owner::Machine(_), _) => {}
        }
        Ok(())
    }

    /// There is a connection for the Admin Queue.
    fn bring_up(&mut self) -> Flow<'a> {
        let subnqn = self.destination().subnqn.clone();
        let discovery = subnqn.is_discovery();
        let config = controller::Config {
            host: self.options.identity.clone(),
            subnqn,
            cntlid: Cntlid::DYNAMIC,
            kato: if discovery {
                core::time::Duration::ZERO
            } else {
                self.options.keep_alive
            },
            io_queues: if discovery { 0 } else { QUEUES as u16 },
            events: self.options.events,
            command_timeout: self.options.command_timeout,
        };
        self.machine = Some(Controller::new(config, self.now));
        Flow::Again
    }

    /// There is a connection for the I/O queue.
    fn connect_queue(&mut self, at: usize) -> Flow<'a> {
        let Some(found) = &self.found else {
            return Flow::Again;
        };
        let data = Connect::data(
            &self.options.identity,
            &self.destination().subnqn,
            found.cntlid,
        );
        let connect = connect(at, found, DEPTH);
        let buffer = filled(self.scratch.take(), data.as_bytes());
        let command = self.own_command(Owner::Connect, buffer);
        self.queues[at].submit(&connect.request(), command);
        Flow::Again
    }

    /// A command of the host's or the caller's ended.
    fn ended(
        &mut self,
        qid: Qid,
        ended: Ended<'a>,
        context: &mut Context,
        set: &mut SocketSet,
    ) -> Result<Flow<'a>, Error> {
        let Ended {
            command,
            cqe,
            received,
        } = ended;
        if let Owner::Caller(tag) = command.owner {
            if let Some(machine) = &mut self.machine
                && command.deadline.is_none()
            {
                machine.ended(qid, Cid(cqe.cid.get()));
            }
            let result = if !cqe.status().is_success() {
                Err(Failure::Status(cqe.status()))
            } else if received < command.expected {
                Err(Failure::Short)
            } else {
                Ok(cqe.result.get())
            };
            return Ok(Flow::Report(Event::Completed(Completion {
                tag,
                result,
                buffer: command.buffer,
                received,
            })));
        }
        let data = command.buffer.as_deref().unwrap_or_default();
        let data = data.get(..received as usize).unwrap_or_default();
        let outcome = self.own_ended(command.owner, &cqe, data);
        self.keep(command.buffer);
        self.next(outcome?, context, set)
    }

    fn own_ended(&mut self, owner: Owner, cqe: &Cqe, data: &[u8]) -> Result<Outcome, Error> {
        let found = self.found.as_ref();
        match (owner, found) {
            (Owner::Machine(token), _) => {
                let machine = self.machine.as_mut();
                let event = machine.map(|it| it.completed(token, cqe, data, self.now));
                Ok(Outcome::Machine(event.transpose()?.flatten()))
            }
            (Owner::Connect, Some(found)) => {
                connect(0, found, DEPTH).completed(cqe)?;
                Ok(Outcome::Connected)
            }
            (Owner::Namespaces, _) => {
                succeeded(cqe)?;
                let (list, _) = NamespaceList::ref_from_prefix(data).map_err(|_| SHORT)?;
                let first = list.iter().next();
                first.map(Outcome::First).ok_or(Error::NoNamespace(None))
            }
            (Owner::Namespace(nsid), Some(found)) => {
                if cqe.status().is(Status::INVALID_NAMESPACE_OR_FORMAT) {
                    return Err(Error::NoNamespace(Some(nsid)));
                }
                succeeded(cqe)?;
                let (identify, _) = IdentifyNamespace::ref_from_prefix(data).map_err(|_| SHORT)?;
                look_at(nsid, identify, found).map(Outcome::Found)
            }
            // Not reachable: these are submitted when it is known.
            (Owner::Connect | Owner::Namespace(_) | Owner::Caller(_), _) => Err(Error::Lost),
        }
    }

    fn next(
        &mut self,
        outcome: Outcome,
        context: &mut Context,
        set: &mut SocketSet,
    ) -> Result<Flow<'a>, Error> {
        match (outcome, self.stage) {
            (Outcome::Machine(None), _) => Ok(Flow::Again),
            (Outcome::Machine(Some(controller::Event::Ready(found))), _) => {
                self.found = Some(found);
                if self.destination().subnqn.is_discovery() {
                    self.stage = Stage::Ready;
                    return Ok(Flow::Report(Event::Ready));
                }
                if found.io_queues == 0 {
                    return Err(host::Error::Unusable("it grants no I/O queue").into());
                }
                self.open_queue(0, context, set)
            }
            (Outcome::Machine(Some(controller::Event::Async(event))), _) => {
                Ok(Flow::Report(Event::Async(event)))
            }
            (Outcome::Machine(Some(controller::Event::ShutDown)), _) => {
                self.shut(set);
                Ok(Flow::Again)
            }
            (Outcome::Connected, Stage::Queue(at)) => {
                let found = self.found.as_ref();
                let (depth, inline_data) = found.map_or((0, 0), |found| {
                    let entries = connect(at, found, DEPTH).entries;
                    (entries.saturating_sub(1) as usize, found.inline_data)
                });
                self.queues[at].configure(depth, inline_data);
                self.open_queue(at + 1, context, set)
            }
            (Outcome::Connected, _) => Ok(Flow::Again),
            (Outcome::First(nsid), _) => {
                self.identify(Owner::Namespace(nsid), Cns::Namespace, nsid);
                Ok(Flow::Again)
            }
            (Outcome::Found(namespace), _) => {
                self.namespace = Some(namespace);
                self.stage = Stage::Ready;
                Ok(Flow::Report(Event::Ready))
            }
        }
    }

    /// Connects the I/O queue with this index; if that is one too many, looks at the namespace.
    fn open_queue(
        &mut self,
        at: usize,
        context: &mut Context,
        set: &mut SocketSet,
    ) -> Result<Flow<'a>, Error> {
        let granted = self.found.map_or(0, |found| found.io_queues.into());
        if at < granted {
            self.stage = Stage::Queue(at);
            let port = self.next_port();
            let (transport, target) = (&self.options.transport, self.destination().address);
            self.queues[at].open(context, set, target, port, transport, self.now)?;
            return Ok(Flow::Again);
        }
        self.stage = Stage::Namespace;
        match self.destination().nsid {
            Some(nsid) => self.identify(Owner::Namespace(nsid), Cns::Namespace, nsid),
            None => self.identify(Owner::Namespaces, Cns::ActiveNamespaces, Nsid(0)),
        }
        Ok(Flow::Again)
    }

    fn identify(&mut self, owner: Owner, cns: Cns, nsid: Nsid) {
        let request = Request {
            sqe: command::identify(cns, nsid),
            data: Data::ToHost(SCRATCH as u32),
        };
        let buffer = self.scratch.take();
        let command = self.own_command(owner, buffer);
        self.admin.submit(&request, command);
    }

    fn own_command(&self, owner: Owner, buffer: Option<Buffer<'a>>) -> Command<'a> {
        Command {
            owner,
            buffer,
            deadline: Some(self.now.after(self.options.command_timeout)),
            expected: 0,
        }
    }
}

const SHORT: Error = Error::Controller(host::Error::Unusable(
    "Identify returns less than 4096 bytes",
));

/// The Connect of the I/O queue with this index.
fn connect(at: usize, found: &Capabilities, depth: usize) -> Connect {
    let wanted = u32::try_from(depth).unwrap_or(u32::MAX).saturating_add(1);
    Connect {
        qid: Qid(at as u16 + 1),
        entries: wanted.min(found.queue_entries),
        kato_ms: 0,
        sq_flow_control: false,
    }
}

/// The buffer, with these bytes at its start.
fn filled<'a>(mut buffer: Option<Buffer<'a>>, bytes: &[u8]) -> Option<Buffer<'a>> {
    let start = buffer.as_mut().and_then(|it| it.get_mut(..bytes.len()));
    if let Some(start) = start {
        start.copy_from_slice(bytes);
    }
    buffer
}

fn succeeded(cqe: &Cqe) -> Result<(), Error> {
    let status = cqe.status();
    if status.is_success() {
        return Ok(());
    }
    Err(Error::Controller(host::Error::Refused {
        step: Step::Identify,
        status,
        parameter: None,
    }))
}

fn look_at(
    nsid: Nsid,
    identify: &IdentifyNamespace,
    found: &Capabilities,
) -> Result<Namespace, Error> {
    let blocks = identify.nsze.get();
    if blocks == 0 {
        return Err(Error::NoNamespace(Some(nsid)));
    }
    let block_size = namespace::block_size(identify, found.transfer)
        .map_err(|why| Error::UnusableNamespace { nsid, why })?;
    Ok(Namespace {
        nsid,
        block_size,
        blocks,
        transfer: (found.transfer / block_size).min(MAX_BLOCKS),
    })
}
