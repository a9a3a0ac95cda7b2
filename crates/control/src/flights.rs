//! Weight of other balancers' requests in flight, whose numbers arrive once a second.
//!
//! A number that arrives describes the past, and every balancer that hears the number sends its
//! next requests where it is smallest (Mitzenmacher, "How Useful Is Old Information?", IEEE TPDS
//! 11(1), 2000). If requests are over long before the next number arrives, knowing it is worse than
//! not knowing it. The number therefore counts where requests take long: where they do so by
//! nature, and at members that are slow or have too much to do.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::time::Instant;

/// Interval at which balancers tell each other their numbers.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Returns the share of other balancers' requests that counts: *D / (D + 1)* if requests take *D* seconds, but 0 below
/// one second, and all if the time is not known, as with connections that last.
///
/// If short requests of others counted whole, all balancers would choose the same member
/// (`docs/design/loads-between-reports.md` has figures).
pub fn share(seconds: Option<f32>) -> f32 {
    let interval = INTERVAL.as_secs_f32();
    match seconds {
        None => 1.0,
        Some(seconds) if seconds < interval => 0.0,
        Some(seconds) => seconds / (seconds + interval),
    }
}

/// Takes as the load `in_flight` of each location of a group what this balancer has in flight there, and what
/// others have, as far as it [counts](share): `others` says how many they have at a member's location, by the
/// member's place.
pub fn count_others(group: &Group, others: impl Fn(usize) -> u32, now: Instant) {
    let settings = group.settings();
    let (window, decay) = (settings.ejection.window, settings.latency_decay);
    // The first member of each location, and how long requests take at those there.
    let mut locations: BTreeMap<&str, (usize, Vec<f32>)> = BTreeMap::new();
    for (place, member) in group.members().iter().enumerate() {
        let location = locations.entry(member.location.name());
        let (_, times) = location.or_insert((place, Vec::new()));
        times.extend(member.slot.seen_service(now, window, decay));
    }
    for (place, times) in locations.into_values() {
        let mean = times.iter().sum::<f32>() / times.len() as f32;
        let share = share((!times.is_empty()).then_some(mean));
        let Some(member) = group.members().get(place) else {
            continue;
        };
        let own = member.location.in_flight() as f32;
        let all = own + share * others(place) as f32;
        // Only more loads than a location may have are refused; it then has what others report.
        if let Ok(value) = LoadValue::new(f64::from(all)) {
            let _ = member.location.report_load(LoadId::IN_FLIGHT, value, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_requests_take_the_more_those_of_others_count() {
        assert_eq!(share(None), 1.0);
        assert_eq!(share(Some(0.99)), 0.0);
        assert_eq!(share(Some(1.0)), 0.5);
        assert!((share(Some(9.0)) - 0.9).abs() < 1e-6);
    }
}
