//! `[rule.NAME.http]`: options of HTTP rules.

use std::time::Duration;

use evenkeel_core::key;

use super::hedge::Hedge;
use super::mirror::Mirrors;
use super::model_aliases::ModelAliases;
use super::models::Models;
use super::protocol::MemberProtocol;
use super::request_id::RequestId;
use super::route::METHOD;
use super::route_values::{MaxBody, Status};
use super::tls::{DEEP_NAMES, UNNAMED};
use crate::fields;
use crate::schema::field::Texts;
use crate::schema::key::{DAY, HOUR, millis, secs, section};
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Options of HTTP rules.
    #[derive(Clone, Debug, PartialEq)]
    pub struct HttpOptions {
        /// Beginnings of names of fields that are removed from requests, because only the balancer may set such
        /// fields.
        reserved: Vec<String> = Vec::new(),
    }
    keys HTTP {
        /// Lets clients speak HTTP/2 without TLS, by prior knowledge: their first bytes show the protocol.
        http2: bool = true; "false",
        /// Maximum number of requests at once in a connection of HTTP/2.
        http2_streams: u32 [Number(1.0, 10_000.0, "streams")] = 128; "32",
        /// Maximum size of a request's body. A larger body gets 413: at once if the request states the length,
        /// else when the limit is exceeded. By default there is no limit. Set a limit if your members cannot
        /// handle large bodies.
        max_body: Option<MaxBody> = None; r#""10MiB""#,
        /// Rules with routes: lets ambiguous paths through, which servers read differently. With `false` such
        /// requests get 400, so that no spelling of a path gets around your routes. Ambiguous are paths with
        /// `.` or `..` as a segment, also with dots or spaces behind, with `//`, with a backslash, and with an
        /// encoded slash (`%2F`), backslash, semicolon or control character. With `true`, routes compare these
        /// paths unchanged. Set `true` only if your applications need such paths.
        ambiguous_paths: bool = false; "true",
        /// Protocol of members: HTTP/1.1 (`http1`), or HTTP/2 (`h2`), with many requests at once in a
        /// connection. With `member_tls` the balancer offers the protocol to members (ALPN); with `auto` the
        /// balancer offers both, and the member chooses. Without `member_tls` you must know the protocol of
        /// your members, and `auto` is HTTP/1.1.
        member_protocol: MemberProtocol = MemberProtocol::Http1; r#""h2""#,
        /// HTTP/2 to members: time with requests under way after which the balancer asks the member for a sign
        /// of life (PING), again and again.
        ping_interval: Duration [Time(millis(100), HOUR)] = secs(30); r#""10s""#,
        /// Time limit for the answer to a PING. After the limit the connection is closed, and its requests have
        /// failed.
        ping_timeout: Duration [Time(millis(100), HOUR)] = secs(10); r#""3s""#,
        /// Maximum size of the head of a request or response. A larger request gets 431, a larger response
        /// counts as a failure of the member. Raise the size if your clients have large cookies.
        max_header_bytes: usize [Bytes(1024, 1024 * 1024)] = 32 * 1024; r#""64KiB""#,
        /// Maximum number of header fields in a head.
        max_header_count: usize [Number(8.0, 256.0, "fields")] = 128; "200",
        /// Rules with `tls`: hosts that clients have to connect for. A client connects for a name (SNI); a request of the
        /// client for a host of another entry of the list gets 421, and the client connects again for the host. Begin
        /// an entry with `*.` for all names right below the domain, or with `**.` for all names below the domain at
        /// any depth; the most specific entry counts. `*` stands for all other hosts. By default clients may send
        /// requests for all hosts: see [separate hosts](tls.md#separate-hosts).
        separate_hosts: Vec<String> [Text(SEPARATE)] = Vec::new(); r#"["www.example.org", "*.shop.example.org"]"#,
        /// Adds `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host` to requests, so that your members
        /// know the client.
        x_forwarded: bool = true; "false",
        /// Adds a `Forwarded` field (RFC 7239) to requests. Set `true` if your members read this field.
        forwarded: bool = false; "true",
        /// Name to add to `Via` (RFC 9110, section 7.6.3), or `false` for none. With a `Via`, servers such as
        /// nginx and IIS do not compress responses unless you tell them to (`gzip_proxied`,
        /// `noCompressionForProxies`).
        via: Option<String> [Text(VIA)] = None; r#""edge-1""#,
        /// Keeps the forwarding fields (`X-Forwarded-…`, `Forwarded`) sent by clients. Set `true` only if your
        /// balancer is behind another proxy: otherwise clients can forge their address. With `false` the
        /// balancer removes these fields and writes its own.
        trust_forwarded: bool = false; "true",
        /// Names of further [trailers of requests](routing.md#trailers) for members. Add names which your
        /// members need. Other trailers are removed, except those of checksums, signatures and gRPC: some
        /// servers take trailers for fields of the head.
        request_trailers: Vec<String> [Text(TRAILER)] = Vec::new(); r#"["X-Checksum"]"#,
        /// Marks members as consoles of balancers, which get the session cookies of a console. Set `true` only
        /// if your members are such consoles: anybody with such a cookie is the administrator. Other members do
        /// not get these cookies.
        console_members: bool = false; "true",
        /// Name for each request, in a header field for members and in the access log: `true`, or a table, see
        /// below. Set this key to follow a request through your systems; by default requests get no name. See
        /// [request ids](telemetry.md#request-ids).
        request_id: Option<RequestId> = None; "true",
        /// Name of a field with the [cost](strategies.md#costs) of a request. Requests without the field, or
        /// with a value other than a number above 0, have the rule's `cost`; a value beyond 0.01 to 1000 counts
        /// as the bound. Set a name only if you trust the clients, or if your proxy in front sets the field:
        /// anybody who can set the field can make the balancer avoid a member, or crowd one.
        cost_header: Option<String> [Text(FIELD)] = None; r#""X-Cost""#,
        /// Name of a field with the [priority](overload.md#priorities) of a request, a number from 0 to 7.
        /// Requests without the field, or with another value, have the priority of the client or the rule. Set
        /// a name only if you trust the clients, or if your proxy in front sets the field.
        priority_header: Option<String> [Text(FIELD)] = None; r#""X-Priority""#,
        /// Maximum [retries](routing.md#retries), each at another member (see `retry_same_member`), of a request which you
        /// can repeat safely: none of the request was sent, or the request is idempotent (RFC 9110, section 9.2.2) and
        /// the member closed the connection, sent an invalid response or did not answer.
        retries: u32 [Number(0.0, 10.0, "retries")] = 2; "1",
        /// Maximum share of retries, relative to requests, so that retries cannot overload your slow members.
        /// 0.2 is 20 %.
        retry_budget: f32 [Number(0.0, 1.0, "")] = 0.2; "0.1",
        /// Statuses of members after which a request is sent to another member, if the request may be repeated.
        /// Retries stay within `retries` and the budget for retries. List statuses with which your members
        /// report failures that another member may not have.
        retry_statuses: Vec<Status> = Vec::new(); "[502, 503]",
        /// Methods whose requests may be [repeated](routing.md#retries) although the methods are not idempotent:
        /// for example `POST`, if your members begin no work before the answer. A request is repeated after a
        /// status in `retry_statuses`, and after the end of a connection before the first byte of a response, but
        /// not after a time limit. The balancer keeps bodies of these requests, up to `retry_max_body`.
        retry_methods: Vec<String> [Text(METHOD)] = Vec::new(); r#"["POST"]"#,
        /// Maximum size of a body that is kept for a retry, with the framing of chunks, for the methods in
        /// `retry_methods`. The kept bytes count as [memory](cli.md#memory) of large buffers. A request with a
        /// larger body, or without memory for the body, is not repeated once a part of the body has been sent.
        /// Other idempotent requests have bodies of at most 8 KiB kept.
        retry_max_body: usize [Bytes(0, 64 * 1024 * 1024)] = 1024 * 1024; r#""256KiB""#,
        /// Lets retries go to members which have failed before, if no other is left: a request is repeated at the only
        /// member of a group, too. Set the key if failures of your members are short, together with `retry_backoff`.
        retry_same_member: bool = false; "true",
        /// Pause before a retry; the balancer adds up to half of the pause. While waiting the request has no place at a
        /// member.
        retry_backoff: Duration [Time(secs(0), secs(60))] = secs(0); r#""100ms""#,
        /// Ends a request if the client closes the connection (FIN): the balancer closes the connection to the
        /// member, or resets the stream of HTTP/2, so the member can stop working. By default only a reset by the
        /// client ends a request at a member. Set the key only if no client closes the sending side and still waits
        /// for the response, as `nc -N` and some scripts do. A request in the queue ends with a FIN in any case.
        abort_on_close: bool = false; "true",
        /// Requests to a [second member](routing.md#hedging) when the first takes long: a table, see below.
        hedge: Option<Hedge> = None; r#"{ after = "50ms" }"#,
        /// Second group which gets [copies](routing.md#mirroring) of the requests: a table, see below, or a
        /// list of up to 8 tables for several groups.
        mirror: Option<Mirrors> = None; r#"{ group = "canary", percent = 10 }"#,
        /// Groups by the [name of the model](inference.md#models-by-name) in the JSON body of a request: a name, or the
        /// beginning of a name with `*` behind it, and a group. A whole name comes before beginnings, and a longer
        /// beginning before a shorter one. Write a list of groups to use the next group if no member of a group works,
        /// or if a group does not serve a request. Requests without the name of a model, or with another name, go to
        /// the group of the route or rule. Use the table for engines of language models: the balancer reads the bodies
        /// of requests before a member is chosen.
        models: Models = Models::default(); r#"{ "llama-*" = "big", "gpt-4o" = ["small", "big"] }"#,
        /// [Names of models for clients](inference.md#aliases), each with the name of the model at your engines. The
        /// balancer writes the engines' name into the JSON body of a request, and then chooses the group in `models`.
        /// A name with `*` at the end is the beginning of names. A whole name comes before beginnings, and a longer
        /// beginning before a shorter one.
        model_aliases: ModelAliases = ModelAliases::default(); r#"{ "gpt-4o-mini" = "Qwen/Qwen2.5-7B-Instruct", "gpt-4o*" = "llama-70b" }"#,
        /// Maximum number of idle connections to a member kept by each worker for later requests.
        pool_idle_connections: usize [Number(0.0, 65_536.0, "connections")] = 512; "16",
        /// Time for which idle connections to members are kept. Set a shorter time than the keep-alive timeout
        /// of your members.
        pool_idle_timeout: Duration [Time(millis(1), DAY)] = secs(30); r#""4s""#,
    }
}

impl AsTable for HttpOptions {
    const ALLOWED: &'static str = "a table of HTTP options";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(HTTP, self, report);
    }
}

/// Host that clients have to connect for.
const SEPARATE: Texts = (
    r#"a host name, "*." and a host name for all names right below it, "**." and a host name for all names below it, or "*" for all other hosts"#,
    |text| text == UNNAMED || (DEEP_NAMES.1)(text),
);

/// The name of a field.
const FIELD: Texts = ("the name of a header field", key::is_field_name);

/// The name of a trailer.
const TRAILER: Texts = (
    "the name of a header field that may be a trailer, with at most 64 characters",
    |text| {
        key::is_field_name(text)
            && text.len() <= fields::MAX_TRAILER_NAME
            && !fields::is_no_trailer(text)
    },
);

/// A token of RFC 9110, section 5.6.2.
const VIA: Texts = (
    "a token of RFC 9110 (letters, digits, - . _ and a few more)",
    |text| {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        (1..=64).contains(&text.len()) && text.bytes().all(is_token)
    },
);
