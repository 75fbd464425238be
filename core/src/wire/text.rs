//! Text of a fixed width, as the identify data carries it.
use core::fmt::{self, Display, Write};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// ASCII padded with spaces on the right: serial and
/// model numbers, firmware revisions.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct Padded<const N: usize>([u8; N]);

impl<const N: usize> Padded<N> {
    /// Pads `text` to `N` bytes. What does not fit is cut, and a byte that is
    /// not printable ASCII becomes `?`.
    pub fn new(text: &str) -> Self {
        let mut bytes = [b' '; N];
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            *to = if matches!(from, b' '..=b'~') {
                from
            } else {
                b'?'
            };
        }
        Self(bytes)
    }

    /// The bytes without the padding. Controllers that pad with NUL exist.
    pub fn trimmed(&self) -> &[u8] {
        let mut text = self.0.as_slice();
        while let [head @ .., b' ' | 0] = text {
            text = head;
        }
        text
    }
}

impl<const N: usize> Default for Padded<N> {
    fn default() -> Self {
        Self([b' '; N])
    }
}

/// Without the padding; a byte that is not printable ASCII shows as `?`, so a
/// peer cannot send escape sequences to a terminal.
impl<const N: usize> Display for Padded<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(self.trimmed()).fmt(f)
    }
}

#[cfg(feature = "defmt")]
impl<const N: usize> defmt::Format for Padded<N> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{}", defmt::Display2Format(self));
    }
}

/// Bytes that should be ASCII; one that is not printable shows as `?`.
pub(crate) struct Printable<'a>(pub(crate) &'a [u8]);

impl<'a> Printable<'a> {
    /// The bytes before the first NUL.
    pub(crate) fn terminated(field: &'a [u8]) -> Self {
        Self(field.split(|&byte| byte == 0).next().unwrap_or_default())
    }
}

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|&byte| f.write_char(printable(byte)))
    }
}

fn printable(byte: u8) -> char {
    match byte {
        b' '..=b'~' => byte.into(),
        _ => '?',
    }
}

/// Bytes as hex digits, in the order they lie on the wire: NGUID, EUI64.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Sixteen bytes in the 8-4-4-4-12 form of a UUID.
pub(crate) struct UuidText<'a>(pub(crate) &'a [u8; 16]);

impl Display for UuidText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_char('-')?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn padded_text_is_filled_cut_and_trimmed() {
        assert_eq!(Padded::<8>::new("abc").as_bytes(), b"abc     ");
        assert_eq!(Padded::<2>::new("abc").as_bytes(), b"ab");
        assert_eq!(Padded::<4>::new("a\u{7f}\n").as_bytes(), b"a?? ");
        let nul_padded = Padded::<6>::read_from_bytes(b"a b \0\0").unwrap();
        assert_eq!(nul_padded.trimmed(), b"a b");
        assert_eq!(Padded::<3>::read_from_bytes(b"   ").unwrap().trimmed(), b"");
        assert_eq!(
            format!("{}", Padded::<4>::read_from_bytes(b"a\x1b[m").unwrap()),
            "a?[m"
        );
    }

    #[test]
    fn terminated_text_stops_at_its_nul() {
        assert_eq!(format!("{}", Printable::terminated(b"ab\0c")), "ab");
        assert_eq!(format!("{}", Printable::terminated(b"a\xff")), "a?");
        assert_eq!(format!("{}", Printable::terminated(b"")), "");
    }

    #[test]
    fn hex_and_uuid_follow_the_byte_order() {
        assert_eq!(format!("{}", Hex(&[0x0a, 0xff])), "0aff");
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(
            format!("{}", UuidText(&uuid)),
            "00010203-0405-0607-0809-0a0b0c0d0e0f"
        );
    }
}
