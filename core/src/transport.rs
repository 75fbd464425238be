//! What NVMe needs of a transport on the controller's side, whichever it is:
//! over TCP fetching is R2T, sending C2HData and completing CapsuleResp; over
//! RDMA they are READ, WRITE and SEND.
use crate::target::NamespaceRef;
use crate::wire::cqe::Cqe;
use crate::wire::sgl::Sgl;

/// Index of a command's slot in its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId(pub u16);

impl SlotId {
    /// As an array index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A range of the buffer of a slot, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose buffer.
    pub slot: SlotId,
    /// First byte.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// Where data to be sent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the command's own buffer.
    Slot(Place),
    /// In the memory of a device that lends it.
    Media {
        /// Which device.
        namespace: NamespaceRef,
        /// First byte.
        byte: u64,
        /// Length in bytes.
        len: u32,
    },
}

impl Source {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        match self {
            Self::Slot(place) => place.len,
            Self::Media { len, .. } => *len,
        }
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `len` bytes of it from `offset` on.
    #[must_use]
    pub(crate) fn part(self, offset: u32, part: u32) -> Self {
        match self {
            Self::Slot(place) => Self::Slot(Place {
                slot: place.slot,
                offset: place.offset.saturating_add(offset),
                len: part,
            }),
            Self::Media {
                namespace, byte, ..
            } => Self::Media {
                namespace,
                byte: byte.saturating_add(u64::from(offset)),
                len: part,
            },
        }
    }
}

/// The right to act on a command that arrived: each of [`Transport`]'s methods
/// consumes it, so that a command cannot be completed twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(SlotId);

impl Ticket {
    /// For transports, when a command or its data arrived.
    pub(crate) const fn new(slot: SlotId) -> Self {
        Self(slot)
    }

    /// Which slot the command has.
    #[must_use]
    pub const fn slot(&self) -> SlotId {
        self.0
    }
}

/// What a queue pair asks of its transport.
pub trait Transport {
    /// Moves the first `len` bytes of the command's data from the host into its
    /// buffer. `len` is not zero. The ticket comes back when they are there.
    fn fetch(&mut self, ticket: Ticket, len: u32);

    /// Sends data to the host, then the completion.
    fn send(&mut self, ticket: Ticket, source: Source, cqe: Cqe);

    /// Sends the completion.
    fn complete(&mut self, ticket: Ticket, cqe: Cqe);

    /// Whether a command may have such a descriptor for data that goes to the
    /// host, or comes from it.
    fn accepts(&self, sgl: &Sgl, to_host: bool) -> bool;

    /// Whether data may be sent from a device's memory ([`Source::Media`]), which others may
    /// change meanwhile.
    fn sends_media(&self) -> bool;

    /// A Connect was accepted: commands may from now on carry `inline_data`
    /// bytes; `entries` of them fit the queue; completions may be left out
    /// where the transport can imply them if `sq_flow_control` is off.
    fn connected(&mut self, entries: u32, inline_data: u32, sq_flow_control: bool);
}

/// Data that came inside a command capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InCapsule<'a> {
    /// None.
    Nothing,
    /// All of it, where it was received, and for as long as this lasts.
    Here(&'a [u8]),
    /// This many bytes, in the slot's buffer from its start.
    Whole(u32),
    /// Its digest was wrong.
    Corrupt,
    /// The command's descriptor says that it is elsewhere than at the start, or goes on
    /// beyond the end.
    Misplaced,
    /// There was no buffer for it.
    Dropped,
}

/// The buffers of commands, for data to be placed in.
pub trait DataBuffers {
    /// Provides for `len` bytes of in-capsule data of a command that is just arriving.
    fn reserve(&mut self, slot: SlotId, len: u32) -> bool;

    /// The buffer at `place`; empty if there is none, or it is too short. Of a buffer
    /// that is in pieces, the one that begins there.
    fn place(&mut self, place: Place) -> &mut [u8];
}
