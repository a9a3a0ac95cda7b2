//! Load pages over RDMA: a back-end offers its page, balancers read it with no part of the
//! back-end's processors.
//!
//! After connecting over RDMA CM, the back-end's [`Server`] does nothing: the network card,
//! or with Soft-RoCE the kernel, answers reads. It may even be stopped. What a connection
//! offers stands in the private data of its acceptance:
//!
//! | at | what |
//! |---|---|
//! | 0 | magic `EVKP` (4), version (2), reserved, 0 (2) |
//! | 8 | address of the page, for reads |
//! | 16 | key of the page, for reads (4); length in bytes (4) |
//! | 24 | epoch of the page: see [`record`](crate::record) |
//!
//! A request for a connection has the first 8 bytes of this. All is little-endian.
//!
//! Only the interface that all RDMA devices share is used: addresses are resolved by RDMA CM,
//! so InfiniBand, RoCE, iWARP and Soft-RoCE are the same here. Tried is Soft-RoCE.
//!
//! What protects the page: it can only be read, only as far as it is long, and only from
//! sources on the list. Who can write any packet into the network can pretend to be such a
//! source, and see the load.

mod reader;
mod serve;
mod sys;

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

pub use reader::{ConnectionId, Reader};
pub use serve::{Counters, Limits, Memory, Server};

use crate::record::{BadRecord, CPU, CPUS, MAX_CPUS};

/// Default port at which pages are offered.
pub const DEFAULT_PORT: u16 = 9971;

/// Reason why a page is not offered or not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The feature was off.
    #[error("this program was built without RDMA: build the program with --features kernel")]
    NotBuilt,
    /// The RDMA libraries are not installed, or too old.
    #[error(
        "the RDMA libraries cannot be loaded ({0}): install librdmacm1, libibverbs1 and ibverbs-providers (Debian, Ubuntu) or librdmacm and libibverbs (Fedora, RHEL)"
    )]
    Libraries(String),
    /// No RDMA device, or no kernel modules for it.
    #[error(
        "no RDMA device is here ({0}): load its driver and the modules ib_uverbs and rdma_ucm; or put Soft-RoCE on a network interface: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
    )]
    NoDevice(io::Error),
    /// A call to a library failed.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// RDMA CM says that there will be no connection.
    #[error("no RDMA connection: {0}")]
    NoConnection(String),
    /// The connection has not come about, or an answer has not come, for too long.
    #[error("the server does not answer in time")]
    TimedOut,
    /// The other side has closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The other side offers something that is no load page.
    #[error("the load page is not valid: {0}")]
    BadOffer(&'static str),
    /// A read failed.
    #[error("the page cannot be read: {0}")]
    Read(String),
    /// The bytes of the page are no record.
    #[error(transparent)]
    Record(#[from] BadRecord),
}

impl Error {
    fn system(call: &'static str) -> Self {
        Error::System(call, io::Error::last_os_error())
    }
}

/// Page that a back-end offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    address: u64,
    key: u32,
    length: u32,
    epoch: u64,
}

const MAGIC: [u8; 4] = *b"EVKP";
const VERSION: u16 = 1;
const GREETING: usize = 8;
const OFFER: usize = 32;

/// The most that a page can be long.
const LONGEST: usize = CPUS + MAX_CPUS * CPU;

fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks that a request for a connection, or the answer to such a request, begins with the magic
/// and the version of this protocol. Devices may add zeros.
fn check_greeting(bytes: &[u8]) -> Result<(), Error> {
    match bytes.first_chunk::<GREETING>() {
        Some(head) if head[..4] != MAGIC => {
            Err(Error::BadOffer("the offer does not begin with EVKP"))
        }
        Some(head) if u16::from_le_bytes([head[4], head[5]]) != VERSION => {
            Err(Error::BadOffer("the offer has another protocol version"))
        }
        Some(_) => Ok(()),
        None => Err(Error::BadOffer("the offer is too short")),
    }
}

impl Offer {
    fn write(&self) -> [u8; OFFER] {
        let mut bytes = [0; OFFER];
        bytes[..8].copy_from_slice(&greeting());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.key.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Self, Error> {
        check_greeting(bytes)?;
        let bytes = bytes
            .first_chunk::<OFFER>()
            .ok_or(Error::BadOffer("the offer is too short"))?;
        let four = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        let eight = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        let offer = Offer {
            address: u64::from_le_bytes(eight(8)),
            key: u32::from_le_bytes(four(16)),
            length: u32::from_le_bytes(four(20)),
            epoch: u64::from_le_bytes(eight(24)),
        };
        let length = offer.length as usize;
        // A whole page: base, ports, and at least one CPU.
        if !(CPUS + CPU..=LONGEST).contains(&length) || !(length - CPUS).is_multiple_of(CPU) {
            return Err(Error::BadOffer("a load page cannot have this length"));
        }
        if offer.address.checked_add(length as u64).is_none() {
            return Err(Error::BadOffer("the page ends beyond the last address"));
        }
        Ok(offer)
    }
}

/// Returns the name that the library gives to something, as a string.
///
/// # Safety
///
/// `text` is null or a string that the library keeps.
unsafe fn text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        String::from("unknown")
    } else {
        // SAFETY: see above.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

/// An event channel: where RDMA CM tells what happens to connections. Never blocks.
struct Channel {
    api: &'static sys::Api,
    raw: *mut sys::Channel,
}

/// Event of a connection, with all data that belongs to the library copied.
struct Happened {
    id: *mut sys::Id,
    kind: std::ffi::c_uint,
    status: i32,
    private_data: Vec<u8>,
}

impl Channel {
    fn new(api: &'static sys::Api) -> Result<Self, Error> {
        // SAFETY: no arguments.
        let raw = unsafe { (api.rdma_create_event_channel)() };
        if raw.is_null() {
            return Err(Error::NoDevice(io::Error::last_os_error()));
        }
        let channel = Channel { api, raw };
        // Without a device the library makes channels on which nothing ever happens.
        let mut devices = 0;
        // SAFETY: the list is freed and not used.
        let any = unsafe {
            let list = (api.rdma_get_devices)(&mut devices);
            if !list.is_null() {
                (api.rdma_free_devices)(list);
            }
            !list.is_null() && devices > 0
        };
        if !any {
            return Err(Error::NoDevice(io::Error::from_raw_os_error(libc::ENODEV)));
        }
        never_block(channel.fd())?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as this, and its descriptor as long as it.
        unsafe { BorrowedFd::borrow_raw((*self.raw).fd) }
    }

    fn create_id(&self, context: u64) -> Result<*mut sys::Id, Error> {
        let mut id = std::ptr::null_mut();
        let context = context as usize as *mut _;
        // SAFETY: the channel is alive; the context is a number.
        let made = unsafe { (self.api.rdma_create_id)(self.raw, &mut id, context, sys::TCP_PORTS) };
        match made {
            0 => Ok(id),
            _ => Err(Error::system("rdma_create_id")),
        }
    }

    /// The next event, if there is one.
    fn next(&self) -> Result<Option<Happened>, Error> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel is alive.
        if unsafe { (self.api.rdma_get_cm_event)(self.raw, &mut event) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::System("rdma_get_cm_event", error)),
            };
        }
        // SAFETY: the event and its private data are the library's until it is acknowledged.
        let happened = unsafe {
            let event = &*event;
            let connection = &event.connection;
            let private_data = if connection.private_data.is_null() || !has_data(event.kind) {
                Vec::new()
            } else {
                std::slice::from_raw_parts(
                    connection.private_data.cast::<u8>(),
                    connection.private_data_length.into(),
                )
                .to_vec()
            };
            Happened {
                id: event.id,
                kind: event.kind,
                status: event.status,
                private_data,
            }
        };
        // SAFETY: nothing of it is used any more.
        unsafe { (self.api.rdma_ack_cm_event)(event) };
        Ok(Some(happened))
    }
}

/// Returns true if an event of that kind has private data.
fn has_data(kind: std::ffi::c_uint) -> bool {
    [sys::CONNECT_REQUEST, sys::ESTABLISHED, sys::REJECTED].contains(&kind)
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: owners destroy their ids before.
        unsafe { (self.api.rdma_destroy_event_channel)(self.raw) };
    }
}

fn never_block(fd: BorrowedFd<'_>) -> Result<(), Error> {
    let set = || {
        let flags = rustix::fs::fcntl_getfl(fd)?;
        rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)
    };
    set().map_err(|error| Error::System("fcntl", error.into()))
}

/// Sets the time that a device waits for an answer before it sends again: 4.096 us times 2^14,
/// which is 67 ms. With the default, a lost packet costs a second and more.
fn set_ack_timeout(api: &sys::Api, id: *mut sys::Id) {
    let mut timeout = 14u8;
    // SAFETY: the id is alive, the option is a byte. Where it is not known, the default holds.
    unsafe {
        (api.rdma_set_option)(
            id,
            sys::OPTION_ID,
            sys::OPTION_ACK_TIMEOUT,
            (&raw mut timeout).cast(),
            1,
        );
    }
}

/// An address as C has it.
fn raw_address(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zeros is an address of no family.
    let mut raw: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: there is room for any address.
            let to = unsafe { &mut *(&raw mut raw).cast::<libc::sockaddr_in>() };
            to.sin_family = libc::AF_INET as _;
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            // SAFETY: there is room for any address.
            let to = unsafe { &mut *(&raw mut raw).cast::<libc::sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as _;
            to.sin6_port = v6.port().to_be();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_scope_id = v6.scope_id();
        }
    }
    raw
}

/// The IP address in what C has.
fn ip(raw: &libc::sockaddr_storage) -> Option<IpAddr> {
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let from = unsafe { &*(&raw const *raw).cast::<libc::sockaddr_in>() };
            Some(IpAddr::from(from.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let from = unsafe { &*(&raw const *raw).cast::<libc::sockaddr_in6>() };
            Some(IpAddr::from(from.sin6_addr.s6_addr).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
