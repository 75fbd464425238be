//! Where a namespace is, as one line of text.
use std::fmt;
use std::str::FromStr;

use nvmf_core::wire::ids::{Nqn, NqnError, Nsid};

/// The port that NVMe/TCP has with IANA.
pub const PORT: u16 = 4420;

const SCHEME: &str = "nvme+tcp://";

/// `nvme+tcp://HOST[:PORT][/SUBNQN][?nsid=N]`
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
    /// A name or a numeric address; one of IPv6 without brackets.
    pub host: String,
    /// The TCP port; 4420 if none is given.
    pub port: u16,
    /// The subsystem; without it the discovery subsystem is meant.
    pub subnqn: Option<Nqn>,
    /// The namespace.
    pub nsid: Option<Nsid>,
}

/// What is wrong with a URL.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It is of another kind.
    #[error("a URL begins with {SCHEME}, as in {SCHEME}192.0.2.7:4420/NQN?nsid=1")]
    Scheme,
    /// Nothing, or a bracket that does not close.
    #[error("the URL has no host; write a name, 192.0.2.7 or [2001:db8::7] behind {SCHEME}")]
    Host,
    /// Not a number from 1 to 65535.
    #[error("`{0}` is no port; write a number from 1 to 65535")]
    Port(String),
    /// Not an NQN.
    #[error("`{0}` is no NQN: {1}")]
    Nqn(String, NqnError),
    /// A parameter that is not `nsid=`.
    #[error("`{0}` is no parameter of the URL; nsid=N is the only one")]
    Parameter(String),
    /// Not a namespace's number.
    #[error("`{0}` is no NSID; write a number from 1 to 4294967294")]
    Nsid(String),
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix(SCHEME).ok_or(UrlError::Scheme)?;
        let (rest, query) = match rest.rsplit_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
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
            host: host.to_owned(),
            port: parse_port(port)?,
            subnqn: match path {
                "" => None,
                nqn => Some(
                    nqn.parse()
                        .map_err(|error| UrlError::Nqn(nqn.to_owned(), error))?,
                ),
            },
            nsid: query.map(parse_query).transpose()?,
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

fn parse_query(query: &str) -> Result<Nsid, UrlError> {
    let number = query
        .strip_prefix("nsid=")
        .ok_or_else(|| UrlError::Parameter(query.to_owned()))?;
    number
        .parse()
        .ok()
        .filter(|nsid| (1..u32::MAX).contains(nsid))
        .map(Nsid)
        .ok_or_else(|| UrlError::Nsid(number.to_owned()))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        if let Some(subnqn) = &self.subnqn {
            write!(f, "/{subnqn}")?;
        }
        match self.nsid {
            Some(nsid) => write!(f, "?nsid={}", nsid.0),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_a_default() {
        for (text, shown) in [
            ("nvme+tcp://disks", "nvme+tcp://disks:4420"),
            ("nvme+tcp://192.0.2.7:1/", "nvme+tcp://192.0.2.7:1"),
            (
                "nvme+tcp://[::1]:4421/nqn.a:b?nsid=7",
                "nvme+tcp://[::1]:4421/nqn.a:b?nsid=7",
            ),
            ("nvme+tcp://[::1]/nqn.a", "nvme+tcp://[::1]:4420/nqn.a"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(url.to_string().parse(), Ok(url));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, error) in [
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
        ] {
            let found = text.parse::<Url>().unwrap_err().to_string();
            assert!(found.contains(error), "{text}: {found}");
        }
        let long = format!("nvme+tcp://disks/{}", "n".repeat(300));
        assert!(matches!(long.parse::<Url>(), Err(UrlError::Nqn(..))));
    }
}
