//! What crosses into libibverbs and librdmacm: their structures and constants.
//!
//! Sizes and offsets are checked against `infiniband/verbs.h` and
//! `rdma/rdma_cma.h` of rdma-core, 64 bit. A structure of which only the first
//! fields are given is only ever seen behind a pointer that the library gave.
use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};

/// Whatever the library keeps to itself.
#[repr(C)]
pub(super) struct Opaque {
    _private: [u8; 0],
}

/// `struct ibv_device`: its beginning.
#[repr(C)]
pub(super) struct Device {
    _ops: [*mut c_void; 2],
    _node_kind: c_int,
    pub(super) transport: c_int,
}

const _: () = assert!(offset_of!(Device, transport) == 20);

/// `IBV_TRANSPORT_IWARP`.
pub(super) const TRANSPORT_IWARP: c_int = 1;

/// `struct ibv_context`: its beginning.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) completion_vectors: c_int,
}

/// `struct ibv_context_ops`: what a device's driver does without the kernel.
#[repr(C)]
pub(super) struct ContextOps {
    _0: [*mut c_void; 7],
    pub(super) alloc_mw: Option<unsafe extern "C" fn(pd: *mut Opaque, kind: c_int) -> *mut Mw>,
    _8: *mut c_void,
    pub(super) dealloc_mw: Option<unsafe extern "C" fn(mw: *mut Mw) -> c_int>,
    _10: *mut c_void,
    pub(super) poll_cq: unsafe extern "C" fn(cq: *mut Opaque, entries: c_int, wc: *mut Wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(cq: *mut Opaque, solicited: c_int) -> c_int,
    _13: [*mut c_void; 7],
    pub(super) post_srq_recv:
        unsafe extern "C" fn(srq: *mut Opaque, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int,
    _21: [*mut c_void; 4],
    pub(super) post_send:
        unsafe extern "C" fn(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int,
    pub(super) post_recv:
        unsafe extern "C" fn(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int,
    _27: [*mut c_void; 5],
}

const _: () = {
    assert!(size_of::<ContextOps>() == 256);
    assert!(offset_of!(Context, completion_vectors) == 272);
    assert!(offset_of!(ContextOps, alloc_mw) == 56);
    assert!(offset_of!(ContextOps, dealloc_mw) == 72);
    assert!(offset_of!(ContextOps, poll_cq) == 88);
    assert!(offset_of!(ContextOps, post_srq_recv) == 160);
    assert!(offset_of!(ContextOps, post_send) == 200);
    assert!(offset_of!(ContextOps, post_recv) == 208);
};

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    _versions: [u8; 64],
    _identity: [u64; 4],
    _vendor: [u32; 3],
    _max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) flags: c_uint,
    pub(super) max_sge: c_int,
    _max_sge_rd: c_int,
    _max_cq: c_int,
    pub(super) max_cqe: c_int,
    _max_mr_pd: [c_int; 2],
    pub(super) max_qp_rd_atom: c_int,
    _more_atomics: [c_int; 2],
    pub(super) max_qp_init_rd_atom: c_int,
    _until_srq: [c_int; 14],
    pub(super) max_srq_wr: c_int,
    _rest: [u32; 3],
}

const _: () = {
    assert!(size_of::<DeviceAttr>() == 232);
    assert!(offset_of!(DeviceAttr, max_qp_wr) == 112);
    assert!(offset_of!(DeviceAttr, max_sge) == 120);
    assert!(offset_of!(DeviceAttr, max_cqe) == 132);
    assert!(offset_of!(DeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(DeviceAttr, max_qp_init_rd_atom) == 156);
    assert!(offset_of!(DeviceAttr, max_srq_wr) == 216);
};

/// `IBV_DEVICE_MEM_WINDOW_TYPE_2A` and `_2B`.
pub(super) const DEVICE_WINDOWS: c_uint = 1 << 23 | 1 << 24;
/// `IBV_MW_TYPE_2`.
pub(super) const MW_TYPE_2: c_int = 2;

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) context: *mut c_void,
    pub(super) send_cq: *mut Opaque,
    pub(super) recv_cq: *mut Opaque,
    pub(super) srq: *mut Opaque,
    pub(super) cap: QpCap,
    pub(super) kind: c_int,
    pub(super) signal_all: c_int,
}

const _: () = {
    assert!(size_of::<QpInitAttr>() == 64);
    assert!(offset_of!(QpInitAttr, kind) == 52);
};

/// `IBV_QPT_RC`.
pub(super) const QPT_RC: c_int = 2;

/// `struct ibv_qp_attr`, of which only what is named is used.
#[repr(C)]
#[derive(Default)]
pub(super) struct QpAttr {
    pub(super) state: c_int,
    pub(super) _until_timer: [u32; 31],
    pub(super) min_rnr_timer: u8,
    pub(super) _port: [u8; 3],
    pub(super) _rest: [u32; 3],
}

const _: () = {
    assert!(size_of::<QpAttr>() == 144);
    assert!(offset_of!(QpAttr, min_rnr_timer) == 128);
};

/// `IBV_QP_STATE`.
pub(super) const QP_STATE: c_int = 1;
/// `IBV_QP_MIN_RNR_TIMER`.
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
/// 0.12 ms, as it is coded (InfiniBand, vol. 1, 9.7.5.2.8).
pub(super) const RNR_TIMER_120_US: u8 = 7;
/// `IBV_QPS_ERR`.
pub(super) const QPS_ERR: c_int = 6;

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(super) struct SrqInitAttr {
    pub(super) context: *mut c_void,
    pub(super) attributes: SrqAttr,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct SrqAttr {
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) limit: u32,
}

/// `IBV_SRQ_LIMIT`.
pub(super) const SRQ_LIMIT: c_int = 1 << 1;

const _: () = assert!(size_of::<SrqInitAttr>() == 24);

/// `struct ibv_qp`: its beginning.
#[repr(C)]
pub(super) struct Qp {
    _pointers: [*mut c_void; 6],
    _handle: u32,
    pub(super) number: u32,
}

const _: () = assert!(offset_of!(Qp, number) == 52);

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    _context: *mut c_void,
    _pd: *mut c_void,
    _address: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

const _: () = assert!(offset_of!(Mr, rkey) == 40);

/// `struct ibv_mw`.
#[repr(C)]
pub(super) struct Mw {
    _context: *mut c_void,
    _pd: *mut c_void,
    pub(super) rkey: u32,
    _handle: u32,
    _kind: c_int,
}

const _: () = assert!(offset_of!(Mw, rkey) == 16);

/// `struct ibv_comp_channel`: its beginning.
#[repr(C)]
pub(super) struct CompletionChannel {
    _context: *mut c_void,
    pub(super) fd: c_int,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sges: *mut Sge,
    pub(super) sge_count: c_int,
}

const _: () = assert!(size_of::<RecvWr>() == 32);

/// `struct ibv_send_wr`, of whose unions one member each is used.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sges: *mut Sge,
    pub(super) sge_count: c_int,
    pub(super) opcode: c_int,
    pub(super) flags: c_uint,
    pub(super) invalidate: u32,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
    pub(super) _wr: [u32; 5],
    pub(super) _qp_type: u64,
    pub(super) bind: Bind,
}

impl Default for SendWr {
    fn default() -> Self {
        Self {
            id: 0,
            next: core::ptr::null_mut(),
            sges: core::ptr::null_mut(),
            sge_count: 0,
            opcode: 0,
            flags: 0,
            invalidate: 0,
            remote_address: 0,
            remote_key: 0,
            _wr: [0; 5],
            _qp_type: 0,
            bind: Bind::default(),
        }
    }
}

/// The `bind_mw` member of `struct ibv_send_wr`.
#[repr(C)]
pub(super) struct Bind {
    pub(super) mw: *mut Mw,
    pub(super) key: u32,
    pub(super) mr: *mut Mr,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) access: c_uint,
}

impl Default for Bind {
    fn default() -> Self {
        Self {
            mw: core::ptr::null_mut(),
            key: 0,
            mr: core::ptr::null_mut(),
            address: 0,
            length: 0,
            access: 0,
        }
    }
}

const _: () = {
    assert!(size_of::<SendWr>() == 128);
    assert!(offset_of!(SendWr, opcode) == 28);
    assert!(offset_of!(SendWr, invalidate) == 36);
    assert!(offset_of!(SendWr, remote_address) == 40);
    assert!(offset_of!(SendWr, bind) == 80);
    assert!(offset_of!(Bind, key) == 8);
    assert!(offset_of!(Bind, mr) == 16);
};

/// `enum ibv_wr_opcode`.
pub(super) mod opcode {
    use core::ffi::c_int;

    pub(in super::super) const RDMA_WRITE: c_int = 0;
    pub(in super::super) const SEND: c_int = 2;
    pub(in super::super) const RDMA_READ: c_int = 4;
    pub(in super::super) const BIND_MW: c_int = 8;
    pub(in super::super) const SEND_INVALIDATE: c_int = 9;
}

/// `enum ibv_send_flags`.
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
/// The data is copied when it is posted.
pub(super) const SEND_INLINE: c_uint = 1 << 3;

/// `enum ibv_access_flags`.
pub(super) mod access {
    use core::ffi::c_uint;

    pub(in super::super) const LOCAL_WRITE: c_uint = 1;
    pub(in super::super) const REMOTE_WRITE: c_uint = 1 << 1;
    pub(in super::super) const REMOTE_READ: c_uint = 1 << 2;
    pub(in super::super) const REMOTE: c_uint = REMOTE_WRITE | REMOTE_READ;
    pub(in super::super) const MW_BIND: c_uint = 1 << 4;
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub(super) id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_error: u32,
    pub(super) length: u32,
    pub(super) invalidated: u32,
    pub(super) qp_number: u32,
    _source: u32,
    pub(super) flags: c_uint,
    _route: [u16; 3],
    _pad: [u8; 2],
}

const _: () = {
    assert!(size_of::<Wc>() == 48);
    assert!(offset_of!(Wc, invalidated) == 24);
    assert!(offset_of!(Wc, flags) == 36);
};

/// `IBV_WC_WITH_INV`.
pub(super) const WC_INVALIDATED: c_uint = 1 << 3;
/// What rdma_rxe says for it: the kernel's own bit, which is `IBV_WC_IP_CSUM_OK` to others.
pub(super) const WC_INVALIDATED_RXE: c_uint = 1 << 2;

/// `enum ibv_wc_status`, as far as it is told apart.
pub(super) mod status {
    use core::ffi::c_int;

    pub(in super::super) const SUCCESS: c_int = 0;
    pub(in super::super) const LOCAL_LENGTH: c_int = 1;
    pub(in super::super) const FLUSHED: c_int = 5;
    pub(in super::super) const BIND: c_int = 6;
    pub(in super::super) const REMOTE_INVALID_REQUEST: c_int = 9;
    pub(in super::super) const REMOTE_ACCESS: c_int = 10;
    pub(in super::super) const RETRIES_EXCEEDED: c_int = 12;
    pub(in super::super) const RNR_RETRIES_EXCEEDED: c_int = 13;
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub(super) struct EventChannel {
    pub(super) fd: c_int,
}

/// `struct rdma_cm_id`: its beginning.
#[repr(C)]
pub(super) struct CmId {
    pub(super) verbs: *mut Context,
    pub(super) channel: *mut EventChannel,
    pub(super) context: *mut c_void,
    pub(super) qp: *mut Qp,
}

const _: () = assert!(offset_of!(CmId, qp) == 24);

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConnParam {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_number: u32,
}

const _: () = assert!(size_of::<ConnParam>() == 24);

/// `struct rdma_cm_event`, with the parameters of connections.
#[repr(C)]
pub(super) struct CmEvent {
    pub(super) id: *mut CmId,
    pub(super) listener: *mut CmId,
    pub(super) event: c_int,
    pub(super) status: c_int,
    pub(super) conn: ConnParam,
    _datagrams: [u64; 4],
}

const _: () = {
    assert!(size_of::<CmEvent>() == 80);
    assert!(offset_of!(CmEvent, event) == 16);
    assert!(offset_of!(CmEvent, conn) == 24);
};

/// `enum rdma_cm_event_type`.
pub(super) mod event {
    use core::ffi::c_int;

    pub(in super::super) const ADDRESS_RESOLVED: c_int = 0;
    pub(in super::super) const ADDRESS_ERROR: c_int = 1;
    pub(in super::super) const ROUTE_RESOLVED: c_int = 2;
    pub(in super::super) const ROUTE_ERROR: c_int = 3;
    pub(in super::super) const CONNECT_REQUEST: c_int = 4;
    pub(in super::super) const CONNECT_ERROR: c_int = 6;
    pub(in super::super) const UNREACHABLE: c_int = 7;
    pub(in super::super) const REJECTED: c_int = 8;
    pub(in super::super) const ESTABLISHED: c_int = 9;
    pub(in super::super) const DISCONNECTED: c_int = 10;
    pub(in super::super) const DEVICE_REMOVAL: c_int = 11;
}

/// `RDMA_PS_TCP`: reliable connections, by IP address and port.
pub(super) const PORT_SPACE_TCP: c_int = 0x0106;
