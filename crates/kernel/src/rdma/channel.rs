//! Event channels of RDMA CM.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

use super::error::Error;
use super::sys;

/// Returns the name that the library gives to something, as a string.
///
/// # Safety
///
/// `text` is null or a string that the library keeps.
pub(super) unsafe fn text(text: *const std::ffi::c_char) -> String {
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
pub(super) struct Channel {
    api: &'static sys::Api,
    raw: *mut sys::Channel,
}

/// Event of a connection, with all data that belongs to the library copied.
pub(super) struct Happened {
    pub(super) id: *mut sys::Id,
    pub(super) kind: std::ffi::c_uint,
    pub(super) status: i32,
    pub(super) private_data: Vec<u8>,
}

impl Channel {
    pub(super) fn new(api: &'static sys::Api) -> Result<Self, Error> {
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

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as this, and its descriptor as long as it.
        unsafe { BorrowedFd::borrow_raw((*self.raw).fd) }
    }

    pub(super) fn create_id(&self, context: u64) -> Result<*mut sys::Id, Error> {
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
    pub(super) fn next(&self) -> Result<Option<Happened>, Error> {
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

pub(super) fn never_block(fd: BorrowedFd<'_>) -> Result<(), Error> {
    let set = || {
        let flags = rustix::fs::fcntl_getfl(fd)?;
        rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)
    };
    set().map_err(|error| Error::System("fcntl", error.into()))
}

/// Sets the time that a device waits for an answer before it sends again: 4.096 us times 2^14,
/// which is 67 ms. With the default, a lost packet costs a second and more.
pub(super) fn set_ack_timeout(api: &sys::Api, id: *mut sys::Id) {
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
