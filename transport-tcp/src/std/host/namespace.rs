//! A namespace, as blocking calls.
use std::fmt;

use nvmf_core::host::command;
use nvmf_core::wire::identify::IdentifyNamespace;
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::range::DsmRange;
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use zerocopy::IntoBytes;

use super::super::buffer::Buffer;
use super::commands::Payload;
use super::controller::{Controller, IoQueue, buffer_of, call, check};
use super::error::Error;
use super::queue::Completion;

/// Blocks that one command can name (NLB).
pub(super) const MAX_BLOCKS: u64 = 0x1_0000;

/// Data of a command, bytes, where the controller would take more.
pub(super) const ENOUGH: u64 = 1 << 20;

/// A namespace with a queue of its own. Data of any length is moved by as many
/// commands as it takes, several of them at a time.
pub struct Namespace {
    // In front of the controller, which is shut down last.
    queue: IoQueue,
    controller: Controller,
    nsid: Nsid,
    block_size: u32,
    blocks: u64,
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
        Ok(Self {
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

    /// Reads whole blocks from block `slba` on.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::NotWholeBlocks`], or the connection is lost.
    pub fn read(&mut self, slba: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let command = "Read";
        self.each(
            slba,
            bytes.len(),
            IoOpcode::Read,
            command,
            |range, done| match done {
                None => Ok(Payload::Read(Buffer::zeroed(range.len()))),
                Some(done) if done.received == range.len() => {
                    bytes[range].copy_from_slice(done.data());
                    Ok(Payload::Nothing)
                }
                Some(_) => Err(Error::Nonsense { command }),
            },
        )
    }

    /// Writes whole blocks from block `slba` on.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::NotWholeBlocks`], or the connection is lost.
    pub fn write(&mut self, slba: u64, bytes: &[u8]) -> Result<(), Error> {
        self.send(slba, bytes, IoOpcode::Write, "Write")
    }

    /// Compares whole blocks from block `slba` on with what is stored.
    ///
    /// # Errors
    /// [`Error::Failed`] with [`Status::COMPARE_FAILURE`](nvmf_core::wire::status::Status::COMPARE_FAILURE)
    /// if they differ, and those of [`Namespace::write`].
    pub fn compare(&mut self, slba: u64, bytes: &[u8]) -> Result<(), Error> {
        self.send(slba, bytes, IoOpcode::Compare, "Compare")
    }

    /// Makes what was written before safe from a loss of power.
    ///
    /// # Errors
    /// [`Error::Failed`], or the connection is lost.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.io(&command::flush(self.nsid), Payload::Nothing, "Flush")
    }

    /// Writes zeroes to `blocks` blocks, without sending them.
    ///
    /// # Errors
    /// [`Error::Failed`], or the connection is lost.
    pub fn write_zeroes(&mut self, slba: u64, blocks: u64) -> Result<(), Error> {
        let mut done = 0;
        while done < blocks {
            let nlb = (blocks - done).min(MAX_BLOCKS) as u32;
            let sqe = command::blocks(IoOpcode::WriteZeroes, self.nsid, slba + done, nlb);
            self.io(&sqe, Payload::Nothing, "Write Zeroes")?;
            done += u64::from(nlb);
        }
        Ok(())
    }

    /// Says that `blocks` blocks are not needed. What they read as is up to the controller.
    ///
    /// # Errors
    /// [`Error::Failed`], or the connection is lost.
    pub fn deallocate(&mut self, slba: u64, blocks: u64) -> Result<(), Error> {
        let mut done = 0;
        while done < blocks {
            let nlb = u32::try_from(blocks - done).unwrap_or(u32::MAX);
            let range = DsmRange::new(slba + done, nlb);
            let payload = Payload::Write(buffer_of(range.as_bytes()));
            self.io(
                &command::deallocate(self.nsid, 1),
                payload,
                "Dataset Management",
            )?;
            done += u64::from(nlb);
        }
        Ok(())
    }

    /// Any I/O command, as it is: a status other than success is no error here.
    ///
    /// # Errors
    /// The connection is lost, or the command took too long.
    pub fn passthrough(&mut self, sqe: &Sqe, payload: Payload) -> Result<Completion, Error> {
        let timeout = self.controller.command_timeout();
        call(
            &mut self.queue,
            sqe,
            payload,
            sqe.io_opcode().name(),
            timeout,
        )
    }

    fn io(&mut self, sqe: &Sqe, payload: Payload, command: &'static str) -> Result<(), Error> {
        let completion = self.passthrough(sqe, payload)?;
        check(&completion, command, sqe.opcode)
    }

    fn send(
        &mut self,
        slba: u64,
        bytes: &[u8],
        opcode: IoOpcode,
        command: &'static str,
    ) -> Result<(), Error> {
        self.each(slba, bytes.len(), opcode, command, |range, done| {
            Ok(match done {
                None => Payload::Write(buffer_of(&bytes[range])),
                Some(_) => Payload::Nothing,
            })
        })
    }

    /// A command for each part of `len` bytes. `part` gives its payload, and is
    /// called again with its completion when it succeeded.
    fn each(
        &mut self,
        slba: u64,
        len: usize,
        opcode: IoOpcode,
        command: &'static str,
        mut part: impl FnMut(std::ops::Range<usize>, Option<&Completion>) -> Result<Payload, Error>,
    ) -> Result<(), Error> {
        let block_size = self.block_size;
        if !len.is_multiple_of(block_size as usize) {
            return Err(Error::NotWholeBlocks { len, block_size });
        }
        let most = u64::from(self.controller.capabilities().transfer)
            .min(ENOUGH)
            .min(MAX_BLOCKS * u64::from(block_size));
        let step = (most - most % u64::from(block_size)) as usize;
        let range = |at: usize| at..len.min(at + step);
        let timeout = self.controller.command_timeout();
        let mut next = 0;
        let mut outcome = Ok(());
        let mut completions = Vec::new();
        let mut last_progress = std::time::Instant::now();
        loop {
            while outcome.is_ok() && next < len && self.queue.outstanding() < self.queue.depth() {
                let range = range(next);
                let at = slba + (next / block_size as usize) as u64;
                let nlb = (range.len() / block_size as usize) as u32;
                let sqe = command::blocks(opcode, self.nsid, at, nlb);
                let payload = part(range.clone(), None)?;
                if self.queue.submit(&sqe, payload, next as u64).is_err() {
                    break;
                }
                next = range.end;
            }
            if self.queue.outstanding() == 0 && (next >= len || outcome.is_err()) {
                return outcome;
            }
            self.queue.poll(&mut completions)?;
            if completions.is_empty() {
                let left = timeout.saturating_sub(last_progress.elapsed());
                if left.is_zero() {
                    self.queue.give_up();
                    return Err(Error::Timeout {
                        command,
                        after: timeout,
                    });
                }
                self.queue.wait(left)?;
                continue;
            }
            last_progress = std::time::Instant::now();
            for done in completions.drain(..) {
                // The others are waited for all the same, so that the queue is clean.
                let ended = check(&done, command, opcode.code())
                    .and_then(|()| part(range(done.tag as usize), Some(&done)).map(drop));
                if outcome.is_ok() {
                    outcome = ended;
                }
            }
        }
    }
}

/// Bytes of a namespace's blocks, if it can be used; a command has up to `transfer` bytes.
pub(super) fn block_size_of(
    identify: &IdentifyNamespace,
    nsid: Nsid,
    transfer: u32,
) -> Result<u32, Error> {
    let unusable = |why| Error::UnusableNamespace { nsid: nsid.0, why };
    let format = identify
        .format()
        .ok_or_else(|| unusable("it has no LBA format"))?;
    if format.ms.get() != 0 {
        return Err(unusable("its blocks have metadata"));
    }
    let block_size = format
        .block_size()
        .filter(|size| (512..=1 << 16).contains(size))
        .ok_or_else(|| unusable("its block size is not 512 bytes to 64 KiB"))?;
    if transfer < block_size {
        return Err(unusable("a block is more than a command moves (MDTS)"));
    }
    Ok(block_size)
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
