//! Configuration of `evenkeel agent`: contents of `agent.toml`.
//!
//! As for the balancer's file, everything is valid because it exists, and the keys are declared once, for the
//! parser and the reference in `docs/agent.md`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::member::Weight;
use toml::de::DeValue;

use super::listeners::Listeners;
pub use crate::schema::address::Address;
use crate::schema::document::{Item, quote};
use crate::schema::errors::{Errors, Problem};
use crate::schema::field::{
    Field, Limits, OUT_OF_RANGE, Texts, WRONG_TYPE, choice_field, read_one, read_text,
};
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::source;
use crate::schema::table::{LOCATION_NAMES, NAMES, Table, read_document};

/// Reads and checks the agent's configuration in the file at `path`.
///
/// # Errors
///
/// Everything that is wrong, with its place in the file. A file that is missing,
/// unreadable, too large or not UTF-8 is an error of the same type.
pub fn load_agent_config(path: &Path) -> Result<AgentConfig, Errors> {
    source::load_file(path, parse)
}

/// Checks the agent's configuration in `text`. `file` names it in messages, and is where
/// relative paths start.
///
/// # Errors
///
/// Everything that is wrong, with its place in the text.
pub fn parse(file: &str, text: &str) -> Result<AgentConfig, Errors> {
    let (mut config, warnings) = read_document(file, text, describe_tables, read)?;
    config.warnings = warnings;
    Ok(config)
}

section! {
    /// A whole, valid configuration of an agent.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AgentConfig {
        /// Brokers that get the reports.
        brokers: Vec<BrokerConfig> = Vec::new(),
        /// Host load of locations without settings of their own.
        host: HostSettings = HostSettings::default(),
        /// Locations with settings of their own.
        locations: Vec<(String, HostSettings)> = Vec::new(),
        /// Servers, in the order of the file. Names are unique.
        servers: Vec<ServerConfig> = Vec::new(),
        /// Answers to HAProxy.
        agent_check: AgentCheck = AgentCheck::default(),
        /// Settings that are allowed but probably not meant.
        warnings: Vec<Problem> = Vec::new(),
    }
    keys TOP {
        /// Name of the agent. Give different names to agents which report for one location: of two agents with
        /// the same name the broker accepts the one which registered last. By default the name of the host.
        name: Option<String> [Text(NAMES)] = None; r#""web-1-b""#,
        /// Time between two measurements. If the agent is registered at brokers with their own report
        /// intervals, the shortest of these is used.
        interval: Duration [Time(millis(100), HOUR)] = secs(1); r#""5s""#,
        /// File with learned service times. By default `agent.json` in `$STATE_DIRECTORY`, which systemd sets
        /// for a service with `StateDirectory=`. If you have neither, the times are lost at a restart.
        state_file: Option<PathBuf> = None; r#""/var/lib/evenkeel/agent.json""#,
        /// Folder of the pages of instrumented servers. By default the folder of the ARM library:
        /// `$EVENKEEL_ARM_DIR`, `/run/evenkeel` or `/dev/shm`.
        arm_dir: Option<PathBuf> = None; r#""/run/evenkeel""#,
        /// Users whose pages are read, one or a list, by name or number. Write `@` before the name of a group
        /// to which a page must belong. Pages of others are ignored. By default root and the agent's own user,
        /// and the group of `arm_dir` if the folder has the set-group-id bit and is not writable for everybody.
        /// Set the list if your servers run as other users.
        page_owners: Vec<String> [Text(OWNERS)] = Vec::new(); r#"["root", "www-data", "@evenkeel"]"#,
    }
    keys HOST_OWN {
        /// Location of the agent: of its host load, and of all servers without their own location. By default
        /// the name of the host. Set the name which your balancer uses for the machine.
        location: Option<String> [Text(LOCATION_NAMES)] = None; r#""web-1""#,
    }
}

section! {
    /// Broker for the reports.
    #[derive(Clone, Debug, PartialEq)]
    pub struct BrokerConfig {
        /// Unique name, for logs.
        name: String = String::new(),
    }
    keys BROKER {
        /// Host and UDP port of the broker. **Required.**
        address: Address [HostOptional] = Address::default(); r#""broker.internal:9909""#,
        /// File with the keys shared by broker and agents: a line `ID:HEX` each. The first key signs messages;
        /// a second key is accepted, too. The file is read again with the configuration. **Required.**
        key_file: PathBuf = PathBuf::new(); r#""/etc/evenkeel/broker.key""#,
    }
}

section! {
    /// Measured parts of a host.
    #[derive(Clone, Debug, PartialEq)]
    pub struct HostSettings {}
    keys HOST {
        /// Part of the machine covered by the reported load: the whole machine (`host`), the container or
        /// service of the agent (`own`), a cgroup by its path as in `/proc/PID/cgroup`, or nothing (`off`).
        scope: Scope = Scope::Host; r#""/system.slice/apache2.service""#,
        /// Capacity of the network in each direction, instead of the speed reported by the kernel for each
        /// interface. Set the capacity in virtual machines, whose interfaces do not report a speed.
        network_capacity: Option<f64> = None; r#""10Gbit/s""#,
    }
}

/// Part of the machine whose load is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Load of the whole machine.
    Host,
    /// Load of the agent's own cgroup: its container.
    Own,
    /// Load of a cgroup, by its path.
    Cgroup(String),
    /// No load.
    Off,
}

section! {
    /// Server to watch.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ServerConfig {
        /// Unique name.
        name: String = String::new(),
    }
    keys SERVER {
        /// Address of the server, as in the members of its group. If you leave out the host (`:80`), the broker
        /// uses the address from which the agent's messages come. **Required.**
        address: Address [HostOptional] = Address::default(); r#""10.0.0.1:80""#,
        /// Share of the traffic relative to other members. Has an effect only if your agents may add members to
        /// the group.
        weight: Option<Weight> = None; "2",
        /// Group, or list of groups, with the server as a member. By default the group with the name of the
        /// server.
        groups "group": Vec<String> [Text(NAMES)] = Vec::new(); r#""web""#,
        /// Location of the server, if different from the agent's. Servers at one location share its load. Set a
        /// location of its own if requests of the server should be reported separately.
        location: Option<String> [Text(LOCATION_NAMES)] = None; r#""web-1/shop""#,
        /// ARM application of the server, or a list of applications. If you name one, the agent reports request
        /// figures, and reports that the server is down when no process has the application open.
        applications "application": Vec<String> [Text(APPLICATIONS)] = Vec::new(); r#""www.example.org:80""#,
        /// User of the server's process, or a list of users and groups: only their pages are read for the
        /// server, instead of the pages of all `page_owners` of the agent. Set the user if your servers do not
        /// trust each other.
        page_owners: Vec<String> [Text(OWNERS)] = Vec::new(); r#""www-data""#,
        /// Source of the server's mean service time: `measured` (response time less the time in the queue, if
        /// the server reports the latter), `learned` (from requests served alone), a known time, or `auto`, the
        /// best of the first two.
        service_time: ServiceTime = ServiceTime::Auto; r#""3ms""#,
        /// Number of requests which the server can serve at once at full speed: its workers if your workers
        /// mostly wait for other servers, else its CPUs. By default the CPUs available to the location.
        capacity: Option<f32> [Number(0.01, 1e6, "requests")] = None; "64",
        /// Check of the server's address: the server counts as down when the address accepts no connection. By
        /// default on only if you set no `application`.
        check_port: Option<bool> = None; "true",
        /// State set by you as the operator: `ready`; `drain`, no new clients; `maint`, no clients at all.
        state: Wanted = Wanted::Ready; r#""drain""#,
        /// Program and arguments to run when a load alert for the server begins and when the alert ends, with
        /// `EVENKEEL_ALERT` set to `on` or `off` and `EVENKEEL_SERVER` to the server's name. Use a program if
        /// your server does not read the alert from its page. If the alert changes while the program runs, the
        /// program runs again.
        on_alert: Vec<String> [Text(COMMANDS)] = Vec::new(); r#"["/usr/local/bin/shed", "--quick"]"#,
        /// Addresses where HAProxy's agent-check is answered for this server alone, one or a list.
        agent_check: Vec<SocketAddr> = Vec::new(); r#""0.0.0.0:9911""#,
    }
}

impl ServerConfig {
    /// A server with all defaults: a member of the group that has its name.
    pub fn new(name: &str) -> Self {
        ServerConfig {
            name: name.into(),
            groups: vec![name.into()],
            ..ServerConfig::default()
        }
    }
}

/// Source of a mean service time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceTime {
    /// Best of the available sources.
    Auto,
    /// Response time less the time in the server's queue, which the server must report.
    Measured,
    /// Requests that were served alone.
    Learned,
    /// Known time.
    Given(Duration),
}

/// State of a server as set by its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Ready to serve.
    Ready,
    /// No new clients.
    Drain,
    /// No clients.
    Maint,
}

choice_field!(Wanted,
    "ready" => Wanted::Ready,
    "drain" => Wanted::Drain,
    "maint" => Wanted::Maint);

section! {
    /// Answers to HAProxy's agent-check.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AgentCheck {}
    keys AGENT_CHECK {
        /// Addresses for all servers, one or a list. Let HAProxy name the server: `agent-send "NAME\n"`.
        listen: Vec<SocketAddr> = Vec::new(); r#""0.0.0.0:9910""#,
        /// Loads which determine the weight: the highest known load is used. Name utilisations only.
        loads "load": Vec<LoadId> = vec![LoadId::UTILIZATION, LoadId::CPU]; r#"["utilization", "cpu", "memory"]"#,
        /// Minimum weight. A server with weight 0 would get no request, and could not show that it has
        /// recovered.
        min_weight: u32 [Number(1.0, 100.0, "percent")] = 10; "5",
        /// Time constant with which the weight follows the load. Do not make the time too short: without
        /// smoothing, weights oscillate between servers.
        smoothing: Duration [Time(secs(0), DAY)] = secs(30); r#""1m""#,
        /// Adds `ready`, `drain` or `maint` to each answer, by the server's `state`. Set `false` if you set
        /// these states in HAProxy; otherwise the agent overrides your settings.
        admin_state: bool = true; "false",
    }
}

fn read(mut top: Table<'_>, folder: &Path, report: &mut Report<'_>) -> AgentConfig {
    let mut config = AgentConfig::default();
    top.read(TOP, &mut config, report);
    for path in [&mut config.state_file, &mut config.arm_dir]
        .into_iter()
        .flatten()
    {
        *path = folder.join(&*path);
    }

    for mut table in top.named_tables("broker", NAMES, report) {
        let mut broker = BrokerConfig {
            name: table.name(),
            ..BrokerConfig::default()
        };
        table.read(BROKER, &mut broker, report);
        table.require("address", report);
        table.require("key_file", report);
        if table.has_key("address") && broker.address.host.is_empty() {
            table.report_problem("address", "the host is missing", report);
        }
        broker.key_file = folder.join(broker.key_file);
        config.brokers.push(broker);
        table.report_unread(report);
    }

    if let Some(mut table) = top.read_table("host", report) {
        table.read(HOST_OWN, &mut config, report);
        table.read(HOST, &mut config.host, report);
        table.report_unread(report);
    }
    for mut table in top.named_tables("location", LOCATION_NAMES, report) {
        let mut host = config.host.clone();
        table.read(HOST, &mut host, report);
        config.locations.push((table.name(), host));
        table.report_unread(report);
    }

    let mut listeners = Listeners::default();
    if let Some(mut table) = top.read_table("agent_check", report) {
        table.read(AGENT_CHECK, &mut config.agent_check, report);
        let who = "agent-check for all servers";
        listeners.add_addresses(&config.agent_check.listen, who, (&table, "listen"), report);
        table.report_unread(report);
    }

    for mut table in top.named_tables("server", NAMES, report) {
        let mut server = ServerConfig::new(&table.name());
        table.read(SERVER, &mut server, report);
        table.require("address", report);
        let who = format!("agent-check for server {:?}", server.name);
        listeners.add_addresses(&server.agent_check, &who, (&table, "agent_check"), report);
        for key in ["service_time", "capacity", "page_owners"] {
            if server.applications.is_empty() && table.has_key(key) {
                table.report_misplaced(
                    key,
                    "only a server with an `application` has this key",
                    report,
                );
            }
        }
        config.servers.push(server);
        table.report_unread(report);
    }

    top.report_unread(report);
    config
}

const OWNERS: Texts = ("a user by name or number, or @ and a group", |text| {
    let name = text.strip_prefix('@').unwrap_or(text);
    (1..=255).contains(&name.len()) && !name.contains(char::is_control)
});

/// A name as `arm_init` takes it.
const APPLICATIONS: Texts = (
    "1 to 127 characters, as the server gives it to arm_init",
    |text| (1..=127).contains(&text.len()) && !text.contains(char::is_control),
);

const COMMANDS: Texts = ("1 to 4096 characters without zeros", |text| {
    (1..=4096).contains(&text.len()) && !text.contains('\0')
});

/// All tables of the agent's file.
pub(crate) fn describe_tables() -> Vec<TableDoc> {
    let host = || describe_keys(HOST, HostSettings::default());
    let top = "Keys before the first table.";
    let broker = "A broker for the reports. If you name several brokers, each gets all reports.";
    let own = "Location of the agent, and the host load reported for all locations of the agent.";
    let location = "Host load of one location, by name (write the name in quotes if you use other characters \
                    than letters, digits, `-` and `_`). The load is reported even if no server of the agent \
                    is at the location.";
    let server = "A server beside the agent. You choose `NAME`.";
    let check = "Answers to HAProxy's agent-check.";
    let host_keys = [describe_keys(HOST_OWN, AgentConfig::default()), host()];
    vec![
        TableDoc::new("", top, [describe_keys(TOP, AgentConfig::default())]),
        TableDoc::new(
            "[broker.NAME]",
            broker,
            [describe_keys(BROKER, BrokerConfig::default())],
        ),
        TableDoc::new("[host]", own, host_keys),
        TableDoc::new("[location.NAME]", location, [host()]),
        TableDoc::new(
            "[server.NAME]",
            server,
            [describe_keys(SERVER, ServerConfig::default())],
        ),
        TableDoc::new(
            "[agent_check]",
            check,
            [describe_keys(AGENT_CHECK, AgentCheck::default())],
        ),
    ]
}

impl Field for Scope {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, |text| {
            Ok(match text {
                "host" => Scope::Host,
                "own" => Scope::Own,
                "off" => Scope::Off,
                path if is_cgroup(path) => Scope::Cgroup(path.into()),
                _ => return Err("not a scope"),
            })
        });
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(match self {
            Scope::Host => "host",
            Scope::Own => "own",
            Scope::Off => "off",
            Scope::Cgroup(path) => path,
        }))
    }

    fn allowed(&self, _: &Limits) -> String {
        r#""host", "own", "off", or the path of a cgroup as in "/system.slice/apache2.service""#
            .into()
    }
}

/// True if `path` can be the path of a cgroup below the root of all.
fn is_cgroup(path: &str) -> bool {
    let parts = |path: &str| path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    path.len() <= 4096 && !path.contains('\0') && path.strip_prefix('/').is_some_and(parts)
}

/// Units of a data rate, and how many bits per second they are.
const RATES: [(&str, f64); 3] = [("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)];

/// A data rate.
impl Field for Option<f64> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        let rate = RATES.iter().find_map(|(unit, size)| {
            let number = text.strip_suffix(unit)?.trim_end();
            let plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            let number: f64 = number.parse().ok().filter(|_| plain)?;
            Some(number * size)
        });
        match rate {
            Some(rate) if (1e3..=1e15).contains(&rate) => *self = Some(rate),
            Some(_) => report.wrong(item, OUT_OF_RANGE, self.allowed(limits)),
            None => report.wrong(item, "not a data rate", self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a data rate from "1kbit/s" to "1000000Gbit/s""#.into()
    }
}

impl Field for ServiceTime {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        *self = match &**text {
            "auto" => ServiceTime::Auto,
            "measured" => ServiceTime::Measured,
            "learned" => ServiceTime::Learned,
            _ => match read_one(item, &GIVEN, report) {
                Some(time) => ServiceTime::Given(time),
                None => return,
            },
        };
    }

    fn show(&self, limits: &Limits) -> Option<String> {
        match self {
            ServiceTime::Auto => Some(quote("auto")),
            ServiceTime::Measured => Some(quote("measured")),
            ServiceTime::Learned => Some(quote("learned")),
            ServiceTime::Given(time) => time.show(limits),
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        let time = Duration::ZERO.allowed(&GIVEN);
        format!(r#""auto", "measured", "learned", or {time}"#)
    }
}

/// Range of a service time.
const GIVEN: Limits = Limits::Time(Duration::from_micros(1), HOUR);

/// Value true or false, or the default.
impl Field for Option<bool> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut flag = false;
        let before = report.problem_count();
        flag.read(item, limits, report);
        if report.problem_count() == before {
            *self = Some(flag);
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, limits: &Limits) -> String {
        false.allowed(limits)
    }
}

/// Utilisations: one, or a list.
impl Field for Vec<LoadId> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let Some(items) = item.one_or_each() else {
            return report.wrong(item, "no load", self.allowed(limits));
        };
        self.clear();
        for item in items {
            match read_one(&item, limits, report) {
                Some(load) if LoadId::is_utilization(load) => self.push(load),
                Some(_) => report.wrong(&item, "not a utilisation", UTILISATIONS.into()),
                None => {}
            }
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        let names: Vec<_> = self.iter().map(|load| quote(&load.to_string())).collect();
        Some(format!("[{}]", names.join(", ")))
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("{UTILISATIONS}, or a list")
    }
}

const UTILISATIONS: &str = "cpu, disk, memory, network, utilization, cpu_pressure, \
                            memory_pressure, io_pressure";

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> String {
        parse("agent.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn nothing_is_a_configuration() {
        assert_eq!(parse("agent.toml", "").unwrap(), AgentConfig::default());
    }

    #[test]
    fn everything_is_where_it_belongs() {
        let text = r#"
            state_file = "agent.json"
            [broker.a]
            address = "[::1]:9909"
            key_file = "/etc/key"
            [host]
            location = "web-1"
            scope = "own"
            [location."web-1/shop"]
            scope = "/shop.slice"
            network_capacity = "2.5Gbit/s"
            [server.shop]
            address = ":80"
            group = ["shop", "all"]
            location = "web-1/shop"
            application = "httpd"
            page_owners = ["www-data", "@web"]
            service_time = "3ms"
            capacity = 0.5
            check_port = true
            state = "drain"
            agent_check = "127.0.0.1:9911"
            [agent_check]
            load = "cpu"
        "#;
        let config = parse("/etc/evenkeel/agent.toml", text).unwrap();
        assert_eq!(config.warnings, []);
        let state_file = Path::new("/etc/evenkeel/agent.json");
        assert_eq!(config.state_file.as_deref(), Some(state_file));
        assert_eq!(config.brokers[0].address.to_string(), "[::1]:9909");
        assert_eq!(config.host.scope, Scope::Own);
        let shop = HostSettings {
            scope: Scope::Cgroup("/shop.slice".into()),
            network_capacity: Some(2.5e9),
        };
        assert_eq!(config.locations, [("web-1/shop".into(), shop)]);
        let expected = ServerConfig {
            groups: vec!["shop".into(), "all".into()],
            address: Address {
                host: String::new(),
                port: 80,
            },
            location: Some("web-1/shop".into()),
            applications: vec!["httpd".into()],
            page_owners: vec!["www-data".into(), "@web".into()],
            service_time: ServiceTime::Given(Duration::from_millis(3)),
            capacity: Some(0.5),
            check_port: Some(true),
            state: Wanted::Drain,
            agent_check: vec!["127.0.0.1:9911".parse().unwrap()],
            ..ServerConfig::new("shop")
        };
        assert_eq!(config.servers, [expected]);
        assert_eq!(config.agent_check.loads, [LoadId::CPU]);
    }

    #[test]
    fn all_errors_come_at_once_with_their_places() {
        let text = "interval = \"1\"\n\
                    [broker.a]\n\
                    address = \":1\"\n\
                    [host]\n\
                    scope = \"../x\"\n\
                    network_capacity = \"1Gb\"\n\
                    [server.s]\n\
                    group = [\"a\", 3]\n\
                    capacity = 0\n\
                    service_time = \"quick\"\n\
                    network_capacity = 1\n\
                    [agent_check]\n\
                    load = [\"in_flight\"]\n\
                    min_weight = 0\n";
        let found = errors(text);
        let expected = [
            "agent.toml:1:12: interval: a time needs a unit",
            "agent.toml:3:11: broker.a.address: the host is missing",
            "agent.toml:2:9: broker.a: `key_file` is missing",
            "agent.toml:5:9: host.scope: not a scope",
            "agent.toml:6:20: host.network_capacity: not a data rate",
            "agent.toml:8:15: server.s.group[1]: wrong type",
            "agent.toml:9:12: server.s.capacity: out of range",
            "agent.toml:9:12: server.s.capacity: only a server with an `application`",
            "agent.toml:10:16: server.s.service_time: not a time",
            "agent.toml:10:16: server.s.service_time: only a server with an `application`",
            "agent.toml:11:1: server.s.network_capacity: does not belong here, but in [host]",
            "agent.toml:7:9: server.s: `address` is missing",
            "agent.toml:13:9: agent_check.load[0]: not a utilisation",
            "agent.toml:14:14: agent_check.min_weight: out of range",
        ];
        let lines: Vec<_> = found.lines().collect();
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line}\nnot\n{expected}");
        }
        assert_eq!(lines.len(), expected.len(), "{found}");
    }

    #[test]
    fn two_servers_do_not_listen_at_one_address_for_haproxy() {
        let text = "[server.a]\naddress = \":1\"\nagent_check = \"127.0.0.1:9\"\n\
                    [agent_check]\nlisten = \"127.0.0.1:9\"\n";
        let found = errors(text);
        assert!(found.contains("listens on 127.0.0.1:9 already"), "{found}");
    }
}
