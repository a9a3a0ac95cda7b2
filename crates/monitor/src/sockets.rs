//! Many datagrams with one call to the system.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use evenkeel_kernel::query::LONGEST;
use evenkeel_net::datagram;
use rustix::net::sockopt;
use socket2::SockAddr;

/// Most datagrams of one call.
pub const BATCH: usize = 64;

/// A byte more than the longest answer, which shows that one is longer.
const ROOM: usize = LONGEST + 1;

/// Bytes for what the system says of a datagram: when it came.
const CONTROL: usize = 64;

/// Size of the buffer that is asked of the system for each socket. Thousands of answers may wait while this
/// thread does not get a CPU; and questions to hosts that are down wait in the sender's buffer until their
/// link-layer address is given up, where they must not keep others back.
const BUFFER: usize = 32 * 1024 * 1024;

/// Longest time for which a datagram is taken to have waited before it was received.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A socket from which anybody can be asked, over IPv4 or IPv6.
pub fn open_socket(v6: bool) -> io::Result<UdpSocket> {
    let any: SocketAddr = if v6 {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    };
    let socket = datagram::open_socket(any, BUFFER, "monitor")?;
    if set_option(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_SNDBUFFORCE,
        BUFFER as libc::c_int,
    )
    .is_err()
    {
        sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
    }
    set_option(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    if !v6 {
        // Never in fragments, which responders do not answer: and the system then needs no
        // number for each datagram to put them together by.
        set_option(
            &socket,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        )?;
    }
    Ok(socket)
}

fn set_option(
    socket: &UdpSocket,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the option takes an int, whose address and size these are.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Datagrams that are about to be sent over one socket.
pub struct Outgoing {
    datagrams: Vec<(usize, SockAddr, Vec<u8>)>,
    count: usize,
}

impl Default for Outgoing {
    fn default() -> Self {
        let nowhere = SockAddr::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        let none = || (0, nowhere.clone(), Vec::with_capacity(LONGEST));
        Outgoing {
            datagrams: (0..BATCH).map(|_| none()).collect(),
            count: 0,
        }
    }
}

impl Outgoing {
    /// True if another datagram must wait until these are sent.
    pub fn is_full(&self) -> bool {
        self.count == BATCH
    }

    /// Adds a datagram; what is in `bytes` is swapped for a buffer to write the next to.
    pub fn push(&mut self, tag: usize, to: SocketAddr, bytes: &mut Vec<u8>) {
        if let Some(place) = self.datagrams.get_mut(self.count) {
            (place.0, place.1) = (tag, to.into());
            std::mem::swap(&mut place.2, bytes);
            self.count += 1;
        }
    }

    /// Sends none of them, and tells so of each.
    pub fn drop_all(&mut self, mut failed: impl FnMut(usize)) {
        let all = self.datagrams.iter().take(self.count);
        all.for_each(|(tag, ..)| failed(*tag));
        self.count = 0;
    }

    /// Sends all of them. `failed` is told the tags of those that the system did not take;
    /// they do not keep the others back.
    pub fn send(&mut self, socket: &UdpSocket, mut failed: impl FnMut(usize, &io::Error)) {
        let mut done = 0;
        while let Some(rest) = self.datagrams.get_mut(done..self.count)
            && let Some(&mut (tag, ..)) = rest.first_mut()
        {
            match send_some(socket, rest) {
                Ok(sent) => done += sent.max(1),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    failed(tag, &error);
                    done += 1;
                }
            }
        }
        self.count = 0;
    }
}

/// Sends the first few; an error is that of the very first one.
fn send_some(socket: &UdpSocket, all: &mut [(usize, SockAddr, Vec<u8>)]) -> io::Result<usize> {
    // SAFETY: both are plain data of C, for which all zeros are valid.
    let (mut vectors, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
        unsafe { std::mem::zeroed() };
    let mut count = 0;
    let places = vectors.iter_mut().zip(&mut messages);
    for ((_, to, bytes), (vector, message)) in all.iter_mut().zip(places) {
        vector.iov_base = bytes.as_mut_ptr().cast();
        vector.iov_len = bytes.len();
        message.msg_hdr.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_hdr.msg_namelen = to.len();
        message.msg_hdr.msg_iov = vector;
        message.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    // SAFETY: the first `count` messages point to addresses and buffers that live in `all`,
    // and to vectors above; the system only reads them.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Room for datagrams that come.
pub struct Incoming {
    bytes: Vec<[u8; ROOM]>,
    control: Vec<Control>,
    /// Datagrams that are there: how long they are, who has sent them, and how long ago they came.
    came: Vec<(usize, SocketAddr, Duration)>,
}

/// Aligned as the headers in it have to be.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Control([u8; CONTROL]);

impl Default for Incoming {
    fn default() -> Self {
        Incoming {
            bytes: vec![[0; ROOM]; BATCH],
            control: vec![Control([0; CONTROL]); BATCH],
            came: Vec::with_capacity(BATCH),
        }
    }
}

impl Incoming {
    /// Takes datagrams that are there, at most a batch, for [`Incoming::get`]. Answers how many
    /// there were.
    pub fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        self.came.clear();
        // SAFETY: plain data of C, for which all zeros are valid.
        let mut names: [libc::sockaddr_storage; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: as above, both.
        let (mut vectors, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { std::mem::zeroed() };
        let rooms = self.bytes.iter_mut().zip(&mut self.control);
        let places = names.iter_mut().zip(&mut vectors).zip(&mut messages);
        for ((bytes, control), ((name, vector), message)) in rooms.zip(places) {
            vector.iov_base = bytes.as_mut_ptr().cast();
            vector.iov_len = ROOM;
            let header = &mut message.msg_hdr;
            header.msg_name = (&raw mut *name).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL;
        }
        // SAFETY: all messages point to names, vectors, bytes and control buffers that live
        // until the end of this function, with their lengths.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                0,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        let now = realtime();
        for (message, name) in messages.iter().zip(&names).take(count) {
            let length = (message.msg_len as usize).min(ROOM);
            // SAFETY: the system has filled the header and what it points to.
            let came = unsafe { arrival(&message.msg_hdr) };
            // Somebody may have set the clock in between.
            let waited = came.and_then(|came| now.checked_sub(came));
            let waited = waited.unwrap_or_default().min(LONGEST_WAIT);
            // An address that is none is nobody's who was asked.
            let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let from = address(name).unwrap_or(nobody);
            self.came.push((length, from, waited));
        }
        Ok(count)
    }

    /// Returns a datagram of those that were received last, by its place among them: its bytes, its sender,
    /// and how long ago it came.
    pub fn get(&self, at: usize) -> Option<(&[u8], SocketAddr, Duration)> {
        let (length, from, waited) = *self.came.get(at)?;
        Some((self.bytes.get(at)?.get(..length)?, from, waited))
    }
}

/// Time since 1970.
fn realtime() -> Duration {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Returns the time when a datagram came, in time since 1970, by what the system says of it.
///
/// # Safety
///
/// `header` has been filled by the system, and its control buffer lives.
unsafe fn arrival(header: &libc::msghdr) -> Option<Duration> {
    // SAFETY: as the caller says.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: the macros give pointers to whole headers within the control buffer.
        let (kind, data) = unsafe { (&*next, libc::CMSG_DATA(next)) };
        let is_time = kind.cmsg_level == libc::SOL_SOCKET
            && kind.cmsg_type == libc::SCM_TIMESTAMPNS
            && kind.cmsg_len >= size_of::<libc::cmsghdr>() + size_of::<libc::timespec>();
        if is_time {
            // SAFETY: so many bytes are there, whatever their alignment.
            let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
            let seconds = u64::try_from(time.tv_sec).ok()?;
            let nanos = u32::try_from(time.tv_nsec)
                .ok()
                .filter(|n| *n < 1_000_000_000)?;
            return Some(Duration::new(seconds, nanos));
        }
        // SAFETY: `next` is a header of this buffer.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    None
}

fn address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let name = &raw const *name;
    // SAFETY: the storage is large and aligned enough for every kind of address, and was
    // all zeros before the system wrote to it.
    unsafe {
        match libc::c_int::from((*name).ss_family) {
            libc::AF_INET => {
                let v4 = &*name.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = &*name.cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn exchange(v6: bool, to: &str) {
        let (one, other) = (open_socket(v6).unwrap(), UdpSocket::bind(to).unwrap());
        let to = other.local_addr().unwrap();
        let mut outgoing = Outgoing::default();
        let mut bytes = Vec::new();
        for tag in 0..BATCH {
            assert!(!outgoing.is_full());
            bytes.clear();
            bytes.extend([tag as u8, 7]);
            // The system refuses to send to port 0.
            let refused = SocketAddr::new(to.ip(), 0);
            outgoing.push(tag, if tag % 5 == 3 { refused } else { to }, &mut bytes);
        }
        assert!(outgoing.is_full());
        let mut failed = Vec::new();
        outgoing.send(&one, |tag, _| failed.push(tag));
        let expected: Vec<usize> = (0..BATCH).filter(|tag| tag % 5 == 3).collect();
        assert_eq!(failed, expected, "and nobody else");
        assert!(!outgoing.is_full());
        let port = one.local_addr().unwrap().port();
        other.set_nonblocking(true).unwrap();
        let mut incoming = Incoming::default();
        let mut seen = Vec::new();
        let count = incoming.receive(&other).unwrap();
        assert_eq!(count, BATCH - expected.len());
        for (datagram, from, _) in (0..count).map(|at| incoming.get(at).unwrap()) {
            assert_eq!((from.ip(), from.port(), datagram[1]), (to.ip(), port, 7));
            seen.push(usize::from(datagram[0]));
        }
        assert_eq!(incoming.get(count), None);
        seen.extend(failed);
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..BATCH));
        let none = incoming.receive(&other);
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(incoming.get(0), None, "what came before has gone");
    }

    #[test]
    fn many_datagrams_go_at_once_and_one_that_fails_keeps_none_back() {
        exchange(false, "127.0.0.1:0");
        if UdpSocket::bind("[::1]:0").is_ok() {
            exchange(true, "[::1]:0");
        } else {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: many_datagrams_go_at_once_and_one_that_fails_keeps_none_back: no IPv6 here"
            );
        }
    }

    #[test]
    fn the_system_says_how_long_a_datagram_has_waited() {
        let socket = open_socket(false).unwrap();
        let port = socket.local_addr().unwrap().port();
        let long = [0; LONGEST + 100];
        let pause = Duration::from_millis(20);
        // The system begins with it a little after it was told to.
        for _ in 0..500 {
            socket.send_to(&long, ("127.0.0.1", port)).unwrap();
            std::thread::sleep(pause);
            let mut incoming = Incoming::default();
            assert_eq!(incoming.receive(&socket).unwrap(), 1);
            let (datagram, _, waited) = incoming.get(0).unwrap();
            assert_eq!(datagram.len(), ROOM, "longer than any that is right");
            if waited >= pause {
                return;
            }
        }
        panic!("it never says so");
    }
}
