//! Report about a location: its host load, and its servers as one.

use evenkeel_core::load::{LoadId, LoadValue};

use crate::figures::{Figures, Source};

/// A server's figures among those of its location.
#[derive(Clone, Copy, Debug)]
pub struct Part<'f> {
    /// The figures.
    pub figures: &'f Figures,
    /// True if the server has a capacity of its own, and not the location's CPUs.
    pub own_capacity: bool,
}

/// The figures of several servers at one location as those of one. A location has one
/// value of each load.
pub fn combine(parts: &[Part<'_>]) -> Option<Figures> {
    let mut whole = Figures::default();
    if let [only] = parts {
        return Some(only.figures.clone());
    }
    if parts.is_empty() {
        return None;
    }
    for part in parts {
        whole.arrival_rate += part.figures.arrival_rate;
        whole.completion_rate += part.figures.completion_rate;
        whole.in_flight = whole.in_flight.saturating_add(part.figures.in_flight);
        whole.clamped |= part.figures.clamped;
    }
    whole.response_time = mean(parts, |figures| figures.response_time);
    whole.think_time = mean(parts, |figures| figures.think_time);
    let service_time = mean(parts, |figures| figures.service_time.map(|(time, _)| time));
    let source = |part: &Part<'_>| part.figures.service_time.map(|(_, source)| source);
    // The least certain of them.
    let certainty = [Source::Learned, Source::Measured, Source::Given];
    let source = certainty
        .into_iter()
        .find(|wanted| parts.iter().any(|part| source(part) == Some(*wanted)));
    whole.service_time = service_time.zip(source);

    // Servers on the same CPUs add up; of those with workers of their own the fullest one
    // counts. If one is not known, the whole is not either.
    let used: Option<Vec<(f64, bool)>> = parts
        .iter()
        .map(|part| Some((part.figures.utilization?, part.own_capacity)))
        .collect();
    whole.utilization = used.map(|used| {
        let shared = used.iter().filter(|(_, own)| !own).map(|(share, _)| share);
        let own = used.iter().filter(|(_, own)| *own).map(|(share, _)| *share);
        own.fold(shared.sum(), f64::max).min(1.0)
    });
    Some(whole)
}

/// The mean of a figure over all requests that were completed, or over the servers if
/// there were none.
fn mean(parts: &[Part<'_>], figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
    let known = || {
        let known = parts.iter();
        known.filter_map(|part| Some((figure(part.figures)?, part.figures.completion_rate)))
    };
    let requests: f64 = known().map(|(_, rate)| rate).sum();
    if requests > 0.0 {
        return Some(known().map(|(value, rate)| value * rate).sum::<f64>() / requests);
    }
    let count = known().count();
    (count > 0).then(|| known().map(|(value, _)| value).sum::<f64>() / count as f64)
}

/// The loads of a location: those of its host, and the figures of its servers. What is not
/// known is left out.
pub fn loads(host: &[(LoadId, f64)], figures: Option<&Figures>) -> Vec<(LoadId, LoadValue)> {
    let of_servers = figures.map(|figures| {
        [
            (LoadId::REQUESTS_PER_SECOND, Some(figures.arrival_rate)),
            (LoadId::UTILIZATION, figures.utilization),
            (LoadId::IN_FLIGHT, Some(figures.in_flight as f64)),
            (LoadId::RESPONSE_TIME, figures.response_time),
            (
                LoadId::SERVICE_TIME,
                figures.service_time.map(|(time, _)| time),
            ),
            (LoadId::THINK_TIME, figures.think_time),
        ]
    });
    let of_servers = of_servers.into_iter().flatten();
    let of_servers = of_servers.filter_map(|(id, value)| Some((id, value?)));
    host.iter()
        .copied()
        .chain(of_servers)
        .filter_map(|(id, value)| Some((id, LoadValue::new(value).ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rate: f64, time: f64, utilization: f64) -> Figures {
        Figures {
            arrival_rate: rate,
            completion_rate: rate,
            in_flight: 2,
            response_time: Some(2.0 * time),
            service_time: Some((time, Source::Measured)),
            utilization: Some(utilization),
            clamped: false,
            think_time: None,
        }
    }

    fn part(figures: &Figures, own_capacity: bool) -> Part<'_> {
        Part {
            figures,
            own_capacity,
        }
    }

    #[test]
    fn one_server_is_its_location_and_none_has_no_figures() {
        let one = figures(10.0, 0.1, 0.5);
        assert_eq!(combine(&[part(&one, false)]), Some(one));
        assert_eq!(combine(&[]), None);
    }

    #[test]
    fn rates_add_up_times_are_means_over_requests() {
        let (a, mut b) = (figures(30.0, 0.1, 0.5), figures(10.0, 0.5, 0.4));
        b.service_time = Some((0.5, Source::Learned));
        let whole = combine(&[part(&a, false), part(&b, false)]).unwrap();
        assert_eq!((whole.arrival_rate, whole.in_flight), (40.0, 4));
        assert_eq!(whole.response_time, Some(0.4));
        assert_eq!(whole.service_time, Some((0.2, Source::Learned)));
        assert_eq!(whole.utilization, Some(0.9));
        assert_eq!(whole.think_time, None);
        // Without requests each server counts as much as the other.
        let (a, b) = (figures(0.0, 0.1, 0.0), figures(0.0, 0.3, 0.0));
        let whole = combine(&[part(&a, false), part(&b, false)]).unwrap();
        assert_eq!(whole.response_time, Some(0.4));
    }

    #[test]
    fn a_full_server_fills_its_location_and_an_unknown_one_hides_what_they_share() {
        let (a, mut b) = (figures(1.0, 0.1, 0.3), figures(1.0, 0.1, 0.8));
        let whole = combine(&[part(&a, false), part(&b, true)]).unwrap();
        assert_eq!(whole.utilization, Some(0.8));
        let whole = combine(&[part(&b, false), part(&b, false)]).unwrap();
        assert_eq!(whole.utilization, Some(1.0));
        b.utilization = None;
        let whole = combine(&[part(&a, false), part(&b, false)]).unwrap();
        assert_eq!(whole.utilization, None);
    }

    #[test]
    fn what_is_not_known_or_no_load_is_not_reported() {
        let mut unknown = figures(10.0, 0.1, 0.5);
        unknown.response_time = None;
        unknown.service_time = Some((f64::NAN, Source::Given));
        let loads = loads(&[(LoadId::CPU, 0.5), (LoadId::DISK, -1.0)], Some(&unknown));
        let ids: Vec<_> = loads.iter().map(|(id, _)| *id).collect();
        let expected = [
            LoadId::CPU,
            LoadId::REQUESTS_PER_SECOND,
            LoadId::UTILIZATION,
            LoadId::IN_FLIGHT,
        ];
        assert_eq!(ids, expected);
    }

    #[test]
    fn all_that_can_be_reported_fits_into_a_location() {
        let host: Vec<_> = (100..108).map(|id| (LoadId(id), 0.5)).collect();
        let mut all = figures(1.0, 1.0, 1.0);
        all.think_time = Some(1.0);
        let loads = loads(&host, Some(&all));
        assert_eq!(loads.len(), 14);
        assert!(loads.len() <= evenkeel_core::load::LOADS_PER_LOCATION);
    }
}
