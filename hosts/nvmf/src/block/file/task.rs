//! What an operation takes in system calls, one after the other, whoever makes them.
//!
//! A [`Task`] says which [`Call`] comes next and is told what it returned: a thread
//! that blocks and an io_uring do the same, and fail the same.
use std::io;

use nvmf_core::block::{Extent, MediaError, Op};
use nvmf_tcp::std::buffer::Buffer;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// What Compare, Verify and written zeroes move at a time, in bytes.
const PIECE: usize = 256 * 1024;

const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

/// A system call. Places in the file are in bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::block) enum Call {
    /// `pread`.
    Read { at: u64, into: Part },
    /// `pwrite`; `pwritev2(RWF_DSYNC)` if `dsync`.
    Write { at: u64, from: Part, dsync: bool },
    /// `fdatasync`.
    Sync,
    /// `fallocate`.
    Allocate {
        mode: FallocateFlags,
        extent: Extent,
    },
    /// `ioctl(BLKDISCARD)`.
    Discard(Extent),
}

/// Part of the memory that a task moves data to and from: see [`Task::memory`].
#[derive(Clone, Copy, Debug)]
pub(in crate::block) struct Part {
    memory: Memory,
    start: usize,
    pub(in crate::block) len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Memory {
    /// The request's buffer.
    Payload,
    /// The task's own.
    Piece,
}

/// Why an operation failed, and what the system said, if it did.
#[derive(Debug)]
pub(in crate::block) struct Failure {
    pub(in crate::block) error: MediaError,
    pub(in crate::block) cause: Option<io::Error>,
}

/// An operation on its way.
#[derive(Debug)]
pub(in crate::block) struct Task {
    op: Op,
    phase: Phase,
    /// Bytes of this phase that are done.
    done: u64,
    piece: Option<Buffer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Read,
    Write {
        dsync: bool,
    },
    /// Read pieces, to compare them or for the sake of reading.
    Look {
        /// Bytes of this piece that are read.
        filled: usize,
    },
    Deallocate,
    /// Try the two modes that make zeroes in their order, then write them.
    Zero {
        tried: usize,
    },
    WriteZeroes,
    Sync,
}

impl Task {
    /// An operation that is admissible, and not on nothing at all.
    pub(in crate::block) fn new(op: Op) -> Self {
        let phase = match op {
            Op::Read(_) => Phase::Read,
            Op::Write { fua, .. } => Phase::Write { dsync: fua },
            Op::Compare(_) | Op::Verify(_) => Phase::Look { filled: 0 },
            Op::WriteZeroes { .. } => Phase::Zero { tried: 0 },
            Op::Deallocate(_) => Phase::Deallocate,
            Op::Flush => Phase::Sync,
        };
        let piece = matches!(phase, Phase::Look { .. }).then(|| piece(op));
        Self {
            op,
            phase,
            done: 0,
            piece,
        }
    }

    /// The next system call; `device` if the file is a block device.
    pub(in crate::block) fn next(&self, device: bool) -> Call {
        let extent = self.extent();
        let at = extent.byte + self.done;
        match self.phase {
            Phase::Read => Call::Read {
                at,
                into: self.rest(Memory::Payload),
            },
            Phase::Write { dsync } => Call::Write {
                at,
                from: self.rest(Memory::Payload),
                dsync,
            },
            Phase::Look { filled } => Call::Read {
                at: at + filled as u64,
                into: Part {
                    memory: Memory::Piece,
                    start: filled,
                    len: self.piece_len() - filled,
                },
            },
            Phase::Deallocate if device => Call::Discard(extent),
            Phase::Deallocate => Call::Allocate { mode: HOLE, extent },
            Phase::Zero { tried } => {
                let first = matches!(
                    self.op,
                    Op::WriteZeroes {
                        deallocate: true,
                        ..
                    }
                );
                let mode = if first == (tried == 0) { HOLE } else { ZERO };
                Call::Allocate { mode, extent }
            }
            Phase::WriteZeroes => Call::Write {
                at,
                from: Part {
                    memory: Memory::Piece,
                    start: 0,
                    len: self.piece_len(),
                },
                dsync: false,
            },
            Phase::Sync => Call::Sync,
        }
    }

    /// The memory of a call; `None` if the request has no such buffer.
    pub(in crate::block) fn memory<'a>(
        &'a mut self,
        payload: Option<&'a mut Buffer>,
        part: Part,
    ) -> Option<&'a mut [u8]> {
        let whole = match part.memory {
            Memory::Payload => payload,
            Memory::Piece => self.piece.as_mut(),
        };
        whole?.as_mut().get_mut(part.start..)?.get_mut(..part.len)
    }

    /// Takes what the call returned. `None` if another one follows.
    pub(in crate::block) fn called(
        &mut self,
        payload: Option<&Buffer>,
        returned: Result<usize, Errno>,
    ) -> Option<Result<(), Failure>> {
        match returned {
            Ok(count) => self.succeeded(payload, count),
            Err(Errno::INTR) => None,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.unsupported(),
            Err(errno) => Some(Err(self.failure(errno.into()))),
        }
    }

    fn succeeded(&mut self, payload: Option<&Buffer>, count: usize) -> Option<Result<(), Failure>> {
        let len = self.extent().len;
        match self.phase {
            Phase::Read | Phase::Write { .. } | Phase::WriteZeroes => {
                self.done += count as u64;
                match self.phase {
                    _ if self.done < len => self.moved(count),
                    Phase::Read | Phase::Write { dsync: true } => Some(Ok(())),
                    _ => self.changed(),
                }
            }
            Phase::Look { filled } => {
                let filled = filled + count;
                if filled < self.piece_len() {
                    self.phase = Phase::Look { filled };
                    return self.moved(count);
                }
                if !self.is_same(payload) {
                    return Some(Err(Failure {
                        error: MediaError::Miscompare,
                        cause: None,
                    }));
                }
                self.phase = Phase::Look { filled: 0 };
                self.done += filled as u64;
                (self.done == len).then_some(Ok(()))
            }
            Phase::Zero { .. } => self.changed(),
            Phase::Deallocate | Phase::Sync => Some(Ok(())),
        }
    }

    /// After a call that moved a part: nothing moved means there is no more.
    fn moved(&self, count: usize) -> Option<Result<(), Failure>> {
        let ended = match self.error() {
            MediaError::Read => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::WriteZero,
        };
        (count == 0).then(|| Err(self.failure(ended.into())))
    }

    /// After everything is written that had to be, though not durably.
    fn changed(&mut self) -> Option<Result<(), Failure>> {
        match self.op {
            Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. } => {
                self.phase = Phase::Sync;
                None
            }
            _ => Some(Ok(())),
        }
    }

    /// The file system or the device does not do this: there may be another way.
    fn unsupported(&mut self) -> Option<Result<(), Failure>> {
        self.phase = match self.phase {
            Phase::Write { dsync: true } => Phase::Write { dsync: false },
            Phase::Zero { tried: 0 } => Phase::Zero { tried: 1 },
            Phase::Zero { .. } => {
                self.piece = Some(piece(self.op));
                Phase::WriteZeroes
            }
            Phase::Deallocate => return Some(Ok(())),
            _ => return Some(Err(self.failure(Errno::OPNOTSUPP.into()))),
        };
        None
    }

    fn is_same(&self, payload: Option<&Buffer>) -> bool {
        let Op::Compare(_) = self.op else {
            return true;
        };
        let (Some(with), Some(stored), Ok(done)) =
            (payload, self.piece.as_ref(), usize::try_from(self.done))
        else {
            return false;
        };
        let stored = stored.as_ref().get(..self.piece_len());
        let with = with.as_ref().get(done..);
        stored.is_some_and(|stored| with.is_some_and(|with| with.starts_with(stored)))
    }

    fn failure(&self, cause: io::Error) -> Failure {
        Failure {
            error: self.error(),
            cause: Some(cause),
        }
    }

    fn error(&self) -> MediaError {
        match self.op {
            Op::Read(_) | Op::Compare(_) | Op::Verify(_) => MediaError::Read,
            _ => MediaError::Write,
        }
    }

    fn extent(&self) -> Extent {
        match self.op {
            Op::Read(extent)
            | Op::Compare(extent)
            | Op::Verify(extent)
            | Op::Deallocate(extent)
            | Op::Write { extent, .. }
            | Op::WriteZeroes { extent, .. } => extent,
            Op::Flush => Extent { byte: 0, len: 0 },
        }
    }

    /// All that is left of the extent.
    fn rest(&self, memory: Memory) -> Part {
        let place = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Part {
            memory,
            start: place(self.done),
            len: place(self.extent().len - self.done),
        }
    }

    /// Length of the piece at `done`.
    fn piece_len(&self) -> usize {
        at_most_a_piece(self.extent().len - self.done)
    }
}

fn piece(op: Op) -> Buffer {
    let len = match op {
        Op::Compare(extent) | Op::Verify(extent) | Op::WriteZeroes { extent, .. } => extent.len,
        _ => 0,
    };
    Buffer::zeroed(at_most_a_piece(len))
}

/// `len` as a length to move at once: [`PIECE`] or less.
fn at_most_a_piece(len: u64) -> usize {
    usize::try_from(len).map_or(PIECE, |len| len.min(PIECE))
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{buffer, extent, pattern};
    use super::*;

    /// Runs an operation on an array of bytes that takes at most `step` bytes at a time and does
    /// not know how to do what `refuses` says. Returns what it was asked, and how it ended.
    fn run(
        op: Op,
        payload: &mut Option<Buffer>,
        file: &mut [u8],
        step: usize,
        refuses: impl Fn(Call) -> bool,
    ) -> (Vec<Call>, Result<(), Failure>) {
        let mut task = Task::new(op);
        let mut calls = Vec::new();
        loop {
            let call = task.next(false);
            calls.push(call);
            assert!(calls.len() < 10_000);
            let returned = if refuses(call) {
                Err(Errno::OPNOTSUPP)
            } else {
                Ok(match call {
                    Call::Read { at, into } => {
                        let into = task.memory(payload.as_mut(), into).unwrap();
                        let from = file.get(at as usize..).unwrap_or_default();
                        let len = into.len().min(step).min(from.len());
                        into[..len].copy_from_slice(&from[..len]);
                        len
                    }
                    Call::Write { at, from, .. } => {
                        let from = task.memory(payload.as_mut(), from).unwrap();
                        let len = from.len().min(step);
                        file[at as usize..][..len].copy_from_slice(&from[..len]);
                        len
                    }
                    Call::Sync | Call::Allocate { .. } | Call::Discard(_) => 0,
                })
            };
            // Interrupted at each point, and nothing else happens.
            assert!(task.called(payload.as_ref(), Err(Errno::INTR)).is_none());
            if let Some(ended) = task.called(payload.as_ref(), returned) {
                return (calls, ended);
            }
        }
    }

    #[test]
    fn parts_make_a_whole() {
        let mut file = pattern(1, 3 * PIECE);
        let original = file.clone();
        let (at, len) = (512, 2 * PIECE + 4096);
        for step in [1000, usize::MAX] {
            let mut payload = Some(Buffer::zeroed(len));
            let extent = extent(at as u64, len);
            let (_, ended) = run(Op::Read(extent), &mut payload, &mut file, step, |_| false);
            ended.unwrap();
            assert_eq!(payload.as_ref().unwrap().as_ref(), &file[at..at + len]);
            for op in [Op::Compare(extent), Op::Verify(extent)] {
                let (_, ended) = run(op, &mut payload, &mut file, step, |_| false);
                ended.unwrap();
            }
            *payload.as_mut().unwrap().as_mut().last_mut().unwrap() ^= 1;
            let (_, ended) = run(Op::Compare(extent), &mut payload, &mut file, step, |_| {
                false
            });
            assert_eq!(ended.unwrap_err().error, MediaError::Miscompare);
            let write = Op::Write { extent, fua: false };
            let (_, ended) = run(write, &mut payload, &mut file, step, |_| false);
            ended.unwrap();
            assert_eq!(payload.as_ref().unwrap().as_ref(), &file[at..at + len]);
            assert_eq!(file[..at], original[..at]);
            assert_eq!(file[at + len..], original[at + len..]);
        }
    }

    #[test]
    fn an_early_end_is_an_error() {
        let mut file = pattern(2, 4096);
        for op in [Op::Read(extent(0, 8192)), Op::Compare(extent(0, 8192))] {
            let mut payload = Some(Buffer::zeroed(8192));
            let (_, ended) = run(op, &mut payload, &mut file, usize::MAX, |_| false);
            let failure = ended.unwrap_err();
            assert_eq!(failure.error, MediaError::Read);
            let cause = failure.cause.unwrap().kind();
            assert_eq!(cause, io::ErrorKind::UnexpectedEof);
        }
        let op = Op::Write {
            extent: extent(0, 4096),
            fua: true,
        };
        let mut payload = Some(Buffer::zeroed(4096));
        let (_, ended) = run(op, &mut payload, &mut file, 0, |_| false);
        assert_eq!(ended.unwrap_err().error, MediaError::Write);
    }

    #[test]
    fn the_system_s_reason_is_kept() {
        for (op, error) in [
            (Op::Read(extent(0, 512)), MediaError::Read),
            (Op::Verify(extent(0, 512)), MediaError::Read),
            (Op::Deallocate(extent(0, 512)), MediaError::Write),
            (Op::Flush, MediaError::Write),
        ] {
            let ended = Task::new(op).called(None, Err(Errno::IO)).unwrap();
            let failure = ended.unwrap_err();
            assert_eq!(failure.error, error, "{op:?}");
            assert_eq!(failure.cause.unwrap().raw_os_error(), Some(5));
        }
    }

    #[test]
    fn zeroes_are_made_as_asked_and_written_where_that_is_not_possible() {
        for deallocate in [true, false] {
            for fua in [true, false] {
                let mut file = pattern(3, 3 * PIECE);
                let original = file.clone();
                let (at, len) = (4096, 2 * PIECE + 512);
                let op = Op::WriteZeroes {
                    extent: extent(at as u64, len),
                    deallocate,
                    fua,
                };
                let modes = |calls: &[Call]| -> Vec<FallocateFlags> {
                    let mode = |call: &Call| match *call {
                        Call::Allocate { mode, .. } => Some(mode),
                        _ => None,
                    };
                    calls.iter().filter_map(mode).collect()
                };
                let (calls, ended) = run(op, &mut None, &mut file, usize::MAX, |_| false);
                ended.unwrap();
                assert_eq!(modes(&calls), [if deallocate { HOLE } else { ZERO }]);
                assert_eq!(matches!(calls.last(), Some(Call::Sync)), fua);

                let refuses = |call| matches!(call, Call::Allocate { .. });
                let (calls, ended) = run(op, &mut None, &mut file, 100_000, refuses);
                ended.unwrap();
                assert_eq!(modes(&calls).len(), 2);
                assert_eq!(matches!(calls.last(), Some(Call::Sync)), fua);
                let mut expected = original;
                expected[at..at + len].fill(0);
                assert!(file == expected);
            }
        }
    }

    #[test]
    fn what_cannot_be_forced_is_flushed_and_what_cannot_be_deallocated_stays() {
        let data = pattern(4, 4096);
        let mut file = vec![0; 4096];
        let extent = extent(0, 4096);
        let op = Op::Write { extent, fua: true };
        let refuses = |call| matches!(call, Call::Write { dsync: true, .. });
        let (calls, ended) = run(op, &mut Some(buffer(&data)), &mut file, 4096, refuses);
        ended.unwrap();
        assert_eq!(file, data);
        assert_eq!(calls.len(), 3);
        assert!(matches!(calls.last(), Some(Call::Sync)));

        let (calls, ended) = run(Op::Deallocate(extent), &mut None, &mut file, 0, |_| true);
        ended.unwrap();
        assert_eq!(calls.len(), 1);
        let (_, ended) = run(Op::Flush, &mut None, &mut file, 0, |_| true);
        assert_eq!(ended.unwrap_err().error, MediaError::Write);
    }
}
