//! Where a copy comes from and goes to, on the command line.
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nvmf_tcp::std::host::{Namespace, Url, UrlError};

/// A file or block device, a namespace, or standard input and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Stream,
    Path(PathBuf),
    Url(Box<Url>),
}

impl FromStr for Location {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Ok(match text {
            "-" => Self::Stream,
            // A file whose name looks like a URL is ./tcp://...
            text if text.contains("://") && !text.starts_with(['.', '/']) => {
                Self::Url(Box::new(text.parse()?))
            }
            text => Self::Path(text.into()),
        })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream => f.write_str("-"),
            Self::Path(path) => path.display().fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

/// What tells a namespace from every other, by whichever address it is reached.
pub(super) fn namespace_identity(namespace: &Namespace) -> String {
    format!(
        "namespace {} of {}, {} blocks of {} bytes",
        namespace.nsid().0,
        namespace.controller().subnqn(),
        namespace.blocks(),
        namespace.block_size()
    )
}

/// What tells a file from every other: its name without detours.
pub(super) fn path_identity(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_url_and_what_is_a_file() {
        let parse = |text: &str| text.parse::<Location>().unwrap();
        assert_eq!(parse("-"), Location::Stream);
        for file in ["disk.img", "/dev/sdx", "./nvme+tcp://h/n", "./-"] {
            assert_eq!(parse(file), Location::Path(file.into()));
        }
        let url = "nvme+tcp://192.0.2.7:4420/nqn.a?nsid=1";
        assert_eq!(parse(url).to_string(), url);
        for wrong in ["nvme+rdma://h/nqn.a", "https://h", "nvme+tcp://h:0"] {
            assert!(wrong.parse::<Location>().is_err(), "{wrong}");
        }
    }
}
