//! The driver against a chip that is simulated, in virtual time.
mod simulated;

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use nvmf_core::block::{BlockDevice, Extent, MediaError, Op, Request, Submit};
use nvmf_core::time::Instant;

use self::simulated::{ERASE_US, PROGRAM_US, Simulated, State};
use super::chip::Addresses;
use super::{Fault, Flash, SECTOR};

const BYTES: usize = 64 << 10;

type Timed = Flash<Simulated, Box<dyn FnMut() -> Instant>>;

/// What a chip of so many bytes says of itself.
fn sfdp(bytes: usize, addresses: Addresses) -> Vec<u8> {
    let mut table = [0u32; 16];
    let (mode, how) = match addresses {
        Addresses::Three => (0, 0),
        Addresses::Four => (2, 1 << 30),
        Addresses::FourByOpcode => (1, 1 << 29),
        Addresses::FourByMode {
            write_enable: false,
        } => (1, 1 << 24),
        Addresses::FourByMode { write_enable: true } => (1, 1 << 25),
    };
    table[0] = 0xFFF0_20E5 & !(3 << 17) | mode << 17;
    table[1] = (bytes * 8 - 1) as u32;
    table[7] = 0x520F_200C;
    table[8] = 0x0000_D810;
    // 48 ms to erase 4 KiB, 704 us to program.
    table[9] = 0x0000_0220;
    table[10] = 0x0000_2A82;
    table[15] = how;
    let mut all = b"SFDP\x06\x01\x00\xFF\x00\x06\x01\x10\x80\x00\x00\xFF".to_vec();
    all.resize(0x80, 0xFF);
    all.extend(table.iter().flat_map(|dword| dword.to_le_bytes()));
    all
}

struct Bench {
    chip: Simulated,
    flash: Timed,
    /// Steps of the last request, and how often the processor could sleep meanwhile.
    steps: usize,
    sleeps: usize,
}

impl Bench {
    fn new() -> Self {
        Self::with(BYTES, Addresses::Three)
    }

    fn with(bytes: usize, addresses: Addresses) -> Self {
        let chip = Simulated::new(bytes, addresses, sfdp(bytes, addresses));
        let flash = start(&chip).unwrap();
        Self {
            chip,
            flash,
            steps: 0,
            sleeps: 0,
        }
    }

    fn state(&self) -> std::cell::RefMut<'_, State> {
        self.chip.0.borrow_mut()
    }

    fn run(&mut self, op: Op, buffer: &[u8]) -> (Result<(), MediaError>, Vec<u8>) {
        let request = Request {
            tag: 7,
            op,
            buffer: Some(&mut *buffer.to_vec().leak()),
        };
        (self.steps, self.sleeps) = (0, 0);
        let completion = match self.flash.submit(request) {
            Submit::Done(completion) => completion,
            Submit::Busy(_) => panic!("nothing is under way"),
            Submit::Pending => loop {
                self.steps += 1;
                assert!(self.steps < 100_000, "it has no end");
                if let Some(completion) = self.flash.poll() {
                    break completion;
                }
                let next = self.flash.next_deadline().unwrap().as_micros();
                let mut state = self.state();
                let slept = next > state.now;
                // A step itself takes a moment.
                state.now = next.max(state.now + 50);
                drop(state);
                self.sleeps += usize::from(slept);
            },
        };
        assert_eq!(completion.tag, 7);
        assert_eq!(self.flash.next_deadline(), None);
        (completion.result, completion.buffer.unwrap().to_vec())
    }

    fn write(&mut self, block: u64, data: &[u8]) -> Result<(), MediaError> {
        let extent = extent(block, data.len());
        self.run(Op::Write { extent, fua: false }, data).0
    }

    fn read(&mut self, block: u64, len: usize) -> Vec<u8> {
        let (result, data) = self.run(Op::Read(extent(block, len)), &vec![0xAA; len]);
        result.unwrap();
        data
    }

    fn check(&self) {
        assert_eq!(self.state().complaints, [""; 0]);
    }
}

fn start(chip: &Simulated) -> Result<Timed, Fault> {
    let clock = chip.0.clone();
    let now = Box::new(move || Instant::from_micros(clock.borrow().now));
    Flash::start(chip.clone(), now)
}

fn extent(block: u64, len: usize) -> Extent {
    Extent {
        byte: block * SECTOR as u64,
        len: len as u64,
    }
}

fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn what_is_written_is_read_whatever_was_there() {
    for addresses in [
        Addresses::Three,
        Addresses::Four,
        Addresses::FourByOpcode,
        Addresses::FourByMode {
            write_enable: false,
        },
        Addresses::FourByMode { write_enable: true },
    ] {
        let bytes = if addresses == Addresses::Three {
            BYTES
        } else {
            32 << 20
        };
        let bench = &mut Bench::with(bytes, addresses);
        let blocks = bench.flash.geometry().blocks;
        assert_eq!(blocks, (bytes / SECTOR) as u64);
        assert_eq!(bench.flash.geometry().block_size(), 4096);
        assert_eq!(bench.flash.jedec_id(), [0xEF, 0x40, 0x18]);
        let mut model = vec![0xFF; BYTES];
        // The last 64 KiB, which three bytes do not reach.
        let first = blocks - (BYTES / SECTOR) as u64;
        for (seed, (block, count)) in (1..).zip([(0, 1), (3, 2), (0, 2), (15, 1), (2, 4)]) {
            let data = noise(seed, count * SECTOR);
            bench.write(first + block, &data).unwrap();
            model[block as usize * SECTOR..][..data.len()].copy_from_slice(&data);
            assert!(bench.read(first, BYTES) == model, "{addresses:?}");
        }
        assert!(bench.state().memory[bytes - BYTES..] == model);
        bench.check();
    }
}

#[test]
fn the_chip_is_spared_what_needs_not_be_done() {
    let bench = &mut Bench::new();
    let mut data = noise(1, SECTOR);
    data[256..512].fill(0xFF);
    bench.write(1, &data).unwrap();
    let counts = |bench: &Bench| {
        let state = bench.state();
        (state.erased, state.programmed)
    };
    assert_eq!(counts(bench), (0, 15), "it was erased, and a page stays so");
    bench.write(1, &data).unwrap();
    assert_eq!(counts(bench), (0, 15), "it is there already");
    data[300] = 0x7F;
    bench.write(1, &data).unwrap();
    assert_eq!(counts(bench), (0, 16), "a one becomes a zero");
    data[300] = 0xFF;
    bench.write(1, &data).unwrap();
    assert_eq!(counts(bench), (1, 31));
    let zeroes = Op::WriteZeroes {
        extent: extent(0, 2 * SECTOR),
        deallocate: false,
        fua: false,
    };
    assert_eq!(bench.run(zeroes, &[]).0, Ok(()));
    assert_eq!(counts(bench), (1, 63), "zeroes need no erasing");
    assert_eq!(bench.read(0, 2 * SECTOR), vec![0; 2 * SECTOR]);
    let deallocate = Op::Deallocate(extent(0, SECTOR));
    assert_eq!(bench.run(deallocate, &[]).0, Ok(()));
    assert_eq!(bench.read(0, SECTOR), vec![0; SECTOR]);
    bench.check();
}

#[test]
fn while_it_is_busy_there_is_time_for_others() {
    let bench = &mut Bench::new();
    bench.write(0, &vec![0; SECTOR]).unwrap();
    let before = bench.state().now;
    bench.write(0, &noise(1, SECTOR)).unwrap();
    let took = bench.state().now - before;
    let least = ERASE_US + 16 * PROGRAM_US;
    assert!(took >= least, "{took}");
    assert!(took < 2 * least, "{took}: it is not slept too long");
    // Erasing is 48 ms, as the chip says, and then looks; programming the same, 16 times.
    assert!(
        (17..=17 + 8 + 16 * 8).contains(&bench.sleeps),
        "{}",
        bench.sleeps
    );
    assert!(bench.steps < 200, "{}", bench.steps);
    bench.check();
}

#[test]
fn one_request_at_a_time() {
    let bench = &mut Bench::new();
    let request = |op| Request {
        tag: 1,
        op,
        buffer: Some(&mut *vec![0; SECTOR].leak()),
    };
    let read = Op::Read(extent(0, SECTOR));
    assert!(matches!(bench.flash.submit(request(read)), Submit::Pending));
    assert!(matches!(bench.flash.submit(request(read)), Submit::Busy(_)));
}

#[test]
fn comparing() {
    let bench = &mut Bench::new();
    let mut data = noise(1, 2 * SECTOR);
    bench.write(4, &data).unwrap();
    let compare = Op::Compare(extent(4, 2 * SECTOR));
    assert_eq!(bench.run(compare, &data).0, Ok(()));
    data[2 * SECTOR - 1] ^= 1;
    assert_eq!(bench.run(compare, &data).0, Err(MediaError::Miscompare));
    assert_eq!(bench.run(Op::Verify(extent(4, SECTOR)), &[]).0, Ok(()));
    assert_eq!(bench.run(Op::Flush, &[]).0, Ok(()));
    bench.check();
}

#[test]
fn what_is_protected() {
    let bench = &mut Bench::new();
    // Its WP pin: Write Enable does nothing.
    bench.state().locked = true;
    let data = noise(1, SECTOR);
    assert_eq!(bench.write(0, &data), Err(MediaError::ReadOnly));
    bench.state().locked = false;
    // One sector, of which the chip says nothing.
    bench.state().protected_sector = Some(3);
    assert_eq!(bench.write(3, &data), Err(MediaError::Write));
    assert_eq!(bench.write(4, &data), Ok(()));
    assert_eq!(bench.read(3, SECTOR), vec![0xFF; SECTOR]);
    // Block Protection makes it read-only from the start.
    bench.state().protection = 1;
    assert!(start(&bench.chip).unwrap().geometry().read_only);
    bench.check();
}

#[test]
fn a_chip_that_hangs_or_is_gone() {
    let bench = &mut Bench::new();
    let data = noise(1, SECTOR);
    for byte in [0, 0xFF] {
        bench.state().gone = Some(byte);
        assert_eq!(bench.write(0, &data), Err(MediaError::NotReady));
        let read = Op::Read(extent(0, SECTOR));
        assert_eq!(bench.run(read, &data).0, Err(MediaError::NotReady));
        assert_eq!(start(&bench.chip).err(), Some(Fault::NoChip));
        bench.state().gone = None;
    }
    bench.write(0, &data).unwrap();
    bench.state().hangs = true;
    assert!(bench.write(0, &noise(2, SECTOR)).is_err());
    let before = bench.state().now;
    let read = Op::Read(extent(0, SECTOR));
    assert!(bench.run(read, &data).0.is_err());
    assert!(bench.state().now - before < 5_000_000);
    // It comes back.
    bench.state().hangs = false;
    bench.state().complaints.clear();
    bench.write(0, &data).unwrap();
    assert_eq!(bench.read(0, SECTOR), data);
    bench.check();
}

#[test]
fn chips_that_cannot_be_used() {
    let chip = Simulated::new(BYTES, Addresses::Three, vec![0xFF; 256]);
    assert_eq!(start(&chip).err(), Some(Fault::NoParameters));
    let mut bytes = sfdp(BYTES, Addresses::Three);
    // No erase of 4 KiB.
    bytes[0x80] |= 3;
    bytes[0x80 + 28] = 13;
    let chip = Simulated::new(BYTES, Addresses::Three, bytes);
    let fault = start(&chip).err();
    assert_eq!(fault, Some(Fault::Unsupported("no erase of 4 KiB")));
}
