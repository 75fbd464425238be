//! Lists that fill a page: namespaces (CNS 02h, 07h, 10h, 1Ah), controllers
//! (CNS 12h, 13h) and I/O command set combinations (CNS 1Ch).
use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::ids::{Cntlid, Nsid};
use crate::wire::tree::{Tree, TreeWriter};

/// Namespace List: up to 1024 NSIDs in increasing order, ended by 0 (NVMe
/// Base 2.1, figure "Namespace List Format").
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct NamespaceList {
    /// NSIDs; 0 ends the list.
    pub nsid: [U32; Self::CAPACITY],
}

layout!(NamespaceList: 4096, nsid @ 0);

impl NamespaceList {
    /// NSIDs a list can hold.
    pub const CAPACITY: usize = 1024;

    /// The first NSIDs of `nsids`, as many as fit. They are to be in
    /// increasing order, and above the NSID of the command.
    pub fn collect(nsids: impl IntoIterator<Item = Nsid>) -> Self {
        let mut list = [U32::ZERO; Self::CAPACITY];
        for (to, nsid) in list.iter_mut().zip(nsids) {
            to.set(nsid.into());
        }
        Self { nsid: list }
    }

    /// The NSIDs up to the first 0.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.nsid
            .iter()
            .map(|nsid| Nsid(nsid.get()))
            .take_while(|&nsid| nsid != Nsid(0))
    }
}

/// Controller List: up to 2047 controller identifiers in increasing order
/// (NVMe Base 2.1, figure "Controller List Format").
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ControllerList {
    /// Number of identifiers.
    pub num: U16,
    /// Identifiers; those from `num` on mean nothing.
    pub cntlid: [U16; Self::CAPACITY],
}

layout!(ControllerList: 4096, num @ 0, cntlid @ 2);

impl ControllerList {
    /// Identifiers a list can hold.
    pub const CAPACITY: usize = 2047;

    /// The first identifiers of `cntlids`, as many as fit. They are to be in
    /// increasing order.
    pub fn collect(cntlids: impl IntoIterator<Item = Cntlid>) -> Self {
        let mut list = [U16::ZERO; Self::CAPACITY];
        let mut num = 0u16;
        for (to, cntlid) in list.iter_mut().zip(cntlids) {
            to.set(cntlid.into());
            num = num.saturating_add(1);
        }
        Self {
            num: U16::new(num),
            cntlid: list,
        }
    }

    /// The identifiers, never more than fit whatever `num` says.
    pub fn iter(&self) -> impl Iterator<Item = Cntlid> + '_ {
        self.cntlid
            .iter()
            .take(self.num.get().into())
            .map(|cntlid| Cntlid(cntlid.get()))
    }
}

/// Identify I/O Command Set: combinations of command sets that can be
/// enabled together; the index of one is what the I/O Command Set Profile
/// feature takes (NVMe Base 2.1, figure "Identify I/O Command Set Data
/// Structure").
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct CommandSetCombinations {
    /// Combinations; an empty one ends the list.
    pub iocsc: [CommandSets; Self::CAPACITY],
}

layout!(CommandSetCombinations: 4096, iocsc @ 0);

impl CommandSetCombinations {
    /// Combinations a list can hold.
    pub const CAPACITY: usize = 512;

    /// The first combinations, as many as fit.
    pub fn collect(combinations: impl IntoIterator<Item = CommandSets>) -> Self {
        let mut iocsc = [CommandSets::default(); Self::CAPACITY];
        for (to, combination) in iocsc.iter_mut().zip(combinations) {
            *to = combination;
        }
        Self { iocsc }
    }

    /// The combinations up to the first empty one.
    pub fn iter(&self) -> impl Iterator<Item = CommandSets> + '_ {
        self.iocsc
            .iter()
            .copied()
            .take_while(|combination| combination.bits() != 0)
    }
}

flags! {
    /// I/O command sets, a bit for each Command Set Identifier.
    pub struct CommandSets: u64 {
        /// NVM command set.
        const NVM = 1 << 0;
        /// Key Value command set.
        const KV = 1 << 1;
        /// Zoned Namespace command set.
        const ZNS = 1 << 2;
        /// Subsystem Local Memory command set.
        const SLM = 1 << 3;
        /// Computational Programs command set.
        const CP = 1 << 4;
    }
}

impl fmt::Display for NamespaceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} namespaces", self.iter().count())
    }
}

impl fmt::Display for ControllerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} controllers", self.iter().count())
    }
}

impl fmt::Display for CommandSetCombinations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} I/O command set combinations", self.iter().count())
    }
}

impl Tree for NamespaceList {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        self.iter()
            .try_for_each(|nsid| out.field("nsid", format_args!("{:#x}", nsid.0)))
    }
}

impl Tree for ControllerList {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("num", self.num)?;
        self.iter()
            .try_for_each(|cntlid| out.field("cntlid", format_args!("{:#x}", cntlid.0)))
    }
}

impl Tree for CommandSetCombinations {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        for (index, combination) in self.iter().enumerate() {
            out.field("iocsc", format_args!("{index}: {combination}"))?;
        }
        Ok(())
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for NamespaceList {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "NamespaceList({})", self.iter().count());
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for ControllerList {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "ControllerList({})", self.iter().count());
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for CommandSetCombinations {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "CommandSetCombinations({})", self.iter().count());
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn namespace_list_ends_at_zero_or_when_full() {
        let mut bytes = [0; 4096];
        bytes[..12].copy_from_slice(&[1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        bytes[12] = 9;
        let list = NamespaceList::ref_from_bytes(&bytes).unwrap();
        assert_eq!(
            list.iter().collect::<Vec<_>>(),
            [Nsid(1), Nsid(0xffff_fffe)]
        );
        assert_eq!(format!("{}", list.tree()), "nsid: 0x1\nnsid: 0xfffffffe\n");
        assert_eq!(
            NamespaceList::read_from_bytes(&[1; 4096])
                .unwrap()
                .iter()
                .count(),
            1024
        );
        assert_eq!(
            NamespaceList::read_from_bytes(&[0; 4096])
                .unwrap()
                .iter()
                .count(),
            0
        );
    }

    #[test]
    fn namespace_list_takes_what_fits() {
        assert_eq!(
            NamespaceList::collect([Nsid(1), Nsid(2)]).as_bytes()[..9],
            [1, 0, 0, 0, 2, 0, 0, 0, 0]
        );
        assert_eq!(
            NamespaceList::collect((1..).map(Nsid)).iter().last(),
            Some(Nsid(1024))
        );
    }

    #[test]
    fn controller_list_is_counted_and_bounded() {
        let mut bytes = [0; 4096];
        bytes[..6].copy_from_slice(&[1, 0, 0x02, 0x01, 7, 0]);
        let list = ControllerList::read_from_bytes(&bytes).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [Cntlid(0x0102)]);
        assert_eq!(
            ControllerList::read_from_bytes(&[0xff; 4096])
                .unwrap()
                .iter()
                .count(),
            2047
        );
        assert_eq!(
            ControllerList::read_from_bytes(&[0; 4096])
                .unwrap()
                .iter()
                .count(),
            0
        );
        assert_eq!(
            ControllerList::collect([Cntlid(3), Cntlid(4)]).as_bytes()[..7],
            [2, 0, 3, 0, 4, 0, 0]
        );
        assert_eq!(
            ControllerList::collect((0..u16::MAX).map(Cntlid)).num.get(),
            2047
        );
    }

    #[test]
    fn command_sets_are_bits() {
        let mut bytes = [0; 4096];
        bytes[0] = 1;
        bytes[8] = 5;
        let list = CommandSetCombinations::ref_from_bytes(&bytes).unwrap();
        assert_eq!(
            list.iter().collect::<Vec<_>>(),
            [CommandSets::NVM, CommandSets::NVM | CommandSets::ZNS]
        );
        assert_eq!(
            CommandSetCombinations::collect([CommandSets::NVM]).as_bytes()[..9],
            [1, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}
