//! Sockets for datagrams of clients: many are received with one system call, and an answer leaves
//! from the address that its client has addressed.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket as StdSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::segments::{BATCH, CONTROL_WORDS, Destination, Segments, Sent, Way, send_all};

/// Length of the longest datagram, in bytes.
pub(crate) const MAX_DATAGRAM: usize = 65_535;

/// Fewest datagrams that a call asks for: one more than there is if datagrams come one at a time, so that
/// the same call says that there is no other one.
const FEWEST: usize = 2;

/// A socket of which the runtime says when a datagram or an error has come. The runtime does not say when
/// there is room to send: that would wake the task for each datagram that has left. No call on the socket
/// waits, whatever its mode.
#[derive(Debug)]
pub(crate) struct DatagramSocket(AsyncFd<StdSocket>);

impl DatagramSocket {
    pub(crate) fn new(socket: StdSocket) -> io::Result<Self> {
        // SAFETY: the socket owns its descriptor, which stays the same while it is registered.
        let watched = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
        Ok(DatagramSocket(watched))
    }

    /// Receives at most `limit` datagrams into `batch`. With a limit of one, the socket must be connected
    /// and without offload.
    pub(crate) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        limit: usize,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            match batch.receive(self.as_raw_fd(), limit) {
                Ok(is_drained) => {
                    // The runtime learns it without a call that finds nothing.
                    if is_drained {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Returns the error that an ICMP message has brought, or has the task woken by the first one. After
    /// the first one the task is not woken by others.
    pub(crate) fn poll_error(&self, cx: &mut Context<'_>) -> Option<io::Error> {
        match self.0.poll_write_ready(cx) {
            Poll::Pending => None,
            Poll::Ready(Err(error)) => Some(error),
            Poll::Ready(Ok(_)) => match SockRef::from(self.0.get_ref()).take_error() {
                Ok(error) => error,
                Err(error) => Some(error),
            },
        }
    }
}

impl AsRawFd for DatagramSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.get_ref().as_raw_fd()
    }
}

/// A socket at which datagrams of clients arrive.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    socket: DatagramSocket,
    /// True if the socket has all addresses of this machine: each datagram says where it came to.
    is_wildcard: bool,
}

impl ClientSocket {
    pub(crate) fn new(socket: StdSocket) -> io::Result<Self> {
        let local = socket.local_addr()?;
        let is_wildcard = local.ip().is_unspecified();
        if is_wildcard {
            let option = match local {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            };
            set_option(socket.as_raw_fd(), option, 1)?;
        }
        socket.set_nonblocking(true)?;
        Ok(ClientSocket {
            socket: DatagramSocket::new(socket)?,
            is_wildcard,
        })
    }

    /// Lets the kernel give datagrams of a client in one buffer, or not. A kernel without that gives each
    /// by itself.
    pub(crate) fn set_offload(&self, enabled: bool) {
        set_offload(self.socket.as_raw_fd(), enabled);
    }

    /// The socket under a handle of its own.
    pub(crate) fn clone_handle(&self) -> io::Result<OwnedFd> {
        let handle = SockRef::from(self.socket.0.get_ref()).try_clone()?;
        Ok(handle.into())
    }

    /// Receives datagrams into `batch`, as many as there are and have room.
    pub(crate) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
    ) -> Poll<io::Result<()>> {
        self.socket.poll_receive(cx, batch, BATCH)
    }

    /// Sends answers to a client, from the address that the client has addressed.
    pub(crate) fn send_answers<'a>(
        &self,
        answers: impl Iterator<Item = Segments<'a>>,
        client: SocketAddr,
        from: Option<Destination>,
    ) -> Sent {
        let way = Way {
            to: Some(client),
            from: from.filter(|_| self.is_wildcard),
        };
        send_all(self.socket.as_raw_fd(), answers, way, true)
    }
}

/// Datagrams that were received with one system call.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Room for [`BATCH`] datagrams of [`MAX_DATAGRAM`] bytes. The system gives memory only to pages
    /// that datagrams have reached.
    bytes: Vec<u8>,
    heads: Vec<Head>,
    /// True if the addresses of clients are wanted.
    has_clients: bool,
    /// Number of datagrams that the next call asks for: few if few have come last.
    room: usize,
}

/// Length and addresses of a datagram in a [`Batch`].
#[derive(Clone, Copy, Debug)]
struct Head {
    len: usize,
    client: Option<SocketAddr>,
    destination: Option<Destination>,
    /// Length of each of the datagrams that the kernel has put together.
    segment: usize,
}

/// A datagram of a client, or several that the kernel has put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) segments: Segments<'a>,
    pub(crate) client: SocketAddr,
    /// Destination, if the socket has several addresses.
    pub(crate) destination: Option<Destination>,
}

impl Batch {
    /// Makes room for datagrams of clients, with their addresses, or for those of a connected socket.
    pub(crate) fn new(has_clients: bool) -> Self {
        Batch {
            bytes: vec![0; BATCH * MAX_DATAGRAM],
            heads: Vec::with_capacity(BATCH),
            has_clients,
            room: FEWEST,
        }
    }

    /// Returns the datagrams that were received last.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> + Clone {
        let slots = self.bytes.chunks_exact(MAX_DATAGRAM).zip(&self.heads);
        slots.filter_map(|(slot, head)| {
            Some(Datagram {
                segments: Segments::new(slot.get(..head.len)?, head.segment),
                client: head.client?,
                destination: head.destination,
            })
        })
    }

    /// Returns the datagrams that were received last from a connected socket.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segments<'_>> {
        let slots = self.bytes.chunks_exact(MAX_DATAGRAM).zip(&self.heads);
        slots.filter_map(|(slot, head)| {
            let bytes = slot.get(..head.len)?;
            Some(Segments::new(bytes, head.segment))
        })
    }

    /// Receives at most `limit` datagrams, or buffers of datagrams. Returns true if there is no other one.
    fn receive(&mut self, fd: RawFd, limit: usize) -> io::Result<bool> {
        self.heads.clear();
        if limit == 1 {
            return self.receive_single(fd).map(|()| false);
        }
        let room = self.room.min(limit);
        let count = self.receive_several(fd, room)?;
        self.room = match count {
            _ if count == room => BATCH,
            _ if count < room / 2 => FEWEST.max(room / 2),
            _ => room,
        };
        Ok(count < room)
    }

    /// Receives a datagram from a connected socket without offload.
    fn receive_single(&mut self, fd: RawFd) -> io::Result<()> {
        let slot = self.bytes.get_mut(..MAX_DATAGRAM).unwrap_or_default();
        // SAFETY: the slot has the length that is given, and outlives the call.
        let len =
            unsafe { libc::recv(fd, slot.as_mut_ptr().cast(), slot.len(), libc::MSG_DONTWAIT) };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        self.heads.push(Head {
            len: len.min(MAX_DATAGRAM),
            client: None,
            destination: None,
            segment: 0,
        });
        Ok(())
    }

    /// Receives at most `room` datagrams, or buffers of datagrams, and returns their number.
    fn receive_several(&mut self, fd: RawFd, room: usize) -> io::Result<usize> {
        // Only what is used is written: most calls use little.
        let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; BATCH];
        let mut control = [const { MaybeUninit::<[u64; CONTROL_WORDS]>::uninit() }; BATCH];
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
        let room = room.min(BATCH);
        let slots = self.bytes.chunks_exact_mut(MAX_DATAGRAM).take(room);
        for ((((slot, vector), message), name), control) in slots
            .zip(&mut vectors)
            .zip(&mut messages)
            .zip(&mut names)
            .zip(&mut control)
        {
            let vector = vector.write(libc::iovec {
                iov_base: slot.as_mut_ptr().cast(),
                iov_len: slot.len(),
            });
            // SAFETY: plain data of C, for which zeros are valid.
            let message = message.write(unsafe { zeroed() });
            let head = &mut message.msg_hdr;
            if self.has_clients {
                head.msg_name = name.as_mut_ptr().cast();
                head.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            }
            head.msg_iov = vector;
            head.msg_iovlen = 1;
            head.msg_control = control.as_mut_ptr().cast();
            head.msg_controllen = size_of::<[u64; CONTROL_WORDS]>() as _;
        }
        // SAFETY: the first `room` messages are written, and each leads to a name, a vector, bytes and
        // room for control messages that outlive the call, with their true lengths; no two messages
        // share any of them.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                messages.as_mut_ptr().cast(),
                room as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (message, name) in messages.iter().zip(&names).take(count.min(room)) {
            // SAFETY: the first `room` messages are written, and `name` is what this message leads to.
            let (message, client) = unsafe {
                let message = message.assume_init_ref();
                (message, read_name(name, message.msg_hdr.msg_namelen))
            };
            let control = read_control(&message.msg_hdr);
            self.heads.push(Head {
                len: (message.msg_len as usize).min(MAX_DATAGRAM),
                client,
                destination: control.destination,
                segment: control.segment,
            });
        }
        Ok(count)
    }
}

/// Reads an address that the kernel has written.
///
/// # Safety
///
/// The first `len` bytes of `name` are written.
unsafe fn read_name(
    name: &MaybeUninit<libc::sockaddr_storage>,
    len: libc::socklen_t,
) -> Option<SocketAddr> {
    let (name, len) = (name.as_ptr(), len as usize);
    if len < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: the family is within these bytes.
    let family = unsafe { (&raw const (*name).ss_family).read() };
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the storage is aligned for all kinds of addresses, and has one of IPv4.
            let name = unsafe { &*name.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some((ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above, for IPv6.
            let name = unsafe { &*name.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Control messages of a datagram.
#[derive(Default)]
struct Control {
    destination: Option<Destination>,
    segment: usize,
}

/// Reads the control messages of a datagram.
fn read_control(head: &libc::msghdr) -> Control {
    let mut found = Control::default();
    // SAFETY: the kernel has filled in the room for control messages, and its length.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(head) };
    while !next.is_null() {
        // SAFETY: not null, so a whole header within the room.
        let control = unsafe { &*next };
        // SAFETY: the data of the message begins behind its header.
        let data = unsafe { libc::CMSG_DATA(next) };
        match (control.cmsg_level, control.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: the kernel writes this structure for this type of message.
                let info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                found.destination = Some(Destination {
                    ip: Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr)).into(),
                    interface: info.ipi_ifindex as u32,
                });
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: as above.
                let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                found.destination = Some(Destination {
                    ip: Ipv6Addr::from(info.ipi6_addr.s6_addr).into(),
                    interface: info.ipi6_ifindex as u32,
                });
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                // SAFETY: as above.
                let len = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                found.segment = usize::try_from(len).unwrap_or_default();
            }
            _ => {}
        }
        // SAFETY: the message is one of these.
        next = unsafe { libc::CMSG_NXTHDR(head, next) };
    }
    found
}

/// Has the kernel fragment datagrams to `member` that are too long for the way. Otherwise an ICMP
/// message about the length would be an error of the socket, as if the member were gone.
pub(crate) fn ignore_path_mtu(socket: &impl AsRawFd, member: SocketAddr) -> io::Result<()> {
    let (option, value) = match member {
        SocketAddr::V4(_) => (
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            libc::IP_PMTUDISC_DONT,
        ),
        SocketAddr::V6(_) => (
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
            libc::IPV6_PMTUDISC_DONT,
        ),
    };
    set_option(socket.as_raw_fd(), option, value)
}

/// Lets the kernel give datagrams that came one behind the other in one buffer, or not. A kernel without
/// that gives each by itself.
pub(crate) fn set_offload(fd: RawFd, enabled: bool) {
    if let Err(error) = set_option(fd, (libc::SOL_UDP, libc::UDP_GRO), enabled.into()) {
        tracing::debug!(%error, "the kernel gives each datagram by itself");
    }
}

/// Sets an option of a socket.
fn set_option(fd: RawFd, (level, name): (i32, i32), value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value outlives the call, and has that length.
    match unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn receive(socket: &ClientSocket, batch: &mut Batch) {
        std::future::poll_fn(|cx| socket.poll_receive(cx, batch))
            .await
            .unwrap();
    }

    async fn answers_leave_from_the_address_that_was_asked(wildcard: &str, asked: &[&str]) {
        let Ok(socket) = StdSocket::bind((wildcard, 0)) else {
            return;
        };
        let port = socket.local_addr().unwrap().port();
        let socket = ClientSocket::new(socket).unwrap();
        let mut batch = Batch::new(true);
        for ip in asked {
            let client = StdSocket::bind((wildcard, 0)).unwrap();
            for bytes in [&b"one"[..], b"", &[7; 60_000]] {
                client.send_to(bytes, (*ip, port)).unwrap();
                receive(&socket, &mut batch).await;
                let all: Vec<_> = batch.datagrams().collect();
                let [datagram] = all[..] else {
                    panic!("{} datagrams", all.len());
                };
                assert!(datagram.segments == Segments::single(bytes));
                assert_eq!(datagram.destination.unwrap().ip.to_string(), *ip);
                let answers = [Segments::single(b"answer")].into_iter();
                let sent = socket.send_answers(answers, datagram.client, datagram.destination);
                assert!(sent.error.is_none());
                let mut answer = [0; 10];
                let (len, from) = client.recv_from(&mut answer).unwrap();
                assert_eq!(&answer[..len], b"answer");
                assert_eq!((from.ip().to_string(), from.port()), ((*ip).into(), port));
            }
        }
    }

    #[tokio::test]
    async fn an_answer_leaves_from_the_address_that_was_asked() {
        let asked = ["127.0.0.1", "127.0.0.9", "127.8.7.6"];
        answers_leave_from_the_address_that_was_asked("0.0.0.0", &asked).await;
        answers_leave_from_the_address_that_was_asked("::", &["::1"]).await;
    }

    #[tokio::test]
    async fn many_datagrams_come_with_one_call() {
        let socket = StdSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let client = StdSocket::bind("127.0.0.1:0").unwrap();
        for number in 0..20_u8 {
            client.send_to(&[number], address).unwrap();
        }
        let socket = ClientSocket::new(socket).unwrap();
        let mut batch = Batch::new(true);
        let mut all = Vec::new();
        // The first call asks for few; as there are more, the second one asks for many.
        for count in [FEWEST, BATCH, 20 - BATCH - FEWEST] {
            receive(&socket, &mut batch).await;
            assert_eq!(batch.datagrams().count(), count);
            let bytes = batch.segments().flat_map(Segments::iter);
            all.extend(bytes.map(|bytes| bytes[0]));
            assert!(batch.datagrams().all(|one| one.destination.is_none()));
        }
        assert_eq!(all, (0..20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn datagrams_in_one_buffer_are_told_apart() {
        for enabled in [true, false] {
            let socket = StdSocket::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            let socket = ClientSocket::new(socket).unwrap();
            socket.set_offload(enabled);
            let client = StdSocket::bind("127.0.0.1:0").unwrap();
            let way = Way {
                to: Some(address),
                from: None,
            };
            let sent = Segments::new(b"aabbc", 2);
            send_all(client.as_raw_fd(), [sent].into_iter(), way, false);
            let mut batch = Batch::new(true);
            let mut all = Vec::new();
            while all.len() < 3 {
                receive(&socket, &mut batch).await;
                let parts = batch.segments().flat_map(Segments::iter);
                all.extend(parts.map(<[u8]>::to_vec));
            }
            assert_eq!(all, [&b"aa"[..], b"bb", b"c"]);
        }
    }
}
