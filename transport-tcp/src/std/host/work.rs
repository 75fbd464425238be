//! What a call asks for, as one command or as many as it takes.
use std::ops::Range;
use std::sync::Arc;

use nvmf_core::host::recovery::Effect;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::Cid;
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use nvmf_core::wire::status::Status;

use super::commands::{Buffers, Direction, Payload};
use super::error::Error;
use super::queue::Completion;
use super::shared::Known;

/// A call's commands, their data, and how far they have come.
#[derive(Debug)]
pub(super) struct Work {
    /// What to call it in errors.
    pub(super) name: &'static str,
    /// Its opcode, for the meaning of a status.
    pub(super) opcode: u8,
    plan: Plan,
    /// Whether it changes something.
    pub(super) effect: Effect,
    /// Which namespace it is about, if it is a handle's.
    pub(super) namespace: Option<Arc<Known>>,
    /// Which way the data goes.
    pub(super) direction: Direction,
    /// The data, as long as no queue has them.
    pub(super) buffers: Buffers,
    /// Bytes of them.
    len: usize,
    /// A status other than success ends the call with an error.
    pub(super) checked: bool,
    /// It was sent, in part at least, on a connection that was lost.
    pub(super) again: bool,
    /// It goes before callers' work, and waits for no decision.
    pub(super) urgent: bool,
    /// Bytes that came.
    pub(super) received: usize,
    /// How often something of it was sent once more.
    pub(super) repeats: u32,
    /// The next command that was never sent.
    next: u32,
    /// Commands to be sent once more.
    returned: Vec<u32>,
}

/// How a call ended well.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) name: &'static str,
    pub(super) opcode: u8,
    pub(super) cqe: Cqe,
    pub(super) buffers: Buffers,
    /// Bytes that came.
    pub(super) received: usize,
}

/// The commands of a call.
#[derive(Debug)]
pub(super) enum Plan {
    /// One, which has all of the data.
    One(Sqe),
    /// One for each so many blocks.
    Blocks(Blocks),
    /// These, and which part of the data each has.
    List(Vec<(Sqe, Range<usize>)>),
}

/// A range of blocks, cut to what a command may have.
#[derive(Debug)]
pub(super) struct Blocks {
    /// SLBA and NLB are set for each.
    pub(super) sqe: Sqe,
    pub(super) slba: u64,
    pub(super) blocks: u64,
    /// Blocks of a command, at most 65536.
    pub(super) step: u64,
    /// Bytes of data for each block; 0 if the commands have none.
    pub(super) block_size: usize,
}

impl Work {
    /// Commands of an I/O queue.
    pub(super) fn io(name: &'static str, plan: Plan, payload: Payload) -> Self {
        Self::new(name, Effect::of_io, plan, payload)
    }

    /// Any command of an I/O queue; a status other than success is no error.
    pub(super) fn as_it_is(sqe: &Sqe, payload: Payload) -> Self {
        let mut work = Self::io(sqe.io_opcode().name(), Plan::One(*sqe), payload);
        work.checked = false;
        work
    }

    /// A command of the Admin Queue.
    pub(super) fn admin(sqe: &Sqe, payload: Payload) -> Self {
        let name = sqe.admin_opcode().name();
        Self::new(name, Effect::of_admin, Plan::One(*sqe), payload)
    }

    fn new(name: &'static str, effect: fn(&Sqe) -> Effect, plan: Plan, payload: Payload) -> Self {
        let (buffers, direction) = payload.into_parts();
        let sqe = plan.sqe();
        Self {
            name,
            opcode: sqe.map_or(0, |sqe| sqe.opcode),
            effect: sqe.map_or(Effect::Reads, effect),
            namespace: None,
            plan,
            direction,
            len: buffers.len(),
            buffers,
            checked: true,
            again: false,
            urgent: false,
            received: 0,
            repeats: 0,
            next: 0,
            returned: Vec::new(),
        }
    }

    /// Why it must not be sent, if that is so.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.namespace.as_ref()?.refusal()
    }

    /// Whether it has no commands at all.
    pub(super) fn is_empty(&self) -> bool {
        self.plan.len() == 0
    }

    /// The end of it, with its last completion; without commands there is none.
    pub(super) fn done(self, last: Option<Cqe>) -> Done {
        Done {
            name: self.name,
            opcode: self.opcode,
            cqe: last.unwrap_or(Cqe::new(Cid(0), Status::SUCCESS)),
            buffers: self.buffers,
            received: self.received,
        }
    }

    /// What it was to move.
    pub(super) fn into_payload(self) -> Payload {
        Payload::from_parts(self.buffers, self.direction)
    }

    /// Whether commands are still to be sent.
    pub(super) fn has_more(&self) -> bool {
        !self.returned.is_empty() || self.next < self.plan.len()
    }

    /// The next command to send, its number, and which part of the data it has.
    pub(super) fn take(&mut self) -> Option<(u32, Sqe, Range<usize>)> {
        let index = match self.returned.pop() {
            Some(index) => index,
            None if self.next < self.plan.len() => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        let (sqe, range) = self.plan.get(index, self.len)?;
        Some((index, sqe, range))
    }

    /// A command that was taken is to be sent once more.
    pub(super) fn put_back(&mut self, index: u32) {
        self.returned.push(index);
    }

    /// No more commands are sent.
    pub(super) fn stop(&mut self) {
        self.returned.clear();
        self.next = self.plan.len();
    }
}

impl Done {
    /// All of the data came, or went.
    pub(super) fn whole(self) -> Result<Self, Error> {
        let read = self.opcode == IoOpcode::Read.code();
        if read && self.received != self.buffers.len() {
            return Err(Error::Nonsense { command: self.name });
        }
        Ok(self)
    }

    /// As it is.
    pub(super) fn into_completion(self) -> Completion {
        let (buffer, buffers) = self.buffers.into_public();
        Completion {
            tag: 0,
            cqe: self.cqe,
            buffer,
            buffers,
            received: self.received,
        }
    }
}

impl Plan {
    /// One of its commands, as an example.
    fn sqe(&self) -> Option<&Sqe> {
        match self {
            Self::One(sqe) => Some(sqe),
            Self::Blocks(blocks) => Some(&blocks.sqe),
            Self::List(list) => list.first().map(|(sqe, _)| sqe),
        }
    }

    fn len(&self) -> u32 {
        let count = match self {
            Self::One(_) => 1,
            Self::Blocks(blocks) => blocks.blocks.div_ceil(blocks.step),
            Self::List(list) => list.len() as u64,
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn get(&self, index: u32, len: usize) -> Option<(Sqe, Range<usize>)> {
        match self {
            Self::One(sqe) => Some((*sqe, 0..len)),
            Self::Blocks(blocks) => Some(blocks.get(index)),
            Self::List(list) => list.get(index as usize).cloned(),
        }
    }
}

impl Blocks {
    fn get(&self, index: u32) -> (Sqe, Range<usize>) {
        let first = u64::from(index) * self.step;
        let count = self.step.min(self.blocks - first);
        let slba = self.slba.wrapping_add(first).to_le_bytes();
        let [s0, s1, s2, s3, s4, s5, s6, s7] = slba;
        let mut sqe = self.sqe;
        sqe.cdw10 = u32::from_le_bytes([s0, s1, s2, s3]).into();
        sqe.cdw11 = u32::from_le_bytes([s4, s5, s6, s7]).into();
        sqe.cdw12 = (sqe.cdw12.get() & !0xFFFF | (count as u32 - 1)).into();
        let at = first as usize * self.block_size;
        (sqe, at..at + count as usize * self.block_size)
    }
}

#[cfg(test)]
mod tests {
    use nvmf_core::host::command;
    use nvmf_core::wire::ids::Nsid;
    use nvmf_core::wire::sqe::IoOpcode;

    use super::super::super::buffer::Buffer;
    use super::*;

    fn work(blocks: u64, step: u64) -> Work {
        let plan = Plan::Blocks(Blocks {
            sqe: command::blocks(IoOpcode::Read, Nsid(1), 0, 1),
            slba: 0xFFFF_FFFE,
            blocks,
            step,
            block_size: 512,
        });
        let buffer = Buffer::zeroed(blocks as usize * 512);
        Work::io("Read", plan, Payload::Read(buffer))
    }

    #[test]
    fn blocks_are_cut_to_what_a_command_may_have() {
        let mut work = work(10, 4);
        let mut found = Vec::new();
        while let Some((index, sqe, range)) = work.take() {
            let slba = u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get());
            found.push((index, slba - 0xFFFF_FFFE, sqe.cdw12.get() + 1, range));
        }
        let expected = [
            (0, 0, 4, 0..2048),
            (1, 4, 4, 2048..4096),
            (2, 8, 2, 4096..5120),
        ];
        assert_eq!(found, expected);
        assert!(!work.has_more());
        work.put_back(1);
        assert!(work.has_more());
        assert_eq!(work.take().map(|(index, ..)| index), Some(1));
        work.put_back(2);
        work.stop();
        assert!(work.take().is_none());
    }

    #[test]
    fn nothing_is_no_command() {
        assert!(work(0, 4).is_empty());
        assert!(!work(1, 4).is_empty());
    }
}
