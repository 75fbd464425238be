//! The driver against a controller that is written down from its data sheet, and
//! text as embedded-graphics draws it.
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::string::String;
use std::vec;
use std::vec::Vec;

use embedded_graphics::Drawable;
use embedded_graphics::Pixel;
use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::ascii::FONT_8X13;
use embedded_graphics::pixelcolor::BinaryColor;
use embedded_graphics::text::{Baseline, Text};
use embedded_hal::digital;
use embedded_hal::spi::{self, ErrorKind, Operation};
use smoltcp::wire::Ipv4Address;

use super::*;

/// Two pixels a byte, 64 bytes a row.
struct Controller {
    memory: Vec<u8>,
    data: bool,
    /// Columns and rows that are written, and where next.
    columns: [usize; 2],
    rows: [usize; 2],
    next: [usize; 2],
    /// Somebody else has the bus.
    taken: bool,
    transactions: usize,
}

impl Controller {
    fn command(&mut self, bytes: &[u8]) {
        match *bytes {
            [0x15, first, last] => {
                self.columns = [first.into(), last.into()];
                self.next[0] = first.into();
            }
            [0x75, first, last] => {
                self.rows = [first.into(), last.into()];
                self.next[1] = first.into();
            }
            [0xAF] => {}
            _ => panic!("{bytes:x?} is no command"),
        }
    }

    fn write(&mut self, byte: u8) {
        let [column, row] = self.next;
        self.memory[row * 64 + column] = byte;
        self.next[0] += 1;
        if self.next[0] > self.columns[1] {
            self.next = [self.columns[0], row + 1];
        }
        if self.next[1] > self.rows[1] {
            self.next[1] = self.rows[0];
        }
    }
}

#[derive(Clone)]
struct Spi(Rc<RefCell<Controller>>);
struct DataPin(Rc<RefCell<Controller>>);

impl spi::ErrorType for Spi {
    type Error = ErrorKind;
}

impl spi::SpiDevice for Spi {
    fn transaction(&mut self, operations: &mut [Operation<'_, u8>]) -> Result<(), ErrorKind> {
        let mut controller = self.0.borrow_mut();
        if controller.taken {
            return Err(ErrorKind::Other);
        }
        controller.transactions += 1;
        for operation in operations {
            match operation {
                Operation::Write(bytes) if controller.data => {
                    bytes.iter().for_each(|byte| controller.write(*byte));
                }
                Operation::Write(bytes) => controller.command(bytes),
                _ => panic!("it cannot be read"),
            }
        }
        Ok(())
    }
}

impl digital::ErrorType for DataPin {
    type Error = Infallible;
}

impl digital::OutputPin for DataPin {
    fn set_low(&mut self) -> Result<(), Infallible> {
        self.0.borrow_mut().data = false;
        Ok(())
    }

    fn set_high(&mut self) -> Result<(), Infallible> {
        self.0.borrow_mut().data = true;
        Ok(())
    }
}

/// The memory that embedded-graphics' own text would make.
struct Expected(Vec<u8>);

impl Expected {
    fn of(lines: [&str; LINES]) -> Self {
        let mut expected = Self(vec![0; 64 * 64]);
        let style = MonoTextStyle::new(&FONT_8X13, BinaryColor::On);
        for (line, text) in lines.into_iter().enumerate() {
            let at = Point::new(0, line as i32 * 16);
            let text = Text::with_baseline(text, at, style, Baseline::Top);
            text.draw(&mut expected).unwrap();
        }
        expected
    }
}

impl OriginDimensions for Expected {
    fn size(&self) -> Size {
        Size::new(128, 64)
    }
}

impl DrawTarget for Expected {
    type Color = BinaryColor;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<BinaryColor>>>(
        &mut self,
        pixels: I,
    ) -> Result<(), Infallible> {
        for Pixel(Point { x, y }, color) in pixels {
            let (x, y) = (x as usize, y as usize);
            if color.is_on() {
                self.0[y * 64 + x / 2] |= if x.is_multiple_of(2) { 0xF0 } else { 0x0F };
            }
        }
        Ok(())
    }
}

fn connect() -> (Rc<RefCell<Controller>>, Display<Spi, DataPin>) {
    let controller = Rc::new(RefCell::new(Controller {
        // What it has when it is powered.
        memory: vec![0x5A; 80 * 64],
        data: true,
        columns: [0, 63],
        rows: [0, 79],
        next: [0, 0],
        taken: false,
        transactions: 0,
    }));
    let spi = Spi(controller.clone());
    let pin = DataPin(controller.clone());
    let display = Display::start(spi, pin, &[0xAF], 4420).unwrap();
    (controller, display)
}

const STATUS: Status = Status {
    address: Some(Ipv4Address::new(10, 0, 2, 15)),
    connections: 2,
    operations: 0,
};

const SHOWN: [&str; LINES] = ["10.0.2.15", "port 4420", "connections 2", "IOPS 0"];

fn at(millis: u64) -> Instant {
    Instant::from_micros(millis * 1000)
}

/// Steps until all is shown; how many it took.
fn settle(display: &mut Display<Spi, DataPin>, now: Instant, status: &Status) -> usize {
    (0..1000).find(|_| display.step(now, status) > now).unwrap()
}

fn assert_shows(controller: &Rc<RefCell<Controller>>, lines: [&str; LINES]) {
    assert!(!controller.borrow().data, "left at data");
    assert!(
        controller.borrow().memory[..64 * 64] == Expected::of(lines).0,
        "{lines:?}"
    );
}

#[test]
fn shows_how_the_server_does() {
    let (controller, mut display) = connect();
    assert_shows(&controller, [""; LINES]);
    settle(&mut display, at(1000), &STATUS);
    assert_shows(&controller, SHOWN);

    // 250 in half a second, and the counter wraps.
    let before = Status {
        operations: u32::MAX - 9,
        ..STATUS
    };
    settle(&mut display, at(1500), &before);
    let status = Status {
        address: None,
        connections: 0,
        operations: 240,
    };
    settle(&mut display, at(2000), &status);
    assert_shows(
        &controller,
        ["no address", "port 4420", "connections 0", "IOPS 500"],
    );
}

#[test]
fn a_step_sends_one_character_and_nothing_that_is_there() {
    let (controller, mut display) = connect();
    let characters: String = ["10.0.2.15", "port4420", "connections2", "IOPS0"].concat();
    assert_eq!(settle(&mut display, at(1000), &STATUS), characters.len());
    let before = controller.borrow().transactions;
    let one_more = Status {
        connections: 3,
        ..STATUS
    };
    // Not before the text is made anew.
    assert_eq!(display.step(at(1499), &one_more), at(1500));
    assert_eq!(controller.borrow().transactions, before);
    assert_eq!(display.step(at(1500), &one_more), at(1500));
    // Columns, rows and pixels.
    assert_eq!(controller.borrow().transactions, before + 3);
    assert_eq!(display.step(at(1501), &one_more), at(2000));
    assert_eq!(controller.borrow().transactions, before + 3);
}

#[test]
fn waits_for_a_bus_that_is_taken() {
    let (controller, mut display) = connect();
    controller.borrow_mut().taken = true;
    assert_eq!(display.step(at(0), &STATUS), at(0));
    assert_eq!(display.step(at(1), &STATUS), at(1));
    assert_shows(&controller, [""; LINES]);
    controller.borrow_mut().taken = false;
    settle(&mut display, at(2), &STATUS);
    assert_shows(&controller, SHOWN);
}

#[test]
fn takes_the_bus_that_it_waited_for() {
    let (controller, mut display) = connect();
    settle(&mut display, at(0), &STATUS);
    controller.borrow_mut().taken = true;
    let one_more = Status {
        connections: 3,
        ..STATUS
    };
    assert_eq!(display.step(at(500), &one_more), at(500));
    // There is nothing to be changed any more.
    assert_eq!(display.step(at(1000), &STATUS), at(1000));
    let before = controller.borrow().transactions;
    controller.borrow_mut().taken = false;
    assert_eq!(display.step(at(1001), &STATUS), at(1001));
    assert_eq!(controller.borrow().transactions, before + 3);
    assert_eq!(display.step(at(1002), &STATUS), at(1500));
    assert_shows(&controller, SHOWN);
}

#[test]
fn what_does_not_fit_is_cut() {
    let (controller, mut display) = connect();
    let operations = 4_000_000_000;
    let status = Status {
        address: Some(Ipv4Address::new(255, 255, 255, 255)),
        connections: 123_456,
        operations,
    };
    settle(&mut display, Instant::from_micros(1), &status);
    let lines = [
        "255.255.255.255",
        "port 4420",
        "connections 1234",
        "IOPS 40000000000",
    ];
    assert_shows(&controller, lines);
}
