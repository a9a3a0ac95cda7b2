//! Metrics in `/metrics` about engines that serve language models.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::engine_counts::{OperationTimes, PromptPart, TokenKind};
use evenkeel_core::observe::Latencies;

use crate::exposition::{Exposition, Type};
use crate::snapshot::GroupHandle;

/// Writes all metrics of the engines of these groups.
pub(crate) fn write_families(out: &mut Exposition, handles: &[Arc<GroupHandle>]) {
    tokens(out, handles);
    token_times(out, handles);
}

/// Writes the prompts and tokens of engines.
fn tokens(out: &mut Exposition, handles: &[Arc<GroupHandle>]) {
    let of_engines = || {
        let groups = handles.iter().map(|handle| handle.current.load());
        groups.filter_map(|group| Some((Arc::clone(group.name()), Arc::clone(group.engines()?))))
    };
    out.begin_family(
        "evenkeel_inference_prompts_total",
        Type::Counter,
        "Requests for engines that serve language models, by the part of the prompt that was read before a member was chosen.",
    );
    for (group, engines) in of_engines() {
        for part in PromptPart::ALL {
            let labels = [("group", &*group), ("read", part.name())];
            out.add_sample(&labels, engines.counts().prompt_count(part) as f64);
        }
    }
    out.begin_family(
        "evenkeel_inference_tokens_total",
        Type::Counter,
        "Tokens that engines have counted in their answers, and tokens that the strategy expected to be cached.",
    );
    for (group, engines) in of_engines() {
        for model in engines.counts().list_models() {
            for kind in TokenKind::ALL {
                let labels = [
                    ("group", &*group),
                    ("model", model.label()),
                    ("kind", kind.name()),
                ];
                out.add_sample(&labels, model.token_count(kind) as f64);
            }
        }
    }
}

/// Upper limits of times of requests, in milliseconds: those of OpenTelemetry, and one more for long answers.
const REQUEST_LIMITS: [u64; 15] = [
    10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_240, 20_480, 40_960, 81_920, 163_840,
];

/// Upper limits of times to first tokens, in milliseconds: those of OpenTelemetry, and two more for long prompts.
const FIRST_TOKEN_LIMITS: [u64; 18] = [
    1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000, 25_000, 60_000,
];

/// Upper limits of times for each token, in milliseconds: those of OpenTelemetry, and two more for fast engines.
const LATER_TOKEN_LIMITS: [u64; 15] = [
    2, 5, 10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500,
];

/// Writes the times of tokens under the names of OpenTelemetry's conventions, by which dashboards for engines find them.
fn token_times(out: &mut Exposition, handles: &[Arc<GroupHandle>]) {
    let mut family = |name, help, limits: &[u64], times: fn(&OperationTimes) -> Latencies| {
        out.begin_family(name, Type::Histogram, help);
        for handle in handles {
            let group = handle.current.load();
            let Some(engines) = group.engines() else {
                continue;
            };
            for model in engines.counts().list_models() {
                for (operation, all) in model.list_times() {
                    let times = times(all);
                    let limits = limits.iter().map(|limit| Duration::from_millis(*limit));
                    let labels = [
                        ("group", &**group.name()),
                        ("model", model.label()),
                        ("operation", operation.name()),
                    ];
                    if times.count() > 0 {
                        out.add_times(&labels, &times, limits);
                    }
                }
            }
        }
    };
    family(
        "gen_ai_server_request_duration_seconds",
        "Time from the arrival of a request to the end of its answer, of answers that were complete.",
        &REQUEST_LIMITS,
        OperationTimes::request_times,
    );
    family(
        "gen_ai_server_time_to_first_token_seconds",
        "Time from the arrival of a request to the first token of its answer, of streams that were complete.",
        &FIRST_TOKEN_LIMITS,
        OperationTimes::first_token_times,
    );
    family(
        "gen_ai_server_time_per_output_token_seconds",
        "Mean time for each token of an answer after the first one, of streams that were complete.",
        &LATER_TOKEN_LIMITS,
        OperationTimes::later_token_times,
    );
}
