//! Log pages (NVMe Base 2.1, section 5.1.12). Each is written through a
//! [`LogWindow`], so that any piece of it can be read without memory for the
//! rest.
use core::ops::Deref;

use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::controller::Controller;
use super::error_log::{self, ErrorLog, Failure};
use super::identify::CSI_NVM;
use super::{Catalog, ControllerState, Env, Limits, Subsystem, SubsystemKind, discovery, features};
use crate::command::admin::GetLogPage;
use crate::wire::feature::FeatureId;
use crate::wire::ids::Nsid;
use crate::wire::log::{
    ChangedNamespaces, CommandEffect, ErrorInformation, FeatureEffect, FirmwareSlots, LogId,
    LogPageSupport, LogWindow, SmartHealth,
};
use crate::wire::sqe::{AdminOpcode, IoOpcode};
use crate::wire::status::Status;
use crate::wire::text::Padded;

/// Log pages of an I/O controller.
const IO_PAGES: [LogId; 8] = [
    LogId::SupportedLogPages,
    LogId::ErrorInformation,
    LogId::SmartHealth,
    LogId::FirmwareSlot,
    LogId::ChangedNamespaces,
    LogId::CommandEffects,
    LogId::FeatureEffects,
    LogId::MiCommandEffects,
];

/// How many bytes to respond with.
pub(super) fn len(command: &GetLogPage, limits: &Limits) -> Result<u32, Status> {
    // MDTS holds for log pages too.
    u32::try_from(command.len)
        .ok()
        .filter(|&len| len <= limits.transfer)
        .ok_or(Status::INVALID_FIELD)
}

/// Fills `out` with the piece of a log page that `command` asks for; what is
/// past its end is zero.
pub(super) fn read<C, E>(
    controller: &mut Controller<C>,
    command: &GetLogPage,
    out: &mut [u8],
    env: &E,
) -> Result<(), Status>
where
    C: Deref<Target = ControllerState> + Clone,
    E: Env<Controller = C>,
{
    // LPO is in whole dwords, and no page is read by index.
    if command.offset_is_index || !command.lpo.is_multiple_of(4) {
        return Err(Status::INVALID_FIELD);
    }
    let catalog = env.catalog();
    let generation = catalog.generation();
    let subsystem = catalog
        .subsystem(controller.state.subsystem)
        .ok_or(Status::INTERNAL_ERROR)?;
    let lid = LogId::from(command.lid);
    let mut log = LogWindow::new(out, command.lpo);
    let telling = match subsystem.kind {
        SubsystemKind::Nvm => {
            write_io_page(controller, command, &mut log, env, &subsystem)?;
            LogId::ChangedNamespaces
        }
        SubsystemKind::Discovery if lid == LogId::Discovery => {
            discovery::write(&mut log, env, &subsystem, &controller.host.nqn);
            LogId::Discovery
        }
        SubsystemKind::Discovery => return Err(Status::INVALID_LOG_PAGE),
    };
    if command.lpo > log.position() {
        return Err(Status::INVALID_FIELD);
    }
    if lid == telling && !command.rae {
        controller.events.acknowledge(generation);
    }
    Ok(())
}

/// Writes a log page of an I/O controller.
fn write_io_page<C, E>(
    controller: &Controller<C>,
    command: &GetLogPage,
    log: &mut LogWindow<'_>,
    env: &E,
    subsystem: &Subsystem<'_>,
) -> Result<(), Status>
where
    C: Deref<Target = ControllerState> + Clone,
    E: Env<Controller = C>,
{
    match LogId::from(command.lid) {
        LogId::SupportedLogPages => table(log, supported),
        LogId::ErrorInformation => errors(log, &controller.errors, env.local_listener().trtype),
        // LPA: the whole controller's, not a namespace's.
        LogId::SmartHealth if !matches!(command.nsid, Nsid(0) | Nsid::ALL) => {
            return Err(Status::INVALID_FIELD);
        }
        LogId::SmartHealth => log.put(&health(&controller.errors)),
        LogId::FirmwareSlot => {
            log.put(&FirmwareSlots::single(Padded::new(subsystem.firmware)));
        }
        LogId::ChangedNamespaces => {
            let changed = controller.events.has_changed(env.catalog().generation());
            changed_namespaces(log, changed);
        }
        LogId::CommandEffects if command.csi != CSI_NVM => return Err(Status::INVALID_FIELD),
        LogId::CommandEffects => {
            table(log, |opcode| admin_effect(opcode.into()));
            table(log, |opcode| io_effect(opcode.into()));
            table(log, |_| CommandEffect::default());
            table(log, |_| CommandEffect::default());
        }
        LogId::FeatureEffects => table(log, |fid| feature_effect(fid.into())),
        // There are none: no NVMe-MI.
        LogId::MiCommandEffects => (0..4).for_each(|_| table(log, |_| CommandEffect::default())),
        _ => return Err(Status::INVALID_LOG_PAGE),
    }
    Ok(())
}

/// 256 entries of 4 bytes, by their index.
fn table<T: IntoBytes + Immutable>(log: &mut LogWindow<'_>, entry: impl Fn(u8) -> T) {
    (0..=u8::MAX).for_each(|index| log.put(&entry(index)));
}

fn supported(lid: u8) -> LogPageSupport {
    match IO_PAGES.contains(&lid.into()) {
        true => LogPageSupport::LSUPP,
        false => LogPageSupport::default(),
    }
}

/// The latest error first; unused entries are zero.
fn errors(log: &mut LogWindow<'_>, errors: &ErrorLog, trtype: u8) {
    errors
        .recent()
        .map(|failure| entry(failure, trtype))
        .chain(core::iter::repeat_with(ErrorInformation::default))
        .take(error_log::ENTRIES)
        .for_each(|entry| log.put(&entry));
}

fn entry(failure: &Failure, trtype: u8) -> ErrorInformation {
    let mut entry = ErrorInformation::default();
    entry.errcnt.set(failure.count);
    entry.sqid.set(failure.qid.0);
    entry.cid.set(failure.cid.0);
    entry.status.set(failure.status.to_word());
    // No parameter is named.
    entry.pel.set(u16::MAX);
    entry.lba.set(failure.lba);
    entry.nsid.set(failure.nsid.0);
    entry.trtype = trtype;
    entry.opc = failure.opcode;
    entry.lpver = 1;
    entry
}

/// Nothing wears out or gets hot; counts of I/O are not kept, and 0.
fn health(errors: &ErrorLog) -> SmartHealth {
    let mut health = SmartHealth::new_zeroed();
    health.avsp = 100;
    health.neile.set(errors.count().into());
    health
}

/// Which namespaces changed is not kept, so a change is "more than the list
/// has room for".
fn changed_namespaces(log: &mut LogWindow<'_>, changed: bool) {
    log.put(&U32::new(if changed { Nsid::ALL.0 } else { 0 }));
    (1..ChangedNamespaces::CAPACITY).for_each(|_| log.put(&U32::ZERO));
}

fn admin_effect(opcode: AdminOpcode) -> CommandEffect {
    match opcode {
        AdminOpcode::GetLogPage
        | AdminOpcode::Identify
        | AdminOpcode::Abort
        | AdminOpcode::SetFeatures
        | AdminOpcode::GetFeatures
        | AdminOpcode::AsyncEventRequest
        | AdminOpcode::KeepAlive => CommandEffect::CSUPP | CommandEffect::CSCPE,
        _ => CommandEffect::default(),
    }
}

/// The scope, which may be left out, is: Linux warns of any effect of an I/O
/// command but these two.
fn io_effect(opcode: IoOpcode) -> CommandEffect {
    match opcode {
        IoOpcode::Flush | IoOpcode::Read | IoOpcode::Compare | IoOpcode::Verify => {
            CommandEffect::CSUPP
        }
        IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::DatasetManagement => {
            CommandEffect::CSUPP | CommandEffect::LBCC
        }
        _ => CommandEffect::default(),
    }
}

fn feature_effect(fid: FeatureId) -> FeatureEffect {
    match features::IO_FEATURES.contains(&fid) {
        true => FeatureEffect::FSUPP | FeatureEffect::CSCPE,
        false => FeatureEffect::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::super::test_env::{Handle, SUBNQN, TestEnv, enabled, get_log, read, run, sqe};
    use super::super::{AdminStep, Reply};
    use super::*;
    use crate::wire::ids::{Nqn, Qid};

    struct Fixture {
        env: TestEnv,
        controller: Controller<Handle>,
    }

    impl Fixture {
        fn new(subnqn: &str) -> Self {
            let mut env = TestEnv::new();
            let controller = enabled(&mut env, subnqn);
            Self { env, controller }
        }

        fn log(&mut self, lid: u8, len: u32, lpo: u64) -> Result<Vec<u8>, Status> {
            let sqe = get_log(lid, len, lpo, true);
            let data = read(&mut self.env, &mut self.controller, &sqe);
            data.inspect(|data| assert_eq!(data.len(), len as usize))
        }
    }

    const INVALID: Result<Vec<u8>, Status> = Err(Status::INVALID_FIELD.with_dnr());

    /// The log pages of an I/O controller and their sizes in bytes.
    const PAGES: [(u8, u32); 8] = [
        (0x00, 1024),
        (0x01, 1024),
        (0x02, 512),
        (0x03, 512),
        (0x04, 4096),
        (0x05, 4096),
        (0x12, 1024),
        (0x13, 4096),
    ];

    #[test]
    fn every_page_can_be_read_in_any_piece() {
        let mut fixture = Fixture::new(SUBNQN);
        for (lid, size) in PAGES {
            let whole = fixture.log(lid, size, 0).unwrap();
            for (lpo, len) in [(0, 4), (4, 8), (508, 4), (400, 112), (size - 4, 4)] {
                let piece = fixture.log(lid, len, lpo.into()).unwrap();
                let (from, len) = (lpo as usize, len as usize);
                assert_eq!(piece, whole[from..from + len], "{lid:#x} at {lpo}");
            }
            let longer = fixture.log(lid, size + 512, 0).unwrap();
            let (head, tail) = longer.split_at(size as usize);
            assert_eq!((head, tail), (&whole[..], &[0; 512][..]));
            let over_the_end = fixture.log(lid, 64, (size - 4).into()).unwrap();
            assert_eq!(over_the_end[..4], whole[size as usize - 4..]);
            assert_eq!(over_the_end[4..], [0; 60]);
        }
    }

    #[test]
    fn offsets_are_within_the_page_and_whole_dwords() {
        let mut fixture = Fixture::new(SUBNQN);
        for (lid, size) in PAGES {
            assert_eq!(fixture.log(lid, 4, size.into()), Ok(std::vec![0; 4]));
            for lpo in [u64::from(size) + 4, 1 << 32, 1 << 63, u64::MAX - 3] {
                assert_eq!(fixture.log(lid, 4, lpo), INVALID, "{lid:#x} at {lpo}");
            }
            for lpo in [1, 2, 3, 5, 6, 7] {
                assert_eq!(fixture.log(lid, 4, lpo), INVALID);
            }
        }
    }

    #[test]
    fn the_length_is_within_the_transfer_limit() {
        let mut fixture = Fixture::new(SUBNQN);
        assert!(fixture.log(0x02, 1 << 20, 0).is_ok());
        let invalid = Err(Status::INVALID_FIELD.with_dnr());
        let longer = get_log(0x02, (1 << 20) + 4, 0, true);
        assert_eq!(
            run(&mut fixture.env, &mut fixture.controller, &longer),
            invalid
        );
        let numd_max = sqe(&[(0, &[0x02, 0x40]), (40, &[2, 0, 0xFF, 0xFF, 0xFF, 0xFF])]);
        assert_eq!(
            run(&mut fixture.env, &mut fixture.controller, &numd_max),
            invalid
        );
    }

    #[test]
    fn no_page_is_read_by_index() {
        let mut fixture = Fixture::new(SUBNQN);
        let by_index = sqe(&[(0, &[0x02, 0x40]), (40, &[5, 0, 1]), (58, &[0x80])]);
        let refused = read(&mut fixture.env, &mut fixture.controller, &by_index);
        assert_eq!(refused, INVALID);
    }

    #[test]
    fn the_supported_pages_are_those_that_can_be_read() {
        let mut fixture = Fixture::new(SUBNQN);
        let supported = fixture.log(0x00, 1024, 0).unwrap();
        for lid in 0..=u8::MAX {
            let expected = PAGES.iter().any(|(page, _)| *page == lid);
            let entry = &supported[usize::from(lid) * 4..][..4];
            assert_eq!(entry, [u8::from(expected), 0, 0, 0], "{lid:#x}");
            match fixture.log(lid, 4, 0) {
                Ok(_) => assert!(expected, "{lid:#x}"),
                Err(status) => {
                    assert!(!expected, "{lid:#x}");
                    assert_eq!(status, Status::INVALID_LOG_PAGE.with_dnr());
                }
            }
        }
    }

    #[test]
    fn the_latest_error_comes_first() {
        let mut fixture = Fixture::new(SUBNQN);
        assert_eq!(fixture.log(0x01, 1024, 0), Ok(std::vec![0; 1024]));
        let read = sqe(&[
            (0, &[0x02, 0x40, 0x34, 0x12, 5]),
            (40, &[1, 2, 3, 4, 5, 6, 7, 8]),
        ]);
        let status = Status::LBA_OUT_OF_RANGE.with_dnr();
        fixture.controller.note_error(Qid(2), &read, status);
        let admin = sqe(&[(0, &[0x06, 0x40, 0x78, 0x56, 9]), (40, &[0xFF])]);
        fixture
            .controller
            .note_error(Qid(0), &admin, Status::INVALID_FIELD);
        let log = fixture.log(0x01, 1024, 0).unwrap();
        let (second, first) = (&log[..64], &log[64..128]);
        assert_eq!(first[..8], 1u64.to_le_bytes());
        assert_eq!(first[8..12], [2, 0, 0x34, 0x12], "SQID, CID");
        assert_eq!(first[12..16], [0x00, 0x81, 0xFF, 0xFF], "status, PEL");
        assert_eq!(first[16..24], [1, 2, 3, 4, 5, 6, 7, 8], "LBA");
        assert_eq!(
            first[24..32],
            [5, 0, 0, 0, 0, 3, 0, 0x02],
            "NSID, TRTYPE, OPC"
        );
        assert_eq!(first[63], 1);
        assert_eq!(second[..8], 2u64.to_le_bytes());
        assert_eq!(second[8..12], [0, 0, 0x78, 0x56]);
        assert_eq!(second[16..24], [0; 8], "no LBA");
        assert_eq!(log[128..], [0; 896]);
        assert_eq!(fixture.log(0x02, 512, 0).unwrap()[176], 2, "NEILE");
    }

    #[test]
    fn old_errors_are_forgotten() {
        let mut fixture = Fixture::new(SUBNQN);
        let command = sqe(&[(0, &[0xFF])]);
        for _ in 0..20 {
            let status = Status::INVALID_OPCODE;
            fixture.controller.note_error(Qid(0), &command, status);
        }
        let log = fixture.log(0x01, 1024, 0).unwrap();
        assert_eq!((log[0], log[15 * 64]), (20, 5));
    }

    #[test]
    fn health_is_the_controllers() {
        let mut fixture = Fixture::new(SUBNQN);
        let of = |nsid: u32| {
            sqe(&[
                (0, &[0x02, 0x40]),
                (4, &nsid.to_le_bytes()),
                (40, &[2, 0, 127]),
            ])
        };
        for nsid in [0, u32::MAX] {
            let health = read(&mut fixture.env, &mut fixture.controller, &of(nsid)).unwrap();
            assert_eq!((health[0], health[3]), (0, 100), "warnings, spare");
        }
        let refused = read(&mut fixture.env, &mut fixture.controller, &of(1));
        assert_eq!(refused, INVALID);
    }

    #[test]
    fn slot_1_has_the_firmware() {
        let mut fixture = Fixture::new(SUBNQN);
        let slots = fixture.log(0x03, 512, 0).unwrap();
        assert_eq!(slots[..16], *b"\x01\0\0\0\0\0\0\x001.0     ");
        assert!(slots[16..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn effects_name_the_commands() {
        let mut fixture = Fixture::new(SUBNQN);
        let log = fixture.log(0x05, 4096, 0).unwrap();
        let named = |table: &[u8]| -> Vec<usize> {
            let entries = table.chunks(4).enumerate();
            entries
                .filter(|(_, entry)| entry[0] & 1 == 1)
                .map(|(at, _)| at)
                .collect()
        };
        assert_eq!(named(&log[..1024]), [2, 6, 8, 9, 0xA, 0xC, 0x18]);
        assert_eq!(named(&log[1024..2048]), [0, 1, 2, 5, 8, 9, 0xC]);
        assert_eq!(log[1024 + 4..][..4], [0b11, 0, 0, 0], "Write: content");
        assert_eq!(log[1024 + 8..][..4], [0b01, 0, 0, 0], "Read");
        assert_eq!(log[8..12], [0b01, 0, 0x20, 0], "Get Log Page: controller");
        assert!(log[2048..].iter().all(|&byte| byte == 0));
        let zns = sqe(&[(0, &[0x02, 0x40]), (40, &[5, 0, 1]), (59, &[2])]);
        let refused = read(&mut fixture.env, &mut fixture.controller, &zns);
        assert_eq!(refused, INVALID);
    }

    #[test]
    fn a_change_of_namespaces_is_told_and_listed_until_read() {
        let mut fixture = Fixture::new(SUBNQN);
        let notices = sqe(&[(0, &[0x09, 0x40]), (40, &[0x0B]), (44, &[0, 1])]);
        run(&mut fixture.env, &mut fixture.controller, &notices).unwrap();
        let request = sqe(&[(0, &[0x0C, 0x40])]);
        let step = fixture.controller.command(7, &request, &mut fixture.env);
        assert_eq!(step, AdminStep::Held);
        assert_eq!(fixture.log(0x04, 4096, 0), Ok(std::vec![0; 4096]));
        fixture.env.catalog.generation += 1;
        let told = Some((7, Reply::success(0x04_00_02)));
        assert_eq!(fixture.controller.poll_event(&mut fixture.env), told);
        for _ in 0..2 {
            let list = fixture.log(0x04, 4096, 0).unwrap();
            assert_eq!(
                list[..8],
                [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0],
                "RAE keeps it"
            );
        }
        let last = get_log(0x04, 4096, 0, false);
        let list = read(&mut fixture.env, &mut fixture.controller, &last).unwrap();
        assert_eq!(list[..4], [0xFF; 4]);
        assert_eq!(fixture.log(0x04, 4096, 0), Ok(std::vec![0; 4096]));
    }

    #[test]
    fn a_discovery_controller_has_one_page() {
        let mut fixture = Fixture::new(Nqn::DISCOVERY);
        for lid in 0..=u8::MAX {
            match fixture.log(lid, 4, 0) {
                Ok(_) => assert_eq!(lid, 0x70),
                Err(status) => assert_eq!(status, Status::INVALID_LOG_PAGE.with_dnr()),
            }
        }
    }
}
