//! What many connections, controllers, namespaces and subsystems cost.
use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;
use nvmf::block::{self, Engines, Spec};
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_tcp::std::catalog::Subsystem;
use nvmf_tcp::std::target::{Config, Running, Target as Library};

use crate::Suite;
use crate::measured::{Measured, Spread, against_first};
use crate::page::{Table, iops, ratio, us};
use crate::plot::{Plot, Series};
use crate::process::{Target, bench, bench_on};

/// Connections, controllers, commands under way on each, SPDK's thousands of IOPS.
type Load = (u32, u32, u32, Option<f64>);

const SHALLOW: [Load; 6] = [
    (1, 1, 1, None),
    (4, 1, 1, Some(178.0)),
    (16, 4, 1, Some(186.0)),
    (64, 16, 1, Some(185.0)),
    (256, 64, 1, Some(197.0)),
    (1024, 64, 1, None),
];

const DEEP: [Load; 6] = [
    (1, 1, 128, Some(815.0)),
    (4, 1, 32, None),
    (16, 4, 32, None),
    (64, 16, 32, Some(451.0)),
    (256, 64, 16, Some(348.0)),
    (1024, 64, 8, None),
];

const SAME: [Load; 4] = [
    (64, 1, 1, None),
    (64, 4, 1, None),
    (64, 16, 1, None),
    (64, 64, 1, None),
];

/// Of the best with fewer connections.
const KEPT: f64 = 0.9;

/// Turns; each is longer than others are, so that all connections are served often.
const ROUNDS: u32 = 3;

/// A table of loads, and the bare socket that gives the measure of the machine: its queue
/// depth, and its thousands of IOPS where SPDK was measured.
struct Measure {
    iodepth: u32,
    there: f64,
}

/// All of it.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    let words = "--ram 64M --workers 1 --poll-us 1000 --queue-depth 129";
    let target = Target::start(&suite.cores, &suite.cores.target, words)?;
    // Memory that was never written is not there to be read.
    let fill = format!(
        "{} --rw write --bs 128k --iodepth 8 --io-size 64M",
        target.url
    );
    bench_on(&suite.cores, &fill, Duration::from_secs(10))?;
    let mut text = format!(
        "`nvmf target {words}` on one core, and on another\n\
         `nvmf bench URL --bs 4k --hipri --connections N --controllers C --iodepth QD`: random reads by one thread that drives all\n\
         connections. *Spread* is of the connections: IOPS of the one served least and the one served most. The goals: 1.5 times\n\
         SPDK, where both are seen as shares of a bare socket of one connection; 0.90 of the best with fewer connections; a spread\n\
         within 2; no command over 1 s.\n\n"
    );
    let mut series = Vec::new();
    for (title, loads, iodepth, there) in [
        ("One command a connection", &SHALLOW, 1, 118.0),
        ("More of them", &DEEP, 32, 1240.0),
    ] {
        let loads = suite.some(loads.as_slice());
        let measure = Measure { iodepth, there };
        let (measured, bare) = in_turns(suite, &target, loads, &measure)?;
        write!(
            text,
            "### {title}\n\n\
             A bare socket at QD {iodepth}: {} IOPS here, {} there.\n\n{}\n",
            iops(bare),
            iops(there * 1000.0),
            table(loads, &measured, bare, &measure)
        )?;
        let totals = measured
            .iter()
            .map(|rounds| Spread::of(rounds.iter().map(|round| round.iops)).median);
        series.push(Series::new(title, totals));
    }
    let labels = suite.some(&SHALLOW).iter().map(|load| load.0.to_string());
    text += &Plot {
        name: "connections",
        title: "Random reads of 4 KiB, all connections together, polled",
        x: "connections, over up to 64 controllers",
        labels: labels.collect(),
        y: "IOPS",
        series,
    }
    .lines(&suite.plots)?;
    let loads = suite.some(&SAME);
    let measure = Measure {
        iodepth: 1,
        there: 118.0,
    };
    let (measured, bare) = in_turns(suite, &target, loads, &measure)?;
    write!(
        text,
        "\n### The same connections over more controllers\n\n{}\n",
        table(loads, &measured, bare, &measure)
    )?;
    drop(target);
    text += &contents(suite)?;
    Ok(text)
}

/// By load, and then by round; and IOPS of the bare socket.
fn in_turns(
    suite: &Suite,
    target: &Target,
    loads: &[Load],
    measure: &Measure,
) -> anyhow::Result<(Vec<Vec<Measured>>, f64)> {
    let mut all: Vec<Vec<Measured>> = loads.iter().map(|_| Vec::new()).collect();
    let mut bare = Vec::new();
    for _ in 0..ROUNDS.min(suite.rounds()) {
        let words = format!(
            "--null --reference --bs 4k --hipri --iodepth {}",
            measure.iodepth
        );
        let references = bench(&words, suite.turn(), 1)?;
        bare.extend(
            references
                .iter()
                .filter_map(|null| Some(null.hot.as_ref()?.iops)),
        );
        for ((connections, controllers, iodepth, _), measured) in loads.iter().zip(&mut all) {
            let words = format!(
                "{} --bs 4k --hipri --connections {connections} --controllers {controllers} --iodepth {iodepth}",
                target.url
            );
            measured.extend(bench_on(&suite.cores, &words, 2 * suite.turn())?);
        }
    }
    Ok((all, Spread::of(bare).median))
}

fn table(loads: &[Load], measured: &[Vec<Measured>], bare: f64, measure: &Measure) -> Table {
    let mut table = Table::new([
        "connections",
        "controllers",
        "QD of each",
        "IOPS, all together",
        "to the best before",
        "spread",
        "most / least",
        "worst µs",
        "SPDK there",
    ]);
    let mut best: f64 = 0.0;
    for ((connections, controllers, iodepth, spdk), rounds) in loads.iter().zip(measured) {
        let total = Spread::of(rounds.iter().map(|round| round.iops)).median;
        let kept = match best {
            0.0 => String::new(),
            best if total / best >= KEPT => format!("{:.2}: holds", total / best),
            best => format!("{:.2}: **no**", total / best),
        };
        best = best.max(total);
        let spreads = || rounds.iter().filter_map(|round| round.spread);
        let least = Spread::of(spreads().map(|(least, _)| least)).median;
        let most = Spread::of(spreads().map(|(_, most)| most)).median;
        let (spread, factor) = match spreads().next() {
            Some(_) => (
                format!("{} to {}", iops(least), iops(most)),
                format!("{:.2}", most / least.max(1e-9)),
            ),
            None => (String::new(), String::new()),
        };
        let spdk = spdk.map(|kilo| {
            let times = (total / bare.max(1e-9)) / (kilo / measure.there);
            let verdict = if times >= 1.5 { "holds" } else { "**no**" };
            format!(
                "{}; {times:.2} times its share: {verdict}",
                iops(kilo * 1000.0)
            )
        });
        table.row(&[
            connections.to_string(),
            controllers.to_string(),
            iodepth.to_string(),
            iops(total),
            kept,
            spread,
            factor,
            us(rounds.iter().map(|round| round.max).fold(0.0, f64::max)),
            spdk.unwrap_or_default(),
        ]);
    }
    table
}

/// A target of the library's, which has more subsystems than one.
struct Many {
    running: Option<Running>,
    /// Of the last namespace of the last subsystem.
    url: String,
}

impl Many {
    fn start(subsystems: usize, namespaces: u32) -> anyhow::Result<Self> {
        let engines = Engines::start(1)?;
        let spec = Spec::parse_null("1G")?;
        let name = |index: usize| format!("nqn.2014-08.org.example:suite-{index}");
        let all = (1..=subsystems).map(|index| {
            let nqn: Nqn = name(index).parse().ok().context("an NQN")?;
            let mut subsystem = Subsystem::new(nqn);
            for nsid in (1..=namespaces).map(Nsid) {
                subsystem
                    .namespaces
                    .push(block::open(&spec, &name(index), nsid, &engines)?);
            }
            Ok(subsystem)
        });
        let target = Library::bind(Config {
            listen: vec![([127, 0, 0, 1], 0).into()],
            subsystems: all.collect::<anyhow::Result<_>>()?,
            workers: Some(1),
            spin: Duration::from_millis(1),
            ..Config::default()
        })?;
        let address = target.local_addrs()[0];
        Ok(Self {
            url: format!(
                "nvme+tcp://{address}/{}?nsid={namespaces}",
                name(subsystems)
            ),
            running: Some(target.spawn()?),
        })
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stopper().stop();
            // Whether it stopped in order is not what is measured.
            let _ = running.join();
        }
    }
}

/// One namespace of many, one subsystem of many.
fn contents(suite: &Suite) -> anyhow::Result<String> {
    const KINDS: [(usize, u32); 5] = [(1, 1), (1, 64), (1, 1024), (64, 1), (64, 16)];
    let kinds = suite.some(&KINDS);
    let targets = kinds
        .iter()
        .map(|(subsystems, namespaces)| Many::start(*subsystems, *namespaces))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut rounds = Vec::new();
    for _ in 0..suite.rounds() {
        let mut round = Vec::new();
        for target in &targets {
            let words = format!("{} --bs 4k --iodepth 32 --hipri", target.url);
            round.extend(bench_on(&suite.cores, &words, suite.turn())?);
        }
        rounds.push(round);
    }
    let mut table = Table::new(["subsystems", "namespaces of each", "IOPS", "ratio to one"]);
    for ((subsystems, namespaces), (all, share)) in kinds.iter().zip(against_first(&rounds)) {
        table.row(&[
            subsystems.to_string(),
            namespaces.to_string(),
            iops(all.median),
            ratio(share),
        ]);
    }
    Ok(format!(
        "### More namespaces and subsystems\n\n\
         Random reads of 4 KiB at QD 32 of the last of them, which hold nothing: what is to be seen is whether the cost of an\n\
         I/O depends on how many there are.\n\n{table}"
    ))
}
