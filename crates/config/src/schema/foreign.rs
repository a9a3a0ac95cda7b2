//! Words of HAProxy, nginx, Traefik and Envoy, and what is meant here: suggestions for
//! those who come from there. A row of a table has our words, a colon, and theirs.

/// Keys and tables of others with ours, the best one first.
const KEYS: &str = "
    listen: bind port address listener entrypoint entrypoints entry_points
    members: server servers nodes hosts targets endpoints backends upstreams proxy_pass
    members: load_assignment server_template loadbalancer
    address path: url uri host endpoint
    group: backend default_backend use_backend upstream service pool
    group: services pools
    rule: frontend frontends virtual_host virtual_hosts router routers http_listener
    strategy: balance algorithm lb_policy lb_method load_balancing load_balancer policy method
    strategy: hash_policy leastconn least_conn roundrobin ip_hash
    protocol: mode scheme
    max_connections: maxconn max_conns max_conn fullconn connection_limit
    max_queue: maxqueue max_pending_requests queue
    connection_timeout: connect_timeout timeout_connect proxy_connect_timeout dial_timeout
    response_timeout: timeout_server server_timeout read_timeout proxy_read_timeout
    request_timeout: route_timeout global_timeout total_timeout
    attempt_timeout: per_try_timeout try_timeout backend_request_timeout
    retry_backoff: retry_back_off backoff retry_interval retry_delay
    response_timeout: response_header_timeout fastcgi_read_timeout
    keep_alive_timeout idle_timeout: timeout_client client_timeout timeout_http_keep_alive
    keep_alive_timeout idle_timeout: keepalive_timeout
    idle_timeout: timeout_tunnel proxy_timeout stream_idle_timeout
    header_timeout: timeout_http_request client_header_timeout read_header_timeout
    body_timeout: client_body_timeout proxy_send_timeout send_timeout
    queue_timeout: timeout_queue
    retries: retry num_retries attempts max_retries proxy_next_upstream proxy_next_upstream_tries
    pool_idle_connections: keepalive max_idle_connections
    send_proxy: send_proxy_v2 check_send_proxy proxy_protocol_version
    accept_proxy: proxy_protocol proxyprotocol proxy_protocol_from set_real_ip_from trusted_ips
    x_forwarded: forwardfor option_forwardfor
    health_check: check checks healthcheck health_checks option_httpchk httpchk
    interval: inter check_interval
    path: check_path health_check_path
    response_code: expect expected_status expected_statuses status codes
    fall connection_failure_limit: max_fails unhealthy_threshold consecutive_5xx
    rise: healthy_threshold
    slow_start: slowstart
    weight: load_balancing_weight lb_weight
    sticky granularity: stickiness cookie persistence affinity session_affinity stick_table sessions
    sticky: sticky_session sticky_sessions session_stickiness session_cookie
    granularity: sticky
    compression: gzip compress deflate brotli zstd gzip_types compression_algo
    tls: ssl ssl_enabled transport_socket secure
    certificates: ssl_certificate ssl_certificates cert_file cert crt certificate certfile crt_list
    certificate: cert_file cert crt file pem ssl_certificate certfile certificate_chain fullchain
    key: key_file keyfile private_key ssl_certificate_key privkey
    ca_file: ca cafile ca_certificate ssl_client_certificate proxy_ssl_trusted_certificate
    min_version: ssl_min_ver minversion ssl_protocols min_tls_version
    client: src source_ip remote_addr remote_ip client_ip clients allow ipallowlist
    request_fields: proxy_set_header request_header request_headers http_request
    response_fields: add_header response_header response_headers http_response
    cors: cors_policy enable_cors cross_origin
    redirect: return redirection
    rewrite_prefix: strip_prefix stripprefix prefix_rewrite replace_prefix_match
    rewrite_path: replace_path replacepath path_rewrite rewrite_target replace_full_path
    max_body: client_max_body_size max_body_size body_limit
    page: error_page errorfile maintenance_page file
    dns_interval: resolve resolver resolvers dns_refresh_rate hold_valid
    ejection connection_failure_limit: outlier_detection observe
    panic_threshold: panic healthy_panic_threshold
    admin: stats api dashboard
    access_log: log logs accesslog access_logs
    defaults: global events http
    workers: nbthread nbproc threads worker_processes concurrency
    shutdown_grace: hard_stop_after worker_shutdown_timeout drain_time
";

/// Advice for keys that have no counterpart in a table.
struct Advice {
    /// End of the table's path, without places in lists.
    end: &'static str,
    /// A key that the table has: others whose paths end so have none.
    has: &'static str,
    /// Keys of others.
    keys: &'static str,
    /// Text to write instead.
    advice: &'static str,
}

static ADVICE: &[Advice] = &[
    Advice {
        end: "members[]",
        has: "address",
        keys: "id hostname label server_name",
        advice: r#"the name of a member is its key `name`, as in name = "s1""#,
    },
    Advice {
        end: ".tls",
        has: "certificates",
        keys: "key key_file private_key keyfile ssl_certificate_key privkey file",
        advice: r#"a key stands beside its certificate, in the list: certificates = [{ certificate = "www.pem", key = "www.key" }]"#,
    },
];

/// Names of strategies elsewhere, with ours.
const STRATEGIES: &str = "
    round_robin: roundrobin rr wrr static_rr weighted_round_robin
    least_connection: leastconn least_conn least_connections leastconnections lc wlc
    least_request: p2c power_of_two power_of_two_choices two_choices random_two least_requests
    source_ip_hash: ip_hash iphash source source_ip source_hash sh
    hash: uri hdr url_param ring_hash maglev consistent consistent_hash
    peak_ewma: ewma least_time latency peakewma
    adaptive: default auto dynamic
";

/// Protocols elsewhere, and what to do instead.
static PROTOCOLS: &[(&str, &str)] = &[
    (
        "https tls ssl http+tls tcp+tls wss",
        "write \"http\" or \"tcp\", and add a table [rule.NAME.tls] that names certificates",
    ),
    (
        "h2 h2c http2 http/2 http/2.0 grpc",
        "\"http\" speaks HTTP/2 with clients, and with members if the table `http` of the rule has \
         member_protocol = \"h2\"",
    ),
    (
        "h3 http3 http/3 quic",
        "write \"udp\" to pass QUIC on unread, balanced by client address",
    ),
    ("udp4 udp6 datagram dgram dns syslog", "write \"udp\""),
    (
        "http1 http/1 http/1.0 http/1.1 ws websocket",
        "write \"http\"",
    ),
    ("tcp4 tcp6 stream layer4 l4", "write \"tcp\""),
];

/// Units of time as people write them, with ours.
const UNITS: &str = "
    m: min mins minute minutes M
    s: sec secs second seconds S
    ms: msec msecs millis millisecond milliseconds MS
    us: usec µs μs microsecond microseconds
    ns: nsec nanosecond nanoseconds
    h: hr hrs hour hours H
    d: day days D
";

/// Form of a word for comparison: `leastConn`, `least-conn` and `LEAST_CONN` are the same.
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

/// Text in `table` before the words of which `word` is one.
fn of(table: &'static str, word: &str) -> Option<&'static str> {
    rows(table).find_map(|(ours, theirs)| theirs.split(' ').any(|it| it == word).then_some(ours))
}

fn rows(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.lines().filter_map(|row| row.trim().split_once(": "))
}

/// Keys of ours that `key` may mean, the best one first.
pub(crate) fn keys(key: &str) -> Vec<&'static str> {
    let key = plain(key);
    let rows = rows(KEYS).filter(|(_, theirs)| theirs.split(' ').any(|it| it == key));
    rows.flat_map(|(ours, _)| ours.split(' ')).collect()
}

/// Advice for `key` in the table at `path`, which has the keys `known` and not this one.
pub(crate) fn advice(path: &str, known: &[&str], key: &str) -> Option<&'static str> {
    let key = plain(key);
    let path = match path.rsplit_once('[') {
        Some((list, place)) if place.ends_with(']') => format!("{list}[]"),
        _ => path.to_owned(),
    };
    let is_for = |row: &&Advice| path.ends_with(row.end) && known.contains(&row.has);
    let mut rows = ADVICE.iter().filter(is_for);
    let row = rows.find(|row| row.keys.split(' ').any(|theirs| theirs == key));
    row.map(|row| row.advice)
}

/// The strategy of ours that `name` means.
pub(crate) fn strategy(name: &str) -> Option<&'static str> {
    let name = plain(name);
    let ours = evenkeel_core::strategy::find(&name).map(|kind| kind.name);
    ours.or_else(|| of(STRATEGIES, &name))
}

/// Advice for a protocol that is no name here.
pub(crate) fn protocol(name: &str) -> Option<&'static str> {
    let name = plain(name);
    let is_it = |words: &str| words.split(' ').any(|word| word == name);
    let found = PROTOCOLS.iter().find(|(words, _)| is_it(words));
    found.map(|(_, message)| *message)
}

/// The unit of ours that is meant.
pub(crate) fn unit(unit: &str) -> Option<&'static str> {
    of(UNITS, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::describe_tables;

    #[test]
    fn u9_what_is_suggested_is_there() {
        let tables = describe_tables();
        for row in ADVICE {
            let mut homes = tables.iter().filter(|table| table.has_key(row.has));
            let last = row.end.trim_matches(['[', ']', '.']);
            let home = homes.find(|table| table.header.trim_matches(['[', ']']).ends_with(last));
            for word in row.keys.split(' ') {
                assert!(home.is_some_and(|table| !table.has_key(word)), "{word}");
                assert_eq!(plain(word), word);
            }
        }
        for (ours, words) in rows(KEYS) {
            for key in ours.split(' ') {
                let is_key = tables
                    .iter()
                    .any(|table| table.keys.iter().any(|k| k.name == key));
                let mut headers = tables.iter().map(|table| table.header);
                let is_table = headers
                    .any(|header| header.trim_matches(['[', ']']).split('.').next() == Some(key));
                assert!(is_key || is_table || key == "defaults", "{words:?}: {key}");
            }
        }
        for (ours, words) in rows(STRATEGIES) {
            assert!(
                evenkeel_core::strategy::find(ours).is_some(),
                "{words:?}: {ours}"
            );
            for word in words.split(' ') {
                assert!(evenkeel_core::strategy::find(word).is_none(), "{word}");
                assert_eq!(plain(word), word);
            }
        }
        for (_, words) in rows(KEYS) {
            assert!(
                words.split(' ').all(|word| plain(word) == word),
                "{words:?}"
            );
        }
    }
}
