//! The commands of a host as processes, against `nvmf target`.
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

#[allow(dead_code, reason = "other tests need the rest")]
mod common;

use common::Target;
use common::data::noise;
use common::run::{failure, json, nvmf, output, text, url};

const BLOCK: usize = 512;

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of ASCII")
}

#[test]
fn demo_works_in_one_go() {
    let shown = output(&["demo", "--runtime", "0.1"]);
    for part in [
        "target    nvme+tcp://127.0.0.1:",
        "discover  nqn.2014-08.org.nvmexpress:uuid:",
        "with digests: the same",
        "without digests: the same",
        "IOPS",
        "randread 4 KiB qd 1 ",
        "randwrite 4 KiB qd 32 ",
        "Try next:",
    ] {
        assert!(shown.contains(part), "{part} is missing in:\n{shown}");
    }
    for line in shown.lines().filter(|line| line.starts_with("rand")) {
        let iops: f64 = line
            .split_whitespace()
            .nth(5)
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("no IOPS in {line}"));
        assert!(iops > 0.0, "{line}");
    }
}

#[test]
fn demo_tells_programs_the_same() {
    let document = json(&["demo", "--runtime", "0.1"]);
    assert_eq!(document["ram"], 32 << 20, "{document}");
    assert_eq!(document["blocks"], (32 << 20) / BLOCK, "{document}");
    assert_eq!(document["block_size"], BLOCK, "{document}");
    for how in ["with_digests", "without_digests"] {
        assert_eq!(document["verified"][how], 32 << 20, "{document}");
    }
    let jobs = document["jobs"].as_array().expect("jobs");
    let measured: Vec<_> = jobs
        .iter()
        .map(|job| {
            let options = &job["job options"];
            let rw = options["rw"].as_str().expect("rw");
            let direction = rw.trim_start_matches("rand");
            let iops = job[direction]["iops"].as_f64().expect("IOPS");
            assert!(iops > 0.0, "{job}");
            (rw, options["iodepth"].as_str().expect("iodepth"))
        })
        .collect();
    assert_eq!(
        measured,
        [
            ("randread", "1"),
            ("randwrite", "1"),
            ("randread", "32"),
            ("randwrite", "32")
        ]
    );
}

#[test]
fn what_is_offered_can_be_used() {
    let target = Target::start(&["--ram", "1M", "--ram", "2M,bs=4096"]);
    let base = format!("nvme+tcp://{}", target.addr);
    let listed = output(&["discover", &base]);
    assert!(
        listed
            .lines()
            .any(|line| line == format!("{}  nvme subsystem", url(&target))),
        "{listed}"
    );
    let found = json(&["discover", &base]);
    let entry = &found["records"][1];
    assert_eq!(entry["subnqn"], target.nqn, "{found}");
    assert_eq!(entry["url"], url(&target), "{found}");
    assert_eq!(entry["trtype"], "tcp", "{found}");
    let controller = output(&["id-ctrl", &url(&target)]);
    assert!(
        controller.contains(&format!("subnqn: {}\n", target.nqn)),
        "{controller}"
    );
    let namespace = output(&["id-ns", &format!("{}?nsid=2", url(&target))]);
    assert!(namespace.contains("nsze: 512\n"), "{namespace}");
    assert_eq!(
        failure(2, &["id-ns", &url(&target)]),
        "which namespace? Add ?nsid=N to the URL; there are 1, 2"
    );
    let missing = format!("{}?nsid=9", url(&target));
    for args in [
        &["id-ns", &missing][..],
        &["id-ns", &missing, "--raw-binary"],
    ] {
        assert_eq!(
            failure(4, args),
            "the controller has no namespace 9; it has 1, 2"
        );
    }
    let capitals = url(&target).replace("nvme+tcp", "NVME+TCP");
    assert_eq!(output(&["id-ns", &capitals, "-n", "2"]), namespace);
}

#[test]
fn data_goes_there_and_comes_back() {
    let target = Target::start(&["--ram", "8M"]);
    let directory = tempfile::tempdir().unwrap();
    let (sent, got) = (
        directory.path().join("sent"),
        directory.path().join("received"),
    );
    for (round, digests) in [&[][..], &["--hdgst"], &["--ddgst"], &["--hdgst", "--ddgst"]]
        .into_iter()
        .enumerate()
    {
        for len in [
            BLOCK,
            4096,
            8192,
            16_384,
            65_536,
            131_072 + BLOCK,
            1 << 20,
            5 << 20,
        ] {
            let data = noise((round * 100 + len) as u64, len);
            fs::write(&sent, &data).unwrap();
            let run = |command: &[&str]| {
                let args = [command, &["--start-block", "3"], digests].concat();
                assert_eq!(output(&args), "");
            };
            let url = url(&target);
            run(&["write", &url, "--data", path(&sent)]);
            run(&["compare", &url, "--data", path(&sent)]);
            let size = len.to_string();
            run(&["read", &url, "--data", path(&got), "--data-size", &size]);
            assert!(fs::read(&got).unwrap() == data, "{len} bytes {digests:?}");
        }
    }
    fs::write(&sent, noise(7, 4096)).unwrap();
    let error = failure(5, &["compare", &url(&target), "--data", path(&sent)]);
    assert!(error.contains("Compare failed: Compare Failure"), "{error}");
}

#[test]
fn pipes_will_do() {
    let target = Target::start(&["--ram", "1M"]);
    let data = noise(1, 1 << 20);
    let mut write = Command::new(env!("CARGO_BIN_EXE_nvmf"))
        .args(["write", &url(&target)])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    write.stdin.take().unwrap().write_all(&data).unwrap();
    assert!(write.wait().unwrap().success());
    let read = nvmf(&["read", &url(&target)]);
    assert_eq!(read.status.code(), Some(0), "{}", text(&read.stderr));
    assert!(read.stdout == data);
}

#[test]
fn data_that_do_not_fit_change_nothing() {
    let target = Target::start(&["--ram", "64K"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data");
    for (len, explanation) in [
        (65_536 + BLOCK, "there is room for 65536 bytes"),
        (1000, "not a whole number of blocks of 512 bytes"),
    ] {
        fs::write(&file, vec![0xFF; len]).unwrap();
        let error = failure(1, &["write", &url(&target), "--data", path(&file)]);
        assert!(error.contains(explanation), "{error}");
    }
    let read = nvmf(&["read", &url(&target)]);
    assert!(read.stdout == [0; 65_536]);
    let error = failure(1, &["read", &url(&target), "--data-size", "128K"]);
    assert!(error.contains("beyond the end"), "{error}");
    let error = failure(1, &["read", &url(&target), "--data", "/dev/full"]);
    assert!(error.contains("No space left on device"), "{error}");
}

#[test]
fn what_is_refused_is_explained() {
    let target = Target::start(&["--allow-host", "nqn.2014-08.org.example:friend"]);
    let error = failure(
        4,
        &[
            "id-ctrl",
            &url(&target),
            "--hostnqn",
            "nqn.2014-08.org.example:me",
        ],
    );
    assert!(
        error.contains("Connect Invalid Host (1/84h)")
            && error.contains("whose name is nqn.2014-08.org.example:me"),
        "{error}"
    );
    output(&[
        "id-ctrl",
        &url(&target),
        "--hostnqn",
        "nqn.2014-08.org.example:friend",
    ]);

    let target = Target::start(&[]);
    let other = format!("nvme+tcp://{}/nqn.2014-08.org.example:other", target.addr);
    let error = failure(4, &["id-ctrl", &other]);
    assert!(
        error.contains("Connect Invalid Parameters (1/82h)")
            && error.contains(&format!("The target offers: {}", target.nqn)),
        "{error}"
    );
    let error = failure(4, &["read", &format!("{}?nsid=9", url(&target))]);
    assert!(error.contains("no namespace 9; it has 1"), "{error}");
    let error = failure(2, &["read", &format!("nvme+tcp://{}", target.addr)]);
    assert!(error.contains("names no subsystem"), "{error}");
}

#[test]
fn nobody_there() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    assert_eq!(
        failure(3, &["discover", &format!("nvme+tcp://{address}")]),
        format!("nothing listens on {address}: is the target running, and the port right?")
    );
    let error = failure(3, &["discover", "nvme+tcp://no-such-host.invalid"]);
    assert!(
        error.starts_with("cannot find the address of `no-such-host.invalid`"),
        "{error}"
    );
}

#[test]
fn there_is_no_connecting_from_nowhere() {
    for option in [["--host-iface", "nothing0"], ["--host-traddr", "192.0.2.1"]] {
        let [name, value] = option;
        let error = failure(3, &["discover", "nvme+tcp://127.0.0.1:1", name, value]);
        let said = "cannot connect from the address or interface that was asked for";
        assert!(error.starts_with(said), "{error}");
    }
}

#[test]
fn options_of_the_other_transport_are_refused() {
    let (tcp, rdma) = ("nvme+tcp://127.0.0.1/nqn.a", "nvme+rdma://127.0.0.1/nqn.a");
    for (url, options, said) in [
        (rdma, &["--hdgst"][..], "--hdgst is of TCP"),
        (rdma, &["--ddgst"], "--ddgst is of TCP"),
        (rdma, &["--tos", "8"], "--tos is of TCP"),
        (rdma, &["--so-priority", "1"], "--so-priority is of TCP"),
        (
            "nvme+rdma://127.0.0.1/nqn.a?hdr-digest=1",
            &[],
            "--hdgst is of TCP",
        ),
        (tcp, &["--rdma-key", "window"], "--rdma-key is of RDMA"),
    ] {
        let error = failure(2, &[&["id-ctrl", url], options].concat());
        assert!(error.starts_with(said), "{error}");
    }
}

#[test]
fn rdma_without_its_libraries_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    // In the way of those that this system may have.
    fs::write(folder.path().join("libibverbs.so.1"), "").unwrap();
    let url = "nvme+rdma://127.0.0.1/nqn.a?nsid=1";
    let connect = &["connect", url, "--ctrl-loss-tmo", "-1"][..];
    for args in [
        &["discover", "nvme+rdma://127.0.0.1"][..],
        &["read", url],
        connect,
    ] {
        let failed = Command::new(env!("CARGO_BIN_EXE_nvmf"))
            .args(args)
            .env("LD_LIBRARY_PATH", folder.path())
            .output()
            .unwrap();
        let error = text(&failed.stderr);
        assert_eq!(failed.status.code(), Some(1), "{args:?}: {error}");
        let missing = "nvmf: RDMA needs libibverbs and librdmacm, which cannot be loaded";
        assert!(error.starts_with(missing), "{args:?}: {error}");
        let install = "install ibverbs-providers and librdmacm1";
        assert!(error.contains(install), "{args:?}: {error}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_explained() {
    for (args, explanation) in [
        (&["discover"][..], "<URL>"),
        (&["discover", "192.0.2.7"], "a URL begins with nvme+tcp://"),
        (&["read", "nvme+tcp://h/nqn.a?nsid=0"], "is no NSID"),
    ] {
        let output = nvmf(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(explanation), "{args:?}: {error}");
    }
}

#[test]
fn ping_counts() {
    let target = Target::start(&[]);
    let args = ["ping", &url(&target), "--count", "3", "--interval", "0.05"];
    let shown = output(&args);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 4, "{shown}");
    for (line, seq) in lines.iter().zip(1..=3) {
        let start = format!("512 bytes from {}: seq={seq} time=", target.addr);
        assert!(line.starts_with(&start), "{shown}");
    }
    assert!(
        lines[3].starts_with("3 reads, min/avg/max/mdev = "),
        "{shown}"
    );
}
