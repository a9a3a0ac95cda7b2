//! Text of `/metrics`.
//!
//! Names and labels are an interface: dashboards depend on them. They are listed in
//! `docs/admin-api.md`.

use evenkeel_limits::Shortage;
use evenkeel_manager::exposition::{Exposition, Type, flag_value};
use evenkeel_manager::status::Status;

use crate::live;
use crate::sources::Sources;

/// Returns all metrics as text.
pub(crate) fn render_metrics(sources: &Sources) -> String {
    write_all(sources, Exposition::default())
}

/// Returns the metrics as JSON.
pub(crate) fn as_json(sources: &Sources) -> String {
    write_all(sources, Exposition::as_json())
}

fn write_all(sources: &Sources, mut out: Exposition) -> String {
    let status = sources.manager.status();
    write_process(&mut out, sources, &status);
    live::process::write_metrics(&mut out);
    sources.manager.metrics(&status, &mut out);
    out.finish()
}

fn write_process(out: &mut Exposition, sources: &Sources, status: &Status) {
    out.begin_family(
        "evenkeel_build_info",
        Type::Gauge,
        "Always 1; the version is in the label.",
    );
    out.add_sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    out.begin_family(
        "evenkeel_config_generation",
        Type::Gauge,
        "Number of the configuration in this process, from 1.",
    );
    out.add_sample(&[], status.generation as f64);
    if let Some(reload) = &status.last_reload {
        out.begin_family(
            "evenkeel_config_last_reload_success",
            Type::Gauge,
            "1 if the last start or reload of the configuration was applied, 0 if it was refused.",
        );
        out.add_sample(&[], flag_value(reload.error.is_none()));
        out.begin_family(
            "evenkeel_config_last_reload_timestamp_seconds",
            Type::Gauge,
            "Time of the last start or reload of the configuration, in seconds since 1970.",
        );
        out.add_sample(&[], reload.unix_seconds as f64);
    }
    out.begin_family(
        "evenkeel_draining",
        Type::Gauge,
        "1 while the process shuts down.",
    );
    out.add_sample(&[], flag_value(sources.is_draining()));
    out.begin_family(
        "evenkeel_access_log_records_total",
        Type::Counter,
        "Access log records that were written, or lost because writing failed.",
    );
    let log = &sources.access_log;
    out.add_sample(&[("result", "written")], log.written_records() as f64);
    out.add_sample(&[("result", "lost")], log.lost_records() as f64);
    out.begin_family(
        "evenkeel_trace_spans_total",
        Type::Counter,
        "Spans of traces that the collector has taken, or that are lost: refused, or not sent in time.",
    );
    let traces = &sources.traces;
    out.add_sample(&[("result", "exported")], traces.exported_spans() as f64);
    out.add_sample(&[("result", "lost")], traces.lost_spans() as f64);
    out.begin_family(
        "evenkeel_traces_dropped_total",
        Type::Counter,
        "Traced requests that were dropped because those before them were not sent in time.",
    );
    out.add_sample(&[], traces.dropped_requests() as f64);
    out.begin_family(
        "evenkeel_log_lines_lost_total",
        Type::Counter,
        "Lines of the process's own log that were dropped because they were not read in time.",
    );
    out.add_sample(&[], evenkeel_limits::log::lost_lines() as f64);
    out.begin_family(
        "evenkeel_shortages_total",
        Type::Counter,
        "Operations that failed because this process or machine had run out of a resource.",
    );
    for shortage in Shortage::ALL {
        out.add_sample(&[("resource", shortage.name())], shortage.count() as f64);
    }
}
