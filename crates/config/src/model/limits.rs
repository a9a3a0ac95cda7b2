//! `[rule.NAME.limits]`: limits for each client of a rule; `request_limits`: further limits of requests.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evenkeel_core::key::{Key, ParseKeyError};

use crate::schema::document::{Item, quote};
use crate::schema::field::{Element, Field, blank, read_text};
use crate::schema::frequency::{ByteRate, Frequency};
use crate::schema::key::{DAY, HOUR, describe_keys, secs, section};
use crate::schema::networks::Networks;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, NAMES, Table};

section! {
    /// Limits of a rule.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Limits {}
    keys LIMITS {
        /// HTTP: number of requests which a client may send in a time. Further requests are answered with
        /// `status` and `Retry-After`. You choose with `key` what counts as a client.
        requests: Option<Frequency> = None; r#""100/s""#,
        /// Number of requests which may come at once. By default the number in `requests`: `"100/s"` allows 100
        /// at once. Raise the number if your clients load many files for a page.
        burst: Option<u32> [Number(1.0, 10_000_000.0, "requests")] = None; "200",
        /// HTTP: requests to count together: with the same client address (`client`), or with the same
        /// `header:NAME`, `cookie:NAME`, `path` or `uri`; `all` counts the requests of all clients together.
        /// Requests without such a part count for the client's address. Use `forwarded_for`, the last address
        /// in `X-Forwarded-For`, if your rule is behind a proxy which adds the field; for `forwarded_for` you
        /// need `trust_forwarded` in the rule's `http`.
        key: LimitKey = LimitKey::Part(Key::Client); r#""header:X-Api-Key""#,
        /// HTTP: status of the answer to requests above the limit.
        status: u16 [Number(400.0, 599.0, "")] = 429; "503",
        /// Maximum number of open connections of a client address at once. Further connections are reset. Set a
        /// limit well above what many clients behind one address need.
        connections: Option<u32> [Number(1.0, 1_000_000.0, "connections")] = None; "50",
        /// Number of connections which a client address may open in a time. Further connections are reset.
        new_connections: Option<Frequency> = None; r#""20/s""#,
        /// Number of connections which may come at once. By default the number in `new_connections`.
        new_connections_burst: Option<u32> [Number(1.0, 10_000_000.0, "connections")] = None; "40",
        /// HTTP: slowest rate at which a client may send the body of a request, beyond `rate_grace`. A slower
        /// client gets 408. Time in which the balancer waits for the member does not count. Calls of gRPC are
        /// not limited. Set a rate to protect your members from clients which send slowly on purpose.
        min_body_rate: Option<ByteRate> [Bytes(1, 1024 * 1024 * 1024)] = None; r#""500B/s""#,
        /// HTTP: slowest rate at which a client may take a response. A slower client is cut off. Data in the
        /// sockets counts as taken.
        min_response_rate: Option<ByteRate> [Bytes(1, 1024 * 1024 * 1024)] = None; r#""500B/s""#,
        /// Time that a body may take beyond these rates.
        rate_grace: Duration [Time(secs(1), HOUR)] = secs(10); r#""20s""#,
        /// HTTP: maximum number of requests in a client's connection. After the last request the connection
        /// ends in order: `Connection: close`, or GOAWAY with HTTP/2. The limit is up to a tenth lower, by
        /// chance, so that not all clients connect again at once.
        max_requests: Option<u32> [Number(1.0, 1_000_000_000.0, "requests")] = None; "1000",
        /// Maximum age of a client's connection; up to a tenth less, by chance. HTTP: requests under way are
        /// finished, and the connection ends as with `max_requests`; WebSockets go on. TCP: the connection is
        /// cut. Set an age if your clients must spread over balancers again after a change.
        max_lifetime: Option<Duration> [Time(secs(1), DAY)] = None; r#""1h""#,
        /// Bytes per second for all clients of the rule together, each for sending and for receiving. Set a
        /// limit if one rule must not take the whole network.
        bandwidth: Option<ByteRate> [Bytes(4096, 1024 * 1024 * 1024 * 1024)] = None; r#""10MiB/s""#,
        /// Bytes per second in one connection of a client, each for sending and for receiving. All streams of
        /// HTTP/2, and all data connections of an FTP session, share the limit.
        connection_bandwidth: Option<ByteRate> [Bytes(4096, 1024 * 1024 * 1024 * 1024)] = None; r#""1MiB/s""#,
        /// Networks of clients without the limits `requests`, `connections` and `new_connections`. List your
        /// own monitoring and your proxies here.
        except: Option<Networks> = None; r#"["10.0.0.0/8", "192.0.2.7"]"#,
        /// Number of leading bits of an IPv4 address that count: addresses with the same bits are one client.
        ipv4_prefix: u16 [Number(8.0, 32.0, "bits")] = 32; "24",
        /// Number of leading bits of an IPv6 address that count. A client mostly has an IPv6 network of its
        /// own.
        ipv6_prefix: u16 [Number(16.0, 128.0, "bits")] = 64; "56",
        /// Number of remembered clients, for each of `requests`, `connections` and `new_connections`. With more
        /// clients, the limits of some are lifted now and then: see [what the table
        /// guarantees](limits.md#the-table). Raise the number if you have more clients at a time. Each takes 16
        /// bytes.
        table_size: usize [Number(1024.0, 4_194_304.0, "clients")] = 65_536; "1000000",
    }
}

section! {
    /// A limit of requests, or of tokens.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RequestLimit {}
    keys REQUEST_LIMIT {
        /// Name of the limit in the access log, metrics and the status; behind the name of the route, if you
        /// set the limit at a route. Without a name, the limit is shown by its number, from 1.
        name: Option<String> [Text(NAMES)] = None; r#""logins""#,
        /// Number of requests which a client may send in a time. Set `requests` or `tokens`.
        requests: Option<Frequency> = None; r#""5/m""#,
        /// Number of [tokens](inference.md#limits-of-tokens) of language models which a client may use in a time, those of
        /// prompts and of answers. Needs a group with strategy `inference`.
        tokens: Option<Frequency> = None; r#""100000/m""#,
        /// Number of requests, or tokens, which may come at once. By default the number in `requests` or `tokens`.
        burst: Option<u32> [Number(1.0, 10_000_000.0, "requests")] = None; "10",
        /// Requests to count together, as in `limits`.
        key: LimitKey = LimitKey::Part(Key::Client); r#""header:X-Api-Key""#,
        /// Status of the answer to requests above the limit.
        status: u16 [Number(400.0, 599.0, "")] = 429; "503",
        /// Networks of clients without this limit.
        except: Option<Networks> = None; r#"["10.0.0.0/8"]"#,
        /// Number of leading bits of an IPv4 address that count.
        ipv4_prefix: u16 [Number(8.0, 32.0, "bits")] = 32; "24",
        /// Number of leading bits of an IPv6 address that count.
        ipv6_prefix: u16 [Number(16.0, 128.0, "bits")] = 64; "56",
        /// Number of remembered clients. Raise the number if you have more clients at a time. Each takes 16
        /// bytes.
        table_size: usize [Number(1024.0, 4_194_304.0, "clients")] = 65_536; "10000",
    }
}

blank!(RequestLimit);

impl AsTable for RequestLimit {
    const ALLOWED: &'static str = "a table of a limit of requests";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(REQUEST_LIMIT, self, report);
        match (table.has_key("requests"), table.has_key("tokens")) {
            (true, true) => {
                let message = "stands beside `requests`: write two limits, one with `requests` and one with `tokens`";
                table.report_problem("tokens", message, report);
            }
            (false, false) => table.require("requests", report),
            _ => {}
        }
    }
}

impl Element for RequestLimit {
    const NONE: Option<&'static str> = None;
}

/// Most limits of requests in a list.
pub const MAX_REQUEST_LIMITS: usize = 8;

/// Names that limits of requests cannot have, as others have them.
const TAKEN: [&str; 6] = [
    "requests",
    "connections",
    "new_connections",
    "min_body_rate",
    "min_response_rate",
    "max_lifetime",
];

impl RequestLimit {
    /// Rate of requests, or of tokens.
    pub fn rate(&self) -> Frequency {
        self.tokens.or(self.requests).unwrap_or_default()
    }

    /// Rate as administrators see it: `5/m`, or `1000/m tokens`.
    pub fn shown_rate(&self) -> String {
        let unit = if self.tokens.is_some() { " tokens" } else { "" };
        format!("{}{unit}", self.rate())
    }

    /// Number of requests, or of tokens, that may come at once.
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.rate().count)
    }

    /// Name of the limit at this place of a list, where all limits of the rule are shown; `route` is the name
    /// of the route whose list it is.
    pub fn label(&self, place: usize, route: Option<&str>) -> String {
        let number = || (place + 1).to_string();
        let own = self.name.clone().unwrap_or_else(number);
        match route {
            Some(route) => format!("{route}/{own}"),
            None => own,
        }
    }

    /// Looks at a list that stands in `table`: what it needs of the rule, and whether `labels`, those of the
    /// lists before, are others.
    pub(crate) fn check_list(
        list: &[RequestLimit],
        (route, trusts): (Option<&str>, bool),
        labels: &mut HashSet<String>,
        table: &Table<'_>,
        report: &mut Report<'_>,
    ) {
        const KEY: &str = "request_limits";
        if list.len() > MAX_REQUEST_LIMITS {
            let message = format!("more than {MAX_REQUEST_LIMITS} limits");
            table.report_problem(KEY, message, report);
        }
        for (place, limit) in list.iter().enumerate() {
            let label = limit.label(place, route);
            if limit.key == LimitKey::ForwardedFor && !trusts {
                let message = format!("limit {label}: {FORGED}");
                table.report_problem(KEY, message, report);
            }
            if TAKEN.contains(&label.as_str()) {
                let message = format!("limit {label}: another limit is called so, choose a name");
                table.report_problem(KEY, message, report);
            } else if !labels.insert(label.clone()) {
                let message = format!(
                    "there are two limits {label}: give one of them, or its route, another name"
                );
                table.report_problem(KEY, message, report);
            }
        }
    }
}

/// Error for the key `forwarded_for`.
pub(crate) const FORGED: &str = "clients can write what they like in that field, unless a proxy in front sets \
     it: then say so with `trust_forwarded = true` in `http` of the rule";

/// Key of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitKey {
    /// All clients together.
    All,
    /// Part of a request.
    Part(Key),
    /// Last address in `X-Forwarded-For`.
    ForwardedFor,
}

impl Default for LimitKey {
    fn default() -> Self {
        LimitKey::Part(Key::Client)
    }
}

/// Names of two keys in the file.
const FORWARDED_FOR: &str = "forwarded_for";
const ALL: &str = "all";

impl FromStr for LimitKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        match text {
            FORWARDED_FOR => Ok(LimitKey::ForwardedFor),
            ALL => Ok(LimitKey::All),
            _ => text.parse().map(LimitKey::Part),
        }
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitKey::Part(key) => key.fmt(f),
            LimitKey::ForwardedFor => f.write_str(FORWARDED_FOR),
            LimitKey::All => f.write_str(ALL),
        }
    }
}

impl Field for LimitKey {
    fn read(
        &mut self,
        item: &Item<'_>,
        limits: &crate::schema::field::Limits,
        report: &mut Report<'_>,
    ) {
        read_text(self, item, limits, report, |text| {
            text.parse().map_err(|ParseKeyError| "no part of a request")
        });
    }

    fn show(&self, _: &crate::schema::field::Limits) -> Option<String> {
        Some(quote(&self.to_string()))
    }

    fn allowed(&self, _: &crate::schema::field::Limits) -> String {
        r#""client", "forwarded_for", "header:NAME", "cookie:NAME", "path", "uri" or "all""#.into()
    }
}

blank!(LimitKey);

/// Keys that only a rule with `protocol = "http"` may have.
const HTTP_ONLY: [&str; 8] = [
    "requests",
    "burst",
    "key",
    "status",
    "min_body_rate",
    "min_response_rate",
    "rate_grace",
    "max_requests",
];

/// Keys that mean nothing without another one.
const DEPENDENT: [(&str, &[&str]); 9] = [
    ("rate_grace", &["min_body_rate", "min_response_rate"]),
    ("burst", &["requests"]),
    ("key", &["requests"]),
    ("status", &["requests"]),
    ("new_connections_burst", &["new_connections"]),
    ("except", PER_CLIENT),
    ("ipv4_prefix", PER_CLIENT),
    ("ipv6_prefix", PER_CLIENT),
    ("table_size", PER_CLIENT),
];

const PER_CLIENT: &[&str] = &["requests", "connections", "new_connections"];

impl AsTable for Limits {
    const ALLOWED: &'static str = "a table of limits";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(LIMITS, self, report);
        for (key, needs) in DEPENDENT {
            if table.has_key(key) && !needs.iter().any(|need| table.has_key(need)) {
                let needs = needs.join("`, `");
                let message = format!("has no effect without `{needs}`");
                table.report_problem(key, message, report);
            }
        }
    }
}

impl Limits {
    /// Keys that are not for TCP, as they stand in `table`, which is that of the limits.
    pub(crate) fn check_tcp(table: &Table<'_>, report: &mut Report<'_>) {
        for key in HTTP_ONLY.into_iter().filter(|key| table.has_key(key)) {
            let message = "only a rule with `protocol = \"http\"` has this limit";
            table.report_problem(key, message, report);
        }
    }

    /// Limit of requests in these settings, as a limit by itself.
    pub fn of_requests(&self) -> Option<RequestLimit> {
        Some(RequestLimit {
            name: Some("requests".into()),
            requests: Some(self.requests?),
            tokens: None,
            burst: self.burst,
            key: self.key.clone(),
            status: self.status,
            except: self.except.clone(),
            ipv4_prefix: self.ipv4_prefix,
            ipv6_prefix: self.ipv6_prefix,
            table_size: self.table_size,
        })
    }

    /// Number of connections that may come at once.
    pub fn new_connections_burst(&self) -> u32 {
        let of_rate = |rate: Frequency| rate.count;
        let own = self.new_connections_burst;
        own.or(self.new_connections.map(of_rate)).unwrap_or(1)
    }
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 2] {
    let doc = "[Limits](limits.md) of a rule, for each client and for all together.";
    let requests = "[Further limits](limits.md#several-limits) of requests, or of tokens. You can set \
                    `request_limits` of a route with the same keys, for the requests of the route. \
                    At most 8 in each list.";
    let keys = describe_keys(REQUEST_LIMIT, RequestLimit::default());
    [
        TableDoc::new(
            "[rule.NAME.limits]",
            doc,
            [describe_keys(LIMITS, Limits::default())],
        ),
        TableDoc::new("[[rule.NAME.request_limits]]", requests, [keys]),
    ]
}
