//! Notes that balancers tell each other; each note has a key.

use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_wire::input::{Input, put_varint};

/// Key of a note: what the note is about. Groups, locations and members are numbers that stand for
/// their names ([`key`](evenkeel_core::key)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Claim of the balancer to decide upon the alerts of a group.
    Claim {
        /// Number of the group.
        group: u64,
    },
    /// Alert of a group for a location.
    Alert {
        /// Number of the group.
        group: u64,
        /// Number of the location.
        location: u64,
    },
    /// Ejection of a member by the balancer.
    Ejection {
        /// Number of the group.
        group: u64,
        /// The member's address, as a number.
        member: u64,
    },
    /// Time that requests take at a member.
    Service {
        /// Number of the group.
        group: u64,
        /// The member's address, as a number.
        member: u64,
    },
    /// Number of the balancer's requests in flight at a location.
    Flight {
        /// Number of the location.
        location: u64,
    },
}

/// A note.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Note {
    /// The balancer decides upon the alerts of a group.
    Claim {
        /// Number of the group.
        group: u64,
        /// Counts those who have done so, one after the other: the latest one does.
        epoch: u64,
    },
    /// A group has a location under alert.
    Alert {
        /// Number of the group.
        group: u64,
        /// Epoch of the claim by which the alert was decided.
        epoch: u64,
        /// Number of the location.
        location: u64,
        /// Time since which the location is under alert.
        since: Instant,
    },
    /// The balancer has ejected a member.
    Ejection {
        /// Number of the group.
        group: u64,
        /// The member's address, as a number.
        member: u64,
        /// End of the ejection, [`LONGEST_EJECTION`] from now at most.
        until: Instant,
        /// Number of its own requests by which the balancer has judged.
        requests: u32,
        /// Number of these requests that failed: not more than there were.
        failures: u32,
    },
    /// Requests take this time at a member, as the balancer has learnt.
    Service {
        /// Number of the group.
        group: u64,
        /// The member's address, as a number.
        member: u64,
        /// Microseconds, from 1 to [`LONGEST_SERVICE`].
        micros: u32,
    },
    /// Requests of the balancer are in flight at a location.
    Flight {
        /// Number of the location.
        location: u64,
        /// Number of requests: not 0.
        count: u32,
    },
}

impl Note {
    /// Returns the key of the note.
    pub fn key(&self) -> Key {
        match *self {
            Note::Claim { group, .. } => Key::Claim { group },
            Note::Alert {
                group, location, ..
            } => Key::Alert { group, location },
            Note::Ejection { group, member, .. } => Key::Ejection { group, member },
            Note::Service { group, member, .. } => Key::Service { group, member },
            Note::Flight { location, .. } => Key::Flight { location },
        }
    }
}

/// A note that is new, or one that is no more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item {
    /// The note holds.
    Put(Note),
    /// The note with this key no longer holds.
    Gone(Key),
}

/// The longest an item can be, in bytes: three numbers of eight bytes, and two that are short.
pub(crate) const MAX_ITEM: usize = 1 + 24 + 20;

impl Item {
    /// Appends it. Times are written as distances from `now`, as no two balancers have the same
    /// clock.
    pub(crate) fn encode(&self, now: Instant, out: &mut Vec<u8>) {
        match *self {
            Item::Put(Note::Claim { group, epoch }) => {
                out.push(1);
                out.extend(group.to_be_bytes());
                put_varint(out, epoch);
            }
            Item::Put(Note::Alert {
                group,
                epoch,
                location,
                since,
            }) => {
                out.push(2);
                out.extend(group.to_be_bytes());
                out.extend(location.to_be_bytes());
                put_varint(out, epoch);
                put_millis(out, now.since(since));
            }
            Item::Put(Note::Ejection {
                group,
                member,
                until,
                requests,
                failures,
            }) => {
                out.push(3);
                out.extend(group.to_be_bytes());
                out.extend(member.to_be_bytes());
                put_millis(out, until.since(now).min(LONGEST_EJECTION));
                put_varint(out, requests.into());
                put_varint(out, failures.into());
            }
            Item::Put(Note::Service {
                group,
                member,
                micros,
            }) => {
                out.push(4);
                out.extend(group.to_be_bytes());
                out.extend(member.to_be_bytes());
                put_varint(out, micros.into());
            }
            Item::Put(Note::Flight { location, count }) => {
                out.push(5);
                out.extend(location.to_be_bytes());
                put_varint(out, count.into());
            }
            Item::Gone(Key::Claim { group }) => {
                out.push(0x81);
                out.extend(group.to_be_bytes());
            }
            Item::Gone(Key::Alert { group, location }) => {
                out.push(0x82);
                out.extend(group.to_be_bytes());
                out.extend(location.to_be_bytes());
            }
            Item::Gone(Key::Ejection { group, member }) => {
                out.push(0x83);
                out.extend(group.to_be_bytes());
                out.extend(member.to_be_bytes());
            }
            Item::Gone(Key::Service { group, member }) => {
                out.push(0x84);
                out.extend(group.to_be_bytes());
                out.extend(member.to_be_bytes());
            }
            Item::Gone(Key::Flight { location }) => {
                out.push(0x85);
                out.extend(location.to_be_bytes());
            }
        }
    }

    pub(crate) fn decode(now: Instant, input: &mut Input<'_>) -> Option<Self> {
        // That of a location, if it is of no group.
        let (tag, group) = (input.read_u8()?, input.read_u64()?);
        Some(match tag {
            1 => Item::Put(Note::Claim {
                group,
                epoch: input.read_varint()?,
            }),
            2 => Item::Put(Note::Alert {
                group,
                location: input.read_u64()?,
                epoch: input.read_varint()?,
                since: before(now, millis(input)?),
            }),
            3 => {
                let member = input.read_u64()?;
                let time = millis(input).filter(|&time| time <= LONGEST_EJECTION)?;
                let requests = u32::try_from(input.read_varint()?).ok()?;
                let failures = u32::try_from(input.read_varint()?).ok();
                Item::Put(Note::Ejection {
                    group,
                    member,
                    until: now.after(time),
                    requests,
                    failures: failures.filter(|&failures| failures <= requests)?,
                })
            }
            4 => Item::Put(Note::Service {
                group,
                member: input.read_u64()?,
                micros: u32::try_from(input.read_varint()?)
                    .ok()
                    .filter(|micros| (1..=LONGEST_SERVICE).contains(micros))?,
            }),
            5 => Item::Put(Note::Flight {
                location: group,
                count: u32::try_from(input.read_varint()?)
                    .ok()
                    .filter(|&count| count > 0)?,
            }),
            0x81 => Item::Gone(Key::Claim { group }),
            0x82 => Item::Gone(Key::Alert {
                group,
                location: input.read_u64()?,
            }),
            0x83 => Item::Gone(Key::Ejection {
                group,
                member: input.read_u64()?,
            }),
            0x84 => Item::Gone(Key::Service {
                group,
                member: input.read_u64()?,
            }),
            0x85 => Item::Gone(Key::Flight { location: group }),
            _ => return None,
        })
    }
}

/// The longest that a configuration may have a member ejected.
pub const LONGEST_EJECTION: Duration = Duration::from_secs(24 * 3600);

/// The longest that a request is said to take: an hour, in microseconds.
pub const LONGEST_SERVICE: u32 = 3_600_000_000;

/// Longest time, a year in milliseconds: nothing lasts longer here.
const LONGEST: u64 = 366 * 24 * 3600 * 1000;

fn put_millis(out: &mut Vec<u8>, time: Duration) {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    put_varint(out, millis.min(LONGEST));
}

fn millis(input: &mut Input<'_>) -> Option<Duration> {
    let millis = input.read_varint().filter(|&millis| millis <= LONGEST)?;
    Some(Duration::from_millis(millis))
}

fn before(now: Instant, time: Duration) -> Instant {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Instant::from_nanos(now.as_nanos().saturating_sub(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_as_they_are_written_by_any_clock() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let (here, there) = (at(60_000), at(1_000_000));
        let items = |now: Instant| {
            [
                Item::Put(Note::Claim {
                    group: 1,
                    epoch: u64::MAX,
                }),
                Item::Put(Note::Alert {
                    group: u64::MAX,
                    epoch: u64::MAX,
                    location: 3,
                    since: before(now, Duration::from_millis(1500)),
                }),
                Item::Put(Note::Ejection {
                    group: 4,
                    member: 5,
                    until: now.after(Duration::from_secs(300)),
                    requests: u32::MAX,
                    failures: 6,
                }),
                Item::Put(Note::Service {
                    group: 6,
                    member: 7,
                    micros: LONGEST_SERVICE,
                }),
                Item::Gone(Key::Service {
                    group: 8,
                    member: u64::MAX,
                }),
                Item::Put(Note::Flight {
                    location: u64::MAX,
                    count: u32::MAX,
                }),
                Item::Gone(Key::Flight { location: 2 }),
                Item::Gone(Key::Claim { group: 7 }),
                Item::Gone(Key::Alert {
                    group: 8,
                    location: 9,
                }),
                Item::Gone(Key::Ejection {
                    group: 10,
                    member: 11,
                }),
            ]
        };
        for (item, same) in items(here).into_iter().zip(items(there)) {
            let mut bytes = Vec::new();
            item.encode(here, &mut bytes);
            assert!(bytes.len() <= MAX_ITEM, "{item:?}: {}", bytes.len());
            let mut input = Input(&bytes);
            assert_eq!(Item::decode(there, &mut input), Some(same));
            assert!(input.0.is_empty());
            for len in 0..bytes.len() {
                assert_eq!(Item::decode(there, &mut Input(&bytes[..len])), None);
            }
        }
    }

    #[test]
    fn a_service_time_beyond_all_bounds_is_refused() {
        let now = Instant::from_nanos(1_000_000_000);
        let decode = |micros: u64| {
            let mut bytes = vec![4];
            bytes.extend([0; 16]);
            put_varint(&mut bytes, micros);
            Item::decode(now, &mut Input(&bytes))
        };
        assert!(decode(1).is_some() && decode(LONGEST_SERVICE.into()).is_some());
        for micros in [0, u64::from(LONGEST_SERVICE) + 1, u64::MAX] {
            assert_eq!(decode(micros), None, "{micros}");
        }
    }

    #[test]
    fn an_ejection_beyond_all_bounds_is_refused() {
        let now = Instant::from_nanos(1_000_000_000);
        let day = 24 * 3600 * 1000;
        let decode = |millis: u64, requests: u64, failures: u64| {
            let mut bytes = vec![3];
            bytes.extend([0; 16]);
            for number in [millis, requests, failures] {
                put_varint(&mut bytes, number);
            }
            Item::decode(now, &mut Input(&bytes))
        };
        assert!(decode(day, 5, 5).is_some());
        assert!(decode(0, 0, 0).is_some());
        assert_eq!(decode(day + 1, 5, 5), None, "longer than any ejection");
        assert_eq!(decode(u64::MAX, 5, 5), None);
        assert_eq!(decode(day, 5, 6), None, "more failures than requests");
        assert_eq!(decode(day, u64::from(u32::MAX) + 1, 6), None);
    }
}
