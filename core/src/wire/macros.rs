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
