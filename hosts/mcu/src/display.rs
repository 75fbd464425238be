//! The board's display, an OSRAM Pictiva of 128 x 64 pixels, on the bus that the card
//! has.
use embedded_hal::delay::DelayNs;
use embedded_hal::spi::{self, ErrorKind, Operation, SpiBus, SpiDevice};
use nvmf_firmware::display::Display;

use crate::board::Delay;
use crate::gpio::Output;
use crate::registers::Registers;
use crate::ssi::Ssi;

/// What the controller is to know of the panel: 64 rows, odd and even ones apart, columns
/// from the right, half of the current, no voltage converter of its own; then on.
const PANEL: [u8; 12] = [
    0xA0, 0x41, 0xA1, 0x00, 0xA8, 0x3F, 0x81, 0x40, 0x85, 0xAD, 0x02, 0xAF,
];

/// An even divisor of the processor's clock: 3.6 MHz.
const DIVISOR: u32 = 14;

/// Starts it, while the card is not selected; `None` if it does not.
pub(crate) fn start(card: Output, port: u16) -> Option<Display<Bus, Output>> {
    // The supply of 15 V.
    Output::high(Registers::GPIO_C, 6);
    let bus = Bus {
        ssi: Ssi::start(),
        card,
        select: Output::high(Registers::GPIO_A, 3),
    };
    let data = Output::high(Registers::GPIO_C, 7);
    Display::start(bus, data, &PANEL, port).ok()
}

/// The bus, whenever the card does not have it.
pub(crate) struct Bus {
    ssi: Ssi,
    card: Output,
    select: Output,
}

/// The card is selected.
#[derive(Debug)]
pub(crate) struct Busy;

impl spi::Error for Busy {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

impl spi::ErrorType for Bus {
    type Error = Busy;
}

impl SpiDevice for Bus {
    fn transaction(&mut self, operations: &mut [Operation<u8>]) -> Result<(), Busy> {
        let taken = !self.card.is_high();
        self.ssi.want(taken);
        if taken {
            return Err(Busy);
        }
        let divisor = self.ssi.divisor();
        self.ssi.set_divisor(DIVISOR);
        self.select.set(false);
        for operation in operations {
            let Ok(()) = match operation {
                Operation::Read(words) => self.ssi.read(words),
                Operation::Write(words) => self.ssi.write(words),
                Operation::Transfer(read, write) => self.ssi.transfer(read, write),
                Operation::TransferInPlace(words) => self.ssi.transfer_in_place(words),
                Operation::DelayNs(ns) => {
                    Delay.delay_ns(*ns);
                    Ok(())
                }
            };
        }
        self.select.set(true);
        self.ssi.set_divisor(divisor);
        Ok(())
    }
}
