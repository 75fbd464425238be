//! What a host's sockets are set to.
use std::io;
use std::net::{SocketAddr, TcpStream};

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::options::Options;
use super::queue::Failure;

/// Begins to connect. The socket is writable when that has ended, well or not.
pub(super) fn connect(address: SocketAddr, options: &Options) -> Result<TcpStream, Failure> {
    let socket = prepare(address, options).map_err(|error| Failure::Connect(errno(&error)))?;
    leave_from(&socket, options).map_err(|error| Failure::From(errno(&error)))?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(Failure::Connect(errno(&error))),
    }
    Ok(socket.into())
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}

/// All but the addresses; all of it before the SYN, which has it too.
fn prepare(address: SocketAddr, options: &Options) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    socket.set_tcp_nodelay(true)?;
    if let Some(tos) = options.tos.map(u32::from) {
        if address.is_ipv6() {
            socket.set_tclass_v6(tos)?;
        } else {
            socket.set_tos_v4(tos)?;
        }
    }
    // Behind the TOS, which changes it.
    if let Some(priority) = options.so_priority {
        socket.set_priority(priority)?;
    }
    Ok(socket)
}

fn leave_from(socket: &Socket, options: &Options) -> io::Result<()> {
    if let Some(interface) = &options.host_iface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(host) = options.host_traddr {
        socket.bind(&SocketAddr::new(host, 0).into())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use socket2::SockRef;

    use super::*;

    #[test]
    fn options_reach_the_socket() {
        for (listen, from) in [("127.0.0.1:0", "127.0.0.9"), ("[::1]:0", "::1")] {
            let listener = TcpListener::bind(listen).unwrap();
            let options = Options {
                host_traddr: Some(from.parse().unwrap()),
                host_iface: Some("lo".to_owned()),
                tos: Some(0x48),
                so_priority: Some(5),
                ..Options::default()
            };
            let address = listener.local_addr().unwrap();
            let stream = connect(address, &options).unwrap();
            let (_, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip().to_string(), from);
            assert_eq!(stream.local_addr().unwrap(), peer);
            let socket = SockRef::from(&stream);
            let tos = match address {
                SocketAddr::V4(_) => socket.tos_v4(),
                SocketAddr::V6(_) => socket.tclass_v6(),
            };
            assert_eq!(tos.unwrap(), 0x48);
            assert_eq!(socket.priority().unwrap(), 5);
            assert_eq!(socket.device().unwrap().as_deref(), Some(&b"lo"[..]));
            assert!(socket.tcp_nodelay().unwrap() && socket.nonblocking().unwrap());
        }
    }

    #[test]
    fn what_the_system_refuses_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let no_such_interface = Options {
            host_iface: Some("nvmf-none".to_owned()),
            ..Options::default()
        };
        let failure = connect(address, &no_such_interface).unwrap_err();
        assert!(matches!(failure, Failure::From(Errno::NODEV | Errno::PERM)));
        let not_ours = Options {
            host_traddr: Some("192.0.2.1".parse().unwrap()),
            ..Options::default()
        };
        let failure = connect(address, &not_ours).unwrap_err();
        assert!(matches!(failure, Failure::From(Errno::ADDRNOTAVAIL)));
    }
}
