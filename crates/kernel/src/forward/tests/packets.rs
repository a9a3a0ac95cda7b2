//! Packets that tests make, and what the program makes of them.

use std::process::Command;
use std::thread;

use super::*;

/// Answer of the program that sends a packet on.
const REDIRECT: u32 = 7;

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

/// Packet of TCP, with an even number of bytes of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) from: SocketAddrV4,
    pub(super) to: SocketAddrV4,
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

impl Segment {
    pub(super) fn write(&self) -> Vec<u8> {
        let offset = 20 + self.options.len() as u16;
        let length = offset + self.data.len() as u16;
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
        tcp.extend([(offset << 2) as u8, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.data);
        let pseudo = [&addresses[..], &[0, 6], &length.to_be_bytes()].concat();
        let sum = sum_words([&pseudo[..], &tcp]).to_be_bytes();
        tcp[16..18].copy_from_slice(&sum);
        [&[2; 12][..], &[8, 0], &ip, &tcp].concat()
    }

    /// Reads a packet, and checks its lengths and checksums.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let (ip, tcp) = (&bytes[14..34], &bytes[34..]);
        let number = |at: usize| u32::from_be_bytes(*tcp[at..].first_chunk().unwrap());
        let short = |bytes: &[u8]| u16::from_be_bytes(*bytes.first_chunk().unwrap());
        let address = |ip: &[u8], port: &[u8]| {
            let ip: [u8; 4] = *ip.first_chunk().unwrap();
            SocketAddrV4::new(ip.into(), short(port))
        };
        assert_eq!(usize::from(short(&ip[2..])), bytes.len() - 14);
        let offset = usize::from(tcp[12] >> 4) * 4;
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
    // The interface that the packet has come by has a place in the structure of the kernel.
    let mut context = [0; 44];
    context[36..40].copy_from_slice(&interface.to_ne_bytes());
    let (bytes, mut out) = (packet.write(), [0; 256]);
    let mut programs = forwarder.object.progs_mut();
    let program = programs.find(|program| program.name() == "evk_forward");
    let input = ProgramInput {
        context_in: Some(&mut context),
        data_in: Some(&bytes),
        data_out: Some(&mut out),
        ..ProgramInput::default()
    };
    let output = program.unwrap().test_run(input).unwrap();
    match output.return_value {
        REDIRECT => Some(Segment::read(output.data.unwrap())),
        other => {
            assert_eq!(other, NOT_TAKEN, "{packet:?}");
            None
        }
    }
}
