//! Routes of HTTP rules: which group gets a request, what is changed in it, and what is answered without
//! a member; the same for clients and members that speak HTTP/1.1 and HTTP/2.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::server::Server;
use evenkeel_e2e::wait_until;

/// A configuration of one rule `web` without a group of its own, and of groups with a member each.
fn config(lines: &str, groups: &[(&str, SocketAddr)]) -> String {
    let mut text = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n{lines}\n"
    );
    for (name, member) in groups {
        text += &format!("[group.{name}]\nmembers = [\"{member}\"]\n");
    }
    text
}

/// The two protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// Answer that curl gets: status, `Location`, fields and body.
struct Answer {
    status: String,
    location: String,
    fields: String,
    body: String,
}

fn ask(balancer: &Balancer, client: &str, target: &str, more: &[&str]) -> Answer {
    let url = format!("http://{}{target}", balancer.address("web"));
    let mut arguments = vec![
        client,
        "--path-as-is",
        "--dump-header",
        "-",
        "--write-out",
        "\n%{http_code}",
    ];
    arguments.extend(more);
    arguments.push(&url);
    let text = run_curl(&arguments);
    let (text, status) = text.rsplit_once('\n').unwrap();
    let (mut fields, mut body) = text.split_once("\r\n\r\n").unwrap();
    while fields.starts_with("HTTP/1.1 100") {
        (fields, body) = body.split_once("\r\n\r\n").unwrap();
    }
    let fields = fields.to_lowercase();
    let location = fields
        .lines()
        .find_map(|line| line.strip_prefix("location: "));
    Answer {
        status: status.into(),
        location: location.unwrap_or_default().into(),
        body: body.into(),
        fields,
    }
}

/// Body of a response with status 200.
#[track_caller]
fn body(balancer: &Balancer, client: &str, target: &str, more: &[&str]) -> String {
    let answer = ask(balancer, client, target, more);
    assert_eq!(answer.status, "200", "{target} {more:?}: {}", answer.body);
    answer.body
}

/// The group whose member answers.
#[track_caller]
fn group(balancer: &Balancer, client: &str, target: &str, more: &[&str]) -> String {
    let body = body(balancer, client, target, more);
    body.split('|').next().unwrap().to_owned()
}

#[test]
fn the_first_route_whose_conditions_hold_has_the_request() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let routes = r#"
        [[rule.web.routes]]
        host = "shop.example"
        path = "/cart"
        group = "cart"
        [[rule.web.routes]]
        host = ["shop.example", "*.shop.example"]
        path = ["/api/*", "/café/*"]
        method = ["POST", "PUT"]
        group = "write"
        [[rule.web.routes]]
        host = "shop.example"
        path = "/api/*"
        group = "read"
        [[rule.web.routes]]
        headers = { "X-Beta" = "yes", Accept = "text/*" }
        group = "beta"
        [[rule.web.routes]]
        path = "/search"
        query = { lang = "pt-BR", debug = false }
        group = "search"
        [[rule.web.routes]]
        cookies = { canary = "*" }
        group = "canary"
        [[rule.web.routes]]
        group = "rest"
    "#;
    for listen in ["", "http2"] {
        let names = ["cart", "write", "read", "beta", "search", "canary", "rest"];
        let servers = names.map(|name| Server::nginx_telling(name, listen));
        let groups: Vec<_> = names
            .into_iter()
            .zip(servers.each_ref().map(Server::address))
            .collect();
        let protocol = if listen.is_empty() { "http1" } else { "h2" };
        let lines = format!("http = {{ member_protocol = \"{protocol}\" }}\n{routes}");
        let balancer = Balancer::start(&config(&lines, &groups));
        for client in CLIENTS {
            let host = ["-H", "Host: Shop.Example:8080"];
            let sub = ["-H", "Host: eu.shop.example"];
            let is = |target: &str, more: &[&str], wanted: &str| {
                let found = group(&balancer, client, target, more);
                assert_eq!(found, wanted, "{client} {listen} {target} {more:?}");
            };
            is("/cart", &host, "cart");
            is("/%63art?x=1", &host, "cart");
            is("/cart/", &host, "rest");
            is("/cart", &sub, "rest");
            is("/api/x/y", &host, "read");
            is("/api", &host, "read");
            is("/apis", &host, "rest");
            is("/api/x", &["-H", "Host: shop.example", "-d", "x"], "write");
            is(
                "/api/x",
                &["-H", "Host: eu.shop.example", "-X", "PUT"],
                "write",
            );
            is(
                "/caf%c3%a9/x",
                &["-H", "Host: shop.example", "-d", "x"],
                "write",
            );
            is(
                "/",
                &["-H", "X-Beta: yes", "-H", "Accept: text/html"],
                "beta",
            );
            is(
                "/",
                &["-H", "X-Beta: yes", "-H", "Accept: image/png"],
                "rest",
            );
            is(
                "/",
                &["-H", "X-Beta: yess", "-H", "Accept: text/html"],
                "rest",
            );
            is("/search?q=a&lang=pt%2dBR", &[], "search");
            is("/search?lang=pt", &[], "rest");
            is("/search?lang=pt-BR&debug=", &[], "rest");
            is("/", &["-H", "Cookie: a=b; canary=1"], "canary");
            is("/", &["-H", "Cookie: canary2=1"], "rest");
        }
        let shown = balancer.run_ctl("status").unwrap();
        for name in names {
            assert!(shown.contains(name), "{shown}");
        }
    }
}

#[test]
fn no_spelling_of_a_path_gets_around_a_route() {
    for condition in ["path = \"/admin/*\"", "path_regex = '/[ab]dmin(/.*)?'"] {
        check_spellings(condition);
    }
}

/// Checks that a route with this condition has all spellings of the path `/admin`.
fn check_spellings(condition: &str) {
    let routes = &format!(
        r#"
        [[rule.web.routes]]
        {condition}
        answer = {{ status = 403, body = "no" }}
        [[rule.web.routes]]
        group = "rest"
    "#
    );
    let member = Member::echoing_targets();
    let balancer = Balancer::start(&config(routes, &[("rest", member.address())]));
    for client in CLIENTS {
        for (target, status) in [
            ("/admin", "403"),
            ("/admin/x", "403"),
            ("/%61dmin", "403"),
            ("/%61%64min/x", "403"),
            ("/admin;x=1", "403"),
            ("/admin;x/y", "403"),
            ("/./admin", "400"),
            ("/x/../admin", "400"),
            ("/%2e/admin", "400"),
            ("/x/..;/admin", "400"),
            ("//admin", "400"),
            ("/x%2f..%2fadmin", "400"),
            ("/x\\..\\admin", "400"),
            ("/administrator", "200"),
            ("/x?/admin", "200"),
        ] {
            let answer = ask(&balancer, client, target, &[]);
            assert_eq!(answer.status, status, "{client} {target}: {}", answer.body);
        }
    }
    // In absolute form.
    let mut wire = balancer.connect();
    wire.send("GET http://a/%61dmin HTTP/1.1\r\nHost: b\r\n\r\n");
    assert_eq!(wire.read_response().second_word(), "403");
    let lines = format!("http = {{ ambiguous_paths = true }}\n{routes}");
    let balancer = Balancer::start(&config(&lines, &[("rest", member.address())]));
    assert_eq!(body(&balancer, "--http1.1", "/x%2fy//z", &[]), "/x%2fy//z");
}

#[test]
fn regular_expressions_decide_about_fields_and_parameters() {
    let routes = r#"
        [[rule.web.routes]]
        headers = { User-Agent = { regex = ".*(?i:bot|crawler).*" } }
        query = { page = { regex = '\d{3,}' } }
        answer = { status = 403, body = "no" }
        [[rule.web.routes]]
        cookies = { version = { regex = "v[12]" } }
        answer = { status = 404, body = "no" }
        [[rule.web.routes]]
        group = "rest"
    "#;
    let member = Member::echoing_targets();
    let balancer = Balancer::start(&config(routes, &[("rest", member.address())]));
    for client in CLIENTS {
        for (target, field, status) in [
            ("/?page=100", "User-Agent: a Bot/1", "403"),
            ("/?x&page=%3100", "User-Agent: CRAWLER", "403"),
            ("/?page=99", "User-Agent: a Bot/1", "200"),
            ("/?page=100", "User-Agent: Bo t", "200"),
            ("/", "Cookie: a=b; version=v2", "404"),
            ("/", "Cookie: version=v23", "200"),
        ] {
            let answer = ask(&balancer, client, target, &["-H", field]);
            assert_eq!(answer.status, status, "{client} {target} {field}");
        }
    }
    let folder = Folder::new();
    let wrong = "[[rule.web.routes]]\npath_regex = [\"/a\", \"(\"]\nheaders = { A = { regex = \"a{2,1}\" }, B = { regexp = \"\" }, C = {} }\ngroup = \"rest\"\n";
    let text = config(wrong, &[("rest", member.address())]);
    let file = folder.write("evenkeel.toml", text);
    let said = run_evenkeel(&["check", &file.display().to_string()]).unwrap_err();
    for place in [
        "path_regex[1]",
        "headers.A.regex",
        "headers.B.regexp",
        "headers.C",
    ] {
        assert!(
            said.contains(&format!("rule.web.routes[0].{place}")),
            "{place}: {said}"
        );
    }
    assert!(
        said.contains("not a regular expression: unclosed group"),
        "{said}"
    );
}

#[test]
fn members_get_what_a_route_makes_of_a_request() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let routes = r#"
        [[rule.web.routes]]
        path = "/api/v1/*"
        rewrite_prefix = "/v2"
        group = "api"
        request_fields = { set = { "X-Real-IP" = "{client}", Host = "internal" }, add = { "X-Added" = "{scheme} {host} {path}{query}" }, remove = ["X-Remove"] }
        response_fields = { set = { Server = "shop" }, add = { "X-Frame-Options" = "DENY" }, remove = ["X-From"] }
        [[rule.web.routes]]
        path = "/root/*"
        rewrite_prefix = "/"
        group = "api"
        [[rule.web.routes]]
        path = "/one/*"
        rewrite_path = "/whole/"
        group = "api"
    "#;
    for listen in ["", "http2"] {
        let server = Server::nginx_telling("api", listen);
        let protocol = if listen.is_empty() { "http1" } else { "h2" };
        let lines = format!("http = {{ member_protocol = \"{protocol}\" }}\n{routes}");
        let balancer = Balancer::start(&config(&lines, &[("api", server.address())]));
        for client in CLIENTS {
            let more = [
                "-H",
                "X-Real-IP: 6.6.6.6",
                "-H",
                "X-Remove: secret",
                "-H",
                "Host: shop:1",
            ];
            let answer = ask(&balancer, client, "/api/v1/%78?a=b", &more);
            assert_eq!(
                answer.body,
                "api|GET|/v2/%78?a=b|internal|127.0.0.1||http shop /api/v1/%78?a=b"
            );
            let count = |line: &str| answer.fields.matches(line).count();
            let found = ["server: shop", "x-frame-options: deny", "server:", "x-from"].map(count);
            assert_eq!(found, [1, 1, 1, 0], "{}", answer.fields);
            for (target, wanted) in [
                ("/api/v1", "/v2"),
                ("/api/v1/", "/v2/"),
                ("/api/v1?x", "/v2?x"),
                ("/root", "/"),
                ("/root/a/b", "/a/b"),
                ("/one", "/whole/"),
                ("/one/%41/x?a=b", "/whole/?a=b"),
            ] {
                let told = body(&balancer, client, target, &more);
                assert_eq!(told.split('|').nth(2), Some(wanted), "{client} {target}");
            }
        }
    }
}

#[test]
fn redirects_and_answers_need_no_member() {
    let routes = r#"
        [[rule.web.routes]]
        path = "/old/*"
        redirect = "https://{host}{path}{query}"
        redirect_status = 308
        rewrite_prefix = "/new"
        response_fields = { set = { "Strict-Transport-Security" = "max-age=1" } }
        [[rule.web.routes]]
        path = "/maintenance/*"
        answer = { status = 503, file = "page.html", content_type = "text/html" }
        response_fields = { set = { "Retry-After" = "3600" } }
        [[rule.web.routes]]
        path = "/robots.txt"
        answer = { body = "User-agent: *" }
        [[rule.web.routes]]
        path = "/empty"
        answer = { status = 204 }
    "#;
    let text = config(routes, &[]);
    let balancer = Balancer::start_with(&text, |folder| {
        folder.write("page.html", "<p>Back soon.</p>");
    });
    for client in CLIENTS {
        let answer = ask(
            &balancer,
            client,
            "/old/a?b=c",
            &["-H", "Host: Shop.example:81"],
        );
        assert_eq!(answer.status, "308");
        assert_eq!(answer.location, "https://shop.example/new/a?b=c");
        assert!(
            answer
                .fields
                .contains("strict-transport-security: max-age=1")
        );
        let answer = ask(&balancer, client, "/maintenance/x", &["-d", "some body"]);
        assert_eq!(
            (answer.status.as_str(), answer.body.as_str()),
            ("503", "<p>Back soon.</p>")
        );
        assert!(
            answer.fields.contains("content-type: text/html\r"),
            "{}",
            answer.fields
        );
        assert!(
            answer.fields.contains("retry-after: 3600"),
            "{}",
            answer.fields
        );
        assert_eq!(body(&balancer, client, "/robots.txt", &[]), "User-agent: *");
        let answer = ask(&balancer, client, "/robots.txt", &["--head"]);
        assert_eq!((answer.status.as_str(), answer.body.trim()), ("200", ""));
        assert!(
            answer.fields.contains("content-length: 13"),
            "{}",
            answer.fields
        );
        let answer = ask(&balancer, client, "/empty", &[]);
        assert_eq!((answer.status.as_str(), answer.body.as_str()), ("204", ""));
        assert_eq!(ask(&balancer, client, "/other", &[]).status, "404");
    }
    // The connection goes on.
    let mut wire = balancer.connect();
    for _ in 0..3 {
        wire.send("POST /robots.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(wire.read_response().text(), "User-agent: *");
    }
    balancer.folder().write("page.html", "<p>Soon.</p>");
    wait_until("the page that has changed is the answer", || {
        ask(&balancer, "--http1.1", "/maintenance/x", &[]).body == "<p>Soon.</p>"
    });
    let metrics = balancer.admin_get("/metrics");
    let refused = "evenkeel_rule_refused_total{rule=\"web\",reason=\"no_route\"} 2";
    assert!(metrics.text().contains(refused), "{}", metrics.text());
    assert_eq!(balancer.admin_get("/readyz").second_word(), "200");
}

#[test]
fn groups_share_by_weight_and_a_bound_client_stays() {
    let [stable, canary] =
        ["stable", "canary"].map(|name| Member::answering_with(move |_| ok_response(name)));
    let groups = [("stable", stable.address()), ("canary", canary.address())];
    let routes = "[[rule.web.routes]]\ngroups = { stable = 75, canary = 25 }";
    let balancer = Balancer::start(&config(routes, &groups));
    let drawn = |balancer: &Balancer, connections: usize| {
        let mut found = BTreeMap::<String, u32>::new();
        for _ in 0..connections {
            let mut wire = balancer.connect();
            for _ in 0..400 / connections {
                wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                *found
                    .entry(wire.read_response().text().to_owned())
                    .or_default() += 1;
            }
        }
        found
    };
    // 100 of 400, with a standard deviation of 8.7.
    let canaries = drawn(&balancer, 1)["canary"];
    assert!((50..=150).contains(&canaries), "{canaries}");

    let bound = config(routes, &groups)
        .replace("]\n[group", "]\ngranularity = \"per_session\"\n[group")
        + "granularity = \"per_session\"\n";
    balancer.reconfigure(&bound);
    for _ in 0..20 {
        assert_eq!(drawn(&balancer, 1).len(), 1, "a client stays in its group");
    }
    let found = drawn(&balancer, 100);
    assert!(found.len() == 2, "{found:?}");

    balancer.reconfigure(&config(&routes.replace("25", "0"), &groups));
    assert_eq!(drawn(&balancer, 1).keys().collect::<Vec<_>>(), ["stable"]);
}

#[test]
fn bodies_are_as_large_as_their_route_allows() {
    let routes = r#"
        http = { max_body = "100B" }
        [[rule.web.routes]]
        path = "/upload"
        max_body = "1KiB"
        group = "all"
        [[rule.web.routes]]
        group = "all"
    "#;
    let member = Member::answering_with(|request| ok_response(&request.text().len().to_string()));
    let balancer = Balancer::start(&config(routes, &[("all", member.address())]));
    let folder = Folder::new();
    for size in [100, 101, 1024, 1025, 100_000] {
        folder.write(&size.to_string(), "x".repeat(size));
    }
    let upload = |client: &str, target: &str, size: usize, chunked: bool| {
        let data = format!("@{}", folder.join(&size.to_string()).display());
        let mut more = vec!["--data-binary", &data, "-H", "Expect:"];
        if chunked {
            more.extend(["-H", "Transfer-Encoding: chunked"]);
        }
        ask(&balancer, client, target, &more).status
    };
    for client in CLIENTS {
        for chunked in [false, true] {
            if chunked && client != "--http1.1" {
                continue;
            }
            let statuses = [
                ("/", 100),
                ("/", 101),
                ("/upload", 1024),
                ("/upload", 1025),
                ("/", 100_000),
            ]
            .map(|(target, size)| upload(client, target, size, chunked));
            assert_eq!(
                statuses,
                ["200", "413", "200", "413", "413"],
                "{client} {chunked}"
            );
        }
    }
    // While it streams: the member has its beginning already.
    let mut wire = balancer.connect();
    wire.send("POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3f0\r\n");
    wire.send("x".repeat(0x3f0));
    wire.send("\r\n11\r\n");
    wire.send("x".repeat(0x11));
    let response = wire.read_response();
    assert_eq!(response.second_word(), "413", "{}", response.text());
}

#[test]
fn another_member_is_asked_after_some_statuses() {
    let answering = |status: &'static str| {
        Member::answering_with(move |request| match request.second_word() {
            "/bad" => format!("HTTP/1.1 {status}\r\nContent-Length: 4\r\n\r\nbad!"),
            target => ok_response(target),
        })
    };
    let (bad, good) = (answering("503 Unavailable"), answering("200 OK"));
    let routes = r#"
        members = ["BAD", "GOOD"]
        strategy = "round_robin"
        http = { retry_budget = 1.0 }
        [[rule.web.routes]]
        path = "/bad"
        retry_statuses = [502, 503]
        [[rule.web.routes]]
        path = "/never"
        retries = 0
        retry_statuses = [502, 503]
    "#;
    let routes = routes
        .replace("BAD", &bad.address().to_string())
        .replace("GOOD", &good.address().to_string());
    let balancer = Balancer::start(&config(&routes, &[]));
    for client in CLIENTS {
        for _ in 0..4 {
            assert_eq!(
                ask(&balancer, client, "/bad", &[]).status,
                "200",
                "{client}"
            );
        }
        // What is not idempotent is not sent twice.
        let mut statuses: Vec<_> = (0..2)
            .map(|_| ask(&balancer, client, "/bad", &["-d", "x"]).status)
            .collect();
        statuses.sort();
        assert_eq!(statuses, ["200", "503"], "{client}");
    }
    // Where nobody else is, the response counts.
    let good = format!(", \"{}\"", good.address());
    balancer.reconfigure(&config(&routes.replace(&good, ""), &[]));
    let answer = ask(&balancer, "--http1.1", "/bad", &[]);
    assert_eq!(
        (answer.status.as_str(), answer.body.as_str()),
        ("503", "bad!")
    );
}

#[test]
fn a_route_has_time_limits_of_its_own() {
    let silent = Member::start(|script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            if request.second_word() != "/slow" {
                wire.send(ok_response("here"));
            }
        }
    });
    let routes = r#"
        response_timeout = "1h"
        [[rule.web.routes]]
        path = "/slow"
        response_timeout = "50ms"
        group = "all"
        [[rule.web.routes]]
        group = "all"
    "#;
    let balancer = Balancer::start(&config(routes, &[("all", silent.address())]));
    for client in CLIENTS {
        assert_eq!(ask(&balancer, client, "/slow", &[]).status, "504");
        assert_eq!(body(&balancer, client, "/", &[]), "here");
    }
}

#[test]
fn equal_keys_have_the_same_member_within_the_group_of_a_route() {
    let member = |name: &'static str| Member::answering_with(move |_| ok_response(name));
    let members = ["a", "b", "c", "d"].map(member);
    let list: Vec<_> = members
        .iter()
        .map(|member| format!("{:?}", member.address().to_string()))
        .collect();
    for (key, asked) in [
        ("header:X-User", ["-H", "X-User: KEY"]),
        ("cookie:sid", ["-H", "Cookie: sid=KEY"]),
    ] {
        let text = config(
            "[[rule.web.routes]]\npath = \"/x/*\"\nrewrite_prefix = \"/\"\ngroup = \"all\"",
            &[],
        ) + &format!(
            "[group.all]\nmembers = [{}]\nstrategy = \"hash\"\nhash_key = \"{key}\"\n",
            list.join(",")
        );
        let balancer = Balancer::start(&text);
        let mut found = BTreeMap::<String, u32>::new();
        for user in 0..20 {
            let field = asked[1].replace("KEY", &format!("user{user}"));
            let answers = CLIENTS.map(|client| body(&balancer, client, "/x/y", &["-H", &field]));
            assert_eq!(answers[0], answers[1]);
            *found.entry(answers[0].clone()).or_default() += 1;
        }
        assert!(found.len() > 1, "{found:?}");
    }
}

#[test]
fn the_access_log_names_route_and_group() {
    let member = Member::echoing_targets();
    let routes = r#"
        [[rule.web.routes]]
        name = "api"
        path = "/api/*"
        group = "all"
        [[rule.web.routes]]
        path = "/gone"
        answer = { status = 410 }
    "#;
    let folder = Folder::new();
    let log = folder.join("access.log");
    let text = config(routes, &[("all", member.address())])
        + &format!("[access_log]\noutput = \"{}\"\n", log.display());
    let balancer = Balancer::start(&text);
    for target in ["/api/x", "/gone", "/other"] {
        ask(&balancer, "--http1.1", target, &[]);
    }
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("three requests are logged", || lines().lines().count() == 3);
    let lines = lines();
    let lines: Vec<_> = lines.lines().collect();
    assert!(
        lines[0].contains("\"route\":\"api\",\"group\":\"all\""),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("\"route\":\"2\"") && !lines[1].contains("\"group\""),
        "{lines:?}"
    );
    assert!(
        !lines[2].contains("\"route\"") && lines[2].contains("404"),
        "{lines:?}"
    );
}

#[test]
fn a_route_that_can_never_match_is_an_error() {
    let folder = Folder::new();
    let complaint = |routes: &str| {
        let text = config(routes, &[("all", "127.0.0.1:1".parse().unwrap())]);
        let file = folder.write("evenkeel.toml", text);
        run_evenkeel(&["check", &file.display().to_string()]).unwrap_err()
    };
    let first =
        "[[rule.web.routes]]\nhost = \"*.example.org\"\npath = \"/api/*\"\ngroup = \"all\"\n";
    let second = "[[rule.web.routes]]\nhost = \"www.example.org\"\npath = \"/api/v1\"\nmethod = \"GET\"\ngroup = \"all\"\n";
    let said = complaint(&format!("{first}{second}"));
    assert!(
        said.contains(":10:1: rule.web.routes[1]: can never match: route 1 in line 6"),
        "{said}"
    );
    let said = complaint("[[rule.web.routes]]\npath = \"/a/../b\"\ngroup = \"all\"\n");
    assert!(said.contains("rule.web.routes[0].path"), "{said}");
    let said = complaint("[[rule.web.routes]]\nmethod = []\ngroup = \"all\"\n");
    assert!(said.contains("can never match"), "{said}");
}

#[test]
fn g1_requests_are_routed_by_the_address_of_the_client() {
    if !are_installed(&["curl"]) {
        return;
    }
    let rule = |name: &str, more: &str| {
        format!(
            "[rule.{name}]\nlisten = \"127.0.0.1:0\"\n{more}\n\
             [[rule.{name}.routes]]\npath = \"/admin/*\"\nexcept_client = [\"127.0.0.2\", \"10.0.0.0/8\"]\n\
             answer = {{ status = 403, body = \"outside\" }}\n\
             [[rule.{name}.routes]]\nclient = \"127.0.0.1\"\nanswer = {{ body = \"here\" }}\n\
             [[rule.{name}.routes]]\nanswer = {{ body = \"else\" }}\n"
        )
    };
    let balancer = Balancer::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n{}{}{}",
        rule("plain", ""),
        rule("behind", "http = { trust_forwarded = true }"),
        rule("proxied", "accept_proxy = [\"127.0.0.0/8\"]"),
    ));
    let (here, other) = ("127.0.0.1", "127.0.0.2");
    for client in CLIENTS {
        for (rule, from, forwarded, admin, else_where) in [
            ("plain", here, None, "outside", "here"),
            ("plain", other, None, "else", "else"),
            // Nobody is believed without `trust_forwarded`.
            ("plain", here, Some("10.0.0.1"), "outside", "here"),
            ("behind", other, None, "else", "else"),
            ("behind", here, Some("10.0.0.1"), "else", "else"),
            (
                "behind",
                other,
                Some("10.0.0.1, 127.0.0.1"),
                "outside",
                "here",
            ),
            ("behind", here, Some("192.0.2.1, 10.0.0.1"), "else", "else"),
            // Whom the proxy does not name is not inside, wherever the proxy is.
            (
                "behind",
                other,
                Some("10.0.0.1, unknown"),
                "outside",
                "else",
            ),
            ("behind", other, Some(""), "outside", "else"),
        ] {
            for (path, wanted) in [("/admin/x", admin), ("/", else_where)] {
                let url = format!("http://{}{path}", balancer.address(rule));
                let field = forwarded.map(|value| match value {
                    "" => "X-Forwarded-For;".to_owned(),
                    value => format!("X-Forwarded-For: {value}"),
                });
                let mut arguments = vec![client, "--interface", from];
                arguments.extend(field.iter().flat_map(|field| ["--header", field]));
                arguments.push(&url);
                let body = run_curl(&arguments);
                assert_eq!(body, wanted, "{client} {rule} {from} {forwarded:?} {path}");
            }
        }
    }
    for (client, wanted) in [("10.1.2.3", "else"), ("192.0.2.1", "outside")] {
        let mut wire = evenkeel_e2e::wire::Wire::connect(balancer.address("proxied"));
        wire.send(format!(
            "PROXY TCP4 {client} 127.0.0.1 4711 80\r\nGET /admin/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        ));
        assert_eq!(wire.read_response().text(), wanted, "{client}");
    }
}
