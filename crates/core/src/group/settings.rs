//! Settings of a group.

use std::time::Duration;

use crate::alert::AlertSettings;
use crate::ejection::EjectionSettings;
use crate::key::Key;
use crate::latency::LatencyEnd;
use crate::load::LoadId;
use crate::zone::ZoneSettings;

/// Occasions on which the strategy is asked (Schmidt et al., "Evaluating the performance of
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

/// Settings of the strategy `inference`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InferenceSettings {
    /// Memory of the index of prompts, in bytes.
    pub index_memory: usize,
    /// Most bytes of a request's body that are read before a member is chosen.
    pub max_prompt: usize,
    /// Expected time to the first token beyond which requests wait; `None` if requests never wait for that.
    pub ttft_target: Option<Duration>,
}

impl Default for InferenceSettings {
    fn default() -> Self {
        InferenceSettings {
            index_memory: 32 << 20,
            max_prompt: 1 << 20,
            ttft_target: None,
        }
    }
}

/// Settings of a group, beside its members. Parsed by the configuration;
/// every field has a default.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// Occasions on which the strategy is asked.
    pub granularity: Granularity,
    /// True if load reports and alerts take part in decisions. If not, the strategy sees only data that needs no
    /// feedback, and on demand rebinds at a fixed interval.
    pub adaptive: bool,
    /// Lifetime of a binding on demand that is not adaptive.
    pub rebind_interval: Duration,
    /// Reported load that strategies look at.
    pub load_id: LoadId,
    /// Key of strategy `hash`.
    pub hash_key: Key,
    /// True if taking turns begins with the first member, and not with a random one: for users who expect it. Balancers
    /// that start together then all begin with the first member.
    pub in_order: bool,
    /// A report older than this is unknown.
    pub load_max_age: Duration,
    /// Time in which a member that is new, or back, gets its full share.
    pub slow_start: Duration,
    /// Share of members that may be down or ejected; above it all are routed to.
    pub panic_threshold: f32,
    /// True if a request that may wait does so for the member that will have it done first; `None` is the strategy's
    /// default.
    pub late_binding: Option<bool>,
    /// Moment of a response that ends its latency.
    pub latency: LatencyEnd,
    /// Time constant of the decay of observed latencies and penalties.
    pub latency_decay: Duration,
    /// Least cost of a failure, as if it were a latency. A failure is often fast; it must never look like a fast
    /// answer.
    pub failure_penalty: Duration,
    /// Load alerts.
    pub alert: AlertSettings,
    /// Settings for the ejection of members that fail.
    pub ejection: EjectionSettings,
    /// Settings of the strategy `inference`.
    pub inference: InferenceSettings,
    /// Zones that come first; `None` is that all are alike.
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
            inference: InferenceSettings::default(),
            zones: Some(ZoneSettings::default()),
        }
    }
}

impl GroupSettings {
    /// True if clients that go to members themselves are called back at a fixed interval: on demand, not adaptive, with
    /// alerts as [pulses](AlertSettings::pulses).
    pub fn rebinds(&self) -> bool {
        self.alert.pulses && !self.adaptive && self.granularity == Granularity::OnDemand
    }
}
