//! Namespace Identification Descriptor list, CNS 03h (NVMe Base 2.1, section
//! 5.1.13.2.3): NIDT, NIDL, two reserved bytes and NIDL bytes of identifier each.
use core::fmt;

use crate::wire::text::{Hex, UuidText};
use crate::wire::tree::{Tree, TreeWriter};

/// What fills a descriptor list.
pub const DESCRIPTORS_SIZE: usize = 4096;
const HEADER: usize = 4;

/// One identifier of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDescriptor<'a> {
    /// IEEE Extended Unique Identifier, big-endian.
    Eui64([u8; 8]),
    /// Namespace Globally Unique Identifier, big-endian.
    Nguid([u8; 16]),
    /// RFC 9562 UUID, in the order of its text form.
    Uuid([u8; 16]),
    /// Command Set Identifier.
    Csi(u8),
    /// A type this version does not name.
    Other {
        /// Namespace Identifier Type.
        nidt: u8,
        /// Namespace Identifier.
        nid: &'a [u8],
    },
}

open_enum! {
    /// Namespace Identifier Type.
    pub enum Nidt: u8 {
        Eui64 = 1 => "Eui64",
        Nguid = 2 => "Nguid",
        Uuid = 3 => "Uuid",
        Csi = 4 => "Csi",
    }
}

/// Why a descriptor list does not parse. What came before is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// A descriptor reaches beyond the end of the list.
    Truncated,
    /// NIDL is not the length of its type.
    Length {
        /// Namespace Identifier Type.
        nidt: Nidt,
        /// Namespace Identifier Length in bytes.
        nidl: u8,
    },
}

impl NamespaceDescriptor<'_> {
    /// Its type.
    pub fn nidt(&self) -> Nidt {
        match self {
            Self::Eui64(_) => Nidt::Eui64,
            Self::Nguid(_) => Nidt::Nguid,
            Self::Uuid(_) => Nidt::Uuid,
            Self::Csi(_) => Nidt::Csi,
            Self::Other { nidt, .. } => Nidt::from(*nidt),
        }
    }

    /// The identifier's bytes as they are on the wire.
    pub const fn nid(&self) -> &[u8] {
        match self {
            Self::Eui64(id) => id,
            Self::Nguid(id) | Self::Uuid(id) => id,
            Self::Csi(csi) => core::slice::from_ref(csi),
            Self::Other { nid, .. } => nid,
        }
    }
}

/// Reads a descriptor list.
pub const fn descriptors(list: &[u8]) -> Descriptors<'_> {
    Descriptors { rest: list }
}

/// The descriptors of a list, up to one of NIDL 0 or the end. After an error
/// it yields nothing more.
#[derive(Clone, Debug)]
pub struct Descriptors<'a> {
    rest: &'a [u8],
}

impl<'a> Descriptors<'a> {
    fn parse(
        &mut self,
        nidt: u8,
        nidl: u8,
        rest: &'a [u8],
    ) -> Result<NamespaceDescriptor<'a>, DescriptorError> {
        let (nid, rest) = rest
            .split_at_checked(nidl.into())
            .ok_or(DescriptorError::Truncated)?;
        let bad_length = |_| DescriptorError::Length {
            nidt: Nidt::from(nidt),
            nidl,
        };
        let descriptor = match Nidt::from(nidt) {
            Nidt::Eui64 => NamespaceDescriptor::Eui64(nid.try_into().map_err(bad_length)?),
            Nidt::Nguid => NamespaceDescriptor::Nguid(nid.try_into().map_err(bad_length)?),
            Nidt::Uuid => NamespaceDescriptor::Uuid(nid.try_into().map_err(bad_length)?),
            Nidt::Csi => {
                let [csi] = nid.try_into().map_err(bad_length)?;
                NamespaceDescriptor::Csi(csi)
            }
            Nidt::Unknown(nidt) => NamespaceDescriptor::Other { nidt, nid },
        };
        self.rest = rest;
        Ok(descriptor)
    }
}

impl<'a> Iterator for Descriptors<'a> {
    type Item = Result<NamespaceDescriptor<'a>, DescriptorError>;

    fn next(&mut self) -> Option<Self::Item> {
        match core::mem::take(&mut self.rest) {
            [] | [_, 0, ..] => None,
            [nidt, nidl, _, _, rest @ ..] => Some(self.parse(*nidt, *nidl, rest)),
            _ => Some(Err(DescriptorError::Truncated)),
        }
    }
}

/// Fills a buffer with a descriptor list.
#[derive(Debug)]
pub struct DescriptorWriter<'a> {
    list: &'a mut [u8],
    used: usize,
}

impl<'a> DescriptorWriter<'a> {
    /// Clears `list`: a list ends where NIDL is 0.
    pub fn new(list: &'a mut [u8]) -> Self {
        list.fill(0);
        Self { list, used: 0 }
    }

    /// Appends one identifier; `false` if the buffer has no room for it, or
    /// it is empty or longer than a NIDL can say.
    #[must_use]
    pub fn push(&mut self, descriptor: &NamespaceDescriptor<'_>) -> bool {
        let nid = descriptor.nid();
        let Ok(nidl @ 1..) = u8::try_from(nid.len()) else {
            return false;
        };
        let length = HEADER.saturating_add(nid.len());
        let Some(to) = self
            .list
            .get_mut(self.used..)
            .and_then(|free| free.get_mut(..length))
        else {
            return false;
        };
        let (header, to) = to.split_at_mut(HEADER);
        header.copy_from_slice(&[descriptor.nidt().code(), nidl, 0, 0]);
        to.copy_from_slice(nid);
        self.used = self.used.saturating_add(length);
        true
    }
}

impl fmt::Display for NamespaceDescriptor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => write!(f, "uuid {}", UuidText(uuid)),
            Self::Csi(csi) => write!(f, "csi {csi:#x}"),
            other => write!(f, "{} {}", other.nidt(), Hex(other.nid())),
        }
    }
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("a descriptor reaches beyond its list"),
            Self::Length { nidt, nidl } => {
                write!(f, "an identifier of type {nidt} has {nidl} bytes")
            }
        }
    }
}

impl core::error::Error for DescriptorError {}

impl Tree for Descriptors<'_> {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        for descriptor in self.clone() {
            match descriptor {
                Ok(NamespaceDescriptor::Uuid(uuid)) => out.field("uuid", UuidText(&uuid))?,
                Ok(NamespaceDescriptor::Csi(csi)) => out.field("csi", format_args!("{csi:#x}"))?,
                Ok(NamespaceDescriptor::Eui64(id)) => out.field("eui64", Hex(&id))?,
                Ok(NamespaceDescriptor::Nguid(id)) => out.field("nguid", Hex(&id))?,
                Ok(other) => out.field("nid", other)?,
                Err(error) => out.field("error", error)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Descriptors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for descriptor in self.clone() {
            f.write_str(separator)?;
            match descriptor {
                Ok(descriptor) => descriptor.fmt(f)?,
                Err(error) => error.fmt(f)?,
            }
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for NamespaceDescriptor<'_> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{} {:x}", self.nidt(), self.nid());
    }
}

defmt_as_display!(DescriptorError, Descriptors<'_>);

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn list_is_read_up_to_nidl_0() {
        let mut list = [0u8; DESCRIPTORS_SIZE];
        list[..12].copy_from_slice(&[1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        list[12..17].copy_from_slice(&[4, 1, 0, 0, 2]);
        list[17..23].copy_from_slice(&[9, 2, 0, 0, 0xaa, 0xbb]);
        list[30] = 3;
        let found: Vec<_> = descriptors(&list).collect();
        assert_eq!(
            found,
            [
                Ok(NamespaceDescriptor::Eui64([1, 2, 3, 4, 5, 6, 7, 8])),
                Ok(NamespaceDescriptor::Csi(2)),
                Ok(NamespaceDescriptor::Other {
                    nidt: 9,
                    nid: &[0xaa, 0xbb]
                }),
            ]
        );
        assert_eq!(
            format!("{}", descriptors(&list).tree()),
            "eui64: 0102030405060708\ncsi: 0x2\nnid: Unknown (09h) aabb\n"
        );
    }

    #[test]
    fn reading_stops_at_what_does_not_fit() {
        let cases: [(&[u8], Option<DescriptorError>); 7] = [
            (&[], None),
            (&[0; 4096], None),
            (&[1], Some(DescriptorError::Truncated)),
            (&[1, 8, 0], Some(DescriptorError::Truncated)),
            (&[1, 8, 0, 0, 1, 2, 3], Some(DescriptorError::Truncated)),
            (&[3, 255, 0, 0, 1], Some(DescriptorError::Truncated)),
            (
                &[4, 2, 0, 0, 1, 1],
                Some(DescriptorError::Length {
                    nidt: Nidt::Csi,
                    nidl: 2,
                }),
            ),
        ];
        for (list, expected) in cases {
            let mut found = descriptors(list);
            assert_eq!(found.next().map(Result::unwrap_err), expected);
            assert_eq!(found.next(), None);
        }
    }

    #[test]
    fn writer_fills_and_clears_the_buffer() {
        let mut list = [0xff; 45];
        let mut writer = DescriptorWriter::new(&mut list);
        assert!(writer.push(&NamespaceDescriptor::Uuid([0x11; 16])));
        assert!(writer.push(&NamespaceDescriptor::Nguid([0x22; 16])));
        assert!(!writer.push(&NamespaceDescriptor::Eui64([0x33; 8])));
        assert!(writer.push(&NamespaceDescriptor::Csi(0)));
        assert!(!writer.push(&NamespaceDescriptor::Csi(0)));
        assert!(!writer.push(&NamespaceDescriptor::Other { nidt: 9, nid: &[] }));
        let mut expected = [0; 45];
        expected[..4].copy_from_slice(&[3, 16, 0, 0]);
        expected[4..20].fill(0x11);
        expected[20..24].copy_from_slice(&[2, 16, 0, 0]);
        expected[24..40].fill(0x22);
        expected[40..].copy_from_slice(&[4, 1, 0, 0, 0]);
        assert_eq!(list, expected);
    }

    #[test]
    fn identifier_of_256_bytes_is_refused() {
        let mut list = [0; 512];
        let mut writer = DescriptorWriter::new(&mut list);
        assert!(!writer.push(&NamespaceDescriptor::Other {
            nidt: 9,
            nid: &[1; 256]
        }));
        assert!(writer.push(&NamespaceDescriptor::Other {
            nidt: 9,
            nid: &[1; 255]
        }));
        assert_eq!(list[..4], [9, 255, 0, 0]);
    }

    #[test]
    fn uuid_is_shown_as_people_know_it() {
        let uuid = NamespaceDescriptor::Uuid(
            *b"\x12\x34\x56\x78\x9a\xbc\xde\xf0\x01\x02\x03\x04\x05\x06\x07\x08",
        );
        assert_eq!(
            format!("{uuid}"),
            "uuid 12345678-9abc-def0-0102-030405060708"
        );
    }
}
