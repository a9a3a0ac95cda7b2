//! State that a balancer keeps of another one.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_wire::window::Window;

use crate::board::Copy;
use crate::id::Id;
use crate::reading::Heard;
use crate::seal::Kind;
use crate::work_report::HeardWork;

/// Messages that wait for a token.
pub(crate) const MAX_QUEUE: usize = 8;

/// Tokens that a peer has been given and not used yet: one is right, the others were asked for
/// by whoever repeats what was said long ago.
pub(crate) const MAX_PENDING: usize = 4;

/// State of another balancer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: Id,
    /// The number that stands for its name.
    pub(crate) node: u64,
    /// True if the peer is in the fleet.
    pub(crate) active: bool,
    /// Time since which the peer is in the fleet, or is not.
    pub(crate) since: Instant,
    /// Process that is certain to be at the address: it has answered.
    pub(crate) session: u64,
    /// State of the datagrams that the peer takes from this balancer.
    pub(crate) out: Option<Out>,
    pub(crate) queue: Vec<(Kind, Vec<u8>)>,
    pub(crate) greeted: Option<Instant>,
    /// State of the datagrams that this balancer takes from the peer.
    pub(crate) inbound: Option<Inbound>,
    pub(crate) pending: Vec<Inbound>,
    pub(crate) heard: Option<Instant>,
    /// Balancer that passes on what the peer does not get directly.
    pub(crate) via: Option<SocketAddr>,
    /// Time at which another balancer last said that it hears the peer.
    pub(crate) vouched: Option<Instant>,
    /// True if others have been asked about the peer.
    pub(crate) asked: bool,
    /// Time at which the peer was last sent a sheet.
    pub(crate) told: Instant,
    /// The row of sheets that it is sent.
    pub(crate) stream: u32,
    /// Number up to which the peer knows this balancer's notes.
    pub(crate) acked: u64,
    /// Number up to which this balancer's notes are on their way, and since when.
    pub(crate) sent: Option<(u64, Instant)>,
    /// Copy of the peer's notes, as far as they are known.
    pub(crate) copy: Copy,
    /// Loads that the peer has read of back-ends.
    pub(crate) heard_loads: Heard,
    /// Work that the peer has at engines.
    pub(crate) heard_work: HeardWork,
    /// Stands for the names of its groups.
    pub(crate) groups: Option<u32>,
    /// Time at which the peer was last told that it counts as gone.
    pub(crate) healed: Option<Instant>,
}

/// Token and count of the datagrams that a peer takes.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) token: u64,
    pub(crate) count: u64,
}

/// Token and window of the datagrams that are taken from a peer.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) token: u64,
    /// The process that asked for the token.
    pub(crate) session: u64,
    pub(crate) window: Window,
}

impl Peer {
    pub(crate) fn new(id: Id, stream: u32, now: Instant) -> Self {
        Peer {
            node: id.node(),
            id,
            active: false,
            since: now,
            session: 0,
            out: None,
            queue: Vec::new(),
            greeted: None,
            inbound: None,
            pending: Vec::new(),
            heard: None,
            via: None,
            vouched: None,
            asked: false,
            told: now,
            stream,
            acked: 0,
            sent: None,
            copy: Copy::default(),
            heard_loads: Heard::default(),
            heard_work: HeardWork::default(),
            groups: None,
            healed: None,
        }
    }

    /// Returns the time for which nothing has been heard of the peer; for a peer that has just come, since it is there.
    pub(crate) fn time_silent(&self, now: Instant) -> Duration {
        let heard = self.heard.unwrap_or(self.since);
        now.since(heard.max(self.since))
    }

    /// Returns true if this process is in the fleet, at the peer's address.
    pub(crate) fn is_process(&self, node: u64, session: u64) -> bool {
        self.active && (self.node, self.speaker()) == (node, session)
    }

    /// Returns the process from which the datagrams of the peer come.
    pub(crate) fn speaker(&self) -> u64 {
        self.inbound.as_ref().map_or(0, |inbound| inbound.session)
    }
}

/// Returns true if something was last done at least `each` ago, or never.
pub(crate) fn is_due(last: Option<Instant>, each: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now.since(last) >= each)
}
