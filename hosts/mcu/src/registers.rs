//! The registers of the LM3S6965 that this firmware uses.

/// The registers of a peripheral, 32 bits each, by their offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers(usize);

impl Registers {
    pub(crate) const SYSTEM: Self = Self(0x400F_E000);
    pub(crate) const GPIO_A: Self = Self(0x4000_4000);
    #[cfg(feature = "display")]
    pub(crate) const GPIO_C: Self = Self(0x4000_6000);
    pub(crate) const GPIO_D: Self = Self(0x4000_7000);
    pub(crate) const SSI0: Self = Self(0x4000_8000);
    pub(crate) const UART0: Self = Self(0x4000_C000);
    #[cfg(feature = "defmt")]
    pub(crate) const UART1: Self = Self(0x4000_D000);
    pub(crate) const ETHERNET: Self = Self(0x4004_8000);

    /// Bytes that a peripheral's registers take.
    const SPAN: usize = 0x1000;

    pub(crate) fn read(self, offset: usize) -> u32 {
        // SAFETY: the constants above are all the values there are, and each is
        // the base of a peripheral whose registers may be read at any time by
        // this, the only thread.
        unsafe { self.address(offset).read_volatile() }
    }

    pub(crate) fn write(self, offset: usize, value: u32) {
        // SAFETY: as for reading; none of these peripherals touches memory.
        unsafe { self.address(offset).write_volatile(value) }
    }

    pub(crate) fn set(self, offset: usize, bits: u32) {
        self.write(offset, self.read(offset) | bits);
    }

    fn address(self, offset: usize) -> *mut u32 {
        debug_assert!(offset < Self::SPAN && offset.is_multiple_of(4));
        (self.0 + offset) as *mut u32
    }
}
