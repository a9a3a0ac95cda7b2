//! Keys and values of the maps of `bpf/forward.bpf.c`, as bytes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Number of connections that the table of connections has room for, for each session that the table of sessions has room for.
pub(super) const CONNECTIONS_PER_SESSION: u32 = 2;

/// Maps of sessions of UDP that outlive a process.
pub(super) const UDP_PINNED: [&str; 7] = [
    "evk_udp_listeners",
    "evk_udp_counts",
    "evk_udp_clients",
    "evk_udp_sessions",
    "evk_udp_kept",
    "evk_quic_ids",
    "evk_quic_lengths",
];

/// Maps with the size of the table of sessions.
pub(super) const UDP_SIZED: [&str; 5] = [
    "evk_udp_clients",
    "evk_udp_sessions",
    "evk_udp_kept",
    "evk_quic_ids",
    "evk_quic_shared",
];

/// Reads numbers and addresses one after the other; 0 behind the end.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => {
                self.0 = &[];
                [0; N]
            }
        }
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.take())
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    pub(super) fn ip(&mut self) -> IpAddr {
        Ipv6Addr::from(self.take::<16>()).to_canonical()
    }

    pub(super) fn port(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    pub(super) fn address(&mut self) -> SocketAddr {
        let (ip, port) = (self.ip(), self.port());
        self.take::<6>();
        SocketAddr::new(ip, port)
    }
}

/// Length of `struct evk_address`.
pub(super) const ADDRESS: usize = 24;

/// Returns `struct evk_ip`: an address of IPv4 is written as one of IPv6.
pub(super) fn write_ip(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Returns `struct evk_address`, with six bytes of 0 behind.
pub(super) fn write_address(address: SocketAddr) -> [u8; ADDRESS] {
    let mut out = [0; ADDRESS];
    let parts = [&write_ip(address.ip())[..], &address.port().to_be_bytes()];
    let bytes = parts.into_iter().flatten();
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    out
}

/// Listening address, with what its connections get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address that clients connect to.
    pub address: SocketAddr,
    /// Number of the group.
    pub group: u32,
    /// Number of other members that a connection may go to if one does not accept, at most [`MAX_RETRIES`].
    pub retries: u32,
    /// Ports that members see with full NAT; `None` if they see the client's address.
    pub nat: Option<NatPorts>,
    /// True if members have the listening address, and answer clients without the balancer.
    pub is_direct: bool,
    /// True if likewise members get clients' packets by a tunnel.
    pub has_tunnel: bool,
    /// True if likewise other balancers have the listening address.
    pub has_rows: bool,
    /// True if [`Forwarder::set_limits`](super::Forwarder::set_limits) has written limits of the address.
    pub is_limited: bool,
}

/// Range of ports towards members, with full NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatPorts {
    /// First port.
    pub first: u16,
    /// Number of ports, at least 1.
    pub count: u16,
}

/// Most members that a connection may be refused by before one accepts.
pub const MAX_RETRIES: u32 = 10;

impl Listener {
    /// Returns `struct evk_listener`.
    pub(super) fn write(&self) -> [u8; 16] {
        let [a, b, c, d] = self.group.to_ne_bytes();
        let [e, f, g, h] = self.retries.min(MAX_RETRIES).to_ne_bytes();
        let (first, count) = self.nat.map_or((0, 0), |ports| (ports.first, ports.count));
        let ([i, j], [k, l]) = (first.to_ne_bytes(), count.to_ne_bytes());
        let has_tunnel = self.has_tunnel || self.has_rows;
        let way =
            u16::from(self.is_direct) | u16::from(has_tunnel) << 1 | u16::from(self.has_rows) << 2;
        let [m, n] = way.to_ne_bytes();
        let [o, p] = u16::from(self.is_limited).to_ne_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }
}

/// Addresses of a connection as the member's packets have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// Address of the member.
    pub member: SocketAddr,
    /// Address of the client.
    pub client: SocketAddr,
}

impl Pair {
    fn read(bytes: &mut Reader<'_>) -> Self {
        Pair {
            member: bytes.address(),
            client: bytes.address(),
        }
    }
}

/// Flags of a connection.
pub(super) const ESTABLISHED: u32 = 1;
pub(super) const ANSWERED: u32 = 2;
pub(super) const CLIENT_FIN: u32 = 4;
pub(super) const MEMBER_FIN: u32 = 8;
pub(super) const CLOSED: u32 = 16;
pub(super) const CONFIRMED: u32 = 32;
pub(super) const DIRECT: u32 = 64;
/// Flag of a copy of another balancer's connection.
pub(super) const COPIED: u32 = 1 << 15;

/// Beginning of a connection in the table, which is the same in all versions of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age {
    pub(super) seen: u32,
    pub(super) flags: u32,
}

impl Age {
    /// Reads the beginning of an entry of `evk_connections`.
    pub(super) fn read(value: &[u8]) -> Self {
        let mut bytes = Reader(value);
        // The time of the SYN.
        bytes.u64();
        Age {
            seen: bytes.u32(),
            flags: bytes.u32(),
        }
    }

    /// Returns the time since the last packet at `now_ns`, to a millisecond.
    pub(super) fn find_silence(self, now_ns: u64) -> Duration {
        // The unit's count wraps after 52 days; longer limits make no difference.
        let now = (now_ns >> UNIT) as u32;
        // A packet may have come since the clock was read.
        let units = now.wrapping_sub(self.seen).cast_signed().max(0);
        Duration::from_nanos(u64::from(units.cast_unsigned()) << UNIT)
    }

    /// True if the connection is in flight.
    pub(super) fn is_open(self) -> bool {
        self.flags & CLOSED == 0
    }

    /// True if the member has accepted the connection.
    pub(super) fn is_established(self) -> bool {
        self.has_flag(ESTABLISHED)
    }

    /// True if the member has sent something.
    pub(super) fn is_answered(self) -> bool {
        self.has_flag(ANSWERED)
    }

    #[cfg(test)]
    pub(super) fn set_flag(&mut self, flag: u32) {
        self.flags |= flag;
    }

    /// True if the flag is set.
    pub(super) fn has_flag(self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// Connection in the table: `struct evk_connection`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Addresses of both ends.
    pub pair: Pair,
    /// Time of the client's SYN, in nanoseconds of the machine's clock.
    pub began_ns: u64,
    /// Time of the last packet, and the state.
    pub(super) age: Age,
    /// Address that the client has connected to.
    pub listener: SocketAddr,
    /// Number of the member's seat.
    pub seat: u32,
    /// True if the member sees an address and a port of the balancer.
    pub has_nat: bool,
    /// Beginning of the request whose answer is awaited, as the program has it.
    pub(super) asked: u32,
}

/// Bytes of a connection in the table, without the key.
pub(super) const CONNECTION: usize = 112;

/// Bytes of memory that the kernel allocates for a connection with its key.
#[cfg(test)]
pub(super) const MEMORY: u64 = 192;

/// Binary logarithm of the table's unit of time, in nanoseconds.
pub(super) const UNIT: u32 = 20;

impl Connection {
    /// Reads an entry of `evk_connections`.
    pub(super) fn read(key: &[u8], value: &[u8]) -> Self {
        let client = Reader(key).address();
        let mut bytes = Reader(value);
        let (began_ns, _) = (bytes.u64(), bytes.u64());
        let (listener, member) = (bytes.ip(), bytes.ip());
        let (listener_port, member_port) = (bytes.port(), bytes.port());
        let asked = value
            .last_chunk()
            .map_or(0, |last| u32::from_ne_bytes(*last));
        Connection {
            asked,
            pair: Pair {
                member: SocketAddr::new(member, member_port),
                client,
            },
            began_ns,
            age: Age::read(value),
            listener: SocketAddr::new(listener, listener_port),
            seat: bytes.u16().into(),
            has_nat: bytes.port() != 0,
        }
    }

    /// Returns a connection that has just begun.
    #[cfg(test)]
    pub(super) fn new(pair: Pair, listener: SocketAddr, began_ns: u64) -> Self {
        Connection {
            pair,
            began_ns,
            age: Age {
                seen: (began_ns >> UNIT) as u32,
                flags: 0,
            },
            listener,
            seat: 0,
            has_nat: false,
            asked: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn write(&self) -> [u8; CONNECTION] {
        let mut out = [0; CONNECTION];
        let parts = [
            &self.began_ns.to_ne_bytes()[..],
            &self.age.seen.to_ne_bytes(),
            &self.age.flags.to_ne_bytes(),
            &write_ip(self.listener.ip()),
            &write_ip(self.pair.member.ip()),
            &self.listener.port().to_be_bytes(),
            &self.pair.member.port().to_be_bytes(),
            &(self.seat as u16).to_ne_bytes(),
        ];
        let bytes = parts.into_iter().flatten();
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        out
    }

    /// Returns the time since the last packet at `now_ns`, to a millisecond.
    pub fn find_silence(&self, now_ns: u64) -> Duration {
        self.age.find_silence(now_ns)
    }

    /// True if the connection is in flight.
    pub fn is_open(&self) -> bool {
        self.age.is_open()
    }

    /// True if the member has accepted the connection.
    pub fn is_established(&self) -> bool {
        self.age.is_established()
    }

    /// True if the program has told that the member has answered; where answers do not come by, that it has accepted.
    pub fn is_answered(&self) -> bool {
        let needed = match self.age.has_flag(DIRECT) {
            true => CONFIRMED,
            false => ANSWERED,
        };
        self.age.has_flag(needed)
    }

    /// True if the connection is a copy of another balancer's, of which no packet has come here.
    pub fn is_copied(&self) -> bool {
        self.age.has_flag(COPIED)
    }

    /// True if the client has acknowledged the member's acceptance.
    pub fn is_confirmed(&self) -> bool {
        self.age.flags & CONFIRMED != 0
    }
}

/// Limit of connections that clients of one source have begun and not confirmed: `struct evk_source_limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceLimit {
    /// Connections at once.
    pub(super) burst: u32,
    /// Connections a second after these.
    pub(super) rate: u32,
}

impl SourceLimit {
    /// Returns the limit for a table with room for this number of connections: a sixteenth at once, and as many again
    /// in eight seconds. Connections without confirmation, or that the client has reset, are removed within 30 s, so
    /// one source has less than a third of the table.
    pub(super) fn for_table(connections: u32) -> Self {
        SourceLimit {
            burst: connections / 16,
            rate: connections / 128,
        }
    }

    pub(super) fn write(self) -> [u8; 16] {
        let interval = 1_000_000_000 / u64::from(self.rate.max(1));
        let burst = interval.saturating_mul(self.burst.into());
        let mut out = [0; 16];
        let bytes = interval
            .to_ne_bytes()
            .into_iter()
            .chain(burst.to_ne_bytes());
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        out
    }
}

/// End of a connection: `enum evk_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides have closed, or the connection was silent for too long.
    Closed,
    /// The member did not accept.
    Refused,
    /// The member has reset the connection.
    Reset,
    /// The client has reset the connection.
    ClientReset,
    /// The member has not answered the datagrams of a session.
    Silent,
    /// An error of ICMP has said that the member takes no datagrams.
    Unreachable,
}

/// Step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client's SYN has got a member.
    Begin,
    /// The member has accepted.
    Accept,
    /// The client has acknowledged the acceptance of a member whose answers are not seen.
    Confirm,
    /// The member's first byte is here.
    Answer,
    /// The first packet of a connection has come here that another balancer had before.
    Adopt,
    /// The connection is over.
    End(End),
}

/// Kind of the event [`Step::Accept`]: `EVENT_ACCEPT`.
pub(super) const ACCEPT: u16 = 4;

/// Kind of session of an event, for one whose answers do not pass the balancer.
pub(super) const UDP_UNSEEN: u8 = 2;

/// Event of a connection: `struct evk_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Addresses of both ends.
    pub pair: Pair,
    /// Address that the client has connected to.
    pub listener: SocketAddr,
    /// Number of the member's seat.
    pub seat: u32,
    /// True for a session of UDP.
    pub is_udp: bool,
    /// True for a session of UDP whose member answers the client without the balancer.
    pub is_direct: bool,
    /// Kind of the event.
    pub step: Step,
    /// Time of the client's SYN, in nanoseconds of the machine's clock.
    pub began_ns: u64,
    /// Time of the event, likewise.
    pub ns: u64,
    /// Bytes from the client, and to the client, so far.
    pub bytes: (u64, u64),
}

impl Event {
    /// True for a message: a datagram of UDP without an answer, which ends when it begins, and has this one event.
    pub fn is_message(&self) -> bool {
        self.is_udp && matches!(self.step, Step::End(_)) && self.ns == self.began_ns
    }

    /// Reads an event; `None` if the kind is not known.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Reader(bytes);
        let pair = Pair::read(&mut bytes);
        let (listener, seat) = (bytes.address(), bytes.u32());
        let (kind, end, udp) = (bytes.u16(), bytes.u8(), bytes.u8());
        let step = match (kind, end) {
            (1, _) => Step::Begin,
            (2, _) => Step::Answer,
            (3, 0) => Step::End(End::Closed),
            (3, 1) => Step::End(End::Refused),
            (3, 2) => Step::End(End::Reset),
            (3, 3) => Step::End(End::ClientReset),
            (3, 4) => Step::End(End::Silent),
            (3, 5) => Step::End(End::Unreachable),
            (ACCEPT, _) => Step::Accept,
            (5, _) => Step::Confirm,
            (16, _) => Step::Adopt,
            _ => return None,
        };
        Some(Event {
            pair,
            listener,
            seat,
            is_udp: udp != 0,
            is_direct: udp == UDP_UNSEEN,
            step,
            began_ns: bytes.u64(),
            ns: bytes.u64(),
            bytes: (bytes.u64(), bytes.u64()),
        })
    }
}

/// Member as a decision has seen the member: `struct evk_candidate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Number of the member's seat.
    pub seat: u32,
    /// Score, the lowest of which wins: the cost, or the time of the next turn. `None` if the member could not get the
    /// connection.
    pub score: Option<u64>,
    /// Connections of the kernel at the member.
    pub here: u32,
    /// Cost of the first connection, or distance of the member's turns.
    pub base: u32,
    /// Connections of others at the member.
    pub others: u32,
    /// Limit of connections of the kernel; 0 if the member gets no new ones.
    pub room: u32,
    /// Requests within connections that wait for the member's answer.
    pub requests: u32,
}

/// Decision of the program, with all that was looked at: `struct evk_decision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Time of the decision, in nanoseconds of the machine's clock.
    pub ns: u64,
    /// Address of the client.
    pub client: SocketAddr,
    /// Number of the group.
    pub group: u32,
    /// Seat of the chosen member.
    pub chosen: u32,
    /// Form of the decision, as in [`GroupTerms`].
    pub form: u32,
    /// Number of members that have not accepted the connection before.
    pub tries: u32,
    /// Members in the order in which the program has looked at them.
    pub candidates: Vec<Candidate>,
}

impl Decision {
    /// Reads a decision.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut bytes = Reader(bytes);
        let (ns, client) = (bytes.u64(), bytes.address());
        let (group, chosen, form, tries) = (bytes.u32(), bytes.u32(), bytes.u32(), bytes.u32());
        let (count, _) = (bytes.u32(), bytes.u32());
        let count = GROUP_SEATS.min(count as usize);
        let mut read_candidate = || {
            let score = bytes.u64();
            Candidate {
                score: (score != u64::MAX).then_some(score),
                seat: bytes.u32(),
                here: bytes.u32(),
                base: bytes.u32(),
                others: bytes.u32(),
                room: bytes.u32(),
                requests: bytes.u32(),
            }
        };
        Decision {
            ns,
            client,
            group,
            chosen,
            form,
            tries,
            candidates: (0..count).map(|_| read_candidate()).collect(),
        }
    }
}

/// Terms of a member: `struct evk_terms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Number that stands for the group of the member; 0 if the seat is free.
    pub owner: u64,
    /// Address of the member.
    pub address: SocketAddr,
    /// Cost of the first connection, or distance of the member's turns.
    pub base: u32,
    /// Connections of others at the member.
    pub others: u32,
    /// Limit of connections; 0 if the member gets no new ones.
    pub room: u32,
    /// True if clients with sessions of UDP go to other members.
    pub must_leave: bool,
    /// Hash of the member's name, for decisions by hash.
    pub name_hash: u64,
    /// Weight of the member, for the bound of these decisions. For `prequal` the load of a connection.
    pub weight: u32,
}

impl Terms {
    pub(super) fn read(value: &[u8]) -> Self {
        let mut bytes = Reader(value);
        Terms {
            owner: bytes.u64(),
            address: bytes.address(),
            base: bytes.u32(),
            others: bytes.u32(),
            room: bytes.u32(),
            must_leave: bytes.u32() != 0,
            name_hash: bytes.u64(),
            weight: bytes.u32(),
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = self.owner.to_ne_bytes().to_vec();
        out.extend(write_address(self.address));
        for word in [self.base, self.others, self.room, self.must_leave.into()] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(self.name_hash.to_ne_bytes());
        out.extend([self.weight, 0].map(u32::to_ne_bytes).concat());
        out
    }
}

/// Counts of a listening address: `struct evk_listener_counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounts {
    /// Connections that have begun in the kernel.
    pub begun: u64,
    /// Connections now.
    pub open: i64,
    /// Bytes from clients, and to clients, of connections that have ended.
    pub bytes: (u64, u64),
}

impl ListenerCounts {
    /// Length of the structure.
    pub(super) const LENGTH: usize = 32;

    pub(super) fn read(value: &[u8]) -> Self {
        let mut bytes = Reader(value);
        ListenerCounts {
            begun: bytes.u64(),
            open: bytes.u64().cast_signed(),
            bytes: (bytes.u64(), bytes.u64()),
        }
    }
}

/// Decisions of a group: `struct evk_group`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupTerms {
    /// Form of the decisions: 0 leaves them to the proxy, 1 is by score, 2 by turns, 3 by hash, 4 by load and cost
    /// (`prequal`).
    pub form: u32,
    /// Cost of each further connection, in 1/256 of the first.
    pub growth: u32,
    /// Most connections at a member for decisions by hash, in 1/16,384 of the average; 0 is no bound. For `prequal` the load
    /// from which on a member is hot, from `scale_hot` of `evenkeel-core`.
    pub bound: u32,
    /// Seats of the members.
    pub seats: Vec<u32>,
}

/// Most members of a group that a decision looks at.
pub const GROUP_SEATS: usize = 128;

impl GroupTerms {
    pub(super) fn write(&self) -> Vec<u8> {
        let head = [self.form, self.growth, self.bound, self.seats.len() as u32];
        let seats = self.seats.iter().copied().chain(std::iter::repeat(0));
        let words = head.into_iter().chain(seats.take(GROUP_SEATS));
        words.flat_map(u32::to_ne_bytes).collect()
    }

    /// Returns the seat of the first member of a group of the table; `None` without members.
    pub(super) fn read_first_seat(group: &[u8]) -> Option<u32> {
        let (words, _) = group.as_chunks::<4>();
        let count = u32::from_ne_bytes(*words.get(3)?);
        let first = words.get(4).filter(|_| count > 0)?;
        Some(u32::from_ne_bytes(*first))
    }
}
