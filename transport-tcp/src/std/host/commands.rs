//! The data of a queue's commands: in which buffers they are, and where in them.
use nvmf_core::host::Data;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::{DataBuffers, Place, SlotId};

use super::super::buffer::Buffer;
use super::queue::Completion;

/// The data of a command. The queue has the buffers until the command completes.
#[derive(Debug)]
pub enum Payload {
    /// None.
    Nothing,
    /// At most the buffer's length comes from the controller.
    Read(Buffer),
    /// The whole buffer goes to the controller.
    Write(Buffer),
    /// Like [`Payload::Read`]: the buffers are filled one after the other.
    ReadVectored(Vec<Buffer>),
    /// Like [`Payload::Write`]: the buffers, one after the other.
    WriteVectored(Vec<Buffer>),
}

/// One buffer or several, which are one piece of data.
#[derive(Debug)]
pub(super) enum Buffers {
    One(Buffer),
    Many(Vec<Buffer>),
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToHost,
    FromHost,
}

impl Direction {
    /// `len` bytes this way, as a command's data.
    pub(super) fn of(self, len: usize) -> Data {
        match (u32::try_from(len).unwrap_or(u32::MAX), self) {
            (0, _) => Data::Nothing,
            (len, Self::ToHost) => Data::ToHost(len),
            (len, Self::FromHost) => Data::FromHost(len),
        }
    }
}

impl Payload {
    /// Its buffers, and which way they go.
    pub(super) fn into_parts(self) -> (Buffers, Direction) {
        match self {
            Self::Nothing => (Buffers::none(), Direction::ToHost),
            Self::Read(buffer) => (Buffers::One(buffer), Direction::ToHost),
            Self::Write(buffer) => (Buffers::One(buffer), Direction::FromHost),
            Self::ReadVectored(buffers) => (Buffers::Many(buffers), Direction::ToHost),
            Self::WriteVectored(buffers) => (Buffers::Many(buffers), Direction::FromHost),
        }
    }

    /// How much data that is, and which way it goes.
    pub(super) fn data(&self) -> Data {
        let direction = match self {
            Self::Nothing | Self::Read(_) | Self::ReadVectored(_) => Direction::ToHost,
            Self::Write(_) | Self::WriteVectored(_) => Direction::FromHost,
        };
        direction.of(self.len())
    }

    /// Bytes of all buffers.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Read(buffer) | Self::Write(buffer) => buffer.as_ref().len(),
            Self::ReadVectored(buffers) | Self::WriteVectored(buffers) => {
                buffers.iter().map(|buffer| buffer.as_ref().len()).sum()
            }
        }
    }

    pub(super) fn from_parts(buffers: Buffers, direction: Direction) -> Self {
        match (buffers, direction) {
            (Buffers::Many(buffers), _) if buffers.is_empty() => Self::Nothing,
            (Buffers::One(buffer), Direction::ToHost) => Self::Read(buffer),
            (Buffers::One(buffer), Direction::FromHost) => Self::Write(buffer),
            (Buffers::Many(buffers), Direction::ToHost) => Self::ReadVectored(buffers),
            (Buffers::Many(buffers), Direction::FromHost) => Self::WriteVectored(buffers),
        }
    }
}

impl Buffers {
    pub(super) const fn none() -> Self {
        Self::Many(Vec::new())
    }

    /// Bytes of all of them.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(buffer) => buffer.as_ref().len(),
            Self::Many(buffers) => buffers.iter().map(|buffer| buffer.as_ref().len()).sum(),
        }
    }

    /// The single buffer there is.
    pub(super) fn into_one(self) -> Option<Buffer> {
        match self {
            Self::One(buffer) => Some(buffer),
            Self::Many(buffers) => buffers.into_iter().next(),
        }
    }

    /// As completions have them: the single one, or all of several.
    pub(super) fn into_public(self) -> (Option<Buffer>, Vec<Buffer>) {
        match self {
            Self::One(one) => (Some(one), Vec::new()),
            Self::Many(many) => (None, many),
        }
    }

    pub(super) fn into_vec(self) -> Vec<Buffer> {
        match self {
            Self::One(buffer) => vec![buffer],
            Self::Many(buffers) => buffers,
        }
    }

    /// Bytes from `at` on, at most `len`, as far as they are in one piece.
    fn piece(&self, at: usize, len: usize) -> &[u8] {
        let (bytes, at) = match self {
            Self::One(buffer) => (buffer.as_ref(), at),
            Self::Many(buffers) => match find(buffers, at) {
                Some((index, at)) => (buffers[index].as_ref(), at),
                None => return &[],
            },
        };
        let bytes = bytes.get(at..).unwrap_or_default();
        bytes.get(..len).unwrap_or(bytes)
    }

    fn piece_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        let (bytes, at) = match self {
            Self::One(buffer) => (buffer.as_mut(), at),
            Self::Many(buffers) => match find(buffers, at) {
                Some((index, at)) => (buffers[index].as_mut(), at),
                None => return &mut [],
            },
        };
        let bytes = bytes.get_mut(at..).unwrap_or_default();
        let len = len.min(bytes.len());
        &mut bytes[..len]
    }
}

/// The buffer that byte `at` of all is in, and where in it.
fn find(buffers: &[Buffer], mut at: usize) -> Option<(usize, usize)> {
    for (index, buffer) in buffers.iter().enumerate() {
        let len = buffer.as_ref().len();
        if at < len {
            return Some((index, at));
        }
        at -= len;
    }
    None
}

/// Names buffers that a queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job(usize);

/// A part of the buffers that a queue has, as the data of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) job: Job,
    /// The first byte.
    pub(super) at: usize,
    pub(super) data: Data,
}

/// The buffers, and which part of them is each command's.
///
/// Most commands have buffers of their own. Several may have parts of the same buffers:
/// what is too long for one command is moved without being copied.
#[derive(Default)]
pub(super) struct Commands {
    slots: Vec<Option<Command>>,
    jobs: Vec<Option<Buffers>>,
    free: Vec<usize>,
}

/// A command under way.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) tag: u64,
    pub(super) memory: Memory,
}

impl Command {
    /// It ended; so many bytes came into its buffers.
    pub(super) fn complete(self, cqe: Cqe, received: usize) -> Completion {
        let (buffer, buffers) = match self.memory {
            Memory::Own(buffers) => buffers.into_public(),
            Memory::Shared(..) => (None, Vec::new()),
        };
        Completion {
            tag: self.tag,
            cqe,
            buffer,
            buffers,
            received,
        }
    }
}

/// Where a command's data is.
#[derive(Debug)]
pub(super) enum Memory {
    /// In buffers of its own, which come back with it.
    Own(Buffers),
    /// In buffers of several commands, from this byte on.
    Shared(Job, usize),
}

impl Commands {
    pub(super) fn open(&mut self, buffers: Buffers) -> Job {
        match self.free.pop() {
            Some(index) => {
                self.jobs[index] = Some(buffers);
                Job(index)
            }
            None => {
                self.jobs.push(Some(buffers));
                Job(self.jobs.len() - 1)
            }
        }
    }

    /// The buffers go back. No command may have parts of them.
    pub(super) fn close(&mut self, Job(index): Job) -> Buffers {
        self.free.push(index);
        self.jobs[index].take().unwrap_or(Buffers::none())
    }

    /// There may be this many commands under way.
    pub(super) fn grow(&mut self, depth: usize) {
        if self.slots.len() < depth {
            self.slots.resize_with(depth, || None);
        }
    }

    pub(super) fn put(&mut self, slot: SlotId, command: Command) {
        self.grow(slot.index() + 1);
        self.slots[slot.index()] = Some(command);
    }

    pub(super) fn take(&mut self, slot: SlotId) -> Option<Command> {
        self.slots.get_mut(slot.index())?.take()
    }

    /// Those that are under way.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotId, &Command)> {
        // A queue has at most 4096 slots.
        let slots = (0..).map(SlotId).zip(&self.slots);
        slots.filter_map(|(slot, command)| Some((slot, command.as_ref()?)))
    }

    /// The bytes at `place`, as far as they are in one piece.
    pub(super) fn payload(&self, place: &Place) -> Option<&[u8]> {
        let command = self.slots.get(place.slot.index())?.as_ref()?;
        let (buffers, at) = match &command.memory {
            Memory::Own(buffers) => (buffers, 0),
            Memory::Shared(job, at) => (self.jobs.get(job.0)?.as_ref()?, *at),
        };
        Some(buffers.piece(at + place.offset as usize, place.len as usize))
    }

    fn payload_mut(&mut self, place: &Place) -> Option<&mut [u8]> {
        let command = self.slots.get_mut(place.slot.index())?.as_mut()?;
        let (buffers, at) = match &mut command.memory {
            Memory::Own(buffers) => (buffers, 0),
            Memory::Shared(job, at) => (self.jobs.get_mut(job.0)?.as_mut()?, *at),
        };
        Some(buffers.piece_mut(at + place.offset as usize, place.len as usize))
    }
}

impl DataBuffers for Commands {
    /// Buffers come with the commands.
    fn reserve(&mut self, _: SlotId, _: u32) -> bool {
        false
    }

    fn place(&mut self, place: Place) -> &mut [u8] {
        self.payload_mut(&place).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_buffers_are_one_piece_of_data() {
        let lens = [3, 0, 5, 1];
        let buffers = lens.iter().map(|len| Buffer::from(vec![0; *len])).collect();
        let mut commands = Commands::default();
        let job = commands.open(Buffers::Many(buffers));
        let slot = SlotId(4);
        let memory = Memory::Shared(job, 1);
        commands.put(slot, Command { tag: 7, memory });
        let mut place = Place {
            slot,
            offset: 0,
            len: 8,
        };
        let mut pieces = Vec::new();
        while place.len > 0 {
            let piece = commands.place(place);
            piece.fill(pieces.len() as u8 + 1);
            let len = piece.len() as u32;
            assert_eq!(commands.payload(&place).unwrap().len() as u32, len);
            pieces.push(len);
            place.offset += len;
            place.len -= len;
        }
        assert_eq!(pieces, [2, 5, 1]);
        assert!(commands.place(Place { len: 1, ..place }).is_empty());
        assert_eq!(commands.take(slot).map(|command| command.tag), Some(7));
        assert!(
            commands
                .place(Place {
                    offset: 0,
                    len: 1,
                    ..place
                })
                .is_empty()
        );
        let bytes: Vec<Vec<u8>> = commands
            .close(job)
            .into_vec()
            .into_iter()
            .map(Vec::from)
            .collect();
        assert_eq!(bytes, [vec![0, 1, 1], vec![], vec![2; 5], vec![3]]);
        // Its place is used again.
        assert_eq!(commands.open(Buffers::none()), job);
    }
}
