//! `[group.NAME.orca]`: load reports of ORCA, in responses and beside them.

use std::time::Duration;

use evenkeel_core::load::LoadId;

use super::loads::NamedLoads;
use super::tls::ClientTls;
use crate::schema::field::{Texts, blank};
use crate::schema::key::{HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::similar::{similar, unknown_message};
use crate::schema::table::{AsTable, Table};

section! {
    /// Load reports of ORCA (Open Request Cost Aggregation), the protocol of gRPC and Envoy.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Orca {}
    keys ORCA {
        /// Reads reports from HTTP response headers: the field `endpoint-load-metrics` as text, JSON or Base64
        /// (`BIN`), or `endpoint-load-metrics-bin`. Reports may be in trailers, too.
        headers: bool = true; "false",
        /// Format of reports to ask members for: the value of the field `endpoint-load-metrics-format` in each
        /// request. Set a format if your servers report only when asked, such as vLLM and Triton. If you leave
        /// the key out, the client's field is passed on.
        request_format: Option<String> [Text(FORMAT)] = None; r#""text""#,
        /// Removes these fields from responses, so that clients do not see your servers' load.
        strip: bool = true; "false",
        /// Loads by the name of a report's field. Name the fields which your servers report; other fields are
        /// ignored.
        loads: NamedLoads [Names(wrong_field)] = default_loads();
            r#"{ application_utilization = "utilization", "named_metrics.queue" = 100 }"#,
        /// Reports over gRPC, separate from the traffic: a table (see below), `true` for all defaults, `false`
        /// for none. Use these reports if your responses are rare or long.
        out_of_band: Option<OrcaService> = None; "{ port = 50051 }",
    }
}

section! {
    /// Stream of reports from `xds.service.orca.v3.OpenRcaService`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct OrcaService {}
    keys ORCA_SERVICE {
        /// Port of the service. Set a port if the service is not at the member's own port.
        port: Option<u16> [Number(1.0, 65_535.0, "")] = None; "50051",
        /// Time between two reports, requested from a member. The member may use a longer time: gRPC servers
        /// use at least 30 s by default. Set `load_max_age` to a longer time than the members use.
        interval: Duration [Time(millis(10), HOUR)] = secs(1); r#""250ms""#,
        /// Time limit for connecting. A stream without a report for three intervals, and at least 100 s, is
        /// opened again.
        timeout: Duration [Time(millis(10), HOUR)] = secs(2); r#""1s""#,
        /// TLS to the service: `true`, or a table with the keys of `member_tls`. The files are read again when
        /// you change them.
        tls: Option<ClientTls> = None; r#"{ ca_file = "/etc/evenkeel/members.pem" }"#,
    }
}

/// A format of reports, as a request names it.
const FORMAT: Texts = ("1 to 16 letters", |text| {
    (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphabetic())
});

blank!(Orca, OrcaService);

impl AsTable for Orca {
    const ALLOWED: &'static str = "a table, or true";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(ORCA, self, report);
    }
}

impl AsTable for OrcaService {
    const ALLOWED: &'static str = "a table, or true";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(ORCA_SERVICE, self, report);
    }
}

/// Fields of a report that are a number.
const ORCA_NUMBERS: [&str; 5] = [
    "cpu_utilization",
    "mem_utilization",
    "application_utilization",
    "rps_fractional",
    "eps",
];

/// Fields of a report that are tables of numbers.
const ORCA_TABLES: [&str; 2] = ["utilization.", "named_metrics."];

/// Default loads of the fields of a report.
fn default_loads() -> NamedLoads {
    NamedLoads::from([
        ("cpu_utilization", LoadId::CPU),
        ("mem_utilization", LoadId::MEMORY),
        ("application_utilization", LoadId::UTILIZATION),
        ("rps_fractional", LoadId::REQUESTS_PER_SECOND),
        ("eps", LoadId::ERRORS_PER_SECOND),
    ])
}

/// Error in the name of a field.
fn wrong_field(name: &str) -> Option<(String, String)> {
    let is_known = match ORCA_TABLES.iter().find_map(|t| name.strip_prefix(t)) {
        Some(name) => (1..=128).contains(&name.len()),
        None => ORCA_NUMBERS.contains(&name),
    };
    let allowed = || {
        let numbers = ORCA_NUMBERS.join(", ");
        format!("{numbers}, or utilization.NAME or named_metrics.NAME in quotes")
    };
    let message = || unknown_message("field", similar(name, ORCA_NUMBERS.into_iter()));
    (!is_known).then(|| (message(), allowed()))
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 2] {
    let doc = "ORCA load reports of a group. Off unless you add the table, because anybody able to \
               set a response header could otherwise influence balancing.";
    let service = "ORCA over gRPC (`xds.service.orca.v3.OpenRcaService`). Off unless you add the \
                   table.";
    let keys = [describe_keys(ORCA_SERVICE, OrcaService::default())];
    [
        TableDoc::new(
            "[group.NAME.orca]",
            doc,
            [describe_keys(ORCA, Orca::default())],
        ),
        TableDoc::new("[group.NAME.orca.out_of_band]", service, keys),
    ]
}
