//! A short session of a host: an admin queue, an I/O queue, a write that R2T asks for,
//! and a read. It goes as far as it can.
use std::time::Duration;

use nvmf_core::host::command;
use nvmf_core::host::queue::Connect;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cntlid, Nsid, Qid};
use nvmf_core::wire::property::Property;
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use nvmf_testing::association::identity;
use nvmf_testing::bytes::{CC_ENABLE, SUBNQN};
use nvmf_testing::ends::{Happened, Payload};
use nvmf_testing::pair::{How, Pair};
use zerocopy::IntoBytes;

use crate::configs;

/// The admin queue's connection, and the I/O queue's.
pub(crate) const ADMIN: usize = 0;
pub(crate) const IO: usize = 1;

/// Bytes written and read.
pub(crate) const LEN: usize = 1024;

/// What a session came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The write succeeded.
    pub(crate) written: bool,
    /// What the read brought, which succeeded.
    pub(crate) read: Option<Vec<u8>>,
    /// Statuses of commands that did not succeed.
    pub(crate) failed: Vec<String>,
    /// How connections ended.
    pub(crate) ended: Vec<(usize, Happened)>,
}

impl Outcome {
    pub(crate) fn is_whole(&self) -> bool {
        self.written && self.read.is_some()
    }
}

pub(crate) fn data() -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + at / 256) as u8 | 1).collect()
}

/// Runs it; what goes wrong was prepared in `pair`.
pub(crate) fn session(pair: &mut Pair, digests: bool, how: How) -> Outcome {
    let mut outcome = Outcome::default();
    pair.rig.target.limits.inline_data = 0;
    run(pair, digests, how, &mut outcome);
    // Whatever is late, comes.
    pair.run(Duration::from_secs(1));
    let rest = std::iter::from_fn(|| pair.poll_seen());
    let ends = rest.filter(|seen| !matches!(seen.happened, Happened::Completed { .. }));
    outcome
        .ended
        .extend(ends.map(|seen| (seen.link, seen.happened)));
    outcome
}

fn run(pair: &mut Pair, digests: bool, how: How, outcome: &mut Outcome) -> Option<()> {
    let (host, mut target) = configs(digests);
    target.max_r2t = 600;
    target.max_c2hdata = 700;
    let connect = |qid| Connect {
        qid,
        entries: 8,
        kato_ms: 0,
        sq_flow_control: true,
    };
    let subnqn = SUBNQN.parse().expect("is a name");
    let admin = pair.connect(&host, &target, how);
    let hello = Connect::data(&identity(), &subnqn, Cntlid::DYNAMIC);
    let hello = Payload::Write(hello.as_bytes().to_vec());
    let (cqe, _) = call(
        pair,
        admin,
        &connect(Qid::ADMIN).request().sqe,
        hello,
        outcome,
    )?;
    let cntlid = connect(Qid::ADMIN).completed(&cqe).ok()?.cntlid;
    let enable = command::property_set(Property::Cc, CC_ENABLE);
    call(pair, admin, &enable, Payload::Nothing, outcome)?;
    let io = pair.connect(&host, &target, how);
    let hello = Connect::data(&identity(), &subnqn, cntlid);
    let hello = Payload::Write(hello.as_bytes().to_vec());
    call(pair, io, &connect(Qid(1)).request().sqe, hello, outcome)?;
    pair.configure(io, 7, 0);
    let blocks = |opcode| command::blocks(opcode, Nsid(1), 3, 2);
    let write = blocks(IoOpcode::Write);
    call(pair, io, &write, Payload::Write(data()), outcome)?;
    outcome.written = true;
    let read = blocks(IoOpcode::Read);
    let (_, data) = call(pair, io, &read, Payload::Read(LEN as u32), outcome)?;
    if data.len() < LEN {
        // The host sees how much came.
        outcome.failed.push("short".to_owned());
        return None;
    }
    outcome.read = Some(data);
    Some(())
}

/// A command that succeeds, or nothing.
fn call(
    pair: &mut Pair,
    link: usize,
    sqe: &Sqe,
    payload: Payload,
    outcome: &mut Outcome,
) -> Option<(Cqe, Vec<u8>)> {
    if !pair.is_open(link) {
        return None;
    }
    assert!(pair.submit(link, sqe, payload, 0), "there is room");
    pair.flow();
    let mut answer = None;
    while let Some(seen) = pair.poll_seen() {
        match seen.happened {
            Happened::Ready => {}
            Happened::Completed { cqe, data, .. } if cqe.status().is_success() => {
                let before = answer.replace((cqe, data));
                assert!(before.is_none(), "completes once");
            }
            Happened::Completed { cqe, .. } => outcome.failed.push(cqe.status().to_string()),
            why => outcome.ended.push((seen.link, why)),
        }
    }
    answer
}

/// What a host was told is true, whatever happened; and nothing is left.
#[track_caller]
pub(crate) fn is_true(pair: &mut Pair, outcome: &Outcome, what: &str) {
    let stored = &pair.rig.target.memory(1)[3 * 512..][..LEN];
    let done = stored == data();
    assert!(done || stored == [0; LEN], "{what}: half of a write");
    assert!(!outcome.written || done, "{what}: {outcome:?}");
    if let Some(read) = &outcome.read {
        assert!(*read == data(), "{what}: {read:02x?}");
    }
    for link in 0..pair.links() {
        pair.cut(link);
        assert!(pair.rig.is_drained(link), "{what}: {link} is not drained");
    }
    assert_eq!(
        pair.rig.target.buffers_taken(),
        0,
        "{what}: buffers are kept"
    );
    assert_eq!(
        pair.rig.target.controllers(),
        0,
        "{what}: a controller is kept"
    );
}
