//! The Status field of a completion (NVMe Base 2.0, section 3.3.3.2.1).
use core::fmt;

/// How a command ended: Status Code Type, Status Code and what to do about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status {
    /// Status Code Type, 3 bits.
    pub sct: u8,
    /// Status Code.
    pub sc: u8,
    /// Command Retry Delay, 2 bits: 0 for none, else which of the
    /// controller's three delay times (CRDT1..3) to wait before a retry.
    pub crd: u8,
    /// More: the Error Information log has an entry about this command.
    pub more: bool,
    /// Do Not Retry: the same command would fail again.
    pub dnr: bool,
}

impl Status {
    /// A status without delay, More or Do Not Retry.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self {
            sct,
            sc,
            crd: 0,
            more: false,
            dnr: false,
        }
    }

    /// The same status with Do Not Retry set.
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self { dnr: true, ..self }
    }

    /// The same status with More set.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self { more: true, ..self }
    }

    /// The same status with the Command Retry Delay `crd` (0..=3).
    #[must_use]
    pub const fn with_crd(self, crd: u8) -> Self {
        Self {
            crd: crd & 0b11,
            ..self
        }
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.sct == 0 && self.sc == 0
    }

    /// Whether type and code are those of `other`, whatever the rest says.
    pub const fn is(self, other: Self) -> bool {
        self.sct == other.sct && self.sc == other.sc
    }

    /// The Status word of a completion, its phase bit (bit 0) clear.
    pub const fn to_word(self) -> u16 {
        ((self.sc as u16) << 1)
            | ((self.sct as u16 & 0b111) << 9)
            | ((self.crd as u16 & 0b11) << 12)
            | ((self.more as u16) << 14)
            | ((self.dnr as u16) << 15)
    }

    /// Reads the Status word of a completion; the phase bit is ignored.
    pub const fn from_word(word: u16) -> Self {
        let [low, high] = (word >> 1).to_le_bytes();
        Self {
            sc: low,
            sct: high & 0b111,
            crd: (high >> 3) & 0b11,
            more: high & 0x20 != 0,
            dnr: high & 0x40 != 0,
        }
    }
}

macro_rules! statuses {
    ($( $sct:literal { $( $NAME:ident = $sc:literal => $text:literal, )* } )*) => {
        /// The codes the specifications define.
        impl Status {
            $( $(
                #[doc = concat!($text, " (type ", stringify!($sct), ", code `", stringify!($sc), "`).")]
                pub const $NAME: Self = Self::new($sct, $sc);
            )* )*

            /// The specification's wording, or that of the code's type where
            /// the code is not known.
            ///
            /// Fabrics commands share codes 1/80h and up with I/O commands:
            /// see [`Status::name_for`].
            pub const fn name(self) -> &'static str {
                match (self.sct, self.sc) {
                    $( $( ($sct, $sc) => $text, )* )*
                    (0, 0xC0..) | (1, 0xC0..) | (2, 0xC0..) | (3, 0xC0..) | (7, _) => {
                        "Vendor Specific"
                    }
                    (0, _) => "Unknown Generic Command Status",
                    (1, _) => "Unknown Command Specific Status",
                    (2, _) => "Unknown Media and Data Integrity Error",
                    (3, _) => "Unknown Path Related Status",
                    _ => "Unknown Status Code Type",
                }
            }
        }
    };
}

statuses! {
    0 {
        SUCCESS = 0x00 => "Successful Completion",
        INVALID_OPCODE = 0x01 => "Invalid Command Opcode",
        INVALID_FIELD = 0x02 => "Invalid Field in Command",
        COMMAND_ID_CONFLICT = 0x03 => "Command ID Conflict",
        DATA_TRANSFER_ERROR = 0x04 => "Data Transfer Error",
        ABORTED_POWER_LOSS = 0x05 => "Commands Aborted due to Power Loss Notification",
        INTERNAL_ERROR = 0x06 => "Internal Error",
        ABORT_REQUESTED = 0x07 => "Command Abort Requested",
        ABORTED_SQ_DELETION = 0x08 => "Command Aborted due to SQ Deletion",
        ABORTED_FAILED_FUSED = 0x09 => "Command Aborted due to Failed Fused Command",
        ABORTED_MISSING_FUSED = 0x0A => "Command Aborted due to Missing Fused Command",
        INVALID_NAMESPACE_OR_FORMAT = 0x0B => "Invalid Namespace or Format",
        COMMAND_SEQUENCE_ERROR = 0x0C => "Command Sequence Error",
        INVALID_SGL_DESCRIPTOR = 0x0D => "Invalid SGL Segment Descriptor",
        INVALID_SGL_DESCRIPTOR_COUNT = 0x0E => "Invalid Number of SGL Descriptors",
        SGL_DATA_LENGTH_INVALID = 0x0F => "Data SGL Length Invalid",
        SGL_METADATA_LENGTH_INVALID = 0x10 => "Metadata SGL Length Invalid",
        SGL_DESCRIPTOR_TYPE_INVALID = 0x11 => "SGL Descriptor Type Invalid",
        INVALID_CMB_USE = 0x12 => "Invalid Use of Controller Memory Buffer",
        PRP_OFFSET_INVALID = 0x13 => "PRP Offset Invalid",
        ATOMIC_WRITE_UNIT_EXCEEDED = 0x14 => "Atomic Write Unit Exceeded",
        OPERATION_DENIED = 0x15 => "Operation Denied",
        SGL_OFFSET_INVALID = 0x16 => "SGL Offset Invalid",
        HOST_IDENTIFIER_INCONSISTENT = 0x18 => "Host Identifier Inconsistent Format",
        KEEP_ALIVE_EXPIRED = 0x19 => "Keep Alive Timer Expired",
        KEEP_ALIVE_TIMEOUT_INVALID = 0x1A => "Keep Alive Timeout Invalid",
        ABORTED_PREEMPT = 0x1B => "Command Aborted due to Preempt and Abort",
        SANITIZE_FAILED = 0x1C => "Sanitize Failed",
        SANITIZE_IN_PROGRESS = 0x1D => "Sanitize In Progress",
        SGL_GRANULARITY_INVALID = 0x1E => "SGL Data Block Granularity Invalid",
        NOT_SUPPORTED_IN_CMB = 0x1F => "Command Not Supported for Queue in CMB",
        NAMESPACE_WRITE_PROTECTED = 0x20 => "Namespace is Write Protected",
        COMMAND_INTERRUPTED = 0x21 => "Command Interrupted",
        TRANSIENT_TRANSPORT_ERROR = 0x22 => "Transient Transport Error",
        LOCKDOWN_PROHIBITED = 0x23 => "Command Prohibited by Command and Feature Lockdown",
        ADMIN_MEDIA_NOT_READY = 0x24 => "Admin Command Media Not Ready",
        INVALID_KEY_TAG = 0x25 => "Invalid Key Tag",
        HOST_DISPERSED_NOT_ENABLED = 0x26 => "Host Dispersed Namespace Support Not Enabled",
        HOST_IDENTIFIER_NOT_INITIALIZED = 0x27 => "Host Identifier Not Initialized",
        INCORRECT_KEY = 0x28 => "Incorrect Key",
        FDP_DISABLED = 0x29 => "FDP Disabled",
        INVALID_PLACEMENT_HANDLES = 0x2A => "Invalid Placement Handle List",
        LBA_OUT_OF_RANGE = 0x80 => "LBA Out of Range",
        CAPACITY_EXCEEDED = 0x81 => "Capacity Exceeded",
        NAMESPACE_NOT_READY = 0x82 => "Namespace Not Ready",
        RESERVATION_CONFLICT = 0x83 => "Reservation Conflict",
        FORMAT_IN_PROGRESS = 0x84 => "Format In Progress",
        INVALID_VALUE_SIZE = 0x85 => "Invalid Value Size",
        INVALID_KEY_SIZE = 0x86 => "Invalid Key Size",
        KEY_DOES_NOT_EXIST = 0x87 => "KV Key Does Not Exist",
        UNRECOVERED_ERROR = 0x88 => "Unrecovered Error",
        KEY_EXISTS = 0x89 => "Key Exists",
    }
    1 {
        COMPLETION_QUEUE_INVALID = 0x00 => "Completion Queue Invalid",
        INVALID_QUEUE_IDENTIFIER = 0x01 => "Invalid Queue Identifier",
        INVALID_QUEUE_SIZE = 0x02 => "Invalid Queue Size",
        ABORT_LIMIT_EXCEEDED = 0x03 => "Abort Command Limit Exceeded",
        ASYNC_EVENT_LIMIT_EXCEEDED = 0x05 => "Asynchronous Event Request Limit Exceeded",
        INVALID_FIRMWARE_SLOT = 0x06 => "Invalid Firmware Slot",
        INVALID_FIRMWARE_IMAGE = 0x07 => "Invalid Firmware Image",
        INVALID_INTERRUPT_VECTOR = 0x08 => "Invalid Interrupt Vector",
        INVALID_LOG_PAGE = 0x09 => "Invalid Log Page",
        INVALID_FORMAT = 0x0A => "Invalid Format",
        FIRMWARE_NEEDS_CONVENTIONAL_RESET = 0x0B => "Firmware Activation Requires Conventional Reset",
        INVALID_QUEUE_DELETION = 0x0C => "Invalid Queue Deletion",
        FEATURE_NOT_SAVEABLE = 0x0D => "Feature Identifier Not Saveable",
        FEATURE_NOT_CHANGEABLE = 0x0E => "Feature Not Changeable",
        FEATURE_NOT_NAMESPACE_SPECIFIC = 0x0F => "Feature Not Namespace Specific",
        FIRMWARE_NEEDS_SUBSYSTEM_RESET = 0x10 => "Firmware Activation Requires NVM Subsystem Reset",
        FIRMWARE_NEEDS_CONTROLLER_RESET = 0x11 => "Firmware Activation Requires Controller Level Reset",
        FIRMWARE_MAX_TIME_VIOLATION = 0x12 => "Firmware Activation Requires Maximum Time Violation",
        FIRMWARE_PROHIBITED = 0x13 => "Firmware Activation Prohibited",
        OVERLAPPING_RANGE = 0x14 => "Overlapping Range",
        NAMESPACE_INSUFFICIENT_CAPACITY = 0x15 => "Namespace Insufficient Capacity",
        NAMESPACE_IDENTIFIER_UNAVAILABLE = 0x16 => "Namespace Identifier Unavailable",
        NAMESPACE_ALREADY_ATTACHED = 0x18 => "Namespace Already Attached",
        NAMESPACE_IS_PRIVATE = 0x19 => "Namespace Is Private",
        NAMESPACE_NOT_ATTACHED = 0x1A => "Namespace Not Attached",
        THIN_PROVISIONING_NOT_SUPPORTED = 0x1B => "Thin Provisioning Not Supported",
        CONTROLLER_LIST_INVALID = 0x1C => "Controller List Invalid",
        SELF_TEST_IN_PROGRESS = 0x1D => "Device Self-test In Progress",
        BOOT_PARTITION_WRITE_PROHIBITED = 0x1E => "Boot Partition Write Prohibited",
        INVALID_CONTROLLER_IDENTIFIER = 0x1F => "Invalid Controller Identifier",
        INVALID_SECONDARY_STATE = 0x20 => "Invalid Secondary Controller State",
        INVALID_RESOURCE_COUNT = 0x21 => "Invalid Number of Controller Resources",
        INVALID_RESOURCE_IDENTIFIER = 0x22 => "Invalid Resource Identifier",
        SANITIZE_PROHIBITED_PMR = 0x23 => "Sanitize Prohibited While Persistent Memory Region is Enabled",
        ANA_GROUP_INVALID = 0x24 => "ANA Group Identifier Invalid",
        ANA_ATTACH_FAILED = 0x25 => "ANA Attach Failed",
        INSUFFICIENT_CAPACITY = 0x26 => "Insufficient Capacity",
        ATTACHMENT_LIMIT_EXCEEDED = 0x27 => "Namespace Attachment Limit Exceeded",
        PROHIBITION_NOT_SUPPORTED = 0x28 => "Prohibition of Command Execution Not Supported",
        IOCS_NOT_SUPPORTED = 0x29 => "I/O Command Set Not Supported",
        IOCS_NOT_ENABLED = 0x2A => "I/O Command Set Not Enabled",
        IOCS_COMBINATION_REJECTED = 0x2B => "I/O Command Set Combination Rejected",
        INVALID_IOCS = 0x2C => "Invalid I/O Command Set",
        IDENTIFIER_UNAVAILABLE = 0x2D => "Identifier Unavailable",
        NAMESPACE_IS_DISPERSED = 0x2E => "Namespace Is Dispersed",
        INVALID_DISCOVERY_INFORMATION = 0x2F => "Invalid Discovery Information",
        ZONING_DATA_LOCKED = 0x30 => "Zoning Data Structure Locked",
        ZONING_DATA_NOT_FOUND = 0x31 => "Zoning Data Structure Not Found",
        INSUFFICIENT_DISCOVERY_RESOURCES = 0x32 => "Insufficient Discovery Resources",
        REQUESTED_FUNCTION_DISABLED = 0x33 => "Requested Function Disabled",
        ZONEGROUP_ORIGINATOR_INVALID = 0x34 => "ZoneGroup Originator Invalid",
        INVALID_HOST = 0x35 => "Invalid Host",
        INVALID_SUBSYSTEM = 0x36 => "Invalid NVM Subsystem",
        INVALID_CONTROLLER_DATA_QUEUE = 0x37 => "Invalid Controller Data Queue",
        NOT_ENOUGH_RESOURCES = 0x38 => "Not Enough Resources",
        CONTROLLER_SUSPENDED = 0x39 => "Controller Suspended",
        CONTROLLER_NOT_SUSPENDED = 0x3A => "Controller Not Suspended",
        CONTROLLER_DATA_QUEUE_FULL = 0x3B => "Controller Data Queue Full",
        INCOMPATIBLE_FORMAT = 0x80 => "Incompatible Format",
        CONTROLLER_BUSY = 0x81 => "Controller Busy",
        CONNECT_INVALID_PARAMETERS = 0x82 => "Connect Invalid Parameters",
        CONNECT_RESTART_DISCOVERY = 0x83 => "Connect Restart Discovery",
        CONNECT_INVALID_HOST = 0x84 => "Connect Invalid Host",
        INVALID_QUEUE_TYPE = 0x85 => "Invalid Queue Type",
        DISCOVER_RESTART = 0x90 => "Discover Restart",
        AUTH_REQUIRED = 0x91 => "Authentication Required",
        FAST_COPY_NOT_POSSIBLE = 0x86 => "Fast Copy Not Possible",
        OVERLAPPING_IO_RANGE = 0x87 => "Overlapping I/O Range",
        NAMESPACE_NOT_REACHABLE = 0x88 => "Namespace Not Reachable",
        INSUFFICIENT_RESOURCES = 0x89 => "Insufficient Resources",
        ZONE_BOUNDARY_ERROR = 0xB8 => "Zoned Boundary Error",
        ZONE_IS_FULL = 0xB9 => "Zone Is Full",
        ZONE_IS_READ_ONLY = 0xBA => "Zone Is Read Only",
        ZONE_IS_OFFLINE = 0xBB => "Zone Is Offline",
        ZONE_INVALID_WRITE = 0xBC => "Zone Invalid Write",
        TOO_MANY_ACTIVE_ZONES = 0xBD => "Too Many Active Zones",
        TOO_MANY_OPEN_ZONES = 0xBE => "Too Many Open Zones",
        INVALID_ZONE_STATE_TRANSITION = 0xBF => "Invalid Zone State Transition",
    }
    2 {
        WRITE_FAULT = 0x80 => "Write Fault",
        UNRECOVERED_READ_ERROR = 0x81 => "Unrecovered Read Error",
        GUARD_CHECK_ERROR = 0x82 => "End-to-end Guard Check Error",
        APPLICATION_TAG_CHECK_ERROR = 0x83 => "End-to-end Application Tag Check Error",
        REFERENCE_TAG_CHECK_ERROR = 0x84 => "End-to-end Reference Tag Check Error",
        COMPARE_FAILURE = 0x85 => "Compare Failure",
        ACCESS_DENIED = 0x86 => "Access Denied",
        DEALLOCATED_BLOCK = 0x87 => "Deallocated or Unwritten Logical Block",
        STORAGE_TAG_CHECK_ERROR = 0x88 => "End-to-End Storage Tag Check Error",
    }
    3 {
        INTERNAL_PATH_ERROR = 0x00 => "Internal Path Error",
        ANA_PERSISTENT_LOSS = 0x01 => "Asymmetric Access Persistent Loss",
        ANA_INACCESSIBLE = 0x02 => "Asymmetric Access Inaccessible",
        ANA_TRANSITION = 0x03 => "Asymmetric Access Transition",
        CONTROLLER_PATHING_ERROR = 0x60 => "Controller Pathing Error",
        HOST_PATHING_ERROR = 0x70 => "Host Pathing Error",
        ABORTED_BY_HOST = 0x71 => "Command Aborted By Host",
    }
}

macro_rules! io_statuses {
    ($( $NAME:ident = $sc:literal => $text:literal, )*) => {
        /// Codes of I/O commands, of type 1, that mean something else in
        /// Fabrics commands.
        impl Status {
            $(
                #[doc = concat!($text, " (type 1, code `", stringify!($sc), "`).")]
                pub const $NAME: Self = Self::new(1, $sc);
            )*

            /// The wording for a command with this opcode, which tells an I/O
            /// command's 1/80h..1/85h from a Fabrics command's.
            pub const fn name_for(self, opcode: u8) -> &'static str {
                match (opcode, self.sct, self.sc) {
                    (0x7F, ..) => self.name(),
                    $( (_, 1, $sc) => $text, )*
                    _ => self.name(),
                }
            }
        }
    };
}

io_statuses! {
    CONFLICTING_ATTRIBUTES = 0x80 => "Conflicting Attributes",
    INVALID_PROTECTION_INFORMATION = 0x81 => "Invalid Protection Information",
    ATTEMPTED_WRITE_TO_READ_ONLY_RANGE = 0x82 => "Attempted Write to Read Only Range",
    COMMAND_SIZE_LIMIT_EXCEEDED = 0x83 => "Command Size Limit Exceeded",
    INVALID_COMMAND_ID = 0x84 => "Invalid Command ID",
    INCOMPATIBLE_NAMESPACE_OR_FORMAT = 0x85 => "Incompatible Namespace or Format",
}

/// The name, the type and code as `SCT/SCh`, then what is set beside them.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}/{:02X}h)", self.name(), self.sct, self.sc)?;
        if self.crd != 0 {
            write!(f, " CRD={}", self.crd)?;
        }
        f.write_str(if self.more { " More" } else { "" })?;
        f.write_str(if self.dnr { " DNR" } else { "" })
    }
}

defmt_as_display!(Status);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_its_bits() {
        // Bits 15 DNR, 14 M, 13:12 CRD, 11:9 SCT, 8:1 SC, 0 phase.
        let all = Status {
            sct: 7,
            sc: 0xFF,
            crd: 3,
            more: true,
            dnr: true,
        };
        for (word, status) in [
            (0x0000, Status::SUCCESS),
            (0x0002, Status::INVALID_OPCODE),
            (0x4002, Status::INVALID_OPCODE.with_more()),
            (0x8004, Status::INVALID_FIELD.with_dnr()),
            (0x1044, Status::TRANSIENT_TRANSPORT_ERROR.with_crd(1)),
            (0x3044, Status::TRANSIENT_TRANSPORT_ERROR.with_crd(3)),
            (0x8304, Status::CONNECT_INVALID_PARAMETERS.with_dnr()),
            (0x050A, Status::COMPARE_FAILURE),
            (0xFFFE, all),
        ] {
            assert_eq!(status.to_word(), word, "{status}");
            assert_eq!(Status::from_word(word), status);
            assert_eq!(Status::from_word(word | 1), status, "phase is no status");
        }
    }

    #[test]
    fn every_word_survives_a_round_trip() {
        for word in 0..=u16::MAX {
            assert_eq!(Status::from_word(word).to_word(), word & !1);
        }
    }

    #[test]
    fn a_shared_code_is_named_by_its_command() {
        let status = Status::new(1, 0x82);
        assert_eq!(status.name_for(0x7F), "Connect Invalid Parameters");
        assert_eq!(status.name_for(0x01), "Attempted Write to Read Only Range");
        assert_eq!(
            Status::INVALID_FIELD.name_for(0x01),
            "Invalid Field in Command"
        );
    }

    #[test]
    fn unknown_codes_still_say_their_type() {
        assert_eq!(
            Status::new(0, 0x7F).name(),
            "Unknown Generic Command Status"
        );
        assert_eq!(Status::new(7, 0x01).name(), "Vendor Specific");
        assert_eq!(Status::new(2, 0xC0).name(), "Vendor Specific");
        assert_eq!(Status::new(5, 0x01).name(), "Unknown Status Code Type");
    }
}
