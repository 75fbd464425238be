//! What a host does when it loses a controller: when it connects again, when it gives
//! up, and which commands it may send a second time.
//!
//! The machine knows no socket. A binding tells it what happened, does what
//! [`Recovery::poll_action`] says until that says nothing, and comes back at
//! [`Recovery::poll_timeout`]. It asks [`Recovery::fresh`] before it sends a command, and
//! [`Recovery::again`] about commands that were under way when their association was lost.
//!
//! # When a connection is known to be dead
//! A write that was under way may still be in a switch, in the controller's socket or in
//! its device. If it is sent again, or another write is, the late one can undo the newer.
//! So a command that changes something is held until the old association is *dead*, which
//! is so when both directions of each of its connections ended, or time proves it:
//!
//! 1. We shut our side ([`Action::Shut`]) and read on until the controller's FIN or RST
//!    ([`Recovery::ended`]). A controller closes a queue when it is done with that queue's
//!    commands, or [`Fence::quiesce`] (CQT) later.
//! 2. If it does not end in [`LINGER`], we make sure that not even our own system sends any
//!    more of what it has buffered: [`Action::Abort`]. [`Fence::silence`] after that, the
//!    controller's keep alive timer has ended everything (Base 2.1, section 9.6): twice KATO,
//!    thrice if the timer is traffic based, and CQT.
//!
//! Without keep alive (KATO 0) the second never comes: what was under way then fails with
//! [`Cause::FateUnknown`], and nothing waits for it.
//!
//! Commands that change nothing ([`Effect::Reads`]) are sent again as soon as there is a
//! controller.
//!
//! ```
//! use core::time::Duration;
//! use nvmf_core::host::recovery::{Action, Effect, Fence, Policy, Recovery, State, Verdict};
//! use nvmf_core::time::Instant;
//!
//! let at = |seconds: u64| Instant::from_micros(seconds * 1_000_000);
//! // KATO 5 s, traffic based: 15 s of silence are proof.
//! let fence = Fence::new(Duration::from_secs(5), 10, true, Duration::ZERO);
//! let mut recovery = Recovery::new(Policy::default(), fence);
//!
//! // The connection of association 0 breaks; writes were under way.
//! let lost = recovery.association();
//! recovery.lost(lost, true, at(0));
//! assert_eq!(recovery.poll_action(at(0)), Some(Action::Shut(lost)));
//! assert_eq!(recovery.poll_action(at(0)), None);
//! // Nothing is heard of it: RST, two seconds later.
//! assert_eq!(recovery.poll_timeout(), Some(at(2)));
//! assert_eq!(recovery.poll_action(at(2)), Some(Action::Abort(lost)));
//!
//! // Ten seconds after the loss, the first attempt. It succeeds.
//! assert_eq!(recovery.poll_timeout(), Some(at(10)));
//! assert_eq!(recovery.poll_action(at(10)), Some(Action::Connect { attempt: 1 }));
//! recovery.connected(fence);
//! assert_eq!(recovery.poll_action(at(10)), Some(Action::Release));
//! assert_eq!(recovery.again(Effect::Reads), Verdict::Send);
//! assert_eq!(recovery.again(Effect::Changes), Verdict::Hold);
//!
//! // Once the old association is dead, look at what is held.
//! assert_eq!(recovery.poll_timeout(), Some(at(17)));
//! assert_eq!(recovery.poll_action(at(17)), Some(Action::Release));
//! assert_eq!(recovery.again(Effect::Changes), Verdict::Send);
//! assert_eq!(recovery.state(), State::Live);
//! ```
use core::time::Duration;

use super::Error;
use super::controller::Capabilities;
use crate::time::{Instant, sooner};
use crate::wire::sqe::{AdminOpcode, Fctype, Fuse, IoOpcode, Sqe};

/// How long the controller's end of a lost connection is waited for.
pub const LINGER: Duration = Duration::from_secs(2);

/// When to connect again, and when to give up. The defaults are those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `reconnect_delay`: before each attempt, the first included. Zero is a millisecond.
    pub reconnect_delay: Duration,
    /// `ctrl_loss_tmo`: zero gives up at once, `None` never does.
    pub ctrl_loss_tmo: Option<Duration>,
    /// `fast_io_fail_tmo`: so long after a loss, commands fail instead of waiting for the
    /// controller; zero lets them fail at once, `None` lets them wait.
    pub fast_io_fail_tmo: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            reconnect_delay: Duration::from_secs(10),
            ctrl_loss_tmo: Some(Duration::from_secs(600)),
            fast_io_fail_tmo: None,
        }
    }
}

impl Policy {
    /// What a user's number of seconds means for `ctrl_loss_tmo` and `fast_io_fail_tmo`:
    /// negative is never. A number that was not given is none of this function's: the
    /// default stays.
    #[must_use]
    pub fn seconds(seconds: i64) -> Option<Duration> {
        u64::try_from(seconds).ok().map(Duration::from_secs)
    }

    /// Attempts to connect again after a loss, `None` for any number: as many as there are
    /// delays in `ctrl_loss_tmo`, rounded up.
    #[must_use]
    pub fn attempts(&self) -> Option<u32> {
        let attempts = self.ctrl_loss_tmo?.as_nanos();
        let attempts = attempts.div_ceil(self.delay().as_nanos().max(1));
        Some(u32::try_from(attempts).unwrap_or(u32::MAX))
    }

    fn delay(&self) -> Duration {
        self.reconnect_delay.max(Duration::from_millis(1))
    }
}

/// When a controller that is not reached any more has certainly ended all that it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// After our last byte. `None`: it never does by itself, for want of a keep alive timer.
    pub silence: Option<Duration>,
    /// After it closed the connection: CQT, 0 if it does not say.
    pub quiesce: Duration,
}

impl Fence {
    /// Of a keep alive timeout (zero for none), the timer's granularity KAS in 100 ms
    /// units, whether any traffic restarts the timer (CTRATT.TBKAS), and CQT.
    #[must_use]
    pub fn new(kato: Duration, kas: u16, traffic_based: bool, cqt: Duration) -> Self {
        let unit_ms = u128::from(kas.max(1)).saturating_mul(100);
        let kato_ms = kato.as_millis().div_ceil(unit_ms).saturating_mul(unit_ms);
        let kato = Duration::from_millis(u64::try_from(kato_ms).unwrap_or(u64::MAX));
        let times = if traffic_based { 3 } else { 2 };
        Self {
            silence: (kato > Duration::ZERO)
                .then(|| kato.saturating_mul(times).saturating_add(cqt)),
            quiesce: cqt,
        }
    }

    /// Of a controller that was brought up.
    #[must_use]
    pub fn of(controller: &Capabilities) -> Self {
        Self::new(
            controller.kato,
            controller.kas,
            controller.traffic_based_keep_alive,
            controller.cqt,
        )
    }
}

/// Which of the associations that a host had with a controller, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Association(pub u32);

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is a controller.
    Live,
    /// There is none; the next attempt begins then.
    Waiting(Instant),
    /// An attempt is being made.
    Connecting,
    /// There is none, and will be none.
    Gone(Why),
}

/// Why it was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Every attempt that `ctrl_loss_tmo` allows has failed.
    Attempts,
    /// The same attempt would fail again: [`Failure::Final`].
    Final,
    /// [`Recovery::stop`].
    Stopped,
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It may go better next time.
    Transient,
    /// It will not: a status with DNR, or no right to be there.
    Final,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        match error {
            Error::AuthenticationRequired => Self::Final,
            Error::Refused { status, .. } if status.dnr => Self::Final,
            _ => Self::Transient,
        }
    }
}

/// What a binding is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Shut our side of each connection of this association, read and throw away what comes,
    /// and say [`Recovery::ended`] when all have ended.
    Shut(Association),
    /// Drop this association's connections so that nothing of what is buffered is sent (with
    /// `SO_LINGER` of 0, for instance).
    Abort(Association),
    /// Bring up a new controller; then [`Recovery::connected`] or [`Recovery::failed`].
    Connect {
        /// Counted from 1, after each loss.
        attempt: u32,
    },
    /// Ask [`Recovery::fresh`] and [`Recovery::again`] about all commands that are held: what
    /// they say has changed.
    Release,
}

/// Whether a command changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Done once or twice, sooner or later, it is all the same.
    Reads,
    /// It writes, or may do so.
    Changes,
}

impl Effect {
    /// Of a command of an I/O queue. What is not known changes something.
    #[must_use]
    pub fn of_io(sqe: &Sqe) -> Self {
        match IoOpcode::from(sqe.opcode) {
            // A half of a fused pair is not sent alone.
            _ if sqe.fuse() != Fuse::Normal => Self::Changes,
            IoOpcode::Flush
            | IoOpcode::Read
            | IoOpcode::Compare
            | IoOpcode::Verify
            | IoOpcode::ReservationReport
            | IoOpcode::ZoneManagementReceive => Self::Reads,
            _ => Self::Changes,
        }
    }

    /// Of a command of an Admin Queue. What is not known changes something.
    #[must_use]
    pub fn of_admin(sqe: &Sqe) -> Self {
        match sqe.admin_opcode() {
            AdminOpcode::GetLogPage
            | AdminOpcode::Identify
            | AdminOpcode::GetFeatures
            | AdminOpcode::GetLbaStatus
            | AdminOpcode::KeepAlive => Self::Reads,
            AdminOpcode::Fabrics if sqe.fctype() == Fctype::PropertyGet => Self::Reads,
            _ => Self::Changes,
        }
    }
}

/// What becomes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it.
    Send,
    /// Keep it, and ask again after [`Action::Release`].
    Hold,
    /// It fails.
    Fail(Cause),
}

/// Why a command fails that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// `fast_io_fail_tmo` has passed.
    FailFast,
    /// There is no controller any more.
    Gone,
    /// Without keep alive nobody knows when, or whether, the controller is done with it.
    FateUnknown,
}

/// What becomes of a lost association's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing any more.
    Dead,
    /// Nothing from then on.
    DeadAt(Instant),
    /// Its connections are still read.
    Open,
    /// Anything, at any time.
    Unknown,
}

/// A lost association whose connections are still read.
#[derive(Clone, Copy, Debug)]
struct Linger {
    association: Association,
    until: Instant,
    fence: Fence,
}

/// The machine. It begins with a controller that was brought up.
#[derive(Debug)]
pub struct Recovery {
    policy: Policy,
    state: State,
    association: Association,
    fence: Fence,
    /// Attempts since the loss.
    attempts: u32,
    /// When commands begin to fail.
    fail_fast_at: Option<Instant>,
    failing_fast: bool,
    linger: Option<Linger>,
    /// Of the association that was lost last.
    latest: Fate,
    /// When those before it are dead.
    earlier: Option<Instant>,
    /// Actions that are due.
    abort: Option<Association>,
    shut: Option<Association>,
    release: bool,
}

impl Recovery {
    /// For a controller that was brought up.
    #[must_use]
    pub const fn new(policy: Policy, fence: Fence) -> Self {
        Self {
            policy,
            state: State::Live,
            association: Association(0),
            fence,
            attempts: 0,
            fail_fast_at: None,
            failing_fast: false,
            linger: None,
            latest: Fate::Dead,
            earlier: None,
            abort: None,
            shut: None,
            release: false,
        }
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether commands fail because there has been no controller for `fast_io_fail_tmo`.
    #[must_use]
    pub const fn is_failing_fast(&self) -> bool {
        self.failing_fast
    }

    /// The association there is, or was last.
    #[must_use]
    pub const fn association(&self) -> Association {
        self.association
    }

    /// Attempts since the loss, the one that is being made included.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// `association` is of no use any more: a connection of it ended, its keep alive was not
    /// answered, or a command was neither answered nor aborted in time. `changes` says
    /// whether a command that changes something was under way, be it one that its user gave
    /// up before.
    ///
    /// Does nothing if that association was lost before.
    pub fn lost(&mut self, association: Association, changes: bool, now: Instant) {
        if self.state != State::Live || association != self.association {
            return;
        }
        self.abort_lingering(now);
        if let Fate::DeadAt(dead) = self.latest {
            self.earlier = self.earlier.max(Some(dead));
        }
        self.latest = if changes { Fate::Open } else { Fate::Dead };
        self.linger = Some(Linger {
            association,
            until: now.after(LINGER),
            fence: self.fence,
        });
        self.shut = Some(association);
        self.fail_fast_at = self.policy.fast_io_fail_tmo.map(|tmo| now.after(tmo));
        self.try_later(now);
    }

    /// Our side of each connection of `association` is shut, and each of them ended: FIN or
    /// RST came.
    pub fn ended(&mut self, association: Association, now: Instant) {
        let lingers = |linger: &mut Linger| linger.association == association;
        if let Some(linger) = self.linger.take_if(lingers)
            && self.latest == Fate::Open
        {
            self.latest = Fate::DeadAt(now.after(linger.fence.quiesce));
        }
    }

    /// The attempt succeeded: there is a controller.
    pub fn connected(&mut self, fence: Fence) {
        if self.state == State::Connecting {
            self.state = State::Live;
            self.association = Association(self.association.0.wrapping_add(1));
            self.fence = fence;
            self.attempts = 0;
            (self.fail_fast_at, self.failing_fast) = (None, false);
            self.release = true;
        }
    }

    /// The attempt failed.
    pub fn failed(&mut self, failure: Failure, now: Instant) {
        match (self.state, failure) {
            (State::Connecting, Failure::Transient) => self.try_later(now),
            (State::Connecting, Failure::Final) => self.give_up(Why::Final),
            _ => {}
        }
    }

    /// There is to be no controller any more. One that is there was shut down already.
    pub fn stop(&mut self) {
        if !matches!(self.state, State::Gone(_)) {
            self.give_up(Why::Stopped);
        }
    }

    /// The next thing to do; call it until it says `None`, whenever anything happened.
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        if self.linger.is_some_and(|linger| linger.until <= now) {
            self.abort_lingering(now);
        }
        if self.fail_fast_at.is_some_and(|due| due <= now) {
            self.fail_fast_at = None;
            (self.failing_fast, self.release) = (true, true);
        }
        if self.dead_at().is_some_and(|due| due <= now) {
            (self.latest, self.earlier) = (Fate::Dead, None);
            self.release = true;
        }
        if let Some(association) = self.abort.take() {
            return Some(Action::Abort(association));
        }
        if let Some(association) = self.shut.take() {
            return Some(Action::Shut(association));
        }
        if core::mem::take(&mut self.release) {
            return Some(Action::Release);
        }
        match self.state {
            State::Waiting(due) if due <= now => {
                self.state = State::Connecting;
                self.attempts = self.attempts.saturating_add(1);
                let attempt = self.attempts;
                Some(Action::Connect { attempt })
            }
            _ => None,
        }
    }

    /// When there is something to do, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let attempt = match self.state {
            State::Waiting(due) => Some(due),
            _ => None,
        };
        let linger = self.linger.map(|linger| linger.until);
        let held = sooner(self.dead_at(), self.fail_fast_at);
        sooner(sooner(attempt, linger), held)
    }

    /// A command that was never sent.
    ///
    /// One that changes something waits for the death of whatever might still change
    /// something else behind its back.
    #[must_use]
    pub fn fresh(&self, effect: Effect) -> Verdict {
        match effect {
            Effect::Changes if self.may_still_change() => self.when_live(Verdict::Hold),
            _ => self.when_live(Verdict::Send),
        }
    }

    /// A command that was sent, wholly or in part, and whose association was lost before it
    /// was answered.
    #[must_use]
    pub fn again(&self, effect: Effect) -> Verdict {
        match effect {
            Effect::Changes if self.latest == Fate::Unknown => Verdict::Fail(Cause::FateUnknown),
            _ => self.fresh(effect),
        }
    }

    fn when_live(&self, verdict: Verdict) -> Verdict {
        match self.state {
            State::Live => verdict,
            State::Gone(_) => Verdict::Fail(Cause::Gone),
            State::Waiting(_) | State::Connecting if self.failing_fast => {
                Verdict::Fail(Cause::FailFast)
            }
            State::Waiting(_) | State::Connecting => Verdict::Hold,
        }
    }

    const fn may_still_change(&self) -> bool {
        self.earlier.is_some() || matches!(self.latest, Fate::DeadAt(_) | Fate::Open)
    }

    /// When all lost associations are dead, once that is known.
    fn dead_at(&self) -> Option<Instant> {
        match self.latest {
            Fate::Open => None,
            Fate::DeadAt(due) => self.earlier.max(Some(due)),
            Fate::Dead | Fate::Unknown => self.earlier,
        }
    }

    /// From now on nothing of what is buffered is sent.
    fn abort_lingering(&mut self, now: Instant) {
        let Some(linger) = self.linger.take() else {
            return;
        };
        self.abort = Some(linger.association);
        if self.latest == Fate::Open {
            self.latest = match linger.fence.silence {
                Some(silence) => Fate::DeadAt(now.after(silence)),
                None => {
                    self.release = true;
                    Fate::Unknown
                }
            };
        }
    }

    fn try_later(&mut self, now: Instant) {
        match self.policy.attempts() {
            Some(most) if self.attempts >= most => self.give_up(Why::Attempts),
            _ => self.state = State::Waiting(now.after(self.policy.delay())),
        }
    }

    fn give_up(&mut self, why: Why) {
        self.state = State::Gone(why);
        (self.fail_fast_at, self.failing_fast) = (None, false);
        self.release = true;
    }
}

#[cfg(test)]
mod tests;
