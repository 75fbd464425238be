//! Text on an SSD0323, without a copy of its pixels.
use core::fmt::{self, Write};

use embedded_graphics::geometry::{OriginDimensions, Point};
use embedded_graphics::image::GetPixel;
use embedded_graphics::mono_font::MonoFont;
use embedded_graphics::mono_font::ascii::FONT_8X13;
use embedded_graphics::pixelcolor::BinaryColor;
use embedded_hal::digital::OutputPin;
use embedded_hal::spi::SpiDevice;

const FONT: &MonoFont = &FONT_8X13;
/// Pixels of a character.
const WIDTH: usize = 8;
const HEIGHT: usize = 13;
/// Pixels of the display.
const ACROSS: usize = 128;
const DOWN: usize = 64;
/// Rows of pixels from a line to the next.
const LINE: usize = 16;
/// Pixels of a byte.
const PACKED: usize = 2;

/// Characters of a line.
pub const COLUMNS: usize = ACROSS / WIDTH;
/// Lines of text.
pub const LINES: usize = DOWN / LINE;

/// Commands.
const SET_COLUMNS: u8 = 0x15;
const SET_ROWS: u8 = 0x75;

/// The bus or the pin failed, or the bus is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// What the display shows, and what it is to show.
pub(super) struct Text<SPI, DC> {
    spi: SPI,
    /// High for data, low for commands.
    data: DC,
    shown: [u8; LINES * COLUMNS],
    wanted: [u8; LINES * COLUMNS],
    /// For which character the bus was not free: it is sent even if it changed back, so
    /// that whoever keeps the bus free for it does not do so for ever.
    waiting: Option<usize>,
}

impl<SPI: SpiDevice, DC: OutputPin> Text<SPI, DC> {
    pub(super) fn start(spi: SPI, data: DC, panel: &[u8]) -> Result<Self, Fault> {
        let mut text = Self {
            spi,
            data,
            shown: [b' '; LINES * COLUMNS],
            wanted: [b' '; LINES * COLUMNS],
            waiting: None,
        };
        text.command(panel)?;
        text.window([0, 0], [ACROSS, DOWN])?;
        for _ in 0..DOWN {
            text.pixels(&[0; ACROSS / PACKED])?;
        }
        Ok(text)
    }

    /// A line is to have this text, as far as it fits.
    pub(super) fn write(&mut self, line: usize, text: fmt::Arguments) {
        let start = line * COLUMNS;
        if let Some(places) = self.wanted.get_mut(start..start + COLUMNS) {
            places.fill(b' ');
            // The end of the line is the only error.
            let _ = Line(places).write_fmt(text);
        }
    }

    /// Sends a character that differs. False if there was none.
    pub(super) fn step(&mut self) -> bool {
        let mut both = self.shown.iter().zip(&self.wanted);
        let differs = both.position(|(shown, wanted)| shown != wanted);
        let Some(at) = self.waiting.or(differs) else {
            return false;
        };
        self.waiting = match self.draw(at, self.wanted[at]) {
            Ok(()) => {
                self.shown[at] = self.wanted[at];
                None
            }
            Err(Fault) => Some(at),
        };
        true
    }

    fn draw(&mut self, at: usize, character: u8) -> Result<(), Fault> {
        let from = [at % COLUMNS * WIDTH, at / COLUMNS * LINE];
        self.window(from, [WIDTH, HEIGHT])?;
        self.pixels(&glyph(character))
    }

    /// What is sent next fills a rectangle, its columns first.
    fn window(&mut self, [x, y]: [usize; 2], [width, height]: [usize; 2]) -> Result<(), Fault> {
        let column = |x: usize| (x / PACKED) as u8;
        let (right, below) = (x + width, y + height - 1);
        self.command(&[SET_COLUMNS, column(x), column(right) - 1])?;
        self.command(&[SET_ROWS, y as u8, below as u8])
    }

    fn command(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.data.set_low().map_err(|_| Fault)?;
        self.spi.write(bytes).map_err(|_| Fault)
    }

    /// Commands are what the bus has at the end: a controller that hears what is for
    /// another device takes ones for nothing then.
    fn pixels(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.data.set_high().map_err(|_| Fault)?;
        let sent = self.spi.write(bytes).map_err(|_| Fault);
        self.data.set_low().map_err(|_| Fault)?;
        sent
    }
}

/// A character's pixels, the left one of two in the high bits, of which all are set or none.
fn glyph(character: u8) -> [u8; WIDTH / PACKED * HEIGHT] {
    let per_row = FONT.image.size().width as usize / WIDTH;
    let index = FONT.glyph_mapping.index(character.into());
    let (left, top) = (index % per_row * WIDTH, index / per_row * HEIGHT);
    let level = |x: usize, y: usize| match FONT.image.pixel(Point::new(x as i32, y as i32)) {
        Some(BinaryColor::On) => 0xF,
        _ => 0,
    };
    core::array::from_fn(|at| {
        let x = left + at * PACKED % WIDTH;
        let y = top + at * PACKED / WIDTH;
        level(x, y) << 4 | level(x + 1, y)
    })
}

/// What is left of a line.
struct Line<'a>(&'a mut [u8]);

impl Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let place = self.0.split_off_first_mut().ok_or(fmt::Error)?;
            *place = byte;
        }
        Ok(())
    }
}
