//! What can happen in a run of [`operations`](super::operations): how the target
//! is set up, and what hosts, devices and time do to it.
use arbitrary::Arbitrary;
use nvmf_core::block::MediaError;

#[derive(Arbitrary, Debug)]
pub(super) struct Scenario {
    pub(super) setup: Setup,
    pub(super) operations: Vec<Operation>,
}

/// How the target is configured, and bytes reach it.
#[derive(Arbitrary, Debug)]
pub(super) struct Setup {
    /// With state of a fixed size, as on a microcontroller.
    pub(super) small: bool,
    pub(super) no_header_digest: bool,
    pub(super) no_data_digest: bool,
    pub(super) cpda: u8,
    pub(super) maxh2cdata: u8,
    pub(super) max_c2hdata: u8,
    pub(super) max_r2t: u8,
    pub(super) pieces: u8,
    pub(super) in_place: bool,
    /// I/O queues that are connected before the operations begin, 0 to 3; or,
    /// above that, not even an admin queue.
    pub(super) io_queues: u8,
    pub(super) hpda: u8,
    pub(super) digests: u8,
    pub(super) no_flow_control: bool,
}

impl Setup {
    /// What connects an admin queue, enables the controller and connects I/O queues.
    pub(super) fn prelude(&self) -> Vec<Operation> {
        let queues = match self.io_queues & 7 {
            io_queues @ 0..=3 => io_queues + 1,
            _ => 0,
        };
        let connect = |qid: u8| {
            let open = Operation::Open {
                hpda: self.hpda,
                digests: self.digests,
            };
            let connect = Operation::Connect {
                at: qid,
                qid,
                discovery: false,
                sqsize: 7,
                no_flow_control: self.no_flow_control,
                kato: 0,
                in_capsule: true,
            };
            let output = || Operation::Output { at: qid };
            let enable = Operation::Enable { at: 0 };
            let operations = [open, connect, output(), enable, output()];
            operations.into_iter().take(if qid == 0 { 5 } else { 3 })
        };
        (0..queues).flat_map(connect).collect()
    }
}

#[derive(Arbitrary, Debug)]
pub(super) enum Operation {
    /// A host opens a connection and sends ICReq.
    Open { hpda: u8, digests: u8 },
    /// And connects a queue.
    Connect {
        at: u8,
        qid: u8,
        discovery: bool,
        sqsize: u8,
        no_flow_control: bool,
        kato: u16,
        in_capsule: bool,
    },
    /// CC.EN is set.
    Enable { at: u8 },
    /// A property is set or read.
    Property {
        at: u8,
        write: bool,
        offset: u8,
        value: u32,
    },
    /// A command on logical blocks.
    Io {
        at: u8,
        opcode: IoOpcode,
        nsid: u8,
        slba: u8,
        blocks: u8,
        in_capsule: bool,
        /// Added to the length that the descriptor says.
        excess: u8,
        dword12: u8,
    },
    /// Any other command of a host that keeps to the framing.
    Any {
        at: u8,
        opcode: u8,
        nsid: u8,
        len: u16,
        in_capsule: bool,
        dwords: [u32; 6],
    },
    /// Identify or Get Log Page.
    Ask {
        at: u8,
        log: bool,
        which: u8,
        nsid: u8,
        length: u16,
        offset: u16,
    },
    /// Asynchronous Event Request.
    Await { at: u8 },
    /// Abort of a command that may be outstanding.
    Abort { at: u8, cid: u8 },
    /// Disconnect.
    Disconnect { at: u8 },
    /// An R2T is answered, in part or in full; the data digest may be wrong.
    Answer {
        at: u8,
        index: u8,
        len: u16,
        corrupt: bool,
    },
    /// Bytes that keep no rule.
    Raw { at: u8, bytes: [u8; 24] },
    /// The next PDU of this host has a byte changed.
    Spoil {
        at: u8,
        offset: u8,
        change: u8,
        repair: bool,
    },
    /// PDUs are composed, and sent later.
    Compose { at: u8, pdus: u8 },
    /// PDUs that were composed are sent.
    Send { at: u8, pdus: u8 },
    /// All there is to send is sent.
    Output { at: u8 },
    /// Devices change their manner.
    Devices(Manner),
    /// A request that a device holds completes.
    Complete { index: u8, fault: Option<Fault> },
    /// Buffers for transfers run short, or are free again.
    Buffers { left: u8 },
    /// In-capsule buffers run out, or are free again.
    InCapsuleBuffers(bool),
    /// Waiting commands may try again.
    Retry { at: u8 },
    /// Time passes.
    Advance { milliseconds: u16 },
    /// The catalog changes.
    Change,
    /// The target stops.
    ShutDown { at: u8 },
    /// A host is gone.
    Close { at: u8 },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum IoOpcode {
    Read,
    Write,
    Compare,
    WriteZeroes,
    Verify,
    Flush,
    DatasetManagement,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Manner {
    Immediate,
    Delayed,
    Busy,
    Failing(Fault),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Fault {
    Read,
    Write,
    Full,
    Unsupported,
    NotReady,
}

impl From<Fault> for MediaError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Read => Self::Read,
            Fault::Write => Self::Write,
            Fault::Full => Self::Full,
            Fault::Unsupported => Self::Unsupported,
            Fault::NotReady => Self::NotReady,
        }
    }
}
