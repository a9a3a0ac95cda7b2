//! Packets that tests make, and what the program makes of them.

use std::net::IpAddr;
use std::process::Command;
use std::thread;

use super::*;

/// Answer of the program that sends a packet on.
pub(super) const REDIRECT: u32 = 7;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// Runs a test in a network namespace with a route to clients and members. The test gets the number of
/// their interface.
pub(super) fn run_beside_routes(test: impl FnOnce(&Forwarder, u32) + Send) {
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
                "addr add fd77::1/64 dev evk0 nodad",
                "-6 route add 2001:db8:100::/64 dev evk0",
                "neigh add 198.51.100.7 lladdr 02:00:00:00:00:07 dev evk0",
                "neigh add 2001:db8:100::7 lladdr 02:00:00:00:00:07 dev evk0",
            ] {
                let status = Command::new("ip").args(words.split(' ')).status();
                assert!(status.unwrap().success(), "ip {words}");
            }
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
            let interface = nix::net::if_::if_nametoindex("evk0").unwrap();
            test(trial.forwarder(), interface);
        };
        let builder = thread::Builder::new().name(name);
        builder.spawn_scoped(scope, of_its_own).unwrap();
    });
}

/// Packet of TCP, with an even number of bytes of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sequence: u32,
    pub(super) answered: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) options: Vec<u8>,
    pub(super) data: Vec<u8>,
}

/// Returns the checksum of words: 0 if the words have their checksum in them.
pub(super) fn sum_words<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u16 {
    let words = parts.into_iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns a header of IPv4 or IPv6, without extensions.
pub(super) fn write_ip(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = vec![0x45, 0];
            ip.extend((20 + length as u16).to_be_bytes());
            ip.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            let sum = sum_words([&ip[..]]).to_be_bytes();
            ip[10..12].copy_from_slice(&sum);
            ip
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut ip = vec![0x60, 0, 0, 0];
            ip.extend((length as u16).to_be_bytes());
            ip.extend([protocol, 64]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            ip
        }
        _ => panic!("two families: {from} {to}"),
    }
}

/// Returns the addresses and the rest that a checksum covers beside the payload.
pub(super) fn write_pseudo_header(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    length: usize,
) -> Vec<u8> {
    let head = write_ip(from, to, protocol, length);
    let addresses = if from.is_ipv4() {
        &head[12..]
    } else {
        &head[8..]
    };
    [
        addresses,
        &(length as u32).to_be_bytes(),
        &[0, 0, 0, protocol],
    ]
    .concat()
}

/// Returns an Ethernet frame.
pub(super) fn write_frame(ip: &[u8], payload: &[u8]) -> Vec<u8> {
    let kind = if ip[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    [&[2; 12][..], &kind, ip, payload].concat()
}

/// Lowers the lifetime of a frame's packet, as somebody does who sends the packet on.
pub(super) fn lower_lifetime(frame: &mut [u8]) {
    if frame[14] >> 4 == 6 {
        frame[21] -= 1;
        return;
    }
    frame[22] -= 1;
    frame[24..26].fill(0);
    let sum = sum_words([&frame[14..34]]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
}

/// Reads the header of an Ethernet frame's packet, and checks the length and the checksum. Returns the addresses and the
/// payload.
pub(super) fn read_frame(bytes: &[u8]) -> (IpAddr, IpAddr, &[u8]) {
    let short = |bytes: &[u8]| usize::from(u16::from_be_bytes(*bytes.first_chunk().unwrap()));
    let packet = &bytes[14..];
    if packet[0] >> 4 == 4 {
        assert_eq!(sum_words([&packet[..20]]), 0, "checksum of the packet");
        assert_eq!(short(&packet[2..]), packet.len());
        let ip = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap();
        (ip(12).into(), ip(16).into(), &packet[20..])
    } else {
        assert_eq!(short(&packet[4..]), packet.len() - 40);
        let ip = |at: usize| <[u8; 16]>::try_from(&packet[at..at + 16]).unwrap();
        (ip(8).into(), ip(24).into(), &packet[40..])
    }
}

impl Segment {
    /// Returns a packet with small numbers, and without data.
    pub(super) fn new(from: SocketAddr, to: SocketAddr, flags: u8) -> Self {
        Segment {
            from,
            to,
            sequence: 1,
            answered: 0,
            flags,
            window: 500,
            options: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Returns the packet in an Ethernet frame.
    pub(super) fn write(&self) -> Vec<u8> {
        let tcp = self.write_tcp();
        let ip = write_ip(self.from.ip(), self.to.ip(), 6, tcp.len());
        write_frame(&ip, &tcp)
    }

    /// Returns the header of TCP with the data.
    pub(super) fn write_tcp(&self) -> Vec<u8> {
        let offset = 20 + self.options.len() as u16;
        let mut tcp = self.from.port().to_be_bytes().to_vec();
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.answered.to_be_bytes());
        tcp.extend([(offset << 2) as u8, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.data);
        let pseudo = write_pseudo_header(self.from.ip(), self.to.ip(), 6, tcp.len());
        let sum = sum_words([&pseudo[..], &tcp]).to_be_bytes();
        tcp[16..18].copy_from_slice(&sum);
        tcp
    }

    /// Reads a packet, and checks its lengths and checksums.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let (from, to, tcp) = read_frame(bytes);
        let number = |at: usize| u32::from_be_bytes(*tcp[at..].first_chunk().unwrap());
        let short = |at: usize| u16::from_be_bytes(*tcp[at..].first_chunk().unwrap());
        let offset = usize::from(tcp[12] >> 4) * 4;
        let pseudo = write_pseudo_header(from, to, 6, tcp.len());
        assert_eq!(sum_words([&pseudo[..], tcp]), 0, "checksum of TCP");
        Segment {
            from: SocketAddr::new(from, short(0)),
            to: SocketAddr::new(to, short(2)),
            sequence: number(4),
            answered: number(8),
            flags: tcp[13],
            window: short(14),
            options: tcp[20..offset].to_vec(),
            data: tcp[offset..].to_vec(),
        }
    }
}

/// Gives the program a packet, and returns what the program sends.
pub(super) fn send(forwarder: &Forwarder, interface: u32, packet: &Segment) -> Segment {
    let sent = try_send(forwarder, interface, packet);
    sent.unwrap_or_else(|| panic!("not taken: {packet:?}"))
}

/// Gives the program a packet, and returns what the program sends; `None` if the program does not take the packet.
pub(super) fn try_send(forwarder: &Forwarder, interface: u32, packet: &Segment) -> Option<Segment> {
    let sent = send_frame(forwarder, interface, &packet.write());
    sent.map(|frame| Segment::read(&frame))
}

/// Runs a program on a frame, and returns the answer with what has become of the frame.
pub(super) fn run_on_frame(
    forwarder: &Forwarder,
    program: &str,
    context: &mut [u8],
    frame: &[u8],
) -> (u32, Vec<u8>) {
    let mut out = [0; 2048];
    let input = ProgramInput {
        context_in: Some(context),
        data_in: Some(frame),
        data_out: Some(&mut out),
        ..ProgramInput::default()
    };
    let program = bpf::find_program_mut(&forwarder.object, program).unwrap();
    let output = program.test_run(input).unwrap();
    (output.return_value, output.data.unwrap().to_vec())
}

/// Gives the program a frame, and returns the frame that the program sends; `None` if the program does not take the
/// packet.
pub(super) fn send_frame(forwarder: &Forwarder, interface: u32, frame: &[u8]) -> Option<Vec<u8>> {
    // The interface that the packet has come by has a place in the structure of the kernel.
    let mut context = [0; 44];
    context[36..40].copy_from_slice(&interface.to_ne_bytes());
    match run_on_frame(forwarder, "evk_forward", &mut context, frame) {
        (REDIRECT, sent) => Some(sent),
        (other, _) => {
            assert_eq!(other, NOT_TAKEN, "{frame:?}");
            None
        }
    }
}

/// Returns the program's count of packets with this name.
pub(super) fn read_outcome(forwarder: &Forwarder, name: &str) -> u64 {
    let outcomes = forwarder.read_outcomes().unwrap();
    let at = OUTCOMES.iter().position(|(known, _)| *known == name);
    outcomes[at.unwrap()]
}
