//! `nvmf target`.
use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};
use nvmf::block::spec::{Spec, parse_size};
use nvmf::block::{self, Engines, pool::Pool};
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_tcp::std::catalog::Subsystem;
use nvmf_tcp::std::rdma;
use nvmf_tcp::std::target::{Config, Error, SocketOptions, Stopper, Target};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use uuid::{Uuid, uuid};

/// The port that NVMe/TCP has with IANA, and NVMe/RDMA too.
const PORT: u16 = 4420;

/// RAM that is served when nothing else is, in bytes.
const DEFAULT_RAM: u64 = 256 << 20;

/// Memory and bytes for `--help`.
const EXAMPLES: &str = "\
Examples:
  Serve 256 MiB of RAM to this machine, to see that everything works:
      nvmf target

  Serve a disk image to the network; 100 GiB, sparse, created if missing:
      nvmf target --listen 0.0.0.0:4420 --file /srv/disk.img,size=100G

  Serve two namespaces (NSID 1: a device, NSID 2: 4 GiB of RAM with blocks of
  4096 bytes) to one host only, over IPv4 and IPv6:
      nvmf target --listen 192.0.2.7 --listen '[2001:db8::7]' \\
          --nqn nqn.2014-08.org.example:disks \\
          --allow-host nqn.2014-08.org.nvmexpress:uuid:4c4c4544-0046-... \\
          --file /dev/disk/by-id/nvme-... --ram 4G,bs=4096

  Serve by RDMA too, at the address of an RDMA device's interface (`rdma link`):
      nvmf target --listen 192.0.2.7 --listen rdma:192.0.2.7 --ram 4G

  Use it from Linux (package nvme-cli, module nvme-tcp or nvme-rdma):
      nvme discover -t tcp -a 192.0.2.7 -s 4420
      nvme connect -t tcp -a 192.0.2.7 -s 4420 -n nqn.2014-08.org.example:disks
      nvme list

When the target is ready it prints one line on standard output:
      ready nvme+tcp://ADDRESS:PORT/NQN
with the first listener's address, or nvme+rdma:// if it is one for RDMA; a script can wait for that. What happens
afterwards is logged on standard error, one line an event.

SIGTERM, SIGINT and SIGHUP stop it: it accepts nothing more, finishes what is
under way, closes, and exits with status 0. A second signal ends it at once.

SIZE is a number of bytes, or one with a unit that is a power of 1024: 512K,
64M, 1.5G, 2TiB.";

/// Serve namespaces over NVMe/TCP and NVMe/RDMA
///
/// Serves one NVM subsystem, and the discovery subsystem beside it, until it is
/// stopped. Both transports lead to the same namespaces and controllers. Namespaces are numbered from 1 in the order they are given; with
/// none given, 256 MiB of RAM are served.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to listen; may be repeated.
    ///
    /// A numeric address, with a port or without (4420), and with its transport or
    /// without (see --transport). For TCP port 0 is any free one, and 0.0.0.0 and [::]
    /// are all addresses of one family; give both for both. For RDMA it is an address
    /// of an RDMA device's.
    #[arg(
        long,
        value_name = "[tcp:|rdma:]ADDR[:PORT]",
        value_parser = parse_listen,
        default_value = "127.0.0.1:4420"
    )]
    listen: Vec<Listen>,

    /// The transport of those --listen addresses that do not say theirs.
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,

    /// The subsystem's name (SUBNQN).
    ///
    /// Without it the name is made from the machine's id and the first address, so
    /// that it stays the same from run to run and differs from every other target's.
    #[arg(long, value_parser = parse_nqn)]
    nqn: Option<Nqn>,

    #[command(flatten)]
    namespaces: Namespaces,

    #[command(flatten)]
    rdma: RdmaArgs,

    /// Let this host connect and no other; may be repeated.
    #[arg(long, value_name = "NQN", value_parser = parse_nqn)]
    allow_host: Vec<Nqn>,

    /// Serial number, at most 20 characters [default: made from the NQN].
    #[arg(long)]
    serial: Option<String>,

    /// Model number, at most 40 characters.
    #[arg(long, default_value = "nvmf")]
    model: String,

    /// Data that a write command may bring along over TCP, without being asked for it.
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_u32_size,
        default_value = "16K",
        help_heading = "Limits"
    )]
    inline_data: u32,

    /// I/O queues that a host may have, each a connection.
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Limits")]
    max_queues: u16,

    /// Entries of an I/O queue: commands under way at a time, and one.
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Limits")]
    queue_depth: u32,

    /// Data that one command may move; over RDMA 8M at most.
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_u32_size,
        default_value = "1M",
        help_heading = "Limits"
    )]
    max_transfer: u32,

    /// Controllers that may exist at a time: one for each connected host, or more.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        help_heading = "Limits"
    )]
    max_controllers: usize,

    /// Threads that serve connections, each bound to a core [default: one for each core].
    #[arg(long, value_name = "N", help_heading = "Threads")]
    workers: Option<usize>,

    /// Let the system move the threads from core to core.
    #[arg(long, help_heading = "Threads")]
    no_pin: bool,

    /// Leave each I/O queue with the thread that accepted it, to compare.
    ///
    /// Else it moves to the thread with the fewest of them, of all controllers.
    #[arg(long, help_heading = "Threads")]
    no_place: bool,

    /// Microseconds that a thread without work polls before it sleeps, 0 for never.
    ///
    /// Saves the time it takes to wake up, for hosts that wait for each command before
    /// they send the next. Costs that much of a core after a command, but only while commands
    /// come closer together than that: an idle target does not poll.
    #[arg(long, value_name = "N", default_value_t = 50, help_heading = "Threads")]
    poll_us: u32,

    /// Priority of packets within this machine (SO_PRIORITY), 0 to 6.
    #[arg(long, value_name = "N", help_heading = "Network")]
    so_priority: Option<u32>,

    /// The TOS or traffic class byte of packets: DSCP times 4. Decimal, or hexadecimal with 0x.
    #[arg(long, value_name = "BYTE", value_parser = parse_byte, help_heading = "Network")]
    tos: Option<u8>,

    /// Connections that may wait to be accepted.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        help_heading = "Network"
    )]
    backlog: u16,

    /// Agree to no header digests, even if a host asks.
    #[arg(long, help_heading = "Network")]
    no_header_digest: bool,

    /// Agree to no data digests, even if a host asks.
    #[arg(long, help_heading = "Network")]
    no_data_digest: bool,

    /// Alignment that hosts must give to data (CPDA): 4 bytes times one more than N, N from 0 to 31.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Network")]
    cpda: u8,
}

/// How RDMA is served.
#[derive(clap::Args)]
#[command(next_help_heading = "RDMA")]
struct RdmaArgs {
    /// Data that a write command may bring along over RDMA, up to 64K.
    ///
    /// A write that does is received at once; one that does not is fetched by RDMA READ, which
    /// takes a round trip more. Each receive is that much longer: see --srq-size.
    #[arg(long, value_name = "SIZE", value_parser = parse_u32_size, default_value = "16K")]
    rdma_inline_data: u32,

    /// Receives that each RDMA thread shares among its connections.
    ///
    /// So many commands may arrive at once; what comes on top of that is sent again. The memory
    /// is pinned: for each thread so many times --rdma-inline-data and 512 bytes, by default 16.5 MiB.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    srq_size: u32,

    /// Completions that an RDMA thread takes at a time.
    #[arg(long, value_name = "N", default_value_t = 32)]
    rdma_batch: usize,

    /// Threads for each RDMA address [default: one for each core, no more than the device's completion vectors].
    #[arg(long, value_name = "N")]
    rdma_workers: Option<usize>,
}

/// What carries the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    /// NVMe/TCP
    Tcp,
    /// NVMe/RDMA: takes a device, libibverbs and librdmacm
    Rdma,
}

/// A place to listen, and its transport if that is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listen {
    transport: Option<Transport>,
    address: SocketAddr,
}

/// What is served, in the order of the command line, whatever the options are.
struct Namespaces(Vec<Spec>);

const RAM: &str = "ram";
const FILE: &str = "file";
const NULL: &str = "null";

impl clap::Args for Namespaces {
    fn augment_args(command: Command) -> Command {
        let namespace = |id: &'static str, value: &'static str| {
            clap::Arg::new(id)
                .long(id)
                .value_name(value)
                .action(clap::ArgAction::Append)
                .help_heading("Namespaces (may be repeated, and mixed)")
        };
        command
            .arg(
                namespace(RAM, "SIZE[,bs=4096][,uuid=UUID]")
                    .value_parser(Spec::parse_ram)
                    .help("Serve memory, which is taken as it is written and lost in the end"),
            )
            .arg(
                namespace(FILE, "PATH[,size=SIZE][,OPTION...]")
                    .value_parser(Spec::parse_file)
                    .help("Serve a file or a block device")
                    .long_help(
                        "Serve a file or a block device\n\n\
                         size=SIZE creates a file that does not exist, without taking the space; \
                         bs= is the block size, 512 or 4096; ro forbids writing; uuid=UUID replaces \
                         the one that is made from the path.\n\n\
                         direct=on bypasses the page cache, or refuses where that is impossible; \
                         direct=off lets this machine cache the data; direct=auto, the default, \
                         bypasses it where it can. io=uring has the kernel do the I/O by io_uring, \
                         io=threads has threads do it; io=auto, the default, takes io_uring where \
                         it is there and permitted. Memory for direct I/O is registered with it, as \
                         far as `ulimit -l` permits, unless fixed=off.\n\n\
                         iopoll=on polls for completions of direct I/O, or refuses where the device has \
                         no queues to poll; iopoll=auto, the default, polls where it has (NVMe and \
                         virtio drivers take a parameter poll_queues). A thread that waits for such \
                         a device does not sleep.\n\n\
                         A comma in PATH is written twice.",
                    ),
            )
            .arg(
                namespace(NULL, "SIZE[,bs=4096][,uuid=UUID]")
                    .value_parser(Spec::parse_null)
                    .help("Serve nothing: zeroes are read, writes vanish; for measurements"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Namespaces {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut found = Vec::new();
        for id in [RAM, FILE, NULL] {
            let given = matches.value_source(id) == Some(ValueSource::CommandLine);
            if let (true, Some(indices), Some(specs)) =
                (given, matches.indices_of(id), matches.get_many::<Spec>(id))
            {
                found.extend(indices.zip(specs.cloned()));
            }
        }
        found.sort_by_key(|(index, _)| *index);
        if found.is_empty() {
            found.push((0, Spec::ram(DEFAULT_RAM)));
        }
        Ok(Self(found.into_iter().map(|(_, spec)| spec).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Serves until a signal comes.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    raise_file_limit();
    // Before any thread starts, so that none of them is interrupted in vain.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot handle signals")?;
    let nqn = args
        .nqn
        .clone()
        .unwrap_or_else(|| default_nqn(args.listen[0].address));
    let engines = Engines::start(Pool::default_size()).context("cannot start threads for files")?;
    let subsystem = subsystem(&args, &nqn, &engines)?;
    let config = config(&args, subsystem.clone());
    let stop_timeout = config.stop_timeout;
    let target = Target::bind(config).map_err(explain)?;
    stop_on_signal(signals, target.stopper(), stop_timeout)?;
    announce(&nqn, &listeners(&args, target.local_addrs()));
    let outcome = target.run().map_err(explain);
    tracing::info!("stopped");
    if outcome.is_ok() {
        // Whatever a device still does after its time was up ends with the process:
        // waiting for it could take for ever.
        process::exit(0);
    }
    outcome
}

/// Opens the namespaces.
fn subsystem(args: &Args, nqn: &Nqn, engines: &Engines) -> anyhow::Result<Subsystem> {
    let mut subsystem = Subsystem::new(nqn.clone());
    subsystem.model.clone_from(&args.model);
    if let Some(serial) = &args.serial {
        subsystem.serial.clone_from(serial);
    }
    if !args.allow_host.is_empty() {
        subsystem.allowed_hosts = Some(args.allow_host.clone());
    }
    for (nsid, spec) in (1..).map(Nsid).zip(&args.namespaces.0) {
        let namespace = block::open(spec, nqn.as_str(), nsid, engines)?;
        tracing::info!(nsid = nsid.0, "serving {spec}");
        subsystem.namespaces.push(namespace);
    }
    Ok(subsystem)
}

fn config(args: &Args, subsystem: Subsystem) -> Config {
    let mut config = Config {
        listen: addresses(args, Transport::Tcp),
        rdma: rdma::Config {
            listen: addresses(args, Transport::Rdma),
            inline_data: args.rdma.rdma_inline_data,
            shared_receives: args.rdma.srq_size,
            budget: args.rdma.rdma_batch,
            workers: args.rdma.rdma_workers,
        },
        sockets: SocketOptions {
            backlog: args.backlog,
            priority: args.so_priority,
            tos: args.tos,
        },
        subsystems: vec![subsystem],
        controllers: args.max_controllers,
        workers: args.workers,
        pin: !args.no_pin,
        place: !args.no_place,
        spin: Duration::from_micros(args.poll_us.into()),
        ..Config::default()
    };
    config.limits.io_queue_entries = args.queue_depth;
    config.limits.io_queues = args.max_queues;
    config.limits.inline_data = args.inline_data;
    config.limits.transfer = args.max_transfer;
    config.transport.header_digest = !args.no_header_digest;
    config.transport.data_digest = !args.no_data_digest;
    config.transport.cpda = args.cpda;
    config
}

/// Where to listen by one transport.
fn addresses(args: &Args, transport: Transport) -> Vec<SocketAddr> {
    let all = args.listen.iter();
    let theirs = all.filter(|listen| listen.transport.unwrap_or(args.transport) == transport);
    theirs.map(|listen| listen.address).collect()
}

/// Where it is listened, as URLs without a name, in the order of the command line. `tcp`
/// are the addresses for TCP, with the ports that were chosen.
fn listeners(args: &Args, tcp: &[SocketAddr]) -> Vec<String> {
    let mut tcp = tcp.iter();
    let url = |listen: &Listen| match listen.transport.unwrap_or(args.transport) {
        Transport::Tcp => Some(format!("nvme+tcp://{}", tcp.next()?)),
        Transport::Rdma => Some(format!("nvme+rdma://{}", listen.address)),
    };
    args.listen.iter().filter_map(url).collect()
}

/// The ready line, and where else hosts can connect.
fn announce(nqn: &Nqn, listeners: &[String]) {
    for listener in listeners {
        tracing::info!("listening on {listener}/{nqn}");
    }
    if let Some(listener) = listeners.first() {
        let mut stdout = std::io::stdout().lock();
        let written = writeln!(stdout, "ready {listener}/{nqn}");
        if let Err(error) = written.and_then(|()| stdout.flush()) {
            // Nobody reads it; hosts are served all the same.
            tracing::warn!("cannot print the ready line: {error}");
        }
    }
}

/// Stops the target at the first signal, and the process at the second.
fn stop_on_signal(
    mut signals: Signals,
    stopper: Stopper,
    stop_timeout: Duration,
) -> anyhow::Result<()> {
    let watch = move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            stopper.stop();
            tracing::info!("stopping: finishing what is under way");
        }
        let late = stop_timeout + Duration::from_secs(2);
        let in_time = thread::Builder::new().spawn(move || {
            thread::sleep(late);
            tracing::error!("did not stop in time");
            process::exit(1);
        });
        if signals.next().is_some() || in_time.is_err() {
            tracing::warn!("stopping at once");
            process::exit(1);
        }
    };
    thread::Builder::new()
        .name("nvmf-signals".to_owned())
        .spawn(watch)
        .context("cannot start a thread for signals")?;
    Ok(())
}

/// What to do about it in terms of the command line, where that is more than the library can say.
fn explain(error: Error) -> anyhow::Error {
    match error {
        Error::AddressInUse { address } => anyhow::anyhow!(
            "address in use: another process listens on {address}; \
             choose another with --listen, or stop it"
        ),
        error => error.into(),
    }
}

/// Each connection is a file to the system; take what it lets us have.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!("cannot raise the limit of open files: {error}");
    }
}

/// A name of this machine and this address, and of no other: two targets of one
/// name would be two paths to the same data in the eyes of a host.
fn default_nqn(address: SocketAddr) -> Nqn {
    const NAME_SPACE: Uuid = uuid!("5a0f6c3e-3c0b-4f0e-9d53-6b1c35c7a2d4");
    // The machine's id is not for the network to see, so it is hashed.
    let machine = ["/etc/machine-id", "/proc/sys/kernel/hostname"]
        .into_iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .find(|id| !id.trim().is_empty())
        .unwrap_or_default();
    // A port that the system chooses does not tell one target from another.
    let once = match address.port() {
        1.. => String::new(),
        0 => fs::read_to_string("/proc/sys/kernel/random/uuid")
            .unwrap_or_else(|_| std::process::id().to_string()),
    };
    let name = format!("{} {address}{once}", machine.trim());
    let uuid = Uuid::new_v5(&NAME_SPACE, name.as_bytes());
    format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")
        .parse()
        .unwrap_or_else(|_| unreachable!("68 characters of ASCII"))
}

fn parse_listen(text: &str) -> Result<Listen, String> {
    let (transport, address) = match text.split_once(':') {
        Some(("tcp", address)) => (Some(Transport::Tcp), address),
        Some(("rdma", address)) => (Some(Transport::Rdma), address),
        _ => (None, text),
    };
    parse_address(address).map(|address| Listen { transport, address })
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    text.parse::<SocketAddr>()
        .or_else(|_| {
            let ip: IpAddr = bare.unwrap_or(text).parse()?;
            Ok(SocketAddr::new(ip, PORT))
        })
        .map_err(|_: std::net::AddrParseError| {
            "write a numeric address, such as 0.0.0.0:4420 or [::1]:4420".to_owned()
        })
}

fn parse_nqn(text: &str) -> Result<Nqn, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn parse_u32_size(text: &str) -> Result<u32, String> {
    if text == "0" {
        return Ok(0);
    }
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes).map_err(|_| "too large".to_owned())
}

fn parse_byte(text: &str) -> Result<u8, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "write a number from 0 to 255, or 0x00 to 0xff".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use nvmf::block::spec::Kind;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        let words = std::iter::once("target").chain(line.split_whitespace());
        Probe::try_parse_from(words).map(|probe| probe.args)
    }

    #[test]
    fn namespaces_keep_their_order_across_options() {
        let args = parse("--ram 1M --file /x --null 2M --ram 3M,bs=4096 --file /y,ro").ok();
        let kinds: Vec<String> = args
            .expect("good arguments")
            .namespaces
            .0
            .iter()
            .map(|spec| match &spec.kind {
                Kind::Ram { bytes } => format!("ram {bytes}"),
                Kind::Null { bytes } => format!("null {bytes}"),
                Kind::File { path, .. } => path.display().to_string(),
            })
            .collect();
        assert_eq!(
            kinds,
            ["ram 1048576", "/x", "null 2097152", "ram 3145728", "/y"]
        );
    }

    #[test]
    fn defaults() {
        let args = parse("").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(args.namespaces.0, [Spec::ram(256 << 20)]);
        assert_eq!(args.listen, [parse_listen("127.0.0.1:4420").unwrap()]);
        let config = config(&args, Subsystem::new(Nqn::discovery()));
        let default = Config::default();
        assert_eq!(config.limits, default.limits);
        assert_eq!(config.listen, ["127.0.0.1:4420".parse().unwrap()]);
        assert!(config.rdma.listen.is_empty());
        assert_eq!(config.rdma.inline_data, default.rdma.inline_data);
        assert_eq!(config.rdma.shared_receives, default.rdma.shared_receives);
        assert_eq!(config.rdma.budget, default.rdma.budget);
        assert_eq!(config.sockets, default.sockets);
        assert_eq!(config.controllers, default.controllers);
    }

    #[test]
    fn addresses_with_and_without_a_port() {
        for (text, address) in [
            ("192.0.2.7:1", "192.0.2.7:1"),
            ("192.0.2.7", "192.0.2.7:4420"),
            ("[::1]:0", "[::1]:0"),
            ("[::1]", "[::1]:4420"),
            ("::1", "[::1]:4420"),
        ] {
            assert_eq!(parse_address(text), Ok(address.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "localhost",
            "192.0.2.7:",
            "192.0.2.7:65536",
            "[::1",
            ":4420",
            "rdma:",
            "fc:192.0.2.7",
        ] {
            assert!(parse_listen(text).is_err(), "{text}");
        }
    }

    #[test]
    fn each_address_has_its_transport() {
        let cases = [
            ("--listen 192.0.2.7", "nvme+tcp://192.0.2.7:0", ""),
            (
                "--transport rdma --listen 192.0.2.7",
                "nvme+rdma://192.0.2.7:4420",
                "192.0.2.7:4420",
            ),
            (
                "--listen 192.0.2.7 --listen rdma:192.0.2.8:4421",
                "nvme+tcp://192.0.2.7:0 nvme+rdma://192.0.2.8:4421",
                "192.0.2.8:4421",
            ),
            (
                "--transport rdma --listen ::1 --listen tcp:192.0.2.7",
                "nvme+rdma://[::1]:4420 nvme+tcp://192.0.2.7:0",
                "[::1]:4420",
            ),
        ];
        for (line, urls, rdma) in cases {
            let args = parse(line).unwrap_or_else(|error| panic!("{error}"));
            // As if the system chose the port.
            let tcp = ["192.0.2.7:0".parse().unwrap()];
            assert_eq!(listeners(&args, &tcp).join(" "), urls, "{line}");
            let config = config(&args, Subsystem::new(Nqn::discovery()));
            let listened: Vec<_> = config.rdma.listen.iter().map(ToString::to_string).collect();
            assert_eq!(listened.join(" "), rdma, "{line}");
        }
    }

    #[test]
    fn bytes_in_both_notations() {
        assert_eq!(parse_byte("0x48"), Ok(72));
        assert_eq!(parse_byte("184"), Ok(184));
        for text in ["", "0x", "256", "0x100", "-1"] {
            assert!(parse_byte(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_default_name_belongs_to_its_address() {
        let name = |text: &str| default_nqn(text.parse().unwrap());
        assert_eq!(name("127.0.0.1:4420"), name("127.0.0.1:4420"));
        assert_ne!(name("127.0.0.1:4420"), name("127.0.0.1:4421"));
        assert_ne!(name("127.0.0.1:0"), name("127.0.0.1:0"));
        assert!(name("127.0.0.1:4420").has_prefix());
    }

    #[test]
    fn nonsense_is_refused_with_an_explanation() {
        for (line, explanation) in [
            ("--ram 1000", "not a multiple of the block size"),
            ("--listen here", "numeric address"),
            ("--listen rdma:here", "numeric address"),
            ("--transport fc", "[possible values: tcp, rdma]"),
            ("--tos 300", "0 to 255"),
            ("--queue-depth many", "invalid digit"),
        ] {
            let error = parse(line).err().expect(line);
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(explanation), "{line}: {error}");
        }
    }
}
