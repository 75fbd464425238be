//! The controller's end of a connection: PDUs in, commands out; data fetched
//! by R2T, sent by C2HData, completed by CapsuleResp.
use core::time::Duration;

use super::fatal::Fatal;
use super::rx::{Digests, End, Framed, Need};
use super::session::{Arrived, Phase, Session};
use super::tx::MAX_HEAD;
use crate::digest::Crc32c;
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
use crate::{DataBuffers, InCapsule, Place, SlotId, Source, Ticket, Transport};

/// How a target's connections behave.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Agree to header digests.
    pub header_digest: bool,
    /// Agree to data digests.
    pub data_digest: bool,
    /// Alignment of data asked of hosts: 0's based dwords, 0..=31.
    pub cpda: u8,
    /// Bytes of data in one H2CData at most: 4096 or more, a multiple of 4.
    pub maxh2cdata: u32,
    /// Bytes of data in one C2HData at most.
    pub max_c2hdata: u32,
    /// Bytes asked for in one R2T at most.
    pub max_r2t: u32,
    /// The CRC32C engine.
    pub crc32c: Crc32c,
    /// How long a peer may take from connecting to its whole ICReq.
    pub icreq_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            header_digest: true,
            data_digest: true,
            cpda: 0,
            maxh2cdata: 1 << 20,
            max_c2hdata: u32::MAX,
            max_r2t: u32::MAX,
            crc32c: crate::digest::portable,
            icreq_timeout: Duration::from_secs(10),
        }
    }
}

/// What arrived.
#[derive(Debug)]
pub enum Event<'a> {
    /// A command.
    Command {
        /// The right to act on it.
        ticket: Ticket,
        /// The command.
        sqe: Sqe,
        /// Its in-capsule data.
        data: InCapsule<'a>,
    },
    /// The data that [`Transport::fetch`] asked for.
    Fetched {
        /// The right to act on the command.
        ticket: Ticket,
        /// No data digest was wrong.
        intact: bool,
    },
    /// A command that is to be refused, as [`TargetQueue::refuse_next`] asked for; its
    /// data, if it came with any, is dropped.
    Refused {
        /// The command.
        sqe: Sqe,
    },
    /// The host ends the connection: close it at once.
    Terminated(Fatal),
}

/// A PDU to send: the head that [`TargetQueue::poll_transmit`] wrote, then the
/// payload, then (if `data_digest`) the payload's CRC32C, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes of head.
    pub head_len: usize,
    /// The data.
    pub payload: Option<Source>,
    /// Whether a data digest follows the data. What a device lends may change at any time, so
    /// both are of a copy then.
    pub data_digest: bool,
    /// The command that ends with this PDU: call [`TargetQueue::sent`] once
    /// all its bytes have been copied or handed to the network.
    pub finishes: Option<SlotId>,
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
    session: Session,
    free: Fifo,
    ready: Fifo,
    /// What the data now arriving is.
    arriving: Option<Arriving>,
    inline_data: u32,
    /// Commands that the host's queue has room for, once it is connected.
    entries: u32,
    /// C2HData may imply the completion (SUCCESS).
    imply_success: bool,
    refusal: Refusal,
}

/// What becomes of commands for which there is no slot.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// They wait.
    None,
    /// The next one is refused.
    Wanted,
    /// This is to be sent for it.
    Queued(Cqe),
}

#[derive(Clone, Copy, Debug)]
enum Arriving {
    Command {
        slot: SlotId,
        sqe: Sqe,
        data: InCapsule<'static>,
    },
    Data {
        slot: SlotId,
    },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    next: u16,
    cid: Cid,
    stage: Stage,
    /// No data digest was wrong.
    intact: bool,
    /// Bytes to fetch or send.
    total: u32,
    /// Bytes that arrived or were sent.
    done: u32,
    /// End of the range that the R2T under way asked for.
    asked: u32,
    source: Source,
    cqe: Cqe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// In-capsule data is arriving.
    Arriving,
    /// The queue pair has the ticket.
    Held,
    /// An R2T is to be sent.
    AskQueued,
    /// H2CData is awaited.
    Fetching,
    /// C2HData is to be sent.
    SendQueued,
    /// CapsuleResp is to be sent.
    ResponseQueued,
    /// All is composed; `sent` is awaited.
    Composed,
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
            cid: Cid(0),
            stage: Stage::Free,
            intact: true,
            total: 0,
            done: 0,
            asked: 0,
            source: Source::Slot(Place {
                slot: SlotId(0),
                offset: 0,
                len: 0,
            }),
            cqe: Cqe::new(Cid(0), Status::SUCCESS),
        }
    }
}

impl<S: Storage> TargetQueue<S> {
    /// For a connection just accepted.
    #[must_use]
    pub fn new(config: &Config, now: Instant) -> Self {
        let mut slots = S::new(|_| Slot::new());
        let mut free = Fifo::new();
        list_free(&mut free, slots.as_mut(), 0);
        Self {
            slots,
            link: Connection {
                config: *config,
                session: Session::new(
                    End::Controller,
                    config.crc32c,
                    now.after(config.icreq_timeout),
                ),
                free,
                ready: Fifo::new(),
                arriving: None,
                inline_data: ADMIN_INLINE_DATA,
                entries: 0,
                imply_success: false,
                refusal: Refusal::None,
            },
        }
    }

    /// Where the next bytes of the stream belong.
    #[must_use]
    pub fn need(&self) -> Need {
        self.link.session.need()
    }

    /// Takes the next bytes of the stream, up to the first event or fault.
    /// Returns how many it took: without an event fewer than all, or none, only
    /// where a command waits for a slot, because there are fewer than the host's
    /// queue has entries. If none of them becomes free without what is behind that
    /// command, it is for [`TargetQueue::refuse_next`]. After a fault, all that follows is
    /// discarded, and a TermReq is what [`TargetQueue::poll_transmit`] gives.
    ///
    /// # Errors
    /// The peer broke the transport.
    pub fn handle_input<'a>(
        &mut self,
        bytes: &'a [u8],
        buffers: &mut impl DataBuffers,
        now: Instant,
    ) -> Result<(usize, Option<Event<'a>>), Fatal> {
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            if self.link.is_full()
                && self.must_wait(*first)
                && !matches!(self.link.refusal, Refusal::Wanted)
            {
                break;
            }
            let (taken, arrived) = self.link.session.take(rest, buffers, now)?;
            rest = rest.get(taken..).unwrap_or(&[]);
            let event = match arrived {
                Arrived::Header(framed) => self
                    .link
                    .header(self.slots.as_mut(), framed, &mut rest, buffers)
                    .map_err(|fatal| self.link.session.fail(fatal, now))?,
                arrived => self.link.arrived(self.slots.as_mut(), arrived),
            };
            if event.is_some() {
                return Ok((bytes.len().saturating_sub(rest.len()), event));
            }
        }
        Ok((bytes.len().saturating_sub(rest.len()), None))
    }

    /// Whether a command comes next, as `next` says, for which there is no slot, though the
    /// host's queue has room for it: a microcontroller has fewer slots than an
    /// Admin Queue has entries. Elsewhere there are only as many as were needed so far.
    fn must_wait(&mut self, next: u8) -> bool {
        let (before, most) = (self.slots.as_ref().len(), self.link.entries as usize);
        if before >= most || PduType::from(next) != PduType::CapsuleCmd {
            return false;
        }
        let more = before.saturating_mul(2).min(most);
        S::grow(&mut self.slots, more, |_| Slot::new());
        list_free(&mut self.link.free, self.slots.as_mut(), before);
        self.link.is_full()
    }

    /// Has the command that waits for a slot come without one, as [`Event::Refused`]. False
    /// while the last that did has yet to be answered.
    pub fn refuse_next(&mut self) -> bool {
        let answered = !matches!(self.link.refusal, Refusal::Queued(_));
        if answered {
            self.link.refusal = Refusal::Wanted;
        }
        answered
    }

    /// Answers a command that came as [`Event::Refused`].
    pub fn refuse(&mut self, cqe: Cqe) {
        self.link.refusal = Refusal::Queued(cqe);
    }

    /// The bytes that [`Need::Payload`] asked for, or the first of them, are at
    /// their place: `bytes` are they, for the digest.
    pub fn placed(&mut self, bytes: &[u8]) -> Option<Event<'static>> {
        let arrived = self.link.session.placed(bytes);
        self.link.arrived(self.slots.as_mut(), arrived)
    }

    /// Writes the head of the next PDU to send, and says what follows it.
    ///
    /// Payload must stay in place until [`TargetQueue::sent`] is called for its command.
    pub fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        self.link.poll_transmit(self.slots.as_mut(), head)
    }

    /// The last PDU of a command is on its way: its slot is free again.
    pub fn sent(&mut self, slot: SlotId) {
        if let Some(state) = self.slots.as_mut().get_mut(slot.index())
            && state.stage == Stage::Composed
        {
            state.stage = Stage::Free;
            self.link.free.push(self.slots.as_mut(), slot.0);
        }
    }

    /// Whether something waits for [`TargetQueue::poll_transmit`].
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        match self.link.session.phase {
            Phase::Initializing | Phase::Terminating(_) => true,
            Phase::Live => {
                self.link.ready.first().is_some() || matches!(self.link.refusal, Refusal::Queued(_))
            }
            Phase::New | Phase::Ended => false,
        }
    }

    /// The connection is gone: there is nothing to send or to wait for.
    pub fn connection_closed(&mut self) {
        self.link.session.close();
    }

    /// When [`TargetQueue::timed_out`] should be asked.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.link.session.deadline
    }

    /// Whether the peer took too long: over its ICReq, or over closing after a TermReq.
    #[must_use]
    pub fn timed_out(&self, now: Instant) -> bool {
        self.link.session.timed_out(now)
    }
}

impl<S: Storage> Transport for TargetQueue<S> {
    fn fetch(&mut self, ticket: Ticket, len: u32) {
        self.link.queue(self.slots.as_mut(), ticket, |slot| {
            slot.stage = Stage::AskQueued;
            slot.total = len;
            slot.done = 0;
            slot.asked = 0;
        });
    }

    fn send(&mut self, ticket: Ticket, source: Source, cqe: Cqe) {
        self.link.queue(self.slots.as_mut(), ticket, |slot| {
            slot.stage = Stage::SendQueued;
            slot.total = source.len();
            slot.done = 0;
            slot.source = source;
            slot.cqe = cqe;
        });
    }

    fn complete(&mut self, ticket: Ticket, cqe: Cqe) {
        self.link.queue(self.slots.as_mut(), ticket, |slot| {
            slot.stage = Stage::ResponseQueued;
            slot.cqe = cqe;
        });
    }

    fn accepts(&self, sgl: &Sgl, to_host: bool) -> bool {
        match sgl {
            Sgl::Transport { .. } => true,
            Sgl::InCapsule { .. } => !to_host,
            _ => false,
        }
    }

    fn sends_media(&self) -> bool {
        true
    }

    fn connected(&mut self, entries: u32, inline_data: u32, sq_flow_control: bool) {
        self.link.entries = entries;
        self.link.inline_data = inline_data;
        self.link.imply_success = !sq_flow_control;
    }
}

fn list_free(free: &mut Fifo, slots: &mut [Slot], from: usize) {
    for index in (0..NIL).take(slots.len()).skip(from) {
        free.push(slots, index);
    }
}

impl Connection {
    fn queue(&mut self, slots: &mut [Slot], ticket: Ticket, set: impl FnOnce(&mut Slot)) {
        let id = ticket.slot();
        if let Some(slot) = slots.get_mut(id.index()) {
            set(slot);
            self.ready.push(slots, id.0);
        }
    }

    /// Whether all slots are taken, and the next byte is the first of a PDU.
    fn is_full(&self) -> bool {
        self.free.first().is_none() && self.session.rx.is_between_pdus()
    }

    /// A PDU's header is here, and `rest` comes after it: what it means, and where its data goes.
    fn header<'a>(
        &mut self,
        slots: &mut [Slot],
        framed: Framed,
        rest: &mut &'a [u8],
        buffers: &mut impl DataBuffers,
    ) -> Result<Option<Event<'a>>, Fatal> {
        match framed.pdu_type {
            PduType::IcReq => self.ic_req().map(|()| None),
            PduType::CapsuleCmd => self.capsule(slots, framed, rest, buffers),
            _ => self.h2c_data(slots, framed).map(|()| None),
        }
    }

    fn arrived(&mut self, slots: &mut [Slot], arrived: Arrived) -> Option<Event<'static>> {
        match arrived {
            Arrived::Data { intact } => self.data_end(slots, intact),
            Arrived::Terminated(fatal) => Some(Event::Terminated(fatal)),
            Arrived::Nothing | Arrived::Header(_) => None,
        }
    }

    /// Section 3.6.2, ICReq.
    fn ic_req(&mut self) -> Result<(), Fatal> {
        if self.session.phase != Phase::New {
            return Err(Fatal::SEQUENCE);
        }
        let request: IcReq = self.session.rx.header_as().ok_or(Fatal::field(0))?;
        if request.pfv.get() != 0 {
            return Err(Fatal::unsupported(8));
        }
        if request.hpda > PDA_MAX {
            return Err(Fatal::unsupported(10));
        }
        let digests = Digests {
            header: self.config.header_digest && request.hdgst(),
            data: self.config.data_digest && request.ddgst(),
        };
        self.session.dress.pda = request.hpda;
        // ICResp itself goes without digests, so they are in force once it is composed.
        self.session.rx.agree(digests, self.config.cpda);
        self.session.phase = Phase::Initializing;
        self.session.deadline = None;
        self.session.dress.digests = digests;
        Ok(())
    }

    /// Section 3.6.2, CapsuleCmd.
    fn capsule<'a>(
        &mut self,
        slots: &mut [Slot],
        framed: Framed,
        rest: &mut &'a [u8],
        buffers: &mut impl DataBuffers,
    ) -> Result<Option<Event<'a>>, Fatal> {
        let capsule: &CapsuleCmd = self.session.rx.header_ref().ok_or(Fatal::field(0))?;
        let sqe = capsule.sqe;
        let len = framed.data_len;
        if len > self.inline_data {
            return Err(Fatal::field(4));
        }
        let misplaced = match sqe.sgl() {
            // A descriptor that does not start at the start is the command's
            // fault (SGL Offset Invalid), not the transport's.
            Sgl::InCapsule { offset, .. } if offset != 0 => true,
            Sgl::InCapsule { length, .. } if length == len => false,
            Sgl::InCapsule { .. } => return Err(Fatal::field(4)),
            _ if len == 0 => false,
            _ => return Err(Fatal::field(4)),
        };
        let wanted = core::mem::replace(&mut self.refusal, Refusal::None);
        let Some(slot) = self.free.pop(slots) else {
            return match wanted {
                Refusal::Wanted => Ok(Some(Event::Refused { sqe })),
                // The host has more commands outstanding than its queue has entries.
                _ => Err(Fatal::SEQUENCE),
            };
        };
        let slot = SlotId(slot);
        if let Some(state) = slots.get_mut(slot.index()) {
            state.cid = sqe.cid();
            state.stage = Stage::Arriving;
            state.intact = true;
        }
        if len == 0 {
            let data = if misplaced {
                InCapsule::Misplaced
            } else {
                InCapsule::Nothing
            };
            return Ok(command(slots, slot, sqe, data));
        }
        if !misplaced && let Some(whole) = self.session.rx.take_data(rest) {
            let data = if whole.intact {
                InCapsule::Here(whole.data)
            } else {
                InCapsule::Corrupt
            };
            return Ok(command(slots, slot, sqe, data));
        }
        let kept = !misplaced && buffers.reserve(slot, len);
        self.session.rx.data_to(kept.then_some(Place {
            slot,
            offset: 0,
            len,
        }));
        let data = match (misplaced, kept) {
            (true, _) => InCapsule::Misplaced,
            (false, true) => InCapsule::Whole(len),
            (false, false) => InCapsule::Dropped,
        };
        self.arriving = Some(Arriving::Command { slot, sqe, data });
        Ok(None)
    }

    /// Section 3.6.2, H2CData. Of several faults the lowest field's is reported.
    fn h2c_data(&mut self, slots: &mut [Slot], framed: Framed) -> Result<(), Fatal> {
        let header: &DataPdu = self.session.rx.header_ref().ok_or(Fatal::field(0))?;
        let (offset, len) = (header.datao.get(), header.datal.get());
        if len != framed.data_len || len == 0 {
            return Err(Fatal::field(4));
        }
        let id = SlotId(header.ttag.get());
        let slot = slots
            .get_mut(id.index())
            .filter(|slot| slot.stage == Stage::Fetching)
            .ok_or(Fatal::field(10))?;
        if slot.cid.0 != header.cccid.get() {
            return Err(Fatal::field(8));
        }
        if len > self.config.maxh2cdata {
            return Err(Fatal::LIMIT_EXCEEDED);
        }
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= slot.asked)
            .ok_or(Fatal::OUT_OF_RANGE)?;
        if offset != slot.done {
            return Err(Fatal::SEQUENCE);
        }
        let last = header.common.has(flags::LAST_PDU);
        if last != (end == slot.asked) {
            return Err(Fatal::SEQUENCE);
        }
        slot.done = end;
        self.arriving = Some(Arriving::Data { slot: id });
        self.session.rx.data_to(Some(Place {
            slot: id,
            offset,
            len,
        }));
        Ok(())
    }

    fn data_end(&mut self, slots: &mut [Slot], intact: bool) -> Option<Event<'static>> {
        match self.arriving.take()? {
            Arriving::Command { slot, sqe, data } => {
                let data = if intact { data } else { InCapsule::Corrupt };
                command(slots, slot, sqe, data)
            }
            Arriving::Data { slot: id } => {
                let slot = slots.get_mut(id.index())?;
                slot.intact &= intact;
                if slot.done < slot.asked {
                    return None;
                }
                if slot.done < slot.total && slot.intact {
                    slot.stage = Stage::AskQueued;
                    self.ready.push(slots, id.0);
                    return None;
                }
                slot.stage = Stage::Held;
                Some(Event::Fetched {
                    ticket: Ticket::new(id),
                    intact: slot.intact,
                })
            }
        }
    }

    fn poll_transmit(&mut self, slots: &mut [Slot], head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        match self.session.phase {
            Phase::New | Phase::Ended => None,
            Phase::Initializing => {
                self.session.phase = Phase::Live;
                Some(only_head(self.ic_resp(head)))
            }
            Phase::Terminating(_) => self.session.last_word(head).map(only_head),
            Phase::Live => self.command_pdu(slots, head),
        }
    }

    fn ic_resp(&self, head: &mut [u8; MAX_HEAD]) -> usize {
        let mut response = IcResp::new(self.config.maxh2cdata);
        response.cpda = self.config.cpda;
        if self.session.dress.digests.header {
            response.dgst |= dgst::HDGST;
        }
        if self.session.dress.digests.data {
            response.dgst |= dgst::DDGST;
        }
        self.session.dress.undressed().head(head, &response, 0)
    }

    fn command_pdu(&mut self, slots: &mut [Slot], head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        if let Refusal::Queued(cqe) = self.refusal {
            self.refusal = Refusal::None;
            return Some(only_head(self.session.dress.head(
                head,
                &CapsuleResp::new(cqe),
                0,
            )));
        }
        let id = SlotId(self.ready.first()?);
        let slot = slots.get_mut(id.index())?;
        match slot.stage {
            Stage::AskQueued => {
                let len = slot
                    .total
                    .saturating_sub(slot.done)
                    .min(self.config.max_r2t);
                slot.asked = slot.done.saturating_add(len);
                slot.stage = Stage::Fetching;
                let r2t = R2t::new(slot.cid.0, id.0, slot.done, len);
                self.ready.pop(slots);
                Some(only_head(self.session.dress.head(head, &r2t, 0)))
            }
            Stage::SendQueued => {
                let offset = slot.done;
                let len = slot
                    .total
                    .saturating_sub(offset)
                    .min(self.config.max_c2hdata);
                slot.done = offset.saturating_add(len);
                let last = slot.done >= slot.total;
                // Section 3.6.2, C2HData: SUCCESS stands for a completion that says
                // nothing, and needs SQ flow control to be off.
                let success = last
                    && self.imply_success
                    && slot.cqe.status() == Status::SUCCESS
                    && slot.cqe.result.get() == 0;
                let mut header = DataPdu::new(PduType::C2hData, slot.cid.0, 0, offset, len);
                if last {
                    header.common.flags |= flags::LAST_PDU;
                }
                if success {
                    header.common.flags |= flags::SUCCESS;
                }
                let source = slot.source.part(offset, len);
                if success {
                    slot.stage = Stage::Composed;
                    self.ready.pop(slots);
                } else if last {
                    slot.stage = Stage::ResponseQueued;
                }
                Some(Transmit {
                    head_len: self.session.dress.head(head, &header, len),
                    payload: Some(source),
                    data_digest: self.session.dress.digests.data,
                    finishes: success.then_some(id),
                })
            }
            Stage::ResponseQueued => {
                slot.stage = Stage::Composed;
                let response = CapsuleResp::new(slot.cqe);
                self.ready.pop(slots);
                Some(Transmit {
                    finishes: Some(id),
                    ..only_head(self.session.dress.head(head, &response, 0))
                })
            }
            Stage::Free | Stage::Arriving | Stage::Held | Stage::Fetching | Stage::Composed => {
                // Not reachable: only the three stages above are queued.
                self.ready.pop(slots);
                None
            }
        }
    }
}

/// A command is complete.
fn command<'a>(
    slots: &mut [Slot],
    slot: SlotId,
    sqe: Sqe,
    data: InCapsule<'a>,
) -> Option<Event<'a>> {
    slots.get_mut(slot.index())?.stage = Stage::Held;
    let ticket = Ticket::new(slot);
    Some(Event::Command { ticket, sqe, data })
}

const fn only_head(head_len: usize) -> Transmit {
    Transmit {
        head_len,
        payload: None,
        data_digest: false,
        finishes: None,
    }
}
