//! The namespace, as requests see it.
use std::sync::atomic::{AtomicBool, Ordering};

use nvmf_core::wire::identify::{DeallocatedRead, Dlfeat, IdentifyNamespace, Nsattr, Nsfeat, Oncs};
use nvmf_core::wire::status::Status;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Association, Error, SharedNamespace};

use super::negotiation::Export;
use super::protocol::{Errno, MAX_PAYLOAD};
use super::request::{Blocks, Operation, Refusal};

/// Zeroes of one write, bytes, where the controller has to be sent them.
const ZEROES: u64 = 256 << 10;

/// A namespace that all connections share.
pub(super) struct Volume {
    namespace: SharedNamespace,
    /// The same, and what it writes is on the medium when a command ends.
    durable: SharedNamespace,
    write_zeroes: Offered,
    deallocate: Offered,
}

/// A command that the controller offers, and may then not know.
#[derive(Default)]
struct Offered {
    unknown: AtomicBool,
}

impl Offered {
    fn is_known(&self) -> bool {
        !self.unknown.load(Ordering::Relaxed)
    }

    /// Whether the controller has declined the command, so that one has to do without: for
    /// good if it does not know it, which is told with what comes `from_now_on`, and once if
    /// it does not like a field.
    fn is_declined(&self, error: &Error, from_now_on: &str) -> bool {
        match error {
            Error::Failed { status, .. } if status.is(Status::INVALID_OPCODE) => {
                if !self.unknown.swap(true, Ordering::Relaxed) {
                    tracing::warn!("{error}: {from_now_on} from now on");
                }
                true
            }
            Error::Failed { status, .. } => status.is(Status::INVALID_FIELD),
            _ => false,
        }
    }
}

impl Volume {
    /// The namespace, and what clients are told of it.
    pub(super) fn new(
        association: &Association,
        namespace: SharedNamespace,
        name: Option<String>,
        read_only: bool,
    ) -> Result<(Self, Export), Error> {
        let identify = association.identify_namespace(namespace.nsid()).wait()?;
        let (block_size, nqn) = (namespace.block_size(), association.subnqn());
        let export = Export {
            name: name.unwrap_or_else(|| nqn.to_string()),
            description: format!("namespace {} of {nqn}", namespace.nsid().0),
            size: size(&namespace),
            block_size,
            preferred: preferred(&identify, block_size),
            read_only: read_only || identify.nsattr.contains(Nsattr::CWP),
            trim: namespace.offers(Oncs::NVMDSMSV),
            write_zeroes: namespace.offers(Oncs::NVMWZSV),
            deallocated_is_zero: identify.dlfeat.contains(Dlfeat::WZDS)
                && identify.dlfeat.read_behavior() == DeallocatedRead::Zeroes,
        };
        let volume = Self {
            durable: namespace.with_fua(true),
            namespace,
            write_zeroes: Offered::default(),
            deallocate: Offered::default(),
        };
        Ok((volume, export))
    }

    /// Bytes that there are now.
    pub(super) fn size(&self) -> u64 {
        size(&self.namespace)
    }

    /// Does what was asked for; a read returns its data.
    pub(super) async fn perform(
        &self,
        operation: Operation,
        data: Option<Buffer>,
    ) -> Result<Option<Buffer>, Refusal> {
        match operation {
            Operation::Read(Blocks { slba, count }) => {
                // No more than a request may have.
                let len = count as usize * self.namespace.block_size() as usize;
                let read = self.namespace.read(slba, Buffer::zeroed(len)).await;
                return read.map(Some).map_err(refusal);
            }
            Operation::Write { blocks, fua } => {
                if let Some(data) = data {
                    let write = self.with_fua(fua).write(blocks.slba, data);
                    write.await.map_err(refusal)?;
                }
            }
            Operation::Flush => self.namespace.flush().await.map_err(refusal)?,
            Operation::Trim { blocks, fua } => {
                self.trim(blocks).await?;
                if fua {
                    self.namespace.flush().await.map_err(refusal)?;
                }
            }
            Operation::WriteZeroes {
                blocks,
                fua,
                deallocate,
                fast,
            } => {
                let namespace = self.with_fua(fua);
                if !self.zero(namespace, blocks, deallocate).await? {
                    if fast {
                        return Err(Refusal::not_faster());
                    }
                    self.send_zeroes(namespace, blocks).await?;
                }
            }
        }
        Ok(None)
    }

    fn with_fua(&self, fua: bool) -> &SharedNamespace {
        if fua { &self.durable } else { &self.namespace }
    }

    /// Deallocates, if the controller can: it is a hint.
    async fn trim(&self, Blocks { slba, count }: Blocks) -> Result<(), Refusal> {
        if !self.deallocate.is_known() {
            return Ok(());
        }
        match self.namespace.deallocate(slba, count).await {
            Err(error)
                if self
                    .deallocate
                    .is_declined(&error, "nothing is deallocated") =>
            {
                Ok(())
            }
            outcome => outcome.map_err(refusal),
        }
    }

    /// Writes zeroes without sending them. False if the controller cannot, although it says so.
    async fn zero(
        &self,
        namespace: &SharedNamespace,
        Blocks { slba, count }: Blocks,
        deallocate: bool,
    ) -> Result<bool, Refusal> {
        if !self.write_zeroes.is_known() {
            return Ok(false);
        }
        let zero = match deallocate {
            true => namespace.deallocate_to_zeroes(slba, count),
            false => namespace.write_zeroes(slba, count),
        };
        match zero.await {
            Err(error)
                if self
                    .write_zeroes
                    .is_declined(&error, "zeroes are sent as data") =>
            {
                Ok(false)
            }
            outcome => outcome.map(|()| true).map_err(refusal),
        }
    }

    async fn send_zeroes(
        &self,
        namespace: &SharedNamespace,
        Blocks { slba, count }: Blocks,
    ) -> Result<(), Refusal> {
        let block_size = u64::from(namespace.block_size());
        let step = (ZEROES / block_size).max(1);
        let mut done = 0;
        while done < count {
            let some = step.min(count - done);
            let zeroes = Buffer::zeroed((some * block_size) as usize);
            namespace
                .write(slba + done, zeroes)
                .await
                .map_err(refusal)?;
            done += some;
        }
        Ok(())
    }
}

fn size(namespace: &SharedNamespace) -> u64 {
    namespace
        .blocks()
        .saturating_mul(namespace.block_size().into())
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
fn refusal(error: Error) -> Refusal {
    let errno = match &error {
        Error::Failed { status, .. } => {
            tracing::warn!("{error}");
            errno(*status)
        }
        // The connection, of which its events tell.
        _ => Errno::Io,
    };
    Refusal::new(errno, error.to_string())
}

fn errno(status: Status) -> Errno {
    [
        (Status::NAMESPACE_WRITE_PROTECTED, Errno::Perm),
        (Status::RESERVATION_CONFLICT, Errno::Perm),
        (Status::CAPACITY_EXCEEDED, Errno::NoSpace),
    ]
    .into_iter()
    .find(|(code, _)| status.is(*code))
    .map_or(Errno::Io, |(_, errno)| errno)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn the_preferred_size_is_a_power_of_two() {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.npwg = 99.into();
        assert_eq!(preferred(&identify, 512), 4096);
        assert_eq!(preferred(&identify, 65_536), 65_536);
        identify.nsfeat = Nsfeat::OPTPERF;
        assert_eq!(preferred(&identify, 512), 65_536);
        identify.npwg = 0.into();
        assert_eq!(preferred(&identify, 512), 4096);
        identify.npwg = u16::MAX.into();
        assert_eq!(preferred(&identify, 65_536), MAX_PAYLOAD);
    }

    fn failed(status: Status) -> Error {
        Error::Failed {
            command: "Write",
            opcode: 1,
            status,
        }
    }

    #[test]
    fn only_a_command_that_is_unknown_is_not_tried_again() {
        let offered = Offered::default();
        for (error, declined, known) in [
            (failed(Status::UNRECOVERED_ERROR), false, true),
            (Error::FailFast, false, true),
            (failed(Status::INVALID_FIELD), true, true),
            (failed(Status::INVALID_FIELD.with_dnr()), true, true),
            (failed(Status::INVALID_OPCODE.with_dnr()), true, false),
            (failed(Status::UNRECOVERED_ERROR), false, false),
        ] {
            assert_eq!(offered.is_declined(&error, "no more"), declined, "{error}");
            assert_eq!(offered.is_known(), known, "{error}");
        }
    }

    #[test]
    fn statuses_become_errors() {
        for (status, expected) in [
            (Status::CAPACITY_EXCEEDED.with_dnr(), Errno::NoSpace),
            (Status::NAMESPACE_WRITE_PROTECTED, Errno::Perm),
            (Status::UNRECOVERED_ERROR, Errno::Io),
        ] {
            let error = failed(status);
            let refusal = refusal(error);
            assert_eq!(refusal.errno, expected);
            assert!(refusal.message.starts_with("Write failed: "));
        }
        assert_eq!(refusal(Error::FailFast).errno, Errno::Io);
    }
}
