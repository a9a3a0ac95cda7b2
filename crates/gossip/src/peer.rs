//! What a balancer keeps of another one.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_wire::window::Window;

use crate::board::Copy;
use crate::id::Id;
use crate::readings::Heard;
use crate::seal::Kind;

/// Messages that wait for a token.
pub(crate) const MAX_QUEUE: usize = 8;

/// Tokens that a peer has been given and not used yet: one is right, the others were asked for
/// by whoever repeats what was said long ago.
pub(crate) const MAX_PENDING: usize = 4;

/// Another balancer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: Id,
    /// The number that stands for its name.
    pub(crate) node: u64,
    /// Whether it is in the fleet.
    pub(crate) active: bool,
    /// Since when it is, or is not.
    pub(crate) since: Instant,
    /// The process there, of which is certain that it is there: it has answered.
    pub(crate) session: u64,
    /// What it takes from this balancer.
    pub(crate) out: Option<Out>,
    pub(crate) queue: Vec<(Kind, Vec<u8>)>,
    pub(crate) greeted: Option<Instant>,
    /// What this balancer takes from it.
    pub(crate) inbound: Option<Inbound>,
    pub(crate) pending: Vec<Inbound>,
    pub(crate) heard: Option<Instant>,
    /// Who passes on what it does not get directly.
    pub(crate) via: Option<SocketAddr>,
    /// When another one last said that it hears it.
    pub(crate) vouched: Option<Instant>,
    /// Whether others have been asked for it.
    pub(crate) asked: bool,
    /// When it was last sent a sheet.
    pub(crate) told: Instant,
    /// The row of sheets that it is sent.
    pub(crate) stream: u32,
    /// Up to which number it knows this balancer's notes.
    pub(crate) acked: u64,
    /// Up to which number they are on their way, and since when.
    pub(crate) sent: Option<(u64, Instant)>,
    /// What is known of its notes.
    pub(crate) copy: Copy,
    /// What it has read of back-ends.
    pub(crate) heard_loads: Heard,
    /// Stands for the names of its groups.
    pub(crate) groups: Option<u32>,
    /// When it was last told that it counts as gone.
    pub(crate) healed: Option<Instant>,
}

/// What a peer takes.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) token: u64,
    pub(crate) count: u64,
}

/// What is taken from a peer.
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
            groups: None,
            healed: None,
        }
    }

    /// For how long nothing has been heard of it; for one that has just come, since it is there.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        let heard = self.heard.unwrap_or(self.since);
        now.since(heard.max(self.since))
    }

    /// Whether this process is in the fleet, there.
    pub(crate) fn is(&self, node: u64, session: u64) -> bool {
        self.active && (self.node, self.speaker()) == (node, session)
    }

    /// The process from which what it says comes.
    pub(crate) fn speaker(&self) -> u64 {
        self.inbound.as_ref().map_or(0, |inbound| inbound.session)
    }
}

/// Whether something was last done so long ago, or never.
pub(crate) fn is_due(last: Option<Instant>, each: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now.since(last) >= each)
}
