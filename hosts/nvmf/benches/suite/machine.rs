//! Names the machine.
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What figures depend on.
pub(crate) struct Machine {
    cores: usize,
    processor: String,
    virtual_machine: bool,
    cache: Option<String>,
    memory_gib: u64,
    kernel: String,
    compiler: Option<String>,
    commit: Option<String>,
    file_system: Option<String>,
    /// The load average of the last minute, then and now.
    loads: (f64, f64),
}

impl Machine {
    /// `scratch` is where files are.
    pub(crate) fn look(scratch: &Path) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| {
            let mut lines = cpuinfo.lines();
            lines.find_map(|line| Some(line.strip_prefix(name)?.split_once(':')?.1.trim()))
        };
        let memory_kib: u64 = read("/proc/meminfo")
            .lines()
            .find_map(|line| {
                line.strip_prefix("MemTotal:")?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            })
            .unwrap_or(0);
        let load = load();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field("model name")
                .unwrap_or("an unknown processor")
                .to_owned(),
            virtual_machine: field("flags").is_some_and(|flags| flags.contains(" hypervisor")),
            cache: cache(),
            memory_gib: memory_kib.div_ceil(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            compiler: said_by("rustc", &["--version"]),
            commit: said_by(
                "git",
                &["describe", "--always", "--dirty", "--exclude", "*"],
            ),
            file_system: file_system(scratch),
            loads: (load, load),
        }
    }

    /// The load is another one now.
    pub(crate) fn look_again(&mut self) {
        self.loads.1 = load();
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.virtual_machine {
            "a virtual machine with "
        } else {
            ""
        };
        write!(f, "{kind}{} cores of {}", self.cores, self.processor)?;
        if let Some(cache) = &self.cache {
            write!(f, " ({cache})")?;
        }
        write!(
            f,
            ", {} GiB of memory, Linux {}",
            self.memory_gib, self.kernel
        )?;
        if let Some(file_system) = &self.file_system {
            write!(f, ", files on {file_system}")?;
        }
        if let Some(compiler) = &self.compiler {
            write!(f, "; {compiler}")?;
        }
        if let Some(commit) = &self.commit {
            write!(f, "; commit {commit}")?;
        }
        let (before, after) = self.loads;
        write!(f, "; load average {before:.1} before and {after:.1} after")
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Of the last minute.
fn load() -> f64 {
    let text = read("/proc/loadavg");
    let first = text.split_whitespace().next();
    first.and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The largest.
fn cache() -> Option<String> {
    let of = |index: u32| {
        let directory = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let size = fs::read_to_string(format!("{directory}/size")).ok()?;
        let level = fs::read_to_string(format!("{directory}/level")).ok()?;
        let kib: u64 = size.trim().strip_suffix('K')?.parse().ok()?;
        Some(format!("L{} {} MiB", level.trim(), kib >> 10))
    };
    (0..8).rev().find_map(of)
}

/// What a program prints.
fn said_by(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The type of the one that `path` is on.
fn file_system(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let mounts = read("/proc/mounts");
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        Some((fields.next()?, fields.next()?))
    });
    mounted
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.len())
        .map(|(_, kind)| kind.to_owned())
}
