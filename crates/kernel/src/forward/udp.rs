//! Sessions of UDP in the kernel: keys and values of the maps of `bpf/udp.bpf.h`, and the calls that use them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use libbpf_rs::{Map, MapCore, MapFlags};

use super::layout::{ADDRESS, Age, NatPorts, Pair, Reader, UNIT, write_address};
use super::table::read_table;
use super::{Forwarder, LISTENERS, find_map};
use crate::bpf::{self, BpfError, failed_to};

/// Number of connections that the table of connections has room for, for each session that the table of sessions has room for.
pub(super) const CONNECTIONS_PER_SESSION: u32 = 2;

/// Maps that outlive a process.
pub(super) const PINNED: [&str; 5] = [
    "evk_udp_listeners",
    "evk_udp_counts",
    "evk_udp_clients",
    "evk_udp_sessions",
    "evk_udp_kept",
];

/// Maps with the size of the table of sessions.
pub(super) const SIZED: [&str; 3] = ["evk_udp_clients", "evk_udp_sessions", "evk_udp_kept"];

/// Flag of a session whose client has gone to another member.
const LEAVES: u32 = 64;

/// Listening address of a UDP rule, with what its sessions get: `struct evk_udp_listener`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpListener {
    /// Address that clients send datagrams to.
    pub address: SocketAddr,
    /// Number of the group.
    pub group: u32,
    /// True if a client whose member has failed goes to another member.
    pub retries: bool,
    /// Ports that members see with full NAT; `None` if they see the client's address.
    pub nat: Option<NatPorts>,
    /// Time without a datagram after which a session is over.
    pub idle: Duration,
    /// Time for the first answer; `None` if no answer is expected.
    pub answer: Option<Duration>,
}

impl UdpListener {
    pub(super) fn write(&self) -> [u8; 20] {
        let mut out = [0; 20];
        let (first, count) = self.nat.map_or((0, 0), |ports| (ports.first, ports.count));
        let answer = self.answer.map_or(0, |answer| count_units(answer).max(1));
        let parts = [
            &self.group.to_ne_bytes()[..],
            &u32::from(self.retries).to_ne_bytes(),
            &first.to_ne_bytes(),
            &count.to_ne_bytes(),
            &count_units(self.idle).to_ne_bytes(),
            &answer.to_ne_bytes(),
        ];
        let bytes = parts.into_iter().flatten();
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        out
    }
}

/// Returns a time in the units of the maps, at most half of the time after which their number wraps.
fn count_units(time: Duration) -> u32 {
    let units = time.as_nanos() >> UNIT;
    u32::try_from(units).map_or(i32::MAX as u32, |units| units.min(i32::MAX as u32))
}

/// Client of a listening address: `struct evk_udp_client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpClient {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client sends datagrams to.
    pub listener: SocketAddr,
}

/// Bytes of two addresses, the length of keys.
const KEY: usize = 2 * ADDRESS;

impl UdpClient {
    fn read(bytes: &mut Reader<'_>) -> Self {
        UdpClient {
            client: bytes.address(),
            listener: bytes.address(),
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        [write_address(self.client), write_address(self.listener)].concat()
    }
}

/// Session in the table: `struct evk_udp_session`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpSession {
    /// Address of the member.
    pub member: SocketAddr,
    /// Address that the member sees: the client's one with half NAT.
    pub source: SocketAddr,
    /// Client and listening address.
    pub of: UdpClient,
    /// Time of the first datagram, in nanoseconds of the machine's clock.
    pub began_ns: u64,
    pub(super) age: Age,
    /// Number of the member's seat.
    pub seat: u32,
    /// Bytes from the client, and to the client.
    pub bytes: (u64, u64),
    /// Datagrams from the client, and to the client.
    pub datagrams: (u64, u64),
}

/// Bytes of a session in the table, without the key.
const SESSION: usize = 104;

/// Reason for which a session is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpEnd {
    /// No datagram has come for a while.
    Idle = 0,
    /// The member has not answered.
    Silent = 4,
}

impl UdpSession {
    pub(super) fn read(key: &[u8], value: &[u8]) -> Self {
        let mut ends = Reader(key);
        let mut bytes = Reader(value);
        let (began_ns, _) = (bytes.u64(), bytes.u64());
        let of = UdpClient::read(&mut bytes);
        let (seat, _) = (bytes.u32(), bytes.u32());
        UdpSession {
            member: ends.address(),
            source: ends.address(),
            of,
            began_ns,
            age: Age::read(value),
            seat,
            bytes: (bytes.u64(), bytes.u64()),
            datagrams: (bytes.u64(), bytes.u64()),
        }
    }

    /// Returns the addresses of both ends.
    pub fn pair(&self) -> Pair {
        Pair {
            member: self.member,
            client: self.of.client,
        }
    }

    /// Returns the time since the last datagram at `now_ns`, to a millisecond; for a session that leaves its member, since
    /// then.
    pub fn find_silence(&self, now_ns: u64) -> Duration {
        self.age.find_silence(now_ns)
    }

    /// Returns the time since the first datagram at `now_ns`.
    pub fn find_age(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.began_ns))
    }

    /// True if the session is in flight.
    pub fn is_open(&self) -> bool {
        self.age.is_open()
    }

    /// True if the member has answered.
    pub fn is_answered(&self) -> bool {
        self.age.is_answered()
    }

    /// True if the client's next datagrams belong to another session.
    pub fn leaves(&self) -> bool {
        self.age.has_flag(LEAVES)
    }

    /// True if the member sees an address and a port of the balancer.
    pub fn has_nat(&self) -> bool {
        self.source != self.of.client
    }
}

/// Counts of a listening address: `struct evk_udp_counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounts {
    /// Sessions that have begun in the kernel.
    pub begun: u64,
    /// Sessions now.
    pub open: i64,
    /// Bytes from clients, and to clients, of sessions that have ended.
    pub bytes: (u64, u64),
    /// Datagrams from clients, and to clients, of sessions that have ended.
    pub datagrams: (u64, u64),
}

impl UdpCounts {
    const LENGTH: usize = 48;

    fn read(value: &[u8]) -> Self {
        let mut bytes = Reader(value);
        UdpCounts {
            begun: bytes.u64(),
            open: bytes.u64().cast_signed(),
            bytes: (bytes.u64(), bytes.u64()),
            datagrams: (bytes.u64(), bytes.u64()),
        }
    }
}

impl Forwarder {
    /// Makes these the listening addresses of UDP rules. Sessions of others get no more datagrams of clients.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn set_udp_listeners(&self, listeners: &[UdpListener]) -> Result<(), BpfError> {
        let entries: Vec<_> = listeners.iter().take(LISTENERS).collect();
        let keys: BTreeSet<_> = entries
            .iter()
            .map(|listener| write_address(listener.address).to_vec())
            .collect();
        let map = find_map(&self.object, "evk_udp_listeners")?;
        let counts = find_map(&self.object, "evk_udp_counts")?;
        let old: Vec<_> = map.keys().filter(|key| !keys.contains(key)).collect();
        for key in old {
            map.delete(&key).map_err(failed_to("write a BPF map"))?;
        }
        let others: Vec<_> = counts.keys().filter(|key| !keys.contains(key)).collect();
        for key in others {
            let value = counts.lookup(&key, MapFlags::ANY).ok().flatten();
            if UdpCounts::read(&value.unwrap_or_default()).open <= 0 {
                let _ = counts.delete(&key);
            }
        }
        for listener in entries {
            let key = write_address(listener.address);
            // A known address keeps its counts.
            let _ = counts.update(&key, &[0; UdpCounts::LENGTH], MapFlags::NO_EXIST);
            map.update(&key, &listener.write(), MapFlags::ANY)
                .map_err(failed_to("write a BPF map"))?;
        }
        Ok(())
    }

    /// Returns the counts of a listening address of a UDP rule.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn read_udp_counts(&self, address: SocketAddr) -> Result<UdpCounts, BpfError> {
        let map = find_map(&self.object, "evk_udp_counts")?;
        let value = map
            .lookup(&write_address(address), MapFlags::ANY)
            .map_err(failed_to("read a BPF map"))?;
        Ok(UdpCounts::read(&value.unwrap_or_default()))
    }

    /// Calls `visit` with each session of the table. Some that begin or end meanwhile may be missing.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn visit_udp_sessions(&self, mut visit: impl FnMut(UdpSession)) -> Result<(), BpfError> {
        let map = find_map(&self.object, "evk_udp_sessions")?;
        read_table::<KEY, SESSION>(&map, |key, value| visit(UdpSession::read(key, value)))
    }

    /// Returns the number of sessions that the table has room for.
    ///
    /// # Errors
    ///
    /// A map is missing.
    pub fn read_udp_capacity(&self) -> Result<u32, BpfError> {
        Ok(find_map(&self.object, "evk_udp_sessions")?.max_entries())
    }

    /// Removes a session, if no datagram has come since the session was read. Returns true if it was removed.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn remove_udp_session(&self, session: &UdpSession, end: UdpEnd) -> Result<bool, BpfError> {
        let mut context = [write_address(session.member), write_address(session.source)].concat();
        context.extend(session.age.seen.to_ne_bytes());
        context.extend((end as u32).to_ne_bytes());
        Ok(bpf::run(&self.object, "evk_udp_remove", Some(&mut context))? == 1)
    }

    /// Leaves the datagrams of a client to the process, which has the session since `now_ns`. Returns false if there is no
    /// room for the entry.
    ///
    /// # Errors
    ///
    /// A map is missing.
    pub fn keep_client(&self, client: &UdpClient, now_ns: u64) -> Result<bool, BpfError> {
        let map = self.find_kept()?;
        let value = now_ns.to_ne_bytes();
        Ok(map.update(&client.write(), &value, MapFlags::ANY).is_ok())
    }

    /// Lets the program have the sessions of a client again.
    ///
    /// # Errors
    ///
    /// A map is missing.
    pub fn release_client(&self, client: &UdpClient) -> Result<(), BpfError> {
        // The entry may have found no room.
        let _ = self.find_kept()?.delete(&client.write());
        Ok(())
    }

    /// Calls `visit` with each client whose datagrams are left to the process, and with the time of the entry.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn visit_kept_clients(
        &self,
        mut visit: impl FnMut(UdpClient, u64),
    ) -> Result<(), BpfError> {
        read_table::<KEY, 8>(&self.find_kept()?, |key, value| {
            let client = UdpClient::read(&mut Reader(key));
            visit(client, u64::from_ne_bytes(*value));
        })
    }

    fn find_kept(&self) -> Result<Map<'_>, BpfError> {
        find_map(&self.object, "evk_udp_kept")
    }
}
