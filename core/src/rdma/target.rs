//! The controller's end of a connection: command capsules in; data fetched by
//! READ, sent by WRITE, completed by SEND.
//!
//! Each command takes one chain of work requests, or two if its data is fetched:
//! a READ; then a SEND, with a WRITE before it if there is data to send. Only a
//! chain's last request completes.
use super::capsule::Command;
use super::{Fault, Remote, WorkId};
use crate::storage::{Fifo, Link, NIL, Storage};
use crate::wire::cqe::Cqe;
use crate::wire::ids::Cid;
use crate::wire::sgl::Sgl;
use crate::wire::status::Status;
use crate::{InCapsule, Place, SlotId, Source, Ticket, Transport};

/// What a connection was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Commands that the host may have under way: receives that there are for it.
    pub commands: u16,
    /// READs that may be under way: no more than the host's device answers at a
    /// time, nor than this side's can have (ORD).
    pub reads: u8,
    /// Work requests that the send queue has room for: 2 or more.
    pub requests: u32,
}

impl Config {
    /// Work requests with which a queue of `commands` never waits for room.
    #[must_use]
    pub const fn requests_for(commands: u16) -> u32 {
        // A command has one chain under way at a time, of two requests at most.
        (commands as u32).saturating_mul(2)
    }
}

/// A chain to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// READ, signalled.
    Fetch {
        /// To here, in the command's buffer.
        place: Place,
        /// From here.
        remote: Remote,
    },
    /// SEND of the response capsule, signalled.
    Respond {
        /// Whose.
        slot: SlotId,
        /// WRITE of this before it, not signalled.
        data: Option<(Source, Remote)>,
        /// The capsule.
        response: Cqe,
        /// The key that the SEND invalidates.
        invalidate: Option<u32>,
    },
}

/// What a completed chain was.
#[derive(Debug, PartialEq, Eq)]
pub enum Completed {
    /// The data that [`Transport::fetch`] asked for is in the command's buffer.
    Fetched(Ticket),
    /// The response is sent, and the command's slot is free.
    Responded(SlotId),
}

/// The transport machine of one connection.
pub struct TargetQueue<S: Storage> {
    slots: S::Array<Slot>,
    link: Connection,
}

/// All but the slots, so that the code below exists once whatever the storage.
#[derive(Debug)]
struct Connection {
    config: Config,
    free: Fifo,
    /// Slots that are, or were, in the free list.
    listed: usize,
    fetches: Fifo,
    responses: Fifo,
    /// READs under way.
    reads: u8,
    /// Work requests under way.
    requests: u32,
    /// Commands that arrived and whose response was not posted.
    commands: u16,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    next: u16,
    stage: Stage,
    remote: Remote,
    invalidate: bool,
    /// Bytes to fetch.
    len: u32,
    /// What to send.
    source: Option<Source>,
    cqe: Cqe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// The queue pair has the ticket.
    Held,
    FetchQueued,
    Fetching,
    ResponseQueued,
    /// The response is posted.
    Responding,
}

impl Link for Slot {
    fn next(&mut self) -> &mut u16 {
        &mut self.next
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            next: NIL,
            stage: Stage::Free,
            remote: Remote { address: 0, key: 0 },
            invalidate: false,
            len: 0,
            source: None,
            cqe: Cqe::new(Cid(0), Status::SUCCESS),
        }
    }

    /// SEND, and a WRITE if there is data.
    const fn response_requests(&self) -> u32 {
        if self.source.is_some() { 2 } else { 1 }
    }
}

impl<S: Storage> TargetQueue<S> {
    /// For a connection that was just accepted.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut queue = Self {
            slots: S::new(|_| Slot::new()),
            link: Connection {
                config: *config,
                free: Fifo::new(),
                listed: 0,
                fetches: Fifo::new(),
                responses: Fifo::new(),
                reads: 0,
                requests: 0,
                commands: 0,
            },
        };
        queue.link.list_free(queue.slots.as_mut());
        queue
    }

    /// A command capsule arrived, for the first time: counts it.
    ///
    /// # Errors
    /// [`Fault::TooManyCommands`]: there are more than the host has credit for.
    pub fn arrived(&mut self) -> Result<(), Fault> {
        if self.link.commands >= self.link.config.commands {
            return Err(Fault::TooManyCommands);
        }
        self.link.commands = self.link.commands.saturating_add(1);
        Ok(())
    }

    /// Gives a command that arrived its slot, and says what its descriptor says of
    /// the capsule's data. `None` while there is no slot for it: a host may send the
    /// next command before this side knows that the response before it is sent.
    pub fn begin(&mut self, command: &Command) -> Option<(Ticket, InCapsule<'static>)> {
        let slots = self.slots.as_mut();
        let id = SlotId(self.link.free.pop(slots)?);
        let slot = slots.get_mut(id.index())?;
        slot.stage = Stage::Held;
        (slot.remote, slot.invalidate) = command
            .remote()
            .unwrap_or((Remote { address: 0, key: 0 }, false));
        slot.source = None;
        Some((Ticket::new(id), command.data()))
    }

    /// The next chain to post, for which the send queue has room. It counts as
    /// posted; its buffer must stay in place until it completes.
    pub fn poll_work(&mut self) -> Option<(WorkId, Work)> {
        self.link.poll_work(self.slots.as_mut())
    }

    /// A chain completed, well or not: what it was. `None` for a name that is not a chain's.
    pub fn completed(&mut self, id: WorkId) -> Option<Completed> {
        self.link.completed(self.slots.as_mut(), id)
    }

    /// Whether [`TargetQueue::poll_work`] has something.
    #[must_use]
    pub fn wants_work(&self) -> bool {
        self.link.response_fits(self.slots.as_ref()).is_some() || self.link.fetch_fits()
    }

    /// Whether no chain is under way.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.link.requests == 0
    }

    /// The connection is gone: there is nothing to post any more.
    pub fn connection_closed(&mut self) {
        self.link.fetches = Fifo::new();
        self.link.responses = Fifo::new();
    }
}

impl<S: Storage> Transport for TargetQueue<S> {
    fn fetch(&mut self, ticket: Ticket, len: u32) {
        let id = ticket.slot();
        if let Some(slot) = self.slots.as_mut().get_mut(id.index()) {
            slot.stage = Stage::FetchQueued;
            slot.len = len;
            self.link.fetches.push(self.slots.as_mut(), id.0);
        }
    }

    fn send(&mut self, ticket: Ticket, source: Source, cqe: Cqe) {
        let source = (!source.is_empty()).then_some(source);
        self.link.respond(self.slots.as_mut(), &ticket, source, cqe);
    }

    fn complete(&mut self, ticket: Ticket, cqe: Cqe) {
        self.link.respond(self.slots.as_mut(), &ticket, None, cqe);
    }

    fn accepts(&self, sgl: &Sgl, to_host: bool) -> bool {
        match sgl {
            Sgl::Keyed { .. } => true,
            Sgl::InCapsule { .. } => !to_host,
            _ => false,
        }
    }

    /// Devices' memory is not registered.
    fn sends_media(&self) -> bool {
        false
    }

    fn connected(&mut self, entries: u32, _inline_data: u32, _sq_flow_control: bool) {
        // The queue pair has as many places as the queue has entries.
        let commands = entries.min(self.link.config.commands.into());
        S::grow(&mut self.slots, commands as usize, |_| Slot::new());
        self.link.list_free(self.slots.as_mut());
    }
}

impl Connection {
    fn list_free(&mut self, slots: &mut [Slot]) {
        for index in (0..NIL).take(slots.len()).skip(self.listed) {
            self.free.push(slots, index);
        }
        self.listed = slots.len();
    }

    fn respond(&mut self, slots: &mut [Slot], ticket: &Ticket, source: Option<Source>, cqe: Cqe) {
        let id = ticket.slot();
        if let Some(slot) = slots.get_mut(id.index()) {
            slot.stage = Stage::ResponseQueued;
            slot.source = source;
            slot.cqe = cqe;
            self.responses.push(slots, id.0);
        }
    }

    const fn room(&self) -> u32 {
        self.config.requests.saturating_sub(self.requests)
    }

    /// The requests of the first response, if there is room for them.
    fn response_fits(&self, slots: &[Slot]) -> Option<u32> {
        let slot = slots.get(usize::from(self.responses.first()?))?;
        let requests = slot.response_requests();
        (requests <= self.room()).then_some(requests)
    }

    fn fetch_fits(&self) -> bool {
        self.fetches.first().is_some() && self.room() > 0 && self.reads < self.config.reads
    }

    /// Responses first: they free what others wait for.
    fn poll_work(&mut self, slots: &mut [Slot]) -> Option<(WorkId, Work)> {
        if let Some(requests) = self.response_fits(slots) {
            let id = SlotId(self.responses.pop(slots)?);
            let slot = slots.get_mut(id.index())?;
            slot.stage = Stage::Responding;
            self.requests = self.requests.saturating_add(requests);
            self.commands = self.commands.saturating_sub(1);
            let work = Work::Respond {
                slot: id,
                data: slot.source.map(|source| (source, slot.remote)),
                response: slot.cqe,
                invalidate: slot.invalidate.then_some(slot.remote.key),
            };
            return Some((name(id), work));
        }
        if !self.fetch_fits() {
            return None;
        }
        let id = SlotId(self.fetches.pop(slots)?);
        let slot = slots.get_mut(id.index())?;
        slot.stage = Stage::Fetching;
        self.reads = self.reads.saturating_add(1);
        self.requests = self.requests.saturating_add(1);
        let place = Place {
            slot: id,
            offset: 0,
            len: slot.len,
        };
        let remote = slot.remote;
        Some((name(id), Work::Fetch { place, remote }))
    }

    fn completed(&mut self, slots: &mut [Slot], id: WorkId) -> Option<Completed> {
        let id = SlotId(u16::try_from(id.raw()).ok()?);
        let slot = slots.get_mut(id.index())?;
        match slot.stage {
            Stage::Fetching => {
                slot.stage = Stage::Held;
                self.reads = self.reads.saturating_sub(1);
                self.requests = self.requests.saturating_sub(1);
                Some(Completed::Fetched(Ticket::new(id)))
            }
            Stage::Responding => {
                slot.stage = Stage::Free;
                let requests = slot.response_requests();
                self.requests = self.requests.saturating_sub(requests);
                self.free.push(slots, id.0);
                Some(Completed::Responded(id))
            }
            Stage::Free | Stage::Held | Stage::FetchQueued | Stage::ResponseQueued => None,
        }
    }
}

/// A slot has one chain under way at a time.
fn name(slot: SlotId) -> WorkId {
    WorkId::from_raw(slot.0.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Fixed;
    use crate::wire::sqe::Sqe;

    const KEY: u32 = 0x0102_0304;
    const REMOTE: Remote = Remote {
        address: 0x1000,
        key: KEY,
    };

    fn queue(commands: u16, reads: u8, requests: u32) -> TargetQueue<Fixed<4>> {
        TargetQueue::new(&Config {
            commands,
            reads,
            requests,
        })
    }

    fn command(invalidate: bool) -> Command {
        let keyed = Sgl::Keyed {
            address: REMOTE.address,
            length: 4096,
            key: KEY,
            invalidate,
        };
        Command {
            sqe: Sqe::new(1, Cid(9)).with_sgl(keyed),
            data_len: 0,
        }
    }

    fn begin(queue: &mut TargetQueue<Fixed<4>>, invalidate: bool) -> Ticket {
        queue.arrived().unwrap();
        queue.begin(&command(invalidate)).expect("a slot").0
    }

    fn data(slot: SlotId) -> Source {
        Source::Slot(Place {
            slot,
            offset: 0,
            len: 4096,
        })
    }

    fn cqe() -> Cqe {
        Cqe::new(Cid(9), Status::SUCCESS)
    }

    #[test]
    fn a_read_is_one_write_and_one_send_in_a_chain() {
        for invalidate in [false, true] {
            let mut queue = queue(4, 1, 8);
            let ticket = begin(&mut queue, invalidate);
            let slot = ticket.slot();
            assert!(!queue.wants_work());
            queue.send(ticket, data(slot), cqe());
            assert!(queue.wants_work());
            let (id, work) = queue.poll_work().unwrap();
            let expected = Work::Respond {
                slot,
                data: Some((data(slot), REMOTE)),
                response: cqe(),
                invalidate: invalidate.then_some(KEY),
            };
            assert_eq!(work, expected);
            assert!(!queue.is_idle() && queue.poll_work().is_none());
            assert_eq!(queue.completed(id), Some(Completed::Responded(slot)));
            assert_eq!(queue.completed(id), None, "completes once");
            assert!(queue.is_idle());
        }
    }

    #[test]
    fn a_write_is_read_from_the_host_then_answered() {
        let mut queue = queue(4, 1, 8);
        let ticket = begin(&mut queue, true);
        let slot = ticket.slot();
        queue.fetch(ticket, 4096);
        let (id, work) = queue.poll_work().unwrap();
        let place = Place {
            slot,
            offset: 0,
            len: 4096,
        };
        let remote = REMOTE;
        assert_eq!(work, Work::Fetch { place, remote });
        let Some(Completed::Fetched(ticket)) = queue.completed(id) else {
            panic!("the data is here");
        };
        queue.complete(ticket, cqe());
        let (id, work) = queue.poll_work().unwrap();
        let expected = Work::Respond {
            slot,
            data: None,
            response: cqe(),
            invalidate: Some(KEY),
        };
        assert_eq!(work, expected);
        assert_eq!(queue.completed(id), Some(Completed::Responded(slot)));
    }

    #[test]
    fn no_more_reads_than_the_host_answers() {
        let mut queue = queue(4, 2, 8);
        for _ in 0..4 {
            let ticket = begin(&mut queue, false);
            queue.fetch(ticket, 512);
        }
        let ids = [(); 2].map(|()| queue.poll_work().unwrap().0);
        assert_eq!(queue.poll_work(), None);
        assert!(!queue.wants_work());
        for id in ids {
            assert!(matches!(queue.completed(id), Some(Completed::Fetched(_))));
            assert!(queue.poll_work().is_some());
        }
    }

    #[test]
    fn no_more_requests_than_the_send_queue_has_room_for() {
        let mut queue = queue(4, 8, 3);
        for _ in 0..2 {
            let ticket = begin(&mut queue, false);
            let slot = ticket.slot();
            queue.send(ticket, data(slot), cqe());
        }
        let (first, _) = queue.poll_work().unwrap();
        assert_eq!(queue.poll_work(), None, "a chain goes whole or not");
        queue.completed(first).unwrap();
        assert!(queue.poll_work().is_some());
    }

    #[test]
    fn no_more_commands_than_the_host_has_credit_for() {
        let mut queue = queue(2, 1, 8);
        let first = begin(&mut queue, false);
        begin(&mut queue, false);
        assert_eq!(queue.arrived(), Err(Fault::TooManyCommands));
        // Credit comes back with the response, whenever that completes.
        queue.complete(first, cqe());
        assert_eq!(queue.arrived(), Err(Fault::TooManyCommands));
        queue.poll_work().unwrap();
        assert_eq!(queue.arrived(), Ok(()));
    }

    #[test]
    fn a_command_waits_for_a_slot_whose_response_is_on_its_way() {
        let mut queue = queue(4, 1, 8);
        let tickets = [(); 4].map(|()| begin(&mut queue, false));
        let ids = tickets.map(|ticket| {
            queue.complete(ticket, cqe());
            queue.poll_work().unwrap().0
        });
        queue.arrived().unwrap();
        assert_eq!(queue.begin(&command(false)), None);
        queue.completed(ids[2]).unwrap();
        let (ticket, _) = queue.begin(&command(false)).unwrap();
        assert_eq!(ticket.slot(), SlotId(2));
    }

    #[test]
    fn names_that_are_no_chains() {
        let mut queue = queue(4, 1, 8);
        begin(&mut queue, false);
        for raw in [0, 3, 4, 0xFFFF, u64::MAX] {
            assert_eq!(queue.completed(WorkId::from_raw(raw)), None);
        }
    }

    #[test]
    fn descriptors() {
        let queue = queue(4, 1, 8);
        let keyed = command(false).sqe.sgl();
        assert!(queue.accepts(&keyed, true) && queue.accepts(&keyed, false));
        let inline = Sgl::InCapsule {
            offset: 0,
            length: 512,
        };
        assert!(!queue.accepts(&inline, true) && queue.accepts(&inline, false));
        for to_host in [false, true] {
            let none = [
                Sgl::EMPTY,
                Sgl::DataBlock {
                    address: 0,
                    length: 9,
                },
            ];
            assert!(none.iter().all(|sgl| !queue.accepts(sgl, to_host)));
        }
    }
}
