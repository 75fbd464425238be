//! The Error Information log (NVMe Base 2.1, section 5.1.12.1.2), as a ring.
use crate::wire::ids::{Cid, Nsid, Qid};
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;

/// Errors that are kept (ELPE + 1); older ones are forgotten.
pub(super) const ENTRIES: usize = 16;

/// One command that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    /// Numbers the errors of the controller, from 1.
    pub(super) count: u64,
    pub(super) qid: Qid,
    pub(super) cid: Cid,
    pub(super) status: Status,
    pub(super) opcode: u8,
    pub(super) nsid: Nsid,
    /// Starting LBA, of I/O commands.
    pub(super) lba: u64,
}

/// The last [`ENTRIES`] errors.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    recent: heapless::Deque<Failure, ENTRIES>,
    count: u64,
}

impl ErrorLog {
    /// Records that the command `sqe` of queue `qid` ended with `status`.
    pub(super) fn note(&mut self, qid: Qid, sqe: &Sqe, status: Status) {
        self.count = self.count.saturating_add(1);
        let fabrics = sqe.is_fabrics();
        let failure = Failure {
            count: self.count,
            qid,
            cid: sqe.cid(),
            status,
            opcode: sqe.opcode,
            nsid: if fabrics { Nsid(0) } else { sqe.nsid() },
            lba: if qid.is_admin() || fabrics {
                0
            } else {
                slba(sqe)
            },
        };
        if self.recent.is_full() {
            self.recent.pop_back();
        }
        // Has room now.
        let _ = self.recent.push_front(failure);
    }

    /// Errors since the controller was created.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The latest first.
    pub(super) fn recent(&self) -> impl Iterator<Item = &Failure> {
        self.recent.iter()
    }
}

fn slba(sqe: &Sqe) -> u64 {
    u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get())
}
