//! I/O Command Set Independent Identify Namespace, CNS 08h and 1Fh (NVMe Base
//! 2.1, section 5.1.13.2.8).
use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::namespace::{Fpi, Nmic, Nsattr, Rescap};
use crate::wire::tree::{Tree, TreeWriter};

/// What holds for a namespace of any I/O command set.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IndependentNamespace {
    /// Common namespace features.
    pub nsfeat: IndependentNsfeat,
    /// Multi-path I/O and sharing.
    pub nmic: Nmic,
    /// Reservation capabilities.
    pub rescap: Rescap,
    /// Format progress indicator.
    pub fpi: Fpi,
    /// ANA Group Identifier.
    pub anagrpid: U32,
    /// Namespace attributes.
    pub nsattr: Nsattr,
    reserved_9: u8,
    /// NVM Set Identifier.
    pub nvmsetid: U16,
    /// Endurance Group Identifier.
    pub endgid: U16,
    /// Namespace status.
    pub nstat: Nstat,
    /// Key Per I/O status.
    pub kpios: Kpios,
    /// Maximum Key Tag.
    pub maxkt: U16,
    reserved_18: [u8; 2],
    /// Reachability Group Identifier.
    pub rgrpid: U32,
    reserved_24: [u8; 4072],
}

layout!(
    IndependentNamespace: 4096, nsfeat @ 0, nmic @ 1, rescap @ 2, fpi @ 3, anagrpid @ 4,
    nsattr @ 8, nvmsetid @ 10, endgid @ 12, nstat @ 14, kpios @ 15, maxkt @ 16, rgrpid @ 20,
);

flags! {
    /// Common Namespace Features.
    pub struct IndependentNsfeat: u8 {
        /// A non-zero NGUID and EUI64 are never reused.
        const UIDREUSE = 1 << 3;
        /// Rotational media.
        const RMEDIA = 1 << 4;
        /// No volatile write cache for this namespace.
        const VWCNP = 1 << 5;
    }
}

flags! {
    /// Namespace Status. Bits 2:1 say whether I/O performance is impacted.
    pub struct Nstat: u8 {
        /// Ready: a controller that is ready independent of media may have
        /// namespaces that are not.
        const NRDY = 1 << 0;
    }
}

flags! {
    /// Key Per I/O Status.
    pub struct Kpios: u8 {
        /// Key Per I/O is enabled in the namespace.
        const KPIOENS = 1 << 0;
        /// Key Per I/O is supported in the namespace.
        const KPIOSNS = 1 << 1;
    }
}

impl fmt::Display for IndependentNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "namespace features {}, status {}, ANA group {}",
            self.nsfeat, self.nstat, self.anagrpid
        )
    }
}

impl Tree for IndependentNamespace {
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result {
        show!(out, self:
            nsfeat, nmic, rescap, fpi, anagrpid, nsattr, nvmsetid, endgid, nstat, kpios, maxkt,
            rgrpid,
        )
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for IndependentNamespace {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(
            f,
            "IndependentNamespace(nstat {}, anagrpid {})",
            self.nstat,
            self.anagrpid.get()
        );
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn fields_are_where_the_figure_has_them() {
        let mut bytes = [0; 4096];
        bytes[..16].copy_from_slice(&[0x28, 1, 0x83, 0x80, 5, 0, 0, 0, 1, 0, 2, 0, 3, 0, 1, 0]);
        let ns = IndependentNamespace::ref_from_bytes(&bytes).unwrap();
        assert_eq!(
            ns.nsfeat,
            IndependentNsfeat::UIDREUSE | IndependentNsfeat::VWCNP
        );
        assert_eq!(ns.nmic, Nmic::SHRNS);
        assert_eq!(ns.rescap, Rescap::IEKS | Rescap::WES | Rescap::PTPLS);
        assert_eq!(ns.anagrpid.get(), 5);
        assert_eq!(ns.nsattr, Nsattr::CWP);
        assert_eq!((ns.nvmsetid.get(), ns.endgid.get()), (2, 3));
        assert_eq!(ns.nstat, Nstat::NRDY);
        assert!(
            format!("{}", ns.tree()).starts_with("nsfeat: 0x28 UIDREUSE VWCNP\nnmic: 0x1 SHRNS\n")
        );
    }
}
