//! A virtio disk: as many requests under way as there is memory for, and none of
//! them waited for.
#![allow(unsafe_code, reason = "a device moves the bytes")]

use core::fmt;

use nvmf_core::block::{
    BlockDevice, Completion, Extent, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_tcp::smoltcp::memory::Buffer;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::DeviceStatus;
use virtio_drivers::{Error, Hal};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes};

use super::{Transport, kick, negotiate};

/// The device's only queue that is used.
const QUEUE_INDEX: u16 = 0;
/// Descriptors of a request: its header, its data and its status.
const DESCRIPTORS: usize = 3;
/// What the device counts in, whatever its blocks are.
const SECTOR: u64 = 512;
/// Bytes that are compared, looked at, or written as zeroes by one command.
const PIECE: usize = 16384;

/// Bits of the device's features (virtio 1.2, section 5.2.3).
mod feature {
    pub(super) const READ_ONLY: u64 = 1 << 5;
    pub(super) const BLOCK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const DISCARD: u64 = 1 << 13;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
}

/// Where things are in the configuration space (section 5.2.4).
mod config {
    pub(super) const CAPACITY: usize = 0;
    pub(super) const BLOCK_SIZE: usize = 20;
    pub(super) const MAX_DISCARD_SECTORS: usize = 36;
    pub(super) const MAX_WRITE_ZEROES_SECTORS: usize = 48;
    pub(super) const WRITE_ZEROES_MAY_UNMAP: usize = 56;
}

/// Commands of the device (section 5.2.6).
mod command {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// How a command ended (section 5.2.6).
mod status {
    pub(super) const OK: u8 = 0;
    pub(super) const UNSUPPORTED: u8 = 2;
    /// None of the device's.
    pub(super) const NONE: u8 = 0xFF;
}

/// What a command begins with.
#[derive(Debug, Immutable, IntoBytes)]
#[repr(C)]
struct Header {
    command: U32,
    reserved: U32,
    /// First sector.
    sector: U64,
}

/// What a discard, or a write of zeroes, is about.
#[derive(Debug, Immutable, IntoBytes)]
#[repr(C)]
struct Range {
    /// First sector.
    sector: U64,
    /// How many.
    sectors: U32,
    /// Bit 0: may be unmapped.
    flags: U32,
}

/// Memory for a request under way.
#[derive(Debug)]
pub struct Slot {
    header: Header,
    range: Range,
    status: u8,
    job: Option<Job>,
}

impl Slot {
    /// Nothing under way.
    pub const FREE: Self = Self {
        header: Header {
            command: U32::ZERO,
            reserved: U32::ZERO,
            sector: U64::ZERO,
        },
        range: Range {
            sector: U64::ZERO,
            sectors: U32::ZERO,
            flags: U32::ZERO,
        },
        status: 0,
        job: None,
    };
}

/// Memory for what moves between the device and no buffer of a host's. All zero,
/// so a static of it costs no flash.
#[derive(Debug)]
pub struct Scratch {
    /// What is read to be compared or looked at.
    read: [u8; PIECE],
    /// Never written to.
    zeroes: [u8; PIECE],
}

impl Scratch {
    /// All zero.
    #[allow(clippy::new_without_default, reason = "it belongs in a static")]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            read: [0; PIECE],
            zeroes: [0; PIECE],
        }
    }
}

/// A request, piece by piece.
#[derive(Debug)]
struct Job {
    request: Request<Buffer<'static>>,
    /// Empty for a flush.
    extent: Extent,
    /// Bytes done.
    done: u64,
    /// What the device does now, with how many bytes.
    stage: Stage,
    piece: u64,
    /// The descriptor that it begins with.
    head: u16,
    /// The flush at its end was begun.
    flushed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Read,
    Write,
    /// Read to be compared, or just looked at.
    Look,
    /// Write zeroes out of memory.
    Fill,
    /// Have the device write zeroes.
    Zero,
    Discard,
    Flush,
}

/// What the device does.
#[derive(Clone, Copy, Debug)]
struct Abilities {
    geometry: Geometry,
    flush: bool,
    /// Bytes that one command discards, or fills with zeroes; 0 if there is no such command.
    discard: u64,
    zeroes: u64,
    /// Zeroes may be holes.
    unmap: bool,
}

/// A disk with a queue of `QUEUE` descriptors.
pub struct Disk<H: Hal, T: Transport, const QUEUE: usize> {
    /// Dropped first: that resets the device, which lets go of all memory.
    transport: T,
    queue: VirtQueue<H, QUEUE>,
    abilities: Abilities,
    slots: &'static mut [Slot],
    scratch: &'static mut Scratch,
    /// The slot of the command that begins with this descriptor.
    owners: [u16; QUEUE],
    /// A request has the scratch memory.
    looks: bool,
    /// The device made no sense: it was reset, and is no more.
    broken: bool,
}

impl<H: Hal, T: Transport, const QUEUE: usize> fmt::Debug for Disk<H, T, QUEUE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("abilities", &self.abilities)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl<H: Hal, T: Transport, const QUEUE: usize> Disk<H, T, QUEUE> {
    /// Has the device come up. There may be as many requests under way as there are `slots`.
    ///
    /// # Errors
    /// Why it cannot be used.
    ///
    /// # Panics
    /// If the queue has less than three descriptors for each slot.
    pub fn start(
        mut transport: T,
        slots: &'static mut [Slot],
        scratch: &'static mut Scratch,
    ) -> Result<Self, Error> {
        assert!(slots.len() * DESCRIPTORS <= QUEUE, "too many slots");
        let features = negotiate(
            &mut transport,
            feature::READ_ONLY
                | feature::BLOCK_SIZE
                | feature::FLUSH
                | feature::DISCARD
                | feature::WRITE_ZEROES,
        )?;
        let abilities = Abilities::read(&transport, features)?;
        let queue = VirtQueue::new(&mut transport, QUEUE_INDEX, false, false)?;
        transport.finish_init();
        Ok(Self {
            transport,
            queue,
            abilities,
            slots,
            scratch,
            owners: [0; QUEUE],
            looks: false,
            broken: false,
        })
    }

    /// Gives the device the next piece of a slot's request.
    fn start_piece(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        let job = slot.job.as_ref().expect("the slot has a request");
        let sector = (job.extent.byte + job.done) / SECTOR;
        let command = match job.stage {
            Stage::Read | Stage::Look => command::IN,
            Stage::Write | Stage::Fill => command::OUT,
            Stage::Zero => command::WRITE_ZEROES,
            Stage::Discard => command::DISCARD,
            Stage::Flush => command::FLUSH,
        };
        let ranged = matches!(job.stage, Stage::Zero | Stage::Discard);
        slot.range.sector = sector.into();
        slot.range.sectors = ((job.piece / SECTOR) as u32).into();
        let unmap = self.abilities.unmap
            && matches!(
                job.request.op,
                Op::WriteZeroes {
                    deallocate: true,
                    ..
                }
            );
        slot.range.flags = u32::from(job.stage == Stage::Zero && unmap).into();
        slot.header.command = command.into();
        slot.header.sector = if ranged || job.stage == Stage::Flush {
            0
        } else {
            sector
        }
        .into();
        slot.status = status::NONE;
        // SAFETY: `pop_used` ends the borrow. Until then the slot is in use, so
        // its header, range and status are not touched, and its buffer is in
        // the slot; the scratch memory belongs to one slot; zeroes are only
        // read. All of it is there for ever, and if the device is given up
        // before, it is reset first.
        let head = self.with_memory(at, |queue, from, to| unsafe { queue.add(from, to) });
        let head = head.expect("a queue has descriptors for each slot");
        self.owners[usize::from(head)] = at as u16;
        let job = self.slots[at].job.as_mut();
        job.expect("the slot has a request").head = head;
        kick(&mut self.transport, &self.queue, QUEUE_INDEX);
    }

    /// Calls `then` with the queue, and with what the device reads and writes of a
    /// slot's piece: the same each time.
    fn with_memory<R>(
        &mut self,
        at: usize,
        then: impl for<'a> FnOnce(&mut VirtQueue<H, QUEUE>, &'a [&'a [u8]], &'a mut [&'a mut [u8]]) -> R,
    ) -> R {
        let Slot {
            header,
            range,
            status,
            job,
        } = &mut self.slots[at];
        let job = job.as_mut().expect("the slot has a request");
        let (header, range) = (header.as_bytes(), range.as_bytes());
        let status = core::slice::from_mut(status);
        let piece = job.piece as usize;
        let data = job.request.buffer.as_deref_mut().unwrap_or_default();
        let Scratch { read, zeroes } = &mut *self.scratch;
        let queue = &mut self.queue;
        match job.stage {
            Stage::Read => then(queue, &[header], &mut [&mut data[..piece], status]),
            Stage::Write => then(queue, &[header, &data[..piece]], &mut [status]),
            Stage::Look => then(queue, &[header], &mut [&mut read[..piece], status]),
            Stage::Fill => then(queue, &[header, &zeroes[..piece]], &mut [status]),
            Stage::Zero | Stage::Discard => then(queue, &[header, range], &mut [status]),
            Stage::Flush => then(queue, &[header], &mut [status]),
        }
    }

    /// Takes a piece back from the device: whose it was, and how it went.
    fn end_piece(&mut self) -> Option<(usize, Result<(), MediaError>)> {
        let head = self.queue.peek_used()?;
        let owner = self.owners.get(usize::from(head));
        let owner = owner.map(|at| usize::from(*at)).filter(|at| {
            let job = self.slots.get(*at).and_then(|slot| slot.job.as_ref());
            job.is_some_and(|job| job.head == head)
        });
        let taken = owner.and_then(|at| {
            // SAFETY: the descriptor that begins this chain is the slot's, so it
            // has the memory that `start_piece` gave.
            let popped = self.with_memory(at, |queue, from, to| unsafe {
                queue.pop_used(head, from, to)
            });
            popped.ok().map(|_| at)
        });
        let Some(at) = taken else {
            self.give_up();
            return None;
        };
        let slot = &self.slots[at];
        let job = slot.job.as_ref().expect("the slot has a request");
        // SAFETY: it is a valid byte; the device wrote it, which the compiler does not see.
        let status = unsafe { (&raw const slot.status).read_volatile() };
        let result = match (status, job.stage) {
            (status::OK, Stage::Look) => job.look(&self.scratch.read),
            (status::OK, _) => Ok(()),
            (status::UNSUPPORTED, _) => Err(MediaError::Unsupported),
            (_, Stage::Read | Stage::Look) => Err(MediaError::Read),
            _ => Err(MediaError::Write),
        };
        Some((at, result))
    }

    /// The device makes no sense. Once it is reset, it has none of our memory.
    fn give_up(&mut self) {
        self.transport.set_status(DeviceStatus::empty());
        self.broken = true;
    }

    fn complete(
        &mut self,
        at: usize,
        result: Result<(), MediaError>,
    ) -> Option<Completion<Buffer<'static>>> {
        let job = self.slots.get_mut(at)?.job.take()?;
        self.looks &= !job.request.op.looks();
        Some(job.request.complete(result))
    }

    /// Why a request ends before it begins: `Ok` if there is nothing to do.
    fn verdict(&self, request: &Request<Buffer<'static>>) -> Option<Result<(), MediaError>> {
        let Abilities {
            geometry,
            flush,
            discard,
            ..
        } = self.abilities;
        let held = request.buffer.as_ref().map_or(0, |buffer| buffer.len()) as u64;
        match request.op {
            _ if self.broken => Some(Err(MediaError::NotReady)),
            Op::Write { .. } | Op::WriteZeroes { .. } | Op::Deallocate(_) if geometry.read_only => {
                Some(Err(MediaError::ReadOnly))
            }
            Op::Read(extent) | Op::Compare(extent) if extent.len > held => {
                Some(Err(MediaError::Read))
            }
            Op::Write { extent, .. } if extent.len > held => Some(Err(MediaError::Write)),
            Op::Flush if !flush => Some(Ok(())),
            Op::Deallocate(_) if discard == 0 => Some(Ok(())),
            _ => None,
        }
    }
}

impl Abilities {
    fn read(transport: &impl Transport, features: u64) -> Result<Self, Error> {
        let has = |feature| features & feature != 0;
        let word = |feature, offset| {
            let read = has(feature).then(|| transport.read_config_space::<u32>(offset));
            read.transpose().map(|word| word.map_or(0, u32::from_le))
        };
        let capacity = transport.read_consistent(|| {
            let low: u32 = transport.read_config_space(config::CAPACITY)?;
            let high: u32 = transport.read_config_space(config::CAPACITY + 4)?;
            Ok(u64::from(u32::from_le(high)) << 32 | u64::from(u32::from_le(low)))
        })?;
        let bytes = capacity.checked_mul(SECTOR).ok_or(Error::Unsupported)?;
        let block = match word(feature::BLOCK_SIZE, config::BLOCK_SIZE)? {
            0 => SECTOR as u32,
            size if size.is_power_of_two() && (SECTOR as u32..=PIECE as u32).contains(&size) => {
                size
            }
            _ => return Err(Error::Unsupported),
        };
        // Whole blocks.
        let range = |sectors: u32| (u64::from(sectors) * SECTOR) & !(u64::from(block) - 1);
        let discard = range(word(feature::DISCARD, config::MAX_DISCARD_SECTORS)?);
        let zeroes = range(word(
            feature::WRITE_ZEROES,
            config::MAX_WRITE_ZEROES_SECTORS,
        )?);
        let unmap = has(feature::WRITE_ZEROES)
            && transport.read_config_space::<u8>(config::WRITE_ZEROES_MAY_UNMAP)? == 1;
        Ok(Self {
            geometry: Geometry {
                block_shift: block.ilog2() as u8,
                blocks: bytes >> block.ilog2(),
                read_only: has(feature::READ_ONLY),
                volatile_cache: has(feature::FLUSH),
                deallocate_zeroes: false,
                optimal_blocks: 0,
            },
            flush: has(feature::FLUSH),
            discard,
            zeroes,
            unmap,
        })
    }
}

/// What of an operation this driver asks.
trait Kind {
    fn extent(&self) -> Extent;
    /// It takes the scratch memory.
    fn looks(&self) -> bool;
    /// It is not over before what was written is durable.
    fn flushes(&self) -> bool;
}

impl Kind for Op {
    fn extent(&self) -> Extent {
        match *self {
            Self::Read(extent)
            | Self::Write { extent, .. }
            | Self::Compare(extent)
            | Self::Verify(extent)
            | Self::WriteZeroes { extent, .. }
            | Self::Deallocate(extent) => extent,
            Self::Flush => Extent { byte: 0, len: 0 },
        }
    }

    fn looks(&self) -> bool {
        matches!(self, Self::Compare(_) | Self::Verify(_))
    }

    fn flushes(&self) -> bool {
        match *self {
            Self::Write { fua, .. } | Self::WriteZeroes { fua, .. } => fua,
            Self::Flush => true,
            _ => false,
        }
    }
}

impl Job {
    /// Says what the next piece is; false if there is none.
    fn next(&mut self, abilities: &Abilities) -> bool {
        self.done += self.piece;
        let left = self.extent.len - self.done;
        if left == 0 {
            self.piece = 0;
            self.stage = Stage::Flush;
            let flush = self.request.op.flushes() && abilities.flush && !self.flushed;
            self.flushed |= flush;
            return flush;
        }
        let (stage, most) = match self.request.op {
            Op::Read(_) => (Stage::Read, left),
            Op::Write { .. } => (Stage::Write, left),
            Op::Compare(_) | Op::Verify(_) => (Stage::Look, PIECE as u64),
            Op::WriteZeroes { .. } if abilities.zeroes > 0 => (Stage::Zero, abilities.zeroes),
            Op::WriteZeroes { .. } | Op::Flush => (Stage::Fill, PIECE as u64),
            Op::Deallocate(_) => (Stage::Discard, abilities.discard),
        };
        self.stage = stage;
        self.piece = left.min(most);
        true
    }

    /// Compares a piece, if it is for that.
    fn look(&self, read: &[u8]) -> Result<(), MediaError> {
        if !matches!(self.request.op, Op::Compare(_)) {
            return Ok(());
        }
        let (start, len) = (self.done as usize, self.piece as usize);
        let wanted = self.request.buffer.as_deref().unwrap_or_default();
        if wanted.get(start..start + len) == read.get(..len) {
            Ok(())
        } else {
            Err(MediaError::Miscompare)
        }
    }
}

impl<H: Hal, T: Transport, const QUEUE: usize> BlockDevice for Disk<H, T, QUEUE> {
    type Buffer = Buffer<'static>;

    fn geometry(&self) -> Geometry {
        self.abilities.geometry
    }

    fn submit(&mut self, request: Request<Buffer<'static>>) -> Submit<Buffer<'static>> {
        if let Some(verdict) = self.verdict(&request) {
            return Submit::Done(request.complete(verdict));
        }
        let free = self.slots.iter().position(|slot| slot.job.is_none());
        let (Some(at), false) = (free, self.looks && request.op.looks()) else {
            return Submit::Busy(request);
        };
        let mut job = Job {
            extent: request.op.extent(),
            request,
            done: 0,
            stage: Stage::Flush,
            piece: 0,
            head: 0,
            flushed: false,
        };
        if !job.next(&self.abilities) {
            return Submit::Done(job.request.complete(Ok(())));
        }
        self.looks |= job.request.op.looks();
        self.slots[at].job = Some(job);
        self.start_piece(at);
        Submit::Pending
    }

    fn poll(&mut self) -> Option<Completion<Buffer<'static>>> {
        while !self.broken {
            let Some((at, result)) = self.end_piece() else {
                break;
            };
            let job = self.slots[at].job.as_mut();
            let job = job.expect("the slot has a request");
            if result.is_err() || !job.next(&self.abilities) {
                return self.complete(at, result);
            }
            self.start_piece(at);
        }
        if self.broken {
            let left = self.slots.iter().position(|slot| slot.job.is_some())?;
            return self.complete(left, Err(MediaError::NotReady));
        }
        None
    }
}
