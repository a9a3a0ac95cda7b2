//! What a group is told to do: its settings.

use std::time::Duration;

use crate::alert::AlertSettings;
use crate::ejection::EjectionSettings;
use crate::key::Key;
use crate::latency::LatencyEnd;
use crate::load::LoadId;
use crate::zone::ZoneSettings;

/// When the strategy is asked (Schmidt et al., "Evaluating the performance of
/// middleware load balancing strategies", 2004).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// Once, when the client's connection starts.
    PerSession,
    /// For every request.
    #[default]
    PerRequest,
    /// Once, and again only when the bound location is under a load alert
    /// (non-adaptive: again after a fixed interval).
    OnDemand,
}

/// What a group needs to know beside its members. Parsed by the configuration;
/// every field has a default.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// When the strategy is asked.
    pub granularity: Granularity,
    /// Whether load reports and alerts take part in decisions. If not, the strategy
    /// sees only what needs no feedback, and on demand rebinds at a fixed interval.
    pub adaptive: bool,
    /// Non-adaptive on demand: how long a binding lasts.
    pub rebind_interval: Duration,
    /// Which reported load strategies look at.
    pub load_id: LoadId,
    /// What strategy `hash` goes by.
    pub hash_key: Key,
    /// Whether taking turns begins with the first member, and not with any: for who expects
    /// it. Balancers that start together all begin with that one then.
    pub in_order: bool,
    /// A report older than this is unknown.
    pub load_max_age: Duration,
    /// How long a member that is new, or back, takes to get its full share.
    pub slow_start: Duration,
    /// Share of members that may be down or ejected; above it all are routed to.
    pub panic_threshold: f32,
    /// Whether requests that may wait do so for the member that will have them done first; `None` is
    /// what suits the strategy.
    pub late_binding: Option<bool>,
    /// Moment of a response that ends its latency.
    pub latency: LatencyEnd,
    /// Time constant of the decay of observed latencies and penalties.
    pub latency_decay: Duration,
    /// What a failure costs at least, as if it were a latency. A failure is often
    /// fast; it must never look like a fast answer.
    pub failure_penalty: Duration,
    /// Load alerts.
    pub alert: AlertSettings,
    /// When members that fail are taken out.
    pub ejection: EjectionSettings,
    /// Which zones come first; `None` is that all are alike.
    pub zones: Option<ZoneSettings>,
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings {
            granularity: Granularity::PerRequest,
            adaptive: true,
            rebind_interval: Duration::from_secs(60),
            load_id: LoadId::CPU,
            hash_key: Key::default(),
            in_order: false,
            load_max_age: Duration::from_secs(15),
            slow_start: Duration::from_secs(10),
            panic_threshold: 0.5,
            late_binding: None,
            latency: LatencyEnd::default(),
            latency_decay: Duration::from_secs(10),
            failure_penalty: Duration::from_secs(5),
            alert: AlertSettings::default(),
            ejection: EjectionSettings::default(),
            zones: Some(ZoneSettings::default()),
        }
    }
}

impl GroupSettings {
    /// Whether clients that go to members themselves are called back at a fixed interval:
    /// on demand, not adaptive, with alerts as
    /// [pulses](AlertSettings::pulses).
    pub fn rebinds(&self) -> bool {
        self.alert.pulses && !self.adaptive && self.granularity == Granularity::OnDemand
    }
}
