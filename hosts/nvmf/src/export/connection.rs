//! One client: a thread that takes its requests, and one that sends the replies.
//!
//! Memory is bounded by [`Budget`]: a request that does not fit in is not read from
//! the socket before replies to others have left. A client that does not read its
//! replies thereby stops its own requests, and nobody else's.
use std::future::poll_fn;
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::{Condvar, Mutex, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::executor::block_on;
use futures::stream::{FuturesUnordered, StreamExt};
use nvmf_tcp::std::buffer::Buffer;
use socket2::Socket;

use super::negotiation::{Export, MAX_OPTION, Negotiation, Next};
use super::protocol::{
    self, Errno, MAX_PAYLOAD, OptionHeader, Reply, Request, WrongMagic, command, greeting,
};
use super::request::{Operation, Refusal};
use super::server::Shared;

/// How long a client may take to come to its first request.
const HANDSHAKE: Duration = Duration::from_secs(20);

/// Requests that a client may have under way.
const MAX_REQUESTS: usize = 128;

/// Replies that are sent by one system call.
const BATCH: usize = 64;

/// Bytes that one receive takes, if they are not data in their place.
const INPUT: usize = 64 << 10;

/// Why a connection ended, other than in order.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    WrongMagic(#[from] WrongMagic),
    #[error("the client has flags that are unknown here: {0:#x}")]
    ClientFlags(u32),
    #[error("the client announced {0} bytes of data with an option")]
    LongOption(u32),
    #[error("the client announced a write of {0} bytes, more than the {MAX_PAYLOAD} it was told")]
    LongWrite(u32),
    #[error("the client left in the middle of a message")]
    Truncated,
    #[error("the client did not get to its first request within {} s", HANDSHAKE.as_secs())]
    Slow,
    #[error("the connection broke: {0}")]
    Io(io::Error),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Truncated,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Slow,
            _ => Self::Io(error),
        }
    }
}

/// Serves a client until it leaves.
pub(super) fn serve(socket: &Socket, shared: &Shared) -> Result<(), Error> {
    let deadline = Some(Instant::now() + HANDSHAKE);
    let mut input = BufReader::with_capacity(INPUT, Input { socket, deadline });
    let export = shared.export();
    let Some(structured) = negotiate(socket, &mut input, &export)? else {
        return Ok(());
    };
    input.get_mut().deadline = None;
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)?;
    let budget = Budget::new(MAX_REQUESTS, MAX_PAYLOAD.into());
    let (jobs, queue) = unbounded();
    thread::scope(|scope| {
        let replies = || send_replies(socket, shared, structured, queue);
        let writer = thread::Builder::new()
            .name("nbd-replies".to_owned())
            .spawn_scoped(scope, replies)?;
        let judge = |request: &Request| match shared.is_stopping() {
            true => Err(Refusal::new(Errno::Shutdown, "the server is stopping")),
            false => Operation::of(request, &export, structured),
        };
        let outcome = take_requests(&mut input, judge, &budget, jobs);
        // What is under way is still answered.
        let sent = writer.join().unwrap_or(Ok(()));
        outcome.and(sent.map_err(Error::Io))
    })
}

/// Greeting and options. `None` if the client wants no more, else whether replies are structured.
fn negotiate(
    socket: &Socket,
    input: &mut impl Read,
    export: &Export,
) -> Result<Option<bool>, Error> {
    socket.set_write_timeout(Some(HANDSHAKE))?;
    let send = |bytes: &[u8]| -> io::Result<()> {
        let mut socket = socket;
        socket.write_all(bytes)
    };
    send(&greeting())?;
    let mut flags = [0; 4];
    input.read_exact(&mut flags)?;
    let flags = u32::from_be_bytes(flags);
    let mut negotiation = Negotiation::new(export, flags).ok_or(Error::ClientFlags(flags))?;
    let mut replies = Vec::new();
    loop {
        let mut header = [0; OptionHeader::LEN];
        input.read_exact(&mut header)?;
        let OptionHeader { option, length } = OptionHeader::decode(header)?;
        if length > MAX_OPTION {
            return Err(Error::LongOption(length));
        }
        let mut data = vec![0; length as usize];
        input.read_exact(&mut data)?;
        replies.clear();
        let next = negotiation.option(option, &data, &mut replies);
        send(&replies)?;
        match next {
            Next::Option => {}
            Next::Transmission => return Ok(Some(negotiation.structured())),
            Next::Close => return Ok(None),
        }
    }
}

/// A request on its way from the thread that takes it to the one that answers it.
struct Job<'a> {
    request: Request,
    work: Result<Operation, Refusal>,
    data: Option<Buffer>,
    permit: Permit<'a>,
}

/// Until the client has no more to ask.
fn take_requests<'a>(
    input: &mut impl BufRead,
    judge: impl Fn(&Request) -> Result<Operation, Refusal>,
    budget: &'a Budget,
    jobs: UnboundedSender<Job<'a>>,
) -> Result<(), Error> {
    while !input.fill_buf()?.is_empty() {
        let mut header = [0; Request::LEN];
        input.read_exact(&mut header)?;
        let request = Request::decode(header)?;
        if request.command == command::DISC {
            break;
        }
        let work = judge(&request);
        let moved = match &work {
            Ok(Operation::Read(_) | Operation::Write { .. }) => request.length,
            _ => 0,
        };
        if request.command == command::WRITE && request.length > MAX_PAYLOAD {
            return Err(Error::LongWrite(request.length));
        }
        let permit = budget.take(moved.into());
        let mut data = None;
        if let Ok(Operation::Write { .. }) = work {
            let mut buffer = Buffer::zeroed(moved as usize);
            input.read_exact(buffer.as_mut())?;
            data = Some(buffer);
        } else if request.command == command::WRITE {
            skip(input, request.length.into())?;
        }
        let job = Job {
            request,
            work,
            data,
            permit,
        };
        if jobs.unbounded_send(job).is_err() {
            break;
        }
    }
    Ok(())
}

/// Reads what nobody wants.
fn skip(input: &mut impl Read, len: u64) -> Result<(), Error> {
    let skipped = io::copy(&mut input.take(len), &mut io::sink())?;
    if skipped < len {
        return Err(Error::Truncated);
    }
    Ok(())
}

/// A reply, and what it takes until it is sent.
struct Outgoing<'a> {
    head: Vec<u8>,
    data: Option<Buffer>,
    _permit: Permit<'a>,
}

/// Performs the requests, and sends the replies in the order in which they come about.
fn send_replies(
    socket: &Socket,
    shared: &Shared,
    structured: bool,
    mut jobs: UnboundedReceiver<Job<'_>>,
) -> io::Result<()> {
    let mut under_way = FuturesUnordered::new();
    let mut more = true;
    let mut batch = Vec::new();
    let mut outcome = Ok(());
    block_on(poll_fn(|context| {
        loop {
            while more && let Poll::Ready(job) = jobs.poll_next_unpin(context) {
                match job {
                    Some(job) => under_way.push(answer(shared, structured, job)),
                    None => more = false,
                }
            }
            let polled = under_way.poll_next_unpin(context);
            if let Poll::Ready(Some(outgoing)) = polled {
                batch.push(outgoing);
                if batch.len() < BATCH {
                    continue;
                }
            }
            if !batch.is_empty() {
                // After an error all the rest is waited for as before: it holds memory.
                if outcome.is_ok() {
                    outcome = send(socket, &batch);
                    if outcome.is_err() {
                        // For the thread that reads. It may be shut down already.
                        let _ = socket.shutdown(Shutdown::Both);
                    }
                }
                batch.clear();
                continue;
            }
            return match more {
                false if under_way.is_empty() => Poll::Ready(()),
                _ => Poll::Pending,
            };
        }
    }));
    outcome
}

async fn answer<'a>(shared: &Shared, structured: bool, job: Job<'a>) -> Outgoing<'a> {
    let Job {
        request,
        work,
        data,
        permit,
    } = job;
    let outcome = match work {
        Ok(operation) => shared.volume.perform(operation, data).await,
        Err(refusal) => Err(refusal),
    };
    let reply = match &outcome {
        Ok(data) => Reply::Done {
            offset: request.offset,
            length: data.as_ref().map_or(0, |_| request.length),
        },
        Err(Refusal { errno, message }) => Reply::Failed {
            errno: *errno,
            message,
        },
    };
    let mut head = Vec::new();
    protocol::reply(&mut head, structured, request.cookie, &reply);
    Outgoing {
        head,
        data: outcome.unwrap_or_default(),
        _permit: permit,
    }
}

/// Sends all, in as few system calls as the socket allows.
fn send(mut socket: &Socket, batch: &[Outgoing<'_>]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = batch
        .iter()
        .flat_map(|reply| {
            [
                &reply.head[..],
                reply.data.as_ref().map_or(&[], AsRef::as_ref),
            ]
        })
        .filter(|bytes| !bytes.is_empty())
        .map(IoSlice::new)
        .collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        match socket.write_vectored(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads, but not for longer than until the deadline.
struct Input<'a> {
    socket: &'a Socket,
    deadline: Option<Instant>,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
        }
        self.socket.read(buffer)
    }
}

/// What the requests of a client may take together.
struct Budget {
    left: Mutex<Left>,
    returned: Condvar,
}

struct Left {
    requests: usize,
    bytes: u64,
}

/// Part of the budget; given back by dropping it.
struct Permit<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    fn new(requests: usize, bytes: u64) -> Self {
        Self {
            left: Mutex::new(Left { requests, bytes }),
            returned: Condvar::new(),
        }
    }

    /// Waits until there is enough for one more request. `bytes` is no more than the whole.
    fn take(&self, bytes: u64) -> Permit<'_> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = self
            .returned
            .wait_while(left, |left| left.requests == 0 || left.bytes < bytes)
            .unwrap_or_else(PoisonError::into_inner);
        left.requests -= 1;
        left.bytes -= bytes;
        Permit {
            budget: self,
            bytes,
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let budget = self.budget;
        let mut left = budget.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.requests += 1;
        left.bytes += self.bytes;
        budget.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;

    #[test]
    fn who_says_nothing_is_not_waited_for_beyond_the_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = Socket::from(ours);
        let deadline = Some(Instant::now() + Duration::from_millis(50));
        let mut input = Input {
            socket: &socket,
            deadline,
        };
        let mut three = [0; 3];
        theirs.write_all(&[1, 2]).unwrap();
        // Not even if something comes now and then.
        for _ in 0..2 {
            let error = Error::from(input.read_exact(&mut three).unwrap_err());
            assert!(matches!(error, Error::Slow), "{error}");
            theirs.write_all(&[3]).unwrap();
        }
        input.deadline = None;
        assert_eq!(input.read(&mut three).unwrap(), 2);
    }

    #[test]
    fn a_budget_is_waited_for() {
        let budget = Budget::new(3, 100);
        let first = budget.take(60);
        let second = budget.take(40);
        let third = budget.take(0);
        let (took, taken) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                for bytes in [0, 100] {
                    let permit = budget.take(bytes);
                    took.send(bytes).unwrap();
                    drop(permit);
                }
            });
            // Neither a request nor bytes are left; then a request is.
            assert!(taken.try_recv().is_err());
            drop(third);
            assert_eq!(taken.recv(), Ok(0));
            drop(first);
            assert!(taken.try_recv().is_err());
            drop(second);
            assert_eq!(taken.recv(), Ok(100));
        });
    }
}
