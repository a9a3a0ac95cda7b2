//! `[group.NAME.orca]`: load reports of ORCA, in responses and beside them.

use std::time::Duration;

use evenkeel_core::load::LoadId;

use super::loads::NamedLoads;
use super::tls::ClientTls;
use crate::schema::field::{Texts, blank};
use crate::schema::key::{HOUR, docs, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::similar::{similar, unknown};
use crate::schema::table::{AsTable, Table};

section! {
    /// Load reports of ORCA (Open Request Cost Aggregation), the protocol of gRPC and Envoy.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Orca {}
    keys ORCA {
        /// Whether reports are read from HTTP response headers: the field `endpoint-load-metrics`
        /// as text, JSON or Base64 (`BIN`), or `endpoint-load-metrics-bin`. They may be trailers, too.
        headers: bool = true; "false",
        /// Asks members for reports: the value of the field `endpoint-load-metrics-format` in each request. Servers such as
        /// vLLM and Triton report only if they are asked. Without it, the field is the client's.
        request_format: Option<String> [Text(FORMAT)] = None; r#""text""#,
        /// Whether these fields are removed from responses to clients, so that they do not see the
        /// servers' load.
        strip: bool = true; "false",
        /// Maps fields of a report to loads. Other fields are ignored.
        loads: NamedLoads [Names(wrong_field)] = default_loads();
            r#"{ application_utilization = "utilization", "named_metrics.queue" = 100 }"#,
        /// Reports over gRPC, separate from the traffic: a table (see below), `true` for one with
        /// all defaults, `false` for none.
        out_of_band: Option<OrcaService> = None; "{ port = 50051 }",
    }
}

section! {
    /// Where `xds.service.orca.v3.OpenRcaService` is asked for a stream of reports.
    #[derive(Clone, Debug, PartialEq)]
    pub struct OrcaService {}
    keys ORCA_SERVICE {
        /// Port, if not the member's.
        port: Option<u16> [Number(1.0, 65_535.0, "")] = None; "50051",
        /// Requested time between two reports of a member. The member may use a longer one: gRPC
        /// servers use at least 30 s by default, and `load_max_age` must be longer than that, too.
        interval: Duration [Time(millis(10), HOUR)] = secs(1); r#""250ms""#,
        /// Time limit for connecting. A stream without a report for three intervals, and at least
        /// 100 s, is opened again.
        timeout: Duration [Time(millis(10), HOUR)] = secs(2); r#""1s""#,
        /// TLS: `true`, or a table with the keys of `member_tls`. The files are read again when they
        /// change.
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

/// Which loads the fields of a report are, unless the file says it.
fn default_loads() -> NamedLoads {
    NamedLoads::from([
        ("cpu_utilization", LoadId::CPU),
        ("mem_utilization", LoadId::MEMORY),
        ("application_utilization", LoadId::UTILIZATION),
        ("rps_fractional", LoadId::REQUESTS_PER_SECOND),
        ("eps", LoadId::ERRORS_PER_SECOND),
    ])
}

/// What is wrong with the name of a field.
fn wrong_field(name: &str) -> Option<(String, String)> {
    let is_known = match ORCA_TABLES.iter().find_map(|t| name.strip_prefix(t)) {
        Some(name) => (1..=128).contains(&name.len()),
        None => ORCA_NUMBERS.contains(&name),
    };
    let allowed = || {
        let numbers = ORCA_NUMBERS.join(", ");
        format!("{numbers}, or utilization.NAME or named_metrics.NAME in quotes")
    };
    let message = || unknown("field", similar(name, ORCA_NUMBERS.into_iter()));
    (!is_known).then(|| (message(), allowed()))
}

/// What the reference says of the tables.
pub(crate) fn tables() -> [TableDoc; 2] {
    let doc = "ORCA load reports of a group; off unless the table is there, because anything that \
               can set a response header could otherwise influence balancing.";
    let service = "ORCA over gRPC (`xds.service.orca.v3.OpenRcaService`, without TLS); off unless \
                   the table is there.";
    let keys = [docs(ORCA_SERVICE, OrcaService::default())];
    [
        TableDoc::new("[group.NAME.orca]", doc, [docs(ORCA, Orca::default())]),
        TableDoc::new("[group.NAME.orca.out_of_band]", service, keys),
    ]
}
