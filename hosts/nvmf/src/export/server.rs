//! The socket that clients connect to, and who is connected.
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

use super::address::Address;
use super::connection;
use super::negotiation::Export;
use super::volume::Volume;

/// Clients that are served at a time.
const MAX_CONNECTIONS: usize = 64;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A pause when the system has no descriptor or thread for another client.
const PAUSE: Duration = Duration::from_millis(100);

/// A TCP connection on which nothing came for so long is probed.
const QUIET: Duration = Duration::from_secs(60);

/// How often.
const PROBE: Duration = Duration::from_secs(10);

/// What all connections share.
pub(super) struct Shared {
    export: Export,
    pub(super) volume: Volume,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Default)]
struct State {
    stopping: bool,
    /// Clients so far.
    count: u64,
    connections: HashMap<u64, Arc<Socket>>,
}

/// A server that accepts clients. Dropping it removes its path.
pub(super) struct Server {
    shared: Arc<Shared>,
    listener: Arc<Socket>,
    acceptor: Option<JoinHandle<()>>,
    address: Address,
}

impl Server {
    /// Listens, and serves whoever connects.
    pub(super) fn start(address: &Address, export: Export, volume: Volume) -> anyhow::Result<Self> {
        let (listener, address) = listen(address)?;
        let mut server = Self {
            shared: Arc::new(Shared {
                export,
                volume,
                state: Mutex::default(),
                left: Condvar::new(),
            }),
            listener: Arc::new(listener),
            acceptor: None,
            address,
        };
        let shared = Arc::clone(&server.shared);
        let listener = Arc::clone(&server.listener);
        let acceptor = thread::Builder::new()
            .name("nbd-accept".to_owned())
            .spawn(move || accept(&listener, &shared))
            .context("cannot start a thread for clients")?;
        server.acceptor = Some(acceptor);
        Ok(server)
    }

    /// Where clients connect.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// What clients are told.
    pub(super) fn export(&self) -> &Export {
        &self.shared.export
    }

    /// Takes no more requests, and waits until those under way are answered, but no
    /// longer than `patience`. Whether all of them were.
    pub(super) fn stop(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.state();
        state.stopping = true;
        // Wakes the thread that accepts, which has the namespace in its hands.
        let _ = self.listener.shutdown(Shutdown::Both);
        for socket in state.connections.values() {
            // A client that has left already needs no end.
            let _ = socket.shutdown(Shutdown::Read);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let (state, _) = self
            .shared
            .left
            .wait_timeout_while(state, left, |state| !state.connections.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        let all = state.connections.is_empty();
        drop(state);
        if let Some(acceptor) = self.acceptor.take() {
            // If it panicked, there is nothing left to save.
            let _ = acceptor.join();
        }
        all
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
    }
}

impl Shared {
    /// What a client that comes now is told: the namespace may have grown.
    pub(super) fn export(&self) -> Export {
        Export {
            size: self.volume.size(),
            ..self.export.clone()
        }
    }

    /// Requests that come now come too late.
    pub(super) fn is_stopping(&self) -> bool {
        self.state().stopping
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until the server stops.
fn accept(listener: &Socket, shared: &Arc<Shared>) {
    loop {
        let accepted = listener.accept();
        if shared.is_stopping() {
            return;
        }
        let admitted = accepted.and_then(|(socket, _)| admit(socket, shared));
        if let Err(error) = admitted {
            tracing::warn!("cannot serve a client: {error}");
            thread::sleep(PAUSE);
        }
    }
}

/// Serves a client on threads of its own.
fn admit(socket: Socket, shared: &Arc<Shared>) -> io::Result<()> {
    if !socket.local_addr()?.is_unix() {
        socket.set_tcp_nodelay(true)?;
        // Or a client whose machine is gone would stay for ever.
        let probes = TcpKeepalive::new().with_time(QUIET).with_interval(PROBE);
        socket.set_tcp_keepalive(&probes)?;
    }
    let socket = Arc::new(socket);
    let mut state = shared.state();
    if state.stopping {
        return Ok(());
    }
    if state.connections.len() == MAX_CONNECTIONS {
        tracing::warn!("a client is sent away: {MAX_CONNECTIONS} are served already");
        return Ok(());
    }
    state.count += 1;
    let client = state.count;
    state.connections.insert(client, Arc::clone(&socket));
    drop(state);
    let guard = Guard {
        shared: Arc::clone(shared),
        client,
    };
    thread::Builder::new()
        .name(format!("nbd-{client}"))
        .spawn(move || {
            tracing::info!(client, "connected");
            match connection::serve(&socket, &guard.shared) {
                Ok(()) => tracing::info!(client, "gone"),
                Err(error) => tracing::info!(client, "gone: {error}"),
            }
            // A client that waits for the end sees it before it is counted out.
            let _ = socket.shutdown(Shutdown::Both);
            drop(guard);
        })?;
    Ok(())
}

/// Counts a client out, whatever ends its thread.
struct Guard {
    shared: Arc<Shared>,
    client: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.state().connections.remove(&self.client);
        self.shared.left.notify_all();
    }
}

/// Listens at the address. Returns it as others see it.
fn listen(address: &Address) -> anyhow::Result<(Socket, Address)> {
    match address {
        Address::Tcp(tcp) => {
            let open = || -> io::Result<Socket> {
                let listener = Socket::new(Domain::for_address(*tcp), Type::STREAM, None)?;
                listener.set_reuse_address(true)?;
                if tcp.is_ipv6() {
                    listener.set_only_v6(true)?;
                }
                listener.bind(&(*tcp).into())?;
                listener.listen(BACKLOG)?;
                Ok(listener)
            };
            let listener = open().map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => {
                    anyhow!("another process listens on {tcp}; choose another address with --nbd")
                }
                _ => anyhow!("cannot listen on {tcp}: {error}"),
            })?;
            let local = listener.local_addr()?.as_socket().unwrap_or(*tcp);
            Ok((listener, Address::Tcp(local)))
        }
        Address::Unix(path) => {
            let open = || -> io::Result<Socket> {
                let listener = Socket::new(Domain::UNIX, Type::STREAM, None)?;
                listener.bind(&SockAddr::unix(path)?)?;
                Ok(listener)
            };
            let listener = open().map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => occupied(path),
                _ => anyhow!("cannot listen on {}: {error}", path.display()),
            })?;
            // From here on it is ours to remove.
            let remove = |error: io::Error| {
                let _ = fs::remove_file(path);
                error
            };
            listener.listen(BACKLOG).map_err(remove)?;
            let absolute: PathBuf = std::path::absolute(path).map_err(remove)?;
            Ok((listener, Address::Unix(absolute)))
        }
    }
}

/// What is at a path that something is at.
fn occupied(path: &Path) -> anyhow::Error {
    let name = path.display();
    if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        return anyhow!("{name} exists, and is no socket; choose another path with --nbd");
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            anyhow!("{name} was left behind by a process that is gone; remove it, and try again")
        }
        _ => anyhow!("another process listens on {name}; choose another path with --nbd"),
    }
}
