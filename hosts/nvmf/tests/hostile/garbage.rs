//! A thousand hosts that send garbage, stall or close at random, next to one that behaves.
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bytes::{Random, pattern, put};
use crate::common::Target;
use crate::conn::Conn;
use crate::host::{HOSTNQN, Host, Options, host_with_queue, still_serves};
use crate::pdu::{Framing, H2C_DATA, IcReq, Sqe, connect_data, term_req};

/// Blocks that belong to the host that behaves; the others write beyond them.
const OURS: u64 = 65_536;

/// What a host is up to. Some keep their connection until the end.
fn misbehave(target: &Target, random: &mut Random, kept: &mut Vec<Conn>) {
    let mut conn = Conn::tcp(target.addr);
    let ic = IcReq {
        hpda: random.byte() % 33,
        hdgst: random.below(2) == 0,
        ddgst: random.below(2) == 0,
        maxr2t: u32::from(random.byte()),
        pfv: u16::from(random.below(20) == 0),
    };
    let framing = Framing {
        hdgst: ic.hdgst,
        ddgst: ic.ddgst,
        align: 4,
    };
    let kind = random.below(6);
    let bytes = match kind {
        // Nothing but noise.
        0 => noise(random, 2048),
        // Noise after an ICReq.
        1 => noise(random, 2048),
        // Common headers of the right kind and nothing else right.
        2 => {
            let mut bytes = Vec::new();
            for _ in 0..random.below(4) + 1 {
                let mut header = noise(random, 200);
                header.resize(200, 0);
                header[0] = random.byte() % 10;
                header[1] &= 0x0F;
                header[2] = [8, 24, 72, 128, 255][random.below(5)];
                header[3] = [0, 24, 28, 72, 76, 128][random.below(6)];
                let plen = random.below(300) as u32;
                put(&mut header, 4, plen.to_le_bytes());
                bytes.extend(header);
            }
            bytes
        }
        // A whole session with a few bits turned.
        3 => {
            let mut bytes = session(target, random, framing);
            for _ in 0..random.below(6) + 1 {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            bytes
        }
        // A session cut off, or gone on with after something was left out.
        4 => {
            let bytes = session(target, random, framing);
            let from = random.below(bytes.len());
            let to = from + random.below(bytes.len() - from);
            if random.below(2) == 0 {
                bytes[..from].to_vec()
            } else {
                [&bytes[..from], &bytes[to..]].concat()
            }
        }
        // A session that is as it should be, as far as a host goes that waits for no answer.
        _ => session(target, random, framing),
    };
    if kind > 0 {
        let _ = conn.try_send(&ic.bytes());
        // Most wait for the ICResp, as they should.
        if random.below(5) > 0 && conn.try_read_pdu().is_err() {
            return;
        }
    }
    if random.below(3) == 0 {
        for piece in bytes.chunks(random.below(200) + 1) {
            if conn.try_send(piece).is_err() {
                break;
            }
        }
    } else {
        let _ = conn.try_send(&bytes);
    }
    match random.below(4) {
        0 => conn.reset(),
        1 => conn.finish_sending(),
        2 => kept.push(conn),
        _ => drop(conn),
    }
}

fn noise(random: &mut Random, most: usize) -> Vec<u8> {
    let len = random.below(most) + 1;
    pattern(random.next(), len)
}

/// Connect, enable, then admin commands, H2CData and TermReq at random.
fn session(target: &Target, random: &mut Random, framing: Framing) -> Vec<u8> {
    let data = connect_data(1, 0xFFFF, &target.nqn, HOSTNQN);
    let mut bytes = framing.capsule(&Sqe::connect(1, 0, 31, 0, 60_000), &data);
    bytes.extend(framing.capsule(&Sqe::property_set(2, 0x14, 0x0046_0001), &[]));
    for cid in 3..3 + random.below(20) as u16 {
        match random.below(4) {
            0 => bytes.extend(framing.capsule(&Sqe::identify(cid, random.byte() % 8, 1), &[])),
            1 => {
                let lid = random.byte() % 0x20;
                let sqe = Sqe::get_log(cid, lid, random.next() % 8192, 512);
                bytes.extend(framing.capsule(&sqe, &[]));
            }
            2 => {
                let mut sqe = Sqe::new(random.byte(), cid);
                let tail = pattern(random.next(), 48);
                sqe.0[16..].copy_from_slice(&tail);
                sqe.0[39] = [0x01, 0x5A, 0x40][random.below(3)];
                bytes.extend(framing.capsule(&sqe, &[]));
            }
            _ => bytes.extend(framing.h2c_data(cid, random.byte().into(), 0, &[1; 64], true)),
        }
    }
    if random.below(8) == 0 {
        bytes.extend(term_req(1, 0, &[H2C_DATA; 24]));
    }
    bytes
}

/// I/O queues with garbage on them: SQEs of noise, right in so far as they stay out of our blocks.
fn misbehave_on_a_queue(target: &Target, random: &mut Random, kept: &mut Vec<Conn>) {
    let options = Options::digests(random.below(2) == 0, random.below(2) == 0);
    let host = Host::connect(target, &options);
    let mut io = host.io(target, 1, &options);
    for cid in 0..random.below(40) as u16 {
        let mut sqe = Sqe::new([0, 1, 2, 5, 8, 12, 0x7F, 0x99][random.below(8)], cid).nsid(1);
        let tail = pattern(random.next(), 48);
        sqe.0[16..].copy_from_slice(&tail);
        put(&mut sqe.0, 40, (OURS + random.next() % 4096).to_le_bytes());
        put(&mut sqe.0, 48, u16::from(random.byte()).to_le_bytes());
        sqe.0[39] = [0x01, 0x5A, 0x5A, 0x5A][random.below(4)];
        if random.below(2) == 0 {
            put(
                &mut sqe.0,
                32,
                (random.below(300) as u32 * 512).to_le_bytes(),
            );
        }
        let data = if random.below(3) == 0 {
            &[0xEE; 512][..]
        } else {
            &[]
        };
        let mut capsule = io.framing.capsule(&sqe, data);
        if random.below(10) == 0 {
            let at = random.below(capsule.len());
            capsule[at] ^= 1 << random.below(8);
            // Not onto our blocks, by whatever bit: SLBA stays beyond them.
            put(&mut capsule, 8 + 42, 1_u16.to_le_bytes());
        }
        if io.try_send(&capsule).is_err() {
            break;
        }
    }
    match random.below(3) {
        0 => io.reset(),
        1 => kept.push(io),
        _ => drop(io),
    }
    if random.below(2) == 0 {
        kept.push(host.admin);
    }
}

fn crowd(target: &Target, seed: u64, hosts: usize) {
    const THREADS: usize = 8;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random::new(seed + thread as u64);
                let mut kept = Vec::new();
                for _ in 0..hosts / THREADS {
                    if random.below(4) == 0 {
                        misbehave_on_a_queue(target, &mut random, &mut kept);
                    } else {
                        misbehave(target, &mut random, &mut kept);
                    }
                }
                // The stalled ones stay for a while.
                thread::sleep(Duration::from_millis(300));
            });
        }
    });
}

/// 1,000 connections that send garbage, stall or close at random leave a well-behaved connection's data
/// correct and the process's memory where it was.
#[test]
fn a_thousand_hosts_that_misbehave() {
    let target = Target::start(&[]);
    // What the others write is memory of the namespace from now on, not of the process.
    let (host, mut io) = host_with_queue(&target, &Options::default());
    for slba in (OURS..OURS + 4608).step_by(64) {
        io.write(slba, &[0xEE; 32 * 1024]);
    }
    drop((host, io));
    crowd(&target, 7_000, 400);
    still_serves(&target);
    let files = target.open_files();
    let before = target.rss_kib();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let good = scope.spawn(|| {
            let (_host, mut io) = host_with_queue(&target, &Options::digests(true, true));
            let mut random = Random::new(1);
            let mut content: Vec<Vec<u8>> = vec![vec![0; 4096]; 32];
            for (index, data) in content.iter().enumerate() {
                io.write(index as u64 * 8, data);
            }
            let mut slowest = Duration::ZERO;
            let mut rounds = 0_u64;
            while !done.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let index = random.below(content.len());
                let slba = index as u64 * 8;
                assert!(io.read(slba, 4096) == content[index], "wrong data");
                content[index] = pattern(random.next(), 4096);
                if random.below(2) == 0 {
                    io.write(slba, &content[index]);
                } else {
                    io.write_in_capsule(slba, &content[index]);
                }
                slowest = slowest.max(asked.elapsed());
                rounds += 1;
            }
            for (index, data) in content.iter().enumerate() {
                assert!(io.read(index as u64 * 8, 4096) == *data, "wrong data");
            }
            assert!(rounds > 10, "{rounds} rounds");
            assert!(slowest < Duration::from_secs(2), "held up for {slowest:?}");
        });
        crowd(&target, 42, 1000);
        done.store(true, Ordering::Relaxed);
        good.join().expect("the well-behaved host");
    });
    target.settle(files);
    still_serves(&target);
    let after = target.rss_kib();
    assert!(
        after <= before + 2048,
        "memory went from {before} KiB to {after} KiB"
    );
}
