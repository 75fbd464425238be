//! Errors that end a connection: the peer broke the transport.
use core::fmt;

use crate::wire::pdu::Fes;

/// A fatal transport error, as a TermReq reports it (section 3.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Fatal {
    /// Fatal Error Status.
    pub fes: Fes,
    /// Fatal Error Information: a byte offset in the PDU header, or a digest.
    pub fei: u32,
}

impl Fatal {
    /// A header field has a wrong value; `offset` is its first byte.
    pub(crate) const fn field(offset: u32) -> Self {
        Self {
            fes: Fes::InvalidHeaderField,
            fei: offset,
        }
    }

    /// A header field asks for what this end cannot do.
    pub(crate) const fn unsupported(offset: u32) -> Self {
        Self {
            fes: Fes::UnsupportedParameter,
            fei: offset,
        }
    }

    /// The PDU was not to be sent now.
    pub(crate) const SEQUENCE: Self = Self {
        fes: Fes::SequenceError,
        fei: 0,
    };

    /// Data outside of what was asked for.
    pub(crate) const OUT_OF_RANGE: Self = Self {
        fes: Fes::DataOutOfRange,
        fei: 0,
    };

    /// More data in one PDU than MAXH2CDATA.
    pub(crate) const LIMIT_EXCEEDED: Self = Self {
        fes: Fes::LimitExceeded,
        fei: 0,
    };

    /// The header digest that came was `received`, which is not that of the header.
    pub(crate) const fn header_digest(received: u32) -> Self {
        Self {
            fes: Fes::HeaderDigestError,
            fei: received,
        }
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fes {
            Fes::InvalidHeaderField | Fes::UnsupportedParameter => {
                write!(f, "{} at byte {}", self.fes, self.fei)
            }
            Fes::HeaderDigestError => write!(f, "{} (received {:#010x})", self.fes, self.fei),
            fes => fes.fmt(f),
        }
    }
}

impl core::error::Error for Fatal {}
