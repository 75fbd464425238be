//! A controller, as its admin queue sees it: properties, enable, reset,
//! shutdown (NVMe Base 2.1, sections 3.1.4, 3.5 to 3.7).
use core::ops::Deref;

use super::aer::Events;
use super::error_log::ErrorLog;
use super::features::Features;
use super::keep_alive::{KeepAlive, KeepAliveExpired};
use super::{
    AdminStep, Catalog, ControllerState, Env, HostIdentity, Limits, Reply, SubsystemKind, admin,
};
use crate::command::FabricsCommand;
use crate::time::Instant;
use crate::wire::ids::Qid;
use crate::wire::property::{
    Cap, Cc, CommandSets, Crto, Csts, Property, PropertySize, Shn, Shst, Vs, css,
};
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;

/// The specification that controllers follow.
pub const VERSION: Vs = Vs::V2_0;

/// How long a controller takes to follow CC.EN at most, in milliseconds: the
/// longest that an I/O queue may take to go.
pub const READY_TIMEOUT_MS: u32 = 30_000;

/// log2 of an SQE's bytes, SQES and CC.IOSQES.
pub(super) const SQE_SHIFT: u8 = 6;
/// log2 of a CQE's bytes, CQES and CC.IOCQES.
pub(super) const CQE_SHIFT: u8 = 4;
/// The only memory page size, in bytes.
const PAGE_SIZE: u32 = 4096;

/// What an admin queue knows of its controller.
///
/// Commands are answered at once, or after one transfer of data
/// ([`AdminStep::Fetch`], [`AdminStep::Respond`]), or held (Asynchronous Event
/// Requests). After every call that takes an `env`, [`Self::poll_event`] may
/// have completions.
#[derive(Debug)]
pub struct Controller<C> {
    pub(super) state: C,
    pub(super) host: HostIdentity,
    pub(super) kind: SubsystemKind,
    /// CC as the host wrote it.
    cc: Cc,
    failed: bool,
    shut_down: bool,
    pub(super) keep_alive: KeepAlive,
    pub(super) events: Events,
    pub(super) features: Features,
    pub(super) errors: ErrorLog,
}

impl<C> Controller<C>
where
    C: Deref<Target = ControllerState> + Clone,
{
    /// A disabled controller for a host that connected with this KATO, in
    /// milliseconds.
    pub(super) fn new<E: Env<Controller = C>>(
        state: C,
        kind: SubsystemKind,
        host: HostIdentity,
        kato_ms: u32,
        env: &E,
    ) -> Self {
        let now = env.now();
        Self {
            state,
            host,
            kind,
            cc: Cc::default(),
            failed: false,
            shut_down: false,
            keep_alive: KeepAlive::new(kato_ms, kind == SubsystemKind::Discovery, now),
            events: Events::new(env.catalog().generation()),
            features: Features::new(now),
            errors: ErrorLog::default(),
        }
    }

    /// What it shares with its I/O queues.
    pub fn state(&self) -> &C {
        &self.state
    }

    /// The host it belongs to.
    pub fn host(&self) -> &HostIdentity {
        &self.host
    }

    /// Runs a command of the admin queue. `slot` names it in
    /// [`Self::poll_event`] if it is held.
    ///
    /// Send what [`Self::poll_event`] has before the reply: a command that
    /// Abort aborted completes before the Abort (Base 2.1, 5.1.1).
    pub fn command<E: Env<Controller = C>>(
        &mut self,
        slot: u16,
        sqe: &Sqe,
        env: &mut E,
    ) -> AdminStep {
        self.state.note_traffic();
        if sqe.is_fabrics() {
            return AdminStep::Reply(self.fabrics(sqe, env));
        }
        match self.check_enabled() {
            Ok(()) => admin::command(self, slot, sqe, env),
            Err(status) => AdminStep::Reply(Reply::status(status.with_dnr())),
        }
    }

    /// Ends a command that asked for [`AdminStep::Fetch`], with its data.
    pub fn write_data<E: Env<Controller = C>>(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        env: &mut E,
    ) -> Reply {
        let result = self.check_enabled();
        reply(result.and_then(|()| admin::write_data(self, sqe, data, env)))
    }

    /// Ends a command that asked for [`AdminStep::Respond`]: writes every byte
    /// of `out`. Unless it succeeds, no data is to be sent.
    pub fn read_data<E: Env<Controller = C>>(
        &mut self,
        sqe: &Sqe,
        out: &mut [u8],
        env: &mut E,
    ) -> Reply {
        out.fill(0);
        let result = self.check_enabled();
        reply(result.and_then(|()| admin::read_data(self, sqe, out, env)))
    }

    /// A held command that completes now, by its slot: because there is an
    /// event, or it was aborted. Ask again until there is none.
    pub fn poll_event<E: Env<Controller = C>>(&mut self, env: &mut E) -> Option<(u16, Reply)> {
        let wanted = self.is_enabled() && self.features.wants_notice(self.kind);
        self.events
            .poll(self.kind, env.catalog().generation(), wanted)
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.keep_alive.deadline()
    }

    /// Looks at the keep alive timer.
    ///
    /// # Errors
    /// The host fell silent. The controller has failed, its epoch is over;
    /// close the connection (Base 2.1, 3.9).
    pub fn handle_timeout<E: Env<Controller = C>>(
        &mut self,
        env: &mut E,
    ) -> Result<(), KeepAliveExpired> {
        let result = self.keep_alive.check(&self.state, env.now());
        if result.is_err() {
            self.failed = true;
            self.stop(env);
        }
        result
    }

    /// Base 2.1, 3.5.1: only Fabrics commands before the controller is ready.
    /// One that is reset while a command's data is on its way is so again.
    fn check_enabled(&self) -> Result<(), Status> {
        if self.is_enabled() {
            Ok(())
        } else {
            Err(Status::COMMAND_SEQUENCE_ERROR)
        }
    }

    /// Whether admin commands are processed: enabled, not failed, not shut down.
    pub(super) fn is_enabled(&self) -> bool {
        self.cc.en() && !self.failed && !self.shut_down
    }

    /// Records a failed command for the Error Information log: admin commands,
    /// and I/O commands as far as the binding passes them on.
    pub fn note_error(&mut self, qid: Qid, sqe: &Sqe, status: Status) {
        self.errors.note(qid, sqe, status);
    }

    fn fabrics<E: Env<Controller = C>>(&mut self, sqe: &Sqe, env: &mut E) -> Reply {
        let result = match FabricsCommand::decode(sqe) {
            FabricsCommand::PropertyGet { property, size } => {
                self.property_get(property, size, env).map(Reply::success)
            }
            FabricsCommand::PropertySet {
                property,
                size,
                value,
            } => self
                .property_set(property, size, value, env)
                .map(|()| Reply::SUCCESS),
            // 6.3: the queue exists already.
            FabricsCommand::Connect(_) => Err(Status::COMMAND_SEQUENCE_ERROR),
            // 6.4: for I/O queues.
            FabricsCommand::Disconnect { .. } => Err(Status::INVALID_QUEUE_TYPE),
            _ => Err(Status::INVALID_OPCODE),
        };
        result.unwrap_or_else(|status| Reply::status(status.with_dnr()))
    }

    /// Property Get (6.5).
    fn property_get<E: Env<Controller = C>>(
        &self,
        property: Property,
        size: PropertySize,
        env: &E,
    ) -> Result<u64, Status> {
        if property.size() != Some(size) {
            return Err(Status::INVALID_FIELD);
        }
        Ok(match property {
            Property::Cap => cap(&env.limits()).0,
            Property::Vs => VERSION.0.into(),
            Property::Cc => self.cc.0.into(),
            Property::Csts => self.csts().0.into(),
            // CAP.NSSRS is clear: reads as 0 (3.1.4.8).
            Property::Nssr => 0,
            Property::Crto => Crto::default()
                .with_ready_with_media_ms(READY_TIMEOUT_MS)
                .0
                .into(),
            _ => return Err(Status::INVALID_FIELD),
        })
    }

    /// Property Set (6.6). Only CC can be set.
    fn property_set<E: Env<Controller = C>>(
        &mut self,
        property: Property,
        size: PropertySize,
        value: u64,
        env: &mut E,
    ) -> Result<(), Status> {
        if property != Property::Cc || property.size() != Some(size) {
            return Err(Status::INVALID_FIELD);
        }
        let [b0, b1, b2, b3, ..] = value.to_le_bytes();
        self.set_cc(Cc(u32::from_le_bytes([b0, b1, b2, b3])), env);
        Ok(())
    }

    /// CC.EN and CC.SHN act in this order when one write changes both.
    fn set_cc<E: Env<Controller = C>>(&mut self, cc: Cc, env: &mut E) {
        let old = core::mem::replace(&mut self.cc, cc);
        match (old.en(), cc.en()) {
            (false, true) => self.enable(env),
            (true, false) => self.reset(env),
            _ => {}
        }
        if cc.shn() != Shn::None && !self.shut_down {
            self.shut_down = true;
            self.stop(env);
        }
    }

    fn enable<E: Env<Controller = C>>(&mut self, env: &mut E) {
        self.shut_down = false;
        self.failed = !is_supported(self.cc, self.kind);
        if !self.failed {
            self.keep_alive.set_enabled(true, env.now());
            self.state.enable();
        }
    }

    /// A Controller Level Reset by CC.EN (Base 2.1, 3.7.2): the admin queue,
    /// KATO and the error log stay, everything else starts anew.
    fn reset<E: Env<Controller = C>>(&mut self, env: &mut E) {
        self.stop(env);
        self.failed = false;
        self.shut_down = false;
        self.cc = Cc::default();
        self.features = Features::new(env.now());
    }

    /// No more I/O: the I/O queues close, held commands are aborted.
    fn stop<E: Env<Controller = C>>(&mut self, env: &mut E) {
        self.keep_alive.set_enabled(false, env.now());
        self.events.reset(env.catalog().generation());
        self.state.end_epoch();
        env.controller_changed(&self.state);
    }

    /// CSTS. A reset or shutdown is over when the I/O queues are gone, and
    /// with them whatever reads or writes the host's memory.
    fn csts(&self) -> Csts {
        let quiet = self.state.io_queues() == 0;
        let shst = match (self.shut_down, quiet) {
            (false, _) => Shst::Normal,
            (true, false) => Shst::Occurring,
            (true, true) => Shst::Complete,
        };
        let ready = !self.failed && (self.cc.en() || !quiet);
        Csts::default()
            .with_rdy(ready)
            .with_cfs(self.failed)
            .with_shst(shst)
    }
}

fn reply(result: Result<(), Status>) -> Reply {
    match result {
        Ok(()) => Reply::SUCCESS,
        Err(status) => Reply::status(status.with_dnr()),
    }
}

fn cap(limits: &Limits) -> Cap {
    Cap::default()
        .with_max_queue_entries(limits.io_queue_entries)
        .with_cqr(true)
        .with_timeout_ms(READY_TIMEOUT_MS)
        .with_css(css::NVM | css::IOCS)
        .with_crwms(true)
}

/// Whether CC, with EN just set, asks for nothing that CAP and Identify do not
/// offer (3.1.4.5). Discovery controllers have no I/O queues to have sizes of.
fn is_supported(cc: Cc, kind: SubsystemKind) -> bool {
    let sets = matches!(cc.css(), CommandSets::Nvm | CommandSets::AllSupported);
    let entries = (cc.iosqes(), cc.iocqes()) == (SQE_SHIFT, CQE_SHIFT);
    sets && cc.page_size() == PAGE_SIZE
        && cc.ams() == 0
        && (entries || kind == SubsystemKind::Discovery)
}

#[cfg(test)]
mod tests {
    use super::super::test_env::{
        CC_ENABLE, Handle, SUBNQN, TestEnv, connect_sqe, connected, enabled, join, property_get,
        property_set, sqe,
    };
    use super::*;
    use crate::wire::ids::Nqn;

    type Admin = Controller<Handle>;

    fn reply(step: AdminStep) -> Reply {
        match step {
            AdminStep::Reply(reply) => reply,
            other => panic!("no reply but {other:?}"),
        }
    }

    fn run(controller: &mut Admin, env: &mut TestEnv, sqe: &Sqe) -> Reply {
        reply(controller.command(7, sqe, env))
    }

    fn set_cc(controller: &mut Admin, env: &mut TestEnv, cc: u32) {
        let reply = run(controller, env, &property_set(0x14, 0, cc));
        assert_eq!(reply, Reply::SUCCESS);
    }

    fn csts(controller: &mut Admin, env: &mut TestEnv) -> u64 {
        let reply = run(controller, env, &property_get(0x1C, 0));
        assert_eq!(reply.status, Status::SUCCESS);
        reply.result
    }

    fn keep_alive() -> Sqe {
        sqe(&[(0, &[0x18, 0x40])])
    }

    fn event_request(cid: u8) -> Sqe {
        sqe(&[(0, &[0x0C, 0x40, cid])])
    }

    #[test]
    fn properties_read_as_they_are() {
        let mut env = TestEnv::new();
        let mut controller = connected(&mut env, SUBNQN);
        // MQES 127, CQR, TO 60 x 500 ms, CSS NVM and IOCS, CRWMS.
        let cap = 127 | 1 << 16 | 60 << 24 | 1 << 37 | 1 << 43 | 1 << 59;
        for (offset, attrib, value) in [
            (0x00, 1, cap),
            (0x08, 0, 0x0002_0000),
            (0x14, 0, 0),
            (0x1C, 0, 0),
            (0x20, 0, 0),
            (0x68, 0, 60),
        ] {
            let reply = run(&mut controller, &mut env, &property_get(offset, attrib));
            assert_eq!(reply, Reply::success(value), "{offset:#x}");
        }
    }

    #[test]
    fn properties_have_one_size_and_reserved_ones_do_not_exist() {
        let mut env = TestEnv::new();
        let mut controller = connected(&mut env, SUBNQN);
        let invalid = Reply::status(Status::INVALID_FIELD.with_dnr());
        for (offset, attrib) in [
            (0x00, 0),
            (0x08, 1),
            (0x14, 1),
            (0x1C, 1),
            (0x1C, 2),
            (0x0C, 0),
            (0x15, 0),
            (0x24, 0),
            (0x28, 1),
            (0x64, 0),
            (0xFC, 0),
        ] {
            let get = property_get(offset, attrib);
            assert_eq!(run(&mut controller, &mut env, &get), invalid, "{offset:#x}");
        }
        for (offset, attrib) in [(0x00, 1), (0x08, 0), (0x14, 1), (0x1C, 0), (0x20, 0)] {
            let set = property_set(offset, attrib, u32::MAX);
            assert_eq!(run(&mut controller, &mut env, &set), invalid, "{offset:#x}");
        }
        assert!(!controller.state().is_ready());
    }

    #[test]
    fn admin_commands_wait_for_cc_en() {
        let mut env = TestEnv::new();
        let mut controller = connected(&mut env, SUBNQN);
        let refused = run(&mut controller, &mut env, &keep_alive());
        assert_eq!(refused.status.to_word(), 0x8018);
        set_cc(&mut controller, &mut env, CC_ENABLE);
        assert_eq!(csts(&mut controller, &mut env), 1);
        assert!(controller.state().is_ready());
        let reply = run(&mut controller, &mut env, &keep_alive());
        assert_eq!(reply, Reply::SUCCESS);
    }

    #[test]
    fn an_unsupported_configuration_is_fatal_until_reset() {
        let mut env = TestEnv::new();
        let mut controller = connected(&mut env, SUBNQN);
        for cc in [
            0x0000_0001, // no entry sizes
            0x0047_0001, // IOSQES 7
            0x0056_0001, // IOCQES 5
            0x0046_0081, // MPS 1
            0x0046_0801, // AMS 1
            0x0046_0011, // CSS 1
            0x0046_0071, // CSS 7: admin only
        ] {
            set_cc(&mut controller, &mut env, cc);
            assert_eq!(csts(&mut controller, &mut env), 2, "{cc:#x}");
            assert!(!controller.state().is_ready());
            let refused = run(&mut controller, &mut env, &keep_alive());
            assert_eq!(refused.status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
            set_cc(&mut controller, &mut env, 0);
            assert_eq!(csts(&mut controller, &mut env), 0);
        }
        set_cc(&mut controller, &mut env, CC_ENABLE | 0x60);
        assert_eq!(csts(&mut controller, &mut env), 1, "all I/O command sets");
    }

    #[test]
    fn a_discovery_controller_needs_no_entry_sizes() {
        let mut env = TestEnv::new();
        let mut controller = connected(&mut env, Nqn::DISCOVERY);
        set_cc(&mut controller, &mut env, 1);
        assert_eq!(csts(&mut controller, &mut env), 1);
    }

    #[test]
    fn a_reset_is_over_when_the_io_queues_are_gone() {
        let mut env = TestEnv::new();
        let mut controller = enabled(&mut env, SUBNQN);
        let queue = join(&mut env, &controller, 3).unwrap();
        assert_eq!(env.changes, 0);
        set_cc(&mut controller, &mut env, CC_ENABLE & !1);
        assert_eq!(env.changes, 1);
        assert!(!controller.state().is_ready());
        assert_ne!(controller.state().epoch(), queue.epoch);
        assert_eq!(csts(&mut controller, &mut env), 1, "I/O is under way");
        env.leave_controller(&controller.state().clone(), Qid(3));
        assert_eq!(csts(&mut controller, &mut env), 0);
        set_cc(&mut controller, &mut env, CC_ENABLE);
        assert_eq!(csts(&mut controller, &mut env), 1);
        assert!(join(&mut env, &controller, 3).is_ok());
    }

    #[test]
    fn a_shutdown_is_complete_when_the_io_queues_are_gone() {
        let mut env = TestEnv::new();
        let mut controller = enabled(&mut env, SUBNQN);
        join(&mut env, &controller, 1).unwrap();
        set_cc(&mut controller, &mut env, CC_ENABLE | 1 << 14);
        assert_eq!(csts(&mut controller, &mut env), 0b01_01);
        assert_eq!(env.changes, 1);
        let refused = run(&mut controller, &mut env, &keep_alive());
        assert_eq!(refused.status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        env.leave_controller(&controller.state().clone(), Qid(1));
        assert_eq!(csts(&mut controller, &mut env), 0b10_01);
        // Only a reset leads out of it.
        set_cc(&mut controller, &mut env, CC_ENABLE);
        assert_eq!(csts(&mut controller, &mut env), 0b10_01);
        set_cc(&mut controller, &mut env, 0);
        assert_eq!(csts(&mut controller, &mut env), 0);
        set_cc(&mut controller, &mut env, CC_ENABLE);
        assert!(controller.state().is_ready());
    }

    #[test]
    fn one_write_both_enables_and_shuts_down() {
        let mut env = TestEnv::new();
        let mut controller = connected(&mut env, SUBNQN);
        set_cc(&mut controller, &mut env, CC_ENABLE | 1 << 14);
        assert_eq!(csts(&mut controller, &mut env), 0b10_01);
        assert!(!controller.state().is_ready());
        let mut controller = enabled(&mut env, SUBNQN);
        set_cc(&mut controller, &mut env, 1 << 14);
        assert_eq!(
            csts(&mut controller, &mut env),
            0b10_00,
            "reset and shut down"
        );
    }

    #[test]
    fn the_admin_queue_knows_these_fabrics_commands() {
        let mut env = TestEnv::new();
        let mut controller = enabled(&mut env, SUBNQN);
        for (fctype, status) in [
            (0x05, Status::INVALID_OPCODE),
            (0x06, Status::INVALID_OPCODE),
            (0x08, Status::INVALID_QUEUE_TYPE),
            (0x7F, Status::INVALID_OPCODE),
        ] {
            let sqe = sqe(&[(0, &[0x7F, 0x40, 0, 0, fctype])]);
            let reply = run(&mut controller, &mut env, &sqe);
            assert_eq!(reply, Reply::status(status.with_dnr()));
        }
        let reply = run(&mut controller, &mut env, &connect_sqe(0, 31));
        assert_eq!(
            reply,
            Reply::status(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
        );
    }

    #[test]
    fn a_silent_host_loses_its_controller() {
        let mut env = TestEnv::new();
        let mut controller = enabled(&mut env, SUBNQN);
        join(&mut env, &controller, 1).unwrap();
        let epoch = controller.state().epoch();
        env.advance(5000);
        assert_eq!(controller.poll_timeout(), Some(env.now));
        assert_eq!(
            controller.handle_timeout(&mut env),
            Ok(()),
            "there was Property Set"
        );
        // Commands of an I/O queue count.
        controller.state().note_traffic();
        env.advance(5000);
        assert_eq!(controller.handle_timeout(&mut env), Ok(()));
        controller.command(0, &event_request(1), &mut env);
        controller.state().take_traffic();
        env.advance(5000);
        let expired = controller.handle_timeout(&mut env).unwrap_err();
        assert_eq!(expired.limit_ms, 5000);
        assert!(!controller.state().is_ready());
        assert_ne!(controller.state().epoch(), epoch);
        assert_eq!(env.changes, 1);
        assert_eq!(csts(&mut controller, &mut env), 2);
        let aborted = Reply::status(Status::ABORT_REQUESTED);
        assert_eq!(controller.poll_event(&mut env), Some((0, aborted)));
    }

    #[test]
    fn a_reset_aborts_held_commands() {
        let mut env = TestEnv::new();
        let mut controller = enabled(&mut env, SUBNQN);
        let step = controller.command(5, &event_request(1), &mut env);
        assert_eq!(step, AdminStep::Held);
        assert_eq!(controller.poll_event(&mut env), None);
        set_cc(&mut controller, &mut env, 0);
        let aborted = Reply::status(Status::ABORT_REQUESTED);
        assert_eq!(controller.poll_event(&mut env), Some((5, aborted)));
        assert_eq!(controller.poll_event(&mut env), None);
    }
}
