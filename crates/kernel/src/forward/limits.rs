//! Limits of rules in the tables of the program (`bpf/limits.bpf.h`).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::layout::{Reader, write_ip};

/// Most networks of a rule without limits for each client: `MAX_EXCEPTIONS`.
pub const MAX_EXCEPTIONS: usize = 16;

/// Maps of limits that outlive a process.
pub(super) const PINNED: [&str; 2] = ["evk_limits", "evk_limited"];

/// Limits of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleLimits {
    /// Open connections of all clients.
    pub most: Option<u32>,
    /// Limits of each client.
    pub clients: Option<ClientLimits>,
}

/// Limits of each client of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Open connections.
    pub connections: Option<u32>,
    /// New connections.
    pub rate: Option<ClientRate>,
    /// Number of leading bits of addresses of IPv4 and IPv6 that tell clients apart.
    pub prefixes: (u8, u8),
    /// Networks without these limits, at most [`MAX_EXCEPTIONS`], by address and number of leading bits.
    pub except: Vec<(IpAddr, u8)>,
}

/// Rate of new connections of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRate {
    /// Number of connections in the time.
    pub count: u32,
    /// Time in which a client may begin these.
    pub per: Duration,
    /// Number of connections at once.
    pub burst: u32,
}

impl ClientRate {
    /// Returns the time of a connection, and the time by which a client may be ahead, in nanoseconds.
    fn find_times(&self) -> (u64, u64) {
        let per = u64::try_from(self.per.as_nanos()).unwrap_or(u64::MAX);
        let interval = (per / u64::from(self.count.max(1))).max(1);
        let ahead = u64::from(self.burst.max(1) - 1);
        (interval, interval.saturating_mul(ahead))
    }
}

/// Listening address, with the limits of its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Address of the listener.
    pub place: LimitPlace,
    /// Name of the rule.
    pub rule: String,
    /// Limits of the rule.
    pub limits: RuleLimits,
}

/// Listening address of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitPlace {
    /// Address of the listener.
    pub address: SocketAddr,
    /// True for datagrams.
    pub is_udp: bool,
}

impl LimitPlace {
    /// Returns `struct evk_limit_place`.
    pub(super) fn write(self) -> Vec<u8> {
        let protocol: u16 = if self.is_udp { 17 } else { 6 };
        let mut out = write_ip(self.address.ip()).to_vec();
        out.extend(self.address.port().to_be_bytes());
        out.extend(protocol.to_ne_bytes());
        out.extend([0; 4]);
        out
    }
}

/// Count of a rule: `struct evk_counted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountedRule {
    pub(super) identity: u64,
    pub(super) key: u64,
    from_ns: u64,
}

impl CountedRule {
    pub(super) fn read(bytes: &mut Reader<'_>) -> Self {
        CountedRule {
            identity: bytes.u64(),
            key: bytes.u64(),
            from_ns: bytes.u64(),
        }
    }

    fn write(self) -> [u8; 24] {
        let words = [self.identity, self.key, self.from_ns].map(u64::to_ne_bytes);
        let mut out = [0; 24];
        let bytes = words.into_iter().flatten();
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        out
    }

    /// Returns the count for an identity: the one that a listener of the rule has, or a new one from `now_ns` on.
    pub(super) fn find_next(
        identity: u64,
        here: Option<CountedRule>,
        known: &HashMap<u64, u64>,
        now_ns: u64,
    ) -> Self {
        if identity == 0 {
            return CountedRule::default();
        }
        let key = known.get(&identity).copied();
        let key = key.unwrap_or((identity ^ now_ns).max(1));
        match here.filter(|here| here.key == key) {
            Some(here) => here,
            None => CountedRule {
                identity,
                key,
                from_ns: now_ns,
            },
        }
    }
}

/// Returns a number other than 0 that is the same in the next process.
fn hash_identity(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish().max(1)
}

impl ListenerLimits {
    /// Returns the identities of what is counted: of all clients, and of each.
    pub(super) fn identify(&self) -> [u64; 2] {
        let rule = (&self.rule, self.place.is_udp);
        let each = |limits: &ClientLimits| hash_identity((rule, limits.prefixes, &limits.except));
        [
            hash_identity(rule),
            self.limits.clients.as_ref().map_or(0, each),
        ]
    }

    /// Returns `struct evk_limits`.
    pub(super) fn write(&self, [all, each]: [CountedRule; 2]) -> Vec<u8> {
        let clients = self.limits.clients.as_ref();
        let rate = clients.and_then(|limits| limits.rate);
        let (interval, tolerance) = rate.map_or((0, 0), |rate| rate.find_times());
        let connections = clients.and_then(|limits| limits.connections);
        let except = clients.map_or(&[][..], |limits| &limits.except);
        let except = except.get(..MAX_EXCEPTIONS).unwrap_or(except);
        let prefixes = clients.map_or((32, 128), |limits| limits.prefixes);
        let mut out = [all.write(), each.write()].concat();
        out.extend([interval, tolerance].map(u64::to_ne_bytes).concat());
        let words = [
            self.limits.most.unwrap_or(0),
            connections.unwrap_or(0),
            except.len() as u32,
            0,
        ];
        out.extend(words.map(u32::to_ne_bytes).concat());
        out.extend(write_mask(96 + u32::from(prefixes.0)));
        out.extend(write_mask(prefixes.1.into()));
        for (ip, bits) in except {
            let before = if ip.is_ipv4() { 96 } else { 0 };
            out.extend(write_ip(*ip));
            out.extend(write_mask(before + u32::from(*bits)));
        }
        out.resize(LIMITS, 0);
        out
    }
}

/// Length of `struct evk_limits`.
const LIMITS: usize = 48 + 16 + 16 + 32 + MAX_EXCEPTIONS * 32;

/// Returns a mask for `struct evk_ip` with this number of leading bits.
fn write_mask(bits: u32) -> [u8; 16] {
    let mask = u128::MAX.checked_shl(128u32.saturating_sub(bits));
    Ipv6Addr::from_bits(mask.unwrap_or(0)).octets()
}

/// Length of `struct evk_limited_key`.
pub(super) const KEY: usize = 24;

/// Length of `struct evk_limited`.
pub(super) const ENTRY: usize = 32;

/// Returns the key of the entry of all clients.
fn write_key_of_all(key: u64) -> [u8; KEY] {
    let mut out = [0; KEY];
    let bytes = key.to_ne_bytes();
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    out
}

/// Counts of limits, in which connections of the process count beside those of the program. A question is one or two system
/// calls.
#[derive(Debug)]
pub struct LimitCounts {
    pub(super) limits: MapHandle,
    pub(super) limited: MapHandle,
    pub(super) program: OwnedFd,
}

/// Place of a connection of the process in the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedPlace([[u8; KEY]; 2]);

impl CountedPlace {
    /// True if the connection counts for its client.
    pub fn counts_client(&self) -> bool {
        let CountedPlace([_, each]) = self;
        Reader(each).u64() != 0
    }
}

/// Limit that a client has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachedLimit {
    /// Open connections.
    Connections,
    /// New connections.
    Rate,
}

/// Length of `struct evk_place_order`.
const ORDER: usize = 24 + 16 + 2 * KEY + 8;

impl LimitCounts {
    /// Returns the number of open connections of a rule in the kernel that their clients have confirmed, by one of the rule's
    /// listening addresses.
    pub fn count_confirmed(&self, place: LimitPlace) -> u32 {
        let limits = self.limits.lookup(&place.write(), MapFlags::ANY);
        let Some(limits) = limits.ok().flatten() else {
            return 0;
        };
        let all = CountedRule::read(&mut Reader(&limits));
        let entry = self
            .limited
            .lookup(&write_key_of_all(all.key), MapFlags::ANY);
        let entry = entry.ok().flatten().unwrap_or_default();
        let mut entry = Reader(&entry);
        let (_times, _open) = ((entry.u64(), entry.u64()), entry.u32());
        // Two CPUs may count an end before the beginning.
        u32::try_from(entry.u32().cast_signed()).unwrap_or(0)
    }

    /// Counts a connection of the process: for a client, or without one for all clients of the rule together.
    ///
    /// # Errors
    ///
    /// The client has reached a limit. Nothing is counted.
    pub fn take_place(
        &self,
        place: LimitPlace,
        client: Option<IpAddr>,
    ) -> Result<CountedPlace, ReachedLimit> {
        let ip = client.map_or([0; 16], |client| write_ip(client.to_canonical()));
        let mut order = [&place.write()[..], &ip, &[0; 2 * KEY]].concat();
        let words = [u32::from(client.is_some()), 0].map(u32::to_ne_bytes);
        order.extend(words.concat());
        match self.run(&mut order) {
            Some(1) => return Err(ReachedLimit::Connections),
            Some(2) => return Err(ReachedLimit::Rate),
            // Without an answer nothing is counted.
            _ => {}
        }
        let (keys, _) = order.get(40..).unwrap_or_default().as_chunks();
        let key_at = |at: usize| keys.get(at).copied().unwrap_or([0; KEY]);
        Ok(CountedPlace([key_at(0), key_at(1)]))
    }

    /// Ends the count of a connection of the process.
    pub fn leave_place(&self, place: &CountedPlace) {
        let CountedPlace([all, each]) = place;
        let mut order = [&[0; 40][..], all, each].concat();
        order.extend([0, 1].map(u32::to_ne_bytes).concat());
        self.run(&mut order);
    }

    /// Runs the program. Returns `None` if the kernel refuses.
    fn run(&self, order: &mut [u8]) -> Option<u32> {
        debug_assert_eq!(order.len(), ORDER);
        // SAFETY: all zeros is a valid value of the C structure.
        let mut options: libbpf_sys::bpf_test_run_opts = unsafe { mem::zeroed() };
        options.sz = size_of_val(&options) as _;
        options.ctx_in = order.as_mut_ptr().cast();
        options.ctx_size_in = order.len() as _;
        // SAFETY: `order` and `options` are there until it returns. The kernel writes into `order`, which is borrowed mutably,
        // up to its length.
        let failed =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &mut options) };
        (failed == 0).then_some(options.retval)
    }
}
