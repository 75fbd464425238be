//! Blocks that can be told apart: what each one holds says which it is, which write
//! it comes from, and whether any of its bytes is wrong.
//!
//! | bytes | of a block |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..16 | the LBA, little endian |
//! | 16..20 | the round: how often the block has been written, from 1 on |
//! | 20..24 | CRC32C of all other bytes |
//! | 24.. | noise that depends on LBA and round |
use nvmf_tcp::digest::crc32c;

use super::workload::{Direction, Walk, xorshift};

const MAGIC: [u8; 8] = *b"nvmf.chk";
const LEN: usize = 24;

/// A block does not hold what it should.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("LBA {lba} holds nothing that --verify wrote")]
    Foreign { lba: u64 },
    #[error("LBA {lba} is wrong: the CRC32C of its bytes is {found:08X}h, not {stored:08X}h")]
    Crc { lba: u64, found: u32, stored: u32 },
    #[error("LBA {lba} holds what was written to LBA {found}")]
    Elsewhere { lba: u64, found: u64 },
    #[error("LBA {lba} holds what write {found} put there, not write {expected}")]
    Stale { lba: u64, found: u32, expected: u32 },
}

/// What was written where, by places for a command.
pub(crate) struct Ledger {
    /// How often it has been written.
    rounds: Vec<u32>,
    /// A command is under way there.
    busy: Vec<bool>,
    /// The next place to read back, once that has begun.
    read_back: Option<usize>,
}

impl Ledger {
    pub(crate) fn new(places: usize) -> Self {
        Self {
            rounds: vec![0; places],
            busy: vec![false; places],
            read_back: None,
        }
    }

    /// Where the next command goes: where the walk says, or behind that if a command is
    /// under way there, for of two at a time nobody knows which is the last. At least one
    /// place must be free. `None` once all has been read back.
    pub(crate) fn begin(&mut self, walk: &mut Walk) -> Option<(Direction, u64)> {
        let (direction, place) = match &mut self.read_back {
            None => {
                let (direction, place) = walk.step();
                let mut place = place as usize;
                while self.busy[place] {
                    place = (place + 1) % self.busy.len();
                }
                (direction, place)
            }
            Some(next) => {
                let mut rest = self.rounds[*next..].iter();
                let place = *next + rest.position(|round| *round > 0)?;
                *next = place + 1;
                (Direction::Read, place)
            }
        };
        self.busy[place] = true;
        if direction == Direction::Write {
            self.rounds[place] += 1;
        }
        Some((direction, place as u64))
    }

    /// The command there has ended.
    pub(crate) fn end(&mut self, place: u64) {
        self.busy[place as usize] = false;
    }

    /// How often a place has been written, one that is under way included.
    pub(crate) fn round(&self, place: u64) -> u32 {
        self.rounds[place as usize]
    }

    /// From now on, all that was written is read, and nothing else.
    pub(crate) fn read_back(&mut self) {
        self.read_back = Some(0);
    }
}

/// Fills whole blocks of `block_size` bytes, which go to `slba` and on.
pub(crate) fn fill(data: &mut [u8], block_size: usize, slba: u64, round: u32) {
    for (lba, block) in (slba..).zip(data.chunks_exact_mut(block_size)) {
        let (head, noise) = block.split_at_mut(LEN);
        let mut state = (lba << 20 ^ u64::from(round)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for word in noise.chunks_exact_mut(8) {
            state = xorshift(state);
            word.copy_from_slice(&state.to_le_bytes());
        }
        head[..8].copy_from_slice(&MAGIC);
        head[8..16].copy_from_slice(&lba.to_le_bytes());
        head[16..20].copy_from_slice(&round.to_le_bytes());
        let crc = crc(block);
        block[20..24].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Checks whole blocks of `block_size` bytes, which come from `slba` and on; of any
/// round if none is given.
///
/// # Errors
/// The first block that is [`Wrong`].
pub(crate) fn check(
    data: &[u8],
    block_size: usize,
    slba: u64,
    round: Option<u32>,
) -> Result<(), Wrong> {
    for (lba, block) in (slba..).zip(data.chunks_exact(block_size)) {
        let word = |at: usize| {
            u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
        };
        let (found, stored) = (crc(block), word(20));
        if found != stored {
            return Err(match block[..8] == MAGIC {
                true => Wrong::Crc { lba, found, stored },
                false => Wrong::Foreign { lba },
            });
        }
        let found = u64::from(word(8)) | u64::from(word(12)) << 32;
        if found != lba {
            return Err(Wrong::Elsewhere { lba, found });
        }
        let found = word(16);
        if let Some(expected) = round
            && found != expected
        {
            return Err(Wrong::Stale {
                lba,
                found,
                expected,
            });
        }
    }
    Ok(())
}

fn crc(block: &[u8]) -> u32 {
    crc32c(crc32c(0, &block[..20]), &block[24..])
}

#[cfg(test)]
mod tests {
    use super::super::workload::{Job, Rw};
    use super::*;

    #[test]
    fn a_place_has_one_command_at_a_time_and_is_read_back_once() {
        let job = Job {
            rw: Rw::Randwrite,
            bs: 512,
            iodepth: 6,
            batch: None,
            rwmixread: 50,
            hipri: false,
        };
        let (mut walk, mut ledger) = (Walk::new(&job, 8, 0), Ledger::new(8));
        let mut flying = std::collections::VecDeque::new();
        for _ in 0..200 {
            let (direction, place) = ledger.begin(&mut walk).unwrap();
            assert_eq!(direction, Direction::Write);
            assert!(!flying.contains(&place), "{place} in {flying:?}");
            flying.push_back(place);
            if flying.len() == 6 {
                ledger.end(flying.pop_front().unwrap());
            }
        }
        assert_eq!((0..8).map(|place| ledger.round(place)).sum::<u32>(), 200);
        ledger.rounds[3] = 0;
        ledger.read_back();
        let read: Vec<_> = std::iter::from_fn(|| ledger.begin(&mut walk)).collect();
        let expected = [0, 1, 2, 4, 5, 6, 7].map(|place| (Direction::Read, place));
        assert_eq!(read, expected);
    }

    fn blocks() -> Vec<u8> {
        let mut data = vec![0; 2048];
        fill(&mut data, 512, 100, 7);
        data
    }

    #[test]
    fn what_was_filled_is_right() {
        assert_eq!(check(&blocks(), 512, 100, Some(7)), Ok(()));
        assert_eq!(check(&blocks(), 512, 100, None), Ok(()));
    }

    #[test]
    fn no_byte_can_change_unseen() {
        for at in 0..2048 {
            let mut data = blocks();
            data[at] ^= 0x10;
            let wrong = check(&data, 512, 100, None).unwrap_err();
            let lba = 100 + at as u64 / 512;
            assert!(
                matches!(wrong, Wrong::Crc { lba: at, .. } | Wrong::Foreign { lba: at } if at == lba),
                "{at}: {wrong}"
            );
        }
    }

    #[test]
    fn blocks_of_another_place_or_time_are_noticed() {
        let mut data = blocks();
        data.copy_within(..512, 1024);
        assert_eq!(
            check(&data, 512, 100, None),
            Err(Wrong::Elsewhere {
                lba: 102,
                found: 100
            })
        );
        assert_eq!(
            check(&blocks(), 512, 100, Some(8)),
            Err(Wrong::Stale {
                lba: 100,
                found: 7,
                expected: 8
            })
        );
        let error = check(&[0; 512], 512, 3, None).unwrap_err();
        assert_eq!(error.to_string(), "LBA 3 holds nothing that --verify wrote");
    }
}
