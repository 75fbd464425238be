//! The Discovery log page, LID 70h (NVMe Base 2.0, section 5.16.1.23): a
//! header, then an entry for each way to each subsystem.
use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ids::{Cntlid, Nqn, NqnError};
use super::tree::{Tree, TreeWriter};

/// Bits of the Log Specific Parameter of a Get Log Page for this log.
pub mod lsp {
    /// EXTDLPE: entries may be extended.
    pub const EXTENDED: u8 = 1 << 0;
    /// PLEO: only entries of the port that is asked.
    pub const PORT_LOCAL: u8 = 1 << 1;
    /// ALLSUBE: entries of all subsystems, whoever asks.
    pub const ALL_SUBSYSTEMS: u8 = 1 << 2;
}

/// Bits of [`DiscoveryHeader::dlpf`].
pub mod dlpf {
    /// EXTEND: entries may be extended, and TDLPL is valid.
    pub const EXTENDED: u8 = 1 << 0;
    /// PLEO: only entries of the port that was asked.
    pub const PORT_LOCAL: u8 = 1 << 1;
    /// ALLSUB: entries of all subsystems.
    pub const ALL_SUBSYSTEMS: u8 = 1 << 2;
}

/// The first 1024 bytes of the log.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Generation Counter: changes whenever the log does.
    pub genctr: U64,
    /// Number of Records: entries that follow.
    pub numrec: U64,
    /// Record Format, 0.
    pub recfmt: U16,
    /// Discovery Log Page Flags: see [`dlpf`].
    pub dlpf: u8,
    _reserved19: u8,
    /// Total Discovery Log Page Length in bytes, if `dlpf` says it is valid.
    pub tdlpl: U32,
    _reserved24: [u8; 1000],
}

layout!(DiscoveryHeader: 1024, genctr @ 0, numrec @ 8, recfmt @ 16, dlpf @ 18, tdlpl @ 20);

impl DiscoveryHeader {
    /// Bytes of the header.
    pub const LEN: usize = size_of::<Self>();

    /// The header of a log of `numrec` entries that are not extended.
    pub fn new(genctr: u64, numrec: u64) -> Self {
        Self {
            genctr: genctr.into(),
            numrec: numrec.into(),
            ..Self::new_zeroed()
        }
    }
}

impl fmt::Display for DiscoveryHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "genctr {} numrec {}", self.genctr, self.numrec)
    }
}

impl Tree for DiscoveryHeader {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("genctr", self.genctr)?;
        out.field("numrec", self.numrec)?;
        out.field("recfmt", self.recfmt)?;
        out.field("dlpf", format_args!("{:#x}", self.dlpf))?;
        out.field("tdlpl", self.tdlpl)
    }
}

open_enum! {
    /// TRTYPE: a transport.
    pub enum Trtype: u8 {
        Rdma = 1 => "rdma",
        Fc = 2 => "fc",
        Tcp = 3 => "tcp",
        Loop = 254 => "loop",
    }
}

open_enum! {
    /// ADRFAM: the family of an address.
    pub enum Adrfam: u8 {
        Ipv4 = 1 => "ipv4",
        Ipv6 = 2 => "ipv6",
        InfiniBand = 3 => "ib",
        Fc = 4 => "fc",
        Loop = 254 => "loop",
    }
}

open_enum! {
    /// SUBTYPE: what an entry leads to.
    pub enum Subtype: u8 {
        Referral = 1 => "discovery subsystem referral",
        Nvm = 2 => "nvme subsystem",
        CurrentDiscovery = 3 => "current discovery subsystem",
    }
}

open_enum! {
    /// TREQ bits 1:0: whether the transport needs a secure channel.
    pub enum SecureChannel: u8 {
        NotSpecified = 0 => "not specified",
        Required = 1 => "required",
        NotRequired = 2 => "not required",
    }
}

enum_bits!(SecureChannel);

bitfield! {
    /// TREQ, Transport Requirements.
    Treq: u8 {
        /// Whether the transport needs a secure channel.
        pub secure_channel / pub with_secure_channel: SecureChannel = 0, 2;
        /// The controller can do without SQ flow control.
        pub disable_sq_flow_control / pub with_disable_sq_flow_control: bool = 2, 1;
    }
}

bitfield! {
    /// EFLAGS, Entry Flags.
    Eflags: u16 {
        /// DUPRETINFO: this port gives the same log as the one asked.
        pub dupretinfo / pub with_dupretinfo: bool = 0, 1;
        /// EPCSD: the discovery controller takes explicit persistent
        /// connections (Keep Alive and events).
        pub epcsd / pub with_epcsd: bool = 1, 1;
        /// NCC: no discovery controller that describes the entry is connected
        /// to the centralized one.
        pub ncc / pub with_ncc: bool = 2, 1;
    }
}

open_enum! {
    /// SECTYPE, byte 0 of a TCP entry's TSAS.
    pub enum Sectype: u8 {
        None = 0 => "none",
        Tls12 = 1 => "tls1.2",
        Tls13 = 2 => "tls1.3",
    }
}

open_enum! {
    /// RDMA_QPTYPE, byte 0 of an RDMA entry's TSAS.
    pub enum RdmaQptype: u8 {
        Connected = 1 => "connected",
        Datagram = 2 => "datagram",
    }
}

open_enum! {
    /// RDMA_PRTYPE, byte 1 of an RDMA entry's TSAS.
    pub enum RdmaPrtype: u8 {
        NotSpecified = 1 => "not specified",
        InfiniBand = 2 => "infiniband",
        Roce = 3 => "roce",
        Rocev2 = 4 => "roce-v2",
        Iwarp = 5 => "iwarp",
    }
}

open_enum! {
    /// RDMA_CMS, byte 2 of an RDMA entry's TSAS.
    pub enum RdmaCms: u8 {
        RdmaCm = 1 => "rdma-cm",
    }
}

/// TSAS: what an entry says about its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Tsas {
    /// TCP.
    Tcp {
        /// Security of the connection.
        sectype: Sectype,
    },
    /// RDMA.
    Rdma {
        /// Kind of queue pair.
        qptype: RdmaQptype,
        /// The provider's kind of network.
        prtype: RdmaPrtype,
        /// How connections are managed.
        cms: RdmaCms,
        /// Partition key, for InfiniBand.
        pkey: u16,
    },
    /// A transport without such a subtype here.
    Other,
}

impl fmt::Display for Tsas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { sectype } => write!(f, "sectype {sectype}"),
            Self::Rdma {
                qptype,
                prtype,
                cms,
                pkey,
            } => write!(
                f,
                "qptype {qptype} prtype {prtype} cms {cms} pkey {pkey:#x}"
            ),
            Self::Other => f.write_str("none"),
        }
    }
}

/// An entry, 1024 bytes: one way to one subsystem.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport Type: see [`Trtype`].
    pub trtype: u8,
    /// Address Family: see [`Adrfam`].
    pub adrfam: u8,
    /// Subsystem Type: see [`Subtype`].
    pub subtype: u8,
    /// Transport Requirements: see [`Treq`].
    pub treq: u8,
    /// Port Identifier, unique within the subsystem.
    pub portid: U16,
    /// Controller Identifier: [`Cntlid::DYNAMIC`] for any.
    pub cntlid: U16,
    /// Admin Max SQ Size in entries, at least 32.
    pub asqsz: U16,
    /// Entry Flags: see [`Eflags`].
    pub eflags: U16,
    _reserved12: [u8; 20],
    /// Transport Service Identifier: over IP the port, in ASCII.
    pub trsvcid: [u8; 32],
    _reserved64: [u8; 192],
    /// The subsystem's name, NUL-padded.
    pub subnqn: [u8; Nqn::FIELD_LEN],
    /// Transport Address, in ASCII.
    pub traddr: [u8; 256],
    /// Transport Specific Address Subtype.
    pub tsas: [u8; 256],
}

layout!(
    DiscoveryEntry: 1024,
    trtype @ 0, adrfam @ 1, subtype @ 2, treq @ 3, portid @ 4, cntlid @ 6, asqsz @ 8,
    eflags @ 10, trsvcid @ 32, subnqn @ 256, traddr @ 512, tsas @ 768,
);

impl DiscoveryEntry {
    /// Bytes of the entry.
    pub const LEN: usize = size_of::<Self>();
    /// The least ASQSZ, and what Linux hosts use.
    pub const ASQSZ_MIN: u16 = 32;

    /// A way to `subnqn` at an address of a transport, for any controller.
    ///
    /// # Errors
    /// [`AddressTooLong`] if `traddr` or `trsvcid` does not fit its field.
    pub fn new(
        (trtype, adrfam): (Trtype, Adrfam),
        traddr: &str,
        trsvcid: &str,
        subtype: Subtype,
        subnqn: &Nqn,
    ) -> Result<Self, AddressTooLong> {
        Ok(Self {
            trtype: trtype.code(),
            adrfam: adrfam.code(),
            subtype: subtype.code(),
            cntlid: Cntlid::DYNAMIC.0.into(),
            asqsz: Self::ASQSZ_MIN.into(),
            trsvcid: space_padded(trsvcid)?,
            subnqn: subnqn.to_field(),
            traddr: space_padded(traddr)?,
            ..Self::new_zeroed()
        })
    }

    /// Sets the Transport Specific Address Subtype.
    pub fn set_tsas(&mut self, tsas: Tsas) {
        self.tsas = [0; 256];
        let bytes = match tsas {
            Tsas::Tcp { sectype } => [sectype.code(), 0, 0, 0, 0, 0, 0, 0, 0, 0],
            Tsas::Rdma {
                qptype,
                prtype,
                cms,
                pkey,
            } => {
                let [p0, p1] = pkey.to_le_bytes();
                let (qptype, prtype, cms) = (qptype.code(), prtype.code(), cms.code());
                [qptype, prtype, cms, 0, 0, 0, 0, 0, p0, p1]
            }
            Tsas::Other => [0; 10],
        };
        for (to, from) in self.tsas.iter_mut().zip(bytes) {
            *to = from;
        }
    }

    /// The transport.
    pub fn trtype(&self) -> Trtype {
        self.trtype.into()
    }

    /// The family of the address.
    pub fn adrfam(&self) -> Adrfam {
        self.adrfam.into()
    }

    /// What the entry leads to.
    pub fn subtype(&self) -> Subtype {
        self.subtype.into()
    }

    /// What the transport requires.
    pub fn treq(&self) -> Treq {
        Treq(self.treq)
    }

    /// Entry Flags.
    pub fn eflags(&self) -> Eflags {
        Eflags(self.eflags.get())
    }

    /// The controller to connect to.
    pub fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid.get())
    }

    /// The subsystem's name.
    ///
    /// # Errors
    /// Those of [`Nqn::parse`].
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::parse(&self.subnqn)
    }

    /// The transport's address, without NUL and spaces behind it; `None` if it
    /// is not printable ASCII.
    pub fn traddr(&self) -> Option<&str> {
        ascii(&self.traddr)
    }

    /// The transport's service (over IP the port), without NUL and spaces
    /// behind it; `None` if it is not printable ASCII.
    pub fn trsvcid(&self) -> Option<&str> {
        ascii(&self.trsvcid)
    }

    /// What the entry says about its transport.
    pub fn tsas(&self) -> Tsas {
        let [b0, b1, b2, _, _, _, _, _, p0, p1, ..] = self.tsas;
        match self.trtype() {
            Trtype::Tcp => Tsas::Tcp { sectype: b0.into() },
            Trtype::Rdma => Tsas::Rdma {
                qptype: b0.into(),
                prtype: b1.into(),
                cms: b2.into(),
                pkey: u16::from_le_bytes([p0, p1]),
            },
            _ => Tsas::Other,
        }
    }
}

impl fmt::Display for DiscoveryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {}:{} {} {}",
            self.trtype(),
            self.adrfam(),
            trimmed(&self.traddr).escape_ascii(),
            trimmed(&self.trsvcid).escape_ascii(),
            self.subtype(),
            trimmed(&self.subnqn).escape_ascii(),
        )
    }
}

impl Tree for DiscoveryEntry {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        out.field("trtype", self.trtype())?;
        out.field("adrfam", self.adrfam())?;
        out.field("subtype", self.subtype())?;
        out.node("treq", &self.treq())?;
        out.field("portid", self.portid)?;
        out.field("cntlid", self.cntlid())?;
        out.field("asqsz", self.asqsz)?;
        out.node("eflags", &self.eflags())?;
        out.field("trsvcid", trimmed(&self.trsvcid).escape_ascii())?;
        out.field("subnqn", trimmed(&self.subnqn).escape_ascii())?;
        out.field("traddr", trimmed(&self.traddr).escape_ascii())?;
        out.field("tsas", self.tsas())
    }
}

/// An address does not fit its field of the Discovery log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AddressTooLong;

impl fmt::Display for AddressTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the transport address does not fit its field")
    }
}

impl core::error::Error for AddressTooLong {}

/// What follows an entry that is extended, 8 bytes; its attributes are next.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ExtendedEntryHeader {
    /// Total Entry Length in bytes, from the start of the entry.
    pub tel: U32,
    /// Number of Extended Attributes.
    pub numexat: U16,
    _reserved6: [u8; 2],
}

layout!(ExtendedEntryHeader: 8, tel @ 0, numexat @ 4);

/// An entry with attributes (NVMe Base 2.0, figure "Extended Discovery Log
/// Page Entry").
#[derive(Clone, Copy, Debug)]
pub struct ExtendedEntry<'a> {
    /// The entry that it extends.
    pub entry: &'a DiscoveryEntry,
    attributes: &'a [u8],
    count: u16,
}

impl<'a> ExtendedEntry<'a> {
    /// Reads the first entry of `log`, and returns what follows it; `None` if
    /// `log` is too short for it or its length is shorter than its header.
    pub fn parse(log: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (entry, rest) = DiscoveryEntry::ref_from_prefix(log).ok()?;
        let (header, _) = ExtendedEntryHeader::ref_from_prefix(rest).ok()?;
        let (whole, next) = log.split_at_checked(usize::try_from(header.tel.get()).ok()?)?;
        let head = DiscoveryEntry::LEN.saturating_add(size_of::<ExtendedEntryHeader>());
        let attributes = whole.get(head..)?;
        let count = header.numexat.get();
        Some((
            Self {
                entry,
                attributes,
                count,
            },
            next,
        ))
    }

    /// Its attributes, as far as they lie within the entry.
    pub fn attributes(&self) -> impl Iterator<Item = ExtendedAttribute<'a>> {
        let mut bytes = self.attributes;
        (0..self.count).map_while(move |_| {
            let (header, rest) = <[U16; 2]>::ref_from_prefix(bytes).ok()?;
            let [exattype, exatlen] = *header;
            let (value, rest) = rest.split_at_checked(exatlen.get().into())?;
            bytes = rest;
            Some(ExtendedAttribute {
                exattype: exattype.get().into(),
                value,
            })
        })
    }
}

open_enum! {
    /// EXATTYPE: what an extended attribute says.
    pub enum Exattype: u16 {
        HostId = 1 => "Host Identifier",
        SymbolicName = 2 => "Symbolic Name",
    }
}

/// An attribute of an [`ExtendedEntry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedAttribute<'a> {
    /// What it says.
    pub exattype: Exattype,
    /// EXATVAL: its value, EXATLEN bytes.
    pub value: &'a [u8],
}

impl fmt::Display for ExtendedAttribute<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.exattype, self.value.escape_ascii())
    }
}

impl Tree for ExtendedEntry<'_> {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        self.entry.fields(out)?;
        self.attributes()
            .try_for_each(|attribute| out.field("attribute", attribute))
    }
}

/// The field up to its first NUL, without spaces behind: both paddings exist.
fn trimmed(field: &[u8]) -> &[u8] {
    let text = field.split(|&byte| byte == 0).next().unwrap_or_default();
    text.trim_ascii_end()
}

fn ascii(field: &[u8]) -> Option<&str> {
    let text = trimmed(field);
    let printable = text.iter().all(|byte| matches!(byte, b' '..=b'~'));
    printable.then(|| core::str::from_utf8(text).ok())?
}

fn space_padded<const N: usize>(text: &str) -> Result<[u8; N], AddressTooLong> {
    let mut field = [b' '; N];
    field
        .get_mut(..text.len())
        .ok_or(AddressTooLong)?
        .copy_from_slice(text.as_bytes());
    Ok(field)
}

defmt_as_display!(DiscoveryHeader, DiscoveryEntry);

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// What a Linux target says of a subsystem: NUL-padded text.
    fn linux_entry() -> [u8; 1024] {
        let mut bytes = [0; 1024];
        bytes[..12].copy_from_slice(&[3, 1, 2, 4, 1, 0, 0xFF, 0xFF, 32, 0, 1, 0]);
        bytes[32..36].copy_from_slice(b"4420");
        bytes[256..262].copy_from_slice(b"nqn.s1");
        bytes[512..521].copy_from_slice(b"127.0.0.1");
        bytes
    }

    #[test]
    fn a_header_is_read_and_built() {
        let mut bytes = [0; 1024];
        bytes[0] = 7;
        bytes[8] = 2;
        bytes[18] = 1;
        bytes[20..24].copy_from_slice(&[0, 0x0C, 0, 0]);
        let header = DiscoveryHeader::read_from_bytes(&bytes).unwrap();
        assert_eq!((header.genctr.get(), header.numrec.get()), (7, 2));
        assert_eq!((header.recfmt.get(), header.tdlpl.get()), (0, 3072));
        assert_eq!(header.dlpf, dlpf::EXTENDED);
        bytes[18..24].fill(0);
        assert_eq!(DiscoveryHeader::new(7, 2).as_bytes(), bytes);
    }

    #[test]
    fn an_entry_of_a_linux_target_reads_back() {
        let entry = DiscoveryEntry::read_from_bytes(&linux_entry()).unwrap();
        assert_eq!(
            (entry.trtype(), entry.adrfam()),
            (Trtype::Tcp, Adrfam::Ipv4)
        );
        assert_eq!(entry.subtype(), Subtype::Nvm);
        assert!(entry.treq().disable_sq_flow_control());
        assert_eq!(entry.treq().secure_channel(), SecureChannel::NotSpecified);
        assert!(entry.eflags().dupretinfo() && !entry.eflags().epcsd());
        assert_eq!(entry.cntlid(), Cntlid::DYNAMIC);
        assert_eq!((entry.portid.get(), entry.asqsz.get()), (1, 32));
        assert_eq!(entry.traddr(), Some("127.0.0.1"));
        assert_eq!(entry.trsvcid(), Some("4420"));
        assert_eq!(entry.subnqn().unwrap().as_str(), "nqn.s1");
        assert_eq!(
            entry.tsas(),
            Tsas::Tcp {
                sectype: Sectype::None
            }
        );
        assert_eq!(
            entry.to_string(),
            "tcp ipv4 127.0.0.1:4420 nvme subsystem nqn.s1"
        );
    }

    #[test]
    fn building_pads_addresses_with_spaces() {
        let nqn: Nqn = "nqn.s1".parse().unwrap();
        let mut built = DiscoveryEntry::new(
            (Trtype::Tcp, Adrfam::Ipv4),
            "127.0.0.1",
            "4420",
            Subtype::Nvm,
            &nqn,
        )
        .unwrap();
        built.treq = Treq(0).with_disable_sq_flow_control(true).0;
        built.portid = 1.into();
        built.eflags = Eflags(0).with_dupretinfo(true).0.into();
        let mut bytes = linux_entry();
        bytes[36..64].fill(b' ');
        bytes[521..768].fill(b' ');
        assert_eq!(built.as_bytes(), bytes);
        assert_eq!(built.traddr(), Some("127.0.0.1"));

        let long = "9".repeat(33);
        let transport = (Trtype::Tcp, Adrfam::Ipv4);
        assert_eq!(
            DiscoveryEntry::new(transport, "::", &long, Subtype::Nvm, &nqn),
            Err(AddressTooLong)
        );
    }

    #[test]
    fn text_may_fill_its_field_or_leave_it_empty() {
        let mut entry = DiscoveryEntry::new_zeroed();
        assert_eq!(entry.traddr(), Some(""));
        entry.traddr = [b' '; 256];
        assert_eq!(entry.traddr(), Some(""));
        entry.traddr = [b'a'; 256];
        assert_eq!(entry.traddr().map(str::len), Some(256));
        entry.trsvcid[..6].copy_from_slice(b"80 \0 9");
        assert_eq!(entry.trsvcid(), Some("80"));
        entry.trsvcid[0] = 0x1B;
        assert_eq!(entry.trsvcid(), None);
        entry.trsvcid[0] = 0xFF;
        assert_eq!(entry.trsvcid(), None);
    }

    #[test]
    fn tsas_depends_on_the_transport() {
        let mut bytes = linux_entry();
        bytes[768] = 2;
        let entry = DiscoveryEntry::read_from_bytes(&bytes).unwrap();
        let tls = Tsas::Tcp {
            sectype: Sectype::Tls13,
        };
        assert_eq!(entry.tsas(), tls);
        bytes[768] = 0;
        let mut plain = DiscoveryEntry::read_from_bytes(&bytes).unwrap();
        plain.set_tsas(tls);
        assert_eq!(plain, entry);

        bytes[0] = 1;
        bytes[768..778].copy_from_slice(&[1, 4, 1, 0, 0, 0, 0, 0, 0xFE, 0xCA]);
        let entry = DiscoveryEntry::read_from_bytes(&bytes).unwrap();
        let rdma = Tsas::Rdma {
            qptype: RdmaQptype::Connected,
            prtype: RdmaPrtype::Rocev2,
            cms: RdmaCms::RdmaCm,
            pkey: 0xCAFE,
        };
        assert_eq!(entry.tsas(), rdma);
        let mut same = entry.clone();
        same.set_tsas(rdma);
        assert_eq!(same, entry);
        bytes[0] = 2;
        let entry = DiscoveryEntry::read_from_bytes(&bytes).unwrap();
        assert_eq!(entry.tsas(), Tsas::Other);
    }

    fn extended(tel: u32, numexat: u16, attributes: &[u8]) -> Vec<u8> {
        let mut log = linux_entry().to_vec();
        log.extend(tel.to_le_bytes());
        log.extend(numexat.to_le_bytes());
        log.extend([0, 0]);
        log.extend(attributes);
        log
    }

    #[test]
    fn extended_entries_are_walked_by_their_length() {
        let mut log = extended(1042, 2, &[2, 0, 2, 0, b'h', b'i', 9, 0, 0, 0]);
        log.extend(extended(1032, 0, &[]));
        let (first, rest) = ExtendedEntry::parse(&log).unwrap();
        assert_eq!(first.entry.trsvcid(), Some("4420"));
        let attributes: Vec<_> = first.attributes().collect();
        assert_eq!(
            attributes,
            vec![
                ExtendedAttribute {
                    exattype: Exattype::SymbolicName,
                    value: b"hi"
                },
                ExtendedAttribute {
                    exattype: Exattype::Unknown(9),
                    value: b""
                },
            ]
        );
        let (second, rest) = ExtendedEntry::parse(rest).unwrap();
        assert_eq!(second.attributes().count(), 0);
        assert!(rest.is_empty() && ExtendedEntry::parse(rest).is_none());
    }

    #[test]
    fn lengths_of_an_extended_entry_are_bounded() {
        for tel in [0, 1031, 1043, u32::MAX] {
            let log = extended(tel, 1, &[0; 10]);
            assert!(ExtendedEntry::parse(&log).is_none(), "{tel}");
        }
        // An attribute that says it is longer than its entry.
        let log = extended(1042, 0xFFFF, &[1, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        let (entry, _) = ExtendedEntry::parse(&log).unwrap();
        assert_eq!(entry.attributes().count(), 0);
        // A count that says there are more attributes than bytes.
        let log = extended(1042, 0xFFFF, &[1, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        let (entry, _) = ExtendedEntry::parse(&log).unwrap();
        assert_eq!(entry.attributes().count(), 1);
    }

    #[test]
    fn flags_have_their_bits() {
        assert_eq!(Treq(0xFF).secure_channel(), SecureChannel::Unknown(3));
        assert_eq!(
            Treq(0).with_secure_channel(SecureChannel::Required),
            Treq(1)
        );
        assert_eq!(Eflags(0).with_epcsd(true), Eflags(2));
        assert_eq!(Eflags(0).with_ncc(true), Eflags(4));
    }
}
