//! Copies of connections that another balancer forwards: entries of the table that count nowhere, until a packet of the
//! connection comes here (`bpf/copies.bpf.h`).

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nix::ifaddrs::getifaddrs;

use super::layout::{
    ADDRESS, ANSWERED, CLIENT_FIN, CONFIRMED, CONNECTION, COPIED, Connection, DIRECT, ESTABLISHED,
    MEMBER_FIN, Reader, UNIT, write_address, write_ip,
};
use super::udp::UdpClient;
use crate::bpf::BpfError;

/// Flags of a copy whose numbers of a side are old, until a packet of the side says them.
pub(super) const LOOSE_CLIENT: u32 = 1 << 16;
pub(super) const LOOSE_MEMBER: u32 = 1 << 17;

/// Session with all that another balancer needs to forward the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpCopy {
    /// Client and listening address.
    pub of: UdpClient,
    /// Address of the member.
    pub member: SocketAddr,
    /// Number of the member's seat.
    pub seat: u32,
    /// Address that the member sees with full NAT.
    pub source: Option<SocketAddr>,
    /// True if the member answers the client without the balancer.
    pub is_direct: bool,
    /// True if the member has answered.
    pub is_answered: bool,
    /// Time of the first datagram, in nanoseconds of the machine's clock.
    pub began_ns: u64,
    /// Time of the last datagram, likewise, to a millisecond.
    pub seen_ns: u64,
}

/// Connection of the table with all that another balancer needs to forward it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableCopy {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client has connected to.
    pub listener: SocketAddr,
    /// Address of the member.
    pub member: SocketAddr,
    /// Number of the member's seat.
    pub seat: u32,
    /// Address that the member sees with full NAT.
    pub source: Option<SocketAddr>,
    /// True if the member answers the client without the balancer.
    pub is_direct: bool,
    /// True if the member has sent something.
    pub is_answered: bool,
    /// True if the client has closed its half.
    pub has_client_fin: bool,
    /// True if the member has closed its half.
    pub has_member_fin: bool,
    /// Number behind all that the client has sent, and last number of the member that it has acknowledged.
    pub client_side: (u32, u32),
    /// Numbers of the member, likewise.
    pub member_side: (u32, u32),
    /// Distance of the timestamps that the member sees from the client's.
    pub shift: u32,
    /// Time of the client's SYN, in nanoseconds of the machine's clock.
    pub began_ns: u64,
    /// Time of the last packet, likewise, to a millisecond.
    pub seen_ns: u64,
}

/// Result of a copy: `enum evk_copy_result`, and results of copies, or of messages, that the program does not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyResult {
    /// The kernel has refused the copy.
    Failed = 0,
    /// The copy is a new entry.
    Written = 1,
    /// The copy was there, and has the new numbers.
    Updated,
    /// The connection was this balancer's. Its packets pass the other one now.
    Yielded,
    /// The client has a connection here, of which packets pass this balancer.
    Own,
    /// The table has no place.
    Full,
    /// The port towards the member has a connection of this balancer.
    Port,
    /// No rule of this balancer that the kernel forwards listens at the address.
    NoListener,
    /// The rule's group has no such member.
    NoMember,
    /// The rule has another `return_path` here.
    OtherPath,
    /// The message is none.
    Malformed,
}

impl CopyResult {
    /// True if the copy is in the table.
    pub fn is_kept(self) -> bool {
        matches!(
            self,
            CopyResult::Written | CopyResult::Updated | CopyResult::Yielded
        )
    }

    /// Reads the result of a program.
    pub(super) fn read(result: i32) -> Result<Self, BpfError> {
        match result {
            0 => Ok(CopyResult::Failed),
            1 => Ok(CopyResult::Written),
            2 => Ok(CopyResult::Updated),
            3 => Ok(CopyResult::Yielded),
            4 => Ok(CopyResult::Own),
            5 => Ok(CopyResult::Full),
            6 => Ok(CopyResult::Port),
            _ => Err(BpfError::Lost("a BPF program has another layout")),
        }
    }
}

/// Result of the end of a copy: `enum evk_end_result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// Nothing was there.
    Nothing,
    /// The copy is removed.
    Removed,
    /// The connection was this balancer's, and has ended.
    Ended,
    /// The connection is this balancer's, and packets of the connection have come here lately.
    Fresh,
}

/// Entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub(super) key: &'a [u8; ADDRESS],
    pub(super) value: &'a [u8; CONNECTION],
}

impl Entry<'_> {
    /// Returns all that another balancer needs. `now_ns` is the time of the machine's clock.
    pub fn copy(&self, now_ns: u64) -> TableCopy {
        let connection = Connection::read(self.key, self.value);
        let mut bytes = Reader(self.value);
        let (began_ns, _, flags) = (bytes.u64(), bytes.u32(), bytes.u32());
        // Addresses of the listener and the member, their ports and the seat, which `connection` has.
        let _ = (bytes.ip(), bytes.ip(), bytes.u32(), bytes.u16());
        let source_port = bytes.port();
        let _ = (bytes.u64(), bytes.u64());
        let mut read_side = || (bytes.u32(), bytes.u32());
        let (client_side, member_side) = (read_side(), read_side());
        let (source, shift) = (bytes.ip(), bytes.u32());
        let has = |flag| flags & flag != 0;
        let silence = connection.find_silence(now_ns).as_nanos();
        TableCopy {
            client: connection.pair.client,
            listener: connection.listener,
            member: connection.pair.member,
            seat: connection.seat,
            source: (source_port != 0).then(|| SocketAddr::new(source, source_port)),
            is_direct: has(DIRECT),
            is_answered: has(ANSWERED),
            has_client_fin: has(CLIENT_FIN),
            has_member_fin: has(MEMBER_FIN),
            client_side,
            member_side,
            shift,
            began_ns,
            seen_ns: now_ns.saturating_sub(u64::try_from(silence).unwrap_or(u64::MAX)),
        }
    }
}

impl TableCopy {
    /// Returns `struct evk_copy_order`.
    pub(super) fn write(&self) -> Vec<u8> {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let flags = ESTABLISHED
            | CONFIRMED
            | COPIED
            | LOOSE_CLIENT
            // With direct answers no packet of the member is seen.
            | bit(!self.is_direct, LOOSE_MEMBER)
            | bit(self.is_direct, DIRECT)
            | bit(self.is_answered, ANSWERED)
            | bit(self.has_client_fin, CLIENT_FIN)
            | bit(self.has_member_fin, MEMBER_FIN);
        let source = self.source.map_or([0; 16], |source| write_ip(source.ip()));
        let source_port = self.source.map_or(0, |source| source.port());
        let mut out = write_address(self.client).to_vec();
        out.extend(self.began_ns.to_ne_bytes());
        out.extend(((self.seen_ns >> UNIT) as u32).to_ne_bytes());
        out.extend(flags.to_ne_bytes());
        out.extend(write_ip(self.listener.ip()));
        out.extend(write_ip(self.member.ip()));
        out.extend(self.listener.port().to_be_bytes());
        out.extend(self.member.port().to_be_bytes());
        out.extend((self.seat as u16).to_ne_bytes());
        out.extend(source_port.to_be_bytes());
        // Bytes are counted where they pass.
        out.extend([0; 16]);
        for (next, acked) in [self.client_side, self.member_side] {
            out.extend(next.to_ne_bytes());
            out.extend(acked.to_ne_bytes());
        }
        out.extend(source);
        out.extend(self.shift.to_ne_bytes());
        out.extend([0; 4]);
        out
    }
}

impl TableCopy {
    pub(super) const NOTHING: TableCopy = {
        let nobody = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
        TableCopy {
            client: nobody,
            listener: nobody,
            member: nobody,
            seat: 0,
            source: None,
            is_direct: false,
            is_answered: false,
            has_client_fin: false,
            has_member_fin: false,
            client_side: (0, 0),
            member_side: (0, 0),
            shift: 0,
            began_ns: 0,
            seen_ns: 0,
        }
    };
}

/// Returns the addresses of this machine.
///
/// # Errors
///
/// The system does not tell its addresses.
pub fn list_addresses() -> Result<HashSet<IpAddr>, BpfError> {
    let all =
        getifaddrs().map_err(|error| BpfError::File(format!("cannot list addresses: {error}")))?;
    let ips = all.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(ips.collect())
}
