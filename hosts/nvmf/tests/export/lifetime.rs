//! How it starts and how it ends.
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::{Client, READ, Reply};
use crate::common::Target;
use crate::server::Export;

/// The line on stderr of an export that does not start.
fn failure(target: &Target, nbd: &str) -> String {
    let url = format!("nvme+tcp://{}/{}", target.addr, target.nqn);
    let output = Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(["export", &url, "--nbd", nbd])
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_under_way_is_finished() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M"]);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let export = Export::start(&target, dir.path(), &[]);
        let mut client = Client::ready(&export.path);
        let mut idle = Client::ready(&export.path);
        for cookie in 0..40 {
            client.request(READ, 0, cookie, (0, 1 << 18));
        }
        // One reply, so that it is known to be at work.
        client.reply();
        export.signal(signal);
        // Each is answered, by data or by the news that it came too late.
        for _ in 1..40 {
            match client.reply() {
                (_, Reply::Data(data)) => assert_eq!(data.len(), 1 << 18),
                (_, reply) => assert!(matches!(reply, Reply::Error(108, _)), "{reply:?}"),
            }
        }
        client.closed();
        assert_eq!(
            std::io::Read::read(&mut idle.stream, &mut [0]).ok(),
            Some(0)
        );
        let path = export.path.clone();
        let (status, log) = export.ended();
        assert!(status.success(), "{log}");
        assert!(!path.exists());
    }
}

#[test]
fn over_tcp() {
    let target = Target::start(&["--ram", "8M"]);
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let export = Export::start_tcp(&target, address);
        let uri = export.ready.strip_prefix("ready nbd://");
        let address = uri.and_then(|rest| rest.strip_suffix('/'));
        let mut stream = TcpStream::connect(address.expect("a URI")).expect("it listens");
        stream
            .write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x02\0\0\0\0")
            .expect("it reads");
        let mut said = Vec::new();
        stream.read_to_end(&mut said).expect("it writes");
        assert!(said.starts_with(b"NBDMAGICIHAVEOPT\0\x03"), "{said:x?}");
        assert!(said.ends_with(b"\0\0\0\x02\0\0\0\x01\0\0\0\0"), "{said:x?}");
        export.stop();
    }
}

#[test]
fn programs_get_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M,bs=4096"]);
    let args = ["--name", "a \"disk\"", "--read-only", "--output", "json"];
    let export = Export::start(&target, dir.path(), &args);
    let ready: Value = serde_json::from_str(&export.ready).expect("JSON");
    let expected = json!({
        "ready": format!("nbd+unix:///?socket={}", export.path.display()),
        "name": "a \"disk\"",
        "size": 8 << 20,
        "block_size": 4096,
        "read_only": true,
    });
    assert_eq!(ready, expected);
    export.stop();
}

#[test]
fn a_path_that_is_taken() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M"]);
    let export = Export::start(&target, dir.path(), &[]);
    let nbd = format!("unix:{}", export.path.display());
    let why = failure(&target, &nbd);
    assert!(why.contains("another process listens on"), "{why}");
    // That it was asked for did it no harm.
    assert_eq!(Client::ready(&export.path).read(0, 512), [0; 512]);
    export.stop();

    let left_behind = dir.path().join("left");
    drop(UnixListener::bind(&left_behind).expect("a socket"));
    let nbd = format!("unix:{}", left_behind.display());
    let why = failure(&target, &nbd);
    assert!(
        why.contains("left behind by a process that is gone; remove it"),
        "{why}"
    );
    assert!(left_behind.exists());

    let file = dir.path().join("namespace.img");
    std::fs::write(&file, "precious").expect("a file");
    let why = failure(&target, &format!("unix:{}", file.display()));
    assert!(why.contains("is no socket"), "{why}");
    assert_eq!(std::fs::read(&file).expect("still there"), b"precious");

    let nowhere = format!("unix:{}/no/such/directory", dir.path().display());
    let why = failure(&target, &nowhere);
    assert!(why.contains("cannot listen on"), "{why}");
    let why = failure(&target, &format!("tcp:{}", target.addr));
    assert!(why.contains("another process listens on"), "{why}");
}
