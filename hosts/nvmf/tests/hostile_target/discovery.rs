//! Discovery logs.
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bytes::put;
use crate::fake::{Did, Fake, Setup};
use crate::run::{fails, nvmf, success};

/// A record of an NVM subsystem at 192.0.2.1:4420, its fields filled with `fill`.
fn record(traddr: &[u8], trsvcid: &[u8], subnqn: &[u8], fill: u8) -> Vec<u8> {
    let mut record = vec![0; 1024];
    (record[0], record[1], record[2]) = (3, 1, 2);
    put(&mut record, 6, 0xFFFFu16.to_le_bytes());
    put(&mut record, 8, 32u16.to_le_bytes());
    record[32..64].fill(fill);
    record[512..768].fill(fill);
    record[32..32 + trsvcid.len()].copy_from_slice(trsvcid);
    record[256..256 + subnqn.len()].copy_from_slice(subnqn);
    record[512..512 + traddr.len()].copy_from_slice(traddr);
    record
}

fn discover(records: Vec<Vec<u8>>) -> String {
    let fake = Fake::right(Setup {
        records,
        ..Setup::default()
    });
    let url = format!("nvme+tcp://{}", fake.addr);
    String::from_utf8(success(&["discover", &url])).expect("UTF-8")
}

const NQN: &[u8] = b"nqn.2014-08.org.example:disk";

#[test]
fn entries_93_and_100_fields_of_discovery_records() {
    // Padded with spaces or NULs: the same.
    for fill in [b' ', 0] {
        let shown = discover(vec![record(b"192.0.2.1", b"4420", NQN, fill)]);
        let expected = "nvme+tcp://192.0.2.1:4420/nqn.2014-08.org.example:disk";
        assert!(shown.starts_with(&format!("{expected} ")), "{shown}");
    }
    // All spaces; all full, without a NUL; control characters.
    for records in [
        vec![record(&[b' '; 256], &[b' '; 32], &[b' '; 256], 0)],
        vec![record(&[b'a'; 256], &[b'7'; 32], &[b'n'; 256], 0)],
        vec![record(
            b"\x1b[2J\n",
            b"\x07",
            b"nqn.2014-08.org.example:\r\nx",
            0,
        )],
        vec![record(&[0xFF; 256], &[0xFF; 32], &[0xFF; 256], 0xFF)],
        vec![vec![0; 1024], vec![0xFF; 1024]],
    ] {
        let count = records.len();
        let shown = discover(records);
        assert_eq!(shown.lines().count(), count, "{shown:?}");
        assert!(
            !shown.contains(|c: char| c.is_control() && c != '\n'),
            "{shown:?}"
        );
    }
}

#[test]
fn many_records_and_none() {
    assert_eq!(discover(Vec::new()), "");
    let records = (0..300).map(|n| {
        let nqn = format!("nqn.2014-08.org.example:disk{n}");
        record(b"192.0.2.1", b"4420", nqn.as_bytes(), b' ')
    });
    let shown = discover(records.collect());
    for (n, line) in shown.lines().enumerate() {
        assert!(line.contains(&format!(":disk{n} ")), "{n}: {line}");
    }
    assert_eq!(shown.lines().count(), 300);
}

#[test]
fn logs_that_change_or_lie() {
    // GENCTR is another one each time.
    let count = AtomicU64::new(0);
    let fake = Fake::start(Setup::default(), move |conn, command| {
        if command.opcode() != 0x02 {
            return Did::Nothing;
        }
        let mut log = vec![0; command.length() as usize];
        let genctr = count.fetch_add(1, Ordering::Relaxed);
        put(&mut log, 0, genctr.to_le_bytes());
        conn.give(command, &log);
        Did::Something
    });
    let url = format!("nvme+tcp://{}", fake.addr);
    fails(&["discover", &url], "changes all the time");
    // More records than there can be: the host ends, some way.
    let fake = Fake::start(Setup::default(), |conn, command| {
        if command.opcode() != 0x02 {
            return Did::Nothing;
        }
        let mut log = vec![0; command.length() as usize];
        put(&mut log, 8, u64::MAX.to_le_bytes());
        conn.give(command, &log);
        Did::Something
    });
    let url = format!("nvme+tcp://{}", fake.addr);
    let output = nvmf(&["discover", &url]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.lines().count() <= 1, "{error}");
    assert!(output.status.code().is_some());
}
