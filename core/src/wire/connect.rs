//! What Connect carries beside its command: 1024 bytes of data, and the
//! result (NVMe Base 2.0, section 6.3).
use core::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ids::{Cntlid, HostId, Nqn, NqnError};
use super::tree::{Tree, TreeWriter};

/// The data of a Connect command, 1024 bytes.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host Identifier.
    pub hostid: [u8; 16],
    /// The controller to connect to: [`Cntlid::DYNAMIC`] for an Admin Queue
    /// of the dynamic model.
    pub cntlid: U16,
    _reserved18: [u8; 238],
    /// The subsystem's name, NUL-padded.
    pub subnqn: [u8; Nqn::FIELD_LEN],
    /// The host's name, NUL-padded.
    pub hostnqn: [u8; Nqn::FIELD_LEN],
    _reserved768: [u8; 256],
}

layout!(ConnectData: 1024, hostid @ 0, cntlid @ 16, subnqn @ 256, hostnqn @ 512);

impl ConnectData {
    /// Bytes of the data.
    pub const LEN: usize = size_of::<Self>();

    /// The data for a host that connects to a controller of a subsystem.
    pub fn new(hostid: HostId, hostnqn: &Nqn, subnqn: &Nqn, cntlid: Cntlid) -> Self {
        Self {
            hostid: hostid.0,
            cntlid: cntlid.0.into(),
            subnqn: subnqn.to_field(),
            hostnqn: hostnqn.to_field(),
            ..Self::new_zeroed()
        }
    }

    /// Host Identifier.
    pub fn hostid(&self) -> HostId {
        HostId(self.hostid)
    }

    /// The controller to connect to.
    pub fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid.get())
    }

    /// The subsystem's name.
    ///
    /// # Errors
    /// Those of [`Nqn::parse`]; Connect then fails with
    /// [`InvalidParameter::SUBNQN`].
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::parse(&self.subnqn)
    }

    /// The host's name.
    ///
    /// # Errors
    /// Those of [`Nqn::parse`]; Connect then fails with
    /// [`InvalidParameter::HOSTNQN`].
    pub fn hostnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::parse(&self.hostnqn)
    }
}

struct Name(Result<Nqn, NqnError>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(nqn) => nqn.fmt(f),
            Err(error) => write!(f, "({error})"),
        }
    }
}

impl fmt::Display for ConnectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "host {} hostid {} to {} cntlid {}",
            Name(self.hostnqn()),
            self.hostid(),
            Name(self.subnqn()),
            self.cntlid(),
        )
    }
}

impl Tree for ConnectData {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("hostid", self.hostid())?;
        out.field("cntlid", self.cntlid())?;
        out.field("subnqn", Name(self.subnqn()))?;
        out.field("hostnqn", Name(self.hostnqn()))
    }
}

bitfield! {
    /// CATTR of a Connect command.
    Cattr: u8 {
        /// Priority class of the queue, for weighted round robin.
        pub priority / pub with_priority: u8 = 0, 2;
        /// The host asks to do without SQ flow control.
        pub disable_sq_flow_control / pub with_disable_sq_flow_control: bool = 2, 1;
        /// The host may delete I/O queues one by one with Disconnect.
        pub individual_io_queue_deletion / pub with_individual_io_queue_deletion: bool = 3, 1;
    }
}

/// The result of a Connect that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ConnectResult {
    /// The controller connected to.
    pub cntlid: Cntlid,
    /// ATR: the host must authenticate itself before anything else.
    pub atr: bool,
    /// ASCR: the host must authenticate itself and then have a secure channel.
    pub ascr: bool,
}

impl ConnectResult {
    const ATR: u64 = 1 << 17;
    const ASCR: u64 = 1 << 18;

    /// A controller that asks for no authentication.
    pub const fn new(cntlid: Cntlid) -> Self {
        Self {
            cntlid,
            atr: false,
            ascr: false,
        }
    }

    /// Reads the result of a completion.
    pub const fn from_result(result: u64) -> Self {
        let [c0, c1, ..] = result.to_le_bytes();
        Self {
            cntlid: Cntlid(u16::from_le_bytes([c0, c1])),
            atr: result & Self::ATR != 0,
            ascr: result & Self::ASCR != 0,
        }
    }

    /// The result for a completion.
    pub const fn to_result(self) -> u64 {
        let atr = if self.atr { Self::ATR } else { 0 };
        let ascr = if self.ascr { Self::ASCR } else { 0 };
        self.cntlid.0 as u64 | atr | ascr
    }
}

/// Which parameter a Connect that failed with Connect Invalid Parameters or
/// Connect Invalid Host has wrong: the result of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct InvalidParameter {
    /// IPO: offset of the parameter in bytes.
    pub offset: u16,
    /// IATTR bit 0: the offset counts in the data, not in the command.
    pub in_data: bool,
}

impl InvalidParameter {
    /// RECFMT of the command.
    pub const RECFMT: Self = Self::in_command(40);
    /// QID of the command.
    pub const QID: Self = Self::in_command(42);
    /// SQSIZE of the command.
    pub const SQSIZE: Self = Self::in_command(44);
    /// CATTR of the command.
    pub const CATTR: Self = Self::in_command(46);
    /// KATO of the command.
    pub const KATO: Self = Self::in_command(48);
    /// HOSTID of the data.
    pub const HOSTID: Self = Self::in_data(0);
    /// CNTLID of the data.
    pub const CNTLID: Self = Self::in_data(16);
    /// SUBNQN of the data.
    pub const SUBNQN: Self = Self::in_data(256);
    /// HOSTNQN of the data.
    pub const HOSTNQN: Self = Self::in_data(512);

    const fn in_command(offset: u16) -> Self {
        Self {
            offset,
            in_data: false,
        }
    }

    const fn in_data(offset: u16) -> Self {
        Self {
            offset,
            in_data: true,
        }
    }

    /// Reads the result of a completion.
    pub const fn from_result(result: u64) -> Self {
        let [o0, o1, iattr, ..] = result.to_le_bytes();
        Self {
            offset: u16::from_le_bytes([o0, o1]),
            in_data: iattr & 1 != 0,
        }
    }

    /// The result for a completion.
    pub const fn to_result(self) -> u64 {
        self.offset as u64 | (self.in_data as u64) << 16
    }

    /// The name of the parameter, if it is one that Connect has.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::RECFMT => "RECFMT",
            Self::QID => "QID",
            Self::SQSIZE => "SQSIZE",
            Self::CATTR => "CATTR",
            Self::KATO => "KATO",
            Self::HOSTID => "HOSTID",
            Self::CNTLID => "CNTLID",
            Self::SUBNQN => "SUBNQN",
            Self::HOSTNQN => "HOSTNQN",
            _ => return None,
        })
    }
}

impl fmt::Display for InvalidParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.in_data { "data" } else { "command" };
        match self.name() {
            Some(name) => write!(f, "{name} of the {place}"),
            None => write!(f, "byte {} of the {place}", self.offset),
        }
    }
}

defmt_as_display!(ConnectData);

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn the_data_is_read_and_built() {
        let mut bytes = [0; 1024];
        bytes[..16].copy_from_slice(&[0x0F, 0xE1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        bytes[16..18].copy_from_slice(&[0xFE, 0xFF]);
        bytes[256..262].copy_from_slice(b"nqn.s1");
        bytes[512..518].copy_from_slice(b"nqn.h1");
        let data = ConnectData::read_from_bytes(&bytes).unwrap();
        assert_eq!(data.cntlid(), Cntlid::STATIC_ANY);
        let (subnqn, hostnqn) = (data.subnqn().unwrap(), data.hostnqn().unwrap());
        assert_eq!((subnqn.as_str(), hostnqn.as_str()), ("nqn.s1", "nqn.h1"));
        assert_eq!(
            data.to_string(),
            "host nqn.h1 hostid 0fe10203-0405-0607-0809-0a0b0c0d0e0f to nqn.s1 cntlid static"
        );
        let built = ConnectData::new(data.hostid(), &hostnqn, &subnqn, Cntlid::STATIC_ANY);
        assert_eq!(built.as_bytes(), bytes);
    }

    #[test]
    fn a_name_without_nul_is_an_error() {
        let mut data = ConnectData::new_zeroed();
        data.subnqn = [b'A'; 256];
        assert_eq!(data.subnqn(), Err(NqnError::TooLong));
        assert_eq!(data.hostnqn(), Err(NqnError::Empty));
    }

    #[test]
    fn the_result_has_authentication_in_bits_17_and_18() {
        for (raw, atr, ascr) in [
            (0x0_0001, false, false),
            (0x2_0001, true, false),
            (0x4_0001, false, true),
            (0x6_0001, true, true),
        ] {
            let result = ConnectResult {
                cntlid: Cntlid(1),
                atr,
                ascr,
            };
            assert_eq!(ConnectResult::from_result(raw), result);
            assert_eq!(result.to_result(), raw);
        }
        assert_eq!(ConnectResult::new(Cntlid(0xFFEF)).to_result(), 0xFFEF);
    }

    #[test]
    fn a_wrong_parameter_is_named_by_its_offset() {
        for (raw, parameter, text) in [
            (0x1_0100, InvalidParameter::SUBNQN, "SUBNQN of the data"),
            (0x1_0200, InvalidParameter::HOSTNQN, "HOSTNQN of the data"),
            (0x1_0010, InvalidParameter::CNTLID, "CNTLID of the data"),
            (0x0_002C, InvalidParameter::SQSIZE, "SQSIZE of the command"),
        ] {
            assert_eq!(parameter.to_result(), raw);
            assert_eq!(InvalidParameter::from_result(raw), parameter);
            assert_eq!(parameter.to_string(), text);
        }
        assert_eq!(
            InvalidParameter::from_result(0x1_FFFF).to_string(),
            "byte 65535 of the data"
        );
    }

    #[test]
    fn cattr_has_its_bits() {
        assert!(Cattr(4).disable_sq_flow_control());
        assert!(Cattr(8).individual_io_queue_deletion());
        assert_eq!(Cattr(0xFF).priority(), 3);
        assert_eq!(
            Cattr(0).with_disable_sq_flow_control(true).with_priority(7),
            Cattr(7)
        );
    }
}
