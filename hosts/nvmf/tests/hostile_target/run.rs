//! Runs the commands of `nvmf`.
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::fake::Fake;

/// No command takes longer than that.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn spawn(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(args)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

pub(crate) fn pid(child: &Child) -> Pid {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.expect("a pid")
}

/// Waits for the end of a command.
#[track_caller]
pub(crate) fn finish(child: Child) -> Output {
    let pid = pid(&child);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // Nobody listens any more if it took too long.
        let _ = sender.send(child.wait_with_output());
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(output) => output.expect("it can be waited for"),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            panic!("nvmf does not end");
        }
    }
}

#[track_caller]
pub(crate) fn nvmf(args: &[&str]) -> Output {
    finish(spawn(args))
}

/// What a command prints that succeeds and has nothing to complain about.
#[track_caller]
pub(crate) fn success(args: &[&str]) -> Vec<u8> {
    let output = nvmf(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    assert_eq!(error, "", "{args:?}");
    output.stdout
}

/// The one line on stderr of a command that fails, and prints nothing.
#[track_caller]
pub(crate) fn failure(args: &[&str]) -> String {
    let output = nvmf(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    assert!(
        matches!(code, Some(1 | 3 | 4)),
        "{args:?}: {code:?}, {error}"
    );
    assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
    assert!(error.starts_with("nvmf: "), "{args:?}: {error}");
    assert!(
        !error.contains(|c: char| c.is_control() && c != '\n'),
        "{error:?}"
    );
    assert!(output.stdout.is_empty(), "{args:?}: a partial result");
    error.trim_end().to_owned()
}

/// The same, and `expected` is part of the line.
#[track_caller]
pub(crate) fn fails(args: &[&str], expected: &str) {
    let error = failure(args);
    assert!(error.contains(expected), "{args:?}: {error}");
}

/// `nvmf read` of so many bytes from the first block on.
pub(crate) fn read<'a>(url: &'a str, len: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["read", url, "--data-size", len], more].concat()
}

/// `nvmf write` of bytes from the first block on.
#[track_caller]
pub(crate) fn write(fake: &Fake, bytes: &[u8], more: &[&str]) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    fs::write(&path, bytes).expect("a file");
    let (path, url) = (path.to_str().expect("UTF-8"), fake.url());
    nvmf(&[&["write", &url, "--data", path], more].concat())
}

/// And it succeeds.
#[track_caller]
pub(crate) fn writes(fake: &Fake, bytes: &[u8], more: &[&str]) {
    let output = write(fake, bytes, more);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(error, "");
}

/// And it fails, in one line, of which `expected` is a part.
#[track_caller]
pub(crate) fn write_fails(fake: &Fake, bytes: &[u8], more: &[&str], expected: &str) {
    let output = write(fake, bytes, more);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code > 0), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains(expected), "{error}");
}
