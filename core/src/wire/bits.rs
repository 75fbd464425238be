//! Bit sets, and the listing of a structure's raw fields.

/// A bit set as it lies on the wire (little-endian, any alignment). `Display`
/// prints the number and the names of the bits that are set.
macro_rules! flags {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Name:ident: $Int:ident {
            $( $(#[$flag_meta:meta])* const $FLAG:ident = $value:expr; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout)]
        #[derive(zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(transparent)]
        $vis struct $Name([u8; size_of::<$Int>()]);

        impl $Name {
            $( $(#[$flag_meta])* $vis const $FLAG: Self = Self::from_bits($value); )*

            /// Takes every bit as it is, reserved ones included.
            $vis const fn from_bits(bits: $Int) -> Self {
                Self(bits.to_le_bytes())
            }

            /// Every bit as it is, reserved ones included.
            $vis const fn bits(self) -> $Int {
                $Int::from_le_bytes(self.0)
            }

            /// Whether all bits of `other` are set here.
            $vis const fn contains(self, other: Self) -> bool {
                self.bits() & other.bits() == other.bits()
            }

            /// The union of both; what `|` does, in constants too.
            $vis const fn with(self, other: Self) -> Self {
                Self::from_bits(self.bits() | other.bits())
            }

            /// This without the bits of `other`.
            $vis const fn without(self, other: Self) -> Self {
                Self::from_bits(self.bits() & !other.bits())
            }
        }

        impl core::ops::BitOr for $Name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }

        impl core::ops::BitOrAssign for $Name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.with(other);
            }
        }

        impl core::ops::BitAnd for $Name {
            type Output = Self;

            fn bitand(self, other: Self) -> Self {
                Self::from_bits(self.bits() & other.bits())
            }
        }

        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.bits())?;
                $(
                    if self.contains(Self::$FLAG) {
                        f.write_str(concat!(" ", stringify!($FLAG)))?;
                    }
                )*
                Ok(())
            }
        }

        impl core::fmt::Debug for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($Name), "({})"), self)
            }
        }

        #[cfg(feature = "defmt")]
        impl defmt::Format for $Name {
            fn format(&self, f: defmt::Formatter<'_>) {
                defmt::write!(f, "{:#x}", self.bits());
            }
        }
    };
}
/// Lists raw fields under their own names, with a format where one is given:
/// `show!(out, self: vid = "{:#06x}", sn)`. Returns the writer's result.
macro_rules! show {
    ($out:ident, $this:ident: $($field:ident $(= $format:literal)?),+ $(,)?) => {
        (|| {
            $( show!(@one $out, $this, $field $(, $format)?)?; )+
            core::fmt::Result::Ok(())
        })()
    };
    (@one $out:ident, $this:ident, $field:ident) => {
        $out.field(stringify!($field), &$this.$field)
    };
    (@one $out:ident, $this:ident, $field:ident, $format:literal) => {
        $out.field(stringify!($field), format_args!($format, $this.$field))
    };
}
#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    flags! {
        /// For the tests below.
        struct Sample: u16 {
            /// The lowest bit.
            const LOW = 1;
            /// The highest bit.
            const HIGH = 1 << 15;
        }
    }

    #[test]
    fn flags_are_little_endian_and_keep_reserved_bits() {
        let flags = Sample::read_from_bytes(&[0x03, 0x80]).unwrap();
        assert_eq!(flags.bits(), 0x8003);
        assert!(flags.contains(Sample::LOW | Sample::HIGH));
        assert_eq!(flags.without(Sample::HIGH).bits(), 0x0003);
        assert!(!Sample::LOW.contains(Sample::HIGH));
        assert_eq!(std::format!("{flags}"), "0x8003 LOW HIGH");
        assert_eq!(std::format!("{}", Sample::default()), "0x0");
    }
}
