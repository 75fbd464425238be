//! A host on smoltcp's sockets, and what it reported.
use std::array;
use std::time::Duration;

use nvmf_core::host::Identity;
use nvmf_core::time::Instant;
use nvmf_core::wire::ids::{HostId, Nsid};
use nvmf_core::wire::log::AsyncEvent;
use nvmf_tcp::smoltcp::host::{
    Completion, Destination, Error, Event, Host, Options, Resources, Seat,
};
use nvmf_testing::bytes::SUBNQN;
use smoltcp::iface::{Context, SocketHandle, SocketSet};

use crate::world::{PORT, TARGET, World, leak};

pub(crate) const QUEUES: usize = 2;
pub(crate) const DEPTH: usize = 4;

pub(crate) struct Initiator {
    pub host: Host<'static, QUEUES, DEPTH>,
    pub ready: bool,
    pub closed: Option<Result<(), Error>>,
    pub completed: Vec<Completion<'static>>,
    pub events: Vec<AsyncEvent>,
}

/// Whoever these tests say they are.
pub(crate) fn options() -> Options {
    Options::new(Identity {
        hostnqn: "nqn.2014-08.org.example:boot-loader".parse().unwrap(),
        hostid: HostId([7; 16]),
    })
}

/// The target and its first namespace.
pub(crate) fn destination() -> Destination {
    Destination {
        address: (TARGET, PORT).into(),
        subnqn: SUBNQN.parse().unwrap(),
        nsid: Some(Nsid(1)),
    }
}

impl Initiator {
    pub(crate) fn new(
        options: Options,
        set: &mut SocketSet,
        admin: SocketHandle,
        queues: [SocketHandle; QUEUES],
    ) -> Self {
        let resources = Resources {
            admin: leak(Seat::new()),
            queues: leak(array::from_fn(|_| Seat::new())),
            scratch: leak([0; 4096]),
        };
        Self {
            host: Host::new(options, resources, set, admin, queues),
            ready: false,
            closed: None,
            completed: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context, set: &mut SocketSet, now: Instant) {
        while let Some(event) = self.host.poll(context, set, now) {
            assert!(self.closed.is_none(), "nothing comes after the end");
            match event {
                Event::Ready => self.ready = true,
                Event::Completed(completion) => self.completed.push(completion),
                Event::Async(event) => self.events.push(event),
                Event::Closed(outcome) => self.closed = Some(outcome),
            }
        }
    }
}

impl World {
    /// Connects, and waits for what comes of it: an end, or else the host is ready.
    pub(crate) fn outcome(
        &mut self,
        at: usize,
        destination: Destination,
    ) -> Option<Result<(), Error>> {
        let initiator = &mut self.initiators[at];
        (initiator.ready, initiator.closed) = (false, None);
        initiator.host.connect(destination).unwrap();
        self.run(|world| world.initiators[at].ready || world.initiators[at].closed.is_some());
        self.initiators[at].closed
    }

    /// The same, of an association that does not come about: why not.
    #[track_caller]
    pub(crate) fn failure(&mut self, at: usize, destination: Destination) -> Error {
        match self.outcome(at, destination) {
            Some(Err(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Connects a new host to the target's namespace.
    #[track_caller]
    pub(crate) fn connected(&mut self, options: Options) -> usize {
        let at = self.initiator(options);
        assert_eq!(self.outcome(at, destination()), None);
        at
    }

    /// Waits for the only command under way.
    #[track_caller]
    pub(crate) fn completion(&mut self, at: usize) -> Completion<'static> {
        self.run(|world| !world.initiators[at].completed.is_empty());
        self.initiators[at].completed.remove(0)
    }

    /// Ends an association properly.
    #[track_caller]
    pub(crate) fn leave(&mut self, at: usize) {
        let now = Instant::from_micros(self.now as u64);
        let mut host = self.initiators.remove(at);
        host.host.disconnect(self.host_sockets(), now);
        self.initiators.insert(at, host);
        self.run(|world| world.initiators[at].closed.is_some());
        assert_eq!(self.initiators[at].closed, Some(Ok(())));
    }

    /// Waits until the association is over.
    #[track_caller]
    pub(crate) fn end(&mut self, at: usize, limit: Duration) -> Result<(), Error> {
        assert!(self.run_for(limit, |world| world.initiators[at].closed.is_some()));
        self.initiators[at].closed.unwrap()
    }
}
