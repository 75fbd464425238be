//! `nvmf export`: a remote namespace as an NBD server.
//!
//! ```text
//! client ── socket ── connection ── volume ── NVMe/TCP
//!                     take_requests: request → Operation
//!                     send_replies:  Operation → reply
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`protocol`] | the messages, as bytes |
//! | [`negotiation`] | the options before the first request |
//! | [`request`] | what a request asks for, or why it is refused |
//! | [`connection`] | one client |
//! | [`server`] | the listener, and all clients |
//! | [`volume`] | the namespace |
//! | [`address`] | `unix:/path`, `tcp:ADDR:PORT` and their URIs |
mod address;
mod connection;
mod negotiation;
mod protocol;
mod request;
mod server;
mod volume;

use std::process;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use nvmf_tcp::std::host::Event;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::address::Address;
use self::server::Server;
use self::volume::Volume;
use crate::host::{NamespaceArgs, OutputArgs, RecoveryArgs, given_up};

/// How long what is under way may take once the server is told to stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// A string of the NBD protocol, bytes.
const MAX_NAME: usize = 4096;

const EXAMPLES: &str = "\
Examples:
  Offer a namespace to programs of this machine:
      nvmf export nvme+tcp://192.0.2.7/NQN --nbd unix:/run/disk.sock

  Copy it to a file, and a file to it (package qemu-utils):
      qemu-img convert -O raw 'nbd+unix:///?socket=/run/disk.sock' disk.img
      qemu-img convert -n -O raw disk.img 'nbd+unix:///?socket=/run/disk.sock'

  The same over four connections (package libnbd-bin):
      nbdcopy --connections=4 'nbd+unix:///?socket=/run/disk.sock' disk.img

  A virtual machine's disk (package qemu-system-x86):
      qemu-system-x86_64 ... \\
          -blockdev nbd,node-name=disk,server.type=unix,server.path=/run/disk.sock \\
          -device virtio-blk-pci,drive=disk

  A block device of this machine (package nbd-client, module nbd):
      nbd-client -unix /run/disk.sock /dev/nbd0

When the server is ready it prints one line on standard output:
      ready nbd+unix:///?socket=/run/disk.sock
with the URI that clients use. What happens afterwards is logged on standard
error, one line an event.

When the target is lost, requests wait while the connection is made again, and
are sent again where that is safe; --ctrl-loss-tmo says for how long, and
--fast-io-fail-tmo lets them fail earlier. If the target does not come back in
time, the server ends with status 3.

SIGTERM, SIGINT and SIGHUP stop it: it takes no more requests, finishes what is
under way, removes its socket, and exits with status 0. A second signal ends it
at once.

Who may connect to a socket of the file system is decided by its directory and
its mode (umask). TCP has nothing of the kind, and no encryption: whoever reaches
the port reads and writes.";

/// Serve a namespace as a network block device (NBD)
///
/// QEMU, qemu-img, nbdcopy and the kernel's nbd-client can then use an NVMe-oF
/// namespace without the kernel's NVMe driver. Any number of clients up to 64 may be
/// connected, and one client several times: a flush of one covers the writes of all.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Where to listen: unix:/path or tcp:ADDR[:PORT].
    ///
    /// A path must not exist yet. An address is numeric; without a port it is 10809,
    /// and port 0 is any free one.
    #[arg(long, value_name = "unix:PATH|tcp:ADDR[:PORT]")]
    nbd: Address,

    /// The export's name, by which clients may ask for it [default: the NQN].
    ///
    /// A client that gives no name gets it too.
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,

    /// Let clients read only.
    #[arg(long)]
    read_only: bool,

    #[command(flatten)]
    recovery: RecoveryArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Why the server stops.
enum Stop {
    Signal,
    /// The controller was given up.
    Gone,
}

/// Serves until a signal comes, or the controller is given up.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    // Before any thread starts, so that none of them is interrupted in vain.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot handle signals")?;
    let (association, namespace) = args.namespace.attach(&args.recovery)?;
    let (stop, stops) = mpsc::channel();
    watch(association.events(), stop.clone())?;
    let (volume, export) = Volume::new(&association, namespace, args.name, args.read_only)?;
    let mut server = Server::start(&args.nbd, export, volume)?;
    stop_on_signal(signals, stop)?;
    announce(&server, &args.output);
    let why = stops.recv();
    tracing::info!("stopping: finishing what is under way");
    let finished = server.stop(PATIENCE);
    if matches!(why, Ok(Stop::Gone)) {
        return Err(given_up(&association));
    }
    if !finished {
        let patience = PATIENCE.as_secs();
        bail!("not all that was under way was finished within {patience} s");
    }
    tracing::info!("stopped");
    Ok(())
}

/// Logs what happens to the association, and stops the server at its end.
fn watch(events: Receiver<Event>, stop: Sender<Stop>) -> anyhow::Result<()> {
    let watch = move || {
        for event in events {
            match event {
                Event::Reconnected => tracing::info!("target: {event}"),
                _ => tracing::warn!("target: {event}"),
            }
            if matches!(event, Event::Gone) {
                // Nobody listens if it stops already.
                let _ = stop.send(Stop::Gone);
            }
        }
    };
    thread::Builder::new()
        .name("nbd-events".to_owned())
        .spawn(watch)
        .context("cannot start a thread for events")?;
    Ok(())
}

/// Stops the server at the first signal, and the process at the second.
fn stop_on_signal(mut signals: Signals, stop: Sender<Stop>) -> anyhow::Result<()> {
    let watch = move || {
        let mut signals = signals.forever();
        signals.next();
        // Nobody listens if it stops already.
        let _ = stop.send(Stop::Signal);
        if signals.next().is_some() {
            tracing::warn!("stopping at once");
            process::exit(1);
        }
    };
    thread::Builder::new()
        .name("nbd-signals".to_owned())
        .spawn(watch)
        .context("cannot start a thread for signals")?;
    Ok(())
}

/// The ready line. That nobody reads it is no reason not to serve.
fn announce(server: &Server, output: &OutputArgs) {
    let (address, export) = (server.address(), server.export());
    let printed = output.print(
        || format!("ready {address}\n"),
        || {
            json!({
                "ready": address.to_string(),
                "name": export.name,
                "size": export.size,
                "block_size": export.block_size,
                "read_only": export.read_only,
            })
        },
    );
    if let Err(error) = printed {
        tracing::warn!("cannot print the ready line: {error}");
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    if text.len() > MAX_NAME {
        return Err(format!("a name has at most {MAX_NAME} bytes"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod testing {
    /// Numbers without a pattern, always the same.
    pub(super) fn numbers() -> impl FnMut() -> u64 {
        let mut state = 1_u64;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }
}
