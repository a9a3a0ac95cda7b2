//! `[group.NAME.orca]`: load reports of ORCA, in responses and beside them.

use std::time::Duration;

use evenkeel_core::load::{LOADS_PER_LOCATION, LoadId};
use toml::de::DeValue;

use crate::schema::document::{Entry, Item, entries, join};
use crate::schema::field::{Field, Limits, WRONG_TYPE, blank, read_one};
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
        /// as text or JSON, or `endpoint-load-metrics-bin`.
        headers: bool = true; "false",
        /// Whether these fields are removed from responses to clients, so that they do not see the
        /// servers' load.
        strip: bool = true; "false",
        /// Maps fields of a report to loads. Other fields are ignored.
        loads: OrcaLoads = OrcaLoads::default();
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
    }
}

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

/// Which field of an ORCA report is which load. No load is there twice.
#[derive(Clone, Debug, PartialEq)]
pub struct OrcaLoads(Vec<(String, LoadId)>);

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

impl Default for OrcaLoads {
    fn default() -> Self {
        let loads = [
            ("cpu_utilization", LoadId::CPU),
            ("mem_utilization", LoadId::MEMORY),
            ("application_utilization", LoadId::UTILIZATION),
            ("rps_fractional", LoadId::REQUESTS_PER_SECOND),
        ];
        OrcaLoads(loads.map(|(field, load)| (field.to_owned(), load)).into())
    }
}

impl OrcaLoads {
    /// The load that the field called `field` in the table `table` is. `table` is
    /// `utilization.` or `named_metrics.`, or empty for a field of the report itself.
    #[inline]
    pub fn load(&self, table: &str, field: &str) -> Option<LoadId> {
        let is_it = |name: &str| name.strip_prefix(table) == Some(field);
        let found = self.0.iter().find(|(name, _)| is_it(name))?;
        Some(found.1)
    }

    /// The loads.
    pub fn loads(&self) -> impl Iterator<Item = LoadId> {
        self.0.iter().map(|(_, load)| *load)
    }
}

impl Field for OrcaLoads {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.0.clear();
        for entry in entries(&item.path, table) {
            let in_table = ORCA_TABLES.iter().find_map(|t| entry.name.strip_prefix(t));
            let is_known = match in_table {
                Some(name) => (1..=128).contains(&name.len()),
                None => ORCA_NUMBERS.contains(&entry.name),
            };
            if !is_known {
                let message = unknown("field", similar(entry.name, ORCA_NUMBERS.into_iter()));
                let allowed = Some(format!(
                    "{}, or utilization.NAME or named_metrics.NAME in quotes",
                    ORCA_NUMBERS.join(", ")
                ));
                report.problem(&entry.key_span, &entry.item.path, message, allowed);
                continue;
            }
            let Some(load) = read_one(&entry.item, &Limits::Any, report) else {
                continue;
            };
            if check_load(load, self.loads(), &entry, report) {
                self.0.push((entry.name.into(), load));
            }
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        let loads = self.0.iter().map(|(field, load)| {
            let field = join("", field);
            format!("{field} = \"{load}\"")
        });
        Some(format!("{{ {} }}", loads.collect::<Vec<_>>().join(", ")))
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of fields, each with the name or the number of a load".into()
    }
}

/// Whether `load` may be in the list, too.
pub(crate) fn check_load(
    load: LoadId,
    others: impl Iterator<Item = LoadId>,
    entry: &Entry<'_>,
    report: &mut Report<'_>,
) -> bool {
    let others: Vec<LoadId> = others.collect();
    let message = if others.contains(&load) {
        format!("load {load} is there already")
    } else if others.len() >= LOADS_PER_LOCATION {
        format!("a location keeps at most {LOADS_PER_LOCATION} loads")
    } else {
        return true;
    };
    report.problem(&entry.key_span, &entry.item.path, message, None);
    false
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
