//! Many datagrams with one call, answered from the address that they were sent to.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};

use crate::query::LONGEST;

/// Bytes of a place for a datagram: who sends a longer one has its length counted wrong, and
/// gets no answer.
const ROOM: usize = LONGEST + 1;
/// Bytes of a place for the address that a datagram was sent to.
const CONTROL: usize = 64;

/// Opens a socket that answers from the address at which it was asked, also if `at` is that
/// of no interface (`0.0.0.0`, `[::]`). It does not block.
pub fn bind(at: SocketAddr) -> io::Result<UdpSocket> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    let (level, option) = match at {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    let on: libc::c_int = 1;
    // SAFETY: the option is an int.
    let set = unsafe {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            length,
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    // A burst of queries waits here while the process has no CPU. The system may give less.
    let _ = sockopt::set_socket_recv_buffer_size(&socket, 1 << 20);
    rustix::net::bind(&socket, &at)?;
    Ok(UdpSocket::from(socket))
}

/// Room for datagrams that come and go together.
pub struct Batch {
    datagrams: Box<[[u8; ROOM]]>,
    controls: Box<[Control]>,
    addresses: Box<[libc::sockaddr_storage]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}

/// Buffer for control messages, aligned for the headers in it.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Control([u8; CONTROL]);

// SAFETY: the pointers are into its own boxes.
unsafe impl Send for Batch {}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch of {}", self.datagrams.len())
    }
}

impl Batch {
    /// Room for `size` datagrams, at least one.
    pub fn new(size: usize) -> Self {
        let size = size.clamp(1, 1024);
        // SAFETY: all three are valid when they are 0.
        let (address, vector, header) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Batch {
            datagrams: vec![[0; ROOM]; size].into(),
            controls: vec![Control([0; CONTROL]); size].into(),
            addresses: vec![address; size].into(),
            vectors: vec![vector; size].into(),
            headers: vec![header; size].into(),
        }
    }

    /// Takes the datagrams that wait, calls `answer` with the sender and the bytes of each,
    /// and sends those back of which it says so. Says how many it took.
    ///
    /// # Errors
    ///
    /// The socket's; none waits: [`WouldBlock`](io::ErrorKind::WouldBlock). That an answer
    /// could not be sent is none, as it may be lost on its way as well.
    pub fn answer_waiting(
        &mut self,
        socket: &UdpSocket,
        mut answer: impl FnMut(SocketAddr, &mut [u8]) -> bool,
    ) -> io::Result<usize> {
        self.prepare();
        let size = self.headers.len() as libc::c_uint;
        // SAFETY: prepared; nothing of it moves before the call is over.
        let taken = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                size,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let taken = usize::try_from(taken).map_err(|_| io::Error::last_os_error())?;
        let mut answers = 0;
        for at in 0..taken {
            let length = self.headers[at].msg_len as usize;
            let Some(from) = address(&self.addresses[at]) else {
                continue;
            };
            let Some(datagram) = self.datagrams[at].get_mut(..length) else {
                continue;
            };
            if answer(from, datagram) {
                self.vectors[at].iov_len = length;
                forget_interface(&mut self.headers[at].msg_hdr);
                self.headers.swap(answers, at);
                answers += 1;
            }
        }
        let mut sent = 0;
        while sent < answers {
            let left = &mut self.headers[sent..answers];
            // SAFETY: as above; the headers have what was received.
            let more = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    left.as_mut_ptr(),
                    left.len() as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            // One that cannot be sent is left out.
            sent += usize::try_from(more).map_or(1, |more| more.max(1));
        }
        Ok(taken)
    }

    fn prepare(&mut self) {
        for at in 0..self.headers.len() {
            self.vectors[at] = libc::iovec {
                iov_base: self.datagrams[at].as_mut_ptr().cast(),
                iov_len: ROOM,
            };
            let header = &mut self.headers[at];
            header.msg_len = 0;
            let header = &mut header.msg_hdr;
            header.msg_name = (&raw mut self.addresses[at]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &raw mut self.vectors[at];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[at].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL as _;
            header.msg_flags = 0;
        }
    }
}

/// Leaves the way back to the routes, but for addresses that need an interface.
fn forget_interface(header: &mut libc::msghdr) {
    // SAFETY: the kernel has filled the control buffer, which is aligned, and the macros
    // stay in it; a message of these kinds holds these structures.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(header);
        if control.is_null() {
            return;
        }
        let data = libc::CMSG_DATA(control);
        match ((*control).cmsg_level, (*control).cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let info = data.cast::<libc::in_pktinfo>();
                let mut read = info.read_unaligned();
                read.ipi_ifindex = 0;
                info.write_unaligned(read);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let info = data.cast::<libc::in6_pktinfo>();
                let mut read = info.read_unaligned();
                let address = Ipv6Addr::from(read.ipi6_addr.s6_addr);
                if !address.is_unicast_link_local() {
                    read.ipi6_ifindex = 0;
                    info.write_unaligned(read);
                }
            }
            _ => header.msg_controllen = 0,
        }
    }
}

fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let family = i32::from(storage.ss_family);
    let storage = ptr::from_ref(storage);
    match family {
        libc::AF_INET => {
            // SAFETY: it is large enough, and aligned, for every address; this is its family.
            let address = unsafe { storage.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some((IpAddr::V4(ip), u16::from_be(address.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { storage.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some(
                (
                    IpAddr::V6(ip).to_canonical(),
                    u16::from_be(address.sin6_port),
                )
                    .into(),
            )
        }
        _ => None,
    }
}
