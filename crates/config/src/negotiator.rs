//! `[negotiator]` and `[cluster.NAME]`: binding clients that then go to their server
//! themselves.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use evenkeel_core::load::LoadId;
use toml::de::DeValue;

use super::document::{Item, Report, entries, similar};
use super::fields::{
    Blank, Field, Limits, WRONG_TYPE, choice_field, is_empty_list, is_host_name, one_or_each, time,
    unknown,
};
use super::keys::{Key, KeyDoc, TableDoc, docs};
use super::parse::{NAMES, Table};
use super::{GroupConfig, MemberConfig};

/// Where clients negotiate, and how much each of them may take up.
#[derive(Clone, Debug, PartialEq)]
pub struct Negotiator {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Most connections at once; further ones wait in the listen queue.
    pub max_connections: usize,
    /// Largest request head in bytes.
    pub max_header_bytes: usize,
    /// From the start of a connection, or the last answer, to the next answer.
    pub idle_timeout: Duration,
}

impl Default for Negotiator {
    fn default() -> Self {
        Negotiator {
            listen: Vec::new(),
            max_connections: 10_000,
            max_header_bytes: 16 * 1024,
            idle_timeout: Duration::from_secs(15),
        }
    }
}

/// A server cluster, as Mohamed-Salem, Chen, Bochmann and Wong call it ("An Experimental
/// Prototype for Scalable Server Selection", 2003): a site whose clients are sent to the
/// members of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The name by which clients ask for it.
    pub name: String,
    /// Name of the group whose members serve it.
    pub group: String,
    /// Values of `Host`, without port, that mean this cluster.
    pub hosts: Vec<String>,
    /// How members are reached that have no URL of their own.
    pub scheme: Scheme,
    /// What a client gets that names no class.
    pub terms: Terms,
    /// The client classes, in the order of the file.
    pub classes: Vec<Class>,
}

impl Cluster {
    /// A cluster with all defaults.
    pub fn new(name: &str, group: &str) -> Self {
        Cluster {
            name: name.into(),
            group: group.into(),
            hosts: Vec::new(),
            scheme: Scheme::Http,
            terms: Terms::default(),
            classes: Vec::new(),
        }
    }
}

/// A class of clients: what the cluster says of all clients, where it says nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The name by which clients claim to be of it.
    pub name: String,
    /// What they get.
    pub terms: Terms,
}

/// What a client gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// How long it may use its server.
    pub quantum: Quantum,
    /// Mean response time that its server must keep, unless it asks for another one.
    pub response_time: Option<Duration>,
    /// Largest utilisation at which a server still takes clients.
    pub max_utilization: Option<f32>,
    /// When it may ask again after a refusal.
    pub retry_after: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            quantum: Quantum::Fixed(Duration::from_secs(30)),
            response_time: None,
            max_utilization: None,
            retry_after: Duration::from_secs(5),
        }
    }
}

/// How long a client may use its server before it must ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantum {
    /// Always the same.
    Fixed(Duration),
    /// By the load of the server: the more, the shorter.
    ByLoad {
        /// For a server that can take no more.
        min: Duration,
        /// For an idle one.
        max: Duration,
    },
}

/// How a member is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain.
    Http,
    /// With TLS, which the member speaks itself.
    Https,
}

impl Scheme {
    /// As in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port that a URL need not say.
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

choice_field!(Scheme,
    "http" => Scheme::Http = Scheme::Http,
    "https" => Scheme::Https = Scheme::Https);

/// `scheme://host[:port]`, and nothing else: where clients are sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    text: String,
    host: String,
    port: u16,
}

/// The text is no origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {ORIGIN}")]
pub struct ParseOriginError;

const ORIGIN: &str = r#"a URL of scheme, host and port alone, as in "https://www-1.example.org" or "http://192.0.2.1:8080""#;

impl Origin {
    /// The origin of what listens on `port` at `host`, a name or an IP address.
    pub fn new(scheme: Scheme, host: &str, port: u16) -> Result<Self, ParseOriginError> {
        let authority = match host.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{host}]:{port}"),
            Err(_) => format!("{host}:{port}"),
        };
        format!("{}://{authority}", scheme.name()).parse()
    }

    /// The text: in lower case, without the port that the scheme implies.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Name or IP address, an IPv6 one without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, said or implied.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Origin {
    type Err = ParseOriginError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The longest host name has 253 characters.
        if text.len() > 300 {
            return Err(ParseOriginError);
        }
        let text = text.to_ascii_lowercase();
        let (scheme, authority) = text.split_once("://").ok_or(ParseOriginError)?;
        let scheme = match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(ParseOriginError),
        };
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(ParseOriginError)?;
                let _: Ipv6Addr = host.parse().map_err(|_| ParseOriginError)?;
                let port = match rest {
                    "" => None,
                    _ => Some(rest.strip_prefix(':').ok_or(ParseOriginError)?),
                };
                (host, port)
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.parse::<Ipv6Addr>().is_err() && !is_host_name(host) {
            return Err(ParseOriginError);
        }
        let implied = scheme.default_port();
        let port = match port {
            None => implied,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
                .parse()
                .ok()
                .filter(|&port| port > 0)
                .ok_or(ParseOriginError)?,
            Some(_) => return Err(ParseOriginError),
        };
        let bracketed = match host.contains(':') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        let text = match port == implied {
            true => format!("{}://{bracketed}", scheme.name()),
            false => format!("{}://{bracketed}:{port}", scheme.name()),
        };
        Ok(Origin {
            text,
            host: host.to_owned(),
            port,
        })
    }
}

impl Field for Origin {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        match text.trim().parse() {
            Ok(origin) => *self = origin,
            Err(ParseOriginError) => report.wrong(item, "not an origin", self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        ORIGIN.into()
    }
}

impl Blank for Origin {
    fn blank() -> Self {
        Origin {
            text: String::new(),
            host: String::new(),
            port: 0,
        }
    }
}

/// The URL under which clients reach `member`.
///
/// A member without a `url` is reached under its name in the file. A name that stands for
/// several addresses names none of them: then `address` says which one is meant.
pub fn origin_of(
    member: &MemberConfig,
    scheme: Scheme,
    address: Option<SocketAddr>,
) -> Option<Origin> {
    if let Some(url) = &member.url {
        return Some(url.clone());
    }
    match address {
        None => Origin::new(scheme, &member.host, member.port).ok(),
        Some(address) => Origin::new(scheme, &address.ip().to_string(), address.port()).ok(),
    }
}

const LONGEST_QUANTUM: Duration = Duration::from_secs(86_400);

/// A quantum: a time, or a table of a shortest and a longest one.
impl Field for Quantum {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let one = |item: &Item<'_>, report: &mut Report<'_>| {
            let before = report.problems();
            let mut time = Duration::ZERO;
            time.read(item, &Limits::Time(Duration::ZERO, LONGEST_QUANTUM), report);
            if time.subsec_nanos() > 0 {
                report.wrong(item, "not a number of whole seconds", self.allowed(limits));
            }
            (report.problems() == before).then_some(time)
        };
        let DeValue::Table(table) = item.value else {
            if let Some(time) = one(item, report) {
                *self = Quantum::Fixed(time);
            }
            return;
        };
        let before = report.problems();
        let (mut min, mut max) = (None, None);
        for entry in entries(&item.path, table) {
            match entry.name {
                "min" => min = one(&entry.item, report),
                "max" => max = one(&entry.item, report),
                _ => return report.wrong(item, "not a quantum", self.allowed(limits)),
            }
        }
        if report.problems() > before {
            return;
        }
        match (min, max) {
            (Some(min), Some(max)) if min <= max => *self = Quantum::ByLoad { min, max },
            (Some(_), Some(_)) => report.wrong(item, "min is above max", self.allowed(limits)),
            _ => report.wrong(item, "not a quantum", self.allowed(limits)),
        }
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        match self {
            Quantum::Fixed(time) => time.show(limits),
            Quantum::ByLoad { min, max } => Some(format!(
                "{{ min = {:?}, max = {:?} }}",
                time(*min),
                time(*max)
            )),
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a time of whole seconds from "0s" to "1d", or two of them, as in { min = "5s", max = "1m" }"#.into()
    }
}

const HOST: &str = r#"a host name or an IP address without port, as in "www.example.org""#;

/// Hosts: one, or a list.
impl Field for Vec<String> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut hosts: Vec<String> = Vec::new();
        let one = |item: &Item<'_>, report: &mut Report<'_>| {
            let DeValue::String(text) = item.value else {
                return report.wrong(item, WRONG_TYPE, HOST.into());
            };
            match host(text.trim()) {
                Some(host) if hosts.contains(&host) => {
                    report.wrong(item, "it comes twice", HOST.into());
                }
                Some(host) => hosts.push(host),
                None => report.wrong(item, "not a host", HOST.into()),
            }
        };
        if is_empty_list(item) {
            return report.wrong(item, "no host", self.allowed(limits));
        }
        one_or_each(item, report, one);
        *self = hosts;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("{HOST}, or a list of such")
    }
}

/// A host as [`Cluster::hosts`] has it: in lower case, without brackets and final dot.
/// `None` if it is none.
pub fn host(text: &str) -> Option<String> {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    if let Ok(ip) = inner.unwrap_or(text).parse::<Ipv6Addr>() {
        return Some(ip.to_string());
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    (!name.is_empty() && is_host_name(name)).then(|| name.to_ascii_lowercase())
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

static NEGOTIATOR: &[Key<Negotiator>] = &[
    Key {
        name: "listen",
        field: |negotiator| &mut negotiator.listen,
        limits: Limits::None,
        doc: "Addresses on which clients negotiate: one, or a list. **Required.** The names \
              of the sites lead here.",
        example: r#""0.0.0.0:80""#,
    },
    Key {
        name: "max_connections",
        field: |negotiator| &mut negotiator.max_connections,
        limits: Limits::Number(1.0, 1_000_000.0, "connections"),
        doc: "Most connections at once. Further ones wait in the listen queue.",
        example: "50000",
    },
    Key {
        name: "max_header_bytes",
        field: |negotiator| &mut negotiator.max_header_bytes,
        // The HTTP library reads no less at once.
        limits: Limits::Bytes(8192, 1024 * 1024),
        doc: "Largest head of a request. A larger one gets 431.",
        example: r#""32KiB""#,
    },
    Key {
        name: "idle_timeout",
        field: |negotiator| &mut negotiator.idle_timeout,
        limits: Limits::Time(Duration::from_millis(10), secs(3600)),
        doc: "Time from the start of a connection, or from an answer, to the next answer: \
              for a client that is idle, and for one that sends its request slowly.",
        example: r#""5s""#,
    },
];

static CLUSTER: &[Key<Cluster>] = &[
    Key {
        name: "group",
        field: |cluster| &mut cluster.group,
        limits: Limits::None,
        doc: "The group whose members serve the cluster. **Required.** Its strategy chooses. \
              Several clusters, and rules, may share it.",
        example: r#""backends""#,
    },
    Key {
        name: "hosts",
        field: |cluster| &mut cluster.hosts,
        limits: Limits::None,
        doc: "The site's names: a request with one of them in `Host`, whatever the port, is \
              answered with a redirect to a member. No two clusters share one. Without any, \
              the cluster is there for programs only.",
        example: r#"["www.example.org", "example.org"]"#,
    },
    Key {
        name: "scheme",
        field: |cluster| &mut cluster.scheme,
        limits: Limits::None,
        doc: "How members are reached that have no `url`.",
        example: r#""https""#,
    },
];

static TERMS: &[Key<Terms>] = &[
    Key {
        name: "quantum",
        field: |terms| &mut terms.quantum,
        limits: Limits::None,
        doc: "How long a client may use its server before it asks again, in whole seconds; \
              `\"0s\"` is for one request. With `min` and `max` it depends on the server's \
              load: `max` for an idle one, `min` for one that is full or under alert, and \
              in between in proportion ([negotiation.md](negotiation.md) has the formula).",
        example: r#"{ min = "5s", max = "1m" }"#,
    },
    Key {
        name: "response_time",
        field: |terms| &mut terms.response_time,
        limits: Limits::Time(Duration::from_micros(1), secs(3600)),
        doc: "Mean response time that a server must have for a client that asks for none \
              itself: reported by its location and fresh, else seen by this process. \
              Without a server that has it, the client is refused with 503.",
        example: r#""200ms""#,
    },
    Key {
        name: "max_utilization",
        field: |terms| &mut terms.max_utilization,
        limits: Limits::Number(0.01, 100.0, ""),
        doc: "Largest utilisation at which a server takes these clients, so that lower \
              classes are refused first. It is the group's `load`, which must be a \
              utilisation, with what was assigned since the report. A server whose \
              utilisation is not known counts as the average of the others.",
        example: "0.7",
    },
    Key {
        name: "retry_after",
        field: |terms| &mut terms.retry_after,
        limits: Limits::Time(secs(1), secs(86_400)),
        doc: "What a refusal says in `Retry-After`, rounded up to whole seconds.",
        example: r#""30s""#,
    },
];

/// What the file says of the negotiator, and of the clusters. `used` gets the groups that
/// serve them.
pub(super) fn read(
    top: &mut Table<'_>,
    groups: &[GroupConfig],
    used: &mut HashSet<String>,
    report: &mut Report<'_>,
) -> (Option<Negotiator>, Vec<Cluster>) {
    let mut negotiator = None;
    if let Some(mut table) = top.table("negotiator", report) {
        let mut found = Negotiator::default();
        table.read(NEGOTIATOR, &mut found, report);
        table.require("listen", report);
        table.finish(report);
        negotiator = Some(found);
    }
    let mut clusters = Vec::new();
    let mut hosts: HashMap<String, String> = HashMap::new();
    for mut table in top.named_tables("cluster", NAMES, report) {
        let cluster = read_cluster(&mut table, groups, report);
        for host in &cluster.hosts {
            if let Some(other) = hosts.insert(host.clone(), cluster.name.clone()) {
                let message = format!("{host} is a host of cluster {other:?} already");
                report.problem(
                    &table.span_of("hosts"),
                    &table.path_of("hosts"),
                    message,
                    None,
                );
            }
        }
        if negotiator.is_none() {
            let message = "nobody can ask for it: there is no [negotiator]".into();
            report.warning(table.name_span(), table.path(), message);
        }
        used.insert(cluster.group.clone());
        clusters.push(cluster);
        table.finish(report);
    }
    (negotiator, clusters)
}

fn read_cluster(table: &mut Table<'_>, groups: &[GroupConfig], report: &mut Report<'_>) -> Cluster {
    let mut cluster = Cluster::new(&table.name(), "");
    table.read(CLUSTER, &mut cluster, report);
    table.read(TERMS, &mut cluster.terms, report);
    table.require("group", report);
    let load = match groups.iter().find(|group| group.name == cluster.group) {
        Some(group) => Some(group.settings.load_id),
        None if table.given("group") => {
            let names = groups.iter().map(|group| group.name.as_str());
            let message = unknown("group", similar(&cluster.group, names));
            report.misplaced(
                &table.span_of("group"),
                &table.path_of("group"),
                message,
                None,
            );
            None
        }
        None => None,
    };
    check_utilization(table, load, report);
    for mut inner in table.named_tables("class", NAMES, report) {
        let mut class = Class {
            name: inner.name(),
            terms: cluster.terms.clone(),
        };
        inner.read(TERMS, &mut class.terms, report);
        check_utilization(&inner, load, report);
        cluster.classes.push(class);
        inner.finish(report);
    }
    cluster
}

fn check_utilization(table: &Table<'_>, load: Option<LoadId>, report: &mut Report<'_>) {
    let Some(load) = load.filter(|load| !load.is_utilization()) else {
        return;
    };
    if table.given("max_utilization") {
        let message = format!("the `load` of the group is {load}, which is no utilisation");
        let (span, path) = (
            table.span_of("max_utilization"),
            table.path_of("max_utilization"),
        );
        report.problem(&span, &path, message, None);
    }
}

/// The tables, for the reference.
pub(super) fn tables() -> Vec<TableDoc> {
    let terms = || docs(TERMS, Terms::default());
    let mut cluster: Vec<KeyDoc> = docs(CLUSTER, Cluster::new("", ""));
    cluster.extend(terms());
    vec![
        TableDoc {
            header: "[negotiator]",
            doc: "Where clients are bound that then go to their server themselves: by a \
                  redirect, or by an answer for programs. See \
                  [negotiation.md](negotiation.md).",
            keys: docs(NEGOTIATOR, Negotiator::default()),
        },
        TableDoc {
            header: "[cluster.NAME]",
            doc: "A server cluster, or site, that clients negotiate for.",
            keys: cluster,
        },
        TableDoc {
            header: "[cluster.NAME.class.CLASS]",
            doc: "A class of clients of the cluster. What it does not say is as the cluster \
                  says.",
            keys: terms(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, parse};

    const GROUP: &str = "[group.pool]\nmembers = [\"192.0.2.1:80\"]\n";

    fn good(text: &str) -> Config {
        let text = format!("{GROUP}{text}");
        parse("test.toml", &text).unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[track_caller]
    fn refused(text: &str, message: &str) {
        let text = format!("{GROUP}{text}");
        let errors = parse("test.toml", &text).unwrap_err().to_string();
        assert!(errors.contains(message), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }

    #[test]
    fn classes_are_the_cluster_where_they_say_nothing_else() {
        let config = good(
            "[negotiator]\nlisten = \"127.0.0.1:8088\"\n\
             [cluster.shop]\ngroup = \"pool\"\nhosts = [\"Shop.Example.\", \"[::1]\"]\n\
             quantum = { min = \"5s\", max = \"1m\" }\nmax_utilization = 0.9\n\
             [cluster.shop.class.guest]\nmax_utilization = 0.5\nquantum = \"10s\"\n\
             [cluster.shop.class.gold]\nresponse_time = \"200ms\"\n",
        );
        assert_eq!(config.warnings, [], "the group is in use");
        let cluster = &config.clusters[0];
        assert_eq!(cluster.hosts, ["shop.example", "::1"]);
        let [guest, gold] = &cluster.classes[..] else {
            panic!("{cluster:?}");
        };
        assert_eq!(guest.terms.quantum, Quantum::Fixed(secs(10)));
        assert_eq!(guest.terms.max_utilization, Some(0.5));
        assert_eq!(gold.terms.quantum, cluster.terms.quantum);
        assert_eq!(gold.terms.max_utilization, Some(0.9));
        assert_eq!(gold.terms.response_time, Some(Duration::from_millis(200)));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let listen = "[negotiator]\nlisten = \"127.0.0.1:8088\"\n";
        refused("[negotiator]\n", "`listen` is missing");
        refused(&format!("{listen}[cluster.a]\n"), "`group` is missing");
        let with = |line: &str| format!("{listen}[cluster.a]\ngroup = \"pool\"\n{line}\n");
        refused(
            &with("[cluster.b]\ngroup = \"pol\""),
            "unknown group, did you mean \"pool\"?",
        );
        refused(&with("quantum = \"1500ms\""), "whole seconds");
        refused(
            &with("quantum = { min = \"9s\", max = \"5s\" }"),
            "min is above max",
        );
        refused(&with("quantum = { min = \"9s\" }"), "not a quantum");
        refused(&with("hosts = [\"a.example:80\"]"), "not a host");
        refused(&with("hosts = [\"a.example\", \"A.example\"]"), "twice");
        refused(
            &with("hosts = \"a\"\n[cluster.b]\ngroup = \"pool\"\nhosts = \"A\""),
            "host of cluster \"a\" already",
        );
        let text = "[group.q]\nload = \"in_flight\"\nmembers = [\"a:1\"]\n";
        refused(
            &format!(
                "{text}{listen}[cluster.a]\ngroup = \"q\"\nmax_utilization = 0.5\n[cluster.b]\ngroup = \"pool\""
            ),
            "in_flight, which is no utilisation",
        );
    }

    #[test]
    fn a_cluster_that_nobody_can_ask_for_is_worth_a_warning() {
        let config = good("[cluster.shop]\ngroup = \"pool\"\n");
        assert!(config.warnings[0].message.contains("no [negotiator]"));
    }

    #[test]
    fn origins_are_scheme_host_and_port() {
        for (text, host, port, shown) in [
            ("http://A.example", "a.example", 80, "http://a.example"),
            (
                "https://a.example:443",
                "a.example",
                443,
                "https://a.example",
            ),
            (
                "http://192.0.2.1:8080",
                "192.0.2.1",
                8080,
                "http://192.0.2.1:8080",
            ),
            (
                "http://[2001:db8::1]:81",
                "2001:db8::1",
                81,
                "http://[2001:db8::1]:81",
            ),
        ] {
            let origin: Origin = text.parse().unwrap();
            assert_eq!((origin.host(), origin.port()), (host, port));
            assert_eq!(origin.as_str(), shown);
        }
        for bad in [
            "",
            "a.example",
            "ftp://a.example",
            "http://",
            "http://a.example/",
            "http://a.example/x",
            "http://user@a.example",
            "http://a.example:",
            "http://a.example:0",
            "http://a.example:+80",
            "http://a.example:99999",
            "http://a b",
            "http://a\r\nSet-Cookie: x",
            "http://[::1",
            "http://[::1]x",
            "http://[1.2.3.4]",
            "javascript://a",
        ] {
            assert!(bad.parse::<Origin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn members_are_reached_as_they_are_named() {
        let origin = |member: &MemberConfig, address: Option<&str>| {
            let address = address.map(|address| address.parse().unwrap());
            origin_of(member, Scheme::Http, address)
                .unwrap()
                .to_string()
        };
        let one = Some("192.0.2.7:8080");
        let mut member = MemberConfig::new("web-1.example", 8080);
        assert_eq!(origin(&member, None), "http://web-1.example:8080");
        assert_eq!(origin(&member, one), "http://192.0.2.7:8080");
        member.url = Some("https://web-1.example".parse().unwrap());
        assert_eq!(origin(&member, one), "https://web-1.example");
    }
}
