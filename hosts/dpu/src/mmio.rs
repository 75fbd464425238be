//! Registers of devices.

/// The registers of a device, by their offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers(usize);

impl Registers {
    /// Those of a device, or of the first of several in a row. For constants of the board's,
    /// and where it has one.
    pub(crate) const fn at(address: usize) -> Self {
        Self(address)
    }

    /// One of the virtio transports.
    pub(crate) const fn virtio(slot: usize) -> Self {
        assert!(slot < Self::VIRTIO_SLOTS);
        Self(Self::VIRTIO.0 + slot * Self::VIRTIO_SPAN)
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

    #[cfg(target_arch = "riscv64")]
    pub(crate) fn read_byte(self, offset: usize) -> u8 {
        // SAFETY: as for a word.
        unsafe { ((self.0 + offset) as *const u8).read_volatile() }
    }

    #[cfg(target_arch = "riscv64")]
    pub(crate) fn write_byte(self, offset: usize, value: u8) {
        // SAFETY: as for a word.
        unsafe { ((self.0 + offset) as *mut u8).write_volatile(value) }
    }
}
