//! Loads of a location as a balancer has read them, and the readings that a balancer tells and hears.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::time::Instant;
use evenkeel_wire::input::Input;

/// The loads that are told. How long an answer takes is another time for each balancer.
pub const LOADS: [LoadId; 9] = LoadId::OF_KERNEL;

/// Time for which a reading counts, unless it is told again.
pub const EXPIRY: Duration = Duration::from_secs(3);

/// Time after which a reading that has not changed is told again.
const AGAIN: Duration = Duration::from_secs(1);

/// A location that has never answered is said to be unknown after so long: others may know its loads from before.
const FIRST: Duration = Duration::from_secs(1);

/// A load has changed if it differs by more than this share of it, and by more than [`LEAST`].
const CHANGED: f32 = 1.0 / 16.0;

/// A hundredth of a CPU, or of what there is of something.
const LEAST: f32 = 0.01;

/// Most locations of which one other balancer's word is kept.
const MAX_READINGS: usize = 1 << 17;

/// Time for which it is remembered for which group a location is read.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The longest that a location can be in a datagram: its number, which loads there are, and these.
pub(crate) const MAX_ENTRY: usize = 8 + 2 + 4 * LOADS.len();

/// The loads of a location, as they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// A bit for each of [`LOADS`] that is known.
    known: u16,
    /// 0 where it is not.
    values: [f32; LOADS.len()],
}

impl Reading {
    /// Returns a reading of the loads that are known, by `load`.
    pub fn new(mut load: impl FnMut(LoadId) -> Option<LoadValue>) -> Self {
        let mut reading = Reading::default();
        for (place, (id, value)) in LOADS.iter().zip(&mut reading.values).enumerate() {
            if let Some(known) = load(*id) {
                reading.known |= 1 << place;
                *value = known.get();
            }
        }
        reading
    }

    /// The loads that are known.
    pub fn loads(&self) -> impl Iterator<Item = (LoadId, LoadValue)> + '_ {
        let both = LOADS.iter().zip(&self.values).enumerate();
        both.filter(|(place, _)| self.has(*place))
            .filter_map(|(_, (id, value))| Some((*id, LoadValue::new(f64::from(*value)).ok()?)))
    }

    /// Returns the loads that are unknown.
    pub fn unknown(&self) -> impl Iterator<Item = LoadId> + '_ {
        let all = LOADS.iter().enumerate();
        all.filter(|(place, _)| !self.has(*place))
            .map(|(_, id)| *id)
    }

    fn has(&self, place: usize) -> bool {
        self.known & (1 << place) != 0
    }

    fn is_empty(&self) -> bool {
        self.known == 0
    }

    /// Returns true if `new` differs by so much that it is worth a message.
    fn has_become(&self, new: &Reading) -> bool {
        let differs = |(old, new): (&f32, &f32)| (new - old).abs() > LEAST.max(old * CHANGED);
        self.known != new.known || self.values.iter().zip(&new.values).any(differs)
    }

    /// Appends those of a location.
    pub fn encode(&self, location: u64, out: &mut Vec<u8>) {
        out.extend(location.to_be_bytes());
        out.extend(self.known.to_be_bytes());
        let values = self.values.iter().enumerate();
        for (_, value) in values.filter(|(place, _)| self.has(*place)) {
            out.extend(value.to_be_bytes());
        }
    }

    /// The locations of a datagram, of which there is one at least, and their loads.
    pub fn decode(body: &[u8]) -> Option<Vec<(u64, Reading)>> {
        let mut input = Input(body);
        let mut all = Vec::new();
        while all.is_empty() || !input.0.is_empty() {
            let (location, known) = (input.read_u64()?, input.read_u16()?);
            let mut reading = Reading {
                known,
                ..Reading::default()
            };
            if known >> LOADS.len() != 0 {
                return None;
            }
            for (place, value) in reading.values.iter_mut().enumerate() {
                if known & (1 << place) != 0 {
                    *value = f32::from_be_bytes(input.read_array()?);
                    LoadValue::new(f64::from(*value)).ok()?;
                }
            }
            all.push((location, reading));
        }
        Some(all)
    }
}

/// State of the locations that are read for all.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    /// For each location, the group that it is read for, and when it was last looked at for that
    /// group.
    groups: HashMap<u64, (u64, Instant)>,
    /// Readings that this balancer tells, by location.
    pub(crate) told: HashMap<u64, AnnouncedLocation>,
    swept: Option<Instant>,
}

/// State of a location that this balancer reads for others.
#[derive(Debug)]
pub(crate) struct AnnouncedLocation {
    /// Time since which this balancer reads the location.
    pub(crate) since: Instant,
    /// Reading that this balancer has told last, and when.
    pub(crate) last: Option<(Reading, Instant)>,
}

impl AnnouncedLocation {
    pub(crate) fn is_due(&self, reading: &Reading, now: Instant) -> bool {
        match &self.last {
            Some((last, at)) => last.has_become(reading) || now.since(*at) >= AGAIN,
            None => !reading.is_empty() || now.since(self.since) >= FIRST,
        }
    }
}

impl Readings {
    /// Returns true if a location that several groups have is read for this group. All balancers
    /// with the same groups say the same.
    pub(crate) fn is_for(&mut self, location: u64, group: u64, now: Instant) -> bool {
        let (of, at) = self.groups.entry(location).or_insert((group, now));
        if group <= *of || now.since(*at) >= EXPIRY {
            (*of, *at) = (group, now);
        }
        *of == group
    }

    pub(crate) fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|at| now.since(at) >= FORGOTTEN) {
            self.swept = Some(now);
            self.groups.retain(|_, (_, at)| now.since(*at) < FORGOTTEN);
            self.told
                .retain(|location, _| self.groups.contains_key(location));
        }
    }
}

/// Readings of locations that another balancer has told.
#[derive(Debug, Default)]
pub(crate) struct Heard(HashMap<u64, Word>);

#[derive(Debug)]
struct Word {
    reading: Reading,
    at: Instant,
    /// The number of the datagram.
    count: u64,
}

impl Heard {
    pub(crate) fn take(&mut self, said: Vec<(u64, Reading)>, count: u64, now: Instant) {
        if self.0.len() + said.len() > MAX_READINGS {
            self.0.retain(|_, word| now.since(word.at) <= EXPIRY);
        }
        for (location, reading) in said {
            let at = now;
            let word = Word { reading, at, count };
            let is_full = self.0.len() >= MAX_READINGS;
            match self.0.entry(location) {
                // A later datagram may have overtaken this one.
                Entry::Occupied(mut old) if old.get().count <= count => {
                    old.insert(word);
                }
                Entry::Vacant(place) if !is_full => {
                    place.insert(word);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn get(&self, location: u64, now: Instant) -> Option<Reading> {
        let word = self.0.get(&location)?;
        (now.since(word.at) <= EXPIRY).then_some(word.reading)
    }

    /// Returns the number of locations that the other balancer reads.
    pub(crate) fn count(&self, now: Instant) -> usize {
        let fresh = |word: &&Word| now.since(word.at) <= EXPIRY;
        self.0.values().filter(fresh).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(cpu: f64, memory: f64) -> Reading {
        Reading::new(|id| match id {
            LoadId::CPU => LoadValue::new(cpu).ok(),
            LoadId::MEMORY => LoadValue::new(memory).ok(),
            _ => None,
        })
    }

    #[test]
    fn readings_are_read_as_they_are_written() {
        let all = Reading::new(|id| LoadValue::new(f64::from(id.0)).ok());
        assert_eq!(all.unknown().count(), 0);
        let said = [
            (u64::MAX, all),
            (1, reading(0.5, 0.0)),
            (2, Reading::default()),
        ];
        let mut bytes = Vec::new();
        let mut ends = vec![];
        for (location, reading) in &said {
            let before = bytes.len();
            reading.encode(*location, &mut bytes);
            assert!(bytes.len() - before <= MAX_ENTRY);
            ends.push(bytes.len());
        }
        assert_eq!(Reading::decode(&bytes).unwrap(), said);
        for len in 0..bytes.len() {
            let whole = ends.contains(&len);
            assert_eq!(Reading::decode(&bytes[..len]).is_some(), whole, "{len}");
        }
        let loads: Vec<(LoadId, f32)> = said[1].1.loads().map(|(id, v)| (id, v.get())).collect();
        assert_eq!(loads, [(LoadId::CPU, 0.5), (LoadId::MEMORY, 0.0)]);
    }

    #[test]
    fn what_cannot_be_a_load_is_refused() {
        let decode = |known: u16, value: f32| {
            let mut bytes = vec![0; 8];
            bytes.extend(known.to_be_bytes());
            bytes.extend(value.to_be_bytes());
            Reading::decode(&bytes)
        };
        assert!(decode(1, 0.5).is_some());
        for value in [-0.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(decode(1, value), None, "{value}");
        }
        assert_eq!(decode(1 << 9, 0.5), None, "a load that nobody knows");
        assert_eq!(Reading::decode(&[]), None);
    }

    #[test]
    fn only_what_has_changed_is_worth_a_word() {
        let has_become =
            |a: (f64, f64), b: (f64, f64)| reading(a.0, a.1).has_become(&reading(b.0, b.1));
        assert!(!has_become((0.8, 0.5), (0.84, 0.5)));
        assert!(has_become((0.8, 0.5), (0.86, 0.5)));
        assert!(has_become((0.8, 0.5), (0.8, 0.54)));
        assert!(!has_become((0.001, 0.5), (0.009, 0.5)), "next to nothing");
        assert!(reading(0.0, 0.0).has_become(&Reading::default()));
    }

    #[test]
    fn what_comes_late_does_not_count_and_what_is_not_repeated_ends() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut heard = Heard::default();
        heard.take(vec![(1, reading(0.5, 0.5))], 7, at(1000));
        heard.take(vec![(1, reading(0.1, 0.1))], 6, at(1001));
        assert_eq!(heard.get(1, at(4000)), Some(reading(0.5, 0.5)));
        assert_eq!(heard.count(at(4000)), 1);
        assert_eq!(heard.get(1, at(4001)), None);
        assert_eq!(heard.get(2, at(1000)), None);
    }
}
