//! Listening, and what every connection's socket is set to.
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::error::Error;

/// How long a peer may be silent before TCP asks whether it is still there.
/// Longer than any keep alive timeout in use, which notices much earlier; this
/// is for hosts that asked for none.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// Options of a target's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Connections that may wait to be accepted, per listener.
    pub backlog: u16,
    /// SO_PRIORITY of connections: 0 to 6, and more with CAP_NET_ADMIN.
    pub priority: Option<u32>,
    /// The byte of the IP header that holds DSCP (upper six bits) and ECN.
    pub tos: Option<u8>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            backlog: 1024,
            priority: None,
            tos: None,
        }
    }
}

/// Binds and listens. An IPv6 wildcard does not take IPv4 connections: that is
/// a listener of its own, with an entry of its own in the discovery log.
pub(super) fn listen(address: SocketAddr, options: &SocketOptions) -> Result<TcpListener, Error> {
    let attempt = || -> io::Result<TcpListener> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking().cloexec(),
            Some(Protocol::TCP),
        )?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // Connections of a target that was stopped may still be in TIME_WAIT.
        socket.set_reuse_address(true)?;
        // Before any connection exists, so that even its SYN-ACK has them.
        apply(&socket, address.is_ipv6(), options)?;
        socket.bind(&address.into())?;
        socket.listen(i32::from(options.backlog))?;
        Ok(socket.into())
    };
    attempt().map_err(|source| Error::listen(address, source))
}

/// Sets up an accepted connection.
///
/// # Errors
/// When the peer is gone already.
pub(super) fn prepare(stream: &TcpStream, options: &SocketOptions) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    apply(&socket, stream.local_addr()?.is_ipv6(), options)
}

fn apply(socket: &Socket, ipv6: bool, options: &SocketOptions) -> io::Result<()> {
    if let Some(tos) = options.tos.map(u32::from) {
        if ipv6 {
            socket.set_tclass_v6(tos)?;
        } else {
            socket.set_tos_v4(tos)?;
        }
    }
    // Last, for IP_TOS changes it.
    if let Some(priority) = options.priority {
        socket.set_priority(priority)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: SocketOptions = SocketOptions {
        backlog: 7,
        priority: Some(5),
        tos: Some(0x48),
    };

    fn accepted(address: &str) -> (TcpListener, TcpStream) {
        let listener = listen(address.parse().unwrap(), &ALL).unwrap();
        let _host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        };
        prepare(&stream, &ALL).unwrap();
        (listener, stream)
    }

    #[test]
    fn options_reach_the_socket() {
        let (_, stream) = accepted("127.0.0.1:0");
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tos_v4().unwrap(), 0x48);
        assert_eq!(socket.priority().unwrap(), 5);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
    }

    #[test]
    fn options_reach_an_ipv6_socket() {
        let (_, stream) = accepted("[::1]:0");
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tclass_v6().unwrap(), 0x48);
        assert_eq!(socket.priority().unwrap(), 5);
    }

    #[test]
    fn an_ipv6_wildcard_leaves_ipv4_alone() {
        let v6 = listen("[::]:0".parse().unwrap(), &ALL).unwrap();
        let port = v6.local_addr().unwrap().port();
        let v4 = listen(SocketAddr::from(([0, 0, 0, 0], port)), &ALL);
        assert!(v4.is_ok(), "{v4:?}");
    }

    #[test]
    fn an_address_in_use_is_called_that() {
        let first = listen("127.0.0.1:0".parse().unwrap(), &ALL).unwrap();
        let address = first.local_addr().unwrap();
        let error = listen(address, &ALL).unwrap_err();
        assert!(
            matches!(error, Error::AddressInUse { address: at } if at == address),
            "{error:?}"
        );
    }
}
