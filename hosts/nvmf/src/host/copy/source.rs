//! What a copy reads from.
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, bail};
use nvmf_tcp::std::host::SharedNamespace;

use super::super::transfer::fill;
use super::location::{Location, Network, path_identity};

/// An open source.
pub(super) struct Source {
    /// For messages.
    pub(super) name: String,
    /// What tells it from every other; none if it can be read only once.
    pub(super) identity: Option<String>,
    /// What tells the file's content from what it may become.
    pub(super) version: String,
    /// Bytes that it has, if that is known.
    pub(super) len: Option<u64>,
    kind: Kind,
}

enum Kind {
    /// To be read from the beginning to the end, once.
    Stream(Box<dyn Read + Send>),
    File(File),
    Namespace(SharedNamespace),
}

impl Source {
    pub(super) fn open(location: &Location, network: &Network<'_>) -> anyhow::Result<Self> {
        let name = location.to_string();
        match location {
            Location::Stream => Ok(Self::stream("standard input", io::stdin())),
            Location::Path(path) => {
                Self::open_path(path).with_context(|| format!("cannot read {name}"))
            }
            Location::Url(url) => {
                let (namespace, identity) = network.open(url)?;
                Ok(Self {
                    name,
                    identity: Some(identity),
                    version: String::new(),
                    len: Some(namespace.blocks() * u64::from(namespace.block_size())),
                    kind: Kind::Namespace(namespace),
                })
            }
        }
    }

    fn open_path(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        let len = match metadata.file_type() {
            kind if kind.is_file() => metadata.len(),
            kind if kind.is_block_device() => file.seek(SeekFrom::End(0))?,
            kind if kind.is_dir() => bail!("it is a directory"),
            _ => return Ok(Self::stream(&name, file)),
        };
        let (seconds, nanos) = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self {
            name,
            identity: Some(path_identity(path)),
            version: match metadata.is_file() {
                true => format!("{len} bytes, written at {seconds}.{nanos:09}"),
                false => String::new(),
            },
            len: Some(len),
            kind: Kind::File(file),
        })
    }

    fn stream(name: &str, stream: impl Read + Send + 'static) -> Self {
        Self {
            name: name.to_owned(),
            identity: None,
            version: String::new(),
            len: None,
            kind: Kind::Stream(Box::new(stream)),
        }
    }

    /// What is read is a whole number of so many bytes.
    pub(super) fn block_size(&self) -> u64 {
        match &self.kind {
            Kind::Namespace(namespace) => namespace.block_size().into(),
            Kind::Stream(_) | Kind::File(_) => 1,
        }
    }

    /// Bytes from byte `offset` on, fewer than `len` only where the source ends. A stream
    /// is at that byte already.
    pub(super) fn read(&mut self, offset: u64, len: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = match &mut self.kind {
            Kind::Namespace(namespace) => {
                let slba = offset / u64::from(namespace.block_size());
                let read = namespace.read(slba, bytes).wait();
                return Ok(read.with_context(|| self.name.clone())?.into());
            }
            Kind::Stream(stream) => fill(&mut bytes, |rest, _| stream.read(rest)),
            Kind::File(file) => fill(&mut bytes, |rest, done| file.read_at(rest, offset + done)),
        };
        bytes.truncate(read.with_context(|| format!("cannot read {}", self.name))?);
        Ok(bytes)
    }

    /// Passes over the first bytes, which only a stream needs.
    pub(super) fn skip(&mut self, bytes: u64) -> anyhow::Result<()> {
        if let Kind::Stream(stream) = &mut self.kind {
            let skipped = io::copy(&mut stream.take(bytes), &mut io::sink());
            skipped.with_context(|| format!("cannot read {}", self.name))?;
        }
        Ok(())
    }
}
