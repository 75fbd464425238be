//! Registers of devices.

/// The registers of a device, by their offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers(usize);

impl Registers {
    pub(crate) const GIC_DISTRIBUTOR: Self = Self(0x0800_0000);
    pub(crate) const GIC_CPU: Self = Self(0x0801_0000);
    pub(crate) const UART: Self = Self(0x0900_0000);

    /// The virtio transports, whether there is a device behind them or not.
    pub(crate) const VIRTIO_SLOTS: usize = 32;
    pub(crate) const VIRTIO_SPAN: usize = 0x200;

    /// One of the virtio transports.
    pub(crate) const fn virtio(slot: usize) -> Self {
        assert!(slot < Self::VIRTIO_SLOTS);
        Self(0x0A00_0000 + slot * Self::VIRTIO_SPAN)
    }

    pub(crate) const fn address(self) -> usize {
        self.0
    }

    pub(crate) fn read(self, offset: usize) -> u32 {
        // SAFETY: each value of this type is the base of a device that is there,
        // whose registers may be read at any time by this, the only thread.
        unsafe { ((self.0 + offset) as *const u32).read_volatile() }
    }

    pub(crate) fn write(self, offset: usize, value: u32) {
        // SAFETY: as for reading. Only the transports of virtio have registers that give
        // memory to a device, and what is written here is none of them.
        unsafe { ((self.0 + offset) as *mut u32).write_volatile(value) }
    }
}
