//! Changed Attached Namespace List log, 04h, and its sibling for allocated
//! namespaces, 1Ch (NVMe Base 2.1, section 5.1.12.1.5).
use core::fmt;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::ids::Nsid;
use crate::wire::tree::{Tree, TreeWriter};

/// Namespaces that changed since the log was last read: up to 1024 NSIDs in
/// increasing order, ended by 0; FFFFFFFFh alone if there are more.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct ChangedNamespaces {
    /// NSIDs.
    pub nsid: [U32; Self::CAPACITY],
}

layout!(ChangedNamespaces: 4096, nsid @ 0);

impl ChangedNamespaces {
    /// NSIDs a list can hold.
    pub const CAPACITY: usize = 1024;

    /// The list of `nsids`, which are to be in increasing order; more than
    /// fit become the list that says so.
    pub fn collect(nsids: impl IntoIterator<Item = Nsid>) -> Self {
        let mut list = [U32::ZERO; Self::CAPACITY];
        let mut nsids = nsids.into_iter();
        // `zip` asks the list first, so no NSID is taken that has no place.
        for (to, nsid) in list.iter_mut().zip(nsids.by_ref()) {
            to.set(nsid.into());
        }
        if nsids.next().is_some() {
            list = [U32::ZERO; Self::CAPACITY];
            list[0].set(Nsid::ALL.into());
        }
        Self { nsid: list }
    }

    /// Too many namespaces changed to list them.
    pub fn overflowed(&self) -> bool {
        self.nsid[0].get() == Nsid::ALL.0
    }

    /// The NSIDs up to the first 0; none if they are too many to list.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> + '_ {
        let listed = if self.overflowed() {
            &[]
        } else {
            self.nsid.as_slice()
        };
        listed
            .iter()
            .map(|nsid| Nsid(nsid.get()))
            .take_while(|&nsid| nsid != Nsid(0))
    }
}

impl fmt::Display for ChangedNamespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.overflowed() {
            f.write_str("more than 1024 changed namespaces")
        } else {
            write!(f, "{} changed namespaces", self.iter().count())
        }
    }
}

impl Tree for ChangedNamespaces {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        if self.overflowed() {
            out.field("nsid", "0xffffffff (more than 1024)")?;
        }
        self.iter()
            .try_for_each(|nsid| out.field("nsid", format_args!("{:#x}", nsid.0)))
    }
}

defmt_as_display!(ChangedNamespaces);

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn list_ends_at_zero() {
        let mut bytes = [0; 4096];
        bytes[0] = 2;
        bytes[4] = 9;
        let list = ChangedNamespaces::ref_from_bytes(&bytes).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [Nsid(2), Nsid(9)]);
        assert_eq!(
            ChangedNamespaces::collect([Nsid(2), Nsid(9)]).as_bytes(),
            bytes
        );
        assert_eq!(ChangedNamespaces::collect([]).iter().count(), 0);
    }

    #[test]
    fn more_than_fit_say_so() {
        let full = ChangedNamespaces::collect((1..=1024).map(Nsid));
        assert!(!full.overflowed());
        assert_eq!(full.iter().count(), 1024);
        let over = ChangedNamespaces::collect((1..=1025).map(Nsid));
        assert!(over.overflowed());
        assert_eq!(over.as_bytes()[..4], [0xff; 4]);
        assert!(over.as_bytes()[4..].iter().all(|&byte| byte == 0));
        assert_eq!(format!("{over}"), "more than 1024 changed namespaces");
        assert_eq!(over.iter().count(), 0);
    }
}
