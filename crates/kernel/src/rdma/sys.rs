//! The parts of librdmacm's and libibverbs' interfaces that are used here.
//!
//! The libraries are looked for when the program runs, so that it builds and starts without
//! them. Structures are as in `rdma/rdma_cma.h` and `infiniband/verbs.h`, whose layout is
//! fixed by the libraries' versions (`librdmacm.so.1`, `libibverbs.so.1`); a test compares
//! them with the headers. What the headers have as inline functions (posting, polling) goes
//! through the table of functions in a device's context, as there.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::error::Error;

pub(super) const READ: c_uint = 4;
pub(super) const WRITE: c_uint = 0;
pub(super) const SIGNALED: c_uint = 2;
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(super) const RELIABLE_CONNECTION: c_uint = 2;
pub(super) const TCP_PORTS: c_uint = 0x0106;
pub(super) const TRANSPORT_IWARP: c_int = 1;
pub(super) const OPTION_ID: c_int = 0;
pub(super) const OPTION_REUSE_ADDRESS: c_int = 1;
pub(super) const OPTION_ACK_TIMEOUT: c_int = 3;

pub(super) const ADDRESS_RESOLVED: c_uint = 0;
pub(super) const ROUTE_RESOLVED: c_uint = 2;
pub(super) const CONNECT_REQUEST: c_uint = 4;
pub(super) const REJECTED: c_uint = 8;
pub(super) const ESTABLISHED: c_uint = 9;
pub(super) const DISCONNECTED: c_uint = 10;
pub(super) const DEVICE_REMOVED: c_uint = 11;
pub(super) const TIME_WAIT_EXIT: c_uint = 15;

#[repr(C)]
pub(super) struct Device {
    pub operations: [*mut c_void; 2],
    pub node: c_int,
    pub transport: c_int,
}

#[repr(C)]
pub(super) struct Context {
    pub device: *mut Device,
    before_poll: [*mut c_void; 11],
    pub poll_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Completion) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int,
    between: [*mut c_void; 12],
    pub post_send: unsafe extern "C" fn(*mut Pair, *mut Work, *mut *mut Work) -> c_int,
}

#[repr(C)]
pub(super) struct Pair {
    pub context: *mut Context,
}

#[repr(C)]
pub(super) struct CompletionQueue {
    pub context: *mut Context,
}

#[repr(C)]
pub(super) struct CompletionChannel {
    pub context: *mut Context,
    pub fd: c_int,
}

#[repr(C)]
pub(super) struct Domain {
    pub context: *mut Context,
}

#[repr(C)]
pub(super) struct Region {
    pub context: *mut Context,
    pub domain: *mut Domain,
    pub address: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub local_key: u32,
    pub remote_key: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Completion {
    pub work: u64,
    pub status: c_uint,
    pub kind: c_uint,
    pub vendor_error: u32,
    pub length: u32,
    pub immediate: u32,
    pub pair: u32,
    pub source: u32,
    pub flags: c_uint,
    pub key_index: u16,
    pub source_lid: u16,
    pub service_level: u8,
    pub path_bits: u8,
}

impl Completion {
    pub(super) const fn zeroed() -> Self {
        Completion {
            work: 0,
            status: 0,
            kind: 0,
            vendor_error: 0,
            length: 0,
            immediate: 0,
            pair: 0,
            source: 0,
            flags: 0,
            key_index: 0,
            source_lid: 0,
            service_level: 0,
            path_bits: 0,
        }
    }
}

#[repr(C)]
pub(super) struct Part {
    pub address: u64,
    pub length: u32,
    pub key: u32,
}

/// A work request: of its unions, the room that the largest member takes.
#[repr(C)]
pub(super) struct Work {
    pub number: u64,
    pub next: *mut Work,
    pub parts: *mut Part,
    pub number_of_parts: c_int,
    pub operation: c_uint,
    pub flags: c_uint,
    pub immediate: u32,
    pub remote_address: u64,
    pub remote_key: u32,
    rest: [u64; 9],
}

impl Work {
    pub(super) const fn new(number: u64, operation: c_uint) -> Self {
        Work {
            number,
            next: std::ptr::null_mut(),
            parts: std::ptr::null_mut(),
            number_of_parts: 0,
            operation,
            flags: SIGNALED,
            immediate: 0,
            remote_address: 0,
            remote_key: 0,
            rest: [0; 9],
        }
    }
}

#[repr(C)]
pub(super) struct PairAttributes {
    pub context: *mut c_void,
    pub send_queue: *mut CompletionQueue,
    pub receive_queue: *mut CompletionQueue,
    pub shared_receive: *mut c_void,
    pub max_sends: u32,
    pub max_receives: u32,
    pub max_send_parts: u32,
    pub max_receive_parts: u32,
    pub max_inline: u32,
    pub kind: c_uint,
    pub signal_all: c_int,
}

#[repr(C)]
pub(super) struct Channel {
    pub fd: c_int,
}

#[repr(C)]
pub(super) struct Id {
    pub verbs: *mut Context,
    pub channel: *mut Channel,
    pub context: *mut c_void,
    pub pair: *mut Pair,
    pub source: libc::sockaddr_storage,
    pub destination: libc::sockaddr_storage,
}

#[repr(C)]
pub(super) struct ConnectionParameters {
    pub private_data: *const c_void,
    pub private_data_length: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub shared_receive: u8,
    pub pair: u32,
}

#[repr(C)]
pub(super) struct Event {
    pub id: *mut Id,
    pub listener: *mut Id,
    pub kind: c_uint,
    pub status: c_int,
    pub connection: ConnectionParameters,
}

macro_rules! api {
    ($($library:ident { $($name:ident($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// The functions of both libraries.
        pub(super) struct Api {
            $($(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
            /// The libraries stay loaded as long as these.
            #[cfg(feature = "rdma")]
            _libraries: Vec<libloading::Library>,
        }

        impl Api {
            #[cfg(feature = "rdma")]
            fn load() -> Result<Self, String> {
                $(
                    let name = concat!(stringify!($library), ".so.1");
                    // SAFETY: loading them runs their constructors, which set up tables.
                    let $library = unsafe { libloading::Library::new(name) }
                        .map_err(|error| error.to_string())?;
                )*
                Ok(Api {
                    $($(
                        // SAFETY: the type is that of the header.
                        $name: *unsafe {
                            $library.get(concat!(stringify!($name), "\0").as_bytes())
                        }
                        .map_err(|error| error.to_string())?,
                    )*)*
                    _libraries: vec![$($library),*],
                })
            }
        }
    };
}

api! {
    libibverbs {
        ibv_alloc_pd(*mut Context) -> *mut Domain;
        ibv_dealloc_pd(*mut Domain) -> c_int;
        ibv_reg_mr(*mut Domain, *mut c_void, usize, c_int) -> *mut Region;
        ibv_dereg_mr(*mut Region) -> c_int;
        ibv_create_comp_channel(*mut Context) -> *mut CompletionChannel;
        ibv_destroy_comp_channel(*mut CompletionChannel) -> c_int;
        ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompletionChannel, c_int) -> *mut CompletionQueue;
        ibv_destroy_cq(*mut CompletionQueue) -> c_int;
        ibv_get_cq_event(*mut CompletionChannel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut CompletionQueue, c_uint);
        ibv_wc_status_str(c_uint) -> *const c_char;
    }
    librdmacm {
        rdma_create_event_channel() -> *mut Channel;
        rdma_destroy_event_channel(*mut Channel);
        rdma_get_devices(*mut c_int) -> *mut *mut Context;
        rdma_free_devices(*mut *mut Context);
        rdma_create_id(*mut Channel, *mut *mut Id, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id(*mut Id) -> c_int;
        rdma_bind_addr(*mut Id, *mut libc::sockaddr) -> c_int;
        rdma_resolve_addr(*mut Id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route(*mut Id, c_int) -> c_int;
        rdma_create_qp(*mut Id, *mut Domain, *mut PairAttributes) -> c_int;
        rdma_destroy_qp(*mut Id);
        rdma_connect(*mut Id, *mut ConnectionParameters) -> c_int;
        rdma_listen(*mut Id, c_int) -> c_int;
        rdma_accept(*mut Id, *mut ConnectionParameters) -> c_int;
        rdma_reject(*mut Id, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut Id) -> c_int;
        rdma_get_cm_event(*mut Channel, *mut *mut Event) -> c_int;
        rdma_ack_cm_event(*mut Event) -> c_int;
        rdma_event_str(c_uint) -> *const c_char;
        rdma_get_src_port(*mut Id) -> u16;
        rdma_set_option(*mut Id, c_int, c_int, *mut c_void, usize) -> c_int;
    }
}

#[cfg(not(feature = "rdma"))]
impl Api {
    fn load() -> Result<Self, String> {
        Err(String::new())
    }
}

/// The libraries, loaded at the first call.
pub(super) fn load_api() -> Result<&'static Api, Error> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    if cfg!(not(feature = "rdma")) {
        return Err(Error::NotBuilt);
    }
    let api = API.get_or_init(Api::load);
    api.as_ref().map_err(|why| Error::Libraries(why.clone()))
}

#[cfg(test)]
mod tests;
