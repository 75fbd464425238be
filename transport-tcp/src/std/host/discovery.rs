//! What discovery controllers say, and those that they refer to.
use std::fmt;

use nvmf_core::host::Data;
use nvmf_core::host::discovery::{DiscoveryController, Found, LogReader, Progress, Walk, Why};
use nvmf_core::wire::discovery::{DiscoveryEntry, Trtype};
use nvmf_core::wire::ids::Nqn;

use super::super::buffer::Buffer;
use super::commands::Payload;
use super::controller::{Controller, check};
use super::error::Error;
use super::options::{Options, Transport};
use super::url::{Parameters, Url};

/// Discovery controllers that are asked, at most.
const MAX_CONTROLLERS: usize = 64;

/// Entries that one command reads: what any controller can.
const PART: u32 = 4;

/// What there is, and what could not be found out.
#[derive(Debug, Default)]
pub struct Discovery {
    /// All entries, in the order of [`Walk`], referrals included.
    pub entries: Vec<Discovered>,
    /// Referrals that led nowhere.
    pub problems: Vec<Problem>,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    /// Who says so.
    pub from: DiscoveryController,
    /// What it says.
    pub entry: DiscoveryEntry,
}

/// A referral that led nowhere.
#[derive(Debug)]
pub enum Problem {
    /// Its controller cannot be asked.
    Unreachable {
        /// Which.
        controller: Box<DiscoveryController>,
        /// For what reason.
        error: Error,
    },
    /// It is not followed.
    NotFollowed {
        /// Which.
        referral: Box<Discovered>,
        /// For what reason.
        why: Why,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { controller, error } => {
                write!(f, "the referral to {controller} leads nowhere: {error}")
            }
            Self::NotFollowed { referral, why } => write!(
                f,
                "{} refers to `{}`, which is not followed: {why}",
                referral.from, referral.entry
            ),
        }
    }
}

/// Asks the discovery controller that the URL names, and all that it refers to: over TCP, and
/// over RDMA if that is possible here, or is where it begins.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use nvmf_tcp::std::host::{Options, discover};
///
/// let found = discover(&"nvme+tcp://192.0.2.7:8009".parse()?, &Options::default())?;
/// for discovered in &found.entries {
///     println!("{} (says {})", discovered.entry, discovered.from);
/// }
/// for problem in &found.problems {
///     eprintln!("{problem}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The first controller cannot be asked. If others cannot, they are among the
/// [`Discovery::problems`].
pub fn discover(url: &Url, options: &Options) -> Result<Discovery, Error> {
    let options = &url.options(options);
    let first = Controller::connect(url, options)?;
    let subnqn = url.subnqn.clone().unwrap_or_else(Nqn::discovery);
    let (trtype, followed): (_, &[_]) = match options.transport {
        Transport::Tcp if !has_rdma() => (Trtype::Tcp, &[Trtype::Tcp]),
        Transport::Tcp => (Trtype::Tcp, &[Trtype::Tcp, Trtype::Rdma]),
        Transport::Rdma => (Trtype::Rdma, &[Trtype::Tcp, Trtype::Rdma]),
    };
    let mut walk = Walk::<MAX_CONTROLLERS>::over(trtype, first.address(), subnqn, followed);
    let mut discovery = Discovery::default();
    let mut first = Some(first);
    while let Some(controller) = walk.next_controller() {
        let log = match first.take() {
            Some(first) => first.discover()?,
            None => match ask(&controller, options) {
                Ok(log) => log,
                Err(error) => {
                    let controller = Box::new(controller);
                    let problem = Problem::Unreachable { controller, error };
                    discovery.problems.push(problem);
                    continue;
                }
            },
        };
        for entry in log {
            let found = walk.entry(&entry);
            let discovered = Discovered {
                from: controller.clone(),
                entry,
            };
            if let Found::NotFollowed(why) = found {
                discovery.problems.push(Problem::NotFollowed {
                    referral: Box::new(discovered.clone()),
                    why,
                });
            }
            discovery.entries.push(discovered);
        }
    }
    Ok(discovery)
}

/// Whether the libraries are there; a device may be missing all the same.
fn has_rdma() -> bool {
    #[cfg(feature = "rdma")]
    return nvmf_rdma::ibv::available().is_ok();
    #[cfg(not(feature = "rdma"))]
    false
}

fn ask(controller: &DiscoveryController, options: &Options) -> Result<Vec<DiscoveryEntry>, Error> {
    let url = Url {
        transport: match controller.trtype {
            Trtype::Rdma => Transport::Rdma,
            _ => Transport::Tcp,
        },
        host: controller.address.ip().to_string(),
        port: controller.address.port(),
        subnqn: Some(controller.subnqn.clone()),
        nsid: None,
        parameters: Parameters::default(),
    };
    Controller::connect(&url, options)?.discover()
}

impl Controller {
    /// The entries of this discovery controller's log. [`discover`] follows its referrals, too.
    ///
    /// # Errors
    /// Those of [`Controller::admin`], and [`Error::Log`].
    pub fn discover(&self) -> Result<Vec<DiscoveryEntry>, Error> {
        let mut reader = LogReader::new(PART);
        let mut entries = Vec::new();
        loop {
            let request = reader.request();
            let Data::ToHost(len) = request.data else {
                continue;
            };
            let payload = Payload::Read(Buffer::zeroed(len as usize));
            let completion = self.admin(&request.sqe, payload)?;
            check(&completion, "Get Log Page", request.sqe.opcode)?;
            match reader.completed(completion.data())? {
                Progress::More => {}
                Progress::Entries(some) => entries.extend_from_slice(some),
                Progress::Restart => entries.clear(),
                Progress::Done => return Ok(entries),
            }
        }
    }
}
