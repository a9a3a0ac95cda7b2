//! Errors of ICMP to clients of UDP rules, of whose datagrams no member is left: that nobody has the port (RFC 792, RFC 4443).
//!
//! A client whose member is gone learns it at once, as from a server without a balancer, and does not wait for the timeout of its
//! protocol. Only a process with `CAP_NET_RAW` may send such messages: without the right clients see silence.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use evenkeel_core::time::Instant;
use evenkeel_manager::config;
use socket2::{Domain, Protocol, Socket, Type};

use super::client_sessions::simplify;

/// Most messages in a second, as a machine's kernel sends of its own: senders of datagrams can forge their address.
const MOST_PER_SECOND: u64 = 1_000;

/// Lengths of the message's head, of the headers of IP, and of the header of UDP.
const ICMP: usize = 8;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;

/// Sender of errors of ICMP.
#[derive(Debug, Default)]
pub(crate) struct ErrorSender {
    /// Sockets for IPv4 and IPv6, from the first rule of UDP on, as far as this process may have them.
    sockets: OnceLock<[Option<Socket>; 2]>,
    /// Second, and number of messages in it, in the lower half.
    sent: AtomicU64,
}

impl ErrorSender {
    /// Opens the sockets for a rule of UDP. Returns the same sender.
    pub(crate) fn open_for(self: &Arc<Self>, protocol: config::Protocol) -> Arc<Self> {
        if protocol == config::Protocol::Udp {
            self.sockets.get_or_init(Self::open_sockets);
        }
        Arc::clone(self)
    }

    fn open_sockets() -> [Option<Socket>; 2] {
        let open = |domain, protocol| match open_socket(domain, protocol) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::debug!(%error, "clients of UDP rules get no errors of ICMP: the right to send them is missing");
                None
            }
        };
        [
            open(Domain::IPV4, Protocol::ICMPV4),
            open(Domain::IPV6, Protocol::ICMPV6),
        ]
    }

    /// Tells a client that nobody has the port to which its datagram with this many bytes has gone. Returns true if the
    /// message is sent.
    pub(crate) fn send_unreachable(
        &self,
        client: SocketAddr,
        listener: SocketAddr,
        bytes: usize,
        now: Instant,
    ) -> bool {
        let (client, listener) = (simplify(client), simplify(listener));
        let Some([v4, v6]) = self.sockets.get() else {
            return false;
        };
        let Some(socket) = (if client.is_ipv4() { v4 } else { v6 }) else {
            return false;
        };
        let Some(message) = write_message(client, listener, bytes) else {
            return false;
        };
        if !self.take_turn(now) {
            return false;
        }
        // The port of the address is the protocol's number for IPv6, or 0.
        let mut to = client;
        to.set_port(0);
        match socket.send_to(&message, &to.into()) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%error, %client, "an error of ICMP was not sent");
                false
            }
        }
    }

    /// True if another message may be sent in this second.
    fn take_turn(&self, now: Instant) -> bool {
        let second = now.as_nanos() / 1_000_000_000;
        let count = |sent: u64| match sent >> 32 == second & 0xffff_ffff {
            true => sent & 0xffff_ffff,
            false => 0,
        };
        let next = |sent| {
            let count = count(sent);
            (count < MOST_PER_SECOND).then_some((second << 32) | (count + 1))
        };
        let order = Ordering::Relaxed;
        self.sent.fetch_update(order, order, next).is_ok()
    }
}

fn open_socket(domain: Domain, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    // Nobody reads what comes: the least room that there can be.
    socket.set_recv_buffer_size(0)?;
    Ok(socket)
}

/// Returns the sum of words of the internet checksum (RFC 1071), as its complement.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| match word {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    let sum = words.fold(0_u32, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    });
    !(sum as u16)
}

/// Returns the message about a datagram of a client with this many bytes: the headers of IP and UDP are its quote. `None` if
/// the addresses are of two families.
fn write_message(client: SocketAddr, listener: SocketAddr, bytes: usize) -> Option<Vec<u8>> {
    let length = u16::try_from(UDP.saturating_add(bytes)).unwrap_or(u16::MAX);
    let mut message = Vec::with_capacity(ICMP + IPV6 + UDP);
    match (client.ip(), listener.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // Destination unreachable, port unreachable; the checksum, and four bytes without a meaning.
            message.extend([3, 3, 0, 0, 0, 0, 0, 0]);
            let total = length.saturating_add(IPV4 as u16).to_be_bytes();
            message.extend([0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0]);
            message.extend(from.octets());
            message.extend(to.octets());
            let sum = checksum(message.get(ICMP..)?).to_be_bytes();
            message.get_mut(ICMP + 10..ICMP + 12)?.copy_from_slice(&sum);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // Destination unreachable, port unreachable; the kernel writes the checksum.
            message.extend([1, 4, 0, 0, 0, 0, 0, 0]);
            let length = length.to_be_bytes();
            message.extend([0x60, 0, 0, 0, length[0], length[1], 17, 64]);
            message.extend(from.octets());
            message.extend(to.octets());
        }
        _ => return None,
    }
    message.extend(client.port().to_be_bytes());
    message.extend(listener.port().to_be_bytes());
    message.extend(length.to_be_bytes());
    message.extend([0, 0]);
    if client.is_ipv4() {
        let sum = checksum(&message).to_be_bytes();
        message.get_mut(2..4)?.copy_from_slice(&sum);
    }
    Some(message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_message_quotes_the_datagram_with_right_checksums() {
        let client = "192.0.2.7:4000".parse().unwrap();
        let listener = "198.51.100.1:53".parse().unwrap();
        let message = write_message(client, listener, 100).unwrap();
        assert_eq!(message.len(), ICMP + IPV4 + UDP);
        assert_eq!(message[..2], [3, 3]);
        assert_eq!((checksum(&message), checksum(&message[8..28])), (0, 0));
        assert_eq!(
            message[8..20],
            [
                0x45,
                0,
                0,
                128,
                0,
                0,
                0,
                0,
                64,
                17,
                message[18],
                message[19]
            ]
        );
        assert_eq!(message[20..28], [192, 0, 2, 7, 198, 51, 100, 1]);
        assert_eq!(message[28..], [0x0f, 0xa0, 0, 53, 0, 108, 0, 0]);

        let client = "[2001:db8::7]:4000".parse().unwrap();
        assert_eq!(write_message(client, listener, 100), None);
        let listener = "[2001:db8::1]:53".parse().unwrap();
        let message = write_message(client, listener, 70_000).unwrap();
        assert_eq!(message.len(), ICMP + IPV6 + UDP);
        assert_eq!(message[..8], [1, 4, 0, 0, 0, 0, 0, 0]);
        assert_eq!(message[8..16], [0x60, 0, 0, 0, 0xff, 0xff, 17, 64]);
        assert_eq!(message[56 - 8..], [0x0f, 0xa0, 0, 53, 0xff, 0xff, 0, 0]);
    }

    #[test]
    fn a_flood_gets_a_bounded_number_of_messages() {
        let sender = ErrorSender::default();
        let at = |seconds| Instant::ZERO.after(Duration::from_secs(seconds));
        for second in [0, 1, 5] {
            let sent = (0..3_000).filter(|_| sender.take_turn(at(second)));
            assert_eq!(sent.count() as u64, MOST_PER_SECOND, "{second}");
        }
    }
}
