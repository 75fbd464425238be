//! Which controllers exist.
//!
//! One registry serves all subsystems of a target; a binding keeps it behind
//! its lock and calls it from [`Env`](super::Env). Storage is the binding's: an
//! array on a microcontroller, a `Vec` on a server.
use core::marker::PhantomData;
use core::ops::Deref;

use super::{ControllerState, HostIdentity, RegistryError};
use crate::wire::ids::{Cntlid, Qid};

/// I/O queues a controller can have, whatever
/// [`Limits::io_queues`](super::Limits::io_queues) says.
pub const MAX_IO_QUEUES: u16 = 128;

/// Controllers of all subsystems. `H` is a handle to a controller's shared
/// state, `S` the storage, such as `[Option<Entry<H>>; 4]`.
#[derive(Debug)]
pub struct Registry<H, S> {
    slots: S,
    /// The controller id given last.
    last: u16,
    handle: PhantomData<H>,
}

/// A controller, or what is left of one whose admin queue is gone.
#[derive(Debug)]
pub struct Entry<H> {
    handle: H,
    host: HostIdentity,
    has_admin_queue: bool,
    io_queues: QueueSet,
}

impl<H> Entry<H> {
    /// The shared state.
    pub fn handle(&self) -> &H {
        &self.handle
    }

    /// The host it belongs to.
    pub fn host(&self) -> &HostIdentity {
        &self.host
    }

    /// I/O queues connected.
    pub fn io_queues(&self) -> u32 {
        self.io_queues.len()
    }

    /// Whether this I/O queue is connected.
    pub fn has_io_queue(&self, qid: Qid) -> bool {
        self.io_queues.has(qid)
    }
}

impl<H, S> Registry<H, S>
where
    H: Deref<Target = ControllerState>,
    S: AsRef<[Option<Entry<H>>]> + AsMut<[Option<Entry<H>>]>,
{
    /// An empty registry that holds as many controllers as `slots` is long.
    pub fn new(mut slots: S) -> Self {
        slots.as_mut().fill_with(|| None);
        Self {
            slots,
            last: 0,
            handle: PhantomData,
        }
    }

    /// Creates a controller of `subsystem` with an id from `range` (first,
    /// last), and its state with `make`. Ids rotate through the range, so that
    /// one that was given back is not reused soon, and one whose queues are
    /// not all gone is not reused at all.
    ///
    /// # Errors
    /// [`RegistryError::Busy`] without a free id or slot.
    pub fn create(
        &mut self,
        subsystem: usize,
        range: (Cntlid, Cntlid),
        host: &HostIdentity,
        make: impl FnOnce(Cntlid) -> H,
    ) -> Result<&H, RegistryError> {
        let cntlid = self
            .free_cntlid(subsystem, range)
            .ok_or(RegistryError::Busy)?;
        let slot = self
            .slots
            .as_mut()
            .iter_mut()
            .find(|slot| slot.is_none())
            .ok_or(RegistryError::Busy)?;
        self.last = cntlid.0;
        let entry = slot.insert(Entry {
            handle: make(cntlid),
            host: host.clone(),
            has_admin_queue: true,
            io_queues: QueueSet::default(),
        });
        Ok(&entry.handle)
    }

    /// Adds I/O queue `qid` to a controller, which must be `host`'s.
    ///
    /// # Errors
    /// [`RegistryError::UnknownController`], also when it belongs to another
    /// host (Base 2.1, 6.3: HOSTNQN and HOSTID are those of the admin queue);
    /// [`RegistryError::NotReady`] while it is disabled;
    /// [`RegistryError::QueueInUse`], also for a qid of 0 or above [`MAX_IO_QUEUES`].
    pub fn join(
        &mut self,
        subsystem: usize,
        host: &HostIdentity,
        cntlid: Cntlid,
        qid: Qid,
    ) -> Result<&H, RegistryError> {
        let entry = self
            .slots
            .as_mut()
            .iter_mut()
            .flatten()
            .find(|entry| is(entry, subsystem, cntlid))
            .filter(|entry| entry.has_admin_queue)
            .filter(|entry| entry.host.nqn == host.nqn && entry.host.id == host.id)
            .ok_or(RegistryError::UnknownController)?;
        if !entry.handle.is_ready() {
            return Err(RegistryError::NotReady);
        }
        if !entry.io_queues.insert(qid) {
            return Err(RegistryError::QueueInUse);
        }
        entry.handle.io_queue_joined();
        Ok(&entry.handle)
    }

    /// A queue is gone. With its admin queue (qid 0) a controller's epoch
    /// ends; the caller tells the I/O queues that are left.
    pub fn leave(&mut self, controller: &ControllerState, qid: Qid) {
        for slot in self.slots.as_mut() {
            let Some(entry) = slot
                .as_mut()
                .filter(|entry| is(entry, controller.subsystem, controller.cntlid))
            else {
                continue;
            };
            if qid.is_admin() {
                entry.has_admin_queue = false;
                entry.handle.end_epoch();
            } else if entry.io_queues.remove(qid) {
                entry.handle.io_queue_left();
            }
            if !entry.has_admin_queue && entry.io_queues.len() == 0 {
                *slot = None;
            }
            return;
        }
    }

    /// The controllers that exist, in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry<H>> {
        self.slots.as_ref().iter().flatten()
    }

    fn free_cntlid(&self, subsystem: usize, range: (Cntlid, Cntlid)) -> Option<Cntlid> {
        let (first, last) = (range.0.0, range.1.0);
        let start = match self.last.checked_add(1) {
            Some(next) if (first..=last).contains(&next) => next,
            _ => first,
        };
        (start..=last)
            .chain(first..start)
            .map(Cntlid)
            .find(|&cntlid| !self.entries().any(|entry| is(entry, subsystem, cntlid)))
    }
}

fn is<H: Deref<Target = ControllerState>>(
    entry: &Entry<H>,
    subsystem: usize,
    cntlid: Cntlid,
) -> bool {
    entry.handle.cntlid == cntlid && entry.handle.subsystem == subsystem
}

/// I/O queue ids, 1 to [`MAX_IO_QUEUES`].
#[derive(Clone, Copy, Debug, Default)]
struct QueueSet([u32; MAX_IO_QUEUES as usize / 32]);

impl QueueSet {
    /// Adds `qid`; false if it is there or cannot be.
    fn insert(&mut self, qid: Qid) -> bool {
        self.word(qid)
            .filter(|(word, bit)| **word & bit == 0)
            .map(|(word, bit)| *word |= bit)
            .is_some()
    }

    /// Takes `qid` out; false if it is not there.
    fn remove(&mut self, qid: Qid) -> bool {
        self.word(qid)
            .filter(|(word, bit)| **word & bit != 0)
            .map(|(word, bit)| *word &= !bit)
            .is_some()
    }

    fn has(mut self, qid: Qid) -> bool {
        self.word(qid).is_some_and(|(word, bit)| *word & bit != 0)
    }

    fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    fn word(&mut self, qid: Qid) -> Option<(&mut u32, u32)> {
        let index = qid.0.checked_sub(1)?;
        let word = self.0.get_mut(usize::from(index / 32))?;
        Some((word, 1u32.rotate_left(u32::from(index % 32))))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::test_env::host;
    use super::*;

    type Handle = Rc<ControllerState>;

    fn registry<const N: usize>() -> Registry<Handle, [Option<Entry<Handle>>; N]> {
        Registry::new([const { None }; N])
    }

    fn create<const N: usize>(
        registry: &mut Registry<Handle, [Option<Entry<Handle>>; N]>,
        range: (u16, u16),
    ) -> Result<Handle, RegistryError> {
        let range = (Cntlid(range.0), Cntlid(range.1));
        let make = |cntlid| Rc::new(ControllerState::new(cntlid, 3));
        registry.create(3, range, &host(), make).cloned()
    }

    #[test]
    fn ids_rotate_and_skip_what_is_alive() {
        let mut registry = registry::<3>();
        let range = (5, 7);
        let first = create(&mut registry, range).unwrap();
        let second = create(&mut registry, range).unwrap();
        assert_eq!((first.cntlid, second.cntlid), (Cntlid(5), Cntlid(6)));
        registry.leave(&first, Qid::ADMIN);
        let third = create(&mut registry, range).unwrap();
        assert_eq!(third.cntlid, Cntlid(7), "5 was used just now");
        let fourth = create(&mut registry, range).unwrap();
        assert_eq!(fourth.cntlid, Cntlid(5));
        registry.leave(&third, Qid::ADMIN);
        assert_eq!(create(&mut registry, range).unwrap().cntlid, Cntlid(7));
        let busy = create(&mut registry, (1, u16::MAX)).unwrap_err();
        assert_eq!(busy, RegistryError::Busy, "no slot");
    }

    #[test]
    fn ids_run_out() {
        let mut registry = registry::<4>();
        create(&mut registry, (9, 9)).unwrap();
        let busy = create(&mut registry, (9, 9)).unwrap_err();
        assert_eq!(busy, RegistryError::Busy);
        assert_eq!(
            create(&mut registry, (2, 1)).unwrap_err(),
            RegistryError::Busy
        );
    }

    #[test]
    fn subsystems_number_their_controllers_apart() {
        let mut registry = registry::<2>();
        create(&mut registry, (1, 1)).unwrap();
        let make = |cntlid| Rc::new(ControllerState::new(cntlid, 4));
        let range = (Cntlid(1), Cntlid(1));
        assert!(registry.create(4, range, &host(), make).is_ok());
    }

    #[test]
    fn a_queue_joins_the_controller_of_its_host() {
        let mut registry = registry::<2>();
        let controller = create(&mut registry, (1, 9)).unwrap();
        let mut join = |subsystem, host: &HostIdentity, cntlid, qid| {
            registry
                .join(subsystem, host, Cntlid(cntlid), Qid(qid))
                .map(|handle| handle.io_queues())
        };
        assert_eq!(join(3, &host(), 1, 1), Err(RegistryError::NotReady));
        controller.enable();
        assert_eq!(join(3, &host(), 1, 1), Ok(1));
        assert_eq!(join(3, &host(), 1, 128), Ok(2));
        assert_eq!(join(3, &host(), 1, 1), Err(RegistryError::QueueInUse));
        assert_eq!(join(3, &host(), 1, 0), Err(RegistryError::QueueInUse));
        assert_eq!(join(3, &host(), 1, 129), Err(RegistryError::QueueInUse));
        let unknown = Err(RegistryError::UnknownController);
        assert_eq!(join(3, &host(), 2, 2), unknown);
        assert_eq!(join(4, &host(), 1, 2), unknown);
        let other_name = HostIdentity {
            nqn: "nqn.other".parse().unwrap(),
            ..host()
        };
        assert_eq!(join(3, &other_name, 1, 2), unknown);
        let other_id = HostIdentity {
            id: [0; 16],
            ..host()
        };
        assert_eq!(join(3, &other_id, 1, 2), unknown);
    }

    #[test]
    fn every_queue_id_counts_once() {
        let mut registry = registry::<1>();
        let controller = create(&mut registry, (1, 1)).unwrap();
        controller.enable();
        for qid in 1..=MAX_IO_QUEUES {
            registry.join(3, &host(), Cntlid(1), Qid(qid)).unwrap();
        }
        assert_eq!(controller.io_queues(), 128);
        registry.leave(&controller, Qid(64));
        registry.leave(&controller, Qid(64));
        registry.leave(&controller, Qid(129));
        assert_eq!(controller.io_queues(), 127);
        assert_eq!(registry.entries().next().unwrap().io_queues(), 127);
        registry.join(3, &host(), Cntlid(1), Qid(64)).unwrap();
    }

    #[test]
    fn an_id_is_alive_until_the_last_queue_is_gone() {
        let mut registry = registry::<2>();
        let controller = create(&mut registry, (1, 1)).unwrap();
        controller.enable();
        let epoch = controller.epoch();
        registry.join(3, &host(), Cntlid(1), Qid(1)).unwrap();
        registry.leave(&controller, Qid::ADMIN);
        assert!(!controller.is_ready());
        assert_ne!(controller.epoch(), epoch);
        assert_eq!(
            create(&mut registry, (1, 1)).unwrap_err(),
            RegistryError::Busy
        );
        let late = registry.join(3, &host(), Cntlid(1), Qid(2)).unwrap_err();
        assert_eq!(late, RegistryError::UnknownController);
        registry.leave(&controller, Qid(1));
        assert_eq!(controller.io_queues(), 0);
        assert!(create(&mut registry, (1, 1)).is_ok());
    }
}
