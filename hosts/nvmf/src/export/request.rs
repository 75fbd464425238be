//! What a request asks of the namespace, or why it is refused.
use super::negotiation::Export;
use super::protocol::{Errno, MAX_PAYLOAD, Request, command, command_flag};

/// Logical blocks of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) slba: u64,
    /// At least 1.
    pub(super) count: u64,
}

/// A request that makes sense. `fua`: on the medium before the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read(Blocks),
    Write {
        blocks: Blocks,
        fua: bool,
    },
    Flush,
    Trim {
        blocks: Blocks,
        fua: bool,
    },
    WriteZeroes {
        blocks: Blocks,
        fua: bool,
        /// The blocks may be deallocated, since they then read as zeroes.
        deallocate: bool,
        /// Rather not at all than as slowly as data.
        fast: bool,
    },
}

/// An error as it is told to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) errno: Errno,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(errno: Errno, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { errno, message }
    }

    /// Zeroes may take as long as data.
    pub(super) fn not_faster() -> Self {
        let message = "zeroes are not known to be faster than data here";
        Self::new(Errno::NotSupported, message)
    }
}

impl Operation {
    /// Judges a request other than NBD_CMD_DISC.
    pub(super) fn of(
        request: &Request,
        export: &Export,
        structured: bool,
    ) -> Result<Self, Refusal> {
        let inval = |message: &str| Refusal::new(Errno::Inval, message);
        let has = |flag| request.flags & flag != 0;
        let mut allowed = command_flag::FUA;
        match request.command {
            command::READ if structured => allowed |= command_flag::DF,
            command::WRITE_ZEROES => allowed |= command_flag::NO_HOLE | command_flag::FAST_ZERO,
            _ => {}
        }
        if has(!allowed) {
            return Err(inval("the request has a flag that does not belong to it"));
        }
        let fua = has(command_flag::FUA);
        match request.command {
            command::READ => {
                let blocks = blocks(request, export, Errno::Inval)?;
                if request.length > MAX_PAYLOAD {
                    let message = format!("a read moves {MAX_PAYLOAD} bytes at most");
                    return Err(Refusal::new(Errno::Overflow, message));
                }
                Ok(Self::Read(blocks))
            }
            command::WRITE => {
                let blocks = blocks(request, export, Errno::NoSpace)?;
                Ok(Self::Write { blocks, fua })
            }
            command::FLUSH if request.offset != 0 || request.length != 0 => {
                Err(inval("a flush has no offset and no length"))
            }
            command::FLUSH => Ok(Self::Flush),
            command::TRIM if export.trim => {
                let blocks = blocks(request, export, Errno::Inval)?;
                Ok(Self::Trim { blocks, fua })
            }
            command::WRITE_ZEROES if export.write_zeroes => {
                let blocks = blocks(request, export, Errno::NoSpace)?;
                let deallocate = export.deallocated_is_zero && !has(command_flag::NO_HOLE);
                let fast = has(command_flag::FAST_ZERO);
                // Without it the controller may have to write them all.
                if fast && !deallocate {
                    return Err(Refusal::not_faster());
                }
                Ok(Self::WriteZeroes {
                    blocks,
                    fua,
                    deallocate,
                    fast,
                })
            }
            _ => Err(inval("the command is unknown here")),
        }
    }
}

/// The blocks that a request names. `beyond`: the error of those behind the last.
fn blocks(request: &Request, export: &Export, beyond: Errno) -> Result<Blocks, Refusal> {
    let Request { offset, length, .. } = *request;
    if request.command != command::READ && export.read_only {
        return Err(Refusal::new(Errno::Perm, "the export is read-only"));
    }
    let block_size = u64::from(export.block_size);
    let length = u64::from(length);
    if length == 0 || !offset.is_multiple_of(block_size) || !length.is_multiple_of(block_size) {
        let message =
            format!("offset and length must be multiples of {block_size} bytes, length not 0");
        return Err(Refusal::new(Errno::Inval, message));
    }
    if offset
        .checked_add(length)
        .is_none_or(|end| end > export.size)
    {
        let message = format!("it is beyond the end, which is at {} bytes", export.size);
        return Err(Refusal::new(beyond, message));
    }
    Ok(Blocks {
        slba: offset / block_size,
        count: length / block_size,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::numbers;
    use super::*;

    const SIZE: u64 = 1 << 30;

    fn export() -> Export {
        Export {
            name: String::new(),
            description: String::new(),
            size: SIZE,
            block_size: 4096,
            preferred: 4096,
            read_only: false,
            trim: true,
            write_zeroes: true,
            deallocated_is_zero: true,
        }
    }

    fn request(command: u16, flags: u16, offset: u64, length: u32) -> Request {
        Request {
            flags,
            command,
            cookie: 0,
            offset,
            length,
        }
    }

    fn errno(export: &Export, request: Request) -> Option<u32> {
        let judged = Operation::of(&request, export, true);
        judged.err().map(|refusal| refusal.errno as u32)
    }

    #[test]
    fn bytes_become_blocks() {
        let export = export();
        let of = |command, flags, offset, length| {
            let request = request(command, flags, offset, length);
            Operation::of(&request, &export, true).unwrap()
        };
        let blocks = |slba, count| Blocks { slba, count };
        assert_eq!(of(0, 4, 8192, 12288), Operation::Read(blocks(2, 3)));
        for (flag, fua) in [(0, false), (1, true)] {
            let last = blocks((1 << 18) - 1, 1);
            let write = Operation::Write { blocks: last, fua };
            assert_eq!(of(1, flag, SIZE - 4096, 4096), write);
            assert_eq!(of(3, flag, 0, 0), Operation::Flush);
            let blocks = blocks(0, 1 << 18);
            assert_eq!(of(4, flag, 0, 1 << 30), Operation::Trim { blocks, fua });
            for (more, deallocate, fast) in [(0, true, false), (2, false, false), (16, true, true)]
            {
                let zeroes = Operation::WriteZeroes {
                    blocks,
                    fua,
                    deallocate,
                    fast,
                };
                assert_eq!(of(6, flag | more, 0, 1 << 30), zeroes);
            }
        }
    }

    #[test]
    fn ranges_that_are_no_blocks_or_beyond_the_end() {
        let export = export();
        for (offset, length, data_errno, write_errno) in [
            (0, 4096, None, None),
            (1, 4096, Some(22), Some(22)),
            (512, 4096, Some(22), Some(22)),
            (0, 4097, Some(22), Some(22)),
            (0, 512, Some(22), Some(22)),
            (0, 0, Some(22), Some(22)),
            (SIZE - 4096, 4096, None, None),
            (SIZE - 4096, 8192, Some(22), Some(28)),
            (SIZE, 4096, Some(22), Some(28)),
            (u64::MAX - 4095, 4096, Some(22), Some(28)),
            (u64::MAX - 4095, 8192, Some(22), Some(28)),
        ] {
            for (command, expected) in [
                (0, data_errno),
                (1, write_errno),
                (4, data_errno),
                (6, write_errno),
            ] {
                let found = errno(&export, request(command, 0, offset, length));
                assert_eq!(found, expected, "{command}: {offset} {length}");
            }
        }
        assert_eq!(errno(&export, request(0, 0, 0, MAX_PAYLOAD)), None);
        let longer = request(0, 0, 0, MAX_PAYLOAD + 4096);
        assert_eq!(errno(&export, longer), Some(75));
        for (offset, length) in [(4096, 0), (0, 4096)] {
            assert_eq!(errno(&export, request(3, 0, offset, length)), Some(22));
        }
    }

    #[test]
    fn flags_that_do_not_belong() {
        let export = export();
        for command in 0..=7 {
            for bit in 0..16 {
                let allowed = match (command, bit) {
                    (5 | 7, _) => false,
                    (_, 0) | (0, 2) | (6, 1 | 4) => true,
                    _ => false,
                };
                let length = if command == 3 { 0 } else { 4096 };
                let found = errno(&export, request(command, 1 << bit, 0, length));
                match command {
                    2 => {}
                    _ if allowed => assert_eq!(found, None, "{command}, bit {bit}"),
                    _ => assert_eq!(found, Some(22), "{command}, bit {bit}"),
                }
            }
        }
        // DF is for those who know chunks.
        assert!(Operation::of(&request(0, 4, 0, 4096), &export, false).is_err());
    }

    #[test]
    fn whatever_comes_is_within_the_namespace() {
        let export = export();
        let mut next = numbers();
        let mut sensible = 0;
        for _ in 0..100_000 {
            // Not far from the limits, or far beyond them.
            let shift = [0, 9, 12][next() as usize % 3];
            let offset = (next() >> (next() % 64)) << shift;
            let length = ((next() as u32) >> (next() % 32)) << shift;
            let request = request(next() as u16 % 8, next() as u16 % 32, offset, length);
            let Ok(operation) = Operation::of(&request, &export, true) else {
                continue;
            };
            sensible += 1;
            if let Operation::Read(blocks)
            | Operation::Write { blocks, .. }
            | Operation::Trim { blocks, .. }
            | Operation::WriteZeroes { blocks, .. } = operation
            {
                assert!(
                    blocks.count > 0 && blocks.slba + blocks.count <= 1 << 18,
                    "{request:?}"
                );
            }
        }
        assert!(sensible > 100, "{sensible}");
    }

    #[test]
    fn what_the_controller_cannot() {
        let mut export = export();
        let fast = |flags: u16| request(6, 16 | flags, 0, 4096);
        assert_eq!(errno(&export, fast(0)), None);
        assert_eq!(errno(&export, fast(2)), Some(95));
        export.deallocated_is_zero = false;
        assert_eq!(errno(&export, fast(0)), Some(95));
        let slow = Operation::of(&request(6, 0, 0, 4096), &export, true);
        assert!(matches!(
            slow,
            Ok(Operation::WriteZeroes {
                deallocate: false,
                ..
            })
        ));
        export.write_zeroes = false;
        export.trim = false;
        for command in [4, 6] {
            assert_eq!(errno(&export, request(command, 0, 0, 4096)), Some(22));
        }
    }

    #[test]
    fn nothing_is_written_to_what_is_read_only() {
        let mut export = export();
        export.read_only = true;
        for (command, expected) in [
            (0, None),
            (1, Some(1)),
            (3, None),
            (4, Some(1)),
            (6, Some(1)),
        ] {
            let length = if command == 3 { 0 } else { 4096 };
            let found = errno(&export, request(command, 0, 0, length));
            assert_eq!(found, expected, "{command}");
        }
    }
}
