//! Forwarding of TCP connections and sessions of UDP in the kernel: the programs, their maps and the interfaces.
//!
//! `bpf/forward.bpf.c` chooses members and forwards packets; a balancer writes terms of decisions, reads
//! [`Event`]s, and removes connections that are over. Maps are pinned, and the filters on interfaces hold
//! the program, so connections continue while no process runs. The next process finds the maps.

mod copies;
mod counts;
mod detach;
mod groups;
mod hints;
mod layout;
mod learnt_ids;
mod limit_tables;
mod limits;
mod listeners;
mod nat;
mod outcomes;
mod place;
mod quic;
mod removals;
mod requests;
mod row_table;
mod rows;
mod sessions;
mod table;
mod table_copy;
mod tcx;
#[cfg(test)]
mod tests;
mod trace;
mod udp;
mod udp_copies;
mod xdp;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::{
    Map, MapCore, MapFlags, MapHandle, Object, OpenObject, RingBuffer, RingBufferBuilder,
    TC_INGRESS, TcHook, TcHookBuilder,
};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

pub use self::counts::Counts;
pub use self::detach::{Detachment, Removed};
use self::layout::{Age, SourceLimit};
use self::layout::{CONNECTIONS_PER_SESSION, UDP_PINNED, UDP_SIZED};
pub use self::learnt_ids::LearntIds;
pub use self::limits::{
    ClientLimits, ClientRate, CountedPlace, LimitCounts, LimitPlace, ListenerLimits,
    MAX_EXCEPTIONS, ReachedLimit, RuleLimits,
};
pub use self::nat::{find_nat_ports, find_source};
pub use self::outcomes::OUTCOMES;
pub use self::place::Place;
use self::place::{HANDLE, lock, unpin};
pub use self::row_table::{ROW_SEATS, ROWS, RowMember, RowTable};
use self::table::read_table;
pub use self::table_copy::{CopyEnd, CopyResult, Entry, TableCopy, UdpCopy, list_addresses};
pub use self::tcx::TcReason;
pub use self::trace::{Trace, TracedHeader, TracedPacket, Verdict};
use self::xdp::XdpPlaces;
pub use self::xdp::{XdpStates, find_interface_name};
use crate::bpf::{
    self, BpfError, FirstError, Programs, create_clsact, failed_to, failed_to_load, find_map,
    find_program,
};
pub use layout::{
    Candidate, Connection, Decision, End, Event, GROUP_SEATS, GroupTerms, Listener, ListenerCounts,
    MAX_RETRIES, NatPorts, Pair, Step, Terms,
};
pub use requests::{Awaited, RequestCounts};
pub use udp::{LONG_REST, UdpClient, UdpCounts, UdpEnd, UdpListener, UdpSession};

/// Number of seats: most members of all groups.
pub const SEATS: u32 = 4096;
/// Most groups.
pub const GROUPS: u32 = 256;
/// Most listening addresses.
pub const LISTENERS: usize = 1024;
/// Most events and decisions that are read at once: more than the buffers have room for.
const EVENTS_AT_ONCE: usize = 1 << 16;
/// Least and most connections that the table has room for.
const CONNECTIONS: RangeInclusive<u32> = 65_536..=1_048_576;
/// Bytes of memory of the process for each connection that the table has room for: a full table takes a twentieth.
const MEMORY_PER_CONNECTION: u64 = 4096;
/// Number of connections that the table has room for, for each one that may wait for a member to accept.
const CONNECTIONS_PER_SYN: u32 = 16;

/// Maps that outlive a process.
const PINNED: [&str; 17] = [
    "evk_listeners",
    "evk_listener_counts",
    "evk_groups",
    "evk_seat_lists",
    "evk_rows",
    "evk_turns",
    "evk_terms",
    "evk_counts",
    "evk_connections",
    "evk_nat_pairs",
    "evk_nat_addresses",
    "evk_nat_cursors",
    "evk_syns",
    "evk_events",
    "evk_outcomes",
    trace::FILTER,
    trace::PACKETS,
];

/// State of the program at an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceState {
    /// The program is at tcx.
    Tcx,
    /// The program is a filter of tc.
    Tc(TcReason),
    /// The kernel refuses the program, so the system gets the packets that come by the interface.
    Refused(String),
}

impl InterfaceState {
    /// True if the program is at the interface.
    pub fn has_program(&self) -> bool {
        !matches!(self, InterfaceState::Refused(_))
    }
}

/// States of interfaces, by their numbers.
pub type InterfaceStates = BTreeMap<u32, InterfaceState>;

/// The program in the kernel, with its maps. Programs and connections stay when this is dropped.
pub struct Forwarder {
    object: Object,
    place: Place,
    ring: RingBuffer<'static>,
    events: Arc<Mutex<Vec<Event>>>,
    decisions: Arc<Mutex<Vec<Decision>>>,
    interfaces: InterfaceStates,
    xdp: XdpPlaces,
    /// Held while the process writes the maps.
    _lock: File,
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// Returns the numbers of the Ethernet interfaces of the network namespace that are up.
///
/// # Errors
///
/// The system does not tell its interfaces.
pub fn list_interfaces() -> Result<BTreeSet<u32>, BpfError> {
    const ARPHRD_ETHER: u16 = 1;
    let all =
        getifaddrs().map_err(|error| BpfError::File(format!("cannot list interfaces: {error}")))?;
    let up = all.filter(|one| one.flags.contains(InterfaceFlags::IFF_UP));
    let indices = up.filter_map(|one| {
        let link = *one.address.as_ref()?.as_link_addr()?;
        let index = u32::try_from(link.ifindex()).ok()?;
        (link.hatype() == ARPHRD_ETHER).then_some(index)
    });
    Ok(indices.collect())
}

/// Returns the time for which a connection that is over stays, for late packets: less if more than half of the table's
/// `capacity` is in use, so that new connections find room.
pub fn choose_linger(connections: usize, capacity: u32) -> Duration {
    let is_short = connections > capacity as usize / 2;
    Duration::from_secs(if is_short { 3 } else { 30 })
}

/// Family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Addresses of IPv4.
    V4,
    /// Addresses of IPv6.
    V6,
}

impl Family {
    /// Returns the family of an address.
    pub fn of_address(address: &SocketAddr) -> Self {
        if address.is_ipv4() {
            Family::V4
        } else {
            Family::V6
        }
    }

    /// Checks that the system forwards packets of this family.
    ///
    /// # Errors
    ///
    /// The system does not forward packets; the error says which setting to change.
    pub fn check_forwarding(self) -> Result<(), BpfError> {
        let (name, key) = match self {
            Family::V4 => ("IPv4", "net.ipv4.ip_forward"),
            Family::V6 => ("IPv6", "net.ipv6.conf.all.forwarding"),
        };
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        match fs::read_to_string(&path) {
            Ok(text) if text.trim() != "0" => Ok(()),
            Ok(_) => Err(BpfError::File(format!(
                "this system does not forward packets of {name}: set {key} = 1 with sysctl"
            ))),
            Err(error) => Err(BpfError::File(format!("cannot read {path}: {error}"))),
        }
    }
}

impl Forwarder {
    /// Loads the programs, with the maps at `place` if a process before has left them there. New tables have the size for
    /// a process that may have `memory` bytes.
    ///
    /// # Errors
    ///
    /// A right, a program or a map is missing, or another process forwards on this machine.
    pub fn open(place: Place, memory: u64) -> Result<Self, BpfError> {
        let folder = &place.folder();
        bpf::pin_folder(folder)?;
        let lock = lock(folder)?;
        let load = || {
            open(folder, memory)?
                .load()
                .map_err(failed_to_load(Programs::Forwarding))
        };
        let object = match load() {
            Ok(object) => object,
            Err(error @ BpfError::Rights(_)) => return Err(error),
            // The maps of connections are here: another attempt may succeed, without maps the connections are lost.
            Err(error) if is_complete(folder) => {
                return Err(error);
            }
            Err(_) => {
                // Maps of a start that did not succeed.
                unpin(folder)?;
                load()?
            }
        };
        let (events, decisions) = (Arc::default(), Arc::default());
        let ring = read_rings(&object, &events, &decisions)?;
        let forwarder = Forwarder {
            object,
            place,
            ring,
            events,
            decisions,
            interfaces: BTreeMap::new(),
            xdp: XdpPlaces::default(),
            _lock: lock,
        };
        let room = forwarder.read_capacity()?;
        forwarder.limit_sources(SourceLimit::for_table(room))?;
        Ok(forwarder)
    }

    /// Sets the limit of connections that clients of one source have begun and not confirmed.
    fn limit_sources(&self, limit: SourceLimit) -> Result<(), BpfError> {
        let key = 0u32.to_ne_bytes();
        bpf::update_map(&self.object, "evk_source_limit", &key, &limit.write())
    }

    /// Puts the program on these interfaces, and forgets those that are gone. Returns the states of the interfaces, and the
    /// first error: the kernel refuses for an interface that is there. The next call tries such an interface again.
    pub fn attach(
        &mut self,
        interfaces: &BTreeSet<u32>,
    ) -> (&InterfaceStates, Result<(), BpfError>) {
        self.interfaces
            .retain(|known, state| interfaces.contains(known) && state.has_program());
        let mut failure = FirstError::default();
        for &interface in interfaces {
            if self.interfaces.contains_key(&interface) {
                continue;
            }
            let state = match self.attach_to(interface) {
                Ok(state) => state,
                Err(error) => {
                    let Some(name) = find_interface_name(interface) else {
                        // The interface has gone since it was listed.
                        continue;
                    };
                    let state = InterfaceState::Refused(error.to_string());
                    failure.keep(Err::<(), _>(error.name_entry(&name)));
                    state
                }
            };
            self.interfaces.insert(interface, state);
        }
        (&self.interfaces, failure.finish())
    }

    /// Puts the program on an interface.
    fn attach_to(&self, interface: u32) -> Result<InterfaceState, BpfError> {
        match tcx::attach(&self.object, interface, &self.place) {
            Ok(()) => {
                // The filter of a process before, which has seen the packets until now.
                let _ = self.hook(interface)?.detach();
                Ok(InterfaceState::Tcx)
            }
            Err(reason) => {
                self.attach_filter(interface)?;
                Ok(InterfaceState::Tc(reason))
            }
        }
    }

    /// Puts the program on an interface as a filter of tc.
    fn attach_filter(&self, interface: u32) -> Result<(), BpfError> {
        create_clsact(interface)?;
        let mut hook = self.hook(interface)?;
        hook.replace(true);
        hook.attach().map_err(failed_to("attach the tc filter"))?;
        Ok(())
    }

    /// Puts the program for native XDP on the interfaces with these names that have the program of tc, and takes it from
    /// others. Returns the state of each name, and the first error: all other interfaces have their states nevertheless.
    pub fn attach_xdp(&mut self, names: &[String]) -> (XdpStates, Result<(), BpfError>) {
        let states = self.interfaces.iter();
        let with_program = states.filter(|(_, state)| state.has_program());
        let interfaces = with_program.map(|(interface, _)| *interface).collect();
        self.xdp.attach(&self.object, names, &interfaces)
    }

    fn hook(&self, interface: u32) -> Result<TcHook, BpfError> {
        let program = find_program(&self.object, "evk_forward")?;
        Ok(TcHookBuilder::new(program.as_fd())
            .ifindex(interface.cast_signed())
            .handle(HANDLE)
            .priority(self.place.priority())
            .hook(TC_INGRESS))
    }

    /// Takes the program from the interfaces, and lets go of all maps: connections end.
    ///
    /// # Errors
    ///
    /// The kernel refuses, or a file cannot be removed.
    pub fn detach(mut self) -> Result<(), BpfError> {
        self.xdp.detach();
        for interface in mem::take(&mut self.interfaces).into_keys() {
            // The interface may be gone.
            let _ = self.hook(interface)?.detach();
            let _ = tcx::detach_place(interface, &self.place);
        }
        self.place.clear()
    }

    /// Lets programs of other layouts begin no connections, and removes those whose connections are over, or were
    /// silent for longer than `limit` or, if closed, `linger` at `now_ns`. Returns the number of connections that
    /// these programs still have, without those of programs with an error, and the first error: the kernel refuses, or
    /// a file cannot be removed. The rest is removed nevertheless.
    pub fn end_other_layouts(
        &self,
        now_ns: u64,
        limit: Duration,
        linger: Duration,
    ) -> (usize, Result<(), BpfError>) {
        let (mut left, mut failure) = (0, FirstError::default());
        for place in self.place.find_others() {
            // Another process may serve there: an upgrade that is not complete.
            let Ok(_lock) = lock(&place.folder()) else {
                continue;
            };
            let is_over =
                |age: Age| age.find_silence(now_ns) > if age.is_open() { limit } else { linger };
            left += failure
                .keep(self.end_layout(&place, is_over))
                .unwrap_or_default();
        }
        (left, failure.finish())
    }

    /// Ends connections of the program at a place, and takes the program away with the last one. Returns the number of
    /// connections that stay.
    fn end_layout(
        &self,
        place: &Place,
        is_over: impl FnMut(Age) -> bool,
    ) -> Result<usize, BpfError> {
        let open = place.end_connections(is_over)?;
        if open == 0 {
            for &interface in self.interfaces.keys() {
                // The interface may be gone, or new.
                let _ = self.hook(interface)?.priority(place.priority()).detach();
                let _ = tcx::detach_place(interface, place);
            }
            place.clear()?;
        }
        Ok(open)
    }

    /// Returns the counts of a listening address.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn read_listener_counts(&self, address: SocketAddr) -> Result<ListenerCounts, BpfError> {
        let map = find_map(&self.object, "evk_listener_counts")?;
        let value = map
            .lookup(&layout::write_address(address), MapFlags::ANY)
            .map_err(failed_to("read a BPF map"))?;
        Ok(ListenerCounts::read(&value.unwrap_or_default()))
    }

    /// Writes the terms of a member.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn set_terms(&self, seat: u32, terms: &Terms) -> Result<(), BpfError> {
        let key = seat.to_ne_bytes();
        bpf::update_map(&self.object, "evk_terms", &key, &terms.write())
    }

    /// Writes the address that a member sees with full NAT.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn set_nat_address(&self, seat: u32, source: IpAddr) -> Result<(), BpfError> {
        let key = seat.to_ne_bytes();
        let value = layout::write_ip(source);
        bpf::update_map(&self.object, "evk_nat_addresses", &key, &value)
    }

    /// Returns the terms of all seats.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn read_terms(&self) -> Result<Vec<Terms>, BpfError> {
        let map = find_map(&self.object, "evk_terms")?;
        let read = |seat: u32| Ok(Terms::read(&read_element(&map, seat)?));
        (0..SEATS).map(read).collect()
    }

    /// Returns the counts of a member.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn read_counts(&self, seat: u32) -> Result<Counts, BpfError> {
        let map = find_map(&self.object, "evk_counts")?;
        Ok(Counts::read(&read_element(&map, seat)?))
    }

    /// Returns the numbers of packets, in the order of [`OUTCOMES`].
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn read_outcomes(&self) -> Result<[u64; OUTCOMES.len()], BpfError> {
        let map = find_map(&self.object, "evk_outcomes")?;
        let mut out = [0; OUTCOMES.len()];
        for (number, sum) in (0u32..).zip(&mut out) {
            let values = map
                .lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY)
                .map_err(failed_to("read a BPF map"))?;
            let of_cpu = |bytes: Vec<u8>| bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
            *sum = values.into_iter().flatten().map(of_cpu).sum();
        }
        Ok(out)
    }

    /// Lets events and decisions of the kernel go into their lists: those that are there now, and not all that come
    /// meanwhile.
    fn read_events(&self) -> Result<(), BpfError> {
        let taken = self.ring.consume_raw_n(EVENTS_AT_ONCE);
        if taken < 0 {
            let error = libbpf_rs::Error::from_raw_os_error(-taken);
            return Err(failed_to("read events of the kernel")(error));
        }
        Ok(())
    }

    /// Takes the decisions that the program has told since the last call: about one a second for each group.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn take_decisions(&self) -> Result<Vec<Decision>, BpfError> {
        self.read_events()?;
        let mut decisions = self
            .decisions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(mem::take(&mut *decisions))
    }

    /// Takes the events since the last call.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn take_events(&self) -> Result<Vec<Event>, BpfError> {
        self.read_events()?;
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(mem::take(&mut *events))
    }

    /// Calls `visit` with each connection of the table. Some that begin or end meanwhile may be missing.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn visit_connections(&self, mut visit: impl FnMut(Connection)) -> Result<(), BpfError> {
        let map = find_map(&self.object, "evk_connections")?;
        read_table::<{ layout::ADDRESS }, { layout::CONNECTION }>(&map, |key, value| {
            visit(Connection::read(key, value));
        })
    }

    /// Returns the number of connections that the table has room for.
    ///
    /// # Errors
    ///
    /// A map is missing.
    pub fn read_capacity(&self) -> Result<u32, BpfError> {
        Ok(find_map(&self.object, "evk_connections")?.max_entries())
    }

    /// Lets the program tell members' acceptances ([`Step::Accept`]), or not. The program tells them at first.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn tell_acceptances(&self, are_needed: bool) -> Result<(), BpfError> {
        let bits = u32::from(!are_needed) << layout::ACCEPT;
        let key = 0u32.to_ne_bytes();
        bpf::update_map(&self.object, "evk_unneeded", &key, &bits.to_ne_bytes())
    }

    /// Corrects a member's requests without an answer by a difference from [`Awaited::correct`].
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn correct_requests(&self, seat: u32, by: u64) -> Result<(), BpfError> {
        let mut context = seat.to_ne_bytes().to_vec();
        context.extend([0; 4]);
        context.extend(by.to_ne_bytes());
        bpf::run(&self.object, "evk_correct_requests", Some(&mut context)).map(drop)
    }

    /// Corrects the number of connections at a member.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn correct_count(&self, seat: u32, by: i32) -> Result<(), BpfError> {
        let mut context = seat.to_ne_bytes().to_vec();
        context.extend(by.to_ne_bytes());
        bpf::run(&self.object, "evk_correct", Some(&mut context)).map(drop)
    }
}

/// Lets events and decisions of the kernel go into lists.
fn read_rings(
    object: &Object,
    events: &Arc<Mutex<Vec<Event>>>,
    decisions: &Arc<Mutex<Vec<Decision>>>,
) -> Result<RingBuffer<'static>, BpfError> {
    let failed = || failed_to("read events of the kernel");
    let (events, decisions) = (Arc::clone(events), Arc::clone(decisions));
    let take_event = move |bytes: &[u8]| {
        if let Some(event) = Event::read(bytes) {
            let mut list = events.lock().unwrap_or_else(PoisonError::into_inner);
            list.push(event);
        }
        0
    };
    let take_decision = move |bytes: &[u8]| {
        let mut list = decisions.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(Decision::read(bytes));
        0
    };
    let maps = (
        find_map(object, "evk_events")?,
        find_map(object, "evk_decisions")?,
    );
    let mut builder = RingBufferBuilder::new();
    builder.add(&maps.0, take_event).map_err(failed())?;
    builder.add(&maps.1, take_decision).map_err(failed())?;
    builder.build().map_err(failed())
}

/// Returns the names of all maps that outlive a process.
fn list_pinned() -> impl Iterator<Item = &'static &'static str> {
    PINNED.iter().chain(&UDP_PINNED).chain(&limits::PINNED)
}

/// True if all maps that outlive a process are in the folder.
fn is_complete(folder: &Path) -> bool {
    list_pinned().all(|name| folder.join(name).exists())
}

fn open(folder: &Path, memory: u64) -> Result<OpenObject, BpfError> {
    let mut object = bpf::open_programs(crate::bpf_object!("forward.bpf.o"))?;
    let connections = choose_capacity(folder, memory);
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = match name.as_str() {
            "evk_connections" | "evk_nat_pairs" => Some(connections),
            "evk_syns" => Some(connections / CONNECTIONS_PER_SYN),
            name if UDP_SIZED.contains(&name) => Some(connections / CONNECTIONS_PER_SESSION),
            _ => None,
        };
        if let Some(entries) = entries {
            map.set_max_entries(entries)
                .map_err(failed_to("set the size of a BPF map"))?;
        }
        if list_pinned().any(|pinned| *pinned == name) {
            map.set_pin_path(folder.join(name))
                .map_err(failed_to("hold a BPF map"))?;
        }
    }
    Ok(object)
}

/// Returns the size of the table in `folder`, or the size for a new table of a process that may have `memory` bytes.
fn choose_capacity(folder: &Path, memory: u64) -> u32 {
    let pinned = MapHandle::from_pinned_path(folder.join("evk_connections"));
    if let Ok(pinned) = pinned {
        return pinned.max_entries();
    }
    let wanted = memory / MEMORY_PER_CONNECTION;
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
    wanted.clamp(*CONNECTIONS.start(), *CONNECTIONS.end())
}

fn read_element(map: &Map<'_>, index: u32) -> Result<Vec<u8>, BpfError> {
    let value = map
        .lookup(&index.to_ne_bytes(), MapFlags::ANY)
        .map_err(failed_to("read a BPF map"))?;
    Ok(value.unwrap_or_default())
}
