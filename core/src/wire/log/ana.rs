//! Asymmetric Namespace Access log, 0Ch (NVMe Base 2.1, figure "Asymmetric
//! Namespace Access Log Page"): a header, then a descriptor for each group
//! and the NSIDs of that group.
//!
//! It is written through a [`LogWindow`](super::LogWindow): the header, then
//! each descriptor with its NSIDs as `U32`.
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::ids::Nsid;
use crate::wire::tree::{Tree, TreeWriter};

/// What the log starts with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AnaLogHeader {
    /// Change count of the log; starts at 0.
    pub chgcnt: U64,
    /// Number of ANA group descriptors.
    pub ngrps: U16,
    reserved_10: [u8; 6],
}

layout!(AnaLogHeader: 16, chgcnt @ 0, ngrps @ 8);

impl AnaLogHeader {
    /// The header of a log with `ngrps` groups.
    pub const fn new(chgcnt: u64, ngrps: u16) -> Self {
        Self {
            chgcnt: U64::new(chgcnt),
            ngrps: U16::new(ngrps),
            reserved_10: [0; 6],
        }
    }
}

/// One ANA group; `nnsids` NSIDs of four bytes follow it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AnaGroupDescriptor {
    /// ANA Group Identifier, not 0.
    pub grpid: U32,
    /// Number of NSIDs; 0 when the host asked for groups only (RGO).
    pub nnsids: U32,
    /// Change count of the group.
    pub chgcnt: U64,
    /// ANA state, bits 3:0; see [`Self::state`].
    pub state: u8,
    reserved_17: [u8; 15],
}

layout!(AnaGroupDescriptor: 32, grpid @ 0, nnsids @ 4, chgcnt @ 8, state @ 16);

impl AnaGroupDescriptor {
    /// The descriptor of a group that `nnsids` NSIDs follow.
    pub const fn new(grpid: u32, nnsids: u32, chgcnt: u64, state: AnaState) -> Self {
        Self {
            grpid: U32::new(grpid),
            nnsids: U32::new(nnsids),
            chgcnt: U64::new(chgcnt),
            state: state.code() & 0x0f,
            reserved_17: [0; 15],
        }
    }

    /// How the controller gives access to the group's namespaces.
    pub fn state(&self) -> AnaState {
        AnaState::from(self.state & 0x0f)
    }
}

open_enum! {
    /// Asymmetric Namespace Access State.
    pub enum AnaState: u8 {
        Optimized = 0x1 => "Optimized",
        NonOptimized = 0x2 => "Non-Optimized",
        Inaccessible = 0x3 => "Inaccessible",
        PersistentLoss = 0x4 => "Persistent Loss",
        Change = 0xf => "Change",
    }
}

/// A log that was read whole.
#[derive(Clone, Copy, Debug)]
pub struct AnaLog<'a> {
    header: &'a AnaLogHeader,
    groups: &'a [u8],
}

impl<'a> AnaLog<'a> {
    /// Takes the bytes of the log; more may follow it.
    ///
    /// # Errors
    /// [`AnaError::Truncated`] if there is no whole header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, AnaError> {
        let (header, groups) =
            AnaLogHeader::ref_from_prefix(bytes).map_err(|_| AnaError::Truncated)?;
        Ok(Self { header, groups })
    }

    /// The header.
    pub fn header(&self) -> &'a AnaLogHeader {
        self.header
    }

    /// The groups, as many as the header counts. Nothing follows an error.
    pub fn groups(&self) -> impl Iterator<Item = Result<AnaGroup<'a>, AnaError>> + use<'a> {
        let mut rest = Some(self.groups);
        (0..self.header.ngrps.get()).map_while(move |_| {
            Some(AnaGroup::parse(rest.take()?).map(|(group, after)| {
                rest = Some(after);
                group
            }))
        })
    }
}

/// A group and its NSIDs.
#[derive(Clone, Copy, Debug)]
pub struct AnaGroup<'a> {
    /// The descriptor.
    pub descriptor: &'a AnaGroupDescriptor,
    nsids: &'a [U32],
}

impl<'a> AnaGroup<'a> {
    fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), AnaError> {
        let (descriptor, rest) =
            AnaGroupDescriptor::ref_from_prefix(bytes).map_err(|_| AnaError::Truncated)?;
        let count = usize::try_from(descriptor.nnsids.get()).map_err(|_| AnaError::Truncated)?;
        let (nsids, rest) =
            <[U32]>::ref_from_prefix_with_elems(rest, count).map_err(|_| AnaError::Truncated)?;
        Ok((Self { descriptor, nsids }, rest))
    }

    /// The namespaces of the group.
    pub fn nsids(&self) -> impl Iterator<Item = Nsid> + use<'a> {
        self.nsids.iter().map(|nsid| Nsid(nsid.get()))
    }
}

/// Why a log does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AnaError {
    /// The log ends before what it says it holds.
    Truncated,
}

impl fmt::Display for AnaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ANA log ends before what it says it holds")
    }
}

impl core::error::Error for AnaError {}

impl fmt::Display for AnaLogHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ANA groups, change {}", self.ngrps, self.chgcnt)
    }
}

impl fmt::Display for AnaGroupDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(
            f,
            "ANA group {} {state}, {} namespaces",
            self.grpid, self.nnsids
        )
    }
}

impl fmt::Display for AnaLog<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.header.fmt(f)
    }
}

impl fmt::Display for AnaGroup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.descriptor.fmt(f)
    }
}

impl Tree for AnaLogHeader {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: chgcnt, ngrps)
    }
}

impl Tree for AnaGroupDescriptor {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: grpid, nnsids, chgcnt)?;
        out.field("state", self.state())
    }
}

impl Tree for AnaGroup<'_> {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        self.descriptor.fields(out)?;
        self.nsids().try_for_each(|nsid| out.field("nsid", nsid))
    }
}

impl Tree for AnaLog<'_> {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        self.header.fields(out)?;
        for group in self.groups() {
            match group {
                Ok(group) => out.node("group", &group)?,
                Err(error) => out.field("error", error)?,
            }
        }
        Ok(())
    }
}

defmt_as_display!(AnaLogHeader, AnaGroupDescriptor, AnaLog<'_>, AnaGroup<'_>);

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use super::*;
    use crate::wire::log::LogWindow;

    /// Two groups: 1 optimized with NSIDs 1 and 3, 2 inaccessible with none.
    fn bytes() -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend([7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes.extend([0; 15]);
        bytes.extend([1, 0, 0, 0, 3, 0, 0, 0]);
        bytes.extend([2, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 3]);
        bytes.extend([0; 15]);
        bytes
    }

    #[test]
    fn groups_are_read() {
        let bytes = bytes();
        let log = AnaLog::parse(&bytes).unwrap();
        assert_eq!(log.header().chgcnt.get(), 7);
        let groups: Vec<_> = log.groups().map(Result::unwrap).collect();
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].descriptor.state(), AnaState::Optimized);
        assert_eq!(groups[0].nsids().collect::<Vec<_>>(), [Nsid(1), Nsid(3)]);
        assert_eq!(groups[1].descriptor.chgcnt.get(), 6);
        assert_eq!(groups[1].descriptor.state(), AnaState::Inaccessible);
        assert_eq!(groups[1].nsids().count(), 0);
        let tree = format!("{}", log.tree());
        assert!(tree.starts_with("chgcnt: 7\nngrps: 2\ngroup:\n  grpid: 1\n  nnsids: 2\n"));
        assert!(tree.contains("  state: Optimized\n  nsid: 1\n  nsid: 3\ngroup:\n"));
    }

    #[test]
    fn counts_beyond_the_bytes_are_an_error() {
        let mut bytes = bytes();
        for end in 0..bytes.len() {
            match AnaLog::parse(&bytes[..end]) {
                Ok(log) => assert!(log.groups().any(|group| group.is_err()), "{end}"),
                Err(error) => assert!(error == AnaError::Truncated && end < 16),
            }
        }
        bytes[20..24].fill(0xff);
        let log = AnaLog::parse(&bytes).unwrap();
        let errors: Vec<_> = log.groups().map(Result::err).collect();
        assert_eq!(errors, [Some(AnaError::Truncated)]);
        bytes[8..10].fill(0xff);
        bytes[20..24].copy_from_slice(&[2, 0, 0, 0]);
        assert_eq!(AnaLog::parse(&bytes).unwrap().groups().count(), 3);
    }

    #[test]
    fn log_is_written_in_any_piece() {
        let expected = bytes();
        for start in 0..expected.len() {
            let mut out = [0xff; 24];
            let mut window = LogWindow::new(&mut out, start as u64);
            window.put(&AnaLogHeader::new(7, 2));
            window.put(&AnaGroupDescriptor::new(1, 2, 5, AnaState::Optimized));
            window.put(&[U32::new(1), U32::new(3)]);
            window.put(&AnaGroupDescriptor::new(2, 0, 6, AnaState::Inaccessible));
            assert_eq!(window.position(), expected.len() as u64);
            let end = expected.len().min(start + 24);
            assert_eq!(out[..end - start], expected[start..end]);
        }
    }

    #[test]
    fn state_is_the_low_nibble() {
        for (raw, state) in [
            (0xf0, AnaState::Unknown(0)),
            (0x01, AnaState::Optimized),
            (0xff, AnaState::Change),
        ] {
            let mut descriptor = AnaGroupDescriptor::new(1, 0, 0, AnaState::Unknown(0xff));
            assert_eq!(descriptor.state, 0x0f);
            descriptor.state = raw;
            assert_eq!(descriptor.state(), state);
        }
    }
}
