use evenkeel_config::{Config, parse};
use proptest::prelude::*;

use super::*;

/// Configuration that a text comes to; it must be one that `evenkeel check` accepts.
#[track_caller]
fn accepted(text: &str) -> (Config, Converted) {
    let converted = convert(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    match parse("converted.toml", &converted.toml) {
        Ok(config) => (config, converted),
        Err(errors) => panic!("{errors}\n{}\nof\n{text}", converted.toml),
    }
}

/// The text without the comments at its beginning.
fn body(converted: &Converted) -> String {
    let lines = converted
        .toml
        .lines()
        .skip_while(|line| line.starts_with('#'));
    lines
        .map(|line| format!("{line}\n"))
        .collect::<String>()
        .trim()
        .to_owned()
}

const BACKEND: &str = "backend web\n server a 10.0.0.1:80\n";

/// A frontend with these lines, and its backend.
fn frontend(lines: &str) -> String {
    format!("frontend f\n bind :8080\n{lines}\n default_backend web\n{BACKEND}")
}

#[track_caller]
fn has(text: &str, parts: &[&str]) -> Converted {
    let (_, converted) = accepted(text);
    for part in parts {
        assert!(
            converted.toml.contains(part),
            "{part}\nis not in\n{}",
            converted.toml
        );
    }
    converted
}

#[test]
fn a_haproxy_configuration_becomes_rules_and_groups() {
    let text = "\
global
  nbthread 4
  hard-stop-after 30s
defaults
  mode http
  timeout connect 2s
  timeout client 1m
  timeout server 30000
  option forwardfor
frontend web
  bind :80
  bind 10.0.0.9:443 ssl crt /etc/ssl/www.pem alpn h2,http/1.1
  http-request redirect scheme https code 308 unless { ssl_fc }
  use_backend api if { path_beg /api/ }
  default_backend shop
backend shop
  balance leastconn
  option httpchk
  http-check send meth GET uri /health hdr Host www.example.org
  http-check expect status 200-299
  default-server inter 2s fall 3 rise 2 slowstart 30s
  server a 10.0.1.1:80 check weight 20 maxconn 100
  server b 10.0.1.2:80 check backup
backend api
  server a 10.0.2.1
";
    let (_, converted) = accepted(text);
    assert_eq!(
        body(&converted),
        r#"workers = 4
shutdown_grace = "30s"

[rule.web]
listen = "0.0.0.0:80"
group = "shop"
body_timeout = "1m"
connection_timeout = "2s"
response_timeout = "30s"

[[rule.web.routes]]
redirect = "https://{host}{path}{query}"
redirect_status = 308

[rule.web-tls]
listen = "10.0.0.9:443"
tls = { certificates = ["/etc/ssl/www.pem"] }
group = "shop"
body_timeout = "1m"
connection_timeout = "2s"
response_timeout = "30s"

[[rule.web-tls.routes]]
path = "/api/*"
group = "api"
connection_timeout = "2s"
response_timeout = "30s"

[group.shop]
members = [
  { address = "10.0.1.1:80", name = "a", weight = 20, max_connections = 100 },
  { address = "10.0.1.2:80", name = "b", backup = true },
]
strategy = "least_connection"
slow_start = "30s"
health_check = { path = "/health", host = "www.example.org", response_code = "200-299", interval = "2s", fall = 3, rise = 2, type = "http" }

[group.api]
members = [
  { address = "10.0.2.1:80", name = "a" },
]"#
    );
    assert!(converted.notes.is_empty(), "{:#?}", converted.notes);
}

#[test]
fn an_nginx_configuration_becomes_rules_and_groups() {
    let text = "\
worker_processes 4;
http {
  upstream shop {
    least_conn;
    server 10.0.1.1:80 weight=2 max_conns=100;
    server 10.0.1.2:80 backup;
  }
  server {
    listen 80 default_server;
    return 301 https://$host$request_uri;
  }
  server {
    listen 443 ssl;
    server_name www.example.org;
    ssl_certificate /etc/ssl/www.crt;
    ssl_certificate_key /etc/ssl/www.key;
    client_max_body_size 10m;
    location /api/ { proxy_pass http://10.0.2.1:8080/; proxy_read_timeout 2m; }
    location = /status { return 200 'fine\\n'; }
    location / { proxy_pass http://shop; proxy_set_header X-Real-IP $remote_addr; }
  }
}
";
    let (_, converted) = accepted(text);
    assert_eq!(
        body(&converted),
        r#"workers = 4

[rule.port-80]
listen = "0.0.0.0:80"

[[rule.port-80.routes]]
redirect = "https://{host}{path}{query}"
redirect_status = 301

[rule."www.example.org"]
listen = "0.0.0.0:443"
tls = { certificates = [
  { certificate = "/etc/ssl/www.crt", key = "/etc/ssl/www.key" },
] }

[[rule."www.example.org".routes]]
path = "/status"
answer = { status = 200, body = "fine\n" }

[[rule."www.example.org".routes]]
path = "/api/*"
group = "10.0.2.1-8080"
rewrite_prefix = "/"
max_body = "10MiB"
response_timeout = "2m"

[[rule."www.example.org".routes]]
group = "shop"
request_fields = { set = { X-Real-IP = "{client}" } }
max_body = "10MiB"

[group.shop]
members = [
  { address = "10.0.1.1:80", weight = 2, max_connections = 100 },
  { address = "10.0.1.2:80", backup = true },
]
strategy = "least_connection"

[group."10.0.2.1-8080"]
members = ["10.0.2.1:8080"]"#
    );
}

#[test]
fn conditions_of_haproxy_become_those_of_routes() {
    for (lines, parts) in [
        (
            "acl a path_beg /api/ /v1/\n use_backend web if a",
            vec![r#"path = ["/api/*", "/v1/*"]"#],
        ),
        ("use_backend web if { path /a }", vec![r#"path = "/a""#]),
        (
            "use_backend web if { hdr(host) -i A.example.org }",
            vec![r#"host = "a.example.org""#],
        ),
        (
            "use_backend web if { hdr_dom(host) -i example.org }",
            vec![r#"host = ["example.org", "*.example.org"]"#],
        ),
        (
            "use_backend web if { hdr_end(host) -i .example.org }",
            vec![r#"host = "*.example.org""#],
        ),
        (
            "use_backend web if { req.hdr(X-Beta) -m str yes }",
            vec![r#"headers = { X-Beta = "yes" }"#],
        ),
        (
            "use_backend web if { hdr_beg(X-Beta) a b }",
            vec![r#"{ X-Beta = "a*" }"#, r#"{ X-Beta = "b*" }"#],
        ),
        (
            "use_backend web if !{ req.hdr(X-Beta) -m found }",
            vec!["headers = { X-Beta = false }"],
        ),
        (
            "use_backend web if { url_param(v) 2 } METH_POST",
            vec![r#"query = { v = "2" }"#, r#"method = "POST""#],
        ),
        (
            "use_backend web if { cook(c) -m beg x }",
            vec![r#"cookies = { c = "x*" }"#],
        ),
        (
            "acl in src 10.0.0.0/8 10.1.2.3/24\n use_backend web if in",
            vec![r#"client = ["10.0.0.0/8", "10.1.2.0/24"]"#],
        ),
        (
            "acl x path /a\n acl y path /b\n use_backend web if x or y",
            vec![r#"path = ["/a", "/b"]"#],
        ),
        (
            "acl x path /a\n acl x hdr(host) a.b\n use_backend web if x",
            vec![r#"path = "/a""#, r#"host = "a.b""#],
        ),
        (
            "acl admin path_beg /admin/\n acl in src 10.0.0.0/8\n http-request deny if admin !in",
            vec!["path = \"/admin/*\"\nexcept_client = \"10.0.0.0/8\"\nanswer = { status = 403 }"],
        ),
        (
            "acl in src 10.0.0.0/8\n http-request deny unless in",
            vec![r#"except_client = "10.0.0.0/8""#],
        ),
        (
            "http-request deny deny_status 404 if { path_beg /x/ }",
            vec!["answer = { status = 404 }"],
        ),
        (
            "http-request return status 200 content-type text/plain string \"hello you\" if { path /h }",
            vec![r#"answer = { status = 200, body = "hello you", content_type = "text/plain" }"#],
        ),
        (
            "http-request redirect location https://b.example.org%[path] code 301 if { path /a }",
            vec![r#"redirect = "https://b.example.org{path}""#],
        ),
        (
            "redirect prefix https://c.example.org if { path_beg /c }",
            vec![r#"redirect = "https://c.example.org{path}{query}""#],
        ),
        (
            "http-request set-header X-Client %[src]\n http-response del-header Server",
            vec![
                r#"request_fields = { set = { X-Client = "{client}" } }"#,
                r#"response_fields = { remove = ["Server"] }"#,
            ],
        ),
        (
            "acl a path_beg /a/\n http-request set-path %[path,regsub(^/a/,/b/)] if a\n use_backend web if a",
            vec![r#"rewrite_prefix = "/b/""#],
        ),
        (
            "stick-table type ip size 1m store http_req_rate(10s)\n http-request track-sc0 src\n http-request deny deny_status 429 if { sc_http_req_rate(0) gt 100 }",
            vec![r#"limits = { requests = "100/10s", status = 429 }"#],
        ),
        (
            "maxconn 1000\n timeout http-request 5s\n timeout http-keep-alive 10s",
            vec!["max_connections = 1000", r#"header_timeout = "5s""#],
        ),
        ("option httplog", vec!["[access_log]\noutput = \"stdout\""]),
        (
            "compression algo gzip\n compression type text/html",
            vec![r#"compression = { codings = ["gzip"], types = ["text/html"] }"#],
        ),
    ] {
        let converted = has(&frontend(lines), &parts);
        assert!(converted.notes.is_empty(), "{lines}: {:?}", converted.notes);
    }
}

#[test]
fn backends_of_haproxy_become_groups() {
    for (lines, part) in [
        ("balance roundrobin", r#"strategy = "round_robin""#),
        (
            "balance source\n hash-type consistent",
            r#"strategy = "source_ip_hash""#,
        ),
        (
            "balance uri\n hash-balance-factor 150",
            r#"strategy = { name = "hash", bound = 1.5 }"#,
        ),
        ("balance hdr(X-User)", r#"hash_key = "header:X-User""#),
        ("balance random(2)", r#"strategy = "least_request""#),
        (
            "cookie server insert indirect nocache",
            r#"sticky = { cookie = "server" }"#,
        ),
        (
            "cookie s insert maxidle 30m maxlife 7200",
            r#"sticky = { cookie = "s", max_idle = "30m", max_life = "2h" }"#,
        ),
        (
            "server b 10.0.0.2:80 check",
            r#"health_check = { type = "tcp" }"#,
        ),
        (
            "option httpchk GET /up\n server b 10.0.0.2:80 check port 81",
            r#"health_check = { path = "/up", port = 81, type = "http" }"#,
        ),
        (
            "server b 10.0.0.2:443 ssl verify none",
            "member_tls = { verify = false }",
        ),
        (
            "server b 10.0.0.2:443 ssl verify required ca-file /etc/ca.pem",
            r#"member_tls = { ca_file = "/etc/ca.pem" }"#,
        ),
        ("server b 10.0.0.2:80 send-proxy-v2", r#"send_proxy = "v2""#),
        ("server b unix@/run/app.sock", r#""unix:/run/app.sock""#),
        ("server b fd00::1:8080", r#""[fd00::1]:8080""#),
        (
            "server b 10.0.0.2:80 agent-check agent-port 4040",
            "agent_check = { port = 4040 }",
        ),
        (
            "retries 3\n retry-on 502 503",
            "retry_statuses = [502, 503]\nretry_same_member = true",
        ),
        ("timeout queue 500", r#"queue_timeout = "500ms""#),
    ] {
        has(&format!("{}{lines}\n", frontend("")), &[part]);
    }
    has(
        "listen l\n mode tcp\n bind *:5432\n server a 10.0.0.1:5432\n",
        &[
            "protocol = \"tcp\"",
            "listen = \"0.0.0.0:5432\"",
            "group = \"l\"",
        ],
    );
    has(
        "frontend p\n mode tcp\n bind :443\n use_backend s if { req_ssl_sni -i a.example.org }\nbackend s\n mode tcp\n server a 10.0.0.1:443\n",
        &[r#"sni = { "a.example.org" = "s" }"#],
    );
    has(
        "frontend f\n bind :80\n use_backend new if { rand(100) lt 5 }\n default_backend web\nbackend new\n server a 10.0.0.2:80\nbackend web\n server a 10.0.0.1:80\n",
        &["groups = { new = 5, web = 95 }"],
    );
}

#[test]
fn directives_of_nginx_become_keys() {
    let server = |lines: &str| format!("server {{\n listen 8080;\n {lines}\n}}\n");
    let location = |lines: &str| {
        server(&format!(
            "location /a/ {{ proxy_pass http://10.0.0.1:80; {lines} }}"
        ))
    };
    for (text, part) in [
        (
            location("allow 10.0.0.0/8; deny all;"),
            "except_client = \"10.0.0.0/8\"\nanswer = { status = 403 }",
        ),
        (
            location("deny 192.0.2.1;"),
            "client = \"192.0.2.1\"\nanswer = { status = 403 }",
        ),
        (
            location("add_header X-A b always;"),
            r#"response_fields = { set = { X-A = "b" } }"#,
        ),
        (
            location("proxy_set_header Accept-Encoding '';"),
            r#"request_fields = { remove = ["Accept-Encoding"] }"#,
        ),
        (
            location("proxy_connect_timeout 2s;"),
            r#"connection_timeout = "2s""#,
        ),
        (
            location("proxy_next_upstream error http_502; proxy_next_upstream_tries 3;"),
            "retry_statuses = [502]\nretries = 2",
        ),
        (
            location("proxy_next_upstream error http_502 non_idempotent;"),
            r#"retry_methods = ["POST", "PATCH", "LOCK"]"#,
        ),
        (
            server(
                "location /b/ { proxy_pass https://10.0.0.1; proxy_ssl_verify on; proxy_ssl_trusted_certificate /ca.pem; }",
            ),
            r#"member_tls = { ca_file = "/ca.pem" }"#,
        ),
        (
            server("location / { return 404; }"),
            "answer = { status = 404 }",
        ),
        (
            server("location /b/ { proxy_pass http://10.0.0.1:80/v2/; }"),
            r#"rewrite_prefix = "/v2""#,
        ),
        (
            server("gzip on; gzip_types text/css; location / { proxy_pass http://10.0.0.1; }"),
            r#"types = ["text/html", "text/css"]"#,
        ),
        (
            format!(
                "limit_req_zone $binary_remote_addr zone=r:1m rate=5r/m;\n{}",
                location("limit_req zone=r burst=3;")
            ),
            r#"requests = "5/m", burst = 3"#,
        ),
        (
            format!(
                "upstream u {{ ip_hash; server 10.0.0.1 max_fails=2 fail_timeout=10s; keepalive 3; }}\n{}",
                server("location / { proxy_pass http://u; }")
            ),
            "strategy = \"source_ip_hash\"",
        ),
        (
            format!(
                "upstream u {{ hash $cookie_s consistent; server 10.0.0.1; server 10.0.0.2 down; }}\n{}",
                server("location / { proxy_pass http://u; }")
            ),
            r#"hash_key = "cookie:s""#,
        ),
        (
            format!(
                "{}server {{ listen 8080; server_name b.example.org; location / {{ proxy_pass http://10.0.0.2; }} }}\n",
                location("")
            ),
            r#"host = "b.example.org""#,
        ),
    ] {
        has(&text, &[part]);
    }
    // The first server has what no other one is for, whose host is a condition.
    let two = "server { listen 80; server_name a.org; location / { proxy_pass http://10.0.0.1; } }\n\
               server { listen 80; server_name b.org; location / { proxy_pass http://10.0.0.2; } }\n";
    let (config, _) = accepted(two);
    assert_eq!(config.rules.len(), 1);
    assert_eq!(config.rules[0].group, "10.0.0.1-80");
    let groups: Vec<_> = config.rules[0]
        .routes
        .list()
        .iter()
        .map(|route| route.group.as_str())
        .collect();
    assert!(groups.contains(&"10.0.0.2-80"), "{groups:?}");
}

#[test]
fn regular_expressions_become_conditions() {
    let text = frontend(
        " acl user path_reg ^/u/[0-9]+$\n acl beta hdr_reg(X-Kind) -i ^beta\n use_backend web if user beta",
    );
    let (_, converted) = accepted(&text);
    assert!(converted.notes.is_empty(), "{:#?}", converted.notes);
    for line in [
        r#"path_regex = "/u/[0-9]+""#,
        r#"headers = { X-Kind = { regex = "(?i)beta.*" } }"#,
    ] {
        assert!(converted.toml.contains(line), "{}", converted.toml);
    }
    let text = "server {\n listen 80;\n location / { proxy_pass http://10.0.0.1; }\n location /a/long { return 201; }\n \
                location ~ ^/b { return 202; }\n location ~* \\.php$ { return 203; }\n location ^~ /c { return 204; }\n location /c/d { return 206; }\n \
                location = /d { return 205; }\n}\n";
    let (_, converted) = accepted(text);
    assert!(converted.notes.is_empty(), "{:#?}", converted.notes);
    let places = ["205", "206", "204", "202", "203", "201"].map(|status| {
        let found = converted.toml.find(&format!("status = {status}"));
        found.unwrap_or_else(|| panic!("{status} in {}", converted.toml))
    });
    assert!(places.is_sorted(), "{}", converted.toml);
    assert!(
        converted.toml.contains(r#"path_regex = "(?i).*\\.php""#),
        "{}",
        converted.toml
    );
}

#[test]
fn what_is_not_translated_is_told_with_its_line_and_what_restricts_apart() {
    let text = frontend(
        " acl bad path_reg ^/(?=x)\n http-request deny if bad\n http-request auth realm a unless { http_auth(u) }\n lua-thing\n use_backend web if bad",
    );
    let (_, converted) = accepted(&text);
    let found: Vec<(usize, bool)> = converted
        .notes
        .iter()
        .map(|note| (note.line, note.restricts))
        .collect();
    assert_eq!(
        found,
        [(4, true), (5, true), (6, false), (7, false)],
        "{:#?}",
        converted.notes
    );
    assert!(converted.toml.contains(
        "# line 4: http-request deny if bad: this line RESTRICTS ACCESS: not a regular expression: look-around"
    ));
    let text = "server {\n listen 80;\n location / {\n  auth_basic x;\n  proxy_cache c;\n  proxy_pass http://10.0.0.1;\n }\n location ~ (x { return 200; }\n}\n";
    let (_, converted) = accepted(text);
    let found: Vec<(usize, bool)> = converted
        .notes
        .iter()
        .map(|note| (note.line, note.restricts))
        .collect();
    assert_eq!(
        found,
        [(4, true), (5, false), (8, false)],
        "{:#?}",
        converted.notes
    );
    // A note never leaves its comment.
    let text = frontend(" nonsense \\\n[rule.x]");
    assert!(
        convert(&text)
            .unwrap()
            .toml
            .lines()
            .filter(|line| line.starts_with("[rule"))
            .count()
            == 1
    );
}

#[test]
fn other_files_are_refused() {
    for (text, why) in [
        ("[rule.web]\nlisten = 1\n", "is neither"),
        ("a: b\n", "is neither"),
        ("global\n daemon\n", "has nothing"),
        ("http { server {\n", "line 1: this block is not closed"),
        (
            "frontend a\n bind \"x\n",
            "line 2: a quotation mark is not closed",
        ),
    ] {
        let error = convert(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert_eq!(
        convert(&"#".repeat(MAX_BYTES + 1)),
        Err(ConvertError::TooLong)
    );
}

/// Each block of a language in the page for those who come from other balancers.
fn blocks(language: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/coming-from.md");
    let page = std::fs::read_to_string(page).unwrap();
    let begin = format!("```{language}\n");
    let parts = page.split(&begin).skip(1);
    parts
        .map(|part| part.split("```").next().unwrap().to_owned())
        .collect()
}

#[test]
fn all_that_the_manual_shows_of_haproxy_and_nginx_is_translated() {
    let haproxy = blocks("haproxy");
    assert!(haproxy.len() > 10);
    for block in haproxy {
        let mut text = block.clone();
        let is_there = |start: &str| block.lines().any(|line| line.trim().starts_with(start));
        if is_there("default_backend web") && !is_there("backend web") {
            text += "\nbackend web\n  server a 10.0.1.1:80\n";
        }
        // The page of statistics is all that this one has.
        match block.contains("stats enable") {
            true => assert_eq!(convert(&text), Err(ConvertError::Empty)),
            false => drop(accepted(&text)),
        }
    }
    let nginx = blocks("nginx");
    assert!(nginx.len() > 10);
    for block in nginx {
        let web = match block.contains("http://web") && !block.contains("upstream web") {
            true => "upstream web { server 10.0.1.1:80; }\n",
            false => "",
        };
        let text = match block.starts_with("stream {") {
            true => block.clone(),
            false => format!("http {{\n{web}{block}}}\n"),
        };
        accepted(&text);
    }
}

const WORDS: &[&str] = &[
    "frontend",
    "backend",
    "listen",
    "bind",
    ":80",
    "ssl",
    "crt",
    "acl",
    "path_beg",
    "/a",
    "if",
    "unless",
    "!",
    "{",
    "}",
    "or",
    "src",
    "10.0.0.0/8",
    "use_backend",
    "default_backend",
    "web",
    "server",
    "a",
    "10.0.0.1:80",
    "http-request",
    "deny",
    "redirect",
    "scheme",
    "https",
    "timeout",
    "connect",
    "5s",
    "balance",
    "hdr(x)",
    "\n",
    "\n ",
    ";",
    "location",
    "/",
    "proxy_pass",
    "http://a",
    "$a",
    "map",
    "return",
    "301",
    "upstream",
    "set-header",
    "%[src]",
    "\"",
    "\\",
    "stick-table",
    "rand(100)",
    "lt",
    "=",
    "~",
    "weight=3",
    "check",
];

proptest! {
    #[test]
    fn whatever_is_translated_is_accepted(words in proptest::collection::vec(proptest::sample::select(WORDS), 0..60)) {
        for text in [format!("frontend f\n {}\n", words.join(" ")), format!("server {{ {} }}\n", words.join(" "))] {
            if let Ok(converted) = convert(&text) {
                let checked = parse("t", &converted.toml);
                prop_assert!(checked.is_ok(), "{}\n{}\n{}", text, converted.toml, checked.unwrap_err());
            }
        }
    }
}

/// The configuration alone says which fields a route may change.
#[test]
fn fields_that_no_route_may_change_are_told() {
    for name in ["Via", "Proxy-Connection", "TE", "Content-Length"] {
        for line in [
            format!(" http-request set-header {name} x"),
            format!(" http-request del-header {name}"),
        ] {
            let (_, converted) = accepted(&frontend(&line));
            assert!(!body(&converted).contains(name), "{line}");
            assert!(converted.toml.contains("cannot be changed"), "{line}");
        }
        for value in ["x", "\"\""] {
            let text = format!(
                "http {{ server {{ listen 80; location / {{ proxy_pass http://10.0.0.1; proxy_set_header {name} {value}; }} }} }}"
            );
            let (_, converted) = accepted(&text);
            assert!(!body(&converted).contains(name), "{text}");
        }
    }
}

#[test]
fn errorfiles_become_error_pages() {
    let text = "defaults\n mode http\n errorfile 502 /e/502.http\n\
                frontend f\n bind :8080\n errorfile 429 /e/429.http\n errorfile 200 /e/200.http\n errorloc 503 /sorry\n\
                use_backend api if { path_beg /api/ }\n default_backend web\n\
                backend api\n errorfile 503 /e/api.http\n server b 10.0.0.2:80\n\
                backend web\n server a 10.0.0.1:80\n";
    let converted = convert(text).unwrap();
    let toml = &converted.toml;
    for part in [
        r#"error_pages = { 502 = "/e/502.http", 429 = "/e/429.http" }"#,
        r#"error_pages = { 502 = "/e/502.http", 503 = "/e/api.http" }"#,
        "remove the head from the file",
        "statuses from 400 to 599",
        "docs/routing.md#error-pages",
    ] {
        assert!(toml.contains(part), "{part}\nis not in\n{toml}");
    }
    let tcp = "listen t\n mode tcp\n bind :1\n errorfile 503 /e/503.http\n server a 10.0.0.1:80\n";
    let (_, converted) = accepted(tcp);
    assert!(
        !body(&converted).contains("error_pages"),
        "{}",
        converted.toml
    );
    let text = "http { server { listen 80; error_page 502 /50x.html; location / { proxy_pass http://10.0.0.1; } } }";
    has(text, &["docs/routing.md#error-pages"]);
}

/// Both languages have one function for them.
#[test]
fn values_that_fields_cannot_have_are_told_in_both_languages() {
    let nginx = |directive: &str| {
        format!(
            "http {{ server {{ listen 80; location / {{ proxy_pass http://10.0.0.1; {directive}; }} }} }}"
        )
    };
    let (of_requests, fixed) = (
        "values of fields can use {scheme}",
        "fields of responses can have fixed values only",
    );
    for (text, told) in [
        (
            frontend(" http-request set-header X-A %[rand]"),
            of_requests,
        ),
        (nginx("proxy_set_header X-A $pid"), of_requests),
        (frontend(" http-response set-header X-A %[src]"), fixed),
        (nginx("add_header X-A $remote_addr"), fixed),
        (
            frontend(" http-response set-header Content-Length 1"),
            "cannot be changed",
        ),
        (nginx("add_header Content-Length 1"), "cannot be changed"),
    ] {
        let converted = has(&text, &[told]);
        assert!(
            !body(&converted).contains("_fields"),
            "{text}\n{}",
            converted.toml
        );
    }
}

#[test]
fn g6_servers_of_haproxy_keep_their_names() {
    let converted = has(
        "listen shop\n bind :80\n server s1 10.0.0.1:80\n server s1 10.0.0.2:80\n server 10.0.0.3 10.0.0.3:80\n \
         server app app:81\n server app2 app:82\n server x y:80\n server y x:80\n server-template t 2 t.example:80\n",
        &[
            r#"{ address = "10.0.0.1:80", name = "s1" }"#,
            "another server has that name",
            "not a name that a member can have",
            r#"{ address = "app:81", name = "app" }"#,
            r#"{ address = "app:82", name = "app2" }"#,
        ],
    );
    for part in [
        r#""10.0.0.2:80""#,
        r#""10.0.0.3:80""#,
        r#""t.example:80""#,
        r#""x:80""#,
        r#""y:80""#,
    ] {
        let line = format!("  {part},");
        assert!(
            converted.toml.lines().any(|of| of == line),
            "{line}\n{}",
            converted.toml
        );
    }
    has(&frontend(" log-format %b/%s"), &["{member_name} for %s"]);
}

/// Limits of values are those of the configuration, which alone knows them.
#[test]
fn values_that_a_configuration_cannot_have_are_left_out_and_told() {
    let backend = |lines: &str| {
        format!(
            "frontend f\n bind :8080\n default_backend web\nbackend web\n{lines} server a 10.0.0.1:80 check\n"
        )
    };
    let upstream = |line: &str| {
        format!(
            "http {{ upstream u {{ server 10.0.0.1; {line} }} server {{ listen 80; location / {{ proxy_pass http://u; }} }} }}"
        )
    };
    for (text, path) in [
        (
            frontend(" unique-id-header \"a b\""),
            "rule.f.http.request_id.field",
        ),
        (
            backend(" cookie \"a b\" insert\n"),
            "group.web.sticky.cookie",
        ),
        (
            backend(" option httpchk\n http-check expect status abc\n"),
            "group.web.health_check.response_code",
        ),
        (backend(" balance hdr()\n"), "group.web.hash_key"),
        (
            frontend(" errorfile 503 \"\"\n errorfile 404 x\n compression type \"\""),
            "rule.f.compression.types",
        ),
        (upstream("hash $cookie_ consistent;"), "group.u.hash_key"),
    ] {
        let (config, converted) = accepted(&text);
        assert_eq!(config.rules.len(), 1, "{}", converted.toml);
        assert!(
            converted
                .notes
                .iter()
                .any(|note| note.reason.starts_with(path)),
            "{path}: {:#?}\n{}",
            converted.notes,
            converted.toml
        );
    }
    // A rule never listens in the clear because something is wrong with its certificate.
    let text = "frontend f\n bind :80\n bind :443 ssl crt \"\"\n default_backend web\nbackend web\n server a 10.0.0.1:80\n";
    let (config, converted) = accepted(text);
    assert_eq!(config.rules.len(), 1, "{}", converted.toml);
    assert!(
        converted.notes.iter().any(|note| note.restricts),
        "{:#?}",
        converted.notes
    );
    // Nothing is left.
    let text = "frontend f\n bind :443 ssl crt \"\"\n http-request deny\n";
    assert_eq!(convert(text), Err(ConvertError::Empty));
}

#[test]
fn routes_that_are_left_out_are_those_with_something_wrong() {
    let text = frontend(
        " http-request return status 999 if { path /a }\n http-request deny if { path /b }\n \
         http-request deny if { path /b }\n http-request return status 998 if { path /c }\n http-request deny if { path /d }",
    );
    let (config, converted) = accepted(&text);
    let routes = config.rules[0].routes.list().len();
    assert_eq!(routes, 2, "{}", converted.toml);
    for path in ["/b", "/d"] {
        assert!(converted.toml.contains(&format!("path = {path:?}")));
    }
}

#[test]
fn no_text_is_a_variable_of_the_environment() {
    for text in ["${HOME}", "$${HOME}", "a$$${x", "${", "$"] {
        let line =
            format!(" http-request return status 200 content-type text/plain string '{text}'");
        let (config, converted) = accepted(&frontend(&line));
        let routes = config.rules[0].routes.list();
        assert!(
            format!("{routes:?}").contains(&format!("{text:?}")),
            "{text}: {routes:?}\n{}",
            converted.toml
        );
        let is_told = converted
            .notes
            .iter()
            .any(|note| note.reason.contains("environment"));
        assert_eq!(is_told, text.contains("${"), "{text}");
    }
}
