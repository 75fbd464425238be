// What the examples of the documentation run against: a target of 1 MiB of memory, at a port
// that is free. No module of the crate: examples include it.
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nvmf_core::block::{BlockDevice, Completion, Geometry, MediaError, Op, Request as Io, Submit};
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::catalog::Subsystem;
use nvmf_tcp::std::device::{Device, Identity, Namespace as Storage};
use nvmf_tcp::std::mapping::Mapping;
use nvmf_tcp::std::target::{Config, Running, Target};
use nvmf_tcp::std::waker::Waker as Worker;

#[derive(Clone)]
struct Memory(Arc<Mapping>);

impl Storage for Memory {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_shift: 9,
            blocks: 2048,
            read_only: false,
            volatile_cache: false,
            deallocate_zeroes: true,
            optimal_blocks: 0,
        }
    }

    fn identity(&self) -> Identity {
        Identity {
            uuid: [1; 16],
            nguid: [0; 16],
            eui64: [0; 8],
        }
    }

    fn open(&self, _: &Worker) -> Box<dyn Device> {
        Box::new(self.clone())
    }
}

impl BlockDevice for Memory {
    type Buffer = Buffer;

    fn geometry(&self) -> Geometry {
        Storage::geometry(self)
    }

    fn submit(&mut self, mut io: Io<Buffer>) -> Submit<Buffer> {
        let at = |extent: nvmf_core::block::Extent| (extent.byte as usize, extent.len as usize);
        let bytes = io.buffer.as_mut().map_or(&mut [][..], AsMut::as_mut);
        let outcome = match io.op {
            Op::Read(extent) => self.0.read(at(extent).0, &mut bytes[..at(extent).1]),
            Op::Write { extent, .. } => self.0.write(at(extent).0, &bytes[..at(extent).1]),
            _ => Ok(()),
        };
        Submit::Done(io.complete(outcome.map_err(|_| MediaError::NotReady)))
    }

    fn poll(&mut self) -> Option<Completion<Buffer>> {
        None
    }
}

impl Device for Memory {}

/// Starts the target; the URL of its subsystem.
pub fn serve() -> (Running, String) {
    const NQN: &str = "nqn.2014-08.org.example:disk";
    let memory = Memory(Arc::new(Mapping::new(1 << 20).unwrap()));
    let target = Target::bind(Config {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        subsystems: vec![Subsystem::new(NQN.parse().unwrap()).with(memory)],
        workers: Some(1),
        ..Config::default()
    });
    let target = target.unwrap();
    let url = format!("nvme+tcp://{}/{NQN}", target.local_addrs()[0]);
    (target.spawn().unwrap(), url)
}

/// Stands for a runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}
