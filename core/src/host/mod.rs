//! The host: how a connection becomes a controller, and which commands it is asked.
//!
//! | module | what it does |
//! |---|---|
//! | [`controller`] | bring-up of a controller, then keep alive, events, Abort: one machine for the Admin Queue |
//! | [`queue`] | Connect, by which a connection becomes a queue |
//! | [`discovery`] | the discovery log, and referrals |
//! | [`command`] | commands, composed |
//! | [`namespace`] | whether a host can use a namespace |
//! | [`recovery`] | what to do about a controller that was lost |
//!
//! The transport is someone else's: [`crate::tcp::host::HostQueue`] over TCP. A
//! binding takes a [`Request`] from these machines, submits it there, and brings
//! the completion back.
//!
//! Sections cited are those of NVMe Base 2.0.
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation
)]

mod abort;
pub mod command;
pub mod controller;
pub mod discovery;
pub mod namespace;
pub mod queue;
pub mod recovery;

use core::fmt;

use crate::tcp::fatal::Fatal;
use crate::wire::connect::InvalidParameter;
use crate::wire::ids::{Cid, HostId, Nqn, Qid};
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;

/// Who a host says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The host's name, HOSTNQN.
    pub hostnqn: Nqn,
    /// The host's identifier, HOSTID; the same for each of its connections.
    pub hostid: HostId,
}

/// The data of a command, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// None.
    Nothing,
    /// At most this much comes from the controller.
    ToHost(u32),
    /// This much goes to the controller.
    FromHost(u32),
}

/// A command to submit, and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The command. The transport sets its CID and data pointer.
    pub sqe: Sqe,
    /// Which way data goes, and how much.
    pub data: Data,
}

impl Request {
    /// A command without data.
    #[must_use]
    pub const fn bare(sqe: Sqe) -> Self {
        Self {
            sqe,
            data: Data::Nothing,
        }
    }
}

/// What a host was about to do with a controller when something went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Step {
    /// Connect, of any queue.
    Connect,
    /// Property Get of CAP.
    Capabilities,
    /// Property Get of VS.
    Version,
    /// Property Set of CC.EN.
    Enable,
    /// Property Get of CSTS until CSTS.RDY.
    Ready,
    /// Identify, of the controller.
    Identify,
    /// Set Features, Number of Queues.
    Queues,
    /// Set Features, Asynchronous Event Configuration.
    Events,
    /// Keep Alive.
    KeepAlive,
    /// Property Set of CC.SHN.
    ShutDown,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "Connect",
            Self::Capabilities => "Property Get of CAP",
            Self::Version => "Property Get of VS",
            Self::Enable => "Property Set of CC.EN",
            Self::Ready => "Property Get of CSTS",
            Self::Identify => "Identify Controller",
            Self::Queues => "Set Features, Number of Queues",
            Self::Events => "Set Features, Asynchronous Event Configuration",
            Self::KeepAlive => "Keep Alive",
            Self::ShutDown => "Property Set of CC.SHN",
        })
    }
}

/// Why there is no controller, or no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The controller broke the transport; it was told so.
    Transport(Fatal),
    /// The controller says that we broke the transport.
    Terminated(Fatal),
    /// The controller refused a command.
    Refused {
        /// Which.
        step: Step,
        /// What it says.
        status: Status,
        /// Of a refused Connect, the parameter that it names.
        parameter: Option<InvalidParameter>,
    },
    /// The controller did not answer in time; of [`Step::Ready`]: it was not ready in time.
    Timeout(Step),
    /// A command was not answered in time, and neither was it when it was to be aborted: the
    /// connections are to be shut.
    Unanswered {
        /// The queue.
        qid: Qid,
        /// The command.
        cid: Cid,
    },
    /// CSTS.CFS: the controller failed.
    ControllerFailed,
    /// The host would have to authenticate itself, which it cannot.
    AuthenticationRequired,
    /// What the controller says of itself makes no sense, or is of no use.
    Unusable(&'static str),
}

impl Error {
    /// A command that was refused, with what its completion's result says about that.
    pub(crate) fn refused(step: Step, status: Status, result: u64) -> Self {
        let names_one = step == Step::Connect
            && (status.is(Status::CONNECT_INVALID_PARAMETERS)
                || status.is(Status::CONNECT_INVALID_HOST));
        Self::Refused {
            step,
            status,
            parameter: (names_one && result != 0).then(|| InvalidParameter::from_result(result)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(fatal) => write!(f, "the controller broke the transport: {fatal}"),
            Self::Terminated(fatal) => {
                write!(f, "the controller ended the connection: {fatal}")
            }
            Self::Refused {
                step,
                status,
                parameter,
            } => {
                write!(f, "the controller refused {step}: {status}")?;
                match parameter {
                    Some(parameter) => write!(f, ", because of {parameter}"),
                    None => Ok(()),
                }
            }
            Self::Timeout(Step::Ready) => f.write_str("the controller was not ready in time"),
            Self::Timeout(step) => write!(f, "the controller did not answer {step} in time"),
            Self::Unanswered { qid, cid } => write!(
                f,
                "command {cid} of queue {qid} was neither answered nor aborted in time"
            ),
            Self::ControllerFailed => f.write_str("the controller failed (CSTS.CFS)"),
            Self::AuthenticationRequired => {
                f.write_str("the controller asks for authentication, which is not supported yet")
            }
            Self::Unusable(why) => write!(f, "the controller is of no use: {why}"),
        }
    }
}

impl core::error::Error for Error {}

#[cfg(test)]
mod tests;
