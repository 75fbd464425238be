//! `nvmf id-ctrl` and `nvmf id-ns`.
use nvmf_core::wire::identify::{IdentifyController, IdentifyNamespace, LbaFormat};
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::tree::Tree;
use nvmf_tcp::std::host::Error;
use serde_json::{Value, json};
use zerocopy::IntoBytes;

use super::json::{Object, hex, numbers};
use super::{NamespaceArgs, OutputArgs, SubsystemArgs, print};

/// Show what a controller says of itself (Identify Controller)
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nvmf id-ctrl nvme+tcp://192.0.2.7/NQN
  nvmf id-ctrl nvme+tcp://192.0.2.7/NQN --output json")]
pub(crate) struct ControllerArgs {
    #[command(flatten)]
    subsystem: SubsystemArgs,

    #[command(flatten)]
    raw: RawArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Show what a controller says of a namespace (Identify Namespace)
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nvmf id-ns nvme+tcp://192.0.2.7/NQN?nsid=1
  nvmf id-ns nvme+tcp://192.0.2.7/NQN --namespace-id 1 --output json")]
pub(crate) struct NamespaceIdArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,

    #[command(flatten)]
    raw: RawArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Whether to print what came as it is.
#[derive(clap::Args)]
pub(super) struct RawArgs {
    /// Print the bytes as they came
    #[arg(short = 'b', long, conflicts_with = "output", help_heading = "Output")]
    pub(super) raw_binary: bool,
}

/// A field a line.
pub(crate) fn controller(args: &ControllerArgs) -> anyhow::Result<()> {
    let identify = args.subsystem.connect()?.identify()?;
    if args.raw.raw_binary {
        return print(identify.as_bytes());
    }
    let (text, json) = (
        || identify.tree().to_string(),
        || controller_json(&identify),
    );
    args.output.print(text, json)
}

/// A field a line.
pub(crate) fn namespace(args: &NamespaceIdArgs) -> anyhow::Result<()> {
    let (controller, nsid) = args.namespace.connect()?;
    // Of a namespace that is not there, controllers say zeroes.
    let active = controller.active_namespaces()?;
    if nsid != Nsid::ALL && !active.contains(&nsid) {
        return Err(Error::NoSuchNamespace {
            nsid: nsid.0,
            active: active.into_iter().map(|nsid| nsid.0).collect(),
        }
        .into());
    }
    let identify = controller.identify_namespace(nsid)?;
    if args.raw.raw_binary {
        return print(identify.as_bytes());
    }
    let (text, json) = (|| identify.tree().to_string(), || namespace_json(&identify));
    args.output.print(text, json)
}

fn controller_json(id: &IdentifyController) -> Value {
    let mut object = Object::new();
    numbers!(id => object; vid, ssvid);
    for (name, text) in [
        ("sn", id.sn.to_string()),
        ("mn", id.mn.to_string()),
        ("fr", id.fr.to_string()),
    ] {
        object.insert(name.to_owned(), text.into());
    }
    numbers!(id => object;
        rab, ieee, cmic, mdts, cntlid, ver, rtd3r, rtd3e, oaes, ctratt, rrls, bpcap, nssl, plsi,
        cntrltype,
    );
    let fguid = uuid::Uuid::from_bytes(id.fguid).to_string();
    object.insert("fguid".to_owned(), fguid.into());
    numbers!(id => object;
        crdt1, crdt2, crdt3, crcap, nvmsr, vwci, mec, oacs, acl, aerl, frmw, lpa, elpe, npss, avscc,
        apsta, wctemp, cctemp, mtfa, hmpre, hmmin, tnvmcap, unvmcap, rpmbs, edstt, dsto, fwug, kas,
        hctma, mntmt, mxtmt, sanicap, hmminds, hmmaxd, nsetidmax, endgidmax, anatt, anacap,
        anagrpmax, nanagrpid, pels, domainid, kpioc, mptfawr, megcap, tmpthha, cqt, sqes, cqes,
        maxcmd, nn, oncs, fuses, fna, vwc, awun, awupf, icsvscc, nwpc, acwu, ocfs, sgls, mnan,
        maxdna, maxcna, oaqd, rhiri, hirt, cmmrtd, nmmrtd, minmrtg, maxmrtg, trattr, mcudmq,
        mnsudmq, mcmr, nmcmr, mcdqpc,
    );
    let subnqn = id.subsystem().map(|nqn| nqn.to_string());
    object.insert("subnqn".to_owned(), subnqn.unwrap_or_default().into());
    numbers!(id => object; ioccsz, iorcsz, icdoff, fcatt, msdbd, ofcs, dctype);
    let states = id.power_states().iter().map(|state| {
        let mut object = Object::new();
        // 0 not reported, 1 for 100 uW, 2 for 10 mW.
        let scale = |byte: u8| Value::from(byte >> 6);
        numbers!(state => object; mp as "max_power");
        object.insert("max_power_scale".to_owned(), (state.flags & 1).into());
        let non_operational = u8::from(state.non_operational());
        object.insert("non-operational_state".to_owned(), non_operational.into());
        numbers!(state => object;
            enlat as "entry_lat", exlat as "exit_lat", rrt as "read_tput", rrl as "read_lat",
            rwt as "write_tput", rwl as "write_lat", idlp as "idle_power",
        );
        object.insert("idle_scale".to_owned(), scale(state.ips));
        numbers!(state => object; actp as "active_power");
        object.insert("active_power_work".to_owned(), (state.apws & 7).into());
        object.insert("active_scale".to_owned(), scale(state.apws));
        Value::Object(object)
    });
    object.insert("psds".to_owned(), states.collect());
    object.into()
}

fn namespace_json(id: &IdentifyNamespace) -> Value {
    let mut object = Object::new();
    numbers!(id => object;
        nsze, ncap, nuse, nsfeat, nlbaf, flbas, mc, dpc, dps, nmic, rescap, fpi, dlfeat, nawun,
        nawupf, nacwu, nabsn, nabo, nabspf, noiob, nvmcap, npwg, npwa, npdg, npda, nows, mssrl, mcl,
        msrc, kpios, nulbaf, kpiodaag, anagrpid, nsattr, nvmsetid, endgid,
    );
    object.insert("nguid".to_owned(), hex(&id.nguid));
    object.insert("eui64".to_owned(), hex(&id.eui64));
    let in_use = usize::from(id.format_index());
    let format = |(index, format): (usize, &LbaFormat)| {
        json!({
            "lbaf": index,
            "ms": format.ms.get(),
            "ds": format.lbads,
            "rp": format.performance().code(),
            "in_use": u8::from(index == in_use),
        })
    };
    let formats = id.formats().iter().enumerate().map(format);
    object.insert("lbafs".to_owned(), formats.collect());
    object.into()
}
