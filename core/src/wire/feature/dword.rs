//! Features whose value is a dword: CDW11 of Set Features, dword 0 of what Get
//! Features returns.
use core::fmt;

use crate::wire::log::CriticalWarning;
use crate::wire::macros::Bits;
use crate::wire::tree::{Tree, TreeWriter};

/// The most that bits `high` to `low` hold.
const fn most(high: u32, low: u32) -> u64 {
    u64::MAX.wrapping_shr(63u32.wrapping_sub(high.wrapping_sub(low)))
}

/// A dword of fields. `name: type [high:low]` is a field of those bits, and
/// with `+ 1` behind it one that is 0's based on the wire.
macro_rules! packed {
    (
        $(#[$meta:meta])*
        pub struct $Name:ident {
            $(
                $(#[$field_meta:meta])*
                $field:ident: $Type:ty [$high:literal:$low:literal] $(+ $base:literal)?,
            )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        pub struct $Name {
            $( $(#[$field_meta])* pub $field: $Type, )+
        }

        impl $Name {
            /// Unpacks a dword; reserved bits are dropped.
            pub fn from_dword(dword: u32) -> Self {
                Self { $(
                    $field: {
                        let bits = (u64::from(dword) >> $low) & most($high, $low);
                        $( let bits = bits.saturating_add($base); )?
                        <$Type as Bits>::from_bits(bits)
                    },
                )+ }
            }

            /// Packs a dword, reserved bits clear. A value that does not fit
            /// its field becomes the most that fits.
            pub fn to_dword(self) -> u32 {
                let mut dword = 0u64;
                $(
                    let bits = Bits::to_bits(self.$field);
                    $( let bits = bits.saturating_sub($base); )?
                    dword |= bits.min(most($high, $low)) << $low;
                )+
                <u32 as Bits>::from_bits(dword)
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut separator = "";
                $(
                    write!(f, "{separator}{} {}", stringify!($field), self.$field)?;
                    separator = ", ";
                )+
                let _ = separator;
                Ok(())
            }
        }

        impl Tree for $Name {
            fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
                $( out.field(stringify!($field), self.$field)?; )+
                Ok(())
            }
        }
    };
}

packed! {
    /// Arbitration, 01h.
    pub struct Arbitration {
        /// Arbitration Burst, log2 of commands; 7 is no limit.
        ab: u8 [2:0],
        /// Low Priority Weight in commands, 1..=256.
        lpw: u16 [15:8] + 1,
        /// Medium Priority Weight in commands, 1..=256.
        mpw: u16 [23:16] + 1,
        /// High Priority Weight in commands, 1..=256.
        hpw: u16 [31:24] + 1,
    }
}

packed! {
    /// Power Management, 02h.
    pub struct PowerManagement {
        /// Power State.
        ps: u8 [4:0],
        /// Workload Hint.
        wh: u8 [7:5],
    }
}

packed! {
    /// LBA Range Type, 03h: how many ranges the data describes.
    pub struct LbaRanges {
        /// Number of LBA Ranges, 1..=64.
        num: u8 [5:0] + 1,
    }
}

packed! {
    /// Temperature Threshold, 04h.
    pub struct TemperatureThreshold {
        /// Temperature Threshold in kelvins.
        tmpth: u16 [15:0],
        /// Threshold Temperature Select.
        tmpsel: TemperatureSelect [19:16],
        /// Threshold Type Select.
        thsel: ThresholdType [21:20],
        /// Temperature Threshold Hysteresis in kelvins.
        tmpthh: u8 [24:22],
    }
}

open_enum! {
    /// The thermometer a threshold is for.
    pub enum TemperatureSelect: u8 {
        Composite = 0 => "Composite Temperature",
        Sensor1 = 1 => "Temperature Sensor 1",
        Sensor2 = 2 => "Temperature Sensor 2",
        Sensor3 = 3 => "Temperature Sensor 3",
        Sensor4 = 4 => "Temperature Sensor 4",
        Sensor5 = 5 => "Temperature Sensor 5",
        Sensor6 = 6 => "Temperature Sensor 6",
        Sensor7 = 7 => "Temperature Sensor 7",
        Sensor8 = 8 => "Temperature Sensor 8",
        All = 15 => "All Temperature Sensors",
    }
}

open_enum! {
    /// Which side of a threshold is critical.
    pub enum ThresholdType: u8 {
        Over = 0 => "Over Temperature Threshold",
        Under = 1 => "Under Temperature Threshold",
    }
}

packed! {
    /// Error Recovery, 05h.
    pub struct ErrorRecovery {
        /// Time Limited Error Recovery in 100 ms units; 0 is no limit.
        tler: u16 [15:0],
        /// Deallocated or Unwritten Logical Block Error Enable.
        dulbe: bool [16:16],
    }
}

packed! {
    /// Volatile Write Cache, 06h.
    pub struct VolatileWriteCache {
        /// Volatile Write Cache Enable.
        wce: bool [0:0],
    }
}

packed! {
    /// Number of Queues, 07h: those requested in Set Features, those allocated
    /// in its completion and in Get Features. 65536 is not to be requested.
    pub struct NumberOfQueues {
        /// Number of I/O Submission Queues, 1..=65536.
        nsq: u32 [15:0] + 1,
        /// Number of I/O Completion Queues, 1..=65536.
        ncq: u32 [31:16] + 1,
    }
}

packed! {
    /// Interrupt Coalescing, 08h.
    pub struct InterruptCoalescing {
        /// Aggregation Threshold in completions, 1..=256.
        thr: u16 [7:0] + 1,
        /// Aggregation Time in 100 us units; 0 is no delay.
        time: u8 [15:8],
    }
}

packed! {
    /// Interrupt Vector Configuration, 09h.
    pub struct InterruptVector {
        /// Interrupt Vector.
        iv: u16 [15:0],
        /// Coalescing Disable.
        cd: bool [16:16],
    }
}

packed! {
    /// Write Atomicity Normal, 0Ah.
    pub struct WriteAtomicity {
        /// Disable Normal: AWUN and NAWUN need not hold.
        dn: bool [0:0],
    }
}

flags! {
    /// Asynchronous Event Configuration, 0Bh: the events a host wants. Bits
    /// 7:0 are those of [`CriticalWarning`], the others those of `Oaes`.
    pub struct AsyncEventConfig: u32 {
        /// Attached Namespace Attribute notices.
        const NSAN = 1 << 8;
        /// Firmware Activation notices.
        const FAN = 1 << 9;
        /// Telemetry Log notices.
        const TLN = 1 << 10;
        /// Asymmetric Namespace Access Change notices.
        const ANACN = 1 << 11;
        /// Predictable Latency Event Aggregate Log Change notices.
        const PLEALCN = 1 << 12;
        /// LBA Status Information Alert notices.
        const LBASIAN = 1 << 13;
        /// Endurance Group Event Aggregate Log Page Change notices.
        const EGEALPCN = 1 << 14;
        /// Normal NVM Subsystem Shutdown event.
        const NNVMSS = 1 << 15;
        /// Temperature Threshold Hysteresis Recovery event.
        const TTHRY = 1 << 16;
        /// Reachability Association notices.
        const RASSN = 1 << 17;
        /// Reachability Group notices.
        const RGRP0 = 1 << 18;
        /// Allocated Namespace Attribute notices.
        const ANSAN = 1 << 19;
        /// Zone Descriptor Changed notices.
        const ZDCN = 1 << 27;
        /// Pull Model DDC Request Log Page Change notices.
        const PMDRLPCN = 1 << 28;
        /// AVE Discovery Log Page Change notices.
        const ADLPCN = 1 << 29;
        /// Host Discovery Log Page Change notices.
        const HDLPCN = 1 << 30;
        /// Discovery Log Page Change notices.
        const DLPCN = 1 << 31;
    }
}

impl AsyncEventConfig {
    /// The critical warnings that raise an event (bits 7:0).
    pub const fn critical_warnings(self) -> CriticalWarning {
        let [low, ..] = self.bits().to_le_bytes();
        CriticalWarning::from_bits(low)
    }

    /// Sets the critical warnings that raise an event.
    #[must_use]
    pub const fn with_critical_warnings(self, warnings: CriticalWarning) -> Self {
        Self::from_bits((self.bits() & !0xff) | warnings.bits() as u32)
    }
}

packed! {
    /// Autonomous Power State Transition, 0Ch.
    pub struct AutonomousPower {
        /// Autonomous Power State Transition Enable.
        apste: bool [0:0],
    }
}

packed! {
    /// Host Memory Buffer, 0Dh.
    pub struct HostMemoryBuffer {
        /// Enable Host Memory.
        ehm: bool [0:0],
        /// Memory Return: the buffer is as it was before.
        mr: bool [1:1],
        /// Restrict access in non-operational power states.
        hmnare: bool [2:2],
    }
}

packed! {
    /// Host Controlled Thermal Management, 10h.
    pub struct ThermalManagement {
        /// Thermal Management Temperature 2 in kelvins; 0 is off.
        tmt2: u16 [15:0],
        /// Thermal Management Temperature 1 in kelvins; 0 is off.
        tmt1: u16 [31:16],
    }
}

packed! {
    /// Non-Operational Power State Config, 11h.
    pub struct NonOperationalPower {
        /// Non-Operational Power State Permissive Mode Enable.
        noppme: bool [0:0],
    }
}

packed! {
    /// Read Recovery Level Config, 12h, in CDW12 (the NVM Set is in CDW11).
    pub struct ReadRecovery {
        /// Read Recovery Level.
        rrl: u8 [3:0],
    }
}

packed! {
    /// Predictable Latency Mode Config, 13h, in CDW12.
    pub struct PredictableLatency {
        /// Predictable Latency Enable.
        lpe: bool [0:0],
    }
}

packed! {
    /// Predictable Latency Mode Window, 14h, in CDW12.
    pub struct PredictableLatencyWindow {
        /// Window Select: 1 deterministic, 2 non-deterministic.
        wsel: u8 [2:0],
    }
}

packed! {
    /// LBA Status Information Report Interval, 15h.
    pub struct LbaStatusInterval {
        /// LBA Status Information Report Interval in 100 ms units.
        lsiri: u16 [15:0],
        /// LBA Status Information Poll Interval in 100 ms units.
        lsipi: u16 [31:16],
    }
}

packed! {
    /// Sanitize Config, 17h.
    pub struct SanitizeConfig {
        /// No-Deallocate Response Mode.
        nodrm: bool [0:0],
    }
}

packed! {
    /// Endurance Group Event Configuration, 18h.
    pub struct EnduranceEvents {
        /// Endurance Group Identifier.
        endgid: u16 [15:0],
        /// Endurance Group Critical Warnings that are logged.
        egcw: u8 [23:16],
    }
}

packed! {
    /// I/O Command Set Profile, 19h.
    pub struct CommandSetProfile {
        /// Index of the combination in Identify I/O Command Set.
        iocsci: u16 [8:0],
    }
}

packed! {
    /// Spinup Control, 1Ah.
    pub struct SpinupControl {
        /// Spinup Control Enable.
        spinupe: bool [0:0],
    }
}

packed! {
    /// Power Loss Signaling Config, 1Bh.
    pub struct PowerLossSignaling {
        /// Power Loss Signaling Mode.
        plsm: u8 [1:0],
    }
}

packed! {
    /// Flexible Data Placement, 1Dh, in CDW12 (the Endurance Group is in
    /// CDW11).
    pub struct FlexibleDataPlacement {
        /// Flexible Data Placement Enable.
        fdpe: bool [0:0],
        /// Flexible Data Placement Configuration Index.
        fdpcidx: u8 [15:8],
    }
}

packed! {
    /// Software Progress Marker, 80h.
    pub struct SoftwareProgress {
        /// Pre-boot Software Load Count.
        pbslc: u8 [7:0],
    }
}

packed! {
    /// Host Identifier, 81h: its size. The data are the 8 or 16 bytes.
    pub struct HostIdentifierSize {
        /// Enable Extended Host Identifier: 16 bytes, always so over Fabrics.
        exhid: bool [0:0],
    }
}

flags! {
    /// Reservation Notification Mask, 82h: notifications a host does not want.
    pub struct ReservationMask: u32 {
        /// Mask Registration Preempted.
        const REGPRE = 1 << 1;
        /// Mask Reservation Released.
        const RESREL = 1 << 2;
        /// Mask Reservation Preempted.
        const RESPRE = 1 << 3;
    }
}

packed! {
    /// Reservation Persistence, 83h.
    pub struct ReservationPersistence {
        /// Persist Through Power Loss.
        ptpl: bool [0:0],
    }
}

packed! {
    /// Namespace Write Protection Config, 84h.
    pub struct NamespaceProtection {
        /// Write Protection State.
        wps: WriteProtection [2:0],
    }
}

open_enum! {
    /// Write Protection State of a namespace.
    pub enum WriteProtection: u8 {
        None = 0 => "No Write Protect",
        Protected = 1 => "Write Protect",
        UntilPowerCycle = 2 => "Write Protect Until Power Cycle",
        Permanent = 3 => "Permanent Write Protect",
    }
}

packed! {
    /// Boot Partition Write Protection Config, 85h.
    pub struct BootPartitionProtection {
        /// Boot Partition 0 Write Protection State.
        bp0wps: u8 [2:0],
        /// Boot Partition 1 Write Protection State.
        bp1wps: u8 [5:3],
    }
}

enum_bits!(TemperatureSelect, ThresholdType, WriteProtection);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    /// Reads each dword, expects the value, and packs it back.
    macro_rules! assert_packs {
        ($Name:ident: $($dword:literal is { $($field:ident: $value:expr),+ }),+ $(,)?) => { $(
            let value = $Name { $($field: $value),+ };
            assert_eq!($Name::from_dword($dword), value);
            assert_eq!(value.to_dword(), $dword);
        )+ };
    }

    #[test]
    fn queues_are_zeroes_based() {
        assert_packs!(NumberOfQueues:
            0x0000_0000 is { nsq: 1, ncq: 1 },
            0x0001_0000 is { nsq: 1, ncq: 2 },
            0x0000_0001 is { nsq: 2, ncq: 1 },
            0xffff_0000 is { nsq: 1, ncq: 65536 },
            0x0000_ffff is { nsq: 65536, ncq: 1 },
        );
        let beyond = NumberOfQueues {
            nsq: 0,
            ncq: u32::MAX,
        };
        assert_eq!(beyond.to_dword(), 0xffff_0000);
        assert_eq!(format!("{}", NumberOfQueues::from_dword(0)), "nsq 1, ncq 1");
    }

    #[test]
    fn arbitration() {
        assert_packs!(Arbitration:
            0x0000_0000 is { ab: 0, lpw: 1, mpw: 1, hpw: 1 },
            0x0302_0107 is { ab: 7, lpw: 2, mpw: 3, hpw: 4 },
            0xffff_ff07 is { ab: 7, lpw: 256, mpw: 256, hpw: 256 },
        );
        assert_eq!(Arbitration::from_dword(0xf8).ab, 0);
    }

    #[test]
    fn power_and_thermal() {
        assert_packs!(PowerManagement: 0x00 is { ps: 0, wh: 0 }, 0x21 is { ps: 1, wh: 1 },
            0xff is { ps: 31, wh: 7 });
        assert_packs!(ThermalManagement: 0x0000_0001 is { tmt2: 1, tmt1: 0 },
            0xffff_0000 is { tmt2: 0, tmt1: 0xffff });
        assert_packs!(AutonomousPower: 0 is { apste: false }, 1 is { apste: true });
        assert_packs!(NonOperationalPower: 0 is { noppme: false }, 1 is { noppme: true });
        assert_packs!(PowerLossSignaling: 0 is { plsm: 0 }, 1 is { plsm: 1 }, 3 is { plsm: 3 });
        assert_packs!(SpinupControl: 0 is { spinupe: false }, 1 is { spinupe: true });
    }

    #[test]
    fn temperature_threshold() {
        use TemperatureSelect::{All, Composite, Sensor1};
        use ThresholdType::{Over, Under, Unknown};
        assert_packs!(TemperatureThreshold:
            0x0000_0000 is { tmpth: 0, tmpsel: Composite, thsel: Over, tmpthh: 0 },
            0x0051_0157 is { tmpth: 0x157, tmpsel: Sensor1, thsel: Under, tmpthh: 1 },
            0x01ff_ffff is { tmpth: 0xffff, tmpsel: All, thsel: Unknown(3), tmpthh: 7 },
        );
    }

    #[test]
    fn queues_and_interrupts() {
        assert_packs!(InterruptCoalescing: 0x0000 is { thr: 1, time: 0 },
            0x0101 is { thr: 2, time: 1 }, 0xffff is { thr: 256, time: 255 });
        assert_packs!(InterruptVector: 0x0_0001 is { iv: 1, cd: false },
            0x1_ffff is { iv: 0xffff, cd: true });
    }

    #[test]
    fn media() {
        assert_packs!(ErrorRecovery: 0x0_0001 is { tler: 1, dulbe: false },
            0x1_ffff is { tler: 0xffff, dulbe: true });
        assert_packs!(VolatileWriteCache: 0 is { wce: false }, 1 is { wce: true });
        assert_packs!(WriteAtomicity: 0 is { dn: false }, 1 is { dn: true });
        assert_packs!(LbaRanges: 0x00 is { num: 1 }, 0x01 is { num: 2 }, 0x3f is { num: 64 });
        assert_packs!(ReadRecovery: 0 is { rrl: 0 }, 1 is { rrl: 1 }, 15 is { rrl: 15 });
        assert_packs!(SanitizeConfig: 0 is { nodrm: false }, 1 is { nodrm: true });
        assert_packs!(LbaStatusInterval: 0x0000_0001 is { lsiri: 1, lsipi: 0 },
            0xffff_0000 is { lsiri: 0, lsipi: 0xffff });
        assert_packs!(FlexibleDataPlacement: 0x0001 is { fdpe: true, fdpcidx: 0 },
            0xff00 is { fdpe: false, fdpcidx: 255 });
        assert_packs!(HostMemoryBuffer: 0 is { ehm: false, mr: false, hmnare: false },
            5 is { ehm: true, mr: false, hmnare: true },
            2 is { ehm: false, mr: true, hmnare: false });
        assert_packs!(PredictableLatency: 0 is { lpe: false }, 1 is { lpe: true });
        assert_packs!(PredictableLatencyWindow: 0 is { wsel: 0 }, 1 is { wsel: 1 },
            7 is { wsel: 7 });
        assert_packs!(EnduranceEvents: 0x00_0001 is { endgid: 1, egcw: 0 },
            0xff_0000 is { endgid: 0, egcw: 255 });
    }

    #[test]
    fn hosts_and_namespaces() {
        assert_packs!(CommandSetProfile: 0 is { iocsci: 0 }, 1 is { iocsci: 1 },
            0x1ff is { iocsci: 511 });
        assert_packs!(SoftwareProgress: 0 is { pbslc: 0 }, 1 is { pbslc: 1 },
            0xff is { pbslc: 255 });
        assert_packs!(HostIdentifierSize: 0 is { exhid: false }, 1 is { exhid: true });
        assert_packs!(ReservationPersistence: 0 is { ptpl: false }, 1 is { ptpl: true });
        assert_packs!(NamespaceProtection: 0 is { wps: WriteProtection::None },
            1 is { wps: WriteProtection::Protected }, 7 is { wps: WriteProtection::Unknown(7) });
        assert_packs!(BootPartitionProtection: 0x01 is { bp0wps: 1, bp1wps: 0 },
            0x38 is { bp0wps: 0, bp1wps: 7 }, 0x0f is { bp0wps: 7, bp1wps: 1 });
    }

    #[test]
    fn reserved_bits_are_dropped() {
        assert_eq!(VolatileWriteCache::from_dword(0xffff_fffe).to_dword(), 0);
        assert_eq!(CommandSetProfile::from_dword(u32::MAX).to_dword(), 0x1ff);
        assert_eq!(PowerManagement { ps: u8::MAX, wh: 0 }.to_dword(), 0x1f);
    }

    #[test]
    fn critical_warnings_are_bits_7_to_0() {
        for (raw, warnings) in [(0xffff_ff00, 0), (0x0000_0001, 1), (0x0000_00ff, 0xff)] {
            let config = AsyncEventConfig::from_bits(raw);
            let warnings = CriticalWarning::from_bits(warnings);
            assert_eq!(config.critical_warnings(), warnings);
            let others = AsyncEventConfig::from_bits(raw & !0xff);
            assert_eq!(others.with_critical_warnings(warnings), config);
        }
        let config = AsyncEventConfig::NSAN | AsyncEventConfig::ANACN | AsyncEventConfig::DLPCN;
        assert_eq!(config.bits(), 0x8000_0900);
    }
}
