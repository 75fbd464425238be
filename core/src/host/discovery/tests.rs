//! Logs and referrals, made by hand.
#![allow(clippy::arithmetic_side_effects, reason = "numbers of the tests' own")]
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::wire::discovery::{Adrfam, Eflags};
use crate::wire::sqe::Sqe;

fn referral(traddr: &[u8], trsvcid: &[u8]) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::new_zeroed();
    (entry.trtype, entry.adrfam, entry.subtype) = (3, 1, 1);
    entry.traddr[..traddr.len()].copy_from_slice(traddr);
    entry.trsvcid[..trsvcid.len()].copy_from_slice(trsvcid);
    entry.subnqn = Nqn::discovery().to_field();
    entry
}

fn to(port: u16) -> DiscoveryEntry {
    referral(b"192.0.2.1", port.to_string().as_bytes())
}

fn at(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

/// Walks over controllers at ports of one address; `log` gives a port's entries. The ports
/// that were asked, and what was not followed.
fn walk<const N: usize>(
    first: u16,
    log: impl Fn(u16) -> Vec<DiscoveryEntry>,
) -> (Vec<u16>, Vec<Why>) {
    let mut walk = Walk::<N>::new(at(first), Nqn::discovery());
    let (mut asked, mut problems) = (Vec::new(), Vec::new());
    while let Some(controller) = walk.next_controller() {
        asked.push(controller.address.port());
        assert!(asked.len() <= N, "no end");
        for entry in log(controller.address.port()) {
            if let Found::NotFollowed(why) = walk.entry(&entry) {
                problems.push(why);
            }
        }
    }
    (asked, problems)
}

#[test]
fn each_controller_is_asked_once_however_they_refer() {
    // 1 to itself and to 2 and 3, these to each other, to 1 and to 4.
    let log = |port: u16| match port {
        1 => vec![to(1), to(2), to(3)],
        2 => vec![to(1), to(3), to(4)],
        _ => vec![to(2), to(1), to(4)],
    };
    assert_eq!(walk::<32>(1, log), (vec![1, 2, 3, 4], vec![]));
}

#[test]
fn a_chain_without_end_has_one() {
    let chain = |port: u16| vec![to(port + 1)];
    let (asked, problems) = walk::<32>(1, chain);
    assert_eq!(asked, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(problems, [Why::TooDeep]);
}

#[test]
fn no_more_are_asked_than_there_is_room_for() {
    let many = |_: u16| (1..100).map(to).collect();
    let (asked, problems) = walk::<4>(1, many);
    assert_eq!(asked, [1, 2, 3, 4]);
    assert_eq!(problems.len(), 4 * 95);
    assert!(problems.iter().all(|why| *why == Why::TooMany));
    assert_eq!(walk::<0>(1, many), (vec![], vec![]));
}

#[test]
fn entries_are_told_apart() {
    let mut walk = Walk::<4>::new(at(1), Nqn::discovery());
    walk.next_controller().unwrap();
    let other = |change: &dyn Fn(&mut DiscoveryEntry)| {
        let mut entry = to(2);
        change(&mut entry);
        entry
    };
    let duplicate = Eflags(0).with_dupretinfo(true).0;
    for (entry, found) in [
        (other(&|entry| entry.subtype = 2), Found::Subsystem),
        // Not followed: it would be this one again.
        (other(&|entry| entry.subtype = 3), Found::CurrentDiscovery),
        (
            other(&|entry| entry.subtype = 9),
            Found::NotFollowed(Why::Subtype),
        ),
        (
            other(&|entry| entry.trtype = 1),
            Found::NotFollowed(Why::Transport),
        ),
        (
            other(&|entry| entry.subnqn = [b' '; 256]),
            Found::NotFollowed(Why::Name),
        ),
        (
            other(&|entry| entry.eflags = duplicate.into()),
            Found::Known,
        ),
        (to(1), Found::Known),
        (to(2), Found::Followed),
        (to(2), Found::Known),
        // Another subsystem at the same place is another controller.
        (
            other(&|entry| entry.subnqn[..9].copy_from_slice(b"nqn.other")),
            Found::Followed,
        ),
    ] {
        assert_eq!(walk.entry(&entry), found, "{entry}");
    }
    let next = walk.next_controller().unwrap();
    assert_eq!((next.address, next.depth), (at(2), 1));
}

/// nvme-cli 91bea49ee, nvme-stas: what pads addresses, and what should not be there.
#[test]
fn addresses_are_what_is_left_without_padding() {
    let ok = |traddr: &[u8], trsvcid: &[u8]| {
        socket_address(&referral(traddr, trsvcid)).map(|address| address.to_string())
    };
    let some = |text: &str| Some(String::from(text));
    assert_eq!(ok(b"192.0.2.1", b"8009"), some("192.0.2.1:8009"));
    assert_eq!(ok(b"192.0.2.1   ", b"8009    "), some("192.0.2.1:8009"));
    assert_eq!(ok(b"192.0.2.1\0garbage", b"80\0 9"), some("192.0.2.1:80"));
    assert_eq!(ok(b" 2001:db8::1 ", b" 1 "), some("[2001:db8::1]:1"));
    // A port that is left out is the one of discovery.
    assert_eq!(ok(b"192.0.2.1", b""), some("192.0.2.1:8009"));
    assert_eq!(ok(b"192.0.2.1", &[b' '; 32]), some("192.0.2.1:8009"));
    for (traddr, trsvcid) in [
        (&b""[..], &b"8009"[..]),
        (&[b' '; 256], b"8009"),
        (&[b'1'; 256], b"8009"),
        (&[0xFF; 256], b"8009"),
        (b"192.0.2.1\x1b[m", b"8009"),
        (b"storage.example", b"8009"),
        (b"fe80::1%eth0", b"8009"),
        (b"192.0.2.1", b"0"),
        (b"192.0.2.1", b"65536"),
        (b"192.0.2.1", b"-1"),
        (b"192.0.2.1", b"none"),
        (b"192.0.2.1", &[b'8'; 32]),
        (b"192.0.2.1", &[0x80; 32]),
    ] {
        assert_eq!(ok(traddr, trsvcid), None, "{traddr:?} {trsvcid:?}");
    }
}

/// A log that changes at some of the reads.
struct Log {
    genctr: u64,
    entries: u64,
    /// Reads until the next change.
    changes_in: u32,
    sent: Vec<Sqe>,
}

impl Log {
    fn answer(&mut self, request: &Request) -> Vec<u8> {
        self.sent.push(request.sqe);
        if self.changes_in == 1 {
            self.genctr += 1;
            self.entries += 1;
        }
        self.changes_in = self.changes_in.saturating_sub(1);
        let Data::ToHost(len) = request.data else {
            panic!("{request:?}")
        };
        let (from, to) = (request.sqe.cdw12.get(), request.sqe.cdw12.get() + len);
        (from / 1024..to / 1024)
            .flat_map(|index| match index {
                0 => DiscoveryHeader::new(self.genctr, self.entries)
                    .as_bytes()
                    .to_vec(),
                index => self.entry(index - 1).as_bytes().to_vec(),
            })
            .collect()
    }

    fn entry(&self, index: u32) -> DiscoveryEntry {
        let nqn: Nqn = std::format!("nqn.{}.{index}", self.genctr).parse().unwrap();
        let tcp = (Trtype::Tcp, Adrfam::Ipv4);
        DiscoveryEntry::new(tcp, "192.0.2.1", "4420", Subtype::Nvm, &nqn).unwrap()
    }

    /// The names that a reader finds.
    fn read(&mut self, part: u32) -> Result<Vec<String>, LogError> {
        let mut reader = LogReader::new(part);
        let mut names = Vec::new();
        loop {
            let data = self.answer(&reader.request());
            match reader.completed(&data)? {
                Progress::More => {}
                Progress::Entries(entries) => names.extend(
                    entries
                        .iter()
                        .map(|entry| entry.subnqn().unwrap().to_string()),
                ),
                Progress::Restart => names.clear(),
                Progress::Done => return Ok(names),
            }
            assert!(self.sent.len() < 1000, "no end");
        }
    }
}

fn log(entries: u64, changes_in: u32) -> Log {
    Log {
        genctr: 7,
        entries,
        changes_in,
        sent: Vec::new(),
    }
}

#[test]
fn a_log_is_read_in_parts_between_two_looks_at_its_generation() {
    for (entries, part, reads) in [(0, 4, 2), (1, 4, 3), (4, 4, 3), (5, 4, 4), (3, 0, 5)] {
        let mut log = log(entries, 0);
        let names = log.read(part).unwrap();
        assert_eq!(names.len() as u64, entries);
        assert!(
            names
                .iter()
                .enumerate()
                .all(|(index, name)| { *name == std::format!("nqn.7.{index}") })
        );
        assert_eq!(log.sent.len(), reads, "{entries} in parts of {part}");
        // RAE in all but the last.
        let retains: Vec<bool> = log
            .sent
            .iter()
            .map(|sqe| sqe.cdw10.get() & 0x8000 != 0)
            .collect();
        assert!(!retains[reads - 1]);
        assert!(retains[..reads - 1].iter().all(|retains| *retains));
    }
}

/// blktests nvme/030.
#[test]
fn a_log_that_changes_is_read_again() {
    for changes_in in 2..=4 {
        let mut log = log(5, changes_in);
        let names = log.read(4).unwrap();
        assert_eq!(names.len(), 6, "changed at read {changes_in}");
        assert!(names.iter().all(|name| name.starts_with("nqn.8.")));
    }
}

#[test]
fn a_log_that_never_rests_is_given_up() {
    let mut reader = LogReader::new(4);
    for genctr in 0..100 {
        let header = DiscoveryHeader::new(genctr, 0);
        match reader.completed(header.as_bytes()) {
            Ok(progress) => assert_ne!(progress, Progress::Done),
            Err(error) => {
                assert_eq!((error, genctr), (LogError::Changes, 10));
                return;
            }
        }
    }
    panic!("not given up");
}

#[test]
fn numbers_that_make_no_sense_are_bounded() {
    let mut reader = LogReader::new(4);
    let header = DiscoveryHeader::new(1, u64::MAX);
    assert_eq!(reader.completed(header.as_bytes()), Ok(Progress::More));
    let entries = vec![0; 4096];
    let mut reads = 0;
    while reader.request().sqe.cdw12.get() != 0 {
        reader.completed(&entries).unwrap();
        reads += 1;
        assert!(reads <= 4096, "no end");
    }
    assert_eq!(reads, 4096);

    let mut reader = LogReader::new(4);
    let short = header.as_bytes().split_last().unwrap().1;
    assert_eq!(reader.completed(short), Err(LogError::Short));
    reader.completed(header.as_bytes()).unwrap();
    assert_eq!(reader.completed(&entries[..4095]), Err(LogError::Short));
}
