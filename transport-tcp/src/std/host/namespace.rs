//! A namespace, as blocking calls.
use std::fmt;

use std::time::Instant;

use nvmf_core::host::namespace;
use nvmf_core::wire::identify::{Cns, IdentifyNamespace, NvmController, Oncs};
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::sqe::{IoOpcode, Sqe};

use super::super::buffer::Buffer;
use super::commands::{Buffers, Part, Payload};
use super::compose::Composer;
use super::controller::{Controller, IoQueue, check};
use super::error::Error;
use super::queue::Completion;
use super::work::{Done, Work};

/// Bytes of a caller's that are copied at a time: a whole number of blocks, whatever their size.
const PIECE: usize = 32 << 20;

/// A namespace with a queue of its own. Data of any length is moved by as many
/// commands as it takes, several of them at a time.
pub struct Namespace {
    // In front of the controller, which is shut down last.
    queue: IoQueue,
    controller: Controller,
    nsid: Nsid,
    block_size: u32,
    blocks: u64,
    composer: Composer,
}

impl Namespace {
    pub(super) fn open(controller: Controller, nsid: Nsid) -> Result<Self, Error> {
        let active = controller.active_namespaces()?;
        if !active.contains(&nsid) {
            return Err(Error::NoSuchNamespace {
                nsid: nsid.0,
                active: active.into_iter().map(|nsid| nsid.0).collect(),
            });
        }
        let identify = controller.identify_namespace(nsid)?;
        let block_size = block_size_of(&identify, nsid, controller.capabilities().transfer)?;
        let found = *controller.capabilities();
        // Controllers before NVMe 2.0 have none, and no limits of that kind.
        let nvm = controller.identify_as::<NvmController>(Cns::CommandSetController, Nsid(0));
        let composer = Composer::new(
            nsid,
            block_size,
            &*controller.identify()?,
            &identify,
            nvm.ok().as_deref(),
            found.cap.page_size_min(),
        );
        Ok(Self {
            composer,
            blocks: identify.nsze.get(),
            queue: controller.queue()?,
            controller,
            nsid,
            block_size,
        })
    }

    /// Which namespace it is.
    #[must_use]
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Blocks that there are.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whose namespace it is.
    #[must_use]
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// The queue, for commands of one's own, to be polled. Take back what completes
    /// before other calls of the namespace.
    pub fn queue(&mut self) -> &mut IoQueue {
        &mut self.queue
    }

    /// Whether the controller offers an optional command, such as [`Oncs::NVMVFYS`].
    #[must_use]
    pub fn offers(&self, command: Oncs) -> bool {
        self.composer.offers(command)
    }

    /// With FUA, what a command has written or read is on the medium, safe from a loss of
    /// power, when the call returns. At first it is off.
    pub fn set_fua(&mut self, fua: bool) {
        self.composer.fua = fua;
    }

    /// Reads whole blocks from block `slba` on.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::NotWholeBlocks`], or the connection is lost.
    pub fn read(&mut self, slba: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let mut at = slba;
        for part in bytes.chunks_mut(PIECE) {
            let payload = Payload::Read(Buffer::zeroed(part.len()));
            let done = self.move_all(IoOpcode::Read, at, payload)?;
            let buffer = done.buffers.into_one();
            part.copy_from_slice(buffer.as_ref().map_or(&[], AsRef::as_ref));
            at = at.wrapping_add((part.len() / self.block_size as usize) as u64);
        }
        Ok(())
    }

    /// Like [`Namespace::read`], into several buffers, one after the other, and without
    /// copying. Their sum is a whole number of blocks.
    ///
    /// # Errors
    /// Those of [`Namespace::read`].
    pub fn read_vectored(&mut self, slba: u64, buffers: Vec<Buffer>) -> Result<Vec<Buffer>, Error> {
        let done = self.move_all(IoOpcode::Read, slba, Payload::ReadVectored(buffers))?;
        Ok(done.buffers.into_vec())
    }

    /// Writes whole blocks from block `slba` on.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::NotWholeBlocks`], or the connection is lost.
    pub fn write(&mut self, slba: u64, bytes: &[u8]) -> Result<(), Error> {
        self.send(IoOpcode::Write, slba, bytes)
    }

    /// Like [`Namespace::write`], from several buffers, one after the other, and without copying.
    ///
    /// # Errors
    /// Those of [`Namespace::write`].
    pub fn write_vectored(
        &mut self,
        slba: u64,
        buffers: Vec<Buffer>,
    ) -> Result<Vec<Buffer>, Error> {
        let done = self.move_all(IoOpcode::Write, slba, Payload::WriteVectored(buffers))?;
        Ok(done.buffers.into_vec())
    }

    /// Compares whole blocks from block `slba` on with what is stored.
    ///
    /// # Errors
    /// [`Error::Failed`] with [`Status::COMPARE_FAILURE`](nvmf_core::wire::status::Status::COMPARE_FAILURE)
    /// if they differ, [`Error::NotOffered`], and those of [`Namespace::write`].
    pub fn compare(&mut self, slba: u64, bytes: &[u8]) -> Result<(), Error> {
        self.send(IoOpcode::Compare, slba, bytes)
    }

    /// Makes what was written before safe from a loss of power.
    ///
    /// # Errors
    /// [`Error::Failed`], or the connection is lost.
    pub fn flush(&mut self) -> Result<(), Error> {
        let work = self.composer.flush();
        self.run(work).map(drop)
    }

    /// Writes zeroes to `blocks` blocks, without sending them.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::NotOffered`], or the connection is lost.
    pub fn write_zeroes(&mut self, slba: u64, blocks: u64) -> Result<(), Error> {
        let work = self.composer.write_zeroes(slba, blocks, false)?;
        self.run(work).map(drop)
    }

    /// Lets the controller read `blocks` blocks, without their data being sent.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::NotOffered`], or the connection is lost.
    pub fn verify(&mut self, slba: u64, blocks: u64) -> Result<(), Error> {
        let work = self.composer.verify(slba, blocks)?;
        self.run(work).map(drop)
    }

    /// Says that `blocks` blocks are not needed. What they read as is up to the controller.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::NotOffered`], or the connection is lost.
    pub fn deallocate(&mut self, slba: u64, blocks: u64) -> Result<(), Error> {
        let work = self.composer.deallocate(slba, blocks)?;
        self.run(work).map(drop)
    }

    /// Copies ranges, of a first block and a number of blocks each, to blocks from `sdlba`
    /// on, one behind the other. The data stay where the namespace is. With many ranges or
    /// long ones, these are several commands, in any order.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::NotOffered`], or the connection is lost.
    pub fn copy(&mut self, ranges: &[(u64, u64)], sdlba: u64) -> Result<(), Error> {
        let work = self.composer.copy(ranges, sdlba)?;
        self.run(work).map(drop)
    }

    /// Any I/O command, as it is: a status other than success is no error here.
    ///
    /// # Errors
    /// The connection is lost, or the command took too long.
    pub fn passthrough(&mut self, sqe: &Sqe, payload: Payload) -> Result<Completion, Error> {
        let done = self.run(Work::as_it_is(sqe, payload))?;
        Ok(done.into_completion())
    }

    fn send(&mut self, opcode: IoOpcode, slba: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut at = slba;
        for part in bytes.chunks(PIECE) {
            self.move_all(opcode, at, Payload::Write(Buffer::from(part)))?;
            at = at.wrapping_add((part.len() / self.block_size as usize) as u64);
        }
        Ok(())
    }

    fn move_all(&mut self, opcode: IoOpcode, slba: u64, payload: Payload) -> Result<Done, Error> {
        let transfer = self.controller.capabilities().transfer;
        let work = self.composer.moving(opcode, slba, payload, transfer)?;
        self.run(work)?.whole()
    }

    /// Carries out all commands, as many at a time as the queue holds.
    fn run(&mut self, mut work: Work) -> Result<Done, Error> {
        let timeout = self.controller.command_timeout();
        let queue = &mut *self.queue;
        let job = queue.hold(std::mem::replace(&mut work.buffers, Buffers::none()));
        let mut completions = Vec::new();
        let mut under_way = 0;
        let mut outcome = Ok(());
        let mut last = None;
        let mut last_progress = Instant::now();
        loop {
            while queue.room() > 0
                && let Some((number, sqe, range)) = work.take()
            {
                let part = Part {
                    job,
                    at: range.start,
                    data: work.direction.of(range.len()),
                };
                // There is room.
                under_way += usize::from(queue.enqueue_part(&sqe, part, number.into()));
            }
            if under_way == 0 {
                break;
            }
            queue.poll(&mut completions)?;
            if completions.is_empty() {
                let left = timeout.saturating_sub(last_progress.elapsed());
                if left.is_zero() {
                    queue.give_up();
                    return Err(Error::Timeout {
                        command: work.name,
                        after: timeout,
                    });
                }
                queue.wait(left)?;
                continue;
            }
            last_progress = Instant::now();
            for done in completions.drain(..) {
                under_way -= 1;
                work.received += done.received;
                let ended = match work.checked {
                    true => check(&done, work.name, work.opcode),
                    false => Ok(()),
                };
                if ended.is_err() {
                    // Those under way are waited for all the same, so that the queue is clean.
                    work.stop();
                    outcome = outcome.and(ended);
                }
                last = Some(done.cqe);
            }
        }
        work.buffers = queue.release(job);
        outcome.map(|()| work.done(last))
    }
}

/// Bytes of a namespace's blocks, if it can be used; a command has up to `transfer` bytes.
pub(super) fn block_size_of(
    identify: &IdentifyNamespace,
    nsid: Nsid,
    transfer: u32,
) -> Result<u32, Error> {
    let unusable = |why| Error::UnusableNamespace { nsid: nsid.0, why };
    namespace::block_size(identify, transfer).map_err(unusable)
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace")
            .field("nsid", &self.nsid)
            .field("block_size", &self.block_size)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}
