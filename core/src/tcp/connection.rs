//! The controller's end of one NVMe/TCP connection: transport and queue pair
//! joined, for a binding to drive.
//!
//! A binding hands over what it received ([`TargetConnection::handle_input`]),
//! sends what there is to send ([`TargetConnection::poll_transmit`]), returns
//! what devices completed, and calls [`TargetConnection::handle_timeout`] when
//! [`TargetConnection::poll_timeout`] says so. After each call it looks at
//! [`TargetConnection::closing`].
use core::fmt;
use core::ops::Deref;
use core::time::Duration;

use super::fatal::Fatal;
use super::rx::Need;
use super::target::{self, Event, TargetQueue, Transmit};
use super::tx::MAX_HEAD;
use crate::block::Completion;
use crate::storage::Storage;
use crate::target::queue_pair::{Arriving, Close, Identity, Notice, QueuePair};
use crate::target::{Backend, ControllerState};
use crate::time::{Instant, sooner};
use crate::{Place, SlotId};

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The host broke the transport; it was told so.
    Fatal(Fatal),
    /// The host says that we broke the transport.
    Terminated(Fatal),
    /// No ICReq came in time.
    NoIcReq,
    /// What the queue pair says.
    Queue(Close),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fatal(fatal) => write!(f, "sent C2HTermReq: {fatal}"),
            Self::Terminated(fatal) => write!(f, "received H2CTermReq: {fatal}"),
            Self::NoIcReq => f.write_str("no ICReq in time"),
            Self::Queue(close) => close.fmt(f),
        }
    }
}

/// The controller's end of a connection.
pub struct TargetConnection<S: Storage, B, C> {
    transport: TargetQueue<S>,
    pair: QueuePair<S, B, C>,
    reason: Option<CloseReason>,
    must_close: bool,
}

impl<S, B, C> TargetConnection<S, B, C>
where
    S: Storage,
    B: AsRef<[u8]> + AsMut<[u8]>,
    C: Deref<Target = ControllerState> + Clone,
{
    /// For a connection just accepted. The host has `config.icreq_timeout` for
    /// its ICReq, and `connect_timeout` for its Connect.
    #[must_use]
    pub fn new(config: &target::Config, connect_timeout: Duration, now: Instant) -> Self {
        Self {
            transport: TargetQueue::new(config, now),
            pair: QueuePair::new(now, connect_timeout),
            reason: None,
            must_close: false,
        }
    }

    /// Takes all of `bytes`, the next of the stream, and does what they ask for.
    pub fn handle_input<E>(&mut self, bytes: &[u8], env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut buffers = Arriving {
                pair: &mut self.pair,
                env,
            };
            let now = buffers.env.now();
            match self.transport.handle_input(rest, &mut buffers, now) {
                Ok((used, event)) => {
                    rest = rest.get(used..).unwrap_or(&[]);
                    self.event(event, env);
                }
                Err(fatal) => {
                    self.reason.get_or_insert(CloseReason::Fatal(fatal));
                    return;
                }
            }
        }
    }

    /// Where the next bytes of the stream go if they are data: a binding may
    /// receive straight into it, and then calls [`TargetConnection::payload_received`].
    pub fn payload_mut(&mut self) -> Option<&mut [u8]> {
        match self.transport.need() {
            Need::Payload(place) => Some(self.pair.payload_mut(&place)),
            Need::Scratch(_) | Need::Skip(_) => None,
        }
    }

    /// The first `len` bytes of [`TargetConnection::payload_mut`] were received.
    pub fn payload_received<E>(&mut self, len: usize, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if let Need::Payload(place) = self.transport.need() {
            let len = u32::try_from(len).unwrap_or(u32::MAX).min(place.len);
            let event = self
                .transport
                .placed(self.pair.payload(&Place { len, ..place }));
            self.event(event, env);
        }
    }

    /// Writes the head of the next PDU to send, and says what follows it.
    ///
    /// Payload must stay in place until [`TargetConnection::sent`] is called for its command.
    pub fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        self.transport.poll_transmit(head)
    }

    /// Whether [`TargetConnection::poll_transmit`] has something.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        self.transport.wants_transmit()
    }

    /// The bytes that a [`Source::Slot`](crate::Source::Slot) names.
    #[must_use]
    pub fn payload(&self, place: &Place) -> &[u8] {
        self.pair.payload(place)
    }

    /// All bytes of the PDU that finishes the command are with the network.
    pub fn sent<E>(&mut self, slot: SlotId, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.transport.sent(slot);
        self.pair.sent(slot, env);
    }

    /// A device operation ended.
    pub fn block_completed<E>(&mut self, completion: Completion<B>, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.pair
            .block_completed(completion, &mut self.transport, env);
    }

    /// Whether commands wait for a buffer or a device: call
    /// [`TargetConnection::retry`] when some became free.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.pair.is_waiting()
    }

    /// Lets waiting commands try again.
    pub fn retry<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.pair.retry(&mut self.transport, env);
    }

    /// Another queue changed this one's controller.
    pub fn controller_changed<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.pair.controller_changed(&mut self.transport, env);
    }

    /// When [`TargetConnection::handle_timeout`] should be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        sooner(self.transport.poll_timeout(), self.pair.poll_timeout())
    }

    /// Time passed.
    pub fn handle_timeout<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        if self.transport.timed_out(env.now()) {
            self.reason.get_or_insert(CloseReason::NoIcReq);
            self.must_close = true;
        }
        self.pair.handle_timeout(&mut self.transport, env);
    }

    /// Begins no more commands, and closes once those under way are done.
    pub fn shut_down(&mut self) {
        self.pair.shut_down();
    }

    /// Why the connection is to be closed: send what there is to send, then
    /// close it. After a fault of the host's leave it the time to read why and
    /// to close, until [`TargetConnection::must_close`].
    #[must_use]
    pub fn closing(&self) -> Option<CloseReason> {
        self.reason.or(self.pair.close().map(CloseReason::Queue))
    }

    /// Whether to close at once, whatever is unsent.
    #[must_use]
    pub const fn must_close(&self) -> bool {
        self.must_close
    }

    /// The connection is gone.
    pub fn connection_closed<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.pair.connection_closed(env);
    }

    /// Whether the connection is gone and no device holds any of its commands: drop it.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.pair.is_drained()
    }

    /// The latest thing to log, once.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.pair.poll_notice()
    }

    /// Whose queue this is, once connected.
    #[must_use]
    pub const fn identity(&self) -> Option<&Identity> {
        self.pair.identity()
    }

    fn event<E>(&mut self, event: Option<Event>, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        match event {
            None => {}
            Some(Event::Command { ticket, sqe, data }) => {
                self.pair
                    .command(ticket, sqe, data, &mut self.transport, env);
            }
            Some(Event::Fetched { ticket, intact }) => {
                self.pair.fetched(ticket, intact, &mut self.transport, env);
            }
            Some(Event::Terminated(fatal)) => {
                self.reason.get_or_insert(CloseReason::Terminated(fatal));
                self.must_close = true;
            }
        }
    }
}
