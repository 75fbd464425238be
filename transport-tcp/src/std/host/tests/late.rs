//! A write that a device still has when its connection ends.
use std::sync::{Condvar, Mutex};

use nvmf_core::wire::property::Property;

use super::super::IoQueue;
use super::*;

/// Longer than anything here takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A namespace that keeps writes until it is told to perform them.
#[derive(Clone)]
struct Slow {
    memory: Memory,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    kept: Vec<(Request<Buffer>, Waker)>,
    open: bool,
}

impl Gate {
    fn wait_for_a_write(&self) {
        let state = self.state.lock().unwrap();
        let none = |state: &mut State| state.kept.is_empty();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, none);
        assert!(!waited.unwrap().1.timed_out(), "no write");
    }

    fn open(&self) {
        let mut state = self.state.lock().unwrap();
        state.open = true;
        state.kept.iter().for_each(|(_, waker)| waker.wake());
    }
}

struct Handle {
    slow: Slow,
    waker: Waker,
}

impl device::Namespace for Slow {
    fn geometry(&self) -> Geometry {
        device::Namespace::geometry(&self.memory)
    }

    fn identity(&self) -> device::Identity {
        device::Namespace::identity(&self.memory)
    }

    fn open(&self, waker: &Waker) -> Box<dyn Device> {
        Box::new(Handle {
            slow: self.clone(),
            waker: waker.clone(),
        })
    }
}

impl BlockDevice for Handle {
    type Buffer = Buffer;

    fn geometry(&self) -> Geometry {
        device::Namespace::geometry(&self.slow.memory)
    }

    fn submit(&mut self, request: Request<Buffer>) -> Submit<Buffer> {
        if !matches!(request.op, Op::Write { .. }) {
            return self.slow.memory.submit(request);
        }
        let mut state = self.slow.gate.state.lock().unwrap();
        state.kept.push((request, self.waker.clone()));
        self.slow.gate.changed.notify_all();
        Submit::Pending
    }

    fn poll(&mut self) -> Option<Done<Buffer>> {
        let mut state = self.slow.gate.state.lock().unwrap();
        if !state.open {
            return None;
        }
        let (mut request, _) = state.kept.pop()?;
        let result = self.slow.memory.perform(&mut request);
        Some(request.complete(result))
    }
}

impl Device for Handle {}

/// The end of the controller's side is a proof that nothing of a connection is written any
/// more: see `nvmf_core::host::recovery`.
#[test]
fn a_connection_does_not_end_before_its_writes() {
    ends_after_its_write(|_, controller, queue| {
        assert!(queue.linger());
        controller
    });
}

#[test]
fn nor_does_one_that_the_target_ends() {
    ends_after_its_write(|served, controller, _| {
        let disable = command::property_set(Property::Cc, 0);
        controller.admin(&disable, Payload::Nothing).unwrap();
        served.connect(&Options::default())
    });
}

/// `end` ends the connection of a queue, and gives a controller to ask on.
fn ends_after_its_write(end: impl FnOnce(&Served, Controller, &mut IoQueue) -> Controller) {
    let slow = Slow {
        memory: Memory(Arc::new(Mapping::new(BYTES).unwrap())),
        gate: Arc::default(),
    };
    let (memory, gate) = (slow.memory.clone(), Arc::clone(&slow.gate));
    let served = Served::start(|config| {
        config.subsystems = vec![Subsystem::new(NQN.parse().unwrap()).with(slow)];
    });
    let controller = served.connect(&Options::default());
    let mut queue = controller.queue().unwrap();
    let write = command::blocks(IoOpcode::Write, Nsid(1), 0, 1);
    let data = Buffer::from(noise(1, 512));
    queue.submit(&write, Payload::Write(data), 0).unwrap();
    gate.wait_for_a_write();

    let controller = end(&served, controller, &mut queue);
    // The target's only worker takes these after the end.
    for _ in 0..2 {
        controller.identify().unwrap();
    }
    let mut scratch = [0; 4096];
    assert!(!queue.has_ended(&mut scratch), "with a write under way");

    gate.open();
    let began = Instant::now();
    while !queue.has_ended(&mut scratch) {
        assert!(began.elapsed() < PATIENCE, "no end");
        std::thread::yield_now();
    }
    let mut stored = [0; 512];
    memory.0.read(0, &mut stored).unwrap();
    assert_eq!(stored[..], noise(1, 512));
}
