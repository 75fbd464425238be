//! Two nodes that are connected.
use core::time::Duration;

use nvmf_core::rdma::Remote;
use nvmf_core::time::Instant;
use nvmf_rdma::Cm;
use nvmf_rdma::cm::{Event, PrivateData, Setup, Terms};
use nvmf_rdma::sim::{
    Address, Buffer, Fabric, LIMITS, Manager, Nic, Qp, Region, Request, Statistics,
};
use nvmf_rdma::verbs::{Access, Chain, Completion, Error, Key, Receiver, Verbs};

/// The end that connected.
pub(crate) const A: usize = 0;
/// The end that accepted.
pub(crate) const B: usize = 1;

pub(crate) struct World {
    pub(crate) fabric: Fabric,
    now: Instant,
    ends: [End; 2],
}

struct End {
    nic: Nic,
    manager: Manager,
    qp: Qp,
    shared: Region,
    windowed: Region,
    local: Region,
}

impl World {
    pub(crate) const LISTENER: Address = Address(5);
    pub(crate) const SENDS: u32 = 8;
    pub(crate) const RECEIVES: u32 = 9;

    pub(crate) fn new() -> Self {
        Self::deep(16, 16)
    }

    /// B has so many READs under way, and A answers so many.
    pub(crate) fn deep(reads: u8, answers: u8) -> Self {
        let fabric = Fabric::new();
        let now = Instant::ZERO;
        let (mut nic, mut manager) = fabric.node(LIMITS);
        let (mut other_nic, mut other_manager) = fabric.node(LIMITS);
        other_manager.listen(Self::LISTENER).unwrap();
        let (setup, terms) = (Self::setup(A as u32), Self::terms(answers));
        let qp = manager.connect(&mut nic, Self::LISTENER, setup, terms);
        let qp = qp.unwrap();
        let Some(Event::Request { request, terms }) = other_manager.poll(now) else {
            panic!("nobody comes");
        };
        assert_eq!(terms.private_data.bytes(), [1, 2, 3]);
        let of_b = Self::setup(B as u32);
        let other = other_manager
            .prepare(&mut other_nic, request, of_b)
            .unwrap();
        let terms = Self::terms(reads);
        other_manager.accept(&mut other_nic, other, terms).unwrap();
        for manager in [&mut manager, &mut other_manager] {
            let event = manager.poll(now).unwrap();
            assert!(matches!(event, Event::Established { .. }), "{event:?}");
        }
        let end = |mut nic: Nic, manager, qp| End {
            shared: nic.register(vec![0; 1 << 20], Access::SHARED).unwrap(),
            windowed: nic.register(vec![0; 1 << 16], Access::WINDOWED).unwrap(),
            local: nic.register(vec![0; 1 << 20], Access::LOCAL).unwrap(),
            nic,
            manager,
            qp,
        };
        let ends = [end(nic, manager, qp), end(other_nic, other_manager, other)];
        Self { fabric, now, ends }
    }

    pub(crate) fn setup(tag: u32) -> Setup {
        Setup {
            tag,
            sends: Self::SENDS,
            receives: Self::RECEIVES,
        }
    }

    pub(crate) fn terms(reads: u8) -> Terms {
        Terms {
            initiator_depth: reads,
            responder_resources: reads,
            private_data: PrivateData::new(&[1, 2, 3]),
        }
    }

    pub(crate) fn end(&mut self, end: usize) -> (&mut Nic, Qp) {
        (&mut self.ends[end].nic, self.ends[end].qp)
    }

    pub(crate) fn queue_pair(&self, end: usize) -> Qp {
        self.ends[end].qp
    }

    pub(crate) fn shared_buffer(&mut self, end: usize, len: u32) -> Buffer {
        let End { nic, shared, .. } = &mut self.ends[end];
        nic.carve(shared, len).expect("there is enough")
    }

    pub(crate) fn windowed_buffer(&mut self, end: usize, len: u32) -> Buffer {
        let End { nic, windowed, .. } = &mut self.ends[end];
        nic.carve(windowed, len).expect("there is enough")
    }

    pub(crate) fn buffer(&mut self, end: usize, len: u32) -> Buffer {
        let End { nic, local, .. } = &mut self.ends[end];
        nic.carve(local, len).expect("there is enough")
    }

    pub(crate) fn receive(&mut self, end: usize, len: u32) {
        let buffer = self.buffer(end, len);
        let (nic, qp) = self.end(end);
        let posted = nic.post_receive(Receiver::Of(qp), 0, buffer);
        posted.unwrap();
    }

    pub(crate) fn post(
        &mut self,
        end: usize,
        chain: Chain<Buffer>,
    ) -> Result<(), (Option<Buffer>, Error)> {
        let (nic, qp) = self.end(end);
        nic.post(qp, chain)
    }

    pub(crate) fn lend(&mut self, end: usize, len: u32, access: Access, key: Key) -> Remote {
        let buffer = match key {
            Key::Region => self.shared_buffer(end, len),
            Key::Window => self.windowed_buffer(end, len),
        };
        let (nic, qp) = self.end(end);
        nic.lend(qp, buffer, len, access, key).unwrap()
    }

    pub(crate) fn poll(&mut self, end: usize) -> Option<Completion<Buffer>> {
        let now = self.now;
        let completion = self.ends[end].nic.poll(now)?;
        assert_eq!(completion.tag as usize, end);
        Some(completion)
    }

    pub(crate) fn drain(&mut self, end: usize) {
        while self.poll(end).is_some() {}
    }

    pub(crate) fn settle(&mut self) {
        self.fabric.advance(self.now);
    }

    pub(crate) fn run(&mut self, by: Duration) {
        self.now = self.now.after(by);
        self.settle();
    }

    pub(crate) fn statistics(&self, end: usize) -> Statistics {
        self.fabric.statistics(&self.ends[end].nic)
    }

    pub(crate) fn event(&mut self, end: usize) -> Option<Event<Request, Qp>> {
        self.ends[end].manager.poll(self.now)
    }

    pub(crate) fn disconnect(&mut self, end: usize) {
        let End {
            nic, manager, qp, ..
        } = &mut self.ends[end];
        manager.disconnect(nic, *qp);
    }

    pub(crate) fn destroy(&mut self, end: usize) {
        let End {
            nic, manager, qp, ..
        } = &mut self.ends[end];
        manager.destroy(nic, *qp);
    }
}
