//! The host's end of a connection: command capsules out, response capsules in;
//! data in the capsule, or in memory that the controller reads and writes.
//!
//! A command's slot is where its buffer is; its CID is the slot's index with a
//! generation above it, so that a response that comes twice, or late, hits nothing.
//!
//! A SEND is signalled where something waits for its end: where it sends a
//! command's buffer, which is the caller's again only when the device is done with
//! it; and often enough that the send queue never fills up.
use super::{Fault, Remote, WorkId, capsule};
use crate::host::Data;
use crate::storage::{Fifo, Link, NIL, Storage};
use crate::wire::cqe::Cqe;
use crate::wire::ids::Cid;
use crate::wire::sgl::Sgl;
use crate::wire::sqe::Sqe;
use crate::{Place, SlotId};

/// Bits of a CID that are the slot's index; the rest are its generation.
const INDEX_BITS: u32 = 12;

/// Commands that a queue can have outstanding at most.
pub const MAX_COMMANDS: usize = 1 << INDEX_BITS;

/// What a connection was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Commands that may be under way: no more than the controller has receives
    /// for ([`super::cm::accepted`]), nor than the queue has entries, less one.
    pub commands: u16,
    /// Bytes of data that may go inside a capsule (IOCCSZ); none on an Admin Queue.
    pub inline_data: u32,
    /// Work requests that the send queue has room for: 2 or more.
    pub requests: u32,
    /// Work requests that each command may take besides its SEND, such as that
    /// which binds a memory window.
    pub extra_requests: u32,
}

impl Config {
    /// Work requests with which a queue of `commands` never waits for room.
    #[must_use]
    pub const fn requests_for(commands: u16, extra_requests: u32) -> u32 {
        // Those that were not signalled take up room until one behind them completes.
        let each = extra_requests.saturating_add(1);
        (commands as u32).saturating_mul(each).saturating_mul(2)
    }
}

/// Memory that a command's data is in, for the controller to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Where.
    pub remote: Remote,
    /// The controller is to invalidate the key with its response.
    pub invalidate: bool,
}

/// A SEND to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Its name.
    pub id: WorkId,
    /// Whose it is.
    pub slot: SlotId,
    /// Whether it is to complete when it succeeds. If it fails it does anyhow.
    pub signalled: bool,
    /// The capsule's head.
    pub command: Sqe,
    /// The data that follows, in the command's buffer; the SEND is signalled then.
    pub data: Option<Place>,
}

/// A command ended, and its slot is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Which.
    pub slot: SlotId,
    /// What the controller says.
    pub cqe: Cqe,
    /// The controller invalidated the key of [`Shared`].
    pub invalidated: bool,
}

/// The transport machine of one connection.
pub struct HostQueue<S: Storage> {
    slots: S::Array<Slot>,
    link: Connection,
}

/// All but the slots, so that the code below exists once whatever the storage.
#[derive(Debug)]
struct Connection {
    config: Config,
    free: Fifo,
    ready: Fifo,
    /// Work requests that take up room in the send queue.
    requests: u32,
    /// Of them, those since the last that was signalled.
    unsignalled: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    next: u16,
    cid: Cid,
    stage: Stage,
    data: Data,
    shared: Option<Shared>,
    /// The SEND has the buffer.
    sending: bool,
    response: Option<(Cqe, bool)>,
    sqe: Sqe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// To be sent.
    Submitted,
    /// The response is awaited.
    Sent,
}

impl Link for Slot {
    fn next(&mut self) -> &mut u16 {
        &mut self.next
    }
}

impl Slot {
    fn new(index: usize) -> Self {
        Self {
            next: NIL,
            cid: Cid(u16::try_from(index).unwrap_or(0)),
            stage: Stage::Free,
            data: Data::Nothing,
            shared: None,
            sending: false,
            response: None,
            sqe: Sqe::new(0, Cid(0)),
        }
    }

    /// The command with its CID and data pointer.
    fn capsule(&self) -> Sqe {
        let mut sqe = self.sqe.with_sgl(self.descriptor());
        sqe.cid = self.cid.0.into();
        sqe
    }

    /// Section 3.3: a keyed descriptor, of no bytes where there is no data; or an
    /// offset into the capsule, which is 0.
    fn descriptor(&self) -> Sgl {
        let (length, to_host) = match self.data {
            Data::Nothing => (0, true),
            Data::ToHost(length) => (length, true),
            Data::FromHost(length) => (length, false),
        };
        match self.shared {
            Some(Shared { remote, invalidate }) => Sgl::Keyed {
                address: remote.address,
                length,
                key: remote.key,
                invalidate,
            },
            None if to_host || length == 0 => Sgl::Keyed {
                address: 0,
                length: 0,
                key: 0,
                invalidate: false,
            },
            None => Sgl::InCapsule { offset: 0, length },
        }
    }
}

/// The index in a CID.
const fn index(cid: u16) -> SlotId {
    SlotId(cid & ((1 << INDEX_BITS) - 1))
}

impl<S: Storage> HostQueue<S> {
    /// For a connection that was just accepted.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let commands = usize::from(config.commands).min(MAX_COMMANDS);
        let mut slots = S::new(Slot::new);
        S::grow(&mut slots, commands, Slot::new);
        let mut free = Fifo::new();
        for index in (0..NIL).take(slots.as_ref().len().min(commands)) {
            free.push(slots.as_mut(), index);
        }
        Self {
            slots,
            link: Connection {
                config: *config,
                free,
                ready: Fifo::new(),
                requests: 0,
                unsignalled: 0,
            },
        }
    }

    /// From now on `inline_data` bytes may go inside a capsule.
    pub fn configure(&mut self, inline_data: u32) {
        self.link.config.inline_data = inline_data;
    }

    /// Whether the data of such a command goes inside the capsule: it needs no
    /// memory that the controller reads, but a buffer that is sent.
    #[must_use]
    pub const fn is_inline(&self, data: Data) -> bool {
        match data {
            Data::FromHost(len) => len > 0 && len <= self.link.config.inline_data,
            Data::Nothing | Data::ToHost(_) => false,
        }
    }

    /// Whether there is a slot for a command.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.link.free.first().is_some()
    }

    /// Takes a command; its CID and data pointer are set here. Its data is in
    /// `shared` memory, unless it [goes in the capsule](Self::is_inline). `None`
    /// when as many are outstanding as there are slots.
    pub fn submit(&mut self, sqe: &Sqe, data: Data, shared: Option<Shared>) -> Option<SlotId> {
        let slots = self.slots.as_mut();
        let id = SlotId(self.link.free.pop(slots)?);
        let slot = slots.get_mut(id.index())?;
        slot.cid = Cid(slot.cid.0.wrapping_add(1 << INDEX_BITS));
        slot.stage = Stage::Submitted;
        slot.data = data;
        slot.shared = shared;
        slot.sending = false;
        slot.response = None;
        slot.sqe = *sqe;
        self.link.ready.push(slots, id.0);
        Some(id)
    }

    /// The CID of the command at `slot`, as [`HostQueue::submit`] returned it, until it completes.
    #[must_use]
    pub fn cid(&self, slot: SlotId) -> Option<Cid> {
        let slot = self.slots.as_ref().get(slot.index())?;
        (slot.stage != Stage::Free).then_some(slot.cid)
    }

    /// The next SEND to post, for which the send queue has room. It counts as posted.
    pub fn poll_work(&mut self) -> Option<Work> {
        self.link.poll_work(self.slots.as_mut())
    }

    /// Whether [`HostQueue::poll_work`] has something.
    #[must_use]
    pub const fn wants_work(&self) -> bool {
        self.link.ready.first().is_some() && self.link.has_room()
    }

    /// Whose SEND it was, of a name that [`HostQueue::poll_work`] gave.
    #[must_use]
    pub fn slot(id: WorkId) -> Option<SlotId> {
        parse(id).map(|(slot, _)| slot)
    }

    /// A SEND completed. The command may be complete with that.
    pub fn sent(&mut self, id: WorkId) -> Option<Completed> {
        self.link.sent(self.slots.as_mut(), id)
    }

    /// A message arrived, which invalidated a key of ours or none. The command is
    /// complete, unless its SEND is not.
    ///
    /// # Errors
    /// The controller broke the transport: disconnect.
    pub fn received(
        &mut self,
        message: &[u8],
        invalidated: Option<u32>,
    ) -> Result<Option<Completed>, Fault> {
        let cqe = capsule::response(message)?;
        let id = index(cqe.cid.get());
        let slots = self.slots.as_mut();
        let slot = slots
            .get_mut(id.index())
            .filter(|slot| {
                slot.stage == Stage::Sent && slot.cid.0 == cqe.cid.get() && slot.response.is_none()
            })
            .ok_or(Fault::UnknownCid(cqe.cid.get()))?;
        if let Some(key) = invalidated
            && slot.shared.is_none_or(|shared| shared.remote.key != key)
        {
            return Err(Fault::ForeignKey(key));
        }
        slot.response = Some((cqe, invalidated.is_some()));
        Ok(self.link.settle(slots, id))
    }
}

impl Connection {
    const fn each(&self) -> u32 {
        self.config.extra_requests.saturating_add(1)
    }

    const fn has_room(&self) -> bool {
        self.requests.saturating_add(self.each()) <= self.config.requests
    }

    fn poll_work(&mut self, slots: &mut [Slot]) -> Option<Work> {
        if !self.has_room() {
            return None;
        }
        let id = SlotId(self.ready.pop(slots)?);
        let slot = slots.get_mut(id.index())?;
        slot.stage = Stage::Sent;
        let command = slot.capsule();
        let data = match (slot.shared, slot.data) {
            (None, Data::FromHost(len)) if len > 0 => Some(Place {
                slot: id,
                offset: 0,
                len,
            }),
            _ => None,
        };
        slot.sending = data.is_some();
        self.requests = self.requests.saturating_add(self.each());
        self.unsignalled = self.unsignalled.saturating_add(self.each());
        // One of each half of the send queue at least.
        let half = self.unsignalled.saturating_mul(2) >= self.config.requests;
        let signalled = slot.sending || half;
        let retires = self.unsignalled;
        if signalled {
            self.unsignalled = 0;
        }
        Some(Work {
            id: name(id, retires),
            slot: id,
            signalled,
            command,
            data,
        })
    }

    fn sent(&mut self, slots: &mut [Slot], id: WorkId) -> Option<Completed> {
        let (id, retires) = parse(id)?;
        self.requests = self.requests.saturating_sub(retires);
        let slot = slots.get_mut(id.index())?;
        if !slot.sending {
            return None;
        }
        slot.sending = false;
        self.settle(slots, id)
    }

    /// The command's end, once it is answered and its buffer is nobody else's.
    fn settle(&mut self, slots: &mut [Slot], id: SlotId) -> Option<Completed> {
        let slot = slots.get_mut(id.index())?;
        if slot.sending {
            return None;
        }
        let (cqe, invalidated) = slot.response.take()?;
        slot.stage = Stage::Free;
        self.free.push(slots, id.0);
        Some(Completed {
            slot: id,
            cqe,
            invalidated,
        })
    }
}

/// A name says which slot, and how many requests it retires.
fn name(slot: SlotId, retires: u32) -> WorkId {
    WorkId::from_raw(u64::from(retires) << 16 | u64::from(slot.0))
}

fn parse(id: WorkId) -> Option<(SlotId, u32)> {
    let [s0, s1, r0, r1, r2, r3, 0, 0] = id.raw().to_le_bytes() else {
        return None;
    };
    let slot = SlotId(u16::from_le_bytes([s0, s1]));
    Some((slot, u32::from_le_bytes([r0, r1, r2, r3])))
}

#[cfg(test)]
mod tests;
