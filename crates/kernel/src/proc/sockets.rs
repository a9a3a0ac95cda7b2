//! Listen backlogs, of the kernel's socket diagnostics (sock_diag(7)), which cost as much as
//! there are listeners, however many connections there are.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use super::files::FileResult;
use crate::record::Port;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
/// Bytes of `nlmsghdr`.
const HEADER: usize = 16;
const TCP: u8 = 6;
const TCP_LISTEN: u8 = 10;
const FAMILIES: [u8; 2] = [2, 10];

/// Asks for the listeners of the network namespace in which it was made.
#[derive(Debug)]
pub struct Listeners {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Listeners {
    /// Opens its socket.
    pub fn new() -> io::Result<Self> {
        let kind = (AddressFamily::NETLINK, SocketType::DGRAM);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Listeners {
            socket: socket_with(kind.0, kind.1, flags, Some(netlink::SOCK_DIAG))?,
            sequence: 0,
            buffer: vec![0; 32 << 10],
        })
    }

    /// Returns the number of connections that wait at each of `ports`, all addresses and listeners
    /// of a port together.
    pub fn backlogs(&mut self, ports: &[u16]) -> FileResult<Vec<Port>> {
        let port = |port: &u16| Port {
            port: *port,
            ..Port::default()
        };
        let mut found: Vec<Port> = ports.iter().map(port).collect();
        for family in FAMILIES {
            self.add(family, &mut found).map_err(|error| {
                format!(
                    "listen backlogs: {error}; they need the kernel's CONFIG_INET_DIAG, or its \
                     module: modprobe tcp_diag"
                )
            })?;
        }
        Ok(found)
    }

    fn add(&mut self, family: u8, found: &mut [Port]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let kernel = SocketAddrNetlink::new(0, 0);
        let question = question(family, self.sequence);
        sendto(&self.socket, &question, SendFlags::empty(), &kernel)?;
        loop {
            // A dump goes on when its last part was taken, so there is always something.
            let (_, length) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC)?;
            let Some(messages) = self.buffer.get(..length) else {
                return Err(io::Error::other("an answer of the kernel is too long"));
            };
            if take(messages, self.sequence, found)? {
                return Ok(());
            }
        }
    }
}

fn question(family: u8, sequence: u32) -> [u8; HEADER + 56] {
    let mut question = [0; HEADER + 56];
    let length = (question.len() as u32).to_ne_bytes();
    question[..4].copy_from_slice(&length);
    question[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    question[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    question[8..12].copy_from_slice(&sequence.to_ne_bytes());
    question[HEADER..HEADER + 2].copy_from_slice(&[family, TCP]);
    let states = 1u32 << TCP_LISTEN;
    question[HEADER + 4..HEADER + 8].copy_from_slice(&states.to_ne_bytes());
    question
}

/// Takes what is wanted from messages of the kernel; answers whether they were the last.
fn take(mut messages: &[u8], sequence: u32, found: &mut [Port]) -> io::Result<bool> {
    let long = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    };
    while let Some(length) = long(messages, 0) {
        let length = length as usize;
        let Some(message) = messages.get(..length).filter(|_| length >= HEADER) else {
            return Err(io::Error::other("an answer of the kernel is cut short"));
        };
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        // What is left of a dump that was given up.
        if long(message, 8) != Some(sequence) {
            continue;
        }
        let body = &message[HEADER..];
        match u16::from_ne_bytes([message[4], message[5]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let error = long(body, 0).unwrap_or_default() as i32;
                return Err(io::Error::from_raw_os_error(error.wrapping_neg()));
            }
            SOCK_DIAG_BY_FAMILY => {
                let (Some(port), Some(backlog), Some(limit)) =
                    (body.get(4..6), long(body, 56), long(body, 60))
                else {
                    continue;
                };
                let port = u16::from_be_bytes([port[0], port[1]]);
                let listens = body[1] == TCP_LISTEN;
                for known in found.iter_mut().filter(|_| listens) {
                    if known.port == port {
                        known.listening = true;
                        known.backlog = known.backlog.saturating_add(backlog);
                        known.limit = known.limit.saturating_add(limit);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn connections_that_wait_are_counted() {
        let Ok(mut listeners) = Listeners::new() else {
            crate::testing::report_skipped("no netlink sockets here");
            return;
        };
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let second = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |listener: &TcpListener| listener.local_addr().unwrap();
        let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(at(&first))).collect();
        let nobody = 1;
        let ports = [at(&first).port(), at(&second).port(), nobody];
        let found = match listeners.backlogs(&ports) {
            Ok(found) => found,
            Err(reason) => {
                crate::testing::report_skipped(reason);
                return;
            }
        };
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].listening, found[0].backlog), (true, 3));
        assert!(found[0].limit > 3, "{found:?}");
        assert_eq!((found[1].listening, found[1].backlog), (true, 0));
        let none = Port {
            port: nobody,
            ..Port::default()
        };
        assert_eq!(found[2], none);
        first.accept().unwrap();
        assert_eq!(listeners.backlogs(&ports).unwrap()[0].backlog, 2);
        drop(clients);
    }

    proptest! {
        #[test]
        fn no_message_does_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), length in 0u32..120, kind in 0u16..24) {
            if bytes.len() > 12 {
                bytes[..4].copy_from_slice(&length.to_ne_bytes());
                bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
                bytes[8..12].copy_from_slice(&7u32.to_ne_bytes());
            }
            let _ = take(&bytes, 7, &mut [Port::default()]);
        }
    }
}
