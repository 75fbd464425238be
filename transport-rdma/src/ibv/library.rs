//! libibverbs and librdmacm, found when they are first asked for.
use core::ffi::{c_char, c_int, c_void};
use std::string::{String, ToString};
use std::sync::OnceLock;

use super::sys::{
    CmEvent, CmId, CompletionChannel, ConnParam, Context, Device, DeviceAttr, EventChannel, Mr,
    Opaque, Qp, QpAttr, QpInitAttr, SrqAttr, SrqInitAttr,
};

/// Why there is no RDMA on this system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(String);

impl core::fmt::Display for Missing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "RDMA needs libibverbs and librdmacm, which cannot be loaded ({}): install \
             ibverbs-providers and librdmacm1 (Debian, Ubuntu) or libibverbs and librdmacm (Fedora, SUSE)",
            self.0
        )
    }
}

impl core::error::Error for Missing {}

macro_rules! functions {
    ($(#[$doc:meta])* $name:ident from $file:literal { $($function:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(pub(super) $function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the constructors of rdma-core's libraries do nothing but find drivers.
                let library = unsafe { libloading::Library::new($file) }?;
                let functions = Self {
                    $(
                        // SAFETY: the type is that of the function in rdma-core's header, whose
                        // symbol versions promise it for as long as the file has this name.
                        $function: unsafe { *library.get(concat!(stringify!($function), "\0").as_bytes())? },
                    )*
                };
                // The functions outlive every caller: the library stays.
                core::mem::forget(library);
                Ok(functions)
            }
        }
    };
}

functions! {
    /// Devices, memory and queues.
    Verbs from "libibverbs.so.1" {
        ibv_get_device_name: fn(*mut Device) -> *const c_char;
        ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
        ibv_alloc_pd: fn(*mut Context) -> *mut Opaque;
        ibv_dealloc_pd: fn(*mut Opaque) -> c_int;
        ibv_reg_mr: fn(*mut Opaque, *mut c_void, usize, c_int) -> *mut Mr;
        ibv_dereg_mr: fn(*mut Mr) -> c_int;
        ibv_create_comp_channel: fn(*mut Context) -> *mut CompletionChannel;
        ibv_destroy_comp_channel: fn(*mut CompletionChannel) -> c_int;
        ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompletionChannel, c_int) -> *mut Opaque;
        ibv_destroy_cq: fn(*mut Opaque) -> c_int;
        ibv_get_cq_event: fn(*mut CompletionChannel, *mut *mut Opaque, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut Opaque, u32);
        ibv_create_srq: fn(*mut Opaque, *mut SrqInitAttr) -> *mut Opaque;
        ibv_modify_srq: fn(*mut Opaque, *mut SrqAttr, c_int) -> c_int;
        ibv_query_srq: fn(*mut Opaque, *mut SrqAttr) -> c_int;
        ibv_destroy_srq: fn(*mut Opaque) -> c_int;
        ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    }
}

functions! {
    /// Connections.
    Cm from "librdmacm.so.1" {
        rdma_create_event_channel: fn() -> *mut EventChannel;
        rdma_destroy_event_channel: fn(*mut EventChannel);
        rdma_create_id: fn(*mut EventChannel, *mut *mut CmId, *mut c_void, c_int) -> c_int;
        rdma_destroy_id: fn(*mut CmId) -> c_int;
        rdma_migrate_id: fn(*mut CmId, *mut EventChannel) -> c_int;
        rdma_bind_addr: fn(*mut CmId, *const c_void) -> c_int;
        rdma_listen: fn(*mut CmId, c_int) -> c_int;
        rdma_resolve_addr: fn(*mut CmId, *const c_void, *const c_void, c_int) -> c_int;
        rdma_resolve_route: fn(*mut CmId, c_int) -> c_int;
        rdma_create_qp: fn(*mut CmId, *mut Opaque, *mut QpInitAttr) -> c_int;
        rdma_destroy_qp: fn(*mut CmId);
        rdma_connect: fn(*mut CmId, *mut ConnParam) -> c_int;
        rdma_accept: fn(*mut CmId, *mut ConnParam) -> c_int;
        rdma_reject: fn(*mut CmId, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut CmId) -> c_int;
        rdma_get_cm_event: fn(*mut EventChannel, *mut *mut CmEvent) -> c_int;
        rdma_ack_cm_event: fn(*mut CmEvent) -> c_int;
        rdma_get_devices: fn(*mut c_int) -> *mut *mut Context;
        rdma_free_devices: fn(*mut *mut Context);
    }
}

/// Both libraries, loaded.
pub(super) struct Library {
    pub(super) verbs: Verbs,
    pub(super) cm: Cm,
}

impl Library {
    /// The libraries, which are loaded once.
    pub(super) fn get() -> Result<&'static Self, Missing> {
        static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();
        let load = || {
            Ok(Self {
                verbs: Verbs::load()?,
                cm: Cm::load()?,
            })
        };
        LIBRARY
            .get_or_init(|| load().map_err(|error: libloading::Error| Missing(error.to_string())))
            .as_ref()
            .map_err(Clone::clone)
    }
}
