//! Fabrics Connect (NVMe Base 2.1, section 6.3).
use core::fmt;

use zerocopy::FromBytes;

use super::controller::Controller;
use super::registry::MAX_IO_QUEUES;
use super::{Catalog, Env, HostIdentity, RegistryError, Reply, Subsystem, SubsystemKind};
use crate::wire::connect::{Cattr, ConnectData, ConnectResult, InvalidParameter};
use crate::wire::ids::{Cntlid, Nqn, Qid};
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;

/// A queue that is connected.
#[derive(Debug)]
pub struct Connected<C> {
    /// What the queue is for.
    pub role: Role<C>,
    /// Its id, 0 for an admin queue.
    pub qid: Qid,
    /// Its controller.
    pub cntlid: Cntlid,
    /// Entries of the submission queue, at least 2: SQSIZE + 1. The host has
    /// one fewer outstanding.
    pub entries: u32,
    /// Whether the host left SQ flow control on. If not, the response's SQHD
    /// is FFFFh.
    pub sq_flow_control: bool,
    /// Of the controller, when the queue joined it: see [`ControllerState::epoch`](super::ControllerState::epoch).
    pub epoch: u32,
    /// Who connected.
    pub host: HostIdentity,
}

/// What a queue is for.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "moved once, and there is no allocator"
)]
pub enum Role<C> {
    /// The admin queue, and the controller that it made.
    Admin(Controller<C>),
    /// An I/O queue of this controller.
    Io(C),
}

impl<C> Connected<C> {
    /// The response: CNTLID, and no authentication required.
    #[must_use]
    pub fn reply(&self) -> Reply {
        Reply::success(ConnectResult::new(self.cntlid).to_result())
    }
}

/// A queue that is not connected, and what to tell the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The response.
    pub reply: Reply,
    /// For people.
    pub reason: RefusalReason,
}

/// Why a Connect is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum RefusalReason {
    /// Less data than a Connect has.
    ShortData,
    /// RECFMT is not 0.
    RecordFormat,
    /// SUBNQN is no NQN, or has no NUL.
    BadSubnqn,
    /// HOSTNQN is no NQN, or has no NUL.
    BadHostnqn,
    /// No subsystem has that name.
    UnknownSubsystem,
    /// The subsystem does not serve that host.
    HostNotAllowed,
    /// SQSIZE is 0 or too large.
    QueueSize,
    /// The host asked for a certain controller; they are all dynamic.
    StaticController,
    /// No controller id or no room is left.
    Busy,
    /// I/O queues of a discovery controller do not exist.
    NoIoQueues,
    /// The queue id is above the limit.
    QueueId,
    /// The host has no such controller in that subsystem.
    UnknownController,
    /// The controller has a queue of that id.
    QueueInUse,
    /// The controller is disabled.
    NotEnabled,
    /// The controller's Admin Queue is on a transport of another type.
    OtherTransport,
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ShortData => "less than 1024 bytes of connect data",
            Self::RecordFormat => "unknown record format",
            Self::BadSubnqn => "the subsystem NQN is malformed",
            Self::BadHostnqn => "the host NQN is malformed",
            Self::UnknownSubsystem => "no such subsystem",
            Self::HostNotAllowed => "the subsystem does not serve this host",
            Self::QueueSize => "the queue size is 0 or too large",
            Self::StaticController => "a static controller id was asked for",
            Self::Busy => "no controller is free",
            Self::NoIoQueues => "a discovery controller has no I/O queues",
            Self::QueueId => "the queue id is too large",
            Self::UnknownController => "the host has no such controller",
            Self::QueueInUse => "the queue is connected already",
            Self::NotEnabled => "the controller is not enabled",
            Self::OtherTransport => "the controller's admin queue is on another transport",
        })
    }
}

impl core::error::Error for RefusalReason {}

/// Runs the Connect command `sqe`; `data` is what came with it.
///
/// # Errors
/// The refusal that the host is to be sent. The connection may then be closed:
/// it is no queue.
pub fn connect<E: Env>(
    env: &mut E,
    sqe: &Sqe,
    data: &[u8],
) -> Result<Connected<E::Controller>, Refusal> {
    use RefusalReason as Reason;

    let command = sqe.as_connect();
    if command.recfmt.get() != 0 {
        return refuse(Status::INCOMPATIBLE_FORMAT.with_dnr(), Reason::RecordFormat);
    }
    let Ok((data, _)) = ConnectData::ref_from_prefix(data) else {
        return refuse(
            Status::SGL_DATA_LENGTH_INVALID.with_dnr(),
            Reason::ShortData,
        );
    };
    let subnqn = data
        .subnqn()
        .map_err(|_| invalid(InvalidParameter::SUBNQN, Reason::BadSubnqn))?;
    let host = HostIdentity {
        nqn: data
            .hostnqn()
            .map_err(|_| invalid(InvalidParameter::HOSTNQN, Reason::BadHostnqn))?,
        id: data.hostid,
    };
    let limits = env.limits();
    let (index, subsystem) = find(env.catalog(), &subnqn)
        .ok_or(invalid(InvalidParameter::SUBNQN, Reason::UnknownSubsystem))?;
    if !subsystem.allows(&host.nqn) {
        return Err(Refusal {
            reply: Reply {
                status: Status::CONNECT_INVALID_HOST.with_dnr(),
                result: InvalidParameter::HOSTNQN.to_result(),
            },
            reason: Reason::HostNotAllowed,
        });
    }
    let kind = subsystem.kind;
    let qid = Qid(command.qid.get());
    let cntlid = data.cntlid();
    let entries = command.queue_entries();
    let most = match qid {
        Qid::ADMIN => limits.admin_queue_entries.into(),
        _ => limits.io_queue_entries,
    };
    if !(2..=most).contains(&entries) {
        return Err(invalid(InvalidParameter::SQSIZE, Reason::QueueSize));
    }
    let (role, cntlid, epoch) = if qid.is_admin() {
        if cntlid != Cntlid::DYNAMIC {
            return Err(invalid(InvalidParameter::CNTLID, Reason::StaticController));
        }
        let state = env
            .create_controller(index, &host, cntlid)
            .map_err(registry_refusal)?;
        state.set_trtype(env.local_listener().trtype);
        let (cntlid, epoch) = (state.cntlid, state.epoch());
        let controller = Controller::new(state, kind, host.clone(), command.kato.get(), env);
        (Role::Admin(controller), cntlid, epoch)
    } else {
        if kind == SubsystemKind::Discovery {
            return refuse(Status::INVALID_QUEUE_TYPE.with_dnr(), Reason::NoIoQueues);
        }
        if qid.0 > limits.io_queues.min(MAX_IO_QUEUES) {
            return Err(invalid(InvalidParameter::QID, Reason::QueueId));
        }
        let state = env
            .join_controller(index, &host, cntlid, qid)
            .map_err(registry_refusal)?;
        // A reset may come between: if its epoch is not over now, whatever
        // ends it later will be seen.
        let epoch = state.epoch();
        if !state.is_ready() {
            env.leave_controller(&state, qid);
            return Err(registry_refusal(RegistryError::NotReady));
        }
        // All queues of an association use one transport (Base 2.1, 2.3.1).
        if state.trtype() != env.local_listener().trtype {
            env.leave_controller(&state, qid);
            return Err(invalid(InvalidParameter::CNTLID, Reason::OtherTransport));
        }
        (Role::Io(state), cntlid, epoch)
    };
    Ok(Connected {
        role,
        qid,
        cntlid,
        entries,
        sq_flow_control: !Cattr(command.cattr).disable_sq_flow_control(),
        epoch,
        host,
    })
}

/// The subsystem a Connect means: the well-known discovery NQN reaches the
/// discovery subsystem whatever its own name is (Base 2.1, 3.1.3.3).
fn find<'a, C: Catalog + ?Sized>(catalog: &'a C, nqn: &Nqn) -> Option<(usize, Subsystem<'a>)> {
    if let Some(found) = catalog.find(nqn) {
        return Some(found);
    }
    if !nqn.is_discovery() {
        return None;
    }
    (0..)
        .map_while(|index| Some((index, catalog.subsystem(index)?)))
        .find(|(_, subsystem)| subsystem.kind == SubsystemKind::Discovery)
}

fn invalid(parameter: InvalidParameter, reason: RefusalReason) -> Refusal {
    Refusal {
        reply: Reply {
            status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
            result: parameter.to_result(),
        },
        reason,
    }
}

fn refuse<T>(status: Status, reason: RefusalReason) -> Result<T, Refusal> {
    Err(Refusal {
        reply: Reply::status(status),
        reason,
    })
}

fn registry_refusal(error: RegistryError) -> Refusal {
    let (status, reason) = match error {
        RegistryError::UnknownController => {
            return invalid(InvalidParameter::CNTLID, RefusalReason::UnknownController);
        }
        RegistryError::Busy => (Status::CONTROLLER_BUSY, RefusalReason::Busy),
        // Not DNR: the queue may be one whose connection is about to go.
        RegistryError::QueueInUse => (Status::COMMAND_SEQUENCE_ERROR, RefusalReason::QueueInUse),
        RegistryError::NotReady => {
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            (status, RefusalReason::NotEnabled)
        }
    };
    Refusal {
        reply: Reply::status(status),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_env::{
        HOSTID, HOSTNQN, SUBNQN, TestEnv, bytes, connect_data, connect_sqe, connected, enabled,
        join, sqe, subsystem,
    };
    use super::*;

    /// Status word and result of the response to a Connect that fails.
    fn refused(env: &mut TestEnv, sqe: &Sqe, data: &[u8]) -> (u16, u64, RefusalReason) {
        let refusal = connect(env, sqe, data).unwrap_err();
        let word = refusal.reply.status.to_word();
        (word, refusal.reply.result, refusal.reason)
    }

    // Status words: DNR | SCT << 9 | SC << 1.
    const INVALID_PARAMETERS: u16 = 0x8304;
    const IN_DATA: u64 = 1 << 16;

    #[test]
    fn an_admin_queue_makes_a_controller() {
        let mut env = TestEnv::new();
        let data = connect_data(SUBNQN, 0xFFFF);
        // P1 of the catalogue: SQSIZE 31, CATTR 4, KATO 5000.
        let sqe = sqe(&[
            (0, &[0x7F, 0x40, 1, 0, 1]),
            (44, &[31, 0, 4, 0, 0x88, 0x13]),
        ]);
        let connected = connect(&mut env, &sqe, &data).unwrap();
        assert_eq!((connected.qid, connected.cntlid), (Qid::ADMIN, Cntlid(1)));
        assert_eq!((connected.entries, connected.sq_flow_control), (32, false));
        assert_eq!(connected.host.nqn.as_str(), HOSTNQN);
        assert_eq!(connected.host.id, HOSTID);
        assert_eq!(connected.reply(), Reply::success(1));
        let Role::Admin(controller) = connected.role else {
            panic!("not an admin queue");
        };
        assert_eq!(controller.state().subsystem, 1);
        assert!(!controller.state().is_ready());
    }

    #[test]
    fn sq_flow_control_is_on_unless_the_host_disables_it() {
        let mut env = TestEnv::new();
        let data = connect_data(SUBNQN, 0xFFFF);
        let connected = connect(&mut env, &connect_sqe(0, 31), &data).unwrap();
        assert!(connected.sq_flow_control);
    }

    #[test]
    fn the_data_must_be_whole() {
        let mut env = TestEnv::new();
        let data = connect_data(SUBNQN, 0xFFFF);
        for len in [0, 512, 1023] {
            let refused = refused(&mut env, &connect_sqe(0, 31), &data[..len]);
            assert_eq!(refused, (0x801E, 0, RefusalReason::ShortData));
        }
        let mut longer = data.to_vec();
        longer.push(0xFF);
        assert!(connect(&mut env, &connect_sqe(0, 31), &longer).is_ok());
    }

    #[test]
    fn the_record_format_is_0() {
        let mut env = TestEnv::new();
        let sqe = sqe(&[(0, &[0x7F, 0x40, 1, 0, 1]), (40, &[1, 0]), (44, &[31])]);
        let refused = refused(&mut env, &sqe, &connect_data(SUBNQN, 0xFFFF));
        assert_eq!(refused, (0x8300, 0, RefusalReason::RecordFormat));
    }

    #[test]
    fn names_end_with_a_nul() {
        let mut env = TestEnv::new();
        let mut data = connect_data(SUBNQN, 0xFFFF);
        data[256..512].fill(b'A');
        let refusal = refused(&mut env, &connect_sqe(0, 31), &data);
        let expected = (INVALID_PARAMETERS, IN_DATA | 256, RefusalReason::BadSubnqn);
        assert_eq!(refusal, expected);
        let mut data = connect_data(SUBNQN, 0xFFFF);
        data[512..768].fill(b'A');
        let refusal = refused(&mut env, &connect_sqe(0, 31), &data);
        let expected = (INVALID_PARAMETERS, IN_DATA | 512, RefusalReason::BadHostnqn);
        assert_eq!(refusal, expected);
        let mut data = connect_data(SUBNQN, 0xFFFF);
        data[512..768].fill(0);
        let refusal = refused(&mut env, &connect_sqe(0, 31), &data);
        assert_eq!(refusal, expected);
    }

    #[test]
    fn the_subsystem_must_exist_and_serve_the_host() {
        let mut env = TestEnv::new();
        let data = connect_data("nqn.2014-08.org.example:none", 0xFFFF);
        let refusal = refused(&mut env, &connect_sqe(0, 31), &data);
        let expected = (
            INVALID_PARAMETERS,
            IN_DATA | 256,
            RefusalReason::UnknownSubsystem,
        );
        assert_eq!(refusal, expected);

        let other = "nqn.2014-08.org.example:other".parse().unwrap();
        env.catalog.subsystems[1].allowed_hosts = Some(std::vec![other]);
        let data = connect_data(SUBNQN, 0xFFFF);
        let refusal = refused(&mut env, &connect_sqe(0, 31), &data);
        assert_eq!(
            refusal,
            (0x8308, IN_DATA | 512, RefusalReason::HostNotAllowed)
        );

        let us = HOSTNQN.parse().unwrap();
        env.catalog.subsystems[1].allowed_hosts = Some(std::vec![us]);
        assert!(connect(&mut env, &connect_sqe(0, 31), &data).is_ok());
    }

    #[test]
    fn the_queue_size_is_within_limits() {
        let mut env = TestEnv::new();
        let expected = (INVALID_PARAMETERS, 44, RefusalReason::QueueSize);
        let data = connect_data(SUBNQN, 0xFFFF);
        for sqsize in [0, 32, 127, u16::MAX] {
            assert_eq!(refused(&mut env, &connect_sqe(0, sqsize), &data), expected);
        }
        let controller = enabled(&mut env, SUBNQN);
        let data = connect_data(SUBNQN, controller.state().cntlid.0);
        for sqsize in [0, 128, u16::MAX] {
            assert_eq!(refused(&mut env, &connect_sqe(1, sqsize), &data), expected);
        }
        for (qid, sqsize) in [(1, 1), (2, 127)] {
            let connected = connect(&mut env, &connect_sqe(qid, sqsize), &data).unwrap();
            assert_eq!(connected.entries, u32::from(sqsize) + 1);
        }
    }

    #[test]
    fn controllers_are_dynamic() {
        let mut env = TestEnv::new();
        let expected = (
            INVALID_PARAMETERS,
            IN_DATA | 16,
            RefusalReason::StaticController,
        );
        for cntlid in [0, 1, 0xFFFE] {
            let data = connect_data(SUBNQN, cntlid);
            assert_eq!(refused(&mut env, &connect_sqe(0, 31), &data), expected);
        }
    }

    #[test]
    fn without_room_the_controller_is_busy_and_may_be_tried_again() {
        let mut env = TestEnv::new();
        for _ in 0..4 {
            connected(&mut env, SUBNQN);
        }
        let data = connect_data(SUBNQN, 0xFFFF);
        let refusal = refused(&mut env, &connect_sqe(0, 31), &data);
        assert_eq!(refusal, (0x0302, 0, RefusalReason::Busy));
    }

    #[test]
    fn an_io_queue_joins_an_enabled_controller() {
        let mut env = TestEnv::new();
        let controller = enabled(&mut env, SUBNQN);
        let connected = join(&mut env, &controller, 16).unwrap();
        assert_eq!((connected.qid, connected.cntlid), (Qid(16), Cntlid(1)));
        assert_eq!(connected.epoch, controller.state().epoch());
        assert!(matches!(connected.role, Role::Io(state) if state.io_queues() == 1));
        let refusal = join(&mut env, &controller, 17).unwrap_err();
        assert_eq!(refusal.reply.status.to_word(), INVALID_PARAMETERS);
        assert_eq!(
            (refusal.reply.result, refusal.reason),
            (42, RefusalReason::QueueId)
        );
        let refusal = join(&mut env, &controller, 16).unwrap_err();
        assert_eq!(refusal.reply.status, Status::COMMAND_SEQUENCE_ERROR);
        assert_eq!(refusal.reason, RefusalReason::QueueInUse);
    }

    #[test]
    fn an_io_queue_waits_for_cc_en() {
        let mut env = TestEnv::new();
        let controller = connected(&mut env, SUBNQN);
        let refusal = join(&mut env, &controller, 1).unwrap_err();
        assert_eq!(refusal.reply.status.to_word(), 0x8018);
        assert_eq!(refusal.reason, RefusalReason::NotEnabled);
        assert_eq!(controller.state().io_queues(), 0);
    }

    #[test]
    fn an_io_queue_is_of_the_host_and_subsystem_of_its_controller() {
        let mut env = TestEnv::new();
        env.catalog
            .subsystems
            .push(subsystem("nqn.other", SubsystemKind::Nvm, &[]));
        enabled(&mut env, SUBNQN);
        let expected = (
            INVALID_PARAMETERS,
            IN_DATA | 16,
            RefusalReason::UnknownController,
        );
        let good = connect_data(SUBNQN, 1);
        let mut other_host = good;
        other_host[512..526].copy_from_slice(b"nqn.other-host");
        let mut other_id = good;
        other_id[0] ^= 1;
        for data in [
            connect_data(SUBNQN, 2),
            connect_data(SUBNQN, 0xFFFF),
            connect_data("nqn.other", 1),
            other_host,
            other_id,
        ] {
            assert_eq!(refused(&mut env, &connect_sqe(1, 31), &data), expected);
        }
        assert!(connect(&mut env, &connect_sqe(1, 31), &good).is_ok());
    }

    #[test]
    fn an_io_queue_is_on_the_transport_of_its_admin_queue() {
        const RDMA: u8 = 1;
        const TCP: u8 = 3;
        let expected = (
            INVALID_PARAMETERS,
            IN_DATA | 16,
            RefusalReason::OtherTransport,
        );
        for (admin, io) in [(RDMA, TCP), (TCP, RDMA)] {
            let mut env = TestEnv::new();
            env.local.trtype = admin;
            let controller = enabled(&mut env, SUBNQN);
            let data = connect_data(SUBNQN, 1);
            env.local.trtype = io;
            assert_eq!(refused(&mut env, &connect_sqe(1, 31), &data), expected);
            assert_eq!(controller.state().io_queues(), 0);
            env.local.trtype = admin;
            assert!(connect(&mut env, &connect_sqe(1, 31), &data).is_ok());
        }
    }

    #[test]
    fn discovery_has_a_well_known_name_and_no_io_queues() {
        let mut env = TestEnv::new();
        let data = connect_data(Nqn::DISCOVERY, 0xFFFF);
        env.catalog.subsystems[0].nqn = "nqn.2014-08.org.example:discovery".parse().unwrap();
        let connected = connect(&mut env, &connect_sqe(0, 31), &data).unwrap();
        let Role::Admin(controller) = connected.role else {
            panic!("not an admin queue");
        };
        assert_eq!(controller.state().subsystem, 0);
        let data = connect_data(Nqn::DISCOVERY, controller.state().cntlid.0);
        let refusal = refused(&mut env, &connect_sqe(1, 31), &data);
        assert_eq!(refusal, (0x830A, 0, RefusalReason::NoIoQueues));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut env = TestEnv::new();
        for fill in 0..=u8::MAX {
            let _ = connect(&mut env, &sqe(&[(0, &[fill; 64])]), &[fill; 1024]);
            let _ = connect(&mut env, &connect_sqe(fill, 31), &bytes::<1024>(&[]));
        }
    }
}
