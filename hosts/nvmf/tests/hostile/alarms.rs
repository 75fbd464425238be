//! What has to happen by the clock: keep alive, ICReq that does not come, hosts that do not close.
//! (This module sorts first so that its waiting overlaps with everything else.)
use std::thread;
use std::time::{Duration, Instant};

use crate::common::Target;
use crate::conn::{Conn, PATIENCE};
use crate::host::{Host, Options, VS, host_with_queue, still_serves};
use crate::pdu::{
    C2H_TERM_REQ, CAPSULE_RESP, IcReq, Sqe,
    status::{INVALID_FIELD, KEEP_ALIVE_TIMEOUT_INVALID},
};

/// Keep alive of a second, for tests that wait for its end.
fn short_lived() -> Options {
    Options {
        kato: 1000,
        ..Options::default()
    }
}

/// Keep alive of two seconds, for tests that see to it that there is none.
fn kept_alive() -> Options {
    Options {
        kato: 2000,
        ..Options::default()
    }
}

fn closes_between(conn: &mut Conn, from: Duration, to: Duration, since: Instant) {
    let left = to.saturating_sub(since.elapsed());
    conn.expect_closed(left);
    let elapsed = since.elapsed();
    assert!(elapsed >= from, "closed already after {elapsed:?}");
}

/// Slow-loris: half an ICReq, nothing at all, or a byte now and then. All are closed 10 s after they
/// connected. And spdk 536b231eea (spdk#3865): a host that does not close after our C2HTermReq is closed
/// on after 30 s.
#[test]
fn connections_that_lead_nowhere_are_closed() {
    let target = Target::start(&[]);
    let icreq = IcReq::default().bytes();
    let start = Instant::now();
    let mut silent = Conn::tcp(target.addr);
    let mut half = Conn::tcp(target.addr);
    half.send(&icreq[..64]);
    let mut loris = Conn::tcp(target.addr);
    let mut refused = Conn::tcp(target.addr);
    refused.send(&[0xFF; 8]);
    assert_eq!(refused.read_pdu().kind(), C2H_TERM_REQ);
    thread::scope(|scope| {
        let (from, to) = (Duration::from_millis(9500), Duration::from_secs(13));
        scope.spawn(move || closes_between(&mut silent, from, to, start));
        scope.spawn(move || closes_between(&mut half, from, to, start));
        scope.spawn(move || {
            for byte in icreq.chunks(1).take(127) {
                if loris.try_send(byte).is_err() {
                    break;
                }
                thread::sleep(Duration::from_millis(250));
                if start.elapsed() > Duration::from_secs(11) {
                    break;
                }
            }
            closes_between(&mut loris, Duration::ZERO, to, start);
        });
        scope.spawn(move || {
            let (from, to) = (Duration::from_secs(28), Duration::from_secs(34));
            closes_between(&mut refused, from, to, start);
        });
    });
    still_serves(&target);
}

/// Expiry of KATO ends the association: every queue is closed.
#[test]
fn kato_expiry_closes_every_queue() {
    let target = Target::start(&[]);
    let start = Instant::now();
    let (mut host, mut first) = host_with_queue(&target, &short_lived());
    let mut second = host.io(&target, 2, &short_lived());
    // A write is waiting for its data meanwhile.
    second.start(&Sqe::write(5, 0, 8), &[]);
    second.read_pdu();
    for conn in [&mut host.admin, &mut first, &mut second] {
        let (from, to) = (Duration::from_millis(1000), Duration::from_secs(5));
        closes_between(conn, from, to, start);
    }
    still_serves(&target);
}

/// Keep Alive commands keep the association alive; with TBKAS so does other traffic.
#[test]
fn keep_alive_and_traffic_keep_alive() {
    let target = Target::start(&[]);
    let (mut kept, _io) = host_with_queue(&target, &kept_alive());
    let identify = kept.admin.run(Sqe::identify(0, 1, 0), &[]).ok().data;
    // CTRATT bit 6: traffic based keep alive.
    let tbkas = identify[96] & 0x40 != 0;
    let (mut busy, mut busy_io) = host_with_queue(&target, &kept_alive());
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        kept.admin.run(Sqe::new(0x18, 0), &[]).ok();
        busy_io.read(0, 512);
        if !tbkas {
            busy.admin.run(Sqe::new(0x18, 0), &[]).ok();
        }
        thread::sleep(Duration::from_millis(200));
    }
    kept.get(VS);
    busy.get(VS);
    still_serves(&target);
}

/// Keep alive under full load: large reads fill a queue of the same controller all the while.
#[test]
fn keep_alive_passes_full_queues() {
    let target = Target::start(&[]);
    let (mut host, mut io) = host_with_queue(&target, &kept_alive());
    let start = Instant::now();
    let time = Duration::from_secs(5);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut outstanding = 0;
            let mut cid = 0;
            while start.elapsed() < time {
                while outstanding < 31 {
                    cid = (cid + 1) % 0x1000;
                    io.start(&Sqe::read(cid, 0, 128), &[]);
                    outstanding += 1;
                }
                let pdu = io.read_pdu();
                if pdu.kind() == CAPSULE_RESP {
                    pdu.cqe().succeeds();
                    outstanding -= 1;
                }
            }
        });
        while start.elapsed() < time {
            let asked = Instant::now();
            host.admin.run(Sqe::new(0x18, 0), &[]).ok();
            let answered = asked.elapsed();
            assert!(answered < Duration::from_secs(2), "after {answered:?}");
            thread::sleep(Duration::from_millis(200));
        }
    });
    host.get(VS);
    still_serves(&target);
}

/// Without KATO there is no timer, and a Keep Alive command makes no sense. (A target may refuse such a
/// Connect: NVMe/TCP asks for keep alive.)
#[test]
fn keep_alive_without_kato_is_invalid() {
    let target = Target::start(&[]);
    let options = Options {
        kato: 0,
        ..Options::default()
    };
    let mut host = Host::connect(&target, &options);
    for _ in 0..3 {
        host.admin
            .run(Sqe::new(0x18, 0), &[])
            .fails(&[KEEP_ALIVE_TIMEOUT_INVALID, INVALID_FIELD]);
    }
    host.get(VS);
    // Set later by Set Features (0Fh), the timer starts.
    host.admin
        .run(Sqe::new(0x09, 0).dword(10, 0x0F).dword(11, 1000), &[])
        .ok();
    let start = Instant::now();
    host.admin.run(Sqe::new(0x18, 0), &[]).ok();
    closes_between(&mut host.admin, Duration::from_millis(900), PATIENCE, start);
    still_serves(&target);
}

/// The shortest and the longest KATO, and what is reserved in CATTR, are no reason to fail.
#[test]
fn kato_of_any_length_is_taken() {
    let target = Target::start(&[]);
    for (kato, cattr) in [(1, 0), (999, 3), (0x7FFF_FFFF, 8), (0xFFFF_FFFF, 0xF0)] {
        let options = Options {
            kato,
            cattr,
            ..Options::default()
        };
        let (mut host, mut io) = host_with_queue(&target, &options);
        io.read(0, 512);
        host.admin.run(Sqe::new(0x18, 0), &[]).ok();
    }
    still_serves(&target);
}

/// 200 controllers (for the 1,000 of a large site) whose timers end in the same instant, each with an I/O
/// queue. Others do not notice.
#[test]
fn two_hundred_katos_expire_at_once() {
    let target = Target::start(&[]);
    let files = target.open_files();
    let start = Instant::now();
    let mut dying: Vec<(Host, Conn)> = (0..200)
        .map(|_| host_with_queue(&target, &short_lived()))
        .collect();
    let connected = start.elapsed();
    assert!(target.open_files() >= files + 400 || connected > Duration::from_secs(1));
    let (_host, mut io) = host_with_queue(&target, &Options::default());
    while start.elapsed() < connected + Duration::from_secs(3) {
        let asked = Instant::now();
        io.read(0, 4096);
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "others were held up"
        );
        thread::sleep(Duration::from_millis(20));
    }
    for (host, io) in &mut dying {
        host.admin.expect_closed(PATIENCE);
        io.expect_closed(PATIENCE);
    }
    target.settle(files + 2);
    still_serves(&target);
}

/// An idle target uses no CPU, whatever sits on its sockets.
#[test]
fn an_idle_target_uses_no_cpu() {
    let target = Target::start(&[]);
    let hosts: Vec<(Host, Conn)> = (0..50)
        .map(|_| host_with_queue(&target, &Options::default()))
        .collect();
    thread::sleep(Duration::from_millis(300));
    let before = target.cpu_ticks();
    thread::sleep(Duration::from_secs(1));
    let used = target.cpu_ticks() - before;
    assert!(used <= 2, "{used} ticks of 10 ms in an idle second");
    drop(hosts);
    still_serves(&target);
}
