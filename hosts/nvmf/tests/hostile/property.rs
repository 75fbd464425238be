//! Properties, enabling, reset and shutdown.
use tempfile::TempDir;

use crate::bytes::pattern;
use crate::common::Target;
use crate::conn::{Conn, End};
use crate::host::{CAP, CC, CC_ENABLE, CSTS, Host, Options, VS, host_with_queue, still_serves};
use crate::pdu::{
    CAPSULE_RESP, R2T, Sqe,
    status::{COMMAND_SEQUENCE_ERROR, CONNECT_INVALID_PARAMETERS, INVALID_FIELD, INVALID_OPCODE},
};

/// CSTS.SHST, and its value when shutdown is complete.
const SHST: u32 = 0x0C;
const SHST_COMPLETE: u32 = 0x08;

#[test]
fn property_sizes_and_offsets_must_match() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    for (offset, eight_bytes) in [
        (CAP, false),
        (VS, true),
        (CC, true),
        (CSTS, true),
        (0x04, false),
        (0x16, false),
        (0x0C, false),
        (0x1000, false),
        (0xFFFF_FFFC, false),
        (0xFFFF_FFFF, true),
    ] {
        host.admin
            .run(Sqe::property_get(0, offset, eight_bytes), &[])
            .fails(&[INVALID_FIELD]);
    }
    for size in 2..=7 {
        let sqe = Sqe::property_get(0, VS, false).dword(10, size);
        host.admin.run(sqe, &[]).fails(&[INVALID_FIELD]);
    }
    // Read-only, unknown, of another size.
    for offset in [CAP, VS, CSTS, 0x30, 0xFFFF_FFFC] {
        host.set(offset, CC_ENABLE).fails(&[INVALID_FIELD]);
    }
    let eight = Sqe::property_set(0, CC, CC_ENABLE).dword(10, 1);
    host.admin.run(eight, &[]).fails(&[INVALID_FIELD]);
    assert_eq!(host.get(CSTS) & 3, 1, "still ready");
    // A value of four bytes has four bytes.
    let reply = host.admin.run(Sqe::property_get(0, VS, false), &[]).ok();
    assert_eq!(reply.cqe.dw1, 0);
    still_serves(&target);
}

#[test]
fn properties_belong_to_the_admin_queue() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    io.run(Sqe::property_get(0, VS, false), &[])
        .fails(&[INVALID_OPCODE, INVALID_FIELD]);
    io.run(Sqe::property_set(0, CC, 0), &[])
        .fails(&[INVALID_OPCODE, INVALID_FIELD]);
    assert_eq!(host.get(CSTS) & 3, 1, "still ready");
    io.read(0, 512);
    still_serves(&target);
}

#[test]
fn admin_commands_wait_for_enable() {
    let target = Target::start(&[]);
    let mut host = Host::connect_disabled(&target, &target.nqn, &Options::default());
    for _ in 0..2 {
        for sqe in [
            Sqe::identify(0, 1, 0),
            Sqe::get_log(0, 2, 0, 512),
            Sqe::new(0x09, 0).dword(10, 7).dword(11, 0),
            Sqe::new(0x0A, 0).dword(10, 7),
            Sqe::new(0x0C, 0),
            Sqe::new(0x18, 0),
            Sqe::new(0x08, 0),
        ] {
            let reply = host.admin.run(sqe, &[]).fails(&[COMMAND_SEQUENCE_ERROR]);
            assert!(reply.cqe.dnr());
        }
        assert_eq!(host.get(CSTS) & 1, 0);
        host.enable();
        host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
        host.set(CC, 0).ok();
        assert_eq!(host.get(CSTS) & 1, 0, "EN 1 to 0 clears RDY");
    }
    still_serves(&target);
}

/// Entry sizes, page sizes, arbitration and command sets that are not supported: CSTS.CFS, or no RDY.
#[test]
fn enabling_with_unsupported_settings_fails_the_controller() {
    let target = Target::start(&[]);
    for cc in [
        0x0000_0001, // IOSQES 0, IOCQES 0
        0x0047_0001, // IOSQES 7
        0x0056_0001, // IOCQES 5
        0x0046_0081, // MPS 1
        0x0046_0781, // MPS 15
        0x0046_1001, // AMS 2
        0x0046_3801, // AMS vendor specific
        0x0046_0011, // CSS 1
        0x0046_0071, // CSS 7
    ] {
        let mut host = Host::connect_disabled(&target, &target.nqn, &Options::default());
        let reply = host.set(CC, cc);
        if reply.cqe.code() == (0, 0) {
            let csts = host.get(CSTS);
            assert_ne!(csts & 3, 1, "CC {cc:#x} made the controller ready");
            host.admin
                .run(Sqe::identify(0, 1, 0), &[])
                .fails(&[COMMAND_SEQUENCE_ERROR]);
        } else {
            reply.fails(&[INVALID_FIELD]);
        }
    }
    still_serves(&target);
}

/// spdk 4409007906: EN and SHN in one write.
#[test]
fn spdk_4409007906_enable_and_shutdown_in_one_write() {
    let target = Target::start(&[]);
    for shn in [1 << 14, 2 << 14] {
        let mut host = Host::connect_disabled(&target, &target.nqn, &Options::default());
        host.set(CC, CC_ENABLE | shn).ok();
        assert_eq!(host.get(CSTS) & SHST, SHST_COMPLETE, "shut down");
        // Enabled before, EN still set.
        let mut host = Host::new(&target);
        host.set(CC, CC_ENABLE | shn).ok();
        assert_eq!(host.get(CSTS) & SHST, SHST_COMPLETE, "shut down");
        // Reset and enabled again, it is as new.
        host.set(CC, 0).ok();
        assert_eq!(host.get(CSTS) & (SHST | 1), 0);
        host.enable();
        host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
    }
    still_serves(&target);
}

/// spdk 534e2e7c04 (spdk#2199): CSTS said done while I/O was in flight.
#[test]
fn spdk_534e2e7c04_reset_ends_io_queues_before_rdy_clears() {
    reset_ends_io_queues(&Target::start(&[]));
    let dir = TempDir::new().expect("a directory");
    reset_ends_io_queues(&Target::start_with_file(dir.path(), &[]));
}

fn reset_ends_io_queues(target: &Target) {
    for shutdown in [false, true] {
        let (mut host, mut io) = host_with_queue(target, &Options::default());
        let before = pattern(79, 4096);
        io.write(0, &before);
        // A write waits for its data when the controller is reset.
        io.start(&Sqe::write(5, 0, 8), &[]);
        let r2t = io.read_pdu();
        assert_eq!(r2t.kind(), R2T);
        let stale = io.h2c_data_for(&r2t, &[0xEE; 4096]).concat();
        host.set(CC, if shutdown { CC_ENABLE | 1 << 14 } else { 0 })
            .ok();
        if shutdown {
            host.wait_for(CSTS, SHST, SHST_COMPLETE);
        } else {
            host.wait_for(CSTS, 1, 0);
        }
        // From now on nothing of the old epoch is executed: the queue is closed, or refuses.
        let _ = io.try_send(&stale);
        let _ = io.try_send(&io.framing.capsule(&Sqe::read(6, 0, 1), &[]));
        loop {
            match io.try_read_pdu() {
                Ok(pdu) if pdu.kind() == CAPSULE_RESP => {
                    assert_ne!(pdu.cqe().code(), (0, 0), "an old queue still works");
                    if pdu.cid() == 6 {
                        break;
                    }
                }
                Ok(pdu) => assert!(pdu.data.is_empty(), "an old queue still reads"),
                Err(end) => {
                    assert_eq!(end, End::Closed, "neither closed nor answered");
                    break;
                }
            }
        }
        let (_second, mut check) = host_with_queue(target, &Options::default());
        assert!(check.read(0, 4096) == before, "written after the reset");
        if !shutdown {
            host.enable();
            let mut io = host.io(target, 1, &Options::default());
            assert!(io.read(0, 4096) == before);
        }
    }
    still_serves(target);
}

/// Reset and enable over and over with I/O under way. Scaled to 50 rounds.
#[test]
fn resets_amid_io() {
    resets(&Target::start(&[]));
    let dir = TempDir::new().expect("a directory");
    resets(&Target::start_with_file(dir.path(), &[]));
}

fn resets(target: &Target) {
    let mut host = Host::new(target);
    for _ in 0..50 {
        let mut io = host.io(target, 1, &Options::default());
        for cid in 0..16 {
            io.start(&Sqe::read(cid, 0, 64), &[]);
        }
        host.set(CC, 0).ok();
        host.wait_for(CSTS, 1, 0);
        drop(io);
        host.enable();
    }
    still_serves(target);
}

/// An I/O queue for a controller that is not enabled has nothing to serve.
#[test]
fn io_queues_before_enable_serve_nothing() {
    let target = Target::start(&[]);
    let mut host = Host::connect_disabled(&target, &target.nqn, &Options::default());
    let mut io = Conn::open(target.addr, Options::default().ic);
    let reply = host.join(&mut io, 1, &Options::default());
    if reply.cqe.code() == (0, 0) {
        io.run(Sqe::read(0, 0, 1), &[])
            .fails(&[COMMAND_SEQUENCE_ERROR]);
    } else {
        reply
            .cqe
            .fails(&[COMMAND_SEQUENCE_ERROR, CONNECT_INVALID_PARAMETERS]);
    }
    host.enable();
    host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
    still_serves(&target);
}
