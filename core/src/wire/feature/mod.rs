//! Features: what Set Features sets and Get Features returns (NVMe Base 2.1,
//! sections 5.1.25 and 5.1.11). Most are a packed dword, some have data.
mod data;
mod dword;

pub use data::{HostBehavior, LbaRangeType, Timestamp, TimestampOrigin};
pub use dword::{
    Arbitration, AsyncEventConfig, AutonomousPower, BootPartitionProtection, CommandSetProfile,
    EnduranceEvents, ErrorRecovery, FlexibleDataPlacement, HostIdentifierSize, HostMemoryBuffer,
    InterruptCoalescing, InterruptVector, LbaRanges, LbaStatusInterval, NamespaceProtection,
    NonOperationalPower, NumberOfQueues, PowerLossSignaling, PowerManagement, PredictableLatency,
    PredictableLatencyWindow, ReadRecovery, ReservationMask, ReservationPersistence,
    SanitizeConfig, SoftwareProgress, SpinupControl, TemperatureSelect, TemperatureThreshold,
    ThermalManagement, ThresholdType, VolatileWriteCache, WriteAtomicity, WriteProtection,
};

open_enum! {
    /// Feature Identifier.
    pub enum FeatureId: u8 {
        Arbitration = 0x01 => "Arbitration",
        PowerManagement = 0x02 => "Power Management",
        LbaRangeType = 0x03 => "LBA Range Type",
        TemperatureThreshold = 0x04 => "Temperature Threshold",
        ErrorRecovery = 0x05 => "Error Recovery",
        VolatileWriteCache = 0x06 => "Volatile Write Cache",
        NumberOfQueues = 0x07 => "Number of Queues",
        InterruptCoalescing = 0x08 => "Interrupt Coalescing",
        InterruptVector = 0x09 => "Interrupt Vector Configuration",
        WriteAtomicity = 0x0a => "Write Atomicity Normal",
        AsyncEventConfig = 0x0b => "Asynchronous Event Configuration",
        AutonomousPower = 0x0c => "Autonomous Power State Transition",
        HostMemoryBuffer = 0x0d => "Host Memory Buffer",
        Timestamp = 0x0e => "Timestamp",
        KeepAliveTimer = 0x0f => "Keep Alive Timer",
        ThermalManagement = 0x10 => "Host Controlled Thermal Management",
        NonOperationalPower = 0x11 => "Non-Operational Power State Config",
        ReadRecoveryLevel = 0x12 => "Read Recovery Level Config",
        PredictableLatency = 0x13 => "Predictable Latency Mode Config",
        PredictableLatencyWindow = 0x14 => "Predictable Latency Mode Window",
        LbaStatusInterval = 0x15 => "LBA Status Information Report Interval",
        HostBehavior = 0x16 => "Host Behavior Support",
        SanitizeConfig = 0x17 => "Sanitize Config",
        EnduranceGroupEvents = 0x18 => "Endurance Group Event Configuration",
        CommandSetProfile = 0x19 => "I/O Command Set Profile",
        SpinupControl = 0x1a => "Spinup Control",
        PowerLossSignaling = 0x1b => "Power Loss Signaling Config",
        Performance = 0x1c => "Performance Characteristics",
        FlexibleDataPlacement = 0x1d => "Flexible Data Placement",
        FlexibleDataPlacementEvents = 0x1e => "Flexible Data Placement Events",
        NamespaceAdminLabel = 0x1f => "Namespace Admin Label",
        KeyValue = 0x20 => "Key Value Configuration",
        ControllerDataQueue = 0x21 => "Controller Data Queue",
        EmbeddedManagementAddress = 0x78 => "Embedded Management Controller Address",
        ManagementAgentAddress = 0x79 => "Host Management Agent Address",
        EnhancedControllerMetadata = 0x7d => "Enhanced Controller Metadata",
        ControllerMetadata = 0x7e => "Controller Metadata",
        NamespaceMetadata = 0x7f => "Namespace Metadata",
        SoftwareProgress = 0x80 => "Software Progress Marker",
        HostIdentifier = 0x81 => "Host Identifier",
        ReservationMask = 0x82 => "Reservation Notification Mask",
        ReservationPersistence = 0x83 => "Reservation Persistence",
        NamespaceProtection = 0x84 => "Namespace Write Protection Config",
        BootPartitionProtection = 0x85 => "Boot Partition Write Protection Config",
    }
}

flags! {
    /// Dword 0 of Get Features for supported capabilities.
    pub struct FeatureCapabilities: u32 {
        /// The value can be saved.
        const SAVEABLE = 1 << 0;
        /// Each namespace has its own value.
        const NAMESPACE = 1 << 1;
        /// The value can be changed.
        const CHANGEABLE = 1 << 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_total() {
        for raw in 0..=u8::MAX {
            assert_eq!(FeatureId::from(raw).code(), raw);
        }
        assert_eq!(FeatureId::from(0x0f), FeatureId::KeepAliveTimer);
        assert_eq!(FeatureId::from(0), FeatureId::Unknown(0));
    }
}
