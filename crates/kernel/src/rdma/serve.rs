//! The back-end's side: offers a page.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::address::{ip, raw_address};
use super::channel::{Channel, Happened, never_block, set_ack_timeout};
use super::error::Error;
use super::memory::Memory;
use super::offer::{BAD, FULL, LONGEST, NOT_ALLOWED, Offer, check_greeting, greeting};
use super::sys::{self, Api};
use crate::record::{CPU, CPUS};

/// Limits to the connections of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections in all.
    pub connections: usize,
    /// Most connections from one source.
    pub per_source: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 256,
            per_source: 16,
        }
    }
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections made.
    pub accepted: u64,
    /// Requests from sources that are not on the list.
    pub not_allowed: u64,
    /// Requests beyond the limits.
    pub full: u64,
    /// Requests of another protocol or version.
    pub bad: u64,
    /// Connections that have ended.
    pub ended: u64,
}

/// Interval between checks that the other side of a connection is alive.
const PROBE: Duration = Duration::from_secs(10);

/// Test for the sources that may read.
type Allowed = Box<dyn Fn(IpAddr) -> bool + Send>;

/// Offers a page to readers.
///
/// It has to run for connections to be made and for ended ones to be noticed, not for reads.
pub struct Server {
    api: &'static Api,
    listener: *mut sys::Id,
    connections: HashMap<*mut sys::Id, Connection>,
    devices: HashMap<*mut sys::Context, Device>,
    channel: Channel,
    memory: Arc<dyn Memory>,
    allowed: Allowed,
    limits: Limits,
    counters: Counters,
    probe_at: Instant,
}

// SAFETY: the libraries may be called from any thread, and what is theirs is only used by
// methods that have the server for themselves.
unsafe impl Send for Server {}

struct Connection {
    source: IpAddr,
    device: *mut sys::Context,
    established: bool,
    /// True if the server waits for the connection to be made, or for an answer, since the last
    /// probe.
    waiting: bool,
}

/// Resources of a device: the page is registered once for each.
struct Device {
    api: &'static Api,
    domain: *mut sys::Domain,
    region: *mut sys::Region,
    queue: *mut sys::CompletionQueue,
}

impl Server {
    /// Listens at `address`. Port 0 is any.
    ///
    /// # Errors
    ///
    /// No libraries, no device, or the address cannot be listened at.
    pub fn bind(
        address: SocketAddr,
        memory: Arc<dyn Memory>,
        limits: Limits,
        allowed: impl Fn(IpAddr) -> bool + Send + 'static,
    ) -> Result<Self, Error> {
        let api = sys::load_api()?;
        let channel = Channel::new(api)?;
        let listener = channel.create_id(0)?;
        let server = Server {
            api,
            listener,
            connections: HashMap::new(),
            devices: HashMap::new(),
            channel,
            memory,
            allowed: Box::new(allowed),
            limits,
            counters: Counters::default(),
            probe_at: Instant::now() + PROBE,
        };
        let mut raw = raw_address(address);
        let mut reuse: c_int = 1;
        // SAFETY: the id is alive; the option is an int; the address is one of its family.
        unsafe {
            (api.rdma_set_option)(
                listener,
                sys::OPTION_ID,
                sys::OPTION_REUSE_ADDRESS,
                (&raw mut reuse).cast(),
                size_of::<c_int>(),
            );
            if (api.rdma_bind_addr)(listener, (&raw mut raw).cast()) != 0 {
                return Err(Error::system("rdma_bind_addr"));
            }
            if (api.rdma_listen)(listener, 64) != 0 {
                return Err(Error::system("rdma_listen"));
            }
        }
        Ok(server)
    }

    /// The port at which it listens.
    pub fn port(&self) -> u16 {
        // SAFETY: the id is alive.
        u16::from_be(unsafe { (self.api.rdma_get_src_port)(self.listener) })
    }

    /// Returns the counters of the server.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of connections.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Waits for requests and for the end of connections, for at most so long.
    ///
    /// # Errors
    ///
    /// The device is gone, or the libraries fail: there is no more to come.
    pub fn poll(&mut self, wait: Duration) -> Result<(), Error> {
        let wait = wait.min(self.probe_at.saturating_duration_since(Instant::now()));
        let limit = Timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        let mut fds = [PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::System("poll", error.into())),
        }
        while let Some(happened) = self.channel.next()? {
            self.handle(&happened)?;
        }
        if Instant::now() >= self.probe_at {
            self.probe_at = Instant::now() + PROBE;
            self.probe();
        }
        Ok(())
    }

    fn handle(&mut self, happened: &Happened) -> Result<(), Error> {
        let id = happened.id;
        match happened.kind {
            sys::CONNECT_REQUEST => self.request(id, &happened.private_data),
            sys::ESTABLISHED => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.established = true;
                    connection.waiting = false;
                }
            }
            sys::DEVICE_REMOVED if id == self.listener => {
                return Err(Error::NoDevice(std::io::Error::from_raw_os_error(
                    libc::ENODEV,
                )));
            }
            sys::DEVICE_REMOVED => {
                let device = self
                    .connections
                    .get(&id)
                    .map(|connection| connection.device);
                self.end(id);
                if let Some(device) = device
                    && !self
                        .connections
                        .values()
                        .any(|other| other.device == device)
                {
                    self.devices.remove(&device);
                }
            }
            // Everything else that happens to a connection is its end.
            _ if self.connections.contains_key(&id) => self.end(id),
            _ => {}
        }
        Ok(())
    }

    fn request(&mut self, id: *mut sys::Id, private_data: &[u8]) {
        // SAFETY: the id is alive until it is destroyed here.
        let source = ip(unsafe { &(*id).destination });
        let source = source.filter(|source| (self.allowed)(*source));
        let Some(source) = source else {
            self.counters.not_allowed += 1;
            return self.refuse(id, NOT_ALLOWED);
        };
        if check_greeting(private_data).is_err() {
            self.counters.bad += 1;
            return self.refuse(id, BAD);
        }
        let all = self.connections.values();
        let same = all.filter(|other| other.source == source).count();
        if self.connections.len() >= self.limits.connections || same >= self.limits.per_source {
            self.counters.full += 1;
            return self.refuse(id, FULL);
        }
        match self.accept(id) {
            Ok(device) => {
                self.counters.accepted += 1;
                let connection = Connection {
                    source,
                    device,
                    established: false,
                    waiting: false,
                };
                self.connections.insert(id, connection);
            }
            Err(error) => {
                tracing::warn!(%source, %error, "RDMA: a reader is refused, because its connection \
                    could not be prepared");
                self.refuse(id, FULL);
            }
        }
    }

    fn refuse(&self, id: *mut sys::Id, why: u8) {
        let mut data = greeting().to_vec();
        data.push(why);
        // SAFETY: the id is alive, and nobody has it any more.
        unsafe {
            (self.api.rdma_reject)(id, data.as_ptr().cast(), data.len() as u8);
            destroy(self.api, id);
        }
    }

    fn accept(&mut self, id: *mut sys::Id) -> Result<*mut sys::Context, Error> {
        // SAFETY: the id is alive; a request comes by a device.
        let context = unsafe { (*id).verbs };
        if !self.devices.contains_key(&context) {
            let room = self.limits.connections.clamp(16, 4096) as c_int;
            let device = Device::new(self.api, context, &*self.memory, room)?;
            self.devices.insert(context, device);
        }
        let device = &self.devices[&context];
        let offer = self.offer(device).write();
        let mut attributes = attributes(device.queue);
        set_ack_timeout(self.api, id);
        let mut parameters = sys::ConnectionParameters {
            private_data: offer.as_ptr().cast(),
            private_data_length: offer.len() as u8,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: 0,
            retry_count: 3,
            rnr_retry_count: 3,
            shared_receive: 0,
            pair: 0,
        };
        // SAFETY: everything is alive, and the private data is copied.
        unsafe {
            if (self.api.rdma_create_qp)(id, device.domain, &mut attributes) != 0 {
                return Err(Error::system("rdma_create_qp"));
            }
            if (self.api.rdma_accept)(id, &mut parameters) != 0 {
                return Err(Error::system("rdma_accept"));
            }
        }
        Ok(context)
    }

    /// The page as it is now: as many bytes as its CPUs need.
    fn offer(&self, device: &Device) -> Offer {
        let address = self.memory.address();
        let number = |at: usize, bytes: usize| {
            (0..bytes).fold(0u64, |number, i| {
                // SAFETY: the memory is longer than the base of a record, as was checked when it
                // was registered.
                let byte = unsafe { address.add(at + i).read_volatile() };
                number | u64::from(byte) << (8 * i)
            })
        };
        let cpus = number(40, 4) as usize;
        let length = cpus.max(1).saturating_mul(CPU).saturating_add(CPUS);
        let most = (self.memory.length() - CPUS) / CPU * CPU + CPUS;
        Offer {
            address: address as u64,
            // SAFETY: the region lives as long as the device.
            key: unsafe { (*device.region).remote_key },
            length: length.min(most).min(LONGEST) as u32,
            epoch: number(24, 8),
        }
    }

    fn end(&mut self, id: *mut sys::Id) {
        if self.connections.remove(&id).is_some() {
            self.counters.ended += 1;
            // SAFETY: the id is alive, and nobody has it any more.
            unsafe { destroy(self.api, id) };
        }
    }

    /// Ends connections whose other side does not answer. A server takes no part in reads, so
    /// nothing else would tell it of a balancer that is switched off: it writes nothing, to
    /// nowhere, which the other device has to acknowledge.
    fn probe(&mut self) {
        let mut ended = Vec::new();
        for device in self.devices.values() {
            let mut completion = sys::Completion::zeroed();
            // SAFETY: the queue is alive; there is room for one completion.
            while unsafe {
                let poll = (*(*device.queue).context).poll_cq;
                poll(device.queue, 1, &mut completion)
            } > 0
            {
                let id = completion.work as usize as *mut sys::Id;
                match completion.status {
                    0 => {
                        if let Some(connection) = self.connections.get_mut(&id) {
                            connection.waiting = false;
                        }
                    }
                    _ => ended.push(id),
                }
            }
        }
        for (id, connection) in &mut self.connections {
            // Since the last time it was neither made nor has it answered.
            if std::mem::replace(&mut connection.waiting, true) {
                ended.push(*id);
            } else if connection.established {
                let mut work = sys::Work::new(*id as usize as u64, sys::WRITE);
                let mut bad = std::ptr::null_mut();
                // SAFETY: the id and its pair are alive. What is not posted is not answered.
                unsafe {
                    let pair = (**id).pair;
                    ((*(*pair).context).post_send)(pair, &mut work, &mut bad);
                }
            }
        }
        for id in ended {
            self.end(id);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for id in self.connections.keys() {
            // SAFETY: the id is alive, and nobody has it any more.
            unsafe {
                (self.api.rdma_disconnect)(*id);
                destroy(self.api, *id);
            }
        }
        // SAFETY: as above.
        unsafe { destroy(self.api, self.listener) };
        self.devices.clear();
    }
}

/// Attributes of a pair that does one thing at a time.
pub(super) fn attributes(queue: *mut sys::CompletionQueue) -> sys::PairAttributes {
    sys::PairAttributes {
        context: std::ptr::null_mut(),
        send_queue: queue,
        receive_queue: queue,
        shared_receive: std::ptr::null_mut(),
        max_sends: 2,
        max_receives: 1,
        max_send_parts: 1,
        max_receive_parts: 1,
        max_inline: 0,
        kind: sys::RELIABLE_CONNECTION,
        signal_all: 0,
    }
}

/// Destroys an id and its pair.
///
/// # Safety
///
/// The id is alive, its events are acknowledged, and nobody uses it any more.
pub(super) unsafe fn destroy(api: &Api, id: *mut sys::Id) {
    // SAFETY: see above.
    unsafe {
        if !(*id).pair.is_null() {
            (api.rdma_destroy_qp)(id);
        }
        (api.rdma_destroy_id)(id);
    }
}

impl Device {
    fn new(
        api: &'static Api,
        context: *mut sys::Context,
        memory: &dyn Memory,
        room: c_int,
    ) -> Result<Self, Error> {
        if memory.length() < CPUS + CPU {
            return Err(Error::BadOffer("the page is too short"));
        }
        let mut device = Device {
            api,
            domain: std::ptr::null_mut(),
            region: std::ptr::null_mut(),
            queue: std::ptr::null_mut(),
        };
        // SAFETY: the context is that of a device; the memory is what its trait promises.
        unsafe {
            device.domain = (api.ibv_alloc_pd)(context);
            if device.domain.is_null() {
                return Err(Error::system("ibv_alloc_pd"));
            }
            device.region = (api.ibv_reg_mr)(
                device.domain,
                memory.address().cast(),
                memory.length(),
                sys::ACCESS_REMOTE_READ,
            );
            if device.region.is_null() {
                return Err(Error::system("ibv_reg_mr"));
            }
            let null = std::ptr::null_mut();
            device.queue = (api.ibv_create_cq)(context, room, null, null.cast(), 0);
            if device.queue.is_null() {
                return Err(Error::system("ibv_create_cq"));
            }
        }
        Ok(device)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: connections are destroyed before their device.
        unsafe {
            if !self.queue.is_null() {
                (self.api.ibv_destroy_cq)(self.queue);
            }
            if !self.region.is_null() {
                (self.api.ibv_dereg_mr)(self.region);
            }
            if !self.domain.is_null() {
                (self.api.ibv_dealloc_pd)(self.domain);
            }
        }
    }
}

/// Kept here so that both sides make their descriptors the same way.
pub(super) fn completion_channel(
    api: &Api,
    context: *mut sys::Context,
) -> Result<*mut sys::CompletionChannel, Error> {
    // SAFETY: the context is that of a device.
    let channel = unsafe { (api.ibv_create_comp_channel)(context) };
    if channel.is_null() {
        return Err(Error::system("ibv_create_comp_channel"));
    }
    // SAFETY: the channel is alive, and its descriptor open as long.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw((*channel).fd) };
    never_block(fd)?;
    Ok(channel)
}
