//! Specifications of routes: the fields that the controller uses.

use serde::Deserialize;

use super::values::{Items, ParentRef, Reference};

/// Specification of a route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteSpec<R: Default> {
    /// Parents of the route.
    pub parent_refs: Items<ParentRef>,
    /// Host names of requests; those of the listeners, if there are none.
    pub hostnames: Items<String>,
    /// Rules of the route.
    #[serde(bound(deserialize = "R: Deserialize<'de>"))]
    pub rules: Items<R>,
}

/// Rule of an HTTPRoute.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRule {
    /// Conditions, of which one must hold.
    pub matches: Items<HttpMatch>,
    /// Filters of the rule.
    pub filters: Items<Filter>,
    /// Targets of the rule.
    pub backend_refs: Items<BackendRef>,
    /// Time limits.
    pub timeouts: Option<Timeouts>,
    /// Retries of the rule.
    pub retry: Option<Retry>,
    /// Binding of clients.
    pub session_persistence: Option<SessionPersistence>,
}

/// Rule of a TLSRoute or a TCPRoute.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StreamRule {
    /// Targets of the rule.
    pub backend_refs: Items<BackendRef>,
}

/// Conditions of a request or a call.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpMatch {
    /// Path of a request.
    pub path: Option<ValueMatch>,
    /// Fields of the head.
    pub headers: Items<ValueMatch>,
    /// Parameters of the query.
    pub query_params: Items<ValueMatch>,
    /// Method of a request.
    pub method: Option<String>,
}

/// Condition on a value.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ValueMatch {
    /// `Exact`, `PathPrefix` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Name of the field or the parameter.
    pub name: String,
    /// Value of the field or parameter.
    pub value: Option<String>,
}

/// Filter of a rule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Filter {
    /// Type of the filter.
    #[serde(rename = "type")]
    pub kind: String,
    /// Changes to fields of requests.
    pub request_header_modifier: Option<HeaderModifier>,
    /// Changes to fields of responses.
    pub response_header_modifier: Option<HeaderModifier>,
    /// Redirect of the filter.
    pub request_redirect: Option<Redirect>,
    /// Changes to the address of requests.
    pub url_rewrite: Option<UrlRewrite>,
    /// Copies of requests.
    pub request_mirror: Option<Mirror>,
    /// Cross-origin resource sharing.
    pub cors: Option<Cors>,
}

/// Changes to fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HeaderModifier {
    /// Fields in place of all others of their names.
    pub set: Items<Header>,
    /// Further fields.
    pub add: Items<Header>,
    /// Names of fields to remove.
    pub remove: Items<String>,
}

/// Field of a head.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Header {
    /// Name of the field.
    pub name: String,
    /// Value of the field.
    pub value: String,
}

/// Redirect of requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Redirect {
    /// Scheme; that of the request, if there is none.
    pub scheme: Option<String>,
    /// Host name; that of the request, if there is none.
    pub hostname: Option<String>,
    /// Change to the path.
    pub path: Option<PathChange>,
    /// Port of the new location.
    pub port: Option<u16>,
    /// Status of the answer.
    pub status_code: Option<u16>,
}

/// Changes to the address of requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct UrlRewrite {
    /// Host name in requests to members.
    pub hostname: Option<String>,
    /// Change to the path.
    pub path: Option<PathChange>,
}

/// Change to a path.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathChange {
    /// `ReplaceFullPath`, or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    /// New path.
    pub replace_full_path: Option<String>,
    /// New prefix.
    pub replace_prefix_match: Option<String>,
}

/// Copies of requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Mirror {
    /// Target of the copies.
    pub backend_ref: Reference,
    /// Share of the requests in percent.
    pub percent: Option<u32>,
    /// Share of the requests.
    pub fraction: Option<Fraction>,
}

/// Share of something.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Fraction {
    /// Number of parts.
    pub numerator: u32,
    /// Number of all parts; 100, if there is none.
    pub denominator: Option<u32>,
}

/// Cross-origin resource sharing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Cors {
    /// Origins whose pages may read responses.
    pub allow_origins: Items<String>,
    /// Permission for cookies and passwords.
    pub allow_credentials: Option<bool>,
    /// Allowed methods.
    pub allow_methods: Items<String>,
    /// Allowed request fields.
    pub allow_headers: Items<String>,
    /// Response fields that pages may see.
    pub expose_headers: Items<String>,
    /// Seconds for which browsers keep the answer.
    pub max_age: Option<u32>,
}

/// Target of a rule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BackendRef {
    /// The target.
    #[serde(flatten)]
    pub target: Reference,
    /// Share of the requests, relative to the other targets; 1, if there is none.
    pub weight: Option<u32>,
    /// Filters of this target alone.
    pub filters: Items<Filter>,
}

/// Time limits.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Timeouts {
    /// Time limit of a request with its retries.
    pub request: Option<String>,
    /// Time limit of one try.
    pub backend_request: Option<String>,
}

/// Retries of requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Retry {
    /// Statuses after which a request is sent again.
    pub codes: Items<u16>,
    /// Number of retries.
    pub attempts: Option<u32>,
    /// Pause before a retry.
    pub backoff: Option<String>,
}

/// Binding of clients to members.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SessionPersistence {
    /// Name of the cookie or field.
    pub session_name: Option<String>,
    /// Time after which a client is bound anew.
    pub absolute_timeout: Option<String>,
    /// Time without a request after which a client is bound anew.
    pub idle_timeout: Option<String>,
    /// `Cookie`, or `Header`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Settings of the cookie.
    pub cookie_config: CookieConfig,
}

/// Settings of a cookie.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CookieConfig {
    /// `Session`, or `Permanent`.
    pub lifetime_type: Option<String>,
}
