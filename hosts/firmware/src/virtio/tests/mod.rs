//! A device in memory, on the other side of the queues.
#![allow(
    unsafe_code,
    reason = "a device reads and writes the memory of its driver"
)]

mod disk;
mod nic;

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed};
use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{BufferDirection, Error, Hal, PAGE_SIZE, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Addresses are the same on both sides.
struct Identity;

// SAFETY: pages come from the allocator, and are never given back.
unsafe impl Hal for Identity {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let layout = Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).unwrap();
        // SAFETY: its size is not 0.
        let page = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        (page.as_ptr() as PhysAddr, page)
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        0
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        unreachable!("there is no PCI")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.cast::<u8>().as_ptr() as PhysAddr
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// Bits of a descriptor's flags.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

#[derive(Clone, Copy, FromBytes, Immutable)]
#[repr(C)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

#[derive(Clone, Copy)]
struct Queue {
    size: u16,
    descriptors: u64,
    available: u64,
    used: u64,
    seen: u16,
}

/// A chain of buffers that the driver gave.
#[derive(Debug)]
struct Chain {
    head: u16,
    /// All that can be read.
    read: Vec<u8>,
    /// What can be written: addresses and lengths.
    write: Vec<(u64, usize)>,
}

impl Chain {
    fn room(&self) -> usize {
        self.write.iter().map(|(_, len)| len).sum()
    }

    /// Writes from the start on, whatever the buffers are.
    fn fill(&self, mut bytes: &[u8]) {
        for (address, len) in &self.write {
            let (now, rest) = bytes.split_at((*len).min(bytes.len()));
            // SAFETY: the driver gave this memory, and waits for it.
            unsafe { core::ptr::copy_nonoverlapping(now.as_ptr(), *address as *mut u8, now.len()) };
            bytes = rest;
        }
    }
}

#[derive(Default)]
struct Model {
    offers: u64,
    agreed: u64,
    config: Vec<u8>,
    status: u32,
    queues: [Option<Queue>; 2],
    notified: [usize; 2],
}

impl Model {
    fn next(&mut self, index: usize) -> Option<Chain> {
        let queue = self.queues[index].as_mut().unwrap();
        // SAFETY: the driver gave these addresses for its queue.
        let (idx, head) = unsafe {
            let available = queue.available as *const u16;
            let slot = usize::from(queue.seen % queue.size);
            (
                available.add(1).read_volatile(),
                available.add(2 + slot).read_volatile(),
            )
        };
        if idx == queue.seen {
            return None;
        }
        queue.seen = queue.seen.wrapping_add(1);
        let (mut read, mut write) = (Vec::new(), Vec::new());
        let mut at = head;
        loop {
            assert!(at < queue.size);
            let table = queue.descriptors as *const Descriptor;
            // SAFETY: the table has as many descriptors as the queue has entries.
            let descriptor = unsafe { table.add(usize::from(at)).read_volatile() };
            if descriptor.flags & WRITE != 0 {
                write.push((descriptor.address, descriptor.len as usize));
            } else {
                assert!(write.is_empty(), "what is read comes first");
                // SAFETY: the driver gave this memory, and waits for it.
                read.extend_from_slice(unsafe {
                    core::slice::from_raw_parts(
                        descriptor.address as *const u8,
                        descriptor.len as usize,
                    )
                });
            }
            if descriptor.flags & NEXT == 0 {
                return Some(Chain { head, read, write });
            }
            at = descriptor.next;
        }
    }

    /// Gives a chain back, of which `len` bytes are written.
    fn end(&mut self, index: usize, head: u16, len: usize) {
        let queue = self.queues[index].unwrap();
        let used = queue.used as *mut u16;
        // SAFETY: the driver gave these addresses for its queue.
        unsafe {
            let idx = used.add(1).read_volatile();
            let element = used.add(2).cast::<u32>();
            let element = element.add(usize::from(idx % queue.size) * 2);
            element.write_volatile(head.into());
            element.add(1).write_volatile(len as u32);
            used.add(1).write_volatile(idx.wrapping_add(1));
        }
    }
}

/// The driver's view of a [`Model`].
#[derive(Clone)]
struct Fake(Rc<RefCell<Model>>);

impl Fake {
    fn new(offers: u64, config: &[u8]) -> Self {
        Self(Rc::new(RefCell::new(Model {
            offers,
            config: config.to_vec(),
            ..Model::default()
        })))
    }

    fn next(&self, queue: usize) -> Option<Chain> {
        self.0.borrow_mut().next(queue)
    }

    fn end(&self, queue: usize, head: u16, len: usize) {
        self.0.borrow_mut().end(queue, head, len);
    }

    /// Whether the driver wants an interrupt when a chain comes back.
    fn interrupts(&self, queue: usize) -> bool {
        let queue = self.0.borrow().queues[queue].unwrap();
        // SAFETY: the driver gave this address for its queue.
        unsafe { (queue.available as *const u16).read_volatile() & 1 == 0 }
    }
}

impl Transport for Fake {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }

    fn read_device_features(&mut self) -> u64 {
        self.0.borrow().offers
    }

    fn write_driver_features(&mut self, features: u64) {
        self.0.borrow_mut().agreed = features;
    }

    fn max_queue_size(&mut self, _: u16) -> u32 {
        256
    }

    fn notify(&mut self, queue: u16) {
        self.0.borrow_mut().notified[usize::from(queue)] += 1;
    }

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::from_bits_retain(self.0.borrow().status)
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.0.borrow_mut().status = status.bits();
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        available: PhysAddr,
        used: PhysAddr,
    ) {
        self.0.borrow_mut().queues[usize::from(queue)] = Some(Queue {
            size: size as u16,
            descriptors,
            available,
            used,
            seen: 0,
        });
    }

    fn queue_unset(&mut self, queue: u16) {
        self.0.borrow_mut().queues[usize::from(queue)] = None;
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.0.borrow().queues[usize::from(queue)].is_some()
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        0
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, Error> {
        let model = self.0.borrow();
        let bytes = model.config.get(offset..offset + size_of::<T>());
        let bytes = bytes.ok_or(Error::ConfigSpaceTooSmall)?;
        T::read_from_bytes(bytes).map_err(|_| Error::ConfigSpaceTooSmall)
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        _: usize,
        _: T,
    ) -> Result<(), Error> {
        unreachable!("nothing there is to be written")
    }
}

fn leak<T>(value: T) -> &'static mut T {
    std::boxed::Box::leak(std::boxed::Box::new(value))
}
