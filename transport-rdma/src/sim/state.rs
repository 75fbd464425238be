//! What there is: nodes, queue pairs, and what is on its way.
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use nvmf_core::rdma::Remote;
use nvmf_core::time::Instant;

use super::manager::Request;
use super::memory::Buffer;
use super::{Address, Tap};
use crate::cm::{Event, PrivateData, Setup, Terms};
use crate::verbs::{Access, Chain, Completion, Ended, Limits, Outcome};

/// A queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qp(pub(super) usize);

/// What a request on its way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ, which carries nothing.
    Read,
}

/// What a device did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Calls that posted a chain.
    pub posts: u64,
    /// SENDs.
    pub sends: u64,
    /// RDMA WRITEs.
    pub writes: u64,
    /// RDMA READs.
    pub reads: u64,
    /// Receives posted.
    pub receives: u64,
    /// Windows bound, and invalidated by this side.
    pub windows: u64,
    /// Completions taken of what was posted to send.
    pub chains_completed: u64,
    /// Completions taken of receives.
    pub receives_completed: u64,
    /// Times that a peer had no receive.
    pub not_ready: u64,
    /// Times that a request waited because too many READs were under way.
    pub stalls: u64,
    /// Bytes of buffers that wait to be received into, at most.
    pub receive_bytes: u64,
    /// Bytes of them now.
    pub(super) receive_bytes_now: u64,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) limits: Limits,
    pub(super) shared: VecDeque<(u64, Buffer)>,
    /// Of those, what broken messages took.
    pub(super) lost: Vec<(u64, Buffer)>,
    pub(super) completions: VecDeque<Queued>,
    pub(super) events: VecDeque<Event<Request, Qp>>,
    pub(super) statistics: Statistics,
    pub(super) next_address: u64,
    pub(super) next_key: u32,
    pub(super) armed: bool,
}

/// A completion that was not taken.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) qp: Qp,
    pub(super) completion: Completion<Buffer>,
    /// Places of the send queue that are free when it is taken.
    pub(super) retires: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Made, not connected.
    Idle,
    Connected,
    /// Failed, or disconnected: everything is flushed.
    Error,
    Destroyed,
}

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) node: usize,
    pub(super) condition: Condition,
    pub(super) peer: Option<Qp>,
    pub(super) setup: Setup,
    pub(super) latency: Duration,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    /// Chains in order, those that have left first.
    pub(super) chains: VecDeque<Posted>,
    /// Number of the first of them.
    pub(super) first_chain: u64,
    /// How many requests of `chains` have left: chain, part.
    pub(super) left: (usize, usize),
    pub(super) reads: u32,
    /// Places of the send queue that are taken.
    pub(super) taken: u32,
    /// Of them, those of chains that succeeded and did not complete.
    pub(super) unretired: u32,
    pub(super) receives: VecDeque<(u64, Buffer)>,
    pub(super) lent: BTreeMap<u64, Lent>,
    pub(super) wire: VecDeque<Packet>,
    pub(super) last_due: Instant,
    pub(super) blocked_until: Instant,
    pub(super) tries: u32,
    pub(super) room: usize,
    pub(super) arrived: u64,
    pub(super) cut_at: Option<u64>,
    /// Its next SEND breaks off.
    pub(super) breaks_off: bool,
    /// Its next window cannot be bound.
    pub(super) bind_fails: bool,
    /// Its user knows of its end.
    pub(super) told: bool,
    /// It told its peer of the end, or answered it.
    pub(super) said_bye: bool,
    /// Its peer did.
    pub(super) peer_ended: bool,
}

/// A chain in a send queue.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) chain: Chain<Buffer>,
    /// What it is not a chain: the end of a window.
    pub(super) reclaim: bool,
    /// Places that it takes, windows included.
    pub(super) places: u32,
    /// Requests that are done.
    pub(super) done: u32,
}

#[derive(Debug)]
pub(super) struct Lent {
    pub(super) buffer: Buffer,
    pub(super) len: u32,
    pub(super) access: Access,
    pub(super) key: u32,
    pub(super) window: Option<Window>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// To be bound by the next chain.
    Unbound,
    Bound,
    Invalidated,
}

/// A request on its way.
#[derive(Debug)]
pub(super) enum Packet {
    Send {
        chain: u64,
        bytes: Vec<u8>,
        invalidate: Option<u32>,
        fail: Option<Outcome>,
    },
    Write {
        chain: u64,
        remote: Remote,
        bytes: Vec<u8>,
        fail: Option<Outcome>,
    },
    Read {
        chain: u64,
        remote: Remote,
        len: u32,
        fail: Option<Outcome>,
    },
    /// The end of the connection.
    Bye,
}

/// What is to happen at some time.
#[derive(Debug)]
pub(super) enum Happening {
    /// The next request of the queue pair arrives.
    Arrival(Qp),
    /// A request was answered.
    Answer {
        of: Qp,
        chain: u64,
        result: Result<Vec<u8>, Outcome>,
        read: bool,
    },
    /// A peer's request to connect.
    Request {
        from: Qp,
        to: usize,
        terms: Terms,
    },
    /// Nobody is there.
    NobodyListens(Qp),
    Rejected(Qp, PrivateData),
    Established(Qp, Terms),
    /// A window cannot be bound.
    Unbound(Qp),
}

#[derive(Default)]
pub(super) struct Listener(pub(super) Option<Tap>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "tapped"
        } else {
            "untapped"
        })
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) now: Instant,
    pub(super) latency: Duration,
    pub(super) rnr_retries: u32,
    pub(super) rnr_pause: Duration,
    pub(super) tap: Listener,
    pub(super) nodes: Vec<Node>,
    pub(super) qps: Vec<QueuePair>,
    pub(super) listeners: BTreeMap<Address, usize>,
    pub(super) agenda: BTreeMap<(Instant, u64), Happening>,
    pub(super) sequence: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            now: Instant::ZERO,
            latency: Duration::ZERO,
            rnr_retries: 6,
            rnr_pause: Duration::from_micros(640),
            tap: Listener::default(),
            nodes: Vec::new(),
            qps: Vec::new(),
            listeners: BTreeMap::new(),
            agenda: BTreeMap::new(),
            sequence: 0,
        }
    }
}

impl State {
    pub(super) fn add_node(&mut self, limits: Limits) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Node {
            limits,
            shared: VecDeque::new(),
            lost: Vec::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            statistics: Statistics::default(),
            // Nobody's address or key is another's by chance.
            next_address: (node as u64 + 1) << 40,
            next_key: u32::try_from(node).expect("a few nodes") << 20 | 0x101,
            armed: false,
        });
        node
    }

    pub(super) fn add_qp(&mut self, node: usize, setup: Setup) -> Qp {
        let qp = Qp(self.qps.len());
        self.qps.push(QueuePair {
            node,
            condition: Condition::Idle,
            peer: None,
            setup,
            latency: self.latency,
            initiator_depth: 0,
            responder_resources: 0,
            chains: VecDeque::new(),
            first_chain: 0,
            left: (0, 0),
            reads: 0,
            taken: 0,
            unretired: 0,
            receives: VecDeque::new(),
            lent: BTreeMap::new(),
            wire: VecDeque::new(),
            last_due: Instant::ZERO,
            blocked_until: Instant::ZERO,
            tries: 0,
            room: usize::MAX,
            arrived: 0,
            cut_at: None,
            breaks_off: false,
            bind_fails: false,
            told: false,
            said_bye: false,
            peer_ended: false,
        });
        qp
    }

    pub(super) fn qp(&self, qp: Qp) -> &QueuePair {
        &self.qps[qp.0]
    }

    pub(super) fn qp_mut(&mut self, qp: Qp) -> &mut QueuePair {
        &mut self.qps[qp.0]
    }

    pub(super) fn live(&self) -> usize {
        let live = |qp: &&QueuePair| qp.condition != Condition::Destroyed;
        self.qps.iter().filter(live).count()
    }

    pub(super) fn lent(&self) -> usize {
        self.qps.iter().map(|qp| qp.lent.len()).sum()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.agenda.keys().next().map(|(due, _)| *due)
    }

    pub(super) fn schedule(&mut self, due: Instant, happening: Happening) {
        self.sequence += 1;
        self.agenda.insert((due, self.sequence), happening);
    }

    /// When what leaves now has gone the way `hops` times.
    pub(super) fn later(&self, qp: Qp, hops: u32) -> Instant {
        self.now.after(self.qp(qp).latency * hops)
    }

    pub(super) fn new_key(&mut self, node: usize) -> u32 {
        let node = &mut self.nodes[node];
        // A key is not used twice: what is left of the last one reaches nothing.
        node.next_key += 1;
        node.next_key
    }

    pub(super) fn set_room(&mut self, qp: Qp, requests: usize) {
        self.qp_mut(qp).room = requests;
        self.transmit(qp);
    }

    pub(super) fn complete(
        &mut self,
        qp: Qp,
        id: u64,
        (ended, outcome): (Ended, Outcome),
        buffer: Option<Buffer>,
        retires: u32,
    ) {
        let QueuePair { node, setup, .. } = *self.qp(qp);
        let node = &mut self.nodes[node];
        node.armed = false;
        node.completions.push_back(Queued {
            qp,
            completion: Completion {
                tag: setup.tag,
                id,
                ended,
                outcome,
                buffer,
            },
            retires,
        });
        let most = node.limits.completions as usize;
        assert!(
            node.completions.len() <= most,
            "a completion queue overruns"
        );
    }

    /// The connection is gone, without a word.
    pub(super) fn cut(&mut self, qp: Qp) {
        let peer = self.qp(qp).peer;
        for end in [Some(qp), peer].into_iter().flatten() {
            self.qp_mut(end).wire.clear();
            self.fail(end, Outcome::Unreachable);
            self.tell(end);
        }
    }

    /// The queue pair's user hears that it is not connected any more.
    pub(super) fn tell(&mut self, qp: Qp) {
        let it = self.qp_mut(qp);
        if it.condition == Condition::Error && !it.told {
            it.told = true;
            let node = it.node;
            self.nodes[node]
                .events
                .push_back(Event::Disconnected { qp });
        }
    }

    /// The queue pair fails: the oldest chain so, all else is flushed.
    pub(super) fn fail(&mut self, qp: Qp, outcome: Outcome) {
        let it = self.qp_mut(qp);
        if matches!(it.condition, Condition::Error | Condition::Destroyed) {
            return;
        }
        it.condition = Condition::Error;
        let chains = core::mem::take(&mut it.chains);
        let receives = core::mem::take(&mut it.receives);
        it.first_chain += chains.len() as u64;
        it.left = (0, 0);
        it.reads = 0;
        let mut outcome = outcome;
        let mut retires = core::mem::take(&mut it.unretired);
        for posted in chains {
            let ended = if posted.reclaim {
                Ended::Reclaim
            } else {
                Ended::Chain
            };
            retires += posted.places;
            let Chain { id, buffer, .. } = posted.chain;
            self.complete(qp, id, (ended, outcome), buffer, retires);
            (outcome, retires) = (Outcome::Flushed, 0);
        }
        for (id, buffer) in receives {
            let node = self.qp(qp).node;
            self.nodes[node].statistics.receive_bytes_now -= buffer.bytes.len() as u64;
            let ended = Ended::Receive {
                len: 0,
                invalidated: None,
            };
            self.complete(qp, id, (ended, Outcome::Flushed), Some(buffer), 0);
        }
    }
}
