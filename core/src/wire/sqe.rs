//! The Submission Queue Entry (NVMe Base 2.0, section 3.3.3.1), its opcodes,
//! and the layouts that Fabrics commands give it (section 6).
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_ref};

use super::ids::{Cid, Nsid};
use super::sgl::Sgl;
use super::tree::{Tree, TreeWriter};

/// A command, 64 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// What to do: see [`AdminOpcode`] and [`IoOpcode`].
    pub opcode: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// Command Identifier.
    pub cid: U16,
    /// Namespace Identifier. In a Fabrics command, byte 4 is its [`Fctype`].
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer.
    pub mptr: U64,
    /// Data pointer: over Fabrics, one SGL descriptor.
    pub dptr: [u8; 16],
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

layout!(
    Sqe: 64,
    cid @ 2, nsid @ 4, cdw2 @ 8, cdw3 @ 12, mptr @ 16, dptr @ 24,
    cdw10 @ 40, cdw11 @ 44, cdw12 @ 48, cdw13 @ 52, cdw14 @ 56, cdw15 @ 60,
);

impl Sqe {
    /// The opcode of every Fabrics command.
    pub const FABRICS: u8 = 0x7F;
    /// `flags` of a command that is not fused and carries an SGL, as every
    /// command over Fabrics does (PSDT 01b).
    pub const FLAGS_SGL: u8 = 0x40;

    /// A command that carries an SGL, all else zero.
    pub fn new(opcode: u8, cid: Cid) -> Self {
        Self {
            opcode,
            flags: Self::FLAGS_SGL,
            cid: cid.0.into(),
            ..Self::default()
        }
    }

    /// The same command for this namespace.
    #[must_use]
    pub fn with_nsid(self, nsid: Nsid) -> Self {
        Self {
            nsid: nsid.0.into(),
            ..self
        }
    }

    /// The same command with this data pointer.
    #[must_use]
    pub fn with_sgl(self, sgl: Sgl) -> Self {
        Self {
            dptr: sgl.to_dptr(),
            ..self
        }
    }

    /// Command Identifier.
    pub fn cid(&self) -> Cid {
        Cid(self.cid.get())
    }

    /// Namespace Identifier; means nothing in a Fabrics command.
    pub fn nsid(&self) -> Nsid {
        Nsid(self.nsid.get())
    }

    /// Which half of a fused operation this is.
    pub fn fuse(&self) -> Fuse {
        Fuse::from(self.flags & 0b11)
    }

    /// What the data and metadata pointers are.
    pub fn psdt(&self) -> Psdt {
        Psdt::from(self.flags >> 6)
    }

    /// The data pointer as an SGL descriptor.
    pub fn sgl(&self) -> Sgl {
        Sgl::from_dptr(&self.dptr)
    }

    /// The opcode, if the command was sent on the Admin Queue.
    pub fn admin_opcode(&self) -> AdminOpcode {
        self.opcode.into()
    }

    /// The opcode, if the command was sent on an I/O Queue.
    pub fn io_opcode(&self) -> IoOpcode {
        self.opcode.into()
    }

    /// Whether this is a Fabrics command.
    pub fn is_fabrics(&self) -> bool {
        self.opcode == Self::FABRICS
    }

    /// The Fabrics command type; means nothing in other commands.
    pub fn fctype(&self) -> Fctype {
        let [fctype, ..] = self.nsid.to_bytes();
        fctype.into()
    }

    /// The entry as a Connect command has it.
    pub fn as_connect(&self) -> &FabricsConnectSqe {
        transmute_ref!(self)
    }

    /// The entry as a Property Get command has it.
    pub fn as_property_get(&self) -> &FabricsPropertyGetSqe {
        transmute_ref!(self)
    }

    /// The entry as a Property Set command has it.
    pub fn as_property_set(&self) -> &FabricsPropertySetSqe {
        transmute_ref!(self)
    }

    /// The entry as an Authentication Send command has it.
    pub fn as_auth_send(&self) -> &FabricsAuthSendSqe {
        transmute_ref!(self)
    }

    /// The entry as an Authentication Receive command has it.
    pub fn as_auth_receive(&self) -> &FabricsAuthReceiveSqe {
        transmute_ref!(self)
    }

    /// The entry as a Disconnect command has it.
    pub fn as_disconnect(&self) -> &FabricsDisconnectSqe {
        transmute_ref!(self)
    }

    fn cdw_fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        self.cdws()
            .into_iter()
            .try_for_each(|(name, cdw)| out.field(name, format_args!("{:#x}", cdw.get())))
    }

    fn cdws(&self) -> [(&'static str, U32); 6] {
        [
            ("cdw10", self.cdw10),
            ("cdw11", self.cdw11),
            ("cdw12", self.cdw12),
            ("cdw13", self.cdw13),
            ("cdw14", self.cdw14),
            ("cdw15", self.cdw15),
        ]
    }
}

/// The entry alone: without its queue, an opcode other than that of Fabrics
/// has no name. `command::Command` displays a command in full.
impl fmt::Display for Sqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_fabrics() {
            write!(f, "{} cid {}", self.fctype(), self.cid)?;
        } else {
            write!(
                f,
                "opcode {:02X}h cid {} nsid {}",
                self.opcode,
                self.cid,
                self.nsid(),
            )?;
        }
        match self.fuse() {
            Fuse::Normal => {}
            fuse => write!(f, " {fuse}")?,
        }
        for (name, cdw) in self.cdws() {
            if cdw.get() != 0 {
                write!(f, " {name} {:#x}", cdw.get())?;
            }
        }
        match self.sgl() {
            sgl if sgl.data_len() == 0 => Ok(()),
            sgl => write!(f, " data {sgl}"),
        }
    }
}

impl Tree for Sqe {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("opcode", format_args!("{:02X}h", self.opcode))?;
        out.field("fuse", self.fuse())?;
        out.field("psdt", self.psdt())?;
        out.field("cid", self.cid)?;
        if self.is_fabrics() {
            out.field("fctype", self.fctype())?;
            out.field("dptr", self.sgl())?;
            return match self.fctype() {
                Fctype::Connect => self.as_connect().specific_fields(out),
                Fctype::PropertyGet => self.as_property_get().specific_fields(out),
                Fctype::PropertySet => self.as_property_set().specific_fields(out),
                Fctype::AuthSend => self.as_auth_send().specific_fields(out),
                Fctype::AuthReceive => self.as_auth_receive().specific_fields(out),
                Fctype::Disconnect => self.as_disconnect().specific_fields(out),
                Fctype::Unknown(_) => self.cdw_fields(out),
            };
        }
        out.field("nsid", self.nsid())?;
        out.field("cdw2", format_args!("{:#x}", self.cdw2.get()))?;
        out.field("cdw3", format_args!("{:#x}", self.cdw3.get()))?;
        out.field("mptr", format_args!("{:#x}", self.mptr.get()))?;
        out.field("dptr", self.sgl())?;
        self.cdw_fields(out)
    }
}

open_enum! {
    /// FUSE, 2 bits: the part of a command in a fused operation.
    pub enum Fuse: u8 {
        Normal = 0b00 => "Normal Operation",
        First = 0b01 => "Fused Operation, First Command",
        Second = 0b10 => "Fused Operation, Second Command",
    }
}

open_enum! {
    /// PSDT, 2 bits: PRP or SGL for Data Transfer. Over Fabrics it is one of
    /// the two SGL values.
    pub enum Psdt: u8 {
        Prp = 0b00 => "PRP",
        Sgl = 0b01 => "SGL, MPTR of one contiguous buffer",
        SglMptrSgl = 0b10 => "SGL, MPTR of an SGL segment",
    }
}

open_enum! {
    /// Opcodes on the Admin Queue.
    pub enum AdminOpcode: u8 {
        DeleteIoSq = 0x00 => "Delete I/O Submission Queue",
        CreateIoSq = 0x01 => "Create I/O Submission Queue",
        GetLogPage = 0x02 => "Get Log Page",
        DeleteIoCq = 0x04 => "Delete I/O Completion Queue",
        CreateIoCq = 0x05 => "Create I/O Completion Queue",
        Identify = 0x06 => "Identify",
        Abort = 0x08 => "Abort",
        SetFeatures = 0x09 => "Set Features",
        GetFeatures = 0x0A => "Get Features",
        AsyncEventRequest = 0x0C => "Asynchronous Event Request",
        NamespaceManagement = 0x0D => "Namespace Management",
        FirmwareCommit = 0x10 => "Firmware Commit",
        FirmwareDownload = 0x11 => "Firmware Image Download",
        DeviceSelfTest = 0x14 => "Device Self-test",
        NamespaceAttachment = 0x15 => "Namespace Attachment",
        KeepAlive = 0x18 => "Keep Alive",
        DirectiveSend = 0x19 => "Directive Send",
        DirectiveReceive = 0x1A => "Directive Receive",
        VirtualizationManagement = 0x1C => "Virtualization Management",
        MiSend = 0x1D => "NVMe-MI Send",
        MiReceive = 0x1E => "NVMe-MI Receive",
        CapacityManagement = 0x20 => "Capacity Management",
        DiscoveryInfoManagement = 0x21 => "Discovery Information Management",
        FabricZoningReceive = 0x22 => "Fabric Zoning Receive",
        Lockdown = 0x24 => "Lockdown",
        FabricZoningLookup = 0x25 => "Fabric Zoning Lookup",
        FabricZoningSend = 0x29 => "Fabric Zoning Send",
        DoorbellBufferConfig = 0x7C => "Doorbell Buffer Config",
        Fabrics = 0x7F => "Fabrics Command",
        FormatNvm = 0x80 => "Format NVM",
        SecuritySend = 0x81 => "Security Send",
        SecurityReceive = 0x82 => "Security Receive",
        Sanitize = 0x84 => "Sanitize",
        GetLbaStatus = 0x86 => "Get LBA Status",
    }
}

open_enum! {
    /// Opcodes on I/O Queues, of the NVM and Zoned Namespace Command Sets.
    pub enum IoOpcode: u8 {
        Flush = 0x00 => "Flush",
        Write = 0x01 => "Write",
        Read = 0x02 => "Read",
        WriteUncorrectable = 0x04 => "Write Uncorrectable",
        Compare = 0x05 => "Compare",
        WriteZeroes = 0x08 => "Write Zeroes",
        DatasetManagement = 0x09 => "Dataset Management",
        Verify = 0x0C => "Verify",
        ReservationRegister = 0x0D => "Reservation Register",
        ReservationReport = 0x0E => "Reservation Report",
        ReservationAcquire = 0x11 => "Reservation Acquire",
        IoManagementReceive = 0x12 => "I/O Management Receive",
        ReservationRelease = 0x15 => "Reservation Release",
        Cancel = 0x18 => "Cancel",
        Copy = 0x19 => "Copy",
        IoManagementSend = 0x1D => "I/O Management Send",
        ZoneManagementSend = 0x79 => "Zone Management Send",
        ZoneManagementReceive = 0x7A => "Zone Management Receive",
        ZoneAppend = 0x7D => "Zone Append",
        Fabrics = 0x7F => "Fabrics Command",
    }
}

open_enum! {
    /// Fabrics Command Type: what a command of opcode 7Fh is.
    pub enum Fctype: u8 {
        PropertySet = 0x00 => "Property Set",
        Connect = 0x01 => "Connect",
        PropertyGet = 0x04 => "Property Get",
        AuthSend = 0x05 => "Authentication Send",
        AuthReceive = 0x06 => "Authentication Receive",
        Disconnect = 0x08 => "Disconnect",
    }
}

macro_rules! fabrics_sqe {
    (
        $(#[$meta:meta])*
        $Name:ident is $Fctype:ident, tail $tail:literal, shows [$($shown:ident),*];
        $( $(#[$fmeta:meta])* $fvis:vis $field:ident: $ty:ty = $offset:literal, )*
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
        )]
        #[repr(C)]
        pub struct $Name {
            /// 7Fh.
            pub opcode: u8,
            /// FUSE in bits 1:0, PSDT in bits 7:6.
            pub flags: u8,
            /// Command Identifier.
            pub cid: U16,
            /// Fabrics Command Type.
            pub fctype: u8,
            _reserved5: [u8; 19],
            /// Data pointer, one SGL descriptor; reserved where no data goes.
            pub dptr: [u8; 16],
            $( $(#[$fmeta])* $fvis $field: $ty, )*
            _tail: [u8; $tail],
        }

        layout!($Name: 64, cid @ 2, fctype @ 4, dptr @ 24, $( $field @ $offset, )*);

        impl $Name {
            /// The command, its other fields zero.
            pub fn new(cid: Cid) -> Self {
                Self {
                    opcode: Sqe::FABRICS,
                    flags: Sqe::FLAGS_SGL,
                    cid: cid.0.into(),
                    fctype: Fctype::$Fctype.code(),
                    ..zerocopy::FromZeros::new_zeroed()
                }
            }

            /// The entry of 64 bytes that goes on the wire.
            pub fn as_sqe(&self) -> &Sqe {
                transmute_ref!(self)
            }

            fn specific_fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
                $( out.field(stringify!($shown), self.$shown)?; )*
                Ok(())
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.as_sqe().fmt(f)
            }
        }

        impl Tree for $Name {
            fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
                self.as_sqe().fields(out)
            }
        }

        defmt_as_display!($Name);
    };
}

fabrics_sqe! {
    /// Connect (NVMe Base 2.0, section 6.3). Its 1024 bytes of data are
    /// `connect::ConnectData`.
    FabricsConnectSqe is Connect, tail 12, shows [recfmt, qid, sqsize, cattr, kato];
    /// Record Format, 0.
    pub recfmt: U16 = 40,
    /// Queue Identifier.
    pub qid: U16 = 42,
    /// Submission Queue Size in entries, 0's based.
    pub sqsize: U16 = 44,
    /// Connect Attributes.
    pub cattr: u8 = 46,
    _reserved47: u8 = 47,
    /// Keep Alive Timeout in milliseconds; 0 for none.
    pub kato: U32 = 48,
}

fabrics_sqe! {
    /// Property Get (NVMe Base 2.0, section 6.5).
    FabricsPropertyGetSqe is PropertyGet, tail 16, shows [attrib, ofst];
    /// Attributes: the property's size in bits 2:0.
    pub attrib: u8 = 40,
    _reserved41: [u8; 3] = 41,
    /// The property's offset in bytes.
    pub ofst: U32 = 44,
}

fabrics_sqe! {
    /// Property Set (NVMe Base 2.0, section 6.6).
    FabricsPropertySetSqe is PropertySet, tail 8, shows [attrib, ofst, value];
    /// Attributes: the property's size in bits 2:0.
    pub attrib: u8 = 40,
    _reserved41: [u8; 3] = 41,
    /// The property's offset in bytes.
    pub ofst: U32 = 44,
    /// What to set; a property of 4 bytes takes the low half.
    pub value: U64 = 48,
}

fabrics_sqe! {
    /// Authentication Send (NVMe Base 2.0, section 6.2).
    FabricsAuthSendSqe is AuthSend, tail 16, shows [secp, spsp0, spsp1, tl];
    _reserved40: u8 = 40,
    /// Security Protocol Specific, low byte.
    pub spsp0: u8 = 41,
    /// Security Protocol Specific, high byte.
    pub spsp1: u8 = 42,
    /// Security Protocol: E9h for NVMe.
    pub secp: u8 = 43,
    /// Transfer Length in bytes.
    pub tl: U32 = 44,
}

fabrics_sqe! {
    /// Authentication Receive (NVMe Base 2.0, section 6.1).
    FabricsAuthReceiveSqe is AuthReceive, tail 16, shows [secp, spsp0, spsp1, al];
    _reserved40: u8 = 40,
    /// Security Protocol Specific, low byte.
    pub spsp0: u8 = 41,
    /// Security Protocol Specific, high byte.
    pub spsp1: u8 = 42,
    /// Security Protocol: E9h for NVMe.
    pub secp: u8 = 43,
    /// Allocation Length in bytes.
    pub al: U32 = 44,
}

fabrics_sqe! {
    /// Disconnect (NVMe Base 2.0, section 6.4).
    FabricsDisconnectSqe is Disconnect, tail 22, shows [recfmt];
    /// Record Format, 0.
    pub recfmt: U16 = 40,
}

impl FabricsConnectSqe {
    /// SQSIZE undone: entries of the Submission Queue, 1..=65536.
    pub fn queue_entries(&self) -> u32 {
        u32::from(self.sqsize.get()).saturating_add(1)
    }
}

impl FabricsAuthSendSqe {
    /// Security Protocol Specific.
    pub fn spsp(&self) -> u16 {
        u16::from_le_bytes([self.spsp0, self.spsp1])
    }
}

impl FabricsAuthReceiveSqe {
    /// Security Protocol Specific.
    pub fn spsp(&self) -> u16 {
        u16::from_le_bytes([self.spsp0, self.spsp1])
    }
}

defmt_as_display!(Sqe);

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    fn sqe(at: &[(usize, &[u8])]) -> Sqe {
        let mut bytes = [0; 64];
        for (offset, field) in at {
            bytes[*offset..][..field.len()].copy_from_slice(field);
        }
        Sqe::read_from_bytes(&bytes).unwrap()
    }

    /// A Linux host's Connect of the Admin Queue: SQSIZE 31, CATTR 4, KATO
    /// 5000 ms, 1024 bytes in the capsule.
    fn connect() -> Sqe {
        sqe(&[
            (0, &[0x7F, 0x40, 1, 0, 1]),
            (32, &[0, 4]),
            (39, &[1]),
            (44, &[0x1F, 0, 4, 0, 0x88, 0x13]),
        ])
    }

    #[test]
    fn a_write_of_a_linux_host_reads_back() {
        // 4096 bytes of NSID 1, LBA 0, NLB 7, CID 5, through R2T.
        let write = sqe(&[
            (0, &[0x01, 0x40, 5, 0, 1]),
            (33, &[0x10]),
            (39, &[0x5A]),
            (48, &[7]),
        ]);
        assert_eq!(write.io_opcode(), IoOpcode::Write);
        assert_eq!((write.fuse(), write.psdt()), (Fuse::Normal, Psdt::Sgl));
        assert_eq!((write.cid(), write.nsid()), (Cid(5), Nsid(1)));
        assert_eq!(write.sgl(), Sgl::Transport { length: 4096 });
        assert_eq!(write.cdw12.get(), 7);
        assert_eq!(
            write.to_string(),
            "opcode 01h cid 5 nsid 1 cdw12 0x7 data 4096 B by transport"
        );
        let mut built = Sqe::new(0x01, Cid(5))
            .with_nsid(Nsid(1))
            .with_sgl(Sgl::Transport { length: 4096 });
        built.cdw12 = 7.into();
        assert_eq!(built, write);
    }

    #[test]
    fn fuse_and_psdt_are_two_bits_each() {
        for (flags, fuse, psdt) in [
            (0x00, Fuse::Normal, Psdt::Prp),
            (0x41, Fuse::First, Psdt::Sgl),
            (0x82, Fuse::Second, Psdt::SglMptrSgl),
            (0xFF, Fuse::Unknown(3), Psdt::Unknown(3)),
        ] {
            let sqe = sqe(&[(1, &[flags])]);
            assert_eq!((sqe.fuse(), sqe.psdt()), (fuse, psdt));
        }
    }

    #[test]
    fn connect_has_its_own_layout() {
        let sqe = connect();
        assert_eq!(sqe.fctype(), Fctype::Connect);
        assert_eq!(
            sqe.sgl(),
            Sgl::InCapsule {
                offset: 0,
                length: 1024
            }
        );
        let connect = sqe.as_connect();
        assert_eq!((connect.recfmt.get(), connect.qid.get()), (0, 0));
        assert_eq!((connect.cattr, connect.kato.get()), (4, 5000));
        assert_eq!((connect.sqsize.get(), connect.queue_entries()), (31, 32));

        let mut built = FabricsConnectSqe::new(Cid(1));
        built.dptr = sqe.dptr;
        built.sqsize = 31.into();
        built.cattr = 4;
        built.kato = 5000.into();
        assert_eq!(built.as_sqe(), &sqe);
        assert_eq!(
            built.tree().to_string(),
            "opcode: 7Fh\nfuse: Normal Operation\n\
             psdt: SGL, MPTR of one contiguous buffer\ncid: 1\nfctype: Connect\n\
             dptr: 1024 B in capsule at 0\n\
             recfmt: 0\nqid: 0\nsqsize: 31\ncattr: 4\nkato: 5000\n"
        );
    }

    #[test]
    fn queue_entries_undo_the_zero() {
        for (sqsize, entries) in [(0, 1), (1, 2), (0xFFFF, 0x1_0000)] {
            let mut connect = FabricsConnectSqe::new(Cid(0));
            connect.sqsize = sqsize.into();
            assert_eq!(connect.queue_entries(), entries);
        }
    }

    #[test]
    fn property_set_has_its_value_at_48() {
        // CC = 00460001h.
        let sqe = sqe(&[
            (0, &[0x7F, 0x40, 3, 0, 0]),
            (44, &[0x14]),
            (48, &[1, 0, 0x46, 0, 0, 0, 0, 0x80]),
        ]);
        assert_eq!(sqe.fctype(), Fctype::PropertySet);
        let set = sqe.as_property_set();
        assert_eq!((set.attrib, set.ofst.get()), (0, 0x14));
        assert_eq!(set.value.get(), 0x8000_0000_0046_0001);
    }

    #[test]
    fn authentication_has_its_protocol_before_its_length() {
        let sqe = sqe(&[(40, &[0, 0x01, 0x02, 0xE9, 0x10, 0, 0, 1])]);
        let (send, receive) = (sqe.as_auth_send(), sqe.as_auth_receive());
        assert_eq!(
            (send.secp, send.spsp(), send.tl.get()),
            (0xE9, 0x0201, 0x0100_0010)
        );
        assert_eq!(
            (receive.secp, receive.spsp(), receive.al.get()),
            (0xE9, 0x0201, 0x0100_0010)
        );
    }

    #[test]
    fn opcodes_are_total() {
        for code in 0..=255 {
            assert_eq!(AdminOpcode::from(code).code(), code);
            assert_eq!(IoOpcode::from(code).code(), code);
            assert_eq!(Fctype::from(code).code(), code);
        }
        assert_eq!(Fctype::from(0x02).to_string(), "Unknown (02h)");
    }
}
