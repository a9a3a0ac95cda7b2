//! RSTs and packets of strangers who do not know a connection's sequence numbers.

use super::packets::*;
use super::*;

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Member,
}

/// Packet of an established connection.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// Pairs of bytes that a side sends, and that the network loses behind the balancer or not.
    Data(Side, u8, bool),
    /// RST of a stranger who pretends to be a side, with a number that is too high by this.
    StrayReset(Side, u32),
    /// Packet of a stranger with data, or with a FIN, that acknowledges too much by this.
    Stray(Side, u8, u32, u32),
}

/// Way in which a connection ends.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A side resets, with the number behind all that the side has sent.
    Reset(Side),
    /// A side answers a packet of the other side with a RST, as the side knows no such connection.
    Unknown(Side),
    /// Both sides close, this one first.
    Close(Side),
    /// Both sides close; the network lets a later acknowledgement overtake the FIN of this one.
    Overtaken(Side),
}

impl Side {
    fn other(self) -> Self {
        match self {
            Side::Client => Side::Member,
            Side::Member => Side::Client,
        }
    }
}

/// A connection that the member accepts, with the sequence numbers of both sides.
struct Scene<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
    family: Family,
    client: SocketAddr,
    /// Number behind all that a side has sent, and behind all that the side has got: of the client, of the member.
    numbers: [(u32, u32); 2],
}

impl Scene<'_> {
    fn numbers(&mut self, side: Side) -> &mut (u32, u32) {
        &mut self.numbers[usize::from(side == Side::Member)]
    }

    /// Returns a packet of a side with the right numbers.
    fn segment(&mut self, side: Side, flags: u8, pairs: u8) -> Segment {
        let (listener, member) = (self.family.listener(), self.family.member(2));
        let (from, to) = match side {
            Side::Client => (self.client, listener),
            Side::Member => (member, self.client),
        };
        let (sequence, answered) = *self.numbers(side);
        Segment {
            from,
            to,
            sequence,
            answered,
            flags,
            window: 500,
            options: Vec::new(),
            data: vec![b'x'; usize::from(pairs) * 2],
        }
    }

    /// Gives the program a packet, and checks that the packet reaches the other side.
    fn pass(&self, packet: &Segment) {
        let mut expected = packet.clone();
        if packet.from == self.client {
            expected.to = self.family.member(2);
        } else {
            expected.from = self.family.listener();
        }
        assert_eq!(send(self.forwarder, self.interface, packet), expected);
    }

    /// Lets a side send, and the other one get it unless the network loses the packet.
    fn exchange(&mut self, side: Side, flags: u8, pairs: u8, is_lost: bool) {
        let packet = self.segment(side, flags, pairs);
        self.pass(&packet);
        let length = u32::from(pairs) * 2 + u32::from(flags & (SYN | FIN) != 0);
        let next = &mut self.numbers(side).0;
        *next = next.wrapping_add(length);
        let next = *next;
        if !is_lost {
            self.numbers(side.other()).1 = next;
        }
    }

    /// Connections at members of both families.
    fn count_in_flight(&self) -> i64 {
        let counts = [0, 1].map(|seat| self.forwarder.read_counts(seat).unwrap());
        counts.iter().map(|counts| counts.in_flight).sum()
    }

    fn stray_resets(&self) -> u64 {
        read_outcome(self.forwarder, "stray_reset")
    }

    fn open(&mut self) {
        let mut syn = self.segment(Side::Client, SYN, 0);
        syn.answered = 0;
        self.pass(&syn);
        self.numbers[0].0 = syn.sequence.wrapping_add(1);
        self.numbers[1].1 = self.numbers[0].0;
        // Before the member accepts, a stranger must know the client's number, too.
        let before = self.stray_resets();
        let mut stray = self.segment(Side::Client, RST, 0);
        stray.sequence = stray.sequence.wrapping_add(7);
        self.pass(&stray);
        let mut stray = self.segment(Side::Member, SYN | ACK, 0);
        stray.answered = stray.answered.wrapping_add(1);
        self.pass(&stray);
        assert!(!self.find().unwrap().is_established());
        assert_eq!(self.stray_resets(), before + 1);
        self.exchange(Side::Member, SYN | ACK, 0, false);
        self.exchange(Side::Client, ACK, 0, false);
    }

    /// The connection in the table, if it is open.
    fn find(&self) -> Option<Connection> {
        let mut all = list_connections(self.forwarder);
        all.retain(|one| one.pair.client == self.client);
        assert_eq!(all.len(), 1);
        all.pop().filter(Connection::is_open)
    }

    fn take(&mut self, packet: Packet) {
        let before = self.stray_resets();
        match packet {
            Packet::Data(side, pairs, is_lost) => self.exchange(side, ACK, pairs, is_lost),
            Packet::StrayReset(side, wrong) => {
                let mut stray = self.segment(side, RST, 0);
                stray.sequence = stray.sequence.wrapping_add(wrong);
                self.pass(&stray);
                assert_eq!(self.stray_resets(), before + 1);
            }
            Packet::Stray(side, flags, sequence, wrong) => {
                let sent = self.numbers(side.other()).0;
                let mut stray = self.segment(side, flags, 9);
                stray.sequence = sequence;
                stray.answered = sent.wrapping_add(wrong);
                self.pass(&stray);
            }
        }
        assert!(self.find().is_some_and(|one| one.is_established()));
        assert_eq!(self.count_in_flight(), 1);
    }

    /// Ends the connection, and returns the expected end.
    fn end(&mut self, way: Way) -> End {
        let of = |side| match side {
            Side::Client => End::ClientReset,
            Side::Member => End::Reset,
        };
        match way {
            Way::Reset(side) => {
                let reset = self.segment(side, RST, 0);
                self.pass(&reset);
                of(side)
            }
            Way::Unknown(side) => {
                // What the other side has last acknowledged.
                self.exchange(side.other(), ACK, 3, false);
                let mut reset = self.segment(side, RST, 0);
                reset.sequence = self.numbers(side.other()).1;
                self.pass(&reset);
                of(side)
            }
            Way::Close(side) => {
                self.exchange(side, FIN | ACK, 1, false);
                assert!(self.find().is_some());
                self.exchange(side.other(), FIN | ACK, 0, false);
                End::Closed
            }
            Way::Overtaken(side) => {
                let fin = self.segment(side, FIN | ACK, 0);
                let next = &mut self.numbers(side).0;
                *next = next.wrapping_add(1);
                self.exchange(side.other(), ACK, 3, false);
                self.exchange(side, ACK, 0, false);
                self.pass(&fin);
                self.exchange(side.other(), FIN | ACK, 0, false);
                End::Closed
            }
        }
    }
}

fn sides() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Client), Just(Side::Member)]
}

fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let wrong = 1..1u32 << 31;
    let flags = prop_oneof![Just(ACK), Just(FIN | ACK), Just(SYN | ACK), Just(FIN)];
    let packet = prop_oneof![
        (sides(), 0..50u8, any::<bool>())
            .prop_map(|(side, pairs, is_lost)| Packet::Data(side, pairs, is_lost)),
        (sides(), wrong.clone()).prop_map(|(side, wrong)| Packet::StrayReset(side, wrong)),
        (sides(), flags, any::<u32>(), wrong)
            .prop_map(|(side, flags, at, wrong)| Packet::Stray(side, flags, at, wrong)),
    ];
    proptest::collection::vec(packet, 0..12)
}

fn ways() -> impl Strategy<Value = Way> {
    (0..4, sides()).prop_map(|(way, side)| match way {
        0 => Way::Reset(side),
        1 => Way::Unknown(side),
        2 => Way::Overtaken(side),
        _ => Way::Close(side),
    })
}

#[test]
fn s41_packets_with_wrong_sequence_numbers_end_no_connection() {
    run_beside_routes(|forwarder, interface| {
        let members = [Family::V4, Family::V6].map(|family| family.member(2));
        serve_members(forwarder, &members, 2);
        let mut runner = TestRunner::default();
        let numbers = (any::<u32>(), any::<u32>());
        let cases = (families(), numbers, packets(), ways());
        runner
            .run(&cases, |(family, (client, member), packets, way)| {
                let mut scene = Scene {
                    forwarder,
                    interface,
                    family,
                    client: family.client(5000),
                    numbers: [(client, member), (member, client)],
                };
                scene.open();
                packets.into_iter().for_each(|packet| scene.take(packet));
                let end = scene.end(way);
                assert_eq!(scene.find(), None);
                assert_eq!(scene.count_in_flight(), 0);
                let events = forwarder.take_events().unwrap();
                assert_eq!(events.last().unwrap().step, Step::End(end));
                Ok(())
            })
            .unwrap();
    });
}
