//! `nvmf copy`: what arrives, what a copy that fails leaves, and how it is resumed.
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[allow(dead_code, reason = "other tests need the rest")]
mod common;

use common::Target;
use common::data::noise;
use common::run::{failure, json, json_failure, nvmf, output, text, url};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// A directory whose files have names that are text.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn ns(target: &Target, nsid: u32) -> String {
    format!("{}?nsid={nsid}", url(target))
}

fn read(url: &str) -> Vec<u8> {
    let read = nvmf(&["copy", url, "-"]);
    assert_eq!(read.status.code(), Some(0), "{}", text(&read.stderr));
    read.stdout
}

#[test]
fn what_is_copied_arrives_whatever_the_ends_are() {
    let files = Files::new();
    let disk = files.path("target.img");
    let disk = format!("{disk},size=9M,bs=512");
    let target = Target::start(&["--ram", "9M,bs=4096", "--file", &disk]);
    // Two pieces and a bit, with zeroes at the beginning, in the middle and at the end.
    let mut data = noise(1, 9 * MIB);
    for zeroes in [0..70_000, 3 * MIB..5 * MIB, 9 * MIB - 4096..9 * MIB] {
        data[zeroes].fill(0);
    }
    let source = files.write("source", &data);
    // What was there before is not there any more.
    let old = files.write("old", &noise(2, 9 * MIB));
    let (ram, file) = (ns(&target, 1), ns(&target, 2));
    for url in [&ram, &file] {
        output(&["copy", &old, url]);
    }
    let told = json(&["copy", &source, &ram, "--verify"]);
    assert_eq!(told["bytes"], 9 * MIB);
    assert_eq!(told["verified"], true);
    assert!(told["zeroes"].as_u64() >= Some(2 << 20), "{told}");
    assert!(read(&ram) == data);
    let shown = output(&["copy", &ram, &file, "--verify", "--ddgst"]);
    assert!(
        shown.starts_with("9.00 MiB copied in ") && shown.ends_with(", verified\n"),
        "{shown}"
    );
    let result = files.path("result");
    output(&["copy", &file, &result, "--verify"]);
    assert!(fs::read(&result).unwrap() == data);
    // Zeroes are holes.
    let stored = fs::metadata(&result).unwrap().blocks() * 512;
    assert!(stored < 8 << 20, "{stored}");
    assert_eq!(files.names(), ["old", "result", "source", "target.img"]);
}

#[test]
fn pipes_and_parts() {
    let target = Target::start(&["--ram", "6M"]);
    let data = noise(3, 6 * MIB);
    let mut copy = Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(["copy", "-", &url(&target)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    copy.stdin.take().unwrap().write_all(&data).unwrap();
    assert!(copy.wait().unwrap().success());
    assert!(read(&url(&target)) == data);
    let part = nvmf(&[
        "copy",
        &url(&target),
        "-",
        "--offset",
        "1M",
        "--count",
        "512",
    ]);
    assert!(
        part.stdout == data[MIB..MIB + 512],
        "{}",
        text(&part.stderr)
    );
    let files = Files::new();
    let zero = files.path("zero");
    output(&["copy", "/dev/zero", &zero, "--count", "5M"]);
    assert!(fs::read(&zero).unwrap() == vec![0; 5 * MIB]);
    // A file shorter than a namespace leaves the rest of that alone.
    let short = files.write("short", &[7; 1024]);
    output(&["copy", &short, &url(&target)]);
    let now = read(&url(&target));
    assert!(now[..1024] == [7; 1024] && now[1024..] == data[1024..]);
    let empty = files.write("empty", &[]);
    output(&["copy", &empty, &files.path("nothing")]);
    assert_eq!(fs::metadata(files.path("nothing")).unwrap().len(), 0);
}

#[test]
fn a_copy_that_cannot_be_changes_nothing() {
    let target = Target::start(&["--ram", "1M", "--ram", "1M,bs=4096"]);
    let files = Files::new();
    let old = noise(4, MIB);
    for nsid in [1, 2] {
        output(&["copy", &files.write("old", &old), &ns(&target, nsid)]);
    }
    let (first, second) = (ns(&target, 1), ns(&target, 2));
    let long = files.write("long", &vec![1; MIB + 512]);
    let odd = files.write("odd", &[1; 1000]);
    let block = files.write("block", &[1; 512]);
    let kept = files.write("kept", b"as it was");
    let missing = files.path("missing");
    let directory = files.0.path().to_str().unwrap().to_owned();
    let cases: [(i32, &[&str], &str); 18] = [
        (1, &[&long, &first], "do not fit"),
        (1, &[&odd, &first], "not a whole number of blocks"),
        (1, &[&block, &second], "which have 4096 bytes"),
        (1, &[&first, &kept, "--count", "2M"], "too short"),
        (1, &[&odd, &kept, "--offset", "1K"], "beyond the end"),
        (1, &[&first, &kept, "--offset", "1"], "--offset must be"),
        (1, &[&missing, &first], "No such file"),
        (1, &[&directory, &first], "it is a directory"),
        (1, &[&first, &directory], "it is a directory"),
        (1, &[&first, "/no/such/directory/file"], "No such file"),
        (2, &[&first, &first], "are the same"),
        (2, &[&kept, &kept], "are the same"),
        (2, &[&first, "-", "--verify"], "only once"),
        (2, &["-", &first, "--resume"], "only once"),
        (2, &[&first, &second, "--resume"], "--state"),
        (
            2,
            &["/dev/zero", &kept, "--count", "1K", "--resume"],
            "a pipe",
        ),
        (
            3,
            &["nvme+tcp://127.0.0.1:1/nqn.a", &kept],
            "nothing listens",
        ),
        (
            4,
            &[&format!("{}?nsid=3", url(&target)), &kept],
            "no namespace 3",
        ),
    ];
    for (exit, args, explanation) in cases {
        let error = failure(exit, &[&["copy"], args].concat());
        assert!(error.contains(explanation), "{args:?}: {error}");
    }
    // The same of read.
    let error = failure(1, &["read", &first, "--data", &kept, "--data-size", "2M"]);
    assert!(error.contains("beyond the end"), "{error}");
    let usage = nvmf(&["copy", "nvme+fc://h/n", &kept]);
    assert_eq!(usage.status.code(), Some(2), "{}", text(&usage.stderr));
    json_failure(2, &["copy", &first, "-"]);
    assert!(read(&first) == old && read(&second) == old);
    assert_eq!(fs::read(&kept).unwrap(), b"as it was");
    assert_eq!(files.names(), ["block", "kept", "long", "odd", "old"]);
}

#[test]
fn the_state_replaces_no_other_file() {
    let target = Target::start(&["--ram", "4M"]);
    let files = Files::new();
    let disk = ns(&target, 1);
    let source = files.write("source", &noise(3, 2 * MIB));
    let notes = files.write("notes", b"mine");
    let (new, part) = (files.path("new"), files.path("new.part"));
    for (to, state, exit) in [
        (&disk, &source, 2),
        (&new, &new, 2),
        (&new, &part, 2),
        (&disk, &notes, 1),
    ] {
        let error = failure(exit, &["copy", &source, to, "--state", state]);
        assert!(error.contains("--state"), "{error}");
        assert_eq!(files.names(), ["notes", "source"], "{to} {state}");
    }
    assert_eq!(fs::read(&notes).unwrap(), b"mine");
    assert!(read(&disk).iter().all(|byte| *byte == 0));
    // A file that is empty is one for this.
    let empty = files.write("state", b"");
    output(&["copy", &source, &disk, "--state", &empty]);
    assert_eq!(files.names(), ["notes", "source"]);
}

#[test]
fn a_source_that_ends_early_leaves_nothing_that_looks_whole() {
    let target = Target::start(&["--ram", "8M"]);
    let files = Files::new();
    let old = files.write("old", &noise(5, 8 * MIB));
    output(&["copy", &old, &url(&target)]);
    let short = |destination: &str| {
        let mut copy = Command::new(env!("CARGO_BIN_EXE_nvmf"))
            .args(["copy", "-", destination, "--count", "8M"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let sent = copy.stdin.take().unwrap().write_all(&noise(6, 6 * MIB));
        sent.unwrap();
        let ended = copy.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(1));
        text(&ended.stderr)
    };
    let error = short(&url(&target));
    assert!(
        error.contains("too short: it ended after 6291456 bytes"),
        "{error}"
    );
    assert!(
        error.contains("is not complete, its beginning is zero"),
        "{error}"
    );
    assert!(read(&url(&target))[..MIB] == vec![0; MIB]);
    let error = short(&files.path("result"));
    assert!(error.contains("too short"), "{error}");
    assert_eq!(files.names(), ["old"]);
}

#[test]
fn a_full_disk_stops_a_copy_that_is_resumed_when_there_is_room() {
    let target = Target::start(&["--ram", "12M"]);
    let files = Files::new();
    let data = noise(7, 12 * MIB);
    output(&["copy", &files.write("source", &data), &url(&target)]);
    let result = files.write("result", b"as it was");
    fs::set_permissions(&result, fs::Permissions::from_mode(0o640)).unwrap();
    // The largest file that the shell lets it write, in blocks of 512 bytes.
    let script = format!(
        "trap '' XFSZ; ulimit -f {}; exec {} copy '{}' '{result}'",
        6 * MIB / 512,
        env!("CARGO_BIN_EXE_nvmf"),
        url(&target)
    );
    let full = Command::new("sh").args(["-c", &script]).output().unwrap();
    let error = text(&full.stderr);
    assert_eq!(full.status.code(), Some(1), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("stopped after 4194304 bytes"), "{error}");
    assert!(error.contains("result.part; --resume goes on"), "{error}");
    assert!(error.contains("File too large"), "{error}");
    assert_eq!(fs::read(&result).unwrap(), b"as it was");
    assert_eq!(
        files.names(),
        ["result", "result.part", "result.part.state", "source"]
    );

    let other = failure(
        1,
        &[
            "copy",
            &url(&target),
            &result,
            "--resume",
            "--offset",
            "512",
        ],
    );
    assert!(
        other.contains("cannot resume: offset was 0, and is 512"),
        "{other}"
    );
    let error = failure(1, &["copy", &files.path("source"), &result, "--resume"]);
    assert!(error.contains("cannot resume: source was"), "{error}");

    let told = json(&["copy", &url(&target), &result, "--resume", "--verify"]);
    assert_eq!(told["resumed_at"], 4 * MIB);
    assert_eq!(told["bytes"], 12 * MIB);
    assert!(fs::read(&result).unwrap() == data);
    let mode = fs::metadata(&result).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(files.names(), ["result", "source"]);
    // Nothing is left to be resumed: it begins anew.
    assert_eq!(
        json(&["copy", &url(&target), &result, "--resume"])["resumed_at"],
        0
    );

    let error = failure(1, &["copy", &url(&target), "/dev/full"]);
    assert!(error.contains("No space left on device"), "{error}");
}

/// Forwards connections to `target`, until so many bytes went through; then they end, and
/// so do later ones, unless `once`.
fn cut_after(target: SocketAddr, most: usize, once: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for host in listener.incoming() {
            let Ok(host) = host else { return };
            let late = once && sent.load(Ordering::SeqCst) > most;
            let most = if late { usize::MAX } else { most };
            let there = TcpStream::connect(target).unwrap();
            let pairs = [(&host, &there), (&there, &host)]
                .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()));
            for (mut from, mut to) in pairs {
                let sent = Arc::clone(&sent);
                thread::spawn(move || {
                    let mut buffer = [0; 65_536];
                    while let Ok(len @ 1..) = from.read(&mut buffer) {
                        let total = sent.fetch_add(len, Ordering::SeqCst);
                        if total > most || to.write_all(&buffer[..len]).is_err() {
                            break;
                        }
                    }
                    // The other end may be gone already.
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

#[test]
fn a_connection_that_is_cut_leaves_a_namespace_without_a_beginning() {
    let target = Target::start(&["--ram", "16M"]);
    let files = Files::new();
    let old = files.write("old", &noise(8, 16 * MIB));
    output(&["copy", &old, &url(&target)]);
    let data = noise(9, 16 * MIB);
    let source = files.write("source", &data);
    let proxy = cut_after(target.addr, 8 * MIB, false);
    let cut = format!("nvme+tcp://{proxy}/{}", target.nqn);
    let state = files.path("state");
    let error = failure(
        3,
        &[
            "copy",
            &source,
            &cut,
            "--state",
            &state,
            "--ctrl-loss-tmo",
            "0",
        ],
    );
    assert!(error.contains("--resume goes on"), "{error}");
    assert!(read(&url(&target))[..MIB] == vec![0; MIB]);
    // A read that breaks leaves nothing.
    let proxy = cut_after(target.addr, 8 * MIB, false);
    let broken = format!("nvme+tcp://{proxy}/{}", target.nqn);
    failure(3, &["read", &broken, "--data", &files.path("read")]);
    assert_eq!(files.names(), ["old", "source", "state"]);
    // By another address it is the same namespace.
    let args = [
        "copy",
        &source,
        &url(&target),
        "--state",
        &state,
        "--resume",
    ];
    let told = json(&[&args[..], &["--verify"]].concat());
    assert_eq!(told["resumed_at"], 5 * MIB);
    assert!(read(&url(&target)) == data);
    assert_eq!(files.names(), ["old", "source"]);

    // Without a state it is not to be resumed, and says what is left.
    let proxy = cut_after(target.addr, 8 * MIB, false);
    let cut = format!("nvme+tcp://{proxy}/{}", target.nqn);
    let error = failure(3, &["copy", &old, &cut, "--ctrl-loss-tmo", "0"]);
    assert!(
        error.contains("is not complete, its beginning is zero"),
        "{error}"
    );
    assert!(read(&url(&target))[..MIB] == vec![0; MIB]);
}

#[test]
fn a_copy_outlives_its_connections() {
    let target = Target::start(&["--ram", "16M"]);
    let files = Files::new();
    let data = noise(11, 16 * MIB);
    let source = files.write("source", &data);
    let proxy = cut_after(target.addr, 8 * MIB, true);
    let cut = format!("nvme+tcp://{proxy}/{}", target.nqn);
    let soon = ["--reconnect-delay", "1", "--keep-alive-tmo", "1"];
    let copied = nvmf(&[&["copy", &source, &cut, "--verify"], &soon[..]].concat());
    let told = text(&copied.stderr);
    assert_eq!(copied.status.code(), Some(0), "{told}");
    assert!(told.contains("connection lost, connecting again"), "{told}");
    assert!(told.contains("connected again"), "{told}");
    assert!(read(&url(&target)) == data);
    // The same for a source.
    let proxy = cut_after(target.addr, 6 * MIB, true);
    let cut = format!("nvme+tcp://{proxy}/{}", target.nqn);
    let result = files.path("result");
    let copied = nvmf(&[&["copy", &cut, &result], &soon[..]].concat());
    assert_eq!(copied.status.code(), Some(0), "{}", text(&copied.stderr));
    assert!(fs::read(&result).unwrap() == data);
}

#[test]
fn an_interrupted_copy_leaves_no_file() {
    let files = Files::new();
    let result = files.path("result");
    let mut copy = Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(["copy", "-", &result])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It waits for more.
    let mut stdin = copy.stdin.take().unwrap();
    stdin.write_all(&noise(10, 5 * MIB)).unwrap();
    let part = PathBuf::from(format!("{result}.part"));
    let deadline = Instant::now() + Duration::from_secs(20);
    let len = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    while len(&part) < 4 << 20 {
        assert!(Instant::now() < deadline, "nothing is copied");
        thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&copy);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = copy.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(text(&ended.stderr), "nvmf: interrupted\n");
    assert_eq!(files.names(), Vec::<String>::new());
}

#[test]
fn data_that_arrive_differently_are_told() {
    // It forgets what is written to it.
    let target = Target::start(&["--null", "3M"]);
    let files = Files::new();
    let mut data = vec![0; 3 * MIB];
    data[2 * MIB + 5] = 1;
    let source = files.write("source", &data);
    let error = failure(5, &["copy", &source, &url(&target), "--verify"]);
    assert!(
        error.contains(&format!("differs from {source} at byte 2097157")),
        "{error}"
    );
    assert!(error.contains("its beginning is zero"), "{error}");
    let told = json_failure(5, &["copy", &source, &url(&target), "--verify"]);
    assert!(
        told["error"].as_str().unwrap().contains("differs from"),
        "{told}"
    );
    output(&["copy", &source, &url(&target)]);
}
