//! A namespace in memory, which is gone with the power.
use nvmf_core::block::{
    BlockDevice, Completion, Extent, Geometry, MediaError, Op, Request, Submit,
};
use nvmf_tcp::smoltcp::memory::Buffer;

/// log2 of a logical block's bytes.
const BLOCK_SHIFT: u8 = 9;

/// Memory as a device.
#[derive(Debug)]
pub struct Ram<'a>(&'a mut [u8]);

impl<'a> Ram<'a> {
    /// As many blocks of 512 bytes as fit.
    #[must_use]
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        Self(bytes)
    }

    fn at(&mut self, extent: Extent) -> Result<&mut [u8], MediaError> {
        let start = usize::try_from(extent.byte).ok();
        let len = usize::try_from(extent.len).ok();
        start
            .zip(len)
            .and_then(|(start, len)| self.0.get_mut(start..)?.get_mut(..len))
            .ok_or(MediaError::NotReady)
    }

    fn perform(&mut self, op: Op, buffer: Option<&mut [u8]>) -> Result<(), MediaError> {
        let buffer = buffer.unwrap_or_default();
        match op {
            Op::Read(extent) => {
                let stored = self.at(extent)?;
                let data = buffer.get_mut(..stored.len());
                data.ok_or(MediaError::Read)?.copy_from_slice(stored);
            }
            Op::Write { extent, .. } => {
                let stored = self.at(extent)?;
                let data = buffer.get(..stored.len());
                stored.copy_from_slice(data.ok_or(MediaError::Write)?);
            }
            Op::Compare(extent) => {
                let stored = self.at(extent)?;
                if buffer.get(..stored.len()) != Some(stored) {
                    return Err(MediaError::Miscompare);
                }
            }
            Op::WriteZeroes { extent, .. } | Op::Deallocate(extent) => self.at(extent)?.fill(0),
            Op::Verify(extent) => drop(self.at(extent)?),
            Op::Flush => {}
        }
        Ok(())
    }
}

impl<'a> BlockDevice for Ram<'a> {
    type Buffer = Buffer<'static>;

    fn geometry(&self) -> Geometry {
        Geometry {
            block_shift: BLOCK_SHIFT,
            blocks: (self.0.len() >> BLOCK_SHIFT) as u64,
            read_only: false,
            volatile_cache: false,
            deallocate_zeroes: true,
            optimal_blocks: 0,
        }
    }

    fn submit(&mut self, mut request: Request<Self::Buffer>) -> Submit<Self::Buffer> {
        let result = self.perform(request.op, request.buffer.as_deref_mut());
        Submit::Done(request.complete(result))
    }

    fn poll(&mut self) -> Option<Completion<Self::Buffer>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ram: &mut Ram, op: Op, data: &mut [u8]) -> Result<(), MediaError> {
        ram.perform(op, Some(data))
    }

    #[test]
    fn stores_compares_and_zeroes() {
        let mut memory = [0xFF; 2048];
        let mut ram = Ram::new(&mut memory);
        assert_eq!(ram.geometry().blocks, 4);
        let extent = Extent {
            byte: 512,
            len: 1024,
        };
        let fua = false;
        run(&mut ram, Op::Write { extent, fua }, &mut [7; 1024]).unwrap();
        let mut read = [0; 1024];
        run(&mut ram, Op::Read(extent), &mut read).unwrap();
        assert_eq!(read, [7; 1024]);
        run(&mut ram, Op::Compare(extent), &mut read).unwrap();
        read[1023] = 8;
        let differs = run(&mut ram, Op::Compare(extent), &mut read);
        assert_eq!(differs, Err(MediaError::Miscompare));
        let zeroes = Op::WriteZeroes {
            extent,
            deallocate: false,
            fua,
        };
        ram.perform(zeroes, None).unwrap();
        assert_eq!(memory[..512], [0xFF; 512]);
        assert_eq!(memory[512..1536], [0; 1024]);
        assert_eq!(memory[1536..], [0xFF; 512]);
    }

    #[test]
    fn refuses_what_is_not_there() {
        let mut memory = [0; 1024];
        let mut ram = Ram::new(&mut memory);
        for (byte, len) in [(512, 1024), (1024, 512), (u64::MAX, 512)] {
            let extent = Extent { byte, len };
            let result = run(&mut ram, Op::Read(extent), &mut [0; 1024]);
            assert_eq!(result, Err(MediaError::NotReady));
        }
    }
}
