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
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
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

    /// Takes `bytes`, the next of the stream, and does what they ask for.
    /// Returns how many it took: all, unless the storage has fewer slots than
    /// the host's queue has entries, and they are in use. The rest is to be
    /// offered again after [`TargetConnection::sent`]. If all in use wait for data
    /// which comes after the next command, that ends with Transient Transport Error.
    pub fn handle_input<E>(&mut self, bytes: &[u8], env: &mut E) -> usize
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
                Ok((0, None)) => {
                    if !(self.pair.is_stuck() && self.transport.refuse_next()) {
                        break;
                    }
                }
                Ok((used, event)) => {
                    rest = rest.get(used..).unwrap_or(&[]);
                    self.event(event, env);
                }
                Err(fatal) => {
                    self.reason.get_or_insert(CloseReason::Fatal(fatal));
                    rest = &[];
                }
            }
        }
        bytes.len().saturating_sub(rest.len())
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

    /// Another queue changed this one's controller, or the catalog changed.
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
    /// close it; a host that does not take it in a few seconds never will. After
    /// a fault of the host's leave it the time to read why and to close, until
    /// [`TargetConnection::must_close`].
    #[must_use]
    pub fn closing(&self) -> Option<CloseReason> {
        self.reason.or(self.pair.close().map(CloseReason::Queue))
    }

    /// Whether to close at once, whatever is unsent.
    #[must_use]
    pub const fn must_close(&self) -> bool {
        // After a fault, nobody waits for a host whose queue is over.
        let over = matches!(
            self.pair.close(),
            Some(Close::ControllerEnded | Close::KeepAliveExpired | Close::ShutDown)
        );
        self.must_close || (self.reason.is_some() && over)
    }

    /// The connection is gone.
    pub fn connection_closed<E>(&mut self, env: &mut E)
    where
        E: Backend<Buffer = B, Controller = C>,
    {
        self.transport.connection_closed();
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

    fn event<E>(&mut self, event: Option<Event<'_>>, env: &mut E)
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
            Some(Event::Refused { sqe }) => {
                let cqe = self.pair.refuse(&sqe);
                self.transport.refuse(cqe);
            }
            Some(Event::Terminated(fatal)) => {
                self.reason.get_or_insert(CloseReason::Terminated(fatal));
                self.must_close = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::block::MediaError;
    use crate::storage::Fixed;
    use crate::target::test_env::{
        CC_ENABLE, Handle, SUBNQN, TestEnv, bytes, connect_data, connect_sqe, property_get,
        property_set, sqe,
    };
    use crate::wire::pdu::Fes;
    use crate::wire::sqe::Sqe;
    use zerocopy::IntoBytes;

    type Machine = TargetConnection<Fixed<8>, Vec<u8>, Handle>;

    /// A connection, from the side of the host.
    struct Host {
        machine: Machine,
    }

    /// What the controller sent, digests off.
    #[derive(Debug, PartialEq, Eq)]
    enum Received {
        IcResp,
        /// CID and status word.
        Response(u16, u16),
        /// CCCID, TTAG, R2TO, R2TL.
        R2t(u16, u16, u32, u32),
        /// CCCID and data.
        Data(u16, Vec<u8>),
        /// FES.
        TermReq(u16),
    }

    /// ICReq, no digests, HPDA 0.
    fn ic_req() -> [u8; 128] {
        bytes(&[(0, &[0, 0, 128, 0, 128])])
    }

    /// A CapsuleCmd without digests.
    fn capsule(sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        let plen = u32::try_from(72 + data.len()).unwrap();
        let pdo = if data.is_empty() { 0 } else { 72 };
        let mut pdu = std::vec![4, 0, 72, pdo];
        pdu.extend(plen.to_le_bytes());
        pdu.extend(sqe.as_bytes());
        pdu.extend(data);
        pdu
    }

    /// A command of namespace 1 on one block of 4096 bytes, moved by the transport.
    fn block_command(opcode: u8, cid: u8) -> Sqe {
        sqe(&[
            (0, &[opcode, 0x40, cid]),
            (4, &[1]),
            (32, &[0, 0x10]),
            (39, &[0x5A]),
        ])
    }

    const READ: u8 = 0x02;
    const WRITE: u8 = 0x01;

    impl Host {
        /// A connection on which ICReq and ICResp went.
        fn new(env: &mut TestEnv) -> Self {
            let config = target::Config::default();
            let machine = Machine::new(&config, Duration::from_secs(10), env.now);
            let mut host = Self { machine };
            host.send(&ic_req(), env);
            assert_eq!(host.receive(env), [Received::IcResp]);
            host
        }

        fn connect(qid: u8, cntlid: u16, env: &mut TestEnv) -> Self {
            let mut host = Self::new(env);
            let data = connect_data(SUBNQN, cntlid);
            host.send(&capsule(&connect_sqe(qid, 7), &data), env);
            assert_eq!(host.receive(env), [Received::Response(1, 0)]);
            host
        }

        /// An admin queue whose controller is enabled.
        fn admin(env: &mut TestEnv) -> Self {
            let mut host = Self::connect(0, 0xFFFF, env);
            host.send(&capsule(&property_set(0x14, 0, CC_ENABLE), &[]), env);
            assert_eq!(host.receive(env), [Received::Response(3, 0)]);
            host
        }

        /// The first I/O queue of the first controller.
        fn io(env: &mut TestEnv) -> Self {
            Self::connect(1, 1, env)
        }

        fn send(&mut self, bytes: &[u8], env: &mut TestEnv) {
            self.machine.handle_input(bytes, env);
        }

        /// Everything that is to be sent, and sent with that.
        fn receive(&mut self, env: &mut TestEnv) -> Vec<Received> {
            let mut all = Vec::new();
            let mut head = [0; MAX_HEAD];
            while let Some(transmit) = self.machine.poll_transmit(&mut head) {
                let word = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
                let dword = |at: usize| u32::from(word(at)) | u32::from(word(at + 2)) << 16;
                all.push(match head[0] {
                    1 => Received::IcResp,
                    3 => Received::TermReq(word(8)),
                    5 => Received::Response(word(8 + 12), word(8 + 14)),
                    7 => {
                        let Some(crate::Source::Slot(place)) = transmit.payload else {
                            panic!("no data");
                        };
                        Received::Data(word(8), self.machine.payload(&place).to_vec())
                    }
                    9 => Received::R2t(word(8), word(10), dword(12), dword(16)),
                    other => panic!("PDU type {other}"),
                });
                if let Some(slot) = transmit.finishes {
                    self.machine.sent(slot, env);
                }
            }
            all
        }

        /// The device ends the operation it has had longest.
        fn device_ends(&mut self, result: Result<(), MediaError>, env: &mut TestEnv) {
            let completion = env.under_way.remove(0).complete(result);
            self.machine.block_completed(completion, env);
        }
    }

    #[test]
    fn a_queue_of_an_earlier_epoch_begins_nothing() {
        let mut env = TestEnv::new();
        let mut admin = Host::admin(&mut env);
        let mut io = Host::io(&mut env);
        for cc in [0, CC_ENABLE] {
            admin.send(&capsule(&property_set(0x14, 0, cc), &[]), &mut env);
        }
        // It has not been told yet.
        io.send(&capsule(&block_command(READ, 5), &[]), &mut env);
        assert_eq!(io.receive(&mut env), []);
        let ended = CloseReason::Queue(Close::ControllerEnded);
        assert_eq!(io.machine.closing(), Some(ended));
    }

    #[test]
    fn a_stop_finishes_what_is_under_way_though_the_admin_queue_goes_first() {
        let mut env = TestEnv::new();
        let mut admin = Host::admin(&mut env);
        let mut io = Host::io(&mut env);
        env.outcome = None;
        io.send(&capsule(&block_command(READ, 5), &[]), &mut env);
        admin.machine.shut_down();
        io.machine.shut_down();
        let stopped = Some(CloseReason::Queue(Close::ShutDown));
        assert_eq!(admin.machine.closing(), stopped);
        admin.machine.connection_closed(&mut env);
        io.machine.controller_changed(&mut env);
        assert_eq!(io.machine.closing(), None);
        io.device_ends(Ok(()), &mut env);
        let data = Received::Data(5, std::vec![0xAA; 4096]);
        assert_eq!(io.receive(&mut env), [data, Received::Response(5, 0)]);
        assert_eq!(io.machine.closing(), stopped);
    }

    #[test]
    fn after_a_fault_nobody_waits_for_a_host_whose_controller_ended() {
        let mut env = TestEnv::new();
        let mut admin = Host::admin(&mut env);
        let mut io = Host::io(&mut env);
        io.send(&ic_req(), &mut env);
        let sequence = Fes::SequenceError.code();
        assert_eq!(io.receive(&mut env), [Received::TermReq(sequence)]);
        assert!(!io.machine.must_close());
        admin.send(&capsule(&property_set(0x14, 0, 0), &[]), &mut env);
        io.machine.controller_changed(&mut env);
        assert!(io.machine.must_close());
    }

    #[test]
    fn after_a_fault_a_host_has_30_s_to_close() {
        let mut env = TestEnv::new();
        let mut host = Host::new(&mut env);
        host.send(&ic_req(), &mut env);
        let sequence = Fes::SequenceError.code();
        assert_eq!(host.receive(&mut env), [Received::TermReq(sequence)]);
        for (ms, over) in [(10_000, false), (19_999, false), (1, true)] {
            env.advance(ms);
            host.machine.handle_timeout(&mut env);
            assert_eq!(host.machine.must_close(), over);
        }
    }

    #[test]
    fn a_request_that_is_answered_at_once_is_under_way_until_sent() {
        let mut env = TestEnv::new();
        let mut admin = Host::admin(&mut env);
        let notices = sqe(&[(0, &[0x09, 0x40, 8]), (40, &[0x0B]), (44, &[0, 1])]);
        admin.send(&capsule(&notices, &[]), &mut env);
        assert_eq!(admin.receive(&mut env), [Received::Response(8, 0)]);
        env.catalog.generation += 1;
        admin.send(&capsule(&sqe(&[(0, &[0x0C, 0x40, 9])]), &[]), &mut env);
        admin.machine.shut_down();
        assert_eq!(admin.machine.closing(), None);
        assert_eq!(admin.receive(&mut env), [Received::Response(9, 0)]);
        let stopped = Some(CloseReason::Queue(Close::ShutDown));
        assert_eq!(admin.machine.closing(), stopped);
    }

    #[test]
    fn a_held_request_holds_no_buffer() {
        let mut env = TestEnv::new();
        let mut admin = Host::admin(&mut env);
        let request = sqe(&[(0, &[0x0C, 0x40, 9]), (32, &[16]), (39, &[0x01])]);
        admin.send(&capsule(&request, &[0xEE; 16]), &mut env);
        assert_eq!(admin.receive(&mut env), []);
        assert_eq!(env.buffers, 0);
    }

    #[test]
    fn what_would_fail_again_is_not_to_be_retried() {
        let mut env = TestEnv::new();
        let _admin = Host::admin(&mut env);
        let mut io = Host::io(&mut env);
        for (error, word) in [
            (MediaError::Read, 0x0502),
            (MediaError::Write, 0x0500),
            (MediaError::Miscompare, 0x850A),
            (MediaError::Full, 0x0102),
            (MediaError::ReadOnly, 0x8040),
            (MediaError::Unsupported, 0x8002),
            (MediaError::NotReady, 0x0104),
        ] {
            env.outcome = Some(Err(error));
            io.send(&capsule(&block_command(READ, 5), &[]), &mut env);
            assert_eq!(io.receive(&mut env), [Received::Response(5, word)]);
        }
    }

    #[test]
    fn disconnect_has_a_record_format() {
        let mut env = TestEnv::new();
        let _admin = Host::admin(&mut env);
        let mut io = Host::io(&mut env);
        let of_format = |recfmt| sqe(&[(0, &[0x7F, 0x40, 6, 0, 8]), (40, &[recfmt])]);
        io.send(&capsule(&of_format(1), &[]), &mut env);
        // DNR, 1/80h.
        assert_eq!(io.receive(&mut env), [Received::Response(6, 0x8300)]);
        assert_eq!(io.machine.closing(), None);
        io.send(&capsule(&of_format(0), &[]), &mut env);
        assert_eq!(io.receive(&mut env), [Received::Response(6, 0)]);
        let disconnected = Some(CloseReason::Queue(Close::Disconnected));
        assert_eq!(io.machine.closing(), disconnected);
    }

    #[test]
    fn data_that_comes_after_a_reset_sets_nothing() {
        let mut env = TestEnv::new();
        let mut admin = Host::admin(&mut env);
        // Timestamp, 8 bytes by R2T.
        let timestamp = sqe(&[
            (0, &[0x09, 0x40, 8]),
            (32, &[8]),
            (39, &[0x5A]),
            (40, &[0x0E]),
        ]);
        admin.send(&capsule(&timestamp, &[]), &mut env);
        assert_eq!(admin.receive(&mut env), [Received::R2t(8, 2, 0, 8)]);
        admin.send(&capsule(&property_set(0x14, 0, 0), &[]), &mut env);
        assert_eq!(admin.receive(&mut env), [Received::Response(3, 0)]);
        let data = [
            6, 4, 24, 24, 32, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4,
            5, 6, 0, 0,
        ];
        admin.send(&data, &mut env);
        // DNR, Command Sequence Error.
        assert_eq!(admin.receive(&mut env), [Received::Response(8, 0x8018)]);
    }

    #[test]
    fn a_connection_that_is_gone_leaves_when_devices_are_done_and_asks_for_no_more_time() {
        let mut env = TestEnv::new();
        let mut admin = Host::admin(&mut env);
        let mut io = Host::io(&mut env);
        env.outcome = None;
        io.send(&capsule(&block_command(READ, 5), &[]), &mut env);
        io.send(&capsule(&block_command(WRITE, 6), &[]), &mut env);
        assert_eq!(io.receive(&mut env), [Received::R2t(6, 2, 0, 4096)]);
        io.send(&ic_req(), &mut env);
        io.machine.connection_closed(&mut env);
        assert!(!io.machine.is_drained());
        assert_eq!((env.buffers, io.machine.poll_timeout()), (1, None));
        admin.machine.connection_closed(&mut env);
        assert_eq!(env.registry.entries().count(), 1);
        io.device_ends(Ok(()), &mut env);
        assert!(io.machine.is_drained());
        assert_eq!(env.buffers, 0);
        assert_eq!(env.registry.entries().count(), 0);
    }

    /// A host that is busy, legal, and told now and then that nothing is free.
    struct Storm {
        host: Host,
        seed: u64,
        outstanding: [bool; 7],
    }

    impl Storm {
        fn random(&mut self, below: u64) -> u64 {
            // Knuth's MMIX generator.
            self.seed = self
                .seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.seed >> 33) % below
        }

        fn begin(&mut self, env: &mut TestEnv) {
            let Some(cid) = self.outstanding.iter().position(|outstanding| !outstanding) else {
                return;
            };
            self.outstanding[cid] = true;
            let cid = u8::try_from(cid).unwrap();
            let inside = |opcode, len: u16| {
                let len = len.to_le_bytes();
                sqe(&[
                    (0, &[opcode, 0x40, cid]),
                    (4, &[1]),
                    (32, &len),
                    (39, &[0x01]),
                    (44, &[4]),
                ])
            };
            let pdu = match self.random(8) {
                0 => capsule(&block_command(READ, cid), &[]),
                1 => capsule(&block_command(WRITE, cid), &[]),
                2 => capsule(
                    &sqe(&[
                        (0, &[WRITE, 0x40, cid]),
                        (4, &[1]),
                        (32, &[0, 0x10]),
                        (39, &[1]),
                    ]),
                    &[cid; 4096],
                ),
                // Compare, and Dataset Management of one range, one block.
                3 => capsule(&block_command(0x05, cid), &[]),
                4 => {
                    let range = bytes::<16>(&[(4, &[1])]);
                    capsule(&inside(0x09, 16), &range)
                }
                // A namespace that is not there, Flush of all, an unknown opcode with data.
                5 => capsule(&sqe(&[(0, &[WRITE, 0x40, cid]), (4, &[9])]), &[]),
                6 => capsule(&sqe(&[(0, &[0, 0x40, cid]), (4, &[0xFF; 4])]), &[]),
                _ => capsule(&inside(0xC0, 64), &[0xEE; 64]),
            };
            let cut = usize::try_from(self.random(pdu.len() as u64)).unwrap();
            self.host.send(&pdu[..cut], env);
            self.host.send(&pdu[cut..], env);
        }

        /// Takes what came: answers R2Ts, counts responses.
        fn answer(&mut self, env: &mut TestEnv) {
            for received in self.host.receive(env) {
                match received {
                    Received::Response(cid, _) => {
                        let outstanding = &mut self.outstanding[usize::from(cid)];
                        assert!(core::mem::take(outstanding), "completed twice");
                    }
                    Received::R2t(cid, ttag, 0, 4096) => {
                        let mut data = std::vec![6, 4, 24, 24, 24, 16, 0, 0];
                        data.extend(cid.to_le_bytes());
                        data.extend(ttag.to_le_bytes());
                        data.extend([0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
                        data.resize(24 + 4096, 0xDD);
                        self.host.send(&data, env);
                    }
                    Received::Data(_, data) => assert_eq!(data, [0xAA; 4096]),
                    other => panic!("{other:?}"),
                }
            }
        }

        fn step(&mut self, env: &mut TestEnv) {
            match self.random(8) {
                0..3 => self.begin(env),
                3 => self.answer(env),
                4 => {
                    let error = self.random(3) == 0;
                    env.outcome = (self.random(2) == 0).then_some(if error {
                        Err(MediaError::Write)
                    } else {
                        Ok(())
                    });
                }
                5 => env.exhausted = self.random(2) == 0,
                6 => self.host.machine.retry(env),
                _ if env.under_way.is_empty() => {}
                _ => self.host.device_ends(Ok(()), env),
            }
        }

        fn settle(&mut self, env: &mut TestEnv) {
            env.exhausted = false;
            env.outcome = Some(Ok(()));
            while !env.under_way.is_empty() {
                self.host.device_ends(Ok(()), env);
            }
            self.host.machine.retry(env);
            while self.host.machine.wants_transmit() {
                self.answer(env);
            }
        }
    }

    #[test]
    fn a_command_waits_for_a_slot_that_its_queue_has_an_entry_for() {
        let env = &mut TestEnv::new();
        let mut host = Host::new(env);
        let data = connect_data(SUBNQN, 0xFFFF);
        host.send(&capsule(&connect_sqe(0, 31), &data), env);
        assert_eq!(host.receive(env), [Received::Response(1, 0)]);
        let gets: Vec<u8> = (0..20)
            .flat_map(|_| capsule(&property_get(0x08, 0), &[]))
            .collect();
        // Responses that are not sent keep their slots: there are eight.
        let mut used = host.machine.handle_input(&gets, env);
        assert_eq!(used, 8 * 72);
        assert_eq!(host.machine.handle_input(&gets[used..], env), 0);
        let mut responses = 0;
        while responses < 20 {
            let received = host.receive(env);
            assert!(!received.is_empty(), "after {responses}");
            responses += received.len();
            // Mid-PDU too: what was begun is never held up.
            let piece = gets.len().min(used + 100);
            used += host.machine.handle_input(&gets[used..piece], env);
        }
        assert_eq!((responses, used), (20, gets.len()));
        assert_eq!(host.machine.closing(), None);
    }

    #[test]
    fn every_command_completes_once_and_keeps_nothing() {
        for seed in 0..40 {
            let mut env = TestEnv::new();
            let mut admin = Host::admin(&mut env);
            let host = Host::io(&mut env);
            let outstanding = [false; 7];
            let mut storm = Storm {
                host,
                seed,
                outstanding,
            };
            for round in 0..4 {
                for _ in 0..200 {
                    storm.step(&mut env);
                }
                if round < 3 {
                    storm.settle(&mut env);
                    assert_eq!(storm.outstanding, [false; 7], "seed {seed}");
                    assert_eq!(env.buffers, 0, "seed {seed}");
                }
            }
            // The connection breaks amid all that.
            storm.host.machine.connection_closed(&mut env);
            admin.machine.connection_closed(&mut env);
            env.exhausted = false;
            while !env.under_way.is_empty() {
                assert_eq!(env.registry.entries().count(), 1);
                storm.host.device_ends(Ok(()), &mut env);
            }
            assert!(storm.host.machine.is_drained());
            assert_eq!((env.buffers, env.registry.entries().count()), (0, 0));
        }
    }
}
