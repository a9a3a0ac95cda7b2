//! Configuration: what `evenkeel.toml` means.
//!
//! Everything here is plain data that is valid because it exists: names refer to
//! something, numbers are in their ranges, durations have units.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_core::group::GroupSettings;
use evenkeel_core::member::Weight;
use evenkeel_core::strategy::Values;

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
}

/// Where the admin API listens.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Address; loopback by default.
    pub listen: SocketAddr,
    /// Bearer token; required where `listen` is not loopback.
    pub token: Option<String>,
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

/// An object group and what keeps it healthy.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupConfig {
    /// Unique name.
    pub name: String,
    /// Strategy and its parameters.
    pub strategy: Values,
    /// Decisions.
    pub settings: GroupSettings,
    /// Members, in the order of the file.
    pub members: Vec<MemberConfig>,
    /// Active check; `None` is off.
    pub health_check: Option<HealthCheck>,
    /// Connection failure limit: after so many failures in a row the member is
    /// ejected.
    pub connection_failure_limit: u32,
    /// Requests that may wait for a member below its connection limit.
    pub max_queue: usize,
    /// How often DNS names of members are resolved again.
    pub dns_interval: Duration,
}

/// A member as the file names it. A DNS name with several addresses becomes one
/// member per address.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberConfig {
    /// Host name or IP address.
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
        /// Doc text: a text that the body must hold.
        text: Option<String>,
    },
}
