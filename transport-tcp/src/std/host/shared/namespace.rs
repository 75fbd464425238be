//! A namespace that many threads and tasks use.
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nvmf_core::host::command;
use nvmf_core::wire::identify::{
    Cns, IdentifyController, IdentifyNamespace, NamespaceDescriptor, NvmController, Oncs,
    descriptors,
};
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::range::{CopyRange, DsmRange};
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use zerocopy::IntoBytes;

use super::super::super::buffer::Buffer;
use super::super::commands::Payload;
use super::super::error::Error;
use super::super::namespace::{ENOUGH, MAX_BLOCKS, block_size_of};
use super::super::queue::{Completion, Full};
use super::association::{Association, Handle, completion, structure, urgent};
use super::lane::Lane;
use super::request::{Done, Request};
use super::work::{Blocks, Plan, Work};

/// A namespace, for any number of threads and async tasks. Clones are the same namespace.
///
/// Each call returns a [`Request`], which is a future and can also be waited for. Its
/// commands go to the queue with the least to do. Data of any length are moved by as many
/// commands as it takes. A call for which there is no room waits in line, with its
/// buffers, and is sent in its turn; [`SharedNamespace::try_read`] and its like refuse
/// instead.
///
/// When the connection is lost, calls wait for the next one and are sent again, as
/// [`Options::recovery`](super::super::Options::recovery) says; after it,
/// the namespace is looked at: if it is another one, calls fail with
/// [`Error::NamespaceReplaced`].
#[derive(Clone)]
pub struct SharedNamespace {
    handle: Arc<Handle>,
    known: Arc<Known>,
    limits: Arc<Limits>,
    fua: bool,
}

/// What is known of a namespace.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) nsid: Nsid,
    block_size: u32,
    blocks: AtomicU64,
    names: Names,
    /// Another namespace has its NSID now.
    replaced: AtomicBool,
}

/// The globally unique names of a namespace; zeroes where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Names {
    eui64: [u8; 8],
    nguid: [u8; 16],
    uuid: [u8; 16],
}

/// What the controller allows, in blocks.
#[derive(Debug)]
struct Limits {
    offers: Oncs,
    write_zeroes: u64,
    verify: u64,
    /// Of Copy: blocks of a range, blocks of all of them, ranges.
    copy: (u64, u64, usize),
}

impl Known {
    /// Why commands must not be sent, if that is so.
    pub(super) fn refusal(&self) -> Option<Error> {
        let nsid = self.nsid.0;
        self.replaced
            .load(Ordering::Acquire)
            .then_some(Error::NamespaceReplaced { nsid })
    }

    /// Asks what the namespace is now; whether that has changed.
    pub(super) async fn look_again(&self, admin: &Arc<Lane>) -> bool {
        let Ok(identify) = identify(admin, self.nsid).await else {
            // It is not there: the controller refuses its commands.
            return true;
        };
        if identify.nsze.get() == 0 {
            return true;
        }
        let names = names(admin, self.nsid, &identify).await;
        let block_size = identify.format().and_then(|format| format.block_size());
        if names != self.names || block_size != Some(self.block_size) {
            self.replaced.store(true, Ordering::Release);
            return true;
        }
        let blocks = identify.nsze.get();
        self.blocks.swap(blocks, Ordering::Relaxed) != blocks
    }
}

async fn identify(admin: &Arc<Lane>, nsid: Nsid) -> Result<Box<IdentifyNamespace>, Error> {
    let sqe = command::identify(Cns::Namespace, nsid);
    urgent(admin, &sqe, Payload::Read(Buffer::zeroed(4096)), structure).await
}

async fn names(admin: &Arc<Lane>, nsid: Nsid, identify: &IdentifyNamespace) -> Names {
    let mut names = Names {
        eui64: identify.eui64,
        nguid: identify.nguid,
        uuid: [0; 16],
    };
    let sqe = command::identify(Cns::NamespaceDescriptors, nsid);
    let payload = Payload::Read(Buffer::zeroed(4096));
    // Controllers before NVMe 1.3 have none.
    if let Ok(list) = urgent(admin, &sqe, payload, bytes).await {
        for descriptor in descriptors(&list).flatten() {
            if let NamespaceDescriptor::Uuid(uuid) = descriptor {
                names.uuid = uuid;
            }
        }
    }
    names
}

impl SharedNamespace {
    pub(super) async fn open(association: Association, nsid: Nsid) -> Result<Self, Error> {
        let active = association.active_namespaces().await?;
        if !active.contains(&nsid) {
            return Err(Error::NoSuchNamespace {
                nsid: nsid.0,
                active: active.into_iter().map(|nsid| nsid.0).collect(),
            });
        }
        let handle = Arc::clone(association.handle());
        let admin = &handle.inner.lanes[0];
        let controller = association.identify().await?;
        let identify = association.identify_namespace(nsid).await?;
        let found = association.capabilities();
        let block_size = block_size_of(&identify, nsid, found.transfer)?;
        let known = Arc::new(Known {
            nsid,
            block_size,
            blocks: AtomicU64::new(identify.nsze.get()),
            names: names(admin, nsid, &identify).await,
            replaced: AtomicBool::new(false),
        });
        handle.inner.remember(&known);
        let page = found.cap.page_size_min();
        let sqe = command::identify(Cns::CommandSetController, Nsid(0));
        let payload = Payload::Read(Buffer::zeroed(4096));
        // Controllers before NVMe 2.0 have none, and no limits of that kind.
        let nvm: Option<Box<NvmController>> = urgent(admin, &sqe, payload, structure).await.ok();
        let limits = Limits::new(&controller, &identify, nvm.as_deref(), page, block_size);
        Ok(Self {
            handle,
            known,
            limits: Arc::new(limits),
            fua: false,
        })
    }
}

impl SharedNamespace {
    /// Which namespace it is.
    #[must_use]
    pub fn nsid(&self) -> Nsid {
        self.known.nsid
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.known.block_size
    }

    /// Blocks that there are, as far as is known.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.known.blocks.load(Ordering::Relaxed)
    }

    /// Whether the controller offers an optional command, such as [`Oncs::NVMCPYS`].
    #[must_use]
    pub fn offers(&self, command: Oncs) -> bool {
        self.limits.offers.contains(command)
    }

    /// The same namespace, with FUA or without: with it, what a command has written or
    /// read is on the medium, safe from a loss of power, when the command ends.
    #[must_use]
    pub fn with_fua(&self, fua: bool) -> Self {
        Self {
            fua,
            ..self.clone()
        }
    }

    /// Fills the buffer with blocks from block `slba` on.
    pub fn read(&self, slba: u64, buffer: impl Into<Buffer>) -> Request<Buffer> {
        self.move_one(IoOpcode::Read, slba, Payload::Read(buffer.into()))
    }

    /// Like [`SharedNamespace::read`], into several buffers, one after the other. Their
    /// sum is a whole number of blocks.
    pub fn read_vectored(&self, slba: u64, buffers: Vec<Buffer>) -> Request<Vec<Buffer>> {
        self.move_many(IoOpcode::Read, slba, Payload::ReadVectored(buffers))
    }

    /// Writes the buffer to blocks from block `slba` on.
    pub fn write(&self, slba: u64, buffer: impl Into<Buffer>) -> Request<Buffer> {
        self.move_one(IoOpcode::Write, slba, Payload::Write(buffer.into()))
    }

    /// Like [`SharedNamespace::write`], from several buffers, one after the other.
    pub fn write_vectored(&self, slba: u64, buffers: Vec<Buffer>) -> Request<Vec<Buffer>> {
        self.move_many(IoOpcode::Write, slba, Payload::WriteVectored(buffers))
    }

    /// Compares the buffer with blocks from block `slba` on. If they differ, the call fails
    /// with the status Compare Failure.
    pub fn compare(&self, slba: u64, buffer: impl Into<Buffer>) -> Request<Buffer> {
        match self.unless_offered(Oncs::NVMCMPS, "Compare") {
            Some(error) => Request::ready(Err(error)),
            None => self.move_one(IoOpcode::Compare, slba, Payload::Write(buffer.into())),
        }
    }

    /// Makes what was written before safe from a loss of power.
    pub fn flush(&self) -> Request<()> {
        let plan = Plan::One(command::flush(self.known.nsid));
        self.submit(Work::io("Flush", plan, Payload::Nothing), nothing)
    }

    /// Writes zeroes to `blocks` blocks, without sending them.
    pub fn write_zeroes(&self, slba: u64, blocks: u64) -> Request<()> {
        self.zero(slba, blocks, self.template(IoOpcode::WriteZeroes))
    }

    /// Like [`SharedNamespace::write_zeroes`], and the controller may deallocate the blocks
    /// (DEAC). For namespaces that say that such blocks read as zeroes (DLFEAT).
    pub fn deallocate_to_zeroes(&self, slba: u64, blocks: u64) -> Request<()> {
        let mut sqe = self.template(IoOpcode::WriteZeroes);
        sqe.cdw12 = (sqe.cdw12.get() | command::DEAC).into();
        self.zero(slba, blocks, sqe)
    }

    /// Lets the controller read `blocks` blocks, without their data being sent.
    pub fn verify(&self, slba: u64, blocks: u64) -> Request<()> {
        let step = self.limits.verify;
        match self.unless_offered(Oncs::NVMVFYS, "Verify") {
            Some(error) => Request::ready(Err(error)),
            None => self.without_data(self.template(IoOpcode::Verify), slba, blocks, step),
        }
    }

    /// Says that `blocks` blocks are not needed. What they read as is up to the controller.
    pub fn deallocate(&self, slba: u64, blocks: u64) -> Request<()> {
        if let Some(error) = self.unless_offered(Oncs::NVMDSMSV, "Dataset Management") {
            return Request::ready(Err(error));
        }
        let ranges: Vec<DsmRange> = cut(slba, blocks, u64::from(u32::MAX))
            .map(|(slba, blocks)| DsmRange::new(slba, blocks as u32))
            .collect();
        let mut list = Vec::new();
        let mut at = 0;
        for some in ranges.chunks(DsmRange::MAX.into()) {
            let len = size_of_val(some);
            let sqe = command::deallocate(self.known.nsid, some.len() as u16);
            list.push((sqe, at..at + len));
            at += len;
        }
        let payload = Payload::Write(Buffer::from(ranges.as_bytes()));
        self.submit(
            Work::io("Dataset Management", Plan::List(list), payload),
            nothing,
        )
    }

    /// Copies ranges, of a first block and a number of blocks each, to blocks from `sdlba`
    /// on, one behind the other. The data stay where the namespace is. With many ranges or
    /// long ones, these are several commands, in any order.
    ///
    /// Ends with [`Error::NotOffered`], where the controller has no Copy.
    pub fn copy(&self, ranges: &[(u64, u64)], sdlba: u64) -> Request<()> {
        if let Some(error) = self.unless_offered(Oncs::NVMCPYS, "Copy") {
            return Request::ready(Err(error));
        }
        let (ranges, list) = self.limits.copies(self.known.nsid, ranges, sdlba, self.fua);
        let payload = Payload::Write(Buffer::from(ranges.as_bytes()));
        self.submit(Work::io("Copy", Plan::List(list), payload), nothing)
    }

    /// Any I/O command, as it is: a status other than success is no error here. NSID is
    /// to be this namespace's.
    pub fn passthrough(&self, sqe: &Sqe, payload: Payload) -> Request<Completion> {
        self.submit(self.as_it_is(sqe, payload), completion)
    }

    /// Like [`SharedNamespace::read`], if there is room.
    ///
    /// # Errors
    /// [`Full`], with the buffer.
    pub fn try_read(&self, slba: u64, buffer: Buffer) -> Result<Request<Buffer>, Full> {
        self.try_move(IoOpcode::Read, slba, Payload::Read(buffer))
    }

    /// Like [`SharedNamespace::write`], if there is room.
    ///
    /// # Errors
    /// [`Full`], with the buffer.
    pub fn try_write(&self, slba: u64, buffer: Buffer) -> Result<Request<Buffer>, Full> {
        self.try_move(IoOpcode::Write, slba, Payload::Write(buffer))
    }

    /// Like [`SharedNamespace::passthrough`], if there is room.
    ///
    /// # Errors
    /// [`Full`], with the payload.
    pub fn try_passthrough(
        &self,
        sqe: &Sqe,
        payload: Payload,
    ) -> Result<Request<Completion>, Full> {
        let lane = self.handle.inner.idlest();
        if !lane.claim() {
            return Err(Full(payload));
        }
        let work = self.as_it_is(sqe, payload);
        Ok(self.handle.submit(lane, work, true, completion))
    }

    #[cfg(test)]
    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn unless_offered(&self, bit: Oncs, command: &'static str) -> Option<Error> {
        (!self.offers(bit)).then_some(Error::NotOffered { command })
    }

    fn as_it_is(&self, sqe: &Sqe, payload: Payload) -> Work {
        let mut work = Work::io(sqe.io_opcode().name(), Plan::One(*sqe), payload);
        work.checked = false;
        work.namespace = Some(Arc::clone(&self.known));
        work
    }

    fn submit<T>(&self, mut work: Work, then: fn(Done) -> Result<T, Error>) -> Request<T> {
        if work.is_empty() {
            return Request::ready(work.nothing_done().and_then(then));
        }
        work.namespace = Some(Arc::clone(&self.known));
        let lane = self.handle.inner.idlest();
        self.handle.submit(lane, work, false, then)
    }

    fn move_one(&self, opcode: IoOpcode, slba: u64, payload: Payload) -> Request<Buffer> {
        match self.moving(opcode, slba, payload) {
            Ok(work) => self.submit(work, one),
            Err((error, _)) => Request::ready(Err(error)),
        }
    }

    fn move_many(&self, opcode: IoOpcode, slba: u64, payload: Payload) -> Request<Vec<Buffer>> {
        match self.moving(opcode, slba, payload) {
            Ok(work) => self.submit(work, many),
            Err((error, _)) => Request::ready(Err(error)),
        }
    }

    fn try_move(
        &self,
        opcode: IoOpcode,
        slba: u64,
        payload: Payload,
    ) -> Result<Request<Buffer>, Full> {
        let mut work = match self.moving(opcode, slba, payload) {
            Ok(work) => work,
            Err((error, _)) => return Ok(Request::ready(Err(error))),
        };
        if work.is_empty() {
            return Ok(Request::ready(work.nothing_done().and_then(one)));
        }
        let lane = self.handle.inner.idlest();
        if !lane.claim() {
            return Err(Full(work.into_payload()));
        }
        work.namespace = Some(Arc::clone(&self.known));
        Ok(self.handle.submit(lane, work, true, one))
    }

    /// Commands that move all of the payload.
    fn moving(
        &self,
        opcode: IoOpcode,
        slba: u64,
        payload: Payload,
    ) -> Result<Work, (Error, Payload)> {
        let block_size = self.known.block_size;
        let len = payload.len();
        if !len.is_multiple_of(block_size as usize) {
            return Err((Error::NotWholeBlocks { len, block_size }, payload));
        }
        let most = self.handle.inner.transfer().min(ENOUGH) / u64::from(block_size);
        let plan = Plan::Blocks(Blocks {
            sqe: self.template(opcode),
            slba,
            blocks: len as u64 / u64::from(block_size),
            step: most.clamp(1, MAX_BLOCKS),
            block_size: block_size as usize,
        });
        Ok(Work::io(opcode.name(), plan, payload))
    }

    fn zero(&self, slba: u64, blocks: u64, sqe: Sqe) -> Request<()> {
        let step = self.limits.write_zeroes;
        match self.unless_offered(Oncs::NVMWZSV, "Write Zeroes") {
            Some(error) => Request::ready(Err(error)),
            None => self.without_data(sqe, slba, blocks, step),
        }
    }

    fn without_data(&self, sqe: Sqe, slba: u64, blocks: u64, step: u64) -> Request<()> {
        let plan = Plan::Blocks(Blocks {
            sqe,
            slba,
            blocks,
            step,
            block_size: 0,
        });
        let name = sqe.io_opcode().name();
        self.submit(Work::io(name, plan, Payload::Nothing), nothing)
    }

    fn template(&self, opcode: IoOpcode) -> Sqe {
        let mut sqe = command::blocks(opcode, self.known.nsid, 0, 1);
        if self.fua {
            sqe.cdw12 = (sqe.cdw12.get() | command::FUA).into();
        }
        sqe
    }
}

impl Limits {
    fn new(
        controller: &IdentifyController,
        namespace: &IdentifyNamespace,
        nvm: Option<&NvmController>,
        page: u32,
        block_size: u32,
    ) -> Self {
        // Log2 of pages, and 0 is no limit.
        let blocks = |log2: u8| match (log2, 1u64.checked_shl(log2.into())) {
            (1.., Some(pages)) => {
                let bytes = pages.saturating_mul(page.into());
                (bytes / u64::from(block_size)).clamp(1, MAX_BLOCKS)
            }
            _ => MAX_BLOCKS,
        };
        let mssrl = u64::from(namespace.mssrl.get());
        let mcl = u64::from(namespace.mcl.get());
        Self {
            offers: controller.oncs,
            write_zeroes: blocks(nvm.map_or(0, |nvm| nvm.wzsl)),
            verify: blocks(nvm.map_or(0, |nvm| nvm.vsl)),
            copy: (
                mssrl.clamp(1, MAX_BLOCKS),
                mcl.max(1),
                namespace.copy_range_count().into(),
            ),
        }
    }

    /// Commands that copy, and the ranges that are their data.
    fn copies(
        &self,
        nsid: Nsid,
        ranges: &[(u64, u64)],
        sdlba: u64,
        fua: bool,
    ) -> (Vec<CopyRange>, Vec<(Sqe, std::ops::Range<usize>)>) {
        let (of_range, of_command, count) = self.copy;
        let pieces = ranges
            .iter()
            .flat_map(|(slba, blocks)| cut(*slba, *blocks, of_range.min(of_command)));
        let (mut all, mut list) = (Vec::new(), Vec::new());
        // The command that is being filled: its first range, its destination, its blocks.
        let (mut first, mut to, mut blocks) = (0, sdlba, 0);
        let mut close = |first: usize, end: usize, to: u64| {
            let mut sqe = command::copy(nsid, to, (end - first) as u16);
            if fua {
                sqe.cdw12 = (sqe.cdw12.get() | command::FUA).into();
            }
            let size = size_of::<CopyRange>();
            list.push((sqe, first * size..end * size));
        };
        for (slba, len) in pieces {
            if all.len() - first == count || blocks + len > of_command {
                close(first, all.len(), to);
                (first, to, blocks) = (all.len(), to.wrapping_add(blocks), 0);
            }
            all.push(CopyRange::new(slba, len as u32));
            blocks += len;
        }
        if all.len() > first {
            close(first, all.len(), to);
        }
        (all, list)
    }
}

/// A range in pieces of at most `step` blocks.
fn cut(slba: u64, blocks: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..blocks.div_ceil(step)).map(move |piece| {
        let first = piece * step;
        (slba.wrapping_add(first), step.min(blocks - first))
    })
}

fn nothing(_: Done) -> Result<(), Error> {
    Ok(())
}

/// All of the data came, or went.
fn whole(done: Done) -> Result<Done, Error> {
    let read = done.opcode == IoOpcode::Read.code();
    if read && done.received != done.buffers.len() {
        return Err(Error::Nonsense { command: done.name });
    }
    Ok(done)
}

fn one(done: Done) -> Result<Buffer, Error> {
    let command = done.name;
    let buffer = whole(done)?.buffers.into_one();
    buffer.ok_or(Error::Nonsense { command })
}

fn many(done: Done) -> Result<Vec<Buffer>, Error> {
    Ok(whole(done)?.buffers.into_vec())
}

/// What came, in a buffer of as many bytes.
fn bytes(done: Done) -> Result<Vec<u8>, Error> {
    let mut bytes = done.buffers.into_one().map_or_else(Vec::new, Vec::from);
    bytes.truncate(done.received);
    Ok(bytes)
}

impl fmt::Debug for SharedNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedNamespace")
            .field("nsid", &self.nsid())
            .field("block_size", &self.block_size())
            .field("blocks", &self.blocks())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_cut_to_what_the_controller_allows() {
        let limits = Limits {
            offers: Oncs::NVMCPYS,
            write_zeroes: 1,
            verify: 1,
            copy: (8, 20, 3),
        };
        let (ranges, list) = limits.copies(Nsid(7), &[(100, 18), (500, 1), (300, 9)], 1000, true);
        let ranges: Vec<_> = ranges.iter().map(|r| (r.slba.get(), r.blocks())).collect();
        let expected = [(100, 8), (108, 8), (116, 2), (500, 1), (300, 8), (308, 1)];
        assert_eq!(ranges, expected);
        let commands: Vec<_> = list
            .iter()
            .map(|(sqe, range)| (sqe.cdw10.get(), sqe.cdw12.get(), range.clone()))
            .collect();
        let fua = 1 << 30;
        assert_eq!(commands, [(1000, fua | 2, 0..96), (1018, fua | 2, 96..192)]);
    }
}
