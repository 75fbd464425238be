//! Virtio devices: disks to store on, and network cards.
//!
//! On the queues and transports of `virtio-drivers`, which also say what a board
//! brings: a [`Hal`] that has memory for queues, and a [`Transport`] for each
//! device. Its own drivers of these devices wait in loops for all but reads and writes,
//! and take no more than five requests at a time.
pub mod disk;
pub mod nic;
#[cfg(test)]
mod tests;

pub use virtio_drivers::transport::Transport;
pub use virtio_drivers::{Error, Hal};

use core::sync::atomic::{Ordering, fence};

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::DeviceStatus;

/// The device is one of virtio 1.0 or later.
const VERSION_1: u64 = 1 << 32;

/// Tells the device that a queue has news, if it wants to be told.
///
/// Whether it does is to be looked at after the news can be seen (virtio 1.2, section
/// 2.7.13.4.1): else both sides may wait for each other. The queue has no barrier there.
fn kick<H: Hal, const QUEUE: usize>(
    transport: &mut impl Transport,
    queue: &VirtQueue<H, QUEUE>,
    index: u16,
) {
    fence(Ordering::SeqCst);
    if queue.should_notify() {
        transport.notify(index);
    }
}

/// Resets the device, and agrees on features; [`Transport::finish_init`] is the
/// next step, once the queues are there. The features that both have.
fn negotiate(transport: &mut impl Transport, ours: u64) -> Result<u64, Error> {
    transport.set_status(DeviceStatus::empty());
    let mut status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
    transport.set_status(status);
    let features = transport.read_device_features() & (ours | VERSION_1);
    transport.write_driver_features(features);
    status |= DeviceStatus::FEATURES_OK;
    transport.set_status(status);
    // A device before virtio 1.0 does not know the question.
    if features & VERSION_1 != 0 && !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        transport.set_status(DeviceStatus::FAILED);
        return Err(Error::Unsupported);
    }
    transport.set_guest_page_size(virtio_drivers::PAGE_SIZE as u32);
    Ok(features)
}
