//! Admin commands (NVMe Base 2.1, section 5.1).
use core::ops::Deref;

use super::controller::Controller;
use super::{AdminStep, ControllerState, Env, Reply, SubsystemKind, identify, logs};
use crate::command::AdminCommand;
use crate::command::admin::Abort;
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;

/// Abort commands that may be outstanding (ACL + 1). They never are: each
/// ends at once.
pub const ABORT_LIMIT: usize = 4;

/// Begins a command of an enabled controller.
pub(super) fn command<C, E>(
    controller: &mut Controller<C>,
    slot: u16,
    sqe: &Sqe,
    env: &mut E,
) -> AdminStep
where
    C: Deref<Target = ControllerState> + Clone,
    E: Env<Controller = C>,
{
    let step = match AdminCommand::decode(sqe) {
        AdminCommand::Identify(_) => Ok(AdminStep::Respond {
            len: identify::SIZE,
        }),
        AdminCommand::GetLogPage(command) => {
            logs::len(&command, &env.limits()).map(|len| AdminStep::Respond { len })
        }
        AdminCommand::GetFeatures(command) => controller.get_features(&command, env),
        AdminCommand::SetFeatures(command) => controller.set_features(&command, env),
        AdminCommand::KeepAlive => keep_alive(controller).map(AdminStep::Reply),
        AdminCommand::AsyncEventRequest => controller
            .events
            .hold(slot, sqe.cid())
            .map(|()| AdminStep::Held),
        AdminCommand::Abort(command) if controller.kind == SubsystemKind::Nvm => {
            Ok(AdminStep::Reply(abort(controller, command)))
        }
        _ => Err(Status::INVALID_OPCODE),
    };
    step.unwrap_or_else(|status| AdminStep::Reply(Reply::status(status.with_dnr())))
}

/// Ends a command that fetched its data.
pub(super) fn write_data<C, E>(
    controller: &mut Controller<C>,
    sqe: &Sqe,
    data: &[u8],
    env: &mut E,
) -> Result<(), Status>
where
    C: Deref<Target = ControllerState> + Clone,
    E: Env<Controller = C>,
{
    match AdminCommand::decode(sqe) {
        AdminCommand::SetFeatures(command) => controller.write_feature(&command, data, env),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// Ends a command that returns data; `out` is all zero.
pub(super) fn read_data<C, E>(
    controller: &mut Controller<C>,
    sqe: &Sqe,
    out: &mut [u8],
    env: &mut E,
) -> Result<(), Status>
where
    C: Deref<Target = ControllerState> + Clone,
    E: Env<Controller = C>,
{
    match AdminCommand::decode(sqe) {
        AdminCommand::Identify(command) => identify::identify(controller, &command, out, env),
        AdminCommand::GetLogPage(command) => logs::read(controller, &command, out, env),
        AdminCommand::GetFeatures(command) => controller.read_feature(&command, out, env),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// Keep Alive (5.1.14); its arrival was noted as traffic already.
fn keep_alive<C>(controller: &Controller<C>) -> Result<Reply, Status> {
    if controller.keep_alive.is_active() {
        Ok(Reply::SUCCESS)
    } else {
        Err(Status::KEEP_ALIVE_TIMEOUT_INVALID)
    }
}

/// Abort (5.1.1). Only held commands can be aborted, the others end by
/// themselves; dword 0 bit 0 says that nothing was.
fn abort<C>(controller: &mut Controller<C>, Abort { sqid, cid }: Abort) -> Reply {
    const NOT_ABORTED: u64 = 1;

    if sqid.is_admin() && controller.events.abort(cid) {
        Reply::SUCCESS
    } else {
        Reply::success(NOT_ABORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_env::{CC_ENABLE, Handle, SUBNQN, TestEnv, enabled, property_set, sqe};
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

    /// Drives a controller with arbitrary commands: properties, admin commands
    /// and their data, time, changes of the catalog.
    fn storm(subnqn: &str, seed: u64) {
        let mut env = TestEnv::new();
        env.limits.transfer = 8192;
        let mut controller = enabled(&mut env, subnqn);
        let mut held = [false; 8];
        let mut state = seed;
        let mut random = || {
            // Knuth's MMIX generator.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let opcodes = [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F, 0x7F];
        for round in 0..20_000 {
            let mut bytes = [0; 64];
            // Few bits set, so that many commands mean something.
            bytes.iter_mut().skip(2).for_each(|byte| {
                *byte = (random() & random() & random()).to_le_bytes()[0];
            });
            bytes[0] = opcodes[random() as usize % opcodes.len()];
            if bytes[0] == 0x7F {
                bytes[4] &= 0x07;
                bytes[44..48].copy_from_slice(&[0x14, 0, 0, 0]);
            }
            if round % 50 == 0 {
                controller.command(0, &property_set(0x14, 0, 0), &mut env);
                controller.command(0, &property_set(0x14, 0, CC_ENABLE), &mut env);
            }
            let sqe = sqe(&[(0, &bytes)]);
            let slot = held.iter().position(|held| !held).unwrap();
            match controller.command(slot as u16, &sqe, &mut env) {
                AdminStep::Reply(reply) => {
                    assert!(reply.status.is_success() || reply.result == 0, "{sqe}");
                }
                AdminStep::Fetch { len } => {
                    assert!(len <= env.limits.transfer);
                    let data = std::vec![random() as u8; len as usize];
                    controller.write_data(&sqe, &data, &mut env);
                }
                AdminStep::Respond { len } => {
                    assert!(len <= env.limits.transfer);
                    let mut out = std::vec![0; len as usize];
                    controller.read_data(&sqe, &mut out, &mut env);
                }
                AdminStep::Held => held[slot] = true,
                AdminStep::Disconnect(_) => unreachable!("not on an admin queue"),
            }
            env.advance(random() & 0x3F);
            env.catalog.generation += random() & 1;
            let _ = controller.handle_timeout(&mut env);
            while let Some((slot, _)) = controller.poll_event(&mut env) {
                let was_held = core::mem::take(&mut held[usize::from(slot)]);
                assert!(was_held, "completed twice");
            }
            assert!(held.iter().filter(|held| **held).count() <= 4);
        }
    }

    #[test]
    fn no_command_makes_it_panic_or_complete_twice() {
        for seed in 1..4 {
            storm(SUBNQN, seed);
            storm(Nqn::DISCOVERY, seed);
        }
    }
}
