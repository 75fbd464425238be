//! Where a copy comes from and goes to, on the command line.
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;

use nvmf_tcp::std::host::{Event, SharedNamespace, Url, UrlError};

use super::super::{ConnectArgs, RecoveryArgs};

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

/// How to reach namespaces.
pub(super) struct Network<'a> {
    pub(super) connect: &'a ConnectArgs,
    pub(super) recovery: &'a RecoveryArgs,
}

impl Network<'_> {
    /// The namespace, and what tells it from every other, by whichever address it is reached.
    pub(super) fn open(&self, url: &Url) -> anyhow::Result<(SharedNamespace, String)> {
        let (association, namespace) = self.connect.attach(url, url.nsid, self.recovery)?;
        let identity = format!(
            "namespace {} of {}, {} blocks of {} bytes",
            namespace.nsid().0,
            association.subnqn(),
            namespace.blocks(),
            namespace.block_size()
        );
        let (events, url) = (association.events(), url.clone());
        let watch = move || {
            for event in events {
                match event {
                    Event::Lost(error) => tracing::info!("{url}: {error}"),
                    // One that is given up at once is not tried again.
                    Event::Reconnecting { attempt: 1, .. } => {
                        tracing::warn!("{url}: connection lost, connecting again");
                    }
                    Event::Reconnected => tracing::warn!("{url}: connected again"),
                    _ => {}
                }
            }
        };
        thread::Builder::new()
            .name("nvmf-events".to_owned())
            .spawn(watch)?;
        Ok((namespace, identity))
    }
}

/// What tells a file from every other, be it there already or not: its name without detours.
pub(super) fn path_identity(path: &Path) -> String {
    let beside = || {
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str() != "" => parent,
            _ => Path::new("."),
        };
        let parent = parent.canonicalize().ok()?;
        Some(parent.join(path.file_name()?))
    };
    let found = path.canonicalize().ok().or_else(beside);
    found
        .unwrap_or_else(|| path.to_owned())
        .display()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_name() {
        let directory = tempfile::tempdir().unwrap();
        let plain = directory.path().canonicalize().unwrap().join("new");
        std::fs::create_dir(directory.path().join("sub")).unwrap();
        let detour = directory.path().join("sub/../new");
        let identity = path_identity(&plain);
        assert_eq!(path_identity(&detour), identity);
        std::fs::write(&plain, "").unwrap();
        assert_eq!(path_identity(&plain), identity);
        assert_eq!(path_identity(&detour), identity);
    }

    #[test]
    fn what_is_a_url_and_what_is_a_file() {
        let parse = |text: &str| text.parse::<Location>().unwrap();
        assert_eq!(parse("-"), Location::Stream);
        for file in ["disk.img", "/dev/sdx", "./nvme+tcp://h/n", "./-"] {
            assert_eq!(parse(file), Location::Path(file.into()));
        }
        let url = "nvme+tcp://192.0.2.7:4420/nqn.a?nsid=1";
        assert_eq!(parse(url).to_string(), url);
        for wrong in ["nvme+fc://h/nqn.a", "https://h", "nvme+tcp://h:0"] {
            assert!(wrong.parse::<Location>().is_err(), "{wrong}");
        }
    }
}
