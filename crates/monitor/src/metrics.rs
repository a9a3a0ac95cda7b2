//! What `/metrics` says of the monitor.

use evenkeel_manager::exposition::{Exposition, Type, flag};

use crate::status::{LocationMonitor, MonitorStatus};

/// Writes the metrics of the monitor; `None` is one that asks nobody.
pub(crate) fn families(
    out: &mut Exposition,
    status: Option<MonitorStatus>,
    locations: &[LocationMonitor],
) {
    out.family(
        "evenkeel_monitor_asked_total",
        Type::Counter,
        "How often back-ends were asked for the loads of their kernels, over all locations.",
    );
    if let Some(status) = &status {
        out.sample(&[], status.asked as f64);
    }
    out.family(
        "evenkeel_monitor_answers_total",
        Type::Counter,
        "Answers of back-ends, and readings of pages, by what became of them.",
    );
    for answers in status.iter().flat_map(|status| &status.answers) {
        out.sample(&[("result", &answers.result)], answers.count as f64);
    }
    out.family(
        "evenkeel_monitor_delay_seconds",
        Type::Histogram,
        "How much later than planned back-ends were asked: the monitor's thread gets too little of a CPU if it is much.",
    );
    if let Some(status) = &status {
        let mut sum = 0;
        for (limit, count) in &status.delays {
            sum += count;
            let limit = limit.map_or("+Inf".into(), |limit| limit.to_string());
            out.sample_of("_bucket", &[("le", &limit)], sum as f64);
        }
        out.sample_of("_sum", &[], status.delay_seconds);
        out.sample_of("_count", &[], sum as f64);
    }
    let mut family = |name, kind, help, read: fn(&LocationMonitor) -> Option<f64>| {
        out.family(name, kind, help);
        for location in locations {
            if let Some(value) = read(location) {
                let labels = [("location", &*location.location), ("type", &location.kind)];
                out.sample(&labels, value);
            }
        }
    };
    family(
        "evenkeel_location_monitor_fresh",
        Type::Gauge,
        "1 while the loads that the monitor reads at the location are known.",
        |location| Some(flag(location.state == "fresh")),
    );
    family(
        "evenkeel_location_monitor_age_seconds",
        Type::Gauge,
        "How long ago the last news of the location came.",
        |location| location.age_seconds,
    );
    family(
        "evenkeel_location_monitor_round_trip_seconds",
        Type::Gauge,
        "Time from the last question that had an answer to that answer.",
        |location| location.round_trip_ms.map(|ms| ms / 1e3),
    );
    family(
        "evenkeel_location_monitor_asked_total",
        Type::Counter,
        "How often the location was asked.",
        |location| Some(location.asked as f64),
    );
    family(
        "evenkeel_location_monitor_answered_total",
        Type::Counter,
        "How often that brought news.",
        |location| Some(location.answered as f64),
    );
    family(
        "evenkeel_location_monitor_missed_total",
        Type::Counter,
        "How often there was no news when it was time to ask again.",
        |location| Some(location.missed as f64),
    );
    family(
        "evenkeel_location_monitor_refused_total",
        Type::Counter,
        "Answers in the name of the location that were not authentic or not right.",
        |location| Some(location.refused as f64),
    );
    family(
        "evenkeel_location_monitor_failed_total",
        Type::Counter,
        "Questions that the system did not send, and pages that could not be read.",
        |location| Some(location.failed as f64),
    );
    family(
        "evenkeel_location_monitor_expired_total",
        Type::Counter,
        "How often the loads of the location became unknown for lack of news.",
        |location| Some(location.expired as f64),
    );
}
