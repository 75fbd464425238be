//! A stand-in for the loop of a worker: sleeps in epoll until it is woken.
use std::time::{Duration, Instant};

use nvmf_core::block::{Completion, MediaError, Op, Request, Submit};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::device::Device;
use nvmf_tcp::std::waker::Waker;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

/// Far more than any operation of a test takes.
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) struct Worker {
    pub(super) waker: Waker,
    epoll: OwnedFd,
}

impl Worker {
    pub(super) fn new() -> Self {
        let waker = Waker::new().unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(0), events).unwrap();
        Self { waker, epoll }
    }

    /// Sleeps until `poll` has something, relying on the waker alone.
    pub(super) fn wait<T>(&self, mut poll: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = poll() {
                return found;
            }
            assert!(Instant::now() < deadline, "nothing completed");
            if self.waker.sleep() {
                let mut events = Vec::with_capacity(1);
                let timeout = Timespec::try_from(PATIENCE).unwrap();
                let woken = epoll::wait(
                    &self.epoll,
                    rustix::buffer::spare_capacity(&mut events),
                    Some(&timeout),
                );
                assert_ne!(woken, Ok(0), "slept through a completion");
                self.waker.awake();
            }
        }
    }

    /// Submits one operation to an idle device and waits for its end.
    pub(super) fn run(
        &self,
        device: &mut dyn Device,
        op: Op,
        buffer: Option<Buffer>,
    ) -> Completion<Buffer> {
        const TAG: u64 = 0xfeed_0000_0000_0001;
        let request = Request {
            tag: TAG,
            op,
            buffer,
        };
        let completion = match device.submit(request) {
            Submit::Done(completion) => completion,
            Submit::Pending => self.wait(|| device.poll()),
            Submit::Busy(_) => panic!("an idle device is busy"),
        };
        assert_eq!(completion.tag, TAG);
        completion
    }

    pub(super) fn read(
        &self,
        device: &mut dyn Device,
        byte: u64,
        len: usize,
    ) -> Result<Vec<u8>, MediaError> {
        let mut buffer = Buffer::zeroed(len);
        buffer.as_mut().fill(0xee);
        let done = self.run(device, Op::Read(extent(byte, len)), Some(buffer));
        done.result
            .map(|()| done.buffer.expect("it comes back").as_ref().to_vec())
    }

    pub(super) fn write(
        &self,
        device: &mut dyn Device,
        byte: u64,
        data: &[u8],
        fua: bool,
    ) -> Result<(), MediaError> {
        let extent = extent(byte, data.len());
        self.run(device, Op::Write { extent, fua }, Some(buffer(data)))
            .result
    }

    pub(super) fn compare(
        &self,
        device: &mut dyn Device,
        byte: u64,
        data: &[u8],
    ) -> Result<(), MediaError> {
        let op = Op::Compare(extent(byte, data.len()));
        self.run(device, op, Some(buffer(data))).result
    }

    pub(super) fn plain(&self, device: &mut dyn Device, op: Op) -> Result<(), MediaError> {
        self.run(device, op, None).result
    }
}

pub(super) fn extent(byte: u64, len: usize) -> nvmf_core::block::Extent {
    nvmf_core::block::Extent {
        byte,
        len: len as u64,
    }
}

pub(super) fn buffer(data: &[u8]) -> Buffer {
    let mut buffer = Buffer::zeroed(data.len());
    buffer.as_mut().copy_from_slice(data);
    buffer
}

/// Says where data differs, instead of printing megabytes.
#[track_caller]
pub(super) fn assert_same(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "length");
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "first byte that differs");
}

/// Bytes that differ from block to block and from seed to seed.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
