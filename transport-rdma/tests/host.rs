//! What a host's queue makes of a device that fails.
use nvmf_core::host::command;
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::sqe::IoOpcode;
use nvmf_rdma::verbs::{Key, Outcome};
use nvmf_testing::ends::{Ends, Happened, Payload};
use nvmf_testing::over_rdma::{Choices, RdmaEnds};
use nvmf_testing::scenarios::{ADMIN, IO, session};

/// All that follows the bind is flushed, which by itself says nothing of why.
#[test]
fn a_window_that_cannot_be_bound_ends_its_queue_alone() {
    let mut ends = RdmaEnds::new(Choices {
        key: Key::Window,
        ..Choices::default()
    });
    assert!(session(&mut ends).is_whole());
    ends.configure(IO, 7, 0);
    let (at_host, _) = ends.queue_pairs(IO);
    ends.fabric.fail_bind(at_host);
    let write = command::blocks(IoOpcode::Write, Nsid(1), 0, 8);
    assert!(ends.submit(IO, &write, Payload::Write(vec![7; 4096]), 1));
    ends.flow();
    let why = Outcome::Bind.to_string();
    assert_eq!(ends.seen_of(IO), [Happened::Broken(why)]);
    assert!(!ends.is_open(IO) && ends.is_open(ADMIN));
    assert_eq!(ends.fabric.lent(), 0, "the command's buffer is back");
}
