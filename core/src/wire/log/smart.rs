//! SMART / Health Information log, 02h (NVMe Base 2.1, figure "SMART / Health
//! Information Log Page").
use core::fmt;

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::endurance::EnduranceWarning;
use crate::wire::tree::{Tree, TreeWriter};

/// The health of a controller or namespace.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SmartHealth {
    /// What is critical now.
    pub critical_warning: CriticalWarning,
    /// Composite Temperature in kelvins.
    pub ctemp: U16,
    /// Available Spare, percent.
    pub avsp: u8,
    /// Available Spare Threshold, percent.
    pub avspt: u8,
    /// Percentage Used; may exceed 100, 255 is the most.
    pub pused: u8,
    /// What is critical in some Endurance Group.
    pub egcws: EnduranceWarning,
    reserved_7: [u8; 25],
    /// Data Units Read in units of 1000 times 512 bytes, rounded up.
    pub dur: U128,
    /// Data Units Written in units of 1000 times 512 bytes, rounded up.
    pub duw: U128,
    /// Host Read Commands.
    pub hrc: U128,
    /// Host Write Commands.
    pub hwc: U128,
    /// Controller Busy Time in minutes.
    pub cbt: U128,
    /// Power Cycles.
    pub pwrc: U128,
    /// Power On Hours.
    pub poh: U128,
    /// Unexpected Power Losses.
    pub upl: U128,
    /// Media and Data Integrity Errors.
    pub mdie: U128,
    /// Number of Error Information Log Entries over the controller's life.
    pub neile: U128,
    /// Warning Composite Temperature Time in minutes.
    pub wctt: U32,
    /// Critical Composite Temperature Time in minutes.
    pub cctt: U32,
    /// Temperature sensors in kelvins; 0 is no sensor.
    pub tsen: [U16; 8],
    /// Thermal Management Temperature 1 Transition Count.
    pub tmttc1: U32,
    /// Thermal Management Temperature 2 Transition Count.
    pub tmttc2: U32,
    /// Total Time for Thermal Management Temperature 1 in seconds.
    pub tttmt1: U32,
    /// Total Time for Thermal Management Temperature 2 in seconds.
    pub tttmt2: U32,
    reserved_232: [u8; 280],
}

layout!(
    SmartHealth: 512, critical_warning @ 0, ctemp @ 1, avsp @ 3, avspt @ 4, pused @ 5, egcws @ 6,
    dur @ 32, duw @ 48, hrc @ 64, hwc @ 80, cbt @ 96, pwrc @ 112, poh @ 128, upl @ 144,
    mdie @ 160, neile @ 176, wctt @ 192, cctt @ 196, tsen @ 200, tmttc1 @ 216, tmttc2 @ 220,
    tttmt1 @ 224, tttmt2 @ 228,
);

flags! {
    /// Critical Warning. A bit can raise an asynchronous event.
    pub struct CriticalWarning: u8 {
        /// Available spare is below its threshold.
        const ASCBT = 1 << 0;
        /// A temperature is beyond its threshold.
        const TTC = 1 << 1;
        /// Reliability is degraded.
        const NDR = 1 << 2;
        /// All media is read only.
        const AMRO = 1 << 3;
        /// The volatile memory backup device failed.
        const VMBF = 1 << 4;
        /// The persistent memory region is read only.
        const PMRRO = 1 << 5;
    }
}

impl SmartHealth {
    /// Data Units of a number of bytes: thousands of 512 bytes, rounded up.
    pub const fn data_units(bytes: u128) -> u128 {
        bytes.div_ceil(512_000)
    }
}

/// Kelvins, with what people read beside them.
struct Temperature(U16);

impl fmt::Display for Temperature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let celsius = i32::from(self.0.get()).saturating_sub(273);
        write!(f, "{} K ({celsius} C)", self.0)
    }
}

impl fmt::Display for SmartHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "warnings {}, {}, ",
            self.critical_warning,
            Temperature(self.ctemp)
        )?;
        write!(f, "spare {}%, used {}%, ", self.avsp, self.pused)?;
        write!(f, "{} reads, {} writes", self.hrc, self.hwc)
    }
}

impl Tree for SmartHealth {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: critical_warning)?;
        out.field("ctemp", Temperature(self.ctemp))?;
        show!(out, self:
            avsp = "{}%", avspt = "{}%", pused = "{}%", egcws, dur = "{} x 512000 B",
            duw = "{} x 512000 B", hrc, hwc, cbt = "{} min", pwrc, poh, upl, mdie, neile,
            wctt = "{} min", cctt = "{} min",
        )?;
        for (sensor, kelvins) in (1u8..).zip(self.tsen) {
            if kelvins.get() != 0 {
                out.field("tsen", format_args!("{sensor}: {}", Temperature(kelvins)))?;
            }
        }
        show!(out, self: tmttc1, tmttc2, tttmt1 = "{} s", tttmt2 = "{} s")
    }
}

defmt_as_display!(SmartHealth);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn fields_are_where_the_figure_has_them() {
        let mut bytes = [0; 512];
        bytes[..6].copy_from_slice(&[0x0a, 0x2c, 0x01, 100, 10, 3]);
        bytes[32] = 1;
        bytes[47] = 1;
        bytes[176] = 7;
        bytes[192] = 8;
        bytes[202..204].copy_from_slice(&[0x11, 0x01]);
        bytes[228] = 9;
        let log = SmartHealth::ref_from_bytes(&bytes).unwrap();
        assert_eq!(
            log.critical_warning,
            CriticalWarning::TTC | CriticalWarning::AMRO
        );
        assert_eq!(log.ctemp.get(), 300);
        assert_eq!((log.avsp, log.avspt, log.pused), (100, 10, 3));
        assert_eq!(log.dur.get(), (1 << 120) + 1);
        assert_eq!(
            (log.neile.get(), log.wctt.get(), log.tttmt2.get()),
            (7, 8, 9)
        );
        let tree = format!("{}", log.tree());
        assert!(tree.contains("ctemp: 300 K (27 C)\navsp: 100%\n"));
        assert!(tree.contains("tsen: 2: 273 K (0 C)\ntmttc1: 0\n"));
    }

    #[test]
    fn data_units_round_up() {
        let most = u128::MAX / 512_000 + 1;
        for (bytes, units) in [
            (0, 0),
            (1, 1),
            (512_000, 1),
            (512_001, 2),
            (u128::MAX, most),
        ] {
            assert_eq!(SmartHealth::data_units(bytes), units);
        }
    }
}
