//! Discovery: the log of one discovery controller, and the way through those that it refers
//! to. Neither keeps entries; both are bounded, whatever a controller says.
//!
//! ```
//! use nvmf_core::host::discovery::{Found, Walk};
//! use nvmf_core::wire::discovery::{Adrfam, DiscoveryEntry, Subtype, Trtype};
//! use nvmf_core::wire::ids::Nqn;
//!
//! // At most four controllers are asked.
//! let mut walk = Walk::<4>::new("192.0.2.7:8009".parse()?, Nqn::discovery());
//! let mut asked = 0;
//! while let Some(controller) = walk.next_controller() {
//!     asked += 1;
//!     // Connect to `controller.address` and `controller.subnqn`, read its log with a
//!     // `LogReader`, and hand over each of its entries. This one refers to another:
//!     let tcp = (Trtype::Tcp, Adrfam::Ipv4);
//!     let subnqn = &controller.subnqn;
//!     let entry = DiscoveryEntry::new(tcp, "192.0.2.8", "8009", Subtype::Referral, subnqn)?;
//!     match walk.entry(&entry) {
//!         Found::Followed => assert_eq!(controller.depth, 0),
//!         Found::Known => assert_eq!(controller.depth, 1),
//!         other => panic!("{other:?}"),
//!     }
//! }
//! assert_eq!(asked, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use heapless::Vec;
use zerocopy::FromBytes;

use super::{Request, command};
use crate::host::Data;
use crate::wire::discovery::{DiscoveryEntry, DiscoveryHeader, Subtype, Trtype};
use crate::wire::ids::{Nqn, Nsid};
use crate::wire::log::LogId;

/// The port of discovery controllers over TCP, where an entry gives none.
pub const DISCOVERY_PORT: u16 = 8009;

/// Referrals that are followed one after the other, at most.
pub const MAX_DEPTH: u8 = 8;

/// Entries of one log that are read, at most: 16 MiB.
const MAX_ENTRIES: u64 = 16 * 1024;

/// How often a log is read again because it changed meanwhile.
const ATTEMPTS: u32 = 10;

/// Bytes of the header, and of each entry.
const LEN: u32 = 1024;

/// Reads one controller's log, and again as long as it changes while it is read
/// (section 5.16.1.23).
///
/// Submit [`LogReader::request`], and hand what came to [`LogReader::completed`], until that
/// says [`Progress::Done`].
#[derive(Debug)]
pub struct LogReader {
    stage: Stage,
    /// Entries that one command reads.
    part: u32,
    genctr: u64,
    /// Entries there are, and those that were read.
    count: u64,
    read: u64,
    attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Header,
    Entries,
    /// The header again: whether it is still the same log.
    Check,
}

/// How far the reading is.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Go on.
    More,
    /// These entries, and go on.
    Entries(&'a [DiscoveryEntry]),
    /// The log changed: all its entries come once more, those so far are void.
    Restart,
    /// That was all.
    Done,
}

/// Why a log cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogError {
    /// Get Log Page returned less than was asked for.
    Short,
    /// It changes faster than it can be read.
    Changes,
}

impl LogReader {
    /// Reads `part` entries at a time, at least one: a KiB each.
    #[must_use]
    pub const fn new(part: u32) -> Self {
        Self {
            stage: Stage::Header,
            part: if part == 0 { 1 } else { part },
            genctr: 0,
            count: 0,
            read: 0,
            attempts: 0,
        }
    }

    /// The next command. The last of them lets the event go that the log has changed.
    #[must_use]
    pub fn request(&self) -> Request {
        let (offset, len) = match self.stage {
            Stage::Header | Stage::Check => (0, LEN),
            Stage::Entries => {
                let left = self.count.saturating_sub(self.read);
                let some = u32::try_from(left).unwrap_or(u32::MAX).min(self.part);
                let before = self.read.saturating_add(1);
                (
                    before.saturating_mul(LEN.into()),
                    some.saturating_mul(LEN).max(LEN),
                )
            }
        };
        let sqe = command::get_log_page(LogId::Discovery.code(), Nsid(0), offset, len);
        Request {
            sqe: match self.stage {
                Stage::Check => command::releasing_events(sqe),
                Stage::Header | Stage::Entries => sqe,
            },
            data: Data::ToHost(len),
        }
    }

    /// The command succeeded, and `data` is what came.
    ///
    /// # Errors
    /// [`LogError`]
    pub fn completed<'a>(&mut self, data: &'a [u8]) -> Result<Progress<'a>, LogError> {
        let Data::ToHost(asked) = self.request().data else {
            return Err(LogError::Short);
        };
        let data = usize::try_from(asked).ok().and_then(|len| data.get(..len));
        let data = data.ok_or(LogError::Short)?;
        if self.stage == Stage::Entries {
            let entries = <[DiscoveryEntry]>::ref_from_bytes(data).map_err(|_| LogError::Short)?;
            self.read = self.read.saturating_add(entries.len() as u64);
            self.go_on();
            return Ok(Progress::Entries(entries));
        }
        let header = DiscoveryHeader::ref_from_bytes(data).map_err(|_| LogError::Short)?;
        let same = header.genctr.get() == self.genctr;
        if self.stage == Stage::Check && same {
            return Ok(Progress::Done);
        }
        self.genctr = header.genctr.get();
        self.count = header.numrec.get().min(MAX_ENTRIES);
        let again = self.stage == Stage::Check;
        self.read = 0;
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts > ATTEMPTS {
            return Err(LogError::Changes);
        }
        self.go_on();
        Ok(if again {
            Progress::Restart
        } else {
            Progress::More
        })
    }

    fn go_on(&mut self) {
        self.stage = if self.read < self.count {
            Stage::Entries
        } else {
            Stage::Check
        };
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "Get Log Page returned less than was asked for",
            Self::Changes => "the discovery log changes all the time",
        })
    }
}

impl core::error::Error for LogError {}

/// A discovery controller to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryController {
    /// Over what it is reached: TCP or RDMA.
    pub trtype: Trtype,
    /// Where it is.
    pub address: SocketAddr,
    /// Its subsystem.
    pub subnqn: Nqn,
    /// Referrals that lead to it from the first.
    pub depth: u8,
}

impl fmt::Display for DiscoveryController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// The way through discovery controllers that refer to others, at most `N` of them, each
/// asked once: first one, then those that it refers to, then those that they do.
#[derive(Debug)]
pub struct Walk<const N: usize> {
    /// Those that were asked, then those that are to be.
    controllers: Vec<DiscoveryController, N>,
    asked: usize,
    transports: &'static [Trtype],
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A way to an NVM subsystem.
    Subsystem,
    /// A way to the discovery subsystem that is being asked.
    CurrentDiscovery,
    /// A referral; its controller will be asked.
    Followed,
    /// A referral to a controller that was asked, or will be, or would say the same.
    Known,
    /// A referral that is not followed, or an entry of no known kind.
    NotFollowed(Why),
}

/// Why a referral is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is over a transport that is not followed.
    Transport,
    /// Its address or its port is not numeric.
    Address,
    /// Its SUBNQN is no name.
    Name,
    /// More than [`MAX_DEPTH`] referrals lead to it.
    TooDeep,
    /// There are more controllers than are asked.
    TooMany,
    /// Its SUBTYPE is not known.
    Subtype,
}

impl<const N: usize> Walk<N> {
    /// From this controller on, over TCP.
    #[must_use]
    pub fn new(address: SocketAddr, subnqn: Nqn) -> Self {
        Self::over(Trtype::Tcp, address, subnqn, &[Trtype::Tcp])
    }

    /// From this controller on; referrals are followed over `transports`, which have IP addresses.
    #[must_use]
    pub fn over(
        trtype: Trtype,
        address: SocketAddr,
        subnqn: Nqn,
        transports: &'static [Trtype],
    ) -> Self {
        let mut controllers = Vec::new();
        // Without room for one, none is asked.
        let _ = controllers.push(DiscoveryController {
            trtype,
            address,
            subnqn,
            depth: 0,
        });
        Self {
            controllers,
            asked: 0,
            transports,
        }
    }

    /// The next controller to ask; its entries go to [`Walk::entry`].
    pub fn next_controller(&mut self) -> Option<DiscoveryController> {
        let next = self.controllers.get(self.asked)?;
        self.asked = self.asked.saturating_add(1);
        Some(next.clone())
    }

    /// An entry of the log of the controller that [`Walk::next_controller`] gave last.
    pub fn entry(&mut self, entry: &DiscoveryEntry) -> Found {
        match entry.subtype() {
            Subtype::Nvm => Found::Subsystem,
            Subtype::CurrentDiscovery => Found::CurrentDiscovery,
            Subtype::Referral => self.follow(entry).unwrap_or_else(Found::NotFollowed),
            Subtype::Unknown(_) => Found::NotFollowed(Why::Subtype),
        }
    }

    fn follow(&mut self, entry: &DiscoveryEntry) -> Result<Found, Why> {
        let trtype = entry.trtype();
        if !self.transports.contains(&trtype) {
            return Err(Why::Transport);
        }
        let address = socket_address(entry).ok_or(Why::Address)?;
        let subnqn = entry.subnqn().map_err(|_| Why::Name)?;
        let mut known = self.controllers.iter();
        if entry.eflags().dupretinfo()
            || known.any(|known| {
                known.trtype == trtype && known.address == address && known.subnqn == subnqn
            })
        {
            return Ok(Found::Known);
        }
        let asked = self.asked.checked_sub(1);
        let from = asked.and_then(|index| self.controllers.get(index));
        let depth = from.map_or(0, |from| from.depth).saturating_add(1);
        if depth > MAX_DEPTH {
            return Err(Why::TooDeep);
        }
        let controller = DiscoveryController {
            trtype,
            address,
            subnqn,
            depth,
        };
        self.controllers
            .push(controller)
            .map_err(|_| Why::TooMany)?;
        Ok(Found::Followed)
    }
}

/// Where an entry over IP leads to: TRADDR and TRSVCID, without what pads them.
#[must_use]
pub fn socket_address(entry: &DiscoveryEntry) -> Option<SocketAddr> {
    let address: IpAddr = entry.traddr()?.trim().parse().ok()?;
    let port = match entry.trsvcid()?.trim() {
        "" => DISCOVERY_PORT,
        port => port.parse().ok().filter(|port| *port != 0)?,
    };
    Some(SocketAddr::new(address, port))
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transport => "it is over another transport",
            Self::Address => "its address or port is not numeric",
            Self::Name => "its SUBNQN is no name",
            Self::TooDeep => "too many referrals lead to it",
            Self::TooMany => "there are too many discovery controllers",
            Self::Subtype => "its SUBTYPE is not known",
        })
    }
}

#[cfg(test)]
mod tests;
