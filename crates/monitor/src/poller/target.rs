//! Locations whose loads are wanted, and the places where their records are read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::{Monitor, MonitorHost};
use evenkeel_core::load::Location;
use evenkeel_kernel::host::Host;
use evenkeel_kernel::query::{Key, SHORT, WITH_PORTS};

/// Place where a record is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordSource {
    /// The record is asked for by UDP.
    Udp(SocketAddr),
    /// The record is read over RDMA.
    Rdma(SocketAddr),
    /// The record is in shared memory on this machine.
    Shared(PathBuf),
}

impl std::fmt::Display for RecordSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RecordSource::Udp(address) | RecordSource::Rdma(address) => address.fmt(f),
            RecordSource::Shared(path) => path.display().fmt(f),
        }
    }
}

/// A location whose load is wanted.
#[derive(Clone, Debug)]
pub struct PollTarget {
    /// Location that the loads belong to.
    pub location: Arc<Location>,
    /// Settings for reading the loads.
    pub config: Monitor,
    /// Place where the loads are read.
    pub place: RecordSource,
    /// Key by which a datagram and its answer are authenticated. Needed for datagrams only.
    pub key: Option<Key>,
}

impl PollTarget {
    pub(super) fn is_same(&self, other: &PollTarget) -> bool {
        Arc::ptr_eq(&self.location, &other.location)
            && self.config == other.config
            && self.place == other.place
            && self.key == other.key
    }

    /// True if records of the two can be compared: they are of the same back-end.
    pub(super) fn is_continued_by(&self, other: &PollTarget) -> bool {
        self.place == other.place
            && self.config.host == other.config.host
            && self.config.target == other.config.target
    }

    /// Returns the time after which a question without an answer is repeated.
    pub(super) fn retry(&self) -> Duration {
        self.config.interval.min(self.config.timeout() / 3)
    }

    /// Returns the host whose answer counts.
    pub(super) fn host(&self) -> Host {
        match (&self.config.host, &self.place) {
            (MonitorHost::Address, RecordSource::Udp(at)) => Host::from_address(at.ip()),
            (MonitorHost::Named(name), _) => Host::from_name(name),
            // Nothing else than datagrams says whom it means.
            (MonitorHost::Address | MonitorHost::Any, _) => Host::ANY,
        }
    }

    /// Returns the length of a question, which is that of its answer: with the listen backlogs if `has_ports`.
    pub(super) fn question_length(&self, has_ports: bool) -> usize {
        if self.config.listen_backlogs && has_ports {
            WITH_PORTS
        } else {
            SHORT
        }
    }

    /// Returns true if an answer to a question of this target may have that length.
    pub(super) fn is_answer_length(&self, length: usize) -> bool {
        [true, false]
            .map(|has_ports| self.question_length(has_ports))
            .contains(&length)
    }
}
