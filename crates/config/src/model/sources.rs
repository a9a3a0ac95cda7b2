//! Load sources that groups may have, each with a file of its own.

use super::cgroup::{self, Cgroup};
use super::statsd::{self, Statsd};
use crate::schema::key::section;
use crate::schema::reference::TableDoc;

section! {
    /// What a group says of its load sources. Each is off unless it is there.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Sources {}
    keys SOURCES {
        /// Whether gauges that arrive by StatsD are loads of the group's locations: a table (see
        /// there), `false` for no.
        statsd: Option<Statsd> = None; r#"{ listen = "127.0.0.1:8125", loads = { "app.busy" = "utilization" } }"#,
        /// Whether the loads of the group's locations are read from cgroups of this machine: a
        /// table (see there), `false` for no.
        cgroup: Option<Cgroup> = None; r#"{ path = "/system.slice/{location}.service" }"#,
    }
}

/// What the reference says of the tables.
pub(crate) fn tables() -> [TableDoc; 2] {
    [statsd::tables(), cgroup::tables()]
}
