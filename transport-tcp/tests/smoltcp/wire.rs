//! Two Ethernet devices and the cable between them, in virtual time.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// What a cable does to frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Of a thousand frames, how many are lost.
    pub lost: u64,
    /// Of a thousand frames, how many come twice.
    pub doubled: u64,
    /// How long a frame takes, in microseconds, at least.
    pub delay: u64,
    /// And how much longer at most: frames overtake each other.
    pub jitter: u64,
}

impl Weather {
    pub(crate) const FAIR: Self = Self {
        lost: 0,
        doubled: 0,
        delay: 50,
        jitter: 0,
    };
    /// Nothing arrives.
    pub(crate) const CUT: Self = Self {
        lost: 1000,
        ..Self::FAIR
    };
    pub(crate) const FOUL: Self = Self {
        lost: 30,
        doubled: 30,
        delay: 50,
        jitter: 400,
    };
}

/// A generator of numbers that look random, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Below `limit`.
    pub(crate) fn roll(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }
}

/// Frames on their way in one direction, and when they arrive.
type Lane = VecDeque<(i64, Vec<u8>)>;

#[derive(Debug)]
struct Cable {
    lanes: [Lane; 2],
    weather: Weather,
    dice: Dice,
}

/// One end of a cable.
#[derive(Debug)]
pub(crate) struct End {
    cable: Rc<RefCell<Cable>>,
    /// The lane that comes here; the other is the one to send to.
    lane: usize,
}

/// A cable's two ends.
pub(crate) fn cable(weather: Weather, seed: u64) -> (End, End) {
    let cable = Rc::new(RefCell::new(Cable {
        lanes: Default::default(),
        weather,
        dice: Dice::new(seed),
    }));
    let end = |lane| End {
        cable: Rc::clone(&cable),
        lane,
    };
    (end(0), end(1))
}

impl End {
    /// When the next frame arrives here.
    pub(crate) fn next_arrival(&self) -> Option<i64> {
        let cable = self.cable.borrow();
        cable.lanes[self.lane].iter().map(|frame| frame.0).min()
    }
}

impl Cable {
    fn send(&mut self, lane: usize, now: i64, frame: &[u8]) {
        let weather = self.weather;
        if self.dice.roll(1000) < weather.lost {
            return;
        }
        let copies = 1 + usize::from(self.dice.roll(1000) < weather.doubled);
        for _ in 0..copies {
            let delay = weather.delay + self.dice.roll(weather.jitter + 1);
            self.lanes[lane].push_back((now + delay as i64, frame.to_vec()));
        }
    }
}

impl Device for End {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Slot;

    fn receive(&mut self, now: Instant) -> Option<(Arrived, Slot)> {
        let mut cable = self.cable.borrow_mut();
        let lane = &mut cable.lanes[self.lane];
        let due = |frame: &(i64, Vec<u8>)| frame.0 <= now.total_micros();
        let at = lane.iter().position(due)?;
        let (_, frame) = lane.remove(at)?;
        Some((Arrived(frame), self.slot(now)))
    }

    fn transmit(&mut self, now: Instant) -> Option<Slot> {
        Some(self.slot(now))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

impl End {
    /// From now on it is like that.
    pub(crate) fn set_weather(&self, weather: Weather) {
        self.cable.borrow_mut().weather = weather;
    }

    fn slot(&self, now: Instant) -> Slot {
        Slot {
            cable: Rc::clone(&self.cable),
            lane: 1 - self.lane,
            now: now.total_micros(),
        }
    }
}

pub(crate) struct Arrived(Vec<u8>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

pub(crate) struct Slot {
    cable: Rc<RefCell<Cable>>,
    lane: usize,
    now: i64,
}

impl TxToken for Slot {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut frame = vec![0; len];
        let result = fill(&mut frame);
        self.cable.borrow_mut().send(self.lane, self.now, &frame);
        result
    }
}
