//! The discovery controller, which everybody may ask before authentication.
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::common::Target;
use crate::host::{Host, still_serves};
use crate::pdu::{
    Sqe,
    status::{DATA_SGL_LENGTH_INVALID, INVALID_FIELD, INVALID_LOG_PAGE, INVALID_OPCODE},
};

const DISCOVERY_LOG: u8 = 0x70;

/// Header and entries are of this size.
const RECORD: u64 = 1024;

fn log_size(host: &mut Host) -> u64 {
    let header = host
        .admin
        .run(Sqe::get_log(0, DISCOVERY_LOG, 0, 1024), &[])
        .ok()
        .data;
    assert_eq!(u16_at(&header, 16), 0, "RECFMT");
    RECORD + u64_at(&header, 8) * RECORD
}

/// CVE-2026-64320: an offset without bound read the heap, before authentication. Also spdk 7a2a588c62,
/// spdk 4201dfaff3, and FreeBSD's `offset % 3`.
#[test]
fn cve_2026_64320_offsets_beyond_the_log_are_invalid() {
    let target = Target::start(&[]);
    let mut host = Host::discovery(&target);
    let size = log_size(&mut host);
    for offset in [
        size + 4,
        size + 1024,
        1 << 32,
        (1 << 32) + 1024,
        1 << 63,
        u64::MAX - 3,
    ] {
        host.admin
            .run(Sqe::get_log(0, DISCOVERY_LOG, offset, 1024), &[])
            .fails(&[INVALID_FIELD]);
    }
    // Offsets count dwords.
    for offset in [1, 2, 3, 5, 1023, u64::MAX] {
        host.admin
            .run(Sqe::get_log(0, DISCOVERY_LOG, offset, 1024), &[])
            .fails(&[INVALID_FIELD]);
    }
    // What lies past the end of the log reads as zeros.
    let whole = host
        .admin
        .run(
            Sqe::get_log(0, DISCOVERY_LOG, 0, u32::try_from(size).expect("small")),
            &[],
        )
        .ok()
        .data;
    for offset in [4, 8, 1024, size - 4, size - 1024] {
        let part = host
            .admin
            .run(Sqe::get_log(0, DISCOVERY_LOG, offset, 2048), &[])
            .ok()
            .data;
        assert_eq!(part.len(), 2048);
        let start = usize::try_from(offset).expect("small");
        let there = (whole.len() - start).min(2048);
        assert!(
            part[..there] == whole[start..start + there],
            "offset {offset}"
        );
        assert!(
            part[there..].iter().all(|byte| *byte == 0),
            "offset {offset}"
        );
    }
    still_serves(&target);
}

/// linux d808b7f759b5: a log of more than 4 KiB was sent from its start again and again.
/// Ten records, in pieces of any size.
#[test]
fn linux_d808b7f759b5_the_log_in_pieces_is_the_log() {
    let mut args = Vec::new();
    for _ in 0..8 {
        args.extend(["--listen", "127.0.0.1:0"]);
    }
    let target = Target::start(&args);
    let mut host = Host::discovery(&target);
    let size = log_size(&mut host);
    assert!(size > 8192, "nine listeners make a log of {size} bytes");
    let size = u32::try_from(size).expect("small");
    let whole = host
        .admin
        .run(Sqe::get_log(0, DISCOVERY_LOG, 0, size), &[])
        .ok()
        .data;
    assert_eq!(whole.len(), size as usize);
    for piece in [4, 16, 512, 1000, 1024, 4096] {
        // Pieces of four bytes only for the first two kilobytes.
        let end = if piece < 512 { 2048 } else { size };
        let mut pieces = Vec::new();
        let mut offset = 0;
        while offset < end {
            let len = piece.min(end - offset);
            let sqe = Sqe::get_log(0, DISCOVERY_LOG, u64::from(offset), len);
            pieces.extend(host.admin.run(sqe, &[]).ok().data);
            offset += len;
        }
        assert!(pieces == whole[..end as usize], "pieces of {piece} bytes");
    }
    // Each listener once, and ours among them.
    let mut ports = Vec::new();
    for record in whole[1024..].chunks(1024) {
        let text = |start: usize, len: usize| {
            let field = String::from_utf8_lossy(&record[start..start + len]);
            field.trim_end_matches(['\0', ' ']).to_owned()
        };
        if text(256, 256) == target.nqn {
            assert_eq!(record[0], 3, "TRTYPE");
            ports.push(text(32, 32));
        }
    }
    assert!(ports.contains(&target.addr.port().to_string()));
    let count = ports.len();
    ports.sort();
    ports.dedup();
    assert_eq!(ports.len(), count, "a listener twice");
    assert_eq!(count, 9);
    // blktests nvme/030: nothing changed, so neither did GENCTR.
    let again = host
        .admin
        .run(Sqe::get_log(0, DISCOVERY_LOG, 0, 1024), &[])
        .ok()
        .data;
    assert_eq!(u64_at(&again, 0), u64_at(&whole, 0), "GENCTR");
    still_serves(&target);
}

/// spdk e749fa9c27 (Get Log Page of four bytes), and a NUMD that is a lie.
#[test]
fn lengths_of_get_log_page_are_bounded_by_the_sgl() {
    let target = Target::start(&[]);
    let mut host = Host::discovery(&target);
    let four = host
        .admin
        .run(Sqe::get_log(0, DISCOVERY_LOG, 0, 4), &[])
        .ok()
        .data;
    assert_eq!(four.len(), 4);
    for (numd, len) in [
        (0xFFFF_FFFF_u32, 4096),
        (0xFFFF_FFFF, 4),
        (0x3FFF_FFFF, 0xFFFF_FFFF),
        (0x0000_FFFF, 4096),
        (1023, 4),
        (1023, 4092),
    ] {
        let sqe = Sqe::new(0x02, 0)
            .dword(10, u32::from(DISCOVERY_LOG) | numd << 16)
            .dword(11, numd >> 16)
            .transport(len);
        host.admin
            .run(sqe, &[])
            .fails(&[DATA_SGL_LENGTH_INVALID, INVALID_FIELD]);
    }
    host.admin.run(Sqe::identify(0, 1, 0), &[]).ok();
    still_serves(&target);
}

/// spdk#1996, spdk#1109, blktests nvme/003: a discovery controller does little, but answers everything.
#[test]
fn a_discovery_controller_refuses_what_it_has_not() {
    let target = Target::start(&[]);
    let mut host = Host::discovery(&target);
    let identify = host.admin.run(Sqe::identify(0, 1, 0), &[]).ok().data;
    assert_eq!(identify[111], 2, "CNTRLTYPE");
    // Keep Alive.
    host.admin.run(Sqe::new(0x18, 0), &[]).ok();
    for lid in [0xFF, 0x99, 0xC0] {
        host.admin
            .run(Sqe::get_log(0, lid, 0, 512), &[])
            .fails(&[INVALID_FIELD, INVALID_LOG_PAGE]);
    }
    for opcode in [
        0x00, 0x01, 0x04, 0x05, 0x0D, 0x10, 0x11, 0x15, 0x80, 0x84, 0xFF,
    ] {
        host.admin
            .run(Sqe::new(opcode, 0), &[])
            .fails(&[INVALID_OPCODE]);
    }
    // No I/O queues.
    let mut io = crate::conn::Conn::open(target.addr, crate::pdu::IcReq::default());
    let reply = host.join(&mut io, 1, &crate::host::Options::default());
    reply.cqe.fails(&[
        crate::pdu::status::CONNECT_INVALID_PARAMETERS,
        crate::pdu::status::INVALID_QUEUE_TYPE,
    ]);
    // Identify of a namespace.
    for cns in [0x00, 0x02, 0x03, 0xFF] {
        host.admin
            .run(Sqe::identify(0, cns, 1), &[])
            .fails(&[INVALID_FIELD, crate::pdu::status::INVALID_NAMESPACE]);
    }
    assert_eq!(u32_at(&identify, 516), 0, "NN");
    still_serves(&target);
}

/// The log is the same to a host that asks an I/O controller, or that is refused there.
#[test]
fn an_io_controller_bounds_its_logs_too() {
    let target = Target::start(&[]);
    let mut host = Host::new(&target);
    for (lid, size) in [(0x01_u8, 64_u32), (0x02, 512), (0x03, 512), (0x05, 4096)] {
        let page = host.admin.run(Sqe::get_log(0, lid, 0, size), &[]).ok();
        assert_eq!(page.data.len(), size as usize, "log {lid:#x}");
        for offset in [1_u64 << 32, 1 << 63, u64::MAX - 3, 0x0100_0000] {
            host.admin
                .run(Sqe::get_log(0, lid, offset, size), &[])
                .fails(&[INVALID_FIELD]);
        }
        for offset in [1, 2, 3, 5] {
            host.admin
                .run(Sqe::get_log(0, lid, offset, size), &[])
                .fails(&[INVALID_FIELD]);
        }
    }
    for lid in [0x99, 0xC0, 0xFF] {
        host.admin
            .run(Sqe::get_log(0, lid, 0, 512), &[])
            .fails(&[INVALID_LOG_PAGE, INVALID_FIELD]);
    }
    still_serves(&target);
}
