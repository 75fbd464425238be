//! Fabrics Connect: what is refused, with which status and which parameter named.
use crate::bytes::{pattern, put};
use crate::common::Target;
use crate::conn::{Conn, PATIENCE, Reply};
use crate::host::{DISCOVERY_NQN, HOSTNQN, Host, Options, VS, host_with_queue, still_serves};
use crate::pdu::{
    IcReq, Sqe, connect_data,
    status::{
        COMMAND_SEQUENCE_ERROR, CONNECT_INCOMPATIBLE_FORMAT, CONNECT_INVALID_HOST,
        CONNECT_INVALID_PARAMETERS, DATA_SGL_LENGTH_INVALID, INVALID_FIELD, INVALID_OPCODE,
        INVALID_QUEUE_TYPE,
    },
};

/// Offsets that a refusal names (IPO).
const DATA_HOSTID: u16 = 0;
const DATA_CNTLID: u16 = 16;
const DATA_SUBNQN: u16 = 256;
const DATA_HOSTNQN: u16 = 512;
const SQE_QID: u16 = 42;
const SQE_SQSIZE: u16 = 44;

/// Connect Invalid Parameters that names byte `ipo` of the data or of the SQE, and is final.
#[track_caller]
fn names(reply: &Reply, ipo: u16, in_data: bool) {
    reply.cqe.fails(&[CONNECT_INVALID_PARAMETERS]);
    let expected = u32::from(ipo) | u32::from(in_data) << 16;
    assert_eq!(
        (reply.cqe.dw0, reply.cqe.dw1),
        (expected, 0),
        "IPO and IATTR of {:x?}",
        reply.cqe
    );
    assert!(reply.cqe.dnr(), "trying again would not help");
}

fn admin_connect() -> Sqe {
    Sqe::connect(0, 0, 31, 0, 60_000)
}

fn data_for(target: &Target) -> Vec<u8> {
    connect_data(1, 0xFFFF, &target.nqn, HOSTNQN)
}

/// A refused Connect leaves the connection as it was: the next one may be right.
#[track_caller]
fn then_connects(mut conn: Conn, target: &Target) {
    conn.run(admin_connect(), &data_for(target)).ok();
}

#[test]
fn connect_comes_first() {
    let target = Target::start(&[]);
    for sqe in [
        Sqe::property_get(0, VS, false),
        Sqe::property_set(0, 0x14, 1),
        Sqe::identify(0, 1, 0),
        Sqe::read(0, 0, 1),
        Sqe::new(0x18, 0),
        Sqe::fabrics(0x08, 0),
        Sqe::fabrics(0x55, 0),
        Sqe::new(0xFF, 0),
    ] {
        let mut conn = Conn::open(target.addr, IcReq::default());
        conn.run(sqe, &[]).fails(&[COMMAND_SEQUENCE_ERROR]);
        then_connects(conn, &target);
    }
    still_serves(&target);
}

#[test]
fn connect_comes_once() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    for _ in 0..3 {
        let data = data_for(&target);
        host.admin
            .run(admin_connect(), &data)
            .fails(&[COMMAND_SEQUENCE_ERROR]);
        let io_data = host.io_data();
        let again = Sqe::connect(0, 1, 31, 0, 0);
        io.run(again, &io_data).fails(&[COMMAND_SEQUENCE_ERROR]);
    }
    host.get(VS);
    io.read(0, 512);
    still_serves(&target);
}

/// CVE-2023-6121, spdk d1698dca1f: 256 bytes without a NUL were read, and logged, as a string.
#[test]
fn cve_2023_6121_an_nqn_without_nul_is_refused() {
    let target = Target::start(&[]);
    for at in [DATA_SUBNQN, DATA_HOSTNQN] {
        for filler in [0x41, 0x0A, 0x1B, 0x25, 0x80, 0xFF] {
            let mut conn = Conn::open(target.addr, IcReq::default());
            let mut data = data_for(&target);
            let start = usize::from(at);
            data[start..start + 256].fill(filler);
            names(&conn.run(admin_connect(), &data), at, true);
            then_connects(conn, &target);
        }
    }
    // Everything at once: any of the three is to blame. And nothing at all.
    let mut conn = Conn::open(target.addr, IcReq::default());
    let reply = conn.run(admin_connect(), &[0x41; 1024]);
    reply.cqe.fails(&[CONNECT_INVALID_PARAMETERS]);
    let mut conn = Conn::open(target.addr, IcReq::default());
    let mut data = data_for(&target);
    data[256..512].fill(0);
    names(&conn.run(admin_connect(), &data), DATA_SUBNQN, true);
    let mut data = data_for(&target);
    data[512..768].fill(0);
    names(&conn.run(admin_connect(), &data), DATA_HOSTNQN, true);
    then_connects(conn, &target);
    // What is written to the log has no control characters in it.
    let log = target.log();
    assert!(
        !log.chars()
            .any(|c| c == '\u{1B}' || (c.is_control() && c != '\n')),
        "control characters of a host's NQN in the log"
    );
    still_serves(&target);
}

/// spdk 414f91a0c7: a refused request was freed twice. Scaled to 200 refusals.
#[test]
fn spdk_414f91a0c7_unknown_subsystems_are_refused() {
    let target = Target::start(&[]);
    let mut conn = Conn::open(target.addr, IcReq::default());
    let longer = format!("{}x", target.nqn);
    let shorter = &target.nqn[..target.nqn.len() - 1];
    let long = format!("nqn.2014-08.org.nvmexpress:{}", "a".repeat(196));
    for subnqn in [
        "nqn.2014-08.org.example:nobody",
        &longer,
        shorter,
        &long,
        "x",
        HOSTNQN,
    ] {
        let data = connect_data(1, 0xFFFF, subnqn, HOSTNQN);
        names(&conn.run(admin_connect(), &data), DATA_SUBNQN, true);
    }
    for _ in 0..200 {
        let data = connect_data(1, 0xFFFF, "nqn.2014-08.org.example:nobody", HOSTNQN);
        names(&conn.run(admin_connect(), &data), DATA_SUBNQN, true);
    }
    then_connects(conn, &target);
    still_serves(&target);
}

#[test]
fn hosts_that_are_not_allowed_are_refused() {
    let target = Target::start(&["--allow-host", HOSTNQN]);
    let mut conn = Conn::open(target.addr, IcReq::default());
    for hostnqn in [
        "nqn.2014-08.org.example:stranger",
        &HOSTNQN[..HOSTNQN.len() - 1],
        &format!("{HOSTNQN}0"),
    ] {
        let data = connect_data(1, 0xFFFF, &target.nqn, hostnqn);
        let reply = conn.run(admin_connect(), &data);
        reply.cqe.fails(&[CONNECT_INVALID_HOST]);
        assert_eq!(reply.cqe.dw0, 0x1_0000 | u32::from(DATA_HOSTNQN));
        assert!(reply.cqe.dnr());
    }
    then_connects(conn, &target);
    still_serves(&target);
}

#[test]
fn controllers_are_dynamic_and_io_queues_name_theirs() {
    let target = Target::start(&[]);
    // Dynamic controllers are asked for with FFFFh and nothing else.
    for cntlid in [0, 1, 0xFFEF, 0xFFF0] {
        let mut conn = Conn::open(target.addr, IcReq::default());
        let data = connect_data(1, cntlid, &target.nqn, HOSTNQN);
        names(&conn.run(admin_connect(), &data), DATA_CNTLID, true);
        then_connects(conn, &target);
    }
    let host = Host::new(&target);
    let mut conn = Conn::open(target.addr, IcReq::default());
    for cntlid in [
        0,
        host.cntlid ^ 0x4000,
        host.cntlid + 1,
        0xFFEF,
        0xFFFE,
        0xFFFF,
    ] {
        let data = connect_data(1, cntlid, &target.nqn, HOSTNQN);
        let reply = conn.run(Sqe::connect(0, 1, 31, 0, 0), &data);
        names(&reply, DATA_CNTLID, true);
    }
    host.join(&mut conn, 1, &Options::default()).ok();
    conn.read(0, 512);
    still_serves(&target);
}

/// The queue of one host's controller is not for another host.
#[test]
fn another_host_cannot_join_a_controller() {
    let target = Target::start(&[]);
    let host = Host::new(&target);
    let mut conn = Conn::open(target.addr, IcReq::default());
    let connect = Sqe::connect(0, 1, 31, 0, 0);
    let data = connect_data(1, host.cntlid, &target.nqn, "nqn.2014-08.org.example:other");
    let reply = conn.run(connect.clone(), &data);
    reply.cqe.fails(&[CONNECT_INVALID_PARAMETERS]);
    // Another host identifier is another host.
    let data = connect_data(2, host.cntlid, &target.nqn, HOSTNQN);
    let reply = conn.run(connect.clone(), &data);
    reply.cqe.fails(&[CONNECT_INVALID_PARAMETERS]);
    assert_eq!(
        DATA_HOSTID, 0,
        "either the identifier or the controller is named"
    );
    assert!([0x1_0000, 0x1_0010].contains(&reply.cqe.dw0), "{reply:x?}");
    // Another subsystem.
    let data = connect_data(1, host.cntlid, DISCOVERY_NQN, HOSTNQN);
    conn.run(connect, &data)
        .cqe
        .fails(&[CONNECT_INVALID_PARAMETERS, INVALID_QUEUE_TYPE]);
    host.join(&mut conn, 1, &Options::default()).ok();
    conn.read(0, 512);
    still_serves(&target);
}

#[test]
fn qids_out_of_range_or_in_use_are_refused() {
    let target = Target::start(&["--max-queues", "4"]);
    let (host, mut first) = host_with_queue(&target, &Options::default());
    let mut conn = Conn::open(target.addr, IcReq::default());
    for qid in [5, 6, 128, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF] {
        let reply = host.join(&mut conn, qid, &Options::default());
        names(&reply, SQE_QID, false);
    }
    for _ in 0..3 {
        host.join(&mut conn, 1, &Options::default())
            .fails(&[COMMAND_SEQUENCE_ERROR]);
    }
    host.join(&mut conn, 4, &Options::default()).ok();
    conn.read(0, 512);
    first.read(0, 512);
    still_serves(&target);
}

/// spdk 9e3d841d3e, spdk 2061874474: SQSIZE was not looked at; CVE-2024-46737: the largest one failed badly.
#[test]
fn spdk_9e3d841d3e_sqsize_is_within_1_and_the_queue_s_limit() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    let mqes = u16::try_from(host.cap() & 0xFFFF).expect("16 bits");
    let mut beyond = vec![0];
    if let Some(next) = mqes.checked_add(1) {
        beyond.extend([next, 0xFFFF]);
    }
    let mut conn = Conn::open(target.addr, IcReq::default());
    for sqsize in beyond {
        let options = Options {
            sqsize,
            ..Options::default()
        };
        names(&host.join(&mut conn, 1, &options), SQE_SQSIZE, false);
    }
    let mut admin = Conn::open(target.addr, IcReq::default());
    for sqsize in [0, 0xFFFF] {
        let sqe = Sqe::connect(0, 0, sqsize, 0, 60_000);
        names(&admin.run(sqe, &data_for(&target)), SQE_SQSIZE, false);
    }
    then_connects(admin, &target);
    for (qid, sqsize) in [(1, mqes), (2, 1)] {
        let options = Options {
            sqsize,
            ..Options::default()
        };
        let mut io = host.io(&target, qid, &options);
        io.write(0, &[7; 512]);
        assert_eq!(io.read(0, 512), [7; 512]);
    }
    still_serves(&target);
}

/// CVE-2024-46737 at the limit of what SQSIZE can say: 65536 entries, most of them in use.
#[test]
fn cve_2024_46737_the_largest_queue_there_is() {
    const OUTSTANDING: u16 = 20_000;
    let target = Target::start(&["--queue-depth", "65536"]);
    let mut host = Host::new(&target);
    assert_eq!(host.cap() & 0xFFFF, 0xFFFF, "MQES");
    let options = Options {
        sqsize: 0xFFFF,
        ..Options::default()
    };
    let mut io = host.io(&target, 1, &options);
    let data = pattern(21, 512);
    io.write(0, &data);
    // All are sent before the first completion is looked at.
    for cid in 0..OUTSTANDING {
        let write = Sqe::write(cid, u64::from(cid), 1).in_capsule(512);
        let mut block = data.clone();
        put(&mut block, 0, cid.to_le_bytes());
        io.start(&write, &block);
    }
    let mut seen = vec![false; usize::from(OUTSTANDING)];
    for _ in 0..OUTSTANDING {
        let cqe = io.read_pdu().cqe();
        cqe.succeeds();
        assert!(!std::mem::replace(&mut seen[usize::from(cqe.cid)], true));
    }
    for cid in [0, 1, OUTSTANDING / 2, OUTSTANDING - 1] {
        let block = io.read(cid.into(), 512);
        assert_eq!(block[..2], cid.to_le_bytes());
        assert!(block[2..] == data[2..]);
    }
    still_serves(&target);
}

#[test]
fn other_record_formats_are_refused() {
    let target = Target::start(&[]);
    let mut conn = Conn::open(target.addr, IcReq::default());
    for recfmt in [1_u16, 2, 0x0100, 0xFFFF] {
        let mut sqe = admin_connect();
        put(&mut sqe.0, 40, recfmt.to_le_bytes());
        let reply = conn.run(sqe, &data_for(&target));
        reply.cqe.fails(&[CONNECT_INCOMPATIBLE_FORMAT]);
        assert!(reply.cqe.dnr());
    }
    then_connects(conn, &target);
    still_serves(&target);
}

/// spdk e749fa9c27, spdk acc4d1766c, spdk bae7cfb49b: Connect data of another length ran over its buffer.
#[test]
fn spdk_e749fa9c27_connect_data_is_1024_bytes() {
    let target = Target::start(&[]);
    let mut conn = Conn::open(target.addr, IcReq::default());
    for len in [4, 512, 1020, 1023] {
        let mut data = data_for(&target);
        data.resize(len, 0);
        let sqe = admin_connect().in_capsule(u32::try_from(len).expect("small"));
        conn.run(sqe, &data)
            .fails(&[DATA_SGL_LENGTH_INVALID, INVALID_FIELD]);
    }
    // No data at all.
    conn.run(admin_connect().sgl(0x01, 0, 0), &[])
        .fails(&[DATA_SGL_LENGTH_INVALID, INVALID_FIELD]);
    // More than 1024 bytes: Linux refuses, SPDK does not look at the rest.
    for len in [1025, 1028, 2048, 8192] {
        let mut conn = Conn::open(target.addr, IcReq::default());
        let mut data = data_for(&target);
        data.resize(len, 0xEE);
        let sqe = admin_connect().in_capsule(u32::try_from(len).expect("small"));
        let reply = conn.run(sqe, &data);
        if reply.cqe.code() != (0, 0) {
            reply.fails(&[DATA_SGL_LENGTH_INVALID, INVALID_FIELD]);
            then_connects(conn, &target);
        }
    }
    then_connects(conn, &target);
    // What the capsule lacks of what the SGL promises is a transport error.
    for len in [512, 1023] {
        let mut conn = Conn::open(target.addr, IcReq::default());
        let capsule = conn
            .framing
            .capsule(&admin_connect(), &data_for(&target)[..len]);
        conn.send(&capsule);
        conn.expect_term(1, 4);
    }
    still_serves(&target);
}

/// spdk 9b571c9df4: commands with 8 KiB in the capsule exhausted a list. 64 connections have one
/// outstanding each, eight times over.
#[test]
fn spdk_9b571c9df4_many_capsules_of_8_kib() {
    let target = Target::start(&[]);
    let mut conns: Vec<Conn> = (0..64)
        .map(|_| Conn::open(target.addr, IcReq::default()))
        .collect();
    for cid in 0..8 {
        for conn in &mut conns {
            let sqe = Sqe::connect(cid, 0, 31, 0, 60_000).in_capsule(8192);
            conn.start(&sqe, &[0x55; 8192]);
        }
        for conn in &mut conns {
            conn.finish(cid, &[]).fails(&[
                DATA_SGL_LENGTH_INVALID,
                INVALID_FIELD,
                CONNECT_INVALID_PARAMETERS,
            ]);
        }
    }
    for conn in conns {
        then_connects(conn, &target);
    }
    still_serves(&target);
}

/// Disconnect ends an I/O queue after its completion; on an admin queue it is no command.
#[test]
fn disconnect_is_for_io_queues() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &Options::default());
    host.admin.run(Sqe::fabrics(0x08, 0), &[]).fails(&[
        INVALID_OPCODE,
        INVALID_FIELD,
        INVALID_QUEUE_TYPE,
    ]);
    // A wrong record format leaves the queue as it is.
    let mut wrong = Sqe::fabrics(0x08, 0);
    put(&mut wrong.0, 40, 1_u16.to_le_bytes());
    io.run(wrong, &[]).fails(&[CONNECT_INCOMPATIBLE_FORMAT]);
    io.read(0, 512);
    io.run(Sqe::fabrics(0x08, 0), &[]).ok();
    io.expect_closed(PATIENCE);
    host.get(VS);
    still_serves(&target);
}
