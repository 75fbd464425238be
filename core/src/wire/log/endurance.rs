//! Endurance Group Information log, 09h (NVMe Base 2.1, figure "Endurance
//! Group Information Log Page").
use core::fmt;

use zerocopy::little_endian::{U16, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::tree::{Tree, TreeWriter};

/// The health of an Endurance Group.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EnduranceGroup {
    /// What is critical now.
    pub critical_warning: EnduranceWarning,
    /// Features of the group.
    pub egfeat: EnduranceFeatures,
    reserved_2: u8,
    /// Available Spare, percent.
    pub avsp: u8,
    /// Available Spare Threshold, percent.
    pub avspt: u8,
    /// Percentage Used; may exceed 100, 255 is the most.
    pub pused: u8,
    /// Domain Identifier.
    pub did: U16,
    reserved_8: [u8; 24],
    /// Endurance Estimate in units of 10^9 bytes.
    pub ee: U128,
    /// Data Units Read in units of 10^9 bytes.
    pub dur: U128,
    /// Data Units Written in units of 10^9 bytes.
    pub duw: U128,
    /// Media Units Written in units of 10^9 bytes.
    pub muw: U128,
    /// Host Read Commands.
    pub hrc: U128,
    /// Host Write Commands.
    pub hwc: U128,
    /// Media and Data Integrity Errors.
    pub mdie: U128,
    /// Number of Error Information Log Entries.
    pub neile: U128,
    /// Total Endurance Group Capacity in bytes.
    pub tegcap: U128,
    /// Unallocated Endurance Group Capacity in bytes.
    pub uegcap: U128,
    reserved_192: [u8; 320],
}

layout!(
    EnduranceGroup: 512, critical_warning @ 0, egfeat @ 1, avsp @ 3, avspt @ 4, pused @ 5,
    did @ 6, ee @ 32, dur @ 48, duw @ 64, muw @ 80, hrc @ 96, hwc @ 112, mdie @ 128, neile @ 144,
    tegcap @ 160, uegcap @ 176,
);

flags! {
    /// Critical Warning of an Endurance Group.
    pub struct EnduranceWarning: u8 {
        /// Available spare is below its threshold.
        const EGASCBT = 1 << 0;
        /// Reliability is degraded.
        const EGDR = 1 << 2;
        /// Every namespace of the group is read only.
        const EGRO = 1 << 3;
    }
}

flags! {
    /// Endurance Group Features.
    pub struct EnduranceFeatures: u8 {
        /// Rotational media.
        const EGRMEDIA = 1 << 0;
    }
}

impl fmt::Display for EnduranceGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let warning = self.critical_warning;
        write!(
            f,
            "warnings {warning}, spare {}%, used {}%",
            self.avsp, self.pused
        )
    }
}

impl Tree for EnduranceGroup {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self:
            critical_warning, egfeat, avsp = "{}%", avspt = "{}%", pused = "{}%", did,
            ee = "{} GB", dur = "{} GB", duw = "{} GB", muw = "{} GB", hrc, hwc, mdie, neile,
            tegcap, uegcap,
        )
    }
}

defmt_as_display!(EnduranceGroup);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn fields_are_where_the_figure_has_them() {
        let mut bytes = [0; 512];
        bytes[..8].copy_from_slice(&[0x05, 1, 0, 90, 10, 255, 2, 1]);
        bytes[32] = 3;
        bytes[176] = 4;
        let log = EnduranceGroup::ref_from_bytes(&bytes).unwrap();
        let warning = EnduranceWarning::EGASCBT | EnduranceWarning::EGDR;
        assert_eq!(log.critical_warning, warning);
        assert_eq!(log.egfeat, EnduranceFeatures::EGRMEDIA);
        assert_eq!((log.avsp, log.avspt, log.pused), (90, 10, 255));
        assert_eq!(log.did.get(), 0x0102);
        assert_eq!((log.ee.get(), log.uegcap.get()), (3, 4));
        assert!(format!("{}", log.tree()).contains("ee: 3 GB\n"));
    }
}
