//! How the interface gets its address.
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
#[cfg(feature = "dhcp")]
use smoltcp::socket::dhcpv4;
use smoltcp::wire::{IpCidr, Ipv4Address, Ipv4Cidr};

/// How the interface gets its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// It is known.
    Static {
        /// The address, and the network that it is in.
        address: Ipv4Cidr,
        /// Where packets for other networks go.
        gateway: Option<Ipv4Address>,
    },
    /// A DHCP server gives it, for a time. That takes a socket more:
    /// [`Tables`](crate::server::Tables) have one more than there are connections.
    #[cfg(feature = "dhcp")]
    Dhcp,
}

/// Where the address comes from, at run time: the DHCP socket, if that is it.
pub(crate) struct Source(Option<SocketHandle>);

impl Source {
    pub(crate) fn start(
        addressing: Addressing,
        interface: &mut Interface,
        #[cfg_attr(not(feature = "dhcp"), expect(unused_variables))] sockets: &mut SocketSet,
    ) -> Self {
        match addressing {
            Addressing::Static { address, gateway } => {
                assign(interface, Some(address), gateway);
                Self(None)
            }
            #[cfg(feature = "dhcp")]
            Addressing::Dhcp => Self(Some(sockets.add(dhcpv4::Socket::new()))),
        }
    }

    /// Looks what became of the lease. Whether the address is another, or gone.
    #[cfg(feature = "dhcp")]
    pub(crate) fn poll(&self, interface: &mut Interface, sockets: &mut SocketSet) -> bool {
        let lease = self.0.map(|it| sockets.get_mut::<dhcpv4::Socket>(it));
        let (address, gateway) = match lease.and_then(dhcpv4::Socket::poll) {
            Some(dhcpv4::Event::Configured(config)) => (Some(config.address), config.router),
            Some(dhcpv4::Event::Deconfigured) => (None, None),
            None => return false,
        };
        let before = interface.ipv4_addr();
        assign(interface, address, gateway);
        before != interface.ipv4_addr()
    }

    #[cfg(not(feature = "dhcp"))]
    pub(crate) fn poll(&self, _: &mut Interface, _: &mut SocketSet) -> bool {
        self.0.is_some()
    }
}

fn assign(interface: &mut Interface, address: Option<Ipv4Cidr>, gateway: Option<Ipv4Address>) {
    interface.update_ip_addrs(|all| {
        all.clear();
        let address = address.map(IpCidr::Ipv4);
        let fits = address.is_none_or(|address| all.push(address).is_ok());
        assert!(fits, "no room for an address");
    });
    let routes = interface.routes_mut();
    routes.remove_default_ipv4_route();
    if let Some(gateway) = gateway {
        let outcome = routes.add_default_ipv4_route(gateway);
        outcome.expect("room for a route");
    }
}
