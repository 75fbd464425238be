//! What a target offers, owned.
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nvmf_core::target::{self, Catalog, Listener, SubsystemKind};
use nvmf_core::wire::discovery::Trtype;
use nvmf_core::wire::ids::{Cntlid, Nqn, Nsid};

use super::device::Namespace;
use super::error::Error;

/// A subsystem to serve: a name, and namespaces behind it.
#[derive(Clone)]
pub struct Subsystem {
    /// SUBNQN; unique in the target.
    pub nqn: Nqn,
    /// Serial number, 1 to 20 printable ASCII characters. Hosts tell
    /// subsystems apart by it, so it should not change from run to run.
    pub serial: String,
    /// Model number, 1 to 40 printable ASCII characters.
    pub model: String,
    /// Firmware revision, 1 to 8 printable ASCII characters.
    pub firmware: String,
    /// The first has NSID 1.
    pub namespaces: Vec<Arc<dyn Namespace>>,
    /// Who may connect; `None` is any host.
    pub allowed_hosts: Option<Vec<Nqn>>,
}

impl Subsystem {
    /// A subsystem without namespaces that lets any host in. Its serial number
    /// is made from its name.
    #[must_use]
    pub fn new(nqn: Nqn) -> Self {
        let serial = format!("{:016X}", fnv1a(nqn.as_str().as_bytes()));
        Self {
            nqn,
            serial,
            model: "nvmf".to_owned(),
            firmware: env!("CARGO_PKG_VERSION").chars().take(8).collect(),
            namespaces: Vec::new(),
            allowed_hosts: None,
        }
    }

    /// Adds a namespace, whose NSID is one more than that of the last.
    #[must_use]
    pub fn with(mut self, namespace: impl Namespace + 'static) -> Self {
        self.namespaces.push(Arc::new(namespace));
        self
    }

    fn check(&self) -> Result<(), Error> {
        for (what, value, max) in [
            ("the serial number", &self.serial, 20),
            ("the model number", &self.model, 40),
            ("the firmware revision", &self.firmware, 8),
        ] {
            let fits = (1..=max).contains(&value.len())
                && value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            if !fits {
                return Err(Error::Text {
                    what,
                    value: value.clone(),
                    max,
                });
            }
        }
        Ok(())
    }
}

/// FNV-1a, 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The subsystems of a target, the discovery subsystem after them, and its listeners.
#[derive(Debug)]
pub(super) struct OwnedCatalog {
    subsystems: Vec<OwnedSubsystem>,
    discovery: Nqn,
    listeners: Vec<OwnedListener>,
}

#[derive(Debug)]
struct OwnedSubsystem {
    nqn: Nqn,
    serial: String,
    model: String,
    firmware: String,
    namespaces: Vec<target::Namespace>,
    allowed_hosts: Option<Vec<Nqn>>,
}

/// An address in the form that the discovery log has it.
#[derive(Clone, Debug)]
pub(super) struct OwnedListener {
    trtype: Trtype,
    portid: u16,
    ipv6: bool,
    address: String,
    port: String,
}

impl OwnedCatalog {
    /// Listens for hosts at the `tcp` addresses, which come first, and by RDMA at the others.
    pub(super) fn new(
        subsystems: &[Subsystem],
        tcp: &[SocketAddr],
        rdma: &[SocketAddr],
    ) -> Result<Self, Error> {
        for (index, subsystem) in subsystems.iter().enumerate() {
            subsystem.check()?;
            let taken = subsystems[..index].iter().any(|s| s.nqn == subsystem.nqn);
            if taken || subsystem.nqn.is_discovery() {
                return Err(Error::NqnTaken(Box::new(subsystem.nqn.clone())));
            }
        }
        let tcp = tcp
            .iter()
            .map(|address| (OwnedListener::new as Make, address));
        let rdma = rdma
            .iter()
            .map(|address| (OwnedListener::rdma as Make, address));
        Ok(Self {
            subsystems: subsystems.iter().map(OwnedSubsystem::new).collect(),
            discovery: Nqn::discovery(),
            listeners: (1..)
                .zip(tcp.chain(rdma))
                .map(|(portid, (make, address))| make(portid, *address))
                .collect(),
        })
    }
}

impl OwnedSubsystem {
    fn new(subsystem: &Subsystem) -> Self {
        let namespaces = (1..).map(Nsid).zip(&subsystem.namespaces);
        Self {
            nqn: subsystem.nqn.clone(),
            serial: subsystem.serial.clone(),
            model: subsystem.model.clone(),
            firmware: subsystem.firmware.clone(),
            namespaces: namespaces
                .map(|(nsid, namespace)| {
                    let identity = namespace.identity();
                    target::Namespace {
                        nsid,
                        geometry: namespace.geometry(),
                        uuid: identity.uuid,
                        nguid: identity.nguid,
                        eui64: identity.eui64,
                    }
                })
                .collect(),
            allowed_hosts: subsystem.allowed_hosts.clone(),
        }
    }
}

/// Makes a listener of its identity and address.
type Make = fn(u16, SocketAddr) -> OwnedListener;

impl OwnedListener {
    /// For TCP. `portid` is what hosts see of the listener's identity.
    pub(super) fn new(portid: u16, address: SocketAddr) -> Self {
        Self::of(Trtype::Tcp, portid, address)
    }

    /// For RDMA.
    pub(super) fn rdma(portid: u16, address: SocketAddr) -> Self {
        Self::of(Trtype::Rdma, portid, address)
    }

    fn of(trtype: Trtype, portid: u16, address: SocketAddr) -> Self {
        // A host that came by IPv4 to a dual-stack socket knows nothing of the mapping.
        let ip = address.ip().to_canonical();
        Self {
            trtype,
            portid,
            ipv6: matches!(ip, IpAddr::V6(_)),
            address: ip.to_string(),
            port: address.port().to_string(),
        }
    }

    pub(super) fn borrow(&self) -> Listener<'_> {
        Listener {
            trtype: self.trtype.into(),
            adrfam: if self.ipv6 { 2 } else { 1 },
            traddr: &self.address,
            trsvcid: &self.port,
            portid: self.portid,
        }
    }
}

impl Catalog for OwnedCatalog {
    fn subsystem(&self, index: usize) -> Option<target::Subsystem<'_>> {
        const CNTLIDS: (Cntlid, Cntlid) = (Cntlid(1), Cntlid::MAX);
        let Some(subsystem) = self.subsystems.get(index) else {
            return (index == self.subsystems.len()).then_some(target::Subsystem {
                nqn: &self.discovery,
                kind: SubsystemKind::Discovery,
                serial: "discovery",
                model: "nvmf",
                firmware: env!("CARGO_PKG_VERSION"),
                namespaces: &[],
                allowed_hosts: None,
                cntlid_range: CNTLIDS,
            });
        };
        Some(target::Subsystem {
            nqn: &subsystem.nqn,
            kind: SubsystemKind::Nvm,
            serial: &subsystem.serial,
            model: &subsystem.model,
            firmware: &subsystem.firmware,
            namespaces: &subsystem.namespaces,
            allowed_hosts: subsystem.allowed_hosts.as_deref(),
            cntlid_range: CNTLIDS,
        })
    }

    fn listener(&self, index: usize) -> Option<Listener<'_>> {
        self.listeners.get(index).map(OwnedListener::borrow)
    }

    fn generation(&self) -> u64 {
        // Nothing changes while the target runs.
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        name.parse().unwrap()
    }

    #[test]
    fn the_discovery_subsystem_comes_last() {
        let subsystems = [Subsystem::new(nqn("nqn.a")), Subsystem::new(nqn("nqn.b"))];
        let catalog = OwnedCatalog::new(&subsystems, &[], &[]).unwrap();
        let (index, found) = catalog.find(&Nqn::discovery()).unwrap();
        assert_eq!((index, found.kind), (2, SubsystemKind::Discovery));
        assert_eq!(catalog.find(&nqn("nqn.b")).unwrap().0, 1);
        assert!(catalog.subsystem(3).is_none());
    }

    #[test]
    fn a_serial_number_follows_from_the_name() {
        let serial = |name| Subsystem::new(nqn(name)).serial;
        assert_eq!(serial("nqn.a"), serial("nqn.a"));
        assert_ne!(serial("nqn.a"), serial("nqn.b"));
        assert_eq!(serial("nqn.a").len(), 16);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |subsystem: &Subsystem| {
            OwnedCatalog::new(std::slice::from_ref(subsystem), &[], &[]).is_err()
        };
        let good = Subsystem::new(nqn("nqn.a"));
        assert!(!refused(&good));
        for serial in ["", "123456789012345678901", "caf\u{e9}", "tab\t"] {
            assert!(
                refused(&Subsystem {
                    serial: serial.to_owned(),
                    ..good.clone()
                }),
                "{serial:?}"
            );
        }
        assert!(refused(&Subsystem::new(Nqn::discovery())));
        assert!(OwnedCatalog::new(&[good.clone(), good], &[], &[]).is_err());
    }

    #[test]
    fn listeners_are_numeric_and_numbered() {
        let addresses = ["127.0.0.1:4420", "[fe80::1]:8009"].map(|a| a.parse().unwrap());
        let rdma = ["192.0.2.7:4420".parse().unwrap()];
        let catalog = OwnedCatalog::new(&[], &addresses, &rdma).unwrap();
        let listener = catalog.listener(1).unwrap();
        assert_eq!((listener.adrfam, listener.portid), (2, 2));
        assert_eq!((listener.traddr, listener.trsvcid), ("fe80::1", "8009"));
        let listener = catalog.listener(0).unwrap();
        assert_eq!((listener.trtype, listener.adrfam), (3, 1));
        let listener = catalog.listener(2).unwrap();
        assert_eq!((listener.trtype, listener.portid), (1, 3));
        assert_eq!(listener.traddr, "192.0.2.7");
        assert!(catalog.listener(3).is_none());
    }
}
