//! [`Ends`] over TCP.
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use nvmf_core::block::MediaError;
use nvmf_core::target::queue_pair::Close;
use nvmf_core::tcp::connection::CloseReason;
use nvmf_core::tcp::{host, target};
use nvmf_core::time::Instant;
use nvmf_core::wire::sqe::Sqe;

use crate::crc::continue_crc32c;
use crate::ends::{Ends, Payload, Seen, Wanted, Way};
use crate::pair::{How, Pair};
use crate::random::Random;
use crate::rig::Delivery;
use crate::target::{Heaped, Target};

/// What connections have that are made without saying.
#[derive(Default)]
pub(crate) struct Choices {
    host: host::Config,
    target: target::Config,
    /// How bytes travel, but for the latency.
    how: Option<How>,
    /// Chooses that for each connection.
    random: Option<Random>,
    spoil: Rc<Cell<Option<Spoil>>>,
    /// PDUs that were spoilt.
    spoilt: Rc<Cell<usize>>,
}

/// A byte of the next PDU that is to be changed.
#[derive(Clone, Copy)]
struct Spoil {
    link: usize,
    way: Way,
    at: usize,
    change: u8,
}

fn delivery(random: &mut Random) -> Delivery {
    let size = random.one_of(&[13, 24, 100, 999, 4096]);
    match random.below(3) {
        0 => Delivery::Whole,
        1 => Delivery::Pieces(size),
        _ => Delivery::InPlace(size),
    }
}

impl Pair {
    /// Without connections; these are what they have.
    #[must_use]
    pub fn with(host: host::Config, target: target::Config, how: How) -> Self {
        let mut pair = Self::new();
        pair.choices = Choices {
            host,
            target,
            how: Some(how),
            ..Choices::default()
        };
        pair
    }
}

impl Ends for Pair {
    type Supply = Heaped;

    fn plain() -> Self {
        Self::new()
    }

    fn chosen(random: &mut Random) -> Self {
        let digests = random.one_of(&[0, 1, 2, 3, 3, 3]);
        let choices = Choices {
            host: host::Config {
                header_digest: digests & 1 != 0,
                data_digest: digests & 2 != 0,
                hpda: random.byte() & 31,
                crc32c: continue_crc32c,
                ..host::Config::default()
            },
            target: target::Config {
                cpda: random.byte() & 31,
                maxh2cdata: 4096 + 4 * random.under(4096),
                max_c2hdata: random.one_of(&[512, 4096, 12_288, u32::MAX]),
                max_r2t: random.one_of(&[700, 4096, 10_000, u32::MAX]),
                crc32c: continue_crc32c,
                ..target::Config::default()
            },
            random: Some(Random(u64::from(random.under(u32::MAX)))),
            ..Choices::default()
        };
        let mut pair = Self::new();
        let (next, count) = (Rc::clone(&choices.spoil), Rc::clone(&choices.spoilt));
        pair.tap = Some(Box::new(move |passing| {
            if let Some(Spoil {
                link,
                way,
                at,
                change,
            }) = next.get()
                && (link, way) == (passing.link, passing.way)
            {
                let len = passing.bytes.len();
                passing.bytes[at % len] ^= change;
                next.set(None);
                count.set(count.get() + 1);
            }
        }));
        pair.choices = choices;
        pair
    }

    fn target(&mut self) -> &mut Target {
        &mut self.rig.target
    }

    fn now(&self) -> Instant {
        self.now()
    }

    fn connect(&mut self, _: &Wanted, latency: Duration) -> usize {
        let choices = &mut self.choices;
        let how = choices.how.unwrap_or(How::PLAIN);
        let how = match &mut choices.random {
            None => How {
                latency: latency.max(how.latency),
                ..how
            },
            Some(random) => How {
                to_target: delivery(random),
                to_host: delivery(random),
                latency,
            },
        };
        let (host, target) = (choices.host, choices.target);
        self.connect(&host, &target, how)
    }

    fn configure(&mut self, link: usize, commands: usize, inline_data: u32) {
        self.configure(link, commands, inline_data);
    }

    fn submit(&mut self, link: usize, sqe: &Sqe, payload: Payload, tag: u64) -> bool {
        self.submit(link, sqe, payload, tag)
    }

    fn outstanding(&self, link: usize) -> usize {
        self.outstanding(link).count()
    }

    fn poll_seen(&mut self) -> Option<Seen> {
        self.poll_seen()
    }

    fn links(&self) -> usize {
        self.links()
    }

    fn is_open(&self, link: usize) -> bool {
        self.is_open(link)
    }

    fn is_open_at_target(&self, link: usize) -> bool {
        self.rig.is_open(link)
    }

    fn is_drained(&self, link: usize) -> bool {
        self.rig.is_drained(link)
    }

    fn closing(&self, link: usize) -> Option<Close> {
        match self.rig.closing(link) {
            Some(CloseReason::Queue(close)) => Some(close),
            _ => None,
        }
    }

    fn make_room(&mut self, link: usize, way: Way, units: usize) {
        // A unit is about a PDU of data.
        self.make_room(link, way, units);
    }

    fn arrived(&self, link: usize, way: Way) -> u64 {
        self.arrived(link, way)
    }

    fn cut(&mut self, link: usize) {
        self.cut(link);
    }

    fn cut_at(&mut self, link: usize, way: Way, units: u64) {
        if link < self.links() {
            self.cut_at(link, way, units);
        } else {
            self.cut_next_at(link, way, units);
        }
    }

    fn units(bytes: u64) -> u64 {
        bytes
    }

    fn close(&mut self, link: usize) {
        self.close(link);
    }

    fn spoil(&mut self, link: usize, way: Way, at: usize, change: u8) {
        // Only where digests can tell.
        let host = &self.choices.host;
        if host.header_digest && host.data_digest {
            let spoil = Spoil {
                link,
                way,
                at,
                change,
            };
            self.choices.spoil.set(Some(spoil));
        }
    }

    fn stop_spoiling(&mut self) {
        self.choices.spoil.set(None);
    }

    fn spoilt(&self) -> usize {
        self.choices.spoilt.get()
    }

    /// Between two C2HData, whether they have digests or not.
    fn tears(&self) -> bool {
        true
    }

    fn run(&mut self, by: Duration) {
        self.run(by);
    }

    fn flow(&mut self) {
        self.flow();
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline()
    }

    fn complete(&mut self, index: usize, fault: Option<MediaError>) -> bool {
        self.rig.complete(index, fault)
    }

    fn retry(&mut self, link: usize) {
        self.rig.retry(link);
    }

    fn assert_clean(&mut self) {
        for link in 0..self.links() {
            assert!(!self.is_open(link), "connection {link} is open");
            assert!(self.rig.is_drained(link), "{link} is not drained");
        }
        assert_eq!(self.rig.target.buffers_taken(), 0, "buffers are kept");
        assert_eq!(self.rig.target.controllers(), 0, "controllers are kept");
    }
}
