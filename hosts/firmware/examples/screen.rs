//! Reads the text of a display in a picture (PPM, 512 x 256, as QEMU's SSD0323 has it
//! by `screendump`) from stdin. Fails if anything else is in it.
use std::convert::Infallible;
use std::io::{self, Read};

use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::ascii::FONT_8X13;
use embedded_graphics::pixelcolor::BinaryColor;
use embedded_graphics::text::{Baseline, Text};
use embedded_graphics::{Drawable, Pixel};
use nvmf_firmware::display::{COLUMNS, LINES};

/// Pixels of the picture for one of the display, each way.
const SCALE: usize = 4;
/// Pixels of a character and what is below it.
const WIDTH: usize = 8;
const HEIGHT: usize = 16;
/// Bytes of a row.
const ROW: usize = WIDTH * COLUMNS * SCALE * 3;

/// The pixels of a character's place.
#[derive(PartialEq, Eq)]
struct Cell([[bool; WIDTH]; HEIGHT]);

impl Cell {
    /// As embedded-graphics draws it.
    fn of(character: char) -> Self {
        let mut cell = Self([[false; WIDTH]; HEIGHT]);
        let style = MonoTextStyle::new(&FONT_8X13, BinaryColor::On);
        let mut bytes = [0; 4];
        let text = character.encode_utf8(&mut bytes);
        let text = Text::with_baseline(text, Point::zero(), style, Baseline::Top);
        let Ok(_) = text.draw(&mut cell);
        cell
    }
}

impl OriginDimensions for Cell {
    fn size(&self) -> Size {
        Size::new(WIDTH as u32, HEIGHT as u32)
    }
}

impl DrawTarget for Cell {
    type Color = BinaryColor;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<BinaryColor>>>(
        &mut self,
        pixels: I,
    ) -> Result<(), Infallible> {
        for Pixel(Point { x, y }, color) in pixels {
            self.0[y as usize][x as usize] = color.is_on();
        }
        Ok(())
    }
}

/// Whether a pixel is lit: its picture is white or black, and one colour.
fn is_lit(picture: &[u8], x: usize, y: usize) -> Option<bool> {
    let rows = picture.chunks_exact(ROW).skip(y * SCALE).take(SCALE);
    let mut bytes = rows.flat_map(|row| &row[x * SCALE * 3..(x + 1) * SCALE * 3]);
    let first = *bytes.next()?;
    (matches!(first, 0 | 255) && bytes.all(|byte| *byte == first)).then_some(first == 255)
}

fn read(picture: &[u8], line: usize, column: usize) -> Option<char> {
    let mut cell = Cell([[false; WIDTH]; HEIGHT]);
    for (y, row) in cell.0.iter_mut().enumerate() {
        for (x, pixel) in row.iter_mut().enumerate() {
            *pixel = is_lit(picture, column * WIDTH + x, line * HEIGHT + y)?;
        }
    }
    (' '..='~').find(|character| Cell::of(*character) == cell)
}

fn main() -> io::Result<()> {
    let mut file = Vec::new();
    io::stdin().read_to_end(&mut file)?;
    let header = format!("P6\n{} {}\n255\n", ROW / 3, HEIGHT * LINES * SCALE);
    let picture = file
        .strip_prefix(header.as_bytes())
        .ok_or_else(|| io::Error::other("no picture of the display"))?;
    for line in 0..LINES {
        let characters = (0..COLUMNS).map(|column| {
            read(picture, line, column)
                .ok_or_else(|| io::Error::other(format!("no character at {line}, {column}")))
        });
        let text = characters.collect::<io::Result<String>>()?;
        println!("{}", text.trim_end());
    }
    Ok(())
}
