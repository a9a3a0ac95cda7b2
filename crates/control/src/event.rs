//! Events: reports of what rounds of control have done, for code that keeps a log or wakes waiting
//! requests.

use std::sync::Arc;
use std::time::Duration;

use crate::outlier::Cause;

/// Something that has happened to a group, by itself or to one of its members (by index).
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A member is out for so long.
    Ejected {
        /// Index of the member.
        member: usize,
        /// Cause of the ejection.
        cause: Cause,
        /// Length of the ejection.
        time: Duration,
    },
    /// An ejected member is in again.
    Returned(usize),
    /// A member that was ejected is in again with its full share, because its trials have succeeded.
    Recovered(usize),
    /// A member gets its full share.
    SlowStartOver(usize),
    /// Too many members are down or ejected: all are routed to.
    Panic,
    /// The panic is over.
    PanicOver,
    /// The zone that comes first keeps another part of the group's requests.
    Zone {
        /// Part that stays, in a word.
        stay: ZoneStay,
        /// Part that stays, from 0 to 1.
        kept: f32,
    },
    /// A location is under alert.
    AlertRaised {
        /// Name of the location.
        location: Arc<str>,
        /// Effective load of the location.
        load: f32,
        /// The level that it exceeds.
        level: f32,
        /// True if the alert ends as soon as the wanted number of clients has left.
        is_pulse: bool,
    },
    /// A location is no longer under alert.
    AlertLifted {
        /// Name of the location.
        location: Arc<str>,
        /// Effective load of the location; `None` is unknown.
        load: Option<f32>,
        /// The level that it exceeded.
        level: f32,
        /// Time for which the location was under alert.
        after: Duration,
    },
}

/// Part of the requests that stays in the zone that comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneStay {
    /// All requests stay.
    All,
    /// Some; others go to other zones.
    Part,
    /// No request stays: nobody there can serve.
    Nothing,
}

impl Event {
    /// Returns true if waiting requests may find a member now.
    pub fn makes_room(&self) -> bool {
        matches!(
            self,
            Event::Returned(_) | Event::Recovered(_) | Event::Panic
        )
    }
}
