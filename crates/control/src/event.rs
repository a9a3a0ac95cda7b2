//! What rounds of control have done, for whoever keeps a log or wakes those who wait.

use std::sync::Arc;
use std::time::Duration;

use crate::outlier::Cause;

/// Something that has happened to a group, by itself or to one of its members (by index).
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A member is out for so long.
    Ejected {
        /// Which.
        member: usize,
        /// Why.
        cause: Cause,
        /// For how long.
        time: Duration,
    },
    /// An ejected member is in again.
    Returned(usize),
    /// A member gets its full share.
    SlowStartOver(usize),
    /// Too many members are down or ejected: all are routed to.
    Panic,
    /// Not any more.
    PanicOver,
    /// The zone that comes first keeps another part of the group's requests.
    Zone {
        /// Which, in a word.
        stay: Stay,
        /// From 0 to 1.
        kept: f32,
    },
    /// A location is under alert.
    AlertRaised {
        /// Which.
        location: Arc<str>,
        /// Its effective load.
        load: f32,
        /// The level that it exceeds.
        level: f32,
        /// Whether the alert ends when so many clients have left as are to.
        is_pulse: bool,
    },
    /// It is not any more.
    AlertLifted {
        /// Which.
        location: Arc<str>,
        /// Its effective load; `None` is unknown.
        load: Option<f32>,
        /// The level that it exceeded.
        level: f32,
        /// How long it was under alert.
        after: Duration,
    },
}

/// Which part of the requests stays in the zone that comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// All.
    All,
    /// Some; others go to other zones.
    Part,
    /// None: nobody there can serve.
    Nothing,
}

impl Event {
    /// Whether requests that wait may find a member now.
    pub fn makes_room(&self) -> bool {
        matches!(self, Event::Returned(_) | Event::Panic)
    }
}
