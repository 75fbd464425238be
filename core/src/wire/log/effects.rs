//! What is supported, and what it does to others: log pages (00h), commands
//! (05h) and features (12h) (NVMe Base 2.1, figures "Supported Log Pages",
//! "Commands Supported and Effects" and "Feature Identifiers Supported and
//! Effects").
use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LogId;
use crate::wire::feature::FeatureId;
use crate::wire::tree::{Tree, TreeWriter};

/// Supported Log Pages, 00h: an entry for each log page identifier.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct SupportedLogPages {
    /// Entries by log page identifier.
    pub lid: [LogPageSupport; 256],
}

layout!(SupportedLogPages: 1024, lid @ 0);

flags! {
    /// LID Supported and Effects.
    pub struct LogPageSupport: u32 {
        /// The log page is supported.
        const LSUPP = 1 << 0;
        /// It can be read by index offset.
        const IOS = 1 << 1;
    }
}

impl LogPageSupport {
    /// LID Specific Parameter (bits 31:16).
    pub const fn lidsp(self) -> u16 {
        let [_, _, low, high] = self.bits().to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Sets the LID Specific Parameter.
    #[must_use]
    pub const fn with_lidsp(self, lidsp: u16) -> Self {
        Self::from_bits((self.bits() & 0xffff) | ((lidsp as u32) << 16))
    }
}

impl SupportedLogPages {
    /// A page on which nothing is supported.
    pub const fn new() -> Self {
        Self {
            lid: [LogPageSupport::from_bits(0); 256],
        }
    }

    /// What is said of a log page.
    pub fn get(&self, id: LogId) -> LogPageSupport {
        self.lid
            .get(usize::from(id.code()))
            .copied()
            .unwrap_or_default()
    }

    /// Says it.
    pub fn set(&mut self, id: LogId, support: LogPageSupport) {
        if let Some(entry) = self.lid.get_mut(usize::from(id.code())) {
            *entry = support;
        }
    }
}

/// Commands Supported and Effects, 05h: an entry for each opcode.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandEffects {
    /// Admin commands by opcode.
    pub acs: [CommandEffect; 256],
    /// I/O commands by opcode.
    pub iocs: [CommandEffect; 256],
    reserved_2048: [u8; 2048],
}

layout!(CommandEffects: 4096, acs @ 0, iocs @ 1024);

flags! {
    /// What a command does to others, and what it applies to.
    pub struct CommandEffect: u32 {
        /// The command is supported.
        const CSUPP = 1 << 0;
        /// Logical block content change.
        const LBCC = 1 << 1;
        /// Namespace capability change.
        const NCC = 1 << 2;
        /// Namespace inventory change.
        const NIC = 1 << 3;
        /// Controller capability change.
        const CCC = 1 << 4;
        /// The UUID index is regarded.
        const USS = 1 << 19;
        /// It applies to a namespace.
        const NSCPE = 1 << 20;
        /// It applies to a controller.
        const CSCPE = 1 << 21;
        /// It applies to an NVM Set.
        const NSETSCPE = 1 << 22;
        /// It applies to an Endurance Group.
        const EGSCPE = 1 << 23;
        /// It applies to a domain.
        const DSCPE = 1 << 24;
        /// It applies to the NVM subsystem.
        const NSSCPE = 1 << 25;
    }
}

open_enum! {
    /// Command Submission and Execution: what must not be outstanding when
    /// the command is submitted.
    pub enum SubmissionRestriction: u8 {
        None = 0 => "No Restriction",
        SameNamespace = 1 => "No Other Command to the Namespace",
        AnyNamespace = 2 => "No Other Command to Any Namespace",
    }
}

impl CommandEffect {
    /// What must not be outstanding when the command is submitted (bits
    /// 18:16).
    pub fn restriction(self) -> SubmissionRestriction {
        let [_, _, third, _] = self.bits().to_le_bytes();
        SubmissionRestriction::from(third & 7)
    }

    /// Says what must not be outstanding when the command is submitted.
    #[must_use]
    pub const fn with_restriction(self, restriction: SubmissionRestriction) -> Self {
        let field = (restriction.code() & 7) as u32;
        Self::from_bits((self.bits() & !0x0007_0000) | (field << 16))
    }
}

impl CommandEffects {
    /// A page on which nothing is supported.
    pub const fn new() -> Self {
        const NONE: CommandEffect = CommandEffect::from_bits(0);
        Self {
            acs: [NONE; 256],
            iocs: [NONE; 256],
            reserved_2048: [0; 2048],
        }
    }

    /// Says what an admin command does.
    pub fn set_admin(&mut self, opcode: u8, effect: CommandEffect) {
        if let Some(entry) = self.acs.get_mut(usize::from(opcode)) {
            *entry = effect;
        }
    }

    /// Says what an I/O command does.
    pub fn set_io(&mut self, opcode: u8, effect: CommandEffect) {
        if let Some(entry) = self.iocs.get_mut(usize::from(opcode)) {
            *entry = effect;
        }
    }
}

/// Feature Identifiers Supported and Effects, 12h: an entry for each feature
/// identifier.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct FeatureEffects {
    /// Entries by feature identifier.
    pub fid: [FeatureEffect; 256],
}

layout!(FeatureEffects: 1024, fid @ 0);

flags! {
    /// What setting a feature does to others, and what it applies to.
    pub struct FeatureEffect: u32 {
        /// The feature is supported.
        const FSUPP = 1 << 0;
        /// User data content change.
        const UDCC = 1 << 1;
        /// Namespace capability change.
        const NCC = 1 << 2;
        /// Namespace inventory change.
        const NIC = 1 << 3;
        /// Controller capability change.
        const CCC = 1 << 4;
        /// The UUID index is regarded.
        const USS = 1 << 19;
        /// It applies to a namespace.
        const NSCPE = 1 << 20;
        /// It applies to a controller.
        const CSCPE = 1 << 21;
        /// It applies to an NVM Set.
        const NSETSCPE = 1 << 22;
        /// It applies to an Endurance Group.
        const EGSCPE = 1 << 23;
        /// It applies to a domain.
        const DSCPE = 1 << 24;
        /// It applies to the NVM subsystem.
        const NSSCPE = 1 << 25;
        /// It applies to a controller data queue.
        const CDQSCPE = 1 << 26;
    }
}

impl FeatureEffects {
    /// A page on which nothing is supported.
    pub const fn new() -> Self {
        Self {
            fid: [FeatureEffect::from_bits(0); 256],
        }
    }

    /// What is said of a feature.
    pub fn get(&self, id: FeatureId) -> FeatureEffect {
        self.fid
            .get(usize::from(id.code()))
            .copied()
            .unwrap_or_default()
    }

    /// Says it.
    pub fn set(&mut self, id: FeatureId, effect: FeatureEffect) {
        if let Some(entry) = self.fid.get_mut(usize::from(id.code())) {
            *entry = effect;
        }
    }
}

impl Default for SupportedLogPages {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for CommandEffects {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for FeatureEffects {
    fn default() -> Self {
        Self::new()
    }
}

/// The entries that are not zero, each with its index.
fn entries<T: Copy + Default + PartialEq>(all: &[T]) -> impl Iterator<Item = (u8, T)> + '_ {
    (0..=u8::MAX)
        .zip(all.iter().copied())
        .filter(|&(_, entry)| entry != T::default())
}

impl fmt::Display for SupportedLogPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} log pages", entries(&self.lid).count())
    }
}

impl fmt::Display for CommandEffects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (admin, io) = (entries(&self.acs).count(), entries(&self.iocs).count());
        write!(f, "{admin} admin commands, {io} I/O commands")
    }
}

impl fmt::Display for FeatureEffects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} features", entries(&self.fid).count())
    }
}

impl Tree for SupportedLogPages {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        entries(&self.lid).try_for_each(|(id, support)| {
            let name = LogId::from(id).name();
            out.field("lid", format_args!("{id:02x}h {name}: {support}"))
        })
    }
}

impl Tree for CommandEffects {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        let mut list = |name: &str, all: &[CommandEffect]| {
            entries(all).try_for_each(|(opcode, effect)| {
                let restriction = effect.restriction();
                out.field(name, format_args!("{opcode:02x}h: {effect}, {restriction}"))
            })
        };
        list("acs", &self.acs)?;
        list("iocs", &self.iocs)
    }
}

impl Tree for FeatureEffects {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        entries(&self.fid).try_for_each(|(id, effect)| {
            let name = FeatureId::from(id).name();
            out.field("fid", format_args!("{id:02x}h {name}: {effect}"))
        })
    }
}

defmt_as_display!(SupportedLogPages, CommandEffects, FeatureEffects);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn log_pages_are_indexed_by_identifier() {
        let mut page = SupportedLogPages::new();
        page.set(LogId::SmartHealth, LogPageSupport::LSUPP);
        page.set(
            LogId::Unknown(0xff),
            LogPageSupport::LSUPP.with_lidsp(0x0102),
        );
        assert_eq!(page.as_bytes()[8..12], [1, 0, 0, 0]);
        assert_eq!(page.as_bytes()[1020..], [1, 0, 2, 1]);
        assert_eq!(page.get(LogId::SmartHealth), LogPageSupport::LSUPP);
        assert_eq!(page.get(LogId::Ana), LogPageSupport::default());
        assert_eq!(
            format!("{}", page.tree()),
            "lid: 02h SMART / Health Information: 0x1 LSUPP\nlid: ffh Unknown: 0x1020001 LSUPP\n"
        );
    }

    #[test]
    fn lid_specific_parameter_is_bits_31_to_16() {
        for (raw, lidsp) in [(0x0000_ffff, 0), (0x0001_0000, 1), (0xffff_0000, 0xffff)] {
            assert_eq!(LogPageSupport::from_bits(raw).lidsp(), lidsp);
            let other_bits = LogPageSupport::from_bits(raw & 0xffff);
            assert_eq!(other_bits.with_lidsp(lidsp).bits(), raw);
        }
    }

    #[test]
    fn commands_are_indexed_by_opcode() {
        let mut page = CommandEffects::new();
        page.set_admin(0x06, CommandEffect::CSUPP);
        page.set_io(0x01, CommandEffect::CSUPP | CommandEffect::LBCC);
        page.set_io(0xff, CommandEffect::CSUPP);
        assert_eq!(page.as_bytes()[24..28], [1, 0, 0, 0]);
        assert_eq!(page.as_bytes()[1028..1032], [3, 0, 0, 0]);
        assert_eq!(page.as_bytes()[2044..2048], [1, 0, 0, 0]);
        assert_eq!(format!("{page}"), "1 admin commands, 2 I/O commands");
    }

    #[test]
    fn restriction_is_bits_18_to_16() {
        for (raw, restriction) in [
            (0xfff8_ffff, SubmissionRestriction::None),
            (0x0001_0000, SubmissionRestriction::SameNamespace),
            (0x0007_0000, SubmissionRestriction::Unknown(7)),
        ] {
            assert_eq!(CommandEffect::from_bits(raw).restriction(), restriction);
            let other_bits = CommandEffect::from_bits(raw & !0x0007_0000);
            assert_eq!(other_bits.with_restriction(restriction).bits(), raw);
        }
    }

    #[test]
    fn features_are_indexed_by_identifier() {
        let mut page = FeatureEffects::new();
        let effect = FeatureEffect::FSUPP | FeatureEffect::CSCPE;
        page.set(FeatureId::KeepAliveTimer, effect);
        assert_eq!(page.as_bytes()[60..64], [1, 0, 0x20, 0]);
        assert_eq!(page.get(FeatureId::KeepAliveTimer), effect);
        assert_eq!(
            format!("{}", page.tree()),
            "fid: 0fh Keep Alive Timer: 0x200001 FSUPP CSCPE\n"
        );
    }
}
