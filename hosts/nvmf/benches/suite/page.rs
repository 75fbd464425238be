//! The page, in Markdown.
use std::fmt;
use std::time::Duration;

use crate::machine::Machine;
use crate::measured::Spread;

/// The page as it is so far.
pub(crate) fn whole(
    machine: &Machine,
    took: Duration,
    quick: bool,
    sections: &[(&str, String)],
) -> String {
    let mut page = format!(
        "# Benchmarks\n\n\
         This page and its plots are written by one run of `cargo bench -p nvmf --bench suite`, which has taken\n\
         {} s. Nothing on it is asserted anywhere: machines differ.\n\n\
         Machine: {machine}.\n\n\
         What is compared with each other was measured in turns of a fraction of a second, because the speed of such a\n\
         machine changes from minute to minute. A ratio is the median of the rounds' ratios, with the lowest and the\n\
         highest of them behind it; so the ratio of two medians of IOPS may be another. With two cores, one is the target's,\n\
         and the other the host's.\n",
        took.as_secs(),
    );
    if quick {
        page += "\n**A run with `--quick`: these figures mean nothing.**\n";
    }
    for (title, body) in sections {
        page += &format!("\n## {title}\n\n{}\n", body.trim_end());
    }
    page + OTHERS
}

/// What else can be measured, by hand.
const OTHERS: &str = "
## Other hosts and targets

`nvmf bench URL` drives any NVMe/TCP target, with `--reference` beside a bare socket on the loopback interface of the machine that it
runs on; and any NVMe/TCP host drives `nvmf target`. `hosts/nvmf/tests/linux-guest` pairs ours with Linux as host and as target, in a
guest under emulation: that shows whether they work together, and not how fast. What is linked for a board, and how large it is,
`.ci/embedded` prints.
";

/// A table.
pub(crate) struct Table {
    columns: usize,
    text: String,
}

impl Table {
    pub(crate) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self {
            columns: N,
            text: format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(N)),
        }
    }

    /// As many cells as the head has.
    pub(crate) fn row(&mut self, cells: &[String]) {
        assert_eq!(cells.len(), self.columns, "{cells:?}");
        self.text += &format!("| {} |\n", cells.join(" | "));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// 1234567 as 1,235 k; less than 10,000 as it is.
pub(crate) fn iops(value: f64) -> String {
    let (value, unit) = match value {
        small if small < 10_000.0 => (value.round() as u64, ""),
        _ => ((value / 1000.0).round() as u64, " k"),
    };
    if value < 1000 {
        return format!("{value}{unit}");
    }
    format!("{},{:03}{unit}", value / 1000, value % 1000)
}

/// A ratio and its spread.
pub(crate) fn ratio(spread: Spread) -> String {
    format!(
        "{:.2} ({:.2} to {:.2})",
        spread.median, spread.least, spread.most
    )
}

/// Microseconds.
pub(crate) fn us(value: f64) -> String {
    match value {
        small if small < 100.0 => format!("{small:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Bytes of a command.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        kib if kib.is_multiple_of(1024) => format!("{} KiB", kib >> 10),
        _ => format!("{count} B"),
    }
}
