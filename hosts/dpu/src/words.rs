//! What the program was told when it was started: words, by semihosting.
use crate::arch::semihosting;
use crate::memory::Taken;

const MOST: usize = 512;

static LINE: Taken<[u8; MOST]> = Taken::new([0; MOST]);

/// The words after the program's name; none if there are too many.
///
/// # Panics
/// The second time.
pub fn words() -> impl Iterator<Item = &'static str> {
    const SYS_GET_CMDLINE: u64 = 0x15;
    let line = LINE.take();
    let block = [line.as_mut_ptr() as u64, MOST as u64];
    // SAFETY: it fills the line that the block tells, whose length comes first.
    let failed = unsafe { semihosting(SYS_GET_CMDLINE, block.as_ptr()) };
    let end = line.iter().position(|byte| *byte == 0).unwrap_or(0);
    let line = line.get(..end).filter(|_| failed == 0).unwrap_or_default();
    let text = core::str::from_utf8(line).unwrap_or_default();
    text.split_ascii_whitespace().skip(1)
}
