//! SO_PRIORITY, without and with a queueing discipline that looks at it, between two
//! network namespaces of our own.
use std::fmt::Write;
use std::process::{Child, Command, Stdio, id};
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::Suite;
use crate::measured::{Measured, Spread};
use crate::page::{Table, iops, us};
use crate::process::{NVMF, Target, measured, output};

/// What HTB takes for its class 1:10 (tc-htb(8): SO_PRIORITY may name a class). With the
/// discipline `prio`, 6 would do the same; but not every kernel has that.
const URGENT: &str = "--so-priority 65552";

/// More than two cores have to say to each other if one of them is busy with the rest.
const RATE: &str = "4gbit";

const COMBINATIONS: [(&str, bool, bool); 4] = [
    ("none", false, false),
    ("host", false, true),
    ("target", true, false),
    ("both", true, true),
];

/// Reads beside bulk traffic: their priority, and who looks at it.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    let namespaces = match Namespaces::new() {
        Ok(namespaces) => namespaces,
        Err(error) => {
            return Ok(format!(
                "Skipped: it takes root, `ip` and `tc` to make network namespaces, and there was: {error:#}\n"
            ));
        }
    };
    let target = |option| {
        suite
            .cores
            .on(&suite.cores.target, || namespaces.target(option))?
    };
    let (urgent, usual, bulk) = (target(URGENT)?, target("")?, target("")?);
    let mut table = Table::new([
        "queueing discipline",
        "priority set by",
        "IOPS",
        "mean µs",
        "p99 µs",
        "p99.99 µs",
    ]);
    for discipline in ["none", "htb"] {
        if discipline == "htb" {
            namespaces.discipline()?;
        }
        let on_host = &suite.cores.host;
        let _bulk = suite.cores.on(on_host, || namespaces.bulk(&bulk.url))??;
        let mut rounds: Vec<Vec<Measured>> = Vec::new();
        for _ in 0..suite.rounds() {
            let mut round = Vec::new();
            for (_, at_target, at_host) in COMBINATIONS {
                let url = if at_target { &urgent.url } else { &usual.url };
                let option = if at_host { URGENT } else { "" };
                let runtime = (2 * suite.turn()).as_secs_f64();
                let words =
                    format!("bench {url} --bs 4k --iodepth 1 --runtime {runtime} -o json {option}");
                round.extend(measured(&mut namespaces.command(Namespaces::HOST, &words))?);
            }
            rounds.push(round);
        }
        for (index, (who, ..)) in COMBINATIONS.iter().enumerate() {
            let median = |of: fn(&Measured) -> f64| {
                Spread::of(rounds.iter().map(|round| of(&round[index]))).median
            };
            table.row(&[
                discipline.to_owned(),
                (*who).to_owned(),
                iops(median(|measured| measured.iops)),
                us(median(|measured| measured.mean)),
                us(median(|measured| measured.p99)),
                us(median(|measured| measured.p9999)),
            ]);
        }
    }
    let mut text = String::new();
    write!(
        text,
        "Two network namespaces, joined by a veth pair. `nvmf target --ram 64M --workers 1 [{URGENT}]` is in one, and in\n\
         the other `nvmf bench URL --bs 4k --iodepth 1 [{URGENT}]`, asleep between commands, beside a bench without\n\
         priority that reads and writes 128 KiB at QD 32 all the time. All targets are on one core, and both hosts on another.\n\
         *htb*, on both ends of the pair, lets {RATE} pass, those of class 1:10 before all others: that is the class that 65552,\n\
         10010h, names. On a link without a discipline nobody looks at priorities.\n\n{table}"
    )?;
    Ok(text)
}

/// Two network namespaces, gone when dropped.
struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    const TARGET: usize = 0;
    const HOST: usize = 1;

    fn new() -> anyhow::Result<Self> {
        let namespaces = Self {
            names: ["target", "host"].map(|end| format!("nvmf-suite-{}-{end}", id())),
        };
        let [target, host] = &namespaces.names;
        ip(&format!("netns add {target}"))?;
        ip(&format!("netns add {host}"))?;
        ip(&format!(
            "link add veth0 netns {target} type veth peer name veth0 netns {host}"
        ))?;
        for (name, address) in [(target, "192.0.2.1"), (host, "192.0.2.2")] {
            ip(&format!("-n {name} addr add {address}/24 dev veth0"))?;
            ip(&format!("-n {name} link set veth0 up"))?;
        }
        Ok(namespaces)
    }

    /// A command of the program's, in one of them.
    fn command(&self, end: usize, words: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[end], NVMF]);
        command
            .args(words.split_whitespace())
            .env_remove("RUST_LOG");
        command
    }

    fn target(&self, option: &str) -> anyhow::Result<Target> {
        let words = format!("target -q --listen 192.0.2.1:0 --ram 64M --workers 1 {option}");
        Target::spawn(&mut self.command(Self::TARGET, &words))
    }

    /// Traffic without priority, until it is dropped.
    fn bulk(&self, url: &str) -> anyhow::Result<Bulk> {
        let words =
            format!("bench {url} --rw randrw --bs 128k --iodepth 32 --runtime 120 --eta never");
        let mut command = self.command(Self::HOST, &words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let bulk = Bulk(command.spawn().context("ip")?);
        thread::sleep(Duration::from_millis(200));
        Ok(bulk)
    }

    /// Lets some pass before others, at both ends.
    fn discipline(&self) -> anyhow::Result<()> {
        for name in &self.names {
            for words in [
                "qdisc add dev veth0 root handle 1: htb default 20".to_owned(),
                format!("class add dev veth0 parent 1: classid 1:1 htb rate {RATE} quantum 60000"),
                format!(
                    "class add dev veth0 parent 1:1 classid 1:10 htb rate 1gbit ceil {RATE} prio 0 quantum 60000"
                ),
                format!(
                    "class add dev veth0 parent 1:1 classid 1:20 htb rate 1gbit ceil {RATE} prio 1 quantum 60000"
                ),
            ] {
                let args = words.split_whitespace();
                output(Command::new("tc").args(["-n", name]).args(args))?;
            }
        }
        Ok(())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // It may not be there, if the other could not be made.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(words: &str) -> anyhow::Result<()> {
    output(Command::new("ip").args(words.split_whitespace())).map(drop)
}

/// A bench that goes on; ended when dropped.
struct Bulk(Child);

impl Drop for Bulk {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
