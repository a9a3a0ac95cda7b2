//! How the clients of a group reach its members, and what is chosen by that where nothing is said.

use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{
    Kind, Values, default_kind, least_utilization, minimum_dispersion, round_robin,
};

/// How the clients of a group reach its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// We carry what they send and receive.
    Carried,
    /// They go there themselves, and come back when a load alert sends them
    /// (`LOCATION_FORWARD`).
    Forwarded,
    /// They go there themselves, for a quantum (redirects, negotiation).
    Redirected,
}

/// Above which share of the average a location is alerted by default where alerts are no
/// pulses. Nobody knows there what one client brings: they leave one after the
/// other until a report shows relief, and a smaller excess would send them on for ever. A larger
/// one would leave two clients too many where each location has two or three.
const EXCESS: f64 = 0.25;

/// The strategy of a group that names none.
///
/// Where the strategy is asked for every request, or we carry sessions, requests in flight and
/// the learnt service time tell most: `adaptive`. Nobody can count the requests of clients
/// that go to members themselves, and who is bound on demand is to be moved when loads drift
/// apart, for which `adaptive` has no threshold: `minimum_dispersion` goes by whatever load is
/// reported, and its threshold is relative to the average. Where loads do not count, clients
/// that go to members themselves are dealt out in turn.
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

/// Whether the alerts of such a group are [pulses](evenkeel_core::alert::AlertSettings::pulses) where we carry what
/// its clients send: strategy `minimum_dispersion` is made for those. Connections of which
/// nothing is understood are closed when they are silent (`close_idle`), which takes longer;
/// and whoever has set a threshold means that clients leave until loads are below it.
pub fn carries_in_pulses(settings: &GroupSettings, strategy: &Kind) -> bool {
    settings.adaptive
        && settings.granularity == Granularity::OnDemand
        && settings.alert.close_idle.is_none()
        && settings.alert.threshold.is_none()
        && *strategy == minimum_dispersion::KIND
}

/// The load that a strategy goes by where a group names none. Policy LU is about the
/// utilisation that an application has measured; a location that does not report it counts with
/// its `cpu` (see [`evenkeel_core::load::Location::projected`]).
pub(crate) fn default_load(kind: &Kind) -> LoadId {
    if *kind == least_utilization::KIND {
        LoadId::UTILIZATION
    } else {
        LoadId::CPU
    }
}
