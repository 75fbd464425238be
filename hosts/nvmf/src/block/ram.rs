//! Memory of the process: fast, sparse, gone with it.
use std::io;
use std::sync::Arc;

use nvmf_core::block::{
    BlockDevice, Completion, Extent, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::device::{Device, Identity, Namespace};
use nvmf_tcp::std::mapping::{Lent, Mapping};
use nvmf_tcp::std::waker::Waker;

use super::pool::{Handle, Media, Pool};
use super::{check, payload};

/// Giving back more than this takes milliseconds, so the pool does it.
const LARGE: u64 = 16 << 20;

/// A namespace in RAM.
pub struct Ram {
    memory: Arc<Memory>,
    identity: Identity,
    pool: Pool,
}

impl Ram {
    /// `blocks` blocks of `1 << block_shift` zero bytes, which take no memory until written: by
    /// huge pages, if all of them would be half of the machine's memory at most.
    ///
    /// # Errors
    /// When there is no address space of this size.
    pub fn new(block_shift: u8, blocks: u64, identity: Identity, pool: &Pool) -> io::Result<Self> {
        let geometry = Geometry {
            block_shift,
            blocks,
            read_only: false,
            volatile_cache: false,
            deallocate_zeroes: true,
            optimal_blocks: u32::try_from(rustix::param::page_size() >> block_shift).unwrap_or(0),
        };
        let len = usize::try_from(geometry.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let bytes = Mapping::new(len)?;
        // What is larger is there to be written here and there, and pages have to be small for that.
        if len as u64 <= memory_of_the_machine() / 2 {
            bytes.prefer_huge_pages();
        }
        Ok(Self {
            memory: Arc::new(Memory { geometry, bytes }),
            identity,
            pool: pool.clone(),
        })
    }
}

impl Namespace for Ram {
    fn geometry(&self) -> Geometry {
        self.memory.geometry
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn open(&self, waker: &Waker) -> Box<dyn Device> {
        Box::new(RamDevice {
            memory: Arc::clone(&self.memory),
            pool: Handle::new(&self.pool, self.memory.clone(), waker),
        })
    }
}

struct RamDevice {
    memory: Arc<Memory>,
    pool: Handle,
}

impl BlockDevice for RamDevice {
    type Buffer = Buffer;

    fn geometry(&self) -> Geometry {
        self.memory.geometry
    }

    fn submit(&mut self, mut request: Request<Buffer>) -> Submit<Buffer> {
        if let Err(error) = check(&self.memory.geometry, &request) {
            return Submit::Done(request.complete(Err(error)));
        }
        match request.op {
            Op::WriteZeroes { extent, .. } | Op::Deallocate(extent) if extent.len > LARGE => {
                self.pool.submit(request)
            }
            op => {
                let result = self.memory.perform(op, request.buffer.as_mut());
                Submit::Done(request.complete(result))
            }
        }
    }

    fn poll(&mut self) -> Option<Completion<Buffer>> {
        self.pool.poll()
    }

    fn store(&mut self, extent: Extent, data: &[u8], _fua: bool) -> Option<Result<(), MediaError>> {
        let stored = match place(extent) {
            Some((at, len)) if len == data.len() => {
                let written = self.memory.bytes.write(at, data);
                written.map_err(|_| MediaError::Write)
            }
            _ => Err(MediaError::Write),
        };
        Some(stored)
    }

    fn lends(&self) -> bool {
        true
    }
}

impl Device for RamDevice {
    fn lend(&self, byte: u64, len: usize) -> Option<Lent<'_>> {
        self.memory.bytes.lend(usize::try_from(byte).ok()?, len)
    }

    fn copy(&self, byte: u64, into: &mut [u8]) -> bool {
        usize::try_from(byte).is_ok_and(|at| self.memory.bytes.read(at, into).is_ok())
    }
}

/// In bytes.
fn memory_of_the_machine() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

struct Memory {
    geometry: Geometry,
    bytes: Mapping,
}

impl Media for Memory {
    fn perform(&self, op: Op, buffer: Option<&mut Buffer>) -> Result<(), MediaError> {
        match op {
            Op::Read(extent) => {
                let (at, _) = place(extent).ok_or(MediaError::Read)?;
                let into = payload(buffer, extent).ok_or(MediaError::Read)?;
                self.bytes.read(at, into).map_err(|_| MediaError::Read)
            }
            Op::Write { extent, .. } => {
                let (at, _) = place(extent).ok_or(MediaError::Write)?;
                let from = payload(buffer, extent).ok_or(MediaError::Write)?;
                self.bytes.write(at, from).map_err(|_| MediaError::Write)
            }
            Op::Compare(extent) => {
                let (at, _) = place(extent).ok_or(MediaError::Read)?;
                let with = payload(buffer, extent).ok_or(MediaError::Read)?;
                self.compare(at, with)
            }
            Op::WriteZeroes { extent, .. } | Op::Deallocate(extent) => {
                let (at, len) = place(extent).ok_or(MediaError::Write)?;
                self.bytes.zero(at, len).map_err(|_| MediaError::Write)
            }
            Op::Verify(_) | Op::Flush => Ok(()),
        }
    }
}

impl Memory {
    fn compare(&self, mut at: usize, with: &[u8]) -> Result<(), MediaError> {
        let mut stored = [0; 4096];
        for piece in with.chunks(stored.len()) {
            let stored = &mut stored[..piece.len()];
            self.bytes.read(at, stored).map_err(|_| MediaError::Read)?;
            if stored != piece {
                return Err(MediaError::Miscompare);
            }
            at += piece.len();
        }
        Ok(())
    }
}

fn place(extent: Extent) -> Option<(usize, usize)> {
    Some((
        usize::try_from(extent.byte).ok()?,
        usize::try_from(extent.len).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Worker, assert_same, extent, pattern};
    use super::*;

    const MIB: usize = 1 << 20;
    const ID: Identity = Identity {
        uuid: [1; 16],
        nguid: [2; 16],
        eui64: [3; 8],
    };

    fn ram(block_shift: u8, bytes: usize) -> Ram {
        let pool = Pool::new(1).unwrap();
        Ram::new(block_shift, (bytes >> block_shift) as u64, ID, &pool).unwrap()
    }

    #[test]
    fn handles_of_several_workers_see_the_same_bytes() {
        for shift in [9, 12] {
            let ram = ram(shift, 8 * MIB);
            let (one, two) = (Worker::new(), Worker::new());
            let (mut left, mut right) = (ram.open(&one.waker), ram.open(&two.waker));
            let data = pattern(7, 64 * 1024);
            one.write(&mut *left, 4096, &data, false).unwrap();
            assert_same(&two.read(&mut *right, 4096, data.len()).unwrap(), &data);
            assert_eq!(two.compare(&mut *right, 4096, &data), Ok(()));
            let mut other = data.clone();
            *other.last_mut().unwrap() ^= 1;
            assert_eq!(
                two.compare(&mut *right, 4096, &other),
                Err(MediaError::Miscompare)
            );
            assert!(right.lends());
            assert_eq!(right.lend(4096, data.len()).unwrap().len(), data.len());
            let mut copy = vec![0; data.len()];
            assert!(right.copy(4096, &mut copy));
            assert_same(&copy, &data);
        }
    }

    #[test]
    fn what_is_lent_is_stored_whole_or_not_at_all() {
        let ram = ram(9, MIB);
        let worker = Worker::new();
        let mut device = ram.open(&worker.waker);
        let data = pattern(5, 1024);
        let stored = |device: &mut dyn Device, byte, len| {
            device.store(extent(byte, len), &data, true).unwrap()
        };
        assert_eq!(stored(&mut *device, 512, 1024), Ok(()));
        assert_eq!(worker.read(&mut *device, 512, 1024).unwrap(), data);
        let beyond = MIB as u64 - 512;
        for (byte, len) in [(4096, 512), (4096, 2048), (beyond, 1024), (u64::MAX, 1024)] {
            let refused = stored(&mut *device, byte, len);
            assert_eq!(refused, Err(MediaError::Write), "{byte} {len}");
        }
        assert_eq!(worker.read(&mut *device, 4096, 1024).unwrap(), [0; 1024]);
        assert_eq!(worker.read(&mut *device, beyond, 512).unwrap(), [0; 512]);
    }

    #[test]
    fn zeroes_large_and_small_leave_the_neighbours() {
        let size = 3 * LARGE as usize;
        let ram = ram(9, size);
        let worker = Worker::new();
        let mut device = ram.open(&worker.waker);
        let data = pattern(3, 512);
        let (before, after) = (512, size as u64 - 1024);
        for op in [
            Op::Deallocate(extent(1024, size - 2048)),
            Op::WriteZeroes {
                extent: extent(1024, 4096),
                deallocate: false,
                fua: true,
            },
        ] {
            for at in [before, 1024, 2048, after] {
                worker.write(&mut *device, at, &data, false).unwrap();
            }
            worker.plain(&mut *device, op).unwrap();
            assert_eq!(worker.read(&mut *device, before, 512).unwrap(), data);
            assert_eq!(worker.read(&mut *device, after, 512).unwrap(), data);
            assert_eq!(worker.read(&mut *device, 1024, 1536).unwrap(), [0; 1536]);
        }
    }

    #[test]
    fn nothing_is_moved_out_of_range_or_without_room() {
        let ram = ram(12, MIB);
        let worker = Worker::new();
        let mut device = ram.open(&worker.waker);
        let end = MIB as u64;
        for (byte, len) in [
            (end, 4096),
            (end - 4096, 8192),
            (512, 4096),
            (u64::MAX - 4095, 4096),
        ] {
            assert_eq!(worker.read(&mut *device, byte, len), Err(MediaError::Read));
            assert_eq!(
                worker.write(&mut *device, byte, &vec![0; len], false),
                Err(MediaError::Write)
            );
            let gone = Op::Deallocate(extent(byte, len));
            assert_eq!(worker.plain(&mut *device, gone), Err(MediaError::Write));
        }
        let short = Some(Buffer::zeroed(4095));
        let done = worker.run(&mut *device, Op::Read(extent(0, 4096)), short);
        assert_eq!(done.result, Err(MediaError::Read));
        assert!(done.buffer.is_some());
        assert_eq!(
            worker.plain(&mut *device, Op::Read(extent(0, 4096))),
            Err(MediaError::Read)
        );
        assert!(device.lend(end - 4096, 8192).is_none());
        assert!(!device.copy(end - 4096, &mut [0; 8192]));
    }
}
