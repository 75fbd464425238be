//! The log pages that are decoded: how long they are, and what they say.
use nvmf_core::wire::discovery::{DiscoveryEntry, DiscoveryHeader};
use nvmf_core::wire::feature::FeatureId;
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::log::{
    AnaLog, ChangedNamespaces, CommandEffect, CommandEffects, EnduranceGroup, ErrorInformation,
    FeatureEffect, FeatureEffects, FirmwareSlots, LogId, LogPageSupport, ReservationNotification,
    SmartHealth, SupportedLogPages,
};
use nvmf_core::wire::sqe::{AdminOpcode, IoOpcode};
use nvmf_core::wire::tree::Tree;
use nvmf_tcp::std::host::{Controller, Error};
use serde_json::{Value, json};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::super::discover;
use super::super::json::{Object, numbers};
use super::Log;

/// Bytes of the health log.
pub(super) const SMART_LEN: usize = 512;

/// A page that is decoded.
#[derive(Clone, Copy)]
pub(super) struct Page {
    lid: LogId,
    len: Len,
    decode: fn(&[u8]) -> Option<Decoded>,
}

/// How long a page is.
#[derive(Clone, Copy)]
enum Len {
    Fixed(usize),
    /// An entry for each error that is kept (ELPE).
    Errors,
    /// As many groups and namespaces as there can be.
    Ana,
    /// As many entries as the header says.
    Discovery,
}

/// What a page says.
pub(super) struct Decoded {
    pub(super) text: String,
    pub(super) json: Value,
}

const fn page(lid: LogId, len: Len, decode: fn(&[u8]) -> Option<Decoded>) -> Page {
    Page { lid, len, decode }
}

const PAGES: [Page; 11] = [
    page(LogId::SupportedLogPages, Len::Fixed(1024), supported),
    page(LogId::ErrorInformation, Len::Errors, errors),
    page(LogId::SmartHealth, Len::Fixed(SMART_LEN), smart),
    page(LogId::FirmwareSlot, Len::Fixed(512), firmware),
    page(LogId::ChangedNamespaces, Len::Fixed(4096), changed),
    page(LogId::CommandEffects, Len::Fixed(4096), commands),
    page(LogId::EnduranceGroup, Len::Fixed(512), endurance),
    page(LogId::Ana, Len::Ana, ana),
    page(LogId::FeatureEffects, Len::Fixed(1024), features),
    page(LogId::Discovery, Len::Discovery, discovery),
    page(LogId::ReservationNotification, Len::Fixed(64), reservation),
];

/// The page, if it is decoded.
pub(super) fn find(lid: u8) -> Option<Page> {
    PAGES.into_iter().find(|page| page.lid.code() == lid)
}

/// The namespace that a page is asked for when none is given: health is that of all.
pub(super) fn default_nsid(lid: u8) -> Nsid {
    match LogId::from(lid) {
        LogId::SmartHealth => Nsid::ALL,
        _ => Nsid(0),
    }
}

impl Page {
    /// Bytes of the whole page.
    pub(super) fn len(&self, controller: &Controller, log: &Log) -> Result<usize, Error> {
        Ok(match self.len {
            Len::Fixed(len) => len,
            Len::Errors => {
                usize::from(controller.identify()?.error_log_entries())
                    * size_of::<ErrorInformation>()
            }
            Len::Ana => {
                let identify = controller.identify()?;
                let namespaces = match identify.mnan.get() {
                    0 => identify.nn.get(),
                    most => most,
                };
                let groups = identify.nanagrpid.get() as usize;
                16 + 32 * groups + 4 * namespaces as usize
            }
            Len::Discovery => {
                let log = Log { rae: true, ..*log };
                let bytes = log.read(controller, 0, DiscoveryHeader::LEN)?;
                let header = DiscoveryHeader::ref_from_bytes(&bytes);
                let entries = header.map_or(0, |header| header.numrec.get());
                // No more than one looks at: 16 MiB.
                let entries = usize::try_from(entries.min(16 << 10)).unwrap_or(0);
                DiscoveryHeader::LEN + entries * DiscoveryEntry::LEN
            }
        })
    }

    /// What the whole page says; `None` if it makes no sense.
    pub(super) fn decode(&self, bytes: &[u8]) -> Option<Decoded> {
        (self.decode)(bytes)
    }
}

/// The text is the structure's own.
fn decoded<T>(bytes: &[u8], json: impl FnOnce(&T) -> Object) -> Option<Decoded>
where
    T: Tree + FromBytes + KnownLayout + Immutable + Unaligned,
{
    let (page, _) = T::ref_from_prefix(bytes).ok()?;
    Some(Decoded {
        text: page.tree().to_string(),
        json: json(page).into(),
    })
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}

fn supported(bytes: &[u8]) -> Option<Decoded> {
    decoded(bytes, |page: &SupportedLogPages| {
        let pages = (0..=u8::MAX)
            .zip(page.lid)
            .filter(|(_, support)| support.contains(LogPageSupport::LSUPP))
            .map(|(lid, support)| {
                json!({
                    "lid": lid,
                    "name": LogId::from(lid).name(),
                    "effects": support.bits(),
                })
            });
        object(json!({"supported_logs": pages.collect::<Value>()}))
    })
}

/// Without unused entries.
fn errors(bytes: &[u8]) -> Option<Decoded> {
    let entries = <[ErrorInformation]>::ref_from_bytes(bytes).ok()?;
    let used = || entries.iter().filter(|entry| entry.errcnt.get() != 0);
    let text: Vec<String> = used().map(|entry| entry.tree().to_string()).collect();
    let json = used().map(|entry| {
        let mut object = Object::new();
        numbers!(entry => object; errcnt as "error_count", sqid, cid as "cmdid");
        let word = entry.status.get();
        object.insert("status_field".to_owned(), (word >> 1).into());
        object.insert("phase_tag".to_owned(), (word & 1).into());
        let name = entry.status().name_for(entry.opc);
        object.insert("status".to_owned(), name.into());
        numbers!(entry => object;
            pel as "parm_error_location", lba, nsid, vsia as "vs", trtype, csi, opc as "opcode",
            csinfo as "cs", ttsi as "trtype_spec_info", lpver as "log_page_version",
        );
        Value::Object(object)
    });
    Some(Decoded {
        text: match text.is_empty() {
            true => "no errors\n".to_owned(),
            false => text.join("\n"),
        },
        json: json!({"errors": json.collect::<Value>()}),
    })
}

fn smart(bytes: &[u8]) -> Option<Decoded> {
    decoded(bytes, |page: &SmartHealth| {
        let mut object = Object::new();
        numbers!(page => object;
            critical_warning, ctemp as "temperature", avsp as "avail_spare",
            avspt as "spare_thresh", pused as "percent_used",
            egcws as "endurance_grp_critical_warning_summary", dur as "data_units_read",
            duw as "data_units_written", hrc as "host_read_commands",
            hwc as "host_write_commands", cbt as "controller_busy_time", pwrc as "power_cycles",
            poh as "power_on_hours", upl as "unsafe_shutdowns", mdie as "media_errors",
            neile as "num_err_log_entries", wctt as "warning_temp_time",
            cctt as "critical_comp_time",
        );
        for (sensor, kelvins) in (1u8..).zip(page.tsen) {
            if kelvins.get() != 0 {
                let name = format!("temperature_sensor_{sensor}");
                object.insert(name, kelvins.get().into());
            }
        }
        numbers!(page => object;
            tmttc1 as "thm_temp1_trans_count", tmttc2 as "thm_temp2_trans_count",
            tttmt1 as "thm_temp1_total_time", tttmt2 as "thm_temp2_total_time",
        );
        object
    })
}

fn firmware(bytes: &[u8]) -> Option<Decoded> {
    decoded(bytes, |page: &FirmwareSlots| {
        let mut object = Object::new();
        object.insert("afi".to_owned(), page.afi.into());
        for (slot, revision) in (1u8..).zip(page.frs) {
            let revision = revision.to_string();
            if !revision.is_empty() {
                object.insert(format!("frs{slot}"), revision.into());
            }
        }
        object
    })
}

fn changed(bytes: &[u8]) -> Option<Decoded> {
    decoded(bytes, |page: &ChangedNamespaces| {
        let nsids = page.iter().map(|nsid| Value::from(nsid.0));
        object(json!({
            "nsids": nsids.collect::<Value>(),
            "too_many": page.overflowed(),
        }))
    })
}

fn commands(bytes: &[u8]) -> Option<Decoded> {
    fn list(effects: &[CommandEffect], name: fn(u8) -> &'static str) -> Value {
        (0..=u8::MAX)
            .zip(effects)
            .filter(|(_, effect)| effect.contains(CommandEffect::CSUPP))
            .map(|(opcode, effect)| {
                json!({"opcode": opcode, "name": name(opcode), "effects": effect.bits()})
            })
            .collect()
    }
    decoded(bytes, |page: &CommandEffects| {
        object(json!({
            "admin_cmd_set": list(&page.acs, |opcode| AdminOpcode::from(opcode).name()),
            "io_cmd_set": list(&page.iocs, |opcode| IoOpcode::from(opcode).name()),
        }))
    })
}

fn endurance(bytes: &[u8]) -> Option<Decoded> {
    decoded(bytes, |page: &EnduranceGroup| {
        let mut object = Object::new();
        numbers!(page => object;
            critical_warning, egfeat as "endurance_group_features", avsp as "avl_spare",
            avspt as "avl_spare_threshold", pused as "percent_used", did as "domain_identifier",
            ee as "endurance_estimate", dur as "data_units_read", duw as "data_units_written",
            muw as "media_units_written", hrc as "host_read_cmds", hwc as "host_write_cmds",
            mdie as "media_data_integrity_err", neile as "num_err_info_log_entries",
            tegcap as "total_end_grp_cap", uegcap as "unalloc_end_grp_cap",
        );
        object
    })
}

fn ana(bytes: &[u8]) -> Option<Decoded> {
    let log = AnaLog::parse(bytes).ok()?;
    let mut groups = Vec::new();
    for group in log.groups() {
        let group = group.ok()?;
        let mut object = Object::new();
        numbers!(group.descriptor => object; grpid, nnsids, chgcnt);
        let state = group.descriptor.state().to_string();
        object.insert("state".to_owned(), state.into());
        let nsids = group.nsids().map(|nsid| Value::from(nsid.0));
        object.insert("nsids".to_owned(), nsids.collect());
        groups.push(Value::Object(object));
    }
    let header = log.header();
    let mut object = Object::new();
    numbers!(header => object; chgcnt, ngrps);
    object.insert("groups".to_owned(), groups.into());
    Some(Decoded {
        text: log.tree().to_string(),
        json: object.into(),
    })
}

fn features(bytes: &[u8]) -> Option<Decoded> {
    decoded(bytes, |page: &FeatureEffects| {
        let features = (0..=u8::MAX)
            .zip(page.fid)
            .filter(|(_, effect)| effect.contains(FeatureEffect::FSUPP))
            .map(|(fid, effect)| {
                json!({
                    "fid": fid,
                    "name": FeatureId::from(fid).name(),
                    "effects": effect.bits(),
                })
            });
        object(json!({"fid_support": features.collect::<Value>()}))
    })
}

fn discovery(bytes: &[u8]) -> Option<Decoded> {
    let (header, rest) = DiscoveryHeader::ref_from_prefix(bytes).ok()?;
    let entries = <[DiscoveryEntry]>::ref_from_bytes(rest).ok()?;
    let mut text = header.tree().to_string();
    for entry in entries {
        text += &format!("\n{}", entry.tree());
    }
    let mut json = Object::new();
    numbers!(header => json; genctr);
    json.extend(object(discover::records(entries)));
    Some(Decoded {
        text,
        json: json.into(),
    })
}

fn reservation(bytes: &[u8]) -> Option<Decoded> {
    decoded(bytes, |page: &ReservationNotification| {
        let mut object = Object::new();
        numbers!(page => object;
            lpc as "count", rnlpt as "rn_log_type", nalp as "num_logs", nsid as "NSID",
        );
        object
    })
}

#[cfg(test)]
mod tests {
    use nvmf_core::wire::log::{AnaGroupDescriptor, AnaLogHeader, AnaState};
    use zerocopy::IntoBytes;

    use super::*;

    fn json(lid: LogId, bytes: &[u8]) -> Value {
        find(lid.code()).unwrap().decode(bytes).unwrap().json
    }

    #[test]
    fn health_has_the_names_of_nvme_cli() {
        let mut bytes = [0; 512];
        bytes[..4].copy_from_slice(&[1, 0x2c, 0x01, 99]);
        bytes[32..48].fill(0xFF);
        bytes[202] = 5;
        let json = json(LogId::SmartHealth, &bytes);
        assert_eq!(json["critical_warning"], 1);
        assert_eq!(json["temperature"], 300);
        assert_eq!(json["avail_spare"], 99);
        assert_eq!(json["data_units_read"].to_string(), u128::MAX.to_string());
        assert_eq!(json["temperature_sensor_2"], 5);
        assert_eq!(json.get("temperature_sensor_1"), None);
    }

    #[test]
    fn unused_errors_are_left_out() {
        let mut entry = ErrorInformation::default();
        entry.errcnt.set(7);
        entry.status.set(0x0005);
        entry.opc = 2;
        let mut bytes = entry.as_bytes().to_vec();
        bytes.extend([0; 64]);
        let json = json(LogId::ErrorInformation, &bytes);
        assert_eq!(json["errors"].as_array().unwrap().len(), 1);
        assert_eq!(json["errors"][0]["error_count"], 7);
        assert_eq!(json["errors"][0]["status_field"], 2);
        assert_eq!(json["errors"][0]["phase_tag"], 1);
        assert_eq!(json["errors"][0]["status"], "Invalid Field in Command");
        let none = find(1).unwrap().decode(&[0; 128]).unwrap();
        assert_eq!(none.text, "no errors\n");
    }

    #[test]
    fn groups_and_their_namespaces() {
        let mut bytes = AnaLogHeader::new(3, 1).as_bytes().to_vec();
        let group = AnaGroupDescriptor::new(1, 2, 4, AnaState::NonOptimized);
        bytes.extend_from_slice(group.as_bytes());
        bytes.extend([5, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(
            json(LogId::Ana, &bytes),
            json!({"chgcnt": 3, "ngrps": 1, "groups": [
                {"grpid": 1, "nnsids": 2, "chgcnt": 4, "state": "Non-Optimized", "nsids": [5, 6]},
            ]})
        );
        let short = find(LogId::Ana.code()).unwrap();
        assert!(short.decode(&bytes[..bytes.len() - 1]).is_none());
    }
}
