//! `[tracing]`: traces of requests, exported by OTLP.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use evenkeel_core::key::is_field_name;

use super::tls::ClientTls;
use crate::schema::address::Origin;
use crate::schema::field::Texts;
use crate::schema::key::{HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Traces of requests, and their collector.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Tracing {}
    keys TRACING {
        /// Collector of the traces, by OTLP over HTTP (protobuf): `http` or `https`, a host and a port.
        /// **Required.**
        endpoint: Option<Origin> = None; r#""http://127.0.0.1:4318""#,
        /// Path of the collector for traces.
        traces_path: String [Text(PATH)] = "/v1/traces".into(); r#""/otlp/v1/traces""#,
        /// Share of the requests to trace, from 0 to 1. Raise the share if you have few requests. If a client
        /// is [trusted](telemetry.md#who-is-trusted) and sends a `traceparent`, the `traceparent` decides for
        /// the request.
        sample: f64 [Number(0.0, 1.0, "")] = 0.01; "0.1",
        /// Name of the balancer in traces (`service.name`). Set different names if you have several
        /// installations.
        service_name: String [Text(NAME)] = "evenkeel".into(); r#""edge""#,
        /// Further attributes of the balancer in traces: names and texts.
        attributes: BTreeMap<String, String> = BTreeMap::new(); r#"{ "deployment.environment.name" = "production" }"#,
        /// Header fields to send to the collector, for example a login. The values are secret.
        headers: BTreeMap<String, String> [Text(VALUE)] = BTreeMap::new(); r#"{ Authorization = "Bearer a-token" }"#,
        /// TLS to an `https` collector: a table with the keys of `[group.NAME.member_tls]`.
        tls: Option<ClientTls> = None; r#"{ ca_file = "/etc/evenkeel/collector.pem" }"#,
        /// Maximum time for which spans wait for others before they are sent together.
        interval: Duration [Time(millis(10), HOUR)] = secs(5); r#""1s""#,
        /// Time limit for an answer of the collector.
        timeout: Duration [Time(millis(10), HOUR)] = secs(10); r#""3s""#,
    }
}

impl Tracing {
    /// Returns the settings of TLS with the collector, if TLS is used.
    pub fn client_tls(&self) -> Option<ClientTls> {
        let is_https = self.endpoint.as_ref()?.is_secure();
        is_https.then(|| self.tls.clone().unwrap_or_default())
    }
}

const PATH: Texts = ("a path that begins with /", |text| {
    text.starts_with('/') && text.len() <= 1024 && text.bytes().all(|byte| byte.is_ascii_graphic())
});

const NAME: Texts = ("1 to 255 characters", |text| {
    (1..=255).contains(&text.len()) && !text.contains(char::is_control)
});

const VALUE: Texts = ("a text without control characters", |text| {
    text.len() <= 4096 && text.bytes().all(|byte| (b' '..0x7f).contains(&byte))
});

/// Fields that frame the message to the collector.
const FRAMING: [&str; 6] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "upgrade",
];

/// Most attributes and header fields.
const MAX_ENTRIES: usize = 64;

/// Reads `[tracing]`.
pub(crate) fn read(top: &mut Table<'_>, folder: &Path, report: &mut Report<'_>) -> Option<Tracing> {
    let mut table = top.read_table("tracing", report)?;
    let mut tracing = Tracing::default();
    table.read(TRACING, &mut tracing, report);
    table.require("endpoint", report);
    for name in tracing.headers.keys() {
        let is_framing = FRAMING.iter().any(|own| name.eq_ignore_ascii_case(own));
        if !is_field_name(name) || is_framing {
            let message = format!("{name:?} is no name of a header field that can be added here");
            table.report_problem("headers", message, report);
        }
    }
    for (key, count) in [
        ("headers", tracing.headers.len()),
        ("attributes", tracing.attributes.len()),
    ] {
        if count > MAX_ENTRIES {
            table.report_problem(key, format!("has more than {MAX_ENTRIES} entries"), report);
        }
    }
    let is_plain = |origin: &Origin| !origin.is_secure();
    if tracing.tls.is_some() && tracing.endpoint.as_ref().is_some_and(is_plain) {
        let message = "`endpoint` begins with http, so there is no TLS: write https";
        table.report_problem("tls", message, report);
    }
    if let Some(tls) = &mut tracing.tls {
        tls.resolve(folder);
    }
    table.report_unread(report);
    tracing.endpoint.is_some().then_some(tracing)
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "[Traces](telemetry.md#traces) of requests, sent to a collector of OpenTelemetry. Off \
               unless you add the table.";
    TableDoc::new(
        "[tracing]",
        doc,
        [describe_keys(TRACING, Tracing::default())],
    )
}
