//! The Stellaris Ethernet MAC, for smoltcp.
use cortex_m::interrupt::InterruptNumber;
use cortex_m::peripheral::NVIC;
use cortex_m_rt::exception;
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::registers::Registers;

/// Which interrupt it has.
const INTERRUPT: u16 = 42;

#[derive(Clone, Copy)]
struct EthernetInterrupt;

// SAFETY: this is the number of the Ethernet controller's interrupt, and no other type has it.
unsafe impl InterruptNumber for EthernetInterrupt {
    fn number(self) -> u16 {
        INTERRUPT
    }
}

// SAFETY: it touches nothing but the Ethernet controller's interrupt mask, which
// the main program writes in one store.
#[exception]
unsafe fn DefaultHandler(interrupt: i16) {
    if interrupt == INTERRUPT as i16 {
        Ethernet::interrupted();
    }
}

/// Bytes of the longest frame, without its check sequence.
const FRAME: usize = 1514;
/// Bytes of the length that the receive FIFO puts before a frame, and of the
/// check sequence behind it.
const LENGTH: usize = 2;
const FCS: usize = 4;
/// Bytes that a frame takes in the FIFO, a multiple of its words.
const ROOM: usize = (LENGTH + FRAME + FCS).next_multiple_of(4);

const ETHERNET: Registers = Registers::ETHERNET;
/// Interrupt status; writing acknowledges.
const RIS: usize = 0x00;
const IM: usize = 0x04;
const RCTL: usize = 0x08;
const TCTL: usize = 0x0C;
const DATA: usize = 0x10;
const IA0: usize = 0x14;
const IA1: usize = 0x18;
/// When to begin to send; its reset value is never without being told.
const THR: usize = 0x1C;
/// Frames in the receive FIFO.
const NP: usize = 0x34;
/// Bit 0 has a frame sent, and is set until it is.
const TR: usize = 0x38;

/// A frame was received.
const RXINT: u32 = 1;

/// The MAC, and memory for a frame each way.
pub(crate) struct Ethernet {
    received: [u8; ROOM],
    to_send: [u8; ROOM],
}

impl Ethernet {
    pub(crate) const fn new() -> Self {
        Self {
            received: [0; ROOM],
            to_send: [0; ROOM],
        }
    }

    pub(crate) fn start(&mut self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        ETHERNET.write(IA0, u32::from_le_bytes([a, b, c, d]));
        ETHERNET.write(IA1, u32::from_le_bytes([e, f, 0, 0]));
        const WHEN_TOLD: u32 = 0x3F;
        ETHERNET.write(THR, WHEN_TOLD);
        const RESET_FIFO: u32 = 1 << 4;
        ETHERNET.write(RCTL, RESET_FIFO);
        const ENABLE_AND_MULTICAST: u32 = 0b11;
        ETHERNET.write(RCTL, ENABLE_AND_MULTICAST);
        const ENABLE_PAD_CRC_DUPLEX: u32 = 0b1_0111;
        ETHERNET.write(TCTL, ENABLE_PAD_CRC_DUPLEX);
    }

    /// Whether there is a frame. If not, an interrupt comes with the next.
    pub(crate) fn arm() -> bool {
        ETHERNET.write(RIS, RXINT);
        ETHERNET.write(IM, RXINT);
        has_frame()
    }

    /// Interrupts may come from now on.
    pub(crate) fn unmask() {
        // SAFETY: the handler is there, and may come at any time.
        unsafe { NVIC::unmask(EthernetInterrupt) };
    }

    /// The interrupt came: no more of them until it is armed.
    fn interrupted() {
        ETHERNET.write(IM, 0);
    }

    /// Reads a frame out of the FIFO; its length, 0 if it is none to look at.
    fn read(&mut self) -> usize {
        let first = ETHERNET.read(DATA).to_le_bytes();
        let total = usize::from(u16::from_le_bytes([first[0], first[1]]));
        self.received[..4].copy_from_slice(&first);
        for at in 1..total.div_ceil(4) {
            let word = ETHERNET.read(DATA).to_le_bytes();
            // What does not fit still has to leave the FIFO.
            if let Some(place) = self.received.get_mut(at * 4..at * 4 + 4) {
                place.copy_from_slice(&word);
            }
        }
        if total > ROOM {
            return 0;
        }
        total.saturating_sub(LENGTH + FCS)
    }
}

fn has_frame() -> bool {
    ETHERNET.read(NP) & 0x3F != 0
}

fn is_sending() -> bool {
    ETHERNET.read(TR) & 1 != 0
}

pub(crate) struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

pub(crate) struct ToSend<'a>(&'a mut [u8; ROOM]);

impl TxToken for ToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        const HEADER: usize = 14;
        let result = fill(&mut self.0[LENGTH..LENGTH + len]);
        // The FIFO wants to know how much follows the Ethernet header.
        let data = len.saturating_sub(HEADER) as u16;
        self.0[..LENGTH].copy_from_slice(&data.to_le_bytes());
        for word in self.0[..(LENGTH + len).next_multiple_of(4)].chunks_exact(4) {
            ETHERNET.write(
                DATA,
                u32::from_le_bytes([word[0], word[1], word[2], word[3]]),
            );
        }
        ETHERNET.write(TR, 1);
        result
    }
}

impl Device for Ethernet {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = ToSend<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, ToSend<'_>)> {
        // What it says may have to be answered at once.
        if is_sending() {
            return None;
        }
        while has_frame() {
            let len = self.read();
            if len > 0 {
                let frame = &self.received[LENGTH..LENGTH + len];
                return Some((Received(frame), ToSend(&mut self.to_send)));
            }
        }
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<ToSend<'_>> {
        (!is_sending()).then_some(ToSend(&mut self.to_send))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME;
        // The FIFO has 2 KiB.
        capabilities.max_burst_size = Some(1);
        capabilities
    }
}
