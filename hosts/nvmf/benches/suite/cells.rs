//! Reads and writes of null, RAM and a file, beside a bare socket.
use std::fmt::Write;

use crate::goals::{self, Backend};
use crate::measured::{Measured, Reference};
use crate::page::{Table, bytes, iops, ratio, us};
use crate::plot::{Plot, Series};
use crate::process::bench;
use crate::{Served, Suite};

const SIZES: [u64; 4] = [4096, 512, 16_384, 131_072];
const DEPTHS: [u16; 3] = [1, 32, 128];
const POLLED: &str = "--hipri";

/// What all namespaces did with one kind of command.
struct Cell {
    write: bool,
    bs: u64,
    iodepth: u16,
    /// By [`Suite::served`].
    measured: Vec<Measured>,
}

impl Cell {
    fn measure(
        suite: &Suite,
        write: bool,
        bs: u64,
        iodepth: u16,
        how: &str,
    ) -> anyhow::Result<Self> {
        let rw = if write { "randwrite" } else { "randread" };
        let served: Vec<String> = suite
            .served()
            .into_iter()
            .map(|served| served.option)
            .collect();
        let words = format!(
            "{} --size 64M --reference=both --rw {rw} --bs {bs} --iodepth {iodepth} {how}",
            served.join(" ")
        );
        Ok(Self {
            write,
            bs,
            iodepth,
            measured: bench(&words, suite.turn(), suite.rounds())?,
        })
    }

    fn name(&self) -> String {
        format!(
            "{} {}",
            bytes(self.bs),
            if self.write { "write" } else { "read" }
        )
    }

    fn hot(&self) -> Option<&Reference> {
        self.measured.first()?.hot.as_ref()
    }
}

/// All cells, as tables and plots.
pub(crate) fn run(suite: &Suite) -> anyhow::Result<String> {
    let mut polled = Vec::new();
    for bs in suite.some(&SIZES) {
        for write in [false, true] {
            for iodepth in suite.some(&DEPTHS) {
                polled.extend(suite.attempt(|| Cell::measure(suite, write, *bs, *iodepth, POLLED)));
            }
        }
    }
    let mut asleep = Vec::new();
    for write in [false, true] {
        for iodepth in suite.some(&DEPTHS) {
            asleep.extend(suite.attempt(|| Cell::measure(suite, write, 4096, *iodepth, "")));
        }
    }
    let mut text = format!(
        "`nvmf bench {}\n\
         --size 64M --reference=both --rw RW --bs BS --iodepth QD {POLLED}`: one connection, one core for each end, random\n\
         places in 64 MiB. The bare socket moves the bytes of the same PDUs in the same pattern, batched and\n\
         polled alike, and nobody understands them. *Hot* is the ratio to a bare socket whose peer sends and receives the same\n\
         few payloads, which stay in its cache; *same memory* is that to one whose peer sends from, and copies to, random\n\
         places in 64 MiB, as we do. Goals are judged by the harsher, the lower of both.\n\n{}\n",
        suite
            .served()
            .iter()
            .map(|served| served.shown)
            .collect::<Vec<_>>()
            .join(" "),
        goals::SOURCE,
    );
    for bs in suite.some(&SIZES) {
        write!(
            text,
            "### {}, polled\n\n{}\n",
            bytes(*bs),
            polled_table(suite, *bs, &polled)
        )?;
        if *bs == 4096 {
            for write in [false, true] {
                text += &by_depth(suite, &polled, write)?;
            }
            text += "\nSPDK's lines are its share of the bare socket there, times the bare socket here.\n";
            text.push('\n');
        }
    }
    write!(
        text,
        "### 4 KiB, both ends asleep when there is nothing to do\n\n"
    )?;
    text += "Without `--hipri`. All goals, and SPDK's figures, are for polling.\n\n";
    writeln!(text, "{}", asleep_table(suite, &asleep))?;
    text += &judged(suite, &polled);
    for write in [false, true] {
        text += &ratios(suite, &polled, write)?;
    }
    Ok(text)
}

/// What each namespace did, with both of its references.
fn rows<'a>(
    suite: &Suite,
    cells: impl Iterator<Item = &'a Cell>,
) -> Vec<(&'a Cell, Served, &'a Measured, &'a Reference, &'a Reference)> {
    cells
        .flat_map(|cell| {
            let served = suite.served().into_iter();
            served
                .zip(&cell.measured)
                .filter_map(move |(served, measured)| {
                    let (hot, same) = (measured.hot.as_ref()?, measured.same.as_ref()?);
                    Some((cell, served, measured, hot, same))
                })
        })
        .collect()
}

fn polled_table(suite: &Suite, bs: u64, cells: &[Cell]) -> Table {
    let mut table = Table::new([
        "command, QD",
        "namespace",
        "IOPS",
        "bare IOPS, hot",
        "ratio, hot",
        "ratio, same memory",
        "goal",
        "p50 µs, ours / bare",
        "SPDK there: IOPS (ratio)",
    ]);
    let cells = cells.iter().filter(|cell| cell.bs == bs);
    for (cell, served, measured, hot, same) in rows(suite, cells) {
        let goal = goals::share(served.backend, cell.write, cell.bs, cell.iodepth);
        let verdict = |goal: f64| match measured.share() >= Some(goal) {
            true => format!("{goal:.2}: holds"),
            false => format!("{goal:.2}: **no**"),
        };
        table.row(&[
            format!("{}, {}", cell.name(), cell.iodepth),
            served.name.to_owned(),
            iops(measured.iops),
            iops(hot.iops),
            ratio(hot.ratio),
            ratio(same.ratio),
            goal.map_or_else(String::new, verdict),
            format!("{} / {}", us(measured.p50), us(hot.p50)),
            spdk(served.backend, cell).unwrap_or_default(),
        ]);
    }
    table
}

fn asleep_table(suite: &Suite, cells: &[Cell]) -> Table {
    let mut table = Table::new([
        "command, QD",
        "namespace",
        "IOPS",
        "bare IOPS, hot",
        "ratio, hot",
        "ratio, same memory",
        "p50 µs, ours / bare",
        "system calls per I/O",
        "context switches per I/O",
    ]);
    for (cell, served, measured, hot, same) in rows(suite, cells.iter()) {
        table.row(&[
            format!("{}, {}", cell.name(), cell.iodepth),
            served.name.to_owned(),
            iops(measured.iops),
            iops(hot.iops),
            ratio(hot.ratio),
            ratio(same.ratio),
            format!("{} / {}", us(measured.p50), us(hot.p50)),
            format!("{:.2}", measured.system_calls_per_io),
            format!("{:.3}", measured.switches_per_io),
        ]);
    }
    table
}

fn spdk(backend: Backend, cell: &Cell) -> Option<String> {
    let published = goals::spdk(cell.write, cell.bs, cell.iodepth)?;
    let kilo = match backend {
        Backend::Null => published.null,
        Backend::Ram => published.malloc?,
        Backend::File => return None,
    };
    let ratio = kilo / published.bare;
    Some(format!("{} ({ratio:.2})", iops(kilo * 1000.0)))
}

/// Which goals do not hold, and by how much.
fn judged(suite: &Suite, cells: &[Cell]) -> String {
    let mut judged = 0;
    let mut missed = Vec::new();
    for cell in cells {
        for (served, measured) in suite.served().iter().zip(&cell.measured) {
            let goal = goals::share(served.backend, cell.write, cell.bs, cell.iodepth);
            let (Some(goal), Some(share)) = (goal, measured.share()) else {
                continue;
            };
            judged += 1;
            if share < goal {
                missed.push(format!(
                    "{} {} QD {} {share:.2} of {goal:.2}",
                    served.name,
                    cell.name(),
                    cell.iodepth,
                ));
            }
        }
    }
    let missed = match missed.as_slice() {
        [] => "all hold".to_owned(),
        missed => format!("{} do not hold: {}", missed.len(), missed.join("; ")),
    };
    format!("Of {judged} goals, {missed}.\n\n")
}

/// IOPS of 4 KiB.
fn by_depth(suite: &Suite, cells: &[Cell], write: bool) -> anyhow::Result<String> {
    let cells: Vec<&Cell> = cells
        .iter()
        .filter(|cell| cell.write == write && cell.bs == 4096)
        .collect();
    let bare = cells.iter().filter_map(|cell| Some(cell.hot()?.iops));
    let mut series = vec![Series::new("bare socket", bare)];
    for (index, served) in suite.served().iter().enumerate() {
        let values = cells.iter().map(|cell| cell.measured[index].iops);
        series.push(Series::new(served.name, values));
    }
    // The machine there was faster or slower than this one: its bare socket says by how much.
    let published = |of: fn(goals::Published) -> Option<f64>| {
        let scaled = |cell: &&Cell| {
            let there = goals::spdk(cell.write, cell.bs, cell.iodepth)?;
            Some(of(there)? / there.bare * cell.hot()?.iops)
        };
        cells.iter().map(scaled).collect()
    };
    for (name, values) in [
        (
            "SPDK null, its share",
            published(|published| Some(published.null)),
        ),
        (
            "SPDK malloc, its share",
            published(|published| published.malloc),
        ),
    ] {
        series.push(Series {
            name,
            values,
            foreign: true,
        });
    }
    let name = if write { "write" } else { "read" };
    Plot {
        name: &format!("{name}-4k"),
        title: &format!("Random {name}s of 4 KiB, one connection, polled"),
        x: "queue depth",
        labels: cells.iter().map(|cell| cell.iodepth.to_string()).collect(),
        y: "IOPS",
        series,
    }
    .lines(&suite.plots)
}

/// Bytes, as fio has them.
fn short(bytes: u64) -> String {
    match bytes {
        kib if kib.is_multiple_of(1024) => format!("{}k", kib >> 10),
        _ => bytes.to_string(),
    }
}

/// The ratios of all cells.
fn ratios(suite: &Suite, cells: &[Cell], write: bool) -> anyhow::Result<String> {
    let mut cells: Vec<&Cell> = cells.iter().filter(|cell| cell.write == write).collect();
    cells.sort_by_key(|cell| cell.bs);
    let series = suite
        .served()
        .into_iter()
        .enumerate()
        .map(|(index, served)| Series {
            name: served.name,
            values: cells
                .iter()
                .map(|cell| cell.measured[index].share())
                .collect(),
            foreign: false,
        });
    let name = if write { "write" } else { "read" };
    Plot {
        name: &format!("ratio-{name}"),
        title: &format!("Random {name}s, as a share of a bare socket's IOPS"),
        x: "bytes of a command / queue depth",
        labels: cells
            .iter()
            .map(|cell| format!("{}/{}", short(cell.bs), cell.iodepth))
            .collect(),
        y: "ours / bare socket",
        series: series.collect(),
    }
    .bars(&suite.plots, Some(1.0))
}
