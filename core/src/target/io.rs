//! What an I/O command asks of a namespace (NVM Command Set 1.0, section 3).
//!
//! A command is one device operation, or (Dataset Management, Flush of all
//! namespaces) several, one after the other.
use zerocopy::FromBytes;

use super::{Backend, Catalog, Namespace, NamespaceRef, Subsystem};
use crate::block::{Extent, Op};
use crate::command::io::{Blocks, DsmRange, IoCommand};
use crate::wire::ids::Nsid;
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;

/// Bytes of one range of Dataset Management.
const DSM_RANGE: u32 = 16;
const _: () = assert!(DSM_RANGE as usize == size_of::<DsmRange>());

/// What a command does first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// It is done.
    Reply(Status),
    /// `len` bytes from the host, for each operation that [`go_on`] names.
    Several {
        /// How many.
        len: u32,
    },
    /// Data to read and send.
    Read(NamespaceRef, Extent),
    /// One operation, with `len` bytes from the host, neither fewer nor more.
    Operation {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        op: Op,
        /// How many; 0 for one without data.
        len: u32,
    },
}

/// What a command of several operations does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is done.
    Reply(Status),
    /// An operation, with the data that the command has.
    Submit(NamespaceRef, Op),
}

/// Checks a command that arrived on an I/O queue of `subsystem`.
pub fn begin<E: Backend>(sqe: &Sqe, subsystem: usize, env: &E) -> First {
    let Some(view) = env.catalog().subsystem(subsystem) else {
        return First::Reply(Status::INTERNAL_ERROR);
    };
    let command = IoCommand::decode(sqe);
    if let IoCommand::Other(_) = command {
        return First::Reply(Status::INVALID_OPCODE.with_dnr());
    }
    if matches!(command, IoCommand::Flush { nsid: Nsid::ALL }) {
        return First::Several { len: 0 };
    }
    let Some(namespace) = view.namespace(sqe.nsid()) else {
        return First::Reply(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
    };
    let place = NamespaceRef {
        subsystem,
        nsid: namespace.nsid,
    };
    let transfer = Some(env.limits().transfer);
    let with_data = |op, extent: Extent| First::Operation {
        namespace: place,
        op,
        len: u32::try_from(extent.len).unwrap_or(u32::MAX),
    };
    let plain = |op| First::Operation {
        namespace: place,
        op,
        len: 0,
    };
    let first = match command {
        IoCommand::Read(blocks) => {
            extent(namespace, &blocks, transfer).map(|extent| First::Read(place, extent))
        }
        IoCommand::Write(blocks) => writable(namespace)
            .and_then(|()| extent(namespace, &blocks, transfer))
            .map(|extent| {
                let fua = blocks.fua;
                with_data(Op::Write { extent, fua }, extent)
            }),
        IoCommand::Compare(blocks) => extent(namespace, &blocks, transfer)
            .map(|extent| with_data(Op::Compare(extent), extent)),
        IoCommand::DatasetManagement(dsm) if dsm.ad => {
            writable(namespace).map(|()| First::Several {
                len: u32::from(dsm.ranges).saturating_mul(DSM_RANGE),
            })
        }
        // Hints that are not taken.
        IoCommand::DatasetManagement(_) => Ok(First::Reply(Status::SUCCESS)),
        IoCommand::WriteZeroes { blocks, deallocate } => writable(namespace)
            .and_then(|()| extent(namespace, &blocks, None))
            .map(|extent| {
                plain(Op::WriteZeroes {
                    extent,
                    deallocate,
                    fua: blocks.fua,
                })
            }),
        IoCommand::Flush { .. } => Ok(plain(Op::Flush)),
        IoCommand::Verify(blocks) => {
            extent(namespace, &blocks, None).map(|extent| plain(Op::Verify(extent)))
        }
        _ => Err(Status::INVALID_OPCODE),
    };
    first.unwrap_or_else(|status| First::Reply(status.with_dnr()))
}

/// The operation after `cursor` others, of a command of several that has its data.
pub fn go_on<E: Backend>(sqe: &Sqe, subsystem: usize, cursor: u32, data: &[u8], env: &E) -> Next {
    match env.catalog().subsystem(subsystem) {
        None => Next::Reply(Status::INTERNAL_ERROR),
        Some(view) => match operation(sqe, &view, cursor, data) {
            Ok(None) => Next::Reply(Status::SUCCESS),
            Err(status) => Next::Reply(status.with_dnr()),
            Ok(Some((nsid, op))) => Next::Submit(NamespaceRef { subsystem, nsid }, op),
        },
    }
}

fn operation(
    sqe: &Sqe,
    subsystem: &Subsystem<'_>,
    cursor: u32,
    data: &[u8],
) -> Result<Option<(Nsid, Op)>, Status> {
    match IoCommand::decode(sqe) {
        // Of all namespaces: of one it is a single operation.
        IoCommand::Flush { .. } => {
            let namespace = subsystem.namespaces.get(cursor as usize);
            Ok(namespace.map(|namespace| (namespace.nsid, Op::Flush)))
        }
        IoCommand::DatasetManagement(dsm) => {
            let namespace = subsystem
                .namespace(dsm.nsid)
                .ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
            match <[DsmRange]>::ref_from_prefix_with_elems(data, usize::from(dsm.ranges)) {
                Ok((ranges, _)) => deallocation(namespace, ranges, cursor),
                Err(_) => Err(Status::SGL_DATA_LENGTH_INVALID),
            }
        }
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// The range after `cursor` others. All are checked before the first is acted on.
fn deallocation(
    namespace: &Namespace,
    ranges: &[DsmRange],
    cursor: u32,
) -> Result<Option<(Nsid, Op)>, Status> {
    let mut extents = ranges
        .iter()
        .filter(|range| range.nlb.get() > 0)
        .map(|range| bounded(namespace, range.slba.get(), u64::from(range.nlb.get())));
    if cursor == 0 {
        extents.clone().try_for_each(|extent| extent.map(drop))?;
    }
    match extents.nth(cursor as usize) {
        None => Ok(None),
        Some(extent) => Ok(Some((namespace.nsid, Op::Deallocate(extent?)))),
    }
}

const fn writable(namespace: &Namespace) -> Result<(), Status> {
    if namespace.geometry.read_only {
        Err(Status::NAMESPACE_WRITE_PROTECTED)
    } else {
        Ok(())
    }
}

/// The bytes of the blocks: within the namespace, and of no more than one
/// command may move (MDTS) where it moves them.
fn extent(namespace: &Namespace, blocks: &Blocks, transfer: Option<u32>) -> Result<Extent, Status> {
    let extent = bounded(namespace, blocks.slba, u64::from(blocks.nlb))?;
    match transfer {
        Some(most) if extent.len > u64::from(most) => Err(Status::INVALID_FIELD),
        _ => Ok(extent),
    }
}

fn bounded(namespace: &Namespace, slba: u64, count: u64) -> Result<Extent, Status> {
    let geometry = &namespace.geometry;
    slba.checked_add(count)
        .filter(|end| *end <= geometry.blocks)
        .ok_or(Status::LBA_OUT_OF_RANGE)?;
    // Within the capacity, whose bytes fit 64 bits.
    Ok(Extent {
        byte: slba << geometry.block_shift,
        len: count << geometry.block_shift,
    })
}
