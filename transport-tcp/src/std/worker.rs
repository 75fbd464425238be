//! A worker: one thread, its connections, and the loop that serves them.
//!
//! Sockets are watched edge-triggered, once each: no system call changes what
//! is watched. A connection with something to do is scheduled; each turn of the
//! loop serves every scheduled connection once, within bounds, so that none
//! keeps the others waiting. With nothing scheduled the worker polls for a while if
//! that has paid lately, then sleeps until the kernel, another thread or the soonest
//! deadline wakes it. While it polls, it reads from the sockets that were busy last
//! rather than ask epoll first: a command that comes alone costs a system call less.
use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmf_core::time::{Instant, sooner};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::buffer::BufferPool;
use super::catalog::{OwnedListener, Subsystem};
use super::connection::{Connection, Readiness};
use super::devices::Devices;
use super::local::{Local, split_tag};
use super::mailbox::{Mailbox, Message};
use super::shared::{Controller, Shared};
use super::slots::{Key, Slots};
use super::socket;
use super::spin::Spin;
use super::timers::Timers;

/// Bytes of the buffer that all connections of a worker receive into.
const SCRATCH: usize = 256 * 1024;
/// Bytes of unused buffers that a worker holds on to.
const KEPT_BUFFERS: usize = 32 << 20;
/// Events taken from epoll at once.
const EVENTS: usize = 256;
/// Completions taken from devices in one turn.
const COMPLETIONS: usize = 1024;
/// Connections that wait and may try again in one turn: all of them in each would make whoever has
/// its buffers back pay for those who wait for others'.
const RETRIES: usize = 16;
/// Sockets that a polling worker looks at without epoll.
const HOT: usize = 4;
/// How often it does so, in vain, before it asks epoll.
const LOOKS: u32 = 8;
/// The waker's name in epoll; every [`Key`] is less.
const WAKER: u64 = u64::MAX;

pub(super) struct Worker {
    epoll: OwnedFd,
    connections: Slots<Box<Connection>>,
    /// Connections to serve, each once.
    scheduled: VecDeque<Key>,
    /// Connections that wait for buffers or devices, the longest first.
    waiting: VecDeque<Key>,
    /// How many of them have not tried since something was freed.
    to_retry: usize,
    timers: Timers<Key>,
    spin: Spin,
    /// Connections that had something to read lately.
    hot: heapless::Vec<Key, HOT>,
    /// Looks at them since epoll was asked.
    looks: u32,
    scratch: Box<[u8]>,
    local: Local,
    /// When to give up on what is under way, once the target stops.
    stop_by: Option<Instant>,
}

impl Worker {
    /// Everything that may fail, before the thread starts.
    pub(super) fn new(
        index: usize,
        shared: Arc<Shared>,
        subsystems: &[Subsystem],
    ) -> rustix::io::Result<Self> {
        let waker = shared.mailboxes[index].waker();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            waker,
            epoll::EventData::new_u64(WAKER),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        let devices = Devices::open(subsystems, waker);
        let now = shared.now();
        let spin = Spin::new(shared.spin);
        Ok(Self {
            epoll,
            connections: Slots::new(),
            scheduled: VecDeque::new(),
            waiting: VecDeque::new(),
            to_retry: 0,
            timers: Timers::new(),
            spin,
            hot: heapless::Vec::new(),
            looks: 0,
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            local: Local {
                shared,
                worker: index,
                pool: BufferPool::new(KEPT_BUFFERS),
                devices,
                now,
                worked: false,
                freed: false,
                changed: Vec::new(),
                outboxes: Vec::new(),
            },
            stop_by: None,
        })
    }

    /// Serves connections until the target stops and they are finished.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.local.shared);
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            for event in events.drain(..) {
                self.event(event);
            }
            let more = self.turn();
            if self.is_finished() {
                return;
            }
            self.local.now = shared.now();
            let worked = std::mem::take(&mut self.local.worked) || more;
            if worked {
                self.spin.worked(self.local.now);
            }
            let poll = more || self.spin.lasts(self.local.now);
            if poll && !worked && self.looks < LOOKS && !self.hot.is_empty() {
                self.look();
            } else {
                self.looks = 0;
                self.wait(poll, &mut events);
            }
        }
    }

    /// Has the sockets that were busy last looked at.
    fn look(&mut self) {
        self.looks += 1;
        for key in std::mem::take(&mut self.hot) {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.ready(Readiness::READABLE);
                self.schedule(key);
                let _ = self.hot.push(key);
            }
        }
    }

    /// The connection had something to read: it is the first to look at.
    fn warm(&mut self, key: Key) {
        if !self.hot.contains(&key) {
            if self.hot.is_full() {
                self.hot.pop();
            }
            let _ = self.hot.insert(0, key);
        }
    }

    fn mailbox(&self) -> &Mailbox {
        &self.local.shared.mailboxes[self.local.worker]
    }

    /// Does what there is to do, once. True if there is more.
    fn turn(&mut self) -> bool {
        for message in self.mailbox().take() {
            self.message(message);
        }
        let mut more_completions = self.poll_devices();
        self.expire();
        self.retry_waiting();
        self.tell_changed();
        self.serve_scheduled();
        // What was submitted in this turn starts now, together.
        more_completions |= self.poll_devices();
        more_completions
            || !self.scheduled.is_empty()
            || !self.local.changed.is_empty()
            || self.to_retry > 0
            || self.local.freed && !self.waiting.is_empty()
    }

    /// Sleeps until something happens, or only looks whether it has if `poll`.
    fn wait(&mut self, poll: bool, events: &mut Vec<epoll::Event>) {
        let waker = self.local.shared.mailboxes[self.local.worker].waker();
        let asleep = !poll && waker.sleep();
        let timeout = if asleep {
            self.next_deadline().map(|at| at.since(self.local.now))
        } else {
            Some(Duration::ZERO)
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            // All else is a fault of ours, and would come again at once.
            Err(error) => panic!("epoll_wait: {error}"),
        }
        if asleep {
            let shared = &self.local.shared;
            shared.mailboxes[self.local.worker].waker().awake();
            let now = shared.now();
            self.spin.slept(now.since(self.local.now));
            self.local.now = now;
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let devices = self.local.devices.next_deadline();
        sooner(sooner(self.timers.next(), devices), self.stop_by)
    }

    fn event(&mut self, event: epoll::Event) {
        let data = event.data.u64();
        if data == WAKER {
            return;
        }
        let flags = event.flags;
        let hung_up = flags
            .intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        let key = Key::from_u64(data);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.ready(Readiness {
                readable: flags.contains(epoll::EventFlags::IN),
                writable: flags.contains(epoll::EventFlags::OUT),
                hung_up,
            });
            self.schedule(key);
        }
    }

    fn schedule(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && !connection.scheduled
        {
            connection.scheduled = true;
            self.scheduled.push_back(key);
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Accepted(socket, listener) => self.accepted(socket, listener),
            Message::Moved(connection) => self.arrived(connection),
            Message::ControllerChanged(controller) => self.controller_changed(&controller),
            Message::Stop => {
                self.stop_by = Some(self.local.now.after(self.local.shared.stop_timeout));
                let keys: Vec<Key> = self.connections.keys().collect();
                for key in keys {
                    if let Some(connection) = self.connections.get_mut(key) {
                        connection.shut_down(&self.local);
                    }
                    self.schedule(key);
                }
            }
        }
    }

    /// A connection that the acceptor gave to this worker.
    fn accepted(&mut self, socket: TcpStream, listener: usize) {
        let addresses = socket::prepare(&socket, &self.local.shared.sockets)
            .and_then(|()| Ok((socket.peer_addr()?, socket.local_addr()?)));
        let (peer, address) = match addresses {
            Ok(addresses) if self.stop_by.is_none() => addresses,
            outcome => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "a connection was gone before it was served");
                }
                self.local
                    .shared
                    .placement()
                    .remove(self.local.worker, None);
                return;
            }
        };
        let portid = u16::try_from(listener + 1).unwrap_or(u16::MAX);
        let listener = OwnedListener::new(portid, address);
        let local = &self.local;
        let key = self.connections.insert(|key| {
            let connection = Connection::new(key, socket, peer, listener, local);
            Box::new(connection)
        });
        self.welcome(key);
    }

    /// A connection from another worker.
    fn arrived(&mut self, connection: Box<Connection>) {
        let key = self.connections.insert(|key| {
            let mut connection = connection;
            connection.moved(key);
            connection
        });
        if let Some(connection) = key.and_then(|key| self.connections.get_mut(key)) {
            // What was told while it was on its way, neither worker told it.
            connection.controller_changed(&mut self.local);
            if self.stop_by.is_some() {
                connection.shut_down(&self.local);
            }
        }
        self.welcome(key);
    }

    /// Watches a new connection, and serves it: its first bytes may be here.
    fn welcome(&mut self, key: Option<Key>) {
        let watched = key.and_then(|key| {
            let socket = self.connections.get_mut(key)?.socket()?;
            let flags = epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(key.get());
            Some((key, epoll::add(&self.epoll, socket, data, flags)))
        });
        match watched {
            Some((key, Ok(()))) => self.schedule(key),
            Some((key, Err(error))) => {
                tracing::error!(%error, "cannot watch a connection; closing it");
                if let Some(connection) = self.connections.get_mut(key) {
                    connection.abort(&mut self.local);
                }
                self.settle(key, false);
            }
            None => tracing::error!("a worker has no room for another connection"),
        }
    }

    fn serve_scheduled(&mut self) {
        for _ in 0..self.scheduled.len() {
            let Some(key) = self.scheduled.pop_front() else {
                return;
            };
            self.serve(key);
        }
    }

    fn serve(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        connection.scheduled = false;
        let worked = std::mem::take(&mut self.local.worked);
        let more = connection.serve(&mut self.scratch, &mut self.local);
        if self.local.worked {
            self.warm(key);
        }
        self.local.worked |= worked;
        self.settle(key, more);
    }

    /// After anything was done with a connection: what it needs next.
    fn settle(&mut self, key: Key, more: bool) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if connection.is_over() {
            let placed = connection.account.placed;
            self.connections.remove(key);
            if self.connections.is_empty() {
                self.local.pool.release();
                self.local.devices.rest();
            }
            self.local
                .shared
                .placement()
                .remove(self.local.worker, placed);
            return;
        }
        if connection.wants_retry() && !connection.waiting {
            connection.waiting = true;
            self.waiting.push_back(key);
        }
        let deadline = connection.deadline();
        self.timers.arm(key, &mut connection.armed, deadline);
        if connection.account.to_place.is_some() && connection.can_move() && self.stop_by.is_none()
        {
            self.place(key);
        } else if more {
            self.schedule(key);
        }
    }

    /// Finds the right worker for a connection that became an I/O queue.
    fn place(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let Some(controller) = connection.account.to_place.take() else {
            return;
        };
        connection.account.placed = Some(controller);
        let here = self.local.worker;
        let worker = self
            .local
            .shared
            .placement()
            .place_io_queue(here, controller);
        tracing::debug!(
            cntlid = controller.1.0,
            worker,
            "an I/O queue has its place"
        );
        if worker == here {
            self.schedule(key);
            return;
        }
        if let Some(socket) = connection.socket() {
            // Fails only for what is not watched.
            let _ = epoll::delete(&self.epoll, socket);
        }
        if let Some(connection) = self.connections.remove(key) {
            self.local.shared.mailboxes[worker].put(Message::Moved(connection));
        }
    }

    /// Returns what devices finished to the commands it belongs to. True if
    /// there may be more.
    fn poll_devices(&mut self) -> bool {
        for _ in 0..COMPLETIONS {
            let Some(mut completion) = self.local.devices.poll() else {
                return false;
            };
            self.local.freed = true;
            self.local.worked = true;
            let (key, slot) = split_tag(completion.tag);
            completion.tag = slot;
            if let Some(connection) = self.connections.get_mut(key) {
                connection.block_completed(completion, &mut self.local);
                self.schedule(key);
            }
        }
        true
    }

    /// Lets some of those that wait try again, each once after something was freed.
    fn retry_waiting(&mut self) {
        if std::mem::take(&mut self.local.freed) {
            self.to_retry = self.waiting.len();
        }
        for _ in 0..self.to_retry.min(RETRIES) {
            self.to_retry -= 1;
            let Some(key) = self.waiting.pop_front() else {
                return;
            };
            if let Some(connection) = self.connections.get_mut(key) {
                connection.waiting = false;
                connection.retry(&mut self.local);
                self.schedule(key);
            }
        }
    }

    fn expire(&mut self) {
        while let Some((at, key)) = self.timers.pop(self.local.now) {
            if let Some(connection) = self.connections.get_mut(key)
                && connection.armed.take(at)
            {
                if connection.deadline().is_some_and(|at| at <= self.local.now) {
                    connection.handle_timeout(&mut self.local);
                    self.schedule(key);
                } else {
                    self.settle(key, false);
                }
            }
        }
        if self.stop_by.is_some_and(|at| at <= self.local.now) {
            let keys: Vec<Key> = self.connections.keys().collect();
            for key in keys {
                if let Some(connection) = self.connections.get_mut(key) {
                    connection.abort(&mut self.local);
                }
                self.settle(key, false);
            }
        }
    }

    /// Has the queues here look at controllers that other queues here changed.
    fn tell_changed(&mut self) {
        for controller in std::mem::take(&mut self.local.changed) {
            self.controller_changed(&controller);
        }
    }

    fn controller_changed(&mut self, controller: &Controller) {
        let all = self.connections.iter();
        let theirs = all.filter(|(_, connection)| connection.belongs_to(controller));
        let keys: Vec<Key> = theirs.map(|(key, _)| key).collect();
        for key in keys {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.controller_changed(&mut self.local);
                if self.stop_by.is_some() {
                    connection.shut_down(&self.local);
                }
            }
            self.schedule(key);
        }
    }

    /// Whether the target stops and there is nothing left to finish; what devices
    /// still hold when time is up is dropped as they end.
    fn is_finished(&self) -> bool {
        self.stop_by
            .is_some_and(|at| self.connections.is_empty() || at <= self.local.now)
    }
}
