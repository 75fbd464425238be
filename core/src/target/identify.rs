//! Identify data (NVMe Base 2.1, section 5.1.13; NVM Command Set 1.1, section
//! 4.1.5).
use core::ops::Deref;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::admin::ABORT_LIMIT;
use super::controller::{CQE_SHIFT, Controller, SQE_SHIFT, VERSION};
use super::{
    Catalog, ControllerState, Env, Limits, Listener, Namespace, Subsystem, SubsystemKind, aer,
    error_log, keep_alive,
};
use crate::command::admin::Identify;
use crate::wire::discovery::Trtype;
use crate::wire::identify::{
    Cmic, Cns, CommandSetCombinations, CommandSets, ControllerType, Ctratt, DeallocatedRead,
    DescriptorWriter, DiscoveryType, Dlfeat, FlushBehavior, Frmw, IdentifyController,
    IdentifyNamespace, IndependentNamespace, IndependentNsfeat, LbaFormat, Lpa,
    NamespaceDescriptor, NamespaceList, Nidt, Nmic, Nsattr, Nsfeat, Nstat, Oaes, Ofcs, Oncs,
    QueueEntrySizes, SglSupport, Sgls, Vwc,
};
use crate::wire::ids::Nsid;
use crate::wire::status::Status;
use crate::wire::text::Padded;

/// Bytes of every Identify data structure.
pub(super) const SIZE: u32 = 4096;

/// NN: a valid NSID is not above it, and is inactive when it names no namespace.
/// Room for namespaces that are added while hosts are connected.
const NAMESPACES: u32 = 1024;

/// CSI of the NVM Command Set.
pub(super) const CSI_NVM: u8 = 0;

/// Fills `out`, which is all zero, with what `command` asks for.
pub(super) fn identify<C, E>(
    controller: &Controller<C>,
    command: &Identify,
    out: &mut [u8],
    env: &E,
) -> Result<(), Status>
where
    C: Deref<Target = ControllerState> + Clone,
    E: Env<Controller = C>,
{
    let state = &controller.state;
    let subsystem = env
        .catalog()
        .subsystem(state.subsystem)
        .ok_or(Status::INTERNAL_ERROR)?;
    if Cns::from(command.cns) == Cns::Controller {
        let id = view::<IdentifyController>(out)?;
        id.cntlid.set(state.cntlid.into());
        describe_controller(id, &subsystem, &env.limits(), &env.local_listener());
        return Ok(());
    }
    match subsystem.kind {
        SubsystemKind::Nvm => identify_namespaces(&subsystem, command, out),
        SubsystemKind::Discovery => Err(Status::INVALID_FIELD),
    }
}

fn identify_namespaces(
    subsystem: &Subsystem<'_>,
    command: &Identify,
    out: &mut [u8],
) -> Result<(), Status> {
    let (cns, nsid) = (Cns::from(command.cns), command.nsid);
    if has_csi(cns) && command.csi != CSI_NVM {
        return Err(Status::INVALID_FIELD);
    }
    match cns {
        Cns::Namespace | Cns::AllocatedNamespace => {
            if let Some(namespace) = find(subsystem, nsid)? {
                describe_namespace(view(out)?, namespace);
            }
        }
        Cns::ActiveNamespaces
        | Cns::AllocatedNamespaces
        | Cns::CommandSetActiveNamespaces
        | Cns::CommandSetAllocatedNamespaces => list_namespaces(view(out)?, subsystem, nsid)?,
        Cns::NamespaceDescriptors => {
            let namespace = find(subsystem, nsid)?.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
            describe_ids(out, namespace)?;
        }
        // Zeroes: no protection information.
        Cns::CommandSetNamespace | Cns::CommandSetAllocatedNamespace => {
            find(subsystem, nsid)?;
        }
        // Zeroes: no limits but MDTS.
        Cns::CommandSetController => {}
        Cns::IndependentNamespace | Cns::IndependentAllocatedNamespace => {
            if let Some(namespace) = find(subsystem, nsid)? {
                describe_independently(view(out)?, namespace);
            }
        }
        Cns::CommandSets => {
            let [combination, ..] = &mut view::<CommandSetCombinations>(out)?.iocsc;
            *combination = CommandSets::NVM;
        }
        _ => return Err(Status::INVALID_FIELD),
    }
    Ok(())
}

/// Whether command dword 11 of an Identify with this CNS has a CSI.
fn has_csi(cns: Cns) -> bool {
    matches!(
        cns,
        Cns::CommandSetNamespace
            | Cns::CommandSetController
            | Cns::CommandSetActiveNamespaces
            | Cns::CommandSetAllocatedNamespaces
            | Cns::CommandSetAllocatedNamespace
    )
}

/// The namespace of an NSID; `None` if the NSID is valid but inactive.
///
/// # Errors
/// Invalid Namespace or Format (Base 2.1, 3.2.1).
fn find<'a>(subsystem: &Subsystem<'a>, nsid: Nsid) -> Result<Option<&'a Namespace>, Status> {
    if (1..=largest_nsid(subsystem)).contains(&nsid.0) {
        Ok(subsystem.namespace(nsid))
    } else {
        Err(Status::INVALID_NAMESPACE_OR_FORMAT)
    }
}

fn largest_nsid(subsystem: &Subsystem<'_>) -> u32 {
    match subsystem.namespaces {
        [.., last] => last.nsid.0.max(NAMESPACES),
        [] => NAMESPACES,
    }
}

fn describe_controller(
    id: &mut IdentifyController,
    subsystem: &Subsystem<'_>,
    limits: &Limits,
    listener: &Listener<'_>,
) {
    id.sn = Padded::new(subsystem.serial);
    id.mn = Padded::new(subsystem.model);
    id.fr = Padded::new(subsystem.firmware);
    id.mdts = mdts(limits.transfer);
    id.ver.set(VERSION.0);
    id.ctratt = Ctratt::HIDS | Ctratt::TBKAS;
    id.aerl = zero_based(aer::LIMIT);
    id.kas.set(keep_alive::GRANULARITY_UNITS);
    id.maxcmd
        .set(u16::try_from(limits.io_queue_entries).unwrap_or(u16::MAX));
    id.sgls = sgls(listener.trtype);
    id.subnqn = subsystem.nqn.to_field();
    id.ioccsz.set(capsule_units(limits.inline_data));
    id.iorcsz.set(1);
    id.msdbd = 1;
    match subsystem.kind {
        SubsystemKind::Nvm => describe_io_controller(id, subsystem),
        SubsystemKind::Discovery => {
            id.cntrltype = ControllerType::Discovery.code();
            id.dctype = DiscoveryType::Direct.code();
            id.oaes = Oaes::DLPCN;
            id.lpa = Lpa::LPEDS;
        }
    }
}

fn describe_io_controller(id: &mut IdentifyController, subsystem: &Subsystem<'_>) {
    id.cntrltype = ControllerType::Io.code();
    id.cmic = Cmic::MPORTS | Cmic::MCTRS;
    id.oaes = Oaes::NSAN;
    id.acl = zero_based(ABORT_LIMIT);
    id.frmw = Frmw::FFSRO.with_slots(1);
    id.lpa = Lpa::CSES | Lpa::LPEDS | Lpa::MLPS;
    id.elpe = zero_based(error_log::ENTRIES);
    id.sqes = entry_sizes(SQE_SHIFT);
    id.cqes = entry_sizes(CQE_SHIFT);
    id.nn.set(largest_nsid(subsystem));
    id.mnan.set(largest_nsid(subsystem));
    id.oncs =
        Oncs::NVMCMPS | Oncs::NVMDSMSV | Oncs::NVMWZSV | Oncs::SSFS | Oncs::TSS | Oncs::NVMVFYS;
    id.vwc = Vwc::default().with_flush_behavior(FlushBehavior::Broadcast);
    if has_volatile_cache(subsystem) {
        id.vwc |= Vwc::VWCP;
    }
    id.ofcs = Ofcs::DCS;
}

/// Whether Flush does something for any namespace.
pub(super) fn has_volatile_cache(subsystem: &Subsystem<'_>) -> bool {
    subsystem
        .namespaces
        .iter()
        .any(|namespace| namespace.geometry.volatile_cache)
}

fn describe_namespace(id: &mut IdentifyNamespace, namespace: &Namespace) {
    let geometry = &namespace.geometry;
    id.nsze.set(geometry.blocks);
    id.ncap.set(geometry.blocks);
    id.nuse.set(geometry.blocks);
    id.nvmcap.set(geometry.bytes().into());
    id.nmic = Nmic::SHRNS;
    id.nsattr = nsattr(namespace);
    if geometry.deallocate_zeroes {
        id.dlfeat = Dlfeat::WZDS.with_read_behavior(DeallocatedRead::Zeroes);
    }
    if let Some(optimal) = geometry.optimal_blocks.checked_sub(1) {
        let optimal = u16::try_from(optimal).unwrap_or(u16::MAX);
        id.nsfeat = Nsfeat::OPTPERF;
        for field in [
            &mut id.npwg,
            &mut id.npwa,
            &mut id.npdg,
            &mut id.npda,
            &mut id.nows,
        ] {
            field.set(optimal);
        }
    }
    id.nguid = namespace.nguid;
    id.eui64 = namespace.eui64;
    let [format, ..] = &mut id.lbaf;
    *format = LbaFormat::new(geometry.block_shift, 0);
}

fn describe_independently(id: &mut IndependentNamespace, namespace: &Namespace) {
    if !namespace.geometry.volatile_cache {
        id.nsfeat = IndependentNsfeat::VWCNP;
    }
    id.nmic = Nmic::SHRNS;
    id.nsattr = nsattr(namespace);
    id.nstat = Nstat::NRDY;
}

fn nsattr(namespace: &Namespace) -> Nsattr {
    if namespace.geometry.read_only {
        Nsattr::CWP
    } else {
        Nsattr::default()
    }
}

fn describe_ids(out: &mut [u8], namespace: &Namespace) -> Result<(), Status> {
    let mut list = DescriptorWriter::new(out);
    for id in [
        NamespaceDescriptor::Uuid(namespace.uuid),
        NamespaceDescriptor::Nguid(namespace.nguid),
        NamespaceDescriptor::Eui64(namespace.eui64),
        NamespaceDescriptor::Csi(CSI_NVM),
    ] {
        let given = id.nidt() == Nidt::Csi || id.nid().iter().any(|&byte| byte != 0);
        if given && !list.push(&id) {
            return Err(Status::INTERNAL_ERROR);
        }
    }
    Ok(())
}

/// NSIDs above `nsid`, ascending.
fn list_namespaces(
    list: &mut NamespaceList,
    subsystem: &Subsystem<'_>,
    nsid: Nsid,
) -> Result<(), Status> {
    // There can be no NSID above these (Base 2.1, 5.1.13.2.2).
    if nsid.0 >= 0xFFFF_FFFE {
        return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
    }
    let start = subsystem.namespaces.partition_point(|n| n.nsid <= nsid);
    let above = subsystem.namespaces.get(start..).unwrap_or_default();
    for (to, namespace) in list.nsid.iter_mut().zip(above) {
        to.set(namespace.nsid.into());
    }
    Ok(())
}

/// Bytes as MDTS has them: log2 of 4096-byte pages.
fn mdts(transfer: u32) -> u8 {
    // 20 at most: 31 - 12.
    u8::try_from(transfer.max(4096).ilog2().saturating_sub(12)).unwrap_or(0)
}

/// A command capsule with `inline_data` bytes, in 16-byte units.
fn capsule_units(inline_data: u32) -> u32 {
    const SQE_UNITS: u32 = 4;
    (inline_data / 16).saturating_add(SQE_UNITS)
}

/// Descriptors of the transport, or an offset into the capsule.
fn sgls(trtype: u8) -> Sgls {
    let transport = match Trtype::from(trtype) {
        Trtype::Rdma => Sgls::KSDBD,
        _ => Sgls::TSDBD,
    };
    (transport | Sgls::ADDROFF).with_support(SglSupport::AnyAlignment)
}

/// Entries of one size, log2 of its bytes.
fn entry_sizes(shift: u8) -> u8 {
    let (min, max) = (shift, shift);
    QueueEntrySizes { min, max }.raw()
}

fn zero_based(count: usize) -> u8 {
    u8::try_from(count.saturating_sub(1)).unwrap_or(u8::MAX)
}

/// The structure at the start of `out`.
fn view<T: FromBytes + IntoBytes + KnownLayout + Immutable>(
    out: &mut [u8],
) -> Result<&mut T, Status> {
    T::mut_from_prefix(out)
        .map(|(view, _)| view)
        .map_err(|_| Status::SGL_DATA_LENGTH_INVALID)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::super::test_env::{Handle, SUBNQN, TestEnv, enabled, namespace, read, sqe};
    use super::*;
    use crate::wire::ids::Nqn;

    fn request(cns: u8, nsid: u32, csi: u8) -> crate::wire::sqe::Sqe {
        sqe(&[
            (0, &[0x06, 0x40]),
            (4, &nsid.to_le_bytes()),
            (40, &[cns]),
            (47, &[csi]),
        ])
    }

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

        fn identify(&mut self, cns: u8, nsid: u32) -> Result<Vec<u8>, Status> {
            self.identify_csi(cns, nsid, 0)
        }

        fn identify_csi(&mut self, cns: u8, nsid: u32, csi: u8) -> Result<Vec<u8>, Status> {
            let data = read(
                &mut self.env,
                &mut self.controller,
                &request(cns, nsid, csi),
            );
            data.inspect(|data| assert_eq!(data.len(), 4096))
        }
    }

    #[test]
    fn an_io_controller_says_what_it_can() {
        let mut fixture = Fixture::new(SUBNQN);
        let id = fixture.identify(0x01, 0).unwrap();
        assert_eq!(&id[4..24], b"S0001               ");
        assert_eq!(&id[24..33], b"test disk");
        assert_eq!(&id[64..72], b"1.0     ");
        assert_eq!(id[76], 0b0011, "CMIC");
        assert_eq!(id[77], 8, "MDTS: 2^8 x 4 KiB");
        assert_eq!(&id[78..80], [1, 0], "CNTLID");
        assert_eq!(&id[80..84], [0, 0, 2, 0], "VER");
        assert_eq!(&id[92..96], [0, 1, 0, 0], "OAES");
        assert_eq!(&id[96..100], [0x41, 0, 0, 0], "CTRATT");
        assert_eq!(id[111], 1, "CNTRLTYPE");
        assert_eq!(&id[256..258], [0, 0], "OACS");
        assert_eq!((id[258], id[259]), (3, 3), "ACL, AERL");
        assert_eq!(id[260], 0b0011, "FRMW");
        assert_eq!(id[261], 0b10_0110, "LPA");
        assert_eq!(id[262], 15, "ELPE");
        assert_eq!(&id[320..322], [10, 0], "KAS");
        assert_eq!((id[512], id[513]), (0x66, 0x44), "SQES, CQES");
        assert_eq!(&id[514..516], [128, 0], "MAXCMD");
        assert_eq!(&id[516..520], [0, 4, 0, 0], "NN");
        assert_eq!(&id[520..522], [0b1101_1101, 0], "ONCS");
        assert_eq!(&id[522..524], [0, 0], "FUSES");
        assert_eq!(id[525], 0b111, "VWC");
        assert_eq!(&id[536..540], [1, 0, 0x30, 0], "SGLS");
        assert_eq!(&id[540..544], [0, 4, 0, 0], "MNAN");
        assert_eq!(&id[768..][..SUBNQN.len()], SUBNQN.as_bytes());
        assert_eq!(&id[1792..1796], [4, 4, 0, 0], "IOCCSZ: (64 + 16384) / 16");
        assert_eq!(&id[1796..1800], [1, 0, 0, 0], "IORCSZ");
        assert_eq!(&id[1800..1804], [0, 0, 0, 1], "ICDOFF, FCATT, MSDBD");
        assert_eq!(&id[1804..1807], [1, 0, 0], "OFCS, DCTYPE");
    }

    #[test]
    fn without_a_cache_there_is_none() {
        let mut fixture = Fixture::new(SUBNQN);
        for namespace in &mut fixture.env.catalog.subsystems[1].namespaces {
            namespace.geometry.volatile_cache = false;
        }
        assert_eq!(fixture.identify(0x01, 0).unwrap()[525], 0b110);
    }

    #[test]
    fn the_transport_has_its_descriptors_and_limits() {
        let mut fixture = Fixture::new(SUBNQN);
        fixture.env.local.trtype = 1;
        for (transfer, mdts) in [(4096, 0), (8192, 1), (1 << 31, 19)] {
            fixture.env.limits.transfer = transfer;
            fixture.env.limits.inline_data = 0;
            let id = fixture.identify(0x01, 0).unwrap();
            assert_eq!(id[77], mdts);
            assert_eq!(&id[536..540], [0b101, 0, 0x10, 0]);
            assert_eq!(id[1792], 4);
        }
    }

    #[test]
    fn a_discovery_controller_says_little() {
        let mut fixture = Fixture::new(Nqn::DISCOVERY);
        let id = fixture.identify(0x01, 0).unwrap();
        assert_eq!(id[111], 2, "CNTRLTYPE");
        assert_eq!(&id[92..96], [0, 0, 0, 0x80], "OAES");
        assert_eq!(
            &id[768..][..Nqn::DISCOVERY.len()],
            Nqn::DISCOVERY.as_bytes()
        );
        assert_eq!(id[1806], 1, "DCTYPE");
        assert_eq!((id[512], id[513], id[516]), (0, 0, 0), "SQES, CQES, NN");
        assert_eq!((id[520], id[525], id[262]), (0, 0, 0), "ONCS, VWC, ELPE");
        for cns in (0..=0xFF).filter(|&cns| cns != 0x01) {
            let refused = fixture.identify(cns, 1).unwrap_err();
            assert_eq!(refused, Status::INVALID_FIELD.with_dnr());
        }
    }

    #[test]
    fn a_namespace_has_its_geometry() {
        let mut fixture = Fixture::new(SUBNQN);
        for cns in [0x00, 0x11] {
            let id = fixture.identify(cns, 5).unwrap();
            for field in [0..8, 8..16, 16..24] {
                assert_eq!(id[field], 65_536u64.to_le_bytes(), "NSZE, NCAP, NUSE");
            }
            assert_eq!(id[24], 1 << 4, "NSFEAT");
            assert_eq!((id[25], id[26]), (0, 0), "NLBAF, FLBAS");
            assert_eq!(id[30], 1, "NMIC");
            assert_eq!(id[33], 0b1001, "DLFEAT");
            assert_eq!(&id[48..64], (65_536u128 * 4096).to_le_bytes(), "NVMCAP");
            assert_eq!(&id[64..74], [15, 0, 15, 0, 15, 0, 15, 0, 15, 0]);
            assert_eq!(id[99], 0, "NSATTR");
            assert_eq!(&id[104..120], [0x22; 16], "NGUID");
            assert_eq!(&id[120..128], [0x33; 8], "EUI64");
            assert_eq!(&id[128..136], [0, 0, 12, 0, 0, 0, 0, 0], "LBAF");
        }
    }

    #[test]
    fn a_plain_namespace_claims_nothing() {
        let mut fixture = Fixture::new(SUBNQN);
        let geometry = &mut fixture.env.catalog.subsystems[1].namespaces[0].geometry;
        geometry.optimal_blocks = 0;
        geometry.deallocate_zeroes = false;
        geometry.read_only = true;
        geometry.volatile_cache = false;
        let id = fixture.identify(0x00, 1).unwrap();
        assert_eq!(
            (id[24], id[33], id[99]),
            (0, 0, 1),
            "NSFEAT, DLFEAT, NSATTR"
        );
        assert_eq!(id[64..74], [0; 10]);
        let id = fixture.identify(0x08, 1).unwrap();
        assert_eq!((id[0], id[1]), (1 << 5, 1), "NSFEAT: VWCNP, NMIC");
        assert_eq!(
            (id[8], id[14]),
            (1, 1),
            "NSATTR: write protected, NSTAT: ready"
        );
        let other = fixture.identify(0x08, 5).unwrap();
        assert_eq!((other[0], other[8]), (0, 0));
    }

    #[test]
    fn an_inactive_namespace_is_zero_and_an_invalid_one_an_error() {
        let mut fixture = Fixture::new(SUBNQN);
        let invalid = Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        for cns in [0x00, 0x05, 0x08, 0x11] {
            for inactive in [2, 1024] {
                assert_eq!(fixture.identify(cns, inactive), Ok(std::vec![0; 4096]));
            }
            for bad in [0, 1025, u32::MAX - 1, u32::MAX] {
                assert_eq!(fixture.identify(cns, bad), invalid, "{cns:#x} {bad}");
            }
        }
        for bad in [0, 2, u32::MAX] {
            assert_eq!(fixture.identify(0x03, bad), invalid);
        }
        fixture.env.catalog.subsystems[1]
            .namespaces
            .push(namespace(5000));
        assert!(fixture.identify(0x00, 5000).is_ok());
        assert_eq!(fixture.identify(0x00, 5001), invalid);
        assert_eq!(
            fixture.identify(0x01, 0).unwrap()[516..520],
            5000u32.to_le_bytes()
        );
    }

    #[test]
    fn a_namespace_is_known_by_its_ids() {
        let mut fixture = Fixture::new(SUBNQN);
        let list = fixture.identify(0x03, 1).unwrap();
        assert_eq!(&list[..4], [3, 16, 0, 0]);
        assert_eq!(&list[4..20], [0x11; 16]);
        assert_eq!(&list[20..24], [2, 16, 0, 0]);
        assert_eq!(&list[24..40], [0x22; 16]);
        assert_eq!(&list[40..44], [1, 8, 0, 0]);
        assert_eq!(&list[44..52], [0x33; 8]);
        assert_eq!(&list[52..58], [4, 1, 0, 0, 0, 0]);
        assert!(list[58..].iter().all(|&byte| byte == 0));
        let namespace = &mut fixture.env.catalog.subsystems[1].namespaces[0];
        namespace.nguid = [0; 16];
        namespace.eui64 = [0; 8];
        let list = fixture.identify(0x03, 1).unwrap();
        assert_eq!(&list[20..26], [4, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn lists_start_above_their_nsid() {
        let mut fixture = Fixture::new(SUBNQN);
        for cns in [0x02, 0x07, 0x10, 0x1A] {
            for (above, expected) in [(0, [1, 5]), (1, [5, 0]), (4, [5, 0]), (5, [0, 0])] {
                let list = fixture.identify(cns, above).unwrap();
                let [first, second] = expected.map(u32::to_le_bytes);
                assert_eq!((&list[..4], &list[4..8]), (&first[..], &second[..]));
                assert!(list[8..].iter().all(|&byte| byte == 0));
            }
            for bad in [u32::MAX - 1, u32::MAX] {
                let refused = fixture.identify(cns, bad).unwrap_err();
                assert_eq!(refused, Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
            }
        }
    }

    #[test]
    fn a_list_holds_1024_namespaces() {
        let mut fixture = Fixture::new(SUBNQN);
        fixture.env.catalog.subsystems[1].namespaces = (1..=1100).map(namespace).collect();
        let list = fixture.identify(0x02, 0).unwrap();
        assert_eq!(list[4092..], 1024u32.to_le_bytes());
        let rest = fixture.identify(0x02, 1024).unwrap();
        assert_eq!(rest[..4], 1025u32.to_le_bytes());
        assert_eq!(rest[76 * 4..][..4], [0; 4]);
    }

    #[test]
    fn the_nvm_command_set_is_the_only_one() {
        let mut fixture = Fixture::new(SUBNQN);
        assert_eq!(fixture.identify_csi(0x06, 0, 0), Ok(std::vec![0; 4096]));
        for cns in [0x05, 0x06, 0x07, 0x1A, 0x1B] {
            for csi in [1, 2, 0xFF] {
                let refused = fixture.identify_csi(cns, 1, csi).unwrap_err();
                assert_eq!(refused, Status::INVALID_FIELD.with_dnr());
            }
        }
        let sets = fixture.identify(0x1C, 0).unwrap();
        assert_eq!(sets[..16], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn other_structures_are_invalid() {
        let mut fixture = Fixture::new(SUBNQN);
        for cns in [
            0x04, 0x09, 0x0A, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x20, 0xFF,
        ] {
            let refused = fixture.identify(cns, 1).unwrap_err();
            assert_eq!(refused, Status::INVALID_FIELD.with_dnr(), "{cns:#x}");
        }
    }
}
