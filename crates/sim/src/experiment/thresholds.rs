//! Thresholds of loads that are tried with other values.

use evenkeel_core::alert::Threshold;
use evenkeel_core::group::Granularity;
use evenkeel_core::load::LoadId;
use evenkeel_manager::config::GroupConfig;

use super::replay::Replay;

/// Parameter of strategies: a member above it gets no new requests.
const REJECT: &str = "reject_threshold";

/// Returns the name of the threshold of a group's alerts, and its value.
fn of_alerts(threshold: Threshold) -> (&'static str, f64) {
    let (name, value) = match threshold {
        Threshold::Critical(value) => ("alert.threshold", value),
        Threshold::AboveMinimum(value) => ("alert.threshold.above_minimum", value),
        Threshold::AboveAverage(value) => ("alert.threshold.above_average", value),
    };
    (name, f64::from(value))
}

/// Returns the group with another value of this threshold; `None` if the group has no such threshold or the value is
/// out of range.
pub(super) fn with_threshold(group: &GroupConfig, name: &str, value: f64) -> Option<GroupConfig> {
    let mut group = group.clone();
    match &mut group.settings.alert.threshold {
        Some(threshold) if of_alerts(*threshold).0 == name => match threshold {
            Threshold::Critical(of) | Threshold::AboveMinimum(of) | Threshold::AboveAverage(of) => {
                *of = value as f32;
            }
        },
        _ => {
            group.strategy.set(name, value).ok()?;
            group.strategy.check_params().ok()?;
        }
    }
    Some(group)
}

/// Names and values of the thresholds that are tried with other values, and why others are not.
pub(super) fn thresholds_of(
    group: &GroupConfig,
    replay: &Replay,
    unknown: &mut Vec<String>,
) -> Vec<(&'static str, f64)> {
    let settings = &group.settings;
    let of_strategy = |name: &'static str| {
        let value = group.strategy.try_get(name).filter(|value| *value > 0.0)?;
        settings.adaptive.then_some((name, value))
    };
    let rejects = of_strategy(REJECT);
    // The one of the group is stronger than the strategy's.
    let own = settings.alert.threshold.filter(|_| settings.adaptive);
    let alerts = own.map(of_alerts).or_else(|| {
        let mut names = ["critical_threshold", "critical_excess"].into_iter();
        names.find_map(of_strategy)
    });
    let is_bound = settings.granularity != Granularity::PerRequest;
    let is_told = replay.arrivals.iter().any(|came| came.connection.is_some());
    let simulated = [
        LoadId::CPU,
        LoadId::UTILIZATION,
        LoadId::IN_FLIGHT,
        LoadId::COMPOSITE,
    ];
    let mut tell = |text: &str| unknown.push(text.into());
    if is_bound && !is_told {
        tell(
            "Bound clients: the log does not say which requests came over one connection, so each is bound anew.",
        );
    }
    if rejects.is_none() && alerts.is_none() {
        return Vec::new();
    }
    if !simulated.contains(&settings.load_id) {
        tell(
            "Thresholds of loads: the log has no loads, and the load of the group is not simulated, so \
             no threshold is played.",
        );
        return Vec::new();
    }
    tell(
        "Loads: the log has none. Members are taken to report once a second the share of their workers' time that was busy with \
         these requests (or for `in_flight` their number). The log does not say what else your machines do, or how late your reports are: other thresholds are compared with yours in this simulated world, and the best values may differ on your machines.",
    );
    let moves = is_bound && is_told;
    if alerts.is_some() && !moves {
        tell(match is_bound {
            true => {
                "Thresholds of alerts: alerts move clients that are bound, so no other threshold is tried."
            }
            false => {
                "Thresholds of alerts: with granularity `per_request` no client is bound that an alert \
                 could move, so no other threshold is tried."
            }
        });
    }
    rejects
        .into_iter()
        .chain(alerts.filter(|_| moves))
        .collect()
}
