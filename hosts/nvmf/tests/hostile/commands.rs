//! Admin and I/O commands that are wrong, too many, or unusual.
use std::collections::HashSet;
use std::time::Duration;

use crate::bytes::{Random, pattern, put, u64_at};
use crate::common::Target;
use crate::conn::{Conn, End};
use crate::host::{Host, Options, host_with_queue, still_serves};
use crate::pdu::{
    C2H_DATA, C2H_TERM_REQ, CAPSULE_RESP, LAST_PDU, R2T, SUCCESS, Sqe,
    status::{
        ABORT_REQUESTED, AER_LIMIT_EXCEEDED, COMMAND_ID_CONFLICT, COMMAND_SEQUENCE_ERROR,
        DATA_SGL_LENGTH_INVALID, INVALID_FIELD, INVALID_NAMESPACE, INVALID_OPCODE,
        LBA_OUT_OF_RANGE,
    },
};

/// Blocks of namespace 1.
fn namespace_size(host: &mut Host) -> u64 {
    let identify = host.admin.run(Sqe::identify(0, 0, 1), &[]).ok().data;
    // The LBA format in use has the block size that these tests assume.
    let format = usize::from(identify[26] & 0x0F);
    assert_eq!(identify[128 + format * 4 + 2], 9, "LBADS");
    u64_at(&identify, 0)
}

/// CVE-2024-41079: results were whatever the memory held. `fails` checks that they are zero, here for
/// every opcode that does not exist, with data in the capsule, announced, and without.
#[test]
fn cve_2024_41079_unknown_opcodes_fail_with_a_zero_result() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    // Something that leaves results behind.
    host.cap();
    let admin = [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F];
    // Optional commands that a later target may know are left out, as are the ones it knows.
    let nvm = [
        0x00, 0x01, 0x02, 0x04, 0x05, 0x08, 0x09, 0x0C, 0x0D, 0x0E, 0x11, 0x15, 0x18, 0x19, 0x7F,
    ];
    for opcode in 0..=255_u8 {
        let queues: [(&mut Conn, &[u8]); 2] = [(&mut host.admin, &admin), (&mut io, &nvm)];
        for (conn, known) in queues {
            if known.contains(&opcode) {
                continue;
            }
            let sqe = Sqe::new(opcode, 0).nsid(1);
            conn.run(sqe.clone(), &[]).fails(&[INVALID_OPCODE]);
            conn.run(sqe.clone().transport(512), &[])
                .fails(&[INVALID_OPCODE]);
            conn.run(sqe.in_capsule(512), &[0xEE; 512])
                .fails(&[INVALID_OPCODE]);
        }
    }
    for fctype in [0x02, 0x03, 0x07, 0x09, 0x7F, 0x80, 0xFF] {
        for conn in [&mut host.admin, &mut io] {
            conn.run(Sqe::fabrics(fctype, 0), &[])
                .fails(&[INVALID_OPCODE, INVALID_FIELD]);
        }
    }
    still_serves(&target);
}

/// Every other way in which commands of an enabled controller fail has a zero result as well.
#[test]
fn cve_2024_41079_refused_admin_commands_have_a_zero_result() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    for cns in [0x0B, 0x7F, 0xC0, 0xFF] {
        host.cap();
        host.admin
            .run(Sqe::identify(0, cns, 1), &[])
            .fails(&[INVALID_FIELD]);
    }
    for nsid in [2, 77, 0xFFFF_FFFE] {
        host.admin
            .run(Sqe::identify(0, 3, nsid), &[])
            .fails(&[INVALID_NAMESPACE, INVALID_FIELD]);
    }
    for fid in [0x00, 0x7F, 0xC0, 0xFF] {
        host.cap();
        host.admin
            .run(Sqe::new(0x0A, 0).dword(10, fid), &[])
            .fails(&[INVALID_FIELD]);
        host.admin
            .run(Sqe::new(0x09, 0).dword(10, fid).dword(11, 1), &[])
            .fails(&[INVALID_FIELD]);
    }
    // 65536 queues are one too many to ask for.
    for queues in [0xFFFF_FFFF, 0x0000_FFFF, 0xFFFF_0000] {
        host.admin
            .run(Sqe::new(0x09, 0).dword(10, 7).dword(11, queues), &[])
            .fails(&[INVALID_FIELD]);
    }
    still_serves(&target);
}

/// Data structures of 4096 bytes asked for with an SGL of another length: refused, or no more than asked for.
#[test]
fn identify_never_exceeds_its_sgl() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    for len in [0, 1, 4, 2048, 4092, 4100, 8192, 0x7FFF_FFFF, 0xFFFF_FFFF] {
        for cns in [0, 1, 2, 3] {
            let nsid = u32::from(cns != 1);
            let reply = host
                .admin
                .run(Sqe::identify(0, cns, nsid).transport(len), &[]);
            if reply.cqe.code() == (0, 0) {
                assert!(reply.data.len() <= len as usize, "more than was asked for");
            } else {
                reply.fails(&[DATA_SGL_LENGTH_INVALID, INVALID_FIELD]);
            }
        }
    }
    host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
    still_serves(&target);
}

/// blktests nvme/018: blocks that are not there, also by wrapping 64 bits; nothing is fetched for them.
#[test]
fn lbas_beyond_the_namespace_are_out_of_range() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    let size = namespace_size(&mut host);
    let refusal = [LBA_OUT_OF_RANGE];
    for (slba, blocks) in [
        (size, 1),
        (size - 1, 2),
        (size - 7, 8),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 6, 8),
        (1 << 63, 8),
        (1 << 55, 1),
        ((1 << 55) - 1, 8),
    ] {
        for opcode in [0x01, 0x02, 0x05] {
            io.run(Sqe::io(opcode, 0, slba, blocks), &[])
                .fails(&refusal);
        }
        for opcode in [0x08, 0x0C] {
            let sqe = Sqe::io(opcode, 0, slba, blocks).sgl(0, 0, 0);
            io.run(sqe, &[]).fails(&refusal);
        }
        let len = u32::from(blocks) * 512;
        let sqe = Sqe::write(0, slba, blocks).in_capsule(len);
        io.run(sqe, &vec![0xEE; len as usize]).fails(&refusal);
        let mut range = vec![0; 16];
        put(&mut range, 4, u32::from(blocks).to_le_bytes());
        put(&mut range, 8, slba.to_le_bytes());
        let dsm = Sqe::new(0x09, 0).nsid(1).dword(11, 4).in_capsule(16);
        io.run(dsm, &range).fails(&refusal);
    }
    let last = pattern(18, 512);
    io.write(size - 1, &last);
    assert!(io.read(size - 1, 512) == last, "the last block");
    still_serves(&target);
}

#[test]
fn namespaces_that_do_not_exist_are_refused() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    for nsid in [0, 2, 0x7FFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFF] {
        let refusal = [INVALID_NAMESPACE, INVALID_FIELD];
        for opcode in [0x01, 0x02, 0x05] {
            io.run(Sqe::io(opcode, 0, 0, 8).nsid(nsid), &[])
                .fails(&refusal);
        }
        let sqe = Sqe::write(0, 0, 1).nsid(nsid).in_capsule(512);
        io.run(sqe, &[0xEE; 512]).fails(&refusal);
    }
    io.read(0, 512);
    still_serves(&target);
}

/// linux b716e6889c95: Linux's host sends 4096 bytes whatever the number of ranges.
#[test]
fn linux_b716e6889c95_dsm_looks_at_as_many_ranges_as_it_says() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    let keep = pattern(32, 4096);
    io.write(8, &keep);
    let mut ranges = vec![0xFF; 4096];
    ranges[..16].fill(0);
    put(&mut ranges, 4, 8_u32.to_le_bytes());
    let dsm = Sqe::new(0x09, 0).nsid(1).dword(10, 0).dword(11, 4);
    io.run(dsm.clone().in_capsule(4096), &ranges).ok();
    io.run(dsm.clone().transport(4096), &ranges).ok();
    io.run(dsm.clone().in_capsule(16), &ranges[..16]).ok();
    assert!(io.read(8, 4096) == keep, "a range that was not named");
    // All 256 ranges.
    let mut ranges = vec![0; 4096];
    for range in ranges.chunks_mut(16) {
        put(range, 4, 1_u32.to_le_bytes());
    }
    let all = dsm.dword(10, 255);
    io.run(all.clone().transport(4096), &ranges).ok();
    io.run(all.clone().in_capsule(4096), &ranges).ok();
    // Fewer bytes than ranges.
    for len in [16, 4080] {
        let sqe = all.clone().in_capsule(len);
        io.run(sqe, &ranges[..len as usize])
            .fails(&[DATA_SGL_LENGTH_INVALID, INVALID_FIELD]);
    }
    still_serves(&target);
}

/// linux-nvme 2020: Write Zeroes moves no data and must not be waited for.
#[test]
fn write_zeroes_moves_no_data() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    io.write(0, &pattern(47, 4096));
    for kind in [0x00, 0x01, 0x5A] {
        io.run(Sqe::io(0x08, 0, 0, 8).sgl(kind, 0, 0), &[]).ok();
    }
    assert_eq!(io.read(0, 4096), vec![0; 4096]);
    still_serves(&target);
}

/// spdk 30ee7c04c6, spdk c81c10c529 (spdk#2428): halves of fused commands out of order or mixed.
/// This target announces no fused operations, so every half is an invalid field.
#[test]
fn spdk_30ee7c04c6_fused_commands_are_refused() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    let identify = host.admin.run(Sqe::identify(0, 1, 0), &[]).ok().data;
    assert_eq!(&identify[522..524], &[0, 0], "FUSES");
    let data = pattern(83, 512);
    io.write(0, &data);
    for fuses in [&[1, 2][..], &[2, 1], &[1, 1], &[2], &[3], &[1, 0, 2]] {
        for fuse in fuses {
            for opcode in [0x05, 0x01, 0x02, 0x00] {
                let mut sqe = Sqe::io(opcode, 0, 0, 1);
                sqe.0[1] |= fuse;
                let reply = io.run(sqe, &data);
                if *fuse == 0 {
                    assert_ne!(reply.cqe.code(), INVALID_OPCODE);
                } else {
                    reply.fails(&[INVALID_FIELD]);
                }
            }
        }
    }
    let mut sqe = Sqe::identify(0, 1, 0);
    sqe.0[1] |= 1;
    host.admin.run(sqe, &[]).fails(&[INVALID_FIELD]);
    assert!(io.read(0, 512) == data, "a refused half wrote");
    still_serves(&target);
}

#[test]
fn one_asynchronous_event_request_too_many() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    let identify = host.admin.run(Sqe::identify(0, 1, 0), &[]).ok().data;
    let most = u16::from(identify[259]) + 1;
    assert!(most <= 16, "AERL {}", most - 1);
    for cid in 0..most {
        host.admin.start(&Sqe::new(0x0C, 0x4000 + cid), &[]);
    }
    host.admin.expect_silence(Duration::from_millis(100));
    for _ in 0..20 {
        host.admin
            .run(Sqe::new(0x0C, 0), &[])
            .fails(&[AER_LIMIT_EXCEEDED]);
    }
    // They do not stand in the way of anything.
    host.admin.run(Sqe::new(0x18, 0), &[]).ok();
    // A reset forgets them; it may complete them as aborted before.
    let reset = host.admin.cid();
    host.admin
        .start(&Sqe::property_set(reset, crate::host::CC, 0), &[]);
    let mut aborted = HashSet::new();
    loop {
        let cqe = host.admin.read_pdu().cqe();
        if cqe.cid == reset {
            cqe.succeeds();
            break;
        }
        assert!((0x4000..0x4000 + most).contains(&cqe.cid) && aborted.insert(cqe.cid));
        cqe.fails(&[ABORT_REQUESTED]);
    }
    host.enable();
    for cid in 0..most {
        host.admin.start(&Sqe::new(0x0C, 0x5000 + cid), &[]);
    }
    host.admin.expect_silence(Duration::from_millis(100));
    still_serves(&target);
}

/// Abort of what is not there succeeds and says that nothing was aborted. spdk#1507 hit the wrong queue.
#[test]
fn abort_of_nothing_aborts_nothing() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    let data = pattern(7, 4096);
    io.start(&Sqe::write(5, 0, 8), &[]);
    let r2t = io.read_pdu();
    assert_eq!(r2t.kind(), R2T);
    // Not there: wrong CIDs on both queues, a queue that does not exist.
    for (sqid, cid) in [
        (0_u32, 0x1234_u32),
        (1, 4),
        (1, 6),
        (1, 0xFFFF),
        (2, 5),
        (0xFFFF, 5),
    ] {
        let abort = Sqe::new(0x08, 0).dword(10, sqid | cid << 16);
        let reply = host.admin.run(abort, &[]);
        if reply.cqe.code() == (0, 0) {
            assert_eq!(reply.cqe.dw0 & 1, 1, "aborted what is not there");
        } else {
            reply.fails(&[INVALID_FIELD]);
        }
    }
    // The bystander finishes.
    io.serve(&r2t, &data);
    io.finish(5, &[]).ok();
    assert!(io.read(0, 4096) == data);
    // An asynchronous event request may be aborted; whether or not, both get their answer once.
    host.admin.start(&Sqe::new(0x0C, 0x4001), &[]);
    host.admin
        .start(&Sqe::new(0x08, 0x4002).dword(10, 0x4001 << 16), &[]);
    let first = host.admin.read_pdu().cqe();
    if first.cid == 0x4002 {
        assert_eq!(first.code(), (0, 0));
        if first.dw0 & 1 == 0 {
            assert_eq!(host.admin.read_pdu().cqe().code(), ABORT_REQUESTED);
        }
    } else {
        assert_eq!((first.cid, first.code()), (0x4001, ABORT_REQUESTED));
        let abort = host.admin.read_pdu().cqe();
        assert_eq!((abort.cid, abort.dw0 & 1), (0x4002, 0));
    }
    host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
    still_serves(&target);
}

/// Commands beyond what the queue holds: each is executed once, or the connection is ended. Memory stays
/// where it was, and nobody else notices.
#[test]
fn more_commands_than_the_queue_holds() {
    let target = Target::start(&[]);
    let options = Options {
        sqsize: 3,
        ..Options::default()
    };
    let (host, mut bystander) = host_with_queue(&target, &Options::default());
    let data = pattern(1, 4096);
    bystander.write(0, &data);
    for (qid, opcode) in [(2, 0x02), (3, 0x01), (4, 0x00)] {
        let mut io = host.io(&target, qid, &options);
        let mut burst = Vec::new();
        for cid in 0..500_u16 {
            let sqe = match opcode {
                0 => Sqe::new(0, cid).nsid(1),
                _ => Sqe::io(opcode, cid, 64, 8),
            };
            burst.extend(io.framing.capsule(&sqe, &[]));
        }
        let _ = io.try_send(&burst);
        let mut answered = HashSet::new();
        let mut asked = HashSet::new();
        let ended = loop {
            match io.try_read_pdu() {
                Ok(pdu) => match pdu.kind() {
                    CAPSULE_RESP => {
                        pdu.cqe().succeeds();
                        assert!(answered.insert(pdu.cid()), "answered twice");
                    }
                    C2H_DATA if pdu.has(SUCCESS) => panic!("SUCCESS with flow control"),
                    C2H_DATA => assert!(pdu.has(LAST_PDU) || !pdu.data.is_empty()),
                    R2T => {
                        assert!(asked.insert(pdu.cid()), "asked twice");
                    }
                    C2H_TERM_REQ => break true,
                    _ => panic!("unexpected {pdu:02x?}"),
                },
                Err(End::Closed) => break true,
                Err(End::Silent) => break false,
            }
            if answered.len() == 500 || asked.len() == 500 {
                break true;
            }
            // Writes wait for data that does not come: no more than the queue holds.
            if opcode == 0x01 && asked.len() == 4 {
                break true;
            }
        };
        assert!(ended, "{} of 500 answered, then silence", answered.len());
        assert!(asked.len() <= 500);
        assert!(bystander.read(0, 4096) == data);
    }
    still_serves(&target);
}

/// The same CID twice: the second is a conflict, or both are served.
#[test]
fn a_cid_that_is_in_use() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    let data = pattern(3, 4096);
    io.start(&Sqe::write(5, 0, 8), &[]);
    io.start(&Sqe::write(5, 0, 8), &[]);
    let first = io.read_pdu();
    assert_eq!(first.kind(), R2T);
    let second = io.read_pdu();
    if second.kind() == R2T {
        assert_ne!(first.ttag(), second.ttag(), "two transfers, one tag");
        io.serve(&first, &data);
        io.serve(&second, &data);
        io.read_pdu().cqe().succeeds();
        io.read_pdu().cqe().succeeds();
    } else {
        assert_eq!(second.cid(), 5);
        second.cqe().fails(&[COMMAND_ID_CONFLICT]);
        io.serve(&first, &data);
        io.read_pdu().cqe().succeeds();
    }
    assert!(io.read(0, 4096) == data);
    still_serves(&target);
}

/// spdk 9b7f593329, spdk 886fdf7fbf: a request object kept flags of the command before. With two slots,
/// 300 commands of every kind and fate follow each other.
#[test]
fn spdk_9b7f593329_slots_forget_the_command_before() {
    let target = Target::start(&[]);
    let options = Options {
        sqsize: 1,
        ..Options::digests(true, true)
    };
    let host = Host::new(&target);
    let mut io = host.io(&target, 1, &options);
    let mut random = Random::new(82);
    let mut written = pattern(82, 4096);
    io.write(0, &written);
    for round in 0..300_u64 {
        match random.below(10) {
            0 => {
                io.run(Sqe::new(0xFE, 0).nsid(1).in_capsule(512), &[0xEE; 512])
                    .fails(&[INVALID_OPCODE]);
            }
            1 => {
                io.run(Sqe::read(0, u64::MAX, 8), &[])
                    .fails(&[LBA_OUT_OF_RANGE]);
            }
            2 => {
                io.run(Sqe::write(0, 0, 8).transport(512), &[])
                    .fails(&[DATA_SGL_LENGTH_INVALID]);
            }
            3 => {
                let mut spoiled = Sqe::write(0, 0, 8).in_capsule(4096);
                spoiled.set_cid(io.cid());
                let mut capsule = io.framing.capsule(&spoiled, &[0xEE; 4096]);
                *capsule.last_mut().expect("bytes") ^= 1;
                io.send(&capsule);
                io.finish(spoiled.cid(), &[])
                    .fails(&[crate::pdu::status::TRANSIENT_TRANSPORT_ERROR]);
                io.write(0, &written);
            }
            4 => {
                io.run(Sqe::new(0x00, 0).nsid(1), &[]).ok();
            }
            5 => {
                io.run(Sqe::connect(0, 1, 31, 0, 0), &host.io_data())
                    .fails(&[COMMAND_SEQUENCE_ERROR]);
            }
            6 => {
                written = pattern(round, 4096);
                io.write(0, &written);
            }
            7 => {
                written = pattern(round, 4096);
                io.write_in_capsule(0, &written);
            }
            _ => assert!(io.read(0, 4096) == written, "round {round}"),
        }
    }
    assert!(io.read(0, 4096) == written);
    still_serves(&target);
}
