//! Scenarios, over whatever transport, from one source. [`scenarios!`](macro@crate::scenarios)
//! makes tests of them.
use std::time::Duration;

use nvmf_core::host::command;
use nvmf_core::host::queue::Connect;
use nvmf_core::target::queue_pair::Close;
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cntlid, Nsid, Qid};
use nvmf_core::wire::property::Property;
use nvmf_core::wire::sqe::{IoOpcode, Sqe};
use zerocopy::IntoBytes;

use crate::association::{Association, Ended, config, identity};
use crate::bytes::{CC_ENABLE, SUBNQN};
use crate::ends::{Ends, Happened, Payload, Wanted, Way};

/// Tests of all scenarios, over ends that `$make` makes.
#[macro_export]
macro_rules! scenarios {
    ($name:ident, $make:expr) => {
        mod $name {
            #[test]
            fn cuts_anywhere() {
                $crate::scenarios::cuts_anywhere($make);
            }

            #[test]
            fn bring_up_whatever_the_latency() {
                $crate::scenarios::bring_up_whatever_the_latency($make);
            }

            #[test]
            fn keep_alive_keeps_it() {
                $crate::scenarios::keep_alive_keeps_it($make);
            }

            #[test]
            fn shut_down_in_order() {
                $crate::scenarios::shut_down_in_order($make);
            }
        }
    };
}

/// The admin queue's connection, and the I/O queue's, of a session without others before it.
pub const ADMIN: usize = 0;
/// See [`ADMIN`].
pub const IO: usize = 1;

/// Bytes written and read.
pub const LEN: usize = 1024;

/// What a session came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The write succeeded.
    pub written: bool,
    /// What the read brought, which succeeded.
    pub read: Option<Vec<u8>>,
    /// Statuses of commands that did not succeed.
    pub failed: Vec<String>,
    /// How connections ended.
    pub ended: Vec<(usize, Happened)>,
}

impl Outcome {
    /// It came to its end.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.written && self.read.is_some()
    }
}

/// What a session writes.
#[must_use]
pub fn data() -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 256) % 256).expect("is below 256");
    (0..LEN).map(|at| byte(at) | 1).collect()
}

/// A short session of a host: an admin queue, an I/O queue, a write that is fetched, and
/// a read. It goes as far as it can; what goes wrong was prepared in `ends`.
pub fn session(ends: &mut impl Ends) -> Outcome {
    let mut outcome = Outcome::default();
    ends.target().limits.inline_data = 0;
    run(ends, &mut outcome);
    // Whatever is late, comes.
    ends.run(Duration::from_secs(1));
    let rest = std::iter::from_fn(|| ends.poll_seen());
    let over = rest.filter(|seen| !matches!(seen.happened, Happened::Completed { .. }));
    outcome
        .ended
        .extend(over.map(|seen| (seen.link, seen.happened)));
    outcome
}

fn run(ends: &mut impl Ends, outcome: &mut Outcome) -> Option<()> {
    let (admin, cntlid) = connect(ends, Qid::ADMIN, Cntlid::DYNAMIC, outcome)?;
    let enable = command::property_set(Property::Cc, CC_ENABLE);
    call(ends, admin, &enable, Payload::Nothing, outcome)?;
    let (io, _) = connect(ends, Qid(1), cntlid, outcome)?;
    ends.configure(io, 7, 0);
    let blocks = |opcode| command::blocks(opcode, Nsid(1), 3, 2);
    let write = blocks(IoOpcode::Write);
    call(ends, io, &write, Payload::Write(data()), outcome)?;
    outcome.written = true;
    let read = blocks(IoOpcode::Read);
    let (_, data) = call(ends, io, &read, Payload::Read(1024), outcome)?;
    if data.len() < LEN {
        // The host sees how much came.
        outcome.failed.push("short".to_owned());
        return None;
    }
    outcome.read = Some(data);
    Some(())
}

/// A queue is connected: which connection, and of which controller.
fn connect(
    ends: &mut impl Ends,
    qid: Qid,
    cntlid: Cntlid,
    outcome: &mut Outcome,
) -> Option<(usize, Cntlid)> {
    let wanted = Wanted {
        qid,
        cntlid,
        entries: 8,
    };
    let link = ends.connect(&wanted, Duration::ZERO);
    let connect = Connect {
        qid,
        entries: 8,
        kato_ms: 0,
        sq_flow_control: true,
    };
    let subnqn = SUBNQN.parse().expect("is a name");
    let hello = Connect::data(&identity(), &subnqn, cntlid);
    let hello = Payload::Write(hello.as_bytes().to_vec());
    let (cqe, _) = call(ends, link, &connect.request().sqe, hello, outcome)?;
    Some((link, connect.completed(&cqe).ok()?.cntlid))
}

/// A command that succeeds, or nothing.
fn call(
    ends: &mut impl Ends,
    link: usize,
    sqe: &Sqe,
    payload: Payload,
    outcome: &mut Outcome,
) -> Option<(Cqe, Vec<u8>)> {
    if !ends.is_open(link) {
        return None;
    }
    assert!(ends.submit(link, sqe, payload, 0), "there is room");
    ends.flow();
    let mut answer = None;
    while let Some(seen) = ends.poll_seen() {
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
///
/// # Panics
/// When it is not.
#[track_caller]
pub fn is_true(ends: &mut impl Ends, outcome: &Outcome, what: &str) {
    let stored = &ends.target().memory(1)[3 * 512..][..LEN];
    let done = stored == data();
    assert!(done || stored == [0; LEN], "{what}: half of a write");
    assert!(!outcome.written || done, "{what}: {outcome:?}");
    if let Some(read) = &outcome.read {
        assert!(*read == data(), "{what}: {read:02x?}");
    }
    for link in 0..ends.links() {
        ends.cut(link);
    }
    ends.flow();
    ends.assert_clean();
}

/// Cuts of one connection, one way, after each unit of a session: what the host was told
/// is true, and both ends are clean. Returns how many left a write done that the host was
/// not told of, and how many came between the write and the end of the read.
pub fn cuts<E: Ends>(make: impl Fn() -> E, link: usize, way: Way) -> (usize, usize) {
    let mut whole = make();
    let truth = session(&mut whole);
    assert!(truth.is_whole() && truth.ended.is_empty(), "{truth:?}");
    let length = whole.arrived(link, way);
    assert!(length > 1);
    let (mut unheard, mut between) = (0, 0);
    for at in 0..length {
        let mut ends = make();
        ends.cut_at(link, way, at);
        let outcome = session(&mut ends);
        let what = format!("{way:?} of {link}, unit {at}");
        assert!(!outcome.is_whole() || link == ADMIN, "{what}");
        assert!(!outcome.ended.is_empty(), "{what}: nobody knows");
        assert_eq!(outcome.failed, [""; 0], "{what}");
        let stored = ends.target().memory(1)[3 * 512] != 0;
        unheard += usize::from(stored && !outcome.written);
        between += usize::from(outcome.written && outcome.read.is_none());
        is_true(&mut ends, &outcome, &what);
    }
    (unheard, between)
}

/// See [`cuts`].
pub fn cuts_anywhere<E: Ends>(make: impl Fn() -> E) {
    let mut between = 0;
    for link in [ADMIN, IO] {
        for way in [Way::ToTarget, Way::ToHost] {
            between += cuts(&make, link, way).1;
        }
    }
    assert!(between > 0, "some come between the write and the read");
}

fn associate<E: Ends>(ends: &mut E, latency: Duration) -> Association {
    let wanted = Wanted {
        qid: Qid::ADMIN,
        cntlid: Cntlid::DYNAMIC,
        entries: 32,
    };
    let link = ends.connect(&wanted, latency);
    Association::on(ends, link, config())
}

/// A controller is brought up, and is the same whatever the latency.
pub fn bring_up_whatever_the_latency<E: Ends>(make: impl Fn() -> E) {
    let mut all = Vec::new();
    for milliseconds in [0, 1, 20] {
        let mut ends = make();
        let mut host = associate(&mut ends, Duration::from_millis(milliseconds));
        host.run(&mut ends, Duration::from_secs(2));
        let found = host.found.expect("gets ready");
        let limits = ends.target().limits;
        assert_eq!(found.transfer, limits.transfer);
        assert_eq!(found.inline_data, limits.inline_data);
        assert_eq!(found.io_queues, 2);
        assert_eq!(host.ended, None);
        all.push(found);
    }
    assert!(all.iter().all(|found| *found == all[0]), "{all:?}");
}

/// Keep Alive keeps a controller, until the host is gone and nobody says so.
pub fn keep_alive_keeps_it<E: Ends>(make: impl Fn() -> E) {
    let mut ends = make();
    let mut host = associate(&mut ends, Duration::from_millis(20));
    host.run(&mut ends, Duration::from_secs(600));
    assert_eq!(host.ended, None);
    assert_eq!(ends.closing(host.link), None);
    ends.make_room(host.link, Way::ToTarget, 0);
    ends.run(Duration::from_secs(30));
    let reason = ends.closing(host.link);
    assert_eq!(reason, Some(Close::KeepAliveExpired));
}

/// A controller is shut down in one round trip, and nothing is left of it.
pub fn shut_down_in_order<E: Ends>(make: impl Fn() -> E) {
    let mut ends = make();
    let mut host = associate(&mut ends, Duration::from_millis(1));
    host.run(&mut ends, Duration::from_secs(1));
    let began = ends.now();
    host.machine.shut_down(began);
    host.run(&mut ends, Duration::from_secs(1));
    let took = Duration::from_millis(2);
    assert_eq!(host.ended, Some((began.after(took), Ended::ShutDown)));
    ends.close(host.link);
    ends.flow();
    ends.assert_clean();
}
