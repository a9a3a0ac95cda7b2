//! `[negotiator]` and `[cluster.NAME]`: assignment of servers to clients that connect to them directly.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use evenkeel_core::load::LoadId;
use toml::de::DeValue;

use super::listeners::Listeners;
use super::member::MemberConfig;
use super::shared_group::SharedGroup;
use super::tls::Tls;
pub use crate::schema::address::{Origin, ParseOriginError, Scheme, normalize_host};
use crate::schema::amount::show_duration;
use crate::schema::document::{Item, entries};
use crate::schema::field::{Field, Limits, Texts, choice_field, read_one};
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::similar::{similar, unknown_message};
use crate::schema::table::{NAMES, Table};

section! {
    /// Addresses and limits of the negotiator.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Negotiator {}
    keys NEGOTIATOR {
        /// Addresses to listen on: one, or a list. Let the names of your sites resolve to these addresses.
        /// **Required.**
        listen: Vec<SocketAddr> = Vec::new(); r#""0.0.0.0:80""#,
        /// Maximum number of connections at once. Further connections wait in the listen queue.
        max_connections: usize [Number(1.0, 1_000_000.0, "connections")] = 10_000; "50000",
        /// Maximum size of a request head. A larger head gets 431.
        // The HTTP library reads no less at once.
        max_header_bytes: usize [Bytes(8192, 1024 * 1024)] = 16 * 1024; r#""32KiB""#,
        /// Time limit from the start of a connection, or from an answer, to the next answer. The limit applies
        /// to idle clients and to clients which send slowly.
        idle_timeout: Duration [Time(millis(10), HOUR)] = secs(15); r#""5s""#,
        /// TLS between clients and the negotiator: a table with the keys of `[rule.NAME.tls]`.
        tls: Option<Tls> = None; r#"{ certificates = "/etc/evenkeel/www.pem" }"#,
    }
}

section! {
    /// Server cluster, as Mohamed-Salem, Chen, Bochmann and Wong call it ("An Experimental Prototype for
    /// Scalable Server Selection", 2003): a site whose clients are sent to the members of a group.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Cluster {
        /// Name by which clients ask for the cluster.
        name: String = String::new(),
        /// Terms of clients that name no class.
        terms: Terms = Terms::default(),
        /// Client classes, in the order of the file.
        classes: Vec<Class> = Vec::new(),
    }
    keys CLUSTER {
        /// Group whose members serve the cluster, chosen by the group's strategy. You may use a group in
        /// several clusters and rules. **Required.**
        group: String = String::new(); r#""backends""#,
        /// Names of the site. A request with one of these names in `Host`, with any port, is answered with a
        /// redirect to a member. You cannot use a name in two clusters. A cluster without names is for programs
        /// only.
        hosts: Vec<String> [Text(HOSTS)] = Vec::new(); r#"["www.example.org", "example.org"]"#,
        /// URL scheme of members without a `url`.
        scheme: Scheme = Scheme::Http; r#""https""#,
    }
}

impl Cluster {
    /// A cluster with all defaults.
    pub fn new(name: &str, group: &str) -> Self {
        let (name, group) = (name.into(), group.into());
        Cluster {
            name,
            group,
            ..Cluster::default()
        }
    }
}

/// Class of clients: the settings of the cluster for all clients, where the class has none.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Name by which clients claim to be of the class.
    pub name: String,
    /// Terms of the class.
    pub terms: Terms,
}

section! {
    /// Terms for a client: quantum and limits.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Terms {}
    keys TERMS {
        /// Time for which a client may use its server before asking again, in whole seconds. Set `"0s"` to
        /// assign a server for one request. With `min` and `max` the time depends on the server's load: `max`
        /// for an idle server, `min` for a server under full load or under alert, and in between in proportion
        /// (see the formula in [negotiation.md](negotiation.md)).
        quantum: Quantum = Quantum::Fixed(secs(30)); r#"{ min = "5s", max = "1m" }"#,
        /// Mean response time required of a server for clients which do not request a time: as reported by the
        /// server's location, if fresh, else as measured by the balancer. If no server meets the requirement,
        /// the client is refused with 503.
        response_time: Option<Duration> [Time(Duration::from_micros(1), HOUR)] = None; r#""200ms""#,
        /// Maximum utilisation at which a server takes these clients. Set a lower limit for your lower classes,
        /// so that they are refused first. The utilisation is the group's `load`, which must be a utilisation,
        /// plus an estimate for clients assigned since the report. A server with an unknown utilisation counts
        /// as the average of the others.
        max_utilization: Option<f32> [Number(0.01, 100.0, "")] = None; "0.7",
        /// Value of `Retry-After` in refusals, rounded up to whole seconds.
        retry_after: Duration [Time(secs(1), DAY)] = secs(5); r#""30s""#,
    }
}

/// Time for which a client may use its server before it must ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantum {
    /// Fixed time.
    Fixed(Duration),
    /// Time by the load of the server: the more load, the shorter.
    ByLoad {
        /// Time for a server that can take no more.
        min: Duration,
        /// Time for an idle server.
        max: Duration,
    },
}

choice_field!(Scheme, "http" => Scheme::Http, "https" => Scheme::Https);

const HOSTS: Texts = (
    r#"a host name or an IP address without port, as in "www.example.org""#,
    |text| normalize_host(text.trim()).is_some(),
);

/// Returns the URL under which clients reach `member`.
///
/// A member without a `url` is reached under its name in the file. A name that stands for several addresses
/// names none of them: then `address` says which one is meant.
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

/// A quantum: a time, or a table of a shortest and a longest one.
impl Field for Quantum {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let one = |item: &Item<'_>, report: &mut Report<'_>| {
            let time: Duration = read_one(item, &Limits::Time(secs(0), DAY), report)?;
            if time.subsec_nanos() > 0 {
                report.wrong(item, "not a number of whole seconds", self.allowed(limits));
            }
            Some(time).filter(|time| time.subsec_nanos() == 0)
        };
        let DeValue::Table(table) = item.value else {
            if let Some(time) = one(item, report) {
                *self = Quantum::Fixed(time);
            }
            return;
        };
        let before = report.problem_count();
        let (mut min, mut max) = (None, None);
        for entry in entries(&item.path, table) {
            match entry.name {
                "min" => min = one(&entry.item, report),
                "max" => max = one(&entry.item, report),
                _ => return report.wrong(item, "not a quantum", self.allowed(limits)),
            }
        }
        if report.problem_count() > before {
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
            Quantum::ByLoad { min, max } => {
                let (min, max) = (show_duration(*min), show_duration(*max));
                Some(format!("{{ min = {min:?}, max = {max:?} }}"))
            }
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a time of whole seconds from "0s" to "1d", or two of them, as in { min = "5s", max = "1m" }"#.into()
    }
}

/// Reads the negotiator and the clusters of the file. `used` gets the groups that serve the clusters.
pub(crate) fn read(
    top: &mut Table<'_>,
    folder: &Path,
    groups: &[SharedGroup],
    used: &mut HashSet<String>,
    listeners: &mut Listeners,
    report: &mut Report<'_>,
) -> (Option<Negotiator>, Vec<Cluster>) {
    let mut negotiator = None;
    if let Some(mut table) = top.read_table("negotiator", report) {
        let mut found = Negotiator::default();
        table.read(NEGOTIATOR, &mut found, report);
        table.require("listen", report);
        if let Some(tls) = &mut found.tls {
            tls.resolve(folder);
        }
        listeners.add_addresses(&found.listen, "the negotiator", (&table, "listen"), report);
        table.report_unread(report);
        negotiator = Some(found);
    }
    let mut clusters = Vec::new();
    let mut hosts: HashMap<String, String> = HashMap::new();
    for mut table in top.named_tables("cluster", NAMES, report) {
        let cluster = read_cluster(&mut table, groups, report);
        for host in &cluster.hosts {
            let message = match hosts.insert(host.clone(), cluster.name.clone()) {
                Some(other) if other == cluster.name => format!("{host} comes twice"),
                Some(other) => format!("{host} is a host of cluster {other:?} already"),
                None => continue,
            };
            table.report_problem("hosts", message, report);
        }
        if negotiator.is_none() {
            table.report_warning(
                "no client can ask for the cluster: there is no [negotiator]",
                report,
            );
        }
        used.insert(cluster.group.clone());
        clusters.push(cluster);
        table.report_unread(report);
    }
    (negotiator, clusters)
}

fn read_cluster(table: &mut Table<'_>, groups: &[SharedGroup], report: &mut Report<'_>) -> Cluster {
    let mut cluster = Cluster::new(&table.name(), "");
    let problems = report.problem_count();
    table.read(CLUSTER, &mut cluster, report);
    if table.has_key("hosts") && cluster.hosts.is_empty() && report.problem_count() == problems {
        table.report_problem("hosts", "no host", report);
    }
    table.read(TERMS, &mut cluster.terms, report);
    table.require("group", report);
    cluster.hosts = { cluster.hosts.iter() }
        .filter_map(|name| normalize_host(name.trim()))
        .collect();
    let group = groups.iter().find(|group| group.name == cluster.group);
    if group.is_none() && table.has_key("group") {
        let names = groups.iter().map(|group| group.name.as_str());
        let message = unknown_message("group", similar(&cluster.group, names));
        table.report_misplaced("group", message, report);
    }
    if let Some(member) = group.and_then(|group| group.unix()) {
        let message = format!(
            "member {} of the group is a Unix socket, to which no client can be sent: name a group of \
             addresses",
            member.name()
        );
        table.report_problem("group", message, report);
    }
    let load = group.map(|group| group.settings.load_id);
    check_utilization(table, load, report);
    for mut inner in table.named_tables("class", NAMES, report) {
        let mut class = Class {
            name: inner.name(),
            terms: cluster.terms.clone(),
        };
        inner.read(TERMS, &mut class.terms, report);
        check_utilization(&inner, load, report);
        cluster.classes.push(class);
        inner.report_unread(report);
    }
    cluster
}

fn check_utilization(table: &Table<'_>, load: Option<LoadId>, report: &mut Report<'_>) {
    let key = "max_utilization";
    if let Some(load) = load.filter(|load| table.has_key(key) && !load.is_utilization()) {
        let message = format!("the `load` of the group is {load}, which is no utilisation");
        table.report_problem(key, message, report);
    }
}

/// The tables, for the reference.
pub(crate) fn describe_tables() -> [TableDoc; 3] {
    let terms = || describe_keys(TERMS, Terms::default());
    let cluster = [describe_keys(CLUSTER, Cluster::default()), terms()];
    let negotiator = "The negotiator, which assigns servers to clients with direct connections: by \
                      a redirect, or by a JSON answer for programs. See \
                      [negotiation.md](negotiation.md).";
    let class = "A class of clients of the cluster. For keys which you leave out, the cluster's \
                 values apply.";
    let site = "A server cluster, or site, for which clients negotiate.";
    let keys = [describe_keys(NEGOTIATOR, Negotiator::default())];
    [
        TableDoc::new("[negotiator]", negotiator, keys),
        TableDoc::new("[cluster.NAME]", site, cluster),
        TableDoc::new("[cluster.NAME.class.CLASS]", class, [terms()]),
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
        refused(
            &with("hosts = [\"a.example:80\"]"),
            "not valid here; found \"a.example:80\"; allowed: a host name",
        );
        refused(&with("hosts = []"), "no host");
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
