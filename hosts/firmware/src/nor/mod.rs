//! NOR flash over SPI, as blocks of 4 KiB.
//!
//! Bits of flash become zeroes one by one, but ones by whole sectors only. So a block
//! that is written is looked at first: what is there already is left alone, and it is
//! erased only if it has zeroes where ones are to be. Afterwards it is read again. That
//! spares the chip, and finds sectors that are protected or worn out.
//!
//! A step moves a page of 256 bytes, or asks the chip whether it is done: while it
//! erases, the network has its turn, and the processor may sleep. The power must not go
//! between erasing and programming: the block is lost then, the old and the new.
mod chip;
mod sfdp;
#[cfg(test)]
mod tests;

use core::time::Duration;

use embedded_hal::spi::SpiDevice;
use nvmf_core::block::{
    BlockDevice, Completion, Extent, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_core::time::Instant;
use nvmf_tcp::smoltcp::memory::Buffer;

pub use self::chip::Fault;
use self::chip::{Chip, PAGE, SECTOR};

/// How long a chip may be busy with a sector: worn ones take some hundred milliseconds.
const PATIENCE: Duration = Duration::from_secs(4);
/// How often it is asked in the time that it typically takes, once that has passed.
const LOOKS: u32 = 8;
/// The pause between two looks at a chip that is busy for a reason not known.
const PAUSE: Duration = Duration::from_millis(1);

static ZEROES: [u8; PAGE] = [0; PAGE];

/// A flash chip. `NOW` says what time it is, by the clock that the server is stepped with.
pub struct Flash<SPI, NOW> {
    chip: Chip<SPI>,
    now: NOW,
    read_only: bool,
    running: Option<Running>,
    /// What a page has.
    page: [u8; PAGE],
}

/// The request under way, a sector after the other.
struct Running {
    request: Request<Buffer<'static>>,
    extent: Extent,
    /// Bytes done: whole sectors, and pages of this one in this stage.
    done: usize,
    stage: Stage,
    busy: Option<Busy>,
    /// What is there differs from what the host compares it with.
    differs: bool,
}

/// The chip has begun with something, and may not be done.
#[derive(Clone, Copy, Debug)]
struct Busy {
    /// When to look, and then how often.
    look: Instant,
    pause: Duration,
    /// By when it has to be done.
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The chip may be busy still, with what an earlier request gave up on.
    Start,
    /// Pages are read, for the host or to compare.
    Read,
    /// Whether the sector has to be erased.
    Look,
    /// The page is to be programmed, if it differs.
    Program,
    /// Whether the sector is what it should be.
    Check,
}

/// What ends a request before it is done.
enum Stop {
    /// The bus fails, or another chip answers, or none.
    Gone,
    /// It does not let itself be changed.
    Protected,
    /// The chip takes too long, or has not stored what it was given.
    Failed,
}

impl From<Fault> for Stop {
    fn from(_: Fault) -> Self {
        Self::Gone
    }
}

impl<SPI: SpiDevice, NOW: FnMut() -> Instant> Flash<SPI, NOW> {
    /// Asks the chip what it is. The bus is in mode 0 or 3, at 50 MHz at most.
    ///
    /// A chip of which a part is protected (BP) cannot be written.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn start(spi: SPI, now: NOW) -> Result<Self, Fault> {
        let mut chip = Chip::identify(spi)?;
        let read_only = chip.is_protected()?;
        Ok(Self {
            chip,
            now,
            read_only,
            running: None,
            page: [0; PAGE],
        })
    }

    /// Manufacturer, kind and size, as JEDEC has it.
    #[must_use]
    pub const fn jedec_id(&self) -> [u8; 3] {
        self.chip.id()
    }

    /// A step of the request; true if it is done.
    fn step(&mut self, running: &mut Running) -> Result<bool, Stop> {
        if let Some(busy) = &mut running.busy {
            let now = (self.now)();
            if now < busy.look {
                return Ok(false);
            }
            if self.chip.is_busy()? {
                busy.look = now.after(busy.pause);
                return if now < busy.until {
                    Ok(false)
                } else {
                    Err(Stop::Failed)
                };
            }
            running.busy = None;
        }
        match running.stage {
            Stage::Start if !self.chip.is_there() => return Err(Stop::Gone),
            Stage::Start => running.stage = running.first_stage(),
            Stage::Read => self.read(running)?,
            Stage::Look => self.look(running)?,
            Stage::Program => self.program(running)?,
            Stage::Check => self.check(running)?,
        }
        Ok(running.done as u64 >= running.extent.len)
    }

    fn read(&mut self, running: &mut Running) -> Result<(), Stop> {
        let at = running.at();
        let place = running.place();
        match (running.request.op, running.request.buffer.as_mut()) {
            (Op::Read(_), Some(buffer)) => {
                self.chip
                    .read(at, buffer.get_mut(place).unwrap_or_default())?;
            }
            (op, buffer) => {
                self.chip.read(at, &mut self.page)?;
                let page = buffer.and_then(|buffer| buffer.get(place));
                let compares = matches!(op, Op::Compare(_));
                running.differs |= compares && page != Some(&self.page[..]);
            }
        }
        running.done += PAGE;
        Ok(())
    }

    /// Looks at a page of the sector; at the first that needs it, erases the sector.
    fn look(&mut self, running: &mut Running) -> Result<(), Stop> {
        self.chip.read(running.at(), &mut self.page)?;
        let wanted = running.wanted();
        let has_zeroes = |(old, new): (&u8, &u8)| new & !old != 0;
        if self.page.iter().zip(wanted).any(has_zeroes) {
            running.done -= running.done % SECTOR;
            if !self.chip.erase(running.at())? {
                return Err(Stop::Protected);
            }
            running.busy = Some(self.busy_for(self.chip.parameters().erase_time));
            running.stage = Stage::Program;
            return Ok(());
        }
        running.done += PAGE;
        if running.is_at_sector() {
            running.done -= SECTOR;
            running.stage = Stage::Program;
        }
        Ok(())
    }

    fn program(&mut self, running: &mut Running) -> Result<(), Stop> {
        self.chip.read(running.at(), &mut self.page)?;
        if self.page != *running.wanted() {
            if !self.chip.program(running.at(), running.wanted())? {
                return Err(Stop::Protected);
            }
            running.busy = Some(self.busy_for(self.chip.parameters().program_time));
        }
        running.done += PAGE;
        if running.is_at_sector() {
            running.done -= SECTOR;
            running.stage = Stage::Check;
        }
        Ok(())
    }

    fn check(&mut self, running: &mut Running) -> Result<(), Stop> {
        self.chip.read(running.at(), &mut self.page)?;
        if self.page != *running.wanted() {
            return Err(Stop::Failed);
        }
        running.done += PAGE;
        if running.is_at_sector() {
            running.stage = Stage::Look;
        }
        Ok(())
    }

    /// The chip has begun with something that typically takes so long.
    fn busy_for(&mut self, typically: Duration) -> Busy {
        let now = (self.now)();
        Busy {
            look: now.after(typically),
            pause: typically / LOOKS,
            until: now.after(PATIENCE),
        }
    }

    /// What a request that ends like that has to say of it.
    fn media_error(&mut self, stop: &Stop, op: Op) -> MediaError {
        match stop {
            Stop::Protected if self.chip.is_there() => MediaError::ReadOnly,
            Stop::Failed if self.chip.is_there() && changes(op) => MediaError::Write,
            Stop::Failed if self.chip.is_there() => MediaError::Read,
            _ => MediaError::NotReady,
        }
    }
}

impl Running {
    fn first_stage(&self) -> Stage {
        if changes(self.request.op) {
            Stage::Look
        } else {
            Stage::Read
        }
    }

    /// Where the page is in the chip.
    fn at(&self) -> u64 {
        self.extent.byte + self.done as u64
    }

    /// And in the request's buffer.
    fn place(&self) -> core::ops::Range<usize> {
        self.done..self.done + PAGE
    }

    /// What is to be in the page.
    fn wanted(&self) -> &[u8] {
        let buffer = self.request.buffer.as_ref();
        let page = buffer.and_then(|buffer| buffer.get(self.place()));
        match self.request.op {
            Op::Write { .. } => page.unwrap_or(&ZEROES),
            _ => &ZEROES,
        }
    }

    fn is_at_sector(&self) -> bool {
        self.done.is_multiple_of(SECTOR)
    }
}

const fn changes(op: Op) -> bool {
    matches!(op, Op::Write { .. } | Op::WriteZeroes { .. })
}

impl<SPI: SpiDevice, NOW: FnMut() -> Instant> BlockDevice for Flash<SPI, NOW> {
    type Buffer = Buffer<'static>;

    fn geometry(&self) -> Geometry {
        Geometry {
            block_shift: SECTOR.ilog2() as u8,
            blocks: self.chip.parameters().bytes / SECTOR as u64,
            read_only: self.read_only,
            volatile_cache: false,
            deallocate_zeroes: false,
            optimal_blocks: 0,
        }
    }

    fn submit(&mut self, request: Request<Self::Buffer>) -> Submit<Self::Buffer> {
        if self.running.is_some() {
            return Submit::Busy(request);
        }
        let extent = match request.op {
            Op::Read(extent) | Op::Compare(extent) | Op::Verify(extent) => extent,
            Op::Write { extent, .. } | Op::WriteZeroes { extent, .. } => extent,
            // What is erased reads as ones, and whoever deallocates is to find
            // zeroes or what there was.
            Op::Deallocate(_) | Op::Flush => return Submit::Done(request.complete(Ok(()))),
        };
        let now = (self.now)();
        self.running = Some(Running {
            request,
            extent,
            done: 0,
            stage: Stage::Start,
            busy: Some(Busy {
                look: now,
                pause: PAUSE,
                until: now.after(PATIENCE),
            }),
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
            Err(stop) => Err(self.media_error(&stop, running.request.op)),
        };
        Some(running.request.complete(result))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let running = self.running.as_ref()?;
        Some(running.busy.map_or(Instant::ZERO, |busy| busy.look))
    }
}
