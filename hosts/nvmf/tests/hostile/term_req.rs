//! H2CTermReq: the host gives up, and whatever it says, the connection is closed at once.
use std::time::Duration;

use crate::bytes::put;
use crate::common::Target;
use crate::conn::Conn;
use crate::host::{Host, Options, host_with_queue, still_serves};
use crate::pdu::{HLEN, IcReq, PLEN, R2T, Sqe, term_req};

/// "At once" for a machine that is busy with other tests.
const AT_ONCE: Duration = Duration::from_secs(2);

/// spdk a1b2c9d635: FES was an index into a table of strings.
#[test]
fn spdk_a1b2c9d635_every_fes_closes() {
    let target = Target::start(&[]);
    for fes in [0, 1, 2, 3, 4, 5, 6, 7, 8, 255, 256, 0x7FFF, 0xFFFF] {
        let mut conn = Conn::open(target.addr, IcReq::default());
        conn.send(&term_req(fes, 0xFFFF_FFFF, &[0x04; 24]));
        conn.expect_closed(AT_ONCE);
    }
    still_serves(&target);
}

/// spdk b7e1f79ccc, spdk 536b231eea (spdk#3865): nobody closed after a TermReq.
#[test]
fn spdk_b7e1f79ccc_term_req_closes_at_once_in_every_state() {
    let target = Target::start(&[]);
    let options = Options::digests(true, true);
    for copy in [0, 1, 8, 24, 128] {
        let term = term_req(1, 2, &vec![0x06; copy]);

        let mut host = Host::connect(&target, &options);
        host.admin.send(&term);
        host.admin.expect_closed(AT_ONCE);

        // A write waits for its data, and a command is there in the same segment.
        let (_host, mut io) = host_with_queue(&target, &options);
        io.start(&Sqe::write(5, 0, 8), &[]);
        assert_eq!(io.read_pdu().kind(), R2T);
        let mut bytes = io.framing.capsule(&Sqe::read(6, 0, 8), &[]);
        bytes.extend_from_slice(&term);
        io.send(&bytes);
        io.expect_closed(AT_ONCE);
    }
    still_serves(&target);
}

#[test]
fn a_malformed_term_req_closes_as_well() {
    let target = Target::start(&[]);
    for plen in [0_u32, 8, 23, 153, 4096, 0xFFFF_FFFF] {
        let (_host, mut io) = host_with_queue(&target, &Options::default());
        let mut term = term_req(1, 0, &[0; 8]);
        put(&mut term, PLEN, plen.to_le_bytes());
        io.send(&term);
        io.expect_closed(AT_ONCE);
    }
    for hlen in [0, 23, 25, 255] {
        let (_host, mut io) = host_with_queue(&target, &Options::default());
        let mut term = term_req(1, 0, &[0; 128]);
        term[HLEN] = hlen;
        io.send(&term);
        io.expect_over(AT_ONCE);
    }
    still_serves(&target);
}
