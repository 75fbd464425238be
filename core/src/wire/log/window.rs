//! A log page as Get Log Page asks for it: some bytes from some offset on.
use zerocopy::{Immutable, IntoBytes};

/// Writes a log page of any length into a buffer that shows only the bytes
/// from an offset on. So a log is produced front to back by one function,
/// without memory for all of it, whatever piece the host reads.
#[derive(Debug)]
pub struct LogWindow<'a> {
    out: &'a mut [u8],
    /// Offset of `out` in the log page.
    start: u64,
    position: u64,
}

impl<'a> LogWindow<'a> {
    /// A window on the bytes of the log from `offset` (LPO) on. `out` is
    /// zeroed: what the log does not reach reads as 0.
    pub fn new(out: &'a mut [u8], offset: u64) -> Self {
        out.fill(0);
        Self {
            out,
            start: offset,
            position: 0,
        }
    }

    /// Appends a structure to the log.
    pub fn put(&mut self, part: &(impl IntoBytes + Immutable + ?Sized)) {
        let part = part.as_bytes();
        let begin = self.position;
        self.position = begin.saturating_add(len(part));
        let visible = part.get(index(self.start.saturating_sub(begin))..);
        let room = self.out.get_mut(index(begin.saturating_sub(self.start))..);
        for (to, from) in room
            .unwrap_or_default()
            .iter_mut()
            .zip(visible.unwrap_or_default())
        {
            *to = *from;
        }
    }

    /// Appends `bytes` bytes that need not be made, since the window does not
    /// show them; those that it does show read as 0.
    pub fn skip(&mut self, bytes: u64) {
        self.position = self.position.saturating_add(bytes);
    }

    /// Whether the window shows any of the next `bytes` bytes of the log.
    pub fn shows(&self, bytes: u64) -> bool {
        !self.is_full() && self.position.saturating_add(bytes) > self.start
    }

    /// Bytes of the log so far, those outside of the window included.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether all that follows lies behind the window.
    pub fn is_full(&self) -> bool {
        self.position >= self.start.saturating_add(len(self.out))
    }
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn any_window_shows_its_piece_of_the_log() {
        let log: [u8; 10] = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19];
        for start in 0..12usize {
            for length in 0..12usize {
                let mut out = vec![0xff; length];
                let mut window = LogWindow::new(&mut out, start as u64);
                window.put(&log[..3]);
                window.put(&log[3..3]);
                window.put(&log[3..4]);
                window.put(&log[4..]);
                assert_eq!(window.position(), 10);
                assert_eq!(window.is_full(), start + length <= 10);
                let piece = log.iter().copied().chain(core::iter::repeat(0));
                let expected: Vec<u8> = piece.skip(start).take(length).collect();
                assert_eq!(out, expected, "{length} bytes at {start}");
            }
        }
    }

    #[test]
    fn what_is_not_shown_can_be_skipped() {
        for (start, shown) in [(0, true), (3, true), (4, false), (9, false)] {
            let mut out = [0xff; 2];
            let mut window = LogWindow::new(&mut out, start);
            assert_eq!(window.shows(4), shown, "at {start}");
            window.skip(4);
            window.put(&[4u8, 5, 6, 7]);
            assert!(!window.shows(4) || start > 6);
            assert_eq!(window.position(), 8);
        }
        let mut out = [0xff; 4];
        let mut window = LogWindow::new(&mut out, 2);
        window.skip(4);
        window.put(&[4u8, 5]);
        assert!(!window.shows(u64::MAX));
        assert_eq!(out, [0, 0, 4, 5]);
    }

    #[test]
    fn offset_far_behind_the_end_shows_zeroes() {
        let mut out = [0xff; 4];
        let mut window = LogWindow::new(&mut out, u64::MAX);
        window.put(&[1u8; 8]);
        assert!(!window.is_full());
        assert_eq!(out, [0; 4]);
    }
}
