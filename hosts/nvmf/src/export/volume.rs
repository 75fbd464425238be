//! The namespace, as requests see it.
use std::sync::{Mutex, PoisonError};

use nvmf_core::wire::identify::{DeallocatedRead, Dlfeat, IdentifyNamespace, Nsattr, Nsfeat, Oncs};
use nvmf_core::wire::status::Status;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Error, Namespace};

use super::negotiation::Export;
use super::protocol::{Errno, MAX_PAYLOAD};
use super::request::{Blocks, Operation, Refusal};

/// A namespace that all connections share.
pub(super) struct Volume {
    namespace: Mutex<Namespace>,
    block_size: u32,
}

impl Volume {
    /// The namespace, and what clients are told of it.
    pub(super) fn new(
        namespace: Namespace,
        name: Option<String>,
        read_only: bool,
    ) -> Result<(Self, Export), Error> {
        let controller = namespace.controller().identify()?;
        let identify = namespace
            .controller()
            .identify_namespace(namespace.nsid())?;
        let block_size = namespace.block_size();
        let export = Export {
            name: name.unwrap_or_else(|| namespace.controller().subnqn().to_string()),
            description: format!(
                "namespace {} of {}",
                namespace.nsid().0,
                namespace.controller().subnqn()
            ),
            size: namespace.blocks().saturating_mul(block_size.into()),
            block_size,
            preferred: preferred(&identify, block_size),
            read_only: read_only || identify.nsattr.contains(Nsattr::CWP),
            trim: controller.oncs.contains(Oncs::NVMDSMSV),
            write_zeroes: controller.oncs.contains(Oncs::NVMWZSV),
            deallocated_is_zero: identify.dlfeat.contains(Dlfeat::WZDS)
                && identify.dlfeat.read_behavior() == DeallocatedRead::Zeroes,
        };
        let volume = Self {
            namespace: Mutex::new(namespace),
            block_size,
        };
        Ok((volume, export))
    }

    /// Does what was asked for; a read returns its data.
    pub(super) async fn perform(
        &self,
        operation: Operation,
        data: Option<Buffer>,
    ) -> Result<Option<Buffer>, Refusal> {
        let mut namespace = self
            .namespace
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let outcome = match operation {
            Operation::Read(Blocks { slba, count }) => {
                let mut buffer = Buffer::zeroed(count as usize * self.block_size as usize);
                return match namespace.read(slba, buffer.as_mut()) {
                    Ok(()) => Ok(Some(buffer)),
                    Err(error) => Err(refusal(&error)),
                };
            }
            Operation::Write { blocks, fua } => namespace
                .write(blocks.slba, data.as_ref().map_or(&[], AsRef::as_ref))
                .and_then(|()| if fua { namespace.flush() } else { Ok(()) }),
            Operation::Flush => namespace.flush(),
            Operation::Trim { blocks, fua } => namespace
                .deallocate(blocks.slba, blocks.count)
                .and_then(|()| if fua { namespace.flush() } else { Ok(()) }),
            Operation::WriteZeroes { blocks, fua, .. } => namespace
                .write_zeroes(blocks.slba, blocks.count)
                .and_then(|()| if fua { namespace.flush() } else { Ok(()) }),
        };
        outcome.map(|()| None).map_err(|error| refusal(&error))
    }
}

/// What one writes best in multiples of, bytes: a power of two, as NBD wants it.
fn preferred(identify: &IdentifyNamespace, block_size: u32) -> u32 {
    let granularity = match identify.nsfeat.contains(Nsfeat::OPTPERF) {
        true => identify.preferred_write_granularity(),
        false => 1,
    };
    granularity
        .checked_mul(block_size)
        .and_then(u32::checked_next_power_of_two)
        .unwrap_or(MAX_PAYLOAD)
        .clamp(block_size.max(4096), MAX_PAYLOAD)
}

/// An error of the namespace in terms of NBD.
fn refusal(error: &Error) -> Refusal {
    let errno = match error {
        Error::Failed { status, .. } if status.is(Status::NAMESPACE_WRITE_PROTECTED) => Errno::Perm,
        Error::Failed { status, .. } if status.is(Status::CAPACITY_EXCEEDED) => Errno::NoSpace,
        _ => Errno::Io,
    };
    Refusal::new(errno, error.to_string())
}
