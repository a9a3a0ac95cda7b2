//! Path of a group's clients to its members, and the defaults that depend on it.

use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{
    Kind, Values, default_kind, least_utilization, minimum_dispersion, round_robin,
};

/// Path of a group's clients to its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The balancer carries the clients' data.
    Carried,
    /// Clients connect to members themselves, and come back when a load alert sends them (`LOCATION_FORWARD`).
    Forwarded,
    /// Clients connect to members themselves, for a quantum (redirects, negotiation).
    Redirected,
}

/// Share of the average above which a location is alerted by default if alerts are no pulses. The load of a
/// single client is unknown there: clients leave one after the other until a report shows relief, and a smaller
/// excess would send them on for ever. A larger one would leave two clients too many where each location has
/// two or three.
const EXCESS: f64 = 0.25;

/// Returns the strategy of a group that names none.
///
/// If the strategy is asked for every request, or the balancer carries sessions, requests in flight and the
/// learnt service time tell most: `adaptive`. If clients go to members themselves, nobody can count their
/// requests. Clients bound on demand are to be moved when loads drift apart, for which `adaptive` has no
/// threshold: `minimum_dispersion` goes by any reported load, and its threshold is relative to the average. If
/// loads do not count, clients that go to members themselves are dealt out in turn.
pub fn default_for(settings: &GroupSettings, reach: Reach) -> Values {
    let (adaptive, granularity) = (settings.adaptive, settings.granularity);
    match (reach, granularity) {
        (_, Granularity::PerRequest) | (Reach::Carried, Granularity::PerSession) => {
            Values::defaults(default_kind())
        }
        (Reach::Carried, Granularity::OnDemand) if !adaptive => Values::defaults(default_kind()),
        (Reach::Forwarded | Reach::Redirected, _) if !adaptive => {
            Values::defaults(&round_robin::KIND)
        }
        (Reach::Forwarded | Reach::Carried, _) => Values::defaults(&minimum_dispersion::KIND),
        (Reach::Redirected, _) => {
            let mut values = Values::defaults(&minimum_dispersion::KIND);
            let set = values.set(minimum_dispersion::CRITICAL_EXCESS.name, EXCESS);
            debug_assert!(set.is_ok());
            values
        }
    }
}

/// True if the alerts of such a group are [pulses](evenkeel_core::alert::AlertSettings::pulses) while the
/// balancer carries the clients' data: strategy `minimum_dispersion` is made for pulses. Connections with an
/// unknown protocol are closed when they are silent (`close_idle`), which takes longer. An administrator who
/// has set a threshold wants clients to leave until loads are below it.
pub fn carries_in_pulses(settings: &GroupSettings, strategy: &Kind) -> bool {
    settings.adaptive
        && settings.granularity == Granularity::OnDemand
        && settings.alert.close_idle.is_none()
        && settings.alert.threshold.is_none()
        && *strategy == minimum_dispersion::KIND
}

/// Returns the load that a strategy uses in a group that names none. Policy LU is about the utilisation that an
/// application has measured; a location that does not report it counts with its `cpu` (see
/// [`evenkeel_core::load::Location::projected_load`]).
pub(crate) fn default_load(kind: &Kind) -> LoadId {
    if *kind == least_utilization::KIND {
        LoadId::UTILIZATION
    } else {
        LoadId::CPU
    }
}
