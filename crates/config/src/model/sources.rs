//! Load sources of a group, all in one list. Keys of a source stand here, too, unless the source needs a
//! language of its own.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::load::LoadId;

pub use super::agent_check::AgentCheck;
pub use super::loads::NamedLoads;
use super::member::MemberConfig;
pub use super::metric_presets::MetricLoad;
pub use super::orca::{Orca, OrcaService};
pub use super::prometheus::{Prometheus, Url, UrlTemplate};
use super::tls::ClientTls;
use super::{agent_check, orca, prometheus};
use crate::schema::field::{Texts, blank};
use crate::schema::key::{HOUR, describe_keys, millis, secs, section};
use crate::schema::networks::Networks;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Load sources of a group. Each source is off unless it is configured, and takes little room then: there may be
    /// thousands of groups. Copies share the settings of sources.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Sources {}
    keys SOURCES {
        /// Agent check, which asks an agent beside each member for weight and state: a table (see below), or
        /// `false` for none. Use the check if your servers already have agents for HAProxy.
        agent_check: Option<Arc<AgentCheck>> = None; "{ port = 4040 }",
        /// ORCA load reports of members: a table (see below), `true` for all defaults, `false` for none.
        orca: Option<Arc<Orca>> = None; "true",
        /// Loads calculated from metrics in Prometheus' text format: a table (see below), or `false` for none.
        prometheus: Option<Arc<Prometheus>> = None; r#"{ url = "http://{host}:8080/metrics", loads = { utilization = "app_busy / app_workers" } }"#,
        /// Loads of the group's locations from gauges which arrive by StatsD: a table (see below), or `false`
        /// for none.
        statsd: Option<Arc<Statsd>> = None; r#"{ listen = "127.0.0.1:8125", loads = { "app.busy" = "utilization" } }"#,
        /// Loads of the group's locations read from cgroups of the local machine: a table (see below), or
        /// `false` for none. Use cgroups if your members run on the balancer's machine.
        cgroup: Option<Arc<Cgroup>> = None; r#"{ path = "/system.slice/{location}.service" }"#,
    }
}

impl Sources {
    /// TLS settings of all sources that ask servers.
    pub(crate) fn tls_mut(&mut self) -> impl Iterator<Item = &mut ClientTls> {
        let streams = self.orca.iter_mut().map(Arc::make_mut);
        let streams = streams.flat_map(|orca| &mut orca.out_of_band);
        let streams = streams.flat_map(|service| &mut service.tls);
        let pages = self.prometheus.iter_mut().map(Arc::make_mut);
        let pages = pages.flat_map(|pages| &mut pages.tls);
        streams.chain(pages)
    }

    /// Loads that are named here, by the key of their source. Those of cgroups are not among them: they take
    /// precedence, and others may stand in for them.
    pub(crate) fn named_loads(&self) -> [(&'static str, Vec<LoadId>); 3] {
        let orca = self.orca.iter().flat_map(|orca| orca.loads.load_ids());
        let pages = self.prometheus.iter().flat_map(|pages| &pages.loads);
        let statsd = self
            .statsd
            .iter()
            .flat_map(|statsd| statsd.loads.load_ids());
        [
            ("orca", orca.collect()),
            ("prometheus", pages.map(|known| known.load).collect()),
            ("statsd", statsd.collect()),
        ]
    }

    /// True if each member of the group is asked for the loads of the source `key` by itself, or says them.
    pub(crate) fn asks_each_member(&self, key: &str) -> bool {
        let pages = self.prometheus.as_ref();
        match key {
            "orca" => self.orca.is_some(),
            "prometheus" => pages.is_some_and(|pages| pages.url.is_of_member()),
            _ => false,
        }
    }

    /// True if members say loads of their own, and no source of the group says loads of hosts.
    pub(super) fn are_of_members(&self) -> bool {
        let of_members = ["orca", "prometheus"].map(|key| self.asks_each_member(key));
        let pages = self.prometheus.is_some() && !of_members[1];
        of_members.contains(&true) && !pages && self.statsd.is_none() && self.cgroup.is_none()
    }

    /// Warns of loads that two sources report: which of them counts then depends on the moment.
    pub(crate) fn warn_of_twins(&self, table: &Table<'_>, report: &mut Report<'_>) {
        let all = self.named_loads();
        for (index, (one, loads)) in all.iter().enumerate() {
            for (other, of_other) in all.iter().skip(index + 1) {
                let Some(load) = loads.iter().find(|load| of_other.contains(load)) else {
                    continue;
                };
                let message = format!(
                    "load {load} comes from `{one}` and from `{other}`: whichever was reported last \
                     counts; take it out of one of them"
                );
                table.report_warning(message, report);
            }
        }
    }
}

/// Hosts of members that have no `location`, with the port of each; `None` for several.
#[derive(Debug, Default)]
pub struct Hosts(HashMap<String, Option<u16>>);

impl Hosts {
    /// Collects the hosts of these members.
    pub fn of_members<'a>(members: impl IntoIterator<Item = &'a MemberConfig>) -> Self {
        let mut hosts = HashMap::new();
        for member in members.into_iter().filter(|member| member.is_at_host()) {
            let port = hosts
                .entry(member.host.clone())
                .or_insert(Some(member.port));
            *port = port.filter(|port| *port == member.port);
        }
        Hosts(hosts)
    }

    /// True if the member has no location of its own, and shares its host with another endpoint.
    pub(super) fn are_shared_by(&self, member: &MemberConfig) -> bool {
        member.is_at_host() && self.0.get(&member.host) == Some(&None)
    }
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> Vec<TableDoc> {
    let mut tables = vec![agent_check::describe_table()];
    tables.extend(orca::describe_tables());
    tables.push(prometheus::describe_table());
    let statsd = "Gauges of StatsD as loads of a group's locations. Off unless you add the table. \
                  See [load-reports.md](load-reports.md#statsd).";
    let keys = [describe_keys(STATSD, Statsd::default())];
    tables.push(TableDoc::new("[group.NAME.statsd]", statsd, keys));
    let cgroup = "Loads of containers and services on the balancer's own machine, read from \
                  cgroups. Off unless you add the table. See \
                  [load-reports.md](load-reports.md#cgroups-of-this-machine).";
    let keys = [describe_keys(CGROUP, Cgroup::default())];
    tables.push(TableDoc::new("[group.NAME.cgroup]", cgroup, keys));
    tables
}

blank!(Statsd, Cgroup);

section! {
    /// Gauges, their senders, and their loads.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Statsd {}
    keys STATSD {
        /// UDP addresses for datagrams of StatsD: one, or a list. You can use an address in several groups.
        /// **Required.**
        listen: Vec<SocketAddr> = Vec::new(); r#""10.0.0.5:8125""#,
        /// Networks from which gauges count. StatsD knows no authentication, so name your own networks if
        /// others can reach the address. By default gauges from everywhere count.
        senders: Option<Networks> = None; r#"["10.0.0.0/8"]"#,
        /// Tag (of DogStatsD) with the name of the location as its value. By default the gauges of an address
        /// count for the location whose members have the address.
        location_tag: Option<String> [Text(NAME)] = None; r#""host""#,
        /// Tag which a gauge must have to count, with the tag's value if you give one.
        tag: Option<String> [Text(TAG)] = None; r#""env:production""#,
        /// Loads by the name of a gauge, each by name or number. Other gauges are ignored. **Required.**
        loads: NamedLoads [Names(wrong_gauge)] = NamedLoads::default(); r#"{ "app.busy" = "utilization", "app.queue" = 100 }"#,
    }
}

/// A part of a line of StatsD that may not end it.
const NAME: Texts = (
    "1 to 200 characters without `:`, `|`, `,` and `#`",
    |text| is_word(text) && !text.contains(':'),
);

const TAG: Texts = ("1 to 200 characters without `|`, `,` and `#`", is_word);

fn is_word(text: &str) -> bool {
    let is_end = |c: char| c.is_control() || matches!(c, '|' | ',' | '#');
    (1..=200).contains(&text.len()) && !text.contains(is_end)
}

impl AsTable for Statsd {
    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(STATSD, self, report);
        if self.listen.is_empty() {
            table.require("listen", report);
        }
        if self.loads.is_empty() {
            table.require("loads", report);
        }
    }
}

/// Error in the name of a gauge.
fn wrong_gauge(name: &str) -> Option<(String, String)> {
    let (allowed, is_name) = NAME;
    (!is_name(name)).then(|| ("not a name of a gauge".into(), allowed.into()))
}

section! {
    /// The cgroups in which members run, on this machine.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Cgroup {}
    keys CGROUP {
        /// Cgroup of a location, as in `/proc/PID/cgroup`, or its folder below `/sys/fs/cgroup`; `{location}`
        /// stands for the name of the location. Set `location` at your members.
        path: Option<String> [Text(PATH)] = None; r#""/system.slice/docker-{location}.scope""#,
        /// Cgroups of single locations, instead of `path`.
        paths: BTreeMap<String, String> [Text(PATH)] = BTreeMap::new(); r#"{ app-1 = "/system.slice/app@1.service" }"#,
        /// Time between two readings. CPU use and pressure are means over this time.
        interval: Duration [Time(millis(10), HOUR)] = secs(1); r#""250ms""#,
    }
}

/// Path of a cgroup.
const PATH: Texts = ("a path that begins with \"/\"", |text| {
    text.starts_with('/') && text.len() <= 4096 && !text.contains(char::is_control)
});

impl Cgroup {
    /// Returns the cgroup of a location, if the file names one. A location whose name could lead elsewhere has
    /// none.
    pub fn of_location(&self, location: &str) -> Option<String> {
        if let Some(path) = self.paths.get(location) {
            return Some(path.clone());
        }
        let path = self.path.as_ref()?;
        let leads_elsewhere = location.contains('/') || location == "." || location == "..";
        let is_template = path.contains(LOCATION);
        (!is_template || !leads_elsewhere).then(|| path.replace(LOCATION, location))
    }
}

const LOCATION: &str = "{location}";

impl AsTable for Cgroup {
    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(CGROUP, self, report);
        let is_said = table.has_key("path") || table.has_key("paths");
        if self.path.is_none() && self.paths.is_empty() && !is_said {
            table.lacks("names neither `path` nor `paths`", None, report);
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::load::LoadId;

    use crate::parse;

    const WEB: &str = "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"10.0.0.1:80\"]\n";

    #[test]
    fn gauges_are_loads() {
        let text = format!(
            "{WEB}[rule.web.statsd]\nlisten = \"127.0.0.1:8125\"\nlocation_tag = \"host\"\n\
             tag = \"env:prod\"\nloads = {{ \"app.busy\" = \"utilization\", queue = 100 }}\n"
        );
        let config = parse("f", &text).unwrap();
        let statsd = config.groups[0].sources.statsd.clone().unwrap();
        assert_eq!(
            statsd.loads.find_load("", "app.busy"),
            Some(LoadId::UTILIZATION)
        );
        assert_eq!(
            statsd
                .loads
                .find_load("", "queue")
                .map(|load| load.to_string())
                .as_deref(),
            Some("100")
        );
        assert_eq!(statsd.loads.find_load("", "other"), None);
        assert_eq!(statsd.location_tag.as_deref(), Some("host"));
    }

    #[test]
    fn loads_of_each_two_sources_are_told() {
        let statsd = "statsd = { listen = \"127.0.0.1:8125\", loads = { a = \"cpu\" } }\n";
        let pages = "prometheus = { url = \"http://a/\", loads = { cpu = \"x\" } }\n";
        let cgroup = "cgroup = { path = \"/a\" }\n";
        for (sources, pairs) in [
            ([statsd, "orca = true\n", ""], &[("orca", "statsd")][..]),
            ([statsd, pages, ""], &[("prometheus", "statsd")]),
            (
                [statsd, pages, "orca = true\n"],
                &[
                    ("orca", "prometheus"),
                    ("orca", "statsd"),
                    ("prometheus", "statsd"),
                ],
            ),
            ([statsd, cgroup, ""], &[]),
        ] {
            let config = parse("f", &format!("{WEB}{}", sources.concat())).unwrap();
            let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
            let twins: Vec<_> = warnings
                .iter()
                .filter(|text| text.contains("comes from"))
                .collect();
            assert_eq!(twins.len(), pairs.len(), "{warnings:?}");
            for ((one, other), text) in pairs.iter().zip(twins) {
                let what = format!("load cpu comes from `{one}` and from `{other}`");
                assert!(text.contains(&what), "{text}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_statsd_is_said() {
        for (keys, message) in [
            ("", "`listen` is missing"),
            ("listen = \"127.0.0.1:1\"", "`loads` is missing"),
            ("loads = { \"a:b\" = \"cpu\" }", "not a name of a gauge"),
            ("loads = { a = \"cpu\", b = 0 }", "is set already"),
            ("location_tag = \"a:b\"", "without `:`"),
            ("listne = 1", "did you mean"),
        ] {
            let text = format!("{WEB}[rule.web.statsd]\n{keys}\n");
            let error = parse("f", &text).unwrap_err().to_string();
            assert!(error.contains(message), "{keys}: {error}");
        }
    }

    #[test]
    fn locations_have_cgroups() {
        let text = format!(
            "{WEB}[rule.web.cgroup]\npath = \"/a/{{location}}.service\"\n\
             paths = {{ \"b/c\" = \"/sys/fs/cgroup/x\" }}\n"
        );
        let config = parse("f", &text).unwrap();
        let cgroup = config.groups[0].sources.cgroup.clone().unwrap();
        assert_eq!(cgroup.of_location("web").as_deref(), Some("/a/web.service"));
        assert_eq!(
            cgroup.of_location("b/c").as_deref(),
            Some("/sys/fs/cgroup/x")
        );
        assert_eq!(cgroup.of_location("../b"), None);
        assert_eq!(cgroup.of_location(".."), None);
    }

    #[test]
    fn what_is_wrong_with_cgroups_is_said() {
        for (keys, message) in [
            ("", "names neither `path` nor `paths`"),
            ("path = \"a\"", "a path that begins with"),
            ("paths = { a = 3 }", "a path that begins with"),
            ("path = \"/a\"\ninterval = \"1ms\"", "a time from"),
            ("path = \"/a\"\nintervall = \"1s\"", "did you mean"),
        ] {
            let text = format!("{WEB}[rule.web.cgroup]\n{keys}\n");
            let error = parse("f", &text).unwrap_err().to_string();
            assert!(error.contains(message), "{keys}: {error}");
        }
    }
}
