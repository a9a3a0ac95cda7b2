//! The balancer's side: reads pages of many back-ends.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::address::raw_address;
use super::channel::{Channel, Happened, set_ack_timeout, text};
use super::error::Error;
use super::offer::{BAD, FULL, GREETING, NOT_ALLOWED, Offer, check_greeting, greeting};
use super::serve::{attributes, completion_channel, destroy};
use super::sys::{self, Api};
use crate::page::Follower;
use crate::record::{BadRecord, Record};

/// A connection to a back-end, of those of one [`Reader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

/// Number of attempts to read a page that is being written.
const READS: u32 = 4;
/// Time limit for the network to find a back-end, and then for a connection to come about.
const CONNECT: Duration = Duration::from_secs(3);
/// Time limit of a read. The device gives up long before: see [`set_ack_timeout`].
const READ: Duration = Duration::from_secs(3);
/// Pause before another attempt to connect: doubles from the first to the last.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Interval between checks of time limits.
const LOOK: Duration = Duration::from_millis(20);

/// Reads the pages of many back-ends from one task. Nothing blocks, and no back-end holds up
/// another one.
///
/// ```no_run
/// # use evenkeel_kernel::rdma::Reader;
/// # fn main() -> Result<(), evenkeel_kernel::rdma::Error> {
/// # let now = std::time::Instant::now();
/// let mut reader = Reader::new()?;
/// let one = reader.connect("10.0.0.1:9971".parse().expect("an address"), now);
/// loop {
///     reader.begin_read(one, now); // At an interval, that is.
///     reader.poll(now, |id, answer| match answer {
///         Ok(answer) => println!("{id:?}: {:?}", answer.record.base.totals),
///         Err(error) => println!("{id:?}: {error}"),
///     })?;
/// }
/// # }
/// ```
pub struct Reader {
    connections: HashMap<u64, Connection>,
    devices: HashMap<*mut sys::Context, Rc<Device>>,
    channel: Channel,
    events: OwnedFd,
    api: &'static Api,
    next: u64,
    look_at: Option<Instant>,
}

// SAFETY: the libraries may be called from any thread, and what is theirs is only used by
// methods that have the reader for themselves.
unsafe impl Send for Reader {}

/// Record that was read, and how.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The record, with its totals made from the entries of its CPUs where these are newer.
    pub record: Record<'a>,
    /// Time from asking for the record to having it.
    pub round_trip: Duration,
    /// Number of times that the page was read until the record was whole.
    pub reads: u32,
}

struct Connection {
    address: SocketAddr,
    link: Option<Link>,
    try_at: Instant,
    back_off: Duration,
    follower: Follower,
}

/// A device, and where it tells of finished reads.
struct Device {
    api: &'static Api,
    context: *mut sys::Context,
    domain: *mut sys::Domain,
    completions: *mut sys::CompletionChannel,
}

/// A connection while there is one, or one is being made.
struct Link {
    api: &'static Api,
    id: *mut sys::Id,
    device: Option<Rc<Device>>,
    queue: *mut sys::CompletionQueue,
    region: *mut sys::Region,
    buffer: Vec<u8>,
    offer: Option<Offer>,
    reading: Option<Reading>,
    limit: Instant,
}

#[derive(Clone, Copy)]
struct Reading {
    since: Instant,
    reads: u32,
}

impl Reader {
    /// Reads nothing yet.
    ///
    /// # Errors
    ///
    /// No libraries or no device.
    pub fn new() -> Result<Self, Error> {
        let api = sys::load_api()?;
        let channel = Channel::new(api)?;
        let system = |error: rustix::io::Errno| Error::System("epoll", error.into());
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&events, channel.fd(), data, epoll::EventFlags::IN).map_err(system)?;
        Ok(Reader {
            connections: HashMap::new(),
            devices: HashMap::new(),
            channel,
            events,
            api,
            next: 0,
            look_at: None,
        })
    }

    /// Begins to connect to a back-end, and does so again whenever the connection is lost,
    /// after longer and longer times.
    pub fn connect(&mut self, address: SocketAddr, now: Instant) -> ConnectionId {
        self.next += 1;
        let connection = Connection {
            address,
            link: None,
            try_at: now,
            back_off: BACK_OFF.0,
            follower: Follower::default(),
        };
        self.connections.insert(self.next, connection);
        self.look_at = None;
        ConnectionId(self.next)
    }

    /// Closes a connection.
    pub fn close(&mut self, id: ConnectionId) {
        self.connections.remove(&id.0);
    }

    /// Begins to read. Says whether there is a connection that is not being read already.
    pub fn begin_read(&mut self, id: ConnectionId, now: Instant) -> bool {
        let link = self.connections.get_mut(&id.0);
        match link.and_then(|connection| connection.link.as_mut()) {
            Some(link) if link.offer.is_some() && link.reading.is_none() => {
                link.reading = Some(Reading {
                    since: now,
                    reads: 1,
                });
                link.limit = now + READ;
                // What cannot be posted runs into the limit of time.
                link.post(id.0);
                true
            }
            _ => false,
        }
    }

    /// Returns true if there is a connection.
    pub fn is_connected(&self, id: ConnectionId) -> bool {
        let link = self.connections.get(&id.0);
        link.and_then(|connection| connection.link.as_ref())
            .is_some_and(|link| link.offer.is_some())
    }

    /// Does the pending work, and hands out what was read and what went wrong. Call it when [the
    /// descriptor](AsFd) can be read, and every 20 ms or so beside that, for the time limits.
    ///
    /// # Errors
    ///
    /// The libraries fail: there is no more to come.
    pub fn poll(
        &mut self,
        now: Instant,
        mut each: impl FnMut(ConnectionId, Result<Answer<'_>, Error>),
    ) -> Result<(), Error> {
        while let Some(happened) = self.channel.next()? {
            if let Err((id, error)) = self.handle(&happened, now) {
                self.lose(id, now);
                each(ConnectionId(id), Err(error));
            }
        }
        let devices: Vec<_> = self.devices.values().cloned().collect();
        for device in devices {
            while let Some((queue, id)) = device.next() {
                let known = self.connections.get_mut(&id);
                let Some(connection) = known else { continue };
                let link = connection.link.as_mut();
                let Some(link) = link.filter(|link| link.queue == queue) else {
                    continue;
                };
                if let Err(error) = link.finish(id, &mut connection.follower, now, &mut each) {
                    self.lose(id, now);
                    each(ConnectionId(id), Err(error));
                }
            }
        }
        if self.look_at.is_none_or(|at| at <= now) {
            self.look_at = Some(now + LOOK);
            self.look(now, &mut each);
        }
        Ok(())
    }

    /// Connects where it is time to, and gives up where it is.
    fn look(
        &mut self,
        now: Instant,
        each: &mut impl FnMut(ConnectionId, Result<Answer<'_>, Error>),
    ) {
        let mut lost = Vec::new();
        for (id, connection) in &mut self.connections {
            match &connection.link {
                None if connection.try_at <= now => {
                    match Link::open(self.api, &self.channel, *id, connection.address, now) {
                        Ok(link) => connection.link = Some(link),
                        Err(error) => lost.push((*id, error)),
                    }
                }
                Some(link) if link.limit <= now && link.is_waiting() => {
                    lost.push((*id, Error::TimedOut));
                }
                _ => {}
            }
        }
        for (id, error) in lost {
            self.lose(id, now);
            each(ConnectionId(id), Err(error));
        }
    }

    fn lose(&mut self, id: u64, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.link = None;
            // Up to half as long again, so that the readers of a back-end that was restarted
            // do not all come at once; the id is as good as chance for that.
            let spread = (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u32;
            connection.try_at = now + connection.back_off + connection.back_off * spread / 512;
            connection.back_off = (connection.back_off * 2).min(BACK_OFF.1);
        }
        self.devices
            .retain(|_, device| Rc::strong_count(device) > 1);
    }

    fn handle(&mut self, happened: &Happened, now: Instant) -> Result<(), (u64, Error)> {
        // Of an id that was destroyed there are no events any more.
        // SAFETY: so this one is alive; its context is the number that it was given.
        let number = unsafe { (*happened.id).context } as usize as u64;
        let connection = self.connections.get_mut(&number);
        let Some(connection) = connection else {
            return Ok(());
        };
        let Some(link) = connection.link.as_mut() else {
            return Ok(());
        };
        let fail = |error| (number, error);
        match happened.kind {
            sys::ADDRESS_RESOLVED => {
                // SAFETY: the id is alive, and has a device now.
                let context = unsafe { (*link.id).verbs };
                let device = match self.devices.get(&context) {
                    Some(device) => device.clone(),
                    None => {
                        let device = Device::new(self.api, context, &self.events).map_err(fail)?;
                        self.devices
                            .entry(context)
                            .or_insert(Rc::new(device))
                            .clone()
                    }
                };
                link.prepare(number, device).map_err(fail)
            }
            sys::ROUTE_RESOLVED => link.connect().map_err(fail),
            sys::ESTABLISHED => {
                link.accepted(&happened.private_data).map_err(fail)?;
                link.limit = now + READ;
                connection.back_off = BACK_OFF.0;
                Ok(())
            }
            sys::REJECTED => Err(fail(refusal(&happened.private_data))),
            sys::DISCONNECTED | sys::DEVICE_REMOVED => Err(fail(Error::Closed)),
            sys::TIME_WAIT_EXIT => Ok(()),
            kind => {
                // SAFETY: the text is the library's.
                let what = unsafe { text((self.api.rdma_event_str)(kind as c_uint)) };
                let why = std::io::Error::from_raw_os_error(happened.status.saturating_neg());
                Err(fail(Error::NoConnection(format!("{what}: {why}"))))
            }
        }
    }
}

impl AsFd for Reader {
    /// Can be read when [`Reader::poll`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Before their devices and the channel.
        self.connections.clear();
    }
}

/// Makes an error of the reason that the other side gives for refusing a connection.
fn refusal(private_data: &[u8]) -> Error {
    let reason = check_greeting(private_data)
        .ok()
        .and_then(|()| private_data.get(GREETING));
    let why = match reason {
        Some(&NOT_ALLOWED) => "the server does not allow this address to read",
        Some(&FULL) => "the server has too many readers",
        Some(&BAD) => "the server uses another version of the protocol",
        _ => "the server offers no load page",
    };
    Error::NoConnection(why.into())
}

impl Link {
    fn open(
        api: &'static Api,
        channel: &Channel,
        number: u64,
        address: SocketAddr,
        now: Instant,
    ) -> Result<Self, Error> {
        let id = channel.create_id(number)?;
        let link = Link {
            api,
            id,
            device: None,
            queue: std::ptr::null_mut(),
            region: std::ptr::null_mut(),
            buffer: Vec::new(),
            offer: None,
            reading: None,
            limit: now + CONNECT,
        };
        set_ack_timeout(api, id);
        let mut raw = raw_address(address);
        let limit = CONNECT.as_millis() as _;
        // SAFETY: the id is alive; the address is copied.
        match unsafe {
            (api.rdma_resolve_addr)(id, std::ptr::null_mut(), (&raw mut raw).cast(), limit)
        } {
            0 => Ok(link),
            _ => Err(Error::system("rdma_resolve_addr")),
        }
    }

    /// Returns true if the link waits for something that has a time limit.
    fn is_waiting(&self) -> bool {
        self.offer.is_none() || self.reading.is_some()
    }

    fn prepare(&mut self, number: u64, device: Rc<Device>) -> Result<(), Error> {
        let context = number as usize as *mut _;
        // SAFETY: the id and the device are alive, the device as long as this link has it.
        unsafe {
            self.queue =
                (self.api.ibv_create_cq)(device.context, 4, context, device.completions, 0);
            if self.queue.is_null() {
                return Err(Error::system("ibv_create_cq"));
            }
            if ((*device.context).req_notify_cq)(self.queue, 0) != 0 {
                return Err(Error::system("ibv_req_notify_cq"));
            }
            let mut attributes = attributes(self.queue);
            let made = (self.api.rdma_create_qp)(self.id, device.domain, &mut attributes);
            self.device = Some(device);
            if made != 0 {
                return Err(Error::system("rdma_create_qp"));
            }
            match (self.api.rdma_resolve_route)(self.id, CONNECT.as_millis() as _) {
                0 => Ok(()),
                _ => Err(Error::system("rdma_resolve_route")),
            }
        }
    }

    fn connect(&mut self) -> Result<(), Error> {
        let greeting = greeting();
        let mut parameters = sys::ConnectionParameters {
            private_data: greeting.as_ptr().cast(),
            private_data_length: greeting.len() as u8,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: 0,
            retry_count: 3,
            rnr_retry_count: 3,
            shared_receive: 0,
            pair: 0,
        };
        // SAFETY: the id is alive; the private data is copied.
        match unsafe { (self.api.rdma_connect)(self.id, &mut parameters) } {
            0 => Ok(()),
            _ => Err(Error::system("rdma_connect")),
        }
    }

    fn accepted(&mut self, private_data: &[u8]) -> Result<(), Error> {
        let offer = Offer::parse(private_data)?;
        let device = self.device.as_ref().ok_or(Error::Closed)?;
        self.buffer = vec![0; offer.length as usize];
        // SAFETY: a device has a context, and that its device.
        let transport = unsafe { (*(*device.context).device).transport };
        let access = match transport {
            // There the answer to a read is a write by the other side into what it was told.
            sys::TRANSPORT_IWARP => sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE,
            _ => sys::ACCESS_LOCAL_WRITE,
        };
        let (address, length) = (self.buffer.as_mut_ptr(), self.buffer.len());
        // SAFETY: the buffer stays where it is until the region is gone: see `drop`.
        self.region =
            unsafe { (self.api.ibv_reg_mr)(device.domain, address.cast(), length, access) };
        if self.region.is_null() {
            return Err(Error::system("ibv_reg_mr"));
        }
        self.offer = Some(offer);
        Ok(())
    }

    fn post(&mut self, number: u64) -> bool {
        let Some(offer) = self.offer else {
            return false;
        };
        let mut part = sys::Part {
            address: self.buffer.as_ptr() as u64,
            length: offer.length,
            // SAFETY: where there is an offer there is a region.
            key: unsafe { (*self.region).local_key },
        };
        let mut work = sys::Work::new(number, sys::READ);
        work.parts = &mut part;
        work.number_of_parts = 1;
        work.remote_address = offer.address;
        work.remote_key = offer.key;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the id has a pair, and that a context; the work is copied.
        unsafe {
            let pair = (*self.id).pair;
            ((*(*pair).context).post_send)(pair, &mut work, &mut bad) == 0
        }
    }

    /// Takes what is finished.
    fn finish(
        &mut self,
        number: u64,
        follower: &mut Follower,
        now: Instant,
        each: &mut impl FnMut(ConnectionId, Result<Answer<'_>, Error>),
    ) -> Result<(), Error> {
        let mut completion = sys::Completion::zeroed();
        // SAFETY: the queue and its context are alive; there is room for one completion.
        while unsafe { ((*(*self.queue).context).poll_cq)(self.queue, 1, &mut completion) } > 0 {
            if completion.status != 0 {
                // SAFETY: the text is the library's.
                let why = unsafe { text((self.api.ibv_wc_status_str)(completion.status)) };
                return Err(Error::Read(why));
            }
            let Some(reading) = self.reading.take() else {
                continue;
            };
            // The device has written: what is in the buffer is not what the compiler knows.
            let bytes = std::hint::black_box(self.buffer.as_slice());
            match follower.read(bytes, reading.reads >= READS) {
                Ok(record) => {
                    let answer = Answer {
                        record,
                        round_trip: now.saturating_duration_since(reading.since),
                        reads: reading.reads,
                    };
                    each(ConnectionId(number), Ok(answer));
                }
                Err(BadRecord::Torn) if reading.reads < READS => {
                    self.reading = Some(Reading {
                        reads: reading.reads + 1,
                        ..reading
                    });
                    self.post(number);
                }
                Err(BadRecord::Torn) => {
                    each(ConnectionId(number), Err(BadRecord::Torn.into()));
                }
                // It will not get better by asking the same again soon.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: nobody else has them; the pair is destroyed before what it uses.
        unsafe {
            if self.offer.is_some() {
                (self.api.rdma_disconnect)(self.id);
            }
            destroy(self.api, self.id);
            if !self.queue.is_null() {
                (self.api.ibv_destroy_cq)(self.queue);
            }
            if !self.region.is_null() {
                (self.api.ibv_dereg_mr)(self.region);
            }
        }
    }
}

impl Device {
    fn new(api: &'static Api, context: *mut sys::Context, events: &OwnedFd) -> Result<Self, Error> {
        let mut device = Device {
            api,
            context,
            domain: std::ptr::null_mut(),
            completions: std::ptr::null_mut(),
        };
        device.completions = completion_channel(api, context)?;
        // SAFETY: the channel is alive, and its descriptor open as long.
        let fd = unsafe { BorrowedFd::borrow_raw((*device.completions).fd) };
        let data = epoll::EventData::new_u64(1);
        epoll::add(events, fd, data, epoll::EventFlags::IN)
            .map_err(|error| Error::System("epoll", error.into()))?;
        // SAFETY: the context is that of a device.
        device.domain = unsafe { (api.ibv_alloc_pd)(context) };
        if device.domain.is_null() {
            Err(Error::system("ibv_alloc_pd"))
        } else {
            Ok(device)
        }
    }

    /// The next queue with something finished, and the number of its connection. It tells of
    /// the next one again after that.
    fn next(&self) -> Option<(*mut sys::CompletionQueue, u64)> {
        let mut queue = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        // SAFETY: the channel is alive. A queue that is gone has no events.
        unsafe {
            match (self.api.ibv_get_cq_event)(self.completions, &mut queue, &mut context) {
                0 => {
                    (self.api.ibv_ack_cq_events)(queue, 1);
                    // Asked for before the queue is emptied, so that nothing is missed.
                    ((*self.context).req_notify_cq)(queue, 0);
                    Some((queue, context as usize as u64))
                }
                _ => None,
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: links hold their device, so there are none any more.
        unsafe {
            if !self.domain.is_null() {
                (self.api.ibv_dealloc_pd)(self.domain);
            }
            if !self.completions.is_null() {
                (self.api.ibv_destroy_comp_channel)(self.completions);
            }
        }
    }
}
