//! Asynchronous Event Requests (NVMe Base 2.1, section 5.1.2).
use heapless::Vec;

use super::{Reply, SubsystemKind};
use crate::wire::ids::Cid;
use crate::wire::log::{self as wire, AsyncEvent, LogId};
use crate::wire::status::Status;

/// Requests that are held at a time (AERL + 1).
pub const LIMIT: usize = 4;

/// The requests an admin queue holds, and the one notice its controller can have.
#[derive(Debug)]
pub(super) struct Events {
    held: Vec<Held, LIMIT>,
    aborted: Vec<u16, LIMIT>,
    /// Of the catalog when it was last looked at.
    generation: u64,
    /// Of the catalog when the host was last up to date.
    acknowledged: u64,
    notice: Notice,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    slot: u16,
    cid: Cid,
}

/// What the host knows of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// All.
    None,
    /// Nothing, for want of a request to complete.
    Due,
    /// That there was one. Until it reads the log it will not hear of another.
    Reported,
}

impl Events {
    pub(super) fn new(generation: u64) -> Self {
        Self {
            held: Vec::new(),
            aborted: Vec::new(),
            generation,
            acknowledged: generation,
            notice: Notice::None,
        }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// Asynchronous Event Request Limit Exceeded when [`LIMIT`] are outstanding.
    pub(super) fn hold(&mut self, slot: u16, cid: Cid) -> Result<(), Status> {
        // One that was aborted but not yet completed still counts, so that
        // there is room for every request that may be aborted later.
        let outstanding = self.held.len().saturating_add(self.aborted.len());
        if outstanding >= LIMIT {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr());
        }
        self.held
            .push(Held { slot, cid })
            .map_err(|_| Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr())
    }

    /// Aborts the request with that id, if it is held.
    pub(super) fn abort(&mut self, cid: Cid) -> bool {
        let Some(at) = self.held.iter().position(|held| held.cid == cid) else {
            return false;
        };
        let held = self.held.remove(at);
        self.aborted.push(held.slot).is_ok()
    }

    /// Forgets the notice and aborts every request: the controller is reset,
    /// shut down, or has failed.
    pub(super) fn reset(&mut self, generation: u64) {
        while let Some(held) = self.held.pop() {
            // Has room: `hold` counts both lists.
            let _ = self.aborted.push(held.slot);
        }
        self.acknowledge(generation);
    }

    /// The next request to complete. `wanted` says whether the host asked to
    /// hear of changes.
    pub(super) fn poll(
        &mut self,
        kind: SubsystemKind,
        generation: u64,
        wanted: bool,
    ) -> Option<(u16, Reply)> {
        if let Some(slot) = self.aborted.pop() {
            return Some((slot, Reply::status(Status::ABORT_REQUESTED)));
        }
        if self.generation != generation {
            self.generation = generation;
            if wanted && self.notice == Notice::None {
                self.notice = Notice::Due;
            }
        }
        if self.notice != Notice::Due || self.held.is_empty() {
            return None;
        }
        self.notice = Notice::Reported;
        let held = self.held.remove(0);
        Some((held.slot, Reply::success(notice(kind).into())))
    }

    /// Whether the catalog changed since the host was last up to date.
    pub(super) fn has_changed(&self, generation: u64) -> bool {
        self.acknowledged != generation
    }

    /// The host read the log that tells of changes and let its event go.
    pub(super) fn acknowledge(&mut self, generation: u64) {
        self.generation = generation;
        self.acknowledged = generation;
        self.notice = Notice::None;
    }
}

/// Dword 0 of a completion that tells of a change.
fn notice(kind: SubsystemKind) -> u32 {
    let event = match kind {
        SubsystemKind::Nvm => {
            AsyncEvent::notice(wire::Notice::NamespaceAttribute, LogId::ChangedNamespaces)
        }
        SubsystemKind::Discovery => AsyncEvent::notice(wire::Notice::Discovery, LogId::Discovery),
    };
    event.to_dw0()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NVM: SubsystemKind = SubsystemKind::Nvm;

    #[test]
    fn the_fifth_request_is_refused() {
        let mut events = Events::new(0);
        for slot in 0..4 {
            assert_eq!(events.hold(slot, Cid(slot)), Ok(()));
        }
        assert!(events.abort(Cid(2)));
        let refused = Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr());
        assert_eq!(events.hold(4, Cid(4)), refused);
        let aborted = Reply::status(Status::ABORT_REQUESTED);
        assert_eq!(events.poll(NVM, 0, true), Some((2, aborted)));
        assert_eq!(events.poll(NVM, 0, true), None);
        assert_eq!(events.hold(4, Cid(4)), Ok(()));
    }

    #[test]
    fn only_what_is_held_can_be_aborted() {
        let mut events = Events::new(0);
        assert!(!events.abort(Cid(7)));
        events.hold(1, Cid(7)).unwrap();
        assert!(events.abort(Cid(7)));
        assert!(!events.abort(Cid(7)));
    }

    #[test]
    fn a_change_is_told_once_until_the_log_is_read() {
        let mut events = Events::new(5);
        events.hold(1, Cid(1)).unwrap();
        events.hold(2, Cid(2)).unwrap();
        assert_eq!(events.poll(NVM, 5, true), None);
        // Notice, Attached Namespace Attribute Changed, log page 04h.
        let told = Reply::success(0x04_00_02);
        assert_eq!(events.poll(NVM, 6, true), Some((1, told)));
        assert_eq!(events.poll(NVM, 7, true), None);
        assert!(events.has_changed(7));
        events.acknowledge(7);
        assert!(!events.has_changed(7));
        assert_eq!(events.poll(NVM, 7, true), None);
        assert_eq!(events.poll(NVM, 8, true), Some((2, told)));
    }

    #[test]
    fn a_change_waits_for_a_request() {
        let mut events = Events::new(0);
        assert_eq!(events.poll(SubsystemKind::Discovery, 1, true), None);
        events.hold(9, Cid(1)).unwrap();
        // Notice, Discovery Log Page Change, log page 70h.
        let told = Reply::success(0x70_F0_02);
        let polled = events.poll(SubsystemKind::Discovery, 1, true);
        assert_eq!(polled, Some((9, told)));
    }

    #[test]
    fn what_the_host_did_not_ask_for_is_not_told_later_either() {
        let mut events = Events::new(0);
        events.hold(9, Cid(1)).unwrap();
        assert_eq!(events.poll(NVM, 1, false), None);
        assert_eq!(events.poll(NVM, 1, true), None);
    }

    #[test]
    fn a_reset_aborts_every_request() {
        let mut events = Events::new(0);
        for slot in 0..4 {
            events.hold(slot, Cid(slot)).unwrap();
        }
        events.reset(3);
        let mut slots: std::vec::Vec<_> =
            core::iter::from_fn(|| events.poll(NVM, 3, true)).collect();
        slots.sort_by_key(|(slot, _)| *slot);
        let aborted = Reply::status(Status::ABORT_REQUESTED);
        assert_eq!(slots, [0, 1, 2, 3].map(|slot| (slot, aborted)));
    }
}
