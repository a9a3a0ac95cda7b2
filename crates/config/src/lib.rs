//! Configuration: what `evenkeel.toml` means.
//!
//! Everything here is plain data that is valid because it exists: names refer to
//! something, numbers are in their ranges, durations have units. [`load`] and
//! [`parse`] are the only ways from a file to a [`Config`]; they report everything
//! that is wrong with it at once.
//!
//! The keys of the file are declared once, in `keys.rs`: their names, types, ranges,
//! defaults, documentation and examples. The parser and the reference in
//! `docs/configuration.md` both come from there.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::load::LoadId;
use evenkeel_core::member::Weight;
use evenkeel_core::strategy::{
    Reach, Values, carries_in_pulses, default_for, default_kind, default_load,
};

pub mod agent;
mod broker;
mod corba;
mod document;
pub mod engine;
mod errors;
pub mod expression;
mod fields;
mod foreign;
mod keys;
pub mod kind;
mod monitor;
pub mod negotiator;
pub mod networks;
mod parse;
pub mod reference;
pub mod reports;
mod sections;
#[cfg(test)]
mod tests;
pub mod watch;

pub use broker::Broker;
pub use corba::{Corba, WhenEmpty};
pub use errors::{Errors, Problem};
pub use monitor::{LocationConfig, Monitor, MonitorAddress, MonitorHost, MonitorKind};
pub use negotiator::{Class, Cluster, Negotiator, Origin, Quantum, Scheme, Terms};
pub use networks::Networks;
pub use parse::{is_name, parse};
pub use reports::{AgentCheck, Orca, OrcaService, Prometheus};
pub use sections::{Section, Sections};

/// The largest configuration file that is read, in bytes.
pub const MAX_FILE_SIZE: u64 = 16 * 1024 * 1024;

/// Reads and checks the configuration in the file at `path`.
///
/// # Errors
///
/// Everything that is wrong, with its place in the file. A file that is missing,
/// unreadable, too large or not UTF-8 is an error of the same type.
pub fn load(path: &Path) -> Result<Config, Errors> {
    let name = path.display().to_string();
    match read_bounded(path, MAX_FILE_SIZE) {
        Ok(text) => parse(&name, &text),
        Err(reason) => Err(Errors::of_file(name, reason)),
    }
}

/// The text of a regular file of at most `limit` bytes, or why there is none.
fn read_bounded(path: &Path, limit: u64) -> Result<String, String> {
    use std::io::Read;
    // A FIFO or a device would block for ever or never end.
    let meta = std::fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    if !meta.is_file() {
        return Err("cannot be read: it is not a regular file".into());
    }
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > limit {
        return Err(format!("is too large: more than {limit} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        format!("is not UTF-8 text: the byte at offset {valid} does not belong there")
    })
}

/// A whole, valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Threads of the data plane; `None` is one per core.
    pub workers: Option<usize>,
    /// How long open connections may go on after SIGTERM.
    pub shutdown_grace: Duration,
    /// The admin API.
    pub admin: Option<Admin>,
    /// JSON access log; `None` (the default) is off.
    pub access_log: Option<AccessLog>,
    /// Rules, in the order of the file. Names are unique.
    pub rules: Vec<Rule>,
    /// Groups, in the order of the file. Names are unique.
    pub groups: Vec<GroupConfig>,
    /// Locations that the file says something of, in its order. Names are unique.
    pub locations: Vec<LocationConfig>,
    /// Where agents report; `None` is nowhere.
    pub broker: Option<Broker>,
    /// Where clients negotiate; `None` is nowhere.
    pub negotiator: Option<Negotiator>,
    /// Clusters that they negotiate for, in the order of the file. Names are unique.
    pub clusters: Vec<Cluster>,
    /// The CORBA service; `None` is none.
    pub corba: Option<Corba>,
    /// What is allowed but probably not meant (a group that nobody uses).
    pub warnings: Vec<Problem>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            workers: None,
            shutdown_grace: Duration::from_secs(30),
            admin: Some(Admin::default()),
            access_log: None,
            rules: Vec::new(),
            groups: Vec::new(),
            locations: Vec::new(),
            broker: None,
            negotiator: None,
            clusters: Vec::new(),
            corba: None,
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// The files beside the configuration that are read with it.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let token = self
            .admin
            .iter()
            .filter_map(|admin| admin.token_file.as_ref());
        let broker = self.broker.iter().map(|broker| &broker.key_file);
        let groups = self
            .groups
            .iter()
            .filter_map(|group| group.monitor.as_ref());
        let locations = self.locations.iter().filter_map(|l| l.monitor.as_ref());
        let monitors = groups.chain(locations);
        let monitors = monitors.filter_map(|monitor| monitor.key_file.as_ref());
        token.chain(broker).chain(monitors).map(PathBuf::as_path)
    }

    /// The DNS names of members, with how often each is to be resolved. A name in
    /// several groups comes several times.
    pub fn dns_hosts(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.groups.iter().flat_map(|group| {
            let names = group.members.iter().filter(|m| m.ip().is_none());
            names.map(|member| (member.host.as_str(), group.dns_interval))
        })
    }
}

/// Where the admin API listens.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Address; loopback by default.
    pub listen: SocketAddr,
    /// Bearer token; required where `listen` is not loopback.
    pub token: Option<String>,
    /// Where the token was read from, if that is a file.
    pub token_file: Option<PathBuf>,
    /// Whether requests may come through a proxy.
    pub behind_proxy: bool,
}

impl Default for Admin {
    fn default() -> Self {
        Admin {
            listen: SocketAddr::from(([127, 0, 0, 1], 9900)),
            token: None,
            token_file: None,
            behind_proxy: false,
        }
    }
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq)]
pub enum AccessLog {
    /// Standard output.
    Stdout,
    /// A file, appended to, reopened on SIGHUP.
    File(PathBuf),
}

/// A rule: a service that clients connect to, and the group that serves it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Service name.
    pub name: String,
    /// Whether it accepts clients.
    pub enabled: bool,
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// What is spoken there.
    pub protocol: Protocol,
    /// Name of the group in [`Config::groups`].
    pub group: String,
    /// Cut open connections when the rule is disabled or removed (`false`: they go on
    /// to their end).
    pub terminate_on_disable: bool,
    /// TCP: further members that are tried when one cannot be connected to.
    pub connect_retries: u32,
    /// TCP: carry one side's FIN while the other still sends (`false`: the first FIN
    /// ends both).
    pub half_close: bool,
    /// Most client connections at once over all workers; further ones wait in the
    /// listen queue.
    pub max_connections: u32,
    /// Time limits.
    pub timeouts: Timeouts,
    /// HTTP only.
    pub http: HttpOptions,
}

impl Rule {
    /// A rule with all defaults: HTTP, enabled.
    pub fn new(name: &str, listen: Vec<SocketAddr>, group: &str) -> Self {
        Rule {
            name: name.into(),
            enabled: true,
            listen,
            protocol: Protocol::Http,
            group: group.into(),
            terminate_on_disable: false,
            connect_retries: 2,
            half_close: true,
            max_connections: 100_000,
            timeouts: Timeouts::default(),
            http: HttpOptions::default(),
        }
    }
}

/// What a rule speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Bytes, unread.
    Tcp,
    /// HTTP/1.x.
    Http,
}

/// Time limits of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeouts {
    /// Connection timeout: to establish a connection to a member.
    pub connect: Duration,
    /// TCP: no byte in either direction. HTTP: no byte of an upgraded connection.
    pub idle: Duration,
    /// HTTP: from the first byte of a request head to its end.
    pub header: Duration,
    /// HTTP: a client connection without a request.
    pub keep_alive: Duration,
    /// HTTP: no byte of a request body from the client, or of a response taken by it.
    pub body: Duration,
    /// HTTP: from the request sent to the response head, and between two reads of its
    /// body.
    pub response: Duration,
    /// Waiting for a member below its connection limit.
    pub queue: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            // Long enough for one lost SYN (sent again after 1 s, RFC 6298).
            connect: Duration::from_secs(2),
            idle: Duration::from_secs(600),
            header: Duration::from_secs(10),
            keep_alive: Duration::from_secs(60),
            body: Duration::from_secs(30),
            response: Duration::from_secs(60),
            queue: Duration::from_secs(2),
        }
    }
}

/// What only HTTP rules have.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpOptions {
    /// Largest request or response head in bytes.
    pub max_header_bytes: usize,
    /// Most header fields in a head.
    pub max_header_count: usize,
    /// Add the client's address to `X-Forwarded-For`, and set `X-Forwarded-Proto`
    /// and `X-Forwarded-Host`.
    pub x_forwarded: bool,
    /// Add a `Forwarded` field (RFC 7239).
    pub forwarded: bool,
    /// Name in the `Via` field; `None` adds none.
    pub via: Option<String>,
    /// Keep what the client sent in those fields (`false`: it is removed first, so
    /// that a back-end can trust them).
    pub trust_forwarded: bool,
    /// Further tries for a request that may be retried.
    pub retries: u32,
    /// Retries may add at most this share to the requests (0.2 is 20 %).
    pub retry_budget: f32,
    /// Idle connections to a member that each worker keeps.
    pub pool_idle_connections: usize,
    /// How long one is kept idle.
    pub pool_idle_timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions {
            max_header_bytes: 32 * 1024,
            max_header_count: 128,
            x_forwarded: true,
            forwarded: false,
            via: Some("evenkeel".into()),
            trust_forwarded: false,
            retries: 2,
            retry_budget: 0.2,
            pool_idle_connections: 64,
            pool_idle_timeout: Duration::from_secs(30),
        }
    }
}

/// An object group and what keeps it healthy.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupConfig {
    /// Unique name.
    pub name: String,
    /// Strategy and its parameters.
    pub strategy: Values,
    /// Decisions.
    pub settings: GroupSettings,
    /// What was said, and need not be chosen.
    pub said: Said,
    /// How its clients reach its members: what is chosen depends on it.
    pub reach: Reach,
    /// Members, in the order of the file.
    pub members: Vec<MemberConfig>,
    /// Whether servers that agents register become members, too.
    pub agents_may_join: bool,
    /// Where members may be whose address is not in the file; `None` is anywhere but at
    /// unusual places, see [`networks::unusual`].
    pub allowed_networks: Option<Networks>,
    /// Active check; `None` is off.
    pub health_check: Option<HealthCheck>,
    /// Agent check; `None` is off.
    pub agent_check: Option<AgentCheck>,
    /// ORCA; `None` is off.
    pub orca: Option<Orca>,
    /// Metrics; `None` is off.
    pub prometheus: Option<Prometheus>,
    /// How the load of the group's locations is read; `None` is off.
    pub monitor: Option<Monitor>,
    /// Connection failure limit: after so many failures in a row the member is
    /// ejected.
    pub connection_failure_limit: u32,
    /// Requests that may wait for a member below its connection limit.
    pub max_queue: usize,
    /// How often DNS names of members are resolved again.
    pub dns_interval: Duration,
}

impl GroupConfig {
    /// A group with all defaults.
    pub fn new(name: &str, members: Vec<MemberConfig>) -> Self {
        GroupConfig {
            name: name.into(),
            strategy: Values::defaults(default_kind()),
            settings: GroupSettings::default(),
            said: Said::default(),
            reach: Reach::Carried,
            members,
            agents_may_join: false,
            allowed_networks: None,
            health_check: None,
            agent_check: None,
            orca: None,
            prometheus: None,
            monitor: None,
            connection_failure_limit: 5,
            max_queue: 1024,
            dns_interval: Duration::from_secs(10),
        }
    }
}

/// What somebody has said of a group whose defaults depend on other settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The strategy.
    pub strategy: bool,
    /// The load that it looks at.
    pub load: bool,
    /// When it is asked.
    pub granularity: bool,
}

impl GroupConfig {
    /// Chooses what nobody has said, for a group whose clients reach its members so.
    pub fn choose(&mut self, reach: Reach) {
        self.reach = reach;
        if reach == Reach::Redirected && !self.said.granularity {
            // They stay until their quantum is over, or an alert sends them back.
            self.settings.granularity = Granularity::OnDemand;
        }
        if !self.said.strategy {
            self.strategy = default_for(&self.settings, reach);
        }
        self.settings.alert.pulses = match reach {
            Reach::Carried => carries_in_pulses(&self.settings, self.strategy.kind()),
            // A load alert is all or nothing there: a share of the clients leaves in a pulse,
            // and clients are rebound at a fixed interval in one.
            Reach::Forwarded => self.settings.alert.move_share < 1.0 || !self.settings.adaptive,
            Reach::Redirected => false,
        };
        if !self.said.load {
            self.settings.load_id = match self.monitor {
                // All that kernels know.
                Some(_) => LoadId::COMPOSITE,
                // What the application's monitors say first.
                None if reach == Reach::Forwarded => LoadId::FIRST,
                None => default_load(self.strategy.kind()),
            };
        }
    }

    /// Gives it another strategy.
    pub fn set_strategy(&mut self, strategy: Values) {
        self.strategy = strategy;
        self.said.strategy = true;
        self.choose(self.reach);
    }
}

/// A member as the file names it. A DNS name with several addresses becomes one
/// member per address.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberConfig {
    /// Host name or IP address (an IPv6 address without brackets).
    pub host: String,
    /// Port.
    pub port: u16,
    /// Share relative to the other members.
    pub weight: Weight,
    /// Location; by default the member's host.
    pub location: Option<String>,
    /// Most requests (HTTP) or connections (TCP) at once.
    pub max_connections: Option<u32>,
    /// Gets no new traffic.
    pub drain: bool,
    /// Where clients reach it themselves; by default its address.
    pub url: Option<Origin>,
    /// The name of a member that is no address, but something that clients reach by a
    /// reference which they are given, as a CORBA object is. It has no `host` and `port`:
    /// there is nothing to resolve and nothing to connect to.
    pub reference: Option<String>,
}

impl MemberConfig {
    /// A member with all defaults.
    pub fn new(host: &str, port: u16) -> Self {
        MemberConfig {
            host: host.into(),
            port,
            weight: Weight::ONE,
            location: None,
            max_connections: None,
            drain: false,
            url: None,
            reference: None,
        }
    }

    /// A member that is no address, with all defaults: `name` is its
    /// [`MemberConfig::reference`], and its location unless it has another one.
    pub fn referred(name: &str) -> Self {
        MemberConfig {
            reference: Some(name.into()),
            location: Some(name.into()),
            ..MemberConfig::new("", 0)
        }
    }

    /// The name of the member: `host:port`, or that of a reference.
    pub fn name(&self) -> String {
        match (&self.reference, self.ip()) {
            (Some(name), _) => name.clone(),
            (None, Some(ip)) => SocketAddr::new(ip, self.port).to_string(),
            (None, None) => format!("{}:{}", self.host, self.port),
        }
    }

    /// The address that `host` is, if it is not a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Active health check (keep-alive).
#[derive(Clone, Debug, PartialEq)]
pub struct HealthCheck {
    /// What is checked.
    pub kind: HealthCheckKind,
    /// Time between two checks of a member.
    pub frequency: Duration,
    /// Time after which a check has failed.
    pub timeout: Duration,
    /// Failed checks in a row until a member is down.
    pub fall: u32,
    /// Passed checks in a row until it is up again.
    pub rise: u32,
    /// Another port than the member's.
    pub port: Option<u16>,
}

impl HealthCheck {
    /// A check of `kind` with all defaults.
    pub fn new(kind: HealthCheckKind) -> Self {
        HealthCheck {
            kind,
            frequency: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            fall: 3,
            rise: 2,
            port: None,
        }
    }
}

/// What an active health check looks at.
#[derive(Clone, Debug, PartialEq)]
pub enum HealthCheckKind {
    /// A connection can be established.
    Tcp,
    /// A GET is answered as expected.
    Http {
        /// Doc path.
        path: String,
        /// `Host` field; by default the member's host.
        host: Option<String>,
        /// Response codes that pass.
        codes: Vec<u16>,
        /// Doc text: a text that the body must hold (looked for in its beginning only).
        text: Option<String>,
    },
}
