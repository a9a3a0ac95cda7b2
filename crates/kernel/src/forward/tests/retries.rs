//! Connections that a member refuses or does not answer, with packets that tests make.

use super::packets::*;
use super::*;

/// Members of each family in the group, with the seats from 0 on: members of IPv4, and of IPv6.
const MEMBERS: u32 = 5;

/// Times before and behind each time of the clock.
const LONG_AGO: u64 = 1;
const NOT_YET: u64 = u64::MAX / 2;

/// A client at a listener with a group of [`MEMBERS`].
struct Scene<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
    syn: Segment,
    tried: Vec<SocketAddr>,
    events: Vec<(SocketAddr, Step)>,
}

/// Packet that comes from the network.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// The member refuses.
    Refusal,
    /// Somebody who does not know the client's numbers pretends to be the member.
    FalseRefusal(u32),
    /// The client sends the SYN again, as no answer has come.
    Again,
    /// The network has made a copy of the SYN.
    Copy,
}

impl Scene<'_> {
    /// Gives the program a packet, and returns what the program sends.
    fn send(&self, packet: &Segment) -> Segment {
        send(self.forwarder, self.interface, packet)
    }

    fn member(&self) -> SocketAddr {
        *self.tried.last().unwrap()
    }

    fn pair(&self) -> Pair {
        Pair {
            member: self.member(),
            client: self.syn.from,
        }
    }

    /// Packet of the member.
    fn reply(&self, flags: u8) -> Segment {
        Segment {
            from: self.member(),
            to: self.syn.from,
            sequence: 77,
            answered: self.syn.sequence.wrapping_add(1),
            flags,
            window: 0,
            options: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Checks that the client's SYN goes to a member that was not tried.
    fn check_member(&mut self, sent: &Segment) {
        assert!(!self.tried.contains(&sent.to), "{:?}: {sent:?}", self.tried);
        let family = Family::of_address(&self.syn.from);
        let members: Vec<_> = list_members(family).collect();
        assert!(members.contains(&sent.to), "{sent:?}");
        let expected = Segment {
            to: sent.to,
            ..self.syn.clone()
        };
        assert_eq!(*sent, expected);
        self.tried.push(sent.to);
        self.events.push((sent.to, Step::Begin));
    }

    /// Checks that the client gets a packet of the member.
    fn check_client(&self, packet: &Segment) {
        let expected = Segment {
            from: self.syn.to,
            ..packet.clone()
        };
        assert_eq!(self.send(packet), expected);
    }

    /// Sets the time of the last SYN, in nanoseconds of the machine's clock.
    fn set_time_of_syn(&self, ns: u64) {
        let map = find_map(&self.forwarder.object, "evk_connections").unwrap();
        let key = layout::write_address(self.syn.from);
        let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        value[..8].copy_from_slice(&ns.to_ne_bytes());
        map.update(&key, &value, MapFlags::ANY).unwrap();
    }

    /// Gives the program a packet of the network. Returns true if the connection is over.
    fn take(&mut self, packet: Packet, retries: u32) -> bool {
        let tried = self.tried.len() as u32;
        let can_retry = tried <= retries && tried < MEMBERS;
        let member = self.member();
        let sent = match packet {
            Packet::FalseRefusal(wrong) => {
                let mut reply = self.reply(RST | ACK);
                reply.answered = reply.answered.wrapping_add(wrong);
                self.check_client(&reply);
                return false;
            }
            Packet::Refusal if !can_retry => {
                self.check_client(&self.reply(RST | ACK));
                self.events.push((member, Step::End(End::Refused)));
                return true;
            }
            Packet::Refusal => self.send(&self.reply(RST | ACK)),
            Packet::Again => {
                self.set_time_of_syn(LONG_AGO);
                self.send(&self.syn)
            }
            Packet::Copy => {
                self.set_time_of_syn(NOT_YET);
                self.send(&self.syn)
            }
        };
        if can_retry && !matches!(packet, Packet::Copy) {
            self.events.push((member, Step::End(End::Refused)));
            self.check_member(&sent);
        } else {
            assert_eq!(sent.to, member);
        }
        false
    }

    /// Lets the member accept, and both sides close.
    fn finish(&mut self) {
        self.check_client(&self.reply(SYN | ACK));
        self.events.push((self.member(), Step::Accept));
        // From here on nothing leads to another member.
        self.set_time_of_syn(LONG_AGO);
        assert_eq!(self.send(&self.syn).to, self.member());
        let mut end = self.reply(FIN | ACK);
        end.sequence += 1;
        self.check_client(&end);
        let mut end = self.syn.clone();
        end.flags = FIN | ACK;
        (end.sequence, end.answered) = (end.sequence.wrapping_add(1), 79);
        assert_eq!(self.send(&end).to, self.member());
        let step = Step::End(End::Closed);
        self.events.push((self.member(), step));
    }
}

fn list_members(family: Family) -> impl Iterator<Item = SocketAddr> {
    (0..MEMBERS).map(move |number| family.member(2 + number as u8))
}

fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let packet = prop_oneof![
        3 => Just(Packet::Refusal),
        1 => (1..u32::MAX).prop_map(Packet::FalseRefusal),
        2 => Just(Packet::Again),
        1 => Just(Packet::Copy),
    ];
    proptest::collection::vec(packet, 0..9)
}

fn syns() -> impl Strategy<Value = Segment> {
    let words = proptest::collection::vec(any::<[u8; 4]>(), 0..=10);
    let numbers = (any::<u32>(), any::<u16>(), 1024..1100u16);
    let cases = (families(), numbers, words);
    cases.prop_map(|(family, (sequence, window, port), options)| Segment {
        from: family.client(port),
        to: family.listener(),
        sequence,
        answered: 0,
        flags: SYN,
        window,
        options: options.concat(),
        data: Vec::new(),
    })
}

#[test]
fn s41_a_connection_that_is_not_accepted_goes_to_members_that_were_not_tried() {
    run_beside_routes(|forwarder, interface| {
        let members = [Family::V4, Family::V6].map(list_members);
        let members: Vec<_> = members.into_iter().flatten().collect();
        serve_members(forwarder, &members, 0);
        let mut runner = TestRunner::default();
        let cases = (syns(), 0..7u32, 1..=2u32, packets());
        runner
            .run(&cases, |(syn, retries, form, packets)| {
                let group = GroupTerms {
                    form,
                    growth: 256,
                    bound: 0,
                    seats: (0..2 * MEMBERS).collect(),
                };
                forwarder.set_group(0, &group).unwrap();
                let listener = listener(Family::of_address(&syn.from), 0, retries);
                forwarder.set_listeners(&[listener]).unwrap();
                let mut scene = Scene {
                    forwarder,
                    interface,
                    syn,
                    tried: Vec::new(),
                    events: Vec::new(),
                };
                let sent = scene.send(&scene.syn);
                scene.check_member(&sent);
                if !packets
                    .into_iter()
                    .any(|packet| scene.take(packet, retries))
                {
                    let open: Vec<_> = list_connections(forwarder);
                    let open: Vec<_> = open.iter().filter(|one| one.is_open()).collect();
                    assert_eq!(open.len(), 1);
                    assert_eq!(open[0].pair, scene.pair());
                    scene.finish();
                }
                let events = forwarder.take_events().unwrap();
                assert!(events.iter().all(|one| one.listener == scene.syn.to));
                // A connection begins at the next member at the time of its end at the one before.
                for pair in events.windows(2).filter(|pair| pair[1].step == Step::Begin) {
                    assert_eq!(pair[0].ns, pair[1].began_ns);
                }
                let events: Vec<_> = events
                    .iter()
                    .map(|one| (one.pair.member, one.step))
                    .collect();
                assert_eq!(events, scene.events);
                for seat in 0..2 * MEMBERS {
                    assert_eq!(forwarder.read_counts(seat).unwrap().in_flight, 0);
                }
                let syns = find_map(&forwarder.object, "evk_syns").unwrap();
                assert_eq!(syns.keys().count(), 0, "no SYN is kept longer than needed");
                Ok(())
            })
            .unwrap();
    });
}
