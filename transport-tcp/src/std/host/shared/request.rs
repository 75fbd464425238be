//! What a call returns: a future, which can also be waited for.
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::super::error::Error;
use super::super::work::Done;
use super::association::Handle;
use super::lane::Lane;

/// A call under way.
///
/// It is a [`Future`], of any runtime, and [`Request::wait`] is for threads without one.
/// Commands are sent by the call that returns this, or as soon as there is room, whether
/// this is polled or not. Dropping it withdraws what was not sent; what was sent may
/// or may not take effect, and keeps its buffers until the controller has answered.
#[must_use = "what is dropped may not be sent"]
pub struct Request<T>(Kind<T>);

enum Kind<T> {
    /// Commands of one queue.
    Call(Ticket, fn(Done) -> Result<T, Error>),
    /// Several calls, one after the other.
    Sequence(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
    /// Ended at once.
    Ready(Option<Result<T, Error>>),
}

/// A call, as its caller has it.
pub(super) struct Ticket {
    pub(super) call: Arc<Call>,
    pub(super) lane: Arc<Lane>,
    /// The association is there until the call has ended.
    pub(super) _handle: Option<Arc<Handle>>,
}

/// What a caller and a queue share.
#[derive(Default)]
pub(super) struct Call(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    outcome: Option<Result<Done, Error>>,
    ended: bool,
    waker: Option<Waker>,
}

impl Call {
    /// The call ended; whoever waits for it is woken.
    pub(super) fn finish(&self, outcome: Result<Done, Error>) {
        let waker = {
            let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            inner.outcome = Some(outcome);
            inner.ended = true;
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn has_ended(&self) -> bool {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.ended
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Result<Done, Error>> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = inner.outcome.take() {
            return Poll::Ready(outcome);
        }
        match &mut inner.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.call.has_ended() {
            self.lane.withdraw(&self.call);
        }
    }
}

impl<T> Request<T> {
    pub(super) fn call(ticket: Ticket, then: fn(Done) -> Result<T, Error>) -> Self {
        Self(Kind::Call(ticket, then))
    }

    pub(super) fn sequence(
        future: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Self {
        Self(Kind::Sequence(Box::pin(future)))
    }

    pub(super) fn ready(outcome: Result<T, Error>) -> Self {
        Self(Kind::Ready(Some(outcome)))
    }

    /// Sleeps until the call has ended. Not for async tasks, which `await` instead.
    ///
    /// # Errors
    /// Those of the call.
    pub fn wait(self) -> Result<T, Error> {
        thread_local! {
            static WAKER: Waker = Waker::from(Arc::new(Sleeper(thread::current())));
        }
        let mut request = pin!(self);
        WAKER.with(|waker| {
            let mut context = Context::from_waker(waker);
            loop {
                match request.as_mut().poll(&mut context) {
                    Poll::Ready(outcome) => return outcome,
                    Poll::Pending => thread::park(),
                }
            }
        })
    }
}

// Nothing in it is pinned but what is in a box.
impl<T> Unpin for Request<T> {}

impl<T> Future for Request<T> {
    type Output = Result<T, Error>;

    /// # Panics
    /// When polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Kind::Call(ticket, then) => {
                let then = *then;
                ticket.call.poll(context).map(|done| done.and_then(then))
            }
            Kind::Sequence(future) => future.as_mut().poll(context),
            Kind::Ready(outcome) => Poll::Ready(outcome.take().expect("polled after it was ready")),
        }
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

/// A thread in [`Request::wait`].
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
