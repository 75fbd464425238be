//! What every codec repeats: total enums, newtypes' glue and `defmt`.

/// An enum over every value of an integer: the named ones, and `Unknown`.
///
/// `Name = 0x00 => "Wording of the specification"` makes a documented variant,
/// and the enum gets `From` both ways, `code`, `name` and `Display`.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Name:ident: $int:ty {
            $( $Variant:ident = $value:literal => $text:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        $vis enum $Name {
            $(
                #[doc = concat!($text, " (`", stringify!($value), "`).")]
                $Variant,
            )*
            /// Any other value, kept as it came.
            Unknown($int),
        }

        impl $Name {
            /// The value on the wire.
            pub const fn code(self) -> $int {
                match self {
                    $( Self::$Variant => $value, )*
                    Self::Unknown(code) => code,
                }
            }

            /// The specification's wording; `"Unknown"` for any other value.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$Variant => $text, )*
                    Self::Unknown(_) => "Unknown",
                }
            }
        }

        impl From<$int> for $Name {
            fn from(code: $int) -> Self {
                match code {
                    $( $value => Self::$Variant, )*
                    code => Self::Unknown(code),
                }
            }
        }

        impl From<$Name> for $int {
            fn from(value: $Name) -> $int {
                value.code()
            }
        }

        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    Self::Unknown(code) => write!(f, "Unknown ({code:02X}h)"),
                    known => f.write_str(known.name()),
                }
            }
        }
    };
}

/// Asserts a structure's size, and the offset of the fields named, in bytes.
macro_rules! layout {
    ($Name:ident: $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(core::mem::size_of::<$Name>() == $size);
            $( assert!(core::mem::offset_of!($Name, $field) == $offset); )*
        };
    };
}

/// `defmt::Format` (feature `defmt`) as the type's `Display`.
macro_rules! defmt_as_display {
    ($($Name:ty),* $(,)?) => {
        $(
            #[cfg(feature = "defmt")]
            impl defmt::Format for $Name {
                fn format(&self, f: defmt::Formatter<'_>) {
                    defmt::write!(f, "{}", defmt::Display2Format(self));
                }
            }
        )*
    };
}

/// What a bit field may hold. `from_bits` is given no more bits than the field
/// has, and drops those that the type cannot hold.
pub(crate) trait Bits: Copy {
    fn from_bits(bits: u64) -> Self;
    fn to_bits(self) -> u64;
}

impl Bits for bool {
    fn from_bits(bits: u64) -> Self {
        bits & 1 != 0
    }

    fn to_bits(self) -> u64 {
        self.into()
    }
}

impl Bits for u8 {
    fn from_bits(bits: u64) -> Self {
        let [byte, ..] = bits.to_le_bytes();
        byte
    }

    fn to_bits(self) -> u64 {
        self.into()
    }
}

impl Bits for u16 {
    fn from_bits(bits: u64) -> Self {
        let [b0, b1, ..] = bits.to_le_bytes();
        Self::from_le_bytes([b0, b1])
    }

    fn to_bits(self) -> u64 {
        self.into()
    }
}

impl Bits for u32 {
    fn from_bits(bits: u64) -> Self {
        let [b0, b1, b2, b3, ..] = bits.to_le_bytes();
        Self::from_le_bytes([b0, b1, b2, b3])
    }

    fn to_bits(self) -> u64 {
        self.into()
    }
}

impl Bits for u64 {
    fn from_bits(bits: u64) -> Self {
        bits
    }

    fn to_bits(self) -> u64 {
        self
    }
}

/// Lets an `open_enum!` over `u8` stand in a bit field.
macro_rules! enum_bits {
    ($($Name:ident),* $(,)?) => {
        $(
            impl crate::wire::macros::Bits for $Name {
                fn from_bits(bits: u64) -> Self {
                    <u8 as crate::wire::macros::Bits>::from_bits(bits).into()
                }

                fn to_bits(self) -> u64 {
                    self.code().into()
                }
            }
        )*
    };
}

/// A register: an integer whose bit fields are read and set by name.
///
/// `get / with_get: Type = low, width;` each with its visibility. `Display`
/// lists what is not zero, the tree form lists all.
macro_rules! bitfield {
    (
        $(#[$meta:meta])*
        $Name:ident: $int:ident {
            $(
                $(#[$fmeta:meta])*
                $gvis:vis $get:ident / $wvis:vis $with:ident: $ty:ty = $low:literal, $width:literal;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        pub struct $Name(pub $int);

        impl $Name {
            $(
                $(#[$fmeta])*
                #[allow(dead_code)]
                $gvis fn $get(self) -> $ty {
                    let bits = (self.0 >> $low) & ($int::MAX >> ($int::BITS - $width));
                    crate::wire::macros::Bits::from_bits(bits.into())
                }

                #[doc = concat!("The same with `", stringify!($get), "` set; bits beyond the field are dropped.")]
                #[allow(dead_code)]
                #[must_use]
                $wvis fn $with(self, value: $ty) -> Self {
                    use crate::wire::macros::Bits;
                    let mask = $int::MAX >> ($int::BITS - $width);
                    let bits = <$int as Bits>::from_bits(Bits::to_bits(value)) & mask;
                    Self((self.0 & !(mask << $low)) | (bits << $low))
                }
            )*
        }

        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.0)?;
                $(
                    if crate::wire::macros::Bits::to_bits(self.$get()) != 0 {
                        write!(f, concat!(" ", stringify!($get), " {}"), self.$get())?;
                    }
                )*
                Ok(())
            }
        }

        impl crate::wire::tree::Tree for $Name {
            fn fields(&self, out: &mut crate::wire::tree::TreeWriter<'_>) -> core::fmt::Result {
                $( out.field(stringify!($get), self.$get())?; )*
                Ok(())
            }
        }
    };
}

pub(crate) use {enum_bits, open_enum};
