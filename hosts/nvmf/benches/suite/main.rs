//! Every figure of docs/benchmarks.md, in one run: `cargo bench -p nvmf --bench suite`.
//!
//! What is measured are the programs as people run them, `nvmf bench` and `nvmf target`, in
//! processes of their own. What is compared is measured in turns.
//!
//! | module | what it does |
//! |---|---|
//! | [`cells`] | reads and writes beside a bare socket, for each namespace |
//! | [`digests`], [`batches`], [`inline`], [`priority`], [`jobs`] | what options do |
//! | [`scale`], [`footprint`], [`pressure`] | many connections, idle ones, bad ones |
//! | [`fio`], [`micro`] | beside fio; without sockets |
//! | [`machine`] | names the machine |
//! | [`goals`] | what there is to reach, and what SPDK did |
//! | [`process`], [`measured`] | runs programs, reads what they print |
//! | [`page`], [`plot`] | Markdown, SVG |
#![forbid(unsafe_code)]

mod batches;
mod cells;
mod digests;
mod fio;
mod footprint;
mod goals;
mod inline;
mod jobs;
mod machine;
mod measured;
mod micro;
mod page;
mod plot;
mod pressure;
mod priority;
mod process;
mod scale;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use tempfile::TempDir;

use goals::Backend;
use machine::Machine;
use process::Cores;

/// Measure everything, and write the page of benchmarks and its plots
#[derive(Parser)]
#[command(name = "suite")]
struct Args {
    /// See in less than a minute that everything runs: the figures mean nothing
    #[arg(long)]
    quick: bool,

    /// Run this part only; may be repeated
    #[arg(long, value_name = "PART", value_parser = PARTS.map(|part| part.name))]
    only: Vec<String>,

    /// Where to write benchmarks.md and benchmarks/*.svg [default: docs; with --quick or
    /// --only a directory below target]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Cargo says this to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// Names of files.
const CACHED: &str = "cached";
const DIRECT: &str = "direct";

/// A part of the page.
struct Part {
    name: &'static str,
    title: &'static str,
    run: fn(&Suite) -> anyhow::Result<String>,
}

impl Part {
    const fn new(
        name: &'static str,
        title: &'static str,
        run: fn(&Suite) -> anyhow::Result<String>,
    ) -> Self {
        Self { name, title, run }
    }
}

const PARTS: [Part; 12] = [
    Part::new(
        "table",
        "Reads and writes, beside a bare socket",
        cells::run,
    ),
    Part::new("digests", "Digests", digests::run),
    Part::new(
        "submissions",
        "Queue depth and batches, polled and asleep",
        batches::submissions,
    ),
    Part::new("priority", "Priority", priority::run),
    Part::new("jobs", "Many jobs", jobs::run),
    Part::new(
        "completions",
        "Batches of completions",
        batches::completions,
    ),
    Part::new("inline", "Data in capsules", inline::run),
    Part::new("scale", "Many connections", scale::run),
    Part::new("footprint", "Footprint", footprint::run),
    Part::new("pressure", "Under pressure", pressure::run),
    Part::new("fio", "Files, beside fio", fio::run),
    Part::new("micro", "Parts of it", micro::run),
];

/// What all parts need.
struct Suite {
    quick: bool,
    cores: Cores,
    /// For plots.
    plots: PathBuf,
    scratch: TempDir,
    /// What failed, and did not keep the rest from being measured.
    failures: RefCell<Vec<String>>,
}

/// A namespace that `nvmf bench` is to serve.
struct Served {
    name: &'static str,
    backend: Backend,
    option: String,
    /// The option as the page has it.
    shown: &'static str,
}

impl Suite {
    /// How long one turn of a comparison takes: less than the machine's speed lasts.
    fn turn(&self) -> Duration {
        Duration::from_millis(if self.quick { 10 } else { 250 })
    }

    /// Turns of a comparison.
    fn rounds(&self) -> u32 {
        if self.quick { 1 } else { 5 }
    }

    /// The namespaces that are compared.
    fn served(&self) -> Vec<Served> {
        let served = |name, backend, option: &str, shown| Served {
            name,
            backend,
            option: option.to_owned(),
            shown,
        };
        vec![
            served("null", Backend::Null, "--null", "--null"),
            served("RAM", Backend::Ram, "--ram", "--ram"),
            served(
                "file, cached",
                Backend::File,
                &self.cached(),
                "--file FILE,direct=off",
            ),
            served(
                "file, direct",
                Backend::File,
                &self.direct(),
                "--file FILE,direct=on",
            ),
        ]
    }

    /// A file of 64 MiB, all of them written.
    fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// The option that serves one by way of the page cache.
    fn cached(&self) -> String {
        format!("--file {},direct=off", self.file(CACHED).display())
    }

    /// The option that serves one past the page cache.
    fn direct(&self) -> String {
        format!("--file {},direct=on", self.file(DIRECT).display())
    }

    /// What `measure` gives; if it fails, that is noted.
    fn attempt<T>(&self, measure: impl FnOnce() -> anyhow::Result<T>) -> Option<T> {
        match measure() {
            Ok(measured) => Some(measured),
            Err(error) => {
                eprintln!("        failed: {error:#}");
                self.failures.borrow_mut().push(format!("{error:#}"));
                None
            }
        }
    }

    /// `most`, or one of them if it is only to be seen that it runs.
    fn some<'a, T>(&self, most: &'a [T]) -> &'a [T] {
        if self.quick { &most[..1] } else { most }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let whole = !args.quick && args.only.is_empty();
    let out = args.out.unwrap_or_else(|| match whole {
        true => concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs").into(),
        false => Path::new(env!("CARGO_TARGET_TMPDIR")).join("suite"),
    });
    let plots = out.join(plot::DIRECTORY);
    fs::create_dir_all(&plots).with_context(|| plots.display().to_string())?;
    let page = out.join("benchmarks.md");
    let scratch = tempfile::tempdir()?;
    let suite = Suite {
        quick: args.quick,
        cores: Cores::halves()?,
        plots,
        scratch,
        failures: RefCell::default(),
    };
    for name in [CACHED, DIRECT] {
        let file = suite.file(name);
        fs::write(&file, vec![0xA5; 64 << 20]).with_context(|| file.display().to_string())?;
    }
    let mut machine = Machine::look(suite.scratch.path());
    let begin = Instant::now();
    let mut sections = Vec::new();
    for part in PARTS {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == part.name) {
            continue;
        }
        eprintln!("{:4} s  {}", begin.elapsed().as_secs(), part.name);
        let before = suite.failures.borrow().len();
        let mut body = suite.attempt(|| (part.run)(&suite)).unwrap_or_default();
        for failure in &suite.failures.borrow()[before..] {
            body += &format!("\nFailed: {failure}\n");
        }
        sections.push((part.title, body));
        machine.look_again();
        // After each part: whatever comes, what was measured is not lost.
        let text = page::whole(&machine, begin.elapsed(), args.quick, &sections);
        fs::write(&page, text).with_context(|| page.display().to_string())?;
    }
    eprintln!("{:4} s  {}", begin.elapsed().as_secs(), page.display());
    Ok(match suite.failures.borrow().as_slice() {
        [] => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
