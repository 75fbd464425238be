//! What can happen in a run of [`host_operations`](super::host_operations): how the
//! host is set up, and what it, a controller and time do.
use arbitrary::Arbitrary;

#[derive(Arbitrary, Debug)]
pub(super) struct Scenario {
    pub(super) setup: Setup,
    pub(super) operations: Vec<Operation>,
}

/// How the host is configured, and bytes reach it.
#[derive(Arbitrary, Debug)]
pub(super) struct Setup {
    /// With state of a fixed size, as on a microcontroller.
    pub(super) small: bool,
    /// The queue is an admin queue, and the controller's machine uses it, too.
    pub(super) admin: bool,
    pub(super) digests: u8,
    pub(super) hpda: u8,
    pub(super) depth: u8,
    pub(super) inline_data: u8,
    pub(super) pieces: u8,
    pub(super) in_place: bool,
    /// ICResp does not come by itself.
    pub(super) silent: bool,
    /// The bring-up is answered, too, before the operations begin.
    pub(super) ready: bool,
}

#[derive(Arbitrary, Debug)]
pub(super) enum Operation {
    /// A command of a caller's.
    Submit { direction: Direction, len: u16 },
    /// ICResp, maybe with a byte changed.
    IcResp {
        cpda: u8,
        digests: u8,
        maxh2cdata: u16,
        flaw: Option<(u8, u8)>,
    },
    /// The right answer to the command that waits longest, maybe with a byte of data changed.
    Answer { flaw: Option<(u16, u8)> },
    /// CapsuleResp.
    Response { which: u8, status: u16, result: u64 },
    /// R2T; without skew, from where it should be; for a length as of [`Length`].
    R2t {
        which: u8,
        skew: Option<u8>,
        len: Length,
        ttag: u16,
    },
    /// C2HData; without skew, from where it should be; of a length as of [`Length`].
    Data {
        which: u8,
        skew: Option<u8>,
        len: Length,
        flags: u8,
        fill: u8,
        corrupt: Option<bool>,
    },
    /// C2HTermReq.
    TermReq { fes: u16, fei: u32, quoted: u8 },
    /// Bytes that keep no rule.
    Raw { bytes: [u8; 24] },
    /// The next PDU has a byte changed.
    Spoil {
        offset: u8,
        change: u8,
        repair: bool,
    },
    /// PDUs are composed, and sent later.
    Compose { pdus: u8 },
    /// PDUs that were composed are sent.
    Send { pdus: u8 },
    /// All there is to send is sent.
    Output,
    /// Time passes.
    Advance { milliseconds: u16 },
    /// A caller finds that a command is late, or that one that was has ended.
    Late { cid: u16, ended: bool },
    /// The controller is to be shut down.
    ShutDown,
}

#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    None,
    ToHost,
    FromHost,
}

/// How much of a command's data.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Length {
    /// All that is left.
    Rest,
    /// A little more than that.
    More(u8),
    /// A part of it.
    Part(u8),
    /// So much.
    Any(u16),
}

impl Length {
    /// When `left` is left.
    pub(super) fn of(self, left: u32) -> u32 {
        match self {
            Self::Rest => left,
            Self::More(by) => left.saturating_add(u32::from(by & 3) + 1),
            Self::Part(part) => left / (u32::from(part & 7) + 1),
            Self::Any(len) => u32::from(len & 0x1FFF),
        }
    }
}
