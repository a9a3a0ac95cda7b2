//! Answers of the API about what goes on now.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use evenkeel_manager::ManageError;
use schemars::JsonSchema;
use serde::Deserialize;

use super::View;
use super::events::NoStream;
use super::rounding::round_value;
use super::simulate;
use super::wire::{CheckDone, Family, LastHour, Process, Simulate, Simulated};
use crate::actor::{Actor, Role};
use crate::conn::Peer;
use crate::error::ApiError;
use crate::guard::Guard;
use crate::metrics;
use crate::operation::{Operation, Operations};
use crate::sources::Sources;

type Answer<T> = Result<Json<T>, ApiError>;

/// The media type of streams.
const EVENTS: &str = "text/event-stream";

/// Adds what is answered here.
pub(crate) fn add_operations(operations: Operations) -> Operations {
    operations
        .add_operation(
            Operation::act_alone::<CheckDone>(
                "/v1/groups/{group}/members/{member}/check",
                Role::Operate,
                "Checks a member once, now; the result counts like that of any health check",
            ),
            check_member,
        )
        .add_operation(
            Operation::show_json::<Vec<Family>>("/v1/counters", "All metrics as JSON"),
            show_counters,
        )
        .add_operation(
            Operation::show_json::<Process>("/v1/process", "Resources that the process uses"),
            show_process,
        )
        .add_operation(
            Operation::show_text(
                "/v1/events",
                EVENTS,
                "Samples once a second, changes and load alerts, as server-sent events",
            )
            .with_query::<EventsQuery>(),
            stream_events,
        )
        .add_operation(
            Operation::show_json::<LastHour>(
                "/v1/history",
                "The last hour of a group and its members, or of all groups together",
            )
            .with_query::<HistoryQuery>(),
            show_history,
        )
        .add_operation(
            Operation::act_on_body::<Simulate, Simulated>(
                Method::POST,
                "/v1/groups/{group}/simulate",
                Role::View,
                "Simulates the group and its traffic with other strategies; changes nothing",
            ),
            simulate::simulate_group,
        )
}

/// Notes who has asked for what changes something, so that the news of it can say so.
pub(crate) async fn note_who(
    State(sources): State<Arc<Sources>>,
    actor: Option<Extension<Actor>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(Extension(actor)) = actor.filter(|_| *request.method() != Method::GET) else {
        return next.run(request).await;
    };
    let changes = sources.manager.subscribe_changes();
    let response = next.run(request).await;
    // If nobody changes anything any more, nobody asks.
    if changes.has_changed().unwrap_or(false) {
        sources.live.note_change_by(&actor.user);
    }
    response
}

async fn check_member(
    State(sources): State<Arc<Sources>>,
    Path((group, member)): Path<(String, String)>,
) -> Answer<CheckDone> {
    let checked = sources.manager.check_now(&group, &member).await;
    let checked = checked.map_err(|error| sources.explain_refusal(error))?;
    Ok(Json(CheckDone {
        ok: checked.error.is_none(),
        error: checked.error,
        took_ms: round_value(checked.took.as_secs_f64() * 1e3),
        what: checked.check_name.into_owned(),
    }))
}

async fn show_counters(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, "application/json")],
        metrics::as_json(&sources),
    )
}

async fn show_process(State(sources): State<Arc<Sources>>) -> Json<Process> {
    Json(sources.live.process_usage())
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    /// The group whose members samples tell of, too.
    group: Option<String>,
    /// Beginning of the names of the groups that samples have, of which there may be 1,000; all groups by default.
    #[serde(default)]
    prefix: String,
}

async fn stream_events(
    State(sources): State<Arc<Sources>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(guard): Extension<Guard>,
    query: Result<Query<EventsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| bad_query(&error))?;
    if let Some(group) = &query.group {
        check_group(&sources, group)?;
    }
    let last = headers.get("last-event-id");
    // What is no text is no place that anybody was told.
    let last = last.map(|last| last.to_str().unwrap_or_default());
    let from = peer.address.ip();
    let fields = headers.clone();
    let may_stay = move || guard.still_allows(&fields, from, Instant::now());
    let live = &sources.live;
    let view = View {
        prefix: query.prefix,
        group: query.group,
    };
    let stream = live.open_stream(view, last, peer.activity, may_stay);
    let body = stream.map_err(|why| {
        let detail = match why {
            NoStream::TooMany(most) => format!(
                "{most} streams of events are open, and there may be no more; close a console or `evenkeel ctl watch`"
            ),
            NoStream::Ending => "the balancer is shutting down".into(),
        };
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_stream", detail)
    })?;
    let fields = [(CONTENT_TYPE, EVENTS), (CACHE_CONTROL, "no-store")];
    Ok((fields, body).into_response())
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    /// The group; without it, all groups together.
    group: Option<String>,
    /// Name or address of one of its members, instead of all.
    member: Option<String>,
    /// Time before which nothing is told, in seconds since 1970.
    since: Option<u64>,
}

async fn show_history(
    State(sources): State<Arc<Sources>>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Answer<LastHour> {
    let Query(query) = query.map_err(|error| bad_query(&error))?;
    if let Some(group) = &query.group {
        check_group(&sources, group)?;
    }
    // With many members there are megabytes.
    let told = tokio::task::spawn_blocking(move || {
        let group = query.group.as_deref().unwrap_or_default();
        let since = query.since.unwrap_or(0);
        sources
            .live
            .last_hour(group, query.member.as_deref(), since)
    });
    told.await.map(Json).map_err(|error| {
        let detail = format!("cannot read the last hour: {error}; please report this, with the earlier lines of the log");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", detail)
    })
}

fn bad_query(error: &QueryRejection) -> ApiError {
    ApiError::invalid("bad_query", error.body_text())
}

fn check_group(sources: &Sources, group: &str) -> Result<(), ApiError> {
    match sources.manager.has_group(group) {
        true => Ok(()),
        false => Err(sources.explain_refusal(ManageError::NoGroup(group.into()))),
    }
}
