//! `nvmf bench` as a process: what it does, and what it says. How fast it is, nobody asserts.
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[allow(dead_code, reason = "other tests need the rest")]
mod common;

use common::Target;
use common::run::{failure, json, nvmf, output, text, url};

/// The one entry of `jobs`.
fn job(args: &[&str]) -> Value {
    let mut report = json(&[&["bench"], args].concat());
    let jobs = report["jobs"].as_array_mut().expect("jobs");
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// A direction that something was done in: its figures agree with one another.
fn check(direction: &Value, bs: f64) {
    let count = number(&direction["total_ios"]);
    assert!(count > 0.0, "{direction}");
    assert_eq!(number(&direction["io_bytes"]), count * bs, "{direction}");
    let (iops, bandwidth) = (number(&direction["iops"]), number(&direction["bw_bytes"]));
    assert!(
        iops > 0.0 && (bandwidth - iops * bs).abs() <= 1.0,
        "{direction}"
    );
    let clat = &direction["clat_ns"];
    let percentile = |name: &str| number(&clat["percentile"][name]);
    let ascending = [
        number(&clat["min"]),
        percentile("1.000000"),
        percentile("50.000000"),
        percentile("99.000000"),
        percentile("99.900000"),
        percentile("99.990000"),
        number(&clat["max"]),
    ];
    assert!(ascending.is_sorted() && ascending[0] > 0.0, "{clat}");
    let mean = number(&clat["mean"]);
    assert!(ascending[0] <= mean && mean <= ascending[6], "{clat}");
    assert!(number(&clat["stddev"]) >= 0.0, "{clat}");
    assert_eq!(number(&clat["N"]), count);
}

/// What the process used of the machine.
fn check_costs(job: &Value) {
    assert!(
        number(&job["usr_cpu"]) + number(&job["sys_cpu"]) > 0.0,
        "{job}"
    );
    assert!(number(&job["ctx"]) >= 0.0, "{job}");
    assert!(number(&job["ctx_per_io"]) >= 0.0, "{job}");
    assert!(number(&job["system_calls"]) > 0.0, "{job}");
    assert!(number(&job["system_calls_per_io"]) > 0.0, "{job}");
}

#[test]
fn every_pattern_goes_its_way() {
    let target = Target::start(&["--ram", "4M"]);
    let url = url(&target);
    for rw in [
        "read",
        "write",
        "trim",
        "randread",
        "randwrite",
        "randtrim",
        "rw",
        "readwrite",
        "randrw",
    ] {
        let args = [&url, "--rw", rw, "--iodepth", "4", "--io-size", "1M"];
        let job = job(&args);
        let mixed = ["rw", "readwrite", "randrw"].contains(&rw);
        let mut count = 0.0;
        for direction in ["read", "write", "trim"] {
            let expected = rw.ends_with(direction) && rw != "readwrite";
            if expected || mixed && direction != "trim" {
                check(&job[direction], 4096.0);
            } else {
                assert_eq!(job[direction]["total_ios"], 0, "{rw} {direction}");
            }
            count += number(&job[direction]["total_ios"]);
        }
        assert_eq!(count, 256.0, "{rw}");
        check_costs(&job);
    }
}

#[test]
fn options_are_honoured() {
    let target = Target::start(&["--ram", "16M"]);
    let url = url(&target);
    let args = [
        &url,
        "--rw",
        "randrw",
        "--rwmixread",
        "75",
        "--bs",
        "128k",
        "--iodepth",
        "32",
        "--iodepth_batch",
        "8",
        "--numjobs",
        "2",
        "--runtime",
        "0.3",
        "--hipri",
        "--hdgst",
        "--ddgst",
    ];
    let job = job(&args);
    check(&job["read"], 131_072.0);
    check(&job["write"], 131_072.0);
    let (reads, writes) = (&job["read"]["total_ios"], &job["write"]["total_ios"]);
    assert!(
        number(reads) > number(writes),
        "{reads} reads, {writes} writes"
    );
    for (option, value) in [
        ("rw", "randrw"),
        ("bs", "131072"),
        ("iodepth", "32"),
        ("iodepth_batch", "8"),
        ("numjobs", "2"),
        ("rwmixread", "75"),
        ("hipri", "1"),
        ("hdgst", "1"),
        ("ddgst", "1"),
    ] {
        assert_eq!(job["job options"][option], value, "{option}");
    }
    check_costs(&job);
    // A connection for each job, beside the Admin Queue.
    for qid in [1, 2] {
        let connected = format!("qid={qid} ");
        assert!(target.log().contains(&connected), "{}", target.log());
    }
}

#[test]
fn people_see_a_table_and_bars() {
    let target = Target::start(&["--ram", "4M"]);
    let shown = output(&["bench", &url(&target), "--rw", "randrw", "--runtime", "0.2"]);
    for part in [
        "IOPS",
        "p99.99",
        "\nrandrw read 4 KiB qd 1 ",
        "\nrandrw write 4 KiB qd 1 ",
        "\nper I/O   ",
        " system calls, ",
        " context switches\n",
        "\nCPU       ",
        "\nrandrw write, µs\n",
        "%  #####",
    ] {
        assert!(shown.contains(part), "{part} is missing in:\n{shown}");
    }
}

#[test]
fn as_deep_as_the_target_s_queues() {
    let target = Target::start(&["--ram", "4M"]);
    let url = url(&target);
    let args = [&url, "--iodepth", "128", "--runtime", "0.2", "--hipri"];
    check(&job(&args)["read"], 4096.0);
    let error = failure(2, &["bench", &url, "--iodepth", "256"]);
    assert!(error.starts_with("--iodepth may be up to 255: "), "{error}");
    // A target that offers what others do.
    let target = Target::start(&["--ram", "4M", "--queue-depth", "128"]);
    let error = failure(
        2,
        &["bench", &common::run::url(&target), "--iodepth", "128"],
    );
    assert!(error.starts_with("--iodepth may be up to 127: "), "{error}");
}

#[test]
fn a_full_socket_does_not_stop_who_polls() {
    let target = Target::start(&["--null", "64M"]);
    let url = url(&target);
    // More than a socket's buffer holds, asked for at once.
    for bs in ["128k", "1M"] {
        let args = [
            &url,
            "--rw",
            "write",
            "--bs",
            bs,
            "--iodepth",
            "128",
            "--hipri",
        ];
        let written = job(&[&args[..], &["--io-size", "256M"]].concat());
        assert_eq!(number(&written["write"]["io_bytes"]), f64::from(256 << 20));
    }
}

#[test]
fn verify_finds_what_it_wrote() {
    let target = Target::start(&["--ram", "4M"]);
    let url = url(&target);
    // Each place at most once in flight, some many times over.
    let args = [
        &url,
        "--rw",
        "randwrite",
        "--size",
        "256k",
        "--iodepth",
        "16",
        "--numjobs",
        "2",
        "--io-size",
        "4M",
        "--verify",
    ];
    let written = job(&args);
    assert_eq!(written["write"]["total_ios"], 2048);
    assert_eq!(written["read"]["total_ios"], 0);
    let read_back = number(&written["verify"]["total_ios"]);
    assert!(read_back > 32.0 && read_back <= 64.0, "{read_back}");
    // Once through, and again by another process.
    let args = [&url, "--rw", "write", "--bs", "16k", "--verify=crc32c"];
    assert_eq!(job(&args)["verify"]["total_ios"], 256);
    let args = [
        &url,
        "--rw",
        "read",
        "--bs",
        "64k",
        "--iodepth",
        "4",
        "--verify",
    ];
    let read = job(&args);
    assert_eq!(read["read"]["total_ios"], 64);
    check(&read["read"], 65_536.0);
    let args = [
        &url,
        "--rw",
        "randrw",
        "--iodepth",
        "32",
        "--io-size",
        "2M",
        "--verify",
        "--ddgst",
    ];
    check(&job(&args)["read"], 4096.0);
}

#[test]
fn verify_finds_a_wrong_byte() {
    let directory = tempfile::tempdir().unwrap();
    let target = Target::start_with_file(directory.path(), &[]);
    let url = url(&target);
    let args = |rw| {
        [
            "bench",
            &url,
            "--rw",
            rw,
            "--size",
            "1M",
            "--iodepth",
            "8",
            "--verify",
        ]
    };
    output(&args("write"));
    output(&args("read"));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(directory.path().join("namespace"))
        .unwrap();
    let (at, mut byte) = (1001 * 512 + 77, [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    file.sync_all().unwrap();
    let error = failure(5, &args("read"));
    assert!(
        error.starts_with("LBA 1001 is wrong: the CRC32C of its bytes is "),
        "{error}"
    );
}

#[test]
fn verify_notices_writes_that_vanish() {
    let args = [
        "bench", "--null", "--size", "1M", "--rw", "write", "--verify",
    ];
    let error = failure(5, &args);
    assert_eq!(error, "LBA 0 holds nothing that --verify wrote");
}

#[test]
fn the_bare_socket_is_the_reference() {
    for args in [
        &["--rw", "randread", "--iodepth", "8"][..],
        &[
            "--rw",
            "randwrite",
            "--bs",
            "64k",
            "--iodepth",
            "4",
            "--hipri",
            "--ddgst",
        ],
        &["--rw", "randrw", "--numjobs", "2", "--null", "--hdgst"],
    ] {
        let args = [args, &["--reference", "--size", "4M", "--runtime", "0.25"]].concat();
        let job = job(&args);
        let (ratio, iops) = (number(&job["ratio"]), number(&job["reference"]["iops"]));
        assert!(ratio > 0.0 && iops > 0.0, "{job}");
        let rounds = job["reference"]["rounds"].as_array().expect("rounds");
        assert_eq!(rounds.len(), 5);
        for round in rounds {
            assert!(number(&round["iops"]) > 0.0, "{round}");
            assert!(number(&round["reference"]) > 0.0, "{round}");
        }
        check_costs(&job);
        let shown = output(&[&["bench"], &args[..]].concat());
        assert!(shown.contains("\nratio     "), "{shown}");
        assert!(shown.contains("\nbare, hot rand"), "{shown}");
    }
}

#[test]
fn several_namespaces_take_turns() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file").display().to_string();
    let file_spec = format!("{file},size=4M");
    for rw in ["randread", "randwrite"] {
        let args = ["bench", "--null", "--ram", "--file", &file_spec];
        let more = ["--rw", rw, "--size", "4M", "--runtime", "0.06"];
        let reference = ["--reference=both", "--rounds", "3", "--bs", "32k"];
        let report = json(&[&args[..], &more, &reference].concat());
        let names = ["4 MiB of nothing", "4 MiB of RAM", &file];
        let jobs = report["jobs"].as_array().expect("jobs");
        assert_eq!(jobs.len(), 3);
        for (job, name) in jobs.iter().zip(names) {
            assert_eq!(job["jobname"], name);
            check(&job[rw.trim_start_matches("rand")], 32_768.0);
            for (reference, ratio, memory) in [
                ("reference", "ratio", "hot"),
                ("other_reference", "other_ratio", "same"),
            ] {
                assert_eq!(job[reference]["memory"], memory);
                assert_eq!(job[reference]["rounds"].as_array().unwrap().len(), 3);
                assert!(number(&job[ratio]) > 0.0, "{job}");
            }
        }
    }
}

#[test]
fn connections_are_spread_over_controllers() {
    let target = Target::start(&["--ram", "4M", "--max-queues", "3"]);
    let url = url(&target);
    let args = [
        &url,
        "--connections",
        "4",
        "--controllers",
        "3",
        "--numjobs",
        "2",
    ];
    for hipri in [&[][..], &["--hipri"]] {
        let limits = ["--iodepth", "4", "--io-size", "64k", "--rw", "randrw"];
        let job = job(&[&args[..], &limits, hipri].concat());
        let done = [&job["read"]["total_ios"], &job["write"]["total_ios"]].map(number);
        assert_eq!(done[0] + done[1], 8.0 * 16.0);
        assert_eq!(job["connections"]["count"], 8);
        let [least, most] =
            ["least_iops", "most_iops"].map(|name| number(&job["connections"][name]));
        assert!(least > 0.0 && least == most, "{job}");
    }
    let log = target.log();
    let connected = |qid: &str| {
        let lines = log.lines();
        lines
            .filter(|line| line.contains(" connected ") && line.contains(qid))
            .count()
    };
    assert_eq!(
        (connected(" qid=3 "), connected(" qid=4 ")),
        (4, 0),
        "{log}"
    );
    let written = job(&[
        &url,
        "--connections",
        "3",
        "--rw",
        "write",
        "--verify",
        "--size",
        "1M",
    ]);
    assert_eq!(number(&written["verify"]["total_ios"]), 255.0);
}

/// How often the target's first worker went to sleep.
fn sleeps(target: &Target) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid)).unwrap();
    let worker = tasks
        .map(|task| task.unwrap().path())
        .find(|task| fs::read_to_string(task.join("comm")).unwrap() == "nvmf-0\n")
        .expect("a worker");
    let status = fs::read_to_string(worker.join("status")).unwrap();
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn a_target_that_polls_does_not_sleep_between_commands() {
    let target = Target::start(&["--workers", "1", "--poll-us", "100000"]);
    // Longer than it polls after the connection was made.
    let written = job(&[&url(&target), "--rw", "write", "--runtime", "1"]);
    let slept = sleeps(&target);
    let commands = number(&written["write"]["total_ios"]);
    assert!(
        (slept as f64) < commands / 50.0,
        "it slept {slept} times in {commands} commands"
    );
}

#[test]
fn a_target_that_dies_ends_the_bench() {
    let target = Target::start(&[]);
    let mut bench = Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(["bench", &url(&target), "--runtime", "60"])
        .args(["--iodepth", "8", "--eta", "always"])
        .env_remove("RUST_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(bench.stderr.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("randread") && line.contains("IOPS"), "{line}");
    drop(target);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    let error = rest.lines().last().unwrap_or_default();
    assert!(
        error.contains("closed the connection") || error.contains("connection lost"),
        "{rest}"
    );
    assert_eq!(bench.wait().unwrap().code(), Some(3));
}

#[test]
fn what_makes_no_sense_is_explained() {
    let target = Target::start(&["--ram", "1M"]);
    let url = url(&target);
    for (args, explanation) in [
        (&[&url, "--bs", "1000"][..], "--bs must be a whole number"),
        (&[&url, "--bs", "2M"], "more than a command may move here"),
        (&[&url, "--size", "2M"], "more than the namespace has"),
        (&[&url, "-n", "2"], "has no namespace 2"),
        (&[&url, "--numjobs", "9", "--size", "32k"], "too small"),
        (
            &[&url, "--iodepth", "4", "--iodepth-batch", "5"],
            "may not be more than",
        ),
        (
            &[&url, "--rw", "trim", "--reference"],
            "for reads and writes only",
        ),
        (&["--rw", "read", "--verify"], "what an earlier run wrote"),
        (
            &[
                &url,
                "--verify",
                "--rw",
                "write",
                "--size",
                "8k",
                "--iodepth",
                "4",
            ],
            "each in a place of its own",
        ),
        (&["--size", "1000"], "not a multiple of the block size"),
    ] {
        let failed = nvmf(&[&["bench"], args].concat());
        let error = text(&failed.stderr);
        assert!(error.contains(explanation), "{args:?}: {error}");
        assert_ne!(failed.status.code(), Some(0), "{args:?}");
        assert_eq!(text(&failed.stdout), "", "{args:?}");
    }
    for (args, explanation) in [
        (&["--rw", "erase"][..], "randread"),
        (&["--runtime", "0"], "number of seconds"),
        (&["--iodepth", "0"], "0 is not in 1"),
        (&["--verify=md5"], "crc32c"),
        (&[&url, "--null"], "--null"),
        (&["--verify", "--reference"], "--reference"),
    ] {
        let failed = nvmf(&[&["bench"], args].concat());
        let error = text(&failed.stderr);
        assert_eq!(failed.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(explanation), "{args:?}: {error}");
    }
}

/// A bench that would go on for an hour, and has done something. Dropping it ends it.
struct Running(Child);

impl Running {
    fn start(args: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_nvmf"))
            .arg("bench")
            .args(args)
            .args(["--runtime", "3600", "--eta", "always"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut running = Self(child);
        let stderr = running.0.stderr.as_mut().expect("piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let done = |line: String| line.contains(" IOPS ") && !line.contains(" 0 IOPS ");
        assert!(lines.any(done), "it has ended");
        running
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).expect("it is there");
    }

    /// Its exit status, and what it has printed. Until it ends, it gets `impatience`.
    fn end(mut self, impatience: impl Fn(&Self)) -> (Option<i32>, String) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it goes on");
            impatience(&self);
            thread::sleep(Duration::from_millis(20));
        }
        let mut shown = String::new();
        let mut stdout = self.0.stdout.take().expect("piped");
        stdout.read_to_string(&mut shown).unwrap();
        (self.0.wait().unwrap().code(), shown)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_interrupted_run_is_reported() {
    let target = Target::start(&["--ram", "4M"]);
    let url = url(&target);
    let common = ["--bs", "4k", "--iodepth", "4", "--numjobs", "2"];

    let running = Running::start(&[&[&url[..]], &common[..]].concat());
    running.interrupt();
    let (exit, shown) = running.end(|_| ());
    assert_eq!(exit, Some(0), "{shown}");
    assert!(shown.contains("randread 4 KiB qd 4"), "{shown}");

    // Nothing of the bare socket was measured yet: its turn is after minutes.
    for more in [&[][..], &["--reference"]] {
        let args = [&[&url[..], "--output", "json"], &common[..], more].concat();
        let running = Running::start(&args);
        running.interrupt();
        let (exit, shown) = running.end(|_| ());
        assert_eq!(exit, Some(0), "{shown}");
        let report: Value = serde_json::from_str(&shown).unwrap();
        check(&report["jobs"][0]["read"], 4096.0);
        assert!(report["jobs"][0].get("ratio").is_none(), "{shown}");
    }

    // What was written is not known to be there.
    let running = Running::start(&[&url, "--rw", "write", "--verify", "--output", "json"]);
    running.interrupt();
    let (exit, shown) = running.end(|_| ());
    assert_eq!(exit, Some(1), "{shown}");
    let report: Value = serde_json::from_str(&shown).unwrap();
    check(&report["jobs"][0]["write"], 4096.0);
}

#[test]
fn a_second_interrupt_does_not_wait() {
    let target = Target::start(&["--ram", "4M"]);
    let running = Running::start(&[&url(&target), "--iodepth", "4"]);
    // Commands that are under way do not end.
    target.signal(Signal::STOP);
    // Signals that come too soon after one another are one.
    let (exit, shown) = running.end(Running::interrupt);
    assert_eq!((exit, &shown[..]), (Some(130), ""));
}

#[test]
fn direct_io_works_however_much_memory_may_be_locked() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk");
    let spec = format!("{},size=8M,direct=on", file.display());
    // 64 KiB: half of what the commands need. Root may lock what it likes, unless that is taken from it.
    let limited = r#"ulimit -l 64 && exec "$@""#;
    let mut command = if rustix::process::geteuid().is_root() {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--bounding-set=-ipc_lock", "sh"]);
        setpriv
    } else {
        Command::new("sh")
    };
    command.args(["-c", limited, "sh", env!("CARGO_BIN_EXE_nvmf")]);
    command.args(["bench", "--file", &spec, "--rw", "randrw", "--verify"]);
    command.args(["--iodepth", "32", "--eta", "never"]);
    let output = match command.env("RUST_LOG", "info").output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: no privileges can be dropped here: {error}");
            return;
        }
    };
    let (told, complaints) = (text(&output.stdout), text(&output.stderr));
    if complaints.contains("direct=on, but") {
        eprintln!("skipped: {complaints}");
        return;
    }
    assert!(output.status.success(), "{complaints}");
    assert!(told.contains("read back what was written: the same"));
    if !complaints.contains("threads do its I/O") {
        let limit = complaints.matches("see `ulimit -l`").count();
        assert_eq!(limit, 1, "{complaints}");
    }
}
