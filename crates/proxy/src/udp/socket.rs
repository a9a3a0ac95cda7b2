//! Sockets for datagrams of clients: many are received with one system call, and an answer leaves
//! from the address that its client has addressed.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket as StdSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::segments::{BATCH, CONTROL_WORDS, Destination, Segments, Sent, Way, send_all};

/// Length of the longest datagram, in bytes.
pub(crate) const MAX_DATAGRAM: usize = 65_535;

/// A socket at which datagrams of clients arrive.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    socket: UdpSocket,
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
            socket: UdpSocket::from_std(socket)?,
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
        let handle = socket2::SockRef::from(&self.socket).try_clone()?;
        Ok(handle.into())
    }

    /// Receives datagrams into `batch`, as many as there are and have room.
    pub(crate) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_recv_ready(cx))?;
            match receive_ready(&self.socket, batch, BATCH) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
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

/// Receives datagrams that are there, at most `limit`. The runtime learns at once if there are no further
/// ones, without a call that finds nothing.
pub(crate) fn receive_ready(socket: &UdpSocket, batch: &mut Batch, limit: usize) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    let limit = limit.min(BATCH);
    let mut result = Err(io::ErrorKind::WouldBlock.into());
    let _ = socket.try_io(Interest::READABLE, || {
        result = batch.receive(fd, limit);
        let is_drained = match &result {
            Ok(()) => batch.heads.len() < limit,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        match is_drained {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(()),
        }
    });
    result
}

/// Datagrams that were received with one system call.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Room for [`BATCH`] datagrams of [`MAX_DATAGRAM`] bytes. The system gives memory only to pages
    /// that datagrams have reached.
    bytes: Vec<u8>,
    heads: Vec<Head>,
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
    pub(crate) fn new() -> Self {
        Batch {
            bytes: vec![0; BATCH * MAX_DATAGRAM],
            heads: Vec::with_capacity(BATCH),
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

    /// Receives at most `limit` datagrams, or buffers of datagrams.
    fn receive(&mut self, fd: RawFd, limit: usize) -> io::Result<()> {
        self.heads.clear();
        // SAFETY: all of these are plain data of C, for which zeros are valid.
        let mut names: [libc::sockaddr_storage; BATCH] = unsafe { zeroed() };
        let mut control = [[0_u64; CONTROL_WORDS]; BATCH];
        // SAFETY: as above.
        let mut vectors: [libc::iovec; BATCH] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
        let slots = self.bytes.chunks_exact_mut(MAX_DATAGRAM);
        for ((((slot, vector), message), name), control) in slots
            .zip(&mut vectors)
            .zip(&mut messages)
            .zip(&mut names)
            .zip(&mut control)
        {
            vector.iov_base = slot.as_mut_ptr().cast();
            vector.iov_len = slot.len();
            let head = &mut message.msg_hdr;
            head.msg_name = ptr::from_mut(name).cast();
            head.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            head.msg_iov = vector;
            head.msg_iovlen = 1;
            head.msg_control = control.as_mut_ptr().cast();
            head.msg_controllen = size_of::<[u64; CONTROL_WORDS]>() as _;
        }
        // SAFETY: each message leads to a name, a vector, bytes and room for control messages that
        // outlive the call, with their true lengths; no two messages share any of them.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                messages.as_mut_ptr(),
                limit.min(BATCH) as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            return Err(io::Error::last_os_error());
        };
        for (message, name) in messages.iter().zip(&names).take(count) {
            let control = read_control(&message.msg_hdr);
            self.heads.push(Head {
                len: (message.msg_len as usize).min(MAX_DATAGRAM),
                client: read_name(name),
                destination: control.destination,
                segment: control.segment,
            });
        }
        Ok(())
    }
}

/// Reads an address that the kernel has written.
fn read_name(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is large enough, aligned for all kinds of addresses, and has one of
            // IPv4.
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some((ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for IPv6.
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
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
pub(crate) fn ignore_path_mtu(socket: &StdSocket, member: SocketAddr) -> io::Result<()> {
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
        let mut batch = Batch::new();
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
        let mut batch = Batch::new();
        let mut all = Vec::new();
        for count in [BATCH, 20 - BATCH] {
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
            let mut batch = Batch::new();
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
