//! Files and block devices: found or created, locked, measured.
use std::fs::{self, File, FileType, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nvmf_core::block::Geometry;
use nvmf_tcp::std::buffer::{ALIGNMENT, Buffer};
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};

use super::spec::{Choice, DEFAULT_SHIFT, Size};
use super::uring::Unavailable;
use super::uring::polling::NoPolling;

/// Why a namespace cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such file, and nothing says how large it shall be.
    #[error("{0}: there is no such file; say size= to create it, sparse")]
    Missing(PathBuf),
    /// No such file, and it shall not be written.
    #[error("{0}: there is no such file, and ro does not create one")]
    MissingReadOnly(PathBuf),
    /// A file without content, and nothing says how large it shall be.
    #[error("{0}: the file is empty; say size= to make it a sparse file of that size")]
    Empty(PathBuf),
    /// A device without capacity.
    #[error("{0}: the device has no capacity; nothing is attached to it")]
    NoMedium(PathBuf),
    /// `size=` does not fit what is there.
    #[error("{path}: has {found}, not {wanted}; leave size= out to serve it as it is")]
    Size {
        /// The file or device.
        path: PathBuf,
        /// Its size.
        found: Size,
        /// The size that was asked for.
        wanted: Size,
    },
    /// Not a whole number of blocks.
    #[error("{path}: its {bytes} bytes are not a multiple of the block size {block}{}",
        if *.block > 512 && .bytes % 512 == 0 { "; bs=512 would do" } else { "" })]
    Fraction {
        /// The file or device.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// The block size in bytes.
        block: u32,
    },
    /// The device cannot access blocks that small.
    #[error("{path}: the device has blocks of {device} bytes, so bs={block} is too small")]
    BlockSize {
        /// The device.
        path: PathBuf,
        /// Its logical block size in bytes.
        device: u32,
        /// The block size that was asked for, in bytes.
        block: u32,
    },
    /// Locked.
    #[error("{0}: is already served by another process, or given twice")]
    Served(PathBuf),
    /// Claimed by the kernel.
    #[error("{0}: the device is in use: mounted, part of another device, or served already")]
    InUse(PathBuf),
    /// A directory, a pipe, ...
    #[error("{0}: is neither a regular file nor a block device")]
    Kind(PathBuf),
    /// Opened for reading it might have been.
    #[error("{path}: {source}; say ro to serve it read-only")]
    Writing {
        /// The file or device.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Something else went wrong.
    #[error("{path}: {doing}: {source}")]
    Io {
        /// The file or device.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The page cache cannot be bypassed as was asked.
    #[error("{path}: direct=on, but {why}; leave it out to go through the page cache")]
    Direct {
        /// The file or device.
        path: PathBuf,
        /// What stands against it.
        why: String,
    },
    /// No io_uring, which was asked for.
    #[error("{path}: io=uring, but {why}; leave it out for threads to do the I/O")]
    Uring {
        /// The file or device.
        path: PathBuf,
        /// What stands against it.
        why: Unavailable,
    },
    /// It cannot be polled for completions, which was asked for.
    #[error("{path}: iopoll=on, but {why}; leave it out for completions to interrupt")]
    Polling {
        /// The file or device.
        path: PathBuf,
        /// What stands against it.
        why: NoPolling,
    },
    /// No address space.
    #[error("{size} cannot be mapped: {source}")]
    Memory {
        /// The size that was asked for.
        size: Size,
        /// What the system says.
        source: io::Error,
    },
}

/// What to open, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening<'a> {
    pub(super) path: &'a Path,
    /// Size in bytes of a file that is to be created.
    pub(super) size: Option<u64>,
    /// log2 of the block size; `None` for what suits.
    pub(super) block_shift: Option<u8>,
    pub(super) read_only: bool,
    pub(super) direct: Choice,
}

/// A file or block device that nobody else serves. The lock lasts as long as the file is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    /// It is a block device.
    pub(super) device: bool,
    pub(super) geometry: Geometry,
    /// The page cache is not used.
    pub(super) direct: bool,
    /// The path that does not change over restarts.
    pub(super) stable_path: PathBuf,
}

/// How long what is served already is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

impl Opening<'_> {
    /// Opens it. The kernel takes the ring of a process that ended apart in the background, and
    /// until then the ring holds its files: whoever starts a target again at once would find them locked.
    pub(super) fn open_patiently(self) -> Result<Opened, OpenError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.open() {
                Err(OpenError::Served(_) | OpenError::InUse(_)) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(10));
                }
                opened => return opened,
            }
        }
    }

    pub(super) fn open(self) -> Result<Opened, OpenError> {
        let (file, kind) = self.find()?;
        self.lock(&file)?;
        let bytes = self.measure(&file, kind)?;
        let shift = self.block_shift(&file, kind)?;
        let block = 1u32 << shift;
        if !bytes.is_multiple_of(u64::from(block)) {
            return Err(OpenError::Fraction {
                path: self.path.into(),
                bytes,
                block,
            });
        }
        let direct = self.bypass_page_cache(&file, block)?;
        let preferred = file.metadata().map_or(0, |found| found.blksize());
        let geometry = Geometry {
            block_shift: shift,
            blocks: bytes >> shift,
            read_only: self.read_only,
            volatile_cache: !self.read_only,
            deallocate_zeroes: kind.is_file() && (self.read_only || punches_holes(&file, bytes)),
            optimal_blocks: u32::try_from(preferred.min(1 << 20) >> shift).unwrap_or(0),
        };
        let stable_path = if kind.is_file() {
            fs::canonicalize(self.path)
        } else {
            std::path::absolute(self.path)
        };
        Ok(Opened {
            file,
            device: kind.is_block_device(),
            geometry,
            direct,
            stable_path: stable_path.map_err(|error| self.failed("finding its path", error))?,
        })
    }

    fn find(self) -> Result<(File, FileType), OpenError> {
        let kind = match fs::metadata(self.path) {
            Ok(found) => found.file_type(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return match self.size {
                    None => Err(OpenError::Missing(self.path.into())),
                    Some(_) if self.read_only => Err(OpenError::MissingReadOnly(self.path.into())),
                    Some(size) => self.create(size),
                };
            }
            Err(error) => return Err(self.failed("looking at it", error)),
        };
        if !kind.is_file() && !kind.is_block_device() {
            return Err(OpenError::Kind(self.path.into()));
        }
        let exclusive = if kind.is_block_device() {
            OFlags::EXCL
        } else {
            OFlags::empty()
        };
        let file = OpenOptions::new()
            .read(true)
            .write(!self.read_only)
            .custom_flags(flags(exclusive))
            .open(self.path)
            .map_err(|error| match error.kind() {
                ErrorKind::ResourceBusy => OpenError::InUse(self.path.into()),
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem if !self.read_only => {
                    OpenError::Writing {
                        path: self.path.into(),
                        source: error,
                    }
                }
                _ => self.failed("opening it", error),
            })?;
        Ok((file, kind))
    }

    /// Creates a file that only its owner can look into.
    fn create(self, size: u64) -> Result<(File, FileType), OpenError> {
        let failed = |error| self.failed("creating it", error);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(flags(OFlags::empty()))
            .open(self.path)
            .map_err(failed)?;
        self.lock(&file)?;
        let grown = file.set_len(size).and_then(|()| file.sync_all());
        if let Err(error) = grown {
            let _ = fs::remove_file(self.path);
            return Err(failed(error));
        }
        // The name must survive a crash as the data does. A directory that cannot be
        // opened or synced is no reason to refuse.
        let directory = self.path.parent().filter(|name| name.as_os_str() != "");
        let _ =
            File::open(directory.unwrap_or(Path::new("."))).and_then(|opened| opened.sync_all());
        let kind = file.metadata().map_err(failed)?.file_type();
        Ok((file, kind))
    }

    /// Shared for those who only read, exclusive for those who write. A description
    /// that is locked already keeps its lock.
    fn lock(self, file: &File) -> Result<(), OpenError> {
        let locked = if self.read_only {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        locked.map_err(|error| match error {
            TryLockError::WouldBlock => OpenError::Served(self.path.into()),
            TryLockError::Error(error) => self.failed("locking it", error),
        })
    }

    fn measure(self, mut file: &File, kind: FileType) -> Result<u64, OpenError> {
        let mut bytes = file
            .seek(SeekFrom::End(0))
            .map_err(|error| self.failed("finding its size", error))?;
        if bytes == 0 {
            match self.size {
                _ if kind.is_block_device() => return Err(OpenError::NoMedium(self.path.into())),
                Some(size) if !self.read_only => {
                    file.set_len(size)
                        .map_err(|error| self.failed("giving it its size", error))?;
                    bytes = size;
                }
                _ => return Err(OpenError::Empty(self.path.into())),
            }
        }
        match self.size {
            Some(wanted) if wanted != bytes => Err(OpenError::Size {
                path: self.path.into(),
                found: Size(bytes),
                wanted: Size(wanted),
            }),
            _ => Ok(bytes),
        }
    }

    fn block_shift(self, file: &File, kind: FileType) -> Result<u8, OpenError> {
        let mut device = 1 << DEFAULT_SHIFT;
        if kind.is_block_device() {
            device = rustix::fs::ioctl_blksszget(file)
                .map_err(|error| self.failed("finding its block size", error.into()))?;
        }
        let shift = self.block_shift.unwrap_or(if device > 1 << DEFAULT_SHIFT {
            12
        } else {
            DEFAULT_SHIFT
        });
        let block: u32 = 1 << shift;
        if !block.is_multiple_of(device) {
            return Err(OpenError::BlockSize {
                path: self.path.into(),
                device,
                block,
            });
        }
        Ok(shift)
    }

    /// Whether it is done, where it can be done and is not unwanted.
    fn bypass_page_cache(self, file: &File, block: u32) -> Result<bool, OpenError> {
        if self.direct == Choice::Off {
            return Ok(false);
        }
        match (turn_direct_on(file, block), self.direct) {
            (Ok(()), _) => Ok(true),
            (Err(why), Choice::On) => Err(OpenError::Direct {
                path: self.path.into(),
                why,
            }),
            (Err(why), _) => {
                let path = self.path.display();
                tracing::info!("{path}: through the page cache, as {why}");
                Ok(false)
            }
        }
    }

    fn failed(self, doing: &'static str, source: io::Error) -> OpenError {
        OpenError::Io {
            path: self.path.into(),
            doing,
            source,
        }
    }
}

fn flags(extra: OFlags) -> i32 {
    (OFlags::NOCTTY | extra).bits().cast_signed()
}

/// Turns direct I/O on if the file takes it with blocks and buffers like ours.
fn turn_direct_on(file: &File, block: u32) -> Result<(), String> {
    let refused = |error| format!("direct I/O is refused: {error}");
    let flags = rustix::fs::fcntl_getfl(file).map_err(refused)?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).map_err(refused)?;
    let why = match direct_alignment(file, block) {
        Some(alignment) if alignment != 0 && block.is_multiple_of(alignment) => return Ok(()),
        Some(0) | None => "direct I/O is not possible there".to_owned(),
        Some(alignment) => format!("direct I/O needs blocks of {alignment} bytes"),
    };
    rustix::fs::fcntl_setfl(file, flags).map_err(refused)?;
    Err(why)
}

/// What offsets and lengths must be multiples of, in bytes; 0 if there is no direct
/// I/O, or none to and from a [`Buffer`]; `None` if a trial says no.
fn direct_alignment(file: &File, block: u32) -> Option<u32> {
    match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(found) if found.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let reachable = found.stx_dio_mem_align as usize <= ALIGNMENT;
            Some(if reachable {
                found.stx_dio_offset_align
            } else {
                0
            })
        }
        _ => {
            // Kernels before 6.1, and file systems that do not tell.
            let mut buffer = Buffer::zeroed(block as usize);
            let refused = (0..2).any(|at| {
                file.read_at(buffer.as_mut(), at * u64::from(block))
                    .is_err_and(|error| error.kind() == ErrorKind::InvalidInput)
            });
            (!refused).then_some(block)
        }
    }
}

/// Asks by making a hole behind the end, where it changes nothing.
fn punches_holes(file: &File, bytes: u64) -> bool {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, hole, bytes, 4096).is_ok()
}
