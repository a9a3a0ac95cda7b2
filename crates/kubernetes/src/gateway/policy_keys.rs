//! Keys of the configuration that EvenkeelPolicies may set.

/// Key of limits of requests, which may be limits of tokens.
pub(crate) const LIMITS: &str = "request_limits";

/// Keys of groups that a policy may set, as in `[group.NAME]`. The others name members, files, and addresses of other
/// machines, or belong to other objects of the API.
pub(crate) const GROUP_KEYS: [&str; 24] = [
    "strategy",
    "granularity",
    "adaptive",
    "late_binding",
    "rebind_interval",
    "load",
    "hash_key",
    "load_max_age",
    "latency",
    "latency_decay",
    "failure_penalty",
    "slow_start",
    "panic_threshold",
    "alert",
    "ejection",
    "inference",
    "zones",
    "connection_failure_limit",
    "max_queue",
    "queue_target",
    "send_proxy",
    "health_check",
    "orca",
    "prometheus",
];

/// Keys of members that a policy may set, as in a table of `members`.
pub(crate) const MEMBER_KEYS: [&str; 1] = ["max_connections"];

/// Keys of routes of requests that a policy may set, as in a table of `routes`: limits, retries and times.
pub(crate) const ROUTE_KEYS: [&str; 14] = [
    LIMITS,
    "max_body",
    "retries",
    "retry_statuses",
    "retry_methods",
    "retry_max_body",
    "abort_on_close",
    "priority",
    "hedge",
    "connection_timeout",
    "idle_timeout",
    "queue_timeout",
    "body_timeout",
    "response_timeout",
];

/// Keys of rules that a policy may set, as in `[rule.NAME]`.
pub(crate) const RULE_KEYS: [&str; 8] = [
    "forward",
    "return_path",
    "anycast",
    "udp",
    "limits",
    "max_connections",
    LIMITS,
    "http",
];

/// Keys of `http` of rules that a policy may set: limits. The others are about trust in clients, or name groups.
pub(crate) const HTTP_KEYS: [&str; 6] = [
    "http2_streams",
    "max_header_bytes",
    "max_header_count",
    "retry_budget",
    "pool_idle_connections",
    "pool_idle_timeout",
];

/// Key of a group, a member, a route or a rule with its value, as the configuration has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyLine {
    /// Name of the key.
    pub key: String,
    /// Value in TOML.
    pub value: String,
}

impl PolicyLine {
    /// Writes the line.
    pub fn write(&self) -> String {
        format!("{} = {}", self.key, self.value)
    }
}

/// True if nobody may set a key inside a table by a policy: keys that name files of the machine, memory that all groups
/// share, and ports beside those of the service, which could be those of others at the same address.
pub(crate) fn is_of_machine(key: &str) -> bool {
    let is_file = key.ends_with("_file") || key.ends_with("_files");
    let is_memory = matches!(key, "index_memory" | "table_size" | "max_bytes");
    is_file || is_memory || matches!(key, "tls" | "port")
}

/// True if a URL is one of a member: the host is the member's address, and the port the member's. Other ports of the address
/// may be those of others, as of a node whose network a pod uses.
pub(crate) fn is_url_of_member(url: &str) -> bool {
    let rest = url.strip_prefix("http://");
    let rest = rest.or_else(|| url.strip_prefix("https://"));
    let rest = rest.and_then(|rest| rest.strip_prefix("{host}:{port}"));
    rest.is_some_and(|path| path.is_empty() || path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_come_from_the_member() {
        for (url, is) in [
            ("http://{host}:{port}/metrics", true),
            ("https://{host}:{port}/metrics?a={member}", true),
            ("http://{host}:{port}", true),
            ("https://{host}/metrics", false),
            ("http://{host}:9100", false),
            ("http://{host}:{port}0/metrics", false),
            ("http://{host}:{port}@a.example/", false),
            ("http://{host}.example/metrics", false),
            ("http://{host}?x", false),
            ("http://a.example/{host}", false),
            ("http://a.example@{host}/", false),
            ("ftp://{host}/", false),
            ("", false),
        ] {
            assert_eq!(is_url_of_member(url), is, "{url}");
        }
    }
}
