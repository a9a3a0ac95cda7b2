//! CPU time of a packet in the middle of a connection, from one interface of the balancer to the other.
//!
//! The kernel makes the packets at the driver of the clients' interface, and drops them at the driver of the members'
//! interface, both inline: what this process takes is the time of all. The same for packets that are dropped at the
//! balancer's first interface is subtracted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use evenkeel_bench::server::pin_to;
use evenkeel_e2e::netns::{BACK, FRONT, run_ip};
use evenkeel_kernel::traffic::{FRAMES, LENGTH, Traffic};

use crate::cost::Meter;
use crate::ground::{Arm, Balancer, Ground, member_addresses, name};
use crate::results::{PACKET, PACKET_NS, Results};
use crate::traffic::{SMALL, Servers};
use crate::{Result, Run};

/// Balancers of the row.
const ARMS: [Arm; 4] = [Arm::Sink, Arm::Router, Arm::Kernel, Arm::KernelXdp];
/// Number of open connections, which packets belong to in turn.
const CONNECTIONS: usize = 16;
/// Hardware address of the balancer towards clients.
const BALANCER_MAC: [u8; 6] = [2, 0, 0, 0, 78, 1];
/// Hardware address of the clients.
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 78, 2];

/// A balancer with open connections, and packets of these.
struct Way {
    balancer: Balancer,
    frames: Box<[[u8; LENGTH]; FRAMES]>,
    interface: u32,
    traffic: Traffic,
    _connections: Vec<TcpStream>,
    _servers: Servers,
}

/// Measures the row.
///
/// # Errors
///
/// Returns an error if there are no namespaces.
pub(crate) fn measure(run: &Run, results: &mut Results) -> Result<()> {
    if let Err(error) = Traffic::open() {
        println!("packets are skipped: {error}");
        return Ok(());
    }
    pin_to(run.cpu)?;
    let ways = ARMS.into_iter().map(|arm| Way::open(run, arm));
    let mut ways = ways.collect::<Result<Vec<_>>>()?;
    let count = run.scale(2_000_000, 500_000);
    for round in 0..run.rounds(15, 5) {
        let mut times = Vec::new();
        for way in &ways {
            way.send(count / 10)?;
            let meter = Meter::start(&way.balancer, run.cpu)?;
            way.send(count)?;
            times.push((way.balancer.arm, meter.stop()? * 1000.0 / f64::from(count)));
        }
        let sink = times.iter().find(|(arm, _)| *arm == Arm::Sink);
        let (_, sink) = *sink.ok_or("no arm without a balancer")?;
        for (arm, time) in times {
            if arm != Arm::Sink {
                results.add_metric(PACKET, PACKET_NS, arm.name(), round, time - sink);
            }
        }
        ways.reverse();
    }
    let xdp = ways.iter().find(|way| way.balancer.arm == Arm::KernelXdp);
    xdp.map_or(Ok(()), |way| way.check_xdp(count))
}

impl Way {
    fn open(run: &Run, arm: Arm) -> Result<Self> {
        let ground = Ground::new()?;
        prepare_interfaces(&ground)?;
        let servers = Servers::start(&ground.pair.back)?;
        let more = match arm {
            Arm::KernelXdp => "[kernel_forwarding]\nxdp_interfaces = [\"client1\", \"front0\"]",
            _ => "",
        };
        let balancer = Balancer::start(run, arm, ground, run.cpu, &member_addresses(), more)?;
        balancer.wait_until_ready()?;
        if arm == Arm::KernelXdp {
            balancer.wait_until_xdp()?;
        }
        let targets = arm.targets();
        let connect = |number: usize| -> std::io::Result<TcpStream> {
            let mut stream = TcpStream::connect(targets[number % targets.len()])?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            let mut answer = [b'e'; SMALL];
            stream.write_all(&answer)?;
            stream.read_exact(&mut answer)?;
            Ok(stream)
        };
        let clients = &balancer.ground.clients;
        let connections = clients.run_inside(|| {
            (0..CONNECTIONS)
                .map(connect)
                .collect::<std::io::Result<Vec<_>>>()
        })?;
        let mut frames = Box::new([[0; LENGTH]; FRAMES]);
        for (frame, connection) in frames.iter_mut().zip(connections.iter().cycle()) {
            *frame = write_frame(connection.local_addr()?, connection.peer_addr()?);
        }
        let traffic = Traffic::open()?;
        let (namespace, sink) = match arm {
            Arm::Sink => (&balancer.ground.pair.front, "client1"),
            _ => (&balancer.ground.pair.back, BACK),
        };
        namespace.run_inside(|| traffic.drop_at(find_interface(sink)?))?;
        let interface = clients.run_inside(|| find_interface("client0"))?;
        Ok(Way {
            balancer,
            frames,
            interface,
            traffic,
            _connections: connections,
            _servers: servers,
        })
    }

    /// Sends packets, and checks that they arrive.
    fn send(&self, count: u32) -> Result<()> {
        let clients = &self.balancer.ground.clients;
        let send = || self.traffic.send(&self.frames, self.interface, count);
        let arrived = clients.run_inside(send)?;
        if arrived < u64::from(count) / 100 * 99 {
            let arm = self.balancer.arm.name();
            return Err(format!("{arm}: {arrived} of {count} packets have arrived").into());
        }
        Ok(())
    }

    /// Checks that packets went through XDP.
    fn check_xdp(&self, count: u32) -> Result<()> {
        // The balancer reads the counts of the kernel twice a second.
        self.balancer.wait_until(|| {
            let answer = self.balancer.ask_admin("/v1/forward")?;
            let (_, rest) = answer.split_once("\"by_xdp\":").ok_or("no count of XDP")?;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            if digits.parse::<u64>()? < u64::from(count) {
                return Err(format!("only {digits} packets went through XDP").into());
            }
            Ok(())
        })
    }
}

/// Gives the interfaces the addresses of the frames, and lets them take frames from XDP.
fn prepare_interfaces(ground: &Ground) -> Result<()> {
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    for (namespace, interface, mac) in [
        (&ground.clients, "client0", CLIENT_MAC),
        (&ground.pair.front, "client1", BALANCER_MAC),
    ] {
        run_ip(&format!(
            "-n {} link set {interface} address {}",
            name(namespace),
            text(mac)
        ));
    }
    for (namespace, interface) in [
        (&ground.clients, "client0"),
        (&ground.pair.front, "client1"),
        (&ground.pair.front, FRONT),
        (&ground.pair.back, BACK),
    ] {
        let mut ethtool: Command = namespace.command("ethtool");
        let output = ethtool.args(["-K", interface, "gro", "on"]).output()?;
        if !output.status.success() {
            return Err(format!("ethtool cannot switch on GRO of {interface}").into());
        }
    }
    Ok(())
}

/// Returns the number of an interface of this thread's network namespace.
fn find_interface(name: &str) -> std::result::Result<u32, String> {
    let text = std::ffi::CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: the name ends with a zero.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => Err(format!("there is no interface {name}")),
        index => Ok(index),
    }
}

/// Returns an acknowledgement of a client without data, in an Ethernet frame.
fn write_frame(from: SocketAddr, to: SocketAddr) -> [u8; LENGTH] {
    let mut frame = [0; LENGTH];
    frame[..6].copy_from_slice(&BALANCER_MAC);
    frame[6..12].copy_from_slice(&CLIENT_MAC);
    frame[12..14].copy_from_slice(&[8, 0]);
    let octets = |address: SocketAddr| match address {
        SocketAddr::V4(address) => address.ip().octets(),
        SocketAddr::V6(_) => [0; 4],
    };
    let ip = &mut frame[14..34];
    ip[..10].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6]);
    ip[12..16].copy_from_slice(&octets(from));
    ip[16..20].copy_from_slice(&octets(to));
    let check = sum_words(ip, 0);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let tcp = &mut frame[34..54];
    tcp[..2].copy_from_slice(&from.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
    tcp[4..12].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
    tcp[12..16].copy_from_slice(&[0x50, 16, 1, 0]);
    let pseudo = [octets(from), octets(to), [0, 6, 0, 20]].concat();
    let pseudo = u32::from(!sum_words(&pseudo, 0));
    let check = sum_words(tcp, pseudo);
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    frame
}

/// Returns the checksum of words, beginning with a sum.
fn sum_words(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks_exact(2);
    let words = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = words.sum::<u32>() + start;
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use crate::ground::{BALANCER, PORT};

    use super::*;

    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

    #[test]
    fn frames_have_their_checksums() {
        let frame = write_frame((CLIENT, 4_000).into(), (BALANCER, PORT).into());
        assert_eq!(sum_words(&frame[14..34], 0), 0);
        let pseudo = [CLIENT.octets(), BALANCER.octets(), [0, 6, 0, 20]].concat();
        let pseudo = u32::from(!sum_words(&pseudo, 0));
        assert_eq!(sum_words(&frame[34..54], pseudo), 0);
    }
}
