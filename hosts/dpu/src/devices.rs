//! The board's devices, which are behind virtio transports.
use core::ptr::NonNull;

use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport};

use crate::arch::{acknowledged, enable_transport};
pub use crate::dma::Board;
use crate::mmio::Registers;

/// Descriptors of a network card's queues, and frames each way.
pub const NIC_QUEUE: usize = 128;
/// Requests that the disk works on, and descriptors of its queue.
pub const DISK_SLOTS: usize = 64;
pub const DISK_QUEUE: usize = 256;

/// The board's network card.
pub type Nic = nvmf_firmware::virtio::nic::Nic<Board, MmioTransport<'static>, NIC_QUEUE>;
/// The board's disk.
pub type Disk = nvmf_firmware::virtio::disk::Disk<Board, MmioTransport<'static>, DISK_QUEUE>;

/// What was found: the first of each.
#[derive(Debug, Default)]
pub struct Devices {
    /// A network card.
    pub nic: Option<MmioTransport<'static>>,
    /// A disk.
    pub disk: Option<MmioTransport<'static>>,
    /// What may have an interrupt.
    pub lines: Lines,
}

/// The interrupts of the devices in use.
#[derive(Debug, Default)]
pub struct Lines([Option<Registers>; 2]);

impl Lines {
    /// Takes the devices' interrupts back, before their queues are looked at.
    pub fn acknowledge(&self) {
        const INTERRUPT_STATUS: usize = 0x060;
        const INTERRUPT_ACK: usize = 0x064;
        for device in self.0.iter().flatten() {
            device.write(INTERRUPT_ACK, device.read(INTERRUPT_STATUS));
        }
        acknowledged();
    }
}

impl Devices {
    /// Looks behind all transports. To be called once.
    #[must_use]
    pub fn find() -> Self {
        let mut found = Self::default();
        for slot in 0..Registers::VIRTIO_SLOTS {
            let registers = Registers::virtio(slot);
            let header = NonNull::new(registers.address() as *mut VirtIOHeader);
            let header = header.expect("no device is at 0");
            // SAFETY: the board has a transport at each of these addresses, and
            // this is the only one that is made of it.
            let Ok(transport) = (unsafe { MmioTransport::new(header, Registers::VIRTIO_SPAN) })
            else {
                continue;
            };
            let (place, line) = match transport.device_type() {
                DeviceType::Network => (&mut found.nic, 0),
                DeviceType::Block => (&mut found.disk, 1),
                _ => continue,
            };
            if place.is_none() {
                *place = Some(transport);
                found.lines.0[line] = Some(registers);
                enable_transport(slot);
            }
        }
        found
    }
}
