//! What a copy writes to, so that no part of it looks like the whole.
//!
//! A file is written under another name beside it, and renamed in the end. A namespace
//! and a block device have no other name: their first bytes are zeroed before anything
//! else, and written last, so that until then they have no partition table and no file
//! system.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nvmf_core::wire::identify::Oncs;
use nvmf_tcp::std::host::SharedNamespace;
use rustix::fs::{Advice, OFlags, fadvise};

use super::location::{Location, Network, path_identity};

/// Bytes at the beginning of a namespace or device that are written last.
const HEAD: u64 = 1 << 20;

/// An open destination.
pub(in crate::host) struct Destination {
    /// For messages.
    pub(super) name: String,
    /// What tells it from every other; none of a stream.
    pub(super) identity: Option<String>,
    /// Bytes that it has room for, if that is known.
    pub(super) room: Option<u64>,
    kind: Kind,
}

enum Kind {
    /// To be written from the beginning to the end.
    Stream(Box<dyn Write>),
    File {
        part: File,
        part_path: PathBuf,
        path: PathBuf,
        /// There was no part before.
        created: bool,
    },
    Device(File),
    Namespace(SharedNamespace),
}

impl Destination {
    /// Opens it. Nothing of what is there is changed.
    pub(super) fn open(location: &Location, network: &Network<'_>) -> anyhow::Result<Self> {
        match location {
            Location::Stream => Ok(Self::standard_output()),
            Location::Path(path) => Self::at(path),
            Location::Url(url) => {
                let (namespace, identity) = network.open(url)?;
                Ok(Self {
                    name: location.to_string(),
                    identity: Some(identity),
                    room: Some(namespace.blocks() * u64::from(namespace.block_size())),
                    kind: Kind::Namespace(namespace),
                })
            }
        }
    }

    /// Standard output.
    pub(in crate::host) fn standard_output() -> Self {
        Self::stream("standard output", io::stdout())
    }

    /// A file, a block device, or what else has a name there.
    pub(in crate::host) fn at(path: &Path) -> anyhow::Result<Self> {
        Self::open_path(path).with_context(|| format!("cannot write {}", path.display()))
    }

    fn open_path(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        match fs::metadata(path).map(|metadata| metadata.file_type()) {
            Ok(kind) if kind.is_file() => Self::open_file(&path.canonicalize()?, name),
            Ok(kind) if kind.is_block_device() => {
                // Exclusive: not while a file system on it is mounted.
                let flags = OFlags::EXCL.bits().cast_signed();
                let mut file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .custom_flags(flags)
                    .open(path)?;
                Ok(Self {
                    name,
                    identity: Some(path_identity(path)),
                    room: Some(file.seek(SeekFrom::End(0))?),
                    kind: Kind::Device(file),
                })
            }
            Ok(kind) if kind.is_dir() => bail!("it is a directory"),
            Ok(_) => Ok(Self::stream(
                &name,
                OpenOptions::new().write(true).open(path)?,
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::open_file(path, name),
            Err(error) => Err(error.into()),
        }
    }

    fn open_file(path: &Path, name: String) -> anyhow::Result<Self> {
        let part_path = with_suffix(path, ".part");
        let created = !part_path.exists();
        let part = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&part_path)?;
        if part.try_lock().is_err() {
            bail!("another copy to it is under way");
        }
        Ok(Self {
            name,
            identity: Some(path_identity(path)),
            room: None,
            kind: Kind::File {
                part,
                part_path,
                path: path.to_owned(),
                created,
            },
        })
    }

    fn stream(name: &str, stream: impl Write + 'static) -> Self {
        Self {
            name: name.to_owned(),
            identity: None,
            room: None,
            kind: Kind::Stream(Box::new(stream)),
        }
    }

    /// What is written is a whole number of so many bytes.
    pub(super) fn block_size(&self) -> u64 {
        match &self.kind {
            Kind::Namespace(namespace) => namespace.block_size().into(),
            Kind::Stream(_) | Kind::File { .. } | Kind::Device(_) => 1,
        }
    }

    /// Where to keep how far the copy is, if nobody says so: beside the part of a file.
    pub(super) fn state_path(&self) -> Option<PathBuf> {
        match &self.kind {
            Kind::File { path, .. } => Some(with_suffix(path, ".part.state")),
            _ => None,
        }
    }

    /// Where the part is that is there so far.
    pub(super) fn part(&self) -> String {
        match &self.kind {
            Kind::File { part_path, .. } => part_path.display().to_string(),
            _ => self.name.clone(),
        }
    }

    /// Bytes at the beginning that are to be written last.
    pub(super) fn head(&self) -> u64 {
        match &self.kind {
            Kind::Device(_) | Kind::Namespace(_) => HEAD,
            Kind::Stream(_) | Kind::File { .. } => 0,
        }
    }

    /// Whether zeroes are not worth writing.
    pub(super) fn has_zeroes(&self) -> bool {
        match &self.kind {
            Kind::File { .. } => true,
            Kind::Namespace(namespace) => namespace.offers(Oncs::NVMWZSV),
            Kind::Stream(_) | Kind::Device(_) => false,
        }
    }

    /// A copy begins anew, or goes on after `done` bytes.
    pub(in crate::host) fn begin(&self, done: u64) -> anyhow::Result<()> {
        if let Kind::File { part, .. } = &self.kind {
            if part.metadata()?.len() < done {
                bail!(
                    "{} has less than the {done} bytes that were done; begin anew without --resume",
                    self.part()
                );
            }
            part.set_len(done)
                .with_context(|| format!("cannot write {}", self.part()))?;
        }
        Ok(())
    }

    /// Writes at byte `offset`, where a stream is already.
    pub(in crate::host) fn write(&mut self, offset: u64, bytes: Vec<u8>) -> anyhow::Result<()> {
        let written = match &mut self.kind {
            Kind::Namespace(namespace) => {
                let slba = offset / u64::from(namespace.block_size());
                let written = namespace.write(slba, bytes).wait();
                return written.map(drop).with_context(|| self.name.clone());
            }
            Kind::Stream(stream) => stream.write_all(&bytes),
            Kind::File { part: file, .. } | Kind::Device(file) => file.write_all_at(&bytes, offset),
        };
        written.with_context(|| format!("cannot write {}", self.part()))
    }

    /// Makes `len` bytes zero, without writing them where [`Self::has_zeroes`].
    pub(super) fn zero(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        match &mut self.kind {
            Kind::Namespace(namespace) if namespace.offers(Oncs::NVMWZSV) => {
                let block_size = u64::from(namespace.block_size());
                let zeroed = namespace.write_zeroes(offset / block_size, len / block_size);
                zeroed.wait().with_context(|| self.name.clone())
            }
            // What lies beyond the end of a file is a hole in it.
            Kind::File { part, .. } => part
                .set_len(offset + len)
                .with_context(|| format!("cannot write {}", self.part())),
            _ => self.write(offset, vec![0; usize::try_from(len)?]),
        }
    }

    /// Reads back what was written.
    pub(super) fn read(&mut self, offset: u64, len: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = match &mut self.kind {
            Kind::Namespace(namespace) => {
                let slba = offset / u64::from(namespace.block_size());
                let read = namespace.read(slba, bytes).wait();
                return Ok(read.with_context(|| self.name.clone())?.into());
            }
            Kind::File { part: file, .. } | Kind::Device(file) => {
                file.read_exact_at(&mut bytes, offset)
            }
            Kind::Stream(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        read.with_context(|| format!("cannot read {}", self.part()))?;
        Ok(bytes)
    }

    /// Makes what was written safe from a loss of power.
    pub(in crate::host) fn sync(&mut self) -> anyhow::Result<()> {
        let synced = match &mut self.kind {
            Kind::Namespace(namespace) => {
                return namespace.flush().wait().with_context(|| self.name.clone());
            }
            Kind::Stream(stream) => stream.flush(),
            Kind::File { part: file, .. } | Kind::Device(file) => file.sync_data().inspect(|()| {
                // What is read back is to come from the disk. It is only advice.
                let _ = fadvise(&*file, 0, None, Advice::DontNeed);
            }),
        };
        synced.with_context(|| format!("cannot write {}", self.part()))
    }

    /// All is there: a file gets its name.
    pub(in crate::host) fn finish(&mut self, len: u64) -> anyhow::Result<()> {
        let Kind::File {
            part,
            part_path,
            path,
            ..
        } = &self.kind
        else {
            return Ok(());
        };
        let finish = || -> io::Result<()> {
            part.set_len(len)?;
            if let Ok(old) = fs::metadata(path) {
                part.set_permissions(old.permissions())?;
            }
            part.sync_all()?;
            fs::rename(part_path, path)?;
            let directory = match path.parent() {
                Some(directory) if directory.as_os_str() != "" => directory,
                _ => Path::new("."),
            };
            File::open(directory)?.sync_all()
        };
        finish().with_context(|| format!("cannot write {}", self.name))
    }

    /// The copy cannot be: an earlier one's part stays.
    pub(super) fn leave(&self) {
        if matches!(self.kind, Kind::File { created: true, .. }) {
            self.discard();
        }
    }

    /// Nothing of it is of use: the part goes.
    pub(in crate::host) fn discard(&self) {
        if let Kind::File { part_path, .. } = &self.kind {
            // It says .part, if it stays.
            let _ = fs::remove_file(part_path);
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
