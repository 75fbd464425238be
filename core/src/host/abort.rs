//! Commands that were not answered in time (section 5.1): each is given an Abort and some
//! more time, and if it still does not end, the controller is given up.
//!
//! One Abort is under way at a time, which every controller's limit (ACL) allows.
use core::time::Duration;

use heapless::Vec;

use super::{Error, Request, command};
use crate::time::{Instant, sooner};
use crate::wire::ids::{Cid, Qid};

/// Commands that are being aborted at a time. With more, the controller is given up at once.
const CAPACITY: usize = 16;

/// The machine.
#[derive(Debug)]
pub(super) struct Aborts {
    /// How long a command is given to end, from when it was due.
    patience: Duration,
    late: Vec<Late, CAPACITY>,
    under_way: bool,
}

/// A command that should have ended.
#[derive(Clone, Copy, Debug)]
struct Late {
    qid: Qid,
    cid: Cid,
    until: Instant,
    asked: bool,
}

impl Aborts {
    pub(super) const fn new(patience: Duration) -> Self {
        Self {
            patience,
            late: Vec::new(),
            under_way: false,
        }
    }

    /// A command was not answered in time.
    ///
    /// # Errors
    /// [`Error::Unanswered`]: there are too many of them.
    pub(super) fn timed_out(&mut self, qid: Qid, cid: Cid, now: Instant) -> Result<(), Error> {
        let until = now.after(self.patience);
        let asked = false;
        let late = Late {
            qid,
            cid,
            until,
            asked,
        };
        let known = |other: &Late| (other.qid, other.cid) == (qid, cid);
        if self.late.iter().any(known) {
            return Ok(());
        }
        self.late
            .push(late)
            .map_err(|_| Error::Unanswered { qid, cid })
    }

    /// A command ended after all.
    pub(super) fn ended(&mut self, qid: Qid, cid: Cid) {
        self.late.retain(|late| (late.qid, late.cid) != (qid, cid));
    }

    /// The next Abort to submit.
    pub(super) fn poll_command(&mut self) -> Option<Request> {
        if self.under_way {
            return None;
        }
        let next = self.late.iter_mut().find(|late| !late.asked)?;
        next.asked = true;
        self.under_way = true;
        Some(Request::bare(command::abort(next.qid, next.cid)))
    }

    /// An Abort was answered. Whether the controller could abort the command or not, the
    /// command itself has to end.
    pub(super) fn completed(&mut self) {
        self.under_way = false;
    }

    /// When an Abort is to be submitted or a command's time is over.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let waits = !self.under_way && self.late.iter().any(|late| !late.asked);
        let due = waits.then_some(Instant::ZERO);
        let until = self.late.iter().map(|late| late.until).min();
        sooner(due, until)
    }

    /// Time passed.
    ///
    /// # Errors
    /// [`Error::Unanswered`]: a command neither ended nor was aborted.
    pub(super) fn handle_timeout(&self, now: Instant) -> Result<(), Error> {
        match self.late.iter().find(|late| late.until <= now) {
            Some(&Late { qid, cid, .. }) => Err(Error::Unanswered { qid, cid }),
            None => Ok(()),
        }
    }
}
