//! `[group.NAME.monitor]` and `[location.NAME.monitor]`: whose kernels are asked for their
//! load, and how.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::load::LoadId;
use toml::de::DeValue;

use super::GroupConfig;
use super::document::{Item, Report, Span, join, quote};
use super::fields::{Blank, Field, Limits, WRONG_TYPE};
use super::keys::{Key, MILLISECOND, TableDoc, docs, secs};
use super::parse::Table;

/// Most targets of a responder.
const TARGETS: f64 = 64.0;

/// How the load of a location is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Monitor {
    /// In which way.
    pub kind: MonitorKind,
    /// Where, if not at the address of a member.
    pub address: Option<MonitorAddress>,
    /// The port there.
    pub port: u16,
    /// File of shared memory; `None` unless the kind is [`MonitorKind::Ulm`].
    pub path: Option<PathBuf>,
    /// File with the key that back-ends know, too.
    pub key_file: Option<PathBuf>,
    /// Who is to answer, as a back-end calls itself.
    pub host: MonitorHost,
    /// Whose load: 0 is the machine, others are what the responder has them for.
    pub target: u16,
    /// Time between two readings.
    pub interval: Duration,
    /// Time without news after which the loads are unknown; `None` is three intervals,
    /// within limits.
    pub timeout: Option<Duration>,
    /// Whether listen backlogs are read, too.
    pub listen_backlogs: bool,
}

/// In which way a load is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorKind {
    /// The kernel is asked by a datagram, and answers itself.
    Kernel,
    /// Its page is read over RDMA; so is that of a helper.
    Rdma,
    /// The page of a helper on this machine is read in shared memory.
    Ulm,
}

impl MonitorKind {
    /// The name in files and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            MonitorKind::Kernel => "kernel",
            MonitorKind::Rdma => "rdma",
            MonitorKind::Ulm => "ulm",
        }
    }
}

/// What a query says of who is to answer it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MonitorHost {
    /// The back-end that has the address which is asked.
    #[default]
    Address,
    /// The one that goes by this name.
    Named(String),
    /// Any that has the key.
    Any,
}

/// An IP address, with a port of its own or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorAddress {
    /// Address.
    pub ip: IpAddr,
    /// Port.
    pub port: Option<u16>,
}

/// A location that the file says something of.
#[derive(Clone, Debug, PartialEq)]
pub struct LocationConfig {
    /// Its name.
    pub name: String,
    /// How its load is read; `None` is not at all, whatever its groups say.
    pub monitor: Option<Monitor>,
}

impl Default for Monitor {
    fn default() -> Self {
        Monitor {
            kind: MonitorKind::Kernel,
            address: None,
            port: 9970,
            path: None,
            key_file: None,
            host: MonitorHost::Address,
            target: 0,
            interval: Duration::from_millis(50),
            timeout: None,
            listen_backlogs: true,
        }
    }
}

impl Blank for Monitor {
    fn blank() -> Self {
        Monitor::default()
    }
}

/// Loads that a record gives.
const LOADS: [LoadId; 10] = [
    LoadId::CPU,
    LoadId::RUN_QUEUE,
    LoadId::PENDING_WORK,
    LoadId::MEMORY,
    LoadId::CPU_PRESSURE,
    LoadId::MEMORY_PRESSURE,
    LoadId::IO_PRESSURE,
    LoadId::ACCEPT_QUEUE,
    LoadId::COMPOSITE,
    LoadId::ROUND_TRIP,
];

impl Monitor {
    /// Shortest and longest time without news that [`Monitor::timeout`] has by default.
    const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(100), secs(3));

    /// The loads that it reports.
    pub const fn loads() -> [LoadId; 10] {
        LOADS
    }

    /// Time without news after which the loads are unknown.
    pub fn timeout(&self) -> Duration {
        let (least, most) = Monitor::TIMEOUTS;
        let default = self.interval.saturating_mul(3).clamp(least, most);
        self.timeout.unwrap_or(default)
    }

    /// Where a datagram goes, or a connection, if a member is at `member`.
    pub fn endpoint(&self, member: IpAddr) -> SocketAddr {
        let ip = self.address.map_or(member, |address| address.ip);
        let port = self.address.and_then(|address| address.port);
        SocketAddr::new(ip, port.unwrap_or(self.port))
    }

    fn resolve(&mut self, folder: &Path) {
        for file in [&mut self.key_file, &mut self.path].into_iter().flatten() {
            *file = folder.join(&*file);
        }
    }
}

super::fields::choice_field!(MonitorKind,
    "kernel" => MonitorKind::Kernel = MonitorKind::Kernel,
    "rdma" => MonitorKind::Rdma = MonitorKind::Rdma,
    "ulm" => MonitorKind::Ulm = MonitorKind::Ulm);

static MONITOR: &[Key<Monitor>] = &[
    Key {
        name: "type",
        field: |monitor| &mut monitor.kind,
        limits: Limits::None,
        doc: "`kernel`: a datagram that the kernel of the back-end answers itself (`evenkeel \
              kernel attach`), or its user-level helper (`evenkeel kernel serve --respond`). \
              `rdma`: the page of either is read over RDMA; needs a build with the feature \
              `kernel`. `ulm`: the page of a helper on this machine is read in shared memory \
              (`evenkeel kernel serve --shared`).",
        example: r#""kernel""#,
    },
    Key {
        name: "port",
        field: |monitor| &mut monitor.port,
        limits: Limits::Number(1.0, 65_535.0, ""),
        doc: "Port of the responder or the page, at the address of the member.",
        example: "9971",
    },
    Key {
        name: "address",
        field: |monitor| &mut monitor.address,
        limits: Limits::None,
        doc: "Where to ask if not at the address of the member, as in a network of its own \
              for management; with a port or without.",
        example: r#""10.9.0.7:9970""#,
    },
    Key {
        name: "path",
        field: |monitor| &mut monitor.path,
        limits: Limits::None,
        doc: "The file of shared memory. **Required** for `ulm`; nothing else has it. A \
              relative path starts at the folder of the configuration file.",
        example: r#""/dev/shm/evenkeel-load""#,
    },
    Key {
        name: "key_file",
        field: |monitor| &mut monitor.key_file,
        limits: Limits::None,
        doc: "File with the key that the balancer and the back-ends share: a line \
              `NUMBER:HEX` of 32 hexadecimal digits; of several, the first is used. Nobody \
              but owner and group may read it. It is read again with the configuration; a \
              relative path starts at the folder of that. **Required** for `kernel`.",
        example: r#""/etc/evenkeel/monitor.key""#,
    },
    Key {
        name: "host",
        field: |monitor| &mut monitor.host,
        limits: Limits::None,
        doc: "By which name the back-end goes (`--host` of `evenkeel kernel attach` and `serve`). \
              The query says it and the authentication code covers it, so that what another \
              back-end with the same key answers is not taken for its load. By default the \
              address that is asked, by which back-ends go if they are told no name; give both \
              sides a name, or back-ends the address, where addresses are translated on the way. \
              `false` is any back-end that has the key.",
        example: r#""web-1""#,
    },
    Key {
        name: "target",
        field: |monitor| &mut monitor.target,
        limits: Limits::Number(0.0, TARGETS - 1.0, ""),
        doc: "Whose load is asked for: 0 is the machine, others are the containers that the \
              responder was told of (`evenkeel kernel attach --help`).",
        example: "1",
    },
    Key {
        name: "interval",
        field: |monitor| &mut monitor.interval,
        limits: Limits::Time(MILLISECOND, secs(600)),
        doc: "Time between two readings; each is a little earlier or later, so that they do \
              not fall into step.",
        example: r#""10ms""#,
    },
    Key {
        name: "timeout",
        field: |monitor| &mut monitor.timeout,
        limits: Limits::Time(MILLISECOND, secs(3600)),
        doc: "Time without news, from the first reading that brought none, after which the \
              loads are unknown. Readings that bring none are repeated after a third of it, \
              if the interval is longer. By default three intervals, but at least 100 ms and \
              at most 3 s.",
        example: r#""500ms""#,
    },
    Key {
        name: "listen_backlogs",
        field: |monitor| &mut monitor.listen_backlogs,
        limits: Limits::None,
        doc: "Whether listen backlogs of the ports that the responder was told of are read, \
              too. Without them a datagram has 192 bytes less.",
        example: "false",
    },
];

impl Field for Monitor {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let Some(mut table) = Table::open(item) else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        let before = self.kind;
        table.read(MONITOR, self, report);
        // What is of no use for another way of reading goes with it.
        if self.kind != before && !table.given("path") {
            self.path = None;
        }
        let missing = match self.kind {
            MonitorKind::Kernel if self.key_file.is_none() => Some("key_file"),
            MonitorKind::Ulm if self.path.is_none() => Some("path"),
            _ => None,
        };
        if let Some(key) = missing.filter(|key| !table.given(key)) {
            let message = format!("`{key}` is missing");
            let allowed = format!("with `type = {:?}` it is required", self.kind.name());
            report.misplaced(&item.span, &item.path, message, Some(allowed));
        }
        let foreign: &[&str] = match self.kind {
            MonitorKind::Ulm => &["port", "address", "key_file", "host", "target"],
            MonitorKind::Rdma => &["path", "host"],
            MonitorKind::Kernel => &["path"],
        };
        for key in foreign.iter().filter(|key| table.given(key)) {
            let message = format!("is of no use with `type = {:?}`", self.kind.name());
            report.problem(&table.span_of(key), &table.path_of(key), message, None);
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

impl Field for MonitorAddress {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        let bare = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'));
        let ip = bare.unwrap_or(text).parse::<IpAddr>();
        let found = match (ip, text.parse::<SocketAddr>()) {
            (Ok(ip), _) => Some(MonitorAddress { ip, port: None }),
            (_, Ok(address)) if address.port() > 0 => Some(MonitorAddress {
                ip: address.ip(),
                port: Some(address.port()),
            }),
            _ => None,
        };
        match found.filter(|found| !found.ip.is_unspecified() && !found.ip.is_multicast()) {
            Some(found) => *self = found,
            None => report.wrong(item, "not an address to ask", self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        // Nobody is asked there: it stands for none.
        let port = self
            .port
            .map(|port| SocketAddr::new(self.ip, port).to_string());
        let text = port.unwrap_or_else(|| self.ip.to_string());
        (!self.ip.is_unspecified()).then(|| quote(&text))
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"an IP address, with or without a port, as in "10.9.0.7", "10.9.0.7:9970", "[fd00::7]:9970""#
            .into()
    }
}

impl Field for MonitorHost {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let name = match item.value {
            DeValue::Boolean(false) => {
                *self = MonitorHost::Any;
                return;
            }
            DeValue::String(name) => name,
            _ => return report.wrong(item, WRONG_TYPE, self.allowed(limits)),
        };
        match (1..=255).contains(&name.len()) && !name.contains(char::is_control) {
            true => *self = MonitorHost::Named(name.to_string()),
            false => report.wrong(item, "not a name of a host", self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        match self {
            MonitorHost::Address => None,
            MonitorHost::Named(name) => Some(quote(name)),
            MonitorHost::Any => Some("false".into()),
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        "a name of 1 to 255 characters or an IP address, as the back-end's --host has it, or false"
            .into()
    }
}

impl Blank for MonitorAddress {
    fn blank() -> Self {
        MonitorAddress {
            ip: IpAddr::from([0; 4]),
            port: None,
        }
    }
}

static LOCATION: &[Key<LocationConfig>] = &[Key {
    name: "monitor",
    field: |location| &mut location.monitor,
    limits: Limits::None,
    doc: "How the load of this location is read: a table with the keys of \
          [`[group.NAME.monitor]`](#groupnamemonitor), or `false` for not at all. It counts \
          instead of what the groups with members there say.",
    example: r#"{ type = "ulm", path = "/dev/shm/evenkeel-load" }"#,
}];

/// What a location may be called.
pub(super) const LOCATION_NAMES: (&str, fn(&str) -> bool) = ("1 to 255 characters", |text| {
    (1..=255).contains(&text.len()) && !text.contains(char::is_control)
});

/// A group whose table has been read, with where it stands.
pub(super) struct Placed<'a> {
    pub span: &'a Span,
    pub group: &'a GroupConfig,
}

/// Reads the tables of locations. They start from what `[defaults]` says.
pub(super) fn read_locations(
    top: &mut Table<'_>,
    defaults: &GroupConfig,
    groups: &[Placed<'_>],
    agents_may_join: bool,
    report: &mut Report<'_>,
) -> Vec<LocationConfig> {
    let mut known = HashSet::new();
    for member in groups.iter().flat_map(|placed| &placed.group.members) {
        known.insert(member.location.as_deref().unwrap_or(&member.host));
    }
    // The addresses of a name are locations, too, if it has several.
    let names = groups.iter().flat_map(|placed| &placed.group.members);
    let has_names = { names }.any(|member| member.ip().is_none() && member.location.is_none());
    let mut locations = Vec::new();
    for mut table in top.named_tables("location", LOCATION_NAMES, report) {
        let mut location = LocationConfig {
            name: table.name(),
            monitor: defaults.monitor.clone(),
        };
        table.read(LOCATION, &mut location, report);
        let may_be = has_names && location.name.parse::<IpAddr>().is_ok();
        if !known.contains(&*location.name) && !may_be && !agents_may_join {
            let message = "no member is at this location".into();
            report.warning(table.name_span(), table.path(), message);
        }
        table.finish(report);
        locations.push(location);
    }
    locations
}

/// Reports groups that want the load of one location to be read in different ways, which
/// has no answer, and what of their settings makes little sense.
pub(super) fn check(groups: &[Placed<'_>], own: &[LocationConfig], report: &mut Report<'_>) {
    let own: HashSet<&str> = own.iter().map(|location| &*location.name).collect();
    let mut first: HashMap<&str, &GroupConfig> = HashMap::new();
    for Placed { span, group } in groups {
        let Some(monitor) = &group.monitor else {
            continue;
        };
        let path = join(&join("group", &group.name), "monitor");
        if monitor.interval > group.settings.load_max_age {
            let message = format!(
                "is asked every {:?}, but loads are unknown after `load_max_age`, {:?}: make \
                 one shorter or the other longer",
                monitor.interval, group.settings.load_max_age
            );
            report.warning(span, &path, message);
        }
        let mut told = HashSet::new();
        for member in &group.members {
            let location = member.location.as_deref().unwrap_or(&member.host);
            if own.contains(location) {
                continue;
            }
            let other = *first.entry(location).or_insert(group);
            if other.monitor.as_ref() != Some(monitor) && told.insert(&other.name) {
                let message = format!(
                    "group {:?} has its load at location {location:?} read in another way: make \
                     both the same, or say how in [location.{}.monitor]",
                    other.name,
                    join("", location)
                );
                report.problem(span, &path, message, None);
            }
        }
    }
}

/// Makes relative paths start at `folder`.
pub(super) fn resolve<'a>(monitors: impl Iterator<Item = &'a mut Monitor>, folder: &Path) {
    monitors.for_each(|monitor| monitor.resolve(folder));
}

/// What the reference says of the tables.
pub(super) fn tables() -> [TableDoc; 2] {
    [
        TableDoc {
            header: "[group.NAME.monitor]",
            doc: "Reads the load of the group's locations from their kernels, many times a \
                  second: see [kernel-monitor.md](kernel-monitor.md). Off unless the table is \
                  there. With it the `load` of the group is `composite` unless the file says \
                  something else. Each location is read once, whatever groups share it; groups \
                  that share one must agree, or the location has a table of its own. While a \
                  monitor has news, its loads count and those of the same name from other \
                  sources do not; when it has none, they do.",
            keys: docs(MONITOR, Monitor::default()),
        },
        TableDoc {
            header: "[location.NAME]",
            doc: "What is to be said of one location: the host of its members, unless they \
                  name another. A name with dots stands in quotes, as in \
                  `[location.\"10.0.0.7\".monitor]`.",
            keys: docs(
                LOCATION,
                LocationConfig {
                    name: String::new(),
                    monitor: None,
                },
            ),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{Config, parse};
    use super::*;

    fn config(text: &str) -> Config {
        parse("/etc/evenkeel/evenkeel.toml", text).unwrap()
    }

    fn error(text: &str) -> String {
        parse("f", text).unwrap_err().to_string()
    }

    const WEB: &str = "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"10.0.0.1:80\"]\n";

    #[test]
    fn a_group_with_a_monitor_goes_by_all_that_the_kernel_knows() {
        let text = format!("{WEB}monitor = {{ key_file = \"k\" }}");
        let config = config(&text);
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let group = &config.groups[0];
        let monitor = group.monitor.as_ref().unwrap();
        assert_eq!(monitor.kind, MonitorKind::Kernel);
        assert_eq!(
            monitor.key_file.as_deref(),
            Some(Path::new("/etc/evenkeel/k"))
        );
        assert_eq!(monitor.interval, Duration::from_millis(50));
        assert_eq!(monitor.timeout(), Duration::from_millis(150));
        let at = monitor.endpoint([10, 0, 0, 1].into());
        assert_eq!(at, "10.0.0.1:9970".parse().unwrap());
        assert_eq!(group.settings.load_id, LoadId::COMPOSITE);
    }

    #[test]
    fn what_the_file_says_of_the_load_counts() {
        for text in [
            format!("{WEB}load = \"memory\"\nmonitor = {{ key_file = \"k\" }}"),
            format!("[defaults]\nload = \"memory\"\n{WEB}monitor = {{ key_file = \"k\" }}"),
            format!("[defaults]\nload = \"memory\"\nmonitor = {{ key_file = \"k\" }}\n{WEB}"),
        ] {
            assert_eq!(config(&text).groups[0].settings.load_id, LoadId::MEMORY);
        }
        let default = format!("[defaults]\nmonitor = {{ key_file = \"k\" }}\n{WEB}");
        let group = &config(&default).groups[0];
        assert_eq!(group.settings.load_id, LoadId::COMPOSITE);
        let off = config(&format!("{default}monitor = false"));
        assert_eq!(off.groups[0].monitor, None);
        assert_eq!(off.groups[0].settings.load_id, LoadId::CPU);
    }

    #[test]
    fn a_location_has_its_own_say() {
        let text = format!(
            "[defaults.monitor]\nkey_file = \"/k\"\ninterval = \"10ms\"\n{WEB}\
             [location.\"10.0.0.1\".monitor]\naddress = \"[fd00::7]:99\"\ntarget = 3\n"
        );
        let config = config(&text);
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let location = &config.locations[0];
        assert_eq!(location.name, "10.0.0.1");
        let monitor = location.monitor.as_ref().unwrap();
        assert_eq!(
            monitor.interval,
            Duration::from_millis(10),
            "of the defaults"
        );
        assert_eq!(monitor.timeout(), Duration::from_millis(100));
        let at = monitor.endpoint([10, 0, 0, 1].into());
        assert_eq!(at, "[fd00::7]:99".parse().unwrap());
        assert_eq!(monitor.target, 3);
        let off = self::config(&format!("{WEB}[location.\"10.0.0.1\"]\nmonitor = false"));
        assert_eq!(off.locations[0].monitor, None);
    }

    #[test]
    fn everything_that_is_wrong_is_said() {
        let text = format!(
            "{WEB}[rule.web.monitor]\ntype = \"kernel\"\nport = 0\npath = \"/x\"\ntarget = 64\n\
             interval = \"900us\"\naddress = \"db.example\"\nkey_flie = \"k\"\n"
        );
        let error = error(&text);
        for part in [
            "rule.web.monitor: `key_file` is missing",
            "rule.web.monitor.port",
            "rule.web.monitor.path: is of no use with `type = \"kernel\"`",
            "target",
            "a whole number from 0 to 63",
            "a time from \"1ms\" to \"10m\"",
            "not an address to ask",
            "did you mean \"key_file\"?",
        ] {
            assert!(error.contains(part), "{part} is not in\n{error}");
        }
    }

    #[test]
    fn each_way_needs_what_it_needs() {
        let ulm = |keys: &str| format!("{WEB}[rule.web.monitor]\ntype = \"ulm\"\n{keys}");
        assert!(error(&ulm("")).contains("`path` is missing"));
        let foreign = error(&ulm(
            "path = \"/x\"\nport = 1\ntarget = 0\nkey_file = \"k\"",
        ));
        assert_eq!(foreign.matches("is of no use").count(), 3, "{foreign}");
        let monitor = config(&ulm("path = \"shm\"")).groups[0].monitor.clone();
        let path = monitor.unwrap().path.unwrap();
        assert_eq!(path, Path::new("/etc/evenkeel/shm"));
        let rdma = config(&format!("{WEB}monitor = {{ type = \"rdma\" }}"));
        let kind = rdma.groups[0].monitor.as_ref().unwrap().kind;
        assert_eq!(kind, MonitorKind::Rdma);
    }

    #[test]
    fn s21_who_is_to_answer_is_said_or_left_to_the_address() {
        let host = |keys: &str| {
            let text = format!("{WEB}monitor = {{ key_file = \"k\"{keys} }}");
            config(&text).groups[0].monitor.clone().unwrap().host
        };
        assert_eq!(host(""), MonitorHost::Address);
        assert_eq!(
            host(", host = \"web-1\""),
            MonitorHost::Named("web-1".into())
        );
        assert_eq!(host(", host = false"), MonitorHost::Any);
        for bad in ["\"\"", "true", "3", "\"a\\nb\""] {
            let text = format!("{WEB}monitor = {{ key_file = \"k\", host = {bad} }}");
            let error = error(&text);
            assert!(error.contains("monitor.host"), "{bad}: {error}");
        }
        let rdma = error(&format!(
            "{WEB}monitor = {{ type = \"rdma\", host = \"a\" }}"
        ));
        assert!(rdma.contains("host: is of no use"), "{rdma}");
    }

    #[test]
    fn groups_that_share_a_location_agree() {
        let groups = |a: &str, b: &str| {
            format!(
                "[rule.a]\nlisten = \"127.0.0.1:1\"\nmembers = [\"10.0.0.1:80\", \"10.0.0.2:80\"]\n\
                 monitor = {{ key_file = \"/k\"{a} }}\n\
                 [rule.b]\nlisten = \"127.0.0.1:2\"\nmembers = [\"10.0.0.2:81\", \"10.0.0.1:81\"]\n\
                 monitor = {{ key_file = \"/k\"{b} }}\n"
            )
        };
        assert!(config(&groups("", "")).warnings.is_empty());
        let error = error(&groups("", ", target = 1"));
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.contains("group.b.monitor") && error.contains("group \"a\""),
            "{error}"
        );
        assert!(error.contains("[location.\"10.0.0.2\".monitor]"), "{error}");
        let settled = format!(
            "{}[location.\"10.0.0.1\"]\nmonitor = false\n\
             [location.\"10.0.0.2\".monitor]\nkey_file = \"/k\"\n",
            groups("", ", target = 1")
        );
        assert!(config(&settled).warnings.is_empty());
    }

    #[test]
    fn what_is_probably_not_meant_is_warned_of() {
        let text = format!(
            "{WEB}load_max_age = \"1s\"\nmonitor = {{ key_file = \"k\", interval = \"2s\" }}\n\
             [location.elsewhere]\nmonitor = false\n"
        );
        let warnings = config(&text).warnings;
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings.iter().any(|w| w.contains("load_max_age")));
        assert!(warnings.iter().any(|w| w.contains("no member is at")));
    }
}
