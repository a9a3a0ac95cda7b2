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

use std::time::Duration;

/// Above which effective load a location gets an alert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// The critical threshold, in the load's unit, greater than 0.
    Critical(f32),
    /// This share above the smallest load that is not 0 (0.4 is 40 %).
    AboveMinimum(f32),
    /// This share above the average load (0.8 is 80 %).
    AboveAverage(f32),
}

impl Threshold {
    /// The load above which an alert is raised, and the one above which it stays.
    fn levels(self, release: f32, loads: impl Iterator<Item = f32> + Clone) -> (f32, f32) {
        // Of a relative threshold only the excess shrinks: below the minimum, or the
        // average, itself an alert could never be lifted.
        let relative = |base: f32, share: f32| {
            let level = |share: f32| base * (1.0 + share);
            (level(share), level(share * release))
        };
        match self {
            Threshold::Critical(level) => (level, level * release),
            Threshold::AboveMinimum(share) => {
                let busy = loads.filter(|&load| load > 0.0);
                relative(busy.fold(f32::INFINITY, f32::min), share)
            }
            Threshold::AboveAverage(share) => {
                let count = loads.clone().count().max(1);
                relative(loads.sum::<f32>() / count as f32, share)
            }
        }
    }
}

/// How a group raises and lifts load alerts.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertSettings {
    /// For any strategy; stronger than the strategy's own ([`Strategy::alert_threshold`]).
    ///
    /// [`Strategy::alert_threshold`]: crate::strategy::Strategy::alert_threshold
    pub threshold: Option<Threshold>,
    /// Hysteresis: an alert is lifted when the load is not above this share (greater
    /// than 0, at most 1) of a critical threshold, or of the excess that a relative one
    /// allows.
    pub release: f32,
    /// Most locations under alert at the same time, as a share (0 to 1) of those that
    /// take traffic, rounded down. Below 1 there is always one left to go to.
    pub max_share: f32,
    /// Time over which the clients of an alerted location leave it, each after a random
    /// part of it, so that they do not all arrive elsewhere at once and the alert can
    /// be lifted when enough have left.
    pub shed_time: Duration,
}

impl Default for AlertSettings {
    fn default() -> Self {
        AlertSettings {
            threshold: None,
            release: 0.9,
            max_share: 0.5,
            shed_time: Duration::from_secs(5),
        }
    }
}

/// A location as one group sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Effective load; `None` is unknown.
    pub load: Option<f32>,
    /// Whether a member of the group takes new traffic there.
    pub takes_traffic: bool,
    /// Whether the group has it under alert.
    pub alerted: bool,
}

/// Which of `sites` are to be under alert, one answer for each.
///
/// A location whose load is unknown is not, nor is one that takes no traffic anyway.
pub fn analyze(threshold: Threshold, settings: &AlertSettings, sites: &[Site]) -> Vec<bool> {
    let mut alerts = vec![false; sites.len()];
    let taking = sites.iter().filter(|site| site.takes_traffic);
    let allowed = (settings.max_share * taking.clone().count() as f32) as usize;
    let loads = taking.filter_map(|site| site.load);
    let (raise, keep) = threshold.levels(settings.release, loads);

    let mut critical: Vec<(f32, usize)> = sites
        .iter()
        .enumerate()
        .filter(|(_, site)| site.takes_traffic)
        .filter_map(|(index, site)| {
            let load = site.load?;
            let level = if site.alerted { keep } else { raise };
            // Where not all can have an alert, whoever has one keeps it against others
            // that are only a little worse.
            let bonus = if site.alerted {
                2.0 - settings.release
            } else {
                1.0
            };
            (load > level).then_some((load * bonus, index))
        })
        .collect();
    critical.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    for &(_, index) in critical.iter().take(allowed) {
        alerts[index] = true;
    }
    alerts
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
        let alerts = analyze(threshold, settings, sites);
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
            let alerts = analyze(threshold, &settings, &sites(&[1.0, load, 1.0]));
            assert_eq!(alerts, [false, true, false], "{load}");
        }
        let alerts = analyze(threshold, &settings, &sites(&[1.0, 1.39, 0.0]));
        assert_eq!(alerts, [false; 3], "0 is no minimum to compare with");
    }

    #[test]
    fn far_above_the_average_is_alerted() {
        let settings = AlertSettings::default();
        let threshold = Threshold::AboveAverage(0.8);
        for load in [8.0, 100.0] {
            let alerts = analyze(threshold, &settings, &sites(&[1.0, 1.0, load, 1.0]));
            assert_eq!(alerts, [false, false, true, false], "{load}");
        }
        let alerts = analyze(threshold, &settings, &sites(&[1.0, 1.0, 2.0, 1.0]));
        assert_eq!(alerts, [false; 4]);
    }

    #[test]
    fn never_everyone() {
        let (threshold, mut settings) = (Threshold::Critical(0.8), AlertSettings::default());
        let all = sites(&[0.9, 0.95, 0.99, 0.85]);
        let alerts = analyze(threshold, &settings, &all);
        assert_eq!(alerts, [false, true, true, false], "the most loaded half");
        let alone = sites(&[0.9]);
        assert_eq!(analyze(threshold, &settings, &alone), [false]);

        settings.max_share = 1.0;
        assert_eq!(analyze(threshold, &settings, &alone), [true]);
        assert_eq!(analyze(threshold, &settings, &all), [true; 4]);
    }

    #[test]
    fn those_that_take_no_traffic_cannot_take_that_of_others() {
        let settings = AlertSettings::default();
        let mut two = sites(&[0.9, 0.1]);
        assert_eq!(
            analyze(Threshold::Critical(0.8), &settings, &two),
            [true, false]
        );
        two[1].takes_traffic = false;
        assert_eq!(
            analyze(Threshold::Critical(0.8), &settings, &two),
            [false, false]
        );
    }

    #[test]
    fn unknown_loads_raise_no_alert_and_do_not_stop_the_others() {
        let settings = AlertSettings::default();
        let mut three = sites(&[0.0, 0.9, 0.1]);
        three[0].load = None;
        three[0].alerted = true;
        let alerts = analyze(Threshold::Critical(0.8), &settings, &three);
        assert_eq!(alerts, [false, true, false]);
        three.iter_mut().for_each(|site| site.load = None);
        for threshold in [
            Threshold::Critical(0.8),
            Threshold::AboveMinimum(0.4),
            Threshold::AboveAverage(0.8),
        ] {
            assert_eq!(analyze(threshold, &settings, &three), [false; 3]);
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
            let again = analyze(threshold, &settings, &sites);
            prop_assert_eq!(again, alerts);
        }

        /// Above a critical threshold the alerts go to the most loaded.
        #[test]
        fn the_worst_come_first(loads in proptest::collection::vec(0.0f32..2.0, 1..12)) {
            let settings = AlertSettings::default();
            let alerts = analyze(Threshold::Critical(1.0), &settings, &sites(&loads));
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
