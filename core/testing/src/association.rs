//! A controller's machine at the host's end of an admin queue, driven as a binding does.
use std::time::Duration;

use nvmf_core::host::Data;
use nvmf_core::host::controller::{self, Capabilities, Controller, Event, Token};
use nvmf_core::host::{Error, Identity};
use nvmf_core::time::{Instant, sooner};
use nvmf_core::wire::ids::{Cntlid, HostId};
use zerocopy::IntoBytes;

use crate::bytes::{HOSTNQN, SUBNQN};
use crate::ends::{Ends, Happened, Payload, Seen};

/// Tags of the machine's requests are these and above.
const OWN: u64 = 1 << 32;
/// By their place.
const TOKENS: [Token; 4] = [
    Token::Step,
    Token::KeepAlive,
    Token::Abort,
    Token::AsyncEvent,
];

/// Who the hosts of tests are.
///
/// # Panics
/// Never: it is a name.
#[must_use]
pub fn identity() -> Identity {
    Identity {
        hostnqn: HOSTNQN.parse().expect("is a name"),
        hostid: HostId([7; 16]),
    }
}

/// A controller of the NVM subsystem, with keep alive every 5 s and commands that
/// may take 10 s.
///
/// # Panics
/// Never: it is a name.
#[must_use]
pub fn config() -> controller::Config {
    controller::Config {
        host: identity(),
        subnqn: SUBNQN.parse().expect("is a name"),
        cntlid: Cntlid::DYNAMIC,
        kato: Duration::from_secs(5),
        io_queues: 2,
        events: true,
        command_timeout: Duration::from_secs(10),
    }
}

/// How an association ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The machine said so.
    Machine(Error),
    /// The admin queue's connection did.
    Connection(Happened),
    /// The controller was shut down.
    ShutDown,
}

/// The machine and its admin queue.
pub struct Association {
    /// The admin queue's connection.
    pub link: usize,
    /// The machine.
    pub machine: Controller,
    /// What it found, once ready.
    pub found: Option<Capabilities>,
    /// How it ended, and when.
    pub ended: Option<(Instant, Ended)>,
    /// What others saw: events of other connections, and of commands that are not the machine's.
    pub others: Vec<Seen>,
}

impl Association {
    /// Of a connection that was just made.
    pub fn on(pair: &mut impl Ends, link: usize, config: controller::Config) -> Self {
        pair.configure(link, controller::ADMIN_ENTRIES as usize - 1, 8192);
        Self {
            link,
            machine: Controller::new(config, pair.now()),
            found: None,
            ended: None,
            others: Vec::new(),
        }
    }

    /// Time passes, and all happens that is to happen meanwhile, each thing at its moment.
    ///
    /// # Panics
    /// When it never rests.
    pub fn run(&mut self, pair: &mut impl Ends, by: Duration) {
        let end = pair.now().after(by);
        for _ in 0..100_000 {
            self.work(pair);
            let due = self.machine.poll_timeout().filter(|_| self.ended.is_none());
            let next = sooner(due, pair.deadline()).filter(|next| *next <= end);
            pair.run(next.unwrap_or(end).since(pair.now()));
            self.work(pair);
            self.time_passed(pair);
            if next.is_none() {
                return;
            }
        }
        panic!("it never rests");
    }

    /// What is to be done now.
    fn work(&mut self, pair: &mut impl Ends) {
        loop {
            pair.run(Duration::ZERO);
            let mut moved = false;
            while let Some(seen) = pair.poll_seen() {
                moved = true;
                self.saw(seen);
            }
            let now = pair.now();
            if self.ended.is_none()
                && let Some((token, request)) = self.machine.poll_command(now)
            {
                moved = true;
                let payload = match request.data {
                    Data::Nothing => Payload::Nothing,
                    Data::ToHost(len) => Payload::Read(len),
                    Data::FromHost(_) => {
                        Payload::Write(self.machine.connect_data().as_bytes().to_vec())
                    }
                };
                let place = TOKENS.iter().position(|it| *it == token);
                let tag = OWN + place.expect("is one of them") as u64;
                let there_is_room = pair.submit(self.link, &request.sqe, payload, tag);
                assert!(there_is_room, "others leave room");
            }
            if !moved {
                return;
            }
        }
    }

    fn saw(&mut self, seen: Seen) {
        if seen.link != self.link {
            self.others.push(seen);
            return;
        }
        match seen.happened {
            Happened::Ready => {}
            Happened::Completed { tag, cqe, data } if tag >= OWN => {
                let place = usize::try_from(tag - OWN).expect("is small");
                let token = TOKENS[place];
                match self.machine.completed(token, &cqe, &data, seen.when) {
                    Ok(None | Some(Event::Async(_))) => {}
                    Ok(Some(Event::Ready(found))) => self.found = Some(found),
                    Ok(Some(Event::ShutDown)) => self.end(seen.when, Ended::ShutDown),
                    Err(error) => self.end(seen.when, Ended::Machine(error)),
                }
            }
            Happened::Completed { .. } => self.others.push(seen),
            why => self.end(seen.when, Ended::Connection(why)),
        }
    }

    fn time_passed(&mut self, pair: &mut impl Ends) {
        let now = pair.now();
        if self.ended.is_none()
            && let Err(error) = self.machine.handle_timeout(now)
        {
            self.end(now, Ended::Machine(error));
            pair.close(self.link);
        }
    }

    fn end(&mut self, when: Instant, ended: Ended) {
        self.ended.get_or_insert((when, ended));
    }
}
