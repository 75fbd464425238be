//! `nvmf demo`.
use std::fmt;
use std::time::Duration;

use anyhow::{Context, ensure};
use nvmf::block::spec::Spec;
use nvmf::block::{self, Engines};
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_tcp::std::catalog::Subsystem;
use nvmf_tcp::std::host::{Controller, Namespace, Options, Url};
use nvmf_tcp::std::target::{Config, Target};
use serde_json::{Value, json};

use super::bench::{HEADING, Job, Rw, measure, noise, parse_seconds};
use super::{Output, OutputArgs, connect, print};

/// RAM that is served, in bytes.
const RAM: u64 = 32 << 20;

/// Bytes of data that are checked at a time.
const PIECE: usize = 1 << 20;

const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6e766d66-6465-4d6f-8000-000000000001";

const WHAT_NEXT: &str = "
Try next:
  nvmf target --ram 1G                      serve memory; it prints the URL to use
  nvmf discover nvme+tcp://127.0.0.1        what does it offer?
  nvmf bench URL --rw randrw --iodepth 64   how fast is it?
  nvmf target --help                        serve files and disks to Linux hosts";

/// Show that everything works: a target and a host, on this machine
///
/// Starts a target of 32 MiB of RAM on a free port of the loopback interface, discovers it,
/// connects, writes and verifies, and measures for a few seconds. Leaves nothing behind.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nvmf demo --runtime 0.5
  nvmf demo --output json")]
pub(crate) struct Args {
    /// Seconds for each measurement
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "1")]
    runtime: Duration,

    #[command(flatten)]
    output: OutputArgs,
}

/// All of it.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let nqn: Nqn = NQN.parse().context("the demo's NQN")?;
    let engines = Engines::start(1).context("cannot start a thread")?;
    let mut subsystem = Subsystem::new(nqn);
    subsystem
        .namespaces
        .push(block::open(&Spec::ram(RAM), NQN, Nsid(1), &engines)?);
    let target = Target::bind(Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        subsystems: vec![subsystem],
        pin: false,
        ..Config::default()
    })?;
    let address = target.local_addrs()[0];
    let running = target.spawn()?;
    let outcome = tour(&format!("nvme+tcp://{address}"), args);
    running.stopper().stop();
    running.join()?;
    outcome
}

fn tour(base: &str, args: &Args) -> anyhow::Result<()> {
    let say = |line: fmt::Arguments<'_>| match args.output.output {
        Output::Text => print(format!("{line}\n").as_bytes()),
        Output::Json => Ok(()),
    };
    let mut document = json!({"target": base, "ram": RAM, "jobs": []});
    say(format_args!("target    {base}, {} MiB of RAM", RAM >> 20))?;

    let entries = Controller::connect(&base.parse()?, &Options::default())?.discover()?;
    let found = entries
        .iter()
        .filter_map(|entry| entry.subnqn().ok())
        .find(|nqn| !nqn.is_discovery())
        .context("the target offers no subsystem")?;
    say(format_args!("discover  {found}"))?;
    document["subnqn"] = found.to_string().into();

    let url: Url = format!("{base}/{found}?nsid=1").parse()?;
    for digests in [true, false] {
        let options = Options {
            header_digest: digests,
            data_digest: digests,
            ..Options::default()
        };
        let controller = connect(&url, &options)?;
        let can = *controller.capabilities();
        let mut namespace = controller.namespace(Nsid(1))?;
        if digests {
            say(format_args!(
                "connect   controller {}, NVMe {}, {} I/O queues granted",
                can.cntlid, can.vs, can.io_queues
            ))?;
            say(format_args!(
                "namespace {} blocks of {} bytes",
                namespace.blocks(),
                namespace.block_size()
            ))?;
            document["cntlid"] = can.cntlid.0.into();
            document["version"] = can.vs.to_string().into();
            document["io_queues"] = can.io_queues.into();
            document["blocks"] = namespace.blocks().into();
            document["block_size"] = namespace.block_size().into();
        }
        verify(&mut namespace, u64::from(digests))?;
        let how = if digests { "with" } else { "without" };
        say(format_args!(
            "verify    {} MiB written, read and compared, {how} digests: the same",
            RAM >> 20
        ))?;
        document["verified"][format!("{how}_digests")] = RAM.into();
        if digests {
            continue;
        }
        say(format_args!("\n{HEADING}"))?;
        for (rw, iodepth) in [
            (Rw::Randread, 1),
            (Rw::Randwrite, 1),
            (Rw::Randread, 32),
            (Rw::Randwrite, 32),
        ] {
            let job = Job {
                rw,
                bs: 4096,
                iodepth,
                batch: None,
                rwmixread: 50,
                hipri: false,
            };
            let report = measure(&mut namespace, &job, args.runtime)?;
            say(format_args!("{}", report.rows()))?;
            if let Value::Array(jobs) = &mut document["jobs"] {
                jobs.push(report.entry());
            }
        }
    }
    args.output.print(|| format!("{WHAT_NEXT}\n"), || document)
}

/// Writes the whole namespace, then reads it back, and has the controller compare.
fn verify(namespace: &mut Namespace, seed: u64) -> anyhow::Result<()> {
    let blocks = PIECE as u64 / u64::from(namespace.block_size());
    let pieces = RAM / PIECE as u64;
    let pattern = |piece: u64| noise(piece << 1 | seed, PIECE);
    for piece in 0..pieces {
        namespace.write(piece * blocks, pattern(piece).as_ref())?;
    }
    namespace.flush()?;
    let mut read = vec![0; PIECE];
    for piece in 0..pieces {
        let expected = pattern(piece);
        namespace.read(piece * blocks, &mut read)?;
        let expected = expected.as_ref();
        ensure!(read == expected, "MiB {piece} is not what was written");
        namespace.compare(piece * blocks, expected)?;
    }
    Ok(())
}
