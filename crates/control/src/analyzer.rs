//! The analyzer: which locations must shed load, by raising and lifting load alerts.
//!
//! Source: the load alerts of the OMG's `CosLoadBalancing` and its strategies
//! `LeastLoaded`, `LoadMinimum` and `LoadAverage`; Othman, O'Ryan and Schmidt, "The
//! Design and Performance of an Adaptive CORBA Load Balancing Service" (2001).
//!
//! An alert asks clients to go elsewhere, so it is only worth something as long as
//! somebody else can take them. With every location above the threshold, alerts for all
//! would send clients around in circles. So only a share of the locations is alerted at
//! the same time, and those are the most loaded ones.
//!
//! Groups share locations, and one that must shed for any of them sheds for all. Each
//! group then decides by itself from which of them its clients leave ([`choose_shedding`]): where all of its
//! locations are under alerts of others, it has nowhere to send them.

use evenkeel_core::alert::{AlertSettings, Threshold};
use evenkeel_core::load::LoadId;

/// A location as one group sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Effective load; `None` is unknown.
    pub load: Option<f32>,
    /// True if a member of the group takes new traffic at the location.
    pub takes_traffic: bool,
    /// The last answer: true if the group has the location under alert, or sheds there.
    pub alerted: bool,
}

/// The load above which a location of `sites` gets an alert: for a relative threshold it
/// depends on the loads.
pub fn alert_level(threshold: Threshold, sites: &[Site]) -> f32 {
    levels(threshold, 1.0, known(sites)).0
}

/// The load above which an alert is raised, and the one above which it stays.
fn levels(
    threshold: Threshold,
    release: f32,
    loads: impl Iterator<Item = f32> + Clone,
) -> (f32, f32) {
    // Of a relative threshold only the excess shrinks: below the minimum, or the
    // average, itself an alert could never be lifted.
    let relative = |base: f32, share: f32| {
        let level = |share: f32| base * (1.0 + share);
        (level(share), level(share * release))
    };
    match threshold {
        Threshold::Critical(level) => (level, level * release),
        Threshold::AboveMinimum(share) => {
            // No excess can be measured against nothing: every other load would be
            // above it by any share.
            let busy = loads.filter(|&load| load > 0.0);
            relative(busy.fold(f32::INFINITY, f32::min), share)
        }
        Threshold::AboveAverage(share) => {
            let count = loads.clone().count().max(1);
            relative(loads.sum::<f32>() / count as f32, share)
        }
    }
}

/// Returns true if the loads differ by so little that a relative threshold means nothing. If there
/// is nearly nothing to do, twice as much still is nothing, and clients would be sent around for
/// it. Only for a utilisation is it known how much is little.
pub fn is_negligible(threshold: Threshold, id: LoadId, sites: &[Site]) -> bool {
    if matches!(threshold, Threshold::Critical(_)) || !id.is_utilization() {
        return false;
    }
    let least = known(sites).fold(f32::INFINITY, f32::min);
    let most = known(sites).fold(0.0, f32::max);
    most - least <= NEGLIGIBLE
}

/// Largest difference of a utilisation that counts as none.
const NEGLIGIBLE: f32 = 0.05;

/// Decides which of `sites` are to be under alert, one answer for each.
///
/// A location whose load is unknown is not, nor is one that takes no traffic anyway.
pub fn choose_alerted(threshold: Threshold, settings: &AlertSettings, sites: &[Site]) -> Vec<bool> {
    let (raise, keep) = levels(threshold, settings.release, known(sites));
    let critical = taking(sites).filter_map(|(index, site)| {
        let load = site.load?;
        let level = if site.alerted { keep } else { raise };
        (load > level).then(|| (rank(settings, site, load), index))
    });
    let allowed = count_allowed(settings, sites);
    most_loaded(critical.collect(), allowed, sites.len())
}

/// The party that has a location under alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A group that has members there, because of the load.
    Group,
    /// An administrator: counts more than [`AlertSettings::max_share`].
    Administrator,
}

/// Decides from which of its `sites` a group sends its clients away, one answer for each. `alerts`
/// says who has each site under alert, this group or another one.
///
/// A group never sends clients away from all sites that take traffic: with every location under
/// alert the least loaded one serves. An unknown load counts as average.
pub fn choose_shedding(
    settings: &AlertSettings,
    sites: &[Site],
    alerts: &[Option<Caller>],
) -> Vec<bool> {
    let average = known(sites).sum::<f32>() / known(sites).count().max(1) as f32;
    let under = |caller| {
        taking(sites)
            .filter(move |&(index, _)| alerts.get(index) == Some(&Some(caller)))
            .map(|(index, site)| (rank(settings, site, site.load.unwrap_or(average)), index))
            .collect::<Vec<_>>()
    };
    let forced = under(Caller::Administrator);
    let others = taking(sites).count().saturating_sub(1);
    let allowed = count_allowed(settings, sites).max(forced.len()).min(others);
    let left = allowed.saturating_sub(forced.len());
    let mut shed = most_loaded(forced, allowed, sites.len());
    let by_load = most_loaded(under(Caller::Group), left, sites.len());
    for (shed, by_load) in shed.iter_mut().zip(by_load) {
        *shed |= by_load;
    }
    shed
}

/// The known loads of the sites that take traffic.
fn known(sites: &[Site]) -> impl Iterator<Item = f32> + Clone {
    taking(sites).filter_map(|(_, site)| site.load)
}

fn taking(sites: &[Site]) -> impl Iterator<Item = (usize, &Site)> + Clone {
    let sites = sites.iter().enumerate();
    sites.filter(|(_, site)| site.takes_traffic)
}

/// Returns the number of locations that may be under alert.
pub fn count_allowed(settings: &AlertSettings, sites: &[Site]) -> usize {
    (settings.max_share * taking(sites).count() as f32) as usize
}

/// Returns the load by which a location competes for an alert. If not all can have an alert, a
/// location that has one keeps it against others that are only a little worse.
fn rank(settings: &AlertSettings, site: &Site, load: f32) -> f32 {
    if site.alerted {
        load * (2.0 - settings.release)
    } else {
        load
    }
}

/// Marks the first `allowed` of `(rank, index)`, highest first.
fn most_loaded(mut critical: Vec<(f32, usize)>, allowed: usize, len: usize) -> Vec<bool> {
    critical.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut marks = vec![false; len];
    for &(_, index) in critical.iter().take(allowed) {
        marks[index] = true;
    }
    marks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sites(loads: &[f32]) -> Vec<Site> {
        let site = |&load: &f32| Site {
            load: Some(load),
            takes_traffic: true,
            alerted: false,
        };
        loads.iter().map(site).collect()
    }

    fn step(threshold: Threshold, settings: &AlertSettings, sites: &mut [Site]) -> Vec<bool> {
        let alerts = choose_alerted(threshold, settings, sites);
        for (site, &alerted) in sites.iter_mut().zip(&alerts) {
            site.alerted = alerted;
        }
        alerts
    }

    #[test]
    fn critical_threshold_with_hysteresis() {
        let (threshold, settings) = (Threshold::Critical(0.8), AlertSettings::default());
        let mut sites = sites(&[0.5, 0.81, 0.3]);
        assert_eq!(step(threshold, &settings, &mut sites), [false, true, false]);
        sites[1].load = Some(0.75);
        assert!(step(threshold, &settings, &mut sites)[1], "not yet lifted");
        sites[1].load = Some(0.71);
        assert!(!step(threshold, &settings, &mut sites)[1]);
        sites[1].load = Some(0.75);
        assert!(!step(threshold, &settings, &mut sites)[1], "not yet raised");
    }

    #[test]
    fn twice_the_minimum_and_more_is_alerted() {
        // The worst case is the one that must not be missed.
        let settings = AlertSettings::default();
        let threshold = Threshold::AboveMinimum(0.4);
        for load in [1.41, 2.0, 5.0, 1e6] {
            let alerts = choose_alerted(threshold, &settings, &sites(&[1.0, load, 1.0]));
            assert_eq!(alerts, [false, true, false], "{load}");
        }
        let alerts = choose_alerted(threshold, &settings, &sites(&[1.0, 1.39, 1.1]));
        assert_eq!(alerts, [false; 3]);
    }

    #[test]
    fn b9_the_smallest_load_is_one_that_is_not_0() {
        let settings = AlertSettings::default();
        let threshold = Threshold::AboveMinimum(0.4);
        for (loads, expected) in [
            ([1.0, 1.39, 0.0], [false; 3]),
            ([1.0, 1.41, 0.0], [false, true, false]),
            ([0.0, 1.0, 0.0], [false; 3]),
            ([0.0; 3], [false; 3]),
        ] {
            let alerts = choose_alerted(threshold, &settings, &sites(&loads));
            assert_eq!(alerts, expected, "{loads:?}");
        }
    }

    #[test]
    fn b2_a_small_part_of_a_utilization_is_nothing_to_move() {
        let relative = Threshold::AboveAverage(0.25);
        let idle = sites(&[0.01, 0.03, 0.01]);
        assert!(is_negligible(relative, LoadId::CPU, &idle));
        assert!(!is_negligible(relative, LoadId::REQUESTS_PER_SECOND, &idle));
        assert!(!is_negligible(
            Threshold::Critical(0.02),
            LoadId::CPU,
            &idle
        ));
        let busy = sites(&[0.1, 0.2, 0.1]);
        assert!(!is_negligible(relative, LoadId::CPU, &busy));
        assert!(is_negligible(relative, LoadId::CPU, &[]));
    }

    #[test]
    fn far_above_the_average_is_alerted() {
        let settings = AlertSettings::default();
        let threshold = Threshold::AboveAverage(0.8);
        for load in [8.0, 100.0] {
            let alerts = choose_alerted(threshold, &settings, &sites(&[1.0, 1.0, load, 1.0]));
            assert_eq!(alerts, [false, false, true, false], "{load}");
        }
        let alerts = choose_alerted(threshold, &settings, &sites(&[1.0, 1.0, 2.0, 1.0]));
        assert_eq!(alerts, [false; 4]);
    }

    #[test]
    fn never_everyone() {
        let (threshold, mut settings) = (Threshold::Critical(0.8), AlertSettings::default());
        let all = sites(&[0.9, 0.95, 0.99, 0.85]);
        let alerts = choose_alerted(threshold, &settings, &all);
        assert_eq!(alerts, [false, true, true, false], "the most loaded half");
        let alone = sites(&[0.9]);
        assert_eq!(choose_alerted(threshold, &settings, &alone), [false]);

        settings.max_share = 1.0;
        assert_eq!(choose_alerted(threshold, &settings, &alone), [true]);
        assert_eq!(choose_alerted(threshold, &settings, &all), [true; 4]);
    }

    #[test]
    fn those_that_take_no_traffic_cannot_take_that_of_others() {
        let settings = AlertSettings::default();
        let mut two = sites(&[0.9, 0.1]);
        assert_eq!(
            choose_alerted(Threshold::Critical(0.8), &settings, &two),
            [true, false]
        );
        two[1].takes_traffic = false;
        assert_eq!(
            choose_alerted(Threshold::Critical(0.8), &settings, &two),
            [false, false]
        );
    }

    #[test]
    fn unknown_loads_raise_no_alert_and_do_not_stop_the_others() {
        let settings = AlertSettings::default();
        let mut three = sites(&[0.0, 0.9, 0.1]);
        three[0].load = None;
        three[0].alerted = true;
        let alerts = choose_alerted(Threshold::Critical(0.8), &settings, &three);
        assert_eq!(alerts, [false, true, false]);
        three.iter_mut().for_each(|site| site.load = None);
        for threshold in [
            Threshold::Critical(0.8),
            Threshold::AboveMinimum(0.4),
            Threshold::AboveAverage(0.8),
        ] {
            assert_eq!(choose_alerted(threshold, &settings, &three), [false; 3]);
        }
    }

    #[test]
    fn the_least_loaded_serves_when_everyone_is_alerted() {
        let mut settings = AlertSettings {
            max_share: 1.0,
            ..AlertSettings::default()
        };
        let group = Some(Caller::Group);
        let mut three = sites(&[0.95, 0.9, 0.99]);
        let mut step = |settings: &AlertSettings, loads: [f32; 3], alerts: [Option<Caller>; 3]| {
            for (site, load) in three.iter_mut().zip(loads) {
                site.load = Some(load);
            }
            let sheds = choose_shedding(settings, &three, &alerts);
            for (site, &sheds) in three.iter_mut().zip(&sheds) {
                site.alerted = sheds;
            }
            sheds
        };
        let all = [group; 3];
        assert_eq!(step(&settings, [0.95, 0.9, 0.99], all), [true, false, true]);
        // A little worse than the others by now, it still is the one.
        assert_eq!(
            step(&settings, [0.95, 0.99, 0.96], all),
            [true, false, true]
        );
        assert_eq!(step(&settings, [0.5, 0.99, 0.96], all), [false, true, true]);
        // The share binds others' alerts, too, but not an administrator's.
        settings.max_share = 0.5;
        assert_eq!(
            step(&settings, [0.5, 0.99, 0.96], all),
            [false, true, false]
        );
        let admin = Some(Caller::Administrator);
        let two = [admin, group, admin];
        assert_eq!(step(&settings, [0.5, 0.99, 0.2], two), [true, false, true]);
        let every = [admin; 3];
        assert_eq!(
            step(&settings, [0.5, 0.99, 0.2], every),
            [true, true, false]
        );
        let alone = sites(&[0.9]);
        for caller in [group, admin] {
            assert_eq!(choose_shedding(&settings, &alone, &[caller]), [false]);
        }
    }

    fn any_threshold() -> impl Strategy<Value = Threshold> {
        prop_oneof![
            (0.01f32..10.0).prop_map(Threshold::Critical),
            (0.01f32..3.0).prop_map(Threshold::AboveMinimum),
            (0.01f32..3.0).prop_map(Threshold::AboveAverage),
        ]
    }

    fn any_site() -> impl Strategy<Value = Site> {
        (
            proptest::option::of(0.0f32..20.0),
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(load, takes_traffic, alerted)| Site {
                load,
                takes_traffic,
                alerted,
            })
    }

    fn any_caller() -> impl Strategy<Value = Option<Caller>> {
        prop_oneof![
            Just(None),
            Just(Some(Caller::Group)),
            Just(Some(Caller::Administrator)),
        ]
    }

    proptest! {
        #[test]
        fn bounded_justified_and_stable(
            threshold in any_threshold(),
            release in 0.1f32..=1.0,
            max_share in 0.0f32..=1.0,
            mut sites in proptest::collection::vec(any_site(), 0..12),
        ) {
            let settings = AlertSettings { release, max_share, ..AlertSettings::default() };
            let alerts = step(threshold, &settings, &mut sites);

            let taking = sites.iter().filter(|site| site.takes_traffic).count();
            let alerted = alerts.iter().filter(|&&alert| alert).count();
            prop_assert!(alerted as f32 <= max_share * taking as f32);
            if max_share < 1.0 && taking > 0 {
                prop_assert!(alerted < taking, "somebody is left to go to");
            }
            for (site, &alert) in sites.iter().zip(&alerts) {
                if alert {
                    prop_assert!(site.takes_traffic && site.load.is_some());
                }
            }
            // The same loads again change nothing.
            let again = choose_alerted(threshold, &settings, &sites);
            prop_assert_eq!(again, alerts);
        }

        #[test]
        fn nobody_sheds_without_an_alert_and_never_all_do(
            release in 0.1f32..=1.0,
            max_share in 0.0f32..=1.0,
            mut sites in proptest::collection::vec(any_site(), 0..12),
            alerts in proptest::collection::vec(any_caller(), 12),
        ) {
            let settings = AlertSettings { release, max_share, ..AlertSettings::default() };
            let alerts = &alerts[..sites.len()];
            let sheds = choose_shedding(&settings, &sites, alerts);
            for (index, &sheds) in sheds.iter().enumerate() {
                prop_assert!(!sheds || sites[index].takes_traffic && alerts[index].is_some());
            }
            let taking = sites.iter().filter(|site| site.takes_traffic).count();
            let shedding = sheds.iter().filter(|&&sheds| sheds).count();
            prop_assert!(taking == 0 || shedding < taking, "somebody is left to go to");
            let forced = sites.iter().zip(alerts).filter(|(site, caller)| {
                site.takes_traffic && **caller == Some(Caller::Administrator)
            });
            let forced = forced.count();
            prop_assert!(shedding as f32 <= (max_share * taking as f32).max(forced as f32));
            prop_assert!(shedding >= forced.min(taking.saturating_sub(1)));
            // The same loads again change nothing.
            for (site, &sheds) in sites.iter_mut().zip(&sheds) {
                site.alerted = sheds;
            }
            prop_assert_eq!(choose_shedding(&settings, &sites, alerts), sheds);
        }

        /// Above a critical threshold the alerts go to the most loaded.
        #[test]
        fn the_worst_come_first(loads in proptest::collection::vec(0.0f32..2.0, 1..12)) {
            let settings = AlertSettings::default();
            let alerts = choose_alerted(Threshold::Critical(1.0), &settings, &sites(&loads));
            for (a, &load) in loads.iter().enumerate() {
                for (b, &other) in loads.iter().enumerate() {
                    if alerts[a] && !alerts[b] {
                        prop_assert!(load >= other);
                    }
                }
            }
            let critical = loads.iter().filter(|&&load| load > 1.0).count();
            let alerted = alerts.iter().filter(|&&alert| alert).count();
            prop_assert_eq!(alerted, critical.min(loads.len() / 2));
        }
    }
}
