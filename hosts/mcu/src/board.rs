//! The LM3S6965: clocks, time, sleep, the UART for what there is to say, and the last word.
use core::fmt::{self, Write as _};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m_rt::exception;
use embedded_hal::delay::DelayNs;
use nvmf_core::time::Instant;

use crate::gpio;
use crate::registers::Registers;

/// The processor's clock, in Hz and MHz.
pub(crate) const CLOCK: u32 = 50_000_000;
const CLOCK_MHZ: u32 = CLOCK / 1_000_000;

/// Registers of the system control.
mod system {
    /// Raw interrupt status; bit 6: the PLL is locked.
    pub(super) const RIS: usize = 0x050;
    /// Run-mode clock configuration.
    pub(super) const RCC: usize = 0x060;
    /// Clock gates of UARTs and SSI.
    pub(super) const RCGC1: usize = 0x104;
    /// Clock gates of GPIO ports and Ethernet.
    pub(super) const RCGC2: usize = 0x108;
    /// The hardware address, as it was programmed.
    pub(super) const USER0: usize = 0x1E0;
    pub(super) const USER1: usize = 0x1E4;
}

/// Milliseconds since the start, modulo 2^32.
static MILLIS: AtomicU32 = AtomicU32::new(0);

#[exception]
fn SysTick() {
    MILLIS.store(
        MILLIS.load(Ordering::Relaxed).wrapping_add(1),
        Ordering::Relaxed,
    );
}

/// 50 MHz from the PLL and the 8 MHz crystal, and clocks for the peripherals.
pub(crate) fn start_clocks() {
    let system = Registers::SYSTEM;
    const BYPASS: u32 = 1 << 11;
    const USE_DIVIDER: u32 = 1 << 22;
    const XTAL_8_MHZ: u32 = 0xE << 6;
    const DIVIDE_BY_4: u32 = 3 << 23;
    // From the crystal past the PLL, while that starts; then from the PLL.
    system.write(system::RCC, XTAL_8_MHZ | BYPASS);
    system.write(system::RCC, XTAL_8_MHZ | DIVIDE_BY_4 | USE_DIVIDER | BYPASS);
    for _ in 0..100_000 {
        if system.read(system::RIS) & 1 << 6 != 0 {
            break;
        }
    }
    system.write(system::RCC, XTAL_8_MHZ | DIVIDE_BY_4 | USE_DIVIDER);
    const UARTS: u32 = 0b11;
    const SSI0: u32 = 1 << 4;
    const GPIO_A_TO_F: u32 = 0x3F;
    const ETHERNET: u32 = 1 << 28 | 1 << 30;
    system.set(system::RCGC1, UARTS | SSI0);
    system.set(system::RCGC2, GPIO_A_TO_F | ETHERNET);
    // A gate takes three cycles to open.
    cortex_m::asm::delay(8);
}

/// Milliseconds since the start, modulo 2^32.
#[cfg(feature = "defmt")]
pub(crate) fn millis() -> u32 {
    MILLIS.load(Ordering::Relaxed)
}

/// The hardware address in the user registers; `None` if none was programmed.
pub(crate) fn mac() -> Option<[u8; 6]> {
    let [a, b, c, _] = Registers::SYSTEM.read(system::USER0).to_le_bytes();
    let [d, e, f, _] = Registers::SYSTEM.read(system::USER1).to_le_bytes();
    let mac = [a, b, c, d, e, f];
    (mac != [0xFF; 6] && mac != [0; 6]).then_some(mac)
}

/// What time it is.
pub(crate) struct Clock {
    millis: u64,
    last: u32,
}

impl Clock {
    pub(crate) fn start(mut timer: SYST) -> Self {
        timer.set_clock_source(SystClkSource::Core);
        timer.set_reload(CLOCK / 1000 - 1);
        timer.clear_current();
        timer.enable_interrupt();
        timer.enable_counter();
        Self { millis: 0, last: 0 }
    }

    /// Now. To be called every few weeks at least.
    pub(crate) fn now(&mut self) -> Instant {
        let (millis, ticks) = loop {
            let millis = MILLIS.load(Ordering::Relaxed);
            let ticks = SYST::get_current();
            if millis == MILLIS.load(Ordering::Relaxed) {
                break (millis, ticks);
            }
        };
        self.millis += u64::from(millis.wrapping_sub(self.last));
        self.last = millis;
        let micros = (CLOCK / 1000 - 1).saturating_sub(ticks) / CLOCK_MHZ;
        Instant::from_micros(self.millis * 1000 + u64::from(micros))
    }

    /// Sleeps until about `deadline`, or until there is an interrupt that
    /// `pending` knows of.
    pub(crate) fn sleep(&mut self, deadline: Option<Instant>, pending: impl Fn() -> bool) {
        loop {
            // The timer's interrupt comes every millisecond: less is not slept.
            let soon = Instant::from_micros(self.now().as_micros() + 1000);
            if deadline.is_some_and(|deadline| deadline <= soon) {
                return;
            }
            // An interrupt that comes in between is pending, and ends the sleep.
            let awake = cortex_m::interrupt::free(|_| {
                let awake = pending();
                if !awake {
                    cortex_m::asm::wfi();
                }
                awake
            });
            if awake {
                return;
            }
        }
    }
}

/// Waits in cycles of the processor.
pub(crate) struct Delay;

impl DelayNs for Delay {
    fn delay_ns(&mut self, ns: u32) {
        cortex_m::asm::delay((ns / 1000 + 1) * CLOCK_MHZ);
    }
}

/// How the stack does, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    /// How much of it was ever used.
    pub(crate) peak: usize,
    /// How much there is: all memory that nothing else has.
    pub(crate) size: usize,
}

impl Stack {
    /// Looks how far down the paint of the start is gone.
    pub(crate) fn measure() -> Self {
        unsafe extern "C" {
            static _stack_start: u32;
            static _stack_end: u32;
        }
        let (start, end) = (
            &raw const _stack_start as usize,
            &raw const _stack_end as usize,
        );
        let size = start - end;
        // SAFETY: the linker gives these bounds, all between them is memory of
        // the stack, and it is below what is in use that this looks for a change.
        let word = |at: usize| unsafe { ((end + at) as *const u32).read_volatile() };
        let unused = (0..size)
            .step_by(4)
            .take_while(|at| word(*at) == PAINT)
            .count();
        Self {
            peak: size - unused * 4,
            size,
        }
    }
}

/// What cortex-m-rt paints the stack with.
const PAINT: u32 = 0xCCCC_CCCC;

/// Registers of the UART, a PL011.
mod uart {
    pub(super) const DR: usize = 0x00;
    pub(super) const FR: usize = 0x18;
    pub(super) const IBRD: usize = 0x24;
    pub(super) const FBRD: usize = 0x28;
    pub(super) const LCRH: usize = 0x2C;
    pub(super) const CTL: usize = 0x30;
}

/// A UART, 115200 8N1.
pub(crate) struct Uart(Registers);

impl Uart {
    /// The first one, of which the pins are A0 and A1.
    pub(crate) fn first() -> Self {
        Self::start(Registers::UART0, Registers::GPIO_A, 0b11)
    }

    /// The second one, of which the pins are D2 and D3.
    #[cfg(feature = "defmt")]
    pub(crate) fn second() -> Self {
        Self::start(Registers::UART1, Registers::GPIO_D, 0b1100)
    }

    fn start(uart: Registers, port: Registers, pins: u32) -> Self {
        gpio::lend(port, pins);
        uart.write(uart::CTL, 0);
        // In 64ths: the clock over 16 times the rate.
        const DIVISOR: u32 = (CLOCK * 4 + 115_200 / 2) / 115_200;
        uart.write(uart::IBRD, DIVISOR >> 6);
        uart.write(uart::FBRD, DIVISOR & 0x3F);
        const EIGHT_BITS_FIFO: u32 = 0x70;
        uart.write(uart::LCRH, EIGHT_BITS_FIFO);
        const TRANSMIT_ENABLE: u32 = 1 << 8 | 1;
        uart.write(uart::CTL, TRANSMIT_ENABLE);
        Self(uart)
    }

    /// Waits while the FIFO is full.
    pub(crate) fn send(&self, bytes: &[u8]) {
        const FULL: u32 = 1 << 5;
        for byte in bytes {
            while self.0.read(uart::FR) & FULL != 0 {}
            self.0.write(uart::DR, (*byte).into());
        }
    }
}

impl fmt::Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.send(text.as_bytes());
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    cortex_m::interrupt::disable();
    let _ = writeln!(Uart::first(), "{info}");
    loop {
        cortex_m::asm::wfi();
    }
}
