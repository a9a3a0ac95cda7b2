//! Copies of connections that a kernel forwards: a balancer sends them to the other balancers of its fleet, which then
//! can forward the connections, too.
//!
//! A body of a datagram is one [`CopyMessage`]: a byte for the kind, and the content. The datagram around the body
//! says who has sent it, and is authenticated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::input::Input;

/// Numbers of one side of a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideNumbers {
    /// Sequence number behind all that the side has sent.
    pub next: u32,
    /// Last number of the other side that the side has acknowledged.
    pub acked: u32,
}

/// Copy of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionCopy {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client has connected to.
    pub listener: SocketAddr,
    /// Address of the member.
    pub member: SocketAddr,
    /// Address of the balancer that the member sees with full NAT; `None` if the member sees the client.
    pub source: Option<SocketAddr>,
    /// True if the member answers the client without the balancer.
    pub is_direct: bool,
    /// True if the member has sent something.
    pub is_answered: bool,
    /// True if the client has closed its half.
    pub has_client_fin: bool,
    /// True if the member has closed its half.
    pub has_member_fin: bool,
    /// Numbers of the client.
    pub client_side: SideNumbers,
    /// Numbers of the member.
    pub member_side: SideNumbers,
    /// Distance of the timestamps that the member sees from the client's.
    pub shift: u32,
    /// Time since the client's SYN, in milliseconds.
    pub age_ms: u32,
    /// Time since the last packet, in milliseconds.
    pub silence_ms: u32,
}

/// End of a connection that was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionEnd {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client had connected to.
    pub listener: SocketAddr,
    /// Address of the member.
    pub member: SocketAddr,
}

/// Copy of a session of UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCopy {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client sends datagrams to.
    pub listener: SocketAddr,
    /// Address of the member.
    pub member: SocketAddr,
    /// Address of the balancer that the member sees with full NAT; `None` if the member sees the client.
    pub source: Option<SocketAddr>,
    /// True if the member answers the client without the balancer.
    pub is_direct: bool,
    /// True if the member has answered.
    pub is_answered: bool,
    /// Time since the first datagram, in milliseconds.
    pub age_ms: u32,
    /// Time since the last datagram, in milliseconds.
    pub silence_ms: u32,
}

/// Message about copies of connections and sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyMessage {
    /// The sender wants copies.
    Request {
        /// Number that stands for the sender's table: another number wants all connections at once.
        session: u64,
    },
    /// Copies of connections, one at least.
    Copies {
        /// Number of the round through the sender's table.
        round: u64,
        /// The connections.
        connections: Vec<ConnectionCopy>,
    },
    /// Ends of connections, one at least.
    Ends(Vec<ConnectionEnd>),
    /// Copies of sessions of UDP, one at least.
    Sessions {
        /// Number of the round through the sender's table.
        round: u64,
        /// The sessions.
        sessions: Vec<SessionCopy>,
    },
    /// All connections and sessions of the sender were sent in this round, or in a later one.
    RoundEnd {
        /// Number of the round.
        round: u64,
    },
}

const REQUEST: u8 = 1;
const COPIES: u8 = 2;
const ENDS: u8 = 3;
const ROUND_END: u8 = 4;
/// Balancers that do not know sessions count the message as malformed.
const SESSIONS: u8 = 5;

const IS_V6: u8 = 1;
const IS_DIRECT: u8 = 2;
const IS_ANSWERED: u8 = 4;
const CLIENT_FIN: u8 = 8;
const MEMBER_FIN: u8 = 16;
const HAS_SOURCE: u8 = 32;

/// Length of the longest copy, in bytes: four addresses of IPv6, and the numbers.
pub const MAX_COPY: usize = 1 + 4 * 18 + 28;

/// Length of the longest beginning of a message, in bytes.
pub const MAX_HEAD: usize = 9;

impl CopyMessage {
    /// Returns the bytes of the message. Connections with addresses of two families are left out: no kernel has such.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            CopyMessage::Request { session } => {
                out.push(REQUEST);
                out.extend(session.to_be_bytes());
            }
            CopyMessage::Copies { round, connections } => {
                out.push(COPIES);
                out.extend(round.to_be_bytes());
                connections.iter().for_each(|copy| copy.encode(&mut out));
            }
            CopyMessage::Ends(ends) => {
                out.push(ENDS);
                ends.iter().for_each(|end| end.encode(&mut out));
            }
            CopyMessage::Sessions { round, sessions } => {
                out.push(SESSIONS);
                out.extend(round.to_be_bytes());
                sessions.iter().for_each(|copy| copy.encode(&mut out));
            }
            CopyMessage::RoundEnd { round } => {
                out.push(ROUND_END);
                out.extend(round.to_be_bytes());
            }
        }
        out
    }

    /// Reads a message; `None` if the bytes are none, or say what no connection can have.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut input = Input(body);
        let message = match input.read_u8()? {
            REQUEST => CopyMessage::Request {
                session: input.read_u64()?,
            },
            COPIES => CopyMessage::Copies {
                round: input.read_u64()?,
                connections: read_all(&mut input, ConnectionCopy::decode)?,
            },
            ENDS => CopyMessage::Ends(read_all(&mut input, ConnectionEnd::decode)?),
            SESSIONS => CopyMessage::Sessions {
                round: input.read_u64()?,
                sessions: read_all(&mut input, SessionCopy::decode)?,
            },
            ROUND_END => CopyMessage::RoundEnd {
                round: input.read_u64()?,
            },
            _ => return None,
        };
        input.0.is_empty().then_some(message)
    }
}

/// Reads elements up to the end, one at least. Each is some bytes long, so the body bounds their number.
fn read_all<T>(
    input: &mut Input<'_>,
    read: impl Fn(&mut Input<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let mut all = vec![read(input)?];
    while !input.0.is_empty() {
        all.push(read(input)?);
    }
    Some(all)
}

/// Returns the bit for the family of these addresses; `None` if they are of two families.
fn find_family(addresses: &[SocketAddr]) -> Option<u8> {
    let is_v6 = addresses.first()?.is_ipv6();
    let is_same = addresses.iter().all(|address| address.is_ipv6() == is_v6);
    is_same.then_some(if is_v6 { IS_V6 } else { 0 })
}

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => out.extend(ip.octets()),
        IpAddr::V6(ip) => out.extend(ip.octets()),
    }
    out.extend(address.port().to_be_bytes());
}

/// Reads an address that an end of a connection can have.
fn read_address(input: &mut Input<'_>, flags: u8) -> Option<SocketAddr> {
    let ip: IpAddr = if flags & IS_V6 != 0 {
        let ip = Ipv6Addr::from(input.read_array::<16>()?);
        // The tables would take the address for one of IPv4.
        if ip.to_ipv4_mapped().is_some() {
            return None;
        }
        ip.into()
    } else {
        Ipv4Addr::from(input.read_array::<4>()?).into()
    };
    let port = input.read_u16()?;
    let is_possible = port != 0 && !ip.is_unspecified() && !ip.is_multicast();
    is_possible.then(|| SocketAddr::new(ip, port))
}

/// Returns the length of addresses like this one.
fn measure_address(address: SocketAddr) -> usize {
    if address.is_ipv4() { 6 } else { 18 }
}

/// Addresses of a copy.
struct CopyAddresses {
    client: SocketAddr,
    listener: SocketAddr,
    member: SocketAddr,
    source: Option<SocketAddr>,
}

impl CopyAddresses {
    /// Returns the number of bytes with the flags before them.
    fn measure(&self) -> usize {
        1 + self.count() * measure_address(self.client)
    }

    fn count(&self) -> usize {
        if self.source.is_some() { 4 } else { 3 }
    }

    /// Writes the flags of a copy, with those that say which addresses follow, and the addresses. `None` if the addresses
    /// are of two families: nothing is written then.
    fn encode(&self, flags: u8, out: &mut Vec<u8>) -> Option<()> {
        let last = self.source.unwrap_or(self.client);
        let all = [self.client, self.listener, self.member, last];
        out.push(find_family(&all)? | flags | bit(self.source.is_some(), HAS_SOURCE));
        let addresses = all.into_iter().take(self.count());
        addresses.for_each(|address| put_address(out, address));
        Some(())
    }

    /// Reads the addresses that the flags of a copy say.
    fn decode(input: &mut Input<'_>, flags: u8) -> Option<Self> {
        Some(CopyAddresses {
            client: read_address(input, flags)?,
            listener: read_address(input, flags)?,
            member: read_address(input, flags)?,
            source: match flags & HAS_SOURCE {
                0 => None,
                _ => Some(read_address(input, flags)?),
            },
        })
    }
}

/// Returns a flag if it is set.
fn bit(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

impl ConnectionEnd {
    /// Returns the number of bytes in a message.
    pub fn measure(&self) -> usize {
        1 + 3 * measure_address(self.client)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let all = [self.client, self.listener, self.member];
        let Some(family) = find_family(&all) else {
            return;
        };
        out.push(family);
        all.into_iter()
            .for_each(|address| put_address(out, address));
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let flags = input.read_u8()?;
        if flags & !IS_V6 != 0 {
            return None;
        }
        Some(ConnectionEnd {
            client: read_address(input, flags)?,
            listener: read_address(input, flags)?,
            member: read_address(input, flags)?,
        })
    }
}

/// True if flags say direct answers and full NAT: with direct answers members get the client's packets unchanged.
fn is_contradictory(flags: u8) -> bool {
    flags & (IS_DIRECT | HAS_SOURCE) == IS_DIRECT | HAS_SOURCE
}

impl ConnectionCopy {
    fn addresses(&self) -> CopyAddresses {
        CopyAddresses {
            client: self.client,
            listener: self.listener,
            member: self.member,
            source: self.source,
        }
    }

    /// Returns the number of bytes in a message.
    pub fn measure(&self) -> usize {
        self.addresses().measure() + 28
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let flags = bit(self.is_direct, IS_DIRECT)
            | bit(self.is_answered, IS_ANSWERED)
            | bit(self.has_client_fin, CLIENT_FIN)
            | bit(self.has_member_fin, MEMBER_FIN);
        if self.addresses().encode(flags, out).is_none() {
            return;
        }
        let numbers = [
            self.client_side.next,
            self.client_side.acked,
            self.member_side.next,
            self.member_side.acked,
            self.shift,
            self.age_ms,
            self.silence_ms,
        ];
        out.extend(numbers.into_iter().flat_map(u32::to_be_bytes));
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let flags = input.read_u8()?;
        let known = IS_V6 | IS_DIRECT | IS_ANSWERED | CLIENT_FIN | MEMBER_FIN | HAS_SOURCE;
        if flags & !known != 0 || is_contradictory(flags) {
            return None;
        }
        let CopyAddresses {
            client,
            listener,
            member,
            source,
        } = CopyAddresses::decode(input, flags)?;
        let mut read_side = || {
            Some(SideNumbers {
                next: input.read_u32()?,
                acked: input.read_u32()?,
            })
        };
        let (client_side, member_side) = (read_side()?, read_side()?);
        let (shift, age_ms, silence_ms) = (input.read_u32()?, input.read_u32()?, input.read_u32()?);
        // The client's SYN is a packet, too.
        (silence_ms <= age_ms).then_some(ConnectionCopy {
            client,
            listener,
            member,
            source,
            is_direct: flags & IS_DIRECT != 0,
            is_answered: flags & IS_ANSWERED != 0,
            has_client_fin: flags & CLIENT_FIN != 0,
            has_member_fin: flags & MEMBER_FIN != 0,
            client_side,
            member_side,
            shift,
            age_ms,
            silence_ms,
        })
    }
}

impl SessionCopy {
    fn addresses(&self) -> CopyAddresses {
        CopyAddresses {
            client: self.client,
            listener: self.listener,
            member: self.member,
            source: self.source,
        }
    }

    /// Returns the number of bytes in a message.
    pub fn measure(&self) -> usize {
        self.addresses().measure() + 8
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let flags = bit(self.is_direct, IS_DIRECT) | bit(self.is_answered, IS_ANSWERED);
        if self.addresses().encode(flags, out).is_none() {
            return;
        }
        out.extend(self.age_ms.to_be_bytes());
        out.extend(self.silence_ms.to_be_bytes());
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let flags = input.read_u8()?;
        let known = IS_V6 | IS_DIRECT | IS_ANSWERED | HAS_SOURCE;
        if flags & !known != 0 || is_contradictory(flags) {
            return None;
        }
        let CopyAddresses {
            client,
            listener,
            member,
            source,
        } = CopyAddresses::decode(input, flags)?;
        let (age_ms, silence_ms) = (input.read_u32()?, input.read_u32()?);
        (silence_ms <= age_ms).then_some(SessionCopy {
            client,
            listener,
            member,
            source,
            is_direct: flags & IS_DIRECT != 0,
            is_answered: flags & IS_ANSWERED != 0,
            age_ms,
            silence_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn copy() -> ConnectionCopy {
        ConnectionCopy {
            client: at("198.51.100.7:40000"),
            listener: at("10.0.0.10:5432"),
            member: at("10.0.1.2:5432"),
            source: None,
            is_direct: false,
            is_answered: true,
            has_client_fin: false,
            has_member_fin: true,
            client_side: SideNumbers { next: 1, acked: 2 },
            member_side: SideNumbers { next: 3, acked: 4 },
            shift: 5,
            age_ms: 7000,
            silence_ms: 6,
        }
    }

    fn copy_of_ipv6() -> ConnectionCopy {
        ConnectionCopy {
            client: at("[2001:db8::7]:40000"),
            listener: at("[2001:db8::10]:5432"),
            member: at("[2001:db8:1::2]:5432"),
            source: Some(at("[2001:db8:1::fe]:61000")),
            ..copy()
        }
    }

    fn session() -> SessionCopy {
        SessionCopy {
            client: copy().client,
            listener: copy().listener,
            member: copy().member,
            source: None,
            is_direct: true,
            is_answered: true,
            age_ms: 7000,
            silence_ms: 6,
        }
    }

    fn session_of_ipv6() -> SessionCopy {
        let copy = copy_of_ipv6();
        SessionCopy {
            client: copy.client,
            listener: copy.listener,
            member: copy.member,
            source: copy.source,
            is_direct: false,
            ..session()
        }
    }

    fn list_messages() -> [CopyMessage; 5] {
        let end = ConnectionEnd {
            client: copy().client,
            listener: copy().listener,
            member: copy().member,
        };
        [
            CopyMessage::Request { session: 9 },
            CopyMessage::Copies {
                round: 8,
                connections: vec![copy(), copy_of_ipv6()],
            },
            CopyMessage::Ends(vec![end, end]),
            CopyMessage::RoundEnd { round: u64::MAX },
            CopyMessage::Sessions {
                round: 8,
                sessions: vec![session(), session_of_ipv6()],
            },
        ]
    }

    #[test]
    fn messages_are_read_as_they_are_written() {
        for message in list_messages() {
            let bytes = message.encode();
            assert_eq!(CopyMessage::decode(&bytes), Some(message.clone()));
            let mut longer = bytes.clone();
            longer.push(0);
            assert_eq!(CopyMessage::decode(&longer), None, "{message:?}");
        }
        let mut longest = Vec::new();
        copy_of_ipv6().encode(&mut longest);
        assert_eq!(longest.len(), MAX_COPY);
        for one in [copy(), copy_of_ipv6()] {
            let mut bytes = Vec::new();
            one.encode(&mut bytes);
            assert_eq!(bytes.len(), one.measure());
        }
        for one in [session(), session_of_ipv6()] {
            let mut bytes = Vec::new();
            one.encode(&mut bytes);
            assert_eq!(bytes.len(), one.measure());
            assert!(bytes.len() < MAX_COPY);
        }
    }

    #[test]
    fn cut_messages_are_shorter_ones_or_none() {
        for message in list_messages() {
            let bytes = message.encode();
            for length in 0..bytes.len() {
                // A cut between two elements leaves a whole message with fewer elements.
                if let Some(shorter) = CopyMessage::decode(&bytes[..length]) {
                    assert_eq!(shorter.encode(), bytes[..length]);
                }
            }
            assert_eq!(
                CopyMessage::decode(&bytes[..MAX_HEAD.min(bytes.len() - 1)]),
                None
            );
        }
    }

    #[test]
    fn impossible_connections_are_refused() {
        type Change = fn(&mut ConnectionCopy);
        let changes: [Change; 6] = [
            |one| one.client.set_port(0),
            |one| one.member = at("0.0.0.0:80"),
            |one| one.listener = at("224.0.0.1:80"),
            |one| one.silence_ms = one.age_ms + 1,
            |one| (one.is_direct, one.source) = (true, Some(at("10.0.1.254:61000"))),
            // Addresses of two families are not even written.
            |one| one.member = at("[2001:db8::2]:80"),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut wrong = copy();
            change(&mut wrong);
            let connections = vec![wrong];
            let bytes = CopyMessage::Copies {
                round: 1,
                connections,
            }
            .encode();
            assert_eq!(CopyMessage::decode(&bytes), None, "{number}");
        }
        let connections = vec![copy_of_ipv6()];
        let mut bytes = CopyMessage::Copies {
            round: 1,
            connections,
        }
        .encode();
        assert!(CopyMessage::decode(&bytes).is_some());
        // The client's address as one of IPv4 in IPv6.
        bytes[10..26].copy_from_slice(&Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
        assert_eq!(CopyMessage::decode(&bytes), None);
        bytes[9] |= 64;
        assert_eq!(
            CopyMessage::decode(&bytes),
            None,
            "a flag that nobody knows"
        );
        assert_eq!(CopyMessage::decode(&[99]), None);
    }

    #[test]
    fn impossible_sessions_are_refused() {
        type Change = fn(&mut SessionCopy);
        let changes: [Change; 5] = [
            |one| one.client.set_port(0),
            |one| one.member = at("0.0.0.0:80"),
            |one| one.silence_ms = one.age_ms + 1,
            |one| (one.is_direct, one.source) = (false, Some(at("[2001:db8::2]:80"))),
            |one| one.source = Some(at("10.0.1.254:61000")),
        ];
        let write = |sessions| CopyMessage::Sessions { round: 1, sessions }.encode();
        for (number, change) in changes.iter().enumerate() {
            let mut wrong = session();
            change(&mut wrong);
            assert_eq!(CopyMessage::decode(&write(vec![wrong])), None, "{number}");
        }
        let mut bytes = write(vec![session()]);
        assert!(CopyMessage::decode(&bytes).is_some());
        bytes[9] |= CLIENT_FIN;
        assert_eq!(CopyMessage::decode(&bytes), None, "a flag of connections");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_that_is_written_so_or_none(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
            kind in 0..7u8,
        ) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Some(message) = CopyMessage::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }

        #[test]
        fn changed_messages_are_messages_that_are_written_so_or_none(
            number in 0..5usize,
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        ) {
            let mut bytes = list_messages()[number].encode();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(message) = CopyMessage::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}
