//! One command's state, and the decisions about it that need no more than the command.
use crate::block::{Extent, MediaError, Op};
use crate::command::FabricsCommand;
use crate::storage::{Link, NIL};
use crate::target::io::First;
use crate::target::{Backend, BufferUse, NamespaceRef, Reply};
use crate::wire::ids::Cid;
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;
use crate::{Ticket, Transport};

pub(super) struct Work<B> {
    pub(super) sqe: Sqe,
    pub(super) ticket: Option<Ticket>,
    pub(super) buffer: Option<B>,
    pub(super) plan: Plan,
    /// Bytes of the host's data that are in the buffer.
    pub(super) data_len: u32,
    /// Steps of a command of several device operations that are done.
    pub(super) cursor: u32,
    pub(super) next: u16,
}

/// What a command is about to do, or waits for.
#[derive(Clone, Copy)]
pub(super) enum Plan {
    /// There is no command.
    Idle,
    /// A buffer, then this many bytes from the host.
    Fetch(u32, Then),
    /// The host's data.
    Fetching(Then),
    /// A buffer, to be filled with this much of an answer and sent.
    Respond(u32),
    /// A buffer, to be read into and sent.
    Read(NamespaceRef, Extent),
    /// A device, with the buffer as it is.
    Submit(NamespaceRef, Op, After),
    /// The device's answer to either.
    InDevice(After),
    /// Something that may never happen.
    Held,
    /// The transport's last word.
    Completed,
}

/// What keeps a command from doing what it is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Buffer,
    /// Room in a device.
    Device,
}

/// What is done with the host's data.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// One device operation, and the command is done.
    Operation(NamespaceRef, Op),
    /// Whatever the command asks for, step by step.
    Steps,
}

/// What is done when a device operation ended well.
#[derive(Clone, Copy)]
pub(super) enum After {
    /// So many bytes of the buffer are sent.
    Send(u32),
    /// The command is done.
    Complete,
    /// The command's next step.
    Steps,
}

impl<B> Work<B> {
    pub(super) fn new() -> Self {
        Self {
            sqe: Sqe::new(0, Cid(0)),
            ticket: None,
            buffer: None,
            plan: Plan::Idle,
            data_len: 0,
            cursor: 0,
            next: NIL,
        }
    }

    /// What it waits for, if it waits.
    pub(super) fn want(&self) -> Option<Want> {
        match self.plan {
            Plan::Fetch(..) | Plan::Respond(_) | Plan::Read(..) if self.buffer.is_none() => {
                Some(Want::Buffer)
            }
            Plan::Read(..) | Plan::Submit(..) => Some(Want::Device),
            _ => None,
        }
    }
}

impl<B: AsRef<[u8]>> Work<B> {
    /// The host's data.
    pub(super) fn data(&self) -> &[u8] {
        self.buffer
            .as_ref()
            .and_then(|buffer| buffer.as_ref().get(..self.data_len as usize))
            .unwrap_or(&[])
    }
}

impl<B> Link for Work<B> {
    fn next(&mut self) -> &mut u16 {
        &mut self.next
    }
}

/// What a command does first.
pub(super) enum Decision {
    Reply(Reply),
    Disconnect(Reply),
    Held,
    /// Bytes from the host; `exact`: its descriptor must say just that many.
    Fetch {
        len: u32,
        exact: bool,
        then: Then,
    },
    Respond(u32),
    Read(NamespaceRef, Extent),
    /// What takes no data.
    Go(Then),
}

impl From<First> for Decision {
    fn from(first: First) -> Self {
        match first {
            First::Reply(status) => Self::Reply(Reply::status(status)),
            First::Several { len: 0 } => Self::Go(Then::Steps),
            First::Several { len } => Self::Fetch {
                len,
                exact: false,
                then: Then::Steps,
            },
            First::Read(namespace, extent) => Self::Read(namespace, extent),
            First::Operation { namespace, op, len } => {
                let then = Then::Operation(namespace, op);
                match len {
                    0 => Self::Go(then),
                    len => Self::Fetch {
                        len,
                        exact: true,
                        then,
                    },
                }
            }
        }
    }
}

/// Fabrics commands on an I/O queue (NVMe Base 2.0, section 6).
pub(super) fn io_fabrics(sqe: &Sqe) -> Decision {
    let status = match FabricsCommand::decode(sqe) {
        FabricsCommand::Disconnect { recfmt: 0 } => return Decision::Disconnect(Reply::SUCCESS),
        FabricsCommand::Disconnect { .. } => Status::INCOMPATIBLE_FORMAT,
        FabricsCommand::Connect(_) => Status::COMMAND_SEQUENCE_ERROR,
        _ => Status::INVALID_OPCODE,
    };
    Decision::Reply(Reply::status(status.with_dnr()))
}

/// Whether the command's descriptor covers the data that it moves.
pub(super) fn check_descriptor(
    sqe: &Sqe,
    decision: &Decision,
    transport: &impl Transport,
) -> Result<(), Status> {
    let (len, to_host, exact) = match *decision {
        Decision::Fetch { len, exact, .. } => (len, false, exact),
        Decision::Respond(len) => (len, true, false),
        Decision::Read(_, extent) => (data_len(&extent), true, true),
        Decision::Reply(_) | Decision::Disconnect(_) | Decision::Held | Decision::Go(_) => {
            return Ok(());
        }
    };
    let sgl = sqe.sgl();
    let described = sgl.data_len();
    if !transport.accepts(&sgl, to_host) {
        Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr())
    } else if described < len || exact && described > len {
        Err(Status::SGL_DATA_LENGTH_INVALID.with_dnr())
    } else {
        Ok(())
    }
}

/// Bytes of an extent that one command moves.
pub(super) fn data_len(extent: &Extent) -> u32 {
    u32::try_from(extent.len).unwrap_or(u32::MAX)
}

/// Whether the command has a buffer, now or already.
pub(super) fn hold_buffer<E: Backend>(work: &mut Work<E::Buffer>, len: u32, env: &mut E) -> bool {
    if work.buffer.is_none() {
        work.buffer = env.take_buffer(len, BufferUse::Transfer);
    }
    work.buffer.is_some()
}

/// What a host is told of a device's failure, and (DNR) not to retry what would fail again.
pub(super) const fn media_status(error: MediaError) -> Status {
    match error {
        MediaError::Read => Status::UNRECOVERED_READ_ERROR,
        MediaError::Write => Status::WRITE_FAULT,
        MediaError::Miscompare => Status::COMPARE_FAILURE.with_dnr(),
        MediaError::Full => Status::CAPACITY_EXCEEDED,
        MediaError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        MediaError::Unsupported => Status::INVALID_OPCODE.with_dnr(),
        MediaError::NotReady => Status::NAMESPACE_NOT_READY,
    }
}
