//! SGL descriptors that are wrong, and capsules that do not hold what the SGL says.
use crate::bytes::{pattern, put};
use crate::common::Target;
use crate::host::{Host, Options, host_with_queue, still_serves};
use crate::pdu::{
    PLEN, Sqe,
    status::{
        DATA_SGL_LENGTH_INVALID, INVALID_FIELD, SGL_OFFSET_INVALID, SGL_TYPE_INVALID, SUCCESSFUL,
    },
};

/// spdk 8d1c4f74d4, spdk 8ed53eee32 (junk was read, a request leaked); nvmet 6.18 believes the SGL and
/// loses its place in the stream.
#[test]
fn spdk_8d1c4f74d4_in_capsule_length_must_be_the_sgl_s() {
    let target = Target::start(&[]);
    for (in_capsule, sgl, blocks) in [
        (512, 4096, 8),
        (4096, 512, 1),
        (511, 512, 1),
        (513, 512, 1),
        (0, 512, 1),
        (8192, 4096, 8),
    ] {
        for hdgst in [false, true] {
            let (_host, mut io) = host_with_queue(&target, &Options::digests(hdgst, false));
            let sqe = Sqe::write(5, 0, blocks).in_capsule(sgl);
            let capsule = io.framing.capsule(&sqe, &vec![0xEE; in_capsule]);
            let _ = io.try_send(&capsule);
            io.expect_term(1, 4);
        }
    }
    // Data in the capsule that no descriptor names.
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    let capsule = io.framing.capsule(&Sqe::write(5, 0, 1), &[0xEE; 512]);
    let _ = io.try_send(&capsule);
    io.expect_term(1, 4);
    still_serves(&target);
}

/// A capsule may hold IOCCSZ * 16 bytes on an I/O queue, 8192 bytes of data on an admin queue.
#[test]
fn a_capsule_larger_than_ioccsz_is_refused() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    let identify = host.admin.run(Sqe::identify(0, 1, 0), &[]).ok().data;
    let ioccsz = crate::bytes::u32_at(&identify, 1792);
    let most = ioccsz * 16 - 64;
    assert_eq!(most % 512, 0, "IOCCSZ {ioccsz}");
    let mut io = host.io(&target, 1, &Options::default());
    let data = pattern(1, most as usize);
    io.write_in_capsule(0, &data);
    assert!(io.read(0, data.len()) == data, "the largest capsule");

    let more = most + 512;
    let blocks = u16::try_from(more / 512).expect("small");
    let sqe = Sqe::write(5, 0, blocks).in_capsule(more);
    let _ = io.try_send(&io.framing.capsule(&sqe, &vec![0; more as usize]));
    io.expect_term(1, 4);

    // A megabyte that is only announced.
    let mut io = host.io(&target, 2, &Options::default());
    let sqe = Sqe::write(5, 0, 2048).in_capsule(1 << 20);
    let mut capsule = io.framing.capsule(&sqe, &[0; 4]);
    put(&mut capsule, PLEN, (72_u32 + (1 << 20)).to_le_bytes());
    let _ = io.try_send(&capsule);
    io.expect_term(1, 4);

    // Admin: 8192 bytes go, 8196 do not. The command itself is nonsense and fails.
    let sqe = Sqe::new(0xC1, 77).in_capsule(8192);
    let capsule = host.admin.framing.capsule(&sqe, &[0; 8192]);
    host.admin.send(&capsule);
    host.admin
        .finish(77, &[])
        .fails(&[crate::pdu::status::INVALID_OPCODE]);
    let sqe = Sqe::new(0xC1, 78).in_capsule(8196);
    let capsule = host.admin.framing.capsule(&sqe, &[0; 8196]);
    let _ = host.admin.try_send(&capsule);
    host.admin.expect_term(1, 4);
    still_serves(&target);
}

/// A target that takes no data in the capsules of I/O queues says so, and means it.
#[test]
fn without_in_capsule_data_every_write_is_asked_for() {
    let target = Target::start(&["--inline-data", "0"]);
    let mut host = Host::new(&target);
    let identify = host.admin.run(Sqe::identify(0, 1, 0), &[]).ok().data;
    assert_eq!(crate::bytes::u32_at(&identify, 1792), 4, "IOCCSZ");
    let mut io = host.io(&target, 1, &Options::default());
    let data = pattern(5, 4096);
    io.write(0, &data);
    assert!(io.read(0, 4096) == data, "wrong data");
    let capsule = io
        .framing
        .capsule(&Sqe::write(9, 0, 1).in_capsule(512), &[0; 512]);
    let _ = io.try_send(&capsule);
    io.expect_term(1, 4);
    let mut io = host.io(&target, 2, &Options::default());
    assert!(io.read(0, 4096) == data, "refused data was written");
}

/// ICDOFF is 0 over TCP: data starts where in-capsule data starts. The data is skipped and the
/// connection goes on.
#[test]
fn an_offset_into_the_capsule_is_sgl_offset_invalid() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    let before = pattern(17, 512);
    io.write(0, &before);
    for offset in [1, 4, 512, 4096, 0xFFFF_FFFF, u64::MAX, u64::MAX - 511] {
        let sqe = Sqe::write(0, 0, 1).sgl(0x01, offset, 512);
        let cid = io.cid();
        let mut sqe = sqe;
        sqe.set_cid(cid);
        io.send(&io.framing.capsule(&sqe, &[0xEE; 512]));
        io.finish(cid, &[]).fails(&[SGL_OFFSET_INVALID]);
    }
    assert!(io.read(0, 512) == before, "a refused command wrote");
    still_serves(&target);
}

/// Descriptors that TCP has no use for: other types, other subtypes, segments. The specification
/// has a status of its own for them; Linux says Invalid Field.
#[test]
fn other_sgl_descriptors_are_refused() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    let refusal = [SGL_TYPE_INVALID, INVALID_FIELD];
    let accepted = [0x01, 0x5A];
    for kind in (0..=255_u8).filter(|kind| !accepted.contains(kind)) {
        for sqe in [Sqe::read(0, 0, 1), Sqe::write(0, 0, 1)] {
            io.run(sqe.sgl(kind, 0, 512), &[]).fails(&refusal);
        }
    }
    let data = pattern(2, 512);
    io.write(0, &data);
    assert!(io.read(0, 512) == data, "wrong data");
    still_serves(&target);
}

/// In-capsule descriptors are for data that goes to the controller.
#[test]
fn a_read_into_the_capsule_is_refused() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    let refusal = [INVALID_FIELD, SGL_TYPE_INVALID];
    for _ in 0..3 {
        let cid = io.cid();
        io.send(
            &io.framing
                .capsule(&Sqe::read(cid, 0, 1).in_capsule(512), &[0; 512]),
        );
        io.finish(cid, &[]).fails(&refusal);
        let cid = host.admin.cid();
        let identify = Sqe::identify(cid, 1, 0).in_capsule(4096);
        let capsule = host.admin.framing.capsule(&identify, &[0; 4096]);
        host.admin.send(&capsule);
        host.admin.finish(cid, &[]).fails(&refusal);
    }
    io.read(0, 512);
    still_serves(&target);
}

/// PSDT says that SGLs are used; fabrics knows nothing else.
#[test]
fn prps_are_refused() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    for psdt in [0x00, 0xC0] {
        for sqe in [
            Sqe::read(0, 0, 1),
            Sqe::write(0, 0, 1),
            Sqe::io(0x00, 0, 0, 1),
        ] {
            let mut sqe = sqe;
            sqe.0[1] = psdt;
            io.run(sqe, &[]).fails(&[INVALID_FIELD]);
        }
        let mut sqe = Sqe::identify(0, 1, 0);
        sqe.0[1] = psdt;
        host.admin.run(sqe, &[]).fails(&[INVALID_FIELD]);
    }
    io.read(0, 512);
    host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
    still_serves(&target);
}

/// The length of the SGL and what the command moves must be the same.
#[test]
fn an_sgl_of_another_length_than_the_blocks_is_refused() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    let refusal = [DATA_SGL_LENGTH_INVALID];
    for len in [0, 1, 511, 513, 1024, 4096] {
        io.run(Sqe::read(0, 0, 1).transport(len), &[])
            .fails(&refusal);
        io.run(Sqe::write(0, 0, 1).transport(len), &[])
            .fails(&refusal);
    }
    for (blocks, len) in [(8, 512), (16, 4096), (8, 8192)] {
        io.run(Sqe::read(0, 0, blocks).transport(len), &[])
            .fails(&refusal);
        // In the capsule, which holds what the SGL says.
        let sqe = Sqe::write(0, 0, blocks).in_capsule(len);
        io.run(sqe, &vec![0xEE; len as usize]).fails(&refusal);
    }
    // More than any command may move: which of the two wrongs is reported is open.
    let refusal = [DATA_SGL_LENGTH_INVALID, INVALID_FIELD];
    for len in [0x0100_0000, 0x7FFF_FFFF, 0xFFFF_FFFF] {
        io.run(Sqe::read(0, 0, 1).transport(len), &[])
            .fails(&refusal);
        io.run(Sqe::write(0, 0, 1).transport(len), &[])
            .fails(&refusal);
    }
    let data = pattern(3, 512);
    io.write(0, &data);
    assert!(io.read(0, 512) == data, "wrong data");
    still_serves(&target);
}

/// A command of more than MDTS is refused before anything is fetched or sent.
#[test]
fn more_than_mdts_is_refused() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    let identify = host.admin.run(Sqe::identify(0, 1, 0), &[]).ok().data;
    let mdts = identify[77];
    assert!(
        (1..=15).contains(&mdts),
        "MDTS {mdts}: a target must bound what it buffers"
    );
    let blocks = (4096_u32 << mdts) / 512;
    if let Ok(blocks) = u16::try_from(blocks) {
        let data = pattern(4, usize::from(blocks) * 512);
        io.write(0, &data);
        assert!(io.read(0, data.len()) == data, "MDTS itself");
    }
    if let Ok(blocks) = u16::try_from(blocks + 1) {
        io.run(Sqe::read(0, 0, blocks), &[]).fails(&[INVALID_FIELD]);
        io.run(Sqe::write(0, 0, blocks), &[])
            .fails(&[INVALID_FIELD]);
    }
    still_serves(&target);
}

/// Commands that move no data do not look at a descriptor that names none. (RDMA hosts send a keyed
/// descriptor of length zero, Linux over TCP one of 0x5A.)
#[test]
fn flush_with_an_empty_descriptor_works() {
    let target = Target::start(&[]);
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    for kind in [0x00, 0x01, 0x5A] {
        let flush = Sqe::new(0x00, 0).nsid(1).sgl(kind, 0, 0);
        let reply = io.run(flush, &[]);
        assert_eq!(reply.cqe.code(), SUCCESSFUL, "descriptor {kind:#x}");
    }
    still_serves(&target);
}
