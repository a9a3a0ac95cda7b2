//! Words of HAProxy, nginx, Traefik and Envoy, and what is meant here: suggestions for
//! those who come from there.

/// Keys and tables of others with ours, the best one first.
static KEYS: &[(&[&str], &[&str])] = &[
    (
        &[
            "bind",
            "port",
            "address",
            "listener",
            "entrypoint",
            "entrypoints",
            "entry_points",
        ],
        &["listen"],
    ),
    (
        &[
            "server",
            "servers",
            "nodes",
            "hosts",
            "targets",
            "endpoints",
            "backends",
            "upstreams",
            "proxy_pass",
            "load_assignment",
            "server_template",
            "loadbalancer",
        ],
        &["members"],
    ),
    (&["url", "uri", "host", "endpoint"], &["address", "path"]),
    (
        &[
            "backend",
            "default_backend",
            "use_backend",
            "upstream",
            "service",
            "pool",
        ],
        &["group"],
    ),
    (&["services", "pools"], &["group"]),
    (
        &[
            "frontend",
            "frontends",
            "virtual_host",
            "virtual_hosts",
            "router",
            "routers",
            "http_listener",
        ],
        &["rule"],
    ),
    (
        &[
            "balance",
            "algorithm",
            "lb_policy",
            "lb_method",
            "load_balancing",
            "load_balancer",
            "policy",
            "method",
            "hash_policy",
            "leastconn",
            "least_conn",
            "roundrobin",
            "ip_hash",
        ],
        &["strategy"],
    ),
    (&["mode", "scheme"], &["protocol"]),
    (
        &[
            "maxconn",
            "max_conns",
            "max_conn",
            "fullconn",
            "connection_limit",
        ],
        &["max_connections"],
    ),
    (
        &["maxqueue", "max_pending_requests", "queue"],
        &["max_queue"],
    ),
    (
        &[
            "connect_timeout",
            "timeout_connect",
            "proxy_connect_timeout",
            "dial_timeout",
        ],
        &["connection_timeout"],
    ),
    (
        &[
            "timeout_server",
            "server_timeout",
            "read_timeout",
            "proxy_read_timeout",
            "request_timeout",
            "response_header_timeout",
            "fastcgi_read_timeout",
        ],
        &["response_timeout"],
    ),
    (
        &[
            "timeout_client",
            "client_timeout",
            "timeout_http_keep_alive",
            "keepalive_timeout",
        ],
        &["keep_alive_timeout", "idle_timeout"],
    ),
    (
        &["timeout_tunnel", "proxy_timeout", "stream_idle_timeout"],
        &["idle_timeout"],
    ),
    (
        &[
            "timeout_http_request",
            "client_header_timeout",
            "read_header_timeout",
        ],
        &["header_timeout"],
    ),
    (
        &["client_body_timeout", "proxy_send_timeout", "send_timeout"],
        &["body_timeout"],
    ),
    (&["timeout_queue"], &["queue_timeout"]),
    (
        &[
            "retry",
            "num_retries",
            "attempts",
            "max_retries",
            "proxy_next_upstream",
            "proxy_next_upstream_tries",
        ],
        &["retries"],
    ),
    (
        &["keepalive", "max_idle_connections"],
        &["pool_idle_connections"],
    ),
    (&["forwardfor", "option_forwardfor"], &["x_forwarded"]),
    (
        &[
            "check",
            "checks",
            "healthcheck",
            "health_checks",
            "option_httpchk",
            "httpchk",
        ],
        &["health_check"],
    ),
    (&["inter", "check_interval"], &["interval"]),
    (&["check_path", "health_check_path"], &["path"]),
    (
        &[
            "expect",
            "expected_status",
            "expected_statuses",
            "status",
            "codes",
        ],
        &["response_code"],
    ),
    (
        &["max_fails", "unhealthy_threshold", "consecutive_5xx"],
        &["fall", "connection_failure_limit"],
    ),
    (&["healthy_threshold"], &["rise"]),
    (&["slowstart"], &["slow_start"]),
    (&["load_balancing_weight", "lb_weight"], &["weight"]),
    (
        &[
            "sticky",
            "cookie",
            "persistence",
            "affinity",
            "session_affinity",
            "stick_table",
            "sessions",
        ],
        &["granularity"],
    ),
    (
        &[
            "resolve",
            "resolver",
            "resolvers",
            "dns_refresh_rate",
            "hold_valid",
        ],
        &["dns_interval"],
    ),
    (
        &["outlier_detection", "observe"],
        &["connection_failure_limit"],
    ),
    (&["panic", "healthy_panic_threshold"], &["panic_threshold"]),
    (&["stats", "api", "dashboard"], &["admin"]),
    (
        &["log", "logs", "accesslog", "access_logs"],
        &["access_log"],
    ),
    (&["global", "events", "http"], &["defaults"]),
    (
        &[
            "nbthread",
            "nbproc",
            "threads",
            "worker_processes",
            "concurrency",
        ],
        &["workers"],
    ),
    (
        &["hard_stop_after", "worker_shutdown_timeout", "drain_time"],
        &["shutdown_grace"],
    ),
];

/// Names of strategies elsewhere, with ours.
static STRATEGIES: &[(&[&str], &str)] = &[
    (
        &[
            "roundrobin",
            "rr",
            "wrr",
            "static_rr",
            "weighted_round_robin",
        ],
        "round_robin",
    ),
    (
        &[
            "leastconn",
            "least_conn",
            "least_connections",
            "leastconnections",
            "lc",
            "wlc",
        ],
        "least_connection",
    ),
    (
        &[
            "p2c",
            "power_of_two",
            "power_of_two_choices",
            "two_choices",
            "random_two",
            "least_requests",
        ],
        "least_request",
    ),
    (
        &[
            "ip_hash",
            "iphash",
            "source",
            "source_ip",
            "source_hash",
            "hash",
            "sh",
            "uri",
            "ring_hash",
            "maglev",
            "consistent",
            "consistent_hash",
        ],
        "source_ip_hash",
    ),
    (&["ewma", "least_time", "latency", "peakewma"], "peak_ewma"),
    (&["default", "auto", "dynamic"], "adaptive"),
];

/// Protocols elsewhere, and what to do instead.
static PROTOCOLS: &[(&[&str], &str)] = &[
    (
        &["https", "tls", "ssl", "http+tls", "tcp+tls", "wss"],
        "TLS is not there yet: let something in front end it and speak \"http\" to this rule, or \
         pass it on as it is with \"tcp\"",
    ),
    (
        &["h2", "h2c", "http2", "http/2", "http/2.0", "grpc"],
        "HTTP/2 is not there yet: \"tcp\" passes it on, connection by connection",
    ),
    (
        &["h3", "http3", "http/3", "quic", "udp"],
        "nothing over UDP is balanced",
    ),
    (
        &["http1", "http/1", "http/1.0", "http/1.1", "ws", "websocket"],
        "that is \"http\" here",
    ),
    (
        &["tcp4", "tcp6", "stream", "layer4", "l4"],
        "that is \"tcp\" here",
    ),
];

/// Units of time as people write them, with ours.
static UNITS: &[(&[&str], &str)] = &[
    (&["min", "mins", "minute", "minutes", "M"], "m"),
    (&["sec", "secs", "second", "seconds", "S"], "s"),
    (
        &[
            "msec",
            "msecs",
            "millis",
            "millisecond",
            "milliseconds",
            "MS",
        ],
        "ms",
    ),
    (&["usec", "µs", "μs", "microsecond", "microseconds"], "us"),
    (&["nsec", "nanosecond", "nanoseconds"], "ns"),
    (&["hr", "hrs", "hour", "hours", "H"], "h"),
    (&["day", "days", "D"], "d"),
];

/// What a word is compared as: `leastConn`, `least-conn` and `LEAST_CONN` are one.
fn plain(word: &str) -> String {
    let word = word.trim().chars().take(64);
    word.map(|c| {
        if c == '-' || c == ' ' {
            '_'
        } else {
            c.to_ascii_lowercase()
        }
    })
    .collect()
}

fn of<T: Copy>(table: &[(&[&str], T)], word: &str) -> Option<T> {
    let found = table.iter().find(|(words, _)| words.contains(&word));
    found.map(|(_, ours)| *ours)
}

/// Keys of ours that `key` may mean, the best one first.
pub(crate) fn keys(key: &str) -> &'static [&'static str] {
    of(KEYS, &plain(key)).unwrap_or_default()
}

/// The strategy of ours that `name` means.
pub(crate) fn strategy(name: &str) -> Option<&'static str> {
    let name = plain(name);
    let ours = evenkeel_core::strategy::find(&name).map(|kind| kind.name);
    ours.or_else(|| of(STRATEGIES, &name))
}

/// What to do for a protocol that is no name here.
pub(crate) fn protocol(name: &str) -> Option<&'static str> {
    of(PROTOCOLS, &plain(name))
}

/// The unit of ours that is meant.
pub(crate) fn unit(unit: &str) -> Option<&'static str> {
    of(UNITS, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::tables;

    #[test]
    fn u9_what_is_suggested_is_there() {
        let tables = tables();
        for (words, ours) in KEYS {
            for key in *ours {
                let is_key = tables
                    .iter()
                    .any(|table| table.keys.iter().any(|k| k.name == *key));
                let mut headers = tables.iter().map(|table| table.header);
                let is_table = headers
                    .any(|header| header.trim_matches(['[', ']']).split('.').next() == Some(key));
                assert!(is_key || is_table || *key == "defaults", "{words:?}: {key}");
            }
        }
        for (words, ours) in STRATEGIES {
            assert!(
                evenkeel_core::strategy::find(ours).is_some(),
                "{words:?}: {ours}"
            );
            for word in *words {
                assert!(evenkeel_core::strategy::find(word).is_none(), "{word}");
                assert_eq!(plain(word), *word);
            }
        }
        for (words, _) in KEYS {
            assert!(words.iter().all(|word| plain(word) == *word), "{words:?}");
        }
    }
}
