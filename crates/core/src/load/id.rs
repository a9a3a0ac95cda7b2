//! Measure and value of a load.

use std::fmt;

use crate::time::Instant;

/// Quantity that a load value measures.
///
/// The first five ids are those of the OMG's `CosLoadBalancing` module; any other id
/// is carried as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadId(pub u32);

impl LoadId {
    /// CPU utilisation, 0 to 1 (may exceed 1 where run queues are counted).
    pub const CPU: LoadId = LoadId(0);
    /// Disk utilisation, 0 to 1.
    pub const DISK: LoadId = LoadId(1);
    /// Memory in use, 0 to 1.
    pub const MEMORY: LoadId = LoadId(2);
    /// Network utilisation, 0 to 1.
    pub const NETWORK: LoadId = LoadId(3);
    /// Requests per second.
    pub const REQUESTS_PER_SECOND: LoadId = LoadId(4);
    /// Application-defined utilisation, 0 to 1 (ORCA `application_utilization`).
    pub const UTILIZATION: LoadId = LoadId(16);
    /// Requests in flight at the location, from all balancers and direct clients.
    pub const IN_FLIGHT: LoadId = LoadId(17);
    /// Mean response time in seconds, queueing included.
    pub const RESPONSE_TIME: LoadId = LoadId(18);
    /// Mean service time in seconds: a response time without a queue.
    pub const SERVICE_TIME: LoadId = LoadId(19);
    /// Mean time in seconds for which a client thinks between two requests.
    pub const THINK_TIME: LoadId = LoadId(20);
    /// Tasks that run or wait for a CPU, per CPU.
    pub const RUN_QUEUE: LoadId = LoadId(21);
    /// Share of time, 0 to 1, in which some task waited for a CPU (pressure stall
    /// information of Linux, `some`).
    pub const CPU_PRESSURE: LoadId = LoadId(22);
    /// Share of time, 0 to 1, in which some task waited for memory.
    pub const MEMORY_PRESSURE: LoadId = LoadId(23);
    /// Share of time, 0 to 1, in which some task waited for a disk.
    pub const IO_PRESSURE: LoadId = LoadId(24);
    /// Interrupt and network work that a kernel has put off, in tasks per CPU.
    pub const PENDING_WORK: LoadId = LoadId(25);
    /// Fullness of the fullest listen backlog, 0 to 1.
    pub const ACCEPT_QUEUE: LoadId = LoadId(26);
    /// All that a kernel knows of its load in one number: tasks per CPU that run, wait, or
    /// will soon (`evenkeel_kernel::loads` has the formula).
    pub const COMPOSITE: LoadId = LoadId(27);
    /// Time in seconds from a load query to its answer.
    pub const ROUND_TRIP: LoadId = LoadId(28);
    /// Requests per second that fail.
    pub const ERRORS_PER_SECOND: LoadId = LoadId(29);
    /// Requests that wait at the location and are not worked on yet: the queue of an engine for language models. Few
    /// locations report this load, so that it has no cell of its own.
    pub const WAITING_REQUESTS: LoadId = LoadId(30);
    /// Loads that a kernel load monitor reads of a back-end. Balancers tell each other loads in this order.
    pub const OF_KERNEL: [LoadId; 9] = [
        LoadId::CPU,
        LoadId::RUN_QUEUE,
        LoadId::PENDING_WORK,
        LoadId::MEMORY,
        LoadId::CPU_PRESSURE,
        LoadId::MEMORY_PRESSURE,
        LoadId::IO_PRESSURE,
        LoadId::ACCEPT_QUEUE,
        LoadId::COMPOSITE,
    ];
    /// Not a load of its own: whichever load stands first in what monitors of CORBA report
    /// of a location ([`Location::lead_with`]); where there is no fresh one, [`LoadId::CPU`].
    pub const FIRST: LoadId = LoadId(u32::MAX);
}

/// Name of [`LoadId::FIRST`].
const FIRST: &str = "first";

/// Number of loads that have a name.
pub(super) const NAMED_LOADS: usize = 19;

/// The loads that have a name, and their own cell at each location.
pub(super) const NAMES: [(LoadId, &str); NAMED_LOADS] = [
    (LoadId::CPU, "cpu"),
    (LoadId::DISK, "disk"),
    (LoadId::MEMORY, "memory"),
    (LoadId::NETWORK, "network"),
    (LoadId::REQUESTS_PER_SECOND, "requests_per_second"),
    (LoadId::UTILIZATION, "utilization"),
    (LoadId::IN_FLIGHT, "in_flight"),
    (LoadId::RESPONSE_TIME, "response_time"),
    (LoadId::SERVICE_TIME, "service_time"),
    (LoadId::THINK_TIME, "think_time"),
    (LoadId::RUN_QUEUE, "run_queue"),
    (LoadId::CPU_PRESSURE, "cpu_pressure"),
    (LoadId::MEMORY_PRESSURE, "memory_pressure"),
    (LoadId::IO_PRESSURE, "io_pressure"),
    (LoadId::PENDING_WORK, "pending_work"),
    (LoadId::ACCEPT_QUEUE, "accept_queue"),
    (LoadId::COMPOSITE, "composite"),
    (LoadId::ROUND_TRIP, "round_trip"),
    (LoadId::ERRORS_PER_SECOND, "errors_per_second"),
];

/// Further names, of loads that have no cell of their own.
const MORE_NAMES: [(LoadId, &str); 1] = [(LoadId::WAITING_REQUESTS, "waiting_requests")];

/// Lists the names of all loads that have a name.
fn list_names() -> impl Iterator<Item = &'static (LoadId, &'static str)> {
    NAMES.iter().chain(&MORE_NAMES)
}

impl LoadId {
    /// True if the load has its own cell at each location. Of all other loads a location keeps [`UNNAMED_LOADS`].
    #[inline]
    pub const fn is_named(self) -> bool {
        self.place().is_some()
    }

    /// Index of the load in [`NAMES`], if it has a name.
    #[inline]
    pub(super) const fn place(self) -> Option<usize> {
        match self.0 {
            id @ 0..=4 => Some(id as usize),
            id @ 16..=29 => Some(id as usize - 11),
            _ => None,
        }
    }

    /// True if the load is a utilisation: a share, 1 when all is in use.
    pub const fn is_utilization(self) -> bool {
        matches!(
            self,
            LoadId::CPU
                | LoadId::DISK
                | LoadId::MEMORY
                | LoadId::NETWORK
                | LoadId::UTILIZATION
                | LoadId::CPU_PRESSURE
                | LoadId::MEMORY_PRESSURE
                | LoadId::IO_PRESSURE
                | LoadId::ACCEPT_QUEUE
        )
    }

    /// True if the load counts tasks that run or wait, per CPU: 1 when all is in use, more when some wait.
    pub const fn is_queue(self) -> bool {
        matches!(self, LoadId::RUN_QUEUE | LoadId::COMPOSITE)
    }
}

impl fmt::Display for LoadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match list_names().find(|(id, _)| id == self) {
            Some((_, name)) => f.write_str(name),
            None if *self == LoadId::FIRST => f.write_str(FIRST),
            None => write!(f, "{}", self.0),
        }
    }
}

impl std::str::FromStr for LoadId {
    type Err = ParseLoadIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match list_names().find(|(_, name)| *name == text) {
            Some((id, _)) => Ok(*id),
            None if text == FIRST => Ok(LoadId::FIRST),
            None => Ok(LoadId(text.parse().map_err(|_| ParseLoadIdError)?)),
        }
    }
}

/// The text is neither the name nor the number of a load id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {}, or a number from 0 to 4294967295", list_names().map(|(_, name)| *name).collect::<Vec<_>>().join(", "))]
pub struct ParseLoadIdError;

/// A load value: finite, not negative, and not absurd.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct LoadValue(pub(super) f32);

/// A value that no load may have.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a load must be a number from 0 to 1e12, not {0}")]
pub struct InvalidLoad(pub f64);

impl LoadValue {
    /// The largest load that is accepted. Larger numbers are mistakes of a unit or a sensor, and one of them would
    /// dominate every average it enters.
    pub const MAX: f32 = 1e12;

    /// No load at all.
    pub const ZERO: LoadValue = LoadValue(0.0);

    /// Parses a reported number.
    pub fn new(value: f64) -> Result<Self, InvalidLoad> {
        // Not f64::from(MAX), which is a little less than the documented limit.
        if (0.0..=1e12).contains(&value) {
            Ok(LoadValue(value as f32))
        } else {
            Err(InvalidLoad(value))
        }
    }

    /// The number.
    pub fn get(self) -> f32 {
        self.0
    }
}

/// A load as it was last reported, with the time of the report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// True if its source has no news: the load counts as unknown, whatever its age.
    pub expired: bool,
    /// Identity of the load.
    pub id: LoadId,
    /// The reported value.
    pub value: LoadValue,
    /// Instant at which the report arrived.
    pub at: Instant,
}
