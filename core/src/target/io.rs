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
    /// Bytes from the host, then [`go_on`]; `exact`: the descriptor must say just that many.
    Fetch {
        /// How many.
        len: u32,
        /// Neither fewer nor more.
        exact: bool,
    },
    /// Data to read and send.
    Read(NamespaceRef, Extent),
    /// An operation without the host's data, then [`go_on`].
    Submit(NamespaceRef, Op),
}

/// What a command does next.
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
    if command == (IoCommand::Flush { nsid: Nsid::ALL }) {
        return go_on(sqe, subsystem, 0, &[], env).into();
    }
    let Some(namespace) = view.namespace(sqe.nsid()) else {
        return First::Reply(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
    };
    let place = NamespaceRef {
        subsystem,
        nsid: namespace.nsid,
    };
    let transfer = env.limits().transfer;
    let first = match command {
        IoCommand::Read(blocks) => {
            extent(namespace, &blocks, Some(transfer)).map(|extent| First::Read(place, extent))
        }
        IoCommand::Write(blocks) => writable(namespace)
            .and_then(|()| extent(namespace, &blocks, Some(transfer)))
            .map(fetch),
        IoCommand::Compare(blocks) => extent(namespace, &blocks, Some(transfer)).map(fetch),
        IoCommand::DatasetManagement(dsm) if dsm.ad => writable(namespace).map(|()| First::Fetch {
            len: u32::from(dsm.ranges).saturating_mul(DSM_RANGE),
            exact: false,
        }),
        // Hints that are not taken.
        IoCommand::DatasetManagement(_) => Ok(First::Reply(Status::SUCCESS)),
        IoCommand::WriteZeroes { .. } => {
            writable(namespace).map(|()| go_on(sqe, subsystem, 0, &[], env).into())
        }
        IoCommand::Flush { .. } | IoCommand::Verify(_) => {
            Ok(go_on(sqe, subsystem, 0, &[], env).into())
        }
        _ => Err(Status::INVALID_OPCODE),
    };
    first.unwrap_or_else(|status| First::Reply(status.with_dnr()))
}

/// The operation after `cursor` others, of a command that has its data.
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
    let command = IoCommand::decode(sqe);
    if command == (IoCommand::Flush { nsid: Nsid::ALL }) {
        let namespace = subsystem.namespaces.get(cursor as usize);
        return Ok(namespace.map(|namespace| (namespace.nsid, Op::Flush)));
    }
    let namespace = subsystem
        .namespace(sqe.nsid())
        .ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
    if let IoCommand::DatasetManagement(dsm) = command {
        let ranges = <[DsmRange]>::ref_from_prefix_with_elems(data, usize::from(dsm.ranges));
        return match ranges {
            Ok((ranges, _)) => deallocation(namespace, ranges, cursor),
            Err(_) => Err(Status::SGL_DATA_LENGTH_INVALID),
        };
    }
    if cursor > 0 {
        return Ok(None);
    }
    let op = match command {
        IoCommand::Flush { .. } => Op::Flush,
        IoCommand::Write(blocks) => Op::Write {
            extent: extent(namespace, &blocks, None)?,
            fua: blocks.fua,
        },
        IoCommand::Compare(blocks) => Op::Compare(extent(namespace, &blocks, None)?),
        IoCommand::Verify(blocks) => Op::Verify(extent(namespace, &blocks, None)?),
        IoCommand::WriteZeroes { blocks, deallocate } => Op::WriteZeroes {
            extent: extent(namespace, &blocks, None)?,
            deallocate,
            fua: blocks.fua,
        },
        _ => return Err(Status::INVALID_OPCODE),
    };
    Ok(Some((namespace.nsid, op)))
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

fn fetch(extent: Extent) -> First {
    First::Fetch {
        len: u32::try_from(extent.len).unwrap_or(u32::MAX),
        exact: true,
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

impl From<Next> for First {
    fn from(next: Next) -> Self {
        match next {
            Next::Reply(status) => Self::Reply(status),
            Next::Submit(namespace, op) => Self::Submit(namespace, op),
        }
    }
}
