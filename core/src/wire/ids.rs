//! Identifiers: command, namespace, queue, controller, and NVMe Qualified
//! Names.
use core::fmt;
use core::str::FromStr;

use super::text::UuidText;

macro_rules! id {
    ($(#[$meta:meta])* $Name:ident($int:ty) $({ $($value:literal => $text:literal),* })?) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        pub struct $Name(pub $int);

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($( $value => f.pad($text), )*)?
                    number => fmt::Display::fmt(&number, f),
                }
            }
        }

        impl From<$int> for $Name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }

        impl From<$Name> for $int {
            fn from(id: $Name) -> $int {
                id.0
            }
        }
    };
}

id! {
    /// Command Identifier: names an outstanding command within its queue.
    Cid(u16)
}
id! {
    /// Namespace Identifier; 0 names none.
    Nsid(u32) { 0xFFFF_FFFF => "all" }
}
id! {
    /// Queue Identifier; 0 is the Admin Queue.
    Qid(u16)
}
id! {
    /// Controller Identifier, unique within a subsystem.
    Cntlid(u16) { 0xFFFF => "dynamic", 0xFFFE => "static" }
}

impl Nsid {
    /// FFFFFFFFh: every namespace the command can apply to.
    pub const ALL: Self = Self(0xFFFF_FFFF);
}

impl Qid {
    /// The Admin Queue.
    pub const ADMIN: Self = Self(0);

    /// Whether this is the Admin Queue.
    pub const fn is_admin(self) -> bool {
        self.0 == 0
    }
}

impl Cntlid {
    /// FFFFh in Connect: the subsystem allocates a controller (dynamic model).
    pub const DYNAMIC: Self = Self(0xFFFF);
    /// FFFEh in Connect: any controller of the static model.
    pub const STATIC_ANY: Self = Self(0xFFFE);
    /// The greatest identifier that a controller may carry (NVMe Base 2.0,
    /// figure "Identify – Identify Controller Data Structure", CNTLID).
    pub const MAX: Self = Self(0xFFEF);
}

/// An NVMe Qualified Name: the name of a host or of a subsystem
/// (NVMe Base 2.0, section 4.5), at most [`Nqn::MAX_LEN`] bytes of UTF-8.
///
/// The `nqn.` prefix is not demanded: Linux targets and hosts are often run
/// with short names such as `testnqn`, and both they and SPDK accept them.
/// Control characters are refused, for names end up in logs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(heapless::String<{ Nqn::MAX_LEN }, u8>);

impl Nqn {
    /// Bytes a name may have, without its terminating NUL.
    pub const MAX_LEN: usize = 223;
    /// Bytes of a name's field on the wire.
    pub const FIELD_LEN: usize = 256;
    /// The well-known name of the Discovery Service.
    pub const DISCOVERY: &'static str = "nqn.2014-08.org.nvmexpress.discovery";

    /// Reads a name from a NUL-padded field, or from its bare bytes.
    ///
    /// # Errors
    /// [`NqnError`] says which rule the bytes break.
    pub fn parse(field: &[u8]) -> Result<Self, NqnError> {
        let name = field.split(|&byte| byte == 0).next().unwrap_or_default();
        if name.is_empty() {
            return Err(NqnError::Empty);
        }
        if name.len() > Self::MAX_LEN {
            return Err(NqnError::TooLong);
        }
        let name = core::str::from_utf8(name).map_err(|_| NqnError::NotUtf8)?;
        if name.chars().any(char::is_control) {
            return Err(NqnError::ControlCharacter);
        }
        heapless::String::try_from(name)
            .map(Self)
            .map_err(|_| NqnError::TooLong)
    }

    /// The name of the Discovery Service, [`Nqn::DISCOVERY`].
    pub fn discovery() -> Self {
        Self(heapless::String::try_from(Self::DISCOVERY).unwrap_or_default())
    }

    /// Whether this is the well-known name of the Discovery Service.
    pub fn is_discovery(&self) -> bool {
        self.as_str() == Self::DISCOVERY
    }

    /// Whether the name starts with `nqn.`, as the specification demands.
    pub fn has_prefix(&self) -> bool {
        self.as_str().starts_with("nqn.")
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as its field on the wire: padded with NUL.
    pub fn to_field(&self) -> [u8; Self::FIELD_LEN] {
        let mut field = [0; Self::FIELD_LEN];
        for (to, from) in field.iter_mut().zip(self.as_str().bytes()) {
            *to = from;
        }
        field
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        Self::parse(name.as_bytes())
    }
}

impl AsRef<str> for Nqn {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Host Identifier, 128 bits: with the host's NQN it tells one host from
/// another; 0 is none. `Display` and `FromStr` use the form of a UUID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct HostId(pub [u8; 16]);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        UuidText(&self.0).fmt(f)
    }
}

impl FromStr for HostId {
    type Err = InvalidHostId;

    fn from_str(text: &str) -> Result<Self, InvalidHostId> {
        let mut digits = text.chars().filter(|&c| c != '-').map(|c| c.to_digit(16));
        let mut id = [0; 16];
        for byte in &mut id {
            let (Some(Some(high)), Some(Some(low))) = (digits.next(), digits.next()) else {
                return Err(InvalidHostId);
            };
            *byte = u8::try_from(high << 4 | low).map_err(|_| InvalidHostId)?;
        }
        match digits.next() {
            None => Ok(Self(id)),
            Some(_) => Err(InvalidHostId),
        }
    }
}

/// The text is not 32 hexadecimal digits, with or without hyphens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct InvalidHostId;

impl fmt::Display for InvalidHostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the host identifier is not 32 hexadecimal digits")
    }
}

impl core::error::Error for InvalidHostId {}

/// Why bytes are no [`Nqn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum NqnError {
    /// No byte before the first NUL.
    Empty,
    /// More than [`Nqn::MAX_LEN`] bytes, or no NUL after that many.
    TooLong,
    /// Not UTF-8.
    NotUtf8,
    /// A control character within the name.
    ControlCharacter,
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the NQN is empty",
            Self::TooLong => "the NQN is longer than 223 bytes",
            Self::NotUtf8 => "the NQN is not UTF-8",
            Self::ControlCharacter => "the NQN has a control character",
        })
    }
}

impl core::error::Error for NqnError {}

defmt_as_display!(Nqn);

#[cfg(test)]
mod tests {

    use super::*;

    fn field(name: &[u8]) -> [u8; 256] {
        let mut field = [0; 256];
        field[..name.len()].copy_from_slice(name);
        field
    }

    #[test]
    fn a_name_ends_at_its_first_nul() {
        let nqn = Nqn::parse(&field(b"nqn.2014-08.org.example:a\0junk")).unwrap();
        assert_eq!(nqn.as_str(), "nqn.2014-08.org.example:a");
        assert_eq!(nqn.to_field(), field(b"nqn.2014-08.org.example:a"));
        assert!(nqn.has_prefix() && !nqn.is_discovery());
    }

    #[test]
    fn a_name_has_at_most_223_bytes() {
        assert!(Nqn::parse(&field(&[b'A'; 223])).is_ok());
        assert_eq!(Nqn::parse(&field(&[b'A'; 224])), Err(NqnError::TooLong));
        // CVE-2023-6121: 256 bytes and no NUL.
        assert_eq!(Nqn::parse(&[b'A'; 256]), Err(NqnError::TooLong));
        assert!(Nqn::parse(&[b'A'; 223]).is_ok());
    }

    #[test]
    fn each_fault_has_its_error() {
        assert_eq!(Nqn::parse(b""), Err(NqnError::Empty));
        assert_eq!(Nqn::parse(&[0; 256]), Err(NqnError::Empty));
        assert_eq!(Nqn::parse(b"nqn.\xff"), Err(NqnError::NotUtf8));
        assert_eq!(Nqn::parse(b"nqn.\x1b[2J"), Err(NqnError::ControlCharacter));
    }

    #[test]
    fn identifiers_show_as_numbers_or_by_name() {
        assert_eq!(std::format!("{} {}", Nsid(1), Nsid::ALL), "1 all");
        assert_eq!(std::format!("{:>3} {}", Cid(7), Qid(0xFFFF)), "  7 65535");
        assert_eq!(
            std::format!("{} {}", Cntlid::DYNAMIC, Cntlid::STATIC_ANY),
            "dynamic static"
        );
    }

    #[test]
    fn a_host_identifier_is_written_as_a_uuid() {
        let id = HostId([0xF8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        let text = "f8010203-0405-0607-0809-0a0b0c0d0e0f";
        assert_eq!(std::format!("{id}"), text);
        assert_eq!(text.parse(), Ok(id));
        assert_eq!("F80102030405060708090a0b0c0d0e0f".parse(), Ok(id));
        for wrong in ["", "f8", "f80102030405060708090a0b0c0d0e0f0", "g8010203"] {
            assert_eq!(wrong.parse::<HostId>(), Err(InvalidHostId));
        }
    }

    #[test]
    fn the_discovery_name_is_itself() {
        assert_eq!(Nqn::DISCOVERY.parse(), Ok(Nqn::discovery()));
        assert!(Nqn::discovery().is_discovery());
    }
}
