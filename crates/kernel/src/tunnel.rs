//! Tunnels of balancers that end at this machine, a member (`return_path = "tunnel"`): the programs on its interfaces.
//!
//! `bpf/receive.bpf.c` takes clients' packets out of tunnels, for the addresses of [`receive`](crate::receive). Programs
//! and maps are held by the interfaces' filters and by files, so no process stays.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder,
};
use nix::net::if_::{if_indextoname, if_nameindex};

use crate::bpf::{
    self, BpfError, Programs, create_clsact, failed_to, failed_to_load, find_program,
};
use crate::forward::list_interfaces;

/// Version of the maps, part of the folder's name.
const LAYOUT: u32 = 1;

/// Place of the filters among those of an interface.
const PRIORITY: u32 = 3700;

/// Number of the filters there: a fixed one, so the next call replaces the filters.
const HANDLE: u32 = 1;

const BALANCERS: &str = "evk_balancers";
const RECEIVED: &str = "evk_received";
const COUNTS: &str = "evk_received_counts";

/// Bytes that a tunnel adds to a packet of IPv4 at most: IP, UDP, GUE, and the addresses of two other members.
const OVERHEAD: u32 = 20 + 8 + 4 + 4 + 8;

/// Bytes that a tunnel adds to a packet of IPv6, likewise.
const OVERHEAD6: u32 = 40 + 8 + 4 + 4 + 32;

/// Kinds of packets, in the order of `enum evk_count`: a name for scripts, and the meaning of each.
pub const PACKETS: [(&str, &str); 6] = [
    ("taken", "taken out of tunnels for this machine"),
    (
        "handed_on",
        "sent to the next member, as no socket of this machine has the connection",
    ),
    (
        "stranger",
        "left to the system: packets to the port of tunnels from senders that are not named as balancers",
    ),
    (
        "malformed",
        "dropped: wrong lengths or fields, or a packet within to an address that is not received for",
    ),
    (
        "no_way",
        "dropped: cannot be sent on, or have lived too long",
    ),
    (
        "clamped",
        "acceptances (SYN-ACK) with a smaller size of segments, so packets fit into the tunnel",
    ),
];

/// Status of this machine as the end of tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelStatus {
    /// Addresses of balancers whose tunnels are taken.
    pub balancers: BTreeSet<IpAddr>,
    /// Addresses of rules that clients' packets may have.
    pub addresses: BTreeSet<IpAddr>,
    /// Numbers of packets, in the order of [`PACKETS`].
    pub counts: [u64; PACKETS.len()],
}

impl TunnelStatus {
    /// Returns the status as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        let counts = PACKETS.iter().zip(self.counts);
        let packets: serde_json::Map<_, _> = counts
            .map(|((name, _), count)| ((*name).to_owned(), count.into()))
            .collect();
        serde_json::json!({
            "balancers": self.balancers,
            "addresses": self.addresses,
            "packets": packets,
        })
    }
}

/// Takes clients' packets to these addresses out of the tunnels of these balancers, instead of those of a call before.
/// Returns the number of interfaces with the programs.
///
/// # Errors
///
/// A right or a map is missing, or the kernel refuses.
pub fn attach(
    addresses: &BTreeSet<IpAddr>,
    balancers: &BTreeSet<IpAddr>,
) -> Result<usize, BpfError> {
    let folder = find_folder();
    bpf::pin_folder(&folder)?;
    let mut object = bpf::open_programs(crate::bpf_object!("receive.bpf.o"))?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if [BALANCERS, RECEIVED, COUNTS].contains(&name.as_str()) {
            map.set_pin_path(folder.join(name))
                .map_err(failed_to("hold a BPF map"))?;
        }
    }
    let object = object.load().map_err(failed_to_load(Programs::Tunnels))?;
    let interfaces = list_interfaces()?;
    write_addresses(&folder, addresses, &interfaces)?;
    write_keys(&open_map(&folder, BALANCERS)?, balancers, |_| 1)?;
    for &interface in &interfaces {
        create_clsact(interface)?;
        for (program, at) in [("evk_receive", TC_INGRESS), ("evk_clamp", TC_EGRESS)] {
            let mut hook = find_hook(find_program(&object, program)?.as_fd(), interface, at);
            hook.replace(true);
            hook.attach().map_err(failed_to("attach the tc filter"))?;
        }
    }
    Ok(interfaces.len())
}

/// Lets the programs take packets to these addresses only; without an address, removes the programs. Nothing happens
/// without programs.
///
/// # Errors
///
/// The kernel refuses, or a file cannot be removed.
pub fn limit(addresses: &BTreeSet<IpAddr>) -> Result<(), BpfError> {
    let folder = find_folder();
    if !folder.join(RECEIVED).exists() {
        return Ok(());
    }
    if addresses.is_empty() {
        remove(&folder)
    } else {
        write_addresses(&folder, addresses, &list_interfaces()?)
    }
}

/// Returns the status; `None` if no tunnel ends here.
///
/// # Errors
///
/// A map cannot be read.
pub fn read_status() -> Result<Option<TunnelStatus>, BpfError> {
    let folder = find_folder();
    if !folder.join(RECEIVED).exists() {
        return Ok(None);
    }
    let counts = open_map(&folder, COUNTS)?;
    let mut sums = [0; PACKETS.len()];
    for (number, sum) in (0u32..).zip(&mut sums) {
        let values = counts
            .lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY)
            .map_err(failed_to("read a BPF map"))?;
        let of_cpu = |bytes: Vec<u8>| bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
        *sum = values.into_iter().flatten().map(of_cpu).sum();
    }
    Ok(Some(TunnelStatus {
        balancers: list_keys(&open_map(&folder, BALANCERS)?),
        addresses: list_keys(&open_map(&folder, RECEIVED)?),
        counts: sums,
    }))
}

/// Takes the programs from all interfaces, and removes the maps.
fn remove(folder: &Path) -> Result<(), BpfError> {
    let path = "/proc/thread-self/ns/net";
    let failed = |path: &Path, error: io::Error| {
        BpfError::File(format!("cannot remove {}: {error}", path.display()))
    };
    // A hook needs a program only to attach the program.
    let any = File::open(path).map_err(|error| failed(Path::new(path), error))?;
    let interfaces = if_nameindex()
        .map_err(|error| BpfError::File(format!("cannot list interfaces: {error}")))?;
    bpf::lead_messages();
    for interface in &interfaces {
        for at in [TC_INGRESS, TC_EGRESS] {
            // An interface may have no filter.
            let _ = find_hook(any.as_fd(), interface.index(), at).detach();
        }
    }
    for name in [BALANCERS, RECEIVED, COUNTS] {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&path, error));
            }
            _ => {}
        }
    }
    // Somebody else's files may be there.
    let _ = fs::remove_dir(folder);
    Ok(())
}

/// Returns the folder of the maps in the network namespace of this thread.
fn find_folder() -> PathBuf {
    let namespace = rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |stat| stat.st_ino);
    Path::new("/sys/fs/bpf/evenkeel").join(format!("tunnel-{LAYOUT}-{namespace}"))
}

fn find_hook(program: std::os::fd::BorrowedFd<'_>, interface: u32, at: TcAttachPoint) -> TcHook {
    TcHookBuilder::new(program)
        .ifindex(interface.cast_signed())
        .handle(HANDLE)
        .priority(PRIORITY)
        .hook(at)
}

fn open_map(folder: &Path, name: &str) -> Result<MapHandle, BpfError> {
    MapHandle::from_pinned_path(folder.join(name)).map_err(failed_to("open a BPF map"))
}

/// Writes the addresses of rules, with the largest segments that fit through these interfaces.
fn write_addresses(
    folder: &Path,
    addresses: &BTreeSet<IpAddr>,
    interfaces: &BTreeSet<u32>,
) -> Result<(), BpfError> {
    let mtus = interfaces.iter().filter_map(|index| read_mtu(*index).ok());
    let mtu = mtus.min().unwrap_or(1500);
    write_keys(&open_map(folder, RECEIVED)?, addresses, |ip| {
        find_segment_size(ip, mtu)
    })
}

/// Returns the largest segment of TCP whose packet fits into a tunnel, where the system sends packets of `mtu` bytes.
fn find_segment_size(ip: IpAddr, mtu: u32) -> u32 {
    let headers = match ip {
        IpAddr::V4(_) => 20 + 20 + OVERHEAD,
        IpAddr::V6(_) => 40 + 20 + OVERHEAD6,
    };
    // Everybody takes segments of this size.
    mtu.saturating_sub(headers).clamp(216, 65_535)
}

/// Makes these addresses the keys of a map.
fn write_keys(
    map: &MapHandle,
    addresses: &BTreeSet<IpAddr>,
    find_value: impl Fn(IpAddr) -> u32,
) -> Result<(), BpfError> {
    for ip in addresses {
        let value = find_value(*ip).to_ne_bytes();
        map.update(&write_ip(*ip), &value, MapFlags::ANY)
            .map_err(failed_to("write a BPF map"))?;
    }
    let is_old = |ip: &IpAddr| !addresses.contains(ip);
    for ip in list_keys(map).into_iter().filter(is_old) {
        map.delete(&write_ip(ip))
            .map_err(failed_to("write a BPF map"))?;
    }
    Ok(())
}

fn list_keys(map: &MapHandle) -> BTreeSet<IpAddr> {
    let read = |key: Vec<u8>| {
        let octets: [u8; 16] = key.try_into().ok()?;
        Some(Ipv6Addr::from(octets).to_canonical())
    };
    map.keys().filter_map(read).collect()
}

/// Returns `struct evk_ip`.
fn write_ip(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Reads the largest packet of an interface.
fn read_mtu(index: u32) -> io::Result<u32> {
    let name = if_indextoname(index)?;
    let socket = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"))?;
    // SAFETY: all bytes of 0 are a request without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte of 0 stays behind the name.
    let place = request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1);
    for (to, from) in place.zip(name.to_bytes()) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request lives through the call, which writes no more than the request.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled in this field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
