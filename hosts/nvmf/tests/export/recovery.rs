//! When the target is gone, for a while or for good.
use std::path::Path;
use std::time::Instant;

use crate::client::{Client, FLUSH, FUA, PATIENCE, READ, Reply, WRITE, WRITE_ZEROES};
use crate::common::Target;
use crate::common::data::noise;
use crate::server::Export;

const NQN: &str = "nqn.2014-08.org.example:export";

fn file(dir: &Path) -> String {
    format!("{},size=8M", dir.join("image").display())
}

#[test]
fn requests_wait_for_a_target_that_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--nqn", NQN, "--file", &file(dir.path())];
    let target = Target::start(&args);
    let export = Export::start(&target, dir.path(), &["--reconnect-delay", "0"]);
    let mut client = Client::ready(&export.path);
    let mut data = noise(1, 1 << 20);
    assert_eq!(client.write(FUA, 0, &data), Reply::Done);
    let address = target.addr;
    drop(target);
    let changed = noise(2, 8192);
    client.request(READ, 0, 1, (1 << 19, 1 << 19));
    client.request(WRITE, 0, 2, (4096, 8192));
    client.send(&changed);
    client.request(WRITE_ZEROES, 0, 3, (65_536, 4096));
    // Somebody new is not turned away meanwhile.
    let mut other = Client::ready(&export.path);
    other.request(FLUSH, 0, 4, (0, 0));
    let target = Target::start_at(address, &args);
    let mut replies = [client.reply(), client.reply(), client.reply()];
    replies.sort_by_key(|(cookie, _)| *cookie);
    let read = Reply::Data(data[1 << 19..].to_vec());
    assert!(replies == [(1, read), (2, Reply::Done), (3, Reply::Done)]);
    assert_eq!(other.reply(), (4, Reply::Done));
    data[4096..12_288].copy_from_slice(&changed);
    data[65_536..69_632].fill(0);
    assert!(client.read(0, 1 << 20) == data);
    let log = export.stop();
    assert!(log.contains("target: reconnected"), "{log}");
    target.assert_healthy();
}

#[test]
fn requests_fail_while_it_is_gone_if_they_may() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--nqn", NQN, "--file", &file(dir.path())];
    let target = Target::start(&args);
    let recovery = ["--reconnect-delay", "0", "--fast-io-fail-tmo", "0"];
    let export = Export::start(&target, dir.path(), &recovery);
    let mut client = Client::ready(&export.path);
    assert_eq!(client.write(0, 0, &[1; 512]), Reply::Done);
    let address = target.addr;
    drop(target);
    match client.call(FLUSH, 0, (0, 0)) {
        Reply::Error(5, why) => assert!(why.contains("fast_io_fail_tmo"), "{why}"),
        other => panic!("{other:?}"),
    }
    let _target = Target::start_at(address, &args);
    // The client was not let go of, and at some time it is served again.
    let deadline = Instant::now() + PATIENCE;
    let reply = loop {
        match client.call(READ, 0, (0, 512)) {
            Reply::Error(5, _) if Instant::now() < deadline => {}
            reply => break reply,
        }
    };
    assert_eq!(reply, Reply::Data(vec![1; 512]));
    export.stop();
}

#[test]
fn a_target_that_does_not_come_back_ends_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M"]);
    let export = Export::start(&target, dir.path(), &["--ctrl-loss-tmo", "0"]);
    let mut client = Client::ready(&export.path);
    assert_eq!(client.read(0, 512), [0; 512]);
    drop(target);
    let path = export.path.clone();
    let (status, log) = export.ended();
    assert_eq!(status.code(), Some(3), "{log}");
    assert!(log.contains("nvmf: the target is given up: "), "{log}");
    assert!(!path.exists());
    client.closed();
}
