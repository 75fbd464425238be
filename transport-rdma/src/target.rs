//! The target over a device: one worker's connections.
//!
//! Whoever runs the loop calls [`Target::poll`] with a budget, over and over, or
//! whenever the device wakes it; gives back what storage completed; and calls
//! [`Target::handle_timeout`] when [`Target::next_deadline`] says so. Completions
//! are taken as they come, whatever connection's they are, and each is acted on
//! at once: a backend that is done with a command at once has its response posted
//! before the next completion is looked at.
use core::ops::Deref;
use core::time::Duration;

use nvmf_core::block;
use nvmf_core::rdma::WorkId;
use nvmf_core::rdma::capsule::Command;
use nvmf_core::rdma::cm::{Asked, Room};
use nvmf_core::rdma::connection::{CloseReason, Post, TargetConnection};
use nvmf_core::rdma::target::{Config as QueueConfig, Work};
use nvmf_core::storage::Storage;
use nvmf_core::target::queue_pair::{Identity, Notice};
use nvmf_core::target::{Backend, BufferUse, ControllerState};
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::cm::{CmRej, CmStatus};
use nvmf_core::{InCapsule, Source};
use zerocopy::IntoBytes;

use crate::buffer::{Buffer, Pool, Stack};
use crate::cm::{Cm, Event, PrivateData, Setup, Terms};
use crate::verbs::{Chain, Completion, Direction, Ended, Move, Outcome, Receiver, Send, Verbs};

/// Whose the buffers are in which commands are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receives {
    /// The worker's: memory does not grow with connections. When commands of many
    /// hosts come at once, some are sent twice. What writes bring along stays in a
    /// receive as long as the connection has no more of them than are free: what comes
    /// above that is copied out into a buffer for data, or, without one, fails with
    /// Transient Transport Error. So no connection, nor any number of them, takes all.
    Shared,
    /// Each connection's: as many as the host may have commands under way. A
    /// connection for which there are not enough is rejected.
    PerConnection,
}

/// How a target's connections behave.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What queues hosts may ask for.
    pub room: Room,
    /// Whose receives are.
    pub receives: Receives,
    /// How long a host may take from connecting to its Connect.
    pub connect_timeout: Duration,
}

/// What a target needs of its surroundings: besides what all targets do, a pool.
pub trait Surroundings<B>: Backend<Buffer = Buffer<B>> {
    /// How the pool's buffers are kept.
    type Storage: Storage;

    /// Where [`Backend::take_buffer`] takes from, and [`Backend::give_buffer`] gives to.
    fn pool(&mut self) -> &mut Pool<Self::Storage, B>;

    /// What is asked from now on is asked for this connection.
    fn serving(&mut self, connection: u32);

    /// Whether the queue may be connected: not if it is, or its controller is not there.
    ///
    /// # Errors
    /// The status to reject it with.
    fn judge(&self, asked: &Asked) -> Result<(), CmStatus> {
        let _ = asked;
        Ok(())
    }

    /// A connection was accepted for the queue that was asked for. Its number is
    /// its own until it is [`closed`](Surroundings::closed).
    fn opened(&mut self, connection: u32, asked: &Asked) {
        let _ = (connection, asked);
    }

    /// A connection is gone, with every command of it: which queue it was, if it
    /// was connected, and why this side closed it, if it did.
    fn closed(
        &mut self,
        connection: u32,
        identity: Option<&Identity>,
        reason: Option<CloseReason>,
    ) {
        let _ = (connection, identity, reason);
    }
}

/// A worker's connections. `S` is how a connection's commands are kept, `L` how
/// connections are.
pub struct Target<M: Cm, S: Storage, L: Storage, H> {
    config: Config,
    links: L::Array<Option<Link<M, S, H>>>,
    /// Connections that end.
    ending: Stack<L, u32>,
    /// Memory to receive into that no connection has.
    spare: Stack<L, Memory<M>>,
    /// Receives that are shared, and how many of them wait for a message.
    shared: u32,
    posted: u32,
    /// Connections that ended since the shared receives were made. Each may have lost one.
    ended: u32,
    /// All connections end, so that shared receives can be made anew.
    renews: bool,
}

type Memory<M> = <<M as Cm>::Verbs as Verbs>::Buffer;

/// A device and its connection manager, as one worker has them.
pub struct Device<'a, M: Cm> {
    /// Its connection manager.
    pub cm: &'a mut M,
    /// The device.
    pub verbs: &'a mut M::Verbs,
}

struct Link<M: Cm, S: Storage, H> {
    qp: M::Qp,
    machine: TargetConnection<S, Buffer<Memory<M>>, H>,
    state: State,
    /// It closes, and this is when its host has to have what is still to be sent.
    flush_by: Option<Instant>,
    /// What it received messages in, and its commands still have.
    held: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Nothing goes out any more, and its commands end.
    Ending,
    /// They ended, and the host has heard of the end, or was answered.
    Over,
}

/// How long the host of a connection that closes may take to receive the last responses.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

impl<M, S, L, H> Target<M, S, L, H>
where
    M: Cm,
    S: Storage,
    L: Storage,
    H: Deref<Target = ControllerState> + Clone,
{
    /// Without connections.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            links: L::new(|_| None),
            ending: Stack::new(),
            spare: Stack::new(),
            shared: 0,
            posted: 0,
            ended: 0,
            renews: false,
        }
    }

    /// Adds memory to receive commands into: as long as a command and the data that
    /// may be inside its capsule. It comes back if there is no place for it.
    pub fn add_receive(&mut self, verbs: &mut M::Verbs, memory: Memory<M>) -> Option<Memory<M>> {
        match self.config.receives {
            Receives::PerConnection => self.spare.push(memory),
            Receives::Shared => match verbs.post_receive(Receiver::Shared, 0, memory) {
                Ok(()) => {
                    self.shared += 1;
                    self.posted += 1;
                    None
                }
                Err((memory, _)) => Some(memory),
            },
        }
    }

    /// Takes up to `budget` completions, and as many events of connections, and acts
    /// on them. Returns how many there were: with none there is nothing to do now.
    pub fn poll<E>(&mut self, mut device: Device<'_, M>, env: &mut E, budget: usize) -> usize
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        let now = env.now();
        let mut taken = 0;
        while taken < budget
            && let Some(completion) = device.verbs.poll(now)
        {
            self.completed(completion, &mut device, env);
            taken += 1;
        }
        self.forget(taken < budget, &mut device, env);
        let mut events = 0;
        while events < budget
            && let Some(event) = device.cm.poll(now)
        {
            self.happened(event, &mut device, env);
            events += 1;
        }
        taken + events
    }

    /// Calls a connection's machine, then posts what comes of it.
    pub fn with<E, R>(
        &mut self,
        connection: u32,
        mut device: Device<'_, M>,
        env: &mut E,
        call: impl FnOnce(&mut TargetConnection<S, Buffer<Memory<M>>, H>, &mut E) -> R,
    ) -> Option<R>
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        let link = self.link(connection)?;
        env.serving(connection);
        let result = call(&mut link.machine, env);
        self.serve(connection, &mut device, env);
        Some(result)
    }

    /// A device's operation of a connection ended.
    pub fn block_completed<E>(
        &mut self,
        connection: u32,
        completion: block::Completion<Buffer<Memory<M>>>,
        device: Device<'_, M>,
        env: &mut E,
    ) where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        self.with(connection, device, env, |machine, env| {
            machine.block_completed(completion, env);
        });
    }

    /// A controller changed, or the catalog: connections see whether it is theirs.
    pub fn controller_changed<E>(&mut self, mut device: Device<'_, M>, env: &mut E)
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        self.each(&mut device, env, |machine, env| {
            machine.controller_changed(env);
        });
    }

    /// When [`Target::handle_timeout`] should be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let open = self.links.as_ref().iter().flatten();
        open.filter(|link| link.state == State::Open)
            .fold(None, |next, link| {
                sooner(next, sooner(link.flush_by, link.machine.poll_timeout()))
            })
    }

    /// Time passed.
    pub fn handle_timeout<E>(&mut self, mut device: Device<'_, M>, env: &mut E)
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        let now = env.now();
        self.each(&mut device, env, |machine, env| {
            if machine.poll_timeout().is_some_and(|due| due <= now) {
                machine.handle_timeout(env);
            }
        });
    }

    /// Buffers or devices became free: commands that wait try again.
    pub fn retry<E>(&mut self, mut device: Device<'_, M>, env: &mut E)
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        self.each(&mut device, env, |machine, env| {
            if machine.is_waiting() {
                machine.retry(env);
            }
        });
    }

    /// Connections there are, those included that are not wholly gone.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.links.as_ref().iter().flatten().count()
    }

    /// The connection of a queue pair, until it is forgotten, and whether it is open.
    #[must_use]
    pub fn connection(&self, qp: M::Qp) -> Option<(u32, bool)> {
        let links = (0..).zip(self.links.as_ref());
        let mut of = links.filter_map(|(tag, link)| Some((tag, link.as_ref()?)));
        let (tag, link) = of.find(|(_, link)| link.qp == qp)?;
        Some((tag, link.state == State::Open))
    }

    /// Connections that close, or closed and are not forgotten, and why.
    pub fn closing(&self) -> impl Iterator<Item = (M::Qp, CloseReason)> {
        let links = self.links.as_ref().iter().flatten();
        links.filter_map(|link| Some((link.qp, link.machine.closing()?)))
    }

    /// The latest thing to log of a connection, once.
    pub fn poll_notice(&mut self, connection: u32) -> Option<Notice> {
        self.link(connection)?.machine.poll_notice()
    }

    fn link(&mut self, tag: u32) -> Option<&mut Link<M, S, H>> {
        self.links.as_mut().get_mut(tag as usize)?.as_mut()
    }

    fn each<E>(
        &mut self,
        device: &mut Device<'_, M>,
        env: &mut E,
        mut call: impl FnMut(&mut TargetConnection<S, Buffer<Memory<M>>, H>, &mut E),
    ) where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        for tag in (0..).take(self.links.as_ref().len()) {
            if let Some(link) = self.link(tag)
                && link.state == State::Open
            {
                env.serving(tag);
                call(&mut link.machine, env);
                self.serve(tag, device, env);
            }
        }
    }

    fn completed<E>(
        &mut self,
        completion: Completion<Memory<M>>,
        device: &mut Device<'_, M>,
        env: &mut E,
    ) where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        let Completion {
            tag,
            id,
            ended,
            outcome,
            buffer,
        } = completion;
        env.serving(tag);
        if let Ended::Receive { len, .. } = ended {
            if let Some(memory) = buffer {
                self.received(tag, memory, outcome, len, device, env);
            }
        } else if let Some(link) = self.link(tag) {
            let buffer = buffer.map(Buffer::for_data);
            let id = WorkId::from_raw(id);
            if outcome == Outcome::Success {
                link.machine.completed(id, buffer, env);
            } else {
                link.machine.failed(id, buffer, env);
            }
        }
        self.serve(tag, device, env);
    }

    fn received<E>(
        &mut self,
        tag: u32,
        memory: Memory<M>,
        outcome: Outcome,
        len: u32,
        device: &mut Device<'_, M>,
        env: &mut E,
    ) where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        let buffer = Buffer::received(memory, tag);
        let mut rest = Some(buffer);
        let shared = self.config.receives == Receives::Shared;
        if shared {
            self.posted = self.posted.saturating_sub(1);
        }
        let free = self.posted;
        if let Some(link) = self.link(tag) {
            link.held += 1;
            if link.state == State::Open
                && let Some(buffer) = rest.take()
            {
                let message = buffer.memory.as_ref().get(..len as usize);
                let command = Command::parse(message.unwrap_or(&[]));
                rest = match command {
                    _ if outcome != Outcome::Success => {
                        link.machine.broke();
                        Some(buffer)
                    }
                    Err(fault) => {
                        link.machine.fault(fault);
                        Some(buffer)
                    }
                    Ok(command) if shared && link.held > free => {
                        let copy = copy_data(&command, &buffer, env);
                        if let Some(copy) = link.machine.received(&command, copy, env) {
                            env.give_buffer(copy);
                        }
                        Some(buffer)
                    }
                    Ok(command) => link.machine.received(&command, Some(buffer), env),
                };
            }
        }
        if let Some(buffer) = rest {
            self.receive_again(buffer, device.verbs);
        }
    }

    /// A buffer is to be received into again, by whoever it was for.
    fn receive_again(&mut self, buffer: Buffer<Memory<M>>, verbs: &mut M::Verbs) {
        let shared = self.config.receives == Receives::Shared;
        let link = buffer.receiver().and_then(|tag| self.link(tag));
        let to = link.and_then(|link| {
            link.held = link.held.saturating_sub(1);
            (link.state == State::Open).then_some(Receiver::Of(link.qp))
        });
        let to = if shared { Some(Receiver::Shared) } else { to };
        let posted = match to {
            Some(to) => verbs.post_receive(to, 0, buffer.memory),
            None => return drop(self.spare.push(buffer.memory)),
        };
        match posted {
            Ok(()) => self.posted += u32::from(shared),
            Err((memory, _)) => drop(self.spare.push(memory)),
        }
    }

    /// Posts what a connection has to post, and ends it if it is to be closed.
    fn serve<E>(&mut self, tag: u32, device: &mut Device<'_, M>, env: &mut E)
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        if let Some(link) = self.link(tag)
            && link.state == State::Open
        {
            while let Some(post) = link.machine.poll_post() {
                let id = post.id;
                if let Err((memory, _)) = device.verbs.post(link.qp, chain(post)) {
                    link.machine.failed(id, memory.map(Buffer::for_data), env);
                }
            }
            let now = env.now();
            if link.machine.may_close() || link.flush_by.is_some_and(|by| by <= now) {
                self.end(tag, device, env);
            } else if link.machine.closing().is_some() {
                link.flush_by.get_or_insert(now.after(FLUSH_TIMEOUT));
            }
        }
        while let Some(buffer) = env.pool().take_received() {
            self.receive_again(buffer, device.verbs);
        }
    }

    /// Nothing of a connection goes out any more. Its host does not hear of that as long as a
    /// device may write what it sent.
    fn end<E>(&mut self, tag: u32, device: &mut Device<'_, M>, env: &mut E)
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        if let Some(link) = self.link(tag)
            && link.state == State::Open
        {
            link.state = State::Ending;
            device.cm.stop(device.verbs, link.qp);
            env.serving(tag);
            link.machine.connection_closed(env);
            self.ending.push(tag);
        }
    }

    fn happened<E>(
        &mut self,
        event: Event<M::Request, M::Qp>,
        device: &mut Device<'_, M>,
        env: &mut E,
    ) where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        match event {
            Event::Request { request, terms } => {
                if let Err((request, status)) = self.accept(request, &terms, device, env) {
                    let rej = CmRej::new(status);
                    device.cm.reject(request, PrivateData::new(rej.as_bytes()));
                }
            }
            Event::Established { .. } => {}
            Event::Disconnected { qp } | Event::Unreachable { qp } | Event::Rejected { qp, .. } => {
                if let Some((tag, _)) = self.connection(qp) {
                    self.end(tag, device, env);
                    self.serve(tag, device, env);
                }
            }
        }
    }

    fn accept<E>(
        &mut self,
        request: M::Request,
        terms: &Terms,
        device: &mut Device<'_, M>,
        env: &mut E,
    ) -> Result<(), (M::Request, CmStatus)>
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        let reads = terms.responder_resources;
        let asked = Asked::judge(terms.private_data.bytes(), reads, &self.config.room);
        let asked = match asked.and_then(|asked| env.judge(&asked).map(|()| asked)) {
            Ok(asked) => asked,
            Err(status) => return Err((request, status)),
        };
        let receives = match self.config.receives {
            Receives::Shared => 0,
            Receives::PerConnection => asked.commands,
        };
        let tag = self.free_tag().filter(|_| !self.renews);
        let Some(tag) = tag else {
            return Err((request, CmStatus::NoResources));
        };
        if self.spare.len() < receives.into() {
            return Err((request, CmStatus::NoResources));
        }
        let limits = device.verbs.limits();
        if limits.initiator_depth == 0 {
            // Without READ it could not fetch anything.
            return Err((request, CmStatus::NoResources));
        }
        let config = QueueConfig {
            commands: asked.commands,
            reads: reads.min(limits.initiator_depth),
            requests: QueueConfig::requests_for(asked.commands).min(limits.send_requests),
        };
        let setup = Setup {
            tag,
            sends: config.requests,
            receives: receives.into(),
        };
        let qp = match device.cm.prepare(device.verbs, request, setup) {
            Ok(qp) => qp,
            Err((request, _)) => return Err((request, CmStatus::NoResources)),
        };
        let machine = TargetConnection::new(&config, self.config.connect_timeout, env.now());
        let link = Link {
            qp,
            machine,
            state: State::Open,
            flush_by: None,
            held: 0,
        };
        for _ in 0..receives {
            let Some(memory) = self.spare.pop() else {
                break;
            };
            if let Err((memory, _)) = device.verbs.post_receive(Receiver::Of(qp), 0, memory) {
                self.spare.push(memory);
            }
        }
        let answer = Terms {
            initiator_depth: config.reads,
            responder_resources: terms.initiator_depth.min(limits.responder_resources),
            private_data: PrivateData::new(asked.rep().as_bytes()),
        };
        let accepted = device.cm.accept(device.verbs, qp, answer);
        if let Some(place) = self.links.as_mut().get_mut(tag as usize) {
            *place = Some(link);
        }
        env.opened(tag, &asked);
        if accepted.is_err() {
            self.end(tag, device, env);
        }
        Ok(())
    }

    /// A place for a connection.
    fn free_tag(&mut self) -> Option<u32> {
        let links = self.links.as_ref();
        let free = links.iter().position(Option::is_none);
        let at = free.unwrap_or(links.len());
        L::grow(&mut self.links, at.saturating_add(1), |_| None);
        (at < self.links.as_ref().len())
            .then(|| u32::try_from(at).ok())
            .flatten()
    }

    /// Connections that end, and that nobody has anything of, are disconnected; and, once
    /// `all_seen`, so that nothing of them is still to come, forgotten.
    fn forget<E>(&mut self, all_seen: bool, device: &mut Device<'_, M>, env: &mut E)
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        let links = self.links.as_mut();
        let mut over = |tag: &u32| {
            let place = links.get_mut(*tag as usize)?;
            let link = place.as_mut().filter(|link| link.machine.is_drained())?;
            if link.state == State::Ending {
                link.state = State::Over;
                device.cm.disconnect(device.verbs, link.qp);
            }
            let link = place.take_if(|_| all_seen)?;
            device.cm.destroy(device.verbs, link.qp);
            Some(link)
        };
        let mut forgotten = 0;
        while let Some((tag, link)) = self.ending.take_first(&mut over) {
            env.closed(tag, link.machine.identity(), link.machine.closing());
            forgotten += 1;
        }
        if forgotten > 0 && self.config.receives == Receives::Shared {
            self.ended += forgotten;
            self.find_lost(device, env);
        }
    }

    /// Connections ended, and may have lost shared receives. These come back when the queue is
    /// made anew: when nobody uses it, or, before too few are left, when all connections ended.
    fn find_lost<E>(&mut self, device: &mut Device<'_, M>, env: &mut E)
    where
        E: Surroundings<Memory<M>, Controller = H>,
    {
        let lost = device.verbs.lost_receives();
        if self.connections() > 0 {
            if lost > 0 && lost >= self.shared / 4 {
                self.renews = true;
                self.each(device, env, |machine, _| {
                    machine.close_for(CloseReason::Receives);
                });
            }
        } else if lost > 0 || self.ended >= self.shared / 8 {
            // If that is not possible now, it is when the next connection has ended.
            if device.verbs.renew_receives().is_ok() {
                self.ended = 0;
            }
            self.renews = false;
        }
    }
}

/// A copy of what a write brought along, for a connection that has its share of receives.
/// There may be no buffer for it.
fn copy_data<B, E>(command: &Command, buffer: &Buffer<B>, env: &mut E) -> Option<Buffer<B>>
where
    B: AsRef<[u8]> + AsMut<[u8]>,
    E: Surroundings<B>,
{
    let InCapsule::Whole(len) = command.data() else {
        return None;
    };
    let mut copy = env.take_buffer(len, BufferUse::Transfer)?;
    let len = len as usize;
    if let (Some(to), Some(from)) = (copy.as_mut().get_mut(..len), buffer.as_ref().get(..len)) {
        to.copy_from_slice(from);
    }
    Some(copy)
}

/// A chain as the device takes it.
fn chain<B>(post: Post<Buffer<B>>) -> Chain<B> {
    let buffer = post.buffer.map(|buffer| buffer.memory);
    let mut chain = Chain {
        id: post.id.raw(),
        signalled: true,
        buffer,
        first: None,
        send: None,
    };
    match post.work {
        Work::Fetch { place, remote } => {
            chain.first = Some(Move {
                direction: Direction::Read,
                remote,
                offset: place.offset,
                len: place.len,
            });
        }
        Work::Respond {
            data,
            response,
            invalidate,
            ..
        } => {
            if let Some((Source::Slot(place), remote)) = data {
                chain.first = Some(Move {
                    direction: Direction::Write,
                    remote,
                    offset: place.offset,
                    len: place.len,
                });
            }
            let mut send = Send::new(response.as_bytes());
            send.invalidate = invalidate;
            chain.send = Some(send);
        }
    }
    chain
}
