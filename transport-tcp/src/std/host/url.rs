//! Where a namespace is, as one line of text.
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use nvmf_core::host::recovery::Policy;
use nvmf_core::wire::ids::{Nqn, NqnError, Nsid};

use super::options::{Options, RdmaKey, Transport};

/// The port that NVMe over TCP, and over RDMA, has with IANA.
pub const PORT: u16 = 4420;

const TCP: &str = "nvme+tcp://";
const RDMA: &str = "nvme+rdma://";

/// `nvme+tcp://HOST[:PORT][/SUBNQN][?nsid=N][&NAME=VALUE]`, or `nvme+rdma://`
///
/// The scheme may be in capitals (RFC 3986, 3.1).
///
/// Further parameters are options, by nvme-cli's names, and override those that are given
/// beside the URL: `nr-io-queues`, `queue-size`, `keep-alive-tmo`, `reconnect-delay`,
/// `ctrl-loss-tmo`, `fast-io-fail-tmo` (seconds, -1 is never), `hdr-digest`, `data-digest`
/// (0 or 1), `host-traddr`, `host-iface`, `tos`, `so-priority`, `rdma-key` (region or window).
///
/// ```
/// use nvmf_tcp::std::host::Url;
///
/// let url: Url = "nvme+tcp://[::1]/nqn.2014-08.org.example:disk?nsid=1".parse()?;
/// assert_eq!((url.host.as_str(), url.port), ("::1", 4420));
/// assert_eq!(url.nsid.map(|nsid| nsid.0), Some(1));
/// # Ok::<(), nvmf_tcp::std::host::UrlError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Over what.
    pub transport: Transport,
    /// A name or a numeric address; one of IPv6 without brackets.
    pub host: String,
    /// The port; 4420 if none is given.
    pub port: u16,
    /// The subsystem; without it the discovery subsystem is meant.
    pub subnqn: Option<Nqn>,
    /// The namespace.
    pub nsid: Option<Nsid>,
    /// Options that belong to this target.
    pub parameters: Parameters,
}

impl Url {
    /// The options to connect with: these, overridden by what the URL says.
    #[must_use]
    pub fn options(&self, options: &Options) -> Options {
        Options {
            transport: self.transport,
            ..self.parameters.apply(options)
        }
    }
}

/// The options in a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// These options, overridden.
    #[must_use]
    pub fn apply(&self, options: &Options) -> Options {
        let mut options = options.clone();
        for (name, value) in &self.0 {
            // They were parsed before.
            let _ = set(&mut options, name, value);
        }
        options
    }
}

/// Sets an option; `None` if the value is none of the option's, or there is no such option.
fn set(options: &mut Options, name: &str, value: &str) -> Option<()> {
    let seconds = || value.parse().ok().map(Duration::from_secs);
    let timeout = || value.parse().ok().map(Policy::seconds);
    let flag = || match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    match name {
        "nr-io-queues" => options.io_queues = value.parse().ok().filter(|count| *count > 0)?,
        "queue-size" => {
            let entries: u32 = value.parse().ok()?;
            // One entry stays free.
            options.queue_depth = (2..=65536).contains(&entries).then(|| entries - 1)?;
        }
        "keep-alive-tmo" => options.keep_alive = seconds()?,
        "reconnect-delay" => options.recovery.reconnect_delay = seconds()?,
        "ctrl-loss-tmo" => options.recovery.ctrl_loss_tmo = timeout()?,
        "fast-io-fail-tmo" => options.recovery.fast_io_fail_tmo = timeout()?,
        "hdr-digest" => options.header_digest = flag()?,
        "data-digest" => options.data_digest = flag()?,
        "host-traddr" => options.host_traddr = Some(value.parse().ok()?),
        "host-iface" => options.host_iface = Some(value.to_owned()),
        "tos" => options.tos = Some(value.parse().ok()?),
        "so-priority" => options.so_priority = Some(value.parse().ok()?),
        "rdma-key" => {
            options.rdma_key = match value {
                "region" => RdmaKey::Region,
                "window" => RdmaKey::Window,
                _ => return None,
            }
        }
        _ => return None,
    }
    Some(())
}

/// What is wrong with a URL.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It is of another kind.
    #[error("a URL begins with {TCP} or {RDMA}, as in {TCP}192.0.2.7:4420/NQN?nsid=1")]
    Scheme,
    /// Nothing, or a bracket that does not close.
    #[error("the URL has no host; write a name, 192.0.2.7 or [2001:db8::7] behind {TCP} or {RDMA}")]
    Host,
    /// Not a number from 1 to 65535.
    #[error("`{0}` is no port; write a number from 1 to 65535")]
    Port(String),
    /// Not an NQN.
    #[error("`{0}` is no NQN: {1}")]
    Nqn(String, NqnError),
    /// A parameter that there is not, or with a value that it cannot have.
    #[error(
        "`{0}` is no parameter of the URL; there are nsid=N and nvme-cli's options, as in nr-io-queues=4"
    )]
    Parameter(String),
    /// Not a namespace's number.
    #[error("`{0}` is no NSID; write a number from 1 to 4294967294")]
    Nsid(String),
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let behind = |scheme: &str| {
            let (begin, rest) = text.split_at_checked(scheme.len())?;
            begin.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let (transport, rest) = match (behind(TCP), behind(RDMA)) {
            (Some(rest), _) => (Transport::Tcp, rest),
            (_, Some(rest)) => (Transport::Rdma, rest),
            _ => return Err(UrlError::Scheme),
        };
        let (rest, query) = match rest.rsplit_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let query = query.map_or(Ok(Query::default()), Query::parse)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => inner.split_once(']').ok_or(UrlError::Host)?,
            None => match authority.find(':') {
                Some(colon) => authority.split_at(colon),
                None => (authority, ""),
            },
        };
        if host.is_empty() {
            return Err(UrlError::Host);
        }
        Ok(Self {
            transport,
            host: host.to_owned(),
            port: parse_port(port)?,
            subnqn: match path {
                "" => None,
                nqn => Some(
                    nqn.parse()
                        .map_err(|error| UrlError::Nqn(nqn.to_owned(), error))?,
                ),
            },
            nsid: query.nsid,
            parameters: query.parameters,
        })
    }
}

/// The rest of the authority, with its colon.
fn parse_port(text: &str) -> Result<u16, UrlError> {
    if text.is_empty() {
        return Ok(PORT);
    }
    text.strip_prefix(':')
        .and_then(|digits| digits.parse().ok())
        .filter(|port| *port != 0)
        .ok_or_else(|| UrlError::Port(text.trim_start_matches(':').to_owned()))
}

/// What follows the question mark.
#[derive(Default)]
struct Query {
    nsid: Option<Nsid>,
    parameters: Parameters,
}

impl Query {
    fn parse(text: &str) -> Result<Self, UrlError> {
        let mut query = Self::default();
        let mut scratch = Options::default();
        for parameter in text.split('&') {
            let unknown = || UrlError::Parameter(parameter.to_owned());
            let (name, value) = parameter.split_once('=').ok_or_else(unknown)?;
            if name == "nsid" {
                query.nsid = Some(parse_nsid(value)?);
                continue;
            }
            // Both are in use, as are ctrl_loss_tmo and ctrl-loss-tmo on command lines.
            let name = name.replace('_', "-");
            set(&mut scratch, &name, value).ok_or_else(unknown)?;
            query.parameters.0.push((name, value.to_owned()));
        }
        Ok(query)
    }
}

fn parse_nsid(number: &str) -> Result<Nsid, UrlError> {
    number
        .parse()
        .ok()
        .filter(|nsid| (1..u32::MAX).contains(nsid))
        .map(Nsid)
        .ok_or_else(|| UrlError::Nsid(number.to_owned()))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.transport {
            Transport::Tcp => TCP,
            Transport::Rdma => RDMA,
        })?;
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        if let Some(subnqn) = &self.subnqn {
            write!(f, "/{subnqn}")?;
        }
        let mut mark = '?';
        if let Some(nsid) = self.nsid {
            write!(f, "?nsid={}", nsid.0)?;
            mark = '&';
        }
        for (name, value) in &self.parameters.0 {
            write!(f, "{mark}{name}={value}")?;
            mark = '&';
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_a_default() {
        for (text, shown) in [
            ("nvme+tcp://disks", "nvme+tcp://disks:4420"),
            ("NVME+Tcp://disks", "nvme+tcp://disks:4420"),
            ("nvme+tcp://192.0.2.7:1/", "nvme+tcp://192.0.2.7:1"),
            (
                "nvme+tcp://[::1]:4421/nqn.a:b?nsid=7",
                "nvme+tcp://[::1]:4421/nqn.a:b?nsid=7",
            ),
            ("nvme+tcp://[::1]/nqn.a", "nvme+tcp://[::1]:4420/nqn.a"),
            (
                "nvme+tcp://disks:1/nqn.a?ctrl_loss_tmo=-1&nsid=3&tos=8",
                "nvme+tcp://disks:1/nqn.a?nsid=3&ctrl-loss-tmo=-1&tos=8",
            ),
            ("nvme+tcp://disks:1?tos=8", "nvme+tcp://disks:1?tos=8"),
            (
                "nvme+RDMA://disks/nqn.a?rdma_key=window&nsid=3",
                "nvme+rdma://disks:4420/nqn.a?nsid=3&rdma-key=window",
            ),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(url.to_string().parse(), Ok(url));
        }
    }

    #[test]
    fn parameters_are_options() {
        let url: Url = "nvme+tcp://disks/nqn.a?nr-io-queues=3&queue-size=64&keep-alive-tmo=0\
            &reconnect-delay=2&ctrl-loss-tmo=0&fast-io-fail-tmo=-1&hdr-digest=1&data-digest=1\
            &host-traddr=::1&host-iface=lo&tos=72&so-priority=5"
            .parse()
            .unwrap();
        let options = url.parameters.apply(&Options {
            recovery: Policy {
                fast_io_fail_tmo: Some(Duration::ZERO),
                ..Policy::default()
            },
            ..Options::default()
        });
        assert_eq!((options.io_queues, options.queue_depth), (3, 63));
        assert_eq!(options.keep_alive, Duration::ZERO);
        let policy = Policy {
            reconnect_delay: Duration::from_secs(2),
            ctrl_loss_tmo: Some(Duration::ZERO),
            fast_io_fail_tmo: None,
        };
        assert_eq!(options.recovery, policy);
        assert!(options.header_digest && options.data_digest);
        assert_eq!(options.host_traddr, Some("::1".parse().unwrap()));
        assert_eq!(options.host_iface.as_deref(), Some("lo"));
        assert_eq!((options.tos, options.so_priority), (Some(72), Some(5)));
    }

    #[test]
    fn the_scheme_is_the_transport() {
        for (scheme, transport) in [("tcp", Transport::Tcp), ("rdma", Transport::Rdma)] {
            let url: Url = format!("nvme+{scheme}://disks?rdma-key=window")
                .parse()
                .unwrap();
            assert_eq!(url.transport, transport);
            // Whatever is given beside it.
            let given = Options {
                transport: Transport::Rdma,
                ..Options::default()
            };
            let options = url.options(&given);
            assert_eq!(
                (options.transport, options.rdma_key),
                (transport, RdmaKey::Window)
            );
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, error) in [
            ("nvme+tcp:/", "a URL begins with nvme+tcp://"),
            ("nvme+rdma:/", "or nvme+rdma://"),
            ("nvme+rdma://", "no host"),
            (
                "nvme+rdma://disks?rdma-key=1",
                "`rdma-key=1` is no parameter",
            ),
            ("nvme+tcp:/ä", "a URL begins with nvme+tcp://"),
            ("tcp://disks", "a URL begins with nvme+tcp://"),
            ("nvme+tcp://", "no host"),
            ("nvme+tcp:///nqn.a", "no host"),
            ("nvme+tcp://[::1/nqn.a", "no host"),
            ("nvme+tcp://disks:0", "`0` is no port"),
            ("nvme+tcp://disks:65536", "`65536` is no port"),
            ("nvme+tcp://[::1]4420", "`4420` is no port"),
            ("nvme+tcp://disks/nqn.a?nsid=0", "`0` is no NSID"),
            ("nvme+tcp://disks/nqn.a?nsid=4294967295", "is no NSID"),
            ("nvme+tcp://disks/nqn.a?size=1", "`size=1` is no parameter"),
            ("nvme+tcp://disks/nqn.a?nsid=1&tos", "`tos` is no parameter"),
            ("nvme+tcp://disks?tos=256", "`tos=256` is no parameter"),
            (
                "nvme+tcp://disks?queue-size=1",
                "`queue-size=1` is no parameter",
            ),
            (
                "nvme+tcp://disks?hdr-digest=2",
                "`hdr-digest=2` is no parameter",
            ),
        ] {
            let found = text.parse::<Url>().unwrap_err().to_string();
            assert!(found.contains(error), "{text}: {found}");
        }
        let long = format!("nvme+tcp://disks/{}", "n".repeat(300));
        assert!(matches!(long.parse::<Url>(), Err(UrlError::Nqn(..))));
    }
}
