//! The HTTP API: what each path answers.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{
    ConnectInfo, DefaultBodyLimit, FromRequest, Path, Query, RawPathParams, Request, State,
};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router, middleware};
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy;
use evenkeel_manager::certificates::CertificateStatus;
use evenkeel_manager::endpoint::{Action, CommandError, Endpoint};
use evenkeel_manager::exposition;
use evenkeel_manager::revisions::Author;
use evenkeel_manager::status::{
    ClusterStatus, GroupStatus, LocationStatus, MemberStatus, RuleStatus, Status,
};
use evenkeel_manager::{ManageError, Readiness, ReloadError};
use http_body_util::LengthLimitError;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::access::Access;
use crate::actor::{Actor, Role};
use crate::audit::{self, Audit, Entry};
use crate::conn::Peer;
use crate::error::ApiError;
use crate::guard::{Guard, check_request};
use crate::login::{self, Cookies, SessionStatus};
use crate::operation::{self, Operation, Operations};
use crate::schema::Schema;
use crate::wire::{
    Credentials, Done, Explain, LoggedIn, Reloaded, Report, SetAlert, SetBackup, SetEnabled,
    SetMaintenance, SetState, SetStrategy, SetWeight, Upgraded,
};
use crate::{Sources, config_api, console, live, metrics, openapi};

/// Returns the longest request body at `path`, in bytes. A load report has a few hundred bytes.
fn max_body(path: &str) -> usize {
    config_api::max_body(path).unwrap_or(64 * 1024)
}

pub(crate) type Answer<T> = Result<Json<T>, ApiError>;

const DONE: Json<Done> = Json(Done { ok: true });

/// Parts that the router needs beside the sources.
pub(crate) struct RouterParts {
    pub(crate) guard: Guard,
    pub(crate) access: Arc<Access>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) cookies: Cookies,
    /// True if the console is served.
    pub(crate) console: bool,
}

pub(crate) fn build_router(sources: Arc<Sources>, doors: RouterParts) -> Router {
    let operations = operations(&sources);
    let open = operations
        .all
        .iter()
        .filter(|operation| operation.role.is_none());
    let guarded_by = doors
        .guard
        .with_open_paths(open.map(|operation| operation.path));
    let description = openapi::build_document(&operations.all).to_string();
    let router = match doors.console {
        true => with_console(operations.into_router()),
        false => operations.into_router(),
    };
    router
        .layer(middleware::from_fn_with_state(
            Arc::clone(&sources),
            nothing_new_while_draining,
        ))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&sources),
            live::api::note_who,
        ))
        .with_state(sources)
        .layer(Extension(Description(description.into())))
        .layer(Extension(guarded_by.clone()))
        .layer(Extension(doors.access))
        .layer(Extension(doors.audit))
        .layer(Extension(doors.cookies))
        // Bodies are limited there.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(whole_requests))
        .layer(middleware::from_fn_with_state(guarded_by, check_request))
        .layer(middleware::map_response(errors_are_json))
}

/// Adds the pages of the console to the API.
fn with_console(router: Router<Arc<Sources>>) -> Router<Arc<Sources>> {
    router
        .route("/", get(console::start))
        .route("/console", get(console::start))
        .route("/console/", get(console::show_index))
        .route("/console/{*path}", get(console::show_file))
        .route("/login/", get(console::login_page))
        .route("/login/{*path}", get(console::login_file))
}

/// Returns all operations of the API, in the order of the description.
fn operations(sources: &Sources) -> Operations {
    let put = || Method::PUT;
    let own = Operations::new()
        .add_operation(
            Operation::show_json::<Status>("/v1/status", "The status of rules, groups, members, locations and clusters"),
            status,
        )
        .add_operation(
            Operation::show_json::<Vec<RuleStatus>>("/v1/rules", "The rules"),
            show_rules,
        )
        .add_operation(
            Operation::show_json::<Vec<GroupStatus>>("/v1/groups", "The groups with their members"),
            show_groups,
        )
        .add_operation(
            Operation::show_json::<GroupStatus>("/v1/groups/{group}", "One group"),
            show_group,
        )
        .add_operation(
            Operation::show_json::<MemberStatus>(
                "/v1/groups/{group}/members/{member}",
                "One member of a group",
            ),
            show_member,
        )
        .add_operation(
            Operation::show_json::<Explain>(
                "/v1/groups/{group}/explain",
                "The last decision of a group with its reasons, and the one for a client's next request",
            )
            .with_query::<ExplainQuery>(),
            explain_group,
        )
        .add_operation(
            Operation::show_json::<Vec<LocationStatus>>(
                "/v1/locations",
                "The locations with their loads",
            ),
            show_locations,
        )
        .add_operation(
            Operation::show_json::<Vec<ClusterStatus>>(
                "/v1/clusters",
                "The clusters that clients negotiate for",
            ),
            show_clusters,
        )
        .add_operation(
            Operation::show_json::<Vec<CertificateStatus>>(
                "/v1/certificates",
                "The certificates that clients and members are shown",
            ),
            show_certificates,
        )
        .add_operation(
            Operation::show_json::<Schema>("/v1/config/schema", "Tables and keys that a configuration may have"),
            config_schema,
        )
        .add_operation(
            Operation::show_json::<serde_json::Value>(
                "/v1/openapi.json",
                "This description of the API in OpenAPI 3.1",
            ),
            describe,
        )
        .add_operation(
            Operation::show_text(
                "/metrics",
                exposition::CONTENT_TYPE,
                "Metrics in the format of Prometheus",
            ),
            show_metrics,
        )
        .add_operation(
            Operation::show_to_all::<Done>("/healthz", "Whether the process is alive"),
            healthz,
        )
        .add_operation(
            Operation::show_to_all::<Done>("/readyz", "Whether clients should be sent to this balancer")
                .with_query::<ReadyQuery>(),
            readyz,
        )
        .add_operation(
            Operation::act_on_body::<SetStrategy, Done>(
                put(),
                "/v1/groups/{group}/strategy",
                Role::Operate,
                "Sets the strategy of a group until the configuration changes it",
            ),
            set_strategy,
        )
        .add_operation(
            Operation::act_on_body::<SetState, Done>(
                put(),
                "/v1/groups/{group}/members/{member}/state",
                Role::Operate,
                "Lets a member take traffic, drains it, or sets it to maintenance",
            ),
            set_state,
        )
        .add_operation(
            Operation::act_on_body::<SetWeight, Done>(
                put(),
                "/v1/groups/{group}/members/{member}/weight",
                Role::Operate,
                "Sets the weight of a member",
            ),
            set_weight,
        )
        .add_operation(
            Operation::act_on_body::<SetBackup, Done>(
                put(),
                "/v1/groups/{group}/members/{member}/backup",
                Role::Operate,
                "Makes a member a backup, or an ordinary member",
            ),
            set_backup,
        )
        .add_operation(
            Operation::act_on_body::<SetEnabled, Done>(
                put(),
                "/v1/rules/{rule}/enabled",
                Role::Operate,
                "Opens or closes a rule to clients",
            ),
            set_enabled,
        )
        .add_operation(
            Operation::act_on_body::<SetMaintenance, Done>(
                put(),
                "/v1/rules/{rule}/maintenance",
                Role::Operate,
                "Starts or ends the maintenance of a rule",
            ),
            set_maintenance,
        )
        .add_operation(
            Operation::act_on_body::<SetMaintenance, Done>(
                put(),
                "/v1/groups/{group}/maintenance",
                Role::Operate,
                "Starts or ends the maintenance of a group for clients of rules",
            ),
            set_group_maintenance,
        )
        // A report changes nothing that an administrator has said: it is not in the audit log.
        .add_operation(
            Operation::post_question::<Report, Done>(
                "/v1/locations/{location}/loads",
                Role::Operate,
                "Reports loads of a location",
            ),
            report_loads,
        )
        .add_operation(
            Operation::act_on_body::<SetAlert, Done>(
                put(),
                "/v1/locations/{location}/alert",
                Role::Operate,
                "Sets the load alert of a location, or lets its load decide",
            ),
            set_alert,
        )
        .add_operation(
            Operation::show_to_all::<SessionStatus>(
                "/v1/session",
                "The user who asks, and what the user may do",
            ),
            login::show_session,
        )
        .add_operation(
            Operation::act_on_body::<Credentials, LoggedIn>(
                Method::POST,
                "/v1/login",
                None,
                "Begins a session of a browser",
            ),
            login::handle_login,
        )
        .add_operation(
            Operation::act_alone::<Done>("/v1/logout", None, "Ends a session"),
            login::handle_logout,
        )
        .add_operation(
            Operation::show_json::<Vec<Entry>>("/v1/audit", "The last changes, newest first"),
            audit::show_entries,
        )
        .add_operation(
            Operation::act_alone::<Reloaded>(
                "/v1/reload",
                Role::Administer,
                "Reads the configuration file and applies it",
            )
            .with_query::<ReloadQuery>(),
            reload_config,
        )
        .add_operation(
            Operation::act_alone::<Upgraded>(
                "/v1/upgrade",
                Role::Administer,
                "Replaces the process by the program that is now in its file, and answers when that has taken over",
            ),
            upgrade_process,
        );
    let own = live::api::add_operations(own);
    let own = config_api::add_operations(own);
    let endpoints = sources.manager.subsystems().endpoints();
    endpoints.into_iter().fold(own, with_endpoint)
}

/// Adds a path that a subsystem answers.
fn with_endpoint(operations: Operations, endpoint: Endpoint) -> Operations {
    let (path, summary) = (endpoint.path, endpoint.summary);
    match endpoint.action {
        Action::Show(show, form) => {
            let answer = async move || match show() {
                Ok(json) => ([(CONTENT_TYPE, "application/json")], json).into_response(),
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            };
            let operation = Operation::get(path, summary, operation::Answer::Json(form));
            operations.add_operation(operation, answer)
        }
        Action::Do(act) => {
            let answer = async move |names: RawPathParams| -> Answer<Done> {
                let names = names.iter().map(|(_, name)| name.to_owned()).collect();
                act(names).await.map_err(command_error)?;
                Ok(DONE)
            };
            operations.add_operation(
                Operation::act_alone::<Done>(path, Role::Operate, summary),
                answer,
            )
        }
    }
}

/// The text of the API's description.
#[derive(Clone)]
struct Description(Arc<str>);

async fn describe(Extension(description): Extension<Description>) -> impl IntoResponse {
    let text = description.0.to_string();
    ([(CONTENT_TYPE, "application/json")], text)
}

fn command_error(error: CommandError) -> ApiError {
    match error {
        CommandError::Unknown {
            kind,
            detail,
            allowed,
        } => ApiError::not_found(kind, detail).with_allowed(allowed),
        CommandError::Failed { kind, detail } => {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, kind, detail)
        }
    }
}

/// Reads the request's body, so that it is known when the request is complete: a connection
/// on which it never is makes way for others.
async fn whole_requests(
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    let limit = max_body(head.uri.path());
    match axum::body::to_bytes(body, limit).await {
        Ok(body) => {
            peer.activity.mark_complete();
            next.run(Request::from_parts(head, body.into())).await
        }
        Err(error) => {
            let too_large = error
                .source()
                .is_some_and(|cause| cause.is::<LengthLimitError>());
            if too_large {
                let detail = format!("the body is larger than {limit} bytes");
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                ApiError::new(status, "too_large", detail).into_response()
            } else {
                // Most likely the client has gone.
                StatusCode::BAD_REQUEST.into_response()
            }
        }
    }
}

/// Refuses changes while the process shuts down: it must not open listeners again.
async fn nothing_new_while_draining(
    State(sources): State<Arc<Sources>>,
    request: Request,
    next: Next,
) -> Response {
    if sources.is_draining() && !matches!(*request.method(), Method::GET | Method::HEAD) {
        return not_ready("the balancer is shutting down: no changes are accepted").into_response();
    }
    next.run(request).await
}

fn not_ready(why: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", why)
}

/// Gives errors of the router the form of all other errors. An error that is neither JSON nor a page comes
/// from the router itself: no such path, method, or field.
async fn errors_are_json(response: Response) -> Response {
    let status = response.status();
    let is_ours = response.headers().get(CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes();
        value.starts_with(b"application/json") || value.starts_with(b"text/html")
    });
    if is_ours || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let allow = response.headers().get(ALLOW).cloned();
    let detail = match status {
        StatusCode::NOT_FOUND => "there is no such path; the paths are in docs/admin-api.md",
        StatusCode::METHOD_NOT_ALLOWED => "this path does not support that method",
        _ => "the request cannot be understood",
    };
    let error = match status {
        StatusCode::NOT_FOUND => "no_such_path",
        StatusCode::METHOD_NOT_ALLOWED => "wrong_method",
        _ => "bad_request",
    };
    let methods = allow.as_ref().and_then(|value| value.to_str().ok());
    let error = ApiError::new(status, error, detail)
        .with_allowed(methods.into_iter().flat_map(|methods| methods.split(',')));
    let mut response = error.into_response();
    if let Some(allow) = allow {
        response.headers_mut().insert(ALLOW, allow);
    }
    response
}

/// A JSON body that is exactly what the path takes.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(IntoResponse::into_response)?;
        serde_json::from_slice(&bytes).map(Body).map_err(|error| {
            ApiError::invalid(
                "bad_body",
                format!("the body is not valid for this path: {error}"),
            )
            .into_response()
        })
    }
}

/// At most so many names are offered instead of one that does not exist.
const MAX_ALLOWED: usize = 32;

impl Sources {
    /// Returns the manager's refusal, with what it would have accepted.
    pub(crate) fn explain_refusal(&self, error: ManageError) -> ApiError {
        let detail = error.to_string();
        let allowed = self.alternatives(&error);
        let error = match error {
            ManageError::NoRule(_) => ApiError::not_found("unknown_rule", detail),
            ManageError::NoGroup(_) => ApiError::not_found("unknown_group", detail),
            ManageError::NoMember { .. } => ApiError::not_found("unknown_member", detail),
            ManageError::NoLocation(_) => ApiError::not_found("unknown_location", detail),
            ManageError::NoStrategy { .. } => ApiError::invalid("unknown_strategy", detail),
            ManageError::Param(_) => ApiError::invalid("bad_parameter", detail),
            ManageError::Weight(_) => ApiError::invalid("bad_weight", detail),
            ManageError::Load(_) => ApiError::invalid("bad_load", detail),
            ManageError::TooManyLoads(_) => ApiError::invalid("too_many_loads", detail),
            ManageError::Apply(_) => ApiError::new(StatusCode::CONFLICT, "not_applied", detail),
        };
        error.with_allowed(allowed)
    }

    fn answer_done(&self, result: Result<(), ManageError>) -> Answer<Done> {
        result
            .map(|()| DONE)
            .map_err(|error| self.explain_refusal(error))
    }

    fn alternatives(&self, error: &ManageError) -> Vec<String> {
        let names: Vec<String> = match error {
            ManageError::NoStrategy { .. } => {
                return strategy::REGISTRY
                    .iter()
                    .map(|kind| kind.name.into())
                    .collect();
            }
            ManageError::NoRule(_) => {
                let rules = self.manager.status().rules.into_iter();
                rules.map(|rule| rule.name).collect()
            }
            ManageError::NoGroup(_) => {
                let groups = self.manager.list_groups();
                groups
                    .iter()
                    .map(|group| group.name().to_string())
                    .collect()
            }
            ManageError::NoMember { group, .. } => {
                let groups = self.manager.list_groups();
                let group = groups.iter().find(|known| **known.name() == **group);
                let members = group.iter().flat_map(|group| group.members());
                members
                    .map(|member| member.shown_name().to_string())
                    .collect()
            }
            ManageError::NoLocation(_) => {
                let locations = self.manager.status().locations.into_iter();
                locations.map(|location| location.name).collect()
            }
            _ => Vec::new(),
        };
        // A long list helps nobody.
        if names.len() > MAX_ALLOWED {
            Vec::new()
        } else {
            names
        }
    }
}

async fn set_state(
    State(sources): State<Arc<Sources>>,
    Path((group, member)): Path<(String, String)>,
    Body(body): Body<SetState>,
) -> Answer<Done> {
    let done = sources.manager.set_admin_state(&group, &member, body.state);
    sources.answer_done(done)
}

async fn set_weight(
    State(sources): State<Arc<Sources>>,
    Path((group, member)): Path<(String, String)>,
    Body(body): Body<SetWeight>,
) -> Answer<Done> {
    let done = sources.manager.set_weight(&group, &member, body.weight);
    sources.answer_done(done)
}

async fn set_backup(
    State(sources): State<Arc<Sources>>,
    Path((group, member)): Path<(String, String)>,
    Body(body): Body<SetBackup>,
) -> Answer<Done> {
    let done = sources.manager.set_backup(&group, &member, body.backup);
    sources.answer_done(done)
}

async fn set_enabled(
    State(sources): State<Arc<Sources>>,
    Path(rule): Path<String>,
    Body(body): Body<SetEnabled>,
) -> Answer<Done> {
    let done = sources.manager.set_rule_enabled(&rule, body.enabled);
    sources.answer_done(done)
}

async fn set_maintenance(
    State(sources): State<Arc<Sources>>,
    Path(rule): Path<String>,
    Body(body): Body<SetMaintenance>,
) -> Answer<Done> {
    let done = sources.manager.set_maintenance(&rule, body.on);
    sources.answer_done(done)
}

async fn set_group_maintenance(
    State(sources): State<Arc<Sources>>,
    Path(group): Path<String>,
    Body(body): Body<SetMaintenance>,
) -> Answer<Done> {
    let done = sources.manager.set_group_maintenance(&group, body.on);
    sources.answer_done(done)
}

async fn set_strategy(
    State(sources): State<Arc<Sources>>,
    Path(group): Path<String>,
    Body(body): Body<SetStrategy>,
) -> Answer<Done> {
    let params: Vec<(String, f64)> = body.params.into_iter().collect();
    let done = sources.manager.set_strategy(&group, &body.name, &params);
    sources.answer_done(done)
}

async fn report_loads(
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

async fn set_alert(
    State(sources): State<Arc<Sources>>,
    Path(location): Path<String>,
    Body(body): Body<SetAlert>,
) -> Answer<Done> {
    let done = sources.manager.set_alert(&location, body.alert);
    sources.answer_done(done)
}

/// Has another process take over. A process that is told twice to be replaced has more to do already than it
/// can.
async fn upgrade_process(State(sources): State<Arc<Sources>>) -> Answer<Upgraded> {
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
struct ReloadQuery {
    /// True if a file that takes all rules away is meant.
    #[serde(default)]
    force: bool,
}

async fn reload_config(
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
            let problems = config_api::list_problems(&errors);
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
struct ExplainQuery {
    /// The address of the client.
    client: Option<IpAddr>,
}

async fn explain_group(
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

async fn status(State(sources): State<Arc<Sources>>) -> Json<Status> {
    Json(sources.manager.status())
}

async fn show_rules(State(sources): State<Arc<Sources>>) -> Json<Vec<RuleStatus>> {
    Json(sources.manager.status().rules)
}

async fn show_groups(State(sources): State<Arc<Sources>>) -> Json<Vec<GroupStatus>> {
    Json(sources.manager.status().groups)
}

async fn show_clusters(State(sources): State<Arc<Sources>>) -> Json<Vec<ClusterStatus>> {
    Json(sources.manager.status().clusters)
}

async fn show_certificates(State(sources): State<Arc<Sources>>) -> Json<Vec<CertificateStatus>> {
    Json(sources.manager.certificates())
}

/// Answers with the schema of the configuration.
async fn config_schema() -> Json<Schema> {
    Json(Schema::new())
}

async fn show_locations(State(sources): State<Arc<Sources>>) -> Json<Vec<LocationStatus>> {
    Json(sources.manager.status().locations)
}

async fn show_group(
    State(sources): State<Arc<Sources>>,
    Path(group): Path<String>,
) -> Answer<GroupStatus> {
    Ok(Json(find_group(&sources, &group)?))
}

async fn show_member(
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

async fn show_metrics(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    let content_type = (
        CONTENT_TYPE,
        HeaderValue::from_static(exposition::CONTENT_TYPE),
    );
    ([content_type], metrics::render_metrics(&sources))
}

/// Answers that the process is alive.
async fn healthz() -> Json<Done> {
    DONE
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadyQuery {
    /// The rule whose clients are meant; otherwise any rule counts.
    rule: Option<String>,
}

/// Answers whether clients should be sent to this process.
async fn readyz(
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
