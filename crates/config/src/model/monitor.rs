//! `[group.NAME.monitor]` and `[location.NAME.monitor]`: loads read from the kernels of machines.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::load::LoadId;
use toml::de::DeValue;

use crate::schema::document::{Item, quote};
use crate::schema::field::{Blank, Field, Limits, WRONG_TYPE, blank, choice_field, read_text};
use crate::schema::key::{HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

/// Maximum targets of a responder.
const TARGETS: f64 = 64.0;

section! {
    /// Reading of the load of a location.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Monitor {}
    keys MONITOR {
        /// Way of reading. `kernel`: a UDP query, answered by the kernel of the back-end (`evenkeel kernel
        /// attach`) or by a process (`evenkeel kernel serve --respond`). `rdma`: the load page of either is
        /// read over RDMA; you need a build with the feature `kernel`. `ulm`: the load page of a process on the
        /// local machine is read in shared memory (`evenkeel kernel serve --shared`).
        kind "type": MonitorKind = MonitorKind::Kernel; r#""kernel""#,
        /// Port of the responder or the page, at the address of the member.
        port: u16 [Number(1.0, 65_535.0, "")] = 9970; "9971",
        /// Address to query, with or without a port. Set an address if your responder is not at the member's
        /// address, for instance in a management network.
        address: Option<MonitorAddress> = None; r#""10.9.0.7:9970""#,
        /// File of shared memory. A relative path starts at the folder of the configuration file. **Required**
        /// for `ulm`, and only allowed with `ulm`.
        path: Option<PathBuf> = None; r#""/dev/shm/evenkeel-load""#,
        /// File with the key shared by the balancer and the back-ends: a line `NUMBER:HEX` of 32 hexadecimal
        /// digits. If the file has several lines, the first is used. Let nobody but the file's owner and group
        /// read the file. The file is read again with the configuration; a relative path starts at the
        /// configuration's folder. **Required** for `kernel`.
        key_file: Option<PathBuf> = None; r#""/etc/evenkeel/monitor.key""#,
        /// Name of the back-end (`--host` of `evenkeel kernel attach` and `serve`). The name is part of the
        /// query and of the authentication code, so that an answer of another back-end with the same key is not
        /// accepted. The default is the queried address, which is also the default name of back-ends. If
        /// addresses are translated on the way, set a name on both sides, or the address on the back-end. Set
        /// `false` to accept any back-end with the key.
        host: MonitorHost = MonitorHost::Address; r#""web-1""#,
        /// Target whose load is read: 0 is the machine, other numbers are the containers which you configured
        /// at the responder (`evenkeel kernel attach --help`).
        target: u16 [Number(0.0, TARGETS - 1.0, "")] = 0; "1",
        /// Time between two readings; each time has a small random offset.
        interval: Duration [Time(millis(1), secs(600))] = millis(50); r#""10ms""#,
        /// Time from the first unsuccessful reading after which the loads are unknown. Unsuccessful readings
        /// are repeated after a third of the time, if the interval is longer. By default three intervals, but
        /// at least 100 ms and at most 3 s.
        timeout: Option<Duration> [Time(millis(1), HOUR)] = None; r#""500ms""#,
        /// Lets one balancer of a [fleet](fleet.md#loads-that-one-balancer-reads) read the loads and send them
        /// to the others, which ask the kernels only when the reader is silent. Set `true` if many of your
        /// balancers read the same kernels. The key has no effect without `[fleet]`, and is not for `ulm`.
        shared: bool = false; "true",
        /// Reading of the listen backlogs of the responder's ports, too. With `false` a datagram is 192 bytes
        /// shorter.
        listen_backlogs: bool = true; "false",
    }
}

blank!(Monitor);

/// Way of reading a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorKind {
    /// Query by a datagram, answered by the kernel itself.
    Kernel,
    /// Page of a kernel or of a helper, read over RDMA.
    Rdma,
    /// Page of a helper on this machine, read in shared memory.
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

choice_field!(MonitorKind,
    "kernel" => MonitorKind::Kernel,
    "rdma" => MonitorKind::Rdma,
    "ulm" => MonitorKind::Ulm);

/// Back-end that is to answer, as named in a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MonitorHost {
    /// Back-end that has the queried address.
    #[default]
    Address,
    /// Back-end with this name.
    Named(String),
    /// Any back-end that has the key.
    Any,
}

/// IP address, with its own port or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorAddress {
    /// IP address of the monitor.
    pub ip: IpAddr,
    /// Port, if set.
    pub port: Option<u16>,
}

/// Loads that a record gives, and how long the answer took.
const LOADS: [LoadId; 10] = {
    let [a, b, c, d, e, f, g, h, i] = LoadId::OF_KERNEL;
    [a, b, c, d, e, f, g, h, i, LoadId::ROUND_TRIP]
};

impl Monitor {
    /// Shortest and longest time without news that [`Monitor::timeout`] has by default.
    const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(100), secs(3));

    /// Loads that the monitor reports.
    pub const fn reported_loads() -> [LoadId; 10] {
        LOADS
    }

    /// Time without news after which the loads are unknown.
    pub fn timeout(&self) -> Duration {
        let (least, most) = Monitor::TIMEOUTS;
        let default = self.interval.saturating_mul(3).clamp(least, most);
        self.timeout.unwrap_or(default)
    }

    /// Destination of a datagram, or of a connection, if a member is at `member`.
    pub fn endpoint(&self, member: IpAddr) -> SocketAddr {
        let ip = self.address.map_or(member, |address| address.ip);
        let port = self.address.and_then(|address| address.port);
        SocketAddr::new(ip, port.unwrap_or(self.port))
    }

    /// Makes relative paths start at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        for file in [&mut self.key_file, &mut self.path].into_iter().flatten() {
            *file = folder.join(&*file);
        }
    }
}

impl AsTable for Monitor {
    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        let before = self.kind;
        table.read(MONITOR, self, report);
        // What is of no use for another way of reading goes with it.
        if self.kind != before && !table.has_key("path") {
            self.path = None;
        }
        let missing = match self.kind {
            MonitorKind::Kernel if self.key_file.is_none() => Some("key_file"),
            MonitorKind::Ulm if self.path.is_none() => Some("path"),
            _ => None,
        };
        if let Some(key) = missing.filter(|key| !table.has_key(key)) {
            let message = format!("`{key}` is missing");
            let allowed = format!("with `type = {:?}` it is required", self.kind.name());
            table.lacks(message, Some(allowed), report);
        }
        let foreign: &[&str] = match self.kind {
            MonitorKind::Ulm => &["port", "address", "key_file", "host", "target", "shared"],
            MonitorKind::Rdma => &["path", "host"],
            MonitorKind::Kernel => &["path"],
        };
        for key in foreign.iter().filter(|key| table.has_key(key)) {
            let message = format!("has no effect with `type = {:?}`", self.kind.name());
            table.report_problem(key, message, report);
        }
    }
}

impl Field for MonitorAddress {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            let bare = text
                .strip_prefix('[')
                .and_then(|text| text.strip_suffix(']'));
            let found = match (bare.unwrap_or(text).parse(), text.parse::<SocketAddr>()) {
                (Ok(ip), _) => MonitorAddress { ip, port: None },
                (_, Ok(address)) if address.port() > 0 => MonitorAddress {
                    ip: address.ip(),
                    port: Some(address.port()),
                },
                _ => MonitorAddress::blank(),
            };
            let is_one = !found.ip.is_unspecified() && !found.ip.is_multicast();
            is_one.then_some(found).ok_or("not an address to ask")
        });
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
        if (1..=255).contains(&name.len()) && !name.contains(char::is_control) {
            *self = MonitorHost::Named(name.to_string());
        } else {
            report.wrong(item, "not a name of a host", self.allowed(limits));
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

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Loads of the group's locations read from their kernels, many times a second: see \
               [kernel-monitor.md](kernel-monitor.md). Off unless you add the table. With the table \
               the default `load` of the group is `composite`. Each location is read once for all \
               groups. If your groups share a location, set the same in all of them, or give the \
               location its own table. While the monitor's loads are fresh, loads of the same name \
               from other sources are ignored.";
    TableDoc::new(
        "[group.NAME.monitor]",
        doc,
        [describe_keys(MONITOR, Monitor::default())],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, parse};

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
        assert!(off.locations[0].says_monitor);
        let zone = self::config(&format!("{WEB}[location.\"10.0.0.1\"]\nzone = \"a\""));
        assert!(!zone.locations[0].says_monitor, "as its groups say");
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
            "rule.web.monitor.path: has no effect with `type = \"kernel\"`",
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
        assert_eq!(foreign.matches("has no effect").count(), 3, "{foreign}");
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
        assert!(rdma.contains("host: has no effect"), "{rdma}");
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
