//! Get and Set Features (NVMe Base 2.1, sections 5.1.11 and 5.1.25). No value
//! outlives a reset, so there are none to save.
use core::ops::Deref;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::controller::Controller;
use super::identify::has_volatile_cache;
use super::registry::MAX_IO_QUEUES;
use super::{AdminStep, Catalog, ControllerState, Env, Reply, SubsystemKind};
use crate::command::admin::{GetFeatures, Select, SetFeatures};
use crate::time::Instant;
use crate::wire::feature::{
    Arbitration, AsyncEventConfig, CommandSetProfile, ErrorRecovery, FeatureCapabilities,
    FeatureId, HostBehavior, HostIdentifierSize, NumberOfQueues, PowerManagement,
    TemperatureSelect, TemperatureThreshold, ThresholdType, Timestamp, TimestampOrigin,
    VolatileWriteCache, WriteAtomicity,
};
use crate::wire::ids::Nsid;
use crate::wire::status::Status;

/// Features of an I/O controller.
pub(super) const IO_FEATURES: [FeatureId; 13] = [
    FeatureId::Arbitration,
    FeatureId::PowerManagement,
    FeatureId::TemperatureThreshold,
    FeatureId::ErrorRecovery,
    FeatureId::VolatileWriteCache,
    FeatureId::NumberOfQueues,
    FeatureId::WriteAtomicity,
    FeatureId::AsyncEventConfig,
    FeatureId::Timestamp,
    FeatureId::KeepAliveTimer,
    FeatureId::HostBehavior,
    FeatureId::CommandSetProfile,
    FeatureId::HostIdentifier,
];

/// Features of a discovery controller.
const DISCOVERY_FEATURES: [FeatureId; 2] = [FeatureId::AsyncEventConfig, FeatureId::KeepAliveTimer];

/// Asynchronous events of SMART / Health, which every I/O controller has and
/// this one never sends.
const HEALTH_EVENTS: AsyncEventConfig = AsyncEventConfig::from_bits(0xFF);

/// Values of one controller, all but KATO.
#[derive(Debug)]
pub(super) struct Features {
    arbitration: Arbitration,
    power_management: PowerManagement,
    /// In kelvins; there is no thermometer to compare them with.
    over_temperature: u16,
    under_temperature: u16,
    error_recovery: ErrorRecovery,
    write_atomicity: WriteAtomicity,
    /// I/O queues granted, once the host has asked.
    io_queues: Option<u16>,
    events: AsyncEventConfig,
    clock: Clock,
    /// Host Behavior Support, Advanced Command Retry Enable.
    acre: bool,
}

impl Features {
    /// The values after a reset.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            arbitration: Arbitration {
                ab: 7,
                lpw: 1,
                mpw: 1,
                hpw: 1,
            },
            power_management: PowerManagement { ps: 0, wh: 0 },
            over_temperature: u16::MAX,
            under_temperature: 0,
            error_recovery: ErrorRecovery {
                tler: 0,
                dulbe: false,
            },
            write_atomicity: WriteAtomicity { dn: false },
            io_queues: None,
            events: AsyncEventConfig::default(),
            clock: Clock {
                milliseconds: 0,
                since: now,
                origin: TimestampOrigin::Reset,
            },
            acre: false,
        }
    }

    /// Whether the host asked to hear of changes to what the controller serves.
    pub(super) fn wants_notice(&self, kind: SubsystemKind) -> bool {
        self.events.contains(notice(kind))
    }

    /// The threshold of the one temperature there is.
    fn threshold(&mut self, select: TemperatureThreshold) -> Result<&mut u16, Status> {
        let composite = matches!(
            select.tmpsel,
            TemperatureSelect::Composite | TemperatureSelect::All
        );
        match select.thsel {
            ThresholdType::Over if composite => Ok(&mut self.over_temperature),
            ThresholdType::Under if composite => Ok(&mut self.under_temperature),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

/// A clock that the host may set (5.1.25.1.7).
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// What it showed at `since`.
    milliseconds: u64,
    since: Instant,
    origin: TimestampOrigin,
}

impl Clock {
    fn timestamp(self, now: Instant) -> Timestamp {
        let passed = u64::try_from(now.since(self.since).as_millis()).unwrap_or(u64::MAX);
        Timestamp::new(self.milliseconds.saturating_add(passed), self.origin)
    }
}

/// I/O queues of a kind that a host may ask for at most.
const MOST_TO_ASK: u32 = 65_535;
/// Bytes of a Host Identifier with EXHID set.
const HOST_IDENTIFIER_LEN: usize = 16;

fn notice(kind: SubsystemKind) -> AsyncEventConfig {
    match kind {
        SubsystemKind::Nvm => AsyncEventConfig::NSAN,
        SubsystemKind::Discovery => AsyncEventConfig::DLPCN,
    }
}

impl<C> Controller<C>
where
    C: Deref<Target = ControllerState> + Clone,
{
    /// Begins Get Features.
    pub(super) fn get_features<E: Env<Controller = C>>(
        &mut self,
        command: &GetFeatures,
        env: &E,
    ) -> Result<AdminStep, Status> {
        let fid = self.feature(command.fid, env)?;
        let current = command.sel == Select::Current;
        let mut defaults = Features::new(env.now());
        let features = match command.sel {
            Select::Current => &mut self.features,
            Select::Default | Select::Saved => &mut defaults,
            Select::SupportedCapabilities => {
                let capabilities = capabilities(fid).bits();
                return Ok(AdminStep::Reply(Reply::success(capabilities.into())));
            }
            Select::Unknown(_) => return Err(Status::INVALID_FIELD),
        };
        let value = match fid {
            FeatureId::Arbitration => features.arbitration.to_dword(),
            FeatureId::PowerManagement => features.power_management.to_dword(),
            FeatureId::TemperatureThreshold => {
                let select = TemperatureThreshold::from_dword(command.cdw11);
                (*features.threshold(select)?).into()
            }
            FeatureId::ErrorRecovery => features.error_recovery.to_dword(),
            FeatureId::VolatileWriteCache => VolatileWriteCache { wce: true }.to_dword(),
            FeatureId::NumberOfQueues => {
                queue_counts(features.io_queues.unwrap_or(most_io_queues(env)))
            }
            FeatureId::WriteAtomicity => features.write_atomicity.to_dword(),
            FeatureId::AsyncEventConfig => features.events.bits(),
            FeatureId::KeepAliveTimer if current => self.keep_alive.kato_ms(),
            FeatureId::KeepAliveTimer | FeatureId::CommandSetProfile => 0,
            FeatureId::Timestamp => return respond(size_of::<Timestamp>()),
            FeatureId::HostBehavior => return respond(size_of::<HostBehavior>()),
            // EXHID: identifiers have 128 bits over Fabrics (5.1.25.1.28).
            FeatureId::HostIdentifier if HostIdentifierSize::from_dword(command.cdw11).exhid => {
                return respond(HOST_IDENTIFIER_LEN);
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(AdminStep::Reply(Reply::success(value.into())))
    }

    /// The data of a Get Features that has some; `out` is all zero.
    pub(super) fn read_feature<E: Env<Controller = C>>(
        &self,
        command: &GetFeatures,
        out: &mut [u8],
        env: &E,
    ) -> Result<(), Status> {
        let defaults = Features::new(env.now());
        let features = match command.sel {
            Select::Current => &self.features,
            _ => &defaults,
        };
        match self.feature(command.fid, env)? {
            FeatureId::Timestamp => put(out, features.clock.timestamp(env.now()).as_bytes()),
            FeatureId::HostBehavior => put(out, &[features.acre.into()]),
            FeatureId::HostIdentifier => put(out, &self.host.id),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Begins Set Features.
    pub(super) fn set_features<E: Env<Controller = C>>(
        &mut self,
        command: &SetFeatures,
        env: &E,
    ) -> Result<AdminStep, Status> {
        let fid = self.feature(command.fid, env)?;
        if command.save {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        let of_controller = matches!(command.nsid, Nsid(0) | Nsid::ALL);
        if !of_controller && fid != FeatureId::ErrorRecovery {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
        }
        let (value, features) = (command.cdw11, &mut self.features);
        match fid {
            FeatureId::Arbitration => features.arbitration = Arbitration::from_dword(value),
            FeatureId::PowerManagement => {
                let power = PowerManagement::from_dword(value);
                // There is one power state.
                if power.ps != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                features.power_management = power;
            }
            FeatureId::TemperatureThreshold => {
                let threshold = TemperatureThreshold::from_dword(value);
                *features.threshold(threshold)? = threshold.tmpth;
            }
            FeatureId::ErrorRecovery => {
                let recovery = ErrorRecovery::from_dword(value);
                // No namespace offers it (NSFEAT).
                if recovery.dulbe {
                    return Err(Status::INVALID_FIELD);
                }
                features.error_recovery = recovery;
            }
            // The cache is the device's own; it cannot be turned off.
            FeatureId::VolatileWriteCache => {
                if !VolatileWriteCache::from_dword(value).wce {
                    return Err(Status::FEATURE_NOT_CHANGEABLE);
                }
            }
            FeatureId::NumberOfQueues => {
                let granted = self.grant_io_queues(NumberOfQueues::from_dword(value), env)?;
                return Ok(AdminStep::Reply(Reply::success(granted.into())));
            }
            FeatureId::WriteAtomicity => {
                features.write_atomicity = WriteAtomicity::from_dword(value);
            }
            FeatureId::AsyncEventConfig => {
                self.configure_events(AsyncEventConfig::from_bits(value))?;
            }
            FeatureId::KeepAliveTimer => self.keep_alive.set_kato(value, env.now()),
            FeatureId::CommandSetProfile => {
                if CommandSetProfile::from_dword(value).iocsci != 0 {
                    return Err(Status::IOCS_COMBINATION_REJECTED);
                }
            }
            FeatureId::Timestamp => return fetch(size_of::<Timestamp>()),
            FeatureId::HostBehavior => return fetch(size_of::<HostBehavior>()),
            // Over Fabrics, Connect sets it (5.1.25.1.28).
            FeatureId::HostIdentifier => return Err(Status::COMMAND_SEQUENCE_ERROR),
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(AdminStep::Reply(Reply::SUCCESS))
    }

    /// Ends a Set Features that has data.
    pub(super) fn write_feature<E: Env<Controller = C>>(
        &mut self,
        command: &SetFeatures,
        data: &[u8],
        env: &E,
    ) -> Result<(), Status> {
        match self.feature(command.fid, env)? {
            FeatureId::Timestamp => {
                self.features.clock = Clock {
                    milliseconds: view::<Timestamp>(data)?.milliseconds(),
                    since: env.now(),
                    origin: TimestampOrigin::SetFeatures,
                };
            }
            FeatureId::HostBehavior => {
                let behavior = view::<HostBehavior>(data)?;
                // Identify offers nothing that the others are about.
                let others = [behavior.etdas, behavior.lbafee, behavior.hdisns];
                if behavior.acre > 1 || others != [0; 3] || behavior.cdfe.get() != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                self.features.acre = behavior.acre == 1;
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(())
    }

    /// A feature that the controller has.
    fn feature<E: Env<Controller = C>>(&self, fid: u8, env: &E) -> Result<FeatureId, Status> {
        let fid = FeatureId::from(fid);
        let known = match self.kind {
            SubsystemKind::Nvm => IO_FEATURES.contains(&fid),
            SubsystemKind::Discovery => DISCOVERY_FEATURES.contains(&fid),
        };
        let cached = || {
            env.catalog()
                .subsystem(self.state.subsystem)
                .is_some_and(|subsystem| has_volatile_cache(&subsystem))
        };
        // 5.1.25.1.4: none without a cache.
        if known && (fid != FeatureId::VolatileWriteCache || cached()) {
            Ok(fid)
        } else {
            Err(Status::INVALID_FIELD)
        }
    }

    /// Number of Queues (5.1.25.2.1). Over Fabrics queues come in pairs.
    fn grant_io_queues<E: Env<Controller = C>>(
        &mut self,
        asked: NumberOfQueues,
        env: &E,
    ) -> Result<u32, Status> {
        if self.state.io_queues() > 0 {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        if asked.nsq > MOST_TO_ASK || asked.ncq > MOST_TO_ASK {
            return Err(Status::INVALID_FIELD);
        }
        let pairs = u16::try_from(asked.nsq.min(asked.ncq)).unwrap_or(u16::MAX);
        let granted = pairs.min(most_io_queues(env));
        self.features.io_queues = Some(granted);
        Ok(queue_counts(granted))
    }

    fn configure_events(&mut self, events: AsyncEventConfig) -> Result<(), Status> {
        let offered = match self.kind {
            SubsystemKind::Nvm => HEALTH_EVENTS | notice(self.kind),
            SubsystemKind::Discovery => notice(self.kind),
        };
        if !offered.contains(events) {
            return Err(Status::INVALID_FIELD);
        }
        self.features.events = events;
        Ok(())
    }
}

/// I/O queues that a controller can have.
fn most_io_queues<E: Env>(env: &E) -> u16 {
    env.limits().io_queues.clamp(1, MAX_IO_QUEUES)
}

/// NSQA and NCQA.
fn queue_counts(pairs: u16) -> u32 {
    let (nsq, ncq) = (pairs.into(), pairs.into());
    NumberOfQueues { nsq, ncq }.to_dword()
}

fn capabilities(fid: FeatureId) -> FeatureCapabilities {
    match fid {
        FeatureId::VolatileWriteCache
        | FeatureId::CommandSetProfile
        | FeatureId::HostIdentifier => FeatureCapabilities::default(),
        _ => FeatureCapabilities::CHANGEABLE,
    }
}

fn respond(len: usize) -> Result<AdminStep, Status> {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    Ok(AdminStep::Respond { len })
}

fn fetch(len: usize) -> Result<AdminStep, Status> {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    Ok(AdminStep::Fetch { len })
}

fn put(out: &mut [u8], data: &[u8]) -> Result<(), Status> {
    out.get_mut(..data.len())
        .ok_or(Status::SGL_DATA_LENGTH_INVALID)?
        .copy_from_slice(data);
    Ok(())
}

fn view<T: FromBytes + KnownLayout + Immutable>(data: &[u8]) -> Result<&T, Status> {
    T::ref_from_prefix(data)
        .map(|(view, _)| view)
        .map_err(|_| Status::SGL_DATA_LENGTH_INVALID)
}

#[cfg(test)]
mod tests {
    use super::super::test_env::{HOSTID, Handle, SUBNQN, TestEnv, enabled, join, read, run, sqe};
    use super::*;
    use crate::wire::ids::{Nqn, Qid};
    use crate::wire::sqe::Sqe;

    struct Fixture {
        env: TestEnv,
        controller: Controller<Handle>,
    }

    fn get(fid: u8, sel: u8, cdw11: u32) -> Sqe {
        sqe(&[
            (0, &[0x0A, 0x40]),
            (40, &[fid, sel]),
            (44, &cdw11.to_le_bytes()),
        ])
    }

    fn set(fid: u8, cdw11: u32) -> Sqe {
        sqe(&[(0, &[0x09, 0x40]), (40, &[fid]), (44, &cdw11.to_le_bytes())])
    }

    impl Fixture {
        fn new(subnqn: &str) -> Self {
            let mut env = TestEnv::new();
            let controller = enabled(&mut env, subnqn);
            Self { env, controller }
        }

        fn run(&mut self, sqe: &Sqe) -> Result<u64, Status> {
            run(&mut self.env, &mut self.controller, sqe)
        }

        fn get(&mut self, fid: u8) -> Result<u64, Status> {
            self.run(&get(fid, 0, 0))
        }

        fn set(&mut self, fid: u8, value: u32) -> Result<u64, Status> {
            self.run(&set(fid, value))
        }

        fn read(&mut self, fid: u8, cdw11: u32) -> Result<std::vec::Vec<u8>, Status> {
            read(&mut self.env, &mut self.controller, &get(fid, 0, cdw11))
        }

        fn write(&mut self, fid: u8, data: &[u8]) -> Reply {
            let sqe = set(fid, 0);
            let len = u32::try_from(data.len()).unwrap();
            let step = self.controller.command(0, &sqe, &mut self.env);
            assert_eq!(step, AdminStep::Fetch { len });
            self.controller.write_data(&sqe, data, &mut self.env)
        }
    }

    const INVALID: Result<u64, Status> = Err(Status::INVALID_FIELD.with_dnr());

    #[test]
    fn values_are_kept_until_a_reset() {
        let mut fixture = Fixture::new(SUBNQN);
        for (fid, default, value, kept) in [
            (0x01, 7, 0x0403_0203, 0x0403_0203),
            (0x02, 0, 0x20, 0x20),
            (0x05, 0, 0x1234, 0x1234),
            (0x0A, 0, 1, 1),
            (0x0B, 0, 0x1FF, 0x1FF),
            (0x0F, 5000, 2500, 3000),
        ] {
            assert_eq!(fixture.get(fid), Ok(default), "{fid:#x}");
            assert_eq!(fixture.set(fid, value), Ok(0));
            assert_eq!(fixture.get(fid), Ok(kept));
            let default = if fid == 0x0F { 0 } else { default };
            assert_eq!(fixture.run(&get(fid, 1, 0)), Ok(default));
            assert_eq!(fixture.run(&get(fid, 2, 0)), Ok(default));
            assert_eq!(fixture.run(&get(fid, 3, 0)), Ok(0b100), "changeable");
            assert_eq!(fixture.run(&get(fid, 4, 0)), INVALID);
        }
    }

    #[test]
    fn values_that_mean_nothing_here_are_refused() {
        let mut fixture = Fixture::new(SUBNQN);
        for (fid, value) in [
            (0x02, 1),         // power state 1
            (0x04, 0x1_0000),  // sensor 1
            (0x04, 0x20_0000), // reserved threshold type
            (0x05, 0x1_0000),  // DULBE
            (0x0B, 0x200),     // firmware activation notices
            (0x0B, 1 << 31),   // discovery notices
        ] {
            assert_eq!(fixture.set(fid, value), INVALID, "{fid:#x}");
        }
    }

    #[test]
    fn temperatures_have_two_thresholds() {
        let mut fixture = Fixture::new(SUBNQN);
        let (over, under) = (0, 0x10_0000);
        assert_eq!(fixture.run(&get(0x04, 0, over)), Ok(0xFFFF));
        assert_eq!(fixture.run(&get(0x04, 0, under)), Ok(0));
        assert_eq!(fixture.set(0x04, 0x0F_0150), Ok(0));
        assert_eq!(fixture.set(0x04, 0x10_0100), Ok(0));
        assert_eq!(fixture.run(&get(0x04, 0, over)), Ok(0x150));
        assert_eq!(fixture.run(&get(0x04, 0, under)), Ok(0x100));
    }

    #[test]
    fn queues_are_granted_in_pairs_before_the_first_connects() {
        let mut fixture = Fixture::new(SUBNQN);
        assert_eq!(fixture.get(0x07), Ok(0x000F_000F), "16 of each");
        for (asked, granted) in [
            (0, 0),
            (0x0003_0003, 0x0003_0003),
            (0x0001_0007, 0x0001_0001),
            (0xFFFE_FFFE, 0x000F_000F),
        ] {
            assert_eq!(fixture.set(0x07, asked), Ok(granted));
            assert_eq!(fixture.get(0x07), Ok(granted));
        }
        for asked in [0xFFFF_FFFF, 0xFFFF_0003, 0x0003_FFFF] {
            assert_eq!(fixture.set(0x07, asked), INVALID);
        }
        join(&mut fixture.env, &fixture.controller, 1).unwrap();
        let sequence = Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        assert_eq!(fixture.set(0x07, 0), sequence);
        let state = fixture.controller.state().clone();
        fixture.env.leave_controller(&state, Qid(1));
        assert_eq!(fixture.set(0x07, 0), Ok(0));
    }

    #[test]
    fn the_cache_is_on_where_there_is_one() {
        let mut fixture = Fixture::new(SUBNQN);
        assert_eq!(fixture.get(0x06), Ok(1));
        assert_eq!(fixture.set(0x06, 1), Ok(0));
        let unchangeable = Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr());
        assert_eq!(fixture.set(0x06, 0), unchangeable);
        assert_eq!(fixture.run(&get(0x06, 3, 0)), Ok(0));
        for namespace in &mut fixture.env.catalog.subsystems[1].namespaces {
            namespace.geometry.volatile_cache = false;
        }
        assert_eq!(fixture.get(0x06), INVALID);
        assert_eq!(fixture.set(0x06, 1), INVALID);
    }

    #[test]
    fn the_host_identifier_is_that_of_connect() {
        let mut fixture = Fixture::new(SUBNQN);
        assert_eq!(fixture.read(0x81, 1), Ok(HOSTID.to_vec()));
        assert_eq!(fixture.get(0x81), INVALID, "EXHID clear");
        let sequence = Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        assert_eq!(fixture.set(0x81, 1), sequence);
    }

    #[test]
    fn the_clock_runs_on_from_what_the_host_set() {
        let mut fixture = Fixture::new(SUBNQN);
        fixture.env.advance(1500);
        let since_reset = [0xDC, 0x05, 0, 0, 0, 0, 0, 0];
        assert_eq!(fixture.read(0x0E, 0), Ok(since_reset.to_vec()));
        let reply = fixture.write(0x0E, &[0, 0, 0, 0, 1, 0, 0xFF, 0xFF]);
        assert_eq!(reply, Reply::SUCCESS);
        fixture.env.advance(2);
        let set_by_host = [2, 0, 0, 0, 1, 0, 0b0010, 0];
        assert_eq!(fixture.read(0x0E, 0), Ok(set_by_host.to_vec()));
    }

    #[test]
    fn host_behavior_is_what_identify_leaves_room_for() {
        let mut fixture = Fixture::new(SUBNQN);
        let mut data = [0; 512];
        assert_eq!(fixture.read(0x16, 0), Ok(data.to_vec()));
        data[0] = 1;
        assert_eq!(fixture.write(0x16, &data), Reply::SUCCESS);
        assert_eq!(fixture.read(0x16, 0), Ok(data.to_vec()));
        for (at, value) in [(0, 2), (1, 1), (2, 1), (3, 1), (5, 1)] {
            let mut data = [0; 512];
            data[at] = value;
            let refused = Reply::status(Status::INVALID_FIELD.with_dnr());
            assert_eq!(fixture.write(0x16, &data), refused);
        }
    }

    #[test]
    fn the_command_set_profile_is_0() {
        let mut fixture = Fixture::new(SUBNQN);
        assert_eq!(fixture.get(0x19), Ok(0));
        assert_eq!(fixture.set(0x19, 0), Ok(0));
        let rejected = Err(Status::IOCS_COMBINATION_REJECTED.with_dnr());
        assert_eq!(fixture.set(0x19, 1), rejected);
    }

    #[test]
    fn nothing_is_saved_or_a_namespaces_own() {
        let mut fixture = Fixture::new(SUBNQN);
        let saved = sqe(&[(0, &[0x09, 0x40]), (40, &[0x0A, 0, 0, 0x80])]);
        let refused = fixture.run(&saved);
        assert_eq!(refused, Err(Status::FEATURE_NOT_SAVEABLE.with_dnr()));
        let of_namespace = |fid| sqe(&[(0, &[0x09, 0x40]), (4, &[1]), (40, &[fid])]);
        let refused = fixture.run(&of_namespace(0x0A));
        let expected = Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr());
        assert_eq!(refused, expected);
        assert_eq!(fixture.run(&of_namespace(0x05)), Ok(0));
    }

    #[test]
    fn other_features_do_not_exist() {
        let mut fixture = Fixture::new(SUBNQN);
        for fid in [
            0x00, 0x03, 0x08, 0x09, 0x0C, 0x0D, 0x10, 0x17, 0x80, 0x82, 0x84, 0xC0, 0xFF,
        ] {
            assert_eq!(fixture.get(fid), INVALID, "{fid:#x}");
            assert_eq!(fixture.set(fid, 0), INVALID, "{fid:#x}");
        }
    }

    #[test]
    fn a_discovery_controller_has_two_features() {
        let mut fixture = Fixture::new(Nqn::DISCOVERY);
        assert_eq!(fixture.set(0x0B, 1 << 31), Ok(0));
        assert_eq!(fixture.set(0x0B, 1), INVALID);
        assert_eq!(fixture.get(0x0B), Ok(1 << 31));
        assert_eq!(fixture.get(0x0F), Ok(5000));
        for fid in (0..=0xFF).filter(|fid| ![0x0B, 0x0F].contains(fid)) {
            assert_eq!(fixture.get(fid), INVALID);
            assert_eq!(fixture.set(fid, 0), INVALID);
        }
    }
}
