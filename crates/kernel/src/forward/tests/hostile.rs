//! Packets that strangers change at will: the program sends on what belongs to a connection of the addresses in the packet,
//! to the other side of this connection, and nothing else.

use std::cell::Cell;

use super::errors::Message;
use super::nat::{read_timestamps, write_options};
use super::packets::*;
use super::*;

/// Answer of the program that drops a packet.
const SHOT: u32 = 2;

/// Way of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Route,
    Nat,
    Direct,
    Tunnel,
}

const WAYS: [Way; 4] = [Way::Route, Way::Nat, Way::Direct, Way::Tunnel];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl Way {
    fn number(self) -> u8 {
        self as u8
    }

    fn listener(self, family: Family) -> SocketAddr {
        let mut address = family.listener();
        address.set_port(80 + u16::from(self.number()));
        address
    }

    /// Members of the listener, which no other listener has.
    fn members(self, family: Family) -> [SocketAddr; 2] {
        [20, 21].map(|last| family.member(last + 2 * self.number()))
    }

    fn answers_directly(self) -> bool {
        matches!(self, Way::Direct | Way::Tunnel)
    }
}

/// Lets the program begin connections of all ways and families.
fn serve_all(forwarder: &Forwarder) {
    let mut listeners = Vec::new();
    for (way, first) in WAYS.into_iter().zip((0u32..).step_by(4)) {
        let group = u32::from(way.number());
        let addresses = FAMILIES.into_iter().flat_map(|family| way.members(family));
        for (seat, address) in (first..).zip(addresses) {
            let terms = Terms {
                owner: 1,
                address,
                base: 65_536,
                others: 0,
                room: u32::MAX,
                must_leave: false,
                name_hash: 0,
                weight: 0,
            };
            forwarder.set_terms(seat, &terms).unwrap();
            let source = Family::of_address(&address).address("10.77.0.1:0", "[fd77::1]:0");
            forwarder.set_nat_address(seat, source.ip()).unwrap();
        }
        let terms = GroupTerms {
            form: 1,
            growth: 256,
            bound: 0,
            seats: (first..first + 4).collect(),
        };
        forwarder.set_group(group, &terms).unwrap();
        let ports = NatPorts {
            first: 40_000,
            count: 20_000,
        };
        listeners.extend(FAMILIES.map(|family| Listener {
            address: way.listener(family),
            nat: (way == Way::Nat).then_some(ports),
            is_direct: way.answers_directly(),
            has_tunnel: way == Way::Tunnel,
            ..listener(family, group, 2)
        }));
    }
    forwarder.set_listeners(&listeners).unwrap();
}

/// Connection of the table, as packets must fit it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    way: Way,
    client: SocketAddr,
    listener: SocketAddr,
    member: SocketAddr,
    /// Address that the member sees.
    seen: SocketAddr,
}

impl Entry {
    /// Reads the connection of a client.
    fn find(forwarder: &Forwarder, client: SocketAddr) -> Option<Self> {
        let map = find_map(&forwarder.object, "evk_connections").unwrap();
        let key = layout::write_address(client);
        let value = map.lookup(&key, MapFlags::ANY).unwrap()?;
        let connection = Connection::read(&key, &value);
        let (port, source) = (layout::Reader(&value[54..]).port(), &value[88..]);
        let source = SocketAddr::new(layout::Reader(source).ip(), port);
        let listener = connection.listener;
        let family = Family::of_address(&listener);
        let mut ways = WAYS.into_iter();
        let entry = Entry {
            way: ways.find(|way| way.listener(family) == listener).unwrap(),
            client,
            listener,
            member: connection.pair.member,
            seen: if port == 0 { client } else { source },
        };
        assert_eq!(Family::of_address(&client), family);
        assert!(
            entry.way.members(family).contains(&entry.member),
            "{entry:?}"
        );
        assert_eq!(port != 0, entry.way == Way::Nat);
        Some(entry)
    }

    /// Address from which the member sends.
    fn sender(&self) -> SocketAddr {
        if self.way.answers_directly() {
            self.listener
        } else {
            self.member
        }
    }
}

/// Returns the client whose packets a member sees as those of another address, with full NAT.
fn find_client(forwarder: &Forwarder, member: SocketAddr, seen: SocketAddr) -> Option<SocketAddr> {
    let key = [member, seen].map(layout::write_address).concat();
    let map = find_map(&forwarder.object, "evk_nat_pairs").unwrap();
    let value = map.lookup(&key, MapFlags::ANY).unwrap()?;
    Some(layout::Reader(&value).address())
}

/// Packet as far as its headers can be read.
#[derive(Debug)]
struct Packet<'a> {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    lifetime: u8,
    /// Sum of the words of the IP header, and of what the checksum of the payload covers, without carries: the same before
    /// and after a change that keeps right checksums right, and wrong ones as wrong.
    sums: (u32, u32),
    payload: &'a [u8],
}

/// Returns the sum of words, with a byte of 0 behind an odd one.
fn add_words(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    let values =
        words.map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
    values.fold(0, |sum, value| (sum + value) % 0xffff)
}

fn read_short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read_ip(bytes: &[u8], at: usize, is_ipv6: bool) -> Option<IpAddr> {
    let rest = bytes.get(at..)?;
    if is_ipv6 {
        Some(IpAddr::from(*rest.first_chunk::<16>()?))
    } else {
        Some(IpAddr::from(*rest.first_chunk::<4>()?))
    }
}

/// Reads both addresses of a header of IP.
fn read_ips(header: &[u8], is_ipv6: bool) -> Option<(IpAddr, IpAddr)> {
    let (from, to) = if is_ipv6 { (8, 24) } else { (12, 16) };
    Some((
        read_ip(header, from, is_ipv6)?,
        read_ip(header, to, is_ipv6)?,
    ))
}

/// Reads the addresses of both ends, of which the ports are the first words behind the header.
fn read_ends(packet: &[u8], is_ipv6: bool) -> Option<(SocketAddr, SocketAddr)> {
    let (from, to) = read_ips(packet, is_ipv6)?;
    let ports = if is_ipv6 { 40 } else { 20 };
    let (first, second) = (read_short(packet, ports)?, read_short(packet, ports + 2)?);
    Some((SocketAddr::new(from, first), SocketAddr::new(to, second)))
}

impl<'a> Packet<'a> {
    /// Reads a packet of IP; `None` if the packet has options or a wrong length, or is a fragment.
    fn read(packet: &'a [u8]) -> Option<Self> {
        let is_ipv6 = match packet.first()? {
            0x45 => false,
            other if other >> 4 == 6 => true,
            _ => return None,
        };
        let (header, length_at) = if is_ipv6 { (40, 4) } else { (20, 2) };
        if !is_ipv6 && read_short(packet, 6)? & 0x3fff != 0 {
            return None;
        }
        let length = match usize::from(read_short(packet, length_at)?) {
            // Several segments in one packet may be longer than the field can say.
            0 => packet.len().checked_sub(header)?,
            length if is_ipv6 => length,
            total => total.checked_sub(header)?,
        };
        let (from, to) = read_ips(packet, is_ipv6)?;
        let payload = packet.get(header..header + length)?;
        let (protocol, lifetime) = match is_ipv6 {
            true => (packet[6], packet[7]),
            false => (packet[9], packet[8]),
        };
        let mut sum = add_words(payload);
        if protocol != 1 {
            sum += add_words(&write_pseudo_header(from, to, protocol, length));
        }
        let of_header = if is_ipv6 { 0 } else { add_words(&packet[..20]) };
        Some(Packet {
            from,
            to,
            protocol,
            lifetime,
            sums: (of_header, sum % 0xffff),
            payload,
        })
    }

    /// Reads the addresses of both ends.
    fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (first, second) = (read_short(self.payload, 0)?, read_short(self.payload, 2)?);
        Some((
            SocketAddr::new(self.from, first),
            SocketAddr::new(self.to, second),
        ))
    }

    /// Reads the ends of the packet that an error of ICMP quotes.
    fn quoted_ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        read_ends(self.payload.get(8..)?, self.from.is_ipv6())
    }
}

/// Connections that a packet may be of, before the program has it.
#[derive(Debug, Default)]
struct Candidates {
    /// Of the sender as a client.
    of_client: Option<Entry>,
    /// Of the receiver as a client, and of the receiver as an address that a member sees.
    of_member: [Option<Entry>; 2],
}

impl Candidates {
    fn find(forwarder: &Forwarder, (from, to): (SocketAddr, SocketAddr)) -> Self {
        let find = |client| Entry::find(forwarder, client);
        let is_sender = |entry: &Entry| entry.sender() == from;
        Candidates {
            of_client: find(from).filter(|entry| entry.listener == to),
            of_member: [
                find(to).filter(is_sender),
                find_client(forwarder, from, to)
                    .and_then(find)
                    .filter(is_sender),
            ],
        }
    }
}

/// Checks that a packet in a tunnel goes to the member of a connection, as it came.
fn check_tunnel(entry: &Entry, input: &Packet<'_>, output: &Packet<'_>) {
    assert_eq!(
        (output.protocol, output.to),
        (17, entry.member.ip()),
        "{entry:?}"
    );
    let words = usize::from(output.payload[8]);
    let inner = Packet::read(&output.payload[12 + 4 * words..]).unwrap();
    assert_eq!((inner.from, inner.to), (input.from, input.to));
    check_rest(input, &inner, false);
    assert_eq!(inner.payload, input.payload);
}

/// Checks what no change of addresses changes. `is_new`: the header of IP is written anew.
fn check_rest(input: &Packet<'_>, output: &Packet<'_>, is_new: bool) {
    assert_eq!(output.protocol, input.protocol);
    assert_eq!(output.lifetime, input.lifetime - 1);
    assert_eq!(output.sums.1, input.sums.1, "{input:?} {output:?}");
    if !is_new {
        assert_eq!(output.sums.0, input.sums.0, "{input:?} {output:?}");
        assert_eq!(output.payload.len(), input.payload.len());
    }
}

/// Checks that a packet of TCP that the program has sent goes to the other side of its connection.
fn check_segment(
    forwarder: &Forwarder,
    before: &Candidates,
    input: &Packet<'_>,
    output: &Packet<'_>,
) {
    let (from, to) = input.ends().unwrap();
    // A client's first packet, or a repeated one, has another member now.
    let now = Entry::find(forwarder, from).filter(|entry| entry.listener == to);
    if let Some(entry) = now {
        if entry.way == Way::Tunnel {
            return check_tunnel(&entry, input, output);
        }
        let receiver = if entry.way == Way::Direct {
            to
        } else {
            entry.member
        };
        assert_eq!(output.ends(), Some((entry.seen, receiver)), "{entry:?}");
        return check_rest(input, output, false);
    }
    assert!(before.of_client.is_none(), "{before:?}");
    let entries = before.of_member.iter().flatten();
    let is_back = |entry: &&Entry| output.ends() == Some((entry.listener, entry.client));
    if entries.clone().any(|entry| is_back(&entry)) {
        return check_rest(input, output, false);
    }
    // A refusal has become the client's SYN for another member.
    let is_retry = |entry: &Entry| {
        let next = Entry::find(forwarder, entry.client).unwrap();
        next.listener == entry.listener
            && next.member != entry.member
            && output.ends() == Some((next.seen, next.member))
            && output.payload[13] == SYN
    };
    assert!(
        entries.clone().any(is_retry),
        "{before:?} {input:?} {output:?}"
    );
    check_rest(input, output, true);
}

/// Checks that an error of ICMP that the program has sent goes to a side of the connection that it is about, with the
/// addresses that this side knows.
fn check_error(before: &Candidates, input: &Packet<'_>, output: &Packet<'_>) {
    let (from, to) = input.quoted_ends().unwrap();
    assert_eq!(input.to, from.ip(), "the receiver has sent the packet");
    // `from` is a client as the member sees it.
    let of_client = before.of_member.iter().flatten();
    let is_to_client = |entry: &Entry| {
        output.to == entry.client.ip()
            && output.quoted_ends() == Some((entry.client, entry.listener))
    };
    if of_client.clone().any(is_to_client) {
        return check_rest(input, output, false);
    }
    let entry = before
        .of_client
        .unwrap_or_else(|| panic!("{before:?} {input:?} {output:?}"));
    match entry.way {
        Way::Tunnel => return check_tunnel(&entry, input, output),
        Way::Direct => assert_eq!(
            (output.to, output.quoted_ends()),
            (input.to, Some((from, to)))
        ),
        Way::Route | Way::Nat => {
            assert_eq!(output.to, entry.member.ip());
            assert_eq!(output.quoted_ends(), Some((entry.member, entry.seen)));
        }
    }
    check_rest(input, output, false);
}

/// Gives the program a frame, and checks what becomes of the frame. Returns true if the program has sent it.
fn check_frame(forwarder: &Forwarder, interface: u32, frame: &[u8]) -> bool {
    let input = Packet::read(&frame[14..]);
    let ends = input.as_ref().and_then(|packet| match packet.protocol {
        6 => packet.ends(),
        // The receiver of the error has sent the packet that the error quotes.
        _ => packet.quoted_ends().map(|(from, to)| (to, from)),
    });
    let before = ends.map_or_else(Candidates::default, |ends| {
        Candidates::find(forwarder, ends)
    });
    let mut context = [0; 44];
    context[36..40].copy_from_slice(&interface.to_ne_bytes());
    let (answer, sent) = run_on_frame(forwarder, "evk_forward", &mut context, frame);
    if answer == NOT_TAKEN || answer == SHOT {
        return false;
    }
    assert_eq!(answer, REDIRECT);
    let input = input.unwrap_or_else(|| panic!("sent: {frame:?}"));
    let output = Packet::read(&sent[14..]).unwrap_or_else(|| panic!("{sent:?} of {frame:?}"));
    if input.protocol == 6 {
        check_segment(forwarder, &before, &input, &output);
    } else {
        check_error(&before, &input, &output);
    }
    true
}

/// Takes the next three ports of the client that no connection has: a changed SYN of an earlier case may have begun one.
fn take_ports(forwarder: &Forwarder, family: Family, next: &Cell<u16>) -> u16 {
    loop {
        let first = next.replace(next.get().wrapping_add(3).max(1_024));
        let is_free = |port| Entry::find(forwarder, family.client(port)).is_none();
        if (first..first + 3).all(is_free) {
            return first;
        }
    }
}

/// Returns frames of connections of a way: an open connection of the client with this port, and a connection of the next
/// port that its member has not accepted.
fn write_frames(
    forwarder: &Forwarder,
    interface: u32,
    family: Family,
    way: Way,
    port: u16,
) -> Vec<Vec<u8>> {
    let listener = way.listener(family);
    let open = |port| {
        let syn = Segment {
            options: write_options(1_000, 0),
            ..Segment::new(family.client(port), listener, SYN)
        };
        let sent = send_frame(forwarder, interface, &syn.write());
        (syn, sent.expect("the connection begins"))
    };
    let (syn, _) = open(port);
    let entry = Entry::find(forwarder, syn.from).unwrap();
    let ours = Segment {
        sequence: 2,
        answered: 7_001,
        data: b"some data!".to_vec(),
        ..Segment::new(syn.from, syn.to, ACK)
    };
    let theirs = Segment {
        sequence: 7_001,
        answered: 2,
        data: b"and data".to_vec(),
        ..Segment::new(entry.sender(), entry.seen, ACK)
    };
    let accepted = Segment {
        sequence: 7_000,
        flags: SYN | ACK,
        data: Vec::new(),
        ..theirs.clone()
    };
    let confirmed = Segment {
        data: Vec::new(),
        ..ours.clone()
    };
    for segment in [&accepted, &confirmed] {
        assert!(check_frame(forwarder, interface, &segment.write()));
    }
    let (young, sent) = open(port.wrapping_add(1));
    let of_young = Entry::find(forwarder, young.from).unwrap();
    let stamp = match way {
        Way::Tunnel => 1_000,
        _ => read_timestamps(&Segment::read(&sent).options).0,
    };
    let answer = |flags, options| Segment {
        sequence: 7_000,
        answered: 2,
        options,
        ..Segment::new(of_young.sender(), of_young.seen, flags)
    };
    let end = |segment: &Segment, flags| Segment {
        flags,
        data: Vec::new(),
        ..segment.clone()
    };
    let mut frames: Vec<_> = [
        ours.clone(),
        theirs.clone(),
        end(&ours, FIN | ACK),
        end(&theirs, FIN | ACK),
        end(&ours, RST),
        end(&theirs, RST),
        answer(SYN | ACK, write_options(55, stamp)),
        answer(RST | ACK, Vec::new()),
        young,
        Segment::new(family.client(port.wrapping_add(2)), listener, SYN),
    ]
    .map(|segment| segment.write())
    .into();
    // What a router says of packets to the member, and of packets to the client.
    let router = family.address("203.0.113.5:0", "[2001:db8:5::5]:0").ip();
    let to_member = Segment::new(entry.seen, entry.sender(), ACK);
    let to_client = Segment::new(entry.listener, entry.client, ACK);
    frames.extend([to_member, to_client].map(|quoted| {
        let message = Message {
            from: router,
            to: quoted.from.ip(),
            head: if family == Family::V4 {
                (3, 4, 1400)
            } else {
                (2, 0, 1400)
            },
            quoted,
        };
        message.write()
    }));
    frames
}

/// Checks that the counts of members are those of the table.
fn check_counts(forwarder: &Forwarder) {
    let all = list_connections(forwarder);
    for seat in 0..16 {
        let there = all.iter().filter(|one| one.seat == seat && one.is_open());
        let counted = forwarder.read_counts(seat).unwrap().in_flight;
        assert_eq!(
            usize::try_from(counted).unwrap(),
            there.count(),
            "seat {seat}"
        );
    }
    let map = find_map(&forwarder.object, "evk_nat_pairs").unwrap();
    let with_nat = all.iter().filter(|one| one.has_nat);
    assert_eq!(map.keys().count(), with_nat.count());
}

/// Change of a frame: bytes behind the header of Ethernet, flags of TCP, and the length.
type Change = (
    prop::sample::Index,
    Vec<(prop::sample::Index, u8)>,
    Option<u8>,
    Option<prop::sample::Index>,
);

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let bytes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let flags = proptest::option::weighted(0.3, any::<u8>());
    let length = proptest::option::weighted(0.2, any::<prop::sample::Index>());
    proptest::collection::vec((any::<prop::sample::Index>(), bytes, flags, length), 1..12)
}

#[test]
fn s41_hostile_packets_reach_the_sides_of_their_connection_only() {
    run_beside_routes(|forwarder, interface| {
        serve_all(forwarder);
        let (port, sent, left) = (Cell::new(1_024u16), Cell::new(0), Cell::new(0));
        let ways = (families(), (0..WAYS.len()).prop_map(|number| WAYS[number]));
        let mut runner = TestRunner::default();
        runner
            .run(&(ways, changes()), |((family, way), changes)| {
                let first = take_ports(forwarder, family, &port);
                let frames = write_frames(forwarder, interface, family, way, first);
                for (which, bytes, flags, length) in changes {
                    let mut frame = which.get(&frames).clone();
                    let tcp = if family == Family::V4 { 34 } else { 54 };
                    for (at, byte) in bytes {
                        let at = 14 + at.index(frame.len() - 14);
                        frame[at] = byte;
                    }
                    if let Some(flags) = flags {
                        frame[tcp + 13] = flags;
                    }
                    if let Some(length) = length {
                        // A trial run takes no shorter ones.
                        frame.resize(tcp + length.index(100), 0);
                    }
                    let counter = match check_frame(forwarder, interface, &frame) {
                        true => &sent,
                        false => &left,
                    };
                    counter.set(counter.get() + 1);
                }
                check_counts(forwarder);
                Ok(())
            })
            .unwrap();
        assert!(sent.get() > 100 && left.get() > 100, "{sent:?} {left:?}");
    });
}
