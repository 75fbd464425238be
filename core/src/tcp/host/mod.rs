//! The host's end of a connection: commands in, completions out; data sent in
//! the capsule or when the controller asks for it, received where it belongs.
//!
//! A command's slot is where its buffer is; its CID is the slot's index with a
//! generation above it, so that a completion that comes twice, or late, hits nothing.
use core::time::Duration;

use super::fatal::Fatal;
use super::rx::{Digests, End, Framed, Need};
use super::session::{Arrived, Phase, Session};
use super::tx::MAX_HEAD;
use crate::bytes::copy_prefix;
use crate::digest::Crc32c;
use crate::host::Data;
use crate::storage::{Fifo, Link, NIL, Storage};
use crate::target::ADMIN_INLINE_DATA;
use crate::time::Instant;
use crate::wire::cqe::Cqe;
use crate::wire::ids::Cid;
use crate::wire::pdu::{
    CapsuleCmd, CapsuleResp, DataPdu, IcReq, IcResp, PDA_MAX, PduType, R2t, dgst, flags,
};
use crate::wire::sgl::Sgl;
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;
use crate::{DataBuffers, Place, SlotId};

/// Bits of a CID that are the slot's index; the rest are its generation.
const INDEX_BITS: u32 = 12;

/// Commands that a queue can have outstanding at most.
pub const MAX_COMMANDS: usize = 1 << INDEX_BITS;

/// How a host's connections behave.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// Alignment of data asked of the controller: 0's based dwords, 0..=31.
    pub hpda: u8,
    /// The CRC32C engine.
    pub crc32c: Crc32c,
    /// How long the controller may take from connecting to its whole ICResp.
    pub icresp_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            hpda: 0,
            crc32c: crate::digest::portable,
            icresp_timeout: Duration::from_secs(10),
        }
    }
}

/// What arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The controller answered ICReq: commands may go.
    Ready,
    /// A command ended, and its slot and buffer are free.
    Completed {
        /// Which.
        slot: SlotId,
        /// What the controller says; made up if C2HData implied it.
        cqe: Cqe,
        /// Bytes of data that came.
        received: u32,
        /// SQHD is the controller's word, not made up.
        explicit: bool,
    },
    /// The controller ends the connection: close it at once.
    Terminated(Fatal),
}

/// A PDU to send: the head that [`HostQueue::poll_transmit`] wrote, then the
/// payload, then (if `data_digest`) the payload's CRC32C, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes of head.
    pub head_len: usize,
    /// The data, in the buffer of a command.
    pub payload: Option<Place>,
    /// Whether a data digest follows the data.
    pub data_digest: bool,
    /// Whose PDU it is: call [`HostQueue::sent`] once all its bytes are with the network.
    pub slot: Option<SlotId>,
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
    session: Session,
    free: Fifo,
    ready: Fifo,
    /// What the data now arriving is.
    arriving: Option<Arriving>,
    inline_data: u32,
    maxh2cdata: u32,
}

#[derive(Clone, Copy, Debug)]
enum Arriving {
    Data { slot: SlotId, success: bool },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    next: u16,
    cid: Cid,
    stage: Stage,
    data: Data,
    /// Bytes of data sent (composed) or received.
    moved: u32,
    /// End of the range that the controller asked for.
    asked: u32,
    ttag: u16,
    /// The last C2HData came.
    last: bool,
    /// No data digest was wrong.
    intact: bool,
    /// In the ready list.
    queued: bool,
    /// PDUs composed, and not yet sent.
    unsent: u16,
    /// The completion, while something is still to be sent.
    completion: Option<(Cqe, bool)>,
    sqe: Sqe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// CapsuleCmd to be sent.
    Submitted,
    /// R2T, C2HData or CapsuleResp is awaited.
    Waiting,
    /// H2CData to be sent.
    SendQueued,
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
            moved: 0,
            asked: 0,
            ttag: 0,
            last: false,
            intact: true,
            queued: false,
            unsent: 0,
            completion: None,
            sqe: Sqe::new(0, Cid(0)),
        }
    }

    /// The controller says that the command ended. Data that a digest disproves
    /// makes its success a failure.
    fn end(&mut self, cqe: Cqe, explicit: bool) {
        let cqe = if self.intact {
            cqe
        } else {
            Cqe::new(self.cid, Status::TRANSIENT_TRANSPORT_ERROR)
        };
        self.completion = Some((cqe, explicit));
    }

    /// The completion, once it is there and nothing of the command is still to be sent.
    fn complete(&mut self, id: SlotId) -> Option<Event> {
        if self.queued || self.unsent > 0 {
            return None;
        }
        let (cqe, explicit) = self.completion.take()?;
        self.stage = Stage::Free;
        let received = match self.data {
            Data::ToHost(_) => self.moved,
            _ => 0,
        };
        Some(Event::Completed {
            slot: id,
            cqe,
            received,
            explicit,
        })
    }
}

/// The index in a CID.
const fn index(cid: u16) -> SlotId {
    SlotId(cid & ((1 << INDEX_BITS) - 1))
}

impl<S: Storage> HostQueue<S> {
    /// For a connection just made.
    #[must_use]
    pub fn new(config: &Config, now: Instant) -> Self {
        let mut slots = S::new(Slot::new);
        let mut free = Fifo::new();
        list_free(&mut free, slots.as_mut(), 0);
        Self {
            slots,
            link: Connection {
                config: *config,
                session: Session::new(End::Host, config.crc32c, now.after(config.icresp_timeout)),
                free,
                ready: Fifo::new(),
                arriving: None,
                inline_data: ADMIN_INLINE_DATA,
                maxh2cdata: IcResp::MAXH2CDATA_MIN,
            },
        }
    }

    /// From now on the queue takes `commands` at a time, and up to `inline_data`
    /// bytes may go inside a capsule (IOCCSZ).
    pub fn configure(&mut self, commands: usize, inline_data: u32) {
        let before = self.slots.as_ref().len();
        S::grow(&mut self.slots, commands.min(MAX_COMMANDS), Slot::new);
        list_free(&mut self.link.free, self.slots.as_mut(), before);
        self.link.inline_data = inline_data;
    }

    /// The digests that both ends agreed to.
    #[must_use]
    pub const fn digests(&self) -> Digests {
        self.link.session.dress.digests
    }

    /// Takes a command; its CID and data pointer are set here. Its buffer must
    /// be at the slot returned until it completes. `None` when as many are
    /// outstanding as there are slots.
    pub fn submit(&mut self, sqe: &Sqe, data: Data) -> Option<SlotId> {
        let slots = self.slots.as_mut();
        let id = SlotId(self.link.free.pop(slots)?);
        let slot = slots.get_mut(id.index())?;
        slot.cid = Cid(slot.cid.0.wrapping_add(1 << INDEX_BITS));
        slot.stage = Stage::Submitted;
        slot.data = data;
        slot.moved = 0;
        slot.asked = 0;
        slot.last = false;
        slot.intact = true;
        slot.queued = true;
        slot.completion = None;
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

    /// Where the next bytes of the stream belong.
    #[must_use]
    pub fn need(&self) -> Need {
        self.link.session.need()
    }

    /// Takes the next bytes of the stream, up to the first event or fault.
    /// Returns how many it took. After a fault, all that follows is discarded,
    /// and a TermReq is what [`HostQueue::poll_transmit`] gives.
    ///
    /// # Errors
    /// The peer broke the transport.
    pub fn handle_input(
        &mut self,
        bytes: &[u8],
        buffers: &mut impl DataBuffers,
        now: Instant,
    ) -> Result<(usize, Option<Event>), Fatal> {
        let mut rest = bytes;
        let mut event = None;
        while event.is_none() && !rest.is_empty() {
            let (taken, arrived) = self.link.session.take(rest, buffers, now)?;
            rest = rest.get(taken..).unwrap_or(&[]);
            event = match arrived {
                Arrived::Header(framed) => self
                    .link
                    .header(self.slots.as_mut(), framed, &mut rest, buffers)
                    .map_err(|fatal| self.link.session.fail(fatal, now))?,
                arrived => self.link.arrived(self.slots.as_mut(), arrived),
            };
        }
        Ok((bytes.len().saturating_sub(rest.len()), event))
    }

    /// The bytes that [`Need::Payload`] asked for, or the first of them, are at
    /// their place: `bytes` are they, for the digest.
    pub fn placed(&mut self, bytes: &[u8]) -> Option<Event> {
        let arrived = self.link.session.placed(bytes);
        self.link.arrived(self.slots.as_mut(), arrived)
    }

    /// Writes the head of the next PDU to send, and says what follows it.
    ///
    /// Payload must stay in place until [`HostQueue::sent`] is called.
    pub fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        self.link.poll_transmit(self.slots.as_mut(), head)
    }

    /// A PDU of the command is on its way. The command may be complete with that.
    pub fn sent(&mut self, id: SlotId) -> Option<Event> {
        let slots = self.slots.as_mut();
        let slot = slots.get_mut(id.index())?;
        slot.unsent = slot.unsent.saturating_sub(1);
        self.link.settle(slots, id)
    }

    /// Whether something waits for [`HostQueue::poll_transmit`].
    #[must_use]
    pub const fn wants_transmit(&self) -> bool {
        match self.link.session.phase {
            Phase::New | Phase::Terminating(_) => true,
            Phase::Live => self.link.ready.first().is_some(),
            Phase::Initializing | Phase::Ended => false,
        }
    }

    /// When [`HostQueue::timed_out`] should be asked.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.link.session.deadline
    }

    /// Whether the controller took too long: over its ICResp, or over closing after a TermReq.
    #[must_use]
    pub fn timed_out(&self, now: Instant) -> bool {
        self.link.session.timed_out(now)
    }
}

fn list_free(free: &mut Fifo, slots: &mut [Slot], from: usize) {
    for index in (0..NIL).take(slots.len().min(MAX_COMMANDS)).skip(from) {
        free.push(slots, index);
    }
}

impl Connection {
    /// A PDU's header is here, and `rest` comes after it: what it means, and where its data goes.
    fn header(
        &mut self,
        slots: &mut [Slot],
        framed: Framed,
        rest: &mut &[u8],
        buffers: &mut impl DataBuffers,
    ) -> Result<Option<Event>, Fatal> {
        match framed.pdu_type {
            PduType::IcResp => self.ic_resp(),
            PduType::CapsuleResp => self.response(slots),
            PduType::R2t => self.r2t(slots).map(|()| None),
            _ => self.c2h_data(slots, framed, rest, buffers),
        }
    }

    fn arrived(&mut self, slots: &mut [Slot], arrived: Arrived) -> Option<Event> {
        match arrived {
            Arrived::Data { intact } => self.data_end(slots, intact),
            Arrived::Terminated(fatal) => Some(Event::Terminated(fatal)),
            Arrived::Nothing | Arrived::Header(_) => None,
        }
    }

    /// Section 3.6.2, ICResp: the controller may agree to less than was asked for, not to more.
    fn ic_resp(&mut self) -> Result<Option<Event>, Fatal> {
        if self.session.phase != Phase::Initializing {
            return Err(Fatal::SEQUENCE);
        }
        let response: IcResp = self.session.rx.header_as().ok_or(Fatal::field(0))?;
        if response.pfv.get() != 0 {
            return Err(Fatal::unsupported(8));
        }
        if response.cpda > PDA_MAX {
            return Err(Fatal::unsupported(10));
        }
        let digests = Digests {
            header: response.hdgst(),
            data: response.ddgst(),
        };
        if digests.header && !self.config.header_digest || digests.data && !self.config.data_digest
        {
            return Err(Fatal::field(11));
        }
        let maxh2cdata = response.maxh2cdata.get();
        if maxh2cdata < IcResp::MAXH2CDATA_MIN || !maxh2cdata.is_multiple_of(4) {
            return Err(Fatal::field(12));
        }
        self.maxh2cdata = maxh2cdata;
        self.session.dress.pda = response.cpda;
        self.session.dress.digests = digests;
        self.session.rx.agree(digests, self.config.hpda);
        self.session.phase = Phase::Live;
        self.session.deadline = None;
        Ok(Some(Event::Ready))
    }

    /// The command that a PDU of the controller's is about.
    fn command(slots: &mut [Slot], cid: u16) -> Option<(SlotId, &mut Slot)> {
        let id = index(cid);
        let slot = slots.get_mut(id.index())?;
        let alive = !matches!(slot.stage, Stage::Free | Stage::Submitted);
        (alive && slot.cid.0 == cid && slot.completion.is_none()).then_some((id, slot))
    }

    /// Section 3.6.2, CapsuleResp.
    fn response(&mut self, slots: &mut [Slot]) -> Result<Option<Event>, Fatal> {
        let CapsuleResp { cqe, .. } = self.session.rx.header_ref().ok_or(Fatal::field(0))?;
        // The CID is at byte 12 of the entry, which is at byte 8.
        let (id, slot) = Self::command(slots, cqe.cid.get()).ok_or(Fatal::field(20))?;
        slot.end(*cqe, true);
        Ok(self.settle(slots, id))
    }

    /// The command's completion, once nothing of it is still to be sent.
    fn settle(&mut self, slots: &mut [Slot], id: SlotId) -> Option<Event> {
        let event = slots.get_mut(id.index())?.complete(id)?;
        self.free.push(slots, id.0);
        Some(event)
    }

    /// Section 3.6.2, R2T: one R2T of a command at a time (MAXR2T is 0), in order
    /// and within its data.
    fn r2t(&mut self, slots: &mut [Slot]) -> Result<(), Fatal> {
        let r2t: &R2t = self.session.rx.header_ref().ok_or(Fatal::field(0))?;
        let (id, slot) = Self::command(slots, r2t.cccid.get()).ok_or(Fatal::field(8))?;
        let Data::FromHost(total) = slot.data else {
            return Err(Fatal::field(8));
        };
        if slot.asked > slot.moved {
            return Err(Fatal::LIMIT_EXCEEDED);
        }
        let (offset, len) = (r2t.r2to.get(), r2t.r2tl.get());
        if len == 0 {
            return Err(Fatal::field(16));
        }
        if offset != slot.moved {
            return Err(Fatal::SEQUENCE);
        }
        slot.asked = offset
            .checked_add(len)
            .filter(|end| *end <= total)
            .ok_or(Fatal::OUT_OF_RANGE)?;
        slot.ttag = r2t.ttag.get();
        slot.stage = Stage::SendQueued;
        slot.queued = true;
        self.ready.push(slots, id.0);
        Ok(())
    }

    /// Section 3.6.2, C2HData.
    fn c2h_data(
        &mut self,
        slots: &mut [Slot],
        framed: Framed,
        rest: &mut &[u8],
        buffers: &mut impl DataBuffers,
    ) -> Result<Option<Event>, Fatal> {
        let header: &DataPdu = self.session.rx.header_ref().ok_or(Fatal::field(0))?;
        let last = header.common.has(flags::LAST_PDU);
        let success = header.common.has(flags::SUCCESS);
        if success && !last {
            return Err(Fatal::field(1));
        }
        let (offset, len) = (header.datao.get(), header.datal.get());
        if len != framed.data_len || len == 0 {
            return Err(Fatal::field(4));
        }
        let (id, slot) = Self::command(slots, header.cccid.get()).ok_or(Fatal::field(8))?;
        let Data::ToHost(total) = slot.data else {
            return Err(Fatal::field(8));
        };
        if slot.last || offset != slot.moved {
            return Err(Fatal::SEQUENCE);
        }
        slot.moved = offset
            .checked_add(len)
            .filter(|end| *end <= total)
            .ok_or(Fatal::OUT_OF_RANGE)?;
        slot.last = last;
        self.arriving = Some(Arriving::Data { slot: id, success });
        let place = Place {
            slot: id,
            offset,
            len,
        };
        if let Some(whole) = self.session.rx.take_data(rest) {
            fill(buffers, place, whole.data);
            return Ok(self.data_end(slots, whole.intact));
        }
        self.session.rx.data_to(Some(place));
        Ok(None)
    }

    fn data_end(&mut self, slots: &mut [Slot], intact: bool) -> Option<Event> {
        match self.arriving.take()? {
            Arriving::Data { slot: id, success } => {
                let slot = slots.get_mut(id.index())?;
                slot.intact &= intact;
                if !success {
                    return None;
                }
                slot.end(Cqe::new(slot.cid, Status::SUCCESS), false);
                self.settle(slots, id)
            }
        }
    }

    fn poll_transmit(&mut self, slots: &mut [Slot], head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        match self.session.phase {
            Phase::Initializing | Phase::Ended => None,
            Phase::New => {
                self.session.phase = Phase::Initializing;
                Some(only_head(self.ic_req(head)))
            }
            Phase::Terminating(_) => self.session.last_word(head).map(only_head),
            Phase::Live => self.command_pdu(slots, head),
        }
    }

    fn ic_req(&self, head: &mut [u8; MAX_HEAD]) -> usize {
        let mut request = IcReq::new();
        request.hpda = self.config.hpda;
        if self.config.header_digest {
            request.dgst |= dgst::HDGST;
        }
        if self.config.data_digest {
            request.dgst |= dgst::DDGST;
        }
        self.session.dress.undressed().head(head, &request, 0)
    }

    fn command_pdu(&mut self, slots: &mut [Slot], head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        let id = SlotId(self.ready.pop(slots)?);
        let slot = slots.get_mut(id.index())?;
        let place = match slot.stage {
            Stage::Submitted => self.capsule(slot, id, head),
            Stage::SendQueued => self.h2c_data(slot, id, head),
            // Not reachable: only the two stages above are queued.
            Stage::Free | Stage::Waiting => return None,
        };
        let (head_len, payload) = place;
        slot.unsent = slot.unsent.saturating_add(1);
        slot.queued = slot.stage == Stage::SendQueued;
        if slot.queued {
            // Others have their turn between the pieces.
            self.ready.push(slots, id.0);
        }
        Some(Transmit {
            head_len,
            payload,
            data_digest: payload.is_some() && self.session.dress.digests.data,
            slot: Some(id),
        })
    }

    /// Section 3.6.2, CapsuleCmd. Data goes inside if it fits.
    fn capsule(
        &self,
        slot: &mut Slot,
        id: SlotId,
        head: &mut [u8; MAX_HEAD],
    ) -> (usize, Option<Place>) {
        let (sgl, inside) = match slot.data {
            Data::Nothing => (Sgl::EMPTY, 0),
            Data::ToHost(length) => (Sgl::Transport { length }, 0),
            Data::FromHost(length) if length > self.inline_data => (Sgl::Transport { length }, 0),
            Data::FromHost(length) => (Sgl::InCapsule { offset: 0, length }, length),
        };
        let mut sqe = slot.sqe.with_sgl(sgl);
        sqe.cid = slot.cid.0.into();
        slot.moved = inside;
        slot.asked = inside;
        slot.stage = Stage::Waiting;
        let head_len = self.session.dress.head(head, &CapsuleCmd::new(sqe), inside);
        let place = Place {
            slot: id,
            offset: 0,
            len: inside,
        };
        (head_len, (inside > 0).then_some(place))
    }

    /// Section 3.6.2, H2CData.
    fn h2c_data(
        &self,
        slot: &mut Slot,
        id: SlotId,
        head: &mut [u8; MAX_HEAD],
    ) -> (usize, Option<Place>) {
        let offset = slot.moved;
        let len = slot.asked.saturating_sub(offset).min(self.maxh2cdata);
        slot.moved = offset.saturating_add(len);
        let mut header = DataPdu::new(PduType::H2cData, slot.cid.0, slot.ttag, offset, len);
        if slot.moved >= slot.asked {
            header.common.flags |= flags::LAST_PDU;
            slot.stage = Stage::Waiting;
        }
        let place = Place {
            slot: id,
            offset,
            len,
        };
        (self.session.dress.head(head, &header, len), Some(place))
    }
}

/// Copies `data` to its place, which may be in pieces.
fn fill(buffers: &mut impl DataBuffers, mut place: Place, mut data: &[u8]) {
    while !data.is_empty() {
        let piece = buffers.place(place);
        copy_prefix(piece, data);
        let (Some(after), Ok(len)) = (data.get(piece.len()..), u32::try_from(piece.len())) else {
            return;
        };
        // A place that is nowhere is no piece.
        if len == 0 {
            return;
        }
        data = after;
        place.offset = place.offset.saturating_add(len);
        place.len = place.len.saturating_sub(len);
    }
}

const fn only_head(head_len: usize) -> Transmit {
    Transmit {
        head_len,
        payload: None,
        data_digest: false,
        slot: None,
    }
}

#[cfg(test)]
mod tests;
