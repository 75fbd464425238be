//! What Get Log Page returns (NVMe Base 2.1, section 5.1.12), one log page a
//! file. The discovery log (70h) has a module of its own.
mod ana;
mod effects;
mod endurance;
mod error;
mod event;
mod firmware;
mod namespace;
mod persistent;
mod reservation;
mod smart;
mod window;

pub use ana::{AnaError, AnaGroup, AnaGroupDescriptor, AnaLog, AnaLogHeader, AnaState};
pub use effects::{
    CommandEffect, CommandEffects, FeatureEffect, FeatureEffects, LogPageSupport,
    SubmissionRestriction, SupportedLogPages,
};
pub use endurance::{EnduranceFeatures, EnduranceGroup, EnduranceWarning};
pub use error::{ErrorInformation, ParameterLocation};
pub use event::{
    AsyncEvent, AsyncEventKind, CommandSetEvent, ErrorEvent, HealthEvent, ImmediateEvent, Notice,
};
pub use firmware::FirmwareSlots;
pub use namespace::ChangedNamespaces;
pub use persistent::PersistentEventHeader;
pub use reservation::{ReservationNotification, ReservationNotificationType};
pub use smart::{CriticalWarning, SmartHealth};
pub use window::LogWindow;

open_enum! {
    /// Log Page Identifier.
    pub enum LogId: u8 {
        SupportedLogPages = 0x00 => "Supported Log Pages",
        ErrorInformation = 0x01 => "Error Information",
        SmartHealth = 0x02 => "SMART / Health Information",
        FirmwareSlot = 0x03 => "Firmware Slot Information",
        ChangedNamespaces = 0x04 => "Changed Attached Namespace List",
        CommandEffects = 0x05 => "Commands Supported and Effects",
        DeviceSelfTest = 0x06 => "Device Self-test",
        TelemetryHost = 0x07 => "Telemetry Host-Initiated",
        TelemetryController = 0x08 => "Telemetry Controller-Initiated",
        EnduranceGroup = 0x09 => "Endurance Group Information",
        PredictableLatency = 0x0a => "Predictable Latency Per NVM Set",
        PredictableLatencyAggregate = 0x0b => "Predictable Latency Event Aggregate",
        Ana = 0x0c => "Asymmetric Namespace Access",
        PersistentEvent = 0x0d => "Persistent Event Log",
        LbaStatus = 0x0e => "LBA Status Information",
        EnduranceGroupAggregate = 0x0f => "Endurance Group Event Aggregate",
        MediaUnitStatus = 0x10 => "Media Unit Status",
        CapacityConfigurations = 0x11 => "Supported Capacity Configuration List",
        FeatureEffects = 0x12 => "Feature Identifiers Supported and Effects",
        MiCommandEffects = 0x13 => "NVMe-MI Commands Supported and Effects",
        Lockdown = 0x14 => "Command and Feature Lockdown",
        BootPartition = 0x15 => "Boot Partition",
        RotationalMedia = 0x16 => "Rotational Media Information",
        DispersedNamespaces = 0x17 => "Dispersed Namespace Participating NVM Subsystems",
        ManagementAddresses = 0x18 => "Management Address List",
        PhyEom = 0x19 => "Physical Interface Receiver Eye Opening Measurement",
        ReachabilityGroups = 0x1a => "Reachability Groups",
        ReachabilityAssociations = 0x1b => "Reachability Associations",
        ChangedAllocatedNamespaces = 0x1c => "Changed Allocated Namespace List",
        FdpConfigurations = 0x20 => "FDP Configurations",
        ReclaimUnitHandleUsage = 0x21 => "Reclaim Unit Handle Usage",
        FdpStatistics = 0x22 => "FDP Statistics",
        FdpEvents = 0x23 => "FDP Events",
        Discovery = 0x70 => "Discovery",
        HostDiscovery = 0x71 => "Host Discovery",
        AveDiscovery = 0x72 => "AVE Discovery",
        PullModelDdcRequest = 0x73 => "Pull Model DDC Request",
        ReservationNotification = 0x80 => "Reservation Notification",
        SanitizeStatus = 0x81 => "Sanitize Status",
        ChangedZones = 0xbf => "Changed Zone List",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_id_is_total() {
        for raw in 0..=u8::MAX {
            assert_eq!(LogId::from(raw).code(), raw);
        }
        assert_eq!(LogId::from(0x0c), LogId::Ana);
        assert_eq!(LogId::from(0xff), LogId::Unknown(0xff));
    }
}
