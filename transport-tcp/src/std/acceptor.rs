//! Accepts connections and gives each to a worker.
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::mailbox::Message;
use super::shared::Shared;
use super::waker::Waker;

/// Connections accepted from one listener before the next has its turn.
const TURN: usize = 64;

/// How long nothing is accepted when the system has no room for more.
const BACK_OFF: Duration = Duration::from_millis(200);

/// Runs until the target stops.
pub(super) fn run(listeners: &[TcpListener], waker: &Waker, shared: &Shared) {
    let mut exhausted = false;
    while !shared.is_stopping() {
        // While exhausted, a waiting connection would wake us over and over.
        let watched = if exhausted { &[] } else { listeners };
        let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
        fds.extend(watched.iter().map(|l| PollFd::new(l, PollFlags::IN)));
        let timeout = exhausted
            .then(|| Timespec::try_from(BACK_OFF).ok())
            .flatten();
        if waker.sleep() {
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => panic!("poll: {error}"),
            }
        }
        waker.awake();
        if shared.is_stopping() {
            return;
        }
        let mut full = false;
        for (index, listener) in listeners.iter().enumerate() {
            match accept_some(listener, |socket| {
                let worker = shared.placement().admit();
                shared.mailboxes[worker].put(Message::Accepted(socket, index));
            }) {
                Ok(()) => {}
                Err(error) => {
                    full = true;
                    if !exhausted {
                        tracing::error!(
                            %error,
                            "cannot accept connections for now; raise the limit of open files (ulimit -n) if this stays"
                        );
                    }
                }
            }
        }
        if exhausted && !full {
            tracing::info!("accepting connections again");
        }
        exhausted = full;
    }
}

/// Accepts what waits, up to a bound.
///
/// # Errors
/// The system has no room for another connection.
fn accept_some(listener: &TcpListener, mut give: impl FnMut(TcpStream)) -> Result<(), Errno> {
    for _ in 0..TURN {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => give(socket.into()),
            Err(Errno::AGAIN) => return Ok(()),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                return Err(error);
            }
            // Everything else is this one connection's misfortune: see accept(2).
            Err(_) => {}
        }
    }
    Ok(())
}
