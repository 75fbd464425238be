//! SD and SDHC cards over SPI, a step at a time: while a card is busy or looks for data,
//! the network has its turn.
//!
//! A card may be pulled: requests fail with [`MediaError::NotReady`] until it is
//! back. What else goes wrong is tried again once, after the card was reset.
//!
//! The card stays selected for as long as a command and its data take, which
//! is many steps; so this takes the bus and the pin, and not an `SpiDevice`,
//! which would let go of the card between them.
mod crc;
mod identify;
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

use self::identify::{Identification, Identity};
pub use self::wire::Fault;
use self::wire::{BLOCK, START, START_MULTIPLE, STOP_MULTIPLE, Wire};

/// How long it may be busy, or look for a block, in milliseconds (sections 4.6.2.1, 4.6.2.2:
/// 100 and 250; some take longer).
const WAIT_MS: u32 = 500;
/// Bytes that one step waits for the card.
const WAIT_BYTES: u32 = 32;

static ZEROES: [u8; BLOCK] = [0; BLOCK];

/// A bus in mode 0, of which a card decides how fast it is.
pub trait Bus: SpiBus {
    /// 100 to 400 kHz, for a card that comes up: called before anything is moved.
    fn slow(&mut self);

    /// What is used from then on, 25 MHz at most. Says how many bytes pass in a
    /// millisecond.
    fn fast(&mut self) -> u32;

    /// Whether something else waits for the bus. The card begins no command until it has
    /// had it, which must not take it long.
    fn is_wanted(&self) -> bool {
        false
    }
}

/// A card that was up, and may be pulled and put back.
pub struct Card<SPI, CS> {
    wire: Wire<SPI, CS>,
    identity: Identity,
    /// Whether the next request has to see first which card is there, if any.
    lost: bool,
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
    /// It is not tried once more.
    last_try: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The card is to come up.
    Identifying(Identification),
    /// The command is to be sent.
    Command,
    /// A block is to come.
    Token,
    /// The card is busy; then come the next block, or the end.
    Busy,
    /// The card is busy for the last time.
    Ending,
}

impl<SPI: Bus, CS: OutputPin> Card<SPI, CS> {
    /// Has the card come up, which may take a second or three.
    ///
    /// # Errors
    /// Why there is no card to be used.
    pub fn start(spi: SPI, cs: CS, delay: &mut impl DelayNs) -> Result<Self, Fault> {
        let mut wire = Wire::new(spi, cs);
        let mut identification = Identification::new();
        let identity = loop {
            match identification.step(&mut wire) {
                Ok(Some(identity)) => break identity,
                Ok(None) => delay.delay_ms(1),
                Err(fault) => {
                    let _ = wire.deselect();
                    return Err(fault);
                }
            }
        };
        let patience = wire.spi.fast().saturating_mul(WAIT_MS);
        Ok(Self {
            wire,
            identity,
            lost: false,
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
            Stage::Identifying(identification) => {
                self.identify(running, identification).map(|()| false)
            }
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

    /// The same card may be used on.
    fn identify(
        &mut self,
        running: &mut Running,
        mut identification: Identification,
    ) -> Result<(), Fault> {
        running.stage = match identification.step(&mut self.wire)? {
            None => Stage::Identifying(identification),
            Some(identity) if identity == self.identity => {
                self.patience = self.wire.spi.fast().saturating_mul(WAIT_MS);
                self.lost = false;
                Stage::Command
            }
            Some(_) => return Err(Fault::Another),
        };
        Ok(())
    }

    fn command(&mut self, running: &mut Running) -> Result<(), Fault> {
        if self.wire.spi.is_wanted() {
            return Ok(());
        }
        self.wire.select()?;
        let extent = running.extent;
        let at = if self.identity.by_block {
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
    /// From the beginning: from the card's, if that is `lost`.
    const fn new(request: Request<Buffer<'static>>, extent: Extent, lost: bool) -> Self {
        Self {
            request,
            extent,
            done: 0,
            stage: if lost {
                Stage::Identifying(Identification::new())
            } else {
                Stage::Command
            },
            waited: 0,
            differs: false,
            last_try: lost,
        }
    }

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

/// What a request that failed has to say of it.
const fn media_error(fault: Fault, running: &Running) -> MediaError {
    match fault {
        Fault::NoCard | Fault::Bus => MediaError::NotReady,
        _ if matches!(running.stage, Stage::Identifying(_)) => MediaError::NotReady,
        _ if is_read(running.request.op) => MediaError::Read,
        _ => MediaError::Write,
    }
}

impl<SPI: Bus, CS: OutputPin> BlockDevice for Card<SPI, CS> {
    type Buffer = Buffer<'static>;

    fn geometry(&self) -> Geometry {
        Geometry {
            block_shift: 9,
            blocks: self.identity.blocks,
            read_only: self.identity.read_only,
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
        self.running = Some(Running::new(request, extent, self.lost));
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
            Err(fault) => {
                self.lost = true;
                if !running.last_try {
                    self.running = Some(Running::new(running.request, running.extent, true));
                    return None;
                }
                Err(media_error(fault, &running))
            }
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
