//! The driver against a card that is written down from the specification, and
//! takes no byte that it may not.
use std::boxed::Box;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::vec::Vec;
use std::{format, vec};

use embedded_hal::{digital, spi};

use super::crc::{crc7, crc16};
use super::*;

const BLOCKS: usize = 2048;

/// A high capacity card.
struct Model {
    stored: Vec<u8>,
    selected: bool,
    /// Out of its socket.
    pulled: bool,
    up: bool,
    /// How often ACMD41 is still answered with "idle".
    starting: u32,
    application: bool,
    /// What comes in, of a command or a block.
    input: Vec<u8>,
    /// What it has to say.
    output: VecDeque<u8>,
    /// Bytes that it is busy for after a block, and looks for one.
    delay: usize,
    mode: Mode,
    /// Of so many blocks that it sends, one bit is wrong.
    corrupt: u32,
    serial: u8,
    /// What it says to blocks that it gets, if not "accepted".
    refuses: Option<u8>,
    /// Never ready again.
    stuck: bool,
    /// The clock is one for cards that are up.
    fast: bool,
    /// Eight clocks passed since it answered: a command may come.
    rested: bool,
    /// Something else waits for the bus.
    wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Command,
    /// Blocks come from the card, at this byte.
    Sending(usize),
    /// Blocks go to the card.
    Receiving {
        at: usize,
        multiple: bool,
    },
}

impl Model {
    fn exchange(&mut self, byte: u8) -> u8 {
        if self.pulled || !self.selected {
            return 0xFF;
        }
        if self.stuck {
            return if matches!(self.mode, Mode::Sending(_)) {
                0xFF
            } else {
                0
            };
        }
        if let Mode::Sending(at) = self.mode
            && self.output.is_empty()
        {
            self.send_block(at);
            self.mode = Mode::Sending(at + BLOCK);
        }
        if self.input.is_empty() && byte == 0xFF {
            self.rested |= self.output.is_empty() || matches!(self.mode, Mode::Sending(_));
        }
        let answer = self.output.pop_front().unwrap_or(0xFF);
        self.take(byte);
        answer
    }

    fn take(&mut self, byte: u8) {
        if let Mode::Receiving { at, multiple } = self.mode {
            return self.take_data(byte, at, multiple);
        }
        if self.input.is_empty() && byte == 0xFF {
            return;
        }
        assert!(self.rested, "{byte:#x} right behind an answer");
        self.input.push(byte);
        if self.input.len() == 6 {
            self.rested = false;
            let input = core::mem::take(&mut self.input);
            assert_eq!(input[0] >> 6, 1, "not a command: {input:x?}");
            assert_eq!(input[5], crc7(&input[..5]), "CRC7 of {input:x?}");
            let argument = u32::from_be_bytes(input[1..5].try_into().unwrap());
            self.command(input[0] & 0x3F, argument);
        }
    }

    fn command(&mut self, index: u8, argument: u32) {
        let idle = u8::from(!self.up);
        let early = matches!(index, 0 | 8 | 9 | 10 | 16 | 41 | 55 | 58 | 59);
        assert_ne!(self.fast, early, "CMD{index} at the wrong speed");
        let application = core::mem::take(&mut self.application);
        let block = argument as usize * BLOCK;
        self.output.clear();
        // It takes a while to answer.
        self.output.extend([0xFF, 0xFF]);
        match (index, application) {
            (0, _) => {
                (self.up, self.mode) = (false, Mode::Command);
                self.output.push_back(1);
            }
            (8, _) => {
                self.output.push_back(1);
                self.output.extend(argument.to_be_bytes());
            }
            (59, _) => self.output.push_back(idle),
            (55, _) => {
                self.application = true;
                self.output.push_back(idle);
            }
            (41, true) => {
                assert_eq!(argument, 1 << 30);
                self.starting = self.starting.saturating_sub(1);
                self.up = self.starting == 0;
                self.output.push_back(u8::from(!self.up));
            }
            (58, _) => self.output.extend([0, 0xC0, 0xFF, 0x80, 0]),
            _ if !self.up => self.output.push_back(5),
            (9, _) => {
                let mut csd = [0; 16];
                csd[0] = 0x40;
                csd[9] = (BLOCKS / 1024 - 1) as u8;
                self.output.push_back(0);
                self.say_block(&csd.clone());
            }
            (10, _) => {
                self.output.push_back(0);
                self.say_block(&[self.serial; 16]);
            }
            (17, _) => {
                self.output.push_back(0);
                self.send_block(block);
            }
            (18, _) => {
                self.output.push_back(0);
                self.mode = Mode::Sending(block);
            }
            (12, _) => {
                assert!(matches!(self.mode, Mode::Sending(_)), "nothing to stop");
                self.mode = Mode::Command;
                self.output.push_back(0);
                self.be_busy();
            }
            (24 | 25, _) => {
                self.output.push_back(0);
                self.mode = Mode::Receiving {
                    at: block,
                    multiple: index == 25,
                };
            }
            (13, _) => self.output.extend([0, 0]),
            _ => panic!("CMD{index} {argument:#x}"),
        }
    }

    fn send_block(&mut self, at: usize) {
        // Behind its last block it has nothing to say.
        if at < self.stored.len() {
            let block = self.stored[at..at + BLOCK].to_vec();
            self.say_block(&block);
            if self.corrupt > 0 {
                self.corrupt -= 1;
                let last = self.output.len() - 5;
                self.output[last] ^= 0x10;
            }
        }
    }

    fn say_block(&mut self, block: &[u8]) {
        self.output.extend(vec![0xFF; self.delay]);
        self.output.push_back(0xFE);
        self.output.extend(block);
        self.output.extend(crc16(block).to_be_bytes());
    }

    fn be_busy(&mut self) {
        self.output.extend(vec![0; self.delay]);
    }

    fn take_data(&mut self, byte: u8, at: usize, multiple: bool) {
        if self.input.is_empty() {
            match byte {
                0xFF => return,
                0xFE if !multiple => {}
                0xFC if multiple => {}
                0xFD if multiple => {
                    self.mode = Mode::Command;
                    // One byte passes before it is busy.
                    self.output.push_back(0xFF);
                    return self.be_busy();
                }
                _ => panic!("token {byte:#x}"),
            }
            assert!(self.output.iter().all(|byte| *byte != 0), "it is busy");
        }
        self.input.push(byte);
        if self.input.len() == 1 + BLOCK + 2 {
            let input = core::mem::take(&mut self.input);
            let (data, crc) = input[1..].split_at(BLOCK);
            assert_eq!(crc, crc16(data).to_be_bytes(), "CRC16");
            self.output.clear();
            match self.refuses {
                Some(response) => self.output.push_back(response),
                None => {
                    self.stored[at..at + BLOCK].copy_from_slice(data);
                    self.output.push_back(0xE5);
                }
            }
            self.be_busy();
            self.mode = if multiple {
                let at = at + BLOCK;
                Mode::Receiving { at, multiple }
            } else {
                Mode::Command
            };
        }
    }
}

/// Bus and chip select of a card.
#[derive(Clone)]
struct Socket(Rc<RefCell<Model>>);

impl spi::ErrorType for Socket {
    type Error = Infallible;
}

impl SpiBus for Socket {
    fn read(&mut self, words: &mut [u8]) -> Result<(), Infallible> {
        words.fill(0xFF);
        self.transfer_in_place(words)
    }

    fn write(&mut self, words: &[u8]) -> Result<(), Infallible> {
        self.transfer_in_place(&mut words.to_vec())
    }

    fn transfer(&mut self, read: &mut [u8], write: &[u8]) -> Result<(), Infallible> {
        read.copy_from_slice(write);
        self.transfer_in_place(read)
    }

    fn transfer_in_place(&mut self, words: &mut [u8]) -> Result<(), Infallible> {
        for word in words {
            *word = self.0.borrow_mut().exchange(*word);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Bus for Socket {
    fn slow(&mut self) {
        self.0.borrow_mut().fast = false;
    }

    fn fast(&mut self) -> u32 {
        self.0.borrow_mut().fast = true;
        10
    }

    fn is_wanted(&self) -> bool {
        self.0.borrow().wanted
    }
}

impl digital::ErrorType for Socket {
    type Error = Infallible;
}

impl OutputPin for Socket {
    fn set_low(&mut self) -> Result<(), Infallible> {
        self.0.borrow_mut().selected = true;
        Ok(())
    }

    fn set_high(&mut self) -> Result<(), Infallible> {
        let mut model = self.0.borrow_mut();
        assert!(model.input.is_empty(), "let go amid {:?}", model.mode);
        model.selected = false;
        // The next command begins anew.
        model.mode = Mode::Command;
        model.output.clear();
        Ok(())
    }
}

/// Time passes in no time.
struct NoDelay;

impl DelayNs for NoDelay {
    fn delay_ns(&mut self, _: u32) {}
}

type TestCard = Card<Socket, Socket>;

fn card(delay: usize) -> (TestCard, Rc<RefCell<Model>>) {
    let model = Rc::new(RefCell::new(Model {
        stored: vec![0; BLOCKS * BLOCK],
        selected: false,
        pulled: false,
        up: false,
        starting: 5,
        application: false,
        input: Vec::new(),
        output: VecDeque::new(),
        delay,
        mode: Mode::Command,
        corrupt: 0,
        serial: 1,
        refuses: None,
        stuck: false,
        fast: true,
        rested: false,
        wanted: false,
    }));
    let socket = || Socket(Rc::clone(&model));
    let card = Card::start(socket(), socket(), &mut NoDelay).unwrap();
    (card, model)
}

/// Runs an operation; its data, and how it went after how many steps.
fn run(card: &mut TestCard, op: Op, data: &[u8]) -> (Vec<u8>, Result<(), MediaError>, usize) {
    let buffer: Buffer<'static> = Box::leak(data.to_vec().into_boxed_slice());
    let request = Request {
        tag: 7,
        op,
        buffer: (!data.is_empty()).then_some(buffer),
    };
    assert!(matches!(card.submit(request), Submit::Pending), "{op:?}");
    for steps in 1..10_000 {
        assert_eq!(card.next_deadline(), Some(Instant::ZERO));
        if let Some(completion) = card.poll() {
            assert_eq!((completion.tag, card.next_deadline()), (7, None));
            let data = completion.buffer.map_or(Vec::new(), |data| data.to_vec());
            return (data, completion.result, steps);
        }
    }
    panic!("{op:?} does not end");
}

fn extent(block: usize, blocks: usize) -> Extent {
    Extent {
        byte: (block * BLOCK) as u64,
        len: (blocks * BLOCK) as u64,
    }
}

fn write(block: usize, blocks: usize) -> Op {
    Op::Write {
        extent: extent(block, blocks),
        fua: false,
    }
}

#[test]
fn what_is_read_was_written() {
    for delay in [0, 1, 40, 300] {
        let (mut card, model) = card(delay);
        assert_eq!(card.geometry().blocks, BLOCKS as u64);
        for (block, blocks) in [(0, 1), (1, 16), (BLOCKS - 3, 3), (BLOCKS - 1, 1)] {
            let data: Vec<u8> = (0..blocks * BLOCK)
                .map(|at| (at / 3) as u8 ^ 0x5A)
                .collect();
            let (_, result, steps) = run(&mut card, write(block, blocks), &data);
            assert_eq!(result, Ok(()), "block {block}");
            // It waits a little at a time, and not for a block and the next in one step.
            assert!(steps > blocks * (1 + delay / 32), "{steps} steps");
            let stored = model.borrow().stored[block * BLOCK..][..data.len()].to_vec();
            assert!(stored == data, "block {block} is stored otherwise");
            let blank = vec![0; data.len()];
            let (read, result, _) = run(&mut card, Op::Read(extent(block, blocks)), &blank);
            assert_eq!(result, Ok(()));
            assert!(read == data, "block {block} is read otherwise");
        }
    }
}

#[test]
fn compares_verifies_and_zeroes() {
    let (mut card, model) = card(3);
    model.borrow_mut().stored.fill(7);
    let mut data = vec![7; 4 * BLOCK];
    let op = Op::Compare(extent(8, 4));
    assert_eq!(run(&mut card, op, &data).1, Ok(()));
    data[BLOCK] ^= 1;
    let (_, result, _) = run(&mut card, op, &data);
    assert_eq!(result, Err(MediaError::Miscompare));
    assert_eq!(run(&mut card, Op::Verify(extent(0, 9)), &[]).1, Ok(()));
    let zeroes = Op::WriteZeroes {
        extent: extent(4, 2),
        deallocate: false,
        fua: false,
    };
    assert_eq!(run(&mut card, zeroes, &[]).1, Ok(()));
    let stored = &model.borrow().stored;
    assert!(stored[4 * BLOCK..6 * BLOCK] == [0; 2 * BLOCK]);
    assert!(stored[..4 * BLOCK] == [7; 4 * BLOCK] && stored[6 * BLOCK] == 7);
}

/// A read and a write, and how they ended.
fn read_and_write(card: &mut TestCard) -> [Result<(), MediaError>; 2] {
    let read = run(card, Op::Read(extent(0, 4)), &[0; 4 * BLOCK]).1;
    [read, run(card, write(0, 4), &[0; 4 * BLOCK]).1]
}

#[test]
fn what_goes_wrong_is_tried_again_once() {
    let (mut card, model) = card(2);
    model.borrow_mut().corrupt = 1;
    assert_eq!(read_and_write(&mut card), [Ok(()); 2]);
    model.borrow_mut().corrupt = 2;
    let read = Err(MediaError::Read);
    assert_eq!(read_and_write(&mut card), [read, Ok(())]);
    model.borrow_mut().refuses = Some(0xED);
    let write = Err(MediaError::Write);
    assert_eq!(read_and_write(&mut card), [Ok(()), write]);
    model.borrow_mut().refuses = None;
    assert_eq!(read_and_write(&mut card), [Ok(()); 2]);
}

#[test]
fn a_card_that_is_pulled_is_used_again_when_it_is_back() {
    let (mut card, model) = card(2);
    for _ in 0..2 {
        model.borrow_mut().pulled = true;
        assert_eq!(read_and_write(&mut card), [Err(MediaError::NotReady); 2]);
        // It has lost its power, and takes a while to come up.
        (model.borrow_mut().pulled, model.borrow_mut().up) = (false, false);
        model.borrow_mut().starting = 100;
        assert_eq!(read_and_write(&mut card), [Ok(()); 2]);
    }
    // Out and in again with nothing between.
    model.borrow_mut().up = false;
    assert_eq!(read_and_write(&mut card), [Ok(()); 2]);
}

#[test]
fn another_card_is_not_used() {
    let (mut card, model) = card(2);
    (model.borrow_mut().up, model.borrow_mut().serial) = (false, 2);
    assert_eq!(read_and_write(&mut card), [Err(MediaError::NotReady); 2]);
    (model.borrow_mut().up, model.borrow_mut().serial) = (false, 1);
    assert_eq!(read_and_write(&mut card), [Ok(()); 2]);
}

#[test]
fn a_card_that_is_never_ready_is_given_up() {
    let (mut card, model) = card(0);
    for op in [Op::Read(extent(0, 2)), write(0, 2)] {
        let request = Request {
            tag: 0,
            op,
            buffer: Some::<Buffer<'static>>(Box::leak(Box::new([0; 2 * BLOCK]))),
        };
        assert!(matches!(card.submit(request), Submit::Pending));
        assert!(card.poll().is_none());
        model.borrow_mut().stuck = true;
        let completion = (0..10_000).find_map(|_| card.poll());
        let result = completion.expect("it ends").result;
        assert_eq!(result, Err(MediaError::NotReady));
        model.borrow_mut().stuck = false;
        assert_eq!(read_and_write(&mut card), [Ok(()); 2]);
    }
}

#[test]
fn one_request_at_a_time() {
    let (mut card, _) = card(0);
    let request = |tag| Request {
        tag,
        op: Op::Verify(extent(0, 1)),
        buffer: None,
    };
    assert!(matches!(card.submit(request(1)), Submit::Pending));
    match card.submit(request(2)) {
        Submit::Busy(request) => assert_eq!(request.tag, 2),
        other => panic!("{}", format!("{other:?}")),
    }
}

#[test]
fn others_have_the_bus_between_commands() {
    let (mut card, model) = card(0);
    let request = Request {
        tag: 1,
        op: Op::Verify(extent(0, 2)),
        buffer: None,
    };
    model.borrow_mut().wanted = true;
    assert!(matches!(card.submit(request), Submit::Pending));
    for _ in 0..10 {
        assert!(card.poll().is_none());
        assert!(!model.borrow().selected);
    }
    // And not amid them.
    model.borrow_mut().wanted = false;
    assert!(card.poll().is_none());
    model.borrow_mut().wanted = true;
    let completion = (0..100).find_map(|_| {
        assert!(model.borrow().selected);
        card.poll()
    });
    assert_eq!(completion.expect("it ends").result, Ok(()));
    assert!(!model.borrow().selected);
}
