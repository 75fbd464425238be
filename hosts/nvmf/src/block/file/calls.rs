//! The system calls of a [`Task`], made by a thread that may block.
use std::fs::File;
use std::io::IoSlice;

use nvmf_core::block::{Extent, Op};
use nvmf_tcp::std::buffer::Buffer;
use rustix::io::{Errno, ReadWriteFlags};
use rustix::ioctl::{Opcode, Setter, opcode};

use super::task::{Call, Failure, Task};

/// `BLKDISCARD` of `linux/fs.h`.
const DISCARD: Opcode = opcode::none(0x12, 119);

/// Does an operation from beginning to end.
pub(super) fn perform(
    file: &File,
    device: bool,
    op: Op,
    mut payload: Option<&mut Buffer>,
) -> Result<(), Failure> {
    let mut task = Task::new(op);
    loop {
        let call = task.next(device);
        let returned = make(file, call, &mut task, payload.as_deref_mut());
        if let Some(ended) = task.called(payload.as_deref(), returned) {
            return ended;
        }
    }
}

fn make(
    file: &File,
    call: Call,
    task: &mut Task,
    payload: Option<&mut Buffer>,
) -> Result<usize, Errno> {
    match call {
        Call::Read { at, into } => {
            let into = task.memory(payload, into).ok_or(Errno::FAULT)?;
            rustix::io::pread(file, into, at)
        }
        Call::Write { at, from, dsync } => {
            let from = task.memory(payload, from).ok_or(Errno::FAULT)?;
            if dsync {
                rustix::io::pwritev2(file, &[IoSlice::new(from)], at, ReadWriteFlags::DSYNC)
            } else {
                rustix::io::pwrite(file, from, at)
            }
        }
        Call::Sync => rustix::fs::fdatasync(file).map(|()| 0),
        Call::Allocate { mode, extent } => {
            rustix::fs::fallocate(file, mode, extent.byte, extent.len).map(|()| 0)
        }
        Call::Discard(extent) => discard(file, extent).map(|()| 0),
    }
}

#[allow(unsafe_code)]
fn discard(file: &File, extent: Extent) -> Result<(), Errno> {
    // SAFETY: the opcode is that of BLKDISCARD, which reads two numbers of 64 bits, an offset and
    // a length, while the call lasts.
    unsafe {
        let range = Setter::<DISCARD, [u64; 2]>::new([extent.byte, extent.len]);
        rustix::ioctl::ioctl(file, range)
    }
}
