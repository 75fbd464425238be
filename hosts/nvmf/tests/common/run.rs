//! Runs commands of the real `nvmf`, and looks at how they end.
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::Target;

impl Target {
    /// Starts a target at the address of one that is gone.
    pub(crate) fn start_at(address: SocketAddr, args: &[&str]) -> Self {
        Self::start_listened(&address.to_string(), args, true)
    }
}

/// The subsystem's URL.
pub(crate) fn url(target: &Target) -> String {
    format!("nvme+tcp://{}/{}", target.addr, target.nqn)
}

pub(crate) fn nvmf(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(args)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

/// Standard output of a command that succeeds and has nothing to complain about.
pub(crate) fn output(args: &[&str]) -> String {
    let output = nvmf(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
    assert_eq!(error, "", "{args:?}");
    text(&output.stdout)
}

/// The same of a command that prints a JSON document.
pub(crate) fn json(args: &[&str]) -> Value {
    let args = [args, &["--output", "json"]].concat();
    let shown = output(&args);
    assert_eq!(shown.lines().count(), 1, "{args:?}: {shown}");
    serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{args:?}: {error}: {shown}"))
}

/// The one line on standard error of a command that fails with this exit status.
pub(crate) fn failure(exit: i32, args: &[&str]) -> String {
    let failed = nvmf(args);
    let error = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(exit), "{args:?}: {error}");
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 1, "{args:?}: {error}");
    let line = lines[0].strip_prefix("nvmf: ");
    line.unwrap_or_else(|| panic!("{error}")).to_owned()
}

/// What a command that fails with this exit status tells programs.
pub(crate) fn json_failure(exit: i32, args: &[&str]) -> Value {
    let args = [args, &["--output", "json"]].concat();
    let failed = nvmf(&args);
    let error = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(exit), "{args:?}: {error}");
    assert_eq!(text(&failed.stdout), "", "{args:?}");
    let object: Value =
        serde_json::from_str(&error).unwrap_or_else(|error_| panic!("{args:?}: {error_}: {error}"));
    assert_eq!(object["exit"], exit, "{args:?}: {error}");
    object
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
