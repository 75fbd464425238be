//! Which identifiers a namespace has, and for how long.
//!
//! A Linux host that reconnects drops a namespace whose identifiers changed, so
//! they must outlive the process, without a place to store them. They are
//! hashed (UUID version 5) from what stays: the subsystem's NQN, and
//! - for a file, its canonical path: it may be replaced by a copy, not moved;
//! - for a block device, the absolute path as given: `/dev/disk/by-id/…` names one
//!   device for ever, `/dev/sdb` another one after the next boot;
//! - for RAM and null, the namespace id. The data is gone after a restart, but a
//!   host that still has the namespace open must find it again.
//!
//! `uuid=` overrides that, for instance to move a file. NGUID and EUI64 follow from
//! the UUID. Both carry a locally administered company id: they are unique as
//! far as the hash goes, and claim to be nobody's product.
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::std::device::Identity;
use uuid::{Uuid, uuid};

/// The name space of every hash here. Changing it changes what all hosts see.
const NAME_SPACE: Uuid = uuid!("43184b44-10c1-4793-a7a3-9c31d9b8f3b1");

/// The identifiers that go with a UUID.
#[must_use]
pub fn from_uuid(uuid: Uuid) -> Identity {
    let derived = |what: &[u8]| hash(&[uuid.as_bytes(), what]).into_bytes();
    let mut nguid = derived(b"nguid");
    // Vendor specific extension (8 bytes), company id (3), extension (5).
    nguid[8] = locally_administered(nguid[8]);
    let [mut e0, e1, e2, e3, e4, e5, e6, e7, ..] = derived(b"eui64");
    e0 = locally_administered(e0);
    Identity {
        uuid: uuid.into_bytes(),
        nguid,
        eui64: [e0, e1, e2, e3, e4, e5, e6, e7],
    }
}

/// For what is found again under a path.
#[must_use]
pub fn of_path(nqn: &str, path: &Path) -> Identity {
    from_uuid(hash(&[
        nqn.as_bytes(),
        b"path",
        OsStr::as_bytes(path.as_os_str()),
    ]))
}

/// For what has no name but its number.
#[must_use]
pub fn of_nsid(nqn: &str, nsid: Nsid) -> Identity {
    from_uuid(hash(&[nqn.as_bytes(), b"nsid", &nsid.0.to_be_bytes()]))
}

fn hash(parts: &[&[u8]]) -> Uuid {
    Uuid::new_v5(&NAME_SPACE, &parts.join(&0))
}

/// The first octet of a company id: individual (bit 0), local (bit 1).
fn locally_administered(octet: u8) -> u8 {
    octet & !0b01 | 0b10
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by another implementation.
    #[test]
    fn it_never_changes() {
        let identity = of_path("nqn.2014-08.org.example:a", Path::new("/srv/disk"));
        assert_eq!(
            Uuid::from_bytes(identity.uuid).to_string(),
            "103c0f83-dfb3-57e4-8185-fbb52930cfed"
        );
        assert_eq!(
            identity.nguid,
            0x88aed0ab033959bbbae590ee92d741e4u128.to_be_bytes()
        );
        assert_eq!(identity.eui64, 0xda9e8ed7014f5fc6u64.to_be_bytes());
        assert_eq!(
            Uuid::from_bytes(of_nsid("nqn.2014-08.org.example:a", Nsid(1)).uuid).to_string(),
            "49c89363-0d87-5211-9145-3e8865370a2f"
        );
    }

    #[test]
    fn it_differs_by_subsystem_and_by_what_is_served() {
        let all = [
            of_path("a", Path::new("/x")),
            of_path("a", Path::new("/y")),
            of_path("b", Path::new("/x")),
            of_nsid("a", Nsid(1)),
            of_nsid("a", Nsid(2)),
            of_nsid("b", Nsid(1)),
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[..at] {
                assert_ne!(one.uuid, other.uuid);
                assert_ne!(one.nguid, other.nguid);
                assert_ne!(one.eui64, other.eui64);
            }
        }
    }

    #[test]
    fn it_claims_no_company() {
        for nsid in 1..100 {
            let identity = of_nsid("a", Nsid(nsid));
            assert_eq!(identity.eui64[0] & 3, 2);
            assert_eq!(identity.nguid[8] & 3, 2);
        }
    }
}
