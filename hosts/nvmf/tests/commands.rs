//! Each command of a host: what it shows to people and to programs, what it does, and how it fails.
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

#[allow(dead_code, reason = "other tests need the rest")]
mod common;

use common::Target;
use common::run::{failure, json, json_failure, nvmf, output, text, url};
use serde_json::json;

/// 1 MiB in blocks of 512 bytes, 2 MiB in blocks of 4096 bytes, both of 0xFF.
fn filled() -> Target {
    let target = Target::start(&["--ram", "1M", "--ram", "2M,bs=4096"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ones");
    for (nsid, bytes) in [("1", 1 << 20), ("2", 2 << 20)] {
        fs::write(&file, vec![0xFF; bytes]).unwrap();
        let data = file.to_str().unwrap();
        assert_eq!(
            output(&["write", &url(&target), "-n", nsid, "-d", data]),
            ""
        );
    }
    target
}

fn read(target: &Target, nsid: &str) -> Vec<u8> {
    let read = nvmf(&["read", &url(target), "--namespace-id", nsid]);
    assert_eq!(read.status.code(), Some(0), "{}", text(&read.stderr));
    read.stdout
}

/// Whether just the bytes of this range are not 0xFF.
fn only(data: &[u8], range: std::ops::Range<usize>) -> bool {
    let changed = |index: usize| range.contains(&index);
    (0..data.len()).all(|index| (data[index] == 0xFF) != changed(index))
}

#[test]
fn namespaces_are_listed() {
    let target = Target::start(&["--ram", "1M", "--ram", "2M,bs=4096", "--serial", "S1"]);
    let base = format!("nvme+tcp://{}", target.addr);
    for from in [base.as_str(), &url(&target)] {
        let devices = json(&["list", from]);
        let [first, second] = devices["Devices"].as_array().unwrap().as_slice() else {
            panic!("{devices}");
        };
        assert_eq!(first["DevicePath"], format!("{}?nsid=1", url(&target)));
        assert_eq!(first["SerialNumber"], "S1");
        assert_eq!(second["NameSpace"], 2);
        assert_eq!(second["MaximumLBA"], 512);
        assert_eq!(second["SectorSize"], 4096);
        assert_eq!(second["PhysicalSize"], 2 << 20);
        let lines = output(&["list", from]);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("URL "), "{lines:?}");
        assert!(lines[2].contains("?nsid=2  2.00 MiB  4096 B"), "{lines:?}");
    }
    let digests = json(&["list", &format!("{base}?hdr-digest=1")]);
    let there = format!("{}?nsid=1&hdr-digest=1", url(&target));
    assert_eq!(digests["Devices"][0]["DevicePath"], there);
    let one = json(&["list", &format!("{}?nsid=2", url(&target))]);
    assert_eq!(one["Devices"].as_array().unwrap().len(), 1);

    // What cannot be listed does not hide the rest.
    let other = format!("{base}/nqn.2014-08.org.example:other");
    let partly = nvmf(&["list", &other, &base]);
    assert_eq!(partly.status.code(), Some(4));
    assert!(text(&partly.stdout).contains("?nsid=1"));
    assert!(text(&partly.stderr).contains("is the NQN right?"));
}

#[test]
fn controllers_and_namespaces_have_the_names_of_nvme_cli() {
    let target = Target::start(&["--ram", "1M", "--ram", "2M,bs=4096", "--serial", "S1"]);
    let controller = json(&["id-ctrl", &url(&target)]);
    for (key, value) in [
        ("sn", json!("S1")),
        ("mn", json!("nvmf")),
        ("mdts", json!(8)),
        ("ver", json!(0x2_0000)),
        ("cntrltype", json!(1)),
        ("sqes", json!(0x66)),
        ("tnvmcap", json!(0)),
        ("subnqn", json!(target.nqn)),
        ("ioccsz", json!((64 + 16_384) / 16)),
    ] {
        assert_eq!(controller[key], value, "{key}");
    }
    let namespace = json(&["id-ns", &url(&target), "-n", "2"]);
    for (key, value) in [
        ("nsze", json!(512)),
        ("nvmcap", json!(2 << 20)),
        ("dlfeat", json!(9)),
    ] {
        assert_eq!(namespace[key], value, "{key}");
    }
    assert_eq!(
        namespace["lbafs"],
        json!([{"lbaf": 0, "ms": 0, "ds": 12, "rp": 0, "in_use": 1}])
    );
    let raw = nvmf(&["id-ns", &url(&target), "-n", "2", "--raw-binary"]);
    assert_eq!(raw.stdout.len(), 4096);
    assert_eq!(raw.stdout[..8], 512u64.to_le_bytes());
    let both = format!("{}?nsid=1", url(&target));
    let error = failure(2, &["id-ns", &both, "--namespace-id", "2"]);
    assert!(
        error.contains("the URL says namespace 1, --namespace-id says 2"),
        "{error}"
    );
}

#[test]
fn logs_are_decoded_and_dumped() {
    let target = Target::start(&["--ram", "1M"]);
    let url = url(&target);
    let smart = json(&["smart-log", &url]);
    assert_eq!(smart["avail_spare"], 100);
    assert_eq!(smart["num_err_log_entries"], 0);
    assert!(output(&["smart-log", &url]).contains("avsp: 100%\n"));
    assert_eq!(json(&["get-log", &url, "--log-id", "2"]), smart);

    assert_eq!(output(&["get-log", &url, "--lid", "1"]), "no errors\n");
    assert_eq!(json(&["get-log", &url, "-i", "1"]), json!({"errors": []}));
    let firmware = json(&["get-log", &url, "-i", "3"]);
    assert_eq!(firmware["afi"], 1);
    assert!(firmware["frs1"].is_string(), "{firmware}");
    assert_eq!(
        json(&["get-log", &url, "-i", "4"]),
        json!({"nsids": [], "too_many": false})
    );
    let effects = json(&["get-log", &url, "-i", "5"]);
    assert_eq!(
        effects["io_cmd_set"][1],
        json!({"opcode": 1, "name": "Write", "effects": 3})
    );
    let pages = json(&["get-log", &url, "-i", "0"]);
    assert_eq!(
        pages["supported_logs"][2]["name"],
        "SMART / Health Information"
    );
    let features = json(&["get-log", &url, "-i", "0x12"]);
    assert!(!features["fid_support"].as_array().unwrap().is_empty());

    let part = ["get-log", &url, "-i", "2", "--lpo", "4", "--log-len", "8"];
    assert_eq!(
        json(&part),
        json!({"lid": 2, "lpo": 4, "data": "0000000000000000"})
    );
    assert_eq!(
        output(&["get-log", &url, "-i", "2", "-l", "8", "--hex"]),
        "0000: 00 00 00 64 00 00 00 00                         |...d....|\n"
    );
    let raw = nvmf(&["get-log", &url, "-i", "2", "-b"]);
    assert_eq!((raw.stdout.len(), raw.stdout[3]), (512, 100));

    let discovery = format!("nvme+tcp://{}", target.addr);
    let log = json(&["get-log", &discovery, "-i", "0x70"]);
    assert_eq!(log["records"][1]["url"], url);
    assert!(log["genctr"].is_u64(), "{log}");

    let error = failure(2, &["get-log", &url, "-i", "0xc0"]);
    assert!(error.contains("--log-len"), "{error}");
    let error = failure(2, &["get-log", &url, "-i", "2", "--lpo", "3"]);
    assert!(error.contains("multiple of 4"), "{error}");
    let error = failure(4, &["get-log", &url, "-i", "0xc0", "-l", "64"]);
    assert_eq!(error, "Get Log Page failed: Invalid Log Page (1/09h) DNR");
}

#[test]
fn features_are_shown_and_set() {
    let target = Target::start(&["--ram", "1M"]);
    let url = url(&target);
    assert_eq!(
        output(&["get-feature", &url, "-f", "7", "-H"]),
        "feature 07h Number of Queues, current: 0x00070007\nnsq: 8\nncq: 8\n"
    );
    let queues = json(&["get-feature", &url, "--feature-id", "7"]);
    assert_eq!(queues["value"], 0x0007_0007);
    assert_eq!(queues["fields"], json!({"nsq": 8, "ncq": 8}));
    let queues = ["get-feature", &url, "-f", "7", "--nr-io-queues", "3"];
    assert_eq!(json(&queues)["fields"]["nsq"], 3);

    let hostid = "11111111-2222-3333-4444-555555555555";
    let host = json(&["get-feature", &url, "-f", "0x81", "--hostid", hostid]);
    assert_eq!(host["data"], hostid.replace('-', ""));
    assert_eq!(host["fields"]["hostid"], hostid);
    let raw = nvmf(&["get-feature", &url, "-f", "0x81", "--hostid", hostid, "-b"]);
    assert_eq!(raw.stdout[..4], [0x11; 4]);

    let set = json(&["set-feature", &url, "-f", "0x0b", "-v", "0x100"]);
    assert_eq!((&set["feature"], &set["value"]), (&json!(11), &json!(256)));
    assert_eq!(
        output(&["set-feature", &url, "-f", "0x0b", "--value", "0"]),
        ""
    );

    let directory = tempfile::tempdir().unwrap();
    let timestamp = directory.path().join("timestamp");
    fs::write(&timestamp, 1_000_000_000_000u64.to_le_bytes()).unwrap();
    let data = timestamp.to_str().unwrap();
    assert_eq!(
        output(&["set-feature", &url, "-f", "0x0e", "--data", data]),
        ""
    );
    let error = failure(2, &["set-feature", &url, "-f", "0x0e"]);
    assert!(error.contains("the value of Timestamp is data"), "{error}");
    // Not by mistake, and not instead of this: the version, as -V is elsewhere.
    let error = failure(2, &["set-feature", &url, "-f", "0x0b"]);
    assert!(error.contains("Say it with --value"), "{error}");
    let set = json(&["set-feature", &url, "-f", "0x0b", "-V", "0x100"]);
    assert_eq!(set["value"], 256);
    let error = failure(4, &["get-feature", &url, "-f", "0xd0"]);
    assert!(
        error.starts_with("Get Features failed: Invalid Field in Command (0/02h)"),
        "{error}"
    );
    let told = json_failure(4, &["set-feature", &url, "-f", "0xd0", "-v", "0"]);
    assert_eq!(told["status"]["name"], "Invalid Field in Command");
    assert_eq!(
        (&told["status"]["sct"], &told["status"]["sc"]),
        (&json!(0), &json!(2))
    );
}

#[test]
fn blocks_are_zeroed_discarded_and_verified() {
    let target = filled();
    let url = url(&target);
    for (nsid, block) in [("1", 512), ("2", 4096)] {
        let on = |command: &str, rest: &[&str]| {
            let args = [&[command, &url, "-n", nsid], rest].concat();
            assert_eq!(output(&args), "");
        };
        on("flush", &[]);
        on("verify", &[]);
        on("verify", &["--start-block", "1", "--block-count", "3"]);
        assert!(only(&read(&target, nsid), 0..0));
        on(
            "write-zeroes",
            &["--start-block", "2", "--block-count", "3"],
        );
        assert!(only(&read(&target, nsid), 2 * block..5 * block));
        on("discard", &["--start-block", "0,5", "--block-count", "2,1"]);
        assert!(only(&read(&target, nsid), 0..6 * block));
        on("write-zeroes", &["--deac", "--start-block", "6", "-c", "1"]);
        assert!(only(&read(&target, nsid), 0..7 * block));
        on("discard", &["--yes"]);
        assert!(read(&target, nsid).iter().all(|byte| *byte == 0));
    }
    let flushed = json(&["flush", &url, "-n", "2"]);
    assert_eq!(flushed, json!({"nsid": 2}));
    assert_eq!(
        json(&["verify", &url, "-n", "2", "-s", "1"]),
        json!({"nsid": 2, "slba": 1, "blocks": 511})
    );
    assert_eq!(
        json(&["discard", &url, "-n", "1", "-s", "7", "-c", "9"]),
        json!({"nsid": 1, "ranges": [[7, 9]]})
    );
}

#[test]
fn what_would_destroy_a_namespace_is_asked_for() {
    let target = filled();
    let url = url(&target);
    for command in ["discard", "write-zeroes"] {
        let error = failure(2, &[command, &url, "-n", "1"]);
        assert!(error.contains("all 2048 blocks of namespace 1"), "{error}");
        assert!(error.ends_with("say so with --yes"), "{error}");
    }
    assert!(only(&read(&target, "1"), 0..0));
    assert_eq!(output(&["write-zeroes", &url, "-n", "1", "--yes"]), "");
    assert!(read(&target, "1").iter().all(|byte| *byte == 0));
}

#[test]
fn blocks_that_are_not_there_are_refused() {
    let target = Target::start(&["--ram", "1M"]);
    let url = url(&target);
    for command in ["discard", "write-zeroes", "verify"] {
        for range in [["2048", "1"], ["2040", "9"], ["1", "18446744073709551615"]] {
            let error = failure(1, &[command, &url, "-s", range[0], "-c", range[1]]);
            assert!(error.contains("beyond the end"), "{error}");
        }
    }
    let error = failure(2, &["discard", &url, "-s", "1,2", "-c", "1"]);
    assert!(error.contains("as many numbers"), "{error}");
    // The target's own answer.
    let args = [
        "io-passthru",
        &url,
        "-o",
        "2",
        "--cdw10",
        "4096",
        "-l",
        "512",
        "-r",
    ];
    let error = failure(4, &args);
    assert_eq!(error, "Read failed: LBA Out of Range (0/80h) DNR");
    let told = json_failure(4, &args);
    assert_eq!(
        told["status"],
        json!({"name": "LBA Out of Range", "sct": 0, "sc": 0x80, "crd": 0, "more": false, "dnr": true})
    );
}

#[test]
fn any_command_passes() {
    let target = filled();
    let url = url(&target);
    let identify = [
        "admin-passthru",
        &url,
        "--opcode=0x06",
        "--cdw10=1",
        "-l",
        "4096",
        "-r",
    ];
    let shown = output(&identify);
    assert!(
        shown.starts_with("Identify: success, result 0x00000000\n0000: "),
        "{shown}"
    );
    let told = json(&identify);
    assert_eq!(told["data"].as_str().unwrap().len(), 8192);
    let raw = nvmf(&[&identify[..], &["-b"]].concat());
    assert_eq!(raw.stdout.len(), 4096);

    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("block"), [7; 512]).unwrap();
    let (block, got) = (path("block"), path("got"));
    let args = ["-n", "1", "--cdw10", "3", "--data-len", "512"];
    let io = |rest: &[&str]| output(&[&["io-passthru", &url], &args[..], rest].concat());
    io(&["-o", "1", "--write", "-i", &block]);
    io(&["-o", "2", "--read", "-i", &got]);
    assert_eq!(fs::read(&got).unwrap(), [7; 512]);
    assert!(only(&read(&target, "1"), 3 * 512..4 * 512));

    let which = ["io-passthru", &url, "-n", "1", "-o", "2", "-l", "512"];
    let error = failure(2, &which);
    assert!(error.contains("--read or --write"), "{error}");
    let shown = nvmf(&[&which[..], &["-r", "--dry-run"]].concat());
    assert_eq!(shown.status.code(), Some(0));
    assert!(
        text(&shown.stderr).contains("nsid"),
        "{}",
        text(&shown.stderr)
    );
}

#[test]
fn programs_learn_why_there_is_no_connection() {
    let target = Target::start(&["--allow-host", "nqn.2014-08.org.example:friend"]);
    let me = ["--hostnqn", "nqn.2014-08.org.example:me"];
    let refused = json_failure(4, &[&["id-ctrl", &url(&target)], &me[..]].concat());
    assert_eq!(refused["status"]["name"], "Connect Invalid Host");
    assert_eq!(refused["status"]["sc"], 0x84);
    assert!(refused["status"]["parameter"].is_string(), "{refused}");
    let target = Target::start(&[]);
    let other = format!("nvme+tcp://{}/nqn.2014-08.org.example:other", target.addr);
    let wrong = json_failure(4, &["smart-log", &other]);
    assert_eq!(wrong["status"]["name"], "Connect Invalid Parameters");
    let hint = format!("is the NQN right? The target offers: {}", target.nqn);
    assert!(wrong["error"].as_str().unwrap().contains(&hint), "{wrong}");
    let nobody = json_failure(3, &["list", "nvme+tcp://127.0.0.1:1"]);
    assert_eq!(nobody.get("status"), None);
    let usage = json_failure(2, &["flush", "nvme+tcp://127.0.0.1:1"]);
    assert!(
        usage["error"]
            .as_str()
            .unwrap()
            .contains("names no subsystem"),
        "{usage}"
    );
    json_failure(2, &["read", &url(&target)]);
    for (arguments, error) in [
        (vec!["flush"], "arguments were not provided: <URL>"),
        (vec!["flush", "192.0.2.7"], "a URL begins with nvme+tcp://"),
        (vec!["no-such"], "unrecognized subcommand 'no-such'"),
    ] {
        let told = json_failure(2, &arguments);
        assert!(told["error"].as_str().unwrap().contains(error), "{told}");
    }
}

#[test]
fn nobody_is_told_that_nobody_reads() {
    let target = Target::start(&[]);
    let url = url(&target);
    for args in [
        vec!["id-ctrl", &url],
        vec!["ping", &url],
        vec!["demo"],
        vec!["man", "copy"],
        vec!["completions", "bash"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = Command::new(env!("CARGO_BIN_EXE_nvmf"))
            .args(&args)
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(text(&ended.stderr), "", "{args:?}");
        assert_eq!(ended.status.code(), Some(1), "{args:?}");
    }
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(["id-ctrl", &url])
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let error = text(&ended.stderr);
    assert!(
        error.starts_with("nvmf: cannot write standard output: "),
        "{error}"
    );
    assert_eq!(ended.status.code(), Some(1));
}

#[test]
fn ping_ends_with_a_summary_when_it_is_interrupted() {
    let target = Target::start(&["--ram", "1M,bs=4096"]);
    let ping = Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args([
            "ping",
            &url(&target),
            "--interval",
            "0.01",
            "--output",
            "json",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = rustix::process::Pid::from_child(&ping);
    let (lines, told) = std::sync::mpsc::channel();
    let reader = {
        let mut ping = ping;
        std::thread::spawn(move || {
            use std::io::BufRead;
            let out = std::io::BufReader::new(ping.stdout.take().unwrap());
            let all: Vec<String> = out
                .lines()
                .map(|line| line.unwrap())
                .inspect(|_| lines.send(()).unwrap_or_default())
                .collect();
            (all, ping.wait().unwrap())
        })
    };
    for _ in 0..3 {
        told.recv_timeout(std::time::Duration::from_secs(20))
            .unwrap();
    }
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (lines, status) = reader.join().unwrap();
    assert!(status.success());
    let parse = |line: &String| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let first = parse(&lines[0]);
    assert_eq!((&first["seq"], &first["bytes"]), (&json!(1), &json!(4096)));
    let summary = parse(lines.last().unwrap());
    assert_eq!(summary["reads"], lines.len() - 1);
    assert!(summary["min_us"].as_f64() <= summary["max_us"].as_f64());
}

#[test]
fn manual_pages_are_written_for_all() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(
        output(&["man", "--all", directory.path().to_str().unwrap()]),
        ""
    );
    let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    assert!(page("nvmf.1").contains(".SH \"EXIT STATUS\""));
    let get_log = page("nvmf-get-log.1");
    assert!(get_log.contains(".SH EXAMPLES"), "{get_log}");
    assert_eq!(output(&["man", "get-log"]), get_log);
    let error = failure(2, &["man", "no-such"]);
    assert!(error.contains("no command `no-such`"), "{error}");
    assert!(!Path::new("nvmf.1").exists());
}
