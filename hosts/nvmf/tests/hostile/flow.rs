//! SQ flow control: SQHD, the SUCCESS flag, and who may leave out a completion.
use crate::bytes::pattern;
use crate::common::Target;
use crate::conn::Conn;
use crate::host::{HOSTNQN, Host, Options, SQ_FLOW_OFF, VS, host_with_queue, still_serves};
use crate::pdu::{C2H_DATA, IcReq, SUCCESS, Sqe, connect_data, status::LBA_OUT_OF_RANGE};

/// SQHD says which entry is free next: with commands one after the other it goes up by one and wraps
/// at the size of the queue (SQSIZE + 1).
#[test]
fn sqhd_moves_by_one_and_wraps() {
    let target = Target::start(&[]);
    for sqsize in [1, 2, 7, 31] {
        let options = Options {
            sqsize,
            ..Options::default()
        };
        let host = Host::new(&target);
        let mut io = Conn::open(target.addr, options.ic);
        let size = sqsize + 1;
        let connected = host.join(&mut io, 1, &options).ok();
        let mut expected = connected.cqe.sqhd;
        assert!(expected <= 1, "SQHD {expected} after Connect");
        for round in 0..80 {
            expected = (expected + 1) % size;
            // Reads, failures and commands without data count alike.
            let cqe = match round % 3 {
                0 => io.run(Sqe::read(0, 0, 1), &[]).ok().cqe,
                1 => {
                    io.run(Sqe::read(0, u64::MAX, 1), &[])
                        .fails(&[LBA_OUT_OF_RANGE])
                        .cqe
                }
                _ => io.run(Sqe::new(0x00, 0).nsid(1), &[]).ok().cqe,
            };
            assert_eq!(cqe.sqhd, expected, "SQSIZE {sqsize}, round {round}");
        }
    }
    still_serves(&target);
}

/// spdk 00c2f8cd49, spdk#3850: SUCCESS without SQHD lets the host's view of the queue go stale.
#[test]
fn spdk_00c2f8cd49_with_flow_control_every_command_has_a_completion() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    for _ in 0..70 {
        let reply = io.run(Sqe::read(0, 0, 8), &[]).ok();
        assert!(!reply.by_flag, "SUCCESS on a read");
        let reply = host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
        assert!(!reply.by_flag, "SUCCESS on Identify");
    }
    still_serves(&target);
}

/// CATTR bit 2 is answered by SQHD FFFFh in Connect. Then, and only then, may SUCCESS take the place
/// of a completion.
#[test]
fn without_flow_control_connect_says_so_and_reads_end_with_success() {
    let target = Target::start(&[]);
    let options = Options::flow_off();
    let mut admin = Conn::open(target.addr, options.ic);
    let connect = Sqe::connect(0, 0, 31, SQ_FLOW_OFF, 60_000);
    let data = connect_data(1, 0xFFFF, &target.nqn, HOSTNQN);
    let reply = admin.run(connect, &data).ok();
    assert_eq!(reply.cqe.sqhd, 0xFFFF);

    let host = Host::connect(&target, &options);
    let mut io = Conn::open(target.addr, options.ic);
    let joined = host.join(&mut io, 1, &options).ok();
    assert_eq!(joined.cqe.sqhd, 0xFFFF);
    let data = pattern(65, 64 * 1024);
    io.write(0, &data);
    for _ in 0..40 {
        let reply = io.run(Sqe::read(0, 0, 128), &[]).ok();
        assert!(reply.by_flag, "no SUCCESS");
        assert!(reply.data == data, "wrong data");
    }
    // What fails, and what reads nothing, has a completion.
    let reply = io.run(Sqe::read(0, u64::MAX, 1), &[]);
    assert!(!reply.fails(&[LBA_OUT_OF_RANGE]).by_flag);
    let reply = io.run(Sqe::new(0x00, 0).nsid(1), &[]).ok();
    assert!(!reply.by_flag);
    // One queue may have it off while another has it on.
    let mut other = host.io(&target, 2, &Options::default());
    assert!(!other.run(Sqe::read(0, 0, 8), &[]).ok().by_flag);
    still_serves(&target);
}

/// As many commands as the queue may have outstanding, all at once, many times over: with flow control
/// on and off, every read comes back complete, once.
#[test]
fn a_full_queue_over_and_over() {
    let target = Target::start(&[]);
    for cattr in [0, SQ_FLOW_OFF] {
        let options = Options {
            cattr,
            sqsize: 31,
            ic: IcReq::default(),
            ..Options::default()
        };
        let (mut host, mut io) = host_with_queue(&target, &options);
        let data = pattern(31, 31 * 512);
        io.write(0, &data);
        for _ in 0..20 {
            let mut burst = Vec::new();
            for cid in 0..31_u16 {
                burst.extend(io.framing.capsule(&Sqe::read(cid, u64::from(cid), 1), &[]));
            }
            io.send(&burst);
            let mut read = vec![Vec::new(); 31];
            let mut open = 31;
            while open > 0 {
                let pdu = io.read_pdu();
                let slot = usize::from(pdu.cid());
                if pdu.kind() == C2H_DATA {
                    read[slot].extend_from_slice(&pdu.data);
                    open -= usize::from(pdu.has(SUCCESS));
                } else {
                    pdu.cqe().succeeds();
                    open -= 1;
                }
            }
            assert!(read.concat() == data, "wrong data");
        }
        host.get(VS);
    }
    still_serves(&target);
}
