//! A namespace that many threads and tasks use.
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nvmf_core::host::command;
use nvmf_core::wire::identify::{
    Cns, IdentifyNamespace, NamespaceDescriptor, NvmController, Oncs, descriptors,
};
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::sqe::{IoOpcode, Sqe};

use super::super::super::buffer::Buffer;
use super::super::commands::Payload;
use super::super::compose::Composer;
use super::super::error::Error;
use super::super::namespace::block_size_of;
use super::super::queue::{Completion, Full};
use super::super::work::Done;
use super::super::work::Work;
use super::association::{Association, Handle, completion, structure, urgent};
use super::lane::Lane;
use super::request::Request;

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
    composer: Composer,
}

/// What is known of a namespace.
#[derive(Debug)]
pub(in super::super) struct Known {
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

impl Known {
    /// Why commands must not be sent, if that is so.
    pub(in super::super) fn refusal(&self) -> Option<Error> {
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
        let composer = Composer::new(
            nsid,
            block_size,
            &controller,
            &identify,
            nvm.as_deref(),
            page,
        );
        Ok(Self {
            handle,
            known,
            composer,
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
        self.composer.offers(command)
    }

    /// The same namespace, with FUA or without: with it, what a command has written or
    /// read is on the medium, safe from a loss of power, when the command ends.
    #[must_use]
    pub fn with_fua(&self, fua: bool) -> Self {
        let mut namespace = self.clone();
        namespace.composer.fua = fua;
        namespace
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
        self.move_one(IoOpcode::Compare, slba, Payload::Write(buffer.into()))
    }

    /// Makes what was written before safe from a loss of power.
    pub fn flush(&self) -> Request<()> {
        self.submit(Ok(self.composer.flush()), nothing)
    }

    /// Writes zeroes to `blocks` blocks, without sending them.
    pub fn write_zeroes(&self, slba: u64, blocks: u64) -> Request<()> {
        self.submit(self.composer.write_zeroes(slba, blocks, false), nothing)
    }

    /// Like [`SharedNamespace::write_zeroes`], and the controller may deallocate the blocks
    /// (DEAC). For namespaces that say that such blocks read as zeroes (DLFEAT).
    pub fn deallocate_to_zeroes(&self, slba: u64, blocks: u64) -> Request<()> {
        self.submit(self.composer.write_zeroes(slba, blocks, true), nothing)
    }

    /// Lets the controller read `blocks` blocks, without their data being sent.
    pub fn verify(&self, slba: u64, blocks: u64) -> Request<()> {
        self.submit(self.composer.verify(slba, blocks), nothing)
    }

    /// Says that `blocks` blocks are not needed. What they read as is up to the controller.
    pub fn deallocate(&self, slba: u64, blocks: u64) -> Request<()> {
        self.submit(self.composer.deallocate(slba, blocks), nothing)
    }

    /// Copies ranges, of a first block and a number of blocks each, to blocks from `sdlba`
    /// on, one behind the other. The data stay where the namespace is. With many ranges or
    /// long ones, these are several commands, in any order.
    ///
    /// Ends with [`Error::NotOffered`], where the controller has no Copy.
    pub fn copy(&self, ranges: &[(u64, u64)], sdlba: u64) -> Request<()> {
        self.submit(self.composer.copy(ranges, sdlba), nothing)
    }

    /// Any I/O command, as it is: a status other than success is no error here. NSID is
    /// to be this namespace's.
    pub fn passthrough(&self, sqe: &Sqe, payload: Payload) -> Request<Completion> {
        self.submit(Ok(Work::as_it_is(sqe, payload)), completion)
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
        let mut work = Work::as_it_is(sqe, payload);
        work.namespace = Some(Arc::clone(&self.known));
        Ok(self.handle.submit(lane, work, true, completion))
    }

    #[cfg(test)]
    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn moving(&self, opcode: IoOpcode, slba: u64, payload: Payload) -> Result<Work, Error> {
        let transfer = self.handle.inner.transfer();
        self.composer.moving(opcode, slba, payload, transfer)
    }

    fn submit<T>(
        &self,
        work: Result<Work, Error>,
        then: fn(Done) -> Result<T, Error>,
    ) -> Request<T> {
        let mut work = match work {
            Ok(work) => work,
            Err(error) => return Request::ready(Err(error)),
        };
        if work.is_empty() {
            return Request::ready(then(work.done(None)));
        }
        work.namespace = Some(Arc::clone(&self.known));
        let lane = self.handle.inner.idlest();
        self.handle.submit(lane, work, false, then)
    }

    fn move_one(&self, opcode: IoOpcode, slba: u64, payload: Payload) -> Request<Buffer> {
        self.submit(self.moving(opcode, slba, payload), one)
    }

    fn move_many(&self, opcode: IoOpcode, slba: u64, payload: Payload) -> Request<Vec<Buffer>> {
        self.submit(self.moving(opcode, slba, payload), many)
    }

    fn try_move(
        &self,
        opcode: IoOpcode,
        slba: u64,
        payload: Payload,
    ) -> Result<Request<Buffer>, Full> {
        let mut work = match self.moving(opcode, slba, payload) {
            Ok(work) => work,
            Err(error) => return Ok(Request::ready(Err(error))),
        };
        if work.is_empty() {
            return Ok(Request::ready(one(work.done(None))));
        }
        let lane = self.handle.inner.idlest();
        if !lane.claim() {
            return Err(Full(work.into_payload()));
        }
        work.namespace = Some(Arc::clone(&self.known));
        Ok(self.handle.submit(lane, work, true, one))
    }
}

fn nothing(_: Done) -> Result<(), Error> {
    Ok(())
}

fn one(done: Done) -> Result<Buffer, Error> {
    let command = done.name;
    let buffer = done.whole()?.buffers.into_one();
    buffer.ok_or(Error::Nonsense { command })
}

fn many(done: Done) -> Result<Vec<Buffer>, Error> {
    Ok(done.whole()?.buffers.into_vec())
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
