//! Many controllers that share few threads.
use std::sync::mpsc::{Sender, channel};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

const CONTROLLERS: usize = 64;
const QUEUES: u16 = 4;

/// Reads that each controller has under way, two of each queue.
const DEPTH: usize = 2 * QUEUES as usize;

/// Puts a task where it is polled next.
struct Ready {
    task: usize,
    ready: Sender<usize>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        // Nobody listens any more when enough was read.
        let _ = self.ready.send(self.task);
    }
}

/// Both ends of some hundred connections.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, wanted).unwrap();
}

#[test]
fn many_controllers_share_few_threads_and_none_is_left_behind() {
    allow_many_files();
    let served = Served::start(|_| {});
    let host = host(2);
    let namespaces: Vec<_> = (0..CONTROLLERS)
        .map(|_| open(&host, &served, &few(QUEUES, 8)))
        .collect();
    let total = CONTROLLERS * DEPTH * 20;
    let mut counts = vec![0; CONTROLLERS];
    let (ready, to_poll) = channel();
    let mut reads: Vec<_> = (0..CONTROLLERS * DEPTH).map(|_| None).collect();
    for task in 0..reads.len() {
        ready.send(task).unwrap();
    }
    let wakers: Vec<_> = (0..reads.len())
        .map(|task| {
            let ready = ready.clone();
            Waker::from(Arc::new(Ready { task, ready }))
        })
        .collect();
    let mut done = 0;
    while done < total {
        let task = to_poll.recv_timeout(Duration::from_secs(60)).unwrap();
        let controller = task / DEPTH;
        let slba = (done % 1000) as u64;
        // A timeout is an error here.
        loop {
            let read =
                reads[task].get_or_insert_with(|| namespaces[controller].read(slba, vec![0; 4096]));
            let mut context = Context::from_waker(&wakers[task]);
            match pin!(read).poll(&mut context) {
                Poll::Pending => break,
                Poll::Ready(outcome) => drop(outcome.unwrap()),
            }
            reads[task] = None;
            counts[controller] += 1;
            done += 1;
        }
    }
    let mean = done / CONTROLLERS;
    let slowest = counts.iter().min().unwrap();
    assert!(slowest * 2 >= mean, "{counts:?}");
    // The queues are spread over the threads.
    let loads = host.threads.drivers.iter().map(|driver| driver.load());
    let queues = CONTROLLERS * (1 + usize::from(QUEUES));
    assert!(loads.into_iter().all(|load| load == queues / 2));
}
