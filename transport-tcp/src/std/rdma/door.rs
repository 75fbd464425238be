//! A worker's connection manager: connections as they come, spread over the
//! workers of an address.
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use nvmf_core::time::Instant;
use nvmf_rdma::cm::{Cm, Event, PrivateData, Setup, Terms};
use nvmf_rdma::ibv::{IbvCm, IbvVerbs, Qp, Request};
use nvmf_rdma::verbs::Error;

use super::{Message, Port};

/// Requests that are handed on before the worker looks at anything else.
const HAND_OVER: usize = 16;

/// The device's connection manager, and what other workers hand over.
pub(super) struct Door {
    pub(super) cm: IbvCm,
    port: Arc<Port>,
    /// Index of the worker whose it is.
    index: usize,
    came: VecDeque<(Request, Terms)>,
    /// Asking the device takes a system call, so it is asked where that was worth it lately.
    asks: bool,
    /// Nobody is let in any more.
    closed: bool,
}

impl Door {
    pub(super) fn new(cm: IbvCm, port: Arc<Port>, index: usize) -> Self {
        Self {
            cm,
            port,
            index,
            came: VecDeque::new(),
            asks: true,
            closed: false,
        }
    }

    /// Who comes from now on is rejected.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// The device may have something to tell.
    pub(super) fn ask(&mut self) {
        self.asks = true;
    }

    /// Another worker hands a peer's wish over.
    pub(super) fn hand_over(&mut self, came: (Request, Terms)) {
        self.came.push_back(came);
    }
}

impl Cm for Door {
    type Verbs = IbvVerbs;
    type Qp = Qp;
    type Address = SocketAddr;
    type Request = Request;

    fn listen(&mut self, address: SocketAddr) -> Result<(), Error> {
        self.cm.listen(address)
    }

    fn connect(
        &mut self,
        verbs: &mut IbvVerbs,
        address: SocketAddr,
        setup: Setup,
        terms: Terms,
    ) -> Result<Qp, Error> {
        self.cm.connect(verbs, address, setup, terms)
    }

    fn prepare(
        &mut self,
        verbs: &mut IbvVerbs,
        request: Request,
        setup: Setup,
    ) -> Result<Qp, (Request, Error)> {
        self.cm.prepare(verbs, request, setup)
    }

    fn accept(&mut self, verbs: &mut IbvVerbs, qp: Qp, terms: Terms) -> Result<(), Error> {
        self.cm.accept(verbs, qp, terms)
    }

    fn reject(&mut self, request: Request, private_data: PrivateData) {
        self.cm.reject(request, private_data);
    }

    fn stop(&mut self, verbs: &mut IbvVerbs, qp: Qp) {
        self.cm.stop(verbs, qp);
    }

    fn disconnect(&mut self, verbs: &mut IbvVerbs, qp: Qp) {
        self.cm.disconnect(verbs, qp);
        self.asks = true;
    }

    fn destroy(&mut self, verbs: &mut IbvVerbs, qp: Qp) {
        self.cm.destroy(verbs, qp);
    }

    fn poll(&mut self, now: Instant) -> Option<Event<Request, Qp>> {
        if self.closed {
            // Dropped, they are rejected.
            self.came.clear();
        }
        if let Some((request, terms)) = self.came.pop_front() {
            return Some(Event::Request { request, terms });
        }
        for _ in 0..HAND_OVER {
            if !self.asks {
                break;
            }
            match self.cm.poll(now) {
                None => self.asks = false,
                Some(Event::Request { .. }) if self.closed => {}
                Some(Event::Request { request, terms }) => {
                    let to = self.port.least(terms.private_data.bytes());
                    if to == self.index {
                        return Some(Event::Request { request, terms });
                    }
                    let mailbox = &self.port.workers[to].mailbox;
                    mailbox.put(Message::Request(Box::new((request, terms))));
                }
                event => return event,
            }
        }
        None
    }
}
