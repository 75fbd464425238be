//! A namespace that stores nothing, to measure all that is not storage.
use std::io;
use std::sync::Arc;

use nvmf_core::block::{
    BlockDevice, Completion, Extent, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::device::{Device, Identity, Namespace};
use nvmf_tcp::std::mapping::{Lent, Mapping};
use nvmf_tcp::std::waker::Waker;

use super::{check, payload};

/// What one command reads at most: 65,536 blocks of 4 KiB. Nothing ever writes
/// there, so it is one page of zeroes, mapped over and over as it is sent.
const ZEROES: usize = 256 << 20;

/// A namespace of any size that reads as zeroes and forgets what is written.
pub struct Null {
    geometry: Geometry,
    identity: Identity,
    zeroes: Arc<Mapping>,
}

impl Null {
    /// `blocks` blocks of `1 << block_shift` bytes.
    ///
    /// # Errors
    /// When there is no address space for the zeroes to lend.
    pub fn new(block_shift: u8, blocks: u64, identity: Identity) -> io::Result<Self> {
        Ok(Self {
            geometry: Geometry {
                block_shift,
                blocks,
                read_only: false,
                volatile_cache: false,
                deallocate_zeroes: true,
                optimal_blocks: 0,
            },
            identity,
            zeroes: Arc::new(Mapping::new(ZEROES)?),
        })
    }
}

impl Namespace for Null {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn open(&self, _: &Waker) -> Box<dyn Device> {
        Box::new(NullDevice {
            geometry: self.geometry,
            zeroes: Arc::clone(&self.zeroes),
        })
    }
}

struct NullDevice {
    geometry: Geometry,
    zeroes: Arc<Mapping>,
}

impl BlockDevice for NullDevice {
    type Buffer = Buffer;

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, mut request: Request<Buffer>) -> Submit<Buffer> {
        let result = check(&self.geometry, &request).and_then(|()| {
            match request.op {
                Op::Read(extent) => payload(request.buffer.as_mut(), extent)
                    .ok_or(MediaError::Read)?
                    .fill(0),
                Op::Compare(extent) => {
                    let with = payload(request.buffer.as_mut(), extent).ok_or(MediaError::Read)?;
                    if with.iter().any(|&byte| byte != 0) {
                        return Err(MediaError::Miscompare);
                    }
                }
                Op::Write { .. }
                | Op::Verify(_)
                | Op::WriteZeroes { .. }
                | Op::Deallocate(_)
                | Op::Flush => {}
            }
            Ok(())
        });
        Submit::Done(request.complete(result))
    }

    fn poll(&mut self) -> Option<Completion<Buffer>> {
        None
    }

    fn store(&mut self, extent: Extent, _: &[u8], _: bool) -> Option<Result<(), MediaError>> {
        let end = extent.byte.checked_add(extent.len);
        let within = end.is_some_and(|end| end <= self.geometry.bytes());
        Some(within.then_some(()).ok_or(MediaError::Write))
    }

    fn lends(&self) -> bool {
        true
    }
}

impl Device for NullDevice {
    fn lend(&self, byte: u64, len: usize) -> Option<Lent<'_>> {
        let end = byte.checked_add(u64::try_from(len).ok()?)?;
        if end > self.geometry.bytes() {
            return None;
        }
        self.zeroes.lend(0, len)
    }

    fn copy(&self, byte: u64, into: &mut [u8]) -> bool {
        into.fill(0);
        self.lend(byte, into.len()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Worker, extent};
    use super::*;

    #[test]
    fn it_forgets_everything_at_any_size() {
        let identity = Identity {
            uuid: [1; 16],
            nguid: [1; 16],
            eui64: [1; 8],
        };
        let null = Null::new(9, u64::MAX >> 9, identity).unwrap();
        let worker = Worker::new();
        let mut device = null.open(&worker.waker);
        let last = null.geometry().bytes() - 512;
        worker.write(&mut *device, last, &[7; 512], true).unwrap();
        assert_eq!(worker.read(&mut *device, last, 512), Ok(vec![0; 512]));
        assert_eq!(worker.compare(&mut *device, 0, &[0; 512]), Ok(()));
        assert_eq!(
            worker.compare(&mut *device, 0, &[7; 512]),
            Err(MediaError::Miscompare)
        );
        assert_eq!(worker.read(&mut *device, last, 1024), Err(MediaError::Read));
        let everything = Op::Deallocate(extent(0, last as usize));
        assert_eq!(worker.plain(&mut *device, everything), Ok(()));
        assert_eq!(device.lend(last, 512).unwrap().len(), 512);
        assert!(device.lend(last, 1024).is_none());
        let mut copy = [7; 512];
        assert!(device.copy(last, &mut copy) && copy == [0; 512]);
        assert!(!device.copy(last, &mut [7; 1024]));
        assert_eq!(device.lend(0, ZEROES).unwrap().len(), ZEROES);
    }
}
