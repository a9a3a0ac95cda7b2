//! Metrics in `/metrics` about the monitor.

use evenkeel_manager::exposition::{Exposition, Type, flag_value};

use crate::status::{LocationMonitor, MonitorStatus};

/// Writes the metrics of the monitor; `None` is one that asks nobody.
pub(crate) fn write_families(
    out: &mut Exposition,
    status: Option<MonitorStatus>,
    locations: &[LocationMonitor],
) {
    out.begin_family(
        "evenkeel_monitor_asked_total",
        Type::Counter,
        "Queries to back-ends for the loads of their kernels, over all locations.",
    );
    if let Some(status) = &status {
        out.add_sample(&[], status.asked as f64);
    }
    out.begin_family(
        "evenkeel_monitor_answers_total",
        Type::Counter,
        "Answers of back-ends, and readings of pages, by result.",
    );
    for answers in status.iter().flat_map(|status| &status.answers) {
        out.add_sample(&[("result", &answers.result)], answers.count as f64);
    }
    out.begin_family(
        "evenkeel_monitor_delay_seconds",
        Type::Histogram,
        "How much later than planned back-ends were queried; high if the monitor's thread gets too little CPU time.",
    );
    if let Some(status) = &status {
        let delays = status.delays.iter();
        let counts = delays.map(|(limit, count)| (limit.unwrap_or(f64::INFINITY), *count));
        out.add_histogram(&[], counts, status.delay_seconds);
    }
    for (name, kind, help, read) in OF_LOCATIONS {
        out.begin_family(name, kind, help);
        for location in locations {
            if let Some(value) = read(location) {
                let labels = [("location", &*location.location), ("type", &location.kind)];
                out.add_sample(&labels, value);
            }
        }
    }
}

/// A family about locations: name, type, help, and the value for a location.
type LocationFamily = (
    &'static str,
    Type,
    &'static str,
    fn(&LocationMonitor) -> Option<f64>,
);

const OF_LOCATIONS: [LocationFamily; 9] = [
    (
        "evenkeel_location_monitor_fresh",
        Type::Gauge,
        "1 while the loads that the monitor reads at the location are fresh, or another balancer reads them.",
        |location| {
            Some(flag_value(matches!(
                &*location.state,
                "fresh" | "elsewhere"
            )))
        },
    ),
    (
        "evenkeel_location_monitor_age_seconds",
        Type::Gauge,
        "Time since the last new loads of the location.",
        |location| location.age_seconds,
    ),
    (
        "evenkeel_location_monitor_round_trip_seconds",
        Type::Gauge,
        "Time from the last answered query to its answer.",
        |location| location.round_trip_ms.map(|ms| ms / 1e3),
    ),
    (
        "evenkeel_location_monitor_asked_total",
        Type::Counter,
        "Queries to the location.",
        |location| Some(location.asked as f64),
    ),
    (
        "evenkeel_location_monitor_answered_total",
        Type::Counter,
        "Answers with new loads.",
        |location| Some(location.answered as f64),
    ),
    (
        "evenkeel_location_monitor_missed_total",
        Type::Counter,
        "Queries without new loads before the next query was due.",
        |location| Some(location.missed as f64),
    ),
    (
        "evenkeel_location_monitor_refused_total",
        Type::Counter,
        "Answers for the location that were not authentic or not valid.",
        |location| Some(location.refused as f64),
    ),
    (
        "evenkeel_location_monitor_failed_total",
        Type::Counter,
        "Queries that could not be sent, and pages that could not be read.",
        |location| Some(location.failed as f64),
    ),
    (
        "evenkeel_location_monitor_expired_total",
        Type::Counter,
        "How often the loads of the location became unknown because none arrived.",
        |location| Some(location.expired as f64),
    ),
];
