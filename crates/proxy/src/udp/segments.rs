//! Datagrams that are sent with few system calls: many with one call (`sendmmsg`), and many in one
//! buffer, which the kernel divides (`UDP_SEGMENT`).

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr;

/// Number of datagrams that one system call receives or sends at most.
pub(crate) const BATCH: usize = 16;

/// Room for control messages of a datagram, in machine words: enough for an address, and a length of
/// segments.
pub(super) const CONTROL_WORDS: usize = 12;

/// Number of segments that the kernel takes in one buffer.
const MAX_SEGMENTS: usize = 64;

/// Most bytes that the kernel takes in one buffer, with all headers.
const MAX_BUFFER: usize = 65_000;

/// Address of this machine that a datagram came to, with the number of its network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(crate) ip: IpAddr,
    pub(super) interface: u32,
}

/// Datagrams one behind the other in a buffer, all of the same length but the last, which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments<'a> {
    bytes: &'a [u8],
    /// Length of each datagram but the last.
    len: usize,
}

impl<'a> Segments<'a> {
    /// Makes segments of a single datagram.
    pub(crate) fn single(bytes: &'a [u8]) -> Self {
        let len = bytes.len();
        Segments { bytes, len }
    }

    /// Makes segments of `len` bytes each, or of a single datagram if `len` is zero.
    pub(crate) fn new(bytes: &'a [u8], len: usize) -> Self {
        match len {
            0 => Segments::single(bytes),
            _ => Segments { bytes, len },
        }
    }

    /// Number of bytes in all datagrams.
    pub(crate) fn total_len(self) -> usize {
        self.bytes.len()
    }

    /// Number of datagrams.
    pub(crate) fn count(self) -> usize {
        self.bytes.len().div_ceil(self.len.max(1)).max(1)
    }

    /// Returns the datagrams one by one.
    pub(crate) fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let empty = self.bytes.is_empty().then_some(self.bytes);
        empty.into_iter().chain(self.bytes.chunks(self.len.max(1)))
    }

    /// Length of the segments for the kernel, if there are several.
    fn segment_len(self) -> Option<u16> {
        match self.count() {
            1 => None,
            _ => u16::try_from(self.len).ok(),
        }
    }

    /// Place and length for the kernel, which only reads the bytes.
    fn vector(self) -> libc::iovec {
        libc::iovec {
            iov_base: self.bytes.as_ptr().cast_mut().cast(),
            iov_len: self.bytes.len(),
        }
    }

    /// True if the kernel takes the segments in one buffer.
    fn fits_offload(self) -> bool {
        self.count() <= MAX_SEGMENTS && self.total_len() <= MAX_BUFFER
    }
}

/// Addresses of datagrams that are sent. A connected socket needs none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    pub(crate) to: Option<SocketAddr>,
    /// Address of this machine, if the socket has several.
    pub(crate) from: Option<Destination>,
}

/// Result of sending datagrams.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    /// Number of datagrams that were not sent.
    pub(crate) unsent: u64,
    /// Last error.
    pub(crate) error: Option<io::Error>,
}

impl Sent {
    fn count_sent(&mut self, segments: Segments<'_>) {
        self.datagrams += segments.count() as u64;
        self.bytes += segments.total_len() as u64;
    }

    fn count_unsent(&mut self, segments: Segments<'_>, error: io::Error) {
        self.unsent += segments.count() as u64;
        if !is_drop(&error) {
            self.error = Some(error);
        }
    }
}

/// True if the system has no room for a datagram, or a datagram is too long for the way: it is dropped,
/// as on the network.
pub(crate) fn is_drop(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// Sends datagrams with as few system calls as possible. Datagrams that the kernel does not take are left
/// out. After an error that tells of a datagram before (`ConnectionRefused`), the datagram is sent a
/// second time if `resend` is true, and otherwise no further ones are sent.
pub(crate) fn send_all<'a>(
    fd: RawFd,
    mut batch: impl Iterator<Item = Segments<'a>>,
    way: Way,
    resend: bool,
) -> Sent {
    let mut sent = Sent::default();
    while let Some(first) = batch.next() {
        let Some(second) = batch.next() else {
            send_list(fd, &[first], (way, resend), &mut sent);
            break;
        };
        let mut list = [first; BATCH];
        let mut count = 1;
        let others = [second].into_iter().chain(batch.by_ref());
        for (slot, segments) in list.iter_mut().skip(1).zip(others) {
            *slot = segments;
            count += 1;
        }
        let list = list.get(..count).unwrap_or_default();
        if !send_list(fd, list, (way, resend), &mut sent) {
            break;
        }
    }
    sent
}

/// Sends at most [`BATCH`] buffers of datagrams. Returns false if no further ones are to be sent.
fn send_list(
    fd: RawFd,
    mut rest: &[Segments<'_>],
    (way, resend): (Way, bool),
    sent: &mut Sent,
) -> bool {
    while let Some((first, behind)) = rest.split_first() {
        match send_group(fd, rest, way) {
            Ok(count) => {
                let (done, left) = rest.split_at(count.clamp(1, rest.len()));
                done.iter().for_each(|segments| sent.count_sent(*segments));
                rest = left;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let refused = error;
                if !resend {
                    rest.iter().for_each(|segments| {
                        sent.count_unsent(*segments, io::ErrorKind::ConnectionRefused.into());
                    });
                    return false;
                }
                send_apart(fd, *first, way, sent);
                sent.error = Some(refused);
                rest = behind;
            }
            Err(_) if first.count() > 1 => {
                send_apart(fd, *first, way, sent);
                rest = behind;
            }
            Err(error) => {
                sent.count_unsent(*first, error);
                rest = behind;
            }
        }
    }
    true
}

/// Sends segments one by one: the kernel, or the network card, cannot divide them.
fn send_apart(fd: RawFd, segments: Segments<'_>, way: Way, sent: &mut Sent) {
    for bytes in segments.iter() {
        let single = Segments::single(bytes);
        match send_message(fd, single, way) {
            Ok(()) => sent.count_sent(single),
            Err(error) => sent.count_unsent(single, error),
        }
    }
}

/// Sends a group of at most [`BATCH`], and returns how many of them the kernel has taken.
fn send_group(fd: RawFd, group: &[Segments<'_>], way: Way) -> io::Result<usize> {
    match group {
        [] => Ok(0),
        [single] => send_message(fd, *single, way).map(|()| 1),
        [first, ..] if !first.fits_offload() => Err(io::Error::from_raw_os_error(libc::EMSGSIZE)),
        _ => {
            let to = way.to.map(socket2::SockAddr::from);
            // Only what is used is written.
            let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
            let mut control = [const { MaybeUninit::<[u64; CONTROL_WORDS]>::uninit() }; BATCH];
            let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
            let mut count = 0;
            let slots = vectors.iter_mut().zip(&mut control).zip(&mut messages);
            let fitting = group.iter().take_while(|segments| segments.fits_offload());
            for (segments, ((vector, control), message)) in fitting.zip(slots) {
                let vector = vector.write(segments.vector());
                // SAFETY: plain data of C, for which zeros are valid.
                let message = message.write(unsafe { zeroed() });
                let addresses = (to.as_ref(), way.from);
                fill_head(
                    &mut message.msg_hdr,
                    (vector, control),
                    *segments,
                    addresses,
                );
                count += 1;
            }
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the first `count` messages are written, and lead to an address, a vector, bytes
            // and control messages that outlive the call, with their true lengths; the kernel only
            // reads them.
            let taken =
                unsafe { libc::sendmmsg(fd, messages.as_mut_ptr().cast(), count, flags as _) };
            usize::try_from(taken).map_err(|_| io::Error::last_os_error())
        }
    }
}

/// Sends the datagrams of one buffer.
pub(crate) fn send_message(fd: RawFd, segments: Segments<'_>, way: Way) -> io::Result<()> {
    let is_single = segments.count() == 1;
    if !is_single && !segments.fits_offload() {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    let to = way.to.map(socket2::SockAddr::from);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let result = if is_single && way.from.is_none() {
        let (name, len) = match &to {
            Some(to) => (to.as_ptr().cast(), to.len()),
            None => (ptr::null(), 0),
        };
        let vector = segments.vector();
        // SAFETY: bytes and address outlive the call, with their true lengths; the kernel only reads
        // them.
        unsafe { libc::sendto(fd, vector.iov_base, vector.iov_len, flags, name, len) }
    } else {
        let mut vector = segments.vector();
        // SAFETY: plain data of C, for which zeros are valid.
        let mut head: libc::msghdr = unsafe { zeroed() };
        let mut control = MaybeUninit::uninit();
        let addresses = (to.as_ref(), way.from);
        fill_head(&mut head, (&mut vector, &mut control), segments, addresses);
        // SAFETY: the head leads to an address, a vector, bytes and control messages that outlive
        // the call, with their true lengths; the kernel only reads them.
        unsafe { libc::sendmsg(fd, &raw const head, flags) }
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Fills in the head of a message, which then leads to `to`, the vector, the control messages and the bytes.
fn fill_head(
    head: &mut libc::msghdr,
    (vector, control): (&mut libc::iovec, &mut MaybeUninit<[u64; CONTROL_WORDS]>),
    segments: Segments<'_>,
    (to, from): (Option<&socket2::SockAddr>, Option<Destination>),
) {
    if let Some(to) = to {
        head.msg_name = to.as_ptr().cast_mut().cast();
        head.msg_namelen = to.len();
    }
    head.msg_iov = vector;
    head.msg_iovlen = 1;
    let segment_len = segments.segment_len();
    if from.is_none() && segment_len.is_none() {
        return;
    }
    let control = control.write([0; CONTROL_WORDS]);
    let mut room = ControlRoom {
        words: control,
        used: 0,
    };
    match from.map(|from| (from, from.ip)) {
        Some((_, IpAddr::V4(ip))) => {
            let info = libc::in_pktinfo {
                // The route to the client chooses the interface.
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from(ip).to_be(),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            room.put((libc::IPPROTO_IP, libc::IP_PKTINFO), info);
        }
        Some((from, IpAddr::V6(ip))) => {
            // An address of a link says nothing without its interface.
            let interface = match ip.is_unicast_link_local() {
                true => from.interface,
                false => 0,
            };
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                ipi6_ifindex: interface as _,
            };
            room.put((libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), info);
        }
        None => {}
    }
    if let Some(len) = segment_len {
        room.put((libc::SOL_UDP, libc::UDP_SEGMENT), len);
    }
    head.msg_controllen = room.used as _;
    head.msg_control = control.as_mut_ptr().cast();
}

/// Room in which control messages are written one behind the other.
struct ControlRoom<'a> {
    words: &'a mut [u64; CONTROL_WORDS],
    /// Number of bytes that are written.
    used: usize,
}

impl ControlRoom<'_> {
    /// Writes a control message, if there is room.
    fn put<T: Copy>(&mut self, (level, kind): (i32, i32), data: T) {
        // SAFETY: these compute lengths only.
        let (space, len) = unsafe {
            let size = size_of::<T>() as libc::c_uint;
            (libc::CMSG_SPACE(size) as usize, libc::CMSG_LEN(size))
        };
        let end = self.used + space;
        if end > size_of_val(self.words) {
            return;
        }
        // SAFETY: the room is aligned for the header, `used` is a multiple of its alignment (as each
        // CMSG_SPACE is), and header and data end within the room, as was checked.
        unsafe {
            let control = self
                .words
                .as_mut_ptr()
                .byte_add(self.used)
                .cast::<libc::cmsghdr>();
            (*control).cmsg_level = level;
            (*control).cmsg_type = kind;
            (*control).cmsg_len = len as _;
            let data_at = control.byte_add(libc::CMSG_LEN(0) as usize).cast::<T>();
            ptr::write_unaligned(data_at, data);
        }
        self.used = end;
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn segments_are_counted_and_come_one_by_one() {
        for (bytes, len, parts) in [
            (&b""[..], 0, &[&b""[..]][..]),
            (b"abc", 0, &[b"abc"]),
            (b"abc", 3, &[b"abc"]),
            (b"abc", 9, &[b"abc"]),
            (b"abcde", 2, &[b"ab", b"cd", b"e"]),
        ] {
            let segments = Segments::new(bytes, len);
            assert_eq!(segments.iter().collect::<Vec<_>>(), parts);
            assert_eq!(segments.count(), parts.len());
            assert_eq!(segments.total_len(), bytes.len());
        }
    }

    #[test]
    fn all_datagrams_arrive_alone_and_divided_by_the_kernel() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        let long = vec![7; 40_000];
        // The kernel takes no more than 64 segments: those go one by one.
        let many = vec![8; 70];
        let batch = [
            Segments::single(b"one"),
            Segments::single(b""),
            Segments::new(b"aabbc", 2),
            Segments::new(&long, 20_000),
            Segments::new(&many, 1),
            Segments::single(b"last"),
        ];
        let way = Way {
            to: Some(to),
            from: None,
        };
        let sent = send_all(sender.as_raw_fd(), batch.into_iter(), way, false);
        assert_eq!((sent.datagrams, sent.unsent), (78, 0));
        assert_eq!(sent.bytes, 3 + 5 + 40_000 + 70 + 4);
        assert!(sent.error.is_none());
        let mut buffer = vec![0; 65_535];
        for expected in batch.iter().flat_map(|segments| segments.iter()) {
            let len = receiver.recv(&mut buffer).unwrap();
            assert!(buffer[..len] == *expected, "{len} bytes");
        }
    }

    #[test]
    fn more_datagrams_than_a_call_takes_are_all_sent() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let all: Vec<u8> = (0..50).collect();
        let batch = all.chunks(1).map(Segments::single);
        let sent = send_all(sender.as_raw_fd(), batch, Way::default(), false);
        assert_eq!((sent.datagrams, sent.bytes), (50, 50));
        let mut buffer = [0; 2];
        for number in all {
            assert_eq!(receiver.recv(&mut buffer).unwrap(), 1);
            assert_eq!(buffer[0], number);
        }
    }

    #[test]
    fn a_datagram_that_nobody_takes_is_counted() {
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Not connected, and no address.
        let batch = [Segments::single(b"x"), Segments::new(b"abc", 1)];
        let sent = send_all(sender.as_raw_fd(), batch.into_iter(), Way::default(), false);
        assert_eq!((sent.datagrams, sent.unsent), (0, 4));
        assert!(sent.error.is_some());
    }
}
