//! The nine PDUs of NVMe/TCP (NVMe/TCP Transport Specification 1.0, section
//! 3.6): their headers, without digests, padding and data.
use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::cqe::Cqe;
use super::sqe::Sqe;
use super::tree::{Tree, TreeWriter};

open_enum! {
    /// PDU-Type. Even types go from the host to the controller, odd types the
    /// other way.
    pub enum PduType: u8 {
        IcReq = 0x00 => "ICReq",
        IcResp = 0x01 => "ICResp",
        H2cTermReq = 0x02 => "H2CTermReq",
        C2hTermReq = 0x03 => "C2HTermReq",
        CapsuleCmd = 0x04 => "CapsuleCmd",
        CapsuleResp = 0x05 => "CapsuleResp",
        H2cData = 0x06 => "H2CData",
        C2hData = 0x07 => "C2HData",
        R2t = 0x09 => "R2T",
    }
}

impl PduType {
    /// The only HLEN that a PDU of this type may have, in bytes; `None` for an
    /// unknown type.
    pub const fn hlen(self) -> Option<u8> {
        Some(match self {
            Self::IcReq => IcReq::HLEN,
            Self::IcResp => IcResp::HLEN,
            Self::H2cTermReq | Self::C2hTermReq => TermReq::HLEN,
            Self::CapsuleCmd => CapsuleCmd::HLEN,
            Self::CapsuleResp => CapsuleResp::HLEN,
            Self::H2cData | Self::C2hData => DataPdu::HLEN,
            Self::R2t => R2t::HLEN,
            Self::Unknown(_) => return None,
        })
    }

    /// Whether the host sends this type.
    pub const fn is_from_host(self) -> bool {
        self.code() & 1 == 0
    }

    /// Whether a PDU of this type may carry a header digest.
    pub const fn may_have_hdgst(self) -> bool {
        matches!(
            self,
            Self::CapsuleCmd | Self::CapsuleResp | Self::H2cData | Self::C2hData | Self::R2t
        )
    }

    /// Whether a PDU of this type may carry data, and with it a data digest.
    pub const fn may_have_data(self) -> bool {
        matches!(self, Self::CapsuleCmd | Self::H2cData | Self::C2hData)
    }
}

/// Bits of [`CommonHeader::flags`].
pub mod flags {
    /// The header digest is present.
    pub const HDGSTF: u8 = 1 << 0;
    /// The data digest is present.
    pub const DDGSTF: u8 = 1 << 1;
    /// The last data PDU of a command (C2HData) or of an R2T (H2CData).
    pub const LAST_PDU: u8 = 1 << 2;
    /// The command succeeded and no CapsuleResp follows (C2HData with
    /// `LAST_PDU`).
    pub const SUCCESS: u8 = 1 << 3;
}

/// Bits of [`IcReq::dgst`] and [`IcResp::dgst`].
pub mod dgst {
    /// Header digests, asked for or granted.
    pub const HDGST: u8 = 1 << 0;
    /// Data digests, asked for or granted.
    pub const DDGST: u8 = 1 << 1;
}

/// Bytes of a header or data digest.
pub const DIGEST_LEN: usize = 4;

/// The greatest HPDA and CPDA: data aligned to 128 bytes.
pub const PDA_MAX: u8 = 31;

/// HPDA or CPDA (0's based, in dwords) undone: the alignment of a PDU's data
/// in bytes, 4..=128 for the values allowed.
pub const fn pda_alignment(pda: u8) -> usize {
    (pda as usize).saturating_add(1).saturating_mul(4)
}

/// The first 8 bytes of every PDU.
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
pub struct CommonHeader {
    /// PDU-Type.
    pub pdu_type: u8,
    /// See [`flags`].
    pub flags: u8,
    /// Header length in bytes, digest excluded.
    pub hlen: u8,
    /// Data offset from the start of the PDU in bytes; 0 without data.
    pub pdo: u8,
    /// Length of the whole PDU in bytes, digests and padding included.
    pub plen: U32,
}

layout!(CommonHeader: 8, pdu_type @ 0, flags @ 1, hlen @ 2, pdo @ 3, plen @ 4);

impl CommonHeader {
    /// Bytes of a common header.
    pub const LEN: usize = 8;

    /// The header of a PDU without flags, digests or data.
    pub fn new(pdu_type: PduType) -> Self {
        let hlen = pdu_type.hlen().unwrap_or_default();
        Self {
            pdu_type: pdu_type.code(),
            flags: 0,
            hlen,
            pdo: 0,
            plen: u32::from(hlen).into(),
        }
    }

    /// What kind of PDU this is.
    pub fn pdu_type(&self) -> PduType {
        self.pdu_type.into()
    }

    /// Whether every bit of `flag` is set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag == flag
    }
}

impl fmt::Display for CommonHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} plen {}", self.pdu_type(), self.plen)?;
        if self.pdo != 0 {
            write!(f, " pdo {}", self.pdo)?;
        }
        for (flag, name) in FLAG_NAMES {
            if self.has(flag) {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

const FLAG_NAMES: [(u8, &str); 4] = [
    (flags::HDGSTF, "HDGST"),
    (flags::DDGSTF, "DDGST"),
    (flags::LAST_PDU, "LAST_PDU"),
    (flags::SUCCESS, "SUCCESS"),
];

impl Tree for CommonHeader {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("type", self.pdu_type())?;
        out.field("flags", format_args!("{:#04x}", self.flags))?;
        out.field("hlen", self.hlen)?;
        out.field("pdo", self.pdo)?;
        out.field("plen", self.plen)
    }
}

macro_rules! header {
    (
        $(#[$meta:meta])*
        $Name:ident: $hlen:literal {
            $( $(#[$fmeta:meta])* $fvis:vis $field:ident: $ty:ty = $offset:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
        )]
        #[repr(C)]
        pub struct $Name {
            /// The common header.
            pub common: CommonHeader,
            $( $(#[$fmeta])* $fvis $field: $ty, )*
        }

        layout!($Name: $hlen, common @ 0, $( $field @ $offset, )*);

        impl $Name {
            /// Header length in bytes, digest excluded.
            pub const HLEN: u8 = $hlen;

            fn zeroed(pdu_type: PduType) -> Self {
                Self {
                    common: CommonHeader::new(pdu_type),
                    ..zerocopy::FromZeros::new_zeroed()
                }
            }
        }
    };
}

header! {
    /// ICReq: the first PDU of a connection, from the host.
    IcReq: 128 {
        /// PDU Format Version, 0.
        pub pfv: U16 = 8,
        /// Host PDU Data Alignment, 0's based, in dwords: 0..=31.
        pub hpda: u8 = 10,
        /// The digests asked for: see [`dgst`].
        pub dgst: u8 = 11,
        /// Maximum number of outstanding R2Ts of a command, 0's based.
        pub maxr2t: U32 = 12,
        _reserved16: [u8; 112] = 16,
    }
}

impl IcReq {
    /// A request without alignment or digests, for one R2T at a time.
    pub fn new() -> Self {
        Self::zeroed(PduType::IcReq)
    }

    /// Whether the host asks for header digests.
    pub const fn hdgst(&self) -> bool {
        self.dgst & dgst::HDGST != 0
    }

    /// Whether the host asks for data digests.
    pub const fn ddgst(&self) -> bool {
        self.dgst & dgst::DDGST != 0
    }

    /// MAXR2T undone: how many R2Ts of a command may be outstanding,
    /// 1..=2^32.
    pub fn max_r2ts(&self) -> u64 {
        u64::from(self.maxr2t.get()).saturating_add(1)
    }
}

impl Default for IcReq {
    fn default() -> Self {
        Self::new()
    }
}

header! {
    /// ICResp: the controller's answer to ICReq.
    IcResp: 128 {
        /// PDU Format Version, 0.
        pub pfv: U16 = 8,
        /// Controller PDU Data Alignment, 0's based, in dwords: 0..=31.
        pub cpda: u8 = 10,
        /// The digests granted: see [`dgst`].
        pub dgst: u8 = 11,
        /// The most data of one H2CData PDU in bytes (not 0's based): a
        /// multiple of 4, at least 4096.
        pub maxh2cdata: U32 = 12,
        _reserved16: [u8; 112] = 16,
    }
}

impl IcResp {
    /// The least MAXH2CDATA allowed, in bytes.
    pub const MAXH2CDATA_MIN: u32 = 4096;

    /// An answer without alignment or digests.
    pub fn new(maxh2cdata: u32) -> Self {
        Self {
            maxh2cdata: maxh2cdata.into(),
            ..Self::zeroed(PduType::IcResp)
        }
    }

    /// Whether header digests are on.
    pub const fn hdgst(&self) -> bool {
        self.dgst & dgst::HDGST != 0
    }

    /// Whether data digests are on.
    pub const fn ddgst(&self) -> bool {
        self.dgst & dgst::DDGST != 0
    }
}

open_enum! {
    /// Fatal Error Status of a TermReq.
    pub enum Fes: u16 {
        InvalidHeaderField = 0x01 => "Invalid PDU Header Field",
        SequenceError = 0x02 => "PDU Sequence Error",
        HeaderDigestError = 0x03 => "Header Digest Error",
        DataOutOfRange = 0x04 => "Data Transfer Out of Range",
        LimitExceeded = 0x05 => "Data Transfer or R2T Limit Exceeded",
        UnsupportedParameter = 0x06 => "Unsupported Parameter",
    }
}

header! {
    /// H2CTermReq and C2HTermReq: the last PDU of a connection, for a fatal
    /// error. The header at fault follows as data, at most
    /// [`TermReq::DATA_MAX`] bytes of it.
    TermReq: 24 {
        /// Fatal Error Status.
        pub fes: U16 = 8,
        /// Fatal Error Information: for Invalid PDU Header Field and
        /// Unsupported Parameter the offset of the field in bytes, for Header
        /// Digest Error the digest received.
        pub fei: U32 = 10,
        _reserved14: [u8; 10] = 14,
    }
}

impl TermReq {
    /// The most bytes of the header at fault that may follow.
    pub const DATA_MAX: usize = 128;

    /// A request of this type ([`PduType::H2cTermReq`] or
    /// [`PduType::C2hTermReq`]), PLEN without the header at fault.
    pub fn new(pdu_type: PduType, fes: Fes, fei: u32) -> Self {
        Self {
            fes: fes.code().into(),
            fei: fei.into(),
            ..Self::zeroed(pdu_type)
        }
    }

    /// Fatal Error Status.
    pub fn fes(&self) -> Fes {
        self.fes.get().into()
    }
}

header! {
    /// CapsuleCmd: a command, and data in its capsule if PDO is not 0.
    CapsuleCmd: 72 {
        /// The command.
        pub sqe: Sqe = 8,
    }
}

impl CapsuleCmd {
    /// A command without data in its capsule.
    pub fn new(sqe: Sqe) -> Self {
        Self {
            sqe,
            ..Self::zeroed(PduType::CapsuleCmd)
        }
    }
}

header! {
    /// CapsuleResp: a completion.
    CapsuleResp: 24 {
        /// The completion.
        pub cqe: Cqe = 8,
    }
}

impl CapsuleResp {
    /// A completion.
    pub fn new(cqe: Cqe) -> Self {
        Self {
            cqe,
            ..Self::zeroed(PduType::CapsuleResp)
        }
    }
}

header! {
    /// H2CData and C2HData: a piece of a command's data.
    DataPdu: 24 {
        /// Command Capsule CID: the command whose data this is.
        pub cccid: U16 = 8,
        /// Transfer Tag of the R2T that asked; reserved in C2HData.
        pub ttag: U16 = 10,
        /// Offset in the command's data in bytes.
        pub datao: U32 = 12,
        /// Length of the piece in bytes.
        pub datal: U32 = 16,
        _reserved20: [u8; 4] = 20,
    }
}

/// H2CData: see [`DataPdu`].
pub type H2cData = DataPdu;
/// C2HData: see [`DataPdu`].
pub type C2hData = DataPdu;

impl DataPdu {
    /// The header of a PDU of this type ([`PduType::H2cData`] or
    /// [`PduType::C2hData`]). Its PDO and PLEN are yet to be set.
    pub fn new(pdu_type: PduType, cccid: u16, ttag: u16, datao: u32, datal: u32) -> Self {
        Self {
            cccid: cccid.into(),
            ttag: ttag.into(),
            datao: datao.into(),
            datal: datal.into(),
            ..Self::zeroed(pdu_type)
        }
    }
}

header! {
    /// R2T: the controller asks for a piece of a command's data.
    R2t: 24 {
        /// Command Capsule CID: the command whose data is asked for.
        pub cccid: U16 = 8,
        /// Transfer Tag for H2CData to repeat; opaque to the host.
        pub ttag: U16 = 10,
        /// Offset in the command's data in bytes.
        pub r2to: U32 = 12,
        /// Length asked for in bytes, not 0.
        pub r2tl: U32 = 16,
        _reserved20: [u8; 4] = 20,
    }
}

impl R2t {
    /// A request for `r2tl` bytes at `r2to`.
    pub fn new(cccid: u16, ttag: u16, r2to: u32, r2tl: u32) -> Self {
        Self {
            cccid: cccid.into(),
            ttag: ttag.into(),
            r2to: r2to.into(),
            r2tl: r2tl.into(),
            ..Self::zeroed(PduType::R2t)
        }
    }
}

macro_rules! people {
    ($( $Name:ident($this:ident) { $( $field:literal => $value:expr, )* } )*) => {
        $(
            impl fmt::Display for $Name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    let $this = self;
                    self.common.fmt(f)?;
                    $( write!(f, concat!(" ", $field, " {}"), $value)?; )*
                    Ok(())
                }
            }

            impl Tree for $Name {
                fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
                    let $this = self;
                    self.common.fields(out)?;
                    $( out.field($field, $value)?; )*
                    Ok(())
                }
            }

            defmt_as_display!($Name);
        )*
    };
}

people! {
    IcReq(pdu) {
        "pfv" => pdu.pfv,
        "hpda" => pdu.hpda,
        "dgst" => pdu.dgst,
        "maxr2t" => pdu.maxr2t,
    }
    IcResp(pdu) {
        "pfv" => pdu.pfv,
        "cpda" => pdu.cpda,
        "dgst" => pdu.dgst,
        "maxh2cdata" => pdu.maxh2cdata,
    }
    TermReq(pdu) {
        "fes" => pdu.fes(),
        "fei" => format_args!("{:#x}", pdu.fei.get()),
    }
    DataPdu(pdu) {
        "cccid" => pdu.cccid,
        "ttag" => pdu.ttag,
        "datao" => pdu.datao,
        "datal" => pdu.datal,
    }
    R2t(pdu) {
        "cccid" => pdu.cccid,
        "ttag" => pdu.ttag,
        "r2to" => pdu.r2to,
        "r2tl" => pdu.r2tl,
    }
}

impl fmt::Display for CapsuleCmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.common, self.sqe)
    }
}

impl Tree for CapsuleCmd {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        self.common.fields(out)?;
        out.node("sqe", &self.sqe)
    }
}

impl fmt::Display for CapsuleResp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.common, self.cqe)
    }
}

impl Tree for CapsuleResp {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        self.common.fields(out)?;
        out.node("cqe", &self.cqe)
    }
}

defmt_as_display!(CommonHeader, CapsuleCmd, CapsuleResp);

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        text.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn icreq_asks_for_alignment_and_digests() {
        let mut bytes = hex("00008000800000000000200303000000");
        bytes.resize(128, 0);
        let icreq = IcReq::read_from_bytes(&bytes).unwrap();
        assert_eq!(icreq.common, CommonHeader::new(PduType::IcReq));
        assert_eq!((icreq.pfv.get(), icreq.hpda), (0, 32));
        assert!(icreq.hdgst() && icreq.ddgst());
        assert_eq!(icreq.max_r2ts(), 4);
        bytes[8..16].fill(0);
        assert_eq!(IcReq::new().as_bytes(), bytes);
    }

    #[test]
    fn maxr2t_undoes_the_zero() {
        for (raw, r2ts) in [(0, 1), (1, 2), (u32::MAX, 1 << 32)] {
            let icreq = IcReq {
                maxr2t: raw.into(),
                ..IcReq::new()
            };
            assert_eq!(icreq.max_r2ts(), r2ts);
        }
    }

    #[test]
    fn icresp_says_its_limit_in_bytes() {
        let mut bytes = hex("01008000800000000000030100100000");
        bytes.resize(128, 0);
        let icresp = IcResp::read_from_bytes(&bytes).unwrap();
        assert_eq!((icresp.cpda, icresp.maxh2cdata.get()), (3, 4096));
        assert!(icresp.hdgst() && !icresp.ddgst());
        bytes[10..12].fill(0);
        assert_eq!(IcResp::new(4096).as_bytes(), bytes);
    }

    #[test]
    fn termreq_has_an_unaligned_fei() {
        let bytes = hex(
            "030018003000000001000a0000000000000000000000000006041818181000000500ffff000000000010000000000000",
        );
        let (term, rest) = TermReq::read_from_prefix(&bytes).unwrap();
        assert_eq!(term.common.pdu_type(), PduType::C2hTermReq);
        assert_eq!((term.fes(), term.fei.get()), (Fes::InvalidHeaderField, 10));
        let (at_fault, rest) = DataPdu::read_from_prefix(rest).unwrap();
        assert!(rest.is_empty());
        assert_eq!(at_fault.ttag.get(), 0xFFFF);
        let mut built = TermReq::new(PduType::C2hTermReq, Fes::InvalidHeaderField, 10);
        built.common.plen = 48.into();
        assert_eq!(built.as_bytes(), &bytes[..24]);
    }

    #[test]
    fn capsules_hold_their_entry_at_8() {
        let bytes = hex(
            "04004800480000007f400200040000000000000000000000000000000000000000000000000000000000000000000000010000000000000000000000000000000000000000000000",
        );
        let capsule = CapsuleCmd::read_from_bytes(&bytes).unwrap();
        assert_eq!(capsule.sqe.cid().0, 2);
        assert_eq!(capsule.sqe.as_property_get().attrib, 1);
        assert_eq!(CapsuleCmd::new(capsule.sqe).as_bytes(), bytes);

        let bytes = hex("05001800180000000000000000000000010000000500 0483"
            .replace(' ', "")
            .as_str());
        let capsule = CapsuleResp::read_from_bytes(&bytes).unwrap();
        assert_eq!((capsule.cqe.sqhd.get(), capsule.cqe.cid().0), (1, 5));
        assert_eq!(CapsuleResp::new(capsule.cqe).as_bytes(), bytes);
    }

    #[test]
    fn h2cdata_is_read_and_built() {
        let bytes = hex("060418181810000005000700000000000010000000000000");
        let data = DataPdu::read_from_bytes(&bytes).unwrap();
        assert!(data.common.has(flags::LAST_PDU) && !data.common.has(flags::SUCCESS));
        assert_eq!((data.common.pdo, data.common.plen.get()), (24, 4120));
        assert_eq!(
            data.to_string(),
            "H2CData plen 4120 pdo 24 LAST_PDU cccid 5 ttag 7 datao 0 datal 4096"
        );
        let mut built = DataPdu::new(PduType::H2cData, 5, 7, 0, 4096);
        built.common.flags = flags::LAST_PDU;
        built.common.pdo = 24;
        built.common.plen = 4120.into();
        assert_eq!(built.as_bytes(), bytes);
    }

    #[test]
    fn r2t_is_read_and_built() {
        let bytes = hex("090018001800000005000700000200000010000000000000");
        let r2t = R2t::read_from_bytes(&bytes).unwrap();
        assert_eq!((r2t.r2to.get(), r2t.r2tl.get()), (512, 4096));
        assert_eq!(R2t::new(5, 7, 512, 4096).as_bytes(), bytes);
    }

    #[test]
    fn alignment_undoes_the_zero() {
        assert_eq!(pda_alignment(0), 4);
        assert_eq!(pda_alignment(1), 8);
        assert_eq!(pda_alignment(PDA_MAX), 128);
        assert_eq!(pda_alignment(u8::MAX), 1024);
    }

    #[test]
    fn types_and_errors_are_total() {
        for code in 0..=u8::MAX {
            assert_eq!(PduType::from(code).code(), code);
        }
        for code in 0..=u16::MAX {
            assert_eq!(Fes::from(code).code(), code);
        }
        assert_eq!(PduType::from(0x08).hlen(), None);
        assert!(!PduType::R2t.is_from_host() && PduType::CapsuleCmd.is_from_host());
    }

    #[test]
    fn the_tree_nests_the_command() {
        let text = CapsuleCmd::new(Sqe::new(0x02, super::super::ids::Cid(9)))
            .tree()
            .to_string();
        assert!(text.starts_with("type: CapsuleCmd\n"), "{text}");
        assert!(text.contains("sqe:\n  opcode: 02h\n"), "{text}");
    }
}
