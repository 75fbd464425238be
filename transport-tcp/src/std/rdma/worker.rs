//! An RDMA worker: one thread, its share of a device, and the loop that serves its
//! connections.
//!
//! Each turn takes up to a budget of completions, whatever connection's they are, acts
//! on each at once, and takes what namespaces completed. While there is work, and for a
//! while after if that has paid lately, the worker polls, and the completion queue is not
//! armed. Then it arms the queue, polls once more, and sleeps until the device, the
//! connection manager, another thread or the soonest deadline wakes it.
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvmf_core::block::Completion;
use nvmf_core::rdma::capsule;
use nvmf_core::rdma::connection::TargetConnection;
use nvmf_core::target::queue_pair::Notice;
use nvmf_core::time::{Instant, sooner};
use nvmf_rdma::cm::Cm;
use nvmf_rdma::ibv::{self, IbvVerbs, Memory};
use nvmf_rdma::target::{self, Receives, Target};
use nvmf_rdma::verbs::{Access, Verbs};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::super::catalog::Subsystem;
use super::super::devices::Devices;
use super::super::error::Error;
use super::super::growing::Growing;
use super::super::shared::{Controller, Shared};
use super::super::spin::Spin;
use super::door::Door;
use super::local::{Local, given_back, split_tag};
use super::memory::Data;
use super::{Config, Message, Port, Registered};

/// Completions that a completion queue has room for, besides shared receives, where the
/// device permits: those of 128 connections of 128 entries.
const SENDS: u32 = 32 * 1024;
/// Completions taken from namespaces in one turn.
const COMPLETIONS: usize = 1024;
/// Turns of a polling worker after which it looks at what takes a system call or time:
/// the connection manager, and deadlines.
const LOOK: u32 = 64;
/// How long after it was removed, or was not there, a device is looked for.
const RETRY: Duration = Duration::from_secs(1);
/// In front of a receive's data, so that it begins where direct I/O may.
const ALIGNMENT: u32 = 512;

pub(super) struct Worker {
    epoll: OwnedFd,
    config: Config,
    share: Option<Share>,
    local: Local,
    spin: Spin,
    /// Turns since it looked at what takes a system call or time.
    turns: u32,
    /// When to look for a device.
    retry: Option<Instant>,
    /// One that is there already, while connections on the one before have not ended.
    next: Option<ibv::Device>,
    /// When to give up on what is under way, once the target stops.
    stop_by: Option<Instant>,
}

/// A worker's share of a device, and the connections there.
struct Share {
    target: Target<Door, Growing, Growing, Controller>,
    door: Door,
    verbs: IbvVerbs,
    /// The device is gone, and every connection ends.
    removed: bool,
}

type Machine = TargetConnection<Growing, Registered, Controller>;

/// The connections, the device and the rest, borrowed apart.
macro_rules! parts {
    ($share:expr) => {{
        let Share {
            target,
            door,
            verbs,
            ..
        } = $share;
        (target, target::Device { cm: door, verbs })
    }};
}

impl Worker {
    /// A worker without a device. On the thread that it stays on.
    pub(super) fn new(
        index: usize,
        port: Arc<Port>,
        shared: Arc<Shared>,
        subsystems: &[Subsystem],
        config: &Config,
    ) -> rustix::io::Result<Self> {
        let waker = port.workers[index].mailbox.waker();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, waker, epoll::EventData::new_u64(0), edges)?;
        let devices = Devices::open(subsystems, waker);
        let limits = config.limits(&shared.limits);
        Ok(Self {
            epoll,
            config: config.clone(),
            share: None,
            spin: Spin::new(shared.spin),
            turns: 0,
            retry: None,
            next: None,
            stop_by: None,
            local: Local::new(index, port, shared, limits, devices),
        })
    }

    /// Takes a share of the device. The first worker listens.
    pub(super) fn open(&mut self, device: ibv::Device) -> Result<(), Error> {
        let address = self.local.port.address;
        let config = ibv::Config {
            shared_receives: self.config.shared_receives,
            completions: self.config.shared_receives + SENDS,
            completion_vector: u32::try_from(self.local.index).unwrap_or(0),
        };
        let (mut verbs, cm) =
            ibv::open(device, &config).map_err(|error| Error::rdma(address, error))?;
        let refused = |what| move |error| Error::rdma_refused(address, what, error);
        let limits = verbs.limits();
        let (receives, count) = self.receives(limits.shared_receives);
        self.local.room = limits.completions.saturating_sub(count);
        let largest = self.local.limits.transfer as usize;
        let memory = "memory (see `ulimit -l`)";
        let data = Data::new(&mut verbs, largest, self.local.shared.buffers);
        self.local.data = Some(data.map_err(refused(memory))?);
        let mut target = Target::new(target::Config {
            room: self.local.queues(),
            receives,
            connect_timeout: self.local.shared.connect_timeout,
        });
        self.provide_receives(&mut target, &mut verbs, count)
            .map_err(refused(memory))?;
        let port = &self.local.port;
        let mut door = Door::new(cm, Arc::clone(port), self.local.index);
        let watch = |fd: BorrowedFd<'_>| {
            let data = epoll::EventData::new_u64(1);
            epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)
        };
        verbs
            .with_fd(watch)
            .and_then(|()| door.cm.with_fd(watch))
            .map_err(|error| Error::start(port.first, error.into()))?;
        if self.local.index == 0 {
            door.listen(address).map_err(refused("to listen"))?;
        }
        port.workers[self.local.index]
            .open
            .store(true, Ordering::Release);
        self.share = Some(Share {
            target,
            door,
            verbs,
            removed: false,
        });
        Ok(())
    }

    /// Whose receives are, and how many there are, where the device's shared receive queue has
    /// room for `shared`.
    fn receives(&self, shared: u32) -> (Receives, u32) {
        let Config {
            shared_receives: wanted,
            ..
        } = self.config;
        let address = self.local.port.address;
        if shared == 0 {
            tracing::warn!(
                %address,
                receives = wanted,
                "the RDMA device has no shared receive queue: connections get receives of \
                 their own, as long as there are any"
            );
            return (Receives::PerConnection, wanted);
        }
        if shared < wanted {
            tracing::warn!(%address, wanted, shared, "the RDMA device has fewer shared receives");
        }
        (Receives::Shared, shared)
    }

    /// Registers memory for `count` receives.
    fn provide_receives(
        &self,
        target: &mut Target<Door, Growing, Growing, Controller>,
        verbs: &mut IbvVerbs,
        count: u32,
    ) -> Result<(), nvmf_rdma::verbs::Error> {
        let head = capsule::COMMAND;
        let len = head + self.config.inline_data;
        let stride = ALIGNMENT + self.config.inline_data.next_multiple_of(ALIGNMENT);
        let memory = Memory::new(count as usize * stride as usize + ALIGNMENT as usize)?;
        let mut region = verbs
            .register(memory, Access::LOCAL)
            .map_err(|(_, error)| error)?;
        // Each begins so that its data, behind the head, is aligned.
        drop(verbs.carve(&mut region, ALIGNMENT - head));
        for _ in 0..count {
            let Some(memory) = verbs.carve(&mut region, len) else {
                break;
            };
            drop(verbs.carve(&mut region, stride - len));
            if target.add_receive(verbs, memory).is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Serves connections until the target stops and they are finished.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.local.shared);
        let mut events = Vec::with_capacity(8);
        loop {
            self.local.now = shared.now();
            let more = self.turn();
            if self.is_finished() {
                return;
            }
            if more {
                self.spin.worked(self.local.now);
            }
            self.turns = self.turns.wrapping_add(1);
            if !more && !self.spin.lasts(self.local.now) {
                self.sleep(&mut events);
            }
        }
    }

    /// Does what there is to do, once. True if there may be more.
    fn turn(&mut self) -> bool {
        let messages = self.local.port.workers[self.local.index].mailbox.take();
        let mut more = !messages.is_empty();
        for message in messages {
            self.message(message);
        }
        if self.turns.is_multiple_of(LOOK) {
            self.look();
        }
        more |= self.poll() > 0;
        if self.loses_device() {
            self.removed();
        }
        self.let_go();
        more |= self.poll_namespaces();
        self.log_connected();
        self.retry_waiting();
        self.tell_changed();
        // What was submitted in this turn starts now, together.
        more |= self.poll_namespaces();
        more
    }

    /// Takes completions and events within the budget. Returns how many there were.
    fn poll(&mut self) -> usize {
        let Some(share) = &mut self.share else {
            return 0;
        };
        let (target, device) = parts!(share);
        target.poll(device, &mut self.local, self.config.budget)
    }

    /// The device is gone, and nothing was done about that yet.
    fn loses_device(&self) -> bool {
        let share = self.share.as_ref();
        share.is_some_and(|share| share.door.cm.is_removed() && !share.removed)
    }

    /// Looks at what need not be looked at in every turn.
    fn look(&mut self) {
        self.expire();
        let Some(share) = &mut self.share else { return };
        share.door.ask();
    }

    /// Arms the queue, and sleeps until something happens, unless something did.
    fn sleep(&mut self, events: &mut Vec<epoll::Event>) {
        let port = Arc::clone(&self.local.port);
        let waker = port.workers[self.local.index].mailbox.waker();
        // Before it sleeps, and after.
        self.turns = 0;
        if !waker.sleep() {
            return;
        }
        if let Some(share) = &mut self.share {
            share.door.ask();
            // A device that is gone cannot be armed, and its events tell of it.
            let _ = share.verbs.arm();
        }
        let connections = self.connections();
        let idle = self.poll() == 0 && self.connections() == connections && !self.loses_device();
        if idle {
            let timeout = self.next_deadline().map(|at| at.since(self.local.now));
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let room = rustix::buffer::spare_capacity(events);
            match epoll::wait(&self.epoll, room, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => events.clear(),
                // All else is a fault of ours, and would come again at once.
                Err(error) => panic!("epoll_wait: {error}"),
            }
        }
        waker.awake();
        if idle {
            let now = self.local.shared.now();
            self.spin.slept(now.since(self.local.now));
        }
    }

    fn connections(&self) -> usize {
        let share = self.share.as_ref();
        share.map_or(0, |share| share.target.connections())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let share = self.share.as_ref();
        let connections = share.and_then(|share| share.target.next_deadline());
        let namespaces = self.local.devices.next_deadline();
        let own = sooner(self.retry, self.stop_by);
        sooner(sooner(connections, namespaces), own)
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Request(request) => {
                // Without a device it is dropped, which rejects it.
                if let Some(share) = &mut self.share {
                    share.door.hand_over(*request);
                }
            }
            Message::ControllerChanged(controller) => self.controller_changed(&controller),
            Message::Removed => self.removed(),
            Message::Device(device) => self.reopen(device),
            Message::Stop => {
                self.stop_by = Some(self.local.now.after(self.local.shared.stop_timeout));
                self.retry = None;
                if let Some(share) = &mut self.share {
                    share.door.close();
                }
                self.each(|_, _| true, |_, _| {});
            }
        }
    }

    /// Calls the machines of the connections that are `theirs`, and has them close if
    /// the target stops. An Admin Queue closes after its controller's I/O queues.
    fn each(
        &mut self,
        theirs: impl Fn(&Local, u32) -> bool,
        mut call: impl FnMut(&mut Machine, &mut Local),
    ) {
        let stopping = self.stop_by.is_some();
        let Some(share) = &mut self.share else { return };
        for connection in (0..).take(self.local.accounts.len()) {
            if !theirs(&self.local, connection) {
                continue;
            }
            let (target, device) = parts!(&mut *share);
            target.with(connection, device, &mut self.local, |machine, local| {
                call(machine, local);
                let account = &local.accounts[connection as usize];
                let waits = match (&account.controller, machine.identity()) {
                    (Some(controller), Some(identity)) => {
                        identity.qid.is_admin() && local.shared.io_queues(controller) > 0
                    }
                    _ => false,
                };
                if stopping && !waits {
                    machine.shut_down();
                }
            });
        }
    }

    fn controller_changed(&mut self, controller: &Controller) {
        let theirs = |local: &Local, connection| {
            let mine = local.accounts[connection as usize].controller.as_ref();
            mine.is_some_and(|mine| Arc::ptr_eq(mine, controller))
        };
        self.each(theirs, |machine, local| machine.controller_changed(local));
    }

    /// Has the queues here look at controllers that other queues here changed.
    fn tell_changed(&mut self) {
        for controller in std::mem::take(&mut self.local.changed) {
            self.controller_changed(&controller);
        }
    }

    /// Returns what namespaces finished to the commands it belongs to. True if there
    /// was something.
    fn poll_namespaces(&mut self) -> bool {
        let mut found = false;
        for _ in 0..COMPLETIONS {
            let Some(completion) = self.local.devices.poll() else {
                return found;
            };
            found = true;
            self.local.freed = true;
            let (connection, slot) = split_tag(completion.tag);
            let completion = Completion {
                tag: slot,
                buffer: given_back(completion.buffer),
                result: completion.result,
            };
            if let Some(share) = &mut self.share {
                let (target, device) = parts!(share);
                target.block_completed(connection, completion, device, &mut self.local);
            }
        }
        found
    }

    /// Lets commands that wait try again, if there is any use.
    fn retry_waiting(&mut self) {
        let Some(share) = &mut self.share else { return };
        if let Some(data) = &mut self.local.data {
            self.local.freed |= data.grow(&mut share.verbs);
        }
        if std::mem::take(&mut self.local.freed) && std::mem::take(&mut self.local.short) {
            let (target, device) = parts!(share);
            target.retry(device, &mut self.local);
        }
    }

    fn log_connected(&mut self) {
        let Some(share) = &mut self.share else { return };
        for connection in std::mem::take(&mut self.local.fresh) {
            let (target, device) = parts!(&mut *share);
            let told = target.with(connection, device, &mut self.local, |machine, local| {
                match (machine.poll_notice()?, machine.identity()) {
                    (Notice::Connected, Some(identity)) => local.connected(identity),
                    (Notice::Refused(reason), _) => {
                        tracing::warn!(transport = "rdma", %reason, "connect refused");
                    }
                    (Notice::Connected, None) => {}
                }
                Some(())
            });
            if told == Some(None) {
                self.local.fresh.push(connection);
            }
        }
        if share.target.connections() == 0
            && let Some(data) = &mut self.local.data
        {
            data.release();
        }
    }

    fn expire(&mut self) {
        let now = self.local.now;
        if let Some(share) = &mut self.share {
            let (target, device) = parts!(share);
            target.handle_timeout(device, &mut self.local);
        }
        if self.retry.is_some_and(|at| at <= now) {
            self.retry = Some(now.after(RETRY));
            let address = self.local.port.address;
            if let Ok(device) = ibv::Device::at(address) {
                self.retry = None;
                tracing::info!(%address, device = device.name(), "there is an RDMA device again");
                for place in &self.local.port.workers[1..] {
                    place.mailbox.put(Message::Device(device.clone()));
                }
                self.reopen(device);
            }
        }
    }

    fn reopen(&mut self, device: ibv::Device) {
        if self.stop_by.is_some() {
            return;
        }
        if self.share.is_some() {
            self.next = Some(device);
            return;
        }
        if let Err(error) = self.open(device) {
            let address = self.local.port.address;
            tracing::error!(%address, %error, "an RDMA worker cannot go on");
            self.local.data = None;
            if self.local.index == 0 {
                self.retry = Some(self.local.now.after(RETRY));
            }
        }
    }

    /// The device is gone: ends its connections.
    fn removed(&mut self) {
        let Some(share) = &mut self.share else { return };
        if !std::mem::replace(&mut share.removed, true) {
            let port = &self.local.port;
            port.workers[self.local.index]
                .open
                .store(false, Ordering::Release);
            if self.local.index == 0 {
                tracing::warn!(address = %port.address, "the RDMA device is gone");
                for place in &port.workers[1..] {
                    place.mailbox.put(Message::Removed);
                }
            }
            self.each(|_, _| true, |machine, _| machine.broke());
        }
    }

    /// Lets go of a device that is gone, once its connections are.
    fn let_go(&mut self) {
        let gone = |share: &Share| share.removed && share.target.connections() == 0;
        if self.share.as_ref().is_some_and(gone) {
            self.share = None;
            self.local.data = None;
            self.local.receives = nvmf_rdma::Pool::default();
            if let Some(device) = self.next.take() {
                self.reopen(device);
            } else if self.local.index == 0 && self.stop_by.is_none() {
                self.retry = Some(self.local.now.after(RETRY));
            }
        }
    }

    /// Whether the target stops and there is nothing left to finish.
    fn is_finished(&self) -> bool {
        self.stop_by
            .is_some_and(|at| self.connections() == 0 || at <= self.local.now)
    }
}
