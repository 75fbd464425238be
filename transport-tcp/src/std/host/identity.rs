//! Who this host says it is.
use std::fs;
use std::sync::OnceLock;

use nvmf_core::host::Identity;
use nvmf_core::wire::ids::{HostId, Nqn};

/// What a name made from a UUID begins with (NVMe Base 2.0, section 4.5.1).
const BY_UUID: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// What `/etc/nvme` says, where nvme-cli keeps it; or else random.
pub(super) fn of_this_process() -> Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    IDENTITY
        .get_or_init(|| {
            identity(
                read("/etc/nvme/hostnqn").trim(),
                read("/etc/nvme/hostid").trim(),
                read("/proc/sys/kernel/random/uuid").trim(),
            )
        })
        .clone()
}

/// Name and identifier belong together: where one is missing, the other's UUID makes up for it.
fn identity(hostnqn: &str, hostid: &str, random: &str) -> Identity {
    let in_name = || hostnqn.strip_prefix(BY_UUID).unwrap_or(random);
    let hostid = hostid
        .parse()
        .or_else(|_| in_name().parse())
        .unwrap_or(HostId([0xFE; 16]));
    let hostnqn = hostnqn
        .parse()
        .or_else(|_| format!("{BY_UUID}{hostid}").parse::<Nqn>())
        .unwrap_or_else(|_| unreachable!("68 characters of ASCII"));
    Identity { hostnqn, hostid }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "11111111-2222-3333-4444-555555555555";
    const B: &str = "66666666-7777-8888-9999-aaaaaaaaaaaa";

    #[test]
    fn name_and_identifier_belong_together() {
        let by_uuid = format!("{BY_UUID}{A}");
        for (hostnqn, hostid, expected) in [
            ("nqn.a", B, ("nqn.a", B)),
            (by_uuid.as_str(), B, (by_uuid.as_str(), B)),
            (by_uuid.as_str(), "", (by_uuid.as_str(), A)),
            ("", A, (by_uuid.as_str(), A)),
            ("", "", (&format!("{BY_UUID}{B}"), B)),
            ("nqn.a", "", ("nqn.a", B)),
        ] {
            let identity = identity(hostnqn, hostid, B);
            let found = (identity.hostnqn.as_str(), identity.hostid.to_string());
            assert_eq!((found.0, found.1.as_str()), expected);
        }
    }

    #[test]
    fn a_process_is_one_host() {
        assert_eq!(of_this_process(), of_this_process());
    }
}
