//! The keys of the file, declared once: the parser and the reference come from here.
//!
//! A key names the place in the model that it fills. Its type and its default are
//! those of that place, so they cannot drift apart.

use std::time::Duration;

use evenkeel_core::alert::{AlertSettings, Threshold};
use evenkeel_core::load::LoadValue;
use toml::de::DeValue;

use super::document::{Item, Report, entries};
use super::fields::{Blank, Field, Limits, OUT_OF_RANGE, WRONG_TYPE, is_host_name};
use super::monitor::LOCATION_NAMES;
use super::parse::Table;
use super::reports::{self, Orca, PrometheusDraft};
use super::{Config, GroupConfig, HealthCheck, HealthCheckKind, HttpOptions};
use super::{MemberConfig, Rule};

/// A key of a table that describes a `T`.
pub(super) struct Key<T: 'static> {
    /// Its name.
    pub name: &'static str,
    /// The place that it fills.
    pub field: fn(&mut T) -> &mut dyn Field,
    /// What its type allows, narrowed down.
    pub limits: Limits,
    /// What it means, in Markdown.
    pub doc: &'static str,
    /// A value, as it would stand in the file.
    pub example: &'static str,
}

pub(super) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) const DAY: Duration = secs(86_400);
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

/// Keys before the first table.
pub(super) static TOP: &[Key<Config>] = &[
    Key {
        name: "workers",
        field: |config| &mut config.workers,
        limits: Limits::Number(1.0, 1024.0, "threads"),
        doc: "Threads that forward traffic. Without it, one per core. Changes need a restart.",
        example: "4",
    },
    Key {
        name: "shutdown_grace",
        field: |config| &mut config.shutdown_grace,
        limits: Limits::Time(Duration::ZERO, DAY),
        doc: "How long open connections may go on after SIGTERM. New ones are refused at once; an \
              idle client has one second for a request that is on its way.",
        example: r#""1m""#,
    },
];

/// What `[admin]` says.
pub(super) struct AdminDraft {
    pub enabled: bool,
    pub admin: super::Admin,
    pub token_file: Option<std::path::PathBuf>,
}

impl Default for AdminDraft {
    fn default() -> Self {
        AdminDraft {
            enabled: true,
            admin: super::Admin::default(),
            token_file: None,
        }
    }
}

/// Keys of `[admin]`.
pub(super) static ADMIN: &[Key<AdminDraft>] = &[
    Key {
        name: "enabled",
        field: |draft| &mut draft.enabled,
        limits: Limits::None,
        doc: "Whether there is an admin API at all.",
        example: "false",
    },
    Key {
        name: "listen",
        field: |draft| &mut draft.admin.listen,
        limits: Limits::None,
        doc: "Where it listens. An address that is not loopback needs a token.",
        example: r#""127.0.0.1:9001""#,
    },
    Key {
        name: "token",
        field: |draft| &mut draft.admin.token,
        limits: Limits::Text("8 to 512 visible ASCII characters without spaces", is_token),
        doc: "Bearer token that every request to the admin API must carry \
              (`Authorization: Bearer …`). Optional on a loopback address.",
        example: r#""correct-horse-battery-staple""#,
    },
    Key {
        name: "token_file",
        field: |draft| &mut draft.token_file,
        limits: Limits::None,
        doc: "A file that holds the token, instead of `token`; white space around it is \
              ignored. A relative path starts at the folder of the configuration file. Nobody \
              but the file's owner and group may read it. Another token counts without a \
              restart: with a reload, or at most five seconds after the file has changed.",
        example: r#""/run/secrets/evenkeel-token""#,
    },
    Key {
        name: "behind_proxy",
        field: |draft| &mut draft.admin.behind_proxy,
        limits: Limits::None,
        doc: "Whether requests may come through a proxy, which `Via`, `Forwarded`, \
              `X-Forwarded-…` or `X-Real-IP` give away. Otherwise they get 403, so that no \
              rule of this or another proxy makes the admin API reachable by mistake. \
              Needs a token.",
        example: "true",
    },
];

/// Keys of `[access_log]`.
pub(super) static ACCESS_LOG: &[Key<Config>] = &[Key {
    name: "output",
    field: |config| &mut config.access_log,
    limits: Limits::None,
    doc: "Where the access log goes: one JSON object per request (HTTP) or connection \
          (TCP). A file is appended to, and opened again on SIGHUP. Lines are dropped, and \
          counted, rather than that traffic waits for the disk.",
    example: r#""/var/log/evenkeel/access.log""#,
}];

/// Keys that only a rule can have, not `[defaults]`.
pub(super) static RULE_OWN: &[Key<Rule>] = &[
    Key {
        name: "listen",
        field: |rule| &mut rule.listen,
        limits: Limits::None,
        doc: "Addresses on which clients reach the service: one, or a list. **Required.** \
              No two rules share an address. Port 0 lets the system choose a free one.",
        example: r#"["0.0.0.0:8080", "[::1]:8080"]"#,
    },
    Key {
        name: "group",
        field: |rule| &mut rule.group,
        limits: Limits::None,
        doc: "The group that serves the rule, where several rules share one. A rule \
              without it has a group of its own, of the same name, and takes all keys of a \
              group itself.",
        example: r#""backends""#,
    },
];

/// Keys of a rule that `[defaults]` can have, too.
pub(super) static RULE: &[Key<Rule>] = &[
    Key {
        name: "enabled",
        field: |rule| &mut rule.enabled,
        limits: Limits::None,
        doc: "Whether the rule accepts clients. The admin API can change that live.",
        example: "false",
    },
    Key {
        name: "protocol",
        field: |rule| &mut rule.protocol,
        limits: Limits::None,
        doc: "What is spoken: HTTP/1.x, balanced request by request, or any bytes over TCP, \
              balanced connection by connection.",
        example: r#""tcp""#,
    },
    Key {
        name: "terminate_on_disable",
        field: |rule| &mut rule.terminate_on_disable,
        limits: Limits::None,
        doc: "Whether open connections are cut when the rule is disabled or removed. \
              Otherwise they go on to their end.",
        example: "true",
    },
    Key {
        name: "connect_retries",
        field: |rule| &mut rule.connect_retries,
        limits: Limits::Number(0.0, 10.0, "further tries"),
        doc: "TCP: most further members that are tried for a client when one cannot be \
              connected to. For HTTP, see `retries`.",
        example: "4",
    },
    Key {
        name: "half_close",
        field: |rule| &mut rule.half_close,
        limits: Limits::None,
        doc: "TCP: whether one side may end its direction while the other still sends. \
              Otherwise the first end closes both.",
        example: "false",
    },
    Key {
        name: "max_connections",
        field: |rule| &mut rule.max_connections,
        limits: Limits::Number(1.0, 10_000_000.0, "connections"),
        doc: "Most client connections at once, over all workers. Further ones wait in the \
              listen queue.",
        example: "20000",
    },
    Key {
        name: "connection_timeout",
        field: |rule| &mut rule.timeouts.connect,
        limits: Limits::Time(MILLISECOND, secs(600)),
        doc: "Time to establish a connection to a member. After it another member is tried.",
        example: r#""500ms""#,
    },
    Key {
        name: "idle_timeout",
        field: |rule| &mut rule.timeouts.idle,
        limits: Limits::Time(MILLISECOND, DAY),
        doc: "TCP, and upgraded HTTP connections (WebSocket): time without a byte in either \
              direction after which the connection is closed.",
        example: r#""1h""#,
    },
    Key {
        name: "queue_timeout",
        field: |rule| &mut rule.timeouts.queue,
        limits: Limits::Time(Duration::ZERO, secs(600)),
        doc: "How long a request or connection waits when all members are at their \
              connection limit.",
        example: r#""250ms""#,
    },
    Key {
        name: "header_timeout",
        field: |rule| &mut rule.timeouts.header,
        limits: Limits::Time(MILLISECOND, secs(3600)),
        doc: "HTTP: time from the first byte of a request head to its end.",
        example: r#""5s""#,
    },
    Key {
        name: "keep_alive_timeout",
        field: |rule| &mut rule.timeouts.keep_alive,
        limits: Limits::Time(MILLISECOND, DAY),
        doc: "HTTP: how long a client connection is kept open without a request.",
        example: r#""15s""#,
    },
    Key {
        name: "body_timeout",
        field: |rule| &mut rule.timeouts.body,
        limits: Limits::Time(MILLISECOND, DAY),
        doc: "HTTP: longest pause of a client that sends a request body or takes a response.",
        example: r#""10s""#,
    },
    Key {
        name: "response_timeout",
        field: |rule| &mut rule.timeouts.response,
        limits: Limits::Time(MILLISECOND, DAY),
        doc: "HTTP: time from the end of the request to the response head, and longest \
              pause of the member within the response. Interim responses (1xx) do not \
              prolong it. A client that expects a 100 (Continue) has sent all it has to \
              with its head.",
        example: r#""2m""#,
    },
    Key {
        name: "http",
        field: |rule| &mut rule.http,
        limits: Limits::None,
        doc: "Options of HTTP rules; see there.",
        example: "{ retries = 1 }",
    },
];

/// Keys of `[rule.NAME.http]`.
pub(super) static HTTP: &[Key<HttpOptions>] = &[
    Key {
        name: "max_header_bytes",
        field: |http| &mut http.max_header_bytes,
        limits: Limits::Bytes(1024, 1024 * 1024),
        doc: "Largest head of a request or response. A larger request gets 431, a larger \
              response counts as a failure of the member.",
        example: r#""64KiB""#,
    },
    Key {
        name: "max_header_count",
        field: |http| &mut http.max_header_count,
        limits: Limits::Number(8.0, 256.0, "fields"),
        doc: "Most header fields in a head.",
        example: "200",
    },
    Key {
        name: "x_forwarded",
        field: |http| &mut http.x_forwarded,
        limits: Limits::None,
        doc: "Whether members get `X-Forwarded-For`, `X-Forwarded-Proto` and \
              `X-Forwarded-Host`.",
        example: "false",
    },
    Key {
        name: "forwarded",
        field: |http| &mut http.forwarded,
        limits: Limits::None,
        doc: "Whether members get a `Forwarded` field (RFC 7239).",
        example: "true",
    },
    Key {
        name: "via",
        field: |http| &mut http.via,
        limits: Limits::Text(
            "a token of RFC 9110 (letters, digits, - . _ and a few more)",
            is_rfc9110_token,
        ),
        doc: "Name under which the balancer adds itself to `Via`; `false` adds nothing.",
        example: r#""edge-1""#,
    },
    Key {
        name: "trust_forwarded",
        field: |http| &mut http.trust_forwarded,
        limits: Limits::None,
        doc: "Whether these fields are kept as clients send them. Switch it on only behind \
              another proxy: otherwise any client can claim any address. Off, they are \
              removed before the balancer writes its own.",
        example: "true",
    },
    Key {
        name: "retries",
        field: |http| &mut http.retries,
        limits: Limits::Number(0.0, 10.0, "further tries"),
        doc: "Most further tries, each at another member, for a request that may be tried \
              again without harm: none of it was sent, or it is idempotent (RFC 9110, \
              section 9.2.2) and the member broke off, answered garbage or stayed silent.",
        example: "1",
    },
    Key {
        name: "retry_budget",
        field: |http| &mut http.retry_budget,
        limits: Limits::Number(0.0, 1.0, ""),
        doc: "Retries may add at most this share to the requests, so that they cannot bury \
              members that are slow already. 0.2 is 20 %.",
        example: "0.1",
    },
    Key {
        name: "pool_idle_connections",
        field: |http| &mut http.pool_idle_connections,
        limits: Limits::Number(0.0, 65_536.0, "connections"),
        doc: "Idle connections to a member that each worker keeps for later requests.",
        example: "16",
    },
    Key {
        name: "pool_idle_timeout",
        field: |http| &mut http.pool_idle_timeout,
        limits: Limits::Time(MILLISECOND, DAY),
        doc: "How long each of them is kept. Best below the keep-alive timeout of the members.",
        example: r#""4s""#,
    },
];

/// Tables that are nothing but their keys.
macro_rules! table_field {
    ($type:ty, $keys:path, $what:literal) => {
        impl $crate::fields::Field for $type {
            fn read(
                &mut self,
                item: &$crate::document::Item<'_>,
                limits: &$crate::fields::Limits,
                report: &mut $crate::document::Report<'_>,
            ) {
                match $crate::parse::Table::open(item) {
                    Some(mut table) => {
                        table.read($keys, self, report);
                        table.finish(report);
                    }
                    None => {
                        let allowed = self.allowed(limits);
                        report.wrong(item, $crate::fields::WRONG_TYPE, allowed);
                    }
                }
            }

            fn show(&self, _: &$crate::fields::Limits) -> Option<String> {
                None
            }

            fn allowed(&self, _: &$crate::fields::Limits) -> String {
                $what.into()
            }
        }
    };
}
pub(super) use table_field;
table_field!(HttpOptions, HTTP, "a table of HTTP options");
table_field!(AlertSettings, ALERT, "a table of alert settings");

/// Keys that only a group can have, not `[defaults]`.
pub(super) static GROUP_OWN: &[Key<GroupConfig>] = &[
    Key {
        name: "members",
        field: |group| &mut group.members,
        limits: Limits::None,
        doc: "The members: addresses, or tables with the keys of a member. **Required**, at \
              least one, unless agents may join. A host name with several addresses becomes \
              one member per address, and is followed as it changes.",
        example: r#"["10.0.0.1:80", { address = "10.0.0.2:80", weight = 2 }]"#,
    },
    Key {
        name: "agents_may_join",
        field: |group| &mut group.agents_may_join,
        limits: Limits::None,
        doc: "Whether a server that an agent registers for this group becomes a member \
              without standing in the file, until the agent signs off or is forgotten. \
              Whoever has a key of the [`[broker]`](#broker) can then add members; where, \
              `allowed_networks` says.",
        example: "true",
    },
];

/// Keys of a group that `[defaults]` can have, too, and that make sense whoever its members
/// are.
pub(super) static GROUP: &[Key<GroupConfig>] = &[
    Key {
        name: "strategy",
        field: |group| &mut group.strategy,
        limits: Limits::None,
        doc: "How the next member is chosen: a name, or a table of a name and parameters. \
              `evenkeel strategies` and [strategies.md](strategies.md) say more about each. The \
              default is that of clients that are not bound; where they are, it is another one: \
              see [which default holds](strategies.md#which-default-holds).",
        example: r#"{ name = "least_request", choices = 3 }"#,
    },
    Key {
        name: "granularity",
        field: |group| &mut group.settings.granularity,
        limits: Limits::None,
        doc: "When the strategy is asked: once per client connection, for every request, or \
              once and again only when the member's location is under a load alert. A TCP \
              connection is one request. A group that clusters use, and no rule, is \
              `on_demand` by default.",
        example: r#""per_session""#,
    },
    Key {
        name: "adaptive",
        field: |group| &mut group.settings.adaptive,
        limits: Limits::None,
        doc: "Whether reported loads and alerts take part in decisions.",
        example: "false",
    },
    Key {
        name: "rebind_interval",
        field: |group| &mut group.settings.rebind_interval,
        limits: Limits::Time(MILLISECOND, DAY),
        doc: "With granularity `on_demand` and `adaptive = false`: how long a client stays \
              bound to its member.",
        example: r#""5m""#,
    },
    Key {
        name: "load",
        field: |group| &mut group.settings.load_id,
        limits: Limits::None,
        doc: "Which reported load the strategy looks at, by name or by number. With a \
              `monitor` the default is `composite`, with strategy `least_utilization` it is \
              `utilization`. Where a location does not report its `utilization`, its `cpu` counts.",
        example: r#""utilization""#,
    },
    Key {
        name: "load_max_age",
        field: |group| &mut group.settings.load_max_age,
        limits: Limits::Time(MILLISECOND, secs(3600)),
        doc: "A load report older than this counts as unknown.",
        example: r#""3s""#,
    },
    Key {
        name: "latency_decay",
        field: |group| &mut group.settings.latency_decay,
        limits: Limits::Time(MILLISECOND, secs(3600)),
        doc: "How fast observed latencies and failures are forgotten: after this time a third \
              of their weight is left.",
        example: r#""3s""#,
    },
    Key {
        name: "failure_penalty",
        field: |group| &mut group.settings.failure_penalty,
        limits: Limits::Time(Duration::ZERO, secs(300)),
        doc: "What a failure costs a member at least, as if it were a latency, so that one \
              that fails fast does not look fast.",
        example: r#""2s""#,
    },
    Key {
        name: "slow_start",
        field: |group| &mut group.settings.slow_start,
        limits: Limits::Time(Duration::ZERO, secs(3600)),
        doc: "How long a member that is new, or back, takes to get its full share; `\"0s\"` \
              is at once.",
        example: r#""30s""#,
    },
    Key {
        name: "panic_threshold",
        field: |group| &mut group.settings.panic_threshold,
        limits: Limits::Number(0.0, 1.0, ""),
        doc: "Share of the members that may be down or ejected. Above it their state is not \
              believed, and all are used. Members that refuse connections do not count, and \
              are not used.",
        example: "0.3",
    },
    Key {
        name: "alert",
        field: |group| &mut group.settings.alert,
        limits: Limits::None,
        doc: "When locations are told to shed the load that they have; see there.",
        example: "{ threshold = 0.9 }",
    },
    Key {
        name: "connection_failure_limit",
        field: |group| &mut group.connection_failure_limit,
        limits: Limits::Number(1.0, 1000.0, "failures"),
        doc: "After so many failures in a row a member is taken out for a while: refused or \
              broken connections, timeouts, garbage. An answer with a 5xx code is none; \
              members that give far more of those than the others are taken out for that.",
        example: "3",
    },
];

/// Further keys that `[defaults]` can have, too: of a group whose members are addresses.
pub(super) static ADDRESSED: &[Key<GroupConfig>] = &[
    Key {
        name: "max_queue",
        field: |group| &mut group.max_queue,
        limits: Limits::Number(0.0, 1_000_000.0, "requests"),
        doc: "Requests that may wait when all members are at their connection limit. \
              Further ones are refused.",
        example: "100",
    },
    Key {
        name: "dns_interval",
        field: |group| &mut group.dns_interval,
        limits: Limits::Time(secs(1), DAY),
        doc: "How often host names of members are resolved again. An address that is missing from an answer gets no new traffic. If it comes back within five minutes, or while it still has requests, it is the same member as before: its requests, latency and health count on. Within five minutes there is no slow start either, so a name may give a part of its addresses at a time. A group remembers the last 1,024 addresses that left.",
        example: r#""1m""#,
    },
    Key {
        name: "allowed_networks",
        field: |group| &mut group.allowed_networks,
        limits: Limits::None,
        doc: "Networks in which members may be that agents register, or that host names resolve \
              to: a list, and nothing else then. Without it every address may be one, except \
              loopback, link-local, unspecified, multicast and broadcast addresses and those of \
              cloud metadata. `localhost` may be loopback. Where the balancer itself listens \
              nobody joins or resolves to, whatever is listed. An IPv4 address in IPv6 \
              notation counts as IPv4. Members whose IP address stands in the file are not asked.",
        example: r#"["10.0.0.0/8", "fd00::/8"]"#,
    },
    Key {
        name: "health_check",
        field: |group| &mut group.health_check,
        limits: Limits::None,
        doc: "Active health check: a table (see there), `true` for one with all defaults, \
              `false` for none.",
        example: r#"{ doc_path = "/healthz" }"#,
    },
    Key {
        name: "agent_check",
        field: |group| &mut group.agent_check,
        limits: Limits::None,
        doc: "Whether an agent beside each member is asked for its weight and state: a table \
              (see there), `false` for none.",
        example: "{ port = 8765 }",
    },
    Key {
        name: "orca",
        field: |group| &mut group.orca,
        limits: Limits::None,
        doc: "Whether members report their load by ORCA: a table (see there), `true` for one \
              with all defaults, `false` for none.",
        example: "true",
    },
    Key {
        name: "prometheus",
        field: |group| &mut group.prometheus,
        limits: Limits::None,
        doc: "Whether loads are worked out from metrics in Prometheus' text format: a table \
              (see there), `false` for none.",
        example: r#"{ url = "http://{host}:9100/metrics", preset = "node_exporter" }"#,
    },
    Key {
        name: "monitor",
        field: |group| &mut group.monitor,
        limits: Limits::None,
        doc: "Whether the loads of the group's locations are read from their kernels: a table \
              (see there), `false` for no.",
        example: r#"{ key_file = "/etc/evenkeel/monitor.key" }"#,
    },
];

/// Keys of `[group.NAME.alert]`.
pub(super) static ALERT: &[Key<AlertSettings>] = &[
    Key {
        name: "threshold",
        field: |alert| &mut alert.threshold,
        limits: Limits::None,
        doc: "Above which effective load a location is told to shed: a number is that load \
              itself; `above_minimum` is a share above the smallest load that is not 0, \
              `above_average` one above the average (0.4 is 40 %). Without it the \
              strategy's parameters decide, if it has any for that.",
        example: "{ above_average = 0.5 }",
    },
    Key {
        name: "release",
        field: |alert| &mut alert.release,
        limits: Limits::Number(0.01, 1.0, ""),
        doc: "An alert is lifted when the load is not above this share of the threshold (or \
              of what a relative one allows on top), so that it does not flap.",
        example: "0.7",
    },
    Key {
        name: "max_share",
        field: |alert| &mut alert.max_share,
        limits: Limits::Number(0.0, 1.0, ""),
        doc: "Most locations that are under alert at the same time, and that the group \
              sends clients away from, as a share of those that take traffic. Whatever it \
              is, one location is always left to go to: the least loaded one.",
        example: "0.25",
    },
    Key {
        name: "shed_time",
        field: |alert| &mut alert.shed_time,
        limits: Limits::Time(Duration::ZERO, secs(3600)),
        doc: "Time of one step, over which a share of the clients of an alerted location \
              leaves it (`move_share`), so that they do not all arrive elsewhere at once.",
        example: r#""30s""#,
    },
    Key {
        name: "move_share",
        field: |alert| &mut alert.move_share,
        limits: Limits::Number(0.01, 1.0, ""),
        doc: "Share of the clients that are left which leaves in each step of `shed_time`, \
              as long as the alert lasts. A smaller one overshoots less where loads are \
              reported late, and takes longer.",
        example: "0.25",
    },
    Key {
        name: "move_sessions",
        field: |alert| &mut alert.move_sessions,
        limits: Limits::None,
        doc: "Whether HTTP clients that are bound with granularity `per_session` leave, too: \
              their next request goes to another member. Off, because what is bound per \
              session may have a session there.",
        example: "true",
    },
    Key {
        name: "close_idle",
        field: |alert| &mut alert.close_idle,
        limits: Limits::Time(Duration::from_millis(100), DAY),
        doc: "TCP connections, and HTTP connections that switched to another protocol, are \
              closed by an alert when nothing was sent for this long and the member had the \
              last word: their clients connect again, and get another member. One that \
              waits for an answer is never closed. Off by default, because a client may \
              not expect it. Needs granularity `per_session` or `on_demand`.",
        example: r#""2s""#,
    },
];

/// A threshold: a number, or a table that says what the number is relative to.
impl Field for Threshold {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let found = match item.value {
            DeValue::Table(table) => match &entries(&item.path, table)[..] {
                [one] => match (one.name, one.item.number()) {
                    ("critical", Some(load)) => Some(Threshold::Critical(load as f32)),
                    ("above_minimum", Some(share)) => Some(Threshold::AboveMinimum(share as f32)),
                    ("above_average", Some(share)) => Some(Threshold::AboveAverage(share as f32)),
                    _ => None,
                },
                _ => None,
            },
            _ => item.number().map(|load| Threshold::Critical(load as f32)),
        };
        let Some(found) = found else {
            return report.wrong(item, "not a threshold", self.allowed(limits));
        };
        let (Threshold::Critical(number)
        | Threshold::AboveMinimum(number)
        | Threshold::AboveAverage(number)) = found;
        if number > 0.0 && number <= LoadValue::MAX {
            *self = found;
        } else {
            report.wrong(item, OUT_OF_RANGE, self.allowed(limits));
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        "a number greater than 0, or a table with one such number as `critical`, \
         `above_minimum` or `above_average`"
            .into()
    }
}

impl Blank for Threshold {
    fn blank() -> Self {
        Threshold::Critical(LoadValue::MAX)
    }
}

/// Keys of a member.
pub(super) static MEMBER: &[Key<MemberConfig>] = &[
    Key {
        name: "address",
        field: |member| member,
        limits: Limits::None,
        doc: "Host name or IP address, and port. **Required.**",
        example: r#""app-1.internal:8080""#,
    },
    Key {
        name: "weight",
        field: |member| &mut member.weight,
        limits: Limits::None,
        doc: "Share of the traffic relative to the other members; 0 gets none.",
        example: "2.5",
    },
    Key {
        name: "location",
        field: |member| &mut member.location,
        limits: Limits::Text(LOCATION_NAMES.0, |text| LOCATION_NAMES.1(text)),
        doc: "Where it runs. Members of all groups at one location share its reported load. \
              By default the host of `address`.",
        example: r#""rack-7""#,
    },
    Key {
        name: "max_connections",
        field: |member| &mut member.max_connections,
        limits: Limits::Number(1.0, 10_000_000.0, "requests or connections"),
        doc: "Most requests (HTTP) or connections (TCP) at once. Without it there is no limit.",
        example: "100",
    },
    Key {
        name: "drain",
        field: |member| &mut member.drain,
        limits: Limits::None,
        doc: "Whether it gets no new traffic, and keeps what it has.",
        example: "true",
    },
    Key {
        name: "url",
        field: |member| &mut member.url,
        limits: Limits::None,
        doc: "Where clients that were bound by negotiation reach it: scheme, host and port. \
              By default the cluster's `scheme` with `address`; with the IP address, if \
              the host name has several.",
        example: r#""https://www-1.example.org""#,
    },
];

/// The members of a group.
impl Field for Vec<MemberConfig> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Array(list) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        if list.is_empty() {
            return report.wrong(item, "no members", self.allowed(limits));
        }
        let mut seen = std::collections::HashSet::new();
        self.clear();
        for element in item.elements(list) {
            let mut member = MemberConfig::new("", 0);
            let before = report.problems();
            match Table::open(&element) {
                Some(mut table) => {
                    table.read(MEMBER, &mut member, report);
                    if !table.given("address") {
                        let message = "`address` is missing".into();
                        report.misplaced(&element.span, &element.path, message, None);
                    }
                    table.finish(report);
                }
                None => member.read(&element, limits, report),
            }
            if report.problems() > before {
                continue;
            }
            if seen.insert(member.name()) {
                self.push(member);
            } else {
                let message = format!("{} is a member already", member.name());
                report.problem(&element.span, &element.path, message, None);
            }
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a list of addresses as in "10.0.0.1:80", or of tables as in { address = "10.0.0.1:80", weight = 2 }"#.into()
    }
}

/// What a `health_check` table says.
pub(super) struct HealthDraft {
    check: HealthCheck,
    kind: CheckType,
    path: String,
    host: Option<String>,
    codes: Vec<u16>,
    text: Option<String>,
}

/// `type` of a health check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckType {
    Tcp,
    Http,
}

super::fields::choice_field!(CheckType,
    "tcp" => CheckType::Tcp = CheckType::Tcp,
    "http" => CheckType::Http = CheckType::Http);

impl HealthDraft {
    pub fn of(check: HealthCheck) -> Self {
        let mut draft = HealthDraft {
            kind: CheckType::Tcp,
            path: "/".into(),
            host: None,
            codes: (200..=399).collect(),
            text: None,
            check,
        };
        if let HealthCheckKind::Http {
            path,
            host,
            codes,
            text,
        } = &draft.check.kind
        {
            draft.kind = CheckType::Http;
            draft.path = path.clone();
            draft.host = host.clone();
            draft.codes = codes.clone();
            draft.text = text.clone();
        }
        draft
    }

    fn into_check(self) -> HealthCheck {
        let kind = match self.kind {
            CheckType::Tcp => HealthCheckKind::Tcp,
            CheckType::Http => HealthCheckKind::Http {
                path: self.path,
                host: self.host,
                codes: self.codes,
                text: self.text,
            },
        };
        HealthCheck { kind, ..self.check }
    }
}

/// Keys of a health check that make it an HTTP check.
const HTTP_CHECK: [&str; 4] = ["doc_path", "host", "response_code", "doc_text"];

/// Keys of a `health_check` table.
pub(super) static HEALTH_CHECK: &[Key<HealthDraft>] = &[
    Key {
        name: "type",
        field: |draft| &mut draft.kind,
        limits: Limits::None,
        doc: "`tcp`: a connection can be established. `http`: a GET is answered as \
              expected. With `doc_path`, `host`, `response_code` or `doc_text` the default \
              is `http`.",
        example: r#""http""#,
    },
    Key {
        name: "frequency",
        field: |draft| &mut draft.check.frequency,
        limits: Limits::Time(Duration::from_millis(10), DAY),
        doc: "Time between two checks of a member.",
        example: r#""500ms""#,
    },
    Key {
        name: "timeout",
        field: |draft| &mut draft.check.timeout,
        limits: Limits::Time(MILLISECOND, secs(3600)),
        doc: "Time after which a check has failed.",
        example: r#""300ms""#,
    },
    Key {
        name: "fall",
        field: |draft| &mut draft.check.fall,
        limits: Limits::Number(1.0, 1000.0, "checks"),
        doc: "Failed checks in a row until a member is down.",
        example: "2",
    },
    Key {
        name: "rise",
        field: |draft| &mut draft.check.rise,
        limits: Limits::Number(1.0, 1000.0, "checks"),
        doc: "Passed checks in a row until it is up again.",
        example: "3",
    },
    Key {
        name: "port",
        field: |draft| &mut draft.check.port,
        limits: Limits::Number(1.0, 65_535.0, ""),
        doc: "Another port to check than the member's.",
        example: "8081",
    },
    Key {
        name: "doc_path",
        field: |draft| &mut draft.path,
        limits: Limits::Text(
            "a path that begins with \"/\", of visible ASCII characters",
            |text| text.starts_with('/') && text.len() <= 2048 && is_visible(text),
        ),
        doc: "HTTP: the document to ask for, with a query if need be.",
        example: r#""/healthz""#,
    },
    Key {
        name: "host",
        field: |draft| &mut draft.host,
        limits: Limits::Text("a host name, with or without a port", |text| {
            let (name, port) = text.split_once(':').unwrap_or((text, "80"));
            is_host_name(name) && port.parse::<u16>().is_ok()
        }),
        doc: "HTTP: the `Host` field. By default the member's address.",
        example: r#""www.example.org""#,
    },
    Key {
        name: "response_code",
        field: |draft| &mut draft.codes,
        limits: Limits::None,
        doc: "HTTP: response codes that pass.",
        example: r#"[200, 204, "300-399"]"#,
    },
    Key {
        name: "doc_text",
        field: |draft| &mut draft.text,
        limits: Limits::Text("1 to 1024 characters", |text| {
            (1..=1024).contains(&text.len())
        }),
        doc: "HTTP: a text that the document must hold.",
        example: r#""all systems go""#,
    },
];

/// A health check: a table, or `true` for all defaults.
impl Field for HealthCheck {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        if matches!(item.value, DeValue::Boolean(true)) {
            return;
        }
        let Some(mut table) = Table::open(item) else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        let mut draft = HealthDraft::of(self.clone());
        table.read(HEALTH_CHECK, &mut draft, report);
        let http = HTTP_CHECK.into_iter().find(|key| table.given(key));
        match http {
            Some(key) if table.given("type") && draft.kind == CheckType::Tcp => {
                let message = format!("`{key}` needs `type = \"http\"`");
                report.problem(&item.span, &item.path, message, None);
            }
            Some(_) => draft.kind = CheckType::Http,
            None => {}
        }
        table.finish(report);
        *self = draft.into_check();
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table, or true".into()
    }
}

impl Blank for HealthCheck {
    fn blank() -> Self {
        HealthCheck::new(HealthCheckKind::Tcp)
    }
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether `text` can be a bearer token here.
pub(super) fn is_token(text: &str) -> bool {
    (8..=512).contains(&text.len()) && is_visible(text)
}

/// A token of RFC 9110, section 5.6.2.
fn is_rfc9110_token(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// A table of the file with its keys, as the reference and the hints see it.
pub(super) struct TableDoc {
    /// How it stands in the file; empty for the top.
    pub header: &'static str,
    /// What it is.
    pub doc: &'static str,
    /// Its keys.
    pub keys: Vec<KeyDoc>,
}

/// A key, as the reference sees it.
pub(super) struct KeyDoc {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub allowed: String,
    /// Its default as it would stand in the file.
    pub default: Option<String>,
    /// What it means.
    pub doc: &'static str,
    /// A value.
    pub example: &'static str,
}

/// What the keys of a table mean, with the values of `default` as theirs.
pub(super) fn docs<T>(keys: &'static [Key<T>], mut default: T) -> Vec<KeyDoc> {
    keys.iter()
        .map(|key| {
            let field = (key.field)(&mut default);
            KeyDoc {
                name: key.name,
                allowed: field.allowed(&key.limits),
                default: field.show(&key.limits),
                doc: key.doc,
                example: key.example,
            }
        })
        .collect()
}

/// All tables of the file.
pub(super) fn tables() -> Vec<TableDoc> {
    let rule = || Rule::new("", Vec::new(), "");
    let group = || GroupConfig::new("", Vec::new());
    let member = MemberConfig::new("", 0);
    let mut rule_keys = docs(RULE_OWN, rule());
    rule_keys.extend(docs(RULE, rule()));
    let mut group_keys = docs(GROUP_OWN, group());
    group_keys.extend(docs(GROUP, group()));
    group_keys.extend(docs(ADDRESSED, group()));
    let [group_monitor, location] = super::monitor::tables();
    let mut tables = vec![
        TableDoc {
            header: "",
            doc: "Keys that stand before the first table.",
            keys: docs(TOP, Config::default()),
        },
        TableDoc {
            header: "[admin]",
            doc: "The admin API, with metrics; on a loopback address unless told otherwise. \
                  Changes need a restart.",
            keys: docs(ADMIN, AdminDraft::default()),
        },
        TableDoc {
            header: "[access_log]",
            doc: "The access log.",
            keys: docs(ACCESS_LOG, Config::default()),
        },
        TableDoc {
            header: "[rule.NAME]",
            doc: "A rule: a service that clients connect to. `NAME` is yours to choose \
                  (letters, digits, `-`, `_` and `.`, at most 64).",
            keys: rule_keys,
        },
        TableDoc {
            header: "[rule.NAME.http]",
            doc: "What only HTTP rules have.",
            keys: docs(HTTP, HttpOptions::default()),
        },
        TableDoc {
            header: "[group.NAME]",
            doc: "A group of members. All these keys may also stand in `[rule.NAME]`, for \
                  the rule's own group.",
            keys: group_keys,
        },
        TableDoc {
            header: "[group.NAME.health_check]",
            doc: "Active health check of a group; off unless the table is there.",
            keys: docs(HEALTH_CHECK, HealthDraft::of(HealthCheck::blank())),
        },
        TableDoc {
            header: "[group.NAME.agent_check]",
            doc: "Agent check of a group, as HAProxy has it; off unless the table is there. \
                  [load-reports.md](load-reports.md) says how this and the next tables are \
                  used.",
            keys: docs(reports::AGENT_CHECK, Blank::blank()),
        },
        TableDoc {
            header: "[group.NAME.orca]",
            doc: "ORCA load reports of a group; off unless the table is there, because \
                  whatever can set a field of a response could else change where requests go.",
            keys: docs(reports::ORCA, Orca::default()),
        },
        TableDoc {
            header: "[group.NAME.orca.out_of_band]",
            doc: "ORCA over gRPC (`xds.service.orca.v3.OpenRcaService`, without TLS); off \
                  unless the table is there.",
            keys: docs(reports::ORCA_SERVICE, Blank::blank()),
        },
        TableDoc {
            header: "[group.NAME.prometheus]",
            doc: "Metrics of a group; off unless the table is there.",
            keys: docs(reports::PROMETHEUS, PrometheusDraft::default()),
        },
        group_monitor,
        TableDoc {
            header: "[group.NAME.alert]",
            doc: "Load alerts of a group: when its locations shed the load that is already \
                  there. They need load reports. Groups share locations, so an alert counts \
                  in each `adaptive` group that binds clients there (granularity \
                  `per_session` or `on_demand`): new clients go to other members as long as \
                  there are any, and clients that are bound with `on_demand` leave between \
                  two requests; see `move_sessions` and `close_idle` for the others.",
            keys: docs(ALERT, AlertSettings::default()),
        },
        TableDoc {
            header: "[[group.NAME.members]]",
            doc: "A member of a group; may also stand in a list, as \
                  `members = [{ address = \"10.0.0.1:80\" }]`.",
            keys: docs(MEMBER, member),
        },
        location,
    ];
    tables.extend(super::broker::tables());
    tables.extend(super::negotiator::tables());
    tables.extend(super::corba::tables());
    tables
}
