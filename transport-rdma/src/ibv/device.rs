//! A device, found by an address.
use core::ffi::{CStr, c_int};
use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr;
use std::format;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use rustix::fs::{fstat, major, minor};
use rustix::io::{DupFlags, dup3};
use socket2::SockAddr;

use super::library::{Library, Missing};
use super::sys;

/// How long the way to an address is looked for, in milliseconds.
pub(super) const RESOLVE_TIMEOUT: c_int = 2_000;

/// Why a device cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// The libraries are not there.
    Missing(Missing),
    /// No RDMA device has this address, or leads to it.
    NoDevice(SocketAddr, io::Error),
    /// The device refuses something.
    Device(&'static str, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => missing.fmt(f),
            Self::NoDevice(address, error) => write!(
                f,
                "no RDMA device has or reaches {}: {error}; `rdma link` shows which there are",
                address.ip()
            ),
            Self::Device(what, error) => write!(f, "the RDMA device refuses {what}: {error}"),
        }
    }
}

impl core::error::Error for OpenError {}

impl From<Missing> for OpenError {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

/// An RDMA device, which stays open as long as this is there.
pub struct Device {
    library: &'static Library,
    context: *mut sys::Context,
    attributes: Arc<sys::DeviceAttr>,
}

// SAFETY: a device's context may be used from all threads at once (ibv_open_device(3)).
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// A device that librdmacm has opened: once for all who use it, and until it is told that there
/// is no such device any more.
struct Opened {
    library: &'static Library,
    context: *mut sys::Context,
    /// librdmacm's list of open devices: what is on it stays valid.
    list: *mut *mut sys::Context,
    /// Where the system shows the device, if it does.
    shown: Option<PathBuf>,
    users: usize,
    /// The device was removed.
    removed: bool,
}

// SAFETY: as of `Device`; the list is only freed.
unsafe impl Send for Opened {}

/// All that are open, whether somebody uses them or not.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

fn opened() -> MutexGuard<'static, Vec<Opened>> {
    // A panic elsewhere does not make it worse than it is.
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes devices that are removed, and that nobody uses.
fn close_removed(opened: &mut Vec<Opened>) {
    opened.retain(|it| it.users > 0 || !it.is_removed());
}

impl Device {
    /// The device that has the local address, for listening there.
    ///
    /// # Errors
    /// See [`OpenError`]. An address that is unspecified (0.0.0.0, ::) is no device's: take one of the device's.
    pub fn at(address: SocketAddr) -> Result<Self, OpenError> {
        Self::find(address, |cm, id, address| {
            // SAFETY: `id` is from rdma_create_id, and the address is copied.
            unsafe { (cm.rdma_bind_addr)(id, address) }
        })
    }

    /// The device that leads to a peer's address, from a local address if one is given.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn towards(address: SocketAddr, from: Option<SocketAddr>) -> Result<Self, OpenError> {
        let from = from.map(SockAddr::from);
        let from = from
            .as_ref()
            .map_or(ptr::null(), |from| from.as_ptr().cast());
        Self::find(address, |cm, id, address| {
            // SAFETY: `id` is from rdma_create_id without a channel, so the call waits; addresses are copied.
            unsafe { (cm.rdma_resolve_addr)(id, from, address, RESOLVE_TIMEOUT) }
        })
    }

    fn find(
        address: SocketAddr,
        bind: impl FnOnce(&super::library::Cm, *mut sys::CmId, *const core::ffi::c_void) -> c_int,
    ) -> Result<Self, OpenError> {
        let library = Library::get()?;
        let cm = &library.cm;
        let no_device = |error| OpenError::NoDevice(address, error);
        let mut id = ptr::null_mut();
        // SAFETY: the result goes to `id`; without a channel the identifier has one of its own.
        check(unsafe {
            (cm.rdma_create_id)(
                ptr::null_mut(),
                &mut id,
                ptr::null_mut(),
                sys::PORT_SPACE_TCP,
            )
        })
        .map_err(no_device)?;
        let bound = check(bind(
            cm,
            id,
            SockAddr::from(any_port(address)).as_ptr().cast(),
        ));
        // SAFETY: `id` is valid until rdma_destroy_id.
        let context = unsafe { (*id).verbs };
        let device = bound.and_then(|()| Self::of(library, context));
        // SAFETY: `id` is not used after this.
        unsafe { (cm.rdma_destroy_id)(id) };
        // Of a device that is being removed this may be all that anybody notices.
        close_removed(&mut opened());
        device.map_err(no_device)
    }

    /// The device of a context that an identifier keeps open.
    fn of(library: &'static Library, context: *mut sys::Context) -> io::Result<Self> {
        if context.is_null() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: `context` is open; the attributes are written as a whole.
        let attributes =
            match unsafe { (library.verbs.ibv_query_device)(context, attributes.as_mut_ptr()) } {
                // SAFETY: it was written.
                0 => Arc::new(unsafe { attributes.assume_init() }),
                error => return Err(io::Error::from_raw_os_error(error)),
            };
        let mut opened = opened();
        match opened.iter_mut().find(|it| it.context == context) {
            Some(it) if it.removed => return Err(io::ErrorKind::AddrNotAvailable.into()),
            Some(it) => it.users += 1,
            None => opened.push(Opened::new(library, context)?),
        }
        Ok(Self {
            library,
            context,
            attributes,
        })
    }

    /// The device's name, such as `rxe0` or `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: the context is open, and so its device is there.
        let name = unsafe { (self.library.verbs.ibv_get_device_name)((*self.context).device) };
        // SAFETY: it is a string of the device's.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    /// Whether it is one of iWARP, by TCP, and not of InfiniBand or RoCE.
    pub(super) fn is_iwarp(&self) -> bool {
        // SAFETY: the context is open, and so its device is there.
        unsafe { (*(*self.context).device).transport == sys::TRANSPORT_IWARP }
    }

    /// Completion vectors: interrupts over which workers are spread.
    #[must_use]
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open.
        unsafe { (*self.context).completion_vectors }.unsigned_abs()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn context(&self) -> *mut sys::Context {
        self.context
    }

    pub(super) fn attributes(&self) -> &sys::DeviceAttr {
        &self.attributes
    }

    /// The device was removed.
    pub(super) fn remove(&self) {
        self.with_opened(|it| it.removed = true);
    }

    fn with_opened(&self, change: impl FnOnce(&mut Opened)) {
        let mut opened = opened();
        if let Some(it) = opened.iter_mut().find(|it| it.context == self.context) {
            change(it);
        }
        close_removed(&mut opened);
    }
}

impl Clone for Device {
    fn clone(&self) -> Self {
        self.with_opened(|it| it.users += 1);
        Self {
            attributes: Arc::clone(&self.attributes),
            ..*self
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.with_opened(|it| it.users -= 1);
    }
}

impl Opened {
    /// For a first user, while somebody keeps `context` open.
    fn new(library: &'static Library, context: *mut sys::Context) -> io::Result<Self> {
        // SAFETY: it may be called at any time; without a count there is none.
        let list = unsafe { (library.cm.rdma_get_devices)(ptr::null_mut()) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the context is open.
        let file = unsafe { BorrowedFd::borrow_raw((*context).cmd_fd) };
        let shown = fstat(file).ok().map(|file| {
            let (major, minor) = (major(file.st_rdev), minor(file.st_rdev));
            PathBuf::from(format!("/sys/dev/char/{major}:{minor}"))
        });
        Ok(Self {
            library,
            context,
            list,
            shown: shown.filter(|path| path.exists()),
            users: 1,
            removed: false,
        })
    }

    /// Whether an event said so; or the system does not show the device any more, because it
    /// waits for its files to be closed.
    fn is_removed(&self) -> bool {
        self.removed || self.shown.as_ref().is_some_and(|path| !path.exists())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // librdmacm keeps the context as long as no other device comes, and the kernel keeps
        // the device, and whoever removes it waiting, as long as its files are open.
        // SAFETY: the context is open, and nobody uses it any more.
        let context = unsafe { &*self.context };
        for fd in [context.cmd_fd, context.async_fd] {
            // SAFETY: the context's file, which stays the library's.
            let mut file = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
            // Where this fails, the removal waits for the process to end.
            let _ = empty().and_then(|empty| Ok(dup3(empty, &mut file, DupFlags::CLOEXEC)?));
        }
        // SAFETY: it is from rdma_get_devices, and whatever used the context is gone.
        unsafe { (self.library.cm.rdma_free_devices)(self.list) };
    }
}

/// A file that takes the place of another.
fn empty() -> io::Result<File> {
    File::open("/dev/null")
}

/// Of what says -1 and sets `errno`.
pub(super) fn check(result: c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Of what gives a pointer, or null and sets `errno`.
pub(super) fn check_pointer<T>(
    what: &'static str,
    pointer: *mut T,
) -> Result<ptr::NonNull<T>, OpenError> {
    ptr::NonNull::new(pointer).ok_or_else(|| OpenError::Device(what, io::Error::last_os_error()))
}

fn any_port(mut address: SocketAddr) -> SocketAddr {
    address.set_port(0);
    address
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn whatever_is_installed_the_loopback_address_is_no_device() {
        match Device::at("127.0.0.1:0".parse().unwrap()) {
            Err(error @ OpenError::Missing(_)) => assert!(error.to_string().contains("install")),
            Err(error @ OpenError::NoDevice(..)) => {
                assert!(error.to_string().contains("127.0.0.1"))
            }
            Err(error) => panic!("{error}"),
            // Somebody has put a software device onto the loopback interface.
            Ok(device) => assert!(!device.name().is_empty()),
        }
    }
}
