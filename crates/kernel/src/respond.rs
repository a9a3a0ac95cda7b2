//! A responder at user level: a process that answers load queries over UDP as the kernel's own
//! program does. It is for kernels that let no such program in, and to compare with.
//!
//! The rules are the same: what does not come from an address on the list, or does not begin
//! as a query, is as if nobody listened; of the rest only queries with the right
//! authentication code, meant for this host, with a number larger than the last one of their
//! reader, and not too many from one address get an answer, which is as long as the query. Everything is counted.
//!
//! Unlike a program in the kernel, a process must first get a CPU.

mod socket;

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use strum::VariantArray;

pub use socket::{Batch, bind};

use crate::host::Host;
use crate::network::Network;
use crate::query::{BadDatagram, ENVELOPE, Key, Query};
use crate::record::Whole;

/// Least number of readers, and of addresses, that are remembered at once.
pub const KNOWN: usize = 4096;

/// Settings of a responder: who is answered, and for which names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Keys that readers may use.
    pub keys: Vec<Key>,
    /// Addresses that are answered. Without any, nobody is.
    pub allow: Vec<Network>,
    /// Names of this machine: see [`crate::host::list_own_hosts`]. Without any, only queries for [any
    /// host](Host::ANY) are answered.
    pub hosts: Vec<Host>,
    /// Maximum queries per second and client address; 0 is no limit. A tenth of a
    /// second's may come at once, and always 16.
    pub rate: u32,
}

/// Result of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Verdict {
    /// The datagram is an answer now: send it back.
    Answered,
    /// The datagram is from an address that is not on the list.
    #[strum(to_string = "source_not_allowed")]
    NotAllowed,
    /// The datagram is not of this protocol.
    #[strum(to_string = "no_query")]
    Foreign,
    /// The datagram is of another version.
    #[strum(to_string = "wrong_version")]
    Version,
    /// The datagram has a length that no query has, or another length than it says.
    #[strum(to_string = "wrong_length")]
    Length,
    /// The datagram is no query, or has reserved fields in use.
    #[strum(to_string = "wrong_field")]
    Field,
    /// The query has an unknown key.
    #[strum(to_string = "unknown_key")]
    Key,
    /// The query has a wrong authentication code.
    #[strum(to_string = "wrong_code")]
    Code,
    /// The number of the query is not larger than the last number of its reader.
    #[strum(to_string = "replayed")]
    Replay,
    /// The address has sent too many queries.
    Rate,
    /// The query asks for an unknown target.
    #[strum(to_string = "unknown_target")]
    Target,
    /// The query asks for a cgroup that is no more.
    Gone,
    /// The query is meant for another host.
    OtherHost,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the name of the verdict, as the kernel's own responder counts it.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Number of times each verdict was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([u64; Verdict::ALL.len()]);

impl Counters {
    /// Returns the number of times that `verdict` was given.
    pub fn count_of(&self, verdict: Verdict) -> u64 {
        self.0[verdict as usize]
    }

    /// Iterates over all verdicts, with the number of each.
    pub fn iter(&self) -> impl Iterator<Item = (Verdict, u64)> + use<'_> {
        Verdict::ALL.iter().copied().zip(self.0)
    }
}

/// Decides on queries, and answers them.
#[derive(Debug)]
pub struct Responder {
    settings: Settings,
    /// The last number of each reader.
    readers: Recent<u64, u64>,
    /// For each address, the time until which it has used up its allowed queries.
    sources: Recent<IpAddr, Duration>,
    counters: Counters,
}

impl Responder {
    /// Makes a responder that nobody has asked yet.
    pub fn new(settings: Settings) -> Self {
        Responder {
            settings,
            readers: Recent::default(),
            sources: Recent::default(),
            counters: Counters::default(),
        }
    }

    /// Goes by these names from now on.
    pub fn set_hosts(&mut self, hosts: Vec<Host>) {
        self.settings.hosts = hosts;
    }

    /// Returns the counters of verdicts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Makes an answer of a query in place, if it is one that gets an answer. `now` is a
    /// monotonic time; `record` gives the record of a target, or says
    /// why there is none: [`Verdict::Target`] or [`Verdict::Gone`].
    pub fn answer_query<'r>(
        &mut self,
        from: IpAddr,
        datagram: &mut [u8],
        now: Duration,
        record: impl FnOnce(u16) -> Result<&'r Whole, Verdict>,
    ) -> Verdict {
        let verdict = self.decide(from, datagram, now, record);
        let count = &mut self.counters.0[verdict as usize];
        *count = count.saturating_add(1);
        verdict
    }

    fn decide<'r>(
        &mut self,
        from: IpAddr,
        datagram: &mut [u8],
        now: Duration,
        record: impl FnOnce(u16) -> Result<&'r Whole, Verdict>,
    ) -> Verdict {
        if !self
            .settings
            .allow
            .iter()
            .any(|allow| allow.contains_address(from))
        {
            return Verdict::NotAllowed;
        }
        let (query, key) = match Query::parse(datagram, &self.settings.keys) {
            Ok(parsed) => parsed,
            Err(BadDatagram::Magic) => return Verdict::Foreign,
            Err(BadDatagram::Version(_)) => return Verdict::Version,
            Err(BadDatagram::Length(_)) => return Verdict::Length,
            Err(BadDatagram::Field(_)) => return Verdict::Field,
            Err(BadDatagram::Mac | BadDatagram::Record(_)) => return self.code(datagram),
        };
        if query.host != Host::ANY && !self.settings.hosts.contains(&query.host) {
            return Verdict::OtherHost;
        }
        let number = self.readers.entry(query.reader, || 0);
        if query.number <= *number {
            return Verdict::Replay;
        }
        *number = query.number;
        if too_many(self.settings.rate, &mut self.sources, from, now) {
            return Verdict::Rate;
        }
        match record(query.target) {
            Ok(record) => {
                fill_answer(&query, key, datagram, record);
                Verdict::Answered
            }
            Err(verdict) => verdict,
        }
    }

    /// Tells why the authentication code of a whole query is not right: unknown key, or wrong code.
    fn code(&self, datagram: &[u8]) -> Verdict {
        let number = datagram.get(8..10).and_then(|bytes| bytes.try_into().ok());
        let number = number.map(u16::from_le_bytes);
        let keys = &mut self.settings.keys.iter();
        if keys.any(|key| Some(key.number) == number) {
            Verdict::Code
        } else {
            Verdict::Key
        }
    }
}

/// Returns true if an address asks too often, by the generic cell rate algorithm.
fn too_many(
    rate: u32,
    sources: &mut Recent<IpAddr, Duration>,
    from: IpAddr,
    now: Duration,
) -> bool {
    if rate == 0 {
        return false;
    }
    let interval = Duration::from_secs(1) / rate;
    let at_once = (interval * 16).max(Duration::from_millis(100));
    let due = sources.entry(from.to_canonical(), || now);
    if *due > now.saturating_add(at_once) {
        return true;
    }
    *due = (*due).max(now).saturating_add(interval);
    false
}

/// Makes an answer of a query that was checked, from a record of its target.
pub fn fill_answer(query: &Query, key: &Key, datagram: &mut [u8], record: &Whole) {
    if let Some(place) = datagram.get_mut(ENVELOPE..) {
        record.copy(query.first_cpu, place);
    }
    query.answer(key, datagram);
}

/// Entries used lately: at least those of the last [`KNOWN`] keys, at most twice as many.
#[derive(Debug)]
struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Recent {
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash, V> Recent<K, V> {
    fn entry(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        if self.young.len() >= KNOWN && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        let old = &mut self.old;
        match self.young.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let value = old.remove(entry.key()).unwrap_or_else(new);
                entry.insert(value)
            }
        }
    }
}

#[cfg(test)]
mod tests;
