//! A well-behaved host: the proof that the target still serves.
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bytes::pattern;
use crate::common::Target;
use crate::conn::{Conn, PATIENCE, Reply};
use crate::pdu::{IcReq, Sqe, connect_data};

pub(crate) const HOSTNQN: &str =
    "nqn.2014-08.org.nvmexpress:uuid:6f1d3b0e-9a52-4c1e-8a55-0c7c4b0f2d11";
pub(crate) const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Property offsets.
pub(crate) const CAP: u32 = 0x00;
pub(crate) const VS: u32 = 0x08;
pub(crate) const CC: u32 = 0x14;
pub(crate) const CSTS: u32 = 0x1C;
/// CC with EN, IOSQES 6 and IOCQES 4.
pub(crate) const CC_ENABLE: u32 = 0x0046_0001;
/// CATTR: disable SQ flow control.
pub(crate) const SQ_FLOW_OFF: u8 = 4;

/// How queues are connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) ic: IcReq,
    /// 0's based.
    pub(crate) sqsize: u16,
    pub(crate) cattr: u8,
    /// Milliseconds; admin queues only.
    pub(crate) kato: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ic: IcReq::default(),
            sqsize: 31,
            cattr: 0,
            kato: 60_000,
        }
    }
}

impl Options {
    pub(crate) fn digests(hdgst: bool, ddgst: bool) -> Self {
        Self {
            ic: IcReq::digests(hdgst, ddgst),
            ..Self::default()
        }
    }

    pub(crate) fn flow_off() -> Self {
        Self {
            cattr: SQ_FLOW_OFF,
            ..Self::default()
        }
    }
}

/// An enabled controller.
pub(crate) struct Host {
    pub(crate) admin: Conn,
    pub(crate) cntlid: u16,
    subnqn: String,
}

impl Host {
    pub(crate) fn new(target: &Target) -> Self {
        Self::connect(target, &Options::default())
    }

    /// Admin queue, enabled.
    pub(crate) fn connect(target: &Target, options: &Options) -> Self {
        let mut host = Self::connect_disabled(target, &target.nqn, options);
        host.enable();
        host
    }

    /// A discovery controller, enabled.
    pub(crate) fn discovery(target: &Target) -> Self {
        let mut host = Self::connect_disabled(target, DISCOVERY_NQN, &Options::default());
        host.enable();
        host
    }

    /// Admin queue, CC.EN still 0.
    pub(crate) fn connect_disabled(target: &Target, subnqn: &str, options: &Options) -> Self {
        let admin = Conn::open(target.addr, options.ic);
        Self::connect_on(admin, subnqn, options)
    }

    /// Connect, as admin queue, on a connection that has its ICResp.
    pub(crate) fn connect_on(mut admin: Conn, subnqn: &str, options: &Options) -> Self {
        let sqe = Sqe::connect(0, 0, options.sqsize, options.cattr, options.kato);
        let data = connect_data(1, 0xFFFF, subnqn, HOSTNQN);
        let reply = admin.run(sqe, &data).ok();
        let cntlid = reply.cqe.dw0 as u16;
        assert!((1..=0xFFEF).contains(&cntlid), "CNTLID {cntlid:#x}");
        assert_eq!(reply.cqe.dw0 >> 16, 0, "no authentication is asked for");
        Self {
            admin,
            cntlid,
            subnqn: subnqn.to_owned(),
        }
    }

    pub(crate) fn enable(&mut self) {
        self.set(CC, CC_ENABLE).ok();
        assert_eq!(self.get(CSTS) & 3, 1, "ready, and not failed");
    }

    /// A property of four bytes.
    #[track_caller]
    pub(crate) fn get(&mut self, offset: u32) -> u32 {
        let reply = self.admin.run(Sqe::property_get(0, offset, false), &[]);
        reply.ok().cqe.dw0
    }

    /// Waits until the bits `mask` of a property are `value`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, offset: u32, mask: u32, value: u32) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let property = self.get(offset);
            if property & mask == value {
                return;
            }
            assert!(Instant::now() < deadline, "still {property:#x}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// CAP.
    #[track_caller]
    pub(crate) fn cap(&mut self) -> u64 {
        let reply = self.admin.run(Sqe::property_get(0, CAP, true), &[]).ok();
        u64::from(reply.cqe.dw0) | u64::from(reply.cqe.dw1) << 32
    }

    pub(crate) fn set(&mut self, offset: u32, value: u32) -> Reply {
        self.admin.run(Sqe::property_set(0, offset, value), &[])
    }

    /// Connect data for an I/O queue of this controller.
    pub(crate) fn io_data(&self) -> Vec<u8> {
        connect_data(1, self.cntlid, &self.subnqn, HOSTNQN)
    }

    /// An I/O queue.
    #[track_caller]
    pub(crate) fn io(&self, target: &Target, qid: u16, options: &Options) -> Conn {
        let mut conn = Conn::open(target.addr, options.ic);
        self.join(&mut conn, qid, options).ok();
        conn
    }

    /// Connect, as I/O queue, on a connection that has its ICResp.
    #[track_caller]
    pub(crate) fn join(&self, conn: &mut Conn, qid: u16, options: &Options) -> Reply {
        let sqe = Sqe::connect(0, qid, options.sqsize, options.cattr, 0);
        conn.run(sqe, &self.io_data())
    }
}

/// A controller and its first I/O queue.
pub(crate) fn host_with_queue(target: &Target, options: &Options) -> (Host, Conn) {
    let host = Host::connect(target, options);
    let io = host.io(target, 1, options);
    (host, io)
}

/// A fresh host connects and reads back what it wrote, and no thread of the target panicked.
#[track_caller]
pub(crate) fn still_serves(target: &Target) {
    static ROUND: AtomicU64 = AtomicU64::new(0);
    let round = ROUND.fetch_add(1, Ordering::Relaxed);
    target.assert_healthy();
    let (_host, mut io) = host_with_queue(target, &Options::default());
    let slba = 1024 + round % 64 * 64;
    let data = pattern(round, 8192);
    io.write(slba, &data);
    io.write_in_capsule(slba + 16, &data[..4096]);
    assert!(io.read(slba, data.len()) == data, "wrong data");
    assert!(io.read(slba + 16, 4096) == data[..4096], "wrong data");
    target.assert_healthy();
}
