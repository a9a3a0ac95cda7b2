//! Handlers of the API: what rules, groups, members and locations are and do, and the process.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::load::LoadId;
use evenkeel_manager::certificates::CertificateStatus;
use evenkeel_manager::exposition;
use evenkeel_manager::revisions::Author;
use evenkeel_manager::status::{
    ClusterStatus, GroupStatus, LocationStatus, MemberStatus, RuleStatus, Status,
};
use evenkeel_manager::{ManageError, Readiness, ReloadError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::actor::Actor;
use crate::answer::{Answer, DONE};
use crate::body::Body;
use crate::config_errors::list_problems;
use crate::error::ApiError;
use crate::metrics;
use crate::schema::Schema;
use crate::sources::Sources;
use crate::wire::{
    Done, Explain, Reloaded, Report, SetAlert, SetBackup, SetEnabled, SetMaintenance, SetState,
    SetStrategy, SetWeight, Upgraded,
};

pub(crate) async fn set_state(
    State(sources): State<Arc<Sources>>,
    Path((group, member)): Path<(String, String)>,
    Body(body): Body<SetState>,
) -> Answer<Done> {
    let done = sources.manager.set_admin_state(&group, &member, body.state);
    sources.answer_done(done)
}

pub(crate) async fn end_ejection(
    State(sources): State<Arc<Sources>>,
    Path((group, member)): Path<(String, String)>,
) -> Answer<Done> {
    let done = sources.manager.end_ejection(&group, &member);
    sources.answer_done(done)
}

pub(crate) async fn set_weight(
    State(sources): State<Arc<Sources>>,
    Path((group, member)): Path<(String, String)>,
    Body(body): Body<SetWeight>,
) -> Answer<Done> {
    let done = sources.manager.set_weight(&group, &member, body.weight);
    sources.answer_done(done)
}

pub(crate) async fn set_backup(
    State(sources): State<Arc<Sources>>,
    Path((group, member)): Path<(String, String)>,
    Body(body): Body<SetBackup>,
) -> Answer<Done> {
    let done = sources.manager.set_backup(&group, &member, body.backup);
    sources.answer_done(done)
}

pub(crate) async fn set_enabled(
    State(sources): State<Arc<Sources>>,
    Path(rule): Path<String>,
    Body(body): Body<SetEnabled>,
) -> Answer<Done> {
    let done = sources.manager.set_rule_enabled(&rule, body.enabled);
    sources.answer_done(done)
}

pub(crate) async fn set_maintenance(
    State(sources): State<Arc<Sources>>,
    Path(rule): Path<String>,
    Body(body): Body<SetMaintenance>,
) -> Answer<Done> {
    let done = sources.manager.set_maintenance(&rule, body.on);
    sources.answer_done(done)
}

pub(crate) async fn set_group_maintenance(
    State(sources): State<Arc<Sources>>,
    Path(group): Path<String>,
    Body(body): Body<SetMaintenance>,
) -> Answer<Done> {
    let done = sources.manager.set_group_maintenance(&group, body.on);
    sources.answer_done(done)
}

pub(crate) async fn set_strategy(
    State(sources): State<Arc<Sources>>,
    Path(group): Path<String>,
    Body(body): Body<SetStrategy>,
) -> Answer<Done> {
    let params: Vec<(String, f64)> = body.params.into_iter().collect();
    let done = sources.manager.set_strategy(&group, &body.name, &params);
    sources.answer_done(done)
}

pub(crate) async fn report_loads(
    State(sources): State<Arc<Sources>>,
    Path(location): Path<String>,
    Body(body): Body<Report>,
) -> Answer<Done> {
    let mut loads: Vec<(LoadId, f64)> = Vec::with_capacity(body.loads.len());
    for (name, value) in body.loads {
        let id: LoadId = name.parse().map_err(|error| {
            ApiError::invalid("bad_load_id", format!("there is no load {name:?}: {error}"))
        })?;
        if loads.iter().any(|(known, _)| *known == id) {
            let detail = format!("the load {id} is given twice, by its name and by its number");
            return Err(ApiError::invalid("bad_load_id", detail));
        }
        loads.push((id, value));
    }
    let done = sources.manager.report_loads(&location, &loads);
    sources.answer_done(done)
}

pub(crate) async fn set_alert(
    State(sources): State<Arc<Sources>>,
    Path(location): Path<String>,
    Body(body): Body<SetAlert>,
) -> Answer<Done> {
    let done = sources.manager.set_alert(&location, body.alert);
    sources.answer_done(done)
}

/// Has another process take over. A process that is told twice to be replaced has more to do already than it
/// can.
pub(crate) async fn upgrade_process(State(sources): State<Arc<Sources>>) -> Answer<Upgraded> {
    let busy = || {
        let detail = "an upgrade is under way already, or the balancer is shutting down";
        ApiError::new(StatusCode::CONFLICT, "busy", detail)
    };
    let (sender, answer) = oneshot::channel();
    sources.upgrades.try_send(sender).map_err(|_| busy())?;
    match answer.await {
        Ok(Ok(upgraded)) => Ok(Json(upgraded)),
        Ok(Err(why)) => Err(ApiError::invalid("not_upgraded", why)),
        Err(_) => Err(busy()),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReloadQuery {
    /// True if a file that takes all rules away is meant.
    #[serde(default)]
    force: bool,
}

pub(crate) async fn reload_config(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
    query: Result<Query<ReloadQuery>, QueryRejection>,
) -> Answer<Reloaded> {
    let Query(query) = query.map_err(|error| {
        let detail = format!("{}; force must be true or false", error.body_text());
        ApiError::invalid("bad_query", detail)
    })?;
    let author = Author {
        user_name: actor.user,
        from: actor.from,
        comment: String::new(),
    };
    let reloaded = sources
        .manager
        .reload_asked(&sources.config_file, author, query.force);
    match reloaded.await {
        Ok(applied) => Ok(Json(Reloaded {
            generation: applied.generation,
            notes: applied.notes,
        })),
        Err(ReloadError::Config(errors)) => {
            let problems = list_problems(&errors);
            let refused = ApiError::invalid("bad_configuration", errors.to_string());
            Err(refused.with_fields(serde_json::json!({ "problems": problems })))
        }
        Err(ReloadError::Apply(error)) => Err(sources.explain_refusal(error.into())),
        Err(error @ ReloadError::NoRules(_)) => {
            let status = StatusCode::CONFLICT;
            Err(ApiError::new(status, "no_rules", error.to_string()))
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExplainQuery {
    /// The address of the client.
    client: Option<IpAddr>,
}

pub(crate) async fn explain_group(
    State(sources): State<Arc<Sources>>,
    Path(group): Path<String>,
    query: Result<Query<ExplainQuery>, QueryRejection>,
) -> Answer<Explain> {
    let Query(query) = query.map_err(|error| {
        let detail = format!("{}; client must be an IP address", error.body_text());
        ApiError::invalid("bad_query", detail)
    })?;
    let manager = &sources.manager;
    let refused = |error| sources.explain_refusal(error);
    Ok(Json(Explain {
        last: manager.explain_last(&group).map_err(refused)?,
        next: manager
            .explain_next(&group, query.client)
            .map_err(refused)?,
    }))
}

pub(crate) async fn status(State(sources): State<Arc<Sources>>) -> Json<Status> {
    Json(sources.manager.status())
}

pub(crate) async fn show_rules(State(sources): State<Arc<Sources>>) -> Json<Vec<RuleStatus>> {
    Json(sources.manager.status().rules)
}

pub(crate) async fn show_groups(State(sources): State<Arc<Sources>>) -> Json<Vec<GroupStatus>> {
    Json(sources.manager.status().groups)
}

pub(crate) async fn show_clusters(State(sources): State<Arc<Sources>>) -> Json<Vec<ClusterStatus>> {
    Json(sources.manager.status().clusters)
}

pub(crate) async fn show_certificates(
    State(sources): State<Arc<Sources>>,
) -> Json<Vec<CertificateStatus>> {
    Json(sources.manager.certificates())
}

/// Answers with the schema of the configuration.
pub(crate) async fn config_schema() -> Json<Schema> {
    Json(Schema::new())
}

pub(crate) async fn show_locations(
    State(sources): State<Arc<Sources>>,
) -> Json<Vec<LocationStatus>> {
    Json(sources.manager.status().locations)
}

pub(crate) async fn show_group(
    State(sources): State<Arc<Sources>>,
    Path(group): Path<String>,
) -> Answer<GroupStatus> {
    Ok(Json(find_group(&sources, &group)?))
}

pub(crate) async fn show_member(
    State(sources): State<Arc<Sources>>,
    Path((group, member)): Path<(String, String)>,
) -> Answer<MemberStatus> {
    let mut members = find_group(&sources, &group)?.members;
    let is_meant = |known: &MemberStatus| known.member == member || known.name == member;
    match members.iter().position(is_meant) {
        Some(index) => Ok(Json(members.swap_remove(index))),
        None => Err(sources.explain_refusal(ManageError::NoMember { group, member })),
    }
}

fn find_group(sources: &Sources, name: &str) -> Result<GroupStatus, ApiError> {
    let mut groups = sources.manager.status().groups;
    match groups.iter().position(|group| group.name == name) {
        Some(index) => Ok(groups.swap_remove(index)),
        None => Err(sources.explain_refusal(ManageError::NoGroup(name.into()))),
    }
}

pub(crate) async fn show_metrics(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    let content_type = (
        CONTENT_TYPE,
        HeaderValue::from_static(exposition::CONTENT_TYPE),
    );
    ([content_type], metrics::render_metrics(&sources))
}

/// Answers that the process is alive.
pub(crate) async fn healthz() -> Json<Done> {
    DONE
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadyQuery {
    /// The rule whose clients are meant; otherwise any rule counts.
    rule: Option<String>,
}

/// Answers whether clients should be sent to this process.
pub(crate) async fn readyz(
    State(sources): State<Arc<Sources>>,
    query: Result<Query<ReadyQuery>, QueryRejection>,
) -> Answer<Done> {
    let Query(query) = query.map_err(|error| ApiError::invalid("bad_query", error.body_text()))?;
    let why = if sources.is_draining() {
        "the balancer is shutting down"
    } else {
        match sources.manager.readiness(query.rule.as_deref()) {
            Readiness::Ready => return Ok(DONE),
            Readiness::NoConfig => "no configuration is in effect yet",
            Readiness::NoMember if query.rule.is_some() => {
                "the rule is not enabled, or has no member that may be used; see /v1/status"
            }
            Readiness::NoMember => "no enabled rule has a member that may be used; see /v1/status",
            Readiness::NoRule => {
                let detail = "there is no such rule";
                return Err(ApiError::not_found("unknown_rule", detail));
            }
        }
    };
    Err(not_ready(why))
}

/// Refuses a request because the process does not serve now.
pub(crate) fn not_ready(why: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", why)
}
