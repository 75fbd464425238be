//! What completes an Asynchronous Event Request: dword 0 of its completion
//! (NVMe Base 2.1, section 5.1.2).
use core::fmt;

use super::LogId;
use crate::wire::tree::{Tree, TreeWriter};

/// An event, and the log page that tells more and whose reading clears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// Log page to read.
    pub lid: LogId,
}

/// Asynchronous Event Type (bits 2:0) and Information (bits 15:8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AsyncEventKind {
    /// An error that belongs to no command.
    Error(ErrorEvent),
    /// SMART / Health status.
    Health(HealthEvent),
    /// A notice.
    Notice(Notice),
    /// An event that no log page clears.
    Immediate(ImmediateEvent),
    /// An event that is reported once.
    OneShot(u8),
    /// Specific to an I/O command set.
    CommandSet(CommandSetEvent),
    /// Vendor specific.
    Vendor(u8),
    /// The reserved type, 5.
    Reserved(u8),
}

open_enum! {
    /// Information of an error event.
    pub enum ErrorEvent: u8 {
        InvalidDoorbell = 0x00 => "Write to Invalid Doorbell Register",
        InvalidDoorbellValue = 0x01 => "Invalid Doorbell Write Value",
        DiagnosticFailure = 0x02 => "Diagnostic Failure",
        PersistentInternal = 0x03 => "Persistent Internal Error",
        TransientInternal = 0x04 => "Transient Internal Error",
        FirmwareLoad = 0x05 => "Firmware Image Load Error",
    }
}

open_enum! {
    /// Information of a SMART / Health event.
    pub enum HealthEvent: u8 {
        Reliability = 0x00 => "NVM Subsystem Reliability",
        Temperature = 0x01 => "Temperature Threshold",
        Spare = 0x02 => "Spare Below Threshold",
    }
}

open_enum! {
    /// Information of a notice.
    pub enum Notice: u8 {
        NamespaceAttribute = 0x00 => "Attached Namespace Attribute Changed",
        FirmwareActivation = 0x01 => "Firmware Activation Starting",
        TelemetryLog = 0x02 => "Telemetry Log Changed",
        AnaChange = 0x03 => "Asymmetric Namespace Access Change",
        PredictableLatency = 0x04 => "Predictable Latency Event Aggregate Log Change",
        LbaStatus = 0x05 => "LBA Status Information Alert",
        EnduranceGroup = 0x06 => "Endurance Group Event Aggregate Log Page Change",
        ReachabilityGroup = 0x07 => "Reachability Group Change",
        ReachabilityAssociation = 0x08 => "Reachability Association Change",
        AllocatedNamespaceAttribute = 0x09 => "Allocated Namespace Attribute Changed",
        ZoneDescriptor = 0xef => "Zone Descriptor Changed",
        Discovery = 0xf0 => "Discovery Log Page Change",
        HostDiscovery = 0xf1 => "Host Discovery Log Page Change",
        AveDiscovery = 0xf2 => "AVE Discovery Log Page Change",
        PullModelDdcRequest = 0xf3 => "Pull Model DDC Request Log Page Change",
    }
}

open_enum! {
    /// Information of an immediate event.
    pub enum ImmediateEvent: u8 {
        Shutdown = 0x00 => "Normal NVM Subsystem Shutdown",
        TemperatureRecovered = 0x01 => "Temperature Threshold Hysteresis Recovery",
    }
}

open_enum! {
    /// Information of an event of an I/O command set.
    pub enum CommandSetEvent: u8 {
        Reservation = 0x00 => "Reservation Log Page Available",
        SanitizeCompleted = 0x01 => "Sanitize Operation Completed",
        SanitizeDeallocated = 0x02 => "Sanitize Operation Completed With Unexpected Deallocation",
    }
}

impl AsyncEvent {
    /// A notice and its log page.
    pub const fn notice(notice: Notice, lid: LogId) -> Self {
        Self {
            kind: AsyncEventKind::Notice(notice),
            lid,
        }
    }

    /// Reads dword 0 of the completion.
    pub fn from_dw0(dw0: u32) -> Self {
        let [event_type, information, lid, _] = dw0.to_le_bytes();
        let kind = match event_type & 7 {
            0 => AsyncEventKind::Error(information.into()),
            1 => AsyncEventKind::Health(information.into()),
            2 => AsyncEventKind::Notice(information.into()),
            3 => AsyncEventKind::Immediate(information.into()),
            4 => AsyncEventKind::OneShot(information),
            6 => AsyncEventKind::CommandSet(information.into()),
            7 => AsyncEventKind::Vendor(information),
            _ => AsyncEventKind::Reserved(information),
        };
        Self {
            kind,
            lid: lid.into(),
        }
    }

    /// Dword 0 of the completion.
    pub const fn to_dw0(self) -> u32 {
        let [event_type, information] = self.kind.to_bytes();
        u32::from_le_bytes([event_type, information, self.lid.code(), 0])
    }
}

impl AsyncEventKind {
    const fn to_bytes(self) -> [u8; 2] {
        match self {
            Self::Error(information) => [0, information.code()],
            Self::Health(information) => [1, information.code()],
            Self::Notice(information) => [2, information.code()],
            Self::Immediate(information) => [3, information.code()],
            Self::OneShot(information) => [4, information],
            Self::Reserved(information) => [5, information],
            Self::CommandSet(information) => [6, information.code()],
            Self::Vendor(information) => [7, information],
        }
    }
}

impl fmt::Display for AsyncEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(information) => write!(f, "error: {information}"),
            Self::Health(information) => write!(f, "health: {information}"),
            Self::Notice(information) => write!(f, "notice: {information}"),
            Self::Immediate(information) => write!(f, "immediate: {information}"),
            Self::OneShot(information) => write!(f, "one-shot: {information:02x}h"),
            Self::CommandSet(information) => write!(f, "I/O command set: {information}"),
            Self::Vendor(information) => write!(f, "vendor specific: {information:02x}h"),
            Self::Reserved(information) => write!(f, "reserved: {information:02x}h"),
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, log page {:02x}h", self.kind, self.lid.code())
    }
}

impl Tree for AsyncEvent {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("event", self.kind)?;
        out.field("lid", self.lid)
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn dw0_is_packed() {
        use AsyncEventKind::{CommandSet, Error, Health, Notice as NoticeOf, Vendor};
        let cases = [
            (
                0x0000_0000,
                Error(ErrorEvent::InvalidDoorbell),
                LogId::SupportedLogPages,
            ),
            (
                0x0002_0101,
                Health(HealthEvent::Temperature),
                LogId::SmartHealth,
            ),
            (
                0x0004_0002,
                NoticeOf(Notice::NamespaceAttribute),
                LogId::ChangedNamespaces,
            ),
            (0x000c_0302, NoticeOf(Notice::AnaChange), LogId::Ana),
            (0x0070_f002, NoticeOf(Notice::Discovery), LogId::Discovery),
            (
                0x0080_0006,
                CommandSet(CommandSetEvent::Reservation),
                LogId::ReservationNotification,
            ),
            (0x00ff_ff07, Vendor(0xff), LogId::Unknown(0xff)),
        ];
        for (dw0, kind, lid) in cases {
            let event = AsyncEvent { kind, lid };
            assert_eq!(AsyncEvent::from_dw0(dw0), event);
            assert_eq!(event.to_dw0(), dw0);
        }
        assert_eq!(
            format!("{}", AsyncEvent::notice(Notice::AnaChange, LogId::Ana)),
            "notice: Asymmetric Namespace Access Change, log page 0ch"
        );
    }

    #[test]
    fn every_type_and_information_survives() {
        for event_type in 0..8u32 {
            for information in 0..256u32 {
                let dw0 = event_type | information << 8 | 0x0012_0000;
                assert_eq!(AsyncEvent::from_dw0(dw0).to_dw0(), dw0);
            }
        }
        assert_eq!(AsyncEvent::from_dw0(0xff00_00f8).to_dw0(), 0);
    }
}
