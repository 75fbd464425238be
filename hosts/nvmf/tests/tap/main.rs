//! smoltcp against the kernel's TCP, over a TAP device in a network of the test's own:
//! a board's target and the `nvmf` command, a boot loader's host and `nvmf target`.
//!
//! The test runs itself again by unshare(1), which gives it that network. Where there is
//! no such command, or TAP device, or right to them, it says so and does nothing; unless
//! `NVMF_TAP=1` says that there is.
mod board;
#[allow(dead_code, reason = "other tests need the rest")]
#[path = "../common/mod.rs"]
mod common;
mod loader;

use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::Target;
use common::data::noise;
use common::run::{failure, output};
use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::smoltcp::host::{Error, Failure};
use smoltcp::phy::{Medium, TunTapInterface};
use tempfile::tempdir;

use self::board::{BYTES, serve};
use self::loader::Loader;

/// The kernel's end of the cable, and smoltcp's.
const KERNEL: &str = "192.0.2.1";
const BOARD: &str = "192.0.2.2";

/// Set for the process in the network of its own.
const INSIDE: &str = "NVMF_TAP_INSIDE";

/// Whether the test is to run here, where there is a TAP device. If not, it ran elsewhere,
/// or cannot.
fn network(test: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        let address = format!("{KERNEL}/24");
        for command in [
            &["link", "set", "lo", "up"][..],
            &["tuntap", "add", "tap0", "mode", "tap"],
            &["address", "add", &address, "dev", "tap0"],
            &["link", "set", "tap0", "up"],
        ] {
            let status = Command::new("ip").args(command).status();
            assert!(status.is_ok_and(|it| it.success()), "ip {command:?}");
        }
        return true;
    }
    if let Some(why) = obstacle() {
        assert!(env::var_os("NVMF_TAP").is_none(), "no TAP device: {why}");
        eprintln!("{test} is skipped: {why}");
        return false;
    }
    let itself = env::current_exe().expect("the test's path");
    let status = Command::new("unshare")
        .args(["--map-root-user", "--net"])
        .arg(itself)
        .args(["--exact", "--nocapture", test])
        .env(INSIDE, "1")
        .status()
        .expect("unshare was there");
    assert!(status.success(), "{test} failed in a network of its own");
    false
}

/// smoltcp's end of the cable.
fn tap() -> TunTapInterface {
    TunTapInterface::new("tap0", Medium::Ethernet).expect("a TAP device")
}

/// Stops the board, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Why there can be no network of the test's own.
fn obstacle() -> Option<String> {
    let attempt = Command::new("unshare")
        .args([
            "--map-root-user",
            "--net",
            "ip",
            "tuntap",
            "add",
            "tap0",
            "mode",
            "tap",
        ])
        .output();
    match attempt {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

#[test]
fn a_board_serves_hosts_on_linux() {
    if !network("a_board_serves_hosts_on_linux") {
        return;
    }
    let directory = tempdir().expect("a directory");
    let file = |name| directory.path().join(name).display().to_string();
    let (sent, got) = (file("sent"), file("got"));
    let size = BYTES.to_string();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let board = scope.spawn(|| serve(tap(), &stop));
        let running = Stop(&stop);
        let url = format!("nvme+tcp://{BOARD}:4420/{}", board::NQN);
        let discovery = format!("nvme+tcp://{BOARD}:4420");
        assert!(output(&["discover", &discovery]).contains(board::NQN));
        for (round, digests) in [&[][..], &["--hdgst", "--ddgst"]].iter().enumerate() {
            let run = |args: &[&str]| output(&[args, digests].concat());
            let data = noise(round as u64, BYTES);
            std::fs::write(&sent, &data).expect("a file");
            run(&["write", &url, "--data", &sent]);
            run(&["compare", &url, "--data", &sent]);
            run(&["read", &url, "--data", &got, "--data-size", &size]);
            assert!(std::fs::read(&got).expect("a file") == data);
            let shown = run(&[
                "bench",
                &url,
                "--rw",
                "randrw",
                "--bs",
                "4k",
                "--iodepth",
                "8",
                "--runtime",
                "0.5",
                "--verify",
            ]);
            assert!(shown.contains("IOPS"), "{shown}");
        }
        let wrong = format!("nvme+tcp://{BOARD}:4420/nqn.2014-08.org.example:nobody");
        failure(4, &["id-ctrl", &wrong]);
        drop(running);
        let operations = board.join().expect("the board's thread");
        assert!(operations > 100, "{operations}");
        eprintln!("the board did {operations} operations");
    });
}

#[test]
fn a_boot_loader_reads_and_writes_a_target_on_linux() {
    const NAME: &str = "a_boot_loader_reads_and_writes_a_target_on_linux";
    if !network(NAME) {
        return;
    }
    let address = format!("{KERNEL}:0").parse().expect("an address");
    let target = Target::start_at(address, &["--ram", "4M"]);
    let loader = &mut Loader::new(tap());
    for digests in [false, true] {
        loader
            .connect(target.addr.port(), &target.nqn, None, digests)
            .expect("a controller");
        let namespace = *loader.namespace();
        assert_eq!(namespace.nsid, Nsid(1));
        let blocks = u32::try_from(namespace.blocks).expect("few blocks");
        let bytes = (blocks * namespace.block_size) as usize;
        assert_eq!(bytes, 4 << 20);
        let data = noise(digests.into(), bytes);
        loader.write_all(&data);
        assert!(loader.read_all(bytes) == data);
        loader.disconnect();
    }
    // What it wrote is there for others.
    let url = format!("nvme+tcp://{}/{}", target.addr, target.nqn);
    let directory = tempdir().expect("a directory");
    let file = directory.path().join("data").display().to_string();
    std::fs::write(&file, noise(1, 4 << 20)).expect("a file");
    output(&["compare", &url, "--data", &file]);
    // It idles, and its controller is there still; then the target is not any more.
    let port = target.addr.port();
    loader
        .connect(port, &target.nqn, Some(Nsid(1)), false)
        .expect("a controller");
    loader.idle(Duration::from_secs(3)).expect("kept alive");
    let missing = loader.connect_another(port, &target.nqn, Nsid(7));
    assert_eq!(missing, Err(Error::NoNamespace(Some(Nsid(7)))));
    target.signal(rustix::process::Signal::KILL);
    let error = loader.idle(Duration::from_secs(5)).expect_err("it is gone");
    assert!(matches!(error, Error::Closed | Error::Lost), "{error}");
    assert_eq!(loader.read_one(), Err(Failure::Lost));
    let refused = loader.connect(port, &target.nqn, None, false);
    assert_eq!(refused, Err(Error::NothingListens));
}
