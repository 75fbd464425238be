//! DH-HMAC-CHAP: the messages that Authentication Send and Authentication
//! Receive carry (NVMe Base 2.0, section 8.13.5).
//!
//! Every length that a message names is checked against the bytes it came in:
//! the Transfer Length of Authentication Send, the Allocation Length of
//! Authentication Receive.
use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::text::Hex;
use super::tree::{Tree, TreeWriter};

/// Security Protocol (SECP) of both commands.
pub const SECP: u8 = 0xe9;
/// Security Protocol Specific (SPSP0 and SPSP1) of both commands.
pub const SPSP: [u8; 2] = [1, 1];

const COMMON: u8 = 0x00;
const DH_HMAC_CHAP: u8 = 0x01;

/// A message, its variable parts borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMessage<'a> {
    /// AUTH_Negotiate, from the host.
    Negotiate(Negotiate<'a>),
    /// DH-HMAC-CHAP_Challenge, from the controller.
    Challenge(Challenge<'a>),
    /// DH-HMAC-CHAP_Reply, from the host.
    Reply(Reply<'a>),
    /// DH-HMAC-CHAP_Success1, from the controller.
    Success1(Success1<'a>),
    /// DH-HMAC-CHAP_Success2, from the host.
    Success2(Success2),
    /// AUTH_Failure1, from the controller.
    Failure1(Failure),
    /// AUTH_Failure2, from the host.
    Failure2(Failure),
}

/// What a host offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiate<'a> {
    /// Transaction Identifier.
    pub t_id: u16,
    /// Secure Channel Concatenation: what to do with the session key.
    pub sc_c: SecureChannel,
    /// The protocols the host can speak.
    pub protocols: &'a [ProtocolDescriptor],
}

/// What a controller asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// Transaction Identifier.
    pub t_id: u16,
    /// The hash function that was chosen.
    pub hash: HashId,
    /// The Diffie-Hellman group that was chosen.
    pub dh_group: DhGroup,
    /// Sequence Number S1.
    pub seqnum: u32,
    /// Challenge Value C1, as long as the hash.
    pub cval: &'a [u8],
    /// Diffie-Hellman Value of the controller; empty for the null group.
    pub dhv: &'a [u8],
}

/// What a host answers, and may ask in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Transaction Identifier.
    pub t_id: u16,
    /// Sequence Number S2; 0 if the host does not ask.
    pub seqnum: u32,
    /// Response Value R1, as long as the hash.
    pub rval: &'a [u8],
    /// Challenge Value C2, as long as the hash, if the host asks.
    pub cval: Option<&'a [u8]>,
    /// Diffie-Hellman Value of the host; empty for the null group.
    pub dhv: &'a [u8],
}

/// The controller is satisfied, and answers what the host asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    /// Transaction Identifier.
    pub t_id: u16,
    /// Hash Length in bytes.
    pub hl: u8,
    /// Response Value R2, as long as the hash, if the host asked.
    pub rval: Option<&'a [u8]>,
}

/// The host is satisfied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success2 {
    /// Transaction Identifier.
    pub t_id: u16,
}

/// One side is not satisfied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Transaction Identifier.
    pub t_id: u16,
    /// Reason Code.
    pub rc: FailureReason,
    /// Reason Code Explanation.
    pub rce: FailureExplanation,
}

open_enum! {
    /// Secure Channel Concatenation (SC_C).
    pub enum SecureChannel: u8 {
        None = 0x00 => "No Secure Channel",
        NewTlsPsk = 0x02 => "New TLS PSK",
        ReplaceTlsPsk = 0x03 => "Replace TLS PSK",
    }
}

open_enum! {
    /// Hash function.
    pub enum HashId: u8 {
        Sha256 = 0x01 => "SHA-256",
        Sha384 = 0x02 => "SHA-384",
        Sha512 = 0x03 => "SHA-512",
    }
}

impl HashId {
    /// Bytes of a hash, if the function is known.
    pub const fn hash_len(self) -> Option<u8> {
        match self {
            Self::Sha256 => Some(32),
            Self::Sha384 => Some(48),
            Self::Sha512 => Some(64),
            Self::Unknown(_) => None,
        }
    }
}

open_enum! {
    /// Diffie-Hellman group (RFC 7919).
    pub enum DhGroup: u8 {
        Null = 0x00 => "null",
        Ffdhe2048 = 0x01 => "ffdhe2048",
        Ffdhe3072 = 0x02 => "ffdhe3072",
        Ffdhe4096 = 0x03 => "ffdhe4096",
        Ffdhe6144 = 0x04 => "ffdhe6144",
        Ffdhe8192 = 0x05 => "ffdhe8192",
    }
}

impl DhGroup {
    /// Bytes of a public value, 0 for the null group, if the group is known.
    pub const fn value_len(self) -> Option<u16> {
        match self {
            Self::Null => Some(0),
            Self::Ffdhe2048 => Some(256),
            Self::Ffdhe3072 => Some(384),
            Self::Ffdhe4096 => Some(512),
            Self::Ffdhe6144 => Some(768),
            Self::Ffdhe8192 => Some(1024),
            Self::Unknown(_) => None,
        }
    }
}

open_enum! {
    /// Why authentication failed.
    pub enum FailureReason: u8 {
        Authentication = 0x01 => "Authentication Failure",
    }
}

open_enum! {
    /// Why it failed, in detail.
    pub enum FailureExplanation: u8 {
        Failed = 0x01 => "Authentication Failed",
        ProtocolNotUsable = 0x02 => "Authentication Protocol Not Usable",
        SecureChannelMismatch = 0x03 => "Secure Channel Concatenation Mismatch",
        HashNotUsable = 0x04 => "Hash Function Not Usable",
        DhGroupNotUsable = 0x05 => "DHgroup Not Usable",
        IncorrectPayload = 0x06 => "Incorrect Payload",
        IncorrectMessage = 0x07 => "Incorrect Protocol Message",
    }
}

impl Failure {
    /// The failure of a transaction.
    pub const fn new(t_id: u16, rce: FailureExplanation) -> Self {
        Self {
            t_id,
            rc: FailureReason::Authentication,
            rce,
        }
    }
}

/// A protocol that a host can speak.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ProtocolDescriptor {
    /// Authentication protocol: 1 is DH-HMAC-CHAP.
    pub authid: u8,
    reserved_1: u8,
    /// Number of hash functions, at most 30.
    pub halen: u8,
    /// Number of Diffie-Hellman groups, at most 30.
    pub dhlen: u8,
    /// Hash functions, the preferred first.
    pub hash_ids: [u8; 30],
    /// Diffie-Hellman groups, the preferred first.
    pub dh_ids: [u8; 30],
}

layout!(ProtocolDescriptor: 64, authid @ 0, halen @ 2, dhlen @ 3, hash_ids @ 4, dh_ids @ 34);

impl ProtocolDescriptor {
    /// DH-HMAC-CHAP with these functions and groups, the preferred first;
    /// those beyond 30 are left out.
    pub fn dh_hmac_chap(hashes: &[HashId], dh_groups: &[DhGroup]) -> Self {
        let (halen, hash_ids) = id_list(hashes.iter().map(|hash| hash.code()));
        let (dhlen, dh_ids) = id_list(dh_groups.iter().map(|group| group.code()));
        Self {
            authid: DH_HMAC_CHAP,
            reserved_1: 0,
            halen,
            dhlen,
            hash_ids,
            dh_ids,
        }
    }

    /// Whether the protocol is DH-HMAC-CHAP.
    pub const fn is_dh_hmac_chap(&self) -> bool {
        self.authid == DH_HMAC_CHAP
    }

    /// The hash functions, the preferred first; at most 30, whatever `halen`
    /// says.
    pub fn hashes(&self) -> impl Iterator<Item = HashId> + '_ {
        self.hash_ids
            .iter()
            .take(self.halen.into())
            .map(|&id| id.into())
    }

    /// The Diffie-Hellman groups, the preferred first; at most 30, whatever
    /// `dhlen` says.
    pub fn dh_groups(&self) -> impl Iterator<Item = DhGroup> + '_ {
        self.dh_ids
            .iter()
            .take(self.dhlen.into())
            .map(|&id| id.into())
    }

    fn counts_fit(&self) -> bool {
        usize::from(self.halen) <= self.hash_ids.len()
            && usize::from(self.dhlen) <= self.dh_ids.len()
    }
}

fn id_list(codes: impl Iterator<Item = u8>) -> (u8, [u8; 30]) {
    let mut ids = [0; 30];
    let mut count = 0u8;
    for (to, code) in ids.iter_mut().zip(codes) {
        *to = code;
        count = count.saturating_add(1);
    }
    (count, ids)
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AuthError {
    /// There are not even an authentication type and a message identifier, or
    /// they are of no known message.
    UnknownMessage,
    /// The message says it is longer than its bytes.
    Truncated {
        /// Transaction Identifier, 0 if that is missing too.
        t_id: u16,
    },
    /// A length or a flag has a value that the message does not allow.
    Invalid {
        /// Transaction Identifier.
        t_id: u16,
    },
}

impl AuthError {
    /// What to answer the peer.
    pub const fn failure(self) -> Failure {
        match self {
            Self::UnknownMessage => Failure::new(0, FailureExplanation::IncorrectMessage),
            Self::Truncated { t_id } | Self::Invalid { t_id } => {
                Failure::new(t_id, FailureExplanation::IncorrectPayload)
            }
        }
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownMessage => "no authentication message is of that type",
            Self::Truncated { .. } => "the authentication message is longer than its bytes",
            Self::Invalid { .. } => "the authentication message has an invalid length or flag",
        })
    }
}

impl core::error::Error for AuthError {}

impl<'a> AuthMessage<'a> {
    /// Reads a message; bytes behind it are not regarded.
    ///
    /// # Errors
    /// [`AuthError`] says what is wrong, and what to answer.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, AuthError> {
        let [auth_type, auth_id, ..] = bytes else {
            return Err(AuthError::UnknownMessage);
        };
        let t_id = match bytes {
            [_, _, _, _, low, high, ..] => u16::from_le_bytes([*low, *high]),
            _ => 0,
        };
        let reader = Reader { bytes, t_id };
        match (*auth_type, *auth_id) {
            (COMMON, 0x00) => reader.negotiate().map(Self::Negotiate),
            (DH_HMAC_CHAP, 0x01) => reader.challenge().map(Self::Challenge),
            (DH_HMAC_CHAP, 0x02) => reader.reply().map(Self::Reply),
            (DH_HMAC_CHAP, 0x03) => reader.success1().map(Self::Success1),
            (DH_HMAC_CHAP, 0x04) => reader.success2().map(Self::Success2),
            (COMMON, 0xf0) => reader.failure().map(Self::Failure2),
            (COMMON, 0xf1) => reader.failure().map(Self::Failure1),
            _ => Err(AuthError::UnknownMessage),
        }
    }

    /// Writes the message to the start of `out` and returns its length in
    /// bytes. `None` if it does not fit, or if its own parts contradict each
    /// other: values that are to be as long as the hash and are not.
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        let mut writer = Writer { out, used: 0 };
        match self {
            Self::Negotiate(message) => writer.negotiate(message),
            Self::Challenge(message) => writer.challenge(message),
            Self::Reply(message) => writer.reply(message),
            Self::Success1(message) => writer.success1(message),
            Self::Success2(message) => writer.success2(message),
            Self::Failure1(message) => writer.failure(0xf1, message),
            Self::Failure2(message) => writer.failure(0xf0, message),
        }?;
        Some(writer.used)
    }

    /// Transaction Identifier.
    pub const fn t_id(&self) -> u16 {
        match self {
            Self::Negotiate(message) => message.t_id,
            Self::Challenge(message) => message.t_id,
            Self::Reply(message) => message.t_id,
            Self::Success1(message) => message.t_id,
            Self::Success2(message) => message.t_id,
            Self::Failure1(message) | Self::Failure2(message) => message.t_id,
        }
    }
}

/// What every message starts with.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    auth_type: u8,
    auth_id: u8,
    reserved_2: [u8; 2],
    t_id: U16,
}

layout!(Header: 6, auth_id @ 1, t_id @ 4);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct NegotiateHeader {
    header: Header,
    sc_c: u8,
    napd: u8,
}

layout!(NegotiateHeader: 8, sc_c @ 6, napd @ 7);

/// Challenge, Reply and Success1: bytes 8 and 9 differ.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ValuesHeader {
    header: Header,
    hl: u8,
    reserved_7: u8,
    /// HashID, CVALID or RVALID.
    first: u8,
    /// DHgID; reserved in the others.
    second: u8,
    /// Reserved in Success1.
    dhvlen: U16,
    /// Reserved in Success1.
    seqnum: U32,
}

layout!(ValuesHeader: 16, hl @ 6, first @ 8, second @ 9, dhvlen @ 10, seqnum @ 12);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Success2Header {
    header: Header,
    reserved_6: [u8; 10],
}

layout!(Success2Header: 16, header @ 0);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FailureHeader {
    header: Header,
    rc: u8,
    rce: u8,
}

layout!(FailureHeader: 8, rc @ 6, rce @ 7);

struct Reader<'a> {
    bytes: &'a [u8],
    t_id: u16,
}

impl<'a> Reader<'a> {
    fn negotiate(mut self) -> Result<Negotiate<'a>, AuthError> {
        let header: &NegotiateHeader = self.take()?;
        let (protocols, _) =
            <[ProtocolDescriptor]>::ref_from_prefix_with_elems(self.bytes, header.napd.into())
                .map_err(|_| self.truncated())?;
        let invalid =
            |protocol: &ProtocolDescriptor| protocol.is_dh_hmac_chap() && !protocol.counts_fit();
        if protocols.iter().any(invalid) {
            return Err(self.invalid());
        }
        Ok(Negotiate {
            t_id: self.t_id,
            sc_c: header.sc_c.into(),
            protocols,
        })
    }

    fn challenge(mut self) -> Result<Challenge<'a>, AuthError> {
        let header: &ValuesHeader = self.take()?;
        Ok(Challenge {
            t_id: self.t_id,
            hash: header.first.into(),
            dh_group: header.second.into(),
            seqnum: header.seqnum.get(),
            cval: self.hash_value(header.hl)?,
            dhv: self.value(header.dhvlen.get().into())?,
        })
    }

    fn reply(mut self) -> Result<Reply<'a>, AuthError> {
        let header: &ValuesHeader = self.take()?;
        let rval = self.hash_value(header.hl)?;
        // C2 takes its place even when it is not valid.
        let cval = self.hash_value(header.hl)?;
        Ok(Reply {
            t_id: self.t_id,
            seqnum: header.seqnum.get(),
            rval,
            cval: self.valid(header.first)?.then_some(cval),
            dhv: self.value(header.dhvlen.get().into())?,
        })
    }

    fn success1(mut self) -> Result<Success1<'a>, AuthError> {
        let header: &ValuesHeader = self.take()?;
        let hl = header.hl;
        // A controller that has nothing to say may leave the value out.
        let rval = match self.valid(header.first)? {
            true => Some(self.hash_value(hl)?),
            false => None,
        };
        Ok(Success1 {
            t_id: self.t_id,
            hl,
            rval,
        })
    }

    fn success2(mut self) -> Result<Success2, AuthError> {
        let _: &Success2Header = self.take()?;
        Ok(Success2 { t_id: self.t_id })
    }

    fn failure(mut self) -> Result<Failure, AuthError> {
        let header: &FailureHeader = self.take()?;
        Ok(Failure {
            t_id: self.t_id,
            rc: header.rc.into(),
            rce: header.rce.into(),
        })
    }

    fn take<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &mut self,
    ) -> Result<&'a T, AuthError> {
        let (taken, rest) = T::ref_from_prefix(self.bytes).map_err(|_| self.truncated())?;
        self.bytes = rest;
        Ok(taken)
    }

    fn value(&mut self, length: usize) -> Result<&'a [u8], AuthError> {
        let (value, rest) = self
            .bytes
            .split_at_checked(length)
            .ok_or(self.truncated())?;
        self.bytes = rest;
        Ok(value)
    }

    /// A value as long as a hash. No other length is let through: an empty
    /// response would compare equal to an empty expectation.
    fn hash_value(&mut self, hl: u8) -> Result<&'a [u8], AuthError> {
        if !is_hash_length(hl.into()) {
            return Err(self.invalid());
        }
        self.value(hl.into())
    }

    fn valid(&self, flag: u8) -> Result<bool, AuthError> {
        match flag {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.invalid()),
        }
    }

    const fn truncated(&self) -> AuthError {
        AuthError::Truncated { t_id: self.t_id }
    }

    const fn invalid(&self) -> AuthError {
        AuthError::Invalid { t_id: self.t_id }
    }
}

const fn is_hash_length(length: usize) -> bool {
    matches!(length, 32 | 48 | 64)
}

struct Writer<'a> {
    out: &'a mut [u8],
    used: usize,
}

impl Writer<'_> {
    fn negotiate(&mut self, message: &Negotiate<'_>) -> Option<()> {
        let header = header(COMMON, 0x00, message.t_id);
        let napd = u8::try_from(message.protocols.len()).ok()?;
        self.put(&NegotiateHeader {
            header,
            sc_c: message.sc_c.code(),
            napd,
        })?;
        self.put(message.protocols)
    }

    fn challenge(&mut self, message: &Challenge<'_>) -> Option<()> {
        self.put(&ValuesHeader {
            header: header(DH_HMAC_CHAP, 0x01, message.t_id),
            hl: hash_length(message.cval)?,
            reserved_7: 0,
            first: message.hash.code(),
            second: message.dh_group.code(),
            dhvlen: u16::try_from(message.dhv.len()).ok()?.into(),
            seqnum: message.seqnum.into(),
        })?;
        self.put(message.cval)?;
        self.put(message.dhv)
    }

    fn reply(&mut self, message: &Reply<'_>) -> Option<()> {
        let hl = hash_length(message.rval)?;
        let no_challenge = [0; 64];
        let cval = match message.cval {
            Some(cval) => cval,
            None => no_challenge.get(..hl.into())?,
        };
        if cval.len() != message.rval.len() {
            return None;
        }
        self.put(&ValuesHeader {
            header: header(DH_HMAC_CHAP, 0x02, message.t_id),
            hl,
            reserved_7: 0,
            first: message.cval.is_some().into(),
            second: 0,
            dhvlen: u16::try_from(message.dhv.len()).ok()?.into(),
            seqnum: message.seqnum.into(),
        })?;
        self.put(message.rval)?;
        self.put(cval)?;
        self.put(message.dhv)
    }

    fn success1(&mut self, message: &Success1<'_>) -> Option<()> {
        let rval = message.rval.unwrap_or_default();
        if message.rval.is_some() && hash_length(rval)? != message.hl {
            return None;
        }
        self.put(&ValuesHeader {
            header: header(DH_HMAC_CHAP, 0x03, message.t_id),
            hl: message.hl,
            reserved_7: 0,
            first: message.rval.is_some().into(),
            second: 0,
            dhvlen: U16::ZERO,
            seqnum: U32::ZERO,
        })?;
        self.put(rval)
    }

    fn success2(&mut self, message: &Success2) -> Option<()> {
        let header = header(DH_HMAC_CHAP, 0x04, message.t_id);
        self.put(&Success2Header {
            header,
            reserved_6: [0; 10],
        })
    }

    fn failure(&mut self, auth_id: u8, message: &Failure) -> Option<()> {
        let header = header(COMMON, auth_id, message.t_id);
        self.put(&FailureHeader {
            header,
            rc: message.rc.code(),
            rce: message.rce.code(),
        })
    }

    fn put(&mut self, part: &(impl IntoBytes + Immutable + ?Sized)) -> Option<()> {
        let part = part.as_bytes();
        let room = self.out.get_mut(self.used..)?;
        room.get_mut(..part.len())?.copy_from_slice(part);
        self.used = self.used.checked_add(part.len())?;
        Some(())
    }
}

const fn header(auth_type: u8, auth_id: u8, t_id: u16) -> Header {
    Header {
        auth_type,
        auth_id,
        reserved_2: [0; 2],
        t_id: U16::new(t_id),
    }
}

fn hash_length(value: &[u8]) -> Option<u8> {
    u8::try_from(value.len())
        .ok()
        .filter(|&length| is_hash_length(length.into()))
}

impl fmt::Display for ProtocolDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_dh_hmac_chap() {
            return write!(f, "protocol {:#x}", self.authid);
        }
        f.write_str("DH-HMAC-CHAP")?;
        self.hashes().try_for_each(|hash| write!(f, " {hash}"))?;
        self.dh_groups().try_for_each(|group| write!(f, " {group}"))
    }
}

impl fmt::Display for AuthMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t_id = self.t_id();
        match self {
            Self::Negotiate(message) => {
                write!(f, "Negotiate t_id {t_id}, {}", message.sc_c)?;
                let mut protocols = message.protocols.iter();
                protocols.try_for_each(|protocol| write!(f, ", {protocol}"))
            }
            Self::Challenge(message) => {
                write!(
                    f,
                    "Challenge t_id {t_id}, {}, {}",
                    message.hash, message.dh_group
                )
            }
            Self::Reply(message) => {
                let mutual = if message.cval.is_some() {
                    ", mutual"
                } else {
                    ""
                };
                write!(f, "Reply t_id {t_id}{mutual}")
            }
            Self::Success1(message) => {
                let mutual = if message.rval.is_some() {
                    ", mutual"
                } else {
                    ""
                };
                write!(f, "Success1 t_id {t_id}{mutual}")
            }
            Self::Success2(_) => write!(f, "Success2 t_id {t_id}"),
            Self::Failure1(message) => write!(f, "Failure1 t_id {t_id}, {}", message.rce),
            Self::Failure2(message) => write!(f, "Failure2 t_id {t_id}, {}", message.rce),
        }
    }
}

impl Tree for ProtocolDescriptor {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self: authid)?;
        self.hashes().try_for_each(|hash| out.field("hash", hash))?;
        self.dh_groups()
            .try_for_each(|group| out.field("dhgroup", group))
    }
}

impl Tree for AuthMessage<'_> {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("t_id", self.t_id())?;
        match self {
            Self::Negotiate(message) => {
                out.field("sc_c", message.sc_c)?;
                let mut protocols = message.protocols.iter();
                protocols.try_for_each(|protocol| out.node("protocol", protocol))
            }
            Self::Challenge(message) => {
                out.field("hashid", message.hash)?;
                out.field("dhgid", message.dh_group)?;
                out.field("seqnum", message.seqnum)?;
                out.field("cval", Hex(message.cval))?;
                out.field("dhv", Hex(message.dhv))
            }
            Self::Reply(message) => {
                out.field("seqnum", message.seqnum)?;
                out.field("rval", Hex(message.rval))?;
                out.field("cval", Hex(message.cval.unwrap_or_default()))?;
                out.field("dhv", Hex(message.dhv))
            }
            Self::Success1(message) => {
                out.field("hl", message.hl)?;
                out.field("rval", Hex(message.rval.unwrap_or_default()))
            }
            Self::Success2(_) => Ok(()),
            Self::Failure1(message) | Self::Failure2(message) => {
                out.field("rc", message.rc)?;
                out.field("rce", message.rce)
            }
        }
    }
}

defmt_as_display!(ProtocolDescriptor, AuthMessage<'_>);

#[cfg(test)]
mod tests;
