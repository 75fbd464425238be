//! `nvmf connect`: what it tells of a target that comes and goes.
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[allow(dead_code, reason = "other tests need the rest")]
mod common;

use common::Target;
use common::run::{failure, json, json_failure, output, text, url};

/// A running `nvmf connect --watch --output json`.
struct Watch {
    child: Child,
    lines: Receiver<Value>,
}

impl Watch {
    fn start(url: &str, args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvmf"))
            .args(["connect", url, "--watch", "--output", "json"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Nobody listens any more at the end of a test.
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, lines }
    }

    /// The next event of this kind; others may come before.
    fn wait(&self, event: &str) -> Value {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(30));
            let line = line.unwrap_or_else(|error| panic!("no {event}: {error}"));
            assert!(line["time"].is_string(), "{line}");
            if line["event"] == event {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// How it ended, and what it said on standard error.
    fn end(self) -> (ExitStatus, String) {
        let ended = self.child.wait_with_output().unwrap();
        (ended.status, text(&ended.stderr))
    }
}

/// At the address of a target that is gone.
fn again(gone: Target) -> Target {
    let (address, nqn) = (gone.addr.to_string(), gone.nqn.clone());
    drop(gone);
    Target::start(&[
        "--listen", &address, "--nqn", &nqn, "--ram", "2M", "--ram", "1M",
    ])
}

#[test]
fn a_connection_is_shown_and_closed() {
    let target = Target::start(&["--ram", "1M,bs=4096"]);
    let shown = output(&["connect", &url(&target)]);
    let [connected, namespaces] = shown.lines().collect::<Vec<_>>()[..] else {
        panic!("{shown}");
    };
    let expected = format!("of {} at {}, NVMe 2.0", target.nqn, target.addr);
    assert!(connected.contains(&expected), "{shown}");
    assert!(
        namespaces.ends_with(" namespaces: 1 (256 blocks)"),
        "{shown}"
    );
    let discovery = format!("nvme+tcp://{}", target.addr);
    let told = json(&["connect", &discovery]);
    assert_eq!(told["event"], "connected");
    assert_eq!(told["io_queues"], 0);

    let other = format!("nvme+tcp://{}/nqn.2014-08.org.example:other", target.addr);
    let error = failure(4, &["connect", &other]);
    assert!(error.contains("The target offers"), "{error}");
    json_failure(3, &["connect", "nvme+tcp://127.0.0.1:1/nqn.a"]);
    let from = failure(3, &["connect", &url(&target), "--host-traddr", "192.0.2.1"]);
    assert!(from.contains("cannot connect"), "{from}");
    output(&[
        "connect",
        &url(&target),
        "--host-traddr",
        "127.0.0.1",
        "--tos",
        "0x20",
    ]);
}

#[test]
fn a_target_that_comes_back_is_told() {
    let target = Target::start(&["--ram", "1M"]);
    let watch = Watch::start(
        &url(&target),
        &["--reconnect-delay", "1", "--ctrl-loss-tmo", "-1"],
    );
    let connected = watch.wait("connected");
    assert_eq!(connected["subnqn"], target.nqn);
    assert_eq!(connected["address"], target.addr.to_string());
    let namespaces = watch.wait("namespaces");
    assert_eq!(namespaces["namespaces"][0]["blocks"], 2048);
    assert_eq!(namespaces["namespaces"].as_array().unwrap().len(), 1);
    let target = again(target);
    assert!(watch.wait("lost")["error"].is_string());
    assert_eq!(watch.wait("reconnecting")["attempt"], 1);
    watch.wait("reconnected");
    let namespaces = watch.wait("namespaces");
    assert_eq!(namespaces["namespaces"][0]["blocks"], 4096);
    assert_eq!(namespaces["namespaces"].as_array().unwrap().len(), 2);
    watch.signal(Signal::INT);
    let (status, error) = watch.end();
    assert!(status.success(), "{error}");
    assert_eq!(error, "");
    target.assert_healthy();
}

#[test]
fn a_target_that_refuses_is_given_up_for_that_reason() {
    let target = Target::start(&["--ram", "1M"]);
    let watch = Watch::start(&url(&target), &["-c", "1", "-l", "-1"]);
    watch.wait("connected");
    let address = target.addr;
    drop(target);
    let other = ["--ram", "1M", "--nqn", "nqn.2014-08.org.example:other"];
    let _target = Target::start_at(address, &other);
    assert!(watch.wait("not-reconnected")["error"].is_string());
    let (status, error) = watch.end();
    assert_eq!(status.code(), Some(3), "{error}");
    assert!(error.contains("Connect Invalid Parameters"), "{error}");
}

#[test]
fn a_target_that_stays_away_is_given_up() {
    let target = Target::start(&["--ram", "1M"]);
    let watch = Watch::start(&url(&target), &["-c", "1", "-l", "0"]);
    watch.wait("connected");
    drop(target);
    let (status, error) = watch.end();
    assert_eq!(status.code(), Some(3), "{error}");
    let told: Value = serde_json::from_str(&error).unwrap();
    let message = told["error"].as_str().unwrap();
    assert!(message.starts_with("the target is given up: "), "{error}");
    assert_eq!(told["exit"], 3);
}
