//! What `agent.toml` means: the configuration of `evenkeel agent`.
//!
//! As for the balancer's file, everything is valid because it exists, and the keys are
//! declared once, for the parser and the reference in `docs/agent.md`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::member::Weight;
use toml::de::DeValue;

use super::document::{Item, Report, quote};
use super::errors::{Errors, Problem};
use super::fields::{
    ADDRESS, Field, Limits, OUT_OF_RANGE, WRONG_TYPE, choice_field, host_port, is_empty_list,
    one_or_each,
};
use super::keys::{DAY, Key, TableDoc, docs, secs};
use super::parse::{NAMES, Table, document, listens};
use super::{MAX_FILE_SIZE, read_bounded};

/// Reads and checks the agent's configuration in the file at `path`.
///
/// # Errors
///
/// Everything that is wrong, with its place in the file. A file that is missing,
/// unreadable, too large or not UTF-8 is an error of the same type.
pub fn load(path: &Path) -> Result<AgentConfig, Errors> {
    let name = path.display().to_string();
    match read_bounded(path, MAX_FILE_SIZE) {
        Ok(text) => parse(&name, &text),
        Err(reason) => Err(Errors::of_file(name, reason)),
    }
}

/// Checks the agent's configuration in `text`. `file` names it in messages, and is where
/// relative paths start.
///
/// # Errors
///
/// Everything that is wrong, with its place in the text.
pub fn parse(file: &str, text: &str) -> Result<AgentConfig, Errors> {
    let (mut config, warnings) = document(file, text, tables, read)?;
    config.warnings = warnings;
    Ok(config)
}

/// A whole, valid configuration of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentConfig {
    /// What the agent calls itself; `None` is the name of the host.
    pub name: Option<String>,
    /// The location of what has none of its own; `None` is the name of the host.
    pub location: Option<String>,
    /// Time between two measurements, until a broker says another.
    pub interval: Duration,
    /// Where the agent keeps what it has learned; `None` is `agent.json` in the folder
    /// that the service manager names, if it does.
    pub state_file: Option<PathBuf>,
    /// Folder of the pages of the ARM library; `None` is the library's own choice.
    pub arm_dir: Option<PathBuf>,
    /// Users and groups whose pages count; empty is by default.
    pub page_owners: Texts,
    /// Brokers that get the reports.
    pub brokers: Vec<BrokerConfig>,
    /// Host load of locations that say nothing else.
    pub host: HostSettings,
    /// Locations that do.
    pub locations: Vec<(String, HostSettings)>,
    /// Servers, in the order of the file. Names are unique.
    pub servers: Vec<ServerConfig>,
    /// What HAProxy is told.
    pub agent_check: AgentCheck,
    /// What is allowed but probably not meant.
    pub warnings: Vec<Problem>,
}

impl Default for AgentConfig {
    fn default() -> Self {
        AgentConfig {
            name: None,
            location: None,
            interval: Duration::from_secs(1),
            state_file: None,
            arm_dir: None,
            page_owners: Texts::default(),
            brokers: Vec::new(),
            host: HostSettings::default(),
            locations: Vec::new(),
            servers: Vec::new(),
            agent_check: AgentCheck::default(),
            warnings: Vec::new(),
        }
    }
}

/// A broker that gets the reports.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerConfig {
    /// Unique name, for logs.
    pub name: String,
    /// Where it listens for agents.
    pub address: Address,
    /// File with the keys that it shares with the agents.
    pub key_file: PathBuf,
}

/// A host by name or IP address (IPv6 without brackets), and a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// What of a host is measured.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct HostSettings {
    /// Which part of it.
    pub scope: Scope,
    /// What its network carries each way, in bits per second; `None` is what the kernel
    /// knows.
    pub network_capacity: Option<f64>,
}

/// Whose load is measured.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Scope {
    /// That of the whole machine.
    #[default]
    Host,
    /// That of the cgroup which the agent is in: its container.
    Own,
    /// That of a cgroup, by its path.
    Cgroup(String),
    /// Nobody's.
    Off,
}

/// A server that the agent watches.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Unique name.
    pub name: String,
    /// Groups of which it is a member.
    pub groups: Texts,
    /// Where clients reach it: its address as a member. Without a host it is the one from
    /// which the agent's datagrams come.
    pub address: Address,
    /// Its weight, if it becomes a member by registering; `None` is the group's default.
    pub weight: Option<Weight>,
    /// Location; `None` is the agent's.
    pub location: Option<String>,
    /// ARM applications that it consists of; none if it is not instrumented.
    pub applications: Texts,
    /// Users and groups whose pages count for it; empty is those of the agent.
    pub page_owners: Texts,
    /// Where its mean service time comes from.
    pub service_time: ServiceTime,
    /// Requests that it can serve at once; `None` is the CPUs that there are.
    pub capacity: Option<f32>,
    /// Whether it is up only if connections can be established; `None` is yes if there is
    /// no application.
    pub check_port: Option<bool>,
    /// What its operator wants.
    pub state: Wanted,
    /// A command to run when a load alert begins or ends; the program first.
    pub on_alert: Texts,
    /// Addresses where agent-check is answered for this server alone.
    pub agent_check: Vec<SocketAddr>,
}

impl ServerConfig {
    /// A server with all defaults.
    pub fn new(name: &str) -> Self {
        ServerConfig {
            name: name.into(),
            groups: Texts(vec![name.into()]),
            address: Address::default(),
            weight: None,
            location: None,
            applications: Texts::default(),
            page_owners: Texts::default(),
            service_time: ServiceTime::Auto,
            capacity: None,
            check_port: None,
            state: Wanted::Ready,
            on_alert: Texts::default(),
            agent_check: Vec::new(),
        }
    }
}

/// Texts: in the file one, or a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts(pub Vec<String>);

/// Where a mean service time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceTime {
    /// The best of what there is.
    Auto,
    /// The response time less the time in the server's queue, which it must report.
    Measured,
    /// Requests that were served alone.
    Learned,
    /// It is known.
    Given(Duration),
}

/// What the operator of a server wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// That it serves.
    Ready,
    /// No new clients.
    Drain,
    /// No clients.
    Maint,
}

choice_field!(Wanted,
    "ready" => Wanted::Ready = Wanted::Ready,
    "drain" => Wanted::Drain = Wanted::Drain,
    "maint" => Wanted::Maint = Wanted::Maint);

/// What HAProxy is told by agent-check.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentCheck {
    /// Addresses where HAProxy says which server it means.
    pub listen: Vec<SocketAddr>,
    /// Loads from which the weight comes.
    pub loads: Vec<LoadId>,
    /// Smallest weight in percent.
    pub min_weight: u32,
    /// Time constant with which the weight follows the load.
    pub smoothing: Duration,
    /// Whether `ready`, `drain` and `maint` are sent.
    pub admin_state: bool,
}

impl Default for AgentCheck {
    fn default() -> Self {
        AgentCheck {
            listen: Vec::new(),
            loads: vec![LoadId::UTILIZATION, LoadId::CPU],
            min_weight: 10,
            smoothing: Duration::from_secs(30),
            admin_state: true,
        }
    }
}

fn read(mut top: Table<'_>, folder: &Path, report: &mut Report<'_>) -> AgentConfig {
    let mut config = AgentConfig::default();
    top.read(TOP, &mut config, report);
    for path in [&mut config.state_file, &mut config.arm_dir] {
        *path = path.take().map(|path| folder.join(path));
    }

    for mut table in top.named_tables("broker", NAMES, report) {
        let mut broker = BrokerConfig {
            name: table.name(),
            address: Address::default(),
            key_file: PathBuf::new(),
        };
        table.read(BROKER, &mut broker, report);
        table.require("address", report);
        table.require("key_file", report);
        if table.given("address") && broker.address.host.is_empty() {
            let (span, path) = (table.span_of("address"), table.path_of("address"));
            report.problem(&span, &path, "the host is missing".into(), None);
        }
        broker.key_file = folder.join(broker.key_file);
        config.brokers.push(broker);
        table.finish(report);
    }

    if let Some(mut table) = top.table("host", report) {
        table.read(HOST_OWN, &mut config, report);
        table.read(HOST, &mut config.host, report);
        table.finish(report);
    }
    for mut table in top.named_tables("location", (LOCATION, is_location), report) {
        let mut host = config.host.clone();
        table.read(HOST, &mut host, report);
        config.locations.push((table.name(), host));
        table.finish(report);
    }

    let mut listening = HashMap::new();
    if let Some(mut table) = top.table("agent_check", report) {
        table.read(AGENT_CHECK, &mut config.agent_check, report);
        let who = "agent-check for all servers";
        let (span, path) = (table.span_of("listen"), table.path_of("listen"));
        for address in &config.agent_check.listen {
            listens(&mut listening, *address, who, &span, &path, report);
        }
        table.finish(report);
    }

    for mut table in top.named_tables("server", NAMES, report) {
        let mut server = ServerConfig::new(&table.name());
        table.read(SERVER, &mut server, report);
        table.require("address", report);
        let who = format!("agent-check for server {:?}", server.name);
        let (span, path) = (table.span_of("agent_check"), table.path_of("agent_check"));
        for address in &server.agent_check {
            listens(&mut listening, *address, &who, &span, &path, report);
        }
        for key in ["service_time", "capacity", "page_owners"] {
            if server.applications.0.is_empty() && table.given(key) {
                let message = "only a server with an `application` has this key".into();
                let (span, path) = (table.span_of(key), table.path_of(key));
                report.misplaced(&span, &path, message, None);
            }
        }
        config.servers.push(server);
        table.finish(report);
    }

    top.finish(report);
    config
}

const LOCATION: &str = "1 to 255 characters";

fn is_location(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.contains(char::is_control)
}

const OWNER: &str = "a user by name or number, or @ and a group";

fn is_owner(text: &str) -> bool {
    let name = text.strip_prefix('@').unwrap_or(text);
    (1..=255).contains(&name.len()) && !name.contains(char::is_control)
}

/// A name as `arm_init` takes it.
fn is_application(text: &str) -> bool {
    (1..=127).contains(&text.len()) && !text.contains(char::is_control)
}

/// Keys before the first table.
static TOP: &[Key<AgentConfig>] = &[
    Key {
        name: "name",
        field: |config| &mut config.name,
        limits: Limits::Text(NAMES.0, NAMES.1),
        doc: "What the agent calls itself. Agents that report for one location need different \
              names: of two with one name the broker hears the one that registered last. By \
              default the name of the host.",
        example: r#""web-1-b""#,
    },
    Key {
        name: "interval",
        field: |config| &mut config.interval,
        limits: Limits::Time(Duration::from_millis(100), secs(3600)),
        doc: "Time between two measurements. A broker that the agent is registered at says \
              how often it wants reports; the shortest time that any of them wants holds then.",
        example: r#""5s""#,
    },
    Key {
        name: "state_file",
        field: |config| &mut config.state_file,
        limits: Limits::None,
        doc: "Where the agent keeps the service times that it has learned. By default \
              `agent.json` in `$STATE_DIRECTORY`, which systemd sets for a service with \
              `StateDirectory=`; without that, a restart forgets them.",
        example: r#""/var/lib/evenkeel/agent.json""#,
    },
    Key {
        name: "arm_dir",
        field: |config| &mut config.arm_dir,
        limits: Limits::None,
        doc: "Folder where instrumented servers have their pages. By default that of the \
              ARM library: `$EVENKEEL_ARM_DIR`, `/run/evenkeel` or `/dev/shm`.",
        example: r#""/run/evenkeel""#,
    },
    Key {
        name: "page_owners",
        field: |config| &mut config.page_owners,
        limits: Limits::Text(OWNER, is_owner),
        doc: "Users whose pages are read, one or a list, by name or number; with `@` before it a \
              group, to which a page must belong. Pages of all others are left alone, whatever \
              they say. By default root and the agent's own user, and the group of `arm_dir` if \
              that has the set-group-id bit and is not writable for everybody.",
        example: r#"["root", "www-data", "@evenkeel"]"#,
    },
];

/// Keys of `[broker.NAME]`.
static BROKER: &[Key<BrokerConfig>] = &[
    Key {
        name: "address",
        field: |broker| &mut broker.address,
        limits: Limits::None,
        doc: "Host and UDP port of the broker. **Required.**",
        example: r#""broker.internal:9909""#,
    },
    Key {
        name: "key_file",
        field: |broker| &mut broker.key_file,
        limits: Limits::None,
        doc: "File with the keys that broker and agents share: a line `ID:HEX` each. The \
              first is used to sign, a second one is accepted, too. It is read again with \
              the configuration. **Required.**",
        example: r#""/etc/evenkeel/broker.key""#,
    },
];

/// Keys that only `[host]` has.
static HOST_OWN: &[Key<AgentConfig>] = &[Key {
    name: "location",
    field: |config| &mut config.location,
    limits: Limits::Text(LOCATION, is_location),
    doc: "Where the agent is: the location of its host load, and of all servers that \
              name no other. By default the name of the host.",
    example: r#""web-1""#,
}];

/// Keys of `[host]` and `[location.NAME]`.
static HOST: &[Key<HostSettings>] = &[
    Key {
        name: "scope",
        field: |host| &mut host.scope,
        limits: Limits::None,
        doc: "Whose load is reported: that of the machine (`host`), of the container or \
              service that the agent runs in (`own`), of a cgroup by its path as in \
              `/proc/PID/cgroup`, or none (`off`).",
        example: r#""/system.slice/apache2.service""#,
    },
    Key {
        name: "network_capacity",
        field: |host| &mut host.network_capacity,
        limits: Limits::None,
        doc: "What the network carries in each direction, instead of what the kernel says \
              of each interface. Virtual machines need it: their interfaces do not know.",
        example: r#""10Gbit/s""#,
    },
];

/// Keys of `[server.NAME]`.
static SERVER: &[Key<ServerConfig>] = &[
    Key {
        name: "address",
        field: |server| &mut server.address,
        limits: Limits::None,
        doc: "Where clients reach it, as it stands in the members of its group. Without a \
              host (`:80`) it is the address from which the broker hears of the agent. \
              **Required.**",
        example: r#""10.0.0.1:80""#,
    },
    Key {
        name: "weight",
        field: |server| &mut server.weight,
        limits: Limits::None,
        doc: "Its share of the traffic relative to other members, where the broker lets \
              agents add members to the group.",
        example: "2",
    },
    Key {
        name: "group",
        field: |server| &mut server.groups,
        limits: Limits::Text(NAMES.0, NAMES.1),
        doc: "The group, or a list of groups, in which it is a member. By default the group \
              that has the name of the server.",
        example: r#""web""#,
    },
    Key {
        name: "location",
        field: |server| &mut server.location,
        limits: Limits::Text(LOCATION, is_location),
        doc: "Its location, if it is not the agent's. Servers at one location share its \
              load; one whose requests are to count for itself needs one of its own.",
        example: r#""web-1/shop""#,
    },
    Key {
        name: "application",
        field: |server| &mut server.applications,
        limits: Limits::Text(
            "1 to 127 characters, as the server gives it to arm_init",
            is_application,
        ),
        doc: "The ARM application that it is, or a list of them. With one, the agent reports \
              the figures of its requests, and that it is down when no process has the \
              application open.",
        example: r#""www.example.org:80""#,
    },
    Key {
        name: "page_owners",
        field: |server| &mut server.page_owners,
        limits: Limits::Text(OWNER, is_owner),
        doc: "The user that the server runs as, or a list of users and groups: only their pages \
              count for it, instead of those of all `page_owners` of the agent.",
        example: r#""www-data""#,
    },
    Key {
        name: "service_time",
        field: |server| &mut server.service_time,
        limits: Limits::None,
        doc: "Where its mean service time comes from: `measured` (response time less the \
              time in the queue, where the server reports that), `learned` (from requests \
              that were served alone), a time that is known, or the best of the first two.",
        example: r#""3ms""#,
    },
    Key {
        name: "capacity",
        field: |server| &mut server.capacity,
        limits: Limits::Number(0.01, 1e6, "requests"),
        doc: "How many requests it can serve at once at full speed: its workers where they \
              wait for others, else its CPUs. By default the CPUs that its location may use.",
        example: "64",
    },
    Key {
        name: "check_port",
        field: |server| &mut server.check_port,
        limits: Limits::None,
        doc: "Whether the server counts as down when its address takes no connection. By \
              default only if it has no `application`.",
        example: "true",
    },
    Key {
        name: "state",
        field: |server| &mut server.state,
        limits: Limits::None,
        doc: "What its operator wants: `ready`; `drain`, no new clients; `maint`, none at \
              all.",
        example: r#""drain""#,
    },
    Key {
        name: "on_alert",
        field: |server| &mut server.on_alert,
        limits: Limits::Text("1 to 4096 characters without zeros", |text| {
            (1..=4096).contains(&text.len()) && !text.contains('\0')
        }),
        doc: "A program and its arguments, to run when a load alert for the server begins \
              and when it ends, with `EVENKEEL_ALERT` set to `on` or `off` and \
              `EVENKEEL_SERVER` to its name. For servers that do not read the alert from \
              their page. An alert that changes while it runs makes it run once more.",
        example: r#"["/usr/local/bin/shed", "--quick"]"#,
    },
    Key {
        name: "agent_check",
        field: |server| &mut server.agent_check,
        limits: Limits::None,
        doc: "Addresses where HAProxy's agent-check is answered for this server alone, one \
              or a list.",
        example: r#""0.0.0.0:9911""#,
    },
];

/// Keys of `[agent_check]`.
static AGENT_CHECK: &[Key<AgentCheck>] = &[
    Key {
        name: "listen",
        field: |check| &mut check.listen,
        limits: Limits::None,
        doc: "Addresses, one or a list, where HAProxy says which server it means: \
              `agent-send \"NAME\\n\"`.",
        example: r#""0.0.0.0:9910""#,
    },
    Key {
        name: "load",
        field: |check| &mut check.loads,
        limits: Limits::None,
        doc: "The loads from which a weight comes; the highest of those that are known \
              counts. They must be utilisations.",
        example: r#"["utilization", "cpu", "memory"]"#,
    },
    Key {
        name: "min_weight",
        field: |check| &mut check.min_weight,
        limits: Limits::Number(1.0, 100.0, "percent"),
        doc: "Smallest weight. A server with no weight at all gets no request by which \
              it could show that it has recovered.",
        example: "5",
    },
    Key {
        name: "smoothing",
        field: |check| &mut check.smoothing,
        limits: Limits::Time(Duration::ZERO, DAY),
        doc: "Time constant with which the weight follows the load. Weights that follow \
              at once swing back and forth between servers.",
        example: r#""1m""#,
    },
    Key {
        name: "admin_state",
        field: |check| &mut check.admin_state,
        limits: Limits::None,
        doc: "Whether each answer says `ready`, `drain` or `maint`, by the server's `state`. \
              Turn it off to set these in HAProxy, where the agent would take them back.",
        example: "false",
    },
];

/// All tables of the agent's file.
pub(super) fn tables() -> Vec<TableDoc> {
    let broker = BrokerConfig {
        name: String::new(),
        address: Address::default(),
        key_file: PathBuf::new(),
    };
    let mut host = docs(HOST_OWN, AgentConfig::default());
    host.extend(docs(HOST, HostSettings::default()));
    vec![
        TableDoc {
            header: "",
            doc: "Keys that stand before the first table.",
            keys: docs(TOP, AgentConfig::default()),
        },
        TableDoc {
            header: "[broker.NAME]",
            doc: "A broker that gets the reports. With several, each gets all of them.",
            keys: docs(BROKER, broker),
        },
        TableDoc {
            header: "[host]",
            doc: "Where the agent is, and what host load it reports at all its locations.",
            keys: host,
        },
        TableDoc {
            header: "[location.NAME]",
            doc: "The same for one location, by its name (in quotes if it has other \
                  characters than letters, digits, `-` and `_`). Its load is reported \
                  whether or not a server of this agent is there.",
            keys: docs(HOST, HostSettings::default()),
        },
        TableDoc {
            header: "[server.NAME]",
            doc: "A server beside the agent. `NAME` is yours to choose.",
            keys: docs(SERVER, ServerConfig::new("")),
        },
        TableDoc {
            header: "[agent_check]",
            doc: "Answers to HAProxy's agent-check.",
            keys: docs(AGENT_CHECK, AgentCheck::default()),
        },
    ]
}

impl Field for Address {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        let text = text.trim();
        let found = match text
            .strip_prefix(':')
            .map(|port| host_port(&format!("x:{port}")))
        {
            Some(found) => found.map(|(_, port)| (String::new(), port)),
            None => host_port(text),
        };
        match found {
            Ok((host, port)) => (self.host, self.port) = (host, port),
            Err(message) => report.wrong(item, message, self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        ADDRESS.into()
    }
}

impl Field for Scope {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        *self = match &**text {
            "host" => Scope::Host,
            "own" => Scope::Own,
            "off" => Scope::Off,
            path if is_cgroup(path) => Scope::Cgroup(path.into()),
            _ => return report.wrong(item, "not a scope", self.allowed(limits)),
        };
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

/// Whether `path` can be that of a cgroup below the root of all.
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
            _ => {
                let before = report.problems();
                let mut time = Duration::ZERO;
                time.read(item, &GIVEN, report);
                if report.problems() > before {
                    return;
                }
                ServiceTime::Given(time)
            }
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

/// What a service time can be.
const GIVEN: Limits = Limits::Time(Duration::from_micros(1), secs(3600));

/// Whether or not, or by default.
impl Field for Option<bool> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut flag = false;
        let before = report.problems();
        flag.read(item, limits, report);
        if report.problems() == before {
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

impl Field for Texts {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut texts = Vec::new();
        let one = |item: &Item<'_>, report: &mut Report<'_>| {
            let (before, mut text) = (report.problems(), String::new());
            text.read(item, limits, report);
            if report.problems() == before {
                texts.push(text);
            }
        };
        one_or_each(item, report, one);
        self.0 = texts;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, limits: &Limits) -> String {
        format!("{}, or a list of such", String::new().allowed(limits))
    }
}

/// Utilisations: one, or a list.
impl Field for Vec<LoadId> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut loads = Vec::new();
        let one = |item: &Item<'_>, report: &mut Report<'_>| {
            let (before, mut load) = (report.problems(), LoadId::CPU);
            load.read(item, limits, report);
            if report.problems() == before && !load.is_utilization() {
                report.wrong(item, "not a utilisation", UTILISATIONS.into());
            } else {
                loads.push(load);
            }
        };
        if is_empty_list(item) {
            return report.wrong(item, "no load", self.allowed(limits));
        }
        one_or_each(item, report, one);
        *self = loads;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        let names: Vec<_> = self.iter().map(|load| quote(&load.to_string())).collect();
        Some(format!("[{}]", names.join(", ")))
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("{UTILISATIONS}, or a list of such")
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
            groups: Texts(vec!["shop".into(), "all".into()]),
            address: Address {
                host: String::new(),
                port: 80,
            },
            location: Some("web-1/shop".into()),
            applications: Texts(vec!["httpd".into()]),
            page_owners: Texts(vec!["www-data".into(), "@web".into()]),
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
