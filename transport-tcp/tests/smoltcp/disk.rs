//! A namespace in memory, as slow and as busy as a test wants.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use nvmf_core::block::{
    BlockDevice, Completion, Extent, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_core::time::Instant;
use nvmf_tcp::smoltcp::memory::Buffer;

pub(crate) const BLOCK: usize = 512;

/// What the test sees of it.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub now: Instant,
    pub bytes: Vec<u8>,
    /// How long an operation takes, in microseconds; 0 is at once.
    pub delay: u64,
    /// Operations that it takes at a time.
    pub room: usize,
    /// What operations end with, if not with success.
    pub fault: Option<MediaError>,
    pending: VecDeque<(Instant, Request<Buffer<'static>>)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Disk(pub Rc<RefCell<State>>);

impl Disk {
    pub(crate) fn new(blocks: usize) -> Self {
        Self(Rc::new(RefCell::new(State {
            bytes: vec![0; blocks * BLOCK],
            room: usize::MAX,
            ..State::default()
        })))
    }
}

impl State {
    fn perform(&mut self, mut request: Request<Buffer<'static>>) -> Completion<Buffer<'static>> {
        let result = match self.fault {
            Some(fault) => Err(fault),
            None => self.run(&mut request),
        };
        request.complete(result)
    }

    fn run(&mut self, request: &mut Request<Buffer<'static>>) -> Result<(), MediaError> {
        let range = |extent: Extent| extent.byte as usize..(extent.byte + extent.len) as usize;
        let buffer = request.buffer.as_mut();
        match request.op {
            Op::Read(extent) => {
                let stored = &self.bytes[range(extent)];
                buffer.unwrap()[..stored.len()].copy_from_slice(stored);
            }
            Op::Write { extent, .. } => {
                let stored = &mut self.bytes[range(extent)];
                stored.copy_from_slice(&buffer.unwrap()[..stored.len()]);
            }
            _ => return Err(MediaError::Unsupported),
        }
        Ok(())
    }
}

impl BlockDevice for Disk {
    type Buffer = Buffer<'static>;

    fn geometry(&self) -> Geometry {
        Geometry {
            block_shift: 9,
            blocks: (self.0.borrow().bytes.len() / BLOCK) as u64,
            read_only: false,
            volatile_cache: false,
            deallocate_zeroes: false,
            optimal_blocks: 0,
        }
    }

    fn submit(&mut self, request: Request<Buffer<'static>>) -> Submit<Buffer<'static>> {
        let mut state = self.0.borrow_mut();
        if state.pending.len() >= state.room {
            return Submit::Busy(request);
        }
        if state.delay == 0 {
            return Submit::Done(state.perform(request));
        }
        let due = Instant::from_micros(state.now.as_micros() + state.delay);
        state.pending.push_back((due, request));
        Submit::Pending
    }

    fn poll(&mut self) -> Option<Completion<Buffer<'static>>> {
        let mut state = self.0.borrow_mut();
        let now = state.now;
        let (_, request) = state.pending.pop_front_if(|(due, _)| *due <= now)?;
        Some(state.perform(request))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = self.0.borrow();
        state.pending.front().map(|(due, _)| *due)
    }
}
