//! A worker's handles on the namespaces.
use nvmf_core::block::{Completion, Extent, MediaError, Request, Submit};
use nvmf_core::target::NamespaceRef;
use nvmf_core::time::{Instant, sooner};

use super::buffer::Buffer;
use super::catalog::Subsystem;
use super::device::Device;
use super::mapping::Lent;
use super::waker::Waker;

/// All of them; those with requests under way are polled.
#[derive(Default)]
pub(super) struct Devices {
    subsystems: Vec<Vec<Open>>,
    /// Places of devices with requests under way.
    busy: Vec<Place>,
    /// Where in `busy` polling goes on.
    turn: usize,
}

struct Open {
    device: Box<dyn Device>,
    under_way: usize,
}

/// Index of the subsystem, and of the namespace in it.
type Place = (usize, usize);

impl Devices {
    /// Opens every namespace.
    pub(super) fn open(subsystems: &[Subsystem], waker: &Waker) -> Self {
        let open = |subsystem: &Subsystem| {
            let namespaces = subsystem.namespaces.iter();
            namespaces
                .map(|namespace| Open {
                    device: namespace.open(waker),
                    under_way: 0,
                })
                .collect()
        };
        Self {
            subsystems: subsystems.iter().map(open).collect(),
            busy: Vec::new(),
            turn: 0,
        }
    }

    /// Starts an operation. A namespace that does not exist gives the request
    /// back as busy; the catalog has no such namespace, so nobody asks.
    pub(super) fn submit(
        &mut self,
        namespace: NamespaceRef,
        request: Request<Buffer>,
    ) -> Submit<Buffer> {
        let Some((place, open)) = self.find(namespace) else {
            return Submit::Busy(request);
        };
        let outcome = open.device.submit(request);
        if matches!(outcome, Submit::Pending) {
            open.under_way += 1;
            if open.under_way == 1 {
                self.busy.push(place);
            }
        }
        outcome
    }

    /// Writes what is only lent, if the device can do that at once.
    pub(super) fn store(
        &mut self,
        namespace: NamespaceRef,
        extent: Extent,
        data: &[u8],
        fua: bool,
    ) -> Option<Result<(), MediaError>> {
        let (_, open) = self.find(namespace)?;
        open.device.store(extent, data, fua)
    }

    /// The next operation that ended, of each device in turn.
    pub(super) fn poll(&mut self) -> Option<Completion<Buffer>> {
        for _ in 0..self.busy.len() {
            self.turn %= self.busy.len();
            let (subsystem, namespace) = self.busy[self.turn];
            let open = &mut self.subsystems[subsystem][namespace];
            let Some(completion) = open.device.poll() else {
                self.turn += 1;
                continue;
            };
            open.under_way -= 1;
            if open.under_way == 0 {
                self.busy.swap_remove(self.turn);
            } else {
                self.turn += 1;
            }
            return Some(completion);
        }
        None
    }

    /// When [`Devices::poll`] should be called even if nothing wakes the worker.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.busy
            .iter()
            .fold(None, |soonest, &(subsystem, namespace)| {
                let device = &self.subsystems[subsystem][namespace].device;
                sooner(soonest, device.next_deadline())
            })
    }

    /// Tells all devices that the worker serves nobody.
    pub(super) fn rest(&mut self) {
        for open in self.subsystems.iter_mut().flatten() {
            open.device.rest();
        }
    }

    /// Whether the namespace's memory can be sent from.
    pub(super) fn lends(&self, namespace: NamespaceRef) -> bool {
        self.get(namespace).is_some_and(|device| device.lends())
    }

    /// The namespace's memory, to send from.
    pub(super) fn lend(&self, namespace: NamespaceRef, byte: u64, len: usize) -> Option<Lent<'_>> {
        self.get(namespace)?.lend(byte, len)
    }

    /// Copies out the namespace's memory; false where there is none.
    pub(super) fn copy(&self, namespace: NamespaceRef, byte: u64, into: &mut [u8]) -> bool {
        let device = self.get(namespace);
        device.is_some_and(|device| device.copy(byte, into))
    }

    fn get(&self, namespace: NamespaceRef) -> Option<&dyn Device> {
        let index = usize::try_from(namespace.nsid.0).ok()?.checked_sub(1)?;
        let open = self.subsystems.get(namespace.subsystem)?.get(index)?;
        Some(&*open.device)
    }

    fn find(&mut self, namespace: NamespaceRef) -> Option<(Place, &mut Open)> {
        let index = usize::try_from(namespace.nsid.0).ok()?.checked_sub(1)?;
        let open = self
            .subsystems
            .get_mut(namespace.subsystem)?
            .get_mut(index)?;
        Some(((namespace.subsystem, index), open))
    }
}
