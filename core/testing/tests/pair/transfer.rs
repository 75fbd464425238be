//! However bytes travel, the same comes of it: pieces, digests, alignments, and data in
//! as many PDUs as it takes.
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use nvmf_core::host::command;
use nvmf_core::host::controller::Capabilities;
use nvmf_core::host::queue::Connect;
use nvmf_core::tcp::{host, target};
use nvmf_core::wire::ids::{Nsid, Qid};
use nvmf_core::wire::sqe::IoOpcode;
use nvmf_testing::association::{Association, config, identity};
use nvmf_testing::bytes::SUBNQN;
use nvmf_testing::ends::{Happened, Payload, Way};
use nvmf_testing::pair::{How, Pair};
use nvmf_testing::rig::Delivery;
use nvmf_testing::scenarios::session;
use zerocopy::IntoBytes;

use crate::configs;
use crate::session::ends;

const DELIVERIES: [Delivery; 9] = [
    Delivery::Whole,
    Delivery::Pieces(1),
    Delivery::Pieces(7),
    Delivery::Pieces(23),
    Delivery::Pieces(100),
    Delivery::Pieces(4099),
    Delivery::InPlace(1),
    Delivery::InPlace(23),
    Delivery::InPlace(4099),
];

/// A host that is ready, with an I/O queue if it is to have one.
fn ready(
    pair: &mut Pair,
    host: &host::Config,
    target: &target::Config,
    how: How,
) -> (Association, Capabilities) {
    let link = pair.connect(host, target, how);
    let mut association = Association::on(pair, link, config());
    association.run(pair, Duration::from_secs(1));
    let found = association.found.expect("gets ready");
    (association, found)
}

fn io_queue(
    pair: &mut Pair,
    host: &host::Config,
    target: &target::Config,
    found: &Capabilities,
) -> usize {
    let link = pair.connect(host, target, How::PLAIN);
    let connect = Connect {
        qid: Qid(1),
        entries: 32,
        kato_ms: 0,
        sq_flow_control: false,
    };
    let subnqn = SUBNQN.parse().expect("is a name");
    let data = Connect::data(&identity(), &subnqn, found.cntlid);
    let data = Payload::Write(data.as_bytes().to_vec());
    assert!(pair.submit(link, &connect.request().sqe, data, 0));
    pair.flow();
    let seen = pair.seen_of(link);
    let [Happened::Ready, Happened::Completed { cqe, .. }] = &seen[..] else {
        panic!("{seen:?}");
    };
    connect.completed(cqe).expect("is let in");
    pair.configure(link, 31, found.inline_data);
    link
}

/// All that passes, by its way.
type Passed = Rc<RefCell<[Vec<u8>; 2]>>;

fn listen(pair: &mut Pair) -> Passed {
    let passed = Passed::default();
    let heard = Rc::clone(&passed);
    pair.tap = Some(Box::new(move |passing| {
        let way = usize::from(passing.way == Way::ToHost);
        heard.borrow_mut()[way].extend_from_slice(passing.bytes);
    }));
    passed
}

/// The same bytes go both ways, whatever the pieces are.
#[test]
fn pieces_change_nothing() {
    for digests in [false, true] {
        let run = |how| {
            let mut pair = ends(digests, how);
            let passed = listen(&mut pair);
            let outcome = session(&mut pair);
            assert!(
                outcome.is_whole() && outcome.ended.is_empty(),
                "{outcome:?}"
            );
            let passed = passed.borrow().clone();
            (outcome, passed)
        };
        let truth = run(How::PLAIN);
        for to_target in DELIVERIES {
            for to_host in DELIVERIES {
                let latency = Duration::from_micros(if to_target == to_host { 700 } else { 0 });
                let how = How {
                    to_target,
                    to_host,
                    latency,
                };
                assert!(run(how) == truth, "{how:?}");
            }
        }
    }
}

#[test]
fn bring_up_however_bytes_travel() {
    let mut all = Vec::new();
    for (at, to_host) in DELIVERIES.into_iter().enumerate() {
        let how = How {
            to_target: DELIVERIES[DELIVERIES.len() - 1 - at],
            to_host,
            latency: Duration::from_millis(at as u64),
        };
        let mut pair = Pair::new();
        let (host, target) = configs(at % 2 == 0);
        let (association, found) = ready(&mut pair, &host, &target, how);
        let digests = pair.host(association.link).digests();
        assert_eq!((digests.header, digests.data), (at % 2 == 0, at % 2 == 0));
        assert_eq!(found.transfer, pair.rig.target.limits.transfer);
        assert_eq!(found.inline_data, pair.rig.target.limits.inline_data);
        assert_eq!(found.io_queues, 2);
        assert_eq!(association.ended, None);
        all.push(found);
    }
    assert!(all.iter().all(|found| *found == all[0]), "{all:?}");
}

/// A write of these bytes, and their read; how many PDUs of each type passed.
fn there_and_back(
    host: &host::Config,
    target: &target::Config,
    len: u32,
    inline_data: u32,
) -> [usize; 16] {
    let mut pair = Pair::new();
    pair.rig.target.limits.inline_data = inline_data;
    let (_association, found) = ready(&mut pair, host, target, How::PLAIN);
    let link = io_queue(&mut pair, host, target, &found);
    let counts = Rc::new(RefCell::new([0; 16]));
    let counted = Rc::clone(&counts);
    let [hpda, cpda] = [host.hpda, target.cpda].map(|pda| (pda + 1) * 4);
    pair.tap = Some(Box::new(move |passing| {
        let [pdu_type, _, _, pdo, ..] = passing.bytes[..] else {
            panic!("no PDU")
        };
        counted.borrow_mut()[usize::from(pdu_type)] += 1;
        let alignment = if passing.way == Way::ToHost {
            hpda
        } else {
            cpda
        };
        assert!(pdo.is_multiple_of(alignment), "PDO {pdo}, {alignment}");
    }));
    let data: Vec<u8> = (0..len).map(|at| (at ^ at >> 8) as u8).collect();
    let blocks = |opcode| command::blocks(opcode, Nsid(1), 0, len / 512);
    let write = (blocks(IoOpcode::Write), Payload::Write(data.clone()));
    let read = (blocks(IoOpcode::Read), Payload::Read(len));
    for (sqe, payload) in [write, read] {
        assert!(pair.submit(link, &sqe, payload, 0));
        pair.flow();
        let seen = pair.seen_of(link);
        let [
            Happened::Completed {
                cqe, data: came, ..
            },
        ] = &seen[..]
        else {
            panic!("{seen:?}");
        };
        assert!(cqe.status().is_success(), "{}", cqe.status());
        assert!(*came == data, "{host:?}, {target:?}, {len}");
    }
    counts.take()
}

#[test]
fn every_alignment_with_and_without_digests() {
    for pda in 0..=31 {
        for digests in 0..4 {
            for inline_data in [0, 8192] {
                let (mut host, mut target) = configs(false);
                (host.header_digest, host.data_digest) = (digests & 1 != 0, digests & 2 != 0);
                (host.hpda, target.cpda) = (pda, 31 - pda);
                there_and_back(&host, &target, 4096, inline_data);
            }
        }
    }
}

#[test]
fn data_in_as_many_pdus_as_it_takes() {
    const H2C_DATA: usize = 6;
    const C2H_DATA: usize = 7;
    const R2T: usize = 9;
    for len in [512, 4096, 12_288, 32_768] {
        for most in [512, 1000, 4096, 8196, u32::MAX] {
            for maxh2cdata in [4096, 8192, 1 << 20] {
                let (host, mut target) = configs(false);
                (target.max_r2t, target.max_c2hdata) = (most, most);
                target.maxh2cdata = maxh2cdata;
                let counts = there_and_back(&host, &target, len, 0);
                let what = format!("{len} bytes, {most}, MAXH2CDATA {maxh2cdata}");
                let parts = len.div_ceil(most);
                assert_eq!(counts[R2T], parts as usize, "{what}");
                assert_eq!(counts[C2H_DATA], parts as usize, "{what}");
                // One H2CData for an R2T, if it fits.
                let each = most.min(len).div_ceil(maxh2cdata);
                let last = (len - (parts - 1) * most.min(len)).div_ceil(maxh2cdata);
                let expected = (parts - 1) * each + last;
                assert_eq!(counts[H2C_DATA], expected as usize, "{what}");
            }
        }
    }
}
