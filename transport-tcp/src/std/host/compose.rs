//! A namespace's commands, within what its controller allows.
use std::ops::Range;

use nvmf_core::host::command;
use nvmf_core::wire::identify::{IdentifyController, IdentifyNamespace, NvmController, Oncs};
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::range::{CopyRange, DsmRange};
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use zerocopy::IntoBytes;

use super::super::buffer::Buffer;
use super::commands::Payload;
use super::error::Error;
use super::work::{Blocks, Plan, Work};

/// Blocks that one command can name (NLB).
const MAX_BLOCKS: u64 = 0x1_0000;

/// Data of a command, bytes, where the controller would take more.
const ENOUGH: u64 = 1 << 20;

/// Composes a namespace's commands.
#[derive(Clone, Debug)]
pub(super) struct Composer {
    nsid: Nsid,
    block_size: u32,
    limits: Limits,
    /// Force Unit Access.
    pub(super) fua: bool,
}

/// What the controller allows, in blocks.
#[derive(Clone, Debug)]
struct Limits {
    offers: Oncs,
    write_zeroes: u64,
    verify: u64,
    /// Of Copy: blocks of a range, blocks of all of them, ranges.
    copy: (u64, u64, usize),
}

impl Composer {
    /// `page` is the least memory page in bytes; controllers before NVMe 2.0 have no `nvm`.
    pub(super) fn new(
        nsid: Nsid,
        block_size: u32,
        controller: &IdentifyController,
        namespace: &IdentifyNamespace,
        nvm: Option<&NvmController>,
        page: u32,
    ) -> Self {
        Self {
            nsid,
            block_size,
            limits: Limits::new(controller, namespace, nvm, page, block_size),
            fua: false,
        }
    }

    pub(super) fn offers(&self, command: Oncs) -> bool {
        self.limits.offers.contains(command)
    }

    /// Read, Write or Compare of all of the payload; a command has up to `transfer` bytes.
    pub(super) fn moving(
        &self,
        opcode: IoOpcode,
        slba: u64,
        payload: Payload,
        transfer: u32,
    ) -> Result<Work, Error> {
        if opcode == IoOpcode::Compare {
            self.demand(Oncs::NVMCMPS, opcode)?;
        }
        let block_size = self.block_size;
        let len = payload.len();
        if !len.is_multiple_of(block_size as usize) {
            return Err(Error::NotWholeBlocks { len, block_size });
        }
        let most = u64::from(transfer).min(ENOUGH) / u64::from(block_size);
        let plan = Plan::Blocks(Blocks {
            sqe: self.template(opcode),
            slba,
            blocks: len as u64 / u64::from(block_size),
            step: most.clamp(1, MAX_BLOCKS),
            block_size: block_size as usize,
        });
        Ok(Work::io(opcode.name(), plan, payload))
    }

    pub(super) fn flush(&self) -> Work {
        let plan = Plan::One(command::flush(self.nsid));
        Work::io(IoOpcode::Flush.name(), plan, Payload::Nothing)
    }

    /// Write Zeroes; with `deallocate` the blocks need not be kept (DEAC).
    pub(super) fn write_zeroes(
        &self,
        slba: u64,
        blocks: u64,
        deallocate: bool,
    ) -> Result<Work, Error> {
        self.demand(Oncs::NVMWZSV, IoOpcode::WriteZeroes)?;
        let mut sqe = self.template(IoOpcode::WriteZeroes);
        if deallocate {
            sqe.cdw12 = (sqe.cdw12.get() | command::DEAC).into();
        }
        Ok(without_data(sqe, slba, blocks, self.limits.write_zeroes))
    }

    pub(super) fn verify(&self, slba: u64, blocks: u64) -> Result<Work, Error> {
        self.demand(Oncs::NVMVFYS, IoOpcode::Verify)?;
        let sqe = self.template(IoOpcode::Verify);
        Ok(without_data(sqe, slba, blocks, self.limits.verify))
    }

    pub(super) fn deallocate(&self, slba: u64, blocks: u64) -> Result<Work, Error> {
        let opcode = IoOpcode::DatasetManagement;
        self.demand(Oncs::NVMDSMSV, opcode)?;
        let ranges: Vec<DsmRange> = cut(slba, blocks, u64::from(u32::MAX))
            .map(|(slba, blocks)| DsmRange::new(slba, blocks as u32))
            .collect();
        let mut list = Vec::new();
        let mut at = 0;
        for some in ranges.chunks(DsmRange::MAX.into()) {
            let len = size_of_val(some);
            let sqe = command::deallocate(self.nsid, some.len() as u16);
            list.push((sqe, at..at + len));
            at += len;
        }
        let payload = Payload::Write(Buffer::from(ranges.as_bytes()));
        Ok(Work::io(opcode.name(), Plan::List(list), payload))
    }

    pub(super) fn copy(&self, ranges: &[(u64, u64)], sdlba: u64) -> Result<Work, Error> {
        self.demand(Oncs::NVMCPYS, IoOpcode::Copy)?;
        let (ranges, list) = self.limits.copies(self.nsid, ranges, sdlba, self.fua);
        let payload = Payload::Write(Buffer::from(ranges.as_bytes()));
        Ok(Work::io(IoOpcode::Copy.name(), Plan::List(list), payload))
    }

    fn demand(&self, bit: Oncs, opcode: IoOpcode) -> Result<(), Error> {
        match self.offers(bit) {
            true => Ok(()),
            false => Err(Error::NotOffered {
                command: opcode.name(),
            }),
        }
    }

    fn template(&self, opcode: IoOpcode) -> Sqe {
        let mut sqe = command::blocks(opcode, self.nsid, 0, 1);
        if self.fua {
            sqe.cdw12 = (sqe.cdw12.get() | command::FUA).into();
        }
        sqe
    }
}

fn without_data(sqe: Sqe, slba: u64, blocks: u64, step: u64) -> Work {
    let plan = Plan::Blocks(Blocks {
        sqe,
        slba,
        blocks,
        step,
        block_size: 0,
    });
    Work::io(sqe.io_opcode().name(), plan, Payload::Nothing)
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
    ) -> (Vec<CopyRange>, Vec<(Sqe, Range<usize>)>) {
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
