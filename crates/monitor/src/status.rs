//! Status of the monitor, for the admin API.

use std::borrow::Cow;

use evenkeel_core::time::Instant;
use evenkeel_manager::text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::poller::{DELAYS, Poller, View};

/// Status of all locations together.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct MonitorStatus {
    /// Locations that are asked.
    pub locations: usize,
    /// Number of these locations whose loads are known, or read by another balancer.
    pub fresh: usize,
    /// Questions so far.
    pub asked: u64,
    /// Answers and readings, by what became of them.
    pub answers: Vec<AnswerCount>,
    /// Number of questions that were at most so many seconds later than planned, and more than the limit
    /// before; the last count, without a limit, is of questions that were later still.
    pub delays: Vec<(Option<f64>, u64)>,
    /// The sum of all delays.
    pub delay_seconds: f64,
}

/// Answers of one kind.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct AnswerCount {
    /// Result of the answers.
    pub result: Cow<'static, str>,
    /// Number of answers with this result.
    pub count: u64,
}

impl MonitorStatus {
    pub(crate) fn new(poller: &Poller) -> Self {
        let is_fresh = |view: &View<'_>| view.state.has_news();
        let counts = poller.counts().map(|(verdict, count)| AnswerCount {
            result: verdict.name().into(),
            count,
        });
        let (delays, sum) = poller.question_delays();
        let limits = DELAYS.iter().map(|micros| Some(*micros as f64 / 1e6));
        MonitorStatus {
            locations: poller.views().count(),
            fresh: poller.views().filter(is_fresh).count(),
            asked: poller.count_asked(),
            answers: counts.collect(),
            delays: limits.chain([None]).zip(delays).collect(),
            delay_seconds: sum.as_secs_f64(),
        }
    }
}

/// Status of the monitor of a location.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct LocationMonitor {
    /// Name of the location.
    pub location: String,
    /// `kernel`, `rdma` or `ulm`.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// Address or file where the location's load is read.
    pub address: String,
    /// Target whose load is read there; 0 is the machine.
    pub target: u16,
    /// Time between two readings.
    pub interval_ms: f64,
    /// `fresh`, `stale`, `elsewhere` if another balancer reads its load, or `waiting` if there was no
    /// answer yet.
    pub state: Cow<'static, str>,
    /// Writer of the last record: `responder`, `kernel_page` or `user`.
    pub source: Option<Cow<'static, str>>,
    /// Time since the last news came, in seconds.
    pub age_seconds: Option<f64>,
    /// Time from the last question that had an answer to that answer.
    pub round_trip_ms: Option<f64>,
    /// Questions so far.
    pub asked: u64,
    /// Number of these questions that had an answer with news.
    pub answered: u64,
    /// Number of questions that had no answer by the time of the next question.
    pub missed: u64,
    /// Answers that were refused.
    pub refused: u64,
    /// Questions that the system did not send, and pages that could not be read.
    pub failed: u64,
    /// Number of times that the loads became unknown.
    pub expired: u64,
    /// Trouble at present, if there is any.
    pub trouble: Option<String>,
}

impl LocationMonitor {
    pub(crate) fn new(view: &View<'_>, now: Instant) -> Self {
        let config = &view.target.config;
        LocationMonitor {
            location: view.target.location.name().to_string(),
            kind: config.kind.name().into(),
            address: view.target.place.to_string(),
            target: config.target,
            interval_ms: config.interval.as_secs_f64() * 1e3,
            state: view.state.name().into(),
            source: view.source.map(|source| source.name().into()),
            age_seconds: view.at.map(|at| now.since(at).as_secs_f64()),
            round_trip_ms: view.round_trip.map(|time| time.as_secs_f64() * 1e3),
            asked: view.question_count,
            answered: view.news_count,
            missed: view.missed,
            refused: view.refused,
            failed: view.unsent,
            expired: view.expired,
            trouble: view.trouble.map(str::to_owned),
        }
    }
}

/// The locations as a table for people.
pub fn format_table(locations: &[LocationMonitor]) -> String {
    let row = |location: &LocationMonitor| {
        let target = match location.target {
            0 => String::new(),
            target => format!("/{target}"),
        };
        let age = location.age_seconds.map(|age| format!("{age:.3}s"));
        let round_trip = location.round_trip_ms.map(|ms| format!("{ms:.3}ms"));
        vec![
            location.location.clone(),
            location.kind.to_string(),
            format!("{}{target}", location.address),
            format!("{}ms", location.interval_ms),
            location.state.to_string(),
            location.source.clone().unwrap_or_default().to_string(),
            age.unwrap_or_default(),
            round_trip.unwrap_or_default(),
            location.asked.to_string(),
            location.answered.to_string(),
            location.missed.to_string(),
            location.refused.to_string(),
            location.trouble.clone().unwrap_or_default(),
        ]
    };
    let names = [
        "LOCATION",
        "TYPE",
        "ADDRESS",
        ">INTERVAL",
        "STATE",
        "SOURCE",
        ">AGE",
        ">ROUND TRIP",
        ">ASKED",
        ">ANSWERED",
        ">MISSED",
        ">REFUSED",
        "TROUBLE",
    ];
    text::format_table(&names, locations.iter().map(row))
}
