//! SD and SDHC cards over SPI, a step at a time: while a card is busy or looks for data,
//! the network has its turn.
//!
//! The card stays selected for as long as a command and its data take, which
//! is many steps; so this takes the bus and the pin, and not an `SpiDevice`,
//! which would let go of the card between them.
mod crc;
#[cfg(test)]
mod tests;
mod wire;

use embedded_hal::delay::DelayNs;
use embedded_hal::digital::OutputPin;
use embedded_hal::spi::SpiBus;
use nvmf_core::block::{
    BlockDevice, Completion, Extent, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_core::time::Instant;
use nvmf_tcp::smoltcp::memory::Buffer;

pub use self::wire::Fault;
use self::wire::{BLOCK, IDLE, ILLEGAL, START, START_MULTIPLE, STOP_MULTIPLE, Wire};

/// How long a card may take to come up, in milliseconds.
const START_MS: u32 = 1000;
/// How long it may be busy, or look for a block, in milliseconds (sections 4.6.2.1, 4.6.2.2:
/// 100 and 250; some take longer).
const WAIT_MS: u32 = 500;
/// Bytes that one step waits for the card.
const WAIT_BYTES: u32 = 32;

static ZEROES: [u8; BLOCK] = [0; BLOCK];

/// A card that is up.
pub struct Card<SPI, CS> {
    wire: Wire<SPI, CS>,
    blocks: u64,
    read_only: bool,
    /// Commands say blocks, not bytes.
    by_block: bool,
    /// Bytes on the bus within [`WAIT_MS`].
    patience: u32,
    running: Option<Running>,
    /// A block to compare with, or to look at.
    block: [u8; BLOCK],
}

/// The request under way.
struct Running {
    request: Request<Buffer<'static>>,
    extent: Extent,
    /// Bytes done.
    done: usize,
    stage: Stage,
    /// Bytes on the bus since the card should have been ready.
    waited: u32,
    /// A block is not what the host compares it with.
    differs: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The command is to be sent.
    Command,
    /// A block is to come.
    Token,
    /// The card is busy; then come the next block, or the end.
    Busy,
    /// The card is busy for the last time.
    Ending,
}

impl<SPI: SpiBus, CS: OutputPin> Card<SPI, CS> {
    /// Has the card come up, which may take a second. The bus is in mode 0 at
    /// 100 to 400 kHz; `faster` makes it what is used from then on, 25 MHz at
    /// most, and says how many bytes pass in a millisecond.
    ///
    /// # Errors
    /// Why there is no card to be used.
    pub fn start(
        spi: SPI,
        cs: CS,
        delay: &mut impl DelayNs,
        faster: impl FnOnce(&mut SPI) -> u32,
    ) -> Result<Self, Fault> {
        let mut wire = Wire::new(spi, cs);
        wire.deselect()?;
        // 74 clocks at least.
        wire.write(&[0xFF; 10])?;
        wire.select()?;
        let card = identify(&mut wire, delay);
        wire.deselect()?;
        let Identified {
            blocks,
            read_only,
            by_block,
        } = card?;
        let patience = faster(&mut wire.spi).saturating_mul(WAIT_MS);
        Ok(Self {
            wire,
            blocks,
            read_only,
            by_block,
            patience,
            running: None,
            block: [0; BLOCK],
        })
    }

    /// A step of the request; true if it is done.
    fn step(&mut self, running: &mut Running) -> Result<bool, Fault> {
        if matches!(running.stage, Stage::Busy | Stage::Ending) && self.is_busy(running)? {
            return Ok(false);
        }
        match running.stage {
            Stage::Command => self.command(running).map(|()| false),
            Stage::Token => self.read(running),
            Stage::Busy => self.write(running).map(|()| false),
            Stage::Ending => {
                if !is_read(running.request.op) {
                    // R2: what went wrong with the write, if anything did.
                    self.wire.expect(13, 0)?;
                    match self.wire.byte()? {
                        0 => {}
                        r2 => return Err(Fault::Failed(r2)),
                    }
                }
                Ok(true)
            }
        }
    }

    fn command(&mut self, running: &mut Running) -> Result<(), Fault> {
        self.wire.select()?;
        let extent = running.extent;
        let at = if self.by_block {
            extent.byte / BLOCK as u64
        } else {
            extent.byte
        };
        let multiple = running.is_multiple();
        let index = match (is_read(running.request.op), multiple) {
            (true, false) => 17,
            (true, true) => 18,
            (false, false) => 24,
            (false, true) => 25,
        };
        // The target has checked that it is within the card.
        self.wire.expect(index, at as u32)?;
        running.stage = if is_read(running.request.op) {
            Stage::Token
        } else {
            Stage::Busy
        };
        Ok(())
    }

    /// Reads the next block, if the card has it.
    fn read(&mut self, running: &mut Running) -> Result<bool, Fault> {
        for _ in 0..WAIT_BYTES {
            match self.wire.byte()? {
                0xFF => running.waited += 1,
                START => {
                    self.block_came(running)?;
                    running.waited = 0;
                    if !running.is_done() {
                        return Ok(false);
                    }
                    if running.is_multiple() {
                        self.wire.command(12, 0)?;
                        running.stage = Stage::Ending;
                        return Ok(false);
                    }
                    return Ok(true);
                }
                token => return Err(Fault::Failed(token)),
            }
        }
        self.check_patience(running).map(|()| false)
    }

    fn block_came(&mut self, running: &mut Running) -> Result<(), Fault> {
        let range = running.done..running.done + BLOCK;
        running.done += BLOCK;
        let place = running.request.buffer.as_mut();
        let place = place.and_then(|buffer| buffer.get_mut(range));
        match (running.request.op, place) {
            (Op::Read(_), Some(place)) => self.wire.data(place),
            (Op::Compare(_), Some(place)) => {
                self.wire.data(&mut self.block)?;
                running.differs |= *place != self.block;
                Ok(())
            }
            _ => self.wire.data(&mut self.block),
        }
    }

    /// Writes the next block, or the end.
    fn write(&mut self, running: &mut Running) -> Result<(), Fault> {
        if running.is_done() {
            running.stage = Stage::Ending;
            if running.is_multiple() {
                self.wire.write(&[STOP_MULTIPLE, 0xFF])?;
            }
            return Ok(());
        }
        let token = if running.is_multiple() {
            START_MULTIPLE
        } else {
            START
        };
        let range = running.done..running.done + BLOCK;
        let data = running.request.buffer.as_ref();
        let data = data.and_then(|buffer| buffer.get(range));
        running.done += BLOCK;
        self.wire.block(token, data.unwrap_or(&ZEROES))
    }

    fn is_busy(&mut self, running: &mut Running) -> Result<bool, Fault> {
        for _ in 0..WAIT_BYTES {
            if self.wire.byte()? == 0xFF {
                running.waited = 0;
                return Ok(false);
            }
            running.waited += 1;
        }
        self.check_patience(running).map(|()| true)
    }

    fn check_patience(&self, running: &Running) -> Result<(), Fault> {
        if running.waited > self.patience {
            Err(Fault::TooSlow)
        } else {
            Ok(())
        }
    }
}

impl Running {
    fn is_multiple(&self) -> bool {
        self.extent.len > BLOCK as u64
    }

    fn is_done(&self) -> bool {
        self.done as u64 >= self.extent.len
    }
}

const fn is_read(op: Op) -> bool {
    matches!(op, Op::Read(_) | Op::Compare(_) | Op::Verify(_))
}

/// What a command that failed has to say of it.
const fn media_error(fault: Fault, op: Op) -> MediaError {
    match fault {
        Fault::NoCard | Fault::Bus => MediaError::NotReady,
        _ if is_read(op) => MediaError::Read,
        _ => MediaError::Write,
    }
}

impl<SPI: SpiBus, CS: OutputPin> BlockDevice for Card<SPI, CS> {
    type Buffer = Buffer<'static>;

    fn geometry(&self) -> Geometry {
        Geometry {
            block_shift: 9,
            blocks: self.blocks,
            read_only: self.read_only,
            volatile_cache: false,
            deallocate_zeroes: false,
            optimal_blocks: 0,
        }
    }

    fn submit(&mut self, request: Request<Self::Buffer>) -> Submit<Self::Buffer> {
        let extent = match request.op {
            Op::Read(extent) | Op::Compare(extent) | Op::Verify(extent) => extent,
            Op::Write { extent, .. } | Op::WriteZeroes { extent, .. } => extent,
            // What is written is durable, and what is deallocated reads back as it was.
            Op::Flush | Op::Deallocate(_) => return Submit::Done(request.complete(Ok(()))),
        };
        if self.running.is_some() {
            return Submit::Busy(request);
        }
        self.running = Some(Running {
            request,
            extent,
            done: 0,
            stage: Stage::Command,
            waited: 0,
            differs: false,
        });
        Submit::Pending
    }

    fn poll(&mut self) -> Option<Completion<Self::Buffer>> {
        let mut running = self.running.take()?;
        let result = match self.step(&mut running) {
            Ok(false) => {
                self.running = Some(running);
                return None;
            }
            Ok(true) if running.differs => Err(MediaError::Miscompare),
            Ok(true) => Ok(()),
            Err(fault) => Err(media_error(fault, running.request.op)),
        };
        let let_go = self.wire.deselect();
        let result = result.and(let_go.map_err(|_| MediaError::NotReady));
        Some(running.request.complete(result))
    }

    /// At once, while there is something to do.
    fn next_deadline(&self) -> Option<Instant> {
        self.running.as_ref().map(|_| Instant::ZERO)
    }
}

struct Identified {
    blocks: u64,
    read_only: bool,
    by_block: bool,
}

/// Section 7.2.1: from power-up to a card that takes commands.
fn identify<SPI: SpiBus, CS: OutputPin>(
    wire: &mut Wire<SPI, CS>,
    delay: &mut impl DelayNs,
) -> Result<Identified, Fault> {
    const TRIES: usize = 10;
    let mut answer = Err(Fault::NoCard);
    for _ in 0..TRIES {
        answer = wire.command(0, 0);
        if answer == Ok(IDLE) {
            break;
        }
        delay.delay_ms(1);
    }
    match answer? {
        IDLE => {}
        r1 => return Err(Fault::Refused(r1)),
    }
    // 2.7 to 3.6 V, and a pattern that comes back.
    const CONDITION: u32 = 0x1AA;
    let version_2 = match wire.command(8, CONDITION)? {
        IDLE => {
            let echo = u32::from_be_bytes([wire.byte()?, wire.byte()?, wire.byte()?, wire.byte()?]);
            if echo & 0xFFF != CONDITION {
                return Err(Fault::Unknown);
            }
            true
        }
        r1 if r1 & ILLEGAL != 0 => false,
        r1 => return Err(Fault::Refused(r1)),
    };
    // Check sums from here on.
    wire.expect_early(59, 1)?;
    const HIGH_CAPACITY: u32 = 1 << 30;
    let argument = if version_2 { HIGH_CAPACITY } else { 0 };
    let mut left = START_MS;
    while wire.app_command(41, argument)? != 0 {
        left = left.checked_sub(1).ok_or(Fault::TooSlow)?;
        delay.delay_ms(1);
    }
    // QEMU's card says that it is starting whenever it is asked this.
    wire.expect_early(58, 0)?;
    let ocr = u32::from_be_bytes([wire.byte()?, wire.byte()?, wire.byte()?, wire.byte()?]);
    let by_block = ocr & HIGH_CAPACITY != 0;
    if !by_block {
        wire.expect(16, BLOCK as u32)?;
    }
    wire.expect(9, 0)?;
    let mut waits = 0;
    while wire.byte()? != START {
        waits += 1;
        if waits > 1000 {
            return Err(Fault::TooSlow);
        }
    }
    let mut csd = [0; 16];
    wire.data(&mut csd)?;
    Ok(Identified {
        blocks: blocks(&csd).ok_or(Fault::Unknown)?,
        read_only: csd[14] & 0x30 != 0,
        by_block,
    })
}

/// The capacity in a CSD, in blocks of 512 bytes (section 5.3).
fn blocks(csd: &[u8; 16]) -> Option<u64> {
    let byte = |at: usize| u64::from(csd[at]);
    match csd[0] >> 6 {
        0 => {
            let c_size = (byte(6) & 0x3) << 10 | byte(7) << 2 | byte(8) >> 6;
            let c_size_mult = (byte(9) & 0x3) << 1 | byte(10) >> 7;
            let read_bl_len = byte(5) & 0xF;
            Some((c_size + 1) << (c_size_mult + 2 + read_bl_len) >> 9)
        }
        1 => Some((((byte(7) & 0x3F) << 16 | byte(8) << 8 | byte(9)) + 1) << 10),
        _ => None,
    }
}
