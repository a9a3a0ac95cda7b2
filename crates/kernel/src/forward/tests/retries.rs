//! Connections that a member refuses or does not answer, with packets that tests make.

use std::process::Command;
use std::thread;

use super::*;

/// Members of the group, with the seats from 0 on.
const MEMBERS: u32 = 5;

/// Answer of the program that sends a packet on.
const REDIRECT: u32 = 7;

/// Times before and behind each time of the clock.
const LONG_AGO: u64 = 1;
const NOT_YET: u64 = u64::MAX / 2;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Runs a test in a network namespace with a route to clients and members. The test gets the number of
/// their interface.
fn run_beside_routes(test: impl FnOnce(&Forwarder, u32) + Send) {
    if Command::new("ip").arg("-V").output().is_err() {
        report_skipped("the program ip is missing");
        return;
    }
    let name = thread::current().name().unwrap_or("?").to_owned();
    thread::scope(|scope| {
        let of_its_own = move || {
            let Some(trial) = Trial::new() else { return };
            // SAFETY: the call takes no memory.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                report_skipped("no right to make a network namespace; run it as root");
                return;
            }
            for words in [
                "link add evk0 type veth peer name evk1",
                "addr add 10.77.0.1/24 dev evk0",
                "link set evk0 up",
                "link set evk1 up",
                "route add 198.51.100.0/24 dev evk0",
            ] {
                let status = Command::new("ip").args(words.split(' ')).status();
                assert!(status.unwrap().success(), "ip {words}");
            }
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            let interface = nix::net::if_::if_nametoindex("evk0").unwrap();
            test(trial.forwarder(), interface);
        };
        let builder = thread::Builder::new().name(name);
        builder.spawn_scoped(scope, of_its_own).unwrap();
    });
}

/// Packet of TCP without data.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    from: SocketAddrV4,
    to: SocketAddrV4,
    sequence: u32,
    answered: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
}

/// Returns the checksum of words: 0 if the words have their checksum in them.
fn sum_words<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u16 {
    let words = parts.into_iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

impl Segment {
    fn write(&self) -> Vec<u8> {
        let length = 20 + self.options.len() as u16;
        let addresses = [self.from.ip().octets(), self.to.ip().octets()].concat();
        let mut ip = vec![0x45, 0];
        ip.extend((20 + length).to_be_bytes());
        ip.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        ip.extend(&addresses);
        let sum = sum_words([&ip[..]]).to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
        let mut tcp = self.from.port().to_be_bytes().to_vec();
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.answered.to_be_bytes());
        tcp.extend([(length << 2) as u8, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        let pseudo = [&addresses[..], &[0, 6], &length.to_be_bytes()].concat();
        let sum = sum_words([&pseudo[..], &tcp]).to_be_bytes();
        tcp[16..18].copy_from_slice(&sum);
        [&[2; 12][..], &[8, 0], &ip, &tcp].concat()
    }

    /// Reads a packet, and checks its lengths and checksums.
    fn read(bytes: &[u8]) -> Self {
        let (ip, tcp) = (&bytes[14..34], &bytes[34..]);
        let number = |at: usize| u32::from_be_bytes(*tcp[at..].first_chunk().unwrap());
        let short = |bytes: &[u8]| u16::from_be_bytes(*bytes.first_chunk().unwrap());
        let address = |ip: &[u8], port: &[u8]| {
            let ip: [u8; 4] = *ip.first_chunk().unwrap();
            SocketAddrV4::new(ip.into(), short(port))
        };
        assert_eq!(usize::from(short(&ip[2..])), bytes.len() - 14);
        assert_eq!(usize::from(tcp[12] >> 4) * 4, tcp.len());
        assert_eq!(sum_words([ip]), 0, "checksum of the packet");
        let length = (tcp.len() as u16).to_be_bytes();
        let pseudo = [&ip[12..20], &[0, 6], &length].concat();
        assert_eq!(sum_words([&pseudo[..], tcp]), 0, "checksum of TCP");
        Segment {
            from: address(&ip[12..], tcp),
            to: address(&ip[16..], &tcp[2..]),
            sequence: number(4),
            answered: number(8),
            flags: tcp[13],
            window: short(&tcp[14..]),
            options: tcp[20..].to_vec(),
        }
    }
}

/// A client at a listener with a group of [`MEMBERS`].
struct Scene<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
    syn: Segment,
    tried: Vec<SocketAddrV4>,
    events: Vec<(SocketAddrV4, Step)>,
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
        // The interface that the packet has come by has a place in the structure of the kernel.
        let mut context = [0; 44];
        context[36..40].copy_from_slice(&self.interface.to_ne_bytes());
        let (bytes, mut out) = (packet.write(), [0; 256]);
        let mut programs = self.forwarder.object.progs_mut();
        let program = programs.find(|program| program.name() == "evk_forward");
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&bytes),
            data_out: Some(&mut out),
            ..ProgramInput::default()
        };
        let output = program.unwrap().test_run(input).unwrap();
        assert_eq!(output.return_value, REDIRECT, "{packet:?}");
        Segment::read(output.data.unwrap())
    }

    fn member(&self) -> SocketAddrV4 {
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
        }
    }

    /// Checks that the client's SYN goes to a member that was not tried.
    fn check_member(&mut self, sent: &Segment) {
        assert!(!self.tried.contains(&sent.to), "{:?}: {sent:?}", self.tried);
        let (ip, port) = (sent.to.ip().octets(), sent.to.port());
        assert!(ip[..3] == [10, 77, 0] && port == 8080, "{sent:?}");
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
        // From here on nothing leads to another member.
        self.set_time_of_syn(LONG_AGO);
        assert_eq!(self.send(&self.syn).to, self.member());
        self.check_client(&self.reply(FIN | ACK));
        let mut end = self.syn.clone();
        end.flags = FIN | ACK;
        assert_eq!(self.send(&end).to, self.member());
        let step = Step::End(End::Closed);
        self.events.push((self.member(), step));
    }
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
    let cases = (any::<u32>(), any::<u16>(), 1024..1100u16, words);
    cases.prop_map(|(sequence, window, port, options)| Segment {
        from: SocketAddrV4::new([198, 51, 100, 7].into(), port),
        to: "192.0.2.1:80".parse().unwrap(),
        sequence,
        answered: 0,
        flags: SYN,
        window,
        options: options.concat(),
    })
}

#[test]
fn s41_a_connection_that_is_not_accepted_goes_to_members_that_were_not_tried() {
    run_beside_routes(|forwarder, interface| {
        for seat in 0..MEMBERS {
            let terms = Terms {
                owner: 1,
                address: SocketAddrV4::new([10, 77, 0, 2 + seat as u8].into(), 8080),
                base: 65_536,
                others: 0,
                room: 9,
            };
            forwarder.set_terms(seat, &terms).unwrap();
        }
        let mut runner = TestRunner::default();
        let cases = (syns(), 0..7u32, 1..=2u32, packets());
        runner
            .run(&cases, |(syn, retries, form, packets)| {
                let group = GroupTerms {
                    form,
                    growth: 256,
                    seats: (0..MEMBERS).collect(),
                };
                forwarder.set_group(0, &group).unwrap();
                forwarder.set_listeners(&[listener(0, retries)]).unwrap();
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
                    let open: Vec<_> = forwarder.list_connections().unwrap();
                    let open: Vec<_> = open.iter().filter(|one| one.is_open()).collect();
                    assert_eq!(open.len(), 1);
                    assert_eq!(open[0].pair, scene.pair());
                    scene.finish();
                }
                let events = forwarder.take_events().unwrap();
                let events: Vec<_> = events
                    .iter()
                    .map(|one| (one.pair.member, one.step))
                    .collect();
                assert_eq!(events, scene.events);
                for seat in 0..MEMBERS {
                    assert_eq!(forwarder.read_counts(seat).unwrap().in_flight, 0);
                }
                let syns = find_map(&forwarder.object, "evk_syns").unwrap();
                assert_eq!(syns.keys().count(), 0, "no SYN is kept longer than needed");
                Ok(())
            })
            .unwrap();
    });
}
