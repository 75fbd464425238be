//! A virtio network card, for smoltcp.
#![allow(unsafe_code, reason = "a device moves the bytes")]

use core::fmt;
use core::sync::atomic::{Ordering, fence};

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::{Error, Hal};

use super::{Transport, VERSION_1, kick, negotiate};

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;

/// The device has a hardware address (virtio 1.2, section 5.1.3).
const MAC: u64 = 1 << 5;

/// Bytes of the longest frame, without its check sequence.
const FRAME: usize = 1514;
/// Bytes of what precedes a frame, at most (section 5.1.6).
const HEADER: usize = 12;
/// The same before virtio 1.0.
const OLD_HEADER: usize = 10;

/// Memory for a frame. All zero at the start, so statics of it cost no flash.
#[derive(Debug)]
#[repr(align(64))]
pub struct Frame([u8; (HEADER + FRAME).next_multiple_of(64)]);

impl Frame {
    /// All zero.
    pub const EMPTY: Self = Self([0; _]);
}

/// A card with two queues of `QUEUE` descriptors each.
pub struct Nic<H: Hal, T: Transport, const QUEUE: usize> {
    /// Dropped first: that resets the device, which lets go of all memory.
    transport: T,
    receiver: Receiver<H, QUEUE>,
    sender: Sender<H, QUEUE>,
    mac: Option<[u8; 6]>,
}

impl<H: Hal, T: Transport, const QUEUE: usize> fmt::Debug for Nic<H, T, QUEUE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("mac", &self.mac)
            .finish_non_exhaustive()
    }
}

impl<H: Hal, T: Transport, const QUEUE: usize> Nic<H, T, QUEUE> {
    /// Has the device come up, with memory for as many frames each way as its
    /// queues have descriptors.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn start(
        mut transport: T,
        received: &'static mut [Frame; QUEUE],
        to_send: &'static mut [Frame; QUEUE],
    ) -> Result<Self, Error> {
        let features = negotiate(&mut transport, MAC)?;
        let mac = if features & MAC != 0 {
            Some(transport.read_consistent(|| {
                let mut mac = [0; 6];
                for (at, byte) in mac.iter_mut().enumerate() {
                    *byte = transport.read_config_space(at)?;
                }
                Ok(mac)
            })?)
        } else {
            None
        };
        let header = if features & VERSION_1 != 0 {
            HEADER
        } else {
            OLD_HEADER
        };
        let mut receiver = Receiver {
            queue: VirtQueue::new(&mut transport, RECEIVE, false, false)?,
            frames: received,
            owners: [None; QUEUE],
            header,
            news: false,
        };
        let mut sender = Sender {
            queue: VirtQueue::new(&mut transport, TRANSMIT, false, false)?,
            frames: to_send,
            free: core::array::from_fn(|at| at as u16),
            left: QUEUE,
            sent: [None; QUEUE],
            header,
            news: false,
            waits: false,
        };
        // What was sent is looked at when there is more to send.
        sender.queue.set_dev_notify(false);
        transport.finish_init();
        for at in 0..QUEUE {
            receiver.offer(at);
        }
        let mut nic = Self {
            transport,
            receiver,
            sender,
            mac,
        };
        nic.kick();
        Ok(nic)
    }

    /// The hardware address, if the device has one.
    #[must_use]
    pub const fn mac(&self) -> Option<[u8; 6]> {
        self.mac
    }

    /// Tells the device about frames to send, and room for those to come: to be
    /// called after each poll of the interface.
    pub fn kick(&mut self) {
        if core::mem::take(&mut self.sender.news) {
            kick(&mut self.transport, &self.sender.queue, TRANSMIT);
        }
        if core::mem::take(&mut self.receiver.news) {
            kick(&mut self.transport, &self.receiver.queue, RECEIVE);
        }
    }
}

/// Frames to be filled by the device.
struct Receiver<H: Hal, const QUEUE: usize> {
    queue: VirtQueue<H, QUEUE>,
    frames: &'static mut [Frame; QUEUE],
    /// The frame that each descriptor is about, if the device has it.
    owners: [Option<u16>; QUEUE],
    header: usize,
    news: bool,
}

impl<H: Hal, const QUEUE: usize> Receiver<H, QUEUE> {
    /// Gives a frame to the device.
    fn offer(&mut self, at: usize) {
        // SAFETY: `pop_used` in `take` ends the borrow; nobody looks at the frame
        // before. It is there for ever, and if the device is given up before,
        // it is reset first.
        let head = unsafe { self.queue.add(&[], &mut [&mut self.frames[at].0]) };
        let head = head.expect("a queue has a descriptor for each frame");
        self.owners[usize::from(head)] = Some(at as u16);
        self.news = true;
    }

    /// Takes a frame that was filled, to be offered again: which, and its bytes.
    fn take(&mut self) -> Option<(usize, usize)> {
        let head = self.queue.peek_used()?;
        let at = usize::from(self.owners.get_mut(usize::from(head))?.take()?);
        // SAFETY: this is the frame that was added as this descriptor.
        let len = unsafe {
            self.queue
                .pop_used(head, &[], &mut [&mut self.frames[at].0])
        };
        Some((at, len.ok()? as usize))
    }
}

/// Frames to be sent.
struct Sender<H: Hal, const QUEUE: usize> {
    queue: VirtQueue<H, QUEUE>,
    frames: &'static mut [Frame; QUEUE],
    /// Frames that the device does not have: the first `left`.
    free: [u16; QUEUE],
    left: usize,
    /// The frame that each descriptor is about, and its bytes, if the device has it.
    sent: [Option<(u16, u16)>; QUEUE],
    header: usize,
    news: bool,
    /// The device has all frames, and tells by an interrupt when it gives one back.
    waits: bool,
}

impl<H: Hal, const QUEUE: usize> Sender<H, QUEUE> {
    /// Whether there is a frame to be filled. If not, an interrupt comes with one: even what
    /// arrived is not looked at before, and nothing else might end the board's sleep.
    fn has_room(&mut self) -> bool {
        self.take_back();
        if self.left == 0 && !self.waits {
            self.waits = true;
            self.queue.set_dev_notify(true);
            // The device may have looked at that just before, and given all back.
            fence(Ordering::SeqCst);
            self.take_back();
        }
        if self.left > 0 && self.waits {
            self.waits = false;
            self.queue.set_dev_notify(false);
        }
        self.left > 0
    }

    /// Takes back what was sent.
    fn take_back(&mut self) {
        while let Some(head) = self.queue.peek_used() {
            let sent = self.sent.get_mut(usize::from(head));
            let Some((at, len)) = sent.and_then(Option::take) else {
                break;
            };
            let frame = &self.frames[usize::from(at)].0[..usize::from(len)];
            // SAFETY: these are the bytes that were added as this descriptor.
            if unsafe { self.queue.pop_used(head, &[frame], &mut []) }.is_err() {
                break;
            }
            self.free[self.left] = at;
            self.left += 1;
        }
    }

    fn send(&mut self, at: u16, len: usize) {
        let frame = &self.frames[usize::from(at)].0[..len];
        // SAFETY: `pop_used` in `take_back` ends the borrow; nobody changes the frame
        // before, as it is not in the list of those that are free. It is there
        // for ever, and if the device is given up before, it is reset first.
        let head = unsafe { self.queue.add(&[frame], &mut []) };
        let head = head.expect("a queue has a descriptor for each frame");
        self.sent[usize::from(head)] = Some((at, len as u16));
        self.news = true;
    }
}

/// A frame that was received.
pub struct Received<'a, H: Hal, const QUEUE: usize> {
    receiver: &'a mut Receiver<H, QUEUE>,
    at: usize,
    len: usize,
}

impl<H: Hal, const QUEUE: usize> RxToken for Received<'_, H, QUEUE> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        let frame = &self.receiver.frames[self.at].0;
        take(
            frame
                .get(self.receiver.header..self.len)
                .unwrap_or_default(),
        )
    }
}

impl<H: Hal, const QUEUE: usize> Drop for Received<'_, H, QUEUE> {
    fn drop(&mut self) {
        self.receiver.offer(self.at);
    }
}

/// Room for a frame to be sent.
pub struct ToSend<'a, H: Hal, const QUEUE: usize>(&'a mut Sender<H, QUEUE>);

impl<H: Hal, const QUEUE: usize> TxToken for ToSend<'_, H, QUEUE> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let sender = self.0;
        sender.left -= 1;
        let at = sender.free[sender.left];
        // The header stays zero: nothing is left to the device.
        let end = sender.header + len;
        let frame = &mut sender.frames[usize::from(at)].0[sender.header..end];
        let result = fill(frame);
        sender.send(at, end);
        result
    }
}

impl<H: Hal, T: Transport, const QUEUE: usize> Device for Nic<H, T, QUEUE> {
    type RxToken<'a>
        = Received<'a, H, QUEUE>
    where
        Self: 'a;
    type TxToken<'a>
        = ToSend<'a, H, QUEUE>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        if !self.sender.has_room() {
            return None;
        }
        let (at, len) = self.receiver.take()?;
        let received = Received {
            receiver: &mut self.receiver,
            at,
            len,
        };
        Some((received, ToSend(&mut self.sender)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        self.sender.has_room().then_some(ToSend(&mut self.sender))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME;
        capabilities.max_burst_size = Some(QUEUE);
        capabilities
    }
}
