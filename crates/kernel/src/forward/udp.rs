//! Keys and values of the maps of `bpf/udp.bpf.h`, as bytes.

use std::net::SocketAddr;
use std::time::Duration;

use super::layout::{ADDRESS, Age, COPIED, NatPorts, Pair, Reader, UNIT, write_address};

/// Time for which the port of a datagram without an answer rests, at least: the answer may be late, and is for nobody else.
pub const LONG_REST: Duration = Duration::from_secs(30);

/// Flag of a session whose client has gone to another member.
pub(super) const LEAVES: u32 = 64;

/// Flag of a session whose member's connection ids of QUIC count.
pub(super) const QUIC: u32 = 256;

/// Flag of the session of a single datagram.
pub(super) const SINGLE: u32 = 1024;

/// Flag of a session whose member answers the client without the balancer.
pub(super) const UDP_DIRECT: u32 = 4096;

/// Listening address of a UDP rule, with what its sessions get: `struct evk_udp_listener`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpListener {
    /// Address that clients send datagrams to.
    pub address: SocketAddr,
    /// Number of the group.
    pub group: u32,
    /// True if a client whose member has failed goes to another member.
    pub retries: bool,
    /// Ports that members see with full NAT; `None` if they see the client's address.
    pub nat: Option<NatPorts>,
    /// Time without a datagram after which a session is over.
    pub idle: Duration,
    /// True if members have this address, too, and answer clients without the balancer.
    pub is_direct: bool,
    /// Time for the first answer; `None` if no answer is expected.
    pub answer: Option<Duration>,
    /// True if a client of QUIC whose address changes stays at the member of its connection id.
    pub is_quic: bool,
    /// True if each datagram is a session of its own, which ends with the first answer. With full NAT an answer is expected.
    /// With half NAT and with direct answers none is, and the session is over at once.
    pub is_single: bool,
    /// True if [`Forwarder::set_limits`](super::Forwarder::set_limits) has written limits of the address.
    pub is_limited: bool,
}

impl UdpListener {
    pub(super) fn write(&self) -> [u8; 24] {
        let mut out = [0; 24];
        let (first, count) = self.nat.map_or((0, 0), |ports| (ports.first, ports.count));
        let answer = self.answer.map_or(0, |answer| count_units(answer).max(1));
        let parts = [
            &self.group.to_ne_bytes()[..],
            &u16::from(self.retries).to_ne_bytes(),
            &[u8::from(self.is_limited), u8::from(self.is_direct)],
            &first.to_ne_bytes(),
            &count.to_ne_bytes(),
            &count_units(self.idle).to_ne_bytes(),
            &answer.to_ne_bytes(),
            &u16::from(self.is_quic).to_ne_bytes(),
            &u16::from(self.is_single).to_ne_bytes(),
        ];
        let bytes = parts.into_iter().flatten();
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        out
    }
}

/// Returns a time in the units of the maps, at most half of the time after which their number wraps.
pub(super) fn count_units(time: Duration) -> u32 {
    let units = time.as_nanos() >> UNIT;
    u32::try_from(units).map_or(i32::MAX as u32, |units| units.min(i32::MAX as u32))
}

/// Client of a listening address: `struct evk_udp_client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpClient {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client sends datagrams to.
    pub listener: SocketAddr,
}

/// Bytes of two addresses, the length of keys.
pub(super) const KEY: usize = 2 * ADDRESS;

impl UdpClient {
    pub(super) fn read(bytes: &mut Reader<'_>) -> Self {
        UdpClient {
            client: bytes.address(),
            listener: bytes.address(),
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        [write_address(self.client), write_address(self.listener)].concat()
    }
}

/// Session in the table: `struct evk_udp_session`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpSession {
    /// Address of the member.
    pub member: SocketAddr,
    /// Address that the member sees: the client's one with half NAT.
    pub source: SocketAddr,
    /// Client and listening address.
    pub of: UdpClient,
    /// Time of the first datagram, in nanoseconds of the machine's clock.
    pub began_ns: u64,
    pub(super) age: Age,
    /// Number of the member's seat.
    pub seat: u32,
    /// Bytes from the client, and to the client.
    pub bytes: (u64, u64),
    /// Datagrams from the client, and to the client.
    pub datagrams: (u64, u64),
}

/// Bytes of a session in the table, without the key.
pub(super) const SESSION: usize = 128;

/// Reason for which a session is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpEnd {
    /// No datagram has come for a while.
    Idle = 0,
    /// The member has not answered.
    Silent = 4,
}

impl UdpSession {
    pub(super) fn read(key: &[u8], value: &[u8]) -> Self {
        let mut ends = Reader(key);
        let mut bytes = Reader(value);
        let (began_ns, _) = (bytes.u64(), bytes.u64());
        let of = UdpClient::read(&mut bytes);
        let (seat, _) = (bytes.u32(), bytes.u32());
        UdpSession {
            member: ends.address(),
            source: ends.address(),
            of,
            began_ns,
            age: Age::read(value),
            seat,
            bytes: (bytes.u64(), bytes.u64()),
            datagrams: (bytes.u64(), bytes.u64()),
        }
    }

    /// Returns the addresses of both ends.
    pub fn pair(&self) -> Pair {
        Pair {
            member: self.member,
            client: self.of.client,
        }
    }

    /// Returns the time since the last datagram at `now_ns`, to a millisecond; for a session that leaves its member, since
    /// then.
    pub fn find_silence(&self, now_ns: u64) -> Duration {
        self.age.find_silence(now_ns)
    }

    /// Returns the time since the first datagram at `now_ns`.
    pub fn find_age(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.began_ns))
    }

    /// True if the session is in flight.
    pub fn is_open(&self) -> bool {
        self.age.is_open()
    }

    /// True if the member has answered.
    pub fn is_answered(&self) -> bool {
        self.age.is_answered()
    }

    /// True if the client's next datagrams belong to another session.
    pub fn leaves(&self) -> bool {
        self.age.has_flag(LEAVES)
    }

    /// True if the session is a copy of another balancer's, of which no datagram has come here.
    pub fn is_copied(&self) -> bool {
        self.age.has_flag(COPIED)
    }

    /// Returns the time from the first datagram to the last one, to a millisecond.
    pub fn find_span(&self, now_ns: u64) -> Duration {
        self.find_age(now_ns)
            .saturating_sub(self.find_silence(now_ns))
    }

    /// True if the member answers the client without the balancer. Then the session counts as answered, as nobody sees
    /// answers.
    pub fn is_direct(&self) -> bool {
        self.age.has_flag(UDP_DIRECT)
    }

    /// True if the member sees an address and a port of the balancer.
    pub fn has_nat(&self) -> bool {
        self.source != self.of.client
    }

    /// True if the session has a single datagram, and ends with the first answer.
    pub fn is_single(&self) -> bool {
        self.age.has_flag(SINGLE)
    }

    /// True if the member's connection ids of QUIC count.
    pub fn is_quic(&self) -> bool {
        self.age.has_flag(QUIC)
    }

    /// True if no other session can have the port towards the member. The port of a single datagram whose session has ended
    /// rests, and is taken again.
    pub fn holds_port(&self) -> bool {
        self.has_nat() && (self.is_open() || !self.is_single())
    }

    /// True if the session stays in the table when [`Forwarder::remove_udp_session`](super::Forwarder::remove_udp_session)
    /// ends the session, while the port rests.
    pub fn rests_at_end(&self) -> bool {
        self.is_open() && self.is_single()
    }
}

/// Counts of a listening address: `struct evk_udp_counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounts {
    /// Sessions that have begun in the kernel.
    pub begun: u64,
    /// Sessions now.
    pub open: i64,
    /// Bytes from clients, and to clients, of sessions that have ended.
    pub bytes: (u64, u64),
    /// Datagrams from clients, and to clients, of sessions that have ended.
    pub datagrams: (u64, u64),
}

impl UdpCounts {
    pub(super) const LENGTH: usize = 48;

    pub(super) fn read(value: &[u8]) -> Self {
        let mut bytes = Reader(value);
        UdpCounts {
            begun: bytes.u64(),
            open: bytes.u64().cast_signed(),
            bytes: (bytes.u64(), bytes.u64()),
            datagrams: (bytes.u64(), bytes.u64()),
        }
    }
}
