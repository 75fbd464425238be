//! `nvmf get-feature` and `nvmf set-feature`.
use std::path::PathBuf;

use anyhow::Context;
use clap::ArgAction;
use nvmf_core::wire::feature::*;
use nvmf_core::wire::ids::{Cid, Nsid};
use nvmf_core::wire::sqe::{AdminOpcode, Sqe};
use nvmf_core::wire::tree::Tree;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::Payload;
use serde_json::json;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::identify::RawArgs;
use super::{OutputArgs, ScopeArgs, hex_dump, json, number, print, succeeded};
use crate::exit;

/// Show the value of a feature
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nvmf get-feature nvme+tcp://192.0.2.7/NQN --feature-id 7 --human-readable
  nvmf get-feature nvme+tcp://192.0.2.7/NQN --feature-id 6 --sel 3 --output json")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    scope: ScopeArgs,

    /// The feature
    #[arg(short, long, value_name = "FID", value_parser = number::<u8>)]
    feature_id: u8,

    /// Which value: 0 current, 1 default, 2 saved, 3 what is supported
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..8), default_value = "0")]
    sel: u8,

    /// Bytes of data that the value has [default: what the feature has, or 0]
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = number::<u32>)]
    data_len: Option<u32>,

    /// Command dword 11
    #[arg(short, long, value_name = "VALUE", value_parser = number::<u32>)]
    cdw11: Option<u32>,

    /// UUID index
    #[arg(short = 'U', long, value_name = "INDEX", value_parser = number::<u8>, default_value = "0")]
    uuid_index: u8,

    /// Explain the value
    #[arg(short = 'H', long, help_heading = "Output")]
    human_readable: bool,

    #[command(flatten)]
    raw: RawArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Set the value of a feature
#[derive(clap::Args)]
// -V is --value, as newer releases of nvme-cli have it.
#[command(disable_version_flag = true)]
#[command(after_help = "\
Examples:
  nvmf set-feature nvme+tcp://192.0.2.7/NQN --feature-id 0x0b --value 0x100
  nvmf set-feature nvme+tcp://192.0.2.7/NQN --feature-id 0x0e --data timestamp")]
pub(crate) struct SetArgs {
    #[command(flatten)]
    scope: ScopeArgs,

    /// The feature
    #[arg(short, long, value_name = "FID", value_parser = number::<u8>)]
    feature_id: u8,

    /// Its new value, command dword 11
    #[arg(short, short_alias = 'V', long, value_name = "VALUE", value_parser = number::<u32>)]
    value: Option<u32>,

    /// Command dword 12
    #[arg(short, long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    cdw12: u32,

    /// UUID index
    #[arg(short = 'U', long, value_name = "INDEX", value_parser = number::<u8>, default_value = "0")]
    uuid_index: u8,

    /// A file with the data of the value, all of it; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    data: Option<PathBuf>,

    /// Keep the value for good
    #[arg(short, long)]
    save: bool,

    /// As everywhere, but -v is --value here.
    #[arg(long, action = ArgAction::Count, help_heading = "Log")]
    verbose: u8,

    #[command(flatten)]
    output: OutputArgs,
}

/// SEL: the capabilities instead of a value.
const SUPPORTED: u8 = 3;

/// Prints the value.
pub(crate) fn get(args: &GetArgs) -> anyhow::Result<()> {
    let (controller, nsid) = args.scope.connect()?;
    let feature = FeatureId::from(args.feature_id);
    let has_data = args.sel != SUPPORTED;
    let len = match args.data_len {
        Some(len) => len as usize,
        None if has_data => data_len(feature),
        None => 0,
    };
    let mut sqe = command(AdminOpcode::GetFeatures, feature, nsid, args.uuid_index);
    sqe.cdw10 |= u32::from(args.sel) << 8;
    sqe.cdw11.set(args.cdw11.unwrap_or(match feature {
        // EXHID: no other is possible over a fabric.
        FeatureId::HostIdentifier => 1,
        _ => 0,
    }));
    let payload = match len {
        0 => Payload::Nothing,
        len => Payload::Read(Buffer::zeroed(len)),
    };
    let done = controller.admin(&sqe, payload)?;
    let done = succeeded(done, "Get Features", sqe.opcode)?;
    if args.raw.raw_binary {
        return print(done.data());
    }
    let (value, data) = (done.cqe.dw0(), done.data());
    let explained = match args.sel {
        SUPPORTED => format!("capabilities: {}\n", FeatureCapabilities::from_bits(value)),
        _ => explain(feature, value, data).unwrap_or_default(),
    };
    let select = match args.sel {
        0 => "current",
        1 => "default",
        2 => "saved",
        SUPPORTED => "supported",
        _ => "reserved",
    };
    let text = || {
        let mut text = format!(
            "feature {:02x}h {}, {select}: {value:#010x}\n",
            args.feature_id,
            feature.name()
        );
        text += &hex_dump(data, 0);
        if args.human_readable {
            text += &explained;
        }
        text
    };
    let json = || {
        json!({
            "feature": args.feature_id,
            "name": feature.name(),
            "select": select,
            "value": value,
            "data": json::hex(data),
            "fields": json::of_lines(&explained),
        })
    };
    args.output.print(text, json)
}

/// Sets the value.
pub(crate) fn set(args: &SetArgs) -> anyhow::Result<()> {
    let feature = FeatureId::from(args.feature_id);
    let data = match &args.data {
        None => Vec::new(),
        Some(path) => super::transfer::read_file(path)
            .with_context(|| format!("cannot read {}", path.display()))?,
    };
    if data.is_empty() && data_len(feature) > 0 {
        return Err(exit::usage(format!(
            "the value of {feature} is data: name a file with --data"
        )));
    }
    let value = match args.value {
        None if data.is_empty() => {
            return Err(exit::usage(format!(
                "what value is {feature} to have? Say it with --value"
            )));
        }
        value => value.unwrap_or(0),
    };
    let (controller, nsid) = args.scope.connect()?;
    let mut sqe = command(AdminOpcode::SetFeatures, feature, nsid, args.uuid_index);
    sqe.cdw10 |= u32::from(args.save) << 31;
    sqe.cdw11.set(value);
    sqe.cdw12.set(args.cdw12);
    let payload = match data.len() {
        0 => Payload::Nothing,
        len => {
            let mut buffer = Buffer::zeroed(len);
            buffer.as_mut().copy_from_slice(&data);
            Payload::Write(buffer)
        }
    };
    let done = controller.admin(&sqe, payload)?;
    let done = succeeded(done, "Set Features", sqe.opcode)?;
    let result = done.cqe.dw0();
    let json = || {
        json!({
            "feature": args.feature_id,
            "name": feature.name(),
            "value": value,
            "result": result,
        })
    };
    args.output.print(String::new, json)
}

fn command(opcode: AdminOpcode, feature: FeatureId, nsid: Option<Nsid>, uuid_index: u8) -> Sqe {
    let mut sqe = Sqe::new(opcode.code(), Cid(0)).with_nsid(nsid.unwrap_or(Nsid(0)));
    sqe.cdw10.set(feature.code().into());
    sqe.cdw14.set((uuid_index & 0x7F).into());
    sqe
}

/// Bytes of data that a feature's value has.
fn data_len(feature: FeatureId) -> usize {
    match feature {
        FeatureId::LbaRangeType => 4096,
        FeatureId::AutonomousPower => 256,
        FeatureId::Timestamp => 8,
        FeatureId::PredictableLatency | FeatureId::HostBehavior => 512,
        FeatureId::HostIdentifier => 16,
        _ => 0,
    }
}

/// A field a line, of a feature that is known.
fn explain(feature: FeatureId, value: u32, data: &[u8]) -> Option<String> {
    macro_rules! dword {
        ($Name:ident) => {
            $Name::from_dword(value).tree().to_string()
        };
    }
    Some(match feature {
        FeatureId::Arbitration => dword!(Arbitration),
        FeatureId::PowerManagement => dword!(PowerManagement),
        FeatureId::LbaRangeType => {
            let ranges = usize::from(LbaRanges::from_dword(value).num);
            let (all, _) = <[LbaRangeType]>::ref_from_prefix(data).ok()?;
            let lines = all
                .iter()
                .take(ranges)
                .map(|range| range.tree().to_string());
            lines.collect()
        }
        FeatureId::TemperatureThreshold => dword!(TemperatureThreshold),
        FeatureId::ErrorRecovery => dword!(ErrorRecovery),
        FeatureId::VolatileWriteCache => dword!(VolatileWriteCache),
        FeatureId::NumberOfQueues => dword!(NumberOfQueues),
        FeatureId::InterruptCoalescing => dword!(InterruptCoalescing),
        FeatureId::InterruptVector => dword!(InterruptVector),
        FeatureId::WriteAtomicity => dword!(WriteAtomicity),
        FeatureId::AsyncEventConfig => {
            format!("events: {}\n", AsyncEventConfig::from_bits(value))
        }
        FeatureId::AutonomousPower => dword!(AutonomousPower),
        FeatureId::HostMemoryBuffer => dword!(HostMemoryBuffer),
        FeatureId::Timestamp => tree::<Timestamp>(data)?,
        FeatureId::KeepAliveTimer => format!("kato: {value} ms\n"),
        FeatureId::ThermalManagement => dword!(ThermalManagement),
        FeatureId::NonOperationalPower => dword!(NonOperationalPower),
        FeatureId::ReadRecoveryLevel => dword!(ReadRecovery),
        FeatureId::PredictableLatency => dword!(PredictableLatency),
        FeatureId::PredictableLatencyWindow => dword!(PredictableLatencyWindow),
        FeatureId::LbaStatusInterval => dword!(LbaStatusInterval),
        FeatureId::HostBehavior => tree::<HostBehavior>(data)?,
        FeatureId::SanitizeConfig => dword!(SanitizeConfig),
        FeatureId::EnduranceGroupEvents => dword!(EnduranceEvents),
        FeatureId::CommandSetProfile => dword!(CommandSetProfile),
        FeatureId::SpinupControl => dword!(SpinupControl),
        FeatureId::PowerLossSignaling => dword!(PowerLossSignaling),
        FeatureId::FlexibleDataPlacement => dword!(FlexibleDataPlacement),
        FeatureId::SoftwareProgress => dword!(SoftwareProgress),
        FeatureId::HostIdentifier => {
            let bytes = data.try_into().ok()?;
            format!("hostid: {}\n", uuid::Uuid::from_bytes(bytes))
        }
        FeatureId::ReservationMask => {
            format!("masked: {}\n", ReservationMask::from_bits(value))
        }
        FeatureId::ReservationPersistence => dword!(ReservationPersistence),
        FeatureId::NamespaceProtection => dword!(NamespaceProtection),
        FeatureId::BootPartitionProtection => dword!(BootPartitionProtection),
        _ => return None,
    })
}

fn tree<T: Tree + FromBytes + KnownLayout + Immutable + Unaligned>(data: &[u8]) -> Option<String> {
    let (data, _) = T::ref_from_prefix(data).ok()?;
    Some(data.tree().to_string())
}
