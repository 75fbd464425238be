//! What many connections, controllers, namespaces and subsystems cost.
use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;
use nvmf::block::{self, Engines, Spec};
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_tcp::std::catalog::Subsystem;
use nvmf_tcp::std::target::{Config, Running, Target as Library};

use crate::Suite;
use crate::measured::{Measured, Reference, Spread, against_first};
use crate::page::{Table, iops, ratio, us};
use crate::plot::{Plot, Series};
use crate::process::{bench, bench_on};

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

/// A table of loads, and IOPS of one bare socket at their queue depth where SPDK was measured,
/// in thousands.
struct Measure<'a> {
    title: &'static str,
    loads: &'a [Load],
    there: f64,
}

/// All of it.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    let mut text = String::from(
        "`nvmf bench --reference=both --bs 4k --hipri --connections N --controllers C --iodepth QD` on two cores: random reads of\n\
         64 MiB of RAM by one thread that drives all connections, served by one worker. *Bare* are as many bare sockets, driven\n\
         and served likewise, whose payloads stay in the cache (hot); what the system takes for more connections, it takes from\n\
         them as well. *Spread* is of our connections: IOPS of the one served least and the one served most. The goals: 0.90 of\n\
         the best with fewer connections; 1.5 times SPDK, where both are seen as shares of one bare socket, that of the first\n\
         row here; a spread within 2; no command over 1 s.\n\n",
    );
    let mut series = Vec::new();
    for (name, bare, title, loads, there) in [
        (
            "one command each",
            "bare, one command each",
            "One command a connection",
            &SHALLOW,
            118.0,
        ),
        ("more", "bare, more", "More of them", &DEEP, 1725.0),
    ] {
        let measure = Measure {
            title,
            loads: suite.some(loads.as_slice()),
            there,
        };
        let rounds = in_turns(suite, measure.loads)?;
        write!(text, "{}", measure.section(&rounds)?)?;
        series.push(Series::new(name, rounds.iter().map(|load| total(load))));
        series.push(Series::new(
            bare,
            rounds.iter().map(|load| bare_total(load)),
        ));
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
    let measure = Measure {
        title: "The same connections over more controllers",
        loads: suite.some(&SAME),
        there: 118.0,
    };
    write!(
        text,
        "\n{}",
        measure.section(&in_turns(suite, measure.loads)?)?
    )?;
    text += &contents(suite)?;
    Ok(text)
}

/// By load, and then by round.
fn in_turns(suite: &Suite, loads: &[Load]) -> anyhow::Result<Vec<Vec<Measured>>> {
    let cores = [suite.cores.target[0], suite.cores.host[0]];
    let mut all: Vec<Vec<Measured>> = loads.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS.min(suite.rounds()) {
        for ((connections, controllers, iodepth, _), measured) in loads.iter().zip(&mut all) {
            let words = format!(
                "--ram --reference=both --bs 4k --hipri --connections {connections} --controllers {controllers} \
                 --iodepth {iodepth}"
            );
            let run = || bench(&words, 2 * suite.turn(), 1);
            measured.extend(suite.cores.on(&cores, run)??);
        }
    }
    Ok(all)
}

/// IOPS of all connections.
fn total(rounds: &[Measured]) -> f64 {
    Spread::of(rounds.iter().map(|round| round.iops)).median
}

/// IOPS of as many bare sockets.
fn bare_total(rounds: &[Measured]) -> f64 {
    let bare = |round: &Measured| round.hot.as_ref().map(|bare| bare.iops);
    Spread::of(rounds.iter().filter_map(bare)).median
}

/// A row's share of the best of the rows before it.
struct Kept(f64);

impl Kept {
    fn next(&mut self, total: f64) -> Option<f64> {
        let best = self.0;
        self.0 = best.max(total);
        (best > 0.0).then(|| total / best)
    }
}

impl Measure<'_> {
    fn section(&self, all: &[Vec<Measured>]) -> anyhow::Result<String> {
        let one = all.first().map_or(0.0, |rounds| bare_total(rounds));
        Ok(format!(
            "### {}\n\n{}\n",
            self.title,
            self.table(all, one.max(1e-9))
        ))
    }

    /// `one` bare socket's IOPS are the measure of the machine.
    fn table(&self, all: &[Vec<Measured>], one: f64) -> Table {
        let mut table = Table::new([
            "connections",
            "controllers",
            "QD of each",
            "IOPS, all together",
            "to the best before",
            "bare IOPS",
            "to the best before",
            "ratio, hot",
            "ratio, same memory",
            "spread",
            "most / least",
            "worst µs",
            "SPDK there",
        ]);
        let (mut ours, mut bare) = (Kept(0.0), Kept(0.0));
        for ((connections, controllers, iodepth, spdk), rounds) in self.loads.iter().zip(all) {
            let kept = ours.next(total(rounds)).map(|kept| {
                let verdict = if kept >= KEPT { "holds" } else { "**no**" };
                format!("{kept:.2}: {verdict}")
            });
            let bare_kept = bare.next(bare_total(rounds));
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
                let times = (total(rounds) / one) / (kilo / self.there);
                let verdict = if times >= 1.5 { "holds" } else { "**no**" };
                format!(
                    "{}; {times:.2} times its share: {verdict}",
                    iops(kilo * 1000.0)
                )
            });
            let share = |of: fn(&Measured) -> &Option<Reference>| {
                let medians = rounds
                    .iter()
                    .filter_map(|round| Some(of(round).as_ref()?.ratio.median));
                ratio(Spread::of(medians))
            };
            table.row(&[
                connections.to_string(),
                controllers.to_string(),
                iodepth.to_string(),
                iops(total(rounds)),
                kept.unwrap_or_default(),
                iops(bare_total(rounds)),
                bare_kept.map_or_else(String::new, |kept| format!("{kept:.2}")),
                share(|round| &round.hot),
                share(|round| &round.same),
                spread,
                factor,
                us(rounds.iter().map(|round| round.max).fold(0.0, f64::max)),
                spdk.unwrap_or_default(),
            ]);
        }
        table
    }
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
