//! Power State Descriptor, 32 bytes (NVMe Base 2.1, figure "Power State
//! Descriptor Data Structure").
use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::tree::{Tree, TreeWriter};

/// One power state of a controller.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct PowerState {
    /// Maximum power in units of [`Self::max_power_unit`].
    pub mp: U16,
    reserved_2: u8,
    /// Bit 0: scale of `mp`; bit 1: non-operational state.
    pub flags: u8,
    /// Entry latency in microseconds.
    pub enlat: U32,
    /// Exit latency in microseconds.
    pub exlat: U32,
    /// Relative read throughput, 0 is best.
    pub rrt: u8,
    /// Relative read latency, 0 is best.
    pub rrl: u8,
    /// Relative write throughput, 0 is best.
    pub rwt: u8,
    /// Relative write latency, 0 is best.
    pub rwl: u8,
    /// Idle power, scale in `ips`.
    pub idlp: U16,
    /// Bits 7:6: scale of `idlp` (0 not reported, 1 100 uW, 2 10 mW).
    pub ips: u8,
    reserved_19: u8,
    /// Active power, scale in `apws`.
    pub actp: U16,
    /// Bits 7:6: scale of `actp`; bits 2:0: workload it holds for.
    pub apws: u8,
    /// Emergency power fail recovery time, scale in `ts`.
    pub epfrt: u8,
    /// Forced quiescence vault time, scale in `ts`.
    pub fqvt: u8,
    /// Emergency power fail vault time, scale in `epfvts`.
    pub epfvt: u8,
    /// Bits 3:0: scale of `epfrt`; bits 7:4: scale of `fqvt`.
    pub ts: u8,
    /// Bits 3:0: scale of `epfvt`.
    pub epfvts: u8,
    reserved_28: [u8; 4],
}

layout!(
    PowerState: 32, mp @ 0, flags @ 3, enlat @ 4, exlat @ 8, rrt @ 12, idlp @ 16, ips @ 18,
    actp @ 20, apws @ 22, epfrt @ 23, epfvts @ 27,
);

impl PowerState {
    /// What one unit of `mp` is, in microwatts.
    pub const fn max_power_unit(&self) -> u32 {
        if self.flags & 1 == 0 { 10_000 } else { 100 }
    }

    /// Maximum power in microwatts.
    pub const fn max_power(&self) -> u32 {
        // 65535 * 10 000 is below 2^32.
        (self.mp.get() as u32).saturating_mul(self.max_power_unit())
    }

    /// The controller processes no I/O commands in this state.
    pub const fn non_operational(&self) -> bool {
        self.flags & 2 != 0
    }
}

impl fmt::Display for PowerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "max {} uW, entry {} us, exit {} us{}",
            self.max_power(),
            self.enlat,
            self.exlat,
            if self.non_operational() {
                ", non-operational"
            } else {
                ""
            }
        )
    }
}

impl Tree for PowerState {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("mp", format_args!("{} uW", self.max_power()))?;
        out.field("nops", self.non_operational())?;
        show!(out, self:
            enlat = "{} us", exlat = "{} us", rrt, rrl, rwt, rwl, idlp, ips = "{:#04x}", actp,
            apws = "{:#04x}", epfrt, fqvt, epfvt, ts = "{:#04x}", epfvts = "{:#04x}",
        )
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for PowerState {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "PowerState({} uW)", self.max_power());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_power_follows_its_scale() {
        let mut bytes = [0; 32];
        let power = |bytes: &[u8; 32]| PowerState::ref_from_bytes(bytes).unwrap().max_power();
        assert_eq!(power(&bytes), 0);
        bytes[0] = 1;
        assert_eq!(power(&bytes), 10_000);
        bytes[..2].fill(0xff);
        assert_eq!(power(&bytes), 655_350_000);
        bytes[3] = 1;
        assert_eq!(power(&bytes), 6_553_500);
    }

    #[test]
    fn non_operational_is_bit_1() {
        for (flags, expected) in [(0, false), (1, false), (2, true), (0xff, true)] {
            let mut bytes = [0; 32];
            bytes[3] = flags;
            assert_eq!(
                PowerState::ref_from_bytes(&bytes)
                    .unwrap()
                    .non_operational(),
                expected
            );
        }
    }
}
