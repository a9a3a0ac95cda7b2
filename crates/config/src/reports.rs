//! Sources of load reports that back-ends have already, per group: what a file may say
//! of agent checks, ORCA and Prometheus.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use evenkeel_core::load::{LOADS_PER_LOCATION, LoadId};
use toml::de::DeValue;

use super::GroupConfig;
use super::document::{Entry, Item, Report, Span, entries, join, similar};
use super::expression::Expression;
use super::fields::{Blank, Field, Limits, WRONG_TYPE, is_host_name, unknown};
use super::keys::Key;
use super::parse::Table;

/// Agent check: an agent beside each member is asked for a line of words.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentCheck {
    /// Where the agent listens, at the member's address. Never 0.
    pub port: u16,
    /// Time between two questions.
    pub interval: Duration,
    /// Time for connecting, and for the answer.
    pub timeout: Duration,
    /// How long numbers (weight, connections) count after the last answer.
    pub max_age: Duration,
    /// What is sent first.
    pub send: Option<String>,
}

impl AgentCheck {
    /// A check of agents at `port`, with all defaults.
    pub fn new(port: u16) -> Self {
        AgentCheck {
            port,
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            max_age: Duration::from_secs(30),
            send: None,
        }
    }
}

impl Blank for AgentCheck {
    fn blank() -> Self {
        AgentCheck::new(0)
    }
}

/// Load reports of ORCA (Open Request Cost Aggregation), the protocol of gRPC and Envoy.
#[derive(Clone, Debug, PartialEq)]
pub struct Orca {
    /// Whether they are taken from the heads of HTTP responses.
    pub headers: bool,
    /// Whether these fields are kept from clients.
    pub strip: bool,
    /// Which of its fields is which load.
    pub loads: OrcaLoads,
    /// Reports over a stream of gRPC, beside the traffic.
    pub out_of_band: Option<OrcaService>,
}

impl Default for Orca {
    fn default() -> Self {
        Orca {
            headers: true,
            strip: true,
            loads: OrcaLoads::default(),
            out_of_band: None,
        }
    }
}

/// Where `xds.service.orca.v3.OpenRcaService` is asked for a stream of reports.
#[derive(Clone, Debug, PartialEq)]
pub struct OrcaService {
    /// Another port than the member's.
    pub port: Option<u16>,
    /// Time between two reports that is asked for.
    pub interval: Duration,
    /// Time for connecting.
    pub timeout: Duration,
}

impl Default for OrcaService {
    fn default() -> Self {
        OrcaService {
            port: None,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
        }
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

/// Metrics in Prometheus' text format, fetched over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct Prometheus {
    /// Where they are.
    pub url: UrlTemplate,
    /// Time between two fetches.
    pub interval: Duration,
    /// Time for a fetch.
    pub timeout: Duration,
    /// Most bytes of an answer.
    pub max_bytes: usize,
    /// What becomes of them. No load is there twice.
    pub loads: Vec<MetricLoad>,
}

/// A load that is worked out from metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricLoad {
    /// The load.
    pub load: LoadId,
    /// How.
    pub expression: Expression,
    /// Not every exporter has the metrics: their absence is no fault.
    pub optional: bool,
}

/// A URL with `{host}`, `{port}` and `{member}` in it. Whatever the member, what it
/// expands to is a URL.
#[derive(Clone, Debug, PartialEq)]
pub struct UrlTemplate(String);

/// Where to send a request, and what to ask for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    /// Host name, or IP address without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query.
    pub path: String,
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

impl Url {
    /// Host and port, as in a `Host` field.
    pub fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match self.port {
            80 => host,
            port => format!("{host}:{port}"),
        }
    }

    fn parse(text: &str) -> Result<Url, &'static str> {
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(match text.starts_with("https://") {
                true => "https is not supported here: use http within a trusted network",
                false => "does not begin with http://",
            });
        };
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let port = match port.map(str::parse::<u16>) {
            None => 80,
            Some(Ok(port)) if port > 0 => port,
            Some(_) => return Err("not a port"),
        };
        let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = match inner {
            Some(inner) if inner.parse::<std::net::Ipv6Addr>().is_ok() => inner,
            None if is_host_name(host) => host,
            _ => return Err("not a host"),
        };
        let visible = path.bytes().all(|byte| byte.is_ascii_graphic());
        if !visible || path.contains(['#', '{', '}']) || !path.starts_with('/') {
            return Err("not a path, or an unknown {name}");
        }
        Ok(Url {
            host: host.into(),
            port,
            path: path.into(),
        })
    }
}

impl UrlTemplate {
    /// Parses a template.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > 2048 {
            return Err("longer than 2048 bytes");
        }
        let template = UrlTemplate(text.into());
        template.fill(IpAddr::from([192, 0, 2, 1]), 8080, "a.example:80/10.0.0.1")?;
        template.fill(IpAddr::from([0; 16]), 8080, "[::]:80")?;
        Ok(template)
    }

    /// The URL for a member: `{host}` is its address, `{port}` its port, `{member}` its
    /// name.
    pub fn expand(&self, ip: IpAddr, port: u16, member: &str) -> Option<Url> {
        self.fill(ip, port, member).ok()
    }

    fn fill(&self, ip: IpAddr, port: u16, member: &str) -> Result<Url, &'static str> {
        let host = match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let text = self.0.replace("{host}", &host);
        let text = text.replace("{port}", &port.to_string());
        Url::parse(&text.replace("{member}", &encoded(member)))
    }
}

/// `text` as a part of a path or query (RFC 3986, section 2.1).
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const TEN_MS: Duration = Duration::from_millis(10);
const HOUR: Duration = secs(3600);

/// Keys of `[group.NAME.agent_check]`.
pub(super) static AGENT_CHECK: &[Key<AgentCheck>] = &[
    Key {
        name: "port",
        field: |check| &mut check.port,
        limits: Limits::Number(1.0, 65_535.0, ""),
        doc: "Port of the agent, at the member's address. **Required.**",
        example: "8765",
    },
    Key {
        name: "interval",
        field: |check| &mut check.interval,
        limits: Limits::Time(TEN_MS, HOUR),
        doc: "Time between two questions to an agent.",
        example: r#""500ms""#,
    },
    Key {
        name: "timeout",
        field: |check| &mut check.timeout,
        limits: Limits::Time(TEN_MS, HOUR),
        doc: "Time for connecting and for the answer. No answer is no error: what the agent \
              said before goes on.",
        example: r#""300ms""#,
    },
    Key {
        name: "max_age",
        field: |check| &mut check.max_age,
        limits: Limits::Time(TEN_MS, secs(86_400)),
        doc: "How long the agent's numbers (`75%`, `maxconn:30`) count after its last answer. \
              Its words (`down`, `drain`, `maint`) stay until it says something else.",
        example: r#""10s""#,
    },
    Key {
        name: "send",
        field: |check| &mut check.send,
        limits: Limits::Text("1 to 255 characters", |text| {
            (1..=255).contains(&text.len())
        }),
        doc: "What the agent is sent before it answers. Most want nothing; write `\\n` for \
              the end of a line.",
        example: r#""state app-1\n""#,
    },
];

/// Keys of `[group.NAME.orca]`.
pub(super) static ORCA: &[Key<Orca>] = &[
    Key {
        name: "headers",
        field: |orca| &mut orca.headers,
        limits: Limits::None,
        doc: "Whether reports are taken from the heads of HTTP responses: the field \
              `endpoint-load-metrics` as text or JSON, or `endpoint-load-metrics-bin`.",
        example: "false",
    },
    Key {
        name: "strip",
        field: |orca| &mut orca.strip,
        limits: Limits::None,
        doc: "Whether clients do not get these fields: how loaded a server is, is not their \
              concern.",
        example: "false",
    },
    Key {
        name: "loads",
        field: |orca| &mut orca.loads,
        limits: Limits::None,
        doc: "Which field of a report is which load. What is not named here is ignored.",
        example: r#"{ application_utilization = "utilization", "named_metrics.queue" = 100 }"#,
    },
    Key {
        name: "out_of_band",
        field: |orca| &mut orca.out_of_band,
        limits: Limits::None,
        doc: "Reports over gRPC, beside the traffic: a table (see there), `true` for one with \
              all defaults, `false` for none.",
        example: "{ port = 50051 }",
    },
];

/// Keys of `[group.NAME.orca.out_of_band]`.
pub(super) static ORCA_SERVICE: &[Key<OrcaService>] = &[
    Key {
        name: "port",
        field: |service| &mut service.port,
        limits: Limits::Number(1.0, 65_535.0, ""),
        doc: "Another port than the member's.",
        example: "50051",
    },
    Key {
        name: "interval",
        field: |service| &mut service.interval,
        limits: Limits::Time(TEN_MS, HOUR),
        doc: "Time between two reports that a member is asked for. It may choose a longer one: \
              servers of gRPC do not go below 30 s unless they are told to, and `load_max_age` \
              must be longer than that, too.",
        example: r#""250ms""#,
    },
    Key {
        name: "timeout",
        field: |service| &mut service.timeout,
        limits: Limits::Time(TEN_MS, HOUR),
        doc: "Time for connecting. A stream that says nothing for three intervals, and at \
              least 100 s, is begun anew.",
        example: r#""1s""#,
    },
];

/// What a `prometheus` table says.
pub(super) struct PrometheusDraft {
    pub url: UrlTemplate,
    pub interval: Duration,
    pub timeout: Duration,
    pub max_bytes: usize,
    pub preset: Option<Preset>,
    pub loads: MetricLoads,
}

/// A set of loads with a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Preset {
    NodeExporter,
}

super::fields::choice_field!(Preset,
    "node_exporter" => Preset::NodeExporter = Preset::NodeExporter);

impl Blank for Preset {
    fn blank() -> Self {
        Preset::NodeExporter
    }
}

/// What the metrics of Prometheus' node exporter say of a machine. Loads that need more
/// than any Linux has are optional.
const NODE_EXPORTER: [(LoadId, &str, bool); 7] = [
    (
        LoadId::CPU,
        r#"1 - avg(rate(node_cpu_seconds_total{mode="idle"}))"#,
        false,
    ),
    (
        LoadId::MEMORY,
        "1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes",
        false,
    ),
    (
        LoadId::RUN_QUEUE,
        r#"node_procs_running / count(node_cpu_seconds_total{mode="idle"})"#,
        false,
    ),
    (
        LoadId::DISK,
        "max(rate(node_disk_io_time_seconds_total))",
        true,
    ),
    (
        LoadId::CPU_PRESSURE,
        "rate(node_pressure_cpu_waiting_seconds_total)",
        true,
    ),
    (
        LoadId::MEMORY_PRESSURE,
        "rate(node_pressure_memory_waiting_seconds_total)",
        true,
    ),
    (
        LoadId::IO_PRESSURE,
        "rate(node_pressure_io_waiting_seconds_total)",
        true,
    ),
];

impl Preset {
    fn loads(self) -> Vec<MetricLoad> {
        let Preset::NodeExporter = self;
        let load = |&(load, text, optional): &(LoadId, &str, bool)| {
            let expression = Expression::parse(text).ok()?;
            Some(MetricLoad {
                load,
                expression,
                optional,
            })
        };
        NODE_EXPORTER.iter().filter_map(load).collect()
    }
}

impl Default for PrometheusDraft {
    fn default() -> Self {
        PrometheusDraft {
            url: UrlTemplate(String::new()),
            interval: secs(5),
            timeout: secs(2),
            max_bytes: 4 << 20,
            preset: None,
            loads: MetricLoads(Vec::new()),
        }
    }
}

/// Keys of `[group.NAME.prometheus]`.
pub(super) static PROMETHEUS: &[Key<PrometheusDraft>] = &[
    Key {
        name: "url",
        field: |draft| &mut draft.url,
        limits: Limits::None,
        doc: "Where the metrics of a member are: `{host}` stands for its address, `{port}` \
              for its port, `{member}` for its name. Members of one location that have the \
              same URL are asked once. **Required.**",
        example: r#""http://{host}:9100/metrics""#,
    },
    Key {
        name: "interval",
        field: |draft| &mut draft.interval,
        limits: Limits::Time(Duration::from_millis(100), HOUR),
        doc: "Time between two fetches. A rate is the mean over this time.",
        example: r#""1s""#,
    },
    Key {
        name: "timeout",
        field: |draft| &mut draft.timeout,
        limits: Limits::Time(TEN_MS, HOUR),
        doc: "Time for a fetch.",
        example: r#""500ms""#,
    },
    Key {
        name: "max_bytes",
        field: |draft| &mut draft.max_bytes,
        limits: Limits::Bytes(1024, 64 << 20),
        doc: "Most bytes of an answer. A larger one is refused as a whole.",
        example: r#""16MiB""#,
    },
    Key {
        name: "preset",
        field: |draft| &mut draft.preset,
        limits: Limits::None,
        doc: "Loads that are worked out as [load-reports.md](load-reports.md#prometheus) \
              says: `cpu`, `memory`, `run_queue`, `disk`, `cpu_pressure`, `memory_pressure` \
              and `io_pressure`. `loads` adds to them, or replaces them one by one.",
        example: r#""node_exporter""#,
    },
    Key {
        name: "loads",
        field: |draft| &mut draft.loads,
        limits: Limits::None,
        doc: "Loads, each with the expression by which it is worked out from the metrics, as \
              in a query of Prometheus: numbers, `+ - * /`, brackets, metrics with labels \
              (`=` and `!=`), `rate(…)` of counters, and `sum`, `avg`, `min`, `max` or \
              `count` over all series that match.",
        example: r#"{ cpu = '1 - avg(rate(node_cpu_seconds_total{mode="idle"}))' }"#,
    },
];

impl Field for AgentCheck {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let Some(mut table) = Table::open(item) else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        table.read(AGENT_CHECK, self, report);
        if self.port == 0 && !table.given("port") {
            let message = "`port` is missing".into();
            report.misplaced(&item.span, &item.path, message, None);
        }
        table.finish(report);
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table".into()
    }
}

/// Tables for which `true` stands for all defaults.
macro_rules! table_or_true {
    ($type:ty, $keys:ident) => {
        impl Field for $type {
            fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
                if matches!(item.value, DeValue::Boolean(true)) {
                    return;
                }
                let Some(mut table) = Table::open(item) else {
                    return report.wrong(item, WRONG_TYPE, self.allowed(limits));
                };
                table.read($keys, self, report);
                table.finish(report);
            }

            fn show(&self, _: &Limits) -> Option<String> {
                None
            }

            fn allowed(&self, _: &Limits) -> String {
                "a table, or true".into()
            }
        }
    };
}
table_or_true!(Orca, ORCA);
table_or_true!(OrcaService, ORCA_SERVICE);

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
            let mut load = LoadId::CPU;
            load.read(&entry.item, &Limits::None, report);
            let others = self.0.iter().map(|(_, load)| *load);
            if check_load(load, others, &entry, report) {
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
fn check_load(
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

/// The loads that the file names itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MetricLoads(Vec<MetricLoad>);

impl Field for MetricLoads {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.0.clear();
        for entry in entries(&item.path, table) {
            let Ok(load) = entry.name.parse::<LoadId>() else {
                let allowed = LoadId::CPU.allowed(&Limits::None);
                let message = "unknown load".into();
                report.problem(&entry.key_span, &entry.item.path, message, Some(allowed));
                continue;
            };
            let DeValue::String(text) = entry.item.value else {
                report.wrong(&entry.item, WRONG_TYPE, "an expression in quotes".into());
                continue;
            };
            let expression = match Expression::parse(text) {
                Ok(expression) => expression,
                Err(error) => {
                    report.wrong(&entry.item, &error.to_string(), EXPRESSION.into());
                    continue;
                }
            };
            let others = self.0.iter().map(|known| known.load);
            if check_load(load, others, &entry, report) {
                self.0.push(MetricLoad {
                    load,
                    expression,
                    optional: false,
                });
            }
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of loads, by name or by number, each with an expression in quotes".into()
    }
}

const EXPRESSION: &str =
    r#"an expression as in '1 - avg(rate(node_cpu_seconds_total{mode="idle"}))'"#;

impl Field for UrlTemplate {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        match UrlTemplate::parse(text) {
            Ok(template) => *self = template,
            Err(message) => report.wrong(item, message, self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a URL that begins with "http://", with or without {host}, {port} and {member} in it"#
            .into()
    }
}

impl Field for Prometheus {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let Some(mut table) = Table::open(item) else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        let mut draft = PrometheusDraft {
            url: self.url.clone(),
            interval: self.interval,
            timeout: self.timeout,
            max_bytes: self.max_bytes,
            ..PrometheusDraft::default()
        };
        table.read(PROMETHEUS, &mut draft, report);
        if draft.url.0.is_empty() && !table.given("url") {
            let message = "`url` is missing".into();
            report.misplaced(&item.span, &item.path, message, None);
        }
        let is_said = table.given("preset") || table.given("loads");
        table.finish(report);
        let mut loads = draft.preset.map(Preset::loads).unwrap_or_default();
        for own in draft.loads.0 {
            loads.retain(|known| known.load != own.load);
            loads.push(own);
        }
        // Where only other things are said, the loads are those of the defaults.
        if !is_said {
            loads = self.loads.clone();
        }
        if loads.is_empty() {
            let message = "names neither a `preset` nor `loads`".into();
            report.misplaced(&item.span, &item.path, message, None);
        } else if loads.len() > LOADS_PER_LOCATION {
            let message = format!("a location keeps at most {LOADS_PER_LOCATION} loads");
            report.problem(&item.span, &item.path, message, None);
        }
        *self = Prometheus {
            url: draft.url,
            interval: draft.interval,
            timeout: draft.timeout,
            max_bytes: draft.max_bytes,
            loads,
        };
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table".into()
    }
}

impl Blank for Prometheus {
    fn blank() -> Self {
        let draft = PrometheusDraft::default();
        Prometheus {
            url: draft.url,
            interval: draft.interval,
            timeout: draft.timeout,
            max_bytes: draft.max_bytes,
            loads: Vec::new(),
        }
    }
}

/// Warns of loads that two sources of a group report: which of them counts then depends
/// on the moment.
pub(super) fn warn_of_twins(group: &GroupConfig, span: &Span, path: &str, report: &mut Report<'_>) {
    let (Some(orca), Some(prometheus)) = (&group.orca, &group.prometheus) else {
        return;
    };
    let mut both = orca.loads.loads();
    let is_twin = |load: &LoadId| prometheus.loads.iter().any(|known| known.load == *load);
    if let Some(load) = both.find(is_twin) {
        let message = format!(
            "load {load} comes from `orca` and from `prometheus`: whichever was reported last \
             counts; take it out of one of them"
        );
        report.warning(span, path, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_made_for_members() {
        let url = |template: &str, ip: &str, port, member: &str| {
            let template = UrlTemplate::parse(template).unwrap();
            let url = template.expand(ip.parse().unwrap(), port, member).unwrap();
            url.to_string()
        };
        assert_eq!(
            url("http://{host}:9100/metrics", "10.0.0.1", 80, "a:80"),
            "http://10.0.0.1:9100/metrics"
        );
        assert_eq!(
            url(
                "http://{host}:{port}/m?of={member}",
                "::1",
                81,
                "a b:80/::1"
            ),
            "http://[::1]:81/m?of=a%20b:80%2F::1"
        );
        assert_eq!(url("http://gate", "::1", 81, "a"), "http://gate/");
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "",
            "metrics",
            "https://{host}/metrics",
            "http://",
            "http://{hots}/",
            "http://{host}:99999/",
            "http://{host}:0/",
            "http://{host}/{name}",
            "http://{host}/a b",
            "http://{host}/\r\nX: y",
            "http://user@{host}/",
            "http://{host}?x",
            "http://[{host}]/",
        ] {
            assert!(UrlTemplate::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_preset_is_whole() {
        assert_eq!(Preset::NodeExporter.loads().len(), NODE_EXPORTER.len());
    }
}
