//! Admin commands (NVMe Base 2.1, section 5.1).
use core::ops::Deref;

use super::controller::Controller;
use super::{AdminStep, ControllerState, Env, Reply, SubsystemKind};
use crate::wire::ids::{Cid, Qid};
use crate::wire::sqe::{AdminOpcode, Sqe};
use crate::wire::status::Status;

/// Abort commands that may be outstanding (ACL + 1). They never are: each
/// ends at once.
pub const ABORT_LIMIT: usize = 4;

/// Starts a command of an enabled controller.
pub(super) fn command<C, E>(
    controller: &mut Controller<C>,
    slot: u16,
    sqe: &Sqe,
    _env: &mut E,
) -> AdminStep
where
    C: Deref<Target = ControllerState> + Clone,
    E: Env<Controller = C>,
{
    match sqe.admin_opcode() {
        AdminOpcode::KeepAlive => AdminStep::Reply(keep_alive(controller)),
        AdminOpcode::AsyncEventRequest => match controller.events.hold(slot, sqe.cid()) {
            Ok(()) => AdminStep::Held,
            Err(status) => AdminStep::Reply(Reply::status(status)),
        },
        AdminOpcode::Abort if controller.kind == SubsystemKind::Nvm => {
            AdminStep::Reply(abort(controller, sqe))
        }
        _ => AdminStep::Reply(Reply::status(Status::INVALID_OPCODE.with_dnr())),
    }
}

/// Ends a command that fetched its data.
pub(super) fn write_data<C, E>(
    _controller: &mut Controller<C>,
    _sqe: &Sqe,
    _data: &[u8],
    _env: &mut E,
) -> Reply
where
    C: Deref<Target = ControllerState> + Clone,
    E: Env<Controller = C>,
{
    Reply::status(Status::INVALID_OPCODE.with_dnr())
}

/// Ends a command that returns data; `out` is all zero.
pub(super) fn read_data<C, E>(
    _controller: &mut Controller<C>,
    _sqe: &Sqe,
    _out: &mut [u8],
    _env: &mut E,
) -> Reply
where
    C: Deref<Target = ControllerState> + Clone,
    E: Env<Controller = C>,
{
    Reply::status(Status::INVALID_OPCODE.with_dnr())
}

/// Keep Alive (5.1.14); its arrival was noted as traffic already.
fn keep_alive<C>(controller: &Controller<C>) -> Reply {
    if controller.keep_alive.is_active() {
        Reply::SUCCESS
    } else {
        Reply::status(Status::KEEP_ALIVE_TIMEOUT_INVALID)
    }
}

/// Abort (5.1.1). Only held commands can be aborted, the others end by
/// themselves; dword 0 bit 0 says that nothing was.
fn abort<C>(controller: &mut Controller<C>, sqe: &Sqe) -> Reply {
    const NOT_ABORTED: u64 = 1;

    let [sqid_low, sqid_high, cid_low, cid_high] = sqe.cdw10.to_bytes();
    let qid = Qid(u16::from_le_bytes([sqid_low, sqid_high]));
    let cid = Cid(u16::from_le_bytes([cid_low, cid_high]));
    if qid.is_admin() && controller.events.abort(cid) {
        Reply::SUCCESS
    } else {
        Reply::success(NOT_ABORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_env::{Handle, SUBNQN, TestEnv, enabled, sqe};
    use super::*;
    use crate::wire::ids::Nqn;

    fn abort(
        controller: &mut Controller<Handle>,
        env: &mut TestEnv,
        sqid: u8,
        cid: u8,
    ) -> AdminStep {
        let sqe = sqe(&[(0, &[0x08, 0x40]), (40, &[sqid, 0, cid, 0])]);
        controller.command(0, &sqe, env)
    }

    #[test]
    fn abort_reaches_held_commands_only() {
        let mut env = TestEnv::new();
        let mut controller = enabled(&mut env, SUBNQN);
        let request = sqe(&[(0, &[0x0C, 0x40, 9])]);
        assert_eq!(controller.command(3, &request, &mut env), AdminStep::Held);
        let missed = AdminStep::Reply(Reply::success(1));
        assert_eq!(abort(&mut controller, &mut env, 0, 8), missed);
        assert_eq!(abort(&mut controller, &mut env, 1, 9), missed);
        let hit = AdminStep::Reply(Reply::success(0));
        assert_eq!(abort(&mut controller, &mut env, 0, 9), hit);
        let aborted = Reply::status(Status::ABORT_REQUESTED);
        assert_eq!(controller.poll_event(&mut env), Some((3, aborted)));
    }

    #[test]
    fn four_event_requests_are_held() {
        let mut env = TestEnv::new();
        let mut controller = enabled(&mut env, SUBNQN);
        for cid in 0..4 {
            let request = sqe(&[(0, &[0x0C, 0x40, cid])]);
            let step = controller.command(cid.into(), &request, &mut env);
            assert_eq!(step, AdminStep::Held);
        }
        let step = controller.command(4, &sqe(&[(0, &[0x0C, 0x40, 4])]), &mut env);
        let AdminStep::Reply(reply) = step else {
            panic!("held too many")
        };
        // DNR, 1/05h.
        assert_eq!(reply.status.to_word(), 0x820A);
    }

    #[test]
    fn unknown_commands_are_invalid_opcodes() {
        let mut env = TestEnv::new();
        let mut controller = enabled(&mut env, SUBNQN);
        let invalid = AdminStep::Reply(Reply::status(Status::INVALID_OPCODE.with_dnr()));
        // Create and delete queues, namespace management, firmware, format,
        // security, sanitize, vendor specific.
        for opcode in [
            0x00, 0x01, 0x04, 0x05, 0x0D, 0x10, 0x11, 0x7C, 0x80, 0x81, 0x84, 0xFF,
        ] {
            let step = controller.command(0, &sqe(&[(0, &[opcode, 0x40])]), &mut env);
            assert_eq!(step, invalid, "{opcode:#x}");
        }
        let mut discovery = enabled(&mut env, Nqn::DISCOVERY);
        assert_eq!(abort(&mut discovery, &mut env, 0, 0), invalid);
    }
}
