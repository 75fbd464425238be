//! A flash chip that does what one does, and notes what one does not like.
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::string::String;
use std::vec;
use std::vec::Vec;

use embedded_hal::spi::{ErrorType, Operation, SpiDevice};

use super::super::chip::{Addresses, SECTOR};

/// Microseconds that it takes to erase a sector, and to program a page.
pub(super) const ERASE_US: u64 = 60_000;
pub(super) const PROGRAM_US: u64 = 900;

pub(super) struct State {
    pub(super) now: u64,
    pub(super) memory: Vec<u8>,
    pub(super) addresses: Addresses,
    pub(super) sfdp: Vec<u8>,
    /// Nothing is connected: what this says instead.
    pub(super) gone: Option<u8>,
    /// Write Enable does nothing.
    pub(super) locked: bool,
    /// Block Protection of the status register.
    pub(super) protection: u8,
    /// This sector is not changed, and nobody is told.
    pub(super) protected_sector: Option<usize>,
    /// It never comes to an end.
    pub(super) hangs: bool,
    /// What a chip would not have put up with.
    pub(super) complaints: Vec<String>,
    pub(super) erased: usize,
    pub(super) programmed: usize,
    wel: bool,
    four: bool,
    busy_until: u64,
}

#[derive(Clone)]
pub(super) struct Simulated(pub(super) Rc<RefCell<State>>);

impl Simulated {
    pub(super) fn new(bytes: usize, addresses: Addresses, sfdp: Vec<u8>) -> Self {
        Self(Rc::new(RefCell::new(State {
            now: 0,
            memory: vec![0xFF; bytes],
            addresses,
            sfdp,
            gone: None,
            locked: false,
            protection: 0,
            protected_sector: None,
            hangs: false,
            complaints: Vec::new(),
            erased: 0,
            programmed: 0,
            wel: false,
            four: addresses == Addresses::Four,
            busy_until: 0,
        })))
    }
}

impl ErrorType for Simulated {
    type Error = Infallible;
}

impl SpiDevice for Simulated {
    fn transaction(&mut self, operations: &mut [Operation<'_, u8>]) -> Result<(), Infallible> {
        let mut state = self.0.borrow_mut();
        let mut sent = Vec::new();
        let mut wanted = 0;
        for operation in operations.iter() {
            match operation {
                Operation::Write(bytes) => {
                    assert_eq!(wanted, 0, "nothing is said after the answer");
                    sent.extend_from_slice(bytes);
                }
                Operation::Read(bytes) => wanted += bytes.len(),
                _ => panic!("not used"),
            }
        }
        let answer = match state.gone {
            Some(byte) => vec![byte; wanted],
            None => state.command(&sent, wanted),
        };
        assert_eq!(answer.len(), wanted, "{sent:x?}");
        let mut rest = &answer[..];
        for operation in operations.iter_mut() {
            if let Operation::Read(bytes) = operation {
                let (now, later) = rest.split_at(bytes.len());
                bytes.copy_from_slice(now);
                rest = later;
            }
        }
        Ok(())
    }
}

impl State {
    fn is_busy(&self) -> bool {
        self.hangs && self.busy_until > 0 || self.now < self.busy_until
    }

    fn command(&mut self, sent: &[u8], wanted: usize) -> Vec<u8> {
        let (&opcode, arguments) = sent.split_first().expect("an opcode");
        if opcode == 0x05 {
            let wel = u8::from(self.wel && !self.locked) << 1;
            return vec![u8::from(self.is_busy()) | wel | self.protection << 2; wanted];
        }
        if self.is_busy() {
            self.complain(opcode, "while it is busy");
            return vec![0xFF; wanted];
        }
        match opcode {
            0x9F => vec![0xEF, 0x40, 0x18],
            0x5A => {
                assert_eq!((arguments.len(), arguments[3]), (4, 0));
                let at = usize::from(arguments[1]) << 8 | usize::from(arguments[2]);
                self.sfdp[at..][..wanted].to_vec()
            }
            0x06 => {
                self.wel = !self.locked;
                Vec::new()
            }
            0xB7 => {
                let allowed = match self.addresses {
                    Addresses::FourByMode { write_enable } => !write_enable || self.wel,
                    _ => false,
                };
                if !allowed {
                    self.complain(opcode, "not now");
                }
                (self.four, self.wel) = (allowed, false);
                Vec::new()
            }
            0x03 | 0x13 => {
                let (at, rest) = self.address(opcode, opcode == 0x13, arguments);
                assert!(rest.is_empty());
                (at..at + wanted).map(|at| self.memory[at]).collect()
            }
            0x02 | 0x12 => {
                let (at, data) = self.address(opcode, opcode == 0x12, arguments);
                if self.may_change(opcode, at) {
                    self.program(at, &data);
                }
                Vec::new()
            }
            0x20 | 0x21 => {
                let (at, rest) = self.address(opcode, opcode == 0x21, arguments);
                assert!(rest.is_empty());
                if self.may_change(opcode, at) {
                    let begin = at / SECTOR * SECTOR;
                    self.memory[begin..begin + SECTOR].fill(0xFF);
                    self.erased += 1;
                    self.busy_until = self.now + ERASE_US;
                }
                Vec::new()
            }
            _ => {
                self.complain(opcode, "is no command");
                vec![0xFF; wanted]
            }
        }
    }

    fn address(&mut self, opcode: u8, four: bool, arguments: &[u8]) -> (usize, Vec<u8>) {
        if four && self.addresses != Addresses::FourByOpcode {
            self.complain(opcode, "is no command of this chip");
        }
        let len = if four || self.four { 4 } else { 3 };
        let (address, rest) = arguments.split_at(len);
        let at = address
            .iter()
            .fold(0, |all, byte| all << 8 | usize::from(*byte));
        assert!(at < self.memory.len(), "beyond its end");
        (at, rest.to_vec())
    }

    fn may_change(&mut self, opcode: u8, at: usize) -> bool {
        if !self.wel {
            self.complain(opcode, "without Write Enable");
            return false;
        }
        self.wel = false;
        self.protected_sector != Some(at / SECTOR)
    }

    /// Ones become zeroes; beyond the end of a page comes its start.
    fn program(&mut self, at: usize, data: &[u8]) {
        assert!((1..=256).contains(&data.len()));
        for (index, byte) in data.iter().enumerate() {
            let place = at / 256 * 256 + (at + index) % 256;
            if self.memory[place] & byte != *byte {
                self.complaints.push("a zero cannot become a one".into());
            }
            self.memory[place] &= byte;
        }
        self.programmed += 1;
        self.busy_until = self.now + PROGRAM_US;
    }

    fn complain(&mut self, opcode: u8, why: &str) {
        self.complaints.push(std::format!("{opcode:02x} {why}"));
    }
}
