//! The discovery log (NVMe Base 2.1, section 5.1.12.3.1): every way to every
//! subsystem that the host may connect to.
//!
//! The log is never in memory as a whole: only the records that a
//! [`LogWindow`] shows are made.
use super::{Catalog, Env, Listener, Subsystem, SubsystemKind};
use crate::wire::discovery::{
    DiscoveryEntry, DiscoveryHeader, Eflags, RdmaCms, RdmaPrtype, RdmaQptype, Sectype, Subtype,
    Treq, Trtype, Tsas,
};
use crate::wire::ids::Nqn;
use crate::wire::log::LogWindow;

/// A record: a way to a subsystem.
struct Record<'a> {
    subtype: Subtype,
    subnqn: &'a Nqn,
    listener: Listener<'a>,
}

/// Writes the log that `host` sees, who asks the discovery subsystem `current`.
pub(super) fn write<E: Env>(log: &mut LogWindow<'_>, env: &E, current: &Subsystem<'_>, host: &Nqn) {
    let asqsz = env.limits().admin_queue_entries;
    let numrec = records(env, current, host).fold(0u64, |count, _| count.saturating_add(1));
    log.put(&DiscoveryHeader::new(env.catalog().generation(), numrec));
    for record in records(env, current, host) {
        if log.is_full() {
            break;
        }
        if log.shows(SIZE) {
            record.put(asqsz, log);
        } else {
            log.skip(SIZE);
        }
    }
}

/// Bytes of a record.
const SIZE: u64 = size_of::<DiscoveryEntry>() as u64;

/// The subsystem that is asked, then every other by every listener. In the
/// same order whenever the catalog's generation is the same.
fn records<'a, E: Env>(
    env: &'a E,
    current: &Subsystem<'a>,
    host: &'a Nqn,
) -> impl Iterator<Item = Record<'a>> {
    let catalog = env.catalog();
    let local = env.local_listener();
    let first = Record {
        subtype: Subtype::CurrentDiscovery,
        subnqn: current.nqn,
        listener: local,
    };
    let others = (0..)
        .map_while(|index| catalog.subsystem(index))
        .filter(|subsystem| subsystem.kind == SubsystemKind::Nvm && subsystem.allows(host))
        .flat_map(move |subsystem| {
            (0..)
                .map_while(|index| catalog.listener(index))
                .filter_map(move |listener| reachable(listener, local))
                .map(move |listener| Record {
                    subtype: Subtype::Nvm,
                    subnqn: subsystem.nqn,
                    listener,
                })
        });
    core::iter::once(first)
        .chain(others)
        .filter(|record| fits(&record.listener))
}

/// The listener as a host that came in by `local` reaches it: one that listens
/// on every address is at the address the host used, if that is of its family.
fn reachable<'a>(listener: Listener<'a>, local: Listener<'a>) -> Option<Listener<'a>> {
    let wildcard = matches!(listener.traddr, "0.0.0.0" | "::");
    if !wildcard {
        return Some(listener);
    }
    (listener.adrfam == local.adrfam).then_some(Listener {
        traddr: local.traddr,
        ..listener
    })
}

/// Whether the address has room in a record.
fn fits(listener: &Listener<'_>) -> bool {
    listener.traddr.len() <= 256 && listener.trsvcid.len() <= 32
}

impl Record<'_> {
    /// Adds the record's entry. A function of its own: the entry is on the stack.
    #[inline(never)]
    fn put(&self, asqsz: u16, log: &mut LogWindow<'_>) {
        let Listener {
            trtype,
            adrfam,
            traddr,
            trsvcid,
            portid,
        } = self.listener;
        let transport = (trtype.into(), adrfam.into());
        let Ok(mut entry) =
            DiscoveryEntry::new(transport, traddr, trsvcid, self.subtype, self.subnqn)
        else {
            return log.skip(SIZE);
        };
        entry.set_tsas(tsas(trtype.into()));
        entry.portid.set(portid);
        entry.asqsz.set(asqsz);
        // Secure channel "not specified": with "not required" beside the flow
        // control bit, nvme-cli knows no name for the field.
        entry.treq = Treq::default().with_disable_sq_flow_control(true).0;
        if self.subtype == Subtype::CurrentDiscovery {
            entry.eflags.set(Eflags::default().with_epcsd(true).0);
        }
        log.put(&entry);
    }
}

fn tsas(trtype: Trtype) -> Tsas {
    match trtype {
        Trtype::Tcp => Tsas::Tcp {
            sectype: Sectype::None,
        },
        Trtype::Rdma => Tsas::Rdma {
            qptype: RdmaQptype::Connected,
            prtype: RdmaPrtype::NotSpecified,
            cms: RdmaCms::RdmaCm,
            pkey: 0,
        },
        _ => Tsas::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::{String, ToString};
    use std::vec::Vec;

    use super::super::controller::Controller;
    use super::super::test_env::{
        HOSTNQN, Handle, SUBNQN, TestEnv, enabled, get_log, listener, read, run, sqe, subsystem,
    };
    use super::super::{AdminStep, Reply};
    use super::*;
    use crate::wire::status::Status;

    fn log(
        env: &mut TestEnv,
        controller: &mut Controller<Handle>,
        len: u32,
        lpo: u64,
    ) -> Result<Vec<u8>, Status> {
        read(env, controller, &get_log(0x70, len, lpo, true))
    }

    /// SUBTYPE, SUBNQN, TRADDR and TRSVCID of every record.
    fn records(env: &mut TestEnv, controller: &mut Controller<Handle>) -> Vec<String> {
        let header = log(env, controller, 1024, 0).unwrap();
        let numrec = u64::from_le_bytes(header[8..16].try_into().unwrap());
        let text = |field: &[u8]| {
            let text = String::from_utf8(field.to_vec()).unwrap();
            text.trim_end_matches(['\0', ' ']).to_string()
        };
        (1..=numrec)
            .map(|at| {
                let record = log(env, controller, 1024, at * 1024).unwrap();
                let (subtype, adrfam) = (record[2], record[1]);
                let subnqn = text(&record[256..512]);
                let (traddr, trsvcid) = (text(&record[512..768]), text(&record[32..64]));
                format!(
                    "{subtype} {subnqn} ipv{} {traddr} {trsvcid}",
                    adrfam * 2 + 2
                )
            })
            .collect()
    }

    #[test]
    fn the_log_has_the_subsystem_asked_and_each_other_by_each_listener() {
        let mut env = TestEnv::new();
        env.catalog.listeners.push(listener("fd00::1", "4421", 2));
        let mut controller = enabled(&mut env, Nqn::DISCOVERY);
        let header = log(&mut env, &mut controller, 1024, 0).unwrap();
        assert_eq!(header[..8], 10u64.to_le_bytes(), "GENCTR");
        assert_eq!(header[8..16], 3u64.to_le_bytes(), "NUMREC");
        assert!(header[16..].iter().all(|&byte| byte == 0));
        assert_eq!(
            records(&mut env, &mut controller),
            [
                "3 nqn.2014-08.org.nvmexpress.discovery ipv4 127.0.0.1 4420",
                "2 nqn.2014-08.org.example:disk ipv4 127.0.0.1 4420",
                "2 nqn.2014-08.org.example:disk ipv6 fd00::1 4421",
            ]
        );
        let first = log(&mut env, &mut controller, 1024, 1024).unwrap();
        assert_eq!(
            first[..12],
            [3, 1, 3, 0b100, 1, 0, 0xFF, 0xFF, 32, 0, 0b10, 0]
        );
        let third = log(&mut env, &mut controller, 1024, 3072).unwrap();
        assert_eq!(third[..12], [3, 2, 2, 0b100, 2, 0, 0xFF, 0xFF, 32, 0, 0, 0]);
        assert_eq!(third[768..1024], [0; 256], "TSAS: no security");
    }

    #[test]
    fn rdma_listeners_have_their_own_subtype() {
        let mut env = TestEnv::new();
        env.catalog.listeners[0].trtype = 1;
        let mut controller = enabled(&mut env, Nqn::DISCOVERY);
        let record = log(&mut env, &mut controller, 1024, 2048).unwrap();
        assert_eq!((record[0], &record[768..772]), (1, &[1, 1, 1, 0][..]));
    }

    #[test]
    fn any_piece_is_the_same_as_in_the_whole() {
        let mut env = TestEnv::new();
        for index in 0..20 {
            let nqn = format!("nqn.2014-08.org.example:{index}");
            let other = subsystem(&nqn, SubsystemKind::Nvm, &[1]);
            env.catalog.subsystems.push(other);
        }
        let mut controller = enabled(&mut env, Nqn::DISCOVERY);
        // A header, the subsystem asked, 21 others.
        let size = 23 * 1024;
        let whole = log(&mut env, &mut controller, size, 0).unwrap();
        for len in [4, 1020, 1024, 1028, 4096] {
            for lpo in (0..size - len).step_by(508) {
                let piece = log(&mut env, &mut controller, len, lpo.into()).unwrap();
                assert_eq!(piece, whole[lpo as usize..(lpo + len) as usize]);
            }
        }
        let tail = log(&mut env, &mut controller, 8, (size - 4).into()).unwrap();
        assert_eq!(tail[4..], [0; 4]);
        assert_eq!(
            log(&mut env, &mut controller, 4, size.into()),
            Ok(std::vec![0; 4])
        );
        let invalid = Err(Status::INVALID_FIELD.with_dnr());
        for lpo in [u64::from(size) + 4, 1 << 32, 1 << 63, u64::MAX - 3, 5, 6, 7] {
            assert_eq!(log(&mut env, &mut controller, 4, lpo), invalid);
        }
    }

    #[test]
    fn a_thousand_subsystems_fit_no_buffer_and_need_none() {
        let mut env = TestEnv::new();
        for index in 0..1000 {
            let nqn = format!("nqn.2014-08.org.example:{index}");
            let other = subsystem(&nqn, SubsystemKind::Nvm, &[]);
            env.catalog.subsystems.push(other);
        }
        let mut controller = enabled(&mut env, Nqn::DISCOVERY);
        let mut all = records(&mut env, &mut controller);
        assert_eq!(all.len(), 1002);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 1002);
    }

    #[test]
    fn a_host_sees_what_serves_it() {
        let mut env = TestEnv::new();
        let mut private = subsystem("nqn.private", SubsystemKind::Nvm, &[]);
        private.allowed_hosts = Some(std::vec!["nqn.other-host".parse().unwrap()]);
        env.catalog.subsystems.push(private);
        let mut ours = subsystem("nqn.ours", SubsystemKind::Nvm, &[]);
        ours.allowed_hosts = Some(std::vec![HOSTNQN.parse().unwrap()]);
        env.catalog.subsystems.push(ours);
        let other = subsystem("nqn.other-discovery", SubsystemKind::Discovery, &[]);
        env.catalog.subsystems.push(other);
        let mut controller = enabled(&mut env, Nqn::DISCOVERY);
        let seen = records(&mut env, &mut controller);
        assert_eq!(seen.len(), 3);
        assert!(seen[1].contains(SUBNQN) && seen[2].contains("nqn.ours"));
    }

    #[test]
    fn wildcard_listeners_are_where_the_host_came_in() {
        let mut env = TestEnv::new();
        env.catalog.listeners = std::vec![
            listener("0.0.0.0", "4420", 1),
            listener("::", "4421", 2),
            listener("192.0.2.1", "4422", 3),
        ];
        env.local = listener("192.0.2.7", "4420", 1);
        let mut controller = enabled(&mut env, Nqn::DISCOVERY);
        let seen = records(&mut env, &mut controller);
        let disk = "2 nqn.2014-08.org.example:disk";
        assert_eq!(
            seen[1..],
            [
                format!("{disk} ipv4 192.0.2.7 4420"),
                format!("{disk} ipv4 192.0.2.1 4422"),
            ]
        );
        env.local = listener("fd00::7", "4421", 2);
        let seen = records(&mut env, &mut controller);
        assert_eq!(
            seen[1..],
            [
                format!("{disk} ipv6 fd00::7 4421"),
                format!("{disk} ipv4 192.0.2.1 4422"),
            ]
        );
    }

    #[test]
    fn an_address_without_room_has_no_record() {
        let mut env = TestEnv::new();
        let long = "a".repeat(257);
        env.catalog.listeners.push(listener(&long, "4420", 2));
        env.catalog
            .listeners
            .push(listener("192.0.2.1", &"4".repeat(33), 3));
        let mut controller = enabled(&mut env, Nqn::DISCOVERY);
        assert_eq!(records(&mut env, &mut controller).len(), 2);
    }

    #[test]
    fn a_change_of_the_log_is_told_until_it_is_read() {
        let mut env = TestEnv::new();
        let mut controller = enabled(&mut env, Nqn::DISCOVERY);
        let notices = sqe(&[(0, &[0x09, 0x40]), (40, &[0x0B]), (47, &[0x80])]);
        run(&mut env, &mut controller, &notices).unwrap();
        let request = sqe(&[(0, &[0x0C, 0x40])]);
        for slot in 0..2 {
            let step = controller.command(slot, &request, &mut env);
            assert_eq!(step, AdminStep::Held);
        }
        env.catalog.generation += 1;
        let told = Reply::success(0x70_F0_02);
        assert_eq!(controller.poll_event(&mut env), Some((0, told)));
        env.catalog.generation += 1;
        assert_eq!(controller.poll_event(&mut env), None);
        log(&mut env, &mut controller, 1024, 0).unwrap();
        env.catalog.generation += 1;
        assert_eq!(controller.poll_event(&mut env), None, "RAE kept the event");
        read(&mut env, &mut controller, &get_log(0x70, 1024, 0, false)).unwrap();
        assert_eq!(controller.poll_event(&mut env), None);
        env.catalog.generation += 1;
        assert_eq!(controller.poll_event(&mut env), Some((1, told)));
    }
}
