//! Discovery logs.
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nvmf_core::host::discovery::Why;
use nvmf_tcp::std::host::{Discovery, Options, Problem};

use crate::bytes::{put, u64_at};
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

/// A discovery controller whose log is made later, when it is known where the others are.
/// Counts those that connect.
struct Referrer {
    fake: Fake,
    records: Arc<OnceLock<Vec<Vec<u8>>>>,
    connects: Arc<AtomicU64>,
}

impl Referrer {
    fn new() -> Self {
        let records = Arc::new(OnceLock::<Vec<Vec<u8>>>::new());
        let connects = Arc::new(AtomicU64::new(0));
        let (log, count) = (Arc::clone(&records), Arc::clone(&connects));
        let fake = Fake::start(Setup::default(), move |conn, command| {
            if command.is_fabrics(1) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            if command.opcode() != 0x02 {
                return Did::Nothing;
            }
            let records = log.get().expect("a log");
            let mut bytes = vec![0; 1024];
            put(&mut bytes, 8, (records.len() as u64).to_le_bytes());
            bytes.extend(records.iter().flatten());
            let from = u64_at(&command.sqe, 48) as usize;
            conn.give(command, &bytes[from..]);
            Did::Something
        });
        Self {
            fake,
            records,
            connects,
        }
    }

    fn says(&self, records: impl IntoIterator<Item = Vec<u8>>) {
        let records = records.into_iter().collect();
        self.records.set(records).expect("said once");
    }

    /// A record that leads to it, with this SUBTYPE.
    fn record(&self, subtype: u8) -> Vec<u8> {
        referral(self.fake.addr.port(), subtype)
    }

    fn discover(&self) -> Discovery {
        let url = format!("nvme+tcp://{}", self.fake.addr);
        let url = url.parse().expect("a URL");
        nvmf_tcp::std::host::discover(&url, &Options::default()).expect("the first answers")
    }

    fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }
}

fn referral(port: u16, subtype: u8) -> Vec<u8> {
    let name = b"nqn.2014-08.org.nvmexpress.discovery";
    let mut record = record(b"127.0.0.1", port.to_string().as_bytes(), name, b' ');
    record[2] = subtype;
    record
}

#[test]
fn referrals_in_circles_are_followed_once() {
    let [first, second, third] = [(); 3].map(|()| Referrer::new());
    let disk = || record(b"192.0.2.1", b"4420", NQN, 0);
    // Subtype 3 is the one that is asked: nothing to follow.
    first.says([first.record(3), second.record(1), third.record(1), disk()]);
    second.says([first.record(1), second.record(1), third.record(1), disk()]);
    third.says([second.record(1), first.record(1)]);
    let found = first.discover();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    for (referrer, entries) in [(&first, 4), (&second, 4), (&third, 2)] {
        assert_eq!(referrer.connects(), 1);
        let from = |address| address == referrer.fake.addr;
        let count = found.entries.iter().filter(|one| from(one.from.address));
        assert_eq!(count.count(), entries);
    }
    let depths: Vec<u8> = found.entries.iter().map(|one| one.from.depth).collect();
    assert_eq!(depths, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn referrals_that_lead_nowhere_spoil_nothing() {
    let [first, second] = [(); 2].map(|()| Referrer::new());
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let closed = nobody.local_addr().expect("is bound").port();
    drop(nobody);
    // One that cannot be reached, one that is no discovery controller, one without a port
    // that makes sense, and one that is right.
    let wrong = Fake::start(Setup::default(), |conn, command| {
        if command.opcode() == 0x02 {
            conn.fail(command, 0x4109);
            return Did::Something;
        }
        Did::Nothing
    });
    let mut garbage = referral(1, 1);
    garbage[32..64].fill(0xFF);
    let addresses = [closed, wrong.addr.port()].map(|port| referral(port, 1));
    first.says(addresses.into_iter().chain([garbage, second.record(1)]));
    second.says([record(b"192.0.2.1", b"4420", NQN, 0)]);
    let found = first.discover();
    assert_eq!(found.entries.len(), 5);
    assert_eq!(found.entries[4].from.address, second.fake.addr);
    let texts: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
    assert!(
        matches!(
            &found.problems[..],
            [
                Problem::NotFollowed {
                    why: Why::Address,
                    ..
                },
                Problem::Unreachable { .. },
                Problem::Unreachable { .. }
            ]
        ),
        "{texts:?}"
    );
    assert!(texts[1].contains(&closed.to_string()), "{texts:?}");
    assert!(texts[2].contains("Invalid Log Page"), "{texts:?}");
    // The command shows what there is, and fails as the last of them did.
    let output = nvmf(&["discover", &format!("nvme+tcp://{}", first.fake.addr)]);
    let shown = String::from_utf8_lossy(&output.stdout);
    let disk = "nvme+tcp://192.0.2.1:4420/nqn.2014-08.org.example:disk  nvme subsystem, says ";
    assert!(
        shown.contains(&format!("{disk}{}\n", second.fake.addr)),
        "{shown}"
    );
    assert_eq!(shown.lines().count(), 5, "{shown}");
    let told = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    let nowhere = format!("nvmf: the referral to 127.0.0.1:{closed} leads nowhere: ");
    assert!(lines[0].starts_with(&nowhere), "{told}");
    assert!(lines[1].contains("Invalid Log Page"), "{told}");
    assert_eq!(output.status.code(), Some(4));
}
