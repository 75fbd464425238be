//! Arbitrary operations of hosts, devices, time and the fabric, over RDMA.
//!
//! Hosts' queues and raw messages, changed on their way, against a target's worker.
//! Of hosts that broke the rules nothing is expected; but nothing panics, nothing
//! hangs, and when all connections are gone no buffer, queue pair, lent memory or
//! controller is left. Whoever kept the rules is served in the end.
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use nvmf_core::block::MediaError;
use nvmf_core::host::queue::Connect;
use nvmf_core::wire::ids::{Cntlid, Qid};
use nvmf_core::wire::sqe::Sqe;
use nvmf_rdma::Cm;
use nvmf_rdma::cm::{PrivateData, Setup, Terms};
use nvmf_rdma::sim::{LIMITS, Manager, Nic, Qp};
use nvmf_rdma::target::Receives;
use nvmf_rdma::verbs::{Chain, Key, Send, Verbs};
use zerocopy::{FromBytes, IntoBytes};

use crate::association::identity;
use crate::bytes::SUBNQN;
use crate::ends::{Ends, Payload, Wanted, Way};
use crate::over_rdma::{Choices, LISTENER, RdmaEnds};
use crate::scenarios::{is_true, session};
use crate::target::Device;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 4;
/// Connections ever.
const MAX_LINKS: usize = 12;
/// Operations worth running.
const MAX_OPERATIONS: usize = 200;

#[derive(Arbitrary, Debug)]
struct Scenario {
    per_connection: bool,
    windows: bool,
    reads: u8,
    budget: u8,
    few_receives: bool,
    operations: Vec<Operation>,
}

#[derive(Arbitrary, Debug)]
enum Operation {
    /// A host's queue connects.
    Connect {
        qid: u8,
        entries: u8,
        latency: u8,
        fabrics: bool,
    },
    /// A host connects with private data that keeps no rule.
    Raw { private_data: [u8; 12], len: u8 },
    /// A message that keeps no rule.
    Message { bytes: [u8; 64], len: u8 },
    /// A command, whatever it is.
    Submit {
        at: u8,
        sqe: [u8; 64],
        len: u16,
        way: u8,
    },
    /// A command on logical blocks.
    Io {
        at: u8,
        opcode: u8,
        slba: u8,
        blocks: u8,
        write: bool,
    },
    /// The next message has a byte changed, or loses its end.
    Spoil { offset: u8, change: u8, cut: bool },
    /// Data inside capsules.
    Inline { at: u8, len: u16 },
    /// Devices change their manner.
    Devices { manner: u8 },
    /// A request that a device holds completes.
    Complete { index: u8, fails: bool },
    /// Buffers run short.
    Buffers { left: u8 },
    /// Waiting commands may try again.
    Retry,
    /// Requests are held up.
    Room { at: u8, to_host: bool, room: u8 },
    /// Time passes.
    Advance { microseconds: u16 },
    /// A connection is cut, or is to be.
    Cut { at: u8, to_host: bool, later: u8 },
    /// A host is gone.
    Close { at: u8 },
    /// The raw host is gone.
    Leave,
    /// The next message of a host's queue, or of the raw host, breaks off.
    BreakOff { at: u8 },
}

/// Runs the input as an [`Arbitrary`] scenario.
///
/// # Panics
/// When an invariant does not hold.
pub fn rdma_operations(input: &[u8]) {
    let Ok(scenario) = Scenario::arbitrary_take_rest(Unstructured::new(input)) else {
        return;
    };
    let mut world = World::new(&scenario);
    for operation in scenario.operations.iter().take(MAX_OPERATIONS) {
        world.operate(operation);
    }
    world.end();
}

struct World {
    ends: RdmaEnds,
    spoil: Rc<Cell<Option<(usize, u8, bool)>>>,
    raw: Option<Raw>,
    tag: u64,
}

struct Raw {
    nic: Nic,
    manager: Manager,
    qp: Qp,
}

impl World {
    fn new(scenario: &Scenario) -> Self {
        let mut ends = RdmaEnds::new(Choices {
            receives: if scenario.per_connection {
                Receives::PerConnection
            } else {
                Receives::Shared
            },
            count: if scenario.few_receives { 16 } else { 160 },
            key: if scenario.windows {
                Key::Window
            } else {
                Key::Region
            },
            reads: 1 + scenario.reads % 16,
            budget: 1 + usize::from(scenario.budget % 64),
            ..Choices::default()
        });
        ends.target().limits.inline_data = 4096;
        let spoil = Rc::new(Cell::new(None));
        let next = Rc::clone(&spoil);
        ends.fabric.set_tap(Box::new(move |passing| {
            if let Some((offset, change, cut)) = next.get()
                && !passing.bytes.is_empty()
            {
                next.set(None);
                let at = offset % passing.bytes.len();
                passing.bytes[at] ^= change;
                if cut && passing.kind == nvmf_rdma::sim::Kind::Send {
                    passing.bytes.truncate(at);
                }
            }
        }));
        Self {
            ends,
            spoil,
            raw: None,
            tag: 0,
        }
    }

    fn link(&self, at: u8) -> Option<usize> {
        let open: Vec<_> = (0..self.ends.links())
            .filter(|link| self.ends.is_open(*link))
            .collect();
        let at = usize::from(at).checked_rem(open.len())?;
        Some(open[at])
    }

    fn submit(&mut self, link: usize, sqe: &Sqe, payload: Payload) {
        self.tag += 1;
        self.ends.submit(link, sqe, payload, self.tag);
    }

    fn operate(&mut self, operation: &Operation) {
        match *operation {
            Operation::Connect {
                qid,
                entries,
                latency,
                fabrics,
            } => self.connect(qid, entries, latency, fabrics),
            Operation::Raw { private_data, len } => self.raw(&private_data, len),
            Operation::Message { bytes, len } => {
                if let Some(raw) = &mut self.raw {
                    let head = &bytes[..usize::from(len).min(bytes.len())];
                    // It may not be connected, or have no room: nobody minds.
                    let _ = raw.nic.post(
                        raw.qp,
                        Chain {
                            id: 0,
                            signalled: true,
                            buffer: None,
                            first: None,
                            send: Some(Send::new(head)),
                        },
                    );
                }
            }
            Operation::Submit { at, sqe, len, way } => {
                let sqe = Sqe::read_from_bytes(&sqe).expect("is as long");
                let len = len % 0x4000;
                let payload = match way % 3 {
                    1 if len > 0 => Payload::Read(len.into()),
                    2 if len > 0 => Payload::Write(vec![0x55; len.into()]),
                    _ => Payload::Nothing,
                };
                if let Some(link) = self.link(at) {
                    self.submit(link, &sqe, payload);
                }
            }
            Operation::Io {
                at,
                opcode,
                slba,
                blocks,
                write,
            } => {
                let blocks = 1 + u32::from(blocks % 32);
                let mut sqe = Sqe::new(opcode % 13, nvmf_core::wire::ids::Cid(0))
                    .with_nsid(nvmf_core::wire::ids::Nsid(1 + u32::from(slba & 1)));
                sqe.cdw10 = u32::from(slba).into();
                sqe.cdw12 = (blocks - 1).into();
                let payload = if write {
                    Payload::Write(vec![slba; blocks as usize * 512])
                } else {
                    Payload::Read(blocks * 512)
                };
                if let Some(link) = self.link(at) {
                    self.submit(link, &sqe, payload);
                }
            }
            Operation::Spoil {
                offset,
                change,
                cut,
            } => self.spoil.set(Some((offset.into(), change, cut))),
            Operation::Inline { at, len } => {
                if let Some(link) = self.link(at) {
                    self.ends.configure(link, 31, u32::from(len) % 4097);
                }
            }
            Operation::Devices { manner } => {
                self.ends.target().device = match manner % 4 {
                    0 => Device::Immediate,
                    1 => Device::Delayed,
                    2 => Device::Busy,
                    _ => Device::Failing(MediaError::Write),
                };
            }
            Operation::Complete { index, fails } => {
                let pending = self.ends.target().pending();
                if let Some(index) = usize::from(index).checked_rem(pending) {
                    self.ends.complete(index, fails.then_some(MediaError::Read));
                }
            }
            Operation::Buffers { left } => {
                self.ends.target().transfer_buffers = usize::from(left % 4);
            }
            Operation::Retry => self.ends.retry(0),
            Operation::Room { at, to_host, room } => {
                if let Some(link) = self.link(at) {
                    self.ends.make_room(link, way(to_host), room.into());
                }
            }
            Operation::Advance { microseconds } => {
                self.ends.run(Duration::from_micros(microseconds.into()));
            }
            Operation::Cut { at, to_host, later } => {
                let Some(link) = self.link(at) else { return };
                if later == 0 {
                    self.ends.cut(link);
                } else {
                    let units = self.ends.arrived(link, way(to_host)) + u64::from(later);
                    self.ends.cut_at(link, way(to_host), units);
                }
            }
            Operation::Close { at } => {
                if let Some(link) = self.link(at) {
                    self.ends.close(link);
                }
            }
            Operation::Leave => self.leave(),
            Operation::BreakOff { at } => {
                let link = self.link(at).map(|link| self.ends.queue_pairs(link).0);
                let raw = self.raw.as_ref().map(|raw| raw.qp);
                if let Some(qp) = raw.or(link) {
                    self.ends.fabric.break_off(qp);
                }
            }
        }
    }

    fn connect(&mut self, qid: u8, entries: u8, latency: u8, fabrics: bool) {
        let links = self.ends.links();
        let open = (0..links).filter(|link| self.ends.is_open(*link)).count();
        if open >= MAX_CONNECTIONS || links >= MAX_LINKS {
            return;
        }
        let qid = Qid(u16::from(qid % 6));
        let cntlid = if qid.is_admin() {
            Cntlid::DYNAMIC
        } else {
            Cntlid(1)
        };
        let entries = 2 + u16::from(entries % 31);
        let wanted = Wanted {
            qid,
            cntlid,
            entries,
        };
        let link = self
            .ends
            .connect(&wanted, Duration::from_micros(latency.into()));
        let connect = Connect {
            qid,
            entries: entries.into(),
            kato_ms: 0,
            sq_flow_control: latency & 1 == 0,
        };
        self.ends.configure(link, usize::from(entries) - 1, 0);
        if fabrics {
            let subnqn = SUBNQN.parse().expect("is a name");
            let data = Connect::data(&identity(), &subnqn, cntlid);
            let payload = Payload::Write(data.as_bytes().to_vec());
            self.submit(link, &connect.request().sqe, payload);
        }
    }

    fn raw(&mut self, private_data: &[u8], len: u8) {
        self.leave();
        let (mut nic, mut manager) = self.ends.fabric.node(LIMITS);
        let setup = Setup {
            tag: 0,
            sends: 64,
            receives: 1,
        };
        let mut bytes = [0; 32];
        bytes[..private_data.len()].copy_from_slice(private_data);
        let terms = Terms {
            initiator_depth: private_data[11],
            responder_resources: private_data[10],
            private_data: PrivateData::new(&bytes[..usize::from(len).min(32)]),
        };
        let qp = manager.connect(&mut nic, LISTENER, setup, terms);
        let qp = qp.expect("there is room");
        self.raw = Some(Raw { nic, manager, qp });
    }

    fn leave(&mut self) {
        let Some(mut raw) = self.raw.take() else {
            return;
        };
        let now = self.ends.now();
        raw.manager.disconnect(&mut raw.nic, raw.qp);
        while raw.nic.poll(now).is_some() {}
        raw.manager.destroy(&mut raw.nic, raw.qp);
    }

    /// Everything held up goes on, everybody leaves, and somebody else is served.
    fn end(mut self) {
        self.spoil.set(None);
        let target = self.ends.target();
        target.device = Device::Immediate;
        target.transfer_buffers = usize::MAX;
        for _ in 0..1000 {
            for link in 0..self.ends.links() {
                self.ends.make_room(link, Way::ToTarget, usize::MAX);
                self.ends.make_room(link, Way::ToHost, usize::MAX);
            }
            self.ends.retry(0);
            self.ends.flow();
            if !self.ends.complete(0, None) {
                break;
            }
        }
        assert_eq!(self.ends.target().pending(), 0, "devices are not done");
        self.leave();
        for link in 0..self.ends.links() {
            self.ends.close(link);
        }
        self.ends.flow();
        self.ends.assert_clean();
        while self.ends.poll_seen().is_some() {}
        let outcome = session(&mut self.ends);
        assert!(outcome.is_whole(), "{outcome:?}");
        is_true(&mut self.ends, &outcome, "a host that keeps the rules");
    }
}

const fn way(to_host: bool) -> Way {
    if to_host { Way::ToHost } else { Way::ToTarget }
}
