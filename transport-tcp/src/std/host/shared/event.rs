//! What happens to an association.
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::log::AsyncEvent;

use super::super::error::Error;

/// What happened to an association: see [`Association::events`](super::Association::events).
///
/// Printed, it is one line for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// It is lost, for this reason.
    Lost(Arc<Error>),
    /// An attempt to connect again follows.
    Reconnecting {
        /// Counted from 1 after each loss.
        attempt: u32,
        /// When it is made.
        delay: Duration,
    },
    /// The attempt failed, for this reason.
    NotReconnected(Arc<Error>),
    /// The controller is ready again.
    Reconnected,
    /// The controller reports an asynchronous event.
    Async(AsyncEvent),
    /// A namespace has another size than before, or another namespace has its NSID now:
    /// of the latter no handle can be used any more.
    NamespaceChanged(Nsid),
    /// There will be no controller any more.
    Gone,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(error) => write!(f, "lost: {error}"),
            Self::Reconnecting { attempt, delay } => {
                write!(
                    f,
                    "attempt {attempt} to reconnect in {} s",
                    delay.as_secs_f32()
                )
            }
            Self::NotReconnected(error) => write!(f, "not reconnected: {error}"),
            Self::Reconnected => f.write_str("reconnected"),
            Self::Async(event) => write!(f, "asynchronous event: {event}"),
            Self::NamespaceChanged(nsid) => write!(f, "namespace {} changed", nsid.0),
            Self::Gone => f.write_str("gone"),
        }
    }
}
