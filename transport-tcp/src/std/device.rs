//! What a worker sees of a namespace's storage.
use nvmf_core::block::{BlockDevice, Geometry};

use super::buffer::Buffer;
use super::mapping::Lent;
use super::waker::Waker;

/// The storage of one namespace, shared by the workers that serve it.
pub trait Namespace: Send + Sync {
    /// Size and abilities; constant.
    fn geometry(&self) -> Geometry;

    /// How hosts know it; constant.
    fn identity(&self) -> Identity;

    /// A worker's own handle. Whenever [`BlockDevice::poll`] of the handle has
    /// something to return, `waker` is called.
    fn open(&self, waker: &Waker) -> Box<dyn Device>;
}

/// One worker's handle on a [`Namespace`].
///
/// It is polled before its worker sleeps, if anything was submitted. When it answers
/// [`Submit::Busy`](nvmf_core::block::Submit::Busy), requests of this same handle are under
/// way, so a completion to retry after will come.
/// Dropping it drops what is under way, buffers included, as it ends.
pub trait Device: BlockDevice<Buffer = Buffer> + Send {
    /// The stored bytes `byte .. byte + len`, in place, to send from; `None`
    /// when they are not in memory or out of range.
    ///
    /// If [`BlockDevice::lends`], every range of at most 256 MiB within the
    /// device is lent in full, which is more than one command can ask for.
    /// The bytes may change under the kernel's eyes when another command writes
    /// them. So a data digest, which must match what is sent, needs [`Device::copy`].
    fn lend(&self, byte: u64, len: usize) -> Option<Lent<'_>> {
        let _ = (byte, len);
        None
    }

    /// Copies out stored bytes from `byte` on that [`Device::lend`] would lend; false when it
    /// would not.
    fn copy(&self, byte: u64, into: &mut [u8]) -> bool {
        let _ = (byte, into);
        false
    }

    /// The worker has freed its buffers, since it serves nobody: so may the device what it keeps
    /// for them.
    fn rest(&mut self) {}
}

/// The identifiers of a namespace (NVM Express Base Specification, Namespace
/// Identification Descriptor), each in the byte order of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// UUID (NIDT 3h), as RFC 9562 lays it out.
    pub uuid: [u8; 16],
    /// NGUID (NIDT 2h).
    pub nguid: [u8; 16],
    /// EUI64 (NIDT 1h).
    pub eui64: [u8; 8],
}
