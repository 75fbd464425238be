use std::vec;
use std::vec::Vec;

use nvmf_core::block::{BlockDevice, Completion, Extent, MediaError, Op, Request, Submit};
use nvmf_tcp::smoltcp::memory::Buffer;
use virtio_drivers::transport::{DeviceStatus, Transport};

use super::super::disk::{Disk, Scratch, Slot};
use super::{Chain, Fake, Identity, leak};

const SECTORS: u64 = 256;
const READ_ONLY: u64 = 1 << 5;
const BLOCK_SIZE: u64 = 1 << 6;
const FLUSH: u64 = 1 << 9;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;
const VERSION_1: u64 = 1 << 32;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH_COMMAND: u32 = 4;
const DISCARD_COMMAND: u32 = 11;
const WRITE_ZEROES_COMMAND: u32 = 13;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// The device: what is on it, and what it was told.
struct Bench {
    fake: Fake,
    stored: Vec<u8>,
    disk: Disk<Identity, Fake, 16>,
    told: Vec<u32>,
}

fn bench(features: u64) -> Bench {
    let mut config = [0; 60];
    config[0..8].copy_from_slice(&SECTORS.to_le_bytes());
    config[20..24].copy_from_slice(&4096u32.to_le_bytes());
    // At most 20 sectors to discard, and 17 to fill: whole blocks of 8 are 16 of each.
    config[36..40].copy_from_slice(&20u32.to_le_bytes());
    config[48..52].copy_from_slice(&17u32.to_le_bytes());
    config[56] = 1;
    let fake = Fake::new(features | VERSION_1, &config);
    let slots = leak([Slot::FREE; 5]);
    let disk = Disk::start(fake.clone(), slots, leak(Scratch::new())).unwrap();
    Bench {
        fake,
        stored: (0..SECTORS * 512).map(|at| (at / 512) as u8).collect(),
        disk,
        told: Vec::new(),
    }
}

impl Bench {
    fn submit(&mut self, op: Op, buffer: Option<Buffer<'static>>) -> Submit<Buffer<'static>> {
        self.disk.submit(Request { tag: 7, op, buffer })
    }

    /// Submits, and has the device do all that it is told.
    fn run(&mut self, op: Op, buffer: Option<Buffer<'static>>) -> Completion<Buffer<'static>> {
        match self.submit(op, buffer) {
            Submit::Done(completion) => completion,
            Submit::Busy(_) => panic!("busy"),
            Submit::Pending => {
                for _ in 0..100 {
                    if let Some(chain) = self.fake.next(0) {
                        self.serve(&chain);
                    }
                    if let Some(completion) = self.disk.poll() {
                        return completion;
                    }
                }
                panic!("never done")
            }
        }
    }

    fn serve(&mut self, chain: &Chain) {
        let (header, data) = chain.read.split_at(16);
        let command = u32::from_le_bytes(header[..4].try_into().unwrap());
        let sector = u64::from_le_bytes(header[8..].try_into().unwrap());
        let start = sector as usize * 512;
        self.told.push(command);
        let mut answer = Vec::new();
        match command {
            IN => answer.extend_from_slice(&self.stored[start..][..chain.room() - 1]),
            OUT => self.stored[start..][..data.len()].copy_from_slice(data),
            FLUSH_COMMAND => assert_eq!((sector, data), (0, &[][..])),
            DISCARD_COMMAND | WRITE_ZEROES_COMMAND => {
                assert_eq!((sector, data.len()), (0, 16));
                let sector = u64::from_le_bytes(data[..8].try_into().unwrap());
                let sectors = u32::from_le_bytes(data[8..12].try_into().unwrap());
                assert!(sectors <= 16 && sectors % 8 == 0, "{sectors} sectors");
                let place = &mut self.stored[sector as usize * 512..][..sectors as usize * 512];
                // What is discarded is anything; what may be unmapped says so by 1.
                let unmap = data[12];
                assert!(unmap == 0 || command == WRITE_ZEROES_COMMAND);
                place.fill(if command == DISCARD_COMMAND { 0xDD } else { 0 });
                self.told.push(unmap.into());
            }
            other => panic!("command {other}"),
        }
        answer.push(0);
        chain.fill(&answer);
        self.fake.end(0, chain.head, answer.len());
    }
}

fn extent(block: u64, blocks: u64) -> Extent {
    Extent {
        byte: block * 4096,
        len: blocks * 4096,
    }
}

fn buffer(bytes: &[u8]) -> Option<Buffer<'static>> {
    Some(leak(bytes.to_vec()))
}

#[test]
fn geometry_is_the_device_s() {
    let geometry = bench(BLOCK_SIZE | FLUSH).disk.geometry();
    assert_eq!((geometry.block_shift, geometry.blocks), (12, SECTORS / 8));
    assert!(geometry.volatile_cache && !geometry.read_only);
    let geometry = bench(READ_ONLY).disk.geometry();
    assert_eq!((geometry.block_shift, geometry.blocks), (9, SECTORS));
    assert!(!geometry.volatile_cache && geometry.read_only);
}

#[test]
fn reads_writes_and_flushes() {
    let mut bench = bench(BLOCK_SIZE | FLUSH);
    let read = bench.run(Op::Read(extent(3, 2)), buffer(&[0xFF; 3 * 4096]));
    assert_eq!((read.tag, read.result), (7, Ok(())));
    let read = read.buffer.unwrap();
    assert_eq!(read[..8192], bench.stored[3 * 4096..5 * 4096]);
    assert_eq!(read[8192..], [0xFF; 4096], "no more than it was asked for");

    let op = |fua| Op::Write {
        extent: extent(31, 1),
        fua,
    };
    assert_eq!(bench.run(op(false), buffer(&[9; 4096])).result, Ok(()));
    assert_eq!(bench.stored[31 * 4096..], [9; 4096]);
    assert_eq!(bench.run(op(true), buffer(&[8; 4096])).result, Ok(()));
    assert_eq!(bench.stored[31 * 4096..], [8; 4096]);
    assert_eq!(bench.run(Op::Flush, None).result, Ok(()));
    assert_eq!(bench.told, [IN, OUT, OUT, FLUSH_COMMAND, FLUSH_COMMAND]);
}

#[test]
fn without_a_cache_there_is_nothing_to_flush() {
    let mut bench = bench(0);
    let op = Op::Write {
        extent: extent(0, 1),
        fua: true,
    };
    assert_eq!(bench.run(op, buffer(&[9; 4096])).result, Ok(()));
    assert_eq!(bench.run(Op::Flush, None).result, Ok(()));
    assert_eq!(bench.told, [OUT]);
}

#[test]
fn zeroes_by_the_device_or_by_hand() {
    let op = |deallocate, fua| Op::WriteZeroes {
        extent: extent(2, 5),
        deallocate,
        fua,
    };
    let mut with = bench(BLOCK_SIZE | FLUSH | WRITE_ZEROES);
    assert_eq!(with.run(op(true, true), None).result, Ok(()));
    // Five blocks of 8 sectors in pieces of 16, each of which may be unmapped.
    let piece = [WRITE_ZEROES_COMMAND, 1];
    assert_eq!(with.told, [&piece.repeat(3)[..], &[FLUSH_COMMAND]].concat());
    with.told.clear();
    assert_eq!(with.run(op(false, false), None).result, Ok(()));
    assert_eq!(with.told, [WRITE_ZEROES_COMMAND, 0].repeat(3));

    let mut without = bench(BLOCK_SIZE);
    assert_eq!(without.run(op(true, false), None).result, Ok(()));
    assert_eq!(without.told, [OUT, OUT]);
    for bench in [with, without] {
        assert_eq!(bench.stored[2 * 4096..7 * 4096], [0; 5 * 4096]);
        assert_eq!(bench.stored[2 * 4096 - 1], 15);
        assert_eq!(bench.stored[7 * 4096], 56);
    }
}

#[test]
fn discards_if_the_device_does() {
    let op = Op::Deallocate(extent(0, 3));
    let mut with = bench(BLOCK_SIZE | DISCARD);
    assert_eq!(with.run(op, None).result, Ok(()));
    assert_eq!(with.told, [DISCARD_COMMAND, 0].repeat(2));
    let mut without = bench(0);
    assert_eq!(without.run(op, None).result, Ok(()));
    assert!(without.told.is_empty());
}

#[test]
fn compares_and_verifies() {
    let mut bench = bench(BLOCK_SIZE);
    // More than the scratch memory holds.
    let mut wanted = bench.stored[4096..11 * 4096].to_vec();
    let op = Op::Compare(extent(1, 10));
    assert_eq!(bench.run(op, buffer(&wanted)).result, Ok(()));
    *wanted.last_mut().unwrap() ^= 1;
    let differs = bench.run(op, buffer(&wanted));
    assert_eq!(differs.result, Err(MediaError::Miscompare));
    assert_eq!(bench.run(Op::Verify(extent(0, 32)), None).result, Ok(()));

    let first = bench.submit(op, buffer(&wanted));
    assert!(matches!(first, Submit::Pending));
    let second = bench.submit(Op::Verify(extent(0, 1)), None);
    assert!(matches!(second, Submit::Busy(_)), "there is one scratch");
    let read = bench.submit(Op::Read(extent(0, 1)), buffer(&[0; 4096]));
    assert!(matches!(read, Submit::Pending), "which reads do not need");
}

#[test]
fn many_at_a_time_in_any_order() {
    let mut bench = bench(BLOCK_SIZE);
    let mut submit = |tag: u64| {
        bench.disk.submit(Request {
            tag,
            op: Op::Read(extent(tag, 1)),
            buffer: buffer(&[0; 4096]),
        })
    };
    for tag in 0..5 {
        assert!(matches!(submit(tag), Submit::Pending));
    }
    assert!(matches!(submit(5), Submit::Busy(_)));
    let chains: Vec<_> = (0..5).map(|_| bench.fake.next(0).unwrap()).collect();
    assert!(bench.disk.poll().is_none());
    for at in [3, 0, 4, 1, 2] {
        bench.serve(&chains[at]);
    }
    for tag in [3, 0, 4, 1, 2] {
        let completion = bench.disk.poll().unwrap();
        assert_eq!((completion.tag, completion.result), (tag, Ok(())));
        let wanted = &bench.stored[tag as usize * 4096..][..4096];
        assert_eq!(completion.buffer.unwrap(), wanted);
    }
    assert!(bench.disk.poll().is_none());
}

#[test]
fn errors_are_what_they_are() {
    let write = Op::Write {
        extent: extent(0, 1),
        fua: false,
    };
    let zeroes = Op::WriteZeroes {
        extent: extent(0, 1),
        deallocate: false,
        fua: false,
    };
    let all = BLOCK_SIZE | FLUSH | WRITE_ZEROES | DISCARD;
    for (op, status, error) in [
        (Op::Read(extent(0, 1)), IOERR, MediaError::Read),
        (Op::Compare(extent(0, 1)), IOERR, MediaError::Read),
        (Op::Verify(extent(0, 1)), IOERR, MediaError::Read),
        (write, IOERR, MediaError::Write),
        (zeroes, IOERR, MediaError::Write),
        (zeroes, UNSUPP, MediaError::Unsupported),
        (Op::Flush, IOERR, MediaError::Write),
        // The device did not say how it went.
        (Op::Read(extent(0, 1)), 0xFF, MediaError::Read),
    ] {
        let mut bench = bench(all);
        bench.submit(op, buffer(&[0; 4096]));
        let chain = bench.fake.next(0).unwrap();
        let mut answer = vec![0; chain.room()];
        *answer.last_mut().unwrap() = status;
        chain.fill(&answer);
        bench.fake.end(0, chain.head, answer.len());
        let completion = bench.disk.poll().unwrap();
        assert_eq!(completion.result, Err(error), "{op:?}");
        assert!(completion.buffer.is_some());
        // And it goes on, the scratch memory included.
        let next = bench.run(Op::Verify(extent(0, 1)), None);
        assert_eq!(next.result, Ok(()));
    }
    for op in [write, zeroes, Op::Deallocate(extent(0, 1))] {
        let mut bench = bench(all | READ_ONLY);
        let completion = bench.run(op, buffer(&[0; 4096]));
        assert_eq!(completion.result, Err(MediaError::ReadOnly), "{op:?}");
        assert!(bench.told.is_empty());
    }
    let mut bench = bench(all);
    let short = bench.run(Op::Read(extent(0, 2)), buffer(&[0; 4096]));
    assert_eq!(short.result, Err(MediaError::Read));
}

#[test]
fn a_device_that_makes_no_sense_is_given_up() {
    // A descriptor that there is not, one that begins nothing, and one that is not in use.
    for nonsense in [16, 1, 9] {
        let mut bench = bench(BLOCK_SIZE);
        for _ in 0..2 {
            bench.submit(Op::Read(extent(0, 1)), buffer(&[0; 4096]));
        }
        bench.fake.end(0, nonsense, 0);
        for _ in 0..2 {
            let completion = bench.disk.poll().unwrap();
            assert_eq!(completion.result, Err(MediaError::NotReady));
            assert!(completion.buffer.is_some());
        }
        assert!(bench.disk.poll().is_none());
        assert_eq!(bench.fake.get_status(), DeviceStatus::empty(), "reset");
        let later = bench.run(Op::Flush, None);
        assert_eq!(later.result, Err(MediaError::NotReady));
    }
}
