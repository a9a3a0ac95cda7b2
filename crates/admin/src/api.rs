//! The HTTP API: what each path answers.

use std::error::Error;
use std::sync::Arc;

use axum::extract::{ConnectInfo, DefaultBodyLimit, RawPathParams, Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router, middleware};
use evenkeel_manager::certificates::CertificateStatus;
use evenkeel_manager::endpoint::{Action, CommandError, Endpoint};
use evenkeel_manager::exposition;
use evenkeel_manager::status::{
    ClusterStatus, GroupStatus, LocationStatus, MemberStatus, RuleStatus, Status,
};
use http_body_util::LengthLimitError;

use crate::access::Access;
use crate::actor::Role;
use crate::answer::{Answer, DONE};
use crate::audit::{self, Audit, Entry};
use crate::conn::Peer;
use crate::error::ApiError;
use crate::guard::{Guard, check_request};
use crate::login::{self, Cookies, SessionStatus};
use crate::operation::{self, Operation, Operations};
use crate::schema::Schema;
use crate::sources::Sources;
use crate::wire::{
    Credentials, Done, Explain, LoggedIn, Reloaded, Report, SetAlert, SetBackup, SetEnabled,
    SetMaintenance, SetState, SetStrategy, SetWeight, Upgraded,
};
use crate::{config_api, console, handlers, live, openapi};

/// Returns the longest request body at `path`, in bytes. A load report has a few hundred bytes.
fn max_body(path: &str) -> usize {
    config_api::max_body(path).unwrap_or(64 * 1024)
}

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
    let parts: [fn(Operations) -> Operations; 7] = [
        add_status,
        add_descriptions,
        add_member_changes,
        add_rule_changes,
        add_sessions,
        live::api::add_operations,
        config_api::add_operations,
    ];
    let own = parts
        .into_iter()
        .fold(Operations::new(), |all, add| add(all));
    let endpoints = sources.manager.subsystems().endpoints();
    endpoints.into_iter().fold(own, with_endpoint)
}

/// Adds the operations that show the balancer's status.
fn add_status(all: Operations) -> Operations {
    all
        .add_operation(
            Operation::show_json::<Status>("/v1/status", "The status of rules, groups, members, locations and clusters"),
            handlers::status,
        )
        .add_operation(
            Operation::show_json::<Vec<RuleStatus>>("/v1/rules", "The rules"),
            handlers::show_rules,
        )
        .add_operation(
            Operation::show_json::<Vec<GroupStatus>>("/v1/groups", "The groups with their members"),
            handlers::show_groups,
        )
        .add_operation(
            Operation::show_json::<GroupStatus>("/v1/groups/{group}", "One group"),
            handlers::show_group,
        )
        .add_operation(
            Operation::show_json::<MemberStatus>(
                "/v1/groups/{group}/members/{member}",
                "One member of a group",
            ),
            handlers::show_member,
        )
        .add_operation(
            Operation::show_json::<Explain>(
                "/v1/groups/{group}/explain",
                "The last decision of a group with its reasons, and the one for a client's next request",
            )
            .with_query::<handlers::ExplainQuery>(),
            handlers::explain_group,
        )
        .add_operation(
            Operation::show_json::<Vec<LocationStatus>>(
                "/v1/locations",
                "The locations with their loads",
            ),
            handlers::show_locations,
        )
        .add_operation(
            Operation::show_json::<Vec<ClusterStatus>>(
                "/v1/clusters",
                "The clusters that clients negotiate for",
            ),
            handlers::show_clusters,
        )
        .add_operation(
            Operation::show_json::<Vec<CertificateStatus>>(
                "/v1/certificates",
                "The certificates that clients and members are shown",
            ),
            handlers::show_certificates,
        )
}

/// Adds the operations that describe the API, and those that other programs ask for.
fn add_descriptions(all: Operations) -> Operations {
    all.add_operation(
        Operation::show_json::<Schema>(
            "/v1/config/schema",
            "Tables and keys that a configuration may have",
        ),
        handlers::config_schema,
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
        handlers::show_metrics,
    )
    .add_operation(
        Operation::show_to_all::<Done>("/healthz", "Whether the process is alive"),
        handlers::healthz,
    )
    .add_operation(
        Operation::show_to_all::<Done>(
            "/readyz",
            "Whether clients should be sent to this balancer",
        )
        .with_query::<handlers::ReadyQuery>(),
        handlers::readyz,
    )
}

/// Adds the operations that change a group and its members until the configuration changes them.
fn add_member_changes(all: Operations) -> Operations {
    let put = || Method::PUT;
    all.add_operation(
        Operation::act_on_body::<SetStrategy, Done>(
            put(),
            "/v1/groups/{group}/strategy",
            Role::Operate,
            "Sets the strategy of a group until the configuration changes it",
        ),
        handlers::set_strategy,
    )
    .add_operation(
        Operation::act_on_body::<SetState, Done>(
            put(),
            "/v1/groups/{group}/members/{member}/state",
            Role::Operate,
            "Lets a member take traffic, drains it, or sets it to maintenance",
        ),
        handlers::set_state,
    )
    .add_operation(
        Operation::act_alone::<Done>(
            "/v1/groups/{group}/members/{member}/uneject",
            Role::Operate,
            "Ends the ejection of a member, and forgets its failures",
        ),
        handlers::end_ejection,
    )
    .add_operation(
        Operation::act_on_body::<SetWeight, Done>(
            put(),
            "/v1/groups/{group}/members/{member}/weight",
            Role::Operate,
            "Sets the weight of a member",
        ),
        handlers::set_weight,
    )
    .add_operation(
        Operation::act_on_body::<SetBackup, Done>(
            put(),
            "/v1/groups/{group}/members/{member}/backup",
            Role::Operate,
            "Makes a member a backup, or an ordinary member",
        ),
        handlers::set_backup,
    )
}

/// Adds the operations that change rules, maintenance and locations until the configuration changes them.
fn add_rule_changes(all: Operations) -> Operations {
    let put = || Method::PUT;
    all.add_operation(
        Operation::act_on_body::<SetEnabled, Done>(
            put(),
            "/v1/rules/{rule}/enabled",
            Role::Operate,
            "Opens or closes a rule to clients",
        ),
        handlers::set_enabled,
    )
    .add_operation(
        Operation::act_on_body::<SetMaintenance, Done>(
            put(),
            "/v1/rules/{rule}/maintenance",
            Role::Operate,
            "Starts or ends the maintenance of a rule",
        ),
        handlers::set_maintenance,
    )
    .add_operation(
        Operation::act_on_body::<SetMaintenance, Done>(
            put(),
            "/v1/groups/{group}/maintenance",
            Role::Operate,
            "Starts or ends the maintenance of a group for clients of rules",
        ),
        handlers::set_group_maintenance,
    )
    // A report changes nothing that an administrator has said: it is not in the audit log.
    .add_operation(
        Operation::post_question::<Report, Done>(
            "/v1/locations/{location}/loads",
            Role::Operate,
            "Reports loads of a location",
        ),
        handlers::report_loads,
    )
    .add_operation(
        Operation::act_on_body::<SetAlert, Done>(
            put(),
            "/v1/locations/{location}/alert",
            Role::Operate,
            "Sets the load alert of a location, or lets its load decide",
        ),
        handlers::set_alert,
    )
}

/// Adds the operations of sessions, of the audit log and of the process.
fn add_sessions(all: Operations) -> Operations {
    all
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
            .with_query::<handlers::ReloadQuery>(),
            handlers::reload_config,
        )
        .add_operation(
            Operation::act_alone::<Upgraded>(
                "/v1/upgrade",
                Role::Administer,
                "Replaces the process by the program that is now in its file, and answers when that has taken over",
            ),
            handlers::upgrade_process,
        )
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
        return handlers::not_ready("the balancer is shutting down: no changes are accepted")
            .into_response();
    }
    next.run(request).await
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
