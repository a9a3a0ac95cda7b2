//! Trace of one client's packets: what the program has done with each of them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use serde_json::{Value, json};

use super::layout::{self, Connection, Reader};
use super::outcomes::OUTCOMES;
use super::place::Place;
use super::table::read_table;
use super::udp::{KEY, SESSION, UdpSession};
use crate::bpf::{BpfError, failed_to};

/// Map with the client whose packets are told.
pub(super) const FILTER: &str = "evk_trace";
/// Map with the packets.
pub(super) const PACKETS: &str = "evk_traced";

/// Answer of the program that lets other programs, and the system, have the packet (`TC_ACT_UNSPEC`).
const PASS: i32 = -1;
/// Answer of the program that drops the packet (`TC_ACT_SHOT`).
const DROP: i32 = 2;

/// Result of the program for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet is sent on.
    Forwarded,
    /// The system has the packet, and the proxy, if the packet is for a rule.
    LeftToSystem,
    /// The packet is gone.
    Dropped,
}

impl Verdict {
    fn of_answer(answer: i32) -> Self {
        match answer {
            PASS => Verdict::LeftToSystem,
            DROP => Verdict::Dropped,
            _ => Verdict::Forwarded,
        }
    }
}

/// Header of a packet, as far as a trace shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedHeader {
    /// Sender; port 0 if the packet has no ports.
    pub from: SocketAddr,
    /// Receiver, likewise.
    pub to: SocketAddr,
    /// Number of the protocol above IP.
    pub protocol: u8,
    /// Flags of TCP, as in its header; 0 for other protocols.
    pub flags: u8,
    /// Sequence number of TCP.
    pub sequence: u32,
    /// Acknowledged number of TCP.
    pub acknowledged: u32,
    /// Bytes behind the header of TCP or UDP.
    pub length: u32,
}

impl TracedHeader {
    fn read(bytes: &mut Reader<'_>) -> Self {
        let (from, to) = (bytes.address(), bytes.address());
        let (sequence, acknowledged) = (bytes.u32(), bytes.u32());
        let length = bytes.u32();
        let [protocol, flags, _, _] = bytes.u32().to_ne_bytes();
        TracedHeader {
            from,
            to,
            protocol,
            flags,
            sequence,
            acknowledged,
            length,
        }
    }

    fn to_json(self) -> Value {
        json!({
            "from": self.from,
            "to": self.to,
            "protocol": self.protocol,
            "tcp_flags": self.flags,
            "sequence": self.sequence,
            "acknowledged": self.acknowledged,
            "bytes": self.length,
        })
    }

    /// Returns the protocol, for TCP with the flags: `TCP SYN,ACK`.
    pub fn describe(&self) -> String {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        match i32::from(self.protocol) {
            libc::IPPROTO_TCP => {
                let set = NAMES.iter().enumerate();
                let set = set.filter(|(bit, _)| self.flags & 1 << bit != 0);
                let names: Vec<_> = set.map(|(_, name)| *name).collect();
                format!("TCP {}", names.join(","))
            }
            libc::IPPROTO_UDP => "UDP".into(),
            libc::IPPROTO_ICMP => "ICMP".into(),
            libc::IPPROTO_ICMPV6 => "ICMPv6".into(),
            other => format!("protocol {other}"),
        }
    }
}

impl fmt::Display for TracedHeader {
    /// Writes sender and receiver, with ports if there are any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from.port() == 0 && self.to.port() == 0 {
            true => write!(f, "{} → {}", self.from.ip(), self.to.ip()),
            false => write!(f, "{} → {}", self.from, self.to),
        }
    }
}

/// Packet of a client, or to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedPacket {
    /// Time at which the packet was done, in nanoseconds of the machine's clock.
    pub ns: u64,
    /// Number of the interface by which the packet came.
    pub interface: u32,
    /// Result of the program.
    pub verdict: Verdict,
    /// Kinds that the packet was counted as, of [`OUTCOMES`]: names and meanings.
    pub outcomes: Vec<(&'static str, &'static str)>,
    /// Packets before this one for which there was no room.
    pub lost: u32,
    /// Header as the packet came.
    pub before: TracedHeader,
    /// Header as the packet was sent on.
    pub after: TracedHeader,
}

impl TracedPacket {
    /// Bytes of `struct evk_traced_packet`.
    const LENGTH: usize = 152;

    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < Self::LENGTH {
            return None;
        }
        let mut bytes = Reader(bytes);
        let (ns, interface) = (bytes.u64(), bytes.u32());
        let verdict = Verdict::of_answer(bytes.u32().cast_signed());
        let (bits, lost) = (bytes.u32(), bytes.u32());
        let named = OUTCOMES.iter().enumerate();
        let set = named.filter(|(bit, _)| bits & 1 << bit != 0);
        Some(TracedPacket {
            ns,
            interface,
            verdict,
            outcomes: set.map(|(_, outcome)| *outcome).collect(),
            lost,
            before: TracedHeader::read(&mut bytes),
            after: TracedHeader::read(&mut bytes),
        })
    }
}

impl TracedPacket {
    /// Returns the packet, which came by `interface` a time in milliseconds after the first one, for programs.
    pub fn to_json(&self, interface: &str, ms: f64) -> Value {
        let outcomes: Vec<_> = self.outcomes.iter().map(|(name, _)| *name).collect();
        let is_sent = self.verdict == Verdict::Forwarded;
        json!({
            "ms": ms,
            "interface": interface,
            "result": match self.verdict {
                Verdict::Forwarded => "forwarded",
                Verdict::LeftToSystem => "left",
                Verdict::Dropped => "dropped",
            },
            "outcomes": outcomes,
            "lost_before": self.lost,
            "packet": self.before.to_json(),
            "sent": is_sent.then(|| self.after.to_json()),
        })
    }
}

/// Trace that runs. Dropping it ends it.
pub struct Trace {
    filter: MapHandle,
    connections: MapHandle,
    sessions: MapHandle,
    ring: RingBuffer<'static>,
    packets: Arc<Mutex<Vec<TracedPacket>>>,
    client: (IpAddr, u16),
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl Trace {
    /// Begins to trace the packets of the client `ip`, of one of its ports or with 0 of all, for at most `time` from
    /// `now_ns` of the machine's clock on. Native XDP leaves all packets to tc until then.
    ///
    /// # Errors
    ///
    /// No balancer forwards in the kernel of this network namespace, another trace runs, or a right is missing.
    pub fn begin(
        place: &Place,
        ip: IpAddr,
        port: u16,
        now_ns: u64,
        time: Duration,
    ) -> Result<Self, BpfError> {
        let folder = place.folder();
        let filter = open_map(&folder, FILTER)?;
        let connections = open_map(&folder, "evk_connections")?;
        let sessions = open_map(&folder, "evk_udp_sessions")?;
        let map = open_map(&folder, PACKETS)?;
        if read_end(&filter)? > now_ns {
            return Err(BpfError::File(
                "another trace runs in this network namespace; wait until it ends".into(),
            ));
        }
        let packets = Arc::<Mutex<Vec<TracedPacket>>>::default();
        let list = Arc::clone(&packets);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
            list.extend(TracedPacket::read(bytes));
            0
        };
        let failed = || failed_to("read packets of the trace");
        builder.add(&map, take).map_err(failed())?;
        let trace = Trace {
            filter,
            connections,
            sessions,
            ring: builder.build().map_err(failed())?,
            packets,
            client: (ip.to_canonical(), port),
        };
        // What a trace before has left.
        trace.take_packets()?;
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        trace.write_filter(now_ns.saturating_add(nanos))?;
        Ok(trace)
    }

    fn write_filter(&self, until_ns: u64) -> Result<(), BpfError> {
        let (ip, port) = self.client;
        let mut value = until_ns.to_ne_bytes().to_vec();
        value.extend(layout::write_address(SocketAddr::new(ip, port)));
        self.filter
            .update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(failed_to("write a BPF map"))
    }

    /// Takes the packets since the last call.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn take_packets(&self) -> Result<Vec<TracedPacket>, BpfError> {
        self.ring
            .consume()
            .map_err(failed_to("read packets of the trace"))?;
        let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *packets))
    }

    /// Returns the client's connections in the table.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn list_connections(&self) -> Result<Vec<Connection>, BpfError> {
        let mut found = Vec::new();
        read_table::<{ layout::ADDRESS }, { layout::CONNECTION }>(
            &self.connections,
            |key, value| {
                let connection = Connection::read(key, value);
                if self.is_client(connection.pair.client) {
                    found.push(connection);
                }
            },
        )?;
        Ok(found)
    }

    /// Returns the client's sessions of UDP in the table.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn list_sessions(&self) -> Result<Vec<UdpSession>, BpfError> {
        let mut found = Vec::new();
        read_table::<KEY, SESSION>(&self.sessions, |key, value| {
            let session = UdpSession::read(key, value);
            if self.is_client(session.of.client) {
                found.push(session);
            }
        })?;
        Ok(found)
    }

    /// True if an address is the client's that is traced.
    fn is_client(&self, address: SocketAddr) -> bool {
        let (ip, port) = self.client;
        address.ip() == ip && [0, address.port()].contains(&port)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // The trace ends by its time otherwise.
        let _ = self.write_filter(0);
    }
}

fn open_map(folder: &Path, name: &str) -> Result<MapHandle, BpfError> {
    let path = folder.join(name);
    // Where nothing is pinned the folder is missing, or cannot be looked into.
    match folder.try_exists() {
        Ok(false) => Err(BpfError::File(format!(
            "no balancer of this version forwards in the kernel of this network namespace ({} is missing)",
            folder.display()
        ))),
        Err(error) => Err(BpfError::File(format!(
            "cannot look into {}: {error}",
            folder.display()
        ))),
        Ok(true) => MapHandle::from_pinned_path(path).map_err(failed_to("open a BPF map")),
    }
}

fn read_end(filter: &MapHandle) -> Result<u64, BpfError> {
    let value = filter
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(failed_to("read a BPF map"))?;
    Ok(Reader(&value.unwrap_or_default()).u64())
}
